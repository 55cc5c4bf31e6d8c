"""What an execution is given from outside: the store, the edge, the worker it runs in, and the settings."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import Any, Literal, Protocol

from stepseven._dataclass import dataclass
from stepseven.decide import sources
from stepseven.errors import StoreUnavailable, Superseded
from stepseven.model import Limits
from stepseven.runtime.down import Down
from stepseven.runtime.edge import Edge, Process, proven_dead, seen_alive, this_process
from stepseven.store.artifacts import Artifacts
from stepseven.store.base import Row, Store, Tx
from stepseven.transitions import circuits
from stepseven.transitions.runs import LEASE_US, Watch, taken_by
from stepseven.transitions.state import Hold

BEAT_S = 2.0
ACTS_S = LEASE_US / 1e6 * 0.8  # a worker whose last confirmed beat is older passes no gate
FORGOTTEN_US = 30 * 86_400_000_000  # after so long nobody asks any more who last knew a workflow
SHORT_WAIT_US = 30_000_000  # DESIGN §3, §6: timers up to 30 s are waited for in memory

_log = logging.getLogger("stepseven.worker")


class Housekeeping(Protocol):
    """What is done beside the work while a worker is at work, in a thread of its own: no beat waits for it."""

    def begin(self) -> None:
        """The worker is at work: start, unless it is started. Returns at once, and may be called at every beat."""
        ...


class Worker:
    """This process as an owner of runs: one row, one heartbeat."""

    def __init__(self, store: Store, edge: Edge) -> None:
        self.store = store
        self.edge = edge
        self.process = this_process()
        self.id = edge.new_id("w")
        self.digests: dict[str, str] = {}  # the workflows it takes runs of, and the digest of its source of each
        self.stranded = False  # it was stopped while the store was away: that is not asked for anything more
        self.zombies = 0  # threads of timed-out steps that still run
        self.fences: dict[int, int] = {}  # run no -> fence of the runs in memory
        self.taking: set[tuple[int, int]] = set()  # of these, run no and fence of takes that need not be committed yet
        self.executed: dict[int, Callable[[], int]] = {}  # run no -> how long it has been executing, in all, in microseconds
        self.down = Down()  # resources that are believed to be down
        self.in_flight: set[str] = set()  # claims whose attempt still runs in this process
        self.on_lost: Callable[[int, str], None] | None = None  # run no, why
        self.housekeeping: Housekeeping | None = None  # begun with the first beat
        self._seen: dict[str, tuple[int, float]] = {}  # other workers: their last beat, and since when it is the last
        self._sighted: dict[tuple[str, int], float] = {}  # others' sends in doubt, and since when we know of them
        self._doubted: set[str] = set()  # workers whose beat is too old by the clock, and was looked at once only
        self._strays: set[tuple[int, int]] = set()  # owned, but not in memory, at the last beat
        self._counted: dict[int, int] = {}  # run no -> what the store was told of that
        self._lost: set[tuple[int, int]] = set()  # run no, fence of what is in memory, and a beat found to be another's
        self._confirmed: float | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Register, once, and beat from then on: in a thread of its own, so a blocked event loop does not look dead."""
        with self._lock:
            if self._confirmed is None:
                self.store.write_now(self._register, durable=True, client=None)
                self._confirmed = self.edge.since_boot()
                self._look_out()
                self._thread = threading.Thread(target=self._beat_loop, name="stepseven_beat", daemon=True)
                self._thread.start()

    def offer(self, digests: dict[str, str]) -> None:
        """Say of which workflows this worker takes runs (workflow → digest of its source); of none any more: ``{}``."""
        self.digests, self.stranded = dict(digests), False
        if self._confirmed is None:
            self.start()
        else:
            self.store.write_now(self._register, durable=True, client=None)

    def _register(self, tx: Tx) -> None:
        """Our row; and those of dead workers that nothing names any more go away.

        So do those nobody heard of for long: many a machine is never started again. One that wakes writes its row anew.
        """
        rows = tx.all(tx.sql.workers, {"now": self.edge.now_us()})
        self._write_row(tx, self._placed(tx, rows))
        now = self._now_us(tx)
        for row in rows:  # by its last beat itself: a server that was started again lately changes nothing about that
            forgotten = row["id"] != self.id and now - row["beat_us"] > FORGOTTEN_US
            if forgotten or proven_dead(_process(row), self.process):
                tx.run(tx.sql.drop_worker, {"id": row["id"]})

    def _now_us(self, tx: Tx) -> int:
        """What leases go by."""
        row = tx.one(tx.sql.clock, {"now": self.edge.now_us()})
        assert row is not None  # it has no FROM  # noqa: S101
        return int(row["now_us"])

    def _placed(self, tx: Tx, rows: list[Row]) -> str | None:
        """What we can execute, with what is known of the age of our source and of others'."""
        if not self.digests:
            return None
        return sources.text(sources.placed(self.digests, [row["modules"] for row in rows], self._now_us(tx)))

    def _write_row(self, tx: Tx, modules: str | None) -> None:
        p = self.process
        tx.run(
            tx.sql.insert_worker,
            {"id": self.id, "host": p.host, "boot": p.boot, "pid": p.pid, "started": p.started, "modules": modules,
             "now": self.edge.now_us()},
        )  # fmt: skip
        for name in sources.parse(modules):  # whoever asks for one over HTTP later means a workflow that is executed here
            tx.run(tx.sql.know_workflow, {"name": name, "now": self.edge.now_us()})

    def _beat_loop(self) -> None:
        while not self._stop.wait(BEAT_S):
            try:
                self.beat()
            except Exception:  # noqa: BLE001 - a thread that is gone never beats again: it says so, and the next one may get through
                _log.exception("worker %s could not beat: if this goes on, others take its runs over", self.id)
            if self.housekeeping is not None:
                self.housekeeping.begin()

    @property
    def beating(self) -> bool:
        """Whether this process has executed runs."""
        return self._thread is not None

    def beat(self, *, early: bool = False) -> None:
        """Say that we live, and find out which runs are no longer ours. A beat that fails is a beat not sent.

        *early*: before its time, when we stood still. What is just being taken is no stray because of that.
        """
        sent, held = self.edge.since_boot(), dict(self.fences)
        taking = set(self.taking)  # looked at after that: what has left it by now is committed, and will be seen
        mine = {no: fence for no, fence in held.items() if (no, fence) not in taking}
        try:
            owned, strays = self.store.write_now(partial(self._beat, early=early), durable=False, client=None)
        except StoreUnavailable:  # the lease runs out and gates close, which is the safe end
            return
        # Only what was ours before the beat can have been found lost by it; and its gate is shut before the others open again.
        lost = [no for no, fence in mine.items() if owned.get(no) != fence and self.fences.get(no) == fence]
        self._lost = {known for known in self._lost if self.fences.get(known[0]) == known[1]} | {(no, mine[no]) for no in lost}
        self._confirmed = max(sent, self._confirmed or sent)  # a beat from before a standstill may come back after a later one
        self._strays = self._strays if early else strays
        if lost and self.on_lost is not None:
            for run_no, why in self._who_took({no: mine[no] for no in lost}).items():
                self.on_lost(run_no, why)
        with suppress(StoreUnavailable):  # the next beat does
            self._count(owned)
            self._look_out()

    def _look_out(self) -> None:
        """Hear which resources are down. Who takes runs also wakes those that wait for one, each in its time."""
        names, now = tuple(self.digests), self.edge.now_us()
        down, busy = self.store.read_now(lambda tx: (circuits.down(tx), bool(names) and circuits.busy(tx, now)))
        self.down.heard(down)
        if busy:
            self.store.write_now(lambda tx: circuits.look(tx, names, now), durable=False, client=None)

    def _who_took(self, lost: dict[int, int]) -> dict[int, str]:
        """Why each of these runs is no longer ours. Run no → the fence we held it under."""

        def unit(tx: Tx) -> dict[int, str]:
            return {no: taken_by(tx, tx.one(tx.sql.run_by_no, {"no": no}), fence) for no, fence in lost.items()}

        try:
            return self.store.read_now(unit)
        except StoreUnavailable:  # lost they are, whoever has them
            return dict.fromkeys(lost, "another worker took it over")

    def _beat(self, tx: Tx, *, early: bool = False) -> tuple[dict[int, int], set[tuple[int, int]]]:
        """What we own, and the strays among it: those still there at the next beat are given back."""
        now = self.edge.now_us()
        if not tx.run(tx.sql.beat, {"id": self.id, "now": now, "zombies": self.zombies}):
            self._register(tx)  # it is gone: an older state of the database was restored
        elif self.digests:
            rows = tx.all(tx.sql.workers, {"now": now})
            modules = self._placed(tx, rows)
            if any(row["id"] == self.id and row["modules"] != modules for row in rows):
                self._write_row(tx, modules)  # a source that was not known before is at work somewhere: it is kept in mind
        owned = {row["no"]: row["fence"] for row in tx.all(tx.sql.owned_runs, {"owner": self.id})}
        strays = {(no, fence) for no, fence in owned.items() if no not in self.fences}
        # Not those just being taken: they are in memory by the next beat, if that comes in its time.
        for no, fence in () if early else strays & self._strays:
            stray(tx, no, self.id, fence, now, self.executed_us(no))
        return owned, strays

    def _count(self, owned: dict[int, int]) -> None:
        """How long each run has been executing: a death loses two seconds of it, no more.

        One by one: a row that is written to here holds up its run's steps until the commit.
        """
        counted = {no: self.executed_us(no) for no, fence in owned.items() if self.fences.get(no) == fence}
        for no, executing_us in counted.items():
            if executing_us > self._counted.get(no, 0):
                params = {"run_no": no, "owner": self.id, "fence": owned[no], "executing_us": executing_us}
                self.store.write_now(partial(_count_executing, params=params), durable=False, client=None)
        self._counted = counted

    def executed_us(self, run_no: int) -> int:
        """How long a run has been executing, as far as this process knows."""
        known = self.executed.get(run_no)
        return 0 if known is None else known()

    def gone(self, row: Row) -> bool:
        """Whether nobody works any more where the worker of *row* was: it is proven dead, or silent for longer than a lease."""
        if proven_dead(_process(row), self.process):
            return True
        return self.silent(row, stale=row["silent_us"] > LEASE_US)

    def give_back(self, reason: str) -> None:
        """Give back the runs that are ours by name only: nobody executes them here any more."""

        def unit(tx: Tx) -> None:
            now = self.edge.now_us()
            for row in tx.all(tx.sql.owned_runs, {"owner": self.id}):
                if row["no"] not in self.fences:
                    stray(tx, row["no"], self.id, row["fence"], now, self.executed_us(row["no"]), reason)

        self.store.write_now(unit, durable=True, client=None)

    def may_act(self, run_no: int, fence: int) -> bool:
        """Whether nobody can have taken this run yet: the last confirmed beat is young, and found it ours. No I/O."""
        young = self._confirmed is not None and self.edge.since_boot() - self._confirmed < ACTS_S
        return young and (run_no, fence) not in self._lost  # in this order: a beat notes what is gone before it is young again

    def dead_workers(self, tx: Tx) -> Watch:
        """The workers that are proven dead; each is looked at only when asked for."""
        return _Dead(self, tx)

    def reported_dead(self, tx: Tx) -> Watch:
        """The same for whoever tells people of the workers, and takes nothing: one look is all it has, so the clock decides."""
        return _Reported(self, tx)

    def silent(self, row: Row, *, stale: bool) -> bool:
        """Whether the worker of *row* counts as silent.

        A clock that was set forward makes every beat look old. So the owner of a process that is still there is watched: only
        when its beat stays the same until that worker, by its own steady clock, passes no gate any more, is it silent.
        """
        owner, beat_us, now = row["id"], row["beat_us"], self.edge.since_boot()
        last, since = self._seen.get(owner, (beat_us, now))
        self._seen[owner] = (beat_us, since if last == beat_us else now)
        self._doubted.discard(owner)
        ahead = row["silent_us"] < -LEASE_US  # its clock was set forward, or ours back: then only watching tells
        if not (stale or ahead) or not (ahead or seen_alive(_process(row), self.process)):
            return stale
        if last == beat_us and now - since <= ACTS_S:
            self._doubted.add(owner)
        return last == beat_us and now - since > ACTS_S

    def could_send_us(self, tx: Tx, owner: str | None, send: tuple[str, int], span_us: int) -> int | None:
        """For how long another worker could still send what it has claimed; ``None``: it does not live, or it is ourselves.

        What wall clock it made its claim by is not asked: that may have jumped. Its silence counts as far as everybody's clock
        tells it, and for a process that is seen to be there what we saw pass ourselves, by the steady clock.

        Args:
            tx: a transaction.
            owner: who made the claim.
            send: the claim's id and which try of it: what we saw pass counts from its first sight here.
            span_us: how long after its claim a send can go out, or become visible, in microseconds.
        """
        row = None if owner in (None, self.id) else tx.one(tx.sql.worker, {"id": owner, "now": self.edge.now_us()})
        if row is None or proven_dead(_process(row), self.process):
            return None
        since = self._sighted.setdefault(send, self.edge.since_boot())
        watched_us = round((self.edge.since_boot() - since) * 1e6)
        silent_us = 0 if seen_alive(_process(row), self.process) else row["silent_us"]
        return max(0, span_us - max(watched_us, silent_us))

    def doubts(self, owner: str | None) -> bool:
        """Whether a moment more of watching tells if *owner* is silent."""
        return owner in self._doubted

    def stop(self) -> None:
        """Stop beating and take the row away, unless something still names it."""
        self._stop.set()
        with self._lock:  # it may just be started
            thread = self._thread
        if thread is not None:
            thread.join()
            with suppress(StoreUnavailable):  # whoever starts next drops the rows of the dead
                if not self.stranded:
                    self.store.write_now(lambda tx: tx.run(tx.sql.drop_worker, {"id": self.id}), durable=False, client=None)
            self._thread = None


