"""A run's plan with the prices of earlier runs, from the store to the text: and looking changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepseven import Cost, Run, attempt, step, testing, workflow
from stepseven.decide.plan import Do
from tests.servers import databases

TABLES = ("run", "step", "attempt", "effect", "question", "fact", "event", "wait", "recovery")


@step(cost=Cost(usd=0.5), summary=lambda n: f"{n} tickets")
async def pull(n: int) -> int:
    """Costs what it declares."""
    return n


@step(cost=Cost(usd=1))
async def draft(part: str) -> str:
    """Costs less than it declares."""
    attempt().spend(usd=0.25)
    return part


@step(effect="write", key="n", cost=Cost(usd=0))
async def post(n: int) -> str:
    """Free."""
    return f"R-{n}"


@workflow(name="priced.offer")
async def offer(run: Run, n: int) -> str:
    """Reads, asks, drafts in a loop, writes."""
    await pull(n)
    yes = await run.ask("Go on?", options=["yes", "no"])
    texts = [await draft(f"{yes} {part}") for part in ("a", "b", "c")]
    return await post(len(texts))


async def test_a_plan_has_the_prices_of_earlier_runs(tmp_path: Path) -> None:
    """How often a loop runs and what it costs is what it was before; without earlier runs it is what is declared, and unknown."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        first = (await layer.run(offer(n=1), client="acme")).run_id
        [path] = (await layer.plan(first)).paths
        assert (path.usd, path.usd_at_most, path.questions) == (None, None, 1)
        assert "draft" in " ".join(path.unknown)

        other = (await layer.run(offer(n=2), client="globex")).run_id
        [asked] = await layer.questions(run_id=first)
        await layer.answer(asked.id, "yes", by="ann")
        await layer.resume(first)
        made = await layer.plan(other)
        [path] = made.paths
        drafts = next(s for s in path.steps if s.step == "draft")
        assert (drafts.about, drafts.at_most, drafts.n, drafts.usd) == (3, None, 1, 0.75)
        assert path.usd == 0.75
        assert next((s.step, s.do, s.usd) for s in path.steps if s.do is Do.REUSE) == ("pull", Do.REUSE, 0.5)
        assert "(from 1 earlier run)" in str(made) or "about 3×" in str(made)


async def test_looking_changes_nothing(tmp_path: Path) -> None:
    """No row of any table is another one, and none is new."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        run_id = (await layer.run(offer(n=1), client="acme")).run_id

        def everything() -> list[Any]:
            return [sorted(map(repr, databases.rows(tmp_path, f"SELECT * FROM {table}"))) for table in TABLES]

        before = everything()
        assert (await layer.plan(run_id)).steps
        assert everything() == before


async def test_what_was_met_of_a_loop_is_not_expected_again(tmp_path: Path) -> None:
    """Three drafts are usual: of a run that is about to make the first one, two more are expected."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        for client in ("acme", "globex"):
            await layer.run(offer(n=1), client=client, run_id=client)
            await layer.answer_next("yes")
        await layer.resume("acme")
        [path] = (await layer.plan("globex")).paths
        assert sum(s.about or 0 for s in path.steps if s.step == "draft") == 3
        assert path.usd == 0.75


@pytest.mark.parametrize("answered", [False, True])
async def test_of_an_ended_run_there_is_nothing_to_plan(tmp_path: Path, answered: bool) -> None:
    """It says so."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        run_id = (await layer.run(offer(n=1), client="acme")).run_id
        if answered:
            await layer.answer_next("yes")
            await layer.resume(run_id)
        made = await layer.plan(run_id)
        assert bool(made.paths) is not answered
        assert ("It has ended" in str(made)) is answered
