"""A task gives what it counted and found out back as the last thing it does: who awaits it has it, also long afterwards."""

from __future__ import annotations

import asyncio
import gc
import types
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from stepseven import Cost, Layer, Run, step, testing, workflow
from stepseven.runtime.place import Known, Place, TaskFactory, install, place
from tests.runs.tools import records, url


@step(name="give_back.slow")
async def slow(text: str) -> str:
    """Takes a turn of the loop the first time, none in a replay."""
    await asyncio.sleep(0.001)
    return text


async def twice(layer: Layer, call: Any) -> tuple[Any, Any]:
    """What a workflow that notes, and then asks, saw in its first execution and in the replay."""
    seen.clear()
    layer.client("acme").set("k", "theirs", source="crm")
    outcome = await layer.run(call, client="acme", run_id="r")
    await layer.answer(outcome.questions[0].id, "yes", by="ann")
    await layer.resume("r")
    first, again = seen
    return first, again


seen: list[Any] = []


@pytest.mark.parametrize("turns", range(8))
async def test_a_task_that_was_over_when_it_was_awaited_has_given_back(turns: int) -> None:
    """However many turns of the loop pass before the await: other numbers and other words after it, and the same in a replay."""

    @workflow(name="give_back.tasks")
    async def flow(run: Run) -> None:
        async def inner() -> str:
            await slow("a")
            run.client.set("k", "own")
            return str(run.uuid())

        run.client.get("k")
        task = asyncio.create_task(inner())
        for _ in range(turns):
            await asyncio.sleep(0)
        seen.append([await task, str(run.uuid()), run.client.get("k")])
        await run.ask("go on?")

    async with testing.layer() as layer:
        first, again = await twice(layer, flow())
        assert first == again
        assert first[0] != first[1]
        assert first[2] == "own"


async def test_what_a_map_s_item_said_is_known_after_the_map_also_in_a_replay() -> None:
    """A paid turn made from it is paid once."""
    paid = []

    @step(name="give_back.turn", cost=Cost(usd=1))
    async def turn(prompt: str) -> str:
        paid.append(prompt)
        return prompt

    @workflow(name="give_back.map")
    async def flow(run: Run) -> None:
        async def item(n: int) -> int:
            await slow(f"a{n}")
            run.client.set("k", "own")
            return n

        run.client.get("k")
        await run.map(item, [0, 1])
        seen.append(await turn(f"{run.client.get('k')}"))
        await run.ask("go on?")

    async with testing.layer() as layer:
        assert await twice(layer, flow()) == ("own", "own")
        assert paid == ["own"]


async def test_a_task_that_outlives_its_creator_gives_back_to_whom_is_left() -> None:
    """A task hands out one that it has begun: who awaits that has its numbers."""

    @workflow(name="give_back.left")
    async def flow(run: Run) -> None:
        async def inner() -> str:
            await slow("a")
            return str(run.uuid())

        async def outer() -> asyncio.Task[str]:
            return asyncio.create_task(inner())

        task = await asyncio.create_task(outer())
        seen.append([await task, str(run.uuid())])
        await run.ask("go on?")

    async with testing.layer() as layer:
        first, again = await twice(layer, flow())
        assert first == again
        assert first[0] != first[1]


async def test_a_call_made_a_task_gives_back_too() -> None:
    """A step's call, and one of the run's handle, given to ``create_task`` as they are."""

    @workflow(name="give_back.calls")
    async def flow(run: Run) -> None:
        found = await asyncio.gather(asyncio.create_task(slow("a")), run.map(slow, ["b"]), asyncio.create_task(slow("a")))
        seen.append([*found, await run.wait_for("k")])
        await asyncio.create_task(run.ask("go on?"))

    async with testing.layer() as layer:
        first, again = await twice(layer, flow())
        assert first == again == ["a", ["b"], "a", "theirs"]


@pytest.mark.filterwarnings("error")
async def test_a_task_cancelled_before_its_first_step_leaves_no_warning(tmp_path: Path) -> None:
    """Neither a coroutine nor a call of a step: nothing ran, nothing is reported as never awaited."""

    @workflow(name="give_back.cancelled")
    async def flow(run: Run) -> list[str]:
        async def inner() -> None:
            run.uuid()

        tasks = [asyncio.create_task(inner()), asyncio.create_task(slow("a")), asyncio.create_task(run.ask("never?"))]
        for task in tasks:
            task.cancel()
        return [type(found).__name__ for found in await asyncio.gather(*tasks, return_exceptions=True)]

    with warnings.catch_warnings(record=True) as caught:
        async with Layer(url(tmp_path)) as layer:
            assert (await layer.run(flow(), client="acme", run_id="r")).result() == ["CancelledError"] * 3
        gc.collect()
    assert [str(w.message) for w in caught] == []
    assert records(tmp_path, "r") == []


def counting() -> Place:
    """A place in a run that takes every task as its own."""
    return Place(types.SimpleNamespace(tick=0, adopt=lambda _: None, refreshed={}), "")  # type: ignore[arg-type]


async def test_what_is_no_coroutine_is_refused_as_asyncio_does() -> None:
    """A future is not taken for one; a plain generator is driven where asyncio drives it, and gives back."""

    def old() -> Generator[None, None, int]:
        yield
        return (place.get() or counting()).number("a")

    loop = asyncio.get_running_loop()
    before, here = loop.get_task_factory(), counting()
    install(loop)
    token = place.set(here)
    try:
        with pytest.raises(TypeError, match="coroutine was expected"):
            await asyncio.create_task(loop.create_future())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="coroutine was expected"):
            await asyncio.create_task(7)  # type: ignore[arg-type]
        made = types.coroutine(old)()
        assert await asyncio.create_task(made) == 1  # type: ignore[arg-type]
        assert here.number("a") == 2
        if asyncio.iscoroutine(old()):  # until Python 3.12
            assert await asyncio.create_task(old()) == 3  # type: ignore[arg-type]
            await asyncio.sleep(0)
            assert here.number("a") == 4
    finally:
        place.reset(token)
        loop.set_task_factory(before)


async def test_a_task_keeps_its_coroutine_s_name() -> None:
    """People see it in stacks and warnings; an error passes as it is."""

    async def named() -> None:
        raise LookupError("gone")

    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(TaskFactory(before))
    token = place.set(counting())
    try:
        task = asyncio.create_task(named())
        assert "named" in repr(task)
        with pytest.raises(LookupError, match="gone"):
            await task
    finally:
        place.reset(token)
        loop.set_task_factory(before)


def test_giving_back_twice_changes_nothing() -> None:
    """What the creator said since is not overwritten by what its task said before."""
    here = counting()
    task = Place(here.execution, "", parent=here)
    task.number("a")
    task.found_out("k", Known("task", 0))
    task.give_back()
    here.found_out("k", Known("creator", 0))
    task.give_back()
    assert here.facts["k"].value == "creator"
    assert here.number("a") == 2
