"""What a worker in this process does: takes what is due, and only that; keeps its slots; outlives what its runs do.

Longer than other files: the worker's promises in one list.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stepseven import Layer, NothingToRun, Run, StoreUnavailable, Worker, step, workflow
from stepseven.engines import embedded
from tests.servers.databases import execute, kind, rows, url
from tests.workers.crew import until

pytestmark = pytest.mark.anyio

gates: dict[str, asyncio.Event] = {}
inside: list[str] = []


@step
async def wait_at(name: str) -> str:
    """Stays until the test opens the gate."""
    inside.append(name)
    await gates[name].wait()
    inside.remove(name)
    return name


@step
async def number(n: int) -> int:
    """A read."""
    return n


@workflow
async def w_plain(run: Run, n: int) -> int:
    """Ends at once."""
    return await number(n)


@workflow
async def w_gated(run: Run, name: str) -> str:
    """Ends when the test says so."""
    return await wait_at(name)


@workflow
async def w_asks(run: Run) -> str:
    """Waits for a person."""
    return str(await run.ask("Go on?", options=["yes", "no"]))


@workflow
async def w_sleeps(run: Run, seconds: float) -> str:
    """Waits for so long that it is put away."""
    await run.sleep(seconds)
    return "awake"


@workflow
async def w_knows(run: Run) -> str:
    """Waits for a fact."""
    return str(await run.wait_for("vat_number"))


@workflow
async def w_parent(run: Run) -> int:
    """Starts another one that asks."""
    return len(await run.start(w_asks(), key="c"))


class Abort(BaseException):
    """What an unkind library raises."""


@workflow
async def w_aborts(run: Run) -> None:
    """Raises what no `except Exception` catches."""
    raise Abort("away with it")


@workflow
async def w_exits(run: Run) -> None:
    """Wants to end the program."""
    sys.exit(3)


HERE = sys.modules[__name__]


def status(path: Path, run_id: str) -> str:
    """How a run stands."""
    return str(rows(path, "SELECT status FROM run WHERE id = ?", run_id)[0]["status"])


async def test_it_takes_what_is_started_here_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start in the same process wakes the worker: no pause is waited for."""
    monkeypatch.setattr(embedded, "LEAST_S", 300.0)
    monkeypatch.setattr(embedded, "MOST_S", 300.0)
    async with Layer(url(tmp_path)) as layer, layer.worker(HERE) as worker:
        await until(lambda: worker._pause_s == 300.0)  # else nothing would wake it before the test's time is up
        await layer.start(w_plain(n=1), client="acme", run_id="r")
        await until(lambda: status(tmp_path, "r") == "done")
        assert (await layer.resume("r")).value == 1


async def test_no_more_runs_than_slots_are_in_memory(tmp_path: Path) -> None:
    """With two slots the third run waits; a run that is put away frees its slot, and oldest goes first."""
    gates.update({n: asyncio.Event() for n in ("a", "b", "c", "d")})
    async with Layer(url(tmp_path)) as layer:
        await layer.start(w_asks(), client="acme", run_id="q")
        for name in ("a", "b", "c", "d"):
            await layer.start(w_gated(name=name), client="acme", run_id=name)
        async with layer.worker(HERE, concurrency=2) as worker:
            await until(lambda: sorted(inside) == ["a", "b"])
            assert status(tmp_path, "q") == "waiting"
            assert worker.running == ("a", "b")
            assert [status(tmp_path, n) for n in ("c", "d")] == ["queued", "queued"]
            gates["b"].set()
            await until(lambda: sorted(inside) == ["a", "c"])
            for gate in gates.values():
                gate.set()
            await until(lambda: all(status(tmp_path, n) == "done" for n in "abcd"))
    assert rows(tmp_path, "SELECT id FROM worker") == []


