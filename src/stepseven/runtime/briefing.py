"""What a run tells a model of itself and its client: ``run.brief``, and what is open or failed for the client."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stepseven.decide import brief as briefs
from stepseven.decide.previous import failure_of
from stepseven.model import Failure, FailureKind, Option, Question, QuestionKind, QuestionStatus
from stepseven.runtime import outline
from stepseven.runtime.pins import pin, pinned
from stepseven.runtime.previous import previous
from stepseven.store.redact import mask
from stepseven.transitions import family
from stepseven.transitions.state import question_of

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Tx

BRIEF, RUN_FAILURES = "run.brief", "run.failures"  # names of records
OPEN_QUESTIONS, FAILURES = "client.open_questions", "client.failures"
MOST = 200  #: questions or failures of one client that are told
_DAY_US = 24 * 60 * 60 * 1_000_000


def run_failures(ex: Execution, branch: str, key: str) -> tuple[Failure, ...]:
    """Every try that failed in the run so far, pinned under *key*."""

    def make() -> list[dict[str, Any]]:
        return [dataclasses.asdict(f) for f in failures_of_run(ex)]

    return tuple(_failures(_once(ex, branch, RUN_FAILURES, key, make)))


def failures_of_run(ex: Execution) -> tuple[Failure, ...]:
    """Every try that failed in the run so far, as of now."""
    rows = (row for rows in ex.attempts.values() for row in rows if row["outcome"] in ("failed", "unknown"))
    return tuple(failure_of({**dict(row), "run_id": ex.hold.run_id}) for row in rows)


def brief(ex: Execution, branch: str, key: str, max_tokens: int) -> str:
    """The checkpoint and the previous run as text for a prompt, pinned under *key*.

    Raises:
        ValueError: *max_tokens* is less than 1.
    """

    def make() -> str:
        told = ex.store.read_now(lambda tx: _checkpoint(ex, tx))
        following, remaining = outline.ahead(ex)  # in the row it is as it was when the run was last put away
        document = {**told, "next_step": following, "remaining": remaining}
        return briefs.brief(_masked(document), previous(ex), max_tokens)

    if max_tokens < 1:
        raise ValueError(f"run.brief: max_tokens={max_tokens}: at least 1")
    return str(_once(ex, branch, BRIEF, key, make))


def _checkpoint(ex: Execution, tx: Tx) -> dict[str, Any]:
    row = tx.one(tx.sql.checkpoint, {"id": ex.hold.run_id})
    assert row is not None  # the run is ours  # noqa: S101
    return family.document(tx, ex.hold.run_no, row["document"])


def open_questions(ex: Execution, branch: str, key: str) -> list[Question]:
    """The client's open questions, pinned under *key*."""

    def make() -> list[dict[str, Any]]:
        return [dataclasses.asdict(q) for q in ex.store.read_now(lambda tx: open_questions_of(tx, ex.hold.client_id))]

    return [_question(told) for told in _once(ex, branch, OPEN_QUESTIONS, key, make)]


def failures(ex: Execution, branch: str, key: str, days: float) -> list[Failure]:
    """What failed for the client in the last *days*, pinned under *key*.

    Raises:
        ValueError: *days* is not above 0.
    """

    def make() -> list[dict[str, Any]]:
        now = ex.now_us()
        return [dataclasses.asdict(f) for f in ex.store.read_now(lambda tx: failures_of(tx, ex.hold.client_id, days, now))]

    return _failures(_once(ex, branch, FAILURES, key, make))


def open_questions_of(tx: Tx, client_id: str) -> list[Question]:
    """The questions of a client that wait for an answer, over all runs, oldest first; at most ``MOST``."""
    rows = tx.all(tx.sql.client_open_questions, {"client_id": client_id, "limit": MOST})
    return [question_of(row, row["run_id"]) for row in rows]


def failures_of(tx: Tx, client_id: str, days: float, now_us: int) -> list[Failure]:
    """The tries that failed for a client in the last *days*, over all runs, newest first; at most ``MOST``.

    Raises:
        ValueError: *days* is not above 0.
    """
    if not days > 0:
        raise ValueError(f"failures: days={days:g}: more than 0")
    since_us = now_us - round(min(days, 36_500) * _DAY_US)
    rows = tx.all(tx.sql.client_failures, {"client_id": client_id, "since_us": since_us, "limit": MOST})
    return [failure_of(row) for row in rows]


def _once(ex: Execution, branch: str, name: str, key: str, make: Callable[[], Any]) -> Any:
    """What *make* gave the first time."""
    text = pinned(ex, branch, name, key)
    if text is None:
        text = json.dumps(make(), ensure_ascii=False)
        pin(ex, branch, name, {key: text})
    return json.loads(text)


def _failures(told: list[dict[str, Any]]) -> list[Failure]:
    return [Failure(**{**one, "kind": FailureKind(one["kind"])}) for one in told]


def _question(told: dict[str, Any]) -> Question:
    kinds = {"kind": QuestionKind(told["kind"]), "status": QuestionStatus(told["status"])}
    return Question(**{**told, **kinds, "options": tuple(Option(**option) for option in told["options"])})


def _masked(value: Any) -> Any:
    """A document with credentials masked in whatever text it holds: nothing that was stored before a rule existed gets out."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {mask(name): _masked(item) for name, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, list) else value
