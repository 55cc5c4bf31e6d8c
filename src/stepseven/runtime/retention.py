"""Keeping the store small: ended runs are shrunk off everybody's path, in small bites, by hand or once a day.

One run at a time. What it would lose is read before, a page at a time and through a connection of its own, so that no lock
is held while it is found out; then it goes, in short transactions. Between two bites everybody else gets the store.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

from stepseven.decide.retention import DAY_US, ROUND_US, VARIABLE, retention_us
from stepseven.errors import StoreUnavailable
from stepseven.model import Pruned
from stepseven.runtime.edge import Edge
from stepseven.runtime.files import strays, swept
from stepseven.store._thread import LateThread
from stepseven.store.artifacts import GRACE_S, Artifacts
from stepseven.store.base import Reader, Store, Tx
from stepseven.transitions import pruning
from stepseven.transitions.pruning import Found, Shrink

BITE_S = 0.004  # CASES Q05: no step waits noticeably; a commit to a disk takes about as long
AT_ONCE = 25  # runs that are looked for by one statement
REST = 3.0  # so many times as long as a bite took, the store and the processor are everybody else's
MOST_S = 1.0  # but no longer: one long statement that only reads holds nobody up
LET_GO_S = 0.02  # how long a bite is waited for before what it reads is broken off
FIRST_S = 10.0  # a process that is at work for so long does its share; a shorter one only what takes no time
LOOK_S = 60.0  # how often it is asked whether a round is due
EXIT_S = 0.03  # of it at the end of a short process
JUMP_US = DAY_US // 24  # a wall clock that went so far astray is not believed


class Pruner:
    """Shrinks runs. ``done`` counts; ``skipped``: so many runs were too large for who had no time."""

    def __init__(self, store: Store, edge: Edge, artifacts: Artifacts) -> None:
        self.done = Pruned()
        self.skipped = 0
        self._store = store
        self._edge = edge
        self._artifacts = artifacts
        self._reader: Reader | None = None

    def interrupt(self) -> None:
        """Break off what is just being read: the checkpoint of a run of many records takes seconds."""
        if self._reader is not None:
            self._reader.interrupt()

    def bites(self, before_us: int, *, large: bool = True) -> Generator[float]:
        """Shrink every run that ended by *before_us* and may be; gives, again and again, how many seconds it just took.

        Args:
            before_us: microseconds since 1970 UTC.
            large: runs of more records than are read at once, too.
        """
        with closing(self._store.reader()) as self._reader:
            reader = self._reader
            yield from _timed(self._runs(reader, before_us, large=large))
            yield from _timed(self._files(reader))

    def look(self, before_us: int, most: int | None = None) -> Pruned:
        """What ``bites`` would do, at most *most* runs of it. Changes nothing. Results shared with other runs count, too."""
        seen = Pruned()
        with closing(self._store.reader()) as reader:
            for found in self._prunable(reader, before_us):
                if most is not None and seen.runs >= most:
                    break
                if found is not None:
                    seen = _added(seen, _looked_through(reader, found))
        return seen

    def _runs(self, reader: Reader, before_us: int, *, large: bool) -> Iterator[None]:
        for found in self._prunable(reader, before_us):
            if found is None:
                yield
                continue
            plan = reader.read_now(partial(pruning.begin, run=found))
            while more := reader.read_now(partial(pruning.look_on, s=plan)):
                if not large:
                    self.skipped += 1
                    break
                yield
            if more:
                continue
            document = reader.read_now(partial(pruning.checkpoint, run=found))
            yield
            while not self._bite(plan, document, before_us):
                yield
            yield

    def _prunable(self, reader: Reader, before_us: int) -> Iterator[Found | None]:
        """Runs that may be shrunk; ``None`` after each statement."""
        after: Found | None = None
        while page := reader.read_now(partial(self._page, before_us=before_us, after=after)):
            after = page[-1]
            yield None
            yield from (found for found in page if found.may)

    def _page(self, tx: Tx, *, before_us: int, after: Found | None) -> list[Found]:
        return pruning.prunable(tx, before_us, self._edge.now_us(), after, AT_ONCE)

    def _bite(self, plan: Shrink, document: str, before_us: int) -> bool:
        """One transaction: as much of the plan as fits. Whether that was all of it, or there is nothing to do any more."""
        now, stop = self._edge.now_us(), time.perf_counter() + BITE_S

        def more() -> bool:
            return time.perf_counter() < stop

        def unit(tx: Tx) -> tuple[bool | None, Shrink]:
            left = pruning.copied(plan)  # a unit may be executed again
            return pruning.shrink(tx, left, document=document, before_us=before_us, now_us=now, more=more), left

        shrunk, left = self._store.write_now(unit, durable=False, client=plan.client_id)
        pruning.go_on(plan, left)
        if shrunk:
            self.done = _added(self.done, plan)
            self.done = replace(
                self.done, artifacts=self.done.artifacts - len(plan.large) + plan.gone,
                bytes=self.done.bytes - sum(plan.large.values()) + plan.gone_size,
            )  # fmt: skip
        return shrunk is not False

    def _files(self, reader: Reader) -> Iterator[None]:
        """Remove the files of results that no record names any more, one at a time, and what dead processes left."""
        now_us = self._edge.now_us()
        for size in swept(self._store, reader, self._artifacts, now_us=now_us, grace_s=GRACE_S):
            if size is not None:
                self.done = replace(self.done, artifacts=self.done.artifacts + 1, bytes=self.done.bytes + size)
            yield
        yield from strays(reader, self._artifacts)


def _looked_through(reader: Reader, found: Found) -> Shrink:
    plan = reader.read_now(partial(pruning.begin, run=found))
    while reader.read_now(partial(pruning.look_on, s=plan)):
        pass
    return plan


def _timed(units: Iterator[None]) -> Iterator[float]:
    """How long each of the units took."""
    while True:
        began = time.perf_counter()
        try:
            next(units)
        except StopIteration:
            return
        yield time.perf_counter() - began


def _added(done: Pruned, plan: Shrink) -> Pruned:
    return Pruned(
        runs=done.runs + 1, records=done.records + plan.records, artifacts=done.artifacts + len(plan.large),
        bytes=done.bytes + plan.size + sum(plan.large.values()),
    )  # fmt: skip


class Retention:
    """The daily round: what ended long ago is shrunk by itself, in a thread of its own that the worker begins."""

    def __init__(self, store: Store, edge: Edge, artifacts: Artifacts, keep_us: int | None) -> None:
        self._store = store
        self._edge = edge
        self._artifacts = artifacts
        self._keep_us = keep_us
        self._thread = LateThread(self._loop, "stepseven_keep")
        self._pruner: Pruner | None = None  # the one at work
        self._stop = threading.Event()
        self._make_way = threading.Event()  # the round under way ends early, and goes on another time
        self._one = threading.Lock()  # held by whoever prunes: one at a time, and closing waits for the bite under way
        self._looked: float | None = None
        self._apart_us = self._wall_against_steady()

    def begin(self) -> None:
        """Start the thread, once. Nothing is done before the process has been at work for a while."""
        if self._keep_us is not None and not self._stop.is_set():
            self._thread.start()

    def stop(self) -> None:
        """Begin no bite any more, and wait for the one under way. Idempotent."""
        self._stop.set()
        self._make_way.set()
        while not self._one.acquire(timeout=LET_GO_S):
            if self._pruner is not None:
                self._pruner.interrupt()
        self._one.release()
        self._thread.join()

    def by_hand(self, before_us: int) -> Pruned:
        """Shrink what ended by *before_us* now; stopped meanwhile, what was done so far. A daily round makes way."""
        while not self._one.acquire(timeout=LET_GO_S):
            self._make_way.set()
        try:
            self._make_way.clear()
            pruner = self._pruner = Pruner(self._store, self._edge, self._artifacts)
            try:
                with closing(pruner.bites(before_us)) as bites:
                    while not self._stop.is_set() and (took := next(bites, None)) is not None:
                        self._stop.wait(min(took, MOST_S))  # the store is somebody else's for as long
            except StoreUnavailable:
                if not self._stop.is_set():  # else it was broken off
                    raise
        finally:
            self._one.release()
        return pruner.done

    def round(self) -> Pruner | None:
        """A whole round, if one is due, until it is stopped or somebody prunes by hand; ``None``: it is not.

        Never raises: a store that is away is tried again another time.
        """
        return self._round(lambda took: self._make_way.wait(min(took * REST, MOST_S)) or self._stop.is_set())

    def at_exit(self) -> None:
        """What a short process does when it ends: small runs, in so little time that nobody notices."""
        if not self._thread.started or self._looked is None:  # else it was at work long enough to do its share
            over = time.perf_counter() + EXIT_S
            self._round(lambda _: time.perf_counter() > over, large=False)

    def _loop(self) -> None:
        wait = FIRST_S
        while not self._stop.wait(wait):
            with self._one:
                if not self._stop.is_set():
                    self.round()
            wait = LOOK_S

    def _round(self, stop: Callable[[float], bool], *, large: bool = True) -> Pruner | None:
        if self._keep_us is None:
            return None
        pruner = self._pruner = Pruner(self._store, self._edge, self._artifacts)
        try:
            if not self._due():
                return None
            with closing(pruner.bites(self._edge.now_us() - self._keep_us, large=large)) as bites:
                if any(stop(took) for took in bites):
                    return pruner
            if not pruner.skipped:
                now = self._edge.now_us()
                before_us = now - self._keep_us

                def over(tx: Tx) -> None:
                    tx.run(tx.sql.drop_resources, {"before_us": before_us})
                    tx.run(tx.sql.prune_done, {"now": now})

                self._store.write_now(over, durable=False, client=None)
        except (StoreUnavailable, OSError):
            return pruner
        return pruner

    def _due(self) -> bool:
        """Whether a day has passed since any process came to the end of a round, by a clock that can be believed."""
        self._looked = self._edge.since_boot()
        if abs(self._wall_against_steady() - self._apart_us) > JUMP_US:
            return False  # by such a clock everything would be old
        now = self._edge.now_us()
        span = {"since_us": now - ROUND_US, "ahead_us": now + JUMP_US}
        return self._store.read_now(lambda tx: tx.one(tx.sql.prune_due, span)) is not None

    def _wall_against_steady(self) -> int:
        return self._edge.now_us() - round(self._edge.since_boot() * 1e6)


def keep_us() -> int | None:
    """How long ended runs are kept whole, by the environment; ``None``: for ever.

    Raises:
        ValueError: STEPSEVEN_RETENTION says something else.
    """
    return retention_us(os.environ.get("STEPSEVEN_RETENTION"))


__all__ = ["VARIABLE", "Pruner", "Retention", "keep_us"]
