"""Who is told what, and when: over a weekend, two zones, an answer, a deadline, a server that is down, many questions at once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from stepseven import Fatal, Run, step, testing, workflow
from stepseven.people.postman import Postman
from stepseven.testing import TestLayer
from stepseven.transitions import persons
from tests.people.outside import Memory, knows
from tests.servers import databases

VIENNA, NEW_YORK = ZoneInfo("Europe/Vienna"), ZoneInfo("America/New_York")
FRIDAY = datetime(2026, 3, 13, 16, 50, tzinfo=VIENNA)
OFFICE = "mon-fri 09:00-17:00"


@workflow(name="people_ask")
async def ask(run: Run, to: str | None = None, hours: float | None = None) -> str:
    """Asks."""
    more = {} if hours is None else {"deadline": hours * 3600, "default": "old"}
    return await run.ask("Which amount?\nIt is [here](https://evil.example) <b>now</b>.", options=["old", "new"], to=to, **more)


@step(name="people_broken", on_failure="raise")
def broken() -> None:
    """Fails for good."""
    raise Fatal("the contract was withdrawn")


@workflow(name="people_fails")
async def fails(run: Run) -> None:
    """Fails for good."""
    await broken()


class Desk:
    """One store, its layer, and a postman whose messages stay in memory."""

    def __init__(self, folder: Path, start: datetime = FRIDAY) -> None:
        self.layer: TestLayer = testing.layer(databases.url(folder), start=start)
        self.folder = folder
        self.sender = Memory(lambda: self.layer.clock.now_us)
        self.postman = Postman(self.layer.store, self.layer.services.edge, sender=self.sender)

    def wait(self, until: datetime) -> None:
        """Time goes by; whenever something is due the postman looks."""
        clock, end_us = self.layer.clock, round(until.timestamp() * 1e6)
        while clock.now_us < end_us:
            self.postman.turn()
            [ladder] = self.rows("SELECT min(ladder_us) AS us FROM question WHERE status = 'open'")
            [message] = self.rows("SELECT min(next_us) AS us FROM delivery WHERE state = 'pending'")
            due_us = min(us for us in (ladder["us"], message["us"], end_us) if us is not None)
            clock.advance(max((min(due_us, end_us) - clock.now_us) / 1e6, 1.0))
        self.postman.turn()

    def told(self, zone: ZoneInfo = VIENNA) -> list[tuple[str, str, str]]:
        """(when, to whom, the first word of the subject) of each message."""
        return [
            (datetime.fromtimestamp(at / 1e6, zone).strftime("%a %H:%M"), url.removeprefix("json://"), subject.partition(":")[0])
            for at, url, subject, _ in self.sender.sent
        ]

    def rows(self, sql: str) -> list[dict]:
        return databases.rows(self.folder, sql)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A Friday afternoon in Vienna."""
    made = Desk(tmp_path)
    yield made
    made.layer.close()


async def test_over_a_weekend_and_two_zones(desk: Desk):
    """Asked on Friday 16:50, reminded on Monday, handed over when the next one works, then once each working day."""
    knows(desk.layer, "ann", hours=OFFICE, zone="Europe/Vienna", rank=1)
    knows(desk.layer, "ben", hours=OFFICE, zone="America/New_York", rank=2)
    await desk.layer.run(ask(), client="acme")
    desk.wait(datetime(2026, 3, 18, 23, 0, tzinfo=VIENNA))
    assert desk.told() == [
        ("Fri 16:50", "ann", "Acme"),
        ("Mon 10:50", "ann", "Reminder"),
        ("Mon 14:00", "ben", "Now yours"),
        ("Mon 16:00", "ben", "Reminder"),
        ("Tue 14:00", "ben", "Reminder"),
        ("Wed 14:00", "ben", "Reminder"),
    ]


async def test_after_the_answer_nobody_is_told_anything(desk: Desk):
    """An answer before the reminder: no reminder, no hand-over; a message that waits for Monday is not sent."""
    knows(desk.layer, "ann", hours=OFFICE, zone="Europe/Vienna")
    await desk.layer.run(ask(), client="acme")
    desk.postman.turn()
    desk.layer.clock.advance(timedelta(minutes=20))
    await desk.layer.run(ask(), client="globex")
    for question in await desk.layer.questions():
        await desk.layer.answer(question.id, "old", by="ann")
    desk.wait(datetime(2026, 3, 17, 12, 0, tzinfo=VIENNA))
    assert desk.told() == [("Fri 16:50", "ann", "Acme")]
    states = [(r["state"], r["reason"]) for r in desk.rows("SELECT state, reason FROM delivery ORDER BY created_us")]
    assert states == [("delivered", None), ("dead", "not needed: it is answered")]


