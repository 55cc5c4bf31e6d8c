"""What proves that a write was not done, and what only promises that a repeat is safe. The outside counts."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest

from stepseven import AlreadyDone, Fatal, Fixable, Retryable, Run, attempt, step, workflow
from stepseven.model import RunStatus
from tests.runs.outside import DROP, Mood
from tests.runs.worldly import claims, kinds, layers, look, outside, post, the_question, tries

# -- proven not done ------------------------------------------------------------------------------------------------------


def closed_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("probed", [False, True])
@pytest.mark.parametrize("where", ["refused", "dns"])
async def test_what_was_not_sent_is_retried_and_nobody_is_asked(where: str, probed: bool) -> None:
    """Connect refused and an unknown name prove that nothing was sent: tried again as the policy says, nobody is asked.

    Also when the look-up cannot reach the other side either.
    """
    with outside() as world:
        bad = f"http://127.0.0.1:{closed_port()}" if where == "refused" else "http://no-such-host.invalid"
        urls = [bad, world.url]

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            async with httpx.AsyncClient() as client:
                answer = await client.post(f"{urls.pop(0)}/effect/pay", json=n)
                return int(answer.json()["n"])

        if probed:

            @pay.probe
            async def find(n: str) -> int | None:
                raise ConnectionRefusedError("the look-up cannot reach it either")

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme")
            assert outcome.result() == 1
            assert [t["outcome"] for t in tries(layer)] == ["failed"]
    assert world.counts() == {"pay": 1}


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 410, 413, 415, 422])
async def test_what_was_refused_is_a_failure_and_no_unknown_outcome(status: int) -> None:
    """A refusal proves that nothing was done: the ordinary failure question, and "again" does it."""
    with outside() as world:
        world.moods = [Mood(status=status, act=False)]

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            question = the_question(outcome)
            assert question.kind.value == "failure"
            assert [c["state"] for c in claims(layer)] == ["refused"]
            await layer.answer(question.id, "again", by="ann")
            assert (await layer.resume("r")).result() == 1
    assert world.counts() == {"pay": 1}


async def test_429_is_put_off_and_no_failure() -> None:
    """429 with Retry-After is a deferral: waited for, the same approach, not an attempt, nobody is asked."""
    with outside() as world:
        world.moods = [Mood(status=429, act=False, headers={"Retry-After": "7"}) for _ in range(3)]

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            numbers.append(attempt().number)
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        numbers: list[int] = []
        async with layers() as layer:
            before = layer.clock.now_us
            assert (await layer.run(one(), client="acme")).result() == 1
            assert layer.clock.now_us - before >= 21_000_000
            assert [t["outcome"] for t in tries(layer)] == ["deferred"] * 3
    assert numbers == [1, 1, 1, 1]
    assert world.counts() == {"pay": 1}


@pytest.mark.parametrize("error, asked", [(Retryable("busy"), []), (Fixable("no rights"), ["failure"]), (Fatal("gone"), [])])
async def test_raised_by_hand_means_not_done(error: Exception, asked: list[str]) -> None:
    """Retryable, Fixable and Fatal raised by the author say that it was not done, whatever was called before."""
    with outside() as world:
        errors = [error]

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            if errors:
                raise errors.pop()
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme")
            assert kinds(outcome) == asked
            assert (
                outcome.status
                is {0: RunStatus.DONE, 1: RunStatus.WAITING, 2: RunStatus.FAILED}[[Retryable, Fixable, Fatal].index(type(error))]
            )
            assert "unknown" not in [c["state"] for c in claims(layer)]


async def test_already_done_is_success() -> None:
    """AlreadyDone(value): the value is the result and the receipt, nothing is asked."""

    @step(effect="write", key="n")
    async def pay(n: str) -> dict[str, str]:
        raise AlreadyDone({"found": n})

    @workflow
    async def one(run: Run) -> dict[str, str]:
        return await pay("A")

    async with layers() as layer:
        assert (await layer.run(one(), client="acme")).result() == {"found": "A"}
        assert [(c["state"], c["receipt"]) for c in claims(layer)] == [("done", '{"found":"A"}')]


async def test_a_result_the_check_rejects_is_looked_for_and_kept() -> None:
    """check= rejecting what a write returned does not undo it: the probe says what is there, and that is the result."""
    with outside() as world:

        @step(effect="write", key="n", check=lambda made: made["n"] == "never")
        async def pay(n: str) -> dict[str, Any]:
            made: dict[str, Any] = await post(world, "pay", n, key=attempt().idempotency_key)
            return made

        @pay.probe
        async def find(n: str) -> dict[str, Any] | None:
            return await look(world, "pay")

        @workflow
        async def one(run: Run) -> dict[str, Any]:
            return await pay("A")

        async with layers() as layer:
            assert (await layer.run(one(), client="acme")).result()["n"] == 1
    assert world.counts() == {"pay": 1}


# -- idempotent -----------------------------------------------------------------------------------------------------------


async def test_idempotent_repeats_under_the_same_key_without_asking() -> None:
    """Where the other side honours the key, an unknown outcome is sent again with the same key; other approaches are not."""
    with outside(dedup=True) as world:
        world.moods = [DROP]

        @step(effect="write", key="n", idempotent="24h")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @pay.approach("by fax")
        async def fax(n: str) -> int:
            raise AssertionError("a promise about the key never licenses another approach")

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            assert (await layer.run(one(), client="acme", run_id="r")).result() == 1
            assert [(c["state"], c["tries"]) for c in claims(layer)] == [("done", 2)]
    assert world.calls == [("pay", "r/pay/A")] * 2
    assert world.counts() == {"pay": 1}


async def test_the_promise_runs_out_from_the_first_send() -> None:
    """A claim older than the other side's promise is asked about, however often it was repeated meanwhile."""
    with outside() as world:
        world.moods = [DROP, DROP, DROP]

        @step(effect="write", key="n", idempotent="1h", attempts=5, classify=lambda _: "fixable")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            assert kinds(outcome) == ["failure"], "young: a repeat would be safe, and fixable asks first"
            layer.clock.advance(40 * 60)
            await layer.answer_next("again")
            assert kinds(await layer.resume("r")) == ["failure"]
            layer.clock.advance(40 * 60)
            await layer.answer_next("again")
            assert kinds(await layer.resume("r")) == ["unknown_outcome"], "80 minutes after the first send"
    assert world.counts() == {"pay": 2}


