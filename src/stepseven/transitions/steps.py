"""Recording what a step found, and what went wrong on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.store.base import Params, Row, Tx
from stepseven.store.codec import free_text
from stepseven.transitions.runs import guard, lost
from stepseven.transitions.state import Hold, Record, steps_range


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A result that is kept once, by its hash."""

    hash: str
    size: int
    body: str | None
    location: str | None
    again: Callable[[], object] | None = None  # writes the file anew
    anew: bool = False  # what is kept under this hash is damaged


def append(
    tx: Tx,
    hold: Hold,
    record: Record,
    *,
    now_us: int,
    artifact: Artifact | None = None,
    begun: Params | None = None,
) -> None:
    """Record a step's end. *begun*: the open begin it closes.

    Raises:
        Superseded: the run is no longer ours; nothing was written.
    """
    if tx.run(*record.insert(tx.sql, hold.values())) != 1 and not _is_mine(tx, hold, record):
        raise lost(tx, hold)
    if artifact is not None:  # after the fence: nothing is written for a record that is refused
        _keep(tx, artifact, now_us)
    if begun is not None:
        tx.run(tx.sql.drop_attempt, begun)


def _keep(tx: Tx, artifact: Artifact, now_us: int) -> None:
    """Bring the row of a result up to date. Whoever removes a file removes its row first, so from here on both stay."""
    row = {"hash": artifact.hash, "size": artifact.size, "body": artifact.body, "location": artifact.location, "now": now_us}
    if artifact.anew and tx.run(tx.sql.mend_artifact, {name: row[name] for name in ("hash", "size", "body", "location")}):
        return
    if artifact.location is not None:
        if tx.run(tx.sql.keep_artifact, {"hash": artifact.hash, "size": artifact.size}):
            return
        if artifact.again is not None:  # somebody has just removed the same content, when nobody named it
            artifact.again()
    tx.run(tx.sql.insert_artifact, row)


def _is_mine(tx: Tx, hold: Hold, record: Record) -> bool:
    """Whether the row is there because our own first write's answer was lost."""
    if tx.one(tx.sql.guard_run, hold.keys()) is None:
        return False
    low = steps_range(hold.run_no)["low"] + record.seq
    rows = tx.all(tx.sql.steps, {"low": low, "high": low})
    return bool(rows) and rows[0]["key"] == record.key and rows[0]["result"] == record.result


def begin_attempt(tx: Tx, hold: Hold, row: Params, now_us: int) -> None:
    """Write down that a try begins, before it does.

    Raises:
        Superseded: the run is no longer ours.
    """
    if tx.run(tx.sql.begin_attempt, {**row, **hold.keys(), "now": now_us}) != 1:
        raise lost(tx, hold)


def end_attempt(tx: Tx, hold: Hold, row: dict[str, Any], now_us: int) -> Row:
    """Write down how a try ended that did not simply succeed.

    Raises:
        Superseded: the run is no longer ours.
    """
    guard(tx, hold)
    shown = {name: None if row[name] is None else free_text(row[name], 300) for name in ("signature", "resource")}
    row = {**row, **shown}  # both may hold what the author declared or an exception said
    tx.run(tx.sql.end_attempt, {**row, "run_no": hold.run_no, "now": now_us})
    return {**row, "run_no": hold.run_no, "ended_us": now_us}


def late_cost(tx: Tx, run_no: int, row: dict[str, Any], claim: str, now_us: int) -> None:
    """Write down what a send has cost that ended when its run was no longer its sender's. Without a fence: it was spent.

    Args:
        tx: the transaction.
        run_no: the run it was sent for.
        row: the try, with ``usd`` and ``tokens``. Its number is chosen here.
        claim: which send it was, as the try's details name it: whoever took over may have noted it already.
        now_us: the time.
    """
    mine = {"run_no": run_no, "branch": row["branch"], "name": row["name"], "key": row["key"]}
    rows = [r for r in tx.all(tx.sql.attempts, {"run_no": run_no}) if all(r[c] == mine[c] for c in ("branch", "name", "key"))]
    noted = next((r for r in rows if json.loads(r["trace"] or "{}").get("claim") == claim), None)
    if noted is not None:
        spent = {c: noted[c] if row[c] is None else row[c] for c in ("usd", "tokens")}
        tx.run(tx.sql.end_attempt, {**dict(noted), **mine, **spent, "now": noted["ended_us"]})
        return
    # Below the others: the run's owner counts on from the last one that it knows.
    n = min([0, *(r["n"] for r in rows)]) - 1
    tx.run(tx.sql.end_attempt, {**row, **mine, "n": n, "outcome": "interrupted", "now": now_us})


def update_map(tx: Tx, hold: Hold, record: Record, now_us: int) -> None:
    """Bring a map's count up to date.

    Raises:
        Superseded: the run is no longer ours.
    """
    done = tx.run(
        tx.sql.finish_map, {**hold.keys(), "id": record.id, "state": record.state, "result": record.result, "now": now_us}
    )
    if done != 1:
        raise lost(tx, hold)
