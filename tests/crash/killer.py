"""Children that are killed at a chosen place: a server that has everything imported, and forks.

A child costs some milliseconds instead of half a second. It runs ``subject.main`` with SQLite's connection, the sync calls
and the HTTP client wrapped from outside, and sends SIGKILL to itself at the K-th point of one kind:

    commit   COMMIT, a write outside a transaction, a checkpoint     disk     fsync, fdatasync, rename of an artifact
    send     bytes to the outside                                    answer   the outside's answer (after: it was read)

The commit wrapper also keeps copies of what has reached the disk for certain: the files as they were when a commit with
``synchronous=FULL`` returned. A power loss is played by putting the newest copy in the place of the files.
"""

from __future__ import annotations

import functools
import http.client
import importlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parents[2]
WHERE = ("commit", "disk", "send", "answer")


@dataclass(frozen=True, slots=True)
class Kill:
    """Where a child dies: at the *at*-th point of a kind, on one side of it. ``full``: it lives, and SQLite says "full"."""

    where: str
    at: int
    side: str = "before"
    times: int = 1  # so many in a row are refused (``full``)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One child's life. ``power``: keep copies of what is on the disk; ``pages``: SQLite's file may have so many."""

    state: str
    url: str
    kill: Kill | None = None
    how: str = "resume"
    power: bool = False
    pages: int | None = None
    ahead_us: int = 0  # its clock is ahead by so much
    main: str = "tests.crash.subject:main"


@dataclass(frozen=True, slots=True)
class End:
    """How it ended. ``points``: how many of each kind it met, if it was not killed."""

    code: int
    out: str = ""
    err: str = ""
    points: dict[str, int] = field(default_factory=dict)

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


# -- in the child ---------------------------------------------------------------------------------------------------------------


class Faults:
    """Counts points and kills at the chosen one."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.counts = dict.fromkeys(WHERE, 0)
        self._lock = threading.Lock()
        self._copies = len(list(Path(f"{life.state}.disk").glob("*")))

    def around(self, where: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Make *call*, which is a point of kind *where*."""
        with self._lock:
            self.counts[where] += 1
            at = self.counts[where]
        kill = self.life.kill
        here = kill is not None and kill.where == where and kill.at <= at < kill.at + kill.times
        if here and kill is not None and kill.side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if here and kill is not None and kill.side == "full":
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        result = call(*args, **kwargs)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def copy(self) -> None:
        """Everything written so far is on the disk: keep it as it is now."""
        self._copies += 1
        folder = Path(f"{self.life.state}.disk/{self._copies:05}")
        folder.mkdir(parents=True)
        for name in ("s.db", "s.db-wal"):
            path = Path(self.life.state, name)
            if path.exists():
                shutil.copyfile(path, folder / name)
        (folder / "whole").touch()

    def install(self) -> None:
        """Wrap what the subject talks to the world with."""
        faults = self

        class Connection(sqlite3.Connection):
            def execute(self, statement: str, *parameters: Any) -> Any:
                made = super().execute
                first = statement.split(None, 2)[:2]
                ends = first[0] == "COMMIT" or (first[0] in ("INSERT", "UPDATE", "DELETE") and not self.in_transaction)
                if not ends and not (first[0] == "PRAGMA" and first[1].startswith("wal_checkpoint")):
                    return made(statement, *parameters)

                def whole() -> Any:
                    cursor = made(statement, *parameters)
                    if ends and faults.life.power and made("PRAGMA synchronous").fetchone()[0] >= 2:
                        faults.copy()  # before it may be killed after it: the disk has it
                    return cursor

                return faults.around("commit", whole)

        def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            connection = real_connect(*args, factory=Connection, **kwargs)
            if faults.life.pages is not None:
                connection.execute(f"PRAGMA max_page_count={faults.life.pages}")
            return connection

        real_connect = sqlite3.connect
        sqlite3.connect = connect  # type: ignore[assignment]
        for name in ("fsync", "fdatasync", "replace"):
            setattr(os, name, functools.partial(self.around, "disk", getattr(os, name)))
        send, answer = http.client.HTTPConnection.send, http.client.HTTPConnection.getresponse
        http.client.HTTPConnection.send = lambda c, data: faults.around("send", send, c, data)  # type: ignore[method-assign]
        http.client.HTTPConnection.getresponse = lambda c: faults.around("answer", answer, c)  # type: ignore[method-assign]


