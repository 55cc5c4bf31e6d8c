"""The servers the tests stand on do what the tests take for granted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

from tests.servers import databases, install, programs, shared
from tests.servers.bouncer import Bouncer
from tests.servers.postgres import Cluster
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.pgbouncer


@pytest.fixture
def url() -> str:
    """An empty database of the session's server."""
    return databases.new_database("proxied", schema=False)


@pytest.fixture
def port() -> int:
    """The port of the session's server."""
    return shared.servers().port


def through(url: str, port: int) -> str:
    """The same database at another port."""
    head, _, database = url.rpartition("/")
    return f"{head.rpartition(':')[0]}:{port}/{database}"


def counted(url: str) -> int:
    """How many rows are there."""
    with psycopg.connect(url) as connection:
        (n,) = connection.execute("SELECT count(*) FROM t").fetchone() or (None,)
    assert isinstance(n, int)
    return n


@pytest.mark.parametrize("side, rows", [("before", 0), ("after", 1)])
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_commit_is_cut_on_the_side_that_was_ordered(url: str, port: int, side: str, rows: int, pipelined: bool) -> None:
    """Before: the server never gets it. After: it is committed, and the client sees a broken connection all the same."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (x int)")
    with Proxy(port) as proxy:
        for lap in range(1, 4):
            with psycopg.connect(through(url, proxy.port)) as connection:
                proxy.cut(side)  # type: ignore[arg-type]
                with pytest.raises(psycopg.OperationalError):  # noqa: PT012
                    if pipelined:
                        with connection.pipeline():
                            connection.execute("INSERT INTO t VALUES (1)")
                            connection.commit()
                    else:
                        connection.execute("INSERT INTO t VALUES (1)")
                        connection.commit()
            assert proxy.cuts == lap
            assert counted(url) == lap * rows


def test_the_nth_commit_is_cut_and_only_that(url: str, port: int) -> None:
    """What is before the ordered one and after it goes through."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (x int)")
    broken = []
    with Proxy(port) as proxy:
        proxy.cut("before", n=3)
        for n in range(5):
            connection = psycopg.connect(through(url, proxy.port))
            connection.execute("INSERT INTO t VALUES (1)")
            try:
                connection.commit()
            except psycopg.OperationalError:
                broken.append(n)
            connection.close()
    assert broken == [2]
    assert counted(url) == 4


def test_nothing_passes_a_frozen_line_until_it_heals(url: str, port: int) -> None:
    """Nobody is told that the line is frozen; what was held back arrives when it heals."""
    with Proxy(port) as proxy, psycopg.connect(through(url, proxy.port), autocommit=True) as connection:
        connection.execute("SELECT 1")
        proxy.freeze()
        answered = threading.Event()

        def ask() -> None:
            connection.execute("SELECT 2")
            answered.set()

        asking = threading.Thread(target=ask)
        asking.start()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(through(url, proxy.port), connect_timeout=2)
        assert not answered.is_set()
        proxy.heal()
        assert answered.wait(10)
        asking.join()
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 3")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(through(url, proxy.port), connect_timeout=2)
        proxy.heal()
        psycopg.connect(through(url, proxy.port), connect_timeout=2).close()


def test_the_pooler_is_as_strict_as_the_strictest() -> None:
    """Transaction mode: what one client leaves in its session another finds, and there are two connections for all."""
    url = databases.new_database("strict", pooled=True, schema=False)
    pids = set()
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as one:
        one.execute("SET application_name TO 'leaked'")
        for _ in range(8):
            with psycopg.connect(url, autocommit=True, prepare_threshold=None) as other:
                pid, name = other.execute("SELECT pg_backend_pid(), current_setting('application_name')").fetchone() or (0, "")
                pids.add(pid)
                assert name == "leaked"
    assert len(pids) <= 2
    with pytest.raises(psycopg.OperationalError, match="options"):
        psycopg.connect(url, options="-c statement_timeout=1s")


def test_a_server_of_ones_own_comes_back_where_it_was(cluster: Cluster, bouncer: Bouncer) -> None:
    """Stopped in any way and started again it has the same port and what was committed; the pooler finds it again."""
    with cluster.connect() as connection:
        connection.execute("CREATE TABLE t (x int)")
    for how in (cluster.stop, lambda: cluster.stop("immediate"), cluster.kill):
        with cluster.connect() as connection:
            connection.execute("INSERT INTO t VALUES (1)")
            how()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        cluster.start()
    assert counted(cluster.url()) == 3
    assert programs.until(lambda: counted(bouncer.url()) == 3, "the pooler finds the server again")
    bouncer.restart()
    assert counted(bouncer.url()) == 3


def test_databases_of_a_folder_are_new_and_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each folder has its database with our tables in it; after the test nothing of it is left for the next."""
    monkeypatch.setenv(databases.KIND, "postgres")
    for lap in range(3):
        for name in ("a", "b"):
            folder = tmp_path / name
            assert databases.rows(folder, "SELECT id FROM client") == []
            databases.execute(folder, "INSERT INTO client (id, status, created_us) VALUES (?, ?, ?)", name, "active", lap)
            databases.execute(folder, "UPDATE store SET epoch = ?", 1 + lap)
        assert databases.rows(tmp_path / "a", "SELECT id FROM client WHERE id LIKE '%a%'") == [{"id": "a"}]
        databases.drop_all()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_servers_of_a_session_end_with_it(how: signal.Signals) -> None:
    """However the session's process ends, its servers are gone afterwards, and so are their folders."""
    env = {name: value for name, value in os.environ.items() if name != shared.SESSION}
    script = (
        "import os, signal, sys, time\n"
        "from tests.servers import shared\n"
        "folder = shared.open_session()\n"
        "here = shared.servers()\n"
        "print(folder, here.port, here.pooled_port, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=shared.ROOT, env=env, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        folder, *ports = session.stdout.readline().split()
        pid = int(Path(folder, "keeper").read_text())
        for port in ports:
            psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres").close()
        session.send_signal(how)
    programs.until(lambda: not Path(folder).exists(), "the folder is gone", 30)
    for port in ports:
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres", connect_timeout=2)
    programs.until(
        lambda: not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/cmdline").read_bytes() == b"", "the keeper is gone"
    )


def test_what_cannot_be_installed_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without root nothing is installed: the command that would is said, and the tests go on without."""
    monkeypatch.setattr(programs, "find", lambda program: None if program == "pgbouncer" else Path("/bin/true"))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert install.install() == 0
    assert "sudo apt-get install pgbouncer" in capsys.readouterr().err
