"""What the tests of runs share: databases, other processes, and processes that die at a given write."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import pytest

from stepseven import Layer
from stepseven.runtime import procedure
from stepseven.runtime.procedure import Workflow
from tests.servers import databases
from tests.servers.databases import bury, execute, exists, rows, url

__all__ = [
    "Crash", "alone", "bury", "child", "die_after", "execute", "exists", "hang_up", "module", "only_these", "records", "rows",
    "until_crash", "url",
]  # fmt: skip
T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]


class Crash(BaseException):
    """Stands for the end of the process: nothing is written any more."""


def records(path: Path, run_id: str) -> list[dict[str, Any]]:
    """The records of a run, in the order written."""
    return rows(path, "SELECT s.* FROM step AS s JOIN run AS r ON r.no = s.run_no WHERE r.id = ? ORDER BY s.id", run_id)


def only_these(monkeypatch: pytest.MonkeyPatch, *workflows: Workflow[Any, Any]) -> None:
    """The names of these workflows mean these, whatever other tests of this process have under them."""
    for each in workflows:
        monkeypatch.setitem(procedure.registry, each.name, each)
        monkeypatch.setitem(procedure._namesakes, each.name, WeakValueDictionary({each.fn.__module__: each}))


def alone(made: ModuleType) -> None:
    """The names of a module's workflows mean these, as in a process that never saw another module."""
    for value in vars(made).values():
        if isinstance(value, Workflow):
            procedure._namesakes[value.name] = WeakValueDictionary({value.fn.__module__: value})


def module(name: str, source: str) -> ModuleType:
    """A module of the given text, as an edited file would be after a restart: nothing else that was loaded is there any more."""
    made = ModuleType(name)
    sys.modules[name] = made
    exec(compile(textwrap.dedent(source), f"{name}.py", "exec"), made.__dict__)
    alone(made)
    return made


def die_after(layer: Layer, appends: int) -> None:
    """Let *layer* write so many records, and nothing after them."""
    store = layer.store
    left = [appends]

    def counting(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **how: Any) -> Any:
            if left[0] == 0:
                raise Crash
            written = write(*args, **how)
            if written is not None:  # else it has to queue, and is counted there
                left[0] -= 1
            return written

        return call

    def guarded(write: Callable[..., T]) -> Callable[..., T]:
        def call(*args: Any, **how: Any) -> T:
            if left[0] == 0:
                raise Crash
            return write(*args, **how)

        return call

    store.append_now = counting(store.append_now)  # type: ignore[method-assign]
    store.append = counting(store.append)  # type: ignore[method-assign]
    store.write = guarded(store.write)  # type: ignore[method-assign]
    store.write_now = guarded(store.write_now)  # type: ignore[method-assign]


def hang_up(layer: Layer) -> None:
    """The end of a process ends its heartbeat, and closes its connections to a server; to a file there are none."""
    worker = layer.services.worker
    worker._stop.set()
    if worker._thread is not None:  # a beat under way would register it again, after its row was buried
        worker._thread.join()
    if databases.kind() != "sqlite":
        layer.store.close()


def until_crash(path: Path, appends: int, use: Callable[[Layer], Coroutine[Any, Any, T]]) -> T | None:
    """Run *use* in a process (its own loop and layer) that dies after so many records; its result if it came to its end."""

    async def main() -> T | None:
        layer = Layer(url(path))
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # a process that is gone reports nothing
        die_after(layer, appends)
        try:
            return await use(layer)
        except Crash:
            return None
        finally:
            hang_up(layer)

    try:
        return asyncio.run(main())
    except Crash:
        return None
    finally:
        gc.collect()
        bury(path)


def child(source: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script in another process, to its end."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *args],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **env},
    )  # fmt: skip
