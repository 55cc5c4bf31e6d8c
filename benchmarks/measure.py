"""Lines of the table, the state of the machine, and rounds that take turns."""

from __future__ import annotations

import gc
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

EFFECTS = "OS at once, disk in 0.2 s"
CLAIMS = "disk"
FULL = "disk (durability=full)"
NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Two limits on one number (GOALS): the first release's and the final one."""

    first: float
    final: float
    more: bool = False  #: more is better

    def verdict(self, value: float) -> str:
        for limit, word in ((self.final, "ok (final)"), (self.first, "ok (first)")):
            if value >= limit if self.more else value <= limit:
                return word
        return "missed"


@dataclass(slots=True, kw_only=True)
class Line:
    """One line of the table.

    ``value`` is in ``unit`` (``×`` is a ratio to the floor of the same run); ``floor`` says in words what it was compared
    with; ``more`` holds further numbers for ``--json``.
    """

    row: str
    what: str
    value: float | None = None
    unit: str = ""
    goal: Goal | None = None
    durability: str = NONE
    floor: str = ""
    failed: str = ""  #: why there is no value
    more: dict[str, Any] = field(default_factory=dict)
    fsync_us: float | None = None
    load: float | None = None

    @property
    def verdict(self) -> str:
        if self.failed:
            return "failed"
        if self.value is None:
            return "later"
        return self.goal.verdict(self.value) if self.goal is not None else "no goal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is done: everything a row needs to know about ``--quick``."""

    quick: bool
    folder: Path

    def pick(self, normal: int, quick: int) -> int:
        return quick if self.quick else normal


def fsync_us(folder: Path, times: int = 15) -> float:
    """What the disk takes now to make 4 KB durable: the median, in microseconds."""
    path = folder / "fsync.probe"
    took = []
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            file.write(b"\0" * 4096)
            began = perf_counter()
            os.fdatasync(file.fileno()) if hasattr(os, "fdatasync") else os.fsync(file.fileno())
            took.append(perf_counter() - began)
    path.unlink()
    return median(took) * 1e6


def load_average() -> float:
    return os.getloadavg()[0]


def resident_bytes() -> int:
    """Memory of this process, or 0 where the kernel does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds of each contestant, round by round."""

    took: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        return median(self.took[name])

    def ratio(self, name: str, floor: str) -> float:
        """The median of the rounds' ratios: what slows a whole round down does not count."""
        return median(a / b for a, b in zip(self.took[name], self.took[floor], strict=True))


async def rounds(contestants: Mapping[str, Callable[[], Awaitable[float]]], *, count: int, at_most_s: float) -> Rounds:
    """Let the contestants take turns *count* times, after a round that does not count; fewer times when time is up.

    A contestant gives the seconds that count. Every other round goes backwards, so that nobody always runs after the same.
    """
    took: dict[str, list[float]] = {name: [] for name in contestants}
    began = perf_counter()
    for number in range(count + 1):
        if number > 2 and (perf_counter() - began) / number * (number + 1) > at_most_s:
            break
        order = list(contestants) if number % 2 else list(contestants)[::-1]
        for name in order:
            gc.collect()
            seconds = await contestants[name]()
            if number:
                took[name].append(seconds)
    return Rounds(took)
