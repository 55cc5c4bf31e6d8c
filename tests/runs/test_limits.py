"""Ceilings of a run: checked before a step, reserved, asked about once.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepseven import Cost, InvalidAnswer, Limits, Outcome, Question, Run, attempt, step, testing, workflow
from stepseven.runtime import trouble
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


def one(outcome: Outcome[Any]) -> Question:
    """The one open question."""
    assert outcome.waiting_for == "person", outcome
    (question,) = outcome.questions
    return question


class Till:
    """Counts what is spent, as the outside sees it: also how much at most was under way or paid at once."""

    def __init__(self) -> None:
        self.calls = 0
        self.committed = 0.0
        self.most = 0.0

    def open(self, usd: float) -> None:
        """A paid call begins."""
        self.calls += 1
        self.committed += usd
        self.most = max(self.most, self.committed)


def parallel(name: str, paid: Any, n: int, limits: Limits) -> Any:
    """A workflow that calls *paid* with 0 … n-1 at once."""

    async def body(run: Run) -> int:
        return sum(await asyncio.gather(*(paid(i) for i in range(n))))

    return workflow(name=name, limits=limits)(body)


async def test_eight_branches_never_overshoot_what_is_declared(place: Place):
    """Eight branches at once with a declared cost: no more starts than the ceiling allows, and one question for all."""
    till = Till()

    @step(cost=Cost(usd=0.30))
    async def paid(i: int) -> int:
        till.open(0.30)
        await asyncio.sleep(0)
        return i

    job = parallel("eight", paid, 8, Limits(usd=1.00))
    async with place.layer() as layer:
        question = one(await layer.run(job(), client="acme", run_id="r1"))
        assert (till.calls, question.kind, [o.id for o in question.options]) == (3, "limit", ["raise", "stop"])
        assert "$0.90 of $1.00" in question.text
        await layer.answer(question.id, {"choice": "raise", "usd": 1.50}, by="ann")
        second = one(await layer.resume("r1"))
        assert (till.calls, second.id != question.id) == (5, True)
        await layer.answer(second.id, {"choice": "raise", "usd": 10}, by="ann")
        outcome = await layer.resume("r1")
    assert (outcome.value, till.calls) == (28, 8)
    assert outcome.spend.usd == pytest.approx(2.40)


async def test_reported_spend_replaces_the_declared(place: Place):
    """What a step reports counts instead of what it declared: cheaper steps make room, and nobody is asked."""
    till = Till()

    @step(cost=Cost(usd=0.50))
    async def paid(i: int) -> int:
        till.open(0.50)
        await asyncio.sleep(0)
        attempt().spend(usd=0.10, tokens=100)
        till.committed -= 0.40
        return i

    async with place.layer() as layer:
        outcome = await layer.run(parallel("cheap", paid, 8, Limits(usd=1.20))(), client="acme", run_id="r1")
        assert await layer.questions(status=None) == []
    assert (outcome.status, till.calls) == ("done", 8)
    assert till.most <= 1.20
    assert outcome.spend.usd == pytest.approx(0.80)
    assert outcome.spend.tokens == 800


async def test_failed_attempts_count(place: Place):
    """What failed attempts cost counts, over resumes: the ceiling stops a loop of failing paid calls."""
    calls = 0

    @step(cost=Cost(usd=0.40))
    async def paid() -> int:
        nonlocal calls
        calls += 1
        raise ConnectionResetError

    async def body(run: Run) -> int:
        return await paid()

    job = workflow(name="failing_paid", limits=Limits(usd=1.00))(body)
    async with place.layer() as layer:
        question = one(await layer.run(job(), client="acme", run_id="r1"))
        assert (question.kind, calls) == ("failure", 2)
        await layer.answer(question.id, "again", by="ann")
    async with place.layer() as layer:
        outcome = await layer.resume("r1")
        assert (one(outcome).kind, calls) == ("limit", 2)
        assert outcome.spend.usd == pytest.approx(0.80)


async def test_a_limit_survives_resumes(place: Place):
    """What was spent before a resume counts after it, and the same question stays open: nothing is started meanwhile."""
    till = Till()

    @step(cost=Cost(usd=0.60))
    async def paid(i: int) -> int:
        till.open(0.60)
        return i

    async def body(run: Run) -> int:
        return sum([await paid(i) for i in range(3)])

    job = workflow(name="survives", limits=Limits(usd=1.00))(body)
    async with place.layer() as layer:
        first = one(await layer.run(job(), client="acme", run_id="r1"))
    for _ in range(3):
        async with place.layer() as layer:
            assert one(await layer.resume("r1")).id == first.id
    assert till.calls == 1


@pytest.mark.parametrize(
    "wrong",
    [
        "raise",
        {"choice": "raise"},
        {"choice": "raise", "tokens": 5},
        {"choice": "raise", "usd": 0.5},
        {"choice": "raise", "usd": -1},
        {"choice": "raise", "usd": "5"},
        {"choice": "raise", "usd": True},
    ],
)
async def test_raise_needs_a_higher_ceiling_in_the_same_unit(place: Place, wrong: Any):
    """``raise`` without a number, in another unit, or no higher than the ceiling is refused with a sentence."""

    @step(cost=Cost(usd=0.60))
    async def paid(i: int) -> int:
        return i

    async with place.layer() as layer:
        question = one(await layer.run(parallel("raise", paid, 2, Limits(usd=1.00))(), client="acme", run_id="r1"))
        with pytest.raises(InvalidAnswer):
            await layer.answer(question.id, wrong, by="ann")
        await layer.answer(question.id, {"choice": "raise", "usd": 1.2}, by="ann")
        assert (await layer.resume("r1")).value == 1


async def test_stop_at_a_limit_cancels(place: Place):
    """``stop`` cancels the run; what it spent is kept."""

    @step(cost=Cost(usd=0.60))
    async def paid(i: int) -> int:
        return i

    async with place.layer() as layer:
        question = one(await layer.run(parallel("stopped", paid, 2, Limits(usd=1.00))(), client="acme", run_id="r1"))
        await layer.answer(question.id, "stop", by="ann")
        outcome = await layer.resume("r1")
    assert outcome.status == "cancelled"
    assert outcome.spend.usd == pytest.approx(0.60)


async def test_steps_in_parallel_count_while_they_run(place: Place):
    """A ceiling of steps holds for steps that run at the same time, free ones too; successes count."""
    running = 0
    most = 0

    @step
    async def free(i: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        return i

    async with place.layer() as layer:
        question = one(await layer.run(parallel("steps", free, 8, Limits(steps=3))(), client="acme", run_id="r1"))
        assert most == 3
        await layer.answer(question.id, {"choice": "raise", "steps": 8}, by="ann")
        assert (await layer.resume("r1")).value == 28


async def test_tokens_are_checked_before_each_step(place: Place):
    """A run over its tokens starts no further step."""
    calls = 0

    @step
    async def turn(i: int) -> int:
        nonlocal calls
        calls += 1
        attempt().spend(tokens=600)
        return i

    async def body(run: Run) -> int:
        return sum([await turn(i) for i in range(5)])

    job = workflow(name="tokens", limits=Limits(tokens=1000))(body)
    async with place.layer() as layer:
        question = one(await layer.run(job(), client="acme", run_id="r1"))
        assert calls == 2
        assert "1,200 of 1,000 tokens" in question.text
        await layer.answer(question.id, {"choice": "raise", "tokens": 5000}, by="ann")
        assert (await layer.resume("r1")).value == 10


async def test_seconds_count_executing_only(place: Place):
    """``seconds`` counts executing time: days of waiting for a person cost none, and it survives resumes."""

    @step
    async def work(i: int) -> int:
        place.clock.advance(40)
        return i

    async def body(run: Run) -> int:
        first = await work(1)
        await run.ask("Go on?")
        return first + await work(2) + await work(3)

    job = workflow(name="seconds", limits=Limits(seconds=60))(body)
    async with place.layer() as layer:
        question = one(await layer.run(job(), client="acme", run_id="r1"))
        place.clock.advance(timedelta(days=3))
        await layer.answer(question.id, "yes", by="ann")
        limit = one(await layer.resume("r1"))
        assert limit.kind == "limit"
        await layer.answer(limit.id, {"choice": "raise", "seconds": 600}, by="ann")
        assert (await layer.resume("r1")).value == 6


async def test_a_days_spend_is_counted_over_all_runs_of_the_client(place: Place):
    """``client_usd_per_day`` counts every run of the client today, successes too; another client's money is its own."""
    till = Till()

    @step(cost=Cost(usd=0.40))
    async def paid(i: int) -> int:
        till.open(0.40)
        return i

    job = parallel("daily", paid, 1, Limits(client_usd_per_day=1.00))
    async with place.layer() as layer:
        for n in range(2):
            assert (await layer.run(job(), client="acme", run_id=f"r{n}")).status == "done"
        question = one(await layer.run(job(), client="acme", run_id="r2"))
        assert till.calls == 2
        assert "for today" in question.text
        assert (await layer.run(job(), client="globex", run_id="r3")).status == "done"


