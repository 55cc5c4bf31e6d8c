"""Ended runs shrink to summaries, decisions and receipts; nothing that is still needed goes, whoever dies or writes meanwhile.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stepseven import ArtifactGone, Cost, Fatal, Layer, Pruned, Run, RunConflict, attempt, step, testing, workflow
from stepseven.decide.retention import DAY_US, retention_us, span_us
from stepseven.model import RunStatus
from stepseven.runtime.retention import Pruner, Retention
from stepseven.store.artifacts import GRACE_S
from stepseven.transitions import pruning
from tests.runs.tools import Crash, records, rows, url

LONG = "tickets and risks " * 400  # over 4 KiB: table `artifact`
HUGE = "contract " * 20_000  # over 64 KiB: a file


@step(cost=Cost(usd=0.02), summary=lambda t: f"{len(t)} characters")
async def read_long(client: str) -> str:
    """A result of its own row."""
    return LONG


@step
async def read_huge(client: str) -> str:
    """A result in a file."""
    return HUGE


@step(cost=Cost(usd=0.5))
async def shaky(client: str) -> int:
    """Fails at first."""
    attempt().spend(usd=0.5, tokens=7)
    if attempt().number == 1:
        raise TimeoutError("no answer")
    return 7


@step
async def check(n: int) -> int:
    """One of many."""
    return n * 2


@step(effect="write", key="quarter")
async def create(quarter: str) -> dict[str, str]:
    """An effect."""
    return {"id": f"doc-{quarter}"}


@workflow(name="prune.renewal")
async def renewal(run: Run, quarter: str) -> dict[str, str]:
    """Everything a run can leave behind."""
    run.client.get("language")
    await read_long(run.client_id)
    await read_huge(run.client_id)
    await shaky(run.client_id)
    await run.map(check, [1, 2, 3, 4])
    if await run.ask("Go on?", options=["yes", "no"]) == "no":
        raise Fatal("a person said no")
    return await create(quarter)


@workflow(name="prune.small")
async def small(run: Run, n: int) -> int:
    """One step."""
    return await check(n)


@workflow(name="prune.wide")
async def wide(run: Run, text: str) -> str:
    """A long value from a long input."""
    return text * 2


async def finished(layer: testing.TestLayer, run_id: str, *, answer: str = "yes", client: str = "acme") -> None:
    """A whole run."""
    await layer.run(renewal(quarter=run_id), client=client, run_id=run_id)
    await layer.answer_next(answer, by="ann", note="as agreed")
    await layer.resume(run_id)


def old(path: Path) -> None:
    """What lies in the artifact folder was written long ago."""
    for file in (path / "s7.db.artifacts").rglob("*"):
        if file.is_file():
            os.utime(file, (time.time() - 2 * GRACE_S,) * 2)


def files(path: Path) -> list[str]:
    """The names in the artifact folder."""
    return [f.name for f in (path / "s7.db.artifacts").rglob("*") if f.is_file()]


# -- what goes and what stays -------------------------------------------------------------------------------------------------


async def test_a_pruned_run_still_tells_what_it_did(tmp_path: Path) -> None:
    """Checkpoint, spend, decisions, receipts and value are the same after a prune; results and traces are gone."""
    async with testing.layer(url(tmp_path)) as layer:
        layer.client("acme").set("language", "de")
        for run_id in ("a", "b"):
            await finished(layer, run_id)
        before, spent = await layer.checkpoint("a"), (await layer.resume("a")).spend
        receipts = rows(tmp_path, "SELECT * FROM effect")
        done = await layer.prune(older_than=0)
        assert done.runs == 1
        assert (done.records, done.artifacts) == (6, 0)  # the other run has the same large results
        assert done.bytes > 100
        after = await layer.checkpoint("a")
        assert after["artifacts"]["check"] == {"done": 4, "of": 4, "latest": "8"}
        assert before["artifacts"]["read_long"].pop("ref")
        assert after["artifacts"]["read_long"].pop("ref") is None
        before["artifacts"]["read_huge"]["ref"] = None
        assert after == before
        assert after["steps_complete"] == ["read_long", "read_huge", "shaky", "check", "create"]
        outcome = await layer.resume("a")
        assert (outcome.status, outcome.result(), outcome.spend) == (RunStatus.DONE, {"id": "doc-a"}, spent)
        assert rows(tmp_path, "SELECT * FROM effect") == receipts
    [question] = rows(tmp_path, "SELECT * FROM question WHERE run_no = 1")
    assert (question["text"], question["answer"], question["answered_by"], question["note"], question["context"]) == (
        "Go on?", '"yes"', "ann", "as agreed", "{}",
    )  # fmt: skip
    kept = records(tmp_path, "a")
    assert [r["name"] for r in kept] == ["read_long", "read_huge", "shaky", "check", "create"]
    assert all(r["result"] is r["args"] is r["artifact"] is r["inputs"] is None for r in kept)
    assert kept[0]["summary"] == f"{len(LONG)} characters"
    assert kept[3]["summary"] == "8"
    [try_] = rows(tmp_path, "SELECT * FROM attempt WHERE run_no = 1")
    assert "no answer" in try_["reason"]
    assert try_["trace"] is None
    assert rows(tmp_path, "SELECT count(*) AS n FROM fact") == [{"n": 1}]
    whole = records(tmp_path, "b")
    assert len(whole) > 8  # the newest is what the next run starts from


async def test_the_money_of_records_that_go_stays(tmp_path: Path) -> None:
    """What a run has cost is the same to the micro-dollar and the token, whatever was dropped and merged."""
    async with testing.layer(url(tmp_path)) as layer:
        await finished(layer, "a", answer="no")
        before = (await layer.resume("a")).spend
        assert before.usd == 1.02
        assert before.tokens > 7
        assert (await layer.prune(older_than=0)).runs == 1
        assert (await layer.resume("a")).spend == before
        assert (await layer.checkpoint("a"))["spend"] == {"usd": before.usd, "tokens": before.tokens}


async def test_results_go_with_the_last_run_that_names_them(tmp_path: Path) -> None:
    """A result that another run has too stays, in the table and in the folder; with its last run it goes."""
    async with testing.layer(url(tmp_path)) as layer:
        for run_id in ("a", "b"):
            await finished(layer, run_id, answer="no")
            layer.clock.advance(timedelta(days=2))
        old(tmp_path)
        assert (await layer.prune(older_than=3)).artifacts == 0
        assert len(files(tmp_path)) == 1
        assert rows(tmp_path, "SELECT count(*) AS n FROM artifact") == [{"n": 2}]
        done = await layer.prune(older_than=timedelta(0))
        assert (done.runs, done.artifacts) == (1, 2)
        assert files(tmp_path) == []
        assert rows(tmp_path, "SELECT count(*) AS n FROM artifact") == [{"n": 0}]
        assert done.bytes > len(HUGE)


async def test_what_is_still_needed_is_never_pruned(tmp_path: Path) -> None:
    """Not ended, an open question, the newest finished run of a client and workflow, a child whose parent goes on: untouched."""
    async with testing.layer(url(tmp_path)) as layer:
        await layer.run(renewal(quarter="Q1"), client="acme", run_id="waits")
        for client in ("acme", "bolt"):
            await layer.run(small(n=1), client=client, run_id=f"older-{client}")
            await layer.run(small(n=1), client=client, run_id=f"newest-{client}")
        await layer.run(wide(text="x"), client="acme", run_id="only")
        await layer.run(small(n=3), client="acme", run_id="asked")
        await layer.run(small(n=4), client="acme", run_id="child")
        await layer.run(small(n=5), client="acme", run_id="last")
        layer.store.write_now(lambda tx: _ask_about(tx, "asked"), durable=True, client=None)
        layer.store.write_now(lambda tx: _under(tx, "child", "waits"), durable=True, client=None)
        layer.clock.advance(timedelta(days=400))
        assert (await layer.prune(older_than="90d")).runs == 3
    pruned = {row["id"] for row in rows(tmp_path, "SELECT id FROM run WHERE pruned_us IS NOT NULL")}
    assert pruned == {"older-acme", "newest-acme", "older-bolt"}


def _ask_about(tx: Any, run_id: str) -> None:
    row = tx.one(tx.sql.run_by_id, {"id": run_id})
    names = ("recommendation", "about", "asked_of", "remember", "fallback", "deadline_us", "folded_into", "signature", "schema")
    tx.run(tx.sql.insert_question, {
        **dict.fromkeys(names), "id": "q_twice", "run_no": row["no"], "client_id": "acme", "branch": "", "key": "twice/c",
        "n": 1, "step": None, "kind": "conflict", "text": "Done twice", "options": "[]", "context": "{}", "asked_seq": 0,
        "attempts": 0, "now": 1,
    })  # fmt: skip


def _under(tx: Any, child: str, parent: str) -> None:
    tx.connection.execute("UPDATE run SET parent_no = (SELECT no FROM run WHERE id = ?) WHERE id = ?", (parent, child))


@pytest.mark.parametrize("age", [30, "30d", "720h", timedelta(days=30), 30.0])
async def test_only_what_ended_longer_ago_goes(tmp_path: Path, age: Any) -> None:
    """Age counts from a run's end, in days, as a text, or as a timedelta."""
    async with testing.layer(url(tmp_path)) as layer:
        for n in range(3):
            await layer.run(small(n=n), client="acme", run_id=str(n))
            layer.clock.advance(timedelta(days=20))
        assert (await layer.prune(older_than=age)).runs == 2
        assert (await layer.prune(older_than=age)) == Pruned()
    assert rows(tmp_path, "SELECT id FROM run WHERE pruned_us IS NULL") == [{"id": "2"}]


