"""Typed answers: a misfit is refused when it is given, with its place; nothing is asked a second time."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from stepseven import InvalidAnswer, Run, step, testing, workflow
from tests.runs.tools import child
from tests.servers import databases


class Plan(Enum):
    GOLD = "gold"
    FREE = "free"


class Invoice(BaseModel):
    number: str = Field(pattern=r"^R-\d+$", max_length=8)
    amount: Annotated[Decimal, Field(gt=0)]
    day: date
    plan: Plan = Plan.GOLD


@dataclass
class Contact:
    name: str
    phone: str | None = None


KEY = "sk-ant-" + "a1B2c3D4" * 4
Price = Annotated[Decimal, Field(max_digits=4, decimal_places=2)]
GOOD = {"number": "R-12", "amount": "12.50", "day": "2026-03-14", "plan": "free"}
CASES: list[tuple[Any, Any, str, Any, Any]] = [
    (Invoice, {**GOOD, "amount": "0"}, "amount: '0' must be more than 0", GOOD, Invoice(**GOOD)),
    (Invoice, {**GOOD, "number": "12"}, "number: '12' does not have the form", GOOD, Invoice(**GOOD)),
    (list[Invoice], [{**GOOD, "day": "soon"}], r"\[0\].day: 'soon' is no date", [GOOD], [Invoice(**GOOD)]),
    (Contact, {"phone": "1"}, "name is missing", {"name": "ann"}, Contact("ann")),
    (Plan, "silver", "'silver' is not one of 'gold' or 'free'", "gold", Plan.GOLD),
    (Literal["a", "b"], "c", "'c' is not one of 'a' or 'b'", "b", "b"),
    (int | None, "x", "'x' is neither a whole number nor null", None, None),
    (date, "14.3.2026", "is no date, such as 2026-03-14", "2026-03-14", date(2026, 3, 14)),
    (Decimal, "much", "'much' is no number, such as 12.50", "1.10", Decimal("1.10")),
    (bool, "no", "'no' is not true or false", False, False),
    (int, "", "'' is not a whole number", 0, 0),
    (date, "20260314", "'20260314' is no date", "2026-03-14", date(2026, 3, 14)),
    (datetime, "2026-03-14", "is no date with time, such as", "2026-03-14T09:00Z", datetime(2026, 3, 14, 9, tzinfo=UTC)),
    (time, "0900", "'0900' is no time, such as 09:00:00", "09:00", time(9)),
    (bytes, "a", "'a' is no base64 text", "YWJj", b"abc"),
    (Price, "12.505", "'12.505' must have at most 2 digits after the point", "12.50", Decimal("12.50")),
    (Price, 1234, "1234 must have at most 4 digits, 2 of them after the point", 12.5, Decimal("12.5")),
]


@pytest.mark.parametrize("type_,bad,why,good,value", CASES)
async def test_a_misfit_is_refused_at_answer_time(type_, bad, why, good, value):
    """The answer is refused with the field's path and the question stays open; what fits is stored as given, and used."""
    got = []

    async def body(run: Run) -> None:
        got.append(await run.ask("What is it?", type=type_))

    async with testing.layer() as layer:
        (question,) = (await layer.run(workflow(name="typed")(body)(), client="acme", run_id="r1")).questions
        with pytest.raises(InvalidAnswer, match=why):
            await layer.answer(question.id, bad, by="ann")
        answered = await layer.answer(question.id, good, by="ann")
        assert answered.answer == good
        assert (await layer.resume("r1")).status == "done"
        assert got == [value]
        assert len(await layer.questions(status=None)) == 1


@dataclass
class Letter:
    """Something with a credential in it."""

    body: str
    token: str
    data: bytes = b"\x00\xff"


LETTER = {"body": "a", "token": "•••", "data": {"$bytes": "AP8="}}


