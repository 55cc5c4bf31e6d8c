"""Stored things as words, for people: marks, ages, questions with the command that answers them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from stepseven.cli._common import clean, command, now_us, width
from stepseven.decide import _phrases as say
from stepseven.decide._card import limit_of, raised_usd
from stepseven.decide.escalate import Meanwhile, render
from stepseven.model import INTERNAL, Question, QuestionKind, QuestionStatus

if TYPE_CHECKING:
    from stepseven.cli._read import RunView

VALUE_CHARS = 400
FOR_EVER = "for ever"
_LAST_US = 253_370_764_800 * 1_000_000  # the year 9999: what is stored may lie beyond it

#: state: (sign, colour). The sign is enough: colour is never the only difference
_MARKS = {
    "done": ("✓", "green"), "reused": ("✓", "green"), "failed": ("✗", "red"), "cancelled": ("✗", "red"), "failing": ("✗", "red"),
    "cancelling": ("✗", "red"), "waiting": ("?", "yellow"), "queued": ("·", ""), "running": ("↻", "cyan"), "again": ("↻", "cyan"),
    "skipped": ("–", ""), "next": ("·", ""),
}  # fmt: skip

#: choices that need more than their name, and the option that gives it
NEEDS = {
    "wait": ("--until", "TIME"),
    "value": ("--value", "VALUE"),
    "by_hand": ("--receipt", "RECEIPT"),
    "happened": ("--receipt", "RECEIPT"),
    "raise": ("--usd", "N"),
}


#: what a waiting run waits for, in words
AWAITED = {
    "person": "a person", "timer": "a time", "child": "another run", "effect": "the outcome of a write",
    "circuit": "a service to answer again", "event": "an event",
}  # fmt: skip


def standing(status: str, waiting_for: str | None) -> str:
    """How a run stands: ``done``, ``waiting for a person``."""
    return f"waiting for {AWAITED[waiting_for]}" if waiting_for else status


def count(n: int, noun: str, plural: str | None = None) -> str:
    """``1 run``, ``3 runs``; *plural*: where an "s" is not all."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def mark(state: str) -> Text:
    """The sign of a state."""
    sign, style = _MARKS[state]
    return Text(sign, style=style)


def short_json(value: Any, chars: int = VALUE_CHARS) -> str:
    """A value on one line, cut with a mark."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return say.clip(text, words=80, chars=chars)


def age(at_us: int) -> str:
    """``4 min ago``."""
    return f"{say.duration((now_us() - at_us) / 1e6)} ago"


def clock(at_us: int) -> str:
    """A moment in this machine's zone: ``2026-03-14 09:00``; ``for ever`` beyond the last year there is."""
    if at_us >= _LAST_US:
        return FOR_EVER
    return datetime.fromtimestamp(at_us / 1e6).astimezone().strftime("%Y-%m-%d %H:%M")


def headline(question: Question) -> str:
    """A question's first line."""
    return say.clip(question.text.split("\n", 1)[0], words=40, chars=200)


def workflow_of(question: Question) -> str:
    """What the run of a question is about: its goal, else its workflow."""
    run = question.context.get("run") if isinstance(question.context, dict) else None
    told = run if isinstance(run, dict) else {}
    return say.clip(told.get("goal") or say.humanise(str(told.get("workflow") or question.run_id)), words=9, chars=48)


def ask_block(console: Console, question: Question, *, also: tuple[str, ...], found: RunView | None = None) -> None:
    """A question whole, with the command that answers it. *found*: its run as it is now, if it is known."""
    meanwhile = _meanwhile(question, found) if found is not None and found.row["id"] == question.run_id else None
    console.print(clean(render(question, now_us=now_us(), width=width(), meanwhile=meanwhile)))
    if question.status is not QuestionStatus.OPEN:
        return
    console.print()
    console.print(f"  answer     {command('answer', question.id, _example(question), *also)}")
    if question.kind is QuestionKind.APPROVE:
        told = question.context.get("approve") or {}
        fixed = {str(path).partition(".")[0] for path in told.get("fixed", ())}
        name = next((n for n in reversed(list(told.get("inputs") or ())) if n not in fixed), None) if told.get("of") else None
        change = ("--set", f"{name}=VALUE") if isinstance(told.get("inputs"), dict) and name else ("--edit",)
        console.print(f"             {command('answer', question.id, 'approve', *change, *also)}")
    for n, option in enumerate(question.options, 1):
        if question.kind is not QuestionKind.ASK and option.id in NEEDS:
            console.print(f"             {command('answer', question.id, str(n), *_need(question, option.id), *also)}")


def _meanwhile(question: Question, found: RunView) -> Meanwhile | None:
    """What became of its run since; of a question that is closed the figures stay those of its time."""
    if question.status is not QuestionStatus.OPEN:
        return None
    done = sum(
        row["state"] == "done" and (row["ended_us"] or 0) > question.created_us and not row["name"].startswith(INTERNAL)
        for row in found.steps
    )
    return Meanwhile(spent_usd=found.usd, limit_usd=raised_usd(found.questions), done=done)


def _example(question: Question) -> str:
    """The choice that is shown as the example: the recommended one, else the first."""
    if not question.options:
        return "VALUE"
    plain = [(n, o.id) for n, o in enumerate(question.options, 1) if question.kind is QuestionKind.ASK or o.id not in NEEDS]
    best = next((n for n, id_ in plain if id_ == question.recommendation), plain[0][0] if plain else 1)
    return f"#{best}" if any(o.id.isdecimal() for o in question.options) else str(best)


def _need(question: Question, choice: str) -> tuple[str, str]:
    """What a choice needs besides its name; a limit in the unit that was reached."""
    if choice == "raise" and (limit := limit_of(question)):
        what = str(limit.get("what"))
        return (f"--{what}" if what in ("tokens", "steps", "seconds") else "--usd", "N")
    return NEEDS[choice]


def size(count: int) -> str:
    """Bytes in the unit that reads best."""
    if count < 1 << 20:
        return f"{count / 1024:,.0f} KiB"
    return f"{count / (1 << 20):,.1f} MiB"
