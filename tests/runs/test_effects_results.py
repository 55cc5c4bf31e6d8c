"""Results of writes that cannot be kept, do not fit or got lost: it did happen, and is never done again for the value's sake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from stepseven import Run, attempt, step, workflow
from tests.runs.outside import DROP
from tests.runs.worldly import claims, kinds, layers, outside, post, the_question
from tests.servers import databases


@pytest.mark.parametrize(
    "result, why",
    [({1: "int keys"}, "cannot be recorded"), ({"k": "sk-ant-api03-" + "a" * 90}, "looks like"), ("x" * (17 << 20), "limit")],
)
async def test_a_refused_result_did_happen(result: Any, why: str) -> None:
    """A result that cannot be kept settles the write as done; a person gives the value; nothing is sent again."""
    with outside() as world:

        @step(effect="write", key="n")
        async def post_it(n: str) -> Any:
            await post(world, "post_it", n, key=attempt().idempotency_key)
            return result

        @workflow
        async def one(run: Run) -> list[Any]:
            return [await post_it("A"), await run.map(post_it, ["A"])]

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            question = the_question(outcome)
            assert question.kind.value == "required"
            assert why in question.text
            assert [c["state"] for c in claims(layer)] == ["done"]
            assert "sk-ant" not in str(claims(layer))
            await layer.answer(question.id, {"number": 7}, by="ann")
            outcome = await layer.resume("r")
            assert outcome.result() == [{"number": 7}, [{"number": 7}]], "known from then on"
    assert world.counts() == {"post_it": 1}


@dataclass
class Checked:
    """A type that alone knows which numbers there are: its schema does not tell."""

    number: str

    def __post_init__(self) -> None:
        if self.number == "soon":
            raise ValueError("that is no number")


async def test_a_receipt_that_does_not_fit_is_asked_for_again() -> None:
    """What a person enters is checked by the step's type; what does not fit is asked for once more, nothing is done again."""
    with outside() as world:
        world.moods = [DROP]

        @step(effect="write", key="n")
        async def post_it(n: str) -> Checked:
            made = await post(world, "post_it", n, key=attempt().idempotency_key)
            return Checked(str(made["n"]))

        @workflow
        async def one(run: Run) -> Checked:
            return await post_it("A")

        async with layers() as layer:
            outcome = await layer.run(one(), client="acme", run_id="r")
            wrong, right = {"number": "soon"}, {"number": "7"}
            await layer.answer(the_question(outcome).id, {"choice": "happened", "receipt": wrong}, by="ann")
            outcome = await layer.resume("r")
            assert kinds(outcome) == ["required"]
            await layer.answer(the_question(outcome).id, right, by="ann")
            assert (await layer.resume("r")).result() == Checked("7")
    assert world.counts() == {"post_it": 1}


async def test_masked_results_are_masked_from_the_first_time_on() -> None:
    """secrets="mask": the caller gets the masked value the first time, as on every later one; the store never has it."""

    @step(effect="write", key="n", secrets="mask")
    async def post_it(n: str) -> dict[str, str]:
        return {"token": "sk-ant-api03-" + "a" * 90}

    @workflow
    async def one(run: Run) -> dict[str, str]:
        first = await post_it("A")
        await run.ask("go on?", options=["yes"])
        assert first == await post_it("A")
        return first

    async with layers() as layer:
        await layer.run(one(), client="acme", run_id="r")
        await layer.answer_next("yes")
        made = (await layer.resume("r")).result()
        assert "sk-ant" not in str(made) + str(claims(layer))


async def test_a_receipt_whose_artifact_is_gone_is_not_sent_for_again(tmp_path: Any) -> None:
    """The record's large result was lost from the artifact store: the receipt has it; nothing is done again."""
    with outside() as world:

        @step(effect="write", key="n")
        async def post_it(n: str) -> str:
            await post(world, "post_it", n, key=attempt().idempotency_key)
            return "x" * 100_000

        @workflow
        async def one(run: Run) -> int:
            await post_it("A")
            await run.ask("go on?", options=["yes"])
            return len(await post_it("A"))

        async with layers(databases.url(tmp_path)) as layer:
            await layer.run(one(), client="acme", run_id="r")
            for file in (tmp_path / "s.db.artifacts").rglob("*"):
                if file.is_file():
                    file.unlink()
            await layer.answer_next("yes")
            assert (await layer.resume("r")).result() == 100_000
    assert world.counts() == {"post_it": 1}


async def test_a_method_or_plain_function_that_returns_a_coroutine_is_awaited() -> None:
    """A plain function that hands back a coroutine is awaited within its time, not recorded as a result."""
    with outside() as world:

        async def really(n: str) -> int:
            return int((await post(world, "post_it", n, key=attempt().idempotency_key))["n"])

        @step(effect="write", key="n")
        def post_it(n: str) -> int:
            return really(n)  # type: ignore[return-value]

        @workflow
        async def one(run: Run) -> int:
            return await post_it("A")

        async with layers() as layer:
            assert (await layer.run(one(), client="acme")).result() == 1
    assert world.counts() == {"post_it": 1}
