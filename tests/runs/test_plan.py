"""``layer.plan``: what a resume would do is seen before it does anything, and looking changes nothing.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stepseven import Cost, Fixable, Layer, Plan, Run, UnknownRun, attempt, step, workflow
from stepseven.decide.plan import Do
from stepseven.model import RunStatus
from tests.runs import tools
from tests.runs.worldly import layers

OUT: Counter[str] = Counter()
THERE: dict[str, str] = {}
BROKEN: set[str] = set()


@pytest.fixture(autouse=True)
def _anew() -> None:
    for each in (OUT, THERE, BROKEN):
        each.clear()


def lines(plan: Plan, do: Do | None = None) -> dict[str, int]:
    """Step → how many calls of it are certain, on the chosen way."""
    found: Counter[str] = Counter()
    for line in plan.steps:
        if (do is None or line.do is do) and not line.maybe:
            found[line.step] += line.count
    return dict(found)


def possible(plan: Plan) -> set[str]:
    """Steps that may run, too."""
    return {line.step for line in plan.steps if line.do is Do.RUN and line.maybe}


@step(cost=Cost(usd=0.02, seconds=2))
async def pull(c: str) -> int:
    """Costs something."""
    OUT["pull"] += 1
    return 3


@step
async def risky(n: int) -> int:
    """Fails as long as it is said so."""
    OUT["risky"] += 1
    if "risky" in BROKEN:
        raise Fixable("403 Forbidden")
    return n + 1


@step(effect="write", key="n")
async def post(n: int) -> str:
    """Has an effect that can be looked for."""
    OUT[f"post {n}"] += 1
    if f"post {n}" in BROKEN:
        raise TimeoutError("nobody hears of it")
    THERE[str(n)] = f"P{n}"
    return f"P{n}"


@post.probe
async def find(n: int) -> str | None:
    """Look."""
    OUT["looked"] += 1
    return THERE.get(str(n))


@step(effect="write", key="n")
async def blind(n: int) -> str:
    """Has an effect that nobody can look for."""
    OUT["blind"] += 1
    if "blind" in BROKEN:
        raise TimeoutError("nobody hears of it")
    return f"B{n}"


@step(effect="irreversible", key="n")
async def send(n: int) -> str:
    """Is proposed first."""
    OUT["send"] += 1
    return f"S{n}"


@workflow
async def all_in_a_row(run: Run) -> str:
    """A bit of everything, one after the other."""
    n = await pull(run.client_id)
    run.now(), run.uuid(), run.client.get("contact")
    posted = await run.map(post, list(range(n)))
    more = await risky(n)
    said = await run.ask("Go on?", options=["yes", "no"])
    sent = await send(more)
    return f"{posted} {said} {sent}"


# -- looking changes nothing ------------------------------------------------------------------------------------------------


def everything(tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    """All that is stored, but for what a worker's heartbeat says."""
    tables = ("run", "step", "attempt", "effect", "question", "fact", "recovery", "artifact", "client", "wait", "event")
    return {name: tools.rows(tmp_path, f"SELECT * FROM {name}") for name in tables}


async def test_looking_changes_nothing(tmp_path: Path) -> None:
    """No row is written, no step runs, nothing outside happens: only probes look."""
    BROKEN.add("risky")
    async with Layer(tools.url(tmp_path)) as layer:
        await layer.run(all_in_a_row(), client="acme", run_id="r")
        before, ran = everything(tmp_path), dict(OUT)
        plan = await layer.plan("r")
        assert everything(tmp_path) == before
        assert dict(OUT) == ran
        again = await layer.plan("r")
        assert (again.steps, again.paths) == (plan.steps, plan.paths)
        assert (await layer.runs())[0].status is RunStatus.WAITING


async def test_a_run_that_is_not_there_has_no_plan() -> None:
    """It is named."""
    async with layers() as layer:
        with pytest.raises(UnknownRun):
            await layer.plan("nobody")


