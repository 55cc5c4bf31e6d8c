"""Taking back what a run did: offered when it ends badly, decided by a person, done by a run of its own. Judged outside.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stepseven import AlreadyAnswered, Fatal, Fixable, Layer, Outcome, Question, Run, attempt, step, workflow
from stepseven.model import QuestionKind, RunStatus
from stepseven.testing import TestLayer
from tests.runs import tools
from tests.runs.outside import DROP, Mood
from tests.runs.worldly import claims, kinds, layers, outside, post, the_question, until

Act = Callable[[str, Any, str | None], Awaitable[Any]]


@pytest.fixture
def world() -> Any:
    """The outside."""
    with outside() as opened:
        yield opened


class Shop:
    """Steps that act on the outside, two of which can be taken back."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.ending: Callable[[Run], Awaitable[Any]] = self.give_up

        @step(effect="write", key="supplier")
        async def book(supplier: str) -> dict[str, Any]:
            made = await post(world, "book", supplier, key=attempt().idempotency_key)
            return {"no": made["n"]}

        @book.undo
        async def unbook(receipt: dict[str, Any], supplier: str) -> int:
            made = await post(world, "unbook", [supplier, receipt["no"]], key=attempt().idempotency_key)
            return int(made["n"])

        @step(effect="write", key="to")
        async def mail(to: str) -> int:
            return int((await post(world, "mail", to, key=attempt().idempotency_key))["n"])

        @step(effect="write", key="amount")
        async def charge(amount: int) -> int:
            return int((await post(world, "charge", amount, key=attempt().idempotency_key))["n"])

        @charge.undo
        async def refund(charged: int) -> int:
            return int((await post(world, "refund", charged, key=attempt().idempotency_key))["n"])

        self.book, self.mail, self.charge = book, mail, charge

        @workflow("order")
        async def order(run: Run) -> str:
            await book("ann")
            await mail("bob")
            await charge(12)
            return str(await self.ending(run))

        self.order = order

    @staticmethod
    async def give_up(run: Run) -> None:
        raise Fatal(f"{run.client_id} went bankrupt")

    async def failed(self, layer: Layer, run_id: str = "r") -> Question:
        """Run to a bad end; the question it leaves."""
        return the_question(await layer.run(self.order(), client="acme", run_id=run_id))

    def orders(self) -> list[str]:
        """What the outside did, in its order."""
        return [effect["name"] for effect in self.world.effects]


@pytest.fixture
def shop(world: Any) -> Shop:
    """The steps and the workflow."""
    return Shop(world)


DONE = ["book", "mail", "charge"]


# -- the offer ------------------------------------------------------------------------------------------------------------


async def test_a_failed_run_asks_once_what_is_to_become_of_what_it_did(shop: Shop) -> None:
    """One question: every receipt, newest first, what cannot be taken back, and the choices `undo` and `leave`."""
    async with layers() as layer:
        asked = await shop.failed(layer)
        assert (asked.kind, [o.id for o in asked.options], asked.recommendation) == (QuestionKind.UNDO, ["undo", "leave"], None)
        stands = asked.context["stands"]
        assert [(s["step"], s["arguments"], s["receipt"], s["undo"]) for s in stands] == [
            ("charge", {"amount": 12}, 3, True),
            ("mail", {"to": "bob"}, 2, False),
            ("book", {"supplier": "ann"}, {"no": 1}, True),
        ]
        assert "cannot take back: “mail”" in asked.text
        assert asked.options[0].label == "take back the 2 that can be"
        assert [q.id for q in await layer.questions(client="acme")] == [asked.id]
        assert (await layer.checkpoint("r"))["open_questions"] == [{"id": asked.id, "text": asked.text}]
    assert shop.orders() == DONE, "nothing is taken back by itself"


async def stop_at_question(layer: TestLayer) -> None:
    """A person stops the run at the question it asks."""
    await layer.answer_next("stop", by="ann")


async def cancel(layer: TestLayer) -> None:
    """A person cancels the run."""
    await layer.cancel("r", reason="not wanted", by="ann")


@step
async def broken(n: int) -> int:
    """Fails in a way a person can mend."""
    raise Fixable("it is broken")


@step
async def dead(n: int) -> int:
    """Fails for good."""
    raise Fatal("it is over")


async def body_error(run: Run) -> None:
    """The workflow's own code breaks off."""
    raise KeyError("total")


