"""Facts that moved while a run waited: found, asked about, kept or refreshed.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from stepseven import Run, step, workflow
from stepseven.model import Question
from stepseven.runtime import drifting
from stepseven.runtime.rehearsal import Rehearsal
from stepseven.testing import TestLayer
from stepseven.transitions.state import load
from tests.runs.worldly import layers, the_question

LONG = timedelta(days=2)


class World:
    """What the outside saw: how often each step ran, and with what."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, Any]] = []

    def count(self, name: str) -> int:
        """How often a step ran."""
        return sum(1 for n, _ in self.ran if n == name)


@pytest.fixture
def world() -> World:
    """A fresh outside."""
    return World()


def mailing(world: World, **options: Any) -> Any:
    """Tickets are pulled, a mail is drafted for the contact, a person says go, it is sent."""

    @step(name="pull_tickets")
    async def pull_tickets(client_id: str) -> int:
        world.ran.append(("pull_tickets", client_id))
        return 214

    @step(name="draft_mail")
    async def draft_mail(contact: str, tickets: int) -> str:
        world.ran.append(("draft_mail", contact))
        return f"To {contact}: {tickets} tickets"

    @step(name="send", effect="write", key="client_id")
    async def send(client_id: str, mail: str) -> str:
        world.ran.append(("send", mail))
        return mail

    @workflow(name="mailing", **options)
    async def body(run: Run) -> str:
        contact = run.client.get("contact", "nobody")
        tickets = await pull_tickets(run.client_id)
        mail = await draft_mail(contact, tickets)
        await run.ask("Shall I send it?", about=mail, options=["yes", "no"])
        return await send(run.client_id, mail)

    return body


async def waiting(layer: TestLayer, flow: Any, *, contact: str | None = "ann@acme.example") -> None:
    """A run that waits for days, and for a person."""
    if contact is not None:
        layer.client("acme").set("contact", contact, source="crm")
    await layer.run(flow(), client="acme", run_id="r1")
    layer.clock.advance(LONG)


async def asked(layer: TestLayer, run_id: str = "r1") -> Question:
    """The drift question a resume asks; nothing else is open that was not before."""
    outcome = await layer.resume(run_id)
    return next(q for q in outcome.questions if q.kind == "drift")


async def drifts(layer: TestLayer, run_id: str = "r1", status: str | None = "open") -> list[Question]:
    """The drift questions of a run."""
    return [q for q in await layer.questions(status=status, run_id=run_id) if q.kind == "drift"]


# -- the question ----------------------------------------------------------------------------------------------------


