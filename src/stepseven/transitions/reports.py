"""What an executor outside reports: a step is done, has failed, takes longer; or was done without having been begun here.

A receipt is kept whatever became of the run meanwhile: it tells what happened outside. Everything else is refused when another
executor goes on.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide import external as words
from stepseven.decide import policy
from stepseven.decide._verdict import Handling, Proof
from stepseven.decide.external import Begin, Reported
from stepseven.errors import InvalidArgument, Superseded
from stepseven.keys import fitting
from stepseven.model import ONCE, EffectKind, EffectState, FailureKind
from stepseven.store.base import Row, Tx
from stepseven.store.codec import free_text, guard
from stepseven.transitions import begins, effects, external, questions
from stepseven.transitions.begins import Call, Made, Told
from stepseven.transitions.effects import Claim

_KINDS = {
    Handling.DEFERRAL: FailureKind.RETRYABLE, Handling.RETRYABLE: FailureKind.RETRYABLE,
    Handling.FIXABLE: FailureKind.FIXABLE, Handling.FATAL: FailureKind.FATAL,
}  # fmt: skip


class NotBegun(Exception):
    """A report about a step that nobody has begun, or whose end was reported before. ``why`` says what to do."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a step: ``value`` is JSON's; money in micro-USD."""

    value: Any = None
    summary: str | None = None
    uusd: int | None = None
    tokens: int | None = None
    approach: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What was kept of a report: the run as it is now, the step's result as JSON, whether it had been reported before."""

    run: Row
    artifact: str | None
    again: bool = False
    superseded: str | None = None  # it counts for nothing but its receipt, and why


# -- done -----------------------------------------------------------------------------------------------------------------


def complete(tx: Tx, run: Row, step: str, ticket: Row | None, result: Result, now_us: int) -> Kept:
    """A step that was begun is done.

    Args:
        tx: the transaction.
        run: the run's row.
        step: the step's name.
        ticket: which begin it is about (``find``).
        result: what came of it.
        now_us: the time.

    Raises:
        NotBegun: nobody has begun it.
        Superseded: the run ended, or another executor goes on: a read's result is not kept. (A write's receipt is, and
            ``Kept.superseded`` says why it is no more than that.)
        SecretFound: a read's result holds a credential. Nothing was kept.
    """
    if ticket is None:
        raise NotBegun(f"nobody has begun {step!r} here: begin it first, or PUT it if it was done without")
    b = _begin_of(ticket)
    text = begins.kept_text(result.value) if b.writes else _text(result.value)
    if ticket["fence"] != run["fence"] or run["ended_us"] is not None:
        return _too_late(tx, run, ticket, text, now_us)
    held = external.hold(tx, run, now_us)
    call = begins.call_of(tx, held, b)
    if ticket["closed_us"] is not None:
        told = _reported_before(tx, call, ticket, text, now_us)
        if told is not None:
            return told
    settings = json.loads(ticket["settings"])
    row = next((r for r in call.tries if r["n"] == ticket["n"]), None)
    declared = settings["uusd"] or None
    if b.writes:
        claim = _claim(tx, settings)
        if claim is not None and not effects.settle(tx, claim, text, now_us):
            _late(tx, ticket, text, now_us)
    tx.run(tx.sql.close_ticket, {"hash": ticket["hash"], "now": now_us})
    begins.append(
        tx, call, text, now_us, summary=result.summary, started_us=ticket["opened_us"],
        approach=result.approach or (row["approach"] if row is not None else None),
        uusd=declared if result.uusd is None else result.uusd, tokens=result.tokens,
        begun={"run_no": held.hold.run_no, "branch": "", "name": ticket["name"], "key": ticket["key"], "n": ticket["n"]},
    )  # fmt: skip
    _withdraw_questions(tx, call, now_us)
    return Kept(run=external.turn(tx, held, now_us), artifact=text)


def _text(value: Any) -> str:
    """A read's result as JSON.

    Raises:
        SecretFound: it holds a credential.
    """
    return guard(json.dumps(value, ensure_ascii=False, allow_nan=False), "artifact", secrets="refuse")


