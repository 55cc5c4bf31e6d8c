"""What pages load: one style sheet and one script, from here and nowhere else."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stepseven.server.pages.frame import HERE, assets
from stepseven.server.problems import not_found

pages = APIRouter(include_in_schema=False)
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@pages.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    """A file that comes with this version; its URL names its content, so that it can be kept."""
    if name not in assets():
        return not_found("file", name).response()
    path = HERE / "static" / name
    kept = "public, max-age=31536000, immutable" if request.url.query else "no-cache"
    return Response(path.read_bytes(), headers={"cache-control": kept}, media_type=_KINDS.get(path.suffix, "text/plain"))
