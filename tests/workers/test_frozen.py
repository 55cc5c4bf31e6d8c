"""Workers that are frozen at every moment of a send, taken over, and woken again. Judged by what the outside counted.

One scene is played for each database: four workers are stopped with SIGSTOP, each with a run per kind of receiver at one
moment of its send; another worker takes them over and brings them as far as it can; then the four go on. Every test below
judges what the scene left.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.servers.programs import until
from tests.workers.cast import EVERYWHERE, Player, Shelf, id_of, players, shelf, worker
from tests.workers.subject import HOW
from tests.workers.world import World

LEASE_S = 10.0
#: the frozen workers: where each is stopped, and the receivers of its runs
PLACES = {
    "before": ("keyed", "probed", "blind"),
    "far": ("keyed",),  # before, too; but nobody can tell whether its process is alive
    "after": ("keyed", "probed", "blind", "twice"),
    "between": ("keyed", "probed", "blind"),
}
RUNS = [f"{place}-{how}" for place, hows in PLACES.items() for how in hows]
pytestmark = pytest.mark.timeout(400)


@dataclass
class Scene:
    """What it left."""

    done: dict[str, int]  # how often each effect happened
    doers: dict[str, list[str]]  # and by whom
    probes: dict[str, int]  # how often the owner had looked before the sleeper went on
    runs: dict[str, dict[str, Any]]
    lost: dict[str, str]  # what the frozen workers said about each run
    owner: str  # who took over, as it is to be named
    took_s: float  # from the freeze until all were taken over
    asked: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)  # kind, status, text of the questions about a run


@pytest.fixture(scope="module", params=EVERYWHERE)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The scene, played once."""
    folder: Path = tmp_path_factory.mktemp(f"frozen_{request.param}")
    with World() as world, players(world, folder) as play:
        yield _played(world, play, shelf(request.param, folder, f"frozen_{request.param}"))


def _played(world: World, play: Callable[..., Player], store: Shelf) -> Scene:
    frozen = {place: _cast(world, play, store, place) for place in PLACES}
    store.change(f"UPDATE worker SET host = 'elsewhere' WHERE id = '{id_of(store, frozen['far'])}'")
    taker = worker(play, "taker", store, 16)
    owner = f"worker {id_of(store, taker)} ({_host(store, taker)}, process {taker.pid})"
    began = time.monotonic()
    for player in frozen.values():
        player.freeze(store)
    world.let_go()  # the answers wait for them, too
    for run_id in RUNS:
        world.seen(f"body.{run_id}.taker")
    took_s = time.monotonic() - began

    # between: it goes on while its request may still be on its way, and what looks for it says "not there"
    world.seen("probe.between-probed.taker")
    store.asked("between-blind", "unknown_outcome")
    probes = {run_id: world.times(f"probe.{run_id}.taker") for run_id in RUNS}
    frozen["between"].thaw()
    store.ended("between-keyed", "between-probed", "between-blind")

    # after: two people look. One sees it, and so does nothing; the other one does not
    store.answer("after-twice", "unknown_outcome", "not_happened")
    store.ended("after-keyed", "after-probed", "after-twice")
    store.asked("after-blind", "unknown_outcome")
    frozen["after"].thaw()
    store.ended("after-blind")
    store.asked("after-twice", "conflict")

    # before: everything is over when they go on
    store.answer("before-blind", "unknown_outcome", "not_happened")
    store.ended(*RUNS)
    for place in ("before", "far"):
        frozen[place].thaw()
    for place, player in frozen.items():
        for how in PLACES[place]:
            player.says(f"{place}-{how} goes on elsewhere")
    world.quiet()
    for player in (*frozen.values(), taker):
        assert player.stop() == 0, player.err()
    world.quiet()
    lost = {m[1]: m[2] for player in frozen.values() for m in re.finditer(r"(\S+) goes on elsewhere: (.*)", player.err())}
    return Scene(
        done=dict(world.done()), doers={run_id: world.doers(run_id) for run_id in RUNS}, probes=probes,
        runs={row["id"]: row for row in store.rows("SELECT id, status, fence, executions, owner FROM run")}, lost=lost,
        owner=owner, took_s=took_s,
        asked={run_id: [(q["kind"], q["status"], q["text"]) for q in store.rows(
            f"SELECT q.* FROM question AS q JOIN run AS r ON r.no = q.run_no WHERE r.id = '{run_id}' ORDER BY q.created_us"
        )] for run_id in RUNS},
    )  # fmt: skip


