"""What is proposed, at the terminal: shown whole, approved, edited, refused."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def proposed(cli):
    """A run that waits for an approval; its question's id."""
    assert cli("run", "renewals:mails", "--client", "acme", "--run-id", "r1").code == 3
    cli.question = json.loads(cli("inbox", "--json").out)["items"][0]["id"]
    return cli


def test_every_value_is_shown_whole(proposed):
    """`inbox` sets apart what would be used, line breaks and all, says that nothing was sent, and how to change a value."""
    out = proposed("inbox").out
    assert "To be used, exactly:" in out
    assert "    body     Dear customer,\n             it ends in December." in out
    assert "Nothing was sent yet." in out
    assert f"stepseven answer {proposed.question} approve --set copies=VALUE" in out


def test_approved_as_it_is(proposed):
    """`answer Q approve` lets it through; `show` tells who did."""
    assert proposed("answer", proposed.question, "approve", "--by", "ann").code == 0
    ran = proposed("resume", "r1", "--module", "renewals")
    assert ran.code == 0
    assert "ben@acme.example: Your contract (Dear customer," in ran.out
    assert "“yes, exactly so” by ann" in " ".join(proposed("show", "r1").out.split())


def test_changed_by_name(proposed):
    """`--set` changes values: text stays text, numbers become numbers; `show` names what was changed."""
    ran = proposed("answer", proposed.question, "1", "--set", "subject=12", "--set", "copies=2", "--by", "ann")
    assert ran.code == 0, ran.err
    assert "ben@acme.example: 12 (Dear" in proposed("resume", "r1", "--module", "renewals").out
    assert "with copies, subject changed by ann" in " ".join(proposed("show", "r1").out.split())


@pytest.mark.parametrize(
    "given, code, why",
    [
        (["--set", "to=bob"], 1, "to names what is done"),
        (["--set", "nobody=1"], 2, "where NAME is one of to, subject, body, copies"),
        (["--set", "subject"], 2, "say NAME=VALUE"),
        (["--set", "copies=two"], 1, "copies: "),
        (["--receipt", "1"], 2, "--receipt does not go with the choice approve"),
    ],
)
def test_what_cannot_be_is_refused(proposed, given, code, why):
    """One sentence, nothing answered, nothing sent."""
    ran = proposed("answer", proposed.question, "approve", *given)
    assert ran.code == code
    assert why in " ".join(ran.err.split())
    assert len(json.loads(proposed("inbox", "--json").out)["items"]) == 1


def test_changed_in_the_editor(proposed, monkeypatch):
    """`--edit` opens the editor with all values; what is saved is approved."""
    monkeypatch.setenv("EDITOR", "sed -i s/December/June/")
    monkeypatch.delenv("VISUAL", raising=False)
    assert proposed("answer", proposed.question, "approve", "--edit", "--by", "ann").code == 0
    assert "it ends in June." in proposed("resume", "r1", "--module", "renewals").out


@pytest.mark.parametrize("editor, why", [("sed -i s/{/[/", "is not JSON"), ("false", "ended with 1"), ("no-such", "cannot be")])
def test_an_editor_that_fails_answers_nothing(proposed, monkeypatch, editor, why):
    """A broken text, an editor that gave up or is not there: a sentence, and the question stays open."""
    monkeypatch.setenv("EDITOR", editor)
    monkeypatch.delenv("VISUAL", raising=False)
    ran = proposed("answer", proposed.question, "approve", "--edit")
    assert ran.code == 1
    assert why in " ".join(ran.err.split())
    assert len(json.loads(proposed("inbox", "--json").out)["items"]) == 1


def test_refused(proposed):
    """`answer Q refuse` ends the run, says so, and nothing was sent."""
    proposed("answer", proposed.question, "refuse", "--by", "ann", "--note", "he called")
    ran = proposed("resume", "r1", "--module", "renewals")
    assert ran.code == 4
    assert "refused by ann: he called" in " ".join((ran.out + ran.err).split())
