"""Which database the tests use: one switch, ``--database sqlite|postgres|pooled``, for all that ask here.

Every folder has a store of its own: a file in it, or a PostgreSQL database whose name follows from the folder, so that a child
process finds the same one.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from tests.servers.shared import SESSION, servers

if TYPE_CHECKING:
    import psycopg

KIND = "STEPSEVEN_TEST_DATABASE"
KINDS = ("sqlite", "postgres", "pooled")
TEMPLATE = "stepseven_template"
FILE = "s7.db"

_made: set[str] = set()  #: databases of this process's tests
_free: list[str] = []  #: cleaned ones, which are faster than new ones
_fresh = itertools.count()
_lock = threading.Lock()


def kind() -> Literal["sqlite", "postgres", "pooled"]:
    """Which database this session is about."""
    return cast("Any", os.environ.get(KIND, "sqlite"))


def url(folder: Path) -> str:
    """The store in a folder."""
    if kind() == "sqlite":
        return f"sqlite:///{folder / FILE}"
    name = "t_" + hashlib.blake2b(str(folder.resolve()).encode(), digest_size=10).hexdigest()
    _make(name)
    return servers().url(name, pooled=kind() == "pooled")


def memory() -> str:
    """A store that nobody else knows."""
    if kind() == "sqlite":
        return "sqlite:///:memory:"
    name = f"m_{os.getpid()}_{next(_fresh)}"
    _make(name)
    return servers().url(name, pooled=kind() == "pooled")


def new_database(name: str, *, pooled: bool = False, schema: bool = True) -> str:
    """Make a PostgreSQL database whatever the switch says, and give its URL; it goes after the test.

    Args:
        name: which of the test's; with *pooled* and without it the same name is the same database.
        pooled: go through PgBouncer.
        schema: with our tables in it, or empty.
    """
    name = f"x_{os.getpid()}_{name}"  # test processes share the server
    _make(name, template=TEMPLATE if schema else "template0")
    return servers().url(name, pooled=pooled)


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


def execute(folder: Path, sql: str, *params: Any) -> None:
    """Change a folder's store behind the project's back."""
    if kind() == "sqlite":
        with closing(sqlite3.connect(folder / FILE)) as connection, connection:
            connection.execute(sql, params)
        return
    with _look(folder) as connection:
        connection.execute(_translated(sql), params or None)


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

    name = url(folder).rpartition("/")[2]
    with psycopg.connect(servers().url(name), autocommit=True) as connection:
        connection.execute("SET search_path TO stepseven")
        yield connection


def _translated(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s") if "?" in sql else sql


# -- databases ------------------------------------------------------------------------------------------------------------------


def _make(name: str, template: str = TEMPLATE) -> None:
    """Make a database, if there is none of that name."""
    with _lock:
        if name in _made:
            return
        with closing(_server()) as server:
            _made.add(name)  # also if a child process made it: it goes with the test
            if server.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
                return
            if template == TEMPLATE:
                _make_template(server)
            if template == TEMPLATE and _free:
                server.execute(f"ALTER DATABASE {_free.pop()} RENAME TO {name}")
            else:
                server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")


def drop_all() -> None:
    """After a test: its databases go. One that nobody is connected to is emptied and kept for the next test."""
    with _lock:
        if not _made:
            return
        with closing(_server()) as server:
            for name in sorted(_made):
                _made.discard(name)
                if kind() != "pooled" and len(_free) < 3 and _empty(server, name):
                    free = f"free_{os.getpid()}_{next(_fresh)}"
                    server.execute(f"ALTER DATABASE {name} RENAME TO {free}")
                    _free.append(free)
                else:
                    server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


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


def _empty(server: psycopg.Connection[Any], name: str) -> bool:
    """Make it as it was when it was new; ``False``: somebody is still connected, or it is not as we know it."""
    import psycopg

    if name.startswith("x_"):  # what a test made by hand
        return False
    if server.execute("SELECT 1 FROM pg_stat_activity WHERE datname = %s", (name,)).fetchone():
        return False
    with psycopg.connect(servers().url(name), autocommit=True) as connection:
        tables = [row[0] for row in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'stepseven'")]
        sequences = [row[0] for row in connection.execute("SELECT sequencename FROM pg_sequences WHERE schemaname = 'stepseven'")]
        if connection.execute("SELECT count(*) FROM stepseven.store WHERE epoch = 1").fetchone() != (1,):
            return False
        with connection.transaction():
            connection.execute("SET LOCAL session_replication_role = replica")  # no foreign keys, no order
            for table in tables:
                if table != "store":
                    connection.execute(f"DELETE FROM stepseven.{table}")
            for sequence in sequences:
                connection.execute(f"SELECT setval('stepseven.{sequence}', 1, false)")
    return True
