"""Whose turn it is: what goes on only when nothing else of a run's code can.

How long a look at the outside takes changes nothing about what a rehearsal makes of it: a probe, a file, the store answer when
they answer, and what has been waited for is handed on in the order in which it was begun. So two rehearsals of the same see the
same. And whoever has to know that the code does not ask for something comes last: then all else has had its turn.
"""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from stepseven.runtime.waits import Lull, Standing, standing

if TYPE_CHECKING:
    from stepseven.runtime.memory import RunMemory

T = TypeVar("T")
AGAIN_S = 0.001
PATIENCE_S = 0.25  # for code that waits for something outside between its steps: nobody tells when it goes on
LAST_S = 10.0  # the same, and for steps in hand, of whoever comes last in an execution: what is asked then may be taken back


class Turns:
    """The turns of one execution, or of one rehearsal."""

    def __init__(self, ex: RunMemory, *, patience_s: float = PATIENCE_S, again_s: float = AGAIN_S) -> None:
        self._ex = ex
        self._patience_s, self._again_s = patience_s, again_s
        self._numbers = itertools.count()
        self.under_way = 0
        #: those that have their answer, and after them those that come last, until it is their turn
        self.waiting: dict[tuple[bool, int], asyncio.Future[None]] = {}
        self._since = 0.0  # when the last of them came
        self._looking = False

    async def take(self, look: Coroutine[Any, Any, T]) -> T:
        """What *look* gives or raises; at once, if nothing had to be waited for."""
        number = next(self._numbers)
        waited: list[Any] = []
        self.under_way += 1
        try:
            return await _watched(look, waited)
        finally:
            self.under_way -= 1
            if waited and self._ex.unloading is None:
                await self._turn(number, last=False)

    async def last(self) -> None:
        """Let everything else have its turn: returns when nothing of the run's code can go on by itself (or takes very long)."""
        await self._turn(next(self._numbers), last=True)

    async def _turn(self, number: int, *, last: bool) -> None:
        loop = asyncio.get_running_loop()
        self.waiting[last, number] = future = loop.create_future()
        self._ex.inside.add(future)
        self._since = loop.time()
        self._soon(0.0)
        try:
            await future
        finally:
            self._ex.inside.discard(future)
            self.waiting.pop((last, number), None)

    def _soon(self, delay_s: float) -> None:
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._looking = False
        if not self.waiting or self._ex.unloading is not None:
            return
        tasks = self._ex.tasks
        if self._still():
            self._looking = True
            lull = Lull(tasks, lambda: self._go(lull))
        elif not self.under_way and asyncio.get_running_loop().time() - self._since > self._patience_s:
            self._release()
        else:
            self._soon(self._again_s)

    def _still(self) -> bool:
        ex = self._ex
        moving = (Standing.RUNNABLE, Standing.FOREIGN)
        return not any(t.done() or standing(t, ex.tasks, ex.waits, ex.inside) in moving for t in ex.tasks)

    def _go(self, lull: Lull) -> None:
        self._looking = False
        if lull.held(self._ex.tasks):
            self._release()
        else:
            self._soon(0.0)

    def _release(self) -> None:
        turn = sorted(self.waiting)
        for at in turn:
            if at[0] == turn[0][0]:  # who comes last does not go with the others
                future = self.waiting.pop(at)
                if not future.done():
                    future.set_result(None)
        if self.waiting:
            self._soon(0.0)


@types.coroutine
def _watched(look: Coroutine[Any, Any, T], waited: list[Any]) -> Generator[Any, Any, T]:
    """Await *look*; something stands in *waited* if it had to be waited for."""
    send, value = look.send, None
    while True:
        try:
            future = send(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # of the type that it is declared to give
        waited[:] = [True]
        try:
            value, send = (yield future), look.send
        except GeneratorExit:
            look.close()
            raise
        except BaseException as error:  # noqa: BLE001 - thrown into it, as ``await`` does
            value, send = error, look.throw
