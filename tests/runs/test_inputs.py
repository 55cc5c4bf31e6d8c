"""A run's id and inputs: the same call finds the same run, another one is refused, and nothing is lost on the way in."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from stepseven import Layer, NotRecordable, Run, RunConflict, Secret, SecretFound, step, testing, workflow
from tests.runs.tools import ROOT, module, rows, until_crash, url


@dataclass(frozen=True)
class Period:
    start: date
    share: Decimal


class Order(BaseModel):
    number: str
    periods: list[Period]


def source(name: str, parameter: str, value: str) -> str:
    """A module with a workflow that asks and returns."""
    return (
        f"from stepseven import Run, workflow\n@workflow(name={name!r})\nasync def flow(run: Run, {parameter}) -> object:\n"
        f"    await run.ask('ok?')\n    return {value}\n"
    )


@workflow(name="inputs.plain")
async def plain(run: Run, quarter: str, year: int = 2026) -> str:
    """Two inputs, one with a default."""
    return f"{quarter} {year}"


async def test_inputs_are_stored_as_given(tmp_path: Path) -> None:
    """What was passed is stored, not the defaults; ``run.inputs`` shows it; both ways of calling are one."""

    @workflow(name="inputs.given")
    async def flow(run: Run, quarter: str, year: int = 2026) -> dict[str, Any]:
        return dict(run.inputs)

    async with Layer(url(tmp_path)) as layer:
        assert (await layer.run(flow("Q3"), client="acme", run_id="r")).result() == {"quarter": "Q3"}
        assert (await layer.run(flow, quarter="Q3", client="acme", run_id="r")).result() == {"quarter": "Q3"}
    assert rows(tmp_path, "SELECT inputs FROM run") == [{"inputs": '{"quarter":"Q3"}'}]


async def test_typed_inputs_arrive_typed(tmp_path: Path) -> None:
    """Dataclasses, models, dates and decimals arrive as such, in the first execution and in a resumed one."""
    got: list[Any] = []

    @workflow(name="inputs.typed")
    async def flow(run: Run, order: Order, period: Period, day: date, tags: frozenset[str] = frozenset()) -> None:
        got.append((order, period, day, tags))
        await run.ask("ok?")

    period = Period(date(2026, 1, 1), Decimal("0.10"))
    given = (Order(number="1", periods=[period]), period, date(2026, 3, 14), frozenset({"a"}))
    async with Layer(url(tmp_path)) as layer:
        await layer.run(flow(*given), client="acme", run_id="r")
        await layer.resume("r")
    assert got == [given, given]


async def test_a_date_may_be_given_as_text(tmp_path: Path) -> None:
    """What JSON has for a type is taken for it: command line and HTTP have nothing else."""

    @workflow(name="inputs.text")
    async def flow(run: Run, day: date, period: Period) -> str:
        return f"{day:%d.%m.%Y} {period.share * 2}"

    async with Layer(url(tmp_path)) as layer:
        outcome = await layer.run(flow, day="2026-03-14", period={"start": "2026-01-01", "share": "0.10"}, client="acme")
        assert outcome.result() == "14.03.2026 0.20"


async def test_inputs_that_do_not_fit_are_refused_at_the_call(tmp_path: Path) -> None:
    """What is missing, unknown, of the wrong type, not storable or a credential is refused by name, before anything is written.

    A ``Secret`` is stored by its name.
    """

    @workflow(name="inputs.refused")
    async def flow(run: Run, n: int, more: Any = None) -> int:
        return n

    async with Layer(url(tmp_path)) as layer:
        with pytest.raises(TypeError, match="missing a required argument: 'n'"):
            flow()  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="unexpected keyword argument 'm'"):
            flow(1, m=2)  # type: ignore[call-arg]
        for bad, path in (
            (flow("three"), "inputs.n"),
            (flow(1, [object()]), "inputs.more[0]"),
            (flow(1, {1: 2}), "inputs.more[1]"),
        ):  # type: ignore[arg-type]
            with pytest.raises(NotRecordable) as refused:
                await layer.run(bad, client="acme", run_id="r")
            assert refused.value.path == path
        with pytest.raises(SecretFound, match="inputs"):
            await layer.run(flow(1, "sk-ant-" + "a1b2c3d4e5" * 4), client="acme", run_id="r")
        for bad_id in ("", "a/b", "a\nb", "x" * 201, 7):
            with pytest.raises(ValueError, match="printable"):
                await layer.run(flow(1), client="acme", run_id=bad_id)  # type: ignore[arg-type]
        assert rows(tmp_path, "SELECT id FROM run") == []
        assert (await layer.run(flow(1, Secret("TOKEN")), client="acme", run_id="r")).result() == 1
    assert rows(tmp_path, "SELECT inputs FROM run")[0]["inputs"] == '{"more":{"$secret":"TOKEN"},"n":1}'


async def test_an_input_whose_type_changed_is_a_question(tmp_path: Path) -> None:
    """When the workflow's own parameter changed so that a stored input no longer fits, the run asks and names the input."""
    v1 = source("inputs.changed", "n: str", "n")
    async with Layer(url(tmp_path)) as layer:
        await layer.run(module("inputs_v1", v1).flow("three"), client="acme", run_id="r")
        module("inputs_v2", v1.replace("n: str", "n: int"))
        outcome = await layer.resume("r")
        assert any("inputs.n" in q.text for q in outcome.questions)
        await layer.run(module("inputs_v3", v1).flow("three"), client="acme", run_id="r")
        assert [q.text for q in (await layer.questions())] == ["ok?"]


