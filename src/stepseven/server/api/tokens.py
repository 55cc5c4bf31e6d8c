"""``/v1/tokens``: who may use this API. For administrators."""

from __future__ import annotations

from starlette.responses import Response

from stepseven.server import shapes
from stepseven.server.problems import Problem, invalid, not_found
from stepseven.server.routes import Desk, Here, needs, router, told
from stepseven.store.base import Row, Tx
from stepseven.store.codec import storable
from stepseven.store.redact import find_secret
from stepseven.transitions import tokens
from stepseven.transitions.tokens import NewToken, Scope

api = router("tokens")


def _within(here: Desk, row: Row) -> bool:
    """Whether a token is for no other clients than ours: whoever administers some knows nothing of the others."""
    theirs = tokens.document(row)["clients"]
    return here.who.clients is None or (bool(theirs) and all(here.who.knows(client) for client in theirs))


@api.get("/tokens", operation_id="list_tokens", openapi_extra=needs(Scope.ADMIN),
         responses={200: {"model": shapes.Page[shapes.Token]}})  # fmt: skip
async def listed(here: Here) -> Response:
    """Every token, oldest first, without its secret; those revoked, too."""
    rows = await here.layer.store.read(tokens.listed)
    return told({"items": [tokens.document(row) for row in rows if _within(here, row)], "next": None})


@api.post("/tokens", operation_id="make_token", status_code=201, openapi_extra=needs(Scope.ADMIN, secret=True),
          responses={201: {"model": shapes.MadeToken}})  # fmt: skip
async def make(body: shapes.MakeToken, here: Here) -> Response:
    """Make a token. It is told this once: stored is its hash alone."""
    clients = tuple(dict.fromkeys(body.clients)) or None
    if here.who.clients is not None and (clients is None or not all(here.who.knows(client) for client in clients)):
        raise Problem(403, "forbidden", "this token is for some clients: name some of them for the new one")
    new = new_token(here, body, clients)
    row = await here.layer.store.write(lambda tx: tokens.create(tx, new, here.now_us()), durable=True, client=None)
    return told({**tokens.document(row), "token": new.secret.text}, 201)


def new_token(here: Desk, body: shapes.MakeToken, clients: tuple[str, ...] | None) -> NewToken:
    """The token that a body asks for.

    Raises:
        Problem: a name or a client is none. ValueError: the time is none.
    """
    for text in (body.name, *(clients or ())):
        if text is not None and (not text.isprintable() or not storable(text) or find_secret(text) or "/" in text):
            raise invalid("name, clients: use printable text without '/', and no credential")
    return NewToken(
        secret=tokens.secret("", *here.layer.services.edge.new_secret()), clients=clients, name=body.name,
        scopes=tuple(dict.fromkeys(scope.value for scope in body.scopes)),
        expires_us=tokens.until_us(body.expires, here.now_us()),
    )  # fmt: skip


@api.delete("/tokens/{token_id}", operation_id="revoke_token", openapi_extra=needs(Scope.ADMIN),
            responses={200: {"model": shapes.Token}})  # fmt: skip
async def revoke(token_id: str, here: Here) -> Response:
    """Let a token hold no longer, and the sessions it signed in. Other servers believe it for five seconds more."""
    now_us = here.now_us()

    def unit(tx: Tx) -> Row:
        row = tokens.known(tx, token_id) if storable(token_id) else None
        if row is None or not _within(here, row):
            raise not_found("token", token_id)
        tokens.revoke(tx, token_id, now_us)
        after = tokens.known(tx, token_id)
        assert after is not None  # tokens are never deleted while they hold  # noqa: S101
        return after

    row = await here.layer.store.write(unit, durable=True, client=None)
    here.server.auth.forget()
    return told(tokens.document(row))
