"""What a token may do and know of, over every path there is: they come from the OpenAPI document, so none is forgotten."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from stepseven import Run, workflow
from stepseven.transitions.tokens import Scope
from tests.http.desk import Api, api

pytestmark = [pytest.mark.anyio]
THEIRS = "acme-secret-client"  #: in no answer to anybody else
SECRET = "what-only-acme-knows"
#: Paths that are about nobody's data.
OPEN = {"/healthz", "/readyz"}
NOBODYS = {("get", "/v1/me"), ("post", "/v1/tokens"), ("get", "/v1/tokens")}


@workflow
async def sight_asking(run: Run, what: str) -> str:
    """Asks once."""
    return str(await run.ask(f"May I use {what}?", options=["yes", "no"]))


@dataclass
class Place:
    """The application with one client's run, question, facts, token."""

    desk: Api
    ids: dict[str, str]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """A store in which one client has something of everything."""
    async with api(tmp_path) as desk:
        await desk.layer.run(sight_asking(what=SECRET), client=THEIRS, run_id="r-theirs")
        question = (await desk.layer.questions())[0].id
        desk.layer.client(THEIRS).set("code", SECRET)
        admin = await desk.having("admin")
        token = (await admin.post("/v1/tokens", json={"scopes": ["read"], "clients": [THEIRS], "name": SECRET})).json()["id"]
        out = {"workflow": "sight_elsewhere", "client_id": THEIRS, "run_id": "r-outside", "steps": ["fetch"]}
        assert (await admin.post("/v1/runs", json=out)).status_code == 201
        ids = {"run_id": "r-theirs", "question_id": question, "client_id": THEIRS, "token_id": token, "incident_id": "i_none"}
        yield Place(desk, ids)


def operations(desk: Api) -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of every operation."""
    return [
        (method, path, operation)
        for path, methods in desk.app.openapi()["paths"].items()
        for method, operation in methods.items()
    ]


#: A body that fits, by operation: what is not here takes none, or an empty object.
BODIES: dict[str, Any] = {
    "start_run": {"workflow": "sight_elsewhere", "client_id": THEIRS, "run_id": "r-new"},
    "answer_question": {"value": "yes"},
    "ask_question": {"text": "Is it so?"},
    "set_facts": {"code": "other"},
    "make_token": {"scopes": ["read"], "clients": [THEIRS]},
    "fail_step": {"error": {"type": "Error", "message": "broke"}},
    "answer_incident": {"value": "again"},
}


async def call(who: httpx.AsyncClient, method: str, path: str, operation: dict[str, Any], ids: dict[str, str]) -> httpx.Response:
    """The operation, about these ids."""
    filled = path.format(**{**ids, "step": "fetch"})
    if "requestBody" not in operation:
        return await who.request(method, filled)
    return await who.request(method, filled, json=BODIES.get(operation["operationId"], {}))


async def test_nobody_gets_in_without_a_token(place: Place) -> None:
    """401 on every path but the two for health; with a token that is none, was revoked, has expired, or only signs in, too."""
    from tests.http.desk import token

    revoked = await token(place.desk.layer, "admin")
    admin = await place.desk.having("admin")
    bad = [None, "s7_" + "0" * 12 + "a" * 43, "nonsense", await token(place.desk.layer, "once", "admin"),
           await token(place.desk.layer, "admin", expires_us=1), revoked]  # fmt: skip
    listed = (await admin.get("/v1/tokens")).json()["items"]
    found = next(t["id"] for t in listed if revoked[3:15] in t["id"])
    assert (await admin.delete(f"/v1/tokens/{found}")).json()["revoked_us"]
    for method, path, operation in operations(place.desk):
        for text in bad if operation["operationId"] in ("list_runs", "answer_question") else (None, revoked):
            done = await call(place.desk.caller(text), method, path, operation, place.ids)
            assert (done.status_code == 401) == (path not in OPEN), (method, path, text, done.text)


async def test_every_path_needs_its_scope(place: Place) -> None:
    """403 with any scope that is not one of those the path names; `admin` may what the others may."""
    who = {scope: await place.desk.having(scope.value) for scope in Scope}
    for method, path, operation in operations(place.desk):
        if path in OPEN:
            continue
        enough = set(operation["x-scopes"])
        assert enough, path
        for scope, caller in who.items():
            if scope in enough or scope is Scope.ADMIN:
                continue
            done = await call(caller, method, path, operation, place.ids)
            assert (done.status_code, done.json()["code"]) == (403, "forbidden"), (method, path, scope)


async def test_another_clients_ids_are_404_on_every_path(place: Place) -> None:
    """Not 403: that there is such a run, question or token is nobody else's business. Nothing of it is told, or changed."""
    other = await place.desk.having("admin", clients=("globex",), name="globex")
    before = await state(place)
    for method, path, operation in operations(place.desk):
        if path in OPEN:
            continue
        for run in ("r-theirs", "r-outside"):
            done = await call(other, method, path, operation, {**place.ids, "run_id": run})
            assert SECRET not in done.text, (method, path)
            if (method, path) in NOBODYS:
                assert done.status_code in (200, 403)
                assert operation["operationId"] == "get_me" or THEIRS not in done.text or done.status_code == 403
            elif "{" in path or operation["operationId"] == "start_run":
                assert done.status_code == 404, (method, path, done.text)
            else:
                assert (done.status_code, done.json()["items"]) == (200, []), (method, path)
    assert await state(place) == before


