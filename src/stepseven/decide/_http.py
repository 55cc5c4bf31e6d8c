"""What an HTTP answer means: its status, its ``Retry-After``, its error code, whose answer it was.

Works on attributes alone, so no client library is imported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from http import HTTPStatus
from urllib.parse import urlsplit

from stepseven._dataclass import dataclass
from stepseven.decide._chain import attribute, frames, module, text_of
from stepseven.decide._verdict import Asked, Handling, Proof, Verdict, sentence, signature

STATUSES: Mapping[int, tuple[Handling, Proof, str]] = {
    400: (Handling.FIXABLE, Proof.REFUSED, "Bad Request"),
    401: (Handling.FIXABLE, Proof.REFUSED, "Unauthorized"),
    402: (Handling.FIXABLE, Proof.REFUSED, "Payment Required"),
    403: (Handling.FIXABLE, Proof.REFUSED, "Forbidden"),
    404: (Handling.FIXABLE, Proof.REFUSED, "Not Found"),  # fatal for a subject=True step, like 410
    405: (Handling.FIXABLE, Proof.REFUSED, "Method Not Allowed"),
    408: (Handling.RETRYABLE, Proof.NONE, "Request Timeout"),
    409: (Handling.FIXABLE, Proof.NONE, "Conflict"),  # perhaps our own earlier write
    410: (Handling.FIXABLE, Proof.REFUSED, "Gone"),
    413: (Handling.FIXABLE, Proof.REFUSED, "Content Too Large"),
    415: (Handling.FIXABLE, Proof.REFUSED, "Unsupported Media Type"),
    422: (Handling.FIXABLE, Proof.REFUSED, "Unprocessable Content"),
    425: (Handling.RETRYABLE, Proof.NONE, "Too Early"),
    429: (Handling.DEFERRAL, Proof.REFUSED, "Too Many Requests"),
    500: (Handling.RETRYABLE, Proof.NONE, "Internal Server Error"),
    502: (Handling.RETRYABLE, Proof.NONE, "Bad Gateway"),
    503: (Handling.DEFERRAL, Proof.NONE, "Service Unavailable"),
    504: (Handling.RETRYABLE, Proof.NONE, "Gateway Timeout"),
    529: (Handling.DEFERRAL, Proof.NONE, "Overloaded"),  # not registered; Anthropic's API
}
_SUBJECT_GONE = (404, 410)
_ERRORS = range(400, 600)

_QUOTA = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "billing_error"})
_NOT_NOW = frozenset(
    {"rate_limit_exceeded", "rate_limit_error", "overloaded_error", "slow_down"}  # OpenAI, Anthropic
    | {"TooManyRequestsException", "RequestLimitExceeded", "ProvisionedThroughputExceededException"}  # AWS
    | {"RequestThrottled", "RequestThrottledException", "BandwidthLimitExceeded", "SlowDown", "PriorRequestNotComplete"}
)
_AGAIN = frozenset({"api_error", "server_error", "internal_server_error", "timeout_error"})
_OVERFLOW = "context_length_exceeded"
_KNOWN = _QUOTA | _NOT_NOW | _AGAIN | {_OVERFLOW}
_THROTTLED = "Throttl"  #: AWS: Throttling, ThrottlingException, ThrottledException
#: Anthropic, Gemini, Bedrock and many OpenAI-compatible servers have no code for it: their text is the only sign.
_OVERFLOW_TEXTS = (
    "prompt is too long",
    "maximum context length",
    "context window",
    "exceeds the maximum number of tokens",
    "input is too long for requested model",
)
_OVERFLOW_STATUSES = (400, 413, 422)

_LONGEST_S = 366 * 86_400  #: a longer Retry-After is cut to a year; policy gives up much earlier
_PORTS = {"http": 80, "https": 443}
#: module and function → local variable: exceptions that name no URL (urllib's URLError, aiohttp's time-outs) passed here
_URL_LOCALS = {("urllib.request", "do_open"): "host", ("aiohttp.client", "_request"): "url"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An error answer as far as an exception tells. ``status`` is ``None`` for an error inside a 200 (streams)."""

    status: int | None
    codes: frozenset[str]  #: only those the tables know
    detail: str | None
    text: str
    retry_after_us: int | None
    family: frozenset[str]


