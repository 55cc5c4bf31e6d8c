"""Where the server programs are, and how one is started as a user that may run it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

OLDEST = 15  #: PostgreSQL's major version that is supported

#: package of Debian and Ubuntu: the program that shows whether it is here
PACKAGES = {"postgresql": "postgres", "pgbouncer": "pgbouncer", "faketime": "faketime"}


class Missing(RuntimeError):
    """A program is not on this machine; the sentence says how to get it."""


def find(program: str) -> Path | None:
    """Where a program is: on PATH, in ``/usr/sbin``, or in Debian's folder of the newest PostgreSQL."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found:
        return Path(found)
    versions = (path for path in Path("/usr/lib/postgresql").glob(f"*/bin/{program}") if path.parts[-3].isdigit())
    newest = max(versions, key=lambda path: int(path.parts[-3]), default=None)
    return newest if newest is not None and int(newest.parts[-3]) >= OLDEST else None


def need(program: str) -> Path:
    """Where a program is.

    Raises:
        Missing: it is not here.
    """
    if (path := find(program)) is not None:
        return path
    package = next((package for package, shown in PACKAGES.items() if shown == program), "postgresql")
    raise Missing(f"{program} is not installed (Debian and Ubuntu: apt-get install {package})")


def missing() -> list[str]:
    """The packages that have to be installed."""
    return [package for package, program in PACKAGES.items() if find(program) is None]


def account() -> dict[str, Any]:
    """Who runs the servers, as arguments of ``subprocess``: they refuse to run as root."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise Missing("PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody")


def folder(prefix: str) -> Path:
    """A new temporary folder that belongs to whoever runs the servers. Not pytest's: others may not enter those."""
    made = Path(tempfile.mkdtemp(prefix=prefix))
    give(made)
    return made


def give(path: Path) -> None:
    """Let a file or folder belong to whoever runs the servers."""
    if who := account():
        os.chown(path, who["user"], who["group"])


def free_port() -> int:
    """A port of the loopback network that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(command: Sequence[str | Path], log: Path) -> subprocess.Popen[bytes]:
    """Start a server, in a group of its own: a Ctrl-C meant for the tests must not stop it in their middle."""
    with log.open("ab") as out:
        give(log)
        return subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/",
            start_new_session=True, **account(),
        )  # fmt: skip


def end(process: subprocess.Popen[bytes], how: signal.Signals, wait_s: float = 20) -> None:
    """Send a signal and wait until the process is gone; what does not go is killed."""
    if process.poll() is not None:
        return
    process.send_signal(how)
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(wait_s)


def until(seen: Callable[[], Any], what: str, wait_s: float = 30) -> Any:
    """Wait for a state that can be observed.

    Raises:
        TimeoutError: it never came.
    """
    give_up = time.monotonic() + wait_s
    while not (found := seen()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what}: not within {wait_s:g} s")
        time.sleep(0.01)
    return found


class Server(ABC):
    """A server of ours, in a folder of its own. Use it as a context manager."""

    give_up = signal.SIGKILL  #: ends one whose port is somebody else's

    def __init__(self, what: str, place: Path) -> None:
        self.folder = place
        self.log = place / "log"
        self.port = 0
        self._what = what
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _begin(self) -> subprocess.Popen[bytes]:
        """Start the program on ``port``."""

    @abstractmethod
    def _answers(self) -> Literal["ours", "not ours"] | None:
        """Whether it is there; and it may be a stranger's."""

    @abstractmethod
    def close(self) -> None:
        """Stop it for good and remove what it wrote."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        """Where a database is, through it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it, on the port it had before; the first time on a free one."""
        for _ in range(5):
            self.port = self.port or free_port()
            self._process = self._begin()
            if until(self._answers, f"{self._what} on port {self.port} (see {self.log})") == "ours":
                return
            end(self._process, self.give_up)
            self.port = 0  # somebody else took it in between
        raise RuntimeError(f"{self._what} does not start: {self.log.read_text(errors='replace')[-2000:]}")
