"""Taking back on the command line: three processes, the words, the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

TRIPS = """
from pathlib import Path
from stepseven import Fatal, Run, step, workflow

@step(effect="write", key="guest")
async def book_room(guest: str) -> str:
    return "B-1"

@book_room.undo
def cancel_room(booking: str) -> None:
    with Path("cancelled").open("a") as f:
        f.write(booking)

@step(effect="write", key="guest")
async def send_mail(guest: str) -> str:
    return "m-1"

@workflow
async def trip(run: Run, rain: bool) -> None:
    await book_room("ann")
    await send_mail("ann")
    if rain:
        raise Fatal("it rains")
    await run.ask("Shall we go?")
"""


@pytest.fixture
def trips(cli):
    """The command line beside a module that can take something back."""
    Path(cli.folder, "trips.py").write_text(TRIPS, "utf-8")
    return cli


def run(cli, *, rain: str = "true"):
    """The run, to its end or its question."""
    return cli("run", "trips:trip", "--client", "acme", "--run-id", "r1", "--input", f"rain={rain}")


def test_a_failed_run_shows_the_question_and_its_answer_the_next_command(trips):
    """Run → the question; answer → the command that takes it back; resume → once; show and why say so."""
    ran = run(trips)
    assert ran.code == 4
    assert "I cannot take back: “send mail”" in " ".join(ran.out.split())
    question = trips.question("r1")["id"]
    assert f"stepseven answer {question} 1" in ran.out
    assert question in trips("inbox").out
    assert f"stepseven inbox {question}" in trips("show", "r1").out
    answered = trips("answer", question, "undo")
    assert "It is taken back with:\n  stepseven resume r1-undo --module MODULE" in answered.out
    assert trips("resume", "r1-undo", "--module", "trips").code == 0
    assert Path(trips.folder, "cancelled").read_text() == "B-1"
    assert trips("resume", "r1-undo").code == 0, "it has ended: no code is needed"
    assert Path(trips.folder, "cancelled").read_text() == "B-1"
    shown = trips("show", "r1").out
    assert "taken back" in shown.split("send_mail")[0]
    assert "taken back" not in shown.split("send_mail")[1].split("spent")[0]
    assert "undo.book_room" in trips("show", "r1-undo").out
    assert "1 thing it did was taken back (see run r1-undo)" in trips("why", "r1").out.replace("\n", " ")


def test_cancel_without_the_code_asks_too(trips):
    """A cancel from a process that has no module shows the question; `leave` ends it without another command."""
    run(trips, rain="false")
    cancelled = trips("cancel", "r1")
    assert cancelled.code == 0
    assert "was stopped, and 2 things it did outside still stand" in cancelled.out.replace("\n", " ")
    answered = trips("answer", trips.question("r1")["id"], "leave")
    assert answered.code == 0
    assert "resume" not in answered.out
    assert "Nothing needs you" in trips("inbox").out


def test_an_undo_without_its_module_names_it(trips):
    """Resume without the module: the run waits, names step and module, and goes on when it is there."""
    run(trips)
    trips("answer", trips.question("r1")["id"], "undo")
    waits = trips("resume", "r1-undo")
    assert waits.code == 3
    assert "module trips, which takes 'book_room' back, is not loaded" in " ".join(waits.out.replace("\n", " ").split())
    assert not Path(trips.folder, "cancelled").exists()
    assert trips("resume", "r1-undo", "--module", "trips").code == 0
    assert Path(trips.folder, "cancelled").read_text() == "B-1"
