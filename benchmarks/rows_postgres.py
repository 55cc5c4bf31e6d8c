"""What a step, a run, a resume cost on PostgreSQL. The server is private (``benchmarks/server.py``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any, Literal

from benchmarks.children import Child
from benchmarks.measure import Goal, Line, Scale, rounds
from benchmarks.rows_growth import payload_bytes
from benchmarks.samples import CLOCK, reads, writes
from stepseven import Layer

LAZY = "server's OS at once, disk in 0.6 s"
DISK = "server's disk"
ALL = "server's disk (durability=full)"


async def inside(workflow: Callable[..., Any], n: int) -> float:
    """Seconds that the *n* steps of one run took; admission and end do not count."""
    from benchmarks import server

    url = server.database()
    try:
        async with Layer(url) as layer:
            (await layer.run(workflow(n=10), client="bench")).result()
            CLOCK.clear()
            (await layer.run(workflow(n=n), client="bench")).result()
            return CLOCK.laps[-1] - CLOCK.laps[0]
    finally:
        server.drop(url)


async def steps(scale: Scale) -> list[Line]:
    """A read step and a write step, each beside what it cannot do without."""
    from benchmarks import server

    n = {"read": scale.pick(400, 150), "write": scale.pick(200, 80)}
    took = await rounds(
        {
            "read floor": lambda: server.read_steps(n["read"]),
            "read": lambda: inside(reads, n["read"]),
            "write floor": lambda: server.write_steps(n["write"]),
            "write": lambda: inside(writes, n["write"]),
        },
        count=scale.pick(11, 3), at_most_s=scale.pick(30, 8),
    )  # fmt: skip
    us = {name: took.median(name) / n[name.partition(" ")[0]] * 1e6 for name in took.took}
    return [
        Line(
            row="pg-steps", what=what, value=took.ratio(name, f"{name} floor"), unit="×", goal=goal, durability=durability,
            floor=f"{us[name]:.0f} µs : {floor} {us[f'{name} floor']:.0f} µs", more={**us, "took": took.took},
        )
        for name, what, floor, durability, goal in (
            ("read", "read step, Postgres", "insert, synchronous_commit=off", LAZY, Goal(first=2.5, final=2)),
            ("write", "write step, Postgres (claim + receipt)", "two inserts, it on", DISK, Goal(first=2, final=1.6)),
        )
    ]  # fmt: skip


async def _at_once(workflow: Callable[..., Any], runs: int, n: int, durability: Literal["effects", "full"]) -> float:
    """Seconds from the first step to the last of *runs* runs that begin together."""
    from benchmarks import server

    url = server.database()
    try:
        async with Layer(url, durability=durability) as layer:
            await layer.run(workflow(n=3), client="bench")
            CLOCK.together = asyncio.Barrier(runs)
            CLOCK.clear()
            try:
                await asyncio.gather(*(layer.run(workflow(n=n), client=f"c{k % 30}") for k in range(runs)))
            finally:
                CLOCK.together = None
            return max(CLOCK.laps) - min(CLOCK.laps)
    finally:
        server.drop(url)


async def at_once(scale: Scale) -> list[Line]:
    """Durable steps per second, 100 runs at once against one run."""
    from benchmarks import server

    runs, many, alone = 100, {"full": scale.pick(15, 5), "write": scale.pick(8, 3)}, scale.pick(200, 80)
    took = await rounds(
        {
            "floor": lambda: server.read_steps(alone, lazy=False),
            "one full": lambda: _at_once(reads, 1, alone, "full"),
            "many full": lambda: _at_once(reads, runs, many["full"], "full"),
            "one write": lambda: _at_once(writes, 1, alone, "effects"),
            "many write": lambda: _at_once(writes, runs, many["write"], "effects"),
        },
        count=scale.pick(7, 2), at_most_s=scale.pick(30, 10),
    )  # fmt: skip
    floor_us = took.median("floor") / alone * 1e6
    lines = []
    for kind, what, durability in (("full", "every step durable", ALL), ("write", "write steps", DISK)):
        made = runs * many[kind]
        one_us, many_us = took.median(f"one {kind}") / alone * 1e6, took.median(f"many {kind}") / made * 1e6
        lines.append(
            Line(
                row="pg-at-once", what=f"100 runs at once vs one, Postgres, {what}", goal=Goal(first=3, final=5, more=True),
                value=took.ratio(f"one {kind}", f"many {kind}") * made / alone, unit="×", durability=durability,
                floor=f"{one_us:.0f} → {many_us:.0f} µs per step; insert alone {floor_us:.0f} µs",
                more={"one_us": one_us, "many_us": many_us, "floor_us": floor_us, "took": took.took},
            )
        )  # fmt: skip
    return lines


async def ten_steps(scale: Scale) -> list[Line]:
    """Runs of ten read steps per second, from ``layer.run`` to its outcome."""
    from benchmarks import server

    few, many = scale.pick(30, 15), scale.pick(100, 100)

    async def ours(count: int, *, together: bool) -> float:
        url = server.database()
        try:
            async with Layer(url) as layer:
                await layer.run(reads(n=1), client="bench")
                started = perf_counter()
                if together:
                    await asyncio.gather(*(layer.run(reads(n=10), client=f"c{k % 30}") for k in range(count)))
                else:
                    for k in range(count):
                        await layer.run(reads(n=10), client=f"c{k % 30}")
                return perf_counter() - started
        finally:
            server.drop(url)

    took = await rounds(
        {
            "floor": lambda: server.runs(few, 10, at_once=False),
            "floor many": lambda: server.runs(many, 10, at_once=True),
            "one by one": lambda: ours(few, together=False),
            "100 at once": lambda: ours(many, together=True),
        },
        count=scale.pick(5, 2), at_most_s=scale.pick(16, 6),
    )  # fmt: skip
    CLOCK.clear()
    return [
        Line(
            row="pg-runs", what=f"10-step runs, Postgres, {name}", value=count / took.median(name), unit="/s", durability=LAZY,
            floor=f"floor {count / took.median(floor):.0f}/s; {took.ratio(name, floor):.1f}× its time",
        )
        for name, count, floor in (("one by one", few, "floor"), ("100 at once", many, "floor many"))
    ]  # fmt: skip


async def resume(scale: Scale) -> list[Line]:
    """A process dies after 10,000 steps; how long until a fresh one begins the next?"""
    from benchmarks import server

    n = scale.pick(10_000, 2000)
    url, floor_url = server.database(), server.database()
    server.fill(floor_url, n)
    took: dict[str, list[tuple[float, float]]] = {"floor": [], "ours": []}
    with Child("run_and_hang", url, "r", n) as child:
        child.hear()
        child.kill()
    for number in range(scale.pick(5, 3)):  # each on a copy: a run that breaks off thrice asks a person
        for who, role, *arguments in (("ours", "resume", server.copy(url), "r"), ("floor", "floor_resume_postgres", floor_url)):
            with Child(role, *arguments) as child:
                said = child.hear()
                if number:  # the first one compiles
                    took[who].append((said["at"] - child.started, said["cpu"]))
    (ours, ours_cpu), (floor, floor_cpu) = (map(median, zip(*took[who], strict=True)) for who in ("ours", "floor"))
    return [
        Line(
            row="pg-resume", what=f"process start to the next new step, Postgres, {n:,} done", value=ours, unit="s",
            goal=Goal(first=0.9, final=0.6), durability=LAZY, more=took,
            floor=f"{ours / floor:.1f}× Python + read and parse ({floor:.2f} s); CPU {ours_cpu:.2f} : {floor_cpu:.2f} s",
        )
    ]  # fmt: skip


async def growth(scale: Scale) -> list[Line]:
    """What a read step takes in the database, tables and indexes together."""
    from benchmarks import server

    n, url = scale.pick(5000, 1500), server.database()
    async with Layer(url) as layer:
        (await layer.run(reads(n=1), client="bench")).result()
        before = server.step_bytes(url)
        (await layer.run(reads(n=n), client="bench")).result()
    each, payload = (server.step_bytes(url) - before) / n, payload_bytes(n)
    floor = await server.floor_bytes(n)
    return [
        Line(
            row="pg-growth", what=f"bytes per read step beyond its payload, Postgres, N = {n:,}", value=each - payload, unit="B",
            goal=Goal(first=420, final=390), durability=LAZY,
            floor=f"{each:.0f} B = payload {payload:.0f} + {each - payload:.0f}; floor {floor:.0f} B",
        )
    ]  # fmt: skip
