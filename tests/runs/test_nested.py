"""A person's no, and a wait for a person, inside steps and inside runs that a run started.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stepseven import Cost, Layer, Outcome, Refused, Run, StepFailed, step, testing, workflow
from stepseven.errors import StepsevenError, UnknownRun
from stepseven.runtime.stepclock import StepClock
from stepseven.testing import TestLayer
from tests.runs.deaths import every_death, living
from tests.runs.tools import rows, url

sent: list[str] = []
ran: list[str] = []
SOON_S = 0.6  # a step's time, which a wait for a person outlasts in these tests


@pytest.fixture(autouse=True)
def _fresh() -> None:
    sent.clear()
    ran.clear()


@pytest.fixture
async def layer() -> AsyncIterator[TestLayer]:
    """A store in memory."""
    async with testing.layer() as opened:
        yield opened


@step(name="nested.send", effect="irreversible", key="to")
async def send(to: str) -> str:
    """What a person is asked about."""
    sent.append(to)
    return f"m-{to}"


@step(name="nested.letter")
async def letter(to: str) -> str:
    """A read step around it."""
    ran.append(to)
    return f"letter {await send(to)}"


@step(name="nested.paid_letter", cost=Cost(usd=0.5))
async def paid_letter(to: str) -> str:
    """The same, for money."""
    return await letter(to)


@step(name="nested.grouped_letter")
async def grouped_letter(to: str) -> str:
    """The same, in a task group."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(send(to))
    return task.result()


async def said(layer: TestLayer, flow: Any, *answers: Any) -> Outcome[Any]:
    """Run *flow* and answer what it asks, one after the other."""
    outcome = await asyncio.wait_for(layer.run(flow, client="acme", run_id="r"), 20)
    for answer in answers:
        await layer.answer_next(answer, by="ann")
        outcome = await asyncio.wait_for(layer.resume("r"), 20)
    return outcome


# -- no, inside a read step ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", [letter, paid_letter], ids=["free", "paid"])
async def test_a_refusal_in_a_step_s_code_reaches_the_workflow_and_stays(layer: TestLayer, outer: Any) -> None:
    """The outer step is refused, too, as itself: nobody is asked what to do about a failure, and a resume raises the same."""

    @workflow(name=f"nested.careful_{outer.name}")
    async def careful(run: Run) -> str:
        try:
            return str(await outer("ben"))
        except Refused as no:
            return f"{no.step}: {no.reason} / {await run.ask('What now?')}"

    outcome = await said(layer, careful(), "refuse")
    assert [q.text for q in outcome.questions] == ["What now?"]
    before = list(ran)
    await layer.answer_next("wait", by="ann")
    assert (await layer.resume("r")).result() == f"{outer.name}: refused by ann / wait"
    assert (sent, ran) == ([], before)


async def test_a_refusal_in_a_task_group_of_a_step_is_the_same(layer: TestLayer) -> None:
    """What the group wrapped counts as what it is. A step that waits by tasks of its own keeps the run loaded meanwhile."""

    @workflow(name="nested.grouped")
    async def grouped(run: Run) -> str:
        return await grouped_letter("ben")

    task = asyncio.create_task(layer.run(grouped(), client="acme", run_id="r"))
    async with asyncio.timeout(20):
        while not await layer.questions():
            await asyncio.sleep(0.01)
        await layer.answer_next("refuse", by="ann")
        outcome = await task
    assert (outcome.status, outcome.questions) == ("cancelled", ())
    assert outcome.failure is not None
    assert (outcome.failure.reason, outcome.failure.step) == ("refused by ann", "nested.grouped_letter")


async def test_what_a_refused_try_has_cost_counts(layer: TestLayer) -> None:
    """The money of a paid step is spent, whatever a person said in it: once."""

    @workflow(name="nested.costs")
    async def costs(run: Run) -> float:
        with pytest.raises(Refused):
            await paid_letter("ben")
        return run.spent.usd

    outcome = await said(layer, costs(), "refuse")
    assert outcome.spend.usd == pytest.approx(outcome.result())
    assert outcome.result() == pytest.approx(0.5 * 2)  # and the try that was broken off by the park


async def test_a_refusal_in_a_step_that_nobody_catches_ends_the_run(layer: TestLayer) -> None:
    """Cancelled, with the person's reason."""

    @workflow(name="nested.uncaught")
    async def uncaught(run: Run) -> str:
        return await letter("ben")

    outcome = await said(layer, uncaught(), "refuse")
    assert (outcome.status, outcome.questions) == ("cancelled", ())
    assert outcome.failure is not None
    assert (outcome.failure.reason, outcome.failure.step) == ("refused by ann", "nested.letter")


