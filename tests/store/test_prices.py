"""What steps cost in earlier runs, as the store has it: right to the cent on every database, and never much to read."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from stepseven import Cost, Fatal, Layer, Run, attempt, step, testing, workflow
from stepseven.decide.plan import Price
from stepseven.testing import TestLayer
from stepseven.transitions import prices as looked
from stepseven.transitions import runs
from tests.servers import databases

_clock: list[Any] = []


@step(cost=Cost(usd=0.25))
async def draft(n: int) -> int:
    """Takes *n* seconds, costs what it declares."""
    _clock[-1].advance(n)
    return n


@step
async def ask_model(n: int) -> int:
    """Reports what it has cost; the first try fails."""
    attempt().spend(usd=n / 10, tokens=5)
    _clock[-1].advance(1)
    if attempt().number == 1:
        raise TimeoutError("no answer")
    return n


@step
async def look(n: int) -> int:
    """Free."""
    return n


@step(effect="write", key="n", cost=Cost(usd=0.5))
async def post(n: int) -> str:
    """A write: what it has cost stands in its try."""
    return f"R-{n}"


@workflow(name="prices.small")
async def small(run: Run, n: int) -> int:
    """Everything once, the map three times."""
    await draft(n)
    await run.map(look, [1, 2, 3])
    await post(n)
    return await ask_model(n)


@workflow(name="prices.looks")
async def looks(run: Run, n: int) -> None:
    """So many looks."""
    await run.map(look, range(n))


@workflow(name="prices.parent")
async def parent(run: Run, n: int) -> int:
    """Starts another."""
    return await run.start(small(n=n))


@workflow(name="prices.waits")
async def waits(run: Run) -> None:
    """Never ends by itself."""
    await look(1)
    await run.ask("Go on?")


@workflow(name="prices.fails")
async def fails(run: Run) -> None:
    """Ends badly."""
    await draft(3)
    raise Fatal("over")


@pytest.fixture
async def layer(tmp_path: Path) -> Any:
    """A store on the session's database."""
    async with testing.layer(databases.url(tmp_path)) as made:
        _clock.append(made.clock)
        yield made


def prices(layer: Layer, name: str, names: Collection[str] | None = None, **more: Any) -> dict[str, Price]:
    """Look."""
    return layer.store.read_now(lambda tx: looked.prices(tx, name, names, **more))


async def test_prices_of_earlier_runs(layer: TestLayer) -> None:
    """Cost with failed tries, time of work, how often and in how many runs; a write's cost is found in its try."""
    for n in (1, 2, 3):
        (await layer.run(small(n=n), client="acme")).result()
    found = prices(layer, "prices.small")
    assert set(found) == {"draft", "look", "post", "ask_model"}
    assert (found["draft"].usd, found["draft"].seconds, found["draft"].n, found["draft"].calls) == (0.25, 2, 3, 1)
    assert (found["draft"].seconds_p90, found["draft"].usd_seen) == (3, 0.25)
    assert (found["look"].usd, found["look"].calls, found["look"].calls_most, found["look"].n) == (0, 3, 3, 3)
    assert found["post"].usd == 0.5
    assert (found["ask_model"].usd, found["ask_model"].usd_seen, found["ask_model"].seconds) == (0.4, 0.6, 2)


async def test_tokens_count_with_those_of_failed_tries(layer: TestLayer) -> None:
    """Two tries of five tokens each."""
    (await layer.run(small(n=1), client="acme")).result()
    found = prices(layer, "prices.small")
    assert (found["ask_model"].tokens, found["ask_model"].tokens_p90, found["draft"].tokens) == (10, 10, 0)


async def test_a_runs_own_calls_tell_where_no_other_run_does(layer: TestLayer) -> None:
    """Of a first run: what its steps have cost so far."""
    run_id = (await layer.run(waits(), client="acme")).run_id
    row = layer.store.read_now(lambda tx: runs.known(tx, run_id))
    assert prices(layer, "prices.waits") == {}
    found = prices(layer, "prices.waits", own=row)
    assert (found["look"].usd, found["look"].here, found["look"].calls) == (0, True, None)


async def test_only_the_steps_that_are_asked_for(layer: TestLayer) -> None:
    """By name; what no run has is not there."""
    (await layer.run(small(n=1), client="acme")).result()
    assert set(prices(layer, "prices.small", {"draft", "nothing"})) == {"draft"}
    assert prices(layer, "prices.other") == {}


