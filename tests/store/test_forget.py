"""When a client leaves nothing that was said, found out or done for it can be read; that it happened, and its cost, stays.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stepseven import ClientBusy, Cost, Fatal, Layer, Run, UnknownClient, attempt, step, testing, workflow
from stepseven.runtime import erasing, files
from stepseven.store.artifacts import content_hash
from stepseven.transitions import forgetting
from tests.runs.tools import Crash, child, rows, url

MARK = "Grüße-πλάνη-"  # not ASCII: it must be found as UTF-8 and as JSON escapes
PLACES = (
    "input", "goal", "value", "result", "large", "huge", "summary", "reason", "failure", "note", "fact_old", "fact_new", "source",
    "fact_key", "ask", "option", "about", "answer_note", "argument", "receipt", "key", "item", "item_key", "memory",
    "event", "delivery", "reply", "cancel", "remembered",
)  # fmt: skip


def planted(client: str, place: str) -> str:
    """What is looked for."""
    return f"{MARK}{client}-{place}-{place.encode().hex()}"


@step(summary=lambda _: planted(World.client, "summary"))
async def read(text: str) -> str:
    """A result in the record."""
    return planted(World.client, "result")


@step
async def read_large(text: str) -> str:
    """A result in the table of artifacts."""
    return planted(World.client, "large") * 300


@step
async def read_huge(text: str) -> str:
    """A result in a file."""
    return planted(World.client, "huge") * 3000


@step(cost=Cost(usd=0.25), on_failure="raise")
async def fails(text: str) -> str:
    """A try that leaves its reason and trace."""
    attempt().spend(usd=0.25, tokens=3)
    raise RuntimeError(planted(World.client, "reason"))


@step
async def each(item: str) -> str:
    """One of many."""
    return item


@step(effect="write", key="name", scope="client")
async def send(name: str, text: str) -> dict[str, str]:
    """An effect with its key, arguments and receipt."""
    return {"made": planted(World.client, "receipt")}


class World:
    """Whose turn it is: steps see only their arguments."""

    client = ""


@workflow(name="forget.all")
async def everything(run: Run, text: str) -> str:
    """A run that leaves something everywhere."""
    client = World.client
    p = lambda place: planted(client, place)  # noqa: E731
    await read(text)
    await read_large(text)
    await read_huge(text)
    try:
        await fails(text)
    except Exception:  # noqa: BLE001 - what it leaves is the point
        run.client.set(p("fact_key"), p("note"), source=p("source"))
    await run.map(each, [p("item")], key=p("item_key"))
    answer = await run.ask(p("ask"), options=[p("option"), "b"], about=p("about"), remember=p("remembered"))
    await send(p("key"), p("argument"))
    if answer == "b":
        raise Fatal(p("failure"))
    return p("value")


async def leave_traces(layer: testing.TestLayer, client: str) -> None:
    """Two ended runs of a client, one failed and one done, one cancelled; and facts, old and new."""
    World.client = client
    known = layer.client(client)
    for place in ("fact_old", "fact_new"):
        known.set("contact", planted(client, place), source=planted(client, "source"))
    goal = planted(client, "goal")
    for n, answer in enumerate(("b", planted(client, "option"))):
        await layer.run(everything(text=planted(client, "input")), client=client, run_id=f"{client}-{n}", goal=goal)
        for question in await layer.questions(client=client):
            await layer.answer(question.id, answer, by="ann", note=planted(client, "answer_note"))
        await layer.resume(f"{client}-{n}")
        outdate(layer, client)
    await layer.run(everything(text="x"), client=client, run_id=f"{client}-2")
    await layer.cancel(f"{client}-2", reason=planted(client, "cancel"), by="ann")

    def more(tx: Any) -> None:
        no = tx.one(tx.sql.run_by_id, {"id": f"{client}-0"})["no"]
        put = tx.connection.execute
        put("INSERT INTO memory VALUES (?, 'k', ?, 1, 1, NULL)", (f"{client}/notes", json.dumps(planted(client, "memory"))))
        put("INSERT INTO event VALUES (?, 1, 'x', ?, 1)", (no, planted(client, "event")))
        put("INSERT INTO delivery VALUES (?, NULL, ?, NULL, NULL, 'ask', 'failed', 1, NULL, ?, 1, NULL, 0, NULL)",
            (f"d-{client}", no, planted(client, "delivery")))  # fmt: skip
        put("INSERT INTO reply VALUES ('t_1', ?, 'digest', ?, 200, ?, 1)", (f"k-{client}", client, planted(client, "reply")))

    layer.store.write_now(more, durable=True, client=None)


def outdate(layer: Layer, client: str) -> None:
    """The next run has to ask again."""
    key = planted(client, "remembered")
    layer.client(client).set(key, "stale", by="ann", valid="1h")
    layer.clock.advance(2 * 3600)  # type: ignore[attr-defined]


def found(path: Path, client: str) -> list[str]:
    """Where anything planted for a client can be read: the file, its log, the artifacts; plain, or escaped as JSON does."""
    hits = []
    for file in path.rglob("*"):
        if not file.is_file():
            continue
        body = file.read_bytes()
        for place in PLACES:
            text = planted(client, place)
            forms = (text.encode(), json.dumps(text)[1:-1].encode(), text[len(MARK) :].encode())
            if any(form in body for form in forms):
                hits.append(f"{file.name}: {place}")
    return hits


@pytest.fixture
async def layer(tmp_path: Path) -> AsyncIterator[testing.TestLayer]:
    """Two clients with traces everywhere."""
    async with testing.layer(url(tmp_path)) as made:
        for client in ("acme", "bolt"):
            await leave_traces(made, client)
        yield made


async def test_the_traces_are_there(layer: testing.TestLayer, tmp_path: Path) -> None:
    """Everything planted is found before: a search that finds nothing proves nothing."""
    places = {hit.split(": ")[1] for hit in found(tmp_path, "acme")}
    assert set(PLACES) - places - {"about", "argument"} == set()  # what an answer is about is kept as a digest


async def test_nothing_of_a_forgotten_client_can_be_read(layer: testing.TestLayer, tmp_path: Path) -> None:
    """No byte of any planted text is left in the database file, its log or the artifact folder; the other client's all are."""
    others = {place for _, place in (hit.split(": ") for hit in found(tmp_path, "bolt"))}
    before = layer.client("bolt").export()
    done = layer.client("acme").forget(by="ann", reason="the contract ended")
    assert found(tmp_path, "acme") == []
    assert {place for _, place in (hit.split(": ") for hit in found(tmp_path, "bolt"))} == others
    assert layer.client("bolt").export() == before
    assert (done.runs, done.effects, done.compacted, done.files_missing) == (3, 1, True, 0)
    assert done.facts >= 4
    assert done.questions >= 2
    assert done.artifacts == 2
    World.client = "bolt"
    assert (await layer.resume("bolt-1")).result() == planted("bolt", "value")


