"""When a circuit opens, who may try, and when it is looked at again. Pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepseven.decide import circuit
from stepseven.decide.circuit import Circuit, Pass, State

S = 1_000_000
HALF = 0.5  # no spread


def failing(*at: tuple[int, int]) -> Circuit:
    """After failures at these seconds, each of a run."""
    c = Circuit(name="x")
    for second, run in at:
        c = circuit.failed(c, run, second * S, trial=False, chance=HALF)
    return c


def test_five_failures_of_two_runs_within_a_minute_open_it() -> None:
    """Not four, not of one run, not over more than a minute."""
    assert failing((0, 1), (1, 1), (2, 2), (3, 1)).state is State.CLOSED
    assert failing(*((n, 1) for n in range(9))).state is State.CLOSED
    assert failing((0, 1), (20, 2), (40, 1), (59, 1), (61, 2)).state is State.CLOSED
    opened = failing((0, 1), (1, 1), (2, 1), (3, 1), (4, 2))
    assert (opened.state, opened.opened_us, opened.next_us) == (State.OPEN, 4 * S, 14 * S)


def test_many_failures_of_one_run_do_not_hide_another_run() -> None:
    """One run that fails all the time, and one failure of another."""
    assert failing(*((n, 1) for n in range(40)), (40, 2)).state is State.OPEN


def test_one_is_the_trial_and_the_others_wait() -> None:
    """Until the look is due nobody may; then one may, nobody else before it is given up; after a crash it is it again."""
    c = failing((0, 1), (0, 1), (0, 1), (0, 1), (0, 2))
    assert circuit.passes(c, 1, 9 * S) is Pass.WAIT
    assert circuit.passes(c, 1, 10 * S) is Pass.TRY
    c = circuit.tried(c, 1, 10 * S)
    assert circuit.passes(c, 2, 69 * S) is Pass.WAIT
    assert circuit.passes(c, 1, 11 * S, held=True) is Pass.WAIT
    assert circuit.passes(c, 1, 11 * S) is Pass.TRY
    assert circuit.passes(c, 2, 70 * S) is Pass.TRY
    assert circuit.look_us(c) == 70 * S
    assert circuit.passes(circuit.closed(c, 12 * S), 2, 12 * S) is Pass.FREE


def test_looks_come_less_and_less_often() -> None:
    """10 s, 20 s, 40 s … 5 min; what others find meanwhile changes nothing; a trial that tried nothing does not count."""
    c = failing((0, 1), (0, 1), (0, 1), (0, 1), (0, 2))
    pauses = []
    for _ in range(7):
        now = c.next_us or 0
        c = circuit.tried(c, 1, now)
        assert circuit.failed(c, 2, now, trial=False, chance=HALF) == c
        given_back = circuit.given_back(c, now)
        assert (given_back.looks, given_back.next_us) == (c.looks - 1, now)
        c = circuit.failed(c, 1, now, trial=True, chance=HALF)
        pauses.append(((c.next_us or 0) - now) // S)
    assert pauses == [20, 40, 80, 160, 300, 300, 300]
    assert c.opened_us == 0
    assert [circuit.asks(c, 0, at * S) for at in (1799, 1800)] == [False, True]
    assert [circuit.asks(c, 600 * S, at * S) for at in (2399, 2400)] == [False, True]  # since a person decided


@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_a_pause_is_a_fifth_more_or_less_than_what_people_are_told(looks: int, chance: float) -> None:
    """However often it was looked, and never more than a few minutes."""
    told = circuit.every_us(looks)
    assert 0.8 * told <= circuit.pause_us(looks, chance=chance) <= 1.2 * told <= 360 * S
