"""What a person chose about steps that a run has not come to: plans tell it, and it is not lost where the code changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepseven import Cost, Layer, Run, attempt, step, testing, workflow
from stepseven.decide.plan import Do, PlannedStep
from tests.runs.deployed import Deploys, deploys
from tests.runs.worldly import kinds, layers, the_question
from tests.servers import databases

DONE: list[str] = []


@pytest.fixture(autouse=True)
def _anew() -> None:
    DONE.clear()


@step(cost=Cost(usd=0.5))
async def read_mail(n: int) -> int:
    """Costs something."""
    DONE.append("read_mail")
    attempt().spend(usd=0.5)
    return n


@step(effect="write", key="n")
async def archive(n: int) -> str:
    """Acts."""
    DONE.append("archive")
    return f"A-{n}"


@workflow
async def filing_given(run: Run) -> list:
    """Asks first: the steps come after that."""
    yes = await run.ask("Go on?", options=["yes", "no"])
    await run.ask("Sure?", options=["yes", "no"])
    return [yes, await read_mail(1), await archive(1)]


async def lines(layer: Layer, name: str, **chosen: object) -> list[PlannedStep]:
    """What the plan says of a step."""
    return [s for s in (await layer.plan("r", **chosen)).steps if s.step == name]  # type: ignore[arg-type]  # as given


async def test_what_is_given_for_a_step_that_comes_is_reused_in_the_plan() -> None:
    """``plan --skip`` of a step not reached: it does not run, costs nothing, and whose word that is stands there."""
    async with testing.layer() as layer:
        await layer.run(filing_given(), client="acme", run_id="r")
        (before,) = await lines(layer, "read_mail")
        assert (before.do, before.usd_at_most) == (Do.RUN, 1.0)
        (line,) = await lines(layer, "read_mail", skip={"read_mail": 7})
        assert (line.do, line.why, line.usd_at_most) == (Do.REUSE, "given by a person", 0.0)
        (line,) = await lines(layer, "archive", skip={"archive": None})
        assert (line.do, line.why) == (Do.REUSE, "skipped, as a person chose")
        path = (await layer.plan("r", skip={"read_mail": 7, "archive": "x"})).paths[0]
        assert (path.usd, path.usd_at_most_known, path.unbounded) == (0.0, 0.0, ())


async def test_a_stored_choice_is_seen_in_a_later_plan() -> None:
    """Chosen at a resume that did not come so far: the next plan says so without being told again, and it is kept."""
    async with testing.layer() as layer:
        await layer.run(filing_given(), client="acme", run_id="r")
        await layer.resume("r", skip={"archive": "by hand"}, by="ann")
        (line,) = await lines(layer, "archive")
        assert (line.do, line.why) == (Do.REUSE, "given by ann")
        (line,) = await lines(layer, "archive", approach={"archive": "as written"})
        assert line.do is Do.RUN  # a newer choice about the same step
        while not (outcome := await layer.resume("r")).status.ended:
            await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert outcome.result() == ["yes", 1, "by hand"]
    assert DONE == ["read_mail"]


async def test_a_choice_that_was_obeyed_is_none_about_what_comes() -> None:
    """Its record stands since: of a later call of the step the plan says that it runs."""

    @workflow
    async def twice_given(run: Run) -> list:
        return [await read_mail(1), await run.ask("Go on?", options=["yes"]), await read_mail(2)]

    async with testing.layer() as layer:
        await layer.run(filing_given(), client="acme", run_id="r")
        await layer.resume("r", skip={"read_mail": 7}, by="ann")
        await layer.answer(the_question(await layer.resume("r")).id, "yes", by="ann")
        outcome = await layer.resume("r")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r")).result() == ["yes", 7, "A-1"]
        outcome = await layer.run(twice_given(), client="acme", run_id="r2")
        assert kinds(outcome) == ["ask"]


# -- the code changes ---------------------------------------------------------------------------------------------------------

V1 = """
@step
async def pull_tickets(client_id: str) -> int:
    return 214

@step(effect="write", key="quarter")
async def post_invoice(quarter: str) -> str:
    return await send("invoice", quarter)

@workflow(name="billing_given")
async def billing(run: Run) -> list:
    found = [await pull_tickets(run.client_id)]
    first = [await run.ask("Go on?", key="go on"), await run.ask("Sure?", key="sure")]
    return [*found, *first, await post_invoice("Q3")]
"""
RENAMED = V1.replace("post_invoice", "send_invoice")


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module."""
    with deploys(tmp_path / "code") as made:
        yield made


@pytest.mark.parametrize("choice, sent", [("map", {}), ("run", {"invoice": 1})])
async def test_a_renamed_step_that_was_to_be_skipped_is_asked_about(
    deploy: Deploys, tmp_path: Path, choice: str, sent: dict[str, int]
) -> None:
    """Its new name has no word for it: whether it is the same is asked before it runs; if it is, the choice holds."""
    v1 = deploy(V1)
    async with layers(databases.url(tmp_path)) as layer:
        await layer.run(v1.billing(), client="acme", run_id="r")
        outcome = await layer.resume("r", skip={"post_invoice": "by hand"}, by="ann")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        del v1, outcome
        deploy(RENAMED)
        (asked,) = [s for s in (await layer.plan("r")).steps if s.step == "run.code"]
        assert asked.do is Do.ASK
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["code"]
        question = the_question(outcome)
        assert "“post_invoice” is gone, “send_invoice” is new" in question.text
        assert "ann" in question.text
        await layer.answer(question.id, choice, by="ann")
        (line,) = await lines(layer, "send_invoice")
        assert line.do is (Do.REUSE if choice == "map" else Do.RUN)
        outcome = await layer.resume("r")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        value = (await layer.resume("r")).result()
        assert (value[3] == "by hand") is (choice == "map")
    assert deploy.world.counts() == sent


async def test_a_rename_that_the_code_declares_keeps_the_choice(deploy: Deploys, tmp_path: Path) -> None:
    """``renamed_from=`` says that it is the same: nobody is asked, and it is skipped."""
    v1 = deploy(V1)
    async with layers(databases.url(tmp_path)) as layer:
        await layer.run(v1.billing(), client="acme", run_id="r")
        await layer.resume("r", skip={"post_invoice": "by hand"}, by="ann")
        del v1
        named = '@step(effect="write", key="quarter", renamed_from="post_invoice")\nasync def send_invoice'
        deploy(RENAMED.replace('@step(effect="write", key="quarter")\nasync def send_invoice', named))
        (line,) = await lines(layer, "send_invoice")
        assert (line.do, line.why) == (Do.REUSE, "given by ann")
        assert "on record" not in str((await layer.plan("r")).notes)
    assert deploy.world.counts() == {}


async def test_a_skipped_step_that_is_gone_needs_nobody(deploy: Deploys, tmp_path: Path) -> None:
    """The code has nothing new that it could be: the plan notes that the choice is about nothing, and nobody is asked."""
    v1 = deploy(V1)
    async with layers(databases.url(tmp_path)) as layer:
        await layer.run(v1.billing(), client="acme", run_id="r")
        await layer.resume("r", skip={"post_invoice": "by hand"}, by="ann")
        del v1
        deploy(V1.replace(', await post_invoice("Q3")]', "]"))
        assert any("“post_invoice”" in note and "ann" in note for note in (await layer.plan("r")).notes)
        assert kinds(await layer.resume("r")) == ["ask"]
