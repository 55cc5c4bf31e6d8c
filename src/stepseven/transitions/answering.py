"""Which run answers for what another did: a parent for its children that are done, a new start for the earlier ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stepseven.model import RunStatus
from stepseven.store.base import Row, Tx
from stepseven.transitions.family import children, replaced, replacing

BADLY = (RunStatus.FAILED, RunStatus.CANCELLED)


def covered(tx: Tx, run: Row) -> list[Row]:
    """The runs whose effects a badly ended run answers for: itself, first; its earlier starts; their children that are done.

    A child that ended badly answers for itself and what is below it.
    """
    own = [run, *replaced(tx, run)]
    newest: dict[int, Row] = {}  # of each child its last start, which answers for the earlier ones
    for child in (child for each in own for child in children(tx, each["no"])):
        root = child["root_no"] or child["no"]
        if root not in newest or newest[root]["no"] < child["no"]:
            newest[root] = child
    below = [row for child in newest.values() if child["status"] == RunStatus.DONE for row in covered(tx, child)]
    return list({row["no"]: row for row in (*own, *below)}.values())


def asker(tx: Tx, run: Row) -> Row | None:
    """The run at which a person is asked about what *run* did; ``None``: nobody is, it is wanted or not known yet."""
    at: Row | None = run
    while at is not None:
        at = replacing(tx, at) or at
        if at["status"] in BADLY:
            return tx.one(tx.sql.run_by_no, {"no": at["no"]})
        if at["status"] != RunStatus.DONE or at["parent_no"] is None:
            return None
        at = tx.one(tx.sql.run_by_no, {"no": at["parent_no"]})
    return None


def builders(tx: Tx, mine: Sequence[Row], since_us: int) -> list[str]:
    """The ids of runs that share receipts of *mine* and may build on them, oldest first: forks that live, or are done.

    Args:
        tx: the transaction.
        mine: the runs whose effects they are.
        since_us: when the first of these was done; who had ended by then did not build on it.
    """
    numbers = {row["no"] for row in mine}
    found: dict[int, str] = {}
    for root in dict.fromkeys(row["root_no"] or row["no"] for row in mine):
        for row in tx.all(tx.sql.shares_root, {"root_no": root}):
            if row["no"] not in numbers:
                outermost = _needed_by(tx, row, numbers, since_us)
                if outermost is not None:
                    found[outermost["no"]] = outermost["id"]
    return [found[no] for no in sorted(found)]


def _needed_by(tx: Tx, run: Row, without: Collection[int], since_us: int) -> Row | None:
    """The outermost run that *run* works for; ``None``: one of them ended badly, or before, and needs nothing of it."""
    while True:
        if run["status"] in BADLY or (run["ended_us"] is not None and run["ended_us"] < since_us):
            return None
        above = None if run["parent_no"] in without else tx.one(tx.sql.run_by_no, {"no": run["parent_no"]})
        if above is None:
            return run
        run = above
