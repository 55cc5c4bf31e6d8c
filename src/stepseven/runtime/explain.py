"""``why``: one sentence about a run: what it waits for, who may move it, what happens next."""

from __future__ import annotations

import json
from collections.abc import Container
from datetime import UTC, datetime

from stepseven.decide import _phrases as say
from stepseven.decide import circuit
from stepseven.model import QuestionKind, RunStatus, WaitingFor
from stepseven.store.base import Row, Tx
from stepseven.transitions import circuits, clients, family, incidents, orphans, told
from stepseven.transitions.runs import known, named, seems_dead
from stepseven.transitions.undoing import taken_back

_FIRST = (QuestionKind.POISON, QuestionKind.CODE, QuestionKind.DRIFT)  # before one of these is answered nothing begins


def why(tx: Tx, run_id: str, now_us: int, dead: Container[str], foreign: str | None) -> str:
    """The sentence. *foreign*: file and line of an await stepseven does not know, in this process.

    Raises:
        UnknownRun: there is none with this id.
    """
    run = known(tx, run_id)
    asked = [
        q for q in tx.all(tx.sql.questions_of_run, {"run_no": run["no"]}) if q["status"] == "open" and q["folded_into"] is None
    ]
    asked.sort(key=lambda q: q["kind"] not in _FIRST)  # stable: the oldest of each stays first
    status = RunStatus(run["status"])
    if status.ended:
        return _ended(run, status) + _aftermath(tx, run, asked)
    if run["external"]:
        return _outside(tx, run, asked, now_us)
    if run["owner"] is not None and not seems_dead(tx, run["owner"], now_us, dead):
        at = f", now in an await stepseven does not know ({foreign})" if foreign else ""
        also = f", and {_asks(asked)}" if asked else ""
        return f"Run {run_id} is {status.value}: {named(tx, run['owner'], now_us)} executes it{at}{also}."
    paused = None if status in (RunStatus.CANCELLING, RunStatus.FAILING) else clients.paused(tx, run["client_id"])
    if paused is not None:
        also = f" It {_asks(asked)}, and takes the answer now." if asked else ""
        return (
            f"Run {run_id} is {status.value}: {paused}. After `stepseven client unpause {run['client_id']}`, "
            f"`stepseven resume {run_id}` goes on{_next(run)}.{also}"
        )
    if run["owner"] is not None:
        takes = _takes(tx, run, now_us, dead)
        if run["owner"] in dead or tx.one(tx.sql.worker, {"id": run["owner"], "now": now_us}) is None:
            return f"Run {run_id} was broken off when its worker died: `stepseven resume {run_id}` goes on at once{takes}."
        return f"Run {run_id} was broken off when its worker fell silent: `stepseven resume {run_id}` goes on{takes}."
    if asked:
        said = told.of_question(tx, asked[0]["id"])
        more = (f" {said}" if said else "") + _like_it(tx, asked[0])
        return f"Run {run_id} {_asks(asked)}; when that is answered it goes on{_next(run)}.{more}"
    takes = _takes(tx, run, now_us, dead)
    return f"Run {run_id} {_down(tx, run, takes) or _below(tx, run, now_us, dead) or _at_rest(run, takes)}"


def _like_it(tx: Tx, asked: Row) -> str:
    """Whether others ask the same."""
    n = 0 if asked["incident_id"] is None else incidents.left(tx, incident_id=asked["incident_id"], clients=None)
    return f" It is one of {n:,} with one cause: `stepseven answer {asked['incident_id']} CHOICE` answers all." if n > 1 else ""


def _down(tx: Tx, run: Row, takes: str) -> str | None:
    """What a run says that waits until something outside answers again; ``None``: it does not."""
    waits = circuits.of_run(tx, run["no"]) if run["waiting_for"] == WaitingFor.CIRCUIT else []
    if not waits:
        return None
    stands, n = waits[0]
    since = f", which has not answered since {_time(stands.opened_us)}" if stands.open and stands.opened_us is not None else ""
    others = "" if n == 1 else "; another run waits with it" if n == 2 else f"; {n - 1:,} other runs wait with it"  # noqa: PLR2004
    every = say.duration(circuit.every_us(stands.looks) / 1e6)
    look = f"`stepseven resume {run['id']}` looks when that is due"
    return (
        f"waits until {stands.name} answers again{since}: I look every {every}{others}. "
        f"Then it goes on{_next(run)}; {look}{takes}."
    )


