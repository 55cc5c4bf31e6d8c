"""A step gets another name in a module that is not the workflow's: the workflow's own source is what it was."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepseven.testing import TestLayer
from tests.runs.deployed import Deploys, collect
from tests.runs.outside import Mood, Outside
from tests.runs.test_code_changed import asked
from tests.runs.worldly import kinds, layers, the_question
from tests.servers import databases

LIB = """
@step(effect="write", key="quarter")
async def emboss_invoice(quarter: str) -> str:
    return await send("invoice", quarter)

@step
async def pull_tickets(client_id: str) -> int:
    ran.append("pull_tickets")
    return 214

async def bill(quarter: str) -> list:
    return [await pull_tickets("acme"), await emboss_invoice(quarter)]
"""
FLOWS = """
import deployed_lib as lib

@workflow
async def billing_by_lib(run: Run) -> list:
    return [*await lib.bill("Q3"), await run.ask("Go on?", key="go on")]
"""
MAIL = """
@step(effect="write", key="quarter")
async def courier(quarter: str) -> str:
    return await send("mail", quarter)

async def bill("""


class Both:
    """The workflow's module and the one that its steps are in."""

    def __init__(self, folder: Path, world: Outside) -> None:
        self.world = world
        self.flows, self.lib = Deploys(folder, world, "deployed_flows"), Deploys(folder, world, "deployed_lib")

    def __call__(self, lib: str, flows: str = FLOWS) -> list[str]:
        """Both are loaded anew, as after a restart; what of the steps runs is added to the list."""
        sys.modules.pop(self.flows.name, None)
        ran: list[str] = self.lib(lib).ran
        self.flows(flows)
        collect()
        return ran

    def run(self, layer: TestLayer) -> Awaitable[Any]:
        """Run the workflow, or take its run again."""
        return layer.run(sys.modules[self.flows.name].billing_by_lib(), client="acme", run_id="r")


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Both]:
    """Deploys a version of both modules."""
    with Outside() as world:
        made = Both(tmp_path, world)
        try:
            yield made
        finally:
            for one in (made.flows, made.lib):
                sys.modules.pop(one.name, None)


@asynccontextmanager
async def parked(deploy: Both, tmp_path: Path, lib: str = LIB, flows: str = FLOWS) -> AsyncIterator[TestLayer]:
    """A layer with a run at its question, which is answered."""
    deploy(lib, flows)
    async with layers(databases.url(tmp_path)) as layer:
        outcome = await deploy.run(layer)
        assert kinds(outcome) == ["ask"], outcome
        await layer.answer(the_question(outcome).id, "yes", by="ann")
    del outcome
    async with layers(databases.url(tmp_path), seed=2) as layer:  # of the first version nothing is held any more
        yield layer


@pytest.mark.parametrize("name", ["stamp_invoice", "hand_over"])
async def test_a_write_renamed_in_a_helpers_module_is_asked_about(deploy: Both, tmp_path: Path, name: str) -> None:
    """However unlike the names are: nothing is sent before a person says whether it is the same; the plan says so, too."""
    async with parked(deploy, tmp_path) as layer:
        ran = deploy(LIB.replace("emboss_invoice", name))
        assert f"“emboss_invoice” is gone, “{name}” is new" in str(await layer.plan("r"))
        question = await asked(layer)
        assert (await asked(layer)).id == question.id
        await layer.answer(question.id, "map", by="ann")
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        assert ran == []
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_short_wait_asks_too(deploy: Both, tmp_path: Path) -> None:
    """Deployed within minutes, and just run again: the write would be done twice as well. What a person said then stands."""
    async with parked(deploy, tmp_path) as layer:
        deploy(LIB.replace("emboss_invoice", "hand_over"))
        outcome = await deploy.run(layer)
        assert kinds(outcome) == ["code"]
        await layer.answer(the_question(outcome).id, "run", by="ann")
        assert (await deploy.run(layer)).result() == [214, "R-2", "yes"]
    assert deploy.world.counts() == {"invoice": 2}


async def test_a_claim_that_nobody_knows_about_is_asked_about(deploy: Both, tmp_path: Path) -> None:
    """The send broke off: under another name it is not sent before a person says what it is."""
    lib = LIB.replace('key="quarter")', 'key="quarter", attempts=1)')
    deploy.world.moods.append(Mood(reset=True))
    deploy(lib)
    async with layers(databases.url(tmp_path)) as layer:
        assert kinds(await deploy.run(layer)) == ["unknown_outcome"]
        deploy(lib.replace("emboss_invoice", "hand_over"))
        outcome = await layer.resume("r")
        question = next(q for q in outcome.questions if q.kind == "code")
        assert "I do not know whether it was done" in question.text
    assert deploy.world.counts() == {"invoice": 1}


