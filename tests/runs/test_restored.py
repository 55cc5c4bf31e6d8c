"""Yesterday's backup is put back under live runs: what was done after it was made is not done again. The outside counts.

Longer than other files: the table of what may have been done after a backup, case by case.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepseven import Fatal, Run, attempt, step, workflow
from stepseven.model import RunStatus
from stepseven.testing import TestLayer
from stepseven.testing.clock import START, Clock
from tests.runs.outside import Mood, Outside
from tests.runs.restored import at_call, back_up, put_back, see_through, told
from tests.runs.worldly import claims, kinds, layers, look, outside, post, the_question, tries

pytestmark = pytest.mark.sqlite("the file itself is copied and put back")
KINDS = ("looked", "honoured", "asked", "proposed", "unseen", "shared")


class Steps:
    """Writes of every kind, on one outside world; each waits for an answer first, so that a run can be backed up before it."""

    def __init__(self, world: Outside) -> None:  # noqa: C901 - six steps and their probes
        async def act(name: str) -> int:
            made: dict[str, Any] = await post(world, name, None, key=attempt().idempotency_key)
            return int(made["n"])

        async def find(name: str) -> int | None:
            found = await look(world, name)
            return None if found is None else int(found["n"])

        @step(effect="write", key="client_id")
        async def looked(client_id: str) -> int:
            return await act("looked")

        @looked.probe
        async def find_looked(client_id: str) -> int | None:
            return await find("looked")

        @step(effect="write", key="client_id", idempotent="24h")
        async def honoured(client_id: str) -> int:
            return await act("honoured")

        @step(effect="write", key="client_id")
        async def asked(client_id: str) -> int:
            return await act("asked")

        @step(effect="irreversible", key="client_id")
        async def proposed(client_id: str) -> int:
            return await act("proposed")

        @proposed.probe
        async def find_proposed(client_id: str) -> int | None:
            return await find("proposed")

        @step(effect="irreversible", key="client_id")
        async def unseen(client_id: str) -> int:
            return await act("unseen")

        @step(effect="write", key="client_id", scope="client")
        async def shared(client_id: str) -> int:
            return await act("shared")

        @shared.probe
        async def find_shared(client_id: str) -> int | None:
            return await find("shared")

        self.steps = {s.name: s for s in (looked, honoured, asked, proposed, unseen, shared)}

        @workflow
        async def restored_flow(run: Run, which: str) -> int:
            if await run.ask("May I?") != "yes":
                return 0
            return int(await self.steps[which](run.client_id))

        self.flow = restored_flow


@asynccontextmanager
async def world_of(tmp_path: Path, clock: Clock, seed: int) -> AsyncIterator[TestLayer]:
    """A worker on the file, with ids of its own."""
    async with layers(f"sqlite:///{tmp_path}/s.db", clock=clock, seed=seed) as layer:
        yield layer


async def lose_a_day(tmp_path: Path, clock: Clock, steps: Steps, which: str, *answers: tuple[str, Any]) -> None:
    """A run asks; the store is backed up; the answer comes and the effect is done; the backup is put back a day later."""
    async with world_of(tmp_path, clock, 1) as layer:
        outcome = await layer.run(steps.flow(which=which), client="acme", run_id="r")
        assert kinds(outcome) == ["ask"]
        copy = back_up(tmp_path / "s.db")
        clock.advance(60)
        outcome = await see_through(layer, "r", ("ask", "yes"), *answers)
        assert outcome.status == RunStatus.DONE
    put_back(tmp_path / "s.db", copy)
    clock.advance(3600)


#: What a person has to say: before the loss, after it, and the same without ``doctor --restored``.
APPROVE = ("approve", "approve")
HAPPENED = ("unknown_outcome", {"choice": "happened", "receipt": 1})
PEOPLE: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "looked": ((), ()),
    "honoured": ((), ()),
    "asked": ((), (HAPPENED,)),
    "proposed": ((APPROVE,), ()),  # found: it need not be approved again
    "unseen": ((APPROVE,), (APPROVE, HAPPENED)),
    "shared": ((), ()),
}


@pytest.mark.parametrize("which", KINDS)
async def test_nothing_is_done_again_after_a_restore(tmp_path: Path, which: str) -> None:
    """A write the restored store has no record of is looked for, sent under the same key, or asked about: it happens once."""
    clock = Clock(START, jumps=True)
    with outside(dedup=which == "honoured") as world:
        steps = Steps(world)
        before, after = PEOPLE[which]
        await lose_a_day(tmp_path, clock, steps, which, *before)
        assert world.counts() == {which: 1}
        async with world_of(tmp_path, clock, 2) as layer:
            found = await told(layer)
            assert (found.epoch, found.live_runs, found.last_us) == (2, 1, None)
            outcome = await see_through(layer, "r", ("ask", "yes"), *after)
            assert (outcome.status, outcome.value) == (RunStatus.DONE, 1)
            (claim,) = claims(layer)
            assert claim["state"] == "done"
    assert world.counts() == {which: 1}


@pytest.mark.parametrize("which", ["looked", "asked", "proposed", "unseen", "shared"])
async def test_it_happens_twice_when_nobody_says_so(tmp_path: Path, which: str) -> None:
    """Without ``doctor --restored`` the same loss does it twice: the tests above can fail (a resume looks first by itself)."""
    clock = Clock(START, jumps=True)
    with outside() as world:
        steps = Steps(world)
        for each in steps.steps.values():
            each.settings = each.options(probe_first="never").settings
        before, _ = PEOPLE[which]
        await lose_a_day(tmp_path, clock, steps, which, *before)
        async with world_of(tmp_path, clock, 2) as layer:
            await see_through(layer, "r", ("ask", "yes"), *before)
    assert world.counts() == {which: 2}


@pytest.mark.parametrize("which", ["looked", "shared", "proposed"])
async def test_a_step_that_never_looks_first_looks_after_a_restore(tmp_path: Path, which: str) -> None:
    """``probe_first="never"`` is about a wait; what may have been done in lost time is looked for all the same."""
    clock = Clock(START, jumps=True)
    with outside() as world:
        steps = Steps(world)
        for each in steps.steps.values():
            each.settings = each.options(probe_first="never").settings
        before, after = PEOPLE[which]
        await lose_a_day(tmp_path, clock, steps, which, *before)
        async with world_of(tmp_path, clock, 2) as layer:
            await told(layer)
            await see_through(layer, "r", ("ask", "yes"), *after)
    assert world.counts() == {which: 1}


@pytest.mark.parametrize("which", KINDS)
async def test_what_was_not_done_is_done_after_a_restore(tmp_path: Path, which: str) -> None:
    """If nothing was done in the time that is lost, it is done now, once, as soon as nobody can still send."""
    clock = Clock(START, jumps=True)
    people = {"asked": (("unknown_outcome", "not_happened"),), "proposed": (APPROVE,),
              "unseen": (APPROVE, ("unknown_outcome", "not_happened"))}  # fmt: skip
    with outside() as world:
        steps = Steps(world)
        async with world_of(tmp_path, clock, 1) as layer:
            await layer.run(steps.flow(which=which), client="acme", run_id="r")
            copy = back_up(tmp_path / "s.db")
        put_back(tmp_path / "s.db", copy)
        async with world_of(tmp_path, clock, 2) as layer:
            await told(layer)
            began = clock.now_us
            outcome = await see_through(layer, "r", ("ask", "yes"), *people.get(which, ()))
            assert outcome.value == 1
            if which in ("looked", "shared", "proposed"):
                assert clock.now_us - began >= 30e6, "a worker of the lost time could still have sent"
    assert world.counts() == {which: 1}


async def test_the_question_says_that_a_backup_was_restored(tmp_path: Path) -> None:
    """Where nobody can look, a person is asked, and the question says why, and under which key to search."""
    clock = Clock(START, jumps=True)
    with outside() as world:
        steps = Steps(world)
        await lose_a_day(tmp_path, clock, steps, "asked")
        async with world_of(tmp_path, clock, 2) as layer:
            await told(layer)
            await layer.answer_next("yes", by="ann")
            question = the_question(await layer.resume("r"))
            assert (
                "A backup was restored. Whether it was done after that backup was made, my records do not show." in question.text
            )
            assert "Search there for: r/asked/acme" in question.text
            assert "I began it" not in question.text
            assert [(t["outcome"], t["reason"]) for t in tries(layer)] == [
                ("interrupted", "a backup was restored: it may have been done after that was made")
            ]


async def test_an_old_promise_is_none(tmp_path: Path) -> None:
    """The age of what may have been sent in lost time is counted from its run's admission: an old one asks."""
    clock = Clock(START, jumps=True)
    with outside(dedup=True) as world:
        steps = Steps(world)
        await lose_a_day(tmp_path, clock, steps, "honoured")
        clock.advance(24 * 3600)
        async with world_of(tmp_path, clock, 2) as layer:
            await told(layer)
            await see_through(layer, "r", ("ask", "yes"), ("unknown_outcome", {"choice": "happened", "receipt": 1}))
    assert world.counts() == {"honoured": 1}
    assert len(world.calls) == 1


