"""What a workflow maps, as its source tells: the names its items' branches have, where they can be read."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from stepseven import Run, step, workflow
from stepseven.runtime import ahead
from stepseven.runtime.procedure import Workflow

BILLS = "bills"


@step
async def weigh_parcel(item: int) -> int:
    """A step that is mapped."""
    return item


async def pack(item: int) -> int:
    """A function that is mapped."""
    return await weigh_parcel(item)


async def pack_with(size: int, item: int) -> int:
    """One that is mapped with an argument of its own."""
    return await weigh_parcel(item + size)


class Depot:
    """Something with a method that is mapped."""

    async def load(self, item: int) -> int:
        """One item."""
        return await weigh_parcel(item)


@workflow
async def maps_a_step(run: Run) -> Any:
    """A step."""
    return await run.map(weigh_parcel, [1])


@workflow
async def maps_functions(run: Run) -> Any:
    """A function of the module, twice, and one of its own."""

    async def own(item: int) -> int:
        return await weigh_parcel(item)

    return [await run.map(pack, [1]), await run.map(pack, [2]), await run.map(own, [3])]


@workflow
async def maps_others(run: Run) -> Any:
    """A method, a partial, and one of two."""
    return [await run.map(Depot().load, [1]), await run.map(functools.partial(pack_with, 1), [1]), await either(run)]


async def either(run: Run) -> Any:
    """A helper that maps."""
    return await run.map(pack if run.goal else weigh_parcel, [1])


@workflow
async def maps_under_keys(run: Run, quarter: str) -> Any:
    """Keys that stand there, by whatever name, and one that is put together."""
    return [
        await run.map(pack, [1], key="parcels"),
        await run.map(pack, [1], key=BILLS),
        await run.map(pack, [1], key=None),
        await run.map(pack, [1], key=f"{quarter} parcels"),
    ]


@workflow
async def maps_maybe(run: Run) -> Any:
    """In an arm, in a loop, in an item of another map."""

    async def outer(item: int) -> Any:
        return await run.map(pack, [item])

    if run.goal:
        return await run.map(weigh_parcel, [1])
    return [await run.map(outer, [n]) for n in range(3)]


@pytest.mark.parametrize(
    "code, maps",
    [
        (maps_a_step, [("weigh_parcel", "weigh_parcel")]),
        (maps_functions, [("pack", "pack"), ("own", "own")]),
        (maps_others, [("load", "load"), ("pack_with", "pack_with"), ("pack", "pack"), ("weigh_parcel", "weigh_parcel")]),
        (maps_under_keys, [("pack", "parcels"), ("pack", "bills"), ("pack", "pack"), ("pack", "")]),
        (maps_maybe, [("weigh_parcel", "weigh_parcel"), ("outer", "outer"), ("pack", "pack")]),
    ],
)
def test_what_is_mapped_is_read(code: Workflow[Any, Any], maps: list[tuple[str, str]]) -> None:
    """Each once: the function or step, and what its items are named after; empty where only the execution tells."""
    assert [tuple(m) for m in ahead.maps(code)] == maps


def test_reading_maps_notes_no_call() -> None:
    """They are no steps: what is ahead is what their items call."""
    assert {c.name for c in ahead.whole(maps_functions)} == {"weigh_parcel"}
