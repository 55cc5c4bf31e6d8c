"""A step that is executed outside is about to begin: run it, take what is there, wait, or stop.

The same tables decide as for the Python runtime: ``decide/policy.py`` after failures, ``transitions/effects.py`` before anything
is done outside. What cannot be decided in a transaction, a look whether a write is there, is given back as ``Look``; whoever
has looked asks again with what was found.

Longer than other files: the order in which a step's rows are looked at is one path that is read from its top to its end.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide import escalate, incident, policy
from stepseven.decide.escalate import Alternative, Draft
from stepseven.decide.external import Begin
from stepseven.keys import fitting, wire_key
from stepseven.model import (
    ONCE,
    AttemptOutcome,
    EffectKind,
    EffectState,
    FailureKind,
    Limits,
    QuestionKind,
    QuestionStatus,
    RunStatus,
)
from stepseven.store.artifacts import content_hash
from stepseven.store.base import Row, Tx
from stepseven.store.codec import digest, free_text, guard
from stepseven.transitions import clients, effects, external, questions, steps
from stepseven.transitions.effects import Claim, Intent, Verdict
from stepseven.transitions.external import Held
from stepseven.transitions.runs import Ending
from stepseven.transitions.state import Record, choice_of, steps_range
from stepseven.transitions.telling import Asking

LOOK_AGAIN_US = 5_000_000  # when somebody who has to wait may ask again, if nothing says better


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What comes from the edge: fresh ids, and the hash of a fresh attempt token."""

    new_id: Callable[[str], str]
    token_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A write is in doubt, and there is a way to look: whoever has looked says what was found (``Looked``)."""

    claim_id: str
    tries: int
    url: str
    key: str  # the idempotency key it was sent with


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a look found. ``found``: it is there (*value*), or is not; ``None``: that could not be told, for *why*."""

    claim_id: str
    tries: int
    found: bool | None
    value: Any = None
    why: str = ""
    started_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What whoever begins is told. ``do`` is ``run``, ``reuse``, ``wait`` or ``stop``; ``look`` alone means: look first."""

    do: str
    reason: str = ""
    artifact: str | None = None  # the step's result, as JSON
    inputs: str | None = None  # as approved, as JSON: these are to be used
    skipped: bool = False
    attempt: int | None = None
    lease_until_us: int | None = None
    approach: str | None = None
    narrow: bool = False
    idempotency_key: str | None = None
    failures: tuple[Row, ...] = ()
    question: Row | None = None
    retry_at_us: int | None = None
    look: Look | None = None


@dataclass(slots=True, kw_only=True)
class Call:
    """One call of a step outside: what is on record of it."""

    held: Held
    begin: Begin
    key: str
    digest: str
    tries: list[Row]
    asked: list[Row]
    record: Row | None
    ticket: Row | None

    @property
    def where(self) -> str:
        """How its questions are keyed."""
        return f"{self.begin.step}/{self.key}"

    def failed(self) -> list[Row]:
        """The tries that count."""
        return [r for r in self.tries if r["outcome"] in ("failed", "unknown")]


def call_of(tx: Tx, held: Held, begin: Begin) -> Call:
    """What is on record of a call."""
    key = fitting(begin.key) if begin.key is not None else ONCE
    run_no = held.hold.run_no
    named = {"run_no": run_no, "name": begin.step, "key": key}
    asked = [q for q in tx.all(tx.sql.questions_of_run, {"run_no": run_no}) if _about(q, f"{begin.step}/{key}")]
    given = "null" if begin.inputs is None else begin.inputs
    return Call(
        held=held, begin=begin, key=key, digest=digest(given), tries=tx.all(tx.sql.tries_of_call, named), asked=asked,
        record=tx.one(tx.sql.newest_record, {**steps_range(run_no), "name": begin.step, "key": key}),
        ticket=tx.one(tx.sql.open_ticket, named),
    )  # fmt: skip


def _about(question: Row, where: str) -> bool:
    return bool(question["key"] == where or question["key"].startswith(f"{where}#"))


def begin(  # noqa: PLR0913 - who begins what, what was found, and what comes from the edge
    tx: Tx, run: Row, b: Begin, *, made: Made, now_us: int, limits: Limits | None = None, looked: Looked | None = None
) -> Told:  # fmt: skip
    """Say what to do about a step that is about to be executed outside.

    Args:
        tx: the transaction.
        run: the run's row, as the caller's token may see it.
        b: the step.
        made: fresh ids.
        now_us: the time.
        limits: the ceilings of the layer.
        looked: what a look found that ``Told.look`` asked for.

    Raises:
        Superseded: another executor goes on with the run.
    """
    ended = _ended(run)
    if ended is not None:
        return kept(tx, run, b) or ended
    why = clients.paused(tx, run["client_id"])
    if why is not None:
        return Told(do="wait", reason=f"{run['client_id']} is paused: {why}", retry_at_us=now_us + 12 * LOOK_AGAIN_US)
    held = external.hold(tx, run, now_us)
    call = call_of(tx, held, b)
    told = _decided(tx, call, made, now_us, limits, looked)
    after = external.turn(tx, held, now_us)
    return _ended(after) or told if told.do == "stop" else told


def kept(tx: Tx, run: Row, b: Begin) -> Told | None:
    """What an ended run has of a step: it can still be had."""
    key = ONCE if b.key is None else fitting(b.key)
    record = tx.one(tx.sql.newest_record, {**steps_range(run["no"]), "name": b.step, "key": key})
    given = None if b.inputs is None else digest(b.inputs)
    same = record is not None and (given is None or record["inputs"] in (None, given))
    return _reuse(tx, record) if record is not None and same and record["state"] in ("done", "skipped") else None


def _ended(run: Row) -> Told | None:
    if run["ended_us"] is None and run["status"] not in ("cancelling", "failing"):
        return None
    return Told(do="stop", reason=f"the run is {run['status']}" + (f": {run['reason']}" if run["reason"] else ""))


def _decided(
    tx: Tx, call: Call, made: Made, now_us: int, limits: Limits | None, looked: Looked | None
) -> Told:  # fmt: skip
    b, ticket = call.begin, call.ticket
    if ticket is not None and ticket["hash"] == made.token_hash:
        return _again(call, ticket)
    if ticket is not None and ticket["lease_until_us"] > now_us:
        why = f"{b.step} was begun {_ago(ticket, now_us)} and its time is not up"
        return Told(do="wait", reason=why, lease_until_us=ticket["lease_until_us"], retry_at_us=ticket["lease_until_us"])
    if ticket is not None:
        _interrupted(tx, call, now_us)
    found = _recorded(tx, call)
    if found is not None:
        return found
    if not b.writes:
        return _next(tx, call, made, now_us, limits, None)
    doubtful = claim_in_doubt(tx, call)
    if doubtful is not None:
        told = settled(tx, call, doubtful, made, now_us, looked)
        if told is not None:
            return told
    return _next(tx, call, made, now_us, limits, doubtful)


def _again(call: Call, ticket: Row) -> Told:
    """What was said when this very begin came before: its answer was lost on the way."""
    kept = json.loads(ticket["settings"])
    row = next((r for r in call.tries if r["n"] == ticket["n"]), None)
    return Told(
        do="run", attempt=kept["attempt"], lease_until_us=ticket["lease_until_us"], inputs=kept["approved"],
        approach=(row["approach"] if row is not None else None) or policy.AS_WRITTEN, narrow=kept["narrow"],
        idempotency_key=kept["wire"], failures=tuple(call.failed()),
    )  # fmt: skip


def _ago(ticket: Row, now_us: int) -> str:
    return f"{max(0, round((now_us - ticket['opened_us']) / 1e6))} s ago"


def _recorded(tx: Tx, call: Call) -> Told | None:
    """The record that answers: with these inputs; of a read whatever they were, where none are told."""
    record = call.record
    if record is None or record["state"] not in ("done", "skipped"):
        return None
    same = (call.begin.inputs is None and not call.begin.writes) or record["inputs"] in (None, call.digest)
    return _reuse(tx, record) if same else None


def _reuse(tx: Tx, record: Row) -> Told:
    return Told(do="reuse", artifact=result_of(tx, record), skipped=record["state"] == "skipped",
                reason=record["why"] or "it is done")  # fmt: skip


def result_of(tx: Tx, record: Row) -> str | None:
    """A record's result, as JSON; ``None``: it has none, or it was pruned."""
    if record["result"] is not None or record["artifact"] is None:
        return None if record["result"] is None else str(record["result"])
    kept = tx.one(tx.sql.artifact, {"hash": record["artifact"]})
    return None if kept is None else kept["body"]