@pytest.mark.parametrize("which", ["looked", "asked"])
async def test_new_runs_are_as_ever(tmp_path: Path, which: str) -> None:
    """A run that is admitted after the restore was told neither looks nor asks."""
    clock = Clock(START, jumps=True)
    with outside() as world:
        steps = Steps(world)
        await lose_a_day(tmp_path, clock, steps, which)
        async with world_of(tmp_path, clock, 2) as layer:
            await told(layer)
            await layer.run(steps.flow(which=which), client="bolt", run_id="new")
            (asked,) = await layer.questions(run_id="new")
            await layer.answer(asked.id, "yes", by="ann")
            outcome = await layer.run(steps.flow(which=which), client="bolt", run_id="new")
            assert outcome.value == 2
            assert "new/looked/bolt" not in world.looks
    assert world.counts() == {which: 2}


async def test_a_new_run_looks_while_an_old_one_may_have_done_it_for_all(tmp_path: Path) -> None:
    """An effect of all the client's runs, done by a run over the gap: another, new run finds it and does not do it again."""
    clock = Clock(START, jumps=True)
    with outside() as world:
        steps = Steps(world)
        await lose_a_day(tmp_path, clock, steps, "shared")
        async with world_of(tmp_path, clock, 2) as layer:
            await told(layer)
            await layer.run(steps.flow(which="shared"), client="acme", run_id="new")
            (asked,) = await layer.questions(run_id="new")
            await layer.answer(asked.id, "yes", by="ann")
            assert (await layer.run(steps.flow(which="shared"), client="acme", run_id="new")).value == 1
            assert (await see_through(layer, "r", ("ask", "yes"))).value == 1
    assert world.counts() == {"shared": 1}


