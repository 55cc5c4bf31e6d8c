"""The gate, at the moments between a heartbeat and what it brings to light."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Run, Superseded, attempt, step, workflow
from stepseven.runtime.grip import Grip
from stepseven.transitions.runs import Taken, is_dead
from tests.runs.tools import execute, rows, url
from tests.servers.programs import until
from tests.workers.cast import Shelf

pytestmark = pytest.mark.anyio


class Door:
    """What the step below stands at."""

    at_it: threading.Event
    go: threading.Event
    key: Callable[[], str]


@step(effect="write", key="ref", timeout=30)
def send(ref: str) -> str:
    """Stands before its gate."""
    mine = attempt()
    Door.key = lambda: mine.idempotency_key
    Door.at_it.set()
    Door.go.wait(20)
    return "sent"


@workflow
async def sending(run: Run) -> str:
    """One write."""
    return await send("A")


class Late:
    """What the step below did after its time, try by try."""

    sent: list[str]
    refused: list[str]


@step(effect="write", key="ref", timeout=0.3)
async def stall(ref: str) -> str:
    """Holds its event loop up for longer than it has, so that nothing can stop it but its gate."""
    time.sleep(0.4)  # noqa: ASYNC251 - that is what is tested
    try:
        Late.sent.append(attempt().idempotency_key)
    except Superseded as shut:
        Late.refused.append(shut.why)
        raise
    return "sent"


@workflow
async def stalling(run: Run) -> str:
    """One write that comes too late."""
    return await stall("A")


@pytest.fixture(autouse=True)
def _door() -> None:
    Door.at_it, Door.go = threading.Event(), threading.Event()
    Late.sent, Late.refused = [], []


async def test_the_beat_that_finds_a_run_taken_does_not_open_its_gate(tmp_path: Path):
    """A worker that stood still beats again, and so may act again: but not for the run that was taken from it meanwhile.

    It was found by freezing workers: while the beat looked up who had taken the run, the gate was open for an instant.
    """
    tried: list[str] = []
    async with Layer(url(tmp_path)) as layer:
        worker, read_now = layer.services.worker, layer.store.read_now
        driving = asyncio.create_task(layer.run(sending(), client="acme", run_id="r"))
        assert await asyncio.to_thread(Door.at_it.wait, 20)
        assert Door.key(), "it is open"
        worker._stop.set()  # from here on the beats are ours
        assert worker._thread is not None
        worker._thread.join()
        worker._confirmed = worker.edge.since_boot() - 60
        with pytest.raises(Superseded, match="silent too long"):
            Door.key()
        execute(tmp_path, "UPDATE run SET owner = 'w_other', fence = fence + 1")

        def looking(unit: Any) -> Any:
            try:
                tried.append(Door.key())
            except Superseded as shut:
                tried.append(type(shut).__name__)
            return read_now(unit)

        layer.store.read_now = looking  # type: ignore[method-assign]
        await asyncio.to_thread(worker.beat)
        layer.store.read_now = read_now  # type: ignore[method-assign]
        assert set(tried) == {"Superseded"}, "at every look of the beat"
        with pytest.raises(Superseded):
            Door.key()
        Door.go.set()
        outcome = await driving
    assert outcome.status.value == "running"
    assert rows(tmp_path, "SELECT owner FROM run") == [{"owner": "w_other"}]


@pytest.mark.parametrize(
    "meanwhile, why",
    [
        ("owner = 'w_other', fence = fence + 1", "worker w_other took it over"),
        ("owner = NULL, fence = fence + 1, status = 'done'", "another worker took it over, and it is done"),
        ("owner = NULL, fence = fence + 2, status = 'waiting'", "another worker took it over, and it is waiting"),
        ("owner = NULL, status = 'cancelled'", "it was ended (cancelled) by somebody else"),
        ("owner = NULL, status = 'queued'", "it was released from this worker"),
    ],
    ids=["taken", "and ended", "and put away", "ended", "released"],
)
async def test_a_worker_that_wakes_says_what_became_of_its_run(tmp_path: Path, meanwhile: str, why: str):
    """Whoever took it over may be through with it by then, and is on record no more: it is not called released for that."""
    async with Layer(url(tmp_path)) as layer:
        driving = asyncio.create_task(layer.run(sending(), client="acme", run_id="r"))
        assert await asyncio.to_thread(Door.at_it.wait, 20)
        execute(tmp_path, f"UPDATE run SET {meanwhile}")
        await asyncio.to_thread(layer.services.worker.beat)
        with pytest.raises(Superseded) as shut:
            Door.key()
        Door.go.set()
        await driving
    assert shut.value.why == why


async def test_an_attempt_that_blocked_its_loop_past_its_time_does_not_send(tmp_path: Path):
    """No time-out can fire while a step blocks the event loop: when its time is up, its gate is shut all the same.

    Whoever looks for the write counts from the claim, too: what was sent later would not be found by then.
    """
    async with Layer(url(tmp_path)) as layer:
        outcome = await layer.run(stalling(), client="acme", run_id="r")
    assert Late.sent == []
    assert Late.refused == ["the time of this attempt is up"]
    assert [(q.kind, q.step) for q in outcome.questions] == [("unknown_outcome", "stall")]


async def test_a_run_taken_while_a_beat_is_under_way_is_not_lost(tmp_path: Path):
    """What is taken after a beat has looked is ours, though that beat did not see it."""
    async with Layer(url(tmp_path)) as layer:
        worker, write_now, lost = layer.services.worker, layer.store.write_now, list[int]()
        worker.start()
        worker._stop.set()
        assert worker._thread is not None
        worker._thread.join()
        worker.on_lost = lambda no, _: lost.append(no)

        def taken_meanwhile(*args: Any, **how: Any) -> Any:
            seen = write_now(*args, **how)
            worker.fences[7] = 1
            return seen

        layer.store.write_now = taken_meanwhile  # type: ignore[method-assign]
        worker.beat()
        layer.store.write_now = write_now  # type: ignore[method-assign]
        assert lost == []
        assert worker.may_act(7, 1)
        worker.fences.clear()


@pytest.mark.postgres
async def test_a_run_whose_take_is_not_committed_yet_is_not_lost(postgres_url: str):
    """A beat that looks between a take and its commit does not see the run as ours, and has found nothing out about it."""
    async with Layer(postgres_url) as layer:
        worker, lost = layer.services.worker, list[int]()
        worker.start()
        worker._stop.set()
        assert worker._thread is not None
        worker._thread.join()
        worker.on_lost = lambda no, _: lost.append(no)
        take = Grip.take

        def looked_at(grip: Grip, taken: Taken) -> Taken:
            took = take(grip, taken)
            beat = threading.Thread(target=worker.beat)  # on another connection, while this transaction is open
            beat.start()
            beat.join()
            return took

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Grip, "take", looked_at)
            Door.go.set()
            outcome = await layer.run(sending(), client="acme", run_id="r")
        assert lost == []
        assert outcome.result() == "sent"
        assert not worker.taking


@pytest.mark.postgres
async def test_a_worker_that_wakes_while_its_run_is_being_taken_waits_for_that(postgres_url: str, tmp_path: Path):
    """Whoever takes a silent worker's run holds that worker's row: its beat says that it lives only after that, and finds out."""
    async with Layer(postgres_url) as sleeper, Layer(postgres_url) as taker:
        worker, other = sleeper.services.worker, taker.services.worker
        worker.start()
        worker._stop.set()
        assert worker._thread is not None
        worker._thread.join()
        shelf = Shelf(postgres_url, postgres_url)
        shelf.change(f"UPDATE worker SET host = 'elsewhere', beat_us = beat_us - 60000000 WHERE id = '{worker.id}'")
        old = "SELECT 1 FROM pg_stat_activity WHERE now() - pg_postmaster_start_time() > interval '11 s'"
        await asyncio.to_thread(until, lambda: shelf.rows(old), "the server has only just started")
        looked, go, dead = threading.Event(), threading.Event(), list[bool]()

        def taking(tx: Any) -> None:
            dead.append(is_dead(tx, worker.id, taker.services.edge.now_us(), other.dead_workers(tx)))
            looked.set()
            go.wait(20)

        take = asyncio.create_task(asyncio.to_thread(taker.store.write_now, taking, durable=True, client=None))
        assert await asyncio.to_thread(looked.wait, 20)
        beat = asyncio.create_task(asyncio.to_thread(worker.beat))
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%stepseven.worker%'"
        await asyncio.to_thread(until, lambda: beat.done() or shelf.rows(waiting), "the beat neither waits nor ends")
        waited = not beat.done()
        go.set()
        await asyncio.gather(take, beat)
    assert waited
    assert dead[-1]
