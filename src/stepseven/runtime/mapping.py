"""``run.map``: one step over many items, each a branch of its own.

One item's failure does not stop the others. Two in a row with one cause pause the start of further items and ask one
question, into which the items' own questions are folded: a dead API costs one answer, not fifty.

Longer than other files: one object, whose items, failures in a row and pauses are decided from one another.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.decide import escalate, policy
from stepseven.decide.escalate import Draft
from stepseven.errors import Refused, StepFailed
from stepseven.model import FailureKind, QuestionKind, RunStatus
from stepseven.runtime import asking, moved
from stepseven.runtime.declared import Step
from stepseven.runtime.items import branches_of, gone_of, in_order, label, reason, tries_of, until_it_answers, within
from stepseven.runtime.place import Place, place
from stepseven.runtime.reading import ItemSkipped
from stepseven.runtime.stepclock import stopped
from stepseven.transitions import questions, steps
from stepseven.transitions.state import Record, choice_of

if TYPE_CHECKING:
    from stepseven.decide.incident import Cause
    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.memory import Stop
    from stepseven.store.base import Row

SAME_IN_A_ROW = 2  # DESIGN §6: so many failures of one signature in a row pause a map
_OWN = (QuestionKind.FAILURE.value, QuestionKind.UNKNOWN_OUTCOME.value)  # what an item asks when it cannot go on


@dataclass(slots=True)
class Item:
    """One item's branch: where its steps' failures go."""

    owner: MapRun
    branch: str
    label: str
    holds: bool = True  # a slot of the map
    waiting: int = 0  # how many of its tasks wait for a person
    over: bool = False  # it ended: a task it left behind gets no slot
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # one of its tasks at a time waits for the slot

    async def failed(self, ex: Execution, call: Call, make: Callable[[str | None], Awaitable[Row]]) -> Row:
        """A step of this item is out of tries: store its question, or fold it into the batch's."""
        del ex, call
        return await self.owner.failed(make)

    async def mended(self, ex: Execution, question_ids: Sequence[str]) -> None:
        """Questions of this item were taken back because the code changed: so is the batch's, if they were folded into it."""
        del ex
        await self.owner.mended(question_ids)

    @asynccontextmanager
    async def aside(self) -> AsyncIterator[None]:
        """Wait for a person without holding a slot."""
        self.waiting += 1
        if self.holds:
            self.holds = False
            self.owner.slots.release()
        try:
            yield
        finally:
            self.waiting -= 1
        await self._back()

    async def _back(self) -> None:
        """Go on with a slot: one for the item, however many of its tasks go on at once."""
        async with self.turn:
            if self.holds or not self._needs_slot():
                return
            with stopped():  # others use it: that is none of the item's time
                await self.owner.slots.acquire()
            self.holds = self._needs_slot()  # meanwhile another of its tasks may wait for a person, or all be over
            if not self.holds:
                self.owner.slots.release()

    def _needs_slot(self) -> bool:
        return self.waiting == 0 and not self.over

    async def answered(self, ex: Execution, row: Row) -> Row:
        """Wait for this item's question, or for the one it was folded into."""
        while row["status"] == "open":
            newest = ex_row(ex, row)
            batch = self.owner.batch_row(newest["folded_into"])
            if batch is None:  # it may be folded while we wait: then the batch's answer closes it, and wakes us
                row = await ex.answered(newest)
            else:
                await ex.answered(batch)
                row = ex.remember_question(await ex.question(row["id"]))
        return row


def ex_row(ex: Execution, row: Row) -> Row:
    """The newest form of a question's row in memory."""
    rows = ex.questions.get((row["branch"], row["kind"], row["key"]), [])
    return next((r for r in rows if r["id"] == row["id"]), row)


