"""The workflow's code changes while a run waits: what looks like a rename nobody declared is asked about before anything runs.

Longer than other files: the cases of one question share the two versions of one workflow.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer
from stepseven.errors import InvalidAnswer
from stepseven.model import RunStatus
from stepseven.runtime import codechange
from stepseven.runtime.memory import RunMemory
from stepseven.testing import TestLayer
from stepseven.transitions.state import Hold, load
from tests.runs.deployed import Deploys, deploys
from tests.runs.worldly import kinds, layers, the_question
from tests.servers import databases

V1 = """
@step(cost=Cost(usd=0.02))
async def pull_tickets(client_id: str) -> int:
    ran.append("pull_tickets")
    return 214

@step(effect="write", key="quarter")
async def post_invoice(quarter: str) -> str:
    return await send("invoice", quarter)

@workflow
async def billing(run: Run) -> list:
    found = [await pull_tickets(run.client_id), await post_invoice("Q3")]
    return [*found, await run.ask("Go on?", key="go on")]
"""
WRITE = V1.replace("post_invoice", "send_invoice")
READ = V1.replace("pull_tickets", "fetch_tickets")
NEW_WRITE = """
@step(effect="write", key="quarter")
async def NAME(quarter: str) -> str:
    return await send("NAME", quarter)

@workflow
"""
BOTH = WRITE.replace("pull_tickets", "fetch_tickets")


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module."""
    with deploys(tmp_path / "code") as made:
        yield made


@asynccontextmanager
async def parked(deploy: Deploys, tmp_path: Path, source: str = V1, **answers: Any) -> AsyncIterator[TestLayer]:
    """A layer with a run that the first version has brought to its question, which is answered."""
    v1 = deploy(source)
    async with layers(databases.url(tmp_path)) as layer:
        outcome = await layer.run(v1.billing(), client="acme", run_id="r")
        assert kinds(outcome) == ["ask"], outcome
        await layer.answer(the_question(outcome).id, answers.get("answer", "yes"), by="ann")
        del v1, outcome
        yield layer


async def asked(layer: Layer) -> Any:
    """Resume, and the one question that is asked."""
    outcome = await layer.resume("r")
    assert kinds(outcome) == ["code"], outcome
    return the_question(outcome)


# -- a rename that nobody declared ----------------------------------------------------------------------------------------------


async def test_a_renamed_write_is_asked_about_and_never_done_before_the_answer(deploy: Deploys, tmp_path: Path) -> None:
    """A receipt stands, the code has another name for it: the run waits, and nothing was done a second time."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(WRITE)
        question = await asked(layer)
        assert question.text.startswith(
            "The code of Acme's billing changed: “post_invoice” is gone, “send_invoice” is new. Is it the same step?"
        )
        assert "R-1" in question.text
        assert [o.id for o in question.options] == ["map", "run", "stop"]
        assert question.recommendation is None
        assert kinds(await layer.resume("r")) == ["code"]  # the same question, not another
        assert len(await layer.questions()) == 1
        assert v2.ran == []
    assert deploy.world.counts() == {"invoice": 1}


async def test_map_goes_on_with_the_receipt(deploy: Deploys, tmp_path: Path) -> None:
    """The same step, says a person: its receipt is the new one's result, now and at every later load."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(WRITE.replace('key="go on")]', 'key="go on"), await run.ask("Sure?", key="sure")]'))
        await layer.answer((await asked(layer)).id, "map", by="ann")
        outcome = await layer.resume("r")
        assert [q.text for q in outcome.questions] == ["Sure?"]
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        layer.clock.advance(3600)
        assert (await layer.resume("r")).result() == [214, "R-1", "yes", "yes"]
        assert v2.ran == []
    assert deploy.world.counts() == {"invoice": 1}


async def test_run_does_the_new_step_as_another_one(deploy: Deploys, tmp_path: Path) -> None:
    """Another step, says a person: it is done, and what the old one did stays."""
    async with parked(deploy, tmp_path) as layer:
        deploy(WRITE)
        question = await asked(layer)
        assert "was posted already (R-1); this does it once more" in next(o.detail for o in question.options if o.id == "run")
        await layer.answer(question.id, "run", by="ann")
        assert (await layer.resume("r")).result() == [214, "R-2", "yes"]
    assert deploy.world.counts() == {"invoice": 2}


