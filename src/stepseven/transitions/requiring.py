"""A fact that people are asked for, and that becomes known some other way: then nobody has to answer."""

from __future__ import annotations

import json

from stepseven.store.base import Tx
from stepseven.transitions import telling


def withdraw(tx: Tx, client_id: str, key: str, now_us: int) -> list[str]:
    """Close the open questions for this fact, in every run of the client, and let those runs go on.

    Returns:
        The ids of the questions.
    """
    closed = []
    for row in tx.all(tx.sql.open_required, {"client_id": client_id}):
        if row["remember"] is None or json.loads(row["remember"]).get("key") != key:
            continue
        closed.append(str(row["id"]))
        telling.take_back(tx, row["id"], row["run_no"], reason=f"{key} is known now: ready to go on", now_us=now_us)
    return closed
