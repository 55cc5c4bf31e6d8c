"""Deploys: a module's text is replaced by another, as a file is between two executions. Each version has a file of its own."""

from __future__ import annotations

import asyncio
import gc
import heapq
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.runs.outside import Outside
from tests.runs.tools import alone
from tests.runs.worldly import post

HEAD = """
import asyncio
from typing import Any
from stepseven import Cost, Run, step, workflow
ran = []
"""


class Deploys:
    """The versions of one module, one after the other.

    Attributes:
        world: what its steps change, and what counts that.
    """

    def __init__(self, folder: Path, world: Outside, name: str = "deployed_code") -> None:
        self.folder = folder
        self.world = world
        self.name = name
        self.version = 0

    def __call__(self, source: str) -> ModuleType:
        """The next version. Its text finds ``send(name, body)``, which the outside counts, and the list ``ran``."""
        self.version += 1
        file = self.folder / f"{self.name}_{self.version}.py"
        text = HEAD + textwrap.dedent(source)
        file.write_text(text)
        sys.modules.pop(self.name, None)
        collect()  # what only the older version knew is gone, as after a restart
        module = ModuleType(self.name)
        module.__file__ = str(file)
        sys.modules[self.name] = module

        async def send(name: str, body: Any = None) -> str:
            return f"R-{(await post(self.world, name, body, key=None))['n']}"

        module.__dict__["send"] = send
        exec(compile(text, str(file), "exec"), module.__dict__)
        alone(module)
        return module


@contextmanager
def deploys(folder: Path) -> Iterator[Deploys]:
    """A module to be deployed, and the outside its steps act on."""
    folder.mkdir(exist_ok=True, parents=True)
    with Outside() as world:
        made = Deploys(folder, world)
        try:
            yield made
        finally:
            sys.modules.pop(made.name, None)


def collect() -> None:
    """Let go of what nobody knows any more; also of what timers know that were cancelled, and stand behind one that was not."""
    with suppress(RuntimeError):
        loop: Any = asyncio.get_running_loop()
        loop._scheduled[:] = [timer for timer in loop._scheduled if not timer.cancelled()]
        heapq.heapify(loop._scheduled)
    gc.collect()
