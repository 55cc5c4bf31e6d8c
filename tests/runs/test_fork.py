"""A fork: what it is given is checked, and what people had decided before its step still counts."""

from __future__ import annotations

import pytest

from stepseven import NotRecordable, Run, step, testing, workflow

ran: list[str] = []


@step
async def gather(name: str) -> str:
    """Something before."""
    ran.append(name)
    return name


@step
async def finish(parts: list[str]) -> str:
    """Something after."""
    ran.append("finish")
    return " ".join(parts)


@workflow
async def decided(run: Run, name: str, times: int = 1) -> str:
    """Three ways in which people decide, then a step."""
    first = await gather(name)
    said = await run.ask("And?", default="nobody", deadline=60)
    value = await run.approve("So?", about={"n": times})
    return await finish([first, said, str(value["n"])])


async def done(layer: testing.TestLayer) -> None:
    """A finished run ``r``."""
    ran.clear()
    await layer.run(decided(name="a"), client="acme", run_id="r")
    layer.clock.advance(61)
    await layer.resume("r")
    await layer.answer_next({"choice": "approve", "inputs": {"n": 5}}, by="ann")
    assert (await layer.resume("r")).result() == "a nobody 5"


async def test_what_was_decided_before_still_counts() -> None:
    """Silence that had become its default, and an edited approval, are not asked for again by a fork behind them."""
    async with testing.layer() as layer:
        await done(layer)
        fork = await layer.fork("r", from_step="finish")
        assert (await layer.resume(fork.run_id)).result() == "a nobody 5"
        assert ran == ["a", "finish", "finish"]


@pytest.mark.parametrize("inputs, error", [({"nme": "b"}, ValueError), ({"times": "many"}, NotRecordable)])
async def test_inputs_it_does_not_take_are_refused(inputs: dict[str, object], error: type[Exception]) -> None:
    """A fork with an unknown input, or one of another type, is refused with its name; nothing is made."""
    async with testing.layer() as layer:
        await done(layer)
        with pytest.raises(error, match=next(iter(inputs))):
            await layer.fork("r", from_step="finish", inputs=inputs)
        assert [r.run_id for r in await layer.runs()] == ["r"]


async def test_a_fork_has_what_stands_and_not_what_was_replaced() -> None:
    """A result that was made anew is the one the fork begins with, also where its step got other arguments."""
    says = ["one"]

    @step
    async def first(c: str) -> str:
        return says[0]

    @step
    async def second(x: str) -> str:
        return f"second {x}"

    @step
    async def third(x: str) -> str:
        return f"third {x}"

    @workflow
    async def three(run: Run) -> str:
        said = await third(await second(await first("c")))
        return said + str(await run.ask("Go on?"))

    async with testing.layer() as layer:
        await layer.run(three(), client="acme", run_id="r")
        says[0] = "two"
        await layer.resume("r", rerun=["first"])
        says[0] = "three"
        fork = await layer.fork("r", from_step="third")
        outcome = await layer.resume(fork.run_id)
        await layer.answer(outcome.questions[0].id, "!", by="ann")
        assert (await layer.resume(fork.run_id)).result() == "third second two!"
