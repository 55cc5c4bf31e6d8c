"""The process behind ``stepseven serve``: a socket, the application, and an end that lets what is under way finish."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import uvicorn

from stepseven._dataclass import dataclass
from stepseven.errors import InvalidArgument
from stepseven.layer import Layer
from stepseven.runtime.checks import refused
from stepseven.server.app import make
from stepseven.store.base import Tx
from stepseven.transitions import tokens
from stepseven.transitions.tokens import NewToken, Scope

GRACE_S = 10  #: what is under way may take so long when the process is told to end
LINK_US = 3600 * 1_000_000  #: how long the link that signs in may wait to be used


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where it is served. ``public_url``: what others call it, if it is behind something."""

    host: str
    port: int
    public_url: str | None = None

    @property
    def loopback(self) -> bool:
        """Whether nobody on another machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """Where it is reached, without a slash at the end."""
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        anywhere = self.host in ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound
        name = "127.0.0.1" if anywhere else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}"


def checked_url(text: str) -> str:
    """The URL under which others reach the server.

    Raises:
        InvalidArgument: it is none, or more than scheme and host.
    """
    why = "give where it is reached, such as https://stepseven.example.com"
    try:
        parts = urlsplit(text)
        bare = parts.path in ("", "/") and not parts.query and not parts.fragment and parts.username is None
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and bare and parts.port != 0
    except ValueError as error:
        raise refused("public_url", text, why) from error
    if not good:
        raise refused("public_url", text, why)
    return text


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        InvalidArgument: that place cannot be had.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise InvalidArgument("host", host, f"it is no address of this machine ({error}): say 127.0.0.1") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(256)
    except OSError as error:
        made.close()
        why = f"{host} cannot be listened on there ({error.strerror or error}): name another --port"
        raise InvalidArgument("port", str(port), why) from error
    return made


async def link(layer: Layer, place: Place, name: str) -> str:
    """A link that signs its reader in, once, as an administrator; it waits for an hour."""
    edge = layer.services.edge
    now_us = edge.now_us()
    new = NewToken(
        secret=tokens.secret("", *edge.new_secret()), scopes=(tokens.ONCE, Scope.ADMIN.value), name=name,
        expires_us=now_us + LINK_US,
    )  # fmt: skip

    def unit(tx: Tx) -> None:
        tokens.create(tx, new, now_us)

    await layer.store.write(unit, durable=True, client=None)
    return f"{place.url}/sign-in?token={new.secret.text}"


class _Process(uvicorn.Server):
    """The server, with an end that ends streams first. *ready* is called once it takes requests, and hears signals."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready, self._stop = ready, stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As it has it."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C end it as they end a worker: what is under way is finished. A second one does not wait."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for one in signals:
            loop.add_signal_handler(one, self._told)
        try:
            yield
        finally:
            for one in signals:
                loop.remove_signal_handler(one)

    def _told(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._stop()


async def serve(layer: Layer, place: Place, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        layer: what is served.
        place: where.
        listening: the socket; it is closed at the end.
        ready: called once requests are taken, and a signal is heard.
    """
    public = urlsplit(place.public_url or "")
    hosts = {name.lower() for name in (place.host, public.hostname, socket.gethostname()) if name}
    app = make(layer, hosts=hosts, secure=public.scheme == "https")
    # No line for each request: a link that signs in has its token in its address. Uvicorn's own words go where ours go.
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, ws="none", lifespan="on", timeout_graceful_shutdown=GRACE_S,
        limit_concurrency=1000, backlog=256,
    )  # fmt: skip
    process = _Process(config, ready, app.state.server.stopping.set)
    try:
        await process.serve(sockets=[listening])
    finally:
        listening.close()
