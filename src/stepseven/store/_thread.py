"""A thread that is started when it is first needed, while somebody else may just be closing."""

from __future__ import annotations

import threading
from collections.abc import Callable


class LateThread:
    """Started once, by whoever needs it first; joined by whoever closes. Each may happen in any thread, in any order.

    A bare ``Thread`` that one thread is just about to start cannot be joined by another: that raises.
    """

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._lock = threading.Lock()
        self._over = False
        self.started = False

    def start(self) -> bool:
        """Start it, unless it is started; ``False``: it has been joined, and nothing is started any more."""
        if self.started:
            return True
        with self._lock:
            if not self._over and not self.started:
                self._thread.start()
                self.started = True
            return self.started

    @property
    def alive(self) -> bool:
        """Whether its work goes on."""
        return self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end, if it was started; it is not started after this."""
        with self._lock:
            self._over = True
        if self.started:
            self._thread.join(timeout_s)