def _interrupted(tx: Tx, call: Call, now_us: int) -> None:
    """Its time is up, and nobody said how it ended: that is no attempt. What it declared to cost is counted."""
    ticket = call.ticket
    assert ticket is not None  # the caller looked  # noqa: S101
    tx.run(tx.sql.close_ticket, {"hash": ticket["hash"], "now": now_us})
    row = next((r for r in call.tries if r["n"] == ticket["n"]), None)
    if row is not None and row["outcome"] is None:
        more = {"outcome": "interrupted", "reason": "its executor did not say how it ended"}
        end_try(tx, call, {**dict(row), **more}, now_us)
    call.ticket = None


def end_try(tx: Tx, call: Call, row: dict[str, Any], now_us: int) -> Row:
    """Write down how a try ended, and remember it."""
    stored = steps.end_attempt(tx, call.held.hold, row, now_us)
    call.tries = [r for r in call.tries if r["n"] != row["n"]] + [stored]
    return stored


# -- a write in doubt -----------------------------------------------------------------------------------------------------


def intent_of(call: Call, approved: str | None = None) -> Intent:
    """What is claimed before a write is begun. Until its lease is over it may be sent."""
    b, run_id = call.begin, call.held.hold.run_id
    return Intent(
        scope="run", scope_id=run_id, name=b.step, key=call.key, step=b.step, branch="", inputs=call.digest,
        arguments=guard(b.inputs or "{}", "inputs", secrets="mask"), timeout_us=b.lease_us,
        proposed=b.effect is EffectKind.IRREVERSIBLE, approved=approved, can_look=b.probe_url is not None,
    )  # fmt: skip


