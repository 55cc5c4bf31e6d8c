"""The agent loop: killed at every place, edited in between; the model's journal says what was paid, the desk what was done."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from examples.agent_loop import workflow as agent
from examples.agent_loop.desk import Desk
from examples.agent_loop.model import Model, calls, solve
from stepseven import Layer, Outcome, testing
from tests.crash.killer import End, Forks, Kill, Life
from tests.crash.outside import Outside
from tests.integrations import agent_lives
from tests.integrations.agent_lives import EDITED, RUN_ID, WORKFLOW

ROOT = Path(__file__).resolve().parents[2]
TURNS = 4
END = "Order A-7 is paid back, and the customer knows."
ONCE = {"refunds": 1, "mails": 1}


@pytest.fixture
def anyio_backend() -> str:
    """The runtime is asyncio's."""
    return "asyncio"


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the machine has no part in it."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


class World:
    """The model and the desk, a store, and lives that may end anywhere."""

    def __init__(self, forks: Forks, folder: Path, model: Model, desk: Desk) -> None:
        self.forks, self.folder, self.model, self.desk = forks, folder, model, desk
        self.state = folder
        self._n = 0

    def fresh(self) -> None:
        """Another store; nothing paid, nothing done."""
        shutil.rmtree(self.folder / f"state{self._n}", ignore_errors=True)
        self._n += 1
        self.state = self.folder / f"state{self._n}"
        self.state.mkdir()
        self.model.forget()
        self.desk.forget()

    def live(self, how: str = "plain", kill: Kill | None = None) -> End:
        """One life of a worker."""
        url = f"{self.model.url}|{self.desk.url}"
        end = self.forks.live(Life(state=str(self.state), url=url, kill=kill, how=how, main=f"{agent_lives.__name__}:main"))
        self.settle()
        return end

    def settle(self) -> None:
        """Whatever a dead process had sent was dealt with: a new connection is accepted after those before it."""
        for server in (self.model, self.desk):
            with urlopen(f"{server.url}/{'journal' if server is self.model else 'mails'}", timeout=10) as answer:
                answer.read()
            server.quiet()

    def told(self, end: End) -> dict[str, Any]:
        """What a life that was not killed said."""
        assert end.code == 0, end.err
        return dict(json.loads(end.out.strip().splitlines()[-1]))

    def done(self, name: str) -> int:
        """How many records of a step there are."""
        if not (self.state / "s.db").exists():
            return 0
        connection = sqlite3.connect(self.state / "s.db")
        try:
            there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'step'").fetchone()
            asked = "SELECT count(*) FROM step WHERE name = ? AND state IN ('done', 'failed')"
            return int(connection.execute(asked, (name,)).fetchone()[0]) if there else 0
        finally:
            connection.close()

    def answer(self, value: str) -> None:
        """A person answers whatever is open."""

        async def all_of_them() -> None:
            async with Layer(f"sqlite:///{self.state}/s.db") as layer:
                for question in await layer.questions():
                    await layer.answer(question.id, value, by="ann")

        asyncio.run(all_of_them())


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Model, Desk]]:
    """The judges."""
    with Model() as model, Desk() as desk:
        yield model, desk


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, servers: tuple[Model, Desk]) -> Iterator[World]:
    """Everything, with a server that forks workers."""
    with Outside() as outside, Forks(outside.url) as forks:
        yield World(forks, tmp_path_factory.mktemp("agent"), *servers)


# -- killed anywhere --------------------------------------------------------------------------------------------------

#: kind of place, side, and at least so many of them in one run
PLACES = [("commit", "before", 20), ("commit", "after", 20), ("send", "before", 14), ("send", "after", 14),
          ("answer", "before", 9), ("answer", "after", 9)]  # fmt: skip


def killed(world: World, kill: Kill, how: str = "plain") -> bool:
    """One life that ends at *kill*, and one to the end, *how* it is by then. ``False``: the run ended before that place."""
    world.fresh()
    first = world.live(kill=kill)
    if not first.killed:
        assert world.told(first)["value"] == END
        return False
    paid, asked = len(world.model.journal), world.desk.asked.copy()
    turns, lookups, cases = (world.done(name) for name in ("model_turn", "lookup_order", "read_case"))
    assert paid - turns in (0, 1), f"{paid} answers were paid and {turns} are on record"
    told = world.told(world.live(how))
    assert told == {"status": "done", "value": END, "questions": []}
    assert len(world.model.journal) - paid == TURNS - turns, "a turn that was on record was asked again"
    assert len(world.model.conversations()) == TURNS
    assert world.desk.counts("case-17") == ONCE
    assert (world.desk.asked["POST /refunds"], world.desk.asked["POST /mails"]) == (1, 1), "something was sent again"
    for path, known in (("GET /orders/A-7", lookups), ("GET /cases/case-17", cases)):
        assert world.desk.asked[path] - asked[path] == 1 - known, f"{path} was read again, or never"
    return True


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("where, side, at_least", PLACES)
def test_a_kill_at_any_place_pays_no_finished_turn_twice_and_does_nothing_twice(
    world: World, where: str, side: str, at_least: int
):
    """SIGKILL before and after every commit, every request and every answer: only the answer in flight is paid again."""
    at = 1
    while killed(world, Kill(where, at, side)):
        at += 1
    assert at > at_least


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_log_line_a_swap_and_a_new_step_in_between_change_nothing(world: World, tmp_path: Path):
    """The code is edited between crash and resume, but the model is told the same: no finished turn is paid again."""
    source = WORKFLOW.read_text("utf-8")
    told, orders = "    told = await read_case(case)\n", "    orders: dict[str, Order] = {}"
    assert source.count(told) == source.count(orders) == 1
    swapped = source.replace(told, "").replace(orders, f'    print("starts")\n{orders}')
    swapped = swapped.replace("    messages: list", f"{told}    messages: list")
    said = "        messages.append(_said(turn))"
    added = swapped.replace(said, f"        await noticed(len(turn.calls))\n{said}")
    edited = tmp_path / "edited.py"
    edited.write_text(f"{added}\n\n@step\nasync def noticed(calls: int) -> int:\n    print(calls)\n    return calls\n", "utf-8")
    at = 1
    while killed(world, Kill("answer", at, "after"), str(edited)):
        at += 1
    assert at > 8


