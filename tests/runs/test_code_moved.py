"""Changed code calls a write in another place: in a step, in a map, for an item of another form.

Without a key of its own that is another one: it is asked about, and not done twice in silence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepseven.decide.plan import Do
from stepseven.model import RunStatus
from stepseven.testing import TestLayer
from tests.runs.deployed import Deploys, deploys
from tests.runs.outside import DROP
from tests.runs.test_code_changed import parked
from tests.runs.worldly import kinds, layers, the_question
from tests.servers import databases

STEPS = """
@step(effect="write")
async def send_bill(quarter: str) -> str:
    return await send("bill", quarter)

@step
async def bill_all(quarter: str) -> str:
    return await send_bill(quarter)

async def bill_one(quarter: str) -> str:
    return await send_bill(quarter)

@workflow("moved")
async def billing(run: Run) -> list:
    return [CALL, await run.ask("Go on?", key="go on")]
"""
PLAIN = STEPS.replace("CALL", 'await send_bill("Q3")')
STEP = STEPS.replace("CALL", 'await bill_all("Q3")')
MAP = STEPS.replace("CALL", '*await run.map(bill_one, ["Q3"])')


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module."""
    with deploys(tmp_path / "code") as made:
        yield made


async def asked(layer: TestLayer) -> Any:
    """Resume, and the one question that is asked."""
    outcome = await layer.resume("r")
    assert kinds(outcome) == ["conflict"], outcome
    return the_question(outcome)


MOVES = [(PLAIN, STEP), (PLAIN, MAP), (STEP, PLAIN), (MAP, PLAIN), (STEP, MAP), (MAP, STEP)]


@pytest.mark.parametrize("before,after", MOVES, ids=["in step", "in map", "out of step", "out of map", "to map", "to step"])
async def test_a_write_without_a_key_that_moved_is_asked_about(deploy: Deploys, tmp_path: Path, before: str, after: str) -> None:
    """Where it is called is what it is: nothing is sent before a person has said whether it is the same. The plan says so."""
    async with parked(deploy, tmp_path, before) as layer:
        deploy(after)
        (path,) = (await layer.plan("r")).paths
        if after is STEP:  # what a step calls that has not run is read from its source: it is counted
            assert path.questions_at_most == 2
        else:
            assert Do.ASK in [s.do for s in path.steps if s.step == "send_bill"], path.steps
        question = await asked(layer)
        assert "is “send bill”" in question.text
        assert "The values are the same." in question.text
        assert "now " in question.text
        assert kinds(await layer.resume("r")) == ["conflict"]
        await layer.answer(question.id, "same", by="ann")
        assert (await layer.resume("r")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"bill": 1}


async def test_a_second_one_is_done_once(deploy: Deploys, tmp_path: Path) -> None:
    """What was chosen is done, and not asked about again after the next deploy."""
    tail = 'key="go on"), await run.ask("And?", key="and")]'
    async with parked(deploy, tmp_path, PLAIN.replace('key="go on")]', tail)) as layer:
        deploy(STEP.replace('key="go on")]', tail))
        await layer.answer((await asked(layer)).id, "second", by="ann")
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["ask"]
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        deploy(STEP.replace('key="go on")]', tail) + "\n# newer\n")
        assert (await layer.resume("r")).result() == ["R-2", "yes", "yes"]
    assert deploy.world.counts() == {"bill": 2}


async def test_a_take_that_is_no_resume_asks_too(deploy: Deploys, tmp_path: Path) -> None:
    """It would be done twice whoever takes the run."""
    async with parked(deploy, tmp_path, PLAIN) as layer:
        v2 = deploy(MAP)
        assert kinds(await layer.run(v2.billing(), client="acme", run_id="r")) == ["conflict"]
    assert deploy.world.counts() == {"bill": 1}


