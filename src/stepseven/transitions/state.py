"""What is loaded of a run when it is taken: its row, its records, tries, effects and questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.model import Option, Question, QuestionKind, QuestionStatus
from stepseven.store.base import Row, Tx
from stepseven.store.statements import SEQ_BITS, SEQ_MASK, Statements
from stepseven.transitions import family


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The right to write a run: every state write names it."""

    run_no: int
    run_id: str
    client_id: str
    root_id: str  # the run whose receipts it shares; itself, unless it is a fork
    owner: str
    fence: int

    def keys(self) -> dict[str, Any]:
        """As statement parameters."""
        return {"run_no": self.run_no, "owner": self.owner, "fence": self.fence}

    def values(self) -> tuple[int, int, str]:
        """The same by position, as ``Record.insert`` takes it."""
        return (self.run_no, self.fence, self.owner)


@dataclass(slots=True)
class Record:
    """One step record, newest generation of its (branch, name, key).

    Its fields but the last are the columns of ``Statements.steps``, in their order: a run's records are made of bare values.
    """

    id: int
    branch: str
    name: str
    key: str
    generation: int
    state: str
    effect: str | None = None
    inputs: str | None = None
    args: str | None = None
    result: str | None = None
    artifact: str | None = None
    summary: str | None = None
    approach: str | None = None
    why: str | None = None
    facts: str | None = None
    usd: int | None = None
    tokens: int | None = None
    started_us: int = 0
    ended_us: int | None = None
    used: bool = False  # this execution's code called it

    @property
    def seq(self) -> int:
        """Position among the run's records."""
        return self.id & SEQ_MASK

    def insert(self, sql: Statements, hold: tuple[int, int, str]) -> tuple[str, tuple[Any, ...]]:
        """The statement that appends this record under *hold* (``Hold.values``), and its values in order."""
        if (
            self.effect is None and self.inputs is None and self.artifact is None and self.approach is None
            and self.why is None and self.facts is None and self.usd is None and self.tokens is None
        ):  # fmt: skip
            return sql.append_read, (
                self.id, self.branch, self.name, self.key, self.generation, self.state, self.args, self.result, self.summary,
                self.started_us, self.ended_us, *hold,
            )  # fmt: skip
        return sql.append_step, (
            self.id, self.branch, self.name, self.key, self.generation, self.state, self.effect, self.inputs, self.args,
            self.result, self.artifact, self.summary, self.approach, self.why, self.facts, self.usd, self.tokens,
            self.started_us, self.ended_us, *hold,
        )  # fmt: skip


RecordKey = tuple[str, str, str]  # branch, name, key


@dataclass(slots=True, kw_only=True)
class Loaded:
    """Everything on record of one run."""

    run: Row
    records: dict[RecordKey, Record]
    attempts: dict[RecordKey, list[Row]]
    questions: dict[tuple[str, str, str], list[Row]]  # branch, kind, key -> in the order asked
    last_seq: int
    older: list[Record]  # superseded generations, oldest first
    kin: dict[int, tuple[int, int]] = field(default_factory=dict)  # children without a record of their end: what each has cost
    recoveries: list[Row] = field(default_factory=list)  # that chose something, or are under way; oldest first


def outwards(branch: str) -> Iterator[str]:
    """A branch and those around it, ending with the run's own (``""``)."""
    while branch:
        yield branch
        branch = branch.rpartition("/")[0]
    yield ""


def steps_range(run_no: int) -> dict[str, int]:
    """The ids of a run's records."""
    return {"low": run_no << SEQ_BITS, "high": (run_no << SEQ_BITS) | SEQ_MASK}


def load(tx: Tx, run_no: int) -> Loaded | None:
    """Read a run whole, in one snapshot."""
    run = tx.one(tx.sql.run_by_no, {"no": run_no})
    if run is None:
        return None
    records: dict[RecordKey, Record] = {}
    older: list[Record] = []
    last_seq = 0
    for values in tx.values(tx.sql.steps, steps_range(run_no)):
        record = Record(*values)
        last_seq = record.id & SEQ_MASK
        key = (record.branch, record.name, record.key)
        if key in records:
            older.append(records[key])
        records[key] = record
    attempts: dict[RecordKey, list[Row]] = {}
    for row in tx.all(tx.sql.attempts, {"run_no": run_no}):
        attempts.setdefault((row["branch"], row["name"], row["key"]), []).append(row)
    questions: dict[tuple[str, str, str], list[Row]] = {}
    for row in tx.all(tx.sql.questions_of_run, {"run_no": run_no}):
        questions.setdefault((row["branch"], row["kind"], row["key"]), []).append(row)
    for rows in questions.values():
        rows.sort(key=lambda r: r["n"])
    return Loaded(run=run, records=records, attempts=attempts, questions=questions, last_seq=last_seq, older=older,
                  kin=family.kin(tx, run_no), recoveries=tx.all(tx.sql.recoveries, {"run_no": run_no}))  # fmt: skip


def options_of(text: str) -> tuple[Option, ...]:
    """Stored options as values."""
    return tuple(Option(**item) for item in json.loads(text))


def choice_of(answer: Any) -> str | None:
    """The id a stored answer chose, if it chose one."""
    if isinstance(answer, Mapping) and isinstance(answer.get("choice"), str):
        return str(answer["choice"])
    return answer if isinstance(answer, str) else None


def question_of(row: Row, run_id: str) -> Question:
    """A stored question as people see it."""
    return Question(
        id=row["id"],
        run_id=run_id,
        client_id=row["client_id"],
        step=row["step"],
        kind=QuestionKind(row["kind"]),
        text=row["text"],
        options=options_of(row["options"]),
        recommendation=row["recommendation"],
        context=json.loads(row["context"]),
        asked_of=row["asked_of"],
        deadline_us=row["deadline_us"],
        status=QuestionStatus(row["status"]),
        answer=None if row["answer"] is None else json.loads(row["answer"]),
        answered_by=row["answered_by"],
        answered_us=row["answered_us"],
        note=row["note"],
        created_us=row["created_us"],
    )
