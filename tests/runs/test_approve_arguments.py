"""What an approval is about: the arguments of the call, what may be changed in them, and what is not shown."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pydantic import BaseModel, PrivateAttr

from stepseven import InvalidAnswer, Run, step, testing, workflow
from stepseven.model import QuestionKind
from tests.runs.proposals import Letter, fresh, proposed, sent


@pytest.fixture(autouse=True)
def _fresh() -> None:
    fresh()


@step(effect="irreversible", key="to")
async def pay(to: str, order: dict[str, Any]) -> str:
    """An argument that can be changed after the call."""
    sent.append((to, order["amount"]))
    return to


async def test_the_arguments_are_those_of_the_call() -> None:
    """An object that is changed after the call, also by a loop that uses it again, does not change what goes out."""

    @workflow
    async def pays(run: Run) -> list[str]:
        order = {"amount": 1}
        first = pay("ann", order)
        order["amount"] = 100
        return [await first, await pay("ben", order)]

    async with testing.layer() as layer:
        question = await proposed(layer, pays())
        assert question.context["facts"] == {"to": "ann", "order": {"amount": 1}}
        await layer.answer(question.id, "approve", by="ann")
        await layer.resume("r")
        await layer.answer_next("approve", by="ann")
        assert (await layer.resume("r")).result() == ["ann", "ben"]
        assert sent == [("ann", 1), ("ben", 100)]


class Doc(BaseModel):
    """Recordable, and not to be copied: it holds a lock."""

    body: str
    _lock: Any = PrivateAttr(default_factory=threading.Lock)


async def test_what_cannot_be_copied_is_made_anew() -> None:
    """A model that holds a lock is an argument and a value like any other."""

    @step(effect="irreversible", key="to")
    async def send(to: str, doc: Doc) -> str:
        sent.append(doc.body)
        return doc.body

    @workflow
    async def sends(run: Run) -> str:
        doc = await run.approve("So?", about=Doc(body="a"))
        return await send("ben", doc)

    async with testing.layer() as layer:
        await proposed(layer, sends())
        await layer.answer_next("approve", by="ann")
        await layer.resume("r")
        await layer.answer_next("approve", by="ann")
        assert (await layer.resume("r")).result() == "a"
        assert sent == ["a"]


async def test_arguments_by_star_are_edited_by_name() -> None:
    """Functions with `*args` and `**kwargs` get the edited values where they belong."""

    @step(effect="irreversible", key="to")
    async def cast(to: str, *lines: str, **more: int) -> str:
        sent.append((to, lines, more))
        return "ok"

    @workflow
    async def casts(run: Run) -> str:
        return await cast("ben", "x", "y", size=1)

    async with testing.layer() as layer:
        await proposed(layer, casts())
        await layer.answer_next({"choice": "approve", "inputs": {"lines": ["z"]}}, by="ann")
        assert (await layer.resume("r")).result() == "ok"
        assert sent == [("ben", ("z",), {"size": 1})]


async def test_a_key_within_an_argument_cannot_be_edited() -> None:
    """`key="letter.no"`: the letter may be edited, its number not; the edited letter comes as its type."""

    @step(effect="irreversible", key="letter.no")
    async def post(letter: Letter) -> str:
        sent.append(letter)
        return "ok"

    @workflow
    async def letters(run: Run) -> str:
        return await post(Letter("7", "a"))

    async with testing.layer() as layer:
        question = await proposed(layer, letters())
        with pytest.raises(InvalidAnswer, match=r"letter\.no names what is done"):
            await layer.answer(question.id, {"choice": "approve", "inputs": {"letter": {"no": "8", "body": "b"}}}, by="ann")
        with pytest.raises(InvalidAnswer, match="letter: "):
            await layer.answer(question.id, {"choice": "approve", "inputs": {"letter": {"no": "7"}}}, by="ann")
        await layer.answer(question.id, {"choice": "approve", "inputs": {"letter": {"no": "7", "body": "b"}}}, by="ann")
        await layer.resume("r")
        assert sent == [Letter("7", "b")]


async def test_a_key_that_is_computed_is_held_against_the_edit() -> None:
    """With `key=` a function nobody can tell beforehand: an edit that changes the key is not used, and it is asked again."""

    @step(effect="irreversible", key=lambda to: to.lower())
    async def call_up(to: str) -> str:
        sent.append(to)
        return "ok"

    @workflow
    async def calls(run: Run) -> str:
        return await call_up("Ben")

    async with testing.layer() as layer:
        question = await proposed(layer, calls())
        await layer.answer(question.id, {"choice": "approve", "inputs": {"to": "Bob"}}, by="ann")
        outcome = await layer.resume("r")
        assert "changes what the effect is named by" in outcome.questions[0].text
        assert sent == []
        await layer.answer_next({"choice": "approve", "inputs": {"to": "BEN"}}, by="ann")
        assert (await layer.resume("r")).result() == "ok"
        assert sent == ["BEN"]


KEY = "sk-ant-" + "a1b2c3d4e5f6g7h8i9j0k1l2"


async def test_the_probe_gets_what_was_sent_where_it_was_masked() -> None:
    """`secrets="mask"`: the mask is for the store; the probe looks with the real argument, and nothing is sent twice."""

    @step(effect="irreversible", key="to", secrets="mask")
    async def send(to: str, token: str) -> str:
        sent.append(token)
        raise TimeoutError("no answer")

    @send.probe
    async def find(to: str, token: str) -> str | None:
        return "there" if token == KEY and sent else None

    @workflow
    async def sends(run: Run) -> str:
        return await send("ben", KEY)

    async with testing.layer() as layer:
        await proposed(layer, sends())
        await layer.answer_next("approve", by="ann")
        assert (await layer.resume("r", wait=60)).result() == "there"
        assert sent == [KEY]


async def test_a_masked_approval_does_not_cover_another_credential() -> None:
    """The yes was given with one key behind the mask; with another one it is proposed anew."""
    keys = [KEY]

    @step(effect="irreversible", key="to", secrets="mask")
    async def send(to: str, token: str) -> str:
        sent.append(token)
        return to

    @workflow
    async def sends(run: Run) -> str:
        return await send("ben", keys[0])

    async with testing.layer() as layer:
        question = await proposed(layer, sends())
        await layer.answer(question.id, "approve", by="ann")
        keys[0] = "sk-ant-" + "z" * 10 + "1234567890"
        outcome = await layer.resume("r")
        assert [q.kind for q in outcome.questions] == [QuestionKind.APPROVE]
        assert sent == []


async def test_what_is_not_recorded_is_named() -> None:
    """Parameters in `ignore=` are no part of what is approved, and the question says so."""

    @step(effect="irreversible", key="to", ignore=("session",))
    async def send(to: str, session: object) -> str:
        return to

    @workflow
    async def sends(run: Run) -> str:
        return await send("ben", object())

    async with testing.layer() as layer:
        question = await proposed(layer, sends())
        assert "Not shown, and not part of your word: session." in question.text


@pytest.mark.parametrize(
    "inputs, why",
    [
        ({"to": "bob"}, "to names what is done"),
        ({"nobody": 1}, "there is no nobody to change; there is to, body, copies"),
        ({"body": 7}, "body: "),
        ({"copies": "two"}, "copies: "),
        ("Hello", "approve takes the changed values by name"),
        (None, "approve takes the changed values by name"),
    ],
)
async def test_an_edit_that_cannot_be_is_refused_at_once(inputs: Any, why: str) -> None:
    """Key fields, unknown names and other types are refused when the answer is given; the question stays open."""
    async with testing.layer() as layer:
        question = await proposed(layer)
        with pytest.raises(InvalidAnswer, match=why):
            await layer.answer(question.id, {"choice": "approve", "inputs": inputs}, by="ann")
        assert len(await layer.questions()) == 1
        assert sent == []


async def test_the_whole_set_as_shown_is_a_plain_approval() -> None:
    """A form that sends back everything as it was shown has edited nothing, the key fields included."""
    async with testing.layer() as layer:
        question = await proposed(layer)
        done = await layer.answer(question.id, {"choice": "approve", "inputs": dict(question.context["facts"])}, by="ann")
        assert done.answer == "approve"
        assert (await layer.resume("r")).result() == "m-1"


@pytest.mark.parametrize(
    "value, why",
    [
        ({"choice": "approve", "input": {"body": "EDITED"}}, "'input' does not go with approve: it takes inputs"),
        ({"choice": "refuse", "inputs": {"body": "EDITED"}}, "'inputs' does not go with refuse: it takes nothing more"),
    ],
)
async def test_a_mistyped_word_is_no_answer(value: Any, why: str) -> None:
    """A field that the choice does not take is refused: an edit must not be lost by a typing error."""
    async with testing.layer() as layer:
        question = await proposed(layer)
        with pytest.raises(InvalidAnswer, match=why):
            await layer.answer(question.id, value, by="ann")
        assert len(await layer.questions()) == 1
