"""``python -m benchmarks [--quick] [--json] [ROW…]``: the goals for speed, each beside its floor of the same run."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from benchmarks import rows_growth, rows_plan, rows_postgres, rows_processes, rows_steps, rows_workers
from benchmarks.children import ROOT
from benchmarks.measure import Goal, Line, Scale, fsync_us, load_average

ROWS: dict[str, Callable[[Scale], Awaitable[list[Line]]]] = {
    "read-step": rows_steps.read_step,
    "write-step": rows_steps.write_step,
    "at-once": rows_steps.at_once,
    "processes": rows_processes.processes,
    "runs": rows_steps.ten_steps,
    "resume": rows_processes.resume,
    "replay": rows_steps.replay,
    "plan": rows_plan.plans,
    "growth": rows_growth.growth,
    "idle": rows_processes.idle,
    "takeover": rows_processes.takeover,
    "import": rows_processes.imports,
    "pg-steps": rows_postgres.steps,
    "pg-at-once": rows_postgres.at_once,
    "pg-runs": rows_postgres.ten_steps,
    "pg-resume": rows_postgres.resume,
    "pg-growth": rows_postgres.growth,
    "workers": rows_workers.many,
    "takes": rows_workers.takes,
    "idle-worker": rows_workers.idle,
    "takeovers": rows_workers.takeover,
}

LATER = (
    "mover; review",
    "pages and lists with 100,000 runs",
    "begin + complete over HTTP",
    "Temporal engine vs embedded",
)


def shown(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}".strip() if unit != "×" else f"{value:.2f}×"


def limits(goal: Goal | None, unit: str) -> tuple[str, str]:
    if goal is None:
        return "–", "–"
    sign = "≥" if goal.more else "≤"
    ending = unit if unit in ("×", "%") else f" {unit}"
    return f"{sign} {goal.first:,g}{ending}", f"{sign} {goal.final:,g}{ending}"


def table(lines: Iterable[Line]) -> str:
    """Plain text, columns as wide as what is in them."""
    head = ("row", "measured", "first goal", "final goal", "", "compared with", "durability", "fsync now", "load")
    cells = [head]
    for line in lines:
        fsync = f"{line.fsync_us:.0f} µs" if line.fsync_us is not None else "–"
        load = f"{line.load:.1f}" if line.load is not None else "–"
        cells.append((line.what, shown(line.value, line.unit), *limits(line.goal, line.unit), line.verdict,
                      line.failed.split("\n", 1)[0][:100] or line.floor,
                      line.durability, fsync, load))  # fmt: skip
    wide = [max(len(row[k]) for row in cells) for k in range(len(head))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip() for row in cells]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def as_json(line: Line) -> dict[str, object]:
    return {**asdict(line), "verdict": line.verdict}


async def measure(names: Iterable[str], *, quick: bool) -> list[Line]:
    lines: list[Line] = []
    for name in names:
        print(f"measuring {name} …", end="", file=sys.stderr, flush=True)
        began = perf_counter()
        with tempfile.TemporaryDirectory(prefix="stepseven-bench-") as folder:
            scale = Scale(quick=quick, folder=Path(folder))
            gc.collect()
            before = fsync_us(scale.folder)
            try:
                made = await ROWS[name](scale)
            except Exception as error:  # noqa: BLE001 - the other rows are still wanted; the exit code says that one failed
                made = [Line(row=name, what=f"{name}: could not be measured", failed=f"{type(error).__name__}: {error}")]
            after = fsync_us(scale.folder)
        for line in made:
            line.fsync_us, line.load = min(before, after), load_average()
            line.more["took_s"] = round(perf_counter() - began, 1)
        print(f" {perf_counter() - began:.0f} s", file=sys.stderr)
        lines += made
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Speed, each figure beside its floor of the same run."
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {' '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="the whole table within a minute; its figures are rougher")
    parser.add_argument("--json", action="store_true", help="JSON instead of the table")
    told = parser.parse_args()
    unknown = set(told.rows) - set(ROWS)
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {' '.join(ROWS)}")
    with tempfile.TemporaryDirectory(prefix="stepseven-bench-") as folder:
        # Children find byte code in place, as an installed package has it, whatever this process was told.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        subprocess.run([sys.executable, "-c", "import benchmarks.samples, sqlite3, subprocess"], check=True, cwd=ROOT)
        lines = asyncio.run(measure(told.rows or ROWS, quick=told.quick))
    if not told.rows:
        lines += [Line(row="later", what=what) for what in LATER]
    machine = {
        "python": platform.python_version(), "sqlite": sqlite3.sqlite_version, "cores": os.cpu_count(),
        "system": platform.system(), "quick": told.quick,
    }  # fmt: skip
    if told.json:
        print(json.dumps({"machine": machine, "lines": [as_json(line) for line in lines]}, indent=2))
    else:
        print("Ratios are to a floor of the same run, which the machine's mood moves as well; times alone say little.")
        print(", ".join(f"{name} {value}" for name, value in machine.items()))
        print()
        print(table(lines))
    sys.exit(any(line.failed for line in lines))


if __name__ == "__main__":
    main()
