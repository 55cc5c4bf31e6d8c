"""The schema on PostgreSQL: made once by whoever comes first, refused when it is not this version's, open to nobody else."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import errors, sql

from stepseven import Layer, Run, SchemaMismatch, StoreUnavailable, step, workflow
from stepseven.layer import open_store
from stepseven.store._pg_migrate import check_postgres, migrate_postgres
from stepseven.store.migrate import migrations
from tests.servers import databases

pytestmark = pytest.mark.postgres
NEWEST = migrations("postgres")[-1][0]


def migrate(url: str, *, upgrade: bool = False, patience_s: float = 30) -> int:
    """As one starter does; the schema it finds then."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        migrate_postgres(connection, url, upgrade=upgrade, chance=random.random, patience_s=patience_s)
        return check_postgres(connection, url)


def execute(url: str, *statements: str) -> None:
    """Say something to the database behind the project's back."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@contextmanager
def role(url: str, *rights: str) -> Iterator[str]:
    """A plain role, and the URL with which it connects."""
    database = url.rpartition("/")[2]
    name = f"plain_{database}"
    execute(url, f"CREATE ROLE {name} LOGIN", *(right.format(role=name, database=database) for right in rights))
    try:
        yield url.replace("postgres@", f"{name}@")
    finally:
        execute(url, f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


# -- making it ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooled", [False, pytest.param(True, marks=pytest.mark.pgbouncer)])
def test_eight_starters_make_one_schema(pooled: bool) -> None:
    """Whoever starts at once finds the schema there, whole, whether it made it or somebody else did; so behind a pooler."""
    url = databases.new_database("eight", schema=False, pooled=pooled)
    together = threading.Barrier(8)

    def start(_: int) -> int:
        together.wait()
        return migrate(url)

    with ThreadPoolExecutor(8) as starters:
        assert list(starters.map(start, range(8))) == [NEWEST] * 8
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT schema_no FROM stepseven.store").fetchall() == [(NEWEST,)]


def test_nothing_is_in_public(postgres_url: str) -> None:
    """All that is made lies in schema ``stepseven``; nobody but its owner has a right in it."""
    with psycopg.connect(postgres_url) as connection:
        where = connection.execute(
            "SELECT DISTINCT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'"
        ).fetchall()
        assert where == [("stepseven",)]
        assert connection.execute("SELECT has_schema_privilege('public', 'stepseven', 'USAGE')").fetchone() == (False,)


def test_a_plain_role_sees_nothing(postgres_url: str) -> None:
    """Whoever merely can connect can neither read nor find out: it is an error, never an empty table."""
    with role(postgres_url) as plain, psycopg.connect(plain) as connection:
        for name in ("run", "effect", "checkpoint"):
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(f"SELECT * FROM stepseven.{name}".encode())
            connection.rollback()


def test_a_reader_needs_two_grants(postgres_url: str) -> None:
    """With usage of the schema and select on its tables a role reads the view, and cannot write."""
    grants = ("GRANT USAGE ON SCHEMA stepseven TO {role}", "GRANT SELECT ON ALL TABLES IN SCHEMA stepseven TO {role}")
    with role(postgres_url, *grants) as plain, psycopg.connect(plain) as connection:
        assert connection.execute("SELECT * FROM stepseven.checkpoint").fetchall() == []
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("DELETE FROM stepseven.run")


def test_the_view_reads_with_the_rights_of_who_asks(postgres_url: str) -> None:
    """A grant on the view alone opens nothing: it is no way around the tables' rights."""
    grants = ("GRANT USAGE ON SCHEMA stepseven TO {role}", "GRANT SELECT ON stepseven.checkpoint TO {role}")
    with role(postgres_url, *grants) as plain, psycopg.connect(plain) as connection:  # noqa: SIM117 - a third makes it unreadable
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("SELECT run_id FROM stepseven.checkpoint")


# -- what is refused ------------------------------------------------------------------------------------------------------------


def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    """A program does not touch what a later version wrote, whatever it is asked."""
    execute(postgres_url, "UPDATE stepseven.store SET schema_no = 99")
    for upgrade in (False, True):
        with pytest.raises(SchemaMismatch, match="use the newer stepseven"):
            migrate(postgres_url, upgrade=upgrade)


def test_an_older_schema_is_refused_unless_it_is_asked_for(postgres_url: str) -> None:
    """Opening never migrates: an older program that is still running would break."""
    execute(postgres_url, "UPDATE stepseven.store SET schema_no = 2")
    with pytest.raises(SchemaMismatch, match="back it up, then run `stepseven migrate`"):
        migrate(postgres_url)


