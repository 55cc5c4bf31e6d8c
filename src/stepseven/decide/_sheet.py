"""A question as plain text, for terminals and mail: the same order everywhere, wrapped, and never failing on odd data.

Questions are rows that other versions, other programs and people wrote: every field of ``context`` may be missing or of
another type, and is then left out.
"""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import Mapping
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide import _phrases as say
from stepseven.decide._tries import AS_WRITTEN
from stepseven.errors import readable
from stepseven.model import Option, Question, QuestionKind, QuestionStatus

MIN_WIDTH = 24
_JUST_NOW_US = 60_000_000  # a question this young is read where the run stopped, and nothing of it is old yet
_LABEL = 12  # columns of "  Failed    "
_CHOICE = 5  # columns of "  1  "
_GAP = 3
_NO_BREAK = "\u00a0"  # keeps a figure and its unit together while lines are wrapped
_NARROW = 24  # columns below which a consequence goes beneath its choice
_ASIDES = {"unknown": "not known whether it was done", "deferred": "put off", "interrupted": "broke off midway"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Meanwhile:
    """What became of a question's run since it was asked: other branches go on while a person thinks.

    Attributes:
        spent_usd: spent by now, in US dollars. limit_usd: its limit, if a person raised it since; ``None``: as it was.
        done: results that came since.
    """

    spent_usd: float
    limit_usd: float | None = None
    done: int = 0


def render(question: Question, *, now_us: int, width: int = 80, meanwhile: Meanwhile | None = None) -> str:
    """The question as plain text: header, what happened, what is known, numbered choices, who and by when.

    Args:
        question: any question, open or not.
        now_us: the present, in microseconds since the epoch: ages are counted from it.
        width: columns of the page; below 24 it is 24. No line is longer.
        meanwhile: what became of its run since it was asked; ``None``: the figures are those of then, which it says, unless that
            was just now.

    Returns:
        Lines joined by newlines, without one at the end.
    """
    width = max(width, MIN_WIDTH)
    parts = [
        _sides(_title(question), _state(question, now_us, meanwhile), width),
        *_told(question, width),
        "",
        *_block(question, now_us, width, meanwhile),
        *_exactly(question, width),
        *_choices(question, width),
        *_foot(question, now_us, width),
    ]
    lines = [line.rstrip() for part in parts for line in part.split("\n")]
    page = "\n".join(line for i, line in enumerate(lines) if line or (i and lines[i - 1])).rstrip()
    return page.replace(_NO_BREAK, " ")


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value] if isinstance(value, str) and value else []


def _text(value: object) -> str:
    return say.one_line(value) if isinstance(value, str) else ""


def _wrap(text: str, width: int, *, first: str = "", rest: str = "") -> str:
    """*text* wrapped; what was indented and still does not fit is broken."""
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _sides(left: str, right: str, width: int) -> str:
    """*left* and *right* on one line where they fit, else beneath each other."""
    gap = width - len(left) - len(right)
    if left and right and gap > 1:
        return left + " " * gap + right
    return "\n".join(_wrap(side, width) for side in (left, right) if side)


def _title(question: Question) -> str:
    run = _map(_map(question.context).get("run"))
    values = [say.shown(v) for v in _map(run.get("inputs")).values() if isinstance(v, str | int | float)]
    short = [v for v in values if len(v) <= 16][:2]  # noqa: PLR2004 - what fits beside a name
    what = say.clip(_text(run.get("goal")), words=9, chars=48)
    if not what and _text(run.get("workflow")):
        what = " ".join([say.humanise(_text(run.get("workflow"))), *short])
    return " · ".join(x for x in (say.who(question.client_id), what) if x)


def _state(question: Question, now_us: int, meanwhile: Meanwhile | None) -> str:
    run = _map(_map(question.context).get("run"))
    parts = []
    if question.status is not QuestionStatus.OPEN:
        parts.append(str(question.status))
    elif question.created_us > 0:
        parts.append(f"waiting {say.duration((now_us - question.created_us) / 1e6)}")
    spent, ceiling = say.number(run.get("spent_usd")), say.number(run.get("limit_usd"))
    then = " when asked" if _is_old(question, now_us) and meanwhile is None else ""
    if meanwhile is not None:
        spent, ceiling = meanwhile.spent_usd, ceiling if meanwhile.limit_usd is None else meanwhile.limit_usd
    if spent is not None:
        parts.append(f"spent {say.money(spent)}" + (f" of {say.money(ceiling)}" if ceiling is not None else "") + then)
    return " · ".join(parts)


