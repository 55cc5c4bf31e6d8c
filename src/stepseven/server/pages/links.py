"""What a link in a message shows: one question, to whoever was told of it. Looking spends nothing; a press answers."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from stepseven import __version__
from stepseven.errors import AlreadyAnswered, InvalidAnswer, QuestionExpired, Superseded
from stepseven.people import links
from stepseven.people.links import Link
from stepseven.server.auth import same_origin
from stepseven.server.pages import answering
from stepseven.server.pages.frame import assets, environment, fields_of, wrong
from stepseven.server.pages.inbox import one_of
from stepseven.server.problems import Problem, problem_of
from stepseven.server.routes import Desk, Server, server_of
from stepseven.store.base import Tx
from stepseven.transitions.tokens import Who

pages = APIRouter(include_in_schema=False)
_SIGN_IN = "What cannot be taken back is approved by somebody who signed in: open the inbox."


@pages.api_route("/q/{token}", methods=["GET", "HEAD"])
async def look(request: Request, token: str) -> Response:
    """The question. Programs that preview mail come here, too: nothing is changed."""
    try:
        return await _page(request, token)
    except (Exception, Superseded) as error:  # noqa: BLE001 - whatever it is, one sentence is shown
        return wrong(request, problem_of(error))


@pages.post("/q/{token}")
async def answer(request: Request, token: str) -> Response:
    """The answer of whoever was told."""
    try:
        return await _answer(request, token)
    except (Exception, Superseded) as error:  # noqa: BLE001 - as above
        return wrong(request, problem_of(error))


async def _answer(request: Request, token: str) -> Response:
    server = server_of(request)
    if not same_origin(request):
        raise Problem(403, "not_from_here", "a page of another site sent this: open the link, and press the button there")
    link = await _link(server, token)
    fields = await fields_of(request)
    desk = _desk(server, link)
    one = await one_of(desk, link.question_id)
    if link.dead is not None and one["row"]["status"] == "open":  # somebody else is asked now; what comes too late is kept
        return await _page(request, token, status=410)
    if link.sign_in and fields.get("choice") == "approve":
        return await _page(request, token, sentence=_SIGN_IN, status=403)
    try:
        said = answering.answer_of(one["row"], fields, desk.now_us())
        await server.layer.answer(link.question_id, said, by=link.name, note=fields.get("note", "").strip() or None)
    except (InvalidAnswer, AlreadyAnswered, QuestionExpired) as error:
        sentence = error.why if isinstance(error, InvalidAnswer) else str(error)
        return await _page(request, token, sentence=sentence, status=problem_of(error).status, filled=fields)
    return await _page(request, token, said=True)


async def _link(server: Server, token: str) -> Link:
    """Whose link this is.

    Raises:
        Problem: nobody's.
    """
    layer = server.layer
    key = links.signing_key(layer.store, layer.services.edge)
    now_us = layer.services.edge.now_us()

    def unit(tx: Tx) -> Link:
        return links.verify(tx, token, key, now_us)

    try:
        return await layer.store.read(unit)
    except links.UnknownLink as unknown:
        raise Problem(404, "not_found", str(unknown)) from unknown


def _desk(server: Server, link: Link) -> Desk:
    """Somebody who may see this client's question and nothing else; pages ask for more than that."""
    who = Who(id=f"l_{link.delivery_id}", name=link.name, scopes=frozenset(), clients=(link.client_id,), person_id=link.person_id)
    return Desk(server=server, who=who)


async def _page(
    request: Request, token: str, *, sentence: str = "", said: bool = False, status: int = 200, filled: Any = None
) -> Response:
    server = server_of(request)
    link = await _link(server, token)
    desk = _desk(server, link)
    one = await one_of(desk, link.question_id)
    render = partial(environment().get_template("link.html").render, title=one["card"].headline or "A question")
    text = render(  # looked at again: the answer that was just given is on it
        link=link, one=one, said=said, sentence=sentence, filled=filled or {}, action=f"/q/{token}", now_us=desk.now_us(),
        here="", open_count=None, form="", who=None, may_answer=link.dead is None, assets=assets(), version=__version__,
        sign_in=_SIGN_IN if link.sign_in and link.dead is None else "",
    )  # fmt: skip
    return HTMLResponse(text, status)
