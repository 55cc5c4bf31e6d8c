"""Every statement is known to the database, and the hot ones never read more than they need."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from typing import Any

import psycopg
import pytest
from psycopg.pq import ExecStatus

from stepseven.store.dialect import POSTGRES, SQLITE
from stepseven.store.sqlite import SqliteStore
from stepseven.store.statements import Statements, statements

SQL = statements(SQLITE)
NAMES = [f.name for f in fields(Statements)]

#: Statements that may read a whole table, and why that is no harm.
MAY_SCAN = {
    "workers": "one row per living worker",
    "store": "one row",
    "sizes": "`doctor` counts everything; it is asked by a person",
    "promised": "`doctor` counts everything; it is asked by a person",
    "client_spend": "a client's runs of one day, through their index",
    "runs_page": "a page, newest first: it stops at its limit",
    "questions_page": "a page, oldest first: it stops at its limit",
    "runs_in_sight": "the same for a token's clients",
    "questions_in_sight": "the same for a token's clients",
    "open_in_sight": "through the index of open questions",
    "workflow_known": "the newest thousand runs",
    "open_question_ids": "through the index of open questions",
    "incidents_of_client": "few rows, when a client's data is handed over",
    "incidents_page": "incidents are few, and their questions have an index that holds nothing else",
    "drop_worker": "once in a worker's life, at its end",
    "answer_folded": "the few open questions, once per answer",
    "let_go_runs": "every run that has not ended, once after a backup was restored",
    "let_go_claims": "the claims of those, once after a backup was restored",
    "forget_incidents": "few rows, once in a client's life",
    "due_queued": "the runs that are ready, through an index that holds nothing else",
    "due_stopping": "the runs that are ending, through an index that holds nothing else",
    "due": "those of the two above: it stops at the first",
    "vanished": "the runs that are executed now, through an index that holds nothing else",
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
        ("due_queued", "SCAN r USING INDEX run_queued"),
        ("due_stopping", "SCAN r USING INDEX run_stopping"),
        ("due_timers", "SEARCH r USING INDEX run_wake (wake_us<?)"),
        ("due_left", "SEARCH r USING INDEX run_owner (owner=?)"),
        ("attempts", "SEARCH attempt USING INDEX"),
        ("effects", "SEARCH effect USING INDEX effect_run (run_no=?)"),
        ("questions_of_run", "SEARCH question USING INDEX"),
        ("settle_claim", "SEARCH effect USING INDEX"),
        ("run_by_id", "SEARCH run USING INDEX"),
        ("owned_runs", "SEARCH run USING INDEX run_owner"),
        ("lately_ended", "SEARCH run USING INTEGER PRIMARY KEY (rowid>?)"),
        ("lately_ended_of_client", "SEARCH run USING INDEX run_client (client_id=? AND workflow=?)"),
        ("priced_steps", "SEARCH step USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("priced_tries", "SEARCH attempt USING INDEX sqlite_autoindex_attempt_1 (run_no=?)"),
        ("child_times", "SEARCH run USING INDEX run_parent (parent_no=?)"),
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


# -- the same on PostgreSQL -----------------------------------------------------------------------------------------------------

TYPES = {20: "1", 23: "1", 25: "'x'", 114: "'[]'"}  #: what a plan is asked for with, by the type the server gives a parameter
NUMERIC = 1700  #: the type of which drivers make a `Decimal`
#: Indexes that hold only the few rows that are under way: reading all of one is what it is for.
FEW = {"run_queued", "run_stopping", "run_wake", "run_owner", "run_unended", "question_open", "effect_undo"}
#: Where the planner may join the children of the few that are being stopped from either side, as it finds cheaper.
EITHER_SIDE = {"due", "due_stopping"}


#: A few thousand runs, nearly all of them ended, as in a store that is in use: plans follow what is there.
FILLED = """
    INSERT INTO stepseven.client (id, created_us) SELECT 'c' || n, n FROM generate_series(1, 500) AS n;
    INSERT INTO stepseven.fact (client_id, key, version, value, set_us)
        SELECT 'c' || c, 'k' || k, 1, '1', c FROM generate_series(1, 500) AS c, generate_series(1, 10) AS k;
    INSERT INTO stepseven.run (id, client_id, workflow, status, owner, parent_no, inputs, created_us, updated_us, ended_us,
            wake_us)
        SELECT 'r' || n, 'c' || n % 500 + 1, 'w' || n % 8, CASE n % 400 WHEN 0 THEN 'queued' WHEN 1 THEN 'running' WHEN 2 THEN
            'waiting' WHEN 3 THEN 'cancelling' ELSE 'done' END, CASE WHEN n % 400 = 1 THEN 'w' || n END,
            CASE WHEN n % 10 = 9 THEN n - 1 END, '{}', n, n, CASE WHEN n % 400 > 3 THEN n END, CASE WHEN n % 400 = 2 THEN n END
        FROM generate_series(1, 8000) AS n;
    INSERT INTO stepseven.step (id, branch, name, key, generation, state, started_us)
        SELECT (CAST(r AS bigint) << 24) + s, '', 's', 'k' || s, 1, 'done', r
        FROM generate_series(1, 8000) AS r, generate_series(1, 5) AS s;
    INSERT INTO stepseven.attempt (run_no, branch, name, key, n, started_us)
        SELECT r, '', 's', 'k', 1, r FROM generate_series(1, 8000) AS r;
    INSERT INTO stepseven.effect (scope, scope_id, name, key, generation, claim_id, state, inputs, run_no, step, fence, client_id,
            claimed_us, gate_until_us)
        SELECT 'run', 'r' || r, 's', 'k', 1, 'e' || r, 'done', '{}', r, 's', 1, 'c' || r % 500 + 1, r, r
        FROM generate_series(1, 8000) AS r;
    INSERT INTO stepseven.question (id, run_no, client_id, branch, key, n, kind, text, options, context, asked_seq, status,
            created_us)
        SELECT 'q' || r, r, 'c' || r % 500 + 1, '', 'k', 1, 'ask', '?', '[]', '{}', 1,
            CASE WHEN r % 100 = 0 THEN 'open' ELSE 'answered' END, r FROM generate_series(1, 8000) AS r;
    INSERT INTO stepseven.artifact (hash, size, created_us) SELECT 'h' || n, 1, n FROM generate_series(1, 4000) AS n;
    ANALYZE;
