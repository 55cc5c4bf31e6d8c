"""A private PostgreSQL server for the rows that need one, and floors in it: psycopg with nothing around it.

The server is the one of the tests (``tests/servers``): started when the first row asks, in a temporary folder, on a free port
of the loopback network, with its settings as they come, so that it waits for the disk; ended with this process.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from time import perf_counter
from typing import Any

import psycopg

from benchmarks.floors import trivial
from benchmarks.payload import as_dict, message
from tests.servers.postgres import Cluster

_number = itertools.count()
INSERT = "INSERT INTO steps VALUES (%s, %s, %s)"


@cache
def cluster() -> Cluster:
    """The server."""
    made = Cluster()
    atexit.register(made.close)
    made.start()
    return made


def database() -> str:
    """A new empty database, as a URL."""
    name = f"bench{next(_number)}"
    with cluster().connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return cluster().url(name)


def copy(url: str) -> str:
    """A database as it is, once more. Nobody is connected to it."""
    name = f"bench{next(_number)}"
    with cluster().connect() as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {url.rsplit('/', 1)[1]}")
    return cluster().url(name)


def drop(url: str) -> None:
    """Away with it: what is left behind is what the server's background has to do during the next round."""
    with cluster().connect() as connection:
        connection.execute(f"DROP DATABASE {url.rsplit('/', 1)[1]} WITH (FORCE)")


@contextmanager
def fresh(*, lazy: bool) -> Iterator[psycopg.Connection[Any]]:
    """A connection that commits each statement, to a new database; *lazy*: without waiting for the disk."""
    url = database()
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE steps (run text, seq integer, out text, PRIMARY KEY (run, seq))")
            if lazy:
                connection.execute("SET synchronous_commit = off")
            yield connection
    finally:
        drop(url)


async def run(connection: psycopg.Connection[Any], key: str, n: int) -> None:
    """A run of *n* steps: one commit each."""
    for i in range(n):
        connection.execute(INSERT, (key, i, json.dumps(await trivial(i))))


async def read_steps(n: int, *, lazy: bool = True) -> float:
    with fresh(lazy=lazy) as connection:
        await run(connection, "warm", 10)
        started = perf_counter()
        await run(connection, "r", n)
        return perf_counter() - started


async def write_steps(n: int) -> float:
    """A claim before and a receipt after each step, both waiting for the disk."""
    with fresh(lazy=False) as connection:
        await run(connection, "warm", 10)
        started = perf_counter()
        for i in range(n):
            connection.execute(INSERT, ("claim", i, json.dumps({"i": i})))
            connection.execute(INSERT, ("receipt", i, json.dumps(await trivial(i))))
        return perf_counter() - started


async def runs(count: int, steps: int, *, at_once: bool) -> float:
    """*count* runs of *steps* steps over one connection."""
    with fresh(lazy=True) as connection:
        started = perf_counter()
        if at_once:
            await asyncio.gather(*(run(connection, str(k), steps) for k in range(count)))
        else:
            for k in range(count):
                await run(connection, str(k), steps)
        return perf_counter() - started


def step_bytes(url: str) -> int:
    """What the tables of a database take, indexes and all, once their dead rows are gone."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM")
        row = connection.execute(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace IN "
            "(SELECT oid FROM pg_namespace WHERE nspname IN ('stepseven', 'public'))"
        ).fetchone()
        return int(row[0]) if row is not None else 0


async def floor_bytes(n: int) -> float:
    with fresh(lazy=True) as connection:
        await run(connection, "r", n)
        return step_bytes(cluster().url(connection.info.dbname)) / n


def replay(url: str) -> int:
    """Load and parse every stored result. The number of results."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute("SELECT seq, out FROM steps WHERE run = %s ORDER BY seq", ("r",)).fetchall()
    return len({seq: json.loads(out) for seq, out in rows})


def fill(url: str, n: int) -> None:
    """The results that ``replay`` reads."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE steps (run text, seq integer, out text, PRIMARY KEY (run, seq))")
        with connection.cursor() as cursor:
            cursor.executemany(INSERT, [("r", i, json.dumps(as_dict(message(i)))) for i in range(n)])
