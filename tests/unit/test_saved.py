"""What a recovery saved, from the records of its run."""

from __future__ import annotations

import time
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stepseven.transitions.recoveries import saved
from stepseven.transitions.state import Record

BRANCHES = ["", "m", "m[1]", "m[1]/f[k]", "m[1]/f[k]/g", "m[2]"]


@given(st.lists(st.tuples(st.sampled_from(BRANCHES), st.booleans(), st.booleans()), max_size=9))
def test_what_was_saved_follows_branches_however_they_are_nested(calls: list[tuple[str, bool, bool]]) -> None:
    """A record that was not made anew counts when something before it was, in its branch, around it or within it."""
    records = [
        Record(id=n, branch=branch, name="s", key=str(n), generation=1, state="done", used=used)
        for n, (branch, used, _) in enumerate(calls, 1)
    ]  # fmt: skip
    again = [
        replace(r, id=len(calls) + n, generation=2) for n, (r, (*_, ran)) in enumerate(zip(records, calls, strict=True), 1) if ran
    ]

    def related(a: str, b: str) -> bool:
        return not a or not b or f"{a}/".startswith(f"{b}/") or f"{b}/".startswith(f"{a}/")

    first = {r.key: r for r in records}
    renewed = {a.key for a in again}
    wanted = sum(
        r.used and r.key not in renewed and any(related(r.branch, a.branch) and first[a.key].seq < r.seq for a in again)
        for r in records
    )
    assert saved([*records, *again], len(calls)).get("s", 0) == wanted


def test_what_was_saved_by_many_items_is_counted_at_once() -> None:
    """A map of 5,000 items with a step made anew in each: it is counted while the run is put away, under its lease."""
    items = [Record(id=n, branch=f"m[{n}]", name="a", key="k", generation=1, state="done", used=False) for n in range(1, 5001)]
    built = [replace(r, id=r.id + 5000, name="b", used=True) for r in items]
    again = [replace(r, id=r.id + 10000, generation=2) for r in items]
    began = time.process_time()
    assert saved([*items, *built, *again], 10000) == {"b": 5000}
    assert time.process_time() - began < 2  # each with each took 12 s
