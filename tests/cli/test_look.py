"""``show``, ``why``, ``runs``, ``export``, ``inbox``, ``answer``, ``doctor``, ``migrate``, and the commands of later releases."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time

import pytest

from stepseven.cli import later, main
from stepseven.cli._common import Refused
from stepseven.cli.inbox import _reply


@pytest.fixture
def waiting(cli):
    """A run that waits for a person, with forty items done."""
    cli("run", "renewals:renewal", "--client", "acme", "--input", "quarter=Q3", "--run-id", "r1", "--goal", "renew for Q3")
    return cli


LOOKING = ["show r", "why r", "runs", "inbox", "export r", "resume r", "answer q 1", "cancel r", "fork r --from-step s", "doctor"]


@pytest.mark.parametrize("command", LOOKING)
def test_looking_creates_no_store(cli, command):
    """Where there is no store, looking says so, exits 5, and leaves no file behind."""
    ran = cli(*command.split())
    assert ran.code == 5
    assert "there is no store at sqlite:///stepseven.db" in ran.err.replace("There", "there")
    assert not list(cli.folder.glob("*.db*"))


def test_file_of_another_program_is_not_touched(cli):
    """A file that is no store of ours is exit 5, and stays as it was."""
    file = cli.folder / "stepseven.db"
    file.write_text("a letter to my aunt " * 100, "utf-8")
    before = file.read_bytes()
    assert cli("runs").code == 5
    assert cli("migrate").code == 5
    assert file.read_bytes() == before


def test_show_tells_steps_failures_money_and_the_question(waiting):
    """``show``: what is done and folded, what failed and how it was tried, what is next, spend against limit, the question."""
    page = waiting("show", "r1").out
    assert "Acme · renew for Q3 · waiting for a person" in page
    assert "✓ pull_tickets" in page
    assert "40 of 40" in page
    assert "… 37 more" in page
    assert "✗ pull_billing" in page
    assert "403 Forbidden (as written)" in page
    assert "· create" in page
    assert "$0.32 of $2.00" in page
    assert f"stepseven inbox {waiting.question('r1')['id']}" in page
    assert "… 37 more" not in waiting("show", "r1", "--all").out


def test_pages_fit_80_columns_and_need_no_colour(waiting):
    """Without a terminal no line is over 80 columns except commands to paste, and there is no escape sequence."""
    for command in (["show", "r1"], ["inbox"], ["runs"], ["why", "r1"], ["doctor"]):
        text = waiting(*command).out
        assert "\x1b" not in text
        assert [line for line in text.splitlines() if len(line) > 80 and "stepseven " not in line] == []


@pytest.mark.parametrize("no_colour", [True, False])
def test_terminal_gets_colour_unless_it_refuses(waiting, no_colour):
    """In a terminal there is colour; with NO_COLOR there is none. Stored escape sequences never get through."""
    env = {**waiting.whole_env, "TERM": "xterm-256color", **({"NO_COLOR": "1"} if no_colour else {})}
    ours, theirs = pty.openpty()
    done = subprocess.run(waiting.command("show", "r1"), cwd=waiting.folder, env=env, stdout=theirs, timeout=50, check=False)
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        text += part
    os.close(ours)
    assert done.returncode == 0
    assert (b"\x1b[32m" in text) is not no_colour
    assert b"\x1b[31mfine" not in text


def test_why_and_runs(waiting):
    """``why`` is one sentence; ``runs`` lists newest first, filters, pages, and says kindly that there is none."""
    assert waiting("why", "r1").out.count(".") >= 1
    assert waiting("why", "r1", "--json").json["run_id"] == "r1"
    waiting("run", "renewals:simple", "--client", "bob", "--input", "quarter=Q3", "--run-id", "r2")
    assert [r["run_id"] for r in waiting("runs", "--json").json["items"]] == ["r2", "r1"]
    page = waiting("runs", "--json", "--limit", "1").json
    assert [r["run_id"] for r in waiting("runs", "--json", "--cursor", page["next"]).json["items"]] == ["r1"]
    assert [r["run_id"] for r in waiting("runs", "--json", "--client", "bob", "--status", "done").json["items"]] == ["r2"]
    none = waiting("runs", "--client", "zoe")
    assert none.code == 0
    assert "There is no run for Zoe" in none.out
    assert waiting("runs", "--status", "sleeping").code == 2
    assert waiting("runs", "--cursor", "x").code == 2
    assert waiting("runs", "--limit", "0").code == 2


def test_unknown_run_is_refused(cli):
    """An unknown run is exit 1, and the sentence says where the known ones are."""
    cli("migrate")
    for command in ("show", "why", "export", "resume", "cancel"):
        ran = cli(command, "nope")
        assert ran.code == 1
        assert "stepseven runs" in ran.err


def test_export_writes_the_checkpoint(waiting):
    """``export`` gives the checkpoint document, on stdout or whole into a file."""
    document = waiting("export", "r1").json
    assert document == waiting("show", "r1", "--json").json["checkpoint"]
    assert waiting("export", "r1", "out.json").code == 0
    assert json.loads((waiting.folder / "out.json").read_text("utf-8")) == document
    assert waiting("export", "r1", "no/where.json").code == 1
    assert waiting("export", "r1", ".").code == 1
    assert [p.name for p in waiting.folder.glob(".out*")] == []


def test_inbox_one_many_none(waiting):
    """One open question is shown whole; several as a list, oldest first; none is said kindly."""
    assert "could not pull billing" in waiting("inbox").out
    assert "stepseven answer" in waiting("inbox").out
    waiting("run", "renewals:asks", "--client", "bob", "--run-id", "r2")
    listing = waiting("inbox").out
    assert listing.index("Acme · renew for Q3") < listing.index("Bob · asks")
    assert "2 questions are open" in listing
    assert "Is the discount approved?" in waiting("inbox", "--client", "bob").out
    assert waiting("inbox", waiting.question("r2")["id"], "--json").json["run_id"] == "r2"
    assert waiting("inbox", "q_nope").code == 1
    none = waiting("inbox", "--client", "zoe")
    assert (none.code, none.out.startswith("Nothing needs you for Zoe.")) == (0, True)


def test_answers_by_number_by_type_and_as_typed(cli):
    """A number picks the n-th choice; a typed question gets its type; a free text stays what was typed, quotes and all."""
    cli("run", "renewals:asks", "--client", "acme", "--run-id", "r1")
    cli.env["STEPSEVEN_MODULES"] = "renewals"
    assert cli("answer", cli.question("r1")["id"], "2", "--json").json["answer"] == "no"
    cli("resume", "r1")
    percent = cli.question("r1")["id"]
    assert cli("answer", percent, "many").code == 1
    assert cli("answer", percent, "15", "--by", "bob", "--json").json["answered_by"] == "bob"
    cli("resume", "r1")
    assert cli("answer", cli.question("r1")["id"], '"007"').code == 0
    assert cli("resume", "r1", "--json").json["value"] == ["no", 15, '"007"']


@pytest.mark.parametrize("said, meant", [("#1", "10"), ("#3", "1"), ("5", None), ("1", None), ("10", "10")])
def test_number_that_is_also_a_choice_is_not_guessed(tmp_path, said, meant):
    """Where choices are numerals, a bare number that could mean two of them is refused; # and its number always works."""
    row = {"id": "q", "kind": "ask", "status": "open", "options": json.dumps([{"id": i} for i in ("10", "5", "1")])}
    if meant is None and said == "1":
        with pytest.raises(Refused, match="number of"):
            _reply(row, said, {})
    else:
        assert _reply(row, said, {}) == (meant or "5")