async def test_a_fact_that_moved_is_asked_about(world):
    """One question says old, new, source, date and what depends on it, in few words, and as data; nothing runs meanwhile."""
    flow = mailing(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        question = await asked(layer)
        assert question.text == (
            "Acme's contact changed while the mailing waited: ann@acme.example → ben@acme.example.\n"
            "It was said (crm) on 2026-01-07.\n"
            "Built on it: “draft mail” and the answer to “Shall I send it?”. Nothing was run again, and nothing was changed.\n"
            "So far I pulled tickets and drafted mail. Next: send."
        )
        assert [o.id for o in question.options] == ["keep", "refresh", "stop"]
        (one,) = question.context["drift"]
        assert (one["key"], one["old"], one["new"], one["source"]) == ("contact", "ann@acme.example", "ben@acme.example", "crm")
        assert (one["old_version"], one["new_version"]) == (1, 2)
        assert one["depends"] == ["draft_mail", "the answer to “Shall I send it?”"]
        assert len(world.ran) == 2
        assert "changed while the mailing waited" in await layer.why("r1")


async def test_refresh_runs_only_what_depends_on_it(world):
    """After "refresh" the draft is made again and what was asked about it is asked again; nothing else runs twice."""
    flow = mailing(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        await layer.answer((await asked(layer)).id, "refresh", by="ann")
        outcome = await layer.resume("r1")
        assert world.ran == [("pull_tickets", "acme"), ("draft_mail", "ann@acme.example"), ("draft_mail", "ben@acme.example")]
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == "To ben@acme.example: 214 tickets"
        assert world.count("send") == 1


async def test_keep_goes_on_with_what_the_run_knows(world):
    """After "keep" nothing runs again, and about the same version nobody is asked again; if it moves further, they are."""
    flow = mailing(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        await layer.answer((await asked(layer)).id, "keep", by="ann")
        outcome = await layer.resume("r1")
        assert the_question(outcome).kind == "ask"
        layer.clock.advance(LONG)
        assert the_question(await layer.resume("r1")).kind == "ask"
        layer.client("acme").set("contact", "eve@acme.example", source="crm")
        again = await asked(layer)
        assert again.context["drift"][0]["new"] == "eve@acme.example"
        assert again.context["drift"][0]["old"] == "ann@acme.example"
        await layer.answer(again.id, "keep", by="ann")
        outcome = await layer.resume("r1")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == "To ann@acme.example: 214 tickets"
        assert len(world.ran) == 3


async def test_stop_ends_the_run(world):
    """After "stop" the run is cancelled, by whom is said, and nothing runs."""
    flow = mailing(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        await layer.answer((await asked(layer)).id, "stop", by="ann")
        outcome = await layer.resume("r1")
        assert outcome.status == "cancelled"
        assert outcome.failure is not None
        assert outcome.failure.reason == "stopped by ann"
        assert len(world.ran) == 2


async def test_the_answer_needs_no_second_resume_of_ten_minutes(world):
    """An answer is obeyed at the next execution, however soon: also by a worker."""
    flow = mailing(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        question = await asked(layer)
        layer.clock.advance(5)
        await layer.answer(question.id, "refresh", by="ann")
        outcome = await layer.run(flow(), client="acme", run_id="r1")  # no recovery: it is only taken
        assert the_question(outcome).kind == "ask"
        assert world.count("draft_mail") == 2


async def test_while_the_question_is_open_nothing_begins(world):
    """Whoever takes the run meanwhile finds the same question, and another answer to another question does not pass it."""
    flow = mailing(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        question = await asked(layer)
        other = next(q for q in await layer.questions(run_id="r1") if q.kind == "ask")
        await layer.answer(other.id, "yes", by="bob")
        outcome = await layer.run(flow(), client="acme", run_id="r1")
        assert the_question(outcome).id == question.id
        assert world.count("send") == 0
        await layer.answer(question.id, "keep", by="ann")
        assert (await layer.resume("r1")).result() == "To ann@acme.example: 214 tickets"


# -- it moves while the question is open -----------------------------------------------------------------------------


async def test_moving_further_is_asked_anew(world):
    """If the world moves again while the question is open, it is withdrawn and asked with what is newest."""
    flow = mailing(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        first = await asked(layer)
        layer.client("acme").set("contact", "eve@acme.example", source="crm")
        second = await asked(layer)
        assert second.id != first.id
        assert [q.id for q in await drifts(layer)] == [second.id]
        assert [q.id for q in await drifts(layer, status="withdrawn")] == [first.id]
        assert second.context["drift"][0]["new"] == "eve@acme.example"


async def test_an_answer_to_what_is_no_more_so_is_not_obeyed(world):
    """Moved again after the answer and before it was obeyed: what was answered about is not so any more, so it is asked anew."""
    flow = mailing(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        first = await asked(layer)
        await layer.answer(first.id, "refresh", by="ann")
        layer.client("acme").set("contact", "eve@acme.example", source="crm")
        second = await asked(layer)
        assert second.id != first.id
        assert world.count("draft_mail") == 1
        await layer.answer(second.id, "refresh", by="ann")
        await layer.resume("r1")
        assert world.ran[-1] == ("draft_mail", "eve@acme.example")


async def test_moving_back_withdraws_it(world):
    """If what moved is again as the run knows it, nobody has to answer."""
    flow = mailing(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        await asked(layer)
        layer.client("acme").set("contact", "ann@acme.example", source="crm")
        assert the_question(await layer.resume("r1")).kind == "ask"
        assert await drifts(layer) == []


# -- what is no drift ------------------------------------------------------------------------------------------------


async def test_the_same_value_again_is_no_drift(world):
    """A new version that says the same, by whomever, asks nobody."""
    flow = mailing(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ann@acme.example", by="bob")
        assert the_question(await layer.resume("r1")).kind == "ask"


async def test_a_short_wait_asks_only_who_is_told_to_resume(world):
    """What waited for less than ten minutes goes on with what it knows; a resume looks first, however short it was."""
    flow = mailing(world)
    async with layers() as layer:
        layer.client("acme").set("contact", "ann@acme.example", source="crm")
        await layer.run(flow(), client="acme", run_id="r1")
        layer.clock.advance(timedelta(minutes=9))
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        assert the_question(await layer.run(flow(), client="acme", run_id="r1")).kind == "ask"
        assert [q.kind for q in (await layer.resume("r1")).questions] == ["ask", "drift"]


async def test_a_takeover_never_asks(world):
    """Whoever takes over a run whose worker died goes on with what it knows, however long that is ago."""
    flow = mailing(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        layer.store.write_now(lambda tx: tx.run(*_as_broken_off(tx)), durable=True, client="acme")
        outcome = await layer.run(flow(), client="acme", run_id="r1")
        assert the_question(outcome).kind == "ask"


def _as_broken_off(tx: Any) -> tuple[str, dict[str, Any]]:
    """The statement that makes a parked run look like one whose worker died."""
    return tx.sql.take_run, {
        "run_no": 1, "owner": "w_dead", "now": 1, "progress": 0, "barren": 0, "source_digest": None, "fence": 1, "seen_owner": "",
        "remaining": None,
    }  # fmt: skip


async def test_what_the_run_said_itself_is_no_drift():
    """``client.set`` in the run moves the fact; the run asks nobody about its own word, nor about what it had read before."""

    @workflow(name="setting")
    async def body(run: Run) -> Any:
        seen = run.client.get("plan")
        run.client.set("plan", "gold")
        await run.ask("Go on?")
        return [seen, run.client.get("plan")]

    async with layers() as layer:
        layer.client("acme").set("plan", "free", source="crm")
        await waiting(layer, body, contact=None)
        outcome = await layer.resume("r1")
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume("r1")).result() == ["free", "gold"]


async def test_facts_that_nobody_read_are_noted(world):
    """What else changed is said with the question, and asks nobody by itself."""
    flow = mailing(world)
    async with layers() as layer:
        layer.client("acme").set("phone", "1", source="crm")
        await waiting(layer, flow)
        layer.client("acme").set("phone", "2", source="crm")
        assert the_question(await layer.resume("r1")).kind == "ask"
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        question = await asked(layer)
        assert [d["key"] for d in question.context["drift"]] == ["contact"]
        assert "Also changed, and not read by this run: phone, 1 → 2 (crm, 2026-01-07)." in question.text


async def test_what_is_watched_is_asked_about(world):
    """``watch=``: a fact that no step has read is asked about, too; once."""
    flow = mailing(world, watch=("phone",))
    async with layers() as layer:
        layer.client("acme").set("phone", "1", source="crm")
        await waiting(layer, flow)
        layer.client("acme").set("phone", "2", source="crm")
        question = await asked(layer)
        assert "phone changed while the mailing waited: 1 → 2." in question.text
        await layer.answer(question.id, "refresh", by="ann")
        assert the_question(await layer.resume("r1")).kind == "ask"
        layer.clock.advance(LONG)
        assert the_question(await layer.resume("r1")).kind == "ask"
        layer.client("acme").set("phone", "3", source="crm")
        assert (await asked(layer)).context["drift"][0]["old"] == "2"
        assert len(world.ran) == 2


# -- on_drift=, resume(drift=) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how, drafts", [("keep", 1), ("refresh", 2)])
async def test_a_workflow_may_say_what_becomes_of_it(world, how, drafts):
    """``on_drift="keep"`` and ``"refresh"`` ask nobody."""
    flow = mailing(world, on_drift=how)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        assert the_question(await layer.resume("r1")).kind == "ask"
        assert world.count("draft_mail") == drafts


@pytest.mark.parametrize("how, drafts", [("keep", 1), ("refresh", 2)])
async def test_a_resume_may_say_what_becomes_of_it(world, how, drafts):
    """``resume(drift=…)`` decides what moved until then, also a question that stands; what moves later is asked about."""
    flow = mailing(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        await asked(layer)
        assert the_question(await layer.resume("r1", drift=how)).kind == "ask"
        assert world.count("draft_mail") == drafts
        assert await drifts(layer) == []
        layer.clock.advance(LONG)
        assert the_question(await layer.resume("r1")).kind == "ask"
        layer.client("acme").set("contact", "eve@acme.example", source="crm")
        assert (await asked(layer)).context["drift"][0]["new"] == "eve@acme.example"


async def test_a_resume_may_say_so_at_once(world):
    """``resume(drift="refresh")`` counts also for a run that waited shortly."""
    flow = mailing(world)
    async with layers() as layer:
        layer.client("acme").set("contact", "ann@acme.example", source="crm")
        await layer.run(flow(), client="acme", run_id="r1")
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        await layer.resume("r1", drift="refresh")
        assert world.count("draft_mail") == 2


def test_a_mistyped_on_drift_is_refused():
    """Anything else than keep, refresh and ask is refused where it is declared."""
    with pytest.raises(ValueError, match="on_drift='maybe': one of 'ask', 'keep', 'refresh'"):

        @workflow(name="bad", on_drift="maybe")  # type: ignore[call-overload]
        async def bad(run: Run) -> None: ...


# -- looking, and rehearsing ----------------------------------------------------------------------------------------------


def worded(world: World) -> Any:
    """The workflow's own code makes something of the fact before it passes it on."""

    @step(name="draft_letter")
    async def draft_letter(to: str) -> str:
        world.ran.append(("draft_letter", to))
        return f"Dear {to}"

    @workflow(name="worded")
    async def body(run: Run) -> Any:
        letter = await draft_letter(f"Mr {run.client.get('contact')}")
        return await run.approve("May it go out?", about=letter)

    return body


async def test_what_depends_is_found_by_letting_the_code_meet_what_is_so_now(world):
    """Also where the run's code has made another value of the fact before it passed it on."""
    flow = worded(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        question = await asked(layer)
        assert "Built on it: “draft letter” and the approval of “May it go out?”." in question.text
        assert world.count("draft_letter") == 1


async def test_looking_changes_nothing(world):
    """``look`` and a refresh in memory leave the store as it is."""
    flow = worded(world)
    async with layers() as layer:
        await waiting(layer, flow)
        layer.client("acme").set("contact", "ben@acme.example", source="crm")
        before, loaded = (layer.store.read_now(lambda tx: load(tx, 1)) for _ in range(2))
        assert before is not None
        assert loaded is not None
        rehearsal = Rehearsal(layer.services, flow, loaded)
        (one,) = await drifting.look(rehearsal)
        assert (one.key, one.read) == ("contact", True)
        assert drifting.undecided(rehearsal, (one,))
        drifting.refresh_in_memory(rehearsal, (one,))
        assert json.loads(rehearsal.records["", "client.get", "contact"].result or "")["value"] == "ben@acme.example"
        after = layer.store.read_now(lambda tx: load(tx, 1))
        assert after is not None
        assert [r.result for r in after.records.values()] == [r.result for r in before.records.values()]


async def test_an_answer_given_after_a_keep_counts_after_another_keep(world):
    """To have kept something else since is nothing that the answer was given on."""

    @workflow(name="kept_twice")
    async def flow(run: Run) -> list[str]:
        run.client.get("contact")
        return [await run.ask(text) for text in ("one?", "two?", "three?")]

    async with layers() as layer:
        await waiting(layer, flow)
        for n, contact in enumerate(("ben", "eve")):
            layer.clock.advance(LONG)
            layer.client("acme").set("contact", f"{contact}@acme.example", source="crm")
            question = await asked(layer)
            await layer.answer(question.id, "keep", by="ann")
            outcome = await layer.resume("r1")
            assert [q.text for q in outcome.questions] == [["one?", "two?"][n]]
            await layer.answer(the_question(outcome).id, "yes", by="ann")
        outcome = await layer.resume("r1")
        assert [q.text for q in outcome.questions] == ["three?"]
