"""A question shown whole: its figures are those of the look, and what came since it was asked is said."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stepseven import Cost, Fixable, Limits, Run, step, testing, workflow
from stepseven.cli import main
from tests.servers import databases

_clock: list[Any] = []


@step(effect="write", key="n", cost=Cost(usd=0.25))
async def post_line(n: int) -> str:
    """The first one needs a person; the others do not wait for it."""
    _clock[-1].advance(1)
    if n == 0:
        raise Fixable("no VAT number")
    return f"R-{n}"


@workflow(name="meanwhile.lines", limits=Limits(usd=5))
async def lines(run: Run) -> list[str | None]:
    """Four lines, one after the other."""
    return await run.map(post_line, range(4), concurrency=1)


def test_a_question_tells_what_came_since_it_was_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked when nothing was done: by now three lines are posted and paid, and none of that was in the question's text."""
    url = databases.url(tmp_path)

    async def ran() -> str:
        async with testing.layer(url) as layer:
            _clock.append(layer.clock)
            await layer.run(lines(), client="acme", run_id="r")
            [asked] = await layer.questions(run_id="r")
            assert asked.context["done"] == []
            return asked.id

    question = asyncio.run(ran())
    assert main(["inbox", question, "--store", url]) == 0
    page = capsys.readouterr().out
    assert "spent $1.00 of $5.00\n" in page  # the failed try has cost what it declares
    assert "\n  Since     3 more results since it was asked\n" in page
    assert main(["inbox", "--store", url]) == 0  # alone, it is shown whole as well
    assert "3 more results" in capsys.readouterr().out
