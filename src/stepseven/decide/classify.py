"""What an exception means: wait, retry, ask a person or give up, and what it proves about a write.

A table, in three parts: HTTP statuses (``_http.STATUSES``), failures below HTTP (``_causes.MEANING``, ``CERTAIN``, ``VAGUE``)
and the exceptions raised by hand. Nothing is imported to recognise a library's exceptions: they are known by attributes,
``errno``, SQLSTATE, and by package and class name.

Tested with the real exceptions of httpx, requests, aiohttp, urllib, openai, anthropic and psycopg from a server on the
loopback interface; with exceptions of the same shape for botocore and google-genai.

Three rules protect writes:

* A proof comes only from an exception that the raised one was *made from* (``raise … from``, or handed over as an argument).
  What was merely being handled (``__context__``) says what to do, but not that nothing happened since.
* A proof is about the last request. A followed redirect, a library's own retry or an earlier exception in doubt voids it.
* "Not sent" never follows from a bare ``ssl.SSLError``, only from a failed certificate check.

So a step must not be called from inside an ``except`` block: the handled exception would become its context.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePath

from stepseven.decide._causes import certain, database, meaning, vague
from stepseven.decide._chain import before, explicit, passed, sent_before, text_of
from stepseven.decide._http import answer_of, host_of, judge, wait_us
from stepseven.decide._verdict import Asked, Handling, Proof, Verdict, sentence
from stepseven.errors import (
    AlreadyDone,
    Conflict,
    Fatal,
    Fixable,
    MissingSecret,
    NotYet,
    Retryable,
    StepFailed,
    StepsevenError,
    StoreUnavailable,
    Superseded,
)
from stepseven.model import MICRO

__all__ = ["Handling", "Override", "Proof", "Verdict", "classify", "folded"]

Override = Callable[[BaseException], "Handling | str | BaseException | None"]

_NOT_FAILURES = (AlreadyDone, Conflict, NotYet, Superseded)
_BY_HAND = (Retryable, Fixable, Fatal)
_SEVERITY = (Handling.DEFERRAL, Handling.RETRYABLE, Handling.FIXABLE, Handling.FATAL)
_DEEPEST = 10  #: contexts of contexts and groups in groups
_FOREIGN = ("site-packages", "dist-packages")
_OURS = tuple(str(PurePath(file).parent.parent) for file in (__file__, re.__file__))  #: not the user's code: nor Python's
_VARYING = re.compile(  # what is quoted, paths and addresses, ids, numbers
    r""""[^"\n]*"|'[^'\n]*'|\S+@\S+|\S*[/\\]\S+|0x[0-9a-f]+|\b(?=[0-9a-f-]*\d)[0-9a-f][0-9a-f-]{7,}\b|\d+""", re.IGNORECASE
)


def classify(
    error: BaseException,
    *,
    now_us: int,
    subject: bool = False,
    step: str | None = None,
    resource: str | None = None,
    overrides: Sequence[Override] = (),
) -> Verdict:
    """Say what an exception means.

    Args:
        error: what left the step. Its traceback, if any, is read (never changed).
        now_us: the time an HTTP date in ``Retry-After`` is relative to, microseconds since the Unix epoch.
        subject: the step reads what the run is about: 404 and 410 are fatal.
        step: the step's name; stands in signatures that have no better place.
        resource: the step's declared resource; stands in reasons and signatures instead of the host.
        overrides: ``classify=`` of the step, then of the layer. The first answer that is not ``None`` counts: a
            ``Handling`` or its value changes what is done; ``Retryable``, ``Fixable`` or ``Fatal`` (returned or raised)
            count as if the step had raised them. None of these changes what *error* proves.

    Returns:
        The verdict. Unknown exceptions are fixable: a person can mend the code and resume.

    Raises:
        ValueError: *error* is not a failure (``AlreadyDone``, ``Conflict``, ``NotYet``, ``Superseded``, also in a group),
            or an override answered something else than the above.
    """
    _refuse_not_failures(error)
    asked = Asked(now_us=now_us, subject=subject, step=step, resource=resource)
    verdict = _verdict(error, asked, 0)
    if type(error) is TimeoutError and _says_more(error):  # somebody wrote a sentence of their own
        verdict = replace(verdict, reason=sentence(str(error)))
    for override in overrides:
        try:
            answer = override(error)
        except _BY_HAND as raised:
            answer = raised
        if answer is not None:
            return _overridden(verdict, answer, asked)
    return verdict


def _says_more(error: TimeoutError) -> bool:
    """Whether a time-out's text is more than what the standard library says of each."""
    text = error.args[0] if len(error.args) == 1 else None
    return isinstance(text, str) and " " in text and "timed out" not in text and not text.startswith("_")


def _refuse_not_failures(error: BaseException) -> None:
    if isinstance(error, _NOT_FAILURES):
        message = f"{type(error).__name__} is not a failure: handle it before classifying"
        raise ValueError(message)  # noqa: TRY004 - the type is right, the moment is not
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            _refuse_not_failures(member)


def _overridden(verdict: Verdict, answer: object, asked: Asked) -> Verdict:
    if isinstance(answer, _BY_HAND):
        return replace(_by_hand(answer, asked), proof=verdict.proof, status=verdict.status, resource=verdict.resource)
    if not isinstance(answer, str) or answer not in _SEVERITY:
        message = f"classify= answered {answer!r}: return a Handling, Retryable, Fixable, Fatal or None"
        raise ValueError(message)
    handling = Handling(answer)
    return replace(
        verdict,
        handling=handling,
        retry_after_us=verdict.retry_after_us if handling is Handling.DEFERRAL else None,
        narrow=verdict.narrow and handling is Handling.RETRYABLE,
    )


