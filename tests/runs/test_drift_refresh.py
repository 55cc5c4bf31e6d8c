"""A refresh, for each way a run builds on a fact: only what was built on it is made anew.

Longer than other files: the same claim for each way.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepseven import Fixable, Run, attempt, step, workflow
from stepseven.testing import TestLayer
from tests.runs.test_drift import asked, drifts
from tests.runs.worldly import kinds, layers, the_question

LONG = timedelta(days=2)


@pytest.fixture
def ran() -> list[Any]:
    """What ran, in order."""
    return []


async def start(layer: TestLayer, flow: Any, **facts: Any) -> None:
    """A run that waits for days."""
    for key, value in facts.items():
        layer.client("acme").set(key, value, source="crm")
    await layer.run(flow(), client="acme", run_id="r1")
    layer.clock.advance(LONG)


async def choose(layer: TestLayer, choice: str) -> Any:
    """Answer the drift question, and go on."""
    await layer.answer((await asked(layer)).id, choice, by="ann")
    return await layer.resume("r1")


# -- read inside a step ----------------------------------------------------------------------------------------------


def reading(ran: list[Any]) -> Any:
    """A step's own code reads a fact, inside another step; one beside it reads nothing."""
    runs: dict[str, Run] = {}

    @step(name="look_up")
    async def look_up(what: str) -> Any:
        ran.append("look_up")
        return runs["run"].client.get("plan")

    @step(name="summarise")
    async def summarise(what: str) -> str:
        ran.append("summarise")
        return f"{what}: {await look_up(what)}"

    @step(name="count")
    async def count(what: str) -> int:
        ran.append("count")
        return 3

    @workflow(name="reading")
    async def body(run: Run) -> Any:
        runs["run"] = run
        first, n = await summarise("plan"), await count("seats")
        await run.ask("Go on?", key="go")
        return [first, n]

    return body


async def test_a_step_that_read_the_fact_runs_again(ran):
    """A step whose own code read it runs again, with the steps around it; the others answer from their records."""
    flow = reading(ran)
    async with layers() as layer:
        await start(layer, flow, plan="free")
        layer.client("acme").set("plan", "gold", source="crm")
        question = await asked(layer)
        assert question.context["drift"][0]["depends"] == ["look_up", "summarise"]
        await layer.answer(question.id, "refresh", by="ann")
        outcome = await layer.resume("r1")
        assert sorted(ran) == ["count", "look_up", "look_up", "summarise", "summarise"]
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["plan: gold", 3]


async def test_kept_it_stays_as_it_was_read(ran):
    """Kept, nothing of it runs again."""
    flow = reading(ran)
    async with layers() as layer:
        await start(layer, flow, plan="free")
        layer.client("acme").set("plan", "gold", source="crm")
        outcome = await choose(layer, "keep")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["plan: free", 3]
        assert len(ran) == 3


async def test_what_only_a_write_has_used_asks_nobody(ran):
    """A write that is done is not done again, so nobody is asked about what its code read."""
    runs: dict[str, Run] = {}

    @step(name="post", effect="write", key="what")
    async def post(what: str) -> Any:
        ran.append("post")
        return runs["run"].client.get("plan")

    @workflow(name="posting")
    async def body(run: Run) -> Any:
        runs["run"] = run
        done = await post("a")
        await run.ask("Go on?")
        return done

    async with layers() as layer:
        await start(layer, body, plan="free")
        layer.client("acme").set("plan", "gold", source="crm")
        assert the_question(await layer.resume("r1")).kind == "ask"
        assert ran == ["post"]


async def test_items_of_a_map_are_refreshed_one_by_one(ran):
    """In a map only the items that read the fact run again."""
    runs: dict[str, Run] = {}

    @step(name="price")
    async def price(item: str) -> str:
        ran.append(item)
        return f"{item} at {runs['run'].client.get('discount') if item == 'b' else 'list price'}"

    @workflow(name="pricing")
    async def body(run: Run) -> Any:
        runs["run"] = run
        prices = await run.map(price, ["a", "b", "c"])
        await run.ask("Go on?", key="go")
        return prices

    async with layers() as layer:
        await start(layer, body, discount="5 %")
        layer.client("acme").set("discount", "7 %", source="crm")
        outcome = await choose(layer, "refresh")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["a at list price", "b at 7 %", "c at list price"]
        assert sorted(ran) == ["a", "b", "b", "c"]


# -- answers that are facts ------------------------------------------------------------------------------------------


def asking(**options: Any) -> Any:
    """A run asks what it wants to remember, and then waits."""

    @workflow(name="asking")
    async def body(run: Run) -> Any:
        discount = await run.ask("Which discount?", remember="discount", **options)
        await run.ask("Go on?", key="go")
        return [discount, run.client.get("discount")]

    return body


async def answered(layer: TestLayer, flow: Any) -> None:
    """Its first question was answered; it waits for the second."""
    outcome = await layer.run(flow(), client="acme", run_id="r1")
    await layer.answer(the_question(outcome).id, "five", by="bob")
    await layer.resume("r1")
    layer.clock.advance(LONG)


