"""Runs: the list, one run whole, its plan; and what can be done about it."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from stepseven.decide import _phrases as say
from stepseven.decide._card import raised_usd
from stepseven.errors import StepsevenError
from stepseven.model import RunStatus
from stepseven.runtime import choosing
from stepseven.runtime.requeue import requeue
from stepseven.server import sight
from stepseven.server.documents import RunView, view
from stepseven.server.pages import timeline
from stepseven.server.pages.frame import form, page, router
from stepseven.server.problems import Problem
from stepseven.server.routes import Desk
from stepseven.store.base import Row
from stepseven.transitions.tokens import Scope

pages = router()
PAGE = 50
_INTERNAL = ("run.", "client.")
_LONGEST = 2_000  # characters of a value that is shown
_MOST_STEPS = 300


@pages.get("/runs")
async def listed(request: Request) -> Response:
    """Runs, newest first, by client, workflow and status."""
    desk: Desk = request.state.desk
    asked = {name: request.query_params.get(name, "").strip() for name in ("client", "workflow", "status", "cursor")}
    status = asked["status"] if asked["status"] in set(RunStatus) else None
    found = await sight.runs_page(
        desk, limit=PAGE, cursor=asked["cursor"] or None, client_id=asked["client"] or None, workflow=asked["workflow"] or None,
        status=status,
    )  # fmt: skip
    return await page(
        request, "runs.html", here="runs", title="Runs", runs=found, asked=asked, statuses=[s.value for s in RunStatus],
        filtered=any(asked[name] for name in ("client", "workflow", "status")),
    )  # fmt: skip


@pages.get("/runs/{run_id}")
async def one(request: Request, run_id: str) -> Response:
    """A run whole."""
    return await _run(request, run_id)


async def _run(request: Request, run_id: str, *, sentence: str = "", status: int = 200) -> Response:
    desk: Desk = request.state.desk
    row = await sight.run(desk, run_id)
    found = await view(desk.layer, run_id)
    plan = None
    if request.query_params.get("plan") is not None and not found.status.ended:
        plan = str(await desk.layer.plan(run_id))
    answered = request.query_params.get("answered")
    return await page(
        request, "run.html", here="runs", status=status, title=say.humanise(row["workflow"]), found=found, row=found.row,
        line=timeline.line(found, desk.now_us()), steps=_steps(found), tried=_tried(found), facts=_facts(found), plan=plan,
        sentence=sentence, inputs=_shown(json.loads(found.row["inputs"])), value=_shown(found.value), ended=found.status.ended,
        answered=next((q for q in found.questions if q.id == answered), None),
        limit=_limit(found),
    )  # fmt: skip


def _limit(found: RunView) -> float | None:
    """The run's limit in dollars, as a person raised it or as its questions tell it."""
    told = next((q.context["run"].get("limit_usd") for q in reversed(found.questions) if q.context.get("run")), None)
    return raised_usd(found.questions) or told


def _steps(found: RunView) -> list[dict[str, Any]]:
    """What the steps produced, newest generation of each, in order."""
    latest: dict[tuple[str, str, str], Row] = {}
    for step in found.steps:
        if not step["name"].startswith(_INTERNAL):
            latest[step["branch"], step["name"], step["key"]] = step
    rows = list(latest.values())[-_MOST_STEPS:]
    return [
        {"row": row, "result": _text(row["result"]), "took": ((row["ended_us"] or row["started_us"]) - row["started_us"]) / 1e6}
        for row in rows
    ]


def _text(text: str | None) -> str | None:
    if text is None or text == "null":
        return None
    try:
        return _shown(json.loads(text))
    except ValueError:
        return text[:_LONGEST]


def _shown(value: Any) -> str | None:
    """A value for people: a text as it is, all else as JSON; cut where it is long."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _tried(found: RunView) -> list[Row]:
    return [a for a in found.attempts if a["outcome"] in ("failed", "unknown", "deferred")][-100:]


def _facts(found: RunView) -> list[dict[str, Any]]:
    """The facts it read, with the versions it read."""
    read = {}
    for step in found.steps:
        if step["name"] == "client.get" and step["result"] is not None:
            kept = json.loads(step["result"])
            if isinstance(kept, dict) and "value" in kept:
                read[step["key"]] = {"key": step["key"], "value": _shown(kept["value"]), "version": kept.get("version")}
    return list(read.values())


@pages.post("/runs/{run_id}/resume")
async def resume(request: Request, run_id: str) -> Response:
    """Let it go on."""
    desk: Desk = request.state.desk
    await form(request, Scope.OPERATE)
    row = await sight.run(desk, run_id)
    try:
        if row["external"]:  # who goes on needs a token, and a page has nobody to give it to
            raise Problem(
                409, "conflict", f"run {run_id} is executed elsewhere: its program goes on by itself, or resumes it over HTTP"
            )
        nothing = choosing.wanted(run_id, approach={}, skip={}, rerun=[], drift=None, by=desk.who.name)
        await requeue(desk.layer.services, row, nothing)
    except StepsevenError as error:
        return await _run(request, run_id, sentence=str(error), status=409)
    return RedirectResponse(f"/runs/{run_id}", 303)


@pages.post("/runs/{run_id}/cancel")
async def cancel(request: Request, run_id: str) -> Response:
    """Stop it."""
    desk: Desk = request.state.desk
    fields = await form(request, Scope.OPERATE)
    row = await sight.run(desk, run_id)
    if RunStatus(row["status"]).ended:
        raise Problem(409, "conflict", f"run {run_id} is {row['status']} already: there is nothing to stop")
    reason = fields.get("reason", "").strip() or "stopped on its page"
    await desk.layer.cancel(run_id, reason=reason, by=desk.who.name)
    return RedirectResponse(f"/runs/{run_id}", 303)
