"""Where the chaos takes place: a database behind a line that can be cut, workers, and somebody who feels the pulse."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from tests.chaos.counter import ROOT, Outside
from tests.servers.bouncer import Bouncer
from tests.servers.postgres import Cluster
from tests.servers.proxy import Proxy

Kind = Literal["sqlite", "postgres", "pooled"]

#: everything a run leaves when it gets on
PROGRESS = """SELECT (SELECT count(*) FROM {0}step), (SELECT coalesce(sum(fence), 0) FROM {0}run),
    (SELECT count(*) FROM {0}effect WHERE state = 'done'), (SELECT count(*) FROM {0}question WHERE status <> 'open'),
    (SELECT count(*) FROM {0}run WHERE ended_us IS NOT NULL), (SELECT count(*) FROM {0}run WHERE ended_us IS NULL)"""


@dataclass(frozen=True, slots=True)
class Stall:
    """The longest time in which no run got on, while the servers were up."""

    seconds: float
    at_s: float
    progress: tuple[int, ...]


class Stage:
    """Everything that can be broken. A context manager.

    Args:
        kind: which database, and what is before it.
        folder: for files.
        env: what worker processes are told.
    """

    def __init__(self, kind: Kind, folder: Path, outside: Outside, **env: str) -> None:
        self.kind = kind
        self.folder = folder
        self.outside = outside
        self._env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "CHAOS_PORT": str(outside.port), **env}
        self._cluster = Cluster() if kind != "sqlite" else None
        self._bouncer: Bouncer | None = None
        self._proxy: Proxy | None = None
        self._up = threading.Event()
        self._up.set()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._locks: list[threading.Lock] = []
        self._closed = False
        self._command: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        try:
            if self._cluster is not None:
                self._cluster.start()
                upstream = self._cluster.port
                if self.kind == "pooled":
                    self._bouncer = Bouncer(upstream)
                    self._bouncer.start()
                    upstream = self._bouncer.port
                self._proxy = Proxy(upstream).__enter__()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        for worker in self._workers:
            if worker.poll() is None:
                worker.kill()
        for worker in self._workers:
            worker.wait(20)
        for part in (self._proxy, self._bouncer, self._cluster):
            if part is not None:
                part.close()

    @property
    def url(self) -> str:
        """The store, by the way that breaks."""
        if self._proxy is None:
            return f"sqlite:///{self.folder / 'chaos.db'}"
        return f"postgresql://postgres@127.0.0.1:{self._proxy.port}/postgres"

    def proxy(self) -> Proxy:
        assert self._proxy is not None
        return self._proxy

    # -- workers --------------------------------------------------------------------------------------------------------

    def hire(self, many: int, *command: str) -> None:
        """Start workers: ``python -m`` and *command*, in which ``{n}`` is the worker's number."""
        self._command = command
        for n in range(many):
            self._locks.append(threading.Lock())
            self._workers.append(self._start(n))

    def _start(self, n: int) -> subprocess.Popen[bytes]:
        with (self.folder / f"worker{n}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *(part.replace("{n}", str(n)) for part in self._command)],
                cwd=ROOT, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, n: int, *, away_s: float) -> bool:
        """``kill -9`` of a worker; another one comes in its place. ``False``: something is being done to it already."""
        with self._busy(n) as mine:
            if not mine:
                return False
            self._workers[n].kill()
            self._workers[n].wait(20)
            time.sleep(away_s)
            if not self._closed:
                self._workers[n] = self._start(n)
        return True

    def freeze(self, n: int, seconds: float) -> bool:
        """Let a worker stand still. ``False``: something is being done to it already."""
        with self._busy(n) as mine:
            if not mine:
                return False
            os.kill(self._workers[n].pid, signal.SIGSTOP)
            try:
                time.sleep(seconds)
            finally:
                os.kill(self._workers[n].pid, signal.SIGCONT)
        return True

    @contextmanager
    def _busy(self, n: int) -> Iterator[bool]:
        mine = self._locks[n].acquire(blocking=False)
        try:
            yield mine
        finally:
            if mine:
                self._locks[n].release()

    def dismiss(self, within: float = 100) -> list[int]:
        """Ask every worker to stop; their exit codes."""
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        return [worker.wait(within) for worker in self._workers]

    def wait(self, within: float) -> None:
        """Wait until every worker has ended by itself."""
        codes = [worker.wait(within) for worker in self._workers]
        assert codes == [0] * len(codes), f"{codes}\n{self.logs()}"

    def logs(self) -> str:
        """The end of what each worker said."""
        return "\n".join(
            f"-- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(self.folder.glob("*.log"))
        )

    # -- servers --------------------------------------------------------------------------------------------------------

    @property
    def direct(self) -> str:
        """The database itself, past everything that breaks."""
        assert self._cluster is not None
        return self._cluster.url()

    def stop_server(self) -> None:
        """The database falls over, and stays so."""
        assert self._cluster is not None
        self._up.clear()
        self._cluster.stop("immediate")

    def start_server(self) -> None:
        """It is there again."""
        assert self._cluster is not None
        self._cluster.start()
        self._up.set()

    def restart_server(self, how: Literal["fast", "immediate"]) -> None:
        """Stop the database and start it again."""
        assert self._cluster is not None
        with self._away():
            self._cluster.restart(how)

    def restart_pooler(self) -> None:
        """Stop the pooler and start it again."""
        assert self._bouncer is not None
        with self._away():
            self._bouncer.restart()

    @contextmanager
    def _away(self) -> Iterator[None]:
        self._up.clear()
        try:
            yield
        finally:
            self._up.set()

    # -- looking --------------------------------------------------------------------------------------------------------

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """What a query says, past everything that breaks; ``{0}`` stands for the schema."""
        if self._cluster is None:
            with closing(sqlite3.connect(self.folder / "chaos.db", timeout=60)) as connection:
                return connection.execute(sql.format(""), params).fetchall()
        with self._cluster.connect() as connection:
            found: list[tuple[Any, ...]] = connection.execute(
                sql.format("stepseven.").replace("?", "%s"), params or None
            ).fetchall()
        return found

    def settled(self, many: int) -> bool:
        """Whether so many runs have ended, and none has not."""
        ((ended, live),) = self.rows("SELECT count(ended_us), count(*) - count(ended_us) FROM {0}run")
        return (ended, live) == (many, 0)


class Pulse:
    """Feels, in a thread of its own, whether anything gets on. A context manager."""

    def __init__(self, stage: Stage) -> None:
        self.longest = Stall(0.0, 0.0, ())
        self._stage = stage
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feel, name="pulse")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(70)

    def _feel(self) -> None:
        begun = last = time.monotonic()
        before: tuple[int, ...] = ()
        while not self._over.wait(0.1):
            now = self._progress()
            at = time.monotonic()
            if now is None or now != before:
                last, before = at, now or before
            elif at - last > self.longest.seconds:
                self.longest = Stall(at - last, last - begun, before)

    def _progress(self) -> tuple[int, ...] | None:
        """What stands by now; ``None``: the servers are away, or nothing is left to do."""
        if not self._stage._up.is_set():
            return None
        try:
            (row,) = self._stage.rows(PROGRESS)
        except Exception as error:  # noqa: BLE001 - whatever the driver calls it
            del error  # a server on its way down or up
            return None
        return (*map(int, row), self._stage.outside.total()) if row[-1] else None
