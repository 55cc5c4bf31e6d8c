"""What a stranger stumbles over at a terminal: odd environments, wrong words, unset variables; and what is said then.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepseven import Fixable, Layer, Run, step, workflow
from stepseven.cli import _code
from stepseven.runtime.facts import lasting_us
from stepseven.store import _trouble
from tests.cli.test_client import Here, here

__all__ = ["here"]

URL = "sqlite:///stepseven.db"


@step(resource="billing-api")
async def stumble_read(client: str) -> int:
    raise Fixable("403 Forbidden")


@workflow
async def stumble_stuck(run: Run) -> int:
    return await stumble_read(run.client_id)


@workflow
async def stumble_free(run: Run) -> str:
    return await run.ask("What is the reference?")


@step(effect="irreversible", key="to")
async def stumble_mail(to: str) -> str:
    return f"sent to {to}"


@workflow
async def stumble_mails(run: Run) -> list[object]:
    return await run.map(_mail, ["ann", "ben", "bob"])


async def _mail(to: str) -> str | None:
    from stepseven import Refused

    try:
        return await stumble_mail(to)
    except Refused:
        return None


def asked(layer: Layer, run_id: str = "r1") -> list[str]:
    """The ids of a run's open questions."""
    rows = layer.store.read_now(lambda tx: tx.all(tx.sql.open_question_ids, {}))
    return [str(row["id"]) for row in rows]


@pytest.fixture
def layer(here: Here) -> Iterator[Layer]:
    """The store of the folder."""
    made = Layer(URL)
    yield made
    made.close()


# -- terminals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", ["0", "1", "12"])
@pytest.mark.parametrize("looking", ["doctor", "--help"])
def test_a_width_that_no_page_fits_in_shows_the_page_all_the_same(here, monkeypatch, columns, looking):
    """Where COLUMNS is 0 or far too small, a look shows what it shows elsewhere, and not nothing."""
    here("migrate")
    monkeypatch.setenv("COLUMNS", columns)
    ran = here(looking)
    assert ran.code == 0
    assert ("schema" if looking == "doctor" else "inbox") in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output_is_no_error(cli, closed):
    """With stdout or stderr closed a command ends quietly, with the code it would have had."""
    for arguments, code in (("migrate", 0), ("runs", 0), ("show nope", 1)):
        line = f'exec "$0" -m stepseven {arguments} {closed}'
        done = subprocess.run(
            ["sh", "-c", line, cli.command()[0]], cwd=cli.folder, env=cli.whole_env, capture_output=True, text=True, timeout=50,
            check=False,
        )  # fmt: skip
        assert (done.returncode, "Traceback" in done.stderr, "NoneType" in done.stderr) == (code, False, False)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["", "-shm", "-wal"])
def test_the_very_file_that_is_read_only_is_named(tmp_path, monkeypatch, ending):
    """Where a database cannot be written, the sentence names the file that is read-only, not "the file or its folder"."""
    path = tmp_path / "kept.db"
    for end in ("", "-shm", "-wal"):
        Path(f"{path}{end}").touch()
    monkeypatch.setattr(_trouble.os, "access", lambda file, mode: str(file) != f"{path}{ending}")
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY
    told = str(_trouble.explain("sqlite:///kept.db", str(path), error))
    assert f"{path}{ending} " in told
    assert "make it writable" in told


@pytest.mark.parametrize("there, says", [(True, "copy the store elsewhere"), (False, "name a store elsewhere")])
def test_a_read_only_folder_is_named(tmp_path, monkeypatch, there, says):
    """Where the folder is what is read-only, the sentence says so, and how to look at the store all the same."""
    path = tmp_path / "kept.db"
    if there:
        path.touch()
    monkeypatch.setattr(_trouble.os, "access", lambda file, mode: Path(file) != tmp_path)
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    told = str(_trouble.explain("sqlite:///kept.db", str(path), error, opening=True))
    assert f"the folder {tmp_path} is read-only" in told
    assert says in told


# -- answering --------------------------------------------------------------------------------------------------------


def test_until_when_somebody_waits_is_shown_as_a_time(here, layer):
    """After ``answer Q wait --until …`` people read a time: in what is said then, in the inbox, and to whoever answers again."""
    layer.run_blocking(stumble_stuck(), client="acme", run_id="r1")
    (question,) = asked(layer)
    said = here("answer", question, "wait", "--until", "2030-01-01T12:00:00+02:00")
    assert said.code == 0, said.err
    again = here("answer", question, "again")
    whole = here("inbox", question)
    for text in (said.out, again.err, whole.out):
        assert "2030-01-01T10:00:00Z" in " ".join(text.split())
        assert "1893" not in text


