"""``resume(drift=…)`` where something else is asked first: the choice holds until what moved was compared, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepseven.cli import main
from stepseven.testing import TestLayer
from tests.runs.deployed import Deploys, deploys
from tests.runs.worldly import kinds, layers, the_question
from tests.servers import databases

V1 = """
crm = {"contact": "Ann"}

async def load_customer(client_id: str) -> dict[str, str]:
    return dict(crm)

@step
async def draft_mail(contact: str, plan: str) -> str:
    ran.append(f"{contact}, {plan}")
    return f"Dear {contact}, {plan}"

@step(effect="write", key="quarter")
async def post_invoice(quarter: str) -> str:
    return await send("invoice", quarter)

@workflow(client_record=load_customer)
async def drift_chosen_renewal(run: Run) -> list:
    mail = await draft_mail(run.client.record["contact"], run.client.get("plan"))
    return [mail, await post_invoice("Q3"), await run.ask("Go on?", key="go on")]
"""
V2 = V1.replace("post_invoice", "send_invoice").replace('"contact": "Ann"', '"contact": "Ben"')


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module."""
    with deploys(tmp_path / "code") as made:
        yield made


async def moved(layer: TestLayer, deploy: Deploys) -> Any:
    """A run at its question; then a fact and the client's record move, and a write gets another name."""
    v1 = deploy(V1)
    layer.client("acme").set("plan", "basic", source="crm")
    await layer.run(v1.drift_chosen_renewal(), client="acme", run_id="r")
    layer.clock.advance(3600)
    layer.client("acme").set("plan", "gold", source="crm")
    layer.clock.advance(3600)
    return deploy(V2)


@pytest.mark.parametrize("how, mail", [("refresh", "Dear Ben, gold"), ("keep", "Dear Ann, basic")])
async def test_a_question_about_the_code_does_not_make_the_choice_forgotten(
    deploy: Deploys, tmp_path: Path, how: Any, mail: str
) -> None:
    """Chosen once, then asked about the code: nobody is asked about what had moved by then, and it is as was chosen."""
    async with layers(databases.url(tmp_path)) as layer:
        v2 = await moved(layer, deploy)
        outcome = await layer.resume("r", drift=how)
        assert kinds(outcome)[-1] == "code", outcome
        layer.clock.advance(3600)
        await layer.answer(next(q.id for q in outcome.questions if q.kind == "code"), "map", by="ann")
        assert kinds(await layer.resume("r")) == ["ask"]
        await layer.answer_next("yes")
        assert (await layer.resume("r")).result() == [mail, "R-1", "yes"]
        assert v2.ran == (["Ben, gold"] if how == "refresh" else [])
    assert deploy.world.counts() == {"invoice": 1}


async def test_what_moves_after_the_choice_is_asked_about(deploy: Deploys, tmp_path: Path) -> None:
    """While the question about the code waits the fact moves once more: that nobody has decided."""
    async with layers(databases.url(tmp_path)) as layer:
        await moved(layer, deploy)
        outcome = await layer.resume("r", drift="refresh")
        layer.clock.advance(3600)
        layer.client("acme").set("plan", "black", source="crm")
        await layer.answer(next(q.id for q in outcome.questions if q.kind == "code"), "map", by="ann")
        question = next(q for q in (await layer.resume("r")).questions if q.kind == "drift")
        assert [(one["old"], one["new"]) for one in question.context["drift"]] == [("gold", "black")]


FAILS = """
@workflow
async def drift_chosen_failing(run: Run) -> str:
    seen = [run.client.get("plan"), run.client.get("seats")]
    if broken:
        raise ValueError("broken")
    return f"{seen} {await run.ask('Go on?', key='go on')}"
"""


async def test_kept_while_the_run_waits_for_something_else_it_counts_until_it_is_compared(
    deploy: Deploys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run's own failure waits for a person, so nothing is compared: the choice stands, for what had moved by then."""
    url = databases.url(tmp_path)
    async with layers(url) as layer:
        code = deploy("broken = True\n" + FAILS)
        layer.client("acme").set("plan", "basic", source="crm")
        layer.client("acme").set("seats", 1, source="crm")
        failed = the_question(await layer.run(code.drift_chosen_failing(), client="acme", run_id="r"))
        layer.clock.advance(3600)
        layer.client("acme").set("plan", "gold", source="crm")
        layer.clock.advance(3600)
        assert [q.id for q in (await layer.resume("r", drift="keep")).questions] == [failed.id]
        await asyncio.to_thread(main, ["show", "r", "--store", url])
        assert "what had moved to be kept as it was → nothing ran" in " ".join(capsys.readouterr().out.split())
        layer.clock.advance(3600)
        layer.client("acme").set("seats", 2, source="crm")
        code.broken = False
        await layer.answer(failed.id, "again", by="ann")
        question = the_question(await layer.resume("r"))
        assert [one["key"] for one in question.context["drift"]] == ["seats"]
        await layer.answer(question.id, "keep", by="ann")
        assert kinds(await layer.resume("r")) == ["ask"]
        await layer.answer_next("yes")
        assert (await layer.resume("r")).result() == "['basic', 1] yes"
