"""``demo``: real kills, dead and refusing systems, questions; judged by what the outside wrote into its own files."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]  # real processes from start to end, several times


def books(folder: Path) -> Counter[tuple[str, str]]:
    """The postings in the API's file, by supplier and number."""
    lines = [json.loads(line) for line in (folder / "postings.jsonl").read_text("utf-8").splitlines()]
    return Counter((p["supplier"], p["number"]) for p in lines if "id" in p)


@pytest.mark.parametrize("at, questions", [(37, 1), (1, 1), (50, 0)])
def test_every_invoice_is_posted_once_wherever_the_kill_falls(cli, at, questions):
    """Killed at N, with the API dead in between: 50 documents in the API's books, none twice, and at most one question."""
    ran = cli("demo", "--fast", "--at", str(at), "--json")
    told = ran.json
    folder = Path(told["folder"])
    try:
        posted = books(folder)
        assert (len(posted), max(posted.values())) == (50, 1)
        assert ran.code == 0
        assert (told["postings"], told["documents"], told["twice"], told["questions"]) == (50, 50, 0, questions)
        assert (told["signal"], told["api_at_kill"], told["known_at_kill"], told["in_doubt_at_kill"]) == (9, at, at - 1, 1)
    finally:
        shutil.rmtree(folder)


def test_story_shows_the_kill_the_question_and_the_outside_count(cli):
    """The story shows pid and signal, the one question, the API's count, and ends with two commands and the folder."""
    ran = cli("demo", "--fast", "--at", "12")
    folder = Path(next(word for word in ran.out.split() if word.startswith("/") and word.endswith("/invoices"))).parent
    try:
        assert ran.code == 0
        assert "signal 9 (SIGKILL)" in " ".join(ran.out.split())
        assert ran.out.count("try the 2 failed ones again") == 1
        assert "50 postings of 50 invoices, 0 twice" in ran.out
        assert f"stepseven show invoices-demo-{folder.name.removeprefix('stepseven-demo-')}" in ran.out
        assert "\x1b" not in ran.out
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("at", ["0", "51", "x"])
def test_kill_outside_the_folder_is_a_usage_error(cli, at):
    """There are 50 invoices: anything else is exit 2."""
    assert cli("demo", "--fast", "--at", at).code == 2


def test_demo_twice_in_one_store_posts_for_two_clients(cli):
    """With ``--store`` the demo can be repeated: each has a client of its own, so nothing of the first is in its way."""
    for _ in range(2):
        told = cli("demo", "--fast", "--json", "--store", "sqlite:///kept.db").json
        shutil.rmtree(told["folder"])
        assert told["right"] is True
    assert len(cli("runs", "--json", "--store", "sqlite:///kept.db").json["items"]) == 2


def alive(pid: int) -> bool:
    """Whether the process still runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def renewal_books(folder: Path) -> tuple[Counter[tuple[str, str]], Counter[str], Counter[str]]:
    """The systems' own journals: documents by client and quarter, tickets by quarter, what billing answered."""

    def lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text("utf-8").splitlines()]

    filed = [entry["filed"] for entry in lines("documents") if "filed" in entry]
    return (
        Counter((d["client_id"], d["quarter"]) for d in filed),
        Counter(entry["quarter"] for entry in lines("tickets")),
        Counter(entry["asked"] for entry in lines("billing")),
    )


def test_renewal_is_two_documents_and_two_questions(cli):
    """Two quarters with a kill between claim and receipt: two documents, tickets read once a quarter, nobody asked in Q4."""
    ran = cli("demo", "--story", "renewal", "--fast", "--json")
    told = ran.json
    folder = Path(told["folder"])
    try:
        assert ran.code == 0
        documents, tickets, billing = renewal_books(folder)
        assert documents == {("acme", "Q3"): 1, ("acme", "Q4"): 1}
        assert tickets == {"Q3": 1, "Q4": 1}
        assert billing == {"refused": 1, "billing": 1}
        assert (told["documents"], told["quarters"], told["twice"], told["right"]) == (2, 2, 0, True)
        assert (told["questions_q3"], told["questions_q4"], told["signal"]) == (2, 0, 9)
        assert (told["documents_at_kill"], told["in_doubt_at_kill"]) == (1, 1)
    finally:
        shutil.rmtree(folder)


def test_renewal_shows_the_questions_the_kill_and_commands_that_work(cli):
    """Both questions as the inbox shows them, the signal, the outside's count; the two commands to try next do work."""
    ran = cli("demo", "--story", "renewal", "--fast")
    folder = Path(next(word for word in ran.out.split() if word.startswith("/") and "stepseven-demo-" in word).rstrip(";"))
    try:
        assert ran.code == 0
        said = " ".join(ran.out.split())
        assert "Failed billing-api answered 403 Forbidden" in said
        assert "2 use contract amount instead" in said
        assert "Is the Q3 discount still approved?" in said
        assert "signal 9 (SIGKILL)" in said
        assert "187 tickets instead of 214, 27 fewer" in said.replace("│ ", "")
        assert "2 documents for 2 quarters, 0 twice" in said
        assert "Questions: 2 in Q3, 0 in Q4." in said
        assert max(map(len, ran.out.splitlines()[: ran.out.splitlines().index("Try next:")])) <= 80
        assert "\x1b" not in ran.out
        assert not any(map(alive, map(int, re.findall(r"process\s+(\d+)", ran.out))))
        commands = [line.split()[1:] for line in ran.out.splitlines() if line.startswith("  stepseven ") and "…" not in line]
        assert len(commands) == 2
        for command in commands:
            tried = cli(*command)
            assert (tried.code, bool(tried.out)) == (0, True), tried.err
    finally:
        shutil.rmtree(folder)


def test_renewal_in_a_kept_store_has_a_client_of_its_own(cli):
    """With ``--store`` it can be told again: what is known about one demo's client is not known about the next one's."""
    for _ in range(2):
        told = cli("demo", "--story", "renewal", "--fast", "--json", "--store", "sqlite:///kept.db").json
        shutil.rmtree(told["folder"])
        assert (told["right"], told["questions_q3"]) == (True, 2)
    assert len(cli("runs", "--json", "--store", "sqlite:///kept.db").json["items"]) == 4


@pytest.mark.parametrize("arguments", [("--story", "renewal", "--at", "3"), ("--story", "holidays")])
def test_a_story_that_is_not_told_so_is_a_usage_error(cli, arguments):
    """``--at`` belongs to the invoices, and there are two stories: anything else is exit 2."""
    assert cli("demo", "--fast", *arguments).code == 2
