"""Clients, one by one and at a glance: what is known, what runs, what was decided; the board of all of them."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stepseven.decide import _phrases as say
from stepseven.server import sight
from stepseven.server.pages.frame import page, router, said_of
from stepseven.server.pages.runs import _shown
from stepseven.server.problems import not_found
from stepseven.server.routes import Desk
from stepseven.store.base import Row, Tx
from stepseven.store.codec import storable
from stepseven.transitions import clients
from stepseven.transitions.clients import pause_words

pages = router()
MOST = 500
CELLS = 4_000


@pages.get("/clients")
async def listed(request: Request) -> Response:
    """All clients."""
    desk: Desk = request.state.desk
    after = request.query_params.get("after", "")
    params = {"clients": desk.who.sight, "after": after if storable(after) else "", "limit": MOST + 1}
    rows = await desk.layer.store.read(lambda tx: tx.all(tx.sql.clients_in_sight, params))
    more = rows[MOST - 1]["id"] if len(rows) > MOST else None
    return await page(request, "clients.html", here="clients", title="Clients", clients=rows[:MOST], more=more)


@pages.get("/clients/{client_id}")
async def one(request: Request, client_id: str) -> Response:
    """What is known about one."""
    desk: Desk = request.state.desk
    now_us = desk.now_us()
    sight.client(desk, client_id)

    def unit(tx: Tx) -> tuple[Row, list[Any], list[Row], list[Row]]:
        row = tx.one(tx.sql.client, {"id": client_id}) if storable(client_id) else None
        if row is None:
            raise not_found("client", client_id)
        history = tx.all(tx.sql.facts_of_client, {"client_id": client_id})
        decided = tx.all(tx.sql.decisions_of_client, {"client_id": client_id, "limit": 50})
        return row, clients.all_standing(tx, client_id, now_us), history, decided

    row, facts, history, decided = await desk.layer.store.read(unit)
    older: dict[str, list[Row]] = {}
    for version in history:
        older.setdefault(version["key"], []).append(version)
    runs = await sight.runs_page(desk, limit=30, cursor=None, client_id=client_id, workflow=None, status=None)
    return await page(
        request, "client.html", here="clients", title=say.who(client_id), row=row, runs=runs,
        decided=[{**dict(q), "said": said_of(json.loads(q["answer"]))} for q in decided],
        paused=pause_words(row) if row["status"] == "paused" else None,
        facts=[{"fact": fact, "shown": _shown(fact.value), "older": older.get(fact.key, [])[:-1][-20:]} for fact in facts],
    )  # fmt: skip


@pages.get("/board")
async def board(request: Request) -> Response:
    """Clients × workflows: when the last good run was, and if all is not well, why."""
    desk: Desk = request.state.desk
    params = {"clients": desk.who.sight, "limit": CELLS}
    rows = await desk.layer.store.read(lambda tx: tx.all(tx.sql.board_in_sight, params))
    workflows = sorted({row["workflow"] for row in rows})
    cells: dict[str, dict[str, Row]] = {}
    for row in rows:
        cells.setdefault(row["client_id"], {})[row["workflow"]] = row
    return await page(
        request, "board.html", here="board", title="Board", workflows=workflows, cells=cells, more=len(rows) >= CELLS
    )


@pages.get("/schedules")
async def schedules(request: Request) -> Response:
    """The place for schedules."""
    sentence = "Runs at set times will stand here: the next five slots in your zone, and those that were skipped, with why."
    until, command = "Until then a cron job starts a run:", "stepseven start reports:weekly --client acme"
    return await _place(request, "Schedules", sentence, until, command)


@pages.get("/rules")
async def rules(request: Request) -> Response:
    """The place for standing answers."""
    sentence = "Standing answers will stand here: who gave them, how often they were used, and a button that takes each back."
    until = "Until then an answer can be kept as a fact, so that it is not asked again:"
    return await _place(request, "Rules", sentence, until, 'await run.ask("What is the discount?", remember="discount")')


@pages.get("/review")
async def review(request: Request) -> Response:
    """The place for the week's failed runs as a set."""
    sentence = "The week's failed and escalated runs will stand here as a set, so that a class of failures disappears."
    return await _place(request, "Review", sentence, "Until then they can be listed:", "stepseven runs --status failed")


async def _place(request: Request, title: str, sentence: str, until: str, command: str) -> Response:
    """A page whose work comes with a later release: what will stand there, and what does it until then."""
    return await page(request, "place.html", here=title.lower(), title=title, sentence=sentence, until=until, command=command)
