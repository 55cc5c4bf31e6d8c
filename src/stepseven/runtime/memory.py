"""What an execution knows of its run, and the words for how one ends."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any
from weakref import WeakSet

from stepseven._dataclass import dataclass
from stepseven.errors import StoreUnavailable, Superseded
from stepseven.model import INTERNAL, FailureKind, Limits, RunStatus
from stepseven.runtime import chosen, codechange, kinship, reading, refreshed, verifying
from stepseven.runtime.ahead import Ahead
from stepseven.runtime.begun import Begun
from stepseven.runtime.ceilings import Reserved
from stepseven.runtime.choices import generations, other_result, overtaken, set_aside
from stepseven.runtime.declared import Step
from stepseven.runtime.kinship import Above
from stepseven.runtime.moved import Elsewhere
from stepseven.runtime.procedure import Workflow
from stepseven.runtime.rekeyed import Claims
from stepseven.runtime.services import Services
from stepseven.runtime.turns import LAST_S, Turns
from stepseven.runtime.waits import DurableWait, Flight, Lull
from stepseven.store.artifacts import content_hash
from stepseven.store.base import Row
from stepseven.store.codec import fallback, free_text
from stepseven.store.statements import SEQ_BITS
from stepseven.transitions import codes, family
from stepseven.transitions.state import Hold, Loaded, Record, RecordKey

_OF_CLAIMS = ("unknown_outcome", "conflict")  # kinds of questions that are about one claim of a call


_OURS = Path(__file__).parents[1]  # a frame in here is nothing the user can mend


class Over(StrEnum):
    """How an execution ended."""

    ENDED = "ended"  # the run is done, failed or cancelled
    PARKED = "parked"  # it waits, in the store only
    AGAIN = "again"  # what it was about to wait for happened: load it again
    LOST = "lost"  # another worker has it
    RELEASED = "released"  # given back: any worker may go on


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the run is to end without its body's consent."""

    status: RunStatus
    reason: str
    step: str | None = None
    kind: FailureKind = FailureKind.FATAL
    refused: bool = False  # a person said no to what it proposed, and its code had nothing else to do

    def told(self) -> str:
        """As it is stored with the run, JSON."""
        failure: dict[str, Any] = {"step": self.step, "kind": self.kind.value, "reason": free_text(self.reason)}
        return json.dumps({**failure, "refused": True} if self.refused else failure)

    @classmethod
    def begun(cls, run: Row) -> Stop | None:
        """Why a run is to end that was about to; ``None``: it was not."""
        if run["status"] not in (RunStatus.CANCELLING, RunStatus.FAILING):
            return None
        cancelled = run["status"] == RunStatus.CANCELLING
        told = json.loads(run["failure"] or "{}")
        return cls(
            RunStatus.CANCELLED if cancelled else RunStatus.FAILED,
            told.get("reason") or run["reason"] or ("cancelled" if cancelled else "failed"), told.get("step"),
            FailureKind(told.get("kind") or ("fixable" if cancelled else "fatal")), refused=told.get("refused", False),
        )  # fmt: skip