def _verdict(error: BaseException, asked: Asked, depth: int) -> Verdict:
    return _recognised(error, asked, depth) or _unknown(error, asked)


def _recognised(error: BaseException, asked: Asked, depth: int) -> Verdict | None:
    """The verdict on *error* and all it hangs together with, or ``None`` when nothing of it is known."""
    if depth > _DEEPEST:
        return None
    links = explicit(error)
    earlier = before(links)
    verdict = _first(links, asked, depth)
    if verdict is None:
        handled = (_recognised(context, asked, depth + 1) for context in earlier)
        found = next((known for known in handled if known is not None), None)
        return replace(found, proof=Proof.NONE) if found else None
    if verdict.proof in (Proof.NONE, Proof.DECLARED):
        return verdict
    void = sent_before(links) or any(_in_doubt(context, asked, depth) for context in earlier)
    return replace(verdict, proof=Proof.NONE) if void else verdict


def _in_doubt(error: BaseException, asked: Asked, depth: int) -> bool:
    """Whether an earlier exception leaves open that something was sent. One we know nothing of is the author's own matter."""
    if isinstance(error, asyncio.CancelledError):  # how time-outs work inside: it adds nothing to the TimeoutError
        return False
    known = _recognised(error, asked, depth + 1)
    return known is not None and known.proof is Proof.NONE


def _first(links: Sequence[BaseException], asked: Asked, depth: int) -> Verdict | None:
    """The first link that is certain; else the first that suggests something."""
    host = host_of(links)
    suggested = None
    for at, link in enumerate(links):
        known = _certain(link, asked, host, depth)
        if known is not None:
            return known
        cause = certain(links, at)
        if cause is not None:
            return meaning(cause, asked, host)
        suggested = suggested or vague(link)
    return meaning(suggested, asked, host) if suggested else None


def _certain(link: BaseException, asked: Asked, host: str | None, depth: int) -> Verdict | None:
    if isinstance(link, _BY_HAND):
        return _by_hand(link, asked)
    if isinstance(link, BaseExceptionGroup):
        return _worst([_verdict(member, asked, depth + 1) for member in link.exceptions])
    if isinstance(link, StepsevenError):
        return _own(link, asked)
    answer = answer_of(link, now_us=asked.now_us)
    return judge(answer, asked, host) if answer else database(link, asked, host)


def _by_hand(error: Retryable | Fixable | Fatal, asked: Asked) -> Verdict:
    verdict = Verdict(
        handling=Handling.FATAL,
        proof=Proof.DECLARED,
        reason=sentence(str(error.reason)),
        resource=asked.resource,
        signature=f"{type(error).__name__} {_place(error, asked) or folded(str(error.reason))}",
    )
    if isinstance(error, Retryable):
        wait = None if error.retry_after is None else wait_us(error.retry_after, MICRO)
        return replace(verdict, handling=Handling.RETRYABLE if wait is None else Handling.DEFERRAL, retry_after_us=wait)
    if isinstance(error, Fixable):
        named = f"needs {error.needs}" if error.needs else verdict.signature
        return replace(verdict, handling=Handling.FIXABLE, needs=error.needs, ask=error.ask, signature=named)
    return verdict


def _own(error: StepsevenError, asked: Asked) -> Verdict:
    """Our own errors are sentences for people; what they were made from adds nothing."""
    handling = Handling.FIXABLE
    named = f"{type(error).__name__} {_place(error, asked) or folded(text_of(error))}"
    if isinstance(error, StoreUnavailable):
        handling, named = Handling.RETRYABLE, "store"
    elif isinstance(error, MissingSecret):
        named = f"missing-secret {error.name}"
    elif isinstance(error, StepFailed):
        # A step inside this one used up its own attempts: repeating it here would multiply them.
        handling = Handling.FATAL if error.kind == Handling.FATAL else Handling.FIXABLE
        named = f"step-failed {error.step}"
    return Verdict(handling=handling, proof=Proof.NONE, reason=sentence(text_of(error)), signature=named)


def _worst(members: Sequence[Verdict]) -> Verdict:
    """The verdict on a group: the worst handling, and a proof only if every member has one."""
    worst = max(members, key=lambda verdict: _SEVERITY.index(verdict.handling))  # the first of equals
    waits = [verdict.retry_after_us for verdict in members if verdict.retry_after_us is not None]
    more = f" (and {len(members) - 1} more)" if len(members) > 1 else ""
    return replace(
        worst,
        proof=worst.proof if all(verdict.proof is not Proof.NONE for verdict in members) else Proof.NONE,
        reason=sentence(worst.reason[: 300 - len(more)] + more),
        retry_after_us=max(waits) if waits and worst.handling is Handling.DEFERRAL else None,
    )


def _unknown(error: BaseException, asked: Asked) -> Verdict:
    name = type(error).__name__
    text = text_of(error)
    return Verdict(
        handling=Handling.FIXABLE,
        proof=Proof.NONE,
        reason=sentence(f"{name}: {text}" if text else name),
        signature=f"{name} {_place(error, asked) or folded(text)}".rstrip(),
    )


def _place(error: BaseException, asked: Asked) -> str | None:
    """Where it happened: file, function and line within it of the deepest frame that is the user's, else the step.

    The line tells two causes in one function apart, whatever their texts name; counted from the function's own first line, so
    that an edit elsewhere in the file changes nothing.
    """
    place = asked.step
    for frame, line in passed(error):
        path = frame.f_code.co_filename
        if not path.startswith(("<", *_OURS)) and not any(part in path for part in _FOREIGN):
            place = f"{PurePath(path).name}:{frame.f_code.co_name}+{line - frame.f_code.co_firstlineno}"
    return place


def folded(text: str) -> str:
    """*text* without what differs from time to time: numbers, ids, addresses."""
    return _VARYING.sub("#", sentence(text))
