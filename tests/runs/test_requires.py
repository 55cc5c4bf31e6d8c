"""``@workflow(requires=…, client_record=…)``: what a workflow counts on is there before its first line runs.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from stepseven import (
    Fixable,
    Layer,
    NoRun,
    QuestionExpired,
    Run,
    SecretFound,
    StepsevenError,
    step,
    testing,
    workflow,
)
from stepseven.testing import Clock
from tests.runs.deaths import dying, every_death, living
from tests.runs.tools import module, rows


@pytest.fixture
def begun() -> list[str]:
    """Which runs' bodies have begun."""
    return []


def needy(begun: list[str], name: str = "needy", requires: Any = ("vat_number", "contact.email"), **more: Any) -> Any:
    """A workflow that requires facts."""

    @workflow(name=name, requires=requires, **more)
    async def body(run: Run) -> list[Any]:
        begun.append(run.id)
        return [run.client.get(key) for key in body.settings.requires]

    return body


def asked(questions: Any) -> dict[str, str]:
    """Fact → the id of the question for it."""
    assert {q.kind for q in questions} <= {"required"}
    return {q.context["needs"]: q.id for q in questions}


# -- requires -----------------------------------------------------------------------------------------------------------


async def test_what_is_not_known_is_asked_for_at_once_and_first(begun):
    """Every missing fact is asked for, all at the start, before the body's first line; answers are the run's and the client's."""
    flow = needy(begun)
    async with testing.layer() as layer:
        layer.client("acme").set("contact.email", "a@acme.example")
        layer.client("globex").set("vat_number", "DE9")
        outcome = await layer.run(flow(), client="acme", run_id="r1")
        (question,) = outcome.questions
        assert (outcome.waiting_for, begun) == ("person", [])
        assert question.text.split("\n")[0] == "What is Acme's VAT number?"
        assert "I need it before I begin Acme's needy. Nothing was started yet." in question.text
        assert "I will not ask again" in question.text
        both = await layer.run(flow(), client="initech", run_id="r2")
        ids = asked(both.questions)
        assert sorted(ids) == ["contact.email", "vat_number"]
        assert "I also ask for the contact email." in next(q.text for q in both.questions if q.id == ids["vat_number"])
        await layer.answer(question.id, "DE1", by="ann")
        assert (await layer.resume("r1")).result() == ["DE1", "a@acme.example"]
        fact = layer.client("acme").history("vat_number")[0]
        assert (fact.value, fact.source, fact.set_by) == ("DE1", f"answer to {question.id}", "ann")
        await layer.answer(ids["contact.email"], "i@initech.example", by="ann")
        assert (await layer.resume("r2")).status == "waiting"
        await layer.answer(ids["vat_number"], "DE2", by="ann")
        assert (await layer.resume("r2")).result() == ["DE2", "i@initech.example"]
        assert begun == ["r1", "r2"]
        assert (await layer.run(flow(), client="initech", run_id="r3")).result() == ["DE2", "i@initech.example"]
        assert len(await layer.questions(status=None)) == 3


async def test_whom_the_workflow_asks_is_asked(begun):
    """The workflow's ``to=`` is who is asked; one name may be given as a plain text."""
    flow = needy(begun, requires="vat_number", to="bob")
    async with testing.layer() as layer:
        (question,) = (await layer.run(flow(), client="acme")).questions
        assert question.asked_of == "bob"


async def test_a_fact_whose_time_is_over_is_asked_for(begun):
    """What is no longer valid counts as not known."""
    flow = needy(begun, requires=("vat_number",))
    clock = Clock()
    async with testing.layer(clock=clock) as layer:
        layer.client("acme").set("vat_number", "DE1", valid="1d")
        clock.advance(timedelta(days=2))
        (question,) = (await layer.run(flow(), client="acme", run_id="r1")).questions
        await layer.answer(question.id, "DE2", by="ann")
        assert (await layer.resume("r1")).result() == ["DE2"]


