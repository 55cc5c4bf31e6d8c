"""The client record that a workflow read outside when it began, read again when it has waited for long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from stepseven import Run, step, workflow
from tests.runs.test_drift import asked, drifts
from tests.runs.worldly import layers, the_question

LONG = timedelta(days=2)


@dataclass
class Contact:
    name: str
    mail: str


@dataclass
class Customer:
    contact: Contact
    seats: int
    plan: str | None = None


class Crm:
    """The outside: one customer, how often it was read, and what goes wrong."""

    def __init__(self) -> None:
        self.customer: Customer | None = Customer(Contact("Ann", "ann@acme.example"), 5)
        self.reads = 0
        self.broken: BaseException | None = None
        self.drafts: list[str] = []

    async def read(self) -> Customer | None:
        """One read."""
        self.reads += 1
        if self.broken is not None:
            raise self.broken
        return self.customer


@pytest.fixture
def crm() -> Crm:
    """A fresh outside."""
    return Crm()


def writing(crm: Crm, **options: Any) -> Any:
    """A mail is drafted for the contact of the record, and shown to a person."""

    async def load_customer(client_id: str) -> Customer | None:
        return await crm.read()

    @step(name="draft_mail")
    async def draft_mail(contact: Contact) -> str:
        crm.drafts.append(contact.mail)
        return f"Dear {contact.name}"

    @workflow(name="writing", **{"client_record": load_customer, **options})
    async def body(run: Run) -> Any:
        record: Customer = run.client.record
        await run.ask("Is the discount approved?", key="discount", default="yes", deadline=0)
        mail = await draft_mail(record.contact)
        await run.ask("Send it?", about=mail)
        return [mail, record.seats]

    return body


async def start(layer: Any, flow: Any) -> None:
    """A run that waits for days."""
    await layer.run(flow(), client="acme", run_id="r1")
    layer.clock.advance(LONG)


async def test_a_changed_field_is_asked_about_and_refreshed(crm):
    """Field by field: old → new, who says so, what depends on it; refreshed, the run has the new record, whole."""
    flow = writing(crm)
    async with layers() as layer:
        await start(layer, flow)
        crm.customer = Customer(Contact("Ben", "ben@acme.example"), 7)
        question = await asked(layer)
        keys = {d["key"]: (d["old"], d["new"], d["source"]) for d in question.context["drift"]}
        assert keys == {
            "record.contact.name": ("Ann", "Ben", "load_customer"),
            "record.contact.mail": ("ann@acme.example", "ben@acme.example", "load_customer"),
            "record.seats": (5, 7, "load_customer"),
        }
        assert "“draft mail”" in question.text
        await layer.answer(question.id, "refresh", by="ann")
        reads = crm.reads
        outcome = await layer.resume("r1")
        assert crm.drafts == ["ann@acme.example", "ben@acme.example"]
        assert crm.reads == reads + 1  # to see that it is still so; not once more for the run
        assert the_question(outcome).text.startswith("Send it?")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["Dear Ben", 7]


async def test_kept_it_stays_as_it_was(crm):
    """Kept, the run goes on with the record as it read it, and is not asked about the same change again."""
    flow = writing(crm)
    async with layers() as layer:
        await start(layer, flow)
        crm.customer = Customer(Contact("Ann", "ann@acme.example"), 7)
        await layer.answer((await asked(layer)).id, "keep", by="ann")
        await layer.resume("r1")
        layer.clock.advance(LONG)
        outcome = await layer.resume("r1")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["Dear Ann", 5]


async def test_nothing_changed_asks_nobody(crm):
    """An equal record is read and forgotten."""
    flow = writing(crm)
    async with layers() as layer:
        await start(layer, flow)
        assert the_question(await layer.resume("r1")).text.startswith("Send it?")
        assert crm.reads == 2


@pytest.mark.parametrize("watch", [("contact",), ("record.contact",), ("contact.mail", "contact.name")])
async def test_only_watched_fields_are_asked_about(crm, watch):
    """Where ``watch=`` names fields of the record, the others are only noted."""
    flow = writing(crm, watch=watch)
    async with layers() as layer:
        await start(layer, flow)
        crm.customer = Customer(Contact("Ann", "ann@acme.example"), 7)
        assert the_question(await layer.resume("r1")).text.startswith("Send it?")
        crm.customer = Customer(Contact("Ann", "a@acme.example"), 7)
        layer.clock.advance(LONG)
        question = await asked(layer)
        assert [d["key"] for d in question.context["drift"]] == ["record.contact.mail"]
        assert "Also changed, and not watched: a refresh takes it along: seats, 5 → 7" in question.text


async def test_a_record_that_cannot_be_read_asks_nobody(crm):
    """Whatever goes wrong with the look, the run goes on with what it knows; it takes its time, and no more."""
    flow = writing(crm)
    async with layers() as layer:
        await start(layer, flow)
        crm.broken = ConnectionError("the CRM is away")
        assert the_question(await layer.resume("r1")).text.startswith("Send it?")
        layer.client("acme").set("discount", 1)
        assert await drifts(layer) == []


async def test_a_look_that_takes_too_long_is_given_up(crm):
    """A record that does not come within the step's ``timeout=`` could not be looked at."""

    @step(name="load_slowly", timeout=0.1)
    async def load_slowly(client_id: str) -> Customer | None:
        if crm.reads:
            await asyncio.Event().wait()
        return await crm.read()

    flow = writing(crm, client_record=load_slowly)
    async with layers() as layer:
        await start(layer, flow)
        assert the_question(await layer.resume("r1")).text.startswith("Send it?")


