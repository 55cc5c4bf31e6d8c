"""What a plan says at most is kept: where tries are granted, steps call steps, a limit is reached, runs are started."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepseven import Cost, Layer, Limits, Reference, Retryable, Run, attempt, step, testing, workflow
from stepseven.decide.plan import Do
from stepseven.decide.plan import Path as Way
from tests.runs.deaths import dying, living
from tests.servers import databases

FAILURES = {"left": 0}
SPENT = {"usd": 0.0}
RUN: dict[str, Run] = {}


@pytest.fixture(autouse=True)
def _anew() -> None:
    FAILURES["left"], SPENT["usd"] = 0, 0.0


async def way(layer: Layer, run_id: str = "r", name: str = "continue") -> Way:
    """One way to done, as planned."""
    return next(path for path in (await layer.plan(run_id)).paths if path.name == name)


def spend(usd: float) -> None:
    """So much is on the bill."""
    attempt().spend(usd=usd)
    SPENT["usd"] += usd


@step(cost=Cost(usd=0.2), attempts=3)
async def flaky(n: int) -> int:
    """Fails for a while."""
    spend(0.2)
    if FAILURES["left"]:
        FAILURES["left"] -= 1
        raise Retryable("503")
    return n


@workflow
async def once(run: Run) -> int:
    """One call."""
    return await flaky(1)


@pytest.mark.parametrize("answered", [False, True])
async def test_an_answer_grants_as_many_tries_as_there_were(answered: bool) -> None:
    """What a step costs at most, after or before a person says that it is to be tried again, is what all its new tries cost."""
    FAILURES["left"] = 5
    async with testing.layer() as layer:
        outcome = await layer.run(once(), client="acme", run_id="r")
        if answered:
            await layer.answer(outcome.questions[0].id, "again", by="ann")
        planned = await way(layer)
        if not answered:
            await layer.answer(outcome.questions[0].id, "again", by="ann")
        before = SPENT["usd"]
        assert (await layer.resume("r")).value == 1
        assert planned.usd_at_most == pytest.approx(SPENT["usd"] - before) == pytest.approx(0.6)


@step(cost=Cost(usd=0.5))
async def deep(n: int) -> str:
    """Reads a fact in its own code."""
    return f"{RUN['run'].client.get('contact')}{n}"


@step(cost=Cost(usd=0.1))
async def outer(n: int) -> str:
    """Calls a step."""
    return await deep(n)


@workflow
async def twice(run: Run) -> str:
    """Calls it twice."""
    RUN["run"] = run
    made = [await outer(1), await outer(2)]
    return str(await run.ask("ok?", options=["yes"])) + "".join(made)


async def test_what_is_called_within_steps_that_run_again_is_counted_for_each() -> None:
    """Two calls of a step that calls another: it is called twice, at most; and both outer calls are expected."""
    async with testing.layer() as layer:
        layer.client("acme").set("contact", "Ann")
        await layer.run(twice(), client="acme", run_id="r")
        layer.clock.advance(86_400)
        layer.client("acme").set("contact", "Ben")
        planned = await way(layer, name="refresh")
        most = sum(s.at_most or 0 for s in planned.steps if s.step == "deep" and s.do is Do.RUN)
        assert most >= 2
        assert sum(s.count for s in planned.steps if s.step == "outer" and s.do is Do.RUN) == 2


async def test_a_fact_that_holds_no_more_is_told_as_not_known() -> None:
    """As the question about it says, too."""
    async with testing.layer() as layer:
        layer.client("acme").set("contact", "Ann", valid="1h")
        await layer.run(twice(), client="acme", run_id="r")
        layer.clock.advance(86_400)
        assert "Ann → not known" in str(await layer.plan("r"))


@workflow(limits=Limits(usd=0.5, steps=50))
async def limited(run: Run) -> int:
    """More than its limit has room for."""
    await flaky(0)
    await run.ask("go on?", options=["yes"])
    return await flaky(1) + await flaky(2)


async def test_a_limit_that_will_be_reached_is_a_question_of_the_plan() -> None:
    """A person is asked for more money: that is counted before; a limit that has room is not told."""
    async with testing.layer() as layer:
        await layer.run(limited(), client="acme", run_id="r")
        planned = await way(layer)
        assert [s.summary for s in planned.steps if s.step == "limit"] == ["$0.30 left of the run's limit"]
        assert (planned.questions, planned.questions_at_most) == (2, 2)


@pytest.mark.parametrize("failures", [0, 2])
@pytest.mark.parametrize("planned_first", [True, False])
async def test_a_limit_that_is_raised_as_far_as_the_plan_says_is_asked_about_once(failures: int, planned_first: bool) -> None:
    """The plan says how far: before it is reached, and while a person is asked. Raised to that, it is enough for every try."""
    async with testing.layer() as layer:
        outcome = await layer.run(limited(), client="acme", run_id="r")
        FAILURES["left"] = failures
        notes = (await layer.plan("r")).notes
        assert notes == ("The run's limit has to be $1.40 to let all of this through, every try counted.",)
        asked = 0
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        while not (outcome := await layer.resume("r")).status.ended:
            asked += 1
            (question,) = outcome.questions
            assert question.kind == "limit"
            plan = await layer.plan("r")
            assert plan.notes[0].startswith("The run's limit has to be $1.")
            usd = 1.40 if planned_first else float(plan.notes[0].partition("$")[2].partition(" ")[0])
            assert planned_first or usd <= 1.40
            await layer.answer(question.id, {"choice": "raise", "usd": usd}, by="ann")
        assert (outcome.result(), asked) == (3, 1)


async def test_the_question_about_a_limit_says_how_far_it_is_enough() -> None:
    """What is declared for every try of what is left: raised to that, the run comes to its end without asking again."""

    @workflow(name="plan_bounds_enough", limits=Limits(usd=0.3))
    async def three(run: Run) -> int:
        return await flaky(1) + await flaky(2) + await flaky(3)

    async with testing.layer() as layer:
        (question,) = (await layer.run(three(), client="acme", run_id="r")).questions
        assert question.context["limit"]["enough"] == pytest.approx(1.4)
        detail = next(o.detail for o in question.options if o.id == "raise")
        assert detail == "give the new limit in dollars, at least $0.40; $1.40 is enough for all that is left; continues at once"
        FAILURES["left"] = 2
        await layer.answer(question.id, {"choice": "raise", "usd": 1.40}, by="ann")
        assert (await layer.resume("r")).result() == 6


async def test_the_question_about_a_limit_is_silent_where_nobody_knows() -> None:
    """A loop, or calls beside each other: how much is enough is not said, rather than too little."""

    @workflow(name="plan_bounds_loop", limits=Limits(usd=0.3))
    async def loop(run: Run, n: int) -> int:
        return sum([await flaky(k) for k in range(n)])

    async with testing.layer() as layer:
        (question,) = (await layer.run(loop(n=3), client="acme", run_id="r")).questions
        assert question.context["limit"]["enough"] is None


@step
async def turn(n: int) -> int:
    """A model's turn: reports tokens, declares nothing."""
    attempt().spend(usd=0.1, tokens=1_000 * n)
    return n


