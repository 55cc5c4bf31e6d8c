"""Who is asked, and when: every step of the ladder, and what holds whatever hours people have."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from stepseven.decide.hours import Hours, is_open, parse
from stepseven.decide.ladder import Move, Person, Purpose, Standing, Told, asked_in_turn, climb

VIENNA, NEW_YORK = ZoneInfo("Europe/Vienna"), ZoneInfo("America/New_York")
HOUR = 3600 * 1_000_000
DAY = 24 * HOUR


def us(text: str, zone: ZoneInfo = VIENNA) -> int:
    """A moment by a zone's wall clock."""
    return round(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1e6)


def person(id: str, hours: str = "mon-fri 09:00-17:00", zone: ZoneInfo = VIENNA, away: int | None = None, **more) -> Person:
    """Somebody."""
    return Person(id=id, name=id.title(), hours=Hours(spans=parse(hours), zone=zone, away_until_us=away), **more)


def question(**more) -> Standing:
    """An open question of Acme."""
    return replace(Standing(client_id="acme", asked_of=None, deadline_us=None, rung=0, person_id=None), **more)


def written(q: Standing, move: Move, now_us: int) -> Standing:
    """The question after a move, its message out as soon as it was due."""
    if move.purpose is None:
        return q
    assert move.person is not None
    rung = q.rung + (move.purpose is Purpose.HAND_OVER)
    told = Told(person_id=move.person.id, purpose=move.purpose, rung=rung, created_us=now_us, delivered_us=move.due_us)
    return replace(q, rung=rung, person_id=move.person.id, told=(*q.told, told))


def story(q: Standing, people: list[Person], begin_us: int, most: int = 12) -> list[tuple[str, str, int]]:
    """(what, to whom, when) until nothing more happens, or *most* looks."""
    now_us, told = begin_us, []
    for _ in range(most):
        move = climb(q, people, now_us)
        if move.purpose is not None and move.person is not None:
            told.append((move.purpose.value, move.person.id, move.due_us))
        q = written(q, move, now_us)
        if move.next_us is None:
            break
        now_us = max(move.next_us, now_us)
    return told


def test_from_friday_afternoon_over_two_zones():
    """Asked on Friday at 16:50 in Vienna, reminded on Monday, handed over when New York comes to work, then once each day."""
    ann, ben = person("ann"), person("ben", zone=NEW_YORK)
    assert story(question(), [ann, ben], us("2026-03-13T16:50"), most=7) == [
        ("ask", "ann", us("2026-03-13T16:50")),
        ("remind", "ann", us("2026-03-16T10:50")),
        ("hand_over", "ben", us("2026-03-16T09:00", NEW_YORK)),
        ("remind", "ben", us("2026-03-16T11:00", NEW_YORK)),
        ("remind", "ben", us("2026-03-17T09:00", NEW_YORK)),
        ("remind", "ben", us("2026-03-18T09:00", NEW_YORK)),
        ("remind", "ben", us("2026-03-19T09:00", NEW_YORK)),
    ]


def test_whom_the_code_names_is_asked_first():
    """``to=`` by id or name, whatever the case; a name of nobody leaves it to the order."""
    people = [person("ann"), person("ben")]
    assert [p.id for p in asked_in_turn(question(asked_of="BEN"), people)] == ["ben", "ann"]
    assert [p.id for p in asked_in_turn(question(asked_of="finance"), people)] == ["ann", "ben"]


def test_nobody_is_told_of_a_client_that_is_not_theirs():
    """Who has only other clients is not asked, not even when the code names them."""
    people = [person("ann", clients=frozenset({"globex"}))]
    assert climb(question(asked_of="ann"), people, us("2026-03-13T10:00")) == Move()


def test_who_is_away_is_passed_over_and_asked_when_nobody_else_is_there():
    """Away: the next one is asked; everybody away: whoever is back first."""
    now = us("2026-03-13T10:00")
    ann, ben = person("ann", away=now + 5 * DAY), person("ben")
    assert climb(question(), [ann, ben], now).person == ben
    both = [ann, person("ben", away=now + 3 * DAY)]
    assert climb(question(), both, now).person == both[1]


