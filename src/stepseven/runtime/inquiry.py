"""``run.ask``: a question of the workflow's own: found on record, known as a fact, or asked and waited for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.decide._phrases import clip
from stepseven.decide._situation import context_of
from stepseven.decide.escalate import Draft
from stepseven.errors import AskCancelled, AskExpired, NotRecordable
from stepseven.model import Option, QuestionKind
from stepseven.runtime import asking, facts, refreshed, verifying
from stepseven.runtime.place import place
from stepseven.runtime.waits import Flight
from stepseven.store.codec import Typed, canonical, digest, free_text, guard
from stepseven.transitions import codes
from stepseven.transitions.fitting import example
from stepseven.transitions.state import Record, choice_of

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.place import Known, Place
    from stepseven.store.base import Row

UNSET: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What ``run.ask`` was called with; the meaning of each field is there."""

    text: str
    options: Sequence[str | Option] | None
    type: Any
    about: Any
    to: str | None
    deadline: float | datetime | None
    default: Any
    remember: str | None
    valid: str | None

    def __post_init__(self) -> None:
        """Refuse now what would be found out in weeks, when the answer comes."""
        if not self.text.strip():
            raise ValueError("run.ask: the question is empty: say what is asked")
        facts.lasting_us(self.valid)
        if self.options is not None:
            self._check_options(self.options)
        if self.default is not UNSET:
            ids = [o if isinstance(o, str) else o.id for o in self.options or ()]
            why = None if not ids or self.default in ids else f"it is not one of {', '.join(ids)}"
            why = why or self.accepts(self.default)
            if why is not None:
                raise ValueError(f"run.ask: default={self.default!r} is no answer to it: {why}")

    def _check_options(self, options: Sequence[str | Option]) -> None:
        if isinstance(options, str):
            raise TypeError(f"run.ask: options={options!r} is one text: give a list of choices")
        if not options:
            raise ValueError("run.ask: options=[]: give at least one choice, or leave options out for a free answer")
        ids: list[Any] = [o.id if isinstance(o, Option) else o for o in options]
        strange = next((i for i in ids if not isinstance(i, str) or not i.strip()), None)
        if strange is not None:
            raise TypeError(f"run.ask: the choice {strange!r} is no text: choices are strings or Option(id=…)")
        if len(set(ids)) != len(ids):
            raise ValueError(f"run.ask: a choice is there twice: {', '.join(ids)}")
        if self.type is not str:
            raise ValueError("run.ask: options= and type= do not go together: the answer is the chosen string")

    def about_digest(self) -> str | None:
        """What the answer is given on, by its content."""
        return None if self.about is UNSET else digest(canonical(self.about, "about"))

    def value(self, answer: Any) -> Any:
        """A stored answer as the caller gets it."""
        if self.options:
            return choice_of(answer) if isinstance(answer, dict) else answer
        return Typed(self.type, where="answer").validate_python(answer)

    def accepts(self, answer: Any) -> str | None:
        """Why an answer is not of the asked type; ``None`` if it is."""
        try:
            self.value(answer)
        except NotRecordable as misfit:
            return str(misfit)
        return None


async def ask(ex: Execution, here: Place, key: str, inquiry: Inquiry) -> Any:
    """The answer, whenever it comes.

    Raises:
        AskExpired: nobody answered before the deadline and there is no default.
        AskCancelled: the question was withdrawn.
    """
    about = inquiry.about_digest()
    if about is None:
        return await _ask(ex, here, key, inquiry, about)
    lane = ("run.ask", here.branch, key)
    await ex.take_lane(lane)  # two tasks that ask about other values under one key are answered one after the other
    try:
        return await _ask(ex, here, key, inquiry, about)
    finally:
        ex.free_lane(lane)


