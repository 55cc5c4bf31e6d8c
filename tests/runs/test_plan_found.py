"""What stories made by chance have found (``test_plan_property.py``): each as small as it gets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

import pytest

from stepseven import Cost, Run, attempt, step, workflow
from stepseven.decide.plan import Do
from stepseven.decide.plan import Path as Way
from tests.runs import tools
from tests.runs.deaths import dying, living
from tests.runs.deployed import deploys
from tests.runs.worldly import layers


@pytest.mark.parametrize("on_drift", ["ask", "keep", "refresh"])
async def test_a_way_that_refreshes_nothing_is_the_one_that_continues(on_drift: Literal["ask", "keep", "refresh"]) -> None:
    """A run whose facts would be refreshed, and none of them moved: its plan has the way there is, and is not one that ended."""

    @workflow(name="found_refresh", on_drift=on_drift)
    async def flow(run: Run) -> str:
        return await run.ask(f"Send to {run.client.get('contact')}?", options=["yes", "no"])

    async with layers() as layer:
        layer.client("acme").set("contact", "ann")
        await layer.run(flow(), client="acme", run_id="r")
        plan = await layer.plan("r")
        assert [(path.name, path.questions_at_most, path.cheapest) for path in plan.paths] == [("continue", 1, True)]
        assert [line.do for line in plan.steps] == [Do.ASK]


@step(name="found.bill")
async def bill(n: int) -> int:
    """Fails until a person gives its result."""
    raise PermissionError(n)


@workflow(name="found_given")
async def given(run: Run) -> int:
    """Reads a fact, and then comes to what fails."""
    return len(run.client.get("contact")) + await bill(1)


@pytest.mark.parametrize("drift", [None, "keep", "refresh"])
async def test_what_would_be_given_is_not_asked_about_on_any_way(drift: Literal["keep", "refresh"] | None) -> None:
    """A plan with a value for a failed step: where facts moved, too, neither way asks about that step."""
    async with layers() as layer:
        layer.client("acme").set("contact", "ann")
        await layer.run(given(), client="acme", run_id="r")
        layer.client("acme").set("contact", "bernd")
        plan = await layer.plan("r", skip={"found.bill": 7}, drift=drift)
        ways = {None: ["continue", "refresh"], "keep": ["continue"], "refresh": ["refresh"]}
        assert [path.name for path in plan.paths] == ways[drift]
        asked = 0 if drift else 1
        assert [(path.questions, path.questions_at_most) for path in plan.paths] == [(asked, asked)] * len(plan.paths)
        assert not [line for path in plan.paths for line in path.steps if line.step == "found.bill" and line.do is Do.ASK]
        outcome = await layer.resume("r", skip={"found.bill": 7}, drift=drift or "refresh")
        assert outcome.result() == (10 if drift == "keep" else 12)


RAN: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _anew() -> None:
    RAN.clear()


@step(name="found.send", effect="irreversible", key="n")
async def send(n: int) -> int:
    """Is approved first."""
    RAN["send"] += 1
    return n


@step(name="found.agent", cost=Cost(usd=0.1), attempts=1)
async def agent(n: int) -> int:
    """Has its own bill, and calls what a person has to approve."""
    RAN["agent"] += 1
    attempt().spend(usd=0.1)
    first = await send(n)
    return first + await send(n + 1)


@workflow(name="found_agents")
async def agents(run: Run) -> int:
    """One before a question, one after it."""
    n = await agent(1)
    await run.ask("Go on?", options=["yes", "no"])
    return n + await agent(10)


@pytest.mark.parametrize("begun", [False, True])
async def test_a_step_that_waits_for_a_person_in_its_own_code_begins_anew_after_that(begun: bool) -> None:
    """Its code runs from the top once more after each answer, and is paid again: that is in the bound."""
    async with layers() as layer:
        await layer.start(agents(), client="acme", run_id="r")
        if begun:
            await layer.resume("r")
        RAN.clear()
        path = (await layer.plan("r")).paths[0]
        while not (outcome := await layer.resume("r")).status.ended:
            for question in outcome.questions:
                await layer.answer(question.id, "yes" if question.kind == "ask" else "approve", by="ann")
    most = sum(line.at_most or 0 for line in path.steps if line.step == "found.agent")
    assert RAN["agent"] == 6  # with those of the resume before
    assert RAN["agent"] <= most
    assert path.usd_at_most_known >= RAN["agent"] * 0.1 - 1e-9
    assert RAN["send"] == 4


@step(name="found.post", effect="write", key="n")
async def post(n: int) -> int:
    """Nobody can tell whether it was done."""
    RAN["post"] += 1
    return n


@step(name="found.poster", cost=Cost(usd=0.1), attempts=1)
async def poster(n: int) -> int:
    """Has its own bill, and calls it."""
    RAN["poster"] += 1
    attempt().spend(usd=0.1)
    return await post(n)


@workflow(name="found_posts")
async def posts(run: Run) -> int:
    """One call."""
    return await poster(1)


def test_a_write_in_doubt_within_a_step_is_a_question_of_the_plan(tmp_path: Path) -> None:
    """Its process died between the write and its receipt: that is asked about, and what called it begins once more after that."""

    async def first(layer: tools.Layer) -> None:
        await layer.run(posts(), client="acme", run_id="r")

    async def second(layer: tools.Layer) -> tuple[Way, int]:
        path, asked = (await layer.plan("r")).paths[0], 0
        while not (outcome := await layer.resume("r")).status.ended:
            for question in outcome.questions:
                asked += 1
                await layer.answer(question.id, {"choice": "happened", "receipt": 1}, by="ann")
        return path, asked

    dying(tmp_path, 4, "before", first)
    assert (RAN["post"], RAN["poster"]) == (1, 1)
    path, asked = living(tmp_path, second)
    assert (path.questions, path.questions_at_most, asked) == (1, 1, 1)
    assert [(line.count, line.at_most) for line in path.steps if line.step == "found.poster"] == [(1, 2)]
    assert (RAN["post"], RAN["poster"]) == (1, 3)


ARMS = """
    @step(name="found.taken")
    async def taken(n: int) -> int:
        return n

    @step(name="found.left")
    async def left(n: int) -> int:
        return n

    @workflow(name="found_arms")
    async def flow(run: Run) -> str:
        n = await taken(1)
        if n == 2:
            await left(n)
        one = await run.ask("First?", options=["yes", "no"])
        await taken(3)
        return one + await run.ask("Second?", options=["yes", "no"])
"""


async def test_an_answer_counts_whatever_arms_the_code_has_passed_by(tmp_path: Path) -> None:
    """What the code has and did not come to is noted when the run waits: no answer was given on that; nobody is asked twice."""
    asked: list[str] = []
    with deploys(tmp_path / "code") as deploy:
        flow = deploy(ARMS).flow
        async with layers() as layer:
            outcome = await layer.run(flow(), client="acme", run_id="r")
            deploy(ARMS.replace("await left(n)", "pass"))
            while not outcome.status.ended:
                for question in outcome.questions:
                    asked.append(question.text.partition("\n")[0])
                    await layer.answer(question.id, "yes", by="ann")
                outcome = await layer.resume("r")
    assert (outcome.value, asked) == ("yesyes", ["First?", "Second?"])