async def test_an_unproven_claim_with_other_inputs_is_never_sent_as_a_second_one() -> None:
    """A promise is no proof: called with other inputs, a claim in doubt is asked about, not sent under a new key."""
    with outside() as world:
        world.moods = [DROP]

        @step(effect="write", key="n", idempotent="forever", classify=lambda _: "fixable")
        async def pay(n: str, amount: int) -> int:
            return int((await post(world, "pay", amount, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A", amounts[0])

        amounts = [10]
        async with layers() as layer:
            assert kinds(await layer.run(one(), client="acme", run_id="r")) == ["failure"]
            amounts[0] = 20
            await layer.answer_next("again")
            assert kinds(await layer.resume("r")) == ["unknown_outcome"]
    assert world.counts() == {"pay": 1}


async def test_a_refusal_of_the_repeat_proves_nothing_about_the_first() -> None:
    """Sent, in doubt, sent again under its key and refused: the first send may still have happened, so a person is asked."""
    with outside() as world:
        world.moods = [DROP, Mood(status=403, act=False)]

        @step(effect="write", key="n", idempotent="forever")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            assert kinds(outcome) == ["unknown_outcome"]
            assert [(c["state"], c["tries"]) for c in claims(layer)] == [("unknown", 2)]
            await layer.answer_next({"choice": "happened", "receipt": 1})
            assert (await layer.resume("r")).result() == 1
    assert world.counts() == {"pay": 1}


async def test_503_that_proved_not_done_counts_as_put_off() -> None:
    """503 says "not now" but proves nothing: once the probe has, it is a deferral and uses up no attempt."""
    with outside() as world:
        world.moods = [Mood(status=503, act=False, headers={"Retry-After": "2"}) for _ in range(3)]

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @pay.probe
        async def find(n: str) -> int | None:
            found = await look(world, "pay")
            return None if found is None else int(found["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            assert (await layer.run(one(), client="acme")).result() == 1
            assert [t["outcome"] for t in tries(layer)] == ["deferred"] * 3
    assert world.counts() == {"pay": 1}
