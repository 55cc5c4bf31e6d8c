"""A map's items: their branches, what they are called, and what is on record of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from stepseven.decide import policy
from stepseven.model import QuestionKind
from stepseven.runtime.calls import join
from stepseven.store.codec import canonical, digest, free_text, guard

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.memory import RunMemory
    from stepseven.store.base import Row

AFTER_LOOK_US = 5_000_000  # how soon after a look is due it is seen what came of it


def branches_of(branch: str, key: str, items: Iterable[Any], name: str) -> list[str]:
    """A branch per item: named by the item's digest, equal items numbered."""
    counts: dict[str, int] = {}
    made = []
    for i, item in enumerate(items):
        text = digest(guard(canonical(item, f"{name}: items[{i}]"), f"{name}: items[{i}]", secrets="refuse"))
        counts[text] = n = counts.get(text, 0) + 1
        made.append(join(branch, f"{key}[{text}{f'~{n}' if n > 1 else ''}]"))
    return made


def gone_of(ex: RunMemory, branch: str, key: str, mine: set[str]) -> dict[str, int]:
    """Step → for how many items it is done that a map has no more: they are no part of its total.

    Args:
        ex: the run.
        branch: in which the map was called.
        key: its key.
        mine: the branches of the items that it has now.
    """
    begins = join(branch, f"{key}[")
    found: dict[str, set[str]] = {}
    for record in ex.records.values():
        if record.state == "done" and record.branch.startswith(begins):
            item = record.branch[: record.branch.find("]", len(begins)) + 1]
            if item not in mine:
                found.setdefault(record.name, set()).add(item)
    return {name: len(items) for name, items in sorted(found.items())}


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
    return ex.attempts.get((row["branch"], row["step"], key_of(row)), [])


def key_of(row: Row) -> str:
    """The key of the call a question of an item is about."""
    key = str(row["key"]).removeprefix(f"{row['step']}/")
    return key.rpartition("#")[0] if row["kind"] == QuestionKind.UNKNOWN_OUTCOME.value else key  # there a claim is named, too


async def until_it_answers(ex: Execution, name: str, batch: Row, folded: Callable[[], list[Row]]) -> None:
    """A person said to wait until the resource answers: the failed items look again and again, each by itself.

    Ends when one of them has found another thing than before: then further items may start.

    Args:
        ex: the run.
        name: what the map does, for people.
        batch: the answered question.
        folded: gives the items' own questions, for which it stood.
    """
    while not any(_moved_on(ex, row) for row in folded()):
        looked = [tries[-1]["ended_us"] or 0 for row in folded() if (tries := tries_of(ex, row))]
        next_us = max([batch["answered_us"], *looked]) + policy.LOOK_EVERY_US
        what = f"{name}: the next look whether it answers, as {batch['answered_by']} chose"
        await ex.until(max(next_us, ex.now_us() + AFTER_LOOK_US), what)


def _moved_on(ex: Execution, asked: Row) -> bool:
    """Whether an item's step has ended, or failed otherwise, since this question about it was answered."""
    failed = [t for t in tries_of(ex, asked) if t["outcome"] in ("failed", "unknown")]
    return (asked["branch"], asked["step"], key_of(asked)) in ex.records or len(failed) > asked["attempts"]


def in_order(row: Row) -> tuple[int, int]:
    """The order in which questions were asked, by the run's records."""
    return row["asked_seq"], row["created_us"]


def within(branch: str, mine: set[str]) -> str | None:
    """The item's branch that *branch* is or lies in."""
    while branch and branch not in mine:
        branch = branch.rpartition("/")[0]
    return branch or None
