"""``run.map``: order, failures, one question for one cause, and going on after a crash.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
import random
import time
import types
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepseven import Fatal, Outcome, Question, Run, StepFailed, step, testing, workflow
from stepseven.errors import AlreadyAnswered
from stepseven.model import QuestionKind
from stepseven.store.base import Tx
from stepseven.testing import Clock, TestLayer
from tests.servers import databases


class Place:
    """One store in a file, one clock, and any number of workers after each other."""

    def __init__(self, folder: Path) -> None:
        self.url = databases.url(folder)
        self.clock = Clock()
        self.seed = 0

    def layer(self, **more: Any) -> TestLayer:
        """The next worker."""
        self.seed += 1
        return testing.layer(self.url, clock=self.clock, seed=self.seed, **more)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty store."""
    return Place(tmp_path)


class HttpError(Exception):
    """Looks like the exception of an HTTP client."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} from the server")
        self.response = types.SimpleNamespace(status_code=status, headers={}, url="http://ledger.example/x", request=None)


class Ledger:
    """An outside that can be dead, and counts."""

    def __init__(self, dead: Callable[[Any], bool] = lambda item: False) -> None:
        self.dead = dead
        self.calls: Counter[Any] = Counter()

    def post(self, item: Any) -> str:
        """Post one item, or answer 403."""
        self.calls[item] += 1
        if self.dead(item):
            raise HttpError(403)
        return f"R-{item}"


def posting(name: str, ledger: Ledger, items: list[Any], *, concurrency: int = 8, key: str | None = None) -> Any:
    """A workflow that posts every item."""

    @step(name="post")
    async def post(item: Any) -> str:
        return ledger.post(item)

    async def body(run: Run) -> list[Any]:
        return await run.map(post, items, concurrency=concurrency, key=key)

    return workflow(name=name)(body)


async def inbox(layer: TestLayer, outcome: Outcome[Any]) -> Question:
    """The one question a person sees."""
    assert outcome.status == "waiting", outcome
    (question,) = outcome.questions
    assert [q.id for q in await layer.questions()] == [question.id]
    info = (await layer.runs())[0]
    assert info.open_questions_count == 1
    assert [q["id"] for q in (await layer.checkpoint(outcome.run_id))["open_questions"]] == [question.id]
    return question


async def rows(layer: TestLayer, statement: str, run_id: str = "r1") -> list[Any]:
    """Rows of a run."""

    def unit(tx: Tx) -> list[Any]:
        run = tx.one(tx.sql.run_by_id, {"id": run_id})
        assert run is not None
        return tx.all(getattr(tx.sql, statement), {"run_no": run["no"]})

    return await layer.store.read(unit)


# -- the untroubled case ----------------------------------------------------------------------------------------------------


async def test_results_come_in_the_order_of_the_items(place: Place):
    """Whatever order the items end in, the results are in the order of the items; no more than *concurrency* run at once."""
    running = 0
    most = 0

    @step
    async def work(i: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20 - i):
            await asyncio.sleep(0)
        running -= 1
        return i * i

    async def body(run: Run) -> list[Any]:
        return await run.map(work, range(20), concurrency=3)

    async with place.layer() as layer:
        outcome = await layer.run(workflow(name="ordered")(body)(), client="acme", run_id="r1")
    assert (outcome.value, most) == ([i * i for i in range(20)], 3)


async def test_equal_items_are_items_of_their_own(place: Place):
    """Equal items run once each, and keep their results over a resume."""
    drawn: list[int] = []

    @step
    async def draw(name: str) -> int:
        drawn.append(len(drawn))
        return drawn[-1]

    async def body(run: Run) -> list[Any]:
        got = await run.map(draw, ["a", "a", "b", "a"], concurrency=1)
        await run.ask("Go on?")
        return got

    async with place.layer() as layer:
        job = workflow(name="equal")(body)
        await layer.run(job(), client="acme", run_id="r1")
        await layer.answer_next("yes")
        assert (await layer.resume("r1")).value == [0, 1, 2, 3]
    assert drawn == [0, 1, 2, 3]


async def test_maps_may_lie_in_maps_and_over_functions(place: Place):
    """Items may be functions that call several steps and map again; each call has one record, found again by a resume."""
    ran: Counter[str] = Counter()

    @step
    async def double(i: int) -> int:
        ran[f"double {i}"] += 1
        return 2 * i

    @step
    async def add(i: int, j: int) -> int:
        ran[f"add {i} {j}"] += 1
        return i + j

    runs: list[Run] = []

    async def inner(i: int) -> int:
        return await add(await double(i), 1)

    async def outer(n: int) -> list[Any]:
        return await runs[-1].map(inner, range(n))

    async def body(run: Run) -> list[Any]:
        runs.append(run)
        got = await run.map(outer, [1, 2, 3])
        await run.ask("Go on?")
        return got

    async with place.layer() as layer:
        job = workflow(name="nested_maps")(body)
        await layer.run(job(), client="acme", run_id="r1")
        await layer.answer_next("yes")
        assert (await layer.resume("r1")).value == [[1], [1, 3], [1, 3, 5]]
    assert set(ran.values()) == {3, 2, 1}
    assert ran["double 0"] == 3


async def test_items_that_wait_for_a_person_free_their_slot(place: Place):
    """With two slots and two items that ask, all other items run all the same."""
    done: list[str] = []

    @step
    async def work(name: str) -> str:
        done.append(name)
        return name

    runs: list[Run] = []

    async def item(name: str) -> str:
        if name.startswith("ask"):
            return str(await runs[-1].ask(f"{name}?"))
        return await work(name)

    async def body(run: Run) -> list[Any]:
        runs.append(run)
        return await run.map(item, ["ask 1", "ask 2", "a", "b", "c"], concurrency=2)

    async with place.layer() as layer:
        outcome = await layer.run(workflow(name="slots")(body)(), client="acme", run_id="r1")
        assert done == ["a", "b", "c"]
        for question in outcome.questions:
            await layer.answer(question.id, f"yes to {question.text}", by="ann")
        assert (await layer.resume("r1")).value == ["yes to ask 1?", "yes to ask 2?", "a", "b", "c"]


# -- failed items -------------------------------------------------------------------------------------------------------------


async def test_items_that_failed_for_good_are_raised_after_the_others_ended(place: Place):
    """A fatal item fails only itself; ``StepFailed`` comes after all others ended, with results and failures by position."""
    caught: list[StepFailed] = []
    done: list[int] = []

    @step
    async def work(i: int) -> int:
        if i in (1, 3):
            raise Fatal(f"{i} does not exist")
        for _ in range(10):
            await asyncio.sleep(0)
        done.append(i)
        return i

    async def body(run: Run) -> str:
        try:
            await run.map(work, range(6), concurrency=2)
        except StepFailed as failed:
            caught.append(failed)
            assert done == [0, 2, 4, 5] or len(caught) > 1
        return str(await run.ask("Go on?"))

    async with place.layer() as layer:
        job = workflow(name="fatal_items")(body)
        outcome = await layer.run(job(), client="acme", run_id="r1")
        assert [q.kind for q in outcome.questions] == ["ask"]
        await layer.answer_next("yes")
        assert (await layer.resume("r1")).value == "yes"
    for failed in caught:
        assert failed.results == [0, None, 2, None, 4, 5]
        assert failed.failures == {1: "1 does not exist", 3: "3 does not exist"}
    assert len(caught) == 2
    assert len(done) == 4


async def test_one_failing_item_does_not_stop_the_others(place: Place):
    """One failure asks its own question; all other items end; the map waits for that answer only."""
    ledger = Ledger(lambda i: i == 2)
    async with place.layer() as layer:
        job = posting("one_fails", ledger, list(range(6)))
        question = await inbox(layer, await layer.run(job(), client="acme", run_id="r1"))
        assert question.kind == "failure"
        assert ledger.calls == Counter(range(6))
        await layer.answer(question.id, "skip", by="ann")
        outcome = await layer.resume("r1")
    assert outcome.value == ["R-0", "R-1", None, "R-3", "R-4", "R-5"]


async def test_three_different_causes_are_three_questions(place: Place):
    """Failures with different signatures in a row do not pause the map: each asks for itself."""

    @step(name="work")
    async def differing(i: int) -> int:
        if i < 3:
            raise (HttpError(403), HttpError(402), HttpError(401))[i]
        return i

    async def other(run: Run) -> list[Any]:
        return await run.map(differing, range(6), concurrency=1)

    async with place.layer() as layer:
        outcome = await layer.run(workflow(name="differing")(other)(), client="acme", run_id="r1")
        assert [q.kind for q in outcome.questions] == ["failure"] * 3
        for question in outcome.questions:
            await layer.answer(question.id, "skip", by="ann")
        assert (await layer.resume("r1")).value == [None, None, None, 3, 4, 5]


async def test_a_success_in_between_breaks_the_row(place: Place):
    """Two failures of one cause with a success ended in between are not in a row."""
    ledger = Ledger(lambda i: i in (1, 3))
    async with place.layer() as layer:
        outcome = await layer.run(posting("broken_row", ledger, list(range(6)), concurrency=1)(), client="acme", run_id="r1")
        assert [q.kind for q in outcome.questions] == ["failure", "failure"]
        assert sum(ledger.calls.values()) == 6


# -- two in a row ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 2, 8])
async def test_a_dead_api_is_one_question(place: Place, concurrency: int):
    """The API dies in the middle: exactly one question is open, whatever the concurrency; no further item starts."""
    ledger = Ledger(lambda i: i >= 5)
    async with place.layer() as layer:
        job = posting("dead", ledger, list(range(40)), concurrency=concurrency)
        question = await inbox(layer, await layer.run(job(), client="acme", run_id="r1"))
        assert (question.kind, [o.id for o in question.options]) == ("batch", ["again", "wait", "skip", "stop"])
        started = len(ledger.calls)
        assert 7 <= started <= 5 + 2 * concurrency + 1
        failed = started - 5
        assert f"{40 - started} were not started" in question.text
        assert f"I posted 5 of 40 times; {started - 5} failed" in question.text  # those that were running, too
        kinds = Counter((q["kind"], q["status"], q["folded_into"]) for q in await rows(layer, "questions_of_run"))
        assert kinds[("batch", "open", None)] == 1
        assert kinds[("failure", "open", question.id)] == failed
    async with place.layer() as layer:  # parked and resumed: the same question, nothing started
        assert (await inbox(layer, await layer.resume("r1"))).id == question.id
        assert len(ledger.calls) == started
        ledger.dead = lambda i: False
        await layer.answer(question.id, "again", by="ann")
        outcome = await layer.resume("r1")
    assert outcome.value == [f"R-{i}" for i in range(40)]
    assert [ledger.calls[i] for i in range(40)] == [1] * 5 + [2] * failed + [1] * (40 - started)


@pytest.mark.parametrize("concurrency", [1, 2, 8])
async def test_again_while_it_is_still_dead_asks_again_once(place: Place, concurrency: int):
    """``again`` tries the failed ones and goes on; if it fails again there is one new question, as often as it takes."""
    ledger = Ledger(lambda i: True)
    async with place.layer() as layer:
        job = posting("still_dead", ledger, list(range(30)), concurrency=concurrency)
        outcome = await layer.run(job(), client="acme", run_id="r1")
        seen: list[str] = []
        for _ in range(3):
            question = await inbox(layer, outcome)
            assert question.kind == "batch"
            assert question.id not in seen
            seen.append(question.id)
            await layer.answer(question.id, "again", by="ann")
            outcome = await layer.resume("r1")
        question = await inbox(layer, outcome)
        assert sorted(q["n"] for q in await rows(layer, "questions_of_run") if q["kind"] == "batch") == [1, 2, 3, 4]
        ledger.dead = lambda i: False
        await layer.answer(question.id, "again", by="ann")
        outcome = await layer.resume("r1")
        assert outcome.value == [f"R-{i}" for i in range(30)]


async def test_writes_that_are_refused_pause_the_map_and_happen_once(place: Place):
    """A dead write API is one question too, which says that nothing was posted; after ``again`` each write happened once."""
    ledger = Ledger(lambda i: i >= 3)

    @step(name="post", effect="write", key="item")
    async def post(item: int) -> str:
        return ledger.post(item)

    async def body(run: Run) -> list[Any]:
        return await run.map(post, range(12), concurrency=4)

    async with place.layer() as layer:
        job = workflow(name="dead_writes")(body)
        question = await inbox(layer, await layer.run(job(), client="acme", run_id="r1"))
        assert question.kind == "batch"
        assert "Nothing was posted for the" in question.text
        ledger.dead = lambda i: False
        await layer.answer(question.id, "again", by="ann")
        assert (await layer.resume("r1")).value == [f"R-{i}" for i in range(12)]
    assert sum(ledger.calls.values()) == 12 + len([i for i in ledger.calls if ledger.calls[i] == 2])
    assert max(ledger.calls.values()) == 2


async def test_skip_skips_the_failed_ones_and_goes_on(place: Place):
    """``skip`` gives ``None`` for the failed items only; those not started run."""
    ledger = Ledger(lambda i: i in (3, 4))
    async with place.layer() as layer:
        job = posting("skipped", ledger, list(range(8)), concurrency=1)
        question = await inbox(layer, await layer.run(job(), client="acme", run_id="r1"))
        await layer.answer(question.id, "skip", by="ann")
        outcome = await layer.resume("r1")
    assert outcome.value == ["R-0", "R-1", "R-2", None, None, "R-5", "R-6", "R-7"]


async def test_stop_at_a_batch_cancels_the_run(place: Place):
    """``stop`` cancels the run; what was done stays done, and nothing more is started."""
    ledger = Ledger(lambda i: i >= 2)
    async with place.layer() as layer:
        job = posting("stopped", ledger, list(range(9)), concurrency=1)
        question = await inbox(layer, await layer.run(job(), client="acme", run_id="r1"))
        await layer.answer(question.id, "stop", by="ann")
        outcome = await layer.resume("r1")
        assert outcome.status == "cancelled"
        assert await layer.questions() == []
    assert len(ledger.calls) == 4


async def test_wait_at_a_batch_holds_everything_until_then(place: Place):
    """``wait`` until a moment: failed and further items both wait, over a resume too; then all go on."""
    ledger = Ledger(lambda i: True)
    async with place.layer() as layer:
        job = posting("waits", ledger, list(range(9)), concurrency=2)
        question = await inbox(layer, await layer.run(job(), client="acme", run_id="r1"))
        before = sum(ledger.calls.values())
        until = place.clock.now + timedelta(hours=2)
        await layer.answer(question.id, {"choice": "wait", "until": until.isoformat()}, by="ann")
        ledger.dead = lambda i: False
    for _ in range(2):
        async with place.layer() as layer:
            outcome = await layer.resume("r1")
            assert (outcome.status, outcome.waiting_for) == ("waiting", "timer")
            assert sum(ledger.calls.values()) == before
    place.clock.advance(timedelta(hours=2, seconds=1))
    async with place.layer() as layer:
        assert (await layer.resume("r1")).value == [f"R-{i}" for i in range(9)]


async def test_a_folded_question_is_answered_by_its_own_id_too(place: Place):
    """Whoever still has the link of an item's own question answers the batch with it; a second answer is refused."""
    ledger = Ledger(lambda i: True)
    async with place.layer() as layer:
        job = posting("folded", ledger, list(range(4)), concurrency=1)
        batch = await inbox(layer, await layer.run(job(), client="acme", run_id="r1"))
        own = next(q["id"] for q in await rows(layer, "questions_of_run") if q["folded_into"] == batch.id)
        answered = await layer.answer(own, "skip", by="ann")
        assert answered.id == batch.id
        with pytest.raises(AlreadyAnswered):
            await layer.answer(batch.id, "again", by="bob")


