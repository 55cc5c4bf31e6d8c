"""What stands in databases and in other people's systems is pinned: a change here breaks what is stored, so it must not be made.

A new release may add; it never renames, removes or reshapes. (A new schema gets a file of its own beside ``schema-1.txt``.)
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from uuid import UUID

import pytest

from stepseven import Secret, model
from stepseven.keys import wire_key
from stepseven.store.codec import canonical, digest
from stepseven.store.migrate import APPLICATION_ID, migrations
from stepseven.store.sqlite import SqliteStore
from stepseven.store.statements import SEQ_BITS

FIXTURES = Path(__file__).with_name("fixtures")


def columns_of(tmp_path: Path) -> list[str]:
    """``table: column, column`` of a fresh store."""
    SqliteStore(f"sqlite:///{tmp_path}/s.db", f"{tmp_path}/s.db").close()
    connection = sqlite3.connect(tmp_path / "s.db")
    query = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' ORDER BY name"
    lines = []
    for (name,) in connection.execute(query).fetchall():
        lines.append(f"{name}: " + ", ".join(row[1] for row in connection.execute(f"PRAGMA table_xinfo({name})")))
    return lines


def test_tables_and_columns(tmp_path: Path) -> None:
    """Every table and column of the newest schema, in its order, is as released."""
    newest = migrations("sqlite")[-1][0]
    assert columns_of(tmp_path) == (FIXTURES / f"schema-{newest}.txt").read_text("utf-8").splitlines()


def test_nothing_released_is_gone(tmp_path: Path) -> None:
    """A newer schema only adds: every table of schema 1 is there, and begins with the columns it had."""
    now = dict(line.split(": ") for line in columns_of(tmp_path))
    for line in (FIXTURES / "schema-1.txt").read_text("utf-8").splitlines():
        table, columns = line.split(": ")
        assert now[table].startswith(columns), table


def test_file_is_marked() -> None:
    """A store's file is known by its application id, and the first schema is 1."""
    assert APPLICATION_ID == 0x53544537
    assert migrations("sqlite")[0][0] == 1
    assert SEQ_BITS == 24


@pytest.mark.parametrize(
    "enum, values",
    [
        (model.RunStatus, "queued running waiting cancelling failing done failed cancelled"),
        (model.WaitingFor, "person timer child effect circuit event"),
        (model.ClientStatus, "active paused"),
        (model.StepState, "begun done failed skipped"),
        (model.AttemptOutcome, "failed deferred interrupted unknown"),
        (model.FailureKind, "retryable fixable fatal"),
        (model.EffectKind, "read write irreversible"),
        (model.EffectState, "claimed done refused unknown"),
        (model.QuestionKind, "ask required failure batch poison unknown_outcome conflict approve undo limit drift code"),
        (model.QuestionStatus, "open answered expired withdrawn"),
    ],
)
def test_enum_values(enum: type[StrEnum], values: str) -> None:
    """The enum's stored values are as released."""
    assert " ".join(member.value for member in enum) == values


@pytest.mark.parametrize(
    "data, name",
    [
        ("", "1YFztceLuULkJU-cIAIVCmA"),
        ("a", "1OYHyGLbNsJMk30ko00M-TA"),
        ('{"a":1}', "1-K5GBu6IJ9CjPx7QQD6g3Q"),
        (b"\x00\xff", "1WMHhtb01niWjsnvvdG60ow"),
    ],
)
def test_digest(data: str | bytes, name: str) -> None:
    """A digest is the same on every machine and in every release: records are found by it."""
    assert digest(data) == name


def test_canonical_inputs() -> None:
    """Inputs have one text, the same in every release: their digest is a record's key."""
    value = {
        "b": [1, 1.0, True, None, "é"],
        "a": {
            "d": date(2026, 1, 5), "t": datetime(2026, 1, 5, 9, tzinfo=UTC), "m": Decimal("1.10"), "u": UUID(int=5),
            "y": b"\x00\x01", "k": Secret("API_KEY"),
        },
        "s": {3, 1, 2},
        "t": (1, 2),
    }  # fmt: skip
    assert canonical(value) == (
        '{"a":{"d":"2026-01-05","k":{"$secret":"API_KEY"},"m":"1.10","t":"2026-01-05T09:00:00+00:00",'
        '"u":"00000000-0000-0000-0000-000000000005","y":{"$bytes":"AAE="}},"b":[1,1.0,true,null,"é"],'
        '"s":{"$set":[1,2,3]},"t":[1,2]}'
    )


@pytest.mark.parametrize(
    "parts, key",
    [
        (("r1", "post", "acme/Q3", 1), "r1/post/acme/Q3"),
        (("r1", "post", "acme/Q3", 2), "r1/post/acme/Q3#2"),
        (("r1", "post", "é", 1), "r1/post/_~1Nzwxq0uZnR5gNPSh_rwSmg"),
        (("r" * 200, "post", "x" * 200, 1), "r" * 200 + "/post/" + "x" * 25 + "~1RJr1j_1kFyb9R97UtqHoyQ"),
    ],
)
def test_wire_key(parts: tuple[str, str, str, int], key: str) -> None:
    """The idempotency key that the other side knows an effect by never changes its form: a changed one would do it twice."""
    assert wire_key(*parts) == key
    assert len(key) <= 255
    assert key.isascii()