# -- the prompt is edited ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_after_an_edited_prompt_nothing_comes_from_the_old_conversation(world: World):
    """Every turn is asked anew; what was done stays done: the same refund is its receipt, a mail in other words is a question."""
    at = asked = 1
    while True:
        world.fresh()
        if not world.live(kill=Kill("answer", at, "after")).killed:
            break
        old = {paid.digest for paid in world.model.journal}
        before = world.desk.counts("case-17")
        world.model.forget()
        world.desk.asked.clear()
        told = world.told(world.live("edited"))
        if told["questions"]:  # the mail was sent in other words
            assert before["mails"] == 1
            assert told["questions"] == ["conflict"]
            asked += 1
            world.answer("same")
            told = world.told(world.live("edited"))
        assert told["value"] == END
        journal = world.model.journal
        assert [paid.turn for paid in journal] == [1, 2, 3, 4]
        assert all(paid.system == EDITED for paid in journal)
        assert not any(f"call_{digest}" in paid.text for paid in journal for digest in old)
        assert world.desk.counts("case-17") == ONCE
        assert world.desk.twice() == 0
        if old:  # what the model had read in the old conversation was read again
            assert world.desk.asked["GET /orders/A-7"] == 1
            assert world.desk.asked["GET /cases/case-17"] == 0
        at += 1
    assert at > 8
    assert asked > 1


# -- in one process ---------------------------------------------------------------------------------------------------


@pytest.fixture
def here(servers: tuple[Model, Desk], monkeypatch: pytest.MonkeyPatch) -> tuple[Model, Desk]:
    """The same servers, for a run in this process."""
    model, desk = servers
    model.forget()
    desk.forget()
    monkeypatch.setenv("OPENAI_BASE_URL", f"{model.url}/v1")
    monkeypatch.setenv("DESK_URL", desk.url)
    return servers


async def run_here(layer: Layer) -> Outcome[str]:
    """The example's run."""
    return await layer.run(agent.support_case(case="case-17"), client="acme", run_id=RUN_ID)