@pytest.mark.parametrize(
    "edit,where",
    [
        ({"letter": {**LETTER, "body": "b"}}, "letter.token"),
        ({"header": "Token •••"}, "header"),
        ({"header": {"•••": 1}}, "header"),
    ],
)
async def test_the_mask_of_a_credential_is_never_sent(edit, where):
    """An edit that would put ••• where the credential was is refused, with its place; what is left alone keeps its credential."""
    sent = []

    @step(effect="irreversible", secrets="mask")
    async def post(letter: Letter, header: Any, copies: int = 1) -> str:
        sent.append((letter, header, copies))
        return "ok"

    @workflow
    async def posts(run: Run) -> str:
        return await post(Letter("a", KEY), f"Bearer {KEY}")

    async with testing.layer() as layer:
        (question,) = (await layer.run(posts(), client="acme", run_id="r1")).questions
        assert question.context["facts"]["letter"] == LETTER
        with pytest.raises(InvalidAnswer, match=f"{where} holds a masked credential: give the whole value, or refuse"):
            await layer.answer(question.id, {"choice": "approve", "inputs": edit}, by="ann")
        whole = {**question.context["facts"], "copies": 2}
        await layer.answer(question.id, {"choice": "approve", "inputs": whole}, by="ann")
        assert (await layer.resume("r1")).result() == "ok"
        assert sent == [(Letter("a", KEY), f"Bearer {KEY}", 2)]


async def test_a_field_beside_bytes_can_be_edited():
    """What is shown in a form of its own (bytes, a set) is sent back as it was shown; the edited field beside it is used."""
    sent = []

    @step(effect="irreversible")
    async def post(letter: Letter, tags: set[str]) -> str:
        sent.append((letter, tags))
        return "ok"

    @workflow
    async def posts(run: Run) -> str:
        return await post(Letter("a", "t"), {"x"})

    async with testing.layer() as layer:
        (question,) = (await layer.run(posts(), client="acme", run_id="r1")).questions
        edit = {"letter": {**question.context["facts"]["letter"], "body": "b"}, "tags": {"$set": ["y"]}}
        await layer.answer(question.id, {"choice": "approve", "inputs": edit}, by="ann")
        assert (await layer.resume("r1")).result() == "ok"
        assert sent == [(Letter("b", "t"), {"y"})]
        (effect,) = layer.store.read_now(lambda tx: tx.all(tx.sql.effects, {"run_no": 1}))
        assert json.loads(effect["inputs_approved"]) == edit
        assert len(await layer.questions(status=None)) == 1


def test_the_library_is_loaded_only_for_a_typed_answer():
    """Importing stepseven, running and asking load no schema library."""
    done = child("""
        import asyncio, sys
        from stepseven import Run, testing, workflow
        @workflow
        async def asks(run: Run) -> str:
            return await run.ask("Yes?", options=["yes", "no"])
        async def main():
            async with testing.layer() as layer:
                await layer.run(asks(), client="acme", run_id="r")
                await layer.answer_next("yes")
                assert (await layer.resume("r")).value == "yes"
        asyncio.run(main())
        print("jsonschema" in sys.modules)
    """)
    assert (done.stdout, done.stderr) == ("False\n", "")
    assert sys.executable


def test_the_command_line_shows_an_example(tmp_path, monkeypatch, capsys):
    """``answer`` with a value that does not fit: the sentence, and a command that would be taken."""
    from stepseven.cli import main

    monkeypatch.setenv("STEPSEVEN_URL", databases.url(tmp_path))
    done = child(
        """
        import asyncio
        from dataclasses import dataclass
        from stepseven import Layer, Run, workflow
        @dataclass
        class Contact:
            name: str
            age: int
        @workflow
        async def asks(run: Run) -> None:
            await run.ask("Who?", type=Contact)
        async def main():
            async with Layer() as layer:
                print((await layer.run(asks(), client="acme", run_id="r")).questions[0].id)
        asyncio.run(main())
        """
    )
    question_id = done.stdout.strip()
    assert main(["answer", question_id, '{"name": "ann", "age": "old"}']) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "age: 'old' is not a whole number" in told
    assert f"""Such as: stepseven answer {question_id} '{{"name": "…", "age": 1}}'""" in told
    assert main(["answer", question_id, '{"name": "ann", "age": 7}']) == 0
