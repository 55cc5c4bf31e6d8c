"""What stands in front of the API: host, size and form of bodies, headers, signing in."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from stepseven.server.app import make
from stepseven.server.limits import MOST_BYTES, depth, json_of, safe_host
from stepseven.server.problems import Problem
from stepseven.server.serving import Place, checked_url
from stepseven.transitions import tokens
from tests.http.desk import Api, api, token
from tests.servers.databases import execute, rows

pytestmark = [pytest.mark.anyio]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Api]:
    """The application over a store of the test's own."""
    async with api(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    "host,good",
    [
        ("127.0.0.1:7700", True), ("localhost", True), ("[::1]:7700", True), ("stepseven:7700", True), ("s7.localhost", True),
        ("10.0.0.7", True), ("s7.example.com", True), ("evil.example", False), ("127.0.0.1.evil.example", False), ("", False),
        ("s7.example.com.evil.example", False), ("localhost.evil.example", False), ("a b", False), ("[", False),
    ],
)  # fmt: skip
def test_names_that_a_stranger_could_point_here_are_refused(host: str, good: bool) -> None:
    """Addresses, names without a dot and those that were told are fine; a name of somebody else's is not (DNS rebinding)."""
    assert safe_host(host, {"s7.example.com"}) is good


async def test_another_name_is_421_on_every_path(desk: Api) -> None:
    """Before anything else is looked at, whoever asks."""
    ann = await desk.having("admin")
    for path in ("/healthz", "/v1/runs", "/sign-in", "/openapi.json", "/nothing"):
        assert (await ann.get(path, headers={"Host": "evil.example"})).status_code == 421


async def test_every_answer_has_the_headers_that_keep_pages_in(desk: Api) -> None:
    """Also errors, redirects and what is not there; nothing allows other sites (CORS)."""
    nobody = desk.caller()
    for path in ("/healthz", "/v1/runs", "/sign-in", "/", "/nothing", "/openapi.json"):
        headers = (await nobody.get(path, headers={"Origin": "https://evil.example"})).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert headers["cache-control"] == "no-store"
        assert not [name for name in headers if name.startswith("access-control")]
    assert (await nobody.options("/v1/runs", headers={"Origin": "https://evil.example"})).status_code in (401, 405)


async def test_a_body_over_a_mebibyte_is_413(desk: Api) -> None:
    """By its length, and also where none was told; one of just a mebibyte is read."""
    bob = await desk.having("operate")
    big = b'{"workflow": "' + b"x" * MOST_BYTES + b'"}'

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(big), 1 << 16):
            yield big[start : start + (1 << 16)]

    for content in (big, pieces()):
        done = await bob.post("/v1/runs", content=content, headers={"Content-Type": "application/json"})
        assert (done.status_code, done.json()["code"]) == (413, "too_large")
    just = b" " * (MOST_BYTES - 2) + b"{}"
    assert (await bob.post("/v1/runs", content=just, headers={"Content-Type": "application/json"})).status_code == 422


