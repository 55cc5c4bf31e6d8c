"""What steps cost in earlier runs: medians, the ninth tenth, how often, and what is not known."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepseven.decide.prices import Call, Earlier, child, p90, prices, with_own

CALLS = st.builds(Call, st.none() | st.integers(0, 10**9), st.none() | st.integers(0, 10**12))
RUNS = st.lists(
    st.builds(
        lambda calls, done, cut: Earlier(calls=calls, counts={n: len(c) for n, c in calls.items()}, done=done, cut=cut),
        st.dictionaries(st.sampled_from("abc"), st.lists(CALLS, min_size=1, max_size=4)), st.booleans(), st.booleans(),
    ),
    max_size=8,
)  # fmt: skip


def run(done: bool = True, cut: bool = False, **calls: list[Call]) -> Earlier:
    """A run with these calls."""
    return Earlier(calls=calls, counts={name: len(each) for name, each in calls.items()}, done=done, cut=cut)


def test_a_price_is_the_median_of_every_call_with_its_spread() -> None:
    """Median, ninth tenth and most in dollars and seconds, and in how many runs the step was seen."""
    made = [run(draft=[Call(n * 100_000, n * 1_000_000)]) for n in range(1, 11)]
    found = prices(made)["draft"]
    assert (found.usd, found.usd_p90, found.usd_seen) == (0.55, 0.9, 1.0)
    assert (found.seconds, found.seconds_p90, found.n) == (5.5, 9.0, 10)
    assert found.usd_most is None


def test_how_often_is_counted_over_all_runs_that_came_to_their_end() -> None:
    """A step that only every third run calls is expected in none; one that a run calls four times counts so."""
    made = [run(a=[Call(1, 1)]), run(a=[Call(1, 1)]), run(a=[Call(1, 1)] * 4, rare=[Call(1, 1)])]
    found = prices(made)
    assert (found["a"].calls, found["a"].calls_most) == (1, 4)
    assert (found["rare"].calls, found["rare"].calls_most, found["rare"].n) == (0, 1, 1)


def test_a_run_that_broke_off_tells_what_a_call_costs_and_not_how_often() -> None:
    """Prices come from every run that ended, counts only from those that are done."""
    found = prices([run(done=False, a=[Call(7, 7)])])["a"]
    assert (found.usd, found.n) == (7e-6, 1)
    assert found.calls is None
    assert found.calls_most is None


def test_of_a_run_that_is_too_long_the_count_is_the_least() -> None:
    """What was not looked at does not count as "not called", and nothing is said about the most."""
    found = prices([run(a=[Call(1, 1)] * 2), run(cut=True, b=[Call(1, 1)] * 9)])
    assert (found["a"].calls, found["a"].calls_most) == (2, None)
    assert (found["b"].calls, found["b"].calls_most) == (4.5, None)


def test_tokens_are_told_like_money() -> None:
    """Median and ninth tenth; a call of which nobody knows is left out."""
    found = prices([run(a=[Call(1, 1, n) for n in range(10)]), run(a=[Call(1, 1)])])["a"]
    assert (found.tokens, found.tokens_p90) == (4.5, 8)


def test_a_runs_own_calls_tell_of_steps_that_no_earlier_run_has() -> None:
    """What a call costs, not how often it comes; of a step that others have, theirs count."""
    found = with_own(prices([run(a=[Call(7, 7)])]), run(a=[Call(9, 9)], b=[Call(2_000_000, 1)] * 3, done=False))
    assert (found["a"].usd, found["a"].n, found["a"].here) == (7e-6, 1, False)
    assert (found["b"].usd, found["b"].usd_seen, found["b"].n, found["b"].calls, found["b"].here) == (2, 2, 0, None, True)


def test_without_a_figure_nothing_is_said() -> None:
    """No cost and no time on record: unknown, not free."""
    found = prices([run(a=[Call(None, None)])])["a"]
    assert (found.usd, found.usd_p90, found.usd_seen, found.seconds, found.seconds_p90, found.n) == (None,) * 5 + (1,)


def test_there_is_no_price_without_a_run() -> None:
    """Nothing seen, nothing said."""
    assert prices([]) == {}


def test_runs_that_were_started_have_a_name_of_their_own() -> None:
    """``run.start`` says which workflow."""
    assert child("renewal") == "run.start/renewal"


@pytest.mark.parametrize("count, rank", [(1, 1), (2, 2), (9, 9), (10, 9), (11, 10), (20, 18), (100, 90)])
def test_the_ninth_tenth_is_one_of_the_values(count: int, rank: int) -> None:
    """Nine in ten do not exceed it."""
    assert p90(range(1, count + 1)) == rank


@given(RUNS)
def test_prices_agree_with_the_plain_definition(runs: list[Earlier]) -> None:
    """For any runs: the median of all calls, no figure over the most, n as many runs as have the step."""
    for name, price in prices(runs).items():
        uusd = [c.uusd for r in runs for c in r.calls.get(name, ()) if c.uusd is not None]
        assert price.n == sum(name in r.calls for r in runs)
        assert price.usd == (median(uusd) / 1e6 if uusd else None)
        if uusd:
            assert price.usd is not None
            assert price.usd_p90 is not None
            assert price.usd_seen is not None
            assert min(uusd) / 1e6 <= price.usd <= price.usd_seen
            assert price.usd <= price.usd_p90 + 1e-12 <= price.usd_seen + 1e-9