async def wait_long(run: Run) -> None:
    """A timer of a day."""
    await run.sleep(86_400)


ENDS: dict[str, tuple[Callable[[Run], Awaitable[Any]], Callable[[TestLayer], Awaitable[None]] | None, RunStatus]] = {
    "the workflow says fatal": (Shop.give_up, None, RunStatus.FAILED),
    "a step is fatal": (lambda _: dead(1), None, RunStatus.FAILED),
    "stop at a step's failure": (lambda _: broken(1), stop_at_question, RunStatus.CANCELLED),
    "stop at the body's failure": (body_error, stop_at_question, RunStatus.CANCELLED),
    "cancelled while it asks": (lambda run: run.ask("go on?"), cancel, RunStatus.CANCELLED),
    "cancelled while it sleeps": (wait_long, cancel, RunStatus.CANCELLED),
}


@pytest.mark.parametrize("name", ENDS)
async def test_every_bad_end_offers(shop: Shop, name: str) -> None:
    """However a run ends failed or cancelled, the question is there, and it is the only open one."""
    shop.ending, act, status = ENDS[name]
    async with layers() as layer:
        await layer.run(shop.order(), client="acme", run_id="r")
        if act is not None:
            await act(layer)
        outcome = await layer.resume("r")
        assert outcome.status is status
        assert kinds(outcome) == ["undo"]
        assert ("failed" if status is RunStatus.FAILED else "was stopped") in outcome.questions[0].text


async def test_a_run_that_is_cancelled_while_it_executes_offers(shop: Shop) -> None:
    """Cancelled in the middle of its code, which stands still in an await nobody knows: the question is there."""

    async def stand_still(run: Run) -> None:
        await asyncio.get_running_loop().create_future()

    shop.ending = stand_still
    async with layers() as layer:
        running = asyncio.create_task(layer.run(shop.order(), client="acme", run_id="r"))
        await until(lambda: shop.orders() == DONE)
        await cancel(layer)
        assert kinds(await running) == ["undo"]


CANCEL = """
    import asyncio, sys
    from stepseven import Layer

    async def main():
        async with Layer(sys.argv[1]) as layer:
            print(await layer.cancel("r", reason="not wanted"))
            [asked] = await layer.questions()
            await layer.answer(asked.id, "undo", by="ann")
            print(asked.kind, [run.run_id for run in await layer.runs(status="queued")])

    asyncio.run(main())
"""


async def test_offer_and_answer_need_only_the_store(shop: Shop, tmp_path: Path) -> None:
    """A process without the workflow's code cancels a parked run, and answers: the question knows what can be taken back."""
    shop.ending = lambda run: run.ask("go on?")
    async with Layer(tools.url(tmp_path)) as layer:
        await layer.run(shop.order(), client="acme", run_id="r")
        ended = await asyncio.to_thread(tools.child, CANCEL, tools.url(tmp_path))
        assert ended.stdout.split("\n")[:2] == ["cancelled", "undo ['r-undo']"], ended.stderr
        assert (await layer.resume("r-undo")).result() == {"taken_back": 2, "left": 0}
    assert shop.orders() == [*DONE, "refund", "unbook"]


async def test_a_done_run_offers_nothing(shop: Shop) -> None:
    """What a run did that is done is what was wanted."""

    async def well(run: Run) -> str:
        return "well"

    shop.ending = well
    async with layers() as layer:
        assert (await layer.run(shop.order(), client="acme", run_id="r")).result() == "well"
        assert not await layer.questions(status=None)


async def test_where_nothing_can_be_taken_back_nothing_is_asked(world: Any) -> None:
    """A run whose steps have no undo, or that did nothing yet, ends without a question."""

    @step(effect="write", key="n")
    async def pay(n: int) -> int:
        return int((await post(world, "pay", n, key=None))["n"])

    @step(effect="write", key="n")
    async def never(n: int) -> int:
        raise Fatal("refused")

    @never.undo
    async def undo(receipt: int) -> None:
        raise AssertionError(receipt)

    @workflow
    async def one(run: Run) -> int:
        await pay(1)
        return await never(2)

    async with layers() as layer:
        outcome = await layer.run(one(), client="acme", run_id="r")
        assert (outcome.status, outcome.questions) == (RunStatus.FAILED, ())


