"""Opening a store: an empty path, a race, another version, another program's file, and everything that is no file at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepseven.errors import SchemaMismatch, StepsevenError, StoreUnavailable
from stepseven.store import sqlite as module
from stepseven.store.migrate import APPLICATION_ID, migrations, split
from stepseven.store.sqlite import SqliteStore
from stepseven.testing.conformance import NOW_US, add_fact, facts

OPEN = """
import sys
from stepseven.errors import StepsevenError
from stepseven.store.sqlite import SqliteStore
try:
    store = SqliteStore("sqlite:///" + sys.argv[1], sys.argv[1])
    store.write_now(lambda tx: tx.run(tx.sql.insert_client, {"id": sys.argv[2], "now": 1}), durable=True, client=None)
    store.close()
except StepsevenError as error:
    print(type(error).__name__, error)
    sys.exit(3)
"""


KEEP_LOCKED = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


def open_file(path: Path) -> SqliteStore:
    """A store on *path*."""
    return SqliteStore(f"sqlite:///{path}", str(path))


def child(*args: object, user: list[str] | None = None, script: str = OPEN) -> subprocess.CompletedProcess[str]:
    """Another process that opens a store and writes a client."""
    command = [*(user or []), sys.executable, "-c", script, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def digest(path: Path) -> str:
    """What the file holds, byte by byte."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_eight_starters_at_once(tmp_path: Path) -> None:
    """Eight processes that open the same empty path at the same moment all work; the schema is made once (U04)."""
    path = tmp_path / "s.db"
    gate = f"import sys, time\nwhile time.time() < float(sys.argv[3]): pass\n{OPEN}"
    at = str(time.time() + 1.5)
    command = [sys.executable, "-c", gate, str(path)]
    children = [subprocess.Popen([*command, f"c{i}", at], stdout=subprocess.PIPE, text=True) for i in range(8)]
    said = [c.communicate(timeout=60)[0] for c in children]
    assert [c.returncode for c in children] == [0] * 8, said
    store = open_file(path)
    count = store.read_now(lambda tx: [tx.one(tx.sql.client, {"id": f"c{i}"}) is not None for i in range(8)])
    store.close()
    assert count == [True] * 8


def test_schema_is_what_the_migrations_make(tmp_path: Path) -> None:
    """A new file has exactly what the migration scripts say, its version, and the mark that it is ours."""
    path = tmp_path / "s.db"
    open_file(path).close()
    plain = sqlite3.connect(":memory:")
    for _, script in migrations("sqlite"):
        for statement in split(script):
            plain.execute(statement)
    query = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
    with sqlite3.connect(path) as made:
        assert made.execute(query).fetchall() == plain.execute(query).fetchall()
        assert made.execute("PRAGMA user_version").fetchone()[0] == migrations("sqlite")[-1][0]
        assert made.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        assert made.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_newer_version_is_refused_untouched(tmp_path: Path) -> None:
    """A file of a newer schema is refused with its number, ours and the way out, and not a byte of it changes (U05)."""
    path = tmp_path / "s.db"
    open_file(path).close()
    newest = migrations("sqlite")[-1][0]
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute(f"PRAGMA user_version={newest + 1}")
    connection.close()
    before = digest(path)
    with pytest.raises(SchemaMismatch, match="newer stepseven") as refused:
        open_file(path)
    assert (refused.value.found, refused.value.known) == (str(newest + 1), str(newest))
    assert digest(path) == before


def test_older_version_is_refused_with_the_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of an older schema is refused and told about `stepseven migrate`; it is not changed behind its owner's back."""
    path = tmp_path / "s.db"
    open_file(path).close()
    before = digest(path)
    monkeypatch.setattr("stepseven.store.migrate.migrations", lambda _: [(1, ""), (99, "")])
    with pytest.raises(SchemaMismatch, match="back it up, then run `stepseven migrate`"):
        open_file(path)
    assert digest(path) == before


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_other_programs_database_is_refused_untouched(tmp_path: Path, journal: str) -> None:
    """Another program's SQLite file is refused, and neither its bytes nor its journal mode change."""
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA journal_mode={journal}")
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = digest(path)
    with pytest.raises(StoreUnavailable, match="another program's database"):
        open_file(path)
    assert digest(path) == before


def test_empty_file_is_taken(tmp_path: Path) -> None:
    """An empty file (`mktemp` made it) becomes a store."""
    path = tmp_path / "s.db"
    path.touch()
    open_file(path).close()
    assert path.stat().st_size > 0


