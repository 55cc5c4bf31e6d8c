"""``stepseven person``: what it keeps, what it refuses, what it shows."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stepseven import Run, testing, workflow
from stepseven.cli import main
from tests.people.outside import hook, knows
from tests.servers import databases


@workflow(name="person_asks")
async def person_asks(run: Run) -> str:
    """Asks."""
    return await run.ask("Which one?", options=["a", "b"])


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The command line on a store of its own: exit code, and what was printed."""
    monkeypatch.setenv("STEPSEVEN_URL", databases.url(tmp_path))

    def run(*arguments: str) -> tuple[int, str]:
        with ThreadPoolExecutor(1) as thread:  # a process of its own has no loop, either
            code = thread.submit(main, arguments).result()
        told = capsys.readouterr()
        return code, told.out + told.err

    return run


def test_what_is_said_of_a_person_is_kept_and_shown_without_credentials(said):
    """Added, changed in one thing, away, removed."""
    assert said("person", "list")[0] in (0, 5)
    code, _ = said("person", "add", "ann", "--channel", "env:ANN", "--hours", "mon-fri 09:00-17:00", "--zone", "Europe/Vienna")
    assert code == 0
    said("person", "add", "ann", "--rank", "3", "--client", "acme", "--remind", "1h")
    [ann] = json.loads(said("person", "list", "--json")[1])["items"]
    assert ann == {
        "id": "ann", "name": "ann", "channels": ["env:ANN"], "hours": "mon-fri 09:00-17:00", "zone": "Europe/Vienna",
        "clients": ["acme"], "rank": 3, "remind_s": 3600, "hand_over_s": 14400, "away_until_us": None,
    }  # fmt: skip
    assert "away until" in said("person", "away", "ann", "--until", "3d")[1]
    assert said("person", "away", "ann", "--back") == (0, "ann is here.\n")
    assert said("person", "remove", "ann")[0] == 0
    assert json.loads(said("person", "list", "--json")[1])["items"] == []
    assert said("person", "remove", "ann")[0] == 1


@pytest.mark.parametrize(
    "arguments,told",
    [
        (["--channel", "slack://T0/B0/xyz"], "has its credential in it"),
        (["--channel", "mailto://u:p@example.com"], "with a login in it"),
        (["--channel", "json://token@hook.example/x"], "with a login in it"),
        (["--channel", "json://hook.example/?key=1"], "with key= may hold"),
        (["--channel", "jsons://hook.example/services/T0AB12CD34EF56GH78"], "with a long key"),
        (["--channel", "env:9"], "names no environment variable"),
        (["--channel", "ann@example.com"], "is no channel"),
        (["--channel", "env:A", "--hours", "9-5"], "is no day"),
        (["--channel", "env:A", "--zone", "Mars/Base"], "there is no zone"),
        (["--channel", "env:A", "--remind", "5h"], "has to come before"),
        (["--channel", "env:A", "--remind", "soon"], "is no time"),
        (["--channel", "env:A", "--name", " "], "cannot be kept"),
        ([], "has no channel"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_a_sentence(said, arguments: list[str], told: str):
    """One sentence, nothing half-made, and no credential comes back in it."""
    code, text = said("person", "add", "ann", *arguments)
    assert code in (1, 2)
    assert told in " ".join(text.split()).lower()
    assert "T0AB12" not in text
    code, text = said("person", "list", "--json")
    assert code == 5 or json.loads(text)["items"] == []  # there is no store, or nobody in it


def test_a_test_message_says_which_channel_took_it(said, monkeypatch: pytest.MonkeyPatch):
    """By a real web hook whose address has a login; or why nothing did, without it."""
    with hook() as web:
        monkeypatch.setenv("ANN_HOOK", web.url.replace("json://", "json://ann:hunter2secret@"))
        said("person", "add", "ann", "--channel", "env:NOWHERE_AT_ALL", "--channel", "env:ANN_HOOK")
        assert said("person", "test", "ann") == (0, "Sent to ann by env:ANN_HOOK.\n")
        assert web.got[0]["title"] == "stepseven can reach you"


async def test_what_reached_nobody_is_counted_and_said(tmp_path: Path, said):
    """In the inbox, by the doctor and by ``why``; with a person there, who is told when."""
    layer = testing.layer(databases.url(tmp_path))
    first = await layer.run(person_asks(), client="acme")
    await layer.run(person_asks(), client="globex")
    found = json.loads(said("doctor", "--json")[1])
    assert found["nowhere"] == 2
    assert "2 open questions were delivered nowhere: there are no persons" in found["delivery"]
    assert "delivered nowhere" in said("inbox")[1].replace("\n", " ")
    knows(layer, "ann", name="Ann Lee", clients=("acme",))
    assert "Ann Lee" not in said("why", first.run_id)[1]
    layer.store.write_now(lambda tx: tx.run(tx.sql.start_ladders, {"now": layer.clock.now_us}), durable=True, client=None)
    await layer.run(person_asks(), client="acme", run_id="later")
    assert "Ann Lee is told at 2026-01-05T09:00Z." in " ".join(said("why", "later")[1].split())
    layer.close()


async def test_what_came_too_late_is_shown(tmp_path: Path, said):
    """In the run's page and with the question: who said what; JSON has it, too."""
    layer = testing.layer(databases.url(tmp_path))
    outcome = await layer.run(person_asks(), client="acme")
    [question] = await layer.questions()
    await layer.answer(question.id, "a", by="ann")
    layer.close()
    assert said("answer", question.id, "b", "--by", "ben", "--note", "a is sold")[0] == 1
    assert "ben said “b” (a is sold)" in " ".join(said("show", outcome.run_id)[1].split())
    assert "ben said “b” (a is sold)" in " ".join(said("inbox", question.id)[1].split())
    [kept] = json.loads(said("inbox", question.id, "--json")[1])["objections"]
    assert (kept["by"], kept["value"], kept["note"]) == ("ben", "b", "a is sold")
    [same] = json.loads(said("show", outcome.run_id, "--json")[1])["objections"]
    assert same == {"question_id": question.id, **kept}
