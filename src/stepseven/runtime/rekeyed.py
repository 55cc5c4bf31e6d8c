"""Changed code calls a write under another key, or elsewhere, and a receipt of the same step stands that it has not asked for.

Which receipt that is, is found out here; ``clash`` asks a person whether it is the same thing. Whether the code asks for it is
known only when all of the run's code has had its turn. What counts was done by other code than there is now
(``transitions.codes``), or is certainly the same: its arguments make just this key by the step's ``key=`` of today.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.keys import fitting
from stepseven.model import ONCE, EffectState, QuestionKind
from stepseven.runtime import ahead, moved, settling
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
_COMPARED = 200  # characters of arguments that are held against others

At = tuple[str, str]  # the branch and the key of a write


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What was done under another key or in another branch, or may have been.

    Attributes:
        branch: where it was called.
        key: the business key it has on record.
        record: its record; ``None``: only a claim tells of it.
        claim: its claim's row; ``None``: another run's.
        exact: its arguments make the call's own key, as keys are made today.
        alike: how many of its arguments are those of the call, and how like the others are: below one.
    """

    branch: str
    key: str
    record: Record | None
    claim: Row | None
    exact: bool
    alike: float

    @property
    def at(self) -> At:
        """What it is found by, with its step's name."""
        return self.branch, self.key

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
    if ex.codes:
        return True
    names = names_of(ex, call)
    if any(ex.unused_like((call.branch, name, "")) is not None for name in names):
        return True
    return ex.resumed and moved.elsewhere(ex).any_equal(names, call)


def names_of(ex: RunMemory, call: Call) -> tuple[str, ...]:
    """The names that calls of the step may be on record under."""
    return tuple(dict.fromkeys((call.key[1], call.step.name, *ex.names_before(call.step))))


def named(ex: RunMemory, call: Call, at: At, claims: Sequence[Row]) -> Before | None:
    """What is on record of the step in that branch under that key, whether it was asked for or not."""
    names, (branch, key) = names_of(ex, call), at
    record = next((r for n in names if (r := ex.records.get((branch, n, key))) is not None), None)
    mine = [c for c in claims if c["step"] in names and c["branch"] == branch and plain(c) == key and c["undone_us"] is None]
    claim = next((c for c in reversed(mine) if c["state"] != EffectState.REFUSED), None)
    if record is None and claim is None:
        return None
    return Before(branch=branch, key=key, record=record, claim=claim, exact=False, alike=0)


def receipt_of(ex: RunMemory, before: Before) -> str | None:
    """What came back then, as JSON; ``None``: that is not known."""
    text = None if before.record is None else ex.result_text(before.record)
    return before.claim["receipt"] if text is None and before.claim is not None else text


def replaced_by(row: Row) -> At | None:
    """The branch and the key on record that a question is about, where those are not its call's own."""
    context = json.loads(row["context"])
    return (context.get("replaces_in", row["branch"]), context["replaces"]) if "replaces" in context else None


def question_key(call: Call, at: At) -> str:
    """The key of the question whether a call is the same as what stands there."""
    branch, key = at
    return f"{call.key[1]}/{call.key[2]}/{key}" + ("" if branch == call.branch else f"@{branch}")


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
        step = ahead.step_named(ex.workflow, claim["step"])
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
        moved.elsewhere(ex).add(made)


async def begun(ex: Execution, call: Call, intent: Intent) -> Intent:
    """What a call wants, under the scope and the name that this very thing was begun under, where changed code gave it others.

    It may have been done there: that is found out, and sent again, under what it was claimed by. Once it was not done, and where
    nothing was begun: as it is declared now.
    """
    if ex.hold.fence == 1 and ex.run["root_no"] is None:  # its first execution: whatever was claimed, this code has claimed
        return intent
    kept, names = (await _kept(ex)).get((call.branch if call.key[2] == ONCE else "", call.key[2]), ()), names_of(ex, call)
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
    """Branch and key → the claims from before this execution that stand, or may. Read once.

    Those that a record tells of, too: it does not answer a call with other values. Of a key of its own the branch is no part.
    """
    lane = ("kept",)
    if ex.kept is None:
        await ex.take_lane(lane)
        try:
            if ex.kept is None:
                found: dict[tuple[str, str], list[Row]] = {}
                for claim in await ex.store.read(lambda tx: claims_of(ex, tx)):
                    if claim["state"] != EffectState.REFUSED and claim["undone_us"] is None:
                        key = plain(claim)
                        found.setdefault((claim["branch"] if key == ONCE else "", key), []).append(claim)
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
    asked = _asked(ex, names, "open")
    return max(found, key=lambda b: (b.exact, b.at not in asked, b.branch == call.branch, b.alike))  # of equal ones the oldest


