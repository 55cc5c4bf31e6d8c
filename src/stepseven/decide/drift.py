"""What moved while a run waited: what it built on, against what is so now. Pure.

A run builds on facts (it pinned them, the code of its steps read them, people answered what is kept as one) and on the record of
its client that was read outside when it began. What it said itself is no drift, nor is another word for the same value. A fact
that no longer holds counts as changed to "not known".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide import _phrases as say
from stepseven.decide.plan import Drifted

RECORD = "record"  # what stands before a field of the client record


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One time that the run built on a fact.

    Attributes:
        key: of the fact.
        version: which one; 0: it was not known.
        who: the step whose code read it, or the answer that became it, in words; ``None``: the workflow's own code did.
    """

    key: str
    version: int
    who: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One version of a fact as the store has it. ``value`` is JSON as Python has it; ``until_us``: it holds until then."""

    key: str
    version: int
    value: Any
    source: str | None = None
    by: str | None = None
    run_id: str | None = None
    at_us: int = 0
    until_us: int | None = None

    def holds(self, now_us: int) -> bool:
        """Whether it still counts as known."""
        return self.until_us is None or self.until_us > now_us


def moved(reads: Iterable[Read], own: Mapping[str, int], words: Mapping[str, Sequence[Word]], now_us: int) -> list[Drifted]:
    """The facts the run built on that are not so any more.

    Args:
        reads: each time it did.
        own: fact → the newest version that the run said itself. What it had read of it before is settled by that.
        words: fact → every version, oldest first.
        now_us: the time.

    Returns:
        One entry per fact, in the order first read.
    """
    by_key: dict[str, list[Read]] = {}
    for read in reads:
        if read.version >= own.get(read.key, 0):
            by_key.setdefault(read.key, []).append(read)
    found = (_of_fact(mine, words.get(key, ()), now_us) for key, mine in by_key.items())
    return [one for one in found if one is not None]


def _of_fact(reads: Sequence[Read], words: Sequence[Word], now_us: int) -> Drifted | None:
    if not words:
        return None
    known, newest = {w.version: w for w in words}, words[-1]
    holds = newest.holds(now_us)

    def differs(read: Read) -> bool:
        if read.version == 0 or not holds:
            return (read.version == 0) == holds
        old = known.get(read.version)
        return read.version != newest.version and (old is None or not same(old.value, newest.value))

    against = [read for read in reads if differs(read)]
    if not against:
        return None
    old = known.get(max(read.version for read in against))
    who = tuple(dict.fromkeys(read.who for read in against if read.who is not None))
    return _between(newest.key, old, newest, now_us, depends=who)


def _between(key: str, old: Word | None, new: Word, now_us: int, *, depends: tuple[str, ...] = (), read: bool = True) -> Drifted:
    holds = new.holds(now_us)
    return Drifted(
        key=key, old=None if old is None else old.value, new=new.value if holds else None,
        source=new.source if holds else None, by=new.by if holds else None, at_us=new.at_us if holds else new.until_us,
        old_version=None if old is None else old.version, new_version=new.version if holds else None, depends=depends, read=read,
    )  # fmt: skip


def unread(
    words: Mapping[str, Sequence[Word]],
    met: Mapping[str, int | None],
    own: Mapping[str, int],
    watch: Sequence[str],
    since_us: int,
    now_us: int,
) -> list[Drifted]:
    """What else about the client changed since the run began, and that it did not build on.

    Args:
        words: fact → every version, oldest first, of those it has not read.
        met: fact → the version it was told to go on with; ``None``: that it is not known.
        own: fact → the newest version that the run said itself.
        watch: as declared: a fact in it counts as read.
        since_us: when it began.
        now_us: the time.
    """
    found = []
    for key, said in words.items():
        known = {w.version: w for w in said}
        at_start = next((w for w in reversed(said) if w.at_us <= since_us), None)
        at_start = at_start if at_start is not None and at_start.holds(since_us) else None
        old = known.get(met[key] or 0) if key in met else at_start
        mine = known.get(own.get(key, 0))
        if mine is not None and (old is None or old.version < mine.version):
            old = mine
        now = said[-1] if said[-1].holds(now_us) else None
        if (old is None) != (now is None) or (old is not None and now is not None and not same(old.value, now.value)):
            found.append(_between(key, old, said[-1], now_us, read=key in watch))
    return found


def same(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal: unlike Python, ``true`` is not 1, and 1.0 is not 1."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


# -- the client record ------------------------------------------------------------------------------------------------------


def of_record(old: Any, new: Any, watch: Sequence[str], *, source: str, at_us: int) -> list[Drifted]:
    """The fields of the client record that differ.

    Where *watch* names fields of it, only those count as read.

    Args:
        old: the record as the run has it, JSON.
        new: as it was read just now; ``None``: there is no such client any more.
        watch: as declared.
        source: who gave it.
        at_us: when it was read.
    """
    before, after = _fields(old), _fields(new)
    watched = {path for path in (*before, *after) if _watches(watch, path)}
    return [
        Drifted(
            key=path, old=before.get(path), new=after.get(path), source=source, at_us=at_us, read=not watched or path in watched
        )
        for path in dict.fromkeys((*before, *after))
        if path not in before or path not in after or not same(before[path], after[path])
    ]  # fmt: skip


def _fields(record: Any) -> dict[str, Any]:
    if not isinstance(record, Mapping) or not record:
        return {RECORD: record}
    return {f"{RECORD}.{path}": value for path, value in say.leaves(record)}


def patched(record: Any, moved: Iterable[Drifted]) -> Any:
    """*record* with the fields as they are now. One that is not there any more is ``None``."""
    for one in moved:
        if one.key == RECORD:
            record = one.new
        elif isinstance(record, Mapping) and in_record(one):
            record = _with(record, one.key.removeprefix(f"{RECORD}."), one.new)
    return record


def _with(record: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    inner = next((k for k, v in record.items() if isinstance(v, Mapping) and v and path.startswith(f"{k}.")), None)
    if inner is None:
        return {**record, path: value}
    return {**record, inner: _with(record[inner], path.removeprefix(f"{inner}."), value)}


def in_record(one: Drifted) -> bool:
    """Whether it is a field of the client record, and no fact."""
    named = one.key == RECORD or one.key.startswith(f"{RECORD}.")
    return named and one.old_version is None and one.new_version is None


# -- what is asked about ------------------------------------------------------------------------------------------------------


def _watches(watch: Sequence[str], path: str) -> bool:
    """Whether *watch* names a field of the record (with or without ``record.``), or what it is a part of."""
    short = path.removeprefix(f"{RECORD}.")
    return any(w in (path, short) or short.startswith(f"{w}.") or path.startswith(f"{w}.") for w in watch)


def identity(one: Drifted) -> list[Any]:
    """From what to what it moved, as JSON: as long as that stays the same it is the same drift."""
    known = one.new_version is not None or in_record(one)
    return [one.old, one.old_version, *([one.new, one.new_version] if known else [None, None, one.at_us])]


def about(moved: Sequence[Drifted]) -> list[Any]:
    """What a question about these is given on, as JSON."""
    return [[one.key, *identity(one)] for one in sorted(moved, key=lambda one: one.key)]
