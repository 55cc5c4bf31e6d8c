"""Which database the tests use: one switch, ``--database sqlite|postgres|pooled``, for all that ask here.

Every folder has a store of its own: a file in it, or a PostgreSQL database whose name follows from the folder, so that a child
process finds the same one.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from tests.servers.bouncer import show
from tests.servers.shared import SESSION, servers

if TYPE_CHECKING:
    import psycopg

KIND = "STEPSEVEN_TEST_DATABASE"
KINDS = ("sqlite", "postgres", "pooled")
TEMPLATE = "stepseven_template"
FILE = "s7.db"

MOST_FREE = 40  #: emptied databases that are kept for later tests, 9 MB each

_made: dict[str, str] = {}  #: what this process's tests call it -> the database
_free: list[str] = []  #: emptied ones: to empty one takes 10 ms, to make one 70 and to drop one 90
_fresh = itertools.count()
_lock = threading.Lock()


def kind() -> Literal["sqlite", "postgres", "pooled"]:
    """Which database this session is about."""
    return cast("Any", os.environ.get(KIND, "sqlite"))


def url(folder: Path) -> str:
    """The store in a folder."""
    if kind() == "sqlite":
        return f"sqlite:///{folder / FILE}"
    return servers().url(_database(_called(folder)), pooled=kind() == "pooled")


def _called(folder: Path) -> str:
    return "t_" + hashlib.blake2b(str(folder.resolve()).encode(), digest_size=10).hexdigest()


def memory() -> str:
    """A store that nobody else knows."""
    if kind() == "sqlite":
        return "sqlite:///:memory:"
    return servers().url(_database(f"m_{os.getpid()}_{next(_fresh)}"), pooled=kind() == "pooled")


def new_database(name: str, *, pooled: bool = False, schema: bool = True) -> str:
    """Make a PostgreSQL database whatever the switch says, and give its URL; it goes after the test.

    Args:
        name: which of the test's; with *pooled* and without it the same name is the same database.
        pooled: go through PgBouncer.
        schema: with our tables in it, or empty.
    """
    made = _database(f"x_{os.getpid()}_{name}", template=TEMPLATE if schema else "template0")  # test processes share the server
    return servers().url(made, pooled=pooled)


# -- other eyes than the project's ----------------------------------------------------------------------------------------------


def rows(folder: Path, sql: str, *params: Any) -> list[dict[str, Any]]:
    """What a query (written for SQLite) gives in a folder's store."""
    if kind() == "sqlite":
        with closing(sqlite3.connect(folder / FILE)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql, params).fetchall()]
    from psycopg.rows import dict_row

    with _look(folder) as connection:
        found = connection.cursor(row_factory=dict_row).execute(_translated(sql), params or None).fetchall()
    return [{name: int(value) if isinstance(value, Decimal) else value for name, value in row.items()} for row in found]


