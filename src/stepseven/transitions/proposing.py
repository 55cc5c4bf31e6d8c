"""A proposal that another run has overtaken: the effect is there now, so nobody has to decide about it any more."""

from __future__ import annotations

import json

from stepseven.store.base import Row, Tx
from stepseven.transitions import telling


def overtaken(tx: Tx, effect: Row, now_us: int) -> None:
    """Take back what other runs propose under the name of an effect with ``scope="client"`` that was just done; wake them."""
    same = {"scope": effect["scope"], "name": effect["name"], "key": effect["key"]}
    for asked in tx.all(tx.sql.open_proposals, {"client_id": effect["client_id"]}):
        told = json.loads(asked["context"]).get("approve") or {}
        if asked["run_no"] == effect["run_no"] or told.get("effect") != same:
            continue
        telling.take_back(tx, asked["id"], asked["run_no"], reason="another run did it: ready to go on", now_us=now_us)
