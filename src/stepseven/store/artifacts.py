"""Results too large for a row: over 64 KiB in a folder beside the database, each under its hash.

Files are shared by whoever has the same content, also by other processes, and a file is there before the row that names it.
So a file is taken away in two steps: it is set aside under another name first, and only removed when nobody has touched it
since. Whoever is about to name it has touched it (``put``), or finds it gone and writes it anew; a reader finds either name.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stepseven.errors import StoreUnavailable

IN_ROW = 4 << 10  # characters kept in the record itself
IN_TABLE = 64 << 10  # characters kept in table `artifact`
ASIDE = ".gone"  # the end of the name of a file that is about to be removed
_PART = 2  # characters of the hash that name the folder within the folder
GRACE_S = 3600.0  # a file touched more lately may be named by a row that is just being written


def content_hash(text: str) -> str:
    """The name of a result's content."""
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class Artifacts:
    """A folder of files named by their content's hash. Written once, synced before anything names them.

    *folder* ``None``: they are held in memory, as the store is. *own*: nothing else is kept there.
    """

    def __init__(self, folder: Path | None, *, own: bool = False) -> None:
        self.folder = folder
        self.own = own
        self._held: dict[str, str] = {}  # of a store in memory, which has no folder

    def put(self, name: str, text: str) -> str:
        """Keep *text*; the location to store. Safe on the disk when this returns.

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
            return str(path.relative_to(self.folder))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(path)
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
        """The text kept there, or ``None`` if it is gone."""
        if self.folder is None:
            return self._held.get(location)
        for name in (location, location + ASIDE, location):  # it may be set aside, or put back, between two looks
            try:
                return (self.folder / name).read_text("utf-8")
            except FileNotFoundError:
                continue
        return None

    # -- taking away ----------------------------------------------------------------------------------------------------

    def set_aside(self, location: str, *, grace_s: float = GRACE_S) -> bool:
        """Make ready to remove a file that no row names. ``False``: somebody touched it within *grace_s*, or it is not there."""
        if self.folder is None:
            return location in self._held
        path, aside = self.folder / location, self.folder / (location + ASIDE)
        try:
            if time.time() - path.stat().st_mtime < grace_s:
                return False
            path.replace(aside)
            if time.time() - aside.stat().st_mtime < grace_s:  # touched between the two: it is wanted
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
        """Remove a file that was set aside."""
        if self.folder is None:
            self._held.pop(location, None)
            return
        (self.folder / (location + ASIDE)).unlink(missing_ok=True)

    def strays(self) -> Iterator[tuple[str, str, float]]:
        """Everything in the folder: location, the name its row would have, and how long nobody has touched it, in seconds."""
        if self.folder is None or not self.folder.is_dir():
            return
        for part in self.folder.iterdir():
            if part.is_dir() and len(part.name) == _PART:
                for path in part.iterdir():
                    try:
                        age_s = time.time() - path.stat().st_mtime
                    except FileNotFoundError:
                        continue
                    yield str(path.relative_to(self.folder)), path.name.removesuffix(ASIDE), age_s

    def remove_stray(self, location: str) -> None:
        """Remove a file that no row names and nobody can be about to name."""
        if self.folder is not None:
            (self.folder / location).unlink(missing_ok=True)