async def test_a_new_day_makes_room_and_the_question_is_withdrawn(place: Place):
    """The day's question parks until midnight too: then there is room, the question is withdrawn, the run goes on."""

    @step(cost=Cost(usd=0.60))
    async def paid(i: int) -> int:
        return i

    job = parallel("tomorrow", paid, 2, Limits(client_usd_per_day=1.00))
    async with place.layer() as layer:
        outcome = await layer.run(job(), client="acme", run_id="r1")
        question = one(outcome)
        assert outcome.until_us is not None
        assert outcome.until_us % 86_400_000_000 == 0
        place.clock.advance(timedelta(days=1))
        assert (await layer.resume("r1")).value == 1
        assert [(q.id, q.status) for q in await layer.questions(status=None)] == [(question.id, "withdrawn")]


async def test_a_ceiling_raised_in_the_code_withdraws_the_question(place: Place):
    """If the code declares more by the next resume, the question is withdrawn and the run goes on."""

    @step(cost=Cost(usd=0.60))
    async def paid(i: int) -> int:
        return i

    async with place.layer() as layer:
        question = one(await layer.run(parallel("declared", paid, 2, Limits(usd=1.00))(), client="acme", run_id="r1"))
        parallel("declared", paid, 2, Limits(usd=2.00))
        assert (await layer.resume("r1")).value == 1
        assert [(q.id, q.status) for q in await layer.questions(status=None)] == [(question.id, "withdrawn")]


