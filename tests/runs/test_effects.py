"""Writes happen once, or the run stops and says that it cannot know. The outside counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepseven import Run, attempt, step, workflow
from stepseven.model import RunStatus
from tests.runs.outside import DROP, Mood, Outside
from tests.runs.worldly import claims, kinds, layers, look, outside, post, the_question, tries

Send = Callable[[Outside], Awaitable[Any]]


# -- the table ------------------------------------------------------------------------------------------------------------


async def test_nothing_on_record_claims_runs_and_keeps_the_receipt() -> None:
    """Without a record a write is claimed, run, and its receipt kept; the key it sends reads {run}/{effect}/{key}."""
    with outside() as world:

        @step(effect="write", key="n")
        async def post_it(n: str) -> dict[str, Any]:
            seen.extend(claims(layer))
            made: dict[str, Any] = await post(world, "post_it", n, key=attempt().idempotency_key)
            return made

        @workflow
        async def one(run: Run) -> dict[str, Any]:
            return await post_it("A")

        seen: list[dict[str, Any]] = []
        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            assert outcome.result()["n"] == 1
            assert [c["state"] for c in seen] == ["claimed"], "the claim is there before the step's code"
            kept = claims(layer)
    assert world.calls == [("post_it", "r/post_it/A")]
    assert [(c["state"], json.loads(c["receipt"])["n"]) for c in kept] == [("done", 1)]


async def test_done_with_the_same_inputs_is_reused() -> None:
    """The same key with the same inputs, from anywhere in the run and after any resume, gets the first receipt."""
    with outside() as world:

        @step(effect="write", key="n")
        async def post_it(n: str) -> int:
            return int((await post(world, "post_it", n, key=attempt().idempotency_key))["n"])

        @step
        async def inner(n: str) -> int:
            return await post_it(n)

        @workflow
        async def again(run: Run) -> list[int | None]:
            got = [await post_it("A"), await post_it("A"), await inner("A")]
            got += await run.map(post_it, ["A", "A"])
            await run.ask("go on?", options=["yes"])
            return [*got, await post_it("A")]

        async with layers() as layer:
            outcome = await layer.run(again(), client="acme")
            await layer.answer_next("yes")
            outcome = await layer.resume(outcome.run_id)
            assert outcome.result() == [1] * 6
    assert world.counts() == {"post_it": 1}


@pytest.mark.parametrize("choice, value, count", [("same", [1, 1], 1), ("second", [1, 2], 2)])
async def test_done_with_other_inputs_is_a_conflict(choice: str, value: list[int], count: int) -> None:
    """The same key with other inputs asks: the same thing keeps the first, a second one gets a key of its own (…#2).

    The answer holds: neither call asks again when the body runs from the top.
    """
    with outside(dedup=True) as world:

        @step(effect="write", key="n")
        async def post_it(n: str, amount: int) -> int:
            return int((await post(world, "post_it", amount, key=attempt().idempotency_key))["n"])

        @workflow
        async def both(run: Run) -> list[int]:
            got = [await post_it("A", 10), await post_it("A", 20)]
            await run.ask("go on?", options=["yes"])
            return got

        async with layers() as layer:
            outcome = await layer.run(both(), client="acme", run_id="r")
            question = the_question(outcome)
            assert question.kind.value == "conflict"
            assert [o.id for o in question.options] == ["same", "second", "stop"]
            assert world.counts() == {"post_it": 1}
            await layer.answer(question.id, choice, by="ann")
            outcome = await layer.resume("r")
            assert kinds(outcome) == ["ask"]
            await layer.answer_next("yes")
            outcome = await layer.resume("r")
            assert outcome.result() == value
    assert world.counts() == {"post_it": count}
    assert [key for _, key in world.calls] == ["r/post_it/A", "r/post_it/A#2"][:count]


async def test_a_conflict_answered_with_stop_cancels_the_run() -> None:
    """Stop: nothing more is done, the run is cancelled."""
    with outside() as world:

        @step(effect="write", key="n")
        async def post_it(n: str, amount: int) -> int:
            return int((await post(world, "post_it", amount, key=attempt().idempotency_key))["n"])

        @workflow
        async def both(run: Run) -> list[int]:
            return [await post_it("A", 10), await post_it("A", 20)]

        async with layers() as layer:
            await layer.run(both(), client="acme", run_id="r")
            await layer.answer_next("stop")
            assert (await layer.resume("r")).status is RunStatus.CANCELLED
    assert world.counts() == {"post_it": 1}


# -- after the server acted -----------------------------------------------------------------------------------------------


def sends() -> dict[str, tuple[list[Mood], Send]]:
    """Ways in which a step's code ends in an exception although the server has acted."""

    async def plain(world: Outside) -> Any:
        return await post(world, "pay", 1, key=attempt().idempotency_key)

    async def impatient(world: Outside) -> Any:
        return await post(world, "pay", 1, key=attempt().idempotency_key, timeout_s=0.1)

    async def careless(world: Outside) -> Any:
        return (await plain(world))["no such field"]

    async def custom(world: Outside) -> Any:
        await plain(world)
        raise OddlyNamedError("afterwards")

    async def redirected(world: Outside) -> Any:
        return await post(world, "pay", 1, key=attempt().idempotency_key, follow=True)

    def answers(status: int, **more: Any) -> list[Mood]:
        return [Mood(status=status, **more)]

    return {
        "read time-out": ([Mood(hold=True)], impatient),
        "reset": ([DROP], plain),
        "500": (answers(500), plain),
        "502": (answers(502), plain),
        "408": (answers(408), plain),
        "409": (answers(409), plain),
        "425": (answers(425), plain),
        "503 with Retry-After": (answers(503, headers={"Retry-After": "1"}), plain),
        "KeyError while parsing": ([], careless),
        "no JSON": ([Mood(text="<html>")], plain),
        "an exception of one's own": ([], custom),
        "a followed redirect, then 400": (
            [Mood(status=307, headers={"Location": "/effect/nowhere"}), Mood(status=400, act=False)], redirected,
        ),
    }  # fmt: skip


class OddlyNamedError(Exception):
    """Unknown to every table."""


@pytest.mark.parametrize("name", list(sends()))
async def test_an_exception_after_the_server_acted_is_probed(name: str) -> None:
    """Whatever leaves the step after the server acted: the probe finds it, its result is the step's, it is never done twice."""
    moods, send = sends()[name]
    with outside() as world:
        world.moods = list(moods)

        @step(effect="write", key="n")
        async def pay(n: str) -> dict[str, Any]:
            made: dict[str, Any] = await send(world)
            return made

        @pay.probe
        async def find(n: str) -> dict[str, Any] | None:
            return await look(world, "pay")

        @workflow
        async def one(run: Run) -> dict[str, Any]:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme")
            assert outcome.result()["name"] == "pay"
            assert [t["outcome"] for t in tries(layer)] == ["unknown"]
            world.let_go()
    assert world.counts() == {"pay": 1}
    assert world.looks, "the probe was asked"


@pytest.mark.parametrize("name", list(sends()))
async def test_an_exception_after_the_server_acted_is_asked_about(name: str) -> None:
    """Without a probe a person is asked; the receipt entered becomes the result; it is never done twice."""
    moods, send = sends()[name]
    with outside() as world:
        world.moods = list(moods)

        @step(effect="write", key="n")
        async def pay(n: str) -> dict[str, Any]:
            made: dict[str, Any] = await send(world)
            return made

        @workflow
        async def one(run: Run) -> dict[str, Any]:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme")
            question = the_question(outcome)
            assert question.kind.value == "unknown_outcome"
            assert [o.id for o in question.options] == ["happened", "not_happened", "stop"]
            await layer.answer(question.id, {"choice": "happened", "receipt": {"found": "by ann"}}, by="ann")
            outcome = await layer.resume(outcome.run_id)
            assert outcome.result() == {"found": "by ann"}
            world.let_go()
    assert world.counts() == {"pay": 1}


async def test_the_workflows_own_time_out_does_not_do_it_twice() -> None:
    """A write is finished although the workflow's own time-out around it is over; the workflow sees its TimeoutError."""
    with outside() as world:
        world.moods = [Mood(hold=True)]

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def impatient(run: Run) -> list[Any]:
            seen: list[Any] = []
            for wait in (with_timeout, with_wait_for):
                try:
                    await wait(run)
                except TimeoutError:
                    seen.append("late")
            return [*seen, await pay("A")]

        async def with_timeout(run: Run) -> None:
            async with asyncio.timeout(0.05):
                await pay("A")

        async def with_wait_for(run: Run) -> None:
            await asyncio.wait_for(pay("B"), 0.05)

        def let_go_soon() -> None:
            loop.call_soon_threadsafe(loop.call_later, 0.2, world.let_go)

        loop = asyncio.get_running_loop()
        world.on_arrival = let_go_soon
        async with layers() as layer:
            outcome = await layer.run(impatient(), client="acme")
            assert outcome.result()[0] == "late"
            assert outcome.result()[-1] == 1
            assert [c["state"] for c in claims(layer)] == ["done", "done"]
    assert world.counts() == {"pay": 2}, "A once and B once"


async def test_not_happened_does_it_once_more_under_the_same_key() -> None:
    """A person who looked and says that it is not there lets it be done again, with the same key."""
    with outside() as world:
        world.moods = [Mood(status=500, act=False)]

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            await layer.answer(the_question(outcome).id, "not_happened", by="ann")
            assert (await layer.resume("r")).result() == 1
    assert world.calls == [("pay", "r/pay/A")] * 2
    assert world.counts() == {"pay": 1}


async def test_stop_on_an_unknown_outcome_cancels_and_leaves_it_unsettled() -> None:
    """Stop: the run is cancelled, the claim stays in doubt, because that is the truth."""
    with outside() as world:
        world.moods = [DROP]

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            await layer.answer(the_question(outcome).id, "stop", by="ann")
            assert (await layer.resume("r")).status is RunStatus.CANCELLED
            assert [c["state"] for c in claims(layer)] == ["unknown"]
    assert world.counts() == {"pay": 1}
