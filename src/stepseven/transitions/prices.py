"""What the steps of a workflow cost and took in earlier runs. Reads only, and never much, whatever the store holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from stepseven.decide.plan import Price
from stepseven.decide.prices import CHILD, Call, Earlier, child, with_own
from stepseven.decide.prices import prices as of_runs
from stepseven.model import INTERNAL
from stepseven.store.base import Row, Tx
from stepseven.transitions.state import steps_range

MOST_RUNS = 30  #: earlier runs that are looked at, the newest
WINDOW = 5_000  #: runs of any workflow among which they are looked for: no index leads from a workflow to its runs
MOST_RECORDS = 1_000  #: records of one run, the newest: what is still to come resembles its end
MOST_IN_ALL = 10_000  #: records of all of them together: 60 ms to read on SQLite
MOST_CHILDREN = 200
_Calls = dict[str, list[Call]]


def prices(
    tx: Tx, workflow: str, names: Collection[str] | None = None, *, client_id: str | None = None, own: Row | None = None
) -> dict[str, Price]:
    """What each step cost and took in the newest runs of a workflow that have ended.

    Looked at are the newest 30 that are found among the newest 5,000 runs of the store and among the client's own. A fork is
    none of them (it has copies of another run's records), nor is anything of a forgotten client.

    Args:
        tx: a snapshot.
        workflow: its name.
        names: only these steps; ``None``: all.
        client_id: for whom the run is whose price is asked.
        own: that run's row: what its own calls have cost tells of steps that no earlier run has.

    Returns:
        Step name -> price, without what the code declares. ``run.start`` and ``run.start/WORKFLOW`` are what runs cost that
        were started: the time they were executed, not the time they waited.
    """
    found: list[Earlier] = []
    left = MOST_IN_ALL
    for run in _newest(tx, workflow, client_id):
        if run["pruned_us"] is not None:
            found.append(_pruned(tx, run))
            continue
        earlier, read = _whole(tx, run, min(left, MOST_RECORDS))
        found.append(earlier)
        left -= read
        if left <= 0:
            break
    known = of_runs(found)
    if own is not None:
        known = with_own(known, _whole(tx, own, MOST_RECORDS)[0])
    return {name: price for name, price in known.items() if names is None or name in names}


def _newest(tx: Tx, workflow: str, client_id: str | None) -> list[Row]:
    params: dict[str, Any] = {"workflow": workflow, "limit": MOST_RUNS}
    rows = {row["no"]: row for row in tx.all(tx.sql.lately_ended, {**params, "span": WINDOW})}
    if client_id is not None and len(rows) < MOST_RUNS:
        own = tx.all(tx.sql.lately_ended_of_client, {**params, "client_id": client_id, "span": 4 * MOST_RUNS})
        rows |= {row["no"]: row for row in own}
    return [rows[no] for no in sorted(rows, reverse=True)[:MOST_RUNS]]


def _whole(tx: Tx, run: Row, most: int) -> tuple[Earlier, int]:
    """A run with its records, and how many of them were read."""
    rows = tx.all(tx.sql.priced_steps, {**steps_range(run["no"]), "limit": most})
    tries = tx.all(tx.sql.priced_tries, {"run_no": run["no"], "limit": most})
    lost = _tries(tries)
    made: dict[tuple[str, str, str], list[Any]] = {}  # a call -> how often it ran, micro-USD, microseconds, whose end, tokens
    for row in rows:
        name = row["name"]
        if (name.startswith(INTERNAL) and name != CHILD) or row["state"] not in ("done", "failed"):
            continue
        entry = made.setdefault((row["branch"], name, row["key"]), [0, 0, 0, row["summary"], 0])
        entry[0] += 1
        entry[1] += row["usd"] or 0
        entry[2] += row["us"] or 0
        entry[4] += row["tokens"] or 0
    children = _children(tx, run["no"]) if any(name == CHILD for _, name, _ in made) else {}
    calls: _Calls = {}
    for key, (n, uusd, us, summary, tokens) in made.items():
        more = lost.get(key, (0, 0, 0))
        if key[1] == CHILD:
            _add_child(calls, Call(uusd // n, None, tokens // n), children.get(summary))
        else:
            calls.setdefault(key[1], []).append(Call((uusd + more[0]) // n, (us + more[1]) // n, (tokens + more[2]) // n))
    counts = {name: len(each) for name, each in calls.items()}
    return Earlier(calls=calls, counts=counts, done=run["status"] == "done", cut=len(rows) >= most), len(rows) + len(tries)


def _tries(rows: list[Row]) -> dict[tuple[str, str, str], tuple[int, int, int]]:
    """What tries beside the record have cost and taken, call by call, and their tokens. What a write has cost stands in its try.

    The time of a try that was interrupted, or whose outcome was not known, is not work: nobody was there.
    """
    lost: dict[tuple[str, str, str], tuple[int, int, int]] = {}
    for row in rows:
        key = (row["branch"], row["name"], row["key"])
        uusd, us, tokens = lost.get(key, (0, 0, 0))
        took = (row["us"] or 0) if row["outcome"] == "failed" else 0
        lost[key] = (uusd + (row["usd"] or 0), us + took, tokens + (row["tokens"] or 0))
    return lost


def _children(tx: Tx, run_no: int) -> dict[str, tuple[str, int]]:
    """Id -> workflow and executing time, in microseconds."""
    rows = tx.all(tx.sql.child_times, {"run_no": run_no, "limit": MOST_CHILDREN})
    return {row["id"]: (row["workflow"], row["executing_us"]) for row in rows}


def _add_child(calls: _Calls, call: Call, known: tuple[str, int] | None) -> None:
    if known is None:
        calls.setdefault(CHILD, []).append(call)
        return
    timed = Call(call.uusd, known[1], call.tokens)
    calls.setdefault(CHILD, []).append(timed)
    calls.setdefault(child(known[0]), []).append(timed)


def _pruned(tx: Tx, run: Row) -> Earlier:
    """A run that was shrunk: a record for each step name has the cost of all its calls, but for failed tries that are kept."""
    lost: Counter[str] = Counter()
    for t in tx.all(tx.sql.priced_tries, {"run_no": run["no"], "limit": MOST_RECORDS}):
        lost[t["name"]] += t["usd"] or 0
    told: Mapping[str, Any] = json.loads(run["document"] or "{}").get("artifacts") or {}
    calls: _Calls = {}
    counts: dict[str, int] = {}
    for row in tx.all(tx.sql.priced_steps, {**steps_range(run["no"]), "limit": MOST_RECORDS}):
        entry = told.get(row["name"])
        if row["name"].startswith(INTERNAL) or row["state"] != "done" or not isinstance(entry, dict):
            continue
        n = entry.get("done", 1)
        if isinstance(n, int) and n > 0:
            calls[row["name"]] = [Call(((row["usd"] or 0) + lost[row["name"]]) // n, row["us"])]
            counts[row["name"]] = n
    return Earlier(calls=calls, counts=counts, done=run["status"] == "done", cut="…" in told)
