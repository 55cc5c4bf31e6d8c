"""The postman on the wire: mail, web hooks, servers that hang, two at work, one that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from stepseven import Run, testing, workflow
from stepseven.people.postman import Postman
from stepseven.people.sending import AppriseSender, without
from stepseven.store.base import Tx
from stepseven.testing import Clock, TestLayer
from tests.people.outside import Memory, hook, knows, mail, silent
from tests.servers import databases

ROOT = Path(__file__).resolve().parents[2]


@workflow(name="posted")
async def posted(run: Run) -> str:
    """Asks."""
    return await run.ask("May it go out?\nSubject: other\r\n.\r\n<b>[x](y)</b> – über", options=["yes", "no"])


@pytest.fixture
def layer(tmp_path: Path) -> Iterator[TestLayer]:
    """A layer whose clock is moved by hand."""
    made = testing.layer(databases.url(tmp_path))
    yield made
    made.close()


@pytest.fixture
def sender() -> Iterator[AppriseSender]:
    """The real one, with little patience."""
    made = AppriseSender(timeout_s=8.0)
    yield made
    made.close()


async def test_a_mail_and_a_web_hook_arrive_as_text(layer: TestLayer, sender: AppriseSender):
    """Through real servers: plain text, the subject one line, whatever a model wrote into the question."""
    postman = Postman(layer.store, layer.services.edge, sender=sender)
    with mail() as (channel, mails), hook() as web:
        knows(layer, "ann", channels=(channel,))
        await layer.run(posted(), client="acme")
        postman.turn()
        knows(layer, "ann", channels=(web.url,))
        await layer.run(posted(), client="globex")
        postman.turn()
        [text] = mails
        [told] = web.got
    assert text.partition("\r\n\r\n")[0].lower().count("subject:") == 1
    assert "text/plain" in text
    assert "text/html" not in text
    assert told["title"] == "Globex: May it go out?"
    assert "<b>[x](y)</b> – über" in told["message"]


async def test_a_server_that_accepts_and_never_answers_holds_up_nothing(layer: TestLayer):
    """The try ends, the process that hung is gone, and the next channel is used."""
    quick = AppriseSender(timeout_s=3.0)
    with silent() as nowhere, hook() as web:
        assert quick.send(nowhere, "subject", "body") == "no answer within 3 s"
        assert quick._child is None
        knows(layer, "ann", channels=(web.url,))
        await layer.run(posted(), client="acme")
        Postman(layer.store, layer.services.edge, sender=quick).turn()
        assert len(web.got) == 1
    quick.close()


def test_a_refusal_says_why_without_the_credential(sender: AppriseSender):
    """What the other side says is kept; nothing of the URL is."""
    with hook() as web:
        web.answers = 500
        url = web.url.replace("json://", "json://user:hunter2secret@")
        reason = sender.send(url, "s", "b")
    assert reason is not None
    assert "500" in reason
    assert "hunter2secret" not in reason
    assert (
        without("failed at https://h.example/T0AB/xyzzy12345", "slack://T0AB/xyzzy12345")
        == "failed at https://h.example/T0AB/•••"
    )
    assert sender.send("nonsense://", "s", "b") == "this is no URL that apprise knows"


async def test_two_postmen_send_each_message_once(tmp_path: Path):
    """Forty messages, two threads that look at the same time: forty arrive, none twice."""
    clock = Clock()
    first = testing.layer(databases.url(tmp_path), clock=clock)
    second = testing.layer(databases.url(tmp_path), clock=clock, seed=9)
    knows(first, "ann")
    for n in range(40):
        await first.run(posted(), client=f"client{n}")
    memories = [Memory(lambda: clock.now_us), Memory(lambda: clock.now_us)]
    postmen = [
        Postman(layer.store, layer.services.edge, sender=memory) for layer, memory in zip((first, second), memories, strict=True)
    ]
    gate = threading.Barrier(2)

    def rounds(postman: Postman) -> None:
        gate.wait()
        for _ in range(3):
            postman.turn()

    threads = [threading.Thread(target=rounds, args=(postman,)) for postman in postmen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    told = Counter(body for memory in memories for *_, body in memory.sent)
    assert len(told) == 40
    assert set(told.values()) == {1}
    first.close()
    second.close()


_KILLED = """
    import os, signal
    from stepseven import testing
    from stepseven.people.postman import Postman
    from stepseven.people.sending import AppriseSender

    class Dies(AppriseSender):
        def send(self, *message):
            assert super().send(*message) is None
            os.kill(os.getpid(), signal.SIGKILL)

    layer = testing.layer({url!r})
    Postman(layer.store, layer.services.edge, sender=Dies()).turn()
