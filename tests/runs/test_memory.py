"""A run that only waits for people or time is a row in the store and nothing in memory.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Outcome, Run, RunInfo, Superseded, step, testing, workflow
from tests.runs.tools import child, records, url

Park = Callable[..., Awaitable[Outcome[Any]]]


@step(name="memory.look")
async def look(x: int = 0) -> int:  # noqa: D103
    return x


@pytest.fixture
async def layer(tmp_path: Path) -> AsyncIterator[Layer]:
    """A layer on a file."""
    async with Layer(url(tmp_path)) as opened:
        yield opened


async def parks(layer: Layer, flow: Any, capfd: pytest.CaptureFixture[str]) -> Outcome[Any]:
    """Run until it parks: no task of it is left, and nothing was said about it on stderr."""
    before = asyncio.all_tasks()
    outcome = await asyncio.wait_for(layer.run(flow(), client="acme", run_id="r"), 20)
    assert outcome.status == "waiting", outcome
    assert asyncio.all_tasks() <= before
    gc.collect()
    await asyncio.sleep(0)
    assert capfd.readouterr().err == ""
    return outcome


async def answered(layer: Layer, *values: str) -> Any:
    """Answer what is open, in the order asked; the run's value."""
    for question, value in zip(await layer.questions(run_id="r"), values, strict=True):
        await layer.answer(question.id, value, by="ann")
    return (await asyncio.wait_for(layer.resume("r"), 20)).result()


# -- where an ask may stand -----------------------------------------------------------------------------------------------


async def test_an_ask_alone(layer: Layer, capfd: Any) -> None:
    """A body that waits for a person is put away, and goes on from the answer."""

    @workflow(name="memory.alone")
    async def flow(run: Run) -> str:
        return await run.ask("ok?")

    await parks(layer, flow, capfd)
    assert await answered(layer, "yes") == "yes"


async def test_asks_in_gather(layer: Layer, capfd: Any) -> None:
    """All branches of a gather wait for people: the run is put away."""

    @workflow(name="memory.gather")
    async def flow(run: Run) -> list[str]:
        return list(await asyncio.gather(run.ask("a?"), run.ask("b?")))

    await parks(layer, flow, capfd)
    assert await answered(layer, "1", "2") == ["1", "2"]


async def test_asks_in_a_task_group(layer: Layer, capfd: Any) -> None:
    """The same in a ``TaskGroup``, one of whose tasks waits for the other by an event."""

    @workflow(name="memory.group")
    async def flow(run: Run) -> str:
        known = asyncio.Event()

        async def asks() -> str:
            found = await run.ask("a?")
            known.set()
            return found

        async with asyncio.TaskGroup() as group:
            asked = group.create_task(asks())
            group.create_task(known.wait())
        return asked.result()

    await parks(layer, flow, capfd)
    assert await answered(layer, "1") == "1"


@pytest.mark.parametrize("what", ["Lock", "Semaphore", "Condition", "Queue", "Event", "Barrier", "PriorityQueue"])
async def test_behind_asyncio_s_own_primitives(layer: Layer, capfd: Any, what: str) -> None:
    """Waits for a lock, semaphore, condition, queue, event or barrier that an asking task will release count as inside."""
    told: list[int] = []

    async def waits(thing: Any) -> None:
        if what in ("Lock", "Semaphore"):
            async with thing:
                return
        elif what == "Condition":
            async with thing:
                await thing.wait_for(lambda: told)
        else:
            await (thing.get() if "Queue" in what else thing.wait())

    async def asks(run: Run, thing: Any) -> str:
        if what in ("Lock", "Semaphore"):
            async with thing:
                return await run.ask("ok?")
        found: str = await run.ask("ok?")
        if what == "Condition":
            async with thing:
                told.append(1)
                thing.notify()
        elif "Queue" in what:
            thing.put_nowait(1)
        elif what == "Barrier":
            await thing.wait()
        else:
            thing.set()
        return found

    @workflow(name=f"memory.behind_{what.lower()}")
    async def flow(run: Run) -> str:
        thing: Any = asyncio.Barrier(2) if what == "Barrier" else getattr(asyncio, what)()
        found, _ = await asyncio.gather(asks(run, thing), waits(thing))
        return found

    await parks(layer, flow, capfd)
    assert await answered(layer, "yes") == "yes"


