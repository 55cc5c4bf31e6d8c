"""Circuits in the store: a resource's failures, the one trial, and the runs that wait until it answers again."""

from __future__ import annotations

import json
from collections.abc import Collection

from stepseven.decide import circuit
from stepseven.decide.circuit import Circuit, Pass, State
from stepseven.store.base import Row, Tx
from stepseven.transitions import incidents
from stepseven.transitions.runs import guard
from stepseven.transitions.state import Hold

AT_ONCE = 200  # runs that one transaction wakes, and questions it takes back; the heartbeats see to the others
EACH_US = 50_000  # between two that are woken: five seconds in all


def of(row: Row) -> Circuit:
    """A circuit from its row."""
    return Circuit(
        name=row["name"], state=State(row["state"]), failures=tuple((at, no) for at, no in json.loads(row["failures"])),
        opened_us=row["opened_us"], next_us=row["next_us"], looks=row["looks"], trial_run_no=row["trial_run_no"],
        trial_us=row["trial_us"],
    )  # fmt: skip


def standing(tx: Tx, name: str) -> Circuit:
    """How a resource stands. Reads only."""
    row = tx.one(tx.sql.resource, {"name": name})
    return Circuit(name=name) if row is None else of(row)


def down(tx: Tx) -> dict[str, Circuit]:
    """The resources that are believed to be down."""
    return {row["name"]: of(row) for row in tx.all(tx.sql.resources_open, {})}


def enter(tx: Tx, hold: Hold, name: str, now_us: int, *, held: bool) -> tuple[Pass, Circuit]:
    """Become the trial, if one is due: compare and set. *held*: a call of this run that is at work is it.

    Raises:
        Superseded: the run is no longer ours.
    """
    guard(tx, hold)
    stands = _held(tx, name)
    passes = circuit.passes(stands, hold.run_no, now_us, held=held)
    if passes is not Pass.TRY:
        return passes, stands
    return passes, _put(tx, circuit.tried(stands, hold.run_no, now_us))


def failed(tx: Tx, hold: Hold, name: str, now_us: int, *, trial: bool, chance: float) -> tuple[bool, Circuit]:
    """A retryable failure, in the transaction that writes it down and holds the run.

    Returns:
        Whether the circuit was open before, so that this is no attempt; and how it stands now.
    """
    seen = standing(tx, name)
    if seen.open and not trial:
        return True, seen
    tx.run(tx.sql.add_resource, {"name": name})
    before = _held(tx, name)
    mine = trial and _is_trial(before, hold)
    after = circuit.failed(before, hold.run_no, now_us, trial=mine, chance=chance)
    return before.open, after if after == before else _put(tx, after)


def answers(tx: Tx, name: str, now_us: int) -> Circuit:
    """The trial found that it answers: the circuit closes, and who waits goes on. In the transaction that writes that down."""
    before = _held(tx, name)
    if not before.open:
        return before
    after = _put(tx, circuit.closed(before, now_us))
    _wake(tx, name, now_us)
    return after


def give_back(tx: Tx, hold: Hold, name: str, now_us: int) -> Circuit:
    """The trial did not come to try anything."""
    before = _held(tx, name)
    return _put(tx, circuit.given_back(before, now_us)) if _is_trial(before, hold) else before


def look(tx: Tx, workflows: Collection[str], now_us: int) -> None:
    """What a worker does for those that wait: wake one for each trial that is due, and all for what answers again."""
    for seen in down(tx).values():
        if _due(seen, now_us):
            _call(tx, seen.name, workflows, now_us)
    for row in tx.all(tx.sql.resources_back, {}):
        _wake(tx, row["name"], now_us)
    incidents.settle(tx, now_us, AT_ONCE)


def busy(tx: Tx, now_us: int) -> bool:
    """Whether ``look`` would find anything. Reads only."""
    due = any(_due(seen, now_us) for seen in down(tx).values())
    return due or bool(tx.all(tx.sql.resources_back, {})) or incidents.unsettled(tx)


def of_run(tx: Tx, run_no: int) -> list[tuple[Circuit, int]]:
    """The resources that a parked run waits for, and how many runs wait for each."""
    rows = tx.all(tx.sql.resources_of_run, {"run_no": run_no})
    return [(standing(tx, row["name"]), waiting(tx, row["name"])) for row in rows]


def waiting(tx: Tx, name: str) -> int:
    """How many runs wait for a resource."""
    row = tx.one(tx.sql.waiters, {"name": name})
    return 0 if row is None else int(row["n"])


def _due(c: Circuit, now_us: int) -> bool:
    """Whether a run has to be woken to be the trial; one that was woken has a moment to become it."""
    called = c.state is State.OPEN and c.trial_us is not None and now_us < c.trial_us + circuit.CALL_US
    return now_us >= circuit.look_us(c) and not called


def _call(tx: Tx, name: str, workflows: Collection[str], now_us: int) -> None:
    seen = _held(tx, name)
    if not seen.open or not _due(seen, now_us):
        return
    row = tx.one(tx.sql.next_waiter, {"name": name, "workflows": json.dumps(sorted(workflows))})
    if row is None:
        return
    if seen.state is State.TRIAL:  # it has said nothing for so long that it is given up
        seen = circuit.given_back(seen, now_us)
    _put(tx, seen, trial_us=now_us)
    tx.run(tx.sql.wake_run, {"run_no": row["no"], "now": now_us, "reason": f"looks whether {name} answers again"})
    tx.run(tx.sql.drop_waiters, {"name": name, "runs": json.dumps([str(row["no"])])})


def _wake(tx: Tx, name: str, now_us: int) -> None:
    params = {"name": name, "now": now_us, "each_us": EACH_US, "most": AT_ONCE, "reason": f"{name} answers again"}
    woken = tx.all(tx.sql.wake_waiters, params)
    tx.run(tx.sql.drop_waiters, {"name": name, "runs": json.dumps([str(row["no"]) for row in woken])})
    incidents.settle(tx, now_us, AT_ONCE)


def _is_trial(c: Circuit, hold: Hold) -> bool:
    return c.state is State.TRIAL and c.trial_run_no == hold.run_no


def _held(tx: Tx, name: str) -> Circuit:
    row = tx.one(tx.sql.resource_held, {"name": name})
    return Circuit(name=name) if row is None else of(row)


def _put(tx: Tx, c: Circuit, *, trial_us: int | None = None) -> Circuit:
    tx.run(
        tx.sql.put_resource,
        {
            "name": c.name, "state": c.state.value, "failures": json.dumps(c.failures), "trial_run_no": c.trial_run_no,
            "opened_us": c.opened_us, "next_us": c.next_us, "looks": c.looks,
            "trial_us": c.trial_us if trial_us is None else trial_us,
        },
    )  # fmt: skip
    return c