async def test_what_was_proven_not_done_before_is_in_doubt_again(tmp_path: Path) -> None:
    """A try that was refused before the backup may have been repeated after it: it is looked for before it is sent again."""
    clock = Clock(START, jumps=True)
    with outside() as world:
        steps = Steps(world)
        async with world_of(tmp_path, clock, 1) as layer:
            await layer.run(steps.flow(which="looked"), client="acme", run_id="r")
            world.moods[:] = [Mood(act=False, status=403)]
            await layer.answer_next("yes", by="ann")
            outcome = await layer.resume("r")
            assert kinds(outcome) == ["failure"]
            assert [c["state"] for c in claims(layer)] == ["refused"]
            copy = back_up(tmp_path / "s.db")
            clock.advance(60)
            await see_through(layer, "r", ("failure", "again"))
        assert world.counts() == {"looked": 1}
        put_back(tmp_path / "s.db", copy)
        clock.advance(3600)
        async with world_of(tmp_path, clock, 2) as layer:
            await told(layer)
            assert (await see_through(layer, "r", ("failure", "again"))).value == 1
    assert world.counts() == {"looked": 1}


async def test_an_answer_from_before_is_not_believed(tmp_path: Path) -> None:
    """“It did not happen”, said before the backup and not acted on yet, says nothing about the time since: it is asked again."""
    clock = Clock(START, jumps=True)
    with outside() as world:
        steps = Steps(world)
        async with world_of(tmp_path, clock, 1) as layer:
            await layer.run(steps.flow(which="asked"), client="acme", run_id="r")
            world.moods[:] = [Mood(act=False, reset=True)]
            await layer.answer_next("yes", by="ann")
            question = the_question(await layer.resume("r"))
            await layer.answer(question.id, "not_happened", by="ann")
            copy = back_up(tmp_path / "s.db")
            clock.advance(60)
            await see_through(layer, "r")
        assert world.counts() == {"asked": 1}
        put_back(tmp_path / "s.db", copy)
        clock.advance(3600)
        async with world_of(tmp_path, clock, 2) as layer:
            await told(layer)
            await see_through(layer, "r", HAPPENED)
    assert world.counts() == {"asked": 1}


