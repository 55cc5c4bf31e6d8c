"""What a token may know of: everything is looked up among its clients, so that another client's id is as good as none."""

from __future__ import annotations

from typing import Any

from stepseven.model import Page, RunInfo, RunStatus, WaitingFor
from stepseven.server.problems import Problem, invalid, not_found
from stepseven.server.routes import Desk
from stepseven.store.base import Row, Tx
from stepseven.store.codec import free_text, storable

MOST = 1000  #: in one page
USUAL = 100
_CURSOR = "cursor: use the `next` of the page before"
_DIGITS = 18  # a number with more does not fit into a row


def find_run(tx: Tx, desk: Desk, run_id: str) -> Row:
    """The run with this id, if it is of one of the token's clients.

    Raises:
        Problem: there is none.
    """
    row = tx.one(tx.sql.run_in_sight, {"id": run_id, "clients": desk.who.sight}) if storable(run_id) else None
    if row is None or desk.who.run_no not in (None, row["no"]):  # who executes one run knows no other
        raise not_found("run", run_id)
    desk.client_id = row["client_id"]
    return row


async def run(desk: Desk, run_id: str) -> Row:
    """The same, in a snapshot of its own."""
    return await desk.layer.store.read(lambda tx: find_run(tx, desk, run_id))


async def question(desk: Desk, question_id: str) -> Row:
    """The question with this id, if it is of one of the token's clients; with its run's ``run_id``, ``external``, ``token_id``.

    Raises:
        Problem: there is none; it says which are open.
    """

    def unit(tx: Tx) -> Row:
        row = tx.one(tx.sql.question_in_sight, {"id": question_id, "clients": desk.who.sight}) if storable(question_id) else None
        if row is None:
            ids = [one["id"] for one in tx.all(tx.sql.open_in_sight, {"clients": desk.who.sight})]
            told = f"open are: {', '.join(ids)}" if ids else "no question is open"
            raise Problem(404, "not_found", f"there is no question {free_text(question_id, 200)}; {told}", open=ids)
        return row

    row = await desk.layer.store.read(unit)
    desk.client_id = row["client_id"]
    return row


def client(desk: Desk, client_id: str) -> str:
    """A client of the token's; whether anything is known of it is another matter.

    Raises:
        Problem: it is none of them.
    """
    if not desk.who.knows(client_id):
        raise not_found("client", client_id)
    desk.client_id = client_id
    return client_id


# -- pages ------------------------------------------------------------------------------------------------------------------


def number(cursor: str | None) -> int:
    """Where a page of runs goes on.

    Raises:
        Problem: that is no cursor.
    """
    if cursor is None:
        return 1 << 62
    if not _counts(cursor):
        raise invalid(_CURSOR)
    return int(cursor)


def moment(cursor: str | None) -> tuple[int, str]:
    """Where a page of questions goes on.

    Raises:
        Problem: that is no cursor.
    """
    at, colon, last = (cursor if cursor is not None else "0:").partition(":")
    if not colon or not _counts(at) or not storable(last):
        raise invalid(_CURSOR)
    return int(at), last


def _counts(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


async def runs_page(desk: Desk, *, limit: int, cursor: str | None, **which: str | None) -> Page[RunInfo]:
    """Runs, newest first. *which*: ``client_id``, ``workflow``, ``status``."""
    params: dict[str, Any] = {**which, "clients": desk.who.sight, "limit": limit + 1, "before": number(cursor)}
    if not storable(*which.values()):
        return Page([], None)
    rows = await desk.layer.store.read(lambda tx: tx.all(tx.sql.runs_in_sight, params))
    more = str(rows[limit - 1]["no"]) if len(rows) > limit else None
    return Page([_info(row) for row in rows[:limit]], more)


def _info(row: Row) -> RunInfo:
    return RunInfo(
        run_id=row["run_id"], client_id=row["client_id"], workflow=row["workflow"], status=RunStatus(row["status"]),
        waiting_for=WaitingFor(row["waiting_for"]) if row["waiting_for"] else None,
        open_questions_count=row["open_questions_count"], goal=row["goal"], updated_us=row["updated_us"],
    )  # fmt: skip


async def questions_page(desk: Desk, *, limit: int, cursor: str | None, **which: str | None) -> tuple[list[Row], str | None]:
    """Questions, oldest first, and where the next page begins. *which*: ``client_id``, ``run_id``, ``status``."""
    after_us, after_id = moment(cursor)
    params: dict[str, Any] = {**which, "clients": desk.who.sight, "limit": limit + 1, "after_us": after_us, "after_id": after_id}
    if not storable(*which.values()):
        return [], None
    rows = await desk.layer.store.read(lambda tx: tx.all(tx.sql.questions_in_sight, params))
    last = rows[limit - 1] if len(rows) > limit else None
    return rows[:limit], f"{last['created_us']}:{last['id']}" if last is not None else None