def test_a_foreign_schema_of_that_name_is_refused(empty_postgres_url: str) -> None:
    """A schema ``stepseven`` with other tables is left alone."""
    execute(empty_postgres_url, "CREATE SCHEMA stepseven", "CREATE TABLE stepseven.store (shelf int)")
    with pytest.raises(StoreUnavailable, match="not this program's"):
        migrate(empty_postgres_url)


def test_another_encoding_is_refused(empty_postgres_url: str) -> None:
    """A database that cannot hold every text is named as such, before anything is made in it."""
    name = empty_postgres_url.rpartition("/")[2] + "_latin"
    execute(empty_postgres_url, f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StoreUnavailable, match="encoded in LATIN1"):
            migrate(f"{empty_postgres_url}_latin")
    finally:
        execute(empty_postgres_url, f"DROP DATABASE {name}")


def test_a_role_without_rights_is_told_which_it_needs(empty_postgres_url: str) -> None:
    """Who may not create a schema is told what an administrator has to say; with that it works."""
    with role(empty_postgres_url) as plain:
        with pytest.raises(StoreUnavailable, match="CREATE SCHEMA stepseven AUTHORIZATION") as refused:
            migrate(plain)
        advice = str(refused.value).rpartition("run there: ")[2]
        execute(empty_postgres_url, advice)
        assert migrate(plain) == NEWEST


def test_a_role_without_rights_in_the_schema_is_told_which_it_needs(postgres_url: str) -> None:
    """Who connects to somebody else's schema is told the grants; with these a whole run works."""
    with role(postgres_url) as plain:
        with pytest.raises(StoreUnavailable, match="GRANT USAGE ON SCHEMA") as refused:
            migrate(plain)
        execute(postgres_url, str(refused.value).rpartition("as the owner: ")[2])
        assert migrate(plain) == NEWEST


def test_a_standby_without_the_schema_says_so(empty_postgres_url: str) -> None:
    """A read-only database cannot be given a schema, and the sentence says where to go."""
    name = empty_postgres_url.rpartition("/")[2]
    execute(empty_postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable, match="connect to the primary"):
        migrate(empty_postgres_url)


# -- with others about ----------------------------------------------------------------------------------------------------------


