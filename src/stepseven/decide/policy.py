"""What to do next with a step that did not simply succeed: from its tries and the answers people gave, to one move.

Pure: the same rows give the same move, so a crash between any two of them changes nothing.
"""

from __future__ import annotations

from typing import Any

from stepseven._dataclass import dataclass
from stepseven.model import AttemptOutcome, FailureKind, QuestionStatus

MAX_DEFERRALS = 5  # DESIGN §6: "not now" is believed five times and for 15 minutes
MAX_DEFERRED_US = 15 * 60 * 1_000_000
BACKOFF_BASE_US = 1_000_000
BACKOFF_CAP_US = 5 * 60 * 1_000_000
DEFERRAL_BASE_US = 2_000_000
LOOK_EVERY_US = 15 * 60 * 1_000_000  # a person said "wait until it answers": so often the step is tried
LOOKS_LAST_US = 7 * 86_400 * 1_000_000  # and so long; then they are asked again
ANSWERS = "answers"  # the ``until`` of that choice
AS_WRITTEN = "as written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """One earlier try that did not simply succeed."""

    n: int
    approach: str | None
    outcome: AttemptOutcome
    kind: FailureKind | None
    reason: str
    signature: str
    started_us: int
    ended_us: int
    source_digest: str | None = None
    retry_after_us: int | None = None
    narrow: bool = False
    circuit: bool = False  # its resource was known to be down: neither a try nor a "not now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question about this step's failure. ``attempts``: failed tries made when it was asked."""

    id: str
    status: QuestionStatus
    attempts: int
    choice: str | None = None
    answer: Any = None
    by: str | None = None
    answered_us: int | None = None

    @property
    def looks(self) -> bool:
        """Whether the person chose to wait until the resource answers."""
        chose = self.status is QuestionStatus.ANSWERED and self.choice == "wait" and isinstance(self.answer, dict)
        return chose and self.answer.get("until") == ANSWERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """An approach a policy may choose by itself (``ask`` ones only a person chooses)."""

    label: str
    ask: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """All that is on record of one step call that failed before."""

    past: tuple[Past, ...]
    asked: tuple[Asked, ...] = ()
    ways: tuple[Way, ...] = ()
    attempts: int = 2
    source_digest: str | None = None
    now_us: int = 0
    resumed: bool = False  # the rows are from an earlier execution


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """Run the step: ``approach`` ``None`` = as written. Not before ``not_before_us``, nor before ``wants_fact`` is known.

    ``looks``: a person waits until the resource answers; this is the next look whether it does.
    """

    number: int
    approach: str | None = None
    narrow: bool = False
    not_before_us: int = 0
    wants_fact: str | None = None
    looks: bool = False
    withdraw: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Ask a person: nothing is left to try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A question is open: wait for its answer."""

    question_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Obey:
    """Do what the person chose: ``choice`` is value, skip, by_hand, rerun or stop."""

    choice: str
    answer: Any
    by: str | None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Give:
    """Fatal: no try and no person can help."""

    reason: str


Move = Try | Ask | Wait | Obey | Give


def backoff_us(attempt: int, *, base_us: int, cap_us: int, chance: float) -> int:
    """Delay before the next attempt: exponential, with full jitter.

    Args:
        attempt: 0 after the first failure, 1 after the second, and so on.
        base_us: upper bound of the first delay, in microseconds.
        cap_us: upper bound of every delay, in microseconds.
        chance: drawn uniformly from [0, 1) by the caller, so a test can fix it.

    Returns:
        Whole microseconds, from 0 to ``min(cap_us, base_us * 2**attempt)``.

    Raises:
        ValueError: *attempt* is negative or *chance* is outside [0, 1).

    Source:
        "Full jitter" in M. Brooker, *Exponential Backoff And Jitter*, AWS Architecture Blog, 2015.
    """
    if attempt < 0 or not 0 <= chance < 1:
        raise ValueError(f"attempt={attempt} must not be negative and chance={chance} must be in [0, 1)")
    return int(min(cap_us, base_us * 2 ** min(attempt, 40)) * chance)


def failed_tries(past: tuple[Past, ...]) -> list[Past]:
    """The tries that count: what a crash interrupted and what was only deferred does not."""
    return [p for p in past if p.outcome in (AttemptOutcome.FAILED, AttemptOutcome.UNKNOWN)]


def believed(past: tuple[Past, ...], *, since_us: int, started_us: int, now_us: int, retry_after_us: int | None) -> bool:
    """Whether one more "not now" is a deferral; if not, it counts as a failure.

    Args:
        past: the earlier tries of this call.
        since_us: when a person last decided about it; what was deferred before does not count any more.
        started_us: when the try began that was put off just now.
        now_us: when it ended.
        retry_after_us: how long the other side asked to wait, in microseconds; ``None`` = it did not say.
    """
    before = [p for p in past if p.outcome is AttemptOutcome.DEFERRED and not p.circuit and p.started_us >= since_us]
    if len(before) >= MAX_DEFERRALS:
        return False
    first_us = before[0].started_us if before else started_us
    return now_us + (retry_after_us or 0) - first_us <= MAX_DEFERRED_US


def still_silent(asked: tuple[Asked, ...], past: tuple[Past, ...], *, signature: str, ended_us: int) -> bool:
    """Whether a try only found what the person knows who waits until the resource answers: then nobody is asked.

    Args:
        asked: the questions about this call, oldest first.
        past: the earlier tries of this call.
        signature: of the failure that was found just now.
        ended_us: when.
    """
    last, failed = (asked[-1] if asked else None), failed_tries(past)
    if last is None or not last.looks or not failed or last.attempts != len(failed):
        return False
    return failed[-1].signature == signature and ended_us - (last.answered_us or 0) < LOOKS_LAST_US


def next_move(t: Trouble, *, chance: float) -> Move:
    """The one thing to do next.

    Args:
        t: the rows of this call.
        chance: uniform in [0, 1), for the jitter.

    Returns:
        A move. ``Try`` while attempts are left; ``Wait`` while a question is open; ``Obey`` an answer nobody acted upon
        yet; ``Ask`` when nothing else is left; ``Give`` when the last failure was fatal.
    """
    failed = failed_tries(t.past)
    last = t.asked[-1] if t.asked else None
    if last is not None and last.status is QuestionStatus.OPEN:
        if t.resumed and _mended(t):
            return Try(number=len(failed) + 1, narrow=_narrow(failed), withdraw=(last.id,))
        return Wait(question_id=last.id)
    if last is not None and last.status is QuestionStatus.ANSWERED and last.attempts == len(failed):
        return _obey(t, last, failed, chance)
    return _by_itself(t, failed, last, chance)


def _mended(t: Trouble) -> bool:
    """Whether the source changed since the last try. Only then does a resume try again by itself."""
    tried = [p.source_digest for p in t.past if p.outcome is not AttemptOutcome.INTERRUPTED]
    return bool(tried and t.source_digest and tried[-1] and tried[-1] != t.source_digest)


def _narrow(failed: list[Past]) -> bool:
    return bool(failed) and failed[-1].narrow


def _obey(t: Trouble, q: Asked, failed: list[Past], chance: float) -> Move:
    choice = q.choice or ""
    number, narrow = len(failed) + 1, _narrow(failed)
    put_off_us = _put_off_us(t, chance)
    if q.looks:
        return Try(number=number, narrow=narrow, not_before_us=_next_look_us(t, q, put_off_us), looks=True)
    if choice == "again" or choice.startswith("approach:"):
        label = choice.removeprefix("approach:") or None if choice.startswith("approach:") else None
        return Try(number=number, approach=label, narrow=narrow, not_before_us=put_off_us)
    if choice == "wait":
        answer = q.answer if isinstance(q.answer, dict) else {}
        until, fact = answer.get("until"), answer.get("fact")
        not_before_us = max(put_off_us, until if isinstance(until, int) else 0)
        return Try(number=number, narrow=narrow, not_before_us=not_before_us, wants_fact=fact if isinstance(fact, str) else None)
    return Obey(choice=choice.split(":", 1)[0], answer=q.answer, by=q.by, detail=choice.partition(":")[2] or None)


def _next_look_us(t: Trouble, q: Asked, put_off_us: int) -> int:
    """When to look again whether the resource answers; 0 = now, because the code was mended."""
    if t.resumed and _mended(t):
        return 0
    asked_us = q.answered_us or 0
    looked = [p.ended_us for p in t.past if p.outcome is AttemptOutcome.DEFERRED and p.started_us >= asked_us]
    return max(put_off_us, max(looked, default=asked_us) + LOOK_EVERY_US)


def _by_itself(t: Trouble, failed: list[Past], q: Asked | None, chance: float) -> Move:
    fresh = failed[q.attempts if q is not None else 0 :]
    number, narrow = len(failed) + 1, _narrow(failed)
    if t.resumed and _mended(t):
        return Try(number=number, narrow=narrow)
    if fresh and fresh[-1].kind is FailureKind.FATAL:
        return Give(reason=fresh[-1].reason)
    if fresh and q is not None and q.looks:
        return Ask()  # it answers, but otherwise; or it never did
    put_off = _put_off(t)
    if put_off is not None:  # "not now": the same approach, later
        return Try(number=number, approach=put_off.approach, narrow=narrow, not_before_us=_put_off_us(t, chance))
    if not fresh:
        return Try(number=number, narrow=narrow)
    if fresh[-1].kind is not FailureKind.RETRYABLE or len(fresh) >= t.attempts:
        return Ask()
    other = _other_way(t, failed)
    if other is None and fresh[-1].retry_after_us is not None:
        return Ask()  # it said for how long it cannot, and that is too long to wait for
    pause_us = backoff_us(len(fresh) - 1, base_us=BACKOFF_BASE_US, cap_us=BACKOFF_CAP_US, chance=chance)
    return Try(number=number, approach=other, narrow=narrow, not_before_us=fresh[-1].ended_us + pause_us)


def _other_way(t: Trouble, failed: list[Past]) -> str | None:
    """The next approach that was not tried; ``None``: the same function, told that it is the second try."""
    tried = {p.approach for p in failed}
    return next((w.label for w in t.ways if not w.ask and w.label not in tried), None)


def _put_off(t: Trouble) -> Past | None:
    """The last try, if it was put off and not failed."""
    ended = [p for p in t.past if p.outcome is not AttemptOutcome.INTERRUPTED]
    return ended[-1] if ended and ended[-1].outcome is AttemptOutcome.DEFERRED else None


def _put_off_us(t: Trouble, chance: float) -> int:
    """Until when to hold back; 0 = nothing was put off."""
    last = _put_off(t)
    if last is None or last.circuit:  # the circuit says when
        return 0
    if last.retry_after_us is not None:
        return last.ended_us + last.retry_after_us
    n = len([p for p in t.past if p.outcome is AttemptOutcome.DEFERRED and not p.circuit])
    return last.ended_us + backoff_us(n - 1, base_us=DEFERRAL_BASE_US, cap_us=BACKOFF_CAP_US, chance=chance)
