"""Steps that somebody outside executes, over HTTP: what n8n, Make and curl do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stepseven.server import errands
from stepseven.transitions import external
from tests.http.desk import Api, api
from tests.runs.outside import Mood
from tests.runs.outside import Outside as World
from tests.servers import databases

pytestmark = [pytest.mark.anyio]
BOOM = {"message": "boom", "status": 502}
KEY = "sk-" + "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z" + "Ab3dEf6hIj9kLm2n"  # made up


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Api]:
    """The application."""
    async with api(tmp_path) as made:
        yield made


@pytest.fixture
async def agent(here: Api) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who reports, with a run of two announced steps."""
    async with await here.having("report", "read", name="n8n") as caller:
        made = await caller.post(
            "/v1/runs", json={"workflow": "n8n-invoices", "client_id": "acme", "run_id": "ext-1", "steps": ["fetch", "send"]}
        )
        assert made.status_code == 201, made.text
        yield caller


async def post(caller: httpx.AsyncClient, what: str, body: Any = None, status: int = 200, **headers: str) -> dict[str, Any]:
    """What is told about a step of the run."""
    answer = await caller.post(f"/v1/runs/ext-1/steps/{what}", json=body or {}, headers=headers)
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def test_the_story(agent: httpx.AsyncClient) -> None:
    """Begin, complete, begin, complete: the run is done, and each step is given back when it is begun again."""
    told = await post(agent, "fetch/begin", {"inputs": {"month": "2026-11"}})
    assert (told["do"], told["attempt"], told["approach"]) == ("run", 1, "as written")
    done = await post(
        agent, "fetch/complete", {"attempt_token": told["attempt_token"], "artifact": {"n": 3}, "summary": "3 rows"}
    )
    assert (done["artifact"], done["run_status"]) == ({"n": 3}, "running")
    told = await post(agent, "send/begin", {"effect": "write", "key": "mail", "cost": {"usd": 0.02}})
    assert told["idempotency_key"] == "ext-1/send/mail"
    await post(agent, "send/complete", {"attempt_token": told["attempt_token"], "artifact": "m-1", "usd": 0.01})
    run = (await agent.get("/v1/runs/ext-1")).json()
    assert (run["status"], run["value"], run["spend"]["usd"]) == ("done", "m-1", 0.01)
    again = await post(agent, "fetch/begin")
    assert (again["do"], again["artifact"]) == ("reuse", {"n": 3})


async def test_the_same_key_same_verdict(agent: httpx.AsyncClient) -> None:
    """A begin whose answer was lost is repeated with its ``Idempotency-Key``: the same verdict, with the same token."""
    first = await post(agent, "fetch/begin", {"inputs": 1}, **{"Idempotency-Key": "b-1"})
    again = await post(agent, "fetch/begin", {"inputs": 1}, **{"Idempotency-Key": "b-1"})
    assert again == first
    other = await post(agent, "fetch/begin", {"inputs": 1})
    assert (other["do"], other["attempt_token"]) == ("wait", None)


async def test_a_begin_whose_server_died_before_it_answered(agent: httpx.AsyncClient, tmp_path: Path) -> None:
    """The begin is on record, its reply is not: the same request, after a minute, is told to run, with the same token."""
    first = await post(agent, "fetch/begin", {}, **{"Idempotency-Key": "b-1"})
    databases.execute(tmp_path, "UPDATE reply SET status = 0, created_us = created_us - 120000000")
    again = await post(agent, "fetch/begin", {}, **{"Idempotency-Key": "b-1"})
    assert (again["do"], again["attempt_token"]) == ("run", first["attempt_token"])


