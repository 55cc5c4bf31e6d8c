"""``/v1/runs``: start, list, look, resume, cancel."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Query
from starlette.responses import Response

from stepseven.errors import RunConflict
from stepseven.layer import new_run_id
from stepseven.model import RunStatus
from stepseven.runtime import choosing
from stepseven.runtime.procedure import Workflow, code_of
from stepseven.runtime.requeue import requeue
from stepseven.server import shapes, sight
from stepseven.server.documents import run_document, view
from stepseven.server.problems import Problem, invalid
from stepseven.server.routes import Desk, Here, needs, router, told
from stepseven.store.base import Row, Tx
from stepseven.store.codec import canonical, free_text, guard, storable
from stepseven.store.redact import find_secret
from stepseven.transitions import external, runs, tokens
from stepseven.transitions.runs import Admission
from stepseven.transitions.tokens import Scope

api = router("runs")
Limit = Annotated[int, Query(ge=1, le=sight.MOST)]
Cursor = Annotated[str | None, Query(max_length=300)]
Filter = Annotated[str | None, Query(max_length=200)]

_LINKS = {
    name: {"operationId": operation, "parameters": {"run_id": "$response.body#/run_id"}, "description": words}
    for name, operation, words in (
        ("run", "get_run", "The run whole."),
        ("why", "get_why", "What it waits for, in one sentence."),
        ("checkpoint", "get_checkpoint", "All that is known of it."),
        ("plan", "get_plan", "What a resume would do."),
        ("events", "get_events", "What becomes of it, as it happens."),
        ("resume", "resume_run", "Let it go on."),
        ("cancel", "cancel_run", "Stop it."),
    )
}
_RUN: dict[int | str, dict[str, Any]] = {200: {"model": shapes.Run, "links": _LINKS}}


@api.post(
    "/runs", operation_id="start_run", status_code=201, openapi_extra=needs(Scope.REPORT, Scope.OPERATE),
    responses={201: {"model": shapes.Run, "links": _LINKS, "description": "Admitted; that is on the disk."},
               200: {"model": shapes.Run, "links": _LINKS, "description": "The same run, which is there already."},
               404: {"description": "None of the token's clients."}, 409: {"description": "The id is another run's."}},
)  # fmt: skip
async def start(body: shapes.StartRun, here: Here) -> Response:
    """Admit a run. The same id with the same client, workflow and inputs is the same run.

    A workflow that a worker ever could execute is executed by workers; any other is executed elsewhere and reports its steps.
    """
    sight.client(here, body.client_id)
    admission, workflow = _admission(here, body)
    token_id = None if here.who.id.startswith("s_") else here.who.token_id
    now_us = here.now_us()

    def unit(tx: Tx) -> bool:
        there = tx.one(tx.sql.run_by_id, {"id": admission.run_id})
        if there is not None and not here.who.knows(there["client_id"]):  # whose it is, this token must not learn
            raise Problem(409, "conflict", f"the run id {admission.run_id} is taken: use another")
        outside = body.external if body.external is not None else not _ours(tx, admission.workflow, workflow)
        if outside:
            row, new = external.admit(tx, admission, body.steps, now_us)
        else:
            row, new = runs.admit(tx, admission, now_us), there is None
            if row["external"]:
                raise RunConflict(admission.run_id, "a workflow that is executed elsewhere")
            if body.steps:
                raise invalid("steps: workers find them in the workflow's code: leave them out")
        if new and token_id is not None:
            tx.run(tx.sql.note_start, {"run_no": row["no"], "token_id": token_id})
        return new

    new = await here.layer.store.write(unit, durable=True, client=admission.client_id)
    here.layer.services.stir()
    document = (await view(here.layer, admission.run_id)).document()
    return told(document, 201 if new else 200, Location=f"/v1/runs/{quote(admission.run_id, safe='')}")


def _ours(tx: Tx, name: str, loaded: Workflow[Any, Any] | None) -> bool:
    """Whether workers execute a workflow."""
    row = tx.one(tx.sql.workflow_known, {"name": name})
    return loaded is not None or (row is not None and bool(row["known"]))


def _admission(here: Desk, body: shapes.StartRun) -> tuple[Admission, Workflow[Any, Any] | None]:
    """The run as it would be admitted, and its code if that is loaded here. Inputs are kept as given."""
    client_id = _id(body.client_id, "client_id")
    run_id = _id(body.run_id, "run_id") if body.run_id is not None else _run_id(here, client_id)
    if any(not name.isprintable() or not storable(name) or find_secret(name) for name in body.steps):
        raise invalid("steps: use printable names, and no credential")
    workflow = code_of({"workflow": body.workflow, "id": run_id, "source_digest": None}) if body.external is not True else None
    if workflow is not None:
        _check(workflow, body.inputs)
    given = canonical(body.inputs, "inputs") if workflow is None else workflow.encode(body.inputs)
    text = guard(given, "inputs", secrets="refuse")
    made = Admission(
        run_id=run_id, client_id=client_id, workflow=body.workflow, goal=free_text(body.goal) if body.goal is not None else None,
        source_digest=None if workflow is None else workflow.digest, inputs=text,
    )  # fmt: skip
    return made, workflow


def _check(workflow: Workflow[Any, Any], inputs: dict[str, Any]) -> None:
    """Refuse now what the workflow's parameters do not take; a worker would find out later."""
    known, open_ended = workflow.parameters()
    strange = [name for name in inputs if name not in known and not open_ended]
    if strange:
        raise invalid(f"inputs: {workflow.name} has no input {strange[0][:100]!r}; it has: {', '.join(known) or 'none'}")
    missing = [name for name in workflow.required() if name not in inputs]
    if missing:
        raise invalid(f"inputs: {workflow.name} needs {missing[0]}")


