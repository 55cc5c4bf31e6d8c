"""A run's life: admitted, taken, parked, ended. Each function is one transaction's worth of work."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Container

from stepseven._dataclass import dataclass
from stepseven.errors import RunConflict, Superseded, UnknownRun
from stepseven.model import FailureKind, RunStatus
from stepseven.store.base import Row, Tx
from stepseven.store.codec import storable
from stepseven.transitions import clients, codes, family, ladders
from stepseven.transitions.offering import offer, tell_kin
from stepseven.transitions.pruning import kept_inputs
from stepseven.transitions.state import Hold, steps_range

LEASE_US = 10_000_000  # DESIGN §12: a worker that was silent this long may be taken over
SHOWN = 120  # characters of an input that an error message shows
_SETTLING = ("cancelling", "failing")  # what a run does to end is done for a paused client, too
_STOPPING = (RunStatus.CANCELLING, RunStatus.FAILING)
POISON_AFTER = 3  # DESIGN §6: executions in a row that broke off without a new record
ALONE_AT = POISON_AFTER - 1  # before that the run is tried alone: what dies beside it may be its victim


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A run to be admitted. ``inputs`` is JSON as stored."""

    run_id: str
    client_id: str
    workflow: str
    source_digest: str | None
    goal: str | None
    inputs: str
    root_no: int | None = None
    parent_no: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The outcome of trying to take a run: a hold, or the reason why not."""

    run: Row
    hold: Hold | None = None
    poisoned: bool = False
    paused: bool = False  # nothing may begin for its client


def admit(tx: Tx, a: Admission, now_us: int) -> Row:
    """Make sure the run exists. The first durable write of its life.

    Raises:
        RunConflict: the id belongs to a run with another client, workflow or inputs.
    """
    tx.run(tx.sql.insert_client, {"id": a.client_id, "now": now_us})
    inserted = tx.run(
        tx.sql.insert_run,
        {
            "id": a.run_id, "client_id": a.client_id, "workflow": a.workflow, "source_digest": a.source_digest,
            "goal": a.goal, "inputs": a.inputs, "root_no": a.root_no, "parent_no": a.parent_no, "now": now_us,
        },
    )  # fmt: skip
    run = tx.one(tx.sql.run_by_id, {"id": a.run_id})
    assert run is not None  # it was there, or was just inserted  # noqa: S101
    for column, mine, what in (
        ("client_id", a.client_id, "client"),
        ("workflow", a.workflow, "workflow"),
        ("inputs", a.inputs, "inputs"),
    ):
        if run[column] != mine and not (what == "inputs" and run["pruned_us"] is not None and run[column] == kept_inputs(mine)):
            raise RunConflict(a.run_id, f"another {what} ({_short(run[column])}, not {_short(mine)})" if what != "inputs" else
                              f"other inputs ({_short(run[column])}, not {_short(mine)})")  # fmt: skip
    for kin in (a.root_no, a.parent_no) if inserted else ():
        if kin is not None:
            tx.run(tx.sql.inherit_epoch, {"run_no": run["no"], "of_no": kin})
    if inserted and a.root_no is not None:
        tell_kin(tx, run)
    return run


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def known(tx: Tx, run_id: str) -> Row:
    """The run with this id.

    Raises:
        UnknownRun: there is none.
    """
    run = tx.one(tx.sql.run_by_id, {"id": run_id}) if storable(run_id) else None
    if run is None:
        raise UnknownRun(run_id)
    return run


class Watch(Container[str]):
    """The workers that are proven dead, as seen by somebody who can also watch the living ones of this machine."""

    @abstractmethod
    def silent(self, worker: Row, *, stale: bool) -> bool:
        """Whether a worker counts as silent. *stale*: its last beat is older than a lease, by the wall clocks."""


def is_dead(tx: Tx, owner: str | None, now_us: int, proven_dead: Container[str]) -> bool:
    """Whether nobody executes the run, and nobody can go on to before this transaction ends: see ``seems_dead``."""
    if not seems_dead(tx, owner, now_us, proven_dead):
        return False
    held = None if owner is None or owner in proven_dead else tx.one(tx.sql.worker_held, {"id": owner, "now": now_us})
    return held is None or is_gone(held, proven_dead)


def seems_dead(tx: Tx, owner: str | None, now_us: int, proven_dead: Container[str]) -> bool:
    """Whether nobody executes the run: unowned, its worker proven dead, or silent for longer than a lease. Reads only."""
    if owner is None or owner in proven_dead:
        return True
    worker = tx.one(tx.sql.worker, {"id": owner, "now": now_us})
    return worker is None or is_gone(worker, proven_dead)


def is_gone(worker: Row, proven_dead: Container[str]) -> bool:
    """Whether nobody works any more where the worker of a row was: proven dead, or silent for longer than a lease."""
    if worker["id"] in proven_dead:
        return True
    stale = worker["silent_us"] > LEASE_US
    return proven_dead.silent(worker, stale=stale) if isinstance(proven_dead, Watch) else bool(stale)


def take(  # noqa: PLR0913 - who takes it, with what code, and what is known of the others
    tx: Tx, run: Row, worker: str, *, source_digest: str | None, now_us: int, proven_dead: Container[str],
    has: codes.Has | None = None,
) -> Taken:  # fmt: skip
    """Become the run's owner, if nobody live is. Raises the fence; counts executions that broke off without a record.

    *has*: what the code has, where that was read: if nobody has executed the run yet, all of it is ahead.
    """
    if RunStatus(run["status"]).ended or not is_dead(tx, run["owner"], now_us, proven_dead):
        return Taken(run=run)
    if run["status"] not in _SETTLING and clients.paused(tx, run["client_id"]) is not None:
        return Taken(run=run, paused=True)
    progress, broken = barren(tx, run)
    first = has if _fresh(run) else None
    fence = tx.one(
        tx.sql.take_run,
        {
            "run_no": run["no"], "owner": worker, "now": now_us, "progress": progress, "barren": broken,
            "source_digest": source_digest, "fence": run["fence"], "seen_owner": run["owner"] or "",
            "remaining": None if first is None else first.steps,
        },
    )  # fmt: skip
    if fence is None:
        return Taken(run=run)
    if not _fresh(run):
        tx.run(tx.sql.interrupt_attempts, {"run_no": run["no"], "now": now_us})
        tx.run(tx.sql.drop_waits, {"run_no": run["no"]})
    hold = Hold(
        run_no=run["no"], run_id=run["id"], client_id=run["client_id"], root_id=root_id(tx, run), owner=worker,
        fence=fence["fence"],
    )  # fmt: skip
    codes.begin(tx, hold, first, now_us)
    codes.note(tx, run, hold, source_digest, now_us)
    return Taken(run=run, hold=hold, poisoned=broken >= POISON_AFTER)


def barren(tx: Tx, run: Row) -> tuple[int, int]:
    """What is on record of a run, as a count; and how many executions in a row broke off without adding to it, as of now."""
    progress = 0 if _fresh(run) else _progress(tx, run["no"])
    return progress, run["barren"] + 1 if run["owner"] is not None and progress <= run["progress"] else 0


def _fresh(run: Row) -> bool:
    """Whether nobody ever executed it: it has no records, attempts or waits. A fork has those of the run it is a fork of."""
    return run["executions"] == 0 and run["root_no"] is None


def _progress(tx: Tx, run_no: int) -> int:
    row = tx.one(tx.sql.run_progress, {"run_no": run_no, **steps_range(run_no)})
    mine = int(row["records"]) if row is not None else 0
    return mine + sum(1 + _progress(tx, child["no"]) for child in family.children(tx, run_no))


def root_id(tx: Tx, run: Row) -> str:
    """The id of the run whose receipts a run shares; its own, unless it is a fork."""
    if run["root_no"] is None:
        return str(run["id"])
    root = tx.one(tx.sql.run_by_no, {"no": run["root_no"]})
    return str(root["id"]) if root is not None else str(run["id"])


def guard(tx: Tx, hold: Hold) -> Row:
    """Make sure the run is still ours, until this transaction commits.

    Raises:
        Superseded: another worker took it.
    """
    row = tx.one(tx.sql.guard_run, hold.keys())
    if row is None:
        raise lost(tx, hold)
    return row


def lost(tx: Tx, hold: Hold) -> Superseded:
    """Why our hold no longer counts, naming who took over."""
    run = tx.one(tx.sql.run_by_no, {"no": hold.run_no})
    return Superseded(hold.run_id, taken_by(tx, run, hold.fence))


def taken_by(tx: Tx, run: Row | None, fence: int) -> str:
    """What became of a run that is no longer ours, in words: who has it, or how it stands. *fence*: what we held it under."""
    if run is not None and run["owner"] is not None:
        return f"{named(tx, run['owner'], 0)} took it over"
    if run is not None and run["fence"] > fence:  # nobody has it any more: who had it is not on record
        return f"another worker took it over, and it is {run['status']}"
    if run is not None and RunStatus(run["status"]).ended:
        return f"it was ended ({run['status']}) by somebody else"
    return "it was released from this worker"


def named(tx: Tx, worker: str, now_us: int) -> str:
    """A worker in words: its id, and where its process is, as long as that is known."""
    row = tx.one(tx.sql.worker, {"id": worker, "now": now_us})
    return f"worker {worker}" if row is None else f"worker {worker} ({row['host']}, process {row['pid']})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parking:
    """How a run is put away."""

    waiting_for: str
    reason: str
    wake_us: int | None
    next_step: str | None
    remaining: str
    executing_us: int
    question_ids: tuple[str, ...]  # what it waits for; if one is answered by now it is not put away
    facts: tuple[str, ...] = ()  # the same: what it waits to know about its client
    children: tuple[tuple[int, str, int], ...] = ()  # no, status, fence: if one stands otherwise by now, neither
    resources: tuple[str, ...] = ()  # that are down: if one answers by now, it is not put away
    unneeded: tuple[str, ...] = ()  # questions that its code has gone past: they are withdrawn, unless answered by now


def park(tx: Tx, hold: Hold, p: Parking, now_us: int) -> bool:
    """Put the run away, unless what it waits for happened in the meantime. Checks and parks in one transaction."""
    guard(tx, hold)
    if not _waits(tx, hold, p, now_us):
        return False
    parked = tx.run(
        tx.sql.park_run,
        {
            **hold.keys(), "waiting_for": p.waiting_for, "reason": p.reason, "wake_us": p.wake_us, "next_step": p.next_step,
            "remaining": p.remaining, "executing_us": p.executing_us, "now": now_us,
        },
    )  # fmt: skip
    for name in p.resources if parked else ():
        tx.run(tx.sql.wait_for_resource, {"run_no": hold.run_no, "name": name, "now": now_us})
    for key in p.facts if parked else ():
        tx.run(tx.sql.insert_wait, {"run_no": hold.run_no, "key": key, "now": now_us})
    for question_id in p.unneeded if parked else ():
        tx.run(tx.sql.close_question, {"id": question_id, "status": "withdrawn", "now": now_us})
    if parked and p.unneeded:
        tx.run(tx.sql.count_questions, {"run_no": hold.run_no, "now": now_us})
    return parked == 1


def _waits(tx: Tx, hold: Hold, p: Parking, now_us: int) -> bool:
    """Whether nothing of what the run waits for has happened."""
    for question_id in p.question_ids:
        row = tx.one(tx.sql.question, {"id": question_id})
        if row is None or row["status"] != "open":
            return False
    for no, status, fence in p.children:
        row = tx.one(tx.sql.run_by_no, {"no": no})
        if row is None or (row["status"], row["fence"]) != (status, fence):
            return False
    for key in p.facts:
        row = tx.one(tx.sql.fact, {"client_id": hold.client_id, "key": key})
        if row is not None and (row["valid_until_us"] is None or row["valid_until_us"] > now_us):
            return False
    for name in p.resources:
        row = tx.one(tx.sql.resource, {"name": name})
        if row is None or row["state"] == "closed":
            return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ends. ``value`` and ``failure`` are JSON."""

    status: RunStatus
    value: str | None = None
    failure: str | None = None
    reason: str | None = None
    remaining: str = "[]"
    executing_us: int = 0


