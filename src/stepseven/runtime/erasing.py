"""Forgetting a client for good: one transaction, then its files, then every older copy in the database file."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from stepseven.errors import StoreUnavailable
from stepseven.model import Forgotten
from stepseven.runtime.files import all_swept
from stepseven.runtime.services import Services
from stepseven.store.codec import free_text
from stepseven.transitions import forgetting


def forget(services: Services, client_id: str, *, by: str, reason: str | None) -> Forgotten:
    """Forget a client; see ``Client.forget``.

    A crash after the transaction leaves files that no row of a record names, and old copies in the file: the same call again
    finds and removes both.
    """
    who = free_text(by, 200)
    note = f"forgotten by {who}" + (f": {free_text(reason, 300)}" if reason else "")
    now = services.edge.now_us()
    done = services.store.erase(lambda tx: forgetting.forget(tx, client_id, note=note, now_us=now), client=client_id)
    # Not an hour later, as for others: nothing of this client's is under way. If another client's step has returned the very
    # same large text in this moment, it is written again with that step's record.
    with closing(services.store.reader()) as reader:
        gone, missing = all_swept(services.store, reader, services.artifacts, services.edge)
    done = replace(done, artifacts=done.artifacts + gone, files_missing=missing)
    try:
        services.store.compact()
    except StoreUnavailable:
        return done  # ``compacted`` says so: what is left is not readable by any statement, and goes with the next compaction
    return replace(done, compacted=True)