async def test_an_answer_a_fact_and_a_timer_move_a_run_on(tmp_path: Path) -> None:
    """Nobody resumes anything: what was waited for happens, and the worker goes on; also for a run below another one."""
    async with Layer(url(tmp_path)) as layer, layer.worker(HERE):
        await layer.start(w_asks(), client="acme", run_id="q")
        await layer.start(w_knows(), client="acme", run_id="f")
        await layer.start(w_parent(), client="acme", run_id="p")
        await layer.start(w_sleeps(seconds=3600), client="acme", run_id="t")
        await until(lambda: [status(tmp_path, n) for n in "qfpt"] == ["waiting"] * 4)
        for question in await layer.questions():
            await layer.answer(question.id, "yes", by="ann")
        await asyncio.to_thread(layer.client("acme").set, "vat_number", "DE1", by="ann")
        execute(tmp_path, "UPDATE run SET wake_us = 1 WHERE id = 't'")  # the hour is over
        execute(tmp_path, "UPDATE step SET result = '1' WHERE name = 'run.sleep'")
        await until(lambda: [status(tmp_path, n) for n in "qfp"] == ["done"] * 3)
        assert [(await layer.resume(n)).value for n in "qfp"] == ["yes", "DE1", 3]
        await until(lambda: rows(tmp_path, "SELECT executions FROM run WHERE id = 't'")[0]["executions"] > 1)


async def test_a_run_and_a_worker_on_one_store_never_run_it_twice(tmp_path: Path) -> None:
    """`layer.run` beside two workers: each of fifty runs is executed once, by whoever has it, and every caller gets its value."""
    async with Layer(url(tmp_path)) as one, Layer(url(tmp_path)) as two, one.worker(HERE), two.worker(HERE):
        for n in range(50):
            await two.start(w_plain(n=n), client="acme", run_id=f"r{n}")
        outcomes = await asyncio.gather(*(one.run(w_plain(n=n), client="acme", run_id=f"r{n}", wait=30) for n in range(50)))
        assert [o.value for o in outcomes] == list(range(50))
        assert {r["executions"] for r in rows(tmp_path, "SELECT executions FROM run")} == {1}


async def test_two_starts_of_one_id_are_one_run(tmp_path: Path) -> None:
    """Started twice at once from two layers: one run, both get it."""
    async with Layer(url(tmp_path)) as one, Layer(url(tmp_path)) as two:
        infos = await asyncio.gather(*(layer.start(w_plain(n=1), client="acme", run_id="r") for layer in (one, two, one, two)))
        assert {info.run_id for info in infos} == {"r"}
        assert rows(tmp_path, "SELECT count(*) AS n FROM run") == [{"n": 1}]


async def test_what_it_does_not_know_is_left_alone(tmp_path: Path) -> None:
    """A run whose code is in no module of the worker is not taken; one that is, is."""
    async with Layer(url(tmp_path)) as layer:
        await layer.start(w_plain(n=1), client="acme", run_id="known")
        execute(tmp_path, "UPDATE run SET workflow = 'elsewhere'")
        await layer.start(w_plain(n=2), client="acme", run_id="r")
        async with layer.worker(HERE):
            await until(lambda: status(tmp_path, "r") == "done")
            assert rows(tmp_path, "SELECT status, fence FROM run WHERE id = 'known'") == [{"status": "queued", "fence": 0}]


async def test_a_paused_client_has_nothing_taken_until_it_goes_on(tmp_path: Path) -> None:
    """Runs of a paused client are not even looked at; when it is unpaused they are taken at once."""
    async with Layer(url(tmp_path)) as layer:
        await layer.start(w_plain(n=1), client="acme", run_id="r")
        client = layer.client("acme")
        client.pause(by="ann")
        await layer.start(w_plain(n=2), client="other", run_id="o")
        async with layer.worker(HERE):
            await until(lambda: status(tmp_path, "o") == "done")
            assert status(tmp_path, "r") == "queued"
            client.unpause(by="ann")
            await until(lambda: status(tmp_path, "r") == "done")


async def test_a_cancelled_run_is_brought_to_its_end(tmp_path: Path) -> None:
    """A run whose owner is gone and that was told to stop is ended by a worker, though nothing of it is queued."""
    async with Layer(url(tmp_path)) as layer:
        await layer.start(w_plain(n=1), client="acme", run_id="r")
        execute(tmp_path, "UPDATE run SET status = 'cancelling', reason = 'enough'")
        async with layer.worker(HERE):
            await until(lambda: status(tmp_path, "r") == "cancelled")


