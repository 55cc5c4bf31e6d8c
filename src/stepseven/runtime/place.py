"""Where a piece of user code stands: in which run, branch, step and task; and how often a call was made there.

A *place* travels in a context variable. Every task that a run's code creates gets a place of its own, so that repeats are
counted in the task that makes the call: a task starts from its creator's counts at its creation and gives them back (the
larger) when it ends: as the last thing it does, so that whoever awaits it has them, also where it had ended long before. Then the
numbers depend on what the code says, not on how the event loop happened to order it. (Code that goes on beside a task it has not
awaited yet is in no such order: there a key, or the await, has to say what belongs together.)
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Coroutine, Generator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from stepseven._dataclass import dataclass

if TYPE_CHECKING:
    from stepseven.runtime.attempt import Attempt
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.stepclock import StepClock

_COUNT_BITS = 24
_COUNT_MASK = (1 << _COUNT_BITS) - 1


@dataclass(frozen=True, slots=True)
class Known:
    """A fact in one version, as a run holds it. ``value`` is JSON; version 0: it was not known."""

    value: Any
    version: int


_NOTHING: Mapping[str, Known] = MappingProxyType({})


class Place:
    """One task's (or one step body's) position in a run."""

    __slots__ = (
        "attempt", "born", "branch", "clock", "counts", "execution", "facts", "given_back", "item", "parent", "refused",
        "writing",
    )  # fmt: skip

    def __init__(
        self,
        execution: Execution,
        branch: str,
        *,
        parent: Place | None = None,
        attempt: Attempt | None = None,
        item: Any = None,
        facts: Mapping[str, Known] | None = None,
    ) -> None:
        self.execution = execution
        self.branch = branch
        self.parent = parent  # the creating task's place, if the counts go on from there
        self.attempt = attempt  # set inside a step's body
        self.item = item  # what a map's branch works on, for people
        # What this run itself has found out about its client, as far as it is visible here: a task sees what was so when it was
        # created, and what its own code did since. Never changed in place: it is shared with the tasks it was handed to.
        self.facts: Mapping[str, Known] = facts if facts is not None else parent.facts if parent is not None else _NOTHING
        self.given_back = False  # its task ended
        self.clock: StepClock | None = None if parent is None else parent.clock  # of the innermost step with a time-out
        self.writing: str | None = None if parent is None else parent.writing  # the write step that this code is, or serves
        self.refused = 0  # durable calls made here while the run is being put away
        self.born = execution.tick
        self.counts: dict[str, int | list[int]] = {}  # base key -> tick << 24 | count, a list of them after a repeat

    def number(self, base: str) -> int:
        """Count one more call of *base*; 1 for the first."""
        execution = self.execution
        execution.tick += 1
        mine = self.counts.get(base)
        if mine is None:
            before = self.inherited(base) if self.parent is not None else 0
            self.counts[base] = execution.tick << _COUNT_BITS | (before + 1)
            return before + 1
        return self._raise(base, mine, (mine if isinstance(mine, int) else mine[-1]) & _COUNT_MASK)

    def _raise(self, base: str, mine: int | list[int], before: int) -> int:
        entry = self.execution.tick << _COUNT_BITS | (before + 1)
        if isinstance(mine, int):
            self.counts[base] = [mine, entry]
        else:
            mine.append(entry)
        return before + 1

    def inherited(self, base: str) -> int:
        """The creator's count when this task was created."""
        born, place = self.born, self.parent
        while place is not None:
            found = place.counts.get(base)
            entries = () if found is None else (found,) if isinstance(found, int) else found
            for entry in reversed(entries):
                if entry >> _COUNT_BITS <= born:
                    return entry & _COUNT_MASK
            born, place = min(born, place.born), place.parent
        return 0

    def found_out(self, key: str, known: Known) -> None:
        """The run itself said (or was told) what a fact is: whatever its code asks here from now on sees that."""
        before = self.facts.get(key)
        fresh = self.execution.refreshed.get(key)
        seen = None if fresh is None else fresh.over(known, before)
        if seen is not None or before is None or before.version <= known.version:
            self.facts = {**self.facts, key: seen or known}

    def learn_from(self, other: Place) -> None:
        """What was found out elsewhere is known here, too: the newer version of each fact."""
        if other.facts is not self.facts:
            for key, known in other.facts.items():
                self.found_out(key, known)

    def give_back(self) -> None:
        """The task ended: its creator goes on from the larger of both counts. Said again, nothing happens.

        A creator that ended before has nobody to go on there: what a task it left behind says reaches its own creator.
        """
        if self.given_back:
            return
        self.given_back = True
        self.hand_on()
        above = self.parent
        while above is not None and above.given_back:
            above.hand_on()
            above = above.parent

    def hand_on(self) -> None:
        """What is known here by now, the creator has, too."""
        parent = self.parent
        if parent is None:
            return
        parent.learn_from(self)
        if not self.counts:
            return
        self.execution.tick += 1
        for base, mine in self.counts.items():
            count = (mine if isinstance(mine, int) else mine[-1]) & _COUNT_MASK
            theirs = parent.counts.get(base)
            now = parent.inherited(base) if theirs is None else (theirs if isinstance(theirs, int) else theirs[-1]) & _COUNT_MASK
            if count > now:
                entry = self.execution.tick << _COUNT_BITS | count
                if theirs is None:
                    parent.counts[base] = entry
                else:
                    parent.counts[base] = [theirs, entry] if isinstance(theirs, int) else [*theirs, entry]