async def _claims_before(ex: Execution) -> Claims:
    """The claims as they were when this was first wanted to be known; anew, as long as one of them is in doubt."""
    if ex.claims_before is None or ex.claims_before.doubt:
        ex.claims_before = Claims(ex, await ex.store.read(lambda tx: claims_of(ex, tx)))
    return ex.claims_before


def _recorded(ex: RunMemory, call: Call, names: Collection[str], claims: Claims) -> Iterator[Before]:
    """Records of the step that were not asked for."""
    rows = [r for name in names for r in ex.unused_of(call.branch, name) if r.effect is not None and r.key != call.key[2]]
    other = moved.elsewhere(ex)
    rows += [r for r in other.of(names, call.branch) if _another(call, r.key) and other.left_behind(ex, r.branch)]
    for record in sorted(rows, key=lambda r: r.seq):
        if record.state != "done":
            continue
        claim = claims.by_call.get((record.branch, record.key, record.inputs))
        if claim is None or claim["undone_us"] is None:
            yield _before(call, claims, (record.branch, record.key), record, claim)


def _claimed(ex: RunMemory, call: Call, names: Collection[str], claims: Claims) -> Iterator[Before]:
    """Claims without a record: of a run this is a fork of, or of a send that nobody saw end."""
    other = moved.elsewhere(ex)
    for claim in claims.bare:
        branch, key = at = claim["branch"], plain(claim)
        if claim["step"] not in names or (key == call.key[2] if branch == call.branch else not _another(call, key)):
            continue
        if any((branch, name, key) in ex.records for name in names):
            continue
        if branch != call.branch and not other.left_behind(ex, branch):
            continue
        in_hand = (claim["scope"], claim["scope_id"], claim["name"], claim["key"]) in ex.flights
        theirs = claim["state"] != EffectState.DONE and claim["run_no"] != ex.hold.run_no  # that run finds out about it
        if not in_hand and not theirs:
            yield _before(call, claims, at, None, claim)


def _another(call: Call, key: str) -> bool:
    """Whether something with this key in another branch is not the call's own: a key of its own holds wherever it is called."""
    return key != call.key[2] or key == ONCE


def _before(call: Call, claims: Claims, at: At, record: Record | None, claim: Row | None) -> Before:
    (branch, key), codes_known = at, bool(call.execution.codes)
    alike = _alike(call, record, claim) if codes_known else 0
    inputs = record.inputs if record is not None else None if claim is None else claim["inputs"]
    if branch != call.branch and key == ONCE == call.key[2]:
        exact = moved.twins(call, branch, key, inputs)
    else:
        exact = claim is not None and claims.key_today(call.step, claim) == call.key[2]
    return Before(branch=branch, key=key, record=record, claim=claim, exact=exact, alike=alike)


def _alike(call: Call, record: Record | None, claim: Row | None) -> float:
    """How many arguments are equal; and as what is behind the point, how like each other all of them are."""
    sent = None if claim is None else claim["inputs_approved"] or claim["arguments"]
    then, now = (sent, call.arguments()) if sent else (None if record is None else record.args, call.args())
    before = {} if then is None else json.loads(then)
    equal = sum(1 for name, value in json.loads(now).items() if before.get(name) == value) if before else 0
    if not sent:  # of a record alone only digests are known
        return equal
    return equal + 0.99 * SequenceMatcher(None, sent[:_COMPARED], now[:_COMPARED], autojunk=False).ratio()


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
    if before.exact and before.branch == call.branch:
        return True
    if moved.said_other(ex, before.branch, call.branch):
        return False
    return (before.exact or by_other_code(ex, before.record, before.claim)) and before.at not in _asked(ex, names, "answered")


def _asked(ex: RunMemory, names: Collection[str], status: str) -> set[At]:
    """What stands on record that a question about another call of the step is about, by how those questions stand."""
    found = set()
    for (_, kind, _), rows in ex.questions.items():
        row = rows[-1]
        if kind == QuestionKind.CONFLICT.value and row["status"] == status and row["step"] in names:
            about = replaced_by(row)
            if about is not None:
                found.add(about)
    return found