def _outside(tx: Tx, run: Row, asked: list[Row], now_us: int) -> str:
    """What a run is at that somebody outside executes: they have to come back by themselves."""
    paused = clients.paused(tx, run["client_id"])
    if paused is not None:
        return f"Run {run['id']} is {run['status']}: {paused}. Its executor is told to wait until then."
    if asked:
        return f"Run {run['id']} {_asks(asked)}; after that its executor goes on when it begins the step again."
    tickets = tx.all(tx.sql.open_tickets, {"run_no": run["no"]})
    live = [t for t in tickets if t["lease_until_us"] > now_us]
    if live:
        until = f"it has until {_time(live[0]['lease_until_us'])} to say how it ended"
        return f"Run {run['id']} is {run['status']}: somebody outside executes {live[0]['name']}; {until}."
    if tickets:
        since = _time(tickets[0]["lease_until_us"])
        silent = f"{tickets[0]['name']} was begun outside, and since {since} nobody has said how it ended"
        return f"Run {run['id']} is {run['status']}: {silent}; resume it over HTTP, or let its executor begin the step again."
    return f"Run {run['id']} is {run['status']} and executed outside: it goes on{_next(run)} when its executor begins a step."


def _takes(tx: Tx, run: Row, now_us: int, dead: Container[str]) -> str:
    """Whether a worker takes a run that is ready, and if not, why."""
    ready = orphans.of_run(tx, run, now_us, orphans.workers(tx, now_us, dead))
    if ready is None:
        return ""
    return f"; nobody takes it by itself: {ready.orphaned}" if ready.orphaned is not None else "; a worker takes it by itself"


def _at_rest(run: Row, takes: str) -> str:
    """What a run waits for that asks nobody. *takes*: who takes it."""
    goes_on = f"`stepseven resume {run['id']}` goes on"
    if run["status"] == RunStatus.QUEUED:
        reason = f" ({run['reason']})" if run["reason"] else ""
        return f"is ready{reason}: {goes_on}{_next(run)}{takes}."
    if run["wake_us"] is not None:
        return f"waits until {_time(run['wake_us'])} ({run['reason']}); then {goes_on}{_next(run)}{takes}."
    return f"is {run['status']}: {run['reason'] or 'nothing is known about why'}; {goes_on}{takes}."


def _below(tx: Tx, run: Row, now_us: int, dead: Container[str]) -> str | None:
    """What a run says that waits for those it started: the sentence of the first that asks somebody, else of the first."""
    live = family.live(tx, run["no"]) if run["status"] != RunStatus.QUEUED else []
    if not live:
        return None
    first = next((row for row in live if row["open_questions"]), live[0])
    told = why(tx, first["id"], now_us, dead, None)
    more = f" (and {len(live) - 1} more)" if len(live) > 1 else ""
    stands = "waits for" if run["status"] == RunStatus.WAITING else f"is {run['status']} until this has ended:"
    return f"{stands} a run it started{more}: {told[0].lower()}{told[1:]}"


def _ended(run: Row, status: RunStatus) -> str:
    at = _time(run["ended_us"])
    if status is RunStatus.DONE:
        return f"Run {run['id']} is done since {at}; nothing more happens."
    failure = json.loads(run["failure"])["reason"] if run["failure"] else run["reason"] or "no reason was kept"
    verb = "was cancelled" if status is RunStatus.CANCELLED else "failed"
    return f"Run {run['id']} {verb} at {at}: {failure}."


def _aftermath(tx: Tx, run: Row, asked: list[Row]) -> str:
    """What goes on although the run has ended: what it did is taken back, or a person is asked about that."""
    undo, n = taken_back(tx, run)
    told = ""
    if undo is not None and not RunStatus(undo["status"]).ended:
        told = f" Run {undo['id']} takes back what it did; it is {undo['status']}."
    elif undo is not None:
        told = f" {n} {'thing' if n == 1 else 'things'} it did {'was' if n == 1 else 'were'} taken back (see run {undo['id']})."
    return told + (f" It still asks: `stepseven inbox {asked[0]['id']}`." if asked else "")


def _asks(asked: list[Row]) -> str:
    first = asked[0]
    text = first["text"].split("\n", 1)[0].rstrip(".")
    who = first["asked_of"] or "a person"
    more = f" (and {len(asked) - 1} more)" if len(asked) > 1 else ""
    return f"waits for {who} to answer {first['id']}: “{text}”{more}"


def _next(run: Row) -> str:
    return f" with {run['next_step']}" if run["next_step"] else ""


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
