"""``/v1/runs/{run}/events``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Header
from starlette.responses import Response, StreamingResponse

from stepseven.server import sight, sse
from stepseven.server.problems import Problem
from stepseven.server.routes import Here, needs, router
from stepseven.transitions.tokens import Scope

api = router("runs")


@api.get(
    "/runs/{run_id}/events", operation_id="get_events", openapi_extra=needs(Scope.READ),
    responses={200: {"content": {sse.MEDIA_TYPE: {"schema": {"type": "string"}}}, "description": "Events, until the run ends."}},
)  # fmt: skip
async def events(run_id: str, here: Here, last_event_id: Annotated[str | None, Header()] = None) -> Response:
    """What becomes of a run, as it happens: `step` (with the record's seq as id), `question`, `run`, and at last `end`."""
    run = await sight.run(here, run_id)
    streams = here.server.streams
    if len(streams) >= sse.MOST_STREAMS:
        raise Problem(429, "too_many", "too many streams are open: close one, or ask again later", headers={"Retry-After": "30"})
    name = here.layer.services.edge.new_id("e")

    async def counted() -> AsyncIterator[bytes]:
        streams.add(name)
        try:
            async for each in sse.events(here, run, sse.Told(seq=sse.since(last_event_id))):
                yield each
        finally:
            streams.discard(name)

    return StreamingResponse(counted(), media_type=sse.MEDIA_TYPE, headers={"X-Accel-Buffering": "no"})
