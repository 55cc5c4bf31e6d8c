"""``Idempotency-Key``: done once, told the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stepseven.server import replies
from tests.http.desk import Api, api
from tests.servers.databases import execute, rows

pytestmark = [pytest.mark.anyio]
BODY = {"workflow": "replies_elsewhere", "client_id": "acme", "inputs": {"n": 1}}
KEY = {"Idempotency-Key": "order-17"}


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Api]:
    """The application over a store of the test's own."""
    async with api(tmp_path) as made:
        yield made


async def test_the_same_request_is_done_once_and_told_the_same(desk: Api, tmp_path: Path) -> None:
    """Status and body are those of the first; one run; without the key there are two."""
    bob = await desk.having("report")
    first, again = await bob.post("/v1/runs", json=BODY, headers=KEY), await bob.post("/v1/runs", json=BODY, headers=KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert len(rows(tmp_path, "SELECT no FROM run")) == 1
    await bob.post("/v1/runs", json=BODY)
    assert len(rows(tmp_path, "SELECT no FROM run")) == 2


async def test_two_at_once_are_done_once(desk: Api, tmp_path: Path) -> None:
    """Eight requests with one key at the same moment: one run, and eight times the same answer."""
    bob = await desk.having("report")
    told = await asyncio.gather(*(bob.post("/v1/runs", json=BODY, headers=KEY) for _ in range(8)))
    assert {each.status_code for each in told} == {201}
    assert len({each.text for each in told}) == 1
    assert len(rows(tmp_path, "SELECT no FROM run")) == 1


async def test_a_key_belongs_to_one_request_and_one_token(desk: Api, tmp_path: Path) -> None:
    """Another body or path under the same key is 422 and does nothing; another token's key is another; a refusal is kept, too."""
    bob, eve = await desk.having("report", "operate"), await desk.having("report")
    await bob.post("/v1/runs", json=BODY, headers=KEY)
    other = await bob.post("/v1/runs", json={**BODY, "inputs": {}}, headers=KEY)
    assert (other.status_code, other.json()["code"]) == (422, "invalid")
    assert (await eve.post("/v1/runs", json=BODY, headers=KEY)).status_code == 201
    assert len(rows(tmp_path, "SELECT no FROM run")) == 2
    missing = [await bob.post("/v1/runs/none/cancel", headers={"Idempotency-Key": "c"}) for _ in range(2)]
    assert [each.status_code for each in missing] == [404, 404]
    assert missing[1].headers["content-type"] == "application/problem+json"
    for key in ("", "k" * 201, "s7_" + "0" * 12 + "a" * 43):
        assert (await bob.post("/v1/runs", json=BODY, headers={"Idempotency-Key": key})).status_code == 422


async def test_a_request_that_died_is_done_by_the_next_under_the_same_ids(desk: Api, tmp_path: Path) -> None:
    """Its row has no answer: after a minute the next one does it, and finds the run that was admitted before the death."""
    bob = await desk.having("report")
    first = (await bob.post("/v1/runs", json=BODY, headers=KEY)).json()["run_id"]
    execute(tmp_path, "UPDATE reply SET status = 0, body = '', created_us = created_us - 61000000")
    again = await bob.post("/v1/runs", json=BODY, headers=KEY)
    assert (again.status_code, again.json()["run_id"]) == (200, first)
    assert len(rows(tmp_path, "SELECT no FROM run")) == 1


async def test_what_is_just_being_done_is_said_so(desk: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """409 with when to ask again, after a moment of waiting."""
    bob = await desk.having("report")
    await bob.post("/v1/runs", json=BODY, headers=KEY)
    execute(tmp_path, "UPDATE reply SET status = 0, body = ''")
    monkeypatch.setattr(replies, "_LOOKS", 2)
    busy = await bob.post("/v1/runs", json=BODY, headers=KEY)
    assert (busy.status_code, busy.json()["code"]) == (409, "under_way")
    assert int(busy.headers["retry-after"]) > 0


async def test_replies_go_after_a_day_and_with_their_client(desk: Api, tmp_path: Path) -> None:
    """What was told about a client is deleted when the client is forgotten; what is a day old is deleted anyway."""
    ops = await desk.having("operate")
    run = (await ops.post("/v1/runs", json=BODY, headers=KEY)).json()["run_id"]
    await ops.post("/v1/runs", json={**BODY, "client_id": "globex"}, headers={"Idempotency-Key": "2"})
    await ops.post(f"/v1/runs/{run}/cancel")
    await asyncio.to_thread(desk.layer.client("acme").forget, by="ann")
    assert [row["client_id"] for row in rows(tmp_path, "SELECT client_id FROM reply")] == ["globex"]
    execute(tmp_path, "UPDATE reply SET created_us = created_us - ?", replies.KEPT_US + 1)
    await replies.tidy(desk.layer)
    assert rows(tmp_path, "SELECT * FROM reply") == []


async def test_a_fresh_token_is_told_once(desk: Api, tmp_path: Path) -> None:
    """Its reply is kept without it: no secret is stored in clear. One token is made."""
    admin = await desk.having("admin")
    body = {"scopes": ["read"], "name": "n8n"}
    first, again = [await admin.post("/v1/tokens", json=body, headers=KEY) for _ in range(2)]
    assert first.json() == {**again.json(), "token": first.json()["token"]}
    assert again.json()["token"] is None
    assert first.json()["token"] not in str(rows(tmp_path, "SELECT * FROM reply"))
    assert len((await admin.get("/v1/tokens")).json()["items"]) == 2