async def test_what_other_runs_did_is_not_offered(world: Any) -> None:
    """A receipt reused from another run of the client, and those a fork shares with its root, are theirs."""

    @step(effect="write", key="n", scope="client")
    async def open_account(n: str) -> int:
        return int((await post(world, "open", n, key=None))["n"])

    @step(effect="write", key="n")
    async def pay(n: str) -> int:
        return int((await post(world, "pay", n, key=None))["n"])

    @open_account.undo
    async def close(receipt: int) -> None:
        await post(world, "close", receipt, key=None)

    @pay.undo
    async def refund(receipt: int) -> None:
        await post(world, "refund", receipt, key=None)

    @workflow
    async def good(run: Run) -> int:
        return await open_account("A")

    @workflow
    async def bad(run: Run, more: str | None = None) -> int:
        await open_account("A")
        await pay("B")
        if more is not None:
            await pay(more)
        raise Fatal("no")

    async with layers() as layer:
        (await layer.run(good(), client="acme")).result()
        first = the_question(await layer.run(bad(), client="acme", run_id="r"))
        assert [s["step"] for s in first.context["stands"]] == ["pay"]
        fork = await layer.fork("r", from_step="pay", inputs={"more": "C"})
        second = the_question(await layer.resume(fork.run_id))
        assert [s["arguments"] for s in second.context["stands"]] == [{"n": "C"}]
    assert world.counts() == {"open": 1, "pay": 2}


async def test_leave_closes_it(shop: Shop) -> None:
    """`leave`: nothing is done, no run is made, nothing is asked again."""
    async with layers() as layer:
        asked = await shop.failed(layer)
        await layer.answer(asked.id, "leave", by="ann")
        assert not await layer.questions()
        assert [run.run_id for run in await layer.runs()] == ["r"]
        assert (await layer.resume("r")).questions == ()
        with pytest.raises(AlreadyAnswered):
            await layer.answer(asked.id, "undo", by="bob")
    assert shop.orders() == DONE


# -- the run that takes back ----------------------------------------------------------------------------------------------


async def test_undo_is_a_run_of_its_own(shop: Shop, world: Any) -> None:
    """Its id, client, workflow, inputs and goal; it takes each back once, the newest first, under a key of its own."""
    async with layers() as layer:
        asked = await shop.failed(layer)
        await layer.answer(asked.id, "undo", by="ann")
        [info, _] = await layer.runs()
        assert (info.run_id, info.client_id, info.workflow, info.status) == ("r-undo", "acme", "stepseven.undo", "queued")
        assert info.goal == "take back what r did"
        assert (await layer.checkpoint("r-undo"))["inputs"] == {"run_id": "r"}
        assert shop.orders() == DONE, "the answer itself does nothing outside"
        outcome = await layer.resume("r-undo")
        assert (outcome.result(), outcome.questions) == ({"taken_back": 2, "left": 0}, ())
        assert [(e["name"], e["body"]) for e in world.effects[3:]] == [("refund", 3), ("unbook", ["ann", 1])]
        ids = {c["step"]: c["claim_id"] for c in claims(layer)}
        assert [e["key"] for e in world.effects[3:]] == [f"acme/undo.charge/{ids['charge']}", f"acme/undo.book/{ids['book']}"]
        assert {c["step"]: c["undone_us"] is not None for c in claims(layer)} == {
            "book": True, "mail": False, "charge": True, "undo.charge": False, "undo.book": False,
        }  # fmt: skip
        assert (await layer.checkpoint("r-undo"))["steps_complete"] == ["undo.charge", "undo.book"]
        assert (await layer.resume("r")).status is RunStatus.FAILED, "what ended stays as it ended"
        assert not await layer.questions()


async def test_an_id_that_is_taken_gets_a_number(shop: Shop) -> None:
    """Somebody's own run is called {run}-undo: ours gets the next free name."""
    async with layers() as layer:
        asked = await shop.failed(layer)

        @workflow
        async def other(run: Run) -> int:
            return 1

        await layer.run(other(), client="bolt", run_id="r-undo")
        await layer.answer(asked.id, "undo", by="ann")
        assert (await layer.resume("r-undo-2")).result() == {"taken_back": 2, "left": 0}


