"""The choice "wait": for a time, for a fact, until the resource answers. Durable, and decided from the rows only."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepseven import Fixable, InvalidAnswer, Layer, Run, step, testing, workflow
from stepseven.testing import Clock, TestLayer
from tests.runs.deaths import every_death, living
from tests.runs.tools import module, rows
from tests.servers import databases

QUARTER = timedelta(minutes=15)
LOOK = {"choice": "wait", "until": "answers"}


class World:
    """What billing-api says, and how often it was asked."""

    def __init__(self) -> None:
        self.says: str | None = "403 Forbidden"
        self.calls = 0


def reads(world: World, name: str, **how: Any) -> Any:
    """A workflow of one step that needs billing-api."""
    how = {"resource": "billing-api", "classify": lambda _: "fixable"} | how

    class Down(Exception):
        pass

    @step(name="pull_billing", **how)
    async def pull_billing() -> int:
        world.calls += 1
        if world.says is not None:
            raise Down(world.says)
        return 7

    @workflow(name=name)
    async def body(run: Run) -> int:
        return await pull_billing()

    return body


@pytest.fixture
def world() -> World:
    """One that says no."""
    return World()


async def until_parked(layer: TestLayer, run_id: str, then: timedelta) -> Any:
    """Time passes; then the run is resumed."""
    layer.clock.advance(then)
    return await layer.resume(run_id)


# -- until the resource answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("until", ["answers", "billing-api"])
async def test_until_it_answers(world: World, until: str):
    """The step is tried again every 15 minutes, parked in between; nobody is asked; when it answers the run goes on."""
    flow = reads(world, f"looks_{until}")
    async with testing.layer() as layer:
        (question,) = (await layer.run(flow(), client="acme", run_id="r1")).questions
        option = next(o for o in question.options if o.id == "wait")
        assert (option.label, option.detail) == (
            "wait until billing-api answers again", "I look every 15 min; or give a time or a fact",
        )  # fmt: skip
        answered = await layer.answer(question.id, {"choice": "wait", "until": until}, by="ann")
        assert answered.answer == LOOK
        outcome = await layer.resume("r1")
        assert (outcome.status, outcome.waiting_for, world.calls) == ("waiting", "timer", 1)
        assert outcome.until_us == answered.answered_us + round(QUARTER.total_seconds() * 1e6)
        assert "the next look whether billing-api answers, by pull_billing" in await layer.why("r1")
        for calls in range(2, 6):
            outcome = await until_parked(layer, "r1", QUARTER)
            assert (outcome.status, outcome.waiting_for, world.calls) == ("waiting", "timer", calls)
            assert (await layer.resume("r1")).status == "waiting"
            assert world.calls == calls  # a resume before its time is no look
        world.says = None
        assert (await until_parked(layer, "r1", QUARTER)).result() == 7
        assert len(await layer.questions(status=None)) == 1


async def test_another_failure_is_asked_about_at_once(world: World):
    """It answers, but otherwise: the person is asked, and told that it is another failure."""
    other: list[str] = []

    @step(name="pull_other", resource="billing-api")
    async def pull_other() -> int:
        if other:
            raise PermissionError("not yours")
        raise KeyError("total")

    @workflow(name="otherwise2")
    async def body(run: Run) -> int:
        return await pull_other()

    async with testing.layer() as layer:
        (question,) = (await layer.run(body(), client="acme", run_id="r1")).questions
        await layer.answer(question.id, LOOK, by="ann")
        await layer.resume("r1")
        other.append("now")
        outcome = await until_parked(layer, "r1", QUARTER)
        assert outcome.waiting_for == "person"
        told = "I waited 15 min until billing-api answers, as ann chose; now it failed in another way."
        assert told in outcome.questions[0].text


async def test_after_seven_days_the_person_is_asked_again(world: World):
    """It never answered: asked again, saying so; attempts were not burned meanwhile."""
    flow = reads(world, "seven_days")
    async with testing.layer() as layer:
        (question,) = (await layer.run(flow(), client="acme", run_id="r1")).questions
        await layer.answer(question.id, LOOK, by="ann")
        await layer.resume("r1")
        for _ in range(6):
            outcome = await until_parked(layer, "r1", timedelta(days=1))
            assert (outcome.waiting_for, outcome.questions) == ("timer", ())
        outcome = await until_parked(layer, "r1", timedelta(days=1))
        (again,) = outcome.questions
        assert "I looked every 15 min for 7 days whether billing-api answers, as ann chose: it does not." in again.text
        await layer.answer(again.id, LOOK, by="ann")  # and once more, from now on
        assert (await layer.resume("r1")).waiting_for == "timer"
        world.says = None
        assert (await until_parked(layer, "r1", QUARTER)).result() == 7
        assert [r["outcome"] for r in layer.store.read_now(lambda tx: tx.all(tx.sql.attempts, {"run_no": 1}))] == [
            "failed", *["deferred"] * 6, "failed",
        ]  # fmt: skip


async def test_looks_of_a_write_send_only_when_nothing_happened(world: World):
    """A write that was refused is looked for again under the same rules, and is done once."""
    done = []

    @step(name="post_invoice", effect="write", key="n", resource="billing-api")
    async def post_invoice(n: int) -> str:
        world.calls += 1
        if world.says is not None:
            raise Fixable(world.says, needs=None)
        done.append(n)
        return f"inv-{n}"

    @workflow(name="posts")
    async def body(run: Run) -> str:
        return await post_invoice(1)

    async with testing.layer() as layer:
        (question,) = (await layer.run(body(), client="acme", run_id="r1")).questions
        await layer.answer(question.id, LOOK, by="ann")
        await layer.resume("r1")
        for _ in range(3):
            assert (await until_parked(layer, "r1", QUARTER)).waiting_for == "timer"
        world.says = None
        assert (await until_parked(layer, "r1", QUARTER)).result() == "inv-1"
        assert (done, world.calls) == ([1], 5)


async def test_it_is_not_offered_where_it_cannot_help(world: World):
    """Without a resource, or when what the step was given is wrong: a time or a fact only, and the sentence says so."""

    @step(name="no_resource")
    async def no_resource() -> int:
        raise RuntimeError("broken")

    @step(name="bad_input", resource="billing-api")
    async def bad_input() -> int:
        raise ValueError("quarter Q9")

    for reader in (no_resource, bad_input):

        @workflow(name=f"flow_{reader.name}")
        async def body(run: Run, reader_: str = reader.name) -> int:
            return await {"no_resource": no_resource, "bad_input": bad_input}[reader_]()

        async with testing.layer() as layer:
            (question,) = (await layer.run(body(), client="acme", run_id="r1")).questions
            assert next(o for o in question.options if o.id == "wait").label == "wait and try later"
            with pytest.raises(InvalidAnswer, match="give a time, seconds or a fact"):
                await layer.answer(question.id, LOOK, by="ann")
            with pytest.raises(InvalidAnswer, match="neither a time"):
                await layer.answer(question.id, {"choice": "wait", "until": "billing-api"}, by="ann")


async def test_a_bare_wait_is_no_answer(world: World):
    """The contract: ``wait`` says until when, or until which fact."""
    async with testing.layer() as layer:
        (question,) = (await layer.run(reads(world, "bare")(), client="acme")).questions
        for bare in ("wait", {"choice": "wait"}, {"choice": "wait", "until": None}, {"choice": "wait", "until": True}):
            with pytest.raises(InvalidAnswer, match="wait needs until"):
                await layer.answer(question.id, bare, by="ann")


async def test_mended_code_does_not_wait_for_the_next_look(tmp_path: Path):
    """A resume after the step's source changed tries at once."""
    source = """
        from stepseven import Run, step, workflow

        @step(resource="billing-api")
        async def pull() -> int:
            {line}

        @workflow(name="mended_look")
        async def body(run: Run) -> int:
            return await pull()
    """
    clock = Clock()
    code = module("mended_look", source.format(line="raise PermissionError('closed')"))
    url = databases.url(tmp_path)
    async with testing.layer(url, clock=clock) as layer:
        (question,) = (await layer.run(code.body(), client="acme", run_id="r1")).questions
        await layer.answer(question.id, LOOK, by="ann")
        assert (await layer.resume("r1")).waiting_for == "timer"
    module("mended_look", source.format(line="return 7"))
    async with testing.layer(url, clock=clock, seed=1) as layer:
        assert (await layer.resume("r1")).result() == 7


