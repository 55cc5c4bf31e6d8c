"""What is chosen when a run is resumed: checked first, written down, obeyed once.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypedDict

import pytest

from stepseven import Fixable, InvalidChoice, Retryable, Run, SecretFound, StepFailed, attempt, step, testing, workflow
from stepseven.testing import Clock, TestLayer
from tests.runs.tools import module
from tests.runs.worldly import the_question, until
from tests.servers import databases

KEY = "sk-ant-" + "a1B2c3D4" * 4


class HttpError(Exception):
    """Looks like the exception of an HTTP client."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} from the server")
        self.response = SimpleNamespace(status_code=status, headers={}, url="http://billing.example/x", request=None)


def recoveries(layer: TestLayer) -> list[dict[str, Any]]:
    """The recoveries of the first run, oldest first, their JSON read."""
    rows = layer.store.read_now(lambda tx: tx.all(tx.sql.recoveries_of_run, {"run_no": 1}))
    return [{k: json.loads(v) if k in ("plan", "chosen", "result") and v else v for k, v in dict(r).items()} for r in rows]


def made(layer: TestLayer, name: str) -> list[dict[str, Any]]:
    """The records of a step in the first run, in order."""
    return [
        dict(r)
        for r in layer.store.read_now(lambda tx: tx.all(tx.sql.steps, {"low": 1 << 24, "high": (2 << 24) - 1}))
        if r["name"] == name
    ]


def state(layer: TestLayer) -> dict[str, Any]:
    """The row of the first run."""
    return dict(layer.store.read_now(lambda tx: tx.one(tx.sql.run_by_no, {"no": 1})) or {})


class World:
    """Steps that count, and a billing that does not answer."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.tickets = 3
        world = self

        @step
        async def tickets() -> int:
            world.ran.append("tickets")
            return world.tickets

        @step
        async def billing(n: int) -> int:
            world.ran.append(f"billing:{attempt().approach}")
            raise HttpError(403)

        @billing.approach("contract amount", ask=True)
        async def contract(n: int) -> int:
            world.ran.append(f"billing:{attempt().approach}")
            return 48_000 + n

        @billing.approach("old system", ask=True)
        async def old_system(n: int) -> int:
            world.ran.append(f"billing:{attempt().approach}")
            raise HttpError(403)

        @step(effect="write")
        async def post(amount: int | None) -> str:
            world.ran.append(f"post:{amount}")
            return f"posted {amount}"

        @workflow(name="renewal_chosen")
        async def renewal(run: Run) -> str:
            n = await tickets()
            amount = await billing(n)
            return await post(amount)

        self.tickets_step, self.billing, self.post, self.renewal = tickets, billing, post, renewal


looked: list[int] = []


@step(effect="write", key="n")
async def deliver(n: int) -> None:
    """Nothing."""


@deliver.probe
async def delivered(n: int) -> bool:
    """Whether somebody has done it by hand."""
    looked.append(n)
    return True


@workflow
async def overnight(run: Run) -> int:
    """Sleeps, and delivers."""
    await run.sleep(3600)
    await deliver(1)
    return 1


# -- approach -------------------------------------------------------------------------------------------------------------


async def test_an_approach_is_tried_and_answers_the_open_question():
    """``approach`` tries the step once more in that way, and its open question is answered with it, by who chose."""
    world = World()
    async with testing.layer() as layer:
        first = the_question(await layer.run(world.renewal(), client="acme", run_id="r1"))
        outcome = await layer.resume("r1", approach={"billing": "contract amount"}, by="ann")
        assert outcome.value == "posted 48003"
        (row,) = recoveries(layer)
        (question,) = [q for q in await layer.questions(status="answered") if q.id == first.id]
    assert world.ran == ["tickets", "billing:as written", "billing:contract amount", "post:48003"]
    assert (question.answer, question.answered_by) == ("approach:contract amount", "ann")
    assert row["chosen"] == {
        "approach": {"billing": "contract amount"},
        "as_of_seq": 1,
        "tried": [["", "billing", *row["chosen"]["tried"][0][2:]]],
    }
    assert row["by"] == "ann"
    assert row["result"] == {
        "ran": {"billing": 1, "post": 1}, "reused": 1, "asked": 0, "usd": 0.0, "seconds": row["result"]["seconds"], "saved": {},
    }  # fmt: skip
    assert row["ended_us"] is not None


async def test_an_approach_is_the_first_try_of_a_step_that_was_not_reached():
    """Chosen before the step was reached, the first try goes about it that way, however many parks are in between."""
    world = World()

    @workflow(name="asks_first")
    async def asks_first(run: Run) -> int:
        await run.ask("May I?", options=["yes", "no"])
        return await world.billing(1)

    async with testing.layer() as layer:
        await layer.run(asks_first(), client="acme", run_id="r1")
        outcome = await layer.resume("r1", approach={"billing": "contract amount"})
        assert outcome.status == "waiting"
        assert world.ran == []
        await layer.answer_next("yes")
        assert (await layer.resume("r1")).value == 48_001
    assert world.ran == ["billing:contract amount"]


async def test_an_approach_that_fails_too_is_asked_about_and_not_tried_for_ever():
    """A chosen approach that fails ends in a new question, and a plain resume tries nothing."""
    world = World()
    async with testing.layer() as layer:
        await layer.run(world.renewal(), client="acme", run_id="r1")
        outcome = await layer.resume("r1", approach={"billing": "old system"}, by="ann")
        assert the_question(outcome).status == "open"
        ran = list(world.ran)
        assert (await layer.resume("r1")).status == "waiting"
        assert world.ran == ran
        outcome = await layer.resume("r1", approach={"billing": "contract amount"})
        assert outcome.status == "done"
    assert ran == ["tickets", "billing:as written", "billing:old system"]


async def test_as_written_takes_an_earlier_choice_back():
    """``as written`` is the step's own code again: the newest choice about a step counts."""
    world = World()

    @workflow(name="asks_before")
    async def asks_before(run: Run) -> int:
        await run.ask("May I?", options=["yes", "no"])
        return await world.billing(1)

    async with testing.layer() as layer:
        await layer.run(asks_before(), client="acme", run_id="r1")
        await layer.resume("r1", approach={"billing": "contract amount"})
        await layer.resume("r1", approach={"billing": "as written"})
        await layer.answer_next("yes")
        await layer.resume("r1")
    assert world.ran == ["billing:as written"]