def _begin_of(ticket: Row) -> Begin:
    """The step as it was begun."""
    kept = json.loads(ticket["settings"])
    return Begin(
        step=ticket["name"], key=ticket["key"], inputs=kept["args"], effect=EffectKind(kept["effect"]), uusd=kept["uusd"],
        attempts=kept["attempts"], idempotent_us=kept["idempotent_us"], probe_url=kept["probe_url"], settle_us=kept["settle_us"],
        lease_us=ticket["lease_until_us"] - ticket["opened_us"], ways=tuple(policy.Way(label=w) for w in kept["ways"]),
        resource=kept["resource"], callback=kept["callback"],
    )  # fmt: skip


def _claim(tx: Tx, settings: dict[str, Any]) -> Claim | None:
    return effects.look(tx, settings["claim"]) if settings.get("claim") else None


def _reported_before(tx: Tx, call: Call, ticket: Row, text: str, now_us: int) -> Kept | None:
    """What is said to a report about an attempt that is over; ``None``: only its time was up, and nothing came since."""
    record, run = call.record, call.held.run
    if record is not None and record["state"] == "done" and record["ended_us"] >= ticket["opened_us"]:
        if begins.result_of(tx, record) == text:
            return Kept(run=run, artifact=text, again=True)
        return _too_late(tx, run, ticket, text, now_us, "the end of this attempt was reported before, otherwise")
    newer = call.ticket is not None and call.ticket["hash"] != ticket["hash"]
    return _too_late(tx, run, ticket, text, now_us, "it was begun again meanwhile") if newer else None


def _too_late(tx: Tx, run: Row, ticket: Row, text: str, now_us: int, why: str | None = None) -> Kept:
    """A read's result is not kept, a write's receipt is: it tells what happened outside."""
    b = _begin_of(ticket)
    if not b.writes:
        raise Superseded(run["id"], why or _late_why(run, b))
    _late(tx, ticket, text, now_us)
    return Kept(run=run, artifact=text, superseded=f"{why}; the receipt was kept" if why else _late_why(run, b))


def _late(tx: Tx, ticket: Row, text: str, now_us: int) -> None:
    """A write's receipt that comes when the run is somebody else's: kept, and told loudly if it was done twice."""
    settings = json.loads(ticket["settings"])
    claim = _claim(tx, settings)
    if claim is not None:
        sent = replace(claim, tries=settings["tries"])
        effects.late_receipt(tx, sent, text, f"q_{ticket['hash'][:20]}", now_us)


def _late_why(run: Row, b: Begin) -> str:
    gone = f"it is {run['status']}" if run["ended_us"] is not None else "it was resumed, and another executor goes on with it"
    return f"{gone}; the receipt was kept" if b.writes else gone


def _withdraw_questions(tx: Tx, call: Call, now_us: int) -> None:
    """It is done: nobody has to decide about it any more."""
    for row in call.asked:
        if row["status"] == "open":
            questions.withdraw(tx, call.held.hold, row["id"], now_us)


def put(tx: Tx, run: Row, b: Begin, result: Result, made: Made, now_us: int) -> Kept:
    """A step is done without having been begun here: from now on it is reused.

    Raises:
        NotBegun: it is done already, with another result.
        Superseded: the run has ended, or another executor goes on.
        SecretFound: a read's result holds a credential.
    """
    text = begins.kept_text(result.value) if b.writes else _text(result.value)
    kept_before = begins.kept(tx, run, b) if run["ended_us"] is not None else None
    if kept_before is not None and kept_before.artifact == text:
        return Kept(run=run, artifact=text, again=True)
    held = external.hold(tx, run, now_us)
    call = begins.call_of(tx, held, b)
    done = call.record is not None and call.record["state"] == "done"
    if call.record is not None and done and (b.writes or b.inputs is None or call.record["inputs"] in (None, call.digest)):
        kept = begins.result_of(tx, call.record)
        if kept == text:
            return Kept(run=run, artifact=kept, again=True)
        if b.writes:
            raise NotBegun(f"{b.step!r} is done already, with another receipt: give it another key if it is a second one")
    if call.ticket is not None and call.ticket["lease_until_us"] > now_us:
        raise NotBegun(f"{b.step!r} is being executed: complete that attempt, or wait until its time is up")
    if call.ticket is not None:
        tx.run(tx.sql.close_ticket, {"hash": call.ticket["hash"], "now": now_us})
    if b.writes:
        begins.record_effect(tx, call, text, made.new_id("c"), now_us)
    begins.append(tx, call, text, now_us, summary=result.summary, why="reported as done", uusd=result.uusd,
                  tokens=result.tokens, approach=result.approach)  # fmt: skip
    _withdraw_questions(tx, call, now_us)
    return Kept(run=external.turn(tx, held, now_us), artifact=text)


