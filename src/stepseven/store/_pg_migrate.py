"""Bringing a PostgreSQL database to this version's schema, as ``migrate.py`` does for SQLite files.

Errors of the driver other than those explained here are left to the adapter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import Connection, errors
from psycopg.rows import args_row, tuple_row

from stepseven._dataclass import dataclass
from stepseven.errors import StoreUnavailable
from stepseven.store.migrate import migrations, mismatch

OLDEST_SERVER = 150000  # `security_invoker` of views came with PostgreSQL 15
_LOCK = 0x7374_6570_5345_5645  # the advisory lock of those that create or migrate; any number that nobody else uses
_TRY_MS = 2000  # a statement that waits for a table's lock keeps everybody behind it waiting, too: never for longer
_PATIENCE_S = 60.0
_PAUSE_S = 0.2  # and up to twice that: those who waited in front get through

#: Reads the catalogue alone: no right is needed for that, and nothing has to be there.
_LOOK = """SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), current_user::text,
        current_database()::text, has_database_privilege(current_database(), 'CREATE'), s.oid IS NOT NULL,
        CASE WHEN s.oid IS NOT NULL THEN has_schema_privilege(s.oid, 'USAGE') END,
        CASE WHEN s.oid IS NOT NULL THEN has_schema_privilege(s.oid, 'CREATE') END,
        (SELECT count(*) FROM pg_catalog.pg_class AS c WHERE c.relnamespace = s.oid),
        (SELECT count(*) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid
          WHERE c.relnamespace = s.oid AND c.relname = 'store' AND a.attname IN ('one', 'schema_no', 'created_us')) = 3,
        CASE WHEN s.oid IS NOT NULL THEN (SELECT has_table_privilege(c.oid, 'SELECT') FROM pg_catalog.pg_class AS c
          WHERE c.relnamespace = s.oid AND c.relname = 'store') END
    FROM (SELECT 1) AS one LEFT JOIN pg_catalog.pg_namespace AS s ON s.nspname = 'stepseven'"""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the catalogue says, in the order of ``_LOOK``."""

    server: int
    encoding: str
    user: str
    database: str
    may_create: bool
    has_schema: bool
    may_use: bool | None
    may_fill: bool | None
    relations: int
    is_ours: bool
    may_read: bool | None


def check_postgres(connection: Connection[Any], url: str, *, upgrade: bool = False) -> int:
    """Look whether the database has our schema, of this version. Changes nothing.

    Args:
        connection: in a transaction, or in autocommit.
        url: what to call it in an error.
        upgrade: an older schema is welcome, too.

    Returns:
        Its schema: this version's, or 0 where there is none; with *upgrade* perhaps an older one.

    Raises:
        SchemaMismatch: another version wrote it.
        StoreUnavailable: the server or the database cannot hold our tables, or its schema ``stepseven`` is another program's.
    """
    with connection.cursor(row_factory=args_row(_Seen)) as cursor:
        seen = cursor.execute(_LOOK, prepare=False).fetchone()
    assert seen is not None, "one row, whatever is there"  # noqa: S101 - for the type checker
    _check_server(seen, url)
    found = _version(connection, seen, url)
    newest = migrations("postgres")[-1][0]
    if found not in (0, newest) and not (upgrade and found < newest):
        raise mismatch(url, found, newest)
    if found == 0:
        _check_rights(seen, url)
    return found