async def test_that_it_happened_and_what_it_cost_stays(layer: testing.TestLayer, tmp_path: Path) -> None:
    """Runs keep id, workflow, status, times and spend; effects name, state and times, and a digest for the key."""
    spends = [(await layer.resume(f"acme-{n}")).spend for n in range(3)]
    columns = "id, workflow, status, created_us, ended_us, executions"
    runs = rows(tmp_path, f"SELECT {columns} FROM run WHERE client_id = 'acme'")
    effects = "name, step, state, tries, claimed_us, settled_us, scope, client_id"
    acts = rows(tmp_path, f"SELECT {effects} FROM effect WHERE client_id = 'acme'")
    names = rows(
        tmp_path, "SELECT DISTINCT name FROM step WHERE run_no = 1 AND name NOT LIKE 'run.%' AND name NOT LIKE 'client.%'"
    )
    assert spends[0].usd > 0
    layer.client("acme").forget(by="ann", reason="left")
    assert [(await layer.resume(f"acme-{n}")).spend for n in range(3)] == spends
    assert rows(tmp_path, f"SELECT {columns} FROM run WHERE client_id = 'acme'") == runs
    assert rows(tmp_path, f"SELECT {effects} FROM effect WHERE client_id = 'acme'") == acts
    assert rows(tmp_path, "SELECT DISTINCT name FROM step WHERE run_no = 1") == names
    [key] = {row["key"] for row in rows(tmp_path, "SELECT key FROM effect WHERE client_id = 'acme'")}
    assert key.startswith("forgotten:")
    [row] = rows(tmp_path, "SELECT status, note, forgotten_us FROM client WHERE id = 'acme'")
    assert row == {"status": "active", "note": "forgotten by ann: left", "forgotten_us": layer.clock.now_us}
    document = await layer.checkpoint("acme-0")
    assert document["goal"] is document["next_step"] is None
    assert (document["facts"], document["decisions"], document["failures"]) == ({}, [], [])
    assert await layer.why("acme-0")


