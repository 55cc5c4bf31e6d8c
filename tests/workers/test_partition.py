"""A worker is cut off from its database, silently: it passes no gate after its lease, and another one takes its runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.servers.bouncer import Bouncer
from tests.servers.postgres import Cluster
from tests.servers.programs import until
from tests.servers.proxy import Proxy
from tests.workers.cast import Player, Shelf, players, worker
from tests.workers.subject import HOW
from tests.workers.world import World

pytestmark = pytest.mark.timeout(400)


@pytest.mark.postgres
def test_cut_off_from_its_database_it_passes_no_gate(postgres_url: str, tmp_path: Path):
    """Directly connected."""
    port = urlsplit(postgres_url).port
    assert port is not None
    with World() as world, Proxy(port) as line, players(world, tmp_path) as play:
        _cut_off(world, line, play, Shelf(postgres_url, postgres_url), postgres_url.replace(f":{port}/", f":{line.port}/"))


@pytest.mark.pgbouncer
def test_cut_off_from_its_pooler_it_passes_no_gate(cluster: Cluster, bouncer: Bouncer, tmp_path: Path):
    """Through a pooler: the line to that is what breaks, so that the server is not told either."""
    store = Shelf(bouncer.url(), cluster.url())
    store.use(lambda layer: layer.runs())
    with World() as world, Proxy(bouncer.port) as line, players(world, tmp_path) as play:
        _cut_off(world, line, play, store, store.url.replace(f":{bouncer.port}/", f":{line.port}/"))


def _cut_off(world: World, line: Proxy, play: Callable[..., Player], store: Shelf, through: str) -> None:
    world.hold("/ran/before.A.cut")
    cut = worker(play, "cut", Shelf(through, store.direct), 1)
    store.start(HOW["blind"](ref="A"), "A")
    until(lambda: world.arrived("/ran/before.A.cut"), "it does not get to its gate")
    line.freeze()
    free = worker(play, "free", store, 8)
    world.seen("body.A.free", 60)
    question = store.asked("A", "unknown_outcome")
    assert cut.process.poll() is None
    world.let_go()  # its step goes on, into its gate; it runs all the time, and nobody has told it anything
    until(lambda: world.times("before.A.cut"), "its step does not go on")
    store.use(lambda layer: layer.answer(question.id, "not_happened", by="ann"))
    store.ended("A")
    world.quiet()
    assert world.doers("A") == ["free"]
    assert world.times("between.A.cut") == 0, "its gate was shut"
    line.heal()
    cut.says("A goes on elsewhere", 60)
    assert cut.stop() == 0, cut.err()
    assert free.stop() == 0, free.err()
    assert world.doers("A") == ["free"]