def claim_in_doubt(tx: Tx, call: Call) -> Claim | None:
    """The claim of which nobody knows whether it happened, if there is one."""
    row = tx.one(tx.sql.effect, intent_of(call).where())
    return effects.look(tx, row["claim_id"]) if row is not None and row["state"] in ("claimed", "unknown") else None


def key_on_wire(call: Call, generation: int) -> str:
    """The idempotency key the other side sees."""
    return wire_key(call.held.hold.run_id, call.begin.step, call.key, generation)


def settled(  # noqa: PLR0911 - the ways in which a doubt ends, in the order of DESIGN §5
    tx: Tx, call: Call, held: Claim, made: Made, now_us: int, looked: Looked | None
) -> Told | None:  # fmt: skip
    """Find out about a write in doubt. ``None``: it did not happen, or may be sent again; ``_next`` goes on from there."""
    b, name = call.begin, f"{call.where}#{held.claim_id}:{held.tries}"
    asked = next((q for q in reversed(call.asked) if q["key"] == name and q["status"] in ("open", "answered")), None)
    if asked is not None and asked["status"] == "open" and looked is None and b.probe_url is None:
        return _ask_pending(asked)
    if asked is not None and asked["status"] == "answered":
        return _by_person(tx, call, held, asked, now_us)
    sending = now_us < held.gate_until_us and held.state is EffectState.CLAIMED
    if sending and not (looked is not None and looked.found):  # resumed meanwhile: whoever began it has their time
        why = f"{b.step} may be under way still: whoever began it before has until then"
        return Told(do="wait", reason=why, retry_at_us=held.gate_until_us)
    if b.probe_url is not None and (looked is None or (looked.claim_id, looked.tries) != (held.claim_id, held.tries)):
        look = Look(claim_id=held.claim_id, tries=held.tries, url=b.probe_url, key=key_on_wire(call, held.generation))
        return Told(do="wait", reason="it is looked whether it is there", look=look)
    if looked is not None and looked.found is True:
        return _happened(tx, call, held, looked.value, "found by the probe", now_us)
    if looked is not None and looked.found is False:
        safe_us = held.gate_until_us + b.settle_us
        if looked.started_us < safe_us:
            return Told(do="wait", reason="it is not there yet; it may still come", retry_at_us=safe_us)
        _withdraw(tx, call, asked, now_us)
        effects.mark(tx, held, EffectState.REFUSED, now_us)
        return None
    if looked is None and _may_repeat(call, held, now_us):
        return None
    if asked is not None:
        return _ask_pending(asked)
    why = "there is no way to look" if looked is None else f"the look-up failed: {free_text(looked.why, 200)}"
    return _ask_whether(tx, call, held, why, name, made, now_us)


def _may_repeat(call: Call, held: Claim, now_us: int) -> bool:
    """Whether the other side recognises the key: then the same may be sent again under it."""
    window_us = call.begin.idempotent_us
    young = window_us is None or now_us - held.claimed_us < window_us
    return young and held.inputs == call.digest and held.approved is None and len(call.failed()) < call.begin.attempts


def _withdraw(tx: Tx, call: Call, asked: Row | None, now_us: int) -> None:
    if asked is not None and asked["status"] == "open":
        questions.withdraw(tx, call.held.hold, asked["id"], now_us)


