"""The application: the API over one layer, with what stands in front of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from stepseven import __version__
from stepseven.errors import StepsevenError
from stepseven.layer import Layer
from stepseven.server import errands, problems, replies, shapes, signin
from stepseven.server.api import clients, events, health, incidents, questions, runs, steps, tokens
from stepseven.server.auth import SESSION, Auth
from stepseven.server.limits import Front, Rate
from stepseven.server.pages import clients as client_pages
from stepseven.server.pages import inbox, links, static
from stepseven.server.pages import runs as run_pages
from stepseven.server.problems import Problem
from stepseven.server.routes import Server
from stepseven.transitions import tokens as kept

TIDY_S = 3600.0  #: how often what is over is taken away: sessions, links, replies
SIGN_INS, SIGN_INS_S = 10, 60.0  #: so many tries to sign in, in so many seconds, from one address
_ABOUT = """What agents, n8n, Make and pages use: start runs, look at them, answer questions.

Times are microseconds since the epoch (UTC), money is USD. Errors are `application/problem+json`; their `code` is the same word
for the same cause. Lists are pages: `next` is the `cursor` of the next one. `Idempotency-Key` on any POST: it is done once, and
the same is told for a day. Another client's ids are 404.
"""
_log = logging.getLogger("stepseven.server")


def make(layer: Layer, *, hosts: Collection[str] = (), secure: bool = False) -> FastAPI:
    """The application over a layer. It executes no runs: workers do.

    Args:
        layer: what it works on; closing it is the caller's.
        hosts: names under which it is reached, besides addresses and those without a dot.
        secure: browsers reach it by https: cookies are sent by nothing else.

    Returns:
        An ASGI application. ``app.state.server.stopping`` set: streams end.
    """
    edge = layer.services.edge
    server = Server(
        layer=layer, auth=Auth(layer, secure=secure), sign_ins=Rate(SIGN_INS, SIGN_INS_S, edge.monotonic), secure=secure
    )
    app = FastAPI(
        title="stepseven", version=__version__, description=_ABOUT, docs_url=None, redoc_url=None, lifespan=_life,
        swagger_ui_oauth2_redirect_url=None,
    )  # fmt: skip
    app.state.server = server
    for api in (runs.api, steps.api, events.api, questions.api, incidents.api, clients.api, tokens.api, signin.api, health.api,
                static.pages, links.pages, inbox.pages, run_pages.pages, client_pages.pages, signin.pages):  # fmt: skip
        app.include_router(api)
    for kind in (Problem, RequestValidationError, HTTPException, StepsevenError):
        app.add_exception_handler(kind, problems.handle)
    app.add_middleware(_Last)
    app.add_middleware(Front, hosts=hosts, secure=secure)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]  # FastAPI's own way to say more
    return app


class _Last:
    """What nobody expected, as a problem: the framework's own answer would be text, and its log would say it twice."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI has it."""
        begun = False

        async def noting(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            await problems.problem_of(error).response()(scope, receive, send)


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    """While it serves, what is over is taken away now and then."""
    server: Server = app.state.server
    tasks = (
        asyncio.create_task(_tidy(server), name="stepseven tidy"),
        asyncio.create_task(errands.run(server.layer), name="stepseven errands"),
    )
    try:
        yield
    finally:
        server.stopping.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _tidy(server: Server) -> None:
    while True:
        try:
            now_us = server.layer.services.edge.now_us()
            await server.layer.store.write(lambda tx, now=now_us: kept.tidy(tx, now), durable=False, client=None)  # type: ignore[misc]
            await replies.tidy(server.layer)
        except StepsevenError as error:
            _log.warning("what is over could not be taken away: %s", error)
        await asyncio.sleep(TIDY_S)


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document: as the framework makes it, with problems and who may ask."""
    if app.openapi_schema is None:
        made = FastAPI.openapi(app)
        parts = made.setdefault("components", {})
        parts.setdefault("schemas", {})["Problem"] = shapes.Problem.model_json_schema()
        for unused in ("HTTPValidationError", "ValidationError"):
            parts["schemas"].pop(unused, None)
        parts["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer", "description": "`stepseven token create` makes one."},
            "session": {"type": "apiKey", "in": "cookie", "name": SESSION, "description": "Somebody who signed in."},
        }
        for path in made["paths"].values():
            for operation in path.values():
                operation.pop("x-secret", None)
                if (scopes := operation.get("x-scopes")) is not None:
                    operation["description"] = f"{operation.get('description', '')}\n\nScope: {' or '.join(scopes)}.".strip()
        for path in made["paths"].values():
            if "post" in path:
                path["post"].setdefault("parameters", []).append({
                    "name": "Idempotency-Key", "in": "header", "required": False,
                    "schema": {"type": "string", "minLength": 1, "maxLength": replies.MOST_KEY},
                    "description": "The same key and request: done once, and told the same for a day.",
                })  # fmt: skip
        app.openapi_schema = made
    return app.openapi_schema
