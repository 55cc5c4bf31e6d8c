"""What a failure below HTTP means: connections, time-outs, certificates, databases. Two tables and how to look things up.

By class, ``errno`` and SQLSTATE, never by text. Classes of libraries are known by package and name, so nothing is imported.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sqlite3
import ssl
from collections.abc import Mapping, Sequence
from enum import StrEnum

from stepseven.decide._chain import attribute, text_of, while_connecting
from stepseven.decide._verdict import Asked, Handling, Proof, Verdict, sentence, signature


class Cause(StrEnum):
    """What happened. The values begin signatures, which are stored."""

    REFUSED = "connect-refused"
    CONNECT = "connect"
    CONNECT_TIMEOUT = "connect-timeout"
    DNS = "dns"
    CERTIFICATE = "certificate"
    TLS = "tls"
    TIMEOUT = "timeout"
    LOST = "connection-lost"
    CANCELLED = "cancelled"
    LOCKED = "locked"
    DATABASE = "database"


#: what to do, what it proves, and the reason: before, joining and after the name of the other side
MEANING: Mapping[Cause, tuple[Handling, Proof, tuple[str, str, str]]] = {
    Cause.REFUSED: (Handling.RETRYABLE, Proof.NOT_SENT, ("no connection", "to", "(refused)")),
    Cause.CONNECT: (Handling.RETRYABLE, Proof.NOT_SENT, ("no connection", "to", "")),
    Cause.CONNECT_TIMEOUT: (Handling.RETRYABLE, Proof.NOT_SENT, ("no connection", "to", "within the time-out")),
    Cause.DNS: (Handling.RETRYABLE, Proof.NOT_SENT, ("no address", "for", "(name look-up failed)")),
    Cause.CERTIFICATE: (Handling.FIXABLE, Proof.NOT_SENT, ("the certificate", "of", "was not accepted")),
    Cause.TLS: (Handling.RETRYABLE, Proof.NONE, ("the secure connection", "to", "failed")),
    Cause.TIMEOUT: (Handling.RETRYABLE, Proof.NONE, ("no answer", "from", "within the time-out")),
    Cause.LOST: (Handling.RETRYABLE, Proof.NONE, ("the connection", "to", "was lost")),
    Cause.CANCELLED: (Handling.RETRYABLE, Proof.NONE, ("cancelled before an answer", "from", "came")),
    Cause.LOCKED: (Handling.DEFERRAL, Proof.NONE, ("another transaction holds a lock", "in", "")),
    Cause.DATABASE: (Handling.RETRYABLE, Proof.NONE, ("the database", "of", "cannot be used now")),
}

_HTTPX: Mapping[str, Cause] = {
    "ConnectTimeout": Cause.CONNECT_TIMEOUT,
    "ConnectError": Cause.CONNECT,
    "ReadTimeout": Cause.TIMEOUT,
    "WriteTimeout": Cause.TIMEOUT,
    "PoolTimeout": Cause.TIMEOUT,
    "ReadError": Cause.LOST,
    "WriteError": Cause.LOST,
    "CloseError": Cause.LOST,
    "RemoteProtocolError": Cause.LOST,
    "ProxyError": Cause.LOST,
}
#: package → class → cause: the class alone tells
CERTAIN: Mapping[str, Mapping[str, Cause]] = {
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "httpcore": _HTTPX,
    "httpcore2": _HTTPX,
    "requests": {
        "ConnectTimeout": Cause.CONNECT_TIMEOUT,
        "ReadTimeout": Cause.TIMEOUT,
        "ChunkedEncodingError": Cause.LOST,
    },
    "urllib3": {
        "NameResolutionError": Cause.DNS,
        "NewConnectionError": Cause.CONNECT,
        "ConnectTimeoutError": Cause.CONNECT_TIMEOUT,
        "ReadTimeoutError": Cause.TIMEOUT,
        "ProtocolError": Cause.LOST,
    },
    "aiohttp": {
        "ConnectionTimeoutError": Cause.CONNECT_TIMEOUT,
        "ClientConnectorDNSError": Cause.DNS,
        "ClientConnectorError": Cause.CONNECT,
        "ServerTimeoutError": Cause.TIMEOUT,
        "ServerDisconnectedError": Cause.LOST,
        "ClientPayloadError": Cause.LOST,
    },
    "botocore": {
        "EndpointConnectionError": Cause.CONNECT,
        "ConnectTimeoutError": Cause.CONNECT_TIMEOUT,
        "ReadTimeoutError": Cause.TIMEOUT,
        "ConnectionClosedError": Cause.LOST,
    },
    "psycopg": {"ConnectionTimeout": Cause.CONNECT_TIMEOUT},
    # ``http.client``, by name like the others: loading it takes as long as all of ``decide``. RemoteDisconnected is the second.
    "http": {"IncompleteRead": Cause.LOST, "BadStatusLine": Cause.LOST},
}
#: the same for wrappers that say too little: what they were made from tells better
VAGUE: Mapping[str, Mapping[str, Cause]] = {
    "requests": {"ConnectionError": Cause.LOST, "Timeout": Cause.TIMEOUT, "RetryError": Cause.LOST},
    "urllib3": {"MaxRetryError": Cause.LOST, "ProxyError": Cause.LOST, "SSLError": Cause.TLS, "TimeoutError": Cause.TIMEOUT},
    "aiohttp": {"ClientConnectionError": Cause.LOST},
    "openai": {"APITimeoutError": Cause.TIMEOUT, "APIConnectionError": Cause.LOST},
    "anthropic": {"APITimeoutError": Cause.TIMEOUT, "APIConnectionError": Cause.LOST},
    "botocore": {"SSLError": Cause.TLS, "HTTPClientError": Cause.LOST},
    "psycopg": {"OperationalError": Cause.DATABASE},
    "psycopg2": {"OperationalError": Cause.DATABASE},
    "redis": {"ConnectionError": Cause.LOST, "TimeoutError": Cause.TIMEOUT},
    "websockets": {"ConnectionClosed": Cause.LOST},
}

_LOST = (
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
    asyncio.IncompleteReadError,
)
_NETWORK_ERRNOS = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ENETRESET, errno.ECONNRESET, errno.EPIPE}
)
#: what makes "no connection" more exact, best first
_EXACT = (Cause.CERTIFICATE, Cause.TLS, Cause.DNS, Cause.REFUSED, Cause.CONNECT_TIMEOUT)

# PostgreSQL manual, appendix A. 40001 serialization failure, 40P01 deadlock, 55P03 lock not available.
_LOCKED_STATES = frozenset({"40001", "40P01", "55P03"})
#: classes: connection, transaction rollback, resources, operator intervention, system error
_LATER_CLASSES = frozenset({"08", "40", "53", "57", "58"})
_SQLSTATE_LENGTH = 5


def certain(links: Sequence[BaseException], at: int) -> Cause | None:
    """What ``links[at]`` says beyond doubt, made exact by what it was made from."""
    cause = _certain(links[at])
    if cause is not Cause.CONNECT:
        return cause
    deeper = {_certain(link) for link in links[at:]} | {_by_errno(link) for link in links[at:]}
    return next((exact for exact in _EXACT if exact in deeper), cause)


def _certain(error: BaseException) -> Cause | None:
    if isinstance(error, asyncio.CancelledError):
        return Cause.CANCELLED
    if isinstance(error, ssl.SSLError):  # before the tables: aiohttp's is both, and a bare SSLError proves nothing
        return Cause.CERTIFICATE if isinstance(error, ssl.SSLCertVerificationError) else Cause.TLS
    cause = _named(error, CERTAIN)
    if cause is not None:
        return cause
    if isinstance(error, socket.gaierror):
        return Cause.DNS
    return Cause.LOST if isinstance(error, _LOST) else _by_errno(error)


def _by_errno(error: BaseException) -> Cause | None:
    refused = isinstance(error, OSError) and (isinstance(error, ConnectionRefusedError) or error.errno == errno.ECONNREFUSED)
    return Cause.REFUSED if refused else None


def vague(error: BaseException) -> Cause | None:
    """What an exception suggests, to be used when nothing it was made from says more."""
    cause = _named(error, VAGUE)
    if cause is Cause.DATABASE and while_connecting(error):
        return Cause.CONNECT
    if cause is not None:
        return cause
    if isinstance(error, TimeoutError):
        return Cause.TIMEOUT
    if isinstance(error, OSError) and error.errno in _NETWORK_ERRNOS:
        return Cause.LOST
    # asyncio gives up on several addresses (localhost: ::1 and 127.0.0.1) with an OSError that has nothing but this text.
    several = type(error) is OSError and error.errno is None and str(error).startswith("Multiple exceptions:")
    return Cause.LOST if several else None


def _named(error: BaseException, table: Mapping[str, Mapping[str, Cause]]) -> Cause | None:
    for cls in type(error).__mro__:
        cause = table.get(cls.__module__.partition(".")[0], {}).get(cls.__name__)
        if cause is not None:
            return cause
    return None


def meaning(cause: Cause, asked: Asked, host: str | None) -> Verdict:
    """The verdict on a cause at a host."""
    handling, proof, (head, joint, tail) = MEANING[cause]
    where = asked.resource or host
    words = [head, *((joint, where) if where else ()), tail]
    return Verdict(
        handling=handling,
        proof=proof,
        reason=sentence(" ".join(words)),
        resource=where,
        signature=signature(cause, asked, host),
    )


def database(error: BaseException, asked: Asked, host: str | None) -> Verdict | None:
    """The verdict on a database's error code, or ``None`` without one."""
    if isinstance(error, sqlite3.Error):
        code = attribute(error, "sqlite_errorcode")  # the low byte is the primary code
        busy = isinstance(code, int) and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        return meaning(Cause.LOCKED, asked, host) if busy else None
    state = attribute(error, "sqlstate") or attribute(error, "pgcode")  # psycopg and asyncpg; psycopg2
    if not isinstance(state, str) or len(state) != _SQLSTATE_LENGTH:
        return None
    if state in _LOCKED_STATES:
        return meaning(Cause.LOCKED, asked, host)
    if state[:2] in _LATER_CLASSES:
        return meaning(Cause.DATABASE, asked, host)
    return Verdict(
        handling=Handling.FIXABLE,
        proof=Proof.NONE,
        reason=sentence(f"the database refused ({state}): {text_of(error)}"),
        resource=asked.resource or host,
        signature=signature(f"sqlstate {state}", asked, host),
    )