def _by_person(tx: Tx, call: Call, held: Claim, asked: Row, now_us: int) -> Told | None:
    answer = json.loads(asked["answer"])
    choice = choice_of(answer)
    if choice == "stop":
        return _stop(tx, call, f"stopped by {asked['answered_by']}", now_us)
    if choice == "happened":
        return _happened(tx, call, held, answer["receipt"], f"given by {asked['answered_by']}", now_us)
    effects.mark(tx, held, EffectState.REFUSED, now_us)
    return None


def _happened(tx: Tx, call: Call, held: Claim, value: Any, why: str, now_us: int) -> Told:
    text = kept_text(value)
    effects.settle(tx, held, text, now_us)
    record = append(tx, call, text, now_us, summary=None, why=why, started_us=held.claimed_us)
    for question in call.asked:
        _withdraw(tx, call, question, now_us)
    return Told(do="reuse", artifact=text, reason=record.why or why)


def _ask_whether(  # noqa: PLR0913, PLR0917 - what has to be said
    tx: Tx, call: Call, held: Claim, why: str, name: str, made: Made, now_us: int
) -> Told:  # fmt: skip
    failed = call.failed()
    reason = str(failed[-1]["reason"]) if failed else "its executor did not say how it ended"
    arguments = json.loads(held.approved or held.arguments or "{}")
    draft = escalate.unknown_outcome(
        external.situation(tx, call.held.run, call.begin.step), step=call.begin.step, subject=call.begin.key,
        arguments=arguments if isinstance(arguments, dict) else {"inputs": arguments}, reason=reason, why_unknown=why,
        key=key_on_wire(call, held.generation), tries=held.tries,
    )  # fmt: skip
    return ask(tx, call, QuestionKind.UNKNOWN_OUTCOME, draft, made, now_us, key=name)


# -- the next try ---------------------------------------------------------------------------------------------------------


def _next(
    tx: Tx, call: Call, made: Made, now_us: int, limits: Limits | None, promise: Claim | None
) -> Told:  # fmt: skip
    move = move_for(call, now_us)
    if isinstance(move, policy.Wait):
        return _ask_pending(next(q for q in call.asked if q["id"] == move.question_id))
    if isinstance(move, policy.Ask):
        return ask_failure(tx, call, made, now_us)
    if isinstance(move, policy.Give):
        external.finish(tx, call.held, external.failed(call.begin.step, move.reason), now_us)
        return Told(do="stop", reason=move.reason)
    if isinstance(move, policy.Obey):
        return _obey(tx, call, move, now_us)
    if move.wants_fact is not None and not _fact_known(tx, call, move.wants_fact, now_us):
        return Told(do="wait", reason=f"until {move.wants_fact} is known", retry_at_us=now_us + 12 * LOOK_AGAIN_US)
    if move.not_before_us > now_us:
        return Told(do="wait", reason="the next try comes later", retry_at_us=move.not_before_us, failures=tuple(call.failed()))
    full = None if _is_done(tx, call) else _full(tx, call, limits, made, now_us)
    return full if full is not None else _go(tx, call, move, made, now_us, promise)


def next_of(tx: Tx, call: Call, made: Made, now_us: int) -> Told:
    """What is next after a failure, where that is no further try: the question, or the end."""
    return _next(tx, call, made, now_us, None, None)


def _is_done(tx: Tx, call: Call) -> bool:
    """Whether there is a receipt: then nothing is spent, whatever is said about it."""
    row = tx.one(tx.sql.effect, intent_of(call).where()) if call.begin.writes else None
    return row is not None and row["state"] == EffectState.DONE


def _fact_known(tx: Tx, call: Call, name: str, now_us: int) -> bool:
    row = tx.one(tx.sql.fact, {"client_id": call.held.hold.client_id, "key": name})
    return row is not None and (row["valid_until_us"] is None or row["valid_until_us"] > now_us)


def _chance(call: Call) -> float:
    """Chance for this call and its next try: the same whenever it is asked, so that a time that was told stays."""
    name = f"{call.held.hold.run_id}/{call.where}/{len(call.tries)}"
    return zlib.crc32(name.encode("utf-8", "surrogatepass")) / 2**32


