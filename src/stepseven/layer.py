"""``Layer``: the one object an application holds. It opens the store, drives runs, and answers what is known about them.

Longer than other files on purpose: the public object in one place, its signatures and their docstrings.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, overload

from stepseven.clients import Client
from stepseven.decide.retention import span_us
from stepseven.engines.embedded import Worker
from stepseven.engines.modules import workflows_of
from stepseven.errors import (
    AlreadyAnswered,
    InvalidChoice,
    NotRecordable,
    NotYetBuilt,
    QuestionExpired,
    SecretFound,
    StoreUnavailable,
    TooLarge,
    UnknownRun,
    UnknownWorkflow,
)
from stepseven.model import (
    Failure,
    FailureKind,
    Incident,
    IncidentAnswered,
    Limits,
    Outcome,
    Page,
    Pruned,
    Question,
    QuestionStatus,
    RunInfo,
    RunStatus,
    Spend,
    WaitingFor,
)
from stepseven.runtime import checks, choosing, explain, files, retention
from stepseven.runtime.driver import Driver
from stepseven.runtime.edge import Edge
from stepseven.runtime.procedure import Workflow, WorkflowCall, code_of
from stepseven.runtime.retention import Retention
from stepseven.runtime.services import Services
from stepseven.runtime.services import Worker as Owner
from stepseven.runtime.undoing import take_back  # noqa: F401 - a workflow is known once it is imported
from stepseven.store._url import hide_password
from stepseven.store.artifacts import IN_TABLE, Artifacts
from stepseven.store.base import Row, Store, Tx
from stepseven.store.codec import MAX_RESULT, canonical, free_text, guard, storable
from stepseven.store.redact import find_secret
from stepseven.store.sqlite import SqliteStore
from stepseven.transitions import children, family, forks, incidents, objecting, questions, runs
from stepseven.transitions.incidents import Answering, Said
from stepseven.transitions.runs import Admission
from stepseven.transitions.state import question_of

if TYPE_CHECKING:
    from stepseven.decide.plan import Plan
    from stepseven.store.postgres import PostgresStore

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

LATER = "comes with a later release of stepseven"
MAX_ID = 200
_UNSEEN = re.compile(r"[\x00-\x1f/\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # what steers a terminal, or hides what an id is
MAX_PAGE = 100_000  # of runs or questions at once


def open_store(url: str, *, always_durable: bool = False, upgrade: bool = False, edge: Edge | None = None) -> Store:
    """The store a URL names: ``sqlite:///file``, ``sqlite:////absolute/file``, ``sqlite:///:memory:`` or ``postgresql://…``.

    What follows ``?`` in a PostgreSQL URL (``sslmode=require`` and the like) is passed to the driver as it stands.

    Args:
        url: where it is.
        always_durable: every commit waits for the disk.
        upgrade: bring a store that an older version wrote to this version's schema; without it such a store is refused.
        edge: where chance comes in, which spreads those that wait for one file; default: the real world.

    Raises:
        StoreUnavailable: the URL is of no known kind, the driver is not installed, or the database cannot be opened.
        SchemaMismatch: another version of stepseven wrote the database.
    """
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme == "sqlite":
        path = rest.removeprefix("/")
        if not path:  # an unset variable in "sqlite:///$FILE" must not mean a store that forgets
            raise StoreUnavailable(url, "it names no file: say sqlite:///FILE (or sqlite:///:memory: for one that forgets)")
        return SqliteStore(url, path, always_durable=always_durable, upgrade=upgrade, chance=(edge or Edge()).chance)
    if scheme in ("postgres", "postgresql"):
        return _postgres(url)(url, always_durable=always_durable, upgrade=upgrade, chance=(edge or Edge()).chance)
    if scheme.partition("+")[0] in ("postgres", "postgresql"):
        raise StoreUnavailable(hide_password(url), "name no driver in the URL: say postgresql://… (psycopg is the one used)")
    raise StoreUnavailable(hide_password(url), "the URL must begin with sqlite:/// (or postgresql://)")


def _postgres(url: str) -> type[PostgresStore]:
    """The store on PostgreSQL. Its driver is an extra, so it is imported when it is used."""
    try:
        from stepseven.store.postgres import PostgresStore
    except ImportError as error:
        if not (error.name or "psycopg").startswith("psycopg"):  # it has no name when the driver finds no library of its own
            raise
        why = "the driver for PostgreSQL is missing: pip install 'stepseven[postgres]'"
        raise StoreUnavailable(hide_password(url), why) from error
    return PostgresStore


class Layer:
    """The recovery layer over one store.

    Args:
        url: where state is kept; default: environment variable STEPSEVEN_URL, else ``sqlite:///stepseven.db``.
        durability: ``effects``: free reads reach the disk within 0.2 s, everything else at once; ``full``: all at once.
        engine: ``embedded``; others come with a later release.
        artifacts: folder for results over 64 KiB; default: beside the database file, in the database on PostgreSQL. Workers
            on several machines need one that all of them see.
        limits: ceilings for every run.
        classify: exception → kind, after the steps' own and before the table.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        durability: Literal["effects", "full"] = "effects",
        engine: str = "embedded",
        artifacts: str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        classify: Callable[[BaseException], Any] | Sequence[Callable[[BaseException], Any]] | None = None,
        edge: Edge | None = None,
    ) -> None:
        checks.text_or_none("url", url, "give a URL as text, such as 'sqlite:///stepseven.db'")
        if engine != "embedded":
            raise NotYetBuilt(f"engine={checks.shown(engine)}")
        if durability not in ("effects", "full"):
            raise checks.refused("durability", durability, "say 'effects' or 'full'")
        if not isinstance(artifacts, str | os.PathLike | None):
            raise checks.refused("artifacts", artifacts, "give the path of a folder, or leave it out")
        if not isinstance(limits, Limits | None):
            raise checks.refused("limits", limits, "give Limits(usd=…, steps=…), or leave it out")
        own = _classifiers(classify)
        self.url = url or os.environ.get("STEPSEVEN_URL") or "sqlite:///stepseven.db"
        kept_us = retention.keep_us()
        edge = edge or Edge()
        self.store = open_store(self.url, always_durable=durability == "full", edge=edge)
        worker = Owner(self.store, edge)
        self.services = Services(
            store=self.store, edge=edge, worker=worker, durability=durability, limits=limits, classify=own,
            artifacts=Artifacts(
                _artifact_folder(self.store, artifacts), own=artifacts is None,
                announce=partial(files.announce, self.store, edge), clock=edge.file_clock,
                in_table=IN_TABLE if artifacts is not None or hasattr(self.store, "path") else MAX_RESULT,
            ),
        )  # fmt: skip
        worker.housekeeping = self._retention = Retention(self.store, edge, self.services.artifacts, kept_us)
        self._driver = Driver(self.services)
        self._workers: list[Worker] = []
        self._closed = False

    # -- running --------------------------------------------------------------------------------------------------------

    @overload
    async def run(
        self, call: WorkflowCall[R], *, client: str, run_id: str | None = None, goal: str | None = None, wait: float | None = None
    ) -> Outcome[R]: ...
    @overload
    async def run(
        self,
        call: Workflow[P, R],
        *,
        client: str,
        run_id: str | None = None,
        goal: str | None = None,
        wait: float | None = None,
        **inputs: Any,
    ) -> Outcome[R]: ...
    async def run(
        self,
        call: Any,
        *,
        client: str,
        run_id: str | None = None,
        goal: str | None = None,
        wait: float | None = None,
        **inputs: Any,
    ) -> Outcome[Any]:
        """Run a workflow for a client, as far as it gets. A known id with equal inputs continues that run.

        Args:
            call: ``renewal(quarter="Q3")``, or the workflow with its inputs as keyword arguments.
            client: whom it is for.
            run_id: its id; default: made from client and date.
            goal: what it is for, in words.
            **inputs: the workflow's inputs, when *call* is the workflow itself.
            wait: seconds to wait for people and long timers, too. Timers, circuits and effects up to 30 s always are.

        Returns:
            What became of it. Never raises what happened in the run; ``outcome.result()`` does.

        Raises:
            RunConflict: the id belongs to a run with another client, workflow or inputs.
            InvalidArgument: something else than the inputs is not of its form. Nothing was admitted.
        """
        checks.seconds("wait", wait)
        admission, workflow = self._admission(call, inputs, client, run_id, goal)
        row = await self._driver.admit_and_drive(admission, workflow, wait=wait)
        return await self.outcome(row, workflow)

    @overload
    async def start(
        self, call: WorkflowCall[Any], *, client: str, run_id: str | None = None, goal: str | None = None
    ) -> RunInfo: ...
    @overload
    async def start(
        self, call: Workflow[Any, Any], *, client: str, run_id: str | None = None, goal: str | None = None, **inputs: Any
    ) -> RunInfo: ...
    async def start(
        self, call: Any, *, client: str, run_id: str | None = None, goal: str | None = None, **inputs: Any
    ) -> RunInfo:
        """Admit a run and leave it to a worker (or to ``resume``). Durable when this returns.

        Raises:
            RunConflict: the id belongs to a run with another client, workflow or inputs.
            InvalidArgument: something else than the inputs is not of its form. Nothing was admitted.
        """
        admission, _ = self._admission(call, inputs, client, run_id, goal)
        now = self.services.edge.now_us()
        await self.store.write(lambda tx: runs.admit(tx, admission, now), durable=True, client=admission.client_id)
        self.services.stir()
        return await self._info(admission.run_id)

    async def resume(
        self,
        run_id: str,
        *,
        approach: Mapping[str, str] | None = None,
        skip: Mapping[str, Any] | None = None,
        rerun: Collection[str] | None = (),
        drift: Literal["keep", "refresh"] | None = None,
        wait: float | None = None,
        by: str | None = None,
        plan: Plan | None = None,
    ) -> Outcome[Any]:
        """Go on with a run, as far as it gets; of an ended one: its outcome.

        What is chosen is on record before anything begins, and whoever takes the run after a crash obeys it. It answers what was
        asked about these steps. It holds until the step has a newer record, or something else is chosen about it.

        Args:
            run_id: the run.
            approach: step → label of the approach its next tries use, also of one that only a person chooses (``ask=True``);
                ``"as written"`` is the step's own code. A write is tried only once it is certain that it has not happened.
            skip: step → the result, of the step's type, that each of its calls gets which is not on record; ``None``: it is
                skipped and gives ``None``. In a map that ends the item.
            rerun: read steps whose results are made anew, with what they call; a list of names, or one. Later steps run again if
                they get other arguments.
            drift: what becomes of facts that moved: ``"keep"`` what the run knows, or ``"refresh"``; default: it asks.
            wait: seconds to wait for people and long timers, too.
            by: who resumes it, and chooses; kept with the recovery.
            plan: what was looked at before that (``layer.plan``); kept with the choice, too.

        Raises:
            UnknownRun: there is none with this id.
            UnknownWorkflow: its code is not loaded here.
            InvalidChoice: something that was chosen cannot be obeyed: the run has ended or is executed elsewhere, has no such
                step or approach, or the value does not fit. Nothing was changed.
            SecretFound, TooLarge: a value must not be kept. Nothing was changed.
            InvalidArgument: the id, ``wait``, ``by`` or ``plan`` is not of its form. Nothing was changed.
        """
        checks.seconds("wait", wait)
        wanted = choosing.wanted(run_id, approach=approach, skip=skip, rerun=rerun, drift=drift, by=by)
        if plan is not None:
            wanted = replace(wanted, plan=json.dumps(_document(plan), ensure_ascii=False))
        row = await self.store.read(lambda tx: runs.known(tx, run_id))
        if not RunStatus(row["status"]).ended:
            workflow = code_of(row)
            if workflow is None:
                raise UnknownWorkflow(row["workflow"], run_id)
            if wanted.anything:
                row = await self._driver.resume(run_id, workflow, wanted, wait=wait)
            else:
                row = await self._driver.drive(run_id, workflow, wait=wait, by=wanted.by)
        elif wanted.anything:
            raise InvalidChoice(run_id, choosing.ended(row))
        return await self.outcome(row)

    def run_blocking(self, call: WorkflowCall[R] | Workflow[..., R], **how: Any) -> Outcome[R]:
        """``run``, from code that is not async; also inside a notebook's running loop."""
        return _blocking(lambda: self.run(call, **how))

    def resume_blocking(self, run_id: str, **how: Any) -> Outcome[Any]:
        """``resume``, from code that is not async; also inside a notebook's running loop."""
        return _blocking(lambda: self.resume(run_id, **how))

    def _admission(
        self, call: Any, inputs: dict[str, Any], client: str, run_id: str | None, goal: str | None
    ) -> tuple[Admission, Workflow[Any, Any]]:
        if isinstance(call, Workflow):
            call = call(**inputs)
        elif inputs:
            raise checks.refused("inputs", inputs, f"inputs belong into the call: renewal({', '.join(inputs)}=…)")
        if not isinstance(call, WorkflowCall):
            raise checks.refused("call", call, "layer.run needs a workflow or a call of one, such as renewal(quarter='Q3')")
        checks.text_or_none("goal", goal, "say in words what the run is for, or leave it out")
        _checked_id(client, "client")
        run_id = _checked_id(run_id, "run_id") if run_id is not None else new_run_id(self.services.edge, client)
        text = guard(call.workflow.encode(call.given), "inputs", secrets="refuse")
        if len(text) > MAX_RESULT:
            raise TooLarge("inputs", len(text), MAX_RESULT)
        made = Admission(
            run_id=run_id, client_id=client, workflow=call.workflow.name, source_digest=call.workflow.digest,
            goal=free_text(goal) if goal is not None else None, inputs=text,
        )  # fmt: skip
        return made, call.workflow

    # -- looking ----------------------------------------------------------------------------------------------------------

    async def outcome(self, row: Row, workflow: Workflow[Any, Any] | None = None) -> Outcome[Any]:
        """A run's row as an outcome. *workflow*: the code that was called; default: what this process knows by the name."""
        status = RunStatus(row["status"])

        def unit(tx: Tx) -> tuple[tuple[int, int], list[Row], list[Question]]:
            asked = tx.all(tx.sql.questions_of_run, {"run_no": row["no"]})
            return family.spend(tx, row["no"]), asked, children.open_questions(tx, row["no"])

        (uusd, tokens), asked, below = await self.store.read(unit)
        workflow = workflow or code_of(row)
        value = None
        if status is RunStatus.DONE and row["value"] is not None:
            value = workflow.typed.decode(row["value"]) if workflow is not None else json.loads(row["value"])
        return Outcome(
            run_id=row["id"], status=status, value=value,
            questions=(
                *(question_of(q, row["id"]) for q in asked if q["status"] == "open" and q["folded_into"] is None), *below
            ),
            failure=_failure(row), spend=Spend(usd=uusd / 1e6, tokens=tokens, seconds=row["executing_us"] / 1e6),
            waiting_for=WaitingFor(row["waiting_for"]) if row["waiting_for"] else None, until_us=row["wake_us"],
            cut=status is RunStatus.DONE and row["value"] is None and row["pruned_us"] is not None,
        )  # fmt: skip

    async def _info(self, run_id: str) -> RunInfo:
        row = await self.store.read(lambda tx: tx.one(tx.sql.run_info, {"id": run_id}))
        if row is None:
            raise UnknownRun(run_id)
        return _run_info(row)

    async def checkpoint(self, run_id: str) -> dict[str, Any]:
        """All that is known of a run, as one small document.

        Raises:
            UnknownRun: there is none with this id.
        """
        checks.text("run_id", run_id, checks.RUN)
        return await self.store.read(lambda tx: family.checkpoint(tx, run_id))

    async def plan(
        self,
        run_id: str,
        *,
        approach: Mapping[str, str] | None = None,
        skip: Mapping[str, Any] | None = None,
        rerun: Collection[str] | None = (),
        drift: Literal["keep", "refresh"] | None = None,
    ) -> Plan:
        """What a resume of a run would reuse, run and ask, and what each way to done costs. Changes nothing.

        The run's code is let meet its records, as at any resume, and stops at the first call that is not on record; what comes
        after is read from its source. Probes, ``.verify`` and other looks are asked. What a step that runs will return nobody
        knows before: the money and the questions are upper bounds, as long as nothing fails that did not fail before.

        Args:
            run_id: the run.
            approach: what would be chosen when it is resumed: which step is tried in which way,
            skip: which step gets which value,
            rerun: which results are made anew,
            drift: what becomes of what moved; all as ``resume`` takes them.

        Raises:
            UnknownRun: there is none with this id.
            AmbiguousWorkflow: several modules have a workflow of its name, and none is the code it was executed with.
            UnknownWorkflow, InvalidChoice, SecretFound, TooLarge: as of ``resume``, where something is chosen.
        """
        from stepseven.runtime import planning  # read from disk when it is needed: most processes never plan

        wanted = choosing.wanted(run_id, approach=approach, skip=skip, rerun=rerun, drift=drift, by=None)
        return await planning.plan(self.services, run_id, wanted)

    async def why(self, run_id: str) -> str:
        """One sentence: what the run waits for, who may move it, what happens next.

        Raises:
            UnknownRun: there is none with this id.
        """
        checks.text("run_id", run_id, checks.RUN)
        here = self._driver.where(run_id)
        now = self.services.edge.now_us()
        dead = self.services.worker.reported_dead
        return await self.store.read(lambda tx: explain.why(tx, run_id, now, dead(tx), here))

    async def runs(
        self,
        *,
        client: str | None = None,
        workflow: str | None = None,
        status: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[RunInfo]:
        """Runs, newest first."""
        checks.texts_or_none(client=client, workflow=workflow)
        _checked_status(status, RunStatus)
        before, limit = _cursor_no(cursor), _checked_limit(limit)
        if not storable(client, workflow):
            return Page([], None)
        params = {"client_id": client, "workflow": workflow, "status": status, "limit": limit + 1, "before": before}
        rows = await self.store.read(lambda tx: tx.all(tx.sql.runs_page, params))
        more = str(rows[limit - 1]["no"]) if len(rows) > limit else None
        return Page([_run_info(row) for row in rows[:limit]], more)

    async def questions(
        self,
        *,
        status: str | None = "open",
        client: str | None = None,
        run_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Question]:
        """Questions, oldest first. ``status=None``: all."""
        checks.texts_or_none(client=client, run_id=run_id)
        _checked_status(status, QuestionStatus)
        limit = _checked_limit(limit)
        after_us, _, after_id = (checks.text_or_none("cursor", cursor, _CURSOR) or "0:").partition(":")
        if not _is_number(after_us):
            raise checks.refused("cursor", cursor, _CURSOR)
        if not storable(client, run_id, after_id):
            return Page([], None)
        params = {
            "status": status, "client_id": client, "run_id": run_id, "limit": limit + 1, "after_us": int(after_us),
            "after_id": after_id,
        }  # fmt: skip
        rows = await self.store.read(lambda tx: tx.all(tx.sql.questions_page, params))
        last = rows[limit - 1] if len(rows) > limit else None
        more = f"{last['created_us']}:{last['id']}" if last is not None else None
        return Page([question_of(row, row["run_id"]) for row in rows[:limit]], more)

    async def incidents(self, *, status: str | None = "open", client: str | None = None, limit: int = 100) -> list[Incident]:
        """Open questions of one cause, across runs and clients, oldest first.

        Args:
            status: ``open``, ``closed``, or ``None``: both.
            client: only those that hold up this client; they are shown whole all the same.
            limit: so many at most.
        """
        checks.texts_or_none(client=client)
        if status not in (None, "open", "closed"):
            raise checks.refused("status", status, "one of open, closed")
        limit = _checked_limit(limit)
        if not storable(client):
            return []
        now = self.services.edge.now_us()
        return await self.store.read(lambda tx: incidents.page(tx, status, client, None, limit, now))

    # -- deciding ---------------------------------------------------------------------------------------------------------

    async def answer(self, question_id: str, value: Any, *, by: str, note: str | None = None) -> Question:
        """Answer a question: once, by id. Needs only the store; whoever executes the run goes on.

        Raises:
            UnknownQuestion, AlreadyAnswered, QuestionExpired: nothing was changed; what came too late is kept beside it.
            InvalidAnswer: not one of the choices, or not of the asked type; the question stays open.
            InvalidArgument: the id, ``by`` or ``note`` is no text; the question stays open.
        """
        checks.text("question_id", question_id, checks.QUESTION)
        checks.person("by", by, "say who answers, as text")
        checks.text_or_none("note", note)
        text = _answer_text(value)
        plain = value if text is None else json.loads(guard(text, "answer", secrets="refuse"))
        now = self.services.edge.now_us()
        shown = free_text(note) if note is not None else None
        asked = None
        if storable(question_id):
            asked = await self.store.read(lambda tx: tx.one(tx.sql.question, {"id": question_id}))
        whose, said_by = None if asked is None else asked["client_id"], free_text(by, 200)
        try:
            row = await self.store.write(
                lambda tx: questions.answer(tx, question_id, plain, by=said_by, note=shown, now_us=now),
                durable=True, client=whose,
            )  # fmt: skip
        except (AlreadyAnswered, QuestionExpired):  # too late to be the answer; kept beside it
            await self.store.write(
                lambda tx: objecting.keep(tx, question_id, plain, by=said_by, note=shown, now_us=now), durable=True, client=whose
            )
            raise
        self._driver.answered(row["id"])
        if row["remember"] is not None:
            self._driver.learned(row["client_id"], json.loads(row["remember"])["key"])
        return question_of(row, row["run_id"])

    async def answer_incident(
        self,
        incident_id: str,
        value: Any,
        *,
        by: str,
        note: str | None = None,
        questions: Collection[str] | None = None,
        clients: Collection[str] | None = None,
    ) -> IncidentAnswered:
        """Answer the open questions of an incident, or some of them: each takes the answer by its own rules, or stays open.

        Args:
            incident_id: the incident.
            value: as ``answer`` takes it.
            by: who answers.
            note: kept with each answer.
            questions: only these.
            clients: only what is asked for these clients; nothing else is seen. ``None``: all.

        Raises:
            UnknownIncident: there is none with this id, or nothing in it is of these clients; nothing was changed.
            SecretFound: *value* holds a credential; nothing was changed.
            InvalidArgument: something is not of its form; nothing was changed.
        """
        checks.text("incident_id", incident_id, "give an incident's id, such as i_7f3k9m2xw4tp")
        checks.person("by", by, "say who answers, as text")
        checks.text_or_none("note", note)
        text = _answer_text(value)
        said = Said(
            value=value if text is None else json.loads(guard(text, "answer", secrets="refuse")), by=free_text(by, 200),
            note=free_text(note) if note is not None else None, questions=_names("questions", questions),
            clients=_names("clients", clients),
        )  # fmt: skip
        done: list[str] = []
        refused: dict[str, str] = dict.fromkeys(said.questions or (), "it is no open question of this incident")
        so_far = Answering()
        while not so_far.over:
            now = self.services.edge.now_us()
            bite = partial(incidents.answer, incident_id=incident_id, said=said, so_far=so_far, now_us=now)
            so_far = await self.store.write(bite, durable=True, client=None)
            done += [row["id"] for row in so_far.answered]
            refused |= so_far.refused
        for question_id in done:
            self._driver.answered(question_id)
            refused.pop(question_id, None)
        left = await self.store.read(partial(incidents.left, incident_id=incident_id, clients=said.clients))
        return IncidentAnswered(id=incident_id, answered=tuple(done), refused=refused, open=left)

    async def cancel(self, run_id: str, *, reason: str, by: str | None = None) -> RunStatus:
        """Stop a run: at once if nobody executes it, else as soon as its writes in flight are settled.

        Returns:
            Its status now: ``cancelled``, ``cancelling``, or what it had ended as before.

        Raises:
            UnknownRun: there is none with this id.
        """
        checks.text("run_id", run_id, checks.RUN)
        checks.text("reason", reason, "say why, as text")
        checks.person_or_none("by", by, "say who cancels, as text")
        why = free_text(f"{reason} (by {by})" if by else reason, 300)
        now = self.services.edge.now_us()

        def unit(tx: Tx) -> str:
            return runs.request_cancel(tx, run_id, why, now, self.services.worker.dead_workers(tx))

        whose = (await self.store.read(lambda tx: runs.known(tx, run_id)))["client_id"]
        status = RunStatus(await self.store.write(unit, durable=True, client=whose))
        self._driver.cancelled(run_id, why)
        for below in await self.store.read(lambda tx: family.live_descendants(tx, runs.known(tx, run_id)["no"])):
            self._driver.cancelled(below["id"], f"run {run_id}, which started it, was cancelled: {why}")
        return status

    async def fork(self, run_id: str, *, from_step: str, inputs: Mapping[str, Any] | None = None) -> RunInfo:
        """A new run that has the old one's records up to *from_step*, and shares its receipts.

        Args:
            run_id: the run to fork.
            from_step: the first step that is to run anew; it and everything recorded after it is left out.
            inputs: inputs that differ.

        Raises:
            UnknownRun: there is none with this id.
            InvalidChoice: the run has no record of *from_step*, or its workflow has no such input.
            NotRecordable: an input is not of its parameter's type.
            InvalidArgument: something is not of its form. Nothing was made.
        """
        checks.text("run_id", run_id, checks.RUN)
        checks.text("from_step", from_step, "give the name of the first step that is to run anew, as text")
        differing = checks.named("inputs", inputs, '{"quarter": "Q3"}')
        new_id = f"{run_id}-fork-{self.services.edge.new_id('r')[2:8]}"
        changed = {k: guard(canonical(v, f"inputs.{k}"), f"inputs.{k}", secrets="refuse") for k, v in differing.items()}
        run = await self.store.read(lambda tx: runs.known(tx, run_id))
        if changed:
            _check_inputs(run_id, code_of(run), changed)
        now = self.services.edge.now_us()
        await self.store.write(
            lambda tx: forks.fork(tx, run_id, new_id, from_step, changed, now), durable=True, client=run["client_id"]
        )
        self.services.stir()
        return await self._info(new_id)

    # -- clients ----------------------------------------------------------------------------------------------------------

    def client(self, id: str) -> Client:
        """What is known about a client, and whether anything may begin for it. Synchronous; the first ``set`` creates it.

        Raises:
            InvalidArgument: *id* is no id.
        """
        return Client(self.services, _checked_id(id, "client"), learned=self._driver.learned)

    # -- keeping it small -------------------------------------------------------------------------------------------------

    async def prune(self, *, older_than: float | str | timedelta) -> Pruned:
        """Shrink runs that ended long ago to summaries, decisions and receipts, in small bites that nobody has to wait for.

        Never shrunk: what has not ended, a run with an open question, the newest finished run of each client and workflow and
        any that a run which has not ended may have started from; before midnight (UTC) a run that was under way at the last one.
        Kept of a run: its row (with a value up to 4 KiB), its checkpoint, a line per step, the reasons of failures, questions
        with their answers, effects with their receipts; facts are not touched.

        Args:
            older_than: days since a run's end as a number, ``"90d"``, ``"12h"``, or a ``timedelta``.

        Returns:
            How much is gone; when the layer is closed meanwhile, so far. The file keeps its size; ``stepseven prune --vacuum``
            gives the space back.

        Raises:
            InvalidArgument: *older_than* is none of these.
        """
        if not isinstance(older_than, int | float | str | timedelta):
            raise checks.refused("older_than", older_than, "say days as a number, '90d', '12h', or a timedelta")
        age_us = checks.said("older_than", older_than, span_us)
        return await asyncio.to_thread(self._retention.by_hand, self.services.edge.now_us() - age_us)

    # -- many runs ----------------------------------------------------------------------------------------------------------

    def worker(self, *modules: str | ModuleType, concurrency: int = 8) -> Worker:
        """A worker: takes any run of these workflows that is due, and executes it in this process. Nothing is taken yet.

        ``async with layer.worker("renewals"):`` works until the block ends; ``worker.run_blocking()`` until SIGTERM or Ctrl-C.

        Args:
            modules: names of modules, or modules, whose workflows it takes runs of; none: every workflow this process knows.
            concurrency: how many runs are in memory at once. What waits for long is put away and is none of them.

        Raises:
            NothingToRun: a module cannot be imported or has no workflow; or this process knows none.
            InvalidArgument: *concurrency* is no such number, or something is neither a module nor a name.
        """
        if type(concurrency) is not int or concurrency < 1:
            raise checks.refused("concurrency", concurrency, "say how many runs at once, 1 or more")
        for module in modules:
            if not isinstance(module, ModuleType):
                checks.text("modules", module, "layer.worker takes modules or their names, such as 'renewals'")
        made = Worker(self.services, self._driver, workflows_of(modules), concurrency=concurrency)
        self._workers.append(made)
        return made

    # -- later releases -----------------------------------------------------------------------------------------------------

    async def review(self, *, days: int = 7) -> Any:
        """Failed and escalated runs as a set. Comes with a later release."""
        raise NotYetBuilt(f"layer.review(days={days})")

    async def board(self) -> Any:
        """Clients × workflows. Comes with a later release."""
        raise NotYetBuilt("layer.board()")

    # -- closing --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give back the runs in memory and close the store. Writes in flight are finished and recorded first."""
        if not self._closed:
            self._closed = True
            await asyncio.gather(*(worker.aclose() for worker in self._workers))
            await self._driver.close()
            await asyncio.to_thread(self._close)

    def close(self) -> None:
        """Close the store, from code that is not async. Runs must not be under way, nor a worker."""
        if not self._closed:
            self._closed = True
            self._close()

    def _close(self) -> None:
        self._retention.stop()
        worker = self.services.worker
        if worker.beating and not worker.stranded and worker.housekeeping is not None:
            self._retention.at_exit()
        worker.stop()
        self.store.close()


def _names(what: str, given: Any) -> frozenset[str] | None:
    """Ids that narrow something down.

    Raises:
        InvalidArgument: these are none.
    """
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(each, str) for each in given):
        raise checks.refused(what, given, "give ids as a list of texts, or leave it out")
    return frozenset(given)


