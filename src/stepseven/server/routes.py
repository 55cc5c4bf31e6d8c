"""How every path of the API is answered: who asks, may they, is the body JSON, was it done before; and only then the handler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import field
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from stepseven._dataclass import dataclass
from stepseven.errors import Superseded
from stepseven.layer import Layer
from stepseven.server import replies
from stepseven.server.auth import Auth
from stepseven.server.limits import Rate, json_of
from stepseven.server.problems import Problem, problem_of
from stepseven.server.shapes import PROBLEMS
from stepseven.transitions.tokens import Who

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_CHANGES = frozenset({"POST", "PATCH", "PUT", "DELETE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What all requests share. ``stopping`` is set when the process is told to end: what streams ends then."""

    layer: Layer
    auth: Auth
    sign_ins: Rate
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    secure: bool = False
    streams: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class Desk:
    """One request: whose, in which server. ``client_id``: whom it is about, once that is known.

    ``once``: what stands in the ids it makes, where it came with an ``Idempotency-Key``.
    """

    server: Server
    who: Who
    client_id: str | None = None
    once: str | None = None

    @property
    def layer(self) -> Layer:
        """The layer it works on."""
        return self.server.layer

    def now_us(self) -> int:
        """The time."""
        return self.layer.services.edge.now_us()


def server_of(request: Request) -> Server:
    """What all requests share."""
    server: Server = request.app.state.server
    return server


def _desk(request: Request) -> Desk:
    desk: Desk = request.state.desk
    return desk


Here = Annotated[Desk, Depends(_desk)]  #: a handler's way to its request


def needs(*scopes: str, secret: bool = False) -> dict[str, Any]:
    """What a route of the API says of itself: one of these scopes is needed.

    Args:
        scopes: any of them is enough; ``admin`` always is.
        secret: its answer holds a token.
    """
    return {"x-scopes": list(scopes), **({"x-secret": True} if secret else {}), "security": [{"bearer": []}, {"session": []}]}


class _Json(Request):
    """A request whose body was read and taken for JSON by us."""

    parsed: Any = None

    async def json(self) -> Any:
        """What it says."""
        return self.parsed


class ApiRoute(APIRoute):
    """A route whose handler is reached only by who may."""

    def get_route_handler(self) -> Handler:
        """As FastAPI has it, with ours around it."""
        inner, extra = super().get_route_handler(), self.openapi_extra or {}

        async def handler(request: Request) -> Response:
            asked = _Json(request.scope, request.receive)
            try:
                return await _answer(asked, inner, tuple(extra.get("x-scopes", ())), secret="x-secret" in extra)
            except (Exception, Superseded) as error:  # noqa: BLE001 - whatever it is, one sentence goes out
                return problem_of(error).response()

        return handler


async def _answer(request: _Json, inner: Handler, scopes: tuple[str, ...], *, secret: bool) -> Response:
    server = server_of(request)
    who = await server.auth.who(request)
    if not who.may(*scopes):
        raise Problem(403, "forbidden", f"this needs a token with the scope {' or '.join(scopes)}", scopes=list(scopes))
    if who.run_no is not None and "run_id" not in request.path_params:
        raise Problem(403, "one_run", "this token executes one run, and may ask about nothing else")
    desk = request.state.desk = Desk(server=server, who=who)
    body = b""
    if request.method in _CHANGES:
        body = await request.body()
        if body:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
                raise Problem(415, "unsupported_media_type", "send JSON, with `Content-Type: application/json`")
            request.parsed = json_of(body)
    key = request.headers.get("idempotency-key") if request.method == "POST" else None
    if key is None:
        return await inner(request)
    asked = replies.request(who.id, key, request.method, str(request.url.path), body)
    desk.once = asked.once
    return await replies.once(server.layer, asked, _telling(request, inner), lambda: desk.client_id, secret=secret)


def _telling(request: Request, inner: Handler) -> Callable[[], Awaitable[Response]]:
    """The handler, with what it raises as an answer: that is kept, too."""

    async def do() -> Response:
        try:
            return await inner(request)
        except (Exception, Superseded) as error:  # noqa: BLE001 - as above
            return problem_of(error).response()

    return do


def router(tag: str) -> APIRouter:
    """An empty router of the API. *tag*: what it is about."""
    return APIRouter(prefix="/v1", tags=[tag], route_class=ApiRoute, responses=PROBLEMS)


def told(document: Any, status: int = 200, **headers: str) -> Response:
    """A document as JSON."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, default=str)
    return Response(text, status, headers=headers, media_type="application/json")
