"""Each row of docs/code-changes.md, as a run meets it that waited while the code was deployed. Renames: test_code_changed.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepseven.errors import UnknownWorkflow
from stepseven.model import RunStatus
from stepseven.runtime import procedure
from tests.runs.deployed import Deploys, deploys
from tests.runs.test_code_changed import NEW_WRITE, V1, parked
from tests.runs.worldly import kinds, layers, the_question
from tests.servers import databases

pytestmark = pytest.mark.slow  # on PostgreSQL with `make soak`


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module."""
    with deploys(tmp_path / "code") as made:
        yield made


ORDER = V1.replace(
    "[await pull_tickets(run.client_id), await post_invoice", "[*await asyncio.gather(pull_tickets(run.client_id), post_invoice"
)
EDITS = {
    "a log line (N05)": (V1.replace("    found =", "    print('hello')  # and a comment\n    found ="), [214, "R-1", "yes"]),
    "gather for a sequence": (ORDER.replace('post_invoice("Q3")]', 'post_invoice("Q3"))]'), [214, "R-1", "yes"]),
    "another order": (
        V1.replace('[await pull_tickets(run.client_id), await post_invoice("Q3")]', "[*reversed([await post_invoice('Q3'), "
                   "await pull_tickets(run.client_id)])]"), [214, "R-1", "yes"],
    ),
    "a loop and a branch": (
        V1.replace("    found = [", "    for _ in range(1):\n        if True:\n            found = ["), [214, "R-1", "yes"],
    ),
    "names of variables": (V1.replace("found", "everything"), [214, "R-1", "yes"]),
    "the code of a finished step": (V1.replace("return 214", "return 7"), [214, "R-1", "yes"]),
    "a step removed": (V1.replace("await pull_tickets(run.client_id), ", ""), ["R-1", "yes"]),
    "a new input with a default": (V1.replace("(run: Run)", "(run: Run, month: int = 3)"), [214, "R-1", "yes"]),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
async def test_most_changes_need_no_thought(deploy: Deploys, tmp_path: Path, edit: str) -> None:
    """Nothing runs again, nothing is asked."""
    source, result = EDITS[edit]
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(source)
        assert (await layer.resume("r")).result() == result
        assert v2.ran == []
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_new_step_runs_alone(deploy: Deploys, tmp_path: Path) -> None:
    """It runs; what is on record does not."""
    source = V1.replace("@workflow\n", NEW_WRITE.replace("NAME", "mail")).replace(
        "    return [*found", '    await mail("Q3")\n    return [*found'
    )
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(source)
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        assert v2.ran == []
    assert deploy.world.counts() == {"invoice": 1, "mail": 1}


FAILING = """
@step(attempts=1)
async def pull(n: int) -> int:
    raise ValueError("the page is empty")

@workflow
async def billing(run: Run) -> list:
    return [await pull(1)]
"""


async def test_an_open_failure_is_tried_again_when_the_step_was_mended(deploy: Deploys, tmp_path: Path) -> None:
    """The next resume tries by itself, and the question is closed."""
    v1 = deploy(FAILING)
    async with layers(databases.url(tmp_path)) as layer:
        assert kinds(await layer.run(v1.billing(), client="acme", run_id="r")) == ["failure"]
        deploy(FAILING.replace('raise ValueError("the page is empty")', "return n"))
        assert (await layer.resume("r")).result() == [1]
        assert await layer.questions() == []


async def test_workflow_code_that_raised_is_tried_again_when_the_module_changed(deploy: Deploys, tmp_path: Path) -> None:
    """Between its steps it broke off; a mended module goes on from there by itself."""
    broken = V1.replace("    return [*found", "    found[7]\n    return [*found")
    v1 = deploy(broken)
    async with layers(databases.url(tmp_path)) as layer:
        assert kinds(await layer.run(v1.billing(), client="acme", run_id="r")) == ["failure"]
        v2 = deploy(V1)
        assert kinds(await layer.resume("r")) == ["ask"]
        assert v2.ran == []
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_bad_input_is_made_anew_where_it_came_from(deploy: Deploys, tmp_path: Path) -> None:
    """A check fails on purpose (N07): to try only that again helps nobody; the step that gave what is wrong can be run again."""
    source = """
@step
async def extract(n: int) -> int:
    ran.append("extract")
    return RETURNS

@step(attempts=1)
async def checked(amount: int) -> int:
    if amount < 0:
        raise ValueError("an amount below zero")
    return amount

@workflow
async def billing(run: Run) -> int:
    return await checked(await extract(1))
"""
    v1 = deploy(source.replace("RETURNS", "-5"))
    async with layers(databases.url(tmp_path)) as layer:
        outcome = await layer.run(v1.billing(), client="acme", run_id="r")
        v2 = deploy(source.replace("RETURNS", "5"))
        assert "rerun:extract" in [o.id for o in the_question(outcome).options]
        await layer.answer(the_question(outcome).id, "rerun:extract", by="ann")
        assert ((await layer.resume("r")).result(), v2.ran) == (5, ["extract"])


async def test_an_answer_after_twenty_deploys_counts(deploy: Deploys, tmp_path: Path) -> None:
    """Answering needs only the store (N10): the code that asked is long gone, and the run goes on with what there is."""
    v1 = deploy(V1)
    async with layers(databases.url(tmp_path)) as layer:
        question = the_question(await layer.run(v1.billing(), client="acme", run_id="r"))
        del v1
        for n in range(20):
            last = deploy(V1.replace("    found =", f"    print('version {n}')\n    found ="))
        procedure.registry.pop("billing")
        await layer.answer(question.id, "yes", by="ann")
        with pytest.raises(UnknownWorkflow):
            await layer.resume("r")
        procedure.registry["billing"] = last.billing
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_renamed_workflow_needs_its_name(deploy: Deploys, tmp_path: Path) -> None:
    """Stored runs name it: without the name their code is not there, with it they go on."""
    async with parked(deploy, tmp_path) as layer:
        renamed = V1.replace("async def billing", "async def monthly_billing")
        deploy(renamed)
        procedure.registry.pop("billing", None)
        with pytest.raises(UnknownWorkflow):
            await layer.resume("r")
        deploy(renamed.replace("@workflow\n", '@workflow("billing")\n'))
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]