async def _ask(ex: Execution, here: Place, key: str, inquiry: Inquiry, about: str | None) -> Any:
    refused = _Refused()
    while True:
        row = _standing(ex, here.branch, key, about)
        if row is None or row["id"] == refused.id:
            if inquiry.remember is not None and refused.id is None:
                fact = await pinned_fact(ex, here, inquiry.remember)
                if fact is not None and inquiry.accepts(fact.value) is None:
                    return inquiry.value(fact.value)
            row = await _asked_once(ex, here, key, inquiry, about, refused.why)
            if row is None:  # another task asked it meanwhile
                continue
        if here.item is None or row["status"] != "open":
            row = await ex.answered(row)
        else:
            async with here.item.aside():
                row = await ex.answered(row)
        if row["status"] == "answered":
            why = inquiry.accepts(json.loads(row["answer"]))
            if why is None:
                if inquiry.remember is not None:
                    facts.answered(ex, place.get() or here, row, inquiry.remember)
                return inquiry.value(json.loads(row["answer"]))
            refused = _Refused(row["id"], why)
            continue  # the schema let it pass and the type does not: the person is told why and asked again
        return _without_answer(inquiry, row)


def _without_answer(inquiry: Inquiry, row: Row) -> Any:
    """The default, of a question that was closed unanswered."""
    if row["status"] == "withdrawn":
        raise AskCancelled(row["id"], row["text"])
    if row["fallback"] is not None:
        return inquiry.value(json.loads(row["fallback"]))
    raise AskExpired(row["id"], row["text"])


@dataclass(frozen=True, slots=True)
class _Refused:
    """The question whose answer is not of the asked type, and why."""

    id: str | None = None
    why: str | None = None


async def _asked_once(ex: Execution, here: Place, key: str, q: Inquiry, about: str | None, refused: str | None) -> Row | None:
    """Store the question; ``None`` if another task was storing one under this key: then look again."""
    flight_key = ("ask", here.branch, key)
    flight = ex.flights.get(flight_key)
    if flight is not None:
        await ex.shared(flight)
        return None
    flight = ex.flights[flight_key] = Flight()
    try:
        return await _store(ex, here, key, q, about, refused)
    finally:
        del ex.flights[flight_key]
        flight.wake()


async def pinned_fact(ex: Execution, here: Place, key: str) -> Known | None:
    """A fact as this run's questions saw it first; one that is not known yet is not pinned.

    Not under the name of ``run.client.get``: what that gave stays, also if it was "not known".
    """
    own = (place.get() or here).facts.get(key)
    if own is not None and own.version:
        return own
    flight_key = (facts.FOUND, key)
    while (flight := ex.flights.get(flight_key)) is not None:
        await ex.shared(flight)
    seen = ex.records.get(("", "client.get", key))
    record = ex.records.get(("", facts.FOUND, key)) if seen is None or seen.result in (None, "null") else seen
    if record is None:
        row = facts.known(ex, key)
        if row is None:
            return None
        record = Record(
            id=ex.next_id(), branch="", name=facts.FOUND, key=key, generation=ex.generation(("", facts.FOUND, key)), state="done",
            result=facts.pin_text(row), started_us=ex.now_us(), ended_us=ex.now_us(),
        )  # fmt: skip
        flight = ex.flights[flight_key] = Flight()
        try:
            await ex.append(record, durable=False)
        finally:
            del ex.flights[flight_key]
            flight.wake()
    ex.mark_used(record)
    return facts.of_pin(record.result or "null")


def _standing(ex: Execution, branch: str, key: str, about: str | None) -> Row | None:
    """The question that stands for this call: not when what it was asked on has changed."""
    rows = ex.questions.get((branch, QuestionKind.ASK.value, key), [])
    if not rows:
        return None
    if about is not None:
        stands = (r for r in reversed(rows) if r["about"] == about and r["status"] != "withdrawn")
        return next((r for r in stands if not refreshed.overtaken(ex, r)), None)
    row = rows[-1]
    if refreshed.overtaken(ex, row):
        return None
    if row["about"] is not None or row["status"] == "withdrawn":  # it was taken back; while the run lives it asks again
        return None
    if row["status"] in ("open", "answered") and _rerun_since(ex, row):
        return None
    return row


