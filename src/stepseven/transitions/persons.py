"""Persons: who can be asked, where they are reached, and when they work."""

from __future__ import annotations

import json
from datetime import UTC, datetime, tzinfo
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide.hours import ALWAYS, Hours, next_open, parse
from stepseven.decide.ladder import HAND_OVER_US, REMIND_US, Person
from stepseven.errors import StepsevenError
from stepseven.store.base import Row, Tx
from stepseven.store.codec import storable
from stepseven.store.redact import find_secret

_MOST_CHARS = 200
_MOST_US = 240 * 3600 * 1_000_000  # of working time: six weeks of eight hours a day
_MOST_RANK = 1_000_000


class UnknownPerson(StepsevenError):
    """No person has this id."""

    def __init__(self, person_id: str, known: list[str]) -> None:
        told = f"there are {', '.join(known[:20])}" if known else "`stepseven person add` adds one"
        super().__init__(f"there is no person {person_id}: {told}")
        self.person_id = person_id


class InvalidPerson(StepsevenError):
    """What is said about a person cannot be kept. Nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What is said about a person; ``None``: nothing, which leaves what is known, or the usual.

    Attributes:
        id: a short name, as answers have it. name: in full.
        channels: ``env:NAME`` or Apprise URLs without a credential, in the order in which they are tried.
        hours: such as ``mon-fri 09:00-17:00``. zone: such as ``Europe/Vienna``.
        clients: whose questions are theirs; empty: everybody's.
        rank: who is asked first: the lowest.
        remind_us, hand_over_us: after how much of their working time.
    """

    id: str
    name: str | None = None
    channels: tuple[str, ...] | None = None
    hours: str | None = None
    zone: str | None = None
    clients: tuple[str, ...] | None = None
    rank: int | None = None
    remind_us: int | None = None
    hand_over_us: int | None = None


def save(tx: Tx, said: Said, now_us: int) -> Row:
    """Add a person, or change what is known of one. Open questions that nobody has go to them next.

    Returns:
        The person's row.

    Raises:
        InvalidPerson: something of it is not of its form. Nothing was changed.
    """
    _short("id", said.id, _MOST_CHARS)
    if any(c.isspace() for c in said.id):
        raise InvalidPerson(f"the id {said.id!r} has a space in it: say a short name such as ann; --name takes the whole one")
    row = tx.one(tx.sql.person, {"id": said.id})
    known = row if row is not None and row["removed_us"] is None else None
    values = _checked(said, known)
    tx.run(tx.sql.save_person, {"id": said.id, "away_until_us": None, "now": now_us, **values})
    tx.run(tx.sql.start_ladders, {"now": now_us})
    tx.run(tx.sql.look_at_ladders_of, {"person_id": said.id, "now": now_us})
    return one(tx, said.id)


def _checked(said: Said, known: Row | None) -> dict[str, Any]:
    """The columns of a person's row."""
    before: dict[str, Any] = dict(known) if known is not None else {}
    name = said.name if said.name is not None else before.get("name", said.id)
    _short("name", name, _MOST_CHARS)
    places = _channels(said.channels) if said.channels is not None else json.loads(before.get("channels", "[]"))
    if not places:
        raise InvalidPerson(f"{said.id} has no channel: say where they are reached, such as --channel env:{_variable(said.id)}")
    hours = said.hours if said.hours is not None else before.get("hours") or ALWAYS
    zone = said.zone if said.zone is not None else before.get("zone", "UTC")
    _opens(hours, zone)
    clients = list(said.clients) or None if said.clients is not None else json.loads(before.get("clients") or "null")
    for client in clients or ():
        _short("client", client, _MOST_CHARS)
    rank = said.rank if said.rank is not None else before.get("rank", 0)
    if not -_MOST_RANK <= rank <= _MOST_RANK:
        raise InvalidPerson(f"rank {rank} is too far away: say a number such as 1, 2 or 3; the lowest is asked first")
    remind_us = _span("remind", said.remind_us, before.get("remind_us"), REMIND_US)
    over_us = _span("hand over", said.hand_over_us, before.get("hand_over_us"), HAND_OVER_US)
    if remind_us >= over_us:
        raise InvalidPerson("the reminder has to come before the hand-over: say a shorter --remind or a longer --hand-over")
    return {
        "name": name, "channels": json.dumps(places, ensure_ascii=False), "hours": hours, "zone": zone,
        "clients": None if clients is None else json.dumps(clients, ensure_ascii=False), "rank": rank, "remind_us": remind_us,
        "hand_over_us": over_us,
    }  # fmt: skip


