"""One run in memory: its records, its tasks, and its end.

An execution begins with a take and ends in one of five ways (``Over``). While it lives it is the only writer of its run.
User code reaches it through ``call`` (a step) and through the ``Run`` handle; both look at the records first.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any
from weakref import WeakSet

from stepseven.errors import Fatal, StepFailed, StepsevenError, StoreUnavailable, Superseded
from stepseven.model import EffectKind, FailureKind, Limits, QuestionKind, RunStatus, WaitingFor
from stepseven.runtime import outline, reading, settling, writing
from stepseven.runtime.calls import Deferred, Refusal, identify
from stepseven.runtime.ceilings import Reserved
from stepseven.runtime.choices import set_aside
from stepseven.runtime.declared import Step
from stepseven.runtime.place import Place, install, place
from stepseven.runtime.procedure import Workflow
from stepseven.runtime.services import SHORT_WAIT_US, Services
from stepseven.runtime.waits import TICK_S, DurableWait, Standing, standing
from stepseven.runtime.waits import Flight as Flight
from stepseven.store.artifacts import IN_ROW, IN_TABLE, content_hash
from stepseven.store.base import Row, Tx
from stepseven.store.codec import fallback, free_text
from stepseven.store.statements import SEQ_BITS
from stepseven.transitions import questions, runs, steps
from stepseven.transitions.runs import Ending, Parking
from stepseven.transitions.state import Hold, Loaded, Record, RecordKey, choice_of

UNLOAD_PATIENCE_S = 30.0
SETTLE_PATIENCE_US = 15 * 60 * 1_000_000  # an ending run looks itself whether its writes happened; nobody would wake it


class Over(StrEnum):
    """How an execution ended."""

    ENDED = "ended"  # the run is done, failed or cancelled
    PARKED = "parked"  # it waits, in the store only
    AGAIN = "again"  # what it was about to wait for happened: load it again
    LOST = "lost"  # another worker has it
    RELEASED = "released"  # given back: any worker may go on


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the run is to end without its body's consent."""

    status: RunStatus
    reason: str
    step: str | None = None
    kind: FailureKind = FailureKind.FATAL


