"""Recoveries that are cut off, or meet each other: what was chosen is obeyed by whoever goes on, and nothing happens twice."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepseven import InvalidChoice, Layer, Outcome, Run, attempt, step, testing, workflow
from stepseven.testing import Clock
from tests.runs import resumed
from tests.runs.deaths import every_death, living
from tests.runs.outside import Mood, Outside
from tests.runs.tools import ROOT
from tests.runs.worldly import outside
from tests.servers import databases

pytestmark = pytest.mark.slow  # on PostgreSQL with `make soak`

ran: list[str] = []


@step
async def look(n: int) -> int:
    """One of many."""
    ran.append(f"look {n}")
    return n


@step
async def billing(n: int) -> int:
    """Not allowed."""
    ran.append("billing")
    raise resumed.Forbidden


@billing.approach("contract amount", ask=True)
async def contract(n: int) -> int:
    """Known from the contract."""
    ran.append("contract")
    return n * 100


@step
async def price(n: int) -> int:
    """An item's, not allowed."""
    ran.append(f"price {n}")
    raise resumed.Forbidden


@step(effect="write", key="amount")
async def post(amount: int) -> str:
    """The effect."""
    ran.append(f"post {amount}")
    return f"posted {amount}"


@post.probe
async def posted(amount: int) -> str | None:
    """Whether it is there."""
    return f"posted {amount}" if f"post {amount}" in ran else None


@step(effect="write", key="amount")
async def mail(amount: int) -> str:
    """The other effect; a person does it."""
    ran.append(f"mail {amount}")
    return "mailed"


@workflow
async def chosen_everything(run: Run) -> str:
    """Everything that can be chosen about."""
    a = await look(1)
    b = await billing(a)
    prices = await run.map(price, [1, 2])
    told = await post(b)
    return f"{told} {prices} {await mail(b)}"


CHOSEN: dict[str, Any] = {
    "approach": {"billing": "contract amount"}, "skip": {"price": 5, "mail": "by hand"}, "rerun": ["look"], "by": "ann",
}  # fmt: skip


async def _start(layer: Layer) -> Outcome[Any]:
    return await layer.run(chosen_everything(), client="acme", run_id="r1")


async def _resume(layer: Layer) -> Outcome[Any]:
    return await layer.resume("r1")


async def _choose(layer: Layer) -> Outcome[Any]:
    return await layer.resume("r1", **CHOSEN)


def _chosen(state: Path) -> list[dict[str, Any]]:
    return databases.rows(state, "SELECT * FROM recovery WHERE chosen IS NOT NULL")


@pytest.mark.timeout(300)
def test_a_death_at_any_write_of_a_recovery_changes_nothing(tmp_path: Path) -> None:
    """Dead at any write: with the choice on record a plain resume ends as if nothing had been; without it nothing was changed.

    What was made anew is made once more only if its record had not been written; no effect happens twice.
    """
    before = after = 0

    def prepare(state: Path) -> None:
        living(state, _start)
        ran.clear()

    for state in every_death(tmp_path, _choose, prepare):
        if not _chosen(state):
            before += 1
            assert ran == []
            assert living(state, _resume).status == "waiting"
            assert ran == []
            continue
        after += 1
        first = living(state, _resume)
        assert first.value == "posted 100 [5, 5] by hand", (state, first)
        assert ran.count("post 100") == 1
        assert 1 <= ran.count("look 1") <= 2
        assert 1 <= ran.count("contract") <= 2
        assert not {"billing", "mail 100", "price 1"} & set(ran)
        ran.clear()
        assert living(state, _resume).value == first.value
        assert ran == []
        assert len(_chosen(state)) == 1
        looked = databases.rows(state, "SELECT * FROM step WHERE name = 'look' ORDER BY id")
        assert [r["generation"] for r in looked] == [1, 2]
        (row,) = _chosen(state)
        assert row["by"] == "ann"
        if len(databases.rows(state, "SELECT * FROM recovery")) == 1:  # else it had ended before the plain resume
            told = json.loads(row["result"])
            assert told["ran"] == {"look": 1, "billing": 1, "post": 1}
            assert told["asked"] == 0
    assert before >= 1
    assert after >= 6


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_same_choice_after_a_death_goes_on_with_the_first(tmp_path: Path) -> None:
    """Who chooses the same again after a crash joins the recovery under way: what was made anew is not made anew again."""

    def prepare(state: Path) -> None:
        living(state, _start)
        ran.clear()

    for state in every_death(tmp_path, _choose, prepare):
        (run,) = databases.rows(state, "SELECT * FROM run")
        if run["status"] == "done":
            continue
        made = [r for r in databases.rows(state, "SELECT * FROM step WHERE name = 'look'") if r["generation"] == 2]
        ran.clear()
        assert living(state, _choose).status == "done"
        assert ran.count("look 1") == (0 if made else 1)
        assert len(_chosen(state)) == 1