async def test_a_fact_set_meanwhile_takes_the_question_back(begun):
    """Set by other means: the open question is withdrawn at once, whether the run is in memory or not, and the run goes on."""
    flow = needy(begun)
    async with testing.layer() as layer:
        outcome = await layer.run(flow(), client="acme", run_id="r1")
        ids = asked(outcome.questions)
        layer.client("acme").set("vat_number", "DE1")
        assert list(asked(await layer.questions())) == ["contact.email"]
        with pytest.raises(QuestionExpired):
            await layer.answer(ids["vat_number"], "DE2", by="ann")
        assert (await layer.resume("r1")).status == "waiting"
        layer.client("acme").set("contact.email", "a@acme.example")
        assert (await layer.runs())[0].status == "queued"
        assert (await layer.resume("r1")).result() == ["DE1", "a@acme.example"]
        assert {q.status for q in await layer.questions(status=None)} == {"withdrawn"}


async def test_a_caller_that_waits_goes_on_when_the_fact_is_set(begun):
    """``run(wait=…)``: nothing has to be resumed by hand."""
    flow = needy(begun, requires=("vat_number",))
    clock = Clock()
    async with testing.layer(clock=clock) as layer:
        running = asyncio.create_task(layer.run(flow(), client="acme", run_id="r1", wait=3600))
        while not await layer.questions():
            await asyncio.sleep(0)
        layer.client("acme").set("vat_number", "DE1")
        while not running.done():
            clock.advance(timedelta(seconds=1))
            await asyncio.sleep(0)
        assert (await running).result() == ["DE1"]


async def test_two_runs_of_a_client_each_ask_and_one_answer_serves_both(begun):
    """Questions are never merged; when one makes the fact known the other run's is withdrawn, and that run goes on."""
    flow = needy(begun, requires=("vat_number",))
    async with testing.layer() as layer:
        first = (await layer.run(flow(), client="acme", run_id="r1")).questions[0]
        second = (await layer.run(flow(), client="acme", run_id="r2")).questions[0]
        other = (await layer.run(flow(), client="globex", run_id="r3")).questions[0]
        assert len({first.id, second.id, other.id}) == 3
        await layer.answer(second.id, "DE1", by="ann")
        assert [q.id for q in await layer.questions()] == [other.id]
        assert (await layer.resume("r1")).result() == ["DE1"]
        assert (await layer.resume("r2")).result() == ["DE1"]
        assert (await layer.resume("r3")).status == "waiting"


async def test_what_was_known_at_the_start_stays_so():
    """Known facts are pinned at the start; a resume that keeps what the run knows neither asks again nor sees another value."""

    @workflow(name="pinned_start", requires=("vat_number", "plan"), on_drift="keep")
    async def body(run: Run) -> Any:
        await run.ask("Go on?")
        return [run.client.get("vat_number"), run.client.get("plan")]

    clock = Clock()
    async with testing.layer(clock=clock) as layer:
        layer.client("acme").set("vat_number", "DE1", valid="1d")
        outcome = await layer.run(body(), client="acme", run_id="r1")
        await layer.answer(outcome.questions[0].id, "gold", by="ann")
        outcome = await layer.resume("r1")
        layer.client("acme").set("plan", "free")
        clock.advance(timedelta(days=2))
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["DE1", "gold"]
        (question,) = (await layer.run(body(), client="acme", run_id="r2")).questions
        assert question.context["needs"] == "vat_number"


async def test_any_json_is_an_answer(begun):
    """null, an empty text, false and 0 are answers; then the fact is known."""
    flow = needy(begun, requires=("a", "b", "c", "d"))
    async with testing.layer() as layer:
        outcome = await layer.run(flow(), client="acme", run_id="r1")
        ids = asked(outcome.questions)
        for name, value in {"a": None, "b": "", "c": False, "d": 0}.items():
            await layer.answer(ids[name], value, by="ann")
        assert (await layer.resume("r1")).result() == [None, "", False, 0]


