"""A backup was restored: what was done after it was made is forgotten here, and stands outside all the same.

Saying so raises the store's epoch. A run that was admitted before lives over the *gap* between the backup and that moment:
an effect it has no record of may have been done in it, so it is looked for, or sent under the same key where the other side
honours that, or a person is asked, as with every claim of an unknown outcome. What was admitted since has no gap.
"""

from __future__ import annotations

from stepseven._dataclass import dataclass
from stepseven.store.base import Row, Tx
from stepseven.transitions.state import Hold

WHY = "a backup was restored"
TIMEOUT_US = 30_000_000  # how long a write may take that says nothing else (``runtime.declared.WRITE_TIMEOUT_S``)
LONGEST_US = 600_000_000  # a claim that was sent again tells no more how long that may take; what takes longer is rare


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The time that is lost. ``since_us``: before it nothing of the run, or of its family, can have been done."""

    since_us: int
    restored_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What became of a store that was told of its restoration. ``last_us``: when it was told so before."""

    epoch: int
    live_runs: int
    last_us: int | None


def gap_of(tx: Tx, hold: Hold, row: Row, *, over_client: bool) -> Gap | None:
    """The gap a run lives over, if it does.

    Args:
        tx: the transaction.
        hold: the run's.
        row: of ``guard_effect``: the epochs of the run and of the store.
        over_client: the effect is one of all the client's runs: then a run that lives over a gap may have done it for all.
    """
    if row["restored_us"] is None:
        return None
    times: list[int | None] = []
    if row["run_epoch"] < row["store_epoch"]:
        times.append(_time(tx.one(tx.sql.kin_since, {"run_no": hold.run_no})))
    if over_client:
        times.append(_time(tx.one(tx.sql.older_runs, {"client_id": hold.client_id, "epoch": row["store_epoch"]})))
    known = [time for time in times if time is not None]
    return Gap(since_us=min(known), restored_us=row["restored_us"]) if known else None


def _time(row: Row | None) -> int | None:
    return None if row is None else row["since_us"]


def restored(tx: Tx, now_us: int) -> Restored:
    """Note that the store is a backup of an earlier time: every run that has not ended lives over a gap from now on.

    Whoever executed one of them meanwhile owns it no longer, and can have it back: no worker of the time that is lost writes
    into it. Claims in doubt are nobody's: only when all that could still be sent has had its time does "not found" count.
    """
    before = tx.one(tx.sql.store, {})
    raised = tx.one(tx.sql.raise_epoch, {"now": now_us})
    assert before is not None  # a store has this one row  # noqa: S101
    assert raised is not None  # noqa: S101
    live = tx.run(tx.sql.let_go_runs, {"reason": f"{WHY}: ready to go on", "now": now_us})
    tx.run(
        tx.sql.let_go_claims,
        {"now": now_us, "timeout_us": TIMEOUT_US, "least_us": now_us + TIMEOUT_US, "longest_us": LONGEST_US,
         "latest_us": now_us + LONGEST_US},
    )  # fmt: skip
    return Restored(epoch=raised["epoch"], live_runs=live, last_us=before["restored_us"])


def from_before(moment_us: int, tx: Tx) -> bool:
    """Whether what was found out at a moment was found out before the store was restored: it may have changed since."""
    row = tx.one(tx.sql.store, {})
    return row is not None and row["restored_us"] is not None and moment_us < row["restored_us"]