# -- longer -----------------------------------------------------------------------------------------------------------------


def extend(tx: Tx, run: Row, ticket: Row | None, lease_us: int, now_us: int) -> int:
    """A step takes longer. Until then nobody else begins it, and a write may still be sent.

    Returns:
        Until when.

    Raises:
        NotBegun: it was not begun, or its end was reported.
        Superseded: the run has ended, or another executor goes on.
    """
    if ticket is not None and (ticket["fence"] != run["fence"] or run["ended_us"] is not None):
        raise Superseded(run["id"], _late_why(run, Begin(step=ticket["name"])))
    if ticket is None or ticket["closed_us"] is not None:
        raise NotBegun("there is no attempt under way to extend: begin the step")
    external.hold(tx, run, now_us)
    until_us = max(now_us + lease_us, int(ticket["lease_until_us"]))
    tx.run(tx.sql.extend_ticket, {"hash": ticket["hash"], "lease_until_us": until_us})
    claim = json.loads(ticket["settings"]).get("claim")
    if claim:
        tx.run(tx.sql.raise_gate, {"claim_id": claim, "gate_until_us": until_us})
    return until_us


# -- failed -----------------------------------------------------------------------------------------------------------------


def fail(tx: Tx, run: Row, step: str, ticket: Row | None, told: Reported, made: Made, now_us: int, result: Result) -> Told:  # noqa: PLR0913, PLR0917 - who reports what, and what comes from the edge
    """A step that was begun has failed: write it down, then say what is next.

    Returns:
        ``do``: ``run`` (begin it again, not before ``retry_at_us``), ``wait`` (a person is asked) or ``stop``.

    Raises:
        NotBegun: nobody has begun it, or its end was reported before.
        Superseded: the run has ended, or another executor goes on.
    """
    if ticket is None:
        raise NotBegun(f"nobody has begun {step!r} here: begin it first")
    if ticket["fence"] != run["fence"] or run["ended_us"] is not None:
        raise Superseded(run["id"], _late_why(run, Begin(step=step)))
    if ticket["closed_us"] is not None:
        raise NotBegun(f"the end of this attempt of {step!r} was reported before: begin it again")
    held = external.hold(tx, run, now_us)
    b = _begin_of(ticket)
    call = begins.call_of(tx, held, b)
    tx.run(tx.sql.close_ticket, {"hash": ticket["hash"], "now": now_us})
    call.ticket = None
    _write_down(tx, call, ticket, told, result, now_us)
    after = _after(tx, call, made, now_us) if held.run["status"] not in ("cancelling", "failing") else None
    done = external.turn(tx, held, now_us)
    if after is None or done["ended_us"] is not None:
        return Told(do="stop", reason=done["reason"] or f"the run is {done['status']}")
    return after