def test_that_it_is_answered_is_said_before_what_is_wrong_with_the_answer(here, layer):
    """Of a question that has its answer that is told first, whatever is given this time."""
    layer.run_blocking(stumble_stuck(), client="acme", run_id="r1")
    (question,) = asked(layer)
    here("answer", question, "again")
    for late in (("again", "--until", "1h"), ("value",), ("nonsense",), ("wait", "--until", "600"), ("",)):
        ran = here("answer", question, *late)
        assert (ran.code, "was already answered by ann" in " ".join(ran.err.split())) == (1, True), ran.err


def test_an_unset_variable_is_no_answer(here, layer):
    """An empty text is not taken as the one answer; the empty text itself is said as JSON."""
    layer.run_blocking(stumble_free(), client="acme", run_id="r1")
    (question,) = asked(layer)
    ran = here("answer", question, "")
    assert ran.code == 1
    assert f"stepseven answer {question} '\"\"'" in " ".join(ran.err.split())
    assert asked(layer) == [question]
    assert here("answer", question, '""', "--json").json["answer"] == ""


def test_a_placeholder_says_what_it_stands_for(here, layer, monkeypatch):
    """Where the command that goes on needs the run's module, it is said which that is; where it is configured, nothing is."""
    layer.run_blocking(stumble_free(), client="acme", run_id="r1")
    (question,) = asked(layer)
    told = here("answer", question, "R-17").out
    assert "--module MODULE" in told
    assert "MODULE is the module you ran" in told
    monkeypatch.setenv("STEPSEVEN_MODULES", "renewals")
    layer.run_blocking(stumble_free(), client="acme", run_id="r2")
    assert "MODULE" not in here("answer", asked(layer)[0], "R-18").out


# -- what a person refused ----------------------------------------------------------------------------------------------


def test_what_was_refused_is_decided_and_no_failure(here, layer):
    """In a map of three of which a person refused one, ``show`` says who, counts two, and has no failure on the page."""
    layer.run_blocking(stumble_mails(), client="acme", run_id="r1")
    for n, question in enumerate(asked(layer)):
        assert here("answer", question, "refuse" if n == 1 else "approve", "--by", "bob" if n else "ann").code == 0
    assert layer.resume_blocking("r1").status == "done"
    page = here("show", "r1").out
    assert "✓ stumble_mail" in page
    assert "2 of 3" in page
    assert "– 1 refused by bob" in page
    assert "✗" not in page
    assert "approved by" not in page.split("decided", maxsplit=1)[0]


@step(effect="irreversible", key="to")
async def stumble_letter(to: str) -> str:
    return f"sent to {to}"


@workflow
async def stumble_one(run: Run) -> str:
    from stepseven import Refused

    try:
        return await stumble_letter("ann")
    except Refused:
        return "left out"


@pytest.mark.parametrize("said, sign, told", [("approve", "✓", "approved by ann"), ("refuse", "–", "refused by ann")])
def test_one_that_was_decided_says_by_whom(here, layer, said, sign, told):
    """A single irreversible step says who approved it, or who refused it."""
    layer.run_blocking(stumble_one(), client="acme", run_id="r1")
    here("answer", asked(layer)[0], said)
    assert layer.resume_blocking("r1").status == "done"
    page = here("show", "r1").out
    assert f"{sign} stumble_letter" in page
    assert told in page
    assert "↻" not in page
    assert "✗" not in page


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pause", "unpause", "forget", "set", "import"])
def test_a_command_of_the_group_is_found_from_outside(here, name):
    """Whoever leaves out `client` is told where the command is, and not to fork or to prune."""
    ran = here(name, "acme")
    assert (ran.code, f"`stepseven client {name}`" in " ".join(ran.err.split())) == (2, True)


@pytest.mark.parametrize(
    "given, meant",
    [("./workflows.py", "workflows"), ("workflows.py", "workflows"), ("jobs/nightly.py", "jobs.nightly"), ("./jobs/x", "jobs.x")],
)
def test_a_path_is_no_module(here, given, meant):
    """A file's path in place of a module is answered with the module to write."""
    ran = here("run", f"{given}:reminder", "--client", "acme")
    assert (ran.code, f"write {meant}:reminder" in " ".join(ran.err.split())) == (2, True), ran.err
    with pytest.raises(_code.Refused, match=f"write {meant}$"):
        _code.load(given)