async def test_each_call_raises_it_and_every_live_run_is_free(tmp_path: Path) -> None:
    """Every call raises the epoch, says when the last one was, and leaves no run with an owner of the lost time."""
    clock = Clock(START, jumps=True)
    with outside() as world:
        steps = Steps(world)
        async with world_of(tmp_path, clock, 1) as layer:
            await layer.run(steps.flow(which="looked"), client="acme", run_id="r")
            first = await told(layer)
            at = clock.now_us
            clock.advance(60)
            second = await told(layer)
            assert (first.epoch, second.epoch, second.last_us) == (2, 3, at)
            row = layer.store.read_now(lambda tx: tx.one(tx.sql.run_by_id, {"id": "r"}))
            assert row is not None
            assert (row["owner"], row["status"], row["fence"]) == (None, "waiting", 2_000_001)


async def test_a_worker_of_the_lost_time_stops_its_runs(tmp_path: Path) -> None:
    """A worker that still executes a run when the restore is told writes nothing more into it; another one carries it on."""
    clock = Clock(START, jumps=True)
    go, entered = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    @step
    async def slow() -> str:
        ran.append("slow")
        entered.set()
        if len(ran) == 1:
            await go.wait()
        return "read"

    @workflow
    async def slow_flow(run: Run) -> str:
        return await slow()

    async with world_of(tmp_path, clock, 1) as old, world_of(tmp_path, clock, 2) as new:
        task = asyncio.create_task(old.run(slow_flow(), client="acme", run_id="r"))
        await entered.wait()
        assert (await told(new)).live_runs == 1
        assert (await new.resume("r")).value == "read"
        go.set()
        assert (await task).value == "read"
        assert [r["name"] for r in new.store.read_now(lambda tx: tx.all(tx.sql.steps, {"low": 0, "high": 1 << 60}))] == ["slow"]
    assert ran == ["slow", "slow"]


async def test_a_child_and_a_fork_live_over_the_gap_of_their_run(tmp_path: Path) -> None:
    """What an old run starts, and a fork of it, may have been started before: they look first like it."""
    clock = Clock(START, jumps=True)
    with outside() as world:
        steps = Steps(world)
        looked = steps.steps["looked"].options(probe_first="never")

        @step
        async def first() -> int:
            return 1

        @workflow
        async def child_flow(run: Run) -> int:
            return int(await looked(run.client_id))

        @workflow
        async def parent_flow(run: Run) -> int:
            await first()
            await run.ask("May I?")
            return await run.start(child_flow())

        async with world_of(tmp_path, clock, 1) as layer:
            await layer.run(parent_flow(), client="acme", run_id="r")
            copy = back_up(tmp_path / "s.db")
            await see_through(layer, "r", ("ask", "yes"))
        put_back(tmp_path / "s.db", copy)
        clock.advance(3600)
        async with world_of(tmp_path, clock, 2) as layer:
            await told(layer)
            fork = await layer.fork("r", from_step="first")
            assert (await see_through(layer, "r", ("ask", "yes"))).value == 1
            rows = {
                r["id"]: r["epoch"] for r in layer.store.read_now(lambda tx: tx.all(tx.sql.runs_of_client, {"client_id": "acme"}))
            }
            assert set(rows.values()) == {1}, rows
            assert fork.run_id in rows
    assert world.counts() == {"looked": 1}


