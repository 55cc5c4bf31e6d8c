"""``/v1/incidents``: open questions of one cause, across runs and clients."""

from __future__ import annotations

from dataclasses import asdict

from starlette.responses import Response

from stepseven.server import shapes, sight
from stepseven.server.api.questions import refuse_own
from stepseven.server.api.runs import Filter, Limit
from stepseven.server.problems import not_found
from stepseven.server.routes import Desk, Here, needs, router, told
from stepseven.store.base import Row, Tx
from stepseven.store.codec import storable
from stepseven.transitions import incidents
from stepseven.transitions.tokens import Scope

api = router("incidents")


@api.get(
    "/incidents", operation_id="list_incidents", openapi_extra=needs(Scope.READ, Scope.ANSWER),
    responses={200: {"model": shapes.Page[shapes.Incident]}},
)  # fmt: skip
async def listed(here: Here, client: Filter = None, limit: Limit = sight.USUAL) -> Response:
    """Those that are open, oldest first, as far as they are about the token's clients."""
    now_us, whose = here.now_us(), here.who.clients
    if not storable(client):
        return told({"items": [], "next": None})
    found = await here.layer.store.read(lambda tx: incidents.page(tx, "open", client, whose, limit, now_us))
    return told({"items": [asdict(one) for one in found], "next": None})


@api.post(
    "/incidents/{incident_id}/answer", operation_id="answer_incident", openapi_extra=needs(Scope.ANSWER),
    responses={200: {"model": shapes.IncidentAnswered}},
)  # fmt: skip
async def answer(incident_id: str, body: shapes.IncidentAnswer, here: Here) -> Response:
    """One answer for its questions, or for some of them: each takes it by its own rules, or stays open with the reason."""
    clients = _clients(here, body.clients)
    await here.layer.store.read(lambda tx: _look(tx, here, incident_id, clients))
    done = await here.layer.answer_incident(
        incident_id, body.value, by=here.who.name, note=body.note, questions=body.questions, clients=clients
    )
    return told(asdict(done))


def _clients(here: Desk, asked: list[str] | None) -> list[str] | None:
    """For whom the answer is: those that were named, and never more than the token may know of."""
    if here.who.clients is None:
        return asked
    return [client for client in (asked if asked is not None else here.who.clients) if here.who.knows(client)]


def _look(tx: Tx, here: Desk, incident_id: str, clients: list[str] | None) -> Row:
    """The incident, if something in it is of these clients, and nothing that is answered is the token's own to decide.

    Raises:
        Problem: there is none; or it would be its own raise of a limit.
    """
    if not storable(incident_id):
        raise not_found("incident", incident_id)
    row = incidents.known(tx, incident_id, clients)
    mine = {"id": incident_id, "clients": incidents.sight(clients), "after_us": 0, "after_id": "", "most": sight.MOST}
    for one in tx.all(tx.sql.incident_questions, mine) if row["kind"] == "limit" else ():
        question = tx.one(tx.sql.question_in_sight, {"id": one["id"], "clients": here.who.sight})
        if question is not None:
            refuse_own(here.who, question)
    return row
