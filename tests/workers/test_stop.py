"""How a worker stops: nothing is taken any more, what is in hand is recorded, every run is given back at once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepseven import Layer
from tests.runs.outside import Mood, Outside
from tests.servers.databases import rows, url
from tests.workers import flows
from tests.workers.crew import Crew, ended, until
from tests.workers.test_takeover import SOON_S, owner, status

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(110)]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Worker processes on the test's own store."""
    with Crew(url(tmp_path), tmp_path) as made:
        yield made


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
async def test_a_stopped_worker_hands_over_at_once(crew: Crew, tmp_path: Path, told: signal.Signals) -> None:
    """SIGTERM or Ctrl-C: exit code 0, the row is gone, and another worker has the run at once."""
    first = crew.hire()
    async with Layer(crew.url) as layer:
        await layer.start(flows.gated(folder=str(tmp_path), name="x"), client="acme", run_id="r")
        await until((tmp_path / f"x.{first.pid}").exists)
        second = crew.hire()
        me, was = crew.who(second), crew.who(first)
        began = time.monotonic()
        first.send_signal(told)
        await until(lambda: owner(tmp_path, "r") == me)
        assert time.monotonic() - began < SOON_S
        assert ended(first, within=10)[0] == 0
        assert rows(tmp_path, "SELECT id FROM worker WHERE id = ?", was) == []
        assert rows(tmp_path, "SELECT barren FROM run") == [{"barren": 0}]
        (tmp_path / "go").touch()
        await until(lambda: status(tmp_path, "r") == "done")


async def test_a_write_in_flight_is_waited_for_and_recorded(crew: Crew, tmp_path: Path) -> None:
    """Told to stop while a request is out: the worker stays for the answer, and the receipt is on record."""
    with Outside() as outside:
        outside.moods.append(Mood(hold=True))
        first = crew.hire()
        async with Layer(crew.url) as layer:
            await layer.start(flows.paid(url=outside.url, n="A"), client="acme", run_id="r")
            await until(outside.arrived.is_set)
            first.terminate()
            outside.let_go()
            assert ended(first, within=15)[0] == 0
            assert rows(tmp_path, "SELECT state FROM effect") == [{"state": "done"}]
            assert owner(tmp_path, "r") is None
            outcome = await layer.resume("r")
            assert (outcome.status, len(outside.calls)) == ("done", 1)


async def test_a_second_signal_ends_it_at_once(crew: Crew, tmp_path: Path) -> None:
    """Who cannot wait for a write in flight sends the signal again; the claim stays, and is looked after by the next one."""
    with Outside() as outside:
        outside.moods.append(Mood(hold=True))
        first = crew.hire()
        async with Layer(crew.url) as layer:
            await layer.start(flows.paid(url=outside.url, n="A"), client="acme", run_id="r")
            await until(outside.arrived.is_set)
            first.terminate()
            give_up = time.monotonic() + 10
            while first.poll() is None and time.monotonic() < give_up:
                first.terminate()
                await asyncio.sleep(0.1)
            assert first.returncode == -signal.SIGTERM
            outside.let_go()
            assert rows(tmp_path, "SELECT state FROM effect") == [{"state": "claimed"}]
            crew.hire()
            await until(lambda: status(tmp_path, "r") == "done")
            assert len(outside.effects) == 1
