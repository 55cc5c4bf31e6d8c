"""The embedded engine: a worker takes what is due from the store and executes it in this process.

Nothing tells it what to do but the rows: whatever starts, wakes, answers or cancels a run writes one, and a look finds it by
an index. In this process a write wakes it at once; what others write it finds within a second. Between two looks it sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

from stepseven._dataclass import dataclass
from stepseven.engines._signals import stopped_by_signals
from stepseven.errors import StoreUnavailable
from stepseven.runtime.driver import Driver
from stepseven.runtime.procedure import Workflow
from stepseven.runtime.services import Services
from stepseven.store.base import Row
from stepseven.transitions import taking
from stepseven.transitions.taking import Batch, Prospect, Wanting

LEAST_S, MOST_S = 0.1, 1.0  # between two looks that found nothing: what others write is seen within a second
SPREAD = 0.25  # of a pause: workers that were started together do not look together
AWAY_S = 5.0  # between two looks while the store is away
REST_S, LONGEST_REST_S = 1.0, 60.0  # how long a run is left alone whose execution broke off without a reason of its own
PATIENCE_S = 10.0  # a run that kept dying waits so long for a worker with nothing else to do; then one makes room for it
STOPPED = "its worker was stopped"

_log = logging.getLogger("stepseven.worker")


@dataclass(slots=True)
class _Rest:
    """A run that is left alone for a moment."""

    until: float
    times: int


class Worker:
    """Takes any run of its workflows that is due, and executes it here. Made by ``layer.worker(…)``.

    ``async with layer.worker("renewals"):`` works in the background until the block ends; ``await worker.run()`` works until
    ``stop()``; ``worker.run_blocking()`` does so until the process is told to stop (SIGTERM, Ctrl-C).

    Attributes:
        workflows: the names of the workflows it takes runs of.
        concurrency: so many runs are in memory at once; what waits for long is put away and is none of them.
    """

    def __init__(
        self, services: Services, driver: Driver, workflows: Mapping[str, Workflow[Any, Any]], *, concurrency: int = 8
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise ValueError(f"concurrency={concurrency!r}: how many runs at once, 1 or more")
        self.workflows = tuple(sorted(workflows))
        self.concurrency = concurrency
        self._services = services
        self._driver = driver
        self._code = dict(workflows)
        self._digests = {name: workflow.digest for name, workflow in workflows.items()}
        self._running: dict[str, int] = {}  # run id -> run no, of what is in memory
        self._resting: dict[int, _Rest] = {}
        self._alone = False  # the one in memory is to be alone
        self._suspect_since: float | None = None  # since when a run waits to be tried alone
        self._pause_s = LEAST_S
        self._next_s: float | None = None  # until the next timer
        self._hot = False  # the last take filled all the room: there is more
        self._away = False
        self._stopping = False
        self._begun = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()  # it is registered
        self._idle = asyncio.Event()  # nothing of it is left at work
        self._idle.set()

    @property
    def id(self) -> str:
        """The worker's id, as ``why`` and the store name it."""
        return self._services.worker.id

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the runs it has in memory now."""
        return tuple(self._running)

    @property
    def stranded(self) -> bool:
        """Whether it was stopped while the store was away: what it had in memory is free once it is seen to be gone."""
        return self._services.worker.stranded

    # -- working --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until ``stop()``. What is in hand is then finished or recorded, and every run given back.

        Raises:
            StoreUnavailable: the store cannot be reached at the start. Later it is waited for.
            RuntimeError: this layer has a worker at work already, or this one was at work and was stopped.
        """
        if self._begun and self._stopping:
            raise RuntimeError(f"worker {self.id} was stopped: layer.worker(…) makes another")
        if self.poke in self._services.wakers or self._services.worker.digests:
            raise RuntimeError(f"worker {self.id} is at work already: stop it first, or make another Layer")
        self._begun = True
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        self._services.wakers.append(self.poke)
        self._idle.clear()
        try:
            await asyncio.to_thread(self._services.worker.offer, self._digests)
            self._ready.set()
            while not self._stopping:
                self._wake.clear()
                if not await self._turn():
                    await self._rest()
        finally:
            self._services.wakers.remove(self.poke)
            await self._put_everything_down()
            self._idle.set()

    def stop(self) -> None:
        """Take nothing more, finish or record what is in hand, give the runs back. From any thread, or a signal handler."""
        self._stopping = True
        self.poke()

    def poke(self) -> None:
        """Look at once: something may be due. From any thread."""
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop was closed in this very moment
                loop.call_soon_threadsafe(wake.set)

    def run_blocking(self) -> None:
        """``run``, from code that is not async, until SIGTERM or Ctrl-C. A second signal ends the process at once.

        Raises:
            RuntimeError: a loop is running in this thread: ``await worker.run()`` there.
        """
        asyncio.run(self.run_until_signalled())

    async def run_until_signalled(self) -> None:
        """``run``, until SIGTERM or Ctrl-C, too. A second signal ends the process at once."""
        with stopped_by_signals(self.stop):
            await self.run()

    async def __aenter__(self) -> Self:
        """Work in the background. Returns when it is registered."""
        self._task = asyncio.get_running_loop().create_task(self.run(), name="stepseven worker")
        ready = asyncio.get_running_loop().create_task(self._ready.wait())
        await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            task, self._task = self._task, None  # it is told here, and not once more when it is closed
            task.result()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """``stop()``, and wait until everything is given back."""
        self.stop()
        task, self._task = self._task, None
        if task is not None:
            await task
        elif self._loop is asyncio.get_running_loop():  # ``run()`` is awaited elsewhere in this loop
            await self._idle.wait()

    # -- one turn -------------------------------------------------------------------------------------------------------

    async def _turn(self) -> bool:
        """Look, and take what is due. Whether to do so again at once."""
        room = 0 if self._alone else self.concurrency - len(self._running)
        if room <= 0 or (self._running and self._makes_room()):
            self._pause_s = MOST_S  # whoever ends wakes us
            return False
        try:
            taken = await self._take(room)
        except StoreUnavailable as error:
            self._store_away(error)
            return False
        except Exception:  # noqa: BLE001 - a worker that is gone helps nobody: it says so, and looks again
            _log.exception("worker %s could not look for runs; it tries again", self.id)
            self._pause_s = AWAY_S
            return False
        if self._away:
            self._away = False
            _log.warning("worker %s: the store is back", self.id)
        self._pause_s = LEAST_S if taken else min(self._pause_s * 2, MOST_S)
        return taken

    async def _take(self, room: int) -> bool:
        wanting = Wanting(worker=self.id, digests=self._digests, gone=self._services.worker.gone, skip=self._left_alone())
        if not self._hot:
            prospect = await self._services.store.read(lambda tx: taking.look(tx, wanting, self._services.edge.now_us()))
            if not prospect.due:
                self._suspect_since = None
                self._until(prospect)
                return False
        self._hot = False
        batch = await self._driver.take_due(wanting, room, self._code, empty=not self._running)
        self._note(batch)
        self._hot = len(batch.taken) == room
        return bool(batch.taken)

    def _note(self, batch: Batch) -> None:
        """Watch over what was taken."""
        now = self._services.edge.monotonic()
        self._suspect_since = (self._suspect_since or now) if batch.suspect else None
        for taken in batch.taken:
            run_id, no = taken.run["id"], taken.run["no"]
            driven = self._driver.driven.get(run_id)
            if driven is None or not driven.brief:
                continue  # somebody in this process drives it already
            self._running[run_id], self._alone = no, batch.alone
            self._services.tell(run_id, "taken", client=taken.run["client_id"], workflow=taken.run["workflow"],
                                over_from=taken.run["owner"])  # fmt: skip
            driven.task.add_done_callback(partial(self._over, run_id, no))

    def _over(self, run_id: str, no: int, task: asyncio.Task[Row]) -> None:
        """A run is out of memory: ended, put away, given back, taken over, or its execution broke off."""
        self._running.pop(run_id, None)
        if not self._running:
            self._alone = False
        error = None if task.cancelled() else task.exception()
        row = None if task.cancelled() or error is not None else task.result()
        if isinstance(error, StoreUnavailable):
            self._store_away(error)
        elif error is not None:
            self._leave_alone(no)
            if self._resting[no].times == 1:
                _log.error("run %s broke off and is tried again: %s: %s", run_id, type(error).__name__, error, exc_info=error)
        elif row is not None and row["owner"] is None and row["ended_us"] is None and row["status"] != "waiting":
            self._leave_alone(no)  # given back, and not by our stop: who gives it back again and again is asked less often
        else:
            self._resting.pop(no, None)
        self.poke()

    # -- pauses ---------------------------------------------------------------------------------------------------------

    def _until(self, prospect: Prospect) -> None:
        """Sleep no longer than until the next timer."""
        if prospect.next_us is not None:
            self._next_s = max((prospect.next_us - self._services.edge.now_us()) / 1e6, 0.0)

    async def _rest(self) -> None:
        """Until something here says that a run may be due, or the pause is over."""
        assert self._wake is not None  # noqa: S101 - set by run
        pause = self._pause_s * (1 + SPREAD * (2 * self._services.edge.chance() - 1))
        if self._next_s is not None:
            pause, self._next_s = min(pause, self._next_s + 0.001), None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), pause)
            self._pause_s = LEAST_S

    def _makes_room(self) -> bool:
        """Whether to take nothing, so that a run that kept dying can be tried while nothing else is in memory."""
        since = self._suspect_since
        return since is not None and self._services.edge.monotonic() - since > PATIENCE_S * (1 + self._spread())

    def _spread(self) -> float:
        """Other workers make room at another time: a number of this one's own, in [0, 1)."""
        return sum(self.id.encode()) % 97 / 97

    def _leave_alone(self, no: int) -> None:
        times = self._resting[no].times + 1 if no in self._resting else 1
        pause = min(REST_S * 2 ** (times - 1), LONGEST_REST_S)
        self._resting[no] = _Rest(self._services.edge.monotonic() + pause, times)

    def _left_alone(self) -> tuple[int, ...]:
        now = self._services.edge.monotonic()
        return tuple(no for no, rest in self._resting.items() if rest.until > now)

    def _store_away(self, error: StoreUnavailable) -> None:
        """Say it once, and look less often."""
        self._hot, self._pause_s = False, AWAY_S if self._away else MOST_S
        known, self._away = self._away, True
        if not known and not self._stopping:
            _log.warning("worker %s goes on when the store is back: %s", self.id, error)

    # -- stopping -------------------------------------------------------------------------------------------------------

    async def _put_everything_down(self) -> None:
        self._away = False
        await self._driver.put_down(self.running, STOPPED)
        worker = self._services.worker
        if self._away:  # it has just been asked for long, and did not answer
            self._strand("it did not take them back")
            return
        try:
            await asyncio.to_thread(worker.give_back, STOPPED)
            await asyncio.to_thread(worker.offer, {})
        except StoreUnavailable as error:
            self._strand(str(error))

    def _strand(self, why: str) -> None:
        """Leave what is in memory to the lease, or to the proof that this process is gone."""
        worker = self._services.worker
        worker.digests, worker.stranded = {}, True
        _log.warning("worker %s stops while the store is away: its runs are free once it is seen to be gone (%s)", self.id, why)
