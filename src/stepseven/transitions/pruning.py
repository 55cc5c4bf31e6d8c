"""Shrinking ended runs to what the next one may want to know: summaries, decisions, receipts.

What stays of a run: its row, its checkpoint as it was (``run.document``), a bare record per step name with its summary, the
reasons of failed tries, its questions with their answers, its effects whole. What it cost stays right to the cent: the money
of a record that goes is added to the one that stays.

The order is what makes it safe to die anywhere: the document is written first, the rows go in pieces, and only the last
piece says ``pruned_us``. A run that is half-way is found again and finished; until then its row is untouched.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from stepseven.store.base import Row, Tx
from stepseven.store.codec import digest
from stepseven.transitions.state import steps_range

KEPT = 4096  #: characters of a run's value and inputs that are kept whole
MOST_TRIES = 20  #: failed tries of a step whose reasons are kept, the newest
AT_ONCE = 10  #: checkpoints that are read by one statement
PIECE = 25  #: rows that go between two looks at the clock
_INTERNAL = ("run.", "client.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A run that may be shrunk. ``ended_us`` and ``no`` are where the search goes on."""

    no: int
    id: str
    ended_us: int


@dataclass(slots=True, kw_only=True)
class Shrink:
    """What of a run is to go, as read in one snapshot. Rows are taken off the lists as they go."""

    run_no: int
    updated_us: int
    kept: dict[str, Row] = field(default_factory=dict)  # step name -> its newest record
    steps: list[Row] = field(default_factory=list)
    tries: list[Row] = field(default_factory=list)
    records: int = 0  # how many rows went, or would go
    size: int = 0  # characters in them
    artifacts: int = 0  # large results that its records name; other runs may name them, too
    artifact_size: int = 0
    gone: int = 0  # of those, how many nobody named any more
    gone_size: int = 0


def prunable(tx: Tx, before_us: int, after: Found | None, limit: int) -> list[Found]:
    """The next runs that ended before *before_us* and may be shrunk, oldest first."""
    params = {"before_us": before_us, "after_us": after.ended_us if after else -1, "after_no": after.no if after else 0}
    return [Found(**dict(row)) for row in tx.all(tx.sql.prunable, {**params, "limit": limit})]


def plan(tx: Tx, run: Found) -> Shrink:
    """What shrinking a run would remove. Changes nothing."""
    row = tx.one(tx.sql.run_by_no, {"no": run.no})
    made = Shrink(run_no=run.no, updated_us=row["updated_us"] if row is not None else -1)
    records = tx.all(tx.sql.prune_steps, steps_range(run.no))
    made.kept = {row["name"]: row for row in records if not row["name"].startswith(_INTERNAL)}
    # What a child has cost is counted apart from what its parent has: it stays where it is.
    made.kept |= {f"run.{row['id']}": row for row in records if row["name"].startswith(_INTERNAL) and _costs(row)}
    stays = {row["id"] for row in made.kept.values()}
    made.steps = [row for row in records if row["id"] not in stays]
    made.size = sum(row["size"] for row in records)
    large = {row["artifact"]: row["artifact_size"] or 0 for row in records if row["artifact"] is not None}
    made.artifacts, made.artifact_size = len(large), sum(large.values())
    told: dict[str, list[Row]] = defaultdict(list)
    for row in tx.all(tx.sql.attempts, {"run_no": run.no}):
        made.size += sum(len(row[c] or "") for c in ("trace", "inputs"))
        if row["name"] in made.kept:  # else there is no record to keep what it cost
            told[row["name"] if row["outcome"] in ("failed", "unknown") else ""].append(row)
    made.tries = told.pop("", [])
    for tries in told.values():
        made.tries += sorted(tries, key=lambda row: row["started_us"])[:-MOST_TRIES]
    made.records = len(made.steps) + len(made.tries)
    return made


def _costs(row: Row) -> bool:
    return bool(row["usd"] or row["tokens"])


