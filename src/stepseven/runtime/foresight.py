"""What a resume would do about one call, from the rows there are: the looks of ``reading`` and ``writing``, not their deeds.

Longer than other files: one look for each thing that a call may come to, side by side with the others.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.decide import policy
from stepseven.decide.plan import Do, Met
from stepseven.errors import Conflict, NotRecordable, NotYet, Refused, StepFailed
from stepseven.model import EffectState, FailureKind, QuestionKind
from stepseven.runtime import approving, asking, clash, doubt, outages, reading, rekeyed, sending, trouble, verifying, writing
from stepseven.runtime.calls import changed_argument
from stepseven.runtime.choices import given_by
from stepseven.runtime.reading import ItemSkipped
from stepseven.transitions import circuits, effects
from stepseven.transitions.effects import REFUSED_RESULT
from stepseven.transitions.state import choice_of

if TYPE_CHECKING:
    from stepseven.decide.circuit import Circuit
    from stepseven.runtime.calls import Call
    from stepseven.runtime.rehearsal import Rehearsal
    from stepseven.store.base import Row
    from stepseven.transitions.effects import Claim, Intent
    from stepseven.transitions.state import Record


@dataclass(frozen=True, slots=True)
class Outlook:
    """What happens to a call. ``value``, where it is *known*: with it the code goes on; of a call that runs it stands in.

    ``also``: what else a resume does about the same call, such as running what a person has approved.
    """

    met: Met
    known: bool = False
    value: Any = None
    record: Record | None = None
    also: Met | None = None


async def outlook(ex: Rehearsal, call: Call) -> Outlook:
    """What a resume would do about *call*.

    Raises:
        StepFailed, Refused: that is on record of it, and what the run's code gets again.
    """
    return await _held_back(ex, call, await (_write(ex, call) if call.step.settings.writes else _read(ex, call)))


async def _held_back(ex: Rehearsal, call: Call, found: Outlook) -> Outlook:
    """What would run, and waits while its resource is down."""
    name = outages.resource_of(ex, call, None) if found.met.do is Do.RUN else None
    if name is None:
        return found
    stands = await ex.store.read(partial(_stands, name))
    if not stands.open:
        return found
    return replace(found, met=replace(found.met, why=f"waits until {name} answers again; {found.met.why}"))


def _stands(name: str, tx: Any) -> Circuit:
    return circuits.standing(tx, name)


# -- reads ----------------------------------------------------------------------------------------------------------------


async def _read(ex: Rehearsal, call: Call) -> Outlook:
    record = ex.records.get(call.key)
    why = None
    if record is not None:
        try:
            value = _noted(ex, call, record, lambda: reading.recorded(ex, call))
        except NotRecordable as changed:
            return Outlook(told(ex, call, Do.ASK, f"its record cannot be read any more: {changed}"))
        if value is not reading._MISSING:  # noqa: SLF001 - the one mark there is
            why = await verifying.broken(ex, call, record) if verifying.suspect(ex, call, record) else None
            if why is None:
                return Outlook(_reused(ex, call, record), known=True, value=value, record=record)
            return Outlook(told(ex, call, Do.RUN, why), known=True, value=value, record=record)
        why = ex.reasons.get(call.key, "its result is gone, or no longer valid")
    return _next_move(ex, call, why)


def _noted(ex: Rehearsal, call: Call, record: Record, get: Any) -> Any:
    """A record's value; one that says no is noted before the code hears of it."""
    try:
        return get()
    except (StepFailed, Refused, ItemSkipped):
        record.used = True
        ex.note(_reused(ex, call, record))
        raise


