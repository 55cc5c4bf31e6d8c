"""Where the server itself goes: a look whether a write is there, and answers that are brought to whoever asked.

Only to hosts on the allow-list (``STEPSEVEN_ALLOW``), without following redirects, with an end, and never with a credential of
ours. Everything here blocks: it is called in a thread.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import OpenerDirector, ProxyHandler, Request

from stepseven import __version__
from stepseven.decide import elsewhere
from stepseven.errors import InvalidArgument
from stepseven.runtime.references import ANSWER_S, allow_list, opener, reason_of
from stepseven.store.codec import free_text
from stepseven.transitions.begins import Look, Looked
from stepseven.transitions.fitting import json_or_text

MOST = 1 << 20  #: bytes of an answer that are read
MOST_URL = 2000  #: characters
TRIES = 3  # DESIGN §5.2: an erring look is repeated twice
_PAUSE_S = 0.5
_THERE = range(200, 300)
_MISSING = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)


def checked(url: str, name: str) -> str:
    """A URL that the server may go to.

    Raises:
        InvalidArgument: it is none, holds a credential, or its host is not on the allow-list.
    """
    scheme = elsewhere.scheme_of(url)
    if len(url) > MOST_URL or scheme not in elsewhere.WEB or any(c <= " " or c == "\x7f" for c in url):
        raise InvalidArgument(name, "…", f"give an http:// or https:// URL of at most {MOST_URL} characters")
    try:
        elsewhere.Kept(url)
    except ValueError as wrong:
        raise InvalidArgument(name, "…", str(wrong).replace("of a reference ", "")) from wrong
    if free_text(url, MOST_URL) != url:
        raise InvalidArgument(name, "…", "it holds a credential: what answers there must not need one in its address")
    if not elsewhere.allowed(url, allow_list()):
        plain = "http://" if scheme == "http" else ""  # a bare name means https
        why = f"it is not on the server's allow-list: name {plain}{elsewhere.host_of(url)} in STEPSEVEN_ALLOW where `serve` runs"
        raise InvalidArgument(name, elsewhere.shown(url), why)
    return url


def _opener() -> OpenerDirector:
    """What asks: no redirects, and no proxy that the environment names, which could be anywhere."""
    made: OpenerDirector = opener(ProxyHandler({}))
    return made


def look(wanted: Look, now_us: int, *, pause_s: float = _PAUSE_S) -> Looked:
    """Look whether a write is there: GET, 200 with what is there, or 404. An error is tried twice more.

    Args:
        wanted: what to look for.
        now_us: when the first look begins.
        pause_s: between two looks, in seconds; doubled each time.
    """
    begun, error = time.monotonic(), ""
    for n in range(TRIES):
        if n:
            time.sleep(pause_s * 2 ** (n - 1))
        started_us = now_us + round((time.monotonic() - begun) * 1e6)
        try:
            status, body = _get(wanted)
        except (OSError, HTTPException, ValueError) as failed:
            error = reason_of(failed)
            continue
        if status in _THERE:
            return Looked(claim_id=wanted.claim_id, tries=wanted.tries, found=True, value=_value(body), started_us=started_us)
        if status in _MISSING:
            return Looked(claim_id=wanted.claim_id, tries=wanted.tries, found=False, started_us=started_us)
        error = f"{elsewhere.host_of(wanted.url)} answered {status}"
    return Looked(claim_id=wanted.claim_id, tries=wanted.tries, found=None, why=error, started_us=now_us)


def _get(wanted: Look) -> tuple[int, bytes]:
    request = Request(wanted.url, method="GET")  # noqa: S310 - http and https only, and only what is allowed
    request.add_header("User-Agent", f"stepseven/{__version__}")
    request.add_header("Accept", "application/json")
    request.add_header("Idempotency-Key", wanted.key)
    try:
        with _opener().open(request, timeout=ANSWER_S) as answer:
            return int(answer.status), answer.read(MOST + 1)[:MOST]
    except HTTPError as answer:
        return int(answer.code), b""


def post(url: str, body: bytes, *, idempotency_key: str) -> int:
    """Bring something there; its status.

    Raises:
        OSError: nobody answers.
    """
    request = Request(url, data=body, method="POST")  # noqa: S310 - as above
    request.add_header("User-Agent", f"stepseven/{__version__}")
    request.add_header("Content-Type", "application/json")
    request.add_header("Idempotency-Key", idempotency_key)
    try:
        with _opener().open(request, timeout=ANSWER_S) as answer:
            return int(answer.status)
    except HTTPError as answer:
        return int(answer.code)


def _value(body: bytes) -> Any:
    """What was found: JSON, or its text."""
    value = json_or_text(body.decode("utf-8", "replace")) if body else None
    return free_text(value) if isinstance(value, str) else value
