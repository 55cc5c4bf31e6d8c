"""What the next run of a client starts from: the last one as one small document, and what happened since.

The document is what a run pins, so it is bounded: every section has a share of 64 KiB, what is longer is cut with a mark
and counted. It is made of plain rows and read back with ``previous_of``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.model import (
    Changes,
    Decision,
    Fact,
    FactChange,
    Failure,
    FailureKind,
    Previous,
    QuestionKind,
    RunInfo,
    RunStatus,
    WaitingFor,
)

Row = Mapping[str, Any]

MAX_BYTES = 64 << 10  #: of the whole document
VALUE_BYTES = 8 << 10  #: a longer value is a document of its own
BODY = "run.body"  #: the name under which tries of the workflow's own code are kept
_GOAL_BYTES, _ITEM_BYTES, _TEXT_BYTES, _SMALL_BYTES = 1 << 10, 2 << 10, 600, 120
#: what each section may take; together with the value, the goal and the names of the fields less than MAX_BYTES
_SHARES = {
    "inputs": 6 << 10, "artifacts": 18 << 10, "summaries": 3 << 10, "decisions": 6 << 10, "failures": 4 << 10,
    "facts": 5 << 10, "changed.facts": 5 << 10, "changed.decisions": 4 << 10, "changed.runs": 3 << 10,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is on record of the previous run and since, as rows (newest first)."""

    run: Row
    results: Sequence[Row]  # the last record of each step name, with `text`: its result, ``None`` when that was pruned
    decisions: Sequence[Row]
    failures: Sequence[Row]
    facts: Sequence[Row]
    facts_since: Sequence[Row]
    decisions_since: Sequence[Row]
    runs_since: Sequence[Row]


def changes(newest: Sequence[Row], met: Sequence[Row], begun_us: int) -> list[dict[str, Any]]:
    """The facts that are another value than the previous run knew: what came while it was under way it did not know, either.

    Args:
        newest: each fact's newest version since it began, with the newest one of that moment (``old_…``).
        met: the facts it read or found out, each in the newest version it met.
        begun_us: when it began.
    """
    known = {row["key"]: row for row in met}
    told = []
    for row in newest:
        mine = known.get(row["key"])
        if row["version"] <= mine["version"] if mine is not None else row["set_us"] <= begun_us:
            continue
        old = {} if mine is None else {"old_version": mine["version"], "old_value": mine["value"]}
        change = {**dict(row), **old}
        if change["old_value"] is None or json.loads(change["old_value"]) != json.loads(change["value"]):
            told.append(change)
    return told


def document(found: Found) -> dict[str, Any]:
    """The previous run as one JSON document of at most ``MAX_BYTES``.

    Args:
        found: the rows.

    Returns:
        What ``previous_of`` reads. ``value`` is the value's JSON text; missing when there is none, or it is longer than
        ``VALUE_BYTES``.
    """
    notes = _Notes()
    run = found.run
    there = [row for row in found.results if row["text"] is not None]
    gone = [row["name"] for row in found.results if row["text"] is None]
    told: dict[str, Any] = {
        "run_id": run["id"], "status": run["status"], "ended_us": run["ended_us"],
        "goal": None if run["goal"] is None else shortened(run["goal"], _GOAL_BYTES),
        "inputs": notes.named("inputs", json.loads(run["inputs"]).items(), _ITEM_BYTES),
        "artifacts": notes.named("artifacts", ((r["name"], _shown(r["text"])) for r in there), _ITEM_BYTES, gone),
        "summaries": notes.named("summaries", ((r["name"], r["summary"]) for r in found.results if r["summary"]), _TEXT_BYTES),
        "decisions": notes.listed("decisions", map(_decision, found.decisions)),
        "failures": notes.listed("failures", map(_failure, found.failures)),
        "facts": notes.listed("facts", map(_fact, found.facts), ("value",)),
        "changed": {
            "facts": notes.listed("changed.facts", map(_change, found.facts_since), ("old", "new")),
            "decisions": notes.listed("changed.decisions", map(_decision, found.decisions_since)),
            "runs": notes.listed("changed.runs", map(_run, found.runs_since)),
        },
    }  # fmt: skip
    if run["value"] is not None and _size(run["value"]) <= VALUE_BYTES:
        told["value"] = run["value"]
    elif run["value"] is None:  # a finished run has one: it was pruned
        notes.cut.append("value")
    return {**told, "cut": notes.cut, "left_out": notes.left_out}


def previous_of(told: Mapping[str, Any], client_id: str, value: Any, restore: Callable[[Any], Any]) -> Previous:
    """The document as a value.

    Args:
        told: what ``document`` made.
        client_id: of the client.
        value: the run's value, decoded.
        restore: makes the values of JSON that has tags for what JSON has not (bytes).
    """
    run_id = told["run_id"]
    facts = [Fact(**{**row, "client_id": client_id, "value": restore(row["value"])}) for row in told["facts"]]
    return Previous(
        run_id=run_id, status=RunStatus(told["status"]), goal=told["goal"], ended_us=told["ended_us"], value=value,
        inputs={name: restore(given) for name, given in told["inputs"].items()},
        artifacts={name: restore(result) for name, result in told["artifacts"].items()},
        summaries=dict(told["summaries"]),
        decisions=tuple(_decided(row, restore) for row in told["decisions"]),
        failures=tuple(Failure(**{**row, "kind": FailureKind(row["kind"]), "run_id": run_id}) for row in told["failures"]),
        facts={fact.key: fact for fact in facts},
        changed=Changes(
            facts=tuple(
                FactChange(**{**row, "old": restore(row["old"]), "new": restore(row["new"])}) for row in told["changed"]["facts"]
            ),
            decisions=tuple(_decided(row, restore) for row in told["changed"]["decisions"]),
            runs=tuple(_run_info(row, client_id) for row in told["changed"]["runs"]),
        ),
        cut=tuple(told["cut"]), left_out=dict(told["left_out"]),
    )  # fmt: skip