@pytest.mark.parametrize("how", ["wait", "as_completed", "shield", "wait_for", "task", "generator", "nested gather"])
async def test_inside_other_waits_for_the_run_s_own_tasks(layer: Layer, capfd: Any, how: str) -> None:
    """``asyncio.wait``, ``as_completed``, ``shield``, ``wait_for`` without a time-out, async generators: all are inside."""

    async def questions(run: Run) -> AsyncIterator[str]:
        lock = asyncio.Lock()
        async with lock:
            yield await run.ask("a?")

    async def ask(run: Run) -> str:
        if how == "wait":
            done, _ = await asyncio.wait([asyncio.create_task(run.ask("a?"))])
            return str(done.pop().result())
        if how == "as_completed":
            return str(await next(iter(asyncio.as_completed([run.ask("a?")]))))
        if how == "shield":
            return str(await asyncio.shield(run.ask("a?")))
        if how == "wait_for":
            return str(await asyncio.wait_for(run.ask("a?"), None))
        if how == "task":
            return str(await asyncio.create_task(run.ask("a?")))
        if how == "generator":
            return "".join([found async for found in questions(run)])
        return str((await asyncio.gather(asyncio.gather(run.ask("a?"))))[0][0])

    @workflow(name=f"memory.in_{how.replace(' ', '_')}")
    async def flow(run: Run) -> str:
        return await ask(run)

    await parks(layer, flow, capfd)
    assert await answered(layer, "yes") == "yes"


async def test_a_map_s_items_wait_for_people(layer: Layer, capfd: Any) -> None:
    """Every item of a map waits for a person, more than run at a time: put away; each gets its own answer."""

    @workflow(name="memory.map")
    async def flow(run: Run) -> list[str | None]:
        async def one(i: int) -> str:
            return f"{i}{await run.ask('ok?')}"

        return await run.map(one, [1, 2, 3], concurrency=2)

    await parks(layer, flow, capfd)
    found = await answered(layer, "a", "b", "c")
    assert sorted(text[0] for text in found) == ["1", "2", "3"]
    assert sorted(text[1] for text in found) == ["a", "b", "c"]


async def test_a_call_that_waits_for_its_turn_is_dropped_without_a_word(layer: Layer, capfd: Any) -> None:
    """Calls made and not awaited yet at a park are not reported as never awaited; nor is a failed task nobody looked at."""

    async def fails() -> None:
        raise ValueError("later")

    @workflow(name="memory.unawaited")
    async def flow(run: Run) -> int:
        calls = [look(i) for i in range(3)]
        questions = [run.ask("a?"), run.ask("b?")]
        task = asyncio.create_task(fails())
        await look(9)
        await asyncio.gather(*questions)
        with pytest.raises(ValueError, match="later"):
            await task
        return sum([await call for call in calls])

    await parks(layer, flow, capfd)
    assert await answered(layer, "1", "2") == 3


# -- what keeps it loaded -------------------------------------------------------------------------------------------------


async def test_a_foreign_await_keeps_the_run_loaded_and_why_says_where(layer: Layer) -> None:
    """A run that also waits for something stepseven does not know stays in memory, and ``why`` names file and line."""
    release = asyncio.get_running_loop().create_future()

    @workflow(name="memory.foreign")
    async def flow(run: Run) -> list[Any]:
        async def foreign() -> str:
            return await release  # the line `why` names

        return list(await asyncio.gather(run.ask("ok?"), foreign()))

    task = asyncio.create_task(layer.run(flow(), client="acme", run_id="r"))
    line = Path(__file__).read_text().split("\n").index("            return await release  # the line `why` names") + 1
    async with asyncio.timeout(20):
        while f"test_memory.py:{line}" not in await _why(layer):
            await asyncio.sleep(0.02)
    assert not task.done()
    release.set_result("came")
    outcome = await task
    assert outcome.status == "waiting"
    assert await answered(layer, "yes") == ["yes", "came"] if not release.done() else True


