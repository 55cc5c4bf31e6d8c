"""What an event loop sends to PostgreSQL by itself: no thread is woken, and what goes wrong goes to the thread."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import ref

import psycopg
import pytest

from stepseven.store._pg_tx import lock_keys
from stepseven.store._pg_wire import Wire
from stepseven.store.base import Later, Tx
from stepseven.testing.conformance import CLIENT, NOW_US, add_fact, facts, hold_run, record
from stepseven.transitions import effects
from stepseven.transitions.effects import Claim, Intent
from stepseven.transitions.state import Hold, steps_range

if TYPE_CHECKING:
    from stepseven.store.postgres import PostgresStore

pytestmark = pytest.mark.postgres
INTENT = Intent(
    scope="run", scope_id="r", name="pay", key="k1", step="pay", branch="", inputs="digest", arguments="{}", timeout_us=60_000_000
)


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    """A store with a client in it."""
    from stepseven.store.postgres import PostgresStore

    store = PostgresStore(postgres_url)
    store.write_now(lambda tx: tx.run(tx.sql.insert_client, {"id": CLIENT, "now": NOW_US}), durable=True, client=CLIENT)
    yield store
    store.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The statements of each trip to the server from now on."""
    trips: list[list[str]] = []
    talk = Wire.talk

    def noted(wire: Wire, statements: list[tuple[str, Any]]) -> Any:
        trips.append([statement for statement, _ in statements])
        return talk(wire, statements)

    monkeypatch.setattr(Wire, "talk", noted)
    return trips


def woken(store: PostgresStore) -> bool:
    """Whether its writer's thread was ever needed."""
    return store._writer._thread.started


async def append(store: PostgresStore, hold: Hold, seq: int, *, durable: bool = False) -> bool:
    """One record."""
    return await store.append(*record(hold, seq).insert(store.sql, hold.values()), durable=durable)


def seqs(store: PostgresStore, hold: Hold) -> list[int]:
    """Which records there are."""
    rows = store.read_now(lambda tx: tx.all(tx.sql.steps, steps_range(hold.run_no)))
    return [row["id"] & 0xFFFFFF for row in rows]


def claimed(hold: Hold, claim_id: str) -> Callable[[Tx], tuple[Claim, Later]]:
    """A claim that asks for nothing before its commit."""
    return lambda tx: effects.claim_new(tx, hold, INTENT, claim_id, NOW_US)


def settled(hold: Hold, claim: Claim, receipt: str) -> Callable[[Tx], tuple[Later, Later]]:
    """A receipt with its record."""
    made = record(hold, 2, effect="write", inputs="digest")
    return lambda tx: effects.settle_with(tx, hold, claim, made, receipt)


async def until_it_waits(task: asyncio.Task[Any], other: psycopg.Connection[Any]) -> None:
    """Until somebody waits for a lock that *other* holds; or the task has given up, on a slow machine: then the thread waits."""
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while not task.done() and other.execute(waiting).fetchone() == (0,):
        await asyncio.sleep(0)


async def send(store: PostgresStore, unit: Callable[[Tx], Any]) -> Any:
    """``write`` of what asks for nothing before its commit."""
    return await store.write(unit, durable=True, client=CLIENT, asks=False)


def test_no_thread_is_woken(store: PostgresStore, sent: list[list[str]]) -> None:
    """A record, a claim and a receipt with its record go in one statement each, from the loop; no thread is started for them."""
    hold = hold_run(store)
    sent.clear()

    async def work() -> tuple[bool, Claim, Later, tuple[Later, Later]]:
        written = await append(store, hold, 1)
        claim, made = await send(store, claimed(hold, "c_1"))
        both = await send(store, settled(hold, claim, '"r"'))
        return written, claim, made, both

    written, claim, made, both = asyncio.run(work())
    assert written
    assert made.rows_written() == 1
    assert [each.rows_written() for each in both] == [1, 1]
    sql = store.sql
    assert sent == [[sql.append_read_free], [sql.claim_new_alone], [sql.append_settled_alone]]
    assert not woken(store)
    assert seqs(store, hold) == [1, 2]
    held = store.read_now(lambda tx: tx.one(sql.claim, {"claim_id": claim.claim_id}))
    assert held is not None
    assert (held["state"], held["receipt"], held["settled_us"]) == ("done", '"r"', record(hold, 2).ended_us)


def test_many_share_a_commit(store: PostgresStore, sent: list[list[str]]) -> None:
    """What a hundred tasks want written at once goes in a few commits, from the loop."""
    holds = [hold_run(store, f"r{i}") for i in range(100)]
    sent.clear()

    async def work() -> list[bool]:
        for _ in range(3):
            store.enter()
        return await asyncio.gather(*(append(store, hold, 1, durable=True) for hold in holds))

    assert asyncio.run(work()) == [True] * 100
    assert len(sent) <= 3
    assert not woken(store)
    assert all(seqs(store, hold) == [1] for hold in holds[::20])


def test_a_unit_that_asks_goes_to_the_thread(store: PostgresStore) -> None:
    """Who said that nothing is asked, and asks all the same, is carried out like everybody."""
    assert asyncio.run(send(store, add_fact("1"))) == 1
    assert facts(store) == ["1"]
    assert woken(store)


def test_a_refusal_is_told(store: PostgresStore) -> None:
    """A record that is there already is no error; one of a run that was taken is told as not written; all else goes on."""
    hold = hold_run(store)
    late = replace(hold, fence=hold.fence - 1)

    async def work() -> list[bool]:
        return [await append(store, h, 1, durable=d) for h in (late, hold, hold) for d in (False, True)]

    assert asyncio.run(work()) == [False, False, True, False, False, False]


