"""A resume is a workflow of its own: what its plan says of the ways to done, and what then happens. One rule, one test."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path as Folder

import pytest

from stepseven import Cost, Plan, Reference, Run, step, workflow
from stepseven.decide.plan import Do, Path
from tests.runs import tools
from tests.runs.deaths import living
from tests.runs.worldly import layers, the_question

DAY_S = 86_400.0
RAN: Counter[str] = Counter()
MADE: list[Folder] = []


@pytest.fixture(autouse=True)
def _anew(tmp_path: Folder) -> None:
    RAN.clear()
    MADE[:] = [tmp_path]


@step(name="rules.pull", cost=Cost(usd=1.0))
async def pull(c: str) -> int:
    """Depends on no fact."""
    RAN["pull"] += 1
    return len(c)


@step(name="rules.draft", cost=Cost(usd=0.25))
async def draft(contact: str, n: int) -> str:
    """Depends on one."""
    RAN["draft"] += 1
    return f"{contact} {n}"


@step(name="rules.report")
async def report(n: int) -> Reference:
    """Makes a file."""
    RAN["report"] += 1
    path = MADE[0] / f"report-{n}.txt"
    path.write_text("made")
    return Reference.of(path)


@workflow(name="rules.mail")
async def mail(run: Run) -> str:
    """A draft for the contact, and a person."""
    n = await pull(run.client_id)
    text = await draft(run.client.get("contact"), n)
    return await run.ask("Send?", about=text, options=["yes", "no"])


@workflow(name="rules.filed")
async def filed(run: Run) -> str:
    """A file, and a person."""
    await report(1)
    return await run.ask("Send?", options=["yes", "no"])


def runs(path: Path) -> dict[str, int]:
    """Step → how many calls are certain to run on a way."""
    return {line.step.removeprefix("rules."): line.count for line in path.steps if line.do is Do.RUN and line.count}


def way(plan: Plan, name: str) -> Path:
    """One of the ways."""
    return next(path for path in plan.paths if path.name == name)


@pytest.mark.parametrize("choice", ["keep", "refresh"])
async def test_each_way_is_what_then_happens_on_it(choice: str) -> None:
    """Two ways, each with its steps, money and questions; the cheapest is marked; only what depends on it runs on refresh."""
    async with layers() as layer:
        layer.client("acme").set("contact", "ann", source="crm")
        await layer.run(mail(), client="acme", run_id="r")
        layer.clock.advance(DAY_S)
        layer.client("acme").set("contact", "ben", source="crm")
        plan = await layer.plan("r")
        assert [path.name for path in plan.paths if path.cheapest] == ["continue"]
        assert (runs(way(plan, "continue")), runs(way(plan, "refresh"))) == ({}, {"draft": 1})
        assert way(plan, "continue").usd_at_most == 0
        assert way(plan, "refresh").usd == 0.25
        RAN.clear()
        outcome = await layer.resume("r", drift=choice)  # type: ignore[arg-type]  # one of the two
        assert dict(RAN) == runs(way(plan, "continue" if choice == "keep" else "refresh"))
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r")).result() == "yes"


async def test_what_nobody_read_is_no_way_of_its_own() -> None:
    """A fact that the run did not build on is noted; nobody is asked about it."""
    async with layers() as layer:
        layer.client("acme").set("contact", "ann", source="crm")
        await layer.run(mail(), client="acme", run_id="r")
        layer.clock.advance(DAY_S)
        layer.client("acme").set("seats", 7, source="crm")
        plan = await layer.plan("r")
        assert ([path.name for path in plan.paths], plan.drift) == (["continue"], ())
        assert any("seats" in told for told in plan.notes)
        assert [q.kind for q in (await layer.resume("r")).questions] == ["ask"]


def test_a_takeover_replays_and_looks_at_nothing(tmp_path: Folder) -> None:
    """A run whose worker died goes on with its records as they are: no file is looked at, and no recovery is on record."""

    async def first(layer: tools.Layer) -> None:
        await layer.run(filed(), client="acme", run_id="r")

    tools.until_crash(tmp_path, 1, first)
    assert [r["name"] for r in tools.records(tmp_path, "r")] == ["rules.report"]
    (path,) = tmp_path.glob("report-*.txt")
    path.unlink()

    async def second(layer: tools.Layer) -> str:
        return (await layer.run(filed(), client="acme", run_id="r")).status.value

    assert living(tmp_path, second) == "waiting"
    assert RAN["report"] == 1
    assert tools.rows(tmp_path, "SELECT id FROM recovery") == []


async def test_what_runs_says_why() -> None:
    """Not run yet, its file is gone: each line of a plan says what makes it run; a second look says the same."""
    async with layers() as layer:
        await layer.run(filed(), client="acme", run_id="r")
        layer.clock.advance(DAY_S)
        assert runs((await layer.plan("r")).paths[0]) == {}
        for path in MADE[0].glob("report-*.txt"):
            path.unlink()
        plan = await layer.plan("r")
        (line,) = [line for line in plan.steps if line.do is Do.RUN and line.count]
        assert line.step == "rules.report"
        assert line.why.endswith("is gone")
        assert (await layer.plan("r")).steps == plan.steps
        RAN.clear()
        await layer.resume("r")
        assert dict(RAN) == {"report": 1}


@step(name="rules.post", effect="write", key="n")
async def post(n: int) -> int:
    """Has an effect."""
    RAN["post"] += 1
    return n


@workflow(name="rules.side_by_side")
async def side_by_side(run: Run) -> str:
    """Two at once, one of which makes files; then a write."""

    async def written(n: int) -> int:
        return await post(await post(n) + 1)

    made, n = await asyncio.gather(report(1), written(1))
    await report(made.size + n)
    return await run.ask("Send?", options=["yes", "no"])


async def test_how_long_a_look_takes_changes_nothing() -> None:
    """A file is looked at while other code goes on beside it: twenty plans are the same."""
    async with layers() as layer:
        await layer.run(side_by_side(), client="acme", run_id="r")
        for path in MADE[0].glob("report-1.txt"):
            path.unlink()
        plans = [await layer.plan("r") for _ in range(20)]
    assert {plan.steps for plan in plans} == {plans[0].steps}
    assert runs(plans[0].paths[0]) == {"report": 1}


async def test_another_key_after_a_refresh_is_a_question_that_was_foreseen() -> None:
    """A write is done; what it was done for moved, and new code hides its call: it may be the same thing, which is asked."""
    late = [False]

    @step(name="rules.fresh")
    async def fresh(n: int) -> int:
        return n

    @workflow(name="rules.posted")
    async def posted(run: Run) -> str:
        if late[0]:
            await fresh(1)
        await post(run.client.get("n"))
        return await run.ask("Go on?", options=["yes", "no"])

    async with layers() as layer:
        layer.client("acme").set("n", 1, source="crm")
        await layer.run(posted(), client="acme", run_id="r")
        layer.clock.advance(DAY_S)
        layer.client("acme").set("n", 2, source="crm")
        late[0] = True
        most = way(await layer.plan("r"), "refresh").questions_at_most
        outcome = await layer.resume("r", drift="refresh")
        asked = {q.id for q in outcome.questions}
        assert "conflict" in {q.kind.value for q in outcome.questions}
        await layer.answer(next(q.id for q in outcome.questions if q.kind == "conflict"), "second", by="ann")
        asked |= {q.id for q in (await layer.resume("r")).questions}
        assert most is not None
        assert len(asked) <= most
    assert RAN["post"] == 2
