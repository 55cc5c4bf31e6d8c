"""What SQLite's errors mean, in words that say what to do."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from stepseven.errors import StoreUnavailable

_LITTLE_BYTES = 256 << 10  # a disk with less is full, whatever SQLite calls it

_FULL = "the disk is full: free some space, then try again; nothing was half-written"
_WHY = {
    sqlite3.SQLITE_BUSY: "another process kept it locked for too long: close what else writes to it, then try again",
    sqlite3.SQLITE_LOCKED: "it is locked: close what else writes to it, then try again",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only: make it writable for this user",
    sqlite3.SQLITE_IOERR: "the disk reported an error while reading or writing it: check the disk, then try again",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore a backup",
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: check that it and its folder are writable for this user",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database: choose another file",
}


def _code(error: sqlite3.Error | UnicodeDecodeError) -> int:
    """SQLite's primary result code. The driver gives none when it found bytes that are no text: damage, too."""
    unreadable = isinstance(error, UnicodeDecodeError) or "decode to UTF-8" in str(error)
    return sqlite3.SQLITE_CORRUPT if unreadable else getattr(error, "sqlite_errorcode", 0) & 0xFF


def busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the lock, so that a retry is worth it."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def explain(url: str, path: str, error: sqlite3.Error | UnicodeDecodeError, *, opening: bool = False) -> StoreUnavailable:
    """The error of the driver as ours, by SQLite's result code."""
    why = _WHY.get(_code(error), f"SQLite says: {error}")
    if _code(error) in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and _is_full(path):
        why = _FULL  # growing the shared memory or making a file fails with another code than growing the file
    elif opening and _code(error) == sqlite3.SQLITE_ERROR:
        why = "its format is not one this SQLite can read: it is damaged, or a newer SQLite wrote it"
    elif _code(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        why = _unwritable(path) or why
    return StoreUnavailable(url, why)


def _unwritable(path: str) -> str | None:
    """Which of the files that make up a database this user may not write to; ``None``: it is none of them.

    SQLite gives a shared memory that it makes the rights of the file: looked at once while it was read-only, the file has a
    read-only companion, which is in the way after the file itself has become writable again.
    """
    companions = [Path(f"{path}{end}") for end in ("-shm", "-wal")]
    if Path(path).exists() and not os.access(path, os.W_OK):
        return f"{path} is read-only: make it writable for this user"
    for file in companions:
        if file.exists() and not os.access(file, os.W_OK):
            instead = ", or delete it while no program has the store open" if file.name.endswith("-shm") else ""
            return f"{file} beside it is read-only: make it writable for this user{instead}"
    folder = Path(path).absolute().parent
    if not os.access(folder, os.W_OK) and not Path(path).exists():
        return f"the folder {folder} is read-only: make it writable for this user, or name a store elsewhere"
    if not os.access(folder, os.W_OK):
        return f"the folder {folder} is read-only, and SQLite needs to make files in it: copy the store elsewhere to look at it"
    return None


def _is_full(path: str) -> bool:
    try:
        disk = os.statvfs(Path(path).parent)
    except (AttributeError, OSError):  # not there, or not on this system: then the code itself has to do
        return False
    return disk.f_bavail * disk.f_frsize < _LITTLE_BYTES


def cannot_open(path: str) -> str | None:
    """Why *path* cannot be a database file, if that can be seen without opening it."""
    try:
        if Path(path).is_dir():
            return "it is a folder: name a file in it"
        if not Path(path).parent.is_dir():
            return f"the folder {Path(path).parent} does not exist: create it first"
    except OSError as error:
        return f"it cannot be reached ({error.strerror}): check the rights of this user"
    return None
