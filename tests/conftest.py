"""What every test shares: async tests run on asyncio, and a test whose need is absent says so instead of failing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from stepseven import testing
from tests.servers import databases, programs, shared, twice
from tests.servers.bouncer import Bouncer
from tests.servers.postgres import Cluster

ROOT = Path(__file__).resolve().parent.parent

# A deadline per example measures the neighbours on a busy machine, not the code; pytest's own timeout stays.
settings.register_profile("stepseven", deadline=None, print_blob=True)
settings.load_profile("stepseven")


def _has_postgres() -> bool:
    return programs.find("postgres") is not None


def _has_pgbouncer() -> bool:
    return _has_postgres() and programs.find("pgbouncer") is not None


def _has_faketime() -> bool:
    return programs.find("faketime") is not None


def _has_browser() -> bool:
    return any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))


def _has_shared() -> bool:
    return (ROOT.parent / "shared").is_dir()


_SESSION = pytest.StashKey[Path | None]()

#: marker: (is what it needs here?, the reason shown when it is not)
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "postgres": (_has_postgres, "no PostgreSQL server program here (Debian: apt-get install postgresql)"),
    "pgbouncer": (_has_pgbouncer, "no PostgreSQL with PgBouncer here (Debian: apt-get install postgresql pgbouncer)"),
    "faketime": (_has_faketime, "no faketime here (Debian: apt-get install faketime)"),
    "browser": (_has_browser, "no Chromium here (Debian: apt-get install chromium)"),
    "shared": (_has_shared, "no folder `shared` beside the checkout"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--database``: where the stores are that tests ask ``tests.servers.databases`` for."""
    parser.addoption("--twice", action="store_true", help="every unit of work is executed, undone and executed again")
    parser.addoption("--database", choices=databases.KINDS, default=None, help="the stores of the tests (default: sqlite)")


def pytest_configure(config: pytest.Config) -> None:
    """The test session's own process is what its servers live as long as."""
    if chosen := config.getoption("--database"):
        os.environ[databases.KIND] = chosen  # child processes, too
    if config.getoption("--twice"):
        twice.install()
    config.stash[_SESSION] = shared.open_session()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers, if any test wanted them."""
    if folder := config.stash.get(_SESSION, None):
        shared.close_session(folder)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asyncio alone: the runtime is written for its tasks and loops."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A layer without a URL is on the database this session is about; the databases of a test go with it."""
    if databases.kind() != "sqlite":
        real = testing.layer
        monkeypatch.setattr(
            testing, "layer", lambda url=None, **options: real(databases.memory() if url is None else url, **options)
        )
    yield
    databases.drop_all()


@pytest.fixture
def postgres_url() -> str:
    """A PostgreSQL database with our schema in it, whatever the session is about. Mark the test ``postgres``."""
    return databases.new_database("test", pooled=False)


@pytest.fixture
def pooled_url() -> str:
    """The same behind PgBouncer: transaction mode, two connections. Mark the test ``pgbouncer``."""
    return databases.new_database("test", pooled=True)


@pytest.fixture
def empty_postgres_url() -> str:
    """A PostgreSQL database with nothing in it."""
    return databases.new_database("empty", schema=False)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A server of the test's own, to be stopped, killed and restarted."""
    with Cluster() as own:
        yield own


@pytest.fixture
def bouncer(cluster: Cluster) -> Iterator[Bouncer]:
    """A PgBouncer of the test's own, before its own server."""
    with Bouncer(cluster.port) as own:
        yield own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what cannot run on this machine, or is not about this session's database."""
    elsewhere = databases.kind() != "sqlite"
    for item in items:
        if elsewhere and not _has_pgbouncer():
            item.add_marker(pytest.mark.skip(reason=NEEDS["pgbouncer"][1]))
        elif elsewhere and (about := item.get_closest_marker("sqlite")):
            item.add_marker(pytest.mark.skip(reason=f"about SQLite: {about.args[0]}"))
    for marker, (here, reason) in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not here():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
