"""A question as it is stored: whatever it was put together from, without credentials.

Its own questions a run asks under its hold (``questions.ask``); those that outlive it (done twice, to be taken back) are
written by whoever finds out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide.escalate import Draft
from stepseven.decide.incident import Cause
from stepseven.model import QuestionKind
from stepseven.store.base import Tx
from stepseven.store.codec import free_text, guard
from stepseven.transitions import incidents, ladders

_WHOLE = 1 << 20  # characters: here nothing is cut, whoever puts a question together keeps it short


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A question about to be stored. ``about`` is a digest, ``schema``/``fallback``/``remember`` JSON."""

    id: str
    branch: str
    key: str
    n: int
    kind: QuestionKind
    draft: Draft
    step: str | None = None
    schema: str | None = None
    about: str | None = None
    asked_seq: int = 0
    attempts: int = 0
    asked_of: str | None = None
    remember: str | None = None
    fallback: str | None = None
    deadline_us: int | None = None
    folded_into: str | None = None
    signature: str | None = None
    cause: Cause | None = None  # that others may have, too


def insert(tx: Tx, a: Asking, *, run_no: int, client_id: str, now_us: int) -> bool:
    """Store a question of a run and count it there. ``False``: the same one is there already."""
    row = {
        "id": a.id, "run_no": run_no, "client_id": client_id, "branch": a.branch, "key": a.key, "n": a.n, "step": a.step,
        "kind": a.kind.value, "schema": a.schema, **told(a.draft), "about": a.about, "asked_seq": a.asked_seq,
        "attempts": a.attempts, "asked_of": _shown(a.asked_of), "remember": _masked(a.remember, "remember"),
        "fallback": _masked(a.fallback, "default"), "deadline_us": a.deadline_us, "folded_into": a.folded_into,
        "signature": _shown(a.signature), "now": now_us,
    }  # fmt: skip
    stored = tx.run(tx.sql.insert_question, row) == 1
    if stored and a.cause is not None and a.folded_into is None:
        incidents.join(tx, a.cause, a.id, now_us)
    if stored and a.folded_into is None:
        ladders.begin(tx, a.id, now_us)
    tx.run(tx.sql.count_questions, {"run_no": run_no, "now": now_us})
    return stored


def take_back(tx: Tx, question_id: str, run_no: int, *, reason: str, now_us: int) -> None:
    """Close a question that nobody has to answer any more, and let its run go on. *reason*: why, in words."""
    tx.run(tx.sql.close_question, {"id": question_id, "status": "withdrawn", "now": now_us})
    tx.run(tx.sql.count_questions, {"run_no": run_no, "now": now_us})
    tx.run(tx.sql.wake_run, {"run_no": run_no, "now": now_us, "reason": reason})


def told(draft: Draft) -> dict[str, Any]:
    """What a person reads, as the columns of its row."""
    options = [{"id": o.id, "label": o.label, "detail": o.detail, "usd": o.usd, "seconds": o.seconds} for o in draft.options]
    return {
        "text": _shown(draft.text), "options": _masked(json.dumps(_clean(options), ensure_ascii=False), "options"),
        "recommendation": _shown(draft.recommendation),
        "context": _masked(json.dumps(_clean(draft.context), ensure_ascii=False), "context"),
    }  # fmt: skip


def _shown(text: str | None) -> str | None:
    return None if text is None else free_text(text, _WHOLE)


def _masked(text: str | None, path: str) -> str | None:
    """JSON text; together with its name a text may be a credential, too."""
    return None if text is None else guard(text, path, secrets="mask")


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return free_text(value, _WHOLE)
    if isinstance(value, Mapping):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list | tuple) else value