def test_second_answer_changes_nothing(waiting):
    """A question takes one answer: the second is refused with who said what."""
    question = waiting.question("r1")["id"]
    assert waiting("answer", question, "again", "--by", "bob").code == 0
    again = waiting("answer", question, "stop", "--json")
    assert (again.code, again.json["type"]) == (1, "AlreadyAnswered")
    assert "bob" in again.err


WRONG = (
    (["nope"], 1, "again"),
    (["99"], 1, "again"),
    (["wait"], 1, "--until"),
    (["wait", "--until", "soon"], 1, "soon"),
    (["value"], 1, "--value"),
    (["again", "--value", "1"], 2, "--value"),
    (["wait", "--usd", "1"], 2, "--usd"),
    ([], 2, "CHOICE"),
)


def test_wrong_answer_leaves_the_question_open(waiting):
    """A wrong answer says what would be right, and the question stays open."""
    question = waiting.question("r1")["id"]
    for arguments, code, says in WRONG:
        ran = waiting("answer", question, *arguments)
        assert (ran.code, says in ran.err) == (code, True), arguments
    assert waiting.question("r1")["id"] == question
    assert waiting("answer", "q_nope", "1").err.count(question) == 1


@pytest.mark.parametrize("until", ["3600", "2999-01-01T09:00:00Z"])
def test_wait_takes_a_time_or_seconds(waiting, until):
    """``--until`` takes seconds or a moment; what is stored is that moment."""
    ran = waiting("answer", waiting.question("r1")["id"], "wait", "--until", until, "--json")
    assert ran.code == 0
    assert ran.json["answer"]["until"] > time.time() * 1e6


