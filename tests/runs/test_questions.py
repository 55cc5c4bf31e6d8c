"""Questions of a run: asked once, answered once, by id, from anywhere.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, field_validator

from stepseven import (
    AlreadyAnswered,
    AskExpired,
    InvalidAnswer,
    Layer,
    Option,
    Outcome,
    Question,
    QuestionExpired,
    Run,
    UnknownQuestion,
    step,
    testing,
    workflow,
)
from stepseven.testing import Clock, TestLayer
from tests.servers import databases


class Place:
    """One store in a file, one clock, and any number of workers after each other."""

    def __init__(self, folder: Path) -> None:
        self.url = databases.url(folder)
        self.clock = Clock()
        self.seed = 0

    def layer(self, **more: Any) -> TestLayer:
        """The next worker."""
        self.seed += 1
        return testing.layer(self.url, clock=self.clock, seed=self.seed, **more)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty store."""
    return Place(tmp_path)


def asks(name: str = "asks", **how: Any) -> Any:
    """A workflow that asks one thing."""

    async def body(run: Run) -> Any:
        return await run.ask("Is it approved?", **how)

    return workflow(name=name)(body)


async def one(layer: TestLayer, outcome: Outcome[Any]) -> Question:
    """The one open question."""
    (question,) = outcome.questions
    assert outcome.waiting_for == "person"
    return question


# -- one answer, by id --------------------------------------------------------------------------------------------------


async def test_an_answer_given_after_the_process_ended_is_used(place: Place):
    """The run parks, another process answers, a third goes on with the answer."""
    job = asks(options=["yes", "no"])
    async with place.layer() as layer:
        question = await one(layer, await layer.run(job(), client="acme", run_id="r1"))
    async with place.layer() as layer:
        answered = await layer.answer(question.id, "yes", by="ann", note="as agreed")
        assert (answered.status, answered.answer, answered.answered_by, answered.note) == ("answered", "yes", "ann", "as agreed")
    async with place.layer() as layer:
        assert (await layer.resume("r1")).value == "yes"


async def test_a_question_takes_one_answer_ever(place: Place):
    """A second answer changes nothing and is told who answered, what, and when."""
    async with place.layer() as layer:
        question = await one(layer, await layer.run(asks(options=["yes", "no"])(), client="acme", run_id="r1"))
        await layer.answer(question.id, "yes", by="ann")
        with pytest.raises(AlreadyAnswered, match="by ann at 2026-01-05") as told:
            await layer.answer(question.id, "no", by="bob")
        assert (told.value.by, told.value.answer) == ("ann", "yes")
        assert (await layer.resume("r1")).value == "yes"
        with pytest.raises(AlreadyAnswered):
            await layer.answer(question.id, "no", by="bob")