@pytest.mark.parametrize("age", [-1, "90", "soon", "", None, True, float("nan"), float("inf"), timedelta(days=-1), "-3d", "3w"])
async def test_an_age_that_is_none_is_refused(age: Any) -> None:
    """What is not an age is refused in one sentence, and nothing is pruned."""
    async with testing.layer() as layer:
        with pytest.raises(ValueError, match="say days as a number"):
            await layer.prune(older_than=age)


async def test_a_long_value_is_gone_and_says_so(tmp_path: Path) -> None:
    """A value over 4 KiB is not kept: `result()` says so instead of giving None; an equal call still finds its run."""
    async with testing.layer(url(tmp_path)) as layer:
        for run_id in ("a", "b"):
            await layer.run(wide(text=LONG), client="acme", run_id=run_id)
        await layer.prune(older_than=0)
        outcome = await layer.run(wide(text=LONG), client="acme", run_id="a")
        assert (outcome.status, outcome.value, outcome.cut) == (RunStatus.DONE, None, True)
        with pytest.raises(ArtifactGone, match="run a"):
            outcome.result()
        with pytest.raises(RunConflict):
            await layer.run(wide(text=LONG + "!"), client="acme", run_id="a")
        assert len(rows(tmp_path, "SELECT inputs FROM run WHERE id = 'a'")[0]["inputs"]) < 400
        assert (await layer.resume("b")).result() == LONG * 2