async def test_only_runs_that_have_ended_and_are_no_copies(layer: TestLayer) -> None:
    """A run that waits, and a fork with the records of another, tell nothing; a failed one tells prices."""
    await layer.run(waits(), client="acme")
    assert prices(layer, "prices.waits") == {}
    await layer.run(fails(), client="acme")
    found = prices(layer, "prices.fails")["draft"]
    assert (found.usd, found.seconds, found.calls) == (0.25, 3, None)
    run_id = (await layer.run(small(n=1), client="acme")).run_id
    fork = await layer.fork(run_id, from_step="ask_model")
    await layer.resume(fork.run_id)
    assert prices(layer, "prices.small")["draft"].n == 1


async def test_what_started_runs_cost(layer: TestLayer) -> None:
    """Under the workflow's name and under all of them; the time is that of work."""
    (await layer.run(parent(n=2), client="acme")).result()
    found = prices(layer, "prices.parent")
    assert set(found) == {"run.start", "run.start/prices.small"}
    assert found["run.start"] == found["run.start/prices.small"]
    assert found["run.start"].usd == 0.25 + 0.5 + 0.4
    assert found["run.start"].seconds == pytest.approx(4, abs=1)
    assert prices(layer, "prices.small")["draft"].n == 1


async def test_a_pruned_run_still_tells_what_it_cost(layer: TestLayer) -> None:
    """From what is kept: the cost of one call, and how many there were."""
    for n in (2, 2):
        (await layer.run(small(n=n), client="acme")).result()
    layer.clock.advance(100 * 86_400)
    before = prices(layer, "prices.small")
    assert (await layer.prune(older_than=0)).runs == 1
    after = prices(layer, "prices.small")
    assert {n: (p.usd, p.calls, p.n) for n, p in after.items()} == {n: (p.usd, p.calls, p.n) for n, p in before.items()}


async def test_a_forgotten_client_tells_nothing(layer: TestLayer) -> None:
    """Nothing of it is left to be read."""
    (await layer.run(small(n=2), client="acme")).result()
    layer.client("acme").forget(by="ann")
    assert prices(layer, "prices.small") == {}


async def test_the_newest_runs_alone_are_looked_at(layer: TestLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most so many runs, the newest, among so many of any workflow; the client's own beyond that."""
    monkeypatch.setattr(looked, "MOST_RUNS", 3)
    for n in (1, 2, 3, 4):
        (await layer.run(small(n=n), client="acme")).result()
    assert (prices(layer, "prices.small")["draft"].seconds, prices(layer, "prices.small")["draft"].n) == (3, 3)
    monkeypatch.setattr(looked, "WINDOW", 2)
    for _ in range(3):
        (await layer.run(looks(n=1), client="other")).result()
    assert prices(layer, "prices.small") == {}
    assert prices(layer, "prices.small", client_id="acme")["draft"].n == 3
    assert prices(layer, "prices.small", client_id="other") == {}


async def test_of_a_long_run_the_newest_records_are_read(layer: TestLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not more than so many of one run, nor of all together; a count is then the least, and no most is told."""
    monkeypatch.setattr(looked, "MOST_RECORDS", 5)
    (await layer.run(looks(n=20), client="acme")).result()
    found = prices(layer, "prices.looks")["look"]
    assert (found.calls, found.calls_most) == (5, None)
    for _ in range(3):
        (await layer.run(looks(n=20), client="acme")).result()
    monkeypatch.setattr(looked, "MOST_IN_ALL", 10)
    assert prices(layer, "prices.looks")["look"].n == 2


async def test_looking_reads_a_bounded_number_of_rows(layer: TestLayer) -> None:
    """However many runs the store has: two lists of runs, and two reads for each run that is looked at."""
    for n in range(35):
        (await layer.run(small(n=1), client=f"c{n}")).result()
    asked: list[str] = []

    def unit(tx: Any) -> None:
        class Counting:
            sql = tx.sql

            def one(self, statement: str, params: Any) -> Any:
                asked.append(statement)
                return tx.one(statement, params)

            def all(self, statement: str, params: Any) -> Any:
                asked.append(statement)
                return tx.all(statement, params)

        looked.prices(Counting(), "prices.small", client_id="c1")  # type: ignore[arg-type]

    layer.store.read_now(unit)
    assert len(asked) == 1 + 2 * looked.MOST_RUNS