async def test_a_cancelled_run_never_began(begun):
    """Cancelled while it asks: its questions are gone and nothing of its body ran."""
    flow = needy(begun)
    async with testing.layer() as layer:
        await layer.run(flow(), client="acme", run_id="r1")
        assert await layer.cancel("r1", reason="not needed") == "cancelled"
        assert (await layer.questions(), begun) == ([], [])


async def test_a_workflow_that_required_nothing_before_asks_now(begun):
    """A run begun under older code that required nothing: the question comes, and its body sees the answer."""

    @workflow(name="grown")
    async def old(run: Run) -> Any:
        seen = run.client.get("vat_number")
        return [seen, await run.ask("Go on?")]

    async with testing.layer() as layer:
        await layer.run(old(), client="acme", run_id="r1")
        await layer.answer_next("yes", by="ann")

        @workflow(name="grown", requires=("vat_number",))
        async def new(run: Run) -> Any:
            return [run.client.get("vat_number"), await run.ask("Go on?")]

        (question,) = (await layer.resume("r1")).questions
        await layer.answer(question.id, "DE1", by="ann")
        assert (await layer.resume("r1")).result() == ["DE1", "yes"]
        assert new.settings.requires == ("vat_number",)


@pytest.mark.parametrize("names", [("",), (7,), ("a\n",), ("a", "a"), ("x" * 201,)])
def test_what_is_no_fact_is_refused_at_decoration(names):
    """A bad name is found when the module is loaded, with the workflow's name."""
    with pytest.raises(ValueError, match="workflow 'bad': requires="):

        @workflow(name="bad", requires=names)
        async def bad(run: Run) -> None: ...


def test_a_credential_is_no_fact():
    """Names are shown everywhere."""
    with pytest.raises(SecretFound):

        @workflow(name="bad", requires=("sk-ant-api03-" + "a1B2" * 20,))
        async def bad(run: Run) -> None: ...


