"""A folder with a module of workflows, and the command line as a real process in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

MODULE = """
import os
import signal
import time
from pathlib import Path
from typing import Any
from stepseven import Cost, Fatal, Fixable, Limits, Run, step, workflow

@step(cost=Cost(usd=0.02), summary=lambda n: f"{n} tickets")
async def pull_tickets(client: str) -> int:
    return 214

@step(resource="billing-api", cost=Cost(usd=0.3))
async def pull_billing(client: str) -> float:
    raise Fixable("403 Forbidden")

@step(summary=lambda n: f"item {n} \\x1b[31mfine")
async def check(n: int) -> int:
    return n

@step(effect="write", key="quarter")
async def create(quarter: str) -> str:
    return f"document {quarter}"

@workflow(limits=Limits(usd=2))
async def renewal(run: Run, quarter: str, amount: Any = 1) -> str:
    await pull_tickets(run.client_id)
    await run.map(check, range(40))
    billing = await pull_billing(run.client_id)
    return f"{await create(quarter)} at {billing}"

@workflow
async def simple(run: Run, quarter: str) -> str:
    return await create(quarter)

@workflow
async def hopeless(run: Run) -> None:
    raise Fatal("the contract has ended")

@workflow
async def asks(run: Run) -> list[object]:
    yes = await run.ask("Is the discount approved?", options=["yes", "no"])
    percent = await run.ask("How many percent?", type=int)
    return [yes, percent, await run.ask("What is the reference?")]

@step(effect="irreversible", key="to")
async def send_mail(to: str, subject: str, body: str, copies: int = 1) -> str:
    return f"{to}: {subject} ({body}) x{copies}"

@workflow
async def mails(run: Run) -> str:
    return await send_mail("ben@acme.example", "Your contract", "Dear customer,\\nit ends in December.")

@step
def hang(folder: str) -> None:
    Path(folder, "hanging").touch()
    time.sleep(60)

@workflow
async def hangs(run: Run, folder: str) -> str:
    await pull_tickets(run.client_id)
    await hang(folder)
    return "never"
"""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Terminal:
    """Runs ``python -m stepseven`` in *folder*. No traceback may ever reach a person."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "stepseven", *arguments]

    @property
    def whole_env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("STEPSEVEN_") and k not in ("COLUMNS", "NO_COLOR")}
        return {**kept, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))), "USER": "ann", **self.env}

    def __call__(self, *arguments: str) -> Ran:
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.whole_env, capture_output=True, text=True, timeout=50, check=False
        )
        assert "Traceback" not in done.stdout + done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    def question(self, run_id: str) -> dict[str, Any]:
        """The one open question of a run."""
        asked = self("show", run_id, "--json").json["questions"]
        assert len(asked) == 1
        return dict(asked[0])


@pytest.fixture
def cli(tmp_path: Path) -> Terminal:
    """The command line in a folder with ``renewals.py`` and no store."""
    (tmp_path / "renewals.py").write_text(MODULE, "utf-8")
    return Terminal(tmp_path)
