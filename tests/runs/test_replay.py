"""Code changes between two executions: what stays is reused, what changed runs, and it is said why."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Outcome, Run, step, workflow
from stepseven.runtime.declared import source_digest
from tests.runs.tools import child, module, records, until_crash, url

HEAD = """
import asyncio
from stepseven import Cost, Layer, Run, attempt, step, workflow
ran = []
"""
V1 = """
@step
async def a(x: int) -> str:
    ran.append(f"a{x}")
    return f"a{x}"

@step
async def b(x: int) -> str:
    ran.append(f"b{x}")
    return f"b{x}"

@workflow(name="replay.flow")
async def flow(run: Run) -> list:
    found = [await a(1), await b(1)]
    found.append(await run.ask("ok?"))
    return found
"""


def version(name: str, source: str) -> Any:
    """A module with these steps."""
    return module(f"replay_{name}", HEAD + textwrap.dedent(source))


async def first(path: Path, source: str = V1) -> Any:
    """Run the first version until it asks; the module."""
    v1 = version("v1", source)
    async with Layer(url(path)) as layer:
        outcome = await layer.run(v1.flow(), client="acme", run_id="r")
        assert outcome.status == "waiting", outcome
        for question in outcome.questions:
            await layer.answer(question.id, "yes", by="ann")
    return v1


async def then(path: Path, source: str) -> tuple[Any, Outcome[Any]]:
    """Go on with another version, as after a deployment."""
    v2 = version("v2", source)
    async with Layer(url(path)) as layer:
        return v2, await layer.resume("r")


# -- edits that cost nothing ----------------------------------------------------------------------------------------------

EDITS = {
    "a log line": V1.replace("    found =", "    print('hello')\n    found ="),
    "two steps swapped": V1.replace("[await a(1), await b(1)]", "[*reversed([await b(1), await a(1)])]"),
    "wrapped in gather": V1.replace("[await a(1), await b(1)]", "list(await asyncio.gather(a(1), b(1)))"),
    "wrapped in tasks": V1.replace(
        "[await a(1), await b(1)]", "[await t for t in [asyncio.ensure_future(a(1)), asyncio.create_task(b(1))]]"
    ),
    "moved into a helper": V1.replace("[await a(1), await b(1)]", "await helper()")
    + "\nasync def helper():\n    return [await a(1), await b(1)]\n",
    "renamed": V1.replace("@step\nasync def a(", '@step(renamed_from="a")\nasync def alpha(').replace(
        "await a(1)", "await alpha(1)"
    ),
    "options changed": V1.replace("@step\nasync def a", "@step(attempts=5, timeout=9, cost=Cost(usd=1))\nasync def a"),
    "a step's body mended": V1.replace('    return f"a{x}"', '    return f"a{x}".strip()'),
    "a parameter renamed by position": V1.replace("found.append(await", "found.append(\n        await"),
}


@pytest.mark.parametrize("edit", EDITS)
async def test_harmless_edits_cost_nothing(tmp_path: Path, edit: str) -> None:
    """A log line, a swap, a ``gather``, a helper, a rename with ``renamed_from=``, other options: no step runs again."""
    await first(tmp_path)
    v2, outcome = await then(tmp_path, EDITS[edit])
    assert outcome.result() == ["a1", "b1", "yes"]
    assert v2.ran == []


async def test_a_new_step_between_old_ones_runs_alone(tmp_path: Path) -> None:
    """A step that is inserted runs; those before and after it do not: nothing is matched by position."""
    await first(tmp_path)
    v2, outcome = await then(
        tmp_path,
        V1.replace("@workflow", "@step\nasync def c(x: int) -> str:\n    ran.append('c')\n    return 'c'\n\n@workflow").replace(
            "[await a(1), await b(1)]", "[await c(1), await a(1), await c(2), await b(1)]"
        ),
    )
    assert outcome.result() == ["c", "a1", "c", "b1", "yes"]
    assert v2.ran == ["c", "c"]


async def test_a_step_that_became_an_ask_never_gets_its_record(tmp_path: Path) -> None:
    """What stood at a place before is nobody's: a step turned into a question asks, a question turned into a step runs."""
    await first(tmp_path)
    v2, outcome = await then(
        tmp_path, V1.replace("await a(1), await b(1)", "await run.ask('a?'), await b(1)").replace('run.ask("ok?")', "a(1)")
    )
    assert [q.text for q in outcome.questions] == ["a?"]
    assert v2.ran == []


