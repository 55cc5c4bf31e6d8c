"""Links: whom they are of, when they die, and what cannot be done with them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from stepseven import AlreadyAnswered, Run, step, testing, workflow
from stepseven.people import links
from stepseven.people.links import UnknownLink, public_url, signing_key, verify
from stepseven.people.postman import Postman
from stepseven.testing import TestLayer
from stepseven.transitions import objecting, persons
from tests.people.outside import Memory, knows
from tests.servers import databases


@workflow(name="linked")
async def linked(run: Run, days: int | None = None) -> str:
    """Asks."""
    more = {} if days is None else {"deadline": days * 86400, "default": "no"}
    return await run.ask("May it go out?", options=["yes", "no"], **more)


@step(name="linked_pay", effect="irreversible", key="invoice")
def pay(invoice: str) -> str:
    """Pays."""
    return invoice


@workflow(name="linked_pays")
async def pays(run: Run) -> str:
    """Pays."""
    return await pay("R-1")


class Desk:
    """A store and a postman who puts links into messages."""

    def __init__(self, folder: Path) -> None:
        self.layer: TestLayer = testing.layer(databases.url(folder))
        self.folder = folder
        self.sender = Memory(lambda: self.layer.clock.now_us)
        self.postman = Postman(
            self.layer.store, self.layer.services.edge, public_url="https://runs.example.com/", sender=self.sender
        )

    def links(self) -> list[str]:
        """What stands behind ``/q/`` in each message, if anything does."""
        found = []
        for *_, body in self.sender.sent:
            line = next((line for line in body.splitlines() if "https://runs.example.com/q/" in line), None)
            found.append(line.strip().removeprefix("https://runs.example.com/q/") if line else "")
        return found

    def look(self, link: str) -> links.Link:
        """What a link says now."""
        layer = self.layer
        key = signing_key(layer.store, layer.services.edge)
        return layer.store.read_now(lambda tx: verify(tx, link, key, layer.clock.now_us))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Ann is asked first, then Ben."""
    made = Desk(tmp_path)
    knows(made.layer, "ann", name="Ann Lee", rank=1)
    knows(made.layer, "ben", rank=2)
    yield made
    made.layer.close()


async def test_a_link_is_of_one_person_and_question(desk: Desk):
    """It says who was told of which question, and that it still counts. Looking changes nothing, however often."""
    await desk.layer.run(linked(), client="acme")
    desk.postman.turn()
    [question] = await desk.layer.questions()
    [link] = desk.links()
    before = databases.rows(desk.folder, "SELECT * FROM question"), databases.rows(desk.folder, "SELECT * FROM delivery")
    for _ in range(3):
        found = desk.look(link)
    assert (found.question_id, found.person_id, found.name, found.dead, found.sign_in) == (
        question.id,
        "ann",
        "Ann Lee",
        None,
        False,
    )
    assert before == (
        databases.rows(desk.folder, "SELECT * FROM question"),
        databases.rows(desk.folder, "SELECT * FROM delivery"),
    )


async def test_a_link_dies_with_the_hand_over(desk: Desk):
    """Whoever had it cannot answer any more, and reads who can; the next one's link works, and so does that of a reminder."""
    await desk.layer.run(linked(), client="acme")
    desk.postman.turn()
    for _ in range(7):
        desk.layer.clock.advance(timedelta(hours=1))
        desk.postman.turn()
    ann, reminder, ben, again = desk.links()
    assert desk.look(ann).dead == desk.look(reminder).dead == "Ben is asked now." or desk.look(ann).dead == "ben is asked now."
    assert desk.look(ben).dead is None
    assert desk.look(again).dead is None
    assert len({ann, reminder, ben, again}) == 4


async def test_a_link_dies_with_the_answer(desk: Desk):
    """It says who answered, and when."""
    await desk.layer.run(linked(), client="acme")
    desk.postman.turn()
    [question] = await desk.layer.questions()
    await desk.layer.answer(question.id, "yes", by="carl")
    assert desk.look(desk.links()[0]).dead == "carl answered it at 2026-01-05T09:00Z."


async def test_a_link_dies_with_the_deadline(desk: Desk):
    """At the deadline, not only when the run has noticed it; and afterwards."""
    outcome = await desk.layer.run(linked(days=1), client="acme")
    desk.postman.turn()
    desk.layer.clock.advance(timedelta(days=1, seconds=1))
    [link] = desk.links()
    assert desk.look(link).dead == "Its time is over: nobody answered it by then."
    assert (await desk.layer.resume(outcome.run_id)).value == "no"
    assert desk.look(link).dead == "Its time is over: nobody answered it by then."