_CURSOR = "use the `next` of the page before"


def _classifiers(told: Any) -> tuple[Callable[[BaseException], Any], ...]:
    """Functions that say what an exception means: one, or several."""
    given = (told,) if callable(told) else told or ()
    own = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(map(callable, own)):
        raise checks.refused("classify", told, "give a function that takes an exception, or a list of such functions")
    return own


def _document(plan: Any) -> dict[str, Any]:
    """What was looked at before a resume, as it is kept."""
    from stepseven.decide.plan import Plan

    if not isinstance(plan, Plan):
        raise checks.refused("plan", plan, "give what layer.plan gave, or leave it out")
    return plan.document()


def _checked_status(status: Any, known: type[RunStatus | QuestionStatus]) -> None:
    if status is not None and not (isinstance(status, str) and status in set(known)):
        raise checks.refused("status", status, f"one of {', '.join(known)}")


def _check_inputs(run_id: str, workflow: Workflow[Any, Any] | None, changed: Mapping[str, str]) -> None:
    """Refuse now what the workflow's parameters do not take; without its code nobody can tell.

    Raises:
        InvalidChoice: it has no such parameter. NotRecordable: the value is not of its type.
    """
    if workflow is None:
        return
    known, open_ended = workflow.parameters()
    strange = [name for name in changed if name not in known and not open_ended]
    if strange:
        raise InvalidChoice(run_id, f"{workflow.name} has no input {strange[0]!r}; it has: {', '.join(known) or 'none'}")
    for name, text in changed.items():
        if name in known:
            workflow.inputs_typed[name].decode(text)


