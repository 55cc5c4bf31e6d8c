"""What a step cost and took in earlier runs: from samples to a price. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from statistics import median

from stepseven._dataclass import dataclass
from stepseven.decide.plan import Price

CHILD = "run.start"


def child(workflow: str) -> str:
    """The name under which the runs of *workflow* that were started by a run have their price."""
    return f"{CHILD}/{workflow}"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a step in an earlier run: micro-USD and tokens with its failed tries, and microseconds; ``None``: not known."""

    uusd: int | None
    us: int | None
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """One earlier run.

    Attributes:
        calls: step name -> its calls, as far as they were looked at.
        counts: step name -> how many calls it had; of a pruned run that is told without the calls.
        done: it came to its end, so it tells how often a step is called.
        cut: it has more records than were looked at: a count is the least, and a step that is missing may be there.
    """

    calls: Mapping[str, Sequence[Call]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    done: bool = True
    cut: bool = False


def prices(runs: Iterable[Earlier]) -> dict[str, Price]:
    """The price of every step that was seen.

    How often a step is called is counted over all runs that came to their end, those without it too; what a call costs, over
    every call that was looked at. A call without a cost on record cost nothing, as far as anybody was told.
    """
    earlier = list(runs)
    names = dict.fromkeys(name for run in earlier for name in (*run.calls, *run.counts))
    return {name: _price(name, earlier) for name in names}


def with_own(found: Mapping[str, Price], own: Earlier) -> dict[str, Price]:
    """The prices, and of steps that no earlier run has those of a run's *own* calls: not how often they are called."""
    mine = prices([replace(own, done=False)])
    here = {name: replace(price, n=0, here=True) for name, price in mine.items() if own.calls.get(name)}
    return {**here, **found}


def _price(name: str, earlier: Sequence[Earlier]) -> Price:
    calls = [call for run in earlier for call in run.calls.get(name, ())]
    uusd = sorted(call.uusd for call in calls if call.uusd is not None)
    us = sorted(call.us for call in calls if call.us is not None)
    tokens = sorted(call.tokens for call in calls if call.tokens is not None)
    counts = [run.counts.get(name, 0) for run in earlier if run.done and (not run.cut or name in run.counts)]
    cut = any(run.done and run.cut for run in earlier)
    return Price(
        usd=median(uusd) / 1e6 if uusd else None,
        usd_p90=p90(uusd) / 1e6 if uusd else None,
        usd_seen=uusd[-1] / 1e6 if uusd else None,
        seconds=median(us) / 1e6 if us else None,
        seconds_p90=p90(us) / 1e6 if us else None,
        tokens=float(median(tokens)) if tokens else None,
        tokens_p90=float(p90(tokens)) if tokens else None,
        n=sum(bool(run.calls.get(name) or run.counts.get(name)) for run in earlier),
        calls=float(median(counts)) if counts else None,
        calls_most=max(counts) if counts and not cut else None,
    )


def p90(values: Sequence[int]) -> int:
    """The ninth tenth of sorted *values*: the least of them that nine in ten do not exceed (nearest rank)."""
    return values[math.ceil(0.9 * len(values)) - 1]