async def test_the_message_is_there_as_soon_as_the_question_is(desk: Desk):
    """One transaction: whoever dies next leaves the message to be sent."""
    knows(desk.layer, "ann")
    await desk.layer.run(ask(), client="acme")
    [row] = desk.rows("SELECT question_id, person_id, purpose, state FROM delivery")
    [question] = await desk.layer.questions()
    assert row == {"question_id": question.id, "person_id": "ann", "purpose": "ask", "state": "pending"}


async def test_whom_the_code_names_is_asked_first_and_only_of_their_clients(desk: Desk):
    """``to=`` goes first; a question of a client that is nobody's is told to nobody."""
    knows(desk.layer, "ann", clients=("acme",), rank=1)
    knows(desk.layer, "ben", name="Ben Ode", clients=("acme",), rank=2)
    await desk.layer.run(ask(to="ben ode"), client="acme")
    await desk.layer.run(ask(), client="globex")
    desk.postman.turn()
    assert [to for _, to, _ in desk.told()] == ["ben"]


async def test_open_questions_go_to_whoever_is_added_later(desk: Desk):
    """Nobody was there when it was asked: the first person who comes is told."""
    await desk.layer.run(ask(), client="acme")
    desk.postman.turn()
    assert desk.told() == []
    knows(desk.layer, "ann")
    desk.postman.turn()
    assert [to for _, to, _ in desk.told()] == ["ann"]


async def test_a_deadline_is_no_answer_and_whoever_had_it_is_told(desk: Desk):
    """At the deadline the default counts; one message says so, and no reminder comes after it."""
    knows(desk.layer, "ann", remind_us=3600 * 1_000_000 * 5, hand_over_us=3600 * 1_000_000 * 6)
    outcome = await desk.layer.run(ask(hours=2), client="acme")
    desk.wait(datetime(2026, 3, 13, 19, 0, tzinfo=VIENNA))
    assert (await desk.layer.resume(outcome.run_id)).value == "old"
    desk.wait(datetime(2026, 3, 14, 19, 0, tzinfo=VIENNA))
    assert [what for _, _, what in desk.told()] == ["Acme", "Not answered in time"]
    assert "That is no “no”" in desk.sender.sent[-1][3]


async def test_a_run_that_failed_for_good_is_told(desk: Desk):
    """Once, with the reason and where to look; nothing to be answered."""
    knows(desk.layer, "ann")
    outcome = await desk.layer.run(fails(), client="acme")
    assert outcome.status == "failed"
    desk.wait(desk.layer.clock.now + timedelta(days=2))
    [(_, _, subject, body)] = desk.sender.sent
    assert subject == "Acme: people fails failed"
    assert "the contract was withdrawn" in body
    assert f"stepseven show {outcome.run_id}" in body


async def test_a_server_that_is_down_for_three_hours_loses_nothing(desk: Desk):
    """Tried again and again, less and less often; then it arrives once. Reminders count from there."""
    knows(desk.layer, "ann")
    await desk.layer.run(ask(), client="acme")
    desk.sender.down = "connection refused"
    desk.wait(FRIDAY + timedelta(hours=3))
    assert desk.sender.sent == []
    assert 8 <= desk.sender.tries <= 12
    [row] = desk.rows("SELECT state, reason, tries FROM delivery")
    assert (row["state"], row["reason"]) == ("pending", "json://ann: connection refused")
    desk.sender.down = None
    desk.wait(FRIDAY + timedelta(hours=6))
    assert [what for _, _, what in desk.told()] == ["Acme", "Reminder"]
    first, second = (at for at, *_ in desk.sender.sent)
    assert second - first == pytest.approx(2 * 3600e6, abs=301e6)


async def test_who_cannot_be_reached_for_a_day_is_given_up_and_the_next_one_is_asked(desk: Desk):
    """After a day the message is dead, with the reason; the question goes on to somebody else."""
    knows(desk.layer, "ann", rank=1, remind_us=3600 * 1_000_000 * 100, hand_over_us=3600 * 1_000_000 * 200)
    await desk.layer.run(ask(), client="acme")
    desk.sender.down = "no route"
    desk.wait(FRIDAY + timedelta(hours=23))
    knows(desk.layer, "ben", rank=2)
    desk.wait(FRIDAY + timedelta(hours=26))
    desk.sender.down = None
    desk.wait(FRIDAY + timedelta(hours=27))
    assert [(to, what) for _, to, what in desk.told()] == [("ben", "Now yours")]
    [row] = desk.rows("SELECT state, reason FROM delivery WHERE person_id = 'ann'")
    assert row == {"state": "dead", "reason": "json://ann: no route"}