class MapRun:
    """A map under way."""

    def __init__(self, ex: Execution, here: Place, fn: Any, items: list[Any], key: str, concurrency: int) -> None:
        self.ex = ex
        self.here = here
        self.fn = fn
        self.items = items
        self.key = key
        self.name = called(fn)
        self.slots = asyncio.Semaphore(max(concurrency, len(items)) if ex.all_at_once else concurrency)
        self.branches = branches_of(here.branch, key, items, self.name)
        self.results: list[Any] = [None] * len(items)
        self.failures: dict[int, str] = {}
        self.context = contextvars.copy_context()
        self.home = place.get() or here  # the task that waits for the map, which may not be the one that called it
        self.facts = self.home.facts  # what every item begins with, whatever an earlier one found out
        self.places: list[Place] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.started = 0
        self.done = 0
        self.ended_at: dict[str, int] = {}  # item's branch -> place of its last record, from earlier executions
        self.lock = asyncio.Lock()  # one failure is dealt with at a time
        self.row: list[Row] = []  # the questions of the failures since the last item that ended well, in order
        self.batch: Row | None = None  # the open question that stands for them
        self.pauses: set[str] = set()  # batch questions that still hold further items back
        self.going = asyncio.Event()
        self.going.set()

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> list[Any]:
        """Every item's result, in order.

        Raises:
            StepFailed: some items failed for good; after all others ended.
        """
        record = await self._record()
        begun, fresh = self._restore()
        moved.to_come(self.ex, self.branches)
        try:
            for index in begun:  # never held back: they have records, or wait for an answer
                await self._start(index)
            await asyncio.sleep(0)  # those that are finished end here, so that "in a row" is known
            if not self.ex.all_at_once:
                async with self.lock:
                    await self._pause_if_in_a_row()
            for index in fresh:
                await self._start_when_going(index)
            while pending := [t for t in self.tasks if not t.done()]:
                await asyncio.wait(pending)
        finally:
            for task in self.tasks:
                task.cancel()
        for task in self.tasks:
            task.result()
        for inner in self.places:
            self.home.learn_from(inner)
        await self._finished(record)
        if self.failures:
            first = self.failures[min(self.failures)]
            raise StepFailed(self.name, first, results=self.results, failures=self.failures)
        return self.results

    async def _start_when_going(self, index: int) -> None:
        """Start an item when a slot is free and nothing holds it back."""
        while True:
            await self.going.wait()
            await self.slots.acquire()
            if self.going.is_set():
                break
            self.slots.release()
        self._spawn(index)

    async def _start(self, index: int) -> None:
        await self.slots.acquire()
        self._spawn(index)

    def _spawn(self, index: int) -> None:
        item = Item(self, self.branches[index], label(self.items[index]))
        context = self.context.copy()
        inner = Place(self.ex, item.branch, item=item, facts=self.facts)
        context.run(place.set, inner)
        self.places.append(inner)
        self.started += 1
        self.tasks.append(asyncio.get_running_loop().create_task(self._item(index, item), context=context))

    async def _item(self, index: int, item: Item) -> None:
        seq = self.ex.seq
        moved.came(self.ex, item.branch)
        try:
            self.results[index] = await self.fn(self.items[index])
            self.done += 1
            self._ended(item, seq)
            if self.batch is not None:
                async with self.lock:
                    await self._retell()
        except Refused:  # a person said no to this one: that is no failure
            self.results[index] = None
        except StepFailed as failed:
            self.failures[index] = failed.reason
            self._ended(item, seq)
        except ItemSkipped:
            self.results[index] = None
        except BaseExceptionGroup as group:  # the item's code used a task group
            self._grouped(index, group, item, seq)
        finally:
            item.over = True
            if item.holds:
                item.holds = False
                self.slots.release()

    def _grouped(self, index: int, group: BaseExceptionGroup[BaseException], item: Item, seq: int) -> None:
        """What a task group wrapped counts as what it is: skipped, failed for good, or the item's own exception."""
        if group.split(ItemSkipped)[0] is not None and group.split((ItemSkipped, asyncio.CancelledError))[1] is None:
            self.results[index] = None
            return
        if group.split((Refused, ItemSkipped, asyncio.CancelledError))[1] is None:
            self.results[index] = None
            return
        failed = group.subgroup(lambda error: isinstance(error, StepFailed) and not isinstance(error, Refused))
        if failed is None or group.split((StepFailed, ItemSkipped))[1] is not None:
            raise group
        first: BaseException = failed
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        self.failures[index] = first.reason if isinstance(first, StepFailed) else str(first)
        self._ended(item, seq)

    def _ended(self, item: Item, seq: int) -> None:
        """An item ended: failures before that are not in a row with later ones. One that was only replayed ended long ago."""
        at = self.ended_at.get(item.branch, 0) if self.ex.seq == seq else self.ex.seq
        self.row = [r for r in self.row if r["asked_seq"] >= at]

    # -- failures in a row --------------------------------------------------------------------------------------------

    async def failed(self, make: Callable[[str | None], Awaitable[Row]]) -> Row:
        """An item's step is out of tries: *make* stores its question, folded into the one it is given."""
        async with self.lock:
            if self.batch is not None:
                row = await make(self.batch["id"])
                if row["folded_into"] is not None:
                    await self._retell()
                    return row
                self._closed(self.batch)  # it was answered just now
            else:
                row = await make(None)
            self.row.append(row)
            await self._pause_if_in_a_row()
            return ex_row(self.ex, row)

    async def _pause_if_in_a_row(self) -> None:
        """Ask the batch question when the last failures have one cause."""
        same: list[Row] = []
        for row in reversed([ex_row(self.ex, r) for r in self.row]):
            if row["signature"] is None or row["signature"] != (same[0] if same else row)["signature"]:
                break
            if row["status"] == "open" and row["folded_into"] is None:
                same.insert(0, row)
        if len(same) >= SAME_IN_A_ROW and self.batch is None:
            await self._ask_batch(same)

    async def _ask_batch(self, rows: list[Row]) -> None:
        last = rows[-1]
        self.going.clear()  # nothing starts while the question is being stored
        try:
            row = await asking.store(
                self.ex, QuestionKind.BATCH, self.key, self._draft(rows), branch=self.here.branch, step=last["step"],
                signature=last["signature"], attempts=len(rows), folds=[r["id"] for r in rows], cause=self._cause(last),
            )  # fmt: skip
        finally:
            self._go_on()
        self._hold_back(row)

    def _cause(self, last: Row) -> Cause | None:
        tries = tries_of(self.ex, last)
        return asking.cause_of_try(self.ex, last["step"], QuestionKind.BATCH, tries[-1] if tries else None)

    def _draft(self, rows: list[Row]) -> Draft:
        from stepseven.runtime import trouble

        ex, last = self.ex, rows[-1]
        tries = [tries_of(ex, r) for r in rows]
        return escalate.batch(
            asking.situation(ex, last["step"]), step=last["step"], resource=next((t[-1]["resource"] for t in tries if t), None),
            done=self.done, of=len(self.items), failed=tuple((self._label_of(r["branch"]), reason(r)) for r in rows),
            waiting=len(self.items) - self.started,
            nothing_changed=None if any(a["outcome"] == "unknown" for t in tries for a in t) else True,
            looks=not any(trouble.details_of(t[-1]).get("ours") for t in tries if t),
        )  # fmt: skip

    async def _retell(self) -> None:
        """Items that ran when the batch question was asked have ended since: it tells of them, too."""
        ex, batch = self.ex, self.batch
        rows = [] if batch is None else sorted((r for r in self._folded(batch) if r["status"] == "open"), key=in_order)
        if batch is None or not rows:
            return
        draft = self._draft(rows)
        ex.remember_question(await ex.write(lambda tx: questions.retell(tx, ex.hold, batch["id"], draft), durable=True))

    def _folded(self, batch: Row) -> list[Row]:
        return [r for rows in self.ex.questions.values() for r in rows if r["folded_into"] == batch["id"]]

    def _hold_back(self, row: Row) -> None:
        """Start no further items until this batch question, and what was answered to it, lets them go."""
        self.pauses.add(row["id"])
        self.batch = row if row["status"] == "open" else None
        if not self.ex.all_at_once:
            self.going.clear()
        self.tasks.append(asyncio.get_running_loop().create_task(self._keep(row), context=self.context.copy()))

    async def _keep(self, row: Row) -> None:
        """Wait for a batch's answer, and do what it says about the start of further items."""
        ex = self.ex
        row = await ex.answered(row)
        self._closed(row)
        for other in self._folded(row):
            if other["status"] == "open":  # its answer is the same
                ex.remember_question(await ex.question(other["id"]))
                ex.wake_question(other["id"])
        answer = json.loads(row["answer"]) if row["status"] == "answered" else None
        choice = choice_of(answer)
        if choice == "stop":
            ex.halt(_stop(row))
            await ex.forever()
        if choice == "wait" and isinstance(answer, dict):
            if answer.get("until") == policy.ANSWERS:
                await until_it_answers(ex, self.name, row, lambda: self._folded(row))
            elif "until" in answer:
                await ex.until(answer["until"], f"{self.name}: waiting as {row['answered_by']} chose")
            else:
                await asking.wait_for_fact(ex, self.name, answer["fact"])
        self.pauses.discard(row["id"])
        self._go_on()

    def _closed(self, row: Row) -> None:
        """This batch question takes no more failures: what comes now is counted anew."""
        if self.batch is not None and self.batch["id"] == row["id"]:
            self.batch = None
            self.row = []

    def _go_on(self) -> None:
        if not self.pauses:
            self.going.set()

    async def mended(self, question_ids: Sequence[str]) -> None:
        """The code changed and a resume tries again by itself: the batch question goes, and what it stands for."""
        from stepseven.runtime import trouble

        ex, batch = self.ex, self.batch
        folded = [] if batch is None else self._folded(batch)
        if batch is None or not any(r["id"] in question_ids for r in folded):
            return
        self._closed(batch)
        ids = (batch["id"], *(r["id"] for r in folded if r["status"] == "open"))
        await trouble.withdraw(ex, ids)
        for question_id in ids:
            ex.wake_question(question_id)

    def batch_row(self, question_id: str | None) -> Row | None:
        """The batch question with this id, as known in memory."""
        rows = self.ex.questions.get((self.here.branch, QuestionKind.BATCH.value, self.key), [])
        return next((r for r in rows if r["id"] == question_id), None)

    def _label_of(self, branch: str) -> str:
        found = next((i for i, mine in enumerate(self.branches) if branch == mine or branch.startswith(mine + "/")), None)
        return branch if found is None else label(self.items[found])

    # -- what is on record ----------------------------------------------------------------------------------------------

    def _restore(self) -> tuple[list[int], list[int]]:
        """From the records: a batch that still holds items back, the failures that were the last to end.

        Returns:
            The items that were begun before (finished ones first), and the others.
        """
        ex, mine = self.ex, set(self.branches)
        for record in ex.records.values():
            branch = within(record.branch, mine)
            if branch is not None:
                self.ended_at[branch] = max(self.ended_at.get(branch, 0), record.seq)
        asked = [r for (_, kind, _), rows in ex.questions.items() if kind in _OWN for r in rows[-1:] if r["status"] == "open"]
        own = [(within(r["branch"], mine), r) for r in asked]
        self.row = sorted((r for branch, r in own if branch is not None), key=in_order)
        rows = ex.questions.get((self.here.branch, QuestionKind.BATCH.value, self.key), [])
        if rows and rows[-1]["status"] in ("open", "answered"):
            self._hold_back(rows[-1])
        begun, asking_ = ex.begun_branches(), {branch for branch, _ in own}
        order = sorted(range(len(self.items)), key=lambda i: self.branches[i] in asking_)
        first = [i for i in order if self.branches[i] in begun]
        return first, [i for i in order if self.branches[i] not in begun]

    async def _record(self) -> Record:
        """The map itself is a record: how many items it has."""
        ex = self.ex
        gone = gone_of(ex, self.here.branch, self.key, set(self.branches)) if ex.resumed else {}
        told = json.dumps({"step": self.name, "of": len(self.items), **({"gone": gone} if gone else {})})
        record = ex.records.get((self.here.branch, "run.map", self.key))
        if record is None:
            record = Record(
                id=ex.next_id(), branch=self.here.branch, name="run.map", key=self.key, generation=1, state="begun",
                result=told, started_us=ex.now_us(), ended_us=None,
            )  # fmt: skip
            await ex.append(record, durable=False)
        elif record.result != told:
            record.result = told
            await ex.write(lambda tx: steps.update_map(tx, ex.hold, record, ex.now_us()), durable=False)
        ex.mark_used(record)
        return record

    async def _finished(self, record: Record) -> None:
        if record.state != "done":
            record.state = "done"
            await self.ex.write(lambda tx: steps.update_map(tx, self.ex.hold, record, self.ex.now_us()), durable=False)


def _stop(row: Row) -> Stop:
    from stepseven.runtime.memory import Stop

    return Stop(RunStatus.CANCELLED, f"stopped by {row['answered_by'] or 'a person'}", row["step"], FailureKind.FIXABLE)


def called(fn: Any) -> str:
    """What a step or a function is called; one with some of its arguments given as the function itself."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(fn.name if isinstance(fn, Step) else getattr(fn, "__name__", "item"))


def is_async(fn: Any) -> bool:
    """Whether *fn* can be mapped: a step, or an async function of one item."""
    return isinstance(fn, Step) or inspect.iscoroutinefunction(fn)