async def test_another_approach_of_a_write_only_runs_once_it_is_proven_that_it_did_not_happen():
    """A write in doubt is found out about first; only the answer "it did not happen" lets the approach run."""
    sent: list[str] = []

    @step(effect="write", key="n")
    async def post(n: int) -> str:
        sent.append(attempt().idempotency_key)
        raise TimeoutError("no answer")

    @post.approach("by mail", ask=True)
    async def by_mail(n: int) -> str:
        sent.append("mail " + attempt().idempotency_key)
        return "mailed"

    @workflow(name="in_doubt")
    async def job(run: Run) -> str:
        return await post(7)

    async with testing.layer() as layer:
        outcome = await layer.run(job(), client="acme", run_id="r1")
        assert the_question(outcome).kind == "unknown_outcome"
        outcome = await layer.resume("r1", approach={"post": "by mail"})
        assert the_question(outcome).kind == "unknown_outcome"
        assert len(sent) == 1
        await layer.answer_next("not_happened")
        assert (await layer.resume("r1")).value == "mailed"
    assert len(sent) == 2
    assert sent[1].startswith("mail ")


# -- skip -----------------------------------------------------------------------------------------------------------------


async def test_skip_gives_a_value_and_answers_the_question():
    """``skip`` with a value is the step's result, by who gave it; the question about it is answered."""
    world = World()
    async with testing.layer() as layer:
        await layer.run(world.renewal(), client="acme", run_id="r1")
        outcome = await layer.resume("r1", skip={"billing": 12}, by="ann")
        (record,) = made(layer, "billing")
        assert await layer.questions() == []
    assert outcome.value == "posted 12"
    assert (record["state"], record["approach"], record["why"]) == ("done", "by hand", "given by ann")


