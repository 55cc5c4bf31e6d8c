"""Incidents in the store: open questions of one cause, joined when they are asked, answered together, each by its own rules."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide import _phrases as say
from stepseven.decide import incident
from stepseven.decide.incident import Cause, Extent, Kind
from stepseven.errors import AlreadyAnswered, InvalidAnswer, QuestionExpired, UnknownIncident
from stepseven.model import Incident
from stepseven.store.base import Row, Tx
from stepseven.store.codec import free_text, storable
from stepseven.transitions.state import choice_of, options_of

SPREAD_US = 50_000  # between two runs that go on because their question was taken back
SLOTS = 100  # so many of them, then from the beginning


def join(tx: Tx, cause: Cause, question_id: str, now_us: int) -> None:
    """Let a question that is being stored join the open incident of its cause, or open one. In the same transaction."""
    kind, signature = cause.kind.value, free_text(cause.signature, 300)
    while True:
        row = tx.one(tx.sql.incident_of, {"kind": kind, "signature": signature})
        if row is None:
            tx.run(tx.sql.insert_incident, {
                "id": f"i_{question_id.partition('_')[2]}", "kind": kind, "signature": signature,
                "resource": None if cause.resource is None else free_text(cause.resource, 300), "now": now_us,
            })  # fmt: skip
            row = tx.one(tx.sql.incident_of, {"kind": kind, "signature": signature})
        if row is None or not tx.run(tx.sql.keep_incident, {"id": row["id"]}):
            continue  # it was closed in this moment
        made_here = row["created_us"] == now_us and str(row["id"])[2:] == question_id.partition("_")[2]
        if not made_here and close(tx, row["id"], now_us):
            continue  # nothing of it is open any more: this is another time
        tx.run(tx.sql.join_incident, {"id": question_id, "incident_id": row["id"]})
        return


def settle(tx: Tx, now_us: int, most: int) -> None:
    """Take back what was asked about resources that answer again, *most* at once: those runs try once more by themselves."""
    for each in tx.all(tx.sql.open_incidents, {}):
        for row in tx.all(tx.sql.asked_of_resource, {"id": each["id"], "back_us": each["back_us"], "most": most}):
            _take_back(tx, row, f"{each['resource']} answers again", now_us)
        close(tx, each["id"], now_us)


def unsettled(tx: Tx) -> bool:
    """Whether ``settle`` would find anything. Reads only."""
    found = tx.all(tx.sql.open_incidents, {})
    return any(tx.all(tx.sql.asked_of_resource, {"id": i["id"], "back_us": i["back_us"], "most": 1}) for i in found)


def close(tx: Tx, incident_id: str, now_us: int) -> bool:
    """Close an incident, if nothing of it is open."""
    return tx.run(tx.sql.close_incident, {"id": incident_id, "now": now_us}) == 1


def _take_back(tx: Tx, row: Row, reason: str, now_us: int) -> None:
    tx.run(tx.sql.close_question, {"id": row["id"], "status": "withdrawn", "now": now_us})
    tx.run(tx.sql.withdraw_folded, {"id": row["id"], "now": now_us})
    tx.run(tx.sql.count_questions, {"run_no": row["run_no"], "now": now_us})
    at = now_us + row["run_no"] % SLOTS * SPREAD_US
    tx.run(tx.sql.wake_soon, {"run_no": row["run_no"], "at": at, "now": now_us, "reason": reason})


# -- for people ---------------------------------------------------------------------------------------------------------------


def sight(clients: Collection[str] | None) -> str | None:
    """The clients that somebody may see, as the statements take them; ``None``: all."""
    return None if clients is None else json.dumps(sorted(clients))


def known(tx: Tx, incident_id: str, clients: Collection[str] | None) -> Row:
    """An incident's row.

    Raises:
        UnknownIncident: there is none with this id, or none of its questions is of these clients.
    """
    row = tx.one(tx.sql.incident, {"id": incident_id}) if storable(incident_id) else None
    if row is None or not tx.all(tx.sql.incident_asked, {"id": incident_id, "clients": sight(clients)}):
        raise UnknownIncident(incident_id)
    return row


def page(
    tx: Tx, status: str | None, client: str | None, clients: Collection[str] | None, most: int, now_us: int
) -> list[Incident]:
    """Incidents as people see them, oldest first; nothing in them is of clients that may not be seen."""
    params = {"status": status, "client_id": client, "clients": sight(clients), "limit": most}
    return [shown(tx, row, clients, now_us) for row in tx.all(tx.sql.incidents_page, params)]


def shown(tx: Tx, row: Row, clients: Collection[str] | None, now_us: int) -> Incident:
    """One incident, as far as *clients* may be seen. Its words are made of the newest question, whoever opened it."""
    seen = {"id": row["id"], "clients": sight(clients)}
    is_open = bool(tx.all(tx.sql.incident_questions, {**seen, "after_us": -1, "after_id": "", "most": 1}))
    status = "open" if is_open else "closed"
    of = {**seen, "status": "open" if is_open else None}
    extent, newest = tx.one(tx.sql.incident_extent, of), tx.one(tx.sql.incident_newest, of)
    assert extent is not None  # it counts  # noqa: S101
    pairs = tx.all(tx.sql.incident_workflows, of)
    workflows = tuple(dict.fromkeys(pair["workflow"] for pair in pairs))
    clients_of = tuple(sorted({pair["client_id"] for pair in pairs}))
    cause = Cause(kind=Kind(row["kind"]), signature=row["signature"], resource=row["resource"])
    down = tx.one(tx.sql.resource, {"name": row["resource"]}) if cause.kind is Kind.RESOURCE else None
    since = None if down is None or down["opened_us"] is None else _time(down["opened_us"], now_us)
    reach = Extent(
        runs=extent["runs"], clients=len(clients_of), workflows=workflows, step=None if newest is None else newest["step"],
        reason=_reason(newest), down_since=since,
    )  # fmt: skip
    options = [options_of(each["options"]) for each in tx.all(tx.sql.incident_options, seen)] if is_open else []
    return Incident(
        id=row["id"], kind=row["kind"], text=incident.text(cause, reach), status=status, resource=row["resource"],
        questions=extent["questions"], runs=extent["runs"], clients=clients_of, workflows=workflows,
        options=incident.common(options), earlier=_earlier(tx, row, seen, extent, now_us), created_us=row["created_us"],
        closed_us=None if is_open else row["closed_us"],
    )  # fmt: skip


def open_ids(tx: Tx, incident_id: str, most: int = 10_000) -> tuple[str, ...]:
    """The ids of its open questions, oldest first."""
    first = {"id": incident_id, "clients": None, "after_us": -1, "after_id": "", "most": most}
    return tuple(row["id"] for row in tx.all(tx.sql.incident_questions, first))


def _reason(newest: Row | None) -> str:
    if newest is None:
        return ""
    failed = (json.loads(newest["context"]) or {}).get("failed") or []
    return str(failed[-1].get("reason") or "") if failed else str(newest["text"]).split("\n", 1)[0]


def _time(us: int, now_us: int) -> str:
    """A time in the place of whoever reads it: people are at the edge."""
    at, now = (datetime.fromtimestamp(t / 1e6, UTC).astimezone() for t in (us, now_us))
    return at.strftime("%H:%M" if at.date() == now.date() else "%Y-%m-%d %H:%M")


def _earlier(tx: Tx, row: Row, seen: dict[str, Any], extent: Row, now_us: int) -> str | None:
    """What came of the last answer to the same cause: who went on, and who is here again."""
    cause = {"kind": row["kind"], "signature": row["signature"], "created_us": row["created_us"]}
    before = tx.one(tx.sql.incident_before, cause)
    answers = [] if before is None else tx.all(tx.sql.incident_answers, {**seen, "id": before["id"]})
    if not answers:
        return None
    here = {each["run_no"] for each in tx.all(tx.sql.incident_asked, seen)}
    runs, last = {each["run_no"] for each in answers}, answers[0]
    return incident.earlier(
        choice_of(json.loads(last["answer"])) or "…", by=last["answered_by"] or "a person",
        ago=say.duration(max(0, now_us - last["answered_us"]) / 1e6), went_on=len(runs - here),
        again=len(runs & here) or extent["runs"],
    )  # fmt: skip


# -- answering ----------------------------------------------------------------------------------------------------------------

MOST = 500  # questions that one transaction answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One answer for many: for these questions, of these clients; ``None``: for all. Others are as if they were not there."""

    value: Any
    by: str
    note: str | None = None
    questions: frozenset[str] | None = None
    clients: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """How far an answer has come: the last question that was looked at, what took it, and what did not and why."""

    after_us: int = -1
    after_id: str = ""
    answered: Sequence[Row] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    over: bool = False


