"""A plan as text: what is reused, run and asked, what each way costs, and that nothing was changed. Pure.

A line is a sign, a word, a step, what is worth knowing of it, money, time. The word says what the sign says: colour is added by
whoever has a terminal, and is never the only difference.
"""

from __future__ import annotations

import json
import math
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from stepseven.decide import _phrases as say
from stepseven.decide._drift_text import arrow
from stepseven.decide._plan_limits import NEED_UNKNOWN, OF_RUN
from stepseven.decide._ways import DRIFT, IF_ELSE, LIMIT, RUN, spoken
from stepseven.decide.plan import UNKNOWN, Do, Drifted, Path, Plan, PlannedStep

MOST = 6  #: lines of one kind; more are folded
_KEPT = 2  # of a folded list: its first and last so many
_MONEY, _TIME = 8, 11  # columns
_NARROW = 60  # columns: below there is no room for times
_LEAST = 16  # columns for what is worth knowing of a step, beside its name
_NAME_MOST = 22
_GIVEN = 200  # characters of a value in a command; a longer one is given as a file
_INDENT = " " * 11  # under the first name of a line
COVERS = "counts every try; new failures and steps over their price add to it"  #: what an upper bound is
_BEFORE = "as in earlier runs"  # why a step is listed that nothing in the source shows
_NAMES = {
    "run.ask": "question", "run.approve": "approval", "run.sleep": "sleep", "run.wait_for": "wait", "run.body": "workflow",
    "run.code": "code", DRIFT: "what moved", RUN: "question", LIMIT: "limit", UNKNOWN: UNKNOWN,
}  # fmt: skip
_SIGNS = str.maketrans({
    "✓": "+", "↻": ">", "·": "-", "→": "->", "←": "<-", "…": "...", "≤": "<=", "–": "-", "“": '"', "”": '"', "×": "x", "’": "'",
})  # fmt: skip


def text(plan: Plan, *, width: int = 80, plain: bool = False, resume: str | None = None) -> str:
    """A plan for people.

    Args:
        plan: the plan.
        width: columns; where there are few, what is worth knowing of a step stands under its name.
        plain: signs that ASCII has.
        resume: the command that does it; ``None``: ``stepseven resume RUN``, with what would be chosen; empty: none is named.
    """
    lines = [*_head(plan, width), ""]
    best = next((path for path in plan.paths if path.cheapest), None)
    if best is not None:
        body = list(_body(plan, best, width))
        lines += [*body, ""] if body else []
        lines += _paths(plan, width)
        lines += _wrapped(COVERS, width, "  at most    ") if _bounded(plan.paths) else []
        lines += _wrapped(_unknown(plan.paths), width, "  not known  ")
    lines += [line for note in plan.notes for line in _wrapped(say.one_line(note), width, "  note       ")]
    lines += ["Nothing has been changed."] if resume == "" else _foot(best, f"`{resume or _command(plan)}`", width)
    made = "\n".join(line.rstrip() for line in lines)
    return made.translate(_SIGNS) if plain else made


def _head(plan: Plan, width: int) -> list[str]:
    what = say.clip(plan.goal, words=14, chars=80) if plan.goal else say.humanise(plan.workflow)
    who = say.who(plan.client_id)
    if who.lower() not in what.lower():
        what = f"{what} for {who}"
    return _wrapped(" · ".join(x for x in (say.one_line(plan.run_id), what, plan.headline) if x), width, "", "  ")


