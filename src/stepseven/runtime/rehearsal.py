"""A run's code meets its records, and nothing is written: so it is seen what a resume would reuse, run and ask.

The body runs from the top at every resume anyway, and every call that is on record answers at once. In a rehearsal it does just
that, in memory only. A call that no record answers is noted, with the arguments it was made with, and waits for ever. When
everything waits, ``ahead`` reads from the source what may come after. Probes and other looks are asked: they change nothing.

A call that will run although a record of it stands (its result is gone, a person wants it anew) has that record stand in for
what it will give. What is called after that may run again, if it gives something else: so it is marked, and what the source has
from there on counts as possible, too.

Longer than other files: what becomes of each kind of call is decided by the same few looks.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from stepseven.decide.plan import Coming, Do, Met, Observed
from stepseven.errors import NotRecordable, StepsevenError, Superseded
from stepseven.model import QuestionKind, WaitingFor
from stepseven.runtime import ahead, chosen, claimed, codechange, kinship, reading, refusing, rekeyed
from stepseven.runtime.calls import Call, Deferred, Refusal, identify
from stepseven.runtime.foresight import outlook
from stepseven.runtime.lifecycle import Lifecycle
from stepseven.runtime.memory import where
from stepseven.runtime.place import Place, install
from stepseven.runtime.refusing import only
from stepseven.runtime.turns import Turns
from stepseven.runtime.waits import DurableWait, foreign_place
from stepseven.transitions import codes, family, runs
from stepseven.transitions.state import Hold, Loaded, Record, outwards

if TYPE_CHECKING:
    from types import FrameType

    from stepseven.runtime.declared import Step
    from stepseven.runtime.procedure import Workflow
    from stepseven.runtime.services import Services
    from stepseven.store.base import Row, Tx

T = TypeVar("T")

PATIENCE_S = 5.0  # for code that waits for something outside between its steps
LOOKS_S = 120.0  # for probes and looks at results; each has a time-out of its own
_NOBODY = "rehearsal"


class Looking:
    """A store that is only looked into. What is written to it is forgotten."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.sql = store.sql
        self.url = store.url

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write_now(self, unit: Callable[[Tx], T], **how: Any) -> None:
        """Nothing is done."""

    async def write(self, unit: Callable[[Tx], T], **how: Any) -> NoReturn:
        """Refuse: whoever comes here would have changed something.

        Raises:
            Superseded: always.
        """
        del unit, how
        raise Superseded(_NOBODY, "a rehearsal writes nothing")

    append = append_now = write
    erase = write_now