async def test_plain_functions_take_back_too(world: Any) -> None:
    """An undo that is a plain `def` runs in a thread; types come back as the step has them."""
    seen: list[Any] = []

    @step(effect="write", key="when")
    def reserve(when: bytes) -> tuple[int, bytes]:
        return 1, when

    @reserve.undo
    def free(receipt: tuple[int, bytes], *, when: bytes, dry: bool = False) -> bytes:
        seen.append((receipt, when, dry, attempt().number))
        return when

    @workflow
    async def one(run: Run) -> None:
        await reserve(b"noon")
        raise Fatal("no")

    async with layers() as layer:
        await layer.answer(the_question(await layer.run(one(), client="acme", run_id="r")).id, "undo", by="ann")
        (await layer.resume("r-undo")).result()
    assert seen == [((1, b"noon"), b"noon", False, 1)]


async def test_a_failed_undo_asks_like_any_write(shop: Shop, world: Any) -> None:
    """A refusal asks the usual question, in words that say what is taken back; `again` goes on with the same key."""
    async with layers() as layer:
        asked = await shop.failed(layer)
        await layer.answer(asked.id, "undo", by="ann")
        world.moods = [Mood(act=False, status=403, text="not yours")]
        question = the_question(await layer.resume("r-undo"))
        assert (question.kind, question.step) == (QuestionKind.FAILURE, "undo.charge")
        assert question.text.startswith("I could not undo charge (12) for Acme.")
        assert {"again", "skip", "by_hand", "stop"} <= {o.id for o in question.options}
        assert shop.orders() == DONE
        await layer.answer(question.id, "again", by="ann")
        assert (await layer.resume("r-undo")).result() == {"taken_back": 2, "left": 0}
    assert world.counts() == {"book": 1, "mail": 1, "charge": 1, "refund": 1, "unbook": 1}
    refunds = [key for name, key in world.calls if name == "refund"]
    assert len(refunds) == 2
    assert len(set(refunds)) == 1


@pytest.mark.parametrize("answer", [{"choice": "happened", "receipt": 4}, "not_happened"])
async def test_an_undo_with_an_unknown_outcome_asks(shop: Shop, world: Any, answer: Any) -> None:
    """The connection breaks off: nobody knows, a person says, and either way it is taken back exactly once."""
    async with layers() as layer:
        await layer.answer((await shop.failed(layer)).id, "undo", by="ann")
        world.moods = [DROP if answer != "not_happened" else Mood(act=False, reset=True)]
        question = the_question(await layer.resume("r-undo"))
        assert (question.kind, question.step) == (QuestionKind.UNKNOWN_OUTCOME, "undo.charge")
        await layer.answer(question.id, answer, by="ann")
        assert (await layer.resume("r-undo")).result() == {"taken_back": 2, "left": 0}
    assert world.counts() == {"book": 1, "mail": 1, "charge": 1, "refund": 1, "unbook": 1}


async def test_done_by_hand_counts_as_taken_back_and_skipped_does_not(shop: Shop, world: Any) -> None:
    """`by_hand` marks it as taken back; `skip` leaves it standing and the rest goes on. Neither is offered again."""
    async with layers() as layer:
        await layer.answer((await shop.failed(layer)).id, "undo", by="ann")
        world.moods = [Mood(act=False, status=403)]
        await layer.resume("r-undo")
        await layer.answer_next({"choice": "by_hand", "receipt": 77})
        world.moods = [Mood(act=False, status=403)]
        await layer.resume("r-undo")
        await layer.answer_next("skip")
        assert (await layer.resume("r-undo")).result() == {"taken_back": 1, "left": 1}
        assert not await layer.questions()
        assert [c["undone_us"] is not None for c in claims(layer)[:3]] == [False, False, True]
    assert shop.orders() == DONE


async def test_an_undo_that_is_stopped_offers_the_rest_again(shop: Shop, world: Any) -> None:
    """Stopped half-way: the first run asks about what still stands; a second undo takes back only that, under the same key."""
    async with layers() as layer:
        await layer.answer((await shop.failed(layer)).id, "undo", by="ann")
        world.moods = [Mood(), Mood(act=False, status=403)]  # the refund works, the booking stays
        question = the_question(await layer.resume("r-undo"))
        await layer.answer(question.id, "stop", by="ann")
        assert (await layer.resume("r-undo")).status is RunStatus.CANCELLED
        [rest] = await layer.questions()
        assert (rest.kind, rest.run_id) == (QuestionKind.UNDO, "r")
        assert [s["step"] for s in rest.context["stands"]] == ["mail", "book"]
        assert "One thing was taken back before." in rest.text
        await layer.answer(rest.id, "undo", by="bob")
        assert (await layer.resume("r-undo-2")).result() == {"taken_back": 1, "left": 0}
        assert not await layer.questions()
    assert world.counts() == {"book": 1, "mail": 1, "charge": 1, "refund": 1, "unbook": 1}
    assert len({key for name, key in world.calls if name == "unbook"}) == 1