def _artifact_folder(store: Store, told: str | os.PathLike[str] | None) -> Path | None:
    if told is not None:
        return Path(told)
    path = getattr(store, "path", None)
    return Path(f"{path}.artifacts") if path is not None and path != ":memory:" else None


def new_run_id(edge: Edge, client: str) -> str:
    """The id of a run that was given none: whom it is for, the day, and what makes it another."""
    day = datetime.fromtimestamp(edge.now_us() / 1e6, UTC).date().isoformat()
    return f"{client}-{day}-{edge.new_id('r')[2:10]}"


def _checked_id(text: Any, what: str) -> str:
    if not isinstance(text, str) or not text or len(text) > MAX_ID or _UNSEEN.search(text):
        raise checks.refused(what, text, f"use 1 to {MAX_ID} printable characters without '/'")
    secret = find_secret(text)
    if secret is not None:  # an id is shown and stored everywhere
        raise SecretFound(what, secret)
    try:
        text.encode("utf-8")  # half a character is refused here, not by the database
    except UnicodeEncodeError as error:
        why = f"it is not UTF-8 text: use 1 to {MAX_ID} printable characters without '/'"
        raise checks.refused(what, text, why) from error
    return text


def _answer_text(value: Any) -> str | None:
    """An answer as JSON text: as it is, if it is JSON; what else can be recorded in the form it has there.

    Returns:
        ``None`` if it is neither: the transition says so in its own words.
    """
    with suppress(TypeError, ValueError):
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")  # half a character is a ValueError, too
        if json.loads(text) == value:
            return text
    try:
        return canonical(value, "answer")
    except NotRecordable:
        return None