def test_migrate_creates_then_says_it_is_there(cli):
    """``migrate`` creates the store, and the second time says that it is up to date."""
    assert "was created" in cli("migrate").out
    assert "is up to date" in cli("migrate").out
    assert cli("migrate", "--json").json["created"] is False


def test_doctor_says_which_store_and_why(waiting):
    """``doctor`` names the store and why it is this one, counts, and what is open."""
    found = waiting("doctor", "--json").json
    assert found["url"] == "sqlite:///stepseven.db"
    assert "default" in found["why"]
    assert (found["runs"], found["open_questions"], found["unsettled_effects"], found["orphans"]) == (1, 1, 0, [])
    waiting.env["STEPSEVEN_URL"] = "sqlite:///other.db"
    text = waiting("doctor", "--store", "sqlite:///stepseven.db").out
    assert "overrides STEPSEVEN_URL (sqlite:///other.db)" in " ".join(text.split())


def test_doctor_finds_a_run_whose_worker_was_killed(cli):
    """After ``kill -9`` the doctor lists the run as orphaned, with the dead process as the reason."""
    child = subprocess.Popen(
        cli.command("run", "renewals:hangs", "--client", "acme", "--input", f"folder={cli.folder}", "--run-id", "r1"),
        cwd=cli.folder, env=cli.whole_env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(2000):
            if (cli.folder / "hanging").exists():
                break
            time.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    orphans = cli("doctor", "--json").json["orphans"]
    assert [o["run_id"] for o in orphans] == ["r1"]
    assert f"process {child.pid}" in orphans[0]["reason"]
    assert "stepseven resume r1" in cli("doctor").out


@pytest.mark.parametrize("name", later.COMMANDS)
def test_later_commands_say_so(name, capsys):
    """A command of a later release says so in one sentence and exits 1, whatever comes with it."""
    assert main([name, "something", "--scope", "read"]) == 1
    told = capsys.readouterr().err
    assert "comes with a later release" in told
    assert told.count("\n") == 1


def test_help_names_every_command(cli):
    """``--help`` lists every command of the contract, and ``--version`` prints the version."""
    ran = cli("--help")
    names = ["demo", "run", "resume", "start", "cancel", "fork", "show", "why", "runs", "inbox", "answer", "doctor", "migrate"]
    assert ran.code == 0
    assert [n for n in [*names, "export", *later.COMMANDS] if f" {n} " not in ran.out] == []
    assert cli("--version").out.startswith("stepseven ")
    assert cli().code == 2


def test_reader_that_hangs_up_is_no_error(waiting):
    """``stepseven … | head`` ends quietly."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        waiting.command("runs"), cwd=waiting.folder, env=waiting.whole_env, stdout=writing, stderr=subprocess.PIPE, text=True,
        timeout=50, check=False,
    )  # fmt: skip
    os.close(writing)
    assert done.returncode == 0
    assert done.stderr == ""


def test_importing_stepseven_loads_neither_typer_nor_rich(cli):
    """The command line's libraries are loaded by the command line alone."""
    code = "import sys, stepseven; print([m for m in sys.modules if m.split('.')[0] in ('typer', 'rich')])"
    python = cli.command()[0]
    done = subprocess.run([python, "-c", code], env=cli.whole_env, capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout.strip() == "[]"