async def test_of_two_answers_at_once_one_wins(place: Place):
    """Twenty people press at once, over ten stores on one file: one answer is kept, all others are told by whom."""
    async with place.layer() as layer:
        question = await one(layer, await layer.run(asks(type=int)(), client="acme", run_id="r1"))
    told: list[str] = []
    kept: list[int] = []
    start = threading.Barrier(10)

    def press(i: int) -> None:
        async def answer() -> None:
            async with testing.layer(place.url, clock=Clock(), seed=100 + i) as own:
                start.wait()
                for n in (2 * i, 2 * i + 1):
                    try:
                        await own.answer(question.id, n, by=f"person {n}")
                    except AlreadyAnswered as late:
                        told.append(str(late.by))
                    else:
                        kept.append(n)

        asyncio.run(answer())

    threads = [threading.Thread(target=press, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert len(kept) == 1
    assert set(told) == {f"person {kept[0]}"}
    assert len(told) == 19


async def test_an_unknown_question_names_the_open_ones(place: Place):
    """An id that matches nothing is refused with the ids that are open; nothing is swallowed."""
    async with place.layer() as layer:
        with pytest.raises(UnknownQuestion, match="no question is open"):
            await layer.answer("q_nothing", "yes", by="ann")
        question = await one(layer, await layer.run(asks()(), client="acme", run_id="r1"))
        with pytest.raises(UnknownQuestion) as told:
            await layer.answer("q_nothing", "yes", by="ann")
    assert told.value.open_ids == (question.id,)


async def test_two_asks_at_once_have_their_own_answers(place: Place):
    """Two branches that ask at the same time get two ids; answered in either order, each gets its own answer."""

    async def body(run: Run) -> list[str]:
        return list(await asyncio.gather(run.ask("First?"), run.ask("Second?")))

    job = workflow(name="both")(body)
    for run_id, order in (("r1", (0, 1)), ("r2", (1, 0))):
        async with place.layer() as layer:
            outcome = await layer.run(job(), client="acme", run_id=run_id)
            questions = sorted(outcome.questions, key=lambda q: q.text)
            assert len({q.id for q in questions}) == 2
            for i in order:
                await layer.answer(questions[i].id, f"answer {i}", by="ann")
            assert (await layer.resume(run_id)).value == ["answer 0", "answer 1"]


async def test_one_of_two_answers_lets_that_branch_go_on(place: Place):
    """When one of two open questions is answered, its branch goes on and the other keeps waiting."""
    after: list[str] = []

    @step
    async def use(answer: str) -> str:
        after.append(answer)
        return answer

    async def branch(run: Run, text: str) -> str:
        return await use(await run.ask(text))

    async def body(run: Run) -> list[str]:
        return list(await asyncio.gather(branch(run, "First?"), branch(run, "Second?")))

    async with place.layer() as layer:
        outcome = await layer.run(workflow(name="half")(body)(), client="acme", run_id="r1")
        second = next(q for q in outcome.questions if q.text == "Second?")
        await layer.answer(second.id, "two", by="ann")
        outcome = await layer.resume("r1")
        assert after == ["two"]
        await layer.answer((await one(layer, outcome)).id, "one", by="ann")
        assert (await layer.resume("r1")).value == ["one", "two"]
    assert after == ["two", "one"]


# -- what is an answer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Amount:
    value: int
    currency: str


class Contact(BaseModel):
    name: str
    mail: str | None = None


@pytest.mark.parametrize(
    "type_, given, value",
    [
        (str, "", ""),
        (int, 0, 0),
        (bool, False, False),
        (float, 0, 0.0),
        (int | None, None, None),
        (Any, None, None),
        (Any, [], []),
        (list[int], [1, 2], [1, 2]),
        (Literal["a", "b"], "b", "b"),
        (Amount, {"value": 3, "currency": "EUR"}, Amount(3, "EUR")),
        (Contact, {"name": "Ann"}, Contact(name="Ann")),
    ],
)
async def test_a_typed_answer_comes_back_as_its_type(place: Place, type_: Any, given: Any, value: Any):
    """null, "", false and 0 are answers; an answer comes back as the asked type, the first time and after a resume."""
    got: list[Any] = []

    async def body(run: Run) -> str:
        got.append(await run.ask("How much?", type=type_))
        return str(await run.ask("And then?"))

    job = workflow(name="typed")(body)
    async with place.layer() as layer:
        question = await one(layer, await layer.run(job(), client="acme", run_id="r1"))
        await layer.answer(question.id, given, by="ann")
        question = await one(layer, await layer.resume("r1"))
        await layer.answer(question.id, "", by="ann")
        assert (await layer.resume("r1")).value == ""
    assert got == [value, value]
    assert type(got[0]) is type(value)


@pytest.mark.parametrize(
    "type_, wrong",
    [
        (str, None),
        (str, 3),
        (int, "3"),
        (int, True),
        (int, 3.5),
        (Literal["a", "b"], "c"),
        (list[int], [1, "x"]),
        (Amount, {"value": 3}),
        (Amount, {"value": "x", "currency": "EUR"}),
        (list[Amount], [{"value": 3}]),
        (Contact, {"name": "Ann", "mail": 7}),
        (Any, float("nan")),
    ],
)
async def test_an_answer_of_another_type_is_refused_and_the_question_stays_open(place: Place, type_: Any, wrong: Any):
    """An answer outside the schema is refused with a sentence; the question stays open and takes a right one."""
    async with place.layer() as layer:
        question = await one(layer, await layer.run(asks(type=type_)(), client="acme", run_id="r1"))
        with pytest.raises(InvalidAnswer) as told:
            await layer.answer(question.id, wrong, by="ann")
        assert told.value.why
        assert [q.id for q in await layer.questions()] == [question.id]


@pytest.mark.parametrize("wrong", ["maybe", "", None, False, 0, {"choice": "maybe"}, ["yes"]])
async def test_only_the_options_are_answers(place: Place, wrong: Any):
    """With options nothing else is an answer; the id alone or ``{"choice": id}`` is."""
    async with place.layer() as layer:
        job = asks(options=["yes", Option(id="no", label="No, stop")])
        question = await one(layer, await layer.run(job(), client="acme", run_id="r1"))
        assert [(o.id, o.label) for o in question.options] == [("yes", "yes"), ("no", "No, stop")]
        with pytest.raises(InvalidAnswer, match="yes, no"):
            await layer.answer(question.id, wrong, by="ann")
        await layer.answer(question.id, {"choice": "no"}, by="ann")
        assert (await layer.resume("r1")).value == "no"


class Iban(BaseModel):
    iban: str

    @field_validator("iban")
    @classmethod
    def german(cls, v: str) -> str:
        if not v.startswith("DE"):
            raise ValueError("not a German account")
        return v


async def test_an_answer_only_the_type_can_refuse_is_asked_for_again(place: Place):
    """An answer that passes the schema but not the type is asked for again with the reason: no exception in the workflow."""
    raised: list[BaseException] = []

    async def body(run: Run) -> str:
        try:
            return str((await run.ask("Which account?", type=Iban)).iban)
        except Exception as error:
            raised.append(error)
            raise

    job = workflow(name="account")(body)
    async with place.layer() as layer:
        first = await one(layer, await layer.run(job(), client="acme", run_id="r1"))
        await layer.answer(first.id, {"iban": "FR1"}, by="ann")
    async with place.layer() as layer:
        second = await one(layer, await layer.resume("r1"))
        assert second.id != first.id
        assert "not a German account" in second.text
        await layer.answer(second.id, {"iban": "DE1"}, by="ann")
        assert (await layer.resume("r1")).value == "DE1"
    assert raised == []


# -- deadlines --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("default", [None, "", False, "no"])
async def test_after_the_deadline_the_default_counts(place: Place, default: Any):
    """Nobody answered: the run that parked is woken by its timer and goes on with the declared default, also if it is null."""
    job = asks(type=Any, deadline=86400, default=default)
    async with place.layer() as layer:
        outcome = await layer.run(job(), client="acme", run_id="r1")
        question = await one(layer, outcome)
        assert outcome.until_us == question.deadline_us == place.clock.now_us + 86_400_000_000
    place.clock.advance(timedelta(days=1, seconds=1))
    async with place.layer() as layer:
        outcome = await layer.resume("r1")
        assert (outcome.status, outcome.value) == ("done", default)
        assert [q.status for q in await layer.questions(status=None)] == ["expired"]


async def test_without_a_default_the_ask_expires_and_is_no_refusal(place: Place):
    """Without a default ``AskExpired`` is raised, which the workflow tells from an answer "no"; the same after a resume."""

    async def body(run: Run) -> str:
        try:
            first = await run.ask("Approved?", options=["yes", "no"], deadline=timedelta_s(days=2))
        except AskExpired as expired:
            first = f"nobody: {expired.text}"
        return f"{first} / {await run.ask('Then what?')}"

    async with place.layer() as layer:
        job = workflow(name="expires")(body)
        question = await one(layer, await layer.run(job(), client="acme", run_id="r1"))
        place.clock.advance(timedelta(days=3))
        with pytest.raises(QuestionExpired, match="its deadline passed"):
            await layer.answer(question.id, "yes", by="ann")
        then = await one(layer, await layer.resume("r1"))
        with pytest.raises(QuestionExpired):
            await layer.answer(question.id, "yes", by="ann")
        await layer.answer(then.id, "stop", by="ann")
        assert (await layer.resume("r1")).value == "nobody: Approved? / stop"


def timedelta_s(**parts: float) -> float:
    """Seconds."""
    return timedelta(**parts).total_seconds()


async def test_a_deadline_in_memory_expires_by_itself(place: Place):
    """A run that is still loaded because another branch works notices the deadline itself."""
    async with testing.layer() as layer:
        outcome = await layer.run(asks(deadline=10, default="late", type=str)(), client="acme", run_id="r1", wait=60)
    assert outcome.value == "late"


# -- what it was given on -----------------------------------------------------------------------------------------------------


async def test_an_answer_does_not_outlive_what_it_was_given_on(place: Place):
    """If ``about=`` changed, the old answer is shown and not used: the question is asked again."""
    price = 100

    async def two(run: Run) -> str:
        answer = await run.ask("Send the offer?", options=["yes", "no"], about={"price": price})
        return f"{answer} {await run.ask('And?')}"

    job = workflow(name="offer")(two)
    async with place.layer() as layer:
        first = await one(layer, await layer.run(job(), client="acme", run_id="r1"))
        await layer.answer(first.id, "yes", by="ann")
        await layer.resume("r1")
        price = 120
        outcome = await layer.resume("r1")
        second = next(q for q in outcome.questions if q.text.startswith("Send the offer?"))
        assert second.id != first.id
        assert second.context["earlier_answer"] == {"answer": "yes", "by": "ann"}
        assert second.context["facts"] == {"about": {"price": 120}}
        assert '"yes" by ann' in second.text


async def test_an_open_question_whose_subject_changed_is_taken_back(place: Place):
    """If ``about=`` changes while the question is open, it is withdrawn and asked anew: one is open."""
    price = 100

    async def body(run: Run) -> str:
        return str(await run.ask("Send the offer?", about={"price": price}))

    async with place.layer() as layer:
        job = workflow(name="taken_back")(body)
        first = await one(layer, await layer.run(job(), client="acme", run_id="r1"))
        price = 120
        second = await one(layer, await layer.resume("r1"))
        assert second.id != first.id
        with pytest.raises(QuestionExpired):
            await layer.answer(first.id, "yes", by="ann")
        price = 100  # and back: what was taken back stays taken back
        third = await one(layer, await layer.resume("r1"))
        assert third.id not in (first.id, second.id)


async def test_an_answer_on_an_earlier_result_is_shown_when_that_result_changed(place: Place):
    """An earlier step that ran again with another result makes the old answer shown, not used; with the same, it stands."""
    pulled = {"n": 1}

    @step
    async def pull() -> int:
        return pulled["n"]

    @step(check=lambda n: n > 0)
    async def check(n: int) -> int:
        return n if pulled["n"] > 1 else -1

    async def body(run: Run) -> str:
        n = await pull()
        answer = await run.ask("Approved?", options=["yes", "no"])
        return f"{answer} {await check(n)}"

    job = workflow(name="built_on")(body)
    for run_id, new in (("r1", 2), ("r2", 1)):
        pulled["n"] = 1
        async with place.layer() as layer:
            first = await one(layer, await layer.run(job(), client="acme", run_id=run_id))
            await layer.answer(first.id, "yes", by="ann")
            failure = await one(layer, await layer.resume(run_id))
            pulled["n"] = new
            await layer.answer(failure.id, "rerun:pull", by="ann")
        async with place.layer() as layer:
            question = await one(layer, await layer.resume(run_id))
        async with place.layer() as layer:  # decided from the records: the next process sees the same
            assert (await one(layer, await layer.resume(run_id))).id == question.id
            if new == 2:
                assert question.text.startswith("Approved?")
                assert question.context["earlier_answer"] == {"answer": "yes", "by": "ann"}
                await layer.answer(question.id, "no", by="bob")
                assert (await layer.resume(run_id)).value == "no 2"
            else:
                assert question.kind == "failure"


# -- waking -----------------------------------------------------------------------------------------------------------------


async def test_an_answer_given_in_the_moment_the_question_is_stored_is_kept(place: Place):
    """An answer that comes between the question's commit and the park is not lost: the run goes on at once."""
    job = asks()
    async with place.layer() as layer:

        def at_once(run_id: str, what: str, details: dict[str, Any]) -> None:
            if what == "asked":
                tasks.append(asyncio.ensure_future(layer.answer(details["id"], "early", by="ann")))

        tasks: list[asyncio.Future[Any]] = []
        layer.services.watchers.append(at_once)
        outcome = await layer.run(job(), client="acme", run_id="r1")
        assert outcome.value == "early"


async def test_an_answer_to_a_loaded_run_wakes_it(place: Place):
    """A run that is loaded (another branch works) goes on within a second of an answer from another process."""
    release = asyncio.Event()
    got: list[str] = []

    @step
    async def busy() -> str:
        await release.wait()
        return "worked"

    async def asker(run: Run) -> str:
        got.append(await run.ask("Approved?"))
        return got[0]

    async def body(run: Run) -> list[str]:
        return list(await asyncio.gather(busy(), asker(run)))

    url = place.url
    async with Layer(url) as layer:
        running = asyncio.ensure_future(layer.run(workflow(name="loaded_ask")(body)(), client="acme", run_id="r1"))
        while not (questions := await layer.questions()):
            await asyncio.sleep(0.01)
        code = f"""
            import asyncio
            from stepseven import Layer
            async def main():
                async with Layer({url!r}) as layer:
                    await layer.answer({questions[0].id!r}, "from outside", by="bob")
            asyncio.run(main())
        """
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", textwrap.dedent(code))
        assert await process.wait() == 0
        answered = time.monotonic()
        while not got:
            await asyncio.sleep(0.01)
        assert time.monotonic() - answered < 1.5
        release.set()
        assert (await running).value == ["worked", "from outside"]


async def test_an_answer_wakes_whoever_waits_for_the_parked_run(place: Place):
    """``run(wait=…)`` of a parked run goes on when another process answers."""
    url = place.url
    async with Layer(url) as layer:
        running = asyncio.ensure_future(layer.run(asks()(), client="acme", run_id="r1", wait=30))
        while not (questions := await layer.questions()):
            await asyncio.sleep(0.01)
        code = f"""
            import asyncio
            from stepseven import Layer
            async def main():
                async with Layer({url!r}) as layer:
                    await layer.answer({questions[0].id!r}, "from outside", by="bob")
            asyncio.run(main())
        """
        while (await layer.runs())[0].status != "waiting":
            await asyncio.sleep(0.01)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", textwrap.dedent(code))
        assert await process.wait() == 0
        assert (await asyncio.wait_for(running, 5)).value == "from outside"


# -- remembered -----------------------------------------------------------------------------------------------------------------


async def test_a_remembered_answer_is_not_asked_for_again(place: Place):
    """``remember=`` makes the answer the client's fact: the next run of this client does not ask, another client's does."""
    job = asks(options=["yes", "no"], remember="discount.approved")
    async with place.layer() as layer:
        question = await one(layer, await layer.run(job(), client="acme", run_id="r1"))
        await layer.answer(question.id, "yes", by="ann")
        assert (await layer.resume("r1")).value == "yes"
        assert (await layer.run(job(), client="acme", run_id="r2")).value == "yes"
        assert (await layer.run(job(), client="globex", run_id="r3")).status == "waiting"


async def test_a_runs_own_answer_stays_its_own(place: Place):
    """A replay uses the run's own answer, also when the remembered fact has changed since."""

    async def body(run: Run) -> str:
        first = await run.ask("Approved?", options=["yes", "no"], remember="approved")
        return f"{first} {await run.ask('Next?')}"

    job = workflow(name="own_answer", on_drift="keep")(body)
    async with place.layer() as layer:
        question = await one(layer, await layer.run(job(), client="acme", run_id="r1"))
        await layer.answer(question.id, "yes", by="ann")
        following = await one(layer, await layer.resume("r1"))

        async def change(run: Run) -> None:
            run.client.set("approved", "no")

        await layer.run(workflow(name="change")(change)(), client="acme", run_id="r2")
        await layer.answer(following.id, "done", by="ann")
        assert (await layer.resume("r1")).value == "yes done"


async def test_a_remembered_answer_holds_as_long_as_it_is_valid(place: Place):
    """With ``valid="90d"`` the fact holds 90 days; after that the question is asked again."""
    job = asks(remember="approved", valid="90d")
    async with place.layer() as layer:
        question = await one(layer, await layer.run(job(), client="acme", run_id="r1"))
        await layer.answer(question.id, "yes", by="ann")
        place.clock.advance(timedelta(days=89))
        assert (await layer.run(job(), client="acme", run_id="r2")).value == "yes"
        place.clock.advance(timedelta(days=2))
        assert (await layer.run(job(), client="acme", run_id="r3")).status == "waiting"


# -- nested -------------------------------------------------------------------------------------------------------------


async def test_a_nested_ask_is_not_asked_twice(place: Place):
    """An ask inside items of a map, parked and freed from memory, is answered by its own id and never asked again."""

    async def item(name: str) -> str:
        return f"{name}: {await runs[-1].ask(f'Send {name}?')}"

    runs: list[Run] = []

    async def body(run: Run) -> list[Any]:
        runs.append(run)
        return await run.map(item, ["a", "b", "c"])

    job = workflow(name="nested")(body)
    async with place.layer() as layer:
        outcome = await layer.run(job(), client="acme", run_id="r1")
        assert sorted(q.text for q in outcome.questions) == ["Send a?", "Send b?", "Send c?"]
    for name in ("c", "a", "b"):
        async with place.layer() as layer:
            question = next(q for q in await layer.questions() if q.text == f"Send {name}?")
            await layer.answer(question.id, name.upper(), by="ann")
            outcome = await layer.resume("r1")
    assert outcome.value == ["a: A", "b: B", "c: C"]


async def test_questions_of_an_ended_run_take_no_answer(place: Place):
    """When a run is cancelled its questions are withdrawn: the inbox is empty, an answer is refused."""
    async with place.layer() as layer:
        question = await one(layer, await layer.run(asks()(), client="acme", run_id="r1"))
        await layer.cancel("r1", reason="not needed", by="ann")
        assert await layer.questions() == []
        with pytest.raises(QuestionExpired, match="no longer needs it"):
            await layer.answer(question.id, "yes", by="ann")


async def test_one_question_from_several_tasks_at_once(place: Place):
    """Tasks that ask the same thing at the same time share one question, also if its answer does not fit."""

    class Even(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("not even")
            return n

    @step(name="several_tasks_counted")
    async def counted(x: int) -> int:
        await asyncio.sleep(0)
        return x

    async def body(run: Run) -> list[int]:
        async def task() -> int:
            return int((await run.ask("How many?", type=Even)).n)

        async def company(i: int) -> None:
            for k in range(10):  # the store is busy: a question is not stored at once
                await counted(i * 100 + k)

        others = [asyncio.create_task(company(i)) for i in range(6)]
        answers = await asyncio.gather(*(asyncio.create_task(task()) for _ in range(3)))
        await asyncio.gather(*others)
        return list(answers)

    async with Layer(place.url, durability="full") as layer:
        outcome = await layer.run(workflow(name="several_tasks")(body)(), client="acme", run_id="r1")
        for answer in (3, 4):
            (question,) = outcome.questions
            assert (question.kind, question.step) == ("ask", None)
            await layer.answer(question.id, {"n": answer}, by="ann")
            outcome = await layer.resume("r1")
    assert outcome.result() == [4, 4, 4]


async def test_a_fact_that_was_not_known_stays_so(place: Place):
    """``run.client.get`` gave nothing; a question then finds the fact that another run set: a replay still gives nothing."""
    seen: list[Any] = []

    @workflow(name="learns")
    async def learns(run: Run) -> None:
        run.client.set("plan", "gold")

    @workflow(name="looks_first", on_drift="keep")
    async def looks_first(run: Run) -> Any:
        seen.append(run.client.get("plan"))
        await layer.run(learns(), client="acme", run_id="other")
        found = await run.ask("Which plan?", remember="plan")
        return [found, run.client.get("plan"), await run.ask("Go on?")]

    async with place.layer() as layer:
        question = (await layer.run(looks_first(), client="acme", run_id="r1")).questions[0]
        assert question.text == "Go on?"
        await layer.answer(question.id, "yes", by="ann")
        outcome = await layer.resume("r1")
    assert (outcome.result(), seen) == (["gold", None, "yes"], [None, None])


async def test_each_caller_waits_as_it_said(place: Place):
    """Two callers of one run: who does not wait gets the parked run at once, before and after one who waits an hour."""
    flow = asks("each_caller")
    async with place.layer() as layer:
        patient = asyncio.create_task(layer.run(flow(), client="acme", run_id="r1", wait=3600))
        while not await layer.questions():
            await asyncio.sleep(0)
        outcome = await asyncio.wait_for(layer.run(flow(), client="acme", run_id="r1"), 10)
        assert (outcome.status, patient.done()) == ("waiting", False)
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        while not patient.done():
            place.clock.advance(timedelta(seconds=1))
            await asyncio.sleep(0)
        assert (await patient).result() == "yes"


async def test_who_comes_second_may_wait_longer(place: Place):
    """A caller that waits joins a run which another, who does not, has begun: it sees the run end."""
    flow = asks("second_waits")
    async with place.layer() as layer:
        first = asyncio.create_task(layer.run(flow(), client="acme", run_id="r1"))
        await asyncio.sleep(0)
        second = asyncio.create_task(layer.run(flow(), client="acme", run_id="r1", wait=3600))
        question = (await asyncio.wait_for(first, 10)).questions[0]
        assert not second.done()
        await layer.answer(question.id, "yes", by="ann")
        while not second.done():
            place.clock.advance(timedelta(seconds=1))
            await asyncio.sleep(0)
        assert (await second).result() == "yes"