async def test_what_could_not_be_looked_at_is_said_with_the_question(crm):
    """If something else moved, its question says that the record could not be read."""

    @workflow(name="reading", client_record=writing(crm).settings.client_record)
    async def flow(run: Run) -> Any:
        plan = run.client.get("plan")
        await run.ask("Go on?")
        return plan

    async with layers() as layer:
        layer.client("acme").set("plan", "free")
        await start(layer, flow)
        layer.client("acme").set("plan", "gold")
        crm.broken = ConnectionError("the CRM is away")
        question = await asked(layer)
        assert "I could not look whether Acme's record is still as I have it (“load customer”: the CRM is away)." in question.text


async def test_refreshed_while_the_crm_is_away_the_body_reads_it(crm):
    """Chosen to refresh, and just then it cannot be read: the old record answers no more, and is read as any step is."""
    flow = writing(crm)
    async with layers() as layer:
        await start(layer, flow)
        crm.customer = Customer(Contact("Ben", "ben@acme.example"), 7)
        question = await asked(layer)
        await layer.answer(question.id, "refresh", by="ann")
        crm.broken = PermissionError("403 Forbidden")
        outcome = await layer.resume("r1")
        assert {q.kind for q in outcome.questions} == {"ask", "failure"}
        crm.broken = None
        failure = next(q for q in outcome.questions if q.kind == "failure")
        await layer.answer(failure.id, "again", by="ann")
        outcome = await layer.resume("r1")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["Dear Ben", 7]


async def test_a_client_that_is_gone(crm):
    """There is no such client any more: asked about; refreshed, the run ends as it would at its start."""
    flow = writing(crm)
    async with layers() as layer:
        await start(layer, flow)
        crm.customer = None
        question = await asked(layer)
        assert [d["new"] for d in question.context["drift"]][-1] is None
        await layer.answer(question.id, "refresh", by="ann")
        outcome = await layer.resume("r1")
        assert outcome.status == "failed"
        assert outcome.failure is not None
        assert outcome.failure.reason == "there is no client record for acme"


async def test_a_large_record_is_kept_apart(crm):
    """A record over 4 KiB is refreshed like a small one."""
    flow = writing(crm)
    async with layers() as layer:
        await start(layer, flow)
        crm.customer = Customer(Contact("Ann", "ann@acme.example"), 5, "gold " * 2_000)
        await layer.resume("r1", drift="refresh")
        layer.clock.advance(LONG)
        outcome = await layer.resume("r1")
        assert crm.drafts == ["ann@acme.example"]
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["Dear Ann", 5]


async def test_what_moved_once_and_back_and_forth(crm):
    """A change that was kept is asked about again after a refresh to something else: it is another change then."""
    flow = writing(crm)
    async with layers() as layer:
        await start(layer, flow)
        crm.customer = Customer(Contact("Ann", "ann@acme.example"), 7)
        await layer.resume("r1", drift="keep")
        crm.customer = Customer(Contact("Ann", "ann@acme.example"), 9)
        layer.clock.advance(LONG)
        await layer.resume("r1", drift="refresh")
        crm.customer = Customer(Contact("Ann", "ann@acme.example"), 7)
        layer.clock.advance(LONG)
        (one,) = (await asked(layer)).context["drift"]
        assert (one["old"], one["new"]) == (9, 7)