def answer(tx: Tx, *, incident_id: str, said: Said, so_far: Answering, now_us: int) -> Answering:
    """Answer the next questions of an incident, each by its own rules. What does not take the answer stays open.

    Raises:
        UnknownIncident: there is none with this id that may be seen.
    """
    from stepseven.transitions import questions

    known(tx, incident_id, said.clients)
    here = {"id": incident_id, "clients": sight(said.clients), "after_us": so_far.after_us, "after_id": so_far.after_id}
    rows = tx.all(tx.sql.incident_questions, {**here, "most": MOST})
    answered: list[Row] = []
    refused: dict[str, str] = {}
    for row in rows:
        if said.questions is not None and row["id"] not in said.questions:
            continue
        try:
            answered.append(questions.answer(tx, row["id"], said.value, by=said.by, note=said.note, now_us=now_us))
        except (InvalidAnswer, AlreadyAnswered, QuestionExpired) as why:
            refused[row["id"]] = str(why)
    close(tx, incident_id, now_us)
    after_us, after_id = (rows[-1]["created_us"], rows[-1]["id"]) if rows else (so_far.after_us, so_far.after_id)
    return Answering(after_us=after_us, after_id=after_id, answered=answered, refused=refused, over=len(rows) < MOST)


def left(tx: Tx, *, incident_id: str, clients: Collection[str] | None) -> int:
    """How many of its questions are still open."""
    row = tx.one(tx.sql.incident_extent, {"id": incident_id, "clients": sight(clients), "status": "open"})
    return 0 if row is None else int(row["questions"])