async def test_in_a_row_holds_over_a_crash_between_the_failures(place: Place):
    """A crash after the first failure: the second one in a row, in the next execution, asks the batch question."""
    ledger = Ledger(lambda i: i >= 2)
    stuck = asyncio.Event()

    @step(name="post")
    async def hangs(item: int) -> str:
        if item == 3:
            stuck.set()
            await asyncio.Event().wait()
        return ledger.post(item)

    async def body(run: Run) -> list[Any]:
        return await run.map(hangs, list(range(10)), concurrency=1)

    job = workflow(name="crash")(body)
    async with place.layer() as first:
        running = asyncio.ensure_future(first.run(job(), client="acme", run_id="r1"))
        await stuck.wait()
        assert [q.kind for q in await first.questions()] == ["failure"]
    await asyncio.wait([running])
    posting("crash", ledger, list(range(10)), concurrency=1)
    async with place.layer() as second:
        question = await inbox(second, await second.resume("r1"))
        assert question.kind == "batch"
        assert sorted(ledger.calls) == [0, 1, 2, 3]


async def test_a_batch_is_asked_after_a_crash_between_the_second_failure_and_its_question(place: Place, tmp_path: Path):
    """The second failure's own question is stored and the batch's is not: the next execution asks it before it starts more."""
    ledger = Ledger(lambda i: i >= 2)
    job = posting("between", ledger, list(range(10)), concurrency=1)
    async with place.layer() as layer:
        question = await inbox(layer, await layer.run(job(), client="acme", run_id="r1"))
    databases.execute(tmp_path, "UPDATE question SET folded_into = NULL")
    databases.execute(tmp_path, "DELETE FROM question WHERE kind = 'batch'")
    async with place.layer() as layer:
        second = await inbox(layer, await layer.resume("r1"))
        assert (second.kind, second.id != question.id) == ("batch", True)
        assert len(ledger.calls) == 4


