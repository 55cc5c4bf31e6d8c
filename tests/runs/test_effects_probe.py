"""The probe: "there" counts at any time, "not there" only when nobody can send any more."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepseven import Conflict, NotYet, Run, attempt, step, workflow
from stepseven.errors import NoRun
from tests.runs.outside import DROP, Mood
from tests.runs.worldly import claims, kinds, layers, look, outside, post, the_question, until


async def test_not_found_counts_only_after_gate_and_settle() -> None:
    """After an attempt that ended in doubt, "not there" is believed only by a look that began `settle` seconds later."""
    with outside() as world:
        world.moods = [Mood(status=500, act=False)]

        @step(effect="write", key="n", settle=20)
        async def pay(n: str) -> int:
            sent.append(layer.clock.now_us)
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @pay.probe
        async def find(n: str) -> int | None:
            looked.append(layer.clock.now_us)
            assert (await look(world, "pay")) is None
            return None

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        sent: list[int] = []
        looked: list[int] = []
        async with layers() as layer:
            assert (await layer.run(one(), client="acme")).result() == 1
    assert len(looked) == 2, "once at once (it might be there), once when it counts"
    assert looked[1] - sent[0] >= 20_000_000
    assert sent[1] >= looked[1]
    assert world.counts() == {"pay": 1}


async def test_found_counts_at_any_time() -> None:
    """An effect that shows up during the settle time is found, not done again."""
    with outside() as world:
        world.moods = [Mood(status=500, late=True)]

        @step(effect="write", key="n", settle=20)
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @pay.probe
        async def find(n: str) -> int | None:
            found = await look(world, "pay")
            world.let_go()
            await until(lambda: world.effects)
            return None if found is None else int(found["n"])

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            assert (await layer.run(one(), client="acme")).result() == 1
    assert world.counts() == {"pay": 1}
    assert len(world.looks) == 2


async def test_accepted_and_done_late_is_not_done_twice() -> None:
    """202 and done after the client's time-out: within `settle` the probe sees it."""
    with outside() as world:
        world.moods = [Mood(status=202, late=True, hold=True)]

        @step(effect="write", key="n", settle=30)
        async def order(n: str) -> int:
            made = await post(world, "order", n, key=attempt().idempotency_key, timeout_s=0.1)
            return int(made["n"])

        @order.probe
        async def find(n: str) -> int | None:
            found = await look(world, "order")
            world.let_go()
            await until(lambda: world.effects)
            return None if found is None else int(found["n"])

        @workflow
        async def one(run: Run) -> int:
            return await order("A")

        async with layers() as layer:
            assert (await layer.run(one(), client="acme")).result() == 1
    assert world.counts() == {"order": 1}


async def test_not_yet_is_asked_again_and_ends_in_a_question() -> None:
    """NotYet: looked for again, for a quarter of an hour, then a person is asked. Nothing is sent meanwhile."""
    with outside() as world:
        world.moods = [Mood(status=500, act=False)]

        @step(effect="write", key="n")
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @pay.probe
        async def find(n: str) -> int | None:
            looks.append(layer.clock.now_us)
            raise NotYet

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        looks: list[int] = []
        async with layers() as layer:
            outcome = await layer.run(one(), client="acme")
            assert kinds(outcome) == ["unknown_outcome"]
    assert 10 < len(looks) < 60
    assert 15 * 60 <= (looks[-1] - looks[0]) / 1e6 < 17 * 60
    assert len(world.calls) == 1


