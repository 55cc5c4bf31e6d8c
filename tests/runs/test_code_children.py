"""A workflow that starts another one changes while it waits: what the other has done is not done again without a question.

Longer than other files: renamed, other inputs, another key and another place are cases of one claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer
from stepseven.decide.plan import Do
from stepseven.model import RunStatus
from stepseven.runtime import procedure
from stepseven.testing import TestLayer
from tests.runs.deployed import Deploys, deploys
from tests.runs.worldly import kinds, layers, the_question
from tests.servers import databases

BODY = """
@step(effect="write", key="quarter")
async def post_bill(quarter: str) -> str:
    return await send("bill", quarter)

@step
async def look_up(quarter: str) -> str:
    ran.append(quarter)
    return f"seen {quarter}"

@workflow
async def quarterly(run: Run, quarter: str) -> str:
    return await post_bill(quarter)

@workflow
async def quarterly_asking(run: Run, quarter: str) -> str:
    said = await run.ask(f"Is {quarter} right?", key="right")
    return f"{await post_bill(quarter)} {said}"

@workflow
async def quarterly_look(run: Run, quarter: str) -> str:
    return await look_up(quarter)

@workflow("parent_of_quarters")
async def parent(run: Run) -> list:
    return [CALL, await run.ask("Go on?", key="go on")]
"""


def text(call: str) -> str:
    """A version whose parent makes this call."""
    return BODY.replace("CALL", call)


FIRST = text('await run.start(quarterly(quarter="Q3"))')
OTHER = text('await run.start(quarterly(quarter="2026-Q3"))')
ASKS = text('await run.start(quarterly_asking(quarter="Q3"))')


def renamed(source: str, name: str, to: str) -> str:
    """The same with one workflow under another name."""
    return source.replace(f"async def {name}(", f"async def {to}(").replace(f"run.start({name}(", f"run.start({to}(")


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module. Of the first nothing is known any more."""
    before = dict(procedure.registry)
    with deploys(tmp_path / "code") as made:
        yield made
    procedure.registry.clear()
    procedure.registry.update(before)


def newer(deploy: Deploys, source: str) -> Any:
    """The next version, as after a restart."""
    for name in [n for n in procedure.registry if n.startswith(("quarterly", "parent_of"))]:
        del procedure.registry[name]
        procedure._namesakes.pop(name, None)
    return deploy(source)


@asynccontextmanager
async def parked(deploy: Deploys, tmp_path: Path, source: str = FIRST) -> AsyncIterator[TestLayer]:
    """A layer with a parent at its question, which is answered; its child is done."""
    v1 = deploy(source)
    async with layers(databases.url(tmp_path)) as layer:
        outcome = await layer.run(v1.parent(), client="acme", run_id="p")
        assert kinds(outcome) == ["ask"], outcome
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        del v1, outcome
        yield layer


@asynccontextmanager
async def waiting(deploy: Deploys, tmp_path: Path, source: str = ASKS) -> AsyncIterator[TestLayer]:
    """A layer with a parent whose child waits for a person."""
    v1 = deploy(source)
    async with layers(databases.url(tmp_path)) as layer:
        outcome = await layer.run(v1.parent(), client="acme", run_id="p")
        assert kinds(outcome) == ["ask"], outcome
        del v1, outcome
        yield layer


async def asked(layer: TestLayer, kind: str) -> Any:
    """Resume, and the one question of this kind that is asked."""
    outcome = await layer.resume("p")
    found = [q for q in outcome.questions if q.kind == kind]
    assert len(found) == 1, outcome
    return found[0]


def children(tmp_path: Path) -> list[str]:
    """The workflows of the runs it has started."""
    return [r["workflow"] for r in databases.rows(tmp_path, "SELECT workflow FROM run WHERE parent_no IS NOT NULL ORDER BY no")]


# -- another name -------------------------------------------------------------------------------------------------------------


