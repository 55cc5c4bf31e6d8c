"""PostgreSQL as it is at night: connections that break around a commit, a silent network, a server that restarts, a pooler.

Longer than other files: everything that can go wrong between a store and its server, in one list.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from stepseven import Layer, Run, step, workflow
from stepseven.errors import StoreUnavailable
from stepseven.store.base import Tx
from stepseven.testing.conformance import CLIENT, NOW_US, add_fact, append, facts, hold_run, record
from stepseven.transitions.state import steps_range
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from stepseven.store.postgres import PostgresStore
    from tests.servers.bouncer import Bouncer
    from tests.servers.postgres import Cluster

pytestmark = pytest.mark.postgres
Open = Callable[..., "PostgresStore"]

OTHER = "globex"


@pytest.fixture
def open_store() -> Iterator[Open]:
    """Opens stores with two clients in them, and closes them."""
    from stepseven.store.postgres import PostgresStore

    opened: list[PostgresStore] = []

    def open_it(url: str, **how: Any) -> PostgresStore:
        store = PostgresStore(url, **how)
        opened.append(store)
        for client in (CLIENT, OTHER):
            params = {"id": client, "now": NOW_US}
            store.write_now(lambda tx, p=params: tx.run(tx.sql.insert_client, p), durable=True, client=client)
        return store

    yield open_it
    for store in opened:
        store.close()


def via(url: str, port: int) -> str:
    """*url*, through another port."""
    head, _, tail = url.rpartition("/")
    return f"{head.rpartition(':')[0]}:{port}/{tail}"


def port_of(url: str) -> int:
    """Where its server listens."""
    return int(url.rpartition("/")[0].rpartition(":")[2])


def counted(value: str, calls: list[str]) -> Callable[[Tx], int]:
    """``add_fact`` that tells how often it is executed."""

    def unit(tx: Tx) -> int:
        calls.append(value)
        return add_fact(value)(tx)

    return unit


def seqs(store: PostgresStore, run_no: int) -> list[int]:
    """Which records of a run are there."""
    rows = store.read_now(lambda tx: tx.all(tx.sql.steps, steps_range(run_no)))
    return [row["id"] & 0xFFFFFF for row in rows]


def write_by(way: str, store: PostgresStore, unit: Callable[[Tx], Any], client: str = CLIENT) -> Any:
    """Through the queue, or in this thread."""
    if way == "thread":
        return store.write_now(unit, durable=True, client=client)

    async def queued() -> Any:
        return await store.write(unit, durable=True, client=client)

    return asyncio.run(queued())


# -- a connection that breaks around its commit -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["thread", "queue"])
def test_own_commit_is_recognised(postgres_url: str, open_store: Open, way: str) -> None:
    """The line breaks after the server committed and before it said so: the unit is known to be done, and is not done again."""
    with Proxy(port_of(postgres_url)) as line:
        store = open_store(via(postgres_url, line.port))
        calls: list[str] = []
        line.cut("after")
        assert write_by(way, store, counted("once", calls)) == 1
        assert line.cuts == 1
        assert calls == ["once"]
        assert facts(store) == ["once"]


@pytest.mark.parametrize("way", ["thread", "queue"])
def test_what_was_not_committed_is_done_again(postgres_url: str, open_store: Open, way: str) -> None:
    """The line breaks before the server heard of the commit: the unit is executed again, and is there once."""
    with Proxy(port_of(postgres_url)) as line:
        store = open_store(via(postgres_url, line.port))
        calls: list[str] = []
        line.cut("before")
        assert write_by(way, store, counted("once", calls)) == 1
        assert line.cuts == 1
        assert calls == ["once", "once"]
        assert facts(store) == ["once"]


@pytest.mark.parametrize("side", ["before", "after"])
def test_group_is_committed_once(postgres_url: str, open_store: Open, side: Any) -> None:
    """The same for units and records that share a commit: every one is there once, whichever side of it the line broke on."""
    with Proxy(port_of(postgres_url)) as line:
        store = open_store(via(postgres_url, line.port))
        hold = hold_run(store)

        async def together() -> list[Any]:
            first = asyncio.create_task(store.write(add_fact("0"), durable=True, client=CLIENT))
            rest = [store.write(add_fact(str(i)), durable=False, client=CLIENT) for i in range(1, 20)]
            records = [store.append(*record(hold, i).insert(store.sql, hold.values()), durable=False) for i in range(1, 20)]
            return await asyncio.gather(first, *rest, *records)

        line.cut(side)
        results = asyncio.run(together())
        assert line.cuts == 1
        assert results[:20] == list(range(1, 21))
        assert facts(store) == [str(i) for i in range(20)]
        assert seqs(store, hold.run_no) == list(range(1, 20))


@pytest.mark.parametrize("side", ["before", "after"])
def test_record_is_there_once(postgres_url: str, open_store: Open, side: Any) -> None:
    """The line breaks around a record's only statement: the record is there, once."""
    with Proxy(port_of(postgres_url)) as line:
        store = open_store(via(postgres_url, line.port))
        hold = hold_run(store)
        line.cut(side, needle=b"INSERT")
        append(store, hold, record(hold, 1))
        assert line.cuts == 1
        assert seqs(store, hold.run_no) == [1]


