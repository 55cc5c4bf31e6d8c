"""JSON over HTTP with the standard library alone, for steps that are plain functions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

if TYPE_CHECKING:
    from email.message import Message

TIMEOUT = 5.0
"""Seconds without a byte from the other side; well below the 30 s a write step has, so that the answer is ours to judge."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: ``headers.get`` ignores case; ``body`` is the decoded JSON, or the text when it is none."""

    status_code: int
    headers: Message
    body: Any


class ApiError(Exception):
    """The other side answered, and it is not what was asked for. ``response`` and ``body`` say what."""

    def __init__(self, what: str, response: Reply) -> None:
        message = response.body.get("message") if isinstance(response.body, dict) else None
        super().__init__(f"{what}: {response.status_code} {message or 'no reason given'}")
        self.response = response
        self.body = response.body


class _NoRedirects(HTTPRedirectHandler):
    """A write is one request to the address it was meant for; a redirect comes back as the answer it is."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


_opener = build_opener(_NoRedirects)


def send(method: str, url: str, body: object = None, *, idempotency_key: str | None = None) -> Reply:
    """Send one request and read the whole answer, whatever its status.

    Raises:
        OSError: no answer (``TimeoutError`` and ``ConnectionError`` are among them).
        http.client.HTTPException: the answer broke off, or is no HTTP.
    """
    headers = {"Accept": "application/json"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if idempotency_key is not None:
        headers["Idempotency-Key"] = idempotency_key
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, headers, method=method)  # noqa: S310 - the command line lets http and https through only
    try:
        with _opener.open(request, timeout=TIMEOUT) as answer:
            return Reply(answer.status, answer.headers, _decoded(answer.read()))
    except HTTPError as answer:
        with answer:
            return Reply(answer.code, answer.headers, _decoded(answer.read()))


def _decoded(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError:  # an error page of something in between
        return content.decode("utf-8", "replace")