class RunMemory:
    """What an execution knows of its run: the rows as loaded and as written since. No I/O but for large results."""

    def __init__(  # noqa: PLR0915 - the whole state of a run in memory, in one place
        self, services: Services, workflow: Workflow[Any, Any], hold: Hold, loaded: Loaded, *, recovery: bool
    ) -> None:
        self.services = services
        self.store = services.store
        self.edge = services.edge
        self.down = services.worker.down
        self.brief = False  # a worker took it: once it is put away it is out of memory
        self.on_resource: dict[str, str] = {}  # ids of questions about a resource that is down -> which
        self.workflow = workflow
        self.hold = hold
        self.run = loaded.run
        self.records = loaded.records
        self.attempts = loaded.attempts
        self.questions = loaded.questions
        self.older = loaded.older
        self._older_of: dict[RecordKey, list[Record]] = {}  # the same, call by call
        for record in loaded.older:
            self._older_of.setdefault((record.branch, record.name, record.key), []).append(record)
        self.recoveries = loaded.recoveries
        self.broke_off = self.run["owner"] not in (None, hold.owner)  # its last execution did not come to an end
        self.drift_chosen = chosen.of_drift(loaded.recoveries, broke_off=self.broke_off)  # when it was resumed, and is in force
        self.drift_compared = False  # it was found out, and done as was chosen, what had moved by then
        self.wishes = chosen.wishes(loaded.recoveries)  # the same, of steps: name -> the newest
        did = any(record.name != codes.PASSED_BY for record in loaded.records.values())
        self.resumed = did or bool(loaded.attempts or loaded.questions)
        self.recovery = recovery  # a resume, or a wake after more than ten minutes: probes look before acting
        self.limits: Limits | None = kinship.limits_of(workflow, services, self.run)
        self.seq = loaded.last_seq
        self.tick = 0
        self.flights: dict[Any, Flight] = {}
        self.client_record: Any = None  # what the workflow's ``client_record=`` gave
        self.reread_record: str | None = None  # the same as it was read outside just now, to see whether it changed
        self.unread_record: str | None = None  # why it could not be
        self.unkeyed: dict[tuple[str, str], str] = {}
        self.diverged: set[str] = set()  # branches in which an earlier step gave another result than last time
        self.looked: set[RecordKey] = set()  # writes whose probe looked before the first send
        self.busy_since: dict[RecordKey, int] = {}  # writes that another run is doing -> when that was first seen
        self.settling = False  # the body is over; claims in doubt are being found out about
        self.looked_again: set[str] = set()  # answered "again" about a claim in doubt, and acted upon
        self.stale: dict[RecordKey, int] = {}  # records that no longer answer -> their generation
        self.reasons: dict[RecordKey, str] = {}  # why, where that is known
        self.asides = verifying.asides(loaded.records)  # what a recovery has found to hold no longer
        self.held: set[int] = set()  # ids of records that were looked at and hold
        self.away: dict[str, str] = {}  # hosts that do not answer -> why, as far as that was found out
        self.damaged: set[str] = set()  # hashes of large results that are not what was put there
        self.at_hand: tuple[int, str] | None = None  # the record whose large result was read last, and that
        self.refreshed: dict[str, refreshed.Fresh] = {}  # facts that were refreshed -> what the run goes by since
        self.overtaken: set[refreshed.Asked] = set()  # answers that what was refreshed has overtaken
        self.tasks: set[asyncio.Task[Any]] = set()
        self._ended: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.waits: dict[asyncio.Future[Any], DurableWait] = {}
        self.waited: list[DurableWait] = []  # the waits when unloading began
        self.left: Ahead | None = None  # what its code had ahead when it was put away
        self.wanted: set[str] = set()  # ids of questions that its code has waited for
        self.unneeded: tuple[str, ...] = ()  # open ones that it had gone past by then
        self.inside: set[asyncio.Future[Any]] = set()
        self.sending: set[asyncio.Task[Any]] = set()
        self.body: asyncio.Task[Any] | None = None  # the workflow's own code, until it was found out how it ended
        self.unloading: str | None = None
        self.stop: Stop | None = None
        self.lost: str | None = None
        self.broken: StoreUnavailable | None = None
        self.releasing: str | None = None
        self.draining = False  # what has not begun yet begins elsewhere
        self.paying = 0  # paid reads in hand
        self.restarting = False
        self._begun_at: tuple[int, int, int] | None = None
        self._begun_set: set[str] = set()
        self._over: asyncio.Future[None] | None = None
        self._look_soon = False
        self._lull: Lull | None = None  # everything waits, and it is seen whether it goes on to
        self._started = self.edge.monotonic()
        self.uusd = sum(r.usd or 0 for r in (*self.records.values(), *self.older))
        self.tokens = sum(r.tokens or 0 for r in (*self.records.values(), *self.older))
        for rows in self.attempts.values():
            self.uusd += sum(row["usd"] or 0 for row in rows)
            self.tokens += sum(row["tokens"] or 0 for row in rows)
        self.kin = loaded.kin  # runs it has started whose end is not on record: no -> micro-USD, tokens
        self.notes: list[str] = []  # what a look found that is worth knowing and changes nothing
        self.code_before: str | None = self.run["source_digest"]  # of the code it was executed with last
        self.codes = codes.marks(loaded.records.values())  # where, among its records, other code took over
        self.claims_before: Claims | None = None  # what it had claimed before this execution, once that was looked for
        self.kept: dict[tuple[str, str], list[Row]] | None = None  # of those, what no record tells of, by branch and key
        self.begun: Begun | None = None  # the runs it had started before this execution, once that was looked for
        self.elsewhere: Elsewhere | None = None  # its writes in whatever branch, once that was looked for
        self.turns = Turns(self, patience_s=LAST_S, again_s=0.01)
        self.renamed = codechange.renamed(workflow, self.questions)  # step -> its names before, as people said
        self.claimed_as: dict[tuple[str, str], None] | None = None  # (step, what its effect was called), once looked up
        self.put_files: set[str] = set()  # hashes of results that it has put into files, until a record names them
        self.started: dict[str, int] = {}  # id -> no of those that this execution's code asked for
        self.loop: asyncio.AbstractEventLoop | None = None  # where it is executed
        self.above: tuple[Above, ...] = ()  # runs that started it, with a ceiling that counts here too
        self.driving = 0  # how much of what it waits for is under way in another run here: it stays loaded
        self.started_uusd = sum(r.usd or 0 for r in (*self.records.values(), *self.older) if r.name == family.START)
        self.reserved = Reserved()
        self.steps_done = sum(1 for r in (*self.records.values(), *self.older) if not r.name.startswith(INTERNAL))
        self.counts = Counter(r.name for r in self.records.values() if r.state == "done")  # records by step name
        set_aside(self)
        if not recovery:
            verifying.put_aside(self)
        overtaken(self)
        refreshed.set_aside(self)
        self.diverged.update(r.branch for r in (*self.records.values(), *self.older) if reading.OTHER_RESULT in (r.why or ""))
        self.diverged.update(new.branch for old, new in generations(self) if other_result(old, new))
        self._branches_before: set[str] | None = None
        self._unused: dict[tuple[str, str], list[Record]] = {}
        for record in self.records.values():
            self._unused.setdefault((record.branch, record.name), []).append(record)
        for rows_ in self._unused.values():
            rows_.reverse()  # taken from the end: oldest first

    # -- small things everything uses -------------------------------------------------------------------------------------

    def now_us(self) -> int:
        """The wall clock."""
        return self.edge.now_us()

    def check(self) -> None:
        """Durable calls may go on only while the execution lives.

        Raises:
            Superseded: it is being put away, or was taken over; nothing is written.
        """
        if self.unloading is not None:
            raise Superseded(self.hold.run_id, self.unloading)

    def next_id(self) -> int:
        """The id of the next record."""
        self.seq += 1
        return self.hold.run_no << SEQ_BITS | self.seq

    def generation(self, key: RecordKey) -> int:
        """The generation a new record of *key* has."""
        old = self.records.get(key)
        return max(old.generation if old is not None else 0, self.stale.get(key, 0)) + 1

    def keep(self, record: Record) -> None:
        """A record was written: it answers from now on."""
        key = (record.branch, record.name, record.key)
        if key in self.records:
            self.retire(self.records[key])
        elif record.state == "done":
            self.counts[record.name] += 1
        record.used = True
        self.records[key] = record
        self.put_files.discard(record.artifact or "")
        self.uusd += record.usd or 0
        self.tokens += record.tokens or 0
        if record.name == family.START:
            self.started_uusd += record.usd or 0
            self.kin.pop(self.started.get(record.summary or "", 0), None)  # at once: it counts here from now on
        if not record.name.startswith(INTERNAL):
            self.steps_done += 1

    def retire(self, record: Record) -> None:
        """A record answers no more."""
        self.older.append(record)
        self._older_of.setdefault((record.branch, record.name, record.key), []).append(record)

    def older_of(self, key: RecordKey) -> Sequence[Record]:
        """The records of a call that answer no more, the oldest first."""
        return self._older_of.get(key, ())

    def mark_used(self, record: Record) -> None:
        """This execution's code asked for *record*."""
        record.used = True

    def unused_like(self, key: RecordKey) -> Record | None:
        """The oldest record of the same step and branch that this execution's code has not asked for."""
        rows = self._unused.get(key[:2])
        while rows:
            if not rows[-1].used:
                return rows[-1]
            rows.pop()
        return None

    def unused_of(self, branch: str, name: str) -> Sequence[Record]:
        """The records of a step in a branch that this execution's code has not asked for, newest first."""
        rows = self._unused.get((branch, name))
        if not rows:
            return ()
        rows[:] = [record for record in rows if not record.used]
        return rows

    def unask(self, record: Record) -> None:
        """A record was made in this execution, but its code has not asked for it."""
        record.used = False
        self._unused.setdefault((record.branch, record.name), []).append(record)

    def asked_again(self, record: Record) -> None:
        """A record made instead of another one was asked for: that other one is asked for no more, as at that time."""
        old = self.unused_like((record.branch, record.name, record.key))
        if old is not None and old.effect is None and old.seq < record.seq:
            old.used = True

    def other_before(self, branch: str) -> bool:
        """Whether a step before *branch* or in it gave another result than last time."""
        return any(around == branch or not around or branch.startswith(f"{around}/") for around in self.diverged)

    def knows(self, key: RecordKey) -> bool:
        """Whether anything of a call is on record."""
        if key in self.records or key in self.attempts or key in self.stale:
            return True
        branch, mine = key[0], f"{key[1]}/{key[2]}"
        if any((branch, kind, mine) in self.questions for kind in ("failure", "required", "approve")):
            return True
        begins = (f"{mine}#", f"{mine}/")
        return any(at == branch and kind in _OF_CLAIMS and about.startswith(begins) for at, kind, about in self.questions)

    def names_before(self, step: Step[Any, Any]) -> tuple[str, ...]:
        """Other names that a step's calls may be on record under: those its code declares, then those people said."""
        declared = step.settings.renamed_from
        if not self.renamed:
            return declared
        said = [name for of in (step.name, *declared) for name in self.renamed.get(of, ())]
        return tuple(name for name in dict.fromkeys((*declared, *said)) if name != step.name)

    def branches_before(self) -> set[str]:
        """Branches in which anything was on record when this was first wanted to be known."""
        if self._branches_before is None:
            self._branches_before = self.begun_branches()
        return self._branches_before

    def begun_branches(self) -> set[str]:
        """Branches (and those around them) in which anything is on record."""
        if self._begun_at != (self.seq, len(self.questions), len(self.attempts)):
            self._begun_at = (self.seq, len(self.questions), len(self.attempts))
            keys = [*((r.branch) for r in self.records.values()), *(k[0] for k in self.attempts), *(k[0] for k in self.questions)]
            self._begun_set = set()
            for branch in set(keys):
                while branch and branch not in self._begun_set:
                    self._begun_set.add(branch)
                    branch = branch.rpartition("/")[0]  # noqa: PLW2901 - outwards
        return self._begun_set

    @property
    def full(self) -> bool:
        """Whether every commit waits for the disk."""
        return self.services.durability == "full"

    def result_text(self, record: Record) -> str | None:
        """A record's result as JSON, from wherever it is kept; ``None`` when its artifact is gone."""
        if record.artifact is None:
            return record.result if record.result is not None else "null"
        if self.at_hand is not None and self.at_hand[0] == record.id:
            return self.at_hand[1]
        row = self.store.read_now(lambda tx: tx.one(tx.sql.artifact, {"hash": record.artifact}))
        if row is None:
            return None
        text: str | None = row["body"] if row["body"] is not None else self.services.artifacts.get(row["location"])
        if text is None or content_hash(text) != record.artifact:
            self.damaged.add(record.artifact)
            return None
        self.at_hand = (record.id, text) if self.recovery else None  # a recovery looks at it right after it was decoded
        return text

    def tell_step(self, record: Record) -> None:
        """Tell whoever watches that a step is on record, and how many of its name are."""
        done = self.counts[record.name]
        what = {"done": "step", "failed": "gave_up"}.get(record.state, record.state)  # "failed" tells of a try
        self.services.tell(self.hold.run_id, what, name=record.name, branch=record.branch, summary=record.summary, done=done)

    def remember_question(self, row: Row) -> Row:
        """Keep the newest form of a question's row."""
        rows = self.questions.setdefault((row["branch"], row["kind"], row["key"]), [])
        rows[:] = sorted([r for r in rows if r["id"] != row["id"]] + [row], key=lambda r: r["n"])
        return row

    def executing_us(self) -> int:
        """How long this execution has been running."""
        return round((self.edge.monotonic() - self._started) * 1e6)

    def executed_us(self) -> int:
        """How long all executions of this run have been running. What is stored: it only grows, however often it is written."""
        return int(self.run["executing_us"]) + self.executing_us()


def where(error: BaseException, workflow: Workflow[Any, Any]) -> str:
    """File and line of the user's code an exception came from."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if f.filename == workflow.fn.__code__.co_filename]
    shown = mine or [f for f in frames if not Path(f.filename).is_relative_to(_OURS)]
    code = workflow.fn.__code__
    return f"{shown[-1].filename}:{shown[-1].lineno}" if shown else f"{code.co_filename}:{code.co_firstlineno}"


def failure_text(error: BaseException) -> str:
    """An exception as stored text; cannot fail."""
    try:
        return free_text("".join(traceback.format_exception(error))[-6000:], 6000)
    except Exception:  # noqa: BLE001 - an exception whose repr raises
        return fallback(type(error).__name__)
