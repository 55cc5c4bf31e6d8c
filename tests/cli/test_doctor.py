"""``doctor``, ``doctor --restored`` and ``runs --orphaned``: what people are told of the store and of what nobody takes."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from stepseven.cli import main
from stepseven.model import RunStatus
from stepseven.runtime.edge import this_process
from stepseven.store.sqlite import SqliteStore
from stepseven.transitions import orphans
from stepseven.transitions.runs import Admission, admit
from tests.cli.conftest import Ran, Terminal

LABELS = (
    "store", "chosen by", "database", "schema", "size", "holds", "workers", "ready", "questions", "effects", "delivery",
    "orphaned",
)  # fmt: skip


def plain(text: str) -> str:
    """*text* without its layout."""
    return " ".join(text.split())


@contextmanager
def worker(cli, *modules: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker at work in the folder; killed at the end, if it still lives."""
    process = subprocess.Popen(
        cli.command("worker", *modules), cwd=cli.folder, env=cli.whole_env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(seen, seconds: float = 30):
    """Wait until *seen* gives something true."""
    give_up = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    return found


def sql(cli, statement: str, *values: object) -> list[tuple[object, ...]]:
    """Look at the file, or change it behind the project's back."""
    with closing(sqlite3.connect(cli.folder / "stepseven.db")) as connection, connection:
        return connection.execute(statement, values).fetchall()


def start(folder: Path, run_id: str) -> None:
    """What ``stepseven start renewals:simple`` does."""
    store = SqliteStore(f"sqlite:///{folder}/stepseven.db", f"{folder}/stepseven.db")
    try:
        admission = Admission(
            run_id=run_id, client_id="acme", workflow="simple", source_digest=None, goal=None, inputs=f'{{"quarter":"{run_id}"}}'
        )
        now = time.time_ns() // 1000
        store.write_now(lambda tx: admit(tx, admission, now), durable=True, client="acme")
    finally:
        store.close()


@dataclass
class Here(Terminal):
    """The command line in this process: looking starts none of its own."""

    read: Callable[[], tuple[str, str]] = lambda: ("", "")

    def __call__(self, *arguments: str) -> Ran:
        code = main(list(arguments))
        text, error = self.read()
        return Ran(code, text, error)


@pytest.fixture
def here(cli, monkeypatch, capsys):
    """The command line in the folder of ``cli``."""
    monkeypatch.chdir(cli.folder)
    for name in ("STEPSEVEN_URL", "STEPSEVEN_RETENTION", "STEPSEVEN_MODULES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("USER", "ann")
    return Here(cli.folder, read=lambda: tuple(capsys.readouterr()))


@pytest.fixture
def queued(here):
    """A run that waits for a worker."""
    start(here.folder, "r1")
    return here


def test_doctor_shows_the_store_the_work_and_the_care(queued):
    """Database and version, size, schema and epoch, workers, lag, questions, effects, what was not delivered, orphans: a page."""
    text = queued("doctor").out
    for label in [
        "store",
        "chosen by",
        "database",
        "schema",
        "size",
        "holds",
        "workers",
        "ready",
        "questions",
        "effects",
        "delivery",
        "orphaned",
    ]:
        assert f"\n  {label} " in f"\n{text}", label
    assert f"SQLite {sqlite3.sqlite_version}" in text
    assert "schema     4, epoch 1\n" in text
    assert max(map(len, text.splitlines())) <= 80
    found = queued("doctor", "--json").json
    assert (found["live_runs"], found["ready"], found["workers"], found["undelivered"], found["pooled"]) == (1, 1, [], 0, None)
    assert 0 < found["lag_us"] < 60e6
    assert found["bytes"] > 0
    assert found["restored_us"] is None


def test_doctor_counts_what_was_not_delivered(queued):
    """Messages that wait to go out, or could not, are counted."""
    for n, (state, reason) in enumerate([("pending", "no route"), ("failed", None), ("delivered", None), ("dead", "gone")]):
        columns = "id, person_id, purpose, state, reason, created_us"
        sql(queued, f"INSERT INTO delivery ({columns}) VALUES (?, 'ann', 'ask', ?, ?, 1)", f"d{n}", state, reason)
    assert queued("doctor", "--json").json["undelivered"] == 2
    assert "1 message could not go out yet (no route)" in queued("doctor").out


def test_doctor_says_which_store_even_when_it_cannot_be_opened(here, monkeypatch):
    """Exit 5, the store and why it is this one on stdout, what is wrong on stderr; a password is nowhere."""
    monkeypatch.setenv("STEPSEVEN_URL", "postgresql://ann:hush@127.0.0.1:1/s")
    ran = here("doctor")
    assert ran.code == 5
    assert "environment variable STEPSEVEN_URL" in ran.out
    assert "postgresql://ann:…@127.0.0.1:1/s" in ran.out
    assert "hush" not in ran.out + ran.err


def test_a_queued_run_without_a_worker_is_orphaned(queued):
    """``runs --orphaned``, ``why`` and ``doctor`` say that no worker is at work, and what takes the run."""
    (orphan,) = queued("runs", "--orphaned", "--json").json["items"]
    assert (orphan["run_id"], orphan["client_id"], orphan["workflow"], orphan["status"], orphan["reason"]) == (
        "r1", "acme", "simple", "queued", "no worker is at work"
    )  # fmt: skip
    text = plain(queued("runs", "--orphaned").out)
    assert "no worker is at work" in text
    assert "`stepseven worker MODULE`" in text
    assert "; nobody takes it by itself: no worker is at work." in plain(queued("why", "r1").out)
    assert queued("doctor", "--json").json["orphans"] == [orphan]
    assert queued("runs", "--orphaned", "--client", "bolt", "--json").json["items"] == []
    assert queued("runs", "--orphaned", "--workflow", "asks", "--json").json["items"] == []


@pytest.mark.parametrize("status", ["waiting", "done", "failed", "cancelled"])
def test_a_run_that_waits_is_not_orphaned(queued, status):
    """A run that waits for a person, or that has ended, is no orphan, whoever is at work."""
    sql(queued, "UPDATE run SET status = ?, ended_us = ?", status, None if status == "waiting" else 1)
    assert "No run is orphaned" in queued("runs", "--orphaned").out
    assert "by itself" not in queued("why", "r1").out


def test_a_timer_that_is_due_and_a_run_left_behind_are(queued):
    """A run whose time has come, or whose worker is gone, is ready: without a worker it is orphaned since then."""
    sql(queued, "UPDATE run SET status = 'waiting', waiting_for = 'timer', wake_us = 5")
    assert [one["since_us"] for one in queued("runs", "--orphaned", "--json").json["items"]] == [5]
    sql(queued, "UPDATE run SET status = 'running', wake_us = NULL, owner = 'w_gone'")
    (orphan,) = queued("runs", "--orphaned", "--json").json["items"]
    assert orphan["reason"] == "its worker w_gone is gone, and no worker is at work"
    assert orphan["reason"] in plain(queued("why", "r1").out)


def test_a_paused_client_is_nobodys_fault(queued):
    """What a person has paused is not listed: it is their word that moves it on."""
    sql(queued, "UPDATE client SET status = 'paused', note = 'x'")
    assert queued("runs", "--orphaned", "--json").json["items"] == []
    assert queued("doctor", "--json").json["ready"] == 0


def test_orphaned_goes_with_what_it_can_do(queued):
    """With a status or a page it is refused in a sentence: orphans have every status and are listed whole."""
    for option in (("--status", "queued"), ("--cursor", "3")):
        ran = queued("runs", "--orphaned", *option)
        assert ran.code == 2
        assert "leave out --status and --cursor" in ran.err


def test_a_worker_that_knows_something_else_does_not_help(queued):
    """While a worker without the run's code is at work the reason names the workflow; once it is there nothing is orphaned."""
    (queued.folder / "others.py").write_text(
        "from stepseven import Run, workflow\n@workflow\nasync def other(run: Run) -> int:\n    return 1\n", "utf-8"
    )
    with worker(queued, "others"):
        (seen,) = until(lambda: queued("doctor", "--json").json["workers"])
        assert (seen["alive"], seen["zombies"]) == (True, 0)
        assert "other" in seen["workflows"]
        assert "takes other" in plain(queued("doctor").out)
        why = "no worker knows workflow simple (the one at work takes others)"
        (orphan,) = queued("runs", "--orphaned", "--json").json["items"]
        assert orphan["reason"] == why
        assert why in plain(queued("why", "r1").out)
        with worker(queued, "renewals"):
            until(lambda: queued("show", "r1", "--json").json["status"] == RunStatus.DONE)
            assert "No run is orphaned" in queued("runs", "--orphaned").out


def test_the_last_worker_that_knew_it_is_named(queued):
    """After ``kill -9`` of the only worker, what it would have taken is orphaned, and the reason says who knew it last."""
    with worker(queued, "renewals") as process:
        until(lambda: queued("show", "r1", "--json").json["status"] == RunStatus.DONE)
        process.send_signal(signal.SIGKILL)
        process.wait()
    start(queued.folder, "r2")
    (orphan,) = queued("runs", "--orphaned", "--json").json["items"]
    assert orphan["run_id"] == "r2"
    assert f"the last that knew workflow simple (process {process.pid} on " in orphan["reason"]
    assert "workers    none alive, 1 gone" in queued("doctor").out


def test_a_frozen_worker_is_not_alive(queued):
    """A worker of this machine that is there and says nothing any more is counted as gone at the first look, whoever looks."""
    p, beat_us = this_process(), time.time_ns() // 1000 - 60_000_000
    modules = '{"simple":{"digest":"d","since_us":1}}'
    sql(
        queued, "INSERT INTO worker (id, host, boot, pid, started, beat_us, modules) VALUES ('w_frozen', ?, ?, ?, ?, ?, ?)",
        p.host, p.boot, p.pid, p.started, beat_us, modules,
    )  # fmt: skip
    assert "workers    none alive, 1 gone" in queued("doctor").out
    (orphan,) = queued("runs", "--orphaned", "--json").json["items"]
    assert orphan["reason"].startswith("no worker is at work; the last that knew workflow simple")
    assert orphan["reason"].rpartition(" was heard of ")[0] in plain(queued("why", "r1").out)
    sql(queued, "UPDATE run SET status = 'running', owner = 'w_frozen'")
    (left,) = queued("runs", "--orphaned", "--json").json["items"]
    assert left["reason"].startswith(f"its worker (process {p.pid} on ")
    assert "said nothing for " in left["reason"]
    assert "Run r1 was broken off when its worker fell silent: " in plain(queued("why", "r1").out)
    sql(queued, "UPDATE worker SET beat_us = ?", time.time_ns() // 1000)
    assert "workers    1 alive" in queued("doctor").out
    assert "executes it" in queued("why", "r1").out


def test_restored_says_what_it_means_and_raises_the_epoch(queued):
    """``doctor --restored`` asks nothing, raises the epoch each time, and says so when the last time is less than an hour ago."""
    ran = queued("doctor", "--restored")
    text = plain(ran.out)
    assert ran.code == 0
    assert "is a restored backup (epoch 2)" in text
    assert "1 run in it is not finished" in text
    assert "the run looks whether it is there" in text
    assert "already" not in text
    again = queued("doctor", "--restored", "--json").json
    assert (again["epoch"], again["live_runs"]) == (3, 1)
    assert "already" in again["warning"]
    assert queued("doctor", "--json").json["epoch"] == 3
    assert "epoch 3 (a backup was restored" in queued("doctor").out
    sql(queued, "UPDATE store SET restored_us = restored_us - 3700000000")
    assert queued("doctor", "--restored", "--json").json["warning"] is None


def test_restored_needs_a_store(here):
    """Where there is no store it is not made: exit 5."""
    assert here("doctor", "--restored").code == 5
    assert not list(here.folder.glob("*.db*"))


def test_every_run_is_looked_at(tmp_path):
    """More runs than are read at once are all found."""
    store = SqliteStore(f"sqlite:///{tmp_path}/s.db", f"{tmp_path}/s.db")
    n = orphans.PAGE + 5
    try:

        def unit(tx):
            tx.run(tx.sql.insert_client, {"id": "acme", "now": 1})
            for i in range(n):
                row = {"id": f"r{i}", "client_id": "acme", "workflow": "w", "source_digest": None, "goal": None, "inputs": "{}",
                       "root_no": None, "parent_no": None, "now": i}  # fmt: skip
                tx.run(tx.sql.insert_run, row)

        store.write_now(unit, durable=False, client="acme")
        found = store.read_now(lambda tx: orphans.ready(tx, 10_000, orphans.workers(tx, 10_000, frozenset())))
        assert [one.run_id for one in found] == [f"r{i}" for i in range(n)]
        assert found[0].since_us == 0
    finally:
        store.close()