async def test_mended_code_takes_the_batch_question_back(place: Place):
    """When the step's source changed, a resume tries the failed items again by itself and withdraws the batch's question."""
    ledger = Ledger(lambda i: i >= 2)

    async def broken(item: int) -> str:
        return ledger.post(item)

    async def mended(item: int) -> str:
        return f"M-{item}"

    current: list[Any] = [step(name="post")(broken)]

    async def body(run: Run) -> list[Any]:
        return await run.map(current[0], range(6), concurrency=2)

    async with place.layer() as layer:
        job = workflow(name="mended_map")(body)
        question = await inbox(layer, await layer.run(job(), client="acme", run_id="r1"))
        current[0] = step(name="post")(mended)
        outcome = await layer.resume("r1")
        assert outcome.value == ["R-0", "R-1", "M-2", "M-3", "M-4", "M-5"]
        assert {q.status for q in await layer.questions(status=None) if q.id == question.id} == {"withdrawn"}
        assert await layer.questions() == []


async def test_a_batch_of_functions_of_several_steps(place: Place):
    """Items that are functions of several steps: two dead second steps in a row are one question, first steps run once."""
    ledger = Ledger(lambda i: i >= 1)
    parsed: Counter[int] = Counter()

    @step
    async def parse(i: int) -> int:
        parsed[i] += 1
        return i

    @step
    async def post(i: int) -> str:
        return ledger.post(i)

    async def item(i: int) -> str:
        return await post(await parse(i))

    async def body(run: Run) -> list[Any]:
        return await run.map(item, range(7), concurrency=1)

    async with place.layer() as layer:
        job = workflow(name="functions")(body)
        question = await inbox(layer, await layer.run(job(), client="acme", run_id="r1"))
        assert question.kind == "batch"
        assert sorted(parsed) == [0, 1, 2]
    async with place.layer() as layer:
        ledger.dead = lambda i: False
        await layer.answer(question.id, "again", by="ann")
        assert (await layer.resume("r1")).value == [f"R-{i}" for i in range(7)]
    assert set(parsed.values()) == {1}


