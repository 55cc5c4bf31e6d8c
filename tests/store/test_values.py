"""Rows as bare values: what a run's records are made of when there are very many."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from stepseven.layer import open_store
from stepseven.store.base import Tx
from stepseven.store.dialect import POSTGRES, SQLITE, Dialect
from stepseven.store.statements import statements
from stepseven.transitions.state import Record
from tests.servers import databases

#: More and fewer rows than PostgreSQL's driver is asked to read at once, of every kind of value that is kept.
MANY = """WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < {rows})
    SELECT CAST(n AS bigint) AS n, CASE WHEN n % 3 = 0 THEN NULL ELSE 'tëxt ' || n END AS text, n % 2 = 0 AS even,
        CAST(CASE WHEN n % 2 = 0 THEN 9007199254740993 END AS bigint) AS large {more} FROM t ORDER BY n"""


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES], ids=["sqlite", "postgres"])
def test_a_record_is_made_of_the_columns_in_their_order(dialect: Dialect) -> None:
    """``Statements.steps`` gives exactly a record's fields, in their order, but the last: that the code has asked for it."""
    columns = statements(dialect).steps.partition("SELECT")[2].partition("FROM")[0].split(",")
    assert [name.strip() for name in columns] == [f.name for f in fields(Record)][:-1]
    assert fields(Record)[-1].name == "used"


@pytest.mark.parametrize("more", ["", ", CAST(n AS numeric) AS whole"], ids=["plain", "mixed"])
@pytest.mark.parametrize("rows", [1, 300])
def test_bare_values_are_those_of_the_rows(tmp_path: Path, rows: int, more: str) -> None:
    """However many there are: the same values of the same types, in the order of the columns, as the rows have by name."""
    store = open_store(databases.url(tmp_path))
    try:
        statement = MANY.format(rows=rows, more=more)

        def read(tx: Tx) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
            found = [dict(row) for row in tx.all(statement, {})]
            assert len(found) == rows
            return [tuple(row.values()) for row in found], [tuple(values) for values in tx.values(statement, {})]

        by_name, bare = store.read_now(read)
    finally:
        store.close()
    assert bare == by_name
    assert [[type(v) for v in row] for row in bare] == [[type(v) for v in row] for row in by_name]
    expected = [
        (n, None if n % 3 == 0 else f"tëxt {n}", int(n % 2 == 0), 2**53 + 1 if n % 2 == 0 else None) for n in range(1, rows + 1)
    ]
    assert [row[:4] for row in bare] == expected
