"""Every statement is known to the database, and the hot ones never read more than they need."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import fields

import pytest

from stepseven.store.dialect import SQLITE
from stepseven.store.sqlite import SqliteStore
from stepseven.store.statements import Statements, statements

SQL = statements(SQLITE)
NAMES = [f.name for f in fields(Statements)]

#: Statements that may read a whole table, and why that is no harm.
MAY_SCAN = {
    "workers": "one row per living worker",
    "store": "one row",
    "sizes": "`doctor` counts everything; it is asked by a person",
    "client_spend": "a client's runs of one day, through their index",
    "runs_page": "a page, newest first: it stops at its limit",
    "questions_page": "a page, oldest first: it stops at its limit",
    "open_question_ids": "through the index of open questions",
    "drop_worker": "once in a worker's life, at its end",
    "answer_folded": "the few open questions, once per answer",
    "forget_incidents": "few rows, once in a client's life",
}
#: Tables that grow with the work. Within them a run's rows are found by key or index, never by looking through them all.
LARGE = {"run", "step", "effect", "attempt", "question", "fact", "artifact", "client"}


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> sqlite3.Connection:
    """A connection to an empty store."""
    path = tmp_path_factory.mktemp("explain") / "s.db"
    SqliteStore(f"sqlite:///{path}", str(path)).close()
    return sqlite3.connect(path)


def explained(connection: sqlite3.Connection, text: str) -> list[str]:
    """The database's plan for *text*, every parameter NULL."""
    named = dict.fromkeys(re.findall(r":([a-z_]+)", text))
    values: object = named or (None,) * text.count("?")
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", values)]


@pytest.mark.parametrize("name", NAMES)
def test_statement_is_understood(connection: sqlite3.Connection, name: str) -> None:
    """The database knows every table and column the statement names."""
    text = getattr(SQL, name)
    named = dict.fromkeys(re.findall(r":([a-z_]+)", text))
    assert connection.execute(f"EXPLAIN {text}", named or (None,) * text.count("?")).fetchall()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in MAY_SCAN])
def test_no_statement_looks_through_a_large_table(connection: sqlite3.Connection, name: str) -> None:
    """A run's rows are found by rowid or index however many runs there are; those that may scan are listed with the reason."""
    plan = explained(connection, getattr(SQL, name))
    scans = [line for line in plan if line.startswith("SCAN ") and line.split()[1] in LARGE | {"r", "q", "e", "f", "g"}]
    assert not scans, plan


@pytest.mark.parametrize(
    "name, how",
    [
        ("steps", "SEARCH step USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("append_read", "SEARCH run USING INTEGER PRIMARY KEY (rowid=?)"),
        ("append_step", "SEARCH run USING INTEGER PRIMARY KEY (rowid=?)"),
        ("guard_run", "SEARCH run USING INTEGER PRIMARY KEY (rowid=?)"),
        ("attempts", "SEARCH attempt USING INDEX"),
        ("effects", "SEARCH effect USING INDEX effect_run (run_no=?)"),
        ("questions_of_run", "SEARCH question USING INDEX"),
        ("settle_claim", "SEARCH effect USING INDEX"),
        ("run_by_id", "SEARCH run USING INDEX"),
        ("owned_runs", "SEARCH run USING INDEX run_owner"),
    ],
)
def test_hot_statement_uses_its_index(connection: sqlite3.Connection, name: str, how: str) -> None:
    """What runs per step, per take and per beat reads one range, by the key meant for it."""
    plan = explained(connection, getattr(SQL, name))
    assert any(line.startswith(how) for line in plan), plan


def test_checkpoint_of_one_run_reads_one_run(connection: sqlite3.Connection) -> None:
    """The view's document is made from that run's rows alone."""
    plan = explained(connection, SQL.checkpoint)
    assert not [line for line in plan if re.match(r"SCAN (run|step|attempt|question)\b", line)], plan
