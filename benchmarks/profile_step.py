"""Where the time of a step goes: ``python -m benchmarks.profile_step [read|write|run|replay] [N]`` (default: 3,000 read steps).

``write``: *N*/3 write steps. ``run``: *N*/10 runs of ten read steps, so that admission, take and end show. ``replay``: a resume
of a run with *N* records, which parks again.

First the plain cost per step without the profiler, then cProfile's thirty functions with the most own time. cProfile makes
small Python functions look two to three times as dear as they are, and C code and the disk as dear as they are: read the
shares with that in mind, and compare the plain cost before and after a change. Other threads are not in it.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.samples import reads, reads_then_asks, writes
from stepseven import Layer

TOP = 30
STEPS_OF_A_RUN = 10


async def work(layer: Layer, what: str, n: int) -> None:
    """*n* steps of the kind *what*."""
    if what == "replay":
        await layer.run(reads_then_asks(n=n), client="bench", run_id=f"replay{n}")  # the first time it does the steps
    elif what == "run":
        for _ in range(n // STEPS_OF_A_RUN):
            (await layer.run(reads(n=STEPS_OF_A_RUN), client="bench")).result()
    else:
        (await layer.run((reads if what == "read" else writes)(n=n), client="bench")).result()


async def plain(layer: Layer, what: str, n: int) -> float:
    """Seconds of *n* steps."""
    began = perf_counter()
    await work(layer, what, n)
    return perf_counter() - began


async def profiled(layer: Layer, what: str, n: int) -> cProfile.Profile:
    profile = cProfile.Profile()
    profile.enable()
    await work(layer, what, n)
    profile.disable()
    return profile


def table(profile: cProfile.Profile, n: int) -> str:
    """The functions with the most own time, as µs and calls per step."""
    stats = pstats.Stats(profile)
    rows = [(own, whole, calls, where) for where, (_, calls, own, whole, _) in stats.stats.items()]  # type: ignore[attr-defined]
    total = sum(row[0] for row in rows)
    lines = [f"{'own µs/step':>11} {'share':>6} {'with callees':>12} {'calls/step':>10}  function"]
    for own, whole, calls, (file, line, name) in sorted(rows, reverse=True)[:TOP]:
        place = f"{'/'.join(Path(file).parts[-2:])}:{line} " if line else ""
        lines.append(f"{own / n * 1e6:11.2f} {own / total:6.1%} {whole / n * 1e6:12.2f} {calls / n:10.2f}  {place}{name}")
    lines.append(f"{total / n * 1e6:11.2f} µs per step in all, under the profiler")
    return "\n".join(lines)


async def main(what: str, n: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Layer(f"sqlite:///{folder}/profile.db") as layer:
            await plain(layer, what, n if what == "replay" else 100)
            times = [await plain(layer, what, n) for _ in range(5)]
            per = {"run": "step of a 10-step run", "replay": "replayed record"}.get(what, f"{what} step")
            print(f"without the profiler: {median(times) / n * 1e6:.1f} µs per {per} (median of 5 times {n})")
            print(table(await profiled(layer, what, n), n))


if __name__ == "__main__":
    kind = sys.argv[1] if len(sys.argv) > 1 else "read"
    if kind not in ("read", "write", "run", "replay"):
        sys.exit(f"profile_step: read, write, run or replay, not {kind!r}")
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 3000
    asyncio.run(main(kind, number // 3 if kind == "write" else number))
