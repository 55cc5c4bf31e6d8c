"""A map's items: their branches, what they are called, and what is on record of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stepseven.runtime.calls import join
from stepseven.store.codec import canonical, digest, free_text, guard

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Row


def branches_of(branch: str, key: str, items: Iterable[Any], name: str) -> list[str]:
    """A branch per item: named by the item's digest, equal items numbered."""
    counts: dict[str, int] = {}
    made = []
    for i, item in enumerate(items):
        text = digest(guard(canonical(item, f"{name}: items[{i}]"), f"{name}: items[{i}]", secrets="refuse"))
        counts[text] = n = counts.get(text, 0) + 1
        made.append(join(branch, f"{key}[{text}{f'~{n}' if n > 1 else ''}]"))
    return made


def label(item: Any) -> str:
    """An item for people: a short text, or what it is called."""
    if isinstance(item, str):
        return free_text(item.rsplit("/", 1)[-1] or item, 60)
    for name in ("name", "id", "number", "file", "title"):
        value = item.get(name) if isinstance(item, dict) else getattr(item, name, None)
        if isinstance(value, str | int) and value != "":
            return free_text(str(value), 60)
    return free_text(str(item), 60)


def reason(row: Row) -> str:
    """Why the item failed that a question is about."""
    failed = json.loads(row["context"]).get("failed") or [{}]
    return str(failed[-1].get("reason") or row["text"].split("\n", 1)[0])


def tries_of(ex: Execution, row: Row) -> list[Row]:
    """The tries a question of an item is about."""
    key = str(row["key"]).removeprefix(f"{row['step']}/").partition("#")[0]
    return ex.attempts.get((row["branch"], row["step"], key), [])


def in_order(row: Row) -> tuple[int, int]:
    """The order in which questions were asked, by the run's records."""
    return row["asked_seq"], row["created_us"]


def within(branch: str, mine: set[str]) -> str | None:
    """The item's branch that *branch* is or lies in."""
    while branch and branch not in mine:
        branch = branch.rpartition("/")[0]
    return branch or None