async def test_the_first_channel_that_takes_it_is_enough(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    """A variable that is not set is no channel; the next one is used, and the row says which."""
    knows(desk.layer, "ann", channels=("env:ANN_NOWHERE", "env:ANN_HOOK", "json://ann"))
    monkeypatch.setenv("ANN_HOOK", "json://user:secret@hook.example")
    await desk.layer.run(ask(), client="acme")
    desk.postman.turn()
    assert [url for _, url, *_ in desk.sender.sent] == ["json://user:secret@hook.example"]
    assert desk.rows("SELECT channel FROM delivery") == [{"channel": "env:ANN_HOOK"}]


async def test_a_dozen_questions_of_one_incident_are_one_message(desk: Desk):
    """One message per incident and person, also for reminders; it says how many there are. A late one is told of with it."""
    knows(desk.layer, "ann")
    for n in range(12):
        await desk.layer.run(ask(), client=f"client{n}")
    databases.execute(desk.folder, "UPDATE question SET incident_id = 'i_1'")
    desk.wait(FRIDAY + timedelta(minutes=10))
    assert len(desk.sender.sent) == 1
    assert "11 more questions have the same cause." in desk.sender.sent[0][3]
    await desk.layer.run(ask(), client="late")
    databases.execute(desk.folder, "UPDATE question SET incident_id = 'i_1'")
    desk.wait(FRIDAY + timedelta(hours=5))
    assert [what for _, _, what in desk.told()] == [desk.told()[0][2], "Reminder"]


async def test_an_incident_whose_first_message_cannot_go_out_is_not_tried_a_dozen_times(desk: Desk):
    """While the one message is under way the others wait for it; it goes out as one."""
    knows(desk.layer, "ann")
    for n in range(12):
        await desk.layer.run(ask(), client=f"client{n}")
    databases.execute(desk.folder, "UPDATE question SET incident_id = 'i_1'")
    desk.sender.down = "connection refused"
    desk.wait(FRIDAY + timedelta(minutes=10))
    assert desk.sender.tries <= 5
    desk.sender.down = None
    desk.wait(FRIDAY + timedelta(minutes=30))
    assert len(desk.sender.sent) == 1


async def test_who_goes_away_or_is_removed_hands_over(desk: Desk):
    """The question goes to the next one at once; who is back is not told a second time."""
    knows(desk.layer, "ann", rank=1)
    knows(desk.layer, "ben", rank=2)
    knows(desk.layer, "eve", rank=3)
    await desk.layer.run(ask(), client="acme")
    desk.postman.turn()
    now = desk.layer.clock.now
    back = now + timedelta(days=1)
    desk.layer.store.write_now(
        lambda tx: persons.away(tx, "ann", back, desk.layer.clock.now_us), durable=True, client=None
    )  # fmt: skip
    desk.postman.turn()
    desk.layer.store.write_now(lambda tx: persons.remove(tx, "ben", desk.layer.clock.now_us), durable=True, client=None)
    desk.postman.turn()
    assert [(to, what) for _, to, what in desk.told()] == [("ann", "Acme"), ("ben", "Now yours"), ("eve", "Now yours")]


async def test_who_comes_after_everybody_was_removed_is_told(desk: Desk):
    """A question that nobody is left for goes to whoever is added next."""
    knows(desk.layer, "ann")
    await desk.layer.run(ask(), client="acme")
    desk.postman.turn()
    desk.layer.store.write_now(lambda tx: persons.remove(tx, "ann", desk.layer.clock.now_us), durable=True, client=None)
    desk.postman.turn()
    assert desk.rows("SELECT person_id, ladder_us FROM question") == [{"person_id": None, "ladder_us": None}]
    knows(desk.layer, "ben")
    desk.postman.turn()
    assert [(to, what) for _, to, what in desk.told()] == [("ann", "Acme"), ("ben", "Acme")]


async def test_a_message_that_cannot_be_written_holds_up_no_other(desk: Desk):
    """It is counted as one that failed, with the reason; the next one goes out."""
    knows(desk.layer, "ann")
    await desk.layer.run(ask(), client="acme")
    await desk.layer.run(ask(), client="globex")
    databases.execute(desk.folder, "UPDATE question SET options = 'no JSON' WHERE client_id = 'acme'")
    desk.postman.turn()
    assert [what for _, _, what in desk.told()] == ["Globex"]
    [row] = desk.rows("SELECT reason FROM delivery WHERE state = 'pending'")
    assert "could not be written (JSONDecodeError" in row["reason"]


async def test_a_message_is_text_and_says_how_to_answer(desk: Desk):
    """One line of subject, the question as everywhere, the command; what others wrote stays text."""
    knows(desk.layer, "ann")
    await desk.layer.run(ask(), client="acme")
    desk.postman.turn()
    [(_, _, subject, body)] = desk.sender.sent
    [question] = await desk.layer.questions()
    assert subject == "Acme: Which amount?"
    assert "[here](https://evil.example) <b>now</b>" in body
    assert f"stepseven answer {question.id} CHOICE" in body


async def test_many_are_asked_while_nobody_is_there(desk: Desk):
    """Without persons nothing is written but the question."""
    await desk.layer.run(ask(), client="acme")
    assert desk.rows("SELECT * FROM delivery") == []
    assert desk.rows("SELECT ladder_us FROM question") == [{"ladder_us": None}]
