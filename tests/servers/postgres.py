"""A private PostgreSQL server."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.servers import programs

if TYPE_CHECKING:
    import psycopg

ENDS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

#: It flushes as a real one does: only what a crash of the whole machine would cost is saved (at initdb).
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "timezone": "Asia/Kolkata",  # nothing may depend on the server's
    "log_line_prefix": "%m [%p] %d %q%a ",
    "deadlock_timeout": "500ms",
}


class Cluster(programs.Server):
    """One server with its folder. Use it as a context manager.

    Args:
        settings: settings beside the usual ones.
        locale: of the databases; a test of sorting wants another than ``C``.
    """

    give_up = signal.SIGQUIT

    def __init__(self, *, settings: dict[str, str] | None = None, locale: str = "C.UTF-8") -> None:
        super().__init__("a server", programs.folder("stepseven-pg-"))
        self.data = self.folder / "data"
        self._settings = {**SETTINGS, "unix_socket_directories": str(self.folder), **(settings or {})}
        made = subprocess.run(
            [programs.need("initdb"), "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", f"--locale={locale}",
             "--no-sync", "--no-instructions"],
            capture_output=True, text=True, cwd="/", timeout=60, check=False, **programs.account(),
        )  # fmt: skip
        if made.returncode:
            shutil.rmtree(self.folder)
            raise RuntimeError(f"initdb failed: {made.stderr}")

    def _begin(self) -> subprocess.Popen[bytes]:
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        return programs.start([programs.need("postgres"), "-D", self.data, "-p", str(self.port), *options], self.log)

    def _answers(self) -> Literal["ours", "not ours"] | None:
        import psycopg

        assert self._process is not None
        ended = self._process.poll() is not None
        try:
            with self.connect(connect_timeout=2) as connection:
                (data,) = connection.execute("SHOW data_directory").fetchone() or ("",)
        except psycopg.OperationalError:
            return "not ours" if ended else None
        return "ours" if Path(data) == self.data.resolve() and not ended else "not ours"

    def stop(self, how: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop it. ``immediate``: without a checkpoint, as after a crash."""
        if self._process is not None:
            programs.end(self._process, ENDS[how], 30)

    def kill(self) -> None:
        """``kill -9`` of the server; its helpers see that and end, too."""
        if self._process is not None:
            programs.end(self._process, signal.SIGKILL)

    def restart(self, how: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop and start."""
        self.stop(how)
        self.start()

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        """A connection in autocommit."""
        import psycopg

        return psycopg.connect(self.url(database), **{"autocommit": True, "connect_timeout": 10, **options})

    def close(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)
