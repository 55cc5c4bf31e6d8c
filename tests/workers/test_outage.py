"""An outage that real workers meet: few requests while it lasts, nobody is asked, each effect once, whoever dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from stepseven import Layer, testing
from stepseven.decide import circuit
from stepseven.testing import Clock
from tests.servers.databases import execute, rows, url
from tests.workers import outage
from tests.workers.crew import Crew, until
from tests.workers.outage import Api, outage_flow

SLOTS, WORKERS, RUNS = 8, 3, 240


def stands(path: Path) -> Counter[str]:
    """How the runs stand: status, or what they wait for."""
    return Counter(r["waiting_for"] or r["status"] for r in rows(path, "SELECT status, waiting_for FROM run"))


def lookable(path: Path) -> None:
    """The time until the next look is over."""
    execute(path, "UPDATE resource SET next_us = 1 WHERE state = 'open' AND next_us > 1")


@pytest.mark.slow
async def test_240_runs_over_several_workers_meet_an_outage_of_90_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more requests than slots and one for each look; no question; all finish, and each write is done once."""
    clock = Clock(jumps=False)
    with Api() as api:
        monkeypatch.setenv("OUTAGE_PORT", api.port)
        async with testing.layer(url(tmp_path), clock=clock) as one, testing.layer(url(tmp_path), clock=clock, seed=1) as two, \
                testing.layer(url(tmp_path), clock=clock, seed=2) as three:  # fmt: skip
            layers = (one, two, three)
            for n in range(RUNS):
                await one.start(outage_flow(n=n), client=f"c{n % 30}", run_id=f"r{n}")
            async with one.worker(outage, concurrency=SLOTS), two.worker(outage, concurrency=SLOTS), \
                    three.worker(outage, concurrency=SLOTS):  # fmt: skip
                for _ in range(90):
                    clock.advance(1)
                    for layer in layers:
                        layer.services.stir()
                    await asyncio.sleep(0.02)
                await until(lambda: stands(tmp_path) == {"circuit": RUNS}, within=60)
                looks = 5  # after 8 s at the earliest, then 16, 32, 64
                assert api.requests["down"] <= WORKERS * SLOTS + looks
                api.down = False
                while stands(tmp_path)["done"] < RUNS:
                    clock.advance(2)
                    for layer in layers:
                        layer.services.stir()
                    await asyncio.sleep(0.05)
        assert rows(tmp_path, "SELECT id FROM question") == []
        assert {name: n for name, n in api.done.items() if n != 1} == {}
        assert len(api.done) == 2 * RUNS


async def test_a_trial_whose_worker_is_killed_is_taken_over_at_once(tmp_path: Path) -> None:
    """Whoever takes the run over goes on as the trial: nothing waits for the lease of the dead."""
    with Api() as api, Crew(url(tmp_path), tmp_path) as crew:
        env = {"OUTAGE_PORT": api.port}
        first = crew.hire("tests.workers.outage", concurrency=6, **env)
        async with Layer(url(tmp_path)) as layer:
            for n in range(6):
                await layer.start(outage_flow(n=n), client="acme", run_id=f"r{n}")
            await until(lambda: stands(tmp_path) == {"circuit": 6}, within=40)
            api.hold.clear()
            lookable(tmp_path)
            await until(api.held.is_set, within=30)
            assert rows(tmp_path, "SELECT state FROM resource") == [{"state": "trial"}]
            first.kill()
            first.wait()
            api.down = False
            api.hold.set()
            crew.hire("tests.workers.outage", concurrency=6, **env)
            began = asyncio.get_running_loop().time()
            await until(lambda: stands(tmp_path) == {"done": 6}, within=50)
            assert asyncio.get_running_loop().time() - began < circuit.TRIAL_US / 1e6 - 5
        assert {name: n for name, n in api.done.items() if n != 1 and name.startswith("write")} == {}


async def test_two_workers_compete_for_the_trial_and_one_is_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many look at the moment in which a look is due: one request."""
    clock = Clock(jumps=False)
    with Api() as api:
        monkeypatch.setenv("OUTAGE_PORT", api.port)
        async with testing.layer(url(tmp_path), clock=clock) as one, testing.layer(url(tmp_path), clock=clock, seed=1) as two:
            for n in range(12):
                await one.start(outage_flow(n=n), client="acme", run_id=f"r{n}")
            async with one.worker(outage, concurrency=12), two.worker(outage, concurrency=12):
                for _ in range(4):
                    clock.advance(1)
                    await asyncio.sleep(0.05)
                await until(lambda: stands(tmp_path) == {"circuit": 12})
                for look in range(1, 4):
                    before = api.requests["down"]
                    clock.advance(400)
                    execute(tmp_path, "UPDATE run SET wake_us = 1")  # all of them come, and want to be it
                    one.services.stir()
                    two.services.stir()
                    await until(lambda n=before: api.requests["down"] > n)
                    await until(lambda: stands(tmp_path) == {"circuit": 12})
                    assert api.requests["down"] == before + 1, look
