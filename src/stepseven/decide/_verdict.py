"""What classifying an exception gives: the words of ``decide/classify.py``, apart so that its tables can use them."""

from __future__ import annotations

from enum import StrEnum

from stepseven._dataclass import dataclass


class Handling(StrEnum):
    """What is done about an exception. A deferral ("not now") is not a failure."""

    DEFERRAL = "deferral"
    RETRYABLE = "retryable"
    FIXABLE = "fixable"
    FATAL = "fatal"


class Proof(StrEnum):
    """What is known about whether a write happened."""

    NONE = "none"  #: unknown outcome
    NOT_SENT = "not_sent"  #: DNS, connect refused, connect time-out, certificate check
    REFUSED = "refused"  #: 400-405, 410, 413, 415, 422, 429
    DECLARED = "declared"  #: Retryable, Fixable or Fatal raised by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an exception means: what to do about it, what it proves about a write, and how to say it to a person."""

    handling: Handling
    proof: Proof
    reason: str  #: one sentence, at most 300 characters
    status: int | None = None  #: HTTP status, 400 to 599
    retry_after_us: int | None = None  #: microseconds from now; only of a deferral
    resource: str | None = None  #: the step's declared resource, else host[:port] of the failing URL
    narrow: bool = False  #: a model's context overflowed: attempt 2 must be narrower
    needs: str | None = None  #: the missing fact (``Fixable(needs=)``)
    ask: str | None = None  #: the question's text (``Fixable(ask=)``)
    signature: str = ""  #: equal for the same cause: no ids, times or counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the caller of ``classify`` knows beside the exception."""

    now_us: int
    subject: bool
    step: str | None
    resource: str | None


REASON_LIMIT = 300


def sentence(text: str) -> str:
    """*text* on one line, at most 300 characters."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_LIMIT else f"{line[: REASON_LIMIT - 1]}…"


def signature(cause: str, asked: Asked, host: str | None) -> str:
    """The name of a cause at a place: the resource, else the host, else the step."""
    return f"{cause} {asked.resource or host or asked.step or ''}".rstrip()
