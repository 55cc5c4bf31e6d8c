"""A client as the command line shows it, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from stepseven.cli._common import clean, command, now_us, width, wrapped
from stepseven.cli._words import FOR_EVER, age, clock, count, short_json
from stepseven.decide import _phrases as say
from stepseven.model import Fact
from stepseven.server.documents import fact_document
from stepseven.store.base import Row
from stepseven.transitions.clients import pause_words

VALUE_CHARS = 300
_KEY_COLUMNS = 24  # a longer name stands on its own


def summary(row: Row) -> dict[str, Any]:
    """A client of a list as JSON. ``paused``: by whom, why and since when (microseconds), or ``null``; ``unpaused`` as well."""
    note = json.loads(row["note"]) if row["status"] == "paused" and row["note"] else None
    return {
        "client_id": row["id"], "status": row["status"], "paused": note, "unpaused": _unpaused(row), "facts_count": row["facts"],
        "runs": row["runs"],
        "open_runs": row["open_runs"], "open_questions": row["open_questions"], "created_us": row["created_us"],
        "forgotten_us": row["forgotten_us"],
    }  # fmt: skip


def _unpaused(row: Row) -> dict[str, Any] | None:
    """Who let things begin again, and when. The note of an active client may also say who forgot it."""
    told = row["note"] if row["status"] == "active" else None
    if told is None or not told.startswith("{"):
        return None
    note = json.loads(told)
    return {"by": note["unpaused_by"], "at_us": note["at_us"]}


def document(fact: Fact) -> dict[str, Any]:
    """A fact as JSON. ``expired``: it no longer holds, and counts as not known."""
    return fact_document(fact, now_us())


def expired(fact: Fact) -> bool:
    """Whether it no longer holds."""
    return fact.valid_until_us is not None and fact.valid_until_us <= now_us()


def listing(rows: Sequence[Row]) -> Iterator[str]:
    """The clients, a line each."""
    if not rows:
        yield "There is no client yet: the first run for one makes it, or `stepseven client set CLIENT KEY=VALUE`."
    for row in rows:
        parts = [count(row["facts"], "fact"), count(row["runs"], "run")]
        parts += [f"{row['open_runs']} open"] if row["open_runs"] else []
        parts += [count(row["open_questions"], "question")] if row["open_questions"] else []
        parts += ["paused"] if row["status"] == "paused" else []
        right = " · ".join(parts)
        left, room = clean(row["id"]), max(10, width() - len(right) - 2)
        left = left if len(left) <= room else left[: room - 1] + "…"
        yield f"{left:<{room}}  {right}"


def page(row: Row, known: Sequence[Fact], *, also: tuple[str, ...]) -> Iterator[str]:
    """A client whole: how it stands, what we know, what is under way."""
    who = say.who(row["id"])
    yield clean(who if who == row["id"] else f"{who}  ({row['id']})")
    if row["status"] == "paused":
        yield wrapped(f"{pause_words(row)}: nothing new begins. It goes on with:", "  ")
        yield f"    {command('client', 'unpause', row['id'], *also)}"
    again = _unpaused(row)
    if again is not None:
        yield wrapped(f"Unpaused {age(again['at_us'])}{' by ' + again['by'] if again['by'] else ''}.", "  ")
    yield ""
    if row["forgotten_us"] is not None:
        yield wrapped(_forgotten(row, known), "  ")
    if not known:
        yield "  Say something:" if row["forgotten_us"] is not None else "  Nothing is known yet. Say something:"
        yield f"    {command('client', 'set', row['id'], 'KEY=VALUE', *also)}"
    yield from facts(known)
    against = [fact for fact in known if fact.conflicts]
    if against:
        yield ""
        yield wrapped(f"{count(len(against), 'fact')} in conflict: what you say settles it.", "  ")
        yield f"    {command('client', 'set', row['id'], f'{against[0].key}=…', *also)}"
    yield ""
    yield from _under_way(row, also)


def _forgotten(row: Row, known: Sequence[Fact]) -> str:
    """When it was forgotten; by whom and why, as long as nothing else was noted since."""
    whom, _, why = (row["note"] or "").removeprefix("forgotten").strip().partition(": ")
    by = f" {whom}{f' ({why})' if why else ''}" if (row["note"] or "").startswith("forgotten by ") else ""
    left = "what is here came since" if known else "nothing is known any more"
    return f"Forgotten on {clock(row['forgotten_us'])[:10]}{by}: {left}."


def _under_way(row: Row, also: tuple[str, ...]) -> Iterator[str]:
    if not row["open_runs"]:
        yield f"  No run is open; {row['runs']:,} in all."
        return
    asked = f", {count(row['open_questions'], 'question')} for you" if row["open_questions"] else ""
    yield f"  {count(row['open_runs'], 'run')} open{asked}:"
    yield f"    {command('inbox' if asked else 'runs', '--client', row['id'], *also)}"


def facts(known: Sequence[Fact]) -> Iterator[str]:
    """Facts beneath each other."""
    columns = min(_KEY_COLUMNS, max((len(fact.key) for fact in known), default=0))
    for fact in known:
        yield from _lines(fact, columns)


def _lines(fact: Fact, columns: int) -> Iterator[str]:
    """A fact: its value, then where it is from; what others say stands beside it."""
    sign = "–" if expired(fact) else "≠" if fact.conflicts else "·"
    yield wrapped(_value(fact), clean(f"  {sign} {fact.key:<{columns}}  "))
    indent = " " * (columns + 6)
    yield wrapped(_origin(fact), indent)
    for other in fact.conflicts:
        yield wrapped(f"but {_value(other)}: {_origin(other)}", indent)


def _value(fact: Fact) -> str:
    """A fact's value on one line, so that there is something to see."""
    shown = short_json(fact.value, VALUE_CHARS)
    return shown if shown.strip() else "(empty)"


def _origin(fact: Fact) -> str:
    """From whom, when, and how long it holds."""
    parts = [fact.source] if fact.source else []
    parts += [f"by {fact.set_by}"] if fact.set_by else []
    parts = parts or ["nobody said from where"]
    parts.append(age(fact.set_us))
    if fact.valid_until_us is not None:
        last = clock(fact.valid_until_us)
        until = last if last == FOR_EVER else f"until {last}"
        parts.append(f"expired {age(fact.valid_until_us)}: counts as not known" if expired(fact)
                     else f"holds {until}")  # fmt: skip
    if fact.version > 1:
        parts.append(f"version {fact.version}")
    return ", ".join(parts)


def history(client: str, key: str, versions: Sequence[Fact]) -> Iterator[str]:
    """Every version of a fact, newest first."""
    yield wrapped(f"{say.who(client)} · {key}: {count(len(versions), 'version')}, newest first")
    yield ""
    for fact in versions:
        yield wrapped(_value(fact), f"  {fact.version:>4}  ")
        yield wrapped(f"{_origin(fact)}, {clock(fact.set_us)}", " " * 8)
