"""``demo``: a real kill, a dead API, one question; judged by the API's own file of postings."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # real processes from start to end, several times


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
