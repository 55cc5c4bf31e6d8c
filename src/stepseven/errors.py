"""Everything stepseven raises, and what the caller can do about each.

Three families: errors (``StepsevenError``) tell the caller something; the exceptions a step raises by hand
(``Retryable``, ``Fixable``, ``Fatal``, ``AlreadyDone``, ``Conflict``, ``NotYet``) tell stepseven something; signals
(``BaseException``) end code that may no longer act, and must not be caught by an ``except Exception``.

Longer than other files: one class for each thing that can be caught, in one place to look them up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any


class StepsevenError(Exception):
    """Base of every error. The message is one sentence and says what to do."""


class KeyRequired(StepsevenError):
    """A write step was called twice in one branch without a business key. Declare ``key=`` on the step."""

    def __init__(self, step: str, run_id: str) -> None:
        super().__init__(f"step {step!r} was called again in run {run_id}: declare key= so that each effect has a name")
        self.step = step
        self.run_id = run_id


class NotRecordable(StepsevenError):
    """A value cannot be stored so that it comes back equal. Pass or return plain data, or annotate the type."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} cannot be recorded: {why}")
        self.path = path
        self.why = why


class TooLarge(StepsevenError):
    """A result is over the size limit. Store it elsewhere and return a reference to it."""

    def __init__(self, path: str, size: int, limit: int) -> None:
        super().__init__(
            f"{path} is {size:,} bytes, the limit is {limit:,}: store it elsewhere and return a reference (a path or URL)"
        )
        self.path = path
        self.size = size
        self.limit = limit


class SecretFound(StepsevenError):
    """A credential is about to be stored. Pass ``Secret("NAME")`` instead, or declare ``secrets="mask"``."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            f"{path} looks like {what} and was not stored: pass Secret('NAME') instead, or declare secrets='mask' on the step"
        )
        self.path = path
        self.what = what


class RunConflict(StepsevenError):
    """A run with this id exists with another client, workflow or inputs. It was not touched."""

    def __init__(self, run_id: str, differs: str) -> None:
        super().__init__(f"run {run_id} exists already with {differs}: use another run id, or the same values")
        self.run_id = run_id
        self.differs = differs


class UnknownRun(StepsevenError):
    """No run has this id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id}: `stepseven runs` lists them")
        self.run_id = run_id


class ArtifactGone(StepsevenError):
    """A result that was too long to be kept elsewhere was pruned with its run. Use its summary, or work it out again."""

    def __init__(self, name: str, run_id: str) -> None:
        super().__init__(
            f"the whole {name!r} of run {run_id} is gone (pruned, or its file was removed): use its summary, or work it out again"
        )
        self.name = name
        self.run_id = run_id


class UnknownClient(StepsevenError):
    """No client has this id: nothing was ever run for it, and nothing said about it."""

    def __init__(self, client_id: str) -> None:
        super().__init__(f"there is no client {client_id}: `stepseven client` lists them")
        self.client_id = client_id


class ClientBusy(StepsevenError):
    """The client cannot be forgotten while runs of it have not ended or an effect's outcome is not known. Nothing was changed."""

    def __init__(self, client_id: str, runs: Sequence[str], unsettled: Sequence[str] = ()) -> None:
        told = [_listed(runs, "not ended"), _listed(unsettled, "an effect in doubt")]
        do = "cancel them first (`stepseven cancel RUN`)" if runs else "resume them first, so that it is found out"
        super().__init__(f"{client_id} cannot be forgotten: {'; '.join(t for t in told if t)}; {do}")
        self.client_id = client_id
        self.runs = tuple(runs)
        self.unsettled = tuple(unsettled)


def _listed(names: Sequence[str], what: str) -> str:
    """``2 runs have not ended (a, b)``; empty if there are none."""
    if not names:
        return ""
    more = f", and {len(names) - 5} more" if len(names) > 5 else ""  # noqa: PLR2004 - a sentence
    return f"{len(names)} {'run has' if len(names) == 1 else 'runs have'} {what} ({', '.join(names[:5])}{more})"


class UnknownQuestion(StepsevenError):
    """No question has this id; ``open_ids`` are those that can be answered."""

    def __init__(self, question_id: str, open_ids: Sequence[str] = ()) -> None:
        known = f"open are: {', '.join(open_ids)}" if open_ids else "no question is open"
        super().__init__(f"there is no question {question_id}; {known}")
        self.question_id = question_id
        self.open_ids = tuple(open_ids)


