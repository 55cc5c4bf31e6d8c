"""What somebody outside says about a step it executes, and what it is told. Pure.

The words are those of ``POST …/steps/{step}/begin``, ``complete`` and ``fail``; ``transitions/begins.py`` and ``reports.py``
answer them from the same tables as the Python runtime: one policy, one claim, one ladder of questions.
"""

from __future__ import annotations

import math
import re
import socket
from dataclasses import replace
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide._verdict import Handling, Proof, Verdict, sentence
from stepseven.decide.classify import classify, folded
from stepseven.decide.policy import Way
from stepseven.errors import InvalidArgument
from stepseven.model import INTERNAL, EffectKind

MAX_NAME = 200  #: characters of a step's name
LEASE_S = 300.0  #: how long a begun step may take without a word, unless it says otherwise
LONGEST_LEASE_S = 24 * 3600.0
MOST_ATTEMPTS = 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A step that is about to be executed outside. ``inputs`` is canonical JSON; money in micro-USD, times in microseconds."""

    step: str
    key: str | None = None
    inputs: str | None = None
    effect: EffectKind = EffectKind.READ
    uusd: int = 0
    attempts: int = 2
    idempotent_us: int | None = 0  # how long the other side honours the key; 0 = not at all, ``None`` = for ever
    probe_url: str | None = None
    settle_us: int = 0
    lease_us: int = round(LEASE_S * 1e6)
    ways: tuple[Way, ...] = ()
    resource: str | None = None
    callback: str | None = None

    @property
    def writes(self) -> bool:
        """Whether it changes something outside."""
        return self.effect is not EffectKind.READ


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A failure as it was told: the exception's name, its text, the HTTP status behind it."""

    message: str
    type: str = ""
    status: int | None = None
    retry_after_s: float | None = None
    kind: str | None = None  # retryable, fixable, fatal: what the executor takes it for
    not_done: bool = False  # it vouches that nothing was changed outside


class Outside(Exception):
    """An error of which only a report came; shaped so that ``classify`` reads it as it would the real one."""

    def __init__(self, told: Reported) -> None:
        super().__init__(told.message)
        self.message = told.message
        if told.status is not None:
            headers = {} if told.retry_after_s is None else {"retry-after": f"{max(0, math.ceil(told.retry_after_s))}"}
            self.status_code = told.status
            self.response = _Answer(told.status, headers)


class _Answer:
    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status_code = status
        self.headers = headers


def step_name(name: Any) -> str:
    """A step's name as it may be recorded.

    Raises:
        InvalidArgument: it is empty, too long, has control characters, or is one that runs keep for themselves.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or _CONTROL.search(name):
        raise InvalidArgument("step", repr(name)[:60], f"a step's name is 1 to {MAX_NAME} printable characters")
    if name.startswith(INTERNAL):
        why = f"names that begin with {' or '.join(INTERNAL)} belong to stepseven: choose another"
        raise InvalidArgument("step", name, why)
    return name


def verdict_of(told: Reported, *, now_us: int, step: str, resource: str | None) -> Verdict:
    """What a reported failure means: what to do about it, and what it proves about a write.

    ``kind`` changes what is done, never what is proven: a time-out that is called retryable may have happened all the same.
    Only ``not_done`` vouches for that.
    """
    verdict = classify(_exception(told), now_us=now_us, step=step, resource=resource)
    if told.kind is not None:
        handling = Handling(told.kind)
        if not (handling is Handling.RETRYABLE and verdict.handling is Handling.DEFERRAL):
            verdict = replace(verdict, handling=handling)
    if told.status is not None and told.message.strip():
        verdict = replace(verdict, reason=sentence(f"{verdict.reason} ({told.message})"))
    elif resource is None:  # there is no place in code that would tell two causes apart
        verdict = replace(verdict, signature=f"{verdict.signature}: {folded(told.message)[:120]}")
    if told.not_done and verdict.proof is Proof.NONE:
        verdict = replace(verdict, proof=Proof.DECLARED)
    return verdict


#: What is known by its name alone, in Python's words and in Node's.
_NAMED: dict[str, type[Exception]] = {
    "TimeoutError": TimeoutError, "ETIMEDOUT": TimeoutError, "ESOCKETTIMEDOUT": TimeoutError, "ECONNABORTED": TimeoutError,
    "ConnectionError": ConnectionError, "ConnectionResetError": ConnectionResetError, "ECONNRESET": ConnectionResetError,
    "EPIPE": BrokenPipeError, "BrokenPipeError": BrokenPipeError, "ConnectionRefusedError": ConnectionRefusedError,
    "ECONNREFUSED": ConnectionRefusedError, "ENOTFOUND": socket.gaierror, "EAI_AGAIN": socket.gaierror,
}  # fmt: skip


def _exception(told: Reported) -> Exception:
    """The exception that a report is of: one of Python's where it has that name, else one that only looks like it."""
    plain = told.type.rsplit(".", 1)[-1]
    if told.status is None and plain in _NAMED:
        return _NAMED[plain](told.message)
    kind = re.sub(r"\W", "", plain)[:80] or "Failure"
    made: Exception = type(kind, (Outside,), {})(told)
    return made
