"""``Run``: what a workflow's code may ask of its run."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

from stepseven.errors import NoRun, NotYetBuilt, StoreUnavailable
from stepseven.model import Failure, FailureKind, Option, Spend, WaitingFor
from stepseven.runtime import asking, mapping
from stepseven.runtime.calls import Deferred, Later, Refusal, nameable
from stepseven.runtime.declared import Step, honoured_us
from stepseven.runtime.inquiry import UNSET, Inquiry, ask, first_seen, moment
from stepseven.runtime.place import Place, place
from stepseven.runtime.waits import DurableWait
from stepseven.store.codec import canonical, digest, free_text, from_canonical, guard
from stepseven.transitions import steps
from stepseven.transitions.state import Record

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Tx

T = TypeVar("T")
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
    def previous(self) -> None:
        """The last run of this client and workflow; comes with a later release, until then always ``None``."""
        return

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Every try that failed in this run so far."""
        found = []
        for rows in self._ex.attempts.values():
            for row in rows:
                if row["outcome"] in ("failed", "unknown"):
                    kind = FailureKind(row["kind"] or "fixable")
                    found.append(Failure(step=row["name"], kind=kind, reason=row["reason"] or "", approach=row["approach"]))
        return tuple(found)

    @property
    def spent(self) -> Spend:
        """What the run has cost so far."""
        ex = self._ex
        return Spend(usd=ex.uusd / 1e6, tokens=ex.tokens, seconds=(ex.run["executing_us"] + ex.executing_us()) / 1e6)

    def brief(self, max_tokens: int) -> str:
        """The checkpoint as text for a prompt, at most *max_tokens* (estimated as four characters each)."""
        document = self._ex.store.read_now(lambda tx: tx.one(tx.sql.checkpoint, {"id": self.id}))
        text = json.dumps(json.loads(document["document"]), ensure_ascii=False, indent=1) if document is not None else ""
        return text if len(text) <= max_tokens * 4 else text[: max(0, max_tokens * 4 - 1)] + "…"

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
            raise NoRun("the run's handle inside a step's code (use it in the workflow, and pass values)")
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
            id=ex.next_id(), branch=branch, name=name, key=key, generation=1, state="done", result=result,
            started_us=ex.now_us(), ended_us=ex.now_us(),
        )  # fmt: skip

    def _append_now(self, record: Record, unit: Callable[[Tx], Any] | None = None) -> None:
        """Write a record at once, and *unit* in the same transaction."""
        ex, now = self._ex, self._ex.now_us()

        def write(tx: Tx) -> None:
            if unit is not None:
                unit(tx)
            steps.append(tx, ex.hold, record, now_us=now)

        try:
            ex.store.write_now(write, durable=ex.full or unit is not None)
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
        inquiry = Inquiry(
            text=text, options=options, type=type, about=about, to=to, deadline=deadline, default=default, remember=remember,
            valid=valid,
        )  # fmt: skip

        def make(here: Place) -> Callable[[], Coroutine[Any, Any, Any]]:
            named = self._key(here, "run.ask", key, digest(text))
            return lambda: ask(self._ex, here, named, inquiry)

        return self._awaited("run.ask()", make)

    async def approve(self, text: str, *, about: Any, key: str | None = None, to: str | None = None) -> Any:  # noqa: ARG002
        """Let a person approve *about* before it is used. Comes with a later release."""
        raise NotYetBuilt("run.approve()")

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
            while (row := asking.known(ex, fact)) is None:
                wait = DurableWait(
                    kind=WaitingFor.EVENT, what=f"{fact} is not known yet", until_us=ex.now_us() + asking.FACT_LOOK_US
                )
                await ex.wait(wait)
            record = self._record(here.branch, "run.wait_for", key, row["value"])
            await ex.append(record, durable=False)
        ex.mark_used(record)
        return from_canonical(record.result or "null")

    def start(self, child: Any, *, key: str | None = None) -> Any:  # noqa: ARG002 - the names are taken now
        """Start another workflow as a child of this run. Comes with a later release."""
        raise NotYetBuilt("run.start()")

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
        """The map's key: after a rename of its step, the one under which it is on record."""
        base = step.name if isinstance(step, Step) else step.__name__
        named = self._key(here, "run.map", key, base)
        if key is None and isinstance(step, Step) and (here.branch, "run.map", named) not in self._ex.records:
            for old in step.settings.renamed_from:
                earlier = old + named.removeprefix(base)
                if (here.branch, "run.map", earlier) in self._ex.records:
                    return earlier
        return named


class RunClient:
    """Facts about the client, as this run sees them: pinned at first use."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def get(self, key: str, default: T | None = None) -> Any:
        """The fact's value as it was when this run first looked; *default* if it is not known."""
        run = self._run
        run._here()  # noqa: SLF001 - part of the handle
        ex = run._ex  # noqa: SLF001
        pinned = json.loads(run._pin("", "client.get", nameable(key), lambda: first_seen(ex, key)))  # noqa: SLF001
        return default if pinned is None else pinned["value"]

    def set(self, key: str, value: Any, *, source: str | None = None, by: str | None = None, valid: str | None = None) -> None:
        """Keep a fact about the client. A record of the run: a resume does not set it again."""
        run, ex = self._run, self._run._ex  # noqa: SLF001 - part of the handle
        here = run._here()  # noqa: SLF001
        guard(canonical(key), "the name of a fact", secrets="refuse")
        text = guard(canonical(value, key), f"fact {key}", secrets="refuse")
        source, by = (None if said is None else free_text(said, 300) for said in (source, by))
        name = run._key(here, "client.set", None, f"{key}={digest(text)}")  # noqa: SLF001
        record = ex.records.get((here.branch, "client.set", name))
        if record is None:
            now, valid_us = ex.now_us(), honoured_us(valid) if valid else None
            fact = {
                "client_id": run.client_id, "key": key, "value": text, "source": source or f"run {run.id}", "run_id": run.id,
                "by": by, "now": now, "valid_until_us": None if valid_us is None else now + valid_us,
            }  # fmt: skip
            record = run._record(here.branch, "client.set", name, text)  # noqa: SLF001
            run._append_now(record, lambda tx: tx.one(tx.sql.insert_fact, fact))  # noqa: SLF001
        ex.mark_used(record)
