"""Processes of their own: what is killed, what starts from nothing, and what competes for one file.

``python -m benchmarks.children ROLE ARGUMENT…``; a child says one JSON object per line on stdout.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent


class Child:
    """A process of this module, spoken to by lines."""

    def __init__(self, role: str, *arguments: object) -> None:
        self.started = perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.children", role, *map(str, arguments)],
            stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def hear(self) -> dict[str, Any]:
        """Its next line; the moment it was heard is in ``at``."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        at = perf_counter()
        if not line:
            raise RuntimeError(f"a child process ended early with code {self._process.wait()}: see its message above")
        return {**json.loads(line), "at": at}

    def go(self) -> None:
        """Let a child that waits begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """SIGTERM, as whatever runs services sends it."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self.end()

    def end(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.end()


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def wait_for_go() -> None:
    sys.stdin.readline()


def _halt(_: int) -> None:
    """Inside a step: tell, and stay there until killed. The heartbeat's thread goes on, as in a step that works."""
    say(event="there")
    while True:
        time.sleep(3600)


def _leave(_: int) -> None:
    say(event="there", cpu=process_time())
    os._exit(0)


def run_and_hang(url: str, run_id: str, n: str) -> None:
    """Run *n* steps and hang in the next one."""
    from benchmarks.samples import CLOCK, stoppable
    from stepseven import Layer

    CLOCK.arrived = _halt

    async def main() -> None:
        async with Layer(url) as layer:
            await layer.run(stoppable(n=int(n)), client="bench", run_id=run_id)

    asyncio.run(main())


def resume(url: str, run_id: str) -> None:
    """Resume a run and leave in its next new step."""
    from benchmarks.samples import CLOCK
    from stepseven import Layer

    CLOCK.arrived = _leave

    async def main() -> None:
        async with Layer(url) as layer:
            await layer.resume(run_id)

    asyncio.run(main())


def floor_resume(path: str) -> None:
    """What a resume cannot do without: start Python, read and parse the results, go on."""
    from benchmarks.floors import replay, trivial

    async def main() -> None:
        replay(path)
        await trivial(0)
        _leave(0)

    asyncio.run(main())


def floor_resume_postgres(url: str) -> None:
    """The same, from PostgreSQL."""
    import json
    import sys

    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute("SELECT seq, out FROM steps WHERE run = %s ORDER BY seq", ("r",)).fetchall()
    assert {seq: json.loads(out) for seq, out in rows}, sys.argv
    _leave(0)


def contend(url: str, client: str, seconds: str) -> None:
    """Read and write steps on a file that others write too."""
    from benchmarks.samples import contended
    from stepseven import Layer

    async def main() -> None:
        async with Layer(url) as layer:
            await layer.run(contended(seconds=0.2), client=client)
            say(event="ready")
            wait_for_go()
            waits = (await layer.run(contended(seconds=float(seconds)), client=client)).result()
            say(event="done", **waits)

    asyncio.run(main())


def floor_contend(path: str, seconds: str) -> None:
    from benchmarks import floors

    floors.contend(path, 0.1)
    say(event="ready")
    wait_for_go()
    say(event="done", commit=floors.contend(path, float(seconds)))


def idle(url: str, count: str, asking_s: str, idle_s: str) -> None:
    """Let runs ask and park, 100 at a time; start the rest; then say what they hold of this process while it does nothing."""
    from benchmarks.measure import resident_bytes
    from benchmarks.samples import parked
    from stepseven import Layer

    async def main() -> None:
        async with Layer(url) as layer:

            async def make(first: int, *, ask: bool) -> int:
                act = layer.run if ask else layer.start
                await asyncio.gather(*(act(parked(number=i), client=f"c{i % 30}") for i in range(first, first + 100)))
                return first + 100

            asked = await make(await make(await make(0, ask=True), ask=True), ask=True)
            warm = asked = await make(asked, ask=False)  # what the first ones bring into memory for good
            gc.collect()
            before, began = resident_bytes(), perf_counter()
            while asked < int(count) and perf_counter() - began < float(asking_s):
                asked = await make(asked, ask=True)
            pace = (asked - warm) / (perf_counter() - began)
            runs = asked
            while runs < int(count) and perf_counter() - began < 2 * float(asking_s):
                runs = await make(runs, ask=False)
            gc.collect()
            await asyncio.sleep(1.0)  # the last flush is not idleness
            used, began = process_time(), perf_counter()
            await asyncio.sleep(float(idle_s))
            share = (process_time() - used) / (perf_counter() - began)
            each = (resident_bytes() - before) / (runs - warm)
            say(asked=asked, started=runs - asked, cpu=share, bytes_each=each, parked_per_s=pace)

    asyncio.run(main())


def worker(url: str, concurrency: str, linger: str = "") -> None:
    """A worker; it says when something of ``held`` or ``lingers`` began."""
    from benchmarks.samples import CLOCK
    from stepseven import Layer

    CLOCK.began, CLOCK.linger = lambda: say(event="began"), bool(linger)

    async def main() -> None:
        async with Layer(url) as layer:
            say(event="ready")
            await asyncio.to_thread(wait_for_go)
            await layer.worker("benchmarks.samples", concurrency=int(concurrency)).run_until_signalled()
            say(event="stopped")

    asyncio.run(main())


def idle_worker(url: str, seconds: str) -> None:
    """A worker that has nothing to do: what it holds, and what it takes of a core."""
    from benchmarks.measure import resident_bytes
    from stepseven import Layer

    async def main() -> None:
        async with Layer(url) as layer, layer.worker("benchmarks.samples"):
            await asyncio.sleep(4.0)  # it has looked in vain, and does so at its slowest pace
            gc.collect()
            used, began = process_time(), perf_counter()
            await asyncio.sleep(float(seconds))
            say(cpu=(process_time() - used) / (perf_counter() - began), resident=resident_bytes())

    asyncio.run(main())


ROLES: dict[str, Callable[..., None]] = {
    f.__name__: f
    for f in (run_and_hang, resume, floor_resume, floor_resume_postgres, contend, floor_contend, idle, worker, idle_worker)
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
