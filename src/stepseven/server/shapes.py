"""The shapes of what is sent and told, for OpenAPI and for refusing what does not fit.

What is told has at least these fields: programs must let others pass.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from stepseven.model import QuestionKind, QuestionStatus, RunStatus, WaitingFor
from stepseven.transitions.tokens import Scope

T = TypeVar("T")

Text = Annotated[StrictStr, Field(max_length=4000)]
Id = Annotated[StrictStr, Field(min_length=1, max_length=200)]
Names = Annotated[list[Id], Field(max_length=1000)]


class _Sent(BaseModel):
    """A body: a field that is not known is refused, for a mistyped name must not mean its absence."""

    model_config = ConfigDict(extra="forbid")


class _Told(BaseModel):
    """A document."""

    model_config = ConfigDict(extra="allow")


class Problem(_Told):
    """What went wrong (RFC 9457). ``code`` is the same word for the same cause, for ever."""

    type: str
    title: str
    status: int
    code: str
    detail: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": words,
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, words in (
        (401, "Nobody that is known: no token, or one that no longer holds."),
        (403, "The token may not do this."),
        (422, "What was sent is not of the form that is taken. Nothing was changed."),
        ("default", "Refused: `code` says why."),
    )
}


class RunInfo(_Told):
    """A run of a list. Times are microseconds since the epoch, UTC."""

    run_id: str
    client_id: str
    workflow: str
    status: RunStatus
    waiting_for: WaitingFor | None
    open_questions_count: int
    goal: str | None
    updated_us: int


class Question(_Told):
    """Something only a person can decide. An answer's `value` is the id of an option, or of the asked type."""

    id: str
    run_id: str
    client_id: str
    step: str | None
    kind: QuestionKind
    text: str
    options: list[dict[str, Any]]
    recommendation: str | None
    context: dict[str, Any]
    asked_of: str | None
    deadline_us: int | None
    status: QuestionStatus
    answer: Any
    answered_by: str | None
    answered_us: int | None
    note: str | None
    created_us: int


class Run(_Told):
    """A run whole: the form that `stepseven show RUN --json` prints."""

    run_id: str
    client_id: str
    workflow: str
    goal: str | None
    status: RunStatus
    waiting_for: WaitingFor | None
    why: str
    inputs: dict[str, Any]
    questions: list[Question]
    spend: dict[str, Any]
    value: Any
    failure: dict[str, Any] | None
    created_us: int
    updated_us: int
    ended_us: int | None
    checkpoint: dict[str, Any]


class Why(_Told):
    """One sentence: what the run waits for, who may move it, what happens next."""

    run_id: str
    why: str


class Document(_Told):
    """A document of the layer: a checkpoint, a plan."""


class Incident(_Told):
    """Open questions of one cause. `options` are the choices that all of them have."""

    id: str
    kind: str
    text: str
    status: str
    resource: str | None
    questions: int
    runs: int
    clients: list[str]
    workflows: list[str]
    options: list[dict[str, Any]]
    earlier: str | None


class IncidentAnswered(_Told):
    """Which questions took the answer, which did not and why, and how many are left."""

    id: str
    answered: list[str]
    refused: dict[str, str]
    open: int


class Fact(_Told):
    """One thing known about a client, with what contradicts it."""

    client_id: str
    key: str
    value: Any
    version: int
    source: str | None
    set_by: str | None
    set_us: int
    valid_until_us: int | None
    expired: bool


class Page(_Told, Generic[T]):
    """A part of a list. `next` is the `cursor` of the next part; null: there is none."""

    items: list[T]
    next: str | None


class Token(_Told):
    """A token, without its secret. `clients` empty: all of them."""

    id: str
    name: str | None
    scopes: list[str]
    clients: list[str]
    created_us: int
    expires_us: int | None
    revoked_us: int | None


class MadeToken(Token):
    """A fresh token. `token` is told this once."""

    token: str | None


class Health(_Told):
    """That it is there."""

    status: Literal["ok"]


# -- bodies ---------------------------------------------------------------------------------------------------------------


class StartRun(_Sent):
    """A run to be admitted. A workflow that a worker ever executed is for workers; others are executed elsewhere."""

    workflow: Annotated[StrictStr, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_.\-]+$")]
    client_id: Id
    run_id: Id | None = None
    goal: Text | None = None
    inputs: dict[str, Any] = Field(default_factory=dict)
    steps: Names = Field(default_factory=list, description="The names of the steps that will be reported, in order.")
    external: StrictBool | None = Field(None, description="It is executed elsewhere, whatever workers have.")


class Resume(_Sent):
    """What is chosen for a resume; nothing: it just goes on. As `layer.resume` takes it."""

    approach: dict[str, StrictStr] = Field(default_factory=dict)
    skip: dict[str, Any] = Field(default_factory=dict)
    rerun: list[StrictStr] = Field(default_factory=list)
    drift: Literal["keep", "refresh"] | None = None


class Cancel(_Sent):
    """Why a run is cancelled; it is kept."""

    reason: Text = "cancelled over HTTP"


class Answer(_Sent):
    """The answer to a question. `value` is needed, also when it is null."""

    value: Any
    note: Text | None = None


class IncidentAnswer(Answer):
    """One answer for the questions of an incident, or for some of them."""

    questions: Names | None = None
    clients: Names | None = None


class OptionSent(_Sent):
    """A choice."""

    id: Id
    label: Annotated[StrictStr, Field(min_length=1, max_length=300)]
    detail: Text | None = None
    usd: float | None = Field(None, ge=0, le=1e9)
    seconds: float | None = Field(None, ge=0, le=1e9)


class Ask(_Sent):
    """A question of a run that is executed elsewhere."""

    text: Annotated[StrictStr, Field(min_length=1, max_length=4000)]
    options: list[OptionSent | Id] = Field(default_factory=list, max_length=50)
    about: Any = Field(None, description="What it is about: when that has changed, the old answer does not count.")
    key: Id | None = Field(None, description="Which question of the run it is; default: its text.")
    to: Annotated[StrictStr, Field(min_length=1, max_length=300)] | None = Field(None, description="Who is asked first.")
    recommendation: Id | None = None
    deadline_us: StrictInt | None = Field(None, ge=0, lt=1 << 62)


class MakeToken(_Sent):
    """A token to be made. No client: it is for all of them."""

    scopes: Annotated[list[Scope], Field(min_length=1, max_length=5)]
    clients: Names = Field(default_factory=list)
    name: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = None
    expires: Annotated[StrictStr, Field(max_length=20)] | None = Field(None, description='After how long, such as "90d".')