def move_for(call: Call, now_us: int) -> policy.Move:
    """What to do next about a call, from its tries and the answers people gave."""
    past = past_of(call)
    about = [q for q in call.asked if q["kind"] in ("failure", "required") or
             (q["kind"] == "unknown_outcome" and q["status"] == "answered")]  # fmt: skip
    asked = tuple(_asked(q) for q in sorted(about, key=lambda q: (q["attempts"], q["created_us"], q["n"])))
    trouble = policy.Trouble(past=past, asked=asked, ways=call.begin.ways, attempts=call.begin.attempts, now_us=now_us)
    return policy.next_move(trouble, chance=_chance(call)) if past or asked else policy.Try(number=1)


def past_of(call: Call) -> tuple[policy.Past, ...]:
    """The tries of a call that ended, as the policy reads them."""
    return tuple(_past(r) for r in call.tries if r["outcome"] is not None and r["inputs"] in (None, call.digest))


def _past(row: Row) -> policy.Past:
    more = json.loads(row["trace"]) if row["trace"] else {}
    return policy.Past(
        n=row["n"], approach=row["approach"], outcome=AttemptOutcome(row["outcome"]),
        kind=FailureKind(row["kind"]) if row["kind"] else None, reason=row["reason"] or "", signature=row["signature"] or "",
        started_us=row["started_us"], ended_us=row["ended_us"] or row["started_us"],
        retry_after_us=more.get("retry_after_us"), narrow=bool(more.get("narrow")),
    )  # fmt: skip


def _asked(row: Row) -> policy.Asked:
    answer = None if row["answer"] is None else json.loads(row["answer"])
    choice = "again" if row["kind"] == "required" else choice_of(answer)
    return policy.Asked(
        id=row["id"], status=QuestionStatus(row["status"]), attempts=row["attempts"],
        choice="again" if choice == "not_happened" else choice, answer=answer, by=row["answered_by"],
        answered_us=row["answered_us"],
    )  # fmt: skip


def _obey(tx: Tx, call: Call, move: policy.Obey, now_us: int) -> Told:
    by = move.by or "a person"
    if move.choice == "stop":
        return _stop(tx, call, f"stopped by {by}", now_us)
    if move.choice == "skip":
        append(tx, call, None, now_us, summary="skipped", why=f"skipped by {by}", state="skipped")
        return Told(do="reuse", skipped=True, reason=f"skipped by {by}")
    value = move.answer.get("value" if move.choice == "value" else "receipt") if isinstance(move.answer, dict) else None
    text = kept_text(value)
    if call.begin.writes:
        record_effect(tx, call, text, f"by-hand-{call.held.hold.fence}-{len(call.tries)}", now_us)
    append(tx, call, text, now_us, summary=None, why=f"given by {by}")
    return Told(do="reuse", artifact=text, reason=f"given by {by}")


def record_effect(tx: Tx, call: Call, text: str, claim_id: str, now_us: int) -> None:
    """A write was done by hand, or before anybody began it here: from now on it is done."""
    intent = intent_of(call, approved=call.begin.inputs if call.begin.effect is EffectKind.IRREVERSIBLE else None)
    claim = effects.claim(tx, call.held.hold, intent, f"{claim_id}-{digest(call.where)}", now_us, proven_dead=())
    if claim.verdict is not Verdict.REUSE:
        effects.settle(tx, claim, text, now_us)


def _stop(tx: Tx, call: Call, reason: str, now_us: int) -> Told:
    external.finish(tx, call.held, Ending(status=RunStatus.CANCELLED, reason=reason), now_us)
    return Told(do="stop", reason=reason)


def _go(
    tx: Tx, call: Call, move: policy.Try, made: Made, now_us: int, promise: Claim | None
) -> Told:  # fmt: skip
    b, wire, approved = call.begin, None, None
    claim_name: dict[str, Any] = {}
    doubtful = False
    if b.writes:
        word = _word(call)
        if word is not None and word["status"] != "open" and _is_no(word):
            return _stop(tx, call, f"refused by {word['answered_by'] or 'nobody: it was not approved in time'}", now_us)
        approved = _approved(call, word)
        intent = intent_of(call, approved)
        claim = effects.claim(
            tx, call.held.hold, intent, made.new_id("c"), now_us, proven_dead=(), second=_second(call), promise=promise
        )
        other = _not_to_run(tx, call, claim, word, made, now_us)
        if other is not None:
            return other
        wire = key_on_wire(call, claim.generation)
        claim_name, doubtful = {"claim": claim.claim_id, "tries": claim.tries}, claim.doubtful
    n = max((r["n"] for r in call.tries), default=0) + 1
    row = {"branch": "", "name": b.step, "key": call.key, "n": n, "approach": move.approach, "inputs": call.digest,
           "source_digest": None, "usd": b.uusd or None}  # fmt: skip
    steps.begin_attempt(tx, call.held.hold, row, now_us)
    until_us = now_us + b.lease_us
    settings = {**claim_name, "effect": b.effect.value, "digest": call.digest, "args": shown_args(b), "attempts": b.attempts,
                "ways": [w.label for w in b.ways], "resource": b.resource, "uusd": b.uusd, "callback": b.callback,
                "idempotent_us": b.idempotent_us, "probe_url": b.probe_url, "settle_us": b.settle_us, "approved": approved,
                "doubtful": doubtful, "attempt": move.number, "narrow": move.narrow, "wire": wire}  # fmt: skip
    tx.run(
        tx.sql.insert_ticket,
        {"run_no": call.held.hold.run_no, "name": b.step, "key": call.key, "n": n, "hash": made.token_hash,
         "fence": call.held.hold.fence, "settings": json.dumps(settings, ensure_ascii=False), "lease_until_us": until_us,
         "now": now_us},
    )  # fmt: skip
    return Told(
        do="run", attempt=move.number, lease_until_us=until_us, approach=move.approach or policy.AS_WRITTEN, narrow=move.narrow,
        idempotency_key=wire, failures=tuple(call.failed()), inputs=approved,
    )  # fmt: skip


