"""The inbox, which is the home page, and one question: what is needed, what is known, what each choice does."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from stepseven.decide import _phrases as say
from stepseven.decide._card import card, raised_usd
from stepseven.decide._sheet import Meanwhile
from stepseven.errors import AlreadyAnswered, InvalidAnswer, QuestionExpired
from stepseven.model import QuestionStatus
from stepseven.server import sight
from stepseven.server.api.questions import refuse_own
from stepseven.server.pages import answering
from stepseven.server.pages.frame import form, page, router
from stepseven.server.problems import problem_of
from stepseven.server.routes import Desk
from stepseven.store.base import Row, Tx
from stepseven.store.codec import storable
from stepseven.transitions import family, incidents, objecting
from stepseven.transitions.questions import limit_unit
from stepseven.transitions.state import question_of
from stepseven.transitions.tokens import Scope

pages = router()
MOST = 300  #: questions in the list
WEEK_US = 7 * 86_400_000_000


@pages.get("/")
@pages.get("/inbox")
async def inbox(request: Request) -> Response:
    """What needs somebody, and the first of it whole."""
    wanted = request.query_params.get("q")
    return await _inbox(request, wanted)


async def _inbox(request: Request, wanted: str | None, *, sentence: str = "", status: int = 200, filled: Any = None) -> Response:
    desk: Desk = request.state.desk
    client = request.query_params.get("client") or None
    now_us = desk.now_us()

    def unit(tx: Tx) -> tuple[list[Row], dict[str, Any], Row | None]:
        params = {"clients": desk.who.sight, "client_id": client if client is None or storable(client) else "", "limit": MOST}
        rows = tx.all(tx.sql.inbox_in_sight, params)
        together = _incidents(tx, desk, rows, now_us)
        since = {"clients": desk.who.sight, "since_us": now_us - WEEK_US, "before_us": now_us - 2 * WEEK_US}
        return rows, together, tx.one(tx.sql.week_in_sight, since) if not rows else None

    rows, together, week = await desk.layer.store.read(unit)
    groups = _grouped(rows, together)
    chosen = wanted or (groups[0]["items"][0]["id"] if groups else None)
    one = await one_of(desk, chosen) if chosen is not None else None
    return await page(
        request, "inbox.html", here="inbox", status=status, title="Inbox", groups=groups, more=len(rows) >= MOST, week=week,
        one=one, wanted=wanted is not None, client=client, sentence=sentence, filled=filled or {}, action="", sign_in="",
    )  # fmt: skip


def _incidents(tx: Tx, desk: Desk, rows: list[Row], now_us: int) -> dict[str, Any]:
    """The incidents that more than one of these questions belong to, by id."""
    counts: dict[str, int] = {}
    for row in rows:
        if row["incident_id"] is not None:
            counts[row["incident_id"]] = counts.get(row["incident_id"], 0) + 1
    clients = desk.who.clients
    found = {}
    for incident_id in [i for i, n in counts.items() if n > 1][:50]:
        found[incident_id] = incidents.shown(tx, incidents.known(tx, incident_id, clients), clients, now_us)
    return found


def _grouped(rows: list[Row], together: dict[str, Any]) -> list[dict[str, Any]]:
    """The list: questions of one incident together, where its first one stands."""
    groups: list[dict[str, Any]] = []
    by_id: dict[str, dict[str, Any]] = {}
    for row in rows:
        incident = together.get(row["incident_id"] or "")
        if incident is None:
            groups.append({"incident": None, "items": [row]})
        elif row["incident_id"] in by_id:
            by_id[row["incident_id"]]["items"].append(row)
        else:
            by_id[row["incident_id"]] = {"incident": incident, "items": [row]}
            groups.append(by_id[row["incident_id"]])
    return groups


async def one_of(desk: Desk, question_id: str) -> dict[str, Any]:
    """A question in parts, with what its form needs."""
    row = await sight.question(desk, question_id)
    question = question_of(row, row["run_id"])

    def unit(tx: Tx) -> tuple[Meanwhile | None, list[dict[str, Any]]]:
        too_late = [said for said in objecting.of_run(tx, row["run_no"]) if said["question_id"] == question_id]
        if question.status is not QuestionStatus.OPEN:
            return None, too_late
        uusd, _ = family.spend(tx, row["run_no"])
        asked = [question_of(q, row["run_id"]) for q in tx.all(tx.sql.questions_of_run, {"run_no": row["run_no"]})]
        return Meanwhile(spent_usd=uusd / 1e6, limit_usd=raised_usd(asked)), too_late

    meanwhile, objections = await desk.layer.store.read(unit)
    context = json.loads(row["context"])
    approve = context.get("approve") if isinstance(context.get("approve"), dict) else None
    return {
        "row": row, "question": question, "card": card(question, now_us=desk.now_us(), meanwhile=meanwhile),
        "edits": _edits(approve), "looks_at": context.get("looks_at"), "objections": objections,
        "limit": limit_unit(row["key"]) if row["kind"] == "limit" else None, "schema": json.loads(row["schema"] or "null"),
        "who": say.who(row["client_id"]),
    }  # fmt: skip


def _edits(approve: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    """The fields of what is proposed, to be edited; what names the effect cannot be."""
    if approve is None:
        return None
    inputs = approve.get("inputs")
    if not isinstance(inputs, dict):
        return [{"name": None, "text": answering.shown_as(inputs), "fixed": False}]
    fixed = {str(path).split(".", 1)[0] for path in approve.get("fixed") or ()}
    return [{"name": name, "text": answering.shown_as(value), "fixed": name in fixed} for name, value in inputs.items()]


@pages.get("/questions/{question_id}")
async def question(request: Request, question_id: str) -> Response:
    """One question, open or not."""
    return await _inbox(request, question_id)


@pages.post("/questions/{question_id}/answer")
async def answer(request: Request, question_id: str) -> Response:
    """The answer; then what happens next."""
    desk: Desk = request.state.desk
    fields = await form(request, Scope.ANSWER)
    row = await sight.question(desk, question_id)
    refuse_own(desk.who, row)
    try:
        said = answering.answer_of(row, fields, desk.now_us())
        await desk.layer.answer(question_id, said, by=desk.who.name, note=fields.get("note", "").strip() or None)
    except (InvalidAnswer, AlreadyAnswered, QuestionExpired) as error:
        problem = problem_of(error)
        sentence = error.why if isinstance(error, InvalidAnswer) else str(error)
        return await _inbox(request, question_id, sentence=sentence, status=problem.status, filled=fields)
    return RedirectResponse(f"/runs/{row['run_id']}?answered={question_id}", 303)


@pages.post("/incidents/{incident_id}/answer")
async def answer_incident(request: Request, incident_id: str) -> Response:
    """One answer for all questions of an incident that somebody may see."""
    desk: Desk = request.state.desk
    fields = await form(request, Scope.ANSWER)
    clients = None if desk.who.clients is None else set(desk.who.clients)
    choice = fields.get("choice", "")
    waits = {"wait": {"choice": "wait", "until": "answers"}, "wait-1h": {"choice": "wait", "until": 3600}}
    said: Any = waits.get(choice, choice)
    done = await desk.layer.answer_incident(incident_id, said, by=desk.who.name, note=fields.get("note") or None, clients=clients)
    return await page(request, "answered.html", here="inbox", title="Answered", done=done, stopped=choice == "stop")
