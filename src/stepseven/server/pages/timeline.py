"""A run as one time line: where each step's bar stands.

A wait of two days would leave nothing to be seen of a step of two seconds, so every interval counts by its logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide import _phrases as say
from stepseven.server.documents import RunView
from stepseven.server.pages.frame import duration
from stepseven.store.base import Row

WIDTH, LEFT, ROW, BAR, TOP = 960.0, 168.0, 24.0, 12.0, 24.0  # of the drawing, in its own units
LANES = 40  #: step names that are drawn; the table below has all
_NARROWEST = 3.0
_INTERNAL = ("run.", "client.")
_NAME = 24  # characters of a step's name beside its lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar: where, what kind (``run``, ``reused``, ``waits``, ``begun``), and what is said of it."""

    x: float
    width: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One step's line: its bars, and marks of tries that failed."""

    name: str
    label: str
    y: float
    bars: tuple[Bar, ...]
    marks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A time below the drawing."""

    x: float
    label: str
    last: bool  # it stands at the edge


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The drawing."""

    height: float
    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    more: int


class _Scale:
    """Moments to places: between two neighbouring moments as far as the logarithm of what lies between."""

    def __init__(self, moments: Iterable[int]) -> None:
        self.moments = sorted(set(moments))
        self.places = [0.0]
        for before, after in zip(self.moments, self.moments[1:], strict=False):
            self.places.append(self.places[-1] + math.log1p((after - before) / 50_000))
        whole = self.places[-1] or 1.0
        self.at = {m: LEFT + p / whole * (WIDTH - LEFT - 8) for m, p in zip(self.moments, self.places, strict=True)}

    def __getitem__(self, us: int) -> float:
        return self.at[us]


def line(view: RunView, now_us: int) -> Line | None:
    """The time line of a run; ``None``: nothing has happened in it yet."""
    steps = [s for s in view.steps if not s["name"].startswith(_INTERNAL)]
    tries = [a for a in view.attempts if not a["name"].startswith(_INTERNAL) and a["outcome"] != "interrupted"]
    asked = [(q.step or "question", q.created_us, q.answered_us or (now_us if q.status == "open" else q.created_us), q)
             for q in view.questions]  # fmt: skip
    if not steps and not tries and not asked:
        return None
    end_us = view.row["ended_us"] or now_us
    moments = [view.row["created_us"], end_us]
    for row in (*steps, *tries):
        moments += [row["started_us"], row["ended_us"] or end_us]
    for _, start, end, _ in asked:
        moments += [start, max(start, end)]
    scale = _Scale(moments)
    resumed_us = max((r["created_us"] for r in view.recoveries), default=None)
    names = list(dict.fromkeys([*(s["name"] for s in steps), *(a["name"] for a in tries), *(name for name, *_ in asked)]))
    lanes = [
        _lane(n, name, scale, [s for s in steps if s["name"] == name], [a for a in tries if a["name"] == name],
              [q for q in asked if q[0] == name], resumed_us, end_us)
        for n, name in enumerate(names[:LANES])
    ]  # fmt: skip
    ticks = _ticks(scale, view.row["created_us"])
    return Line(height=TOP + ROW * len(lanes) + 24, lanes=tuple(lanes), ticks=ticks, more=max(0, len(names) - LANES))


def _lane(  # noqa: PLR0913, PLR0917 - what is drawn in it
    n: int, name: str, scale: _Scale, steps: Sequence[Row], tries: Sequence[Row], asked: Sequence[Any], resumed_us: int | None,
    end_us: int,
) -> Lane:  # fmt: skip
    bars = [_bar(scale, s["started_us"], s["ended_us"] or end_us, _kind(s, resumed_us), _said(s)) for s in steps[-200:]]
    for _, start, end, question in asked:
        by = f", answered by {question.answered_by}" if question.answered_by else ""
        bars.append(_bar(scale, start, max(start, end), "waits", f"asked: {question.text.splitlines()[0][:160]}{by}"))
    marks = tuple((scale[a["ended_us"] or a["started_us"]], f"{a['approach'] or 'as written'}: {a['reason'] or ''}"[:200])
                  for a in tries if a["outcome"] in ("failed", "unknown", "deferred"))  # fmt: skip
    label = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    return Lane(name=name, label=label, y=TOP + ROW * n, bars=tuple(bars), marks=marks[-100:])


def _bar(scale: _Scale, start: int, end: int, kind: str, title: str) -> Bar:
    x = scale[start]
    return Bar(x=round(x, 1), width=round(max(_NARROWEST, scale[end] - x), 1), kind=kind, title=title)


def _kind(step: Row, resumed_us: int | None) -> str:
    if step["state"] == "begun":
        return "begun"
    if step["state"] in ("failed", "skipped"):
        return "skipped"
    return "reused" if resumed_us is not None and (step["ended_us"] or 0) < resumed_us else "run"


def _said(step: Row) -> str:
    took = duration(((step["ended_us"] or step["started_us"]) - step["started_us"]) / 1e6)
    parts = [f"{step['name']}: {step['summary'] or step['state']}", took]
    if step["usd"]:
        parts.append(say.money(step["usd"] / 1e6))
    if step["approach"]:
        parts.append(step["approach"])
    return " · ".join(parts)


def _ticks(scale: _Scale, from_us: int) -> tuple[Tick, ...]:
    """At most seven times, far enough from one another to be read."""
    ticks: list[Tick] = []
    for moment in scale.moments:
        x = scale[moment]
        if not ticks or x - ticks[-1].x > 130:  # noqa: PLR2004 - a label's width
            seconds = (moment - from_us) / 1e6
            ticks.append(Tick(x=round(x, 1), label="start" if seconds <= 0 else f"+{duration(seconds)}", last=x > WIDTH - 48))
    return tuple(ticks[:7])
