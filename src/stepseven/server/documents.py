"""What is on record as JSON: the documents of the HTTP API, which ``--json`` prints as well.

Times are microseconds since the epoch, money is USD.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from stepseven.layer import Layer
from stepseven.model import Fact, Question, QuestionStatus, RunInfo, RunStatus
from stepseven.store.base import Row, Tx
from stepseven.transitions import children, family, objecting
from stepseven.transitions.recoveries import DRIFT_DUE, chosen_of
from stepseven.transitions.runs import known
from stepseven.transitions.state import question_of, steps_range

_CAME = ("ran", "reused", "asked", "usd", "seconds", "saved", "notes", DRIFT_DUE)  # what is kept of one that has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """All rows of one run. ``why`` is the sentence that says what it waits for."""

    row: Row
    steps: list[Row]
    attempts: list[Row]
    effects: list[Row]
    questions: list[Question]
    children: list[Row]  # the runs it started
    below: list[Question]  # what those ask
    recoveries: list[dict[str, Any]]  # as JSON has them, oldest first
    objections: list[dict[str, Any]]  # what was said too late to any of its questions, by ``question_id``
    usd: float
    tokens: int
    unsettled: int
    checkpoint: dict[str, Any]
    why: str

    @property
    def status(self) -> RunStatus:
        """Where it stands."""
        return RunStatus(self.row["status"])

    @property
    def open_questions(self) -> list[Question]:
        """Those that can be answered."""
        return [*(q for q in self.questions if q.status is QuestionStatus.OPEN), *self.below]

    @property
    def failure(self) -> dict[str, Any] | None:
        """Why it failed, as stored."""
        return json.loads(self.row["failure"]) if self.row["failure"] else None

    @property
    def value(self) -> Any:
        """What the workflow returned, as plain JSON."""
        return json.loads(self.row["value"]) if self.row["value"] is not None else None

    def document(self) -> dict[str, Any]:
        """The run as JSON: the form ``GET /v1/runs/{run}`` has. Times are microseconds since the epoch, money is USD."""
        row = self.row
        return {
            "run_id": row["id"], "client_id": row["client_id"], "workflow": row["workflow"], "goal": row["goal"],
            "status": row["status"], "waiting_for": row["waiting_for"], "until_us": row["wake_us"], "why": self.why,
            "inputs": json.loads(row["inputs"]), "questions": [question_document(q) for q in self.open_questions],
            "open_questions_count": row["open_questions"],
            "spend": {"usd": self.usd, "tokens": self.tokens, "seconds": row["executing_us"] / 1e6},
            "value": self.value, "failure": self.failure, "created_us": row["created_us"], "updated_us": row["updated_us"],
            "ended_us": row["ended_us"], "checkpoint": self.checkpoint,
            "children": [
                {"run_id": c["id"], "workflow": c["workflow"], "status": c["status"], "waiting_for": c["waiting_for"]}
                for c in self.children
            ],
            "recoveries": self.recoveries, "objections": self.objections,
        }  # fmt: skip


async def view(layer: Layer, run_id: str) -> RunView:
    """Read a run.

    Raises:
        UnknownRun: there is none with this id.
    """

    def unit(tx: Tx) -> dict[str, Any]:
        row = known(tx, run_id)
        asked = tx.all(tx.sql.questions_of_run, {"run_no": row["no"]})
        no = row["no"]
        uusd, tokens = family.spend(tx, no)
        unsettled = tx.one(tx.sql.unsettled, {"run_no": no})
        return {
            "row": row,
            "steps": tx.all(tx.sql.steps, steps_range(no)),
            "attempts": tx.all(tx.sql.attempts, {"run_no": no}),
            "effects": tx.all(tx.sql.effects, {"run_no": no}),
            "questions": [question_of(q, row["id"]) for q in asked if not q["folded_into"]],
            "children": family.children(tx, no),
            "below": children.open_questions(tx, no),
            "recoveries": [recovery_document(recovery) for recovery in tx.all(tx.sql.recoveries_of_run, {"run_no": no})],
            "objections": objecting.of_run(tx, no),
            "usd": uusd / 1e6,
            "tokens": tokens,
            "unsettled": unsettled["n"] if unsettled is not None else 0,
        }

    rows = await layer.store.read(unit)
    return RunView(**rows, checkpoint=await layer.checkpoint(run_id), why=await layer.why(run_id))


def question_document(question: Question) -> dict[str, Any]:
    """A question as JSON."""
    return asdict(question)


def run_document(info: RunInfo) -> dict[str, Any]:
    """A run of a list as JSON."""
    return {
        "run_id": info.run_id, "client_id": info.client_id, "workflow": info.workflow, "status": info.status,
        "waiting_for": info.waiting_for, "open_questions_count": info.open_questions_count, "goal": info.goal,
        "updated_us": info.updated_us,
    }  # fmt: skip


def recovery_document(row: Row) -> dict[str, Any]:
    """A recovery as JSON; what came of it is there once it has ended."""
    result = json.loads(row["result"] or "{}")
    return {
        "id": row["id"], "by": row["by"], "chosen": chosen_of(row).told(), "created_us": row["created_us"],
        "ended_us": row["ended_us"], **{name: result[name] for name in _CAME if name in result},
    }  # fmt: skip


def fact_document(fact: Fact, now_us: int) -> dict[str, Any]:
    """A fact as JSON, with what contradicts it. ``expired``: it no longer holds, and counts as not known."""
    expired = fact.valid_until_us is not None and fact.valid_until_us <= now_us
    return {**asdict(fact), "expired": expired, "conflicts": [fact_document(other, now_us) for other in fact.conflicts]}
