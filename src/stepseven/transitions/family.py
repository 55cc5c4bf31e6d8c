"""Runs that were started by runs: which there are, and what they have cost. Reads only."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from stepseven.errors import UnknownRun
from stepseven.model import RunStatus
from stepseven.store.base import Row, Tx
from stepseven.store.codec import storable
from stepseven.store.statements import SEQ_BITS, SEQ_MASK

START = "run.start"  # name of the record that holds a child's end, and with it what the child has cost


def children(tx: Tx, run_no: int) -> list[Row]:
    """The runs that a run has started, in that order."""
    return tx.all(tx.sql.children, {"run_no": run_no})


def replaced(tx: Tx, run: Row) -> list[Row]:
    """The earlier starts of a child that, or whose parent, was started anew: it shares their receipts, and answers for them."""
    if run["parent_no"] is None or run["root_no"] is None:
        return []
    parent = tx.one(tx.sql.run_by_no, {"no": run["parent_no"]})
    parents = [] if parent is None else [parent, *replaced(tx, parent)]
    same = [row for above in parents for row in _starts(tx, above["no"], run["root_no"])]
    return [row for row in same if row["no"] < run["no"]]


def replacing(tx: Tx, run: Row) -> Row | None:
    """The newest start of a child that was started anew, or whose parent was; ``None``: that is this one."""
    parent = None if run["parent_no"] is None else tx.one(tx.sql.run_by_no, {"no": run["parent_no"]})
    newest: Row | None = None
    while parent is not None:
        same = _starts(tx, parent["no"], run["root_no"] or run["no"])
        newest = max((row for row in (*same, newest) if row is not None), key=lambda row: row["no"], default=None)
        parent = replacing(tx, parent)
    return newest if newest is not None and newest["no"] > run["no"] else None


def _starts(tx: Tx, parent_no: int, root_no: int) -> list[Row]:
    """The starts of one child under one parent, oldest first."""
    return tx.all(tx.sql.starts, {"parent_no": parent_no, "root_no": root_no})


def live(tx: Tx, run_no: int) -> list[Row]:
    """Those of them that have not ended."""
    return [row for row in children(tx, run_no) if not RunStatus(row["status"]).ended]


def live_descendants(tx: Tx, run_no: int) -> list[Row]:
    """The runs below a run, children of children too, that have not ended."""
    return [row for row in tx.all(tx.sql.descendants, {"run_no": run_no}) if not RunStatus(row["status"]).ended]


def spend(tx: Tx, run_no: int) -> tuple[int, int]:
    """What a run has cost with everything it started: micro-USD and tokens. Each child counts once."""
    row = tx.one(tx.sql.spend, {"run_no": run_no, **_range(run_no)})
    uusd, tokens = (0, 0) if row is None else (int(row["uusd"] or 0), int(row["tokens"] or 0))
    for more in kin(tx, run_no).values():
        uusd, tokens = uusd + more[0], tokens + more[1]
    return uusd, tokens


def kin(tx: Tx, run_no: int) -> dict[int, tuple[int, int]]:
    """What each child has cost whose end is not on record yet: the run's own records do not hold it."""
    return {row["no"]: spend(tx, row["no"]) for row in tx.all(tx.sql.unrecorded_children, {"run_no": run_no, **_range(run_no)})}


def checkpoint(tx: Tx, run_id: str) -> dict[str, Any]:
    """All that is known of a run. What its children cost counts, on record or not; the view knows what is on record.

    Raises:
        UnknownRun: there is none with this id.
    """
    if not storable(run_id):
        raise UnknownRun(run_id)
    run, row = tx.one(tx.sql.run_by_id, {"id": run_id}), tx.one(tx.sql.checkpoint, {"id": run_id})
    if run is None or row is None:
        raise UnknownRun(run_id)
    told = document(tx, run["no"], row["document"])
    if kin(tx, run["no"]):
        uusd, tokens = spend(tx, run["no"])
        told["spend"] = {"usd": uusd / 1e6, "tokens": tokens}
    return told


def document(tx: Tx, run_no: int, text: str) -> dict[str, Any]:
    """A checkpoint as the view has it, but for items that a map has no more: they are done, and none of its total."""
    told: dict[str, Any] = json.loads(text)
    made = told.get("artifacts")
    maps = {n: m for n, m in made.items() if isinstance(m, dict) and "of" in m} if isinstance(made, dict) else {}
    gone: Counter[str] = Counter()
    for row in tx.all(tx.sql.maps, _range(run_no)) if maps else ():
        gone.update(json.loads(row["result"]).get("gone", {}))
    for name, entry in maps.items():
        entry["done"] = max(0, min(entry["done"] - gone[name], entry["of"]))
        if gone[name] and entry["done"] < entry["of"] and name in told["steps_complete"]:
            told["steps_complete"].remove(name)
    return told


def _range(run_no: int) -> dict[str, int]:
    """The ids of a run's records, as ``state.steps_range`` has them; that module loads by this one."""
    return {"low": run_no << SEQ_BITS, "high": (run_no << SEQ_BITS) | SEQ_MASK}