"""


async def test_who_is_killed_between_sending_and_recording_lets_it_be_sent_again(layer: TestLayer, tmp_path: Path):
    """Never lost: another postman sends it once more after ten minutes, not before, and then it is done."""
    with hook() as web:
        knows(layer, "ann", channels=(web.url,))
        await layer.run(posted(), client="acme")
        program = textwrap.dedent(_KILLED.format(url=databases.url(tmp_path)))
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, cwd=ROOT, env=os.environ | {"PYTHONPATH": "src:."}
        )  # fmt: skip
        assert await asyncio.wait_for(child.wait(), 50) == -signal.SIGKILL
        assert len(web.got) == 1
        memory = Memory(lambda: layer.clock.now_us)
        postman = Postman(layer.store, layer.services.edge, sender=memory)
        for minutes, sent in ((9, 0), (2, 1), (60, 1)):
            layer.clock.advance(timedelta(minutes=minutes))
            postman.turn()
            assert len(memory.sent) == sent
    assert databases.rows(tmp_path, "SELECT state, tries FROM delivery") == [{"state": "delivered", "tries": 2}]


async def test_three_hundred_questions_at_once_are_one_message(layer: TestLayer, tmp_path: Path):
    """An incident of three hundred: one message, and the postman is done with all of them in two rounds of work."""
    knows(layer, "ann")
    await layer.run(posted(), client="acme")
    databases.execute(tmp_path, "UPDATE question SET incident_id = 'i_1'")
    [row] = databases.rows(tmp_path, "SELECT * FROM question")
    [message] = databases.rows(tmp_path, "SELECT * FROM delivery")

    def unit(tx: Tx) -> None:
        for n in range(299):
            tx.run(_insert("question", row), row | {"id": f"q_{n}", "n": n + 2})
            also = {"id": f"d_{n}", "question_id": f"q_{n}", "created_us": message["created_us"] + 1}
            tx.run(_insert("delivery", message), message | also)

    layer.store.write_now(unit, durable=True, client=None)
    memory = Memory(lambda: layer.clock.now_us)
    postman = Postman(layer.store, layer.services.edge, sender=memory)
    for _ in range(8):
        postman.turn()
    assert len(memory.sent) == 1
    assert "299 more questions have the same cause." in memory.sent[0][3]
    assert databases.rows(tmp_path, "SELECT count(*) AS n FROM delivery WHERE state = 'delivered'") == [{"n": 300}]


def _insert(table: str, row: dict) -> str:
    return databases.plain(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(f':{name}' for name in row)})")


async def test_the_thread_tells_and_stops(tmp_path: Path):
    """Started with the worker: a question is told within a look; stopping ends thread and child."""
    layer = testing.layer(databases.url(tmp_path))
    knows(layer, "ann")
    await layer.run(posted(), client="acme")
    memory = Memory(lambda: layer.clock.now_us)
    postman = Postman(layer.store, layer.services.edge, sender=memory)
    postman.start()
    end = time.monotonic() + 20
    while not memory.sent and time.monotonic() < end:
        await asyncio.sleep(0.01)
    postman.stop()
    assert len(memory.sent) == 1
    assert postman._thread is not None
    assert not postman._thread.is_alive()
    layer.close()


async def test_without_a_way_to_send_nobody_is_handed_over_to(layer: TestLayer, caplog: pytest.LogCaptureFixture):
    """Nothing is sent, no ladder is climbed past somebody who knows of nothing, and it is said once."""
    knows(layer, "ann", rank=1)
    knows(layer, "ben", rank=2)
    await layer.run(posted(), client="acme")

    class Absent(Memory):
        def missing(self) -> str | None:
            return "apprise is not installed"

    postman = Postman(layer.store, layer.services.edge, sender=Absent(lambda: layer.clock.now_us))
    for _ in range(20):
        layer.clock.advance(timedelta(hours=1))
        postman.turn()
    assert [record.getMessage() for record in caplog.records] == ["nobody is told anything: apprise is not installed"]
    [question] = await layer.questions()
    row = layer.store.read_now(lambda tx: tx.one(tx.sql.ladder, {"id": question.id}))
    assert row is not None
    assert (row["person_id"], row["rung"]) == ("ann", 0)