async def test_a_failure_is_told_what_is_next(here: Api, agent: httpx.AsyncClient) -> None:
    """Retry, with the other approach and when; then a question, whose answer the next begin acts upon."""
    ways = {"approaches": ["ask the archive"]}
    told = await post(agent, "fetch/begin", ways)
    failed = await post(agent, "fetch/fail", {"attempt_token": told["attempt_token"], "error": BOOM})
    assert (failed["decision"], failed["approach"], failed["attempt"]) == ("retry", "ask the archive", 2)
    assert failed["retry_after_seconds"] <= 1
    await asyncio.sleep(1.1)
    told = await post(agent, "fetch/begin", ways)
    assert (told["attempt"], told["approach"], [f["reason"] for f in told["failures"]]) == (
        2, "ask the archive", ["the other side answered 502 Bad Gateway (boom)"],
    )  # fmt: skip
    failed = await post(agent, "fetch/fail", {"attempt_token": told["attempt_token"], "error": BOOM})
    assert failed["decision"] == "ask"
    assert failed["question"]["kind"] == "failure"
    async with await here.having("answer", "read", name="ann") as ann:
        answered = await ann.post(f"/v1/questions/{failed['question']['id']}/answer", json={"value": "skip"})
        assert answered.status_code == 200, answered.text
    told = await post(agent, "fetch/begin", ways)
    assert (told["do"], told["skipped"]) == ("reuse", True)


async def test_a_resume_gives_a_token_to_whoever_goes_on(here: Api, agent: httpx.AsyncClient) -> None:
    """From then on only that token, or who asked for it, reports; the old execution is told 409 superseded."""
    told = await post(agent, "fetch/begin")
    async with await here.having("operate", "read", "report", name="ops") as ops:
        resumed = (await ops.post("/v1/runs/ext-1/resume")).json()
        assert resumed["executor_token"].startswith("s7_")
        late = await post(agent, "fetch/complete", {"attempt_token": told["attempt_token"], "artifact": 1}, 409)
        assert late["code"] == "superseded"
        assert (await post(agent, "fetch/begin", None, 409))["code"] == "superseded"
        assert (await post(ops, "fetch/begin"))["do"] == "run"
    async with here.caller(resumed["executor_token"]) as new:
        assert (await post(new, "fetch/begin"))["do"] == "wait"
        assert (await new.get("/v1/runs/ext-1/why")).status_code == 200
        made = await agent.post("/v1/runs", json={"workflow": "w", "client_id": "acme", "run_id": "ext-2"})
        assert made.status_code == 201
        assert (await new.get("/v1/runs/ext-2")).status_code == 404
        assert (await new.get("/v1/runs")).status_code == 403
        assert (await new.post("/v1/runs", json={"workflow": "w", "client_id": "acme"})).status_code == 403


async def test_a_token_does_not_decide_about_what_it_executes(here: Api) -> None:
    """Whoever executes a run proposes; somebody else approves."""
    async with await here.having("report", "read", "answer", name="n8n") as agent:
        await agent.post("/v1/runs", json={"workflow": "w", "client_id": "acme", "run_id": "ext-1"})
        told = await post(agent, "pay/begin", {"effect": "irreversible", "inputs": {"amount": 9}})
        assert told["question"]["kind"] == "approve"
        url = f"/v1/questions/{told['question']['id']}/answer"
        assert (await agent.post(url, json={"value": "approve"})).status_code == 403
        async with await here.having("answer", name="ann") as ann:
            assert (await ann.post(url, json={"value": {"choice": "approve", "inputs": {"amount": 5}}})).status_code == 200
        told = await post(agent, "pay/begin", {"effect": "irreversible", "inputs": {"amount": 9}})
        assert (told["do"], told["inputs"]) == ("run", {"amount": 5})