"""


@pytest.fixture
def planner(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a filled PostgreSQL store that never looks through a table if there is another way."""
    with closing(psycopg.connect(postgres_url, autocommit=True)) as connection:
        connection.execute(FILLED.encode())
        connection.execute("SET enable_seqscan = off")
        yield connection


def prepared(connection: psycopg.Connection[Any], text: str) -> tuple[str, list[int]]:
    """The statement with ``$1``, and the types the server finds for parameters that say none."""
    places: dict[str, int] = {}

    def place(match: re.Match[str]) -> str:
        name = match[1] or f"by position {len(places)}"
        return f"${places.setdefault(name, len(places) + 1)}"

    text = re.sub(r"%(?:\((\w+)\))?s", place, text)
    made = connection.pgconn.prepare(b"", text.encode())
    assert made.status == ExecStatus.COMMAND_OK, made.error_message.decode()
    told = connection.pgconn.describe_prepared(b"")
    return text, [told.param_type(n) for n in range(told.nparams)]


@pytest.mark.postgres
def test_statements_are_understood_by_postgres(planner: psycopg.Connection[Any]) -> None:
    """It knows every table and column, and each parameter's type without being told; no answer is a decimal."""
    for name in NAMES:
        prepared(planner, getattr(statements(POSTGRES), name))
        told = planner.pgconn.describe_prepared(b"")
        assert NUMERIC not in {told.ftype(n) for n in range(told.nfields)}, name


@pytest.mark.postgres
def test_no_statement_looks_through_a_large_table_of_postgres(planner: psycopg.Connection[Any]) -> None:
    """The same holds there: every large table is entered through a condition on one of its indexes."""
    strange = {name: found for name in NAMES if name not in MAY_SCAN and (found := whole_tables(planner, name))}
    assert not strange.keys() - EITHER_SIDE, strange


def whole_tables(planner: psycopg.Connection[Any], name: str) -> list[str]:
    """What a statement reads without a condition on an index, though it grows with the work."""
    text, types = prepared(planner, getattr(statements(POSTGRES), name))
    text = re.sub(r"\$(\d+)", lambda m: TYPES[types[int(m[1]) - 1]], text)
    row = planner.execute(f"EXPLAIN (FORMAT json) {text}".encode()).fetchone()
    assert row is not None
    return [
        f"{node['Node Type']} {node.get('Relation Name', '')} {node.get('Index Name', '')}"
        for node in nodes(row[0][0]["Plan"])
        if (node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE)
        or ("Index Name" in node and "Index Cond" not in node and node["Index Name"] not in FEW and of_large(node))
    ]


def of_large(node: dict[str, Any]) -> bool:
    """Whether an index belongs to a table that grows with the work: it is named after it."""
    return node["Index Name"].partition("_")[0] in LARGE


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)