def tables(folder: Path, names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """All that is in some tables of a folder's store."""
    if kind() != "sqlite":
        return {name: rows(folder, f"SELECT * FROM {name}") for name in names}
    with closing(sqlite3.connect(folder / FILE)) as connection:
        connection.row_factory = sqlite3.Row
        return {name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}").fetchall()] for name in names}


def execute(folder: Path, sql: str, *params: Any) -> None:
    """Change a folder's store behind the project's back."""
    if kind() == "sqlite":
        with closing(sqlite3.connect(folder / FILE)) as connection, connection:
            connection.execute(sql, params)
        return
    with _look(folder) as connection:
        connection.execute(_translated(sql), params or None)


def plain(sql: str) -> str:
    """A test's own statement (written for SQLite) in the form in which the project's transactions take it."""
    if kind() == "sqlite":
        return sql
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", re.sub(r"\b(FROM|JOIN|INTO|UPDATE) (?=[a-z])", r"\1 stepseven.", sql))


def exists(folder: Path) -> bool:
    """Whether the store has its tables."""
    if kind() != "sqlite":
        return True  # databases are made with them
    return (folder / FILE).exists() and bool(rows(folder, "SELECT 1 FROM sqlite_master WHERE name = 'run'"))


def bury(folder: Path) -> None:
    """What the end of a process leaves: runs whose worker is no more."""
    execute(folder, "DELETE FROM worker")


@contextmanager
def _look(folder: Path) -> Iterator[psycopg.Connection[Any]]:
    """A direct connection, past the pooler: looking must not take one of its two."""
    import psycopg

    with psycopg.connect(servers().url(_database(_called(folder))), autocommit=True) as connection:
        connection.execute("SET search_path TO stepseven")
        yield connection


def _translated(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s") if "?" in sql else sql


# -- databases ------------------------------------------------------------------------------------------------------------------


def _database(called: str, template: str = TEMPLATE) -> str:
    """The database a test calls so; a child process finds its parent's by the session's folder."""
    with _lock:
        if called in _made:
            return _made[called]
        known = Path(os.environ[SESSION], called)
        if known.exists():
            _made[called] = known.read_text()  # whoever made it: it goes with the test
            return _made[called]
        with closing(_server()) as server:
            if template == TEMPLATE:
                _make_template(server)
            if template == TEMPLATE and _free:
                made = _free.pop()
            else:
                made = f"db_{os.getpid()}_{next(_fresh)}"
                server.execute(f"CREATE DATABASE {made} TEMPLATE {template}")
        _made[called] = made
        known.write_text(made)
        return made


def done(folder: Path) -> None:
    """A folder's store is needed no more."""
    if kind() != "sqlite":
        _let_go([_called(folder)])


def drop_all() -> None:
    """After a test: its databases are empty, or gone."""
    if _made:
        _let_go(list(_made))


def _let_go(names: list[str]) -> None:
    with _lock, closing(_server()) as server:
        for called in names:
            Path(os.environ[SESSION], called).unlink(missing_ok=True)
            made = _made.pop(called, None)
            if made is None:
                continue
            ours = not called.startswith("x_")  # one that a test asked for by hand may be in any state
            if ours and len(_free) < MOST_FREE and not _in_use(server, made) and _empty(made):
                _free.append(made)
            else:
                server.execute(f"DROP DATABASE IF EXISTS {made} WITH (FORCE)")


def _in_use(server: psycopg.Connection[Any], name: str) -> bool:
    """Whether somebody is still connected: it would write into the next test. The pooler's own connections do nothing."""
    if kind() != "pooled":
        return server.execute("SELECT 1 FROM pg_stat_activity WHERE datname = %s", (name,)).fetchone() is not None
    return any(client["database"] == name for client in show(servers().pooled_port, "CLIENTS"))


def _server() -> psycopg.Connection[Any]:
    import psycopg

    return psycopg.connect(servers().url(), autocommit=True)


def _make_template(server: psycopg.Connection[Any]) -> None:
    """The database all others are copied from: made once in a session, by the project's own migration."""
    import psycopg

    done = Path(os.environ[SESSION], "template")
    if done.exists():
        return
    from stepseven.store._pg_migrate import migrate_postgres

    with Path(os.environ[SESSION], "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return
        server.execute(f"DROP DATABASE IF EXISTS {TEMPLATE}")
        server.execute(f"CREATE DATABASE {TEMPLATE}")
        where = servers().url(TEMPLATE)
        with psycopg.connect(where) as connection:
            migrate_postgres(connection, where, chance=lambda: 0.5)
        done.touch()


def _empty(name: str) -> bool:
    """Make it as it was when it was new; ``False``: it is not as we know it."""
    import psycopg

    with psycopg.connect(servers().url(name), autocommit=True) as connection:
        tables = [row[0] for row in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'stepseven'")]
        sequences = [row[0] for row in connection.execute("SELECT sequencename FROM pg_sequences WHERE schemaname = 'stepseven'")]
        if connection.execute("SELECT count(*) FROM stepseven.store WHERE epoch = 1").fetchone() != (1,):
            return False
        kept = "".join(f"DELETE FROM stepseven.{table};" for table in tables if table != "store")
        anew = "".join(f"SELECT setval('stepseven.{sequence}', 1, false);" for sequence in sequences)
        # No foreign keys, so in any order; one message, so one transaction.
        connection.execute(f"SET LOCAL session_replication_role = replica; SET LOCAL synchronous_commit = off; {kept} {anew}")
    return True
