"""The words of the project as values: enums that are stored, frozen dataclasses that are passed around.

Values of the enums are an interface: they stand in databases for ever (``tests/compat`` pins them).
Money is integer micro-USD (``*_uusd``) inside and float USD (``usd``) at the edge; times are integer microseconds
since the Unix epoch, UTC (``*_us``).

Longer than other files on purpose: the words in one place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from stepseven._dataclass import dataclass
from stepseven.errors import ArtifactGone, Failed, MissingSecret, Waiting

R = TypeVar("R")

INTERNAL = ("run.", "client.")  #: how the names of records begin that a run keeps for itself: no results of steps
ONCE = "once"  #: the key of a write without ``key=``: its branch tells it from others, and nothing else does


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


class ClientStatus(StrEnum):
    """Whether anything may begin for a client."""

    ACTIVE = "active"
    PAUSED = "paused"


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
class Incident:
    """Open questions of one cause, across runs and clients: one answer for all of them, or for some.

    Attributes:
        id: ``i_…``.
        kind: what they have in common: ``resource`` (it is down), ``cause`` (of a failure), ``limit`` or ``poison``.
        text: what is wrong, and whom it holds up.
        status: ``open``; ``closed`` when no question of it is open any more.
        resource: where it happened, if that is known.
        questions, runs: how many questions are open (of one that is closed: were asked), and of how many runs.
        clients, workflows: whose runs these are, and of which workflows.
        options: the choices that all of these questions have.
        earlier: what came of the last answer to the same cause, as a sentence; ``None``: there was none.
    """

    id: str
    kind: str
    text: str
    status: str
    resource: str | None = None
    questions: int = 0
    runs: int = 0
    clients: tuple[str, ...] = ()
    workflows: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    earlier: str | None = None
    created_us: int = 0
    closed_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentAnswered:
    """What one answer to an incident has done: ids of the questions that took it; those that did not, and why.

    ``open``: how many are left, of the clients that it was given for.
    """

    id: str
    answered: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    open: int = 0


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
    """Why a step or a run failed. ``step`` is ``None`` when the workflow's own code failed; ``at_us`` when that try ended."""

    step: str | None
    kind: FailureKind
    reason: str
    approach: str | None = None
    where: str | None = None
    run_id: str | None = None
    at_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a person decided in a run: the question's text, what was answered, by whom, when and with which note."""

    text: str
    answer: Any
    by: str | None
    answered_us: int
    run_id: str
    kind: QuestionKind
    step: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FactChange:
    """A fact that has another value than before. ``old`` is ``None`` when it was not known (``old_version`` is, too)."""

    key: str
    old: Any
    new: Any
    source: str | None
    set_us: int
    version: int
    old_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a run of a client did not know, newest first: facts and decisions since it began, runs since it ended."""

    facts: tuple[FactChange, ...] = ()
    decisions: tuple[Decision, ...] = ()
    runs: tuple[RunInfo, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Previous:
    """The last finished run of the same client and workflow, as the run that asks first saw it.

    Attributes:
        run_id, status, goal, inputs, ended_us: of that run.
        value: what its workflow returned, as today's return type; plain JSON when it no longer fits.
        artifacts: step name → the result of its last record, as plain JSON. One of ``cut`` is only its beginning, as text.
        summaries: step name → its summary, where it has one.
        decisions: what people decided in it, newest first.
        failures: the tries that failed in it, newest first.
        facts: key → what it knew of the client: what it read or found out.
        changed: what happened to the client since, or while it was under way without it.
        cut: what is too long to be here whole, such as ``artifacts.tickets`` or ``inputs.text``: its beginning and a ``…``;
            and the results that were pruned, of which nothing is here.
        left_out: section → how many of it are not here (the oldest).
    """

    run_id: str
    status: RunStatus
    goal: str | None
    inputs: Mapping[str, Any]
    value: Any
    ended_us: int
    artifacts: Mapping[str, Any]
    summaries: Mapping[str, str]
    decisions: tuple[Decision, ...]
    failures: tuple[Failure, ...]
    facts: Mapping[str, Fact]
    changed: Changes
    cut: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    def artifact(self, name: str) -> Any:
        """The whole result of step *name*, also of one that is cut here; the same after a resume.

        Raises:
            KeyError: that run has no result of a step of this name; lists those it has.
            ArtifactGone: it was pruned before this run looked.
        """
        if name not in self.artifacts:
            if name in self.summaries or f"artifacts.{name}" in self.cut:
                raise ArtifactGone(name, self.run_id)
            more = self.left_out.get("artifacts")
            there = ", ".join(self.artifacts) or "none"
            there += f", and {more} more that are not kept here" if more else ""
            raise KeyError(f"run {self.run_id} has no result of a step {name!r}; it has: {there}")
        return self.artifacts[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """What a run has cost: US dollars, tokens, seconds of executing."""

    usd: float = 0
    tokens: int = 0
    seconds: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[R]):
    """What became of a run, as far as it got. ``until_us`` is set when a timer will move it.

    ``cut``: the value was longer than what is kept when a run is pruned, or its client was forgotten.
    """

    run_id: str
    status: RunStatus
    value: R | None = None
    questions: tuple[Question, ...] = ()
    failure: Failure | None = None
    spend: Spend = field(default_factory=Spend)
    waiting_for: WaitingFor | None = None
    until_us: int | None = None
    cut: bool = False

    def result(self) -> R:
        """The workflow's value.

        Raises:
            Waiting: the run has not ended.
            Failed: the run ended failed or cancelled.
            ArtifactGone: the value went when the run was pruned.
        """
        if self.cut:
            raise ArtifactGone("value", self.run_id)
        if self.status is RunStatus.DONE:
            return self.value  # type: ignore[return-value]  # None is a legal value of R
        if not self.status.ended:
            raise Waiting(self.run_id, self.waiting_for, [q.text for q in self.questions], self.until_us)
        raise Failed(self.run_id, self.status, self.failure.reason if self.failure else self.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What was shrunk: so many runs; records, large results (artifacts) and bytes in them that are gone.

    The bytes are free for what comes next; the file itself gets smaller only when it is compacted (``prune --vacuum``).
    """

    runs: int = 0
    records: int = 0
    artifacts: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What was deleted of a client, and what stays.

    Attributes:
        client_id: whose.
        facts, records, attempts, questions, artifacts: how many were deleted; facts in all their versions.
        runs, effects: how many stay, without anything that was in them: that they happened, when, and what they cost.
        compacted: no older copy is left in the file or its log. ``False``: ``stepseven prune --vacuum`` has to be run.
        files_missing: large results that are not in this layer's artifact folder: forget again with ``artifacts=`` set. One that
            another worker is just writing counts, too: forget again.
    """

    client_id: str
    facts: int = 0
    records: int = 0
    attempts: int = 0
    questions: int = 0
    artifacts: int = 0
    runs: int = 0
    effects: int = 0
    compacted: bool = False
    files_missing: int = 0


class Page(list[R]):
    """A list with ``next``: the cursor of the following page, or ``None``."""

    def __init__(self, items: Sequence[R] = (), next: str | None = None) -> None:
        super().__init__(items)
        self.next = next
