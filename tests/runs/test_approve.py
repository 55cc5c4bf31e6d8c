"""Proposed first: what is irreversible happens after a person's word, on exactly the arguments they saw, once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, PrivateAttr

from stepseven import Fixable, InvalidAnswer, Layer, NoRun, Refused, Run, StepFailed, attempt, step, testing, workflow
from stepseven.decide.escalate import render
from stepseven.model import QuestionKind, RunStatus

sent: list[Any] = []
text = {"draft": "first"}


class Busy(Exception):
    """The receiver says no, before it did anything."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} no")
        self.status_code = status


@pytest.fixture(autouse=True)
def _fresh() -> None:
    sent.clear()
    text["draft"] = "first"


@step
async def draft() -> str:
    """What a model wrote."""
    return text["draft"]


@step(effect="irreversible", key="to")
async def send_mail(to: str, body: str, copies: int = 1) -> str:
    """The effect."""
    sent.append((to, body, copies, attempt().idempotency_key))
    return f"m-{len(sent)}"


@workflow
async def mail(run: Run, to: str = "ben") -> str:
    """One mail."""
    return await send_mail(to, await draft())


async def proposed(layer: testing.TestLayer, call: Any = None, run_id: str = "r") -> Any:
    """The question of a run that has come to its proposal."""
    outcome = await layer.run(call or mail(), client="acme", run_id=run_id)
    assert outcome.status is RunStatus.WAITING
    return outcome.questions[0]


async def test_nothing_is_done_before_the_word() -> None:
    """The run parks with the exact arguments, set apart from the text; nothing is claimed; after the word it is sent once."""
    async with testing.layer() as layer:
        question = await proposed(layer)
        assert question.kind is QuestionKind.APPROVE
        assert [o.id for o in question.options] == ["approve", "refuse"]
        assert question.context["facts"] == {"to": "ben", "body": "first", "copies": 1}
        assert sent == []
        assert layer.store.read_now(lambda tx: tx.all(tx.sql.effects, {"run_no": 1})) == []
        await layer.answer(question.id, "approve", by="ann")
        assert sent == []
        assert (await layer.resume("r")).result() == "m-1"
        assert (await layer.resume("r")).result() == "m-1"
        assert sent == [("ben", "first", 1, "r/send_mail/ben")]


async def test_an_edit_reaches_the_outside_and_the_receipts() -> None:
    """What the reviewer changed is sent, stored as approved, and told in the record; the call is matched as it was made."""
    async with testing.layer() as layer:
        question = await proposed(layer)
        await layer.answer(question.id, {"choice": "approve", "inputs": {"body": "Hello", "copies": 2}}, by="ann")
        assert (await layer.resume("r")).result() == "m-1"
        assert [s[:3] for s in sent] == [("ben", "Hello", 2)]
        (row,) = layer.store.read_now(lambda tx: tx.all(tx.sql.effects, {"run_no": 1}))
        assert json.loads(row["inputs_approved"]) == {"to": "ben", "body": "Hello", "copies": 2}
        assert json.loads(row["arguments"]) == {"to": "ben", "body": "first", "copies": 1}
        assert row["receipt"] == '"m-1"'
        told = layer.store.read_now(lambda tx: tx.all(tx.sql.steps, {"low": 1 << 24, "high": (1 << 25) - 1}))[-1]["why"]
        assert told == "approved by ann, who changed body, copies"


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


@dataclass
class Letter:
    """A key inside an argument."""

    no: str
    body: str


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


@pytest.mark.parametrize("answered", [True, False])
async def test_an_old_yes_never_sends_a_new_draft(tmp_path: Path, answered: bool) -> None:
    """The draft came out otherwise when the run went on: the approval is void, the new draft is proposed with what changed."""
    async with testing.layer(f"sqlite:///{tmp_path}/s.db") as layer:
        question = await proposed(layer)
        if answered:
            await layer.answer(question.id, "approve", by="ann")
        with sqlite3.connect(tmp_path / "s.db") as other:  # the draft is gone: the step that made it runs again
            other.execute("DELETE FROM step WHERE name = 'draft'")
        text["draft"] = "second"
        outcome = await layer.resume("r")
        (fresh,) = outcome.questions
        assert fresh.id != question.id
        assert fresh.context["facts"]["body"] == "second"
        assert fresh.context["changed"] == [{"path": "body", "then": "first", "now": "second"}]
        assert ("does not count" in fresh.text) is answered
        assert sent == []
        old = {q.id: q for q in await layer.questions(status=None)}[question.id]
        assert old.status == ("answered" if answered else "withdrawn")
        await layer.answer(fresh.id, "approve", by="bob")
        assert (await layer.resume("r")).result() == "m-1"
        assert [s[1] for s in sent] == ["second"]