@workflow(name="plan_bounds.chat", limits=Limits(tokens=8_000, seconds=600))
async def chat(run: Run, n: int) -> int:
    """One turn, a question, another turn."""
    first = await turn(n)
    await run.ask("go on?", options=["yes"])
    return first + await turn(n + 1)


async def test_a_limit_on_tokens_is_told_by_what_was_seen() -> None:
    """A first run tells from its own turns, a later one from earlier runs; what is reached is a question of the plan."""
    async with testing.layer() as layer:
        await layer.run(chat(n=6), client="acme", run_id="first")
        planned = await way(layer, "first")
        [limit] = [s for s in planned.steps if s.step == "limit"]
        assert (limit.summary, limit.why, limit.maybe) == (
            "2,000 tokens left of the run's limit", "about 6,000 tokens needed", False,
        )  # fmt: skip
        assert (planned.questions, planned.usd, planned.usd_at_most, planned.unbounded) == (2, 0.1, None, ("turn",))

        await layer.run(chat(n=2), client="globex", run_id="second")
        await layer.answer((await layer.questions(run_id="second"))[0].id, "yes", by="ann")
        assert (await layer.resume("second")).value == 5
        await layer.run(chat(n=2), client="initech", run_id="third")
        planned = await way(layer, "third")
        assert (planned.tokens, planned.tokens_p90, planned.questions_at_most) == (2_500, 3_000, 1)
        assert not [s for s in planned.steps if s.step == "limit"]