async def test_skip_without_a_value_gives_none():
    """``skip`` with ``None``: the step is skipped, on record as such, and gives ``None``."""
    world = World()
    async with testing.layer() as layer:
        await layer.run(world.renewal(), client="acme", run_id="r1")
        outcome = await layer.resume("r1", skip={"billing": None})
        (record,) = made(layer, "billing")
        assert record["state"] == "skipped"
        assert recoveries(layer)[0]["result"]["ran"] == {"post": 1}
    assert outcome.value == "posted None"


async def test_a_write_that_was_done_by_hand_is_not_done():
    """``skip`` of a write with its receipt settles it: nothing is sent."""
    world = World()
    async with testing.layer() as layer:
        await layer.run(world.renewal(), client="acme", run_id="r1")
        outcome = await layer.resume("r1", skip={"billing": 1, "post": "B-9"}, by="ann")
        effects = layer.store.read_now(lambda tx: tx.all(tx.sql.effects, {"run_no": 1}))
    assert outcome.value == "B-9"
    assert [e["state"] for e in effects] == ["done"]
    assert not any(r.startswith("post") for r in world.ran)


@dataclass
class Contact:
    name: str
    since: date


class Price(TypedDict):
    amount: Decimal


@pytest.mark.parametrize(
    "kind, good, value, wrong",
    [
        (Contact, {"name": "ann", "since": "2026-03-14"}, Contact("ann", date(2026, 3, 14)), {"name": "ann"}),
        (Contact, Contact("ben", date(2026, 1, 2)), Contact("ben", date(2026, 1, 2)), "ben"),
        (Price, {"amount": "1.10"}, {"amount": Decimal("1.10")}, {"amount": "much"}),
        (bytes, b"\x00a", b"\x00a", 7),
        (list[int], [1], [1], ["x"]),
        (str, "eA==", "eA==", b"x"),
        (str, "2026-03-14", "2026-03-14", date(2026, 3, 14)),
        (list[str], ["a"], ["a"], ["a", b"x"]),
        (Contact, {"name": "a", "since": date(2026, 1, 2)}, Contact("a", date(2026, 1, 2)), {"name": b"x", "since": "2026-1-2"}),
        (int, 1, 1, True),
    ],
)  # fmt: skip
async def test_a_given_value_is_of_the_steps_type(kind: Any, good: Any, value: Any, wrong: Any):
    """What is given comes back as the step's type; what does not fit is refused before anything is written."""
    got: list[Any] = []

    async def pull() -> Any:
        raise HttpError(403)

    pull.__annotations__["return"] = kind
    pulled = step(pull)

    @workflow(name="typed_skip")
    async def job(run: Run) -> None:
        got.append(await pulled())

    async with testing.layer() as layer:
        await layer.run(job(), client="acme", run_id="r1")
        with pytest.raises(InvalidChoice, match="what is given for pull does not fit"):
            await layer.resume("r1", skip={"pull": wrong})
        assert recoveries(layer) == []
        assert (await layer.resume("r1", skip={"pull": good})).status == "done"
    assert got[-1] == value  # its code has run before, in a rehearsal


async def test_a_value_that_check_rejects_is_refused():
    """``check=`` sees a given value before it is kept."""

    @step(check=lambda n: "too small" if n < 10 else None)
    async def pull() -> int:
        raise HttpError(403)

    @workflow(name="checked_skip")
    async def job(run: Run) -> int:
        return await pull()

    async with testing.layer() as layer:
        await layer.run(job(), client="acme", run_id="r1")
        with pytest.raises(InvalidChoice, match="too small"):
            await layer.resume("r1", skip={"pull": 1})
        assert (await layer.resume("r1", skip={"pull": 10})).value == 10


async def test_a_credential_is_no_value():
    """A credential in a given value is refused, and no byte of it is kept."""

    @step
    async def pull() -> dict[str, str]:
        raise HttpError(403)

    @workflow(name="secret_skip")
    async def job(run: Run) -> Any:
        return await pull()

    async with testing.layer() as layer:
        await layer.run(job(), client="acme", run_id="r1")
        with pytest.raises(SecretFound):
            await layer.resume("r1", skip={"pull": {"key": KEY}})
        assert recoveries(layer) == []
        assert (await layer.resume("r1")).status == "waiting"


