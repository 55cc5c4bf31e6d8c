"""Where the time of a read step goes: ``python -m benchmarks.profile_step [N]`` (default 3,000 steps).

First the plain cost per step without the profiler, then cProfile's thirty functions with the most own time. cProfile makes
small Python functions look two to three times as dear as they are, and C code and the disk as dear as they are: read the
shares with that in mind, and compare the plain cost before and after a change.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.samples import CLOCK, reads
from stepseven import Layer

TOP = 30


async def plain(layer: Layer, n: int) -> float:
    """Seconds of *n* read steps in one run."""
    CLOCK.laps.clear()
    (await layer.run(reads(n=n), client="bench")).result()
    return CLOCK.laps[-1] - CLOCK.laps[0]


async def profiled(layer: Layer, n: int) -> cProfile.Profile:
    profile = cProfile.Profile()
    profile.enable()
    (await layer.run(reads(n=n), client="bench")).result()
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


async def main(n: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Layer(f"sqlite:///{folder}/profile.db") as layer:
            await plain(layer, 100)
            times = [await plain(layer, n) for _ in range(5)]
            print(f"without the profiler: {median(times) / n * 1e6:.1f} µs per read step (median of 5 runs of {n})")
            print(table(await profiled(layer, n), n))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000))
