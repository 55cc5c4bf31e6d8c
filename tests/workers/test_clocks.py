"""The wall clock of a worker jumps (faketime), by ten days or back by an hour; its steady clock does not. Counted outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers import programs
from tests.servers.programs import until
from tests.workers.cast import EVERYWHERE, Player, Shelf, id_of, players, shelf, worker
from tests.workers.subject import HOW
from tests.workers.world import World

pytestmark = [pytest.mark.faketime, pytest.mark.timeout(400)]
LONG = {"TEST_PROBED_S": "45"}  # longer than all that happens before the frozen ones go on, on a slow machine, too
PATIENT = "tests.workers.patient"
JUMPS = {"ahead": "+10d", "behind": "-1h"}
LIBRARY = "libfaketime.so.1"


def faked(file: Path) -> dict[str, str]:
    """The environment of a process whose wall clock is as *file* says, at any moment. Its steady clock is left alone."""
    file.write_text("+0\n")
    found = next(Path("/usr/lib").glob(f"**/{LIBRARY}"), None) or programs.need("faketime").parent / LIBRARY
    return {"LD_PRELOAD": str(found), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1"}


@dataclass
class Scene:
    """What it left."""

    doers: dict[str, list[str]]
    bodies: dict[str, int]
    fences: dict[str, int]
    questions: list[dict[str, Any]]
    early_looks: dict[str, int]


@pytest.fixture(scope="module", params=EVERYWHERE)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Played once. ``long``: a worker whose clock jumps goes on working. ``late``: it is frozen behind its gate, too."""
    folder: Path = tmp_path_factory.mktemp(f"clocks_{request.param}")
    with World() as world, players(world, folder) as play:
        yield _played(world, play, shelf(request.param, folder, f"clocks_{request.param}"), folder)


def _played(world: World, play: Callable[..., Player], store: Shelf, folder: Path) -> Scene:
    jumpers: dict[str, Player] = {}
    for name in JUMPS:
        world.hold(f"/ran/between.long-{name}.{name}")
        world.hold(f"/ran/between.late-{name}.{name}-frozen")
        jumpers[name] = worker(play, name, store, 1, entry=PATIENT, **faked(folder / name), **LONG)
        store.start(HOW["keyed"](ref=f"long-{name}"), f"long-{name}")
        until(lambda name=name: world.arrived(f"/ran/between.long-{name}.{name}"), f"{name} does not get there")  # type: ignore[misc]
    for name, jump in JUMPS.items():
        (folder / name).write_text(f"{jump}\n")  # from now on: while its run is in its hands
    frozen: dict[str, Player] = {}
    for name, jump in JUMPS.items():
        env = faked(folder / f"{name}-frozen")
        (folder / f"{name}-frozen").write_text(f"{jump}\n")  # already when it makes its claim
        frozen[name] = worker(play, f"{name}-frozen", store, 1, entry=PATIENT, **env, **LONG)
        store.start(HOW["probed"](ref=f"late-{name}"), f"late-{name}")
        until(lambda name=name: world.arrived(f"/ran/between.late-{name}.{name}-frozen"), f"{name} does not get there")  # type: ignore[misc]
    for player in frozen.values():
        player.freeze(store)
    taker = worker(play, "taker", store, 8, **LONG)
    for name in JUMPS:
        world.seen(f"probe.late-{name}.taker", 60)
    early = {name: world.times(f"probe.late-{name}.taker") for name in JUMPS}
    _beats(store, taker, 2)  # it could act on what it saw by now
    world.let_go()
    for player in frozen.values():
        player.thaw()
    store.ended(*(f"{what}-{name}" for what in ("long", "late") for name in JUMPS), wait_s=90)
    world.quiet()
    runs = [f"{what}-{name}" for what in ("long", "late") for name in JUMPS]
    return Scene(
        doers={run_id: world.doers(run_id) for run_id in runs},
        bodies={run_id: sum(n for place, n in world.ran.items() if place.startswith(f"body.{run_id}.")) for run_id in runs},
        fences={row["id"]: row["fence"] for row in store.rows("SELECT id, fence FROM run")},
        questions=store.rows("SELECT kind FROM question"), early_looks=early,
    )  # fmt: skip


def _beats(store: Shelf, player: Player, count: int) -> None:
    mine = id_of(store, player)
    for _ in range(count):
        last = store.rows(f"SELECT beat_us FROM worker WHERE id = '{mine}'")
        until(lambda last=last: store.rows(f"SELECT beat_us FROM worker WHERE id = '{mine}'") != last, "no heartbeat")  # type: ignore[misc]


@pytest.mark.parametrize("name", JUMPS)
def test_a_worker_whose_clock_jumped_keeps_its_run(scene: Scene, name: str):
    """Ten days ahead or an hour behind while a run is in its hands: nobody takes that over, and it does it once."""
    assert scene.doers[f"long-{name}"] == [name]
    assert scene.bodies[f"long-{name}"] == 1
    assert scene.fences[f"long-{name}"] == 1


@pytest.mark.parametrize("name", JUMPS)
def test_an_early_look_is_not_believed_whatever_the_clocks_say(scene: Scene, name: str):
    """Claimed by a clock that was wrong, frozen behind the gate, taken over: "not there" counts only when nobody can send."""
    assert scene.early_looks[name] >= 1
    assert scene.doers[f"late-{name}"] == [f"{name}-frozen"]
    assert scene.questions == []
