"""Who is asked, and when: an open question goes to one person at a time, is reminded of, and handed over to the next.

Told → reminded → handed over to the next person → … Working hours are the person's own. When nobody is left, the question stays
with the last one, who is reminded once each working day. A deadline ends it: that is no answer, and no "no" either; what happens
then is the run's affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from stepseven._dataclass import dataclass
from stepseven.decide import hours as clock
from stepseven.decide.hours import Hours

REMIND_US = 2 * 3600 * 1_000_000  #: of their working time, unless a person says otherwise
HAND_OVER_US = 4 * 3600 * 1_000_000


class Purpose(StrEnum):
    """What a message is for. The values are stored."""

    ASK = "ask"
    REMIND = "remind"
    HAND_OVER = "hand_over"
    EXPIRED = "expired"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody who can be asked.

    Attributes:
        id, name: who it is; code and answers may use either.
        hours: when they work, and until when they are away.
        clients: whose questions are theirs; ``None``: everybody's.
        remind_us, hand_over_us: after how much of their working time they are reminded, and the next person is asked.
    """

    id: str
    name: str
    hours: Hours
    clients: frozenset[str] | None = None
    remind_us: int = REMIND_US
    hand_over_us: int = HAND_OVER_US


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A message about a question. ``delivered_us``: ``None`` as long as it did not go out; ``dead``: it never will."""

    person_id: str
    purpose: str
    rung: int
    created_us: int
    delivered_us: int | None = None
    dead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An open question as it stands.

    Attributes:
        client_id: whose it is. asked_of: whom the code names, or ``None``. deadline_us: when it ends, or ``None``.
        rung: how often it was handed over. person_id: who has it now; ``None``: nobody yet.
        told: the messages about it so far, oldest first.
    """

    client_id: str
    asked_of: str | None
    deadline_us: int | None
    rung: int
    person_id: str | None
    told: tuple[Told, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The one next thing.

    Attributes:
        purpose: of the message to be written now; ``None``: there is nothing to do now.
        person: to whom, and who has the question from now on.
        due_us: when the message goes out: a moment at which that person works.
        next_us: when to look again; ``None``: nothing more happens by itself.
    """

    purpose: Purpose | None = None
    person: Person | None = None
    due_us: int = 0
    next_us: int | None = None


def climb(question: Standing, people: Sequence[Person], now_us: int) -> Move:
    """What is to be done about an open question now, and when to look again.

    Args:
        question: as it stands.
        people: everybody who is there, in the order in which they are asked.
        now_us: the present, microseconds since the epoch.

    Returns:
        The next move. The same rows give the same move: when it was written down, the next call waits.
    """
    if question.deadline_us is not None and question.deadline_us <= now_us:
        return Move()
    order = asked_in_turn(question, people)
    following = _next(question, order, now_us)
    has_it = next((person for person in order if person.id == question.person_id), None)
    if has_it is None:
        purpose = Purpose.ASK if question.person_id is None else Purpose.HAND_OVER
        return Move() if following is None else _first(purpose, following, question, now_us)
    mine = [told for told in question.told if told.rung == question.rung and told.person_id == has_it.id]
    lost = bool(mine) and mine[0].dead
    if following is not None and (_is_away(has_it, now_us) or lost):
        return _first(Purpose.HAND_OVER, following, question, now_us)
    return _go_on(question, has_it, following, mine, now_us)


def asked_in_turn(question: Standing, people: Sequence[Person]) -> list[Person]:
    """Everybody who may be asked, first the one whom the code names."""
    theirs = [person for person in people if person.clients is None or question.client_id in person.clients]
    name = (question.asked_of or "").strip().casefold()
    return sorted(theirs, key=lambda person: name not in (person.id.casefold(), person.name.strip().casefold()))


def _next(question: Standing, order: Sequence[Person], now_us: int) -> Person | None:
    """Who is asked next: nobody twice; who is away only when nobody else is left and nobody has it."""
    asked = {told.person_id for told in question.told if told.purpose in (Purpose.ASK, Purpose.HAND_OVER)}
    left = [person for person in order if person.id not in asked and person.id != question.person_id]
    here = [person for person in left if not _is_away(person, now_us)]
    if here:
        end_us = question.deadline_us
        in_time = [person for person in here if end_us is None or clock.next_open(person.hours, now_us) < end_us]
        return (in_time or here)[0]
    has_it = any(person.id == question.person_id for person in order)
    others = [] if has_it else left or list(order)  # who had it is gone: better the same person twice than nobody
    return min(others, key=lambda person: clock.next_open(person.hours, now_us), default=None)


def _is_away(person: Person, now_us: int) -> bool:
    return person.hours.away_until_us is not None and person.hours.away_until_us > now_us


def _first(purpose: Purpose, person: Person, question: Standing, now_us: int) -> Move:
    due_us = clock.next_open(person.hours, now_us)
    return _before(question, Move(
        purpose=purpose, person=person, due_us=due_us, next_us=clock.after(person.hours, due_us, person.remind_us)
    ))  # fmt: skip


def _go_on(question: Standing, person: Person, following: Person | None, mine: Sequence[Told], now_us: int) -> Move:
    """Wait, remind, or hand over."""
    since_us = _since(person, mine, now_us)
    over_us = clock.after(person.hours, since_us, person.hand_over_us)
    reminded = any(told.purpose == Purpose.REMIND for told in mine)
    first_us = clock.after(person.hours, since_us, person.remind_us)
    if following is None:
        due_us = clock.next_day(person.hours, mine[-1].delivered_us or mine[-1].created_us) if reminded else first_us
        later_us = clock.next_day(person.hours, clock.next_open(person.hours, now_us))
    else:
        # Handed over only when the next one works: until then whoever has it can still answer.
        due_us = clock.next_open(following.hours, over_us)
        if now_us >= due_us:
            return _first(Purpose.HAND_OVER, following, question, now_us)
        later_us, due_us = due_us, due_us if reminded else first_us
    if now_us < due_us:
        return _before(question, Move(next_us=due_us))
    if not _reached(mine):  # the first message is still under way: a second one would only come with it
        return _before(question, Move(next_us=later_us))
    opens_us = clock.next_open(person.hours, now_us)
    return _before(question, Move(purpose=Purpose.REMIND, person=person, due_us=opens_us, next_us=later_us))


def _since(person: Person, mine: Sequence[Told], now_us: int) -> int:
    """Since when they know of it; of a message that is still under way: since when they should."""
    if not mine:
        return now_us
    first = mine[0]
    return first.delivered_us if first.delivered_us is not None else clock.next_open(person.hours, first.created_us)


def _reached(mine: Sequence[Told]) -> bool:
    """Whether no message to them is under way."""
    return all(told.delivered_us is not None or told.dead for told in mine)


def _before(question: Standing, move: Move) -> Move:
    """Nothing happens after the deadline."""
    end_us = question.deadline_us
    if end_us is None:
        return move
    due = move.purpose is not None and move.due_us < end_us
    later = move.next_us if move.next_us is not None and move.next_us < end_us else None
    if move.purpose is not None and not due:
        return Move(next_us=later)
    return Move(purpose=move.purpose, person=move.person, due_us=move.due_us, next_us=later)
