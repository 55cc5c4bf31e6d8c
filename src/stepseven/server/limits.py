"""What is looked at before anything else: which host is meant, how large and how deep a body is, how often somebody signs in."""

from __future__ import annotations

import ipaddress
import json
import re
from collections import deque
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepseven.server.problems import Problem, invalid

MOST_BYTES = 1 << 20  #: of a body
MOST_DEEP = 64  #: lists and objects in one another
_HALF = re.compile("[\ud800-\udfff]")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKET = re.compile(rb"[^][{}]+")

#: On everything. Pages are our own, in one piece: nothing is loaded from elsewhere, nothing may show them inside itself.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def safe_host(host: str, known: Collection[str]) -> bool:
    """Whether a ``Host`` header can be meant for us.

    A page of a stranger can make a name of theirs point at this machine, and then ask us as if it were its own (DNS rebinding).
    It cannot do that with an address, nor with a name without a dot, which no stranger owns.

    Args:
        host: the header.
        known: names that were told: of ``--host`` and ``--public-url``.
    """
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    if not name:
        return False
    name = name.lower().rstrip(".")
    if name in known or "." not in name or name.endswith(".localhost"):
        return bool(re.fullmatch(r"[a-z0-9._-]+", name)) or _is_address(name)
    return _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Front:
    """The outermost layer of the application: host, size of the body, and the headers of every answer.

    Args:
        app: what is behind it.
        hosts: names besides addresses and those without a dot.
        secure: it is reached by https: browsers are told to stay with that.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] = (), secure: bool = False) -> None:
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)
        self.headers = {**HEADERS, **({"strict-transport-security": "max-age=31536000"} if secure else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        problem = self._refused(headers)
        if problem is not None:
            await problem.response()(scope, receive, dressed)
            return
        await self.app(scope, _counted(receive), dressed)

    def _refused(self, headers: Headers) -> Problem | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not safe_host(hosts[0], self.hosts):
            return Problem(421, "wrong_host", "this server does not answer to that name: start it with --public-url https://NAME")
        length = headers.get("content-length")
        if length is not None and length.isascii() and length.isdigit() and int(length) > MOST_BYTES:
            return too_large()
        return None


def too_large() -> Problem:
    """A body over the limit."""
    why = f"the body is over {MOST_BYTES:,} bytes: store what is large elsewhere, and send a reference to it"
    return Problem(413, "too_large", why, limit=MOST_BYTES, headers={"Connection": "close"})


def _counted(receive: Receive) -> Receive:
    """The body as it comes, until it is more than is taken: a length that was told is not believed."""
    got = 0

    async def limited() -> Message:
        nonlocal got
        message = await receive()
        if message["type"] == "http.request":
            got += len(message.get("body", b""))
            if got > MOST_BYTES:
                raise too_large()
        return message

    return limited


# -- bodies ---------------------------------------------------------------------------------------------------------------


def json_of(body: bytes) -> Any:
    """A body as JSON has it, and nothing that only Python takes for JSON.

    Raises:
        Problem: it is none; or it is nested too deep, has a name twice in one object, or a number or text that no row can hold.
    """
    if depth(body) > MOST_DEEP:
        raise invalid(f"the body is nested deeper than {MOST_DEEP}: send it flatter")
    try:
        text = body.decode("utf-8")
        value = json.loads(text, parse_constant=_constant, object_pairs_hook=_pairs, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise invalid("the body is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise invalid(f"the body is no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:
        raise invalid(f"the body is no JSON that can be kept: {error}") from error
    if "\\u" in text and _HALF.search(json.dumps(value, ensure_ascii=False)):
        raise invalid("the body has half a character in it (a \\ud800-\\udfff without its other half)")
    return value


def _constant(word: str) -> Any:
    raise ValueError(f"JSON has no {word}")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(found)
    if len(made) != len(found):
        twice = next(name for i, (name, _) in enumerate(found) if name in [n for n, _ in found[:i]])
        raise ValueError(f"an object has {twice[:60]!r} twice")
    return made


def depth(body: bytes) -> int:
    """How deep lists and objects are in one another, before anything parses them: a parser would run out of stack."""
    deepest = now = 0
    for byte in _NO_BRACKET.sub(b"", _STRING.sub(b"", body)):
        now += 1 if byte in b"[{" else -1
        deepest = max(deepest, now)
    return deepest


# -- rates ------------------------------------------------------------------------------------------------------------------


class Rate:
    """At most *most* of something in *seconds*, for each name. Kept in this process, for the names heard of lately.

    Args:
        most: how many.
        seconds: in how long.
        clock: a steady one, in seconds.
    """

    def __init__(self, most: int, seconds: float, clock: Callable[[], float]) -> None:
        self.most, self.seconds, self._clock = most, seconds, clock
        self._seen: dict[str, deque[float]] = {}

    def wait(self, name: str) -> float:
        """For how long *name* has to wait, in seconds; 0: it is counted as one more."""
        now = self._clock()
        if len(self._seen) > 10_000:  # noqa: PLR2004 - so many addresses are no people
            self._seen = {known: times for known, times in self._seen.items() if times and now - times[-1] < self.seconds}
        times = self._seen.setdefault(name, deque())
        while times and now - times[0] >= self.seconds:
            times.popleft()
        if len(times) >= self.most:
            return self.seconds - (now - times[0])
        times.append(now)
        return 0.0
