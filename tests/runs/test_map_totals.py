"""What is done of a map is never more than its total: items that it has no more are not counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepseven import Fixable, Layer, Run, step, testing, workflow
from stepseven.cli import _page
from stepseven.cli._live import Live
from stepseven.cli._read import view
from tests.servers import databases

pytestmark = pytest.mark.anyio

world = SimpleNamespace(down=set(), brief="")


@step(summary=lambda n: f"item {n}")
async def tallying(n: Any) -> Any:
    """An item."""
    if n in world.down:
        raise Fixable(f"{n} is down")
    return n


@step
async def weighing(n: Any) -> Any:
    """The same item once more."""
    return n


async def both(n: Any) -> Any:
    """Two steps of one item."""
    return await weighing(await tallying(n))


@workflow
async def tallies(run: Run) -> Any:
    """A map over what a fact says."""
    found = await run.map(both, run.client.get("items"), key="all")
    await run.ask("Good?")
    world.brief = run.brief(2_000)
    return found


def shown(found: Any) -> list[str]:
    """The page of a run."""
    return [line.plain for line in _page.page(found, columns=80, most=3, also=())]


async def test_items_that_are_no_more_are_not_counted(tmp_path: Path) -> None:
    """Four were done of four; three are left after a refresh, one of them new: "2 of 3" while that fails, then "3 of 3"."""
    world.down = {9}
    async with testing.layer(databases.url(tmp_path)) as layer:
        layer.client("acme").set("items", [1, 2, 3, 4], source="crm")
        await layer.run(tallies(), client="acme", run_id="r")
        before = await layer.checkpoint("r")
        assert {n: (m["done"], m["of"]) for n, m in before["artifacts"].items()} == {"tallying": (4, 4), "weighing": (4, 4)}
        layer.client("acme").set("items", [1, 9, 2], source="crm")
        await layer.resume("r", drift="refresh")
        found = await view(layer, "r")
        assert {n: (m["done"], m["of"]) for n, m in found.checkpoint["artifacts"].items()} == {
            "tallying": (2, 3), "weighing": (2, 3),
        }  # fmt: skip
        assert "tallying" not in found.checkpoint["steps_complete"]
        assert [line.split()[2:5] for line in shown(found) if "tallying  " in line] == [["2", "of", "3"]]
        world.down = set()
        await layer.answer((await layer.questions())[0].id, "again", by="ann")
        await layer.resume("r")
        found = await view(layer, "r")
        assert {n: (m["done"], m["of"]) for n, m in found.checkpoint["artifacts"].items()} == {
            "tallying": (3, 3), "weighing": (3, 3),
        }  # fmt: skip
        assert "tallying" in found.checkpoint["steps_complete"]
        await layer.answer_next("yes")
        assert (await layer.resume("r")).value == [1, 9, 2]
        assert "3 of 3" in world.brief
        assert "4 of" not in world.brief


@workflow
async def tallies_twice(run: Run) -> Any:
    """A step that is called twice for an item, with other arguments."""

    async def twice(n: int) -> int:
        return int(await tallying(n)) + int(await tallying(-n))

    return await run.map(twice, [1, 2, 3], key="all")


async def test_a_step_that_an_item_calls_twice_counts_once(tmp_path: Path) -> None:
    """Three items are three, whatever each of them calls."""
    world.down = set()
    async with testing.layer(databases.url(tmp_path)) as layer:
        await layer.run(tallies_twice(), client="acme", run_id="r")
        assert [line.split()[2:5] for line in shown(await view(layer, "r")) if "tallying  " in line] == [["3", "of", "3"]]


def test_the_progress_line_ends_at_its_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other items than before: their lines count from one to their number, whatever was done before."""

    async def ran() -> None:
        async with Layer(databases.url(tmp_path)) as layer:
            layer.client("acme").set("items", [1, 2, 3], source="crm")
            world.down = set()
            await layer.run(tallies(), client="acme", run_id="r")
            layer.client("acme").set("items", [4, 5, 6], source="crm")
            with Live(layer):
                await layer.resume("r", drift="refresh")

    asyncio.run(ran())
    told = [line.split()[2] for line in capsys.readouterr().err.split("\n") if "tallying" in line]
    assert told[-1] == "3/3"
    assert all(int(figure.partition("/")[0]) <= 3 for figure in told)