async def test_a_refusal_reaches_the_code_and_stays() -> None:
    """`refuse` raises `Refused` with who and why; nothing is done, and a resume raises the same without asking."""

    @workflow
    async def careful(run: Run) -> str:
        try:
            return await send_mail("ben", "x")
        except Refused as no:
            return f"{no.step}: {no.reason} / {await run.ask('What now?')}"

    async with testing.layer() as layer:
        question = await proposed(layer, careful())
        await layer.answer(question.id, "refuse", by="ann", note="too early")
        outcome = await layer.resume("r")
        assert [q.text for q in outcome.questions] == ["What now?"]
        await layer.answer_next("wait", by="ann")
        assert (await layer.resume("r")).result() == "send_mail: refused by ann: too early / wait"
        assert sent == []
        assert issubclass(Refused, StepFailed)


async def test_a_refusal_nobody_catches_ends_the_run_cancelled() -> None:
    """The person said no and the code has nothing else to do: cancelled, with the reason, and nobody is asked again."""
    async with testing.layer() as layer:
        question = await proposed(layer)
        await layer.answer(question.id, "refuse", by="ann")
        outcome = await layer.resume("r")
        assert (outcome.status, outcome.questions) == (RunStatus.CANCELLED, ())
        assert outcome.failure is not None
        assert outcome.failure.reason == "refused by ann"
        assert sent == []


async def test_in_a_map_each_is_its_own_word() -> None:
    """Items are approved one by one in any order; a refused one is skipped, and holds up nobody."""

    @step(effect="irreversible", key="to")
    async def send_one(to: str) -> str:
        sent.append(to)
        return to

    @workflow
    async def mails(run: Run) -> list[str | None]:
        return await run.map(send_one, ["a", "b", "c"], concurrency=1)

    async with testing.layer() as layer:
        await layer.run(mails(), client="acme", run_id="r")
        asked = {q.context["facts"]["to"]: q for q in await layer.questions()}
        assert set(asked) == {"a", "b", "c"}
        await layer.answer(asked["c"].id, "approve", by="ann")
        await layer.resume("r")
        assert sent == ["c"]
        await layer.answer(asked["a"].id, "refuse", by="ann")
        await layer.answer(asked["b"].id, "approve", by="ann")
        assert (await layer.resume("r")).result() == [None, "b", "c"]
        assert sent == ["c", "b"]


async def test_what_the_receiver_refuses_is_proposed_anew() -> None:
    """422 after the word: trying again asks for the word again, with the reason, because the person may want to edit it."""

    @step(effect="irreversible", key="to")
    async def pay(to: str, iban: str) -> str:
        sent.append(iban)
        if iban == "bad":
            raise Busy(422)
        return "paid"

    @workflow
    async def pays(run: Run) -> str:
        return await pay("ben", "bad")

    async with testing.layer() as layer:
        question = await proposed(layer, pays())
        await layer.answer(question.id, "approve", by="ann")
        outcome = await layer.resume("r")
        assert outcome.questions[0].kind is QuestionKind.FAILURE
        await layer.answer_next("again", by="ann")
        outcome = await layer.resume("r")
        assert outcome.questions[0].kind is QuestionKind.APPROVE
        assert "422" in outcome.questions[0].text
        assert sent == ["bad"]
        await layer.answer_next({"choice": "approve", "inputs": {"iban": "good"}}, by="ann")
        assert (await layer.resume("r")).result() == "paid"
        assert sent == ["bad", "good"]


async def test_what_a_person_did_by_hand_needs_no_second_word() -> None:
    """`by_hand` after a failed send: their receipt is the result and the effect's, nothing is proposed or sent again."""

    @step(effect="irreversible", key="to")
    async def pay(to: str) -> str:
        sent.append(to)
        raise Busy(403)

    @workflow
    async def pays(run: Run) -> str:
        return await pay("ben")

    async with testing.layer() as layer:
        await proposed(layer, pays())
        await layer.answer_next("approve", by="ann")
        await layer.resume("r")
        await layer.answer_next({"choice": "by_hand", "receipt": "bank-7"}, by="ann")
        assert (await layer.resume("r")).result() == "bank-7"
        (row,) = layer.store.read_now(lambda tx: tx.all(tx.sql.effects, {"run_no": 1}))
        assert (row["state"], row["receipt"], sent) == ("done", '"bank-7"', ["ben"])