class Execution:
    """A run in memory. Everything here happens in one event loop."""

    def __init__(self, services: Services, workflow: Workflow[Any, Any], hold: Hold, loaded: Loaded, *, recovery: bool) -> None:
        self.services = services
        self.store = services.store
        self.edge = services.edge
        self.workflow = workflow
        self.hold = hold
        self.run = loaded.run
        self.records = loaded.records
        self.attempts = loaded.attempts
        self.questions = loaded.questions
        self.older = loaded.older
        self.resumed = bool(loaded.records or loaded.attempts or loaded.questions)
        self.recovery = recovery  # a resume, or a wake after more than ten minutes: probes look before acting
        self.limits: Limits | None = outline.tighter(workflow.settings.limits, services.limits)
        self.seq = loaded.last_seq
        self.tick = 0
        self.flights: dict[Any, Flight] = {}
        self.unkeyed: dict[tuple[str, str], str] = {}
        self.diverged: set[str] = set()  # branches in which an earlier step gave another result than last time
        self.looked: set[RecordKey] = set()  # writes whose probe looked before the first send
        self.busy_since: dict[RecordKey, int] = {}  # writes that another run is doing -> when that was first seen
        self.settling = False  # the body is over; claims in doubt are being found out about
        self.looked_again: set[str] = set()  # answered "again" about a claim in doubt, and acted upon
        self.stale: dict[RecordKey, int] = {}  # records that no longer answer -> their generation
        self.tasks: set[asyncio.Task[Any]] = set()
        self._ended: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.waits: dict[asyncio.Future[Any], DurableWait] = {}
        self.waited: list[DurableWait] = []  # the waits when unloading began
        self.inside: set[asyncio.Future[Any]] = set()
        self.sending: set[asyncio.Task[Any]] = set()
        self.unloading: str | None = None
        self.stop: Stop | None = None
        self.lost: str | None = None
        self.broken: StoreUnavailable | None = None
        self.releasing: str | None = None
        self.restarting = False
        self._begun_at: tuple[int, int, int] | None = None
        self._begun_set: set[str] = set()
        self._over: asyncio.Future[None] | None = None
        self._look_soon = False
        self._started = self.edge.monotonic()
        self.uusd = sum(r.usd or 0 for r in (*self.records.values(), *self.older))
        self.tokens = sum(r.tokens or 0 for r in (*self.records.values(), *self.older))
        for rows in self.attempts.values():
            self.uusd += sum(row["usd"] or 0 for row in rows)
            self.tokens += sum(row["tokens"] or 0 for row in rows)
        self.reserved = Reserved()
        self.steps_done = sum(1 for r in (*self.records.values(), *self.older) if not r.name.startswith(("run.", "client.")))
        self.counts = Counter(r.name for r in self.records.values())  # records by step name
        self.done_before = len(self.records)
        set_aside(self)
        self._unused: dict[tuple[str, str], list[Record]] = {}
        for record in self.records.values():
            self._unused.setdefault((record.branch, record.name), []).append(record)
        for rows_ in self._unused.values():
            rows_.reverse()  # taken from the end: oldest first

    # -- small things everything uses -------------------------------------------------------------------------------------

    def now_us(self) -> int:
        """The wall clock."""
        return self.edge.now_us()

    def check(self) -> None:
        """Durable calls may go on only while the execution lives.

        Raises:
            Superseded: it is being put away, or was taken over; nothing is written.
        """
        if self.unloading is not None:
            raise Superseded(self.hold.run_id, self.unloading)

    def next_id(self) -> int:
        """The id of the next record."""
        self.seq += 1
        return self.hold.run_no << SEQ_BITS | self.seq

    def generation(self, key: RecordKey) -> int:
        """The generation a new record of *key* has."""
        old = self.records.get(key)
        return max(old.generation if old is not None else 0, self.stale.get(key, 0)) + 1

    def keep(self, record: Record) -> None:
        """A record was written: it answers from now on."""
        key = (record.branch, record.name, record.key)
        if key in self.records:
            self.older.append(self.records[key])
        else:
            self.counts[record.name] += 1
        record.used = True
        self.records[key] = record
        self.uusd += record.usd or 0
        self.tokens += record.tokens or 0
        if not record.name.startswith(("run.", "client.")):
            self.steps_done += 1

    def mark_used(self, record: Record) -> None:
        """This execution's code asked for *record*."""
        record.used = True

    def unused_like(self, key: RecordKey) -> Record | None:
        """The oldest record of the same step and branch that this execution's code has not asked for."""
        rows = self._unused.get(key[:2])
        while rows:
            if not rows[-1].used:
                return rows[-1]
            rows.pop()
        return None

    def begun_branches(self) -> set[str]:
        """Branches (and those around them) in which anything is on record."""
        if self._begun_at != (self.seq, len(self.questions), len(self.attempts)):
            self._begun_at = (self.seq, len(self.questions), len(self.attempts))
            keys = [*((r.branch) for r in self.records.values()), *(k[0] for k in self.attempts), *(k[0] for k in self.questions)]
            self._begun_set = set()
            for branch in set(keys):
                while branch and branch not in self._begun_set:
                    self._begun_set.add(branch)
                    branch = branch.rpartition("/")[0]  # noqa: PLW2901 - outwards
        return self._begun_set

    @property
    def full(self) -> bool:
        """Whether every commit waits for the disk."""
        return self.services.durability == "full"

    # -- steps ----------------------------------------------------------------------------------------------------------

    def call(self, step: Step[Any, Any], here: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Deferred[Any]:
        """A step was called: identify it now, run or replay it when awaited."""
        if self.unloading is not None:
            return Refusal(here, step.name)
        writing.refuse_irreversible(step)
        return identify(step, here, args, kwargs, reading.read if step.settings.effect is EffectKind.READ else writing.write)

    async def shared(self, flight: Flight) -> None:
        """Wait for a call in flight that will leave the record we want."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flight.waiters.append(waiter)
        self.inside.add(waiter)
        self.look()
        try:
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

    def result_text(self, record: Record) -> str | None:
        """A record's result as JSON, from wherever it is kept; ``None`` when its artifact is gone."""
        if record.artifact is None:
            return record.result if record.result is not None else "null"
        row = self.store.read_now(lambda tx: tx.one(tx.sql.artifact, {"hash": record.artifact}))
        if row is None:
            return None
        text: str | None = row["body"] if row["body"] is not None else self.services.artifacts.get(row["location"])
        return text if text is not None and content_hash(text) == record.artifact else None

    def artifact_of(self, text: str) -> steps.Artifact | None:
        """How a result is kept when it is too large for its row."""
        if len(text) <= IN_ROW:
            return None
        name = content_hash(text)
        if len(text) <= IN_TABLE:
            return steps.Artifact(hash=name, size=len(text), body=text, location=None)
        try:
            return steps.Artifact(hash=name, size=len(text), body=None, location=self.services.artifacts.put(name, text))
        except StoreUnavailable as error:
            raise self.abandon(error) from error

    async def append(self, record: Record, *, durable: bool, begun: dict[str, Any] | None = None, text: str | None = None) -> None:
        """Write a record, and make it answer. *text*: its result, if not in the record yet.

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
            steps.append(tx, self.hold, record, now_us=now, artifact=artifact, begun=begun)

        if artifact is None and begun is None:
            statement, values = record.insert(self.store.sql, self.hold.values())
            try:
                written = self.store.append_now(statement, values, durable=durable)
                if written is None:  # it has to queue
                    written = await self.store.append(statement, values, durable=durable)
            except asyncio.CancelledError:
                self.keep(record)  # what is queued will be written: who asks next must not run it again
                raise
            except StoreUnavailable as error:
                raise self.abandon(error) from error
            if not written:  # we have to know why not
                await self.write(unit, durable=durable)
        else:
            await self.write(unit, durable=durable)
        self.keep(record)
        if self.services.watchers:
            self.tell_step(record)

    def tell_step(self, record: Record) -> None:
        """Tell whoever watches that a step is on record, and how many of its name are."""
        done = self.counts[record.name]
        self.services.tell(
            self.hold.run_id, "step", name=record.name, branch=record.branch, summary=record.summary, done=done
        )

    async def write(self, unit: Callable[[Tx], Any], *, durable: bool) -> Any:
        """One transaction on this run. It is finished even if the caller is cancelled meanwhile.

        Raises:
            Superseded: the run is no longer ours.
        """
        try:
            return await self.store.write(unit, durable=durable or self.full)
        except Superseded as signal:
            self.lose(signal.why)
            raise
        except StoreUnavailable as error:
            raise self.abandon(error) from error

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

    async def question(self, question_id: str) -> Row:
        """A question's row as it is in the store now."""
        row = await self.store.read(lambda tx: tx.one(tx.sql.question, {"id": question_id}))
        assert row is not None  # questions are never deleted while their run lives  # noqa: S101
        return row

    def remember_question(self, row: Row) -> Row:
        """Keep the newest form of a question's row."""
        rows = self.questions.setdefault((row["branch"], row["kind"], row["key"]), [])
        rows[:] = sorted([r for r in rows if r["id"] != row["id"]] + [row], key=lambda r: r["n"])
        return row

    def wake_question(self, question_id: str) -> None:
        """A question was answered (here or elsewhere): whoever waits for it looks again."""
        for future, wait in list(self.waits.items()):
            if wait.question_id == question_id and not future.done():
                future.set_result(None)

    def look(self) -> None:
        """Look soon whether everything waits."""
        if not self._look_soon and self._over is not None:
            self._look_soon = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._look_soon = False
        if self.unloading is not None or self._over is None or self._over.done() or not self.waits:
            return
        soon = self.now_us() + self._patience_us()
        if any(w.until_us is not None and w.until_us <= soon and w.question_id is None for w in self.waits.values()):
            return
        if any(f.done() for f in self.waits):
            return
        for task in self.tasks:
            if not task.done() and standing(task, self.tasks, self.waits, self.inside) in (Standing.RUNNABLE, Standing.FOREIGN):
                return
        self._finish("it is put away until what it waits for happens")

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

    # -- from the take to the end -----------------------------------------------------------------------------------------

    async def execute(self, *, poisoned: bool) -> Over:
        """Run the body from the top until it ends, waits, or is taken away."""
        loop = asyncio.get_running_loop()
        install(loop)
        self._over = loop.create_future()
        if self.run["status"] == RunStatus.CANCELLING:
            self.halt(Stop(RunStatus.CANCELLED, self.run["reason"] or "cancelled", kind=FailureKind.FIXABLE))
        elif self.run["status"] == RunStatus.FAILING:
            self.halt(Stop(RunStatus.FAILED, self.run["reason"] or "failed"))
        elif poisoned or self._open(QuestionKind.POISON):
            await self._poisoned()
        body: asyncio.Task[Any] | None = None
        ticker = loop.create_task(self._ticker())
        try:
            while True:
                if self.unloading is None and (body is None) and await self._may_begin():
                    body = self._begin()
                ended = await self._first(body)
                if ended is None:
                    return await self._put_away(body)
                again, over = await self._body_ended(ended)
                if over is not None:
                    return over
                body = None
                if again is False:
                    return await self._put_away(None)
        except asyncio.CancelledError:
            self.release("its process was told to stop")
            await self._unload()
            await self._give_back()
            raise
        finally:
            ticker.cancel()

    def _open(self, kind: QuestionKind) -> Row | None:
        rows = self.questions.get(("", kind.value, kind.value), [])
        return rows[-1] if rows and rows[-1]["status"] == "open" else None

    async def _poisoned(self) -> None:
        """The run kept dying: a person decides before it is started again."""
        row = self._open(QuestionKind.POISON)
        if row is None:
            from stepseven.runtime import asking  # noqa: PLC0415 - only then

            row = await asking.poison(self)
        self._idle(row)

    def _idle(self, row: Row) -> None:
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
            if self.resumed and tried and tried[-1]["source_digest"] != self.workflow.digest:
                now = self.now_us()
                self.remember_question(
                    await self.write(lambda tx: questions.withdraw(tx, self.hold, row["id"], now), durable=True)
                )
                return True
            self._idle(row)
            return False
        if row["status"] == "answered" and choice_of(json.loads(row["answer"])) == "stop":
            self.halt(Stop(RunStatus.CANCELLED, f"stopped by {row['answered_by']}", kind=FailureKind.FIXABLE))
            return False
        return True

    def _begin(self) -> asyncio.Task[Any]:
        from stepseven.runtime.handle import Run  # noqa: PLC0415 - the handle knows the execution

        root = Place(self, "")
        self.unkeyed.clear()
        context = contextvars.copy_context()
        context.run(place.set, root)
        handle = Run(self, root)
        coro = outline.body(self.workflow, handle, self.run["inputs"])
        return asyncio.get_running_loop().create_task(coro, context=context)

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

    async def _look_at_store(self) -> None:
        ids = [w.question_id for w in self.waits.values() if w.question_id is not None]

        def unit(tx: Tx) -> tuple[Row | None, list[str]]:
            run = tx.one(tx.sql.run_by_no, {"no": self.hold.run_no})
            rows = [tx.one(tx.sql.question, {"id": q}) for q in ids]
            return run, [r["id"] for r in rows if r is not None and r["status"] != "open"]

        run, closed = await self.store.read(unit)
        for question_id in closed:
            self.wake_question(question_id)
        if run is None or run["owner"] != self.hold.owner or run["fence"] != self.hold.fence:
            self.lose(f"worker {run['owner']} took it over" if run is not None and run["owner"] else "it was released")
        elif run["status"] == "cancelling" and self.stop is None:
            self.halt(Stop(RunStatus.CANCELLED, run["reason"] or "cancelled", kind=FailureKind.FIXABLE))
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
                lambda tx: runs.release(tx, self.hold, self.releasing or "released", self.executing_us(), self.now_us()),
                durable=True,
            )

    def executing_us(self) -> int:
        """How long this execution has been running."""
        return round((self.edge.monotonic() - self._started) * 1e6)

    async def _park(self, waits: list[DurableWait]) -> Over:
        kinds = [w.kind for w in waits]
        order = [WaitingFor.PERSON, WaitingFor.EFFECT, WaitingFor.CIRCUIT, WaitingFor.CHILD, WaitingFor.EVENT, WaitingFor.TIMER]
        kind = next((k for k in order if k in kinds), WaitingFor.TIMER)
        times = [w.until_us for w in waits if w.until_us is not None]
        shown = next((w for w in waits if w.kind is kind), None)
        next_step, remaining = outline.ahead(self)
        parking = Parking(
            waiting_for=kind.value, reason=free_text(shown.what if shown is not None else "it waits", 300),
            wake_us=min(times) if times else None, next_step=next_step, remaining=json.dumps(remaining),
            executing_us=self.executing_us(), question_ids=tuple(w.question_id for w in waits if w.question_id is not None),
        )  # fmt: skip
        try:
            parked = await self.write(lambda tx: runs.park(tx, self.hold, parking, self.now_us()), durable=True)
        except Superseded:
            return Over.LOST
        if parked:
            self.services.tell(self.hold.run_id, "parked", reason=parking.reason)
            return Over.PARKED
        return Over.AGAIN

    async def _settle(self) -> Over | None:
        """Find out about every claim in doubt before the run ends. Not ``None``: it cannot end yet."""
        if self.lost is not None:
            return Over.LOST
        if not await settling.open_claims(self):
            return None
        loop, ending, context = asyncio.get_running_loop(), self.stop, contextvars.copy_context()
        if ending is not None:
            await self.write(lambda tx: runs.ending(tx, self.hold, ending.status, ending.reason, self.now_us()), durable=True)
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
        over = await self._settle()
        if over is not None:
            return over
        failure = {"step": stop.step, "kind": stop.kind.value, "reason": free_text(stop.reason)}
        return await self._end(
            Ending(status=stop.status, failure=json.dumps(failure), reason=free_text(stop.reason, 300),
                   remaining=json.dumps(outline.ahead(self)[1]), executing_us=self.executing_us())
        )  # fmt: skip

    async def _end(self, ending: Ending) -> Over:
        ended = await self.store.write(lambda tx: runs.end(tx, self.hold, ending, self.now_us()), durable=True)
        if ended:
            self.services.tell(self.hold.run_id, "ended", status=ending.status.value)
        return Over.ENDED if ended else Over.LOST

    async def _body_ended(self, body: asyncio.Task[Any]) -> tuple[bool | None, Over | None]:
        """The body returned or raised: end the run, or ask about the exception. (run it again?, how it ended)."""
        error = None if body.cancelled() else body.exception()
        if body.cancelled():
            error = RuntimeError("the workflow cancelled itself")
        if error is None:
            try:
                text = self.workflow.typed.encode(body.result())
            except StepsevenError as refused:
                error = refused
            else:
                self._finish("the run is done")
                await self._unload()
                over = await self._settle()
                if over is not None:
                    return None, over
                if self.stop is not None:  # cancelled while that was found out
                    return None, await self._stopped(self.stop)
                ending = Ending(status=RunStatus.DONE, value=text, executing_us=self.executing_us())
                return None, await self._end(ending)
        if isinstance(error, Superseded):
            self.lose(error.why)
            return None, await self._put_away(None)
        if isinstance(error, StoreUnavailable) and error.url == self.store.url:  # a read; a write has told us itself
            self.abandon(error)
            return None, await self._put_away(None)
        if isinstance(error, Fatal) or (isinstance(error, StepFailed) and error.kind == FailureKind.FATAL.value):
            step = error.step if isinstance(error, StepFailed) else None
            self.halt(Stop(RunStatus.FAILED, str(error) or type(error).__name__, step))
            return None, await self._put_away(None)
        if not isinstance(error, Exception):
            raise error
        return await self._body_failed(error)

    async def _body_failed(self, error: Exception) -> tuple[bool, None]:
        from stepseven.runtime import asking  # noqa: PLC0415 - only then

        for task in self.tasks:
            task.cancel()
        row = await asking.body_failed(self, error, where(error, self.workflow))
        if row["status"] != "open":
            return True, None
        self._idle(row)
        return False, None


def _expire(hold: Hold, question_id: str, now_us: int, tx: Tx) -> Row | None:
    return questions.expire(tx, hold, question_id, now_us)


def _fire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)


def where(error: BaseException, workflow: Workflow[Any, Any]) -> str:
    """File and line of the user's code an exception came from."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if f.filename == workflow.fn.__code__.co_filename]
    shown = mine or list(frames)
    return f"{shown[-1].filename}:{shown[-1].lineno}" if shown else workflow.name


def failure_text(error: BaseException) -> str:
    """An exception as stored text; cannot fail."""
    try:
        return free_text("".join(traceback.format_exception(error))[-6000:], 6000)
    except Exception:  # noqa: BLE001 - an exception whose repr raises
        return fallback(type(error).__name__)