async def test_a_write_in_doubt_is_not_skipped():
    """Whether a write happened is found out first: ``skip`` is refused and names the question."""

    @step(effect="write", key="n")
    async def post(n: int) -> str:
        raise TimeoutError("no answer")

    @workflow(name="doubtful_skip")
    async def job(run: Run) -> str:
        return await post(7)

    async with testing.layer() as layer:
        question = the_question(await layer.run(job(), client="acme", run_id="r1"))
        for value in (None, "B-9"):
            with pytest.raises(InvalidChoice, match=question.id):
                await layer.resume("r1", skip={"post": value})
        assert recoveries(layer) == []
        assert the_question(await layer.resume("r1")).id == question.id


async def test_skip_of_an_irreversible_step_that_waits_for_approval_proposes_nothing_any_more():
    """A proposal of a step that is skipped is taken back; nothing was sent."""
    sent: list[str] = []

    @step(effect="irreversible", key="to")
    async def mail(to: str) -> str:
        sent.append(to)
        return "sent"

    @workflow(name="mail_skip")
    async def job(run: Run) -> Any:
        return await mail("ann@example.com")

    async with testing.layer() as layer:
        question = the_question(await layer.run(job(), client="acme", run_id="r1"))
        assert question.kind == "approve"
        outcome = await layer.resume("r1", skip={"mail": None})
        assert [q.status for q in await layer.questions(status="withdrawn")] == ["withdrawn"]
    assert (outcome.status, outcome.value, sent) == ("done", None, [])


# -- rerun ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [True, False])
async def test_rerun_makes_a_result_anew_and_what_depends_on_a_difference(other: bool):
    """``rerun`` runs that read once more; later steps run again only if they get another argument."""
    world = World()
    async with testing.layer() as layer:
        await layer.run(world.renewal(), client="acme", run_id="r1")
        world.tickets = 4 if other else 3
        outcome = await layer.resume("r1", rerun=["tickets"])
        ran = list(world.ran)
        await layer.resume("r1")
        assert world.ran == ran
        result = recoveries(layer)[0]["result"]
    again = ["billing:as written"] if other else []
    assert ran == ["tickets", "billing:as written", "tickets", *again]
    assert outcome.status == "waiting"
    assert result["ran"] == {"tickets": 1}
    assert result["asked"] == len(again)


async def test_rerun_is_a_choice_each_time():
    """Chosen again later, it is made anew again: a choice is about the records there were when it was made."""
    world = World()
    async with testing.layer() as layer:
        await layer.run(world.renewal(), client="acme", run_id="r1")
        for _ in range(2):
            await layer.resume("r1", rerun=["tickets"])
        assert [r["generation"] for r in made(layer, "tickets")] == [1, 2, 3]
    assert world.ran.count("tickets") == 3


async def test_rerun_runs_what_the_step_calls_too():
    """The steps that a step's code calls run again with it; one of these named alone has what it is called by run, too."""
    ran: list[str] = []

    @step
    async def page(n: int) -> int:
        ran.append(f"page {n}")
        return n

    @step
    async def pages() -> int:
        ran.append("pages")
        return await page(1) + await page(2)

    @step
    async def other() -> int:
        ran.append("other")
        return 1

    @workflow(name="inner_rerun")
    async def job(run: Run) -> int:
        n = await pages() + await other()
        await run.ask("Good?")
        return n

    async with testing.layer() as layer:
        await layer.run(job(), client="acme", run_id="r1")
        ran.clear()
        await layer.resume("r1", rerun=["pages"])
        assert ran == ["pages", "page 1", "page 2"]
        ran.clear()
        await layer.resume("r1", rerun=["page"])
        assert ran == ["pages", "page 1", "page 2"]


