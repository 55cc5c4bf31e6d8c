"""``/healthz`` and ``/readyz``: for whoever looks after the process. Nobody has to say who they are, and nothing is told."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stepseven.server import shapes
from stepseven.server.problems import Problem
from stepseven.server.routes import server_of, told

api = APIRouter(tags=["health"])


@api.get("/healthz", operation_id="get_health", responses={200: {"model": shapes.Health}})
async def health() -> Response:
    """The process answers."""
    return told({"status": "ok"})


@api.get("/readyz", operation_id="get_ready", responses={200: {"model": shapes.Health}, 503: {"description": "It can not."}})
async def ready(request: Request) -> Response:
    """It can work: the store is there and has the schema that this version knows."""
    server = server_of(request)
    if server.stopping.is_set():
        raise Problem(503, "stopping", "the server is stopping", headers={"Retry-After": "5"})
    row = await server.layer.store.read(lambda tx: tx.one(tx.sql.store, {}))
    if row is None:
        raise Problem(503, "unavailable", "the store has no schema", headers={"Retry-After": "5"})
    return told({"status": "ok"})