async def test_a_retry_by_itself_keeps_the_word() -> None:
    """Not done for certain (nothing wrong with what was approved): the second try needs no second word, and sends the same."""

    @step(effect="irreversible", key="to")
    async def ring(to: str, words: str) -> str:
        sent.append(words)
        if len(sent) == 1:
            raise ConnectionRefusedError("nobody there")
        return "ok"

    @workflow
    async def rings(run: Run) -> str:
        return await ring("ben", "a")

    async with testing.layer() as layer:
        question = await proposed(layer, rings())
        await layer.answer(question.id, {"choice": "approve", "inputs": {"words": "b"}}, by="ann")
        assert (await layer.resume("r", wait=60)).result() == "ok"
        assert sent == ["b", "b"]
        assert len(await layer.questions(status=None)) == 1


async def test_doubt_is_looked_into_with_what_was_approved() -> None:
    """The send broke off: the probe, and the person asked where it cannot tell, get the arguments as approved; no second word."""
    looked: list[str] = []

    @step(effect="irreversible", key="to")
    async def wire(to: str, amount: int) -> str:
        sent.append(amount)
        if len(sent) == 1:
            raise TimeoutError("no answer")
        return f"w-{amount}"

    @wire.probe
    async def find(to: str, amount: int) -> str | None:
        looked.append(f"{to} {amount}")
        raise RuntimeError("the look-up is down")

    @workflow
    async def wires(run: Run) -> str:
        return await wire("ben", 10)

    async with testing.layer() as layer:
        question = await proposed(layer, wires())
        await layer.answer(question.id, {"choice": "approve", "inputs": {"amount": 12}}, by="ann")
        outcome = await layer.resume("r", wait=60)
        (doubt,) = outcome.questions
        assert doubt.kind is QuestionKind.UNKNOWN_OUTCOME
        assert doubt.context["facts"] == {"to": "ben", "amount": 12}
        assert set(looked) == {"ben 12"}
        await layer.answer(doubt.id, "not_happened", by="ann")
        assert (await layer.resume("r", wait=60)).result() == "w-12"
        assert sent == [12, 12]


async def test_what_another_run_did_is_not_proposed() -> None:
    """`scope="client"`: the first receipt answers a second run's call, whatever its wording, and nobody is asked."""

    @step(effect="irreversible", key="quarter", scope="client")
    async def invite(quarter: str, words: str) -> str:
        sent.append(words)
        return f"i-{len(sent)}"

    @workflow
    async def invites(run: Run, words: str) -> str:
        return await invite("Q3", words)

    async with testing.layer() as layer:
        await proposed(layer, invites(words="a"))
        await layer.answer_next("approve", by="ann")
        assert (await layer.resume("r")).result() == "i-1"
        assert (await layer.run(invites(words="b"), client="acme", run_id="r2")).result() == "i-1"
        assert sent == ["a"]


async def test_done_before_with_other_arguments_is_a_conflict_first() -> None:
    """The same key with other values: "the same or a second one?" comes first; only the second one is proposed."""

    @workflow
    async def twice(run: Run) -> list[str]:
        return [await send_mail("ben", "a"), await send_mail("ben", "b")]

    async with testing.layer() as layer:
        await proposed(layer, twice())
        await layer.answer_next("approve", by="ann")
        outcome = await layer.resume("r")
        assert outcome.questions[0].kind is QuestionKind.CONFLICT
        await layer.answer_next("second", by="ann")
        outcome = await layer.resume("r")
        assert outcome.questions[0].kind is QuestionKind.APPROVE
        assert outcome.questions[0].context["facts"]["body"] == "b"
        assert len(sent) == 1
        await layer.answer_next("approve", by="ann")
        assert (await layer.resume("r")).result() == ["m-1", "m-2"]
        assert [s[3] for s in sent] == ["r/send_mail/ben", "r/send_mail/ben#2"]


async def test_side_by_side_each_has_its_own_question() -> None:
    """Two proposals at once are two questions by id; answered in the other order each word goes to its own (H01)."""

    @workflow
    async def both(run: Run) -> list[str]:
        return list(await asyncio.gather(send_mail("ann", "a"), send_mail("ben", "b")))

    async with testing.layer() as layer:
        outcome = await layer.run(both(), client="acme", run_id="r")
        asked = {q.context["facts"]["to"]: q.id for q in outcome.questions}
        await layer.answer(asked["ben"], {"choice": "approve", "inputs": {"body": "B"}}, by="ann")
        await layer.resume("r")
        await layer.answer(asked["ann"], "approve", by="ann")
        await layer.resume("r")
        assert [s[:2] for s in sent] == [("ben", "B"), ("ann", "a")]


