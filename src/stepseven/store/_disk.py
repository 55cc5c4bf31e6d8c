"""What happens to a SQLite log after a commit: it reaches the disk in time, and its pages the file before it grows large.

Both are done by one thread, off the path of a step. A log that starts again from its beginning is overwritten in place;
one that only grows makes every commit allocate (measured: twice the time of the insert itself). So a checkpoint copies most
of the log while everybody writes on, then the rest under the write lock, for a few milliseconds: only then can the log restart.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time

from stepseven.store._thread import LateThread

FLUSH_AFTER_S = 0.12  # the contract: the disk within 0.2 s
CHECKPOINT_UNITS = 700  # about 1,000 pages, SQLite's own measure; a unit writes one to three
CHECKPOINT_BYTES = 16 << 20  # others write, too: this process's count is not all there is


class Disk:
    """The thread that keeps one database's log safe and short. *lock* is held by whoever writes in this process."""

    def __init__(self, path: str, lock: threading.Lock) -> None:
        self.path = path
        self.error: OSError | None = None  #: a sync failed: what it was to save may be lost, so nothing may build on it
        self._lock = lock
        self._units = 0
        self._due_s = 0.0
        self._wake = threading.Event()
        self._now = threading.Event()
        self._closing = False
        self._thread = LateThread(self._work, "stepseven_disk")

    def wrote(self, units: int, *, safe: bool) -> None:
        """So many units were committed; *safe*: the commit has waited for the disk itself."""
        self._units += units
        if not safe and not self._wake.is_set():
            self._due_s = time.monotonic() + FLUSH_AFTER_S
            self._thread.start()
            self._wake.set()
        if self._units >= CHECKPOINT_UNITS and not self._now.is_set():
            self._thread.start()
            self._now.set()
            self._wake.set()

    def close(self, patience_s: float) -> None:
        """Bring what is left to the disk, and stop."""
        self._closing = True
        self._now.set()
        self._wake.set()
        self._thread.join(patience_s)

    def _work(self) -> None:
        keeper = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            while not (self._closing and not self._wake.is_set()):
                self._wake.wait()
                if not self._now.is_set():
                    self._now.wait(max(0.0, self._due_s - time.monotonic()))
                self._now.clear()
                self._wake.clear()  # before the sync: whoever commits after this line wakes us again
                size = self._sync()
                if self._units >= CHECKPOINT_UNITS or size > CHECKPOINT_BYTES:
                    self._checkpoint(keeper)
        except OSError as error:
            self.error = error
        finally:
            keeper.close()

    def _sync(self) -> int:
        """Wait until the disk has the log; its size in bytes."""
        try:
            fd = os.open(f"{self.path}-wal", os.O_RDWR)
        except FileNotFoundError:
            return 0  # everything is in the file already
        try:
            os.fdatasync(fd) if hasattr(os, "fdatasync") else os.fsync(fd)
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _checkpoint(self, keeper: sqlite3.Connection) -> None:
        """Copy the log's pages into the file. What fails stays in the log, which is the truth, and is copied next time."""
        self._units = 0
        with contextlib.suppress(sqlite3.Error):
            keeper.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            with self._lock:
                keeper.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
