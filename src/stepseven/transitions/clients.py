"""What is known about a client, and whether anything may begin for it. Each function is one transaction's worth of work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from stepseven._dataclass import dataclass
from stepseven.decide import facts as rule
from stepseven.decide.facts import Said
from stepseven.errors import UnknownClient
from stepseven.model import ClientStatus, Fact
from stepseven.store.base import Row, Tx
from stepseven.store.codec import canonical, from_canonical
from stepseven.transitions import requiring


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Something said about a client. ``value`` is JSON text; ``until_us``: how long it holds."""

    client_id: str
    key: str
    value: str
    source: str | None = None
    by: str | None = None
    run_id: str | None = None
    until_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What became of it: ``version`` is the one that says it, ``new`` whether that was written now."""

    version: int
    new: bool


def learn(tx: Tx, given: Given, now_us: int) -> Learned:
    """Keep what is said about a client as a new version, and wake the runs that wait to know something about it.

    Open questions for the fact are withdrawn: nobody has to answer them any more.

    Creates the client. What only repeats its own last word is no new version (``decide.facts.repeated``): then only how long
    it holds is renewed, if that is said. A person who does not say it means for good; a source that feeds us means nothing.
    """
    before = repeats(tx, given, now_us)
    mine = {"client_id": given.client_id, "key": given.key, "valid_until_us": given.until_us}
    if before is not None:
        if given.until_us is not None or _word(given).by_person:
            tx.run(tx.sql.renew_fact, {**mine, "version": before})
            requiring.withdraw(tx, given.client_id, given.key, now_us)
        return Learned(version=before, new=False)
    tx.run(tx.sql.insert_client, {"id": given.client_id, "now": now_us})
    row = tx.one(
        tx.sql.insert_fact,
        {**mine, "value": given.value, "source": given.source, "run_id": given.run_id, "by": given.by, "now": now_us},
    )
    assert row is not None  # an insert without a condition gives its row  # noqa: S101
    reason = f"{given.key} is known now: ready to go on"
    tx.run(tx.sql.wake_for_fact, {"client_id": given.client_id, "key": given.key, "reason": reason, "now": now_us})
    requiring.withdraw(tx, given.client_id, given.key, now_us)
    return Learned(version=row["version"], new=True)


def repeats(tx: Tx, given: Given, now_us: int) -> int | None:
    """The version of the fact that *given* only repeats; ``None`` when it is news. Changes nothing."""
    return _repeated(tx.all(tx.sql.fact_history, {"client_id": given.client_id, "key": given.key}), given, now_us)


def _repeated(rows: Sequence[Row], given: Given, now_us: int) -> int | None:
    found = rule.repeated([_said(row) for row in rows], _word(given), now_us)
    return None if found is None else found.version


def would_stand(tx: Tx, given: Given, now_us: int) -> tuple[bool, Fact]:
    """Whether *given* is news, and the fact as it stands once that is said. Changes nothing."""
    rows = tx.all(tx.sql.fact_history, {"client_id": given.client_id, "key": given.key})
    if _repeated(rows, given, now_us) is not None:
        return False, stands(given.client_id, rows, now_us)
    row = {
        "key": given.key, "version": rows[-1]["version"] + 1 if rows else 1, "value": given.value, "source": given.source,
        "run_id": given.run_id, "set_by": given.by, "set_us": now_us, "valid_until_us": given.until_us,
    }  # fmt: skip
    return True, stands(given.client_id, [*rows, row], now_us)


def standing(tx: Tx, client_id: str, key: str, now_us: int) -> Fact | None:
    """A fact as it stands, with what contradicts it; ``None`` if nothing was ever said."""
    rows = tx.all(tx.sql.fact_history, {"client_id": client_id, "key": key})
    return stands(client_id, rows, now_us) if rows else None


def all_standing(tx: Tx, client_id: str, now_us: int) -> list[Fact]:
    """Every fact about a client as it stands, by key; those that no longer hold, too."""
    by_key: dict[str, list[Row]] = {}
    for row in tx.all(tx.sql.facts_of_client, {"client_id": client_id}):
        by_key.setdefault(row["key"], []).append(row)
    return [stands(client_id, rows, now_us) for rows in by_key.values()]


def stands(client_id: str, rows: Sequence[Row], now_us: int) -> Fact:
    """The newest of all versions of one fact (oldest first), with what contradicts it."""
    versions = {row["version"]: fact_of(client_id, row) for row in rows}
    against = tuple(versions[one.version] for one in rule.conflicts([_said(row) for row in rows], now_us))
    return replace(versions[rows[-1]["version"]], conflicts=against)


def fact_of(client_id: str, row: Row) -> Fact:
    """A stored version as people see it."""
    return Fact(
        client_id=client_id, key=row["key"], value=from_canonical(row["value"]), version=row["version"], source=row["source"],
        run_id=row["run_id"], set_by=row["set_by"], set_us=row["set_us"], valid_until_us=row["valid_until_us"],
    )  # fmt: skip


def _word(given: Given) -> Said:
    return Said(version=0, value=_same_text(given.value), source=given.source, by=given.by)


def _said(row: Row) -> Said:
    return Said(
        version=row["version"], value=_same_text(row["value"]), source=row["source"], by=row["set_by"],
        until_us=row["valid_until_us"],
    )  # fmt: skip


def _same_text(text: str) -> str:
    """JSON text in the one form in which equal values are equal: answers are stored as they came."""
    return canonical(json.loads(text))


# -- whether anything may begin -------------------------------------------------------------------------------------------


def known(tx: Tx, client_id: str) -> Row:
    """The client's row.

    Raises:
        UnknownClient: nothing was ever run for it or said about it.
    """
    row = tx.one(tx.sql.client, {"id": client_id})
    if row is None:
        raise UnknownClient(client_id)
    return row


def pause(tx: Tx, client_id: str, *, reason: str | None, by: str | None, now_us: int) -> None:
    """Let nothing new begin for the client. Of a paused one: who and why is said anew.

    Raises:
        UnknownClient: there is none; a name mistyped must not look like a pause.
    """
    known(tx, client_id)
    note = json.dumps({"by": by, "reason": reason, "at_us": now_us}, ensure_ascii=False)
    tx.run(tx.sql.set_client_status, {"id": client_id, "status": ClientStatus.PAUSED.value, "note": note})


def unpause(tx: Tx, client_id: str, *, by: str | None, now_us: int) -> bool:
    """Let things begin again; whether it was paused. Who says so is kept, as who paused it was.

    Raises:
        UnknownClient: there is none.
    """
    was = bool(known(tx, client_id)["status"] == ClientStatus.PAUSED)
    if was:
        note = json.dumps({"unpaused_by": by, "at_us": now_us}, ensure_ascii=False)
        tx.run(tx.sql.set_client_status, {"id": client_id, "status": ClientStatus.ACTIVE.value, "note": note})
    return was


def paused(tx: Tx, client_id: str) -> str | None:
    """That the client is paused, by whom and why, in words: ``acme is paused (by ann: invoices are disputed)``."""
    row = tx.one(tx.sql.client, {"id": client_id})
    if row is None or row["status"] != ClientStatus.PAUSED:
        return None
    return pause_words(row)


def pause_words(row: Row) -> str:
    """The same of a paused client's row."""
    note = json.loads(row["note"] or "{}")
    by, reason = note.get("by"), note.get("reason")
    told = f"by {by}: {reason}" if by and reason else f"by {by}" if by else reason
    return f"{row['id']} is paused ({told})" if told else f"{row['id']} is paused"
