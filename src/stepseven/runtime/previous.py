"""``run.previous``: the last finished run of this client and workflow, pinned at first use with what happened since."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from stepseven.decide.previous import Found, changes, document, previous_of
from stepseven.errors import ArtifactGone, NotRecordable
from stepseven.model import Previous
from stepseven.runtime.pins import pin, pinned
from stepseven.runtime.place import place
from stepseven.store.artifacts import content_hash
from stepseven.store.base import Row, Tx
from stepseven.store.codec import from_canonical
from stepseven.transitions.state import steps_range

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution

NAME = "run.previous"
_DOCUMENT, _VALUE = "previous", "value"  # keys of its records; those of whole artifacts begin with "artifact/"
_READ_ABOUT = {"client.get": "", "client.found": ""}  # records whose result names a fact's version


def previous(ex: Execution) -> Previous | None:
    """The previous run as this run first saw it; ``None`` if there is none.

    Raises:
        ArtifactGone: the pin was kept in a file that is no longer there.
    """
    text = pinned(ex, "", NAME, _DOCUMENT)
    if text is None:
        text = _pin(ex)
    told = json.loads(text)
    if told is None:
        return None
    return _Loadable.of(previous_of(told, ex.hold.client_id, _value(ex, told), _restored), told["hashes"], ex)


class _Loadable(Previous):
    """A ``Previous`` that can fetch what was cut in it. No field of its own: it is recordable like any dataclass."""

    _load: Callable[[str], Any]

    @classmethod
    def of(cls, plain: Previous, hashes: dict[str, str], ex: Execution) -> _Loadable:
        made = cls(**{f.name: getattr(plain, f.name) for f in fields(plain)})
        object.__setattr__(made, "_load", lambda name: _whole(ex, plain.run_id, name, hashes[name]))
        return made

    def artifact(self, name: str) -> Any:
        shown = super().artifact(name)
        return self._load(name) if f"artifacts.{name}" in self.cut else shown


# -- pinning -------------------------------------------------------------------------------------------------------------


def _pin(ex: Execution) -> str:
    """Look, and write down what was seen: the document, and the value where that is too long for it."""
    found = ex.store.read_now(lambda tx: _find(ex, tx))
    if found is None:
        pin(ex, "", NAME, {_DOCUMENT: "null"})
        return "null"
    told = document(found)
    cut = {name.partition(".")[2] for name in told["cut"] if name.startswith("artifacts.")}
    begun = [row for row in found.results if row["name"] in cut and row["text"] is not None]  # else it is gone
    told["hashes"] = {row["name"]: row["artifact"] or content_hash(row["text"]) for row in begun}
    text = json.dumps(told, ensure_ascii=False)
    value = found.run["value"]
    pin(ex, "", NAME, {_DOCUMENT: text} if value is None or "value" in told else {_DOCUMENT: text, _VALUE: value})
    return text


def _find(ex: Execution, tx: Tx) -> Found | None:
    hold, me = ex.hold, ex.run
    before = min(me["no"], me["root_no"] or me["no"])  # a fork starts from what its root started from
    run = tx.one(tx.sql.previous_run, {"client_id": hold.client_id, "workflow": me["workflow"], "before": before})
    if run is None:
        return None
    others = {"client_id": hold.client_id, "run_no": me["no"], "run_id": hold.run_id, "previous_no": run["no"]}
    family = [run, *tx.all(tx.sql.descendants, {"run_no": run["no"]})]  # its child runs are a part of it
    begun, met = {**others, "since_us": run["created_us"]}, _facts(tx, family, hold.client_id)
    own = {row["id"] for row in family}
    asked = [
        {**dict(row), "run_id": run["id"]}
        for row in tx.all(tx.sql.questions_of_run, {"run_no": run["no"]})
        if row["status"] == "answered" and row["folded_into"] is None
    ]
    tried = [row for row in tx.all(tx.sql.attempts, {"run_no": run["no"]}) if row["outcome"] in ("failed", "unknown")]
    return Found(
        run=run, results=_results(ex, tx, run), facts=met,
        decisions=sorted(asked, key=lambda row: -row["answered_us"]),
        failures=sorted(tried, key=lambda row: -(row["ended_us"] or row["started_us"])),
        facts_since=changes(tx.all(tx.sql.facts_since, begun), met, run["created_us"]),
        decisions_since=[row for row in tx.all(tx.sql.decisions_since, begun) if row["run_id"] not in own],
        runs_since=tx.all(tx.sql.runs_since, {**others, "since_us": run["ended_us"]}),
    )  # fmt: skip


def _results(ex: Execution, tx: Tx, run: Row) -> list[dict[str, Any]]:
    """The last record of each step name with its result's text; ``None`` where that was pruned."""
    rows = tx.all(tx.sql.latest_results, steps_range(run["no"]))
    return [{**dict(row), "text": _text(ex, tx, row, pruned=run["pruned_us"] is not None)} for row in rows]


