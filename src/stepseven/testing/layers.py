"""A layer for tests."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from stepseven.errors import UnknownQuestion
from stepseven.layer import Layer
from stepseven.model import Question
from stepseven.testing.clock import START, Clock, FakeEdge


class TestLayer(Layer):
    """A ``Layer`` under a clock that is moved by hand."""

    __test__ = False  # pytest: not a class of tests
    clock: Clock

    async def __aenter__(self) -> Self:
        return self

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    async def answer_next(self, value: Any, *, by: str = "test", note: str | None = None) -> Question:
        """Answer the oldest open question.

        Raises:
            UnknownQuestion: none is open.
            InvalidAnswer: it does not take *value*.
        """
        asked = await self.questions(limit=1)
        if not asked:
            raise UnknownQuestion("(the next)")
        return await self.answer(asked[0].id, value, by=by, note=note)


def layer(
    url: str = "sqlite:///:memory:",
    *,
    start: datetime = START,
    jumps: bool = True,
    clock: Clock | None = None,
    seed: int = 0,
    **options: Any,
) -> TestLayer:
    """A layer in memory, with a fake clock.

    Args:
        url: a store to use instead of memory. Two layers on one file are two workers: give them one *clock* and two *seeds*.
        start: what the clock says first; must have a time zone.
        jumps: the clock goes on by itself over waits of up to 30 s (``stepseven.testing.clock``).
        clock: a clock to use instead of a new one.
        seed: chance and ids follow from it.
        options: everything else ``Layer`` takes.

    Returns:
        A ``Layer`` with ``clock`` (``advance(seconds | timedelta)``) and ``answer_next(value)``.
    """
    clock = clock or Clock(start, jumps=jumps)
    made = TestLayer(url, edge=FakeEdge(clock, seed=seed), **options)
    made.clock = clock
    made.services.worker.housekeeping = None  # a clock that is moved by months must not prune what a test looks at
    worker, store = made.services.worker, made.services.store

    def beat() -> None:
        """A worker beats every two seconds, so it also has after a jump of days."""
        if (
            not made.closed
            and store.read_now(lambda tx: tx.one(tx.sql.worker, {"id": worker.id, "now": clock.now_us})) is not None
        ):
            worker.beat()

    clock.on_move.append(beat)
    return made
