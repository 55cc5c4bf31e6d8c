"""Limits on the way: which are reached, which may be, and what is not known of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepseven.decide.plan import Coming, Do, Met, Observed, Path, PlannedStep, Price, Standing, plan

RUN = Standing(run_id="r1", client_id="acme", workflow="renewal", status="queued")
PAGE = Price(
    usd=0.1, usd_p90=0.3, usd_seen=0.3, seconds=10, seconds_p90=60, tokens=1_000, tokens_p90=9_000, n=5, calls=2, calls_most=2
)  # fmt: skip


def way(*met: Met, left: dict[str, float], price: Price | None = PAGE, coming: tuple[Coming, ...] = ()) -> Path:
    """What a run with that much left of its limits comes to."""
    seen = Observed(met=met, coming=coming)
    return plan(replace(RUN, left=left), {"continue": seen}, {} if price is None else {"page": price}).paths[0]


def page(key: str = "1", cost: float | None = 0.4) -> Met:
    """One call that runs."""
    return Met(name="page", key=key, do=Do.RUN, why="not run yet", cost_usd=cost)


def limits(path: Path) -> list[PlannedStep]:
    """The lines about limits."""
    return [s for s in path.steps if s.step == "limit"]


@pytest.mark.parametrize(
    "left, summary, why, certain",
    [
        ({"usd": 0.15}, "$0.15 left of the run's limit", "about $0.20 needed", True),
        ({"usd": 0.5}, "$0.50 left of the run's limit", "$0.60 may well be needed", False),
        ({"usd": 0.7}, "$0.70 left of the run's limit", "$0.80 needed at most", False),
        ({"client_usd_per_day": 0.15}, "$0.15 left of the client's day", "about $0.20 needed", True),
        ({"steps": 1}, "1 step left of the run's limit", "about 2 steps needed", True),
        ({"tokens": 1_500}, "1,500 tokens left of the run's limit", "about 2,000 tokens needed", True),
        ({"tokens": 5_000}, "5,000 tokens left of the run's limit", "18,000 tokens may well be needed", False),
        ({"seconds": 15}, "15 s left of the run's limit", "about 20 s needed", False),
        ({"seconds": 90}, "90 s left of the run's limit", "2 min may well be needed", False),
    ],
)
def test_a_limit_that_is_or_may_be_reached_is_asked_about(left: dict[str, float], summary: str, why: str, certain: bool) -> None:
    """What is left, what is needed; expected if what is usual goes over it. Time may pass at once, so that is never certain."""
    path = way(page(), page("2"), left=left)
    [line] = limits(path)
    assert (line.do, line.summary, line.why, line.count, line.maybe) == (Do.ASK, summary, why, int(certain), not certain)
    assert (path.questions, path.questions_at_most) == (int(certain), 1)


@pytest.mark.parametrize("left", [{"usd": 0.8}, {"steps": 2}, {"tokens": 18_000}, {"seconds": 120}, {"client_usd_per_day": 0.8}])
def test_a_limit_with_room_is_not_told(left: dict[str, float]) -> None:
    """Money and steps: for the upper bound. Time and tokens: for what nine in ten calls do not exceed."""
    assert limits(way(page(), page("2"), left=left)) == []


def test_what_is_needed_and_not_known_is_said() -> None:
    """No earlier run, nothing declared: each limit may be reached, and how much is needed nobody knows."""
    path = way(page(cost=None), left={"usd": 5, "tokens": 100, "seconds": 60}, price=None)
    assert [(s.why, s.maybe) for s in limits(path)] == [("how much is needed is not known", True)] * 3
    assert (path.questions, path.questions_at_most) == (0, 3)


def test_what_is_known_of_a_sum_may_be_enough_to_reach_a_limit() -> None:
    """The dear step alone goes over it, whatever the other costs."""
    other = Met(name="other", do=Do.RUN, why="not run yet")
    path = way(page(), other, left={"usd": 0.05})
    assert [(s.why, s.count) for s in limits(path)] == [("more than $0.10 needed", 1)]


def test_a_loop_of_unknown_length_may_reach_every_limit() -> None:
    """How often it runs nobody knows."""
    path = way(left={"steps": 10}, price=None, coming=(Coming(name="page", where="w.py:1", many=True),))
    assert [(s.why, s.maybe) for s in limits(path)] == [("how much is needed is not known", True)]


def test_a_declared_time_counts_where_none_was_seen() -> None:
    """As it does for the limit itself."""
    slow = replace(page(), cost_seconds=50)
    assert [s.why for s in limits(way(slow, left={"seconds": 40}, price=None))] == ["about 50 s needed"]
    assert limits(way(slow, left={"seconds": 60}, price=None)) == []


def test_where_nothing_runs_no_limit_is_reached() -> None:
    """Everything is on record."""
    assert limits(way(Met(name="page", do=Do.REUSE), left={"usd": 0, "steps": 0, "tokens": 0, "seconds": 0})) == []