async def test_a_cut_answer_is_a_failure_and_the_second_try_is_told(here: tuple[Model, Desk]):
    """An answer that broke off is paid, not recorded, and no tool is called with it; the next try is told why."""
    model, desk = here
    model.cut_next = 1
    async with testing.layer() as layer:
        outcome = await run_here(layer)
        assert outcome.result() == END
        spent = outcome.spend.usd
    first, second = model.journal[:2]
    assert (first.cut, second.cut) == (True, False)
    assert "Tried before, do not repeat" in second.text
    assert "the answer ended early (length)" in second.text
    assert "Tried before" not in model.journal[2].text
    assert (desk.counts("case-17"), desk.asked["GET /orders/A-7"]) == (ONCE, 1)
    tokens = sum(len(paid.text) // 4 + 20 for paid in model.journal)
    assert spent == pytest.approx(tokens * agent.USD_PER_TOKEN, abs=1e-5)


@pytest.mark.parametrize("arguments", ['{"order_id": "A-', "[]", ""])
async def test_arguments_that_are_no_object_are_an_unusable_result(
    monkeypatch: pytest.MonkeyPatch, here: tuple[Model, Desk], arguments: str
):
    """A turn whose tool call is no JSON object is asked for again, whatever its stop reason says; no tool sees it."""
    _, desk = here

    def say(messages: list[dict[str, Any]], digest: str) -> dict[str, Any]:
        said = solve(messages, digest)
        if len(model.journal) == 0:
            said["tool_calls"][0]["function"]["arguments"] = arguments
        return said

    with Model(say) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{model.url}/v1")
        async with testing.layer() as layer:
            assert (await run_here(layer)).result() == END
        assert "the arguments of lookup_order are no JSON object" in model.journal[1].text
        assert len(model.journal) == TURNS + 1
    assert desk.asked["GET /orders/A-7"] == 1


async def test_two_cut_answers_are_a_persons_question(here: tuple[Model, Desk]):
    """When the tries are used up a person is asked, and nothing was done outside."""
    model, desk = here
    model.cut_next = 2
    async with testing.layer() as layer:
        outcome = await run_here(layer)
        assert [question.kind for question in outcome.questions] == ["failure"]
        assert "unusable result" in outcome.questions[0].text.lower()
        assert desk.done == []
        await layer.answer(outcome.questions[0].id, "again", by="ann")
        assert (await run_here(layer)).result() == END
    assert desk.counts("case-17") == ONCE


async def test_the_model_sees_a_tools_failure_only_when_every_way_was_tried(here: tuple[Model, Desk]):
    """Both ways to the carrier are tried before the model is told, and nobody is asked."""
    model, desk = here
    async with testing.layer() as layer:
        assert (await run_here(layer)).result() == END
    assert (desk.asked["GET /parcels/A-7"], desk.asked["GET /tracking/A-7"]) == (1, 1)
    results = [m["content"] for m in json.loads(model.journal[1].text) if m["role"] == "tool"]
    assert results[1].startswith("parcel_status failed for good: ")
    assert len(model.journal) == TURNS


@pytest.mark.parametrize("slow", ["/orders/A-7", "/tracking/A-7"])
async def test_tools_of_one_turn_may_end_in_any_order(here: tuple[Model, Desk], slow: str):
    """Two tools of a turn run at the same time; whichever is late, the model is told the same."""
    model, desk = here
    held = desk.hold(slow)
    async with testing.layer() as layer:
        running = asyncio.ensure_future(run_here(layer))
        await asyncio.to_thread(held.came.wait, 20)
        while not desk.asked["GET /orders/A-7"]:
            await asyncio.sleep(0.01)
        assert len(model.journal) == 1
        held.go.set()
        assert (await running).result() == END
    text = json.loads(model.journal[1].text)
    assert [m["content"][:8] for m in text if m["role"] == "tool"] == ['{"id": "', "parcel_s"]


@pytest.mark.parametrize(
    "tool, given, told",
    [
        ("refund", {"order_id": "A-8", "cents": 10}, "no order of this customer that was looked up"),
        ("refund", {"order_id": "A-7", "cents": 2000}, "not between 1 and the 1999"),
        ("refund", {"order_id": "A-7", "cents": True}, "not between 1 and the 1999"),
        ("refund", {"order_id": "A-7", "cents": "10"}, "no tool refund with order_id, cents"),
        ("send_email", {"to": "eve@example.com", "text": "hi"}, "eve@example.com is not who wrote"),
        ("format_disk", {}, "no tool format_disk with no arguments"),
        ("lookup_order", {"order_id": "B-1"}, "lookup_order failed for good: "),
    ],
)
async def test_what_a_model_may_do_is_decided_by_the_code(
    monkeypatch: pytest.MonkeyPatch, here: tuple[Model, Desk], tool: str, given: dict[str, Any], told: str
):
    """A model that asks for what it may not do, or for nonsense, is told so; nothing happens outside."""
    _, desk = here

    def say(messages: list[dict[str, Any]], digest: str) -> dict[str, Any]:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 2:
            return {"role": "assistant", "content": messages[-1]["content"], "tool_calls": None}
        return calls(digest, ("lookup_order", {"order_id": "A-7"}) if turn == 0 else (tool, given))

    with Model(say) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{model.url}/v1")
        async with testing.layer() as layer:
            assert told in (await run_here(layer)).result()
    assert desk.done == []


async def test_what_is_kept_of_a_turn_is_no_transcript(tmp_path: Path, here: tuple[Model, Desk]):
    """A record holds the model's own words: what it was told before is in no later record."""
    async with Layer(f"sqlite:///{tmp_path}/s.db") as layer:
        assert (await run_here(layer)).result() == END
    connection = sqlite3.connect(tmp_path / "s.db")
    kept = [row[0] for row in connection.execute("SELECT result FROM step WHERE name = 'model_turn' ORDER BY id")]
    connection.close()
    assert len(kept) == TURNS
    assert not any("It never came" in text or agent.PROMPT in text for text in kept)


# -- as a user runs it --------------------------------------------------------------------------------------------------


def environment(**more: str) -> dict[str, str]:
    """For a child: this checkout, no settings of the machine's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPSEVEN_", "SUPPORT_", "OPENAI_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))), **more}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_story_tells_what_the_outside_counted(tmp_path: Path):
    """``python -m examples.agent_loop``: three real kills, an edited prompt, and the counts of the other sides at the end."""
    line = [sys.executable, "-m", "examples.agent_loop"]
    done = subprocess.run(line, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SIGKILL") == 4
    assert "4 turns, 6 answers paid: 2 twice, because they were in flight at a kill; no finished turn twice" in done.stdout
    assert done.stdout.count("the desk's count: 1 refund, 1 mail, 0 twice") == 2
    assert list(tmp_path.iterdir()) == []