@pytest.mark.parametrize("say", [True, False])
async def test_a_backup_taken_in_the_midst_of_many_runs(tmp_path: Path, say: bool) -> None:
    """Twelve runs of four writes each, backed up while they run, set back: told so, every effect stands once; else many twice."""
    clock = Clock(START, jumps=True)
    copies: list[Path] = []
    with outside() as world:

        @step(effect="write", key="client_id, n", probe_first="never", timeout=5)
        async def midst(client_id: str, n: int) -> int:
            made = await post(world, f"{client_id}-{n}", None, key=attempt().idempotency_key)
            return int(made["n"])

        @midst.probe
        async def find_midst(client_id: str, n: int) -> int | None:
            found = await look(world, f"{client_id}-{n}")
            return None if found is None else int(found["n"])

        @workflow
        async def midst_flow(run: Run) -> int:
            for n in range(4):
                await midst(run.client_id, n)
            return 4

        at_call(world, 22, lambda: copies.append(back_up(tmp_path / "s.db")))
        runs = [f"r{n}" for n in range(12)]
        async with world_of(tmp_path, clock, 1) as layer:
            done = await asyncio.gather(*(layer.run(midst_flow(), client=f"c{run}", run_id=run) for run in runs))
            assert {outcome.status for outcome in done} == {RunStatus.DONE}
        put_back(tmp_path / "s.db", copies[0])
        clock.advance(3600)
        async with world_of(tmp_path, clock, 2) as layer:
            if say:
                assert (await told(layer)).live_runs > 0
            outcomes = await asyncio.gather(*(layer.resume(run) for run in runs))
            assert {outcome.status for outcome in outcomes} == {RunStatus.DONE}
    assert len(world.counts()) == 48
    twice = [name for name, n in world.counts().items() if n > 1]
    assert bool(twice) is not say, twice


async def test_what_was_taken_back_in_lost_time_is_not_taken_back_again(tmp_path: Path) -> None:
    """An undo that was decided and done after the backup: decided anew, it is asked about before it is sent again."""
    clock = Clock(START, jumps=True)
    with outside() as world:

        @step(effect="write", key="client_id")
        async def book(client_id: str) -> int:
            return int((await post(world, "book", None, key=None))["n"])

        @book.undo
        async def unbook(receipt: int) -> None:
            await post(world, "unbook", receipt, key=None)

        @workflow
        async def doomed_flow(run: Run) -> None:
            await book(run.client_id)
            raise Fatal("the hotel burned down")

        async with world_of(tmp_path, clock, 1) as layer:
            await layer.run(doomed_flow(), client="acme", run_id="r")
            copy = back_up(tmp_path / "s.db")
            await layer.answer_next("undo", by="ann")
            assert (await layer.resume("r-undo")).status == RunStatus.DONE
        put_back(tmp_path / "s.db", copy)
        clock.advance(3600)
        async with world_of(tmp_path, clock, 2) as layer:
            await told(layer)
            await layer.answer_next("undo", by="ann")
            outcome = await see_through(layer, "r-undo", ("unknown_outcome", {"choice": "happened", "receipt": None}))
            assert outcome.status == RunStatus.DONE
    assert world.counts() == {"book": 1, "unbook": 1}
