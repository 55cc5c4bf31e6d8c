"""What stands in the branches of a run: the items of its maps, and what the code of its steps called.

A branch is named after what made the calls in it: ``bill_one[…]`` holds the calls of one item of a map, ``bill_all[…]`` those of
a step's own code. Under another name there would be another branch, and nothing on record in it.
"""

from __future__ import annotations

import json
import re
from dataclasses import field
from typing import TYPE_CHECKING

from stepseven._dataclass import dataclass
from stepseven.decide.changes import MAP
from stepseven.model import ONCE, EffectState
from stepseven.transitions.state import outwards

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from stepseven.runtime._notes import Mapped
    from stepseven.runtime.memory import RunMemory
    from stepseven.store.base import Row

_MAP = "run.map"
_NUMBER = re.compile(r"~\d+\Z")


@dataclass(slots=True)
class Inside:
    """What stands in the branches named after one step, or one map.

    Attributes:
        branches: the branches: a map's items, the calls of a step.
        acts: something in them changed something outside that would be done again in branches of another name.
        doubt: of something in them it is not known whether it was done.
        usd: what all in them has cost, in micro-USD.
    """

    branches: set[str] = field(default_factory=set)
    acts: bool = False
    doubt: bool = False
    usd: int = 0


def inside(ex: RunMemory, claims: Iterable[Row]) -> dict[str, Inside]:
    """By name: of a step as it is, of a map with ``MAP`` before it.

    Args:
        ex: the run.
        claims: of its effects, as far as they were looked at.
    """
    found: dict[str, Inside] = {}
    around: dict[str, list[Inside]] = {}  # of each branch, found out once
    for record in ex.records.values():
        acts = record.effect is not None and record.key == ONCE
        if record.branch not in around:
            around[record.branch] = list(_around(ex, record.branch, found))
        for one in around[record.branch]:
            one.usd += record.usd or 0
            one.acts = one.acts or acts
    for row in claims:
        for one in _around(ex, row["branch"], found):
            one.acts = one.acts or str(row["key"]).startswith(f"{ONCE}/")
            one.doubt = one.doubt or row["state"] != EffectState.DONE
    return found


def _around(ex: RunMemory, branch: str, found: dict[str, Inside]) -> Iterable[Inside]:
    for at in outwards(branch):
        name = owner(ex, at)
        if name is not None:
            one = found.setdefault(name, Inside())
            one.branches.add(at)
            yield one


def owner(ex: RunMemory, branch: str) -> str | None:
    """After what a branch is named; ``None``: the run's own, or part of a key."""
    around, _, last = branch.rpartition("/")
    if not last.endswith("]") or (around and not around.endswith("]")):
        return None
    key = last.rpartition("[")[0]
    if (around, _MAP, key) in ex.records:
        return MAP + base(key)
    return last.partition("[")[0] or None


def base(key: str) -> str:
    """What a map's key is named after: without the number of a repeat."""
    return _NUMBER.sub("", key)


def elsewhere(ex: RunMemory, source: Collection[Mapped]) -> set[str]:
    """Maps on record that the source may still have, under a key that is put together when it runs."""
    free = {m.function for m in source if not m.key}
    found = set()
    for record in ex.records.values() if free else ():
        if record.name == _MAP:
            function, name = str(json.loads(record.result or "{}").get("step")), base(record.key)
            if function in free or name != function:
                found.add(MAP + name)
    return found