def test_a_connection_that_was_ended_is_replaced(store: PostgresStore, postgres_url: str) -> None:
    """Between two commits all connections are ended by an administrator: nobody notices."""
    hold = hold_run(store)

    async def work() -> list[bool]:
        written = [await append(store, hold, 1)]
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute(
                """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()"""
            )
        return [*written, *[await append(store, hold, seq) for seq in (2, 3)]]

    assert asyncio.run(work()) == [True] * 3
    assert seqs(store, hold) == [1, 2, 3]


def test_closing_waits_for_what_is_under_way(store: PostgresStore) -> None:
    """A store that is closed in the loop's own thread, while a commit is under way and another waits: both are written."""
    hold = hold_run(store)

    async def work() -> list[bool]:
        tasks = [asyncio.create_task(append(store, hold, seq, durable=True)) for seq in (1, 2)]
        await asyncio.sleep(0)  # the first is sent
        store.close()
        return [await task for task in tasks]

    assert asyncio.run(work()) == [True, True]


def test_closing_from_another_thread_waits_too(store: PostgresStore, postgres_url: str) -> None:
    """While a commit waits for somebody's lock the store is closed in another thread: the commit is made, and told."""
    hold = hold_run(store)

    async def work() -> bool:
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT 1 FROM stepseven.run FOR UPDATE")
            task = asyncio.create_task(append(store, hold, 1, durable=True))
            await asyncio.sleep(0)
            closing = asyncio.get_running_loop().run_in_executor(None, store.close)
            await asyncio.sleep(0)
        written = await task
        await closing
        return written

    assert asyncio.run(work())


def test_a_lock_held_elsewhere_is_waited_for(store: PostgresStore, postgres_url: str) -> None:
    """Somebody writes to the same client meanwhile, and claims the same: the loop's claim finds it, and writes nothing."""
    hold = hold_run(store)
    (key,) = lock_keys(CLIENT)

    async def work() -> Later:
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT pg_advisory_xact_lock(%s)", (key,))
            task = asyncio.create_task(send(store, claimed(hold, "c_2")))
            await until_it_waits(task, other)
            row = {**effects._claim_row(hold, INTENT, "c_1", NOW_US), "generation": 1}
            other.execute(store.sql.insert_claim, row)
        return (await task)[1]

    assert asyncio.run(work()).rows_written() == 0
    there = store.read_now(lambda tx: tx.all(tx.sql.effects, {"run_no": hold.run_no}))
    assert [row["claim_id"] for row in there] == ["c_1"]


def test_a_receipt_that_came_meanwhile_stands(store: PostgresStore, postgres_url: str) -> None:
    """While record and receipt wait for the client's lock somebody else writes a receipt: neither is written."""
    hold = hold_run(store)
    (key,) = lock_keys(CLIENT)

    async def work() -> tuple[Later, Later]:
        claim, _ = await send(store, claimed(hold, "c_1"))
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT pg_advisory_xact_lock(%s)", (key,))
            task = asyncio.create_task(send(store, settled(hold, claim, '"mine"')))
            await until_it_waits(task, other)
            other.execute(store.sql.settle_claim, {"claim_id": "c_1", "receipt": '"theirs"', "now": NOW_US})
        both: tuple[Later, Later] = await task
        return both

    assert [each.rows_written() for each in asyncio.run(work())] == [0, 0]
    assert seqs(store, hold) == []
    held = store.read_now(lambda tx: tx.one(tx.sql.claim, {"claim_id": "c_1"}))
    assert held is not None
    assert held["receipt"] == '"theirs"'


def test_the_server_waits_for_its_disk_whatever_it_was_told(store: PostgresStore, postgres_url: str) -> None:
    """For a database whose commits do not wait, a claim's commit does: the setting is there when its statement has run."""
    from stepseven.store.dialect import POSTGRES

    with psycopg.connect(postgres_url) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute(f"SELECT {POSTGRES.alone.format(1)}")  # type: ignore[arg-type]
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
        assert connection.execute("SHOW lock_timeout").fetchone() == ("250ms",)
    assert POSTGRES.alone in store.sql.claim_new_alone.replace("%(lock)s", "{}")
    assert POSTGRES.alone in store.sql.append_settled_alone.replace("pg_advisory_xact_lock(%s)", "pg_advisory_xact_lock({})")


async def test_what_was_paid_for_waits_for_the_disk(store: PostgresStore, sent: list[list[str]]) -> None:
    """A durable record is committed with the server's disk waited for, alone or in company; a free one is not."""
    hold = hold_run(store)
    off = "'synchronous_commit', 'off'"
    for seq, durable in ((2, False), (3, True)):
        sent.clear()
        assert await append(store, hold, seq, durable=durable)
        assert any(off in statement for trip in sent for statement in trip) is not durable, sent
    sent.clear()
    assert all(await asyncio.gather(*(append(store, hold, seq, durable=seq == 6) for seq in (4, 5, 6))))
    assert any("CASE current_setting('synchronous_commit')" in statement for trip in sent for statement in trip), sent
    assert not woken(store)


async def test_a_connection_keeps_nobodys_context(store: PostgresStore) -> None:
    """What was in the context of the first writer (a run, with all it has in memory) is let go when that is done."""

    class Kept:
        """Stands for a run."""

    holder: ContextVar[Kept] = ContextVar("holder")
    hold, mine = hold_run(store), Kept()
    alive = ref(mine)

    async def write(whose: list[Kept]) -> None:
        holder.set(whose.pop())
        await append(store, hold, 2, durable=True)

    await asyncio.create_task(write([mine]))
    del mine
    await append(store, hold, 3)
    gc.collect()
    assert not woken(store)
    assert alive() is None
