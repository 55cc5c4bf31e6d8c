"""Changed code calls a write under another key, and a receipt of the same step stands that it has not asked for.

Which receipt that is, is found out here; ``clash`` asks a person whether it is the same thing. Whether the code asks for it is
known only when all of the run's code has had its turn. What counts was done by other code than there is now
(``transitions.codes``), or is certainly the same: its arguments make just this key by the step's ``key=`` of today.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.keys import fitting
from stepseven.model import ONCE, EffectState, QuestionKind
from stepseven.runtime import known, settling
from stepseven.runtime.arguments import arguments_of
from stepseven.runtime.stepclock import stopped
from stepseven.store.redact import MASK
from stepseven.transitions import codes

if TYPE_CHECKING:
    from stepseven.runtime.calls import Call
    from stepseven.runtime.declared import Step
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.memory import RunMemory
    from stepseven.store.base import Row, Tx
    from stepseven.transitions.effects import Intent
    from stepseven.transitions.state import Record, RecordKey

_OPEN = (EffectState.CLAIMED.value, EffectState.UNKNOWN.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What was done under another key, or may have been.

    Attributes:
        key: the business key it has on record.
        record: its record; ``None``: only a claim tells of it.
        claim: its claim's row; ``None``: another run's.
        exact: its arguments make the call's own key, as keys are made today.
        alike: how many of its arguments are those of the call.
    """

    key: str
    record: Record | None
    claim: Row | None
    exact: bool
    alike: int

    @property
    def arguments(self) -> dict[str, Any] | None:
        """What it was done with, where that is known."""
        sent = None if self.claim is None else self.claim["inputs_approved"] or self.claim["arguments"]
        return json.loads(sent) if sent else None

    @property
    def doubt(self) -> bool:
        """Whether nobody knows if it was done."""
        return self.claim is not None and self.claim["state"] in _OPEN

    @property
    def used(self) -> bool:
        """Whether this execution's code has asked for it."""
        return self.record is not None and self.record.used


class Claims:
    """A run's claims, and those of the run whose receipts it shares, by what is looked for.

    Attributes:
        by_call: branch, key and inputs → the newest claim.
        bare: those that stand, or may, and that no record of their own tells of; oldest first.
        doubt: of one of these nobody knows whether it was done.
        today: claim → the key its call would have today, once that was looked for.
    """

    __slots__ = ("bare", "by_call", "doubt", "today")

    def __init__(self, ex: RunMemory, rows: Sequence[Row]) -> None:
        self.by_call = {(c["branch"], plain(c), c["inputs"]): c for c in rows}
        standing = (c for c in rows if c["state"] != EffectState.REFUSED and c["undone_us"] is None)
        self.bare = [c for c in standing if (c["branch"], c["step"], plain(c)) not in ex.records]
        self.doubt = any(c["state"] in _OPEN for c in self.bare)
        self.today: dict[str, str | None] = {}

    def key_today(self, step: Step[Any, Any], claim: Row) -> str | None:
        """As ``key_today``, found out once: many calls may ask about many claims."""
        name = claim["claim_id"]
        if name not in self.today:
            self.today[name] = key_today(step, claim)
        return self.today[name]


async def find(ex: Execution, call: Call, intent: Intent) -> Before | None:
    """What the call may be the same as; when all else has had its turn, and has not asked for it.

    Args:
        ex: the run.
        call: a call of a write that nothing is on record of.
        intent: what it would claim.
    """
    names = names_of(ex, call)
    if not worth_a_look(ex, call) or await _look(ex, call, intent, names) is None:
        return None
    with stopped():
        await ex.turns.last()
    ex.check()
    return await _look(ex, call, intent, names)


def worth_a_look(ex: RunMemory, call: Call) -> bool:
    """Whether there can be anything: without asking the store, for nearly all calls."""
    return bool(ex.codes) or any(ex.unused_like((call.branch, name, "")) is not None for name in names_of(ex, call))


def names_of(ex: RunMemory, call: Call) -> tuple[str, ...]:
    """The names that calls of the step may be on record under."""
    return tuple(dict.fromkeys((call.key[1], call.step.name, *ex.names_before(call.step))))


def named(ex: RunMemory, call: Call, key: str, claims: Sequence[Row]) -> Before | None:
    """What is on record of the step under *key*, whether it was asked for or not."""
    names = names_of(ex, call)
    record = next((r for n in names if (r := ex.records.get((call.branch, n, key))) is not None), None)
    mine = [c for c in claims if c["step"] in names and c["branch"] == call.branch and plain(c) == key and c["undone_us"] is None]
    claim = next((c for c in reversed(mine) if c["state"] != EffectState.REFUSED), None)
    if record is None and claim is None:
        return None
    return Before(key=key, record=record, claim=claim, exact=False, alike=0)


def receipt_of(ex: RunMemory, before: Before) -> str | None:
    """What came back then, as JSON; ``None``: that is not known."""
    text = None if before.record is None else ex.result_text(before.record)
    return before.claim["receipt"] if text is None and before.claim is not None else text


