"""``run``, ``resume``, ``start``, ``cancel``, ``fork``: exit codes, words, JSON."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from stepseven.store.sqlite import SqliteStore


def test_run_that_is_done_exits_0_and_shows_its_value(cli):
    """A run that is done exits 0; its value is on stdout, its progress on stderr."""
    ran = cli("run", "renewals:simple", "--client", "acme", "--input", "quarter=Q3")
    assert ran.code == 0
    assert "is done" in ran.out
    assert "document Q3" in ran.out
    assert "create" in ran.err
    assert "create" not in ran.out


def test_run_that_waits_exits_3_with_the_question_and_the_command_that_answers_it(cli):
    """A waiting run exits 3, shows the whole question, and names the commands to answer and to go on."""
    ran = cli("run", "renewals:renewal", "--client", "acme", "--input", "quarter=Q3", "--run-id", "r1")
    question = cli.question("r1")["id"]
    assert ran.code == 3
    assert "could not pull billing" in ran.out
    assert f"stepseven answer {question} 1" in ran.out
    assert "stepseven resume r1 --module renewals" in ran.out


def test_run_that_fails_exits_4_with_the_reason(cli):
    """A failed run exits 4 and says why; so does its resume, without any module."""
    ran = cli("run", "renewals:hopeless", "--client", "acme", "--run-id", "r1")
    assert ran.code == 4
    assert "the contract has ended" in ran.out
    assert cli("resume", "r1").code == 4


def test_json_of_run_is_that_of_show(cli):
    """``run --json`` prints the run as ``show --json`` does: one document, the status at the top level."""
    ran = cli("run", "renewals:renewal", "--client", "acme", "--input", "quarter=Q3", "--run-id", "r1", "--json")
    shown = cli("show", "r1", "--json")
    assert ran.code == 3
    assert ran.err == ""
    assert ran.json == shown.json
    assert (shown.json["status"], shown.json["waiting_for"]) == ("waiting", "person")
    assert set(shown.json) >= {
        "run_id", "client_id", "workflow", "goal", "inputs", "questions", "spend", "value", "failure", "checkpoint",
    }  # fmt: skip
    assert shown.json["checkpoint"]["artifacts"]["check"]["done"] == 40


def test_answer_then_resume_ends_the_run(cli):
    """Run, answer, resume: three processes, one run; what was done is not done again."""
    cli("run", "renewals:renewal", "--client", "acme", "--input", "quarter=Q3", "--run-id", "r1")
    answered = cli("answer", cli.question("r1")["id"], "value", "--value", "48000")
    assert answered.code == 0
    assert "by ann" in answered.out
    assert "stepseven resume r1 --module MODULE" in answered.out
    ran = cli("resume", "r1", "--module", "renewals")
    assert ran.code == 0
    assert "document Q3 at 48000" in ran.out
    assert "tickets" not in ran.err


def test_resume_finds_code_by_option_then_environment_then_project(cli):
    """``--module``, else STEPSEVEN_MODULES, else pyproject.toml name the code; without any it is one sentence and exit 1."""
    assert cli("start", "renewals:simple", "--client", "acme", "--input", "quarter=Q3", "--run-id", "r1").code == 0
    lost = cli("resume", "r1")
    assert lost.code == 1
    assert "--module" in lost.err
    (cli.folder / "other.py").write_text("", "utf-8")
    wrong = cli("resume", "r1", "--module", "other")
    assert wrong.code == 1
    assert "not in other" in wrong.err
    (cli.folder / "pyproject.toml").write_text('[tool.stepseven]\nmodules = ["other"]\n', "utf-8")
    cli.env["STEPSEVEN_MODULES"] = "renewals"
    assert cli("resume", "r1").code == 0
    del cli.env["STEPSEVEN_MODULES"]
    cli("start", "renewals:simple", "--client", "acme", "--input", "quarter=Q4", "--run-id", "r2")
    assert cli("resume", "r2").code == 1
    (cli.folder / "pyproject.toml").write_text('[tool.stepseven]\nmodules = ["renewals"]\n', "utf-8")
    assert cli("resume", "r2").code == 0


@pytest.mark.parametrize(
    "given, stored",
    [
        ("amount=7", {"amount": 7, "quarter": "Q3"}),
        ("amount=[1, 2]", {"amount": [1, 2], "quarter": "Q3"}),
        ("amount=@data.json", {"amount": {"a": 1}, "quarter": "Q3"}),
        ("amount=seven", {"amount": "seven", "quarter": "Q3"}),
    ],
)
def test_input_is_json_if_it_parses_else_text(cli, given, stored):
    """An input is JSON if it parses, else text; ``@FILE`` reads a file."""
    (cli.folder / "data.json").write_text('{"a": 1}', "utf-8")
    ran = cli("start", "renewals:renewal", "--client", "acme", "--input", "quarter=Q3", "--input", given, "--json")
    assert ran.json["inputs"] == stored


def test_text_parameter_keeps_its_text(cli):
    """A parameter declared ``str`` gets what was typed, also when it looks like a number."""
    ran = cli("start", "renewals:simple", "--client", "acme", "--input", "quarter=2026", "--json")
    assert ran.json["inputs"] == {"quarter": "2026"}


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["run", "renewals", "--client", "a"], 2, "MODULE:WORKFLOW"),
        (["run", "renewals:simple"], 2, "--client"),
        (["run", "renewals:simple", "--client", "a"], 2, "quarter"),
        (["run", "renewals:simple", "--client", "a", "--input", "quarter"], 2, "NAME=VALUE"),
        (["run", "renewals:simple", "--client", "a", "--input", "quarter=1", "--input", "quarter=2"], 2, "twice"),
        (["run", "renewals:simple", "--client", "a", "--input", "quarter=@nowhere"], 2, "nowhere"),
        (["run", "renewals:simple", "--client", "a", "--input", "quarter=1", "--input", "x=1"], 2, "x"),
        (["run", "renewals:simple", "--client", "a", "--wait", "-1"], 2, "--wait"),
        (["run", "renewals:nope", "--client", "a"], 1, "asks, hangs, hopeless, mails, renewal, simple"),
        (["run", "nowhere:nope", "--client", "a"], 1, "no module nowhere"),
        (["run", "broken:nope", "--client", "a"], 1, "ZeroDivisionError"),
        (["run", "renewals:simple", "--client", "", "--input", "quarter=1"], 1, "client"),
        (["run", "renewals:simple", "--client", "a", "--input", "quarter=1", "--run-id", "a/b"], 1, "run_id"),
        (["run", "renewals:simple", "--client", "a", "--input", "quarter=1", "--store", "mysql://u:secret@h/d"], 5, "sqlite:///"),
        (["run", "renewals:simple", "--client", "a", "--input", "quarter=1", "--store", "sqlite:///no/where.db"], 5, "folder"),
        (["frobnicate"], 2, "frobnicate"),
        (["run", "--frob"], 2, "--frob"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_exit_code(cli, arguments, code, says):
    """Bad input of every kind: one sentence on stderr, nothing on stdout, the exit code of the contract."""
    (cli.folder / "broken.py").write_text("1 / 0", "utf-8")
    ran = cli(*arguments)
    assert ran.code == code
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert says in ran.err
    assert "secret" not in ran.err


def test_error_as_json_is_on_stdout(cli):
    """With ``--json`` an error is a document with the sentence and its type, and the sentence stays on stderr."""
    ran = cli("--json", "run", "renewals:nope", "--client", "a")
    assert ran.code == 1
    assert set(ran.json) == {"error", "type"}
    assert ran.json["error"].strip() == ran.err.strip()


def test_known_id_with_other_inputs_is_a_conflict(cli):
    """The same id with other inputs is refused (1), with equal inputs it is the same run."""
    first = ("run", "renewals:simple", "--client", "acme", "--run-id", "r1", "--input")
    assert cli(*first, "quarter=Q3").code == 0
    assert cli(*first, "quarter=Q3").code == 0
    conflict = cli(*first, "quarter=Q4", "--json")
    assert (conflict.code, conflict.json["type"]) == (1, "RunConflict")


def test_traceback_only_with_debug(cli):
    """``--debug`` shows where it happened; without it nobody sees a traceback."""
    (cli.folder / "broken.py").write_text("1 / 0", "utf-8")
    done = subprocess.run(
        cli.command("run", "broken:x", "--client", "a", "--debug"), cwd=cli.folder, env=cli.whole_env, capture_output=True,
        text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_cancel_and_fork(cli):
    """A waiting run is cancelled at once; of an ended one that is refused; a fork starts queued with the records before."""
    cli("run", "renewals:renewal", "--client", "acme", "--input", "quarter=Q3", "--run-id", "r1")
    forked = cli("fork", "r1", "--from-step", "check", "--json")
    assert forked.json["status"] == "queued"
    assert forked.json["checkpoint"]["steps_complete"] == ["pull_tickets"]
    assert cli("fork", "r1", "--from-step", "nope").code == 1
    cancelled = cli("cancel", "r1", "--reason", "not needed", "--json")
    assert (cancelled.code, cancelled.json["status"]) == (0, "cancelled")
    assert "not needed" in cli("why", "r1").out
    cli("run", "renewals:simple", "--client", "acme", "--input", "quarter=Q3", "--run-id", "r2")
    assert cli("cancel", "r2").code == 1
    assert cli("cancel", "nope").code == 1


@pytest.mark.parametrize("number, code, named", [(signal.SIGINT, 130, []), (signal.SIGTERM, 143, ["--run-id", "r1"])])
def test_stopped_by_a_signal_it_gives_the_run_back(cli, number, code, named):
    """Ctrl-C and SIGTERM end the process with one sentence that names the run; it is nobody's and what was done is kept."""
    child = subprocess.Popen(
        cli.command("run", "renewals:hangs", "--client", "acme", "--input", f"folder={cli.folder}", *named),
        cwd=cli.folder, env=cli.whole_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        _until(cli.folder / "hanging")
        child.send_signal(number)
        out, err = child.communicate(timeout=50)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == code
    assert "Traceback" not in out + err
    (run,) = cli("runs", "--json").json["items"]
    assert f"The run is kept: `stepseven resume {run['run_id']} --module renewals` goes on." in err
    shown = cli("show", run["run_id"], "--json").json
    assert shown["status"] == "queued"
    assert shown["checkpoint"]["steps_complete"] == ["pull_tickets"]


def _until(path: Path) -> None:
    """Wait for a file that another process makes."""
    for _ in range(2000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} was never made")


def test_store_of_the_command_wins_over_environment(cli):
    """``--store``, before the command or after it, wins over STEPSEVEN_URL, which wins over the default."""
    cli.env["STEPSEVEN_URL"] = "sqlite:///env.db"
    simple = ("run", "renewals:simple", "--client", "acme", "--input", "quarter=Q3")
    cli(*simple)
    assert (cli.folder / "env.db").exists()
    cli(*simple, "--store", "sqlite:///after.db")
    cli("--store", "sqlite:///before.db", *simple)
    assert (cli.folder / "after.db").exists()
    assert (cli.folder / "before.db").exists()
    assert not (cli.folder / "stepseven.db").exists()
    store = SqliteStore("sqlite:///after.db", str(cli.folder / "after.db"))
    sizes = store.read_now(lambda tx: tx.one(tx.sql.sizes, {}))
    store.close()
    assert sizes["runs"] == 1