async def test_parallel_steps_recorded_in_any_order_are_found(tmp_path: Path) -> None:
    """Three steps of one ``gather`` are recorded as they end; a resume under another order finds all three."""
    source = V1.replace('ran.append(f"a{x}")', 'await asyncio.sleep(0.02 * x)\n    ran.append(f"a{x}")').replace(
        "[await a(1), await b(1)]", "list(await asyncio.gather(a(2), a(0), a(1)))"
    )
    await first(tmp_path, source)
    assert [json.loads(r["result"]) for r in records(tmp_path, "r")] == ["a0", "a1", "a2"]
    v2, outcome = await then(tmp_path, source.replace("0.02 * x", "0.02 - 0.01 * x"))
    assert (outcome.result(), v2.ran) == (["a2", "a0", "a1", "yes"], [])


async def test_a_renamed_step_is_found_in_a_map_too(tmp_path: Path) -> None:
    """``renamed_from=`` also holds for the map that was named after the step, and for its items."""
    source = V1.replace("[await a(1), await b(1)]", "await run.map(a, [1, 2, 2])")
    await first(tmp_path, source)
    v2, outcome = await then(
        tmp_path,
        source.replace("@step\nasync def a(", '@step(renamed_from=["z", "a"])\nasync def alpha(').replace("map(a,", "map(alpha,"),
    )
    assert (outcome.result(), v2.ran) == (["a1", "a2", "a2", "yes"], [])


async def test_a_map_s_items_may_be_reordered_and_added_to(tmp_path: Path) -> None:
    """A map's items are known by what they are: the old ones are not run again, whatever stands around them."""
    source = V1.replace("[await a(1), await b(1)]", "await run.map(a, [1, 2, 3])")
    await first(tmp_path, source)
    v2, outcome = await then(tmp_path, source.replace("[1, 2, 3]", "[4, 3, 1, 2, 1]"))
    assert outcome.result()[:5] == ["a4", "a3", "a1", "a2", "a1"]
    assert sorted(v2.ran) == ["a1", "a4"]  # the new one, and the second of two equal ones


# -- changed arguments ----------------------------------------------------------------------------------------------------


async def test_a_changed_argument_runs_and_is_named(tmp_path: Path) -> None:
    """A read step whose argument changed runs again, and its record says which argument it was."""
    source = V1.replace("async def a(x: int)", "async def a(x: int, mode: str = 'full', limit: int = 5)").replace("a(1)", "a(1)")
    await first(tmp_path, source)
    v2, outcome = await then(tmp_path, source.replace("await a(1)", "await a(1, limit=6)"))
    assert outcome.result() == ["a1", "b1", "yes"]
    assert v2.ran == ["a1"]
    assert records(tmp_path, "r")[-1]["why"] == "ran again: argument limit changed"


async def test_several_changed_arguments_are_all_named(tmp_path: Path) -> None:
    """Arguments that changed, came or went are all in the sentence."""
    await first(tmp_path)
    _, _ = await then(
        tmp_path, V1.replace("async def a(x: int)", "async def a(x: int, y: int)").replace("await a(1)", "await a(2, 3)")
    )
    assert records(tmp_path, "r")[-1]["why"] == "ran again and gave another result: arguments x, y changed"


async def test_a_first_execution_never_says_again(tmp_path: Path) -> None:
    """Calls of one step with many arguments in one execution are new calls, not changed ones."""
    await first(tmp_path, V1.replace("[await a(1), await b(1)]", "[await a(i) for i in range(3)] and ['a1', 'b1']"))
    assert {r["why"] for r in records(tmp_path, "r")} == {None}


# -- pinned values --------------------------------------------------------------------------------------------------------