def answer_of(error: BaseException, *, now_us: int) -> Answer | None:
    """The error answer an exception carries, or ``None``."""
    status = _status(error)
    codes = frozenset(code for code in _codes(error) if code in _KNOWN or code.startswith(_THROTTLED))
    retry_after = _retry_after_us(error, now_us)
    if status is None and not codes and retry_after is None:
        return None
    return Answer(
        status=status,
        codes=codes,
        detail=_detail(error),
        text=text_of(error).lower(),
        retry_after_us=retry_after,
        family=frozenset(cls.__module__.partition(".")[0] for cls in type(error).__mro__),
    )


def judge(answer: Answer, asked: Asked, host: str | None) -> Verdict:
    """What an error answer means. The order of the questions is the order of precedence."""
    status = answer.status
    handling, proof, phrase = _row(status)
    narrow = False
    cause = str(status) if status else (min(answer.codes) if answer.codes else "not-now")
    if answer.codes & _QUOTA:
        handling, cause = Handling.FIXABLE, "quota"
    elif _overflowed(answer):
        handling, narrow, cause = Handling.RETRYABLE, True, "context-overflow"
    elif answer.retry_after_us is not None or _not_now(answer):
        handling = Handling.DEFERRAL
    elif status is None and answer.codes & _AGAIN:
        handling = Handling.RETRYABLE
    elif asked.subject and status in _SUBJECT_GONE:
        handling = Handling.FATAL
    where = asked.resource or host
    said = f"{where or 'the other side'} answered {status or 'with an error'} {phrase}".rstrip()
    return Verdict(
        handling=handling,
        proof=proof,
        reason=sentence(f"{said}: {answer.detail}" if answer.detail else said),
        status=status,
        retry_after_us=answer.retry_after_us if handling is Handling.DEFERRAL else None,
        resource=where,
        narrow=narrow,
        signature=signature(cause, asked, host),
    )


def _row(status: int | None) -> tuple[Handling, Proof, str]:
    if status is None:
        return Handling.FIXABLE, Proof.NONE, ""
    known = STATUSES.get(status)
    if known is not None:
        return known
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
    return (Handling.RETRYABLE if status >= HTTPStatus.INTERNAL_SERVER_ERROR else Handling.FIXABLE), Proof.NONE, phrase


def _overflowed(answer: Answer) -> bool:
    if _OVERFLOW in answer.codes:
        return True
    if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and "anthropic" in answer.family:
        return True
    return answer.status in _OVERFLOW_STATUSES and any(sign in answer.text for sign in _OVERFLOW_TEXTS)


def _not_now(answer: Answer) -> bool:
    return any(code in _NOT_NOW or code.startswith(_THROTTLED) for code in answer.codes)


# -- reading an exception's attributes --------------------------------------------------------------------------------


def _item(thing: object, *path: str) -> object:
    """A value inside nested mappings, or ``None``."""
    for name in path:
        if not isinstance(thing, Mapping):
            return None
        thing = thing.get(name)
    return thing


def _status(error: BaseException) -> int | None:
    if not isinstance(error, Exception):  # SystemExit has a ``code``
        return None
    answer = attribute(error, "response")
    told = (
        attribute(answer, "status_code"),
        attribute(answer, "status"),
        _item(answer, "ResponseMetadata", "HTTPStatusCode"),
        *(attribute(error, name) for name in ("status_code", "status", "http_status", "code")),
        attribute(attribute(error, "resp"), "status"),
    )
    return next((int(s) for s in told if isinstance(s, int) and not isinstance(s, bool) and s in _ERRORS), None)


def _codes(error: BaseException) -> Iterator[str]:
    body = attribute(error, "body")
    for code in (
        *(attribute(error, name) for name in ("code", "type", "error_code")),
        *(_item(body, name) for name in ("code", "type")),
        *(_item(body, "error", name) for name in ("code", "type")),
        _item(attribute(error, "response"), "Error", "Code"),
    ):
        if isinstance(code, str):
            yield str(code)