async def test_a_pruned_run_cannot_be_forked(tmp_path: Path) -> None:
    """There is nothing to go on from: the fork is refused with a sentence, and nothing is made."""
    async with testing.layer(url(tmp_path)) as layer:
        for run_id in ("a", "b"):
            await layer.run(small(n=1), client="acme", run_id=run_id)
        await layer.prune(older_than=0)
        with pytest.raises(ValueError, match="run a: it was pruned"):
            await layer.fork("a", from_step="check")
    assert rows(tmp_path, "SELECT count(*) AS n FROM run") == [{"n": 2}]


# -- who else is there --------------------------------------------------------------------------------------------------------


def seen_whole(tx: Any, run: Any) -> Any:
    """What would go of a run, read at once."""
    made = pruning.begin(tx, run)
    while pruning.look_on(tx, made):
        pass
    return made


def planned(layer: Layer, run: pruning.Found) -> tuple[pruning.Shrink, str]:
    """What would go of a run, and its checkpoint."""
    return layer.store.read_now(lambda tx: (seen_whole(tx, run), pruning.checkpoint(tx, run)))


def first(layer: Layer, before_us: int = 1 << 60) -> pruning.Found:
    """The oldest run that may be shrunk."""
    page = layer.store.read_now(lambda tx: pruning.prunable(tx, before_us, layer.services.edge.now_us(), None, 10))
    return next(found for found in page if found.may)


def pruner(layer: Layer) -> Pruner:
    """As `prune` has it."""
    return Pruner(layer.store, layer.services.edge, layer.services.artifacts)


async def test_a_run_that_changed_after_it_was_looked_at_is_not_touched(tmp_path: Path) -> None:
    """Between the look and the bite a question came up: the run stays whole (L10)."""
    async with testing.layer(url(tmp_path)) as layer:
        for run_id in ("a", "b"):
            await layer.run(small(n=1), client="acme", run_id=run_id)
        mine, before_us = pruner(layer), layer.clock.now_us + 1
        todo = planned(layer, first(layer, before_us))
        layer.store.write_now(lambda tx: _ask_about(tx, "a"), durable=True, client=None)
        assert mine._bite(*todo, before_us)
        assert mine.done == Pruned()
        assert records(tmp_path, "a")[0]["result"] == "2"