def shown_args(b: Begin) -> str | None:
    """The inputs as they are kept; without credentials."""
    return None if b.inputs is None else guard(b.inputs, "inputs", secrets="mask")


def _not_to_run(
    tx: Tx, call: Call, claim: Claim, word: Row | None, made: Made, now_us: int
) -> Told | None:  # fmt: skip
    """What is said instead, where a claim says that it is not to be sent."""
    if claim.verdict is Verdict.GO:
        return None
    if claim.verdict is Verdict.REUSE:
        if call.record is None or call.record["inputs"] != claim.inputs:
            append(tx, call, claim.receipt, now_us, summary=None, why="done before", started_us=claim.claimed_us)
        return Told(do="reuse", artifact=claim.receipt, reason="it is done")
    if claim.verdict is Verdict.PROPOSE:
        return _ask_pending(word) if word is not None and word["status"] == "open" else _propose(tx, call, made, now_us)
    if claim.verdict is Verdict.CONFLICT:
        return _clash(tx, call, claim, made, now_us)
    if claim.verdict is Verdict.UNKNOWN:
        return Told(do="wait", reason="a backup was restored: it has to be found out first", retry_at_us=claim.gate_until_us)
    return Told(do="wait", reason="somebody else is at it", retry_at_us=now_us + LOOK_AGAIN_US)


# -- people ---------------------------------------------------------------------------------------------------------------


def _ask_pending(question: Row) -> Told:
    return Told(do="wait", reason="a person is asked", question=question)


def _word(call: Call) -> Row | None:
    """The newest question whether exactly this may be done."""
    about = [q for q in call.asked if q["kind"] == "approve" and q["about"] == call.digest and q["status"] != "withdrawn"]
    return about[-1] if about else None


def _is_no(word: Row) -> bool:
    return word["status"] == "expired" or choice_of(json.loads(word["answer"])) == "refuse"


def _approved(call: Call, word: Row | None) -> str | None:
    if word is None or word["status"] != "answered" or _is_no(word):
        return None
    answer, given = json.loads(word["answer"]), json.loads(call.begin.inputs or "{}")
    edits = answer.get("inputs") if isinstance(answer, dict) else None
    return json.dumps({**given, **edits}, ensure_ascii=False) if edits and isinstance(given, dict) else call.begin.inputs or "{}"


def _propose(tx: Tx, call: Call, made: Made, now_us: int) -> Told:
    shown = json.loads(shown_args(call.begin) or "{}")
    shown = shown if isinstance(shown, dict) else {"inputs": shown}
    draft = escalate.approve(
        external.situation(tx, call.held.run, call.begin.step), step=call.begin.step, arguments=shown, subject=call.begin.key,
        usd=call.begin.uusd / 1e6 if call.begin.uusd else None,
    )  # fmt: skip
    draft.context["approve"] = {"of": "step", "inputs": shown, "fixed": []}
    return ask(tx, call, QuestionKind.APPROVE, draft, made, now_us, about=call.digest)


def _second(call: Call) -> int:
    """Up to which generation a person wanted another one beside it."""
    found = 0
    for q in call.asked:
        answered = q["kind"] == "conflict" and q["about"] == call.digest and q["status"] == "answered"
        if answered and choice_of(json.loads(q["answer"])) == "second":
            found = max(found, json.loads(q["context"]).get("generation", 0))
    return found


