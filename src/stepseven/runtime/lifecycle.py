"""An execution from its take to its end: the body is run from the top until it ends, waits, or is taken away.

It ends in one of five ways (``memory.Over``). Whatever the way, the run's code is cancelled first, and writes in flight are
finished and recorded.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from contextlib import suppress
from typing import Any

from stepseven.decide.circuit import Circuit
from stepseven.errors import Fatal, Refused, StepFailed, StepsevenError, StoreUnavailable, Superseded
from stepseven.model import FailureKind, QuestionKind, RunStatus, WaitingFor
from stepseven.runtime import asking, children, chosen, codechange, drifting, facts, kinship, outages, outline, settling, starting
from stepseven.runtime.execution import Execution
from stepseven.runtime.handle import Run
from stepseven.runtime.memory import Over, Stop, where
from stepseven.runtime.place import Place, install, place
from stepseven.runtime.refusing import only
from stepseven.runtime.waits import TICK_S, DurableWait
from stepseven.store.base import Row, Tx
from stepseven.store.codec import free_text, guard
from stepseven.transitions import circuits, clients, runs, steps
from stepseven.transitions.runs import Ending, Parking
from stepseven.transitions.state import Record, choice_of

UNLOAD_PATIENCE_S = 30.0


class _Unkept(Exception):
    """What the workflow returned cannot be kept."""

    def __init__(self, why: StepsevenError) -> None:
        super().__init__(str(why))
        self.why = why


class Lifecycle(Execution):
    """An execution that can be executed."""

    async def execute(self, *, poisoned: bool) -> Over:
        """Run the body from the top until it ends, waits, or is taken away."""
        loop = asyncio.get_running_loop()
        install(loop)
        self._over = loop.create_future()
        ticker = loop.create_task(self._ticker())
        try:
            return await self._live(poisoned=poisoned)
        except Superseded as signal:  # found out while writing: it is not ours any more
            self.lose(signal.why)
            return await self._put_away(None)
        except BaseException as error:
            stopped = isinstance(error, asyncio.CancelledError)
            self.release("its process was told to stop" if stopped else "its execution broke off")
            await self._unload()
            await self._give_back()
            raise
        finally:
            ticker.cancel()

    async def _live(self, *, poisoned: bool) -> Over:
        self.above = await kinship.parents(self)
        begun = Stop.begun(self.run)
        if begun is not None:
            self.halt(begun)
        elif poisoned or self._open(QuestionKind.POISON):
            await self._poisoned()
        body: asyncio.Task[Any] | None = None
        while True:
            if self.unloading is None and (body is None) and await self._may_begin() and await self._looked():
                body = self.body = self._begin()
            ended = await self._first(body)
            self.body = None
            if ended is None:
                return await self._put_away(body)
            again, over = await self._body_ended(ended)
            if over is not None:
                return over
            body = None
            if again is False:
                return await self._put_away(None)

    def _open(self, kind: QuestionKind) -> Row | None:
        rows = self.questions.get(("", kind.value, kind.value), [])
        return rows[-1] if rows and rows[-1]["status"] == "open" else None

    async def _poisoned(self) -> None:
        """The run kept dying: a person decides before it is started again."""
        row = self._open(QuestionKind.POISON)
        if row is None:
            row = await asking.poison(self)
        self.idle(row)

    def idle(self, row: Row) -> None:
        """Nothing runs; the run waits for this one question."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waits[future] = DurableWait(
            kind=WaitingFor.PERSON, what=row["text"].split("\n", 1)[0], until_us=row["deadline_us"], question_id=row["id"]
        )
        self._finish("it waits for an answer")

    async def _may_begin(self) -> bool:
        """Whether the body is to run: not while its own failure waits for a person and nothing was mended."""
        for row in self.questions.get(("", QuestionKind.POISON.value, QuestionKind.POISON.value), []):
            if row["status"] == "answered" and choice_of(json.loads(row["answer"])) == "stop":
                self.halt(Stop(RunStatus.CANCELLED, f"stopped by {row['answered_by']}", kind=FailureKind.FIXABLE))
                return False
        rows = self.questions.get(("", QuestionKind.FAILURE.value, "run.body"), [])
        if not rows:
            return True
        row = rows[-1]
        if row["status"] == "open":
            tried = self.attempts.get(("", "run.body", "run.body"), [])
            if not (self.resumed and tried and tried[-1]["source_digest"] != self.workflow.digest):
                self.idle(row)
                return False
            if not await self.withdrawn(row["id"]):
                return await self._may_begin()
        if row["status"] == "answered" and choice_of(json.loads(row["answer"])) == "stop":
            self.halt(Stop(RunStatus.CANCELLED, f"stopped by {row['answered_by']}", kind=FailureKind.FIXABLE))
            return False
        return True

    async def _looked(self) -> bool:
        """Whether the body is to run: not while a person has to tell what became of its code, or of what it builds on.

        What was chosen just now about all that moved is obeyed first: when a question about the code is answered, that is over.
        """
        if self.drift_chosen is not None and self.drift_chosen.until_us is None and self.drift_chosen.record:
            return await drifting.settle(self) and await codechange.settle(self)
        return await codechange.settle(self) and await drifting.settle(self)

    def _begin(self) -> asyncio.Task[Any]:
        root = Place(self, "")
        self.unkeyed.clear()
        self.left = None
        context = contextvars.copy_context()
        context.run(place.set, root)
        handle = Run(self, root)
        return asyncio.get_running_loop().create_task(starting.body(self, handle), context=context)

    async def _first(self, body: asyncio.Task[Any] | None) -> asyncio.Task[Any] | None:
        """The body's task if it ended, ``None`` if something else ended the execution."""
        assert self._over is not None  # noqa: S101 - set by execute
        if body is None:
            await self._over
            return None
        await asyncio.wait({body, self._over}, return_when=asyncio.FIRST_COMPLETED)
        return body if body.done() and self.unloading is None else None

    async def _ticker(self) -> None:
        """While something waits: notice answers given elsewhere, and requests to stop."""
        beat = 0
        while True:
            await asyncio.sleep(TICK_S)
            beat += 1
            self.look()
            if beat % 5 == 0 and (self.waits or beat % 10 == 0):
                with suppress(StepsevenError):  # the store is away for a moment: the next tick looks again
                    await self._look_at_store()

    async def _look_at_store(self) -> None:  # noqa: C901 - one read for all that may be waited for
        ids = [w.question_id for w in self.waits.values() if w.question_id is not None]

        keys = {w.fact for w in self.waits.values() if w.fact is not None}
        names = {w.resource for w in self.waits.values() if w.resource is not None}

        def unit(tx: Tx) -> tuple[Row | None, list[str], list[str], str | None, str, list[Circuit]]:
            run = tx.one(tx.sql.run_by_no, {"no": self.hold.run_no})
            theirs = run is None or run["owner"] != self.hold.owner or run["fence"] != self.hold.fence
            rows = [tx.one(tx.sql.question, {"id": q}) for q in ids]
            known = [k for k in keys if facts.holding(tx, self.hold.client_id, k, self.now_us()) is not None]
            closed = [r["id"] for r in rows if r is not None and r["status"] != "open"]
            taken = runs.taken_by(tx, run, self.hold.fence) if theirs else ""
            stands = [circuits.standing(tx, name) for name in names]
            return run, closed, known, clients.paused(tx, self.hold.client_id), taken, stands

        run, closed, known, paused, taken, stands = await self.store.read(unit)
        for question_id in closed:
            self.wake_question(question_id)
        for key in known:
            self.wake_fact(key)
        for no in await children.moved(self):
            self.wake_child(no)
        for each in stands:
            self.down.note(each)
            if outages.passes_now(self, each):
                self.wake_resource(each.name)
        if run is None or taken:
            self.lose(taken)
        elif run["status"] == "cancelling" and self.stop is None:
            self.halt(Stop(RunStatus.CANCELLED, run["reason"] or "cancelled", kind=FailureKind.FIXABLE))
        elif paused is not None and self.stop is None and not self.settling:
            self.release(facts.PAUSED)
        now = self.now_us()
        for future, wait in list(self.waits.items()):
            if wait.until_us is not None and wait.until_us <= now and not future.done():
                future.set_result(None)

    async def _unload(self) -> None:
        """Cancel what the run's code created and wait for it; writes in flight are finished and recorded first."""
        give_up = asyncio.get_running_loop().time() + UNLOAD_PATIENCE_S
        while pending := {t for t in (*self.tasks, *self.sending) if not t.done()}:
            for task in pending - self.sending:
                task.cancel()
            await asyncio.wait(pending, timeout=0.5)
            if asyncio.get_running_loop().time() > give_up and not any(t in self.sending for t in pending):
                break  # code that swallows cancellation: its durable calls raise, so it can do no harm
        for task in [t for t in self.tasks if t.done() and not t.cancelled()]:
            task.exception()

    async def _put_away(self, body: asyncio.Task[Any] | None) -> Over:
        await self._unload()
        for task in (*self._ended, *(() if body is None else (body,))):
            if task.done() and not task.cancelled():
                task.exception()  # discarded: the code that would have looked at it runs again
        if self.lost is not None:
            return Over.LOST
        if self.broken is not None:
            self.releasing = "the store failed while it ran"
            with suppress(StoreUnavailable):  # still away: the heartbeat gives it back when the store is there again
                await self._give_back()
            raise self.broken
        if self.stop is not None:
            return await self._stopped(self.stop)
        if self.releasing is not None:
            await self._give_back()
            return Over.RELEASED
        return Over.AGAIN if self.restarting else await self._park(self.waited)

    async def _give_back(self) -> None:
        with suppress(Superseded):
            await self.write(
                lambda tx: runs.release(tx, self.hold, self.releasing or "released", self.executed_us(), self.now_us()),
                durable=True,
            )

    async def _park(self, waits: list[DurableWait]) -> Over:
        kinds = [w.kind for w in waits]
        order = [WaitingFor.PERSON, WaitingFor.EFFECT, WaitingFor.CIRCUIT, WaitingFor.CHILD, WaitingFor.EVENT, WaitingFor.TIMER]
        kind = next((k for k in order if k in kinds), WaitingFor.TIMER)
        times = [w.until_us for w in waits if w.until_us is not None]
        shown = next((w for w in waits if w.kind is kind), None)
        next_step, remaining = outline.ahead(self)
        if self.left is None and self._open(QuestionKind.POISON) is not None and self.run["remaining"] is not None:
            # Nothing of this code has run, nor was it compared: what the older one had ahead is what there is to compare with.
            next_step, remaining = self.run["next_step"], json.loads(self.run["remaining"])
        passed = codechange.passed_by(self, remaining)
        parking = Parking(
            waiting_for=kind.value, reason=free_text(shown.what if shown is not None else "it waits", 300),
            wake_us=min(times) if times else None, next_step=next_step, remaining=json.dumps(remaining),
            executing_us=self.executed_us(), question_ids=tuple(w.question_id for w in waits if w.question_id is not None),
            children=tuple((w.child.no, w.child.status, w.child.fence) for w in waits if w.child is not None),
            facts=tuple(w.fact for w in waits if w.fact is not None), unneeded=self.unneeded, resources=self._resources(waits),
        )  # fmt: skip
        try:
            parked = await self.write(lambda tx: self._parked(tx, parking, passed), durable=True)
        except Superseded:
            return Over.LOST
        if parked:
            self.services.tell(self.hold.run_id, "parked", reason=parking.reason)
            return Over.PARKED
        return Over.AGAIN

    def _resources(self, waits: list[DurableWait]) -> tuple[str, ...]:
        """The resources that the run waits for, also while a person is asked about them."""
        named = (w.resource or self.on_resource.get(w.question_id or "") for w in waits)
        return tuple(sorted({name for name in named if name is not None}))

    def _parked(self, tx: Tx, parking: Parking, passed: Record | None) -> bool:
        if passed is not None:  # first: it carries the fence
            steps.append(tx, self.hold, passed, now_us=self.now_us())
        parked = runs.park(tx, self.hold, parking, self.now_us())
        if parked:
            chosen.close(self, tx)
        return parked

    async def _settle(self) -> Over | None:
        """Find out about every claim in doubt before the run ends. Not ``None``: it cannot end yet."""
        if self.lost is not None:
            return Over.LOST
        if not await settling.open_claims(self):
            return None
        loop, ending, context = asyncio.get_running_loop(), self.stop, contextvars.copy_context()
        if ending is not None:
            going = (ending.status, ending.reason, ending.told())
            await self.write(lambda tx: runs.ending(tx, self.hold, going, self.now_us()), durable=True)
        self.settling, self.unloading, self._over = True, None, loop.create_future()
        context.run(place.set, Place(self, ""))
        task = loop.create_task(settling.settle_all(self), context=context)
        ended = await self._first(task)
        waits = list(self.waits.values())
        self._finish("it is ending")
        await self._unload()
        self.settling = False
        if self.lost is not None:
            return Over.LOST
        if ended is not None:
            ended.result()
            return None
        if self.stop is None and self.releasing is None:
            return await self._park(waits)
        self.releasing = self.releasing or (self.stop.reason if self.stop is not None else None)
        await self._give_back()
        return Over.RELEASED

    async def _stopped(self, stop: Stop) -> Over:
        told = "was cancelled" if stop.status is RunStatus.CANCELLED else "failed"
        left = await children.stop_all(self, f"run {self.hold.run_id}, which started it, {told}: {stop.reason}", stop)
        over = await self._settle()
        if over is not None:
            return over
        if left:  # what it started cannot end yet; when the last of that has, so does this
            self.releasing = stop.reason
            await self._give_back()
            return Over.RELEASED
        return await self._end(
            Ending(status=stop.status, failure=stop.told(), reason=free_text(stop.reason, 300),
                   remaining=json.dumps(outline.ahead(self)[1]), executing_us=self.executed_us())
        )  # fmt: skip

    async def _end(self, ending: Ending) -> Over:
        def unit(tx: Tx) -> bool:
            ended = runs.end(tx, self.hold, ending, self.now_us())
            if ended:
                chosen.close(self, tx)
            return ended

        ended = await self.store.write(unit, durable=True, client=self.hold.client_id)
        if ended:
            self.services.tell(self.hold.run_id, "ended", status=ending.status.value)
        return Over.ENDED if ended else Over.LOST

    async def _body_ended(self, body: asyncio.Task[Any]) -> tuple[bool | None, Over | None]:
        """The body returned or raised: end the run, or ask about the exception. (run it again?, how it ended)."""
        error = RuntimeError("the workflow cancelled itself") if body.cancelled() else only(body.exception())
        if error is None:
            try:
                return None, await self._body_returned(body.result())
            except _Unkept as refused:
                error = refused.why
        outline.see_failed(self, error)
        if isinstance(error, Superseded):
            self.lose(error.why)
        elif isinstance(error, StoreUnavailable) and error.url == self.store.url:  # a read; a write has told us itself
            self.abandon(error)
        elif isinstance(error, Refused):  # a person said no, and the code has nothing else to do
            self.halt(Stop(RunStatus.CANCELLED, error.reason, error.step, FailureKind.FIXABLE, refused=True))
        elif isinstance(error, Fatal) or (isinstance(error, StepFailed) and error.kind == FailureKind.FATAL.value):
            step = error.step if isinstance(error, StepFailed) else None
            self.halt(Stop(RunStatus.FAILED, str(error) or type(error).__name__, step))
        elif isinstance(error, Exception):
            return await self._body_failed(error)
        else:
            raise error
        return None, await self._put_away(None)

    async def _body_returned(self, value: Any) -> Over:
        try:
            text = guard(self.workflow.typed.encode(value), f"{self.workflow.name}()", secrets="refuse")
        except StepsevenError as refused:
            raise _Unkept(refused) from refused
        self._finish("the run is done")
        await self._unload()
        over = await self._settle()
        if over is not None:
            return over
        left = await children.stop_all(self, f"run {self.hold.run_id}, which started it, is done without it", None)
        if self.stop is not None:  # cancelled while that was found out
            return await self._stopped(self.stop)
        if left:
            return await self._park(left)
        return await self._end(Ending(status=RunStatus.DONE, value=text, executing_us=self.executed_us()))

    async def _body_failed(self, error: Exception) -> tuple[bool, None]:
        self.unloading = "its code broke off"  # what its other tasks do from now on does not count
        await self._unload()
        row = await asking.body_failed(self, error, where(error, self.workflow))
        self.unloading = None
        if row["status"] != "open":
            return True, None
        self.idle(row)
        return False, None