async def test_rerun_goes_with_an_approach_and_with_a_value():
    """A finished step is made anew in another way, or gets another result, when it is named in both."""
    ran: list[str] = []

    @step
    async def pull() -> int:
        ran.append(attempt().approach)
        return 1

    @pull.approach("slow", ask=True)
    async def slow() -> int:
        ran.append(attempt().approach)
        return 2

    @workflow(name="both")
    async def job(run: Run) -> int:
        n = await pull()
        await run.ask("Good?", about=n)
        return n

    async with testing.layer() as layer:
        await layer.run(job(), client="acme", run_id="r1")
        with pytest.raises(InvalidChoice, match="name it in rerun, too"):
            await layer.resume("r1", approach={"pull": "slow"})
        await layer.resume("r1", approach={"pull": "slow"}, rerun=["pull"])
        assert ran == ["as written", "slow"]
        await layer.resume("r1", skip={"pull": 9}, rerun=["pull"], by="ann")
        assert ran == ["as written", "slow"]
        assert [(r["result"], r["approach"]) for r in made(layer, "pull")] == [("1", None), ("2", "slow"), ("9", "by hand")]
        await layer.resume("r1", rerun=["pull"])
        assert ran == ["as written", "slow", "as written"]


async def test_a_choice_lets_a_failed_body_run_again():
    """When the workflow's own code had failed, a choice is the word that it may run again."""
    world = {"rows": "none"}

    @step
    async def pull() -> str:
        return world["rows"]

    @workflow(name="body_again")
    async def job(run: Run) -> int:
        return int(await pull())

    async with testing.layer() as layer:
        question = the_question(await layer.run(job(), client="acme", run_id="r1"))
        assert question.kind == "failure"
        world["rows"] = "12"
        assert (await layer.resume("r1")).status == "waiting"
        assert (await layer.resume("r1", rerun=["pull"], by="ann")).value == 12


@pytest.mark.parametrize("how", ["skip", "approach"])
async def test_a_step_that_gave_up_is_tried_anew(how: str):
    """A step with ``on_failure="raise"`` that failed for good is done as chosen."""

    @step(on_failure="raise")
    async def pull() -> int:
        raise HttpError(403)

    @pull.approach("other", ask=True)
    async def other() -> int:
        return 5

    @workflow(name="gave_up")
    async def job(run: Run) -> int:
        return await pull()

    async with testing.layer() as layer:
        assert (await layer.run(job(), client="acme", run_id="r1")).status == "waiting"
        chosen: Any = {"skip": {"pull": 5}} if how == "skip" else {"approach": {"pull": "other"}}
        assert (await layer.resume("r1", **chosen)).value == 5


async def test_rerun_answers_the_failure_that_offers_it():
    """A later step's failure that offers to run the earlier one again is answered by that choice, and is tried once more."""
    ran: list[str] = []

    @step
    async def export() -> str:
        ran.append("export")
        return "rows"

    @step
    async def check(text: str) -> str:
        ran.append("check")
        if ran.count("check") == 1:
            raise Fixable("no rows in it")
        return text

    @workflow(name="offers_rerun")
    async def job(run: Run) -> str:
        return await check(await export())

    async with testing.layer() as layer:
        await layer.run(job(), client="acme", run_id="r1")
        assert (await layer.resume("r1", rerun=["export"], by="ann")).value == "rows"
    assert ran == ["export", "check", "export", "check"]


# -- maps -----------------------------------------------------------------------------------------------------------------


def mapped(ran: list[str], *, concurrency: int = 1) -> Any:
    """A workflow over five items whose step answers 403 unless the approach is chosen."""

    @step
    async def price(n: int) -> int:
        ran.append(f"{n}:{attempt().approach}")
        if n == 0:
            return 0
        raise HttpError(403)

    @price.approach("list", ask=True)
    async def from_list(n: int) -> int:
        ran.append(f"{n}:{attempt().approach}")
        return n * 10

    @workflow(name="mapped_choice")
    async def job(run: Run) -> Any:
        return await run.map(price, [0, 1, 2, 3, 4], concurrency=concurrency)

    return job