def _is_old(question: Question, now_us: int) -> bool:
    """Whether it was not asked just now: what it says of the run is of the time when it was asked."""
    return question.status is not QuestionStatus.OPEN or now_us - question.created_us >= _JUST_NOW_US


def _told(question: Question, width: int) -> list[str]:
    """The headline where the block beneath says the rest, else the whole text: of what the code asks every line is its own."""
    context = _map(question.context)
    headline = _text(context.get("headline")) if question.kind is not QuestionKind.ASK else ""
    if headline and say.one_line(question.text).startswith(headline):
        return [_wrap(f"{headline} {_text(context.get('more'))}".strip(), width)]
    return [_wrap(say.one_line(line), width) for line in question.text.splitlines() if say.one_line(line)]


def _block(question: Question, now_us: int, width: int, meanwhile: Meanwhile | None) -> list[str]:
    """What is known: done, failed, next, and the values of the record."""
    context = _map(question.context)
    done = [d for d in map(_done, _list(context.get("done"))) if d]
    steps = [say.coming(_text(n)) for n in _list(context.get("next")) if _text(n)]
    since = meanwhile.done if meanwhile is not None else 0
    rows = [
        ("Done", " · ".join(_fold(done, "more steps"))),
        ("Since", f"{since:,} more {'result' if since == 1 else 'results'} since it was asked" if since else ""),
        *(("Failed" if i == 0 else "", f) for i, f in enumerate(_fold(_failures(context, now_us), "more"))),
        ("Next", say.in_order(steps, most=5)),
        ("Record", "" if _proposed(question) else " · ".join(_facts(context.get("facts")))),
        ("Receipt", say.shown(context["receipt"]) if context.get("receipt") is not None else ""),
        ("Key", _text(context.get("key"))),
    ]
    block = [_wrap(text, width, first=f"  {label:<{_LABEL - 2}}", rest=" " * _LABEL) for label, text in rows if text]
    return [*block, ""]


def _proposed(question: Question) -> bool:
    """Whether the values are what is to be approved: those are shown whole."""
    return question.kind is QuestionKind.APPROVE and bool(_map(_map(question.context).get("facts")))