def _text(ex: Execution, tx: Tx, row: Row, *, pruned: bool) -> str | None:
    if row["artifact"] is None:
        return row["result"] if row["result"] is not None or pruned else "null"
    kept = tx.one(tx.sql.artifact, {"hash": row["artifact"]})
    if kept is None:
        return None
    text: str | None = kept["body"] if kept["body"] is not None else ex.services.artifacts.get(kept["location"])
    return text if text is not None and content_hash(text) == row["artifact"] else None


def _facts(tx: Tx, family: Sequence[Row], client_id: str) -> list[Row]:
    """The facts a run with its child runs read or found out, each in the newest version they met."""
    met: dict[str, int] = {}

    def meet(key: str, version: int) -> None:
        met[key] = max(version, met.get(key, 0))

    for run in family:
        for row in tx.all(tx.sql.fact_uses, steps_range(run["no"])):
            told = json.loads(row["result"] or "null") if row["name"] in _READ_ABOUT else None
            if told is not None:
                meet(row["key"], told["version"])
            for key, version in json.loads(row["facts"] or "{}").items():
                meet(key, version)
        for row in tx.all(tx.sql.facts_by_run, {"client_id": client_id, "run_id": run["id"]}):
            meet(row["key"], row["version"])
    found = (tx.one(tx.sql.fact_version, {"client_id": client_id, "key": k, "version": v}) for k, v in met.items())
    return sorted((row for row in found if row is not None), key=lambda row: -row["set_us"])


# -- reading the pin -----------------------------------------------------------------------------------------------------


def _restored(value: Any) -> Any:
    """A value of the document with what JSON has not (bytes) as it was."""
    return from_canonical(json.dumps(value, ensure_ascii=False))


def _value(ex: Execution, told: dict[str, Any]) -> Any:
    text = told.get("value") or pinned(ex, "", NAME, _VALUE)
    if text is None:
        return None
    try:
        return ex.workflow.typed.decode(text)
    except NotRecordable:  # the workflow's return type is another one today
        return from_canonical(text)


def _whole(ex: Execution, run_id: str, name: str, expected: str) -> Any:
    """An artifact that the document has only the beginning of: from this run's own pin, else from that run's record."""
    key = f"artifact/{name}"
    text = pinned(ex, "", NAME, key)
    if text is None:
        text = ex.store.read_now(lambda tx: _of_run(ex, tx, run_id, name))
        if text is None or content_hash(text) != expected:
            raise ArtifactGone(name, run_id)
        here = place.get()
        if here is not None and here.execution is ex and here.attempt is None and ex.unloading is None:
            pin(ex, "", NAME, {key: text})
    return from_canonical(text)


def _of_run(ex: Execution, tx: Tx, run_id: str, name: str) -> str | None:
    run = tx.one(tx.sql.run_by_id, {"id": run_id})
    if run is None:
        return None
    rows = tx.all(tx.sql.latest_results, steps_range(run["no"]))
    return next((_text(ex, tx, row, pruned=False) for row in rows if row["name"] == name), None)