def _count_executing(tx: Tx, *, params: dict[str, Any]) -> None:
    tx.run(tx.sql.count_executing, params)


def stray(  # noqa: PLR0913, PLR0917 - a statement's parameters
    tx: Tx, run_no: int, owner: str, fence: int, now_us: int, executed_us: int, reason: str = "its execution broke off"
) -> None:
    """Give back a run that its own worker no longer has in memory."""
    params = {"run_no": run_no, "owner": owner, "fence": fence, "reason": reason, "executing_us": executed_us, "now": now_us}
    tx.run(tx.sql.release_run, params)


class _Dead(Watch):
    """``owner in dead``: whether that worker certainly runs no more."""

    def __init__(self, worker: Worker, tx: Tx) -> None:
        self._worker = worker
        self._tx = tx

    def __contains__(self, owner: object) -> bool:
        if owner == self._worker.id:
            return False
        row = self._tx.one(self._tx.sql.worker, {"id": owner, "now": self._worker.edge.now_us()})
        return row is not None and proven_dead(_process(row), self._worker.process)

    def silent(self, worker: Row, *, stale: bool) -> bool:
        return self._worker.silent(worker, stale=stale)


class _Reported(_Dead):
    """``owner in dead``, for a report."""

    def silent(self, worker: Row, *, stale: bool) -> bool:
        return stale and worker["id"] != self._worker.id


