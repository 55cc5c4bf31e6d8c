"""Approvals side by side: tasks, items, processes and other runs that want the same effect, or answer the same question."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Run, attempt, step, testing, workflow
from stepseven.model import QuestionKind, RunStatus
from tests.runs.proposals import Busy, fresh, mail, proposed, send_mail, sent
from tests.servers import databases


@pytest.fixture(autouse=True)
def _fresh() -> None:
    fresh()


def _inviting() -> Any:
    @step(effect="irreversible", key="quarter", scope="client")
    async def invite(quarter: str, words: str) -> str:
        sent.append(words)
        return f"i-{len(sent)}"

    @workflow
    async def invites(run: Run, words: str) -> str:
        return await invite("Q3", words)

    return invites


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
    store = databases.url(tmp_path)
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


@pytest.mark.slow
async def test_an_answer_between_asked_and_parked(tmp_path: Path) -> None:
    """An approval given in the instant the run is put away is not lost, 200 times: the run goes on by itself or with a resume."""
    url = databases.url(tmp_path)

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
                assert not await person.questions(run_id=f"r{lap}")
                outcome = await layer.resume(f"r{lap}")
            assert outcome.result() == list(range(40)) == sent


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