async def test_a_second_undo_finds_out_about_the_first_ones_doubt(shop: Shop, world: Any) -> None:
    """The first undo was stopped while nobody knew whether it went through: the second asks, and repeats nothing by itself."""
    async with layers() as layer:
        await layer.answer((await shop.failed(layer)).id, "undo", by="ann")
        world.moods = [DROP]
        await layer.resume("r-undo")
        await layer.answer_next("stop")
        await layer.resume("r-undo")
        await layer.answer_next("undo")
        question = the_question(await layer.resume("r-undo-2"))
        assert question.kind is QuestionKind.UNKNOWN_OUTCOME
        await layer.answer(question.id, {"choice": "happened", "receipt": 4}, by="ann")
        assert (await layer.resume("r-undo-2")).result() == {"taken_back": 2, "left": 0}
    assert world.counts() == {"book": 1, "mail": 1, "charge": 1, "refund": 1, "unbook": 1}


# -- the code that takes back ---------------------------------------------------------------------------------------------

SHOP = """
    from stepseven import Fatal, Run, step, workflow

    seen = []

    @step(NAMED effect="write", key="n")
    async def rent(n: str) -> str:
        return "car " + n

    @rent.undo
    async def hand_back(car: str) -> None:
        seen.append(car)

    @workflow
    async def trip(run: Run) -> None:
        await rent("A")
        raise Fatal("it rains")
"""


async def test_missing_code_is_named_and_found_after_it_is_loaded(tmp_path: Path) -> None:
    """Without the module the run asks, naming step and module; once it is loaded a resume goes on by itself."""
    made = tools.module("rentals_gone", SHOP.replace("NAMED", 'name="rent_gone",'))
    async with Layer(tools.url(tmp_path)) as layer:
        await layer.answer(the_question(await layer.run(made.trip(), client="acme", run_id="r")).id, "undo", by="ann")
    code = """
        import asyncio, sys
        from stepseven import Layer

        async def main():
            async with Layer(sys.argv[1]) as layer:
                print([ascii(q.text) for q in (await layer.resume("r-undo")).questions])

        asyncio.run(main())
    """
    told = (await asyncio.to_thread(tools.child, code, tools.url(tmp_path))).stdout
    assert "rent_gone" in told
    assert "rentals_gone" in told
    async with Layer(tools.url(tmp_path)) as layer:
        assert (await layer.resume("r-undo")).result() == {"taken_back": 1, "left": 0}
    assert made.seen == ["car A"]


async def test_a_renamed_step_still_takes_back(tmp_path: Path) -> None:
    """The step was renamed since, and says so: its undo is found under the new name."""
    before = f"""{SHOP.replace("NAMED", 'name="rent_old",')}
    import asyncio, sys
    from stepseven import Layer

    async def main():
        async with Layer(sys.argv[1]) as layer:
            [asked] = (await layer.run(trip(), client="acme", run_id="r")).questions
            await layer.answer(asked.id, "undo", by="ann")

    asyncio.run(main())
    """
    ended = await asyncio.to_thread(tools.child, before, tools.url(tmp_path))
    assert ended.returncode == 0, ended.stderr
    new = tools.module("rentals_new", SHOP.replace("NAMED", 'name="rent_new", renamed_from="rent_old",'))
    async with Layer(tools.url(tmp_path)) as layer:
        outcome: Outcome[Any] = await layer.resume("r-undo")
        assert outcome.result() == {"taken_back": 1, "left": 0}
    assert new.seen == ["car A"]


def reading() -> Any:
    """A step that only reads."""

    @step
    async def look(n: int) -> int:
        return n

    return look


def writing(**options: Any) -> Any:
    """A step that writes, with two parameters."""

    @step(effect="write", key="n", **options)
    async def pay(n: int, note: str) -> str:
        return note

    return pay


