"""Two modules with a workflow of one name: each run goes on with its own code, or with none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from stepseven.errors import AmbiguousWorkflow, NothingToRun
from stepseven.model import RunStatus
from tests.runs.worldly import layers

SOURCE = """
from stepseven import Run, workflow

@workflow
async def namesake(run: Run) -> str:
    await run.ask("Go on?")
    return "{said}"
"""

Making = Callable[..., ModuleType]


@pytest.fixture
def making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Making]:
    """Writes and loads modules; loading one again replaces it."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[ModuleType] = []

    def make(name: str, said: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(SOURCE.format(said=said))
        sys.modules.pop(name, None)
        module = ModuleType(name)
        module.__file__ = str(tmp_path / f"{name}.py")
        sys.modules[name] = module
        exec(compile(SOURCE.format(said=said), module.__file__, "exec"), vars(module))
        made.append(module)
        return module

    yield make
    for module in made:
        sys.modules.pop(module.__name__, None)


async def test_each_run_goes_on_with_the_code_it_was_started_with(making: Making) -> None:
    """Two modules, one name: what was loaded last does not take the other one's runs."""
    first, second = making("first_of_two", "first"), making("second_of_two", "second")
    async with layers() as layer:
        for module, run_id in ((first, "one"), (second, "two")):
            outcome = await layer.run(module.namesake(), client="acme", run_id=run_id)
            await layer.answer(outcome.questions[0].id, "yes", by="ann")
        assert [(await layer.resume(run_id)).result() for run_id in ("one", "two")] == ["first", "second"]


async def test_code_that_fits_none_of_two_is_not_guessed(making: Making) -> None:
    """The run's own module was changed, and another has the name: it stays where it is, and both are named."""
    first = making("first_of_two", "first")
    async with layers() as layer:
        outcome = await layer.run(first.namesake(), client="acme", run_id="one")
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        changed, other = making("first_of_two", "mended"), making("second_of_two", "second")
        with pytest.raises(AmbiguousWorkflow, match="first_of_two and in second_of_two"):
            await layer.resume("one")
        assert (await layer.runs())[0].status is RunStatus.QUEUED
        assert (await layer.run(changed.namesake(), client="acme", run_id="one")).result() == "mended"
        assert other.namesake.name == changed.namesake.name


async def test_a_worker_of_both_is_refused_and_of_one_takes_its_own(making: Making) -> None:
    """A worker knows runs by the workflow's name: it cannot serve two, and says where they are."""
    first, second = making("first_of_two", "first"), making("second_of_two", "second")
    async with layers() as layer:
        with pytest.raises(NothingToRun, match="in first_of_two and in second_of_two"):
            layer.worker(first, second)
        assert layer.worker(first).workflows == layer.worker(second).workflows
