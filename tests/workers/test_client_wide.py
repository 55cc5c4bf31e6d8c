"""``scope="client"``: two live runs in two processes want one thing. Judged by what the outside counted.

One scene for each database. ``live``: the first to claim it lives and takes its time. ``before``, ``after``: it is killed
before or after it has sent, while two others wait. ``asked``: it was killed, and its own run has asked a person about it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers.programs import until
from tests.workers.cast import EVERYWHERE, Player, Shelf, players, shelf
from tests.workers.world import World

pytestmark = pytest.mark.timeout(400)


@dataclass
class Scene:
    """What it left."""

    told: dict[str, dict[str, Any]]  # by run: how it ended for whoever drove it last
    doers: dict[str, list[str]]
    early_looks: dict[str, int]  # of those who waited, before there was anything to inherit
    questions: list[tuple[str, str, str]]  # run, kind, status
    waited: set[str]  # runs that had not ended while the first one lived, or a person was asked


def _until_it_has_looked(store: Shelf, player: Player) -> None:
    """Two beats of its heart: it looks every second whether it may go on."""
    player.says("worker w_")
    mine = player.out().split()[1]

    def beat() -> Any:
        rows = store.rows(f"SELECT beat_us FROM worker WHERE id = '{mine}'")
        return rows and rows[0]["beat_us"]

    for _ in range(2):
        last = until(beat, f"{player.name} is not at work")
        until(lambda last=last: beat() != last, f"{player.name} has no heartbeat")  # type: ignore[misc]


@pytest.fixture(scope="module", params=EVERYWHERE)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The scene, played once."""
    folder: Path = tmp_path_factory.mktemp(f"wide_{request.param}")
    with World() as world, players(world, folder) as play:
        yield _played(world, play, shelf(request.param, folder, f"wide_{request.param}"))


def _played(world: World, play: Callable[..., Player], store: Shelf) -> Scene:
    def solo(name: str, *runs: str) -> Player:
        return play(name, "-m", "tests.workers.solo", *runs, STEPSEVEN_URL=store.url)

    places = {"live": "between", "before": "before", "after": "after", "asked": "after"}
    for ref, place in places.items():
        world.hold(f"/ran/{place}.{ref}.{'living' if ref == 'live' else 'dying'}")
    living = solo("living", "live-1:client_probed:live")
    dying = solo("dying", "before-1:client_probed:before", "after-1:client_blind:after", "asked-1:client_blind:asked")
    for ref, place in places.items():
        path = f"/ran/{place}.{ref}.{'living' if ref == 'live' else 'dying'}"
        until(lambda path=path: world.arrived(path), f"nobody gets to {path}")  # type: ignore[misc]
    second = solo("second", "live-2:client_probed:live", "before-2:client_probed:before", "after-2:client_blind:after")
    third = solo("third", "before-3:client_probed:before", "after-3:client_blind:after")
    for run_id, by in [
        ("live-2", "second"),
        ("before-2", "second"),
        ("after-2", "second"),
        ("before-3", "third"),
        ("after-3", "third"),
    ]:
        world.seen(f"body.{run_id}.{by}")
    _until_it_has_looked(store, second)
    _until_it_has_looked(store, third)
    waited = {run_id for run_id in ("live-2", "before-2", "before-3", "after-2", "after-3") if store.status(run_id) == "running"}
    early = {place: times for place, times in world.ran.items() if place.startswith("probe.")}
    dying.kill()
    world.let_go()
    living.process.wait(40)

    again = solo("again", "resume", "asked-1:client_blind:asked")
    store.asked("asked-1", "unknown_outcome")
    late = solo("late", "asked-2:client_blind:asked")
    world.seen("body.asked-2.late")
    _until_it_has_looked(store, late)
    waited |= {"asked-2"} & {row["id"] for row in store.rows("SELECT id FROM run WHERE status = 'running'")}
    store.answer("asked-1", "unknown_outcome", {"choice": "happened", "receipt": 77})
    until(lambda: any(_open(store, f"after-{n}") for n in (2, 3)), "nobody asks about `after`")
    waited |= {f"after-{n}" for n in (2, 3) if store.status(f"after-{n}") != "done"}
    asker = next(f"after-{n}" for n in (2, 3) if _open(store, f"after-{n}"))
    store.answer(asker, "unknown_outcome", {"choice": "happened", "receipt": 88})
    for player in (again, late, second, third):
        assert player.process.wait(60) == 0, player.err()
    world.quiet()
    lines = [line for p in (living, second, third, again, late) for line in p.out().splitlines() if line.startswith("{")]
    asked = store.rows("SELECT r.id, q.kind, q.status FROM question AS q JOIN run AS r ON r.no = q.run_no ORDER BY r.id")
    return Scene(
        told={told["run"]: told for told in map(json.loads, lines)}, doers={ref: world.doers(ref) for ref in places},
        early_looks=early, questions=[(q["id"], q["kind"], q["status"]) for q in asked], waited=waited,
    )  # fmt: skip


def _open(store: Shelf, run_id: str) -> bool:
    return bool(
        store.rows(f"SELECT 1 FROM question AS q JOIN run AS r ON r.no = q.run_no WHERE r.id = '{run_id}' AND q.status = 'open'")
    )


def test_the_second_waits_for_the_claim_of_the_first(scene: Scene):
    """While the first lives the second neither sends nor looks beside it; then both have the one receipt."""
    assert "live-2" in scene.waited
    assert scene.early_looks == {}
    assert scene.doers["live"] == ["living"]
    assert scene.told["live-1"]["value"] == scene.told["live-2"]["value"] is not None


def test_one_of_two_inherits_what_a_dead_one_had_not_done(scene: Scene):
    """Two wait, the first is killed before it has sent: one of them goes on from its claim, the other gets that receipt."""
    assert {"before-2", "before-3"} <= scene.waited
    assert len(scene.doers["before"]) == 1
    assert scene.told["before-2"]["value"] == scene.told["before-3"]["value"] is not None


def test_one_of_two_asks_about_what_a_dead_one_may_have_done(scene: Scene):
    """It was killed after it had sent, and nobody can look: one of them asks, the other waits for that answer."""
    assert {"after-2", "after-3"} <= scene.waited
    assert scene.doers["after"] == ["dying"]
    assert [(kind, status) for run_id, kind, status in scene.questions if run_id.startswith("after")] == [
        ("unknown_outcome", "answered")
    ]
    assert scene.told["after-2"]["value"] == scene.told["after-3"]["value"] == 88


def test_nobody_inherits_what_a_person_is_asked_about(scene: Scene):
    """Its own run has asked about the claim: another one waits for the answer, asks nothing itself, and gets the receipt."""
    assert "asked-2" in scene.waited
    assert scene.doers["asked"] == ["dying"]
    assert [q for q in scene.questions if q[0].startswith("asked")] == [("asked-1", "unknown_outcome", "answered")]
    assert scene.told["asked-1"]["value"] == scene.told["asked-2"]["value"] == 77