async def test_who_asked_for_the_executor_approves_nothing_of_it(here: Api, agent: httpx.AsyncClient) -> None:
    """A token that resumed a run, and so may report in it, does not approve what it proposes; its reply holds no token."""
    async with await here.having("operate", "answer", "report", "read", name="ops") as ops:
        for _ in range(2):
            resumed = await ops.post("/v1/runs/ext-1/resume", headers={"Idempotency-Key": "r-1"})
        assert resumed.json()["executor_token"] is None, "it was told once"
        assert "s7_" not in str(await here.layer.store.read(lambda tx: tx.one(tx.sql.reply, {"token_id": "", "key": "r-1"})))
        told = await post(ops, "pay/begin", {"effect": "irreversible", "inputs": {"amount": 9}})
        answer = await ops.post(f"/v1/questions/{told['question']['id']}/answer", json={"value": "approve"})
        assert answer.status_code == 403, answer.text


async def test_time_that_was_told_stays(agent: httpx.AsyncClient) -> None:
    """Who comes back at ``retry_at`` is not told another time."""
    told = await post(agent, "fetch/begin")
    failed = await post(agent, "fetch/fail", {"attempt_token": told["attempt_token"], "error": BOOM})
    again = [(await post(agent, "fetch/begin")) for _ in range(3)]
    assert {one["retry_at"] for one in again if one["do"] == "wait"} <= {failed["retry_at"]}


async def test_a_question_over_http_expires_without_a_worker(here: Api, agent: httpx.AsyncClient) -> None:
    """Nobody executes the run here: the server closes what nobody answered in time."""
    now_us = here.layer.services.edge.now_us()
    body = {"text": "Go?", "options": ["yes", "no"], "deadline_us": now_us + 300_000}
    asked = (await agent.post("/v1/runs/ext-1/questions", json=body)).json()
    await asyncio.sleep(0.4)
    later = here.layer.services.edge.now_us()
    await here.layer.store.write(lambda tx: external.sweep(tx, later), durable=True, client=None)
    assert (await agent.get(f"/v1/questions/{asked['id']}")).json()["status"] == "expired"