def _next_move(ex: Rehearsal, call: Call, why: str | None) -> Outlook:
    """What the policy says comes next: a try, a question, what a person chose."""
    move = trouble.move_for(ex, call)
    if isinstance(move, policy.Try):
        return _tried(ex, call, why or _why_run(ex, call))
    if isinstance(move, policy.Wait):
        row = next(r for rows in ex.questions.values() for r in rows if r["id"] == move.question_id)
        ex.asks(row, call.key[1])
        return Outlook(told(ex, call, Do.RUN, "as the answer says", maybe=True, granted=True))
    if isinstance(move, policy.Ask):
        if call.step.settings.on_failure == "raise":
            raise StepFailed(call.step.name, trouble.last_reason(ex, call), kind=trouble.last_kind(ex, call))
        return Outlook(
            told(ex, call, Do.ASK, _tries(ex, call), question=f"{call.step.name} failed: {trouble.last_reason(ex, call)}"),
            also=told(ex, call, Do.RUN, "as the answer says", maybe=True, granted=True),
        )
    if isinstance(move, policy.Give):
        if call.step.settings.on_failure == "raise" or call.place.item is not None:
            raise StepFailed(call.step.name, move.reason, kind=FailureKind.FATAL.value)
        ex.unseen.append(f"nothing: {call.step.name} has failed for good, and the run ends")
        return Outlook(told(ex, call, Do.REUSE, f"it has failed for good: {move.reason}"))
    return _obeyed(ex, call, move)


def _obeyed(ex: Rehearsal, call: Call, move: policy.Obey) -> Outlook:
    by = move.by or "a person"
    if move.choice == "skip":
        ex.note(told(ex, call, Do.REUSE, f"skipped, as {by} chose"))
        reading.skipped(call)
        return Outlook(told(ex, call, Do.REUSE, f"skipped, as {by} chose"), known=True)
    if move.choice in ("value", "by_hand"):
        try:
            value = call.step.typed.validate_python(given_by(move))
        except NotRecordable as misfit:
            return Outlook(told(ex, call, Do.ASK, f"what {by} gave does not fit: {misfit}"))
        return Outlook(told(ex, call, Do.REUSE, f"given by {by}"), known=True, value=value)
    if move.choice == "stop":
        ex.unseen.append(f"nothing: {by} chose to stop the run at {call.step.name}")
        return Outlook(told(ex, call, Do.REUSE, f"{by} chose to stop here"))
    return _tried(ex, call, f"as {by} chose")


def _tried(ex: Rehearsal, call: Call, why: str) -> Outlook:
    """It runs. Where it did before, what it gave then stands in for what it will give."""
    old = _before(ex, call)
    if old is None or old.state != "done" or (text := ex.result_text(old)) is None:
        return Outlook(told(ex, call, Do.RUN, why, new=call.key not in ex.attempts))
    try:
        value = call.step.typed.decode(text)
    except NotRecordable:
        return Outlook(told(ex, call, Do.RUN, why))
    return Outlook(told(ex, call, Do.RUN, why), known=True, value=value, record=old)


def _before(ex: Rehearsal, call: Call) -> Record | None:
    """The record of this call that answers no more; of a call whose arguments may have changed, that of the same step."""
    if call.key in ex.stale:
        return next(reversed(ex.older_of(call.key)), None)
    if not (ex.changed or ex.may(call.branch)):  # else another call of the step is that: nothing can have changed
        return None
    old = ex.unused_like(call.key)
    return old if old is not None and old.effect is None else None


def _why_run(ex: Rehearsal, call: Call) -> str:
    if trouble.tries(ex, call):
        return _tries(ex, call)
    old = _before(ex, call)
    if old is not None and call.key not in ex.stale:
        return changed_argument(old, call) or "not run yet"
    return ex.reasons.get(call.key, "its result is no longer valid") if old is not None else "not run yet"


def _tries(ex: Rehearsal, call: Call) -> str:
    rows = [r for r in trouble.tries(ex, call) if r["outcome"] is not None]
    if not rows:
        return "it had begun, and broke off"
    said = {"failed": "failed", "unknown": "nobody knows whether it was done", "deferred": "put off", "interrupted": "broke off"}
    counted = "one try" if len(rows) == 1 else f"{len(rows)} tries"
    return f"{said[rows[-1]['outcome']]}: {rows[-1]['reason']}, {counted}"


# -- writes ---------------------------------------------------------------------------------------------------------------