async def test_layer_limits_and_workflow_limits_both_hold(place: Place):
    """The lower of the layer's and the workflow's ceiling is in force."""

    @step(cost=Cost(usd=0.60))
    async def paid(i: int) -> int:
        return i

    async with place.layer(limits=Limits(usd=1.00)) as layer:
        outcome = await layer.run(parallel("lower", paid, 2, Limits(usd=9.00))(), client="acme", run_id="r1")
        assert one(outcome).kind == "limit"


async def test_a_paid_step_inside_a_step_does_not_wait_for_itself(place: Place):
    """A step whose inner step does not fit beside the outer's reservation asks; it does not hang."""

    @step(cost=Cost(usd=0.60))
    async def inner(i: int) -> int:
        return i

    @step(cost=Cost(usd=0.60))
    async def outer(i: int) -> int:
        return await inner(i) + 1

    async with place.layer() as layer:
        question = one(await layer.run(parallel("inner", outer, 1, Limits(usd=1.00))(), client="acme", run_id="r1"))
        await layer.answer(question.id, {"choice": "raise", "usd": 2}, by="ann")
        outcome = await layer.resume("r1")
    assert (outcome.status, outcome.questions) == ("done", ())


async def test_a_cancelled_paid_try_counts_and_can_be_repeated(place: Place):
    """A paid try whose caller was cancelled keeps its declared cost in the spend, uses no attempt, and can run again."""
    started = asyncio.Event()
    calls = 0

    @step(cost=Cost(usd=0.25))
    async def paid() -> int:
        nonlocal calls
        calls += 1
        assert attempt().number == 1
        started.set()
        if calls == 1:
            await asyncio.sleep(3600)
        return 7

    async def body(run: Run) -> int:
        first = asyncio.ensure_future(paid())
        await started.wait()
        first.cancel()
        await asyncio.wait([first])
        return await paid()

    async with place.layer() as layer:
        outcome = await layer.run(workflow(name="cancelled_paid")(body)(), client="acme", run_id="r1")
    assert (outcome.status, outcome.value, calls) == ("done", 7, 2)
    assert outcome.spend.usd == pytest.approx(0.50)


