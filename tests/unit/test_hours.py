"""When people work: zones, nights, weekends, and clocks that jump."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepseven.decide.hours import Hours, after, is_open, next_day, next_open, parse

VIENNA, NEW_YORK, LORD_HOWE = ZoneInfo("Europe/Vienna"), ZoneInfo("America/New_York"), ZoneInfo("Australia/Lord_Howe")
HOUR = 3600 * 1_000_000
TEXTS = (
    "always", "mon-fri 09:00-17:00", "mon-fri 09:00-12:00,13:00-17:30; sat 10:00-12:00", "fri-sun 22:00-06:00",
    "sun 01:30-03:30", "mon,wed 00:00-24:00", "sat-mon 00:00-24:00", "sun 02:15-02:45; thu 09:00-09:15",
)  # fmt: skip


def us(text: str, zone: ZoneInfo = VIENNA, fold: int = 0) -> int:
    """A moment by a zone's wall clock."""
    return round(datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp() * 1e6)


def hours(text: str, zone: ZoneInfo = VIENNA, away: int | None = None) -> Hours:
    """Somebody's hours."""
    return Hours(spans=parse(text), zone=zone, away_until_us=away)


def by_the_wall(given_hours: Hours, at_us: int) -> bool:
    """Whether they work, by nothing but the wall clock."""
    wall = datetime.fromtimestamp(at_us / 1e6, given_hours.zone)
    minute = wall.hour * 60 + wall.minute
    return not given_hours.spans or any(
        (wall.weekday() == day and first <= minute < last) or ((wall.weekday() - 1) % 7 == day and first <= minute + 1440 < last)
        for day, first, last in given_hours.spans
    )


def steady(zone: ZoneInfo, at_us: int) -> bool:
    """Whether no clock is changed on that day."""
    offsets = {datetime.fromtimestamp(at_us / 1e6 + 3600 * h, zone).utcoffset() for h in range(-26, 27)}
    return len(offsets) == 1


moments = st.integers(us("2026-01-01T00:00"), us("2027-12-31T00:00"))
all_hours = st.builds(hours, st.sampled_from(TEXTS), st.sampled_from([VIENNA, NEW_YORK, LORD_HOWE, ZoneInfo("Asia/Kolkata")]))


@given(all_hours, moments)
def test_somebody_works_when_their_wall_clock_says_so(theirs: Hours, at_us: int):
    """On days without a change of clocks a moment is open if, and only if, the wall clock lies in a span."""
    if steady(theirs.zone, at_us):
        assert is_open(theirs, at_us) == by_the_wall(theirs, at_us)


@given(all_hours, moments)
def test_the_next_moment_is_open_and_none_before_it_is(theirs: Hours, at_us: int):
    """``next_open`` is open itself, at or after the moment; half-way there nobody works."""
    found = next_open(theirs, at_us)
    assert found >= at_us
    assert is_open(theirs, found)
    assert found == at_us or not is_open(theirs, (found + at_us) // 2)


@given(all_hours, moments, st.integers(0, 30 * HOUR), st.integers(0, 30 * HOUR))
def test_working_time_adds_up(theirs: Hours, at_us: int, first: int, second: int):
    """So much time, and then so much more, ends when the sum ends; no time takes less than it is long."""
    half = after(theirs, at_us, first)
    assert half >= at_us + first
    assert after(theirs, half, second) == after(theirs, at_us, first + second) or first == 0 or second == 0
    assert after(theirs, at_us, 0) == next_open(theirs, at_us)


@given(all_hours, moments)
def test_the_next_day_is_a_later_one(theirs: Hours, at_us: int):
    """A reminder of the next day comes on a later date of their zone, when they work."""
    found = next_day(theirs, at_us)
    dates = [datetime.fromtimestamp(x / 1e6, theirs.zone).date() for x in (at_us, found)]
    assert dates[1] > dates[0]
    assert is_open(theirs, found)


def test_a_question_on_friday_afternoon_waits_over_the_weekend():
    """Two working hours after Friday 16:50 it is Monday 10:50."""
    theirs = hours("mon-fri 09:00-17:00")
    assert after(theirs, us("2026-03-13T16:50"), 2 * HOUR) == us("2026-03-16T10:50")
    assert next_open(theirs, us("2026-03-13T17:00")) == us("2026-03-16T09:00")


def test_the_clock_goes_forward():
    """In spring the skipped hour is no time: 01:30-03:30 has one hour, and what lies in it alone is not open that day."""
    theirs = hours("sun 01:30-03:30")
    assert after(theirs, us("2026-03-29T00:00"), HOUR) == us("2026-03-29T03:30")
    inside = hours("sun 02:15-02:45")
    assert next_open(inside, us("2026-03-29T00:00")) == us("2026-04-05T02:15")
    from_inside = hours("sun 02:15-04:00")
    assert next_open(from_inside, us("2026-03-29T00:00")) == us("2026-03-29T03:00")


def test_the_clock_goes_back():
    """In autumn the hour that comes twice counts twice."""
    theirs = hours("sun 01:30-03:30")
    assert after(theirs, us("2026-10-25T00:00"), 3 * HOUR) == us("2026-10-25T03:30")


def test_a_night_shift_is_one_span():
    """22:00-06:00 of a Friday is open on Saturday at five, and not on Saturday at seven."""
    theirs = hours("fri 22:00-06:00")
    assert is_open(theirs, us("2026-03-14T05:00"))
    assert not is_open(theirs, us("2026-03-14T07:00"))
    assert after(theirs, us("2026-03-13T12:00"), 8 * HOUR) == us("2026-03-14T06:00")


def test_who_is_away_is_asked_when_they_are_back():
    """Away until Wednesday noon: nothing before it counts, and it goes on within their hours."""
    theirs = hours("mon-fri 09:00-17:00", away=us("2026-03-18T18:00"))
    assert next_open(theirs, us("2026-03-16T10:00")) == us("2026-03-19T09:00")
    always = hours("always", away=us("2026-03-18T12:00"))
    assert next_open(always, us("2026-03-16T10:00")) == us("2026-03-18T12:00")


def test_two_people_in_two_zones():
    """Nine o'clock is when their own clock says so."""
    assert next_open(hours("mon-fri 09:00-17:00", NEW_YORK), us("2026-03-16T09:00")) == us("2026-03-16T09:00", NEW_YORK)


@pytest.mark.parametrize(
    "text,told",
    [
        ("", "name no time"), ("mon-fri", "not days and times"), ("monday 09:00-17:00", "is no day"), ("mon 9-17", "not days"),
        ("mon 09:00-09:00", "no span"), ("mon 25:00-26:00", "there is no 25:00"), ("mon 09:61-10:00", "there is no 09:61"),
        ("mon-xyz 09:00-10:00", "is no day"), ("mon 24:00-02:00", "no span"),
    ],
)  # fmt: skip
def test_hours_that_are_none_are_refused_with_their_form(text: str, told: str):
    """What is wrong, in one sentence."""
    with pytest.raises(ValueError, match=told):
        parse(text)


def test_days_may_go_round_the_week():
    """fri-mon are four days."""
    assert [day for day, _, _ in parse("fri-mon 09:00-10:00")] == [0, 4, 5, 6]


def test_always_has_no_end():
    """Around the clock, working time is time."""
    now = round(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1e6)
    assert after(hours("always"), now, 5 * HOUR) == now + timedelta(hours=5) // timedelta(microseconds=1)
