"""``@step(remember=…)``: the result is the client's fact from the same commit on that records it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from stepseven import Cost, Fixable, Layer, Retryable, Run, SecretFound, step, testing, workflow
from stepseven.testing import Clock
from tests.runs.deaths import every_death, living
from tests.runs.tools import exists, module, rows


class Contact(BaseModel):
    id: str
    phone: str | None = None


def facts(layer: Layer, key: str = "crm.contact") -> list[tuple[Any, str | None, str | None]]:
    """Every version: value, source, who."""
    return [(f.value, f.source, f.set_by) for f in reversed(layer.client("acme").history(key))]


@pytest.mark.parametrize(
    "how",
    [{}, {"cost": Cost(usd=0.01)}, {"effect": "write", "key": "name"}, {"effect": "write"}, {"attempts": 3, "timeout": 5}],
    ids=["free read", "paid read", "write", "keyless write", "timed read"],
)
async def test_the_result_is_a_fact(how):
    """Whatever the step's kind: its result is kept as the fact, with where it comes from; a replay does not write it again."""
    ran = []

    @step(name="find_contact", remember="crm.contact", **how)
    async def find_contact(name: str) -> Contact:
        ran.append(name)
        return Contact(id=f"c-{name}")

    @workflow(name="remembers")
    async def body(run: Run) -> list[Any]:
        before = run.client.get("crm.contact")
        found = await find_contact("acme")
        after = run.client.get("crm.contact")
        return [before, found.id, after, await run.ask("Go on?")]

    async with testing.layer() as layer:
        await layer.run(body(), client="acme", run_id="r1")
        await layer.answer_next("yes", by="ann")
        outcome = await layer.resume("r1")
        kept = {"id": "c-acme", "phone": None}
        assert outcome.result() == [None, "c-acme", kept, "yes"]
        assert facts(layer) == [(kept, "step find_contact of run r1", None)]
        assert ran == ["acme"]
        assert layer.client("acme").history("crm.contact")[0].run_id == "r1"


async def test_a_tried_again_step_is_remembered_too():
    """A read that failed first and one that a person gave: the fact is there, and says who gave it."""
    tries = []

    @step(name="flaky", remember="crm.contact")
    async def flaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise Retryable("no answer")
        return "c-2"

    @step(name="missing", remember="vat")
    async def missing() -> str:
        raise Fixable("no such record")

    @step(name="dropped", remember="dropped")
    async def dropped() -> str:
        raise Fixable("no such record")

    @workflow(name="troubled")
    async def body(run: Run) -> list[Any]:
        return [await flaky(), await missing(), run.client.get("vat"), await dropped(), run.client.get("dropped")]

    async with testing.layer() as layer:
        await layer.run(body(), client="acme", run_id="r1")
        await layer.answer_next({"choice": "value", "value": "DE1"}, by="ann")
        await layer.resume("r1")
        await layer.answer_next("skip", by="ann")
        assert (await layer.resume("r1")).result() == ["c-2", "DE1", "DE1", None, None]
        assert facts(layer) == [("c-2", "step flaky of run r1", None)]
        assert facts(layer, "vat") == [("DE1", "step missing of run r1", "ann")]
        assert facts(layer, "dropped") == []


@pytest.mark.parametrize("choice,answer", [("by_hand", {"receipt": "inv-7"}), ("value", {"value": "inv-7"})])
async def test_what_was_done_by_hand_is_remembered(choice, answer):
    """A write done by hand: its receipt is the fact, set by whoever gave it."""

    @step(name="post", effect="write", key="n", remember="invoice")
    async def post(n: int) -> str:
        raise Fixable("the portal is closed")

    @workflow(name="by_hand")
    async def body(run: Run) -> Any:
        return [await post(1), run.client.get("invoice")]

    async with testing.layer() as layer:
        await layer.run(body(), client="acme", run_id="r1")
        await layer.answer_next({"choice": choice, **answer}, by="ann")
        assert (await layer.resume("r1")).result() == ["inv-7", "inv-7"]
        assert facts(layer, "invoice") == [("inv-7", "step post of run r1", "ann")]