@pytest.mark.parametrize(
    "arguments",
    [["client", "set", "acme", "vat=1", "vat=2"], ["show", "nope"], ["client", "import", "noext"]],
)
def test_a_name_stays_as_it_is_written(here, arguments):
    """A sentence begins with a capital, except where it begins with a name of the user's."""
    (here.folder / "noext").write_text("client,vat\nacme,1\n", "utf-8")
    here("migrate")
    ran = here(*arguments)
    assert ran.code in (1, 2)
    assert "Vat" not in ran.err
    assert "Noext" not in ran.err
    assert ran.err[0].isupper() or ran.err.startswith(("vat", "noext"))


# -- init -------------------------------------------------------------------------------------------------------------


def test_init_recommends_a_folder_that_is_free(here):
    """What is recommended after a refusal is never what was just refused."""
    assert here("init", "my-agents").code == 0
    assert "`stepseven init my-agents-2`" in " ".join(here("init", "my-agents").err.split())
    here("init", "my-agents-2")
    assert "`stepseven init my-agents-3`" in " ".join(here("init", "my-agents").err.split())
    here("init")
    assert "`stepseven init my-agents-3`" in " ".join(here("init").err.split())


def test_init_of_nothing_is_refused(here):
    """An unset variable does not fill the current folder."""
    ran = here("init", "")
    assert (ran.code, list(here.folder.iterdir())) == (1, [])
    assert "no folder is named" in ran.err.lower()


def test_init_of_a_dash_prints_a_command_that_works(here):
    """A folder whose name begins with a dash is entered by a path."""
    ran = here("init", "--", "-dash")
    assert "cd ./-dash" in ran.out
    assert "`stepseven init -- -dash-2`" in " ".join(here("init", "--", "-dash").err.split())