async def _why(layer: Layer) -> str:
    if not await layer.runs():
        return ""
    return await layer.why("r")


@pytest.mark.parametrize("how", ["sleep", "socket", "lock in a step", "wait with a time-out"])
async def test_sleeps_sockets_and_what_a_step_waits_for_are_foreign(  # noqa: C901 - one small case each
    layer: Layer, how: str, request: pytest.FixtureRequest
) -> None:
    """``asyncio.sleep``, a socket, a loop time-out and anything a step's own code waits for (its locks, too).

    Not put away while another branch asks.
    """
    at, go = asyncio.Event(), asyncio.Event()
    lock = asyncio.Lock()
    await lock.acquire()
    served: list[asyncio.StreamWriter] = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    request.addfinalizer(server.close)
    port = server.sockets[0].getsockname()[1]

    @step(name=f"memory.locked_{how.replace(' ', '_')}")
    async def locked() -> str:
        at.set()
        async with lock:
            return "got it"

    async def foreign() -> str:
        if how == "lock in a step":
            return await locked()
        at.set()
        if how == "sleep":
            while not go.is_set():
                await asyncio.sleep(0.01)
        elif how == "socket":
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await reader.read()
            writer.close()
        else:
            await asyncio.wait([asyncio.create_task(go.wait())], timeout=15)
        return "came"

    @workflow(name=f"memory.foreign_{how.replace(' ', '_')}")
    async def flow(run: Run) -> list[Any]:
        return list(await asyncio.gather(run.ask("ok?"), foreign()))

    task = asyncio.create_task(layer.run(flow(), client="acme", run_id="r"))
    async with asyncio.timeout(20):
        await at.wait()
        while not await layer.questions():
            await asyncio.sleep(0.01)
        for _ in range(8):  # ticks of the run: each looks whether everything waits
            await asyncio.sleep(0.05)
            assert not task.done()
        go.set()
        lock.release()
        for writer in served:
            writer.close()
        outcome = await task
    assert outcome.status == "waiting"
    server.close()
    await server.wait_closed()


async def test_an_answer_while_loaded_is_used_at_once(layer: Layer) -> None:
    """While a foreign await keeps the run loaded, an answer reaches it without a reload: the body runs once."""
    begun, asked, go = [], asyncio.Event(), asyncio.Event()

    @workflow(name="memory.loaded")
    async def flow(run: Run) -> str:
        begun.append(1)

        async def foreign() -> None:
            while not go.is_set():
                await asyncio.sleep(0.005)

        async def asks() -> str:
            found = await run.ask("ok?")
            go.set()
            return str(found)

        asked.set()
        return (await asyncio.gather(asks(), foreign()))[0]

    task = asyncio.create_task(layer.run(flow(), client="acme", run_id="r"))
    async with asyncio.timeout(20):
        while not (open_questions := await layer.questions()):
            await asyncio.sleep(0.005)
        await layer.answer(open_questions[0].id, "yes", by="ann")
        assert (await task).result() == "yes"
    assert begun == [1]


# -- what is about to go on ------------------------------------------------------------------------------------------------


@step(name="memory.pay", effect="irreversible", key="k")
async def pay(k: str) -> str:
    """Done after a person's word only."""
    return f"paid {k}"


@step(name="memory.put", effect="write", key="k", scope="client")
async def put(k: str) -> str:
    """Once per client."""
    return f"put {k}"


