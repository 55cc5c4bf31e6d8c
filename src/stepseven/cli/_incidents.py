"""Incidents in the inbox: one card for all questions of one cause, and one answer for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.cli._common import Refused, Setting, clean, command, now_us, out, print_json, wrapped
from stepseven.cli._words import count, short_json
from stepseven.decide import _phrases as say
from stepseven.errors import UnknownIncident
from stepseven.layer import Layer
from stepseven.model import Incident, IncidentAnswered
from stepseven.store.base import Row, Tx
from stepseven.transitions import incidents

PREFIX = "i_"
ALONE = 1  # an incident of one question is that question
_SHOWN = 10  # questions and reasons in one listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """An incident, and the ids of its open questions."""

    incident: Incident
    questions: tuple[str, ...]


async def cards(layer: Layer, client: str | None) -> list[Card]:
    """The open incidents that stand for several questions."""
    now = now_us()

    def unit(tx: Tx) -> list[Card]:
        found = incidents.page(tx, "open", client, None, 100, now)
        return [Card(incident=i, questions=incidents.open_ids(tx, i.id)) for i in found if i.questions > ALONE]

    return await layer.store.read(unit)


def document(incident: Incident) -> dict[str, Any]:
    """As JSON."""
    return asdict(incident)


def show_cards(found: Sequence[Card], also: Sequence[str]) -> None:
    """The cards at the head of the inbox: what is wrong once, and whom it holds up."""
    console = out()
    for card in found:
        incident = card.incident
        age = f"waiting {say.duration((now_us() - incident.created_us) / 1e6)}"
        console.print(clean(f"{incident.id}  {count(incident.questions, 'question')}, {_whose(incident)} · {age}"))
        console.print(wrapped(f"  {incident.text}", "  "))
        if incident.earlier is not None:
            console.print(wrapped(f"  {incident.earlier}", "  "))
    if found:
        console.print("One answer for all of it:")
        console.print(f"  {command('answer', found[0].incident.id, 'CHOICE', *also)}")
        console.print()


def _whose(incident: Incident) -> str:
    return say.listing([say.who(client) for client in incident.clients])


async def show_one(setting: Setting, layer: Layer, incident_id: str) -> None:
    """One incident whole: its text, its choices, its questions."""
    incident, ids = await _seen(layer, incident_id)
    if setting.as_json:
        print_json({**document(incident), "question_ids": list(ids)})
        return
    console = out()
    console.print(wrapped(incident.text))
    if incident.earlier is not None:
        console.print(wrapped(incident.earlier))
    console.print(clean(f"  whose      {_whose(incident)}"))
    shown = ", ".join(ids[:_SHOWN]) + (f", … {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")
    console.print(wrapped(shown or "none is open", "  questions  "))
    for n, option in enumerate(incident.options, 1):
        console.print(wrapped(f"{option.label}{f': {option.detail}' if option.detail else ''}", f"  {n}  "))
    if ids:
        console.print("One answer for all of it, or with --question or --client for a part:")
        console.print(f"  {command('answer', incident.id, 'CHOICE', *setting.also)}")


async def _seen(layer: Layer, incident_id: str) -> tuple[Incident, tuple[str, ...]]:
    now = now_us()

    def unit(tx: Tx) -> tuple[Incident, tuple[str, ...]]:
        return incidents.shown(tx, incidents.known(tx, incident_id, None), None, now), incidents.open_ids(tx, incident_id)

    return await layer.store.read(unit)


async def answer(  # noqa: PLR0917 - whose answer, for what, and how it reads what was typed
    setting: Setting,
    layer: Layer,
    incident_id: str,
    reply_of: Callable[[Row], Any],
    by: str,
    note: str | None,
    questions: Sequence[str],
    clients: Sequence[str],
) -> None:
    """Answer an incident, or a part of it.

    Raises:
        UnknownIncident: there is none with this id. Refused: nothing of it is open, or nothing took the answer.
    """
    incident, ids = await _seen(layer, incident_id)
    if not ids:
        raise Refused(f"nothing of incident {incident_id} is open any more: `stepseven inbox` shows what is")
    row = await layer.store.read(lambda tx: tx.one(tx.sql.question, {"id": ids[0]}))
    if row is None:
        raise UnknownIncident(incident_id)
    options = json.dumps([asdict(option) for option in incident.options])
    value = reply_of({**dict(row), "id": incident_id, "options": options})
    done = await layer.answer_incident(
        incident_id, value, by=by, note=note, questions=list(questions) or None, clients=list(clients) or None
    )
    if setting.as_json:
        print_json(asdict(done))
    if not done.answered:
        raise Refused(f"nothing was answered: {next(iter(done.refused.values()), 'nothing of it is open')}")
    if not setting.as_json:
        _, left = await _seen(layer, incident_id)  # also what was not named
        _told(done, value, len(left))


def _told(done: IncidentAnswered, value: Any, left: int) -> None:
    console = out()
    console.print(wrapped(f"Answered {count(len(done.answered), 'question')} with {short_json(value, 120)}."))
    for question_id, why in list(done.refused.items())[:_SHOWN]:
        console.print(wrapped(f"{question_id} stays open: {why}", "  "))
    if len(done.refused) > _SHOWN:
        console.print(f"  … {len(done.refused) - _SHOWN} more stay open")
    rest = f"{count(left, 'question')} of it left." if left else "Nothing of it is open any more."
    console.print(f"{rest} Workers go on with the runs; without one: stepseven resume RUN.")
