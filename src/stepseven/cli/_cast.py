"""The processes of a demo: servers and workers, each real, each stopped at the end by its pid."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.request import Request, urlopen

import stepseven
from stepseven.cli._common import Exit, Refused

TIMEOUT_S = 120.0  # one worker from start to end; it needs two seconds on an idle machine
_WORKER_LOG = "worker.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a worker ended, as the operating system tells it."""

    pid: int
    code: int
    said: str

    @property
    def signal(self) -> int:
        """The signal that ended it; 0: none did."""
        return max(0, -self.code)

    @property
    def signal_name(self) -> str:
        """``SIGKILL``."""
        return signal.Signals(self.signal).name if self.signal else "none"

    @property
    def waiting(self) -> bool:
        """Whether its run waits for a person."""
        return self.code == Exit.WAITING


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A server that runs: its process and its address."""

    pid: int
    url: str

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """GET *path*, or POST *body* to it; the decoded answer."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, {"Content-Type": "application/json"})  # noqa: S310 - the URL is our child's
        with urlopen(request, timeout=10) as answer:  # noqa: S310 - the same
            return json.load(answer)


@dataclass(slots=True, kw_only=True)
class Cast:
    """Who plays. ``folder``: where they work and write their logs; ``env``: their environment."""

    folder: Path
    env: dict[str, str]
    _children: list[subprocess.Popen[str]] = field(default_factory=list)

    def launch(self, module: str, arguments: list[str], *, stdout: int = subprocess.DEVNULL, log: str) -> subprocess.Popen[str]:
        """Start ``python -m MODULE`` and leave it running. Its stdin ends when this process does, however that ends."""
        with (self.folder / log).open("a", encoding="utf-8") as errors:
            child = subprocess.Popen(  # noqa: S603 - our own module, by this interpreter
                [sys.executable, "-m", module, *arguments], cwd=self.folder, env=self.env, stdin=subprocess.PIPE,
                stdout=stdout, stderr=errors, text=True,
            )  # fmt: skip
        self._children.append(child)
        return child

    def serve(self, what: str, module: str, arguments: list[str], *, log: str) -> Service:
        """Start a server, which prints its URL first.

        Raises:
            Refused: it does not start.
        """
        child = self.launch(module, [*arguments, "--stop-with-stdin"], stdout=subprocess.PIPE, log=log)
        assert child.stdout is not None  # noqa: S101 - asked for above
        url = child.stdout.readline().strip()
        if not url.startswith("http"):
            raise Refused(f"{what} of the demo did not start: {self.folder / log} tells why")
        return Service(pid=child.pid, url=url)

    def work(self, module: str, arguments: list[str]) -> subprocess.Popen[str]:
        """Start a worker and leave it running."""
        return self.launch(module, arguments, log=_WORKER_LOG)

    def wait(self, worker: subprocess.Popen[str]) -> Ended:
        """Wait until a worker ended by itself.

        Raises:
            Refused: it takes far too long.
        """
        try:
            code = worker.wait(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            told = f"the worker (process {worker.pid}) did not end within {TIMEOUT_S:.0f} s: {self.last_words()}"
            raise Refused(told) from error
        return Ended(pid=worker.pid, code=code, said=self.last_words())

    def kill(self, worker: subprocess.Popen[str]) -> Ended:
        """SIGKILL: it cannot be caught, nothing is cleaned up."""
        os.kill(worker.pid, signal.SIGKILL)
        return self.wait(worker)

    def last_words(self) -> str:
        """The last line a worker wrote to stderr."""
        lines = (self.folder / _WORKER_LOG).read_text("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")

    def close(self) -> None:
        """Stop whoever still runs, the last one first."""
        for child in reversed(self._children):
            if child.poll() is None:
                child.kill()
                child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()


@contextmanager
def heeding_term() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: with everything that it started."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise SystemExit(Exit.TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def absolute(store: str) -> str:
    """The URL of a store as children find it, who work in another folder."""
    if not store.startswith("sqlite:///"):
        return store
    return f"sqlite:///{Path(store.removeprefix('sqlite:///')).absolute()}"


def example(name: str) -> tuple[str, dict[str, str]]:
    """An example's package, and an environment in which ``python -m`` finds it.

    Raises:
        Refused: it is neither in this installation nor beside this checkout.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("STEPSEVEN_")}
    if importlib.util.find_spec("stepseven.examples") is not None:
        return f"stepseven.examples.{name}", env
    root = Path(stepseven.__file__).resolve().parents[2]
    if (root / "examples" / name / "__init__.py").is_file():
        path = os.pathsep.join(p for p in (str(root), env.get("PYTHONPATH", "")) if p)
        return f"examples.{name}", {**env, "PYTHONPATH": path}
    raise Refused(f"the example `{name}` is not part of this installation: install stepseven from its wheel, or use a checkout")