async def test_a_refusal_in_a_map_s_step_skips_the_item(layer: TestLayer) -> None:
    """Its result is ``None``; the others go on."""

    @workflow(name="nested.mapped")
    async def mapped(run: Run) -> list[str | None]:
        return await run.map(letter, ["a", "b"])

    outcome = await layer.run(mapped(), client="acme", run_id="r")
    for question in outcome.questions:
        answer = "refuse" if question.context["facts"]["to"] == "a" else "approve"
        await layer.answer(question.id, answer, by="ann")
    assert (await layer.resume("r")).result() == [None, "letter m-b"]


async def test_another_draft_after_a_no_is_another_call(layer: TestLayer) -> None:
    """The same step with other arguments is proposed anew; the refused one stays refused."""

    @workflow(name="nested.drafts")
    async def drafts(run: Run) -> str:
        for to in ("a", "b"):
            try:
                return await letter(to)
            except Refused:
                continue
        return "none"

    outcome = await said(layer, drafts(), "refuse", "approve")
    assert (outcome.result(), sent) == ("letter m-b", ["b"])


async def test_a_step_that_catches_the_no_has_a_result(layer: TestLayer) -> None:
    """What the step's own code makes of it counts."""

    @step(name="nested.catches")
    async def catches(to: str) -> str:
        try:
            return await send(to)
        except Refused:
            return "kept"

    @workflow(name="nested.caught")
    async def caught(run: Run) -> str:
        return await catches("ben")

    assert (await said(layer, caught(), "refuse")).result() == "kept"


async def test_in_a_map_a_no_beside_a_failure_is_a_failure(layer: TestLayer) -> None:
    """An item whose task group brings both: the failure's reason is told, not the person's."""

    @step(name="nested.gives_up", on_failure="raise", attempts=1)
    async def gives_up(to: str) -> str:
        raise ValueError("it is closed")

    async def item(to: str) -> str:
        async def failed() -> str:
            try:
                return await gives_up(to)
            except StepFailed as error:
                kept = error
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise kept from None
            return ""

        async with asyncio.TaskGroup() as group:
            group.create_task(send(to))
            group.create_task(failed())
        return "x"

    @workflow(name="nested.both")
    async def both(run: Run) -> Any:
        try:
            return await run.map(item, ["a"])
        except StepFailed as failed:
            return list(failed.failures.values())

    assert (await said(layer, both(), "refuse")).result() == ["ValueError: it is closed"]


@workflow(name="nested.dies")
async def dies(run: Run) -> str:
    """Says what it was told."""
    try:
        return await paid_letter("ben")
    except Refused as no:
        return f"{no.step}: {no.reason}"


async def drive(layer: Layer, flow: Any = dies) -> Outcome[Any]:
    """Start or continue the run; refuse what is proposed, and answer nothing else."""
    while True:
        try:
            outcome = await layer.resume("r")
        except UnknownRun:
            outcome = await layer.run(flow(), client="acme", run_id="r")
        if outcome.status != "waiting":
            return outcome
        for question in outcome.questions:
            if question.kind != "approve" and question.text != "Any news?":
                raise AssertionError(f"this should not have been asked: {question.text}")
            if question.kind == "approve":
                await layer.answer(question.id, "refuse", by="ann")


def test_a_death_anywhere_changes_nothing_about_a_no_in_a_step(tmp_path: Path) -> None:
    """Killed before every write and resumed: the same refusal, one question, nothing sent."""
    deaths = 0
    for state in every_death(tmp_path, drive):
        assert living(state, drive).result() == "nested.paid_letter: refused by ann"
        assert len(rows(state, "SELECT id FROM question")) == 1
        deaths += 1
    assert (sent, deaths > 5) == ([], True)


# -- what is proposed, inside a write step -----------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["itself", "a read step", "a task"])
async def test_what_is_proposed_cannot_be_called_inside_a_write(layer: TestLayer, through: str) -> None:
    """Refused at the call, in one sentence; nothing is proposed. What the write had sent before nobody knows: as ever."""
    name = f"nested.outer_{through.replace(' ', '_')}"

    @step(name=name, effect="write", key="to")
    async def outer(to: str) -> str:
        if through == "itself":
            return await send(to)
        return await (letter(to) if through == "a read step" else asyncio.create_task(letter(to)))

    @workflow(name=f"{name}.flow")
    async def flow(run: Run) -> str:
        return await outer("ben")

    outcome = await said(layer, flow())
    (question,) = outcome.questions
    assert question.kind == "unknown_outcome"
    assert f"nested.send cannot be called inside the write step {name}" in question.text
    assert all(q.kind != "approve" for q in await layer.questions(status=None))
    assert sent == []