async def test_values_that_would_differ_are_pinned(tmp_path: Path) -> None:
    """``run.now``, ``run.uuid`` and ``run.client.get`` give in every execution what they gave in the first.

    What the run itself sets is what it gets from there on.
    """
    seen: list[tuple[Any, ...]] = []

    @step(name="replay.bump")
    async def bump() -> int:
        return 1

    @workflow(name="replay.pins")
    async def flow(run: Run) -> str:
        seen.append(
            (run.now(), run.now(), run.uuid(), run.uuid(key="k"), run.client.get("plan"), run.client.get("none", "default"))
        )
        run.client.set("plan", f"v{len(seen)}")
        seen[-1] += (run.client.get("plan"),)
        return str(await run.ask("ok?"))

    async with Layer(url(tmp_path)) as layer:
        for _ in range(2):
            await layer.run(flow(), client="acme", run_id="r")
        await layer.run(flow(), client="acme", run_id="r2")
    assert seen[0][:6] == seen[1][:6]
    assert len(set(map(str, seen[0][:4]))) == 4
    assert seen[0][4:] == (None, "default", "v1")
    assert seen[1][6] == seen[2][4] == "v2"
    assert [r["name"] for r in records(tmp_path, "r")].count("client.set") == 2  # another value each time: two facts


async def test_a_fact_is_one_for_the_whole_run(tmp_path: Path) -> None:
    """``client.get`` is pinned per run, not per branch: all items of a map see one version."""

    @workflow(name="replay.one_fact")
    async def flow(run: Run) -> list[Any]:
        async def item(i: int) -> Any:
            found = run.client.get("n")
            run.client.set("n", i)
            return found

        run.client.set("n", 0)
        return await run.map(item, [1, 2, 3], concurrency=1)

    async with Layer(url(tmp_path)) as layer:
        assert (await layer.run(flow(), client="acme", run_id="r")).result() == [0, 0, 0]


