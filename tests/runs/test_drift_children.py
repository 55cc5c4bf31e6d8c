"""A run that another one started is done, and what it was built on moved while that one waited: told, and never passed over."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Run, step, workflow
from stepseven.testing import TestLayer
from tests.runs.worldly import kinds, layers, the_question
from tests.servers import databases

LONG = timedelta(days=2)
RAN: Counter[tuple[str, str]] = Counter()  # what ran, and with what


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing ran yet."""
    RAN.clear()


@step
async def outline_letter(contact: str) -> str:
    """Built on the contact."""
    RAN["outline", contact] += 1
    return f"Dear {contact}, here is what we talked about"


@step(effect="write")
async def deliver_letter(letter: str) -> str:
    """Outside."""
    RAN["deliver", letter[:8]] += 1
    return letter


@step
async def proofread_letter(letter: str) -> str:
    """Built on what the child gave."""
    RAN["proofread", letter[:8]] += 1
    return letter


@workflow
async def lettering(run: Run) -> str:
    """A child that only reads."""
    return await outline_letter(run.client.get("contact"))


@workflow
async def delivering(run: Run) -> str:
    """A child that does something outside."""
    return await deliver_letter(await outline_letter(run.client.get("contact")))


@workflow(on_drift="keep")
async def settled(run: Run) -> str:
    """A child that goes on with what it knows, whatever moves."""
    return await outline_letter(run.client.get("contact"))


@workflow
async def between(run: Run) -> str:
    """A child that starts another."""
    return await run.start(lettering())


@workflow
async def finding_out(run: Run) -> str:
    """A child that asks for the contact, and keeps it."""
    return await run.ask("Who?", key="who", remember="contact")


CHILDREN = {"lettering": lettering, "settled": settled, "delivering": delivering, "between": between, "finding_out": finding_out}


@workflow
async def letter_round(run: Run, child: str) -> list[str]:
    """A run that waits with what its child gave."""
    letter = await proofread_letter(await run.start(CHILDREN[child]()))
    return [letter, await run.ask("Go on?", key="go on"), await run.ask("Sure?", key="sure", about=letter)]


async def waiting(layer: TestLayer, child: str) -> None:
    """The run has its child's value and waits; then the contact changes, and the answer comes."""
    layer.client("acme").set("contact", "Ann", source="crm")
    outcome = await layer.run(letter_round(child=child), client="acme", run_id="r")
    layer.clock.advance(LONG.total_seconds())
    layer.client("acme").set("contact", "Ben", source="crm")
    await layer.answer(the_question(outcome).id, "yes", by="ann")


async def started(layer: Layer, name: str) -> list[str]:
    """The ids of the runs of a workflow that were started, in order."""
    return [r.run_id for r in reversed(await layer.runs(workflow=name))]


def flat(text: Any) -> str:
    """Without the breaks that a terminal's width makes."""
    return " ".join(str(text).split())


async def refreshed(layer: Layer) -> list[str]:
    """Refresh, answer whatever is asked again, and the run's value."""
    outcome = await layer.resume("r")
    while outcome.questions:
        for question in outcome.questions:
            await layer.answer(question.id, "refresh" if question.kind == "drift" else "yes", by="ann")
        outcome = await layer.resume("r")
    value: list[str] = outcome.result()
    return value


async def test_what_a_child_that_is_done_was_built_on_is_asked_about(tmp_path: Path) -> None:
    """The run itself has read no fact; what it started has, and it is named with what a refresh does about it."""
    async with layers(databases.url(tmp_path)) as layer:
        await waiting(layer, "lettering")
        (run_id,) = await started(layer, "lettering")
        named = f"run {run_id} of lettering (done; a refresh starts it anew)"
        plan = flat(await layer.plan("r"))
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["drift"]
        text = flat(the_question(outcome).text)
        assert text.startswith("Acme's contact changed while the letter round waited: Ann → Ben."), text
        assert f"Built on it: {named} and “proofread letter”." in text
        assert f"{named} and proofread_letter depend on it" in plan, plan
        assert RAN == {("outline", "Ann"): 1, ("proofread", "Dear Ann"): 1}


