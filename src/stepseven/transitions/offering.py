"""When a run ends badly: what it did outside still stands. A person is asked whether it is taken back. Needs no code."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stepseven._dataclass import dataclass
from stepseven.decide import escalate
from stepseven.decide.escalate import Draft, Receipt, Situation
from stepseven.model import EffectState, QuestionKind, QuestionStatus, RunStatus
from stepseven.store.base import Row, Tx
from stepseven.store.codec import digest
from stepseven.transitions import telling
from stepseven.transitions.answering import BADLY, asker, builders, covered
from stepseven.transitions.family import replaced
from stepseven.transitions.state import steps_range
from stepseven.transitions.telling import Asking

UNDO = "stepseven.undo"  # the workflow that takes back what another run did; its input names that run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """What a badly ended run, and the runs it answers for, left outside. ``effects``: newest first."""

    runs: Sequence[Row]
    effects: Sequence[Row]

    def standing(self) -> list[Row]:
        return [e for e in self.effects if e["state"] == EffectState.DONE and e["undone_us"] is None]

    def can(self) -> list[Row]:
        return [e for e in self.standing() if e["undo_module"] is not None]


def offer(tx: Tx, run_no: int, now_us: int) -> None:
    """Ask whether what an ended run did is taken back: once, if anything can be; an open question is told anew.

    A run that took things back and ended before all were offers the rest again, at the run that had done them. A child that
    is done is asked about where its parent ended badly.
    """
    run = tx.one(tx.sql.run_by_no, {"no": run_no})
    if run is None:
        return
    if run["workflow"] == UNDO and run["status"] in BADLY:
        run = tx.one(tx.sql.run_by_id, {"id": json.loads(run["inputs"])["run_id"]})
    at = None if run is None else asker(tx, run)
    if at is None:
        return
    left = _left(tx, at)
    if left.can():
        _ask(tx, at, left, now_us)
    tell_kin(tx, at)


def tell_anew(tx: Tx, run_no: int) -> None:
    """What an open question said about a run's effects is no longer so: say how it is now. Opens none."""
    run = tx.one(tx.sql.run_by_no, {"no": run_no})
    at = None if run is None else asker(tx, run)
    standing = None if at is None else _standing(tx, at["no"])
    left = None if at is None or standing is None else _left(tx, at)
    if at is not None and standing is not None and left is not None and left.can():
        tx.run(tx.sql.retell_question, {"id": standing["id"], **telling.told(_draft(tx, at, left))})


def tell_kin(tx: Tx, run: Row) -> None:
    """A run that shares receipts with others began, or ended badly: who is asked about those is told by whom they are needed."""
    for row in tx.all(tx.sql.shares_root, {"root_no": run["root_no"] or run["no"]}):
        if row["no"] != run["no"]:
            tell_anew(tx, row["no"])


def goes_on(tx: Tx, run: Row, now_us: int) -> None:
    """A child was started anew on the receipts of its earlier starts: what was asked about those is no longer open."""
    for earlier in replaced(tx, run):
        asked = _asked(tx, earlier["no"])
        for question in asked:
            tx.run(tx.sql.close_question, {"id": question["id"], "status": "withdrawn", "now": now_us})
        if asked:
            tx.run(tx.sql.count_questions, {"run_no": earlier["no"], "now": now_us})


def being_undone(tx: Tx, effect: Row) -> bool:
    """Whether a person decided that it is taken back, and the run that does it has not ended."""
    if effect["undo_no"] is None or effect["undone_us"] is not None:
        return False
    run = tx.one(tx.sql.run_by_no, {"no": effect["undo_no"]})
    return run is not None and run["ended_us"] is None


def _left(tx: Tx, run: Row) -> _Left:
    runs = covered(tx, run)
    ordered = sorted(runs, key=lambda row: row["no"])
    found = [e for row in ordered for e in tx.all(tx.sql.effects, {"run_no": row["no"]}) if not being_undone(tx, e)]
    return _Left(runs=runs, effects=sorted(found, key=lambda row: row["claimed_us"])[::-1])


def _asked(tx: Tx, run_no: int) -> list[Row]:
    return [q for q in tx.all(tx.sql.questions_of_run, {"run_no": run_no}) if q["kind"] == QuestionKind.UNDO.value]


def _standing(tx: Tx, run_no: int) -> Row | None:
    return next((q for q in _asked(tx, run_no) if q["status"] == QuestionStatus.OPEN), None)


def _ask(tx: Tx, run: Row, left: _Left, now_us: int) -> None:
    kind, draft, standing = QuestionKind.UNDO, _draft(tx, run, left), _standing(tx, run["no"])
    if standing is not None:
        tx.run(tx.sql.retell_question, {"id": standing["id"], **telling.told(draft)})
        return
    n = len(_asked(tx, run["no"])) + 1
    made_of = digest(f"{kind.value}/{run['no']}/{left.effects[0]['claim_id']}/{n}")  # of a claim's id: nobody can guess it
    name = "".join(c for c in made_of.lower() if c.isalnum())[-12:]  # as long as all ids, and people may type it
    asking = Asking(id=f"q_{name}", branch="", key=kind.value, n=n, kind=kind, draft=draft)
    telling.insert(tx, asking, run_no=run["no"], client_id=run["client_id"], now_us=now_us)


def _draft(tx: Tx, run: Row, left: _Left) -> Draft:
    spend = tx.one(tx.sql.spend, {"run_no": run["no"], **steps_range(run["no"])}) or {"uusd": 0, "tokens": 0}
    situation = Situation(
        client=run["client_id"], workflow=run["workflow"], goal=run["goal"], inputs=json.loads(run["inputs"]), done=(),
        next_steps=(), spent_usd=(spend["uusd"] or 0) / 1e6, limit_usd=None, tokens=spend["tokens"] or 0,
    )  # fmt: skip
    others = {row["no"]: row["id"] for row in left.runs[1:]}
    since_us = min((e["settled_us"] or 0 for e in left.can()), default=None)
    return escalate.undo(
        situation, failed=run["status"] == RunStatus.FAILED,
        receipts=tuple(_receipt(e, others.get(e["run_no"])) for e in left.standing()),
        taken_back=sum(e["undone_us"] is not None for e in left.effects),
        unknown=tuple(e["step"] for e in left.effects if e["state"] in (EffectState.CLAIMED, EffectState.UNKNOWN)),
        builders=() if since_us is None else tuple(builders(tx, left.runs, since_us)),
    )  # fmt: skip


def _receipt(effect: Row, run_id: str | None) -> Receipt:
    approved = json.loads(effect["inputs_approved"] or "{}")
    return Receipt(
        step=effect["step"], arguments={**json.loads(effect["arguments"] or "{}"), **approved},
        receipt=json.loads(effect["receipt"] or "null"), undo=effect["undo_module"] is not None,
        shared=effect["scope"] == "client", claim=effect["claim_id"], run=run_id,
    )  # fmt: skip
