"""Several processes do the same thing at the same instant: one of them does it. Judged by what the outside counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers.programs import until
from tests.workers.cast import EVERYWHERE, Player, Shelf, players, shelf, worker
from tests.workers.world import World

COUNT, ROUNDS = 3, 10
ALONE, BESIDE = ("run", "resume", "mixed", "other"), ("start", "begin", "answer")
pytestmark = pytest.mark.timeout(400)


@dataclass
class Race:
    """What it left: what each racer was told in each round, what the outside counted, and the runs."""

    told: dict[str, list[dict[str, Any]]]
    bodies: Counter[str]
    done: Counter[str]
    runs: dict[str, dict[str, Any]]
    questions: list[dict[str, Any]]

    def rounds(self, mode: str) -> dict[str, list[dict[str, Any]]]:
        """What was told in each round of a mode."""
        found = {ref: told for ref, told in self.told.items() if ref.startswith(f"{mode}-")}
        assert len(found) == ROUNDS
        assert all(len(told) == COUNT for told in found.values())
        return found


@pytest.fixture(scope="module", params=EVERYWHERE)
def race(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Race]:
    """All races, run once: some among themselves, some beside a worker."""
    folder: Path = tmp_path_factory.mktemp(f"race_{request.param}")
    with World() as world, players(world, folder) as play:
        store = shelf(request.param, folder, f"race_{request.param}")
        outs = _raced(play, store, "alone", ALONE)
        hand = worker(play, "hand", store, 8, module="tests.workers.racer")
        outs += _raced(play, store, "beside", BESIDE)
        assert hand.stop() == 0, hand.err()
        told: dict[str, list[dict[str, Any]]] = {}
        for line in "".join(outs).splitlines():
            if line != "over":
                told.setdefault(json.loads(line)["ref"], []).append(json.loads(line))
        bodies = Counter[str]()
        for place, times in world.ran.items():
            bodies[place.split(".")[1]] += times
        yield Race(
            told, bodies, world.done(), {row["id"]: row for row in store.rows("SELECT * FROM run")},
            store.rows("SELECT * FROM question"),
        )  # fmt: skip


def _raced(play: Callable[..., Player], store: Shelf, name: str, modes: tuple[str, ...]) -> list[str]:
    arguments = (str(COUNT), str(ROUNDS), *modes)
    racers = [play(f"{name}{n}", "-m", "tests.workers.racer", str(n), *arguments, STEPSEVEN_URL=store.url) for n in range(COUNT)]
    until(lambda: _over(racers), f"the racers {name} do not come to an end", 120)
    assert [racer.process.returncode for racer in racers] == [0] * COUNT, "\n".join(racer.err() for racer in racers)
    return [racer.out() for racer in racers]


def _over(racers: list[Player]) -> bool:
    """Whether all came to their end, or one of them to a bad one: the others would wait for it."""
    ends = [racer.process.poll() for racer in racers]
    return None not in ends or any(ends)


@pytest.mark.parametrize("mode", ["run", "resume", "start", "begin"])
def test_one_body_runs_and_the_others_get_the_handle(race: Race, mode: str):
    """Two starts, two resumes, a start beside a worker: the body runs once, the effect happens once, all get its outcome."""
    for ref, told in race.rounds(mode).items():
        assert race.bodies[ref] == 1, ref
        assert race.done[ref] == 1, ref
        assert {t["status"] for t in told} == {"done"}
        assert len({t["value"] for t in told}) == 1
        assert race.runs[ref]["fence"] == 1, "taken once"


def test_a_resume_beside_a_start_gets_the_run_or_hears_that_there_is_none(race: Race):
    """Whoever resumes a run that is just being started gets it, or is told that it is not known; it runs once."""
    for ref, told in race.rounds("mixed").items():
        assert race.bodies[ref] == 1, ref
        assert race.done[ref] == 1, ref
        assert {t.get("error", t.get("status")) for t in told} <= {"done", "UnknownRun"}
        assert sum(t.get("status") == "done" for t in told) >= (COUNT + 1) // 2


def test_one_of_several_inputs_wins(race: Race):
    """The same id with other inputs at the same instant: one run, and the others hear of the conflict."""
    for ref, told in race.rounds("other").items():
        assert Counter(t.get("error", t.get("status")) for t in told) == {"done": 1, "RunConflict": COUNT - 1}
        assert sum(times for of, times in race.done.items() if of.startswith(f"{ref}.")) == 1
        assert all(ref in t["says"] for t in told if "error" in t)


def test_one_answer_ever(race: Race):
    """All answer at once: one wins; the others hear who it was; the run goes on with that answer, once."""
    for ref, told in race.rounds("answer").items():
        winner = f"racer {next(t['racer'] for t in told if t['won'])}"
        assert sum(t["won"] for t in told) == 1
        assert {t["by"] for t in told if not t["won"]} == {winner}
        assert {(t["status"], t["value"]) for t in told} == {("done", winner)}
        assert race.done[ref] == 1
    assert len(race.questions) == ROUNDS, "nothing else was asked"