async def test_an_answer_that_became_a_fact_is_used_by_the_next_run_and_pinned(tmp_path: Path) -> None:
    """``remember=``: the next run does not ask; what it found stays its answer even if the fact changes meanwhile."""

    @workflow(name="replay.remember", on_drift="keep")
    async def flow(run: Run) -> list[str]:
        return [await run.ask("discount?", remember="discount"), await run.ask("ok?")]

    @workflow(name="replay.forget")
    async def other(run: Run) -> None:
        run.client.set("discount", "changed")

    async with Layer(url(tmp_path)) as layer:
        outcome = await layer.run(flow(), client="acme", run_id="r1")
        await layer.answer(outcome.questions[0].id, "10%", by="ann")
        await layer.resume("r1")
        outcome = await layer.run(flow(), client="acme", run_id="r2")
        assert [q.text for q in outcome.questions] == ["ok?"]
        await layer.run(other(), client="acme", run_id="r3")
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        assert (await layer.resume("r2")).result() == ["10%", "yes"]
        assert (await layer.questions(run_id="r1"))[0].text == "ok?"
        await layer.answer((await layer.questions(run_id="r1"))[0].id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["10%", "yes"]


# -- what a resume relies on ----------------------------------------------------------------------------------------------


def test_no_recorded_step_runs_again_wherever_the_process_died(tmp_path: Path) -> None:
    """Killed after every record in turn, a run of twelve steps executes each step whose record is on the disk never again."""
    ran: list[int] = []

    @step(name="replay.count")
    async def count(i: int) -> int:
        ran.append(i)
        return i

    @workflow(name="replay.twelve")
    async def flow(run: Run) -> int:
        total = 0
        for i in range(12):
            total += await count(i)
        return total

    for k in range(12):
        path = tmp_path / str(k)
        path.mkdir()
        ran.clear()
        assert until_crash(path, k, lambda layer: layer.run(flow(), client="acme", run_id="r")) is None
        assert len(records(path, "r")) == k
        outcome = until_crash(path, 99, lambda layer: layer.run(flow(), client="acme", run_id="r"))
        assert outcome is not None
        assert outcome.result() == 66
        assert sorted(set(ran)) == list(range(12))
        assert len(ran) == (13 if k else 12)  # only what the crash kept from being recorded ran twice


def test_a_killed_process_s_run_goes_on_in_another(tmp_path: Path) -> None:
    """SIGKILL in the fourth step: another process resumes at once, and runs the first three not again."""
    source = """
        import asyncio, os, signal, sys
        from stepseven import Layer, Run, step, workflow

        @step
        async def part(i: int) -> int:
            with open(sys.argv[2], "a") as log:
                log.write(f"{i}\\n")
            if i == 3 and len(sys.argv) > 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return i

        @workflow
        async def flow(run: Run) -> int:
            return sum([await part(i) for i in range(5)])

        async def main() -> None:
            async with Layer(sys.argv[1]) as layer:
                print((await layer.run(flow(), client="acme", run_id="r")).result())

        asyncio.run(main())
        """
    log = tmp_path / "log"
    killed = child(source, url(tmp_path), str(log), "die")
    assert killed.returncode == -9
    resumed = child(source, url(tmp_path), str(log))
    assert (resumed.stdout.strip(), resumed.stderr) == ("10", "")
    assert log.read_text().split() == ["0", "1", "2", "3", "3", "4"]


def test_a_digest_of_code_without_a_file_is_the_same_in_every_process() -> None:
    """Code typed at a prompt has no source to read: its digest comes from what it does, not from where it lies in memory."""
    source = """
        from stepseven.runtime.declared import source_digest
        space = {}
        exec(compile("def f(x):\\n    return sorted(x, key=lambda y: -y)", "cell", "exec"), space)
        print(source_digest(space["f"]))
        """
    assert child(source).stdout == child(source).stdout != ""
    spaces: list[dict[str, Any]] = [{}, {}]
    for space, call in zip(spaces, ("abs", "len"), strict=True):
        exec(compile(f"def f(x):\n    return [{call}(y) for y in x]", "cell", "exec"), space)
    assert source_digest(spaces[0]["f"]) != source_digest(spaces[1]["f"])


# -- renamed in the middle of trouble --------------------------------------------------------------------------------------


async def test_an_answer_given_under_an_earlier_name_is_used(tmp_path: Path) -> None:
    """A value given for a failed step that is renamed since is its result: not asked for twice, not tried anew."""
    source = """
    @step
    async def get(x: int) -> int:
        ran.append(x)
        raise ValueError("no")

    @workflow(name="replay.renamed")
    async def flow(run: Run) -> int:
        return await get(1)
    """
    v1 = version("v1", source)
    async with Layer(url(tmp_path)) as layer:
        outcome = await layer.run(v1.flow(), client="acme", run_id="r")
        await layer.answer(outcome.questions[0].id, {"choice": "value", "value": 7}, by="ann")
    renamed = source.replace("@step\n", '@step(renamed_from="get")\n').replace("get(", "fetch(")
    v2, outcome = await then(tmp_path, renamed.replace('renamed_from="get"', "renamed_from=['older', 'get']"))
    assert (outcome.status, outcome.value, v2.ran) == ("done", 7, [])
    assert [(r["name"], r["why"]) for r in records(tmp_path, "r")] == [("get", "given by ann")]


async def test_what_an_unfinished_step_called_is_found_after_its_renaming(tmp_path: Path) -> None:
    """Steps that a step called before it broke off are not run again when it has another name."""
    source = """
    @step
    async def inner(x: int) -> int:
        ran.append("inner")
        return x

    @step
    async def outer(x: int) -> int:
        await inner(x)
        return await asking(x)

    @step
    async def asking(x: int) -> int:
        raise ValueError("no")

    @workflow(name="replay.inner")
    async def flow(run: Run) -> int:
        return await outer(1)
    """
    await first_failing(tmp_path, source)
    renamed = source.replace("@step\n    async def outer", '@step(renamed_from="outer")\n    async def round_it')
    v2, outcome = await then(tmp_path, renamed.replace("await outer(1)", "await round_it(1)"))
    assert (outcome.status, outcome.value, v2.ran) == ("done", 1, [])


async def first_failing(path: Path, source: str) -> None:
    """Run a version until it asks about a failure."""
    v1 = version("v1", source)
    async with Layer(url(path)) as layer:
        outcome = await layer.run(v1.flow(), client="acme", run_id="r")
        assert [q.kind.value for q in outcome.questions] == ["failure"]
        await layer.answer(outcome.questions[0].id, {"choice": "value", "value": 1}, by="ann")
