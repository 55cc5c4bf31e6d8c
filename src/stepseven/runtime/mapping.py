"""``run.map``: one step over many items, each a branch of its own.

One item's failure does not stop the others. Two in a row with one cause pause the start of further items and ask one
question, into which the items' own questions are folded: a dead API costs one answer, not fifty.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepseven.decide import escalate
from stepseven.errors import StepFailed
from stepseven.model import QuestionKind
from stepseven.runtime import asking
from stepseven.runtime.calls import join
from stepseven.runtime.declared import Step
from stepseven.runtime.place import Place, place
from stepseven.runtime.reading import ItemSkipped
from stepseven.store.codec import canonical, digest, free_text, guard
from stepseven.transitions import questions, steps
from stepseven.transitions.state import Record, choice_of

if TYPE_CHECKING:
    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Row

SAME_IN_A_ROW = 2  # DESIGN §6: so many failures of one signature in a row pause a map


@dataclass(slots=True)
class Item:
    """One item's branch: where its steps' failures go."""

    owner: MapRun
    branch: str
    label: str

    async def failed(self, ex: Execution, call: Call, make: Callable[[str | None], Awaitable[Row]]) -> Row:
        """A step of this item is out of tries: store its question, or fold it into the batch's."""
        del ex
        return await self.owner.failed(self, call, make)

    def aside(self) -> AbstractAsyncContextManager[None]:
        """Wait without holding a slot."""
        return self.owner.aside()

    async def answered(self, ex: Execution, row: Row) -> Row:
        """Wait for this item's question, or for the one it was folded into."""
        while row["status"] == "open":
            folded = ex_row(ex, row)
            target = folded["folded_into"]
            if target is None:
                # it may be folded while we wait: then the batch's answer closes it, and wakes us
                row = await ex.answered(folded)
            else:
                await ex.answered(self.owner.batch_row(target) or folded)
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
        self.name = fn.name if isinstance(fn, Step) else getattr(fn, "__name__", "item")
        self.slots = asyncio.Semaphore(concurrency)
        self.branches = _branches(here.branch, key, items, self.name)
        self.results: list[Any] = [None] * len(items)
        self.failures: dict[int, str] = {}
        self.streak: list[Row] = []  # the questions of the failures in a row, of one signature
        self.batch: Row | None = None

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> list[Any]:
        """Every item's result, in order.

        Raises:
            StepFailed: some items failed for good; after all others ended.
        """
        record = await self._record()
        self._restore()
        tasks: list[asyncio.Task[None]] = []
        try:
            waiting = list(range(len(self.items)))
            while waiting or self.batch is not None:
                waiting = await self._start_some(waiting, tasks)
                if self.batch is None:
                    await _all(tasks)  # may end in a batch: the last items failed together
                await self._batch_answered()
            await _all(tasks)
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()
        for task in tasks:
            task.result()
        await self._finished(record)
        if self.failures:
            first = self.failures[min(self.failures)]
            raise StepFailed(self.name, first, results=self.results, failures=self.failures)
        return self.results

    async def _start_some(self, waiting: list[int], tasks: list[asyncio.Task[None]]) -> list[int]:
        """Start items as slots get free; what a pause held back is returned. Items begun before are never held back."""
        late: list[int] = []
        for index in waiting:
            await self.slots.acquire()
            if self.batch is not None and not self._begun(self.branches[index]):
                self.slots.release()
                late.append(index)
            else:
                self._start(index, tasks)
        return late

    def _start(self, index: int, tasks: list[asyncio.Task[None]]) -> None:
        item = Item(self, self.branches[index], _label(self.items[index]))
        context = contextvars.copy_context()
        context.run(place.set, Place(self.ex, item.branch, item=item))
        tasks.append(asyncio.get_running_loop().create_task(self._item(index), context=context))

    async def _item(self, index: int) -> None:
        try:
            self.results[index] = await self.fn(self.items[index])
            self.streak = []
        except StepFailed as failed:
            self.failures[index] = failed.reason
        except ItemSkipped:
            self.results[index] = None
        finally:
            self.slots.release()

    @asynccontextmanager
    async def aside(self) -> AsyncIterator[None]:
        """An item that waits for a person frees its slot."""
        self.slots.release()
        try:
            yield
        finally:
            if self.ex.unloading is None:
                await self.slots.acquire()

    # -- failures in a row --------------------------------------------------------------------------------------------

    async def failed(self, item: Item, call: Call, store: Callable[[str | None], Awaitable[Row]]) -> Row:
        """An item's step is out of tries."""
        ex = self.ex
        if self.batch is not None:
            row = await store(self.batch["id"])
            return row
        row = await store(None)
        if self.streak and self.streak[-1]["signature"] != row["signature"]:
            self.streak = []
        self.streak = [r for r in self.streak if r["id"] != row["id"]] + [row]
        if len(self.streak) >= SAME_IN_A_ROW and row["signature"] is not None and self.batch is None:
            await self._ask_batch(item, call)
        return ex_row(ex, row)

    async def _ask_batch(self, item: Item, call: Call) -> None:
        ex, rows = self.ex, list(self.streak)
        failed = tuple((_item_label(self, r["branch"]), _reason(r)) for r in rows)
        done = sum(1 for b in self.branches if self._done(b))
        draft = escalate.batch(
            asking.situation(ex, call.step.name), step=call.step.name,
            resource=call.step.settings.resource or _resource(ex, call), done=done, of=len(self.items), failed=failed,
            waiting=max(0, len(self.items) - self._begun_count()),
            nothing_changed=None if any(_unknown(ex, r) for r in rows) else True,
        )  # fmt: skip
        placeholder: Row = {"id": None}
        self.batch = placeholder  # nothing starts while the question is being stored
        try:
            row = await asking.store(
                ex, QuestionKind.BATCH, self.key, draft, branch=self.here.branch, step=call.step.name,
                signature=rows[-1]["signature"], attempts=len(rows),
            )  # fmt: skip
        except BaseException:
            self.batch = None
            raise
        self.batch = row
        await self._fold([r["id"] for r in self.streak], row["id"])

    async def _fold(self, ids: list[str], into: str) -> None:
        ex, now = self.ex, self.ex.now_us()
        await ex.write(lambda tx: questions.fold(tx, ex.hold, ids, into, now), durable=True)
        for rows in ex.questions.values():
            for i, row in enumerate(rows):
                if row["id"] in ids:
                    rows[i] = {**row, "folded_into": into}

    def batch_row(self, question_id: str) -> Row | None:
        """The batch question with this id, as known in memory."""
        rows = self.ex.questions.get((self.here.branch, QuestionKind.BATCH.value, self.key), [])
        return next((r for r in rows if r["id"] == question_id), None)

    async def _batch_answered(self) -> None:
        """Wait for the batch's answer, and do what it says about the start of further items."""
        batch = self.batch
        if batch is None:
            return
        row = await self.ex.answered(batch)
        answer = json.loads(row["answer"] or "null")
        choice = choice_of(answer)
        if choice == "stop":
            await self.ex.forever()  # the items' own questions have the same answer: they stop the run
        if choice == "wait" and isinstance(answer, dict) and isinstance(answer.get("until"), int):
            await self.ex.until(answer["until"], f"{self.name}: waiting as {row['answered_by']} chose")
        self.streak, self.batch = [], None
        for rows in self.ex.questions.values():
            for other in list(rows):
                if other["folded_into"] == row["id"] and other["status"] == "open":
                    fresh = self.ex.remember_question(await self.ex.question(other["id"]))
                    self.ex.wake_question(fresh["id"])

    # -- what is on record ----------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """After a resume: a batch that is still open, and the failures that were the last to end."""
        rows = self.ex.questions.get((self.here.branch, QuestionKind.BATCH.value, self.key), [])
        if rows and rows[-1]["status"] == "open":
            self.batch = rows[-1]
        mine = set(self.branches)
        events: list[tuple[int, Row | None]] = []
        for record in self.ex.records.values():
            if record.branch in mine and record.state == "done":
                events.append((record.ended_us or 0, None))
        for rows_ in self.ex.questions.values():
            for row in rows_:
                if row["branch"] in mine and row["kind"] == "failure" and row["status"] == "open" and not row["folded_into"]:
                    events.append((row["created_us"], row))
        for _, found in sorted(events, key=lambda e: e[0]):
            if found is None or (self.streak and self.streak[-1]["signature"] != found["signature"]):
                self.streak = []
            if found is not None:
                self.streak.append(found)

    def _begun(self, branch: str) -> bool:
        return branch in self.ex.begun_branches()

    def _begun_count(self) -> int:
        begun = self.ex.begun_branches()
        return sum(1 for b in self.branches if b in begun)

    def _done(self, branch: str) -> bool:
        return branch in self.ex.begun_branches() and not any(
            r["branch"].startswith(branch) and r["status"] == "open" for rows in self.ex.questions.values() for r in rows
        )

    async def _record(self) -> Record:
        """The map itself is a record: how many items it has."""
        ex = self.ex
        told = json.dumps({"step": self.name, "of": len(self.items)})
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


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    pending = [t for t in tasks if not t.done()]
    if pending:
        await asyncio.wait(pending)


