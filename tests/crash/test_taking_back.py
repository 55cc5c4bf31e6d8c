"""SIGKILL at every durable write and request of a run that fails above one that is done, is decided about, and is taken back."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.crash.killer import Kill
from tests.crash.story import Stage, places
from tests.crash.taking_back import SEEN

MAIN = "tests.crash.taking_back:main"


def judge(stage: Stage, out: str) -> None:
    """Each thing was made once and taken back once, by one run after one decision."""
    assert stage.outside.counts() == SEEN
    assert json.loads(out.strip().splitlines()[-1]) == {"value": {"taken_back": 2, "left": 0}, "runs": 3, "open": 0}
    connection = sqlite3.connect(Path(stage.state, "s.db"))
    try:
        asked = connection.execute("SELECT status, answer FROM question WHERE kind = 'undo'").fetchall()
        marked = connection.execute("SELECT name, undone_us IS NOT NULL FROM effect ORDER BY name").fetchall()
    finally:
        connection.close()
    assert asked == [("answered", '"undo"')]
    assert marked == [("car", 1), ("room", 1), ("undo.car", 0), ("undo.room", 0)]


def lives(stage: Stage, *kills: Kill) -> bool:
    """Die at each of *kills*, then live to the end, and judge. ``False``: the first place lies behind the end."""
    stage.fresh()
    deaths = 0
    for kill in (*kills, None):
        end = stage.live(main=MAIN, kill=kill)
        if not end.killed:
            assert end.code == 0, end.err
            judge(stage, end.out)
            break
        deaths += 1
        counts = stage.outside.counts()
        assert all(n <= SEEN[what] for what, n in counts.items()), f"after {kill}: {counts}"
    return deaths > 0


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "where, side, at_least",
    [("commit", "before", 15), ("commit", "after", 15), ("send", "before", 8), ("send", "after", 8), ("answer", "after", 4)],
)
def test_a_kill_at_any_place_takes_each_back_once(stage: Stage, where: str, side: str, at_least: int):
    """Killed anywhere between the first write and the last undo: each is made once, each is taken back once."""
    met = 0
    for kill in places(where, side):
        if not lives(stage, kill):
            break
        met += 1
    assert met >= at_least


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_second_kill_changes_nothing(stage: Stage):
    """Killed at a commit, and soon after it came back again: the same end."""
    for kill in places("commit", "after", stride=3):
        if not lives(stage, kill, Kill("commit", 4, "before")):
            break
