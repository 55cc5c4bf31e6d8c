"""A run's process is killed before the run was ever put away: what its code had ahead is known all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Outcome
from tests.runs.deaths import dying, every_death, living
from tests.runs.deployed import Deploys, deploys
from tests.runs.worldly import kinds, the_question
from tests.servers import databases

V1 = """
@step
async def pull_tickets(client_id: str) -> int:
    return 214

@step(effect="write", key="quarter")
async def post_invoice(quarter: str) -> str:
    return await send("invoice", quarter)

@step(effect="write", key="quarter")
async def post_credit(quarter: str) -> str:
    return await send("credit", quarter)

@workflow(name="billing_killed")
async def billing(run: Run) -> list:
    found = [await pull_tickets(run.client_id), await post_invoice("Q3")]
    return [*found, await post_credit("Q3")]
"""
GONE = V1.replace(', await post_invoice("Q3")', "")
RENAMED = V1.replace("post_invoice", "send_invoice")
MAPS = """
@step(effect="write", key="number")
async def put_bill(number: int) -> str:
    return await send("bill", number)

@step(effect="write", key="number")
async def put_mail(number: int) -> str:
    return await send("mail", number)

async def bill(number: int) -> str:
    return await put_bill(number)

async def mail(number: int) -> str:
    return await put_mail(number)

@workflow(name="mapping_killed")
async def billing(run: Run) -> list:
    await run.map(bill, [1, 2])
    return await run.map(mail, [1, 2])
"""


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module."""
    with deploys(tmp_path / "code") as made:
        yield made


async def begun(layer: Layer, code: Any) -> Outcome[Any]:
    """Its first execution."""
    return await layer.run(code.billing(), client="acme", run_id="r")


async def resumed(layer: Layer) -> Outcome[Any]:
    """Another process goes on with it."""
    return await layer.resume("r")


def killed(folder: Path, code: Any, world: Any, when: str, *, times: int = 1, most: str = "") -> Path:
    """Begin the run in a process that dies at its first write after step *when* was on record so many *times*.

    *most*: a step of which nothing may be on record by then. Gives where its store is.
    """

    async def use(layer: Layer) -> Outcome[Any]:
        return await begun(layer, code)

    for at in range(3, 40):
        here = folder / f"{at}"
        here.mkdir(parents=True)
        world.effects.clear()
        dying(here, at, "before", use)
        names = [row["name"] for row in databases.rows(here, "SELECT name FROM step WHERE state = 'done'")]
        if names.count(when) == times:
            assert most not in names
            return here
        databases.done(here)
    raise AssertionError(f"it never came to {when}")


def test_a_step_it_had_not_come_to_is_not_new(deploy: Deploys, tmp_path: Path) -> None:
    """Killed after its invoice, and the code has that step no more: the credit stood ahead, and is not taken for it."""
    state = killed(tmp_path, deploy(V1), deploy.world, "post_invoice", most="post_credit")
    deploy(GONE)
    outcome = living(state, resumed)
    assert kinds(outcome) == []
    assert outcome.result() == [214, "R-2"]
    assert deploy.world.counts() == {"invoice": 1, "credit": 1}


def test_a_renamed_step_is_asked_about_all_the_same(deploy: Deploys, tmp_path: Path) -> None:
    """Killed after its invoice, which has another name now: that is asked, of this name only, and nothing is sent before."""
    state = killed(tmp_path, deploy(V1), deploy.world, "post_invoice", most="post_credit")
    deploy(RENAMED)
    question = the_question(living(state, resumed))
    assert "“post_invoice” is gone, “send_invoice” is new" in question.text
    assert "post_credit" not in question.text
    assert deploy.world.counts() == {"invoice": 1}


def test_what_it_had_not_mapped_is_not_new(deploy: Deploys, tmp_path: Path) -> None:
    """Killed after its bills, and the code does not map them any more: the mails stood ahead."""
    state = killed(tmp_path, deploy(MAPS), deploy.world, "put_bill", times=2, most="put_mail")
    deploy(MAPS.replace("    await run.map(bill, [1, 2])\n", ""))
    outcome = living(state, resumed)
    assert kinds(outcome) == []
    assert deploy.world.counts() == {"bill": 2, "mail": 2}


@pytest.mark.slow  # on PostgreSQL with `make soak`
def test_wherever_it_dies_nobody_is_asked(deploy: Deploys, tmp_path: Path) -> None:
    """Before every write of its first execution: newer code without the invoice goes on, sends the credit, and asks nothing."""
    lives: list[Any] = []

    def prepare(state: Path) -> None:
        deploy.world.effects.clear()
        lives[:] = [deploy(V1)]

    met = 0
    for state in every_death(tmp_path, lambda layer: begun(layer, lives[0]), prepare):
        if not databases.exists(state) or not databases.rows(state, "SELECT id FROM run"):
            continue
        lives[:] = []
        deploy(GONE)
        outcome = living(state, resumed)
        asked = set(kinds(outcome))
        assert asked <= {"unknown_outcome"}  # of the write it died in
        met += not asked
    assert met > 3


def test_code_that_was_executed_in_between_has_its_own_steps_ahead(deploy: Deploys, tmp_path: Path) -> None:
    """The second version sends under another name and is killed; the third has the first name again: that is asked about."""
    v1 = V1.replace('await post_invoice("Q3")]', 'await run.ask("Go on?", key="go on"), await post_invoice("Q3")]')

    async def first(layer: Layer) -> str:
        outcome = await begun(layer, deploy(v1))
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        return "asked"

    state = tmp_path / "r"
    state.mkdir()
    living(state, first)
    deploy(v1.replace("post_invoice", "bill"))
    for at in range(1, 40):
        dying(state, at, "before", resumed)
        if databases.rows(state, "SELECT id FROM step WHERE name = 'bill'"):
            break
    deploy(v1)
    question = the_question(living(state, resumed))
    assert "“bill” is gone, “post_invoice” is new" in question.text
    assert deploy.world.counts() == {"invoice": 1}


def test_what_is_ahead_stands_in_the_runs_row(deploy: Deploys, tmp_path: Path) -> None:
    """It costs no record: the take writes it. Of what is mapped alone there is one, where something is."""
    state = killed(tmp_path, deploy(V1), deploy.world, "pull_tickets")
    (row,) = databases.rows(state, "SELECT remaining FROM run WHERE id = 'r'")
    assert json.loads(row["remaining"]) == ["pull_tickets", "post_invoice", "post_credit"]
    assert databases.rows(state, "SELECT id FROM step WHERE name = 'run.passed_by'") == []