def _child(life: Life, out: Path) -> None:
    """Live one life; never returns."""
    code = 1
    faults = Faults(life)
    try:
        for fd, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(out / name, os.O_CREAT | os.O_WRONLY), fd)
        from stepseven.runtime.edge import Edge
        from tests.crash import subject

        class Ahead(Edge):
            def now_us(self) -> int:
                return super().now_us() + life.ahead_us

        subject.World.says = True
        subject.World.late = life.ahead_us >= subject.DAY_US
        module, _, name = life.main.partition(":")
        main = getattr(importlib.import_module(module), name)
        faults.install()
        code = main(life.state, life.url, life.how, Ahead())
    except SystemExit as told:
        sys.stderr.write(str(told.code))
        code = told.code if isinstance(told.code, int) else 1
    except BaseException:  # noqa: BLE001 - shown by whoever reads stderr
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        (out / "points").write_text(json.dumps(faults.counts))
        os._exit(code)


# -- the server -----------------------------------------------------------------------------------------------------------------


def serve() -> None:
    """Fork a child for every line on stdin; say on stdout how it ended."""
    import tests.crash.family
    import tests.crash.poison  # noqa: F401 - loaded once, before any fork
    from tests.crash import subject

    with tempfile.TemporaryDirectory() as folder:  # one untroubled run: what is made once and kept is made before any fork
        subject.drive_quietly(folder, sys.argv[1])
    idle = {thread.name for thread in threading.enumerate()} - {"MainThread"}
    assert idle <= {"stepseven_step"}, f"a fork needs a process without threads that do something: {idle}"
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for request in sys.stdin:
        told = json.loads(request)
        life = Life(**{**told, "kill": Kill(**told["kill"]) if told["kill"] else None})
        out = Path(tempfile.mkdtemp(prefix="life_"))
        pid = os.fork()
        if pid == 0:
            _child(life, out)
        give_up = time.monotonic() + 50
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > give_up:
                os.kill(pid, signal.SIGABRT)  # not the signal we look for: a child that hangs is a failure
            time.sleep(0.001)
        points = json.loads((out / "points").read_text()) if (out / "points").exists() else {}
        end = End(os.waitstatus_to_exitcode(ended[1]), *((out / n).read_text(errors="replace") for n in ("out", "err")), points)
        shutil.rmtree(out)
        sys.stdout.write(json.dumps(asdict(end)) + "\n")
        sys.stdout.flush()


class Forks:
    """The server as the tests see it. Use it as a context manager."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, "-c", "from tests.crash.killer import serve; serve()", self._url],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )  # fmt: skip
        if self._pipe(self._server.stdout).readline() != "ready\n":
            self.__exit__()
            raise RuntimeError("the untroubled run failed: see what the server wrote to stderr")
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe(self._server.stdin).close()
        self._server.wait(10)
        self._pipe(self._server.stdout).close()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def live(self, life: Life) -> End:
        """Let one child live until it ends, or dies."""
        pipe = self._pipe(self._server.stdin)
        pipe.write(json.dumps(asdict(life)) + "\n")
        pipe.flush()
        return End(**json.loads(self._pipe(self._server.stdout).readline()))


def cut_power(state: Path) -> None:
    """The machine went off: put back what is on the disk for certain."""
    whole = sorted(Path(f"{state}.disk").glob("*/whole"))
    for name in ("s.db", "s.db-wal", "s.db-shm"):
        (state / name).unlink(missing_ok=True)
        if whole and (whole[-1].parent / name).exists():
            shutil.copyfile(whole[-1].parent / name, state / name)