# -- the same id ----------------------------------------------------------------------------------------------------------


async def test_a_known_id_with_other_values_is_a_conflict(tmp_path: Path) -> None:
    """Another client, workflow or inputs under a known id: ``RunConflict``, which says what differs; the first is untouched."""

    @workflow(name="inputs.other")
    async def other(run: Run, quarter: str) -> str:
        return quarter

    async with Layer(url(tmp_path)) as layer:
        await layer.run(plain("Q3"), client="acme", run_id="r")
        before = rows(tmp_path, "SELECT * FROM run")
        for call, client, differs in (
            (plain("Q4"), "acme", "other inputs"),
            (plain("Q3", 2027), "acme", "other inputs"), (plain("Q3"), "globex", "another client"),
            (other("Q3"), "acme", "another workflow"),
        ):  # fmt: skip
            with pytest.raises(RunConflict, match=differs):
                await layer.run(call, client=client, run_id="r")
            with pytest.raises(RunConflict, match=differs):
                await layer.start(call, client=client, run_id="r")
        assert rows(tmp_path, "SELECT * FROM run") == before
        assert rows(tmp_path, "SELECT id FROM client") == [{"id": "acme"}]


async def test_a_new_parameter_with_a_default_is_no_difference(tmp_path: Path) -> None:
    """Inputs are compared as given: code that grew a parameter with a default still finds its run."""
    v1 = source("inputs.grown", "a: int", "a")
    async with Layer(url(tmp_path)) as layer:
        await layer.run(module("grown_v1", v1).flow(1), client="acme", run_id="r")
        grown = module("grown_v2", v1.replace("a: int)", "a: int, b: int = 2)").replace("return a", "return a + b"))
        outcome = await layer.run(grown.flow(a=1), client="acme", run_id="r")
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        assert (await layer.run(grown.flow(1), client="acme", run_id="r")).result() == 3


async def test_an_ended_run_gives_its_outcome(tmp_path: Path) -> None:
    """``run`` and ``resume`` of an ended run give what became of it; the body is not run again."""
    begun = []

    @workflow(name="inputs.ended")
    async def flow(run: Run) -> list[str]:
        begun.append(1)
        return ["value"]

    async with Layer(url(tmp_path)) as layer:
        outcomes = [await layer.run(flow(), client="acme", run_id="r") for _ in range(2)] + [await layer.resume("r")]
    assert [o.result() for o in outcomes] == [["value"]] * 3
    assert begun == [1]


async def test_five_concurrent_calls_with_one_id_are_one_run(tmp_path: Path) -> None:
    """Five calls of ``run`` with one id at once: one body runs, all get its outcome.

    A caller that goes away takes nothing with it.
    """
    begun, release = [], asyncio.Event()

    @step(name="inputs.slow")
    async def slow() -> str:
        begun.append(1)
        await release.wait()
        return "done"

    @workflow(name="inputs.five")
    async def flow(run: Run) -> str:
        return await slow()

    async with Layer(url(tmp_path)) as layer:
        calls = [asyncio.create_task(layer.run(flow(), client="acme", run_id="r")) for _ in range(5)]
        async with asyncio.timeout(20):
            while not begun:
                await asyncio.sleep(0.01)
            calls[0].cancel()
            await asyncio.sleep(0)
            release.set()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert [o.result() for o in outcomes[1:] if not isinstance(o, BaseException)] == ["done"] * 4
    assert begun == [1]


