"""The contact changes in a real CRM while a person is asked: judged by what the four systems, each a process, have counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from examples.renewal.with_contact import renewal_with_contact
from stepseven import Layer, Outcome, Question
from stepseven.runtime.edge import Edge
from tests.servers import databases

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = ("tickets", "billing", "documents", "crm")


@pytest.fixture
def anyio_backend() -> str:
    """The runtime is asyncio's."""
    return "asyncio"


class Later(Edge):
    """A clock an hour ahead: the run has waited for long."""

    def now_us(self) -> int:
        return super().now_us() + 3_600_000_000


class Outside:
    """The four systems, each in a process of its own."""

    def __init__(self, urls: dict[str, str]) -> None:
        self.urls = urls

    def change(self, system: str, **to: Any) -> None:
        """Turn something."""
        request = Request(f"{self.urls[system]}/set", data=json.dumps(to).encode())
        with urlopen(request, timeout=10) as answer:
            assert answer.status == 200

    def count(self, system: str) -> dict[str, Any]:
        """What it has counted."""
        with urlopen(f"{self.urls[system]}/count", timeout=10) as answer:
            counted: dict[str, Any] = json.load(answer)
        return counted

    def sent(self) -> list[str]:
        """Where mails went."""
        with urlopen(f"{self.urls['documents']}/sent", timeout=10) as answer:
            return [mail["to"] for mail in json.load(answer)]


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    """The systems, and the environment that says where they are."""
    urls = {}
    with ExitStack() as stack:
        for name in SYSTEMS:
            line = [sys.executable, "-m", "examples.renewal.outside", name, "--stop-with-stdin"]
            env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
            process = subprocess.Popen(line, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            assert process.stdin is not None
            stack.callback(process.stdin.close)
            assert process.stdout is not None
            urls[name] = process.stdout.readline().strip()
            monkeypatch.setenv(f"RENEWAL_{name.upper()}", urls[name])
        world = Outside(urls)
        world.change("billing", lapsed=False)
        yield world


async def run(store: str, edge: Edge | None = None, **how: Any) -> Outcome[Any]:
    """Resume the run, in a layer of its own."""
    async with Layer(store, edge=edge) as layer:
        return await layer.resume("acme-q3", **how)


async def answer(store: str, outcome: Outcome[Any], kind: str, value: Any, by: str) -> None:
    """Answer its question of this kind."""
    async with Layer(store) as layer:
        await layer.answer(one(outcome, kind).id, value, by=by)


def one(outcome: Outcome[Any], kind: str) -> Question:
    """Its one open question of a kind."""
    (found,) = [q for q in outcome.questions if q.kind == kind]
    return found


async def to_the_approval(store: str) -> Outcome[Any]:
    """The run, until it wants a person's word on the mail."""
    async with Layer(store) as layer:
        call = renewal_with_contact(quarter="Q3")
        outcome = await layer.run(call, client="acme", run_id="acme-q3")
        await layer.answer(one(outcome, "ask").id, "yes", by="ann")
        return await layer.resume("acme-q3")


async def test_a_changed_contact_is_asked_about_and_only_the_mail_is_made_again(tmp_path, outside):
    """Refreshed: the mail is drafted twice, all else once, and the one mail goes to the new contact after a second look."""
    store = databases.url(tmp_path)
    outcome = await to_the_approval(store)
    assert one(outcome, "approve").context["facts"]["to"] == "ann@acme.example"
    outside.change("crm", contact="Ben", mail="ben@acme.example", seats=30)
    outcome = await run(store, Later())
    question = one(outcome, "drift")
    assert question.text.startswith("Acme's contact and mail changed while the renewal with contact waited.\nContact: Ann → Ben")
    assert "“draft mail” and the approval" in question.text
    assert "Also changed, and not watched: a refresh takes it along: seats, 25 → 30" in question.text
    assert next(o for o in question.options if o.id == "refresh").usd == pytest.approx(0.05)
    assert outside.count("crm")["asked"]["letter"] == 1
    await answer(store, outcome, "drift", "refresh", by="ann")
    outcome = await run(store)
    shown = one(outcome, "approve")
    assert shown.context["facts"]["to"] == "ben@acme.example"
    assert [q.kind for q in outcome.questions] == ["approve"]
    await answer(store, outcome, "approve", "approve", by="bob")
    assert (await run(store)).result().to == "ben@acme.example"
    assert outside.count("crm")["asked"]["letter"] == 2
    assert outside.count("tickets")["asked"] == {"tickets": 1}
    assert outside.count("billing")["asked"] == {"billing": 1}
    counted = outside.count("documents")
    assert (counted["documents"], counted["twice"], counted["mails"]) == (1, 0, 1)
    assert outside.sent() == ["ben@acme.example"]


async def test_kept_the_mail_goes_where_it_was_shown(tmp_path, outside):
    """Kept: nothing is made again, the standing approval counts, one mail."""
    store = databases.url(tmp_path)
    await to_the_approval(store)
    outside.change("crm", contact="Ben", mail="ben@acme.example")
    outcome = await run(store, Later())
    await answer(store, outcome, "drift", "keep", by="ann")
    await answer(store, outcome, "approve", "approve", by="bob")
    assert (await run(store)).result().to == "ann@acme.example"
    assert outside.count("crm")["asked"]["letter"] == 1
    assert outside.sent() == ["ann@acme.example"]


async def test_other_fields_ask_nobody(tmp_path, outside):
    """What is not watched is noted: the run goes on."""
    store = databases.url(tmp_path)
    await to_the_approval(store)
    outside.change("crm", seats=30)
    outcome = await run(store, Later())
    assert [q.kind for q in outcome.questions] == ["approve"]
