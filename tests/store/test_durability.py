"""What is on the disk when: watched from outside, at the system calls of a child process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: Each phase begins with a marker that the trace shows (opening a path that is not there).
CHILD = """
import asyncio, os, sys, time
from stepseven.store.sqlite import SqliteStore
from stepseven.testing.conformance import add_fact, append, hold_run, record

def phase(name):
    try:
        os.stat(f"/phase-{name}")
    except FileNotFoundError:
        pass

path = sys.argv[1]
store = SqliteStore("sqlite:///" + path, path, always_durable=sys.argv[2:] == ["full"])
hold = hold_run(store)
for n in range(3):
    time.sleep(0.4)
    phase("free")
    assert append(store, hold, record(hold, 10 * n + 1))
    phase("after-free")
    time.sleep(0.4)
    phase("durable")
    assert append(store, hold, record(hold, 10 * n + 2), durable=True)
    phase("after-durable")
    time.sleep(0.4)
    phase("mixed")
    async def mixed():
        store.enter(); store.enter()
        await asyncio.gather(*(store.write(add_fact(str(i)), durable=i == 5, client=None) for i in range(10)))
        store.leave(); store.leave()
    asyncio.run(mixed())
    phase("after-mixed")
phase("close")
store.close()
"""


@pytest.fixture(scope="module")
def strace() -> str:
    """The program that shows a process's system calls."""
    found = shutil.which("strace")
    if found is None:
        pytest.skip("no strace here (Debian: apt-get install strace)")
    tried = subprocess.run([found, "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"strace may not trace here: {tried.stderr.strip()}")
    return found


def phases(strace: str, folder: Path, *how: str) -> dict[str, list[list[float]]]:
    """Per phase, and per time it came: the moments (seconds after its beginning) at which the log was synced."""
    trace = folder / "trace"
    calls = "trace=fsync,fdatasync,stat,newfstatat,statx"
    command = [strace, "-f", "-ttt", "-y", "-e", calls, "-o", str(trace), sys.executable, "-c", CHILD, str(folder / "s.db"), *how]
    subprocess.run(command, check=True, timeout=50, capture_output=True)
    found: dict[str, list[list[float]]] = {}
    name, began = "start", 0.0
    for line in trace.read_text(errors="replace").splitlines():
        match = re.match(r"\d+\s+(\d+\.\d+) (.*)", line)
        if match is None:
            continue
        at, call = float(match[1]), match[2]
        marker = re.search(r'"/phase-([a-z-]+)"', call)
        if marker is not None:
            name, began = marker[1], at
            found.setdefault(name, []).append([])
        elif re.match(r"f(data)?sync\(\d+<[^>]*s\.db-wal>", call) and name in found:
            found[name][-1].append(at - began)
    return found


@pytest.mark.slow
def test_durable_waits_for_the_disk_and_free_does_not(strace: str, tmp_path: Path) -> None:
    """A free commit syncs nothing before it returns, and the disk has it within 0.2 s; a durable one has synced by then."""
    found = phases(strace, tmp_path)
    assert found["free"] == [[], [], []], "a free step waited for the disk"
    assert all(len(times) == 1 for times in found["durable"])
    assert all(times for times in found["mixed"]), "a durable unit was answered before its batch was on the disk"
    late = [min(times) for times in found["after-free"]]
    print(f"free commits reached the disk after {', '.join(f'{t * 1000:.0f}' for t in late)} ms")  # noqa: T201 - a figure for people
    assert all(t <= 0.2 for t in late)


@pytest.mark.slow
def test_full_waits_always(strace: str, tmp_path: Path) -> None:
    """With durability="full" every commit has synced when it returns."""
    found = phases(strace, tmp_path, "full")
    assert all(len(times) == 1 for times in found["free"])
    assert all(len(times) == 1 for times in found["durable"])


SYNC_FAILS = """
import sys, time
from stepseven.errors import StoreUnavailable
from stepseven.store.sqlite import SqliteStore
from stepseven.testing.conformance import append, hold_run, record

path = sys.argv[1]
store = SqliteStore("sqlite:///" + path, path)
hold = hold_run(store)
store._disk.__class__._sync = lambda self: (_ for _ in ()).throw(OSError(5, "Input/output error"))
assert append(store, hold, record(hold, 1))
store._disk._thread.join(10)
try:
    append(store, hold, record(hold, 2))
except StoreUnavailable as error:
    print(error)  # noqa: T201 - a figure for people
"""


def test_nothing_is_built_on_what_the_disk_lost(tmp_path: Path) -> None:
    """When syncing a free commit fails, it may be lost: every later write is refused, instead of going on as if it were safe."""
    told = subprocess.run(
        [sys.executable, "-c", SYNC_FAILS, str(tmp_path / "s.db")], capture_output=True, text=True, timeout=30, check=True
    )
    assert "the disk failed to save what was written" in told.stdout
