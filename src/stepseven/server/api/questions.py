"""``/v1/questions``: what waits for a person; and the questions of runs that are executed elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.responses import Response

from stepseven.decide._situation import context_of
from stepseven.decide.escalate import Draft
from stepseven.model import Option, QuestionKind, QuestionStatus, RunStatus
from stepseven.server import shapes, sight
from stepseven.server.api.runs import Cursor, Filter, Limit
from stepseven.server.documents import question_document
from stepseven.server.problems import Problem, invalid
from stepseven.server.routes import Desk, Here, needs, router, told
from stepseven.store.base import Row, Tx
from stepseven.store.codec import canonical, digest, free_text, storable
from stepseven.transitions import external, telling
from stepseven.transitions.state import question_of
from stepseven.transitions.telling import Asking
from stepseven.transitions.tokens import Scope, Who

api = router("questions")
#: What whoever executes a run must not decide in it: whether something is done outside, whether it was, and how much it may cost.
NOT_ITS_OWN = frozenset({QuestionKind.APPROVE, QuestionKind.UNKNOWN_OUTCOME, QuestionKind.CONFLICT, QuestionKind.LIMIT})

_LINKS = {
    name: {"operationId": operation, "parameters": {parameter: f"$response.body#/{field}"}, "description": words}
    for name, operation, parameter, field, words in (
        ("answer", "answer_question", "question_id", "id", "Answer it."),
        ("run", "get_run", "run_id", "run_id", "The run that asks."),
    )
}
_QUESTION: dict[int | str, dict[str, Any]] = {200: {"model": shapes.Question, "links": _LINKS}}


@api.get(
    "/questions", operation_id="list_questions", openapi_extra=needs(Scope.READ, Scope.ANSWER),
    responses={200: {"model": shapes.Page[shapes.Question]}},
)  # fmt: skip
async def listed(
    here: Here, status: QuestionStatus | None = QuestionStatus.OPEN, client: Filter = None, run_id: Filter = None,
    limit: Limit = sight.USUAL, cursor: Cursor = None,
) -> Response:  # fmt: skip
    """Questions, oldest first, of the token's clients. `status` is `open` unless it is said."""
    rows, more = await sight.questions_page(
        here, status=None if status is None else status.value, client_id=client, run_id=run_id, limit=limit, cursor=cursor
    )
    return told({"items": [question_document(question_of(row, row["run_id"])) for row in rows], "next": more})


@api.get(
    "/questions/{question_id}", operation_id="get_question", openapi_extra=needs(Scope.READ, Scope.ANSWER), responses=_QUESTION
)
async def one(question_id: str, here: Here) -> Response:
    """A question whole: its text, its choices, what it was asked on, and its answer."""
    row = await sight.question(here, question_id)
    return told(question_document(question_of(row, row["run_id"])))


@api.post(
    "/questions/{question_id}/answer", operation_id="answer_question", openapi_extra=needs(Scope.ANSWER),
    responses={**_QUESTION, 409: {"description": "It has its one answer: who gave it, what and when."},
               410: {"description": "It takes no answer any more."}},
)  # fmt: skip
async def answer(question_id: str, body: shapes.Answer, here: Here) -> Response:
    """Give a question its one answer. Who answers is the token's name, or the person who signed in."""
    row = await sight.question(here, question_id)
    refuse_own(here.who, row)
    done = await here.layer.answer(question_id, body.value, by=here.who.name, note=body.note)
    return told(question_document(done))


def refuse_own(who: Who, row: Row) -> None:
    """Refuse the answer of whoever executes the run, where that would be its own approval.

    A run that is executed elsewhere is executed by the token that started it, or that it was made for. One that workers execute
    is by nobody's token; but what may only report, and started it, is no person either.

    Raises:
        Problem: it may not.
    """
    if row["kind"] not in NOT_ITS_OWN or who.token_id is None:
        return
    executes = (row["token_id"], row["executor_parent"])  # since a resume: a token of its own, and whoever asked for that
    mine = who.token_id in executes or (who.run_no is not None and who.run_no == row["run_no"])
    if mine and (row["external"] or Scope.REPORT in who.scopes):
        why = f"this token executes the run, so somebody else answers its {row['kind']}: sign in, or use another token"
        raise Problem(403, "own_run", why)


