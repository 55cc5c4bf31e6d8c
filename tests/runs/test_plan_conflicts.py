"""A write that may be done already: the plan shows the question before it is asked, and after the answer what was answered."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from stepseven import Cost, Question, Run, step, testing, workflow
from stepseven.decide.plan import Do, Plan
from stepseven.testing import TestLayer

AMOUNT = {"is": 5}
DONE: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _anew() -> None:
    AMOUNT["is"] = 5
    DONE.clear()


@step
async def look_up(what: str) -> int:
    """Other than last time, perhaps."""
    return AMOUNT["is"]


@step(effect="write", key="quarter", cost=Cost(usd=0.01))
async def bill(quarter: str, amount: int) -> str:
    """One key, whatever the amount."""
    DONE["bill"] += 1
    return f"B-{DONE['bill']}"


@step(effect="write", key="quarter, amount", cost=Cost(usd=0.01))
async def remind(quarter: str, amount: int) -> str:
    """Another key for another amount."""
    DONE["remind"] += 1
    return f"M-{DONE['remind']}"


@workflow(name="plan_conflicts.bills")
async def bills(run: Run) -> str:
    """Same key, other values."""
    made = await bill("Q3", await look_up("a"))
    await run.ask("Go on?", options=["yes"])
    return made


@workflow(name="plan_conflicts.reminds")
async def reminds(run: Run) -> str:
    """Other key."""
    made = await remind("Q3", await look_up("a"))
    await run.ask("Go on?", options=["yes"])
    return made


def of(plan: Plan, name: str) -> list[tuple[Do, str]]:
    """What the plan says of one step."""
    return [(s.do, s.why) for s in plan.steps if s.step == name]


async def asked(layer: TestLayer) -> Question:
    """The open question about the conflict."""
    return next(q for q in await layer.questions(run_id="r") if q.kind == "conflict")


WHY = {
    "bill": "Both have one key, so they should be one thing.",
    "remind": "Its key is another one now, because an earlier step gave another result than last time.",
}


@pytest.mark.parametrize("flow, name", [(bills, "bill"), (reminds, "remind")], ids=["same key", "other key"])
@pytest.mark.parametrize("answer", ["same", "second", "stop"])
async def test_a_conflict_that_is_answered_is_planned_as_answered(flow: object, name: str, answer: str) -> None:
    """Asked: a question, and perhaps a second one. Answered: reused, or done, or nothing; and a resume does just that."""
    async with testing.layer() as layer:
        await layer.run(flow(), client="acme", run_id="r")  # type: ignore[operator]
        AMOUNT["is"] = 6
        await layer.resume("r", rerun=["look_up"])
        [question, also] = of(await layer.plan("r"), name)
        assert (question[0], also[0]) == (Do.ASK, Do.RUN)

        about = await asked(layer)
        assert [why for why in WHY.values() if why in about.text] == [WHY[name]]
        await layer.answer(about.id, answer, by="ann")
        plan = await layer.plan("r")
        lines = of(plan, name)
        assert [do for do, _ in lines] == [Do.RUN if answer == "second" else Do.REUSE]
        if answer != "second":
            assert lines[0][1] in ("the same thing, says ann: the first is kept", "ann chose to stop here")
        assert plan.paths[0].questions == 1  # the other one, that is still open

        outcome = await layer.resume("r")
        assert DONE[name] == (2 if answer == "second" else 1)
        assert outcome.status == ("cancelled" if answer == "stop" else "waiting")


@step(effect="write", key="quarter", scope="client")
async def once_for_all(quarter: str, amount: int) -> str:
    """One key for the client, whatever the amount."""
    DONE["once_for_all"] += 1
    return "once"


@workflow(name="plan_conflicts.one")
async def one(run: Run) -> str:
    """One write, from what was looked up."""
    return await bill("Q3", await look_up("a"))


@workflow(name="plan_conflicts.three")
async def three(run: Run) -> int:
    """A map of them."""
    amount = await look_up("a")

    async def billed(quarter: str) -> str:
        return await bill(quarter, amount)

    return len(await run.map(billed, ["Q1", "Q2", "Q3"]))


@workflow(name="plan_conflicts.shared")
async def shared(run: Run) -> str:
    """One that no other values make another one."""
    return await once_for_all("Q3", await look_up("a"))


@workflow(name="plan_conflicts.before")
async def before(run: Run) -> int:
    """One before the fork, and nothing that could be asked about after it."""
    await bill("Q3", 5)
    return await look_up("b")


@pytest.mark.parametrize(
    "flow, promised, asks",
    [(one, 1, 1), (three, None, 3), (shared, 0, 0), (before, 0, 0)],
    ids=["one", "map", "over all runs", "before it"],
)
async def test_a_forks_plan_counts_what_its_root_has_done(flow: Any, promised: int | None, asks: int) -> None:
    """A fork shares its root's receipts: where a step before them gives another result, a person is asked about each."""
    async with testing.layer() as layer:
        assert (await layer.run(flow(), client="acme", run_id="r")).status == "done"
        AMOUNT["is"] = 6
        fork = await layer.fork("r", from_step="look_up")
        [way] = (await layer.plan(fork.run_id)).paths
        await layer.resume(fork.run_id)
        assert len(await layer.questions(run_id=fork.run_id)) == asks
        assert (way.questions, way.questions_at_most) == (0, promised)


async def test_a_forks_plan_counts_them_when_a_step_before_it_runs_again() -> None:
    """The root's receipt fits what stands in for what runs again: it may not fit what that really gives."""
    async with testing.layer() as layer:
        await layer.run(one(), client="acme", run_id="r")
        fork = await layer.fork("r", from_step="bill")
        AMOUNT["is"] = 6
        [way] = (await layer.plan(fork.run_id, rerun=["look_up"])).paths
        await layer.resume(fork.run_id, rerun=["look_up"])
        assert len(await layer.questions(run_id=fork.run_id)) == 1
        assert (way.questions, way.questions_at_most) == (0, 1)