def test_a_lock_that_stays_is_waited_for_in_short_tries(postgres_url: str) -> None:
    """While somebody holds a table nobody queues behind the migration, and when it lasts it is told, with nothing changed."""
    with psycopg.connect(postgres_url) as holder:
        holder.execute("LOCK TABLE stepseven.store IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable, match="pg_stat_activity"):
            migrate(postgres_url, patience_s=0)
        holder.rollback()
    assert migrate(postgres_url) == NEWEST


def test_a_failed_migration_leaves_nothing(empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one transaction: what breaks off half-way was never there."""
    broken = [*migrations("postgres")[:-1], (NEWEST, migrations("postgres")[-1][1] + "SELECT 1 / 0;")]
    with monkeypatch.context() as patch:
        patch.setattr("stepseven.store._pg_migrate.migrations", lambda _: broken)
        with pytest.raises(errors.DivisionByZero):
            migrate(empty_postgres_url)
    with psycopg.connect(empty_postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'stepseven'").fetchone() == (0,)
    assert migrate(empty_postgres_url) == NEWEST


def test_what_an_older_release_made_becomes_what_a_new_one_makes(
    empty_postgres_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema of each released number, brought to the newest, is shaped like a fresh one, and keeps its rows."""

    def shape(url: str) -> list[tuple[object, ...]]:
        with psycopg.connect(url) as connection:
            return connection.execute(
                "SELECT table_name, column_name, ordinal_position, data_type, is_nullable, column_default, collation_name "
                "FROM information_schema.columns WHERE table_schema = 'stepseven' UNION ALL "
                "SELECT tablename, indexdef, NULL, NULL, NULL, NULL, NULL FROM pg_indexes WHERE schemaname = 'stepseven' "
                "ORDER BY 1, 2"
            ).fetchall()

    fresh = shape(postgres_url)
    for kept in range(1, len(migrations("postgres"))):
        execute(empty_postgres_url, "DROP SCHEMA IF EXISTS stepseven CASCADE")
        with monkeypatch.context() as patch:
            patch.setattr("stepseven.store._pg_migrate.migrations", lambda name, kept=kept: migrations(name)[:kept])
            migrate(empty_postgres_url)
        execute(empty_postgres_url, "INSERT INTO stepseven.person (id, name, channels, created_us) VALUES ('p', 'Ann', '[]', 1)")
        assert migrate(empty_postgres_url, upgrade=True) == NEWEST
        assert shape(empty_postgres_url) == fresh
        with psycopg.connect(empty_postgres_url) as connection:
            assert connection.execute("SELECT name, rank FROM stepseven.person").fetchall() == [("Ann", 0)]


async def test_a_later_migration_goes_on_under_live_runs(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column is added while a run is written: only when that is asked for, and the run does not notice."""
    begun, done = asyncio.Event(), asyncio.Event()

    @step(name="schema.look", key="n")
    async def look(n: int) -> int:
        begun.set()
        return n

    @workflow(name="schema.counting")
    async def counting(run: Run) -> int:
        n = 0
        while not done.is_set() or n < 20:
            n += await look(n) - n + 1
        return n

    later = [*migrations("postgres"), (NEWEST + 1, "ALTER TABLE stepseven.run ADD COLUMN newer text;")]
    async with Layer(postgres_url) as layer:
        run = asyncio.create_task(layer.run(counting(), client="acme"))
        await begun.wait()
        with monkeypatch.context() as patch:
            patch.setattr("stepseven.store._pg_migrate.migrations", lambda _: later)
            with pytest.raises(SchemaMismatch):
                await asyncio.to_thread(migrate, postgres_url)
            assert await asyncio.to_thread(migrate, postgres_url, upgrade=True) == NEWEST + 1
        done.set()
        assert (await run).result() >= 20
    with pytest.raises(SchemaMismatch, match="use the newer"):
        open_store(postgres_url)


# -- how it is laid out ---------------------------------------------------------------------------------------------------------


def test_numbers_of_a_record_are_those_of_its_id(postgres_url: str) -> None:
    """``run_no`` and ``seq`` follow from the id, so nobody can write them wrongly."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            "INSERT INTO stepseven.step (id, branch, name, key, generation, state, started_us) "
            "VALUES (%s, '', 's', 'k', 1, 'done', 1)",
            ((7 << 24) + 5,),
        )
        assert connection.execute("SELECT run_no, seq FROM stepseven.step").fetchone() == (7, 5)


def test_a_record_cannot_name_a_result_that_is_gone(postgres_url: str) -> None:
    """Dropping a result that somebody has just named fails, rather than leaving a record without it."""
    step = """INSERT INTO stepseven.step (id, branch, name, key, generation, state, started_us, artifact)
        VALUES (1, '', 's', 'k', 1, 'done', 1, 'h')"""
    artifact = "INSERT INTO stepseven.artifact (hash, size, created_us) VALUES ('h', 1, 1)"
    with psycopg.connect(postgres_url) as connection:
        connection.execute(step)  # the record comes first: it carries the fence
        connection.execute(artifact)
        connection.commit()
        connection.execute("DELETE FROM stepseven.artifact")
        with pytest.raises(errors.ForeignKeyViolation):
            connection.commit()


def test_names_sort_alike_whatever_the_server_speaks(empty_postgres_url: str) -> None:
    """In a database of an English, linguistic order our keys still sort by their bytes, as in SQLite."""
    name = empty_postgres_url.rpartition("/")[2] + "_icu"
    made = "CREATE DATABASE {} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C.UTF-8'"
    with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
        connection.execute(sql.SQL(made).format(sql.Identifier(name)))  # type: ignore[arg-type]  # a constant
    try:
        url = f"{empty_postgres_url}_icu"
        migrate(url)
        given = ["a", "B", "ä", "Z", "_", "-", "b", "é", "e\u0301", "\U0001f600", "\uffff"]
        with psycopg.connect(url) as connection:
            for text in given:
                connection.execute("INSERT INTO stepseven.client (id, created_us) VALUES (%s, 1)", (text,))
            found = [row[0] for row in connection.execute("SELECT id FROM stepseven.client ORDER BY id").fetchall()]
            loose = [row[0] for row in connection.execute('SELECT id FROM stepseven.client ORDER BY id COLLATE "und-x-icu"')]
        assert found == sorted(given, key=str.encode)
        assert loose != found  # the claim can fail
    finally:
        execute(empty_postgres_url, f"DROP DATABASE {name}")
