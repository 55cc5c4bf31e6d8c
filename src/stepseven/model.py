"""The words of the project as values: enums that are stored, frozen dataclasses that are passed around.

Values of the enums are an interface: they stand in databases for ever (``tests/compat`` pins them).
Money is integer micro-USD (``*_uusd``) inside and float USD (``usd``) at the edge; times are integer microseconds
since the Unix epoch, UTC (``*_us``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from stepseven.errors import Failed, MissingSecret, Waiting

R = TypeVar("R")


class RunStatus(StrEnum):
    """Where a run stands. ``done``, ``failed`` and ``cancelled`` are final."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    CANCELLING = "cancelling"
    FAILING = "failing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the run can never change again."""
        return self in _FINAL


_FINAL = frozenset({RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED})


class WaitingFor(StrEnum):
    """What moves a waiting run."""

    PERSON = "person"
    TIMER = "timer"
    CHILD = "child"
    EFFECT = "effect"
    CIRCUIT = "circuit"
    EVENT = "event"


class StepState(StrEnum):
    """State of a record."""

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class AttemptOutcome(StrEnum):
    """How a try ended that did not simply succeed."""

    FAILED = "failed"
    DEFERRED = "deferred"
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"


class FailureKind(StrEnum):
    """What can be done about a failure."""

    RETRYABLE = "retryable"
    FIXABLE = "fixable"
    FATAL = "fatal"


class EffectKind(StrEnum):
    """What a step does outside."""

    READ = "read"
    WRITE = "write"
    IRREVERSIBLE = "irreversible"


class EffectState(StrEnum):
    """State of a claim. ``refused`` = proven not done."""

    CLAIMED = "claimed"
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class QuestionKind(StrEnum):
    """Why a person is asked."""

    ASK = "ask"
    REQUIRED = "required"
    FAILURE = "failure"
    BATCH = "batch"
    POISON = "poison"
    UNKNOWN_OUTCOME = "unknown_outcome"
    CONFLICT = "conflict"
    APPROVE = "approve"
    UNDO = "undo"
    LIMIT = "limit"
    DRIFT = "drift"
    CODE = "code"


class QuestionStatus(StrEnum):
    """Only ``open`` takes an answer; ``expired`` is not "no"."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


MICRO = 1_000_000


def to_micro(amount: float) -> int:
    """USD (or seconds) as whole micro-USD (or microseconds), rounded half to even."""
    return round(amount * MICRO)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one try of a step costs: *usd* (US dollars) and *seconds*. Reserved against limits before the step runs."""

    usd: float = 0
    seconds: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Ceilings of one run (``client_usd_per_day``: of one client). ``None`` = no ceiling."""

    steps: int | None = None
    usd: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    client_usd_per_day: float | None = None


@dataclass(frozen=True, slots=True)
class Secret:
    """A credential by name. Only the name is ever stored; the value is environment variable *name* when the step runs."""

    name: str

    def reveal(self) -> str:
        """The credential itself.

        Raises:
            MissingSecret: the environment variable is not set.
        """
        value = os.environ.get(self.name)
        if value is None:
            raise MissingSecret(self.name)
        return value

    def __str__(self) -> str:
        return self.reveal()


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One choice of a question. ``usd`` and ``seconds`` are what choosing it is expected to cost; ``None`` = unknown."""

    id: str
    label: str
    detail: str | None = None
    usd: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Something only a person can decide, with the state attached. ``asked_of`` is who was asked."""

    id: str
    run_id: str
    client_id: str
    step: str | None
    kind: QuestionKind
    text: str
    options: tuple[Option, ...] = ()
    recommendation: str | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    asked_of: str | None = None
    deadline_us: int | None = None
    status: QuestionStatus = QuestionStatus.OPEN
    answer: Any = None
    answered_by: str | None = None
    answered_us: int | None = None
    note: str | None = None
    created_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing known about a client, as it stands in one version.

    ``source`` says where it comes from (``crm``, ``import:clients.csv``, ``run …``, ``answer to …``), ``set_by`` which person.
    ``valid_until_us``: after that it counts as not known. ``conflicts``: what other sources say, newest first, when they say
    something else and no person has decided since.
    """

    client_id: str
    key: str
    value: Any
    version: int
    source: str | None = None
    run_id: str | None = None
    set_by: str | None = None
    set_us: int = 0
    valid_until_us: int | None = None
    conflicts: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run as lists show it: the view ``checkpoint`` without its document."""

    run_id: str
    client_id: str
    workflow: str
    status: RunStatus
    waiting_for: WaitingFor | None
    open_questions_count: int
    goal: str | None
    updated_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a step or a run failed. ``step`` is ``None`` when the workflow's own code failed."""

    step: str | None
    kind: FailureKind
    reason: str
    approach: str | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """What a run has cost: US dollars, tokens, seconds of executing."""

    usd: float = 0
    tokens: int = 0
    seconds: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[R]):
    """What became of a run, as far as it got. ``until_us`` is set when a timer will move it."""

    run_id: str
    status: RunStatus
    value: R | None = None
    questions: tuple[Question, ...] = ()
    failure: Failure | None = None
    spend: Spend = field(default_factory=Spend)
    waiting_for: WaitingFor | None = None
    until_us: int | None = None

    def result(self) -> R:
        """The workflow's value.

        Raises:
            Waiting: the run has not ended.
            Failed: the run ended failed or cancelled.
        """
        if self.status is RunStatus.DONE:
            return self.value  # type: ignore[return-value]  # None is a legal value of R
        if not self.status.ended:
            raise Waiting(self.run_id, self.waiting_for, [q.text for q in self.questions], self.until_us)
        raise Failed(self.run_id, self.status, self.failure.reason if self.failure else self.status)


class Page(list[R]):
    """A list with ``next``: the cursor of the following page, or ``None``."""

    def __init__(self, items: Sequence[R] = (), next: str | None = None) -> None:
        super().__init__(items)
        self.next = next