async def test_an_approach_holds_for_every_item_that_is_not_done():
    """In a map: failed items are tried that way, items that had not begun begin so, finished ones are not touched."""
    ran: list[str] = []
    async with testing.layer() as layer:
        outcome = await layer.run(mapped(ran)(), client="acme", run_id="r1")
        assert the_question(outcome).kind == "batch"
        ran.clear()
        outcome = await layer.resume("r1", approach={"price": "list"}, by="ann")
        assert await layer.questions() == []
    assert outcome.value == [0, 10, 20, 30, 40]
    assert sorted(ran) == ["1:list", "2:list", "3:list", "4:list"]


@pytest.mark.parametrize("value", [None, 7])
async def test_skip_holds_for_every_item_that_is_not_done(value: int | None):
    """In a map: every item that has no result gets the value, or is skipped; nothing runs."""
    ran: list[str] = []
    async with testing.layer() as layer:
        await layer.run(mapped(ran)(), client="acme", run_id="r1")
        ran.clear()
        outcome = await layer.resume("r1", skip={"price": value})
        assert await layer.questions() == []
    assert outcome.value == [0, value, value, value, value]
    assert ran == []


async def test_rerun_makes_all_items_anew():
    """In a map: ``rerun`` is about the step in every branch."""
    ran: list[int] = []

    @step
    async def price(n: int) -> int:
        ran.append(n)
        return n

    @workflow(name="mapped_rerun")
    async def job(run: Run) -> Any:
        found = await run.map(price, [1, 2, 3])
        await run.ask("Good?")
        return found

    async with testing.layer() as layer:
        await layer.run(job(), client="acme", run_id="r1")
        await layer.resume("r1", rerun=["price"])
    assert sorted(ran) == [1, 1, 2, 2, 3, 3]


async def test_items_that_failed_for_good_are_tried_anew():
    """Items of a step with ``on_failure="raise"`` are done as chosen; the others keep their results."""
    ran: list[int] = []

    @step(on_failure="raise")
    async def price(n: int) -> int:
        ran.append(n)
        if n == 2:
            raise HttpError(403)
        return n

    @workflow(name="mapped_gave_up")
    async def job(run: Run) -> Any:
        return await run.map(price, [1, 2, 3])

    async with testing.layer() as layer:
        assert (await layer.run(job(), client="acme", run_id="r1")).status == "waiting"
        assert (await layer.resume("r1", skip={"price": 20})).value == [1, 20, 3]
    assert sorted(ran) == [1, 2, 3]


# -- renamed ---------------------------------------------------------------------------------------------------------------

BEFORE = """
from stepseven import Fixable, Run, step, workflow

ran = []

@step
async def pull() -> int:
    ran.append("pull")
    return 1

@step
async def bill(n: int) -> int:
    raise Fixable("403")

@workflow
async def renamed_choice(run: Run) -> int:
    return await bill(await pull())
"""
AFTER = BEFORE.replace("@step\nasync def pull", "@step(renamed_from='pull')\nasync def fetch").replace(
    "await pull()", "await fetch()"
)
AFTER = AFTER.replace('"pull"', '"fetch"').replace("@step\nasync def bill", "@step(renamed_from='bill')\nasync def charge")
AFTER = AFTER.replace("await bill(", "await charge(")


@pytest.mark.parametrize("names", [("fetch", "charge"), ("pull", "bill")])
async def test_a_renamed_step_is_chosen_about_under_either_name(names: tuple[str, str]):
    """A step that got another name while the run waited: the new name and the one on record mean the same step."""
    async with testing.layer() as layer:
        old = module("renamed_choice_mod", BEFORE)
        await layer.run(old.renamed_choice(), client="acme", run_id="r1")
        new = module("renamed_choice_mod", AFTER)
        again, given = names
        outcome = await layer.resume("r1", rerun=[again], skip={given: 7})
        assert outcome.value == 7
        assert new.ran == ["fetch"]


