"""Worker processes, and waiting for what can be seen of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from tests.servers.databases import execute, exists, rows

ROOT = Path(__file__).resolve().parents[2]
START_S = 30.0  # for a process on a machine that others use, too


def environment(**more: str) -> dict[str, str]:
    """What a child process needs to find the code."""
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **more}


class Crew:
    """``stepseven worker`` processes on one store. A context manager: at its end all of them are gone."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.path = path
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.communicate()

    def hire(self, *modules: str, concurrency: int = 8, cwd: Path = ROOT, **env: str) -> subprocess.Popen[str]:
        """One more worker; it is registered when this returns."""
        before = {w["pid"] for w in self.registered()}
        command = [sys.executable, "-m", "stepseven", "--store", self.url, "worker", *(modules or ("tests.workers.flows",))]
        process = subprocess.Popen(
            [*command, "--concurrency", str(concurrency)], cwd=cwd, env=environment(**env), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.processes.append(process)
        give_up = time.monotonic() + START_S
        while process.pid not in {w["pid"] for w in self.registered()} - before:
            if process.poll() is not None or time.monotonic() > give_up:
                raise AssertionError(f"the worker did not start: {process.communicate()}")
            time.sleep(0.02)
        return process

    def registered(self) -> list[dict[str, Any]]:
        """The workers that take runs."""
        if not exists(self.path):
            return []
        return [w for w in rows(self.path, "SELECT id, host, pid, modules FROM worker") if w["modules"]]

    def who(self, process: subprocess.Popen[str]) -> str:
        """The id of a worker."""
        return next(str(w["id"]) for w in self.registered() if w["pid"] == process.pid)

    def elsewhere(self, process: subprocess.Popen[str]) -> None:
        """From now on this worker is on another machine, for all that others can tell."""
        execute(self.path, "UPDATE worker SET host = 'elsewhere' WHERE pid = ?", process.pid)


def ended(process: subprocess.Popen[str], *, within: float) -> tuple[int, str]:
    """Wait until a process ended: its exit code, and what it said on stderr."""
    _, err = process.communicate(timeout=within)
    return process.returncode, err


def freeze(process: subprocess.Popen[str]) -> None:
    """Stop it where it stands."""
    os.kill(process.pid, signal.SIGSTOP)


def thaw(process: subprocess.Popen[str]) -> None:
    """Let it go on."""
    os.kill(process.pid, signal.SIGCONT)


async def until(seen: Callable[[], Any] | Callable[[], Awaitable[Any]], *, within: float = 20.0) -> Any:
    """Wait for a state that can be observed; what was seen.

    Raises:
        AssertionError: it was not seen in time.
    """
    give_up = time.monotonic() + within
    while True:
        found = seen()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < give_up, f"not seen within {within} s"
        await asyncio.sleep(0.01)
