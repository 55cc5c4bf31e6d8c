"""Everything breaks all the time, and at the end every run is finished and every effect was had once, by the outside's count."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer
from stepseven.errors import AlreadyAnswered, QuestionExpired, StoreUnavailable
from tests.chaos import villain
from tests.chaos.counter import Outside
from tests.chaos.flows import expected, story
from tests.chaos.stage import Kind, Pulse, Stage
from tests.chaos.villain import Villain, plan

WORKERS = 3
KINDS = [
    pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("pooled", marks=pytest.mark.pgbouncer),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of it."""

    runs: int
    chaos_s: float
    every_s: float
    freeze_s: float  # over a lease of 10 s, and under what a write may linger
    settle_s: float
    drain_s: float
    concurrency: int


SMALL = Size(runs=60, chaos_s=24, every_s=1.5, freeze_s=11.5, settle_s=13, drain_s=100, concurrency=8)
FULL = Size(runs=2000, chaos_s=600, every_s=4, freeze_s=14, settle_s=16, drain_s=1500, concurrency=16)


def misdeeds(seed: int, kind: Kind, size: Size) -> list[villain.Misdeed]:
    """The plan of a seed."""
    kinds = {**villain.AMONG_WORKERS, **(villain.AMONG_SERVERS if kind != "sqlite" else {})}
    if kind == "pooled":
        kinds |= villain.POOLED
    return plan(seed, seconds=size.chaos_s, workers=WORKERS, every_s=size.every_s, kinds=kinds)


def seed_of_this_session() -> int:
    """``CHAOS_SEED``, to see something again; else another one each time."""
    return int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)


async def start_all(layer: Layer, seed: int, size: Size) -> None:
    """Admit the runs over nearly all of the chaos: some before it, most in the middle of it."""
    chance = random.Random(seed)
    for n in range(size.runs):
        await _patiently(lambda n=n: layer.start(story(n=n), client=f"client{n % 17}", run_id=f"run{n}"))
        if n > size.runs // 5:
            await asyncio.sleep(chance.random() * 2 * size.chaos_s / size.runs)


async def _patiently(call: Any) -> Any:
    """A client's call, made again when the store was away; that does no harm."""
    give_up = time.monotonic() + 120
    while True:
        try:
            return await call()
        except StoreUnavailable:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(0.2)


async def answer_all(layer: Layer, answered: Counter[str]) -> None:
    """Somebody who says yes to what the workflow asks, and "again" when a run died too often."""
    while True:
        for question in await _patiently(layer.questions):
            kind = question.kind.value
            answered[kind if question.step is None else f"{kind} of {question.step}: {question.text}"] += 1
            value = {"ask": "yes", "poison": "again"}.get(kind)
            if value is not None:
                with suppress(AlreadyAnswered, QuestionExpired):
                    await _patiently(lambda q=question, v=value: layer.answer(q.id, v, by="ann"))
        await asyncio.sleep(0.25)


async def play(kind: Kind, size: Size, folder: Path, seed: int) -> str:
    """The whole of it; a report."""
    answered: Counter[str] = Counter()
    with Outside(folder) as outside, Stage(kind, folder, outside, CHAOS_SETTLE_S=str(size.settle_s)) as stage:
        async with Layer(stage.url) as layer:
            stage.hire(
                WORKERS, "stepseven", "--store", stage.url, "worker", "tests.chaos.flows", "--concurrency", str(size.concurrency)
            )
            somebody = asyncio.create_task(answer_all(layer, answered))
            evil = Villain(stage, misdeeds(seed, kind, size), longest_freeze_s=size.freeze_s)
            begun = time.monotonic()
            with Pulse(stage) as pulse:
                evil.start()
                await start_all(layer, seed, size)
                await asyncio.to_thread(evil.join)
                calm = time.monotonic()
                while not await asyncio.to_thread(stage.settled, size.runs):
                    if time.monotonic() > calm + size.drain_s or somebody.done():
                        break
                    await asyncio.sleep(0.2)
                over = time.monotonic()
            somebody.cancel()
            with suppress(asyncio.CancelledError):
                await somebody
            stuck = [row[0] for row in await asyncio.to_thread(stage.rows, "SELECT id FROM {0}run WHERE status <> 'done'")]
            why = "\n".join([await layer.why(run_id) for run_id in stuck[:5]])
        codes = await asyncio.to_thread(stage.dismiss)
        judge(size, outside, stage, why, answered)
        # One that was started a moment ago dies of the signal: it does not listen yet, and has nothing.
        assert set(codes) <= {0, -signal.SIGTERM}, (codes, stage.logs())
        ((takes, most),) = stage.rows("SELECT sum(fence), max(fence) FROM {0}run")
        asked = sum(answered.values())
        return (
            f"{kind}, seed {seed}: {size.runs} runs in {over - begun:.0f} s ({over - calm:.0f} s after the last misdeed), "
            f"{takes} takes (at most {most} of one run), {asked} answers ({answered['poison']} of poison), longest stall "
            f"{pulse.longest.seconds:.1f} s at {pulse.longest.at_s:.0f} s; {dict(sorted(evil.done.items()))}"
        )


def judge(size: Size, outside: Outside, stage: Stage, why: str, answered: Counter[str]) -> None:
    """Every run finished, every effect had once, no claim open, nobody asked what a machine can find out."""
    strange = {kind: many for kind, many in answered.items() if kind not in ("ask", "poison")}
    assert not strange, f"asked of a person: {strange}\n{why}\n{stage.logs()}"
    assert not why, f"not finished:\n{why}\n{stage.logs()}"
    assert stage.settled(size.runs), stage.rows("SELECT status, count(*) FROM {0}run GROUP BY status")
    done = Counter({what: many for what, many in outside.counts().items() if not what.startswith("read/")})
    wanted = sum((expected(n) for n in range(size.runs)), Counter())
    assert done == wanted, f"more than once: {done - wanted}; missing: {wanted - done}"
    assert stage.rows("SELECT count(*) FROM {0}effect WHERE state <> 'done'") == [(0,)]


def _show(report: str) -> None:
    sys.stderr.write(f"\nchaos soak: {report}\n")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2]])  # on a direct connection the clients of `test_clients.py` are let loose
async def test_nothing_is_lost_or_done_twice(kind: Kind, tmp_path: Path) -> None:
    """Workers are killed and frozen, servers restarted, lines cut: each run finishes, each effect is had exactly once."""
    seed = seed_of_this_session()
    _show(f"{kind} begins with CHAOS_SEED={seed}")
    _show(await play(kind, SMALL, tmp_path, seed))


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_lost_or_done_twice_for_long(kind: Kind, tmp_path: Path) -> None:
    """The same with 2,000 runs, for ten minutes."""
    seed = seed_of_this_session()
    _show(f"{kind} begins with CHAOS_SEED={seed}")
    _show(await play(kind, FULL, tmp_path, seed))


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "pooled"])
def test_a_seed_is_a_plan(kind: Kind) -> None:
    """The same seed does the same at the same moments, and a short plan has something of everything."""
    assert misdeeds(7, kind, SMALL) == misdeeds(7, kind, SMALL)
    assert misdeeds(7, kind, SMALL) != misdeeds(8, kind, SMALL)
    kinds = {m.what for m in misdeeds(7, kind, SMALL)}
    assert kinds >= set(villain.AMONG_WORKERS) | (set() if kind == "sqlite" else set(villain.AMONG_SERVERS))
