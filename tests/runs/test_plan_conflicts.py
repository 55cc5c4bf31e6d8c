"""A write that may be done already: the plan shows the question before it is asked, and after the answer what was answered."""

from __future__ import annotations

from collections import Counter

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
