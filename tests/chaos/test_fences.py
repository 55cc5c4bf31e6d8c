"""Each condition under which a statement writes, taken away: then what a few calls in a fixed order say cannot have happened.

Every case is played twice, with the statements as they are and with one condition always true. What is judged is what the
clients were told (``history``), and what cannot be told in one of its words by a look afterwards. Both databases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields

import pytest

from stepseven.store.dialect import SQLITE
from stepseven.store.statements import Statements, statements
from tests.chaos.late import CASES
from tests.chaos.scene import (
    FENCE,
    LIVE,
    NOBODYS,
    NOT_DONE,
    NOT_ENDED,
    OPEN,
    OWNER,
    PUT_AWAY,
    REFUSED,
    SEEN,
    TRIES,
    WAITING,
    Stores,
    kept_database,
)

# -- the whole list -----------------------------------------------------------------------------------------------------------

OWNERLESS = r"(?<![\w.])owner IS NULL"
STOPPING = r"status IN \('cancelling', 'failing'\)"
REFUSED_RECEIPT = r"substr\(receipt, 1, length\(.*?\)\) = \S+"
IS_DONE = r"(?<!u\.)state = 'done'"
CONDITIONS = (
    FENCE, OWNER, NOBODYS, SEEN, NOT_ENDED, PUT_AWAY, LIVE, STOPPING, TRIES, NOT_DONE, REFUSED, IS_DONE, REFUSED_RECEIPT, OPEN,
    WAITING, OWNERLESS,
)  # fmt: skip

#: Conditions that no order of calls can show, because another one stands before them; and those that other tests hold.
REDUNDANT: dict[tuple[str, str], str] = {
    ("wake_run", OWNERLESS): "a waiting run has no owner: `park_run` writes both at once, `take_run` neither",
    ("wake_for_fact", OWNERLESS): "the same",
    (
        "wake_for_fact",
        WAITING,
    ): "only a parked run has rows in `wait`: they are written with the parking and go with the take and the end",
    ("fill_receipt", IS_DONE): "a receipt that says it was refused is written by `settle_claim` alone, which makes it done",
    ("settle_recorded", NOT_DONE): "`append_settled` writes no record beside a receipt, and without it nothing is written here",
    ("decide_undo", IS_DONE): "an undo is offered of receipts only, and a receipt is final (tests/runs/test_undo_shared.py)",
    ("beat", OWNER): "a worker's own row",
    ("drop_worker", OWNER): "not a run's: rows of the dead that something still names stay (tests/runs/test_effects_death.py)",
    ("guard_prune", OWNERLESS): "what has ended has no owner (tests/store/test_prune.py)",
    ("guard_prune", NOT_ENDED): "the reverse of it: what has ended (tests/store/test_prune.py)",
    ("guard_prune", OPEN): "what nobody has to answer any more (tests/store/test_prune.py)",
    ("count_questions", OPEN): "what is counted, not when",
    ("claim_delivery", TRIES): "`next_us` is compared, too, and every claim moves it (tests/people/test_postman.py)",
    ("climb_ladder", OPEN): "only what is open is ever due: a closed question's ladder is looked at by nobody",
    ("look_at_ladders_of", OPEN): "the same",
    ("start_ladders", OPEN): "the same",
    ("close_incident", OPEN): "closed once more it is closed all the same",
    ("keep_incident", OPEN): "what nothing open is left of is closed right after it, in the same transaction",
    ("wake_soon", WAITING): "a time to wake counts for waiting runs without an owner alone (`due_timers`)",
    ("wake_soon", OWNERLESS): "the same",
    ("wake_waiters", WAITING): "the same",
    ("withdraw_folded", OPEN): "what is folded into an open question has no answer of its own",
    ("hold_external", FENCE): "runs that are executed outside have tests of their own (tests/runs/test_external_fences.py)",
    ("resume_external", FENCE): "the same",
    ("resume_external", LIVE): "the same",
    ("note_executor", FENCE): "written right after `resume_external`, in its transaction",
    ("turn_external", FENCE): "`hold_external` has just looked, and holds the row until the transaction ends",
    ("turn_external", OWNER): "the same",
    ("turn_external", LIVE): "the same",
}


def test_no_condition_is_forgotten() -> None:
    """Every condition of a writing statement is in a case above, or is said to be needless and why."""
    shown = {
        (name, condition) for case in CASES.values() for name, conditions in case.conditions.items() for condition in conditions
    }
    sql = statements(SQLITE)
    there = {
        (field.name, condition)
        for field in fields(Statements)
        for condition in CONDITIONS
        if (text := getattr(sql, field.name)).lstrip()[:6] in ("INSERT", "UPDATE", "DELETE") or field.name.startswith("guard_")
        if re.search(condition, text.partition("WHERE")[2])
    }
    assert there - shown - set(REDUNDANT) == set(), "neither shown to be needed nor said to be needless"
    assert {pair for pair in shown if pair not in there} == set(), "shown, but not there"


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """Stores on one database."""
    with ExitStack() as cleanup:
        on_file = request.param == "sqlite"
        folder = tmp_path_factory.mktemp("fences")
        made = Stores(f"sqlite:///{folder / 's7.db'}" if on_file else cleanup.enter_context(kept_database("fences")))
        cleanup.callback(made.close)
        yield made


@pytest.mark.parametrize("name", CASES)
def test_each_condition_is_needed(name: str, stores: Stores) -> None:
    """With its condition a statement refuses who is too late; without it the history cannot have happened."""
    case = CASES[name]
    if stores.url.startswith("sqlite") and ("_free" in name or "_alone" in name):
        pytest.skip("SQLite has one statement for both: how a commit waits is said outside")
    whole = stores.scene()
    case.play(whole)
    assert whole.verdict() == []

    weak = stores.scene()
    for statement, conditions in case.conditions.items():
        weak.weaken(statement, *conditions)
    case.play(weak)
    assert weak.verdict(), "nothing shows that the condition is gone"