async def test_two_who_prune_at_once_count_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both looked before either wrote: the rows go once, the money is moved once."""
    async with testing.layer(url(tmp_path)) as layer:
        await finished(layer, "a", answer="no")
        before, before_us = (await layer.resume("a")).spend, layer.clock.now_us + 1
        both = [pruner(layer), pruner(layer)]
        found = first(layer, before_us)
        todos = [planned(layer, found) for p in both]
        pieces = iter([True] * 3)
        monkeypatch.setattr(pruning, "PIECE", 1)
        plan, document = todos[0]

        def half(tx: Any) -> bool | None:
            return pruning.shrink(
                tx, plan, document=document, before_us=before_us, now_us=before_us, more=lambda: next(pieces, False)
            )

        assert layer.store.write_now(half, durable=True, client=None) is False
        for p, todo in zip(reversed(both), reversed(todos), strict=True):  # the other one does the rest, then the first goes on
            while not p._bite(*todo, before_us):
                pass
        assert both[0].done == Pruned()
        assert both[1].done.runs == 1
        assert (await layer.resume("a")).spend == before


async def test_a_file_that_is_wanted_again_stays(tmp_path: Path) -> None:
    """Whoever keeps the same large result while it is being removed finds it, or writes it anew: its row never dangles."""
    async with testing.layer(url(tmp_path)) as layer:
        await finished(layer, "a", answer="no")
        [location] = [row["location"] for row in rows(tmp_path, "SELECT location FROM artifact WHERE location IS NOT NULL")]
        kept = layer.services.artifacts
        old(tmp_path)
        assert kept.set_aside(location)
        assert kept.get(location) is not None  # a reader in this moment
        assert kept.put(Path(location).name, json.dumps(HUGE)) == location  # wanted again, in this moment: written anew
        kept.remove(location)
        assert kept.get(location) == json.dumps(HUGE)
        assert not kept.set_aside(location)  # it was touched just now
        old(tmp_path)
        assert kept.put(Path(location).name, json.dumps(HUGE)) == location  # there: touched
        assert not kept.set_aside(location)


async def test_what_a_dead_process_left_in_the_folder_goes(tmp_path: Path) -> None:
    """Files that no row names, half-written ones, and those that were set aside are removed, once they are old."""
    async with testing.layer(url(tmp_path)) as layer:
        await finished(layer, "a")
        part = tmp_path / "s7.db.artifacts" / "ab"
        part.mkdir(exist_ok=True)
        for name in ("ab" * 20, "tmp123", "abcd.gone"):
            (part / name).write_text("x")
        await layer.prune(older_than=0)
        assert len(files(tmp_path)) == 3  # they may be about to be named; what was set aside is nobody's
        old(tmp_path)
        await layer.prune(older_than=0)
        assert len(files(tmp_path)) == 1
        assert (await layer.resume("a")).status is RunStatus.DONE


async def test_a_folder_that_was_chosen_is_not_swept(tmp_path: Path) -> None:
    """Another store, or anything else, may be in a folder that was named: only files of our own rows are removed there."""
    folder = tmp_path / "s7.db.artifacts"
    async with testing.layer(url(tmp_path), artifacts=folder) as layer:
        await finished(layer, "a", answer="no")
        (folder / "ab").mkdir(exist_ok=True)
        (folder / "ab" / "other").write_text("x")
        old(tmp_path)
        assert (await layer.prune(older_than=0)).artifacts == 2
        assert files(tmp_path) == ["other"]


# -- dying ----------------------------------------------------------------------------------------------------------------


async def test_dying_anywhere_in_a_prune_changes_nothing_but_the_progress(tmp_path: Path) -> None:
    """After every piece it may die: what is half-way looks whole, nothing is lost or counted twice, and the next one ends it."""
    async with testing.layer(url(tmp_path)) as layer:
        await finished(layer, "a", answer="no")
        document, spent = await layer.checkpoint("a"), (await layer.resume("a")).spend
        for entry in document["artifacts"].values():
            entry["ref"] = None if "ref" in entry else entry.pop("ref", None)
        monkey = pytest.MonkeyPatch()
        monkey.setattr(pruning, "PIECE", 1)
        deaths = 0
        while rows(tmp_path, "SELECT pruned_us FROM run WHERE id = 'a'")[0]["pruned_us"] is None:
            plan, text = planned(layer, first(layer))
            for crash in (True, False):  # before the commit, then after it

                def unit(tx: Any, plan: Any = plan, text: str = text, crash: bool = crash) -> None:
                    pruning.shrink(tx, plan, document=text, before_us=1 << 60, now_us=layer.clock.now_us, more=lambda: False)
                    if crash:
                        raise Crash

                if crash:
                    with pytest.raises(Crash):
                        layer.store.write_now(unit, durable=True, client=None)
                    plan, text = planned(layer, first(layer))
                else:
                    layer.store.write_now(lambda tx, u=unit, p=plan, t=text: u(tx, p, t, False), durable=True, client=None)  # type: ignore[misc]
                deaths += 1
                now = await layer.checkpoint("a")
                for entry in now["artifacts"].values():
                    entry["ref"] = None if "ref" in entry else entry.pop("ref", None)
                assert now == document
                assert (await layer.resume("a")).spend == spent
                if not crash:  # half-way there is nothing to go on from
                    with pytest.raises(ValueError, match="was pruned"):
                        await layer.fork("a", from_step="check")
        monkey.undo()
        assert deaths >= 10


KILLED = """
import os, signal, sys, time
from stepseven.layer import Layer
from stepseven.runtime import retention
from stepseven.transitions import pruning
from stepseven.runtime.retention import Pruner

layer = Layer(sys.argv[1])
pruner = Pruner(layer.store, layer.services.edge, layer.services.artifacts)
retention.BITE_S, pruning.PIECE = 0.0, 2  # a small piece a bite
left = int(sys.argv[2])
write = layer.store.write_now
def counted(unit, *, durable, client):
    global left
    done = write(unit, durable=durable, client=client)
    left -= 1
    return done