@pytest.mark.timeout(300)
def test_killed_in_a_recovery(tmp_path: Path) -> None:
    """SIGKILL of a process in the middle of what it chose: a plain resume obeys the choice, each effect once by outside count."""

    async def first(layer: Layer) -> Outcome[Any]:
        return await layer.run(resumed.resumed(url=world.url), client="acme", run_id="r")

    async def again(layer: Layer) -> Outcome[Any]:
        return await layer.resume("r")

    for held in ("tickets", "contract", "post"):
        folder = tmp_path / held
        folder.mkdir()
        with outside() as world:
            assert living(folder, first).status == "waiting"
            assert world.counts() == {"tickets": 1, "billing": 1}
            _kill_at(world, folder, held)
            assert living(folder, again).value == "posted 48000"
            counts = world.counts()
        assert counts["billing"] == 1
        assert counts["post"] == 1
        assert counts["contract"] == (2 if held == "contract" else 1)
        assert counts["tickets"] == (3 if held == "tickets" else 2)
        databases.done(folder)


def _kill_at(world: Outside, folder: Path, held: str) -> None:
    """Let another process resume with the choice, and kill it while the outside does what is *held*."""
    order = ["tickets", "contract", "post"]
    world.moods = [*[Mood()] * order.index(held), Mood(hold=True)]
    world.arrived.clear()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.runs.resumed", databases.url(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    try:
        while held not in world.counts() or world.counts()[held] <= (1 if held == "tickets" else 0):
            assert process.poll() is None, process.communicate()
            world.arrived.wait(0.05)
    finally:
        process.kill()
        process.communicate(timeout=10)
        world.let_go()


# -- two at once ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False])
async def test_two_choices_at_once_in_one_process_apply_in_order(*, same: bool) -> None:
    """Two resumes with choices at once: the second waits for the first, and finds what it left. Nothing happens twice."""
    ran.clear()
    async with testing.layer() as layer:
        await _start(layer)
        ran.clear()
        second: dict[str, Any] = CHOSEN if same else {"skip": {"billing": 7}, "by": "ben"}
        found = await asyncio.gather(
            layer.resume("r1", approach={"billing": "contract amount"}, by="ann"), layer.resume("r1", **second),
            return_exceptions=True,
        )  # fmt: skip
        outcome = await layer.resume("r1")
        assert ran.count("contract") == 1
        assert "billing" not in ran
        # The first has finished billing: who comes second is told so.
        assert [type(f) for f in found] == [Outcome, InvalidChoice]
        assert "billing has its result" in str(found[1])
        assert outcome.status == "waiting"
        (row,) = layer.store.read_now(lambda tx: tx.all(tx.sql.recoveries_of_run, {"run_no": 1}))[:1]
        assert row["by"] == "ann"


async def test_two_different_choices_at_once_both_hold() -> None:
    """Choices about different steps, made at once: both are obeyed, one after the other."""
    ran.clear()
    async with testing.layer() as layer:
        await _start(layer)
        await asyncio.gather(
            layer.resume("r1", approach={"billing": "contract amount"}), layer.resume("r1", skip={"price": None, "mail": "x"})
        )
        outcome = await layer.resume("r1")
    assert outcome.value == "posted 100 [None, None] x"
    assert (ran.count("contract"), ran.count("post 100"), ran.count("mail 100")) == (1, 1, 0)