def end(tx: Tx, hold: Hold, e: Ending, now_us: int) -> bool:
    """End the run. Final: nothing changes it afterwards. Open questions are withdrawn; after a bad end one may be opened."""
    ended = tx.run(
        tx.sql.end_run,
        {
            **hold.keys(), "status": e.status.value, "value": e.value, "failure": e.failure, "reason": e.reason,
            "remaining": e.remaining, "executing_us": e.executing_us, "now": now_us,
        },
    )  # fmt: skip
    if ended:
        tx.run(tx.sql.close_run_questions, {"run_no": hold.run_no, "now": now_us})
        tx.run(tx.sql.drop_waits, {"run_no": hold.run_no})
        tx.run(tx.sql.count_questions, {"run_no": hold.run_no, "now": now_us})
        offer(tx, hold.run_no, now_us)
        _tell_parent(tx, hold.run_no, e.status, now_us)
        if e.status is RunStatus.FAILED:
            ladders.failed(tx, hold.run_no, now_us)
    return ended == 1


def _tell_parent(tx: Tx, run_no: int, status: RunStatus, now_us: int) -> None:
    """A child has ended: its parent, if it waits, goes on; if it only waited for this to end too, it ends."""
    run = tx.one(tx.sql.run_by_no, {"no": run_no})
    parent = None if run is None or run["parent_no"] is None else tx.one(tx.sql.run_by_no, {"no": run["parent_no"]})
    if run is None or parent is None:
        return
    reason = f"{run['id']} is {status.value}: ready to go on"
    tx.run(tx.sql.wake_run, {"run_no": parent["no"], "now": now_us, "reason": reason})
    stopping = RunStatus(parent["status"])
    if parent["owner"] is None and stopping in _STOPPING and not family.live(tx, parent["no"]) and not _open_claims(tx, parent):
        told = parent["reason"] or stopping.value
        failure = json.dumps({"step": None, "kind": FailureKind.FATAL.value, "reason": told})
        failed = stopping is RunStatus.FAILING
        ended = RunStatus.FAILED if failed else RunStatus.CANCELLED
        known = parent["failure"] or (failure if failed else None)
        _end_nobodys(tx, parent, Ending(status=ended, failure=known, reason=told), now_us)