async def test_a_renamed_child_that_acted_is_asked_about(deploy: Deploys, tmp_path: Path) -> None:
    """Before anything runs: is it the same? Then its value answers, and nothing of it is done again. The plan says so."""
    async with parked(deploy, tmp_path) as layer:
        newer(deploy, renamed(FIRST, "quarterly", "bill_quarter"))
        assert "“quarterly” is gone, “bill_quarter” is new" in " ".join(str(await layer.plan("p")).split())
        question = await asked(layer, "code")
        assert "Is it the same workflow?" in question.text
        assert '@workflow("quarterly")' in question.text
        assert [o.id for o in question.options] == ["map", "run", "stop"]
        await layer.answer(question.id, "map", by="ann")
        assert (await layer.resume("p")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"bill": 1}
    assert len(children(tmp_path)) == 1


async def test_another_workflow_is_started_when_a_person_says_so(deploy: Deploys, tmp_path: Path) -> None:
    """``run``: it is started, once, and nobody is asked again."""
    async with parked(deploy, tmp_path) as layer:
        newer(deploy, renamed(FIRST, "quarterly", "bill_quarter"))
        await layer.answer((await asked(layer, "code")).id, "run", by="ann")
        outcome = await layer.resume("p")
        assert [q.kind for q in outcome.questions] in ([], ["ask"]), outcome
    assert deploy.world.counts() == {"bill": 2}
    assert children(tmp_path) == ["quarterly", "bill_quarter"]


async def test_a_renamed_child_that_waits_goes_on_under_its_new_name(deploy: Deploys, tmp_path: Path) -> None:
    """It is the same run with its own question, and whoever has the new code takes it."""
    async with waiting(deploy, tmp_path) as layer:
        newer(deploy, renamed(ASKS, "quarterly_asking", "quarterly_checking"))
        await layer.answer((await asked(layer, "code")).id, "map", by="ann")
        outcome = await layer.resume("p")
        assert [q.text.splitlines()[0] for q in outcome.questions] == ["Is Q3 right?"]
        assert children(tmp_path) == ["quarterly_checking"]
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        outcome = await layer.resume("p")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("p")).result() == ["R-1 yes", "yes"]
    assert deploy.world.counts() == {"bill": 1}
    assert len(children(tmp_path)) == 1


async def test_the_older_code_comes_back_and_finds_it(deploy: Deploys, tmp_path: Path) -> None:
    """What a person said holds both ways."""
    async with waiting(deploy, tmp_path) as layer:
        newer(deploy, renamed(ASKS, "quarterly_asking", "quarterly_checking"))
        await layer.answer((await asked(layer, "code")).id, "map", by="ann")
        outcome = await layer.resume("p")
        newer(deploy, ASKS)
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        outcome = await layer.resume("p")
        assert [q.text for q in outcome.questions] == ["Go on?"], outcome
    assert deploy.world.counts() == {"bill": 1}
    assert len(children(tmp_path)) == 1


async def test_a_renamed_child_that_only_read_is_started_anew(deploy: Deploys, tmp_path: Path) -> None:
    """It only costs: nobody is asked, and the plan notes it."""
    looks = text('await run.start(quarterly_look(quarter="Q3"))')
    async with parked(deploy, tmp_path, looks) as layer:
        v2 = newer(deploy, renamed(looks, "quarterly_look", "quarterly_view"))
        assert "“quarterly_look” only read" in " ".join(str(await layer.plan("p")).split())
        outcome = await layer.resume("p")
        assert [q.kind for q in outcome.questions] in ([], ["ask"]), outcome
        assert v2.ran == ["Q3"]


async def test_a_child_that_stays_and_a_new_one_need_nobody(deploy: Deploys, tmp_path: Path) -> None:
    """Another workflow is started besides: before or behind the one that was."""
    async with parked(deploy, tmp_path) as layer:
        both = 'await run.start(quarterly_look(quarter="Q3")), await run.start(quarterly(quarter="Q3"))'
        newer(deploy, text(both))
        outcome = await layer.resume("p")
        assert [q.kind for q in outcome.questions] in ([], ["ask"]), outcome
    assert deploy.world.counts() == {"bill": 1}


