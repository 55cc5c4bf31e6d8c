"""Proposed first: what is irreversible happens after a person's word, on exactly the arguments they saw, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepseven import NoRun, Refused, Run, StepFailed, step, testing, workflow
from stepseven.model import QuestionKind, RunStatus
from tests.runs.proposals import Busy, fresh, proposed, send_mail, sent, text
from tests.servers import databases


@pytest.fixture(autouse=True)
def _fresh() -> None:
    fresh()


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


@pytest.mark.parametrize("answered", [True, False])
async def test_an_old_yes_never_sends_a_new_draft(tmp_path: Path, answered: bool) -> None:
    """The draft came out otherwise when the run went on: the approval is void, the new draft is proposed with what changed."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        question = await proposed(layer)
        if answered:
            await layer.answer(question.id, "approve", by="ann")
        databases.execute(tmp_path, "DELETE FROM step WHERE name = 'draft'")  # gone: the step that made it runs again
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


async def test_outside_a_run_it_is_refused() -> None:
    """Without a run there is nobody to ask: `NoRun`, nothing is done."""
    with pytest.raises(NoRun):
        await send_mail("ben", "x")
    assert sent == []


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


async def test_silence_is_a_no(tmp_path: Path) -> None:
    """A proposal that expired was not approved: nothing is sent, and the run ends saying so."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        await proposed(layer)
        databases.execute(tmp_path, "UPDATE question SET status = 'expired'")  # whoever reminds people closes it so
        outcome = await layer.resume("r")
        assert outcome.status is RunStatus.CANCELLED
        assert outcome.failure is not None
        assert outcome.failure.reason == "nobody approved it in time"
        assert sent == []