async def test_a_try_cancelled_while_it_makes_room_gives_its_reservation_back(place: Place, monkeypatch: pytest.MonkeyPatch):
    """A try is cancelled while the question about the limit is taken back: what it had reserved is free for the next."""
    reached, real = asyncio.Event(), trouble.withdraw

    async def stuck(*_: Any) -> None:
        reached.set()
        monkeypatch.setattr(trouble, "withdraw", real)
        await asyncio.Event().wait()

    @step(cost=Cost(usd=0.60))
    async def paid() -> int:
        return 7

    async def once(run: Run) -> int:
        return await paid()

    async def twice(run: Run) -> int:
        first = asyncio.ensure_future(paid())
        await reached.wait()
        first.cancel()
        await asyncio.wait([first])
        return await paid()

    def flow(body: Any, usd: float) -> Any:
        return workflow(name="makes_room", limits=Limits(usd=usd))(body)()

    async with place.layer() as layer:
        one(await layer.run(flow(once, 0.50), client="acme", run_id="r1"))
    monkeypatch.setattr(trouble, "withdraw", stuck)
    async with place.layer() as layer:
        outcome = await asyncio.wait_for(layer.run(flow(twice, 1.00), client="acme", run_id="r1"), 10)
    assert (outcome.status, outcome.value, outcome.questions) == ("done", 7, ())


async def test_executing_time_is_counted_while_it_passes(place: Place):
    """Each heartbeat counts a run's time, so a death loses two seconds of it at most; nothing is counted twice at the end."""
    taken: list[float] = []

    @step
    async def work(i: int) -> int:
        place.clock.advance(40)
        return i

    async def body(run: Run) -> int:
        await work(1)
        taken.append(executing())
        await work(2)
        taken.append(executing())
        raise RuntimeError("broken")

    def executing() -> float:
        row = layer.store.read_now(lambda tx: tx.one(tx.sql.run_by_no, {"no": 1}))
        assert row is not None
        return float(row["executing_us"]) / 1e6

    async with place.layer() as layer:
        outcome = await layer.run(workflow(name="counted")(body)(), client="acme", run_id="r1")
        assert taken == [40, 80]
        assert outcome.spend.seconds == 80
        await layer.answer(one(outcome).id, "again", by="ann")
        assert (await layer.resume("r1")).spend.seconds == 80


async def test_runs_that_start_together_do_not_overshoot_the_day(place: Place):
    """Runs of one client, in one process and in several, begin at once: only as many paid tries begin as the day allows."""
    till = Till()

    @step(cost=Cost(usd=0.40))
    async def paid(i: int) -> int:
        till.open(0.40)
        await asyncio.sleep(0.05)
        return i

    job = parallel("together", paid, 1, Limits(client_usd_per_day=1.00))
    async with place.layer() as one_process, place.layer() as other:
        outcomes = await asyncio.gather(
            *(layer.run(job(), client="acme", run_id=f"{layer is other}{n}") for n in range(3) for layer in (one_process, other))
        )
    assert till.calls == 2
    assert sorted(o.status for o in outcomes) == ["done"] * 2 + ["waiting"] * 4
