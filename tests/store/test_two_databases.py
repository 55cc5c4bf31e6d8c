"""Whatever is kept comes back alike from SQLite and from PostgreSQL: values, order, the checkpoint, and what is refused."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stepseven import Layer, Run, step, testing, workflow
from stepseven.errors import UnknownQuestion, UnknownRun
from stepseven.layer import open_store
from stepseven.store.base import Store
from stepseven.store.dialect import POSTGRES, SQLITE
from stepseven.store.statements import Statements, statements
from tests.servers import databases
from tests.store import both

pytestmark = pytest.mark.postgres


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind, one after the other."""
    return f"sqlite:///{tmp_path / 's7.db'}" if request.param == "sqlite" else databases.new_database("two")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """The same, open."""
    opened = open_store(url)
    yield opened
    opened.close()


# -- the tables -----------------------------------------------------------------------------------------------------------------


def test_tables_are_the_same(tmp_path: Path, postgres_url: str) -> None:
    """Every table, column, uniqueness, obligation and index that is in one is in the other, but for what SQLite's rowid tells."""
    with closing(sqlite3.connect(both.empty(tmp_path / "s.db"))) as db, psycopg.connect(postgres_url) as pg:
        there = _postgres_shape(pg)
        there["effect"].remove(("arrival", "integer", True))
        assert _sqlite_shape(db) == there


def _sqlite_shape(db: sqlite3.Connection) -> dict[str, Any]:
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")]
    shape: dict[str, Any] = {}
    for table in tables:
        columns = db.execute('SELECT name, type, "notnull" OR pk, pk FROM pragma_table_xinfo(?)', (table,)).fetchall()
        # Computed columns are virtual here and stored there, and said to be nullable here.
        shape[table] = {(name, {"TEXT": "text"}.get(kind, "integer"), bool(need)) for name, kind, need, _ in columns}
        keys = set()
        for index, unique, origin in db.execute('SELECT name, "unique", origin FROM pragma_index_list(?)', (table,)):
            on = tuple(name for (name,) in db.execute("SELECT name FROM pragma_index_info(?)", (index,)))
            keys.add((on, bool(unique), None if origin != "c" else index))
        rowid = tuple(name for name, *_, pk in columns if pk)  # a key that is the rowid is no index
        if rowid and ("pk",) not in db.execute("SELECT origin FROM pragma_index_list(?)", (table,)).fetchall():
            keys.add((rowid, True, None))
        shape[f"{table} keys"] = keys
    return shape


def _postgres_shape(pg: psycopg.Connection[Any]) -> dict[str, Any]:
    shape: dict[str, Any] = {}
    for table, name, kind, nullable in pg.execute(
        "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns "
        "WHERE table_schema = 'stepseven' AND table_name <> 'checkpoint'"
    ).fetchall():
        shape.setdefault(table, set()).add((name, {"text": "text"}.get(kind, "integer"), nullable == "NO"))
    for table, index, unique, constraint, columns in pg.execute(
        """SELECT t.relname, i.relname, x.indisunique, EXISTS (SELECT 1 FROM pg_constraint AS c WHERE c.conindid = x.indexrelid),
            ARRAY(SELECT a.attname FROM unnest(x.indkey) WITH ORDINALITY AS k(no, at) JOIN pg_attribute AS a
                  ON a.attrelid = t.oid AND a.attnum = k.no ORDER BY k.at)
        FROM pg_index AS x JOIN pg_class AS i ON i.oid = x.indexrelid JOIN pg_class AS t ON t.oid = x.indrelid
        WHERE t.relnamespace = 'stepseven'::regnamespace"""
    ).fetchall():
        shape.setdefault(f"{table} keys", set()).add((tuple(columns), unique, None if constraint else index))
    return shape