@pytest.mark.parametrize("answer", ["approve", "refuse"])
async def test_an_answered_approval_is_acted_on_beside_a_wait_for_a_person(layer: Layer, answer: str) -> None:
    """The branch goes on (or ends the run) in the first resume after the word, though another one still waits."""
    went: list[str] = []

    @workflow(name=f"memory.paid_beside_{answer}")
    async def flow(run: Run) -> None:
        async def branch() -> None:
            went.append(await pay("a"))
            went.append(str(await look(1)))

        await asyncio.gather(branch(), run.ask("x?"))

    outcome = await layer.run(flow(), client="acme", run_id="r")
    asked = next(q for q in outcome.questions if q.kind == "approve")
    await layer.answer(asked.id, answer, by="ann")
    outcome = await asyncio.wait_for(layer.resume("r"), 20)
    if answer == "approve":
        assert (outcome.status, went) == ("waiting", ["paid a", "1"])
    else:
        assert (outcome.status, went) == ("cancelled", [])
        assert outcome.failure is not None
        assert outcome.failure.reason == "refused by ann"


async def test_a_receipt_that_is_used_again_is_acted_on_beside_a_wait_for_a_person(layer: Layer) -> None:
    """What another run did is this call's result: its branch goes on at once, though another one waits."""
    went: list[str] = []

    @workflow(name="memory.put_first")
    async def first(run: Run) -> str:
        return await put("a")

    @workflow(name="memory.put_again")
    async def flow(run: Run) -> None:
        async def branch() -> None:
            went.append(await put("a"))

        await run.ask("y?")
        await asyncio.gather(branch(), run.ask("x?"))

    await layer.run(first(), client="acme")
    outcome = await layer.run(flow(), client="acme", run_id="r")
    await layer.answer(outcome.questions[0].id, "1", by="ann")
    outcome = await asyncio.wait_for(layer.resume("r"), 20)
    assert (outcome.status, [q.text for q in outcome.questions], went) == ("waiting", ["x?"], ["put a"])


WAKINGS = [
    "gather", "nested gather", "deep gather", "gather that fails", "deep gather that fails", "results of a gather", "shield",
    "shield of a gather", "wait", "first completed", "first exception", "first of gathers", "as completed",
    "as completed of gathers", "lock", "semaphore", "condition", "event", "queue", "group", "wait_for",
]  # fmt: skip


async def _woken(how: str, ends: Callable[[], Awaitable[Any]], never: Callable[[], Awaitable[Any]]) -> None:  # noqa: C901, PLR0912 - one small case each
    """Wait, by *how*, for what *ends*; where two things may be waited for at once the other one *never* ends by itself."""

    async def fails() -> None:
        await ends()
        raise ValueError(how)

    task = asyncio.ensure_future
    if how == "gather":
        await asyncio.gather(ends(), ends())
    elif how == "nested gather":
        await asyncio.gather(asyncio.gather(ends()), ends())
    elif how == "deep gather":
        await asyncio.gather(asyncio.gather(asyncio.gather(asyncio.gather(asyncio.gather(ends())))))
    elif how in ("gather that fails", "deep gather that fails"):
        inner = asyncio.gather(fails(), never())
        with pytest.raises(ValueError, match=how):
            await (asyncio.gather(asyncio.gather(asyncio.gather(inner))) if how.startswith("deep") else inner)
    elif how == "results of a gather":
        await asyncio.gather(asyncio.gather(fails(), return_exceptions=True), return_exceptions=True)
    elif how == "shield":
        await asyncio.shield(ends())
    elif how == "shield of a gather":
        await asyncio.shield(asyncio.gather(asyncio.shield(ends())))
    elif how == "wait":
        await asyncio.wait([task(ends()), task(ends())])
    elif how == "first completed":
        await asyncio.wait([task(ends()), task(never())], return_when=asyncio.FIRST_COMPLETED)
    elif how == "first exception":
        done, _ = await asyncio.wait([task(fails()), task(never())], return_when=asyncio.FIRST_EXCEPTION)
        assert all(d.exception() for d in done)
    elif how == "first of gathers":
        both = [asyncio.gather(asyncio.gather(ends())), asyncio.gather(never())]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    elif how == "as completed":
        await next(iter(asyncio.as_completed([task(ends()), task(never())])))
    elif how == "as completed of gathers":
        await next(iter(asyncio.as_completed([asyncio.gather(asyncio.gather(ends())), asyncio.gather(never())])))
    elif how == "group":
        async with asyncio.TaskGroup() as group:
            group.create_task(ends())  # type: ignore[arg-type]
    elif how == "wait_for":
        await asyncio.wait_for(ends(), None)
    else:
        await _released(how, ends)


