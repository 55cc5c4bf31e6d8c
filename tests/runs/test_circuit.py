"""A resource that is down: steps of it wait without burning attempts, one run at a time looks, and all go on when it answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

from stepseven import Retryable, Run, step, testing, workflow
from stepseven.testing import Clock, TestLayer
from tests.servers import databases
from tests.workers.crew import until


class World:
    """What api.x says, and how often it was asked, by whom."""

    def __init__(self) -> None:
        self.down = True
        self.calls: Counter[str] = Counter()
        self.other = 0

    def ask(self, who: str) -> str:
        """One request."""
        self.calls[who] += 1
        if self.down:
            raise ConnectionRefusedError(111, "no")
        return who


def reads(world: World, name: str, **how: Any) -> Any:
    """A workflow of one step that needs api.x."""

    @step(name=f"{name}_pull", **({"resource": "api.x"} | how))
    async def pull(who: str) -> str:
        return world.ask(who)

    @workflow(name=name)
    async def body(run: Run, who: str) -> str:
        return await pull(who)

    return body


def resource(path: Path, name: str = "api.x") -> Any:
    """Its row."""
    found = databases.rows(path, "SELECT * FROM resource WHERE name = ?", name)
    return found[0] if found else None


def stands(path: Path) -> Counter[str]:
    """How the runs stand: status, or what they wait for."""
    return Counter(r["waiting_for"] or r["status"] for r in databases.rows(path, "SELECT status, waiting_for FROM run"))


async def passes(layer: TestLayer, seconds: float, *others: TestLayer) -> None:
    """Time passes, second by second, while workers are at work."""
    for _ in range(round(seconds)):
        layer.clock.advance(1)
        for each in (layer, *others):
            each.services.stir()
        await asyncio.sleep(0.004)


async def waits(layer: TestLayer, path: Path, runs: int) -> None:
    """Wait until all of them wait for it: the first ones have a second of their own before their next try."""
    await until(lambda: resource(path) is not None and resource(path)["state"] == "open")
    await passes(layer, 3)
    await until(lambda: stands(path) == {"circuit": runs})


async def still(path: Path) -> None:
    """Wait until nothing is under way."""
    await until(lambda: not stands(path).keys() & {"queued", "running"})


async def test_five_failures_of_two_runs_open_it_and_nobody_is_asked(tmp_path: Path) -> None:
    """Twelve runs meet a dead resource: they wait, no attempt of theirs is used up, and when it answers all end, each once."""
    world = World()
    flow = reads(world, "circuit_opens")
    async with testing.layer(databases.url(tmp_path), jumps=False) as layer:
        for n in range(12):
            await layer.start(flow(who=f"c{n}"), client=f"c{n}", run_id=f"r{n}")
        async with layer.worker(concurrency=6):
            await waits(layer, tmp_path, 12)
            assert resource(tmp_path)["state"] == "open"
            asked = sum(world.calls.values())
            assert asked <= 6  # whoever was at it when it opened; the others did not even try
            kinds = Counter(r["outcome"] for r in databases.rows(tmp_path, "SELECT outcome FROM attempt"))
            assert kinds == {"failed": 5, "deferred": asked - 5}
            await passes(layer, 90)
            await still(tmp_path)
            looks = sum(world.calls.values()) - asked
            assert 2 <= looks <= 5  # after 10, 20 and 40 s, a fifth more or less
            assert await layer.questions() == []
            world.down = False
            await passes(layer, 120)
            await until(lambda: stands(tmp_path) == {"done": 12})
        assert resource(tmp_path)["state"] == "closed"
        assert databases.rows(tmp_path, "SELECT count(*) AS n FROM wait") == [{"n": 0}]
        assert databases.rows(tmp_path, "SELECT count(*) AS n FROM question") == [{"n": 0}]


async def test_failures_of_one_run_or_of_more_than_a_minute_do_not_open_it(tmp_path: Path) -> None:
    """One run that fails often, and runs that fail now and then, keep what they had: tries, and a question at their end."""
    world = World()
    flow = reads(world, "circuit_stays_closed", attempts=7)
    async with testing.layer(databases.url(tmp_path)) as layer:
        alone = await layer.run(flow(who="a"), client="acme", run_id="a")
        assert alone.waiting_for in ("person", "timer")
        assert resource(tmp_path)["state"] == "closed"
        assert len(json.loads(resource(tmp_path)["failures"])) >= 5


async def test_a_caller_waits_for_it_by_itself(tmp_path: Path) -> None:
    """`layer.run` without any worker waits as for a timer: in the process up to 30 s, then the run is parked."""
    world = World()
    flow = reads(world, "circuit_waited_for")
    async with testing.layer(databases.url(tmp_path)) as layer:
        runs = [asyncio.create_task(layer.run(flow(who=f"c{n}"), client="acme", run_id=f"r{n}")) for n in range(6)]
        await until(lambda: sum(world.calls.values()) >= 7)  # it was looked at meanwhile
        world.down = False
        outcomes = await asyncio.gather(*runs)
        assert [o.value for o in outcomes] == [f"c{n}" for n in range(6)]
        assert sum(world.calls.values()) == 13  # six that failed, one look in vain, and each run's own


async def test_a_long_outage_parks_what_a_caller_runs(tmp_path: Path) -> None:
    """The next look is more than 30 s away: the caller gets its outcome, and any resume after that goes on."""
    world = World()
    flow = reads(world, "circuit_parked")
    async with testing.layer(databases.url(tmp_path)) as layer:
        outcomes = await asyncio.gather(*(layer.run(flow(who=f"c{n}"), client="acme", run_id=f"r{n}") for n in range(6)))
        assert {o.waiting_for for o in outcomes} == {"circuit"}
        assert 8 <= sum(world.calls.values()) <= 9  # looked at two or three times, by one run each
        assert (await layer.resume("r0")).waiting_for == "circuit"
        world.down = False
        layer.clock.advance(120)
        assert (await layer.resume("r0")).value == "c0"
        assert [(await layer.resume(f"r{n}")).value for n in range(1, 6)] == [f"c{n}" for n in range(1, 6)]


async def test_another_way_is_taken_at_once(tmp_path: Path) -> None:
    """While api.x is down a run goes by an approach that needs something else, without a try at the dead one."""
    world = World()

    @step(name="circuit_way_pull", resource="api.x")
    async def pull(who: str) -> str:
        return world.ask(who)

    @pull.approach("cache", resource="cache")
    async def cached(who: str) -> str:
        world.other += 1
        return f"cached {who}"

    @workflow(name="circuit_way")
    async def flow(run: Run, who: str) -> str:
        return await pull(who)

    dead = reads(world, "circuit_way_dead")
    async with testing.layer(databases.url(tmp_path), jumps=False) as layer:
        for n in range(6):
            await layer.start(dead(who=f"d{n}"), client="acme", run_id=f"d{n}")
        async with layer.worker(concurrency=6):
            await waits(layer, tmp_path, 6)
        outcome = await layer.run(flow(who="acme"), client="acme", run_id="w")
        assert (outcome.value, world.other, world.calls["acme"]) == ("cached acme", 1, 0)


async def test_after_half_an_hour_a_person_is_asked_and_an_answer_of_the_other_side_takes_it_back(tmp_path: Path) -> None:
    """One incident for all that wait; it is looked on meanwhile; when it answers the questions go, and the runs end."""
    world = World()
    flow = reads(world, "circuit_asks")
    async with testing.layer(databases.url(tmp_path), jumps=False) as layer:
        for n in range(8):
            await layer.start(flow(who=f"c{n}"), client=f"c{n}", run_id=f"r{n}")
        async with layer.worker(concurrency=8):
            await waits(layer, tmp_path, 8)
            for _ in range(32):
                layer.clock.advance(60)
                layer.services.stir()
                await asyncio.sleep(0.02)
                await still(tmp_path)
            await until(lambda: stands(tmp_path) == {"person": 8})
            questions = await layer.questions()
            assert len(questions) == 8
            assert len({r["incident_id"] for r in databases.rows(tmp_path, "SELECT incident_id FROM question")}) == 1
            before = sum(world.calls.values())
            layer.clock.advance(400)
            layer.services.stir()
            await until(lambda: sum(world.calls.values()) > before)  # it is looked on although a person is asked
            await until(lambda: stands(tmp_path) == {"person": 8})
            world.down = False
            await passes(layer, 30)
            layer.clock.advance(400)
            await passes(layer, 20)
            await until(lambda: stands(tmp_path) == {"done": 8})
            assert Counter(r["status"] for r in databases.rows(tmp_path, "SELECT status FROM question")) == {"withdrawn": 8}


async def test_a_run_that_waits_can_be_cancelled(tmp_path: Path) -> None:
    """`layer.cancel` ends it at once, and it waits for nothing any more."""
    world = World()
    flow = reads(world, "circuit_cancelled")
    async with testing.layer(databases.url(tmp_path), jumps=False) as layer:
        for n in range(6):
            await layer.start(flow(who=f"c{n}"), client="acme", run_id=f"r{n}")
        async with layer.worker(concurrency=6):
            await waits(layer, tmp_path, 6)
            assert await layer.cancel("r0", reason="enough") == "cancelled"
            assert databases.rows(tmp_path, "SELECT count(*) AS n FROM wait") == [{"n": 5}]


async def test_the_trial_whose_worker_died_is_given_up_after_its_lease(tmp_path: Path) -> None:
    """A trial that says nothing holds the others up for a minute, no longer."""
    world = World()
    flow = reads(world, "circuit_lease")
    clock = Clock(jumps=False)
    async with testing.layer(databases.url(tmp_path), clock=clock) as layer:
        for n in range(6):
            await layer.start(flow(who=f"c{n}"), client="acme", run_id=f"r{n}")
        async with layer.worker(concurrency=6):
            await waits(layer, tmp_path, 6)
            world.down = False
            databases.execute(
                tmp_path, "UPDATE resource SET state = 'trial', trial_run_no = 999, trial_us = ?, looks = 1", clock.now_us
            )
            before = sum(world.calls.values())
            await passes(layer, 50)
            assert sum(world.calls.values()) == before
            await passes(layer, 40)
            await until(lambda: stands(tmp_path) == {"done": 6})


async def test_a_write_that_waits_is_neither_claimed_nor_sent(tmp_path: Path) -> None:
    """While it is down nothing of a write is on record; what was claimed before stays; at the end each happened once."""
    world = World()
    done: Counter[str] = Counter()

    @step(name="circuit_write_post", effect="write", key="who", resource="api.x")
    async def post(who: str) -> str:
        world.ask(who)
        done[who] += 1
        return f"posted {who}"

    @workflow(name="circuit_write")
    async def flow(run: Run, who: str) -> str:
        return await post(who)

    async with testing.layer(databases.url(tmp_path), jumps=False) as layer:
        for n in range(10):
            await layer.start(flow(who=f"c{n}"), client="acme", run_id=f"r{n}")
        async with layer.worker(concurrency=5):
            await waits(layer, tmp_path, 10)
            claimed = databases.rows(tmp_path, "SELECT state FROM effect")
            assert len(claimed) <= 6
            assert {r["state"] for r in claimed} == {"refused"}
            world.down = False
            await passes(layer, 40)
            await until(lambda: stands(tmp_path) == {"done": 10})
    assert done == {f"c{n}": 1 for n in range(10)}


async def test_a_failure_by_hand_without_a_resource_opens_nothing(tmp_path: Path) -> None:
    """What names no resource and no host speaks against none."""

    @step(name="circuit_by_hand_step")
    async def fails() -> None:
        raise Retryable("not today")

    @workflow(name="circuit_by_hand")
    async def flow(run: Run) -> None:
        await fails()

    async with testing.layer(databases.url(tmp_path)) as layer:
        await asyncio.gather(*(layer.run(flow(), client="acme", run_id=f"r{n}") for n in range(6)))
        assert databases.rows(tmp_path, "SELECT * FROM resource") == []


async def test_why_and_plan_say_what_is_waited_for(tmp_path: Path) -> None:
    """`why` names what is down, since when, how often it is looked at and who else waits; `plan` says that the step waits."""
    world = World()
    flow = reads(world, "circuit_told")
    async with testing.layer(databases.url(tmp_path), jumps=False) as layer:
        for n in range(6):
            await layer.start(flow(who=f"c{n}"), client="acme", run_id=f"r{n}")
        async with layer.worker(concurrency=6):
            await waits(layer, tmp_path, 6)
        why = await layer.why("r0")
        assert why.startswith("Run r0 waits until api.x answers again, which has not answered since 2026-01-05T09:00:00Z: ")
        assert "I look every 10 s; 5 other runs wait with it" in why
        plan = await layer.plan("r0")
        assert any(line.why.startswith("waits until api.x answers again; ") for line in plan.steps)
        world.down = False
        layer.clock.advance(60)
        assert (await layer.resume("r0")).value == "c0"
        assert "waits until" not in str(await layer.plan("r1"))