async def test_outside_a_run_it_is_refused() -> None:
    """Without a run there is nobody to ask: `NoRun`, nothing is done."""
    with pytest.raises(NoRun):
        await send_mail("ben", "x")
    assert sent == []


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


async def test_two_processes_answer_at_once() -> None:
    """Of many answers in the same moment one counts; the others are told who was first, and what is sent is the first's."""
    async with testing.layer() as layer:
        question = await proposed(layer)
        answers = [{"choice": "approve", "inputs": {"body": f"b{n}"}} for n in range(8)]
        results = await asyncio.gather(
            *(layer.answer(question.id, a, by=f"p{n}") for n, a in enumerate(answers)), return_exceptions=True
        )
        first = [r for r in results if not isinstance(r, BaseException)]
        assert len(first) == 1
        await layer.resume("r")
        assert [s[1] for s in sent] == [first[0].answer["inputs"]["body"]]


ANSWER = """
import asyncio, sys
from stepseven import AlreadyAnswered, Layer
async def main(url, question, by):
    async with Layer(url) as layer:
        await layer.questions()
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            await layer.answer(question, {"choice": "approve", "inputs": {"body": by}}, by=by)
            print("first")
        except AlreadyAnswered as told:
            print("told", told.by)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
async def test_two_other_processes_answer_in_the_same_moment(tmp_path: Path) -> None:
    """Two people press at once, again and again: one counts, the other is told who; what goes out is the first's."""
    store = f"sqlite:///{tmp_path}/s.db"
    async with Layer(store) as layer:
        for lap in range(4):
            sent.clear()
            outcome = await layer.run(mail(), client="acme", run_id=f"r{lap}")
            both = [
                subprocess.Popen(  # noqa: ASYNC220 - two at once, as two people would
                    [sys.executable, "-c", ANSWER, store, outcome.questions[0].id, by],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )
                for by in ("ann", "bob")
            ]  # fmt: skip
            for process in both:
                assert process.stdout is not None
                assert (await asyncio.to_thread(process.stdout.readline)).strip() == "ready"
            said = await asyncio.gather(*(asyncio.to_thread(process.communicate, "go\n") for process in both))
            told = {by: out.strip() for by, (out, _) in zip(("ann", "bob"), said, strict=True)}
            first = next(by for by, line in told.items() if line == "first")
            assert sorted(told.values()) == ["first", f"told {first}"]
            await layer.resume(f"r{lap}")
            assert [s[1] for s in sent] == [first]


# -- run.approve ------------------------------------------------------------------------------------------------------------


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


@pytest.mark.slow
async def test_an_answer_between_asked_and_parked(tmp_path: Path) -> None:
    """An approval given in the instant the run is put away is not lost, 200 times: the run goes on by itself or with a resume."""
    url = f"sqlite:///{tmp_path}/s.db"

    @step(effect="irreversible", key="n")
    async def act(n: int) -> int:
        sent.append(n)
        return n

    @workflow
    async def acts(run: Run) -> list[int]:
        return [await act(n) for n in range(40)]

    async with Layer(url) as layer, Layer(url) as person:
        for lap in range(5):
            sent.clear()
            running = asyncio.create_task(layer.run(acts(), client="acme", run_id=f"r{lap}"))
            answered = 0
            while answered < 40:
                for question in await person.questions(run_id=f"r{lap}"):
                    await person.answer(question.id, "approve", by="ann")
                    answered += 1
                if running.done():
                    running.result()
                    running = asyncio.create_task(layer.resume(f"r{lap}"))
                await asyncio.sleep(0.001)
            outcome = await running
            while outcome.status is not RunStatus.DONE:
                assert not outcome.questions
                outcome = await layer.resume(f"r{lap}")
            assert outcome.result() == list(range(40)) == sent


# -- what the arguments are -------------------------------------------------------------------------------------------------


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