def _clash(tx: Tx, call: Call, claim: Claim, made: Made, now_us: int) -> Told:
    """It was done with other inputs."""
    asked = next((q for q in reversed(call.asked) if q["kind"] == "conflict" and q["about"] == call.digest
                  and q["status"] in ("open", "answered")), None)  # fmt: skip
    if asked is not None and asked["status"] == "open":
        return _ask_pending(asked)
    if asked is not None:
        choice, by = choice_of(json.loads(asked["answer"])), asked["answered_by"]
        if choice == "stop":
            return _stop(tx, call, f"stopped by {by}", now_us)
        return Told(do="reuse", artifact=claim.receipt, reason=f"{by} said that it is the same thing")
    first, now = json.loads(claim.approved or claim.arguments or "{}"), json.loads(shown_args(call.begin) or "{}")
    draft = escalate.conflict(
        external.situation(tx, call.held.run, call.begin.step), step=call.begin.step, subject=call.begin.key,
        first=first if isinstance(first, dict) else {"inputs": first}, now=now if isinstance(now, dict) else {"inputs": now},
        receipt=json.loads(claim.receipt or "null"), reason="It has the same key.",
    )  # fmt: skip
    draft.context["generation"] = claim.generation
    return ask(tx, call, QuestionKind.CONFLICT, draft, made, now_us, about=call.digest)


def ask_failure(tx: Tx, call: Call, made: Made, now_us: int) -> Told:
    """Nothing is left to try: a person decides."""
    b, rows = call.begin, [r for r in call.tries if r["outcome"] in ("failed", "unknown", "deferred")]
    last = json.loads(rows[-1]["trace"] or "{}") if rows else {}
    unchanged = True if not b.writes else all(r["outcome"] != "unknown" for r in rows) or None
    tried = tuple(
        escalate.Tried(approach=r["approach"] or policy.AS_WRITTEN, reason=r["reason"] or "", outcome=r["outcome"],
                       at_us=r["ended_us"]) for r in rows
    )  # fmt: skip
    draft = escalate.failure(
        external.situation(tx, call.held.run, b.step), step=b.step, subject=b.key, resource=b.resource, tried=tried,
        alternatives=tuple(Alternative(label=w.label, usd=None, seconds=None, ask=w.ask) for w in b.ways), effect=b.effect,
        nothing_changed=unchanged, needs=None, ask=last.get("ask"), result_type=None, looks=False,
        usd=b.uusd / 1e6 if b.uusd else None, seconds=None,
    )  # fmt: skip
    newest = rows[-1] if rows else None
    cause = None if newest is None else incident.cause(
        QuestionKind.FAILURE, workflow=call.held.run["workflow"], step=b.step, signature=newest["signature"],
        resource=newest["resource"], passing=newest["kind"] == FailureKind.RETRYABLE,
    )  # fmt: skip
    return ask(
        tx, call, QuestionKind.FAILURE, draft, made, now_us, about=None if b.writes else call.digest, cause=cause,
        signature=None if newest is None else newest["signature"], attempts=len(call.failed()),
    )  # fmt: skip


def ask(  # noqa: PLR0913 - a question's parts
    tx: Tx, call: Call, kind: QuestionKind, draft: Draft, made: Made, now_us: int, *, key: str | None = None, **more: Any
) -> Told:  # fmt: skip
    """Ask a person, and say that they are asked."""
    name = key or call.where
    earlier = [q for q in call.asked if q["kind"] == kind.value and q["key"] == name]
    newest = tx.one(tx.sql.newest_id, steps_range(call.held.hold.run_no))
    asking = Asking(
        id=made.new_id("q"), branch="", key=name, n=len(earlier) + 1, step=call.begin.step, kind=kind, draft=draft,
        asked_seq=(newest["id"] or 0) - steps_range(call.held.hold.run_no)["low"] if newest and newest["id"] else 0,
        **{"attempts": len(call.failed()), **more},
    )  # fmt: skip
    row = questions.ask(tx, call.held.hold, asking, now_us)
    if call.begin.callback is not None:
        tx.run(tx.sql.set_callback, {"id": row["id"], "url": call.begin.callback})
    return Told(do="wait", reason="a person is asked", question=row, failures=tuple(call.failed()))


# -- limits ---------------------------------------------------------------------------------------------------------------


