"""A private PgBouncer: transaction mode, so few connections that leaked session state meets somebody else."""

from __future__ import annotations

import shutil
import signal
import subprocess
from typing import Any, Literal

from tests.servers import programs

#: What a user of Supabase's pooler gets, and stricter: nothing is reset between two clients of one connection.
CONFIG = """\
[databases]
* = host=127.0.0.1 port={upstream} user=postgres

[pgbouncer]
logfile = {log}
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
reserve_pool_size = 0
max_client_conn = 500
server_reset_query_always = 0
server_idle_timeout = 20
autodb_idle_timeout = 20
server_login_retry = 1
ignore_startup_parameters = extra_float_digits
"""


class Bouncer(programs.Server):
    """One PgBouncer before the server on port *upstream*; it serves every database there. Use it as a context manager."""

    def __init__(self, upstream: int, *, size: int = 2) -> None:
        super().__init__("PgBouncer", programs.folder("stepseven-pgbouncer-"))
        self.upstream = upstream
        self.size = size

    def _begin(self) -> subprocess.Popen[bytes]:
        config = self.folder / "pgbouncer.ini"
        config.write_text(CONFIG.format(upstream=self.upstream, port=self.port, size=self.size, log=self.log))
        programs.give(config)
        return programs.start([programs.need("pgbouncer"), config], self.folder / "out")

    def _answers(self) -> Literal["ours", "not ours"] | None:
        import psycopg

        assert self._process is not None
        ended = self._process.poll() is not None
        try:
            says = {row["key"]: row["value"] for row in self.show("CONFIG")}
        except psycopg.Error:
            return "not ours" if ended else None
        mine = says.get("listen_port") == str(self.port) and says.get("logfile", "") == str(self.log)
        return "ours" if mine and not ended else "not ours"

    def show(self, what: str) -> list[dict[str, Any]]:
        """What its console says: ``POOLS``, ``STATS``, ``SERVERS``, ``CLIENTS``, ``CONFIG``."""
        return show(self.port, what)

    def stop(self) -> None:
        """Stop it, with its connections in whatever state they are."""
        if self._process is not None:
            # From 1.23 on SIGTERM means "when the last client is gone", before that "now". It keeps nothing: kill it.
            programs.end(self._process, signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start: every connection breaks."""
        self.stop()
        self.start()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def show(port: int, what: str) -> list[dict[str, Any]]:
    """What the console of the pooler on *port* says."""
    import psycopg
    from psycopg.rows import dict_row

    # The console speaks the simple protocol only, which is what a cursor of the client side uses.
    with psycopg.connect(
        f"postgresql://postgres@127.0.0.1:{port}/pgbouncer", autocommit=True, connect_timeout=2,
        cursor_factory=psycopg.ClientCursor, row_factory=dict_row,
    ) as console:  # fmt: skip
        return console.execute(f"SHOW {what}").fetchall()  # type: ignore[call-overload,no-any-return]
