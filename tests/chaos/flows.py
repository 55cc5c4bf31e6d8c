"""What the workers execute in the chaos: reads, writes of two kinds, a map, sleeps, a question now and then.

``CHAOS_PORT`` is where the outside is, ``CHAOS_SETTLE_S`` how long a write may linger after its worker passed the gate: longer
than the villain lets anybody stand still, for after the gate nothing can stop a request.
"""

from __future__ import annotations

import os
import random
from collections import Counter

from stepseven import Run, attempt, step, workflow
from tests.chaos.counter import ask

PORT = int(os.environ.get("CHAOS_PORT", "0"))
SETTLE_S = float(os.environ.get("CHAOS_SETTLE_S", "15"))
LINES = 3  # of an order


def _do(what: str, key: str | None = None) -> int:
    status, done = ask(PORT, "POST", f"/do/{what}", key)
    assert status == 200, (what, status)
    return int(done)


@step(name="chaos.read")
def read(n: int, what: str) -> str:
    """A free read; how often it ran is counted, too."""
    _do(f"read/{n}.{what}")
    return f"{what} of {n}"


@step(name="chaos.keyed", effect="write", key="n, what", idempotent="forever", timeout=10)
def keyed(n: int, what: str) -> int:
    """The other side recognises the key."""
    return _do(f"keyed/{n}.{what}", attempt().idempotency_key)


@step(name="chaos.probed", effect="write", key="n, what", timeout=3, settle=SETTLE_S)
def probed(n: int, what: str) -> int:
    """The other side knows no keys; it can be asked whether it is there."""
    assert attempt().idempotency_key  # the gate
    return _do(f"probed/{n}.{what}")


@probed.probe
def is_there(n: int, what: str) -> int | None:
    """Looks."""
    status, found = ask(PORT, "GET", f"/look/probed/{n}.{what}")
    return int(found) if status == 200 else None


@step(name="chaos.line", effect="write", key="line", idempotent="forever", timeout=10)
def ship(line: str) -> int:
    """One item of a map."""
    return _do(f"keyed/{line}", attempt().idempotency_key)


@workflow(name="chaos.story")
async def story(run: Run, n: int) -> str:
    """One of many."""
    first = await read(n, "a")
    await keyed(n, "order")
    if n % 3 == 0:
        await run.sleep(0.2 + n % 5 / 4)
    if n % 5 == 0:
        said = await run.ask(f"Shall order {n} go out?", options=["yes", "no"])
        assert said == "yes"
    if n % 4 == 0:
        await run.map(ship, [f"{n}.line{line}" for line in range(LINES)])
    if n % 2 == 0:
        await probed(n, "mail")
    second = await read(n, "b")
    await keyed(n, "bill")
    return f"{first}, {second}"


@workflow(name="chaos.reader")
async def reader(run: Run, n: int, many: int) -> int:
    """Free reads, one after the other, with a write in every tenth place."""
    for at in range(many):
        await read(n, f"{at:03}")
        if at % 10 == 9:
            await keyed(n, f"{at:03}")
    return many


@workflow(name="chaos.days")
async def days(run: Run, n: int) -> str:
    """What is done today, what is done after the backup, and what is done after it was put back."""
    await keyed(n, "a")
    assert await run.ask(f"First of {n}?", options=["yes", "no"]) == "yes"
    await probed(n, "b")
    await keyed(n, "c")
    assert await run.ask(f"Second of {n}?", options=["yes", "no"]) == "yes"
    await probed(n, "d")
    return "done"


@step(name="chaos.large")
def large(n: int, kib: int) -> str:
    """A result that takes room, and cannot be packed."""
    return random.Random(n).randbytes(kib * 512).hex()


@workflow(name="chaos.filling")
async def filling(run: Run, n: int) -> int:
    """A write, much that takes room, a write."""
    await keyed(n, "before")
    text = await large(n, 48)
    await keyed(n, "after")
    return len(text)


def expected(n: int) -> Counter[str]:
    """What must have been done outside for run *n*, each once; reads are another matter."""
    done = [f"keyed/{n}.order", f"keyed/{n}.bill"]
    if n % 2 == 0:
        done.append(f"probed/{n}.mail")
    if n % 4 == 0:
        done += [f"keyed/{n}.line{line}" for line in range(LINES)]
    return Counter(done)