async def test_a_choice_for_a_run_that_is_executed_elsewhere_is_refused(tmp_path: Path) -> None:
    """While another worker executes the run, a choice is refused and says so: it is neither lost nor obeyed half-way."""
    begun, go = asyncio.Event(), asyncio.Event()

    @step
    async def slow() -> int:
        begun.set()
        await go.wait()
        return 1

    @workflow(name="elsewhere")
    async def job(run: Run) -> int:
        return await slow()

    url, clock = databases.url(tmp_path), Clock()
    async with testing.layer(url, clock=clock) as one, testing.layer(url, clock=clock, seed=1) as two:
        running = asyncio.create_task(one.run(job(), client="acme", run_id="r1"))
        await begun.wait()
        with pytest.raises(InvalidChoice, match="executed elsewhere"):
            await two.resume("r1", skip={"slow": 2})
        go.set()
        assert (await running).value == 1
    assert databases.rows(tmp_path, "SELECT * FROM recovery") == []


async def test_a_choice_waits_for_the_run_in_this_process() -> None:
    """While this process executes the run, a choice waits until it has parked, and is obeyed then."""
    begun, go = asyncio.Event(), asyncio.Event()
    tried: list[str] = []

    @step
    async def slow() -> int:
        begun.set()
        await go.wait()
        return 1

    @step
    async def bill() -> int:
        tried.append(attempt().approach)
        raise resumed.Forbidden

    @workflow(name="here")
    async def job(run: Run) -> int:
        return await slow() + await bill()

    async with testing.layer() as layer:
        running = asyncio.create_task(layer.run(job(), client="acme", run_id="r1"))
        await begun.wait()
        choosing = asyncio.create_task(layer.resume("r1", skip={"bill": 4}))
        await asyncio.sleep(0)
        go.set()
        await running
        assert (await choosing).value == 5
    assert tried == ["as written"]


async def test_a_run_that_is_given_back_goes_on_with_its_recovery(tmp_path: Path) -> None:
    """A process that closes in the middle of a recovery leaves it open; the next one obeys it, as the recovery it was."""
    begun = asyncio.Event()
    tried: list[str] = []

    @step
    async def bill() -> int:
        tried.append(attempt().approach)
        raise resumed.Forbidden

    @bill.approach("contract", ask=True)
    async def contract_() -> int:
        tried.append(attempt().approach)
        if len(tried) == 2:
            begun.set()
            await asyncio.Event().wait()
        return 3

    @workflow(name="given_back")
    async def job(run: Run) -> int:
        return await bill()

    url, clock = databases.url(tmp_path), Clock()
    async with testing.layer(url, clock=clock) as layer:
        await layer.run(job(), client="acme", run_id="r1")
        resuming = asyncio.create_task(layer.resume("r1", approach={"bill": "contract"}, by="ann"))
        await begun.wait()
    assert (await resuming).status != "done"
    assert [r["ended_us"] for r in databases.rows(tmp_path, "SELECT * FROM recovery")] == [None]
    async with testing.layer(url, clock=clock, seed=1) as layer:
        assert (await layer.run(job(), client="acme", run_id="r1")).value == 3
    (row,) = databases.rows(tmp_path, "SELECT * FROM recovery")
    assert row["ended_us"] is not None
    assert json.loads(row["result"])["ran"] == {"bill": 1}
    assert tried == ["as written", "contract", "contract"]


async def test_a_cancelled_run_leaves_no_recovery_open(tmp_path: Path) -> None:
    """A run whose worker died in a recovery and that is cancelled then: its recovery has ended, too."""

    def prepare(state: Path) -> None:
        living(state, _start)

    async def cancel(layer: Layer) -> str:
        return str(await layer.cancel("r1", reason="enough", by="ann"))

    def deaths() -> None:
        for at, state in enumerate(every_death(tmp_path, _choose, prepare)):
            if at == 2:
                assert living(state, cancel) in ("cancelled", "cancelling")
                living(state, _resume)
                assert [r for r in databases.rows(state, "SELECT * FROM recovery") if r["ended_us"] is None] == []
                return

    await asyncio.to_thread(deaths)
