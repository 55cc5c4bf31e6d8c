"""``run.start``: a child is a run of its own, and its end a record of its parent.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepseven import (
    Cost,
    Fatal,
    Layer,
    Limits,
    Outcome,
    Question,
    Refused,
    Run,
    StepFailed,
    StoreUnavailable,
    attempt,
    step,
    testing,
    workflow,
)
from stepseven.errors import UnknownWorkflow
from stepseven.runtime.procedure import registry
from stepseven.testing import Clock, TestLayer
from tests.runs import tools


class Place:
    """One store in a file, one clock, and any number of workers after each other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = tools.url(folder)
        self.clock = Clock()
        self.seed = 0

    def layer(self, **more: Any) -> TestLayer:
        """The next worker."""
        self.seed += 1
        return testing.layer(self.url, clock=self.clock, seed=self.seed, **more)

    def runs(self) -> dict[str, str]:
        """Every run's status, parents by name, children by their workflow."""
        rows = tools.rows(self.folder, "SELECT id, workflow, status, parent_no FROM run ORDER BY no")
        return {row["id"] if row["parent_no"] is None else row["workflow"]: row["status"] for row in rows}

    def ids(self, name: str) -> list[str]:
        """The ids of a workflow's runs, in order."""
        return [row["id"] for row in tools.rows(self.folder, "SELECT id FROM run WHERE workflow = ? ORDER BY no", name)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty store."""
    return Place(tmp_path)


def one(outcome: Outcome[Any]) -> Question:
    """The one open question."""
    (question,) = outcome.questions
    return question


CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


@dataclass
class Bill:
    """A typed value."""

    quarter: str
    total: int


@step
async def total_of(quarter: str) -> int:
    """A read."""
    CALLS[f"total {quarter}"] += 1
    return len(quarter) * 10


@step(effect="write", key="quarter")
async def post(quarter: str) -> str:
    """A write."""
    CALLS[f"post {quarter}"] += 1
    return f"posted {quarter}"


@workflow
async def billing(run: Run, quarter: str) -> Bill:
    """A child without questions."""
    CALLS[f"billing {quarter}"] += 1
    return Bill(quarter, await total_of(quarter))


@workflow
async def checking(run: Run, quarter: str) -> str:
    """A child that asks, and writes."""
    said = await run.ask(f"Is {quarter} right?", options=["yes", "no"])
    return f"{await post(quarter)}: {said}"


# -- a value ------------------------------------------------------------------------------------------------------------


async def test_a_child_is_a_run_of_its_own_and_its_value_comes_back_typed(place: Place):
    """The child has a row, its parent's client and goal, and gives what it returned, as its type."""

    @workflow
    async def parent(run: Run) -> int:
        bill = await run.start(billing(quarter="Q3"))
        assert bill == Bill("Q3", 20)
        return bill.total

    async with place.layer() as layer:
        outcome = await layer.run(parent(), client="acme", run_id="p", goal="bill it")
        assert outcome.result() == 20
    (child,) = tools.rows(place.folder, "SELECT * FROM run WHERE workflow = 'billing'")
    (top,) = tools.rows(place.folder, "SELECT * FROM run WHERE id = 'p'")
    assert (child["parent_no"], child["client_id"], child["goal"], child["status"]) == (top["no"], "acme", "bill it", "done")
    assert child["id"].startswith("p.billing-")
    assert "/" not in child["id"]


async def test_a_recorded_child_is_never_started_again(place: Place):
    """A resume answers from the record of the child's end: neither its code nor its row is touched."""

    @workflow
    async def parent(run: Run) -> str:
        bill = await run.start(billing(quarter="Q3"))
        return f"{bill.total} {await run.ask('Go on?')}"

    async with place.layer() as layer:
        question = one(await layer.run(parent(), client="acme", run_id="p"))
        before = tools.rows(place.folder, "SELECT fence, executions FROM run WHERE workflow = 'billing'")
        await layer.answer(question.id, "sure", by="ann")
    async with place.layer() as layer:
        assert (await layer.resume("p")).result() == "20 sure"
    assert CALLS["billing Q3"] == 1
    assert tools.rows(place.folder, "SELECT fence, executions FROM run WHERE workflow = 'billing'") == before


async def test_equal_calls_are_two_children_and_a_key_names_one(place: Place):
    """Equal calls are numbered; under one key the same child answers twice only through its record."""

    @workflow
    async def parent(run: Run) -> None:
        await run.start(billing(quarter="Q1"))
        await run.start(billing(quarter="Q1"))
        await run.start(billing(quarter="Q1"), key="mine")

    async with place.layer() as layer:
        (await layer.run(parent(), client="acme", run_id="p")).result()
    assert len(set(place.ids("billing"))) == 3
    keys = [r["key"] for r in tools.records(place.folder, "p") if r["name"] == "run.start"]
    assert keys[1] == f"{keys[0]}~2"
    assert keys[2] == "mine"


async def test_two_tasks_that_make_the_same_call_share_the_child(place: Place):
    """Other tasks of the branch that start the same workflow with the same inputs get the one child's value."""

    @workflow
    async def parent(run: Run) -> list[int]:
        async def mine() -> int:
            return (await run.start(billing(quarter="Q1"))).total

        return list(await asyncio.gather(mine(), mine()))

    async with place.layer() as layer:
        assert (await layer.run(parent(), client="acme", run_id="p")).result() == [20, 20]
    assert len(place.ids("billing")) == 1


async def test_what_cannot_be_started_is_refused_at_the_call(place: Place):
    """What is no call of a workflow, or cannot be recorded, is said where it was called, and no child is made."""

    @workflow
    async def parent(run: Run) -> str:
        with pytest.raises(TypeError, match="a call of a workflow"):
            run.start(billing)  # type: ignore[arg-type]
        with pytest.raises(Exception, match=r"inputs\.quarter"):
            run.start(billing(quarter=object()))  # type: ignore[arg-type]
        return "refused"

    async with place.layer() as layer:
        assert (await layer.run(parent(), client="acme", run_id="p")).result() == "refused"
    assert place.ids("billing") == []


# -- waiting --------------------------------------------------------------------------------------------------------------


@workflow
async def one_check(run: Run) -> str:
    """A parent of a child that asks."""
    return await run.start(checking(quarter="Q3"))


async def test_a_question_of_a_child_is_asked_once_and_parks_both(place: Place):
    """The child parks, then the parent, waiting for it; the parent's outcome shows the child's one question."""
    async with place.layer() as layer:
        outcome = await layer.run(one_check(), client="acme", run_id="p")
        assert (outcome.status, outcome.waiting_for) == ("waiting", "child")
        question = one(outcome)
        assert question.run_id == place.ids("checking")[0]
        why = await layer.why("p")
        assert "a person to answer" in why
        assert question.id in why
        again = await layer.resume("p")
        assert one(again).id == question.id
    assert place.runs() == {"p": "waiting", "checking": "waiting"}
    assert len(tools.rows(place.folder, "SELECT id FROM question")) == 1


async def test_resume_of_the_parent_drives_the_child(place: Place):
    """After the answer a resume of the parent moves the child and ends both."""
    async with place.layer() as layer:
        question = one(await layer.run(one_check(), client="acme", run_id="p"))
        await layer.answer(question.id, "yes", by="ann")
    async with place.layer() as layer:
        assert (await layer.resume("p")).result() == "posted Q3: yes"
    assert CALLS["post Q3"] == 1


async def test_resume_of_the_child_alone_wakes_its_parent(place: Place):
    """The child's end puts the parent in the queue, in the same transaction; the parent then only reads it."""
    async with place.layer() as layer:
        question = one(await layer.run(one_check(), client="acme", run_id="p"))
        await layer.answer(question.id, "no", by="ann")
        child = place.ids("checking")[0]
        assert (await layer.resume(child)).result() == "posted Q3: no"
        assert place.runs() == {"p": "queued", "checking": "done"}
        assert f"{child} is done" in await layer.why("p")
        assert (await layer.resume("p")).result() == "posted Q3: no"


async def test_who_waits_for_the_parent_is_woken_by_what_happens_below(place: Place):
    """``wait=`` on the parent sees the answer to its child's question, drives the child and gives the end."""
    async with place.layer() as layer:
        waiting = asyncio.create_task(layer.run(one_check(), client="acme", run_id="p", wait=3600))
        while not (asked := await layer.questions()):
            await asyncio.sleep(0.01)
        async with place.layer() as other:
            await other.answer(asked[0].id, "yes", by="ann")
        outcome = await waiting
        assert outcome.result() == "posted Q3: yes"


async def test_who_waits_for_the_parent_is_woken_by_the_childs_end_elsewhere(place: Place):
    """``wait=`` on the parent goes on when another process brings the child to its end."""
    async with place.layer() as layer:
        outcome = await layer.run(one_check(), client="acme", run_id="p")
        question = one(outcome)
        waiting = asyncio.create_task(layer.run(one_check(), client="acme", run_id="p", wait=3600))
        await asyncio.sleep(0)
        async with place.layer() as other:
            await other.answer(question.id, "yes", by="ann")
            assert (await other.resume(question.run_id, wait=3600)).result() == "posted Q3: yes"
        assert (await waiting).result() == "posted Q3: yes"
    assert CALLS["post Q3"] == 1


async def test_a_grandchilds_question_reaches_the_top(place: Place):
    """Nested twice: one question, shown at the top, whose answer brings all three to their ends."""

    @workflow
    async def middle(run: Run) -> str:
        return await run.start(checking(quarter="Q9"))

    @workflow
    async def top(run: Run) -> str:
        return await run.start(middle())

    async with place.layer() as layer:
        question = one(await layer.run(top(), client="acme", run_id="t"))
        assert question.id in await layer.why("t")
        await layer.answer(question.id, "yes", by="ann")
    async with place.layer() as layer:
        assert (await layer.resume("t")).result() == "posted Q9: yes"
    assert place.runs() == {"t": "done", "middle": "done", "checking": "done"}


async def test_children_run_at_once_in_a_gather(place: Place):
    """Two children that ask are both asked before any is answered; each answer moves its own."""

    @workflow
    async def parent(run: Run) -> list[str]:
        return list(await asyncio.gather(*(run.start(checking(quarter=q)) for q in ("Q1", "Q2"))))

    async with place.layer() as layer:
        outcome = await layer.run(parent(), client="acme", run_id="p")
        assert len(outcome.questions) == 2
        first, second = sorted(outcome.questions, key=lambda q: q.text)
        await layer.answer(first.id, "yes", by="ann")
        assert one(await layer.resume("p")).id == second.id
        await layer.answer(second.id, "no", by="ann")
        assert (await layer.resume("p")).result() == ["posted Q1: yes", "posted Q2: no"]
    assert (CALLS["post Q1"], CALLS["post Q2"]) == (1, 1)


async def test_each_item_of_a_map_may_start_one_and_frees_its_slot(place: Place):
    """A child belongs to its item; with one slot, all items' children are asked, because who waits holds none."""

    async def item(quarter: str) -> str:
        return await RUN[0].start(checking(quarter=quarter))

    @workflow
    async def parent(run: Run) -> list[str | None]:
        RUN[:] = [run]
        return await run.map(item, ["Q1", "Q2", "Q3"], concurrency=1)

    RUN: list[Run] = []  # noqa: N806 - what the item's code closes over
    async with place.layer() as layer:
        outcome = await layer.run(parent(), client="acme", run_id="p")
        assert len(outcome.questions) == 3
        for question in outcome.questions:
            await layer.answer(question.id, "yes", by="ann")
        assert (await layer.resume("p")).result() == [f"posted {q}: yes" for q in ("Q1", "Q2", "Q3")]
    assert len(place.ids("checking")) == 3


async def test_a_parent_that_works_on_beside_a_waiting_child_meets_its_answer(place: Place):
    """While another branch keeps the parent in memory, an answer to the child's question is driven at once."""
    release = asyncio.Event()

    @step
    async def slow() -> str:
        await release.wait()
        return "slow"

    @workflow
    async def parent(run: Run) -> list[str]:
        async def then() -> str:
            said = await run.start(checking(quarter="Q1"))
            release.set()
            return said

        return list(await asyncio.gather(then(), slow()))

    async with place.layer() as layer:
        running = asyncio.create_task(layer.run(parent(), client="acme", run_id="p"))
        while not (asked := await layer.questions()):
            await asyncio.sleep(0.01)
        await layer.answer(asked[0].id, "yes", by="ann")
        assert (await running).result() == ["posted Q1: yes", "slow"]


async def test_a_childs_timer_parks_both_and_moves_both(place: Place):
    """A long sleep of the child parks the parent until the same moment; who waits that long gets the end."""

    @workflow
    async def sleeping(run: Run) -> str:
        await run.sleep(3600)
        return "rested"

    @workflow
    async def parent(run: Run) -> str:
        return await run.start(sleeping())

    async with place.layer() as layer:
        outcome = await layer.run(parent(), client="acme", run_id="p")
        assert (outcome.status, outcome.waiting_for) == ("waiting", "child")
        assert outcome.until_us is not None
        place.clock.advance(3601)
        assert (await layer.resume("p")).result() == "rested"


async def test_a_childs_deadline_passes_while_its_parent_is_waited_for(place: Place):
    """Nobody answers the child before its deadline: ``wait=`` on the parent sees that the default counts."""

    @workflow
    async def hurried(run: Run) -> str:
        return str(await run.ask("Now?", deadline=600, default="late"))

    @workflow
    async def parent(run: Run) -> str:
        return await run.start(hurried())

    async with place.layer() as layer:
        assert (await layer.run(parent(), client="acme", run_id="p")).waiting_for == "child"
        waiting = asyncio.create_task(layer.resume("p", wait=7200))
        for _ in range(2000):
            if waiting.done():
                break
            place.clock.advance(1)
            await asyncio.sleep(0.001)
        assert (await waiting).result() == "late"


async def test_a_child_whose_code_is_gone_does_not_hold_its_parents_end(place: Place):
    """After a deploy without the child's workflow a cancel still ends both: it needs only the rows."""
    async with place.layer() as layer:
        await layer.run(one_check(), client="acme", run_id="p")
    gone = registry.pop("checking")
    try:
        async with place.layer() as layer:
            with pytest.raises(UnknownWorkflow, match="checking"):
                await layer.resume(place.ids("checking")[0])
            assert await layer.cancel("p", reason="over") == "cancelled"
    finally:
        registry["checking"] = gone
    assert place.runs() == {"p": "cancelled", "checking": "cancelled"}


async def test_another_input_is_another_child_and_the_old_one_is_not_left(place: Place):
    """Mended code that starts the child with another input gets another one; the unfinished one is cancelled at the end."""
    quarter = ["Q1"]

    @workflow
    async def parent(run: Run) -> str:
        return await run.start(checking(quarter=quarter[0]), key="it")

    async with place.layer() as layer:
        first = one(await layer.run(parent(), client="acme", run_id="p"))
        quarter[0] = "Q2"
        second = next(q for q in (await layer.resume("p")).questions if q.id != first.id)
        await layer.answer(second.id, "yes", by="ann")
        assert (await layer.resume("p")).result() == "posted Q2: yes"
    statuses = tools.rows(place.folder, "SELECT status FROM run WHERE workflow = 'checking' ORDER BY no")
    assert [row["status"] for row in statuses] == ["cancelled", "done"]


async def test_two_processes_that_resume_parent_and_child_do_everything_once(place: Place):
    """The parent in one worker, the child in another, at the same time: one value, one write."""
    async with place.layer() as layer:
        question = one(await layer.run(one_check(), client="acme", run_id="p"))
        await layer.answer(question.id, "yes", by="ann")
    async with place.layer() as here, place.layer() as there:
        outcomes = await asyncio.gather(here.resume("p", wait=60), there.resume(question.run_id, wait=60))
    assert [outcome.result() for outcome in outcomes] == ["posted Q3: yes"] * 2
    assert CALLS["post Q3"] == 1


async def test_a_layer_that_closes_gives_back_the_whole_family(place: Place):
    """Closed while a child works, both are nobody's at once, and the next process goes on with both."""
    begun, go = asyncio.Event(), asyncio.Event()

    @step
    async def slow() -> str:
        begun.set()
        await go.wait()
        return "slow"

    @workflow
    async def working(run: Run) -> str:
        return await slow()

    @workflow
    async def parent(run: Run) -> str:
        return await run.start(working())

    async with place.layer() as layer:
        running = asyncio.create_task(layer.run(parent(), client="acme", run_id="p"))
        await begun.wait()
    with suppress(StoreUnavailable):  # it may want to read the end of what is closed
        assert (await running).status == "queued"
    rows = tools.rows(place.folder, "SELECT status, owner FROM run")
    assert [(row["status"], row["owner"]) for row in rows] == [("queued", None)] * 2
    go.set()
    async with place.layer() as layer:
        assert (await layer.resume("p")).result() == "slow"


# -- bad ends -------------------------------------------------------------------------------------------------------------


async def test_a_fatal_child_fails_its_parent_for_good(place: Place):
    """``Fatal`` in a child is a fatal ``StepFailed`` of its workflow's name; uncaught, the parent fails, too."""

    @workflow
    async def dying(run: Run) -> None:
        raise Fatal("the client is gone")

    @workflow
    async def parent(run: Run) -> None:
        await run.start(dying())

    async with place.layer() as layer:
        outcome = await layer.run(parent(), client="acme", run_id="p")
    assert outcome.status == "failed"
    assert outcome.failure is not None
    assert outcome.failure.step == "dying"
    assert "the client is gone" in outcome.failure.reason


async def test_a_cancelled_child_is_a_fixable_failure_the_same_on_a_resume(place: Place):
    """A cancelled child raises in its parent; what the parent does about it is done once, also after a resume."""

    @workflow
    async def parent(run: Run) -> str:
        try:
            await run.start(checking(quarter="Q3"))
        except StepFailed as failed:
            return f"{await run.ask('Without it?')}: {failed.kind}, {failed.step}, {failed.reason}"
        return "done"

    async with place.layer() as layer:
        question = one(await layer.run(parent(), client="acme", run_id="p"))
        await layer.cancel(question.run_id, reason="not needed", by="ann")
        assert place.runs() == {"p": "queued", "checking": "cancelled"}
        mine = one(await layer.resume("p"))
        assert mine.run_id == "p"
        await layer.answer(mine.id, "yes", by="ann")
    async with place.layer() as layer:
        value = (await layer.resume("p")).result()
    assert value.startswith("yes: fixable, checking, run p.checking-")
    assert "not needed" in value


async def test_again_starts_a_failed_child_anew_and_reuses_a_done_one(place: Place):
    """After ``again`` to the parent's own question a cancelled child is started under a new id; nothing is written twice."""

    @workflow
    async def parent(run: Run) -> list[Any]:
        bill = await run.start(billing(quarter="Q3"))
        return [bill.total, await run.start(checking(quarter="Q3"))]

    async with place.layer() as layer:
        question = one(await layer.run(parent(), client="acme", run_id="p"))
        await layer.cancel(question.run_id, reason="not needed")
        body = one(await layer.resume("p"))
        assert (body.run_id, body.kind) == ("p", "failure")
        await layer.answer(body.id, "again", by="ann")
        second = one(await layer.resume("p"))
        assert second.run_id != question.run_id
        await layer.answer(second.id, "yes", by="ann")
        assert (await layer.resume("p")).result() == [20, "posted Q3: yes"]
    assert CALLS["billing Q3"] == 1
    assert len(place.ids("checking")) == 2


async def test_a_child_that_is_started_anew_does_not_write_again(place: Place):
    """The new start of a child shares the receipts of the one before: what that wrote is not written twice."""

    @workflow
    async def writes_first(run: Run) -> str:
        done = await post("Q7")
        return f"{done}, {await run.ask('Right?')}"

    @workflow
    async def parent(run: Run) -> str:
        return await run.start(writes_first())

    async with place.layer() as layer:
        question = one(await layer.run(parent(), client="acme", run_id="p"))
        await layer.cancel(question.run_id, reason="wrong")
        body = next(q for q in (await layer.resume("p")).questions if q.run_id == "p")
        await layer.answer(body.id, "again", by="ann")
        second = next(q for q in (await layer.resume("p")).questions if q.kind == "ask")
        await layer.answer(second.id, "yes", by="ann")
        assert (await layer.resume("p")).result() == "posted Q7, yes"
    assert CALLS["post Q7"] == 1


async def test_cancel_of_a_parent_cancels_what_it_started(place: Place):
    """At rest, parent and descendants are cancelled in one transaction; the child's question takes no answer any more."""

    @workflow
    async def top(run: Run) -> str:
        return await run.start(one_check())

    async with place.layer() as layer:
        await layer.run(top(), client="acme", run_id="t")
        assert await layer.cancel("t", reason="over") == "cancelled"
        assert await layer.questions() == []
    assert place.runs() == {"t": "cancelled", "one_check": "cancelled", "checking": "cancelled"}


async def test_cancel_while_the_child_runs_ends_both(place: Place):
    """A parent and a child in memory stop: the child's write in flight is finished and recorded first."""
    begun, go = asyncio.Event(), asyncio.Event()

    @step(effect="write")
    async def slow_write() -> str:
        CALLS["write"] += 1
        begun.set()
        await go.wait()
        return "w"

    @workflow
    async def writing(run: Run) -> str:
        return await slow_write()

    @workflow
    async def parent(run: Run) -> str:
        return await run.start(writing())

    async with place.layer() as layer:
        running = asyncio.create_task(layer.run(parent(), client="acme", run_id="p"))
        await begun.wait()
        assert await layer.cancel("p", reason="over") == "cancelling"
        go.set()
        assert (await running).status == "cancelled"
    assert place.runs() == {"p": "cancelled", "writing": "cancelled"}
    (effect,) = tools.rows(place.folder, "SELECT state FROM effect")
    assert effect["state"] == "done"
    assert CALLS["write"] == 1


async def test_a_parent_stays_cancelling_until_its_child_has_ended(place: Place):
    """A child with a claim in doubt asks about it first; its end then ends the parent, in the same transaction."""

    @step(effect="write", timeout=1)
    async def lost_write() -> str:
        raise RuntimeError("connection reset")

    @workflow
    async def doubtful(run: Run) -> str:
        return await lost_write()

    @workflow
    async def parent(run: Run) -> str:
        return await run.start(doubtful())

    async with place.layer() as layer:
        question = one(await layer.run(parent(), client="acme", run_id="p"))
        assert question.kind == "unknown_outcome"
        assert await layer.cancel("p", reason="over") == "cancelling"
        outcome = await layer.resume("p")
        assert outcome.status == "cancelling"
        assert place.runs() == {"p": "cancelling", "doubtful": "cancelling"}
        asked = one(outcome)
        assert asked.id in await layer.why("p")
        await layer.answer(asked.id, "not_happened", by="ann")
        assert (await layer.resume(asked.run_id)).status == "cancelled"
    assert place.runs() == {"p": "cancelled", "doubtful": "cancelled"}


async def test_a_parent_that_fails_takes_its_unfinished_children_with_it(place: Place):
    """``Fatal`` in the parent: its waiting child is cancelled, and then the parent is failed, with its own reason."""

    @workflow
    async def parent(run: Run) -> None:
        async def fails() -> None:
            while not tools.rows(place.folder, "SELECT 1 FROM question"):
                await asyncio.sleep(0.01)
            raise Fatal("no such client")

        await asyncio.gather(run.start(checking(quarter="Q1")), fails())

    async with place.layer() as layer:
        outcome = await layer.run(parent(), client="acme", run_id="p")
    assert outcome.status == "failed"
    assert outcome.failure is not None
    assert "no such client" in outcome.failure.reason
    assert place.runs() == {"p": "failed", "checking": "cancelled"}


async def test_a_parent_that_is_done_leaves_no_child_behind(place: Place):
    """What the workflow no longer waited for when it returned is cancelled: nobody is asked for nothing."""

    @workflow
    async def parent(run: Run) -> str:
        waiting = asyncio.ensure_future(run.start(checking(quarter="Q1")))
        while not tools.rows(place.folder, "SELECT 1 FROM question"):
            await asyncio.sleep(0.01)
        waiting.cancel()
        return "without"

    async with place.layer() as layer:
        assert (await layer.run(parent(), client="acme", run_id="p")).result() == "without"
        assert await layer.questions() == []
    assert place.runs() == {"p": "done", "checking": "cancelled"}


@pytest.mark.parametrize("ends", ["returns", "fails"])
async def test_an_end_beside_a_task_that_still_waits_is_an_end(place: Place, ends: str):
    """A body that ends while a task it made waits for a person has ended: the run is not put away to wait for it."""

    @workflow
    async def leaves(run: Run) -> str:
        left = asyncio.ensure_future(run.ask("Anybody?"))
        while not tools.rows(place.folder, "SELECT 1 FROM question"):
            await asyncio.sleep(0.01)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not left.done()
        if ends == "fails":
            raise Fatal("no such client")
        return "left"

    async with place.layer() as layer:
        outcome = await layer.run(leaves(), client="acme", run_id="p")
    assert (outcome.status, outcome.value) == (("failed", None) if ends == "fails" else ("done", "left"))


async def test_a_workflow_that_starts_itself_without_end_is_stopped(place: Place):
    """At a depth of twenty the next start fails for good, and so do all above; no question is asked."""

    @workflow
    async def endless(run: Run, n: int) -> int:
        return int(await run.start(endless(n=n + 1)))  # type: ignore[arg-type]

    async with place.layer() as layer:
        outcome = await layer.run(endless(n=0), client="acme", run_id="p")
        assert await layer.questions() == []
    assert outcome.status == "failed"
    assert outcome.failure is not None
    assert "starts itself" in outcome.failure.reason
    ids = place.ids("endless")
    assert len(ids) == 20
    assert max(map(len, ids)) <= 200


async def test_an_id_that_somebody_else_took_is_a_clear_conflict(place: Place):
    """A run with the child's id that is not this child is not touched, and the parent says so."""
    async with place.layer() as layer:
        await layer.run(one_check(), client="acme", run_id="p")
        child = place.ids("checking")[0]
    stranger = tools.rows(place.folder, "SELECT 1")
    assert stranger
    fresh = Place(place.folder / "two") if (place.folder / "two").mkdir() is None else place
    async with fresh.layer() as layer:
        await layer.run(checking(quarter="Q3"), client="acme", run_id=child)
        question = next(q for q in (await layer.run(one_check(), client="acme", run_id="p")).questions if q.run_id == "p")
    assert "another parent" in question.text


async def test_a_paused_client_holds_the_child_and_lets_it_go_on(place: Place):
    """Nothing begins for a paused client, a child neither; after that a resume of the parent ends both."""
    async with place.layer() as layer:
        question = one(await layer.run(one_check(), client="acme", run_id="p"))
        layer.client("acme").pause(reason="in court", by="ann")
        await layer.answer(question.id, "yes", by="ann")
        outcome = await asyncio.wait_for(layer.resume("p"), 10)
        assert outcome.status in ("queued", "waiting")
        layer.client("acme").unpause(by="ann")
        assert (await layer.resume("p")).result() == "posted Q3: yes"


# -- forks ----------------------------------------------------------------------------------------------------------------


async def test_a_fork_shares_finished_children_and_starts_the_others_anew(place: Place):
    """The record of a finished child is copied; an unfinished one is a new run that shares receipts, not the old one."""

    @workflow
    async def parent(run: Run) -> list[Any]:
        bill = await run.start(billing(quarter="Q3"))
        total = await total_of("fork")
        return [bill.total, total, await run.start(checking(quarter="Q3"))]

    async with place.layer() as layer:
        first = one(await layer.run(parent(), client="acme", run_id="p"))
        fork = await layer.fork("p", from_step="total_of")
        second = one(await layer.resume(fork.run_id))
        assert second.run_id != first.run_id
        for question in (first, second):
            await layer.answer(question.id, "yes", by="ann")
        assert (await layer.resume("p")).result() == [20, 40, "posted Q3: yes"]
        assert (await layer.resume(fork.run_id)).result() == [20, 40, "posted Q3: yes"]
    assert CALLS["billing Q3"] == 1
    assert CALLS["post Q3"] == 1


# -- money ----------------------------------------------------------------------------------------------------------------


@step(cost=Cost(usd=0.5))
async def paid(n: int) -> int:
    """Half a dollar, and a hundred tokens."""
    CALLS["paid"] += 1
    attempt().spend(usd=0.5, tokens=100)
    return n


@workflow
async def spender(run: Run, times: int) -> int:
    """A child that pays."""
    for n in range(times):
        await paid(n)
    return times


async def test_what_a_child_cost_counts_in_its_parent(place: Place):
    """While the child runs, waits, and after its end the parent's spend is the same, and counted once."""

    @workflow
    async def pays_and_asks(run: Run) -> str:
        await paid(1)
        return await run.ask("More?")

    @workflow
    async def parent(run: Run) -> str:
        await paid(7)
        said = await run.start(pays_and_asks())
        return f"{said} {run.spent.usd}"

    async with place.layer() as layer:
        outcome = await layer.run(parent(), client="acme", run_id="p")
        assert (outcome.spend.usd, outcome.spend.tokens) == (1.0, 200)
        await layer.answer(one(outcome).id, "no", by="ann")
        outcome = await layer.resume("p")
        assert outcome.result() == "no 1.0"
        assert (outcome.spend.usd, outcome.spend.tokens) == (1.0, 200)
        assert (await layer.checkpoint("p"))["spend"] == {"usd": 1.0, "tokens": 200}


async def test_a_parents_ceiling_stops_its_child_and_asks_once(place: Place):
    """A dollar for the family: the third half is not spent; the parent's one question lets it go on, or not."""

    @workflow(limits=Limits(usd=1))
    async def parent(run: Run) -> list[int]:
        calls = run.start(spender(times=2)), run.start(spender(times=1)), run.start(spender(times=1), key="b")
        return list(await asyncio.gather(*calls))

    async with place.layer() as layer:
        outcome = await layer.run(parent(), client="acme", run_id="p")
        question = one(outcome)
        assert (question.run_id, question.kind) == ("p", "limit")
        assert CALLS["paid"] == 2
        assert one(await layer.resume("p")).id == question.id
        assert CALLS["paid"] == 2
        waiting = tools.rows(place.folder, "SELECT id FROM run WHERE workflow = 'spender' AND status = 'waiting'")
        child = await layer.resume(waiting[0]["id"])
        assert (child.status, CALLS["paid"]) == ("waiting", 2)
        await layer.answer(question.id, {"choice": "raise", "usd": 5}, by="ann")
    async with place.layer() as layer:
        assert (await layer.resume("p")).result() == [2, 1, 1]
    assert CALLS["paid"] == 4
    assert len(tools.rows(place.folder, "SELECT id FROM question")) == 1


async def test_a_parent_and_its_child_that_pay_at_once_do_not_overshoot(place: Place):
    """Steps of parent and children that start together see what each other has reserved."""

    @workflow(limits=Limits(usd=1.2))
    async def parent(run: Run) -> None:
        children = (run.start(spender(times=3), key=str(n)) for n in range(4))
        await asyncio.gather(paid(99), *children, paid(98))

    async with place.layer() as layer:
        assert one(await layer.run(parent(), client="acme", run_id="p")).kind == "limit"
    assert CALLS["paid"] == 2


async def test_a_parents_step_sees_what_a_child_has_spent_that_has_not_ended(place: Place):
    """While a child waits, in this process and in the next, there is no room in its parent for what it has spent."""

    @workflow
    async def pays_then_asks(run: Run) -> str:
        await paid(1)
        await paid(2)
        return str(await run.ask("More?"))

    @workflow(limits=Limits(usd=1.2))
    async def parent(run: Run) -> list[Any]:
        async def later() -> int:
            while not tools.rows(place.folder, "SELECT 1 FROM question"):
                await asyncio.sleep(0.01)
            return await paid(99)

        return list(await asyncio.gather(run.start(pays_then_asks()), later()))

    for _ in range(2):
        async with place.layer() as layer:
            outcome = await layer.run(parent(), client="acme", run_id="p")
            assert {q.kind for q in outcome.questions} == {"ask", "limit"}
            assert (CALLS["paid"], outcome.spend.usd) == (2, 1.0)
    async with place.layer() as layer:
        answers = {"ask": "no", "limit": {"choice": "raise", "usd": 2}}
        for question in outcome.questions:
            await layer.answer(question.id, answers[question.kind], by="ann")
        outcome = await layer.resume("p")
    assert (outcome.result(), outcome.spend.usd, CALLS["paid"]) == (["no", 99], 1.5, 3)


async def test_a_grandchild_reaches_the_ceiling_at_the_top(place: Place):
    """The ceiling of the run at the top counts two levels down: the top's question, and after it all three end."""

    @workflow
    async def middle(run: Run) -> int:
        return await run.start(spender(times=3))

    @workflow(limits=Limits(tokens=150))
    async def top(run: Run) -> int:
        return await run.start(middle())

    async with place.layer() as layer:
        question = one(await layer.run(top(), client="acme", run_id="t"))
        assert (question.run_id, CALLS["paid"]) == ("t", 2)
        await layer.answer(question.id, {"choice": "raise", "tokens": 1000}, by="ann")
    async with place.layer() as layer:
        outcome = await layer.resume("t")
    assert (outcome.result(), outcome.spend.tokens, CALLS["paid"]) == (3, 300, 3)


async def test_a_child_alone_leaves_the_question_to_its_parent(place: Place):
    """A child that is resumed without its parent waits at the parent's ceiling and says who asks; the parent then asks."""

    @workflow
    async def pays_late(run: Run) -> int:
        await paid(1)
        await run.ask("Go on?")
        return await paid(2)

    @workflow(limits=Limits(usd=0.7))
    async def parent(run: Run) -> int:
        return await run.start(pays_late())

    async with place.layer() as layer:
        question = one(await layer.run(parent(), client="acme", run_id="p"))
        await layer.answer(question.id, "yes", by="ann")
    async with place.layer() as layer:
        assert (await layer.resume(question.run_id)).questions == ()
        assert "`stepseven resume p`" in await layer.why(question.run_id)
        limit = one(await layer.resume("p"))
        assert (limit.run_id, limit.kind) == ("p", "limit")
        await layer.answer(limit.id, {"choice": "raise", "usd": 5}, by="ann")
        assert (await layer.resume("p")).result() == 2


async def test_the_layers_ceiling_holds_for_a_run_with_all_it_starts(place: Place):
    """``Layer(limits=…)`` in dollars is the top run's, children included: one question, and one answer lets all go on."""

    @workflow
    async def parent(run: Run) -> int:
        return await run.start(spender(times=3))

    async with place.layer(limits=Limits(usd=1)) as layer:
        question = one(await layer.run(parent(), client="acme", run_id="p"))
        assert (question.run_id, CALLS["paid"]) == ("p", 2)
        await layer.answer(question.id, {"choice": "raise", "usd": 5}, by="ann")
        assert (await layer.resume("p")).result() == 3


async def test_stop_at_a_parents_ceiling_stops_the_family(place: Place):
    """``stop`` to the parent's limit question cancels the parent and what it started."""

    @workflow(limits=Limits(usd=0.7))
    async def parent(run: Run) -> int:
        return await run.start(spender(times=2))

    async with place.layer() as layer:
        question = one(await layer.run(parent(), client="acme", run_id="p"))
        await layer.answer(question.id, "stop", by="ann")
        assert (await layer.resume("p")).status == "cancelled"
    assert place.runs() == {"p": "cancelled", "spender": "cancelled"}
    assert CALLS["paid"] == 1


async def test_a_parents_own_step_sees_what_its_child_has_spent(place: Place):
    """After the child's end, and in the next process, there is no room for a step of the parent."""

    @workflow(limits=Limits(usd=1))
    async def parent(run: Run) -> int:
        await run.start(spender(times=2))
        return await paid(99)

    async with place.layer() as layer:
        assert one(await layer.run(parent(), client="acme", run_id="p")).kind == "limit"
    async with place.layer() as layer:
        assert one(await layer.resume("p")).kind == "limit"
    assert CALLS["paid"] == 2


async def test_a_days_ceiling_of_the_client_counts_a_child_once(place: Place):
    """With 1.5 a day, a child's dollar leaves half a dollar for the parent: not nothing, as if it counted twice."""

    @workflow(limits=Limits(client_usd_per_day=1.5))
    async def parent(run: Run) -> int:
        await run.start(spender(times=2))
        return await paid(99)

    async with place.layer() as layer:
        assert (await layer.run(parent(), client="acme", run_id="p")).result() == 99
        assert one(await layer.run(parent(), client="acme", run_id="p2")).kind == "limit"


# -- crashes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("appends", range(8))
def test_a_process_that_dies_anywhere_finds_the_same_children(tmp_path: Path, appends: int):
    """After a death at any record the next process goes on: no child twice, no write twice, the same value."""

    @workflow
    async def parent(run: Run) -> list[Any]:
        bill = await run.start(billing(quarter="Q1"))
        return [bill.total, await run.start(writes(quarter="Q2")), run.now(key="end") is not None]

    use: Callable[[Layer], Any] = lambda layer: layer.run(parent(), client="acme", run_id="p")  # noqa: E731
    tools.until_crash(tmp_path, appends, use)

    async def again() -> Any:
        async with Layer(tools.url(tmp_path)) as layer:
            return (await layer.run(parent(), client="acme", run_id="p")).result()

    assert asyncio.run(again()) == [20, "posted Q2", True]
    assert len(tools.rows(tmp_path, "SELECT id FROM run")) == 3
    assert CALLS["post Q2"] == 1


@workflow
async def writes(run: Run, quarter: str) -> str:
    """A child that writes."""
    return await post(quarter)


async def test_a_no_in_a_child_stands_when_the_parent_is_tried_again(place: Place):
    """Refused in a child, caught, and the parent breaks off in its own code: "again" does not ask a second time."""
    broken = [True]

    @step(effect="irreversible", key="to")
    async def send(to: str) -> str:
        return to

    @workflow
    async def sender(run: Run) -> str:
        return await send("ben")

    @workflow
    async def parent(run: Run) -> str:
        try:
            return await run.start(sender())
        except Refused as no:
            if broken:
                raise KeyError("oops") from no
            return no.reason

    async with place.layer() as layer:
        question = one(await layer.run(parent(), client="acme", run_id="p"))
        await layer.answer(question.id, "refuse", by="ann")
        body = one(await layer.resume("p"))
        broken.clear()
        await layer.answer(body.id, "again", by="ann")
        outcome = await layer.resume("p")
        assert outcome.questions == ()
        assert outcome.result().endswith("refused by ann")