def replaced_by(row: Row) -> str | None:
    """The key on record that a question is about, where that is another than its call's own."""
    key: str | None = json.loads(row["context"]).get("replaces")
    return key


def claims_of(ex: RunMemory, tx: Tx) -> list[Row]:
    """What the run has claimed, and the one whose receipts it shares, oldest first."""
    numbers = sorted({ex.hold.run_no, ex.run["root_no"]} - {None})
    return [row for no in numbers for row in tx.all(tx.sql.effects, {"run_no": no})]


def plain(claim: Row) -> str:
    """The key of the call that a claim was made by: without a key of its own it is claimed under its branch."""
    key: str = claim["key"]
    return ONCE if key in (ONCE, f"{ONCE}/{claim['branch']}") else key


def by_other_code(ex: RunMemory, record: Record | None, claim: Row | None = None) -> bool:
    """Whether other code than there is now has done something: by its claim, where that is known, else by its record."""
    now = ex.workflow.digest
    if claim is not None:
        return codes.made_claim(ex.codes, claim, now) != now
    return record is not None and codes.made_record(ex.codes, record.seq, now) != now


def unasked(ex: RunMemory, names: Collection[str]) -> list[str]:
    """Those of these names of steps under which something was done that changed code has not asked for so far."""
    claims = [c for c in ex.store.read_now(lambda tx: claims_of(ex, tx)) if c["step"] in names and c["undone_us"] is None]
    writes = (r for r in ex.records.values() if r.name in names and r.effect is not None and not r.used)
    found = {r.name for r in writes if by_other_code(ex, r)}
    for claim in claims:
        record = next((r for n in names if (r := ex.records.get((claim["branch"], n, plain(claim)))) is not None), None)
        step = known.find(claim["step"], ex.workflow.fn.__module__)
        if record is not None and record.used:
            continue
        if by_other_code(ex, record, claim) or (step is not None and key_today(step, claim) not in (None, plain(claim))):
            found.add(claim["step"])
    return sorted(found)


def shared(ex: RunMemory, names: Collection[str], called: Collection[RecordKey]) -> list[str]:
    """Those of these names of steps under which a run that shares this one's receipts has done something, or has begun to.

    Called under the same key with other values, it is asked about. *called*: the calls that need not be thought of any more.
    """

    def unit(tx: Tx) -> list[Row]:
        runs = tx.all(tx.sql.shares_root, {"root_no": ex.run["root_no"] or ex.hold.run_no})
        numbers = [row["no"] for row in runs if row["no"] != ex.hold.run_no]
        return [claim for no in numbers for claim in tx.all(tx.sql.effects, {"run_no": no})]

    mine = [c for c in ex.store.read_now(unit) if c["step"] in names and c["scope"] != "client"]  # there the key alone decides
    standing = [c for c in mine if c["state"] != EffectState.REFUSED and c["undone_us"] is None]
    return sorted({c["step"] for c in standing if (c["branch"], c["step"], plain(c)) not in called})


async def find_out(ex: Execution, before: Before) -> None:
    """Find out whether what was begun under the other key was done: with the probe, or by asking, as at a run's end."""
    claim = before.claim
    assert claim is not None  # noqa: S101 - it is in doubt
    lane = (claim["scope"], claim["scope_id"], claim["name"], claim["key"])
    await ex.take_lane(lane)
    try:
        await settling.settle(ex, claim)
    finally:
        ex.free_lane(lane)
    made = ex.records.get((claim["branch"], claim["step"], before.key))
    if made is not None:
        ex.unask(made)


async def begun(ex: Execution, call: Call, intent: Intent) -> Intent:
    """What a call wants, under the scope and the name that this very thing was begun under, where changed code gave it others.

    It may have been done there: that is found out, and sent again, under what it was claimed by. Once it was not done, and where
    nothing was begun: as it is declared now.
    """
    if ex.hold.fence == 1 and ex.run["root_no"] is None:  # its first execution: whatever was claimed, this code has claimed
        return intent
    kept, names = (await _kept(ex)).get((call.branch, call.key[2]), ()), names_of(ex, call)
    if all(_same_lane(c, intent) for c in kept):
        return intent
    ids = [c["claim_id"] for c in kept if c["step"] in names]
    rows = await ex.store.read(lambda tx: [tx.one(tx.sql.claim, {"claim_id": name}) for name in ids])
    mine = [c for c in rows if c is not None and c["state"] != EffectState.REFUSED and c["undone_us"] is None]
    other = [c for c in mine if not _same_lane(c, intent)]
    found = next((c for c in other if c["state"] in _OPEN), None)
    if found is None and other and len(other) == len(mine):
        found = other[-1]  # its receipt came when nobody was there to record it
    if found is None:
        return intent
    return replace(intent, scope=found["scope"], scope_id=found["scope_id"], name=found["name"], key=found["key"])