async def test_one_run_that_breaks_off_stops_neither_worker_nor_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`sys.exit` is that run's failure; an exception nobody catches is said once and tried again ever less often."""
    async with Layer(url(tmp_path)) as layer, layer.worker(HERE) as worker:
        await layer.start(w_exits(), client="acme", run_id="x")
        await layer.start(w_aborts(), client="acme", run_id="a")
        await until(lambda: rows(tmp_path, "SELECT executions FROM run WHERE id = 'a'")[0]["executions"] >= 2)
        await layer.start(w_plain(n=1), client="acme", run_id="r")
        await until(lambda: status(tmp_path, "r") == "done")
        assert status(tmp_path, "x") == "waiting"
        assert [q.run_id for q in await layer.questions()] == ["x"]
        assert worker._resting[rows(tmp_path, "SELECT no FROM run WHERE id = 'a'")[0]["no"]].times >= 2
    assert len([r for r in caplog.records if "run a broke off" in r.message]) == 1


async def test_inputs_that_no_longer_fit_ask_once(tmp_path: Path) -> None:
    """A run whose inputs do not decode is put away with a question, and is not taken again and again."""
    async with Layer(url(tmp_path)) as layer:
        await layer.start(w_plain(n=1), client="acme", run_id="r")
        execute(tmp_path, """UPDATE run SET inputs = '{"n":"many"}'""")
        async with layer.worker(HERE):
            await until(lambda: status(tmp_path, "r") == "waiting")
            await layer.start(w_plain(n=2), client="acme", run_id="o")
            await until(lambda: status(tmp_path, "o") == "done")
        assert rows(tmp_path, "SELECT executions FROM run WHERE id = 'r'") == [{"executions": 1}]
        assert len(await layer.questions()) == 1


async def test_a_stop_gives_everything_back(tmp_path: Path) -> None:
    """After the block nothing is owned, nobody is registered, and the layer works on: without a worker nothing is taken."""
    gates["s"] = asyncio.Event()
    async with Layer(url(tmp_path)) as layer:
        async with layer.worker(HERE) as worker:
            await layer.start(w_gated(name="s"), client="acme", run_id="s")
            await until(lambda: inside == ["s"])
        inside.clear()
        found = rows(tmp_path, "SELECT status, owner, reason, barren FROM run")
        assert found == [{"status": "queued", "owner": None, "reason": "its worker was stopped", "barren": 0}]
        assert [w["modules"] for w in rows(tmp_path, "SELECT modules FROM worker")] == [None]
        assert worker.running == ()
        gates["s"].set()
        assert (await layer.resume("s")).value == "s"


async def test_closing_the_layer_stops_its_worker(tmp_path: Path) -> None:
    """`run()` under way in a task of its own ends when the layer closes, and leaves nothing behind."""
    layer = Layer(url(tmp_path))
    worker = layer.worker(HERE)
    task = asyncio.get_running_loop().create_task(worker.run())
    await until(lambda: rows(tmp_path, "SELECT id FROM worker"))
    await layer.aclose()
    await asyncio.wait_for(task, 5)
    assert rows(tmp_path, "SELECT id FROM worker") == []


async def test_a_second_worker_of_a_layer_is_refused(tmp_path: Path) -> None:
    """One layer is one worker: a second one at work is an error that says what to do."""
    async with Layer(url(tmp_path)) as layer, layer.worker(HERE):
        with pytest.raises(RuntimeError, match="at work already: stop it first"):
            await layer.worker(HERE).run()


async def test_a_worker_can_be_started_again(tmp_path: Path) -> None:
    """After a stop another one of the same layer takes runs."""
    async with Layer(url(tmp_path)) as layer:
        for n in range(2):
            async with layer.worker(HERE):
                await layer.start(w_plain(n=n), client="acme", run_id=f"r{n}")
                await until(lambda n=n: status(tmp_path, f"r{n}") == "done")


async def test_a_stopped_worker_does_not_pretend_to_work(tmp_path: Path) -> None:
    """A worker that was stopped takes nothing any more: using it again is an error that says what to do."""
    async with Layer(url(tmp_path)) as layer:
        async with (worker := layer.worker(HERE)):
            pass
        with pytest.raises(RuntimeError, match=r"was stopped: layer\.worker\(…\) makes another"):
            async with worker:
                pass
        async with layer.worker(HERE):  # the refusal has taken nothing away
            await layer.start(w_plain(n=1), client="acme", run_id="r")
            await until(lambda: status(tmp_path, "r") == "done")


