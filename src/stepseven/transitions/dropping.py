"""Forgetting a kept result: only when no record names it, and nobody is just about to name it."""

from __future__ import annotations

from stepseven.store.base import Tx


def drop_artifact(tx: Tx, name: str, *, files: bool) -> bool:
    """Remove the row of a result that no record names any more; whether it is gone.

    Args:
        tx: the transaction.
        name: the hash of the result.
        files: also one that is kept in a file, which the caller then removes.
    """
    if tx.one(tx.sql.hold_artifact, {"hash": name}) is None:
        return False
    return tx.run(tx.sql.drop_artifact, {"hash": name, "files": int(files)}) > 0
