"""One run in memory, as its code meets it: steps are called, records written, things waited for.

User code reaches it through ``call`` (a step) and through the ``Run`` handle; both look at the records first. While an execution
lives it is the only writer of its run. How it begins and ends is in ``lifecycle``.

Longer than other files: one object, and what it promises its run's code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from stepseven.errors import StoreUnavailable, Superseded
from stepseven.model import EffectKind, QuestionKind, WaitingFor
from stepseven.runtime import files, outline, reading, refusing, remembering, unneeded, writing
from stepseven.runtime.calls import Call, Deferred, Refusal, identify
from stepseven.runtime.declared import Step
from stepseven.runtime.memory import RunMemory, Stop
from stepseven.runtime.place import Place
from stepseven.runtime.services import SHORT_WAIT_US
from stepseven.runtime.stepclock import stopped
from stepseven.runtime.waits import DurableWait, Flight, Lull, Standing, standing
from stepseven.store.artifacts import IN_ROW, content_hash
from stepseven.store.base import Row, Tx
from stepseven.transitions import questions, steps
from stepseven.transitions.clients import Given
from stepseven.transitions.state import Hold, Record

SETTLE_PATIENCE_US = 15 * 60 * 1_000_000  # an ending run looks itself whether its writes happened; nobody would wake it

T = TypeVar("T")


class Execution(RunMemory):
    """A run in memory. Everything here happens in one event loop."""

    all_at_once = False  # a map enters all its items, however few it may have at a time

    async def will_ask(self, kind: QuestionKind, text: str, *, branch: str, key: str, step: str | None) -> None:
        """A question is about to be stored. Where nothing may be written, this does not return."""

    async def will_start(self, name: str, *, branch: str, key: str, row: Row | None) -> None:
        """Another run is about to be started, or seen through (*row*). Where nothing may be written, this does not return."""

    async def may_start(self, name: str, *, branch: str, key: str) -> None:
        """Another run is started if a person, who is about to be asked, says so."""

    # -- steps ----------------------------------------------------------------------------------------------------------

    def call(self, step: Step[Any, Any], here: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Deferred[Any]:
        """A step was called: identify it now, run or replay it when awaited."""
        if self.unloading is not None:
            return Refusal(here, step.name)
        refusing.check_place(step, here)
        answer = reading.read if step.settings.effect is EffectKind.READ else writing.write
        return identify(step, here, args, kwargs, answer if step.settings.remember is None else remembering.remembered(answer))

    async def may_begin(self, call: Call) -> None:
        """Whether a step that is not on record may begin. Where its run is about to be given back it never does.

        Raises:
            Superseded: the run is being put away, or was taken over.
        """
        self.check()
        if self.draining and call.place.attempt is None:  # what a step in hand calls belongs to it
            await self.forever()

    async def shared(self, flight: Flight) -> None:
        """Wait for a call in flight that will leave the record we want."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flight.waiters.append(waiter)
        self.inside.add(waiter)
        self.look()
        try:
            with stopped():
                await waiter
        finally:
            self.inside.discard(waiter)

    async def take_lane(self, lane: tuple[str, ...]) -> None:
        """Become the only call of this run that claims this effect."""
        while (flight := self.flights.get(lane)) is not None:
            await self.shared(flight)
        self.flights[lane] = Flight()

    def free_lane(self, lane: tuple[str, ...]) -> None:
        """Let the next call of the same effect look."""
        self.flights.pop(lane).wake()

    def artifact_of(self, text: str) -> steps.Artifact | None:
        """How a result is kept when it is too large for its row."""
        if len(text) <= IN_ROW:
            return None
        name = content_hash(text)
        anew = name in self.damaged
        if len(text) <= self.services.artifacts.in_table:
            return steps.Artifact(hash=name, size=len(text), body=text, location=None, anew=anew)
        kept = self.services.artifacts
        self.put_files.add(name)
        try:
            location = kept.put(name, text, anew=anew)
        except StoreUnavailable as error:
            raise self.abandon(error) from error
        again = partial(kept.again, name, text)
        return steps.Artifact(hash=name, size=len(text), body=None, location=location, again=again, anew=anew)

    def refused(self) -> None:
        """A write was: what was put into files for it goes, unless a record names it. Left over it is found by a prune."""
        with suppress(StoreUnavailable, OSError):
            files.discard(self.store, self.services.artifacts, self.put_files)
        self.put_files.clear()

    async def append(  # noqa: C901 - one statement in the untroubled case, and what else may be written with it
        self,
        record: Record,
        *,
        durable: bool,
        begun: dict[str, Any] | None = None,
        text: str | None = None,
        fact: Given | None = None,
        also: Callable[[Tx], object] | None = None,
    ) -> None:
        """Write a record, and make it answer.

        *text*: its result, if not in the record yet; *fact*: what it says of the client; *also*: what is written with it.

        Raises:
            Superseded: the run is no longer ours, or is being put away.
        """
        self.check()
        artifact = None
        if text is not None:
            artifact = self.artifact_of(text)
            record.result, record.artifact = (text, None) if artifact is None else (None, artifact.hash)
        durable = durable or self.full
        now = record.ended_us or self.now_us()

        def unit(tx: Tx) -> None:
            remembering.learn(tx, record, fact, now_us=now)
            steps.append(tx, self.hold, record, now_us=now, artifact=artifact, begun=begun)
            if also is not None:
                also(tx)

        def kept(_: Any) -> None:
            self.keep(record)

        if artifact is None and begun is None and fact is None and also is None:
            statement, values = record.insert(self.store.sql, self.hold.values())
            try:
                written = self.store.append_now(statement, values, durable=durable)
                if written is None:  # it has to queue
                    written = await self.store.append(statement, values, durable=durable)
            except asyncio.CancelledError:
                kept(None)  # it is written: who asks next must not run it again
                raise
            except StoreUnavailable as error:
                raise self.abandon(error) from error
            if written:
                kept(None)
            else:  # we have to know why not
                await self.write(unit, durable=durable, then=kept)
        else:
            await self.write(unit, durable=durable, then=kept)
        if self.services.watchers:
            self.tell_step(record)

    async def write(
        self, unit: Callable[[Tx], T], *, durable: bool, then: Callable[[T], None] | None = None, asks: bool = True
    ) -> T:
        """One transaction on this run. It is finished, and *then* called, even if the caller is cancelled meanwhile.

        Args:
            unit: what to write.
            durable: wait for the disk.
            then: brings the memory up to what was written; a cancelled caller would leave the two apart.
            asks: whether *unit* uses more of its transaction than ``later``.

        Raises:
            Superseded: the run is no longer ours.
        """
        written: list[T] = []

        def noted(tx: Tx) -> T:
            written.clear()  # of an execution that was not committed
            written.append(unit(tx))
            return written[0]

        try:
            result = await self.store.write(noted, durable=durable or self.full, client=self.hold.client_id, asks=asks)
        except asyncio.CancelledError:  # the store lets it out only after the commit
            if then is not None and written:
                then(written[0])
            raise
        except Superseded as signal:
            self.lose(signal.why)
            self.refused()
            raise
        except StoreUnavailable as error:
            raise self.abandon(error) from error
        if then is not None:
            then(result)
        return result

    # -- waiting --------------------------------------------------------------------------------------------------------

    async def wait(self, wait: DurableWait) -> Any:
        """Wait for something the store knows about. The run may be put away meanwhile.

        Raises:
            Superseded: the run is being put away.
        """
        self.check()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self.waits[future] = wait
        cancel = None
        if wait.until_us is not None and wait.until_us - self.now_us() <= self._patience_us():
            cancel = self.edge.call_at(wait.until_us, lambda: _fire(future))
        self.look()
        try:
            with stopped():
                return await future
        finally:
            del self.waits[future]
            if cancel is not None:
                cancel()

    def _patience_us(self) -> int:
        """How long a timer is waited for in memory."""
        return SETTLE_PATIENCE_US if self.settling else SHORT_WAIT_US

    async def until(self, at_us: int, what: str) -> None:
        """A durable timer."""
        if at_us > self.now_us():
            await self.wait(DurableWait(kind=WaitingFor.TIMER, what=what, until_us=at_us))

    async def answered(self, row: Row) -> Row:
        """Wait until a question is no longer open; the row as it is then."""
        self.wanted.add(row["id"])
        while row["status"] == "open":
            if row["deadline_us"] is not None and row["deadline_us"] <= self.now_us():
                closed = await self.write(partial(_expire, self.hold, row["id"], self.now_us()), durable=True)
            else:
                await self.wait(
                    DurableWait(
                        kind=WaitingFor.PERSON, what=row["text"].split("\n", 1)[0], until_us=row["deadline_us"],
                        question_id=row["id"],
                    )
                )  # fmt: skip
                closed = await self.question(row["id"])
            self.check()
            row = self.remember_question(closed)
        return row

    async def withdraw(self, question_id: str) -> Row:
        """Take a question of this run back; its row as it is then."""
        return await self.write(lambda tx: questions.withdraw(tx, self.hold, question_id, self.now_us()), durable=True)

    async def withdrawn(self, question_id: str) -> bool:
        """Take a question back. ``False``: it was answered just before, and that counts."""
        return bool(self.remember_question(await self.withdraw(question_id))["status"] != "answered")

    async def question(self, question_id: str) -> Row:
        """A question's row as it is in the store now."""
        row = await self.store.read(lambda tx: tx.one(tx.sql.question, {"id": question_id}))
        assert row is not None  # questions are never deleted while their run lives  # noqa: S101
        return row

    def wake_question(self, question_id: str) -> None:
        """A question was answered (here or elsewhere): whoever waits for it looks again."""
        for future, wait in list(self.waits.items()):
            if wait.question_id == question_id and not future.done():
                future.set_result(None)

    def wake_fact(self, key: str) -> None:
        """Something was said about the client: whoever waits to know that looks again."""
        for future, wait in list(self.waits.items()):
            if wait.fact == key and not future.done():
                future.set_result(None)

    def wake_child(self, no: int) -> None:
        """A run that this one started stands otherwise: whoever waits for it looks again."""
        for future, wait in list(self.waits.items()):
            if wait.child is not None and wait.child.no == no and not future.done():
                future.set_result(None)

    def wake_resource(self, name: str) -> None:
        """A resource answers again, or is to be tried: whoever waits for it looks again."""
        for future, wait in list(self.waits.items()):
            if wait.resource == name and not future.done():
                future.set_result(None)

    def look(self) -> None:
        """Look soon whether everything waits."""
        if not self._look_soon and self._over is not None:
            self._look_soon = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._look_soon = False
        if self._lull is None and self._all_wait():
            self._lull = Lull(self.tasks, self._look_closer)

    def _look_closer(self) -> None:
        """Everything waited a few turns of the loop ago: put it away if it still waits for the same."""
        lull, self._lull = self._lull, None
        if lull is None or not self._all_wait():
            return
        if lull.held(self.tasks):
            outline.see(self)
            self.unneeded = () if self.settling else unneeded.questions(self)
            self._finish("it is put away until what it waits for happens")
        else:
            self.look()

    def _all_wait(self) -> bool:
        """Whether nothing of the run can go on before something happens that the store knows of."""
        over = self.unloading is not None or self._over is None or self._over.done()
        if over or not self.waits or self.driving or self.turns.waiting:
            return False
        if self.body is not None and self.body.done():  # found out in a moment: what is left of it waits for nothing
            return False
        soon = self.now_us() + self._patience_us()
        if any(w.until_us is not None and w.until_us <= soon and w.question_id is None for w in self.waits.values()):
            return False
        if any(f.done() for f in self.waits):
            return False
        for task in self.tasks:
            if task.done():  # who waits for it is told in a moment; then this is looked at again
                return False
            if standing(task, self.tasks, self.waits, self.inside) in (Standing.RUNNABLE, Standing.FOREIGN):
                return False
        return True

    def adopt(self, task: asyncio.Future[Any]) -> None:
        """A task of the run's own code was created."""
        if isinstance(task, asyncio.Task):
            self.tasks.add(task)
            task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            if self.unloading is not None:
                task.exception()  # discarded: what the code did after unloading began does not count
            else:
                self._ended.add(task)
        self.look()

    # -- the ways out -----------------------------------------------------------------------------------------------------

    def _finish(self, why: str) -> None:
        """From now on durable calls raise; ``execute`` puts everything away."""
        if self.unloading is None:
            self.unloading = why
            self.waited = list(self.waits.values())  # what ends from now on is found when the run is parked
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def halt(self, stop: Stop) -> None:
        """End the run: fatal, stopped by a person, or cancelled. Every claim is settled first."""
        if self.stop is None and self.lost is None:
            self.stop = stop
        if not self.settling:  # else it is ending already
            outline.see(self)
            self._finish(stop.reason)

    def lose(self, why: str) -> None:
        """Another worker has the run."""
        self.lost = self.lost or why
        self._finish(why)

    def abandon(self, error: StoreUnavailable) -> StoreUnavailable:
        """The store did not take a write: the code above must not go on as if it had. The error, for whoever waits for us."""
        if self.broken is None:
            self.broken = error
        self._finish(str(error))
        return error

    def release(self, why: str) -> None:
        """Give the run back, soon."""
        self.releasing = self.releasing or why
        self._finish(why)

    def restart(self, why: str) -> None:
        """Load the run again and run its body from the top."""
        self.restarting = True
        self._finish(why)

    async def forever(self) -> Any:
        """Never returns: the run is ending and the calling code must not go on."""
        await asyncio.get_running_loop().create_future()


def _expire(hold: Hold, question_id: str, now_us: int, tx: Tx) -> Row:
    return questions.expire(tx, hold, question_id, now_us)


def _fire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
