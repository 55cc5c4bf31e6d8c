"""The view `checkpoint`: what it says is done is done, and what it leaves out it says it left out."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from stepseven import Cost, Layer, Run, UnknownRun, step, workflow


@step(name="checkpoint.look")
async def look(x: int) -> int:
    """A step that fails for one of its arguments."""
    if x == 3:
        raise ValueError("no")
    return x


async def document(path: Path, flow: Any) -> dict[str, Any]:
    """The checkpoint after one execution."""
    async with Layer(f"sqlite:///{path / 's7.db'}") as layer:
        await layer.run(flow(), client="acme", run_id="r")
        return await layer.checkpoint("r")


async def test_items_of_a_map_are_counted_and_not_calls(tmp_path: Path) -> None:
    """An item that calls a step twice is one of the items, and done when both calls are."""

    @workflow(name="checkpoint.twice")
    async def flow(run: Run) -> None:
        async def item(x: int) -> None:
            await look(x + 10)
            await look(x)

        await run.map(item, [1, 2, 3, 4])

    found = await document(tmp_path, flow)
    assert (found["artifacts"]["checkpoint.look"]["done"], found["artifacts"]["checkpoint.look"]["of"]) == (4, 4)
    assert found["steps_complete"] == []  # one call of it failed: a person is asked
    assert len(found["open_questions"]) == 1


async def test_a_step_within_and_without_a_map_is_complete_when_every_item_is(tmp_path: Path) -> None:
    """Calls outside a map do not stand for its open items; "of" is told only of a step that is in maps alone."""
    items = [[0, 1, 2, 3]]

    @workflow(name="checkpoint.mixed")
    async def flow(run: Run) -> None:
        await look(10)
        await look(11)
        await run.map(look, items[0])

    found = await document(tmp_path, flow)
    assert found["steps_complete"] == []
    assert "of" not in found["artifacts"]["checkpoint.look"]
    (tmp_path / "b").mkdir()
    items[0] = [0, 1, 2]
    assert (await document(tmp_path / "b", flow))["steps_complete"] == ["checkpoint.look"]


async def test_maps_within_maps_count_the_outer_items(tmp_path: Path) -> None:
    """Of a step in a map in a map the outer items are told that are through with it; it is complete when none is open."""
    holds = [True]

    @workflow(name="checkpoint.nested")
    async def flow(run: Run) -> None:
        async def outer(x: int) -> None:
            if x == 1 and holds[0]:
                await run.ask("go on?")
            await run.map(look, [x * 10, x * 10 + 1])

        await run.map(outer, [0, 1], concurrency=1)

    found = await document(tmp_path, flow)
    assert (found["artifacts"]["checkpoint.look"]["done"], found["artifacts"]["checkpoint.look"]["of"]) == (1, 2)
    assert found["steps_complete"] == []
    (tmp_path / "b").mkdir()
    holds[0] = False
    found = await document(tmp_path / "b", flow)
    assert (found["artifacts"]["checkpoint.look"]["done"], found["artifacts"]["checkpoint.look"]["of"]) == (2, 2)
    assert found["steps_complete"] == ["checkpoint.look"]


def checkpoint(path: Path, more: int) -> dict[str, Any]:
    """The checkpoint of a run with as much of everything as is shown, and *more*."""
    connection = sqlite3.connect(path / "s7.db")
    try:
        (no,) = connection.execute("SELECT no FROM run").fetchone()
        for i in range(60 + more):
            connection.execute(
                "INSERT INTO step (id, branch, name, key, generation, state, result, started_us) "
                "VALUES (?, '', ?, 'k', 1, 'done', '1', 1)",
                ((no << 24) + 100 + i, f"step_{i}"),
            )
        for i in range(20 + more):
            connection.execute(
                "INSERT INTO attempt (run_no, branch, name, key, n, outcome, started_us) VALUES (?, '', 'x', ?, 1, 'failed', ?)",
                (no, str(i), i),
            )
        for i in range(30 + more):
            for status in ("open", "answered")[i >= 20 + more :]:
                connection.execute(
                    "INSERT INTO question (id, run_no, client_id, branch, key, n, kind, text, options, context, asked_seq, "
                    "status, answer, answered_us, created_us) "
                    "VALUES (?, ?, 'acme', '', ?, 1, 'ask', 'ok?', '[]', '{}', 1, ?, '1', ?, ?)",
                    (f"{status}{i}", no, f"{status}{i}", status, i, i),
                )
        for i in range(40 + more):
            connection.execute(
                "INSERT INTO fact (client_id, key, version, value, run_id, set_us) VALUES ('acme', ?, 1, '1', 'r', 1)", (str(i),)
            )
        connection.commit()
        (text,) = connection.execute("SELECT document FROM checkpoint").fetchone()
    finally:
        connection.close()
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("more", [0, 1])
async def test_what_is_cut_is_marked(tmp_path: Path, more: int) -> None:
    """More names, failures, questions, decisions or facts than are shown: each ends with "…"; with fewer there is none."""

    @workflow(name="checkpoint.much")
    async def flow(run: Run) -> None:
        pass

    await document(tmp_path, flow)
    found = checkpoint(tmp_path, more)
    for name, most in (
        ("steps_complete", 60), ("artifacts", 60), ("failures", 20), ("open_questions", 20), ("decisions", 30), ("facts", 40),
    ):  # fmt: skip
        assert (name, len(found[name]), list(found[name])[-1] == "…") == (name, most + more, bool(more))


@step(name="checkpoint.priced", cost=Cost(usd=5))
async def priced() -> int:
    """Costs something."""
    return 1


@workflow(name="checkpoint.below")
async def below(run: Run) -> int:
    """Costs something, then waits."""
    await priced()
    await run.ask("Go on?")
    return 1


async def test_what_children_cost_counts_from_the_start(tmp_path: Path) -> None:
    """A child's money is in its parent's checkpoint before its end is on record, and where it never will be; then once."""

    @workflow(name="checkpoint.above")
    async def above(run: Run) -> int:
        await priced()
        return await run.start(below())

    async with Layer(f"sqlite:///{tmp_path / 's7.db'}") as layer:
        for run_id in ("waits", "ends", "cancelled"):
            outcome = await layer.run(above(), client="acme", run_id=run_id)
            assert (await layer.checkpoint(run_id))["spend"] == {"usd": 10.0, "tokens": 0}
            assert outcome.spend.usd == 10.0
            if run_id == "ends":
                await layer.answer(outcome.questions[0].id, "yes", by="ann")
                assert (await layer.resume(run_id)).status == "done"
            elif run_id == "cancelled":
                await layer.cancel(run_id, reason="enough", by="ann")
                await layer.resume(run_id)
            assert (await layer.checkpoint(run_id))["spend"]["usd"] == 10.0


async def test_a_run_that_is_not_there_has_no_checkpoint(tmp_path: Path) -> None:
    """The error names it."""
    async with Layer(f"sqlite:///{tmp_path / 's7.db'}") as layer:
        with pytest.raises(UnknownRun, match="nobody"):
            await layer.checkpoint("nobody")


async def test_a_try_that_is_not_over_is_not_complete(tmp_path: Path) -> None:
    """A step of which one call is done and another was tried since, and is not done, is not listed as complete."""

    @workflow(name="checkpoint.under_way")
    async def flow(run: Run) -> None:
        await look(1)

    assert (await document(tmp_path, flow))["steps_complete"] == ["checkpoint.look"]
    connection = sqlite3.connect(tmp_path / "s7.db")
    try:
        connection.execute(
            "INSERT INTO attempt (run_no, branch, name, key, n, outcome, started_us) "
            "SELECT no, '', 'checkpoint.look', 'other', 1, 'failed', ended_us + 1 FROM run"
        )
        (text,) = connection.execute("SELECT document FROM checkpoint").fetchone()
    finally:
        connection.close()
    assert json.loads(text)["steps_complete"] == []
