"""``show``: one run on one page. Sorted rows in, lines out; nothing is read or printed here."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from stepseven.cli import _recoveries
from stepseven.cli._common import clean, command
from stepseven.cli._read import RunView
from stepseven.cli._told import words as too_late
from stepseven.cli._words import age, clock, headline, mark, short_json, standing
from stepseven.decide import _phrases as say
from stepseven.decide._card import raised_usd
from stepseven.decide.plan import UNKNOWN
from stepseven.model import INTERNAL, EffectState
from stepseven.store.base import Row
from stepseven.transitions.questions import REFUSED

MOST = 3  # of what is alike: items of a map, reasons of failures
MOST_STEPS = 20
_INDENT = "      "
_APPROVED = "approved by "  # begins why an irreversible step was done
_ASIDES = {"unknown": ", not known whether it was done", "deferred": ", put off", "interrupted": ", broke off"}


@dataclass(slots=True)
class Group:
    """The records and tries of one step name."""

    name: str
    records: dict[tuple[str, str], Row] = field(default_factory=dict)  # branch, key: the newest generation
    tries: list[Row] = field(default_factory=list)
    receipts: list[Row] = field(default_factory=list)  # of effects that are done
    of: int | None = None
    was_done: int | None = None  # of a map's items, also where its run was pruned and one record is left

    @property
    def done(self) -> int:
        """How many are done."""
        return sum(1 for r in self.records.values() if r["state"] == "done") if self.was_done is None else self.was_done

    @property
    def finished(self) -> int:
        """How many are done, were skipped, or were refused by a person."""
        finished = sum(1 for r in self.records.values() if _is_finished(r))
        if self.was_done is None:
            return finished
        besides = sum(1 for r in self.records.values() if _is_finished(r) and r["state"] != "done")
        return min(self.was_done + besides, self.of or finished)

    @property
    def refused(self) -> list[Row]:
        """Those that a person did not let happen: decided, and no failures."""
        return [r for r in self.records.values() if _is_refused(r)]

    @property
    def open_tries(self) -> list[Row]:
        """Failed tries of what is not finished yet."""
        return [t for t in self.tries if not self._finished(t)]

    def _finished(self, t: Row) -> bool:
        record = self.records.get((t["branch"], t["key"]))
        return record is not None and _is_finished(record)

    @property
    def state(self) -> str:
        """The state its mark shows."""
        if self.receipts and not self.records:
            return "done"
        failed = any(r["state"] == "failed" and not _is_refused(r) for r in self.records.values())
        if failed or any(t["outcome"] in ("failed", "unknown") for t in self.open_tries):
            return "failed"
        if self.records and self.finished >= (self.of or 1):
            return "skipped" if not self.done else "done"
        return "running"

    @property
    def usd(self) -> float:
        """What it cost, failed tries included, in US dollars."""
        return sum(r["usd"] or 0 for r in [*self.records.values(), *self.tries]) / 1e6


def _is_refused(record: Row) -> bool:
    return bool(record["state"] == "failed" and record["why"] == REFUSED)


def _is_finished(record: Row) -> bool:
    return record["state"] in ("done", "skipped") or _is_refused(record)


def groups(found: RunView) -> list[Group]:
    """Records and tries by step name, in the order in which they began."""
    made: dict[str, Group] = {}
    for row in found.steps:
        if not row["name"].startswith(INTERNAL):
            made.setdefault(row["name"], Group(row["name"])).records[row["branch"], row["key"]] = row
    for row in found.attempts:
        made.setdefault(row["name"], Group(row["name"])).tries.append(row)
    for row in found.effects:
        if row["state"] == EffectState.DONE and row["step"] in made:
            made[row["step"]].receipts.append(row)
    known = found.checkpoint.get("artifacts")
    for group in made.values():
        entry = known.get(group.name) if isinstance(known, dict) else None
        group.of = entry.get("of") if isinstance(entry, dict) else None
        whole = group.of is not None or found.row["pruned_us"] is not None
        group.was_done = entry.get("done") if isinstance(entry, dict) and whole else None
        if group.of is None and len(group.records) > 1:
            group.of = len(group.records)
    return list(made.values())


def page(found: RunView, *, columns: int, most: int, also: tuple[str, ...]) -> Iterator[Text]:
    """The lines of ``show``."""
    yield from _head(found, columns)
    yield Text()
    all_groups = groups(found)
    shown = all_groups[: MOST_STEPS if most == MOST else None]
    wide = max((len(g.name) for g in shown), default=0)
    for group in shown:
        yield from _group(group, min(wide, 28), columns, most)
    if len(all_groups) > len(shown):
        yield Text(f"    … {len(all_groups) - len(shown)} more steps")
    for name in _coming(found, {g.name for g in all_groups}):
        yield Text.assemble("  ", mark("next"), f" {clean(say.coming(name) if name == UNKNOWN else name)}")
    yield from _children(found, columns, most)
    if not all_groups and not found.children:
        yield Text("  no step is on record yet")
    yield Text()
    yield from _questions(found, columns, also)
    yield from _foot(found, columns, most)


def _children(found: RunView, columns: int, most: int) -> Iterator[Text]:
    """The runs it started: those that have not ended first."""
    rows = sorted(found.children, key=lambda row: row["ended_us"] is not None)
    shown = rows[: MOST_STEPS if most == MOST else None]
    for row in shown:
        state = standing(row["status"], row["waiting_for"])
        told = say.clip(clean(f"{row['workflow']}, a run of its own: {state}"), words=20, chars=columns - 4)
        yield Text.assemble("  ", mark(row["status"]), f" {told}")
        yield Text(f"{_INDENT[:-2]}{clean(row['id'])}", style="dim")
    if len(rows) > len(shown):
        yield Text(f"    … {len(rows) - len(shown)} more runs")


def _coming(found: RunView, begun: set[str]) -> list[str]:
    remaining = json.loads(found.row["remaining"] or "[]")
    return [str(n) for n in remaining if n not in begun][:10] if not found.status.ended else []


def _wrapped(text: str, columns: int, first: str, rest: str | None = None) -> list[str]:
    return textwrap.wrap(
        clean(text), columns, initial_indent=first, subsequent_indent=first if rest is None else rest, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def _head(found: RunView, columns: int) -> Iterator[Text]:
    row = found.row
    what = say.clip(row["goal"], words=14, chars=80) if row["goal"] else say.humanise(row["workflow"])
    status = standing(row["status"], row["waiting_for"])
    for line in _wrapped(f"{say.who(row['client_id'])} · {what} · {status} · {age(row['updated_us'])}", columns, ""):
        yield Text(line, style="bold")
    for line in _wrapped(found.why, columns, ""):
        yield Text(line)


# -- steps ------------------------------------------------------------------------------------------------------------


def _group(group: Group, wide: int, columns: int, most: int) -> Iterator[Text]:
    cost = say.money(group.usd) if group.usd else ""
    room = max(12, columns - wide - 6 - len(cost) - 2)
    told = say.clip(_told(group), words=40, chars=room)
    line = f" {clean(group.name):<{wide}}  {clean(told):<{room if cost else 0}}  {cost}"
    yield Text.assemble("  ", mark(group.state), line.rstrip())
    if group.of is not None:
        yield from _items(group, columns, most)
    yield from _tries(group, columns, most)
    yield from _again(group, columns, most)


def _told(group: Group) -> str:
    if group.of is not None:
        skipped = group.finished - group.done - len(group.refused)
        return f"{group.done} of {group.of}" + (f", {skipped} skipped" if skipped else "")
    if not group.records and group.receipts:
        return f"done outside: {short_json(json.loads(group.receipts[-1]['receipt'] or 'null'), 60)}"
    if not group.records:
        return "not done"
    last = list(group.records.values())[-1]
    if _is_refused(last):
        return _refusal(group)
    if last["state"] == "failed":
        return "failed for good"
    return last["summary"] or (short_json(json.loads(last["result"]), 60) if last["result"] else _elsewhere(last))


def _elsewhere(record: Row) -> str:
    """Of a record that holds no result itself: in a file, or gone when its run was pruned or its client forgotten."""
    return "a large result" if record["artifact"] else ""


def _items(group: Group, columns: int, most: int) -> Iterator[Text]:
    """The last few items of a map; the others are a number."""
    done = [r for r in group.records.values() if r["state"] == "done" and r["summary"]]
    shown = done[-most:]
    if len(done) > len(shown):
        yield Text(f"{_INDENT}… {len(done) - len(shown)} more", style="dim")
    for row in shown:
        yield Text(_INDENT + say.clip(row["summary"], words=30, chars=columns - len(_INDENT)), style="dim")
    if group.refused:
        yield Text.assemble(_INDENT[:-2], mark("skipped"), f" {len(group.refused)} {_refusal(group)}")


def _refusal(group: Group) -> str:
    """Who did not let it happen: ``refused by ann``. The reason on record begins so, and a note may follow."""
    told = dict.fromkeys(say.clip((r["summary"] or "refused").partition(":")[0], words=8, chars=60) for r in group.refused)
    return say.listing(list(told))


def _tries(group: Group, columns: int, most: int) -> Iterator[Text]:
    """Failed tries by reason: of what is still open as ✗, of what was done since as a remark."""
    for still_open in (True, False):
        rows = [t for t in group.tries if (t in group.open_tries) is still_open and t["outcome"]]
        counts = Counter((_reason(t), t["approach"] or "as written", t["outcome"]) for t in rows)
        for (reason, approach, outcome), n in counts.most_common(most):
            lead = (mark("failed") if still_open else Text("·")) if outcome != "deferred" else Text("·")
            aside = _ASIDES.get(outcome, "")
            since = "" if still_open else "; done since"
            text = f"{say.times(n)}: {reason} ({approach}{aside}{since})"
            lines = _wrapped(text, columns - 2, _INDENT[:-2], _INDENT[:-2])
            for i, line in enumerate(lines):
                yield Text.assemble(_INDENT[:-2], lead if i == 0 else " ", " ", line.strip())
        if len(counts) > most:
            yield Text(f"{_INDENT}… {len(counts) - most} more reasons")


def _reason(t: Row) -> str:
    return say.reason_of(t["reason"] or f"the try was {t['outcome']}", words=30, chars=200)


def _again(group: Group, columns: int, most: int) -> Iterator[Text]:
    """Why records ran again, or who gave the value; what was taken back since."""
    told = [str(r["why"]) for r in group.records.values() if r["why"] and r["state"] != "failed"]
    notes = Counter(why for why in told if group.of is None or not why.startswith(_APPROVED))  # of many: one question each
    for note, n in notes.most_common(most):
        again = f"{note} ({say.times(n)})" if n > 1 else note
        sign = "next" if note.startswith(_APPROVED) else "again"  # it was decided; nothing ran again
        for i, line in enumerate(_wrapped(again, columns - 2, _INDENT)):
            yield Text.assemble(_INDENT[:-2], mark(sign) if i == 0 else " ", " ", line.strip())
    undone = sum(r["undone_us"] is not None for r in group.receipts)
    if undone:
        of = f" ({undone} of {len(group.receipts)})" if undone < len(group.receipts) else ""
        yield Text.assemble(_INDENT[:-2], mark("again"), f" taken back{of}")


# -- what else is known -----------------------------------------------------------------------------------------------


def _questions(found: RunView, columns: int, also: tuple[str, ...]) -> Iterator[Text]:
    asked = found.open_questions
    for question in asked:
        lines = _wrapped(headline(question), columns - 4, "")
        for i, line in enumerate(lines):
            yield Text.assemble("  ", mark("waiting") if i == 0 else " ", " ", line)
        yield Text(f"    {command('inbox', question.id, *also)}")
    if asked:
        yield Text()


def _foot(found: RunView, columns: int, most: int) -> Iterator[Text]:
    rows = [("spent", _spent(found)), *_facts(found), *_decisions(found, most)]
    rows += [("too late" if i == 0 else "", too_late(said)) for i, said in enumerate(found.objections)]
    rows += _recoveries.lines(found.recoveries, most)
    if found.unsettled:
        rows.append(("effects", f"{found.unsettled} without a known outcome: a resume looks whether they happened"))
    if found.failure is not None:
        step = found.failure.get("step")
        rows.append(("failed", f"{step + ': ' if step else ''}{say.reason_of(found.failure.get('reason'), words=60, chars=400)}"))
    if found.value is not None:
        rows.append(("value", short_json(found.value)))
    if found.row["wake_us"] is not None and not found.status.ended:
        rows.append(("wakes", clock(found.row["wake_us"])))
    rows += [("inputs", short_json(json.loads(found.row["inputs"]), 200)), ("run", found.row["id"])]
    for label, text in rows:
        for line in _wrapped(text, columns, f"  {label:<9} ", " " * 12):
            yield Text(line)


def _spent(found: RunView) -> str:
    ceiling = _limit(found)
    parts = [say.money(found.usd) + (f" of {say.money(ceiling)}" if ceiling is not None else "")]
    if found.tokens:
        parts.append(f"{found.tokens:,} tokens")
    parts.append(f"{say.duration(found.row['executing_us'] / 1e6)} of work")
    return " · ".join(parts)


def _limit(found: RunView) -> float | None:
    """The ceiling in dollars, where the store knows it: raised by a person, or written beside a question."""
    runs: list[Any] = [q.context.get("run") for q in found.questions]
    known = [say.number(r.get("limit_usd")) for r in runs if isinstance(r, dict)]
    last = next((k for k in reversed(known) if k is not None), None)
    raised = raised_usd(found.questions)
    return raised if last is None else last if raised is None else max(last, raised)


def _facts(found: RunView) -> list[tuple[str, str]]:
    facts = found.checkpoint.get("facts")
    if not isinstance(facts, dict):
        return []
    values = [(k, v.get("value") if isinstance(v, dict) else v) for k, v in facts.items()]
    return [("fact" if i == 0 else "", f"{k}: {short_json(v, 120)}") for i, (k, v) in enumerate(values[:8])]


def _decisions(found: RunView, most: int) -> list[tuple[str, str]]:
    made = [q for q in found.questions if q.status == "answered"]
    made.sort(key=lambda q: q.answered_us or 0, reverse=True)
    rows = []
    for i, question in enumerate(made[: most if most > MOST else MOST * 2]):
        label = next((o.label for o in question.options if o.id == _choice(question.answer)), None)
        said = f"“{label}”" if label else short_json(question.answer, 120)
        edits = question.answer.get("inputs") if isinstance(question.answer, dict) else None
        changed = f", with {', '.join(sorted(edits))} changed" if isinstance(edits, dict) else ", edited"
        said += changed if edits is not None else ""
        note = f" ({question.note})" if question.note else ""
        rows.append(("decided" if i == 0 else "", f"{headline(question)} → {said} by {question.answered_by}{note}"))
    if len(made) > len(rows):
        rows.append(("", f"… {len(made) - len(rows)} more decisions"))
    return rows


def _choice(reply: Any) -> Any:
    return reply.get("choice") if isinstance(reply, dict) else reply