def checkpoints(tx: Tx, found: Sequence[Found]) -> dict[str, str]:
    """The checkpoints of at most ten runs by id, without references to the results that are about to go."""
    ids = [run.id for run in found]
    names = dict(zip_longest("abcdefghij", ids))
    return {row["run_id"]: _without_references(row["document"]) for row in tx.all(tx.sql.checkpoints, names)}


def _without_references(document: str) -> str:
    told = json.loads(document)
    for entry in told.get("artifacts", {}).values():
        if isinstance(entry, dict) and entry.get("ref") is not None:
            entry["ref"] = None
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


def shrink(tx: Tx, s: Shrink, *, document: str, before_us: int, now_us: int, more: Callable[[], bool]) -> bool | None:
    """Remove what was planned, as far as *more* allows.

    Args:
        tx: the transaction. If it fails the plan is void.
        s: the plan.
        document: the run's checkpoint as it was before anything went.
        before_us: as the run was looked for.
        now_us: the time.
        more: whether there is time for another piece.

    Returns:
        ``True``: the run is shrunk. ``False``: there is more to do. ``None``: it may not be shrunk any more: it was
        meanwhile, or somebody is asked about it again; nothing was written.
    """
    run = tx.one(tx.sql.guard_prune, {"run_no": s.run_no, "before_us": before_us})
    if run is None or run["updated_us"] != s.updated_us:
        return None
    tx.run(tx.sql.keep_document, {"run_no": s.run_no, "document": document})
    while s.steps or s.tries:
        _drop_piece(tx, s)
        if not more() and (s.steps or s.tries):
            return False
    _finish(tx, s, run["inputs"], now_us)
    return True


def _drop_piece(tx: Tx, s: Shrink) -> None:
    spent: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # id of the record that stays -> micro-USD, tokens
    for _ in range(min(PIECE, len(s.steps))):
        row = s.steps.pop()
        _moved(spent, tx.one(tx.sql.drop_step, {"id": row["id"]}), s.kept.get(row["name"]))
        _drop_artifact(tx, s, row)
    for _ in range(min(PIECE, len(s.tries))):
        row = s.tries.pop()
        name = {c: row[c] for c in ("branch", "name", "key", "n")}
        _moved(spent, tx.one(tx.sql.drop_try, {"run_no": s.run_no, **name}), s.kept[row["name"]])
    for record, (usd, tokens) in spent.items():
        tx.run(tx.sql.add_spend, {"id": record, "usd": usd, "tokens": tokens})


def _moved(spent: dict[int, list[int]], gone: Row | None, into: Row | None) -> None:
    """Count what a row that is gone has cost. ``None``: somebody else removed it, and counted it."""
    if gone is not None and into is not None and _costs(gone):
        spent[into["id"]][0] += gone["usd"] or 0
        spent[into["id"]][1] += gone["tokens"] or 0


def _drop_artifact(tx: Tx, s: Shrink, row: Row) -> None:
    """The result goes with the last record that names it; one in a file goes when the files are looked through."""
    if row["artifact"] is not None and tx.run(tx.sql.drop_artifact, {"hash": row["artifact"], "files": 0}):
        s.gone += 1
        s.gone_size += row["artifact_size"] or 0


def _finish(tx: Tx, s: Shrink, inputs: str, now_us: int) -> None:
    for row in s.kept.values():
        tx.run(tx.sql.slim_step, {"id": row["id"], "summary": row["head"]})
        _drop_artifact(tx, s, row)
    for statement in (tx.sql.slim_attempts, tx.sql.slim_questions, tx.sql.drop_events, tx.sql.drop_waits):
        tx.run(statement, {"run_no": s.run_no})
    tx.run(tx.sql.finish_prune, {"run_no": s.run_no, "now": now_us, "inputs": kept_inputs(inputs), "most": KEPT})


def kept_inputs(text: str) -> str:
    """A run's inputs as they are kept: whole, or their beginning and a digest, by which equal ones are still recognised."""
    if len(text) <= KEPT:
        return text
    return json.dumps({"…": text[:200] + "…", "digest": digest(text)}, ensure_ascii=False)