async def test_stop_ends_the_run_and_does_nothing(deploy: Deploys, tmp_path: Path) -> None:
    """Nothing of the new code has run, and the run is cancelled by whom the answer came from."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(BOTH)
        await layer.answer((await asked(layer)).id, "stop", by="ann")
        outcome = await layer.resume("r")
        assert (outcome.status, outcome.failure.reason if outcome.failure else None) == (RunStatus.CANCELLED, "stopped by ann")
        assert v2.ran == []
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_renamed_read_is_asked_about_with_what_it_cost(deploy: Deploys, tmp_path: Path) -> None:
    """It may have cost money: the question says how much; ``map`` spends nothing again, and is recommended."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(READ)
        question = await asked(layer)
        assert "It has cost $0.02." in question.text
        assert question.recommendation == "map"
        assert next(o.usd for o in question.options if o.id == "run") == 0.02
        await layer.answer(question.id, "map", by="ann")
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        assert v2.ran == []


async def test_a_renamed_read_runs_when_a_person_says_so(deploy: Deploys, tmp_path: Path) -> None:
    """``run``: the new one runs anew, and is not asked about again."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(READ)
        await layer.answer((await asked(layer)).id, "run", by="ann")
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        assert v2.ran == ["fetch_tickets"]


@pytest.mark.parametrize("source", [READ, V1.replace("post_invoice", "bill")], ids=["read", "unlike"])
async def test_the_question_stands_until_it_is_answered(deploy: Deploys, tmp_path: Path, source: str) -> None:
    """However often the run is taken meanwhile, by whatever means: the same question, and nothing runs."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(source)
        question = await asked(layer)
        for _ in range(2):
            assert (await asked(layer)).id == question.id
            again = await layer.run(v2.billing(), client="acme", run_id="r")
            assert [q.id for q in again.questions] == [question.id]
            layer.clock.advance(3600)
        await layer.answer(question.id, "map", by="ann")
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        assert v2.ran == []
    assert deploy.world.counts() == {"invoice": 1}


async def test_several_renames_are_one_question(deploy: Deploys, tmp_path: Path) -> None:
    """One question lists them; ``map`` means all, as listed."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(BOTH)
        question = await asked(layer)
        assert (
            "“pull_tickets” → “fetch_tickets” (214, $0.02). “post_invoice” → “send_invoice” (done outside: R-1)." in question.text
        )
        await layer.answer(question.id, "map", by="ann")
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        assert v2.ran == []
    assert deploy.world.counts() == {"invoice": 1}


async def test_single_ones_may_be_told_apart(deploy: Deploys, tmp_path: Path) -> None:
    """``to`` corrects what is proposed: ``null`` for one that is none of the new ones."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(BOTH)
        question = await asked(layer)
        await layer.answer(question.id, {"choice": "map", "to": {"pull_tickets": None}}, by="ann")
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        assert v2.ran == ["fetch_tickets"]
    assert deploy.world.counts() == {"invoice": 1}


@pytest.mark.parametrize(
    "to, told",
    [
        ("send_invoice", "to takes the new name of each"),
        ({"post_invoices": "send_invoice"}, "'post_invoices' is not gone; there is pull_tickets, post_invoice"),
        ({"post_invoice": "fetch_tickets"}, "'fetch_tickets' cannot be post_invoice; there is send_invoice, or null"),
        (["send_invoice"], "to takes the new name of each"),
        (7, "to takes the new name of each"),
    ],
)
async def test_a_name_that_is_not_there_is_no_answer(deploy: Deploys, tmp_path: Path, to: Any, told: str) -> None:
    """One clear sentence, and the question stays open."""
    async with parked(deploy, tmp_path) as layer:
        deploy(BOTH)
        question = await asked(layer)
        with pytest.raises(InvalidAnswer, match=told):
            await layer.answer(question.id, {"choice": "map", "to": to}, by="ann")
        assert [q.id for q in await layer.questions()] == [question.id]


async def test_of_several_new_writes_a_person_names_the_one(deploy: Deploys, tmp_path: Path) -> None:
    """The likeliest stands in the text, the others are named; the answer may say another one."""
    source = WRITE.replace("@workflow\n", NEW_WRITE.replace("NAME", "bill_client"))
    source = source.replace('send_invoice("Q3")]', 'send_invoice("Q3"), await bill_client("Q3")]')
    async with parked(deploy, tmp_path) as layer:
        deploy(source)
        question = await asked(layer)
        assert "It could also be “bill_client”" in question.text
        await layer.answer(question.id, {"choice": "map", "to": "bill_client"}, by="ann")
        assert (await layer.resume("r")).result() == [214, "R-2", "R-1", "yes"]
    assert deploy.world.counts() == {"invoice": 2}


