"""The same rows in a SQLite file and in a PostgreSQL database, made of everything that was ever awkward."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from stepseven.store.sqlite import SqliteStore

#: Texts that databases were seen to treat differently: controls, quotes, other planes, both normal forms, every case.
TEXTS = (
    "", " ", "a", "A", "ä", "a\u0308", "é", "ß", "İ", "\U0001f600", "\x01\x08\t\n\x0c\r\x1b\x1f\x7f\x85\u2028", '"', "\\",
    "\\u0000", "'; --", "%s", "%(x)s", ":x", "$1", "null", "…", "{}", "\ufeff", "\uffff", "z" * 500,
)  # fmt: skip
#: JSON as our codec writes it: a NUL and half a character only as an escape, numbers that a float cannot hold.
VALUES = (
    "null", "true", "0", "-1", "123456789012345678901234567890", "1e400", "0.1", '"\\u0000"', '"\\ud800"', '"text"', "[]",
    '{"a":1,"a":2}', '{"b":[1,2.50,"x"]}', json.dumps("x" * 350), json.dumps(["y" * 900] * 6), '"' + "ü" * 4100 + '"',
)  # fmt: skip
WIDE = "\U0001f600" * 500
TABLES = ("client", "fact", "run", "step", "attempt", "question", "artifact")


def empty(path: Path) -> str:
    """An empty SQLite store; its path."""
    SqliteStore(f"sqlite:///{path}", str(path)).close()
    return str(path)


def fill(path: str, seed: int, runs: int = 18) -> None:
    """Rows of *runs* runs, drawn from *seed*: no history, but what the columns may hold."""
    draw = random.Random(seed)
    with closing(sqlite3.connect(path)) as db, db:
        for client in range(3):
            db.execute("INSERT INTO client (id, created_us) VALUES (?, 1)", (f"c{client}",))
        for no in range(1, runs + 1):
            for table, row in _run(draw, no):
                columns = ", ".join(row)
                db.execute(f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))


def copy(path: str, url: str) -> None:
    """Bring every row of a SQLite store to an empty PostgreSQL one."""
    with closing(sqlite3.connect(path)) as db, psycopg.connect(url) as pg:
        db.row_factory = sqlite3.Row
        for table in TABLES:
            cursor = db.execute(f"SELECT * FROM {table}")
            computed = {"run_no", "seq"} if table == "step" else set()
            names = [name for name, *_ in cursor.description if name not in computed]
            into = sql.SQL("INSERT INTO stepseven.{} ({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(
                sql.Identifier(table),
                sql.SQL(", ").join(map(sql.Identifier, names)),
                sql.SQL(", ").join([sql.Placeholder()] * len(names)),
            )
            pg.cursor().executemany(into, [[row[name] for name in names] for row in cursor])


def _run(draw: random.Random, no: int) -> Iterator[tuple[str, dict[str, Any]]]:
    wide = no % 10 == 7
    text, value = lambda: WIDE if wide else draw.choice(TEXTS), lambda: draw.choice(VALUES)
    maybe = lambda given: given if draw.random() < 0.7 else None  # noqa: E731 - as short as what it stands for
    run_id, client, large = f"r{no}", f"c{no % 3}", wide or draw.random() < 0.3
    yield "run", {
        "no": no, "id": run_id, "client_id": client, "workflow": draw.choice(("w", "Ä", text() or "v")),
        "status": draw.choice(("queued", "running", "waiting", "done", "failed")), "goal": maybe(text()),
        "inputs": draw.choice([v for v in VALUES if v != "1e400"] + ['{"q":"Q3"}']), "next_step": maybe(text()),
        "waiting_for": maybe(draw.choice(("person", "timer"))),
        "remaining": draw.choice((None, "[]", '["a","b"]')), "open_questions": draw.choice((0, 0, 2)),
        "document": draw.choice((None, None, None, '{"kept":"…"}')), "created_us": no, "updated_us": no,
    }  # fmt: skip
    yield from _steps(draw, no, 200 if wide else draw.choice((0, 3, 12, 200 if large else 20)), wide)
    for key in range(100 if no % 10 == 4 else draw.choice((0, 1, 3, 45 if large else 5))):
        for version in range(1, draw.choice((2, 2, 4))):
            yield "fact", {
                "client_id": client, "key": f"{no}.{draw.choice('aAäz')}{key}", "version": version, "value": value(),
                "run_id": draw.choice((run_id, None)), "set_us": draw.randrange(99),
            }  # fmt: skip
    for n in range(60 if wide else draw.choice((0, 1, 4, 60 if large else 8))):
        status = draw.choice(("open", "answered", "answered", "expired"))
        yield "question", {
            "id": f"q{no}.{n}", "run_no": no, "client_id": client, "branch": draw.choice(("", "m[1]")), "key": str(n), "n": 1,
            "kind": draw.choice(("ask", "failure")), "step": draw.choice((None, "s1", "s2")), "text": text() * 9, "options": "[]",
            "context": "{}", "asked_seq": 0, "status": status, "answer": value() if status == "answered" else None,
            "answered_by": maybe(text()), "answered_us": draw.randrange(20) if status == "answered" else None,
            "folded_into": draw.choice((None, None, None, "q0")), "created_us": draw.randrange(20),
        }  # fmt: skip


def _steps(draw: random.Random, no: int, count: int, wide: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    names = ("s1", "s2", "S1", "ß", "client.find", "Client.find", "Run.x", *(f"many{n}" for n in range(70 if count > 100 else 2)))
    done: set[tuple[str, str, str, int]] = set()
    for seq in range(1, count + 1):
        name = draw.choice((*names, "run.map", "client.get", "client.get"))
        branch = "" if wide else draw.choice(("", "", "m1[0]", "m1[1]", "m2[0]/x", "m2[0]/x[3]", "nothing"))
        key = f"m{draw.randrange(1, 3)}" if name == "run.map" else draw.choice(("k", "K", "ä", f"k{seq}"))
        generation = draw.choice((1, 1, 2, 3))
        if (branch, name, key, generation) in done:
            continue
        done.add((branch, name, key, generation))
        result = json.dumps({"step": "ä", "of": draw.randrange(5)}) if name == "run.map" else draw.choice((*VALUES, None))
        yield "step", {
            "id": (no << 24) + seq, "branch": branch, "name": name, "key": key, "generation": generation,
            "state": draw.choice(("done", "done", "done", "begun", "failed", "skipped")), "result": result,
            "summary": WIDE if wide else draw.choice((None, None, *TEXTS)), "usd": draw.choice((None, 0, 1, 20_000, 10**12)),
            "tokens": draw.choice((None, 0, 7)), "started_us": draw.randrange(30), "ended_us": draw.choice((None, 31)),
        }  # fmt: skip
        for n in range(1, draw.choice((1, 1, 1, 3))):
            yield "attempt", {
                "run_no": no, "branch": branch, "name": name, "key": f"{key}.{generation}", "n": n,
                "approach": draw.choice((None, "other", '"')), "outcome": draw.choice((None, "failed", "unknown", "deferred")),
                "kind": draw.choice((None, "fixable", "retryable")), "reason": draw.choice((None, *TEXTS)),
                "usd": draw.choice((None, 5)), "tokens": None, "started_us": draw.randrange(40),
            }  # fmt: skip
