"""SIGKILL at every durable write and at every request to the outside; the judge is a counter outside."""

from __future__ import annotations

import pytest

from tests.crash.killer import Kill
from tests.crash.story import Stage, places

#: kind of place, side, and at least so many of them in one run
PLACES = [("commit", "before", 30), ("commit", "after", 30), ("disk", "before", 4), ("disk", "after", 4),
          ("send", "before", 30), ("send", "after", 30), ("answer", "after", 20)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("where, side, at_least", PLACES)
def test_a_kill_at_any_place_changes_nothing(stage: Stage, where: str, side: str, at_least: int):
    """Killed anywhere, a run ends the same: each effect once, no finished step again, no paid step beyond the one in flight."""
    met = 0
    for kill in places(where, side):
        if not stage.scenario(kill, hows=("resume", "run") if kill.at % 2 else ("run", "resume")):
            break
        met += 1
    assert met >= at_least


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("where, side, stride", [("commit", "before", 2), ("send", "before", 6), ("answer", "after", 6)])
def test_a_power_cut_takes_nothing_that_was_acknowledged(stage: Stage, where: str, side: str, stride: int):
    """With everything gone that no commit had to wait for: every acknowledged claim, receipt, question, answer is there."""
    for kill in places(where, side, stride=stride):
        if not stage.scenario(kill, power=True):
            break


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_second_kill_at_the_same_place_changes_nothing(stage: Stage):
    """Killed at a commit, and in the next life at the same commit again: the same end."""
    for kill in places("commit", "before", stride=5):
        if not stage.scenario(kill, kill, hows=("resume", "run", "resume")):
            break


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("where, side", [(where, side) for where, side, _ in PLACES])
def test_a_kill_in_the_recovery_of_a_kill_changes_nothing(stage: Stage, where: str, side: str):
    """Killed anywhere, and the recovery killed all along its own way: the same end."""
    for first in places(where, side, stride=3):
        if not stage.scenario(first):
            break
        for at in range(1, 30, 6):
            stage.scenario(first, Kill("commit", at, "before"))
            stage.scenario(first, Kill("send", at, "after"))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("where, side", [(where, side) for where, side, _ in PLACES])
def test_two_power_cuts_take_nothing_that_was_acknowledged(stage: Stage, where: str, side: str):
    """The power goes off anywhere, and in the recovery again: the same end, nothing acknowledged is missing."""
    for first in places(where, side, stride=2):
        if not stage.scenario(first, Kill("commit", 1 + first.at % 9, "before"), power=True):
            break