async def test_a_refresh_starts_it_anew(tmp_path: Path) -> None:
    """It only read: it is started once more, with what is so now, and only what got its value runs again."""
    async with layers(databases.url(tmp_path)) as layer:
        await waiting(layer, "lettering")
        assert (await refreshed(layer))[0] == "Dear Ben, here is what we talked about"
        assert len(await started(layer, "lettering")) == 2
        both = {("outline", "Ann"): 1, ("proofread", "Dear Ann"): 1, ("outline", "Ben"): 1, ("proofread", "Dear Ben"): 1}
        assert both == RAN


async def test_a_plan_says_why_it_is_started_anew() -> None:
    """What would run after a refresh is in the plan, with the reason."""
    async with layers() as layer:
        await waiting(layer, "lettering")
        ways = {p.name: {s.step: (s.do, s.why) for s in p.steps} for p in (await layer.plan("r")).paths}
        assert ways["refresh"]["run.start/lettering"] == ("run", "what it was built on changed")
        assert "run.start/lettering" not in ways["continue"]


async def test_keep_goes_on_with_what_it_gave() -> None:
    """Nothing is started again, and about this change nobody is asked again."""
    async with layers() as layer:
        await waiting(layer, "lettering")
        await layer.answer(the_question(await layer.resume("r")).id, "keep", by="ann")
        outcome = await layer.resume("r")
        assert [q.text for q in outcome.questions] == ["Sure?"]
        assert kinds(await layer.resume("r")) == ["ask"]
        assert len(await started(layer, "lettering")) == 1


async def test_one_that_did_something_outside_is_not_done_again(tmp_path: Path) -> None:
    """A refresh leaves it as it is, and that is said before; asked about once, and again only if it moves further."""
    async with layers(databases.url(tmp_path)) as layer:
        await waiting(layer, "delivering")
        plan = flat(await layer.plan("r"))
        question = the_question(await layer.resume("r"))
        (run_id,) = await started(layer, "delivering")
        words = f"run {run_id} of delivering (done, and not done again without your word: it did something outside)"
        assert f"Built on it: {words}." in flat(question.text)
        assert f"{words} depends on it" in plan, plan
        await layer.answer(question.id, "refresh", by="ann")
        for _ in range(2):
            assert [q.text for q in (await layer.resume("r")).questions] == ["Sure?"]
        layer.clock.advance(LONG.total_seconds())
        layer.client("acme").set("contact", "Cid", source="crm")
        assert "drift" in kinds(await layer.resume("r"))
        assert len(await started(layer, "delivering")) == 1
        assert RAN == {("outline", "Ann"): 1, ("deliver", "Dear Ann"): 1, ("proofread", "Dear Ann"): 1}


async def test_what_a_grandchild_has_read_counts() -> None:
    """It was started by one that was started: the one whose value the run has is named, and both are started anew."""
    async with layers() as layer:
        await waiting(layer, "between")
        assert "of between (done; a refresh starts it anew)" in flat(the_question(await layer.resume("r")).text)
        assert (await refreshed(layer))[0].startswith("Dear Ben")
        assert len(await started(layer, "lettering")) == 2


async def test_what_the_child_itself_said_is_no_drift() -> None:
    """It asked for a fact and kept it: that is the family's own word, as long as nobody says another."""
    async with layers() as layer:
        outcome = await layer.run(letter_round(child="finding_out"), client="acme", run_id="r")
        await layer.answer(the_question(outcome).id, "Ann", by="ann")
        outcome = await layer.resume("r")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        layer.clock.advance(LONG.total_seconds())
        assert [q.text for q in (await layer.resume("r")).questions] == ["Sure?"]
        layer.client("acme").set("contact", "Ben", source="crm")
        assert sorted(kinds(await layer.resume("r"))) == ["ask", "drift"]


async def test_a_child_that_says_keep_is_not_asked_about() -> None:
    """Its code has decided already; so it is for whoever started it."""
    async with layers() as layer:
        await waiting(layer, "settled")
        assert [q.text for q in (await layer.resume("r")).questions] == ["Sure?"]


async def test_a_fact_that_nothing_has_read_asks_nobody() -> None:
    """Another fact of the client moved: the child never looked at it."""
    async with layers() as layer:
        layer.client("acme").set("contact", "Ann", source="crm")
        outcome = await layer.run(letter_round(child="lettering"), client="acme", run_id="r")
        layer.clock.advance(LONG.total_seconds())
        layer.client("acme").set("plan", "gold", source="crm")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert [q.text for q in (await layer.resume("r")).questions] == ["Sure?"]