async def test_a_probe_settles_what_nobody_reported(agent: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor died after sending: the next begin looks there, and gives the receipt instead of sending again."""
    with World() as world:
        monkeypatch.setenv("STEPSEVEN_ALLOW", world.url)
        ask = {"effect": "write", "key": "k", "lease_seconds": 1, "probe_url": f"{world.url}/effect/mail?key=ext-1/send/k"}
        told = await post(agent, "send/begin", ask)
        world.act("mail", told["idempotency_key"], {"to": "ann"})
        assert (await post(agent, "send/begin", ask))["do"] == "wait"
        await asyncio.sleep(1.1)
        told = await post(agent, "send/begin", ask)
        assert told["do"] == "reuse", told
        assert world.counts()["mail"] == 1


@pytest.mark.parametrize("body", ["[" * 100_000, '{"n": NaN}', "<html>"])
async def test_what_a_probe_finds_may_be_anything(agent: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """What is no JSON is kept as its text, and breaks nothing."""
    with World() as world:
        monkeypatch.setenv("STEPSEVEN_ALLOW", world.url)
        ask = {"effect": "write", "key": "k", "lease_seconds": 1, "probe_url": f"{world.url}/effect/mail?key=k"}
        await post(agent, "send/begin", ask)
        await asyncio.sleep(1.1)
        world.look_moods.append(Mood(text=body))
        told = await post(agent, "send/begin", ask)
        assert (told["do"], told["artifact"][:5]) == ("reuse", body[:5])


async def test_where_the_server_may_not_go(agent: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe or callback URL that is not on the allow-list, is no web address or holds a credential is refused at once."""
    monkeypatch.setenv("STEPSEVEN_ALLOW", "crm.example,http://127.0.0.1:9")
    for url in (
        "http://169.254.169.254/latest", "http://localhost:5432/", "file:///etc/passwd", "gopher://crm.example/", "https://crm.example.evil/",
        "https://user:pass@crm.example/", "https://crm.example@evil.example/", "http://crm.example/", "http://127.0.0.1:90/", "https://[::1]/",
        "https://crm.example\\@evil.example/", "https://evil.example#crm.example", "",
    ):  # fmt: skip
        for field in ("probe_url", "callback_url"):
            told = await post(agent, "send/begin", {"effect": "write", field: url}, 422)
            assert told["code"] == "invalid", url
    assert not databases.rows(tmp_path, "SELECT * FROM ticket")
    assert (await post(agent, "send/begin", {"effect": "write", "probe_url": "https://crm.example/x"}))["do"] == "run"


async def test_an_answer_is_brought(here: Api, agent: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To ``callback_url``, once, with the answer in it; a receiver that is away is tried again, later."""
    with World() as world:
        monkeypatch.setenv("STEPSEVEN_ALLOW", world.url)
        told = await post(agent, "fetch/begin", {"callback_url": f"{world.url}/effect/answered"})
        failed = await post(agent, "fetch/fail", {"attempt_token": told["attempt_token"], "error": BOOM, "kind": "fixable"})
        assert await errands.bring(here.layer) == 0
        world.moods.append(Mood(act=False, status=500))
        async with await here.having("answer", name="ann") as ann:
            await ann.post(f"/v1/questions/{failed['question']['id']}/answer", json={"value": "again"})
        assert await errands.bring(here.layer) == 1
        assert world.counts()["answered"] == 0
        assert await errands.bring(here.layer) == 0
        await here.layer.store.write(
            lambda tx: tx.run(tx.sql.put_off_callback, {"id": f"cb_{failed['question']['id']}", "until_us": 0, "reason": "x"}),
            durable=True, client=None,
        )  # fmt: skip
        assert await errands.bring(here.layer) == 1
        assert world.counts()["answered"] == 1
        assert await errands.bring(here.layer) == 0
        (row,) = databases.rows(tmp_path, "SELECT * FROM delivery")
        assert (row["state"], row["purpose"], row["tries"]) == ("delivered", "callback", 2)


async def test_bad_reports_are_refused_with_a_sentence(agent: httpx.AsyncClient) -> None:
    """Nothing is half-made, and each says what to do."""
    assert (await post(agent, "fetch/complete", {"artifact": 1}, 409))["code"] == "not_begun"
    assert (await post(agent, "fetch/fail", {"error": {"message": "x"}}, 409))["code"] == "not_begun"
    assert "attempt_token" in (await post(agent, "fetch/complete", {"attempt_token": "nonsense"}, 422))["detail"]
    assert (await post(agent, "run.body/begin", None, 422))["code"] == "invalid"
    assert (await post(agent, "fetch/begin", {"idempotent": "sometimes"}, 422))["code"] == "invalid"
    assert (await post(agent, "fetch/begin", {"attempts": 0}, 422))["code"] == "invalid"
    assert (await post(agent, "fetch/begin", {"approaches": ["a", "a"]}, 422))["code"] == "invalid"
    assert (await post(agent, "fetch/begin", {"key": KEY}, 422))["code"] in ("invalid", "secret_found")


async def test_put_needs_no_begin(agent: httpx.AsyncClient) -> None:
    """What is done is reused from then on, and the run ends with its last step."""
    answer = await agent.put("/v1/runs/ext-1/steps/fetch", json={"artifact": [1, 2], "summary": "by hand"})
    assert answer.status_code == 200, answer.text
    assert (await post(agent, "fetch/begin", {"inputs": {"x": 1}}))["artifact"] == [1, 2]
    answer = await agent.put("/v1/runs/ext-1/steps/other", json={"artifact": "a", "effect": "write", "inputs": {"n": 1}})
    assert answer.status_code == 200
    answer = await agent.put("/v1/runs/ext-1/steps/other", json={"artifact": "b", "effect": "write"})
    assert (answer.status_code, answer.json()["code"]) == (409, "not_begun")
    answer = await agent.put("/v1/runs/ext-1/steps/send", json={"artifact": "m", "effect": "write"})
    assert answer.json()["run_status"] == "done"
    assert json.loads((await agent.get("/v1/runs/ext-1")).text)["value"] == "m"