NEEDY = """
    from typing import Any
    from stepseven import Run, step, workflow

    ran = []

    async def load(client_id: str) -> dict[str, Any]:
        ran.append("load")
        return {"id": client_id}

    @step
    async def use(vat: str) -> str:
        ran.append("use")
        return vat

    @workflow(name="needy_crash", requires=("plan", "vat", "email"), client_record=load)
    async def body(run: Run) -> list[Any]:
        return [await use(run.client.get("vat")), run.client.get("plan"), run.client.get("email"), run.client.record["id"]]
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_crash_anywhere_asks_no_second_time(tmp_path: Path):
    """Die at every write of asking, of answering and of going on: each fact is asked for once, each answer counts."""
    code = module("needy_crash", NEEDY)

    async def story(layer: Layer) -> Any:
        layer.client("acme").set("plan", "gold", source="crm")
        outcome: Any = await layer.run(code.body(), client="acme", run_id="r")
        for _ in range(3):
            for question in await layer.questions():
                await layer.answer(question.id, f"my {question.context['needs']}", by="ann")
            outcome = await layer.resume("r")
        return outcome

    deaths = 0
    for state in every_death(tmp_path, story, lambda _: code.ran.clear()):
        assert living(state, story).result() == ["my vat", "gold", "my email", "acme"]
        assert code.ran.count("use") <= 2
        asked = rows(state, "SELECT key, n, status FROM question ORDER BY key")
        assert [(q["key"], q["n"], q["status"]) for q in asked] == [
            ("run.start/email", 1, "answered"), ("run.start/vat", 1, "answered"),
        ]  # fmt: skip
        kept = rows(state, "SELECT key, count(*) AS n FROM fact GROUP BY key ORDER BY key")
        assert [(f["key"], f["n"]) for f in kept] == [("email", 1), ("plan", 1), ("vat", 1)]
        deaths += 1
    assert deaths >= 8


# -- client_record ------------------------------------------------------------------------------------------------------


class Customer(BaseModel):
    id: str
    seats: int


async def test_the_record_is_read_once_before_the_body():
    """The outside record is a step of its own, read before the body; a resume sees what was read then."""
    seats = [5]
    order: list[str] = []

    async def load_customer(client_id: str) -> Customer:
        order.append("load")
        return Customer(id=client_id, seats=seats[0])

    @workflow(name="with_record", client_record=load_customer, on_drift="keep")
    async def body(run: Run) -> Any:
        order.append("body")
        record: Customer = run.client.record
        return [record.id, record.seats, await run.ask("Go on?"), (await again(run.client_id)).seats]

    again = body.loader

    async with testing.layer() as layer:
        await layer.run(body(), client="acme", run_id="r1")
        seats[0] = 9
        await layer.answer_next("yes", by="ann")
        outcome = await layer.resume("r1")
        assert outcome.result() == ["acme", 5, "yes", 5]
        assert order == ["load", "body", "body"]
        assert (await layer.checkpoint("r1"))["steps_complete"] == ["load_customer"]


async def test_a_plain_function_and_a_step_are_taken_too():
    """A plain function runs in a thread; a step keeps its options."""

    def load(client_id: str) -> dict[str, str]:
        return {"id": client_id}

    tries = []

    @step(name="load_slowly", attempts=3, summary=lambda c: c["id"])
    async def load_slowly(client_id: str) -> dict[str, str]:
        tries.append(1)
        if len(tries) < 3:
            raise TimeoutError
        return {"id": client_id}

    async with testing.layer() as layer:
        for i, reader in enumerate((load, load_slowly)):

            @workflow(name=f"reads{i}", client_record=reader)
            async def body(run: Run) -> Any:
                return run.client.record["id"]

            assert (await layer.run(body(), client="acme")).result() == "acme"
        assert len(tries) == 3


async def test_a_client_that_is_not_there_ends_the_run(begun):
    """No record, or 404: the run fails for good and says so; nobody is asked, nothing else runs."""

    class Gone(Exception):
        status_code = 404

    async def load(client_id: str) -> str | None:
        if client_id == "globex":
            raise Gone("no such customer")
        return None

    flow = needy(begun, client_record=load)
    async with testing.layer() as layer:
        outcome = await layer.run(flow(), client="acme", run_id="r1")
        assert (outcome.status, outcome.failure.reason, outcome.failure.step) == (
            "failed", "there is no client record for acme", "load",
        )  # fmt: skip
        outcome = await layer.run(flow(), client="globex", run_id="r2")
        assert (outcome.status, outcome.failure.kind) == ("failed", "fatal")
        assert "404" in outcome.failure.reason or "no such customer" in outcome.failure.reason
        assert (await layer.questions(status=None), begun) == ([], [])


async def test_a_record_that_cannot_be_read_is_asked_about(begun):
    """Like any read step: a question with its choices; given by hand it counts, skipped the run goes on without."""

    async def load_crm(client_id: str) -> dict[str, str]:
        raise Fixable("403 Forbidden")

    @workflow(name="closed_crm", client_record=load_crm)
    async def body(run: Run) -> Any:
        return run.client.record

    async with testing.layer() as layer:
        (question,) = (await layer.run(body(), client="acme", run_id="r1")).questions
        assert (question.step, question.kind) == ("load_crm", "failure")
        await layer.answer(question.id, {"choice": "value", "value": {"id": "c-1"}}, by="ann")
        assert (await layer.resume("r1")).result() == {"id": "c-1"}
        (question,) = (await layer.run(body(), client="acme", run_id="r2")).questions
        await layer.answer(question.id, "skip", by="ann")
        assert (await layer.resume("r2")).result() is None


async def test_the_record_belongs_to_the_workflow():
    """Inside a step's code it is refused, and so it is in a workflow that reads none: in a sentence."""
    runs: list[Run] = []

    @step(name="peeks")
    async def peeks() -> str:
        try:
            return str(runs[-1].client.record)
        except NoRun as error:
            return str(error)

    async def load(client_id: str) -> str:
        return "x"

    @workflow(name="peeking", client_record=load)
    async def peeking(run: Run) -> str:
        runs.append(run)
        return await peeks()

    @workflow(name="without")
    async def without(run: Run) -> str:
        try:
            return str(run.client.record)
        except StepsevenError as error:
            return str(error)

    async with testing.layer() as layer:
        assert "in a step's code" in (await layer.run(peeking(), client="acme")).result()
        assert "reads no client record" in (await layer.run(without(), client="acme")).result()


