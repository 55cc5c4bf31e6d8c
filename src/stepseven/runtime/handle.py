"""``Run``: what a workflow's code may ask of its run."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

from stepseven.decide import changes
from stepseven.errors import NoRun, StoreUnavailable
from stepseven.model import Failure, Option, Previous, Spend, WaitingFor
from stepseven.runtime import approving, asking, briefing, children, facts, inside, kinship, mapping
from stepseven.runtime.calls import Deferred, Later, Refusal, as_now, nameable
from stepseven.runtime.declared import Step
from stepseven.runtime.facts import RunClient
from stepseven.runtime.inquiry import UNSET, Inquiry, ask, moment
from stepseven.runtime.place import Known, Place, place
from stepseven.runtime.previous import previous
from stepseven.runtime.procedure import WorkflowCall
from stepseven.runtime.waits import DurableWait
from stepseven.store.codec import canonical, digest, from_canonical
from stepseven.transitions import family, steps
from stepseven.transitions.state import Record

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Tx

T = TypeVar("T")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - an item


class Run:
    """The run, from inside its workflow.

    Attributes:
        id: its id.
        client_id: the client it works for.
        goal: what it is for, in words.
        inputs: as given.
    """

    def __init__(self, execution: Execution, root: Place) -> None:
        self._ex = execution
        self._root = root
        self.id = execution.hold.run_id
        self.client_id = execution.hold.client_id
        self.goal: str | None = execution.run["goal"]
        self.inputs: Mapping[str, Any] = json.loads(execution.run["inputs"])

    # -- what is known --------------------------------------------------------------------------------------------------

    @property
    def client(self) -> RunClient:
        """What is known about the client, pinned for this run."""
        return RunClient(self)

    @property
    def previous(self) -> Previous | None:
        """The last finished run of this client and workflow, and what happened since; ``None`` if this is the first.

        It is the newest one that was admitted before this run and has ended ``done``; forks and children do not count. Which
        one it is and what it says is pinned at first use: the same after a resume, whatever other runs do meanwhile.
        """
        self._here()
        return previous(self._ex)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Every try that failed in this run so far, pinned at each use: the same after a resume.

        A step's code sees what is so at that moment.
        """
        here = place.get()
        if here is not None and here.execution is self._ex and here.attempt is not None:
            return briefing.failures_of_run(self._ex)
        here = self._here()
        return briefing.run_failures(self._ex, here.branch, self._key(here, briefing.RUN_FAILURES, None, "failures"))

    @property
    def spent(self) -> Spend:
        """What the run has cost so far, with the runs it started."""
        ex, (uusd, tokens) = self._ex, kinship.below(self._ex, running=False)
        return Spend(usd=(ex.uusd + uusd) / 1e6, tokens=ex.tokens + tokens, seconds=ex.executed_us() / 1e6)

    def brief(self, max_tokens: int, *, key: str | None = None) -> str:
        """What is known of the run and of the one before it, as text for a prompt; the most important first.

        What people were asked and decided, what failed, what is done and what is next, facts, and what happened since the
        previous run. Pinned like ``now()``: the call that made it gets the same text after a resume.

        Args:
            max_tokens: how long it may be, by an estimate: three ASCII characters make a token, every other character is one
                (beyond U+FFFF two), each line is rounded up. What did not fit is counted, and marked with ``…``.
            key: names the text; default: its place among the calls with this *max_tokens*.

        Raises:
            ValueError: *max_tokens* is less than 1.
        """
        here = self._here()
        named = f"{key}/{max_tokens}" if key is not None else str(max_tokens)
        return briefing.brief(self._ex, here.branch, self._key(here, briefing.BRIEF, None, named), max_tokens)

    # -- values that would differ the second time -----------------------------------------------------------------------

    def now(self, *, key: str | None = None) -> datetime:
        """The time of the first execution that got here, UTC; the same after a resume."""
        text = self._pinned("run.now", key, lambda: json.dumps(self._ex.now_us()))
        return datetime.fromtimestamp(json.loads(text) / 1e6, UTC)

    def uuid(self, *, key: str | None = None) -> UUID:
        """A random UUID; the same after a resume."""
        return UUID(json.loads(self._pinned("run.uuid", key, lambda: json.dumps(self._ex.edge.new_uuid()))))

    def _standing_place(self) -> Place:
        here = place.get()
        if here is None or here.execution is not self._ex:
            raise NoRun("this run's handle")
        if here.attempt is not None:
            raise NoRun("the run's handle", instead="has no place in a step's code: use it in the workflow, and pass values")
        return here

    def _here(self) -> Place:
        here = self._standing_place()
        self._ex.check()
        return here

    def _awaited(self, what: str, make: Callable[[Place], Callable[[], Coroutine[Any, Any, T]]]) -> Deferred[T]:
        """A call that waits: identified by *make* now, begun when it is awaited."""
        here = self._standing_place()
        if self._ex.unloading is not None:
            return Refusal(here, what)
        return Later(self._ex, what, make(here))

    def _key(self, here: Place, kind: str, key: str | None, base: str) -> str:
        text = nameable(key if key is not None else base)
        n = here.number(f"{kind}\0{text}")
        return text if n == 1 else f"{text}~{n}"

    def _pinned(self, name: str, key: str | None, make: Callable[[], str]) -> str:
        """A value that is recorded the first time. Synchronous: these calls do not wait."""
        here = self._here()
        return self._pin(here.branch, name, self._key(here, name, key, name.partition(".")[2]), make)

    def _pin(self, branch: str, name: str, key: str, make: Callable[[], str]) -> str:
        ex = self._ex
        record = ex.records.get((branch, name, key))
        if record is None:
            record = self._record(branch, name, key, make())
            self._append_now(record)
        ex.mark_used(record)
        return record.result or "null"

    def _record(self, branch: str, name: str, key: str, result: str) -> Record:
        ex = self._ex
        return Record(
            id=ex.next_id(), branch=branch, name=name, key=key, generation=ex.generation((branch, name, key)), state="done",
            result=result, started_us=ex.now_us(), ended_us=ex.now_us(),
        )  # fmt: skip

    def _append_now(self, record: Record, unit: Callable[[Tx], Any] | None = None) -> None:
        """Write a record at once, and *unit* in the same transaction."""
        ex, now = self._ex, self._ex.now_us()

        def write(tx: Tx) -> None:
            if unit is not None:
                unit(tx)
            steps.append(tx, ex.hold, record, now_us=now)

        try:
            ex.store.write_now(write, durable=ex.full or unit is not None, client=ex.hold.client_id)
        except StoreUnavailable as error:
            raise ex.abandon(error) from error
        ex.keep(record)

    # -- people -----------------------------------------------------------------------------------------------------------

    def ask(  # noqa: PLR0913 - the signature is the contract
        self,
        text: str,
        *,
        options: Sequence[str | Option] | None = None,
        type: Any = str,
        key: str | None = None,
        about: Any = UNSET,
        to: str | None = None,
        deadline: float | datetime | None = None,
        default: Any = UNSET,
        remember: str | None = None,
        valid: str | None = None,
    ) -> Coroutine[object, object, Any]:
        """Ask a person, and wait for the answer: minutes or weeks, over any number of processes.

        Args:
            text: the question, as the person will read it.
            options: choices; the answer is the chosen string (or the option's id).
            type: of a free answer: any type a step may return.
            key: names the question; default: its text.
            about: what the answer is given on; if it changed by a later execution, the question is asked again.
            to: who is asked.
            deadline: seconds, or a moment. Then the *default* is the answer, or ``AskExpired`` is raised.
            default: the answer when nobody answered in time.
            remember: keep the answer as the client's fact under this key; a run that finds the fact does not ask.
            valid: how long that fact holds, such as ``"90d"``.

        Returns:
            The answer.

        Raises:
            AskExpired: nobody answered before the deadline and there is no default. Not a "no".
            AskCancelled: the question was withdrawn.
        """
        about = about if about is UNSET else _now(about)
        inquiry = Inquiry(
            text=text, options=options, type=type, about=about, to=to, deadline=deadline, default=default, remember=remember,
            valid=valid,
        )  # fmt: skip

        def make(here: Place) -> Callable[[], Coroutine[Any, Any, Any]]:
            named = self._key(here, "run.ask", key, digest(text))
            return lambda: ask(self._ex, here, named, inquiry)

        return self._awaited("run.ask()", make)

    def approve(self, text: str, *, about: T, key: str | None = None, to: str | None = None) -> Coroutine[object, object, T]:
        """Let a person approve *about* before it is used; they may edit it.

        Args:
            text: what is asked, in the workflow's own words.
            about: the exact value that will be used. The approval belongs to it: another value is asked about anew.
            key: names the question; default: its text.
            to: who is asked.

        Returns:
            *about*, or what the person made of it, of the same type.

        Raises:
            Refused: they said no. Uncaught it ends the run as cancelled.
            NotRecordable, SecretFound: *about* cannot be shown and kept.
        """
        proposal = approving.Proposal(text=text, about=_now(about), to=to)

        def make(here: Place) -> Callable[[], Coroutine[Any, Any, T]]:
            named = self._key(here, approving.VALUE, key, digest(text))
            return lambda: approving.approve(self._ex, here, f"{approving.VALUE}/{named}", proposal)

        return self._awaited("run.approve()", make)

    # -- time and other runs ----------------------------------------------------------------------------------------------

    def sleep(self, duration: float | datetime, *, key: str | None = None) -> Coroutine[object, object, None]:
        """Wait *duration* seconds, or until a moment: durable, so a resume waits for the rest only."""
        shown = duration.isoformat() if isinstance(duration, datetime) else f"{duration:g}s"

        def make(here: Place) -> Callable[[], Coroutine[Any, Any, None]]:
            named = self._key(here, "run.sleep", key, shown)
            return lambda: self._sleep(here, named, duration, shown)

        return self._awaited("run.sleep()", make)

    async def _sleep(self, here: Place, key: str, duration: float | datetime, shown: str) -> None:
        ex = self._ex
        record = ex.records.get((here.branch, "run.sleep", key))
        if record is None:
            record = self._record(here.branch, "run.sleep", key, json.dumps(moment(ex, duration)))
            await ex.append(record, durable=False)
        ex.mark_used(record)
        await ex.until(json.loads(record.result or "0"), f"the timer of {shown}")

    def wait_for(self, fact: str, *, key: str | None = None) -> Coroutine[object, object, Any]:
        """Wait until the client's *fact* is known; its value, the same after a resume."""

        def make(here: Place) -> Callable[[], Coroutine[Any, Any, Any]]:
            named = self._key(here, "run.wait_for", key, fact)
            return lambda: self._wait_for(here, named, fact)

        return self._awaited("run.wait_for()", make)

    async def _wait_for(self, here: Place, key: str, fact: str) -> Any:
        ex = self._ex
        record = ex.records.get((here.branch, "run.wait_for", key))
        if record is None:
            while (row := facts.known(ex, fact)) is None:
                wait = DurableWait(
                    kind=WaitingFor.EVENT, what=f"{fact} is not known yet", until_us=ex.now_us() + asking.FACT_LOOK_US, fact=fact
                )
                await ex.wait(wait)
            record = self._record(here.branch, "run.wait_for", key, row["value"])
            record.facts = json.dumps({nameable(fact): row["version"]})
            await ex.append(record, durable=False)
        ex.mark_used(record)
        known = Known(json.loads(record.result or "null"), facts.version_told(ex, record, nameable(fact)))
        (place.get() or here).found_out(fact, known)
        return from_canonical(record.result or "null")

    def start(self, child: WorkflowCall[R], *, key: str | None = None) -> Coroutine[object, object, R]:
        """Start another workflow for the same client, as a run of its own, and wait for its value.

        Args:
            child: the workflow with its inputs: ``billing(quarter="Q3")``.
            key: names the call; default: the workflow and its inputs. Equal calls are numbered.

        Returns:
            What the child returned; on record from then on. What it cost counts here, too.

        Raises:
            StepFailed: it failed (``kind="fatal"``: for good) or was cancelled. When this workflow is tried again, so is it.
            Refused: a person refused what it proposed, and its code left it at that.
            NotRecordable, SecretFound, TooLarge: an input cannot be kept.
            RunConflict: somebody else made a run with the id the child would have.
        """
        call = children.started(child)

        def make(here: Place) -> Callable[[], Coroutine[Any, Any, R]]:
            named = self._key(here, family.START, key, call.base)
            return lambda: children.start(self._ex, here, named, call)

        return self._awaited("run.start()", make)

    # -- many items -------------------------------------------------------------------------------------------------------

    @overload
    def map(
        self, step: Step[[I], T], items: Iterable[I], *, key: str | None = None, concurrency: int = 8
    ) -> Coroutine[object, object, list[T | None]]: ...
    @overload
    def map(
        self, step: Callable[[I], Awaitable[T]], items: Iterable[I], *, key: str | None = None, concurrency: int = 8
    ) -> Coroutine[object, object, list[T | None]]: ...
    def map(self, step: Any, items: Iterable[Any], *, key: str | None = None, concurrency: int = 8) -> Any:
        """Run *step* for every item, *concurrency* at a time; each item is a branch of its own.

        Args:
            step: a step, or an async function of one item that calls steps.
            items: what to work on; must be recordable. Equal items are numbered.
            key: names the map; default: the step's name.
            concurrency: items at a time; one that waits for a person frees its place.

        Returns:
            The results in the order of the items, ``None`` for skipped ones.

        Raises:
            StepFailed: items failed for good, after the others ended: ``.results``, ``.failures`` by position.
            NotRecordable: an item cannot be recorded; names it.
        """
        if not mapping.is_async(step):
            raise TypeError(f"run.map needs a step or an async function of one item, not {step!r}")
        if concurrency < 1:
            raise ValueError(f"run.map: concurrency={concurrency}: at least 1")
        listed = list(items)

        def make(here: Place) -> Callable[[], Coroutine[Any, Any, list[Any]]]:
            named = self._map_key(here, step, key)
            return lambda: mapping.MapRun(self._ex, here, step, listed, named, concurrency).run()

        return self._awaited("run.map()", make)

    def _map_key(self, here: Place, step: Any, key: str | None) -> str:
        """The map's key: after a rename of what is mapped, the one under which it is on record."""
        ex, base = self._ex, mapping.called(step)
        named = self._key(here, "run.map", key, base)
        if (here.branch, "run.map", named) in ex.records:
            return named
        before = [*(ex.names_before(step) if key is None and isinstance(step, Step) else ())]
        text = nameable(base if key is None else key)
        if ex.renamed:
            before += [changes.shown(old) for old in ex.renamed.get(changes.MAP + inside.base(text), ())]
        for old in before:
            earlier = old + named.removeprefix(text)
            if (here.branch, "run.map", earlier) in ex.records:
                return earlier
        return named


def _now(about: Any) -> Any:
    """What an answer is given on as it is at the call, whoever changes the object before the await."""
    return as_now(about, canonical(about, "about"), "about")
