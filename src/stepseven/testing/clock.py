"""A clock that stands still until it is moved, and the edge that goes by it.

Waits of up to 30 s stay in memory (retries, short sleeps). So that a test need not move the clock for each, it *jumps* to
the next of them as soon as the event loop has nothing else to do; longer waits park the run and wait for ``advance``.
What a step does in real time (a thread, a socket, its time-out) takes real time: the clock may jump meanwhile.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from stepseven.runtime.edge import Edge

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)  # a Monday morning
QUIET_TURNS = 3  # turns of the loop in a row without any other work
TURN_S = 0.001  # real time between them, so that threads get theirs

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


class _Timer:
    """One thing to do at a time."""

    __slots__ = ("at_us", "callback", "loop", "n")

    def __init__(self, at_us: int, n: int, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self.at_us = at_us
        self.n = n
        self.loop = loop
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: _Timer) -> bool:
        return (self.at_us, self.n) < (other.at_us, other.n)

    def cancel(self) -> None:
        self.callback = None

    def fire(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(callback)


class Clock:
    """Time as a test tells it. Use it in the thread of the event loop.

    Args:
        start: what it says first; must have a time zone.
        jumps: go on by itself to the next timer when nothing else is to be done.
    """

    def __init__(self, start: datetime = START, *, jumps: bool = True) -> None:
        if start.tzinfo is None:
            raise ValueError("start has no time zone: say datetime(…, tzinfo=UTC)")
        self._now_us = round(start.timestamp() * 1e6)
        self._timers: list[_Timer] = []
        self._count = 0
        self._jumps = jumps
        self._watching = False
        self.on_move: list[Callable[[], object]] = []  #: called after each move

    @property
    def now(self) -> datetime:
        """What it says now, UTC."""
        return datetime.fromtimestamp(self._now_us / 1e6, UTC)

    @property
    def now_us(self) -> int:
        """The same in microseconds since 1970."""
        return self._now_us

    def advance(self, by: float | timedelta) -> None:
        """Move it forward by so many seconds; what was due by then happens at the loop's next turn, in order."""
        rest = by.total_seconds() if isinstance(by, timedelta) else by
        if rest < 0:
            raise ValueError(f"advance({by!r}): a clock goes forward")
        self._move(self._now_us + round(rest * 1e6))

    def call_at(self, at_us: int, callback: Callable[[], None]) -> Callable[[], object]:
        """Call *callback* in the running loop when the clock says *at_us*; returns what cancels it."""
        self._count += 1
        timer = _Timer(at_us, self._count, asyncio.get_running_loop(), callback)
        if at_us <= self._now_us:
            timer.fire()
        else:
            heapq.heappush(self._timers, timer)
            self._watch(timer.loop)
        return timer.cancel

    def _move(self, to_us: int) -> None:
        self._now_us = max(self._now_us, to_us)
        for moved in self.on_move:
            moved()  # first: who looks at the time next must not find this process silent for days
        while self._timers and self._timers[0].at_us <= self._now_us:
            heapq.heappop(self._timers).fire()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._jumps and not self._watching:
            self._watching = True
            loop.call_later(TURN_S, self._turn, loop, QUIET_TURNS)

    def _turn(self, loop: asyncio.AbstractEventLoop, left: int) -> None:
        """Look whether the loop has other work; after enough turns without any, jump."""
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            self._watching = False
            return
        # asyncio tells nobody whether work is ready; other loops have no such queue, and only the pauses protect there.
        quiet = not getattr(loop, "_ready", ())
        if quiet and left == 0:
            self._move(self._timers[0].at_us)
            left = QUIET_TURNS
        loop.call_later(TURN_S, self._turn, loop, left - 1 if quiet else QUIET_TURNS)


class FakeEdge(Edge):
    """The edge of a test: its own clock; chance and ids from *seed*, so that two runs of a test are alike."""

    def __init__(self, clock: Clock | None = None, *, seed: int = 0) -> None:
        self.clock = clock or Clock()
        self._random = random.Random(seed)  # noqa: S311 - alike every time is the point

    def now_us(self) -> int:
        """What the clock says."""
        return self.clock.now_us

    def monotonic(self) -> float:
        """The same in seconds."""
        return self.clock.now_us / 1e6

    def since_boot(self) -> float:
        """The same: it is never suspended."""
        return self.monotonic()

    def chance(self) -> float:
        """Uniform in [0, 1)."""
        return self._random.random()

    def new_id(self, prefix: str) -> str:
        """An id of the usual form."""
        return f"{prefix}_{''.join(self._random.choice(_ALPHABET) for _ in range(12))}"

    def new_uuid(self) -> str:
        """A UUID of the usual form."""
        text = f"{self._random.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"

    def call_at(self, at_us: int, callback: Callable[[], None]) -> Callable[[], object]:
        """Call *callback* when the clock says *at_us*."""
        return self.clock.call_at(at_us, callback)

    async def sleep_until(self, at_us: int) -> None:
        """Wait until the clock says *at_us*."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        cancel = self.clock.call_at(at_us, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            cancel()
