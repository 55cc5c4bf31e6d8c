"""Keeping the store small: ended runs are shrunk off everybody's path, in small bites, by hand or once a day.

A bite is one short transaction; between two of them everybody else gets the store. What a run would lose is read before
the bite, so that no lock is held while it is found out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from stepseven.decide.retention import DAY_US, ROUND_US, VARIABLE, retention_us
from stepseven.errors import StoreUnavailable
from stepseven.model import Pruned
from stepseven.runtime.edge import Edge
from stepseven.store.artifacts import ASIDE, GRACE_S, Artifacts
from stepseven.store.base import Row, Store, Tx
from stepseven.transitions import pruning
from stepseven.transitions.pruning import Found, Shrink

BITE_S = 0.004  # CASES Q05: no step waits noticeably; a commit to a disk takes about as long
FILES = 50  # of the artifact folder, looked at between two pauses
REST = 3.0  # so many times as long as a bite took, the store is everybody else's
SLICE_S = 0.5  # of every two seconds that the daily round may take of a process at work
EXIT_S = 0.03  # of it at the end of a process
JUMP_US = DAY_US // 24  # a wall clock that went so far astray is not believed


@dataclass(slots=True)
class Pruner:
    """Shrinks runs. ``done`` counts."""

    store: Store
    edge: Edge
    artifacts: Artifacts
    done: Pruned

    def bites(self, before_us: int) -> Iterator[float]:
        """Shrink every run that ended by *before_us* and may be; gives, again and again, how many seconds it just took."""
        after: Found | None = None
        while found := self._next(before_us, after):
            began = time.perf_counter()
            todo = self.store.read_now(partial(_plans, found=found))
            while todo:
                self._bite(todo, before_us)  # before the caller may stop: each time something is done
                yield time.perf_counter() - began
                began = time.perf_counter()
            after = found[-1]
        yield from self._files()

    def look(self, before_us: int, most: int | None = None) -> Pruned:
        """What ``bites`` would do, at most *most* runs of it. Changes nothing. Results shared with other runs count, too."""
        seen, after = Pruned(), None
        while (most is None or seen.runs < most) and (found := self._next(before_us, after)):
            for run in found:
                seen = _added(seen, self.store.read_now(partial(pruning.plan, run=run)))
            after = found[-1]
        return seen

    def _next(self, before_us: int, after: Found | None) -> list[Found]:
        return self.store.read_now(lambda tx: pruning.prunable(tx, before_us, after, pruning.AT_ONCE))

    def _bite(self, todo: list[tuple[Shrink, str]], before_us: int) -> None:
        """One transaction: as many of the planned runs as fit. What it did is taken off *todo* when it is committed."""
        now, stop = self.edge.now_us(), time.perf_counter() + BITE_S

        def more() -> bool:
            return time.perf_counter() < stop

        def unit(tx: Tx) -> tuple[int, list[Shrink]]:
            over, shrunk = 0, []
            for plan, document in todo:
                end = pruning.shrink(tx, plan, document=document, before_us=before_us, now_us=now, more=more)
                if end is False:
                    break
                over += 1
                if end:
                    shrunk.append(plan)
                if not more():
                    break
            return over, shrunk

        over, shrunk = self.store.write_now(unit, durable=False)
        del todo[:over]
        for plan in shrunk:
            self.done = _added(self.done, replace(plan, artifacts=plan.gone, artifact_size=plan.gone_size))

    def _files(self) -> Iterator[float]:
        """Remove the files of results that no record names any more, one at a time, and what dead processes left."""
        began = time.perf_counter()
        for size in swept(self.store, self.artifacts, grace_s=GRACE_S):
            if size is not None:
                self.done = replace(self.done, artifacts=self.done.artifacts + 1, bytes=self.done.bytes + size)
            yield time.perf_counter() - began
            began = time.perf_counter()
        for _ in strays(self.store, self.artifacts):
            yield time.perf_counter() - began
            began = time.perf_counter()


def _plans(tx: Tx, *, found: list[Found]) -> list[tuple[Shrink, str]]:
    documents = pruning.checkpoints(tx, found)
    return [(pruning.plan(tx, run), documents[run.id]) for run in found]


def _added(done: Pruned, plan: Shrink) -> Pruned:
    size = done.bytes + plan.size + plan.artifact_size
    return Pruned(runs=done.runs + 1, records=done.records + plan.records, artifacts=done.artifacts + plan.artifacts, bytes=size)


def swept(store: Store, artifacts: Artifacts, *, grace_s: float) -> Iterator[int | None]:
    """Remove results that no record names: rows, then their files; gives the size of each, and ``None`` to pause.

    A file is set aside, then its row is deleted if still nobody names it, and only then the file. Whoever dies in between
    leaves a file that is set aside: with its row it is found here again, without it by ``strays``.
    """
    after = ""
    while rows := store.read_now(partial(_page, after=after)):
        after = rows[-1]["hash"]
        yield None
        for row in rows:
            if not row["idle"]:
                continue
            where = row["location"]
            if where is not None and not artifacts.set_aside(where, grace_s=grace_s):
                continue
            gone = store.write_now(partial(_drop, name=row["hash"]), durable=False)
            if where is not None:
                artifacts.remove(where) if gone else artifacts.put_back(where)
            if gone:
                yield row["size"]


def _drop(tx: Tx, *, name: str) -> int:
    return tx.run(tx.sql.drop_artifact, {"hash": name, "files": 1})


def _page(tx: Tx, *, after: str) -> list[Row]:
    return tx.all(tx.sql.artifact_page, {"after": after})


def idle(store: Store) -> int:
    """How many results no record names are still there."""
    after, found = "", 0
    while rows := store.read_now(partial(_page, after=after)):
        after = rows[-1]["hash"]
        found += sum(1 for row in rows if row["idle"])
    return found


def strays(store: Store, artifacts: Artifacts) -> Iterator[None]:
    """Remove files that no row names, pausing now and then: of processes that died before they wrote it, or had deleted it.

    In a folder that was chosen there may be other things: only what was set aside is certainly ours.
    """
    for n, (location, name, age_s) in enumerate(artifacts.strays()):
        if n % FILES == FILES - 1:
            yield
        ours = location.endswith(ASIDE) or (artifacts.own and age_s > GRACE_S)
        if ours and store.read_now(partial(_named, name=name)) is None:
            artifacts.remove_stray(location)


def _named(tx: Tx, *, name: str) -> Row | None:
    return tx.one(tx.sql.artifact, {"hash": name})


class Retention:
    """The daily round: what ended long ago is shrunk by itself. Held by the worker, called from its heartbeat's thread."""

    def __init__(self, store: Store, edge: Edge, artifacts: Artifacts, keep_us: int | None) -> None:
        self._pruner = Pruner(store, edge, artifacts, Pruned())
        self._store = store
        self._edge = edge
        self._keep_us = keep_us
        self._bites: Iterator[float] | None = None
        self._looked: float | None = None
        self._apart_us = self._wall_against_steady()

    def tick(self, wait: Callable[[float], bool], *, most_s: float = SLICE_S) -> None:
        """A slice of the round, if one is due: at most *most_s* seconds. *wait* rests, and says whether to stop.

        Never raises: a store that is away is tried again another day.
        """
        if self._keep_us is None:
            return
        stop = time.perf_counter() + most_s
        try:
            if self._bites is None and not self._due():
                return
            if self._bites is None:
                self._bites = self._pruner.bites(self._edge.now_us() - self._keep_us)
            for took in self._bites:
                if wait(min(took * REST, most_s)) or time.perf_counter() > stop:
                    return
            self._bites = None
            now = self._edge.now_us()
            self._store.write_now(lambda tx: tx.run(tx.sql.prune_done, {"now": now}), durable=False)
        except (StoreUnavailable, OSError):
            self._bites = None

    def at_exit(self) -> None:
        """The last slice of a process that worked: so short that nobody notices."""
        self.tick(lambda _: False, most_s=EXIT_S)

    def _due(self) -> bool:
        """Whether a day has passed since any process came to the end of a round, by a clock that can be believed."""
        steady = self._edge.since_boot()
        if self._looked is not None and steady - self._looked < ROUND_US / 1e6 / 24:
            return False
        self._looked = steady
        if abs(self._wall_against_steady() - self._apart_us) > JUMP_US:
            return False  # by such a clock everything would be old
        since = self._edge.now_us() - ROUND_US
        return self._store.read_now(lambda tx: tx.one(tx.sql.prune_due, {"since_us": since})) is not None

    def _wall_against_steady(self) -> int:
        return self._edge.now_us() - round(self._edge.since_boot() * 1e6)


def keep_us() -> int | None:
    """How long ended runs are kept whole, by the environment; ``None``: for ever.

    Raises:
        ValueError: STEPSEVEN_RETENTION says something else.
    """
    return retention_us(os.environ.get("STEPSEVEN_RETENTION"))


__all__ = ["VARIABLE", "Pruner", "Retention", "idle", "keep_us", "strays", "swept"]
