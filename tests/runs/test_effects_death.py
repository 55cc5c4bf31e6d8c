"""Processes that die or freeze between claim and receipt: real signals, and the outside counts."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Run, attempt, step, workflow
from stepseven.model import RunStatus
from stepseven.runtime import edge
from stepseven.runtime.edge import Edge
from tests.runs.mortal import PAUSE, TIMEOUT_S, mortal
from tests.runs.outside import Mood
from tests.runs.worldly import claims, outside, tries
from tests.servers import databases

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def child(
    folder: Path, url: str, *, pause: bool = False, start: bool = True, within: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A process that drives the run, started by the command *within*; stopped at the end, whatever happens."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
    if pause:
        environment[PAUSE] = str(folder / "go")
    if start:
        (folder / "start").touch()
    arguments = [databases.url(folder), url, str(folder / "start")]
    process = subprocess.Popen(
        [*within, sys.executable, "-m", "tests.runs.mortal", *arguments], cwd=ROOT, env=environment, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


def says(process: subprocess.Popen[str]) -> str:
    """The process's next line."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def test_killed_between_claim_and_send(tmp_path: Path) -> None:
    """SIGKILL before the send: a resume at once proves the owner dead, looks, finds nothing, and does it: one effect.

    The gate is lowered durably, and the try without an end is visible.
    """
    with outside() as world, child(tmp_path, world.url, pause=True) as process:
        assert await asyncio.to_thread(says, process) == "begun"
        process.kill()
        process.wait()
        async with Layer(databases.url(tmp_path)) as layer:
            (claim,) = claims(layer)
            assert claim["state"] == "claimed"
            assert claim["gate_until_us"] - claim["claimed_us"] == TIMEOUT_S * 1e6
            async with asyncio.timeout(TIMEOUT_S / 2):  # nobody waits for the gate of the dead
                assert (await layer.resume("r")).result() == 1
            (claim,) = claims(layer)
            assert claim["tries"] == 2
            assert [(t["outcome"], t["kind"]) for t in tries(layer)] == [("interrupted", None)]
    assert world.counts() == {"pay": 1}
    assert world.calls == [("pay", "r/pay/A")]


async def test_killed_after_the_send_before_the_receipt(tmp_path: Path) -> None:
    """SIGKILL while the reply is under way: the resume finds the effect, keeps it as the receipt, and sends nothing."""
    with outside() as world:
        world.moods = [Mood(hold=True)]
        with child(tmp_path, world.url) as process:
            assert await asyncio.to_thread(world.arrived.wait, 20)
            process.kill()
            process.wait()
            async with Layer(databases.url(tmp_path)) as layer:
                async with asyncio.timeout(TIMEOUT_S / 2):
                    assert (await layer.resume("r")).result() == 1
                assert [c["state"] for c in claims(layer)] == ["done"]
    assert world.counts() == {"pay": 1}
    assert len(world.calls) == 1


async def test_cancelled_after_its_owner_died(tmp_path: Path) -> None:
    """Cancelled while its owner is dead and a claim is open: `cancelling`; a resume settles the claim, sends nothing, cancels."""
    with outside() as world:
        world.moods = [Mood(hold=True)]
        with child(tmp_path, world.url) as process:
            assert await asyncio.to_thread(world.arrived.wait, 20)
            process.kill()
            process.wait()
            async with Layer(databases.url(tmp_path)) as layer:
                assert await layer.cancel("r", reason="enough", by="ann") is RunStatus.CANCELLING
                outcome = await layer.resume("r")
                assert outcome.status is RunStatus.CANCELLED
                assert outcome.failure is not None
                assert outcome.failure.reason == "enough (by ann)"
                assert [c["state"] for c in claims(layer)] == ["done"]
                assert (await layer.checkpoint("r"))["steps_complete"] == ["pay"]
    assert world.counts() == {"pay": 1}


