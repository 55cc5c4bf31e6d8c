"""What a run has on record that was built on a value: by whom it was read, what it was passed to, and what came of that.

A value that was passed on whole is recognised by the checksums of arguments, and by what questions were asked about. What the
run's own code made of a value in between is not seen here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from zlib import crc32

from stepseven.decide import _drift_text, drift
from stepseven.errors import NotRecordable
from stepseven.model import INTERNAL, QuestionKind
from stepseven.runtime import below, outside_record
from stepseven.runtime.calls import inner_branch
from stepseven.store.codec import canonical, digest
from stepseven.transitions.family import START

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from stepseven.decide.plan import Drifted
    from stepseven.runtime.memory import RunMemory
    from stepseven.store.base import Row
    from stepseven.transitions.state import Record

_TELLING = 6  # characters of JSON: what is shorter ("yes", true, 3) is equal by chance
_ASKED = (QuestionKind.ASK.value, QuestionKind.APPROVE.value)


class _Trail:
    """Values, by what recognises them elsewhere."""

    def __init__(self) -> None:
        self.checksums: set[str] = set()
        self.digests: set[str] = set()

    def add(self, value: Any) -> bool:
        """Follow this value, too. ``False``: it was followed already, or says too little."""
        try:
            text = canonical(value)
        except NotRecordable:
            return False
        if len(text) < _TELLING or digest(text) in self.digests:
            return False
        self.checksums.add(f"{crc32(text.encode()):08x}")
        self.digests.add(digest(text))
        return True

    def leads_to(self, values: Iterable[Any]) -> bool:
        """Whether one of these is followed."""
        return any(digest(canonical(value)) in self.digests for value in values)


def inner(ex: RunMemory) -> Mapping[str, Record]:
    """Branch → the record of the step whose own code made the calls in it."""
    if not any("[" in record.branch for record in ex.records.values() if record.facts is not None):
        return {}
    return {inner_branch(r.branch, r.name, r.key): r for r in ex.records.values() if not r.name.startswith(INTERNAL)}


def around(record: Record, inside: Mapping[str, Record]) -> list[Record]:
    """The records of the steps whose code made this one, the nearest first."""
    found, branch = [], record.branch
    while branch and inside:
        if branch in inside:
            found.append(inside[branch])
        branch = branch.rpartition("/")[0]
    return found


def on(ex: RunMemory, one: Drifted, ran: Collection[str] = ()) -> list[str]:
    """What was built on what moved: names of steps, and what people said, in words. In the order made.

    Args:
        ex: the run.
        one: what moved.
        ran: names of steps of which it is known otherwise that they run again.
    """
    trail = _Trail()
    trail.add(one.old)
    load = ex.workflow.loader
    if drift.in_record(one) and load is not None:
        for value in _around_field(ex, outside_record.loaded(ex, load), one.key):
            trail.add(value)
    found, inside = dict.fromkeys(one.depends), inner(ex)
    records = (r for r in ex.records.values() if not r.name.startswith(INTERNAL) or r.name == START)
    for record in sorted(records, key=lambda r: r.seq):
        if below.starts_anew(record, one.depends):
            _follow(ex, trail, record)
        elif record.name in one.depends and record.facts is not None and one.key in json.loads(record.facts):
            for step in (record, *around(record, inside)):
                found[step.name] = None
                _follow(ex, trail, step)
        elif record.name in ran or (record.args is not None and not trail.checksums.isdisjoint(json.loads(record.args).values())):
            found[record.name] = None
            _follow(ex, trail, record)
    found.update(dict.fromkeys(_people(ex.questions.values(), trail)))
    return list(found)


def _around_field(ex: RunMemory, record: Record | None, path: str) -> list[Any]:
    """The client record as the run has it, and what of it a field is a part of."""
    text = None if record is None else ex.result_text(record)
    found, value, name = [], json.loads(text or "null"), drift.RECORD
    while isinstance(value, dict) and (path == name or path.startswith(f"{name}.")):
        found.append(value)
        inner = next((k for k in value if path == f"{name}.{k}" or path.startswith(f"{name}.{k}.")), None)
        if inner is None:
            break
        value, name = value[inner], f"{name}.{inner}"
    return found


def _follow(ex: RunMemory, trail: _Trail, record: Record | None) -> None:
    text = None if record is None or record.state != "done" else ex.result_text(record)
    if text is not None:
        trail.add(json.loads(text))


def _people(asked: Iterable[Sequence[Row]], trail: _Trail) -> list[str]:
    """Approvals and answers that were given, or are still asked for, on what is followed."""
    found = []
    for row in (rows[-1] for rows in asked):
        if row["kind"] not in _ASKED or row["status"] not in ("open", "answered"):
            continue
        shown = json.loads(row["context"]).get("facts")
        proposed = row["kind"] == QuestionKind.APPROVE.value and isinstance(shown, dict) and trail.leads_to(shown.values())
        if row["about"] in trail.digests or proposed:
            approval = row["kind"] == QuestionKind.APPROVE.value
            found.append(_drift_text.said(row["answered_by"], row["text"], approval=approval))
    return found


def price(ex: RunMemory, moved: Iterable[Drifted]) -> tuple[float | None, float | None]:
    """What the steps that were built on these cost and took last time: US dollars, seconds; ``None``: it is not known."""
    names = {who for one in moved for who in one.depends}
    made = [r for r in ex.records.values() if (r.name in names and r.effect is None) or below.starts_anew(r, names)]
    usd = [r.usd for r in made if r.usd is not None]
    seconds = sum(((r.ended_us or r.started_us) - r.started_us) / 1e6 for r in made)
    return sum(usd) / 1e6 if usd and len(usd) == len(made) else None, seconds or None