async def _write(ex: Rehearsal, call: Call) -> Outlook:
    intent = await writing.as_claimed(ex, call)
    record = writing.record_of(ex, call)
    if record is not None:
        value = _noted(ex, call, record, lambda: reading.value_of(ex, call, record))
        if value is not reading._MISSING:  # noqa: SLF001 - as above
            if verifying.suspect(ex, call, record):
                await verifying.broken(ex, call, record)  # it only notes: what was done is not done again
            return Outlook(_reused(ex, call, record), known=True, value=value, record=record)
    intent = await rekeyed.begun(ex, call, intent)
    held = await ex.store.read(lambda tx: _held(tx, intent))
    if held is None or held.state is EffectState.REFUSED:
        return await _fresh(ex, call, intent, held)
    if held.state is EffectState.DONE:
        return _done(ex, call, intent, held)
    if held.run_no != ex.hold.run_no:
        ex.unseen.append(f"{call.step.name}: another run is doing the same thing, and is waited for")
        return Outlook(told(ex, call, Do.RUN, "another run may have done it", maybe=True))
    return await doubtful(ex, call, intent, held)


def _held(tx: Any, intent: Intent) -> Claim | None:
    row = tx.one(tx.sql.effect, intent.where())
    return None if row is None else effects.look(tx, row["claim_id"])


def _done(ex: Rehearsal, call: Call, intent: Intent, held: Claim) -> Outlook:
    """It is done: by this run, or for the same client by another."""
    if not effects.same_thing(held, intent, ex.hold):
        if clash.seconds_wanted(ex, call) >= held.generation:
            return Outlook(told(ex, call, Do.RUN, "a second one, as a person chose"))
        said = _decided(ex, call, clash.asked_about(ex, call, held), held.receipt)
        return said or _conflict(ex, call, "it was done before with other values")
    receipt = held.receipt or "null"
    if not receipt.startswith('{"' + REFUSED_RESULT):
        try:
            value = call.step.typed.decode(receipt)
        except NotRecordable as misfit:
            return Outlook(told(ex, call, Do.ASK, f"it was done; what came back does not fit: {misfit}"))
        return Outlook(told(ex, call, Do.REUSE, "it was done: there is a receipt"), known=True, value=value)
    return Outlook(told(ex, call, Do.ASK, "it was done; what came back could not be kept"))


def _conflict(ex: Rehearsal, call: Call, why: str, *, maybe: bool = False) -> Outlook:
    said, about = f"{call.step.name}: the same thing, or a second one?", f"{call.key[1]}/{call.key[2]}/"
    for (branch, kind, key), rows in ex.questions.items():
        stands = branch == call.branch and kind == QuestionKind.CONFLICT.value and key.startswith(about)
        if stands and rows[-1]["status"] == "open":
            ex.asks(rows[-1], call.key[1])
            return Outlook(told(ex, call, Do.RUN, "if it is a second one", maybe=True))
    return Outlook(
        told(ex, call, Do.ASK, why, question=said, maybe=maybe),
        also=told(ex, call, Do.RUN, "if it is a second one", maybe=True),
    )  # fmt: skip


def _decided(ex: Rehearsal, call: Call, row: Row | None, receipt: str | None) -> Outlook | None:
    """What a person said of a conflict, where that keeps a call from running; ``None``: nothing, or that it is another one.

    *receipt*: what came back the first time; ``None``: it is not known before.
    """
    if row is None or row["status"] != "answered":
        return None
    choice, by = choice_of(json.loads(row["answer"])), row["answered_by"] or "a person"
    if choice == "stop":
        ex.unseen.append(f"nothing: {by} chose to stop the run at {call.step.name}")
        return Outlook(told(ex, call, Do.REUSE, f"{by} chose to stop here"))
    if choice != "same":
        return None
    kept = told(ex, call, Do.REUSE, f"the same thing, says {by}: the first is kept")
    if receipt is None or receipt.startswith('{"' + REFUSED_RESULT):
        return Outlook(kept)
    try:
        return Outlook(kept, known=True, value=call.step.typed.decode(receipt))
    except NotRecordable as misfit:
        return Outlook(told(ex, call, Do.ASK, f"it is the same, says {by}; what came back then does not fit: {misfit}"))