def _cursor_no(cursor: str | None) -> int:
    if cursor is None:
        return 1 << 62
    if not _is_number(cursor):
        raise checks.refused("cursor", cursor, _CURSOR)
    return int(cursor)


def _is_number(text: Any) -> bool:
    """Whether a database can count to it."""
    return isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 18  # noqa: PLR2004 - below 2**63


def _checked_limit(limit: Any) -> int:
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise checks.refused("limit", limit, f"say how many, 1 to {MAX_PAGE:,}")
    return limit


def _run_info(row: Row) -> RunInfo:
    return RunInfo(
        run_id=row["run_id"], client_id=row["client_id"], workflow=row["workflow"], status=RunStatus(row["status"]),
        waiting_for=WaitingFor(row["waiting_for"]) if row["waiting_for"] else None,
        open_questions_count=row["open_questions_count"], goal=row["goal"], updated_us=row["updated_us"],
    )  # fmt: skip


def _failure(row: Row) -> Failure | None:
    if row["failure"] is None:
        return None
    told = json.loads(row["failure"])
    return Failure(step=told.get("step"), kind=FailureKind(told["kind"]), reason=told["reason"])


def _blocking(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end: here, or in a thread with a loop of its own when this thread's loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    result: list[T] = []
    error: list[BaseException] = []

    def work() -> None:
        try:
            result.append(asyncio.run(make()))
        except BaseException as raised:  # noqa: BLE001 - raised again in the caller's thread
            error.append(raised)

    thread = threading.Thread(target=work, name="stepseven_blocking")
    thread.start()
    thread.join()
    if error:
        raise error[0]
    return result[0]


__all__ = ["Layer"]