def _variable(person_id: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in person_id.upper()) + "_CHANNEL"


def _short(what: str, text: str, most: int) -> None:
    if not text.strip() or len(text) > most or not storable(text) or not text.isprintable():
        raise InvalidPerson(f"the {what} {text[:40]!r} cannot be kept: say 1 to {most} printable characters")
    if (found := find_secret(text)) is not None:
        raise InvalidPerson(f"the {what} looks like {found}: it is not kept here, and nothing was changed")


def _channels(given: tuple[str, ...]) -> list[str]:
    from stepseven.decide import channels

    if len(given) > channels.MOST:
        raise InvalidPerson(f"{len(given)} channels are too many: {channels.MOST} at most, the first that works is enough")
    try:
        places = [channels.checked(text) for text in given]
    except ValueError as error:
        raise InvalidPerson(str(error)) from error
    for place in places:
        address = place.replace("@", " ")  # of a mail; a login was looked for already
        if (found := find_secret(address)) is not None:
            raise InvalidPerson(f"a channel holds {found}: put the whole URL into an environment variable and say env:NAME")
        _short("channel", address, 1000)
    return list(dict.fromkeys(places))


def _opens(hours: str, zone: str) -> None:
    try:
        next_open(Hours(spans=parse(hours), zone=_zone(zone)), 0)
    except ValueError as error:
        raise InvalidPerson(str(error)) from error


def _span(what: str, said: int | None, before: int | None, usual: int) -> int:
    us = said if said is not None else before if before is not None else usual
    if not 0 < us <= _MOST_US:
        raise InvalidPerson(f"to {what} after that time is not possible: say more than nothing and at most 240h of working time")
    return us


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidPerson(
            f"there is no zone {name!r}: say one such as Europe/Vienna (where there is no time zone database: pip install tzdata)"
        ) from error


def remove(tx: Tx, person_id: str, now_us: int) -> None:
    """Tell them nothing more; their questions go to the next one.

    Raises:
        UnknownPerson: there is none with this id.
    """
    one(tx, person_id)
    tx.run(tx.sql.remove_person, {"id": person_id, "now": now_us})
    tx.run(tx.sql.look_at_ladders_of, {"person_id": person_id, "now": now_us})


def away(tx: Tx, person_id: str, until: datetime | None, now_us: int) -> Row:
    """Ask somebody else until then; ``None``: they are here.

    Args:
        tx: the transaction.
        person_id: who.
        until: when they are back; without a zone it is their own.
        now_us: the time.

    Raises:
        UnknownPerson: there is none with this id. InvalidPerson: that is over already.
    """
    row = one(tx, person_id)
    until_us = None
    if until is not None:
        moment = until if until.tzinfo is not None else until.replace(tzinfo=_zone(row["zone"]))
        until_us = round(moment.timestamp() * 1e6)
        if until_us <= now_us:
            raise InvalidPerson(f"{until.isoformat()} is over: say a time to come, or --back")
    tx.run(tx.sql.set_away, {"id": person_id, "until_us": until_us})
    tx.run(tx.sql.look_at_ladders_of, {"person_id": person_id, "now": now_us})
    return one(tx, person_id)


def one(tx: Tx, person_id: str) -> Row:
    """A person's row.

    Raises:
        UnknownPerson: there is none with this id, or they were removed.
    """
    row = tx.one(tx.sql.person, {"id": person_id}) if storable(person_id) else None
    if row is None or row["removed_us"] is not None:
        raise UnknownPerson(person_id, [str(r["id"]) for r in tx.all(tx.sql.persons, {})])
    return row


def everybody(tx: Tx) -> list[Person]:
    """Who can be asked, in the order in which they are."""
    return [person_of(row) for row in tx.all(tx.sql.persons, {})]


def person_of(row: Row) -> Person:
    """A stored person as the ladder knows them. No question fails to be asked because of their zone: UTC, where it is unknown."""
    clients = json.loads(row["clients"]) if row["clients"] else None
    zone: tzinfo
    try:
        zone = _zone(row["zone"])
    except InvalidPerson:  # this machine has no time zone database, another one had
        zone = UTC
    return Person(
        id=row["id"], name=row["name"],
        hours=Hours(spans=parse(row["hours"] or ALWAYS), zone=zone, away_until_us=row["away_until_us"]),
        clients=None if clients is None else frozenset(clients), remind_us=row["remind_us"] or REMIND_US,
        hand_over_us=row["hand_over_us"] or HAND_OVER_US,
    )  # fmt: skip