def _write_down(tx: Tx, call: Call, ticket: Row, told: Reported, result: Result, now_us: int) -> None:
    verdict = words.verdict_of(told, now_us=now_us, step=call.begin.step, resource=call.begin.resource)
    settings = json.loads(ticket["settings"])
    begun: dict[str, Any] = dict(next(r for r in call.tries if r["n"] == ticket["n"]))
    put_off = verdict.handling is Handling.DEFERRAL and _believed(call, verdict.retry_after_us, ticket, now_us)
    claim = _claim(tx, settings)
    unknown = claim is not None and (verdict.proof is Proof.NONE or _doubtful(call, settings))
    if claim is not None:
        state = EffectState.UNKNOWN if unknown else EffectState.REFUSED
        effects.mark(tx, claim, state, now_us, gate_until_us=now_us)
    details = {
        "text": free_text(told.message, 4000), "status": verdict.status, "narrow": verdict.narrow, "ask": verdict.ask,
        "retry_after_us": verdict.retry_after_us, "proof": verdict.proof.value,
        "claim": f"{settings['claim']}:{settings['tries']}" if claim is not None else None,
    }  # fmt: skip
    failed = [r for r in call.failed() if r["n"] != ticket["n"]]
    same = bool(failed) and (result.approach or begun["approach"]) == failed[-1]["approach"]
    declared = begun["usd"] if result.uusd is None else result.uusd
    row = {
        **begun, "approach": result.approach or begun["approach"],
        "outcome": "unknown" if unknown and not put_off else "deferred" if put_off else "failed",
        "kind": _KINDS[verdict.handling].value, "reason": free_text(verdict.reason, 1000),
        "trace": json.dumps(details, ensure_ascii=False), "signature": verdict.signature,
        "resource": call.begin.resource or verdict.resource, "identical": int(same), "usd": declared, "tokens": result.tokens,
    }  # fmt: skip
    begins.end_try(tx, call, row, now_us)


def _doubtful(call: Call, settings: dict[str, Any]) -> bool:
    """Whether an earlier send of this claim may have happened: a refusal of this one proves nothing about that."""
    earlier = [json.loads(r["trace"] or "{}") for r in call.tries if r["outcome"] in ("unknown", "interrupted")]
    sent = f"{settings['claim']}:"
    return bool(settings["doubtful"]) or any(str(d.get("claim") or "").startswith(sent) for d in earlier)


def _believed(call: Call, retry_after_us: int | None, ticket: Row, now_us: int) -> bool:
    answered = [q["answered_us"] or 0 for q in call.asked if q["status"] == "answered"]
    return policy.believed(
        begins.past_of(call), since_us=max(answered, default=0), started_us=ticket["opened_us"], now_us=now_us,
        retry_after_us=retry_after_us,
    )  # fmt: skip


def _after(tx: Tx, call: Call, made: Made, now_us: int) -> Told:
    """What is next, decided at once so that whoever failed knows whether to come back."""
    doubtful = begins.claim_in_doubt(tx, call)
    if doubtful is not None and call.begin.probe_url is None:
        asked = begins.settled(tx, call, doubtful, made, now_us, None)
        if asked is not None:
            return asked
    elif doubtful is not None:
        return Told(do="run", reason="it is looked whether it is there", retry_at_us=now_us, attempt=len(call.failed()) + 1)
    move = begins.move_for(call, now_us)
    if isinstance(move, policy.Try):
        return Told(do="run", retry_at_us=max(now_us, move.not_before_us), approach=move.approach or policy.AS_WRITTEN,
                    attempt=move.number, narrow=move.narrow, failures=tuple(call.failed()))  # fmt: skip
    return begins.next_of(tx, call, made, now_us)


# -- which attempt ------------------------------------------------------------------------------------------------------------


def find(tx: Tx, run: Row, step: str, *, token_hash: str | None, key: str | None) -> Row | None:
    """The begin that a report is about: by its token, or else the one under way under this key.

    Raises:
        InvalidArgument: the token is not of this step of this run.
    """
    if token_hash is not None:
        ticket = tx.one(tx.sql.ticket, {"hash": token_hash})
        if ticket is None or ticket["run_no"] != run["no"] or ticket["name"] != step:
            raise InvalidArgument("attempt_token", "…", f"it was not given for {step!r} of this run")
        return ticket
    named = {"run_no": run["no"], "name": step, "key": ONCE if key is None else fitting(key)}
    return tx.one(tx.sql.open_ticket, named)
