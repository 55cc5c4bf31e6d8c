"""A question that the code has gone past is withdrawn when its run is put away; one that may still be needed stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepseven import Fixable, Question, QuestionExpired, Run, step, testing, workflow
from stepseven.testing import TestLayer
from tests.servers import databases

pytestmark = pytest.mark.anyio

world = SimpleNamespace(seen=1, down=set(), locked=None)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """The world as it is at first."""
    world.seen, world.down = 1, set()


@step
async def eyeing() -> int:
    """What is there now."""
    return int(world.seen)


@step
async def fetching(n: Any) -> Any:
    """A read that fails for what is down."""
    if n in world.down:
        raise Fixable(f"{n} is down")
    return n


@step(effect="irreversible", key="n")
async def mailing(n: int) -> int:
    """What a person approves first."""
    return n


async def open_ones(layer: TestLayer) -> list[Question]:
    """The open questions."""
    return list(await layer.questions())


def counted(layer: TestLayer) -> int:
    """How many the run says it has."""
    row = layer.store.read_now(lambda tx: tx.one(tx.sql.run_by_no, {"no": 1}))
    assert row is not None
    return int(row["open_questions"])


async def withdrawn(layer: TestLayer, question: Question) -> bool:
    """Whether an answer is refused, because nobody needs it."""
    try:
        await layer.answer(question.id, "again" if question.kind == "failure" else "approve", by="ann")
    except QuestionExpired as expired:
        return expired.status == "withdrawn" and "its run no longer needs it" in str(expired)
    return False


@workflow
async def fetched_by_fact(run: Run) -> Any:
    """A read of what a fact says."""
    return await fetching(run.client.get("account"))


async def test_after_a_refresh_the_question_about_the_old_value_is_gone(tmp_path: Path) -> None:
    """The fact moved and is refreshed: the failure of the read with the old one is nobody's question any more."""
    world.down = {"old", "new"}
    async with testing.layer(databases.url(tmp_path)) as layer:
        layer.client("acme").set("account", "old", source="crm")
        (old,) = (await layer.run(fetched_by_fact(), client="acme", run_id="r")).questions
        layer.client("acme").set("account", "new", source="crm")
        (new,) = (await layer.resume("r", drift="refresh")).questions
        assert new.id != old.id
        assert [q.id for q in await open_ones(layer)] == [new.id]
        assert counted(layer) == 1
        assert await withdrawn(layer, old)
        world.down = set()
        await layer.answer(new.id, "again", by="ann")
        assert (await layer.resume("r")).value == "new"


@workflow
async def fetched_by_look(run: Run) -> Any:
    """A read of what a fact says, as often as it moves."""
    return await fetching(run.client.get("number"))


async def test_what_was_withdrawn_is_asked_anew_where_the_code_comes_back(tmp_path: Path) -> None:
    """The value moves there and back: the first call is tried and asked about once more, and only that question is open."""
    world.down = {1, 2}
    async with testing.layer(databases.url(tmp_path)) as layer:
        layer.client("acme").set("number", 1, source="crm")
        (old,) = (await layer.run(fetched_by_look(), client="acme", run_id="r")).questions
        layer.client("acme").set("number", 2, source="crm")
        (new,) = (await layer.resume("r", drift="refresh")).questions
        layer.client("acme").set("number", 1, source="crm", by="ann")
        (again,) = (await layer.resume("r", drift="refresh")).questions
        assert again.id not in (old.id, new.id)
        assert [q.id for q in await open_ones(layer)] == [again.id]
        assert [q.status for q in await layer.questions(status=None)].count("withdrawn") == 2
        world.down = set()
        await layer.answer(again.id, "again", by="ann")
        assert (await layer.resume("r")).value == 1


@workflow
async def fetched_in_a_loop(run: Run) -> Any:
    """As many reads as a fact says, one after the other, from there down."""
    return [await fetching(n) for n in range(run.client.get("count"), 0, -1)]


async def test_where_the_step_may_come_again_the_question_stays(tmp_path: Path) -> None:
    """A loop that stands at an earlier item now may come to the one that was asked about: its answer still counts."""
    world.down = {1, 2}
    async with testing.layer(databases.url(tmp_path)) as layer:
        layer.client("acme").set("count", 1, source="crm")
        (one,) = (await layer.run(fetched_in_a_loop(), client="acme", run_id="r")).questions
        layer.client("acme").set("count", 2, source="crm")
        two = next(q for q in (await layer.resume("r", drift="refresh")).questions if q.id != one.id)
        assert {q.id for q in await open_ones(layer)} == {one.id, two.id}
        world.down = set()
        await layer.answer(one.id, {"choice": "value", "value": 7}, by="ann")
        await layer.answer(two.id, "again", by="ann")
        assert (await layer.resume("r")).value == [2, 7]


@workflow
async def asks_after_fetching(run: Run) -> Any:
    """A read that may fail anew, then a question."""
    await fetching(await eyeing())
    return await run.ask("Is it so?")


