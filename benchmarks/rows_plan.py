"""Rows about looking at a run before anything runs again."""

from __future__ import annotations

from time import perf_counter

from benchmarks import floors
from benchmarks.measure import NONE, Goal, Line, Scale, rounds
from benchmarks.rows_steps import new_layer
from benchmarks.samples import reads_then_asks
from stepseven import Layer
from stepseven.decide.plan import Coming, Do, Met, Observed, Price, Standing, plan

GOAL = Goal(first=0.5, final=0.3)
EARLIER = 5  #: earlier runs of the workflow, each as long as is looked at


async def plans(scale: Scale) -> list[Line]:
    """What a resume of a run with 10,000 records would do: the whole look, and the planner alone."""
    n, before = scale.pick(10_000, 3000), scale.pick(2000, 500)
    path = scale.folder / "plan-floor.db"
    connection = floors.connect(path, "NORMAL")
    await floors.run(connection, "r", n)
    connection.close()
    async with new_layer(scale.folder) as layer:
        for number in range(EARLIER):
            await _ended(layer, before, f"e{number}")
        run_id = (await layer.run(reads_then_asks(n=n), client="bench")).run_id

        async def whole() -> float:
            started = perf_counter()
            made = await layer.plan(run_id)
            took = perf_counter() - started
            if made.steps[0].count != n:
                raise AssertionError(f"{made.steps[0].count} of {n} records were seen")
            return took

        async def floor() -> float:
            started = perf_counter()
            floors.replay(path)
            return perf_counter() - started

        async def pure() -> float:
            return _planner(n)

        took = await rounds({"floor": floor, "whole": whole, "pure": pure}, count=scale.pick(9, 3), at_most_s=scale.pick(20, 6))
    told = f"{took.ratio('whole', 'floor'):.1f}× reading and parsing ({took.median('floor'):.2f} s); {EARLIER} earlier runs"
    return [
        Line(row="plan", what=f"plan of {n:,} records", value=took.median("whole"), unit="s", goal=GOAL, floor=told),
        Line(row="plan", what=f"the planner alone, {n:,} calls", value=took.median("pure"), unit="s", goal=GOAL, durability=NONE),
    ]


async def _ended(layer: Layer, n: int, run_id: str) -> None:
    """A run whose question was answered."""
    outcome = await layer.run(reads_then_asks(n=n), client="bench", run_id=run_id)
    await layer.answer(outcome.questions[0].id, "yes", by="bench")
    await layer.resume(run_id)


def _planner(n: int) -> float:
    """Seconds for *n* calls, of which a tenth runs again, each for a reason of its own."""
    met = [
        Met(name="fetch", key=str(i), do=Do.REUSE, usd=0.01, seconds=1.0)
        if i % 10
        else Met(name="fetch", key=str(i), do=Do.RUN, why=f"its file in/{i}.pdf is gone", cost_usd=0.01, tries=2)
        for i in range(n)
    ]
    observed = Observed(met=tuple(met), coming=(Coming(name="post", where="w.py:9", many=True),))
    known = {"fetch": Price(usd=0.01, usd_seen=0.02, seconds=1.0, n=30, calls=float(n))}
    standing = Standing(run_id="r", client_id="bench", workflow="w")
    started = perf_counter()
    plan(standing, {"continue": observed, "refresh": observed}, known)
    return perf_counter() - started