_OUR_NOTES = frozenset({verifying.ASIDE, refreshed.KEEP, refreshed.REFRESH, refreshed.RELOAD, codes.PASSED_BY})


def _rerun_since(ex: Execution, row: Row) -> bool:
    """Whether a step that came before the question now has a newer generation with another result."""
    before = {(r.branch, r.name, r.key): r for r in ex.older if r.seq <= row["asked_seq"]}  # the newest of each
    for key, old in before.items():
        new = ex.records.get(key)
        if new is None or new.seq <= row["asked_seq"] or not _same_line(old.branch, row["branch"]) or refreshed.is_fresh(new):
            continue
        if new.name in _OUR_NOTES:  # each says another thing; what was made anew because of it is compared for itself
            continue
        if (new.result, new.artifact) != (old.result, old.artifact):
            return True
    return False


def _same_line(a: str, b: str) -> bool:
    """Whether one branch lies in the other: what another item of a map did is nothing this one was asked on."""
    return a == b or not a or not b or a.startswith(b + "/") or b.startswith(a + "/")


async def _store(ex: Execution, here: Place, key: str, q: Inquiry, about: str | None, refused: str | None) -> Row:
    earlier = ex.questions.get((here.branch, QuestionKind.ASK.value, key), [])
    if earlier and earlier[-1]["status"] == "open":  # it was asked on something that changed: it no longer counts
        from stepseven.runtime import trouble

        await trouble.withdraw(ex, (earlier[-1]["id"],))
    known = {} if q.about is UNSET else {"about": json.loads(guard(canonical(q.about, "about"), "about", secrets="refuse"))}
    context = context_of(asking.situation(ex), facts=known)
    shown = free_text(q.text)
    context["headline"], context["more"] = shown.split("\n", 1)[0], ""
    last = next((r for r in reversed(earlier) if r["status"] == "answered"), None)
    if last is not None:
        before = context["earlier_answer"] = {"answer": json.loads(last["answer"]), "by": last["answered_by"]}
        told = f"does not fit: {refused}" if refused else "was given on something that has changed since"
        said = json.dumps(before["answer"], ensure_ascii=False)
        context["more"] = clip(f"The earlier answer, {said} by {before['by']}, {told}.", words=40, chars=300)
        shown = f"{shown}\n{context['more']}"
    choices = tuple(o if isinstance(o, Option) else Option(id=o, label=o) for o in q.options or ())
    guard(canonical(choices, "options"), "options", secrets="refuse")  # not masked: the choice is the answer the code gets
    schema = None if choices else Typed(q.type, where="answer").json_schema()
    if schema is not None:
        context["wants"] = _wanted(schema)
    default = None if q.default is UNSET else guard(canonical(q.default, "default"), "default", secrets="refuse")
    return await asking.store(
        ex, QuestionKind.ASK, key, Draft(text=shown, options=choices, recommendation=None, context=context),
        branch=here.branch, about=about, asked_of=q.to, deadline_us=moment(ex, q.deadline), fallback=default,
        remember=None if q.remember is None else json.dumps({"key": q.remember, "valid_us": facts.lasting_us(q.valid)}),
        schema=json.dumps(schema) if schema else None,
    )  # fmt: skip


_WORDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
_LONGEST_EXAMPLE = 60  # characters


def _wanted(schema: dict[str, Any]) -> str | None:
    """What a free answer has to be, in a few words; ``None``: any text, or nothing that could be said shortly."""
    if schema.get("type") in _WORDS:
        return _WORDS[schema["type"]]
    if set(schema) <= {"type", "title", "description"} and schema.get("type") in (None, "string"):
        return None
    text = json.dumps(example(schema), ensure_ascii=False)
    return f"such as {text}" if len(text) <= _LONGEST_EXAMPLE else None


def moment(ex: Execution, when: float | datetime | None) -> int | None:
    """Seconds from now, or a moment (UTC if it does not say), as microseconds since 1970."""
    if when is None:
        return None
    if isinstance(when, datetime):
        return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1e6)
    return ex.now_us() + round(when * 1e6)