async def test_another_text_is_another_question_unless_it_has_a_key(deploy: Deploys, tmp_path: Path) -> None:
    """A question is known by its text, or by its key."""
    async with parked(deploy, tmp_path, V1.replace(', key="go on"', "")) as layer:
        deploy(V1.replace(', key="go on"', "").replace("Go on?", "Shall I go on?"))
        assert kinds(await layer.resume("r")) == ["ask"]
    with deploys(tmp_path / "more") as other:
        (tmp_path / "keyed").mkdir()
        async with parked(other, tmp_path / "keyed") as layer:
            other(V1.replace("Go on?", "Shall I go on?"))
            assert (await layer.resume("r")).result() == [214, "R-1", "yes"]


MAPPED = """
async def handle(n: int) -> int:
    ran.append(n)
    return await double(n)

@step
async def double(n: int) -> int:
    ran.append("double")
    return 2 * n

@workflow
async def billing(run: Run) -> list:
    return [*await run.map(handle, [1, 2]KEY), await run.ask("Go on?")]
"""


@pytest.mark.parametrize("key", ["", ', key="numbers"'], ids=["by name", "keyed"])
async def test_a_mapped_function_under_another_name(deploy: Deploys, tmp_path: Path, key: str) -> None:
    """The map is known by the function's name, or by its key: without one a person says whether its items run again."""
    async with parked(deploy, tmp_path, MAPPED.replace("KEY", key)) as layer:
        v2 = deploy(MAPPED.replace("KEY", key).replace("handle", "process"))
        if not key:
            outcome = await layer.resume("r")
            assert (kinds(outcome), v2.ran) == (["code"], [])
            await layer.answer(outcome.questions[0].id, "run", by="ann")
        assert (await layer.resume("r")).result() == [2, 4, "yes"]
        assert v2.ran.count("double") == (0 if key else 2)