@pytest.mark.parametrize("choice, count", [("same", 0), ("second", 1)])
async def test_something_else_under_our_key_is_a_conflict(choice: str, count: int) -> None:
    """Conflict(found): "same" takes what is there as the receipt, "second" does ours under a key of its own."""
    with outside(dedup=True) as world:
        world.moods = [Mood(status=500, act=False)]

        @step(effect="write", key="n")
        async def pay(n: str) -> dict[str, Any]:
            made: dict[str, Any] = await post(world, "pay", n, key=attempt().idempotency_key)
            return {"n": made["n"]}

        @pay.probe
        async def find(n: str) -> dict[str, Any] | None:
            if attempt().idempotency_key.endswith("#2"):
                return None
            raise Conflict({"n": 99})

        @workflow
        async def one(run: Run) -> dict[str, Any]:
            return await pay("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            assert kinds(outcome) == ["conflict"]
            await layer.answer(the_question(outcome).id, choice, by="ann")
            outcome = await layer.resume("r")
            assert outcome.result() == ({"n": 99} if choice == "same" else {"n": 1})
    assert world.counts() == ({"pay": count} if count else {})
    assert [key for _, key in world.calls] == ["r/pay/A", "r/pay/A#2"][: 1 + count]


async def test_a_failing_look_is_repeated_twice_then_a_person_is_asked() -> None:
    """A look that errs proves nothing: three in all, then the question; "again" is not a choice, "not there" does it."""
    with outside() as world:
        world.moods = [DROP]
        world.look_moods = [Mood(status=500)] * 3

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
            outcome = await layer.run(one(), client="acme", run_id="r")
            assert kinds(outcome) == ["unknown_outcome"]
            assert len(world.looks) == 3
            await layer.answer(the_question(outcome).id, {"choice": "happened", "receipt": 1}, by="ann")
            assert (await layer.resume("r")).result() == 1
    assert world.counts() == {"pay": 1}


async def test_a_look_that_hangs_is_given_up() -> None:
    """A probe has the step's time-out; hanging is an error, not a "no"."""
    with outside() as world:
        world.moods = [DROP]

        @step(effect="write", key="n", timeout=0.7)
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @pay.probe
        async def find(n: str) -> int | None:
            await asyncio.Event().wait()

        @workflow
        async def one(run: Run) -> int:
            return await pay("A")

        async with layers() as layer:
            assert kinds(await layer.run(one(), client="acme")) == ["unknown_outcome"]
    assert world.counts() == {"pay": 1}


async def test_a_step_without_a_result_has_a_probe_that_says_yes_or_no() -> None:
    """For `-> None` the probe returns bool; the record is then simply done."""
    with outside() as world:
        world.moods = [DROP, Mood(status=500, act=False)]

        @step(effect="write", key="n")
        async def notify(n: str) -> None:
            await post(world, "notify", n, key=attempt().idempotency_key)

        @notify.probe
        async def find(n: str) -> bool:
            return (await look(world, "notify")) is not None

        @workflow
        async def two(run: Run) -> list[None]:
            return [await notify("A"), await notify("B")]

        async with layers() as layer:
            assert (await layer.run(two(), client="acme")).result() == [None, None]
            assert [c["state"] for c in claims(layer)] == ["done", "done"]
    assert sorted(e["body"] for e in world.effects) == ["A", "B"]


async def test_a_probe_gets_the_claims_arguments_and_its_key() -> None:
    """What is looked for is what was claimed, not what is called now; found with other arguments, it is a conflict."""
    with outside() as world:
        world.moods = [DROP]
        world.look_moods = [Mood(status=500)] * 3

        @step(effect="write", key="n")
        async def pay(n: str, amount: int) -> dict[str, Any]:
            made: dict[str, Any] = await post(world, "pay", amount, key=attempt().idempotency_key)
            return made

        @pay.probe
        async def find(n: str, amount: int) -> dict[str, Any] | None:
            seen.append((amount, attempt().idempotency_key))
            return await look(world, "pay")

        @workflow
        async def one(run: Run) -> dict[str, Any]:
            return await pay("A", amounts[0])

        amounts, seen = [10], []
        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            assert kinds(outcome) == ["unknown_outcome"]
            amounts[0] = 20
            await layer.answer(the_question(outcome).id, {"choice": "happened", "receipt": {"n": 1}}, by="ann")
            outcome = await layer.resume("r")
            assert kinds(outcome) == ["conflict"], "it was done with 10; the call now says 20"
    assert set(seen) == {(10, "r/pay/A")}
    assert world.counts() == {"pay": 1}


async def test_steps_in_a_probe_look_afresh() -> None:
    """A step that a probe calls leaves no record: the second look sees what is there now."""
    with outside() as world:
        world.moods = [Mood(status=500, late=True)]

        @step
        async def listing() -> list[Any]:
            return [e["body"] for e in world.effects]

        @step(effect="write", key="n", settle=5)
        async def pay(n: str) -> str:
            return str((await post(world, "pay", n, key=attempt().idempotency_key))["body"])

        @pay.probe
        async def find(n: str) -> str | None:
            there = await listing()
            world.let_go()
            await until(lambda: world.effects)
            return n if n in there else None

        @workflow
        async def one(run: Run) -> str:
            return await pay("A")

        async with layers() as layer:
            assert (await layer.run(one(), client="acme")).result() == "A"
    assert world.counts() == {"pay": 1}


async def test_a_write_in_a_probe_is_refused() -> None:
    """A probe is read-only: a write step that it calls raises NoRun, and the look counts as failed."""
    with outside() as world:
        world.moods = [DROP]

        @step(effect="write", key="n")
        async def pay(n: str) -> str:
            return str((await post(world, "pay", n, key=attempt().idempotency_key))["body"])

        @pay.probe
        async def find(n: str) -> str | None:
            with pytest.raises(NoRun):
                await pay(n)
            return n

        @workflow
        async def one(run: Run) -> str:
            return await pay("A")

        async with layers() as layer:
            assert (await layer.run(one(), client="acme")).result() == "A"
    assert world.counts() == {"pay": 1}


# -- looking first --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("probe_first, wait_s, looks", [("resumed", 660, 1), ("resumed", 60, 0), ("never", 660, 0)])
async def test_after_a_long_wait_a_probe_looks_first(probe_first: Any, wait_s: int, looks: int) -> None:
    """After a wait of more than ten minutes somebody may have done it by hand: looked for first, and then not done."""
    with outside() as world:

        @step(effect="write", key="n", probe_first=probe_first)
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @pay.probe
        async def find(n: str) -> int | None:
            world.looks.append(n)
            return 77 if by_hand else None

        @workflow
        async def one(run: Run) -> list[int]:
            before = await pay("before")
            await run.ask("ok?", options=["yes"])
            return [before, await pay("after")]

        by_hand: list[int] = []
        async with layers() as layer:
            await layer.run(one(), client="acme", run_id="r")
            assert world.looks == [], "a first run does not look"
            layer.clock.advance(timedelta(seconds=wait_s))
            await layer.answer_next("yes")
            by_hand.append(1)
            outcome = await layer.run(one(), client="acme", run_id="r")  # goes on: no recovery unless the wait was long
            assert outcome.result() == ([1, 77] if looks else [1, 2])
    assert world.looks == ["after"] * looks
    assert world.counts() == {"pay": 1 if looks else 2}


@pytest.mark.parametrize("probe_first", ["resumed", "always"])
async def test_looking_first_and_finding_nothing_does_it_once(probe_first: Any) -> None:
    """In a resume (or always) the look comes first, and when nothing is there it is done, once; records cost no look."""
    with outside() as world:

        @step(effect="write", key="n", probe_first=probe_first)
        async def pay(n: str) -> int:
            return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

        @pay.probe
        async def find(n: str) -> int | None:
            world.looks.append(n)
            return None

        @workflow
        async def one(run: Run) -> list[int]:
            before = await pay("before")
            await run.ask("ok?", options=["yes"])
            return [before, await pay("after")]

        async with layers() as layer:
            await layer.run(one(), client="acme", run_id="r")
            await layer.answer_next("yes")
            assert (await layer.resume("r")).result() == [1, 2]
    assert world.looks == (["before", "after"] if probe_first == "always" else ["after"])
    assert world.counts() == {"pay": 2}