async def test_it_is_refused_while_anything_is_under_way(layer: testing.TestLayer, tmp_path: Path) -> None:
    """A run that has not ended, or an effect in doubt: refused with the runs named, nothing changed."""
    World.client = "acme"
    await layer.run(everything(text="more"), client="acme", run_id="acme-open")
    before = rows(tmp_path, "SELECT count(*) AS n FROM fact")
    with pytest.raises(ClientBusy, match=r"1 run has not ended \(acme-open\); cancel them first") as caught:
        layer.client("acme").forget(by="ann")
    assert caught.value.runs == ("acme-open",)
    assert rows(tmp_path, "SELECT count(*) AS n FROM fact") == before
    await layer.cancel("acme-open", reason="leaves", by="ann")
    layer.store.write_now(lambda tx: tx.connection.execute("UPDATE effect SET state = 'unknown'"), durable=True, client=None)  # type: ignore[attr-defined]
    with pytest.raises(ClientBusy, match="an effect in doubt"):
        layer.client("acme").forget(by="ann")
    with pytest.raises(UnknownClient):
        layer.client("acmee").forget(by="ann")
    with pytest.raises(ValueError, match="say who forgets the client"):
        layer.client("acme").forget(by="")


async def test_a_forgotten_client_comes_back_as_a_new_one(layer: testing.TestLayer) -> None:
    """Nothing of before is known, no receipt of before is given; and it can be forgotten again."""
    layer.client("acme").forget(by="ann")
    World.client = "acme"
    known = layer.client("acme")
    assert known.facts() == []
    known.set("contact", "new@example.com")
    await layer.run(everything(text="again"), client="acme", run_id="acme-new")
    question = (await layer.questions(client="acme"))[0]
    await layer.answer(question.id, planted("acme", "option"), by="ann")
    outcome = await layer.resume("acme-new")
    assert outcome.result() == planted("acme", "value")
    done = known.forget(by="bob")
    assert (done.runs, done.effects) == (4, 2)
    assert known.facts() == []


# -- dying ----------------------------------------------------------------------------------------------------------------


