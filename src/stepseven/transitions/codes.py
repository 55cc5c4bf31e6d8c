"""Which code made what is on record: written down by the take that brings other code, so that it outlives every park and crash.

The run's row names only the code it was executed with last. Between two marks all records are of one code; so are all claims, by
their fence. Nothing is written while a run has done nothing outside, and started no other: only of that it matters who did it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.store.base import Row, Tx
from stepseven.store.statements import SEQ_BITS
from stepseven.transitions.state import Hold, Record, steps_range

CODE = "run.code"  # the name of a record that says: from here on it is other code
_LAST = 2**63 - 1  # of a mark that there is not yet: no run is newer
PASSED_BY = "run.passed_by"  # of one that says what the run's code has besides what is on record or ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Has:
    """What a workflow's code has, before any of it has run.

    Attributes:
        steps: their names, in the order of the source, as a JSON list; ``unknown`` among them where it cannot be read.
        maps: the names of what it maps, as a JSON list; ``None``: nothing.
    """

    steps: str
    maps: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Other code took the run.

    Attributes:
        seq: its place among the run's records.
        run_no: the run that was taken; a fork has its root's marks, too.
        fence: of that take.
        before: the source digest until then.
        digest: the source digest from then on.
        born: the number of the newest run there was; ``None``: of a mark from before that was kept.
    """

    seq: int
    run_no: int
    fence: int
    before: str
    digest: str
    born: int | None = None


def note(tx: Tx, run: Row, hold: Hold, digest: str | None, now_us: int) -> None:
    """Write down that a run was taken with other code than before, in the transaction of that take.

    Args:
        tx: the transaction.
        run: the run as it was before.
        hold: the take.
        digest: of the source it is executed with from now on; ``None``: of no source.
        now_us: the time.
    """
    before = run["source_digest"]
    if before is None or digest is None or before == digest:
        return
    range_ = steps_range(hold.run_no)
    found = tx.one(tx.sql.acted, {**range_, "run_no": hold.run_no, "root_no": run["root_no"] or hold.run_no})
    if found is None or not found["acted"]:
        return
    told: dict[str, Any] = {
        "run_no": hold.run_no, "fence": hold.fence, "before": before, "digest": digest, "born": found["born"],
    }  # fmt: skip
    record = Record(
        id=found["last"] + 1, branch="", name=CODE, key=f"{hold.run_no}:{hold.fence}", generation=1, state="done",
        result=json.dumps(told), started_us=now_us, ended_us=now_us,
    )  # fmt: skip
    tx.run(*record.insert(tx.sql, hold.values()))


def begin(tx: Tx, hold: Hold, has: Has | None, now_us: int) -> None:
    """Write down what the code of a run maps that was just taken for the first time. Its steps are in the run's row.

    Then a process that dies before it puts the run away leaves what newer code is compared with.
    """
    if has is not None and has.maps is not None:
        record = Record(
            id=hold.run_no << SEQ_BITS | 1, branch="", name=PASSED_BY, key="steps", generation=1, state="done", result=has.maps,
            started_us=now_us, ended_us=now_us,
        )  # fmt: skip
        tx.run(*record.insert(tx.sql, hold.values()))


def note_ahead(tx: Tx, hold: Hold, remaining: str) -> bool:
    """Write down what the code that is about to be executed has ahead. Whether the run is still ours.

    Args:
        tx: the transaction.
        hold: the run's.
        remaining: the steps, as a JSON list.
    """
    return tx.run(tx.sql.note_ahead, {**hold.keys(), "remaining": remaining}) == 1


def marks(records: Iterable[Record]) -> tuple[Mark, ...]:
    """The marks among a run's records, oldest first. Of a run that was pruned nothing is left of them."""
    found = [Mark(seq=r.seq, **json.loads(r.result)) for r in records if r.name == CODE and r.result is not None]
    return tuple(sorted(found, key=lambda m: m.seq))


def as_if_taken(found: Sequence[Mark], run: Row, seq: int, digest: str) -> tuple[Mark, ...]:
    """The marks there would be if the run was taken now with this code. *seq*: of its newest record."""
    before = run["source_digest"]
    if before is None or before == digest:
        return tuple(found)
    return (*found, Mark(seq=seq + 1, run_no=run["no"], fence=run["fence"] + 1, before=before, digest=digest, born=_LAST))


def made_record(found: Sequence[Mark], seq: int, now: str) -> str:
    """The source digest that a record was made with. *now*: that of the code there is."""
    if not found:
        return now
    earlier = [m for m in found if m.seq < seq]
    return earlier[-1].digest if earlier else found[0].before


def made_start(found: Sequence[Mark], no: int, now: str) -> str:
    """The source digest that a run was started with by the one that these marks are of. *now*: that of the code there is."""
    if not found:
        return now
    earlier = [m for m in found if m.born is not None and m.born < no]
    return earlier[-1].digest if earlier else found[0].before


def made_claim(found: Sequence[Mark], claim: Row, now: str) -> str:
    """The source digest that a claim was made with, by the take that made it. *now*: that of the code there is."""
    mine = sorted((m for m in found if m.run_no == claim["run_no"]), key=lambda m: m.fence)
    earlier = [m for m in mine if m.fence <= claim["fence"]]
    if earlier:
        return earlier[-1].digest
    if mine:
        return mine[0].before
    others = [m for m in found if m.run_no > claim["run_no"]]  # of a fork: what it was made of, as it stood then
    return others[0].before if others else found[-1].digest if found else now
