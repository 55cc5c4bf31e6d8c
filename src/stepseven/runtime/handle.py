"""``Run``: what a workflow's code may ask of its run."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

from stepseven.decide._situation import context_of
from stepseven.decide.escalate import Draft
from stepseven.errors import AskCancelled, AskExpired, NoRun, NotRecordable
from stepseven.model import Failure, FailureKind, Option, QuestionKind, Spend, WaitingFor
from stepseven.runtime import asking, mapping
from stepseven.runtime.declared import Step, honoured_us
from stepseven.runtime.place import Place, place
from stepseven.runtime.waits import DurableWait
from stepseven.store.codec import Typed, canonical, digest, free_text, guard
from stepseven.transitions.state import Record, choice_of

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Row, Tx

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - an item

_UNSET: Any = object()
LATER = "comes with a later release of stepseven"


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

    def _here(self) -> Place:
        here = place.get()
        if here is None or here.execution is not self._ex:
            raise NoRun("this run's handle")
        if here.attempt is not None:
            raise NoRun("the run's handle inside a step's code (use it in the workflow, and pass values)")
        self._ex.check()
        return here

    def _key(self, here: Place, kind: str, key: str | None, base: str) -> str:
        text = key if key is not None else base
        n = here.number(f"{kind}\0{text}")
        return text if n == 1 else f"{text}~{n}"

    def _pinned(self, name: str, key: str | None, make: Callable[[], str]) -> str:
        """A value that is recorded the first time. Synchronous: these calls do not wait."""
        here, ex = self._here(), self._ex
        key = self._key(here, name, key, name.partition(".")[2])
        record = ex.records.get((here.branch, name, key))
        if record is not None:
            ex.mark_used(record)
            return record.result or "null"
        record = Record(
            id=ex.next_id(), branch=here.branch, name=name, key=key, generation=1, state="done", result=make(),
            started_us=ex.now_us(), ended_us=ex.now_us(),
        )  # fmt: skip
        self._append_now(record)
        return record.result or "null"

    def _append_now(self, record: Record) -> None:
        from stepseven.transitions import steps  # noqa: PLC0415 - only for pinned values

        ex, now = self._ex, self._ex.now_us()
        ex.store.write_now(lambda tx: steps.append(tx, ex.hold, record, now_us=now), durable=ex.full)
        ex.keep(record)

    # -- people -----------------------------------------------------------------------------------------------------------

    async def ask(
        self,
        text: str,
        *,
        options: Sequence[str | Option] | None = None,
        type: Any = str,  # noqa: A002 - the public word
        key: str | None = None,
        about: Any = _UNSET,
        to: str | None = None,
        deadline: float | datetime | None = None,
        default: Any = _UNSET,
        remember: str | None = None,
        valid: str | None = None,
    ) -> Any:
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
        here, ex = self._here(), self._ex
        key = self._key(here, "run.ask", key, digest(text))
        if remember is not None:
            known = await self._known(remember)
            if known is not None:
                return self._answer_value(json.loads(known["value"]), options, type)
        choices = tuple(o if isinstance(o, Option) else Option(id=o, label=o) for o in options or ())
        about_digest = None if about is _UNSET else digest(canonical(about, "about"))
        row = self._standing(here.branch, key, about_digest)
        if row is None:
            row = await self._ask_new(
                here, key, text, choices, about, about_digest, type=type, to=to, deadline=deadline, default=default,
                remember=remember, valid=valid,
            )  # fmt: skip
        item = here.item
        if item is None:
            row = await ex.answered(row)
        else:
            async with item.aside():
                row = await ex.answered(row)
        if row["status"] == "answered":
            return self._answer_value(json.loads(row["answer"]), options, type)
        if row["status"] == "withdrawn":
            raise AskCancelled(row["id"], row["text"])
        if row["fallback"] is not None:
            return self._answer_value(json.loads(row["fallback"]), options, type)
        raise AskExpired(row["id"], row["text"])

    def _answer_value(self, answer: Any, options: Sequence[str | Option] | None, type_: Any) -> Any:
        if options:
            return choice_of(answer) if isinstance(answer, dict) else answer
        return Typed(type_, where="answer").validate_python(answer)

    async def _known(self, fact: str) -> Row | None:
        now = self._ex.now_us()
        row: Row | None = await self._ex.store.read(
            lambda tx: tx.one(tx.sql.fact, {"client_id": self.client_id, "key": fact})
        )
        if row is None or (row["valid_until_us"] is not None and row["valid_until_us"] <= now):
            return None
        return row

    def _standing(self, branch: str, key: str, about: str | None) -> Row | None:
        """The question that stands for this call: not when what it was asked on has changed."""
        rows = self._ex.questions.get((branch, QuestionKind.ASK.value, key), [])
        if not rows:
            return None
        row = rows[-1]
        if row["about"] != about:
            return None
        if about is None and row["status"] == "answered" and self._rerun_since(row):
            return None
        return row

    def _rerun_since(self, row: Row) -> bool:
        """Whether a step that came before the question now has a newer generation with another result."""
        ex = self._ex
        for old in ex.older:
            new = ex.records.get((old.branch, old.name, old.key))
            if new is None or old.seq > row["asked_seq"] or new.seq <= row["asked_seq"]:
                continue
            if (new.result, new.artifact) != (old.result, old.artifact):
                return True
        return False

    async def _ask_new(
        self, here: Place, key: str, text: str, choices: tuple[Option, ...], about: Any, about_digest: str | None, **how: Any
    ) -> Row:
        ex = self._ex
        earlier = ex.questions.get((here.branch, QuestionKind.ASK.value, key), [])
        if earlier and earlier[-1]["status"] == "open":  # it was asked on something that changed: it no longer counts
            from stepseven.runtime import trouble  # noqa: PLC0415 - only then

            await trouble.withdraw(ex, (earlier[-1]["id"],))
        context = context_of(
            asking.situation(ex), facts={} if about is _UNSET else {"about": json.loads(canonical(about, "about"))}
        )
        shown = free_text(text)
        context["headline"], context["more"] = shown.split("\n", 1)[0], ""
        if earlier and earlier[-1]["status"] == "answered":
            context["earlier_answer"] = {"answer": json.loads(earlier[-1]["answer"]), "by": earlier[-1]["answered_by"]}
        typed = Typed(how["type"], where="answer")
        schema = None if choices else typed.json_schema()
        fallback_text = None if how["default"] is _UNSET else guard(canonical(how["default"], "default"), "default", secrets="refuse")
        valid_us = honoured_us(how["valid"]) if how["valid"] else None
        remember = None if how["remember"] is None else json.dumps({"key": how["remember"], "valid_us": valid_us})
        draft = Draft(text=shown, options=choices, recommendation=None, context=context)
        return await asking.store(
            ex, QuestionKind.ASK, key, draft, branch=here.branch, about=about_digest, asked_of=how["to"],
            deadline_us=self._moment(how["deadline"]), fallback=fallback_text, remember=remember,
            schema=json.dumps(schema) if schema else None,
        )  # fmt: skip

    def _moment(self, when: float | datetime | None) -> int | None:
        if when is None:
            return None
        if isinstance(when, datetime):
            return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1e6)
        return self._ex.now_us() + round(when * 1e6)

    async def approve(self, text: str, *, about: Any, key: str | None = None, to: str | None = None) -> Any:
        """Let a person approve *about* before it is used. Comes with a later release."""
        raise NotRecordable("run.approve()", LATER)

    # -- time and other runs ----------------------------------------------------------------------------------------------

    async def sleep(self, duration: float | datetime, *, key: str | None = None) -> None:
        """Wait *duration* seconds, or until a moment: durable, so a resume waits for the rest only."""
        here, ex = self._here(), self._ex
        shown = duration.isoformat() if isinstance(duration, datetime) else f"{duration:g}s"
        key = self._key(here, "run.sleep", key, shown)
        name = "run.sleep"
        record = ex.records.get((here.branch, name, key))
        if record is None:
            until = self._moment(duration)
            record = Record(
                id=ex.next_id(), branch=here.branch, name=name, key=key, generation=1, state="done", result=json.dumps(until),
                started_us=ex.now_us(), ended_us=ex.now_us(),
            )  # fmt: skip
            await ex.append(record, durable=False)
        ex.mark_used(record)
        await ex.until(json.loads(record.result or "0"), f"the timer of {shown}")

    async def wait_for(self, fact: str, *, key: str | None = None) -> Any:
        """Wait until the client's *fact* is known; its value."""
        here, ex = self._here(), self._ex
        key = self._key(here, "run.wait_for", key, fact)
        while (row := await self._known(fact)) is None:
            wait = DurableWait(
                kind=WaitingFor.EVENT, what=f"{fact} is not known yet", until_us=ex.now_us() + asking.FACT_LOOK_US
            )
            await ex.wait(wait)
        return json.loads(row["value"])

    def start(self, child: Any, *, key: str | None = None) -> Any:
        """Start another workflow as a child of this run. Comes with a later release."""
        raise NotRecordable("run.start()", LATER)

    # -- many items -------------------------------------------------------------------------------------------------------

    @overload
    async def map(
        self, step: Step[[I], T], items: Iterable[I], *, key: str | None = None, concurrency: int = 8
    ) -> list[T | None]: ...
    @overload
    async def map(
        self, step: Callable[[I], Awaitable[T]], items: Iterable[I], *, key: str | None = None, concurrency: int = 8
    ) -> list[T | None]: ...
    async def map(self, step: Any, items: Iterable[Any], *, key: str | None = None, concurrency: int = 8) -> list[Any]:
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
        here = self._here()
        base = step.name if isinstance(step, Step) else step.__name__
        key = self._key(here, "run.map", key, base)
        return await mapping.MapRun(self._ex, here, step, list(items), key, concurrency).run()