@step(name="writes_record", effect="write")
async def writes_record(client_id: str) -> str:
    """No reader."""
    return client_id


async def two(client_id: str, more: str) -> str:
    """Takes too much."""
    return client_id + more


@pytest.mark.parametrize(
    "load,why",
    [
        (7, "cannot be called"),
        (lambda client: client, "no name"),
        (writes_record, "only read"),
        (two, "client's id and nothing else"),
    ],
)
def test_what_is_no_reader_is_refused_at_decoration(load, why):
    """Found when the module is loaded."""
    with pytest.raises((TypeError, ValueError), match=f"workflow 'bad': client_record=.*{why}"):

        @workflow(name="bad", client_record=load)
        async def bad(run: Run) -> None: ...


# -- Fixable(needs=…) -----------------------------------------------------------------------------------------------------

FIXABLE = """
    from stepseven import Fixable, Run, attempt, step, workflow

    ran = []

    @step
    async def register(client: str) -> str:
        ran.append(dict(attempt().given))
        if "vat_number" not in attempt().given:
            raise Fixable("no VAT number", needs="vat_number", ask="What is Acme's VAT number?")
        return attempt().given["vat_number"]

    @workflow(name="fixable_needs")
    async def body(run: Run) -> str:
        return await register(run.client_id)
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_what_a_step_needs_is_asked_once_whatever_dies(tmp_path: Path):
    """Die at every write: the step is given the answer, the fact is there once, the next run of the client does not ask."""
    code = module("fixable_needs", FIXABLE)

    async def story(layer: Layer) -> Any:
        await layer.run(code.body(), client="acme", run_id="r")
        for question in await layer.questions():
            await layer.answer(question.id, "DE1", by="ann")
        await layer.resume("r")
        return await layer.run(code.body(), client="acme", run_id="next")

    deaths = 0
    for state in every_death(tmp_path, story, lambda _: code.ran.clear()):
        assert living(state, story).result() == "DE1"
        assert [q["n"] for q in rows(state, "SELECT n FROM question")] == [1]
        assert [(f["key"], f["value"]) for f in rows(state, "SELECT key, value FROM fact")] == [("vat_number", '"DE1"')]
        assert code.ran[-1] == {"vat_number": "DE1"}
        deaths += 1
    assert deaths > 8


async def test_a_step_that_needs_a_fact_goes_on_when_it_is_set():
    """Set by other means: the question is withdrawn, the step is tried with it, and nobody is asked."""
    code = module("fixable_set", FIXABLE.replace("fixable_needs", "fixable_set"))
    async with testing.layer() as layer:
        (question,) = (await layer.run(code.body(), client="acme", run_id="r1")).questions
        layer.client("acme").set("vat_number", "DE1")
        with pytest.raises(QuestionExpired):
            await layer.answer(question.id, "DE2", by="ann")
        assert (await layer.resume("r1")).result() == "DE1"


def test_the_run_is_the_same_in_a_fresh_process(tmp_path: Path):
    """Parked in one process, answered in a second, ended in a third."""
    code = module("needy_fresh", NEEDY.replace("needy_crash", "needy_fresh"))

    async def answer(layer: Layer) -> Any:
        for question in await layer.questions():
            await layer.answer(question.id, question.context["needs"], by="ann")
        return True

    first = living(tmp_path, lambda layer: layer.run(code.body(), client="acme", run_id="r"))
    assert len(first.questions) == 3
    assert living(tmp_path, answer)
    assert dying(tmp_path, 1 << 30, "after", lambda layer: layer.resume("r")).result() == ["vat", "plan", "email", "acme"]
