"""What a plan says of what moved, of changed code and of runs that are started is what people are asked, and what happens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepseven import Cost, Plan, Run, step, testing, workflow
from stepseven.decide.plan import Do
from tests.runs.deployed import Deploys, deploys
from tests.runs.tools import url
from tests.runs.worldly import layers

LONG = timedelta(days=2)


@step(name="plan_tells_quote", cost=Cost(usd=0.1))
async def quote(discount: str) -> str:
    """Made of a short value, by the workflow's own code."""
    return f"quote with {discount}"


@step(name="plan_tells_seats")
async def price_seats(seats: int) -> int:
    """Made of a number."""
    return seats * 10


@workflow(name="plan_tells_offer")
async def offer(run: Run) -> str:
    """Two facts, each read by another step."""
    made = await quote(run.client.get("discount"))
    total = await price_seats(run.client.get("seats"))
    return str(await run.approve("Send it?", about={"quote": made, "total": total}))


@pytest.mark.parametrize("moved", [{"discount": "no"}, {"seats": 15}, {"discount": "no", "seats": 15}])
async def test_a_plan_names_what_depends_on_what_moved_as_the_question_does(moved: dict[str, Any]) -> None:
    """Also where the value is too short to be told from others: the same list in both, whichever comes first."""
    async with layers() as layer:
        acme = layer.client("acme")
        acme.set("discount", "yes")
        acme.set("seats", 12)
        await layer.run(offer(), client="acme", run_id="r")
        layer.clock.advance(LONG)
        for key, value in moved.items():
            acme.set(key, value)
        before = await layer.plan("r")
        asked = next(q for q in (await layer.resume("r")).questions if q.kind == "drift")
        after = await layer.plan("r")
    told = {one["key"]: tuple(one["depends"]) for one in asked.context["drift"]}
    assert told == {key: told[key] for key in moved}
    assert all(any(who.startswith("plan_tells") for who in who_) for who_ in told.values())
    assert {d.key: d.depends for d in before.drift} == told
    assert {d.key: d.depends for d in after.drift} == told
    said = " ".join(str(before).split())
    assert "depends on it" in said or "depend on it" in said


OLD = """
    @step
    async def plan_tells_pull(n: int) -> int:
        return n

    @step
    async def plan_tells_sum(n: int) -> str:
        return f"sum {n}"

    @step(effect="write", key="n")
    async def plan_tells_post(n: int) -> str:
        return f"R-{n}"

    @workflow(name="plan_tells_code")
    async def code(run: Run) -> str:
        a = await plan_tells_pull(1)
        b = await plan_tells_sum(a)
        c = await plan_tells_post(1)
        return await run.ask("Go on?", options=["yes"])
"""


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """The module's versions."""
    with deploys(tmp_path / "code") as made:
        yield made


async def test_a_question_about_the_code_that_stands_changes_no_reason(deploy: Deploys, tmp_path: Path) -> None:
    """The plan before the code question and the one while it is open say the same of every step, and why."""

    def lines(plan: Plan) -> list[tuple[str, Do, str]]:
        return [(s.step, s.do, s.why) for s in plan.steps if s.step not in ("run.code", "run.ask")]

    async with testing.layer(url(tmp_path)) as layer:
        await layer.run(deploy(OLD).code(), client="acme", run_id="r")
        layer.clock.advance(LONG)
        deploy(OLD.replace("pull(1)", "pull(2)").replace("plan_tells_post", "plan_tells_put"))
        before = await layer.plan("r")
        outcome = await layer.resume("r")
        assert "code" in [q.kind for q in outcome.questions]
        after = await layer.plan("r")
    assert lines(after) == lines(before)
    assert ("plan_tells_pull", Do.RUN, "not run yet") not in lines(after)
    assert ("plan_tells_put", Do.RUN, "unless it is “plan_tells_post”, renamed") in lines(after)
    assert "plan_tells_sum" in [name for name, *_ in lines(after)]


@step(name="plan_tells_read", cost=Cost(usd=0.05), attempts=2)
async def read(q: str) -> str:
    """What a child reads."""
    return q


@step(name="plan_tells_write", effect="write", key="q", cost=Cost(usd=0.07), attempts=1)
async def write(q: str) -> str:
    """What a child does."""
    return q


@step(name="plan_tells_dark")
async def dark(q: str) -> str:
    """Declares nothing."""
    return q


@workflow(name="plan_tells_report")
async def report(run: Run, q: str) -> str:
    """A child whose steps all say what they cost."""
    return await write(await read(q))


@workflow(name="plan_tells_folder")
async def folder(run: Run, q: str) -> str:
    """A child with a child."""
    return await read(await run.start(report(q=q)))


@workflow(name="plan_tells_again")
async def again(run: Run, n: int) -> int:
    """A run that starts runs of its own kind."""
    await read("x")
    return n if n == 0 else await run.start(again(n=n - 1))


@workflow(name="plan_tells_unknown")
async def unknown(run: Run, q: str) -> str:
    """A child with a step of which nobody knows what it costs."""
    return await dark(await read(q))


@workflow(name="plan_tells_above")
async def above(run: Run, what: str) -> str:
    """Starts one of them, after a question."""
    await run.ask("Go on?", options=["yes", "no"])
    if what == "report":
        return await run.start(report(q="Q3"))
    return "nothing"


@workflow(name="plan_tells_above_folder")
async def above_folder(run: Run) -> str:
    """Starts one that starts one."""
    await run.ask("Go on?", options=["yes", "no"])
    return await run.start(folder(q="Q3"))


@workflow(name="plan_tells_above_again")
async def above_again(run: Run) -> int:
    """Starts one that starts itself."""
    await run.ask("Go on?", options=["yes", "no"])
    return await run.start(again(n=2))


@workflow(name="plan_tells_above_unknown")
async def above_unknown(run: Run) -> str:
    """Starts one with a step of unknown cost."""
    await run.ask("Go on?", options=["yes", "no"])
    return await run.start(unknown(q="Q3"))


BOUNDS = [
    (above(what="report"), 0.12, 0.17), (above_folder(), 0.17, 0.27), (above_again(), None, None),
    (above_unknown(), None, None),
]  # fmt: skip


@pytest.mark.parametrize("call, usual, most", BOUNDS)
async def test_a_run_that_is_started_is_bounded_by_its_own_source(call: Any, usual: float | None, most: float | None) -> None:
    """Also one that it starts in turn; what starts itself, or has a step that says nothing, has no bound, and is named."""
    async with layers() as layer:
        await layer.run(call, client="acme", run_id="r")
        path = (await layer.plan("r")).paths[0]
    assert path.usd_at_most == most
    if most is not None:
        assert (path.unbounded, path.unknown) == ((), ())
        [line] = [s for s in path.steps if s.step == "run.start"]
        assert line.usd_each == pytest.approx(usual)
    else:
        assert path.unbounded == ("run.start",)
        assert "the run of plan_tells_" in path.unknown[0]
