"""Signing in: a token becomes the cookie of a session. The link that ``stepseven serve`` prints signs in once.

The link itself changes nothing, for programs that look at links in messages open them: it shows a button, and that signs in.
"""

from __future__ import annotations

import html
from urllib.parse import parse_qs

from fastapi import APIRouter
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from stepseven import __version__
from stepseven.server.auth import FORM, SESSION, same_origin
from stepseven.server.pages.frame import assets, environment
from stepseven.server.problems import Problem
from stepseven.server.routes import Here, Server, needs, router, server_of, told
from stepseven.store.base import Tx
from stepseven.transitions import tokens
from stepseven.transitions.tokens import Scope, Who

api = router("session")
pages = APIRouter(include_in_schema=False)
_MOST_FORM = 4096  # bytes


def _page(title: str, body: str, status: int = 200) -> HTMLResponse:
    """A page in the frame of all others. *body* is HTML."""
    whole = Markup(body)  # noqa: S704 - put together here, and escaped where it was
    values = {"title": title, "body": whole, "who": None, "here": "", "open_count": None, "form": ""}
    text = environment().get_template("plain.html").render(**values, assets=assets(), version=__version__)
    return HTMLResponse(text, status)


def _form(told_token: str, said: str) -> str:
    """The form; *told_token*: from the link, then only the button is left to press."""
    field = (
        f'<input type="hidden" name="token" value="{html.escape(told_token, quote=True)}">' if told_token else
        '<label>Token <input name="token" type="password" autocomplete="off" required></label>'
    )  # fmt: skip
    return f'<p>{html.escape(said)}</p>\n<form method="post" action="/sign-in">{field} <button>Sign in</button></form>'


@pages.get("/sign-in")
async def ask(request: Request) -> Response:
    """The page with the button. Changes nothing."""
    token = request.query_params.get("token", "")
    said = "This link signs you in once." if token else "Paste a token. `stepseven serve` prints a link that needs none."
    return _page("Sign in", _form(token, said))


@pages.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Sign in: the cookies of a new session, then on to the first page."""
    server = server_of(request)
    wait = server.sign_ins.wait(request.client.host if request.client is not None else "")
    if wait:
        seconds = {"Retry-After": str(int(wait) + 1)}
        raise Problem(429, "too_many", "somebody tried to sign in too often: wait a minute, and try again", headers=seconds)
    if not same_origin(request):
        raise Problem(403, "not_from_here", "a page of another site sent this: open the sign-in page here, and press the button")
    token = await _field(request)
    session, form = (tokens.secret(kind, *server.layer.services.edge.new_secret()) for kind in "sx")
    now_us = server.layer.services.edge.now_us()

    def unit(tx: Tx) -> Who | None:
        return tokens.sign_in(tx, token, session, form, now_us)

    who = await server.layer.store.write(unit, durable=True, client=None)
    if who is None:
        said = "This token does not sign in: it was used, was revoked or has expired. `stepseven serve` prints a new link."
        return _page("Not signed in", _form("", said), 401)
    response = RedirectResponse("/", 303)
    server.auth.keep(response, session.text, form.text)
    return response


async def _field(request: Request) -> str:
    """The token of the form."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise Problem(415, "unsupported_media_type", "the sign-in page sends a form: use that")
    body = await request.body()
    if len(body) > _MOST_FORM:
        raise Problem(413, "too_large", "that is no token")
    return parse_qs(body.decode("utf-8", "replace"), max_num_fields=5).get("token", [""])[0].strip()


@pages.get("/")
async def home(request: Request) -> Response:
    """Who is signed in, or the way there."""
    server = server_of(request)
    try:
        who = await server.auth.who(request)
    except Problem:
        return RedirectResponse("/sign-in", 303)
    body = (
        f'<p>You are signed in as {html.escape(who.name)}.</p>\n<p><a href="/openapi.json">What the API offers</a></p>\n'
        f'<form method="post" action="/sign-out"><input type="hidden" name="form" value="{_brought(request)}">'
        "<button>Sign out</button></form>"
    )
    return _page("stepseven", body)


def _brought(request: Request) -> str:
    return html.escape(request.cookies.get(FORM, ""), quote=True)


@pages.post("/sign-out")
async def sign_out_page(request: Request) -> Response:
    """End the session, from a page."""
    server = server_of(request)
    cookie = request.cookies.get(SESSION, "")
    now_us = server.layer.services.edge.now_us()
    who = await server.layer.store.read(lambda tx: tokens.find(tx, cookie, now_us)) if cookie.startswith("s7s_") else None
    response = RedirectResponse("/sign-in", 303)
    if who is not None:
        body = await request.body()
        brought = parse_qs(body[:_MOST_FORM].decode("utf-8", "replace"), max_num_fields=5).get("form", [""])[0]
        server.auth.check_form(request, who, brought)
        await _end(server, who)
    server.auth.drop(response)
    return response


async def _end(server: Server, who: Who) -> None:
    await server.layer.store.write(lambda tx: tokens.sign_out(tx, who.id), durable=True, client=None)
    server.auth.forget()


@api.get("/me", operation_id="get_me", openapi_extra=needs(*Scope))
async def me(here: Here) -> Response:
    """Who asks: their name, what they may do, for which clients (empty: all), and until when (microseconds)."""
    who = here.who
    return told({
        "id": who.id, "name": who.name, "scopes": sorted(who.scopes), "clients": list(who.clients or ()),
        "until_us": who.until_us,
    })  # fmt: skip