@workflow(name="plan_bounds_kid")
async def kid(run: Run) -> str:
    """Asks twice."""
    return f"{await run.ask('one?', options=['a'])}{await run.ask('two?', options=['b'])}"


@workflow
async def parent(run: Run) -> str:
    """Starts a run."""
    return str(await run.start(kid()))


async def test_what_a_run_asks_that_is_started_has_no_bound_here() -> None:
    """One question of it is open; how many follow is in its own plan."""
    async with testing.layer() as layer:
        await layer.run(parent(), client="acme", run_id="r")
        planned = await way(layer)
        assert planned.questions_at_most is None
        assert any(s.summary is not None and s.summary.startswith("what run r.plan_bounds_kid") for s in planned.steps)


@step(cost=Cost(usd=0.5))
async def write_down(path: str) -> Reference:
    """Makes a file."""
    Path(path).write_text("same")
    return Reference.of(path)


@step(cost=Cost(usd=0.3))
async def use(kept: Reference) -> str:
    """Builds on it."""
    return "used"


@workflow
async def files(run: Run, path: str) -> str:
    """Makes a file, uses it, asks."""
    used = await use(await write_down(path))
    await run.ask("ok?", options=["yes"])
    return used


async def test_what_may_run_again_is_bounded_by_what_it_declares(tmp_path: Path) -> None:
    """A declared cost is known of a result that stands, too; and the open question stays one, and may be asked once more."""
    path = tmp_path / "f.txt"
    async with testing.layer() as layer:
        await layer.run(files(path=str(path)), client="acme", run_id="r")
        path.unlink()
        planned = await way(layer)
        assert planned.unknown == ()
        assert planned.usd_at_most is not None
        assert planned.usd_at_most >= 2 * (0.5 + 0.3)  # both tries of both steps
        assert (planned.questions, planned.questions_at_most) == (1, 2)


BROKEN = {"inner": False}


@step
async def inner_mended(n: int) -> int:
    """Needs a person, once."""
    if BROKEN["inner"]:
        raise PermissionError("no access to the table")
    return n


@step(cost=Cost(usd=0.125))
async def outer_anew(n: int) -> int:
    """Its own code waits for that person, and begins from its top after the answer."""
    spend(0.125)
    return await inner_mended(n)


@workflow
async def nested_anew(run: Run) -> int:
    """One call of it."""
    return await outer_anew(1)


def test_a_step_whose_inner_call_is_about_to_be_asked_about_may_run_twice(tmp_path: Path) -> None:
    """The process died between the failure and its question: the plan counts that question, and the step that begins anew."""
    BROKEN["inner"] = True

    async def begin(layer: Layer) -> object:
        return await layer.run(nested_anew(), client="acme", run_id="r")

    for at in range(2, 20):
        state = tmp_path / f"{at}"
        state.mkdir()
        dying(state, at, "before", begin)
        failed = databases.rows(state, "SELECT name FROM attempt WHERE outcome = 'failed' AND name = 'inner_mended'")
        if failed and not databases.rows(state, "SELECT id FROM question"):
            break
        databases.done(state)
    else:
        raise AssertionError("it was asked about with its failure")

    async def go_on(layer: Layer) -> Way:
        planned = await way(layer)
        SPENT["usd"], BROKEN["inner"] = 0.0, False
        outcome = await layer.resume("r")
        await layer.answer(outcome.questions[0].id, "again", by="ann")
        assert (await layer.resume("r")).result() == 1
        return planned

    planned = living(state, go_on)
    (outer,) = [s for s in planned.steps if s.step == "outer_anew"]
    assert (outer.count, outer.at_most) == (1, 2)
    assert planned.questions_at_most == 1
    assert planned.usd_at_most_known >= SPENT["usd"] == 0.25