NESTED = LIB.replace(', key="quarter"', "").replace(
    "async def bill(quarter: str) -> list:",
    """@step
async def bill_in_lib(quarter: str) -> str:
    return await emboss_invoice(quarter)

async def bill(quarter: str) -> list:""",
).replace("await emboss_invoice(quarter)]", "await bill_in_lib(quarter)]")  # fmt: skip


async def test_a_step_with_a_write_inside_is_asked_about(deploy: Both, tmp_path: Path) -> None:
    """A write without a key is known by the step around it: under another name of that it would be done again."""
    async with parked(deploy, tmp_path, NESTED) as layer:
        deploy(NESTED.replace("bill_in_lib", "collect_in_lib"))
        await layer.answer((await asked(layer)).id, "map", by="ann")
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
    assert deploy.world.counts() == {"invoice": 1}


OTHER = LIB.replace("async def bill(", MAIL)
ARMS = OTHER.replace("await emboss_invoice(quarter)]", "await (emboss_invoice(quarter) if LARGE else courier(quarter))]")
ARMS += "LARGE = True\n"
DECLARED = LIB.replace("emboss_invoice", "hand_over").replace('key="quarter")', 'key="quarter", renamed_from="emboss_invoice")')
LATER = FLOWS.replace('key="go on")]', 'key="go on"), await lib.courier("Q3")]')


@pytest.mark.parametrize("case", ["same", "read", "removed", "ahead", "arm", "loaded", "declared"])
async def test_what_asks_nothing(deploy: Both, tmp_path: Path, case: str) -> None:
    """Nothing is new that writes, or nothing is gone: what was ahead or in the other arm was there, what is declared still is."""
    lib, flows = {"ahead": (OTHER, LATER), "arm": (ARMS, FLOWS)}.get(case, (LIB, FLOWS))
    new, rest = {
        "same": (LIB, [214, "R-1", "yes"]),
        "read": (LIB.replace("pull_tickets", "look_up"), [214, "R-1", "yes"]),
        "removed": (gone(LIB, "1"), [214, 1, "yes"]),
        "ahead": (gone(OTHER, "1"), [214, 1, "yes", "R-2"]),
        "arm": (gone(ARMS, "await courier(quarter)"), [214, "R-2", "yes"]),
        "loaded": (OTHER.replace("await emboss_invoice(", "await courier("), [214, "R-2", "yes"]),
        "declared": (DECLARED, [214, "R-1", "yes"]),
    }[case]  # fmt: skip
    async with parked(deploy, tmp_path, lib, flows) as layer:
        deploy(new, flows)
        assert (await layer.resume("r")).result() == rest


@pytest.fixture
def third(tmp_path: Path, deploy: Both) -> Iterator[Deploys]:
    """A module the workflow has nothing to do with, and that has steps of the same names."""
    made = Deploys(tmp_path, deploy.world, "deployed_third")
    yield made
    sys.modules.pop(made.name, None)


NAMESAKE = """
@step(effect="write", key="quarter")
async def NAME(quarter: str) -> str:
    return await send("third", quarter)
"""


async def test_what_is_declared_counts_whoever_else_has_the_new_name(deploy: Both, third: Deploys, tmp_path: Path) -> None:
    """The step that the workflow calls says what it was called; that another module has one of its name changes nothing."""
    async with parked(deploy, tmp_path) as layer:
        deploy(DECLARED)
        third(NAMESAKE.replace("NAME", "hand_over"))
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_rename_is_asked_about_whoever_else_has_the_old_name(deploy: Both, third: Deploys, tmp_path: Path) -> None:
    """The workflow calls nothing of the module that has a step of the old name: the one on record is gone all the same."""
    async with parked(deploy, tmp_path) as layer:
        deploy(LIB.replace("emboss_invoice", "hand_over"))
        third(NAMESAKE.replace("NAME", "emboss_invoice"))
        outcome = await deploy.run(layer)
        assert kinds(outcome) == ["code"], outcome
    assert deploy.world.counts() == {"invoice": 1}


def gone(lib: str, instead: str) -> str:
    """A version without the invoice."""
    start = lib.index("@step(")
    without = lib[:start] + lib[lib.index("@step\n") :]
    for call in ("await (emboss_invoice(quarter) if LARGE else courier(quarter))", "await emboss_invoice(quarter)"):
        without = without.replace(call, instead)
    return without
