"""Questions: asked once, answered once. Asking and answering need only the store, never the code that asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from stepseven.decide import policy
from stepseven.decide.escalate import Draft
from stepseven.errors import AlreadyAnswered, InvalidAnswer, QuestionExpired, UnknownQuestion
from stepseven.model import QuestionKind
from stepseven.store.base import Row, Tx
from stepseven.store.codec import storable
from stepseven.transitions import clients, editing, family, incidents, ladders, renaming, telling, undoing
from stepseven.transitions.clients import Given
from stepseven.transitions.fitting import mismatch
from stepseven.transitions.runs import guard
from stepseven.transitions.state import Hold, options_of
from stepseven.transitions.telling import Asking

REFUSED = "refused"  # kind of a failed record: a person said no to what was proposed


def ask(tx: Tx, hold: Hold, a: Asking, now_us: int) -> Row:
    """Store a question and count it on its run, in one transaction.

    Returns:
        Its row; that of the same question, if it is there already.

    Raises:
        Superseded: the run is no longer ours.
    """
    guard(tx, hold)
    into = tx.one(tx.sql.question, {"id": a.folded_into}) if a.folded_into is not None else None
    if into is None or into["status"] != "open":  # it has its answer already: this one would never get any
        a = replace(a, folded_into=None)
    there = None
    if not telling.insert(tx, a, run_no=hold.run_no, client_id=hold.client_id, now_us=now_us):
        there = _same_question(tx, hold.run_no, (a.branch, a.kind.value, a.key, a.n))
    stored = tx.one(tx.sql.question, {"id": a.id if there is None else there})
    assert stored is not None  # just inserted, or just found  # noqa: S101
    return stored


def _same_question(tx: Tx, run_no: int, names: tuple[str, str, str, int]) -> str | None:
    """The id under which this question stands already."""
    rows = tx.all(tx.sql.questions_of_run, {"run_no": run_no})
    return next((str(r["id"]) for r in rows if (r["branch"], r["kind"], r["key"], r["n"]) == names), None)


def answer(tx: Tx, question_id: str, value: Any, *, by: str, note: str | None, now_us: int) -> Row:
    """Give a question its one answer.

    Raises:
        UnknownQuestion, AlreadyAnswered, QuestionExpired, InvalidAnswer: nothing was changed.
    """
    row = tx.one(tx.sql.question, {"id": question_id}) if storable(question_id) else None
    if row is None:
        raise UnknownQuestion(question_id, [r["id"] for r in tx.all(tx.sql.open_question_ids, {})])
    if row["folded_into"] is not None:
        return answer(tx, row["folded_into"], value, by=by, note=note, now_us=now_us)
    if row["status"] == "answered":
        at = datetime.fromtimestamp(row["answered_us"] / 1e6, UTC).isoformat(timespec="seconds")
        raise AlreadyAnswered(question_id, by=row["answered_by"], answer=json.loads(row["answer"]), at=at)
    if row["status"] != "open":
        raise QuestionExpired(question_id, row["status"])
    if row["deadline_us"] is not None and row["deadline_us"] <= now_us:
        raise QuestionExpired(question_id, "expired")
    stored = json.dumps(valid_answer(row, value, now_us), ensure_ascii=False)
    params = {"id": question_id, "answer": stored, "by": by, "note": note, "now": now_us}
    if not _taken(tx, row, params):
        return answer(tx, question_id, value, by=by, note=note, now_us=now_us)
    if row["remember"] is not None:
        _remember(tx, row, stored, by, now_us)
    if row["kind"] == QuestionKind.UNDO:
        undoing.decided(tx, row, stored, now_us)
    tx.run(tx.sql.count_questions, {"run_no": row["run_no"], "now": now_us})
    # A ceiling counts for what the run has started, too.
    below = [r["no"] for r in family.live_descendants(tx, row["run_no"])] if row["kind"] == QuestionKind.LIMIT else []
    for no in (row["run_no"], *below):
        tx.run(tx.sql.wake_run, {"run_no": no, "now": now_us, "reason": f"answered by {by}: ready to go on"})
    answered = tx.one(tx.sql.question, {"id": question_id})
    assert answered is not None  # noqa: S101 - just updated
    return answered


def _taken(tx: Tx, row: Row, params: dict[str, Any]) -> bool:
    """Store the answer. ``False``: another one came in this moment, of who answers an incident: nothing locks its clients."""
    if not tx.run(tx.sql.answer_question, params):
        return False
    tx.run(tx.sql.answer_folded, params)
    if row["incident_id"] is not None:
        incidents.close(tx, row["incident_id"], params["now"])
    return True


def _remember(tx: Tx, row: Row, stored: str, by: str, now_us: int) -> None:
    how = json.loads(row["remember"])
    until = None if how.get("valid_us") is None else now_us + int(how["valid_us"])
    said = Given(
        client_id=row["client_id"], key=how["key"], value=stored, source=f"answer to {row['id']}", by=by, run_id=row["run_id"],
        until_us=until,
    )  # fmt: skip
    clients.learn(tx, said, now_us)


def expire(tx: Tx, hold: Hold, question_id: str, now_us: int) -> Row:
    """Close a question whose deadline passed. It stays "nobody answered", never "no"."""
    row = _close(tx, hold, question_id, "expired", now_us)
    if row["status"] == "expired":
        ladders.expired(tx, question_id, now_us)
    return row


def withdraw(tx: Tx, hold: Hold, question_id: str, now_us: int) -> Row:
    """Close a question the run no longer needs."""
    return _close(tx, hold, question_id, "withdrawn", now_us)


def _close(tx: Tx, hold: Hold, question_id: str, status: str, now_us: int) -> Row:
    guard(tx, hold)
    tx.run(tx.sql.close_question, {"id": question_id, "status": status, "now": now_us})
    tx.run(tx.sql.count_questions, {"run_no": hold.run_no, "now": now_us})
    return _row(tx, question_id)


def _row(tx: Tx, question_id: str) -> Row:
    row = tx.one(tx.sql.question, {"id": question_id})
    assert row is not None  # questions are never deleted while their run lives  # noqa: S101
    return row


def retell(tx: Tx, hold: Hold, question_id: str, draft: Draft) -> Row:
    """Say anew what an open question is about: more belongs to it than when it was asked."""
    guard(tx, hold)
    tx.run(tx.sql.retell_question, {"id": question_id, **telling.told(draft)})
    return _row(tx, question_id)


def fold(tx: Tx, hold: Hold, question_ids: Sequence[str], into: str, now_us: int) -> list[Row]:
    """Let one open question stand for several: its answer is theirs.

    Returns:
        The folded questions as they are now.
    """
    guard(tx, hold)
    for question_id in question_ids:
        tx.run(tx.sql.fold_question, {"id": question_id, "into": into})
    tx.run(tx.sql.count_questions, {"run_no": hold.run_no, "now": now_us})
    rows = [tx.one(tx.sql.question, {"id": question_id}) for question_id in question_ids]
    return [row for row in rows if row is not None]


# -- what is a valid answer -------------------------------------------------------------------------------------------

_LIMITS = ("usd", "tokens", "steps", "seconds")
_SECONDS_END = 1e12  # a larger number is a moment in microseconds, not a length of time in seconds
_LAST_US = round(datetime.max.replace(tzinfo=UTC).timestamp()) * 1_000_000


def valid_answer(row: Row, value: Any, now_us: int) -> Any:
    """The answer in the form that is stored.

    Raises:
        InvalidAnswer: not one of the choices, or a choice without what it needs, or not of the asked type.
    """
    _plain(row["id"], value)
    options = [o.id for o in options_of(row["options"])]
    if not options:
        return _typed(row, value)
    given = dict(value) if isinstance(value, Mapping) and "choice" in value else {"choice": value}
    choice = given["choice"]
    if not isinstance(choice, str) or choice not in options:
        raise InvalidAnswer(row["id"], f"{choice!r} is not one of {', '.join(options)}")
    need = None if row["kind"] == "ask" else _NEEDS.get(choice)
    takes = () if need is None else _TAKES[choice]
    strange = next((name for name in given if name != "choice" and name not in takes), None)
    if strange is not None:  # a word that was mistyped must not be an answer without it
        told = f"it takes {' or '.join(takes)}" if takes else "it takes nothing more"
        raise InvalidAnswer(row["id"], f"{strange!r} does not go with {choice}: {told}")
    if need is None:
        return choice
    more = need(row, given, now_us)
    return {"choice": choice, **more} if more else choice


def _plain(question_id: str, value: Any) -> None:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode("utf-8")
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise InvalidAnswer(question_id, f"it is not plain JSON ({error})") from error
    if len(text) > 1 << 20:
        raise InvalidAnswer(question_id, "it is over 1 MiB")


def _typed(row: Row, value: Any) -> Any:
    if row["schema"] is None:
        return value
    why = mismatch(json.loads(row["schema"]), value)
    if why is not None:
        raise InvalidAnswer(row["id"], why)
    return value


def _wait(row: Row, given: Mapping[str, Any], now_us: int) -> dict[str, Any]:
    until = given.get("until")
    if isinstance(given.get("fact"), str) and given["fact"]:
        if until is not None:
            raise InvalidAnswer(row["id"], "wait takes until or fact, not both")
        return {"fact": given["fact"]}
    looks_at = json.loads(row["context"]).get("looks_at")
    if looks_at and until in (policy.ANSWERS, looks_at):
        return {"until": policy.ANSWERS}
    if until == policy.ANSWERS:
        raise InvalidAnswer(row["id"], "there is nothing here to look at whether it answers: give a time, seconds or a fact")
    if isinstance(until, bool) or until is None:
        raise InvalidAnswer(row["id"], 'wait needs until: {"choice": "wait", "until": "2026-03-14T09:00:00Z"} or seconds')
    if isinstance(until, int | float):
        moment_us = int(until) if until > _SECONDS_END else now_us + round(until * 1e6)
    else:
        try:
            moment = datetime.fromisoformat(str(until))
            moment_us = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e6)
        except (ValueError, OverflowError) as error:
            why = f"until {until!r} is neither a time such as 2026-03-14T09:00:00Z nor seconds"
            raise InvalidAnswer(row["id"], why) from error
    if moment_us > _LAST_US:
        raise InvalidAnswer(row["id"], f"until {until!r} is too far away")
    return {"until": moment_us}


def _value(row: Row, given: Mapping[str, Any], now_us: int) -> dict[str, Any]:
    del now_us
    if "value" not in given:
        raise InvalidAnswer(row["id"], 'value needs the value: {"choice": "value", "value": …}')
    if row["schema"] is not None:
        why = mismatch(json.loads(row["schema"]), given["value"])
        if why is not None:
            raise InvalidAnswer(row["id"], why)
    return {"value": given["value"]}


def _receipt(row: Row, given: Mapping[str, Any], now_us: int) -> dict[str, Any]:
    del now_us
    if "receipt" not in given:
        choice = given["choice"]
        raise InvalidAnswer(
            row["id"], f'{choice} needs the receipt: {{"choice": "{choice}", "receipt": …}} (null if there is none)'
        )
    if row["schema"] is not None and given["receipt"] is not None:
        why = mismatch(json.loads(row["schema"]), given["receipt"])
        if why is not None:
            raise InvalidAnswer(row["id"], why)
    return {"receipt": given["receipt"]}


def _raise(row: Row, given: Mapping[str, Any], now_us: int) -> dict[str, Any]:
    del now_us
    limit = json.loads(row["context"]).get("limit") or {}
    unit = limit_unit(row["key"])
    found = {name: given[name] for name in _LIMITS if name in given}
    good = all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in found.values())
    if list(found) != [unit] or not good:
        raise InvalidAnswer(row["id"], f'raise needs the new ceiling: {{"choice": "raise", "{unit}": 5}}')
    if found[unit] <= (limit.get("ceiling") or 0):
        raise InvalidAnswer(row["id"], f"{found[unit]} is no more than the limit is now, {limit['ceiling']:g} {unit}")
    return found


def limit_unit(what: str) -> str:
    """The unit of a field of ``Limits``, as ``raise`` names it."""
    return "usd" if "usd" in what else what


_TAKES: dict[str, tuple[str, ...]] = {
    "wait": ("until", "fact"), "value": ("value",), "by_hand": ("receipt",), "happened": ("receipt",),
    "approve": ("inputs",), "raise": _LIMITS, "map": ("to",),
}  # fmt: skip
_NEEDS: dict[str, Callable[[Row, Mapping[str, Any], int], dict[str, Any]]] = {
    "wait": _wait,
    "value": _value,
    "by_hand": _receipt,
    "happened": _receipt,
    "approve": editing.approval,
    "raise": _raise,
    "map": renaming.mapped,
}
