"""A function that is mapped, and a step that calls steps, get other names while a run waits: what is inside is not done twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepseven.errors import InvalidAnswer
from tests.runs.deployed import Deploys, deploys
from tests.runs.test_code_changed import asked, parked
from tests.runs.worldly import kinds, layers, the_question
from tests.servers import databases


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module."""
    with deploys(tmp_path / "code") as made:
        yield made


BILLS = """
@step(cost=Cost(usd=0.01))
async def read_hours(name: str) -> int:
    ran.append(name)
    return len(name)

@step(effect="write")
async def post_bill(name: str) -> str:
    return await send("bill", name)

async def bill_one(name: str) -> str:
    hours = await read_hours(name)
    return f"{hours} {await post_bill(name)}"

@workflow
async def billing(run: Run) -> list:
    return [await run.map(bill_one, ["ann", "bob", "cat"]), await run.ask("Go on?", key="go on")]
"""
RENAMED = BILLS.replace("bill_one", "invoice_one")
READS = BILLS.replace('f"{hours} {await post_bill(name)}"', "str(hours)")


def in_order(result: list[Any]) -> list[str]:
    """The items' results without the receipts' numbers, which depend on who came first."""
    return sorted(text.split(" ")[0] for text in result[0])


# -- a mapped function ----------------------------------------------------------------------------------------------------------


async def test_a_renamed_mapped_function_is_asked_about(deploy: Deploys, tmp_path: Path) -> None:
    """Its items hold writes: nothing runs before a person has said whether it is the same, and then none is done again."""
    async with parked(deploy, tmp_path, BILLS) as layer:
        v2 = deploy(RENAMED)
        question = await asked(layer)
        assert question.text.startswith(
            "The code of Acme's billing changed: “bill_one” is gone, “invoice_one” is new. Is it the same function?"
        ), question.text
        assert "“bill_one” went through 3 items, and did something outside." in question.text
        assert 'key="bill_one"' in question.text
        assert question.recommendation is None
        await layer.answer(question.id, "map", by="ann")
        result = (await layer.resume("r")).result()
        assert (in_order(result), result[1]) == (["3", "3", "3"], "yes")
        assert v2.ran == []
    assert deploy.world.counts() == {"bill": 3}


async def test_it_stays_the_same_at_every_later_load(deploy: Deploys, tmp_path: Path) -> None:
    """The answer counts for as long as the run lives; a plan sees the old items, too."""
    async with parked(deploy, tmp_path, BILLS) as layer:
        v2 = deploy(RENAMED.replace('key="go on")]', 'key="go on"), await run.ask("Sure?", key="sure")]'))
        await layer.answer((await asked(layer)).id, "map", by="ann")
        plan = await layer.plan("r")
        assert [s.step for s in plan.steps if s.do == "run"] == []
        outcome = await layer.resume("r")
        assert [q.text for q in outcome.questions] == ["Sure?"]
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        layer.clock.advance(3600)
        assert (await layer.resume("r")).result()[1:] == ["yes", "yes"]
        assert v2.ran == []
    assert deploy.world.counts() == {"bill": 3}


async def test_the_plan_shows_the_question(deploy: Deploys, tmp_path: Path) -> None:
    """Before anybody resumes: what would be asked."""
    async with parked(deploy, tmp_path, BILLS) as layer:
        deploy(RENAMED)
        assert "“bill_one” is gone, “invoice_one” is new" in " ".join(str(await layer.plan("r")).split())


async def test_another_function_runs_when_a_person_says_so(deploy: Deploys, tmp_path: Path) -> None:
    """``run``: each item anew, as was chosen, and nobody is asked again."""
    async with parked(deploy, tmp_path, BILLS) as layer:
        deploy(RENAMED)
        await layer.answer((await asked(layer)).id, "run", by="ann")
        assert in_order((await layer.resume("r")).result()) == ["3", "3", "3"]
    assert deploy.world.counts() == {"bill": 6}


async def test_a_worker_asks_too(deploy: Deploys, tmp_path: Path) -> None:
    """No recovery, but other code: what is outside may be done twice, so whoever takes the run asks."""
    async with parked(deploy, tmp_path, BILLS) as layer:
        v2 = deploy(RENAMED)
        outcome = await layer.run(v2.billing(), client="acme", run_id="r")
        assert kinds(outcome) == ["code"]
    assert deploy.world.counts() == {"bill": 3}