# -- a time, a fact -------------------------------------------------------------------------------------------------------


async def test_until_a_time_and_for_seconds(world: World):
    """A moment or a number of seconds: one try then, and a question if it fails again."""
    flow = reads(world, "timed")
    async with testing.layer() as layer:
        for run_id, until in (("r1", 3600), ("r2", "2026-01-14T20:00:00Z")):
            (question,) = (await layer.run(flow(), client="acme", run_id=run_id)).questions
            answered = await layer.answer(question.id, {"choice": "wait", "until": until}, by="ann")
            before = world.calls
            outcome = await layer.resume(run_id)
            assert (outcome.waiting_for, outcome.until_us, world.calls) == ("timer", answered.answer["until"], before)
            outcome = await until_parked(layer, run_id, timedelta(days=5))
            assert (outcome.waiting_for, world.calls) == ("person", before + 1)


async def test_for_a_fact_it_goes_on_at_once(world: World):
    """A run that waits for a fact goes on when it is set: parked or not, and nothing is asked."""
    flow = reads(world, "for_fact")
    async with testing.layer() as layer:
        (question,) = (await layer.run(flow(), client="acme", run_id="r1")).questions
        await layer.answer(question.id, {"choice": "wait", "fact": "billing.open"}, by="ann")
        outcome = await layer.resume("r1")
        assert (outcome.status, outcome.waiting_for) == ("waiting", "event")
        world.says = None
        layer.client("acme").set("billing.open", "yes")
        assert (await layer.runs())[0].status == "queued"
        assert (await layer.resume("r1")).result() == 7