@pytest.mark.parametrize(
    "make, undo, told",
    [
        (reading, lambda receipt: None, "only reads"),
        (writing, lambda receipt, other: None, "'other', which is not known then: it may take n, note, receipt"),
        (writing, lambda a, b: None, "'a', 'b'"),
        (writing, lambda *receipts: None, "given by name"),
        (writing, lambda **all_of_it: None, "given by name"),
        (lambda: writing(ignore=("note",)), lambda receipt, note: None, "'note', which the step has in ignore="),
    ],
)  # fmt: skip
def test_an_undo_that_could_not_be_called_is_refused_at_once(make: Any, undo: Any, told: str) -> None:
    """What is not known when the effect is taken back cannot be a parameter; the sentence says what can."""
    with pytest.raises(TypeError) as refused:
        make().undo(undo)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "undo, given",
    [
        (lambda: None, {}), (lambda receipt: None, {"receipt": "x"}), (lambda payment: None, {"payment": "x"}),
        (lambda n, note, receipt, dry=False: None, {"n": 1, "note": "x", "receipt": "x"}),
        (lambda n, payment, *, dry=False: None, {"n": 1, "payment": "x"}),
    ],
)  # fmt: skip
def test_parameters_are_matched_by_name(undo: Any, given: dict[str, Any]) -> None:
    """Arguments by their names, the receipt as `receipt` or under one name of its own; defaults stay."""
    pay = writing()
    assert pay.undo(undo) is undo
    assert pay.hooks.undo.values({"n": 1, "note": "x"}, "x") == given


def test_names_of_our_own_workflows_are_ours() -> None:
    """A workflow cannot be called stepseven.something: it would be taken for ours."""
    with pytest.raises(ValueError, match="stepseven's own"):
        workflow("stepseven.undo")(Shop.give_up)


async def test_what_was_approved_is_what_is_taken_back() -> None:
    """An irreversible step whose arguments a person edited: the question shows, and the undo gets, what was really sent."""
    seen: list[Any] = []

    @step(effect="irreversible", key="to")
    async def transfer(to: str, amount: int) -> str:
        seen.append(("sent", to, amount))
        return "t-1"

    @transfer.undo
    async def recall(to: str, amount: int, receipt: str) -> None:
        seen.append(("recalled", to, amount, receipt))

    @workflow
    async def one(run: Run) -> None:
        await transfer("ann", 100)
        raise Fatal("no")

    async with layers() as layer:
        await layer.run(one(), client="acme", run_id="r")
        await layer.answer_next({"choice": "approve", "inputs": {"amount": 80}})
        asked = the_question(await layer.resume("r"))
        assert asked.context["stands"][0]["arguments"] == {"to": "ann", "amount": 80}
        await layer.answer(asked.id, "undo", by="ann")
        (await layer.resume("r-undo")).result()
    assert seen == [("sent", "ann", 80), ("recalled", "ann", 80, "t-1")]


async def test_a_run_that_kept_dying_and_is_stopped_offers(shop: Shop, tmp_path: Path) -> None:
    """Stop at a `poison` question: what it did before it began to die is offered."""
    async with Layer(tools.url(tmp_path)) as layer:
        shop.ending = lambda run: run.ask("go on?")
        await layer.run(shop.order(), client="acme", run_id="r")
        asked = (await layer.questions())[0]
        await layer.answer(asked.id, "yes", by="ann")

        def dying(tx: Any) -> None:  # as three ends of the process leave it
            row = tx.one(tx.sql.run_by_id, {"id": "r"})
            tx.one(
                tx.sql.take_run,
                {"run_no": row["no"], "owner": "w_gone", "now": row["updated_us"], "progress": 1 << 40, "barren": 2,
                 "source_digest": None, "fence": row["fence"], "seen_owner": "", "remaining": None},
            )  # fmt: skip

        await layer.store.write(dying, durable=True, client=None)
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["poison"]
        await layer.answer(outcome.questions[0].id, "stop", by="ann")
        outcome = await layer.resume("r")
        assert (outcome.status, kinds(outcome)) == (RunStatus.CANCELLED, ["undo"])


# -- afterwards -----------------------------------------------------------------------------------------------------------


