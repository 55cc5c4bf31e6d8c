"""Results too large for a row: over 64 KiB in a folder beside a database file, each under its hash.

Beside a database on a server they stay in it unless a folder is named: whoever takes over a run may be on another machine.

Files are shared by whoever has the same content, also by other processes. The row comes first, then the file, then the record
that names both: so whoever dies leaves no file that is not found. A file is taken away in two steps: it is set aside under
another name, and removed when its row is gone, which goes only if no record names it. Whoever names it finds the row gone then,
and writes the file anew within that transaction; a reader finds either name.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stepseven.errors import StoreUnavailable

IN_ROW = 4 << 10  # characters kept in the record itself
IN_TABLE = 64 << 10  # characters kept in table `artifact`
ASIDE = ".gone"  # the end of the name of a file that is about to be removed
PART = ".part"  # the end of the name of a file that is being written; it begins with its hash, too
_PART = 2  # characters of the hash that name the folder within the folder
GRACE_S = 3600.0  # a file touched more lately is probably about to be named by a record
_AGAIN = 5  # times that a half-written file may be taken away by who forgets a client


def content_hash(text: str) -> str:
    """The name of a result's content."""
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class Artifacts:
    """A folder of files named by their content's hash. Written once, synced before anything names them.

    *folder* ``None``: they are held in memory, as the store is. *own*: nothing else is kept there. *announce*: writes the row
    of a file (its hash, its location), durably, before there is a file. *clock*: seconds since 1970, as files are stamped.
    *in_table*: up to how many characters a result is kept in table `artifact` instead.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        own: bool = False,
        announce: Callable[[str, str], None] | None = None,
        clock: Callable[[], float] = time.time,
        in_table: int = IN_TABLE,
    ) -> None:
        self.in_table = in_table
        self._clock = clock
        self.folder = folder
        self.own = own
        self._announce = announce
        self._held: dict[str, str] = {}  # of a store in memory, which has no folder

    def put(self, name: str, text: str, *, anew: bool = False) -> str:
        """Keep *text*; the location to store. Safe on the disk when this returns. Not within a transaction: see ``again``.

        Args:
            name: its hash.
            text: what to keep.
            anew: the file that is there is not what was put there: it is replaced.

        Raises:
            StoreUnavailable: the folder cannot be written.
        """
        if self._announce is not None:
            self._announce(name, name if self.folder is None else str(Path(name[:_PART]) / name))
        return self.again(name, text, anew=anew)

    def again(self, name: str, text: str, *, anew: bool = False) -> str:
        """The same, when its row is there already, or is written by the transaction under way.

        Raises:
            StoreUnavailable: the folder cannot be written.
        """
        if self.folder is None:
            self._held[name] = text
            return name
        path = self.folder / name[:_PART] / name
        try:
            os.utime(path)  # it is wanted again: nobody takes it away now
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreUnavailable(str(self.folder), f"a large result could not be kept ({error.strerror})") from error
        else:
            if not anew:
                return str(path.relative_to(self.folder))
        try:
            _written(path, text)
            for folder in (path.parent, self.folder, self.folder.parent):
                fd = os.open(folder, os.O_RDONLY)
                try:
                    os.fsync(fd)  # the name has to survive too
                finally:
                    os.close(fd)
        except OSError as error:
            raise StoreUnavailable(str(self.folder), f"a large result could not be kept ({error.strerror})") from error
        return str(path.relative_to(self.folder))

    def get(self, location: str) -> str | None:
        """The text kept there, or ``None`` if it is gone, or is no text any more."""
        if self.folder is None:
            return self._held.get(location)
        for name in (location, location + ASIDE, location):  # it may be set aside, or put back, between two looks
            try:
                return (self.folder / name).read_text("utf-8")
            except FileNotFoundError:
                continue
            except UnicodeDecodeError:  # damaged
                return None
        return None

    # -- taking away ----------------------------------------------------------------------------------------------------

    def set_aside(self, location: str, *, grace_s: float = GRACE_S) -> bool:
        """Make ready to remove a file that no row names. ``False``: somebody touched it within *grace_s*, or it is not there."""
        if self.folder is None:
            return location in self._held
        path, aside = self.folder / location, self.folder / (location + ASIDE)
        try:
            if self._clock() - path.stat().st_mtime < grace_s:
                return False
            path.replace(aside)
            if self._clock() - aside.stat().st_mtime < grace_s:  # touched between the two: it is wanted
                self.put_back(location)
                return False
        except FileNotFoundError:
            return aside.exists()  # whoever set it aside did not come to its end
        return True

    def put_back(self, location: str) -> None:
        """A file that was set aside is wanted after all."""
        if self.folder is not None:
            aside, path = self.folder / (location + ASIDE), self.folder / location
            try:
                if path.exists():
                    aside.unlink()
                else:
                    aside.replace(path)
            except FileNotFoundError:  # somebody else did
                return

    def remove(self, location: str) -> None:
        """Remove a file that was set aside, and what was left of writing it."""
        if self.folder is None:
            self._held.pop(location, None)
            return
        path = self.folder / location
        (self.folder / (location + ASIDE)).unlink(missing_ok=True)
        for part in path.parent.glob(f"{path.name}.*{PART}"):
            part.unlink(missing_ok=True)  # whoever is still writing it notices, and writes it again

    def strays(self) -> Iterator[tuple[str, str, float]]:
        """Everything in the folder: location, the name its row would have, and how long nobody has touched it, in seconds."""
        if self.folder is None or not self.folder.is_dir():
            return
        for part in self.folder.iterdir():
            if part.is_dir() and len(part.name) == _PART:
                for path in part.iterdir():
                    try:
                        age_s = self._clock() - path.stat().st_mtime
                    except FileNotFoundError:
                        continue
                    yield str(path.relative_to(self.folder)), path.name.partition(".")[0], age_s

    def remove_stray(self, location: str) -> None:
        """Remove a file that no row names and nobody can be about to name."""
        if self.folder is not None:
            (self.folder / location).unlink(missing_ok=True)


def _written(path: Path, text: str) -> None:
    """Write a file under another name, bring it to the disk, and give it its name."""
    for left in reversed(range(_AGAIN)):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8", newline="") as file:  # noqa: PTH123
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            part.replace(path)
        except FileNotFoundError:
            if not left:
                raise
        else:
            return