layer.store.write_now = counted
for _ in pruner.bites(1 << 60):
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_kill_in_a_prune_leaves_every_run_whole_or_shrunk(tmp_path: Path) -> None:
    """SIGKILL after any bite: every run gives its checkpoint and outcome, the file is sound, and the next prune does the rest."""
    from tests.runs.tools import child

    async with testing.layer(url(tmp_path)) as layer:
        for n in range(6):
            await finished(layer, str(n), answer="no")
        want = [((await layer.checkpoint(str(n)))["steps_complete"], (await layer.resume(str(n))).spend) for n in range(6)]
    for bites in (1, 2, 3, 1, 1):
        assert child(KILLED, url(tmp_path), str(bites)).returncode == -9
        assert rows(tmp_path, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]
        async with testing.layer(url(tmp_path)) as layer:
            got = [((await layer.checkpoint(str(n)))["steps_complete"], (await layer.resume(str(n))).spend) for n in range(6)]
            assert got == want
    async with testing.layer(url(tmp_path)) as layer:
        for _ in pruner(layer).bites(1 << 60):
            pass
        assert [(await layer.resume(str(n))).spend for n in range(6)] == [spend for _, spend in want]
    assert rows(tmp_path, "SELECT count(*) AS n FROM run WHERE pruned_us IS NULL") == [{"n": 0}]


# -- how long others wait -----------------------------------------------------------------------------------------------------


def many(path: Path, count: int) -> None:
    """So many ended runs of some records each, made fast."""
    Layer(url(path)).close()
    connection = sqlite3.connect(path / "s7.db")
    with connection:
        connection.execute("INSERT INTO client (id, created_us) VALUES ('acme', 1)")
        connection.executemany(
            "INSERT INTO run (no, id, client_id, workflow, status, inputs, created_us, updated_us, ended_us)"
            " VALUES (?, ?, 'acme', 'w', 'done', '{}', 1, 1, ?)", [(n, f"r{n}", n) for n in range(1, count + 1)],
        )  # fmt: skip
        connection.executemany(
            "INSERT INTO step (id, branch, name, key, generation, state, result, started_us, ended_us)"
            " VALUES (?, '', ?, 'k', 1, 'done', ?, 1, 1)",
            [(n << 24 | s, f"step{s % 5}", json.dumps("x" * 300)) for n in range(1, count + 1) for s in range(1, 6)],
        )
    connection.close()


