"""What went nowhere, and what was said too late, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepseven.cli._common import out, wrapped
from stepseven.cli._words import age, short_json
from stepseven.layer import Layer
from stepseven.model import Question
from stepseven.people.sending import AppriseSender
from stepseven.transitions import objecting, told


async def nowhere(layer: Layer) -> str | None:
    """A line for the head of the inbox: how much of it reached nobody; ``None``: all of it is on its way, or there."""
    found = await layer.store.read(lambda tx: tx.one(tx.sql.untold, {}))
    if found is None or not (found["nowhere"] or found["failing"] or found["dead"]):
        return None
    missing = AppriseSender().missing() if found["persons"] else None
    return f"{told.summary(found)}{f' ({missing})' if missing else ''}."


async def objections(layer: Layer, question: Question) -> list[dict[str, Any]]:
    """What was said too late about a question."""
    row = await layer.store.read(lambda tx: tx.one(tx.sql.ladder, {"id": question.id}))
    return [] if row is None else objecting.of(row)


def words(said: Mapping[str, Any]) -> str:
    """One of them on a line."""
    value = said["value"]
    choice = value.get("choice", value) if isinstance(value, dict) else value
    note = f" ({said['note']})" if said.get("note") else ""
    return f"{said['by']} said “{short_json(choice, 120)}”{note} {age(said['at_us'])}; it changed nothing"


def show(found: Sequence[Mapping[str, Any]]) -> None:
    """Beneath a question that is closed."""
    for said in found:
        out().print(wrapped(words(said), "  too late   "))