async def _kept(ex: Execution) -> dict[tuple[str, str], list[Row]]:
    """Branch and key → the claims from before this execution that stand, or may, and that no record tells of. Read once."""
    lane = ("kept",)
    if ex.kept is None:
        await ex.take_lane(lane)
        try:
            if ex.kept is None:
                found: dict[tuple[str, str], list[Row]] = {}
                for claim in Claims(ex, await ex.store.read(lambda tx: claims_of(ex, tx))).bare:
                    found.setdefault((claim["branch"], plain(claim)), []).append(claim)
                ex.kept = found
        finally:
            ex.free_lane(lane)
    return ex.kept


def _same_lane(claim: Row, intent: Intent) -> bool:
    return all(claim[name] == value for name, value in intent.where().items())


# -- which ----------------------------------------------------------------------------------------------------------------


async def _look(ex: Execution, call: Call, intent: Intent, names: Sequence[str]) -> Before | None:
    claims = await _claims_before(ex)
    found = [b for b in (*_recorded(ex, call, names, claims), *_claimed(ex, call, names, claims)) if _counts(ex, call, names, b)]
    if not found:
        return None

    def stands(tx: Tx) -> bool:
        mine = (tx.one(tx.sql.effect, {**intent.where(), "name": n}) for n in dict.fromkeys((intent.name, *names)))
        return any(c is not None and c["state"] != EffectState.REFUSED and c["undone_us"] is None for c in mine)

    if await ex.store.read(stands):  # nothing would be sent: what is there under this very key answers
        return None
    asked = _asked(ex, call, names, "open")
    return max(found, key=lambda b: (b.exact, b.key not in asked, b.alike))  # of equal ones the oldest


async def _claims_before(ex: Execution) -> Claims:
    """The claims as they were when this was first wanted to be known; anew, as long as one of them is in doubt."""
    if ex.claims_before is None or ex.claims_before.doubt:
        ex.claims_before = Claims(ex, await ex.store.read(lambda tx: claims_of(ex, tx)))
    return ex.claims_before


def _recorded(ex: RunMemory, call: Call, names: Collection[str], claims: Claims) -> Iterator[Before]:
    """Records of the step in the call's branch that were not asked for."""
    rows = [r for name in names for r in ex.unused_of(call.branch, name)]
    for record in sorted(rows, key=lambda r: r.seq):
        if record.effect is None or record.state != "done" or record.key == call.key[2]:
            continue
        claim = claims.by_call.get((record.branch, record.key, record.inputs))
        if claim is None or claim["undone_us"] is None:
            yield _before(call, claims, record.key, record, claim)


def _claimed(ex: RunMemory, call: Call, names: Collection[str], claims: Claims) -> Iterator[Before]:
    """Claims without a record: of a run this is a fork of, or of a send that nobody saw end."""
    for claim in claims.bare:
        key = plain(claim)
        if claim["step"] not in names or claim["branch"] != call.branch or key == call.key[2]:
            continue
        if any((call.branch, name, key) in ex.records for name in names):
            continue
        in_hand = (claim["scope"], claim["scope_id"], claim["name"], claim["key"]) in ex.flights
        theirs = claim["state"] != EffectState.DONE and claim["run_no"] != ex.hold.run_no  # that run finds out about it
        if not in_hand and not theirs:
            yield _before(call, claims, key, None, claim)


def _before(call: Call, claims: Claims, key: str, record: Record | None, claim: Row | None) -> Before:
    then = {} if record is None or record.args is None or not call.execution.codes else json.loads(record.args)
    alike = sum(1 for name, value in json.loads(call.args()).items() if then.get(name) == value) if then else 0
    exact = claim is not None and claims.key_today(call.step, claim) == call.key[2]
    return Before(key=key, record=record, claim=claim, exact=exact, alike=alike)


def key_today(step: Step[Any, Any], claim: Row) -> str | None:
    """The key that a claim's call would have by the step's ``key=`` of today; ``None``: that cannot be told."""
    arguments = claim["arguments"]
    if step.key_paths is None:
        return ONCE
    if not arguments or MASK in arguments:
        return None
    try:
        return fitting(step.key_paths.text(step.parameters.bind((), arguments_of(step, arguments))))
    except Exception:  # noqa: BLE001 - its arguments are no longer the step's, and ``key=`` may be the author's code
        return None


def _counts(ex: RunMemory, call: Call, names: Collection[str], before: Before) -> bool:
    """Whether it may be the same, and nobody has said what became of it."""
    if before.exact:
        return True
    return by_other_code(ex, before.record, before.claim) and before.key not in _asked(ex, call, names, "answered")


def _asked(ex: RunMemory, call: Call, names: Collection[str], status: str) -> set[str]:
    """The keys on record that a question about another call of the step is about, by how those stand."""
    found = set()
    for (branch, kind, _), rows in ex.questions.items():
        row = rows[-1]
        if kind == QuestionKind.CONFLICT.value and branch == call.branch and row["status"] == status and row["step"] in names:
            about = replaced_by(row)
            if about is not None:
                found.add(about)
    return found