async def test_items_that_were_only_read_are_asked_about_in_a_recovery(deploy: Deploys, tmp_path: Path) -> None:
    """They only cost: a resume asks, recommends to go on with them, and runs nothing again."""
    async with parked(deploy, tmp_path, READS) as layer:
        v2 = deploy(READS.replace("bill_one", "invoice_one"))
        question = await asked(layer)
        assert "“bill_one” went through 3 items. It has cost $0.03." in question.text
        assert question.recommendation == "map"
        await layer.answer(question.id, "map", by="ann")
        assert (await layer.resume("r")).result() == [["3", "3", "3"], "yes"]
        assert v2.ran == []


async def test_a_key_that_is_given_is_another_name(deploy: Deploys, tmp_path: Path) -> None:
    """The same function gets a ``key=``: that names the map, too, and is asked about; the old name as the key needs nobody."""
    async with parked(deploy, tmp_path, BILLS) as layer:
        deploy(BILLS.replace('"cat"])', '"cat"], key="bills")'))
        await layer.answer((await asked(layer)).id, "map", by="ann")
        assert in_order((await layer.resume("r")).result()) == ["3", "3", "3"]
    assert deploy.world.counts() == {"bill": 3}


@pytest.mark.parametrize(
    "source",
    [
        RENAMED.replace('"cat"])', '"cat"], key="bill_one")'),  # what the question tells
        BILLS.replace("read_hours(name)\n", "read_hours(name)\n    print(hours)\n"),
        BILLS.replace(', await run.ask("Go', ', await run.map(look, [1]), await run.ask("Go').replace(
            "@workflow", "async def look(n: int) -> int:\n    return n\n\n@workflow"
        ),
    ],
    ids=["key", "other body", "one more"],
)  # fmt: skip
async def test_what_is_mapped_under_the_same_name_asks_nobody(deploy: Deploys, tmp_path: Path, source: str) -> None:
    """The function is still there, or its name is the map's key now: its items answer."""
    async with parked(deploy, tmp_path, BILLS) as layer:
        v2 = deploy(source)
        assert in_order((await layer.resume("r")).result()) == ["3", "3", "3"]
        assert v2.ran == []
    assert deploy.world.counts() == {"bill": 3}


async def test_a_map_that_was_ahead_anyway_is_not_new(deploy: Deploys, tmp_path: Path) -> None:
    """One map is removed and another one is still to come, as it was before: they are not taken for one."""
    mail = "async def mail_one(name: str) -> int:\n    return await read_hours(name)\n\n@workflow"
    source = BILLS.replace("@workflow", mail).replace('key="go on")]', 'key="go on"), await run.map(mail_one, ["dan"])]')
    async with parked(deploy, tmp_path, source) as layer:
        deploy(source.replace('await run.map(bill_one, ["ann", "bob", "cat"])', "1"))
        assert (await layer.resume("r")).result() == [1, "yes", [3]]


async def test_a_function_and_a_step_in_it_are_one_question(deploy: Deploys, tmp_path: Path) -> None:
    """Both got another name: ``map`` means both; told apart, each is named as it stands in the code."""
    async with parked(deploy, tmp_path, BILLS) as layer:
        v2 = deploy(RENAMED.replace("post_bill", "send_bill"))
        question = await asked(layer)
        assert "“bill_one” → “invoice_one” (done outside: 3 items" in question.text
        assert "“post_bill” → “send_bill”" in question.text
        with pytest.raises(InvalidAnswer, match="'nobody' is not gone; there is post_bill, bill_one"):
            await layer.answer(question.id, {"choice": "map", "to": {"nobody": "invoice_one"}}, by="ann")
        with pytest.raises(InvalidAnswer, match="'send_bill' cannot be bill_one; there is invoice_one, or null"):
            await layer.answer(question.id, {"choice": "map", "to": {"bill_one": "send_bill"}}, by="ann")
        await layer.answer(question.id, {"choice": "map", "to": {"bill_one": "invoice_one", "post_bill": "send_bill"}}, by="ann")
        assert in_order((await layer.resume("r")).result()) == ["3", "3", "3"]
        assert v2.ran == []
    assert deploy.world.counts() == {"bill": 3}


