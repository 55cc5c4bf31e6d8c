"""What the server does besides answering: it brings answers to whoever asked, and sees executors that fell silent."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from stepseven.errors import InvalidArgument, StepsevenError
from stepseven.layer import Layer
from stepseven.server import outward
from stepseven.server.documents import question_document
from stepseven.store.base import Tx
from stepseven.transitions import callbacks, external
from stepseven.transitions.callbacks import Errand
from stepseven.transitions.state import question_of

LOOK_S = 2.0  #: how often it is looked for answers that have to be brought
SWEEP_EVERY = 8  # every so many looks it is looked for executors that fell silent
_GONE = 410
_log = logging.getLogger("stepseven.server")


async def run(layer: Layer, *, look_s: float = LOOK_S) -> None:
    """Until it is cancelled."""
    n = 0
    while True:
        try:
            while await bring(layer):
                pass
            if n % SWEEP_EVERY == 0:
                now_us = layer.services.edge.now_us()
                await layer.store.write(lambda tx, now=now_us: external.sweep(tx, now), durable=False, client=None)  # type: ignore[misc]
        except StepsevenError as error:
            _log.warning("answers could not be brought: %s", error)
        n += 1
        await asyncio.sleep(look_s)


async def bring(layer: Layer) -> int:
    """Bring what is due, each to where it was asked for; how many were tried."""
    now_us = layer.services.edge.now_us()

    def unit(tx: Tx) -> list[Errand]:
        return callbacks.take(tx, now_us)

    found = await layer.store.read(lambda tx: bool(tx.all(tx.sql.due_callbacks, {"now": now_us, "limit": 1})))
    due = await layer.store.write(unit, durable=True, client=None) if found else []
    await asyncio.gather(*(_bring(layer, errand) for errand in due))
    return len(due)


async def _bring(layer: Layer, errand: Errand) -> None:
    row = errand.question
    body = json.dumps(document(errand), ensure_ascii=False, default=str).encode()
    why, final = None, False
    try:
        outward.checked(errand.url, "callback_url")  # the list may be shorter by now
        status = await asyncio.to_thread(outward.post, errand.url, body, idempotency_key=f"{row['id']}:{row['status']}")
        if not 200 <= status < 300:  # noqa: PLR2004 - HTTP's
            why, final = f"it answered {status}", status == _GONE
    except (OSError, ValueError, InvalidArgument) as error:
        why = str(error)

    def unit(tx: Tx) -> None:
        now_us = layer.services.edge.now_us()
        if why is None:
            callbacks.brought(tx, errand, now_us)
        else:
            callbacks.failed(tx, errand, why, now_us, final=final)

    await layer.store.write(unit, durable=True, client=None)


def document(errand: Errand) -> dict[str, Any]:
    """What is brought: what became of the question, and the question as it is."""
    row = errand.question
    question = question_document(question_of(row, row["run_id"]))
    return {"event": f"question.{row['status']}", "run_id": row["run_id"], "question": question}
