"""Pinned text of any length: what a run was told once, and is told again after a resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stepseven.errors import ArtifactGone, StoreUnavailable, Superseded
from stepseven.transitions import steps
from stepseven.transitions.state import Record

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Tx


def pinned(ex: Execution, branch: str, name: str, key: str) -> str | None:
    """What is on record, or ``None``.

    Raises:
        ArtifactGone: it was kept in a file that is no longer there, or no longer the same.
    """
    record = ex.records.get((branch, name, key))
    if record is None:
        return None
    ex.mark_used(record)
    text = ex.result_text(record)
    if text is None:
        raise ArtifactGone(f"{name} {key}", ex.hold.run_id)
    return text


def pin(ex: Execution, branch: str, name: str, texts: Mapping[str, str]) -> None:
    """Write texts down by their keys, all of them or none: each is a record, kept by its hash where it is long."""
    now = ex.now_us()
    made = []
    for key, text in texts.items():
        artifact = ex.artifact_of(text)
        kept = (text, None) if artifact is None else (None, artifact.hash)
        record = Record(
            id=ex.next_id(), branch=branch, name=name, key=key, generation=1, state="done", result=kept[0], artifact=kept[1],
            started_us=now, ended_us=now,
        )  # fmt: skip
        made.append((record, artifact))

    def write(tx: Tx) -> None:
        for record, artifact in made:
            steps.append(tx, ex.hold, record, now_us=now, artifact=artifact)

    try:
        ex.store.write_now(write, durable=ex.full, client=ex.hold.client_id)
    except Superseded:
        ex.refused()
        raise
    except StoreUnavailable as error:
        raise ex.abandon(error) from error
    for record, _ in made:
        ex.keep(record)