# -- the checkpoint -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_checkpoints_are_the_same(tmp_path: Path, postgres_url: str, seed: int) -> None:
    """Of the same rows both make the same document: the same keys, the same cuts, the same marks, at most 64 KiB."""
    path = both.empty(tmp_path / "s.db")
    both.fill(path, seed)
    both.copy(path, postgres_url)
    columns = "run_id, client_id, workflow, status, waiting_for, open_questions_count, goal, updated_us"
    with closing(sqlite3.connect(path)) as db, psycopg.connect(postgres_url) as pg:
        query = f"SELECT {columns}, CAST(document AS text) FROM {{}}checkpoint ORDER BY run_id"
        ours = db.execute(query.format("")).fetchall()
        theirs = pg.execute(query.format("stepseven.").encode()).fetchall()
    assert [row[:-1] for row in ours] == [row[:-1] for row in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert _documents(mine[-1]) == _documents(other[-1]), mine[0]
    sizes = [len(row[-1].encode()) for row in theirs]
    assert max(sizes) <= 65536
    assert any('"inputs":{"…":"cut"}' in row[-1] for row in theirs)  # some were too large
    assert any('"cut"' in row[-1] and '"inputs":{"…":"cut"}' not in row[-1] for row in theirs)  # some have too much of one kind


def _documents(text: str) -> Any:
    """A document as it is meant: numbers as they were written, twice the same key as it is."""
    money = re.sub(r'"usd":[^,]*', lambda m: f'"usd":{float(m[0][6:])!r}', text)  # 5e-06 and 0.000005 are one number
    return json.loads(money, object_pairs_hook=list, parse_float=str, parse_int=str, parse_constant=str)


async def test_a_run_looks_the_same(tmp_path: Path, postgres_url: str) -> None:
    """A run with a map, a failure, facts and a question is told alike by whichever database kept it."""

    @step(name="two.look")
    async def look(x: int) -> dict[str, Any]:
        if x == 2:
            raise ValueError("no \x00 \ud83d way")
        return {"x": x, "nul": "a\x00b", "large": 10**30, "float": 1e300}

    @workflow(name="two.flow")
    async def flow(run: Run) -> None:
        run.client.set("phone", "1\x00", source="call", valid=5)
        await run.map(look, [0, 1, 2])
        await run.ask("Shall I?", options=["yes", "no"])

    told = []
    for url in (f"sqlite:///{tmp_path / 's7.db'}", postgres_url):
        async with testing.layer(url) as layer:
            await layer.run(flow(), client="acme", run_id="r", goal="g\x01 ä")
            told.append((await layer.checkpoint("r"), await layer.why("r"), await layer.questions()))
    assert told[0] == told[1]


# -- values ---------------------------------------------------------------------------------------------------------------------

LONG = "ä\u0301\U0001f600" * 350_000  # a million characters


def _fact(**given: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("source", "run_id", "by", "valid_until_us"))
    return {"client_id": "c", "key": "k", "value": "1", "now": 1, **empty, **given}


def test_a_text_comes_back(store: Store) -> None:
    """Controls, quotes, marks of either driver, both normal forms, nothing and a million characters: as they were given."""
    texts = [*both.TEXTS, LONG]

    def unit(tx: Any) -> Any:
        tx.run(tx.sql.insert_client, {"id": "c", "now": 1})
        for n, text in enumerate(texts):
            tx.one(tx.sql.insert_fact, _fact(key=str(n), value=text, source=text, by=text))
        return [tx.one(tx.sql.fact, {"client_id": "c", "key": str(n)}) for n in range(len(texts))]

    for text, row in zip(texts, store.write_now(unit, durable=False, client="c"), strict=True):
        assert (row["value"], row["source"], row["set_by"]) == (text, text, text)


def test_names_are_sorted_by_their_bytes(store: Store) -> None:
    """Lists are in one order whatever the database's language, capitals first; and a page begins where the last one ended."""
    names = sorted({text for text in both.TEXTS if text}, key=str.encode)

    def unit(tx: Any) -> Any:
        for name in reversed(names):
            tx.run(tx.sql.insert_client, {"id": name, "now": 1})
        for name in reversed(names):
            tx.one(tx.sql.insert_fact, _fact(client_id=names[0], key=name))
        page = tx.all(tx.sql.clients_page, {"after": "", "id": None, "limit": 5})
        rest = tx.all(tx.sql.clients_page, {"after": page[-1]["id"], "id": None, "limit": 100})
        keys = tx.all(tx.sql.facts_of_client, {"client_id": names[0]})
        return [row["id"] for row in [*page, *rest]], [row["key"] for row in keys]

    assert store.write_now(unit, durable=False, client=None) == (names, names)


@pytest.mark.parametrize("name", ["Run.fetch", "CLIENT.find", "Client.find", "runner"])
def test_a_step_may_be_called_almost_as_ours(store: Store, name: str) -> None:
    """Only what is ours by the letter is left out: ``Client.find`` is somebody's step, ``client.get`` is a record of ours."""

    def unit(tx: Any) -> Any:
        _run(tx)
        for at, step_name in enumerate((name, "run.now", "client.get"), start=1):
            values = ((1 << 24) + at, "", step_name, "k", 1, "done", None, '"x"', None, at, at)
            assert tx.run(tx.sql.append_read, (*values, 1, 1, "w")) == 1
        return tx.all(tx.sql.latest_results, {"low": 1 << 24, "high": 2 << 24}), tx.one(tx.sql.checkpoint, {"id": "r"})

    results, checkpoint = store.write_now(unit, durable=False, client="c")
    assert [row["name"] for row in results] == [name]
    assert json.loads(checkpoint["document"])["steps_complete"] == [name]


def _run(tx: Any) -> None:
    tx.run(tx.sql.insert_client, {"id": "c", "now": 1})
    made = tx.one(
        tx.sql.insert_run,
        {"id": "r", "client_id": "c", "workflow": "w", "source_digest": None, "goal": None, "inputs": "{}", "root_no": None,
         "parent_no": None, "now": 1},
    )  # fmt: skip
    assert made["no"] == 1
    taken = tx.one(
        tx.sql.take_run,
        {"run_no": 1, "fence": 0, "seen_owner": "", "owner": "w", "progress": 0, "barren": 0, "source_digest": None, "now": 1,
         "remaining": None},
    )  # fmt: skip
    assert taken["fence"] == 1


def test_sums_and_counts_are_whole_numbers(store: Store) -> None:
    """Money and counts come back as ``int``, however large, never as a decimal or a float."""

    def unit(tx: Any) -> Any:
        _run(tx)
        for n in (1, 2):
            attempt = {"run_no": 1, "name": "s", "usd": 4 * 10**18, "tokens": 3, "started_us": n}
            tx.run(tx.sql.bare_attempt, attempt | {"name": f"s{n}"})
        spent = tx.one(tx.sql.spend, {"low": 1 << 24, "high": (1 << 24) + 5, "run_no": 1})
        progress = tx.one(tx.sql.run_progress, {"low": 1 << 24, "high": (1 << 24) + 5, "run_no": 1})
        (client,) = tx.all(tx.sql.clients_page, {"after": "", "id": "c", "limit": 1})
        return spent["uusd"], spent["tokens"], progress["records"], client["open_questions"], client["runs"]

    found = store.write_now(unit, durable=False, client="c")
    assert found == (8 * 10**18, 6, 4, 0, 1)
    assert {type(value) for value in found} == {int}


def test_json_is_kept_as_it_is_written(store: Store) -> None:
    """Numbers keep their digits, a NUL stays an escape, and the checkpoint holds it without reading it."""

    def unit(tx: Any) -> Any:
        _run(tx)
        for n, value in enumerate(both.VALUES):
            tx.one(tx.sql.insert_fact, _fact(key=f"k{n}", value=value, run_id="r"))
        rows = [tx.one(tx.sql.fact, {"client_id": "c", "key": f"k{n}"}) for n in range(len(both.VALUES))]
        return [row["value"] for row in rows], tx.one(tx.sql.checkpoint, {"id": "r"})["document"]

    kept, document = store.write_now(unit, durable=False, client="c")
    assert kept == list(both.VALUES)
    for n, value in enumerate(both.VALUES):
        if len(value) <= 300:
            assert f'"k{n}":{{"value":{value},"version":1}}' in document


@pytest.mark.parametrize("strange", ["a\0b", "\ud800"])
async def test_what_no_row_can_hold_is_not_found(url: str, strange: str) -> None:
    """Looked for by a text that no row can hold: it is not there, on both; not a store that cannot be used."""
    async with Layer(url) as layer:
        for look in (layer.why, layer.checkpoint, layer.resume):
            with pytest.raises(UnknownRun):
                await look(strange)
        with pytest.raises(UnknownRun):
            await layer.cancel(strange, reason="none")
        with pytest.raises(UnknownQuestion):
            await layer.answer(strange, "yes", by="ann")
        assert await layer.runs(client=strange) == await layer.runs(workflow=strange) == []
        assert await layer.questions(client=strange) == await layer.questions(run_id=strange) == []
        assert layer.client("acme").get(strange, "none") == "none"
        assert layer.client("acme").history(strange) == []


async def test_a_key_may_be_as_long_as_it_likes(url: str) -> None:
    """An effect named by thousands of characters happens once per name, also where names begin alike; it is asked once, too."""
    draw = random.Random(7)
    long = "".join(draw.choice("abcdefghijklmnopqrstuvwxyzäöü\U0001f600 /") for _ in range(5000))
    sent: list[str] = []

    @step(name="two.send", effect="write", key="text", settle=0)
    async def send(text: str) -> int:
        sent.append(text)
        return len(sent)

    @workflow(name="two.long")
    async def flow(run: Run) -> list[Any]:
        found: list[Any] = [await send(text) for text in (long, long + "a", long + "b", long)]
        return [*found, await run.ask("Go?", options=["yes"], key=long)]

    async with testing.layer(url) as layer:
        outcome = await layer.run(flow(), client="acme")
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        assert (await layer.resume(outcome.run_id)).result() == [1, 2, 3, 1, "yes"]
    assert sent == [long, long + "a", long + "b"]


async def test_a_result_of_many_megabytes_is_there_for_other_machines(postgres_url: str) -> None:
    """Without a folder told, a large result is kept in the database: whoever takes the run over finds it, wherever it is."""

    @step(name="two.large")
    async def large() -> str:
        return "ä" * (3 << 20)

    @workflow(name="two.largest")
    async def flow(run: Run) -> int:
        text = await large()
        if await run.ask("go on?", options=["yes"]) == "yes":
            return len(text)
        return 0

    async with Layer(postgres_url) as layer:
        outcome = await layer.run(flow(), client="acme")
        assert layer.services.artifacts.folder is None
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
    async with Layer(postgres_url) as layer:
        assert (await layer.resume(outcome.run_id)).result() == 3 << 20
    with psycopg.connect(postgres_url) as pg:
        assert pg.execute("SELECT length(body) > 3000000, location FROM stepseven.artifact").fetchall() == [(True, None)]


# -- the statements -------------------------------------------------------------------------------------------------------------


def test_both_databases_are_asked_the_same() -> None:
    """A statement takes the same parameters on both, so nobody has to know which one it is."""
    ours, theirs = statements(SQLITE), statements(POSTGRES)
    for field in fields(Statements):
        mine = set(re.findall(r"(?<!:):([a-z_]+)", getattr(ours, field.name)))
        other = set(re.findall(r"%\(([a-z_]+)\)s", getattr(theirs, field.name)))
        alone = {"lock"} if field.name.endswith("_alone") else set()  # there it takes the client's lock by itself
        assert other - alone <= mine, field.name
        assert mine - other <= {"now"}, field.name  # leases go by the server's clock
