# ruff: noqa: D103 - the steps are as short as their names
"""The layer that ships for other people's tests: its clock moves only by hand or when there is nothing else to do."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from stepseven import Run, UnknownQuestion, attempt, step, testing, workflow

tries: list[str] = []


@step
async def shaky() -> int:
    tries.append("shaky")
    if attempt().number == 1:
        raise ConnectionResetError("went away")
    return 7


@step
async def large() -> str:
    return "x" * 300_000


@step(effect="write", key="n")
async def post(n: int) -> str:
    return attempt().idempotency_key


@workflow
async def long_one(run: Run) -> str:
    tries.clear()
    await shaky()
    await run.sleep(20)
    size = len(await large())
    await run.sleep(3 * 86_400)
    key = await post(size)
    answer = await run.ask("Go on?", options=["yes", "no"])
    return f"{key} {answer}"


async def test_weeks_pass_in_no_time() -> None:
    """Retries and short sleeps pass by themselves, long ones when the clock is moved; gates, large results and answers work."""
    async with testing.layer() as layer:
        began = layer.clock.now
        outcome = await layer.run(long_one, client="acme", run_id="r")
        assert (outcome.status, outcome.waiting_for) == ("waiting", "timer")
        assert timedelta(seconds=20) <= layer.clock.now - began < timedelta(seconds=60)
        assert len(tries) == 2
        assert (await layer.resume("r")).waiting_for == "timer"
        layer.clock.advance(timedelta(days=4))
        outcome = await layer.resume("r")
        assert outcome.waiting_for == "person"
        answered = await layer.answer_next("yes")
        assert (answered.answer, answered.answered_by) == ("yes", "test")
        assert (await layer.resume("r")).result() == "r/post/300000 yes"


async def test_wait_passes_too() -> None:
    """`wait=` is a wait like the others: when nothing comes, its time passes at once."""
    async with testing.layer() as layer:
        outcome = await asyncio.wait_for(layer.run(long_one, client="acme", wait=60), 30)
        assert outcome.waiting_for == "timer"


async def test_nothing_moves_without_a_hand() -> None:
    """With jumps=False even a short wait stands still until the clock is moved."""

    @workflow
    async def naps(run: Run) -> str:
        await run.sleep(5)
        return "woken"

    async with testing.layer(jumps=False) as layer:
        running = asyncio.create_task(layer.run(naps, client="acme"))
        done, _ = await asyncio.wait({running}, timeout=0.1)
        assert not done
        layer.clock.advance(5)
        assert (await asyncio.wait_for(running, 10)).result() == "woken"


async def test_two_runs_of_a_test_are_alike() -> None:
    """Time, chance and ids follow from the seed: the same test gives the same ids."""
    seen = []
    for _ in range(2):
        async with testing.layer(start=datetime(2026, 3, 1, tzinfo=UTC)) as layer:
            outcome = await layer.run(long_one, client="acme")
            seen.append((outcome.run_id, outcome.until_us))
    assert seen[0][0] == seen[1][0]
    assert seen[0][0].startswith("acme-2026-03-01-")


async def test_no_question_to_answer_is_said() -> None:
    """`answer_next` without an open question raises, instead of answering nothing."""
    async with testing.layer() as layer:
        with pytest.raises(UnknownQuestion):
            await layer.answer_next("yes")


def test_clock_goes_forward() -> None:
    """A clock needs a time zone and never goes back."""
    clock = testing.Clock()
    clock.advance(timedelta(hours=1))
    assert clock.now == datetime(2026, 1, 5, 10, tzinfo=UTC)
    with pytest.raises(ValueError, match="forward"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="time zone"):
        testing.Clock(datetime(2026, 1, 5))  # noqa: DTZ001 - what is refused
