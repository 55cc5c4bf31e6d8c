"""Threads that are started late: closing may come at the very moment of their start."""

from __future__ import annotations

import threading

import pytest

from stepseven.store._thread import LateThread


def test_a_thread_that_is_just_being_started_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    """Who closes while another thread is about to start it waits for its end, and is told of no error."""
    starting, go, worked = threading.Event(), threading.Event(), threading.Event()
    real = threading.Thread.start

    def slow(self: threading.Thread) -> None:
        if self.name == "late":
            starting.set()
            assert go.wait(10)
        real(self)

    monkeypatch.setattr(threading.Thread, "start", slow)
    late = LateThread(worked.set, "late")
    starter = threading.Thread(target=late.start)
    starter.start()
    assert starting.wait(10)
    closer = threading.Thread(target=late.join)
    closer.start()
    go.set()
    closer.join(10)
    assert not closer.is_alive()
    starter.join(10)
    assert worked.is_set()
    assert not late.alive


def test_nothing_is_started_after_the_end():
    """A thread that was joined before it was needed is never started: whoever needs it is told."""
    ran = threading.Event()
    late = LateThread(ran.set, "late")
    late.join()
    assert late.start() is False
    assert not late.alive
    assert not ran.is_set()


def test_it_is_started_once():
    """Eight threads that need it at once start it once."""
    runs: list[int] = []
    late, gate = LateThread(lambda: runs.append(1), "late"), threading.Barrier(8)

    def need() -> None:
        gate.wait()
        assert late.start()

    threads = [threading.Thread(target=need) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    late.join()
    assert runs == [1]