async def test_what_was_taken_back_is_done_anew(world: Any) -> None:
    """Over all runs of a client: while it is being taken back a run waits, afterwards it does it anew, under a new key."""

    @step(effect="write", key="n", scope="client")
    async def pay(n: str) -> int:
        return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

    @pay.undo
    async def refund(receipt: int) -> None:
        await post(world, "refund", receipt, key=attempt().idempotency_key)

    @workflow
    async def bad(run: Run) -> None:
        await pay("A")
        raise Fatal("no")

    @workflow
    async def good(run: Run) -> int:
        return await pay("A")

    async with layers() as layer:
        asked = the_question(await layer.run(bad(), client="acme", run_id="r"))
        assert "“pay” counts for all of Acme's runs" in asked.text
        await layer.answer(asked.id, "undo", by="ann")
        waiting = await layer.run(good(), client="acme", run_id="g")
        assert waiting.waiting_for == "effect"
        (await layer.resume("r-undo")).result()
        assert (await layer.resume("g")).result() == 3
        assert (await layer.run(good(), client="acme", run_id="h")).result() == 3, "that one stands"
    keys = [e["key"] for e in world.effects]
    assert [keys[0], keys[2]] == ["acme/pay/A", "acme/pay/A#2"]
    assert world.counts() == {"pay": 2, "refund": 1}


async def test_an_undo_that_ends_without_success_gives_the_receipt_back(world: Any) -> None:
    """The undo was stopped before it did anything: the receipt counts again, nothing is done twice."""

    @step(effect="write", key="n", scope="client")
    async def pay(n: str) -> int:
        return int((await post(world, "pay", n, key=attempt().idempotency_key))["n"])

    @pay.undo
    async def refund(receipt: int) -> None:
        raise Fatal("too late")

    @workflow
    async def bad(run: Run) -> None:
        await pay("A")
        raise Fatal("no")

    @workflow
    async def good(run: Run) -> int:
        return await pay("A")

    async with layers() as layer:
        await layer.answer(the_question(await layer.run(bad(), client="acme", run_id="r")).id, "undo", by="ann")
        assert (await layer.resume("r-undo")).status is RunStatus.FAILED
        assert (await layer.run(good(), client="acme")).result() == 1
    assert world.counts() == {"pay": 1}


async def test_beside_an_older_one_that_stands_a_third_still_asks(world: Any) -> None:
    """Two under one key, by a person's choice; the second was taken back. Other values still meet the first: conflict."""

    @step(effect="write", key="n", scope="run")
    async def pay(n: str, amount: int) -> int:
        return int((await post(world, "pay", amount, key=attempt().idempotency_key))["n"])

    @pay.undo
    async def refund(receipt: int) -> None:
        await post(world, "refund", receipt, key=None)

    @workflow
    async def root(run: Run) -> int:
        return await pay("A", 1)

    @workflow("root")
    async def bad(run: Run) -> None:
        await pay("A", 2)
        raise Fatal("no")

    @workflow("root")
    async def third(run: Run, amount: int = 3) -> int:
        return await pay("A", amount)

    async with layers() as layer:
        await layer.run(root(), client="acme", run_id="r")
        second = await layer.fork("r", from_step="pay")
        registered = {"bad": bad, "third": third}  # the newest of a name is what a resume finds
        from stepseven.runtime.procedure import registry

        registry["root"] = registered["bad"]
        await layer.resume(second.run_id)
        await layer.answer_next("second")
        await layer.answer(the_question(await layer.resume(second.run_id)).id, "undo", by="ann")
        (await layer.resume(f"{second.run_id}-undo")).result()
        registry["root"] = registered["third"]
        other = await layer.fork("r", from_step="pay")
        assert kinds(await layer.resume(other.run_id)) == ["conflict"]
        same = await layer.fork("r", from_step="pay", inputs={"amount": 1})
        assert (await layer.resume(same.run_id)).result() == 1
        gone = await layer.fork("r", from_step="pay", inputs={"amount": 2})
        assert kinds(await layer.resume(gone.run_id)) == ["conflict"], "2 was taken back: its receipt is nobody's"
    assert world.counts() == {"pay": 2, "refund": 1}


async def test_a_receipt_that_comes_after_the_end_is_offered_too(world: Any) -> None:
    """A send that was given up succeeds after its run was stopped: the question is opened then, or told anew."""
    back: list[int] = []

    @step(effect="write", key="n")
    async def book(n: str) -> int:
        return int((await post(world, "book", n, key=None))["n"])

    @step(effect="write", key="n", timeout=1)
    def pay(n: str) -> int:
        import httpx

        return int(httpx.post(f"{world.url}/effect/pay", json=n, timeout=20).json()["n"])

    @book.undo
    @pay.undo
    async def take_back(receipt: int) -> None:
        back.append(receipt)

    @workflow
    async def one(run: Run) -> int:
        await book("A")
        return await pay("B")

    async with layers() as layer:
        world.moods = [Mood(), Mood(hold=True)]
        await layer.run(one(), client="acme", run_id="r")
        await layer.answer_next("stop")
        asked = the_question(await layer.resume("r"))
        assert [s["step"] for s in asked.context["stands"]] == ["book"]
        assert "I do not know whether “pay” went through." in asked.text
        world.let_go()
        await until(lambda: claims(layer, "pay")[0]["state"] == "done")
        [told] = await layer.questions()
        assert told.id == asked.id
        assert [s["step"] for s in told.context["stands"]] == ["pay", "book"]
        await layer.answer(told.id, "undo", by="ann")
        assert (await layer.resume("r-undo")).result() == {"taken_back": 2, "left": 0}
    assert back == [2, 1]


