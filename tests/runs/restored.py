"""A store that is set back to yesterday: copied as a backup is, put back as a person does it, and told of it (or not)."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from stepseven import Layer, Outcome
from stepseven.transitions import restoring
from stepseven.transitions.restoring import Restored
from tests.runs.outside import Outside


def back_up(store: Path) -> Path:
    """Copy the file while it is in use, as ``.backup`` does."""
    copy = store.with_name(f"{store.name}.backup")
    with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def put_back(store: Path, copy: Path) -> None:
    """Put a copy in the place of the file, which nobody uses any more."""
    for suffix in ("-wal", "-shm"):
        store.with_name(store.name + suffix).unlink(missing_ok=True)
    store.write_bytes(copy.read_bytes())
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("DELETE FROM worker")  # those of then are gone; in a test they were of this process


def at_call(world: Outside, n: int, act: Callable[[], object]) -> None:
    """Have *act* done when the outside gets its n-th call, before that has its effect."""
    calls, lock = itertools.count(1), threading.Lock()

    def arrived() -> None:
        with lock:
            due = next(calls) == n
        if due:
            act()

    world.on_arrival = arrived


async def told(layer: Layer) -> Restored:
    """What ``stepseven doctor --restored`` does."""
    now = layer.services.edge.now_us()
    return await layer.store.write(lambda tx: restoring.restored(tx, now), durable=True, client=None)


async def see_through(layer: Layer, run_id: str, *answers: tuple[str, Any]) -> Outcome[Any]:
    """Resume a run and answer what it asks, in this order: (kind, answer). What it asks besides is a failure of the test."""
    left: Sequence[tuple[str, Any]] = answers
    outcome = await layer.resume(run_id)
    while outcome.questions:
        (question,) = outcome.questions
        assert left, question.text
        (kind, value), *left = left
        assert question.kind == kind, question.text
        await layer.answer(question.id, value, by="ann")
        outcome = await layer.resume(run_id)
    assert not left, f"it did not ask: {left}"
    return outcome