def failure_of(row: Row) -> Failure:
    """A failed try's row, with ``run_id``, as a value."""
    told = _failure(row) | {"reason": row["reason"] or ""}
    return Failure(**{**told, "kind": FailureKind(row["kind"] or "fixable"), "run_id": row["run_id"]})


def shortened(value: Any, most: int) -> Any:
    """*value* if its JSON has at most *most* bytes; else the beginning of it as text, with a ``…``."""
    if len(_dumped(value)) <= most:
        return value
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    shown = shown[:most]
    while len(_dumped(shown + "…")) > most and shown:
        shown = shown[: len(shown) * 7 // 8]
    return shown + "…"


def _shown(text: str) -> Any:
    """A result for the document. One that is cut anyway is not parsed: it may have megabytes."""
    return json.loads(text) if len(text) <= _ITEM_BYTES * 2 else text


class _Notes:
    """What was cut and left out while a document was made."""

    def __init__(self) -> None:
        self.cut: list[str] = []
        self.left_out: dict[str, int] = {}

    def named(self, section: str, items: Iterable[tuple[str, Any]], each: int, gone: Iterable[str] = ()) -> dict[str, Any]:
        """The items that fit into the section's share: cut to *each* bytes, and to a few words when most of it is used up.

        Of those that are *gone* there is the name, in what is left of the share.
        """
        kept: dict[str, Any] = {}
        left, reserve = _SHARES[section] * 3 // 4, _SHARES[section] // 4
        for name, value in items:
            label = f"{section}.{name}"
            shown = shortened(value, each)
            takes = _size(name) + _size(label) + len(_dumped(shown)) + 8
            if takes > left:
                shown, takes, left = shortened(value, _SMALL_BYTES), 0, 0
                reserve -= _size(name) + _size(label) + len(_dumped(shown)) + 8
                if reserve < 0:
                    self.left_out[section] = self.left_out.get(section, 0) + 1
                    continue
            left -= takes
            kept[name] = shown
            if shown is not value:
                self.cut.append(label)
        left += reserve
        for name in gone:
            label = f"{section}.{name}"
            left -= _size(label) + 4
            if left < 0:
                self.left_out[section] = self.left_out.get(section, 0) + 1
            else:
                self.cut.append(label)
        return kept

    def listed(self, section: str, items: Iterable[dict[str, Any]], values: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """The first items, as many as fit into the section's share. *values*: their fields that code may rely on."""
        kept: list[dict[str, Any]] = []
        left = _SHARES[section]
        for item in items:
            shown = {**item, **{name: shortened(item[name], _TEXT_BYTES) for name in values}}
            label = f"{section}.{item['key']}" if any(shown[name] is not item[name] for name in values) else ""
            left -= len(_dumped(shown)) + _size(label) + 4
            if left < 0:
                self.left_out[section] = self.left_out.get(section, 0) + 1
                continue
            kept.append(shown)
            if label:
                self.cut.append(label)
        return kept


# -- rows as they stand in the document, and back ------------------------------------------------------------------------


def _decision(row: Row) -> dict[str, Any]:
    return {
        "text": shortened(row["text"], _TEXT_BYTES), "answer": shortened(json.loads(row["answer"] or "null"), _TEXT_BYTES),
        "by": row["answered_by"], "answered_us": row["answered_us"], "run_id": row["run_id"], "kind": row["kind"],
        "step": row["step"], "note": None if row["note"] is None else shortened(row["note"], _TEXT_BYTES),
    }  # fmt: skip


def _decided(row: Row, restore: Callable[[Any], Any]) -> Decision:
    return Decision(**{**row, "kind": QuestionKind(row["kind"]), "answer": restore(row["answer"])})


def _failure(row: Row) -> dict[str, Any]:
    return {
        "step": None if row["name"] == BODY else row["name"], "kind": row["kind"] or "fixable",
        "reason": shortened(row["reason"] or "", _TEXT_BYTES), "approach": row["approach"],
        "at_us": row["started_us"] if row["ended_us"] is None else row["ended_us"],
    }  # fmt: skip


def _fact(row: Row) -> dict[str, Any]:
    told = {name: row[name] for name in ("key", "version", "source", "run_id", "set_by", "set_us", "valid_until_us")}
    return {**told, "value": _shown(row["value"])}


def _change(row: Row) -> dict[str, Any]:
    old, new = (None if row[name] is None else _shown(row[name]) for name in ("old_value", "value"))
    return {
        "key": row["key"], "old": old, "new": new, "source": row["source"], "set_us": row["set_us"],
        "version": row["version"], "old_version": row["old_version"],
    }  # fmt: skip


def _run(row: Row) -> dict[str, Any]:
    names = ("run_id", "workflow", "status", "waiting_for", "open_questions_count", "updated_us")
    goal = None if row["goal"] is None else shortened(row["goal"], _TEXT_BYTES)
    return {**{name: row[name] for name in names}, "goal": goal}


def _run_info(row: Row, client_id: str) -> RunInfo:
    waits = None if row["waiting_for"] is None else WaitingFor(row["waiting_for"])
    return RunInfo(**{**row, "client_id": client_id, "status": RunStatus(row["status"]), "waiting_for": waits})


def _size(text: str) -> int:
    return len(_dumped(text))


def _dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