class UnknownIncident(StepsevenError):
    """No incident has this id, or none of its questions is of a client that may be seen."""

    def __init__(self, incident_id: str) -> None:
        super().__init__(f"there is no incident {incident_id}: `stepseven inbox` shows those that are open")
        self.incident_id = incident_id


class AlreadyAnswered(StepsevenError):
    """The question has its one answer; nothing was changed."""

    def __init__(self, question_id: str, *, by: str | None, answer: object, at: str) -> None:
        super().__init__(f"question {question_id} was already answered by {by or 'someone'} at {at}: {_said(answer)}")
        self.question_id = question_id
        self.by = by
        self.answer = answer
        self.at = at


def _said(answer: object) -> str:
    """An answer as people read it: the choice, and what was given with it."""
    answer = readable(answer)
    if isinstance(answer, Mapping) and isinstance(answer.get("choice"), str):
        more = ", ".join(f"{name} {value}" for name, value in answer.items() if name != "choice")
        return f"{answer['choice']} ({more})" if more else str(answer["choice"])
    return answer if isinstance(answer, str) else repr(answer)


def readable(answer: Any) -> Any:
    """A stored answer for people: until when somebody waits is kept in microseconds since the epoch, and read as a time (UTC)."""
    if not isinstance(answer, Mapping) or answer.get("choice") != "wait" or not isinstance(answer.get("until"), int):
        return answer
    try:
        moment = datetime.fromtimestamp(answer["until"] / 1e6, UTC)
    except (ValueError, OverflowError, OSError):  # before the year 1
        return answer
    return {**answer, "until": moment.isoformat(timespec="seconds").replace("+00:00", "Z")}


class InvalidChoice(StepsevenError, ValueError):
    """What was chosen for a resume, a plan or a fork cannot be obeyed. Nothing was changed."""

    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(f"run {run_id}: {why}")
        self.run_id = run_id
        self.why = why


class InvalidArgument(StepsevenError, ValueError, TypeError):
    """An argument is not of the form that the call takes. Nothing was changed.

    Also a ``ValueError`` and a ``TypeError``: what Python itself would have said.
    """

    def __init__(self, name: str, shown: str, why: str) -> None:
        super().__init__(f"{name}={shown}: {why}")
        self.name = name
        self.why = why


class QuestionExpired(StepsevenError):
    """The question can take no answer any more: its deadline passed, or its run no longer needs it."""

    def __init__(self, question_id: str, status: str) -> None:
        why = "its deadline passed" if status == "expired" else "its run no longer needs it"
        super().__init__(f"question {question_id} is {status}: {why}")
        self.question_id = question_id
        self.status = status


class InvalidAnswer(StepsevenError):
    """The answer is not one of the choices, or not of the asked type. The question stays open."""

    def __init__(self, question_id: str, why: str) -> None:
        super().__init__(f"that does not answer question {question_id}: {why}")
        self.question_id = question_id
        self.why = why


class NoRun(StepsevenError):
    """A step with an effect, or a run's own call, was used outside a run, or where it has no place."""

    def __init__(self, what: str, *, instead: str = "needs a run: call it inside a workflow that a Layer runs") -> None:
        super().__init__(f"{what} {instead}")
        self.what = what


class StepFailed(StepsevenError):
    """A step failed for good. After a ``map``: ``results`` (None where failed) and ``failures`` by item position."""

    def __init__(
        self,
        step: str,
        reason: str,
        *,
        kind: str = "fixable",
        results: Sequence[Any] = (),
        failures: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(f"step {step!r} failed for good: {reason}")
        self.step = step
        self.reason = reason
        self.kind = kind
        self.results = list(results)
        self.failures = dict(failures or {})


class Refused(StepFailed):
    """A person refused what was proposed: an irreversible step, or ``run.approve``. Nothing was done.

    Uncaught it ends the run as cancelled; an item of a map counts as skipped.
    """

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(step, reason, kind="refused")
        self.args = (f"{step}: {reason}; nothing was done",)


class AskExpired(StepsevenError):
    """Nobody answered before the deadline and there is no default. It is not a "no"."""

    def __init__(self, question_id: str, text: str) -> None:
        super().__init__(f"nobody answered in time: {text}")
        self.question_id = question_id
        self.text = text


class AskCancelled(StepsevenError):
    """The question was withdrawn because its run was cancelled."""

    def __init__(self, question_id: str, text: str) -> None:
        super().__init__(f"the question was withdrawn: {text}")
        self.question_id = question_id
        self.text = text


class StoreUnavailable(StepsevenError):
    """The database cannot be read or written now. Nothing was half-written."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"the store {url} cannot be used: {why}")
        self.url = url
        self.why = why


class SchemaMismatch(StepsevenError):
    """The database was written by another version. It was not touched."""

    def __init__(self, url: str, found: str, known: str, *, advice: str) -> None:
        super().__init__(f"the store {url} has schema {found}, this stepseven knows {known}: {advice}")
        self.url = url
        self.found = found
        self.known = known


class NotYetBuilt(StepsevenError):
    """This part of the public interface comes with a later release."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} comes with a later release of stepseven")
        self.what = what


