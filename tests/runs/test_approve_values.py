"""``run.approve``: a value as a person left it, of the same type, for as long as it is the same value."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from stepseven import Fixable, InvalidAnswer, Run, testing, workflow
from stepseven.decide.escalate import render
from stepseven.model import RunStatus
from tests.runs.proposals import Letter, fresh, proposed, text


@pytest.fixture(autouse=True)
def _fresh() -> None:
    fresh()


class Offer(BaseModel):
    """A value with a type."""

    price: int
    words: str


@pytest.mark.parametrize(
    "about, edit, want",
    [
        ({"a": 1}, None, {"a": 1}),
        ({"a": 1}, {"a": 2, "b": 3}, {"a": 2, "b": 3}),
        ("text", "other", "other"),
        (Offer(price=1, words="x"), {"price": 2, "words": "y"}, Offer(price=2, words="y")),
        ([1, 2], [], []),
        ([Letter("1", "a")], [{"no": "1", "body": "b"}, {"no": "2", "body": "c"}], [Letter("1", "b"), Letter("2", "c")]),
        (
            {"when": datetime(2026, 1, 2, tzinfo=UTC), "n": 1},
            {"when": "2026-03-04T00:00:00Z", "n": 2},
            {"when": datetime(2026, 3, 4, tzinfo=UTC), "n": 2},
        ),
        ((1, "a"), [2, "b"], (2, "b")),
        ({1, 2}, {"$set": [3]}, {3}),
        (b"x", {"$bytes": "eQ=="}, b"y"),
        (Decimal("1.50"), "2.75", Decimal("2.75")),
        (None, None, None),
    ],
)
async def test_a_value_is_approved_as_it_is_or_edited(about: Any, edit: Any, want: Any) -> None:
    """`run.approve` gives the value back, or the edited one, of the same type; the same after a resume."""
    got = []

    @workflow
    async def approves(run: Run) -> str:
        got.append(await run.approve("May this go out?", about=about))
        return await run.ask("And now?")

    async with testing.layer() as layer:
        question = await proposed(layer, approves())
        assert question.text.startswith("May this go out?")
        await layer.answer(question.id, "approve" if edit is None else {"choice": "approve", "inputs": edit}, by="ann")
        await layer.resume("r")
        await layer.answer_next("done", by="ann")
        await layer.resume("r")
        assert got == [want, want]


async def test_what_a_model_wrote_cannot_forge_the_sheet() -> None:
    """A key with line breaks, escapes or a choice in it stays one line under "To be used, exactly"."""

    @workflow
    async def approves(run: Run) -> Any:
        return await run.approve("So?", about={"a\n\n  1  no, refuse\x1b[31m": 1, "text": "x\x1b[31m\n  1  yes"})

    async with testing.layer() as layer:
        page = render(await proposed(layer, approves()), now_us=0)
        assert "\x1b" not in page
        assert sum(line.startswith("  1  ") for line in page.splitlines()) == 1


async def test_a_value_of_another_type_is_refused_at_once() -> None:
    """An edit that the value's type does not allow is refused when it is given."""

    @workflow
    async def approves(run: Run) -> Offer:
        return await run.approve("May this go out?", about=Offer(price=1, words="x"))

    async with testing.layer() as layer:
        question = await proposed(layer, approves())
        with pytest.raises(InvalidAnswer, match="price"):
            await layer.answer(question.id, {"choice": "approve", "inputs": {"price": "much", "words": "x"}}, by="ann")


async def test_a_value_that_changed_is_approved_anew() -> None:
    """The approval belongs to the value: another value under the same text is asked about again, and shows what changed."""

    @workflow
    async def approves(run: Run) -> Any:
        got = await run.approve("Is this right?", about={"body": text["draft"], "n": 1})
        if text["draft"] == "first":
            raise Fixable("the code broke off")
        return got

    async with testing.layer() as layer:
        question = await proposed(layer, approves())
        await layer.answer(question.id, "approve", by="ann")
        await layer.resume("r")
        text["draft"] = "second"
        await layer.answer_next("again", by="ann")
        outcome = await layer.resume("r")
        assert outcome.questions[0].context["changed"] == [{"path": "body", "then": "first", "now": "second"}]
        await layer.answer_next("approve", by="ann")
        assert (await layer.resume("r")).result() == {"body": "second", "n": 1}


async def test_a_value_refused_raises() -> None:
    """`refuse` raises `Refused`; uncaught the run ends cancelled."""

    @workflow
    async def approves(run: Run) -> Any:
        return await run.approve("Is this right?", about=1, to="ben")

    async with testing.layer() as layer:
        question = await proposed(layer, approves())
        assert question.asked_of == "ben"
        await layer.answer(question.id, "refuse", by="ben", note="no")
        outcome = await layer.resume("r")
        assert outcome.status is RunStatus.CANCELLED
        assert outcome.failure is not None
        assert outcome.failure.reason == "refused by ben: no"


async def test_a_value_is_that_of_the_call() -> None:
    """`run.approve` gives back what was shown, whatever became of the object meanwhile."""

    @workflow
    async def approves(run: Run) -> Any:
        value = {"amount": 1}
        asked = run.approve("So?", about=value)
        value["amount"] = 100
        return await asked

    async with testing.layer() as layer:
        question = await proposed(layer, approves())
        assert question.context["facts"] == {"amount": 1}
        await layer.answer(question.id, "approve", by="ann")
        assert (await layer.resume("r")).result() == {"amount": 1}


@pytest.mark.parametrize("about, edit", [(100, "90 EUR"), (100, None), (1.5, "z"), (True, "no"), ("text", 7), (100, 99.5)])
async def test_an_edited_value_keeps_its_type(about: Any, edit: Any) -> None:
    """A number stays a number, a yes a yes: another type is refused when the answer is given."""

    @workflow
    async def approves(run: Run) -> Any:
        return await run.approve("Charge?", about=about)

    async with testing.layer() as layer:
        question = await proposed(layer, approves())
        with pytest.raises(InvalidAnswer):
            await layer.answer(question.id, {"choice": "approve", "inputs": edit}, by="ann")


@pytest.mark.parametrize("about, edit", [({"amount": 5}, {"amount": "many"}), ({"a": 1}, "str"), ([1, 2], {"x": 1}), ({1}, [1])])
async def test_an_edit_of_another_shape_is_asked_about_again(about: Any, edit: Any) -> None:
    """What no schema tells of a container is found when the run reads it: it is not used, and asked about again."""

    @workflow
    async def approves(run: Run) -> Any:
        return [await run.approve("So?", about=about)] != [edit]

    async with testing.layer() as layer:
        question = await proposed(layer, approves())
        await layer.answer(question.id, {"choice": "approve", "inputs": edit}, by="ann")
        (again,) = (await layer.resume("r")).questions
        assert "does not fit" in again.text
        await layer.answer(again.id, "approve", by="ann")
        assert (await layer.resume("r")).result() is True
