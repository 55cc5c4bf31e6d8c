"""Effects: claimed before, settled after. The one place that decides whether something may be done outside."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import replace
from enum import StrEnum
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide.escalate import Draft
from stepseven.model import EffectState, Option, QuestionKind
from stepseven.store.base import Later, Row, Tx
from stepseven.transitions import telling
from stepseven.transitions.offering import UNDO, being_undone, offer, tell_anew
from stepseven.transitions.proposing import overtaken
from stepseven.transitions.restoring import Gap, gap_of
from stepseven.transitions.runs import is_dead, lost
from stepseven.transitions.state import Hold, Record
from stepseven.transitions.telling import Asking

REFUSED_RESULT = "$refused"  # a receipt whose content could not be kept: it did happen
TWICE = "twice/"  # keys of the questions about something that was done twice; they outlive their run


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A call of a write step, about to be claimed. ``inputs`` is a digest, ``arguments`` JSON for people."""

    scope: str
    scope_id: str
    name: str
    key: str
    step: str
    branch: str
    inputs: str
    arguments: str
    timeout_us: int
    proposed: bool = False  # it is irreversible: only what a person approved is claimed
    approved: str | None = None  # the arguments as approved, as JSON
    undo_module: str | None = None  # where the code is that can take it back; nothing can
    unsent: bool = False  # it is looked for first: nothing is sent under this claim before that
    can_look: bool = False  # there is a way to look whether it is there

    def where(self) -> dict[str, str]:
        """As statement parameters."""
        return {"scope": self.scope, "scope_id": self.scope_id, "name": self.name, "key": self.key}

    def gate_us(self, now_us: int) -> int:
        """Until when a send that is begun now can pass the gate."""
        return now_us if self.unsent else now_us + self.timeout_us


