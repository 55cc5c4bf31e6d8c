"""``serve``: the HTTP API, and the way to sign in."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Annotated

import typer

from stepseven.cli import _code
from stepseven.cli._common import Refused, Setting, clean, command, err, login, out, print_json
from stepseven.cli.worker import Modules
from stepseven.people.links import PUBLIC_URL
from stepseven.people.postman import Postman
from stepseven.store._url import hide_password

if TYPE_CHECKING:
    from stepseven.server.serving import Place

PORT = 7700
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where it listens; 0.0.0.0: for other machines, too.")]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="On which port; 0: any free one.")]
PublicUrl = Annotated[
    str | None,
    typer.Option("--public-url", metavar="URL", help="What others call it: https://NAME. Default: STEPSEVEN_PUBLIC_URL."),
]


async def serve(
    setting: Setting, modules: Modules = None, host: Host = "127.0.0.1", port: Port = PORT, public_url: PublicUrl = None
) -> None:
    """The HTTP API, until SIGTERM or Ctrl-C. It executes no runs: `stepseven worker` does. MODULE: code that plans look at."""
    try:
        from stepseven.server import serving
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise Refused("the server's libraries are missing: pip install 'stepseven[server]'") from error
    told = public_url or os.environ.get(PUBLIC_URL)
    public = serving.checked_url(told) if told else None
    for name in _code.modules(modules or []):
        _code.load(name)
    listening = serving.listen(host, port)
    try:
        place = serving.Place(host=host, port=listening.getsockname()[1], public_url=public)
        logging.getLogger("stepseven.server").addHandler(_Lines(logging.WARNING))
        logging.getLogger("uvicorn").addHandler(_Lines(logging.WARNING))
        async with setting.layer(create=True) as layer:
            link = await serving.link(layer, place, login())
            postman = Postman(layer.store, layer.services.edge, public_url=public)  # people are told without a worker, too
            postman.start()
            try:
                await serving.serve(layer, place, listening, lambda: _introduce(setting, place, link))
            finally:
                await asyncio.to_thread(postman.stop)
    finally:
        listening.close()
    if not setting.as_json:
        out().print("Stopped. What was under way was finished.")


def _introduce(setting: Setting, place: Place, link: str) -> None:
    """Where it is, how to sign in, what it does not do: before the first request."""
    if setting.as_json:
        print_json({"url": place.url, "port": place.port, "sign_in": link, "store": hide_password(setting.url)})
    else:
        console = out()
        console.print(clean(f"The HTTP API of {hide_password(setting.url)} is at {place.url}"))
        console.print(clean(f"Sign in once, within an hour: {link}"))
        made = command("token", "create", "--scope", "read", *setting.also)
        console.print(clean(f"Programs need a token: {made}"))
        console.print("It executes no runs: a worker does (`stepseven worker MODULE`). Ctrl-C stops it.")
    if not place.loopback and not place.url.startswith("https://"):
        err().print(
            "! Other machines can reach this, and without https others on the way can read tokens: put https in front of it, "
            "and say --public-url https://NAME."
        )


class _Lines(logging.Handler):
    """What the server has to say of itself, as a line on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print it."""
        err().print(clean(f"! {record.getMessage()}"))
