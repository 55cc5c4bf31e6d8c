"""The process dies while changed code calls a write under another key: at any write, before and after question and answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Outcome
from tests.runs.deaths import every_death, living
from tests.runs.deployed import Deploys, deploys
from tests.runs.outside import Outside
from tests.runs.test_code_changed_death import begin
from tests.runs.test_code_rekeyed import ONE, OTHER, WAITS
from tests.servers import databases

pytestmark = pytest.mark.slow  # on PostgreSQL with `make soak`


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module."""
    with deploys(tmp_path / "code") as made:
        yield made


async def go_on(layer: Layer, v2: Any, choice: str, world: Outside) -> Outcome[Any]:
    """Go on with the newer code, without a resume, and answer what it asks; of a send nobody saw end a person looks."""
    outcome = await layer.run(v2.billing(), client="acme", run_id="r")
    while outcome.questions:
        (question,) = outcome.questions
        there = {"choice": "happened", "receipt": "R-2"} if world.counts()["bill"] > 1 else "not_happened"
        answer = {"conflict": choice, "ask": "yes"}.get(question.kind.value, there)
        await layer.answer(question.id, answer, by="ann")
        outcome = await layer.run(v2.billing(), client="acme", run_id="r")
    return outcome


@pytest.mark.timeout(240)
@pytest.mark.parametrize("choice,source", [("second", OTHER), pytest.param("same", WAITS, marks=pytest.mark.soak)])
def test_a_death_at_any_write_does_nothing_twice_that_was_not_chosen(
    deploy: Deploys, tmp_path: Path, choice: str, source: str
) -> None:
    """Whoever goes on asks before anything is sent, once, and obeys: one bill, or the two that were chosen."""
    lives: list[Any] = []

    def prepare(state: Path) -> None:
        deploy.world.effects.clear()
        v1 = deploy(ONE)
        living(state, lambda layer: begin(layer, v1))
        lives[:] = [deploy(source)]

    for state in every_death(tmp_path, lambda layer: go_on(layer, lives[0], choice, deploy.world), prepare):
        outcome = living(state, lambda layer: go_on(layer, lives[0], choice, deploy.world))
        assert outcome.result()[-2 if source is OTHER else 1] == ("R-1" if choice == "same" else "R-2")
        assert deploy.world.counts() == {"bill": 1 if choice == "same" else 2}
        assert len(databases.rows(state, "SELECT id FROM question WHERE kind = 'conflict'")) == 1
