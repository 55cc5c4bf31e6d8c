"""Large results that no record names any more: which there are, and how they go, row and file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial

from stepseven.runtime.edge import Edge
from stepseven.store.artifacts import ASIDE, GRACE_S, PART, Artifacts
from stepseven.store.base import Reader, Row, Store, Tx
from stepseven.transitions.dropping import drop_artifact

FILES = 50  # of the artifact folder, looked at between two pauses
BEING_WRITTEN_US = 60_000_000  # a row without its file is of one that is just being written, unless it is older
LOOK_S = 0.05  # between two looks whether such a file is there now
LOOKS = 100


def announce(store: Store, edge: Edge, name: str, location: str) -> None:
    """Write the row of a file that is about to be there. It survives a power failure, as the file may."""
    values = {"hash": name, "location": location, "now": edge.now_us()}
    store.write_now(lambda tx: tx.run(tx.sql.announce_artifact, values), durable=True, client=None)


def swept(store: Store, reader: Reader, artifacts: Artifacts, *, now_us: int, grace_s: float) -> Iterator[int | None]:
    """Remove results that no record names: rows, then their files; gives the size of each, and ``None`` to pause.

    A file is set aside, then its row is deleted if still nobody names it, and only then the file. Whoever dies in between
    leaves a file that is set aside: with its row it is found here again, without it by ``strays``.
    """
    for row in _idle(reader):
        if row is None:
            yield None
            continue
        where, name = row["location"], row["hash"]
        if where is None:
            if _drop(store, name):
                yield row["size"]
        elif artifacts.set_aside(where, grace_s=grace_s):
            if taken(store, artifacts, name, where):
                yield row["size"]
        elif row["size"] == 0 and now_us - row["created_us"] > max(BEING_WRITTEN_US, grace_s * 1e6) and _drop(store, name):
            artifacts.remove(where)  # there never was a file, but maybe the beginning of one


def taken(store: Store, artifacts: Artifacts, name: str, where: str) -> bool:
    """Remove a file that is set aside, unless a record names it."""
    gone = _drop(store, name)
    if gone:
        artifacts.remove(where)
    else:
        artifacts.put_back(where)
    return gone


def discard(store: Store, artifacts: Artifacts, names: Iterable[str]) -> None:
    """Remove the files of results that were not accepted, unless a record names them all the same."""
    for name in names:
        row = store.read_now(partial(_named, name=name))
        if row is not None and row["location"] is not None and artifacts.set_aside(row["location"], grace_s=0):
            taken(store, artifacts, name, row["location"])


def _drop(store: Store, name: str) -> bool:
    return store.write_now(lambda tx: drop_artifact(tx, name, files=True), durable=False, client=None)


def _idle(reader: Reader) -> Iterator[Row | None]:
    """Rows that no record names; ``None`` after each page."""
    after = ""
    while rows := reader.read_now(partial(_page, after=after)):
        after = rows[-1]["hash"]
        yield None
        yield from (row for row in rows if row["idle"])


def _page(tx: Tx, *, after: str) -> list[Row]:
    return tx.all(tx.sql.artifact_page, {"after": after})


def left(reader: Reader) -> tuple[int, bool]:
    """How many results no record names are still there, and whether one of them is just being written."""
    found = [row for row in _idle(reader) if row is not None]
    return len(found), any(row["size"] == 0 for row in found)


def all_swept(store: Store, reader: Reader, artifacts: Artifacts, edge: Edge) -> tuple[int, int]:
    """Remove at once whatever no record names; how many went, and how many did not: they are in another folder.

    Whoever was about to name one notices and writes it again. One that is just being written may be the last word of a step
    that was overtaken: it is waited for, and goes then.
    """
    gone = missing = 0
    for _ in range(LOOKS):
        gone += sum(1 for size in swept(store, reader, artifacts, now_us=edge.now_us(), grace_s=0) if size is not None)
        for _ in strays(reader, artifacts, grace_s=0):
            pass
        missing, coming = left(reader)
        if not coming:
            break
        time.sleep(LOOK_S)
    return gone, missing


def strays(reader: Reader, artifacts: Artifacts, *, grace_s: float = GRACE_S) -> Iterator[None]:
    """Remove files that no row names, pausing now and then: of processes that died while they removed or wrote them.

    In a folder that was chosen there may be other things: only what was set aside, or begun for a row, is certainly ours.
    """
    for n, (location, name, age_s) in enumerate(artifacts.strays()):
        if n % FILES == FILES - 1:
            yield
        if location.endswith(PART) and age_s > GRACE_S:  # nobody writes for so long
            if artifacts.own or reader.read_now(partial(_named, name=name)) is not None:
                artifacts.remove_stray(location)
            continue
        ours = location.endswith(ASIDE) or (artifacts.own and age_s >= grace_s)
        if ours and reader.read_now(partial(_named, name=name)) is None:
            artifacts.remove_stray(location)


def _named(tx: Tx, *, name: str) -> Row | None:
    return tx.one(tx.sql.artifact, {"hash": name})