async def test_tasks_that_propose_under_one_key_come_one_after_the_other() -> None:
    """Other values under the same key in another task: the first is decided, then the second is a conflict; nothing spins."""

    @workflow
    async def both(run: Run) -> list[str]:
        return list(await asyncio.gather(send_mail("ben", "a"), send_mail("ben", "b")))

    async with testing.layer() as layer:
        question = await proposed(layer, both())
        assert question.context["facts"]["body"] == "a"
        await layer.answer(question.id, "approve", by="ann")
        (clash,) = (await layer.resume("r")).questions
        assert clash.kind is QuestionKind.CONFLICT
        await layer.answer(clash.id, "same", by="ann")
        assert (await layer.resume("r")).result() == ["m-1", "m-1"]
        assert len(await layer.questions(status=None)) == 2


@pytest.mark.parametrize("how", ["approve", "ask"])
async def test_tasks_that_ask_about_other_values_under_one_key(how: str) -> None:
    """The same text about other values in two tasks: one question after the other, each keeps its answer, nothing spins."""

    @workflow
    async def both(run: Run) -> list[Any]:
        async def one(n: int) -> Any:
            return await (run.approve("So?", about=n) if how == "approve" else run.ask("So?", about=n, key="so"))

        return [*await asyncio.gather(asyncio.create_task(one(1)), asyncio.create_task(one(2))), await run.ask("Done?")]

    async with testing.layer() as layer:
        await layer.run(both(), client="acme", run_id="r")
        for n in (1, 2):
            (question,) = await layer.questions()
            assert question.context["facts"] == ({"value": n} if how == "approve" else {"about": n})
            await layer.answer(question.id, "approve", by=f"p{n}")
            await layer.resume("r")
        await layer.answer_next("yes", by="ann")
        outcome = await layer.resume("r")
        assert outcome.result() == ([1, 2, "yes"] if how == "approve" else ["approve", "approve", "yes"])
        assert len(await layer.questions(status=None)) == 3


async def test_every_no_stays_beside_a_later_yes() -> None:
    """Two drafts refused, a third approved: after any number of parks each call finds its own, and nothing is asked again."""

    @workflow
    async def drafts(run: Run) -> list[str]:
        said = []
        for body in ("a", "b", "c"):
            try:
                said.append(await send_mail("ben", body))
            except Refused as no:
                said.append(no.reason)
        return [*said, await run.ask("One?"), await run.ask("Two?")]

    async with testing.layer() as layer:
        await layer.run(drafts(), client="acme", run_id="r")
        for answer in ("refuse", "refuse", "approve", "1", "2"):
            (question,) = await layer.questions()
            await layer.answer(question.id, answer, by="ann")
            outcome = await layer.resume("r")
        assert outcome.result() == ["refused by ann", "refused by ann", "m-1", "1", "2"]
        assert len(await layer.questions(status=None)) == 5
        assert [s[1] for s in sent] == ["c"]


# -- credentials, and what is not recorded ----------------------------------------------------------------------------------

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


async def test_a_promise_covers_the_same_words_only() -> None:
    """The receiver honours the key: another run that inherits the doubt with an edit does not send it under that key again."""

    @step(effect="irreversible", key="k", scope="client", idempotent="forever")
    async def send(k: str, words: str) -> str:
        sent.append((words, attempt().idempotency_key))
        raise TimeoutError("no answer")

    @workflow
    async def sends(run: Run) -> str:
        return await send("k", "orig")

    async with testing.layer() as layer:
        await proposed(layer, sends(), run_id="a")
        await layer.answer_next("approve", by="ann")
        await layer.resume("a", wait=60)
        await layer.cancel("a", reason="enough")
        while (await layer.resume("a", wait=60)).questions:
            await layer.answer_next("stop", by="ann")
        tries = len(sent)
        outcome = await layer.run(sends(), client="acme", run_id="b")
        if outcome.questions and outcome.questions[0].kind is QuestionKind.APPROVE:
            await layer.answer_next({"choice": "approve", "inputs": {"words": "edited"}}, by="bob")
            outcome = await layer.resume("b", wait=60)
        assert [q.kind for q in outcome.questions] == [QuestionKind.UNKNOWN_OUTCOME]
        assert len(sent) == tries


# -- two runs of a client -----------------------------------------------------------------------------------------------------


def _inviting() -> Any:
    @step(effect="irreversible", key="quarter", scope="client")
    async def invite(quarter: str, words: str) -> str:
        sent.append(words)
        return f"i-{len(sent)}"

    @workflow
    async def invites(run: Run, words: str) -> str:
        return await invite("Q3", words)

    return invites