def _full(tx: Tx, call: Call, limits: Limits | None, made: Made, now_us: int) -> Told | None:
    """The limit that is in the way, asked about; ``None``: there is room. What is under way counts as it was declared."""
    if limits is None:
        return None
    run_no, uusd, low = call.held.hold.run_no, call.begin.uusd, steps_range(call.held.hold.run_no)["low"]
    spend, newest = external.spent(tx, run_no), tx.one(tx.sql.newest_id, steps_range(run_no))
    records = (newest["id"] or low) - low if newest is not None else 0
    used = {"usd": spend["uusd"] / 1e6, "tokens": float(spend["tokens"]), "steps": float(records)}
    needs = {"usd": uusd / 1e6, "tokens": 0.0, "steps": 1.0}
    for what, now in used.items():
        declared = getattr(limits, what)
        if declared is None:
            continue
        asked = _of_limit(tx, run_no, what)
        ceiling = max([float(declared), *(_raised(q, what) for q in asked)])
        if now + needs[what] > ceiling or (what == "tokens" and now >= ceiling):
            return _limit(tx, call, asked, (what, ceiling, now, needs[what]), made, now_us)
    return None


def _of_limit(tx: Tx, run_no: int, what: str) -> list[Row]:
    rows = tx.all(tx.sql.questions_of_run, {"run_no": run_no})
    return [q for q in rows if q["kind"] == "limit" and q["key"] == what]


def _raised(question: Row, what: str) -> float:
    """What a person raised a ceiling to; 0 = they did not."""
    answer = json.loads(question["answer"]) if question["status"] == "answered" else None
    return float(answer.get(what, 0)) if isinstance(answer, dict) and choice_of(answer) == "raise" else 0.0


def _limit(
    tx: Tx, call: Call, asked: list[Row], reached: tuple[str, float, float, float], made: Made, now_us: int
) -> Told:  # fmt: skip
    what, ceiling, used, needs = reached
    stopped = next((q for q in asked if q["status"] == "answered" and choice_of(json.loads(q["answer"])) == "stop"), None)
    if stopped is not None:
        return _stop(tx, call, f"stopped by {stopped['answered_by']}", now_us)
    pending = next((q for q in asked if q["status"] == "open"), None)
    if pending is not None:
        return _ask_pending(pending)
    state = external.situation(tx, call.held.run, call.begin.step)
    draft = escalate.limit(state, what=what, ceiling=ceiling, used=used, next_step=call.begin.step, next_cost=needs or None)
    cause = incident.cause(QuestionKind.LIMIT, workflow=call.held.run["workflow"], step=what, signature=None, resource=None)
    asking = Asking(
        id=made.new_id("q"), branch="", key=what, n=len(asked) + 1, kind=QuestionKind.LIMIT, draft=draft, cause=cause,
    )  # fmt: skip
    return _ask_pending(questions.ask(tx, call.held.hold, asking, now_us))


# -- records --------------------------------------------------------------------------------------------------------------


def kept_text(value: Any) -> str:
    """A value as JSON text without credentials: what was done outside is kept whatever it holds."""
    return guard(json.dumps(value, ensure_ascii=False, allow_nan=False), "artifact", secrets="mask")


IN_ROW = 4096  # DESIGN §10: characters of a result that stand in its row; longer ones are kept once, by their hash


def append(  # noqa: PLR0913 - a record's parts
    tx: Tx, call: Call, text: str | None, now_us: int, *, summary: str | None, why: str | None = None, state: str = "done",
    started_us: int | None = None, approach: str | None = None, uusd: int | None = None, tokens: int | None = None,
    begun: dict[str, Any] | None = None,
) -> Record:  # fmt: skip
    """Record a step's end."""
    low = steps_range(call.held.hold.run_no)["low"]
    newest = tx.one(tx.sql.newest_id, steps_range(call.held.hold.run_no))
    artifact = None
    if text is not None and len(text) > IN_ROW:
        artifact = steps.Artifact(hash=content_hash(text), size=len(text), body=text, location=None)
    record = Record(
        id=(newest["id"] or low if newest is not None else low) + 1, branch="", name=call.begin.step, key=call.key,
        generation=1 if call.record is None else call.record["generation"] + 1, state=state,
        effect=call.begin.effect.value if call.begin.writes else None,
        inputs=None if call.begin.inputs is None else call.digest, args=shown_args(call.begin),
        result=text if artifact is None else None, artifact=None if artifact is None else artifact.hash,
        summary=None if summary is None else free_text(summary, 300), approach=approach, why=why, usd=uusd, tokens=tokens,
        started_us=now_us if started_us is None else started_us, ended_us=now_us,
    )  # fmt: skip
    steps.append(tx, call.held.hold, record, now_us=now_us, artifact=artifact, begun=begun)
    return record