# -- refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chosen, why",
    [
        ({"approach": {"nothing": "x"}}, r"it has no step 'nothing': on record are tickets, billing, and its code calls post"),
        ({"skip": {"nothing": 1}}, "it has no step 'nothing'"),
        ({"rerun": ["nothing"]}, "it has no step 'nothing'"),
        ({"approach": {"billing": "magic"}}, "no approach 'magic': it has contract amount, old system, and 'as written'"),
        ({"approach": {"billing": ""}}, "give the label"),
        ({"approach": {"tickets": "as written"}}, "tickets has its result: name it in rerun, too"),
        ({"skip": {"tickets": 1}}, "tickets has its result: name it in rerun, too"),
        ({"skip": {"billing": "much"}}, "what is given for billing does not fit"),
        ({"rerun": ["post"]}, "post changes something outside, and is done once"),
        ({"rerun": ["billing"]}, "billing has no result yet"),
        ({"approach": {"billing": "contract amount"}, "skip": {"billing": 1}}, "choose one of the two"),
        ({"drift": "maybe"}, "drift='maybe' is neither 'keep' nor 'refresh'"),
    ],
)  # fmt: skip
async def test_what_cannot_be_obeyed_is_refused_and_changes_nothing(chosen: Any, why: str):
    """One sentence that says what there is; no recovery, no take, no answer is left."""
    world = World()
    async with testing.layer() as layer:
        question = the_question(await layer.run(world.renewal(), client="acme", run_id="r1"))
        before = state(layer)
        with pytest.raises(InvalidChoice, match=why):
            await layer.resume("r1", **chosen)
        assert state(layer) == before
        assert recoveries(layer) == []
        assert [q.id for q in await layer.questions()] == [question.id]
        assert (await layer.resume("r1", skip={"billing": 1})).status == "done"


async def test_an_ended_run_takes_no_choice():
    """A run that has ended says so; a plain resume gives its outcome."""
    world = World()
    async with testing.layer() as layer:
        await layer.run(world.renewal(), client="acme", run_id="r1")
        await layer.resume("r1", skip={"billing": 1})
        for chosen in ({"rerun": ["tickets"]}, {"skip": {"post": None}}, {"drift": "keep"}):
            with pytest.raises(InvalidChoice, match="it has ended"):
                await layer.resume("r1", **chosen)  # type: ignore[arg-type]
        assert (await layer.resume("r1")).value == "posted 1"


async def test_a_paused_client_takes_no_choice():
    """While a client is paused nothing is chosen either: the choice is refused and not forgotten."""
    world = World()
    async with testing.layer() as layer:
        await layer.run(world.renewal(), client="acme", run_id="r1")
        layer.client("acme").pause(reason="holiday")
        with pytest.raises(InvalidChoice, match="unpause"):
            await layer.resume("r1", skip={"billing": 1})
        layer.client("acme").unpause()
        assert (await layer.resume("r1", skip={"billing": 1})).status == "done"


# -- the row --------------------------------------------------------------------------------------------------------------


async def test_every_resume_leaves_a_recovery_and_a_short_wake_none(tmp_path: Path):
    """A resume is a recovery, a wake after more than ten minutes is one, one after less is none."""

    @step
    async def look(n: int) -> int:
        return n

    @workflow(name="sleeper")
    async def job(run: Run) -> int:
        for n in range(3):
            await look(n)
            await run.sleep(60 if n < 2 else 3600, key=str(n))
        return 1

    clock, url = Clock(), databases.url(tmp_path)
    async with testing.layer(url, clock=clock) as layer:
        await layer.run(job(), client="acme", run_id="r1")
        clock.advance(61)
        await layer.run(job(), client="acme", run_id="r1")
        assert recoveries(layer) == []
        clock.advance(61)
        await layer.resume("r1")
        (first,) = recoveries(layer)
        clock.advance(timedelta(hours=2))
        assert (await layer.run(job(), client="acme", run_id="r1")).status == "done"
        first, second = recoveries(layer)
    assert first["chosen"] is second["chosen"] is None
    assert (first["result"]["ran"], first["result"]["reused"]) == ({"look": 1}, 2)
    assert (second["result"]["ran"], second["result"]["reused"]) == ({}, 3)
    assert all(r["ended_us"] is not None for r in (first, second))


async def test_a_worker_leaves_one_too():
    """What a worker wakes after a long time is a recovery as well."""
    looked.clear()
    async with testing.layer() as layer:
        await layer.run(overnight(), client="acme", run_id="r1")
        layer.clock.advance(timedelta(hours=2))
        async with layer.worker(sys.modules[__name__]):
            await until(lambda: state(layer)["status"] == "done")
        (row,) = recoveries(layer)
    assert looked == [1]
    assert row["ended_us"] is not None