class UnknownWorkflow(StepsevenError):
    """The run's code is not loaded in this process. Import the module that defines the workflow."""

    def __init__(self, name: str, run_id: str | None = None) -> None:
        of = f" of run {run_id}" if run_id else ""
        super().__init__(f"workflow {name!r}{of} is not loaded: import its module, or name it with --module")
        self.name = name
        self.run_id = run_id


class AmbiguousWorkflow(StepsevenError):
    """Several modules of this process have a workflow of this name, and none is the code the run was executed with."""

    def __init__(self, name: str, run_id: str, modules: Sequence[str]) -> None:
        super().__init__(
            f"workflow {name!r} of run {run_id} is defined in {' and in '.join(modules)}, and none is the code the run was "
            "executed with: import only the one that is meant, or give the other another name"
        )
        self.name = name
        self.run_id = run_id
        self.modules = tuple(modules)


class NothingToRun(StepsevenError):
    """A worker was given no workflow to take runs of: a module cannot be imported or has none. Nothing was started."""


class MissingSecret(StepsevenError):
    """The environment variable a ``Secret`` names is not set where the step runs."""

    def __init__(self, name: str) -> None:
        super().__init__(f"environment variable {name} is not set: set it where the run is executed")
        self.name = name


class Waiting(StepsevenError):
    """The run has not ended: it waits. ``until_us`` is set when a timer will move it."""

    def __init__(self, run_id: str, waiting_for: str | None, texts: Sequence[str] = (), until_us: int | None = None) -> None:
        what = "; ".join(texts) or waiting_for or "another worker"
        super().__init__(f"run {run_id} is waiting for {what}")
        self.run_id = run_id
        self.waiting_for = waiting_for
        self.until_us = until_us


class Failed(StepsevenError):
    """The run ended failed or cancelled; ``status`` says which."""

    def __init__(self, run_id: str, status: str, reason: str) -> None:
        super().__init__(f"run {run_id} {'was cancelled' if status == 'cancelled' else 'failed'}: {reason}")
        self.run_id = run_id
        self.status = status
        self.reason = reason


# -- raised by hand, inside a step ------------------------------------------------------------------------------------


class Retryable(Exception):
    """Raise in a step: not done, trying again may help. *retry_after* is seconds: then it is a deferral."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


class Fixable(Exception):
    """Raise in a step: not done, a person can fix it. *needs* names the missing fact, *ask* is the question's text."""

    def __init__(self, reason: str, needs: str | None = None, ask: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.needs = needs
        self.ask = ask


class Fatal(Exception):
    """Raise in a step or a workflow: not done, and nothing can be done about it. The run ends failed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AlreadyDone(Exception):
    """Raise in a write step: the other side says it was done before. *value* becomes the step's result."""

    def __init__(self, value: Any) -> None:
        super().__init__("already done")
        self.value = value


class Conflict(Exception):
    """Raise in a probe: something is there under our key, but it is different. A person decides."""

    def __init__(self, found: Any) -> None:
        super().__init__(f"found something else: {found!r}")
        self.found = found


class NotYet(Exception):
    """Raise in a probe: cannot be told yet, ask again later."""


# -- signals ----------------------------------------------------------------------------------------------------------


class Superseded(BaseException):
    """This execution may no longer act: another worker took the run, or the run is being put away.

    A ``BaseException`` because agents are full of ``except Exception``.
    """

    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(f"run {run_id}: {why}")
        self.run_id = run_id
        self.why = why