def _exactly(question: Question, width: int) -> list[str]:
    """What would be used, every value whole, set apart from everything that was written about it."""
    if not _proposed(question):
        return []
    context = _map(question.context)
    was = {_text(_map(c).get("path")): _map(c).get("then") for c in _list(context.get("changed"))}
    rows = list(say.leaves(_map(context.get("facts"))))
    left = min(max(len(path) for path, _ in rows), max(_LABEL, width // 3))
    lines = ["  To be used, exactly:"]
    for name, value in rows:
        path = say.one_line("".join(c if c.isprintable() else " " for c in name))
        told = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        lines += _value_lines(path, told.splitlines() or [""], left, width)
        if name in was:
            lines.append(_wrap(f"(last time: {say.shown(was[name])})", width, first=" " * (left + 6), rest=" " * (left + 6)))
    return [*lines, ""]


def _value_lines(path: str, texts: list[str], left: int, width: int) -> list[str]:
    """A value beside its name, wrapped, with its own line breaks."""
    indent = " " * (left + 6)
    lines = []
    for i, text in enumerate(texts):
        head = f"    {path:<{left}}  " if i == 0 else indent
        if len(head) > len(indent):  # a long name stands alone
            lines.append(head.rstrip())
            head = indent
        clean = "".join(c if c.isprintable() else " " for c in text)
        lines.append(_wrap(clean, width, first=head, rest=indent) if clean.strip() else head.rstrip())
    return lines


def _fold(items: list[str], more: str, most: int = 5) -> list[str]:
    left = len(items) - most
    return items if left <= 0 else [*items[:most], f"… {left} {more if left != 1 else more.removesuffix('s')}"]


def _done(item: object) -> str:
    entry = _map(item)
    if not _text(entry.get("step")):
        return say.clip(item) if isinstance(item, str) else ""
    count, of = entry.get("count"), entry.get("of")
    return say.did(
        _text(entry.get("step")),
        _text(entry.get("summary")) or None,
        count if isinstance(count, int) else 1,
        of if isinstance(of, int) else None,
    )


def _failures(context: Mapping[str, Any], now_us: int) -> list[str]:
    items = _list(context.get("failed"))
    alone = all(_map(item).get("approach") in {None, AS_WRITTEN} for item in items)  # one way only needs no name
    return [f for f in (_failed(item, now_us, alone=alone) for item in items) if f]


def _failed(item: object, now_us: int, *, alone: bool) -> str:
    entry = _map(item)
    if not entry:
        return say.clip(item) if isinstance(item, str) else ""
    what = _text(entry.get("item")) or ("" if alone else _text(entry.get("approach")))
    said = [say.reason_of(_text(entry.get("reason")), words=30, chars=200)]
    tries, at = say.number(entry.get("tries")), say.number(entry.get("at_us"))
    if at:
        said.append(f"{say.duration((now_us - at) / 1e6)} ago")
    if tries and not entry.get("item"):
        said.append("one try" if tries == 1 else f"{tries:.0f} tries")
    if (aside := _ASIDES.get(_text(entry.get("outcome")))) is not None:
        said.append(aside)
    text = said[0] + (f" ({'; '.join(said[1:])})" if said[1:] else "")
    return f"{say.clip(what, words=8, chars=60)} – {text}" if what else text


def _facts(facts: object) -> list[str]:
    """Each value of the record; one that changed as old → new."""
    if not isinstance(facts, Mapping):
        return []
    return _fold([f"{say.clip(k, words=4, chars=40)} {_fact(v)}" for k, v in facts.items()], "more", most=8)


def _fact(value: object) -> str:
    if isinstance(value, Mapping) and set(value) == {"then", "now"}:
        return f"{say.shown(value['then'])} → {say.shown(value['now'])}"
    return say.shown(value)


def _choices(question: Question, width: int) -> list[str]:
    if not question.options:
        wants = _text(_map(question.context).get("wants"))
        line = f"  answer:  [            ]{f'  {wants}' if wants else ''}"
        return [_wrap(line.strip(), width, first="  ", rest=" " * 11), ""] if question.status is QuestionStatus.OPEN else []
    rows = [(str(n), say.clip(o.label, words=14, chars=80), _consequence(o)) for n, o in enumerate(question.options, 1)]
    beside = width - _CHOICE - _GAP
    left = min(max(len(label) for _, label, _ in rows), beside // 2 + 2)
    if beside - left < _NARROW:
        return [*(_beneath(*row, width) for row in rows), ""]
    return [*(_beside(*row, left, beside - left) for row in rows), ""]


def _beside(n: str, label: str, consequence: str, left: int, right: int) -> str:
    """A choice with its consequence in a column to the right."""
    columns = itertools.zip_longest(textwrap.wrap(label, left), textwrap.wrap(consequence, right), fillvalue="")
    gap = " " * _GAP
    lines = [f"{n if i == 0 else '':>3}  {a:<{left}}{gap}{b}" for i, (a, b) in enumerate(columns)]
    return "\n".join(lines)


def _beneath(n: str, label: str, consequence: str, width: int) -> str:
    """The same on a narrow page."""
    indent = " " * _CHOICE
    head = _wrap(label, width, first=f"{n:>3}  ", rest=indent)
    return head + ("\n" + _wrap(consequence, width, first=indent + "  ", rest=indent + "  ") if consequence else "")


def _consequence(option: Option) -> str:
    parts = [say.clip(option.detail, words=30, chars=200)] if option.detail else []
    usd, seconds = say.number(option.usd), say.number(option.seconds)
    if usd:  # a declared cost of nothing is no declaration
        parts.append(f"about {say.money(usd)}".replace(" ", _NO_BREAK))
    if seconds:
        parts.append(f"~{say.duration(seconds)}".replace(" ", _NO_BREAK))
    return ", ".join(parts)


def _foot(question: Question, now_us: int, width: int) -> list[str]:
    """Recommendation and deadline, or who answered what; the ids last."""
    parts = []
    if question.status is QuestionStatus.ANSWERED:
        when = f" {say.duration((now_us - question.answered_us) / 1e6)} ago" if question.answered_us else ""
        parts.append(f"answered by {_text(question.answered_by) or 'someone'}{when}: {say.shown(readable(question.answer))}")
    elif question.status is QuestionStatus.OPEN:
        number = next((n for n, o in enumerate(question.options, 1) if o.id == question.recommendation), None)
        parts += [f"recommended: {number}"] if number else []
        parts += [f"asked of {say.clip(question.asked_of, words=4, chars=40)}"] if question.asked_of else []
        if question.deadline_us:
            left = (question.deadline_us - now_us) / 1e6
            parts.append(f"due in {say.duration(left)}" if left > 0 else f"due {say.duration(-left)} ago")
    ids = " · ".join(_text(x) for x in (question.id, question.run_id) if _text(x))
    return [_sides(" ", " · ".join(parts), width), _wrap(ids, width)]
