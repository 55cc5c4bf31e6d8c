"""What comes too late: refused, kept beside the question, and nothing else changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepseven import AlreadyAnswered, QuestionExpired, Run, SecretFound, testing, workflow
from stepseven.testing import TestLayer
from stepseven.transitions import objecting
from tests.servers import databases


@workflow(name="late_answers")
async def late_answers(run: Run) -> str:
    """Asks."""
    return await run.ask("Which one?", options=["a", "b"], deadline=86400, default="a")


@pytest.fixture
def layer(tmp_path: Path) -> Iterator[TestLayer]:
    """A layer whose clock is moved by hand."""
    made = testing.layer(databases.url(tmp_path))
    yield made
    made.close()


def objections(layer: TestLayer, question_id: str) -> list[dict[str, Any]]:
    """What was kept."""
    row = layer.store.read_now(lambda tx: tx.one(tx.sql.ladder, {"id": question_id}))
    assert row is not None
    return objecting.of(row)


async def test_another_answer_is_refused_and_kept(layer: TestLayer):
    """Who, what, when and why; the first answer stays. The same press of the same person twice is no objection."""
    await layer.run(late_answers(), client="acme")
    [question] = await layer.questions()
    await layer.answer(question.id, "a", by="ann")
    with pytest.raises(AlreadyAnswered):
        await layer.answer(question.id, "a", by="ann")
    for _ in range(2):
        with pytest.raises(AlreadyAnswered):
            await layer.answer(question.id, "b", by="ben", note="a is sold")
    assert objections(layer, question.id) == [{"by": "ben", "value": "b", "note": "a is sold", "at_us": layer.clock.now_us}]
    [kept] = await layer.questions(status=None)
    assert (kept.answer, kept.answered_by) == ("a", "ann")


async def test_an_answer_after_the_deadline_is_kept(layer: TestLayer):
    """Before and after the run has noticed the deadline; the default stays what counted."""
    outcome = await layer.run(late_answers(), client="acme")
    [question] = await layer.questions()
    layer.clock.advance(timedelta(days=1, seconds=1))
    with pytest.raises(QuestionExpired):
        await layer.answer(question.id, "b", by="ann")
    assert (await layer.resume(outcome.run_id)).value == "a"
    with pytest.raises(QuestionExpired):
        await layer.answer(question.id, "b", by="ben")
    assert [(o["by"], o["value"]) for o in objections(layer, question.id)] == [("ann", "b"), ("ben", "b")]


async def test_no_more_than_twenty_are_kept_and_no_credential(layer: TestLayer):
    """Whoever presses for ever fills nothing; a credential is refused before anything is written."""
    await layer.run(late_answers(), client="acme")
    [question] = await layer.questions()
    await layer.answer(question.id, "a", by="ann")
    for n in range(25):
        with pytest.raises(AlreadyAnswered):
            await layer.answer(question.id, "b" * 5000, by=f"p{n}")
    with pytest.raises(SecretFound):
        await layer.answer(question.id, "sk-proj-abcdefghijklmnopqrstuvwx0123", by="eve")
    kept = objections(layer, question.id)
    assert len(kept) == 20
    assert all(len(o["value"]) <= 2001 for o in kept)


async def test_what_needs_no_answer_keeps_none(layer: TestLayer):
    """A question that was withdrawn is nobody's business any more."""
    outcome = await layer.run(late_answers(), client="acme")
    [question] = await layer.questions()
    await layer.cancel(outcome.run_id, reason="no more")
    with pytest.raises(QuestionExpired):
        await layer.answer(question.id, "a", by="ann")
    assert objections(layer, question.id) == []


TABLES = ("run", "question", "step", "attempt", "effect", "fact", "delivery", "client")


def everything(folder: Path) -> dict[str, list[dict]]:
    """Every row there is, but for what was said too late."""
    found = {table: databases.rows(folder, f"SELECT * FROM {table} ORDER BY 1") for table in TABLES}
    for row in found["question"]:
        row.pop("objections")
    return found


@settings(max_examples=6)
@given(said=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ann", "ben", "eve"])), min_size=1, max_size=6))
def test_whatever_is_said_too_late_changes_nothing_else(said: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory):
    """After the answer no press changes any row but the list of what came too late."""
    folder = tmp_path_factory.mktemp("late")

    async def story() -> None:
        layer = testing.layer(databases.url(folder))
        await layer.run(late_answers(), client="acme")
        [question] = await layer.questions()
        await layer.answer(question.id, "a", by="ann")
        before = everything(folder)
        for value, by in said:
            with contextlib.suppress(AlreadyAnswered):
                await layer.answer(question.id, value, by=by)
        assert everything(folder) == before
        others = list(dict.fromkeys((by, value) for value, by in said if (value, by) != ("a", "ann")))
        assert [(o["by"], o["value"]) for o in objections(layer, question.id)] == others
        layer.close()

    asyncio.run(story())
