"""A proposal that another run has overtaken: the effect is there now, so nobody has to decide about it any more."""

from __future__ import annotations

import json

from stepseven.store.base import Row, Tx


def overtaken(tx: Tx, effect: Row, now_us: int) -> None:
    """Take back what other runs propose under the name of an effect with ``scope="client"`` that was just done; wake them."""
    same = {"scope": effect["scope"], "name": effect["name"], "key": effect["key"]}
    for asked in tx.all(tx.sql.open_proposals, {"client_id": effect["client_id"]}):
        told = json.loads(asked["context"]).get("approve") or {}
        if asked["run_no"] == effect["run_no"] or told.get("effect") != same:
            continue
        tx.run(tx.sql.close_question, {"id": asked["id"], "status": "withdrawn", "now": now_us})
        tx.run(tx.sql.count_questions, {"run_no": asked["run_no"], "now": now_us})
        tx.run(tx.sql.wake_run, {"run_no": asked["run_no"], "now": now_us, "reason": "another run did it: ready to go on"})
