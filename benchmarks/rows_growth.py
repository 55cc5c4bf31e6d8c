"""Rows about one long run: what its steps take on the disk, and whether the last ones are dearer than the first."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

from pydantic_core import to_json

from benchmarks import floors
from benchmarks.measure import EFFECTS, Goal, Line, Scale
from benchmarks.payload import as_dict, message
from benchmarks.rows_steps import new_layer
from benchmarks.samples import CLOCK, reads
from stepseven import Layer

LAP = 100  # steps: a lap is what a median is taken over, so that one busy moment does not decide
FLOOR_LAP = 40  # inserts


@dataclass(frozen=True, slots=True, kw_only=True)
class Laps:
    """Seconds of processor of each lap, and of the floor's inserts right after it."""

    steps: list[float]
    floor: list[float]

    def at(self, first: int, last: int) -> tuple[float, float]:
        """Of the laps *first* to *last*: microseconds per step, and how many inserts of the floor that is."""
        each = median(self.steps[first:last]) / LAP
        ratios = [a / LAP / (b / FLOOR_LAP) for a, b in zip(self.steps[first:last], self.floor[first:last], strict=True)]
        return each * 1e6, median(ratios)


def file_bytes(path: Path | str) -> int:
    """The size of a closed database with its log written back."""
    connection = sqlite3.connect(path, timeout=5)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return Path(path).stat().st_size


def payload_bytes(n: int) -> float:
    """Inputs and result of one step as JSON, on average over the first *n*."""
    stride = max(1, n // 5000)
    sizes = [len(to_json({"i": i})) + len(to_json(message(i))) for i in range(0, n, stride)]
    return sum(sizes) / len(sizes)


async def grow(scale: Scale, n: int) -> tuple[float, Laps]:
    """A run of *n* read steps on a fresh file: bytes per step on the disk, and its laps.

    Between the laps a few inserts of the floor: what else the machine does changes within half a minute.
    """
    layer: Layer = new_layer(scale.folder)
    path = layer.url.removeprefix("sqlite:///")
    async with layer:
        (await layer.run(reads(n=1), client="bench")).result()
    empty = file_bytes(path)
    CLOCK.clear()
    with floors.fresh(scale.folder, "NORMAL") as connection:
        text = json.dumps(as_dict(message(1)))

        def floor() -> None:
            for i in range(FLOOR_LAP):
                connection.execute(floors.INSERT, ("r", i, text))

        CLOCK.between = floor
        try:
            async with Layer(layer.url) as layer:
                (await layer.run(reads(n=n, laps=n // LAP), client="bench")).result()
        finally:
            CLOCK.between = None
    parts = [b - a for a, b in pairwise(CLOCK.cpu)]
    return (file_bytes(path) - empty) / n, Laps(steps=parts[::2], floor=parts[1::2])


async def floor_bytes(scale: Scale, n: int) -> float:
    path = scale.folder / f"floor-bytes{n}.db"
    connection = floors.connect(path, "NORMAL")
    await floors.run(connection, "r", n)
    connection.close()
    return file_bytes(path) / n


async def _affordable(scale: Scale) -> int:
    """100,000 steps, or what this machine makes in the time the two rows have together."""
    began = perf_counter()
    await grow(scale, 1000)
    pace = (perf_counter() - began) / 1000
    wanted = scale.pick(100_000, 10_000)
    return min(wanted, int(scale.pick(34, 8) / pace) // 1000 * 1000)


async def growth(scale: Scale) -> list[Line]:
    largest = await _affordable(scale)
    goal = Goal(first=420, final=390)
    lines: list[Line] = []
    per_step: list[float] = []
    laps = Laps(steps=[], floor=[])
    for n in sorted({1000, largest // 10 // 100 * 100 or 1000, largest}):
        each, laps = await grow(scale, n)
        payload = payload_bytes(n)
        per_step.append(each - payload)
        lines.append(
            Line(
                row="growth", what=f"bytes per read step beyond its payload, N = {n:,}", value=each - payload, unit="B",
                goal=goal, durability=EFFECTS, floor=f"{each:.0f} B = payload {payload:.0f} + {each - payload:.0f}",
                more={"bytes_per_step": each, "payload": payload, "n": n},
            )
        )  # fmt: skip
    lines[-1].floor += f"; floor {await floor_bytes(scale, 5000):.0f} B"
    spread = max(per_step) - min(per_step)
    lines.append(
        Line(
            row="growth", what="is that flat? largest less smallest", value=spread, unit="B", durability=EFFECTS,
            floor=f"over N = 1,000 to {largest:,}",
        )
    )  # fmt: skip
    window = 1000 // LAP
    count = len(laps.steps)
    (first_us, first), (last_us, last) = laps.at(1, window + 1), laps.at(count - window, count)
    lines.append(
        Line(
            row="growth", what=f"last 1,000 of {largest:,} steps vs first 1,000", value=last / first, unit="×",
            goal=Goal(first=1.1, final=1.1), durability=EFFECTS,
            floor=f"{last:.2f} : {first:.2f} × floor; {last_us:.0f} : {first_us:.0f} µs of processor; medians of ten laps",
            more={"thousands_ratio_to_floor": [round(laps.at(k, k + window)[1], 2) for k in range(0, count, window)]},
        )
    )  # fmt: skip
    return lines
