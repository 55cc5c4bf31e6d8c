"""``by_hand`` and ``value``: a person did it, or knows the result. Nothing is sent, and what they gave is the receipt."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from stepseven import Fixable, InvalidAnswer, Layer, Run, step, testing, workflow
from tests.runs.deaths import every_death, living
from tests.runs.tools import exists, module, rows


class Receipt(BaseModel):
    number: str
    cents: int = 0

    @field_validator("number")
    @classmethod
    def ours(cls, number: str) -> str:
        if not number.startswith("inv-"):
            raise ValueError("not one of ours")
        return number


class Portal:
    """Where invoices are posted."""

    def __init__(self) -> None:
        self.closed = True
        self.sent: list[str] = []

    def flow(self, name: str, **how: Any) -> Any:
        """Post one invoice."""

        @step(name="post_invoice", effect="write", key="n", **how)
        async def post_invoice(n: str) -> Receipt:
            self.sent.append(n)
            if self.closed:
                raise Fixable("the portal is closed")
            return Receipt(number=f"inv-{n}")

        @workflow(name=name)
        async def body(run: Run) -> Receipt:
            return await post_invoice("7")

        return body


@pytest.fixture
def portal() -> Portal:
    """One that is closed."""
    return Portal()


GIVEN = [("by_hand", "receipt"), ("value", "value")]


@pytest.mark.parametrize("choice,field", GIVEN)
async def test_what_was_given_is_the_receipt(portal: Portal, choice: str, field: str):
    """The step gives back what the person gave, typed; nothing is sent again, also when the portal opens later."""
    flow = portal.flow(f"given_{choice}")
    async with testing.layer() as layer:
        (question,) = (await layer.run(flow(), client="acme", run_id="r1")).questions
        await layer.answer(question.id, {"choice": choice, field: {"number": "inv-9", "cents": 100}}, by="ann")
        portal.closed = False
        assert (await layer.resume("r1")).result() == Receipt(number="inv-9", cents=100)
        assert portal.sent == ["7"]
        (claim,) = layer.store.read_now(lambda tx: tx.all(tx.sql.effects, {"run_no": 1}))
        assert (claim["state"], claim["receipt"]) == ("done", '{"number":"inv-9","cents":100}')
        (record,) = layer.store.read_now(lambda tx: tx.all(tx.sql.steps, {"low": 0, "high": 1 << 60}))
        assert (record["approach"], record["why"]) == ("by hand", "given by ann")


@pytest.mark.parametrize("choice,field", GIVEN)
async def test_a_misfit_is_told(portal: Portal, choice: str, field: str):
    """What the type says is refused at answer time; what only its code knows is asked about once more, with the reason."""
    flow = portal.flow(f"misfit_{choice}")
    async with testing.layer() as layer:
        (question,) = (await layer.run(flow(), client="acme", run_id="r1")).questions
        with pytest.raises(InvalidAnswer, match="cents: 'x' is not a whole number"):
            await layer.answer(question.id, {"choice": choice, field: {"number": "inv-9", "cents": "x"}}, by="ann")
        with pytest.raises(InvalidAnswer, match=f"needs the {field}"):
            await layer.answer(question.id, choice, by="ann")
        await layer.answer(question.id, {"choice": choice, field: {"number": "9"}}, by="ann")
        (again,) = (await layer.resume("r1")).questions
        assert "not one of ours" in again.text
        await layer.answer(again.id, {"choice": choice, field: {"number": "inv-9"}}, by="ann")
        assert (await layer.resume("r1")).result() == Receipt(number="inv-9")
        assert portal.sent == ["7"]


@pytest.mark.parametrize("choice,field", GIVEN)
async def test_other_runs_of_the_client_get_it_too(portal: Portal, choice: str, field: str):
    """``scope="client"``: the receipt is there for every run, and none of them sends."""
    flow = portal.flow(f"scoped_{choice}", scope="client")
    async with testing.layer() as layer:
        (question,) = (await layer.run(flow(), client="acme", run_id="r1")).questions
        await layer.answer(question.id, {"choice": choice, field: {"number": "inv-9"}}, by="ann")
        await layer.resume("r1")
        portal.closed = False
        assert (await layer.run(flow(), client="acme", run_id="r2")).result() == Receipt(number="inv-9")
        assert portal.sent == ["7"]


@pytest.mark.parametrize("receipt", ["inv-7", "inv-9"])
async def test_another_run_that_is_doing_it_is_waited_for(portal: Portal, receipt: str):
    """A live run has claimed it when the person says "by hand": its receipt counts. Another number is loud: done twice."""
    go, arrived = asyncio.Event(), asyncio.Event()

    @step(name="post_invoice", effect="write", key="n", scope="client")
    async def post_invoice(n: str, slow: bool) -> Receipt:
        portal.sent.append(n)
        if not slow:
            raise Fixable("the portal is closed")
        arrived.set()
        await go.wait()
        return Receipt(number="inv-7")

    @workflow(name=f"clash_{receipt}")
    async def body(run: Run, slow: bool) -> Receipt:
        return await post_invoice("7", slow)

    async with testing.layer() as layer:
        (question,) = (await layer.run(body(slow=False), client="acme", run_id="r1")).questions
        other = asyncio.create_task(layer.run(body(slow=True), client="acme", run_id="r2"))
        await arrived.wait()
        await layer.answer(question.id, {"choice": "by_hand", "receipt": {"number": receipt}}, by="ann")
        mine = asyncio.create_task(layer.resume("r1"))
        while not any(run.waiting_for == "effect" or run.status == "running" for run in await layer.runs() if run.run_id == "r1"):
            await asyncio.sleep(0)
        go.set()
        assert (await other).result() == Receipt(number="inv-7")
        assert (await mine).result() == Receipt(number="inv-7")
        assert len(portal.sent) == 2
        told = [q.text for q in await layer.questions()]
        if receipt == "inv-7":
            assert told == []
        else:
            (text,) = told
            assert "was done twice" in text
            assert "inv-7" in text
            assert "inv-9" in text


CRASH = """
    from stepseven import Fixable, Run, step, workflow

    sent = []

    @step(effect="write", key="n", scope="client", remember="invoice")
    async def post(n: int) -> str:
        sent.append(n)
        raise Fixable("the portal is closed")

    @workflow(name="by_hand_crash")
    async def body(run: Run) -> str:
        return await post(1)
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("choice,field", GIVEN)
def test_a_crash_anywhere_changes_nothing(tmp_path: Path, choice: str, field: str):
    """Die at every write: one question, its answer is receipt, record and fact; nothing is sent after it was given."""
    code = module("by_hand_crash", CRASH)

    async def story(layer: Layer) -> Any:
        outcome: Any = await layer.run(code.body(), client="acme", run_id="r")
        for _ in range(2):
            for question in await layer.questions():
                broke_off = question.kind == "unknown_outcome"  # it died while it was sending
                answer: Any = "not_happened" if broke_off else {"choice": choice, field: "inv-9"}
                await layer.answer(question.id, answer, by="ann")
                code.sent.clear()
            outcome = await layer.resume("r")
        return outcome

    deaths = 0
    for state in every_death(tmp_path, story, lambda _: code.sent.clear()):
        given = exists(state) and rows(state, "SELECT id FROM question WHERE status = 'answered'")
        if given:
            code.sent.clear()
        assert living(state, story).result() == "inv-9"
        assert code.sent == []
        asked = rows(state, "SELECT kind, status FROM question ORDER BY created_us, id")
        assert (asked[-1]["kind"], asked[-1]["status"]) == ("failure", "answered")  # nothing is asked after that
        assert [q["kind"] for q in asked].count("failure") == 1
        assert [r["receipt"] for r in rows(state, "SELECT receipt FROM effect")] == ['"inv-9"']
        assert [(f["value"], f["set_by"]) for f in rows(state, "SELECT value, set_by FROM fact")] == [('"inv-9"', "ann")]
        deaths += 1
    assert deaths > 8