def _process(row: Row) -> Process:
    return Process(host=row["host"], boot=row["boot"], pid=row["pid"], started=row["started"])


async def _undriven(run_id: str, workflow: Any, recovery: bool) -> Row:  # noqa: FBT001
    """Stands for a driver where there is none."""
    raise AssertionError(run_id, workflow, recovery)


def _unhalted(run_id: str, why: str) -> None:
    """Stands for a driver where there is none: nothing is in memory."""
    del run_id, why


@dataclass(slots=True, kw_only=True)
class Services:
    """Everything an execution needs from outside."""

    store: Store
    edge: Edge
    worker: Worker
    artifacts: Artifacts
    durability: Literal["effects", "full"] = "effects"
    limits: Limits | None = None
    classify: tuple[Callable[[BaseException], Any], ...] = ()
    #: run id, its workflow, whether it is a recovery: drives it as far as it gets
    drive: Callable[[str, Any, bool], Coroutine[Any, Any, Row]] = _undriven
    halt: Callable[[str, str], None] = _unhalted  # run id, why: it was asked to stop
    executions: dict[int, Any] = field(default_factory=dict)  # run no -> its execution, while it is in memory
    watchers: list[Callable[[str, str, dict[str, Any]], None]] = field(default_factory=list)  # run id, what, details
    wakers: list[Callable[[], None]] = field(default_factory=list)  # told that a run may have become due; from any thread

    def stir(self) -> None:
        """Something was written here that may make a run go on: whoever takes runs in this process looks at once."""
        for waker in list(self.wakers):
            waker()

    def tell(self, run_id: str, what: str, **details: Any) -> None:
        """Tell whoever watches. A watcher that fails is let go: watching never changes a run."""
        for watcher in list(self.watchers):
            try:
                watcher(run_id, what, details)
            except Exception as error:  # noqa: BLE001 - somebody else's code
                self.watchers.remove(watcher)
                warnings.warn(f"a watcher failed and was let go: {error!r}", RuntimeWarning, stacklevel=2)


def gate(services: Services, lost: Callable[[], str | None], hold: Hold, ends_at: Callable[[], float]) -> Callable[[], None]:
    """The last check before something is sent: ours still, alive in the eyes of others, in time."""

    def check() -> None:
        why = lost()
        if why is not None:
            raise Superseded(hold.run_id, why)
        if not services.worker.may_act(hold.run_no, hold.fence):
            raise Superseded(hold.run_id, "this worker was silent too long: another may have taken the run over")
        if services.edge.since_boot() > ends_at():
            raise Superseded(hold.run_id, "the time of this attempt is up")

    return check


__all__ = ["BEAT_S", "SHORT_WAIT_US", "Services", "Worker", "gate"]
