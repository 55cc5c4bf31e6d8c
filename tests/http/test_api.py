"""The HTTP API: what each path does, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stepseven import Fixable, Run, step, workflow
from stepseven.server.documents import view
from tests.http.desk import Api, api
from tests.servers.databases import execute, rows

pytestmark = [pytest.mark.anyio]


@step
async def http_fetch(n: int) -> int:
    """A read."""
    return n + 1


@step(resource="http-billing")
async def http_billing() -> int:
    """Refused."""
    raise Fixable("403 Forbidden")


@workflow
async def http_refused(run: Run) -> int:
    """Asks what to do about a failure."""
    return await http_billing()


@step(effect="irreversible", key="to")
async def http_send(to: str) -> str:
    """What is proposed first."""
    return f"sent to {to}"


@workflow
async def http_plain(run: Run, quarter: str, n: int = 1) -> str:
    """Asks nobody."""
    return f"{quarter}{await http_fetch(n)}"


@workflow
async def http_asking(run: Run) -> str:
    """Asks once."""
    return str(await run.ask("May I?", options=["yes", "no"]))


@workflow
async def http_sending(run: Run) -> str:
    """Proposes once."""
    return await http_send("ben@acme.example")


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Api]:
    """The application over a store of the test's own."""
    async with api(tmp_path) as made:
        yield made


EXTERNAL = {"workflow": "http_elsewhere", "client_id": "acme", "inputs": {"quarter": "Q3"}, "steps": ["fetch", "push"]}


async def test_a_run_is_started_once_whoever_asks_again(desk: Api, tmp_path: Path) -> None:
    """201 the first time, 200 with the same run after that, 409 with other inputs; the run is on the disk when that is told."""
    bob = await desk.having("report")
    first = await bob.post("/v1/runs", json={**EXTERNAL, "run_id": "r1"})
    again = await bob.post("/v1/runs", json={**EXTERNAL, "run_id": "r1"})
    other = await bob.post("/v1/runs", json={**EXTERNAL, "run_id": "r1", "inputs": {}})
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert first.headers["location"] == "/v1/runs/r1"
    assert first.json()["run_id"] == again.json()["run_id"] == "r1"
    assert other.json()["code"] == "conflict"
    assert rows(tmp_path, "SELECT id, external FROM run") == [{"id": "r1", "external": 1}]


async def test_a_workflow_that_workers_have_is_for_them_and_others_are_executed_elsewhere(desk: Api, tmp_path: Path) -> None:
    """By its name: loaded here, or registered by any worker ever; `external` forces it."""
    ops = await desk.having("operate", "read")
    mine = await ops.post("/v1/runs", json={"workflow": "http_plain", "client_id": "acme", "inputs": {"quarter": "Q3"}})
    assert mine.status_code == 201, mine.text
    desk.layer.services.worker.offer({"http_known_once": "d1"})
    desk.layer.services.worker.offer({})
    known = await ops.post("/v1/runs", json={"workflow": "http_known_once", "client_id": "acme"})
    forced = await ops.post("/v1/runs", json={"workflow": "http_known_once", "client_id": "acme", "external": True})
    strange = await ops.post("/v1/runs", json={"workflow": "http_nobody_has", "client_id": "acme"})
    assert {r.status_code for r in (known, forced, strange)} == {201}
    outside = {row["workflow"] + str(row["external"]) for row in rows(tmp_path, "SELECT workflow, external FROM run")}
    assert outside == {"http_plain0", "http_known_once0", "http_known_once1", "http_nobody_has1"}


@pytest.mark.parametrize(
    "body,told",
    [
        ({"workflow": "http_plain", "client_id": "acme"}, "http_plain needs quarter"),
        ({"workflow": "http_plain", "client_id": "acme", "inputs": {"quarter": "Q3", "x": 1}}, "has no input 'x'"),
        ({"workflow": "http_plain", "client_id": "acme", "inputs": {"quarter": 3}}, "quarter"),
        ({"workflow": "http_plain", "client_id": "acme", "inputs": {"quarter": "Q3"}, "steps": ["a"]}, "leave them out"),
        ({"workflow": "http_plain", "client_id": "a/b", "inputs": {"quarter": "Q3"}}, "without '/'"),
        ({"workflow": "http_plain", "client_id": "acme", "run_id": "", "inputs": {"quarter": "Q3"}}, "run_id"),
        ({"workflow": "http_plain", "client_id": "acme", "inputs": {"quarter": "sk-ant-" + "a1" * 20}}, "looks like"),
        ({"workflow": "http_plain", "client_id": "acme", "input": {"quarter": "Q3"}}, "body.input"),
        ({"client_id": "acme"}, "body.workflow"),
        ([], "body"),
    ],
)  # fmt: skip
async def test_what_does_not_fit_is_422_and_nothing_is_admitted(desk: Api, tmp_path: Path, body: object, told: str) -> None:
    """One sentence that names the field; the value itself is not repeated where it may be a credential."""
    refused = await (await desk.having("operate")).post("/v1/runs", json=body)
    assert refused.status_code == 422, refused.text
    assert told in refused.json()["detail"]
    assert refused.headers["content-type"] == "application/problem+json"
    assert "a1a1a1" not in refused.text
    assert rows(tmp_path, "SELECT id FROM run") == []