async def _released(how: str, ends: Callable[[], Awaitable[Any]]) -> None:
    """Wait for one of asyncio's own things, which another task lets go when it *ends*."""
    lock, gate, event, queue = asyncio.Lock(), asyncio.Semaphore(0), asyncio.Event(), asyncio.Queue[int]()
    condition = asyncio.Condition()
    await lock.acquire()

    async def lets_go() -> None:
        await ends()
        lock.release()
        gate.release()
        event.set()
        queue.put_nowait(1)
        async with condition:
            condition.notify()

    other = asyncio.create_task(lets_go())
    if how == "condition":
        async with condition:
            await condition.wait()
    else:
        await {"lock": lock.acquire, "semaphore": gate.acquire, "event": event.wait, "queue": queue.get}[how]()
    await other


@pytest.mark.parametrize("last", ["a replay", "an end", "a write"])
@pytest.mark.parametrize("how", WAKINGS)
async def test_what_has_ended_wakes_who_waits_before_the_run_is_put_away(layer: Layer, how: str, last: str) -> None:
    """However many callbacks lie between an end and the code that waits for it: it goes on, though the rest waits for people.

    *last*: what the ended code did last (a record answered it, it did nothing, a send of its own ended).
    """
    went: list[str] = []
    name = f"memory.woken_{how}_{last}".replace(" ", "_")

    @workflow(name=name)
    async def flow(run: Run) -> str:
        first = await run.ask("y?")

        async def ends() -> None:
            if last == "a write":
                await put(f"{name} {len(went)}")
            elif last == "a replay":
                await look(7)

        async def branch() -> str:
            await _woken(how, ends, lambda: run.ask("never?"))
            went.append("on")
            return await run.ask("and?")

        await look(7)
        return first + "".join(await asyncio.gather(run.ask("x?"), branch()))

    outcome = await layer.run(flow(), client="acme", run_id="r")
    await layer.answer(outcome.questions[0].id, "1", by="ann")
    outcome = await asyncio.wait_for(layer.resume("r"), 20)
    assert outcome.status == "waiting"
    assert went == ["on"]
    assert {"x?", "and?"} <= {q.text for q in outcome.questions}


# -- what happens at a park -----------------------------------------------------------------------------------------------


async def test_exits_run_at_every_park(layer: Layer, capfd: Any) -> None:
    """``finally`` and ``async with`` exits run each time the run is put away, as they do when it ends."""
    log: list[str] = []

    @asynccontextmanager
    async def session() -> AsyncIterator[None]:
        log.append("open")
        try:
            yield
        finally:
            log.append("close")

    @workflow(name="memory.exits")
    async def flow(run: Run) -> str:
        async with session():
            try:
                return await run.ask("ok?")
            finally:
                log.append("finally")

    await parks(layer, flow, capfd)
    assert log == ["open", "finally", "close"]
    await answered(layer, "yes")
    assert log == ["open", "finally", "close"] * 2


@pytest.mark.parametrize("code", ["returns", "raises", "creates", "steps", "asks", "pins", "sets"])
async def test_what_the_body_does_after_unloading_began_does_not_count(  # noqa: C901 - one small case each
    layer: Layer, tmp_path: Path, capfd: Any, code: str
) -> None:
    """A value returned, an exception raised, a task created, a step called in an ``except CancelledError``.

    Discarded, and nothing is written; durable calls raise ``Superseded``.
    """
    refused: list[BaseException] = []
    ran: list[str] = []

    @step(name=f"memory.must_not_run_{code}")
    async def must_not_run() -> None:
        ran.append("step")

    async def task() -> None:
        await asyncio.sleep(3600)

    @workflow(name=f"memory.after_{code}")
    async def flow(run: Run) -> Any:
        try:
            return await run.ask("ok?")
        except asyncio.CancelledError:
            if code == "returns":
                return "wrong"
            if code == "raises":
                raise ValueError("wrong") from None
            if code == "creates":
                task_ = asyncio.create_task(task())
                await asyncio.sleep(0)
                return task_ is None
            try:
                if code == "steps":
                    await must_not_run()
                elif code == "asks":
                    await run.ask("another?")
                elif code == "pins":
                    run.now()
                else:
                    run.client.set("a", 1)
            except Superseded as signal:
                refused.append(signal)
                raise
            raise

    await parks(layer, flow, capfd)
    assert ran == []
    assert len(refused) == (code in ("steps", "asks", "pins", "sets"))
    assert records(tmp_path, "r") == []
    assert len(await layer.questions()) == 1
    assert await answered(layer, "yes") == "yes"