@pytest.mark.parametrize("happened", [True, False])
async def test_a_send_nobody_saw_end_is_found_out_about_first(deploy: Deploys, tmp_path: Path, happened: bool) -> None:
    """It broke off where it was; before it is sent from its new place it is asked whether it happened."""
    deploy.world.moods.append(DROP)
    once = PLAIN.replace('effect="write"', 'effect="write", attempts=1')
    v1 = deploy(once)
    async with layers(databases.url(tmp_path)) as layer:
        assert kinds(await layer.run(v1.billing(), client="acme", run_id="r")) == ["unknown_outcome"]
        del v1
        deploy(STEP.replace('effect="write"', 'effect="write", attempts=1'))
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["unknown_outcome"]
        assert deploy.world.counts() == {"bill": 1}
        answer: Any = {"choice": "happened", "receipt": "R-1"} if happened else "not_happened"
        await layer.answer(the_question(outcome).id, answer, by="ann")
        if happened:
            await layer.answer((await asked(layer)).id, "same", by="ann")
        assert kinds(await layer.resume("r")) == ["ask"]
    assert deploy.world.counts() == {"bill": 1 if happened else 2}


# -- items of another form ----------------------------------------------------------------------------------------------------


def items(text: str, *, key: str = "", more: str = "") -> str:
    """A map over these, each of which sends a bill."""
    source = STEPS.replace("CALL", f"*await run.map(bill_one, {text})").replace("quarter: str", "quarter: Any")
    return source.replace('effect="write"', f'effect="write"{key}') + more


@pytest.mark.parametrize("key", ["", ', key="quarter"'])
async def test_items_of_another_form_are_asked_about_one_by_one(deploy: Deploys, tmp_path: Path, key: str) -> None:
    """Each new item is compared with the one it is most like; those that are the same are not done again."""
    async with parked(deploy, tmp_path, items("[1, 2, 3]", key=key)) as layer:
        first = {r["arguments"]: r["receipt"] for r in databases.rows(tmp_path, "SELECT arguments, receipt FROM effect")}
        deploy(items('["i3", "i1", "i2"]', key=key))
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["conflict"] * 3
        for question in outcome.questions:
            (then,) = (n for n in "123" if f"quarter {n} → i{n}" in question.text)
            assert then
            await layer.answer(question.id, "same", by="ann")
        gave = (await layer.resume("r")).result()
        assert [f'"{g}"' for g in gave[:3]] == [first[f'{{"quarter":{n}}}'] for n in (3, 1, 2)]
    assert deploy.world.counts() == {"bill": 3}


@pytest.mark.parametrize(
    "before,after,sent", [("[1, 2]", "[2, 1]", 2), ("[1, 2]", "[3, 1, 2]", 3), ("[1, 2, 3]", "[3, 1]", 3), ("[1]", "[1, 1]", 2)]
)
async def test_items_that_are_the_same_need_nobody(deploy: Deploys, tmp_path: Path, before: str, after: str, sent: int) -> None:
    """Another order, more items before the old ones, fewer, an equal one: also one at a time."""
    one = "concurrency=1)"
    async with parked(deploy, tmp_path, items(before)) as layer:
        deploy(items(after, more="\n# newer\n").replace(f"{after})", f"{after}, {one}"))
        outcome = await layer.resume("r")
        assert (outcome.status, kinds(outcome)) == (RunStatus.DONE, [])
        assert await layer.questions(status="withdrawn") == []
    assert deploy.world.counts() == {"bill": sent}


# -- nobody is asked without need ---------------------------------------------------------------------------------------------


async def test_what_a_finished_step_called_is_asked_for_by_it(deploy: Deploys, tmp_path: Path) -> None:
    """The step answers from its record, so its code does not call the write: that is none the code has dropped."""
    async with parked(deploy, tmp_path, STEP) as layer:
        deploy(STEP.replace("await run.ask", 'await send_bill("Q3"), await run.ask'))
        outcome = await layer.resume("r")
        assert (outcome.status, kinds(outcome)) == (RunStatus.DONE, []), outcome
        assert outcome.result() == ["R-1", "R-2", "yes"]
    assert deploy.world.counts() == {"bill": 2}