async def test_a_link_dies_with_its_person(desk: Desk):
    """Who was removed, or has other clients now, answers nothing by a link they still have."""
    await desk.layer.run(linked(), client="acme")
    desk.postman.turn()
    [link] = desk.links()
    knows(desk.layer, "ann", clients=("globex",))
    assert desk.look(link).dead == "Its client is not one of Ann Lee's any more."
    desk.layer.store.write_now(lambda tx: persons.remove(tx, "ann", desk.layer.clock.now_us), durable=True, client=None)
    assert desk.look(link).dead == "Ann Lee is not asked any more."


async def test_what_cannot_be_taken_back_needs_a_sign_in(desk: Desk):
    """The message says so, and so does the link."""
    await desk.layer.run(pays(), client="acme")
    desk.postman.turn()
    assert desk.look(desk.links()[0]).sign_in
    assert "You sign in there first" in desk.sender.sent[0][3]


async def test_nobody_makes_up_a_link(desk: Desk):
    """Another message's signature, a changed letter, another key, other text: none of ours."""
    await desk.layer.run(linked(), client="acme")
    await desk.layer.run(linked(), client="globex")
    desk.postman.turn()
    one, two = desk.links()
    wrong = [
        f"{one.partition('.')[0]}.{two.partition('.')[2]}", one[:-1] + ("A" if one[-1] != "A" else "B"), one + "A", one[:-1], "",
        ".", "d_x.y", "x" * 10_000, one.replace(".", ". "), "d_\x00.a", one.partition(".")[0], f"{one.partition('.')[0]}.é",
    ]  # fmt: skip
    for text in wrong:
        with pytest.raises(UnknownLink, match="none of ours"):
            desk.look(text)
    with pytest.raises(UnknownLink):
        desk.layer.store.read_now(lambda tx: verify(tx, one, "k" * 40, 0))


def test_the_key_is_made_once_and_can_be_given(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    """Two processes get the same; STEPSEVEN_LINK_KEY overrides it, and a short one is refused."""
    store, edge = desk.layer.store, desk.layer.services.edge
    made = signing_key(store, edge)
    assert len(made) >= 64
    assert signing_key(store, edge) == made
    monkeypatch.setenv("STEPSEVEN_LINK_KEY", "s" * 40)
    assert signing_key(store, edge) == "s" * 40
    monkeypatch.setenv("STEPSEVEN_LINK_KEY", "short")
    with pytest.raises(ValueError, match="at least 32"):
        signing_key(store, edge)


def test_where_the_pages_are_is_a_web_address(monkeypatch: pytest.MonkeyPatch):
    """Nothing: the message names the command. Anything else than a plain URL is refused."""
    monkeypatch.delenv("STEPSEVEN_PUBLIC_URL", raising=False)
    assert public_url() is None
    assert public_url("https://runs.example.com/") == "https://runs.example.com"
    for wrong in ("runs.example.com", "ftp://x", "https://u:p@x", "https://x/?a=1", "https://"):
        with pytest.raises(ValueError, match="say where the pages are reached"):
            public_url(wrong)


async def test_an_answer_by_a_link_that_died_changes_nothing_and_is_kept(desk: Desk):
    """Ben has it and answers; Ann answers late through her old link: refused, and what she said stands beside it."""
    outcome = await desk.layer.run(linked(), client="acme")
    desk.postman.turn()
    for _ in range(5):
        desk.layer.clock.advance(timedelta(hours=1))
        desk.postman.turn()
    ann, ben = desk.look(desk.links()[0]), desk.look(desk.links()[-1])
    assert (ann.dead is None, ben.dead) == (False, None)
    await desk.layer.answer(ben.question_id, "yes", by=ben.person_id)
    with pytest.raises(AlreadyAnswered):
        await desk.layer.answer(ann.question_id, "no", by=ann.person_id)
    assert (await desk.layer.resume(outcome.run_id)).value == "yes"
    row = desk.layer.store.read_now(lambda tx: tx.one(tx.sql.ladder, {"id": ann.question_id}))
    assert row is not None
    assert [(o["by"], o["value"]) for o in objecting.of(row)] == [("ann", "no")]