# -- started with other inputs --------------------------------------------------------------------------------------------------

LOOKED = {"contact": "ann"}


@step
async def look_for_contact(n: int) -> str:
    """What may be otherwise the next time."""
    return LOOKED["contact"]


@look_for_contact.verify
async def still_that_contact(n: int, result: str) -> bool:
    """Whether it is."""
    return LOOKED["contact"] == result


@workflow
async def delivering_to(run: Run, contact: str) -> str:
    """A child that does something outside, with what it is given."""
    return await deliver_letter(f"Dear {contact},,,,")


@workflow
async def asking_first(run: Run, contact: str) -> str:
    """The same, but it still waits."""
    await run.ask(f"To {contact}?", key="to")
    return await deliver_letter(f"Dear {contact},,,,")


@workflow
async def round_by_fact(run: Run, child: str = "delivering_to") -> list[str]:
    """Its child is given a fact."""
    child_of = {"delivering_to": delivering_to, "asking_first": asking_first}[child]
    return [await run.start(child_of(contact=run.client.get("contact"))), await run.ask("Go on?", key="go on")]


@workflow
async def round_by_look(run: Run) -> list[str]:
    """Its child is given what a step found."""
    return [await run.start(delivering_to(contact=await look_for_contact(1))), await run.ask("Go on?", key="go on")]


@workflow(on_drift="refresh")
async def round_by_itself(run: Run) -> list[str]:
    """Nobody is asked whether it is refreshed."""
    return [await run.start(delivering_to(contact=run.client.get("contact"))), await run.ask("Go on?", key="go on")]


async def moved_while_it_waited(layer: TestLayer, made: Any) -> None:
    """The run waits with what its child did for Ann; since then it is Ben."""
    LOOKED["contact"] = "ann"
    layer.client("acme").set("contact", "ann", source="crm")
    await layer.run(made, client="acme", run_id="r")
    layer.clock.advance(LONG)
    layer.client("acme").set("contact", "ben", source="crm")
    LOOKED["contact"] = "ben"


@pytest.mark.parametrize(
    "made, chosen",
    [
        (round_by_fact(), {"drift": "refresh"}),
        (round_by_look(), {}),
        (round_by_look(), {"rerun": ["look_for_contact"]}),
        (round_by_itself(), {}),
    ],
    ids=["fact", "verify", "rerun", "by itself"],
)
@pytest.mark.parametrize("answer, delivered", [("same", ["Dear ann"]), ("second", ["Dear ann", "Dear ben"])])
async def test_other_inputs_after_another_result_are_asked_about(
    tmp_path: Path, made: Any, chosen: dict[str, Any], answer: str, delivered: list[str]
) -> None:
    """A run that acted is not started a second time because a step before it gave something else: a person says which it is."""
    async with layers(databases.url(tmp_path)) as layer:
        await moved_while_it_waited(layer, made)
        plan = await layer.plan("r", **chosen)
        outcome = await layer.resume("r", **chosen)
        assert kinds(outcome) == ["ask", "conflict"]
        (path,) = plan.paths
        assert path.questions_at_most is None or path.questions_at_most >= len(outcome.questions), plan
        conflict = next(q for q in outcome.questions if q.kind == "conflict")
        assert "goes by has changed" in conflict.text
        assert [who for what, who in RAN if what == "deliver"] == ["Dear ann"]
        await layer.answer(conflict.id, answer, by="ann")
        for question in (await layer.resume("r")).questions:
            await layer.answer(question.id, "yes", by="ann")
        assert (await layer.resume("r")).status == "done"
        assert [who for what, who in RAN if what == "deliver"] == delivered


async def test_a_child_that_still_waits_is_not_left_for_another(tmp_path: Path) -> None:
    """One that has not ended is asked about, too, before another one is started beside it."""
    async with layers(databases.url(tmp_path)) as layer:
        await moved_while_it_waited(layer, round_by_fact(child="asking_first"))
        outcome = await layer.resume("r", drift="refresh")
        assert "conflict" in kinds(outcome)
        assert len(await started(layer, "asking_first")) == 1