async def doubtful(ex: Rehearsal, call: Call, intent: Intent, held: Claim) -> Outlook:
    """It was begun, and nobody knows whether it happened: look, as a resume would."""
    asked = doubt.question_of(ex, call, held)
    if asked is not None and asked["status"] == "open":
        ex.asks(asked, call.key[1])
        return Outlook(told(ex, call, Do.RUN, "if it was not done", maybe=True))
    if asked is not None:
        choice = choice_of(json.loads(asked["answer"]))
        if choice == "happened":
            return Outlook(told(ex, call, Do.REUSE, f"it happened, says {asked['answered_by']}"))
        if choice == "not_happened":
            return Outlook(told(ex, call, Do.RUN, f"it did not happen, says {asked['answered_by']}"))
    if call.step.hooks.probe is not None:
        return await _looked(ex, call, intent, held, fresh=False)
    if doubt.young(call, held, ex.now_us()):
        return Outlook(told(ex, call, Do.RUN, "nobody knows whether it was done; again under the same key"))
    return _unknown(ex, call, "nobody knows whether it was done, and nothing can look")


def _unknown(ex: Rehearsal, call: Call, why: str, *, maybe: bool = False) -> Outlook:
    return Outlook(
        told(ex, call, Do.ASK, why, question=f"Did {call.step.name} happen?", maybe=maybe),
        also=told(ex, call, Do.RUN, "if it was not done", maybe=True),
    )  # fmt: skip


async def _looked(ex: Rehearsal, call: Call, intent: Intent, held: Any, *, fresh: bool) -> Outlook:
    """What the probe says."""
    try:
        found = await doubt.probed(call, intent, held)
    except NotYet:
        return Outlook(told(ex, call, Do.RUN, "the other side cannot tell yet whether it was done", maybe=True))
    except Conflict:
        row = None if fresh else clash.asked_about(ex, call, held)
        said = _decided(ex, call, row, None)
        if said is None and row is not None and row["status"] == "answered":
            return Outlook(told(ex, call, Do.RUN, "a second one, as a person chose"))
        return said or _conflict(ex, call, "something else is there under the same key")
    except Exception as error:  # noqa: BLE001 - a look that fails proves nothing; a resume looks again
        why = f"the look-up failed: {trouble.verdict_of(ex, call, error).reason}"
        return _unknown(ex, call, why)
    if found is doubt.NOTHING:
        why = _why_run(ex, call) if fresh else "begun before; the probe looked, and it is not there"
        return Outlook(told(ex, call, Do.RUN, why, new=fresh and _is_new(ex, call)))
    try:
        value = call.step.typed.decode(call.step.typed.encode(call.step.typed.validate_python(found)))
    except NotRecordable as misfit:
        return Outlook(told(ex, call, Do.ASK, f"the probe found it; what it gave does not fit: {misfit}"))
    why = "it is there already: somebody has done it" if fresh else "the probe looked: it was done"
    return Outlook(told(ex, call, Do.REUSE, why), known=True, value=value)


async def _fresh(ex: Rehearsal, call: Call, intent: Intent, held: Claim | None) -> Outlook:
    """Nothing was done under this key, as far as is known."""
    besides = await _besides(ex, call, intent)
    if besides is not None:
        return besides
    move = trouble.move_for(ex, call)
    if not isinstance(move, policy.Try):
        return _next_move(ex, call, None)
    if approving.needed(call) and await approving.word(ex, call) is None:
        row = approving.open_question(ex, call)
        if row is not None:
            ex.asks(row, call.key[1])
        else:
            ex.note(told(ex, call, Do.ASK, "it is proposed first", question=f"May {call.step.name} be done?"))
        return Outlook(told(ex, call, Do.RUN, "once it is approved"))
    if sending.looks_first(ex, call):
        generation = 1 if held is None else held.generation + (held.inputs != call.digest)
        unsent: Any = SimpleNamespace(inputs=call.digest, arguments=None, approved=None, generation=generation)
        return await _looked(ex, call, intent, unsent, fresh=True)
    return Outlook(told(ex, call, Do.RUN, _why_run(ex, call), new=_is_new(ex, call)))