# -- being stopped ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("story", ["invoices", "renewal"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_of_a_demo_outlives_it(cli, tmp_path, story, number):
    """A demo that is ended from outside, even by kill -9, leaves no process behind: neither a server nor a worker."""
    told = tmp_path / "told.txt"
    with told.open("w") as out:
        child = subprocess.Popen(
            cli.command("demo", "--fast", "--story", story), cwd=cli.folder, env={**cli.whole_env, "PYTHONUNBUFFERED": "1"},
            stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        _seen(lambda: len(children(child.pid)) >= (2 if story == "invoices" else 4))  # the servers and a worker
        started = children(child.pid)
        child.send_signal(number)
        code = child.wait(timeout=50)
    finally:
        child.kill()
        child.wait()
    assert code == (-9 if number is signal.SIGKILL else 143)
    _seen(lambda: not [pid for pid in started if alive(pid)])
    assert "Traceback" not in told.read_text("utf-8")


def children(pid: int) -> set[int]:
    """The processes that a process has started and that still run."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return {int(word) for word in found.read_text("ascii").split()} if found.exists() else set()


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _seen(what) -> None:
    """Wait until something is so."""
    for _ in range(4000):
        if what():
            return
        time.sleep(0.01)
    pytest.fail("it did not come to this")


# -- facts ------------------------------------------------------------------------------------------------------------


def test_a_value_that_is_blank_is_seen(here):
    """A fact whose value is an empty text is a line with its name, and says that it is empty."""
    assert "· k  (empty)" in here("client", "set", "acme", "k=").out
    assert "· k  (empty)" in here("client", "acme").out
    assert "1  (empty)" in here("client", "acme", "--history", "k").out


def test_what_is_no_json_is_text(here):
    """``NaN`` and a number that nobody can read are kept as they were typed."""
    here("client", "set", "acme", "y=NaN", f"n={'9' * 5000}", f"deep={'[' * 5000}")
    facts = {fact["key"]: fact["value"] for fact in here("client", "acme", "--json").json["facts"]}
    assert facts == {"y": "NaN", "n": "9" * 5000, "deep": "[" * 5000}


@pytest.mark.parametrize(
    "given, code, told",
    [
        (["acme", 'k={"a": 1, "a": 2}'], 2, "value of k has a twice in one object: keep one"),
        (["acme", 'k=[{"b": {"a": 1, "a": 2}}]'], 2, "value of k has a twice in one object: keep one"),
        (["c\udcff", "k=1"], 1, "is not UTF-8 text"),
        (["acme", "k=sk-ant-api03-" + "A1b2" * 20], 1, "it is not kept here, and nothing was changed"),
        (["acme", "k=1", "--valid", "99999999d"], 1, "is over 100 years: leave it out"),
        (["acme", "k=1", "--valid", "9" * 5000 + "d"], 1, "is over 100 years: leave it out"),
        (["acme", "k=1", "--valid", "0d"], 1, "say how long the fact holds"),
    ],
)
def test_what_is_said_wrongly_is_one_sentence_for_an_operator(here, given, code, told):
    """What cannot be a fact is refused in words for whoever typed it, and nothing is kept."""
    here("client", "set", "acme", "before=1")
    ran = here("client", "set", *given)
    assert (ran.code, told in " ".join(ran.err.split())) == (code, True), ran.err
    assert "codec" not in ran.err
    assert "Secret(" not in ran.err
    assert [fact["key"] for fact in here("client", "acme", "--json").json["facts"]] == ["before"]


def test_an_answer_that_is_a_credential_is_refused_for_an_operator(here, layer):
    """Whoever answers with a credential is told that it is not kept, not how to write a step."""
    layer.run_blocking(stumble_free(), client="acme", run_id="r1")
    (question,) = asked(layer)
    ran = here("answer", question, "sk-ant-api03-" + "A1b2" * 20)
    assert (ran.code, "it is not kept here" in " ".join(ran.err.split())) == (1, True), ran.err
    assert "Secret(" not in ran.err
    assert asked(layer) == [question]


@pytest.mark.parametrize("valid", ["99999999d", "36526d", "5300w"])
def test_for_good_is_said_by_leaving_it_out(valid):
    """Wherever a fact is said to hold for a time, over 100 years is refused."""
    with pytest.raises(ValueError, match="over 100 years"):
        lasting_us(valid)
    assert lasting_us("36525d") == 36525 * 86_400_000_000


def test_a_page_does_not_break_on_what_is_stored(here):
    """A fact that was said to hold for 270,000 years by an earlier version is shown."""
    here("client", "set", "acme", "k=1", "--valid", "90d")
    with sqlite3.connect(here.folder / "stepseven.db") as file:
        file.execute("UPDATE fact SET valid_until_us = 8640000000000000000")
    for words in (["client", "acme"], ["client", "acme", "--history", "k"]):
        ran = here(*words)
        assert (ran.code, "holds for ever" in ran.out) == (0, True), ran.err


# -- imports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, text, told",
    [
        ("f.csv", "client,vat\nac/me,1\n", "line 2, column client: "),
        ("f.csv", f"client,vat,{'n' * 300}\nacme,1,2\n", "line 1, column 3: "),
        ("f.json", '{"ac/me": {"vat": 1}}', "client ac/me: "),
        ("f.json", f'{{"acme": {{"vat": {"9" * 5000}}}}}', "a number in it has too many digits"),
        ("f.csv", f"client,vat\nacme,{'x' * (17 << 20)}\n", "line 2, column vat: "),
        ("noext", "client,vat\nacme,1\n", "neither .csv nor .json"),
        ("x.txt", "client,vat\nacme,1\n", "neither .csv nor .json"),
    ],
)
def test_a_bad_file_is_told_where_it_is_bad(here, name, text, told):
    """The place that is named is the one to mend: the client's column, the line of the names."""
    (here.folder / name).write_text(text, "utf-8")
    ran = here("client", "import", name)
    assert (ran.code, told in " ".join(ran.err.split())) == (1, True), ran.err[:500]
    assert "broke off" not in ran.err


def test_a_large_cell_is_as_good_as_a_large_text(here):
    """A CSV takes as large a value as JSON does."""
    (here.folder / "f.csv").write_text(f"client,note\nacme,{'x' * 500_000}\n", "utf-8")
    assert here("client", "import", "f.csv").code == 0
    assert here("client", "acme", "--json").json["facts"][0]["value"] == "x" * 500_000


# -- forgotten --------------------------------------------------------------------------------------------------------


@step
async def stumble_number(n: int) -> int:
    return n


@workflow
async def stumble_known(run: Run) -> int:
    return await stumble_number(7)


def test_who_was_forgotten_is_shown_so(here, layer):
    """After a client was forgotten its page says when and by whom, its run shows no results, and a fork says why not."""
    layer.run_blocking(stumble_known(), client="acme", run_id="r1")
    here("client", "forget", "acme", "--yes", "--by", "ann", "--reason", "contract ended")
    page = " ".join(here("client", "acme").out.split())
    assert re.search(r"Forgotten on \d{4}-\d\d-\d\d by ann \(contract ended\): nothing is known any more\.", page)
    run = here("show", "r1").out
    assert "✓ stumble_number" in run
    assert "null" not in run
    assert "was forgotten with its client" in " ".join(here("fork", "r1", "--from-step", "stumble_number").err.split())
    here("client", "set", "acme", "k=1")
    assert "what is here came since" in " ".join(here("client", "acme").out.split())
