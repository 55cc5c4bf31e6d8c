"""Records whose commit did not wait for the server's disk: kept until they are safe, in case the server loses them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from stepseven.store.base import Values

_MARGIN_S = 0.4


class Lately:
    """What was appended lately. A record is safe when a durable commit followed it, or a while later without a restart.

    So what a live worker has in its memory and what the store has stay one: after a restart all of it is sent again, under
    the same fence, before anything else. What is there already is left as it is.
    """

    def __init__(self) -> None:
        self.due = False  #: the server may have lost some
        self._losses = 0
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, str, Values]] = deque()

    def keep(self, appended: Sequence[tuple[str, Values]], *, lazy_s: float) -> None:
        """These were acknowledged just now, by the server that we know: what is older than *lazy_s* it has on its disk."""
        now = time.monotonic()
        old = now - lazy_s - _MARGIN_S
        with self._lock:
            while not self.due and self._kept and self._kept[0][0] < old:
                self._kept.popleft()
            self._kept.extend((now, statement, values) for statement, values in appended)

    def safe(self, since: float) -> None:
        """A commit that waited for the disk was begun at *since* (monotonic) and acknowledged."""
        with self._lock:
            while not self.due and self._kept and self._kept[0][0] < since:
                self._kept.popleft()

    def lost(self) -> None:
        """The server was away: it may have lost some."""
        with self._lock:
            self._losses += 1
            self.due = bool(self._kept)

    def all(self) -> tuple[list[tuple[str, Values]], int]:
        """What is to be sent again, oldest first; and how often the server was away by now."""
        with self._lock:
            return [(statement, values) for _, statement, values in self._kept], self._losses

    def sent_again(self, count: int, losses: int) -> None:
        """The first *count* of them are safe now. If it was away again meanwhile, the rest is not."""
        with self._lock:
            for _ in range(min(count, len(self._kept))):
                self._kept.popleft()
            self.due = losses != self._losses and bool(self._kept)