def _run_id(here: Desk, client_id: str) -> str:
    """A fresh id; the same for the same request, where it came with an ``Idempotency-Key``."""
    if here.once is None:
        return new_run_id(here.layer.services.edge, client_id)
    return f"{client_id}-{here.once}"


def _id(text: str, what: str) -> str:
    if not storable(text) or any(c < " " or c in "/\x7f" for c in text) or find_secret(text):
        raise invalid(f"{what}: use 1 to 200 printable characters without '/', and no credential")
    return text


@api.get(
    "/runs", operation_id="list_runs", openapi_extra=needs(Scope.READ),
    responses={200: {"model": shapes.Page[shapes.RunInfo]}},
)  # fmt: skip
async def listed(
    here: Here, client: Filter = None, workflow: Filter = None, status: RunStatus | None = None, limit: Limit = sight.USUAL,
    cursor: Cursor = None,
) -> Response:  # fmt: skip
    """Runs, newest first, of the token's clients."""
    page = await sight.runs_page(
        here, client_id=client, workflow=workflow, status=None if status is None else status.value, limit=limit, cursor=cursor
    )
    return told({"items": [run_document(info) for info in page], "next": page.next})


@api.get("/runs/{run_id}", operation_id="get_run", openapi_extra=needs(Scope.READ), responses=_RUN)
async def one(run_id: str, here: Here) -> Response:
    """A run whole: what is done, what is asked, what it cost, its checkpoint. The same as `stepseven show RUN --json`."""
    await sight.run(here, run_id)
    return told((await view(here.layer, run_id)).document())


@api.get(
    "/runs/{run_id}/checkpoint", operation_id="get_checkpoint", openapi_extra=needs(Scope.READ),
    responses={200: {"model": shapes.Document}},
)  # fmt: skip
async def checkpoint(run_id: str, here: Here) -> Response:
    """All that is known of a run, as one small document."""
    await sight.run(here, run_id)
    return told(await here.layer.checkpoint(run_id))


@api.get(
    "/runs/{run_id}/plan", operation_id="get_plan", openapi_extra=needs(Scope.READ), responses={200: {"model": shapes.Document}},
)  # fmt: skip
async def plan(run_id: str, here: Here) -> Response:
    """What a resume would reuse, run and ask, and what each way to done costs. Changes nothing.

    Without the run's code in this server (`stepseven serve MODULE`) it shows the records, and calls the rest unknown.
    """
    await sight.run(here, run_id)
    found = await asyncio.to_thread(asyncio.run, here.layer.plan(run_id))  # the run's code meets its records: not in our loop
    return told(found.document())


@api.get("/runs/{run_id}/why", operation_id="get_why", openapi_extra=needs(Scope.READ), responses={200: {"model": shapes.Why}})
async def why(run_id: str, here: Here) -> Response:
    """One sentence: what the run waits for, who may move it, what happens next."""
    await sight.run(here, run_id)
    return told({"run_id": run_id, "why": await here.layer.why(run_id)})


@api.post("/runs/{run_id}/resume", operation_id="resume_run", openapi_extra=needs(Scope.OPERATE, secret=True), responses=_RUN)
async def resume(run_id: str, here: Here, body: shapes.Resume | None = None) -> Response:
    """Let a run go on: it is made ready, and a worker takes it as a recovery. What is chosen is on record before that.

    Of a run that has ended, or that is executed just now, and where nothing is chosen: the run as it is.
    """
    row = await sight.run(here, run_id)
    body = body or shapes.Resume()
    wanted = choosing.wanted(run_id, approach=body.approach, skip=body.skip, rerun=body.rerun, drift=body.drift, by=here.who.name)
    if not row["external"]:
        await requeue(here.layer.services, row, wanted)
        return told((await view(here.layer, run_id)).document())
    token = await resume_outside(here, row, chosen=wanted.anything)
    return told({**(await view(here.layer, run_id)).document(), "executor_token": token})


async def resume_outside(here: Desk, row: Row, *, chosen: bool) -> str | None:
    """Of a run that is executed elsewhere: what began before may report no more. Whoever goes on has a token of its own.

    Returns:
        That token; ``None``: the run has ended, or is about to, so that nobody goes on.
    """
    if chosen:
        raise invalid("nothing can be chosen for a run that is executed elsewhere: resume it, and begin its steps again")
    edge, now_us = here.layer.services.edge, here.now_us()
    secret = tokens.secret("", *edge.new_secret())
    parent = None if here.who.id.startswith("s_") else here.who.token_id

    def unit(tx: Tx) -> bool:
        seen = sight.find_run(tx, here, row["id"])
        run = external.resume(tx, seen, f"resumed by {here.who.name}", now_us)
        if run["fence"] == seen["fence"]:
            return False
        external.executor(tx, run, secret, parent_id=parent, name=f"executor of {run['id']}"[:200], now_us=now_us)
        return True

    going = await here.layer.store.write(unit, durable=True, client=row["client_id"])
    return secret.text if going else None


@api.post("/runs/{run_id}/cancel", operation_id="cancel_run", openapi_extra=needs(Scope.OPERATE), responses=_RUN)
async def cancel(run_id: str, here: Here, body: shapes.Cancel | None = None) -> Response:
    """Stop a run: at once if nobody executes it, else as soon as its writes in flight are settled. Nothing is taken back."""
    row = await sight.run(here, run_id)
    status = RunStatus(row["status"])
    if status.ended and status is not RunStatus.CANCELLED:
        raise Problem(409, "conflict", f"run {run_id} is {status} already: there is nothing to cancel", run_status=status.value)
    await here.layer.cancel(run_id, reason=(body or shapes.Cancel()).reason or "cancelled over HTTP", by=here.who.name)
    return told((await view(here.layer, run_id)).document())