def migrate_postgres(
    connection: Connection[Any],
    url: str,
    *,
    upgrade: bool = False,
    chance: Callable[[], float],
    patience_s: float = _PATIENCE_S,
) -> None:
    """Create the schema where there is none. The loser of a race finds the work done.

    Every try is one transaction that waits for no lock longer than two seconds: runs that are under way go on, and whoever
    queues behind a change of a table does not queue for long.

    Args:
        connection: not in a transaction.
        url: what to call it in an error.
        upgrade: bring an older schema to this version. Only when it was asked for: an older program could not go on.
        chance: draws from [0, 1), to spread those who try again.
        patience_s: how long to try, in seconds.

    Raises:
        SchemaMismatch, StoreUnavailable: as ``check_postgres``, or somebody held on to our tables; nothing was changed.
        psycopg.Error: what the adapter has words for.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            with connection.transaction():
                _patient(connection)
                if check_postgres(connection, url, upgrade=upgrade) == migrations("postgres")[-1][0]:
                    return  # a look costs little; only a database that needs work is locked
                _change(connection, url, upgrade=upgrade)
        except (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure) as error:
            if time.monotonic() >= until:
                why = "its tables were in use for too long: end what holds them (see pg_stat_activity), then try again"
                raise StoreUnavailable(url, why) from error
            time.sleep(_PAUSE_S * (1 + chance()))
        except (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction) as error:
            raise StoreUnavailable(url, _cannot_create(error)) from error


def _change(connection: Connection[Any], url: str, *, upgrade: bool) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    found = check_postgres(connection, url, upgrade=upgrade)  # who had the lock before has perhaps done it
    todo = [m for m in migrations("postgres") if m[0] > found]
    if not todo:
        return
    connection.execute("SELECT set_config('statement_timeout', '0', true)")  # an index takes as long as it takes
    if not found and not _has_schema(connection):
        connection.execute("CREATE SCHEMA stepseven")  # unless an administrator made it for a role that may not
    for _, script in todo:
        connection.execute(script.encode())  # as bytes it is sent as it stands: several statements, no parameters
    connection.execute(
        "INSERT INTO stepseven.store (one, schema_no, created_us) VALUES (1, %(no)s, %(now)s) "
        "ON CONFLICT (one) DO UPDATE SET schema_no = excluded.schema_no",
        {"no": todo[-1][0], "now": time.time_ns() // 1000},
    )


def _patient(connection: Connection[Any]) -> None:
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{_TRY_MS}ms",))


def _has_schema(connection: Connection[Any]) -> bool:
    return connection.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = 'stepseven'").fetchone() is not None


def _check_server(seen: _Seen, url: str) -> None:
    if seen.server < OLDEST_SERVER:
        version = f"{seen.server // 10000}.{seen.server % 10000}"
        raise StoreUnavailable(url, f"it is PostgreSQL {version}, and 15 is the oldest that will do: use a newer server")
    if seen.encoding != "UTF8":
        raise StoreUnavailable(
            url, f"database {seen.database} is encoded in {seen.encoding}: create one with ENCODING 'UTF8' TEMPLATE template0"
        )


def _version(connection: Connection[Any], seen: _Seen, url: str) -> int:
    if seen.relations == 0:
        return 0
    if not seen.is_ours:
        why = f'database {seen.database} has a schema "stepseven" that is not this program\'s: use another database'
        raise StoreUnavailable(url, why)
    if not (seen.may_use and seen.may_read):
        raise StoreUnavailable(url, _no_right(seen))
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute("SELECT schema_no FROM stepseven.store").fetchone()
    if row is None:
        raise StoreUnavailable(url, "its table stepseven.store is empty: it was damaged, restore a backup")
    return int(row[0])


def _no_right(seen: _Seen) -> str:
    return (
        f'role {seen.user} has no rights in its schema "stepseven": connect as the schema\'s owner, or as the owner: '
        f'GRANT USAGE ON SCHEMA stepseven TO "{seen.user}"; '
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA stepseven TO "{seen.user}"'
    )


def _check_rights(seen: _Seen, url: str) -> None:
    if seen.has_schema and not (seen.may_use and seen.may_fill):
        owner = f'let an administrator run: ALTER SCHEMA stepseven OWNER TO "{seen.user}"'
        raise StoreUnavailable(url, f'role {seen.user} may not create tables in its schema "stepseven": {owner}')
    if not seen.has_schema and not seen.may_create:
        owner = f'let an administrator run there: CREATE SCHEMA stepseven AUTHORIZATION "{seen.user}"'
        raise StoreUnavailable(url, f"role {seen.user} may not create a schema in database {seen.database}: {owner}")


def _cannot_create(error: psycopg.Error) -> str:
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return "it is read-only, a standby perhaps, and the schema is not there yet: connect to the primary"
    return 'this role may not change the schema: run `stepseven migrate` with a URL of the role that owns schema "stepseven"'