async def state(place: Place) -> str:
    """All that is stored about the client, as one text."""
    layer = place.desk.layer
    runs = [json.dumps(await layer.checkpoint(run.run_id)) for run in await layer.runs()]
    return json.dumps([runs, [q.status for q in await layer.questions(status=None)], str(layer.client(THEIRS).facts())])


async def test_a_taken_run_id_does_not_tell_whose_it_is(place: Place) -> None:
    """409 without client, workflow or inputs: that the id is taken is all that is told."""
    other = await place.desk.having("operate", clients=("globex",))
    body = {"workflow": "sight_elsewhere", "client_id": "globex", "run_id": "r-theirs"}
    done = await other.post("/v1/runs", json=body)
    assert done.status_code == 409
    assert THEIRS not in done.text
    assert "sight_asking" not in done.text


async def test_open_questions_of_others_are_not_named(place: Place) -> None:
    """A 404 says which questions are open: of the token's clients alone."""
    other = await place.desk.having("answer", clients=("globex",))
    ours = await place.desk.having("answer", clients=(THEIRS,))
    assert (await other.get("/v1/questions/q_none")).json()["open"] == []
    assert (await ours.get("/v1/questions/q_none")).json()["open"] == [place.ids["question_id"]]


async def test_an_administrator_of_some_clients_makes_no_token_for_others(place: Place) -> None:
    """Nor one for all clients; nor does it see or revoke one."""
    ours = await place.desk.having("admin", clients=("globex", "initech"))
    assert (await ours.post("/v1/tokens", json={"scopes": ["read"]})).status_code == 403
    assert (await ours.post("/v1/tokens", json={"scopes": ["read"], "clients": ["globex", THEIRS]})).status_code == 403
    made = await ours.post("/v1/tokens", json={"scopes": ["read"], "clients": ["globex"], "expires": "90d"})
    assert made.status_code == 201
    assert made.json()["id"] in {item["id"] for item in (await ours.get("/v1/tokens")).json()["items"]}
    assert (await ours.delete(f"/v1/tokens/{place.ids['token_id']}")).status_code == 404
    assert (await ours.delete(f"/v1/tokens/{made.json()['id']}")).status_code == 200
    again = await place.desk.caller(made.json()["token"]).get("/v1/runs")
    assert again.status_code == 401  # this server looked at once
