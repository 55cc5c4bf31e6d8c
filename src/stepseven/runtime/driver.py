"""Driving runs from a ``Layer``: take, execute, wait as told, take again.

Longer than other files: who takes a run here, and who must not at the same time, is read best in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.errors import InvalidChoice, UnknownRun
from stepseven.model import FailureKind, RunStatus, WaitingFor
from stepseven.runtime import choosing, kinship
from stepseven.runtime.choosing import Wanted
from stepseven.runtime.codechange import has, has_read
from stepseven.runtime.grip import RECOVERY_AFTER_US, Grip, last_us
from stepseven.runtime.lifecycle import Lifecycle
from stepseven.runtime.memory import Over, Stop
from stepseven.runtime.procedure import Workflow
from stepseven.runtime.services import SHORT_WAIT_US, Services, stray
from stepseven.runtime.waits import Standing, foreign_place, standing
from stepseven.store.base import Row, Tx
from stepseven.transitions import children, recoveries, runs, taking
from stepseven.transitions.runs import Admission, Taken
from stepseven.transitions.state import Hold, Loaded, load
from stepseven.transitions.taking import Batch, Wanting

POLL_S = 0.25
PAID_PATIENCE_S = 30.0  # as long as a write may take that says nothing else
DRAIN_LOOK_S = 0.02


@dataclass(slots=True)
class Driven:
    """A run this process drives."""

    task: asyncio.Task[Row]
    loop: asyncio.AbstractEventLoop
    execution: Lifecycle | None = None
    hold: Hold | None = None  # what was taken last
    released: bool = False  # given back: nobody here drives it on
    by: str | None = None  # who resumed it
    brief: bool = False  # a worker took it: once it is put away it is out of memory, however soon its timer is


class Driver:
    """The runs a ``Layer`` was given."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.driven: dict[str, Driven] = {}
        self._admitting: dict[str, asyncio.Event] = {}
        self._batch: asyncio.Future[None] | None = None  # while a worker takes runs: which, is known when it is over
        self.asleep: set[int] = set()  # runs that are put away until their timer, which is waited for here
        self._waiting: set[asyncio.Task[bool]] = set()  # callers that wait for a parked run to move
        services.worker.on_lost = self._lost
        services.drive, services.halt = self.drive_below, self.cancelled

    # -- entry ----------------------------------------------------------------------------------------------------------

    async def admit_and_drive(self, admission: Admission, workflow: Workflow[Any, Any], *, wait: float | None) -> Row:
        """Admit a run and drive it: one durable commit for both."""
        self.services.worker.start()
        grip, recovery_id = Grip(self.services.worker), self.services.edge.new_id("rec")
        has(workflow)  # read before the transaction, which writes it down

        def unit(tx: Tx) -> tuple[Row, Taken | None, Loaded | None]:
            grip.again()
            row = runs.admit(tx, admission, self.services.edge.now_us())
            if RunStatus(row["status"]).ended or self._mine(admission.run_id):
                return row, None, None
            taken = grip.take(self._take(tx, row, workflow))
            return row, taken, self._loaded(tx, taken, recovery_id, recovery=False)

        run_id = admission.run_id
        while (other := self._admitting.get(run_id)) is not None:  # who took it has to drive it: one at a time
            await other.wait()
        admitted = self._admitting[run_id] = asyncio.Event()
        self.services.store.enter()
        try:
            with grip:
                row, taken, loaded = await self.services.store.write(unit, durable=True, client=admission.client_id)
                if RunStatus(row["status"]).ended:
                    return row
                first = [(taken, loaded)] if taken is not None else []
                await self._batch_over()
                if self._mine(run_id) is None:
                    grip.keep(row["no"])
                driven = self._driven(run_id, workflow, recovery=False, first=first)
            self._admitted(run_id, admitted)
            return await self._see_through(run_id, workflow, driven, wait)
        finally:
            self._admitted(run_id, admitted)
            self.services.store.leave()

    def _admitted(self, run_id: str, admitted: asyncio.Event) -> None:
        if self._admitting.get(run_id) is admitted:
            del self._admitting[run_id]
        admitted.set()

    async def drive(self, run_id: str, workflow: Workflow[Any, Any], *, wait: float | None, by: str | None) -> Row:
        """Drive a known run until it ends, or waits for something that is not waited for: a recovery, in which nothing is chosen.

        *by*: who resumes it.
        """
        self.services.worker.start()
        self.services.store.enter()
        try:
            await self._batch_over()
            begins = self._mine(run_id) is None
            driven = self._driven(run_id, workflow, recovery=True, first=[])
            if begins:
                driven.by = by
            return await self._see_through(run_id, workflow, driven, wait)
        finally:
            self.services.store.leave()

    async def resume(self, run_id: str, workflow: Workflow[Any, Any], wanted: Wanted, *, wait: float | None) -> Row:
        """Drive a known run as ``drive`` does, and as was chosen. That is on record before anything of it begins.

        Raises:
            InvalidChoice: it cannot be obeyed, or the run is executed elsewhere; nothing was changed.
        """
        self.services.worker.start()
        grip = Grip(self.services.worker)
        await self._quiet(run_id)
        taking_it = self._admitting[run_id] = asyncio.Event()
        self.services.store.enter()
        try:
            with grip:
                taken, loaded = await self._take_chosen(run_id, workflow, wanted, grip)
                await self._undriven(run_id)  # who came first meanwhile finds that it is ours, and ends
                grip.keep(taken.run["no"])
                driven = self._driven(run_id, workflow, recovery=True, first=[(taken, loaded)])
            self._admitted(run_id, taking_it)
            return await self._see_through(run_id, workflow, driven, wait)
        finally:
            self._admitted(run_id, taking_it)
            self.services.store.leave()

    async def _quiet(self, run_id: str) -> None:
        """Wait until nobody in this process drives the run, or is just taking it."""
        await self._undriven(run_id)
        while (other := self._admitting.get(run_id)) is not None:
            await other.wait()
            await self._undriven(run_id)

    async def _undriven(self, run_id: str) -> None:
        await self._batch_over()
        while (mine := self._mine(run_id)) is not None:
            if mine.loop is asyncio.get_running_loop():
                await asyncio.wait({mine.task})
            else:
                await asyncio.sleep(POLL_S)

    async def _take_chosen(
        self, run_id: str, workflow: Workflow[Any, Any], wanted: Wanted, grip: Grip
    ) -> tuple[Taken, Loaded | None]:
        edge, worker, recovery_id = self.services.edge, self.services.worker, self.services.edge.new_id("rec")
        whose = (await self._row(run_id))["client_id"]

        def unit(tx: Tx) -> tuple[Taken, Loaded | None]:
            grip.again()
            taken = grip.take(self._take(tx, self._given_back(tx, run_id), workflow))
            loaded = None if taken.hold is None else load(tx, taken.run["no"])
            if taken.hold is not None and loaded is not None:
                chosen = choosing.settle(tx, wanted, loaded, workflow)
                recoveries.begin(tx, taken.hold, loaded, recovery_id, chosen, edge.now_us(), wanted.plan)
            return taken, loaded

        while True:
            taken, loaded = await self.services.store.write(unit, durable=True, client=whose)
            if taken.hold is not None:
                return taken, loaded
            if RunStatus(taken.run["status"]).ended:
                raise InvalidChoice(run_id, choosing.ended(taken.run))
            if taken.paused:
                raise InvalidChoice(run_id, f"nothing begins for {whose} while that client is paused: unpause it first")
            if not worker.doubts(taken.run["owner"]):
                raise InvalidChoice(run_id, "it is just being executed elsewhere: choose when it waits, or has been given back")
            await edge.sleep_until(edge.now_us() + round(POLL_S * 1e6))

    async def drive_below(self, run_id: str, workflow: Workflow[Any, Any], recovery: bool) -> Row:  # noqa: FBT001
        """Drive a run for the one that started it, as far as it gets. Cancelled, only this waiting ends."""
        await self._batch_over()
        driven = self._driven(run_id, workflow, recovery=recovery, first=[])
        if driven.loop is asyncio.get_running_loop():
            await asyncio.wait({driven.task})
            return await self._row(run_id) if driven.task.cancelled() else driven.task.result()
        return await self._wait_for(run_id, driven)

    def _mine(self, run_id: str) -> Driven | None:
        driven = self.driven.get(run_id)
        return driven if driven is not None and not driven.task.done() else None

    def _driven(
        self,
        run_id: str,
        workflow: Workflow[Any, Any],
        *,
        recovery: bool,
        first: list[tuple[Taken, Loaded | None]],
    ) -> Driven:
        """Whoever drives the run in this process; we, if nobody does."""
        driven = self._mine(run_id)
        if driven is None:
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._drive(run_id, workflow, recovery, first), name=f"stepseven run {run_id}")
            driven = self.driven[run_id] = Driven(task, loop, hold=first[0][0].hold if first else None)
            task.add_done_callback(lambda t: self._forget(run_id, t))
        return driven

    async def _see_through(self, run_id: str, workflow: Workflow[Any, Any], driven: Driven, wait: float | None) -> Row:
        """Wait as this caller said: it drives the run on whenever it moved. Another caller may wait longer, or not at all."""
        edge = self.services.edge
        give_up = None if wait is None else edge.monotonic() + wait
        while True:
            row = await self._wait_for(run_id, driven)
            if driven.released or RunStatus(row["status"]).ended:
                return row
            waiting = asyncio.get_running_loop().create_task(self._moved(row, give_up))
            self._waiting.add(waiting)
            try:
                if not await waiting:
                    return await self._row(run_id)
            finally:
                self._waiting.discard(waiting)
            await self._batch_over()
            driven = self._driven(run_id, workflow, recovery=False, first=[])

    async def _wait_for(self, run_id: str, driven: Driven) -> Row:
        """Wait for a driven run. Running it and waiting for it are separate tasks: who stops waiting does not stop it."""
        if driven.loop is asyncio.get_running_loop():
            return await asyncio.shield(driven.task)
        while not driven.task.done():  # noqa: ASYNC110 - another thread's loop drives it
            await asyncio.sleep(POLL_S)
        return await self._row(run_id)

    def _forget(self, run_id: str, task: asyncio.Task[Row]) -> None:
        driven, fences = self.driven.get(run_id), self.services.worker.fences
        if driven is not None and driven.task is task:
            del self.driven[run_id]
            if driven.hold is not None and fences.get(driven.hold.run_no) == driven.hold.fence:
                del fences[driven.hold.run_no]  # it never came to its execution: the heartbeat gives it back
        if not task.cancelled():
            task.exception()  # whoever awaits it sees it; nobody else has to

    # -- for a worker ---------------------------------------------------------------------------------------------------

    async def take_due(self, wanting: Wanting, room: int, workflows: Mapping[str, Workflow[Any, Any]], *, empty: bool) -> Batch:
        """Take what is due, in one durable commit, and drive it. Nobody else here begins to drive a run meanwhile."""
        grip = Grip(self.services.worker)
        self._batch = batch_over = asyncio.get_running_loop().create_future()
        read = {name: found for name, workflow in workflows.items() if (found := has_read(workflow)) is not None}

        def unit(tx: Tx) -> Batch:
            grip.again()
            w = replace(wanting, skip=(*wanting.skip, *self.asleep), has=read)
            batch = taking.take_due(tx, w, room, self.services.edge.now_us(), empty=empty)
            for taken in batch.taken:
                grip.take(taken)
            return batch

        try:
            with grip:
                batch = await self.services.store.write(unit, durable=True, client=None)
                for taken in batch.taken:
                    if taken.hold is None or self._mine(taken.hold.run_id) is not None:
                        continue
                    grip.keep(taken.hold.run_no)
                    code = workflows[taken.run["workflow"]]
                    self._driven(taken.hold.run_id, code, recovery=False, first=[(taken, None)]).brief = True
            return batch
        finally:
            self._batch = None
            batch_over.set_result(None)

    async def _batch_over(self) -> None:
        """Wait until it is known which runs a worker in this loop is just taking: they are driven once."""
        while self._batch is not None and self._batch.get_loop() is asyncio.get_running_loop():
            await asyncio.shield(self._batch)

    async def put_down(self, run_ids: Collection[str], why: str) -> None:
        """Give back runs that a worker took, each as soon as it can be: writes and paid reads in hand are finished first.

        A free read in hand is not waited for: whoever takes the run reads again.
        """
        mine = [driven for run_id in run_ids if (driven := self._mine(run_id)) is not None]
        await asyncio.gather(*(self._put_down(driven, why) for driven in mine))

    async def _put_down(self, driven: Driven, why: str) -> None:
        give_up = asyncio.get_running_loop().time() + PAID_PATIENCE_S
        if driven.execution is not None:
            driven.execution.draining = True
        while (execution := driven.execution) is not None and execution.paying:  # it may begin anew meanwhile
            if asyncio.get_running_loop().time() > give_up:
                break  # it is on record that it had begun
            await asyncio.sleep(DRAIN_LOOK_S)
        await self._release([driven], why)

    # -- the loop -------------------------------------------------------------------------------------------------------

    async def _drive(
        self,
        run_id: str,
        workflow: Workflow[Any, Any],
        recovery: bool,  # noqa: FBT001
        first: list[tuple[Taken, Loaded | None]],
    ) -> Row:
        """Execute until the run ends, or is parked for longer than is waited for in memory. Nobody's ``wait=`` counts here."""
        edge = self.services.edge
        while True:
            taken, loaded = first.pop() if first else await self._take_now(run_id, workflow, recovery=recovery)
            self.driven[run_id].hold = taken.hold
            if taken.hold is not None and loaded is None:  # read apart, so that no lock is held by a long one
                loaded = await self.services.store.read(partial(_load, taken.hold.run_no))
                await self._begin_recovery(taken, loaded)
            if taken.hold is not None and loaded is not None:
                again = recovery or recoveries.open_one(loaded.recoveries) is not None
                over = await self._execute(workflow, taken, loaded, recovery=again)
                if over is Over.AGAIN:
                    continue
                if over is Over.RELEASED:
                    self.driven[run_id].released = True
                    return await self._row(run_id)
            elif taken.paused:  # it is somebody's word that moves it on, and no timer
                self.driven[run_id].released = True
                return await self._row(run_id)
            elif self.services.worker.doubts(taken.run["owner"]):
                await edge.sleep_until(edge.now_us() + round(POLL_S * 1e6))
                continue
            row = await self._row(run_id)
            if self.driven[run_id].brief or not self._wakes_soon(row):
                return row
            self.asleep.add(row["no"])  # a worker here leaves it to us
            try:
                await edge.sleep_until(row["wake_us"])
            finally:
                self.asleep.discard(row["no"])
            recovery = False

    async def _execute(self, workflow: Workflow[Any, Any], taken: Taken, loaded: Loaded, *, recovery: bool) -> Over:
        hold = taken.hold
        assert hold is not None  # noqa: S101 - the caller looked
        execution = Lifecycle(self.services, workflow, hold, loaded, recovery=recovery)
        execution.code_before, execution.broke_off = taken.run["source_digest"], taken.run["owner"] is not None
        driven = self.driven.get(hold.run_id)
        if driven is not None:
            driven.execution, execution.brief = execution, driven.brief
        fences, executed = self.services.worker.fences, self.services.worker.executed
        executed[hold.run_no], over = execution.executed_us, Over.AGAIN
        fences[hold.run_no] = hold.fence
        kinship.came(execution)
        try:
            over = await execution.execute(poisoned=taken.poisoned)
            if over is Over.LOST:
                self.services.tell(hold.run_id, "lost", why=execution.lost or "another worker took it over")
            return over
        finally:
            fences.pop(hold.run_no, None)
            kinship.left(execution)
            if over is Over.AGAIN:  # it is still owned: what it has taken so far is stored when it is given back
                executed[hold.run_no] = partial(int, execution.executed_us())
            else:
                del executed[hold.run_no]
            if driven is not None:
                driven.execution = None

    def _take(self, tx: Tx, row: Row, workflow: Workflow[Any, Any]) -> Taken:
        worker = self.services.worker
        now, dead = self.services.edge.now_us(), worker.dead_workers(tx)
        return runs.take(tx, row, worker.id, source_digest=workflow.digest, now_us=now, proven_dead=dead, has=has_read(workflow))

    def _given_back(self, tx: Tx, run_id: str) -> Row:
        """The run's row, after it was given back if it is in nobody's hands here."""
        worker, row = self.services.worker, runs.known(tx, run_id)
        if row["owner"] == worker.id and row["no"] not in worker.fences:  # the store failed when it was to be given back
            stray(tx, row["no"], worker.id, row["fence"], self.services.edge.now_us(), worker.executed_us(row["no"]))
            row = runs.known(tx, run_id)
        return row

    async def _take_now(self, run_id: str, workflow: Workflow[Any, Any], *, recovery: bool) -> tuple[Taken, Loaded | None]:
        grip, recovery_id = Grip(self.services.worker), self.services.edge.new_id("rec")
        by = self.driven[run_id].by if recovery else None

        def unit(tx: Tx) -> tuple[Taken, Loaded | None]:
            grip.again()
            taken = grip.take(self._take(tx, self._given_back(tx, run_id), workflow))
            return taken, self._loaded(tx, taken, recovery_id, recovery=recovery, by=by)

        with grip:
            taken, loaded = await self.services.store.write(unit, durable=True, client=None)  # compare and set: one row
            grip.keep(taken.run["no"])
            return taken, loaded

    def _loaded(self, tx: Tx, taken: Taken, recovery_id: str, *, recovery: bool, by: str | None = None) -> Loaded | None:
        """What is on record of a run that this transaction took; its recovery begins with it, if it is one."""
        loaded = load(tx, taken.run["no"]) if taken.hold is not None else None
        if taken.hold is not None and loaded is not None and (recovery or self._long_ago(taken, loaded)):
            recoveries.begin(tx, taken.hold, loaded, recovery_id, None, self.services.edge.now_us(), by=by)
        return loaded

    def _long_ago(self, taken: Taken, loaded: Loaded) -> bool:
        """Whether the run has waited for so long that the world may have moved."""
        waited = taken.run["status"] in ("waiting", "queued") and taken.run["executions"] > 0
        return waited and self.services.edge.now_us() - last_us(loaded) > RECOVERY_AFTER_US

    async def _begin_recovery(self, taken: Taken, loaded: Loaded | None) -> None:
        """The same for one that a worker took: it chose nothing, so that nobody has to wait for the disk."""
        hold, edge = taken.hold, self.services.edge
        if hold is None or loaded is None or not self._long_ago(taken, loaded):
            return
        recovery_id, open_before = edge.new_id("rec"), list(loaded.recoveries)

        def unit(tx: Tx) -> None:
            loaded.recoveries[:] = open_before
            recoveries.begin(tx, hold, loaded, recovery_id, None, edge.now_us())

        await self.services.store.write(unit, durable=False, client=None)

    async def _row(self, run_id: str) -> Row:
        row = await self.services.store.read(lambda tx: tx.one(tx.sql.run_by_id, {"id": run_id}))
        if row is None:
            raise UnknownRun(run_id)
        return row

    def _wakes_soon(self, row: Row) -> bool:
        """Whether the run waits for a timer that every caller waits for."""
        timer = row["status"] == "waiting" and row["waiting_for"] != WaitingFor.PERSON and row["wake_us"] is not None
        return timer and bool(row["wake_us"] - self.services.edge.now_us() <= SHORT_WAIT_US)

    async def _moved(self, row: Row, give_up: float | None) -> bool:
        """Wait for what moves the run, as long as the caller waits: ``True`` = drive it on."""
        edge = self.services.edge
        status = row["status"]
        while row["status"] == status != "queued":
            if self._wakes_soon(row):
                return True
            left = None if give_up is None else give_up - edge.monotonic()
            if left is None or left <= 0:
                return False
            await edge.sleep_until(edge.now_us() + round(min(POLL_S, left) * 1e6))
            if row["wake_us"] is not None and row["wake_us"] <= edge.now_us():
                return True
            row = await self._row(row["id"])
            if row["waiting_for"] == WaitingFor.CHILD and await self._stirs(row):
                return True
        return True

    async def _stirs(self, row: Row) -> bool:
        """Whether a run that a parked one has started could go on: then who waits for the parked one drives that."""
        now, dead = self.services.edge.now_us(), self.services.worker.dead_workers
        return await self.services.store.read(lambda tx: children.stirs(tx, row, now, dead(tx)))

    # -- told from outside ------------------------------------------------------------------------------------------------

    def answered(self, question_id: str) -> None:
        """A question was answered in this process: whoever waits for it looks at once."""
        self.services.stir()
        for driven in list(self.driven.values()):
            execution = driven.execution
            if execution is not None:
                driven.loop.call_soon_threadsafe(execution.wake_question, question_id)

    def learned(self, client_id: str, key: str) -> None:
        """A fact was set in this process: whoever waits for it looks at once."""
        self.services.stir()
        for driven in list(self.driven.values()):
            execution = driven.execution
            if execution is not None and execution.hold.client_id == client_id:
                driven.loop.call_soon_threadsafe(execution.wake_fact, key)

    def cancelled(self, run_id: str, reason: str) -> None:
        """A run was cancelled in this process: its execution stops at once."""
        self.services.stir()
        driven = self._mine(run_id)
        if driven is not None and driven.execution is not None:
            stop = Stop(RunStatus.CANCELLED, reason, kind=FailureKind.FIXABLE)
            driven.loop.call_soon_threadsafe(driven.execution.halt, stop)

    def _lost(self, run_no: int, why: str) -> None:
        """The heartbeat found that a run is no longer ours."""
        for driven in list(self.driven.values()):
            execution = driven.execution
            if execution is not None and execution.hold.run_no == run_no:
                driven.loop.call_soon_threadsafe(execution.lose, why)

    def where(self, run_id: str) -> str | None:
        """What a run in this process waits for that stepseven does not know: file and line."""
        driven = self._mine(run_id)
        execution = driven.execution if driven is not None else None
        if execution is None:
            return None
        for task in list(execution.tasks):
            if not task.done() and standing(task, execution.tasks, execution.waits, execution.inside) is Standing.FOREIGN:
                found = foreign_place(task)
                if found is not None:
                    return found
        return None

    async def close(self) -> None:
        """Give every run back; writes in flight are finished and recorded first."""
        loop = asyncio.get_running_loop()
        mine = [d for d in self.driven.values() if d.loop is loop and not d.task.done()]
        waiting = [task for task in self._waiting if task.get_loop() is loop]
        for task in waiting:
            task.cancel()
        await self._release(mine, "its process closed the layer", *waiting)

    async def _release(self, mine: list[Driven], why: str, *also: asyncio.Task[Any]) -> None:
        """Give these back, and wait until they are out of memory (and for what else was told to end)."""
        for driven in mine:
            if driven.execution is not None:
                driven.execution.release(why)
            else:
                driven.task.cancel()
        if mine or also:
            await asyncio.gather(*(d.task for d in mine), *also, return_exceptions=True)


def _load(run_no: int, tx: Tx) -> Loaded | None:
    return load(tx, run_no)
