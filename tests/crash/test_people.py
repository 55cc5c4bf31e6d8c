"""SIGKILL at every durable write and every request of a run in which a person decides; the judge is a counter outside."""

from __future__ import annotations

import json
import sqlite3

import pytest

from tests.crash import people
from tests.crash.killer import Kill
from tests.crash.story import Stage, places

MAIN = "tests.crash.people:main"


def played(stage: Stage, *kills: Kill) -> bool:
    """Die at each place in turn, then live to the end and be judged. ``False``: the first place lies behind the end."""
    stage.fresh()
    deaths = 0
    for kill in (*kills, None):
        end = stage.live(main=MAIN, kill=kill)
        if not end.killed:
            break
        deaths += 1
    assert end.code == 0, end.err
    assert json.loads(end.out.strip().splitlines()[-1]) == people.WANT
    assert stage.outside.counts() == dict.fromkeys(people.EFFECTS, 1)
    connection = sqlite3.connect(stage.state / "s.db")
    try:
        asked = connection.execute("SELECT kind, step, status, count(*) FROM question GROUP BY kind, step, status").fetchall()
        facts = connection.execute("SELECT key, count(*) FROM fact GROUP BY key").fetchall()
    finally:
        connection.close()
    # Each was asked once and answered once, wherever the process died; each fact was set once.
    assert sorted(asked, key=str) == [
        ("approve", "burn", "answered", 1), ("approve", "post", "answered", 4), ("approve", None, "answered", 1),
        ("ask", None, "answered", 1),
    ]  # fmt: skip
    assert facts == [("language", 1), ("seen", 1)]
    return deaths > 0


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "where, side, at_least",
    [("commit", "before", 25), ("commit", "after", 25), ("send", "before", 6), ("send", "after", 6), ("answer", "after", 6)],
)
def test_a_kill_at_any_place_changes_no_decision(stage: Stage, where: str, side: str, at_least: int):
    """Killed anywhere: nothing unapproved goes out, what goes out is what was approved, once; nothing is asked twice."""
    met = 0
    for kill in places(where, side):
        if not played(stage, kill):
            break
        met += 1
    assert met >= at_least


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_kills_change_no_decision(stage: Stage):
    """Killed at a commit, and in the next life at an early commit again: the same end."""
    for kill in places("commit", "after", stride=4):
        if not played(stage, kill, Kill("commit", 3, "after")):
            break
