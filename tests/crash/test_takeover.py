"""Who may take a run, and when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.crash.killer import ROOT, Kill
from tests.crash.story import Stage, known

PYTHON = [sys.executable, "-m", "tests.crash.subject"]


@contextmanager
def process(stage: Stage) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that drives the run; gone at the end."""
    with subprocess.Popen(
        [*PYTHON, str(stage.state), stage.outside.url], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    ) as running:  # fmt: skip
        try:
            yield running
        finally:
            running.kill()


def test_a_killed_workers_run_is_taken_over_at_once(stage: Stage):
    """On the same host a death is proven by pid and start time: no lease is waited for, and no settle time is added."""
    stage.fresh()
    killed = stage.live(kill=Kill("send", 20, "after"))
    assert killed.killed
    stage.judge(killed, power=True)  # only noted: what was in flight then may run again
    began = time.monotonic()
    end = stage.live()
    assert time.monotonic() - began < 8  # a lease is 10 s
    stage.judge(end)
    stage.same_end(end, kills=1)


def test_a_zombie_is_dead(stage: Stage):
    """A killed process whose parent has not noticed yet holds nothing: its run is taken over at once."""
    stage.fresh()
    arrived, go = stage.outside.hold("/ran/judge")
    with process(stage) as running:
        assert arrived.wait(30)
        os.kill(running.pid, signal.SIGKILL)
        go.set()
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        began = time.monotonic()
        end = stage.live()
        assert time.monotonic() - began < 8
        assert end.code == 0, end.err
        stage.same_end(end, kills=1)


def test_a_live_run_is_not_taken(stage: Stage):
    """While its process lives, a resume or a start elsewhere takes nothing, runs nothing, and says that it runs."""
    stage.fresh()
    arrived, go = stage.outside.hold("/ran/judge")
    with process(stage) as running:
        assert arrived.wait(30)
        ran = stage.outside.ran.copy()
        for how in ("resume", "run"):
            end = stage.live_elsewhere(how)
            assert end.out.strip() == '"running"', end.err
        assert stage.outside.ran == ran
        go.set()
        out, err = running.communicate(timeout=30)
        assert running.returncode == 0, err
    stage.same_end(stage.live(), kills=0)
    assert out


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_a_frozen_worker_that_was_taken_over_sends_nothing(stage: Stage):
    """Stopped before it sends, taken over after its lease, woken again: it finds the gate closed, each effect happened once."""
    stage.fresh()
    arrived, go = stage.outside.hold("/ran/judge")
    with process(stage) as running:
        assert arrived.wait(30)
        os.kill(running.pid, signal.SIGSTOP)
        go.set()
        deadline = time.monotonic() + 30
        while (end := stage.live_elsewhere("resume")).out.strip() == '"running"':  # its lease is still good
            assert time.monotonic() < deadline, "never taken over"
        assert end.code == 0, end.err
        os.kill(running.pid, signal.SIGCONT)
        _, err = running.communicate(timeout=30)
        assert running.returncode == 0, err
    stage.outside.quiet()
    assert known(stage.state).runs == 1
    stage.same_end(stage.live(), kills=1)
