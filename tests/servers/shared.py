"""One server and one pooler for all test processes of a session, started when the first of them asks.

A session has a folder, whose name travels in the environment. Whoever needs the servers first starts a *keeper*, a process
that starts both, writes down where they are, and ends them as soon as the session's own process is gone, however it went.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import programs
from tests.servers.bouncer import Bouncer
from tests.servers.postgres import Cluster

SESSION = "STEPSEVEN_TEST_SERVERS"  #: the session's folder
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Shared:
    """Where the session's servers are."""

    port: int
    pooled_port: int

    def url(self, database: str = "postgres", *, pooled: bool = False) -> str:
        """Where a database is, directly or through the pooler."""
        return f"postgresql://postgres@127.0.0.1:{self.pooled_port if pooled else self.port}/{database}"


def open_session() -> Path | None:
    """Make this process a session, unless it belongs to one; its folder, which is made when somebody needs servers."""
    if SESSION in os.environ:
        return None
    folder = Path(tempfile.gettempdir(), f"stepseven-servers-{secrets.token_hex(4)}-{os.getpid()}")
    os.environ[SESSION] = str(folder)
    return folder


def _owner(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def close_session(folder: Path) -> None:
    """End the session's servers, if anybody started them."""
    os.environ.pop(SESSION, None)
    keeper = folder / "keeper"
    try:
        pid = int(keeper.read_text())
        os.kill(pid, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError):  # nobody needed servers, or their keeper was killed
        shutil.rmtree(folder, ignore_errors=True)
    else:
        programs.until(lambda: not folder.exists(), "the end of the test servers", 60)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def servers() -> Shared:
    """The session's servers.

    Raises:
        Missing: a program is not installed.
        RuntimeError: they do not start.
    """
    if SESSION not in os.environ:
        raise RuntimeError(f"no session: tests/conftest.py or `python -m tests.servers run` sets {SESSION}")
    folder = Path(os.environ[SESSION])
    with _locked(folder):
        if not (folder / "servers.json").exists():
            programs.need("postgres")
            programs.need("pgbouncer")
            _start_keeper(folder)
    return Shared(**json.loads((folder / "servers.json").read_text()))


def _start_keeper(folder: Path) -> None:
    log = folder / "keeper.log"
    with log.open("ab") as out:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.servers", "keep", str(folder)],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    programs.until(lambda: (folder / "servers.json").exists() or keeper.poll() is not None, f"the test servers (see {log})", 60)
    if not (folder / "servers.json").exists():
        raise RuntimeError(f"the test servers do not start: {log.read_text(errors='replace')[-2000:]}")
    keeper.returncode = 0  # it outlives this process on purpose: nobody waits for it here


def keep(folder: Path) -> None:
    """Be the keeper: start the servers, wait until the session is over, end them."""
    (folder / "keeper").write_text(str(os.getpid()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the context managers below end what they started
    try:
        owner = os.pidfd_open(_owner(folder))
        with Cluster() as cluster, Bouncer(cluster.port) as bouncer:
            made = folder / "servers.json.new"
            made.write_text(json.dumps({"port": cluster.port, "pooled_port": bouncer.port}))
            made.replace(folder / "servers.json")
            select.select([owner], [], [])  # a pidfd is readable when its process has ended
    finally:
        shutil.rmtree(folder, ignore_errors=True)
