"""Incidents on the command line: one card in the inbox, one answer for all or for a part."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Terminal

CODE = """
from pathlib import Path

from stepseven import Fixable, Run, step, workflow

@step(resource="billing-api")
async def bill(client: str) -> str:
    if not Path("mended").exists():
        raise Fixable("403 Forbidden")
    return f"bill of {client}"

@workflow
async def bills(run: Run) -> str:
    return await bill(run.client_id)
"""


@pytest.fixture
def three(cli: Terminal) -> Terminal:
    """Three clients whose runs wait for one cause."""
    (cli.folder / "bills.py").write_text(CODE, "utf-8")
    cli.env["STEPSEVEN_MODULES"] = "bills"
    for client in ("acme", "bolt", "crux"):
        assert cli("run", "bills:bills", "--client", client, "--run-id", f"r-{client}").code == 3
    return cli


def test_one_card_and_one_answer(three: Terminal):
    """The inbox tells it once and whom it holds up; the answer goes to a part, then to the rest; what is over says so."""
    told = three("inbox", "--json").json
    (incident,) = told["incidents"]
    assert (incident["runs"], incident["clients"], len(told["items"])) == (3, ["acme", "bolt", "crux"], 3)
    inbox = three("inbox").out
    assert inbox.count("403") == 1
    assert incident["id"] in inbox
    assert "3 runs wait, of 3 clients" in inbox
    assert f"stepseven answer {incident['id']} CHOICE" in inbox
    whole = three("inbox", incident["id"]).out
    assert "try again now" in whole
    (three.folder / "mended").write_text("", "utf-8")
    part = three("answer", incident["id"], "again", "--client", "bolt")
    assert (part.code, "Answered 1 question" in part.out, "2 questions of it left" in part.out) == (0, True, True)
    rest = three("answer", incident["id"], "1", "--json").json  # a choice by its number, as of a question
    assert (len(rest["answered"]), rest["open"]) == (2, 0)
    over = three("answer", incident["id"], "again")
    assert (over.code, "open any more" in over.err) == (1, True)
    assert three("resume", "r-crux").code == 0
    assert three("answer", "i_none", "again").code == 1


def test_a_part_belongs_to_an_incident(three: Terminal):
    """--client with a question is a mistake of usage, and changes nothing."""
    question = three("inbox", "--json").json["items"][0]["id"]
    refused = three("answer", question, "again", "--client", "acme")
    assert (refused.code, "incident" in refused.err) == (2, True)
    assert len(three("inbox", "--json").json["items"]) == 3