async def test_the_sentence_names_both_steps_and_the_way_out(layer: TestLayer) -> None:
    """Whoever catches it reads what to do."""
    told: list[str] = []

    @step(name="nested.tries", effect="write", key="to")
    async def tries(to: str) -> str:
        with pytest.raises(StepsevenError) as refused:
            send(to)
        told.append(str(refused.value))
        return "done without"

    @workflow(name="nested.tries.flow")
    async def flow(run: Run) -> str:
        return f"{await tries('ben')}, {await send('ben')}"

    outcome = await said(layer, flow(), "approve")
    assert outcome.result() == "done without, m-ben"
    assert len(told) == 1
    assert told[0].startswith("nested.send cannot be called inside the write step nested.tries, as it is proposed")
    assert told[0].endswith(": call it from the workflow or from a read step")


async def test_with_a_probe_the_write_around_is_known_not_to_have_happened(layer: TestLayer) -> None:
    """The doubt is looked into like any other: not there, so it is a failure for a person, and no unknown outcome."""

    @step(name="nested.looked_for", effect="write", key="to")
    async def looked_for(to: str) -> str:
        return await send(to)

    @looked_for.probe
    async def look(to: str) -> str | None:
        return None

    @workflow(name="nested.looked_for.flow")
    async def flow(run: Run) -> str:
        return await looked_for("ben")

    outcome = await said(layer, flow())
    assert [q.kind for q in outcome.questions] == ["failure"]


# -- the time of a step around a wait --------------------------------------------------------------------------------------------


class Held:
    """Keeps a run loaded until a step's time would long have been over, by the loop's own clock: a later timer of the same."""

    def __init__(self) -> None:
        self.late = asyncio.Event()

    def begin(self) -> None:
        """The step's time begins now."""
        asyncio.get_running_loop().call_later(SOON_S * 2, self.late.set)


async def in_time(layer: TestLayer, outer: Any, held: Held, *args: str) -> Outcome[Any]:
    """Run *outer* beside something that keeps the run loaded for longer than its time."""

    @step(name=f"{outer.name}.beside")
    async def beside() -> int:
        await held.late.wait()
        return 1

    @workflow(name=f"{outer.name}.flow")
    async def flow(run: Run) -> list[Any]:
        return list(await asyncio.gather(*(outer(arg) for arg in args), beside()))

    return await asyncio.wait_for(layer.run(flow(), client="acme", run_id="r"), 20)


@pytest.mark.parametrize("how", ["directly", "through another", "two share it"])
async def test_a_step_s_time_stands_still_while_a_person_thinks(layer: TestLayer, how: str) -> None:
    """However long it takes: the step has not failed when the answer comes, and its result is the same."""
    held = Held()

    @step(name=f"nested.middle_{how.replace(' ', '_')}", timeout=SOON_S)
    async def middle(to: str) -> str:
        return await send("ben")

    @step(name=f"nested.timed_{how.replace(' ', '_')}", timeout=SOON_S, attempts=1)
    async def timed(to: str) -> str:
        held.begin()
        return await (middle(to) if how == "through another" else send("ben"))

    outcome = await in_time(layer, timed, held, *(("a", "b") if how == "two share it" else ("a",)))
    assert {q.kind for q in outcome.questions} == {"approve"}
    for _ in outcome.questions:
        await layer.answer_next("approve", by="ann")
    assert set((await layer.resume("r")).result()) == {"m-ben", 1}


async def test_a_step_s_time_goes_on_after_the_answer(layer: TestLayer) -> None:
    """What the code does after a wait is limited by what is left of its time."""
    go = asyncio.Event()

    @step(name="nested.hangs", timeout=SOON_S, attempts=1, on_failure="raise")
    async def hangs(to: str) -> str:
        await send(to)
        await asyncio.Event().wait()
        return "never"

    @step(name="nested.hangs.beside")
    async def beside() -> None:
        await go.wait()

    @workflow(name="nested.hangs.flow")
    async def flow(run: Run) -> str:
        async def one() -> str:
            try:
                return await hangs("ben")
            except StepFailed as failed:
                return failed.reason
            finally:
                go.set()

        return (await asyncio.gather(one(), beside()))[0]

    task = asyncio.create_task(layer.run(flow(), client="acme", run_id="r"))
    async with asyncio.timeout(20):
        while not await layer.questions():
            await asyncio.sleep(0.01)
        await layer.answer_next("approve", by="ann")
        assert "no result within 0.6 s" in (await task).result()
    assert sent == ["ben"]


