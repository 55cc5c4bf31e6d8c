"""Rows about what a step, a run and a replay cost in one process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from benchmarks import floors
from benchmarks.measure import CLAIMS, EFFECTS, FULL, Goal, Line, Rounds, Scale, rounds
from benchmarks.samples import CLOCK, reads, reads_limited, reads_text, reads_then_asks, writes
from stepseven import Layer

_number = itertools.count()


def new_layer(folder: Path, durability: Literal["effects", "full"] = "effects") -> Layer:
    """A layer with default settings on a fresh file."""
    return Layer(f"sqlite:///{folder}/bench{next(_number)}.db", durability=durability)


async def inside(folder: Path, workflow: Callable[..., Any], n: int) -> float:
    """Seconds that the *n* steps of one run took; admission and end do not count."""
    async with new_layer(folder) as layer:
        (await layer.run(workflow(n=10), client="bench")).result()
        CLOCK.clear()
        (await layer.run(workflow(n=n), client="bench")).result()
        return CLOCK.laps[-1] - CLOCK.laps[0]


def _each(took: Rounds, names: dict[str, int]) -> dict[str, Any]:
    """Microseconds per step of each contestant, for ``--json``."""
    each = {f"{name}_us": round(took.median(name) / n * 1e6, 1) for name, n in names.items()}
    return {**each, "rounds": len(took.took["floor"])}


async def read_step(scale: Scale) -> list[Line]:
    n = scale.pick(1000, 400)
    took = await rounds(
        {
            "floor": lambda: floors.read_steps(scale.folder, n),
            "read": lambda: inside(scale.folder, reads, n),
            "text": lambda: inside(scale.folder, reads_text, n),
            "limited": lambda: inside(scale.folder, reads_limited, n),
        },
        count=scale.pick(9, 3), at_most_s=scale.pick(18, 6),
    )  # fmt: skip
    more = _each(took, dict.fromkeys(("floor", "read", "text", "limited"), n))
    goal = Goal(first=4, final=3)
    return [
        Line(
            row="read-step", what=f"read step{what}", value=took.ratio(name, "floor"), unit="×", goal=goal, durability=EFFECTS,
            floor=f"{took.median(name) / n * 1e6:.0f} µs : NORMAL insert {took.median('floor') / n * 1e6:.0f} µs", more=more,
        )
        for name, what in (("read", ""), ("text", ", result in words"), ("limited", ", with limits declared"))
    ]  # fmt: skip


async def write_step(scale: Scale) -> list[Line]:
    n = scale.pick(400, 150)
    took = await rounds(
        {"floor": lambda: floors.write_steps(scale.folder, n), "write": lambda: inside(scale.folder, writes, n)},
        count=scale.pick(9, 3), at_most_s=scale.pick(18, 5),
    )  # fmt: skip
    us = {name: took.median(name) / n * 1e6 for name in ("floor", "write")}
    return [
        Line(
            row="write-step", what="write step (claim + receipt)", value=took.ratio("write", "floor"), unit="×",
            goal=Goal(first=2, final=1.5), durability=CLAIMS, more=_each(took, {"floor": n, "write": n}),
            floor=f"{us['write']:.0f} µs : two FULL commits {us['floor']:.0f} µs",
        )
    ]  # fmt: skip


async def _steps_at_once(folder: Path, workflow: Callable[..., Any], runs: int, steps: int, durability: Any) -> float:
    """Seconds from the first step to the last of *runs* runs that begin together; admissions and ends do not count."""
    async with new_layer(folder, durability) as layer:
        CLOCK.together = asyncio.Barrier(runs)
        CLOCK.clear()
        try:
            await asyncio.gather(*(layer.run(workflow(n=steps), client=f"c{k % 30}") for k in range(runs)))
        finally:
            CLOCK.together = None
        return max(CLOCK.laps) - min(CLOCK.laps)


async def at_once(scale: Scale) -> list[Line]:
    """Durable steps per second, 100 runs at once against one run: the gain of grouped commits."""
    runs, steps = 100, {"full": scale.pick(15, 5), "write": scale.pick(8, 3)}
    alone = scale.pick(400, 100)
    took = await rounds(
        {
            "floor": lambda: floors.read_steps(scale.folder, alone, "FULL"),
            "one full": lambda: _steps_at_once(scale.folder, reads, 1, alone, "full"),
            "many full": lambda: _steps_at_once(scale.folder, reads, runs, steps["full"], "full"),
            "one write": lambda: _steps_at_once(scale.folder, writes, 1, alone, "effects"),
            "many write": lambda: _steps_at_once(scale.folder, writes, runs, steps["write"], "effects"),
        },
        count=scale.pick(5, 2), at_most_s=scale.pick(16, 6),
    )  # fmt: skip
    floor_us = took.median("floor") / alone * 1e6
    lines = []
    for kind, what, durability in (("full", "every step durable", FULL), ("write", "write steps", CLAIMS)):
        made = runs * steps[kind]
        one, many = took.median(f"one {kind}") / alone * 1e6, took.median(f"many {kind}") / made * 1e6
        lines.append(
            Line(
                row="at-once", what=f"100 runs at once vs one, {what}", goal=Goal(first=3, final=5, more=True), unit="×",
                value=took.ratio(f"one {kind}", f"many {kind}") * made / alone, durability=durability,
                floor=f"{one:.0f} → {many:.0f} µs per step; FULL insert alone {floor_us:.0f} µs",
                more={"one_us": one, "many_us": many, "floor_us": floor_us},
            )
        )  # fmt: skip
    return lines


async def _runs(layer: Layer, workflow: Callable[..., Any], count: int, steps: int, *, at_once: bool) -> float:
    started = perf_counter()
    if at_once:
        await asyncio.gather(*(layer.run(workflow(n=steps), client=f"c{k % 30}") for k in range(count)))
    else:
        for k in range(count):
            await layer.run(workflow(n=steps), client=f"c{k % 30}")
    took = perf_counter() - started
    CLOCK.clear()
    return took


async def ten_steps(scale: Scale) -> list[Line]:
    """Runs of ten read steps per second, from ``layer.run`` to its outcome."""
    few, many, steps = scale.pick(60, 25), scale.pick(200, 100), 10

    async def ours(count: int, *, at_once: bool) -> float:
        async with new_layer(scale.folder) as layer:
            await layer.run(reads(n=1), client="bench")
            if not at_once:
                return await _runs(layer, reads, count, steps, at_once=False)
            return sum([await _runs(layer, reads, 100, steps, at_once=True) for _ in range(count // 100)])

    took = await rounds(
        {
            "floor": lambda: floors.runs(scale.folder, few, steps, at_once=False, sync="NORMAL"),
            "floor many": lambda: floors.runs(scale.folder, many, steps, at_once=True, sync="NORMAL"),
            "one by one": lambda: ours(few, at_once=False),
            "100 at once": lambda: ours(many, at_once=True),
        },
        count=scale.pick(7, 2), at_most_s=scale.pick(18, 6),
    )  # fmt: skip
    return [
        Line(
            row="runs", what=f"10-step runs, {name}", value=count / took.median(name), unit="/s", goal=goal, durability=EFFECTS,
            floor=f"floor NORMAL {count / took.median(floor):.0f}/s; {took.ratio(name, floor):.1f}× its time",
        )
        for name, count, floor, goal in (
            ("one by one", few, "floor", Goal(first=300, final=800, more=True)),
            ("100 at once", many, "floor many", Goal(first=800, final=2000, more=True)),
        )
    ]  # fmt: skip


async def replay(scale: Scale) -> list[Line]:
    """What each recorded step costs when its run is loaded again: the whole of ``resume``, until it parks again."""
    n = scale.pick(5000, 1500)
    path = scale.folder / "replay-floor.db"
    connection = floors.connect(path, "NORMAL")
    await floors.run(connection, "r", n)
    connection.close()
    async with new_layer(scale.folder) as layer:
        outcome = await layer.run(reads_then_asks(n=n), client="bench")

        async def again() -> float:
            started = perf_counter()
            await layer.resume(outcome.run_id)
            return perf_counter() - started

        async def floor() -> float:
            started = perf_counter()
            floors.replay(path)
            return perf_counter() - started

        took = await rounds({"floor": floor, "replay": again}, count=scale.pick(9, 3), at_most_s=scale.pick(15, 4))
    return [
        Line(
            row="replay", what=f"replay, per record of {n:,}", value=took.median("replay") / n * 1e6, unit="µs",
            floor=f"{took.ratio('replay', 'floor'):.1f}× reading and parsing ({took.median('floor') / n * 1e6:.1f} µs)",
        )
    ]  # fmt: skip
