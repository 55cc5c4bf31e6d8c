"""``/v1/runs/{run}/steps/{step}``: steps that somebody outside executes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from fastapi import Path
from starlette.responses import Response

from stepseven.decide import external as words
from stepseven.decide.external import Begin, Reported
from stepseven.decide.policy import AS_WRITTEN, Way
from stepseven.errors import InvalidArgument, Superseded
from stepseven.model import to_micro
from stepseven.runtime.declared import honoured_us
from stepseven.server import outward, sight
from stepseven.server import step_shapes as shapes
from stepseven.server.documents import question_document
from stepseven.server.problems import Problem, invalid
from stepseven.server.routes import Desk, Here, needs, router, told
from stepseven.store.base import Row, Tx
from stepseven.store.codec import canonical, digest, free_text, storable
from stepseven.transitions import begins, external, reports
from stepseven.transitions.begins import Looked, Made, Told
from stepseven.transitions.reports import NotBegun, Result
from stepseven.transitions.state import question_of
from stepseven.transitions.tokens import Scope

T = TypeVar("T")
api = router("steps")
Step = Annotated[str, Path(min_length=1, max_length=words.MAX_NAME)]
_REPORT = needs(Scope.REPORT)
_LINKS = {
    name: {"operationId": operation, "parameters": {"run_id": "$request.path.run_id", "step": "$request.path.step"},
           "requestBody": {"attempt_token": "$response.body#/attempt_token"}, "description": described}
    for name, operation, described in (
        ("complete", "complete_step", "Say what came of it."),
        ("extend", "extend_step", "Say that it takes longer."),
    )
}  # fmt: skip


@api.post(
    "/runs/{run_id}/steps/{step}/begin", operation_id="begin_step", openapi_extra=_REPORT,
    responses={200: {"model": shapes.Begun, "links": _LINKS}},
)  # fmt: skip
async def begin(run_id: str, step: Step, here: Here, body: shapes.BeginStep | None = None) -> Response:
    """A step is about to be executed: `run` it, `reuse` what is there, `wait`, or `stop`.

    Of a write whose end nobody reported it is looked at `probe_url` whether it is there; else it is sent again only where the
    other side honours the key (`idempotent`); else a person is asked.
    """
    asked = _begin_of(step, body or shapes.BeginStep())
    run = await sight.run(here, run_id)
    _reports(run)
    token = f"at_{here.once}" if here.once is not None else here.layer.services.edge.new_id("at")
    looked: Looked | None = None
    while True:
        answer = await _write(here, run, _beginning(here, asked, token, looked))
        if answer.look is None:
            break
        now_us = here.now_us()
        looked = await asyncio.to_thread(outward.look, answer.look, now_us)
        run = await sight.run(here, run_id)
    return told(_begun(answer, token, run_id, here.now_us()))


def _beginning(here: Desk, asked: Begin, token: str, looked: Looked | None) -> Callable[[Tx, Row], Told]:
    edge, now_us = here.layer.services.edge, here.now_us()
    made = Made(new_id=edge.new_id, token_hash=digest(token))

    def unit(tx: Tx, run: Row) -> Told:
        return begins.begin(tx, run, asked, made=made, now_us=now_us, limits=here.layer.services.limits, looked=looked)

    return unit


def _begin_of(step: str, body: shapes.BeginStep) -> Begin:
    """The body as the transitions take it.

    Raises:
        Problem, InvalidArgument: something in it cannot be.
    """
    cost = body.cost if isinstance(body.cost, shapes.CostSent) else shapes.CostSent(usd=body.cost or 0)
    try:
        idempotent_us = honoured_us(body.idempotent)
    except ValueError as error:
        raise invalid(str(error)) from error
    if AS_WRITTEN in body.approaches or len(set(body.approaches)) < len(body.approaches):
        raise invalid(f"approaches: give each its own name, and none the first one's, {AS_WRITTEN!r}")
    return Begin(
        step=words.step_name(step), key=_key(body.key), inputs=None if body.inputs is None else canonical(body.inputs, "inputs"),
        effect=body.effect, uusd=to_micro(cost.usd), attempts=body.attempts, idempotent_us=idempotent_us,
        probe_url=None if body.probe_url is None else outward.checked(body.probe_url, "probe_url"),
        settle_us=round(body.settle_seconds * 1e6), lease_us=round(body.lease_seconds * 1e6),
        ways=tuple(Way(label=_plain(label, "approaches")) for label in body.approaches),
        resource=None if body.resource is None else _plain(body.resource, "resource"),
        callback=None if body.callback_url is None else outward.checked(body.callback_url, "callback_url"),
    )  # fmt: skip


def _key(key: str | None) -> str | None:
    return None if key is None else _plain(key, "key")


def _plain(text: str, name: str) -> str:
    if not storable(text) or not text.isprintable() or free_text(text) != text:
        raise invalid(f"{name}: use printable characters, and no credential")
    return text


def _reports(run: Row) -> None:
    if not run["external"]:
        why = f"run {run['id']} is executed by workers: its steps are not reported"
        raise Problem(409, "conflict", why)


async def _write(here: Desk, run: Row, unit: Callable[[Tx, Row], T]) -> T:
    """One transaction about a run, seen anew, for whoever may report about it.

    Raises:
        Superseded: another executor goes on with it.
        Problem: nobody has begun what is reported.
    """

    def whole(tx: Tx) -> T:
        now = sight.find_run(tx, here, run["id"])
        if not external.may_report(tx, now, here.who.token_id or here.who.id):
            raise Superseded(run["id"], "it was resumed, and another executor goes on with it")
        return unit(tx, now)

    try:
        done = await here.layer.store.write(whole, durable=True, client=run["client_id"])
    except NotBegun as error:
        raise Problem(409, "not_begun", error.why) from error
    here.layer.services.stir()
    return done


# -- what came of it ------------------------------------------------------------------------------------------------------


@api.post(
    "/runs/{run_id}/steps/{step}/extend", operation_id="extend_step", openapi_extra=_REPORT,
    responses={200: {"model": shapes.Extended}},
)  # fmt: skip
async def extend(run_id: str, step: Step, here: Here, body: shapes.ExtendStep | None = None) -> Response:
    """A step takes longer: nobody else begins it before this time is up."""
    sent = body or shapes.ExtendStep()
    run = await sight.run(here, run_id)
    _reports(run)
    now_us, lease_us = here.now_us(), round(sent.lease_seconds * 1e6)

    def unit(tx: Tx, now: Row) -> int:
        return reports.extend(tx, now, _ticket(tx, now, step, sent.attempt_token, sent.key), lease_us, now_us)

    return told({"lease_until": _time(await _write(here, run, unit))})


@api.post(
    "/runs/{run_id}/steps/{step}/complete", operation_id="complete_step", openapi_extra=_REPORT,
    responses={200: {"model": shapes.Reported}},
)  # fmt: skip
async def complete(run_id: str, step: Step, here: Here, body: shapes.CompleteStep | None = None) -> Response:
    """A step that was begun is done. The same report again is told the same.

    When the run was resumed meanwhile it is 409 `superseded`; the receipt of a write is kept all the same.
    """
    sent = body or shapes.CompleteStep()
    run = await sight.run(here, run_id)
    _reports(run)
    now_us = here.now_us()

    def whole(tx: Tx) -> reports.Kept:
        now = sight.find_run(tx, here, run_id)
        ticket = _ticket(tx, now, step, sent.attempt_token, sent.key)
        return reports.complete(tx, now, step, ticket, _result(sent), now_us)

    try:
        kept = await here.layer.store.write(whole, durable=True, client=run["client_id"])
    except NotBegun as error:
        raise Problem(409, "not_begun", error.why) from error
    here.layer.services.stir()
    if kept.superseded is not None:
        raise Problem(409, "superseded", f"run {run_id}: {kept.superseded}")
    return told(_reported(kept, step))


@api.put(
    "/runs/{run_id}/steps/{step}", operation_id="put_step", openapi_extra=_REPORT, responses={200: {"model": shapes.Reported}},
)  # fmt: skip
async def put(run_id: str, step: Step, here: Here, body: shapes.PutStep | None = None) -> Response:
    """This is done, without having been begun here: from now on it is reused."""
    sent = body or shapes.PutStep()
    run = await sight.run(here, run_id)
    _reports(run)
    asked = Begin(
        step=words.step_name(step), key=_key(sent.key), effect=sent.effect,
        inputs=None if sent.inputs is None else canonical(sent.inputs, "inputs"),
    )  # fmt: skip
    edge, now_us = here.layer.services.edge, here.now_us()
    made = Made(new_id=edge.new_id, token_hash=digest(edge.new_id("at")))
    kept = await _write(here, run, lambda tx, now: reports.put(tx, now, asked, _result(sent), made, now_us))
    return told(_reported(kept, step))


@api.post(
    "/runs/{run_id}/steps/{step}/fail", operation_id="fail_step", openapi_extra=_REPORT,
    responses={200: {"model": shapes.Failed}},
)  # fmt: skip
async def fail(run_id: str, step: Step, here: Here, body: shapes.FailStep) -> Response:
    """A step that was begun has failed: it is written down, and what is next is said.

    `retry`: begin it again, not before `retry_at`. `ask`: a person is asked; begin it again when they have answered. `stop`: end.
    """
    run = await sight.run(here, run_id)
    _reports(run)
    edge, now_us = here.layer.services.edge, here.now_us()
    made = Made(new_id=edge.new_id, token_hash=digest(edge.new_id("at")))
    error = Reported(
        message=body.error.message, type=body.error.type, status=body.error.status, retry_after_s=body.error.retry_after,
        kind=body.kind, not_done=body.not_done,
    )  # fmt: skip
    cost = Result(uusd=None if body.usd is None else to_micro(body.usd), tokens=body.tokens, approach=_key(body.approach))

    def unit(tx: Tx, now: Row) -> Told:
        return reports.fail(tx, now, step, _ticket(tx, now, step, body.attempt_token, body.key), error, made, now_us, cost)

    answer = await _write(here, run, unit)
    after = await sight.run(here, run_id)
    decision = {"run": "retry", "wait": "retry" if answer.question is None else "ask", "stop": "stop"}[answer.do]
    return told({
        "decision": decision, "reason": answer.reason, **_later(answer.retry_at_us, here.now_us()), "approach": answer.approach,
        "attempt": answer.attempt, "narrow": answer.narrow, "question": _question(answer, run_id), "run_status": after["status"],
    })  # fmt: skip


def _ticket(tx: Tx, run: Row, step: str, token: str | None, key: str | None) -> Row | None:
    """Which begin a report is about."""
    try:
        return reports.find(tx, run, step, token_hash=None if token is None else digest(token), key=key)
    except InvalidArgument as error:
        raise invalid(f"attempt_token: {error.why}") from error


def _result(sent: shapes.CompleteStep | shapes.PutStep) -> Result:
    canonical(sent.artifact, "artifact")  # refuses what no row can hold, with the path to it
    return Result(
        value=sent.artifact, summary=sent.summary, uusd=None if sent.usd is None else to_micro(sent.usd), tokens=sent.tokens,
        approach=_key(sent.approach),
    )  # fmt: skip


# -- documents --------------------------------------------------------------------------------------------------------------


def _begun(answer: Told, token: str, run_id: str, now_us: int) -> dict[str, Any]:
    return {
        "do": answer.do, "reason": answer.reason, "artifact": _value(answer.artifact), "skipped": answer.skipped,
        "inputs": _value(answer.inputs), "attempt": answer.attempt, "attempt_token": token if answer.do == "run" else None,
        "lease_until": _time(answer.lease_until_us), "approach": answer.approach, "narrow": answer.narrow,
        "idempotency_key": answer.idempotency_key, "failures": [_failure(row) for row in answer.failures],
        "question": _question(answer, run_id), **_later(answer.retry_at_us, now_us),
    }  # fmt: skip


def _failure(row: Row) -> dict[str, Any]:
    return {"n": row["n"], "approach": row["approach"] or AS_WRITTEN, "outcome": row["outcome"], "kind": row["kind"],
            "reason": row["reason"], "at": _time(row["ended_us"])}  # fmt: skip


def _reported(kept: reports.Kept, step: str) -> dict[str, Any]:
    return {"run_id": kept.run["id"], "step": step, "artifact": _value(kept.artifact), "again": kept.again,
            "run_status": kept.run["status"]}  # fmt: skip


def _question(answer: Told, run_id: str) -> dict[str, Any] | None:
    return None if answer.question is None else question_document(question_of(answer.question, run_id))


def _value(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _later(at_us: int | None, now_us: int) -> dict[str, Any]:
    """When to come back, as a time and in whole seconds."""
    return {"retry_at": _time(at_us), "retry_after_seconds": None if at_us is None else max(0, -((now_us - at_us) // 1_000_000))}


def _time(us: int | None) -> str | None:
    """A time for programs that know no microseconds: ISO 8601, UTC."""
    return None if us is None else datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
