"""A database of schema 2 is opened by this version: what people decided and what is known is there, and its runs go on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stepseven import testing
from stepseven.layer import open_store
from stepseven.model import QuestionKind
from tests.compat.fixtures import make_schema_2 as two
from tests.runs import tools


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A copy of the database of schema 2, brought to this version's schema where that is newer."""
    shutil.copy(Path(two.__file__).with_name("schema-2.db"), tmp_path / "s.db")
    two.calls.clear()
    tools.only_these(monkeypatch, two.mails, two.child, two.parent, two.doomed)
    open_store(f"sqlite:///{tmp_path}/s.db", upgrade=True).close()
    return f"sqlite:///{tmp_path}/s.db"


async def test_what_is_known_is_there(url: str) -> None:
    """Facts with their sources and conflicts, the pause, and an edited approval are as they were."""
    async with testing.layer(url) as layer:
        acme = layer.client("acme")
        assert acme.status == "paused"
        facts = {fact.key: fact for fact in acme.facts()}
        assert (facts["phone"].value, [c.value for c in facts["phone"].conflicts]) == ("2", ["1"])
        assert (acme.get("old"), acme.get("vat_number"), acme.get("tone")) == ("x", "DE1", "Dear acme")
        done = await layer.resume("mails-1")
        assert done.result() == [{"price": 2}, "mail to ben", "DE1"]
        answers = {(q.kind, str(q.answer)) for q in await layer.questions(status="answered", run_id="mails-1")}
        assert (QuestionKind.APPROVE, "{'choice': 'approve', 'inputs': {'body': 'Dear Ben'}}") in answers
    assert two.calls == []


async def test_what_is_proposed_goes_on(url: str) -> None:
    """An approval that was asked by that version is answered in this one, and the effect happens once."""
    async with testing.layer(url) as layer:
        (question,) = [q for q in await layer.questions() if q.run_id == "mails-2"]
        await layer.answer(question.id, {"choice": "approve", "inputs": {"body": "Hi"}}, by="ann")
        assert (await layer.resume("mails-2")).questions == ()
        assert two.calls == []  # the client is paused
        layer.client("acme").unpause(by="ann")
        assert (await layer.resume("mails-2")).result()[1] == "mail to bob"
        assert two.calls == [("send_mail", "bob", "Hi")]


async def test_a_child_and_an_undo_go_on(url: str) -> None:
    """A parent that waited for its child ends with its answer; what was offered to be taken back is taken back once."""
    async with testing.layer(url) as layer:
        asked = {q.kind: q for q in await layer.questions(client="bolt")}
        await layer.answer(asked[QuestionKind.ASK].id, "yes", by="ann")
        assert (await layer.resume("parent-1")).result() == "booking 12: yes"
        await layer.answer(asked[QuestionKind.UNDO].id, "undo", by="ann")
        assert (await layer.resume("doomed-1-undo")).status == "done"
        assert two.calls == [("unbook", "booking 7")]
