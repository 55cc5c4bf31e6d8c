"""A question that a run is about to take back is answered in that moment: the answer counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepseven.transitions import questions
from tests.runs import test_code_changed, test_drift
from tests.runs.deployed import Deploys, deploys
from tests.runs.test_code_changed import READ, WRITE, parked
from tests.runs.test_drift import World, mailing, waiting
from tests.runs.worldly import kinds, layers

EMPTY = """
@step
async def pull(n: int) -> int:
    return n

@workflow
async def billing(run: Run) -> int:
    raise KeyError(await pull(1))
"""


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module."""
    with deploys(tmp_path / "code") as made:
        yield made


@pytest.fixture
def stopped_first(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whatever is taken back is answered with "stop" just before; what that was."""
    seen: list[str] = []
    inner = questions.withdraw

    def withdraw(tx: Any, hold: Any, question_id: str, now_us: int) -> Any:
        if question_id not in seen:
            seen.append(question_id)
        row = tx.one(tx.sql.question, {"id": question_id})
        if row["status"] == "open":  # a unit may be executed twice
            questions.answer(tx, question_id, "stop", by="ann", note=None, now_us=now_us)
        return inner(tx, hold, question_id, now_us)

    monkeypatch.setattr(questions, "withdraw", withdraw)
    return seen


def stopped(outcome: Any) -> bool:
    """Whether the run has ended because a person said so."""
    return outcome.status == "cancelled" and outcome.failure.reason == "stopped by ann"


async def test_about_what_moved(stopped_first: list[str]) -> None:
    """The fact moved further, so the question is taken back; "stop" came first, and nothing is asked anew or run."""
    world = World()
    flow = mailing(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        question = await test_drift.asked(layer)
        layer.client("acme").set("contact", "eve@acme.example", source="crm")
        assert stopped(await layer.resume("r1"))
        assert stopped_first == [question.id]
        assert len(world.ran) == 2


async def test_about_changed_code(deploy: Deploys, tmp_path: Path, stopped_first: list[str]) -> None:
    """The code changed once more, so the question is taken back; "stop" came first, and nothing is asked anew or run."""
    async with parked(deploy, tmp_path) as layer:
        deploy(WRITE)
        question = await test_code_changed.asked(layer)
        v3 = deploy(READ)
        assert stopped(await layer.resume("r"))
        assert stopped_first == [question.id]
        assert v3.ran == []
    assert deploy.world.counts() == {"invoice": 1}


async def test_about_a_body_that_failed(deploy: Deploys, tmp_path: Path, stopped_first: list[str]) -> None:
    """The code was mended, so the question is taken back; "stop" came first, and the body does not begin."""
    v1 = deploy(EMPTY)
    async with layers() as layer:
        outcome = await layer.run(v1.billing(), client="acme", run_id="r")
        assert kinds(outcome) == ["failure"]
        del v1
        deploy(EMPTY.replace("raise KeyError(await pull(1))", "return await pull(2)"))
        assert stopped(await layer.resume("r"))
        assert stopped_first == [outcome.questions[0].id]
