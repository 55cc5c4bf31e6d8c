"""The process dies while changed code finds a run that it started under another name: at any write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Outcome
from tests.runs.deaths import every_death, living
from tests.runs.deployed import Deploys
from tests.runs.outside import Outside
from tests.runs.test_code_children import ASKS, children, newer, renamed
from tests.runs.test_code_children import deploy as deploy_fixture

pytestmark = [
    pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),  # the thread that prunes dies, too
]  # fmt: skip

deploy: Any = deploy_fixture


async def begin(layer: Layer, v1: Any) -> str:
    """The parent, as far as it gets: its child waits."""
    await layer.run(v1.parent(), client="acme", run_id="p", wait=0)
    return "begun"


async def go_on(layer: Layer, v2: Any, world: Outside) -> Outcome[Any]:
    """Go on with the newer code, and answer what it asks; of a send that nobody saw end a person looks whether it is there."""
    outcome = await layer.run(v2.parent(), client="acme", run_id="p")
    while outcome.questions:
        for question in outcome.questions:
            there: Any = {"choice": "happened", "receipt": "R-1"} if world.counts().get("bill") else "not_happened"
            said = {"code": "map", "conflict": "same", "ask": "yes"}.get(question.kind.value, there)
            await layer.answer(question.id, said, by="ann")
        outcome = await layer.run(v2.parent(), client="acme", run_id="p")
    return outcome


@pytest.mark.parametrize(
    "after", [renamed(ASKS, "quarterly_asking", "quarterly_checking"), ASKS.replace('quarter="Q3"', 'quarter="2026-Q3"')],
    ids=["name", "inputs"],
)  # fmt: skip
def test_a_death_at_any_write_starts_no_second_one(deploy: Deploys, tmp_path: Path, after: str) -> None:
    """Whoever goes on finds the run that was started, drives it on, and nothing is done outside a second time."""
    lives: list[Any] = []

    def prepare(state: Path) -> None:
        deploy.world.effects.clear()
        v1 = newer(deploy, ASKS)
        living(state, lambda layer: begin(layer, v1))
        lives[:] = [newer(deploy, after)]

    for state in every_death(tmp_path, lambda layer: go_on(layer, lives[0], deploy.world), prepare):
        outcome = living(state, lambda layer: go_on(layer, lives[0], deploy.world))
        assert outcome.result() == ["R-1 yes", "yes"]
        assert deploy.world.counts() == {"bill": 1}
        assert len(children(state)) == 1