def test_who_goes_away_hands_over_at_once():
    """A question that somebody has who is away now goes to the next one without a reminder."""
    now = us("2026-03-13T10:00")
    ann, ben = person("ann"), person("ben")
    q = written(question(), climb(question(), [ann, ben], now), now)
    move = climb(q, [person("ann", away=now + DAY), ben], now + 60)
    assert (move.purpose, move.person) == (Purpose.HAND_OVER, ben)


def test_who_cannot_be_reached_hands_over_at_once():
    """A message that is given up goes to the next person; where there is none, it is tried again with the reminder."""
    now = us("2026-03-13T10:00")
    ann, ben = person("ann"), person("ben")
    lost = Told(person_id="ann", purpose="ask", rung=0, created_us=now - HOUR, dead=True)
    q = question(person_id="ann", told=(lost,))
    assert climb(q, [ann, ben], now).person == ben
    assert climb(q, [ann], now + 4 * HOUR).purpose is Purpose.REMIND


def test_a_message_under_way_is_not_reminded_of():
    """While the first message does not go out there is no second one to the same person."""
    now = us("2026-03-13T10:00")
    q = question(person_id="ann", told=(Told(person_id="ann", purpose="ask", rung=0, created_us=now),))
    assert climb(q, [person("ann")], now + 3 * HOUR).purpose is None


def test_who_was_removed_has_it_no_more():
    """The question goes to the next one; if only one is left who was asked before, to them again."""
    now = us("2026-03-13T10:00")
    told = Told(person_id="ann", purpose="ask", rung=0, created_us=now, delivered_us=now)
    q = question(person_id="ann", told=(told,))
    assert climb(q, [person("ben")], now).person == person("ben")
    assert climb(q, [], now) == Move()


def test_after_the_deadline_nothing_happens():
    """No message is due after the deadline, and the last one before it is the last."""
    q = question(deadline_us=us("2026-03-16T09:30"))
    told = story(q, [person("ann"), person("ben")], us("2026-03-13T16:50"))
    assert told == [("ask", "ann", us("2026-03-13T16:50"))]
    assert climb(q, [person("ann")], us("2026-03-16T09:30")) == Move()


def test_a_short_deadline_goes_to_somebody_who_works_before_it():
    """Who would read it too late is passed over."""
    now = us("2026-03-14T10:00")
    q = question(deadline_us=now + 6 * HOUR)
    assert climb(q, [person("ann"), person("ben", "sat 09:00-18:00")], now).person == person("ben", "sat 09:00-18:00")


PEOPLE = st.lists(
    st.builds(
        lambda who, hours, zone, remind, more, away: person(
            who, hours, zone, away, remind_us=remind * HOUR, hand_over_us=(remind + more) * HOUR
        ),
        st.sampled_from("abcdef"),
        st.sampled_from(["always", "mon-fri 09:00-17:00", "fri-sun 22:00-06:00", "sat 10:00-10:30"]),
        st.sampled_from([VIENNA, NEW_YORK]),
        st.integers(0, 9), st.integers(1, 30),
        st.none() | st.integers(us("2026-03-12T00:00"), us("2026-03-20T00:00")),
    ),
    max_size=4, unique_by=lambda p: p.id,
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(PEOPLE, st.integers(us("2026-03-12T00:00"), us("2026-04-02T00:00")), st.none() | st.integers(0, 9 * DAY))
def test_whatever_hours_people_have_the_ladder_goes_on_and_disturbs_nobody(people: list[Person], begin: int, left: int | None):
    """Messages go out only while their person works, and before the deadline; nobody is asked twice; it never stands still."""
    q = question(deadline_us=None if left is None else begin + left)
    now, asked, looks = begin, [], 0
    while looks < 25:
        looks += 1
        move = climb(q, people, now)
        if move.purpose is not None:
            assert move.person is not None
            assert move.due_us >= now
            assert is_open(move.person.hours, move.due_us)
            assert q.deadline_us is None or move.due_us < q.deadline_us
            asked += [move.person.id] if move.purpose is not Purpose.REMIND else []
        q = written(q, move, now)
        if move.next_us is None:
            break
        assert move.next_us >= now
        assert move.next_us > now or move.purpose is not None  # a look that does nothing is not repeated at once
        again = climb(q, people, now)
        assert again.purpose is None or move.next_us == now  # the same rows a second time: nothing is said twice
        now = move.next_us
    assert len(asked) == len(set(asked))
    if people and left is None:
        assert looks == 25  # without a deadline somebody is reminded for ever
        assert asked
