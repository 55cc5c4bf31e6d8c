"""What PostgreSQL's errors mean: by class and SQLSTATE, in words that say what to do."""

from __future__ import annotations

import psycopg

from stepseven.errors import StoreUnavailable

#: The transaction was rolled back for what passes by itself: 40001 and 40P01 (conflict, deadlock), 55P03 (a lock was held for
#: too long), 57014 (cancelled: a time-out), 53300 (no connection left), 26000 and 42P05 (a pooler that was taken for the server:
#: the adapter looks again).
_PASSES = frozenset({"40001", "40P01", "55P03", "57014", "53300", "26000", "42P05"})
#: The server, a pooler or an administrator ended the connection. 25P03: a pause within the transaction was too long. 08P01: a
#: pooler whose server went away says that.
_GONE = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "08000", "08003", "08006", "08P01"})
#: A server that is starting, stopping or short of connections refuses with these; it will not always.
_LATER = frozenset({"57P01", "57P02", "57P03", "53300", "08000", "08001", "08003", "08004", "08006", "08P01"})
CRASHED = "57P02"  # another of the server's processes crashed: it starts over with what its log has

_WHY = {
    "08": "the connection to the server broke: check that it is up and reachable, then try again",
    "22": "the server refused a value: {message}",
    "23": "the server refused a row: {message}",
    "25006": "it is read-only, a standby perhaps or just taken out of service: connect to the primary",
    "28": "the server does not let this user in: check user, password and the server's pg_hba.conf",
    "28P01": "the password is wrong: set it in the URL, in PGPASSWORD or in ~/.pgpass",
    "3D000": "the database does not exist: create it first (createdb)",
    "40": "others changed the same rows for too long: try again",
    "42501": "this user lacks a right: connect as the owner of schema stepseven, or have it granted ({message})",
    "42": "its schema is not the one this version works with ({message}): run `stepseven doctor`",
    "53100": "the server's disk is full: free some space there, then try again; nothing was half-written",
    "53200": "the server is out of memory: try again later, or give it more",
    "53300": "the server has no connection left: raise max_connections, or put a pooler in front of it",
    "53": "the server is short of something: {message}",
    "54": "a value is larger than the server can keep: {message}",
    "55P03": "somebody held on to the same rows for too long: end what holds them (see pg_stat_activity), then try again",
    "57014": "it took too long and was broken off: try again when the server has less to do",
    "57": "the server is stopping or starting: try again when it is up",
    "58": "the server's disk reported an error: check it, then try again",
    "XX001": "the server's data are damaged: restore a backup",
    "XX002": "the server's data are damaged: restore a backup",
}
_SILENT = "the server does not answer: check the network and the server, then try again"
_REFUSED = "there is no connection ({message}): check host, port, user, password and database in the URL, and that it is up"


class Silent(psycopg.OperationalError):
    """No answer within the time a server may take: the connection is given up, whatever became of what was asked."""


def code(error: BaseException) -> str:
    """The SQLSTATE, or an empty text where the driver itself raised it."""
    return getattr(error, "sqlstate", None) or ""


def gone(error: BaseException) -> bool:
    """Whether the connection is no more, so that what was under way on it may or may not have happened."""
    if isinstance(error, psycopg.InterfaceError):  # it was closed before
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    ended = error.diag.severity != "ERROR"  # 08P01 is also what a wrong number of values is called, and then nothing ended
    return not code(error) or (code(error) in _GONE and ended)


def passes(error: BaseException) -> bool:
    """Whether the same may succeed a moment later. The transaction was rolled back, or the connection is gone."""
    return gone(error) or code(error) in _PASSES or _artifact_went(error)


def away(error: psycopg.Error) -> bool:
    """Whether it is the server that is not there, or lets nobody in: no statement of ours failed."""
    return gone(error) or error.diag.severity is None


def refused_for_now(error: psycopg.Error) -> bool:
    """Whether a connection that was not made may be made a moment later."""
    if error.pgconn is not None and (error.pgconn.needs_password or error.pgconn.used_password):
        return code(error) in _LATER  # it was asked for a password, and had none or a wrong one
    return code(error) in _LATER or (not code(error) and isinstance(error, psycopg.OperationalError))


def _artifact_went(error: BaseException) -> bool:
    """Somebody removed a result's row between the look at it and the record that names it: the next try writes it anew."""
    return isinstance(error, psycopg.errors.ForeignKeyViolation) and error.diag.constraint_name == "step_artifact_fkey"


def explain(url: str, error: psycopg.Error) -> StoreUnavailable:
    """The error of the driver as ours."""
    state = code(error)
    if isinstance(error, Silent | psycopg.errors.ConnectionTimeout):
        return StoreUnavailable(url, _SILENT)
    words = _WHY.get(state) or _WHY.get(state[:2])
    if words is None:
        words = _REFUSED if isinstance(error, psycopg.OperationalError) and not state else "PostgreSQL says: {message}"
    return StoreUnavailable(url, words.format(message=_message(error)))


def _message(error: psycopg.Error) -> str:
    """The first line of what the server or the driver said: it names the row, the host, the reason."""
    said = error.diag.message_primary or str(error)
    return said.strip().partition("\n")[0].strip().rstrip(":.") or type(error).__name__
