"""The shapes of what is sent and told about a step that is executed outside."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from stepseven.decide import external as words
from stepseven.model import EffectKind
from stepseven.server.shapes import Id, Question, Text, _Sent, _Told

Money = Annotated[float, Field(ge=0, le=1e9)]
Url = Annotated[StrictStr, Field(min_length=1, max_length=2000)]
Secret = Annotated[StrictStr, Field(min_length=1, max_length=300)]


class CostSent(_Sent):
    """What a step is expected to cost."""

    usd: Money = 0
    seconds: Annotated[float, Field(ge=0, le=1e9)] = 0


class BeginStep(_Sent):
    """A step that is about to be executed."""

    key: Id | None = Field(default=None, description="Which call of the step it is: a business key. Default: there is only one.")
    inputs: Any = Field(default=None, description="What it works on. With others a read runs again, and a write is asked about.")
    effect: EffectKind = Field(
        default=EffectKind.READ, description="What it does outside; `irreversible`: a person is asked first."
    )
    cost: CostSent | Money | None = None
    attempts: Annotated[StrictInt, Field(ge=1, le=words.MOST_ATTEMPTS)] = 2
    idempotent: StrictBool | Annotated[StrictStr, Field(max_length=20)] = Field(
        default=False, description='How long the other side honours the idempotency key: true, "forever" or "24h".'
    )
    probe_url: Url | None = Field(default=None, description="Where to look whether a write is there: 200 with it, or 404.")
    settle_seconds: float = Field(default=0, ge=0, le=86400, description="How long a write may take until it is seen there.")
    lease_seconds: Annotated[float, Field(ge=1, le=words.LONGEST_LEASE_S)] = words.LEASE_S
    approaches: list[Id] = Field(default_factory=list, max_length=20, description="Other ways to do it, in order.")
    resource: Id | None = Field(default=None, description="The outside system it needs.")
    callback_url: Url | None = Field(default=None, description="Where answers to questions about this step are brought.")


class Begun(_Told):
    """What to do: `run` it, `reuse` what is there, `wait` (until `retry_at`, or for the answer to `question`), or `stop`."""

    do: Literal["run", "reuse", "wait", "stop"]
    reason: str
    artifact: Any
    skipped: bool
    inputs: Any
    attempt: int | None
    attempt_token: str | None
    lease_until: str | None
    approach: str | None
    narrow: bool
    idempotency_key: str | None
    failures: list[dict[str, Any]]
    question: Question | None
    retry_at: str | None
    retry_after_seconds: int | None


class ExtendStep(_Sent):
    """More time for a step that takes longer."""

    attempt_token: Secret | None = None
    key: Id | None = None
    lease_seconds: Annotated[float, Field(ge=1, le=words.LONGEST_LEASE_S)] = words.LEASE_S


class Extended(_Told):
    """Until when nobody else begins it."""

    lease_until: str


class _Result(_Sent):
    key: Id | None = None
    artifact: Any = None
    summary: Text | None = None
    usd: Money | None = None
    tokens: Annotated[StrictInt, Field(ge=0, le=1 << 53)] | None = None
    approach: Id | None = None


class CompleteStep(_Result):
    """What came of a step that was begun."""

    attempt_token: Secret | None = None


class PutStep(_Result):
    """A step that is done without having been begun here."""

    inputs: Any = None
    effect: EffectKind = EffectKind.READ


class ErrorSent(_Sent):
    """How a step failed."""

    type: Annotated[StrictStr, Field(max_length=200)] = ""
    message: Text = ""
    status: Annotated[StrictInt, Field(ge=400, le=599)] | None = Field(default=None, description="The HTTP status behind it.")
    retry_after: Annotated[float, Field(ge=0, le=1e8)] | None = Field(default=None, description="Seconds to wait, as it said.")


class FailStep(_Sent):
    """A step that was begun has failed."""

    attempt_token: Secret | None = None
    key: Id | None = None
    error: ErrorSent
    kind: Literal["retryable", "fixable", "fatal"] | None = Field(default=None, description="What you take it for.")
    not_done: StrictBool = Field(default=False, description="You know that nothing was changed. Else a write may be asked about.")
    usd: Money | None = None
    tokens: Annotated[StrictInt, Field(ge=0, le=1 << 53)] | None = None
    approach: Id | None = None


class Failed(_Told):
    """What is next: `retry` (begin it again, not before `retry_at`), `ask` (a person is asked) or `stop`."""

    decision: Literal["retry", "ask", "stop"]
    reason: str
    retry_at: str | None
    retry_after_seconds: int | None
    approach: str | None
    attempt: int | None
    narrow: bool
    question: Question | None
    run_status: str


class Reported(_Told):
    """What is kept. `again`: it had been reported before, and is the same."""

    run_id: str
    step: str
    artifact: Any
    again: bool
    run_status: str