async def test_what_the_new_code_did_is_not_counted(deploy: Deploys, tmp_path: Path) -> None:
    """The same code calls it elsewhere, with other values: that is another effect."""
    text = STEPS.replace("CALL", 'await (bill_all("b") if ran else send_bill("a"))')
    async with parked(deploy, tmp_path, text) as layer:
        sys.modules[deploy.name].__dict__["ran"].append("y")
        assert (await layer.resume("r")).result() == ["R-2", "yes"]
    assert deploy.world.counts() == {"bill": 2}


async def test_the_question_is_taken_back_when_the_code_asks_for_it(deploy: Deploys, tmp_path: Path) -> None:
    """A later version calls both: then the one in the step is another."""
    async with parked(deploy, tmp_path, PLAIN) as layer:
        deploy(STEP)
        question = await asked(layer)
        deploy(STEPS.replace("CALL", 'await send_bill("Q3"), await bill_all("Q3")'))
        assert (await layer.resume("r")).result() == ["R-1", "R-2", "yes"]
        (row,) = databases.rows(tmp_path, "SELECT status FROM question WHERE id = ?", question.id)
        assert row["status"] == "withdrawn"
    assert deploy.world.counts() == {"bill": 2}


# -- the module of the steps changed, not the workflow's ----------------------------------------------------------------------


async def test_equal_arguments_in_another_place_are_asked_about_whatever_changed(deploy: Deploys, tmp_path: Path) -> None:
    """The same code, by its digest: but what was done with just these values it no longer calls where it was."""
    text = STEPS.replace("CALL", 'await (bill_all("Q3") if ran else send_bill("Q3"))')
    async with parked(deploy, tmp_path, text) as layer:
        sys.modules[deploy.name].__dict__["ran"].append("y")
        await layer.answer((await asked(layer)).id, "same", by="ann")
        assert (await layer.resume("r")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"bill": 1}


# -- the effect's own name or scope changed, too ------------------------------------------------------------------------------

KEYED = """
@step(effect="write", key="quarter"MORE)
async def send_bill(quarter: str, total: int) -> str:
    return await send("bill", quarter)

async def bill_one(total: int) -> str:
    return await send_bill("Q3", total)

@workflow("moved")
async def billing(run: Run) -> list:
    return [CALL, await run.ask("Go on?", key="go on")]
"""


def keyed(more: str = "", *, total: int = 1, call: str = 'await send_bill("Q3", TOTAL)') -> str:
    """One version of it."""
    return KEYED.replace("MORE", more).replace("CALL", call).replace("TOTAL", str(total))


@pytest.mark.parametrize("more", [', effect_name="bill"', ', scope="client"'])
@pytest.mark.parametrize("choice,sent,gives", [("same", 1, "R-1"), ("second", 2, "R-2")])
async def test_other_values_under_one_key_are_asked_about_whatever_the_effect_is_called(
    deploy: Deploys, tmp_path: Path, more: str, choice: str, sent: int, gives: str
) -> None:
    """Key and step are what they were; that the effect has another name or scope makes it no other thing."""
    async with parked(deploy, tmp_path, keyed()) as layer:
        deploy(keyed(more, total=2))
        assert Do.ASK in [s.do for s in (await layer.plan("r")).steps if s.step == "send_bill"]
        question = await asked(layer)
        assert "total 1 → 2" in question.text
        await layer.answer(question.id, choice, by="ann")
        outcome = await layer.resume("r")
        if choice == "second":  # what was answered then was answered on another receipt
            await layer.answer(the_question(outcome).id, "yes", by="ann")
            outcome = await layer.resume("r")
        assert outcome.result() == [gives, "yes"]
    assert deploy.world.counts() == {"bill": sent}


async def test_a_key_holds_in_another_place_whatever_the_effect_is_called(deploy: Deploys, tmp_path: Path) -> None:
    """Moved into a map, under another name of its effect: the receipt answers, and nobody is asked."""
    async with parked(deploy, tmp_path, keyed()) as layer:
        deploy(keyed(', effect_name="bill"', call="*await run.map(bill_one, [1])"))
        outcome = await layer.resume("r")
        assert kinds(outcome) == [], outcome
        assert outcome.result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"bill": 1}