@pytest.mark.parametrize("caught", ["Exception", "CancelledError", "BaseException once", "CancelledError then sleeps"])
async def test_a_loop_around_an_ask_neither_hangs_nor_writes(  # noqa: C901 - the loops agents have
    layer: Layer, capfd: Any, caught: str
) -> None:
    """Agents are full of ``while True: try: … except …``: the run is put away all the same, once, with one question."""

    @workflow(name=f"memory.loop_{caught.replace(' ', '_')}")
    async def flow(run: Run) -> str:
        for _ in range(1000):
            try:
                return await run.ask("ok?", key="only")
            except Exception:
                if caught == "Exception":
                    continue
                raise
            except asyncio.CancelledError:
                if caught == "CancelledError then sleeps":
                    await asyncio.sleep(3600)
                if caught != "Exception":
                    continue
                raise
            except BaseException:
                if caught != "BaseException once":
                    raise
                caught_base.append(1)
                if len(caught_base) > 1:
                    raise
        return "gave up"

    caught_base: list[int] = []
    await parks(layer, flow, capfd)
    assert len(await layer.questions()) == 1
    assert await answered(layer, "yes") == "yes"


async def test_code_that_swallows_everything_cannot_spin(layer: Layer) -> None:
    """A loop that catches ``BaseException`` gets no second refusal to spin on: its next durable call never returns."""
    turns: list[int] = []
    give_up = asyncio.Event()

    @workflow(name="memory.swallows_all")
    async def flow(run: Run) -> str:
        while not give_up.is_set():
            try:
                return await run.ask("ok?", key="only")
            except BaseException:  # noqa: BLE001
                turns.append(1)
        return "gave up"

    task = asyncio.create_task(layer.run(flow(), client="acme", run_id="r"))
    async with asyncio.timeout(20):
        while len(turns) < 3:
            await asyncio.sleep(0.01)
        give_up.set()
        assert (await task).status == "waiting"
    assert len(turns) < 10


async def test_nested_asks_are_asked_once(layer: Layer, capfd: Any) -> None:
    """Asks deep in helpers of map items, several in a row, over several parks: each is asked once, no step between runs again."""
    looked: list[str] = []

    @step(name="memory.deep")
    async def deep(text: str) -> str:
        looked.append(text)
        return text

    async def agent(run: Run, name: str) -> str:
        found = await deep(f"{name} begins")
        first = await run.ask(f"{name}: first?")
        found += await deep(f", heard {first}")
        second = await asyncio.gather(run.ask(f"{name}: second?"))
        return found + second[0]

    @workflow(name="memory.nested")
    async def flow(run: Run) -> list[str | None]:
        async def item(name: str) -> str:
            return await agent(run, name)

        return await run.map(item, ["a", "b"])

    await parks(layer, flow, capfd)
    for _ in range(4):
        for question in await layer.questions():
            await layer.answer(question.id, "yes", by="ann")
            await layer.resume("r")
    assert (await layer.resume("r")).result() == ["a begins, heard yesyes", "b begins, heard yesyes"]
    assert sorted(looked) == [", heard yes", ", heard yes", "a begins", "b begins"]
    assert len(await layer.questions(status=None)) == 4


