"""What happens without each guard: the tests beside this one notice it. On SQLite; the guards are the same on all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.programs import until
from tests.workers.cast import id_of, players, shelf, worker
from tests.workers.subject import HOW
from tests.workers.test_clocks import LONG, PATIENT, faked
from tests.workers.world import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
BARE = "tests.workers.unguarded"


def test_without_the_gate_a_frozen_worker_sends_too(tmp_path: Path):
    """Frozen before its gate, taken over, woken: with the gate taken away from it, the effect happens twice."""
    with World() as world, players(world, tmp_path) as play:
        store = shelf("sqlite", tmp_path)
        world.hold("/ran/before.A.frozen")
        frozen = worker(play, "frozen", store, 1, entry=BARE, TEST_WITHOUT="gate")
        store.start(HOW["blind"](ref="A"), "A")
        until(lambda: world.arrived("/ran/before.A.frozen"), "it does not get there")
        taker = worker(play, "taker", store, 1)
        frozen.freeze(store)
        world.let_go()
        store.answer("A", "unknown_outcome", "not_happened")
        store.ended("A")
        frozen.thaw()
        until(lambda: len(world.doers("A")) > 1, "its gate was shut")
        assert world.doers("A") == ["taker", "frozen"]
        assert taker.stop() == frozen.stop() == 0


@pytest.mark.faketime
def test_by_the_wall_clock_an_early_look_would_be_believed(tmp_path: Path):
    """Claimed by a clock that is an hour behind: by that clock nobody can send any more, and so it is done twice."""
    with World() as world, players(world, tmp_path) as play:
        store = shelf("sqlite", tmp_path)
        world.hold("/ran/between.A.frozen")
        env = faked(tmp_path / "clock")
        (tmp_path / "clock").write_text("-1h\n")
        frozen = worker(play, "frozen", store, 1, entry=PATIENT, **env, **LONG)
        store.start(HOW["probed"](ref="A"), "A")
        until(lambda: world.arrived("/ran/between.A.frozen"), "it does not get there")
        frozen.freeze(store)
        taker = worker(play, "taker", store, 1, entry=BARE, TEST_WITHOUT="steady clock", **LONG)
        store.ended("A")
        world.let_go()
        frozen.thaw()
        until(lambda: len(world.doers("A")) > 1, "it was not sent twice")
        assert world.doers("A") == ["taker", "frozen"]
        assert id_of(store, taker)


def test_without_its_rule_a_second_run_looks_beside_a_live_first(tmp_path: Path):
    """The first run to claim it lives; with the rule about whose claim it is taken away the second looks, and sends."""
    with World() as world, players(world, tmp_path) as play:
        store = shelf("sqlite", tmp_path)
        world.hold("/ran/between.A.first")
        play("first", "-m", "tests.workers.solo", "A-1:client_probed:A", STEPSEVEN_URL=store.url)
        until(lambda: world.arrived("/ran/between.A.first"), "it does not get there")
        play("second", "-m", BARE, "solo", "A-2:client_probed:A", STEPSEVEN_URL=store.url, TEST_WITHOUT="inheritance")
        world.seen("probe.A.second")