@pytest.mark.parametrize("kind", ["text", "folder", "no folder", "file as folder"])
def test_what_cannot_be_a_database_is_said(tmp_path: Path, kind: str) -> None:
    """A text file, a folder, a path in a missing folder: one sentence that says what is wrong, and nothing is made."""
    path = tmp_path / "s.db"
    says = {"text": "not a SQLite database", "folder": "it is a folder"}.get(kind, "does not exist")
    if kind == "text":
        path.write_text("These are my notes, and they matter.\n" * 100)
    elif kind == "folder":
        path.mkdir()
    else:
        path = tmp_path / "missing" / "s.db"
        if kind == "file as folder":
            (tmp_path / "missing").write_text("a file")
    before = sorted(p.name for p in tmp_path.rglob("*"))
    with pytest.raises(StoreUnavailable, match=says):
        open_file(path)
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def as_nobody() -> list[str]:
    """How to start a child that permission bits bind, for root they do not."""
    if os.getuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root is not bound by permission bits, and there is no setpriv to become somebody else")
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.fixture
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that another user can reach."""
    folder = tmp_path_factory.mktemp("public")
    for part in (folder, *folder.parents):
        if part.stat().st_uid == os.getuid() and part != Path("/"):
            part.chmod(part.stat().st_mode | 0o055)
    return folder


@pytest.mark.parametrize("what", ["file", "folder", "new"])
def test_read_only_is_said(public: Path, what: str) -> None:
    """A file or folder that may not be written is refused in words that say so; what is there stays."""
    user = as_nobody()
    path = public / "s.db"
    if what != "new":
        open_file(path).close()
        path.chmod(0o444)
    public.chmod(0o777 if what == "file" else 0o555)
    before = digest(path) if what != "new" else None
    told = child(path, "c", user=user)
    public.chmod(0o755)
    if "Traceback" in told.stderr and "stepseven" not in told.stderr.replace("-m stepseven", ""):
        pytest.skip("the other user cannot run this Python")
    assert told.returncode == 3, told.stderr
    assert told.stdout.startswith("StoreUnavailable")
    assert "writable" in told.stdout
    assert (digest(path) if before else None) == before
    assert before or not path.exists()


def test_damaged_file_is_said(tmp_path: Path) -> None:
    """Flipped bytes, wherever they are, end in our error with a way out, never in a bare driver error or a wrong answer."""
    path = tmp_path / "s.db"
    store = open_file(path)
    store.write_now(lambda tx: tx.run(tx.sql.insert_client, {"id": "acme", "now": NOW_US}), durable=True, client=None)
    for i in range(200):
        store.write_now(add_fact(str(i) * 50), durable=False, client=None)
    kept = facts(store)
    store.close()
    whole = path.read_bytes()
    said = set()
    for at in [*range(16, 100, 7), *range(4096, len(whole), 3001)]:
        broken = bytearray(whole)
        broken[at : at + 64] = bytes(b ^ 0xFF for b in broken[at : at + 64])
        path.write_bytes(broken)
        try:
            store = open_file(path)
            try:
                assert facts(store) == kept or at >= 4096  # a flipped value is a value: SQLite keeps no checksums
            finally:
                store.close()
        except StepsevenError as error:
            said.add(str(error).partition("cannot be used: ")[2] or type(error).__name__)
    assert any("damaged" in text or "not a SQLite" in text for text in said), said
    assert not any("SQLite says" in text for text in said), said


def test_locked_by_another_process_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that somebody keeps locked: we wait, then say so; once it is free everything goes on."""
    monkeypatch.setattr(module, "BUSY_TIMEOUT_S", 0.3)
    path = tmp_path / "s.db"
    store = open_file(path)
    store.write_now(lambda tx: tx.run(tx.sql.insert_client, {"id": "acme", "now": NOW_US}), durable=True, client=None)
    other = subprocess.Popen(
        [sys.executable, "-c", KEEP_LOCKED, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(StoreUnavailable, match="another process"):
            store.write_now(add_fact("1"), durable=True, client=None)
        assert facts(store) == []
        with pytest.raises(StoreUnavailable, match="another process"):
            open_file(tmp_path / "s.db").write_now(add_fact("1"), durable=True, client=None)
    finally:
        other.communicate("", timeout=30)
    assert store.write_now(add_fact("1"), durable=True, client=None) == 1
    store.close()


SMALL_DISK = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Fill the disk but for *leave* bytes."""
    path = folder / "filler"
    free = os.statvfs(folder)
    with path.open("wb") as file:
        file.write(b"\0" * max(0, free.f_bavail * free.f_frsize - leave))
    return path


@pytest.mark.parametrize("leave", [0, 4 << 10, 32 << 10, 64 << 10, 128 << 10])
def test_full_disk_while_opening(small_disk: Path, leave: int) -> None:
    """No room for a new file: it is said, nothing is half-made, and with room the same path works."""
    filler = fill(small_disk, leave)
    path = small_disk / "s.db"
    with pytest.raises(StoreUnavailable, match="disk is full"):
        open_file(path)
    filler.unlink()
    store = open_file(path)
    store.write_now(lambda tx: tx.run(tx.sql.insert_client, {"id": "acme", "now": NOW_US}), durable=True, client=None)
    assert store.write_now(add_fact("1"), durable=True, client=None) == 1
    store.close()


@pytest.mark.parametrize("durable", [False, True])
def test_full_disk_while_writing(small_disk: Path, durable: bool) -> None:
    """The disk fills up: the write that finds no room says so and leaves nothing; what was told done is there; room heals it."""
    path = small_disk / "s.db"
    store = open_file(path)
    store.write_now(lambda tx: tx.run(tx.sql.insert_client, {"id": "acme", "now": NOW_US}), durable=True, client=None)
    done = 0
    with pytest.raises(StoreUnavailable, match="disk is full"):  # noqa: PT012 - how many fit is not known before
        for _ in range(1000):
            store.write_now(add_fact("x" * 5000), durable=durable, client=None)
            done += 1
    assert 0 < done < 1000
    assert len(facts(store)) == done
    with pytest.raises(StoreUnavailable, match="disk is full"):
        store.write_now(add_fact("x" * 50_000), durable=durable, client=None)
    subprocess.run(["mount", "-o", f"remount,size={SMALL_DISK * 8}", str(small_disk)], check=True)
    assert store.write_now(add_fact("room"), durable=durable, client=None) == done + 1
    store.close()
    store = open_file(path)
    assert len(facts(store)) == done + 1
    store.close()
