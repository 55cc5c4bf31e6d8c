"""stepseven: the recovery layer under AI agents. Die at step seven, wake up at step seven, knowing what you knew."""

from stepseven.clients import Client
from stepseven.decide.plan import Plan
from stepseven.engines.embedded import Worker
from stepseven.errors import (
    AlreadyAnswered,
    AlreadyDone,
    AmbiguousWorkflow,
    ArtifactGone,
    AskCancelled,
    AskExpired,
    ClientBusy,
    Conflict,
    Failed,
    Fatal,
    Fixable,
    InvalidAnswer,
    InvalidArgument,
    InvalidChoice,
    KeyRequired,
    MissingSecret,
    NoRun,
    NothingToRun,
    NotRecordable,
    NotYet,
    NotYetBuilt,
    QuestionExpired,
    Refused,
    Retryable,
    RunConflict,
    SchemaMismatch,
    SecretFound,
    StepFailed,
    StepsevenError,
    StoreUnavailable,
    Superseded,
    TooLarge,
    UnknownClient,
    UnknownIncident,
    UnknownQuestion,
    UnknownRun,
    UnknownWorkflow,
    Waiting,
)
from stepseven.layer import Layer
from stepseven.model import (
    Changes,
    Cost,
    Decision,
    Fact,
    FactChange,
    Failure,
    Forgotten,
    Incident,
    IncidentAnswered,
    Limits,
    Option,
    Outcome,
    Page,
    Previous,
    Pruned,
    Question,
    RunInfo,
    Secret,
)
from stepseven.runtime.attempt import attempt
from stepseven.runtime.handle import Run
from stepseven.runtime.references import Reference
from stepseven.step import step
from stepseven.workflow import workflow

__version__ = "0.1.0"

_LATER = {"Review", "Board"}


def __getattr__(name: str) -> object:
    """Names of the contract that a later release brings say so, instead of a bare "cannot import"."""
    if name in _LATER:
        raise ImportError(f"stepseven.{name} comes with a later release of stepseven")
    raise AttributeError(f"module 'stepseven' has no attribute {name!r}")


__all__ = [
    "AlreadyAnswered",
    "AlreadyDone",
    "AmbiguousWorkflow",
    "ArtifactGone",
    "AskCancelled",
    "AskExpired",
    "Changes",
    "Client",
    "ClientBusy",
    "Conflict",
    "Cost",
    "Decision",
    "Fact",
    "FactChange",
    "Failed",
    "Failure",
    "Fatal",
    "Fixable",
    "Forgotten",
    "Incident",
    "IncidentAnswered",
    "InvalidAnswer",
    "InvalidArgument",
    "InvalidChoice",
    "KeyRequired",
    "Layer",
    "Limits",
    "MissingSecret",
    "NoRun",
    "NotRecordable",
    "NotYet",
    "NotYetBuilt",
    "NothingToRun",
    "Option",
    "Outcome",
    "Page",
    "Plan",
    "Previous",
    "Pruned",
    "Question",
    "QuestionExpired",
    "Reference",
    "Refused",
    "Retryable",
    "Run",
    "RunConflict",
    "RunInfo",
    "SchemaMismatch",
    "Secret",
    "SecretFound",
    "StepFailed",
    "StepsevenError",
    "StoreUnavailable",
    "Superseded",
    "TooLarge",
    "UnknownClient",
    "UnknownIncident",
    "UnknownQuestion",
    "UnknownRun",
    "UnknownWorkflow",
    "Waiting",
    "Worker",
    "attempt",
    "step",
    "workflow",
]  # fmt: skip
