"""Effects: claimed before, settled after. The one place that decides whether something may be done outside."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from stepseven.model import EffectState
from stepseven.store.base import Row, Tx
from stepseven.transitions.runs import is_dead, lost
from stepseven.transitions.state import Hold


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

    def where(self) -> dict[str, str]:
        """As statement parameters."""
        return {"scope": self.scope, "scope_id": self.scope_id, "name": self.name, "key": self.key}


class Verdict(StrEnum):
    """What a call of a write step finds at its claim."""

    GO = "go"  # claimed: run it
    REUSE = "reuse"  # done with these inputs: here is the receipt
    CONFLICT = "conflict"  # done with other inputs
    UNKNOWN = "unknown"  # claimed earlier, no receipt: find out
    BUSY = "busy"  # somebody live holds it: wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim as it stands."""

    verdict: Verdict
    claim_id: str
    generation: int
    tries: int
    state: EffectState
    inputs: str
    arguments: str | None
    receipt: str | None
    owner: str | None
    run_no: int
    claimed_us: int  # of the first send that may have happened
    gate_until_us: int
    doubtful: bool = False  # sent again although an earlier send may have happened: a refusal proves nothing about that one


def _claim(verdict: Verdict, row: Row) -> Claim:
    return Claim(
        verdict=verdict, claim_id=row["claim_id"], generation=row["generation"], tries=row["tries"],
        state=EffectState(row["state"]), inputs=row["inputs"], arguments=row["arguments"], receipt=row["receipt"],
        owner=row["owner"], run_no=row["run_no"], claimed_us=row["claimed_us"], gate_until_us=row["gate_until_us"],
    )  # fmt: skip


def claim(
    tx: Tx, hold: Hold, intent: Intent, claim_id: str, now_us: int, *, proven_dead: Container[str], second: int = 0
) -> Claim:
    """Claim the effect, or say why not. *second*: generations that a person asked for on top ("a second one").

    Raises:
        Superseded: the run is no longer ours. No fence, no claim.
    """
    row = tx.one(tx.sql.guard_effect, {**hold.keys(), **intent.where()})
    if row is None:
        raise lost(tx, hold)
    if row["claim_id"] is None:
        return _insert(tx, hold, intent, claim_id, 1, now_us)
    state = EffectState(row["state"])
    if state is EffectState.DONE:
        if row["inputs"] == intent.inputs:
            return _claim(Verdict.REUSE, row)
        if second and row["generation"] <= second:
            return _insert(tx, hold, intent, claim_id, row["generation"] + 1, now_us)
        return _claim(Verdict.CONFLICT, row)
    if row["run_no"] != hold.run_no and not _may_inherit(tx, row, now_us, proven_dead):
        return _claim(Verdict.BUSY, row)
    if state is EffectState.REFUSED:  # proven not done: another try, under another key if it says something else
        if row["inputs"] != intent.inputs:
            return _insert(tx, hold, intent, claim_id, row["generation"] + 1, now_us)
        return retry(tx, hold, intent, _claim(Verdict.GO, row), now_us)
    return _claim(Verdict.UNKNOWN, row)


def _may_inherit(tx: Tx, row: Row, now_us: int, proven_dead: Container[str]) -> bool:
    """Whether another run's claim is nobody's any more: that run ended, or its owner is dead and it asks nobody about it."""
    other = tx.one(tx.sql.run_by_no, {"no": row["run_no"]})
    if other is None or other["ended_us"] is not None:
        return True
    if other["owner"] is None or not is_dead(tx, other["owner"], now_us, proven_dead):
        return False
    asked = tx.all(tx.sql.questions_of_run, {"run_no": row["run_no"]})
    return not any(q["status"] == "open" and q["kind"] == "unknown_outcome" and q["step"] == row["step"] for q in asked)


def _insert(tx: Tx, hold: Hold, intent: Intent, claim_id: str, generation: int, now_us: int) -> Claim:
    row: dict[str, Any] = {
        **intent.where(), "generation": generation, "claim_id": claim_id, "inputs": intent.inputs, "inputs_approved": None,
        "arguments": intent.arguments, "branch": intent.branch, "step": intent.step, "client_id": hold.client_id,
        **hold.keys(), "now": now_us, "gate_until_us": now_us + intent.timeout_us,
    }  # fmt: skip
    tx.run(tx.sql.insert_claim, row)
    return _claim(Verdict.GO, {**row, "tries": 1, "state": "claimed", "receipt": None, "claimed_us": now_us})


def retry(tx: Tx, hold: Hold, intent: Intent, held: Claim, now_us: int) -> Claim:
    """Send again under the same claim. Only from the try that was decided upon: two cannot both go on.

    Raises:
        Superseded: somebody else went on from it.
    """
    params = {
        **hold.keys(), "claim_id": held.claim_id, "tries": held.tries, "branch": intent.branch, "inputs": intent.inputs,
        "arguments": intent.arguments, "now": now_us, "gate_until_us": now_us + intent.timeout_us,
    }  # fmt: skip
    if tx.one(tx.sql.guard_run, hold.keys()) is None or tx.run(tx.sql.retry_claim, params) != 1:
        raise lost(tx, hold)
    row = tx.one(tx.sql.claim, {"claim_id": held.claim_id})
    assert row is not None  # just updated  # noqa: S101
    return replace(_claim(Verdict.GO, row), doubtful=held.state is not EffectState.REFUSED)


def settle(tx: Tx, claim_id: str, receipt: str, now_us: int) -> bool:
    """Write the receipt, whoever owns the run by now. ``False``: it had one already."""
    return tx.run(tx.sql.settle_claim, {"claim_id": claim_id, "receipt": receipt, "now": now_us}) == 1


def mark(tx: Tx, held: Claim, state: EffectState, now_us: int, *, gate_until_us: int | None = None) -> None:
    """Say that the claim is ``unknown`` or ``refused``; lower its gate when nobody can send any more."""
    params = {"claim_id": held.claim_id, "tries": held.tries, "state": state.value, "now": now_us}
    tx.run(tx.sql.mark_claim, params)
    if gate_until_us is not None:
        tx.run(tx.sql.lower_gate, {**params, "gate_until_us": gate_until_us})


def lower_gate(tx: Tx, held: Claim, gate_until_us: int) -> None:
    """Nobody can send under this try after *gate_until_us*: its sender ended or is proven dead."""
    tx.run(tx.sql.lower_gate, {"claim_id": held.claim_id, "tries": held.tries, "gate_until_us": gate_until_us})


def look(tx: Tx, claim_id: str) -> Claim | None:
    """The claim as it stands now."""
    row = tx.one(tx.sql.claim, {"claim_id": claim_id})
    if row is None:
        return None
    verdict = Verdict.REUSE if row["state"] == "done" else Verdict.UNKNOWN
    return _claim(verdict, row)
