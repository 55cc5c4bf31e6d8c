"""The process dies while it is found out that the code changed: at any write, before and after the question and its answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Outcome
from tests.runs.deaths import every_death, living
from tests.runs.deployed import Deploys, deploys
from tests.runs.outside import Outside
from tests.runs.test_code_changed import V1, WRITE
from tests.runs.test_code_changed_maps import BILLS, RENAMED
from tests.servers import databases

pytestmark = pytest.mark.slow  # on PostgreSQL with `make soak`


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module."""
    with deploys(tmp_path / "code") as made:
        yield made


async def begin(layer: Layer, v1: Any) -> str:
    """The older code, up to its question, which is answered."""
    outcome = await layer.run(v1.billing(), client="acme", run_id="r")
    await layer.answer(outcome.questions[0].id, "yes", by="ann")
    return "asked"


async def go_on(layer: Layer, choice: str, world: Outside) -> Outcome[Any]:
    """Resume with the newer code, and answer what it asks; of a send that nobody saw end a person looks whether it is there."""
    outcome = await layer.resume("r")
    while outcome.questions:
        (question,) = outcome.questions
        there = {"choice": "happened", "receipt": "R-2"} if world.counts()["invoice"] > 1 else "not_happened"
        await layer.answer(question.id, choice if question.kind == "code" else there, by="ann")
        outcome = await layer.resume("r")
    return outcome


@pytest.mark.timeout(240)
@pytest.mark.parametrize("choice", ["map", pytest.param("run", marks=pytest.mark.soak)])
def test_a_death_at_any_write_does_nothing_twice_that_was_not_chosen(deploy: Deploys, tmp_path: Path, choice: str) -> None:
    """Whoever goes on asks before the new step runs, once, and obeys: one invoice, or the two that were chosen."""
    lives: list[Any] = []

    def prepare(state: Path) -> None:
        deploy.world.effects.clear()
        v1 = deploy(V1)
        living(state, lambda layer: begin(layer, v1))
        lives[:] = [deploy(WRITE)]

    for state in every_death(tmp_path, lambda layer: go_on(layer, choice, deploy.world), prepare):
        outcome = living(state, lambda layer: go_on(layer, choice, deploy.world))
        assert outcome.result()[0] == 214
        assert deploy.world.counts() == {"invoice": 1 if choice == "map" else 2}
        assert len(databases.rows(state, "SELECT id FROM question WHERE kind = 'code'")) == 1


def test_a_takeover_inside_the_recovery_still_asks(deploy: Deploys, tmp_path: Path) -> None:
    """The recovery's worker dies before it has asked; whoever takes the run over goes on with that recovery: it asks."""
    lives: list[Any] = []

    def prepare(state: Path) -> None:
        deploy.world.effects.clear()
        v1 = deploy(V1)
        living(state, lambda layer: begin(layer, v1))
        lives[:] = [deploy(V1.replace("post_invoice", "bill").replace("pull_tickets", "fetch_tickets"))]

    async def taken_over(layer: Layer) -> Outcome[Any]:
        return await layer.run(lives[0].billing(), client="acme", run_id="r")  # no resume: the same call again

    met = 0
    for state in every_death(tmp_path, lambda layer: layer.resume("r"), prepare):
        if databases.rows(state, "SELECT id FROM recovery WHERE ended_us IS NULL"):
            outcome = living(state, taken_over)
            (question,) = outcome.questions
            assert [line["old"] for line in question.context["code"]] == ["pull_tickets", "post_invoice"]
            met += 1
        assert deploy.world.counts() == {"invoice": 1}
    assert met


@pytest.mark.soak
def test_a_death_at_any_write_does_no_item_of_a_renamed_map_twice(deploy: Deploys, tmp_path: Path) -> None:
    """Wherever a process died that was asked about a mapped function, and went on with its items: three bills, and no more."""

    def prepare(state: Path) -> None:
        deploy.world.effects.clear()
        v1 = deploy(BILLS)
        living(state, lambda layer: begin(layer, v1))
        deploy(RENAMED)

    async def mapped(layer: Layer) -> Outcome[Any]:
        outcome = await layer.resume("r")
        while outcome.questions:
            (question,) = outcome.questions
            await layer.answer(question.id, {"code": "map"}[question.kind], by="ann")
            outcome = await layer.resume("r")
        return outcome

    for state in every_death(tmp_path, mapped, prepare):
        assert len(living(state, mapped).result()[0]) == 3
        assert deploy.world.counts() == {"bill": 3}
        assert len(databases.rows(state, "SELECT id FROM question WHERE kind = 'code'")) == 1


def test_a_takeover_of_an_ordinary_take_still_asks(deploy: Deploys, tmp_path: Path) -> None:
    """No resume, only a take with other code, and its worker dies before it has asked: whoever takes the run next asks."""
    lives: list[Any] = []

    def prepare(state: Path) -> None:
        deploy.world.effects.clear()
        v1 = deploy(V1)
        living(state, lambda layer: begin(layer, v1))
        lives[:] = [deploy(WRITE)]

    async def take(layer: Layer) -> Outcome[Any]:
        return await layer.run(lives[0].billing(), client="acme", run_id="r")

    for state in every_death(tmp_path, take, prepare):
        assert [q.kind for q in living(state, take).questions] == ["code"]
        assert deploy.world.counts() == {"invoice": 1}
