"""A clock that moved while nobody was alive."""

from __future__ import annotations

import pytest

from tests.crash.killer import Kill
from tests.crash.story import Stage, places
from tests.crash.subject import DAY_US


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("ahead_us", [DAY_US, -DAY_US // 24], ids=["a day on", "an hour back"])
def test_a_resume_with_a_moved_clock_repeats_nothing(stage: Stage, ahead_us: int):
    """A day later, or with the clock put back an hour: no paid step is called again, each effect happened once."""
    for kill in places("commit", "after", stride=6):
        if not stage.scenario(kill, clocks=(0, ahead_us)):
            break


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_key_that_is_no_longer_honoured_is_not_used_again(stage: Stage):
    """A write begun within the promised 24 h, repeated within them or not, is asked about after them, wherever it broke off."""
    sent = next(kill for kill in places("send", "after") if _sent(stage, kill))
    almost, later = DAY_US - DAY_US // 24, DAY_US + DAY_US // 10
    for second in (None, *(Kill("commit", at, "after") for at in range(1, 6))):
        for clocks in [(0, later)] if second is None else [(0, 0, later), (0, almost, later)]:
            stage.scenario(*filter(None, (sent, second)), clocks=clocks)


def _sent(stage: Stage, kill: Kill) -> bool:
    stage.fresh()
    stage.live(kill=kill)
    return ("remind", "r-1") in stage.outside.counts()
