"""Which limits are reached on a way to done, and which may be. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stepseven._dataclass import dataclass
from stepseven.decide import _phrases as say
from stepseven.decide._ways import LIMIT, is_no_step
from stepseven.decide.plan import Do, Path, PlannedStep, Standing

OF_RUN, OF_DAY = " left of the run's limit", " left of the client's day"
NEED_UNKNOWN = "how much is needed is not known"
_BOUNDED = ("usd", "client_usd_per_day", "steps")
_NEAR = 1e-9  # sums of floats are not exact


@dataclass(frozen=True, slots=True)
class _Need:
    """What a way needs of a limit, in its unit.

    Attributes:
        least: that much is expected of what is known.
        usual: expected in all; ``None``: of some of it that is not known.
        high: what it needs if each call needs what nine in ten do not exceed; most: what it can need, as far as anything says.
    """

    least: float
    usual: float | None
    high: float | None
    most: float | None


def with_limits(path: Path, left: Mapping[str, float]) -> Path:
    """Add what is asked where a limit is reached, or may be: one question about each, if it is raised far enough.

    Money and steps are enough only if their upper bound is. Time and tokens have none: of them it counts what nine in ten calls
    do not exceed. Time is that of one call after the other, and some may run at once: that limit is never certain to be reached.

    Args:
        path: a way to done.
        left: what is left of each limit, in its unit, by the names of ``Limits``.
    """
    calls = _calls(path)
    lines = (_reached(what, room, _need(path, calls, what)) for what, room in left.items()) if calls else ()
    asked = [line for line in lines if line is not None]
    most = path.questions_at_most
    return replace(
        path, steps=(*path.steps, *asked), questions=path.questions + sum(s.count for s in asked),
        questions_at_most=None if most is None else most + len(asked),
    )  # fmt: skip


def enough(paths: Sequence[Path], run: Standing) -> list[str]:
    """How far a limit that is reached, or asked about already, has to be raised so that nothing of a plan reaches it again.

    Only of money and steps can that be said, and only where their upper bound is known.
    """
    told = []
    for what, used in run.used.items():
        needs = [_need(path, calls, what).most for path in paths if (calls := _calls(path))]
        known = [need for need in needs if need is not None]
        room = run.left.get(what)
        if what not in _BOUNDED or not known or len(known) < len(needs) or (room is not None and max(known) <= room + _NEAR):
            continue
        whose = "the client's day" if what == "client_usd_per_day" else "the run's limit"
        top = say.quantity(what, _upwards(what, used + max(known)))
        told.append(f"{whose[0].upper()}{whose[1:]} has to be {top} to let all of this through, every try counted.")
    return told


def _upwards(what: str, of: float) -> float:
    """Rounded as it is written, and never down."""
    return math.ceil(round(of * 100, 6)) / 100 if "usd" in what else math.ceil(round(of, 6))


def _calls(path: Path) -> list[PlannedStep]:
    """What may run on a way."""
    work = [s for s in path.steps if s.do is not Do.REUSE or s.maybe]
    return [s for s in work if not is_no_step(s.step) and (s.do is not Do.ASK or s.effect == "irreversible")]


def _reached(what: str, room: float, need: _Need) -> PlannedStep | None:
    """The line about one limit; ``None``: there is room enough."""
    if need.most is not None and need.most <= room + _NEAR:
        return None
    sure = need.least > room + _NEAR

    def amount(of: float) -> str:
        return say.quantity(what, of)

    if sure:
        why = f"about {amount(need.least)} needed" if need.usual is not None else f"more than {amount(need.least)} needed"
    elif need.usual is None or need.most is None:
        why = NEED_UNKNOWN
    elif need.high is not None and need.high > room + _NEAR:
        why = f"{amount(need.high)} may well be needed"
    else:
        why = f"{amount(need.most)} needed at most"
    certain = sure and what != "seconds"
    return PlannedStep(
        step=LIMIT, do=Do.ASK, why=why, count=int(certain), about=int(certain), maybe=not certain, new=True, usd=0.0,
        usd_at_most=0.0, seconds=0.0, tokens=0.0,
        summary=f"{amount(max(0.0, room))}{OF_DAY if what == 'client_usd_per_day' else OF_RUN}",
    )  # fmt: skip


def _need(path: Path, calls: Sequence[PlannedStep], what: str) -> _Need:
    """What a way needs of a limit."""
    if what == "steps":
        counts = [s.about for s in calls]
        usual = None if None in counts else sum(c or 0 for c in counts)
        most = None if any(s.at_most is None for s in calls) else float(sum(s.at_most or 0 for s in calls))
        return _Need(sum(c or 0 for c in counts), usual, usual, most)
    name = "usd" if "usd" in what else what
    usual, high = getattr(path, name), getattr(path, f"{name}_p90")
    least = sum(getattr(s, name) or 0 for s in path.steps if s.do is not Do.REUSE)
    return _Need(least, usual, high, path.usd_at_most if name == "usd" else high)
