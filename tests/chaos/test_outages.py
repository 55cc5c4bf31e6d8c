"""The database goes away in ways of its own: restarted in the middle, stopped at once, its disk full, set back to yesterday."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Outcome
from stepseven.errors import StoreUnavailable
from stepseven.model import RunStatus, WaitingFor
from tests.chaos import flows
from tests.chaos.counter import ROOT, Outside
from tests.chaos.stage import Stage
from tests.servers import programs
from tests.servers.postgres import Cluster

pytestmark = pytest.mark.postgres


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    """What counts, for the steps of this process, too."""
    with Outside(tmp_path) as counting:
        monkeypatch.setattr(flows, "PORT", counting.port)
        yield counting


def writes(outside: Outside) -> Counter[str]:
    """What was done, without the reads."""
    return Counter({what: many for what, many in outside.counts().items() if not what.startswith("read/")})


async def until(seen: Any, what: str, within: float = 100) -> Any:
    """Wait for a state, in a thread."""
    return await asyncio.to_thread(programs.until, seen, what, within)


# -- restarts -----------------------------------------------------------------------------------------------------------------


async def as_far_as_it_gets(layer: Layer, run_id: str) -> Outcome[Any]:
    """Resume a run until it ends, or a person has to answer: a doubt may take longer than one call waits for it."""
    give_up = asyncio.get_running_loop().time() + 90
    while True:
        outcome = await layer.resume(run_id)
        if outcome.status.ended or outcome.questions or asyncio.get_running_loop().time() > give_up:
            return outcome
        await asyncio.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_restart_in_the_middle_of_runs_and_of_their_recovery(how: Any, outside: Outside, cluster: Cluster) -> None:
    """Whatever runs and whatever is just being resumed when the server is restarted goes on, and nothing is done twice."""
    many = 12
    async with Layer(cluster.url()) as layer:
        runs = [asyncio.create_task(layer.run(flows.days(n=n), client=f"c{n}", run_id=f"r{n}")) for n in range(many)]
        await until(lambda: outside.counts()["keyed/3.a"], "some are at work")
        await asyncio.to_thread(cluster.restart, how)
        await asyncio.gather(*runs)
        parked = [await as_far_as_it_gets(layer, f"r{n}") for n in range(many)]
        assert {outcome.waiting_for for outcome in parked} == {WaitingFor.PERSON}, parked
        for turn in ("first", "second"):
            for question in await layer.questions(limit=100):
                await layer.answer(question.id, "yes", by="ann")
            recoveries = [asyncio.create_task(as_far_as_it_gets(layer, f"r{n}")) for n in range(many)]
            if turn == "first":
                await until(lambda: any(outside.counts()[f"probed/{n}.b"] for n in range(many)), "some go on")
            await asyncio.to_thread(cluster.restart, how)
            ended = await asyncio.gather(*recoveries)
        asked = [f"{q.run_id} {q.kind}: {q.text} {q.context}" for outcome in ended for q in outcome.questions]
        assert not asked, "\n".join(asked)
        left = [(q.kind, q.text) for outcome in ended for q in outcome.questions]
        assert ({outcome.status for outcome in ended}, left) == ({RunStatus.DONE}, [])
    assert writes(outside) == Counter(
        [f"keyed/{n}.{what}" for n in range(many) for what in "ac"] + [f"probed/{n}.{what}" for n in range(many) for what in "bd"]
    )


# -- stopped at once ----------------------------------------------------------------------------------------------------------

LOST_S = 0.6  # DESIGN §10: what a crash of the server may cost
SLACK_S = 0.3  # from when a read was done until its record reached the server, on a busy machine


def _ledger(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("dies", [True, False], ids=["worker dies, too", "worker lives"])
async def test_immediate_stop_costs_free_reads_of_the_last_moment_only(dies: bool, outside: Outside, tmp_path: Path) -> None:
    """After the server fell over, free reads of its last 0.6 s may run again; no other read, and no write. No worker, no loss."""
    many, reads = 4, 150
    with Stage("postgres", tmp_path, outside) as stage:
        async with Layer(stage.url) as layer:
            stage.hire(1, "stepseven", "--store", stage.url, "worker", "tests.chaos.flows", "--concurrency", "8")
            for n in range(many):
                await layer.start(flows.reader(n=n, many=reads), client="acme", run_id=f"r{n}")
            await until(lambda: outside.total() > many * reads // 3, "in the middle of it")
            down = time.time()
            if dies:
                stage.stop_server()
                stage.kill(0, away_s=0)
                stage.start_server()
            else:
                stage.restart_server("immediate")
            await until(lambda: _settled(stage, many), "all have ended", 80)
        assert stage.dismiss() == [0], stage.logs()
        assert stage.rows("SELECT DISTINCT status FROM {0}run") == [("done",)]
    first: dict[str, float] = {}
    again: dict[str, float] = {}  # what ran again: when it had run first
    for line in _ledger(tmp_path):
        if line["what"] in first:
            again[line["what"]] = first[line["what"]]
        first.setdefault(line["what"], line["at"])
    assert len(first) == many * (reads + reads // 10)
    assert not [what for what in again if not what.startswith("read/")], again
    in_flight = many if dies else 0  # a read that ran, and whose record was never sent
    early = {what: round(at - down, 2) for what, at in again.items() if at < down - LOST_S - SLACK_S}
    assert not early, f"ran again, though it had run long before the server fell over: {early}"
    sys.stderr.write(f"\nimmediate stop, worker {'died' if dies else 'lived'}: {len(again)} of {many * reads} reads ran again\n")
    if not dies:
        assert len(again) <= in_flight, again


def _settled(stage: Stage, many: int) -> bool:
    try:
        return stage.settled(many)
    except Exception as error:  # noqa: BLE001 - the server may be on its way up
        del error
        return False


# -- a full disk --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    place = programs.folder("stepseven-small-")
    mounted = None
    if os.getuid() == 0 and shutil.which("mount"):
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", place], check=False, capture_output=True)
    try:
        if mounted is None or mounted.returncode:
            pytest.skip("no small file system can be mounted here: that needs root and the right to mount")
        programs.give(place)
        yield place
    finally:
        if mounted is not None and not mounted.returncode:
            subprocess.run(["umount", "-l", place], check=True)
        place.rmdir()


@pytest.mark.slow
@pytest.mark.timeout(150)
async def test_full_disk_is_said_and_nothing_is_half_made(small_disk: Path, outside: Outside, cluster: Cluster) -> None:
    """With the server's disk full a run breaks off with a clear sentence; with room again it goes on, and all is done once."""
    with cluster.connect() as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{small_disk}'")
        connection.execute("CREATE DATABASE little TABLESPACE small")
        connection.execute("CHECKPOINT")  # from here on what is there has its room
    async with Layer(cluster.url("little")) as layer:
        assert (await layer.run(flows.filling(n=0), client="acme", run_id="r0")).status is RunStatus.DONE
        with cluster.connect() as connection:
            connection.execute("CHECKPOINT")
        filler = small_disk / "filler"
        _fill(filler)
        broken = 0
        for n in range(1, 60):
            try:
                await layer.run(flows.filling(n=n), client="acme", run_id=f"r{n}")
            except StoreUnavailable as error:
                broken, told = n, str(error)
                break
        assert broken, "there was room for everything"
        assert "the server's disk is full: free some space there, then try again" in told
        filler.unlink()
        ended = [await layer.run(flows.filling(n=n), client="acme", run_id=f"r{n}") for n in range(1, broken + 1)]
        assert {outcome.status for outcome in ended} == {RunStatus.DONE}
    assert writes(outside) == Counter(f"keyed/{n}.{when}" for n in range(broken + 1) for when in ("before", "after"))


