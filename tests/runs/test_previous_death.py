"""What a run was told about the one before it, and its own brief, are the same in the next life, wherever this one ended."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer
from tests.runs.tools import child, execute, module, records, rows, until_crash, url

LOOKS = """
    import asyncio
    from stepseven import Run, step, workflow

    @step(name="looks.draft")
    async def draft(prompt: str) -> str:
        return f"from {len(prompt)}: {prompt}"

    @workflow(name="looks")
    async def looks(run: Run, n: int) -> list[str]:
        before = run.previous
        large = before.artifact("looks.draft") if before is not None else ""
        prompt = run.brief(300)
        told = await draft(prompt)
        open_ = [q.text for q in run.client.open_questions()]
        failed = [f.reason for f in run.client.failures()]
        await draft(f"{open_} {failed} {[f.reason for f in run.failures]}")
        if before is None:
            await draft("x" * 9000)
        return [str(before.changed.facts if before else None), large, prompt, told, str(open_)]
"""


def a_change(path: Path, n: int) -> None:
    """The world goes on: a fact changes between two lives, and another run begins to wait."""
    execute(
        path, "INSERT INTO fact (client_id, key, version, value, source, set_us) VALUES ('acme', 'vat', ?, ?, 'crm', ?)",
        n, json.dumps(f"DE{n}"), 4_000_000_000_000_000 + n,
    )  # fmt: skip


def test_a_crash_at_any_record_leaves_one_prompt_and_one_draft(tmp_path: Path) -> None:
    """Killed between any two writes, with the client changing meanwhile: pins stay, and the paid step runs on them once."""
    looks = module("previous_looks", LOOKS).looks
    for k in range(1, 13):
        path = tmp_path / str(k)
        path.mkdir()
        asyncio.run(_first(path, looks))
        until_crash(path, k, lambda layer: layer.run(looks(n=2), client="acme", run_id="r2"))
        pins = _pins(path)
        a_change(path, 2)
        outcome = until_crash(path, 99, lambda layer: layer.run(looks(n=2), client="acme", run_id="r2"))
        assert outcome is not None
        _, large, prompt, told, _ = outcome.result()
        assert told == f"from {len(prompt)}: {prompt}"
        assert large.endswith("x" * 9000)
        assert pins.items() <= _pins(path).items()
        assert len(rows(path, "SELECT 1 FROM step WHERE name = 'run.brief' AND run_no = 2")) == 1
        assert len([r for r in records(path, "r2") if r["name"] == "looks.draft"]) == 2


def _pins(path: Path) -> dict[tuple[str, str], tuple[str, str]]:
    """What is pinned of the run that is killed."""
    return {
        (r["name"], r["key"]): (r["result"], r["artifact"])
        for r in records(path, "r2")
        if r["name"].startswith(("run.", "client."))
    }


async def _first(path: Path, looks: Any) -> None:
    async with Layer(url(path)) as layer:
        assert (await layer.run(looks(n=1), client="acme", run_id="r1")).status == "done"


KILLED = """
    import asyncio, sys
    from tests.crash.killer import Faults, Kill, Life

    state, at, side = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    import previous_subject
    from stepseven import Layer
    Faults(Life(state=state, url="", kill=Kill("commit", at, side))).install()

    async def main():
        async with Layer(f"sqlite:///{state}/s7.db") as layer:
            await layer.run(previous_subject.looks(n=2), client="acme", run_id="r2", wait=20)

    asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.sqlite("the kills are at its commits")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("side, stride", [("before", 1), ("after", 3)])
def test_a_kill_at_any_commit_leaves_one_prompt(tmp_path: Path, side: str, stride: int) -> None:
    """SIGKILL before and after commits: a pin that is on the disk is what the next life tells."""
    (tmp_path / "previous_subject.py").write_text(textwrap.dedent(LOOKS))
    looks = module("previous_looks", LOOKS).looks
    asyncio.run(_first(tmp_path, looks))
    source = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{textwrap.dedent(KILLED)}"
    met = 0
    for at in range(1, 60, stride):
        path = tmp_path / f"{side}{at}"
        path.mkdir()
        shutil.copyfile(tmp_path / "s7.db", path / "s7.db")
        dead = child(source, str(path), str(at), side)
        if dead.returncode == 0:
            break
        assert dead.returncode == -signal.SIGKILL, dead.stderr
        pinned = _pins(path)
        a_change(path, 2)
        prompt, told = asyncio.run(_again(path, looks))
        assert pinned.items() <= _pins(path).items()
        assert told == f"from {len(prompt)}: {prompt}"
        assert json.loads(_pins(path)["run.brief", "300"][0]) == prompt
        met += 1
    assert met >= 4


async def _again(path: Path, looks: Any) -> tuple[str, str]:
    async with Layer(url(path)) as layer:
        outcome = await layer.run(looks(n=2), client="acme", run_id="r2", wait=20)
        return outcome.result()[2], outcome.result()[3]