async def test_what_another_run_found_already_is_no_new_version():
    """A second run that finds the same says nothing new; its code sees it, also over what itself said before."""
    found = ["c-1"]

    @step(name="find_again", remember="crm.contact")
    async def find_again() -> str:
        return found[0]

    @workflow(name="finds_again")
    async def body(run: Run) -> Any:
        return [await find_again(), run.client.get("crm.contact")]

    async with testing.layer() as layer:
        for run_id in ("r1", "r2"):
            assert (await layer.run(body(), client="acme", run_id=run_id)).result() == ["c-1", "c-1"]
        assert facts(layer) == [("c-1", "step find_again of run r1", None)]
        found[0] = "c-2"
        assert (await layer.run(body(), client="acme", run_id="r3")).result() == ["c-2", "c-2"]
        assert [value for value, _, _ in facts(layer)] == ["c-1", "c-2"]
        assert layer.client("acme").facts()[0].conflicts == ()


async def test_a_result_of_none_is_no_fact():
    """A step that found nothing says nothing about the client."""

    @step(name="look", remember="crm.contact")
    async def look() -> str | None:
        return None

    @workflow(name="finds_nothing")
    async def body(run: Run) -> Any:
        return [await look(), run.client.get("crm.contact", "unknown")]

    async with testing.layer() as layer:
        assert (await layer.run(body(), client="acme", run_id="r1")).result() == [None, "unknown"]
        assert facts(layer) == []


async def test_another_runs_receipt_does_not_overrule_what_was_said_since():
    """``scope="client"``: the second run gets the first receipt, and what a person said in between stays the fact."""

    @step(name="register", effect="write", key="name", scope="client", remember="crm.contact")
    async def register(name: str) -> str:
        return "c-1"

    @workflow(name="registers")
    async def body(run: Run) -> Any:
        return await register("acme")

    async with testing.layer() as layer:
        await layer.run(body(), client="acme", run_id="r1")
        layer.client("acme").set("crm.contact", "c-9", by="ann")
        assert (await layer.run(body(), client="acme", run_id="r2")).result() == "c-1"
        assert [value for value, _, _ in facts(layer)] == ["c-1", "c-9"]


SOURCE = """
    from typing import Any
    from stepseven import Cost, Run, step, workflow

    ran = []

    @step(remember="plan")
    async def read_plan() -> str:
        ran.append("read_plan")
        return "gold"

    @step(cost=Cost(usd=0.01), remember="score")
    async def score() -> int:
        ran.append("score")
        return 7

    @step(effect="write", key="name", remember="crm.contact")
    async def register(name: str) -> dict[str, Any]:
        ran.append("register")
        return {"id": "c-" + name}

    @register.probe
    async def find(name: str) -> dict[str, Any] | None:
        return {"id": "c-" + name} if "register" in ran else None

    @workflow(name="remember_crash")
    async def body(run: Run) -> list[Any]:
        before = run.client.get("plan")
        return [before, await read_plan(), await score(), (await register("acme"))["id"],
                run.client.get("plan"), run.client.get("score"), run.client.get("crm.contact")]
"""


async def test_a_replay_knows_which_version_a_result_was():
    """The same result before and after another word of the run: what stood in between stands there in the replay, too."""
    seen = []

    @step(name="stage_of", remember="stage")
    async def stage_of(n: int, stage: str) -> str:
        return stage

    @workflow(name="stages")
    async def body(run: Run) -> None:
        await stage_of(1, "open")
        run.client.set("stage", "closed")
        seen.append(run.client.get("stage"))
        await stage_of(2, "open")
        seen.append(run.client.get("stage"))
        await run.ask("Go on?")

    async with testing.layer() as layer:
        await layer.run(body(), client="acme", run_id="r1")
        await layer.answer_next("yes", by="ann")
        await layer.resume("r1")
        assert seen == ["closed", "open"] * 2
        assert [f.version for f in layer.client("acme").history("stage")] == [3, 2, 1]


async def test_a_reused_receipt_is_the_version_that_it_was_when_it_was_reused():
    """Another run's receipt says "open" once more, after "closed": the replay sees what the run saw, whatever is said by then."""
    seen = []

    @step(name="register_stage", effect="write", key="name", scope="client", remember="stage")
    async def register_stage(name: str) -> str:
        return "open"

    @workflow(name="reuses")
    async def body(run: Run, first: bool) -> None:
        if not first:
            run.client.set("stage", "mine")
            await register_stage("acme")
            seen.append(run.client.get("stage"))
            await run.ask("Go on?")
        else:
            await register_stage("acme")

    async with testing.layer() as layer:
        await layer.run(body(first=True), client="acme", run_id="r1")
        layer.client("acme").set("stage", "closed", by="ann")
        await layer.run(body(first=False), client="acme", run_id="r2")
        layer.client("acme").set("stage", "open", by="ben")
        await layer.answer_next("yes", by="ann")
        await layer.resume("r2")
        assert seen == ["mine", "mine"]


