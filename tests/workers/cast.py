"""The processes of these tests, and the stores they share."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from stepseven import Layer, Question
from tests.servers import databases
from tests.servers.programs import until
from tests.workers import world
from tests.workers.world import World

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
SUBJECT = "tests.workers.subject"

#: the three databases, each skipped where it is not
EVERYWHERE = [
    "sqlite",
    # With a pooler in between it is the same database, and harder: directly, only with those tests that take their time.
    pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.soak]),
    pytest.param("pooled", marks=pytest.mark.pgbouncer),
]


@dataclass(frozen=True, slots=True)
class Shelf:
    """A store that processes share. ``url``: as they reach it; ``direct``: for other eyes, past a pooler."""

    url: str
    direct: str

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """What a query gives."""
        if self.direct.startswith("sqlite"):
            with closing(sqlite3.connect(self.direct.removeprefix("sqlite:///"), timeout=20)) as connection:
                connection.row_factory = sqlite3.Row
                return [dict(row) for row in connection.execute(sql).fetchall()]
        import psycopg
        from psycopg.rows import dict_row

        with psycopg.connect(self.direct, autocommit=True) as connection:
            connection.execute("SET search_path TO stepseven")
            return connection.cursor(row_factory=dict_row).execute(sql).fetchall()  # type: ignore[call-overload,no-any-return]

    def change(self, sql: str) -> None:
        """Change it behind the project's back."""
        if self.direct.startswith("sqlite"):
            with closing(sqlite3.connect(self.direct.removeprefix("sqlite:///"), timeout=20)) as connection, connection:
                connection.execute(sql)
            return
        import psycopg

        with psycopg.connect(self.direct, autocommit=True) as connection:
            connection.execute("SET search_path TO stepseven")
            connection.execute(sql)  # type: ignore[call-overload]

    def writable(self) -> bool:
        """Whether nobody holds the lock of an SQLite file."""
        if not self.direct.startswith("sqlite"):
            return True
        with closing(sqlite3.connect(self.direct.removeprefix("sqlite:///"), timeout=2, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as locked:
                if locked.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                return False
            connection.execute("ROLLBACK")
            return True

    def use(self, call: Callable[[Layer], Coroutine[Any, Any, T]]) -> T:
        """Do something with a layer of this process."""

        async def main() -> T:
            async with Layer(self.url) as layer:
                return await call(layer)

        return asyncio.run(main())

    def start(self, call: Any, run_id: str, client: str = "acme") -> None:
        """Leave a run to the workers."""
        self.use(lambda layer: layer.start(call, client=client, run_id=run_id))

    def status(self, run_id: str) -> str:
        """Where a run stands."""
        rows = self.rows(f"SELECT status FROM run WHERE id = '{run_id}'")
        return str(rows[0]["status"]) if rows else "unknown"

    def ended(self, *run_ids: str, wait_s: float = 100) -> None:
        """Wait until runs are done."""
        for run_id in run_ids:
            until(lambda run_id=run_id: self.status(run_id) == "done", f"run {run_id} is not done", wait_s)  # type: ignore[misc]

    def asked(self, run_id: str, kind: str, wait_s: float = 100) -> Question:
        """The open question of a kind about a run, as soon as it is asked."""

        def look() -> Question | None:
            found = self.use(lambda layer: layer.questions(run_id=run_id))
            return next((q for q in found if q.kind.value == kind), None)

        found: Question = until(look, f"nobody asks {kind} about {run_id}", wait_s)
        return found

    def answer(self, run_id: str, kind: str, value: Any) -> None:
        """Answer it."""
        question = self.asked(run_id, kind)
        self.use(lambda layer: layer.answer(question.id, value, by="ann"))


def shelf(kind: str, folder: Path, name: str = "workers") -> Shelf:
    """A new store on one of the three databases."""
    if kind == "sqlite":
        made = Shelf(f"sqlite:///{folder / 's7.db'}", f"sqlite:///{folder / 's7.db'}")
    else:
        direct = databases.new_database(name)
        made = Shelf(databases.new_database(name, pooled=True) if kind == "pooled" else direct, direct)
    made.use(lambda layer: layer.runs())  # its tables are there
    return made


class Player:
    """A process. Its output goes to files, so that nobody waits for a full pipe."""

    def __init__(self, name: str, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self.name = name
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=out, stderr=err,
                env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "400", world.WHO: name, **env},
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The process's."""
        return self.process.pid

    def out(self) -> str:
        """What it has printed."""
        return self._out.read_text(errors="replace")

    def err(self) -> str:
        """What it has said."""
        return self._err.read_text(errors="replace")

    def says(self, what: str, wait_s: float = 100) -> None:
        """Wait until it has said something."""
        until(
            lambda: what in self.err() + self.out() or self.process.poll() is not None,
            f"{self.name} does not say {what!r}",
            wait_s,
        )
        assert what in self.err() + self.out(), f"{self.name} has ended: {self.err()}"

    def freeze(self, store: Shelf) -> None:
        """It does nothing any more, and does not know it; outside a transaction: there it would hold up everybody on SQLite."""
        while True:
            self.process.send_signal(signal.SIGSTOP)
            until(lambda: Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", f"{self.name} runs on")
            if store.writable():
                return
            self.thaw()

    def thaw(self) -> None:
        """It goes on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """It is gone."""
        self.process.kill()
        self.process.wait(20)

    def stop(self) -> int:
        """Tell it to stop, and wait for its end: its exit code."""
        self.thaw()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)


@contextmanager
def players(outside: World, folder: Path) -> Iterator[Callable[..., Player]]:
    """Starts processes: ``play(name, *command, **env)``. Whatever is left of them at the end is killed."""
    with ExitStack() as stack:

        def play(name: str, *command: str, **env: str) -> Player:
            player = Player(name, [sys.executable, *command], folder, {world.URL: outside.url, **env})
            stack.callback(player.process.__exit__, None, None, None)
            stack.callback(player.kill)
            return player

        yield play


def worker(
    play: Callable[..., Player],
    name: str,
    store: Shelf,
    concurrency: int,
    *,
    module: str = SUBJECT,
    entry: str = "stepseven",
    **env: str,
) -> Player:
    """A worker, as a user starts one (or wrapped: *entry*); registered when this returns."""
    before = len(store.rows("SELECT id FROM worker WHERE modules IS NOT NULL"))
    command = ("-m", entry, "worker", module, "--concurrency", str(concurrency))
    made = play(name, *command, STEPSEVEN_URL=store.url, **env)
    made.says("takes runs of")
    until(lambda: len(store.rows("SELECT id FROM worker WHERE modules IS NOT NULL")) > before, f"{name} is not registered")
    return made


def id_of(store: Shelf, player: Player) -> str:
    """A worker's id, by its process."""
    return str(store.rows(f"SELECT id FROM worker WHERE pid = {player.pid}")[0]["id"])
