"""``resume`` with choices, and ``fork --from --set``: words, exit codes, the question in a terminal."""

from __future__ import annotations

import os
import pty
import sqlite3
import subprocess
import time
from typing import Any

import pytest

from tests.cli.conftest import Terminal

CODE = """
from stepseven import Fixable, Run, step, workflow

@step
async def tickets() -> int:
    with open("ran.txt", "a") as ran:
        ran.write("tickets\\n")
    return 3

@step
async def billing(n: int) -> dict[str, int]:
    raise Fixable("403 Forbidden")

@billing.approach("contract amount", ask=True)
async def contract(n: int) -> dict[str, int]:
    return {"amount": 48000 + n}

@step(effect="write", key="amount")
async def post(amount: int) -> str:
    return f"posted {amount}"

@workflow
async def bills(run: Run, note: str = "") -> str:
    got = await billing(await tickets())
    return await post(got["amount"]) + note
"""


@pytest.fixture
def bills(cli: Terminal) -> Terminal:
    """A run ``r`` that waits for a person about ``billing``."""
    (cli.folder / "bills.py").write_text(CODE, "utf-8")
    cli.env["STEPSEVEN_MODULES"] = "bills"
    assert cli("run", "bills:bills", "--client", "acme", "--run-id", "r").code == 3
    return cli


def ran(bills: Terminal) -> int:
    """How often tickets were read."""
    return (bills.folder / "ran.txt").read_text("utf-8").count("tickets")


def test_an_approach_is_chosen_with_its_label(bills: Terminal):
    """``--approach STEP=LABEL`` ends the run that waited, in the name of who typed it."""
    done = bills("resume", "r", "--approach", "billing=contract amount")
    assert (done.code, "posted 48003" in done.out) == (0, True)
    with sqlite3.connect(bills.folder / "stepseven.db") as store:
        assert store.execute("SELECT by FROM recovery").fetchall() == [("ann",)]
    store.close()


@pytest.mark.parametrize("value", ['{"amount": 12}', "@value.json"])
def test_a_value_is_json_or_a_file(bills: Terminal, value: str):
    """``--skip STEP=JSON`` gives the step's result; ``@FILE`` reads it."""
    (bills.folder / "value.json").write_text('{"amount": 12}', "utf-8")
    done = bills("resume", "r", "--skip", f"billing={value}")
    assert (done.code, "posted 12" in done.out) == (0, True)


def test_what_cannot_be_chosen_is_one_sentence_and_exit_1(bills: Terminal):
    """Unknown steps and labels, a value that does not fit, a credential: refused, with what there is; nothing is changed."""
    for options, said in (
        (["--approach", "nothing=x"], "it has no step 'nothing': on record are tickets, billing"),
        (["--approach", "billing=magic"], "it has contract amount, and 'as written'"),
        (["--skip", "billing=twelve"], "does not fit"),
        (["--rerun", "post", "--yes"], "is done once"),
        (["--skip", 'billing={"amount": "sk-ant-a1B2c3D4a1B2c3D4a1B2c3D4a1B2c3D4"}'], "does not fit"),
    ):  # fmt: skip
        refused = bills("resume", "r", *options)
        assert refused.code == 1, options
        assert said in " ".join(refused.err.split()), options
    assert bills("resume", "r").code == 3


def test_a_wrong_form_is_exit_2(bills: Terminal):
    """``--keep`` with ``--refresh``, a pair without ``=``: exit 2 with the right form."""
    for options, said in (
        (["--keep", "--refresh"], "give one of them"),
        (["--approach", "billing"], "STEP=LABEL"),
        (["--skip", "billing"], "STEP=JSON"),
        (["--skip", "billing=1", "--skip", "billing=2"], "given twice"),
    ):
        wrong = bills("resume", "r", *options)
        assert wrong.code == 2, options
        assert said in wrong.err


def test_without_a_terminal_a_rerun_asks_nothing(bills: Terminal):
    """In a script ``--rerun`` does what it says, with and without ``--yes``."""
    assert bills("resume", "r", "--rerun", "tickets").code == 3
    assert bills("resume", "r", "--rerun", "tickets", "--yes").code == 3
    assert ran(bills) == 3


@pytest.mark.parametrize("answer", ["y", "n"])
def test_in_a_terminal_a_rerun_shows_the_plan_and_asks_once(bills: Terminal, answer: str):
    """``--rerun`` in a terminal: the plan with the step in it, one question; "no" changes nothing and exits 1."""
    told, code = typed(bills, answer, "resume", "r", "--rerun", "tickets")
    assert "tickets" in told
    assert told.count("Do this?") == 1
    if answer == "y":
        assert (code, ran(bills)) == (3, 2)
    else:
        assert (code, ran(bills)) == (1, 1)
        assert "Nothing was changed." in told


def typed(cli: Terminal, text: str, *arguments: str) -> tuple[str, int]:
    """What a command shows in a terminal in which *text* is typed, and its exit code."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        cli.command(*arguments), cwd=cli.folder, env={**cli.whole_env, "TERM": "dumb"}, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        said, told, give_up = False, "", time.monotonic() + 40
        while time.monotonic() < give_up:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            told += part.decode()
            if not said and "Do this?" in told:
                os.write(ours, f"{text}\n".encode())
                said = True
        code = process.wait(timeout=20)
        os.close(ours)
    return told, code


def test_fork_takes_from_and_set_and_their_older_names(bills: Terminal):
    """``fork --from STEP --set NAME=VALUE``; ``--from-step`` and ``--input`` mean the same."""
    bills("resume", "r", "--approach", "billing=contract amount")
    for names in (("--from", "--set"), ("--from-step", "--input")):
        forked = bills("fork", "r", names[0], "billing", names[1], "note=!", "--json")
        assert forked.code == 0
        document: Any = forked.json
        assert document["inputs"] == {"note": "!"}
        assert document["checkpoint"]["steps_complete"] == ["tickets"]
    assert bills("fork", "r").code == 2
    shown = bills("fork", "--help").out
    assert "--from " in shown
    assert "--from-step" not in shown
