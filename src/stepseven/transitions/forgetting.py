"""Forgetting a client: everything that was ever said, found out or done for it goes; that something was done stays.

One transaction, so nobody ever sees half of it. What stays of a run: its id, workflow, status, times and money, and a bare
record per step name. What stays of an effect: its name, state and times, and its business key as a digest.
Run ids stay as they are: whoever chooses them decides what they say.
"""

from __future__ import annotations

from dataclasses import replace

from stepseven.errors import ClientBusy, UnknownClient
from stepseven.model import INTERNAL, Forgotten
from stepseven.store.base import Row, Tx
from stepseven.store.codec import digest
from stepseven.transitions.dropping import drop_artifact
from stepseven.transitions.pruning import record_kin
from stepseven.transitions.state import steps_range

_ALL = 1 << 62  # of a run's rows: it is one transaction
FORGOTTEN_KEY = "forgotten:"  #: begins what stays of a business key: its digest, and the claim (the same key may be used again)


def check(tx: Tx, client_id: str) -> None:
    """Make sure that nothing of the client's is under way.

    Raises:
        UnknownClient: nothing was ever run for it or said about it.
        ClientBusy: a run has not ended, or it is not known whether something was done.
    """
    if tx.one(tx.sql.client, {"id": client_id}) is None:
        raise UnknownClient(client_id)
    runs = [str(row["id"]) for row in tx.all(tx.sql.open_runs, {"client_id": client_id})]
    doubtful = tx.all(tx.sql.unsettled_of_client, {"client_id": client_id})
    unsettled = list(dict.fromkeys(str(row["run_id"]) for row in doubtful))
    if runs or unsettled:
        raise ClientBusy(client_id, runs, [run for run in unsettled if run not in runs])


def forget(tx: Tx, client_id: str, *, note: str, now_us: int) -> Forgotten:
    """Delete what is known of a client. Done again it deletes what came since.

    Returns:
        What was deleted; large results in files are still to be removed.

    Raises:
        UnknownClient, ClientBusy: nothing was changed.
    """
    check(tx, client_id)
    whose = {"client_id": client_id}
    done = Forgotten(client_id=client_id, facts=tx.run(tx.sql.forget_facts, whose))
    tx.run(tx.sql.forget_memory, whose)
    tx.run(tx.sql.forget_deliveries, whose)
    tx.run(tx.sql.forget_incidents, whose)
    tx.run(tx.sql.forget_resources, whose)
    tx.run(tx.sql.forget_occurrences, whose)
    tx.run(tx.sql.forget_replies, whose)
    done = replace(done, questions=tx.run(tx.sql.forget_questions, whose))
    for run in tx.all(tx.sql.runs_of_client, whose):
        done = _forget_run(tx, run, done, now_us)
    tx.run(tx.sql.bare_client, {**whose, "note": note, "now": now_us})
    return done


def _forget_run(tx: Tx, run: Row, done: Forgotten, now_us: int) -> Forgotten:
    no = {"run_no": run["no"]}
    for statement in (tx.sql.drop_events, tx.sql.drop_waits, tx.sql.forget_recoveries):
        tx.run(statement, no)
    record_kin(tx, int(run["no"]))
    records, attempts, artifacts = _forget_records(tx, int(run["no"]))
    for row in tx.all(tx.sql.effect_keys, no):
        tx.run(tx.sql.bare_effect, {"claim_id": row["claim_id"], "key": f"{FORGOTTEN_KEY}{digest(row['key'])}/{row['claim_id']}"})
    tx.run(tx.sql.bare_run, {**no, "now": now_us})
    return replace(
        done, runs=done.runs + 1, effects=done.effects + len(tx.all(tx.sql.effects, no)), records=done.records + records,
        attempts=done.attempts + attempts, artifacts=done.artifacts + artifacts,
    )  # fmt: skip


def _forget_records(tx: Tx, run_no: int) -> tuple[int, int, int]:
    """Leave one bare record per step name, with what all of that name have cost; how many records, tries, results went."""
    rows = tx.all(tx.sql.prune_steps, {**steps_range(run_no), "limit": _ALL})
    tries = tx.all(tx.sql.attempts, {"run_no": run_no})
    stays = {row["name"]: row["id"] for row in rows if not row["name"].startswith(INTERNAL)}
    spare = next(iter(stays.values()), rows[0]["id"] if rows else None)
    internal = {row["id"] for row in rows if row["name"].startswith(INTERNAL)}  # a child's cost stays apart from its parent's
    spent: dict[int | None, list[int]] = {}
    for row, itself in (*((row, row["id"]) for row in rows), *((row, None) for row in tries)):
        into = itself if itself in internal else stays.get(row["name"], spare)
        if row["usd"] or row["tokens"]:
            sums = spent.setdefault(into, [0, 0])
            sums[0] += row["usd"] or 0
            sums[1] += row["tokens"] or 0
    kept = {*stays.values(), *(record for record in spent if record is not None)}
    for row in rows:
        tx.run(tx.sql.bare_step if row["id"] in kept else tx.sql.drop_step, {"id": row["id"]})
    tx.run(tx.sql.forget_attempts, {"run_no": run_no})
    for record, (usd, tokens) in spent.items():
        if record is not None:
            tx.run(tx.sql.set_spend, {"id": record, "usd": usd, "tokens": tokens})
        else:  # nothing but tries that failed: one of them stays, without what it says
            first = {c: tries[0][c] for c in ("name", "started_us")}
            tx.run(tx.sql.bare_attempt, {**first, "run_no": run_no, "usd": usd, "tokens": tokens})
    large = {row["artifact"] for row in rows if row["artifact"] is not None}
    gone = sum(drop_artifact(tx, name, files=False) for name in sorted(large))  # in one order: two never wait for each other
    return len(rows) - len(kept), len(tries), gone
