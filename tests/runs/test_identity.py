"""Which record answers a call: never its position, always what it says.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepseven import KeyRequired, Layer, Retryable, Run, attempt, step, workflow
from tests.runs.tools import Crash, records, until_crash, url

drawn = itertools.count()


@step(name="identity.draw")
async def draw(x: int) -> str:
    """Never the same twice."""
    for _ in range(random.randint(0, 3)):
        await asyncio.sleep(0)
    return f"{x}:{next(drawn)}"


@step(name="identity.named", key="name")
async def named(name: str, size: int) -> str:
    """A read with a business key."""
    return f"{name}:{size}:{next(drawn)}"


async def run(tmp_path: Path, flow: Any, **inputs: Any) -> Any:
    """Run it to its end; its value."""
    async with Layer(url(tmp_path)) as layer:
        outcome = await layer.run(flow(**inputs), client="acme", run_id="r")
        return outcome.result()


# -- one task -------------------------------------------------------------------------------------------------------------


async def test_repeats_are_numbered(tmp_path: Path) -> None:
    """The same call made twice in one task is two records: the digest of the inputs, and ``~2``."""

    @workflow(name="identity.repeats")
    async def flow(run: Run) -> list[str]:
        return [await draw(1), await draw(1), await draw(2), await draw(1)]

    a, b, _, c = await run(tmp_path, flow)
    assert len({a, b, c}) == 3
    keys = [r["key"] for r in records(tmp_path, "r")]
    assert keys[1] == f"{keys[0]}~2"
    assert keys[3] == f"{keys[0]}~3"
    assert keys[2] not in keys[:2]


async def test_a_call_is_counted_when_it_is_made(tmp_path: Path) -> None:
    """Numbers follow the calls, not the awaits: awaited in reverse order, each still gets its own record."""

    @workflow(name="identity.at_the_call")
    async def flow(run: Run) -> list[str]:
        first, second = draw(1), draw(1)
        late = await second
        return [await first, late]

    first, second = await run(tmp_path, flow)
    by_key = {r["key"]: r["result"].strip('"') for r in records(tmp_path, "r")}
    short, long = sorted(by_key, key=len)
    assert (by_key[short], by_key[long]) == (first, second)


async def test_equal_calls_in_gather_made_by_one_task_are_different(tmp_path: Path) -> None:
    """``gather(f(1), f(1))`` makes two calls in one task: two results."""

    @workflow(name="identity.gather_calls")
    async def flow(run: Run) -> list[str]:
        return list(await asyncio.gather(draw(1), draw(1), draw(1)))

    assert len(set(await run(tmp_path, flow))) == 3


async def test_arguments_are_the_same_however_they_are_passed(tmp_path: Path) -> None:
    """Positional, by keyword, or left to its default: one call, one digest."""

    @step(name="identity.with_default")
    async def fetch(a: int, b: int = 2, *, c: str = "x") -> int:
        return next(drawn)

    @workflow(name="identity.passed")
    async def flow(run: Run) -> None:
        await asyncio.gather(fetch(1), fetch(1, 2), fetch(a=1, c="x"), fetch(b=2, a=1))

    await run(tmp_path, flow)
    assert len({r["key"].partition("~")[0] for r in records(tmp_path, "r")}) == 1


async def test_a_key_on_a_read_names_the_record(tmp_path: Path) -> None:
    """With ``key=`` a read is known by its business key; other inputs under the same key run again, as a new generation."""
    size = [1]

    @workflow(name="identity.keyed")
    async def flow(run: Run) -> str:
        value = await named("a", size[0])
        await run.ask("go on?", key=str(size[0]))
        return value

    async with Layer(url(tmp_path)) as layer:
        await layer.run(flow(), client="acme", run_id="r")
        size[0] = 2
        await layer.resume("r")
    found = records(tmp_path, "r")
    assert [(r["key"], r["generation"]) for r in found if r["name"] == "identity.named"] == [("a", 1), ("a", 2)]
    assert found[-1]["why"] == "ran again and gave another result: argument size changed"


# -- several tasks --------------------------------------------------------------------------------------------------------


async def test_tasks_making_the_same_call_share_the_record(tmp_path: Path) -> None:
    """Another task of the same branch that makes the same call gets the same record, also while it is in flight."""

    async def helper() -> str:
        return await draw(1)

    @workflow(name="identity.shared")
    async def flow(run: Run) -> list[str]:
        together = await asyncio.gather(helper(), helper(), helper())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(helper()) for _ in range(2)]
        return [*together, *(t.result() for t in tasks)]

    first, second, third, fourth, fifth = await run(tmp_path, flow)
    assert first == second == third
    assert fourth == fifth != first  # made after the first three were given back: a new call
    assert len(records(tmp_path, "r")) == 2


async def test_a_task_starts_from_its_creators_counts_and_gives_them_back(tmp_path: Path) -> None:
    """What the creator called before a task counts in it; what it called itself counts for the creator once it ended."""

    async def twice() -> tuple[str, str]:
        return await draw(1), await draw(1)

    @workflow(name="identity.counts")
    async def flow(run: Run) -> list[str]:
        a = await draw(1)
        b, c = await asyncio.create_task(twice())
        d = await draw(1)
        return [a, b, c, d]

    assert len(set(await run(tmp_path, flow))) == 4
    keys = [r["key"] for r in records(tmp_path, "r")]
    assert keys == [keys[0], f"{keys[0]}~2", f"{keys[0]}~3", f"{keys[0]}~4"]


async def test_calls_made_after_a_task_was_created_do_not_count_in_it(tmp_path: Path) -> None:
    """A task's counts are its creator's at its creation, whatever the creator calls before the task gets its turn."""

    async def helper() -> str:
        return await draw(1)

    @workflow(name="identity.born")
    async def flow(run: Run) -> list[str]:
        task = asyncio.create_task(helper())
        mine = await draw(1)
        return [await task, mine]

    theirs, mine = await run(tmp_path, flow)
    assert theirs == mine


async def test_wait_for_and_queue_workers_share_and_count(tmp_path: Path) -> None:
    """``wait_for`` (a task of its own in Python 3.11) and workers on a queue are no exception."""

    @workflow(name="identity.workers")
    async def flow(run: Run) -> dict[int, str]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        for i in range(6):
            queue.put_nowait(i)
        found: dict[int, str] = {}

        async def worker() -> None:
            while True:
                i = await queue.get()
                found[i] = await asyncio.wait_for(draw(i % 3), 30)
                queue.task_done()

        workers = [asyncio.create_task(worker()) for _ in range(3)]
        await queue.join()
        for task in workers:
            task.cancel()
        return dict(sorted(found.items()))

    found = await run(tmp_path, flow)
    assert set(found) == set(map(str, range(6))) or set(found) == set(range(6))
    per_arg = Counter(r["key"].partition("~")[0] for r in records(tmp_path, "r"))
    assert len(per_arg) == 3


async def test_a_cancelled_first_caller_hands_over(tmp_path: Path) -> None:
    """If the task that runs a shared call is cancelled, the next one that wants it runs it."""
    started, release, ran = asyncio.Event(), asyncio.Event(), []

    @step(name="identity.slow")
    async def slow() -> str:
        ran.append(1)
        started.set()
        await release.wait()
        return "done"

    async def helper() -> str:
        return await slow()

    @workflow(name="identity.handed_over")
    async def flow(run: Run) -> str:
        first, second = asyncio.create_task(helper()), asyncio.create_task(helper())
        await started.wait()
        await asyncio.sleep(0)
        first.cancel()
        release.set()
        return await second

    assert await run(tmp_path, flow) == "done"
    assert len(ran) == 2
    assert len(records(tmp_path, "r")) == 1


async def test_n_parallel_steps_that_end_together_leave_n_records(tmp_path: Path) -> None:
    """Fifty steps that finish in the same instant leave fifty results (no shared list is read, filtered and replaced)."""
    gate = asyncio.Event()
    waiting = []

    @step(name="identity.barrier")
    async def at_once(i: int) -> int:
        waiting.append(i)
        if len(waiting) == 50:
            gate.set()
        await gate.wait()
        return i

    @workflow(name="identity.together")
    async def flow(run: Run) -> list[int]:
        return list(await asyncio.gather(*(at_once(i) for i in range(50))))

    assert await run(tmp_path, flow) == list(range(50))
    assert sorted(int(r["result"]) for r in records(tmp_path, "r")) == list(range(50))


# -- branches -------------------------------------------------------------------------------------------------------------


async def test_a_step_calls_steps_in_a_branch_of_its_own(tmp_path: Path) -> None:
    """The inner calls of a step have their own records, in a branch named after the outer; a retry finds them again."""
    tries = []

    @step(name="identity.inner")
    async def inner(x: int) -> int:
        tries.append(("inner", x))
        return x

    @step(name="identity.outer")
    async def outer(x: int) -> int:
        found = await inner(x)
        tries.append(("outer", attempt().number))
        if attempt().number == 1:
            raise Retryable("reset")
        return found

    @workflow(name="identity.nested")
    async def flow(run: Run) -> int:
        return await outer(1) + await inner(1)

    assert await run(tmp_path, flow) == 2
    assert tries == [("inner", 1), ("outer", 1), ("outer", 2), ("inner", 1)]
    branches = [(r["branch"].partition("[")[0], r["name"]) for r in records(tmp_path, "r")]
    assert branches == [("identity.outer", "identity.inner"), ("", "identity.outer"), ("", "identity.inner")]


async def test_a_write_without_a_key_may_be_called_once_per_branch(tmp_path: Path) -> None:
    """The second call of a write that has no ``key=`` raises ``KeyRequired`` at the call; items of a map are branches."""

    @step(name="identity.post", effect="write")
    async def post(x: int) -> int:
        return x

    @workflow(name="identity.unkeyed")
    async def flow(run: Run) -> list[int | None]:
        done = await run.map(post, [1, 2])
        await post(3)
        with pytest.raises(KeyRequired, match=r"identity\.post.*declare key="):
            post(4)
        return done

    assert await run(tmp_path, flow) == [1, 2]


async def test_asks_in_gather_are_different_questions(tmp_path: Path) -> None:
    """Two asks with one text, made by one task, are two questions: their answers never go to the wrong one."""

    @workflow(name="identity.asks")
    async def flow(run: Run) -> list[str]:
        return list(await asyncio.gather(run.ask("which?"), run.ask("which?"), run.ask("which?", key="third")))

    async with Layer(url(tmp_path)) as layer:
        outcome = await layer.run(flow(), client="acme", run_id="r")
        assert len(outcome.questions) == 3
        answers = dict(zip((q.id for q in reversed(outcome.questions)), ("c", "b", "a"), strict=True))
        for question_id, value in answers.items():
            await layer.answer(question_id, value, by="ann")
        assert (await layer.resume("r")).result() == ["a", "b", "c"]


# -- match="order" --------------------------------------------------------------------------------------------------------


async def test_order_matched_turns_are_known_by_position_until_their_inputs_differ(tmp_path: Path) -> None:
    """The nth call answers the nth call; a changed input at n runs n and everything later of its branch, and only there."""
    ran: list[str] = []
    text = {"a": "hello", "b": "hello"}

    @step(name="identity.turn", match="order")
    async def turn(prompt: str) -> str:
        ran.append(prompt)
        return f"re {prompt}"

    @step(name="identity.look")
    async def look(x: str) -> str:
        ran.append(f"look {x}")
        return x

    async def talk(name: str) -> list[str]:
        return [await turn(f"{name} 1"), await turn(f"{name} {text[name]}"), await turn(f"{name} 3"), await look(name)]

    @workflow(name="identity.turns")
    async def flow(run: Run) -> list[list[str] | None]:
        before = await look("before")
        done = await run.map(talk, ["a", "b"], concurrency=1)
        await run.ask(f"go on after {before}?")
        return done

    async with Layer(url(tmp_path)) as layer:
        await layer.run(flow(), client="acme", run_id="r")
        ran.clear()
        await layer.resume("r")
        assert ran == []
        text["a"] = "changed"
        await layer.resume("r")
    assert ran == ["a changed", "a 3", "look a"]
    found = [r for r in records(tmp_path, "r") if r["generation"] == 2]
    assert [(r["name"], r["key"]) for r in found][:2] == [("identity.turn", "#2"), ("identity.turn", "#3")]
    assert found[0]["why"] == "ran again and gave another result: argument prompt changed"


# -- any program ----------------------------------------------------------------------------------------------------------

arg = st.integers(0, 2)
nodes: Any = st.recursive(
    st.tuples(st.just("step"), arg),
    lambda inner: st.one_of(
        st.tuples(st.just("seq"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("gather"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("calls"), st.lists(arg, min_size=1, max_size=3)),
        st.tuples(st.just("map"), st.lists(arg, min_size=1, max_size=4)),
    ),
    max_leaves=8,
)
program: list[Any] = []
seen: dict[str, str] = {}
executed: list[str] = []


@step(name="identity.roll")
async def roll(x: int) -> str:
    """Random, and counted."""
    for _ in range(random.randint(0, 2)):
        await asyncio.sleep(0)
    value = f"{x}:{next(drawn)}"
    executed.append(value)
    return value


@workflow(name="identity.program")
async def any_program(run: Run) -> None:
    """Walks the newest program and notes what it sees where."""

    async def walk(node: Any, at: str) -> None:
        kind, what = node
        if kind == "step":
            seen[at] = await roll(what)
        elif kind == "seq":
            for i, child in enumerate(what):
                await walk(child, f"{at}.{i}")
        elif kind == "gather":
            await asyncio.gather(*(walk(child, f"{at}.{i}") for i, child in enumerate(what)))
        elif kind == "calls":
            for i, value in enumerate(await asyncio.gather(*map(roll, what))):
                seen[f"{at}.{i}"] = value
        else:
            for i, value in enumerate(await run.map(roll, what, concurrency=2)):
                seen[f"{at}.{i}"] = str(value)

    await walk(program[-1], "0")


@pytest.mark.slow
@pytest.mark.timeout(240)  # random runs, each with a death
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(node=nodes, data=st.data())
def test_whatever_was_seen_before_a_crash_is_seen_again(node: Any, data: Any) -> None:
    """Over any nesting of sequence, gather and map with random results, killed at any record, twice.

    Every value the code saw it sees again at the same place after the resume, and no recorded step runs again.
    """
    program.append(node)
    before: dict[str, str] = {}
    with TemporaryDirectory() as folder:
        path = Path(folder)
        for life in range(3):
            seen.clear()
            executed.clear()
            kept = {r["result"] for r in records(path, "r")} if life else set()
            calls = Counter((r["branch"], r["name"], r["key"]) for r in records(path, "r")) if life else Counter()
            outcome = until_crash(
                path,
                data.draw(st.integers(0, 12), label="records before the end") if life < 2 else 10_000,
                lambda layer: layer.run(any_program(), client="acme", run_id="r"),
            )
            assert {at: seen.get(at, value) for at, value in before.items()} == before
            assert not kept & {f'"{value}"' for value in executed}
            after = Counter((r["branch"], r["name"], r["key"]) for r in records(path, "r"))
            assert all(after[key] == n for key, n in calls.items())
            before |= seen
            if outcome is not None:
                assert outcome.status == "done", outcome
                assert before == seen
                break


def test_a_crash_is_one(tmp_path: Path) -> None:
    """The helper that stands for a crash lets nothing be written after it (or the test above would prove nothing)."""

    @workflow(name="identity.crash_helper")
    async def flow(run: Run) -> list[str]:
        return [await draw(i) for i in range(5)]

    async def use(layer: Layer) -> None:
        with pytest.raises(Crash):
            await layer.run(flow(), client="acme", run_id="r")
        raise Crash

    until_crash(tmp_path, 3, use)
    assert len(records(tmp_path, "r")) == 3


@pytest.mark.parametrize("stops", [False, True], ids=["straight on", "put away in between"])
async def test_what_was_read_after_a_changed_turn_runs_again_however_often_the_run_is_put_away(
    tmp_path: Path, stops: bool
) -> None:
    """A turn that was asked something else invalidates what was read later in its branch, also over a park; once."""
    ran: list[str] = []
    prompt, asks = ["a"], [False]

    @step(name="identity.turn.parked", match="order")
    async def turn(text: str) -> str:
        ran.append(text)
        return f"re {text}"

    @workflow(name="identity.turns.parked")
    async def flow(run: Run) -> str:
        await turn(prompt[0])
        if asks[0]:
            await run.ask("in between?")
        found = await turn("fixed")
        await run.ask("end?")
        return found

    async with Layer(url(tmp_path)) as layer:
        await layer.run(flow(), client="acme", run_id="r")
        prompt[0], asks[0] = "b", stops
        ran.clear()
        outcome = await layer.resume("r")
        if stops:
            await layer.answer(next(q.id for q in outcome.questions if q.text == "in between?"), "yes", by="ann")
            await layer.resume("r")
        assert ran == ["b", "fixed"]
        await layer.resume("r")
        assert ran == ["b", "fixed"]


async def test_a_business_key_that_looks_like_a_place_invalidates_nothing_else(tmp_path: Path) -> None:
    """The key "#12" of a read that ran with other inputs is no model turn: what was read after it stays."""
    ran: list[str] = []
    size = [1]

    @step(name="identity.issue", key="number")
    async def issue(number: str, size: int) -> int:
        ran.append(number)
        return size

    @workflow(name="identity.issues")
    async def flow(run: Run) -> None:
        await issue("#12", size[0])
        await issue("#13", 1)
        await run.ask("go on?")

    async with Layer(url(tmp_path)) as layer:
        await layer.run(flow(), client="acme", run_id="r")
        size[0] = 2
        await layer.resume("r")
        await layer.resume("r")
    assert ran == ["#12", "#13", "#12"]
