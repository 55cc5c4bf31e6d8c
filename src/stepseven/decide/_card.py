"""A question in parts, for pages: the same words as the text of ``_sheet``, and where each belongs. Pure.

What a person has to trust is apart: ``exactly`` and ``record`` are values of the record; ``told`` is written, partly by models.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide import _phrases as say
from stepseven.decide import _sheet as sheet
from stepseven.decide._sheet import Meanwhile
from stepseven.errors import readable
from stepseven.model import Question, QuestionKind, QuestionStatus

_MOST = 8  # of a row, before it is folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice: its number, and what it says and costs. ``needs``: what has to be given with it, of the table below."""

    n: int
    id: str
    label: str
    consequence: str
    recommended: bool
    needs: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of the record: its path, the value as text, and what it was when it was last shown."""

    path: str
    text: str
    was: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The parts, in the order in which they are read."""

    title: str
    state: str
    headline: str
    told: tuple[str, ...]
    done: tuple[str, ...]
    since: str
    failed: tuple[str, ...]
    coming: str
    record: tuple[str, ...]
    receipt: str
    key: str
    exactly: tuple[Value, ...]
    choices: tuple[Choice, ...]
    wants: str
    foot: tuple[str, ...]


#: kind of question, choice: what has to be given with it
NEEDS = {
    "wait": "until", "value": "value", "by_hand": "receipt", "happened": "receipt", "raise": "limit", "approve": "edits",
    "map": "to",
}  # fmt: skip


def card(question: Question, *, now_us: int, meanwhile: Meanwhile | None = None) -> Card:
    """The parts of a question.

    Args:
        question: any question, open or not; rows of other versions are read as far as they go.
        now_us: ages are counted from it.
        meanwhile: what became of its run since it was asked.
    """
    context = sheet._map(question.context)  # noqa: SLF001 - the same reading as the text's
    told = sheet._told(question, 10_000)  # noqa: SLF001 - one line each
    lines = [line for part in told for line in part.splitlines() if line.strip()]
    headline, rest = _headline(question, lines)
    since = meanwhile.done if meanwhile is not None else 0
    exactly = _exactly(question)
    return Card(
        title=sheet._title(question), state=sheet._state(question, now_us, meanwhile), headline=headline, told=tuple(rest),  # noqa: SLF001
        done=tuple(sheet._fold([d for d in map(sheet._done, sheet._list(context.get("done"))) if d], "more steps", _MOST)),  # noqa: SLF001
        since=f"{since:,} more {'result' if since == 1 else 'results'} since it was asked" if since else "",
        failed=tuple(sheet._fold(sheet._failures(context, now_us), "more", _MOST)),  # noqa: SLF001
        coming=say.in_order([say.coming(sheet._text(n)) for n in sheet._list(context.get("next")) if sheet._text(n)], most=5),  # noqa: SLF001
        record=() if exactly else tuple(sheet._facts(context.get("facts"))),  # noqa: SLF001
        receipt=say.shown(context["receipt"]) if context.get("receipt") is not None else "",
        key=sheet._text(context.get("key")), exactly=exactly, choices=_choices(question),  # noqa: SLF001
        wants=sheet._text(context.get("wants")), foot=_foot(question, now_us),  # noqa: SLF001
    )  # fmt: skip


def _headline(question: Question, lines: list[str]) -> tuple[str, list[str]]:
    """The first sentence, which stands alone, and what is said after it."""
    headline = sheet._text(sheet._map(question.context).get("headline"))  # noqa: SLF001
    if not lines:
        return headline, []
    if headline and lines[0].startswith(headline):
        left = lines[0][len(headline) :].strip()
        return headline, [*([left] if left else []), *lines[1:]]
    return lines[0], lines[1:]


def _exactly(question: Question) -> tuple[Value, ...]:
    if not sheet._proposed(question):  # noqa: SLF001
        return ()
    context = sheet._map(question.context)  # noqa: SLF001
    was = {
        sheet._text(sheet._map(c).get("path")): sheet._map(c).get("then")  # noqa: SLF001
        for c in sheet._list(context.get("changed"))  # noqa: SLF001
    }
    return tuple(
        Value(
            path=path, text=value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str),
            was=say.shown(was[path]) if path in was else None,
        )
        for path, value in say.leaves(sheet._map(context.get("facts")))  # noqa: SLF001
    )  # fmt: skip


def _choices(question: Question) -> tuple[Choice, ...]:
    return tuple(
        Choice(
            n=n, id=o.id, label=o.label, consequence=sheet._consequence(o).replace("\u00a0", " "),  # noqa: SLF001
            recommended=o.id == question.recommendation,
            needs=None if question.kind is QuestionKind.ASK else NEEDS.get(o.id),
        )
        for n, o in enumerate(question.options, 1)
    )  # fmt: skip


def _foot(question: Question, now_us: int) -> tuple[str, ...]:
    """Who was asked and until when; or who answered what."""
    if question.status is QuestionStatus.ANSWERED:
        when = f" {say.duration((now_us - question.answered_us) / 1e6)} ago" if question.answered_us else ""
        return (f"answered by {question.answered_by or 'someone'}{when}: {say.shown(readable(question.answer))}",)
    if question.status is not QuestionStatus.OPEN:
        return (f"{question.status.value}: nobody has to answer it",)
    parts = [f"asked of {question.asked_of}"] if question.asked_of else []
    if question.deadline_us:
        left = (question.deadline_us - now_us) / 1e6
        parts.append(f"due in {say.duration(left)}" if left > 0 else f"due {say.duration(-left)} ago")
    return tuple(parts)


def raised_usd(questions: Iterable[Question]) -> float | None:
    """What people raised a run's limit in dollars to; ``None``: nobody did."""
    answers = [q.answer for q in questions if q.kind is QuestionKind.LIMIT and limit_of(q).get("what") == "usd"]
    given = [say.number(a.get("usd")) for a in answers if isinstance(a, dict) and a.get("choice") == "raise"]
    return max((usd for usd in given if usd is not None), default=None)


def limit_of(question: Question) -> Mapping[str, Any]:
    """What a question about a limit says of it: ``what``, ``ceiling``, ``used``; nothing, where it is none."""
    told = question.context.get("limit") if isinstance(question.context, dict) else None
    return told if isinstance(told, dict) else {}
