"""What all pages share: who reads them, the frame around them, figures and times in words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from stepseven import __version__
from stepseven.decide import _phrases as say
from stepseven.errors import Superseded, readable
from stepseven.server.auth import FORM
from stepseven.server.problems import Problem, invalid, problem_of
from stepseven.server.routes import Desk, server_of
from stepseven.store.base import Tx
from stepseven.transitions.tokens import Scope

HERE = Path(__file__).parent.parent
MOST_FIELDS = 500  #: of a form; how large it may be is looked at before (``limits``)
_UNAUTHORISED, _SERVER = 401, 500
Handler = Callable[[Request], Coroutine[Any, Any, Response]]

#: The four states that people know, each with a word and a shape; whatever the run's own word is.
STATES = {
    "queued": ("working", "●"), "running": ("working", "●"), "waiting": ("waiting", "◔"), "cancelling": ("stopping", "■"),
    "failing": ("stopping", "■"), "done": ("done", "✓"), "failed": ("failed", "✕"), "cancelled": ("stopped", "■"),
}  # fmt: skip
_CLASS = {"needs you": "needs", "working": "works", "waiting": "waits", "done": "done"}


class PageRoute(APIRoute):
    """A page: reached by who signed in; what goes wrong is a page, too."""

    def get_route_handler(self) -> Handler:
        """As FastAPI has it, with ours around it."""
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                server = server_of(request)
                request.state.desk = Desk(server=server, who=await server.auth.who(_Reading(request.scope, request.receive)))
                return await inner(request)
            except (Exception, Superseded) as error:  # noqa: BLE001 - whatever it is, one sentence is shown
                problem = problem_of(error)
                if problem.status == _UNAUTHORISED and request.method in ("GET", "HEAD"):
                    return RedirectResponse("/sign-in", 303)
                if problem.status == _UNAUTHORISED:
                    problem = Problem(
                        _UNAUTHORISED, "unauthorized", "you are signed out: sign in again, then go back and press once more"
                    )
                return wrong(request, problem)

        return handler


class _Reading(Request):
    """A request whose form is checked by its handler, which has read it: until then it only reads."""

    @property
    def method(self) -> str:
        """Nothing is changed before ``form`` has looked."""
        return "GET"


def router() -> APIRouter:
    """An empty router of pages."""
    return APIRouter(include_in_schema=False, route_class=PageRoute)


def wrong(request: Request, problem: Problem) -> Response:
    """A refusal as a page."""
    again = "Nothing was changed." if problem.status < _SERVER else ""
    desk = getattr(request.state, "desk", None)
    text = environment().get_template("wrong.html").render(
        title=problem.response_title, sentence=problem.detail, again=again, desk=desk, here="", open_count=None, form="",
        assets=assets(), version=__version__, who=None if desk is None else desk.who,
    )  # fmt: skip
    return HTMLResponse(text, problem.status, headers=problem.headers)


async def form(request: Request, *scopes: str) -> dict[str, str]:
    """What a form of ours brought, from somebody who may.

    Raises:
        Problem: it is not from one of our pages, is too large, or they may not.
    """
    desk: Desk = request.state.desk
    if not desk.who.may(*scopes):
        raise Problem(403, "forbidden", f"you may look, and not do this: it needs the scope {' or '.join(scopes)}")
    fields = await fields_of(request)
    if request.headers.get("authorization") is None:
        desk.server.auth.check_form(request, desk.who, fields.get("form"))
    return fields


async def fields_of(request: Request) -> dict[str, str]:
    """The fields of a form.

    Raises:
        Problem: it is none.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise Problem(415, "unsupported_media_type", "pages send forms: press the button there, or use the API")
    try:
        told = parse_qs((await request.body()).decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise invalid("the form cannot be read: open the page again, and press the button") from error
    return {name: values[-1] for name, values in told.items()}


async def page(request: Request, template: str, *, here: str, status: int = 200, **values: Any) -> Response:
    """A page in its frame. *here*: which entry of the navigation it belongs to."""
    desk: Desk = request.state.desk

    def unit(tx: Tx) -> int:
        row = tx.one(tx.sql.open_count_in_sight, {"clients": desk.who.sight})
        return 0 if row is None else int(row["n"])

    text = environment().get_template(template).render(
        desk=desk, who=desk.who, here=here, open_count=await desk.layer.store.read(unit), form=request.cookies.get(FORM, ""),
        may_answer=desk.who.may(Scope.ANSWER), may_operate=desk.who.may(Scope.OPERATE), now_us=desk.now_us(), assets=assets(),
        version=__version__, **values,
    )  # fmt: skip
    return HTMLResponse(text, status)


@cache
def environment() -> Environment:
    """Where templates are. Everything in them is escaped; a name that is not given is an error."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters.update(
        ago=ago, when=when, money=money, who=say.who, words=say.humanise, duration=duration, state=state, answer=said_of
    )
    return made


@cache
def assets() -> dict[str, str]:
    """The URLs of what pages load, each with a mark of its content."""
    found = {}
    for path in sorted((HERE / "static").iterdir()):
        found[path.name] = f"/static/{path.name}?{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    return found


# -- words ------------------------------------------------------------------------------------------------------------------


def ago(us: int | None, now_us: int) -> str:
    """``4 min ago``; what is to come: ``in 2 h``."""
    if us is None:
        return ""
    seconds = (now_us - us) / 1e6
    if seconds < 0:
        return f"in {say.duration(-seconds)}"
    return "just now" if seconds < 1 else f"{say.duration(seconds)} ago"


def duration(seconds: float) -> str:
    """A length of time; what took less than a second in milliseconds."""
    return f"{max(1, round(seconds * 1000))} ms" if seconds < 0.95 else say.duration(seconds)  # noqa: PLR2004 - would be 1 s


def said_of(answer: Any) -> str:
    """An answer in a few words."""
    told = readable(answer)
    if isinstance(told, dict) and isinstance(told.get("choice"), str):
        more = ", ".join(f"{name} {say.shown(value)}" for name, value in told.items() if name != "choice")
        return f"{told['choice']} ({more})" if more else str(told["choice"])
    return say.shown(told)


def when(us: int | None) -> str:
    """The exact time, in UTC."""
    return "" if us is None else datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def money(usd: float | None) -> str:
    """``$0.41``."""
    return "" if usd is None else say.money(usd)


def state(status: str, waiting_for: str | None = None) -> dict[str, str]:
    """A run's state for people: word, shape, and the class of its colour."""
    word, shape = STATES.get(status, (status, "·"))
    if status == "waiting" and waiting_for == "person":
        word, shape = "needs you", "◆"
    return {"word": word, "shape": shape, "css": _CLASS.get(word, "stopped")}