def _fill(filler: Path) -> None:
    """Take all the room there is."""
    with filler.open("wb", buffering=0) as taken, suppress(OSError):
        while True:
            taken.write(bytes(4096))


# -- yesterday ----------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _working(stage: Stage) -> AsyncIterator[Layer]:
    async with Layer(stage.url) as layer:
        stage.hire(2, "stepseven", "--store", stage.url, "worker", "tests.chaos.flows", "--concurrency", "8")
        yield layer


async def _answer_when_all_ask(layer: Layer, many: int, what: str) -> None:
    while len(asked := [q for q in await layer.questions(limit=100) if q.text.startswith(what)]) < many:
        await asyncio.sleep(0.05)
    for question in asked:
        await layer.answer(question.id, "yes", by="ann")


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not told"])
async def test_dump_of_yesterday_put_back_under_live_runs(is_told: bool, outside: Outside, tmp_path: Path) -> None:
    """``pg_dump`` yesterday, ``psql`` today, workers at work all the time, then ``doctor --restored``: no effect twice.

    Without telling it, what was done in between is done again: that is what the command is for.
    """
    many, dump = 5, tmp_path / "dump.sql"
    with Stage("postgres", tmp_path, outside, CHAOS_SETTLE_S="1") as stage:
        async with _working(stage) as layer, asyncio.timeout(130):
            for n in range(many):
                await layer.start(flows.days(n=n), client=f"c{n}", run_id=f"r{n}")
            while len(await layer.questions(limit=100)) < many:
                await asyncio.sleep(0.05)
            await until(
                lambda: stage.rows("SELECT count(*) FROM {0}run WHERE status = 'waiting'") == [(many,)], "all are put away"
            )
            _tool("pg_dump", "--schema=stepseven", f"--file={dump}", stage.direct)
            await _answer_when_all_ask(layer, many, "First")
            await until(lambda: sum(outside.counts()[f"keyed/{n}.c"] for n in range(many)) == many, "today's work is done")
            # Dropping tables that are in use waits for whoever uses them, or is a deadlock; a new name waits for nobody.
            away = "-cALTER SCHEMA stepseven RENAME TO stepseven_before"
            _tool("psql", "-qX1", "-vON_ERROR_STOP=1", away, f"-f{dump}", stage.direct)
            if is_told:
                said = await asyncio.to_thread(_doctor, stage)
                assert said["live_runs"] == many, said
            await _answer_when_all_ask(layer, many, "First")
            await _answer_when_all_ask(layer, many, "Second")
            await until(lambda: stage.settled(many), "all have ended", 60)
        assert stage.dismiss() == [0, 0], stage.logs()
        assert stage.rows("SELECT DISTINCT status FROM {0}run") == [("done",)]
    once = Counter([f"keyed/{n}.{w}" for n in range(many) for w in "ac"] + [f"probed/{n}.{w}" for n in range(many) for w in "bd"])
    twice = writes(outside) - once
    assert once - writes(outside) == Counter()
    assert twice == (Counter() if is_told else Counter(f"probed/{n}.b" for n in range(many)))


def _tool(name: str, *arguments: str) -> None:
    done = subprocess.run([programs.need(name), *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def _doctor(stage: Stage) -> dict[str, Any]:
    command = [sys.executable, "-m", "stepseven", "--store", stage.url, "doctor", "--restored", "--json"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return dict(told.get("restored") or told)