def _open_claims(tx: Tx, run: Row) -> bool:
    """Whether it is not known of some effect of a run if it happened."""
    unsettled = tx.one(tx.sql.unsettled, {"run_no": run["no"]})
    return unsettled is not None and unsettled["n"] > 0


def _end_nobodys(tx: Tx, run: Row, e: Ending, now_us: int) -> None:
    """End a run that nobody executes, and the recovery that its worker died in."""
    hold = Hold(
        run_no=run["no"], run_id=run["id"], client_id=run["client_id"], root_id=run["id"], owner=run["owner"] or "",
        fence=run["fence"],
    )  # fmt: skip
    if end(tx, hold, e, now_us):
        tx.run(tx.sql.close_recoveries, {"run_no": run["no"], "now": now_us})


def release(tx: Tx, hold: Hold, reason: str, executing_us: int, now_us: int) -> None:
    """Give the run back: any worker may take it at once."""
    tx.run(tx.sql.release_run, {**hold.keys(), "reason": reason, "executing_us": executing_us, "now": now_us})


def request_cancel(tx: Tx, run_id: str, reason: str, now_us: int, proven_dead: Container[str]) -> str:
    """Ask a run to stop: at once when nobody executes it and no claim is open, else its owner does it. First what it started.

    Returns:
        The run's status afterwards.
    """
    run = known(tx, run_id)
    if RunStatus(run["status"]).ended:
        return str(run["status"])
    dead = is_dead(tx, run["owner"], now_us, proven_dead)  # first: a beat holds its worker's row when it wants a run's
    tx.run(tx.sql.request_stop, {"run_no": run["no"], "status": "cancelling", "reason": reason, "now": now_us})
    for child in family.live(tx, run["no"]):
        request_cancel(tx, child["id"], reason, now_us, proven_dead)
    settled = not _open_claims(tx, run) and not family.live(tx, run["no"])
    if settled and dead:
        _end_nobodys(tx, run, Ending(status=RunStatus.CANCELLED, reason=reason), now_us)
    return str(known(tx, run_id)["status"])


def ending(tx: Tx, hold: Hold, going: tuple[RunStatus, str, str], now_us: int) -> None:
    """Say that the run is about to end, while its claims in doubt are found out about: ``cancelling`` or ``failing``.

    Args:
        tx: the transaction.
        hold: the run's.
        going: how it will end, why, and its failure as JSON: whoever brings it to its end after a crash says the same.
        now_us: the time.

    Raises:
        Superseded: the run is no longer ours.
    """
    guard(tx, hold)
    status, reason, failure = going
    stopping = RunStatus.FAILING if status is RunStatus.FAILED else RunStatus.CANCELLING
    tx.run(tx.sql.request_stop, {"run_no": hold.run_no, "status": stopping.value, "reason": reason, "now": now_us})
    tx.run(tx.sql.note_ending, {"run_no": hold.run_no, "failure": failure})
