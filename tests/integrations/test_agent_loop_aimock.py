"""The agent loop against a model server of other people's: aimock, started by npm's own client."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from examples.agent_loop.desk import Desk
from examples.agent_loop.model import CHAT

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = Path(os.environ.get("STEPSEVEN_SHARED", ROOT.parent / "shared")) / "tools" / "llm_loop_fixture.json"


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the machine has no part in it."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def environment(**more: str) -> dict[str, str]:
    """For a child: this checkout, no settings of the machine's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPSEVEN_", "SUPPORT_", "OPENAI_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))), **more}


@pytest.fixture
def aimock(tmp_path: Path) -> Iterator[str]:
    """The URL of aimock, a model server of other people's; started by npm's own client."""
    if not FIXTURE.is_file():
        pytest.skip(f"the conversation is not at {FIXTURE}: set STEPSEVEN_SHARED")
    if shutil.which("npx") is None:
        pytest.skip("npx is not installed here: install Node.js")
    port = free_port()
    line = ["npx", "-y", "-p", "@copilotkit/aimock", "llmock", "-p", str(port), "-f", str(FIXTURE), "--strict"]
    with (tmp_path / "aimock.log").open("w") as log:
        server = subprocess.Popen(line, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/__aimock/journal", server, tmp_path / "aimock.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        end_group(server)


def free_port() -> int:
    """A port nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers; a machine on which npm cannot fetch it skips the test."""
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        if server.poll() is not None:
            pytest.skip(f"npx could not start aimock: {log.read_text('utf-8', 'replace')[-300:]}")
        try:
            with urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    pytest.skip("npx did not bring aimock up within two minutes")


def end_group(server: subprocess.Popen[bytes]) -> None:
    """Node is a child of npx and in its group: end both, by the group that is theirs alone."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
    server.wait(20)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.timeout(240)
def test_against_aimock_no_finished_turn_is_paid_twice(tmp_path: Path, aimock: str):
    """The same workflow, killed while its refund is on the way and started again: aimock's journal has each turn once."""
    with Desk() as desk:
        env = environment(OPENAI_BASE_URL=f"{aimock}/v1", DESK_URL=desk.url)
        line = [sys.executable, "-m", "examples.agent_loop.worker", "case-17", "--store", f"sqlite:///{tmp_path}/s.db"]
        held = desk.hold("/refunds")
        with subprocess.Popen(line, env=env, cwd=tmp_path) as worker:
            assert held.came.wait(50)
            worker.kill()
        held.go.set()
        desk.quiet()
        done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, "Refunded A-7 and mailed Ann."), done.stderr
        with urlopen(f"{aimock}/__aimock/journal", timeout=10) as answer:
            journal = json.load(answer)
        asked = Counter(json.dumps(entry["body"]["messages"], sort_keys=True) for entry in journal if entry["path"] == CHAT)
        assert sorted(asked.values()) == [1, 1, 1, 1]
        assert desk.counts("case-17") == {"refunds": 1, "mails": 1}
