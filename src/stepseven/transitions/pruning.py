"""Shrinking ended runs to what the next one may want to know: summaries, decisions, receipts.

What stays of a run: its row, its checkpoint as it was (``run.document``), a bare record per step name with its summary, the
reasons of failed tries, its questions with their answers, its effects whole. What it cost stays right to the cent: the money
of a record that goes is added to the one that stays.

The order is what makes it safe to die anywhere: the document is written first, the rows go in pieces, and only the last
piece says ``pruned_us``. A run that is half-way is found again and finished; until then its row is untouched.
"""

from __future__ import annotations

import json
from bisect import insort
from collections import defaultdict
from collections.abc import Callable
from dataclasses import field, replace

from stepseven._dataclass import dataclass
from stepseven.decide.retention import DAY_US
from stepseven.model import INTERNAL
from stepseven.store.base import Row, Tx
from stepseven.store.codec import digest
from stepseven.transitions import family
from stepseven.transitions.dropping import drop_artifact
from stepseven.transitions.state import steps_range

KEPT = 4096  #: characters of a run's value and inputs that are kept whole
MOST_TRIES = 20  #: failed tries of a step whose reasons are kept, the newest
PAGE = 200  #: rows that are read at once
PIECE = 25  #: rows that go between two looks at the clock
_TRY = ("branch", "name", "key", "n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A run that ended long ago. ``ended_us`` and ``no`` are where the search goes on; ``may``: it may be shrunk."""

    no: int
    id: str
    ended_us: int
    may: int


@dataclass(slots=True, kw_only=True)
class Shrink:
    """What of a run is to go, as read page by page. Rows are taken off the lists as they go."""

    run_no: int
    client_id: str | None  # ``None``: it is gone
    updated_us: int
    kept: dict[str, Row] = field(default_factory=dict)  # step name -> its newest record
    steps: list[Row] = field(default_factory=list)
    tries: list[Row] = field(default_factory=list)
    slim: list[Row] = field(default_factory=list)  # kept records whose results are still to go
    records: int = 0  # how many rows went, or would go
    size: int = 0  # characters in them
    large: dict[str, int] = field(default_factory=dict)  # large results that its records name; other runs may name them, too
    gone: int = 0  # of those, how many nobody named any more
    gone_size: int = 0
    seen: int = -1  # id of the last record that was read
    tried: tuple[str, str, str, int] | None = None  # the last try that was read; ``None``: the records come first
    failed: dict[str, list[Row]] = field(default_factory=dict)  # step name -> its newest failed tries, oldest first


def prunable(tx: Tx, before_us: int, now_us: int, after: Found | None, limit: int) -> list[Found]:
    """The next runs that ended by *before_us*, oldest first, with whether each may be shrunk; empty: there are no more."""
    params = {**_ages(before_us, now_us), "after_us": after.ended_us if after else -1, "after_no": after.no if after else 0}
    return [Found(**dict(row)) for row in tx.all(tx.sql.prunable, {**params, "limit": limit})]


def _ages(before_us: int, now_us: int) -> dict[str, int]:
    return {"before_us": before_us, "today_us": now_us // DAY_US * DAY_US}


def begin(tx: Tx, run: Found) -> Shrink:
    """Look at a run to find what would go. Changes nothing; ``look_on`` goes on until it says that it has seen all."""
    row = tx.one(tx.sql.run_by_no, {"no": run.no})
    if row is None:
        return Shrink(run_no=run.no, client_id=None, updated_us=-1)
    return Shrink(run_no=run.no, client_id=row["client_id"], updated_us=row["updated_us"])


def look_on(tx: Tx, s: Shrink) -> bool:
    """Read another page of a run's rows. ``False``: everything is seen."""
    if s.tried is None:
        span = steps_range(s.run_no)
        page = tx.all(tx.sql.prune_steps, {"low": max(span["low"], s.seen + 1), "high": span["high"], "limit": PAGE})
        for row in page:
            _see_step(s, row)
        if len(page) == PAGE:
            return True
        s.tried = ("", "", "", -(1 << 62))
    page = tx.all(tx.sql.prune_tries, {"run_no": s.run_no, **dict(zip(_TRY, s.tried, strict=True)), "limit": PAGE})
    for row in page:
        _see_try(s, row)
    if len(page) == PAGE:
        return True
    s.slim = [row for row in s.kept.values() if not row["bare"]]
    s.records = len(s.steps) + len(s.tries)
    return False


def _see_step(s: Shrink, row: Row) -> None:
    s.seen = row["id"]
    s.size += row["size"]
    if row["artifact"] is not None:
        s.large[row["artifact"]] = row["artifact_size"] or 0
    if not row["name"].startswith(INTERNAL):
        older = s.kept.get(row["name"])
        s.kept[row["name"]] = row
        if older is not None:
            s.steps.append(older)
    elif _costs(row):  # what a child has cost is counted apart from what its parent has: it stays where it is
        s.kept[f"run.{row['id']}"] = row
    else:
        s.steps.append(row)


def _see_try(s: Shrink, row: Row) -> None:
    s.tried = (row["branch"], row["name"], row["key"], row["n"])
    s.size += row["size"]
    if row["name"] not in s.kept:  # there is no record to keep what it cost
        return
    if row["outcome"] not in ("failed", "unknown"):
        s.tries.append(row)
        return
    newest = s.failed.setdefault(row["name"], [])
    insort(newest, row, key=lambda r: r["started_us"])
    if len(newest) > MOST_TRIES:
        s.tries.append(newest.pop(0))


def _costs(row: Row) -> bool:
    return bool(row["usd"] or row["tokens"])


def checkpoint(tx: Tx, run: Found) -> str:
    """A run's checkpoint, without references to the results that are about to go, and with all that its children have cost."""
    told = family.checkpoint(tx, run.id)
    for entry in told.get("artifacts", {}).values():
        if isinstance(entry, dict) and entry.get("ref") is not None:
            entry["ref"] = None
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


def record_kin(tx: Tx, run_no: int) -> None:
    """Write down what the children have cost whose end the run never recorded: nobody looks for it in a run that is shrunk."""
    for child, (uusd, tokens) in family.kin(tx, run_no).items():
        if uusd or tokens:
            tx.run(tx.sql.insert_kin, {**steps_range(run_no), "child_no": child, "usd": uusd, "tokens": tokens})


def copied(s: Shrink) -> Shrink:
    """The same plan, to be worked off while the first one stays as it is."""
    return replace(s, steps=list(s.steps), tries=list(s.tries), slim=list(s.slim))


def go_on(s: Shrink, after: Shrink) -> None:
    """Take over what a committed bite has left of the plan."""
    s.steps, s.tries, s.slim, s.gone, s.gone_size = after.steps, after.tries, after.slim, after.gone, after.gone_size


def shrink(tx: Tx, s: Shrink, *, document: str, before_us: int, now_us: int, more: Callable[[], bool]) -> bool | None:
    """Remove what was planned, as far as *more* allows.

    Args:
        tx: the transaction.
        s: the plan, which is worked off: a copy, as the transaction may be executed again.
        document: the run's checkpoint as it was before anything went.
        before_us: as the run was looked for.
        now_us: the time.
        more: whether there is time for another piece.

    Returns:
        ``True``: the run is shrunk. ``False``: there is more to do. ``None``: it may not be shrunk any more: it was
        meanwhile, or somebody is asked about it again; nothing was written.
    """
    run = tx.one(tx.sql.guard_prune, {"run_no": s.run_no, **_ages(before_us, now_us)})
    if run is None or run["updated_us"] != s.updated_us:
        return None
    tx.run(tx.sql.keep_document, {"run_no": s.run_no, "document": document})
    while s.steps or s.tries or s.slim:
        _drop_piece(tx, s)
        if not more() and (s.steps or s.tries or s.slim):
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
        name = {c: row[c] for c in _TRY}
        _moved(spent, tx.one(tx.sql.drop_try, {"run_no": s.run_no, **name}), s.kept[row["name"]])
    for record, (usd, tokens) in spent.items():
        tx.run(tx.sql.add_spend, {"id": record, "usd": usd, "tokens": tokens})
    for _ in range(min(PIECE, len(s.slim))):
        row = s.slim.pop()
        tx.run(tx.sql.slim_step, {"id": row["id"]})
        _drop_artifact(tx, s, row)


def _moved(spent: dict[int, list[int]], gone: Row | None, into: Row | None) -> None:
    """Count what a row that is gone has cost. ``None``: somebody else removed it, and counted it."""
    if gone is not None and into is not None and _costs(gone):
        spent[into["id"]][0] += gone["usd"] or 0
        spent[into["id"]][1] += gone["tokens"] or 0


def _drop_artifact(tx: Tx, s: Shrink, row: Row) -> None:
    """The result goes with the last record that names it; one in a file goes when the files are looked through."""
    if row["artifact"] is not None and drop_artifact(tx, row["artifact"], files=False):
        s.gone += 1
        s.gone_size += row["artifact_size"] or 0


def _finish(tx: Tx, s: Shrink, inputs: str, now_us: int) -> None:
    record_kin(tx, s.run_no)
    slim = (tx.sql.slim_attempts, tx.sql.slim_questions, tx.sql.slim_recoveries)
    for statement in (*slim, tx.sql.drop_events, tx.sql.drop_waits):
        tx.run(statement, {"run_no": s.run_no})
    tx.run(tx.sql.finish_prune, {"run_no": s.run_no, "now": now_us, "inputs": kept_inputs(inputs), "most": KEPT})


def kept_inputs(text: str) -> str:
    """A run's inputs as they are kept: whole, or their beginning and a digest, by which equal ones are still recognised."""
    if len(text) <= KEPT:
        return text
    return json.dumps({"…": text[:200] + "…", "digest": digest(text)}, ensure_ascii=False)
