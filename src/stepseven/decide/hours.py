"""When a person can be asked: their working hours, in their zone, on a wall clock that jumps twice a year.

Hours are read from text such as ``mon-fri 09:00-17:00``. A span begins and ends when the wall clock of the zone says so. What the
clock skips in spring is no time at all; an hour that it shows twice in autumn counts twice, if it lies in the span.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo

from stepseven._dataclass import dataclass

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
ALWAYS = "always"
_DAY_MIN = 24 * 60
_LOOK_DAYS = 15  # a span recurs every week; one may lie in the hour that a zone skips, so two weeks
_FORM = "say it like 'mon-fri 09:00-17:00', several with ';' between them, or 'always'"
_SPAN = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """When somebody works.

    Attributes:
        spans: (weekday, first minute, last minute) with 0 = Monday; a span over midnight ends after minute 1440. Empty: always.
        zone: whose wall clock it is.
        away_until_us: nothing before this moment counts, microseconds since the epoch.
    """

    spans: tuple[tuple[int, int, int], ...]
    zone: tzinfo
    away_until_us: int | None = None


def parse(text: str) -> tuple[tuple[int, int, int], ...]:
    """The spans of hours that are given as text.

    Args:
        text: ``mon-fri 09:00-17:00``; ``mon,wed 09:00-12:00,13:00-17:00; fri 22:00-06:00`` (that one over midnight); ``always``.

    Returns:
        As ``Hours.spans`` has them; none for ``always``.

    Raises:
        ValueError: it is nothing of the kind; the message says how it is written.
    """
    if text.strip().lower() == ALWAYS:
        return ()
    spans = [span for part in text.lower().split(";") if part.strip() for span in _part(part.strip(), text)]
    if not spans:
        raise ValueError(f"hours {text!r} name no time: {_FORM}")
    return tuple(sorted(set(spans)))


def _part(part: str, whole: str) -> Iterator[tuple[int, int, int]]:
    days, _, times = part.partition(" ")
    for day in _days(days, whole):
        for time in times.replace(" ", "").split(","):
            found = _SPAN.fullmatch(time)
            if found is None:
                raise ValueError(f"hours {whole!r}: {part!r} is not days and times: {_FORM}")
            first, last = _minute(found[1], found[2], whole), _minute(found[3], found[4], whole)
            if first in {last, _DAY_MIN}:
                raise ValueError(f"hours {whole!r}: {time!r} is no span of time: {_FORM}")
            yield day, first, last if last > first else last + _DAY_MIN


def _minute(hour: str, minute: str, whole: str) -> int:
    at = int(hour) * 60 + int(minute)
    if int(minute) > 59 or at > _DAY_MIN:  # noqa: PLR2004 - minutes of an hour
        raise ValueError(f"hours {whole!r}: there is no {hour}:{minute}: a day is 00:00-24:00")
    return at


def _days(text: str, whole: str) -> Iterator[int]:
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(f"hours {whole!r}: {piece!r} is no day: the days are {', '.join(DAYS)}")
        begin, end = DAYS.index(first), DAYS.index(last if dash else first)
        yield from (day % 7 for day in range(begin, end + 1 if end >= begin else end + 8))


def next_open(hours: Hours, at_us: int) -> int:
    """The first moment at or after *at_us* at which they work, microseconds since the epoch."""
    return next(_open(hours, at_us))[0]


def is_open(hours: Hours, at_us: int) -> bool:
    """Whether they work at *at_us*."""
    return next_open(hours, at_us) == at_us


def after(hours: Hours, at_us: int, work_us: int) -> int:
    """The moment at which *work_us* of their working time have gone by since *at_us*.

    Args:
        hours: whose.
        at_us: since when, microseconds since the epoch.
        work_us: how much of their time, 0 and more.

    Returns:
        Microseconds since the epoch; with 0 the next moment at which they work.
    """
    left = work_us
    for begin, end in _open(hours, at_us):
        if end is None or end - begin >= left:
            return begin + left
        left -= end - begin
    raise AssertionError("working hours never end")  # pragma: no cover - the generator is endless


def next_day(hours: Hours, at_us: int) -> int:
    """When they begin to work on a later day (of their zone) than *at_us* is."""
    here = _local(hours.zone, at_us).date() + timedelta(days=1)
    return next_open(hours, _moment(hours.zone, here, 0, last=False))


def _open(hours: Hours, at_us: int) -> Iterator[tuple[int, int | None]]:
    """The spans of time from *at_us* on, in order, apart from each other. ``None``: it has no end."""
    at_us = max(at_us, hours.away_until_us or at_us)
    if not hours.spans:
        yield at_us, None
        return
    day, held, idle = _local(hours.zone, at_us).date() - timedelta(days=2), None, 0
    while True:  # a day's spans come in order, but one over midnight may overlap those of the next day: one is held back
        spans = sorted(_of_day(hours, day))
        for begin, end in spans:
            if held is not None and begin <= held[1]:
                held = (held[0], max(end, held[1]))
                continue
            if held is not None and held[1] > at_us:
                yield max(held[0], at_us), held[1]
            held = (begin, end)
        idle = 0 if spans else idle + 1
        if idle > _LOOK_DAYS:
            raise ValueError("these hours have no time in this zone")
        day += timedelta(days=1)


def _of_day(hours: Hours, day: date) -> Iterator[tuple[int, int]]:
    for weekday, first, last in hours.spans:
        if weekday == day.weekday():
            begin, end = _moment(hours.zone, day, first, last=False), _moment(hours.zone, day, last, last=True)
            if begin < end:
                yield begin, end


def _moment(zone: tzinfo, day: date, minute: int, *, last: bool) -> int:
    """When the wall clock says so. *last*: of two such moments the later; where there is none, when the clock jumped over it."""
    wall = datetime(day.year, day.month, day.day) + timedelta(minutes=minute)  # noqa: DTZ001 - a wall clock's, until it has its zone
    found = wall.replace(tzinfo=zone, fold=1 if last else 0).astimezone(UTC)
    if found.astimezone(zone).replace(tzinfo=None, fold=0) == wall:
        return _us(found)
    low = _us(wall.replace(tzinfo=zone, fold=1).astimezone(UTC)) // 1_000_000 - 1
    high = _us(wall.replace(tzinfo=zone, fold=0).astimezone(UTC)) // 1_000_000 + 1
    before = _local(zone, low * 1_000_000).utcoffset()
    while high - low > 1:  # zones change at whole seconds
        middle = (low + high) // 2
        low, high = (middle, high) if _local(zone, middle * 1_000_000).utcoffset() == before else (low, middle)
    return high * 1_000_000


def _local(zone: tzinfo, at_us: int) -> datetime:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)).astimezone(zone)


def _us(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