async def test_a_plain_resume_commits_no_more_than_it_did():
    """The recovery is written with the take, and closed with the park: no commit of its own."""
    world = World()
    async with testing.layer() as layer:
        await layer.run(world.renewal(), client="acme", run_id="r1")
        store: Any = layer.store
        writes: list[bool] = []
        inner = store.write

        async def counting(unit: Any, *, durable: bool, **how: Any) -> Any:
            writes.append(durable)
            return await inner(unit, durable=durable, **how)

        store.write = counting
        assert (await layer.resume("r1")).status == "waiting"
        assert writes == [True, True]  # the take, the park
        assert len(recoveries(layer)) == 1


async def test_an_export_tells_of_recoveries_and_a_forgotten_client_has_none():
    """What was chosen is part of what is exported, and goes with the client."""
    world = World()
    async with testing.layer() as layer:
        await layer.run(world.renewal(), client="acme", run_id="r1")
        await layer.resume("r1", skip={"billing": 1}, by="ann")
        told = json.dumps(layer.client("acme").export(), default=str)
        assert '"skip": {"billing": 1}' in told
        layer.client("acme").forget(by="ann")
        assert recoveries(layer) == []


def test_what_was_saved_is_what_was_reused_after_something_ran_again():
    """Early cut-off, from the records: what stood before it, what was not asked for, and other items of a map do not count."""
    from stepseven.transitions.recoveries import saved
    from stepseven.transitions.state import Record

    def made(seq: int, name: str, branch: str = "", generation: int = 1, *, used: bool = True) -> Record:
        return Record(id=seq, branch=branch, name=name, key="k", generation=generation, state="done", used=used)

    records = [
        made(1, "before"), made(2, "pull", used=False), made(3, "draft"), made(4, "post", "m[a]"), made(5, "left", used=False),
        made(6, "run.now"), made(7, "tell"), made(8, "pull", generation=2), made(9, "new"),
    ]  # fmt: skip
    assert saved(records, 7) == {"draft": 1, "post": 1, "tell": 1}
    assert saved(records[:7], 7) == {}
    within = [made(1, "a", "m[1]", used=False), made(2, "b", "m[1]"), made(3, "b", "m[2]"), made(4, "a", "m[1]", generation=2)]
    assert saved(within, 3) == {"b": 1}


async def test_early_cut_off_is_reported():
    """A step made anew with the same result saves what was built on it: the recovery's result says so."""

    @step
    async def pull() -> int:
        return 1

    @step
    async def draft(n: int) -> int:
        return n

    @workflow(name="cut_off")
    async def job(run: Run) -> int:
        n = await draft(await pull())
        await run.ask("Good?")
        return n

    async with testing.layer() as layer:
        await layer.run(job(), client="acme", run_id="r1")
        await layer.resume("r1", rerun=["pull"])
        (row,) = recoveries(layer)
    assert row["result"]["ran"] == {"pull": 1}
    assert row["result"]["saved"] == {"draft": 1}


async def test_retries_of_a_chosen_approach_are_those_of_an_answer():
    """Chosen, an approach gets as many tries as the step has: what was tried before does not count."""
    ran: list[str] = []

    @step(attempts=2)
    async def pull() -> int:
        ran.append(attempt().approach)
        raise Retryable("down")

    @pull.approach("slow", ask=True)
    async def slow() -> int:
        ran.append(attempt().approach)
        if ran.count("slow") < 2:
            raise Retryable("down")
        return 1

    @workflow(name="tries_again")
    async def job(run: Run) -> int:
        try:
            return await pull()
        except StepFailed:
            return 0

    async with testing.layer() as layer:
        await layer.run(job(), client="acme", run_id="r1")
        ran.clear()
        outcome = await layer.resume("r1", approach={"pull": "slow"})
    assert ran[0] == "slow"
    assert len(ran) == 2
    assert outcome.status == "waiting"
