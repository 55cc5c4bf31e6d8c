"""A worker that stood still, or could not reach its store for a while, and goes on: nobody is asked because of that alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Run, attempt, step, workflow
from stepseven.model import RunStatus
from stepseven.transitions import runs

sent: list[str | None] = []
layers: list[Layer] = []


@step(name="standstill.still")
async def still() -> None:
    """The process stands still in here for longer than its lease, and nobody takes its runs meanwhile."""
    worker = layers[-1].services.worker
    worker._confirmed = worker.edge.since_boot() - 60


@step(name="standstill.pay", effect="write", key="n", attempts=1)
async def pay(n: int) -> int:
    """A write whose other side can neither be asked nor knows keys."""
    sent.append(attempt().idempotency_key)
    return n


@workflow(name="standstill.paying")
async def paying(run: Run) -> int:
    """Stands still, then pays."""
    await still()
    return await pay(1)


@pytest.fixture
def no_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat's own turn does not come in the length of the test."""
    from stepseven.runtime import services

    monkeypatch.setattr(services, "BEAT_S", 600.0)


async def test_what_is_claimed_after_a_standstill_can_pass_the_gate(no_beats: None, tmp_path: Path) -> None:
    """Before something is claimed the worker makes sure that others know it lives: else the gate refuses what it has just begun.

    It was found in the soak: a worker that had thawed took runs before its next beat, its gate refused both tries of an
    idempotent write within a second, and a person was asked whether it had happened.
    """
    sent.clear()
    async with Layer(f"sqlite:///{tmp_path / 's7.db'}") as layer:
        layers.append(layer)
        outcome: Any = await layer.run(paying(), client="acme", run_id="r")
    layers.clear()
    assert (outcome.status, outcome.value) == (RunStatus.DONE, 1), outcome
    assert sent == ["r/standstill.pay/1"]


async def test_an_early_beat_takes_no_run_for_a_stray(no_beats: None, tmp_path: Path) -> None:
    """A run that was just taken, and is not in memory yet, is not given back because beats come close together."""
    async with Layer(f"sqlite:///{tmp_path / 's7.db'}") as layer:
        worker = layer.services.worker
        worker.start()
        info = await layer.start(paying(), client="acme", run_id="r")

        def taken(tx: Any) -> int | None:
            run = runs.known(tx, info.run_id)
            hold = runs.take(tx, run, worker.id, source_digest=None, now_us=layer.services.edge.now_us(), proven_dead=()).hold
            return None if hold is None else hold.fence

        fence = layer.store.write_now(taken, durable=True, client="acme")
        for _ in range(3):
            worker.beat(early=True)
        assert layer.store.read_now(lambda tx: runs.known(tx, "r"))["owner"] == worker.id
        worker.beat()
        worker.beat()  # in their own time they do give it back
        found = layer.store.read_now(lambda tx: runs.known(tx, "r"))
        assert (found["owner"], found["fence"]) == (None, fence)


async def test_a_beat_that_comes_back_late_is_no_younger_for_it(no_beats: None, tmp_path: Path) -> None:
    """A beat sent before a standstill, heard of after a later one: the later one counts."""
    async with Layer(f"sqlite:///{tmp_path / 's7.db'}") as layer:
        worker = layer.services.worker
        worker.start()
        real, late = worker.edge.since_boot, [worker.edge.since_boot() - 60]
        worker.edge.since_boot = lambda: late.pop() if late else real()  # type: ignore[method-assign]
        worker.beat()
        worker.edge.since_boot = real  # type: ignore[method-assign]
        assert worker.may_act(1, 1)