async def _appends(layer: Layer, run: Any, until: Any) -> list[float]:
    """How long each durable write of another takes, meanwhile."""
    waits = []
    while not until():
        began = time.perf_counter()
        await layer.store.write(
            lambda tx: tx.run(tx.sql.wake_run, {"run_no": 1, "reason": None, "now": 1}), durable=False, client=None
        )
        waits.append(time.perf_counter() - began)
        await asyncio.sleep(0.0005)
    return waits


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_nobody_waits_noticeably_for_a_prune(tmp_path: Path) -> None:
    """While 2,000 runs are pruned, 99 of 100 writes of another layer wait less than 15 ms; all are done within minutes (Q05)."""
    many(tmp_path, 2001)
    async with Layer(url(tmp_path)) as busy, Layer(url(tmp_path)) as cleaner:
        quiet_until = time.perf_counter() + 0.5
        alone = sorted(await _appends(busy, None, lambda: time.perf_counter() > quiet_until))
        work = asyncio.create_task(cleaner.prune(older_than=0))
        waits = sorted(await _appends(busy, None, work.done))
        assert (await work).runs == 2000
    p99, worst = waits[len(waits) * 99 // 100], waits[-1]
    assert p99 < max(0.015, 10 * alone[len(alone) * 99 // 100])
    assert worst < max(0.1, 10 * alone[-1])


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_large_run_that_is_pruned_makes_no_beat_late_and_stalls_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the daily round shrinks a run of 30,000 records, beats come in time, and the event loop is never held up for long."""
    many(tmp_path, 2)
    large(tmp_path, 1, 30_000)
    monkeypatch.setattr("stepseven.runtime.retention.FIRST_S", 0.0)
    monkeypatch.setattr("stepseven.runtime.services.BEAT_S", 0.2)
    beats: list[float] = []
    async with Layer(url(tmp_path)) as layer:
        beat = layer.services.worker.beat
        monkeypatch.setattr(layer.services.worker, "beat", lambda: (beats.append(time.perf_counter()), beat()))
        await layer.run(small(n=1), client="bolt", run_id="mine")  # from here on it is at work
        stall = 0.0
        while not pruned(tmp_path):
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            stall = max(stall, time.perf_counter() - began)
        assert layer.services.worker.may_act(0, 0)
    gaps = [b - a for a, b in pairwise(beats)]
    assert len(gaps) > 3
    assert max(gaps) < 2.0  # a lease is ten times as long
    assert stall < 0.5


async def test_closing_in_the_middle_of_a_prune_waits_for_one_bite(tmp_path: Path) -> None:
    """Closed meanwhile, a prune by hand gives what it did so far, nothing raises, and the run it was in is as good as whole."""
    many(tmp_path, 2)
    large(tmp_path, 1, 20_000)
    layer = Layer(url(tmp_path))
    work = asyncio.create_task(layer.prune(older_than=0))
    while rows(tmp_path, "SELECT document FROM run WHERE no = 1")[0]["document"] is None:
        await asyncio.sleep(0)
    await layer.aclose()
    assert await work == Pruned()
    async with Layer(url(tmp_path)) as layer:
        assert (await layer.prune(older_than=0)).runs == 1


@pytest.mark.timeout(120)
async def test_closing_breaks_off_what_takes_long_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint of a large run is one statement of seconds: closing does not wait for its end, and nothing is half done."""
    many(tmp_path, 2)
    large(tmp_path, 1, 30_000)
    reading = threading.Event()
    real = pruning.checkpoint

    def watched(tx: Any, run: pruning.Found) -> str:
        reading.set()
        return real(tx, run)

    monkeypatch.setattr(pruning, "checkpoint", watched)
    layer = Layer(url(tmp_path))
    work = asyncio.create_task(layer.prune(older_than=0))
    await asyncio.to_thread(reading.wait)
    await layer.aclose()
    assert await work == Pruned()
    assert rows(tmp_path, "SELECT document FROM run WHERE no = 1") == [{"document": None}]  # it never came to its end


# -- families, days -----------------------------------------------------------------------------------------------------------


@workflow(name="prune.child")
async def child_(run: Run) -> int:
    """Costs something, then waits."""
    await read_long(run.client_id)
    await run.ask("Go on?")
    return 1


@workflow(name="prune.quick")
async def quick(run: Run) -> int:
    """Costs something."""
    return len(await read_long(run.client_id))


@workflow(name="prune.parent")
async def parent(run: Run) -> int:
    """Starts a run that waits."""
    return await run.start(child_())


@workflow(name="prune.over")
async def over(run: Run) -> int:
    """Starts a run that ends."""
    return await run.start(quick())


@pytest.mark.parametrize("forgotten", [False, True])
async def test_what_a_child_has_cost_stays_with_its_parent(tmp_path: Path, forgotten: bool) -> None:
    """A parent that was cancelled before its child's end was recorded tells the same money after a prune or a forget."""
    async with testing.layer(url(tmp_path)) as layer:
        await layer.run(parent(), client="acme", run_id="p")
        await layer.cancel("p", reason="enough", by="ann")
        before = (await layer.resume("p")).spend
        assert before.usd == 0.02
        if forgotten:
            layer.client("acme").forget(by="ann")
        else:
            assert (await layer.prune(older_than=0)).runs == 2
            assert (await layer.checkpoint("p"))["spend"]["usd"] == 0.02
        assert (await layer.resume("p")).spend == before


async def test_a_done_child_is_pruned_like_its_parent(tmp_path: Path) -> None:
    """Nobody starts from a child, so it needs no newer one."""
    async with testing.layer(url(tmp_path)) as layer:
        for n in range(3):
            await layer.run(over(), client="acme", run_id=f"p{n}")
        assert (await layer.prune(older_than=0)).runs == 5
    assert rows(tmp_path, "SELECT id FROM run WHERE pruned_us IS NULL") == [{"id": "p2"}]


async def test_what_a_waiting_run_starts_from_is_not_pruned(tmp_path: Path) -> None:
    """A newer run is done, but an older one of the workflow still waits: the run that it looks back to stays whole."""
    async with testing.layer(url(tmp_path)) as layer:
        for run_id in ("first", "waits", "last"):
            await layer.run(renewal(quarter=run_id), client="acme", run_id=run_id)
            if run_id != "waits":
                await layer.answer((await layer.questions(run_id=run_id))[0].id, "yes", by="ann")
                await layer.resume(run_id)
        assert (await layer.prune(older_than=0)).runs == 0
        await layer.answer_next("yes", by="ann")
        await layer.resume("waits")
        assert (await layer.prune(older_than=0)).runs == 2


async def test_what_a_fork_that_is_under_way_starts_from_is_not_pruned(tmp_path: Path) -> None:
    """A fork looks back from where its root stood, not from its own place: that run stays whole until the fork has ended."""
    async with testing.layer(url(tmp_path)) as layer:
        for run_id in ("oldest", "older", "root", "last"):
            await finished(layer, run_id)
        fork = (await layer.fork("root", from_step="create")).run_id
        assert (await layer.prune(older_than=0)).runs == 2
        whole = rows(tmp_path, "SELECT id FROM run WHERE pruned_us IS NULL ORDER BY no")
        assert whole == [{"id": run_id} for run_id in ("older", "last", fork)]
        await layer.cancel(fork, reason="enough", by="ann")
        await layer.resume(fork)
        assert (await layer.prune(older_than=0)).runs == 1
    assert rows(tmp_path, "SELECT pruned_us IS NULL AS whole FROM run WHERE id = 'older'") == [{"whole": 0}]


async def test_money_stays_on_its_day(tmp_path: Path) -> None:
    """A run that was under way at midnight (UTC) waits for the next one: what was spent yesterday is not counted to today."""
    async with testing.layer(url(tmp_path)) as layer:
        layer.clock.advance(DAY_US / 1e6 - layer.clock.now_us % DAY_US / 1e6 - 60)
        await layer.run(renewal(quarter="a"), client="acme", run_id="a")
        layer.clock.advance(120)
        await layer.answer_next("no", by="ann")
        await layer.resume("a")
        assert (await layer.prune(older_than=0)).runs == 0
        layer.clock.advance(timedelta(days=1))
        assert (await layer.prune(older_than=0)).runs == 1


# -- by itself ----------------------------------------------------------------------------------------------------------------


def test_the_environment_says_how_long() -> None:
    """90 days unless STEPSEVEN_RETENTION says another duration or "off"; anything else is refused before anything is opened."""
    assert retention_us(None) == retention_us("") == 90 * DAY_US
    assert retention_us("365d") == span_us(365)
    assert retention_us("off") is retention_us(" OFF ") is None
    for wrong in ("90", "never", "0", "-1d", "no"):
        with pytest.raises(ValueError, match="say a duration such as 90d, or off"):
            retention_us(wrong)


async def test_a_layer_does_not_open_with_a_retention_it_does_not_understand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped variable must not mean 90 days."""
    monkeypatch.setenv("STEPSEVEN_RETENTION", "for ever")
    with pytest.raises(ValueError, match="STEPSEVEN_RETENTION='for ever'"):
        Layer(url(tmp_path))
    assert not (tmp_path / "s7.db").exists()


def kept(layer: Layer, days: int | None = 90) -> Retention:
    """As a layer has it."""
    return Retention(layer.store, layer.services.edge, layer.services.artifacts, None if days is None else days * DAY_US)


async def test_the_daily_round_prunes_what_is_old_once_a_day(tmp_path: Path) -> None:
    """Only runs older than the retention go, the end of the round is noted in the store, and nobody does it again that day."""
    many(tmp_path, 60)
    async with testing.layer(url(tmp_path)) as layer:
        await layer.run(small(n=1), client="acme", run_id="young")
        one, another = kept(layer), kept(layer)
        one.round()
        assert pruned(tmp_path) == 59
        assert rows(tmp_path, "SELECT pruned_us FROM store") == [{"pruned_us": layer.clock.now_us}]
        assert records(tmp_path, "young")[0]["result"] == "2"
        layer.store.write_now(lambda tx: tx.connection.execute("UPDATE run SET pruned_us = NULL"), durable=True, client=None)  # type: ignore[attr-defined]
        assert another.round() is None
        layer.clock.advance(timedelta(days=1, minutes=1))
        again = another.round()
        assert again is not None
        assert again.done.runs == 59


async def test_a_stamp_from_the_future_does_not_switch_retention_off(tmp_path: Path) -> None:
    """A clock that was a year ahead when a round ended does not mean a year without one."""
    many(tmp_path, 10)
    async with testing.layer(url(tmp_path)) as layer:
        ahead = layer.clock.now_us + 365 * DAY_US
        layer.store.write_now(lambda tx: tx.run(tx.sql.prune_done, {"now": ahead}), durable=True, client=None)
        kept(layer).round()
        assert pruned(tmp_path) == 9
        assert rows(tmp_path, "SELECT pruned_us FROM store") == [{"pruned_us": layer.clock.now_us}]


async def test_a_round_that_is_stopped_ends_with_its_bite_and_is_not_noted(tmp_path: Path) -> None:
    """Stopped before or within it: no bite more; the next process goes on, and only its end is noted."""
    many(tmp_path, 60)
    async with testing.layer(url(tmp_path)) as layer:
        held = kept(layer)
        held.begin()
        held.stop()
        held.round()
        assert pruned(tmp_path) <= 1
        assert rows(tmp_path, "SELECT pruned_us FROM store") == [{"pruned_us": None}]
        held.begin()
        assert not held._thread.alive
        kept(layer).round()
    assert pruned(tmp_path) == 59


@pytest.mark.timeout(60)
async def test_a_prune_by_hand_does_not_wait_for_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round under way in the same process makes way after its bite; it is not noted as done, and goes on at its next look."""
    monkeypatch.setattr("stepseven.runtime.retention.FIRST_S", 0.0)
    monkeypatch.setattr("stepseven.runtime.retention.REST", 1e9)
    monkeypatch.setattr("stepseven.runtime.retention.MOST_S", 3600.0)  # the round takes a day
    many(tmp_path, 60)
    async with testing.layer(url(tmp_path)) as layer:
        held = kept(layer)
        held.begin()
        try:
            while held._pruner is None:
                await asyncio.sleep(0)
            assert await asyncio.to_thread(held.by_hand, 0) == Pruned()
            assert rows(tmp_path, "SELECT pruned_us FROM store") == [{"pruned_us": None}]
            monkeypatch.setattr("stepseven.runtime.retention.MOST_S", 0.0)
            assert held.round() is not None
        finally:
            held.stop()
        assert pruned(tmp_path) == 59
        assert rows(tmp_path, "SELECT pruned_us FROM store") == [{"pruned_us": layer.clock.now_us}]


async def test_retention_that_is_off_prunes_nothing(tmp_path: Path) -> None:
    """`off` means for ever."""
    many(tmp_path, 10)
    async with testing.layer(url(tmp_path)) as layer:
        held = kept(layer, None)
        held.begin()
        assert not held._thread.started
        assert held.round() is None
        held.at_exit()
    assert pruned(tmp_path) == 0


async def test_a_clock_that_jumps_prunes_nothing(tmp_path: Path) -> None:
    """A wall clock that is suddenly years ahead of the steady one would make everything old: that day nothing is pruned."""
    many(tmp_path, 10)
    async with testing.layer(url(tmp_path)) as layer:
        held = kept(layer, 1)
        wall = layer.services.edge.now_us
        layer.services.edge.now_us = lambda: wall() + 4000 * DAY_US  # type: ignore[method-assign]
        assert held.round() is None
    assert pruned(tmp_path) == 0


async def test_a_short_process_leaves_large_runs_to_one_that_lives_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its end it shrinks small runs only, for 30 ms; a large one stays whole, and the round is not noted as done."""
    many(tmp_path, 4)
    large(tmp_path, 2, 3 * pruning.PAGE)
    monkeypatch.setattr("stepseven.runtime.retention.EXIT_S", 10.0)
    async with testing.layer(url(tmp_path)) as layer:
        kept(layer).at_exit()
        assert rows(tmp_path, "SELECT no FROM run WHERE pruned_us IS NULL ORDER BY no") == [{"no": 2}, {"no": 4}]
        assert rows(tmp_path, "SELECT pruned_us FROM store") == [{"pruned_us": None}]
        kept(layer).round()
    assert pruned(tmp_path) == 3


def pruned(path: Path) -> int:
    """How many runs are."""
    return int(rows(path, "SELECT count(*) AS n FROM run WHERE pruned_us IS NOT NULL")[0]["n"])


def large(path: Path, no: int, count: int) -> None:
    """Give a run so many records more."""
    connection = sqlite3.connect(path / "s7.db")
    with connection:
        connection.executemany(
            "INSERT INTO step (id, branch, name, key, generation, state, result, started_us, ended_us)"
            " VALUES (?, '', 's', ?, 1, 'done', ?, 1, 1)",
            [(no << 24 | n, f"k{n}", json.dumps("x" * 100)) for n in range(100, count + 100)],
        )
    connection.close()


async def test_a_layer_that_worked_prunes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that executed a run does a short slice when it ends; one that only looked changes nothing."""
    many(tmp_path, 30)
    monkeypatch.setattr("stepseven.runtime.retention.EXIT_S", 10.0)  # however slow the machine is
    async with Layer(url(tmp_path)) as layer:
        await layer.runs()
    assert pruned(tmp_path) == 0
    async with Layer(url(tmp_path)) as layer:
        await layer.run(small(n=1), client="acme", run_id="mine")
    assert pruned(tmp_path) > 0


async def test_a_layer_of_tests_never_prunes_by_itself(tmp_path: Path) -> None:
    """Months that pass by hand take nothing away that a test looks at."""
    many(tmp_path, 30)
    async with testing.layer(url(tmp_path)) as layer:
        await layer.run(small(n=1), client="acme", run_id="mine")
        layer.clock.advance(timedelta(days=4000))
    assert pruned(tmp_path) == 0


async def test_a_run_that_never_ends_keeps_only_what_it_starts_from(tmp_path: Path) -> None:
    """A run that waits for ever keeps the one before it whole, not everything that was done before."""
    async with testing.layer(url(tmp_path)) as layer:
        for run_id in ("oldest", "older", "waits", "last"):
            await layer.run(renewal(quarter=run_id), client="acme", run_id=run_id)
            if run_id != "waits":
                await layer.answer((await layer.questions(run_id=run_id))[0].id, "yes", by="ann")
                await layer.resume(run_id)
        assert (await layer.prune(older_than=0)).runs == 1
    assert rows(tmp_path, "SELECT id FROM run WHERE pruned_us IS NOT NULL") == [{"id": "oldest"}]
