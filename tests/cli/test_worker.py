"""``stepseven worker`` as it is called: what it refuses, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer
from tests.servers.databases import rows, url
from tests.workers import flows
from tests.workers.crew import Crew, environment, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(110)]


def called(tmp_path: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What came of a call of the command."""
    command = [sys.executable, "-m", "stepseven", "--store", url(tmp_path), "worker", *arguments]
    return subprocess.run(
        command, cwd=cwd or tmp_path, env=environment(), check=False, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "arguments,code,told",
    [
        ([], 2, "No module is named: write `stepseven worker MODULE`"),
        (["no_such_module"], 1, "There is no module no_such_module"),
        (["./flows.py"], 1, "is the path of a file, and a module is asked for: write flows"),
        (["json"], 1, "Module json has no workflow"),
        (["json", "--engine", "temporal://localhost"], 1, "comes with a later release"),
        (["json", "--concurrency", "0"], 2, "should be greater than or equal to 1"),
    ],
)
def test_a_worker_that_cannot_work_says_why(tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    """One sentence and an exit code, before anything is taken."""
    done = called(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


async def test_it_says_where_what_and_who_and_a_line_for_each_end(tmp_path: Path) -> None:
    """At its start store, workflows and id; then a line for what becomes of a run; at its end how much that was."""
    with Crew(url(tmp_path), tmp_path) as crew:
        process = crew.hire()
        me = crew.who(process)
        async with Layer(crew.url) as layer:
            await layer.start(flows.asking(), client="acme", run_id="q")
            await until(lambda: rows(tmp_path, "SELECT 1 AS x FROM run WHERE status = 'waiting'"))
            for question in await layer.questions():
                await layer.answer(question.id, "yes", by="ann")
            await until(lambda: rows(tmp_path, "SELECT 1 AS x FROM run WHERE status = 'done'"))
        process.terminate()
        out, err = process.communicate(timeout=15)
        assert process.returncode == 0
        lines = err.splitlines()
        assert lines[0].startswith(f"Worker {me} takes runs of asking, gated, paid, poison, sleeping, 8 at once, from ")
        assert lines[2:] == ["? q waits: Go on?", "✓ q is done"]
        assert out == "Stopped. 2 times a run was taken (1 done); every run is given back.\n"


async def test_modules_come_from_the_project_and_the_end_is_json(tmp_path: Path) -> None:
    """Without a MODULE pyproject.toml says which; with --json stdout is one document."""
    (tmp_path / "pyproject.toml").write_text('[tool.stepseven]\nmodules = ["tests.workers.flows"]\n')
    with Crew(url(tmp_path), tmp_path) as crew:
        command = [sys.executable, "-m", "stepseven", "--store", crew.url, "worker", "--json"]
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        crew.processes.append(process)
        await until(crew.registered, within=30)
        process.terminate()
        out, _ = process.communicate(timeout=15)
        told: dict[str, Any] = json.loads(out)
        assert told["workflows"] == ["asking", "gated", "paid", "poison", "sleeping"]
        assert (told["taken"], told["put_away"], told["lost"]) == (0, 0, 0)
