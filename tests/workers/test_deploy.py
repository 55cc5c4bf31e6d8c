"""A changed workflow is deployed while its runs live: the newer source takes over, without a question and without a fight."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from stepseven import Layer, Run, workflow
from stepseven.decide import sources
from stepseven.decide.sources import Source
from tests.servers.databases import rows, url
from tests.workers.crew import Crew, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(110)]

CODE = """
from stepseven import Run, step, workflow

@step
async def prepare(n: int) -> int:
    return n

@workflow
async def deployed(run: Run, n: int) -> str:
    await prepare(n)
    await run.ask("Go on?", options=["yes", "no"])
    {more}return "{version}"
"""


@workflow("deployed")
async def stand_in(run: Run, n: int) -> str:
    """Has the same name and inputs, for starting runs that others execute."""
    raise AssertionError(n)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Worker processes; in the folders `old` and `new` are two versions of one module."""
    for version, more in (("old", ""), ("new", "await prepare(-1)\n    ")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "deployed_flows.py").write_text(CODE.format(version=version, more=more))
    with Crew(url(tmp_path), tmp_path) as made:
        yield made


def hire(crew: Crew, version: str) -> Popen[str]:
    """A worker with that version of the code."""
    return crew.hire("deployed_flows", cwd=crew.path / version)


async def answer_all(layer: Layer) -> None:
    """Yes, to all that is asked."""
    for question in await layer.questions(limit=1000):
        await layer.answer(question.id, "yes", by="ann")


def count(path: Path, status: str) -> int:
    """How many runs stand so."""
    return int(rows(path, "SELECT count(*) AS n FROM run WHERE status = ?", status)[0]["n"])


@pytest.mark.slow
async def test_two_hundred_live_runs_move_to_the_newer_code_once(crew: Crew, tmp_path: Path) -> None:
    """Old and new workers side by side: every run is taken once more, by the new code, and nobody is asked anything for it."""
    hire(crew, "old")
    async with Layer(crew.url) as layer:
        for n in range(200):
            await layer.start(stand_in(n=n), client=f"c{n % 9}", run_id=f"r{n}")
        await until(lambda: count(tmp_path, "waiting") == 200, within=60)
        hire(crew, "new")
        await answer_all(layer)
        await until(lambda: count(tmp_path, "done") == 200, within=60)
        assert {r["value"] for r in rows(tmp_path, "SELECT value FROM run")} == {'"new"'}
        assert {r["executions"] for r in rows(tmp_path, "SELECT executions FROM run")} == {2}
        assert rows(tmp_path, "SELECT count(*) AS n FROM question") == [{"n": 200}]


@pytest.mark.slow
async def test_old_code_works_alone_and_does_not_win_by_starting_again(crew: Crew, tmp_path: Path) -> None:
    """When the new worker is gone the old one works; an old one that crashed and starts again leaves the runs to the new one."""
    async with Layer(crew.url) as layer:
        old, new = hire(crew, "old"), hire(crew, "new")
        old.kill()
        old.wait()
        again = hire(crew, "old")
        await layer.start(stand_in(n=1), client="acme", run_id="a")
        await until(lambda: count(tmp_path, "waiting") == 1)
        await answer_all(layer)
        await until(lambda: count(tmp_path, "done") == 1)
        assert (await layer.resume("a")).value == "new"
        new.terminate()
        assert await asyncio.to_thread(new.wait, 15) == 0
        await layer.start(stand_in(n=2), client="acme", run_id="b")
        await until(lambda: count(tmp_path, "waiting") == 1)
        await answer_all(layer)
        await until(lambda: count(tmp_path, "done") == 2)
        assert (await layer.resume("b")).value == "old"
        assert again.poll() is None


def registered(**digests: tuple[str, int]) -> str:
    """What a worker with these sources has in its row."""
    return sources.text({name: Source(*told) for name, told in digests.items()})


def test_a_source_that_is_known_keeps_its_time() -> None:
    """The age of a source is that of the first worker with it; one nobody had before is from now."""
    rows_ = [registered(w=("a", 5)), registered(w=("a", 7), v=("x", 1)), None, "not json", '{"w": 1}']
    found = sources.placed({"w": "a", "v": "y"}, rows_, 9)
    assert (found["w"].since_us, found["v"].since_us) == (5, 9)


def test_what_was_seen_outlives_its_worker() -> None:
    """A newer worker remembers the older source: whoever has it later is still the older one."""
    newer = sources.placed({"w": "b"}, [registered(w=("a", 5))], 9)
    again = sources.placed({"w": "a"}, [sources.text(newer)], 20)
    assert again["w"].since_us == 5
    assert sources.outdated(again, [sources.text(newer)]) == {"w"}
    assert sources.outdated(newer, [sources.text(again)]) == frozenset()


def test_one_of_two_gives_way_and_never_both() -> None:
    """Also when both were first seen in the same microsecond; the same source never gives way, nor one that stands alone."""
    a, b = {"w": Source("a", 5)}, {"w": Source("b", 5)}
    assert [sources.outdated(a, [sources.text(b)]), sources.outdated(b, [sources.text(a)])].count(frozenset()) == 1
    assert sources.outdated(a, [sources.text(a), None, "", "[]"]) == frozenset()
    assert sources.outdated(a, [sources.text({"v": Source("z", 99)})]) == frozenset()


def test_only_so_much_is_remembered() -> None:
    """The newest of the others; the row does not grow with every deploy."""
    known = sources.text({"w": Source("now", 1000, {f"d{n}": n for n in range(50)})})
    found = sources.placed({"w": "mine"}, [known], 2000)["w"]
    assert len(found.seen) == sources.REMEMBERED
    assert max(found.seen.values()) == 1000
    assert min(found.seen.values()) > 40
