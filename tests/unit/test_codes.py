"""Which code made a record or a claim, from the marks that takes with other code leave."""

from __future__ import annotations

from typing import Any

import pytest

from stepseven.transitions import codes
from stepseven.transitions.codes import Mark

MARKS = (
    Mark(seq=5, run_no=1, fence=2, before="a", digest="b"),
    Mark(seq=9, run_no=1, fence=4, before="b", digest="a"),
)
FORK = Mark(seq=12, run_no=7, fence=3, before="a", digest="c")


@pytest.mark.parametrize("seq,digest", [(1, "a"), (4, "a"), (6, "b"), (8, "b"), (10, "a")])
def test_a_record_is_of_the_code_between_two_marks(seq: int, digest: str) -> None:
    """What was written before the first mark is of the code before it; a rollback is the older code again."""
    assert codes.made_record(MARKS, seq, "a") == digest
    assert codes.made_record((), seq, "now") == "now"


@pytest.mark.parametrize(
    "run_no,fence,digest",
    [(1, 1, "a"), (1, 2, "b"), (1, 3, "b"), (1, 5, "a"), (7, 2, "a"), (7, 3, "c")],
)
def test_a_claim_is_of_the_code_of_its_take(run_no: int, fence: int, digest: str) -> None:
    """By the run that claimed it: a fork has the marks of its root, and its own."""
    claim: Any = {"run_no": run_no, "fence": fence}
    assert codes.made_claim((*MARKS, FORK), claim, "c") == digest


def test_a_claim_of_a_run_without_marks_is_of_the_code_there_was() -> None:
    """Of a root that never changed: the code its fork began with. Of a fork that never changed: that, too."""
    assert codes.made_claim((FORK,), {"run_no": 1, "fence": 9}, "c") == "a"
    assert codes.made_claim(MARKS, {"run_no": 7, "fence": 1}, "a") == "a"
    assert codes.made_claim((), {"run_no": 1, "fence": 1}, "now") == "now"


def test_a_look_marks_what_a_take_would() -> None:
    """Other code is seen before it takes the run; the same code marks nothing."""
    run: Any = {"no": 1, "fence": 4, "source_digest": "a"}
    assert codes.as_if_taken(MARKS, run, 20, "a") == MARKS
    assert codes.as_if_taken(MARKS, run, 20, "d")[-1] == Mark(
        seq=21, run_no=1, fence=5, before="a", digest="d", born=2**63 - 1
    )  # fmt: skip
