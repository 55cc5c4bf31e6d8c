"""``GET /v1/runs/{run}/events``: what becomes of a run, as it happens, as server-sent events.

``step`` events are the run's records in their order; their id is the record's ``seq``, so a reader that comes back with
``Last-Event-ID`` misses none and sees none twice. ``run`` and ``question`` events are states, told at the beginning and whenever
they change: they have no id, and the last one of each counts. ``end`` is the last event.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.model import RunStatus
from stepseven.server.documents import question_document
from stepseven.server.routes import Desk
from stepseven.store.base import Row, Tx
from stepseven.store.statements import SEQ_BITS, SEQ_MASK
from stepseven.transitions.state import question_of, steps_range

LOOK_S = 0.5  #: how often is looked
ALIVE_S = 15.0  #: after so long without an event a comment goes out, so that nothing in between takes the line for dead
CHECK_S = 5.0  #: how often is looked whether the token still holds
PAGE = 500  #: records in one look
MOST_STREAMS = 200  #: at once, in this process
MEDIA_TYPE = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What this reader has been told: the last record, the run's state, its questions."""

    seq: int
    state: dict[str, Any] | None = None
    questions: dict[str, str] | None = None


def since(last_event_id: str | None) -> int:
    """The record after which a reader goes on; 0: from the first one."""
    told = last_event_id or ""
    return min(int(told), SEQ_MASK) if told.isascii() and told.isdigit() and len(told) <= 18 else 0  # noqa: PLR2004 - below 2**63


async def events(desk: Desk, run: Row, told: Told) -> AsyncIterator[bytes]:
    """The stream, until the run has ended, the reader leaves, its token holds no longer, or the server stops."""
    edge, stopping = desk.layer.services.edge, desk.server.stopping
    alive = checked = edge.monotonic()
    yield b"retry: 2000\n\n"
    while True:
        found, over, told = await desk.layer.store.read(partial(_look, run=run, told=told))
        for each in found:
            yield each
        now = edge.monotonic()
        alive = now if found else alive
        if over:
            yield _event("end", {"run_id": run["id"]})
            return
        if now - alive >= ALIVE_S:
            yield b": here\n\n"
            alive = now
        if now - checked >= CHECK_S:
            checked = now
            if not await desk.server.auth.again(desk.who):
                return
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await stopping.wait()
                return


def _look(tx: Tx, *, run: Row, told: Told) -> tuple[list[bytes], bool, Told]:
    """What is new since then, whether nothing more comes, and what has been told with that."""
    pulse = tx.one(tx.sql.run_pulse, {"run_no": run["no"]})
    if pulse is None:
        return [], True, told
    low = (run["no"] << SEQ_BITS) + told.seq + 1
    rows = tx.all(tx.sql.steps_after, {**steps_range(run["no"]), "low": low, "limit": PAGE})
    made = [_event("step", _step(row), row["id"] & SEQ_MASK) for row in rows]
    state = {"run_id": run["id"], "client_id": run["client_id"], "workflow": run["workflow"], **pulse}
    questions = told.questions or {}
    if state != told.state:
        asked, questions = _questions(tx, run, questions)
        made += [*asked, _event("run", state)]
    seq = rows[-1]["id"] & SEQ_MASK if rows else told.seq
    over = RunStatus(pulse["status"]).ended and len(rows) < PAGE
    return made, over, Told(seq=seq, state=state, questions=questions)


def _questions(tx: Tx, run: Row, before: dict[str, str]) -> tuple[list[bytes], dict[str, str]]:
    """Those that are open, and those of them that have been answered since; and how each stands now."""
    rows = [row for row in tx.all(tx.sql.questions_of_run, {"run_no": run["no"]}) if row["folded_into"] is None]
    known = [row for row in rows if row["status"] == "open" or row["id"] in before]
    news = [row for row in known if before.get(row["id"]) != row["status"]]
    made = [_event("question", question_document(question_of(row, run["id"]))) for row in news]
    return made, {row["id"]: row["status"] for row in known}


def _step(row: Row) -> dict[str, Any]:
    return {
        "seq": row["id"] & SEQ_MASK, "branch": row["branch"], "step": row["name"], "generation": row["generation"],
        "state": row["state"], "effect": row["effect"], "summary": row["summary"], "approach": row["approach"], "why": row["why"],
        "usd": None if row["usd"] is None else row["usd"] / 1e6, "tokens": row["tokens"], "started_us": row["started_us"],
        "ended_us": row["ended_us"],
    }  # fmt: skip


def _event(name: str, document: dict[str, Any], seq: int | None = None) -> bytes:
    head = f"event: {name}\n" if seq is None else f"event: {name}\nid: {seq}\n"
    return f"{head}data: {json.dumps(document, ensure_ascii=False, default=str)}\n\n".encode()