# -- how much is left -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_thousand_parked_runs_are_rows(layer: Layer) -> None:
    """1,000 runs that wait for people leave no tasks behind, and less than 1 KB each in memory."""

    @workflow(name="memory.many")
    async def flow(run: Run, i: int) -> str:
        await look(i)
        return await run.ask("ok?")

    async def some(ids: range) -> None:
        for start in ids[::50]:
            await asyncio.gather(*(layer.run(flow(i=i), client="acme", run_id=f"r{i}") for i in range(start, start + 50)))

    await some(range(50))
    tasks = len(asyncio.all_tasks())
    tracemalloc.start()
    try:
        await some(range(50, 250))  # what is made once for all is made now
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        await some(range(250, 550))
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await some(range(550, 1050))
    assert len(asyncio.all_tasks()) == tasks
    assert (after - before) / 300 < 1024


async def test_an_answer_in_the_instant_between_asked_and_parked_is_never_missed(layer: Layer) -> None:
    """200 times, an answer comes the moment the question is stored, while the run is on its way out of memory: it is used."""

    @workflow(name="memory.instant")
    async def flow(run: Run, i: int) -> str:
        return await run.ask("ok?")

    answers: set[asyncio.Task[Any]] = set()

    def watch(run_id: str, what: str, details: dict[str, Any]) -> None:
        if what == "asked":
            turns = int(run_id[1:]) % 7

            async def answer() -> None:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await layer.answer(details["id"], "yes", by="ann")

            task = asyncio.get_running_loop().create_task(answer())
            answers.add(task)

    layer.services.watchers.append(watch)
    for i in range(200):
        outcome = await layer.run(flow(i=i), client="acme", run_id=f"r{i}")
        await asyncio.gather(*answers)
        answers.clear()
        if outcome.status == "waiting":  # it had left memory already: then the answer made it ready, and it is taken again
            assert (await layer.runs(limit=1))[0].status == "queued"
            outcome = await layer.resume(f"r{i}")
        assert outcome.result() == "yes"


# -- time -----------------------------------------------------------------------------------------------------------------


async def test_a_short_sleep_is_waited_for_in_memory() -> None:
    """``run.sleep`` of up to 30 seconds passes in memory; the run goes on by itself."""
    begun = []

    @workflow(name="memory.short")
    async def flow(run: Run) -> str:
        begun.append(1)
        await run.sleep(20)
        return "slept"

    async with testing.layer() as layer:
        assert (await layer.run(flow(), client="acme", run_id="r")).result() == "slept"
    assert begun == [1]


async def test_a_long_sleep_parks_with_its_moment(capfd: Any) -> None:
    """A longer one is a row with ``wake_us``; a resume before that waits on, one after it goes on, from the same moment."""

    @workflow(name="memory.long")
    async def flow(run: Run) -> str:
        await run.sleep(3600)
        return "slept"

    async with testing.layer() as layer:
        outcome = await layer.run(flow(), client="acme", run_id="r")
        assert (outcome.status, outcome.waiting_for) == ("waiting", "timer")
        until = outcome.until_us
        assert until is not None
        layer.clock.advance(3000)
        outcome = await layer.resume("r")
        assert (outcome.status, outcome.until_us) == ("waiting", until)
        layer.clock.advance(601)
        assert (await layer.resume("r")).result() == "slept"
    assert capfd.readouterr().err == ""


async def test_sleeps_and_asks_together() -> None:
    """A run that waits for a person and for a timer parks for the person, and is woken by whichever comes first."""

    @workflow(name="memory.both")
    async def flow(run: Run) -> list[Any]:
        log: list[Any] = []

        async def sleeps() -> None:
            await run.sleep(3600, key="hour")
            log.append("slept")
            await look(1)

        async def asks() -> None:
            log.append(await run.ask("ok?"))

        await asyncio.gather(sleeps(), asks())
        return sorted(log)

    async with testing.layer() as layer:
        outcome = await layer.run(flow(), client="acme", run_id="r")
        assert (outcome.waiting_for, outcome.until_us is not None) == ("person", True)
        layer.clock.advance(3700)
        outcome = await layer.resume("r")
        assert (outcome.waiting_for, outcome.until_us) == ("person", None)
        assert "memory.look" in (await layer.checkpoint("r"))["steps_complete"]
        await layer.answer_next("yes")
        assert (await layer.resume("r")).result() == ["slept", "yes"]