@pytest.mark.slow
async def test_frozen_before_the_gate(tmp_path: Path) -> None:
    """SIGSTOP before the gate: after the lease another process takes over and does it; woken up, the first is refused.

    "Not there" counts only when the frozen attempt's time is over: until then it might still send.
    """
    with outside() as world, child(tmp_path, world.url, pause=True) as process:
        assert await asyncio.to_thread(says, process) == "begun"
        os.kill(process.pid, signal.SIGSTOP)
        async with Layer(databases.url(tmp_path)) as layer:
            outcome: Any = await layer.resume("r")
            assert outcome.status is RunStatus.RUNNING, "the lease still holds"
            async with asyncio.timeout(30):
                while outcome.status is RunStatus.RUNNING:
                    await asyncio.sleep(0.2)
                    outcome = await layer.resume("r")
            assert outcome.result() == 1
            (claim,) = claims(layer)
            assert claim["settled_us"] - tries(layer)[0]["started_us"] >= TIMEOUT_S * 1e6
        (tmp_path / "go").touch()
        os.kill(process.pid, signal.SIGCONT)
        assert await asyncio.to_thread(says, process) == "done 1", "it sees what the other one did"
        assert process.wait(timeout=10) == 0
    assert world.counts() == {"pay": 1}
    assert len(world.calls) == 1


async def test_two_processes_start_one_run_at_once(tmp_path: Path) -> None:
    """Two processes start the same run id in the same instant: one effect, both get its outcome."""
    with (
        outside() as world,
        child(tmp_path, world.url, start=False) as one,
        child(tmp_path, world.url, start=False) as other,
    ):
        (tmp_path / "start").touch()
        assert await asyncio.gather(asyncio.to_thread(says, one), asyncio.to_thread(says, other)) == ["done 1", "done 1"]
    assert world.counts() == {"pay": 1}


async def test_the_workflow_alone_does_it_once(tmp_path: Path) -> None:
    """The judge is right: undisturbed, the same workflow has exactly one effect."""
    with outside() as world:
        async with Layer(databases.url(tmp_path)) as layer:
            assert (await layer.run(mortal(url=world.url), client="acme", run_id="r")).result() == 1
    assert world.counts() == {"pay": 1}


CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


def no_containers() -> bool:
    """Whether this machine lets nobody make a process namespace."""
    if shutil.which("unshare") is None:
        return True
    return subprocess.run([*CONTAINER, "true"], check=False, capture_output=True).returncode > 0


@pytest.mark.skipif(no_containers(), reason="no process namespaces here")
async def test_a_live_process_of_another_container_is_not_dead(tmp_path: Path) -> None:
    """Same host name, same kernel, other process ids: that its pid is not seen here proves nothing, and nothing is taken."""
    with outside() as world, child(tmp_path, world.url, pause=True, within=CONTAINER) as process:
        assert await asyncio.to_thread(says, process) == "begun"
        async with Layer(databases.url(tmp_path)) as layer:
            assert (await layer.resume("r")).status is RunStatus.RUNNING
            assert [c["tries"] for c in claims(layer)] == [1]
        (tmp_path / "go").touch()
        assert await asyncio.to_thread(says, process) == "done 1"
    assert len(world.calls) == 1


def test_a_process_that_is_only_hidden_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc shows no foreign processes, one that is not in it may live; where it shows them, it is gone."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert edge.started(gone.pid) is None
    shown = edge._stat

    def hidden(pid: int) -> str:
        if pid != os.getpid():
            raise FileNotFoundError
        return shown(pid)

    monkeypatch.setattr(edge, "_stat", hidden)
    assert edge.started(gone.pid) == "unknown"


class Jumpy(Edge):
    """A wall clock that is set forward; the steady one is not."""

    ahead_us = 0

    def now_us(self) -> int:
        """What the wall clock says."""
        return super().now_us() + self.ahead_us


async def test_a_clock_set_forward_is_no_silence(tmp_path: Path) -> None:
    """The clock jumps a minute while a send is under way: its live owner keeps the run, and the write is sent once."""
    begun, go, sent = asyncio.Event(), asyncio.Event(), []

    @step(effect="write", key="n", timeout=5)
    async def pay(n: str) -> int:
        begun.set()
        await go.wait()
        sent.append(attempt().idempotency_key)
        return len(sent)

    @pay.probe
    async def find(n: str) -> int | None:
        return None

    @workflow
    async def one(run: Run) -> int:
        return await pay("A")

    jumpy, url = Jumpy(), databases.url(tmp_path)
    async with Layer(url, edge=jumpy) as owner, Layer(url, edge=jumpy) as other:
        running = asyncio.create_task(owner.run(one(), client="acme", run_id="r"))
        await begun.wait()
        jumpy.ahead_us = 60_000_000
        assert (await other.resume("r")).status is RunStatus.RUNNING
        go.set()
        assert (await running).result() == 1
    assert len(sent) == 1