@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_send_is_claimed_and_settled_once(postgres_url: str, side: Any) -> None:
    """The line breaks around a receipt's statement and around a claim's: one send, one claim, one receipt; nobody is asked."""
    import psycopg

    sent: list[int] = []

    @step(effect="write", key="n")
    async def send(n: int) -> int:
        sent.append(n)
        if n == 1:  # the claim was left alone: now its receipt
            line.cut(side, needle=b"INSERT")
        return n

    @workflow
    async def sends(run: Run) -> int:
        first = await send(1)
        line.cut(side, needle=b"INSERT")  # the second claim
        return first + await send(2)

    with Proxy(port_of(postgres_url)) as line:
        async with Layer(via(postgres_url, line.port)) as layer:
            outcome = await layer.run(sends(), client=CLIENT, run_id="r1")
        assert (outcome.status, outcome.value, line.cuts) == ("done", 3, 2)
        assert sent == [1, 2]
        with psycopg.connect(postgres_url) as connection:
            found = connection.execute(
                "SELECT key, generation, tries, state, receipt FROM stepseven.effect ORDER BY key"
            ).fetchall()
            asked = connection.execute("SELECT count(*) FROM stepseven.question").fetchone()
        assert found == [("1", 1, 1, "done", "1"), ("2", 1, 1, "done", "2")]
        assert asked == (0,)


# -- a network that swallows everything -------------------------------------------------------------------------------------


