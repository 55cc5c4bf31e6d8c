"""What was said too late: an answer to a question that has one already, or whose time is over, is refused and kept beside it."""

from __future__ import annotations

import json
from typing import Any

from stepseven.store.base import Row, Tx

MOST = 20  #: of one question; what is said after that is refused without being kept
_CHARS = 2000  # of a value as JSON, and of a note


def keep(tx: Tx, question_id: str, value: Any, *, by: str, note: str | None, now_us: int) -> bool:
    """Keep an answer that came too late. Nothing else changes.

    Args:
        tx: the transaction.
        question_id: what it answers.
        value: as it was given, plain JSON without credentials.
        by: who said it.
        note: what they said with it.
        now_us: the time.

    Returns:
        Whether it was kept: not, if the question is open or withdrawn, the same person said so before, or there are too many.
    """
    row = tx.one(tx.sql.ladder, {"id": question_id})
    while row is not None and row["folded_into"] is not None:
        row = tx.one(tx.sql.ladder, {"id": row["folded_into"]})
    if row is None or row["status"] not in ("answered", "expired", "open"):
        return False
    over = row["status"] != "open" or (row["deadline_us"] is not None and row["deadline_us"] <= now_us)
    known = of(row)
    said = _short(value)
    before = {(k["by"], json.dumps(k["value"])) for k in known}
    if row["status"] == "answered":
        before.add((row["answered_by"], json.dumps(_short(json.loads(row["answer"])))))
    if not over or len(known) >= MOST or (by, json.dumps(said)) in before:
        return False
    known.append({"by": by, "value": said, "note": note[:_CHARS] if note is not None else None, "at_us": now_us})
    text = json.dumps(known, ensure_ascii=False)
    return tx.run(tx.sql.object_to, {"id": row["id"], "objections": text, "seen": row["objections"] or ""}) == 1


def _short(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False)
    return value if len(text) <= _CHARS else text[:_CHARS] + "…"


def of(row: Row) -> list[dict[str, Any]]:
    """What was said too late, oldest first: ``by``, ``value``, ``note``, ``at_us``."""
    return list(json.loads(row["objections"])) if row["objections"] else []


def of_run(tx: Tx, run_no: int) -> list[dict[str, Any]]:
    """What was said too late to any question of a run, each with its ``question_id``."""
    rows = tx.all(tx.sql.objections_of_run, {"run_no": run_no})
    return [{"question_id": row["id"], **said} for row in rows for said in of(row)]