# -- what needs no question -----------------------------------------------------------------------------------------------------


async def test_a_declared_rename_asks_nothing(deploy: Deploys, tmp_path: Path) -> None:
    """``renamed_from=`` says it in the code."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(
            BOTH.replace("cost=Cost", 'renamed_from="pull_tickets", cost=Cost').replace(
                'key="quarter")', 'key="quarter", renamed_from="post_invoice")'
            )
        )
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        assert v2.ran == []
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_removed_step_asks_nothing(deploy: Deploys, tmp_path: Path) -> None:
    """Nothing new could be it: the run goes on, and nothing is taken back."""
    async with parked(deploy, tmp_path) as layer:
        deploy(V1.replace(', await post_invoice("Q3")]', "]"))
        assert (await layer.resume("r")).result() == [214, "yes"]
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_step_that_was_ahead_anyway_is_not_new(deploy: Deploys, tmp_path: Path) -> None:
    """One write is removed and another one is still to come, as it was before: they are not taken for one."""
    source = V1.replace("@workflow\n", NEW_WRITE.replace("NAME", "send_mail"))
    source = source.replace('key="go on")]', 'key="go on"), await send_mail("Q3")]')
    async with parked(deploy, tmp_path, source) as layer:
        deploy(source.replace(', await post_invoice("Q3")]', "]"))
        assert (await layer.resume("r")).result() == [214, "yes", "R-2"]
    assert deploy.world.counts() == {"invoice": 1, "send_mail": 1}


async def test_unchanged_code_asks_nothing(deploy: Deploys, tmp_path: Path) -> None:
    """The same text, loaded again."""
    async with parked(deploy, tmp_path) as layer:
        deploy(V1)
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]


async def test_what_is_worth_knowing_is_noted(deploy: Deploys, tmp_path: Path) -> None:
    """New and removed steps are sentences of the plan; code that is the same, and a run that only broke off, have none."""
    async with parked(deploy, tmp_path) as layer:
        v1 = deploy(V1)
        v2 = deploy(
            V1.replace("@workflow\n", NEW_WRITE.replace("NAME", "mail")).replace(
                'await post_invoice("Q3")]', 'await mail("Q3"), 1]'
            )
        )
        loaded = await layer.store.read(lambda tx: load(tx, 1))
        hold = Hold(run_no=1, run_id="r", client_id="acme", root_id="r", owner="nobody", fence=0)
        assert codechange.asks(RunMemory(layer.services, v2.billing, hold, loaded, recovery=True)) == (
            "The code of Acme's billing changed: “post_invoice” is gone, “mail” is new. Is it the same step?",
            {"mail": "post_invoice"},
        )
        for owner in (None, "somebody"):
            loaded.run = {**dict(loaded.run), "source_digest": v1.billing.digest, "owner": owner}
            assert codechange.notes(RunMemory(layer.services, v1.billing, hold, loaded, recovery=True)) == ()
        removed = deploy(V1.replace(', await post_invoice("Q3")]', ", await look(1)]").replace("@workflow", LOOK))
        assert codechange.notes(RunMemory(layer.services, removed.billing, hold, loaded, recovery=True)) == (
            "“post_invoice” did something outside (R-1); the code no longer has it. Nothing is taken back.",
            "New in the code: “look”.",
        )


LOOK = """@step
async def look(n: int) -> int:
    return n

@workflow"""


async def test_a_read_with_other_arguments_just_runs(deploy: Deploys, tmp_path: Path) -> None:
    """No record could answer it, whatever it is called: nobody is asked."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(READ.replace("(client_id: str)", "(client: str, limit: int = 5)"))
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        assert v2.ran == ["fetch_tickets"]


async def test_a_read_that_gives_something_else_just_runs(deploy: Deploys, tmp_path: Path) -> None:
    """What is on record is not of its type: it is another step."""
    async with parked(deploy, tmp_path) as layer:
        deploy(READ.replace("-> int", "-> str").replace("return 214", 'return "many"'))
        assert (await layer.resume("r")).result() == ["many", "R-1", "yes"]