class Rehearsal(Lifecycle):
    """A run whose code is only let meet its records. What was *loaded* is played with: it is good for one rehearsal."""

    all_at_once = True

    def __init__(self, services: Services, workflow: Workflow[Any, Any], loaded: Loaded) -> None:
        run = loaded.run
        root = services.store.read_now(lambda tx: runs.root_id(tx, run))
        hold = Hold(run_no=run["no"], run_id=run["id"], client_id=run["client_id"], root_id=root, owner=_NOBODY, fence=-1)
        looking: Any = Looking(services.store)
        quiet = replace(services, watchers=[], wakers=[], executions={}, store=looking)
        super().__init__(quiet, workflow, hold, loaded, recovery=True)
        self.changed = run["source_digest"] != workflow.digest  # a call may have other arguments than last time
        self.codes = codes.as_if_taken(self.codes, run, self.seq, workflow.digest)
        self.changed = self.changed or codechange.unmet(self)  # by a question about the code the row has its digest, too
        self.met: list[Met] = []
        self.possible: dict[tuple[str, str, int], Coming] = {}  # what may come if what runs again gives something else
        self.coming: tuple[Coming, ...] = ()
        self.unseen: list[str] = []  # what else cannot be seen, in words
        self.moved: set[str] = set()  # branches with a call that runs again
        self.moved_within: set[str] = set()  # and those around them
        self._asked: set[tuple[str, str]] = set()
        self.called: set[tuple[str, str, str]] = set()  # by the run's code
        self.pending: set[Any] = set()
        self._anew: dict[Step[Any, Any], bool] = {}
        self._looked_at: set[Any] = set()
        self.turns = Turns(self)

    # -- the whole ----------------------------------------------------------------------------------------------------------

    async def rehearse(self) -> Observed:
        """Let the code meet its records, until everything waits or it ends."""
        loop = asyncio.get_running_loop()
        install(loop)
        self.loop, self._over = loop, loop.create_future()
        self.above = await kinship.parents(self)
        self._standing_questions()
        body = self.body = self._begin()
        ended, broke = False, None
        try:
            since, seen = loop.time(), 0
            give_up = since + LOOKS_S
            while not (body.done() or self._over.done()):
                await asyncio.wait({body, self._over}, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S / 10)
                if self.turns.under_way or self.turns.waiting or len(self.met) > seen:  # however long many records take
                    since, seen = loop.time(), len(self.met)
                if loop.time() > min(give_up, since + PATIENCE_S):
                    break
            if body.done() and self.unloading is None:
                ended, broke = _how(self, body)
            elif not self._over.done():
                self._not_waiting()
            await claimed.note(self)
            self.coming = tuple(chosen.foreseen(self, c) for c in self.coming)
            self.possible = {place: chosen.foreseen(self, c) for place, c in self.possible.items()}
        finally:
            self._finish("it was only looked at")
            await self._unload()
            if body.done() and not body.cancelled():
                body.exception()
        return Observed(
            met=tuple(self.met), coming=(*self.coming, *self.possible.values()), ended=ended, broke=broke,
            unknown=tuple(dict.fromkeys(self.unseen)), stale=tuple(self._stale()), receipts=tuple(self._receipts()),
        )  # fmt: skip

    def _finish(self, why: str) -> None:
        if self.unloading is None and not (self.body is not None and self.body.done()):
            self.coming = ahead.after(self.tasks)
        super()._finish(why)

    def _all_wait(self) -> bool:
        return not self.turns.waiting and super()._all_wait()

    def _not_waiting(self) -> None:
        """The code waits for something that no record tells of: what comes after that is not seen."""
        at = next((found for task in self.tasks if (found := foreign_place(task)) is not None), None)
        self.unseen.append(f"what the code does after {at}, where it waits for something outside" if at else "what comes next")

    def _standing_questions(self) -> None:
        """What holds the whole run: nothing begins before it is answered."""
        for kind, key, name in (
            (QuestionKind.POISON, QuestionKind.POISON.value, "run"), (QuestionKind.FAILURE, "run.body", "run.body"),
        ):  # fmt: skip
            rows = self.questions.get(("", kind.value, key), [])
            if rows and rows[-1]["status"] == "open" and not (kind is QuestionKind.FAILURE and self._body_mended()):
                self.asks(rows[-1], name)
        for (_, asked, _), rows in self.questions.items():
            if asked == QuestionKind.LIMIT.value and rows[-1]["status"] == "open":
                self.asks(rows[-1], "limit")

    def _body_mended(self) -> bool:
        tried = self.attempts.get(("", "run.body", "run.body"), [])
        return bool(tried) and tried[-1]["source_digest"] != self.workflow.digest

    def _stale(self) -> list[str]:
        """Steps whose records were not asked for, and are still called by what comes."""
        names = self._named_before(c.name for c in (*self.coming, *self.possible.values()))
        return [names[r.name] for r in self.records.values() if not r.used and r.state == "done" and r.name in names]

    def _receipts(self) -> list[str]:
        """Writes that are done, and that may come again with other values: then a person is asked whether it is the same."""
        names = self._named_before(c.name for c in (*self.coming, *self.possible.values()) if c.effect is not None)
        if not names:
            return []
        if not (self.moved or self.diverged or self._stale()):
            found = [*rekeyed.unasked(self, names), *rekeyed.shared(self, names, self.called)]
        else:  # what was called may be called again, with other values
            found = [r.name for r in self.records.values() if r.effect is not None and r.state == "done" and r.name in names]
            found += rekeyed.shared(self, names, ())
        return [names[name] for name in found]

    def _named_before(self, steps: Iterable[str]) -> dict[str, str]:
        """The name that a step is on record under → its name."""
        found: dict[str, str] = {}
        for name in dict.fromkeys(steps):
            step = ahead.step_named(self.workflow, name)
            found.update(dict.fromkeys(() if step is None else self.names_before(step), name))
            found[name] = name
        return found

    # -- what the run's code does ---------------------------------------------------------------------------------------------

    def call(self, step: Step[Any, Any], here: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Deferred[Any]:
        """A step was called: identify it, and see what a resume would do about it."""
        if self.unloading is not None:
            return Refusal(here, step.name)
        refusing.check_place(step, here)
        return identify(step, here, args, kwargs, meet)

    async def append(self, record: Record, *, text: str | None = None, **how: Any) -> None:
        """Remember it, for as long as the rehearsal lasts."""
        del how
        self.check()
        if text is not None:
            record.result = text
        self.keep(record)

    async def write(self, unit: Any, *, durable: bool, then: Any = None, asks: bool = True) -> Any:
        """What only says how a map stands is passed over. All else nobody can foresee."""
        del unit, then, asks
        if durable:
            self.unseen.append("something that is written down before it goes on")
            await self.hang("it would be written down", WaitingFor.EVENT)

    def artifact_of(self, text: str) -> None:
        """Nothing is kept outside memory."""
        del text

    def tell_step(self, record: Record) -> None:
        """Nobody watches."""

    async def answered(self, row: Row) -> Row:
        """A question that stands: whoever asked it waits."""
        if row["status"] != "open":
            return row
        if row["deadline_us"] is not None and row["deadline_us"] <= self.now_us():
            return self.remember_question({**dict(row), "status": "expired"})
        self.asks(row, row["step"] or f"run.{row['kind']}")
        return await self.hang(row["text"], WaitingFor.PERSON)

    async def withdraw(self, question_id: str) -> Row:
        """A question is taken back: in memory only."""
        row = next(row for rows in self.questions.values() for row in rows if row["id"] == question_id)
        return {**dict(row), "status": "withdrawn"}

    async def wait(self, wait: DurableWait) -> Any:
        """Something that only happens outside: noted, and not waited for."""
        if wait.kind is WaitingFor.TIMER:
            self.notes.append(f"{wait.what} is waited for first.")
        elif wait.kind is WaitingFor.EVENT:
            self.note(Met(name="run.wait_for", do=Do.ASK, why=wait.what, new=True))
        else:
            self.unseen.append(wait.what)
        await self.hang(wait.what, wait.kind)

    async def will_ask(self, kind: QuestionKind, text: str, *, branch: str, key: str, step: str | None) -> None:
        """A question that is not on record yet."""
        if (branch, f"{kind.value}/{key}") not in self._asked:
            self._asked.add((branch, f"{kind.value}/{key}"))
            name = step or f"run.{kind.value}"
            self.note(Met(
                name=name, branch=branch, key=key, do=Do.ASK, why="not asked yet", question=_line(text), new=True,
            ))  # fmt: skip
        await self.hang(text, WaitingFor.PERSON)

    async def will_start(self, name: str, *, branch: str, key: str, row: Row | None) -> None:
        """A run that this one starts, or has started and that has not ended."""
        fresh = "what it was built on changed" if (branch, family.START, key) in self.stale else "not started yet"
        why = fresh if row is None else f"it is {row['status']}"
        what = f"the run of {name} that it starts"
        self.note(Met(
            name=f"run.start/{name}", branch=branch, key=key, do=Do.RUN, why=why, summary=what, new=row is None,
        ))  # fmt: skip
        if row is not None and row["open_questions"]:
            self.note(Met(
                name=f"run.start/{name}", branch=branch, key=key, do=Do.ASK, why=str(row["reason"] or ""),
                question=f"what run {row['id']} asks",
            ))  # fmt: skip
        await self.hang(name, WaitingFor.CHILD)

    async def may_start(self, name: str, *, branch: str, key: str) -> None:
        """A run that is started only if a person says that it is another one than was started before."""
        if not any(met.name == f"run.start/{name}" and (met.branch, met.key) == (branch, key) for met in self.met):
            self.note(Met(
                name=f"run.start/{name}", branch=branch, key=key, do=Do.RUN, why="if it is a second one", maybe=True,
                summary=f"the run of {name} that it starts", new=True,
            ))  # fmt: skip

    async def hang(self, what: str, kind: WaitingFor) -> NoReturn:
        """Wait for ever."""
        await super().wait(DurableWait(kind=kind, what=_line(what)))
        raise Superseded(self.hold.run_id, "it was only looked at")

    # -- notes --------------------------------------------------------------------------------------------------------------

    def note(self, met: Met) -> None:
        """One call, and what a resume does about it."""
        self.met.append(met)

    def asks(self, row: Row, name: str) -> None:
        """A question that is on record, and open. One that another stands for is answered with that."""
        if row["folded_into"] is None and ("", row["id"]) not in self._asked:
            self._asked.add(("", row["id"]))
            self.note(Met(
                name=name, branch=row["branch"], key=row["key"], do=Do.ASK, why="asked, and not answered yet",
                question=_line(str(row["text"])),
            ))  # fmt: skip

    def begins_anew(self, step: Step[Any, Any]) -> bool:
        """Whether a step's own code may wait for somebody. Its source is read once: a step may be met 10,000 times."""
        anew = self._anew.get(step)
        if anew is None:
            anew = self._anew[step] = ahead.begins_anew(step)
        return anew

    def may(self, branch: str) -> bool:
        """Whether what is called in *branch* now comes after something that runs again there, in it or around it."""
        return branch in self.moved_within or not self.moved.isdisjoint(outwards(branch))

    def stand_in(self, call: Call) -> None:
        """It runs again, and its old result stands in: note what the source has from here on."""
        self.moved.add(call.branch)
        self.moved_within.update(outwards(call.branch))
        at = _calling()
        if at in self._looked_at:
            return
        self._looked_at.add(at)
        listed: Counter[tuple[str, str]] = Counter()  # a step that is called twice calls what is in it twice
        for coming in ahead.after(self.tasks):
            listed[coming.name, coming.where] += 1
            place = (coming.name, coming.where, listed[coming.name, coming.where])
            if coming.many or place not in self.possible:
                self.possible[place] = replace(coming, maybe=True)


def _calling() -> tuple[tuple[Any, int], ...]:
    """From where in the run's code a call is made: where the same call is made again, the same may come after it."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what ``inspect.currentframe`` gives
    found = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


async def meet(ex: Rehearsal, call: Call) -> Any:
    """What a resume would do about one call; its value, where that is known."""
    ex.check()
    reading.as_named_before(ex, call)
    ex.called.add(call.key)
    if call.key in ex.pending:  # another task makes the same call: they share it
        await ex.hang(call.step.name, WaitingFor.EFFECT)
    found = await ex.turns.take(outlook(ex, call))
    ex.note(found.met)
    if found.also is not None:
        ex.note(found.also)
    if not found.known:
        ex.pending.add(call.key)
        await ex.hang(call.step.name, WaitingFor.EFFECT)
    if found.record is not None:
        found.record.used = True
    if found.met.do is Do.RUN:
        ex.stand_in(call)
    return found.value


def _how(ex: Rehearsal, body: asyncio.Task[Any]) -> tuple[bool, str | None]:
    """Whether the code came to its end, and if it raised: what, and where."""
    error = RuntimeError("the workflow cancelled itself") if body.cancelled() else only(body.exception())
    if error is None:
        return True, None
    if isinstance(error, StepsevenError) and not isinstance(error, NotRecordable):  # as it stands on record
        return True, f"{type(error).__name__}: {_line(str(error))}"
    return False, f"{type(error).__name__}: {_line(str(error))} ({where(error, ex.workflow)})"


def _line(text: str) -> str:
    return text.split("\n", 1)[0]
