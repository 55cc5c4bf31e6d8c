"""What is left of a live run: read where its code stands, and told wherever somebody asks what comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stepseven import Fatal, Layer, Run, step, workflow
from tests.runs.tools import url

pytestmark = pytest.mark.slow  # on PostgreSQL with `make soak`


@step(name="ahead.pull")
async def pull(x: int = 0) -> int:
    """A read."""
    return x


@step(name="ahead.score", attempts=1)
async def score(x: int = 0) -> int:
    """A read that has nothing for some."""
    if x < 0:
        raise Fatal("nobody has it")
    return x


@step(name="ahead.file", effect="write", key="x")
async def file(x: int = 0) -> int:
    """A write."""
    return x


@step(name="ahead.mail", effect="irreversible", key="x")
async def mail(x: int = 0) -> int:
    """Irreversible."""
    return x


@step(name="ahead.lapsed", attempts=1)
async def lapsed(x: int = 0) -> int:
    """A read that fails."""
    raise PermissionError(403, f"lapsed {x}")


@pytest.fixture
async def layer(tmp_path: Path) -> AsyncIterator[Layer]:
    """A layer on a store of its own."""
    async with Layer(url(tmp_path)) as opened:
        yield opened


async def left(layer: Layer, flow: Any, status: str = "waiting") -> tuple[str | None, list[str]]:
    """Run until it is put away; the next step and what remains, as the checkpoint tells them."""
    outcome = await asyncio.wait_for(layer.run(flow, client="acme", run_id="r"), 50)
    assert outcome.status == status, outcome
    told = await layer.checkpoint("r")
    return told["next_step"], [name.removeprefix("ahead.") for name in told["remaining"]]


async def test_what_is_left_after_an_ask(layer: Layer) -> None:
    """A run that waits for an answer has ahead what its code calls after it, and not the branch that was not taken."""

    @workflow
    async def flow(run: Run) -> int:
        x = await pull(1)
        if x:
            await run.ask("Go on?")
            x = await score(x)
        else:
            await mail(x)
        return await file(x)

    assert await left(layer, flow()) == ("ahead.score", ["score", "file"])


async def test_a_loop_has_its_steps_ahead_again(layer: Layer) -> None:
    """Steps that are on record are ahead again where their loop comes round."""

    @workflow
    async def flow(run: Run) -> None:
        for n in range(3):
            await pull(n)
            await run.ask(f"Go on after {n}?")
            await file(n)

    assert await left(layer, flow()) == ("ahead.file", ["file", "pull"])


async def test_the_step_that_is_waited_on_is_next(layer: Layer) -> None:
    """A step in trouble is the next one, and remains; one that is done is not among what remains."""

    @workflow
    async def flow(run: Run) -> None:
        await pull(1)
        await lapsed(2)
        await file(3)

    assert await left(layer, flow()) == ("ahead.lapsed", ["lapsed", "file"])


async def test_a_proposal_is_next(layer: Layer) -> None:
    """An irreversible step that waits for approval is the next one."""

    @workflow
    async def flow(run: Run) -> None:
        await mail(await pull(1))
        await file(3)

    assert await left(layer, flow()) == ("ahead.mail", ["mail", "file"])


async def test_items_that_wait_for_their_turn_are_ahead(layer: Layer) -> None:
    """Of a map with few places the items that were not begun have all their steps ahead."""

    @workflow
    async def flow(run: Run) -> None:
        async def one(n: int) -> None:
            await pull(n)
            await lapsed(n)
            await score(n)

        await run.map(one, range(6), concurrency=1)
        await file(1)

    following, remaining = await left(layer, flow())
    assert following == "ahead.lapsed"
    assert sorted(remaining) == ["file", "lapsed", "pull", "score"]


async def test_tasks_of_a_group_each_tell_what_they_have_left(layer: Layer) -> None:
    """What waits in different places of the code has all of that ahead, and what comes after it."""

    @workflow
    async def flow(run: Run) -> None:
        async def a() -> None:
            await run.ask("A?")
            await score(1)

        async def b() -> None:
            await run.ask("B?")
            await pull(1)

        async with asyncio.TaskGroup() as group:
            group.create_task(a())
            group.create_task(b())
        await file(1)

    assert await left(layer, flow()) == ("ahead.score", ["score", "pull", "file"])


async def test_what_cannot_be_seen_is_said(layer: Layer) -> None:
    """A call that cannot be seen through is among what remains as ``unknown``; the next step is one with a name."""

    @workflow
    async def flow(run: Run) -> None:
        name = await run.ask("Which?", options=["pull", "score"])
        await globals()[name](1)
        await file(1)

    assert await left(layer, flow()) == ("ahead.file", ["unknown", "file"])


async def test_a_failed_run_tells_what_was_not_reached(layer: Layer) -> None:
    """Of a run that ended for good it stays known what its code would have called."""

    @workflow
    async def flow(run: Run) -> None:
        await pull(1)
        await score(-1)
        await file(1)

    _, remaining = await left(layer, flow(), "failed")
    assert "file" in remaining
    assert "pull" not in remaining


async def test_a_body_that_broke_tells_what_comes_after_that(layer: Layer) -> None:
    """Code that raised has ahead what it would have called from there on."""

    @workflow
    async def flow(run: Run) -> None:
        numbers = {"a": await pull(1)}
        await score(numbers["b"])
        await file(1)

    assert await left(layer, flow()) == ("ahead.score", ["score", "file"])


async def test_before_the_body_everything_is_ahead(layer: Layer) -> None:
    """A run that waits for a required fact has its whole body ahead."""

    @workflow(requires="owner")
    async def flow(run: Run) -> None:
        await pull(1)
        await file(1)

    assert await left(layer, flow()) == ("ahead.pull", ["pull", "file"])


async def test_a_question_tells_what_comes_next(layer: Layer) -> None:
    """The question that a failing step asks names what comes after it, and not what is done."""

    @workflow
    async def flow(run: Run) -> None:
        await pull(1)
        await lapsed(2)
        await score(1)
        await file(1)

    await left(layer, flow())
    (question,) = await layer.questions(run_id="r")
    assert question.context["next"] == ["ahead.score", "ahead.file"]


async def test_a_brief_tells_what_comes_next(layer: Layer) -> None:
    """Asked in the middle of its code, a run knows what comes after that line."""

    @workflow
    async def flow(run: Run) -> str:
        await pull(1)
        told = run.brief(1000)
        await score(1)
        return told

    outcome = await layer.run(flow(), client="acme", run_id="r")
    assert "ahead.score" in outcome.result()
    assert "ahead.pull" not in outcome.result().partition("ahead.score")[2]


async def test_parking_with_many_items_is_quick(layer: Layer) -> None:
    """Hundreds of items that stand alike are read once, not one by one."""
    from stepseven.runtime import outline
    from stepseven.runtime.ahead import Ahead

    times: list[float] = []
    real = outline.look

    def timed(ex: Any) -> Ahead:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            return real(ex)
        finally:
            times.append(loop.time() - begun)

    @workflow
    async def flow(run: Run) -> None:
        async def one(n: int) -> None:
            await run.ask(f"Number {n}?")
            await pull(n)

        await run.map(one, range(1000), concurrency=1000)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outline, "look", timed)
        assert await left(layer, flow()) == ("ahead.pull", ["pull"])
    assert min(times) < 1.0