@pytest.mark.parametrize(
    "body",
    [b"{", b"", b"nope", b"\xff", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": 1, "a": 2}', b'{"a": "\\ud800"}', b"[" * 1000,
     b'{"a":' * 100 + b"1" + b"}" * 100, b"1" * 5000, b'"just text"', b"null", b"[]"],
)  # fmt: skip
async def test_a_body_that_is_no_object_of_ours_is_422(desk: Api, body: bytes) -> None:
    """Not JSON, JSON only Python takes, a name twice, half a character, too deep, too long a number: one sentence each."""
    bob = await desk.having("operate")
    done = await bob.post("/v1/runs", content=body, headers={"Content-Type": "application/json"})
    assert (done.status_code, done.json()["code"]) == (422, "invalid"), done.text


async def test_what_is_not_json_is_415_and_what_is_not_there_404_or_405(desk: Api) -> None:
    """All of it as problem+json, with what is allowed where that is known."""
    bob = await desk.having("admin")
    form = await bob.post("/v1/runs", data={"workflow": "x"})
    away, method = await bob.get("/v1/nothing"), await bob.put("/v1/runs", json={})
    assert [form.status_code, away.status_code, method.status_code] == [415, 404, 405]
    assert "GET" in method.headers["allow"] or "POST" in method.headers["allow"]
    assert {r.headers["content-type"] for r in (form, away, method)} == {"application/problem+json"}


def test_depth_is_counted_outside_of_texts() -> None:
    """Brackets in a text are text; a body that is flat may be long."""
    assert depth(b'{"a": "[[[[[", "b": [[1]]}') == 3
    assert depth(b'{"a\\"[": 1}') == 1
    assert json_of(b"[" + b"1," * 10_000 + b"1]")
    with pytest.raises(Problem):
        json_of(b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}")


async def test_a_fault_of_ours_is_500_without_its_words(
    desk: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever breaks, the caller gets one sentence; where it broke stands in the log, with credentials masked."""
    ann, secret = await desk.having("read"), await token(desk.layer, "read")

    async def broken(run_id: str) -> str:
        raise KeyError(secret)

    monkeypatch.setattr(desk.layer, "why", broken)
    await (await desk.having("report")).post("/v1/runs", json={"workflow": "doors_out", "client_id": "acme", "run_id": "r1"})
    done = await ann.get("/v1/runs/r1/why")
    assert (done.status_code, done.json()["code"]) == (500, "broken_off")
    assert secret not in done.text
    assert "KeyError" in caplog.text
    assert secret not in caplog.text


# -- signing in -------------------------------------------------------------------------------------------------------------


async def signed_in(desk: Api, text: str) -> httpx.AsyncClient:
    """A browser after the button was pressed."""
    browser = desk.caller()
    done = await browser.post("/sign-in", data={"token": text}, headers={"Origin": "http://127.0.0.1:7700"})
    assert (done.status_code, done.headers["location"]) == (303, "/"), done.text
    return browser


async def test_the_link_signs_in_once_and_looking_at_it_changes_nothing(desk: Api) -> None:
    """GET shows a button however often; the button works once; then a session is there, and its cookie no script can read."""
    text = await token(desk.layer, "once", "admin", name="ann")
    for _ in range(3):
        page = await desk.caller().get("/sign-in", params={"token": text})
        assert (page.status_code, "<button>" in page.text) == (200, True)
        assert "set-cookie" not in page.headers
    browser = await signed_in(desk, text)
    again = await desk.caller().post("/sign-in", data={"token": text})
    assert again.status_code == 401
    assert text not in again.text
    me = (await browser.get("/v1/me")).json()
    assert (me["name"], me["scopes"], me["clients"]) == ("ann", ["admin"], [])
    assert (await browser.get("/")).status_code == 200
    assert (await desk.caller().get("/")).headers["location"] == "/sign-in"


async def test_cookies_are_as_strict_as_they_can_be(desk: Api) -> None:
    """HttpOnly, SameSite=Lax, for twelve hours, and Secure where the server is reached by https."""
    text = await token(desk.layer, "read")
    plain = await desk.caller().post("/sign-in", data={"token": text})
    safe = Api(desk.layer, make(desk.layer, secure=True))
    secure = await safe.caller().post("/sign-in", data={"token": text})
    for done, has in ((plain, False), (secure, True)):
        session, form = sorted(done.headers.get_list("set-cookie"), key=lambda text: "session" not in text)
        assert "HttpOnly" in session
        assert "HttpOnly" not in form
        assert {("samesite=lax" in each.lower()) for each in (session, form)} == {True}
        assert {("Secure" in each) for each in (session, form)} == {has}
        assert "Max-Age=43200" in session
    assert "strict-transport-security" in secure.headers


async def test_a_change_in_a_session_needs_what_only_our_pages_have(desk: Api) -> None:
    """Without the header, with another session's, or from another site: 403, and nothing is changed. A token needs none of it."""
    browser, other = [await signed_in(desk, await token(desk.layer, "admin", name=name)) for name in ("ann", "ben")]
    body = {"workflow": "doors_out", "client_id": "acme"}
    form = browser.cookies["stepseven_form"]
    good = {"X-CSRF-Token": form}
    for bad in ({}, {"X-CSRF-Token": other.cookies["stepseven_form"]}, {**good, "Origin": "https://evil.example"},
                {**good, "Sec-Fetch-Site": "cross-site"}):  # fmt: skip
        assert (await browser.post("/v1/runs", json=body, headers=bad)).status_code == 403
    assert (await browser.get("/v1/runs")).json()["items"] == []
    assert (await browser.post("/v1/runs", json=body, headers=good)).status_code == 201


async def test_who_signs_in_is_who_answers(desk: Api, tmp_path: Path) -> None:
    """The name is the session's; it is a person, so that it may approve, and what it says of a client is a person's word."""
    browser = await signed_in(desk, await token(desk.layer, "answer", "operate", "report", name="ann"))
    good = {"X-CSRF-Token": browser.cookies["stepseven_form"]}
    said = await browser.patch("/v1/clients/acme/facts", json={"vat": "DE1"}, headers=good)
    assert (said.json()["items"][0]["set_by"], said.json()["items"][0]["source"]) == ("ann", None)


async def test_sessions_end(desk: Api, tmp_path: Path) -> None:
    """By signing out, after twelve hours, or with the token that signed in."""
    text = await token(desk.layer, "read", name="ann")
    out, old, revoked = [await signed_in(desk, text) for _ in range(3)]
    page = (await out.get("/")).text
    form = re.search(r'name="form" value="([^"]+)"', page)
    assert form is not None
    assert (await out.post("/sign-out", data={"form": "wrong"})).status_code == 403
    assert (await out.post("/sign-out", data={"form": form[1]})).status_code == 303
    assert (await out.get("/v1/me")).status_code == 401
    sessions = rows(tmp_path, "SELECT id FROM session ORDER BY created_us")
    assert len(sessions) == 2
    execute(tmp_path, "UPDATE session SET expires_us = 1 WHERE id = ?", sessions[0]["id"])
    desk.app.state.server.auth.forget()
    assert (await old.get("/v1/me")).status_code == 401
    assert (await revoked.get("/v1/me")).status_code == 200
    await desk.layer.store.write(lambda tx: tokens.revoke(tx, f"t_{text[3:15]}", 1), durable=True, client=None)
    desk.app.state.server.auth.forget()
    assert (await revoked.get("/v1/me")).status_code == 401
    await desk.layer.store.write(lambda tx: tokens.tidy(tx, 1 << 60), durable=True, client=None)
    assert rows(tmp_path, "SELECT id FROM session") == []


async def test_guessing_is_slow(desk: Api) -> None:
    """Ten tries a minute from one address, then 429 with when to try again; also with the right token."""
    text = await token(desk.layer, "read")
    nobody = desk.caller()
    tries = [(await nobody.post("/sign-in", data={"token": "s7_nonsense"})).status_code for _ in range(10)]
    assert set(tries) == {401}
    late = await nobody.post("/sign-in", data={"token": text})
    assert late.status_code == 429
    assert 0 < int(late.headers["retry-after"]) <= 61


async def test_a_form_of_another_site_signs_nobody_in(desk: Api) -> None:
    """Nor does something that is no form."""
    text = await token(desk.layer, "read")
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await desk.caller().post("/sign-in", data={"token": text}, headers=headers)).status_code == 403
    assert (await desk.caller().post("/sign-in", json={"token": text})).status_code == 415


@pytest.mark.parametrize(
    "text", ["", "s7.example.com", "ftp://x", "https://", "https://x/path", "https://u:p@x", "https://x:99999", "https://x?y"]
)
def test_a_public_url_is_scheme_and_host(text: str) -> None:
    """Anything else is refused in one sentence."""
    with pytest.raises(ValueError, match="such as https"):
        checked_url(text)


def test_where_it_is_served_is_told_as_it_is_reached() -> None:
    """An address for everybody is told as this machine's own; what others call it wins."""
    assert Place(host="0.0.0.0", port=7).url == "http://127.0.0.1:7"
    assert Place(host="::1", port=7).url == "http://[::1]:7"
    assert Place(host="10.0.0.1", port=7, public_url="https://s7.example.com/").url == "https://s7.example.com"
    assert [Place(host=host, port=7).loopback for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "10.0.0.1", "box")] == [
        True, True, True, False, False, False
    ]  # fmt: skip
