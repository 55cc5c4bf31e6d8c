"""A run that takes its process with it is not started for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer
from tests.servers import databases

pytestmark = pytest.mark.slow

MODULE = '''
import asyncio, json, os, sys
from stepseven import Cost, Layer, Run, attempt, step, workflow

folder = sys.argv[1]

def ran(what: str) -> int:
    """Count outside: the process does not live to tell."""
    path = os.path.join(folder, what)
    with open(path, "a") as f:
        f.write("x")
    return os.path.getsize(path)

@step
async def before() -> int:
    ran("before")
    return 1

@step(DECLARED)
async def deadly(n: int) -> int:
    ran("deadly")
    if not os.path.exists(os.path.join(folder, "mended")):
        os._exit(7)
    return n + 1

@step
async def moving(n: int) -> int:
    if ran(f"moving {n}") == 1:
        os._exit(7)
    return n

@workflow
async def dies(run: Run) -> int:
    return await deadly(await before())

@workflow
async def lives(run: Run) -> int:
    return await before()

@workflow
async def advances(run: Run) -> int:
    """One new record in each execution, then the end of the process."""
    return sum([await moving(n) for n in range(5)])

async def main() -> None:
    name, run_id, *answer = sys.argv[2:]
    async with Layer() as layer:
        if answer:
            (question,) = await layer.questions(run_id=run_id)
            await layer.answer(question.id, answer[0], by="ann")
        outcome = await layer.run(globals()[name](), client="acme", run_id=run_id)
        asked = [[q.id, q.kind.value, q.text, [o.id for o in q.options]] for q in outcome.questions]
        print(json.dumps([outcome.status.value, outcome.value, asked]))

asyncio.run(main())
'''


class Stage:
    """A folder with a store, and processes after each other."""

    def __init__(self, folder: Path, declared: str = "") -> None:
        self.folder = folder
        (folder / "subject.py").write_text(textwrap.dedent(MODULE.replace("DECLARED", declared)))

    def live(self, *args: str) -> Any:
        """One process: what it printed, or ``None`` if it died."""
        command = [sys.executable, str(self.folder / "subject.py"), str(self.folder), *args]
        env = {**os.environ, "STEPSEVEN_URL": databases.url(self.folder)}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=env)
        if ended.returncode == 7:
            return None
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def count(self, what: str) -> int:
        """How often something ran, as the outside saw it."""
        path = self.folder / what
        return path.stat().st_size if path.exists() else 0


@pytest.mark.parametrize("declared", ["", "cost=Cost(usd=0.01)", "effect='write', key='n'"])
def test_three_ends_without_a_new_record_park_instead_of_a_fourth_start(tmp_path: Path, declared: str):
    """Three processes in a row died at the same step (free, paid, or a write) without a new record: a person is asked."""
    stage = Stage(tmp_path, declared)
    writes = "effect" in declared
    deaths = 0
    while (end := stage.live("dies", "r1")) is None:
        deaths += 1
        assert deaths <= 4
        if writes:
            break
    if writes:  # a write without a probe is asked about at the first doubt: it is never sent again unasked
        status, _, asked = stage.live("dies", "r1")
        assert (status, [a[1] for a in asked], stage.count("deadly")) == ("waiting", ["unknown_outcome"], 1)
        return
    status, _, asked = end
    assert (status, [(a[1], a[3]) for a in asked]) == ("waiting", [("poison", ["again", "stop"])])
    assert "died 3 times in a row" in asked[0][2]
    assert "deadly" in asked[0][2]
    assert stage.count("deadly") == deaths
    assert stage.count("before") == 1
    assert stage.live("dies", "r1")[2] == asked
    assert stage.count("deadly") == deaths
    assert stage.live("lives", "r2")[:2] == ["done", 1]  # other runs are unaffected


def test_again_goes_on(tmp_path: Path):
    """``again`` starts it once more: mended it ends, not mended it is asked about again after three more ends."""
    stage = Stage(tmp_path)
    while (end := stage.live("dies", "r1")) is None:
        pass
    first = end[2][0][0]
    assert stage.live("dies", "r1", "again") is None
    more = 1
    while (end := stage.live("dies", "r1")) is None:
        more += 1
        assert more <= 3
    assert more == 3
    assert end[2][0][0] != first
    (tmp_path / "mended").write_text("yes")
    assert stage.live("dies", "r1", "again")[:2] == ["done", 2]
    assert stage.count("before") == 1


def test_stop_cancels(tmp_path: Path):
    """``stop`` cancels the run without starting it."""
    stage = Stage(tmp_path)
    while stage.live("dies", "r1") is None:
        pass
    tried = stage.count("deadly")
    assert stage.live("dies", "r1", "stop")[0] == "cancelled"
    assert stage.count("deadly") == tried


def test_a_run_that_gets_further_each_time_is_not_poison(tmp_path: Path):
    """A process that dies often, with a new record in between, is never asked about."""
    stage = Stage(tmp_path)
    ends = 0
    while (end := stage.live("advances", "r1")) is None:
        ends += 1
    assert (end[:2], ends) == (["done", 10], 5)


async def test_a_new_layer_sees_the_question(tmp_path: Path):
    """The poison question stands in the store: another process lists it."""
    stage = Stage(tmp_path)
    while stage.live("dies", "r1") is None:
        pass
    async with Layer(databases.url(tmp_path)) as layer:
        (question,) = await layer.questions()
    assert (question.kind, question.run_id) == ("poison", "r1")
