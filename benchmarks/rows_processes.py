"""Rows that need processes of their own: killed ones, fresh ones, idle ones, several on one file."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import floors
from benchmarks.children import ROOT, Child
from benchmarks.measure import CLAIMS, EFFECTS, Goal, Line, Scale
from benchmarks.samples import CLOCK
from stepseven import Layer

PROCESSES = 8


def _contest(make: Callable[[int], Child]) -> list[dict[str, Any]]:
    """Start the processes, let them begin together, and collect what they say."""
    children = [make(k) for k in range(PROCESSES)]
    try:
        for child in children:
            child.hear()
        for child in children:
            child.go()
        return [child.hear() for child in children]
    finally:
        for child in children:
            child.kill()


async def processes(scale: Scale) -> list[Line]:
    """Eight processes read and write through one file for a few seconds; who waited longest for a commit?"""
    seconds = scale.pick(4, 2)
    url = f"sqlite:///{scale.folder}/contended.db"
    floor_path = scale.folder / "contended-floor.db"
    floors.connect(floor_path, "FULL").close()
    async with Layer(url):
        pass
    raw = [w for said in _contest(lambda _: Child("floor_contend", floor_path, seconds)) for w in said["commit"]]
    told = _contest(lambda k: Child("contend", url, f"c{k}", seconds))
    lines = []
    for kind, what, durability in (("claim", "claims", CLAIMS), ("receipt", "receipts", CLAIMS), ("read", "reads", EFFECTS)):
        waits = sorted(w for said in told for w in said[kind])
        lines.append(
            Line(
                row="processes", what=f"8 processes on one file, longest wait of {what}", value=waits[-1] * 1e3, unit="ms",
                goal=Goal(first=250, final=100), durability=durability,
                floor=f"of {len(waits):,}: median {median(waits) * 1e3:.1f}, p99 {waits[int(len(waits) * 0.99)] * 1e3:.0f} ms; "
                f"SQLite's own busy handler: longest {max(raw) * 1e3:.0f} ms of {len(raw):,}",
                more={"steps_by_process": [len(said[kind]) for said in told]},
            )
        )  # fmt: skip
    return lines


def copy_database(source: Path, target: Path) -> None:
    """A database as a killed process left it: the file and its log."""
    for tail in ("", "-wal"):
        if Path(f"{source}{tail}").exists():
            shutil.copyfile(f"{source}{tail}", f"{target}{tail}")


def _until_heard(child: Child) -> tuple[float, float]:
    """Seconds from the start of the process to what it says, and seconds of processor it took for that."""
    with child:
        said = child.hear()
        return said["at"] - child.started, said["cpu"]


async def resume(scale: Scale) -> list[Line]:
    """A process dies after 10,000 steps; how long until a fresh one begins the next?"""
    n = scale.pick(10_000, 3000)
    dead, floor_path = scale.folder / "dead.db", scale.folder / "dead-floor.db"
    with Child("run_and_hang", f"sqlite:///{dead}", "r", n) as child:
        child.hear()
        child.kill()
    connection = floors.connect(floor_path, "NORMAL")
    await floors.run(connection, "r", n)
    connection.close()
    took: dict[str, list[tuple[float, float]]] = {"floor": [], "ours": []}
    _until_heard(Child("floor_resume", floor_path))  # the first one compiles
    for number in range(scale.pick(4, 2)):
        copy = scale.folder / f"resumed{number}.db"
        copy_database(dead, copy)
        took["ours"].append(_until_heard(Child("resume", f"sqlite:///{copy}", "r")))
        took["floor"].append(_until_heard(Child("floor_resume", floor_path)))
    (ours, ours_cpu), (floor, floor_cpu) = (map(median, zip(*took[who], strict=True)) for who in ("ours", "floor"))
    return [
        Line(
            row="resume", what=f"process start to the next new step, {n:,} done", value=ours, unit="s", durability=EFFECTS,
            goal=Goal(first=0.9, final=0.6), more=took,
            floor=f"{ours / floor:.1f}× Python + read and parse ({floor:.2f} s); CPU {ours_cpu:.2f} : {floor_cpu:.2f} s",
        )
    ]  # fmt: skip


async def takeover(scale: Scale) -> list[Line]:
    """A process on this machine is killed in a step; a live one resumes the run. From the call to the next step."""
    url, seconds = f"sqlite:///{scale.folder}/takeover.db", []
    arrived: list[float] = []
    CLOCK.arrived = lambda _: arrived.append(perf_counter())
    try:
        async with Layer(url) as layer:
            for number in range(scale.pick(5, 2)):
                with Child("run_and_hang", url, f"r{number}", 100) as child:
                    child.hear()
                    child.kill()
                arrived.clear()
                called = perf_counter()
                (await layer.resume(f"r{number}")).result()
                seconds.append(arrived[0] - called)
    finally:
        CLOCK.arrived = None
    return [
        Line(
            row="takeover", what="takeover after kill -9, same host, 100 done", value=max(seconds), unit="s", durability=EFFECTS,
            goal=Goal(first=1, final=1), floor=f"longest of {len(seconds)}; median {median(seconds) * 1e3:.0f} ms",
        )
    ]  # fmt: skip


async def idle(scale: Scale) -> list[Line]:
    wanted = scale.pick(10_000, 1500)
    url = f"sqlite:///{scale.folder}/idle.db"
    with Child("idle", url, wanted, scale.pick(6, 2), scale.pick(4, 3)) as child:
        said = child.hear()
    runs = f"{said['asked']:,} parked + {said['started']:,} started runs"
    return [
        Line(
            row="idle", what=f"idle, {runs}: CPU", value=said["cpu"] * 100, unit="%", durability=EFFECTS,
            goal=Goal(first=1, final=1), floor=f"of a core; parked {said['parked_per_s']:.0f} runs/s",
        ),
        Line(
            row="idle", what=f"idle, {runs}: memory each", value=said["bytes_each"], unit="B", durability=EFFECTS,
            goal=Goal(first=1024, final=1024), floor="growth of resident memory",
        ),
    ]  # fmt: skip


_IMPORT = "import time; t = time.process_time(); import {what}; print(time.process_time() - t)"


def _import_ms(what: str) -> float:
    code = _IMPORT.format(what=what)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return float(said.stdout) * 1e3


async def imports(scale: Scale) -> list[Line]:
    _import_ms("stepseven")  # the first one compiles
    ours, floor = [], []
    for _ in range(scale.pick(7, 3)):
        ours.append(_import_ms("stepseven"))
        floor.append(_import_ms("asyncio, sqlite3, json"))
    return [
        Line(
            row="import", what="import stepseven, CPU", value=median(ours), unit="ms", goal=Goal(first=250, final=180),
            floor=f"{statistics.fmean(ours):.0f} on average; asyncio, sqlite3 and json {median(floor):.0f} ms", more={"ms": ours},
        )
    ]  # fmt: skip
