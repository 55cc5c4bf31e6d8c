"""A process that dies while what moved is asked about, kept or refreshed: at every write, on every database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Outcome, Run, step, workflow
from tests.runs.deaths import every_death, living
from tests.runs.tools import execute, rows

pytestmark = pytest.mark.slow  # on PostgreSQL with `make soak`

DAYS_US = 2 * 86_400_000_000
RAN: list[str] = []
CRM = {"mail": "ann@acme.example"}


async def load_contact(client_id: str) -> dict[str, str]:
    """The contact, as the outside has it now."""
    return dict(CRM)


@step(name="pull_tickets")
async def pull_tickets(client_id: str) -> int:
    """A read that nothing depends on."""
    RAN.append("pull_tickets")
    return 214


@step(name="draft_mail")
async def draft_mail(to: str, discount: str, tickets: int) -> str:
    """A read of what may move."""
    RAN.append(f"draft_mail {to} {discount}")
    return f"{to}: {tickets} tickets, {discount}"


@step(name="send", effect="write", key="client_id")
async def send(client_id: str, mail: str) -> str:
    """The write."""
    RAN.append(f"send {mail}")
    return mail


@workflow(name="mortal_mailing", client_record=load_contact)
async def mailing(run: Run) -> str:
    """Read, draft, ask, send."""
    tickets = await pull_tickets(run.client_id)
    mail = await draft_mail(run.client.record["mail"], run.client.get("discount"), tickets)
    await run.ask("Shall I send it?", about=mail)
    return await send(run.client_id, mail)


def waiting(folder: Path) -> None:
    """A run that has waited for days for a person, while two things moved."""
    RAN.clear()
    CRM["mail"] = "ann@acme.example"

    async def use(layer: Layer) -> Outcome[Any]:
        layer.client("acme").set("discount", "5 %")
        return await layer.run(mailing(), client="acme", run_id="r1")

    living(folder, use)
    execute(folder, "UPDATE step SET started_us = started_us - ?, ended_us = ended_us - ?", DAYS_US, DAYS_US)
    execute(folder, "UPDATE question SET created_us = created_us - ?", DAYS_US)
    CRM["mail"] = "ben@acme.example"
    living(folder, _moved)


async def _moved(layer: Layer) -> Any:
    return layer.client("acme").set("discount", "7 %")


def answered(choice: str) -> Any:
    """The same, and the question about it was answered."""

    def prepare(folder: Path) -> None:
        waiting(folder)

        async def use(layer: Layer) -> Any:
            outcome = await layer.resume("r1")
            question = next(q for q in outcome.questions if q.kind == "drift")
            return await layer.answer(question.id, choice, by="ann")

        living(folder, use)

    return prepare


async def go_on(layer: Layer) -> Outcome[Any]:
    """A resume."""
    return await layer.resume("r1")


async def finish(layer: Layer) -> Outcome[Any]:
    """Resume, answer what is left, and go on to the end."""
    outcome = await layer.resume("r1")
    (question,) = outcome.questions
    assert question.kind == "ask"
    await layer.answer(question.id, "yes", by="bob")
    return await layer.resume("r1")


NEW, OLD = "ben@acme.example: 214 tickets, 7 %", "ann@acme.example: 214 tickets, 5 %"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("choice, mail", [("refresh", NEW), ("keep", OLD)])
def test_a_death_at_any_write_of_the_answer_obeyed(tmp_path, choice, mail):
    """Wherever it dies, the answer is obeyed whole: nobody is asked twice, what does not depend on it never runs again."""
    for folder in every_death(tmp_path, go_on, answered(choice)):
        assert living(folder, finish).result() == mail
        assert RAN.count("pull_tickets") == 1
        assert [r for r in RAN if r.startswith("send")] == [f"send {mail}"]
        assert RAN.count("draft_mail ann@acme.example 5 %") == 1
        assert all(r in (f"send {mail}", "pull_tickets", "draft_mail ann@acme.example 5 %", "draft_mail ben@acme.example 7 %")
                   for r in RAN)  # fmt: skip
        assert len(rows(folder, "SELECT id FROM question WHERE kind = 'drift'")) == 1


def test_a_death_at_any_write_of_the_asking(tmp_path):
    """Wherever it dies while it asks: afterwards one question is open, and nothing has run."""
    for folder in every_death(tmp_path, go_on, waiting):
        outcome = living(folder, go_on)
        assert [q.kind for q in outcome.questions].count("drift") == 1
        assert RAN == ["pull_tickets", "draft_mail ann@acme.example 5 %"]
        assert len(rows(folder, "SELECT id FROM question WHERE kind = 'drift' AND status = 'open'")) == 1


@pytest.mark.timeout(240)
@pytest.mark.parametrize("choice, mail", [("refresh", NEW), ("keep", OLD)])
def test_a_death_in_a_recovery_that_said_what_becomes_of_it(tmp_path, choice, mail):
    """``resume(drift=…)`` stands with the recovery: who takes the run next obeys it, and asks nobody."""

    async def use(layer: Layer) -> Outcome[Any]:
        return await layer.resume("r1", drift=choice)

    for folder in every_death(tmp_path, use, waiting):
        begun = rows(folder, "SELECT id FROM recovery WHERE chosen IS NOT NULL")
        if not begun:
            continue  # it died before anybody could know
        assert living(folder, finish).result() == mail
        assert [r for r in RAN if r.startswith("send")] == [f"send {mail}"]
        assert rows(folder, "SELECT id FROM question WHERE kind = 'drift'") == []
