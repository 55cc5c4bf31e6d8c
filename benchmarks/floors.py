"""Floors: the same bytes in SQLite with nothing around them. One transaction per step, JSON, no engine.

Each takes the folder it may write in and gives the seconds its steps took.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.payload import as_dict, message

_number = itertools.count()
INSERT = "INSERT INTO steps (run, seq, out) VALUES (?, ?, ?)"


def connect(path: Path | str, sync: str) -> sqlite3.Connection:
    """An append-only log on the rowid: a key of text in front would spill 1 KB payloads to overflow pages."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={sync}")
    connection.execute("CREATE TABLE IF NOT EXISTS steps (id INTEGER PRIMARY KEY, run TEXT, seq INTEGER, out TEXT)")
    return connection


@contextmanager
def fresh(folder: Path, sync: str) -> Iterator[sqlite3.Connection]:
    connection = connect(folder / f"floor{next(_number)}.db", sync)
    try:
        yield connection
    finally:
        connection.close()


async def trivial(i: int) -> dict[str, Any]:
    return as_dict(message(i))


async def run(connection: sqlite3.Connection, key: str, n: int, *, first: int = 0) -> None:
    """A run of *n* steps: one commit each."""
    for i in range(first, n):
        connection.execute(INSERT, (key, i, json.dumps(await trivial(i))))


async def read_steps(folder: Path, n: int, sync: str = "NORMAL") -> float:
    with fresh(folder, sync) as connection:
        started = perf_counter()
        await run(connection, "r", n)
        return perf_counter() - started


async def write_steps(folder: Path, n: int) -> float:
    """A claim before and a receipt after each step, both waiting for the disk."""
    with fresh(folder, "FULL") as connection:
        started = perf_counter()
        for i in range(n):
            connection.execute(INSERT, ("claim", i, json.dumps({"i": i})))
            connection.execute(INSERT, ("receipt", i, json.dumps(await trivial(i))))
        return perf_counter() - started


async def runs(folder: Path, count: int, steps: int, *, at_once: bool, sync: str) -> float:
    """*count* runs of *steps* steps over one connection, commits made in the event loop."""
    with fresh(folder, sync) as connection:
        started = perf_counter()
        if at_once:
            await asyncio.gather(*(run(connection, str(k), steps) for k in range(count)))
        else:
            for k in range(count):
                await run(connection, str(k), steps)
        return perf_counter() - started


def replay(path: Path | str) -> int:
    """Load and parse every stored result, as whatever memoises must. The number of results."""
    connection = connect(path, "NORMAL")
    rows = connection.execute("SELECT seq, out FROM steps WHERE run = ? ORDER BY seq", ("r",)).fetchall()
    done = {seq: json.loads(out) for seq, out in rows}
    connection.close()
    return len(done)


def contend(path: str, seconds: float) -> list[float]:
    """Commits on a file that other processes write too, with SQLite's own busy handler; seconds of each."""
    connection = connect(path, "FULL")
    connection.execute("PRAGMA busy_timeout=30000")
    text = json.dumps(as_dict(message(1)))
    waits: list[float] = []
    end = perf_counter() + seconds
    while (began := perf_counter()) < end:
        connection.execute(INSERT, ("r", 1, text))
        waits.append(perf_counter() - began)
    connection.close()
    return waits
