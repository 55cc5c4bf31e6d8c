"""The crash tools that lie beside the checkout, on our subject: SIGKILL, torn writes and power cuts below Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.killer import ROOT

SHARED = Path(os.environ.get("STEPSEVEN_SHARED") or ROOT.parent / "shared")
SUBJECT = ROOT / "tests" / "crash" / "subject.py"
PEOPLE = ROOT / "tests" / "crash" / "people.py"

TOOL = SHARED / "tools" / "crash_points.py"

pytestmark = [
    pytest.mark.skipif(not TOOL.exists(), reason="no tools/crash_points.py in the folder `shared` beside the checkout"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to build what kills (Debian: apt-get install gcc)"),
]

WRITES = ["--calls", "sync,write"]
SENDS = ["--calls", "send", "--ledger-port"]


def crash_points(folder: Path, mode: str, *how: str, subject: Path = SUBJECT) -> dict[str, int]:
    """Run the tool; how many scenarios had which outcome. Every scenario has to be clean."""
    command = [sys.executable, str(TOOL), str(subject), "--dedup", "--mode", mode, *how]
    told = subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={**os.environ, "CP_BUILD": str(folder), "TMPDIR": str(folder), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    found = re.search(r"^(\d+) scenarios, .*: (\{.*\})$", told.stdout, re.MULTILINE)
    assert found, told.stdout + told.stderr
    outcomes = {name: int(n) for name, n in re.findall(r"'(\w+)': (\d+)", found[2])}
    bad = {name: n for name, n in outcomes.items() if name not in ("clean", "run_survived_the_fault")}
    assert not bad, told.stdout
    assert outcomes["clean"] == int(found[1])
    assert told.returncode == 0
    return outcomes


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "mode, how, stride",
    [
        ("before", WRITES, 180), ("after", WRITES, 170), ("torn", WRITES, 160), ("powerloss", WRITES, 130),
        ("before", SENDS, 17), ("after", SENDS, 12),
    ],
    ids=["write-before", "write-after", "write-torn", "write-powerloss", "send-before", "send-after"],
)  # fmt: skip
def test_a_sample_of_the_kill_points_is_clean(tmp_path: Path, mode: str, how: list[str], stride: int):
    """Nothing lost, duplicated, diverged, stuck or corrupt at kill points spread over the whole run."""
    outcomes = crash_points(tmp_path, mode, *how, "--stride", str(stride))
    assert outcomes["clean"] >= 3


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "mode, how, stride", [("after", WRITES, 110), ("powerloss", WRITES, 110), ("after", SENDS, 5)],
    ids=["write-after", "write-powerloss", "send-after"],
)  # fmt: skip
def test_a_sample_of_the_kill_points_with_people_is_clean(tmp_path: Path, mode: str, how: list[str], stride: int):
    """The same where people decide: no approval, edit or refusal is lost, and nothing goes out without its own."""
    outcomes = crash_points(tmp_path, mode, *how, "--stride", str(stride), subject=PEOPLE)
    assert outcomes["clean"] >= 3


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("mode", ["before", "after", "torn", "powerloss", "errno:28", "errno:5"])
def test_every_write_and_sync(tmp_path: Path, mode: str):
    """Nothing lost, duplicated, diverged, stuck or corrupt, wherever a write or a sync is the last, or is refused."""
    crash_points(tmp_path, mode, *WRITES, "--max", "5000")


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("mode", ["before", "after", "torn"])
def test_every_send(tmp_path: Path, mode: str):
    """Nothing lost, duplicated, diverged, stuck or corrupt, wherever a send to the outside is the last."""
    crash_points(tmp_path, mode, *SENDS, "--max", "5000")


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("mode, how, stride", [("after", WRITES, 40), ("powerloss", WRITES, 40), ("after", SENDS, 5)])
def test_a_kill_in_the_recovery(tmp_path: Path, mode: str, how: list[str], stride: int):
    """The recovery is killed, too: nothing lost, duplicated, diverged, stuck or corrupt."""
    crash_points(tmp_path, mode, *how, "--double", "--stride", str(stride), "--max", "5000")