# -- asking ---------------------------------------------------------------------------------------------------------------


@api.post(
    "/runs/{run_id}/questions", operation_id="ask_question", status_code=201, openapi_extra=needs(Scope.REPORT),
    responses={201: {"model": shapes.Question, "links": _LINKS},
               200: {"model": shapes.Question, "links": _LINKS, "description": "The same question, which stands already."}},
)  # fmt: skip
async def ask(run_id: str, body: shapes.Ask, here: Here) -> Response:
    """Ask a person something, in a run that is executed elsewhere. The same question of the same run is asked once."""
    run = await sight.run(here, run_id)
    asking = _asking(here, run, body)
    now_us = here.now_us()

    def unit(tx: Tx) -> tuple[Row, bool]:
        fresh = sight.find_run(tx, here, run_id)
        if RunStatus(fresh["status"]).ended:
            raise Problem(409, "superseded", f"run {run_id} is {fresh['status']}: nothing is asked in it any more")
        there = _standing(tx, fresh["no"], asking)
        new = there is None
        if there is None:
            held = external.hold(tx, fresh, now_us)
            whole = _put(tx, fresh, asking)
            telling.insert(tx, whole, run_no=fresh["no"], client_id=fresh["client_id"], now_us=now_us)
            external.turn(tx, held, now_us)
        row = tx.one(tx.sql.question_in_sight, {"id": asking.id if there is None else there, "clients": here.who.sight})
        assert row is not None  # just stored, or just found  # noqa: S101
        return row, new

    row, new = await here.layer.store.write(unit, durable=True, client=run["client_id"])
    return told(question_document(question_of(row, run_id)), 201 if new else 200, Location=f"/v1/questions/{row['id']}")


def _asking(here: Desk, run: Row, body: shapes.Ask) -> Asking:
    if not run["external"]:
        raise Problem(409, "conflict", f"run {run['id']} is executed by workers: its own code asks (run.ask)")
    options = tuple(
        Option(id=o, label=o) if isinstance(o, str) else Option(**o.model_dump(exclude_none=True)) for o in body.options
    )
    ids = [option.id for option in options]
    if len(set(ids)) != len(ids):
        raise invalid("options: two have the same id: name each once")
    if body.recommendation is not None and body.recommendation not in ids:
        raise invalid("recommendation: name the id of one of the options")
    if not body.text.strip():
        raise invalid("text: say what is asked")
    about = None if body.about is None else digest(canonical(body.about, "about"))
    context: dict[str, Any] = {} if body.about is None else {"about": body.about}
    key = body.key if body.key is not None else digest(free_text(body.text))
    if not storable(key, body.to):
        raise invalid("key, to: use printable text")
    return Asking(
        id=here.layer.services.edge.new_id("q"), branch="", key=f"outside/{free_text(key, 200)}", n=1, kind=QuestionKind.ASK,
        draft=Draft(text=free_text(body.text), options=options, recommendation=body.recommendation, context=context), about=about,
        asked_of=body.to, deadline_us=body.deadline_us,
    )  # fmt: skip


def _mine(tx: Tx, run_no: int, asking: Asking) -> list[Row]:
    rows = tx.all(tx.sql.questions_of_run, {"run_no": run_no})
    same = [row for row in rows if (row["branch"], row["kind"], row["key"]) == (asking.branch, asking.kind.value, asking.key)]
    return sorted(same, key=lambda row: int(row["n"]))


def _standing(tx: Tx, run_no: int, asking: Asking) -> str | None:
    """The id under which the question stands, asked about the same."""
    rows = _mine(tx, run_no, asking)
    return str(rows[-1]["id"]) if rows and rows[-1]["about"] == asking.about else None


def _put(tx: Tx, run: Row, asking: Asking) -> Asking:
    """The question with what is known of the run, and its number among those of its name."""
    rows = _mine(tx, run["no"], asking)
    context = context_of(external.situation(tx, run), facts=asking.draft.context)
    context["headline"], context["more"] = asking.draft.text.split("\n", 1)[0], ""
    return replace(asking, n=int(rows[-1]["n"]) + 1 if rows else 1, draft=replace(asking.draft, context=context))
