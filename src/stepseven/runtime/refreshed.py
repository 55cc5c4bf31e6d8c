"""What was refreshed in a run, as its records tell: which facts it goes by since, and what answers no more.

All of that was decided when a person (or the workflow's ``on_drift=``) chose to refresh, and stands in records of its own since:
a crash in between changes nothing, nor does newer code.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.runtime import reading
from stepseven.runtime.place import Known

if TYPE_CHECKING:
    from stepseven.runtime.memory import RunMemory
    from stepseven.store.base import Row
    from stepseven.transitions.state import Record

REFRESH = "client.refresh"  # a fact: what the run goes by since, and what was built on the old one
RELOAD = "client.reload"  # the client record, likewise
KEEP = "client.keep"  # something moved and the run goes on with what it knows: to what it had moved
AGAIN = "refreshed"  # why a pin, or the client record, is there in another generation

Asked = tuple[str, str, str, int]  # branch, kind, key, n of a question


@dataclass(frozen=True, slots=True)
class Fresh:
    """A fact as a run goes by it since a refresh. ``version`` is the newest of then; *known*: it held."""

    value: Any
    version: int
    known: bool

    def over(self, known: Known, before: Known | None) -> Known | None:
        """What the run's code sees instead of *known*, which it said or found out itself; ``None``: that is newer."""
        if known.version > self.version or (before is not None and before.version > self.version):
            return None
        return Known(self.value, self.version) if self.known else Known(None, 0)


def set_aside(ex: RunMemory) -> None:
    """What was built on what has been refreshed since answers no more. Decided from what is on record only."""
    gone: set[int] = set()
    for record in (*ex.older, *ex.records.values()):
        if record.name in (REFRESH, RELOAD) and record.result is not None:  # pruned, there is nothing left to set aside
            told = json.loads(record.result)
            gone.update(told["steps"])
            ex.overtaken.update((branch, kind, key, n) for branch, kind, key, n in told["answers"])
            ex.diverged.add("")  # a write under another key may mean what was done already
            if record.name == REFRESH and ex.records.get((record.branch, record.name, record.key)) is record:
                ex.refreshed[told["key"]] = Fresh(told["value"], told["version"], told["known"])
    for old in [r for r in ex.records.values() if r.seq in gone] if gone else ():
        reading.drop(ex, old)


def overtaken(ex: RunMemory, row: Row) -> bool:
    """Whether what an answered question became has been refreshed since: its answer counts no more."""
    return bool(ex.overtaken) and (row["branch"], row["kind"], row["key"], row["n"]) in ex.overtaken


def is_fresh(record: Record) -> bool:
    """Whether a record is there because what it says was refreshed: only what was made from it is asked about again."""
    return record.why == AGAIN