async def test_changed_arguments_of_a_read_are_named(deploy: Deploys, tmp_path: Path) -> None:
    """It runs again, and its record says which argument changed."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(V1.replace("(client_id: str)", "(client_id: str, limit: int = 5)"))
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        assert v2.ran == ["pull_tickets"]
        (row,) = databases.rows(tmp_path, "SELECT why FROM step WHERE name = 'pull_tickets' AND why IS NOT NULL")
        assert row["why"] == "ran again: argument limit changed"


async def test_an_ignored_parameter_is_no_difference(deploy: Deploys, tmp_path: Path) -> None:
    """``ignore=`` leaves it out of what identifies the call."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(V1.replace("cost=", 'ignore="limit", cost=').replace("(client_id: str)", "(client_id: str, limit: int = 5)"))
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        assert v2.ran == []


async def test_changed_arguments_of_a_write_are_asked_about(deploy: Deploys, tmp_path: Path) -> None:
    """The same key with other values: the same thing, a second one, or stop; nothing is done before the answer."""
    async with parked(deploy, tmp_path) as layer:
        deploy(V1.replace("(quarter: str)", "(quarter: str, net: int = 30)"))
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["conflict"]
        assert [o.id for o in the_question(outcome).options] == ["same", "second", "stop"]
        await layer.answer(the_question(outcome).id, "same", by="ann")
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
    assert deploy.world.counts() == {"invoice": 1}


@pytest.mark.parametrize("choice, value, invoices", [("same", "R-1", 1), ("second", "R-2", 2)])
async def test_another_key_after_a_deploy_is_asked_about(
    deploy: Deploys, tmp_path: Path, choice: str, value: str, invoices: int
) -> None:
    """The key is what makes two writes the same; where a deploy has changed the key itself, a person says if they are."""
    async with parked(deploy, tmp_path, V1.replace("(quarter: str)", "(quarter: str, net: int = 30)")) as layer:
        deploy(V1.replace("(quarter: str)", "(quarter: str, net: int = 30)").replace('key="quarter"', 'key="quarter, net"'))
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["conflict"]
        assert deploy.world.counts() == {"invoice": 1}
        await layer.answer(the_question(outcome).id, choice, by="ann")
        assert (await layer.resume("r")).result() == [214, value, "yes"]
    assert deploy.world.counts() == {"invoice": invoices}


TYPED = """
from dataclasses import dataclass

@dataclass
class Found:
    n: int

@step
async def look(n: int) -> Found:
    ran.append("look")
    return Found(n)

@workflow
async def billing(run: Run) -> list:
    found = await look(1)
    return [found.n, getattr(found, "more", None), await run.ask("Go on?")]
"""


async def test_a_field_with_a_default_is_added_to_recorded_results(deploy: Deploys, tmp_path: Path) -> None:
    """Nothing runs again."""
    async with parked(deploy, tmp_path, TYPED) as layer:
        v2 = deploy(TYPED.replace("    n: int\n", "    n: int\n    more: int = 5\n"))
        assert ((await layer.resume("r")).result(), v2.ran) == ([1, 5, "yes"], [])


async def test_a_result_that_cannot_be_read_any_more_is_kept_and_asked_about(deploy: Deploys, tmp_path: Path) -> None:
    """The field is named, the stored result stays; a mended type goes on with it."""
    async with parked(deploy, tmp_path, TYPED) as layer:
        deploy(TYPED.replace("    n: int\n", "    n: int\n    rate: float\n"))
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["failure"]
        assert "rate" in the_question(outcome).text
        v3 = deploy(TYPED)
        assert ((await layer.resume("r")).result(), v3.ran) == ([1, None, "yes"], [])


async def test_what_only_read_and_now_writes_is_another_step(deploy: Deploys, tmp_path: Path) -> None:
    """``effect=`` is part of what a step is: under the same name it runs again."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(V1.replace("@step(cost=Cost(usd=0.02))", '@step(effect="write", key="client_id")'))
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        assert v2.ran == ["pull_tickets"]
    assert deploy.world.counts() == {"invoice": 1}


async def test_code_that_fails_to_load_changes_nothing(deploy: Deploys, tmp_path: Path) -> None:
    """A deploy that cannot be imported leaves the run where it is."""
    async with parked(deploy, tmp_path) as layer:
        with pytest.raises(ZeroDivisionError):
            deploy(V1 + "\n1 / 0\n")
        assert (await layer.runs())[0].status is RunStatus.QUEUED