class Verdict(StrEnum):
    """What a call of a write step finds at its claim."""

    GO = "go"  # claimed: run it
    REUSE = "reuse"  # done with these inputs: here is the receipt
    CONFLICT = "conflict"  # done with other inputs
    UNKNOWN = "unknown"  # claimed earlier, no receipt: find out
    BUSY = "busy"  # somebody live holds it: wait
    PROPOSE = "propose"  # it may be claimed once a person has approved it


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim as it stands."""

    verdict: Verdict
    claim_id: str
    scope: str
    generation: int
    tries: int
    state: EffectState
    inputs: str
    arguments: str | None
    approved: str | None  # the arguments it was sent with, where a person approved them
    receipt: str | None
    owner: str | None
    run_no: int
    claimed_us: int  # of the first send that may have happened
    gate_until_us: int
    #: nobody here claimed it: it may have been done in the time that is lost since a backup was made
    lost: bool = False
    doubtful: bool = False  # sent again although an earlier send may have happened: a refusal proves nothing about that one


def _claim(verdict: Verdict, row: Row) -> Claim:
    return Claim(
        verdict=verdict, claim_id=row["claim_id"], scope=row["scope"], generation=row["generation"], tries=row["tries"],
        state=EffectState(row["state"]), inputs=row["inputs"], arguments=row["arguments"],
        approved=row["inputs_approved"], receipt=row["receipt"], owner=row["owner"], run_no=row["run_no"],
        claimed_us=row["claimed_us"], gate_until_us=row["gate_until_us"],
        lost=row["owner"] is None and row["state"] == EffectState.CLAIMED,
    )  # fmt: skip


def claim(  # noqa: C901, PLR0911, PLR0912, PLR0913 - the table of DESIGN §5, one line per row; who claims what, when, and what may be known about it
    tx: Tx,
    hold: Hold,
    intent: Intent,
    claim_id: str,
    now_us: int,
    *,
    proven_dead: Container[str],
    second: int = 0,
    promise: Claim | None = None,
) -> Claim:
    """Claim the effect, or say why not.

    Args:
        tx: the transaction.
        hold: the claiming run.
        intent: what it wants to do.
        claim_id: the id of a new claim.
        now_us: the time.
        proven_dead: workers that certainly run no more.
        second: up to which generation a person wanted another one beside it ("a second one").
        promise: a claim in doubt that the other side promised to recognise by its key: it may be sent again.

    Raises:
        Superseded: the run is no longer ours. No fence, no claim.
    """
    row = tx.one(tx.sql.guard_effect, {**hold.keys(), **intent.where()})
    if row is None:
        raise lost(tx, hold)
    gap = gap_of(tx, hold, row, over_client=intent.scope == "client")
    if row["claim_id"] is None:
        return _insert(tx, hold, intent, (claim_id, 1), now_us, gap)
    if row["claim_id"] == claim_id:  # ``claim_new`` wrote it, and its answer was lost: nothing was sent under it yet
        return _claim(Verdict.GO, row)
    if row["undone_us"] is not None:  # taken back: what is done now is something new, unless an older one stands beside it
        older = tx.one(tx.sql.effect_standing, intent.where())
        if older is None:
            return _insert(tx, hold, intent, (claim_id, row["generation"] + 1), now_us, gap)
        row = {**older, "generation": row["generation"]}
    state, equal = EffectState(row["state"]), row["inputs"] == intent.inputs
    if not equal:  # an earlier generation may have been just this
        earlier = tx.one(tx.sql.effect_of_inputs, {**intent.where(), "inputs": intent.inputs})
        if earlier is not None:
            return _claim(Verdict.BUSY if being_undone(tx, earlier) else Verdict.REUSE, earlier)
    if being_undone(tx, row):  # its receipt is about to be worth nothing
        return _claim(Verdict.BUSY, row)
    if state is EffectState.DONE:
        if row["generation"] <= second:
            return _insert(tx, hold, intent, (claim_id, row["generation"] + 1), now_us, gap)
        if equal or same_thing(_claim(Verdict.REUSE, row), intent, hold):
            return _claim(Verdict.REUSE, row)
        return _claim(Verdict.CONFLICT, row)
    if state is EffectState.REFUSED:  # proven not done: another try, under another key if it says something else
        if not equal or row["generation"] <= second:
            return _insert(tx, hold, intent, (claim_id, row["generation"] + 1), now_us, gap)
        if gap is not None and row["settled_us"] < gap.restored_us:  # that it was not done was found out before
            return _doubt(tx, hold, intent, _claim(Verdict.UNKNOWN, row), gap)
        return retry(tx, hold, intent, _claim(Verdict.GO, row), now_us)
    if row["run_no"] != hold.run_no and not _may_inherit(tx, row, hold, now_us, proven_dead):
        return _claim(Verdict.BUSY, row)
    if promise is not None and equal and (row["claim_id"], row["tries"]) == (promise.claim_id, promise.tries):
        return retry(tx, hold, intent, promise, now_us)
    return _claim(Verdict.UNKNOWN, row)


def claim_new(tx: Tx, hold: Hold, intent: Intent, claim_id: str, now_us: int) -> tuple[Claim, Later]:
    """Claim what nobody claimed before, if so: in one trip to the server, with the commit.

    Returns:
        The claim, which counts when one row was written. Else ``claim`` tells what there is.
    """
    row = _claim_row(hold, intent, claim_id, now_us)
    written = tx.later(tx.sql.claim_new, row)
    return _claimed(Verdict.GO, {**row, "generation": 1}), written


def same_thing(held: Claim, intent: Intent, hold: Hold) -> bool:
    """Whether a receipt answers this call: equal inputs; over all runs of a client the key alone decides, not the wording."""
    return held.inputs == intent.inputs or (intent.scope == "client" and held.run_no != hold.run_no)


def _may_inherit(tx: Tx, row: Row, hold: Hold, now_us: int, proven_dead: Container[str]) -> bool:
    """Whether another run's claim is nobody's any more: that run ended or its owner is dead, and no run asks anybody about it."""
    other = tx.one(tx.sql.run_by_no, {"no": row["run_no"]})
    if other is not None and other["ended_us"] is None and other["owner"] is None:
        return False  # it was put away, and will go on
    ended = other is None or other["ended_us"] is not None or is_dead(tx, other["owner"], now_us, proven_dead)
    return ended and not asked_by_another(tx, hold, row)


def asked_by_another(tx: Tx, hold: Hold, row: Row) -> bool:
    """Whether another run of the client is finding out from a person what became of this claim: two would be told two things."""
    name = f"#{row['claim_id']}:{row['tries']}"
    asked = [q for q in _asked_about(tx, row) if q["run_no"] != hold.run_no]
    return any(q["status"] == "open" or (q["run_no"] != row["run_no"] and q["key"].endswith(name)) for q in asked)


def _asked_about(tx: Tx, row: Row) -> list[Row]:
    """The questions whether this claim happened, open or answered, of runs that have not ended."""
    asked = tx.all(tx.sql.asked_whether, {"client_id": row["client_id"]})
    return [q for q in asked if f"#{row['claim_id']}:" in q["key"]]


def _insert(tx: Tx, hold: Hold, intent: Intent, name: tuple[str, int], now_us: int, gap: Gap | None) -> Claim:
    """A claim where there is none (*name*: its id and generation). In a gap it is in doubt from the first."""
    claim_id, generation = name
    row = {**_claim_row(hold, intent, claim_id, now_us), "generation": generation}
    verdict = Verdict.GO
    if gap is not None:
        verdict = Verdict.UNKNOWN
        row |= {"owner": None, "now": gap.since_us, "gate_until_us": gap.restored_us + intent.timeout_us}
    if intent.proposed and intent.approved is None and (gap is None or not intent.can_look):
        verdict = Verdict.PROPOSE
    else:
        tx.run(tx.sql.insert_claim, row)
    return _claimed(verdict, row)


def _claim_row(hold: Hold, intent: Intent, claim_id: str, now_us: int) -> dict[str, Any]:
    """A new claim as statement parameters, but for its generation."""
    return {
        **intent.where(), "claim_id": claim_id, "inputs": intent.inputs, "inputs_approved": intent.approved,
        "arguments": intent.arguments, "branch": intent.branch, "step": intent.step, "client_id": hold.client_id,
        **hold.keys(), "now": now_us, "gate_until_us": intent.gate_us(now_us), "undo_module": intent.undo_module,
    }  # fmt: skip


def _claimed(verdict: Verdict, row: dict[str, Any]) -> Claim:
    return _claim(verdict, {**row, "tries": 1, "state": "claimed", "receipt": None, "claimed_us": row["now"]})


def _doubt(tx: Tx, hold: Hold, intent: Intent, held: Claim, gap: Gap) -> Claim:
    """A claim that was proven not done, and may have been sent once more in the gap."""
    if intent.proposed and intent.approved is None and not intent.can_look:
        return replace(held, verdict=Verdict.PROPOSE)
    params = {
        **hold.keys(), "claim_id": held.claim_id, "tries": held.tries, "branch": intent.branch, "inputs": intent.inputs,
        "arguments": intent.arguments, "gate_until_us": gap.restored_us + intent.timeout_us,
    }  # fmt: skip
    if tx.run(tx.sql.doubt_claim, params) != 1:
        raise lost(tx, hold)
    row = tx.one(tx.sql.claim, {"claim_id": held.claim_id})
    assert row is not None  # just updated  # noqa: S101
    return _claim(Verdict.UNKNOWN, row)


def retry(tx: Tx, hold: Hold, intent: Intent, held: Claim, now_us: int) -> Claim:
    """Send again under the same claim. Only from the try that was decided upon: two cannot both go on.

    Raises:
        Superseded: somebody else went on from it.
    """
    if intent.proposed and intent.approved is None:
        return replace(held, verdict=Verdict.PROPOSE)
    params = {
        **hold.keys(), "claim_id": held.claim_id, "tries": held.tries, "branch": intent.branch, "inputs": intent.inputs,
        "arguments": intent.arguments, "inputs_approved": intent.approved, "now": now_us,
        "gate_until_us": intent.gate_us(now_us), "undo_module": intent.undo_module,
    }  # fmt: skip
    if tx.one(tx.sql.guard_run, hold.keys()) is None or tx.run(tx.sql.retry_claim, params) != 1:
        raise lost(tx, hold)
    row = tx.one(tx.sql.claim, {"claim_id": held.claim_id})
    assert row is not None  # just updated  # noqa: S101
    if held.run_no != hold.run_no:
        tell_anew(tx, held.run_no)
    return replace(_claim(Verdict.GO, row), doubtful=held.state is not EffectState.REFUSED)


def settle(tx: Tx, held: Claim, receipt: str, now_us: int) -> bool:
    """Write the receipt, whoever owns the run by now. ``False``: it had one already."""
    settled = tx.run(tx.sql.settle_claim, {"claim_id": held.claim_id, "receipt": receipt, "now": now_us}) == 1
    if settled and held.scope == "client":  # all that an undo does, and what another run can be about to do, too
        tx.run(tx.sql.mark_undone, {"claim_id": held.claim_id, "workflow": UNDO, "now": now_us})
        row = tx.one(tx.sql.claim, {"claim_id": held.claim_id})
        if row is not None:
            overtaken(tx, row, now_us)
    return settled


def settle_with(tx: Tx, hold: Hold, held: Claim, record: Record, receipt: str) -> tuple[Later, Later]:
    """Write the record of a send and its receipt, both or neither, with the commit: of a claim that is its run's alone.

    Returns:
        Both; they count when each wrote one row. Else ``settle`` tells what there is.
    """
    _, values = record.insert(tx.sql, hold.values())
    appended = tx.later(tx.sql.append_settled, (*values, held.claim_id))
    params = {"claim_id": held.claim_id, "receipt": receipt, "now": record.ended_us, "id": record.id, "key": record.key}
    return appended, tx.later(tx.sql.settle_recorded, params)


def inherit(tx: Tx, hold: Hold, claim_id: str, *, branch: str, inputs: str, now_us: int) -> None:
    """A run found out that another one's claim had happened, and goes on from it: it is this run's from now on.

    Who takes back what the other run did leaves it standing.
    """
    row = tx.one(tx.sql.claim, {"claim_id": claim_id})
    params = {"claim_id": claim_id, "run_no": hold.run_no, "branch": branch, "inputs": inputs}
    if row is not None and tx.run(tx.sql.move_claim, params) == 1:
        tell_anew(tx, row["run_no"])
        offer(tx, hold.run_no, now_us)  # where this one was ended by somebody meanwhile


def mark(tx: Tx, held: Claim, state: EffectState, now_us: int, *, gate_until_us: int | None = None) -> None:
    """Say that the claim is ``unknown`` or ``refused``; lower its gate when nobody can send any more."""
    params = {"claim_id": held.claim_id, "tries": held.tries, "state": state.value, "now": now_us}
    tx.run(tx.sql.mark_claim, params)
    if gate_until_us is not None:
        tx.run(tx.sql.lower_gate, {**params, "gate_until_us": gate_until_us})


def lower_gate(tx: Tx, held: Claim, gate_until_us: int) -> None:
    """Nobody can send under this try after *gate_until_us*: its sender ended or is proven dead."""
    tx.run(tx.sql.lower_gate, {"claim_id": held.claim_id, "tries": held.tries, "gate_until_us": gate_until_us})


def late_receipt(tx: Tx, held: Claim, receipt: str, question_id: str, now_us: int) -> None:
    """A send that was given up succeeded after all. Keep its receipt; if somebody acted since, say loudly: done twice."""
    row = tx.one(tx.sql.claim, {"claim_id": held.claim_id})
    if row is None or (row["state"] == EffectState.DONE and row["receipt"] == receipt):
        return
    if row["state"] == EffectState.DONE:
        if row["tries"] != held.tries:
            done_twice(tx, held.claim_id, receipt, question_id, now_us)
        return
    settle(tx, held, receipt, now_us)
    newer = tx.one(tx.sql.effect, {name: row[name] for name in ("scope", "scope_id", "name", "key")})
    if newer is not None and newer["generation"] > row["generation"] and newer["state"] != EffectState.REFUSED:
        _say_twice(tx, newer, receipt, question_id, now_us)  # it was taken for not done, and somebody acted since
    asked = [q for q in _asked_about(tx, row) if q["status"] == "open"]
    for question in asked:  # nobody has to find out any more
        tx.run(tx.sql.close_question, {"id": question["id"], "status": "withdrawn", "now": now_us})
    offer(tx, row["run_no"], now_us)  # where its run has ended already, it stands outside all the same
    for run_no in dict.fromkeys((row["run_no"], *(q["run_no"] for q in asked))):
        tx.run(tx.sql.count_questions, {"run_no": run_no, "now": now_us})
        tx.run(tx.sql.wake_run, {"run_no": run_no, "now": now_us, "reason": "a late answer came: ready to go on"})


def done_twice(tx: Tx, claim_id: str, receipt: str, question_id: str, now_us: int) -> None:
    """Two sends of one claim succeeded: open a question that outlives the run."""
    row = tx.one(tx.sql.claim, {"claim_id": claim_id})
    if row is not None:
        _say_twice(tx, row, receipt, question_id, now_us)


def _say_twice(tx: Tx, row: Row, receipt: str, question_id: str, now_us: int) -> None:
    """*row*: the claim that stands; *receipt*: what came besides."""
    if row["receipt"] == receipt:
        return
    first, second = json.loads(row["receipt"] or "null"), json.loads(receipt)
    name = row["step"].replace("_", " ")
    text = f"“{name}” was done twice: {_short(first)} and {_short(second)}. Take one of them back by hand."
    if row["state"] != EffectState.DONE:
        text = f"“{name}” was done ({_short(second)}), and begun again before that was known. If both happened, take one back."
    draft = Draft(
        text=text, recommendation=None,
        options=(
            Option(id="same", label="it is one and the same there"),
            Option(id="second", label="I took one back, or both may stay"),
        ),
        context={"headline": text, "facts": {"first": first, "second": second}, "done": [], "failed": [], "next": []},
    )  # fmt: skip
    asking = Asking(
        id=question_id, branch=row["branch"], key=f"{TWICE}{row['claim_id']}:{question_id}", n=row["tries"], step=row["step"],
        kind=QuestionKind.CONFLICT, draft=draft,
    )  # fmt: skip
    telling.insert(tx, asking, run_no=row["run_no"], client_id=row["client_id"], now_us=now_us)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"  # noqa: PLR2004 - two of them on one line


def fill(tx: Tx, claim_id: str, receipt: str) -> None:
    """What came back could not be kept, and a person told what it was: that is the receipt from now on."""
    tx.run(tx.sql.fill_receipt, {"claim_id": claim_id, "receipt": receipt, "refused": f'{{"{REFUSED_RESULT}"'})


def unsettled(tx: Tx, run_no: int) -> list[Row]:
    """The claims of a run of which nobody knows whether they happened, oldest first."""
    rows = tx.all(tx.sql.effects, {"run_no": run_no})
    return [row for row in rows if row["state"] in (EffectState.CLAIMED, EffectState.UNKNOWN)]


def look(tx: Tx, claim_id: str) -> Claim | None:
    """The claim as it stands now."""
    row = tx.one(tx.sql.claim, {"claim_id": claim_id})
    if row is None:
        return None
    verdict = Verdict.REUSE if row["state"] == "done" else Verdict.UNKNOWN
    return _claim(verdict, row)