async def test_dying_before_the_end_of_the_transaction_changes_nothing(
    layer: testing.TestLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All or nothing: nobody ever sees half of a client."""
    before = layer.client("acme").export()
    real = forgetting.forget

    def dies(*args: Any, **how: Any) -> Any:
        real(*args, **how)
        raise Crash

    monkeypatch.setattr(forgetting, "forget", dies)
    with pytest.raises(Crash):
        layer.client("acme").forget(by="ann")
    assert layer.client("acme").export() == before


@pytest.mark.parametrize("where", ["all_swept", "remove", "compact"])
async def test_dying_after_the_transaction_is_completed_by_doing_it_again(
    layer: testing.TestLayer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Files and old copies that were left are found and removed by the same call."""

    def dies(*_: Any, **__: Any) -> Any:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr({"all_swept": erasing, "remove": layer.services.artifacts, "compact": layer.store}[where], where, dies)
        with pytest.raises(Crash):
            layer.client("acme").forget(by="ann")
    assert layer.client("acme").export()["facts"] == {}
    assert layer.client("acme").forget(by="ann").compacted
    assert found(tmp_path, "acme") == []


KILLED = """
import os, signal, sqlite3, sys
at, kill = int(sys.argv[2]), sys.argv[3]
real = sqlite3.connect
class Connection(sqlite3.Connection):
    left = at
    def execute(self, statement, *more):
        counts = statement.startswith(("COMMIT", "VACUUM", "DELETE", "PRAGMA wal_checkpoint"))
        if counts:
            Connection.left -= 1
            if kill == "never" and not statement.startswith("DELETE"):
                print(at - Connection.left)
            if Connection.left == 0 and kill == "before":
                os.kill(os.getpid(), signal.SIGKILL)
        done = super().execute(statement, *more)
        if counts and Connection.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
from stepseven import Layer
layer = Layer(sys.argv[1])
sqlite3.connect = lambda *a, **k: real(*a, factory=Connection, **k)
layer.store.close()
layer = Layer(sys.argv[1])
layer.client("acme").forget(by="ann")
print(at - Connection.left)
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_kill_at_any_write_is_completed_by_doing_it_again(tmp_path: Path) -> None:
    """SIGKILL at deletes, commits, the compaction and the checkpoint: whole before, gone after, never half; then complete."""
    async with testing.layer(url(tmp_path)) as layer:
        for client in ("acme", "bolt"):
            await leave_traces(layer, client)
        before = layer.client("acme").export()
        others = layer.client("bolt").export()
    saved = {f.relative_to(tmp_path): f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}

    def restored() -> None:
        for name, body in saved.items():
            (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / name).write_bytes(body)

    said = child(KILLED, url(tmp_path), "100000", "never").stdout.split()
    writes, [*marks] = int(said[-1]), map(int, said[:-1])
    assert writes > 20
    # The middle of the deletes, and every commit, compaction and checkpoint: where they are is found, not known. The disk
    # thread may do one checkpoint more or less from time to time: a position that is not reached is one after the end.
    killed = 0
    for at, side in [(n, s) for n in (2, writes // 2, *marks) for s in ("before", "after")]:
        restored()
        ended = child(KILLED, url(tmp_path), str(at), side)
        assert ended.returncode == -signal.SIGKILL or (at > marks[-3] and ended.returncode == 0), ended.stderr
        killed += ended.returncode != 0
        async with testing.layer(url(tmp_path)) as layer:
            now = layer.client("acme").export()
            assert now == before or (now["facts"] == {} and all(not run["questions"] for run in now["runs"]))
            assert layer.client("acme").forget(by="ann").compacted
            assert layer.client("bolt").export() == others
        assert found(tmp_path, "acme") == []
    assert killed >= 2 * len(marks) - 2


# -- files ------------------------------------------------------------------------------------------------------------------


@step(cost=Cost(usd=1))
async def catalogue(client: str) -> str:
    """The same large text for everybody."""
    World.client += "+"
    return "catalogue " * 10_000


@workflow(name="forget.catalogue")
async def reads_catalogue(run: Run) -> int:
    """One large result, and what comes after."""
    size = len(await catalogue(run.client_id))
    await run.ask("Go on?")
    return size


@pytest.mark.parametrize("chosen", [False, True])
async def test_a_file_has_its_row_first(tmp_path: Path, chosen: bool) -> None:
    """Whoever dies between a large result's file and its record leaves a file that the next forget finds, in any folder."""
    options: dict[str, Any] = {"artifacts": tmp_path / "elsewhere"} if chosen else {}
    async with testing.layer(url(tmp_path), **options) as layer:
        layer.client("acme").set("a", 1)
        text = planted("acme", "huge") * 5000
        layer.services.artifacts.put(content_hash(text), text)  # and here it dies
        assert found(tmp_path, "acme")
        assert layer.client("acme").forget(by="ann").artifacts == 1
        assert found(tmp_path, "acme") == []
        assert rows(tmp_path, "SELECT * FROM artifact") == []


async def test_a_file_that_was_only_announced_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is just being written goes when it is there; if it never comes it is said, and later the row goes by itself."""
    async with testing.layer(url(tmp_path)) as layer:
        layer.client("acme").set("a", 1)
        kept, text = layer.services.artifacts, planted("acme", "huge") * 5000
        files.announce(layer.store, layer.services.edge, content_hash(text), f"{content_hash(text)[:2]}/{content_hash(text)}")
        monkeypatch.setattr(files, "LOOKS", 1)
        assert layer.client("acme").forget(by="ann").files_missing == 1
        monkeypatch.setattr(files, "LOOKS", 100)
        monkeypatch.setattr(files.time, "sleep", lambda _: kept.put(content_hash(text), text))  # what it waits for comes
        done = layer.client("acme").forget(by="ann")
        assert (done.artifacts, done.files_missing) == (1, 0)
        assert found(tmp_path, "acme") == []
        files.announce(layer.store, layer.services.edge, content_hash(text), f"{content_hash(text)[:2]}/{content_hash(text)}")
        layer.clock.advance(3600)
        assert layer.client("acme").forget(by="ann").files_missing == 0


async def test_a_result_that_is_refused_leaves_no_file(tmp_path: Path) -> None:
    """A step whose run was taken over meanwhile: its large result is not accepted, and its file is gone at once."""

    @step
    async def overtaken(text: str) -> str:
        made.store.write_now(lambda tx: tx.connection.execute("UPDATE run SET fence = fence + 1"), durable=True, client=None)  # type: ignore[attr-defined]
        return planted("acme", "huge") * 5000

    @workflow(name="forget.overtaken")
    async def loses(run: Run) -> str:
        return await overtaken("x")

    async with testing.layer(url(tmp_path)) as made:
        await made.run(loses(), client="acme", run_id="r")
        assert rows(tmp_path, "SELECT * FROM artifact") == []
        assert found(tmp_path, "acme") == []


async def test_what_is_on_record_is_not_looked_for_when_a_run_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files that no record names are discarded, once: a run of a thousand large results does not stop its process."""
    looked: list[list[str]] = []
    real = files.discard
    monkeypatch.setattr(files, "discard", lambda *args: (looked.append(sorted(args[2])), real(*args))[1])

    @step
    async def page(n: int) -> str:
        if n == 3:
            made.store.write_now(lambda tx: tx.connection.execute("UPDATE run SET fence = fence + 1"), durable=True, client=None)  # type: ignore[attr-defined]
        return f"{n}" * 70_000

    @workflow(name="forget.pages")
    async def pages(run: Run) -> str:
        await page(1)
        await page(2)
        return await page(3)

    async with testing.layer(url(tmp_path)) as made:
        await made.run(pages(), client="acme", run_id="r")
    assert [names for names in looked if names] == [[content_hash(json.dumps("3" * 70_000))]]
    assert len(rows(tmp_path, "SELECT * FROM artifact")) == 2


async def test_a_file_that_goes_before_its_record_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client's step returns the very text that is just being forgotten: its result is there, paid once."""
    World.client = ""
    async with testing.layer(url(tmp_path)) as layer:
        await layer.run(reads_catalogue(), client="acme", run_id="a")
        await layer.cancel("a", reason="leaves", by="ann")
        real, forgotten = layer.services.artifacts.put, []

        def put(name: str, text: str, **how: bool) -> str:
            location = real(name, text, **how)
            if not forgotten:
                forgotten.append(layer.client("acme").forget(by="ann"))
            return location

        monkeypatch.setattr(layer.services.artifacts, "put", put)
        await layer.run(reads_catalogue(), client="bolt", run_id="b")
        assert forgotten[0].artifacts == 1
        await layer.answer_next("yes", by="ann")
        outcome = await layer.resume("b")
        assert (outcome.result(), outcome.spend.usd, World.client) == (100_000, 1.0, "++")


async def test_somebody_who_reads_meanwhile_is_said(
    layer: testing.TestLayer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another connection reads an older state, its pages have to stay: `compacted` is False, and a later call completes."""
    monkeypatch.setattr("stepseven.store._space.PATIENCE_S", 0.05)
    reader = sqlite3.connect(tmp_path / "s7.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM run").fetchone()
    assert not layer.client("acme").forget(by="ann").compacted
    reader.execute("ROLLBACK")
    reader.close()
    layer.store.compact()
    assert found(tmp_path, "acme") == []


# -- export -------------------------------------------------------------------------------------------------------------------


async def test_an_export_has_everything(layer: testing.TestLayer) -> None:
    """Everything planted for a client is in its document, but what is a digest or repeats it; nothing of another client is."""
    text = json.dumps(layer.client("acme").export(), ensure_ascii=False)
    missing = [p for p in PLACES if planted("acme", p) not in text and p not in ("about", "huge", "reply")]
    assert missing == []
    assert "bolt" not in text
    document = json.loads(text)
    assert document["format"] == "stepseven client 1"
    assert [r["id"] for r in document["runs"]] == ["acme-0", "acme-1", "acme-2"]
    assert [v["value"] for v in document["facts"]["contact"]] == [planted("acme", "fact_new"), planted("acme", "fact_old")]
    [huge] = [s["artifact"] for s in document["runs"][0]["steps"] if s["name"] == "read_huge"]
    assert layer.services.artifacts.get(huge["file"]) is not None
    assert isinstance(document["runs"][0]["inputs"], dict)


async def test_an_unknown_client_is_not_exported() -> None:
    """A mistyped id is an error, not an empty document."""
    async with testing.layer() as made:
        with pytest.raises(UnknownClient):
            made.client("nobody").export()


async def test_an_export_has_what_a_person_edited_and_the_document_of_a_pruned_run(tmp_path: Path) -> None:
    """Approved arguments are plain JSON like the others; a run that was pruned is told by its checkpoint."""
    async with testing.layer(url(tmp_path)) as made:
        for run_id in ("a", "b"):
            await made.run(reads_catalogue(), client="acme", run_id=run_id)
            await made.answer_next("yes", by="ann")
            await made.resume(run_id)
        want = await made.checkpoint("a")
        await made.prune(older_than=0)
        pruned, whole = made.client("acme").export()["runs"]
        want["artifacts"]["catalogue"]["ref"] = None
        assert (pruned["document"], whole["document"]) == (want, None)
        columns = (
            "scope, scope_id, name, key, generation, claim_id, tries, owner, state, inputs, inputs_approved, run_no, branch, step"
        )
        row = "'run', 'b', 'send', 'k', 1, 'c_1', 1, 'w', 'done', '', '{\"text\":\"edited\"}', 2, '', 'send'"
        statement = f"INSERT INTO effect ({columns}, fence, client_id, claimed_us, gate_until_us) VALUES ({row}, 1, 'acme', 1, 1)"
        made.store.write_now(lambda tx: tx.connection.execute(statement), durable=True, client=None)  # type: ignore[attr-defined]
        [effect] = made.client("acme").export()["runs"][1]["effects"]
        assert effect["inputs_approved"] == {"text": "edited"}
