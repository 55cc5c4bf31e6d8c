"""What every test shares: async tests run on asyncio, and a test whose need is absent says so instead of failing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# A deadline per example measures the neighbours on a busy machine, not the code; pytest's own timeout stays.
settings.register_profile("stepseven", deadline=None, print_blob=True)
settings.load_profile("stepseven")


def _has_postgres() -> bool:
    return shutil.which("initdb") is not None or any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


def _has_browser() -> bool:
    return any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))


def _has_shared() -> bool:
    return (ROOT.parent / "shared").is_dir()


#: marker: (is what it needs here?, the reason shown when it is not)
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "postgres": (_has_postgres, "no PostgreSQL server program here (Debian: apt-get install postgresql)"),
    "browser": (_has_browser, "no Chromium here (Debian: apt-get install chromium)"),
    "shared": (_has_shared, "no folder `shared` beside the checkout"),
}


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asyncio alone: the runtime is written for its tasks and loops."""
    return "asyncio"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what cannot run on this machine."""
    for marker, (here, reason) in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not here():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