# -- other inputs, another key, another place -----------------------------------------------------------------------------------


@pytest.mark.parametrize("choice,sent,gives", [("same", 1, "R-1"), ("second", 2, "R-2")])
async def test_other_inputs_are_asked_about(deploy: Deploys, tmp_path: Path, choice: str, sent: int, gives: str) -> None:
    """Nothing is started before a person has said whether it is the same; that is obeyed, and not asked again."""
    async with parked(deploy, tmp_path) as layer:
        newer(deploy, OTHER)
        plan = await layer.plan("p")
        assert Do.ASK in [s.do for s in plan.steps if s.step.startswith("run.start")], plan.steps
        question = await asked(layer, "conflict")
        assert "is the run of “quarterly” that it starts the one it started before" in question.text
        assert "quarter Q3 → 2026-Q3" in question.text
        assert (await asked(layer, "conflict")).id == question.id
        assert deploy.world.counts() == {"bill": 1}
        await layer.answer(question.id, choice, by="ann")
        outcome = await layer.resume("p")
        for _ in outcome.questions:
            await layer.answer(the_question(outcome).id, "yes", by="ann")
            outcome = await layer.resume("p")
        assert outcome.result() == [gives, "yes"]
    assert deploy.world.counts() == {"bill": sent}


SAME = 'await run.start(quarterly(quarter="Q3"), key="bills")'
MOVED = '*await run.map(one, ["Q3"])'


@pytest.mark.parametrize("call", [SAME, MOVED], ids=["key", "map"])
async def test_another_key_or_place_is_asked_about(deploy: Deploys, tmp_path: Path, call: str) -> None:
    """The inputs are the same: it would be started, and do its writes, a second time."""
    one = "    async def one(quarter: str) -> str:\n        return await run.start(quarterly(quarter=quarter))\n\n    return ["
    async with parked(deploy, tmp_path) as layer:
        v2 = newer(deploy, text(call).replace("    return [", one))
        outcome = await layer.run(v2.parent(), client="acme", run_id="p")  # whoever takes it
        assert kinds(outcome) == ["conflict"], outcome
        assert "The inputs are the same." in the_question(outcome).text
        await layer.answer(the_question(outcome).id, "same", by="ann")
        assert (await layer.resume("p")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"bill": 1}


async def test_one_that_waits_goes_on_as_it_was_begun(deploy: Deploys, tmp_path: Path) -> None:
    """The first is not over: the same is that run, with the inputs it began with."""
    async with waiting(deploy, tmp_path) as layer:
        newer(deploy, ASKS.replace('quarter="Q3"', 'quarter="2026-Q3"'))
        question = await asked(layer, "conflict")
        assert "It has not ended" in question.text
        await layer.answer(question.id, "same", by="ann")
        outcome = await layer.resume("p")
        while outcome.questions:
            await layer.answer(the_question(outcome).id, "yes", by="ann")
            outcome = await layer.resume("p")
        assert outcome.result() == ["R-1 yes", "yes"]
    assert deploy.world.counts() == {"bill": 1}
    assert len(children(tmp_path)) == 1


async def test_stop_ends_it_and_starts_nothing(deploy: Deploys, tmp_path: Path) -> None:
    """The first stays as it is."""
    async with parked(deploy, tmp_path) as layer:
        newer(deploy, OTHER)
        await layer.answer((await asked(layer, "conflict")).id, "stop", by="ann")
        assert (await layer.resume("p")).status is RunStatus.CANCELLED
    assert deploy.world.counts() == {"bill": 1}


EACH = "*[await run.start(quarterly(quarter=q)) for q in QUARTERS]"