async def test_a_receipt_that_was_never_kept_is_not_invented(world: Any) -> None:
    """What came back could not be kept: an undo that needs it asks a person, one that does not goes on."""

    @step(effect="write", key="n")
    async def rent(n: str) -> Any:
        return object()

    @step(effect="write", key="n")
    async def book(n: str) -> Any:
        return object()

    @rent.undo
    async def hand_back(receipt: Any) -> None:
        raise AssertionError(receipt)

    @book.undo
    async def unbook(n: str) -> None:
        await post(world, "unbook", n, key=None)

    @workflow
    async def one(run: Run) -> None:
        await asyncio.gather(rent("A"), book("B"))

    async with layers() as layer:
        assert kinds(await layer.run(one(), client="acme", run_id="r")) == ["required", "required"]
        await cancel(layer)
        await layer.answer_next("undo")
        question = the_question(await layer.resume("r-undo"))
        if question.step != "undo.rent":
            raise AssertionError(question)
        assert "could not be kept" in question.text
        await layer.answer(question.id, {"choice": "by_hand", "receipt": None}, by="ann")
        assert (await layer.resume("r-undo")).result() == {"taken_back": 2, "left": 0}
    assert world.counts() == {"unbook": 1}


async def test_the_first_run_says_what_became_of_it(shop: Shop) -> None:
    """`why` of the ended run names the question while it is open, and the decision is in its checkpoint afterwards."""
    async with layers() as layer:
        asked = await shop.failed(layer)
        assert asked.id in await layer.why("r")
        await layer.answer(asked.id, "undo", by="ann")
        assert "r-undo" in await layer.why("r")
        (await layer.resume("r-undo")).result()
        assert "2 things it did were taken back (see run r-undo)" in await layer.why("r")
        [decision] = (await layer.checkpoint("r"))["decisions"]
        assert (decision["answer"], decision["by"]) == ("undo", "ann")
        assert json.loads(json.dumps(asked.context)) == asked.context


# -- a child that is started anew -------------------------------------------------------------------------------------------


async def test_a_child_started_anew_answers_for_what_its_first_start_did(shop: Shop) -> None:
    """Its first start's offer is taken back: its receipts are used again. If it ends badly too, they are offered with its own."""

    @workflow("careful")
    async def careful(run: Run) -> str:
        await shop.book("ann")
        answer = await run.ask("Right?", options=["yes", "no"])
        await shop.charge(7)
        raise Fatal(f"{answer} is too late")

    @workflow("parent")
    async def parent(run: Run) -> str:
        return await run.start(careful())

    async with layers() as layer:
        asked = the_question(await layer.run(parent(), client="acme", run_id="p"))
        await layer.cancel(asked.run_id, reason="wrong")
        first = {q.kind: q for q in await layer.questions()}
        assert set(first) == {QuestionKind.UNDO}
        await layer.resume("p")
        body = next(q for q in await layer.questions() if q.run_id == "p")
        await layer.answer(body.id, "again", by="ann")
        await layer.resume("p")
        left = list(await layer.questions())
        assert [q.text.split("\n", 1)[0] for q in left] == ["Right?"], "what was offered of the first start is used again"
        await layer.answer(left[0].id, "yes", by="ann")
        assert (await layer.resume("p")).status == "failed"
        offered = [q for q in await layer.questions() if q.kind is QuestionKind.UNDO]
        assert [[s["step"] for s in q.context["stands"]] for q in offered] == [["charge", "book"]]
        await layer.answer(offered[0].id, "undo", by="ann")
        assert (await layer.resume(f"{offered[0].run_id}-undo")).status == "done"
    assert shop.orders() == ["book", "charge", "refund", "unbook"]