async def test_a_fact_set_in_the_same_process_wakes_a_caller_that_waits(world: World):
    """``run(wait=…)`` goes on within the moment."""
    flow = reads(world, "for_fact_waiting")
    clock = Clock()
    async with testing.layer(clock=clock) as layer:
        running = asyncio.create_task(layer.run(flow(), client="acme", run_id="r1", wait=86400))
        while not (asked := await layer.questions()):
            await asyncio.sleep(0)
        await layer.answer(asked[0].id, {"choice": "wait", "fact": "billing.open"}, by="ann")
        while (await layer.runs())[0].waiting_for != "event":
            clock.advance(timedelta(seconds=1))
            await asyncio.sleep(0)
        world.says = None
        before = clock.now_us
        layer.client("acme").set("billing.open", "yes")
        while not running.done():
            clock.advance(timedelta(milliseconds=100))
            await asyncio.sleep(0)
        assert (await running).result() == 7
        assert clock.now_us - before < 30_000_000


# -- in a map ---------------------------------------------------------------------------------------------------------------


async def test_a_batch_waits_until_it_answers():
    """The failed items look; no further one starts until one of them went on; then all do. One question in all."""
    down, calls = [True], []

    @step(name="post", resource="billing-api")
    async def post(n: int) -> int:
        calls.append(n)
        if down[0]:
            raise PermissionError("closed")
        return n

    @workflow(name="batch_looks")
    async def body(run: Run) -> list[int | None]:
        return await run.map(post, range(5), concurrency=1)

    async with testing.layer() as layer:
        (question,) = (await layer.run(body(), client="acme", run_id="r1")).questions
        assert (question.kind, calls) == ("batch", [0, 1])
        assert "I look every 15 min" in next(o.detail or "" for o in question.options if o.id == "wait")
        await layer.answer(question.id, LOOK, by="ann")
        assert (await layer.resume("r1")).waiting_for == "timer"
        for _ in range(3):
            assert (await until_parked(layer, "r1", QUARTER + timedelta(seconds=10))).waiting_for == "timer"
        assert sorted(calls) == [0] * 4 + [1] * 4
        down[0] = False
        outcome = await until_parked(layer, "r1", QUARTER + timedelta(seconds=10))
        assert outcome.result() == [0, 1, 2, 3, 4]
        assert [q.kind for q in await layer.questions(status=None) if q.kind == "batch"] == ["batch"]


# -- crashes ----------------------------------------------------------------------------------------------------------------

CRASH = """
    from stepseven import Run, step, workflow

    calls = []

    @step(resource="billing-api")
    async def pull() -> int:
        calls.append(1)
        if len(calls) < 2:
            raise PermissionError("closed")
        return 7

    @workflow(name="looks_crash")
    async def body(run: Run) -> int:
        return await pull()
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_crash_around_the_answer_changes_nothing(tmp_path: Path):
    """Die at every write of failing, asking, answering and parking: one question, one next look, at the same time."""
    code = module("looks_crash", CRASH)

    async def story(layer: Layer) -> Any:
        await layer.run(code.body(), client="acme", run_id="r")
        for question in await layer.questions():
            await layer.answer(question.id, LOOK, by="ann")
        return await layer.resume("r")

    for state in every_death(tmp_path, story, lambda _: code.calls.clear()):
        if code.calls and rows(state, "SELECT count(*) AS n FROM attempt")[0]["n"] == 0:
            code.calls.clear()  # its failure was not kept: it fails again
        outcome = living(state, story)
        (asked,) = rows(state, "SELECT answered_us FROM question")
        assert (outcome.waiting_for, outcome.until_us) == ("timer", asked["answered_us"] + 900_000_000)