place: contextvars.ContextVar[Place | None] = contextvars.ContextVar("stepseven_place", default=None)


class TaskFactory:
    """Gives every task that a run's code creates a place of its own, and tells the run about it."""

    def __init__(self, before: Any) -> None:
        self.before = before  # the loop's earlier factory

    def __call__(  # noqa: D102 - the class says it
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        context: contextvars.Context | None = None,
        **more: Any,
    ) -> asyncio.Future[Any]:
        creator = place.get() if context is None else context.get(place)
        if creator is None:
            return self._make(loop, coro, context, more)
        context = contextvars.copy_context() if context is None else context.copy()
        mine = Place(creator.execution, creator.branch, parent=creator, attempt=creator.attempt, item=creator.item)
        context.run(place.set, mine)
        if asyncio.iscoroutine(coro) and inspect.isawaitable(coro):
            task = self._make(loop, _whole(coro, mine), context, more)
            task.add_done_callback(lambda _: coro.close())  # cancelled before its first step it was never begun
        else:  # asyncio says that it is no coroutine, or (a plain generator, which nobody can await) drives it as it always did
            task = self._make(loop, coro, context, more)
            task.add_done_callback(lambda _: mine.give_back())
        if creator.attempt is None:  # a task created in a step belongs to the step
            creator.execution.adopt(task)
        return task

    def _make(
        self, loop: asyncio.AbstractEventLoop, coro: Any, context: contextvars.Context | None, more: dict[str, Any]
    ) -> asyncio.Future[Any]:
        if context is not None:
            more["context"] = context
        if self.before is not None:
            made: asyncio.Future[Any] = self.before(loop, coro, **more)
            return made
        return asyncio.Task(coro, loop=loop, **more)


def _whole(coro: Coroutine[Any, Any, Any], mine: Place) -> Coroutine[Any, Any, Any]:
    """*coro* with the end of its task, under its own name: people see it in warnings and stacks."""
    whole: Any = _ending(coro, mine)
    whole.__name__ = getattr(coro, "__name__", whole.__name__)
    whole.__qualname__ = getattr(coro, "__qualname__", whole.__name__)
    return cast("Coroutine[Any, Any, Any]", whole)


async def _ending(coro: Coroutine[Any, Any, Any], mine: Place) -> Any:
    try:
        return await coro
    finally:
        mine.give_back()


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Make *loop* tell runs about their tasks. Idempotent; an earlier factory keeps making the tasks."""
    factory = loop.get_task_factory()
    if not isinstance(factory, TaskFactory):
        loop.set_task_factory(TaskFactory(factory))
