"""``prune``, ``client forget``, ``client export``, and what ``doctor`` says of them."""

from __future__ import annotations

import json
import os
import pty
import sqlite3
import subprocess

import pytest

from tests.cli.conftest import MODULE, Terminal


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Two ended runs of one client, a year ago, and one with a map: made once, looked at by every test."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "renewals.py").write_text(MODULE, "utf-8")
    there = Terminal(folder)
    for n in (1, 2):
        assert there("run", "renewals:simple", "--client", "acme", "--run-id", f"r{n}", "--input", f"quarter=Q{n}").code == 0
    there("run", "renewals:renewal", "--client", "bolt", "--run-id", "m", "--input", "quarter=Q1")
    there("cancel", "m")
    connection = sqlite3.connect(folder / "stepseven.db")
    with connection:
        connection.execute("UPDATE run SET ended_us = ended_us - 31536000000000 WHERE client_id = 'acme'")
    connection.close()
    return (folder / "stepseven.db").read_bytes()


@pytest.fixture
def cli(cli: Terminal, made: bytes) -> Terminal:
    """A folder with that store."""
    (cli.folder / "stepseven.db").write_bytes(made)
    return cli


def test_prune_says_what_it_would_do(cli: Terminal) -> None:
    """A dry run says what would go, changes nothing, and says so."""
    dry = cli("prune", "--dry-run", "--json").json
    assert (dry["runs"], dry["dry_run"], dry["older_than"], dry["given_back"]) == (1, True, "90d", None)
    told = cli("prune", "--dry-run").out
    assert "1 run would shrink" in told
    assert "Nothing was changed." in told


def test_prune_says_what_went(cli: Terminal) -> None:
    """It says what went and what is kept; then there is nothing left; the run still gives its outcome."""
    told = cli("prune").out
    assert "1 run shrunk" in told
    assert "receipts are kept" in " ".join(told.split())
    assert "Nothing to prune" in cli("prune").out
    assert cli("prune", "--vacuum", "--json").json["given_back"] >= 0
    assert "document Q1" in cli("resume", "r1", "--module", "renewals").out


@pytest.mark.parametrize("arguments", [["--older-than", "soon"], ["--older-than", "-3d"], ["--dry-run", "--vacuum"]])
def test_prune_refuses_what_makes_no_sense(cli: Terminal, arguments: list[str]) -> None:
    """Usage errors are one sentence, and nothing is pruned."""
    ran = cli("prune", *arguments)
    assert ran.code == 2
    assert len(ran.err.strip().splitlines()) <= 2
    assert cli("prune", "--dry-run", "--json").json["runs"] == 1


def test_a_pruned_map_still_counts_its_items(cli: Terminal) -> None:
    """`show` says "40 of 40" of a run whose items' records are gone."""
    before = cli("show", "m").out
    assert "40 of 40" in before
    assert cli("prune", "--older-than", "0d", "--json").json["runs"] >= 1
    after = cli("show", "m").out
    assert "40 of 40" in after
    assert "214 tickets" in after
    assert "403 Forbidden" in after


def test_doctor_says_what_a_prune_would_free_and_what_happens_by_itself(cli: Terminal) -> None:
    """Size of results, the oldest run, the retention, and what could go now."""
    found = cli("doctor", "--json").json
    assert (found["retention"], found["would_free"]["runs"]) == ("90 days", 1)
    assert found["oldest_run_us"] > 0
    assert found["artifact_bytes"] == 0
    assert "by itself after 90 days; `stepseven prune` frees" in " ".join(cli("doctor").out.split())
    cli.env["STEPSEVEN_RETENTION"] = "off"
    assert cli("doctor", "--json").json["retention"] == "off"
    assert "STEPSEVEN_RETENTION=off" in cli("doctor").out
    cli.env["STEPSEVEN_RETENTION"] = "never"
    ran = cli("runs")
    assert (ran.code, "say a duration such as 90d, or off" in " ".join(ran.err.split())) == (1, True)


def test_forget_asks_nobody_and_so_refuses_without_yes(cli: Terminal) -> None:
    """Without a terminal nothing is deleted unless it is said with --yes; then it says what went and what stays."""
    ran = cli("client", "forget", "acme", "--by", "ann")
    assert ran.code == 1
    assert "--yes" in ran.err
    assert cli("client", "export", "acme").json["runs"][0]["inputs"] == {"quarter": "Q1"}
    told = " ".join(cli("client", "forget", "acme", "--by", "ann", "--reason", "left", "--yes").out.split())
    assert "acme is forgotten" in told
    assert "2 runs (id, workflow, times, cost) and 2 effects" in told
    assert cli("client", "export", "acme").json["runs"][0]["inputs"] == {}
    assert "forgotten by ann: left" in cli("client", "export", "acme").out
    again = cli("client", "forget", "acme", "--yes", "--json").json
    assert (again["client_id"], again["facts"], again["compacted"]) == ("acme", 0, True)


def test_forget_refuses_an_unknown_client_and_one_with_open_runs(cli: Terminal) -> None:
    """The sentence names the runs and what to do; exit code 1."""
    assert cli("client", "forget", "acmee", "--yes").code == 1
    cli("start", "renewals:simple", "--client", "acme", "--run-id", "open", "--input", "quarter=Q9")
    ran = cli("client", "forget", "acme", "--yes")
    assert ran.code == 1
    assert "open" in ran.err
    assert "cancel them first" in " ".join(ran.err.split())


@pytest.mark.parametrize("typed, code", [("acme\n", 0), ("acne\n", 1), ("\n", 1)])
def test_forget_on_a_terminal_wants_the_clients_id_typed(cli: Terminal, typed: str, code: int) -> None:
    """It says with numbers what goes and what stays; only the id itself does it."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        cli.command("client", "forget", "acme", "--by", "ann"), cwd=cli.folder, env=cli.whole_env, stdin=theirs,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.write(ours, typed.encode())
    out, err = child.communicate(timeout=50)
    os.close(ours)
    os.close(theirs)
    assert child.returncode == code, err
    assert "2 runs with times and cost" in " ".join(out.split())
    gone = cli("client", "export", "acme").json["runs"][0]["inputs"] == {}
    assert gone is (code == 0)


def test_export_writes_a_file(cli: Terminal) -> None:
    """One JSON document with everything; a line says where and how much."""
    told = cli("client", "export", "acme", "-o", "acme.json")
    assert told.code == 0
    assert "2 runs" in told.out
    document = json.loads((cli.folder / "acme.json").read_text("utf-8"))
    assert [effect["receipt"] for run in document["runs"] for effect in run["effects"]] == ["document Q1", "document Q2"]
    assert cli("client", "export", "nobody").code == 1
    assert cli("client", "export", "acme", "-o", "nowhere/acme.json").code == 1