async def test_what_another_run_has_done_is_no_longer_proposed() -> None:
    """Two runs propose the same; one is approved and done: the other's question is taken back; it takes the receipt."""
    invites = _inviting()
    async with testing.layer() as layer:
        first, second = await proposed(layer, invites(words="a"), "r1"), await proposed(layer, invites(words="b"), "r2")
        await layer.answer(first.id, "approve", by="ann")
        await layer.resume("r1")
        assert {q.id: q.status for q in await layer.questions(status=None)}[second.id] == "withdrawn"
        assert (await layer.resume("r2")).result() == "i-1"
        assert sent == ["a"]


@pytest.mark.parametrize("choice, want", [("same", ["a"]), ("second", ["a", "edited"])])
async def test_an_edit_that_another_run_has_overtaken_is_a_conflict(choice: str, want: list[str]) -> None:
    """Both were approved, one with an edit; the other was faster: a person says whether that is the same thing."""
    invites = _inviting()
    async with testing.layer() as layer:
        first, second = await proposed(layer, invites(words="a"), "r1"), await proposed(layer, invites(words="b"), "r2")
        await layer.answer(first.id, "approve", by="ann")
        await layer.answer(second.id, {"choice": "approve", "inputs": {"words": "edited"}}, by="bob")
        await layer.resume("r1")
        (clash,) = (await layer.resume("r2")).questions
        assert clash.kind is QuestionKind.CONFLICT
        await layer.answer(clash.id, choice, by="bob")
        assert (await layer.resume("r2")).status is RunStatus.DONE
        assert sent == want


async def test_a_no_is_heard_whatever_another_run_has_done() -> None:
    """Refused here, done by another run of the client meanwhile: the code gets `Refused`, not that run's receipt."""
    invites = _inviting()
    async with testing.layer() as layer:
        first, second = await proposed(layer, invites(words="a"), "r1"), await proposed(layer, invites(words="b"), "r2")
        await layer.answer(first.id, "approve", by="ann")
        await layer.answer(second.id, "refuse", by="bob")
        await layer.resume("r1")
        assert (await layer.resume("r2")).status is RunStatus.CANCELLED
        assert sent == ["a"]


@pytest.mark.parametrize("answer, want", [("approve", ["a", "b", "a"]), ("refuse", [None, "b", None])])
async def test_one_effect_has_one_word(answer: str, want: list[Any]) -> None:
    """The same effect in two items of a map is proposed once; what was said counts for both."""

    @step(effect="irreversible", key="to")
    async def send_one(to: str) -> str:
        sent.append(to)
        return to

    @workflow
    async def mails(run: Run) -> list[str | None]:
        return await run.map(send_one, ["a", "b", "a"])

    async with testing.layer() as layer:
        await layer.run(mails(), client="acme", run_id="r")
        asked = {q.context["facts"]["to"]: q for q in await layer.questions()}
        assert len(await layer.questions()) == 2
        await layer.answer(asked["a"].id, answer, by="ann")
        await layer.answer(asked["b"].id, "approve", by="ann")
        assert (await layer.resume("r")).result() == want
        assert len(await layer.questions(status=None)) == 2


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


# -- what an edit may be ----------------------------------------------------------------------------------------------------


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


async def test_a_conflict_tells_what_was_approved() -> None:
    """Another run was faster with the words as proposed, and the reviewer here had changed them: that is what differs."""
    invites = _inviting()
    async with testing.layer() as layer:
        first, second = await proposed(layer, invites(words="x"), "r1"), await proposed(layer, invites(words="x"), "r2")
        await layer.answer(first.id, "approve", by="ann")
        await layer.answer(second.id, {"choice": "approve", "inputs": {"words": "edited"}}, by="bob")
        await layer.resume("r1")
        (clash,) = (await layer.resume("r2")).questions
        assert clash.context["facts"] == {"words": {"then": "x", "now": "edited"}}


async def test_a_deed_by_hand_ends_other_proposals() -> None:
    """What a person did by hand for one run is no longer proposed by another."""

    @step(effect="irreversible", key="quarter", scope="client")
    async def invite(quarter: str) -> str:
        sent.append(quarter)
        raise Busy(403)

    @workflow
    async def invites(run: Run) -> str:
        return await invite("Q3")

    async with testing.layer() as layer:
        first, second = await proposed(layer, invites(), "r1"), await proposed(layer, invites(), "r2")
        await layer.answer(first.id, "approve", by="ann")
        (failed,) = (await layer.resume("r1")).questions
        await layer.answer(failed.id, {"choice": "by_hand", "receipt": "paper"}, by="ann")
        await layer.resume("r1")
        assert {q.id: q.status for q in await layer.questions(status=None)}[second.id] == "withdrawn"
        assert (await layer.resume("r2")).result() == "paper"