def test_a_run_another_process_executes_is_waited_for_as_told(tmp_path: Path) -> None:
    """A run that is live elsewhere is not taken: without ``wait=`` its state is returned, with it the outcome is waited for."""
    source = """
        import asyncio, sys
        from pathlib import Path
        from stepseven import Layer, Run, step, workflow

        @step
        async def slow() -> str:
            print("begun", flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
            return "from the other process"

        @workflow(name="inputs.elsewhere")
        async def flow(run: Run) -> str:
            return await slow()

        async def main() -> None:
            async with Layer(sys.argv[1]) as layer:
                await layer.run(flow(), client="acme", run_id="r")

        asyncio.run(main())
        """
    ran = []

    @workflow(name="inputs.elsewhere")
    async def flow(run: Run) -> str:
        ran.append(1)
        return "from here"

    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), url(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert other.stdout.readline().strip() == "begun"

        async def main() -> None:
            async with Layer(url(tmp_path)) as layer:
                assert (await layer.run(flow(), client="acme", run_id="r")).status == "running"
                waiting = asyncio.create_task(layer.run(flow(), client="acme", run_id="r", wait=30))
                await asyncio.sleep(0)
                other.stdin.write("\n")  # type: ignore[union-attr]
                other.stdin.flush()  # type: ignore[union-attr]
                assert (await waiting).result() == "from the other process"

        asyncio.run(main())
        assert other.wait(20) == 0
    finally:
        if other.poll() is None:
            other.send_signal(signal.SIGKILL)
            other.wait()
        other.stdin.close()
        other.stdout.close()
    assert ran == []


def test_a_run_that_was_accepted_is_never_forgotten(tmp_path: Path) -> None:
    """``start`` is durable when it returns: a process that dies right after leaves a queued run with 0 steps."""

    async def use(layer: Layer) -> None:
        await layer.start(plain("Q3"), client="acme", run_id="r", goal="the goal")

    until_crash(tmp_path, 99, use)
    assert rows(tmp_path, "SELECT id, status, goal FROM run") == [{"id": "r", "status": "queued", "goal": "the goal"}]


# -- declaration ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_a_workflow_is_refused_when_it_is_declared() -> None:
    """A workflow is ``async def`` with the run first; its name can be stored; its inputs have names."""
    with pytest.raises(TypeError, match="must be `async def`"):

        @workflow  # type: ignore[arg-type]
        def sync(run: Run) -> None: ...

    with pytest.raises(TypeError, match="needs the run as its first parameter"):

        @workflow  # type: ignore[arg-type]
        async def none() -> None: ...

    with pytest.raises(TypeError, match="inputs are stored by name"):

        @workflow
        async def spread(run: Run, *parts: str) -> None: ...

    for name in ("has space", "", "ä/b", "1st"):
        with pytest.raises(ValueError, match="workflow name"):

            @workflow(name=name)
            async def named(run: Run) -> None: ...


async def test_layer_run_wants_a_workflow(tmp_path: Path) -> None:
    """Something else than a workflow, or inputs in the wrong place, is a ``TypeError`` that shows the right call."""

    async def function(run: Run) -> None: ...

    async with Layer(url(tmp_path)) as layer:
        with pytest.raises(TypeError, match="needs a workflow"):
            await layer.run(function, client="acme")  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="inputs belong into the call"):
            await layer.run(plain("Q3"), client="acme", year=2)  # type: ignore[call-overload]


@pytest.mark.anyio
@pytest.mark.parametrize("limit", [0, -1, 1.5, True, 1 << 70, "5"])
async def test_a_page_has_a_size(limit: Any) -> None:
    """How many runs or questions at once is a whole number of some size, or it is said what to say."""
    async with testing.layer() as layer:
        for look in (layer.runs, layer.questions):
            with pytest.raises(ValueError, match="say how many"):
                await look(limit=limit)


@pytest.mark.anyio
@pytest.mark.parametrize("cursor", ["x", "9" * 30, "\N{ARABIC-INDIC DIGIT THREE}"])
async def test_a_cursor_is_the_one_of_the_page_before(cursor: str) -> None:
    """What was made up is no place to go on from."""
    async with testing.layer() as layer:
        for look in (layer.runs, layer.questions):
            with pytest.raises(ValueError, match="page before"):
                await look(cursor=cursor)
