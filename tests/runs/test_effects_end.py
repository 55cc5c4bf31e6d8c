"""Cancellation, stops and ends: a write in flight is finished and recorded; nothing ends while a claim is in doubt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepseven import Fatal, Layer, Run, attempt, step, workflow
from stepseven.model import RunStatus
from stepseven.runtime import known
from tests.runs.outside import DROP, Mood, Outside
from tests.runs.worldly import claims, kinds, layers, look, outside, post, the_question
from tests.servers import databases


def held_world(world: Outside) -> asyncio.Event:
    """Hold the next answer; set when the request has arrived and had its effect."""
    world.moods = [Mood(hold=True)]
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    world.on_arrival = lambda: loop.call_soon_threadsafe(arrived.set)
    return arrived


async def status(layer: Layer, run_id: str) -> RunStatus:
    """The run's status in the store."""
    return next(r.status for r in await layer.runs() if r.run_id == run_id)


async def test_cancelling_lasts_until_the_write_in_flight_is_recorded() -> None:
    """layer.cancel while a write is being sent: `cancelling` until its reply is on record, then `cancelled`."""
    with outside() as world:
        arrived = held_world(world)

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def two(run: Run) -> list[int]:
            return [await pay("A"), await pay("B")]

        async with layers() as layer:
            running = asyncio.create_task(layer.run(two(), client="acme", run_id="r"))
            await arrived.wait()
            assert await layer.cancel("r", reason="wrong client", by="ann") is RunStatus.CANCELLING
            for _ in range(20):
                await asyncio.sleep(0.01)
                assert await status(layer, "r") is RunStatus.CANCELLING
            world.let_go()
            outcome = await running
            assert outcome.status is RunStatus.CANCELLED
            assert outcome.failure is not None
            assert outcome.failure.reason == "wrong client (by ann)"
            assert [c["state"] for c in claims(layer)] == ["done"]
            assert (await layer.checkpoint("r"))["steps_complete"] == ["pay"]
    assert world.counts() == {"pay": 1}


async def test_a_siblings_failure_waits_for_the_write() -> None:
    """A sibling in gather raises: the write in flight is finished and recorded, and answers when the body runs again."""
    with outside() as world:
        arrived = held_world(world)

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        async def sibling() -> int:
            await arrived.wait()
            asyncio.get_running_loop().call_later(0.1, world.let_go)
            if not mended:
                raise RuntimeError("the sibling fails")
            return 2

        @workflow
        async def both(run: Run) -> list[int]:
            return list(await asyncio.gather(pay("A"), sibling()))

        mended: list[int] = []
        async with layers() as layer:
            outcome = await layer.run(both(), client="acme", run_id="r")
            assert kinds(outcome) == ["failure"]
            assert [c["state"] for c in claims(layer)] == ["done"]
            mended.append(1)
            await layer.answer_next("again")
            assert (await layer.resume("r")).result() == [1, 2]
    assert world.counts() == {"pay": 1}


async def test_closing_the_layer_waits_for_the_write(tmp_path: Any) -> None:
    """aclose() gives the run back only when the write in flight is on record; the next process goes on from it."""
    with outside() as world:
        arrived = held_world(world)

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def two(run: Run) -> list[int]:
            return [await pay("A"), await pay("B")]

        url = databases.url(tmp_path)
        async with layers(url) as layer:
            running = asyncio.create_task(layer.run(two(), client="acme", run_id="r"))
            await arrived.wait()
            asyncio.get_running_loop().call_later(0.2, world.let_go)
            await layer.aclose()
            assert (await asyncio.gather(running, return_exceptions=True)) != []
        assert world.counts() == {"pay": 1}
        async with layers(url, seed=1) as layer:
            assert [c["state"] for c in claims(layer)] == ["done"]
            assert (await layer.resume("r")).result() == [1, 2]
    assert world.counts() == {"pay": 2}


async def test_a_cancelled_claim_that_sent_nothing_is_no_doubt() -> None:
    """Cancelled between its claim and its send: proven not done; the same call later simply does it."""
    with outside() as world:

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def impatient(run: Run) -> int:
            task = asyncio.ensure_future(pay("A"))
            await claiming.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            states.extend(c["state"] for c in claims(layer))
            return await pay("A")

        claiming = asyncio.Event()
        states: list[str] = []
        async with layers() as layer:
            write = layer.store.write

            async def slow(unit: Any, **how: Any) -> Any:
                done = await write(unit, **how)
                if claims(layer) and not claiming.is_set():
                    claiming.set()
                    await asyncio.sleep(0.05)  # the commit's answer takes its time: the cancellation comes first
                return done

            layer.store.write = slow  # type: ignore[method-assign]
            assert (await layer.run(impatient(), client="acme")).result() == 1
    assert states == ["refused"]
    assert world.counts() == {"pay": 1}


# -- settled before the end -----------------------------------------------------------------------------------------------


