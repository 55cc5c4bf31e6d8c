"""All that is known of a client as one JSON document, to be handed over."""

from __future__ import annotations

import json
from typing import Any

from stepseven.errors import UnknownClient
from stepseven.store.base import Row, Tx
from stepseven.transitions.state import steps_range

FORMAT = "stepseven client 1"  #: what a program that reads the document looks for


def export(tx: Tx, client_id: str) -> dict[str, Any]:
    """The document. Times are microseconds since 1970 UTC, money is micro-USD, stored values are plain JSON.

    A result over 64 KiB is there by reference: ``{"hash", "bytes", "file"}``, the file within the artifact folder.

    Raises:
        UnknownClient: nothing was ever run for it or said about it.
    """
    client = tx.one(tx.sql.client, {"id": client_id})
    if client is None:
        raise UnknownClient(client_id)
    return {
        "format": FORMAT,
        "client": dict(client),
        "facts": _facts(tx, client_id),
        "runs": [_run(tx, row) for row in tx.all(tx.sql.runs_of_client, {"client_id": client_id})],
        "incidents": [dict(row) for row in tx.all(tx.sql.incidents_of_client, {"client_id": client_id})],
        "memory": [_decoded(row, "value") for row in tx.all(tx.sql.memory_of_client, {"client_id": client_id})],
    }


def _facts(tx: Tx, client_id: str) -> dict[str, list[dict[str, Any]]]:
    """Every version of every fact, newest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in tx.all(tx.sql.facts_of_client, {"client_id": client_id}):
        found.setdefault(row["key"], []).insert(0, _decoded(row, "value"))
    return found


def _run(tx: Tx, row: Row) -> dict[str, Any]:
    no = row["no"]
    run = {"run_no": no}
    inside = ("no", "root_no", "parent_no", "owner", "fence", "progress", "barren", "shrunk", "external")
    told = _decoded(row, "inputs", "value", "failure", "limits", "remaining")
    return {
        **{name: value for name, value in told.items() if name not in inside},
        "root_run": _id_of(tx, row["root_no"]), "parent_run": _id_of(tx, row["parent_no"]),
        "document": _json(_document(tx, no)),
        "steps": [_step(tx, step) for step in tx.all(tx.sql.steps, steps_range(no))],
        "attempts": [_decoded(a, "trace") for a in tx.all(tx.sql.attempts, run)],
        "effects": [_decoded(e, "inputs_approved", "arguments", "receipt") for e in tx.all(tx.sql.effects, run)],
        "questions": [
            _decoded(q, "options", "schema", "context", "remember", "fallback", "answer")
            for q in tx.all(tx.sql.questions_of_run, run)
        ],
        "recoveries": [_decoded(r, "plan", "chosen", "result") for r in tx.all(tx.sql.recoveries_of_run, run)],
        "deliveries": [dict(d) for d in tx.all(tx.sql.deliveries_of_run, run)],
        "events": [_decoded(e, "body") for e in tx.all(tx.sql.events_of_run, run)],
    }  # fmt: skip


def _document(tx: Tx, no: int) -> str | None:
    """The checkpoint of a run that was pruned: what it was made from is gone."""
    row = tx.one(tx.sql.kept_document, {"run_no": no})
    return None if row is None else row["document"]


def _id_of(tx: Tx, no: int | None) -> str | None:
    run = tx.one(tx.sql.run_by_no, {"no": no}) if no is not None else None
    return str(run["id"]) if run is not None else None


def _step(tx: Tx, row: Row) -> dict[str, Any]:
    told = _decoded(row, "result", "args", "facts")
    if row["artifact"] is not None:
        kept = tx.one(tx.sql.artifact, {"hash": row["artifact"]})
        if kept is not None and kept["body"] is not None:
            told["result"] = json.loads(kept["body"])
        else:
            size, file = (kept["size"], kept["location"]) if kept is not None else (None, None)
            told["artifact"] = {"hash": row["artifact"], "bytes": size, "file": file}
    return told


def _decoded(row: Row, *columns: str) -> dict[str, Any]:
    """A row as JSON: *columns* hold JSON texts."""
    told = dict(row)
    for name in columns:
        told[name] = _json(told[name])
    return told


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:  # what is handed over must never depend on how it was written
        return text
