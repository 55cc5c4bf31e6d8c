"""``/v1/clients/{client}/facts``: what is known about a client."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Query
from starlette.responses import Response

from stepseven.runtime import facts as said
from stepseven.server import shapes, sight
from stepseven.server.api.runs import Cursor, Limit
from stepseven.server.documents import fact_document
from stepseven.server.problems import invalid, not_found
from stepseven.server.routes import Here, needs, router, told
from stepseven.store.base import Tx
from stepseven.store.codec import storable
from stepseven.transitions import clients
from stepseven.transitions.tokens import Scope

api = router("clients")
MOST = 200  #: facts said at once


@api.get(
    "/clients/{client_id}/facts", operation_id="get_facts", openapi_extra=needs(Scope.READ),
    responses={200: {"model": shapes.Page[shapes.Fact]}},
)  # fmt: skip
async def facts(client_id: str, here: Here, limit: Limit = sight.MOST, cursor: Cursor = None) -> Response:
    """Every fact as it stands, by key, with its source and what contradicts it."""
    sight.client(here, client_id)
    now_us = here.now_us()

    def unit(tx: Tx) -> list[Any]:
        if not storable(client_id) or tx.one(tx.sql.client_in_sight, {"id": client_id, "clients": here.who.sight}) is None:
            raise not_found("client", client_id)
        return clients.all_standing(tx, client_id, now_us)

    found = [fact for fact in await here.layer.store.read(unit) if cursor is None or fact.key > cursor]
    more = found[limit - 1].key if len(found) > limit else None
    return told({"items": [fact_document(fact, now_us) for fact in found[:limit]], "next": more})


@api.patch(
    "/clients/{client_id}/facts", operation_id="set_facts", openapi_extra=needs(Scope.REPORT, Scope.OPERATE),
    responses={200: {"model": shapes.Page[shapes.Fact]}},
)  # fmt: skip
async def set_facts(
    client_id: str, here: Here, body: Annotated[dict[str, Any], Body(max_length=MOST)],
    source: Annotated[str | None, Query(max_length=300)] = None, valid: Annotated[str | None, Query(max_length=20)] = None,
) -> Response:  # fmt: skip
    """Say what facts are: the body has each by its name. All of them, or none. Runs that wait to know one go on.

    `source` is where they come from, such as `crm`; default: the token's name. `valid` is how long they hold, such as `90d`. What
    somebody says who signed in is a person's word.
    """
    sight.client(here, client_id)
    if not body:
        raise invalid('the body has no fact: send names with their values, such as {"vat_number": "DE123"}')
    if not client_id or not storable(client_id) or any(c < " " or c in "/\x7f" for c in client_id):
        raise not_found("client", client_id)
    now_us, person = here.now_us(), here.who.name if here.who.id.startswith("s_") else None
    origin = source or (None if person else here.who.name)
    words = [
        said.given(client_id, key, value, source=origin, by=person, valid=valid, now_us=now_us) for key, value in body.items()
    ]

    def unit(tx: Tx) -> list[Any]:
        for word in words:
            clients.learn(tx, word, now_us)
        return [clients.standing(tx, client_id, word.key, now_us) for word in words]

    stand = await here.layer.store.write(unit, durable=True, client=client_id)
    here.layer.services.stir()
    return told({"items": [fact_document(fact, now_us) for fact in stand], "next": None})
