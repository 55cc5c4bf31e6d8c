"""Who may report about a run that is executed outside: each condition of its statements taken away, and the harm is seen."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from stepseven import testing
from stepseven.decide.external import Begin
from stepseven.errors import Superseded
from stepseven.transitions import begins, external
from tests.chaos.scene import FENCE, LIVE, speak
from tests.runs.executor import Outside
from tests.servers import databases


@pytest.fixture
async def out(tmp_path: Path) -> AsyncIterator[Outside]:
    """A run and its executor."""
    async with testing.layer(databases.url(tmp_path), seed=1) as layer:
        made = Outside(layer)
        await made.admit("fetch")
        yield made


@contextmanager
def weakened(out: Outside, name: str, condition: str) -> Iterator[None]:
    """A statement without one of its conditions."""
    store = out.layer.store
    kept = store.sql
    text, times = re.subn(condition, lambda found: f"({found[0]} OR 1 = 1)", getattr(kept, name))
    assert times, f"{name} has no condition {condition}"
    speak(store, replace(kept, **{name: text}))
    yield
    speak(store, kept)


async def begin_with_an_old_sight(out: Outside) -> bool:
    """The run was read, then resumed by another executor, and only then the step is begun: whether it was."""
    seen = await out.run()
    await out.resume()
    _, made = out.made()
    try:
        await out.layer.store.write(
            lambda tx: begins.begin(tx, seen, Begin(step="fetch"), made=made, now_us=out.now_us), durable=True, client="acme"
        )
    except Superseded:
        return False
    return True


async def test_who_saw_the_run_before_a_resume_begins_nothing(out: Outside) -> None:
    """``hold_external`` names the fence, and so does what is written after it: two executors never go on with one run."""
    assert not await begin_with_an_old_sight(out)
    with weakened(out, "hold_external", FENCE):
        assert not await begin_with_an_old_sight(out)
        with weakened(out, "begin_attempt", FENCE):
            assert await begin_with_an_old_sight(out)


async def test_one_of_two_resumes_wins(out: Outside) -> None:
    """``resume_external`` names the fence: of two that saw the same run one supersedes, the other finds it done."""

    async def fences() -> list[int]:
        seen, found = await out.run(), []
        for who in ("ann", "bob"):
            row = await out.layer.store.write(
                lambda tx, who=who: external.resume(tx, seen, f"resumed by {who}", out.now_us), durable=True, client="acme"
            )
            found.append(row["fence"] - seen["fence"])
        return found

    assert await fences() == [1, 1]
    with weakened(out, "resume_external", FENCE):
        assert await fences() == [1, 2]


async def test_what_is_ending_is_not_resumed(out: Outside) -> None:
    """``resume_external`` leaves a run alone that is about to end: its last write's end is still to come."""
    await out.begin("fetch", effect="write")
    await out.layer.cancel("out-1", reason="no", by="ann")
    await out.resume()
    assert (await out.run())["status"] == "cancelling"
    with weakened(out, "resume_external", LIVE):
        await out.resume()
        assert (await out.run())["status"] == "running"
