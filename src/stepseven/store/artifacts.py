"""Results too large for a row: over 64 KiB in a folder beside the database, each under its hash."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from stepseven.errors import StoreUnavailable

IN_ROW = 4 << 10  # characters kept in the record itself
IN_TABLE = 64 << 10  # characters kept in table `artifact`


def content_hash(text: str) -> str:
    """The name of a result's content."""
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class Artifacts:
    """A folder of files named by their content's hash. Written once, synced before anything names them.

    *folder* ``None``: they are held in memory, as the store is.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._held: dict[str, str] = {}  # of a store in memory, which has no folder

    def put(self, name: str, text: str) -> str:
        """Keep *text*; the location to store. Safe on the disk when this returns.

        Raises:
            StoreUnavailable: the folder cannot be written.
        """
        if self.folder is None:
            self._held[name] = text
            return name
        path = self.folder / name[:2] / name
        if path.exists():
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
        try:
            return (self.folder / location).read_text("utf-8")
        except FileNotFoundError:
            return None
