"""The gate and late answers: what an attempt may do that was given up, and what becomes of its receipt."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import httpx
import pytest

from stepseven import Cost, Layer, Run, attempt, step, workflow
from stepseven.errors import Superseded
from stepseven.model import RunStatus
from stepseven.store.base import Tx
from tests.runs.outside import Mood
from tests.runs.worldly import claims, kinds, layers, look, outside, post, the_question, tries, until


async def test_a_timed_out_thread_may_not_pass_the_gate() -> None:
    """A `def` step that reads its key after its time is up gets Superseded in its thread: nothing is sent, ever."""
    with outside() as world:
        go, told = threading.Event(), threading.Event()

        @step(effect="write", key="n", timeout=1.0)  # the probe has as long
        def pay(n: str) -> int:
            if attempt().number == 1:
                go.wait(10)
                try:
                    key = attempt().idempotency_key
                except Superseded:
                    told.set()
                    raise
            else:
                key = attempt().idempotency_key
            return int(httpx.post(f"{world.url}/effect/pay", json=n, headers={"Idempotency-Key": key}).json()["n"])

        @pay.probe
        async def find(n: str) -> int | None:
            found = await look(world, "pay")
            return None if found is None else int(found["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            assert (await layer.run(one(), client="acme")).result() == 1
            go.set()
            assert await asyncio.to_thread(told.wait, 10)
    assert world.counts() == {"pay": 1}


async def test_a_late_receipt_is_kept_and_ends_the_question() -> None:
    """The reply comes after the time-out, nobody has acted since: it settles the claim, the question is taken back."""
    with outside() as world:
        world.moods = [Mood(hold=True)]

        @step(effect="write", key="n", timeout=1)
        def pay(n: str) -> int:
            headers = {"Idempotency-Key": attempt().idempotency_key}
            return int(httpx.post(f"{world.url}/effect/pay", json=n, headers=headers, timeout=20).json()["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            assert kinds(outcome) == ["unknown_outcome"]
            assert layer.services.worker.zombies == 1
            world.let_go()
            await until(lambda: claims(layer)[0]["state"] == "done")
            assert (await layer.runs())[0].status is RunStatus.QUEUED, "ready to go on"
            assert not await layer.questions()
            assert (await layer.resume("r")).result() == 1
            assert layer.services.worker.zombies == 0
    assert world.counts() == {"pay": 1}


async def test_a_late_receipt_after_somebody_acted_is_a_loud_conflict() -> None:
    """A person said "not there", it was done again, then the first reply comes: "done twice", even when the run has ended."""
    with outside() as world:
        world.moods = [Mood(hold=True)]

        @step(effect="write", key="n", timeout=1.5)
        def pay(n: str) -> int:
            headers = {"Idempotency-Key": attempt().idempotency_key}
            return int(httpx.post(f"{world.url}/effect/pay", json=n, headers=headers, timeout=20).json()["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            await layer.answer(the_question(outcome).id, "not_happened", by="ann")
            assert (await layer.resume("r")).result() == 2
            world.let_go()
            async with asyncio.timeout(10):
                while not (asked := await layer.questions()):
                    await asyncio.sleep(0.01)
            assert [(q.kind.value, q.step) for q in asked] == [("conflict", "pay")]
            assert "done twice: 2 and 1" in asked[0].text
            assert json.loads(claims(layer)[0]["receipt"]) == 2, "the receipt that counts stays"
            assert (await layer.runs())[0].status is RunStatus.DONE
            await layer.answer(asked[0].id, "second", by="ann")
    assert world.counts() == {"pay": 2}


async def test_a_late_receipt_during_the_second_send_is_a_loud_conflict_too() -> None:
    """The first reply comes while the second send is under way: both receipts differ, so it is said at once."""
    with outside() as world:
        world.moods = [Mood(hold=True)]
        second = threading.Event()

        @step(effect="write", key="n", timeout=5)
        def pay(n: str) -> int:
            headers = {"Idempotency-Key": attempt().idempotency_key}
            made = httpx.post(f"{world.url}/effect/pay", json=n, headers=headers, timeout=20).json()
            if attempt().number > 1:
                world.let_go()
                second.wait(10)
            return int(made["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay.options(timeout=1)("A") if not asked else await pay("A")

        asked: list[str] = []
        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            asked.append(the_question(outcome).id)
            await layer.answer(asked[0], "not_happened", by="ann")
            going = asyncio.create_task(layer.resume("r"))
            await until(lambda: claims(layer)[0]["state"] == "done")
            second.set()
            await going
            told = await layer.questions()
            assert [q.kind.value for q in told] == ["conflict"]
            assert "done twice" in told[0].text
    assert world.counts() == {"pay": 2}


async def test_code_that_ignores_cancellation_is_given_up_like_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """An `async def` step that swallows its cancellation does not hold the run: given up, and its receipt kept when it comes."""
    monkeypatch.setattr("stepseven.runtime.sending.GRACE_S", 0.1)
    with outside() as world:
        world.moods = [Mood(hold=True)]

        @step(effect="write", key="n", timeout=1)
        async def pay(n: str) -> int:
            sending = asyncio.ensure_future(post(world, "pay", n, key=attempt().idempotency_key))
            while not sending.done():
                try:
                    await asyncio.shield(sending)
                except asyncio.CancelledError:
                    continue
            return int(sending.result()["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            assert kinds(outcome) == ["unknown_outcome"]
            world.let_go()
            await until(lambda: claims(layer)[0]["state"] == "done")
            assert (await layer.resume("r")).result() == 1
    assert world.counts() == {"pay": 1}


async def test_an_attempt_that_has_ended_gives_no_key_any_more() -> None:
    """A task that a step left behind cannot send under the step's key once the step has returned."""
    with outside() as world:

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            mine = attempt()

            async def behind() -> str:
                await asyncio.sleep(0.05)
                try:
                    return mine.idempotency_key
                except Superseded as signal:
                    return signal.why

            left.append(asyncio.create_task(behind()))
            return int((await post(world, "pay", n, key=mine.idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        left: list[asyncio.Task[str]] = []
        async with layers() as layer:
            assert (await layer.run(one(), client="acme")).result() == 1
            assert await left[0] == "this attempt was given up, or has ended"
    assert world.counts() == {"pay": 1}


async def test_a_late_receipt_of_an_older_generation_is_loud() -> None:
    """It was taken for not done and something else was done under the same key: the first reply opens the question."""
    with outside() as world:
        world.moods = [Mood(hold=True)]

        @step(effect="write", key="n", timeout=1.5)
        def pay(n: str, cents: int) -> int:
            headers = {"Idempotency-Key": attempt().idempotency_key}
            return int(httpx.post(f"{world.url}/effect/pay", json=cents, headers=headers, timeout=20).json()["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A", amounts[-1])

        amounts = [100]
        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            await layer.answer(the_question(outcome).id, "not_happened", by="ann")
            amounts.append(200)
            assert (await layer.resume("r")).result() == 2
            assert [c["generation"] for c in claims(layer)] == [1, 2]
            world.let_go()
            await until(lambda: [c["state"] for c in claims(layer)] == ["done", "done"])
            (asked,) = await layer.questions()
            assert (asked.kind.value, asked.step) == ("conflict", "pay")
            assert "done twice: 2 and 1" in asked.text
    assert world.counts() == {"pay": 2}


@pytest.mark.parametrize("fails", [False, True])
async def test_a_send_whose_run_was_taken_over_still_costs(fails: bool) -> None:
    """The owner loses its run while it sends: what the send has cost is on record all the same."""

    @step(effect="write", key="n", cost=Cost(usd=2))
    async def pay(n: str) -> int:
        layer.store.write_now(take_away, durable=True, client=None)
        attempt().spend(usd=1.5, tokens=70)
        if fails:
            raise ConnectionResetError
        return 1

    def take_away(tx: Tx) -> None:
        row = tx.one(tx.sql.run_by_no, {"no": 1})
        assert row is not None
        params = {"run_no": 1, "owner": "w_other", "now": 0, "progress": 0, "barren": 0, "source_digest": None, "remaining": None}
        assert tx.one(tx.sql.take_run, {**params, "fence": row["fence"], "seen_owner": row["owner"]}) is not None

    @workflow
    async def one(run: Run) -> int:
        return await pay("A")

    async with layers() as layer:
        assert (await layer.run(one(), client="acme", run_id="r")).status is RunStatus.RUNNING
        (row,) = tries(layer)
        assert (row["outcome"], row["usd"], row["tokens"]) == ("interrupted", 1_500_000, 70)


async def test_what_a_send_cost_counts_when_its_result_is_refused() -> None:
    """A result that cannot be recorded did cost: it is in the run's spend, once, before and after a person gave the value."""

    @step(effect="write", key="n", cost=Cost(usd=2))
    async def pay(n: str) -> float:
        attempt().spend(usd=1.5)
        return float("nan")

    @workflow
    async def one(run: Run) -> float:
        return await pay("A")

    async with layers() as layer:
        outcome = await layer.run(one(), client="acme", run_id="r")
        assert outcome.spend.usd == 1.5
        await layer.answer(the_question(outcome).id, 7, by="ann")
        outcome = await layer.resume("r")
        assert (outcome.result(), outcome.spend.usd) == (7, 1.5)


async def test_a_claim_whose_commit_took_long_has_all_its_time_before_the_send() -> None:
    """Whoever looks for an effect counts from its claim: nothing is sent after that, however slow the store was to answer."""
    moments: list[tuple[int, int]] = []

    @step(effect="write", key="n", timeout=0.4, attempts=1)
    async def pay(n: str) -> str:
        assert attempt().idempotency_key
        until = [c["gate_until_us"] for c in claims(layer)]
        moments.append((time.time_ns() // 1000, until[-1]))
        return n

    @workflow
    async def one(run: Run) -> str:
        return await pay("A")

    async with Layer("sqlite:///:memory:") as layer:
        write, waits = layer.store.write, [0.6, 0.2]

        async def slow(unit: Any, **how: Any) -> Any:
            before = len(claims(layer))
            done = await write(unit, **how)
            if waits and (before or claims(layer)):
                await asyncio.sleep(waits.pop(0))
            return done

        layer.store.write = slow  # type: ignore[method-assign]
        assert (await layer.run(one(), client="acme")).result() == "A"
    assert [sent < until for sent, until in moments] == [True]