async def test_of_a_run_that_has_ended_nothing_is_left() -> None:
    """No way, no step, no question."""

    @workflow
    async def short(run: Run) -> int:
        return await pull("c")

    async with layers() as layer:
        await layer.run(short(), client="acme", run_id="r")
        plan = await layer.plan("r")
    assert (plan.paths, plan.steps, plan.status) == ((), (), "done")


async def test_a_run_that_never_began_runs_from_the_top() -> None:
    """Its first call is certain, and what the source has after it is listed."""
    async with layers() as layer:
        await layer.start(all_in_a_row(), client="acme", run_id="r")
        plan = await layer.plan("r")
    assert lines(plan, Do.RUN)["pull"] == 1
    assert {"post", "risky", "send", "run.ask"} <= {line.step for line in plan.steps}
    assert plan.paths[0].usd_at_most is None  # how many are posted nobody knows before


# -- what is reused, what runs, what is asked ---------------------------------------------------------------------------------


async def test_each_call_is_as_it_will_be() -> None:
    """Recorded ones are reused, a failed one waits for its answer, what comes after is read from the source."""
    BROKEN.add("risky")
    async with layers() as layer:
        outcome = await layer.run(all_in_a_row(), client="acme", run_id="r")
        plan = await layer.plan("r")
        assert lines(plan, Do.REUSE) == {"pull": 1, "post": 3}
        assert "risky" in lines(plan, Do.ASK)
        assert {line.step for line in plan.steps} >= {"pull", "post", "risky", "run.ask", "send"}
        assert plan.paths[0].questions == 3  # the failure, "go on?", and the approval
        BROKEN.clear()
        OUT.clear()
        await layer.answer(outcome.questions[0].id, "again", by="ann")
        plan = await layer.plan("r")
        assert lines(plan, Do.RUN)["risky"] == 1
        waiting = await layer.resume("r")
        assert [q.text for q in waiting.questions] == ["Go on?"]
        assert dict(OUT) == {"risky": 1}


async def test_items_of_a_map_are_counted_one_by_one() -> None:
    """Of fifty items, those that are left are known, however few may run at a time."""
    BROKEN.add("post 20")

    @workflow
    async def many(run: Run) -> list[str | None]:
        return await run.map(post, list(range(50)), concurrency=2)

    async with layers() as layer:
        await layer.run(many(), client="acme", run_id="r")
        done = sum(n for name, n in OUT.items() if name.startswith("post "))
        plan = await layer.plan("r")
        assert lines(plan, Do.REUSE).get("post", 0) + lines(plan, Do.RUN).get("post", 0) <= 50
        assert lines(plan, Do.REUSE)["post"] >= done - 3
        told = sum(line.at_most or 0 for line in plan.steps if line.step == "post")
        assert told >= 50


@pytest.mark.parametrize("there", [True, False])
async def test_a_claim_in_doubt_is_looked_for(there: bool) -> None:
    """The probe says now what the resume would find; nothing is sent by it."""
    BROKEN.add("post 7")

    @workflow
    async def one(run: Run) -> str:
        return await post(7)

    async with layers() as layer:
        BROKEN.add("find")
        task = asyncio.ensure_future(layer.run(one(), client="acme", run_id="r", wait=0))
        outcome = await task
        if there:
            THERE["7"] = "P7"
        BROKEN.clear()
        sent = OUT["post 7"]
        plan = await layer.plan("r") if not outcome.status.ended else None
        assert OUT["post 7"] == sent
        if plan is not None:
            assert lines(plan, Do.REUSE if there else Do.RUN) == {"post": 1} or "post" in lines(plan, Do.ASK)


async def test_what_nobody_can_look_for_is_asked() -> None:
    """And whether it runs depends on the answer."""
    BROKEN.add("blind")

    @workflow
    async def one(run: Run) -> str:
        return await blind(7)

    async with layers() as layer:
        await layer.run(one(), client="acme", run_id="r")
        plan = await layer.plan("r")
    assert plan.paths[0].questions == 1
    assert possible(plan) == {"blind"}


