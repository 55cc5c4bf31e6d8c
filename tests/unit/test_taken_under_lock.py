"""Who seemed dead is looked at once more under the lock of its row: a beat that came in between counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stepseven.transitions import runs, taking

SILENT = {"id": "w_a", "host": "h", "boot": "b", "pid": 1, "started": "s", "silent_us": 60_000_000}
HEARD = {**SILENT, "silent_us": 0}


class Rows:
    """A transaction that knows one worker: as it is seen, and as it is once its row is held."""

    sql = SimpleNamespace(worker="seen", worker_held="held")

    def __init__(self, seen: Any, held: Any) -> None:
        self.found = {"seen": seen, "held": held}

    def one(self, statement: str, params: Any) -> Any:
        """The row."""
        del params
        return self.found[statement]


@pytest.mark.parametrize("held, dead", [(SILENT, True), (HEARD, False), (None, True)])
def test_a_beat_in_between_is_heard(held: Any, dead: bool) -> None:
    """Silent at the first look, and heard of under the lock: not dead, for a take by name as for a worker's."""
    tx: Any = Rows(SILENT, held)
    assert runs.is_dead(tx, "w_a", 0, ()) is dead
    wanting: Any = SimpleNamespace(gone=lambda row: runs.is_gone(row, ()))
    assert taking._still_gone(tx, wanting, "w_a", 0) is dead