@pytest.mark.parametrize("after", ["['a', 'b']", "['b', 'a']", "['a', 'b', 'c']"])
async def test_what_is_asked_for_is_not_asked_about(deploy: Deploys, tmp_path: Path, after: str) -> None:
    """A changed workflow that starts what it started before, in whatever order, and more behind: nobody is asked."""
    async with parked(deploy, tmp_path, text(EACH.replace("QUARTERS", "['a', 'b']"))) as layer:
        newer(deploy, text(EACH.replace("QUARTERS", after)) + "\n# newer\n")
        outcome = await layer.resume("p")
        assert [q.kind for q in outcome.questions] in ([], ["ask"]), outcome
    assert deploy.world.counts() == {"bill": max(2, after.count(",") + 1)}


async def test_a_child_that_only_read_is_started_with_other_inputs(deploy: Deploys, tmp_path: Path) -> None:
    """It does nothing twice: nobody is asked."""
    looks = text('await run.start(quarterly_look(quarter="Q3"))')
    async with parked(deploy, tmp_path, looks) as layer:
        v2 = newer(deploy, looks.replace('quarter="Q3"', 'quarter="Q4"'))
        outcome = await layer.resume("p")
        assert [q.kind for q in outcome.questions] in ([], ["ask"]), outcome
        assert v2.ran == ["Q4"]


async def test_what_a_run_below_the_child_did_counts(deploy: Deploys, tmp_path: Path) -> None:
    """The child itself only started another one, which acted."""
    deep = text('await run.start(quarterly_deep(quarter="Q3"))').replace(
        '@workflow("parent', "@workflow\nasync def quarterly_deep(run: Run, quarter: str) -> str:\n"
        '    return await run.start(quarterly(quarter=quarter))\n\n@workflow("parent',
    )  # fmt: skip
    async with parked(deploy, tmp_path, deep) as layer:
        newer(deploy, deep.replace('quarter="Q3"', 'quarter="2026-Q3"'))
        await asked(layer, "conflict")
    assert deploy.world.counts() == {"bill": 1}


# -- a worker -------------------------------------------------------------------------------------------------------------------


async def test_a_parked_child_that_no_worker_knows_is_told_of(deploy: Deploys, tmp_path: Path) -> None:
    """The parent waits for it, and would for ever: ``why`` of both names it, and says what to do."""
    async with waiting(deploy, tmp_path) as layer:
        (question,) = await layer.questions()
    v2 = newer(deploy, renamed(ASKS, "quarterly_asking", "quarterly_checking"))
    async with layers(databases.url(tmp_path), seed=2) as layer, layer.worker(v2):
        await layer.answer(question.id, "yes", by="ann")
        (child,) = [r["id"] for r in databases.rows(tmp_path, "SELECT id FROM run WHERE parent_no IS NOT NULL")]
        for run_id in ("p", child):
            told = await layer.why(run_id)
            assert "no worker knows workflow quarterly_asking" in told
            assert "`stepseven resume p`" in told
    assert deploy.world.counts() == {}


async def test_a_worker_asks_too(deploy: Deploys, tmp_path: Path) -> None:
    """A worker with the new code takes the parent after its answer: it asks, and starts nothing."""
    v1 = deploy(FIRST)
    async with Layer(databases.url(tmp_path)) as layer:
        question = the_question(await layer.run(v1.parent(), client="acme", run_id="p"))
        v2 = newer(deploy, renamed(FIRST, "quarterly", "bill_quarter"))
        async with layer.worker(v2):
            await layer.answer(question.id, "yes", by="ann")
            async with asyncio.timeout(20):
                while not (open_ := await layer.questions()):
                    await asyncio.sleep(0.01)
                assert [q.kind for q in open_] == ["code"]
                await layer.answer(open_[0].id, "map", by="ann")
                while not next(r for r in await layer.runs() if r.run_id == "p").status.ended:
                    await asyncio.sleep(0.01)
        assert (await layer.resume("p")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"bill": 1}
