"""What the runs that a run has started, and that are done, were built on: their values are in it, and so is what they have read.

One that has not ended looks by itself when it goes on. One that is done is a record of the run that started it, and is taken as a
step is: if it only read, a refresh starts it anew; if it did something outside, that stands, and so does what it returned.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from stepseven.errors import AmbiguousWorkflow
from stepseven.model import EffectState
from stepseven.runtime.memory import RunMemory
from stepseven.runtime.procedure import code_of
from stepseven.transitions import runs
from stepseven.transitions.family import START
from stepseven.transitions.state import Hold, load

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stepseven.store.base import Row, Tx
    from stepseven.transitions.state import Loaded, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run that is done and whose value another one has.

    Attributes:
        record: of its end, in the run that started it.
        memory: what is on record in it.
        acts: it, or what it started, did something outside: it is not started anew.
    """

    record: Record
    memory: RunMemory
    acts: bool

    @property
    def words(self) -> str:
        """What it is, for people."""
        acted = "done, and not done again without your word: it did something outside"
        then = acted if self.acts else "done; a refresh starts it anew"
        return f"{_named(self.record)}{self.memory.run['workflow']} ({then})"


def _named(record: Record) -> str:
    return f"run {record.summary} of "


def starts_anew(record: Record, depends: Iterable[str]) -> bool:
    """Whether *record* is of a run that these words say is started anew."""
    told = _named(record)
    return record.name == START and any(who.startswith(told) and who.endswith("anew)") for who in depends)


def ended(ex: RunMemory) -> list[Ended]:
    """The runs that a run has started and that are done; none, if no fact of the client has moved since it began.

    Without those whose code says ``on_drift="keep"``: about them nobody is asked.
    """
    started = {r.summary: r for r in ex.records.values() if r.name == START and r.state == "done" and r.summary}
    if not started:
        return []
    found = ex.store.read_now(partial(_look, ex, started))
    made = [Ended(record=record, memory=_memory(ex, hold, loaded), acts=acts) for record, hold, loaded, acts in found]
    return [one for one in made if one.memory.workflow is ex.workflow or one.memory.workflow.settings.on_drift != "keep"]


def _look(ex: RunMemory, started: Mapping[str, Record], tx: Tx) -> list[tuple[Record, Hold, Loaded, bool]]:
    known, now = tx.all(tx.sql.facts_now, {"client_id": ex.hold.client_id}), ex.now_us()
    moved_us = max((moved for row in known for moved in _moved(row, now)), default=0)
    found = []
    for run_id, record in started.items() if moved_us > ex.run["created_us"] else ():
        row = tx.one(tx.sql.run_by_id, {"id": run_id})
        if row is None or row["pruned_us"] is not None or moved_us <= row["created_us"]:
            continue  # what a pruned run has read is not known any more
        loaded = load(tx, row["no"])
        if loaded is not None:
            hold = Hold(
                run_no=row["no"], run_id=row["id"], client_id=row["client_id"], root_id=runs.root_id(tx, row), owner="", fence=-1
            )
            found.append((record, hold, loaded, _acted(tx, row, [*loaded.records.values(), *loaded.older])))
    return found


def _moved(row: Row, now_us: int) -> Iterable[int]:
    """When a fact came to be as it is: when it was said, and when it ended."""
    yield row["set_us"]
    if row["valid_until_us"] is not None and row["valid_until_us"] <= now_us:
        yield row["valid_until_us"]


def _acted(tx: Tx, row: Row, records: Sequence[Record]) -> bool:
    """Whether a run, or one below it, did something outside, or may have."""
    if any(r.effect is not None for r in records):
        return True
    numbers = [row["no"], *(below["no"] for below in tx.all(tx.sql.descendants, {"run_no": row["no"]}))]
    return any(claim["state"] != EffectState.REFUSED for no in numbers for claim in tx.all(tx.sql.effects, {"run_no": no}))


def _memory(ex: RunMemory, hold: Hold, loaded: Loaded) -> RunMemory:
    workflow: Any = None
    with suppress(AmbiguousWorkflow):  # its code is wanted for the names of its steps only
        workflow = code_of(loaded.run)
    return RunMemory(ex.services, workflow or ex.workflow, hold, loaded, recovery=False)