async def test_a_stopped_clock_keeps_what_was_left() -> None:
    """Stopped twice it goes on when both have ended, with the time it had; one around too; one that has ended is let be."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(100) as around, asyncio.timeout(50) as limit:  # noqa: ASYNC100 - only looked at
        outer = StepClock(around, None)
        clock = StepClock(limit, outer)
        clock.stop()
        clock.stop()
        assert (limit.when(), around.when()) == (None, None)
        clock.go_on()
        assert (limit.when(), around.when()) == (None, None)
        clock.go_on()
        for each, seconds in ((limit, 50), (around, 100)):
            when = each.when()
            assert when is not None
            assert seconds - 5 < when - loop.time() <= seconds
        clock.stop()
        clock.end()
        clock.go_on()
        assert limit.when() is None
        outer.end()
    clock.stop()  # a task that the step left behind
    clock.go_on()


# -- no, inside a run that was started -------------------------------------------------------------------------------------------


@workflow(name="nested.mailing")
async def mailing(run: Run) -> str:
    """A child whose proposal is refused."""
    return await send("ben")


@workflow(name="nested.above")
async def above(run: Run) -> str:
    """A run between."""
    return await run.start(mailing())


@pytest.mark.parametrize("child", [mailing, above])
async def test_a_child_that_a_no_has_ended_is_refused_in_its_parent(layer: TestLayer, child: Any) -> None:
    """The parent gets ``Refused``, however deep the no was, and on a resume again; nobody is asked about a failure."""

    @workflow(name=f"nested.parent_of_{child.name}")
    async def parent(run: Run) -> str:
        try:
            return str(await run.start(child()))
        except Refused as no:
            return f"{no.step} {no.reason[-14:]} {await run.ask('What now?')}"

    outcome = await said(layer, parent(), "refuse")
    assert [q.text for q in outcome.questions] == ["What now?"]
    await layer.answer_next("wait", by="ann")
    assert (await layer.resume("r")).result() == f"{child.name} refused by ann wait"


async def test_a_child_s_no_that_nobody_catches_ends_the_parent(layer: TestLayer) -> None:
    """Cancelled with the reason, and in a map the item is skipped."""

    @workflow(name="nested.parent")
    async def parent(run: Run) -> str:
        return await run.start(mailing())

    @workflow(name="nested.parent_of_many")
    async def many(run: Run) -> list[str | None]:
        return await run.map(lambda_start(run), ["a"])

    outcome = await said(layer, parent(), "refuse")
    assert (outcome.status, outcome.questions) == ("cancelled", ())
    assert outcome.failure is not None
    assert outcome.failure.reason.endswith("was cancelled: refused by ann")
    await layer.run(many(), client="acme", run_id="m")
    await layer.answer_next("refuse", by="ann")
    assert (await layer.resume("m")).result() == [None]


def lambda_start(run: Run) -> Any:
    """One item: a child."""

    async def one(_: str) -> str:
        return await run.start(mailing())

    return one


async def test_a_child_that_a_person_stops_has_failed_as_before(layer: TestLayer) -> None:
    """``cancel`` is no refusal: the parent gets ``StepFailed``."""

    @workflow(name="nested.stopped")
    async def stopped(run: Run) -> str:
        try:
            return await run.start(mailing())
        except StepFailed as failed:
            return f"{isinstance(failed, Refused)} {failed.kind}"

    outcome = await said(layer, stopped())
    await layer.cancel(outcome.questions[0].run_id, reason="not now")
    assert (await layer.resume("r")).result() == "False fixable"


@workflow(name="nested.asks")
async def asks(run: Run) -> str:
    """A run below, that is stopped with the one above it."""
    return str(await run.ask("Any news?"))


@workflow(name="nested.busy")
async def busy(run: Run) -> None:
    """Refused while a run of its own still lives: it is ended in two commits."""
    await asyncio.gather(send("ben"), run.start(asks()))


@workflow(name="nested.family")
async def family(run: Run) -> str:
    """Above both."""
    try:
        await run.start(busy())
    except Refused as no:
        return f"{no.step} {no.reason[-14:]}"
    return "?"


@pytest.mark.timeout(180)
def test_a_death_anywhere_changes_nothing_about_a_no_in_a_child(tmp_path: Path) -> None:
    """Killed before every write and resumed, also between "it is ending" and its end: the parent is told the same."""

    async def use(layer: Layer) -> Outcome[Any]:
        return await drive(layer, family)

    deaths = 0
    for state in every_death(tmp_path, use):
        assert living(state, use).result() == "nested.busy refused by ann"
        deaths += 1
    assert (sent, deaths > 8) == ([], True)


async def test_what_is_on_its_way_to_an_end_tells_why(tmp_path: Path) -> None:
    """A run that is loaded again while it is ending ends with the failure it was given, refused or not."""
    path = url(tmp_path)
    async with testing.layer(path) as layer:
        outcome = await drive(layer, family)
        assert outcome.result() == "nested.busy refused by ann"
    kept = rows(tmp_path, "SELECT result FROM step WHERE name = 'run.start' AND state = 'failed'")
    assert any('"kind": "refused"' in row["result"] for row in kept)