def _detail(error: BaseException) -> str | None:
    """What the other side says is wrong, where a library has parsed it out already."""
    body = attribute(error, "body")
    told = (
        _item(body, "error", "message"),
        _item(body, "message"),
        _item(attribute(error, "response"), "Error", "Message"),
    )
    return next((text for text in told if isinstance(text, str) and text), None)


def _headers(error: BaseException) -> dict[str, str]:
    answer = attribute(error, "response")
    found: dict[str, str] = {}
    for headers in (
        attribute(error, "headers"),
        attribute(answer, "headers"),
        _item(answer, "ResponseMetadata", "HTTPHeaders"),
    ):
        pairs = attribute(headers, "items")
        if callable(pairs):
            found.update((str(name).lower(), str(value)) for name, value in pairs())
    return found


def _retry_after_us(error: BaseException, now_us: int) -> int | None:
    headers = _headers(error)
    if "retry-after-ms" in headers:
        wait = wait_us(headers["retry-after-ms"], 1_000)
        if wait is not None:
            return wait
    value = headers.get("retry-after")
    if value is not None:
        wait = wait_us(value, 1_000_000)
        return wait if wait is not None else _until_us(value, now_us)
    told = attribute(error, "retry_after")  # bot and mail libraries parse it: seconds
    return wait_us(told, 1_000_000) if isinstance(told, int | float) and not isinstance(told, bool) else None


def wait_us(value: str | float, unit_us: int) -> int | None:
    """*value* units as whole microseconds, at most a year; ``None`` when it is negative or no number."""
    try:
        wait = float(value)
    except ValueError:
        return None
    if not math.isfinite(wait) or wait < 0:
        return None
    return min(round(wait * unit_us), _LONGEST_S * 1_000_000)


def _until_us(value: str, now_us: int) -> int | None:
    """Microseconds from now to an HTTP date; 0 when it is past."""
    from email.utils import parsedate_to_datetime  # loads eight modules, for a date that few servers send

    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    at_us = round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()) * 1_000_000
    return min(max(at_us - now_us, 0), _LONGEST_S * 1_000_000)


def host_of(links: Sequence[BaseException]) -> str | None:
    """``host`` or ``host:port`` (unless it is the scheme's own port) of the failing URL, lower case, without credentials."""
    return next((host for link in links for host in _hosts(link) if host), None)


def _hosts(error: BaseException) -> Iterator[str | None]:
    for url in (
        attribute(attribute(error, "response"), "url"),
        attribute(attribute(error, "request"), "url"),
        attribute(attribute(error, "request_info"), "real_url"),
        attribute(error, "url"),
        _item(attribute(error, "kwargs"), "endpoint_url"),  # botocore
    ):
        yield _host(str(url)) if url else None
    own = vars(error)  # not attribute(): urllib3's NewConnectionError.pool is a property that warns
    for peer in (error, own.get("conn"), own.get("pool")):
        host, port = attribute(peer, "host"), attribute(peer, "port")
        if isinstance(host, str) and host and isinstance(port, int):
            yield _host(f"//{f'[{host}]' if ':' in host else host}:{port}")
    database = attribute(error, "pgconn")  # psycopg: bytes; a folder for a Unix socket is no host
    host, port = attribute(database, "host"), attribute(database, "port")
    if isinstance(host, bytes) and isinstance(port, bytes):
        yield _host(f"//{host.decode(errors='replace')}:{port.decode(errors='replace')}")
    for frame in frames(error):
        local = _URL_LOCALS.get((module(frame), frame.f_code.co_name))
        if local is not None:
            url = str(frame.f_locals.get(local, ""))
            yield _host(url if "//" in url else f"//{url}")


def _host(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host:
        return None
    shown = f"[{host}]" if ":" in host else host
    usual = (_PORTS.get(parts.scheme),) if parts.scheme else tuple(_PORTS.values())  # a bare host and port: either could be meant
    return shown if port is None or port in usual else f"{shown}:{port}"