def test_silent_partition_ends_in_a_sentence(postgres_url: str, open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stops answering without a word is given up after a while, with a sentence; afterwards all is well."""
    from stepseven.store import _pg_connect, _pg_desk

    with Proxy(port_of(postgres_url)) as line:
        store = open_store(via(postgres_url, line.port) + "?connect_timeout=2")
        monkeypatch.setattr(_pg_connect.Connection, "silence_s", 0.5)
        monkeypatch.setattr(_pg_desk, "PATIENCE_S", 2.0)
        monkeypatch.setattr(
            _pg_desk.Desk.patiently, "__kwdefaults__", {**_pg_desk.Desk.patiently.__kwdefaults__, "patience_s": 2.0}
        )
        line.freeze()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            store.write_now(add_fact("lost"), durable=True, client=CLIENT)
        with pytest.raises(StoreUnavailable, match="does not answer"):
            write_by("queue", store, add_fact("lost"))
        line.heal()
        assert write_by("queue", store, add_fact("after")) == 1
        assert facts(store) == ["after"]


# -- a server that restarts -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_restart_in_the_middle_of_everything(cluster: Cluster, open_store: Open, how: Any) -> None:
    """The server is restarted three times under units and records: all that was acknowledged is there, everything once."""
    store = open_store(cluster.url() + "?connect_timeout=5")
    hold = hold_run(store)
    stop = threading.Event()
    said: dict[str, list[str]] = {"units": [], "records": [], "thread": []}

    def thread() -> None:
        while not stop.is_set():
            value = f"t{len(said['thread'])}"
            store.write_now(add_fact(value, "thread"), durable=True, client=CLIENT)
            said["thread"].append(value)

    async def units() -> None:
        while not stop.is_set():
            value = f"u{len(said['units'])}"
            await store.write(add_fact(value, "units"), durable=True, client=CLIENT)
            said["units"].append(value)

    async def records() -> None:
        while not stop.is_set():
            made = record(hold, len(said["records"]) + 1)
            await store.append(*made.insert(store.sql, hold.values()), durable=False)
            said["records"].append(str(made.seq))

    busy = [threading.Thread(target=thread), *(threading.Thread(target=asyncio.run, args=(way(),)) for way in (units, records))]
    for one in busy:
        one.start()
    for _ in range(3):
        _until_more(said)
        cluster.restart(how)
    _until_more(said)
    stop.set()
    for one in busy:
        one.join(60)
    assert facts(store, "units") == said["units"]
    assert facts(store, "thread") == said["thread"]
    assert [str(seq) for seq in seqs(store, hold.run_no)] == said["records"]


def _until_more(said: dict[str, list[str]]) -> None:
    before = {name: len(values) for name, values in said.items()}
    _until(lambda: all(len(values) > before[name] + 20 for name, values in said.items()))


@pytest.mark.parametrize("pooled", [False, True])
def test_lost_records_are_written_again(open_store: Open, pooled: bool) -> None:
    """A crash of the server loses records whose commit did not wait: who wrote them writes them again, before anything else."""
    from tests.servers.bouncer import Bouncer
    from tests.servers.postgres import Cluster

    settings = {"wal_writer_delay": "10s", "wal_writer_flush_after": "0"}  # so that it surely has not flushed them
    with Cluster(settings=settings) as cluster, Bouncer(cluster.port) as bouncer:
        store = open_store(bouncer.url("postgres") if pooled else cluster.url())
        hold = hold_run(store)
        for seq in range(1, 6):
            assert append(store, hold, record(hold, seq))
        cluster.restart("immediate")
        with cluster.connect() as eyes:
            lost = eyes.execute("SELECT count(*) FROM stepseven.step").fetchone()
        assert lost is not None
        assert lost[0] < 5, "the server lost some: else this proves nothing"
        assert append(store, hold, record(hold, 6)) or pooled
        assert seqs(store, hold.run_no) == [1, 2, 3, 4, 5, 6]


@pytest.mark.pgbouncer
@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_idle_connection_that_outlives_the_server(cluster: Cluster, bouncer: Bouncer, open_store: Open, how: Any) -> None:
    """A pooler keeps an idle connection while the server behind it is restarted: units go on as if nothing had been."""
    store = open_store(bouncer.url("postgres"))
    cluster.restart(how)
    done: list[int] = []
    writing = threading.Thread(target=lambda: done.extend(store.write_now(add_fact(str(i)), durable=True, client=CLIENT)
                                                          for i in range(4)), daemon=True)  # fmt: skip
    writing.start()
    writing.join(30)
    assert done == [1, 2, 3, 4]


@pytest.mark.pgbouncer
@pytest.mark.parametrize("grouped", [False, True])
def test_lost_records_are_noticed_by_records_alone(open_store: Open, grouped: bool) -> None:
    """Behind a pooler only the transaction itself tells that the server was away: also one that hears of it with its commit."""
    from tests.servers.bouncer import Bouncer
    from tests.servers.postgres import Cluster

    settings = {"wal_writer_delay": "10s", "wal_writer_flush_after": "0"}
    with Cluster(settings=settings) as cluster, Bouncer(cluster.port) as bouncer:
        store = open_store(bouncer.url("postgres"))
        hold = hold_run(store)
        for seq in (1, 2):
            assert append(store, hold, record(hold, seq))
        cluster.restart("immediate")
        if grouped:

            async def together() -> None:
                made = [record(hold, seq).insert(store.sql, hold.values()) for seq in range(3, 11)]
                await asyncio.gather(*(store.append(*one, durable=False) for one in made))

            asyncio.run(together())
        else:
            assert append(store, hold, record(hold, 3), durable=True)
        store.write_now(add_fact("after"), durable=True, client=CLIENT)
        assert seqs(store, hold.run_no)[:3] == [1, 2, 3]


def test_records_that_cannot_be_sent_again_yet_are_not_forgotten(postgres_url: str, open_store: Open) -> None:
    """Somebody holds the run's row while what the server lost is sent again: it is sent once that is over."""
    import psycopg

    store = open_store(postgres_url)
    hold = hold_run(store)
    assert append(store, hold, record(hold, 1))
    with psycopg.connect(postgres_url) as other:
        other.execute("DELETE FROM stepseven.step")  # as a crash would
        other.commit()
        other.execute("SELECT 1 FROM stepseven.run FOR UPDATE")
        store._desk.lately.lost()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            store._desk.patiently(lambda wire: wire, again=lambda _: False)
    assert seqs(store, hold.run_no) == [1]


def test_lost_records_of_a_run_that_was_taken_stay_lost(open_store: Open) -> None:
    """What is written again carries the fence: a run that somebody else has taken since gets nothing."""
    from tests.servers.postgres import Cluster

    with Cluster(settings={"wal_writer_delay": "10s", "wal_writer_flush_after": "0"}) as cluster:
        store = open_store(cluster.url())
        hold = hold_run(store)
        assert append(store, hold, record(hold, 1))
        cluster.restart("immediate")
        with cluster.connect() as eyes:
            eyes.execute("UPDATE stepseven.run SET fence = fence + 1, owner = 'w_2'")
        assert append(store, hold, record(hold, 2)) is False
        assert seqs(store, hold.run_no) == []


# -- several processes ------------------------------------------------------------------------------------------------------

_CHILD = """
import sys, json
from stepseven.store.postgres import PostgresStore
from stepseven.testing.conformance import NOW_US
how, url, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
if how == "unlocked":
    from stepseven.store import postgres
    postgres.lock_keys = lambda client: []
store = PostgresStore(url)
def look(tx):
    row = tx.one(tx.sql.fact, {"client_id": "acme", "key": "count"})
    return 0 if row is None else int(row["value"])
def add(tx):
    params = {"id": "acme", "now": NOW_US, "client_id": "acme", "key": "count", "value": str(look(tx) + 1), "source": None,
              "run_id": None, "by": None, "valid_until_us": None}
    tx.run(tx.sql.insert_fact, params)
def hold(tx):
    add(tx)
    print("holding", flush=True)
    sys.stdin.readline()
print("ready", flush=True)
sys.stdin.readline()
if how == "hold":
    store.write_now(hold, durable=True, client="acme")
from stepseven.errors import StoreUnavailable
for _ in range(rounds):
    try:
        store.write_now(add, durable=False, client="acme")
    except StoreUnavailable:
        if how != "unlocked":
            raise
store.close()
print("done", flush=True)
"""


def child(url: str, rounds: int = 0, how: str = "locked") -> subprocess.Popen[str]:
    """A process that adds one to a fact, by reading and writing it, as often as asked; it waits for a line first."""
    command = [sys.executable, "-c", _CHILD, how, url, str(rounds)]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    assert made.stdout.readline() == "ready\n"
    return made


def go(process: subprocess.Popen[str]) -> None:
    """Give a child the line it waits for."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def count(store: PostgresStore) -> int:
    """What the children have added up to."""
    row = store.read_now(lambda tx: tx.one(tx.sql.fact, {"client_id": CLIENT, "key": "count"}))
    return 0 if row is None else int(row["value"])


def _race(url: str, processes: int, rounds: int, how: str = "locked") -> None:
    children = [child(url, rounds, how) for _ in range(processes)]
    for one in children:
        go(one)
    for one in children:
        out, _ = one.communicate(timeout=120)
        assert out == "done\n"


def test_units_of_one_client_never_lose_an_update(postgres_url: str, open_store: Open) -> None:
    """Two processes read and write what is known of one client: as often as they did, as much was added."""
    store = open_store(postgres_url)
    _race(postgres_url, 2, 150)
    assert count(store) == 300


def test_without_the_lock_updates_are_lost(postgres_url: str, open_store: Open) -> None:
    """It is the client's lock that holds this: without it the same two processes lose some."""
    store = open_store(postgres_url)
    _race(postgres_url, 2, 150, "unlocked")
    assert count(store) < 300


@pytest.mark.slow
@pytest.mark.pgbouncer
def test_four_processes_on_two_connections(pooled_url: str, open_store: Open) -> None:
    """Four processes behind a pooler that has two connections: nothing of a session leaks, no update is lost, nobody starves."""
    store = open_store(pooled_url)
    assert store.pooled
    _race(pooled_url, 4, 60)
    assert count(store) == 240


def test_pooler_is_seen(postgres_url: str, pooled_url: str, open_store: Open) -> None:
    """Whether a pooler stands between is found out, not configured."""
    assert not open_store(postgres_url).pooled
    assert open_store(pooled_url).pooled


def test_frozen_process_holds_nobody_up_for_long(postgres_url: str, open_store: Open) -> None:
    """A process frozen within a transaction on a client: others' clients go on at once, that client within ten seconds."""
    store = open_store(postgres_url)
    frozen = child(postgres_url, how="hold")
    try:
        go(frozen)
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "holding\n"
        os.kill(frozen.pid, signal.SIGSTOP)

        async def both() -> tuple[float, float]:
            began = time.monotonic()
            held = asyncio.create_task(store.write(add_fact("held"), durable=True, client=CLIENT))
            await asyncio.sleep(0)
            await asyncio.gather(*(store.write(_other(i), durable=True, client=OTHER) for i in range(5)))
            others = time.monotonic() - began
            await held
            return others, time.monotonic() - began

        others, held = asyncio.run(both())
        assert others < 3 < held + 3
        assert others < held < 15
        assert facts(store) == ["held"]
        assert count(store) == 0, "what the frozen process was about to write was taken back"
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
        frozen.kill()
        frozen.communicate()


def _other(i: int) -> Callable[[Tx], int]:
    def unit(tx: Tx) -> int:
        params = {
            "client_id": OTHER, "key": "n", "value": str(i), "source": None, "run_id": None, "by": None, "now": NOW_US,
            "valid_until_us": None,
        }  # fmt: skip
        return tx.run(tx.sql.insert_fact, params)

    return unit


def test_forked_process_has_its_own_connections(postgres_url: str, open_store: Open) -> None:
    """After a fork parent and child go on with the same store, each on its own connections and threads."""
    store = open_store(postgres_url)
    asyncio.run(_write(store, "before"))
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(_write(store, "child"))
            os._exit(0 if len(facts(store)) == 2 else 1)
        except BaseException:  # noqa: BLE001 - a forked process must not come back into the tests
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    asyncio.run(_write(store, "parent"))
    assert facts(store) == ["before", "child", "parent"]


async def _write(store: PostgresStore, value: str) -> None:
    await store.write(add_fact(value), durable=True, client=CLIENT)


# -- values, space, sentences -----------------------------------------------------------------------------------------------


def test_values_are_those_of_sqlite(postgres_url: str, open_store: Open) -> None:
    """Sums are whole numbers, truth is 0 or 1, a document is text: as the rest of the project knows them."""
    store = open_store(postgres_url)
    hold = hold_run(store)
    assert append(store, hold, record(hold, 1, usd=7, tokens=True))
    run = store.read_now(lambda tx: tx.one(tx.sql.run_by_no, {"no": hold.run_no}))
    spent = store.read_now(lambda tx: tx.one(tx.sql.spend, {"run_no": hold.run_no, **steps_range(hold.run_no)}))
    document = store.read_now(lambda tx: tx.one(tx.sql.checkpoint, {"id": "r1"}))
    assert run is not None
    assert run["shrunk"] == 0
    assert type(run["shrunk"]) is int
    assert spent == {"uusd": 7, "tokens": 1}
    assert [type(value) for value in spent.values()] == [int, int]
    assert document is not None
    assert type(document["document"]) is str


def test_compact_gives_back_and_waits_for_nobody(postgres_url: str, open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """``compact`` makes the tables smaller; while somebody holds on to one it says so instead of standing in line."""
    import psycopg

    from stepseven.store import _pg_space

    store = open_store(postgres_url)
    for i in range(30):
        store.write_now(add_fact("x" * 60_000 + str(i), "large"), durable=False, client=CLIENT)
    store.erase(lambda tx: tx.run(tx.sql.forget_facts, {"client_id": CLIENT}), client=CLIENT)
    monkeypatch.setattr(_pg_space, "PATIENCE_S", 0.2)
    with psycopg.connect(postgres_url) as holds:
        holds.execute("SELECT * FROM stepseven.fact")
        with pytest.raises(StoreUnavailable, match="somebody uses table fact"):
            store.compact()
    assert store.compact() > 0
    assert store.write_now(add_fact("after"), durable=True, client=CLIENT) == 1


def test_who_is_not_the_owner_cannot_compact(postgres_url: str, open_store: Open) -> None:
    """A role that may write, but does not own the tables, is told that nothing was made smaller: what went is still there."""
    import psycopg

    open_store(postgres_url)
    name = f"hand_{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN".encode())
        owner.execute(f"GRANT USAGE ON SCHEMA stepseven TO {name}".encode())
        owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA stepseven TO {name}".encode())
        try:
            head, _, tail = postgres_url.rpartition("@")
            store = open_store(f"{head.partition('://')[0]}://{name}@{tail}")
            with pytest.raises(StoreUnavailable, match="only the owner"):
                store.compact()
            store.close()
        finally:
            owner.execute(f"DROP OWNED BY {name}".encode())
            owner.execute(f"DROP ROLE {name}".encode())


def test_reader_can_be_interrupted(postgres_url: str, open_store: Open) -> None:
    """A long read is broken off from another thread, and the reader can be used again."""
    store = open_store(postgres_url)
    reader = store.reader()
    started = threading.Event()

    def slow(tx: Tx) -> None:
        tx.one(tx.sql.store, {})
        started.set()
        tx.one("SELECT pg_sleep(60) AS slept", {})

    def interrupt() -> None:
        started.wait(30)
        for _ in range(100):
            if done.wait(0.05):
                return
            reader.interrupt()

    done = threading.Event()
    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(StoreUnavailable, match="broken off"):
        reader.read_now(slow)
    done.set()
    helper.join()
    assert reader.read_now(lambda tx: tx.one(tx.sql.store, {})) is not None


@pytest.mark.parametrize(
    "url, says",
    [
        ("postgresql://ann:hunter2@127.0.0.1:1/x", "there is no connection"),
        ("postgresql://ann:hunter2@/x?host=127.0.0.1&port=nonsense", "."),
        ("postgresql://ann:hunter2@127.0.0.1:1/x?sslmode=perhaps", "."),
        ("postgresql://127.0.0.1:1/x?password=hunter2", "there is no connection"),
        ("postgresql://ann:hunter2@127.0.0.1:1/x?nonsense=1", "no URL of PostgreSQL"),
    ],
)
def test_wrong_url_is_told_without_its_password(url: str, says: str) -> None:
    """What cannot be opened is told within seconds, in one sentence, and the password is not in it."""
    from stepseven.store.postgres import PostgresStore

    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=says) as told:
        PostgresStore(url)
    assert "hunter2" not in str(told.value)
    assert time.monotonic() - began < 15


def test_missing_database_is_named(postgres_url: str) -> None:
    """A database that is not there is named in the sentence."""
    from stepseven.store.postgres import PostgresStore

    with pytest.raises(StoreUnavailable, match="nowhere_to_be_found"):
        PostgresStore(postgres_url.rpartition("/")[0] + "/nowhere_to_be_found")


@pytest.mark.pgbouncer
def test_pooler_that_restarts(cluster: Cluster, bouncer: Bouncer, open_store: Open) -> None:
    """The pooler is restarted between and under units: all that was acknowledged is there once."""
    store = open_store(bouncer.url("postgres"))
    for i in range(3):
        asyncio.run(_write(store, str(2 * i)))
        bouncer.restart()
        store.write_now(add_fact(str(2 * i + 1)), durable=True, client=CLIENT)
    assert facts(store) == [str(i) for i in range(6)]
    assert cluster.pid


def _until(seen: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for an observed state."""
    give_up = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < give_up, "it did not come to pass"
        time.sleep(0.01)