async def test_an_answer_that_was_overtaken_is_not_used():
    """What was answered is a fact; said otherwise since, a refresh finds the fact instead of the answer."""
    flow = asking()
    async with layers() as layer:
        await answered(layer, flow)
        layer.client("acme").set("discount", "seven", by="eve")
        question = await asked(layer)
        assert question.context["drift"][0]["depends"] == ["bob's answer to “Which discount?”"]
        assert "It was said by eve on 2026-01-07." in question.text
        await layer.answer(question.id, "refresh", by="ann")
        outcome = await layer.resume("r1")
        assert the_question(outcome).text.startswith("Go on?")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["seven", "seven"]


async def test_an_answer_that_is_kept_counts():
    """Kept, the answer is what the run goes on with."""
    flow = asking()
    async with layers() as layer:
        await answered(layer, flow)
        layer.client("acme").set("discount", "seven", by="eve")
        outcome = await choose(layer, "keep")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["five", "five"]


async def test_an_answer_that_holds_no_more_is_asked_for_again():
    """``valid=``: when it is over, that is a change to "not known"; a refresh asks again."""
    flow = asking(valid="1d")
    async with layers() as layer:
        await answered(layer, flow)
        question = await asked(layer)
        assert "discount changed while the asking waited: five → not known." in question.text
        assert "It held until 2026-01-06." in question.text
        await layer.answer(question.id, "refresh", by="ann")
        outcome = await layer.resume("r1")
        again = next(q for q in outcome.questions if q.text.startswith("Which discount?"))
        await layer.answer(again.id, "nine", by="bob")
        outcome = await layer.resume("r1")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["nine", "nine"]


async def test_a_required_fact_is_found_or_asked_for_again():
    """``requires=``: refreshed, the run goes by what is known now; where nothing is, it asks again, before its first line."""

    @workflow(name="needing", requires=("vat", "plan"))
    async def body(run: Run) -> Any:
        await run.ask("Go on?", key="go")
        return [run.client.get("vat"), run.client.get("plan")]

    async with layers() as layer:
        layer.client("acme").set("vat", "DE1", valid="1d")
        outcome = await layer.run(body(), client="acme", run_id="r1")
        await layer.answer(the_question(outcome).id, "free", by="ann")
        await layer.resume("r1")
        layer.clock.advance(LONG)
        layer.client("acme").set("plan", "gold", source="crm")
        question = await asked(layer)
        assert question.text.startswith("Acme's VAT and plan changed while the needing waited.\n")
        assert "VAT: DE1 → not known (it held until 2026-01-06). Plan: free → gold (crm, 2026-01-07)." in question.text
        await layer.answer(question.id, "refresh", by="ann")
        outcome = await layer.resume("r1")
        required = next(q for q in outcome.questions if q.kind == "required")
        assert required.context["needs"] == "vat"
        await layer.answer(required.id, "DE2", by="ann")
        outcome = await layer.resume("r1")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["DE2", "gold"]


async def test_a_fact_that_was_not_known_may_have_become_so(ran):
    """To find that a fact was not known is to have read it."""

    @workflow(name="guessing")
    async def body(run: Run) -> Any:
        plan = run.client.get("plan", "none")
        await run.ask("Go on?", about=plan)
        return plan

    async with layers() as layer:
        await start(layer, body)
        layer.client("acme").set("plan", "gold", source="crm")
        question = await asked(layer)
        assert "plan changed while the guessing waited: not known → gold." in question.text
        await layer.answer(question.id, "refresh", by="ann")
        outcome = await layer.resume("r1")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == "gold"


async def test_a_fact_that_holds_no_more_is_not_known():
    """Refreshed, the run's code sees its default."""

    @workflow(name="expiring")
    async def body(run: Run) -> Any:
        plan = run.client.get("plan", "none")
        await run.ask("Go on?", key="go")
        return plan

    async with layers() as layer:
        layer.client("acme").set("plan", "gold", valid="1d")
        await start(layer, body)
        outcome = await choose(layer, "refresh")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == "none"


async def test_what_was_waited_for_is_refreshed():
    """``run.wait_for``: refreshed it gives what is so now; where nothing is, it waits again."""

    @workflow(name="awaiting")
    async def body(run: Run) -> Any:
        iban, plan = await run.wait_for("iban"), await run.wait_for("plan")
        await run.ask("Go on?", key="go")
        return [iban, plan]

    async with layers() as layer:
        layer.client("acme").set("plan", "gold", valid="1d")
        await start(layer, body, iban="DE1")
        layer.client("acme").set("iban", "DE2", source="crm")
        outcome = await choose(layer, "refresh")
        assert outcome.waiting_for in {"person", "event"}
        layer.client("acme").set("plan", "free", source="crm")
        outcome = await layer.resume("r1")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["DE2", "free"]


