"""One fork server and one outside for all crash tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.killer import Forks
from tests.crash.outside import Outside
from tests.crash.story import Stage


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Where scenarios are played."""
    folder: Path = tmp_path_factory.mktemp("crash")
    with Outside() as outside, Forks(outside.url) as forks:
        yield Stage(forks, outside, folder)