TOOLS = """
import sys

@step(effect="write", key="quarter")
async def post_invoice(quarter: str) -> str:
    return await send("invoice", quarter)

@step
async def turn(n: int) -> str:
    return NAMED

@workflow
async def billing(run: Run) -> list:
    tool = getattr(sys.modules[__name__], await turn(1))
    return [await tool("Q3"), await run.ask("Go on?", key="go on")]
"""


async def test_what_cannot_be_read_is_not_asked_about(deploy: Deploys, tmp_path: Path) -> None:
    """A model names the tool: whether the code still calls the old one nobody can see, so nobody is asked; it is noted."""
    source = TOOLS.replace("NAMED", '"post_invoice"')
    async with parked(deploy, tmp_path, source) as layer:
        v2 = deploy(
            source.replace("async def post_invoice", "async def send_invoice").replace('"post_invoice"', '"send_invoice"')
        )
        loaded = await layer.store.read(lambda tx: load(tx, 1))
        hold = Hold(run_no=1, run_id="r", client_id="acme", root_id="r", owner="nobody", fence=0)
        ex = RunMemory(layer.services, v2.billing, hold, loaded, recovery=True)
        assert codechange.asks(ex) is None
        assert codechange.notes(ex) == (
            "I do not see “post_invoice” in the code any more; it may still be called where I cannot read it.",
        )
        deploy(source)
        assert (await layer.resume("r")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"invoice": 1}


# -- a question that the code answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fixed", ["declared", "back again"])
async def test_mended_code_closes_the_question(deploy: Deploys, tmp_path: Path, fixed: str) -> None:
    """A later version says ``renamed_from=``, or has the old step again: nobody has to answer any more."""
    async with parked(deploy, tmp_path) as layer:
        deploy(WRITE)
        question = await asked(layer)
        deploy(V1 if fixed == "back again" else WRITE.replace('key="quarter")', 'key="quarter", renamed_from="post_invoice")'))
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        (row,) = databases.rows(tmp_path, "SELECT status FROM question WHERE id = ?", question.id)
        assert row["status"] == "withdrawn"
    assert deploy.world.counts() == {"invoice": 1}


async def test_another_name_in_between_is_asked_about_anew(deploy: Deploys, tmp_path: Path) -> None:
    """While the question is open another version comes: the old question is closed, the new one names what is new now."""
    async with parked(deploy, tmp_path) as layer:
        deploy(WRITE)
        first = await asked(layer)
        deploy(V1.replace("post_invoice", "issue_invoice"))
        second = await asked(layer)
        assert (first.id != second.id, "issue_invoice" in second.text) == (True, True)
        assert [q.id for q in await layer.questions()] == [second.id]


async def test_renamed_twice_goes_on_with_the_first_record(deploy: Deploys, tmp_path: Path) -> None:
    """What a person said about one version still counts in the next: one receipt, through all names."""
    async with parked(deploy, tmp_path) as layer:
        more = 'key="go on"), await run.ask("Sure?", key="sure")]'
        deploy(WRITE.replace('key="go on")]', more))
        await layer.answer((await asked(layer)).id, "map", by="ann")
        assert kinds(await layer.resume("r")) == ["ask"]
        await layer.answer_next("yes")
        deploy(V1.replace("post_invoice", "issue_invoice").replace('key="go on")]', more))
        question = await asked(layer)
        assert "“post_invoice” is gone, “issue_invoice” is new" in question.text
        await layer.answer(question.id, "map", by="ann")
        assert (await layer.resume("r")).result() == [214, "R-1", "yes", "yes"]
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_rollback_after_map_does_nothing_twice(deploy: Deploys, tmp_path: Path) -> None:
    """What was done under the new name answers the old one when the older version is back: they are one step, a person said."""
    line = NEW_WRITE.replace("NAME", "post_line").replace("quarter", "n")
    source = V1.replace("@workflow\n", line).replace('await post_invoice("Q3")]', 'await post_line("1")]')
    source = source.replace('key="go on")]', 'key="go on"), await post_line("2"), await run.ask("Sure?", key="sure")]')
    async with parked(deploy, tmp_path, source) as layer:
        deploy(source.replace("post_line", "add_line").replace('send("add_line"', 'send("post_line"'))
        await layer.answer((await asked(layer)).id, "map", by="ann")
        assert kinds(await layer.resume("r")) == ["ask"]
        assert deploy.world.counts() == {"post_line": 2}
        await layer.answer_next("yes")
        deploy(source)
        assert (await layer.resume("r")).result() == [214, "R-1", "yes", "R-2", "yes"]
    assert deploy.world.counts() == {"post_line": 2}