async def test_a_stop_that_comes_before_the_start_counts(tmp_path: Path) -> None:
    """Told to stop before it began, it ends at once."""
    async with Layer(url(tmp_path)) as layer:
        worker = layer.worker(HERE)
        worker.stop()
        await asyncio.wait_for(worker.run(), 5)


async def test_rows_of_workers_nobody_heard_of_for_long_go_away(tmp_path: Path) -> None:
    """Workers die on machines that never come back: their rows are dropped, unless something names them, or it is lately."""
    day_us, now = 86_400_000_000, time.time_ns() // 1000
    async with Layer(url(tmp_path)) as layer:
        await layer.start(w_asks(), client="acme", run_id="r")
        for name, ago_us in {"w_old": 40 * day_us, "w_owner": 40 * day_us, "w_lately": day_us}.items():
            execute(
                tmp_path, "INSERT INTO worker (id, host, boot, pid, started, beat_us) VALUES (?, 'pod', 'b', 1, '1', ?)", name,
                now - ago_us,
            )  # fmt: skip
        execute(tmp_path, "UPDATE run SET status = 'running', workflow = 'elsewhere', owner = 'w_owner' WHERE id = 'r'")
        async with layer.worker(HERE) as worker:
            known = {w["id"] for w in rows(tmp_path, "SELECT id FROM worker")}
        assert known == {"w_owner", "w_lately", worker.id}


async def test_the_row_of_a_restored_backup_is_written_again(tmp_path: Path) -> None:
    """A worker whose row is gone registers anew with its next beat, with what it can execute."""
    async with Layer(url(tmp_path)) as layer, layer.worker(HERE) as worker:
        before = rows(tmp_path, "SELECT id, modules FROM worker")
        execute(tmp_path, "DELETE FROM worker")
        await until(lambda: rows(tmp_path, "SELECT id, modules FROM worker"))
        after = rows(tmp_path, "SELECT id, modules FROM worker")
        assert [row["id"] for row in after] == [worker.id]
        assert after[0]["modules"].count('"since_us"') == before[0]["modules"].count('"since_us"') > 5


async def test_a_stray_is_given_back_and_finished(tmp_path: Path) -> None:
    """A run that a worker owns by name only (its answer was lost) is released by the heartbeat and taken again."""
    async with Layer(url(tmp_path)) as layer, layer.worker(HERE) as worker:
        await layer.start(w_plain(n=7), client="paused", run_id="r")
        await until(lambda: status(tmp_path, "r") == "done")
        execute(
            tmp_path, "UPDATE run SET status = 'running', ended_us = NULL, value = NULL, owner = ?, fence = fence + 1", worker.id
        )
        await until(lambda: status(tmp_path, "r") == "done")
        assert (await layer.resume("r")).value == 7


