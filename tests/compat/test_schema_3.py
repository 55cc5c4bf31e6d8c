"""Schema 3: older files are brought to it by ``stepseven migrate`` and by nothing else, and its own are opened as they are."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stepseven import SchemaMismatch, testing
from stepseven.__main__ import main
from stepseven.layer import open_store
from stepseven.store.migrate import migrations
from tests.compat.fixtures import make_schema_3 as three
from tests.runs import tools

FIXTURES = Path(three.__file__).parent
NEWEST = migrations("sqlite")[-1][0]


def schema_of(path: Path) -> tuple[int, list[Any]]:
    """The number in a file's header, and every table, index and view as it was declared."""
    with closing(sqlite3.connect(path)) as connection:
        (number,) = connection.execute("PRAGMA user_version").fetchone()
        return number, connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()


@pytest.fixture(params=[1, 2])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[int, Path]:
    """A copy of a database that an older release wrote."""
    shutil.copy(FIXTURES / f"schema-{request.param}.db", tmp_path / "s.db")
    return request.param, tmp_path / "s.db"


def test_an_older_file_is_refused_as_it_is(old: tuple[int, Path]) -> None:
    """Opening an older file says which schema it has and what to do, and changes nothing."""
    number, path = old
    before = path.read_bytes()
    with pytest.raises(SchemaMismatch, match="stepseven migrate") as refused:
        open_store(f"sqlite:///{path}")
    assert str(number) in str(refused.value)
    assert path.read_bytes() == before


def test_migrate_brings_it_to_this_schema(old: tuple[int, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """``stepseven migrate`` brings an older file to this version's schema; a second time it finds nothing to do."""
    _, path = old
    for _ in range(2):
        assert main(["migrate", "--store", f"sqlite:///{path}"]) == 0
        assert f"schema {NEWEST}" in capsys.readouterr().out
    open_store(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT schema_no, epoch, restored_us FROM store").fetchall() == [(NEWEST, 1, None)]
        assert connection.execute("SELECT DISTINCT epoch FROM run").fetchall() == [(1,)]


def test_an_upgraded_file_is_like_a_new_one(old: tuple[int, Path], tmp_path: Path) -> None:
    """Tables, columns, indexes and views of an upgraded file are those of a fresh one."""
    _, path = old
    open_store(f"sqlite:///{path}", upgrade=True).close()
    open_store(f"sqlite:///{tmp_path}/new.db").close()
    assert schema_of(path) == schema_of(tmp_path / "new.db")


def test_an_upgrade_that_breaks_off_leaves_the_file_as_it_was(old: tuple[int, Path]) -> None:
    """All migrations are one transaction: the last one fails, and nothing of those before it is left."""
    _, path = old
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE run ADD COLUMN epoch INTEGER")  # so that schema 3 cannot be made
    before = schema_of(path)
    with pytest.raises(Exception, match="epoch"):
        open_store(f"sqlite:///{path}", upgrade=True)
    assert schema_of(path) == before


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A copy of the database of schema 3, brought to this version's schema where that is newer."""
    shutil.copy(FIXTURES / "schema-3.db", tmp_path / "s.db")
    three.calls.clear()
    tools.only_these(monkeypatch, three.orders)
    open_store(f"sqlite:///{tmp_path}/s.db", upgrade=True).close()
    return f"sqlite:///{tmp_path}/s.db"


async def test_its_epochs_count(url: str) -> None:
    """A run from before a restored backup asks before it ships, one from after it does not, and nothing recorded runs again."""
    async with testing.layer(url, seed=1) as layer:
        assert (await layer.resume("done-1")).result() == [3, "yes", "parcel 1"]
        for run in ("old-1", "new-1"):
            (asked,) = await layer.questions(run_id=run)
            await layer.answer(asked.id, "yes", by="ann")
        assert (await layer.resume("new-1")).result() == [3, "yes", "parcel 3"]
        (question,) = (await layer.resume("old-1")).questions
        assert question.kind == "unknown_outcome"
        await layer.answer(question.id, {"choice": "happened", "receipt": "parcel 2"}, by="ann")
        assert (await layer.resume("old-1")).result() == [3, "yes", "parcel 2"]
        assert three.calls == [("ship", "3")]


async def test_its_queued_run_is_taken(url: str) -> None:
    """A run that only waited for a worker is executed from its beginning."""
    async with testing.layer(url, seed=1) as layer:
        assert [q.text for q in (await layer.resume("queued-1")).questions] == ["Ship it?"]
        assert three.calls == [("count", "a")]