def _cast(world: World, play: Callable[..., Player], store: Shelf, place: str) -> Player:
    """A worker with its hands full, each run at that place."""
    moment = "before" if place == "far" else place
    for how in PLACES[place]:
        world.hold(f"/ran/{moment}.{place}-{how}.{place}")
    player = worker(play, place, store, len(PLACES[place]))
    for how in PLACES[place]:
        call = HOW.get(how, HOW["blind"])
        store.start(call(ref=f"{place}-{how}"), f"{place}-{how}")
    for how in PLACES[place]:
        until(lambda how=how: world.arrived(f"/ran/{moment}.{place}-{how}.{place}"), f"{place} does not get there")  # type: ignore[misc]
    return player


def _host(store: Shelf, player: Player) -> str:
    return str(store.rows(f"SELECT host FROM worker WHERE pid = {player.pid}")[0]["host"])


# -- who takes over -----------------------------------------------------------------------------------------------------------


def test_a_frozen_workers_runs_are_taken_over(scene: Scene):
    """A worker that stands still is taken over once its lease is over, seen to stand still or out of sight."""
    assert LEASE_S - 3 < scene.took_s < 25, "not before nobody can pass a gate any more; and not long after"
    assert {row["fence"] for row in scene.runs.values()} <= {2, 3, 4}, "taken twice, and once more after an answer"
    assert {row["status"] for row in scene.runs.values()} == {"done"}


def test_it_gives_its_runs_up_and_names_who_has_them(scene: Scene):
    """Awake again it exits each of those runs, and says which worker took it over, on which host, in which process.

    Or that another one took it over, where nobody has it any more.
    """
    assert sorted(scene.lost) == sorted(RUNS)
    for run_id, why in scene.lost.items():
        ended_before_it_woke = run_id.startswith(("before", "far", "after")) or scene.runs[run_id]["status"] == "done"
        over = ended_before_it_woke and why.startswith("another worker took it over, and it is ")
        assert scene.owner in why or over, (run_id, why)


# -- before the gate ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_id", [run_id for run_id in RUNS if run_id.startswith(("before", "far"))])
def test_frozen_before_the_gate_it_sends_nothing(scene: Scene, run_id: str):
    """The gate is shut for it, whatever the receiver could do about a repeat: only who took over has sent."""
    assert len(scene.doers[run_id]) == 1
    assert scene.doers[run_id][0] not in ("before", "far")


# -- between the gate and the send --------------------------------------------------------------------------------------------


def test_frozen_between_gate_and_send_the_key_keeps_it_single(scene: Scene):
    """Both send under one key: the receiver does it once, and nothing is asked."""
    assert scene.done["between-keyed"] == 1
    assert scene.asked["between-keyed"] == []


def test_frozen_between_gate_and_send_an_early_look_is_not_believed(scene: Scene):
    """It is not there yet when the new owner looks; it does not act on that, and finds it at a later look."""
    assert scene.probes["between-probed"] >= 1, "it had looked, and not found it"
    assert scene.doers["between-probed"] == ["between"]
    assert scene.asked["between-probed"] == []


def test_frozen_between_gate_and_send_a_person_is_asked(scene: Scene):
    """The receiver can do neither: a person is asked. The late receipt answers first, and takes the question back."""
    assert scene.doers["between-blind"] == ["between"]
    assert [(kind, status) for kind, status, _ in scene.asked["between-blind"]] == [("unknown_outcome", "withdrawn")]


# -- after the send -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["keyed", "probed", "blind"])
def test_frozen_after_the_send_it_is_not_done_again(scene: Scene, how: str):
    """What it did is found by its key, by a look, or by its late receipt: that settles the claim, and the run goes on."""
    assert scene.doers[f"after-{how}"] == ["after"]
    expected = [("unknown_outcome", "withdrawn")] if how == "blind" else []
    assert [(kind, status) for kind, status, _ in scene.asked[f"after-{how}"]] == expected


def test_a_late_receipt_beside_another_one_is_said_aloud(scene: Scene):
    """A person said it was not there, and it was done again: the late receipt opens a question that says "done twice"."""
    assert scene.doers["after-twice"][0] == "after"
    assert len(scene.doers["after-twice"]) == 2
    assert [(kind, status) for kind, status, _ in scene.asked["after-twice"]] == [
        ("unknown_outcome", "answered"),
        ("conflict", "open"),
    ]
    assert "was done twice" in scene.asked["after-twice"][-1][2]