async def test_a_deadline_is_the_time_out_of_an_ask() -> None:
    """``deadline=`` works over a park; the default is the answer then. A loop time-out around an ask does not.

    The run is not in memory while it would pass.
    """

    @workflow(name="memory.deadline")
    async def flow(run: Run) -> list[Any]:
        first = await run.ask("a?", deadline=7200, default="by itself")
        try:
            async with asyncio.timeout(3600):
                return [first, await run.ask("b?")]
        except TimeoutError:
            return [first, "the loop's time-out"]

    async with testing.layer() as layer:
        assert (await layer.run(flow(), client="acme", run_id="r")).status == "waiting"
        layer.clock.advance(7201)
        assert (await layer.resume("r")).status == "waiting"
        layer.clock.advance(86_400)
        await layer.answer_next("yes")
        assert (await layer.resume("r")).result() == ["by itself", "yes"]


# -- W02: blocking entry points -------------------------------------------------------------------------------------------


def test_blocking_entry_points_without_a_loop(tmp_path: Path) -> None:
    """``run_blocking`` and ``resume_blocking`` need no loop of the caller's."""

    @workflow(name="memory.blocking")
    async def flow(run: Run) -> str:
        return f"{await look(1)} {await run.ask('ok?')}"

    layer = Layer(url(tmp_path))
    outcome = layer.run_blocking(flow(), client="acme", run_id="r")
    asyncio.run(layer.answer(outcome.questions[0].id, "yes", by="ann"))
    assert layer.resume_blocking("r").result() == "1 yes"
    layer.close()


async def test_blocking_entry_points_inside_a_running_loop(layer: Layer) -> None:
    """As in a notebook, whose loop is already running: it works, and the run's tasks are in a loop of their own."""

    @workflow(name="memory.in_loop")
    async def flow(run: Run) -> str:
        return f"{await look(1)} {await run.ask('ok?')}"

    before = asyncio.all_tasks()
    outcome = layer.run_blocking(flow(), client="acme", run_id="r")
    assert asyncio.all_tasks() == before
    await layer.answer(outcome.questions[0].id, "yes", by="ann")
    assert layer.resume_blocking("r").result() == "1 yes"


async def test_a_cell_that_is_run_again_redefines_its_workflow(layer: Layer) -> None:
    """Defining a workflow or step of the same name again is no error: the newest code goes on with the records."""
    info: list[RunInfo] = []
    for version in ("v1", "v2"):

        @workflow(name="memory.cell")
        async def flow(run: Run, _version: str = version) -> str:
            await look(1)
            return f"{_version} {await run.ask('ok?')}"

        if version == "v1":
            assert (await layer.run(flow(), client="acme", run_id="r")).status == "waiting"
        info += await layer.runs()
    await layer.answer((await layer.questions())[0].id, "yes", by="ann")
    assert (await layer.resume("r")).result() == "v2 yes"
    assert {i.run_id for i in info} == {"r"}


def test_nothing_is_printed_when_a_process_ends_with_parked_runs(tmp_path: Path) -> None:
    """A script whose run parks exits with nothing on stderr: no pending task, no coroutine that was never awaited."""
    done = child(
        """
        import asyncio, sys
        from stepseven import Layer, Run, step, workflow

        @step
        async def look(x: int) -> int:
            return x

        @workflow
        async def flow(run: Run) -> str:
            later = [look(i) for i in range(3)]
            background = asyncio.create_task(run.ask("b?"))
            found = await asyncio.gather(run.ask("a?"), run.ask("a?"))
            return f"{found} {await background} {[await x for x in later]}"

        async def main() -> None:
            async with Layer(sys.argv[1]) as layer:
                print((await layer.run(flow(), client="acme")).status)

        asyncio.run(main())
        """,
        url(tmp_path),
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "waiting", "")
