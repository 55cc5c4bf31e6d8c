"""Runs that are ready, and those of them that no live worker takes: found with one look, and with the reason. Changes nothing."""

from __future__ import annotations

from collections.abc import Container

from stepseven._dataclass import dataclass
from stepseven.decide import sources
from stepseven.decide.orphans import Offer, left_by, started_by, unknown_to_all
from stepseven.store.base import Row, Tx
from stepseven.transitions import clients
from stepseven.transitions.offering import UNDO
from stepseven.transitions.runs import LEASE_US, is_gone
from stepseven.transitions.undoing import to_undo

PAGE = 1000  # runs that are read at once
_ENDING = ("cancelling", "failing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A run that a worker could execute now, and nobody does.

    Attributes:
        run_id, client_id, workflow, status: of its row.
        since_us: since when.
        orphaned: why no live worker takes it; ``None``: one does.
    """

    run_id: str
    client_id: str
    workflow: str
    status: str
    since_us: int
    orphaned: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Every worker that has a row.

    Attributes:
        rows: by id.
        offers: by id, what each takes runs of.
        dead: those whose process is certainly no more.
    """

    rows: dict[str, Row]
    offers: dict[str, Offer]
    dead: Container[str]

    def alive(self, owner: str) -> bool:
        """Whether a run's owner may still execute it."""
        return owner in self.offers and not self.offers[owner].gone


def workers(tx: Tx, now_us: int, dead: Container[str]) -> Workers:
    """Who is there. *dead*: those that are proven dead, as seen from here."""
    rows = {row["id"]: row for row in tx.all(tx.sql.workers, {"now": now_us})}
    offers = {
        id_: Offer(
            who=f"process {row['pid']} on {row['host']}", silent_us=row["silent_us"], gone=is_gone(row, dead),
            workflows=frozenset(sources.parse(row["modules"])),
        )
        for id_, row in rows.items()
    }  # fmt: skip
    return Workers(rows=rows, offers=offers, dead=dead)


def ready(tx: Tx, now_us: int, found: Workers) -> list[Ready]:
    """Every run that is ready, oldest first."""
    made: list[Ready] = []
    after = 0
    while True:
        rows = tx.all(tx.sql.ready_runs, {"now": now_us, "after": after, "limit": PAGE})
        made += [one for row in rows if (one := _ready(tx, row, now_us, found)) is not None]
        if len(rows) < PAGE:
            return made
        after = rows[-1]["no"]


def of_run(tx: Tx, run: Row, now_us: int, found: Workers) -> Ready | None:
    """The same of one run that has not ended; ``None``: it is not ready, or it is executed."""
    due = run["owner"] is not None or run["status"] == "queued"
    if run["status"] == "waiting" and run["wake_us"] is not None:
        due = due or run["wake_us"] <= now_us
    held_up = run["status"] not in _ENDING and clients.paused(tx, run["client_id"]) is not None
    return _ready(tx, run, now_us, found) if due and not held_up and not run["external"] else None


def _ready(tx: Tx, run: Row, now_us: int, found: Workers) -> Ready | None:
    owner = run["owner"]
    if owner is not None and found.alive(owner):
        return None
    reason = unknown_to_all(_needs(tx, run), list(found.offers.values()))
    silent_us = found.offers[owner].silent_us if owner in found.offers else None
    if owner is not None and reason is not None:
        left = left_by(found.offers.get(owner), owner, proven=owner in found.dead, lease_us=LEASE_US)
        reason = f"{left}, and {reason}"
    if reason is not None and (parent := _parent(tx, run, found)) is not None:
        reason = started_by(reason, parent)
    since_us = run["updated_us"] if silent_us is None else now_us - silent_us
    if owner is None and run["status"] == "waiting" and run["wake_us"] is not None:
        since_us = run["wake_us"]
    return Ready(
        run_id=run["id"], client_id=run["client_id"], workflow=run["workflow"], status=run["status"], since_us=since_us,
        orphaned=reason,
    )  # fmt: skip


def _parent(tx: Tx, run: Row, found: Workers) -> str | None:
    """The id of the run that started it, and waits for it, where a worker knows that one's code; ``None``: there is none."""
    whole = tx.one(tx.sql.run_by_no, {"no": run["no"]})
    above = None if whole is None or whole["parent_no"] is None else tx.one(tx.sql.run_by_no, {"no": whole["parent_no"]})
    if above is None or above["ended_us"] is not None:
        return None
    return str(above["id"]) if unknown_to_all({above["workflow"]}, list(found.offers.values())) is None else None


def _needs(tx: Tx, run: Row) -> set[str]:
    """What takes back another run's effects is for whoever has that run's code."""
    if run["workflow"] != UNDO:
        return {run["workflow"]}
    numbers = {row["run_no"] for row in to_undo(tx, run["no"])}
    rows = [tx.one(tx.sql.run_by_no, {"no": no}) for no in numbers]
    return {row["workflow"] for row in rows if row is not None} or {UNDO}
