"""What a run passed by is not new in newer code: an arm that was not taken, before and after a deploy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.deployed import Deploys, deploys
from tests.runs.test_code_changed import asked, parked
from tests.runs.worldly import kinds, the_question
from tests.servers import databases


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module."""
    with deploys(tmp_path / "code") as made:
        yield made


ARMS = """
@step(effect="write", key="quarter")
async def post_invoice(quarter: str) -> str:
    return await send("invoice", quarter)

@step(effect="write", key="quarter")
async def post_credit(quarter: str) -> str:
    return await send("credit", quarter)

@step(effect="write", key="quarter")
async def send_mail(quarter: str) -> str:
    return await send("mail", quarter)

@workflow
async def billing(run: Run) -> list:
    found = [await post_invoice("Q3")] if LARGE else [await post_credit("Q3")]
    return [*found, await run.ask("Go on?", key="go on"), await run.ask("Sure?", key="sure"), await send_mail("Q3")]

LARGE = True
"""
GONE = ARMS.replace('[await post_invoice("Q3")] if LARGE else [await post_credit("Q3")]', '[await post_credit("Q3")]')


def passed_by(tmp_path: Path) -> list[list[str]]:
    """What is kept of that, in the order it was."""
    rows = databases.rows(tmp_path, "SELECT result FROM step WHERE name = 'run.passed_by' ORDER BY id")
    return [json.loads(row["result"]) for row in rows]


async def test_an_arm_that_was_not_taken_is_not_new(deploy: Deploys, tmp_path: Path) -> None:
    """The write in it stood in the older code too, and is no renamed one: the run takes it, and nobody is asked."""
    async with parked(deploy, tmp_path, ARMS) as layer:
        assert passed_by(tmp_path) == [["post_credit"]]
        deploy(GONE)
        outcome = await layer.resume("r")
        assert [q.text for q in outcome.questions] == ["Sure?"]
        assert passed_by(tmp_path) == [["post_credit"]]  # it has that, and more need not be kept
    assert deploy.world.counts() == {"invoice": 1, "credit": 1}


async def test_a_rename_beside_it_is_asked_about_all_the_same(deploy: Deploys, tmp_path: Path) -> None:
    """What is new in the source stays new: the arm that was not taken is not proposed for it, and not named."""
    async with parked(deploy, tmp_path, ARMS) as layer:
        deploy(ARMS.replace("post_invoice", "send_invoice"))
        question = await asked(layer)
        assert "“post_invoice” is gone, “send_invoice” is new" in question.text
        assert "post_credit" not in question.text
        assert (await asked(layer)).id == question.id  # put away by the newer code, it stands
        await layer.answer(question.id, "map", by="ann")
        assert [q.text for q in (await layer.resume("r")).questions] == ["Sure?"]
    assert deploy.world.counts() == {"invoice": 1}


async def test_newer_code_that_only_asks_says_nothing(deploy: Deploys, tmp_path: Path) -> None:
    """Code that waits for an answer about itself has not run: what it has is as new to the next version as before."""
    async with parked(deploy, tmp_path, ARMS) as layer:
        deploy(ARMS.replace("post_invoice", "send_invoice"))
        await asked(layer)
        assert passed_by(tmp_path) == [["post_credit"]]
        deploy(ARMS.replace("post_invoice", "send_invoice") + "# again\n")
        assert "“send_invoice” is new" in (await asked(layer)).text
    assert deploy.world.counts() == {"invoice": 1}


async def test_what_the_source_has_no_more_is_new_when_it_comes_back(deploy: Deploys, tmp_path: Path) -> None:
    """Code without the arm was executed in between: brought back, and with a write gone, it is asked about."""
    async with parked(deploy, tmp_path, ARMS) as layer:
        deploy(ARMS.replace(' if LARGE else [await post_credit("Q3")]', ""))
        outcome = await layer.resume("r")
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        assert passed_by(tmp_path) == [["post_credit"], []]
        deploy(GONE)
        assert "“post_invoice” is gone, “post_credit” is new" in (await asked(layer)).text
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_run_of_an_older_release_goes_on_as_it_did(deploy: Deploys, tmp_path: Path) -> None:
    """Nothing of that was kept: the write in the other arm may be the one that is gone, and a person says."""
    async with parked(deploy, tmp_path, ARMS) as layer:
        databases.execute(tmp_path, "DELETE FROM step WHERE name = 'run.passed_by'")
        deploy(GONE)
        assert "“post_invoice” is gone, “post_credit” is new" in (await asked(layer)).text
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_run_without_arms_keeps_nothing(deploy: Deploys, tmp_path: Path) -> None:
    """Everything its code has is on record or ahead: no row is written."""
    async with parked(deploy, tmp_path, ARMS.replace(' if LARGE else [await post_credit("Q3")]', "")):
        assert passed_by(tmp_path) == []


async def test_it_is_not_told_as_new(deploy: Deploys, tmp_path: Path) -> None:
    """The plan tells what is new in the code, and not what the run only did not come to before."""
    async with parked(deploy, tmp_path, ARMS) as layer:
        deploy(GONE.replace('[await post_credit("Q3")]', '[await post_invoice("Q3"), await post_credit("Q3")]'))
        assert "New in the code" not in str(await layer.plan("r"))


async def test_code_that_only_waited_for_a_word_has_not_been_compared(deploy: Deploys, tmp_path: Path) -> None:
    """A run kept dying; newer code asks whether to start it again, before it looks. Then it looks, and asks about the rename."""
    async with parked(deploy, tmp_path, ARMS) as layer:
        databases.execute(tmp_path, "UPDATE run SET status = 'running', owner = 'w_gone', barren = 9, progress = 999")
        deploy(ARMS.replace("post_invoice", "bill"))
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["poison"]
        await layer.answer(the_question(outcome).id, "again", by="ann")
        assert "“post_invoice” is gone, “bill” is new" in (await asked(layer)).text
    assert deploy.world.counts() == {"invoice": 1}