class Away:
    """Makes a store refuse everything, as one does that cannot be reached."""

    def __init__(self, layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away = False
        for name in ("read", "write"):
            monkeypatch.setattr(layer.store, name, self._wrapped(getattr(layer.store, name), layer.url))

    def _wrapped(self, real: Callable[..., Any], where: str) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.away:
                raise StoreUnavailable(where, "it cannot be reached")
            return await real(*args, **kwargs)

        return call


async def test_it_waits_for_a_store_that_is_away_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store is away, then back: the worker lives, says each of both once, and goes on."""
    monkeypatch.setattr(embedded, "AWAY_S", 0.05)
    caplog.set_level(logging.WARNING, "stepseven.worker")
    async with Layer(url(tmp_path)) as layer, Layer(url(tmp_path)) as other:
        away = Away(layer, monkeypatch)
        async with layer.worker(HERE):
            away.away = True
            await until(lambda: "goes on when the store is back" in caplog.text)
            await other.start(w_plain(n=1), client="acme", run_id="r")
            await asyncio.to_thread(other.store.read_now, lambda tx: tx.all(tx.sql.workers, {"now": 0}))
            away.away = False
            await until(lambda: status(tmp_path, "r") == "done")
    said = [r.message for r in caplog.records if r.name == "stepseven.worker"]
    assert len(said) == 2
    assert "goes on when the store is back" in said[0]
    assert said[1].endswith("the store is back")


async def test_a_stop_while_the_store_is_away_asks_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each call to a store that is away costs its whole patience: after the first that failed nothing else is tried at a stop."""
    caplog.set_level(logging.WARNING, "stepseven.worker")
    asked: list[str] = []

    def refuses(*_: object, **__: object) -> None:
        asked.append("once")
        raise StoreUnavailable(url(tmp_path), "it cannot be reached")

    layer = Layer(url(tmp_path))
    Away(layer, monkeypatch).away = True
    worker = layer.worker(HERE)
    async with worker:
        monkeypatch.setattr(layer.services.worker, "beat", lambda **_: None)  # its own time is no part of this
        for name in ("write_now", "read_now"):
            monkeypatch.setattr(layer.store, name, refuses)
    await layer.aclose()
    assert asked == ["once"]
    assert "stops while the store is away" in caplog.text
    assert worker.stranded


@pytest.mark.slow
async def test_ten_thousand_parked_runs_cost_next_to_nothing(tmp_path: Path) -> None:
    """Idle, with 10,000 runs that wait for people and timers: under one percent of a core."""
    async with Layer(url(tmp_path)) as layer:
        await layer.start(w_asks(), client="acme", run_id="r")
        if kind() == "sqlite":
            numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)"
        else:
            numbers = "WITH n(i) AS (SELECT generate_series(1, 10000))"
        execute(
            tmp_path,
            f"""{numbers} INSERT INTO run (id, client_id, workflow, status, waiting_for, inputs, wake_us,
            created_us, updated_us)
            SELECT 'r' || i, 'acme', 'w_asks', 'waiting', 'person', '{{}}', 4000000000000000 + i, 1, 1 FROM n""",
        )
        async with layer.worker(HERE) as worker:
            await until(lambda: status(tmp_path, "r") == "waiting" and worker._pause_s == embedded.MOST_S)
            before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
            await asyncio.sleep(6)
            after, seconds = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - began
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert used / seconds < 0.01


# -- which workflows ------------------------------------------------------------------------------------------------------------


async def test_modules_are_named_or_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is imported, a module is taken as it is, none means all; what a workflow can start comes with it."""
    async with Layer(url(tmp_path)) as layer:
        assert "w_plain" in layer.worker(HERE).workflows
        assert "paid" in layer.worker("tests.workers.flows").workflows
        assert "w_plain" not in layer.worker("tests.workers.flows").workflows
        assert {"w_plain", "paid", "stepseven.undo"} <= set(layer.worker().workflows)
        child, parent = ModuleType("t_child"), ModuleType("t_parent")
        for name, made in (("t_child", child), ("t_parent", parent)):
            monkeypatch.setitem(sys.modules, name, made)
        exec("from stepseven import Run, workflow\n@workflow\nasync def t_below(run: Run) -> None: ...", vars(child))
        exec(
            "import t_child\nfrom stepseven import Run, workflow\n@workflow\nasync def t_above(run: Run) -> None: ...",
            vars(parent),
        )
        assert set(layer.worker("t_parent").workflows) == {"t_above", "t_below", "stepseven.undo"}


@pytest.mark.parametrize(
    "module,told",
    [
        ("no_such_module", "there is no module no_such_module"),
        ("json", "module json has no workflow"),
        ("t_broken", "module t_broken breaks off while it is imported (ZeroDivisionError: division by zero): mend it"),
        ("t_needs", "module t_needs needs no_such_library, which is not installed here"),
    ],
)
async def test_a_module_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, told: str
) -> None:
    """One sentence says which module and why, before anything is taken."""
    (tmp_path / "t_broken.py").write_text("1 / 0")
    (tmp_path / "t_needs.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(str(tmp_path))
    async with Layer(url(tmp_path)) as layer:
        with pytest.raises(NothingToRun) as caught:
            layer.worker(module)
        assert told in str(caught.value)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "8"])
async def test_a_concurrency_that_is_none_is_refused(tmp_path: Path, wrong: Any) -> None:
    """At once, with what it takes."""
    async with Layer(url(tmp_path)) as layer:
        with pytest.raises(ValueError, match="how many runs at once, 1 or more"):
            layer.worker(HERE, concurrency=wrong)
        with pytest.raises(TypeError, match="takes modules or their names"):
            layer.worker(5)  # type: ignore[arg-type]


def test_a_worker_is_a_public_name() -> None:
    """`stepseven.Worker` is what `layer.worker` gives."""
    assert Worker is embedded.Worker