def _wrapped(told: str, width: int, first: str, rest: str | None = None) -> list[str]:
    indent = " " * len(first) if rest is None else rest
    return textwrap.wrap(
        told, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def _command(plan: Plan) -> str:
    """The command that does it, with what would be chosen."""
    told = plan.chosen
    parts = [*(part for name, label in told.get("approach", {}).items() for part in ("--approach", f"{name}={label}"))]
    for name, value in told.get("skip", {}).items():
        given = json.dumps(value, ensure_ascii=False)
        parts += ["--skip", f"{name}={given if len(given) <= _GIVEN else '@FILE'}"]
    parts += [part for name in told.get("rerun", ()) for part in ("--rerun", name)]
    parts += [f"--{told['drift']}"] if told.get("drift") else []
    return " ".join(shlex.quote(say.one_line(part)) for part in ("stepseven", "resume", plan.run_id, *parts))


def _foot(best: Path | None, resume: str, width: int) -> list[str]:
    if best is None:
        return ["It has ended: there is nothing to do. Nothing has been changed.", f"{resume} gives its outcome."]
    asked = {s.step for s in best.steps if s.do is Do.ASK and not s.new and s.step != DRIFT}
    others = [s for s in best.steps if s.do is Do.RUN and not (s.new or s.maybe or s.step in asked)]
    waits = asked and not others  # nothing moves before a person has answered
    does = f"{resume} does this."
    first = "Nothing has been changed. " + ("`stepseven inbox` has what it waits for; then" if waits else "")
    return [f"{first}{does}"] if not waits and len(first + does) <= width else [first, does]  # a command is never cut in two


# -- steps ------------------------------------------------------------------------------------------------------------


def _body(plan: Plan, best: Path, width: int) -> Iterator[str]:
    """What is reused; then what is asked and runs, in order."""
    reused = [s for s in best.steps if s.do is Do.REUSE]
    others = [s for s in best.steps if s.do is not Do.REUSE and s.why != NEED_UNKNOWN]  # that stands below
    wide = min(max((9, *(len(_name(s)) for s in best.steps))), _NAME_MOST)  # 9: "… 44 more"
    yield from _reused(reused, wide, width)
    for kind, group in groupby(others, key=_kind):
        steps = list(group)
        if kind == LIMIT:
            yield from _limits(steps, wide, width)
            continue
        if kind.startswith(("certain", "maybe")) and len(steps) > 1:
            yield from _together(steps, width)
            continue
        for step in steps[:MOST]:
            yield from _moved(plan, width) if step.step == DRIFT else _line(step, wide, width)
        if len(steps) > MOST:
            sign = "?" if steps[0].do is Do.ASK else "↻"
            yield _row(sign, steps[0].do, f"… {len(steps) - MOST} more", "", *_sums(steps[MOST:]), wide, width)


def _kind(step: PlannedStep) -> str:
    """Which lines are told in one: what simply comes next, what may come, and what may run again for one reason."""
    if step.step == LIMIT:
        return LIMIT
    if step.do is Do.ASK or step.step == UNKNOWN or (step.summary and step.why):
        return step.do.value
    if step.why and step.why != _BEFORE:
        return f"maybe{step.new}{step.why}" if step.maybe else step.do.value
    return step.do.value if not step.new else "maybe" if step.maybe else "certain"


def _name(step: PlannedStep) -> str:
    return _NAMES.get(step.step) or say.one_line(spoken(step)).removeprefix("the ")


def _reused(steps: Sequence[PlannedStep], wide: int, width: int) -> Iterator[str]:
    many = len(steps) > MOST
    first, last = (steps[:_KEPT], steps[-_KEPT:]) if many else (steps, [])
    for step in first:
        yield from _line(step, wide, width)
    if many:
        left = steps[_KEPT:-_KEPT]
        usd, seconds = sum(s.usd or 0 for s in left), sum(s.seconds or 0 for s in left)
        told = f"{sum(s.count for s in left):,} results"
        yield _row("✓", Do.REUSE, f"… {len(left)} more", told, say.money(usd), _saved(seconds), wide, width)
    for step in last:
        yield from _line(step, wide, width)
    for lead, effects in (("perhaps anew", False), ("perhaps asked about, as it is done", True)):  # no write is just done again
        again = list(dict.fromkeys(_name(s) for s in steps if s.maybe and (s.effect is not None) is effects))
        those = "all of it" if len(again) == len({s.step for s in steps}) > 1 else say.listing(again, most=4)
        if again:
            yield from _wrapped(f"{lead}: {those}, if what runs before gives another result", width, _INDENT)


def _limits(steps: Sequence[PlannedStep], wide: int, width: int) -> Iterator[str]:
    """Limits that are reached, or may be: those of which the same is known are one line."""
    for (maybe, why, of_run), group in groupby(steps, lambda s: (s.maybe, s.why, (s.summary or "").endswith(OF_RUN))):
        left = [(s.summary or "").removesuffix(OF_RUN) for s in group]
        lead, those = "perhaps: " if maybe else "", say.listing(left, most=len(left))
        told = those if those.endswith(".") else f"{lead}{those}{OF_RUN if of_run else ''}, {why}"  # a question is a sentence
        for n, line in enumerate(textwrap.wrap(told, width - len(_INDENT) - wide - 2, break_on_hyphens=False)):
            yield f"{f'  ? {Do.ASK.value:<5}  {LIMIT:<{wide}}' if n == 0 else _INDENT + ' ' * wide}  {line}"


def _line(step: PlannedStep, wide: int, width: int) -> Iterator[str]:
    """One step; a reason that is too long for its line goes on beneath."""
    sign = {Do.REUSE: "✓", Do.ASK: "?", Do.RUN: "·" if step.new else "↻"}[step.do]
    told, money, time = _told(step), _money(step), _time(step)
    under, bare = _room(wide, width) < _LEAST, not money and not time  # then there is room to the end of the line
    room = width - len(_INDENT) - 2 - (0 if under else wide) if under or bare else _room(wide, width)
    lines = textwrap.wrap(told, room, break_on_hyphens=False) or [""]
    if step.do is Do.REUSE:
        lines = [say.clip(told, words=40, chars=room - 1)] if len(lines) > 1 else lines
    yield _row(sign, step.do, _name(step), "" if under else lines[0], money, time, wide, width)
    for more in filter(None, lines[0 if under else 1 : 3]):
        yield f"{_INDENT}{'' if under else ' ' * wide}  {more}"


def _room(wide: int, width: int) -> int:
    return width - len(_INDENT) - wide - 2 - 1 - _MONEY - (2 + _TIME if width >= _NARROW else 0)


def _row(  # noqa: PLR0913, PLR0917 - the columns of a line
    sign: str, do: Do, name: str, told: str, money: str, time: str, wide: int, width: int
) -> str:
    room = _room(wide, width)
    time = time if width >= _NARROW else ""
    if room < _LEAST:
        return f"  {sign} {do.value:<5}  {name:<{wide}}  {money:>{_MONEY}}  {time}"
    name = name if len(name) <= wide else name[: wide - 1] + "…"
    return f"  {sign} {do.value:<5}  {name:<{wide}}  {told:<{room}} {money:>{_MONEY}}  {time:<{_TIME}}"


def _told(step: PlannedStep) -> str:
    """What is worth knowing of a line."""
    parts = []
    if step.do is Do.REUSE:
        parts.append(f"{step.count:,} results" if step.count > 1 else say.one_line(step.summary or ""))
        parts.append(step.why)
    elif step.do is Do.ASK:
        asked, often = step.summary or ("" if step.step in ("run.ask", "run.approve") else step.why), _often(step)
        parts += [say.one_line(asked), step.why if step.why == IF_ELSE and asked != IF_ELSE else "", often]
        if often == "perhaps":  # before what is asked, as it stands before what runs
            parts = [f"perhaps: {parts[0]}" if parts[0] else often, parts[1]]
    elif step.step == UNKNOWN:
        parts.append(f"{say.one_line(step.why)} cannot be seen through")
    else:
        parts += [_often(step), say.one_line(step.why)]
    return ": ".join(p for p in parts if p) if step.do is not Do.ASK else " · ".join(p for p in parts if p)


def _often(step: PlannedStep) -> str:
    """How many calls, where that is not simply one."""
    if step.step == UNKNOWN:
        return ""
    if step.at_most is None:
        each = f", {_about_money(step.usd_each)} each" if step.usd_each else ""
        return f"about {step.about:,.0f}×" if step.about else f"?×{each}" if step.about is None else "perhaps"
    if step.count == 0 and step.at_most:
        return "perhaps" if step.at_most == 1 else f"perhaps {step.at_most:,}×"
    if step.at_most > 1:
        return f"{step.count:,}×" if step.at_most == step.count else f"{step.count:,} to {step.at_most:,}×"
    return ""


def _money(step: PlannedStep) -> str:
    if step.do is Do.REUSE:
        return say.money(step.usd) if step.usd else ""
    if step.step == UNKNOWN:
        return "$?"
    if step.do is Do.ASK and not step.usd:
        return ""
    return _sums([step])[0]


def _about_money(usd: float | None) -> str:
    return "$?" if usd is None else say.money(usd) if usd == 0 else f"~{say.money(usd)}"


def _time(step: PlannedStep) -> str:
    if step.do is Do.REUSE:
        return _saved(step.seconds or 0)
    return _about_time(step.seconds) if round(step.seconds or 0) else ""


def _saved(seconds: float) -> str:
    return f"{say.duration(seconds)} saved" if round(seconds) else ""


def _about_time(seconds: float | None) -> str:
    return "time ?" if seconds is None else f"~{say.duration(seconds)}" if round(seconds) else "<1 s"


def _sums(steps: Sequence[PlannedStep]) -> tuple[str, str]:
    """What they cost and take; of what is not known in part, what is known of it: ``~$0.20+?``."""
    usd, seconds = sum(s.usd or 0 for s in steps), sum(s.seconds or 0 for s in steps)
    timed = all(s.seconds is not None for s in steps)
    time = _about_time(seconds) if timed else f"{_about_time(seconds)}+?" if round(seconds) else "time ?"
    if any(s.usd is None for s in steps):
        return f"{_about_money(usd)}+?" if usd else "$?", time
    if not usd and all(s.maybe for s in steps) and any(s.usd_at_most != 0 for s in steps):  # nothing is expected, it may cost
        most = [s.usd_at_most for s in steps]
        least = time if round(seconds) else ""
        return "≤ $?" if None in most else f"≤ {_bound(sum(m or 0 for m in most))}", least
    return _about_money(usd), time


def _together(steps: Sequence[PlannedStep], width: int) -> Iterator[str]:
    """What is treated alike in one line: names first, money and time at the end of the first line."""
    money, time = _sums(steps)
    first, maybe = steps[0], steps[0].maybe
    n = max(s.n for s in steps)
    seen = f"(from {n} earlier {'run' if n == 1 else 'runs'})" if n else ""
    often = {_often(s) for s in steps}
    alike = often.pop() if len(often) == 1 else ""  # said once, behind the names
    each = f": {alike}" if alike not in ("", "perhaps") else ""
    named = [f"{_name(s)} {_often(s)}".rstrip() if not alike and _often(s) != "perhaps" else _name(s) for s in steps]
    shown = named if len(named) <= 2 * MOST else [*named[: 2 * MOST - 2], f"… {len(named) - 2 * MOST + 3} more", named[-1]]
    lead, why = "perhaps " if maybe else "", f": {say.one_line(first.why)}" if first.why not in ("", _BEFORE) else ""
    room, time = _room(-2, width), time if width >= _NARROW else ""
    lines = textwrap.wrap(lead + ", ".join(shown) + each + why, room, break_on_hyphens=False, break_long_words=False)
    for i, line in enumerate(lines):
        start = f"  {'·' if first.new else '↻'} {Do.RUN.value:<5}  " if i == 0 else _INDENT
        end = f" {money:>{_MONEY}}  {time:<{_TIME}}" if i == 0 else ""
        yield f"{start}{line:<{room}}{end}"
    if seen:
        yield f"{_INDENT}{seen}"


def _moved(plan: Plan, width: int) -> Iterator[str]:
    """What moved: old → new, who says so, what was built on it."""
    read = [d for d in plan.drift if d.read] or list(plan.drift)
    for i, d in enumerate(read[:MOST]):
        told = f"{say.one_line(d.key)} changed  {arrow(d)}{_said(d, plan.looked_us)}"
        if d.depends:
            verb = "depends" if len(d.depends) == 1 else "depend"
            told += f"; {say.listing([say.one_line(x) for x in d.depends], most=4)} {verb} on it"
        for k, line in enumerate(textwrap.wrap(told, width - len(_INDENT) - 2, break_on_hyphens=False)):
            yield f"  ? {Do.ASK.value:<5}  {line}" if i == 0 and k == 0 else f"{_INDENT}{'  ' if k else ''}{line}"
    if len(read) > MOST:
        yield f"{_INDENT}… {len(read) - MOST} more changed"


def _said(d: Drifted, looked_us: int) -> str:
    """Who says so, and when."""
    by = say.clip(d.source or d.by, words=6, chars=40) if d.source or d.by else ""
    ago = f"{say.duration((looked_us - d.at_us) / 1e6)} ago" if d.at_us is not None else ""
    told = ", ".join(x for x in (by, ago) if x)
    return f" ({told})" if told else ""


# -- ways -------------------------------------------------------------------------------------------------------------


def _paths(plan: Plan, width: int) -> Iterator[str]:
    """What each way asks, costs and takes; the cheapest is marked where there are several."""
    wide = max(len(path.name) for path in plan.paths)
    sums = [_way_sums(path) for path in plan.paths]
    asked = max(14, *(len(_questions(path)) for path in plan.paths))
    dear, long = max(_MONEY, *(len(usd) for usd, _ in sums)), max(8, *(len(time) for _, time in sums))
    for path, (usd, time) in zip(plan.paths, sums, strict=True):
        asks = _questions(path)
        mark = "  ← cheapest" if path.cheapest and len(plan.paths) > 1 else ""
        line, end = f"  {path.name:<{wide}}  {asks:<{asked}} {usd:>{dear}}  {time:<{long}}", f"{_most(path)}{mark}"
        if len(line) + 1 + len(end) <= width:
            yield f"{line} {end}"
        else:
            yield from (line, f"  {'':<{wide}}  {end}")


def _way_sums(path: Path) -> tuple[str, str]:
    """What a way costs and takes; nothing but what is known of it, where some of it is not."""
    usd, time = _sums([s for s in path.steps if s.do is not Do.REUSE and not (s.maybe and s.usd == 0)])
    if path.usd is None and "?" not in usd:
        usd = f"{usd}+?" if usd != _about_money(0) else "$?"
    if path.seconds is None and "?" not in time:
        time = f"{time}+?" if time != _about_time(0) else "time ?"
    return usd, time


def _most(path: Path) -> str:
    """The upper bound; where it has none, that of all that has one, and how much else there is. By name it stands below."""
    if path.usd_at_most is not None:
        return f"at most {_bound(path.usd_at_most)}"
    if UNKNOWN in path.unbounded:
        return "no upper bound"
    n = len(path.unbounded)
    return f"at most {_bound(path.usd_at_most_known)} + {n} uncapped step{'s'[: n != 1]}"


def _bounded(paths: Sequence[Path]) -> bool:
    """Whether any way that does something has a bound, of all or of a part of it."""
    return any(UNKNOWN not in path.unbounded and any(s.do is not Do.REUSE for s in path.steps) for path in paths)


def _bound(usd: float) -> str:
    """An amount that it is not more than: rounded up."""
    digits = 2 if usd >= 0.01 or usd <= 0 else min(8, 1 - math.floor(math.log10(usd)))  # noqa: PLR2004 - a cent, as ``money``
    return say.money(math.ceil(round(usd * 10**digits, 6)) / 10**digits)


def _questions(path: Path) -> str:
    n = path.questions
    least = f"{n} question{'' if n == 1 else 's'}" if n else "no question"
    if path.questions_at_most is None:
        return f"{n}+ questions" if n else "questions ?"
    return least if path.questions_at_most == n else f"{n} to {path.questions_at_most} questions"


def _unknown(paths: Sequence[Path]) -> str:
    told = list(dict.fromkeys(say.one_line(what) for path in paths for what in (*path.unknown, *_enough(path))))
    return "; ".join([*told[:MOST], *([f"… {len(told) - MOST} more"] if len(told) > MOST else [])])


def _enough(path: Path) -> Iterator[str]:
    """The limits of which nobody can tell if they will do; each is counted among the questions that may come."""
    room = [s.summary or "" for s in path.steps if s.step == LIMIT and s.why == NEED_UNKNOWN]
    of_run = [left.removesuffix(OF_RUN) for left in room if left.endswith(OF_RUN)]
    if of_run:
        yield f"if {say.listing(of_run, most=len(of_run))}{OF_RUN} will do"
    yield from (f"if {left} will do" for left in room if not left.endswith(OF_RUN))
