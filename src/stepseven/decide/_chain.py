"""How exceptions hang together: what one was made from, what came before it, where it passed.

Two kinds of link are told apart. *Explicit*: ``__cause__``, or an exception handed to another one (``args``, ``reason`` …):
the author says "this is why". *Implicit*: ``__context__`` alone: "this was being handled", which may be another request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FrameType

MAX_LINKS = 50  #: of one chain; far above what wrapping does, low enough for a chain that loops through new objects

#: where libraries keep the exception they wrap: urllib and urllib3, aiohttp, urllib3's ProxyError, frameworks, SQLAlchemy
_WRAPPED = ("reason", "os_error", "original_error", "original_exception", "orig")

#: module, local variable, its value before anything was sent. Of a request that fails *after* a redirect or after the
#: library's own retry the exception says nothing: only the frames it passed do.
_SENT_BEFORE = (
    ("openai._base_client", "retries_taken", 0),
    ("anthropic._base_client", "retries_taken", 0),
    ("botocore.endpoint", "attempts", 1),
)
_HISTORIES = frozenset({"httpx._client", "httpx2._client", "aiohttp.client"})
_REDIRECTING = frozenset({("requests.sessions", "resolve_redirects"), ("urllib.request", "http_error_302")})
_CONNECTING = frozenset({("psycopg.connection", "connect"), ("psycopg.connection_async", "connect")})
_CHALLENGES = (401, 407)  #: refused and asked for credentials: the request that follows is the first that counts


def attribute(thing: object, name: str) -> object:
    """Attribute *name*, or ``None``: a foreign property may raise anything, and then has no answer."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - httpx raises RuntimeError for an unset request, others what they like
        return None


def text_of(error: BaseException) -> str:
    """The message, or nothing where a foreign ``__str__`` fails: the class still says something then."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - may raise anything
        return ""


def explicit(error: BaseException) -> list[BaseException]:
    """*error* and everything it was explicitly made from, nearest first, each once."""
    links: list[BaseException] = []
    todo = [error]
    while todo and len(links) < MAX_LINKS:
        link = todo.pop()
        if not any(link is known for known in links):
            links.append(link)
            todo.extend(reversed(list(_made_from(link))))
    return links


def _made_from(error: BaseException) -> Iterator[BaseException]:
    held = [*error.args, *(attribute(error, name) for name in _WRAPPED), error.__cause__]
    return (link for link in held if isinstance(link, BaseException))


def before(links: Sequence[BaseException]) -> list[BaseException]:
    """What was being handled when *links* were raised, without what they were made from."""
    contexts = (link.__context__ for link in links if not link.__suppress_context__)
    return [error for error in contexts if error is not None and not any(error is link for link in links)]


def frames(error: BaseException) -> Iterator[FrameType]:
    """The frames an exception passed, outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def passed(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The same, each with the line at which the exception passed it."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def module(frame: FrameType) -> str:
    """Name of the module a frame belongs to."""
    return str(frame.f_globals.get("__name__", ""))


def while_connecting(error: BaseException) -> bool:
    """Whether a database driver was still connecting (psycopg gives refused, unknown host and lost one class)."""
    return any((module(frame), frame.f_code.co_name) in _CONNECTING for frame in frames(error))


def sent_before(links: Sequence[BaseException]) -> bool:
    """Whether the failing request was not the first: after a followed redirect or a library's own retry.

    An answer with a redirect may mean "done", and a first try may have arrived, so a proof about the last request
    proves nothing about the step.
    """
    return any(_redirected(link) or _repeated(link) for link in links)


def _redirected(error: BaseException) -> bool:
    histories = [attribute(error, "history"), attribute(attribute(error, "response"), "history")]
    for frame in frames(error):
        if (module(frame), frame.f_code.co_name) in _REDIRECTING:
            return True
        if module(frame) in _HISTORIES:
            histories.append(frame.f_locals.get("history"))
    return any(_is_redirect(answer) for history in histories if isinstance(history, list | tuple) for answer in history)


def _is_redirect(answer: object) -> bool:
    status = attribute(answer, "status_code") or attribute(answer, "status")
    return status not in _CHALLENGES


def _repeated(error: BaseException) -> bool:
    seen = set()
    for frame in frames(error):
        name = module(frame)
        for owner, local, first in _SENT_BEFORE:
            count = frame.f_locals.get(local) if name == owner else None
            if isinstance(count, int) and count > first:
                return True
        if name.startswith("urllib3.") and frame.f_code.co_name == "urlopen":  # it calls itself to retry or redirect
            if frame.f_code in seen:
                return True
            seen.add(frame.f_code)
    answer = attribute(error, "response")
    if not isinstance(answer, dict):  # botocore: a dict
        return False
    metadata = answer.get("ResponseMetadata")
    return isinstance(metadata, dict) and bool(metadata.get("RetryAttempts"))
