"""SIGKILL at every durable write of a parent and its children; the judge is a counter outside, and the rows."""

from __future__ import annotations

import json
import sqlite3

import pytest

from tests.crash.killer import Kill
from tests.crash.story import Stage, places

MAIN = "tests.crash.family:main"
VALUE = {"booked": "yes: b-1", "count": 2, "paid": "c-1"}


def rows(stage: Stage, sql: str) -> list[tuple[object, ...]]:
    """Look into the database with other eyes than the project's."""
    connection = sqlite3.connect(stage.state / "s.db")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def lives(stage: Stage, *kills: Kill, how: str) -> bool:
    """Die at each place in turn, then live to the end and look. ``False``: the first place lies behind the end."""
    stage.fresh()
    deaths = 0
    for kill in (*kills, None):
        end = stage.live(main=MAIN, kill=kill, how=how)
        if not end.killed:
            break
        deaths += 1
    assert end.code == 0, end.err
    assert json.loads(end.out.strip().splitlines()[-1]) == VALUE
    assert stage.outside.counts() == {("book", "b-1"): 1, ("charge", "c-1"): 1}
    assert stage.outside.ran["draft"] <= 1 + deaths
    assert rows(stage, "SELECT workflow, status, count(*) FROM run GROUP BY workflow, status ORDER BY workflow") == [
        ("booking", "done", 1), ("closing", "done", 1), ("paying", "done", 1),
    ]  # fmt: skip
    assert rows(stage, "SELECT kind, status, count(*) FROM question GROUP BY kind, status") == [("ask", "answered", 1)]
    ends = "SELECT s.summary = r.id, count(*) FROM step AS s JOIN run AS r ON r.id = s.summary WHERE s.name = 'run.start'"
    assert rows(stage, ends) == [(1, 2)]
    return deaths > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("where, side, at_least", [("commit", "before", 15), ("commit", "after", 15), ("send", "after", 3)])
def test_a_kill_anywhere_leaves_the_family_as_it_was(stage: Stage, where: str, side: str, at_least: int):
    """Killed anywhere: the same children, each effect once, the question asked once, the same value, each end on record once."""
    met = 0
    for kill in places(where, side):
        if not lives(stage, kill, how="below" if kill.at % 2 else "resume"):
            break
        met += 1
    assert met >= at_least


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_second_kill_at_the_same_commit_changes_nothing(stage: Stage):
    """Killed at a commit, and in the next life at the same commit again: the same end."""
    for kill in places("commit", "before", stride=3):
        if not lives(stage, kill, kill, how="resume"):
            break


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_kill_while_a_family_is_cancelled_ends_it_all_the_same(stage: Stage, side: str):
    """Killed at any commit of a cancel that goes down to the children: the same ends, nothing half, nothing done twice."""
    met = 0
    for kill in places("commit", side):
        stage.fresh()
        died = stage.live(main="tests.crash.family:cancelled", kill=kill).killed
        end = stage.live(main="tests.crash.family:cancelled")
        assert end.code == 0, end.err
        assert json.loads(end.out) == [["booking", "cancelled"], ["closing", "cancelled"], ["paying", "done"]]
        assert stage.outside.counts() == {("charge", "c-1"): 1}
        assert rows(stage, "SELECT count(*) FROM question WHERE status = 'open'") == [(0,)]
        if not died:
            break
        met += 1
    assert met >= 12