async def test_an_irreversible_step_counts_its_approval() -> None:
    """One question, and the step after it."""

    @workflow
    async def one(run: Run) -> str:
        return await send(1)

    async with layers() as layer:
        await layer.start(one(), client="acme", run_id="r")
        plan = await layer.plan("r")
        assert plan.paths[0].questions == 1
        await layer.run(one(), client="acme", run_id="r")
        plan = await layer.plan("r")
        assert plan.paths[0].questions == 1
        for question in await layer.questions():
            await layer.answer(question.id, "approve", by="ann")
        plan = await layer.plan("r")
        assert (plan.paths[0].questions, lines(plan, Do.RUN)) == (0, {"send": 1})


async def test_a_write_that_somebody_did_by_hand_is_found_before() -> None:
    """``probe_first``: the plan looks where the resume would look."""

    @workflow
    async def one(run: Run) -> str:
        await run.ask("Ready?")
        return await post(1)

    async with layers() as layer:
        outcome = await layer.run(one(), client="acme", run_id="r")
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        assert lines(await layer.plan("r"), Do.RUN) == {"post": 1}
        THERE["1"] = "by hand"
        assert lines(await layer.plan("r"), Do.REUSE)["post"] == 1
        assert (await layer.resume("r")).result() == "by hand"
    assert OUT["post 1"] == 0


async def test_code_that_breaks_off_is_told_with_its_place() -> None:
    """The body's own failure is a question; what comes after it nobody knows."""

    @workflow
    async def breaks(run: Run) -> str:
        await pull("c")
        raise KeyError("vat")

    async with layers() as layer:
        await layer.run(breaks(), client="acme", run_id="r")
        plan = await layer.plan("r")
    assert plan.paths[0].usd_at_most is None
    assert plan.paths[0].questions >= 1
    assert "test_plan.py" in str(plan)


async def test_code_that_waits_for_the_outside_between_its_steps_is_not_seen_through() -> None:
    """It is said where; the plan does not wait for it."""
    gate = asyncio.Event()

    @workflow
    async def waits(run: Run) -> str:
        await pull("c")
        if await run.ask("Go on?") == "yes":
            await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(_until(gate)))
        return "done"

    async def _until(event: asyncio.Event) -> None:
        while not event.is_set():
            await asyncio.sleep(0.01)

    async with layers() as layer:
        outcome = await layer.run(waits(), client="acme", run_id="r")
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        plan = await layer.plan("r")
        gate.set()
    assert any("test_plan.py" in each for each in plan.paths[0].unknown)


async def test_a_result_that_is_gone_is_made_again_and_what_follows_may(tmp_path: Path) -> None:
    """The step that made it runs; what is called after it is reused unless it gives something else."""

    @step
    async def large(c: str) -> str:
        OUT["large"] += 1
        return "x" * 100_000

    @workflow
    async def two(run: Run) -> str:
        text = await large("c")
        n = await risky(len(text))
        await run.ask("Go on?")
        return f"{n}"

    async with Layer(tools.url(tmp_path)) as layer:
        await layer.run(two(), client="acme", run_id="r")
        tools.execute(tmp_path, "UPDATE artifact SET body = 'damaged', location = NULL")
        plan = await layer.plan("r")
        assert lines(plan, Do.RUN) == {"large": 1}
        OUT.clear()
        await layer.resume("r")
    assert dict(OUT) == {"large": 1}


async def test_without_the_code_the_rest_is_unknown() -> None:
    """What is on record is shown; nobody claims to know what comes."""
    from stepseven.runtime.procedure import registry

    @workflow("gone_with_its_module")
    async def gone(run: Run) -> str:
        await pull("c")
        return await run.ask("Go on?")

    async with layers() as layer:
        await layer.run(gone(), client="acme", run_id="r")
        del registry["gone_with_its_module"]
        plan = await layer.plan("r")
    assert plan.paths[0].usd_at_most is None
    assert "pull" in {line.step for line in plan.steps}
    assert "--module" in str(plan)