async def test_what_the_run_said_and_others_have_changed_is_what_is_so_now():
    """Watched: what the run itself had set is overtaken by a refresh, too."""

    @workflow(name="saying", watch=("plan",))
    async def body(run: Run) -> Any:
        run.client.set("plan", "gold")
        await run.ask("Go on?", key="go")
        return run.client.get("plan")

    async with layers() as layer:
        await start(layer, body)
        layer.client("acme").set("plan", "free", by="eve")
        outcome = await choose(layer, "refresh")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == "free"


# -- what was approved, and what was done ----------------------------------------------------------------------------


async def test_an_approval_belongs_to_what_was_shown():
    """What a person approved with the old value is shown again with the new one."""

    @workflow(name="approving")
    async def body(run: Run) -> Any:
        to = run.client.get("contact")
        mail = await run.approve("May this go out?", about={"to": to, "text": "hello"})
        await run.ask("Go on?", key="go")
        return mail

    async with layers() as layer:
        await start(layer, body, contact="ann@acme.example")
        first = next(q for q in await layer.questions() if q.kind == "approve")
        await layer.answer(first.id, "approve", by="bob")
        await layer.resume("r1", drift="keep")
        layer.clock.advance(LONG)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        question = await asked(layer)
        assert question.context["drift"][0]["depends"] == ["bob's approval of “May this go out?”"]
        await layer.answer(question.id, "refresh", by="ann")
        outcome = await layer.resume("r1")
        assert "approve" in kinds(outcome)
        again = next(q for q in outcome.questions if q.kind == "approve")
        assert again.context["facts"]["to"] == "ben@acme.example"


@pytest.mark.parametrize("key", ["client_id", "client_id, to"])
async def test_a_write_that_is_done_is_not_done_again_unasked(ran, key):
    """Under the same key with other values, or under another key: a person says whether it is the same thing."""

    @step(name="send", effect="write", key=key)
    async def send(client_id: str, to: str) -> str:
        ran.append(to)
        return to

    @workflow(name="sending")
    async def body(run: Run) -> Any:
        sent = await send(run.client_id, run.client.get("contact"))
        await run.ask("Go on?", key="go")
        return sent

    async with layers() as layer:
        await start(layer, body, contact="ann@acme.example")
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        outcome = await choose(layer, "refresh")
        assert "conflict" in kinds(outcome)
        assert ran == ["ann@acme.example"]
        conflict = next(q for q in outcome.questions if q.kind == "conflict")
        await layer.answer(conflict.id, "same", by="ann")
        outcome = await layer.resume("r1")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == "ann@acme.example"
        assert ran == ["ann@acme.example"]


async def test_a_question_that_has_nothing_to_do_with_it_is_not_asked_again(ran):
    """A question without ``about=`` stands, unless a step before it gave another result."""

    @step(name="draft")
    async def draft(to: str) -> str:
        ran.append(to)
        return f"to {to}"

    @workflow(name="unrelated")
    async def body(run: Run) -> Any:
        to = run.client.get("contact")
        ok = await run.ask("Is the discount approved?")
        made = await draft(to)
        await run.ask("Send it?", about=made)
        return [ok, made]

    async with layers() as layer:
        layer.client("acme").set("contact", "ann@acme.example")
        outcome = await layer.run(body(), client="acme", run_id="r1")
        await layer.answer(the_question(outcome).id, "yes", by="bob")
        await layer.resume("r1")
        layer.clock.advance(LONG)
        layer.client("acme").set("contact", "ben@acme.example")
        outcome = await choose(layer, "refresh")
        assert the_question(outcome).text.startswith("Send it?")
        assert await drifts(layer) == []
        assert ran == ["ann@acme.example", "ben@acme.example"]


# -- supplied for a step's next try ------------------------------------------------------------------------------------


async def test_what_a_step_was_given_is_what_it_was_made_of(ran: list[Any]) -> None:
    """A person supplied it, and it is a fact since: when that changes, it is asked about, and refreshed with what is so now."""

    @step
    async def register(name: str) -> str:
        if "vat" not in attempt().given:
            raise Fixable("no number", needs="vat", ask="Which?")
        ran.append(attempt().given["vat"])
        return f"{name}: {attempt().given['vat']}"

    @workflow(name="registers")
    async def registers(run: Run) -> str:
        made = await register("Acme")
        return f"{made}, {await run.ask('Go on?', about=made)}"

    async with layers() as layer:
        outcome = await layer.run(registers(), client="acme", run_id="r1")
        await layer.answer(the_question(outcome).id, "DE1", by="ann")
        assert kinds(await layer.resume("r1")) == ["ask"]
        layer.client("acme").set("vat", "DE2", source="crm")
        outcome = await choose(layer, "refresh")
        question = next(q for q in outcome.questions if q.text.startswith("Go on?"))
        await layer.answer(question.id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == "Acme: DE2, yes"
    assert ran == ["DE1", "DE2"]
