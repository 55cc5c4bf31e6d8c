"""What a worker may take, and taking it: many runs in one transaction. The oldest first, each fenced as if taken alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace

from stepseven._dataclass import dataclass
from stepseven.decide import sources
from stepseven.store.base import Row, Tx
from stepseven.transitions import runs
from stepseven.transitions.codes import Has
from stepseven.transitions.runs import ALONE_AT, POISON_AFTER, Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanting:
    """What a worker would take.

    Attributes:
        worker: its id.
        digests: the workflows it can execute, and the digest of its source of each.
        has: of those whose source was read, what it has.
        gone: whether another worker's row says that nobody works there any more.
        skip: numbers of runs that are not to be looked at now.
    """

    worker: str
    digests: Mapping[str, str]
    gone: Callable[[Row], bool]
    has: Mapping[str, Has] = field(default_factory=dict)
    skip: Collection[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How the workers stand: ``known`` are the workflows to be looked at, ``dead`` the owners whose runs are nobody's."""

    known: tuple[str, ...]
    dead: tuple[str, ...]

    def params(self, w: Wanting, now_us: int) -> dict[str, object]:
        """What the statements take."""
        skip = json.dumps([str(no) for no in w.skip])
        return {"workflows": json.dumps(self.known), "dead": json.dumps(self.dead), "skip": skip, "now": now_us}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What a look found: whether anything is due now, and when the next timer is."""

    due: bool
    next_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What was taken.

    Attributes:
        taken: each with a hold.
        alone: the one that was taken is to be executed while nothing else is in memory.
        suspect: such a run is due, and was left because something is.
    """

    taken: tuple[Taken, ...] = ()
    alone: bool = False
    suspect: bool = False


def standing(tx: Tx, w: Wanting, now_us: int) -> Standing:
    """Who lives, who does not, and what is left to those with newer code."""
    rows = tx.all(tx.sql.workers, {"now": now_us})
    others = [row for row in rows if row["id"] != w.worker]
    gone = {row["id"] for row in others if w.gone(row)}
    living = [row["modules"] for row in others if row["id"] not in gone]
    mine = next((sources.parse(row["modules"]) for row in rows if row["id"] == w.worker), {})
    older = sources.outdated(mine, living)
    vanished = [row["id"] for row in tx.all(tx.sql.vanished, {}) if row["id"] != w.worker]
    return Standing(known=tuple(sorted(set(w.digests) - older)), dead=(*sorted(gone), *vanished))


def left_to_newer(tx: Tx, w: Wanting, now_us: int) -> bool:
    """Whether a living worker has newer code of one of these workflows: also for a process that only resumes, and takes nothing.

    Code that no worker had before is the newest.
    """
    rows = tx.all(tx.sql.workers, {"now": now_us})
    clock = tx.one(tx.sql.clock, {"now": now_us})
    assert clock is not None  # it has no FROM  # noqa: S101
    mine = sources.placed(w.digests, [row["modules"] for row in rows], clock["now_us"])
    return bool(sources.outdated(mine, [row["modules"] for row in rows if row["id"] != w.worker and not w.gone(row)]))


def look(tx: Tx, w: Wanting, now_us: int) -> Prospect:
    """Whether a take would find anything. Reads only."""
    row = tx.one(tx.sql.due, standing(tx, w, now_us).params(w, now_us))
    assert row is not None  # it has no FROM  # noqa: S101
    return Prospect(due=bool(row["due"]), next_us=row["next_us"])


def take_due(tx: Tx, w: Wanting, room: int, now_us: int, *, empty: bool) -> Batch:
    """Take what is due, as much as there is room for.

    Args:
        tx: the transaction.
        w: what the worker would take.
        room: so many at most.
        now_us: the time.
        empty: nothing is in the worker's memory, so that a run that kept dying can be tried alone.
    """
    stands = standing(tx, w, now_us)
    stands = replace(stands, dead=tuple(owner for owner in stands.dead if _still_gone(tx, w, owner, now_us)))
    params = {**stands.params(w, now_us), "most": room}
    statements = (tx.sql.due_left, tx.sql.due_stopping, tx.sql.due_timers, tx.sql.due_queued)
    found = sorted((row for statement in statements for row in tx.all(statement, params)), key=lambda row: row["no"])
    dead = frozenset(stands.dead)
    suspects = {row["no"] for row in found if _suspect(tx, row)}
    taken: list[Taken] = []
    for row in (row for row in found if row["no"] not in suspects):
        if len(taken) == room:
            break
        taken += _taken(tx, w, row, dead, now_us)
    if taken or not empty:
        return Batch(taken=tuple(taken), suspect=bool(suspects))
    for row in found:
        alone = _taken(tx, w, row, dead, now_us) if row["no"] in suspects else []
        if alone:
            return Batch(taken=tuple(alone), alone=True, suspect=len(suspects) > 1)
    return Batch(suspect=bool(suspects))


def _still_gone(tx: Tx, w: Wanting, owner: str, now_us: int) -> bool:
    """Whether a worker is still gone, and stays so until this transaction ends: before any of its runs is locked."""
    row = tx.one(tx.sql.worker_held, {"id": owner, "now": now_us})
    return row is None or w.gone(row)


def _suspect(tx: Tx, row: Row) -> bool:
    """Whether one more execution that breaks off without a record would have a person asked: that one shows whose fault it is."""
    if row["owner"] is None or row["barren"] + 1 < ALONE_AT:
        return False
    return ALONE_AT <= runs.barren(tx, row)[1] < POISON_AFTER


def _taken(tx: Tx, w: Wanting, row: Row, dead: frozenset[str], now_us: int) -> list[Taken]:
    name = row["workflow"]
    taken = runs.take(
        tx, row, w.worker, source_digest=w.digests[name], now_us=now_us, proven_dead=dead, has=w.has.get(name)
    )  # fmt: skip
    return [taken] if taken.hold is not None else []
