"""``run.ask``: a question of the workflow's own: found on record, known as a fact, or asked and waited for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stepseven.decide._phrases import clip
from stepseven.decide._situation import context_of
from stepseven.decide.escalate import Draft
from stepseven.errors import AskCancelled, AskExpired, NotRecordable
from stepseven.model import Option, QuestionKind
from stepseven.runtime import asking
from stepseven.runtime.declared import honoured_us
from stepseven.store.codec import Typed, canonical, digest, free_text, guard
from stepseven.transitions.state import Record, choice_of

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.place import Place
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
    about, refused = inquiry.about_digest(), None
    while True:
        row = None if refused else _standing(ex, here.branch, key, about)
        if row is None and inquiry.remember is not None and refused is None:
            fact = await pinned_fact(ex, inquiry.remember)
            if fact is not None and inquiry.accepts(fact["value"]) is None:
                return inquiry.value(fact["value"])
        if row is None:
            row = await _store(ex, here, key, inquiry, about, refused)
        if here.item is None:
            row = await ex.answered(row)
        else:
            async with here.item.aside():
                row = await ex.answered(row)
        if row["status"] == "answered":
            refused = inquiry.accepts(json.loads(row["answer"]))
            if refused is None:
                return inquiry.value(json.loads(row["answer"]))
            continue  # the schema let it pass and the type does not: the person is told why and asked again
        if row["status"] == "withdrawn":
            raise AskCancelled(row["id"], row["text"])
        if row["fallback"] is not None:
            return inquiry.value(json.loads(row["fallback"]))
        raise AskExpired(row["id"], row["text"])


async def pinned_fact(ex: Execution, key: str) -> dict[str, Any] | None:
    """A fact as this run saw it first; one that is not known yet is not pinned."""
    record = ex.records.get(("", "client.get", key))
    if record is None or record.result in (None, "null"):
        row = asking.known(ex, key)
        if row is None:
            return None
        text = pin_text(row)
        record = Record(
            id=ex.next_id(), branch="", name="client.get", key=key, generation=ex.generation(("", "client.get", key)),
            state="done", result=text, started_us=ex.now_us(), ended_us=ex.now_us(),
        )  # fmt: skip
        await ex.append(record, durable=False)
    ex.mark_used(record)
    found: dict[str, Any] = json.loads(record.result or "null")
    return found


def pin_text(row: Row | None) -> str:
    """A fact's value and version, as a run pins it."""
    if row is None:
        return "null"
    return json.dumps({"value": json.loads(row["value"]), "version": row["version"]}, ensure_ascii=False)


def _standing(ex: Execution, branch: str, key: str, about: str | None) -> Row | None:
    """The question that stands for this call: not when what it was asked on has changed."""
    rows = ex.questions.get((branch, QuestionKind.ASK.value, key), [])
    if not rows:
        return None
    row = rows[-1]
    if row["about"] != about or row["status"] == "withdrawn":  # it was taken back; while the run lives it asks again
        return None
    if about is None and row["status"] in ("open", "answered") and _rerun_since(ex, row):
        return None
    return row


def _rerun_since(ex: Execution, row: Row) -> bool:
    """Whether a step that came before the question now has a newer generation with another result."""
    before = {(r.branch, r.name, r.key): r for r in ex.older if r.seq <= row["asked_seq"]}  # the newest of each
    for key, old in before.items():
        new = ex.records.get(key)
        if new is None or new.seq <= row["asked_seq"] or not _same_line(old.branch, row["branch"]):
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
    facts = {} if q.about is UNSET else {"about": json.loads(guard(canonical(q.about, "about"), "about", secrets="refuse"))}
    context = context_of(asking.situation(ex), facts=facts)
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
    default = None if q.default is UNSET else guard(canonical(q.default, "default"), "default", secrets="refuse")
    valid_us = honoured_us(q.valid) if q.valid else None
    return await asking.store(
        ex, QuestionKind.ASK, key, Draft(text=shown, options=choices, recommendation=None, context=context),
        branch=here.branch, about=about, asked_of=q.to, deadline_us=moment(ex, q.deadline), fallback=default,
        remember=None if q.remember is None else json.dumps({"key": q.remember, "valid_us": valid_us}),
        schema=json.dumps(schema) if schema else None,
    )  # fmt: skip


def moment(ex: Execution, when: float | datetime | None) -> int | None:
    """Seconds from now, or a moment (UTC if it does not say), as microseconds since 1970."""
    if when is None:
        return None
    if isinstance(when, datetime):
        return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1e6)
    return ex.now_us() + round(when * 1e6)