@pytest.mark.parametrize("read_before", [True, False])
async def test_a_reused_receipt_does_not_move_the_run_back(read_before):
    """Another run's receipt says "open", a person said "closed" since: the run sees that, and so does the replay later."""
    seen = []

    @step(name="register_state", effect="write", key="name", scope="client", remember="state")
    async def register_state(name: str) -> str:
        return "open"

    @workflow(name="reuses_state", on_drift="keep")
    async def body(run: Run, asks: bool) -> None:
        if asks and read_before:
            run.client.get("state")
        assert await register_state("acme") == "open"
        seen.append(run.client.get("state"))
        if asks:
            await run.ask("Go on?")

    async with testing.layer() as layer:
        await layer.run(body(asks=False), client="acme", run_id="r1")
        layer.client("acme").set("state", "closed", by="ann")
        await layer.run(body(asks=True), client="acme", run_id="r2")
        layer.client("acme").set("state", "open", by="ben")
        await layer.answer_next("yes", by="ann")
        await layer.resume("r2")
        assert seen == ["open", "closed", "closed"]
        seen.clear()
        await layer.run(body(asks=False), client="acme", run_id="r3")
        assert seen == ["open"]
        assert [value for value, _, _ in facts(layer, "state")] == ["open", "closed", "open"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_crash_around_any_write_leaves_record_and_fact_together(tmp_path: Path):
    """Die at every durable write: record and fact are both there or neither, in one version each, and the end is the same."""
    code = module("remember_crash", SOURCE)
    want = [None, "gold", 7, "c-acme", "gold", 7, {"id": "c-acme"}]
    names = {"plan": "read_plan", "score": "score", "crm.contact": "register"}

    def drive(layer: Layer) -> Any:
        return layer.run(code.body(), client="acme", run_id="r", wait=60)

    deaths = 0
    for state in every_death(tmp_path, drive, lambda _: code.ran.clear()):
        if exists(state):
            done = {r["name"] for r in rows(state, "SELECT name FROM step WHERE state = 'done'")}
            known = {r["key"] for r in rows(state, "SELECT key FROM fact")}
            assert {names[key] for key in known} == done & set(names.values())
            told = {r["name"]: r["facts"] for r in rows(state, "SELECT name, facts FROM step WHERE state = 'done'")}
            assert all(told[names[key]] == f'{{"{key}": 1}}' for key in known)  # and which version that was
        assert living(state, drive).result() == want
        assert code.ran.count("register") == 1
        assert [r["version"] for r in rows(state, "SELECT version FROM fact ORDER BY key")] == [1, 1, 1]
        deaths += 1
    assert deaths >= 8


@pytest.mark.parametrize("name", ["", " ", "a\nb", 7, "x" * 201])
def test_what_is_no_name_of_a_fact_is_refused(name):
    """At decoration, with the step's name."""
    with pytest.raises(ValueError, match="remember="):

        @step(name="bad", remember=name)
        async def bad() -> None: ...


def test_a_credential_is_no_name_of_a_fact():
    """A name is shown everywhere."""
    with pytest.raises(SecretFound):

        @step(name="bad", remember="sk-ant-api03-" + "a1B2" * 20)
        async def bad() -> None: ...


async def test_a_step_that_ran_again_with_another_result_moves_the_fact():
    """A newer result is a new version; the same again is none."""
    pulled = ["gold"]

    @step(name="plan_of", remember="plan")
    async def plan_of() -> str:
        return pulled[0]

    @step(name="check_plan", check=lambda plan: plan != "gold")
    async def check_plan(plan: str) -> str:
        return plan

    @workflow(name="plans")
    async def body(run: Run) -> Any:
        plan = await plan_of()
        return [await check_plan(plan), run.client.get("plan")]

    clock = Clock()
    async with testing.layer(clock=clock) as layer:
        outcome = await layer.run(body(), client="acme", run_id="r1")
        pulled[0] = "free"
        clock.advance(timedelta(minutes=1))
        assert "rerun:plan_of" in [o.id for o in outcome.questions[0].options]
        await layer.answer(outcome.questions[0].id, "rerun:plan_of", by="ann")
        assert (await layer.resume("r1")).result() == ["free", "free"]
        assert [value for value, _, _ in facts(layer, "plan")] == ["gold", "free"]
