"""How long a look at the outside takes changes nothing about what a rehearsal makes of it.

A probe, a file, the store answer when they answer. What has been waited for is handed on only when nothing else of the run's code
can go on, and then in the order in which it was begun: so two rehearsals of the same see the same.
"""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from stepseven.runtime.waits import Lull, Standing, standing

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution

T = TypeVar("T")
AGAIN_S = 0.001
PATIENCE_S = 0.25  # for code that waits for something outside between its steps: nobody tells when it goes on


class Turns:
    """The looks of one rehearsal."""

    def __init__(self, ex: Execution) -> None:
        self._ex = ex
        self._numbers = itertools.count()
        self.under_way = 0
        self.waiting: dict[int, asyncio.Future[None]] = {}  #: those that have their answer, until it is their turn
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
                await self._turn(number)

    async def _turn(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        self.waiting[number] = future = loop.create_future()
        self._ex.inside.add(future)
        self._since = loop.time()
        self._soon(0.0)
        try:
            await future
        finally:
            self._ex.inside.discard(future)
            self.waiting.pop(number, None)

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
        elif not self.under_way and asyncio.get_running_loop().time() - self._since > PATIENCE_S:
            self._release()
        else:
            self._soon(AGAIN_S)

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
        for number in sorted(self.waiting):
            future = self.waiting.pop(number)
            if not future.done():
                future.set_result(None)


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