async def test_a_run_that_it_starts_is_part_of_it() -> None:
    """Before it is started, and while it waits for a person."""

    @workflow
    async def below(run: Run) -> str:
        return await run.ask("Below?")

    @workflow
    async def above(run: Run) -> str:
        await pull("c")
        return await run.start(below())

    async with layers() as layer:
        await layer.start(above(), client="acme", run_id="r")
        assert any(line.step.startswith("run.start") for line in (await layer.plan("r")).steps)
        await layer.run(above(), client="acme", run_id="r")
        plan = await layer.plan("r")
        assert any(line.step.startswith("run.start") for line in plan.steps)
        assert plan.paths[0].questions >= 1
        assert len(await layer.runs()) == 2


async def test_what_it_was_told_is_not_asked_again() -> None:
    """A step that tries again with what a person gave does so without another question."""

    @step
    async def needs(n: int) -> str:
        if "vat_number" not in attempt().given:
            raise Fixable("no number", needs="vat_number", ask="Which?")
        return str(attempt().given["vat_number"])

    @workflow
    async def one(run: Run) -> str:
        return await needs(1)

    async with layers() as layer:
        outcome = await layer.run(one(), client="acme", run_id="r")
        assert (await layer.plan("r")).paths[0].questions == 1
        await layer.answer(outcome.questions[0].id, "DE1", by="ann")
        plan = await layer.plan("r")
        assert (plan.paths[0].questions, lines(plan, Do.RUN)) == (0, {"needs": 1})


async def test_an_open_question_of_each_kind_is_counted_once() -> None:
    """Drift, while it is asked: the plan tells it as it is now, and not as a second question."""

    @workflow
    async def mailing(run: Run) -> str:
        to = run.client.get("contact")
        await risky(len(to))
        return await run.ask("Go on?")

    async with layers() as layer:
        layer.client("acme").set("contact", "ann@x", source="crm")
        await layer.run(mailing(), client="acme", run_id="r")
        layer.client("acme").set("contact", "benjamin@x", source="crm")
        before = (await layer.plan("r")).paths[0].questions
        await layer.resume("r")
        assert len(await layer.questions()) == 2
        assert (await layer.plan("r")).paths[0].questions == before == 2


async def test_a_refresh_takes_the_whole_record_into_account() -> None:
    """A field that nobody is asked about moved, too: what is built on it runs again, and the plan says so."""
    record = {"contact": "ann@x", "seats": 25}

    async def load(client_id: str) -> dict[str, Any]:
        return dict(record)

    @step(cost=Cost(usd=1.0))
    async def price(seats: int) -> int:
        OUT["price"] += 1
        return seats * 100

    @workflow(client_record=load, watch=("contact",))
    async def offer(run: Run) -> str:
        n = await price(run.client.record["seats"])
        return await run.ask("Send it?", about=[n, run.client.record["contact"]])

    async with layers() as layer:
        await layer.run(offer(), client="acme", run_id="r")
        record.update(contact="ben@x", seats=30)
        plan = await layer.plan("r")
        refresh = next(path for path in plan.paths if path.name == "refresh")
        assert [line.step for line in refresh.steps if line.do is Do.RUN] == ["price"]
        assert refresh.usd_at_most == 2.0  # two tries
        (question,) = [q for q in (await layer.resume("r")).questions if q.kind == "drift"]
        assert "price" in question.text
        OUT.clear()
        await layer.resume("r", drift="refresh")
    assert dict(OUT) == {"price": 1}


async def test_a_run_whose_worker_died_broke_off(tmp_path: Path) -> None:
    """It says that it runs, and nobody executes it."""
    async with Layer(tools.url(tmp_path)) as layer:
        await layer.run(all_in_a_row(), client="acme", run_id="r")
        tools.execute(tmp_path, "UPDATE run SET status = 'running', owner = 'gone', waiting_for = NULL")
        assert "broken off" in (await layer.plan("r")).headline