async def test_items_that_had_not_begun_go_on_under_the_first_name(deploy: Deploys, tmp_path: Path) -> None:
    """One item is done, one waits for a person, one is new since: each is done once."""
    waiting = BILLS.replace("async def bill_one(name: str) -> str:\n", "").replace(
        '    hours = await read_hours(name)\n    return f"{hours} {await post_bill(name)}"\n', ""
    ).replace(
        "async def billing(run: Run) -> list:\n",
        "async def billing(run: Run) -> list:\n"
        "    async def bill_one(name: str) -> str:\n"
        "        hours = await read_hours(name)\n"
        '        if name == "bob":\n'
        '            await run.ask("Bill Bob?", key="bob")\n'
        '        return f"{hours} {await post_bill(name)}"\n',
    )  # fmt: skip
    v1 = deploy(waiting)
    async with layers(databases.url(tmp_path)) as layer:
        outcome = await layer.run(v1.billing(), client="acme", run_id="r")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        del v1
        v2 = deploy(waiting.replace("bill_one", "invoice_one").replace('"cat"]', '"cat", "dora"]'))
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["code"]
        await layer.answer(the_question(outcome).id, "map", by="ann")
        assert kinds(await layer.resume("r")) == ["ask"]
        assert v2.ran == ["dora"]
    assert deploy.world.counts() == {"bill": 4}


# -- a step that calls steps ----------------------------------------------------------------------------------------------------

OUTER = """
@step(effect="write")
async def post_bill(name: str) -> str:
    return await send("bill", name)

@step
async def bill_all(names: list[str]) -> int:
    for name in names:
        ran.append(name)
    await post_bill(names[0])
    if FAILS:
        raise RuntimeError("it broke off")
    return len(names)

@workflow
async def billing(run: Run) -> list:
    return [await bill_all(["ann", "bob"]), await run.ask("Go on?", key="go on")]
"""
DONE, BROKEN = OUTER.replace("FAILS", "False"), OUTER.replace("FAILS", "True")


async def test_a_renamed_step_that_had_not_ended_keeps_what_it_called(deploy: Deploys, tmp_path: Path) -> None:
    """Nothing of it is on record but the write it made: that is enough to ask, and it is not made again."""
    v1 = deploy(BROKEN)
    async with layers(databases.url(tmp_path)) as layer:
        assert kinds(await layer.run(v1.billing(), client="acme", run_id="r")) == ["failure"]
        del v1
        deploy(DONE.replace("bill_all", "invoice_all"))
        outcome = await layer.resume("r")
        question = next(q for q in outcome.questions if q.kind == "code")
        assert "“bill_all” is gone, “invoice_all” is new" in question.text
        assert "“bill_all” was begun, and what it called did something outside." in question.text
        await layer.answer(question.id, "map", by="ann")
        for again in (await layer.resume("r")).questions:
            if again.kind == "failure":
                await layer.answer(again.id, "again", by="ann")
        outcome = await layer.resume("r")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r")).result() == [2, "yes"]
    assert deploy.world.counts() == {"bill": 1}


async def test_a_worker_asks_about_a_read_that_called_writes(deploy: Deploys, tmp_path: Path) -> None:
    """The step itself only reads, but run again under another name it would do outside again what it called."""
    async with parked(deploy, tmp_path, DONE) as layer:
        v2 = deploy(DONE.replace("bill_all", "invoice_all"))
        outcome = await layer.run(v2.billing(), client="acme", run_id="r")
        assert kinds(outcome) == ["code"]
        assert "and what it called did something outside" in the_question(outcome).text
        await layer.answer(the_question(outcome).id, "map", by="ann")
        assert (await layer.resume("r")).result() == [2, "yes"]
        assert v2.ran == []
    assert deploy.world.counts() == {"bill": 1}


async def test_a_function_with_an_argument_of_its_own_is_known_by_its_name(deploy: Deploys, tmp_path: Path) -> None:
    """``functools.partial`` has no name of its own: what it calls has, and a rename of that is asked about."""
    source = BILLS.replace("run.map(bill_one,", "run.map(functools.partial(bill_one, rate=2),")
    source = "import functools\n" + source.replace("bill_one(name: str)", "bill_one(name: str, rate: int)")
    async with parked(deploy, tmp_path, source) as layer:
        deploy(source + "# the same\n")
        assert [q.text for q in (await layer.resume("r")).questions] == []
    assert deploy.world.counts() == {"bill": 3}


async def test_a_write_with_a_key_needs_no_branch(deploy: Deploys, tmp_path: Path) -> None:
    """Its receipt answers wherever it is called: a worker only reads again, and a resume asks because of what that costs."""
    keyed = BILLS.replace('effect="write")', 'effect="write", key="name")')
    async with parked(deploy, tmp_path, keyed) as layer:
        v2 = deploy(keyed.replace("bill_one", "invoice_one"))
        question = await asked(layer)
        assert "“bill_one” went through 3 items. It has cost $0.03." in question.text
        await layer.answer(question.id, "run", by="ann")
        assert in_order((await layer.run(v2.billing(), client="acme", run_id="r")).result()) == ["3", "3", "3"]
        assert sorted(v2.ran) == ["ann", "bob", "cat"]
    assert deploy.world.counts() == {"bill": 3}
