"""A disk that is full in the middle of a run."""

from __future__ import annotations

import pytest

from tests.crash.killer import Kill
from tests.crash.story import Stage, places


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_full_disk_stops_the_process_and_a_resume_completes(stage: Stage):
    """Full at any page: the process says so and exits non-zero; with room again the run ends the same, each effect once."""
    stage.fresh()
    assert stage.live(kill=Kill("commit", 3, "after")).killed  # admitted
    first = (stage.state / "s.db").stat().st_size // 4096
    full = 0
    for pages in range(first + 1, first + 40, 3):
        stage.fresh()
        end = stage.live(pages=pages)
        if end.code == 0:
            break
        assert end.code == 1
        assert "the disk is full" in end.err, end.err
        assert "StoreUnavailable" in end.err
        full += 1
        stage.judge(end)
        end = stage.live()
        stage.judge(end)
        stage.same_end(end, kills=1)
    assert full >= 2


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_disk_that_is_full_for_one_commit_ends_the_execution_not_the_run(stage: Stage):
    """One commit fails for want of space, the next would succeed: the process says so and exits; a resume ends the same."""
    for kill in places("commit", "full", stride=3):
        stage.fresh()
        end = stage.live(kill=kill)
        if kill.at > 30 and end.code == 0:
            break
        stage.judge(end)
        if end.code != 0:  # the heartbeat and the last checkpoint may fail without harm
            assert "the disk is full" in end.err, f"{kill}: {end.err}"
            assert "StoreUnavailable" in end.err, f"{kill}: {end.err}"
            end = stage.live()
            stage.judge(end)
        stage.same_end(end, kills=1)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("times", [1, 3])
def test_the_same_process_can_go_on_when_there_is_room_again(stage: Stage, times: int):
    """The run that a full disk broke off is not held by its own process: the same layer resumes it, to the same end."""
    for at in range(6, 37, 10):
        stage.fresh()
        end = stage.live(kill=Kill("commit", at, "full", times), how="stubborn")
        stage.same_end(end, kills=times)