async def test_a_question_that_is_not_reached_yet_stays(tmp_path: Path) -> None:
    """The code waits at an earlier place than before: what it asked later is not withdrawn, and its answer is used."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        (later,) = (await layer.run(asks_after_fetching(), client="acme", run_id="r")).questions
        world.down = {1}
        sooner = next(q for q in (await layer.resume("r", rerun=["fetching"])).questions if q.id != later.id)
        assert {q.id for q in await open_ones(layer)} == {later.id, sooner.id}
        await layer.answer(later.id, "yes", by="ann")
        world.down = set()
        await layer.answer(sooner.id, "again", by="ann")
        assert (await layer.resume("r")).value == "yes"


async def each(n: int) -> Any:
    """An item that sleeps, or fails."""
    if n < 0:
        return await fetching(n)
    return await world.run.sleep(3600, key=str(n))


@workflow
async def fetched_in_turn(run: Run) -> Any:
    """Two items, one at a time."""
    world.run = run
    return await run.map(each, [-1, 1], concurrency=1)


async def test_an_item_that_waits_for_its_turn_keeps_its_question(tmp_path: Path) -> None:
    """Another item holds the only place of the map: the question of the one that waits for it stays."""
    world.down = {-1}
    async with testing.layer(databases.url(tmp_path)) as layer:
        (asked,) = (await layer.run(fetched_in_turn(), client="acme", run_id="r")).questions
        await layer.resume("r")
        await layer.resume("r")
        assert [q.id for q in await open_ones(layer)] == [asked.id]


@workflow
async def fetched_behind_a_lock(run: Run) -> Any:
    """A read that a sleeping task keeps back, in every execution but the first."""
    lock = asyncio.Lock()

    async def sleeps() -> None:
        async with lock:
            await run.sleep(36_000)

    async def reads() -> Any:
        async with lock:
            return await fetching(1)

    first, second = (reads, sleeps) if world.seen == 1 else (sleeps, reads)
    found = await asyncio.gather(first(), second())
    return found[0]


async def test_code_that_waits_for_its_own_lock_keeps_its_question(tmp_path: Path) -> None:
    """What comes after the lock is read from the source."""
    world.down = {1}
    async with testing.layer(databases.url(tmp_path)) as layer:
        (asked,) = (await layer.run(fetched_behind_a_lock(), client="acme", run_id="r")).questions
        world.seen = 2
        await layer.resume("r")
        assert [q.id for q in await open_ones(layer)] == [asked.id]


@workflow
async def mails_what_it_sees(run: Run) -> int:
    """Something irreversible about what a read gave."""
    return await mailing(await eyeing())


async def test_a_proposal_that_nothing_proposes_any_more_is_gone(tmp_path: Path) -> None:
    """Approving it would do nothing: another mail is proposed since."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        (old,) = (await layer.run(mails_what_it_sees(), client="acme", run_id="r")).questions
        world.seen = 2
        (new,) = (await layer.resume("r", rerun=["eyeing"])).questions
        assert [q.id for q in await open_ones(layer)] == [new.id]
        assert await withdrawn(layer, old)
        await layer.answer(new.id, "approve", by="ann")
        assert (await layer.resume("r")).value == 2


@workflow
async def asks_what_it_sees(run: Run) -> Any:
    """A question with what a read gave in it, then one that is written out."""
    n = await eyeing()
    if n == 2:
        return await run.ask("Is it two?")
    return await run.ask(f"Is it {n}?", key=f"k{n}")


async def test_a_question_of_the_code_goes_with_the_branch_that_asked_it(tmp_path: Path) -> None:
    """The code takes another branch: what it asked in the first is withdrawn."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        (old,) = (await layer.run(asks_what_it_sees(), client="acme", run_id="r")).questions
        world.seen = 2
        await layer.resume("r", rerun=["eyeing"])
        assert [q.text for q in await open_ones(layer)] == ["Is it two?"]
        assert await withdrawn(layer, old)


async def test_an_answer_that_was_given_just_before_counts(tmp_path: Path) -> None:
    """It is the person's word: it is not taken back, only not needed."""
    world.down = {1, 2}
    async with testing.layer(databases.url(tmp_path)) as layer:
        layer.client("acme").set("number", 1, source="crm")
        (old,) = (await layer.run(fetched_by_look(), client="acme", run_id="r")).questions
        await layer.answer(old.id, {"choice": "value", "value": 5}, by="ann")
        layer.client("acme").set("number", 2, source="crm")
        await layer.resume("r", drift="refresh")
        found = {q.id: q.status for q in await layer.questions(status=None)}
        assert found[old.id] == "answered"


@workflow
async def asks_and_goes_on(run: Run) -> Any:
    """A question that the code itself stops waiting for."""
    asked = asyncio.ensure_future(run.ask("Is it so?"))
    await asyncio.wait([asked, asyncio.ensure_future(eyeing())], return_when=asyncio.FIRST_COMPLETED)
    await run.sleep(3_600)
    asked.cancel()
    await run.sleep(36_000)
    return await run.sleep(36_000, key="last")


async def test_a_question_that_the_code_asks_and_leaves_is_not_asked_again_and_again(tmp_path: Path) -> None:
    """Every execution comes to it: it stays the one question that it is."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        (asked,) = (await layer.run(asks_and_goes_on(), client="acme", run_id="r")).questions
        for hours in (2, 12):
            layer.clock.advance(hours * 3600)
            await layer.resume("r")
            await layer.resume("r")
        assert [q.id for q in await layer.questions(status=None)] == [asked.id]
