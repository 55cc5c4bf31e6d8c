"""A fact that people are asked for, and that becomes known some other way: then nobody has to answer."""

from __future__ import annotations

import json

from stepseven.store.base import Tx


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
        tx.run(tx.sql.close_question, {"id": row["id"], "status": "withdrawn", "now": now_us})
        tx.run(tx.sql.count_questions, {"run_no": row["run_no"], "now": now_us})
        reason = f"{key} is known now: ready to go on"
        tx.run(tx.sql.wake_run, {"run_no": row["run_no"], "now": now_us, "reason": reason})
    return closed
