"""Plans of runs that have much on record: how much there is changes neither what is seen nor, by far, how long each takes."""

from __future__ import annotations

import time

import pytest

from stepseven import Run, step, testing, workflow
from stepseven.decide.plan import Plan
from stepseven.runtime import rehearsal


@step
async def look(n: int) -> int:
    """A read in each item."""
    return n


@step
async def use(n: int) -> int:
    """Built on it."""
    return n


async def item(n: int) -> int:
    """Both."""
    return await use(await look(n))


@workflow(name="plan_large")
async def job(run: Run, items: int) -> int:
    """A large map, and a question."""
    found = await run.map(item, list(range(items)))
    await run.ask("Good?")
    return len(found)


def made_anew(plan: Plan) -> dict[str, int]:
    """What is on record and runs again: step → how often."""
    return {s.step: s.count for s in plan.steps if s.do == "run" and not s.new}


async def test_records_that_take_long_are_not_taken_for_code_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meeting many records takes longer than code may wait for something outside: as long as it goes on, it is let go on."""
    async with testing.layer() as layer:
        await layer.run(job(items=400), client="acme", run_id="r")
        monkeypatch.setattr(rehearsal, "PATIENCE_S", 0.05)
        plan = await layer.plan("r", rerun=["look"])
    assert made_anew(plan) == {"look": 400}
    assert not [told for path in plan.paths for told in path.unknown if "waits for something outside" in told]


@step(attempts=1)
async def post(n: int) -> int:
    """Fails in every item, for the same reason."""
    raise ValueError("no route")


@workflow(name="plan_folded")
async def failing(run: Run) -> int:
    """A map whose items fail alike."""
    return len(await run.map(post, list(range(5))))


async def test_a_question_that_stands_for_many_is_one() -> None:
    """Items that failed alike are asked about together, and answered so: the plan has one question."""
    async with testing.layer() as layer:
        outcome = await layer.run(failing(), client="acme", run_id="r")
        (path,) = (await layer.plan("r")).paths
        assert (path.questions, len(outcome.questions)) == (1, 1)
        assert [s.step for s in path.steps if s.do == "ask"] == ["post"]


@pytest.mark.soak
async def test_a_step_made_anew_in_every_item_of_a_large_map() -> None:
    """Each item is looked at in the time of one: the plan and the resume take a few times as long as the run, not hundreds."""
    async with testing.layer() as layer:
        began = time.process_time()
        await layer.run(job(items=6_000), client="acme", run_id="r")
        took = time.process_time() - began
        began = time.process_time()
        plan = await layer.plan("r", rerun=["look"])
        planned = time.process_time() - began
        assert made_anew(plan) == {"look": 6_000}
        began = time.process_time()
        await layer.resume("r", rerun=["look"])
        resumed = time.process_time() - began
    assert planned < 6 * took, (took, planned)
    assert resumed < 6 * took, (took, resumed)
