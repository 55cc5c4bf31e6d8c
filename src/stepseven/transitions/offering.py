"""When a run ends badly: what it did outside still stands. A person is asked whether it is taken back. Needs no code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stepseven.decide import escalate
from stepseven.decide.escalate import Draft, Receipt, Situation
from stepseven.model import EffectState, QuestionKind, QuestionStatus, RunStatus
from stepseven.store.base import Row, Tx
from stepseven.store.codec import digest, free_text, guard
from stepseven.transitions.family import replaced
from stepseven.transitions.state import steps_range

UNDO = "stepseven.undo"  # the workflow that takes back what another run did; its input names that run
_BADLY = (RunStatus.FAILED, RunStatus.CANCELLED)
_WHOLE = 1 << 20  # characters: the text is short already


def offer(tx: Tx, run_no: int, now_us: int) -> None:
    """Ask whether what an ended run did is taken back: once, if anything can be; an open question is told anew.

    A run that took things back and ended before all were offers the rest again, at the run that had done them.
    """
    run = tx.one(tx.sql.run_by_no, {"no": run_no})
    if run is None or run["status"] not in _BADLY:
        return
    if run["workflow"] == UNDO:
        run = tx.one(tx.sql.run_by_id, {"id": json.loads(run["inputs"])["run_id"]})
        if run is None:
            return
    numbers = (run["no"], *(row["no"] for row in replaced(tx, run)))
    found = [row for no in numbers for row in tx.all(tx.sql.effects, {"run_no": no})]
    mine = sorted(found, key=lambda row: row["claimed_us"])[::-1]  # newest first
    open_now = [e for e in mine if e["state"] == EffectState.DONE and e["undo_module"] is not None and e["undone_us"] is None]
    if open_now:
        _ask(tx, run, mine, now_us)


def goes_on(tx: Tx, run: Row, now_us: int) -> None:
    """A child was started anew on the receipts of its earlier starts: what was asked about those is no longer open."""
    for earlier in replaced(tx, run):
        asked = [q for q in tx.all(tx.sql.questions_of_run, {"run_no": earlier["no"]}) if q["kind"] == QuestionKind.UNDO.value]
        for question in asked:
            tx.run(tx.sql.close_question, {"id": question["id"], "status": "withdrawn", "now": now_us})
        if asked:
            tx.run(tx.sql.count_questions, {"run_no": earlier["no"], "now": now_us})


def _ask(tx: Tx, run: Row, mine: Sequence[Row], now_us: int) -> None:
    kind = QuestionKind.UNDO.value
    asked = [q for q in tx.all(tx.sql.questions_of_run, {"run_no": run["no"]}) if q["kind"] == kind]
    told = _told(_draft(tx, run, mine))
    standing = next((q for q in asked if q["status"] == QuestionStatus.OPEN), None)
    if standing is not None:
        tx.run(tx.sql.retell_question, {"id": standing["id"], **told})
        return
    n = len(asked) + 1
    made_of = digest(f"{kind}/{mine[0]['claim_id']}/{n}")  # of a claim's id: nobody can guess it
    name = "".join(c for c in made_of.lower() if c.isalnum())[-12:]  # as long as all ids, and people may type it
    tx.run(
        tx.sql.insert_question,
        {
            "id": f"q_{name}", "run_no": run["no"], "client_id": run["client_id"],
            "branch": "", "key": kind, "n": n, "step": None, "kind": kind, **told, "schema": None, "about": None,
            "asked_seq": 0, "attempts": 0, "asked_of": None, "remember": None, "fallback": None, "deadline_us": None,
            "folded_into": None, "signature": None, "now": now_us,
        },
    )  # fmt: skip
    tx.run(tx.sql.count_questions, {"run_no": run["no"], "now": now_us})


def _draft(tx: Tx, run: Row, mine: Sequence[Row]) -> Draft:
    spend = tx.one(tx.sql.spend, {"run_no": run["no"], **steps_range(run["no"])}) or {"uusd": 0, "tokens": 0}
    situation = Situation(
        client=run["client_id"], workflow=run["workflow"], goal=run["goal"], inputs=json.loads(run["inputs"]), done=(),
        next_steps=(), spent_usd=(spend["uusd"] or 0) / 1e6, limit_usd=None, tokens=spend["tokens"] or 0,
    )  # fmt: skip
    return escalate.undo(
        situation, failed=run["status"] == RunStatus.FAILED,
        receipts=tuple(_receipt(e) for e in mine if e["state"] == EffectState.DONE and e["undone_us"] is None),
        taken_back=sum(e["undone_us"] is not None for e in mine),
        unknown=tuple(e["step"] for e in mine if e["state"] in (EffectState.CLAIMED, EffectState.UNKNOWN)),
    )  # fmt: skip


def _receipt(effect: Row) -> Receipt:
    approved = json.loads(effect["inputs_approved"] or "{}")
    return Receipt(
        step=effect["step"], arguments={**json.loads(effect["arguments"] or "{}"), **approved},
        receipt=json.loads(effect["receipt"] or "null"), undo=effect["undo_module"] is not None,
        shared=effect["scope"] == "client",
    )  # fmt: skip


def _told(draft: Draft) -> dict[str, Any]:
    """What a person reads, as it is stored."""
    options = [{"id": o.id, "label": o.label, "detail": o.detail, "usd": o.usd, "seconds": o.seconds} for o in draft.options]
    return {
        "text": free_text(draft.text, _WHOLE), "options": json.dumps(options, ensure_ascii=False),
        "recommendation": draft.recommendation,
        "context": guard(json.dumps(draft.context, ensure_ascii=False), "context", secrets="mask"),
    }  # fmt: skip