async def _besides(ex: Rehearsal, call: Call, intent: Intent) -> Outlook | None:
    """What is asked, or was said, because something stands under another key that it may be the same as."""
    if call.key in ex.records:
        return None
    row = clash.said(ex, call)
    if row is None:
        found = clash.unasked(ex, call)
        if found is not None:
            return _conflict(ex, call, found[1])
        like = ex.unused_like(call.key) if ex.may(call.branch) else None
        if like is not None and like.effect is not None:
            ex.note(told(ex, call, Do.ASK, "if an earlier step gives another result", maybe=True))
        before = await rekeyed.find(ex, call, intent)
        if before is not None and before.doubt:
            why = "it was begun under another key, and nobody knows whether it was done"
            ex.note(told(ex, call, Do.ASK, why, question=f"Did {call.step.name} happen?"))
        where = "under another key" if before is None or before.branch == call.branch else "in another place"
        return None if before is None else _conflict(ex, call, f"the code changed, and it was done {where}")
    before = await clash.about(ex, call, row)
    if row["status"] == "open":
        return None if before is not None and before.used else _conflict(ex, call, "")
    if before is not None and before.record is not None:
        before.record.used = True
    return _decided(ex, call, row, None if before is None else rekeyed.receipt_of(ex, before))


def _is_new(ex: Rehearsal, call: Call) -> bool:
    """Whether nothing is on record of a write: no try, and no approval."""
    return call.key not in ex.attempts and not approving.needed(call)


# -- as a note ------------------------------------------------------------------------------------------------------------


def _reused(ex: Rehearsal, call: Call, record: Record) -> Met:
    seconds = None if record.ended_us is None else (record.ended_us - record.started_us) / 1e6
    cost_usd, cost_seconds = _declared(call)
    why = "" if record.state == "done" else f"it {'was skipped' if record.state == 'skipped' else 'failed for good'}"
    return Met(
        name=call.step.name, branch=call.branch, key=call.key[2], do=Do.REUSE, why=why, maybe=ex.may(call.branch),
        effect=record.effect, usd=None if record.usd is None else record.usd / 1e6, tokens=record.tokens, seconds=seconds,
        summary=record.summary, cost_usd=cost_usd, cost_seconds=cost_seconds, tries=call.step.settings.attempts,
        anew=ex.begins_anew(call.step),
    )  # fmt: skip


def _declared(call: Call) -> tuple[float | None, float | None]:
    """What one try costs, and how long it takes."""
    cost = call.step.settings.cost
    return (None, None) if cost is None else (cost.usd, cost.seconds)


def told(  # noqa: PLR0913 - a note has that many sides
    ex: Rehearsal, call: Call, do: Do, why: str, *, maybe: bool = False, new: bool = False, question: str | None = None,
    granted: bool = False,
) -> Met:  # fmt: skip
    """A call as a note for the plan. *granted*: an answer gives it as many tries as it had at first."""
    o = call.step.settings
    cost_usd, cost_seconds = _declared(call)
    failed = len([r for r in trouble.tries(ex, call) if r["outcome"] in ("failed", "unknown")])
    answered = [r["attempts"] for r in asking.about_failure(ex, call) if r["status"] == "answered"]
    fresh = 0 if granted else failed - (answered[-1] if answered else 0)  # an answer grants as many tries as there were
    return Met(
        name=call.step.name, branch=call.branch, key=call.key[2], do=do, why=why,
        maybe=maybe or (do is Do.REUSE and ex.may(call.branch)),  # what is to be done is, whatever came before gives
        effect=o.effect.value if o.writes else None, cost_usd=cost_usd, cost_seconds=cost_seconds,
        tries=max(1, o.attempts - fresh), new=new, question=question, anew=ex.begins_anew(call.step),
    )  # fmt: skip
