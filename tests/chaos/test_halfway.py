"""A write that is not yet committed, and somebody who takes its run over: only one of them can be first. On PostgreSQL."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from stepseven.store.base import Tx
from stepseven.store.dialect import POSTGRES
from stepseven.store.statements import SEQ_BITS, Statements, statements
from stepseven.transitions import effects, steps
from stepseven.transitions.state import Hold, Record, steps_range
from tests.chaos.desk import NOW_US, Everyone, intent
from tests.chaos.late import begins_recovery, claimed_and_settled
from tests.chaos.scene import FAILED_TRY, Scene, Stores, at_work, kept_database, map_of
from tests.servers.programs import until


def _halfway(s: Scene, act: Callable[[Tx, Hold], object]) -> None:
    """An owner has written and is about to commit when somebody takes its run over: only one of them can be first."""
    hold = at_work(s)
    written, go = threading.Event(), threading.Event()

    def unit(tx: Tx) -> None:
        act(tx, hold)
        written.set()
        assert go.wait(20)

    owner = threading.Thread(target=s.a.write, args=(unit,))
    taker = threading.Thread(target=lambda: s.taken(s.b))
    s.b.whose = None  # a worker takes runs of all clients, and so has the lock of none
    owner.start()
    assert written.wait(20)
    taker.start()
    until(lambda: not taker.is_alive() or _waits(s.a.store.url), "the taker is through, or waits")
    seen = _all_of(s) if not taker.is_alive() else None
    go.set()
    owner.join(20)
    taker.join(20)
    s.expect(_all_of(s), seen or _all_of(s), "what the new owner found, and what was there afterwards")


def _waits(url: str) -> bool:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return connection.execute(waiting).fetchone() is not None


def _all_of(s: Scene) -> list[Any]:
    """What is on record of the run."""
    no = {"run_no": s.no}

    def unit(tx: Tx) -> list[Any]:
        sql = tx.sql
        found = [
            tx.all(sql.steps, steps_range(s.no)),
            *(tx.all(t, no) for t in (sql.attempts, sql.effects, sql.questions_of_run, sql.recoveries_of_run)),
        ]
        return [[dict(row) for row in rows] for rows in found]

    return s.ann.store.read_now(unit)


def _tries(tx: Tx, hold: Hold) -> None:
    row = {"branch": "", "name": "look", "key": "k", "n": 1, "approach": None, "inputs": None, "source_digest": None, "usd": None}
    steps.begin_attempt(tx, hold, row, NOW_US)


HALFWAY: dict[str, Callable[[Tx, Hold], object]] = {
    "append_read": lambda tx, hold: steps.append(tx, hold, _read_of(hold), now_us=NOW_US),
    "append_step": lambda tx, hold: steps.append(tx, hold, replace(_read_of(hold), inputs="digest"), now_us=NOW_US),
    "begin_attempt": _tries,
    "finish_map": lambda tx, hold: steps.update_map(tx, hold, replace(map_of(hold), result="1"), NOW_US),
    "begin_recovery": begins_recovery,
    "guard_run": lambda tx, hold: steps.end_attempt(tx, hold, FAILED_TRY, NOW_US),
    "claim_new": lambda tx, hold: (effects.claim_new(tx, hold, intent("k1"), "c_1", NOW_US), tx.one(tx.sql.store, {})),
    "append_settled": lambda tx, hold: (claimed_and_settled(tx, hold), tx.one(tx.sql.store, {})),
    "guard_effect": lambda tx, hold: effects.claim(tx, hold, intent("k1"), "c_1", NOW_US, proven_dead=Everyone()),
}


def _read_of(hold: Hold) -> Record:
    return replace(map_of(hold), id=hold.run_no << SEQ_BITS | 2, name="look", key="r")


@pytest.fixture(scope="module")
def stores() -> Iterator[Stores]:
    """Stores on one database."""
    with kept_database("halfway") as url:
        made = Stores(url)
        yield made
        made.close()


@pytest.mark.postgres
@pytest.mark.parametrize("name", HALFWAY)
def test_what_is_not_committed_keeps_its_run(name: str, stores: Stores) -> None:
    """While a write is not committed nobody takes its run over: else the new owner would begin without it."""
    for held in (True, False):
        s = stores.scene()
        if not held:
            s.weaken(name, r"FOR SHARE(?: OF r)?", by="")
        _halfway(s, HALFWAY[name])
        assert (s.wrong == []) is held, s.wrong


@pytest.mark.postgres
def test_every_statement_that_holds_its_run_is_tried() -> None:
    """The list above is whole."""
    sql = statements(POSTGRES)
    holding = {
        field.name for field in fields(Statements) if re.search(r"fence = .*FOR SHARE", getattr(sql, field.name), re.DOTALL)
    }
    assert {name.removesuffix("_free").removesuffix("_alone") for name in holding} == set(HALFWAY)