async def test_a_cancelled_run_finds_out_about_its_claims_first() -> None:
    """Cancelled while it waits for a person about a claim: the run looks once more, and ends with the receipt on record."""
    with outside() as world:
        world.moods = [DROP]
        world.look_moods = [Mood(status=500)] * 3

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            assert kinds(outcome) == ["unknown_outcome"]
            assert await layer.cancel("r", reason="enough") is RunStatus.CANCELLING
            outcome = await layer.resume("r")
            assert outcome.status is RunStatus.CANCELLING
            assert kinds(outcome) == ["unknown_outcome"], "the same question, still open"
            await layer.answer(the_question(outcome).id, {"choice": "happened", "receipt": 1}, by="ann")
            outcome = await layer.resume("r")
            assert outcome.status is RunStatus.CANCELLED
            assert outcome.failure is not None
            assert outcome.failure.reason == "enough"
            assert [c["state"] for c in claims(layer)] == ["done"]
    assert world.counts() == {"pay": 1}


@pytest.mark.sqlite("its time-out is shorter than the way to a server")
@pytest.mark.parametrize("there, state", [(True, "done"), (False, "refused")])
async def test_a_run_that_is_stopped_for_good_settles_by_its_probe(there: bool, state: str) -> None:
    """Fatal elsewhere while a claim is in doubt: `failing` until the probe has told, then failed."""
    with outside() as world:
        world.moods = [Mood(status=500, act=there)]

        @step(effect="write", key="n", settle=60)
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @pay.probe
        async def find(n: str) -> int | None:
            seen.append((await status(layer, "r"), n, attempt().idempotency_key))
            found = await look(world, "pay")
            return None if found is None or len(seen) == 1 else int(found["n"])

        @workflow
        async def one(run: Run) -> int:
            try:
                async with asyncio.timeout(0.01):
                    await pay("A")
            except TimeoutError:
                raise Fatal("the client is gone") from None
            return 1

        seen: list[Any] = []
        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            assert outcome.status is RunStatus.FAILED
            assert outcome.failure is not None
            assert outcome.failure.reason == "the client is gone"
            assert [c["state"] for c in claims(layer)] == [state]
    assert seen[-1] == (RunStatus.FAILING, "A", "r/pay/A")
    assert len(world.calls) == 1, "an ending run sends nothing"


@pytest.mark.sqlite("its time-out is shorter than the way to a server")
async def test_a_run_is_not_done_while_a_claim_is_in_doubt() -> None:
    """A body that swallows its own time-out returns; the run asks about the claim it left before it is done."""
    with outside() as world:
        world.moods = [DROP]

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def careless(run: Run) -> str:
            try:
                async with asyncio.timeout(0.0001):
                    await pay("A")
            except TimeoutError:
                return "late"
            return "in time"

        async with layers() as layer:
            outcome = await layer.run(careless(), client="acme", run_id="r")
            assert outcome.status is RunStatus.WAITING
            assert kinds(outcome) == ["unknown_outcome"]
            await layer.answer(the_question(outcome).id, {"choice": "happened", "receipt": 1}, by="ann")
            assert (await layer.resume("r")).result() in ("late", "in time")
            assert [c["state"] for c in claims(layer)] == ["done"]
    assert world.counts() == {"pay": 1}


async def test_without_the_code_a_person_is_asked(tmp_path: Any) -> None:
    """A cancelled run whose step is gone from the code cannot look: a person says what happened, then it is cancelled."""
    with outside() as world:
        world.moods = [DROP]
        url = databases.url(tmp_path)

        @step(name="forgotten", effect="write", key="n")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow(name="forgetful")
        async def before(run: Run) -> int:
            return await pay("A")

        async with layers(url) as layer:
            await layer.run(before(), client="acme", run_id="r")
            assert await layer.cancel("r", reason="enough") is RunStatus.CANCELLING
        known._steps.pop("forgotten")

        @workflow(name="forgetful")
        async def after(run: Run) -> int:
            raise AssertionError("a cancelled run's body is not run")

        async with layers(url, seed=1) as layer:
            outcome = await layer.resume("r")
            assert outcome.status is RunStatus.CANCELLING
            question = the_question(outcome)
            await layer.answer(question.id, "not_happened", by="ann")
            assert (await layer.resume("r")).status is RunStatus.CANCELLED
            assert [c["state"] for c in claims(layer)] == ["refused"]
    assert world.counts() == {"pay": 1}


def test_a_name_used_by_two_modules_is_nobodys() -> None:
    """Steps are found by name: the workflow's own module first; a name that two others share is not guessed."""

    def in_module(module: str) -> Any:
        async def pay(n: str) -> int:
            return len(n)

        pay.__module__ = module
        return step(name="shared_name", effect="write", key="n")(pay)

    one, other = in_module("one_module"), in_module("other_module")
    assert known.find("shared_name", "one_module") is one
    assert known.find("shared_name", "other_module") is other
    assert known.find("shared_name", "third_module") is None
    assert known.find("no_such_step", "one_module") is None