class RunClient:
    """Facts about the client, as this run sees them: pinned at first use."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def get(self, key: str, default: T | None = None) -> Any:
        """The fact's value as it was when this run first looked; *default* if it is not known."""
        run = self._run

        def make() -> str:
            def unit(tx: Tx) -> Row | None:
                return tx.one(tx.sql.fact, {"client_id": run.client_id, "key": key})

            row = run._ex.store.read_now(unit)  # noqa: SLF001 - part of the handle
            if row is None or (row["valid_until_us"] is not None and row["valid_until_us"] <= run._ex.now_us()):  # noqa: SLF001
                return json.dumps(None)
            return json.dumps({"value": json.loads(row["value"]), "version": row["version"]}, ensure_ascii=False)

        here, ex = run._here(), run._ex  # noqa: SLF001
        record = ex.records.get((here.branch, "client.get", key))
        if record is None:
            record = Record(
                id=ex.next_id(), branch=here.branch, name="client.get", key=key, generation=1, state="done", result=make(),
                started_us=ex.now_us(), ended_us=ex.now_us(),
            )  # fmt: skip
            run._append_now(record)  # noqa: SLF001
        ex.mark_used(record)
        pinned = json.loads(record.result or "null")
        return default if pinned is None else pinned["value"]

    def set(
        self, key: str, value: Any, *, source: str | None = None, by: str | None = None, valid: str | None = None
    ) -> None:
        """Keep a fact about the client. A record of the run: a resume does not set it again."""
        run, ex = self._run, self._run._ex  # noqa: SLF001 - part of the handle
        here = run._here()  # noqa: SLF001
        text = guard(canonical(value, key), f"fact {key}", secrets="refuse")
        name = run._key(here, "client.set", None, f"{key}={digest(text)}")  # noqa: SLF001
        if (here.branch, "client.set", name) in ex.records:
            ex.mark_used(ex.records[here.branch, "client.set", name])
            return
        record = Record(
            id=ex.next_id(), branch=here.branch, name="client.set", key=name, generation=1, state="done", result=text,
            started_us=ex.now_us(), ended_us=ex.now_us(),
        )  # fmt: skip
        now, valid_us = ex.now_us(), honoured_us(valid) if valid else None

        def unit(tx: Tx) -> None:
            from stepseven.transitions import steps  # noqa: PLC0415 - only here

            tx.one(
                tx.sql.insert_fact,
                {"client_id": run.client_id, "key": key, "value": text, "source": source or f"run {run.id}", "run_id": run.id,
                 "by": by, "now": now, "valid_until_us": None if valid_us is None else now + valid_us},
            )  # fmt: skip
            steps.append(tx, ex.hold, record, now_us=now)

        ex.store.write_now(unit, durable=True)
        ex.keep(record)