# -- size --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_ten_thousand_recorded_items_replay_in_seconds(place: Place):
    """A map of 10,000 recorded items is replayed in a few seconds, without running any."""
    ran = 0

    @step
    async def work(i: int) -> int:
        nonlocal ran
        ran += 1
        return i

    async def body(run: Run) -> int:
        got = await run.map(work, range(10_000))
        await run.ask("Go on?")
        return sum(got)

    async with place.layer() as layer:
        job = workflow(name="ten_thousand")(body)
        await layer.run(job(), client="acme", run_id="r1")
        await layer.answer_next("yes")
        began = time.perf_counter()
        outcome = await layer.resume("r1")
        took = time.perf_counter() - began
    assert (outcome.value, ran) == (sum(range(10_000)), 10_000)
    assert took < 8


# -- anything, at any time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
async def test_a_map_ends_whatever_fails_and_whenever_it_is_put_away(place: Place, seed: int):  # noqa: C901 - a small world
    """Random failures, answers to random questions, workers that go at random: one batch question at most, and it ends."""
    chance = random.Random(seed)
    n, concurrency, functions, loaded = chance.choice([1, 8, 20]), chance.choice([1, 2, 8]), seed % 2, seed % 3
    share = chance.choice([0.1, 0.5, 1])
    dead = {i for i in range(n) if chance.random() < share}
    status = {i: chance.choice([403, 403, 401]) for i in range(n)}
    gate = asyncio.Event()
    moment = 0.02 if databases.kind() == "sqlite" else 0.1  # a life has to be long enough for a step or two

    @step
    async def parse(i: int) -> int:
        return i

    @step
    async def post(i: int) -> str:
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        if i in dead:
            if chance.random() < 0.3:
                dead.discard(i)
            raise HttpError(status[i])
        return f"R-{i}"

    @step
    async def busy() -> None:  # keeps the run in memory
        if loaded:
            await gate.wait()

    async def both(i: int) -> str:
        return await post(await parse(i))

    async def body(run: Run) -> list[Any]:
        got, _ = await asyncio.gather(run.map(both if functions else post, range(n), concurrency=concurrency), busy())
        return got

    async def live(layer: TestLayer) -> Outcome[Any] | None:
        """One worker's life: answers come while it works, until it is put away."""
        running = asyncio.ensure_future(layer.run(workflow(name="anything")(body)(), client="acme", run_id="r1"))
        for _ in range(chance.randrange(1, 12)):
            await asyncio.wait([running], timeout=moment)
            questions = await layer.questions()
            assert [q.kind for q in questions].count(QuestionKind.BATCH) <= 1
            if questions and chance.random() < 0.8:
                answer = chance.choice(["again", "again", "skip", {"choice": "wait", "until": chance.choice([5, 100])}])
                await layer.answer(chance.choice(questions).id, answer, by="ann")
            if chance.random() < 0.2:
                gate.set()
            if running.done():
                return running.result()
        return None

    for _ in range(200):
        async with place.layer() as layer:
            outcome = await live(layer)
            if outcome is not None and outcome.status == "done":
                assert all(value in (f"R-{i}", None) for i, value in enumerate(outcome.value))
                assert await layer.questions() == []
                return
        place.clock.advance(120)
    pytest.fail(f"it never ended: {outcome}")


async def test_an_item_that_waits_twice_takes_one_slot_back(place: Place):
    """Items with two questions open at once take one slot back each: with one slot the map ends, one item at a time."""
    at_once = most = 0

    async def item(run: Run, x: int) -> int:
        nonlocal at_once, most
        await asyncio.gather(run.ask(f"a{x}?"), run.ask(f"b{x}?"))
        at_once += 1
        most = max(most, at_once)
        for _ in range(3):
            await asyncio.sleep(0)
        at_once -= 1
        return x

    async def body(run: Run) -> list[int | None]:
        async def each(x: int) -> int:
            return await item(run, x)

        return await run.map(each, [1, 2, 3], concurrency=1)

    async with place.layer() as layer:
        outcome = await layer.run(workflow(name="waits_twice")(body)(), client="acme", run_id="r1")
        assert len(outcome.questions) == 6
        for question in outcome.questions:
            await layer.answer(question.id, "yes", by="ann")
        outcome = await asyncio.wait_for(layer.resume("r1"), 10)
    assert (outcome.value, most) == ([1, 2, 3], 1)
