"""Databases that earlier releases wrote are opened by this one: what they know is there, and their runs go on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stepseven import RunConflict, SchemaMismatch, testing
from stepseven.layer import open_store
from tests.compat.fixtures import make_schema_1 as one
from tests.runs import tools

FIXTURES = Path(__file__).with_name("fixtures")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A copy of the database of schema 1, brought to this version's schema."""
    shutil.copy(FIXTURES / "schema-1.db", tmp_path / "s.db")
    one.calls.clear()
    tools.only_these(monkeypatch, one.renewal)
    where = f"sqlite:///{tmp_path}/s.db"
    with pytest.raises(SchemaMismatch):  # never behind its owner's back
        open_store(where)
    open_store(where, upgrade=True).close()
    return where


async def test_what_it_knows_is_there(url: str) -> None:
    """Runs, checkpoints, questions and facts of an old database are listed as they were."""
    async with testing.layer(url) as layer:
        found = {run.run_id: run for run in await layer.runs()}
        assert {name: (run.client_id, run.status, run.open_questions_count) for name, run in found.items()} == {
            "done-1": ("acme", "done", 0),
            "waiting-1": ("bolt", "waiting", 1),
        }
        done = await layer.checkpoint("done-1")
        assert done["steps_complete"] == ["pull_tickets", "long_report", "shaky", "double", "create_document"]
        assert done["decisions"] == [{"text": "Is the Q3 discount still approved?", "answer": "yes", "by": "ann"}]
        assert done["spend"]["usd"] == 0.02
        waiting = await layer.checkpoint("waiting-1")
        assert waiting["artifacts"]["double"] == {"done": 3, "of": 3, "latest": "4"}
        assert waiting["failures"][0]["step"] == "shaky"
        assert done["facts"]["discount.approved"] == {"value": "yes", "version": 1}
        assert waiting["facts"] == {"language": {"value": "de", "version": 1}}
        [question] = await layer.questions()
        assert (question.text, [o.id for o in question.options]) == ("Is the Q3 discount still approved?", ["yes", "no"])
        assert "done-1" not in await layer.why("waiting-1")


async def test_its_ended_run_gives_its_outcome(url: str) -> None:
    """Starting an old, ended run again returns its value, typed, and runs nothing; other inputs are a conflict."""
    async with testing.layer(url) as layer:
        outcome = await layer.run(one.renewal(quarter="Q3"), client="acme", run_id="done-1")
        assert outcome.result() == {
            "id": "doc-acme-Q3", "discount": "yes", "key": "done-1/create_document/acme/Q3", "draft": "doc-acme-Q3-draft",
        }  # fmt: skip
        with pytest.raises(RunConflict):
            await layer.run(one.renewal(quarter="Q4"), client="acme", run_id="done-1")
    assert one.calls == []


async def test_its_waiting_run_goes_on(url: str) -> None:
    """An old run's question is answered and the run resumed: no recorded step runs again, no receipt is given twice."""
    async with testing.layer(url) as layer:
        await layer.answer_next("no", by="bob")
        outcome = await layer.resume("waiting-1")
        assert outcome.result()["discount"] == "no"
        assert outcome.result()["draft"] == "doc-bolt-Q3-draft"
        assert one.calls == ["create_document"]


async def test_its_facts_spare_the_question(url: str) -> None:
    """A fact that an old run remembered answers the question of a new one."""
    async with testing.layer(url, seed=1) as layer:
        outcome = await layer.run(one.renewal(quarter="Q4"), client="acme", run_id="new")
        assert outcome.result()["discount"] == "yes"