def _branches(branch: str, key: str, items: Iterable[Any], name: str) -> list[str]:
    """A branch per item: named by the item's digest, equal items numbered."""
    counts: dict[str, int] = {}
    made = []
    for i, item in enumerate(items):
        text = digest(guard(canonical(item, f"{name}: items[{i}]"), f"{name}: items[{i}]", secrets="refuse"))
        counts[text] = n = counts.get(text, 0) + 1
        made.append(join(branch, f"{key}[{text}{f'~{n}' if n > 1 else ''}]"))
    return made


def _label(item: Any) -> str:
    """An item for people: a short text, or what it is called."""
    if isinstance(item, str):
        return free_text(item.rsplit("/", 1)[-1] or item, 60)
    for name in ("name", "id", "number", "file", "title"):
        value = item.get(name) if isinstance(item, dict) else getattr(item, name, None)
        if isinstance(value, str | int) and value != "":
            return free_text(str(value), 60)
    return free_text(str(item), 60)


def _item_label(m: MapRun, branch: str) -> str:
    for mine, item in zip(m.branches, m.items, strict=True):
        if branch == mine or branch.startswith(mine + "/"):
            return _label(item)
    return branch


def _reason(row: Row) -> str:
    failed = json.loads(row["context"]).get("failed") or [{}]
    return str(failed[-1].get("reason") or row["text"].split("\n", 1)[0])


def _unknown(ex: Execution, row: Row) -> bool:
    rows = [a for (branch, *_), tries in ex.attempts.items() if branch == row["branch"] for a in tries]
    return any(a["outcome"] == "unknown" for a in rows)


def _resource(ex: Execution, call: Call) -> str | None:
    rows = ex.attempts.get(call.key, ())
    return rows[-1]["resource"] if rows else None


def is_async(fn: Any) -> bool:
    """Whether *fn* can be mapped: a step, or an async function of one item."""
    return isinstance(fn, Step) or inspect.iscoroutinefunction(fn)