async def test_lists_are_pages(desk: Api) -> None:
    """`next` is the `cursor` of the next page; filters hold over all of them; a cursor that is none is 422."""
    ops = await desk.having("operate", "read")
    for n in range(5):
        assert (await ops.post("/v1/runs", json={**EXTERNAL, "run_id": f"r{n}", "client_id": f"c{n % 2}"})).status_code == 201
    seen, cursor = [], None
    while True:
        params = {"client": "c0", "limit": 2, **({"cursor": cursor} if cursor else {})}
        page = (await ops.get("/v1/runs", params=params)).json()
        seen += [run["run_id"] for run in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == ["r4", "r2", "r0"]
    assert (await ops.get("/v1/runs", params={"status": "running"})).json()["items"]
    for params in ({"cursor": "x"}, {"limit": 0}, {"status": "asleep"}):
        assert (await ops.get("/v1/runs", params=params)).status_code == 422
    assert (await ops.get("/v1/questions", params={"cursor": "nope"})).status_code == 422


async def test_a_run_is_told_as_show_tells_it(desk: Api, tmp_path: Path) -> None:
    """`GET /v1/runs/{run}` is `show --json`; checkpoint, plan and why are the layer's."""
    outcome = await desk.layer.run(http_asking(), client="acme", run_id="r1")
    assert outcome.status == "waiting"
    ann = await desk.having("read")
    run = (await ann.get("/v1/runs/r1")).json()
    assert run == json.loads(json.dumps((await view(desk.layer, "r1")).document(), default=str))
    assert run["questions"][0]["text"] == "May I?"
    assert (await ann.get("/v1/runs/r1/checkpoint")).json() == await desk.layer.checkpoint("r1")
    assert "May I?" in (await ann.get("/v1/runs/r1/why")).json()["why"]
    assert (await ann.get("/v1/runs/r1/plan")).json()["run_id"] == "r1"


async def test_a_resume_is_put_on_record_and_a_worker_obeys_it(desk: Api, tmp_path: Path) -> None:
    """The server executes nothing: what is chosen stands in a recovery's row, the run is ready, a worker goes on from there."""
    await desk.layer.run(http_asking(), client="acme", run_id="r1")
    ops = await desk.having("operate", name="olga")
    resumed = await ops.post("/v1/runs/r1/resume", json={"rerun": []})
    assert (resumed.status_code, resumed.json()["status"]) == (200, "queued")
    assert rows(tmp_path, "SELECT by, ended_us FROM recovery") == [{"by": "olga", "ended_us": None}]
    assert rows(tmp_path, "SELECT owner FROM run") == [{"owner": None}]
    wrong = await ops.post("/v1/runs/r1/resume", json={"rerun": ["no_such_step"]})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid")
    question = (await desk.layer.questions())[0]
    await desk.layer.answer(question.id, "yes", by="ann")
    async with desk.layer.worker("tests.http.test_api"):
        async with asyncio.timeout(30):
            while (run := (await desk.layer.runs())[0]).status != "done":
                await asyncio.sleep(0.02)
    assert run.run_id == "r1"
    assert (await ops.post("/v1/runs/r1/resume")).json()["status"] == "done"
    assert (await ops.post("/v1/runs/r1/resume", json={"drift": "keep"})).status_code == 422
    assert (await ops.post("/v1/runs/r1/cancel")).status_code == 409


async def test_a_run_is_cancelled(desk: Api) -> None:
    """At once when nobody executes it; the reason says who; again it is no fault."""
    ops = await desk.having("operate", name="olga")
    await ops.post("/v1/runs", json={**EXTERNAL, "run_id": "r1"})
    for _ in range(2):
        done = await ops.post("/v1/runs/r1/cancel", json={"reason": "not needed"})
        assert (done.status_code, done.json()["status"]) == (200, "cancelled")
    assert "not needed (by olga)" in done.json()["why"]


async def test_two_answers_at_once_are_one_answer(desk: Api) -> None:
    """One 200, one 409 that says who answered what and when; who is the token's name."""
    await desk.layer.run(http_asking(), client="acme", run_id="r1")
    ann, ben = await desk.having("answer", name="ann"), await desk.having("answer", name="ben")
    question = (await ann.get("/v1/questions")).json()["items"][0]
    path = f"/v1/questions/{question['id']}/answer"
    assert (await ann.post(path, json={"value": "perhaps"})).status_code == 422
    assert (await ann.post(path, json={"note": "no value"})).status_code == 422
    both = await asyncio.gather(ann.post(path, json={"value": "yes", "note": "fine"}), ben.post(path, json={"value": "no"}))
    assert sorted(each.status_code for each in both) == [200, 409]
    good = next(each for each in both if each.status_code == 200).json()
    late = next(each for each in both if each.status_code == 409).json()
    assert (late["code"], late["by"], late["answer"]) == ("answered", good["answered_by"], good["answer"])
    assert (await ann.get(f"/v1/questions/{question['id']}")).json()["answer"] == good["answer"]


async def test_what_takes_no_answer_any_more_is_gone(desk: Api, tmp_path: Path) -> None:
    """410 after the deadline, and when the run needs it no more."""
    await desk.layer.run(http_asking(), client="acme", run_id="r1")
    ann = await desk.having("answer")
    question = (await ann.get("/v1/questions")).json()["items"][0]["id"]
    execute(tmp_path, "UPDATE question SET deadline_us = 1")
    late = await ann.post(f"/v1/questions/{question}/answer", json={"value": "yes"})
    assert (late.status_code, late.json()["code"]) == (410, "expired")
    await desk.layer.cancel("r1", reason="over")
    gone = await ann.post(f"/v1/questions/{question}/answer", json={"value": "yes"})
    assert (gone.status_code, gone.json()["code"]) == (410, "withdrawn")
    unknown = await ann.post("/v1/questions/q_none/answer", json={"value": "yes"})
    assert (unknown.status_code, unknown.json()["open"]) == (404, [])


async def test_who_executes_a_run_does_not_approve_in_it(desk: Api, tmp_path: Path) -> None:
    """A token that may report cannot answer the approval of a run that it started; another, or a person's, can."""
    agent = await desk.having("report", "answer", "read", name="agent")
    started = await agent.post("/v1/runs", json={"workflow": "http_sending", "client_id": "acme", "run_id": "r1"})
    assert started.status_code == 201
    await desk.layer.resume("r1")
    question = (await agent.get("/v1/questions")).json()["items"][0]
    assert question["kind"] == "approve"
    own = await agent.post(f"/v1/questions/{question['id']}/answer", json={"value": "approve"})
    assert (own.status_code, own.json()["code"]) == (403, "own_run")
    other = await desk.having("answer")
    assert (await other.post(f"/v1/questions/{question['id']}/answer", json={"value": "approve"})).is_success


async def test_a_run_that_is_executed_elsewhere_asks_a_person(desk: Api) -> None:
    """Asked once, however often that is reported; about something else it is asked anew; an ended run asks nothing."""
    agent = await desk.having("report", "answer", "read", "operate")
    await agent.post("/v1/runs", json={**EXTERNAL, "run_id": "r1"})
    path = "/v1/runs/r1/questions"
    body = {"text": "Send it?", "options": ["yes", {"id": "no", "label": "No, wait"}], "about": [1]}
    first, again = await agent.post(path, json=body), await agent.post(path, json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    run = (await agent.get("/v1/runs/r1")).json()
    assert (run["status"], run["waiting_for"]) == ("waiting", "person")
    assert (await agent.post(path, json={**body, "about": [2]})).status_code == 201
    for more in ({"text": " "}, {"options": ["a", "a"]}, {"callback": "http://x"}, {"options": [{}]}):
        wrong = {"text": "x", **more}
        assert (await agent.post(path, json=wrong)).status_code == 422
    answered = await agent.post(f"/v1/questions/{first.json()['id']}/answer", json={"value": "no"})
    assert answered.json()["answered_by"] == "ann"
    await agent.post("/v1/runs/r1/cancel")
    assert (await agent.post(path, json={"text": "Another?"})).status_code == 409
    await desk.layer.run(http_asking(), client="acme", run_id="python")
    assert (await agent.post("/v1/runs/python/questions", json=body)).status_code == 409


async def test_facts_are_said_and_read(desk: Api, tmp_path: Path) -> None:
    """All of them or none; the source is the token's name unless it is said; how long they hold is said in the query."""
    ops = await desk.having("operate", "read", name="crm-sync")
    said = await ops.patch("/v1/clients/acme/facts", json={"vat": "DE1", "tier": {"name": "gold"}}, params={"valid": "90d"})
    assert said.status_code == 200, said.text
    facts = (await ops.get("/v1/clients/acme/facts")).json()["items"]
    assert [(f["key"], f["value"], f["source"], f["version"]) for f in facts] == [
        ("tier", {"name": "gold"}, "crm-sync", 1), ("vat", "DE1", "crm-sync", 1)
    ]  # fmt: skip
    for wrong in ({"vat": "DE2", "": 1}, {}, {"vat": "sk-ant-" + "a1" * 20}):
        assert (await ops.patch("/v1/clients/acme/facts", json=wrong)).status_code == 422
    assert (await ops.patch("/v1/clients/acme/facts", json={"a": 1}, params={"valid": "soon"})).status_code == 422
    assert len(rows(tmp_path, "SELECT * FROM fact")) == 2
    assert (await ops.get("/v1/clients/nobody/facts")).status_code == 404


async def test_whether_it_is_there_and_whether_it_can_work(desk: Api) -> None:
    """`healthz` as long as the process answers; `readyz` only with a store; neither asks who it is."""
    nobody = desk.caller()
    assert (await nobody.get("/healthz")).status_code == (await nobody.get("/readyz")).status_code == 200
    desk.layer.store.close()
    broken = await nobody.get("/readyz")
    assert (broken.status_code, broken.json()["code"]) == (503, "unavailable")
    assert (await nobody.get("/healthz")).status_code == 200


async def test_events_tell_what_becomes_of_a_run_until_it_ends(desk: Api) -> None:
    """Records in their order with their seq as id; a reader that comes back misses none; an answered run is seen to go on."""
    await desk.layer.run(http_asking(), client="acme", run_id="r1")
    await desk.layer.run(http_plain(quarter="Q3"), client="acme", run_id="r2")
    ann = await desk.having("read", "answer")
    ended = await ann.get("/v1/runs/r2/events")
    assert ended.headers["content-type"].startswith("text/event-stream")
    names = [line for line in ended.text.splitlines() if line.startswith("event: ")]
    assert names[-2:] == ["event: run", "event: end"]
    steps = [line for line in ended.text.splitlines() if line.startswith("id: ")]
    assert steps == sorted(steps, key=lambda line: int(line[4:]))
    last = steps[-1].removeprefix("id: ")
    assert "event: step" not in (await ann.get("/v1/runs/r2/events", headers={"Last-Event-ID": last})).text
    stream = asyncio.create_task(ann.get("/v1/runs/r1/events", timeout=30))
    question = (await ann.get("/v1/questions")).json()["items"][0]["id"]
    await ann.post(f"/v1/questions/{question}/answer", json={"value": "yes"})
    await desk.layer.resume("r1")
    told = (await stream).text
    assert '"status": "waiting"' in told or '"status": "queued"' in told
    assert told.index('"status": "done"') < told.index("event: end")


async def test_questions_of_one_cause_are_answered_at_once(desk: Api) -> None:
    """An incident over two clients: a token of one of them sees and answers that one's alone; an unknown one is 404."""
    for client in ("acme", "globex"):
        assert (await desk.layer.run(http_refused(), client=client)).status == "waiting"
    some, every = await desk.having("answer", "read", clients=("acme",)), await desk.having("answer", name="ben")
    (seen,) = (await some.get("/v1/incidents")).json()["items"]
    (whole,) = (await every.get("/v1/incidents")).json()["items"]
    assert (seen["clients"], sorted(whole["clients"])) == (["acme"], ["acme", "globex"])
    path = f"/v1/incidents/{seen['id']}/answer"
    nobody = await desk.having("answer", clients=("initech",))
    assert (await nobody.post(path, json={"value": "stop"})).status_code == 404
    assert (await nobody.get("/v1/incidents")).json()["items"] == []
    assert (await some.post(path, json={"value": "stop", "clients": ["globex"]})).status_code == 404
    first = (await some.post(path, json={"value": "stop"})).json()
    assert (len(first["answered"]), first["open"]) == (1, 0)
    rest = (await every.post(path, json={"value": "stop"})).json()
    assert (len(rest["answered"]), rest["open"]) == (1, 0)
    assert (await every.post("/v1/incidents/i_none/answer", json={"value": "stop"})).status_code == 404


async def test_a_run_that_was_started_without_its_code_is_executed_all_the_same(desk: Api, tmp_path: Path) -> None:
    """A server that was given no module knows no digest of its source: whoever takes the run does."""
    ops = await desk.having("operate")
    body = {"workflow": "http_plain", "client_id": "acme", "run_id": "r1", "inputs": {"quarter": "Q3", "n": 3}}
    assert (await ops.post("/v1/runs", json=body)).status_code == 201
    execute(tmp_path, "UPDATE run SET source_digest = NULL")
    outcome = await desk.layer.resume("r1")
    assert (outcome.status, outcome.value) == ("done", "Q34")
    assert (await ops.post("/v1/runs", json=body)).status_code == 200
    again = await desk.layer.start(http_plain(quarter="Q3", n=3), client="acme", run_id="r1")
    assert again.status == "done"
