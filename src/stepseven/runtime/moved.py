"""What changed code has left behind in other places: writes in branches where it does not call them any more.

A write without a key of its own is known by the branch it is called in. Code that calls it in a step, in a map, or for an item of
another form calls another one, as far as keys tell; ``rekeyed`` compares it with what stands elsewhere. What is still to come
there does not count, nor what a finished step has called: that step answers, so its code is not run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepseven.model import ONCE
from stepseven.runtime import inside
from stepseven.runtime.calls import inner_branch
from stepseven.transitions import renaming
from stepseven.transitions.state import outwards

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from stepseven.runtime.calls import Call
    from stepseven.runtime.memory import RunMemory
    from stepseven.transitions.state import Record

_KEYS = re.compile(r"\[[^\]]*\]")


class Elsewhere:
    """The writes a run had on record when this execution began, by step, in whatever branch.

    Attributes:
        coming: branches of items whose code has not begun, and will.
    """

    __slots__ = ("_around", "_equal", "_writes", "coming")

    def __init__(self, ex: RunMemory) -> None:
        self.coming: set[str] = set()
        self._writes: dict[str, list[Record]] = {}
        self._equal: dict[tuple[str, str | None], list[Record]] = {}
        self._around: dict[str, Record] | None = None
        for record in ex.records.values():
            if record.effect is not None:
                self.add(record)

    def add(self, record: Record) -> None:
        """One more: it was found out that it was done."""
        self._writes.setdefault(record.name, []).append(record)
        if record.key == ONCE:
            self._equal.setdefault((record.name, record.inputs), []).append(record)

    def of(self, names: Iterable[str], branch: str) -> list[Record]:
        """The writes of a step that this execution's code has not asked for, in any branch but this one."""
        found: list[Record] = []
        for name in names:
            rows = self._writes.get(name)
            if rows:
                rows[:] = [record for record in rows if not record.used]
                found += (record for record in rows if record.branch != branch)
        return found

    def any_equal(self, names: Iterable[str], call: Call) -> bool:
        """Whether one without a key, and with just these arguments, stands elsewhere and was not asked for. Cheap."""
        if call.key[2] != ONCE:
            return False
        rows = (record for name in names for record in self._equal.get((name, call.digest), ()))
        return any(not record.used and record.branch != call.branch for record in rows)

    def left_behind(self, ex: RunMemory, branch: str) -> bool:
        """Whether nothing will ask for what stands in a branch, as far as is known now.

        Args:
            ex: the run.
            branch: of the write.
        """
        if not branch:
            return True
        if self._around is None:
            self._around = {inner_branch(r.branch, r.name, r.key): r for r in ex.records.values()}
        for at in outwards(branch):
            around = self._around.get(at)
            if at in self.coming or (around is not None and around.used):
                return False
        return True


def elsewhere(ex: RunMemory) -> Elsewhere:
    """The run's, made when it is first wanted."""
    if ex.elsewhere is None:
        ex.elsewhere = Elsewhere(ex)
    return ex.elsewhere


def to_come(ex: RunMemory, branches: Collection[str]) -> None:
    """A map begins: what stands in the branches of its items is asked for when they have their turn."""
    if ex.resumed:
        elsewhere(ex).coming.update(branches)


def came(ex: RunMemory, branch: str) -> None:
    """An item's code begins."""
    if ex.elsewhere is not None:
        ex.elsewhere.coming.discard(branch)


def said_other(ex: RunMemory, then: str, now: str) -> bool:
    """Whether a person has said that what called in one branch is not what calls in the other now: its writes are others, too."""
    other = renaming.said(ex.questions).other if then else frozenset()
    if not other:
        return False
    mine = {name for at in outwards(now) if (name := inside.owner(ex, at)) is not None}
    return any((inside.owner(ex, at), name) in other for at in outwards(then) for name in mine)


def twins(call: Call, branch: str, key: str, inputs: str | None) -> bool:
    """Whether something done elsewhere is certainly the same as a call: no keys, the same arguments, in another kind of place.

    Two items of one map may well do the same thing, each for itself.
    """
    return key == call.key[2] == ONCE and inputs == call.digest and place_of(branch) != place_of(call.branch)


def place_of(branch: str) -> str:
    """What has called there, without saying for which item, or with which arguments: empty for the workflow's own code."""
    return _KEYS.sub("", branch)


def places(then: str, now: str) -> tuple[str, str] | None:
    """Two branches for people, each by the function or the step that called there; ``None``: they are one."""
    return None if then == now else (place_of(then).rpartition("/")[2], place_of(now).rpartition("/")[2])
