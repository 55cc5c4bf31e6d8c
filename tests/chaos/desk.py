"""One client of the store, which notes what it asked and heard: takes, records, claims, answers, by the project's transitions.

It is a worker without an event loop: what a worker does in the store, and nothing else. Whoever it finds as a run's owner it
takes for dead, so that owners who do not know it go on all the time; that is what fences are for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Any, Protocol

from stepseven.decide.escalate import Draft
from stepseven.errors import AlreadyAnswered, QuestionExpired, StoreUnavailable, Superseded
from stepseven.model import EffectState, QuestionKind, RunStatus
from stepseven.store.base import Row, Store, Tx
from stepseven.store.statements import SEQ_BITS
from stepseven.transitions import effects, questions, runs, steps
from stepseven.transitions.effects import Claim, Intent, Verdict
from stepseven.transitions.runs import Admission, Ending, Parking
from stepseven.transitions.state import Hold, Record, steps_range
from stepseven.transitions.telling import Asking
from tests.chaos.history import FAILED, OK, UNKNOWN, Op

NOW_US = 1_767_603_600_000_000
CLIENT = "acme"


class Everyone(Container[str]):
    """All workers, as the dead."""

    def __contains__(self, _: object) -> bool:
        return True


class Noted(Protocol):
    """Where calls are written down: a file (``history.Log``) or a list (``Notes``)."""

    def asked(self, op: Op) -> None: ...

    def heard(self, op: Op) -> None: ...


class Notes:
    """In memory, for one process."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def asked(self, op: Op) -> None:
        self.ops.append(op)

    def heard(self, op: Op) -> None:
        names = (op.process, op.thing, op.asked)
        at = next(i for i in reversed(range(len(self.ops))) if (o := self.ops[i]) and (o.process, o.thing, o.asked) == names)
        self.ops[at] = op


@dataclass(frozen=True, slots=True)
class Seen:
    """A run as somebody saw it; it may be another by now."""

    row: Row

    @property
    def state(self) -> tuple[int, str]:
        return (self.row["fence"], self.row["owner"] or "")


def intent(key: str) -> Intent:
    """One effect of the client, whichever of its runs has it."""
    return Intent(
        scope="client", scope_id=CLIENT, name="pay", key=key, step="pay", branch="", inputs="digest", arguments="{}",
        timeout_us=1_000_000,
    )  # fmt: skip


def asking(question_id: str, **more: Any) -> Asking:
    """A question of a run."""
    draft = Draft(text="Shall it?", recommendation=None, options=(), context={})
    given = {"branch": "", "key": question_id, "n": 1, "kind": QuestionKind.ASK, "draft": draft, **more}
    return Asking(id=question_id, **given)


class Desk:
    """A client with a name. *clock*: one for all clients whose notes are judged together."""

    def __init__(self, store: Store, name: str, notes: Noted, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.name = name
        self.notes = notes
        self.clock = clock
        self.whose: str | None = CLIENT
        self._seq = 0

    def fresh(self, what: str) -> str:
        """A name that nobody has used."""
        self._seq += 1
        return f"{what}.{self.name}.{self._seq}"

    # -- noting ---------------------------------------------------------------------------------------------------------

    def call(
        self, thing: str, call: str, args: tuple[Any, ...], do: Callable[[], Any], said: Callable[[Any], Any] | None = None
    ) -> Any:
        """Make a call and note it. *said*: what its result says about the thing, as the model says it; default: ``True``.

        Returns:
            What *do* gave; ``False``: it was refused; ``None``: nobody knows.
        """
        op = Op(process=self.name, thing=thing, call=call, args=args, asked=self.clock())
        self.notes.asked(op)
        try:
            given = do()
        except Superseded:
            self.notes.heard(replace(op, outcome=OK, result=False, answered=self.clock()))
            return False
        except StoreUnavailable:
            self.notes.heard(replace(op, outcome=UNKNOWN))
            return None
        result = True if said is None else said(given)
        if isinstance(result, Op):
            self.notes.heard(replace(result, asked=op.asked, answered=self.clock()))
        else:
            self.notes.heard(replace(op, outcome=OK, result=result, answered=self.clock()))
        return given

    def write(self, unit: Callable[[Tx], Any]) -> Any:
        return self.store.write_now(unit, durable=True, client=self.whose)

    def send(self, unit: Callable[[Tx], Any]) -> Any:
        """``write`` of what asks for nothing before its commit."""
        return asyncio.run(self.store.write(unit, durable=True, client=self.whose, asks=False))

    # -- runs -----------------------------------------------------------------------------------------------------------

    def admit(self, run_id: str) -> Row:
        """Make sure that there is such a run."""
        a = Admission(run_id=run_id, client_id=CLIENT, workflow="w", source_digest=None, goal=None, inputs="{}")
        row: Row = self.write(lambda tx: runs.admit(tx, a, NOW_US))
        return row

    def see(self, run_id: str) -> Seen:
        """Look at a run, without a note."""
        return Seen(self.store.read_now(lambda tx: runs.known(tx, run_id)))

    def take(self, seen: Seen) -> Hold | None:
        """Take a run as it was seen. Whoever owned it then is taken for dead."""
        no = seen.row["no"]

        def unit(tx: Tx) -> Any:
            return runs.take(tx, seen.row, self.name, source_digest=None, now_us=NOW_US, proven_dead=Everyone()).hold

        held = self.call(
            f"run/{no}", "take", (*seen.state, self.name), lambda: self.write(unit), lambda h: h is not None and h.fence
        )
        return held or None

    def load(self, run_no: int) -> Any:
        """Look at a run and its records, in one snapshot."""

        def unit(tx: Tx) -> Any:
            row = tx.one(tx.sql.run_by_no, {"no": run_no})
            assert row is not None
            names = tuple(sorted(step["key"] for step in tx.all(tx.sql.steps, steps_range(run_no)) if step["name"] == "look"))
            return (row["fence"], row["owner"] or "", RunStatus(row["status"]).ended, names)

        return self.call(f"run/{run_no}", "load", (), lambda: self.store.read_now(unit), lambda found: found)

    def record(self, hold: Hold, *, paid: bool = False, name: str = "look", state: str = "done") -> Record:
        """The next record this client would write. *paid*: one that is more than a simple read's."""
        self._seq += 1
        at = (hold.fence << 12) + sum(self.name.encode()) % 7 * 512 + self._seq % 512  # no two clients write the same row
        return Record(
            id=hold.run_no << SEQ_BITS | at, branch="", name=name, key=f"{self.name}.{hold.fence}.{self._seq}", generation=1,
            state=state, result="1", started_us=NOW_US, ended_us=NOW_US, inputs="digest" if paid else None,
        )  # fmt: skip

    def append(self, hold: Hold, *, paid: bool = False, durable: bool = True) -> Any:
        """Write a record: the one statement of a step."""
        made = self.record(hold, paid=paid)
        statement, values = made.insert(self.store.sql, hold.values())

        def do() -> Any:
            at_once = self.store.append_now(statement, values, durable=durable)
            written = asyncio.run(self.store.append(statement, values, durable=durable)) if at_once is None else at_once
            return written or self._is_there(made)  # as a run does: its own row, whose first answer was lost, is success

        return self.call(f"run/{hold.run_no}", "write", (hold.fence, hold.owner, made.key), do, bool)

    def _is_there(self, made: Record) -> bool:
        rows = self.store.read_now(lambda tx: tx.all(tx.sql.steps, {"low": made.id, "high": made.id}))
        return [row["key"] for row in rows] == [made.key]

    def touch(
        self, hold: Hold, unit: Callable[[Tx], Any], said: Callable[[Any], Any] | None = None, *, send: bool = False
    ) -> Any:
        """Write something else under a hold."""
        do = self.send if send else self.write
        return self.call(f"run/{hold.run_no}", "touch", (hold.fence, hold.owner), lambda: do(unit), said)

    def leave(self, hold: Hold) -> Any:
        """Give the run back."""
        params = {**hold.keys(), "reason": "over", "executing_us": 0, "now": NOW_US}
        return self._leaves(hold, lambda tx: tx.run(tx.sql.release_run, params) == 1)

    def park(self, hold: Hold) -> Any:
        """Put the run away."""
        p = Parking(
            waiting_for="person", reason="", wake_us=None, next_step=None, remaining="[]", executing_us=0, question_ids=()
        )
        return self._leaves(hold, lambda tx: runs.park(tx, hold, p, NOW_US))

    def _leaves(self, hold: Hold, unit: Callable[[Tx], bool]) -> Any:
        return self.call(f"run/{hold.run_no}", "leave", (hold.fence, hold.owner), lambda: self.write(unit), bool)

    def end(self, hold: Hold, status: RunStatus = RunStatus.DONE) -> Any:
        """End the run."""
        ending = Ending(status=status, value="1", reason=self.name)
        return self.call(
            f"run/{hold.run_no}",
            "end",
            (hold.fence, hold.owner),
            lambda: self.write(lambda tx: runs.end(tx, hold, ending, NOW_US)),
            bool,
        )

    # -- effects --------------------------------------------------------------------------------------------------------

    def _acts(
        self, hold: Hold, key: str, call: str, args: tuple[Any, ...], do: Callable[[Tx], Any], said: Callable[[Any], Any]
    ) -> Any:
        """Something about an effect that only a run's owner may do: noted for both. ``Superseded`` may mean either."""
        run = Op(process=self.name, thing=f"run/{hold.run_no}", call="touch", args=(hold.fence, hold.owner), asked=self.clock())
        effect = Op(process=self.name, thing=f"effect/{key}", call=call, args=args, asked=self.clock())
        self.notes.asked(run)

        def unit(tx: Tx) -> Any:
            try:
                return do(tx)
            except Superseded:
                now = tx.one(tx.sql.run_by_no, {"no": hold.run_no})
                assert now is not None
                return "refused" if (now["fence"], now["owner"]) == (hold.fence, hold.owner) else "fenced"

        def over(result: Any) -> Any:
            if result == "fenced":
                return replace(effect, outcome=FAILED)
            return False if result == "refused" else said(result)

        given = self.call(effect.thing, call, args, lambda: self.write(unit), over)
        if given is None:
            self.notes.heard(run)
        else:
            self.notes.heard(replace(run, outcome=OK, result=given != "fenced", answered=self.clock()))
        return given

    def claim(self, hold: Hold, key: str, claim_id: str) -> Claim | None:
        """Claim an effect; the claim, if it may be sent or is in doubt."""

        def said(found: Claim) -> Any:
            state = (found.tries, found.state.value, found.receipt)
            if found.verdict is not Verdict.GO:
                return state
            return ("go", 1) if found.tries == 1 else self._again(key, found.tries - 1)

        found = self._acts(
            hold,
            key,
            "claim",
            (),
            lambda tx: effects.claim(tx, hold, intent(key), claim_id, NOW_US, proven_dead=Everyone()),
            said,
        )
        return found if isinstance(found, Claim) else None

    def _again(self, key: str, tries: int) -> Op:
        """What was proven not done was claimed anew."""
        return Op(process=self.name, thing=f"effect/{key}", call="again", args=(tries,), asked=0, outcome=OK, result=True)

    def again(self, hold: Hold, key: str, held: Claim) -> Claim | None:
        """Send once more from a try."""
        found = self._acts(
            hold, key, "again", (held.tries,), lambda tx: effects.retry(tx, hold, intent(key), held, NOW_US), lambda _: True
        )
        return found if isinstance(found, Claim) else None

    def settle(self, key: str, held: Claim, receipt: str) -> Any:
        """Write a receipt, whoever owns the run."""
        return self.call(
            f"effect/{key}",
            "settle",
            (f'"{receipt}"',),
            lambda: self.write(lambda tx: effects.settle(tx, held, f'"{receipt}"', NOW_US)),
            bool,
        )

    def mark(self, key: str, held: Claim, state: EffectState) -> Any:
        """Say how a try ended that has no receipt."""
        params = {"claim_id": held.claim_id, "tries": held.tries, "state": state.value, "now": NOW_US}
        return self.call(
            f"effect/{key}",
            "mark",
            (held.tries, state.value),
            lambda: self.write(lambda tx: tx.run(tx.sql.mark_claim, params)),
            bool,
        )

    def look(self, key: str) -> Any:
        """How an effect stands."""

        def unit(tx: Tx) -> Any:
            row = tx.one(tx.sql.effect, intent(key).where())
            return None if row is None else (row["tries"], row["state"], row["receipt"])

        return self.call(f"effect/{key}", "look", (), lambda: self.store.read_now(unit), lambda found: found)

    def withdraw(self, hold: Hold, question_id: str) -> Any:
        """Close a question that the run needs no more; an answer that was quicker stays."""

        def said(row: Row) -> Any:
            return True if row["status"] == "withdrawn" else (row["answer"].strip('"'), row["answered_by"])

        unit = lambda tx: questions.withdraw(tx, hold, question_id, NOW_US)  # noqa: E731
        return self.call(f"question/{question_id}", "close", ("withdrawn",), lambda: self.write(unit), said)

    # -- questions ------------------------------------------------------------------------------------------------------

    def answer(self, question_id: str, value: str, unit: Callable[[Tx], Row] | None = None) -> Any:
        """Answer a question; as the layer does, or by *unit*."""
        mine = (value, self.name)
        usual = lambda tx: questions.answer(tx, question_id, value, by=self.name, note=None, now_us=NOW_US)  # noqa: E731

        def do() -> Any:
            try:
                row = self.write(unit or usual)
            except AlreadyAnswered as error:
                return (error.answer, error.by)
            except QuestionExpired as error:
                return ("", error.status)
            stands = (row["answer"].strip('"'), row["answered_by"])
            return True if stands == mine else stands

        return self.call(f"question/{question_id}", "answer", mine, do, lambda found: found)

    def read(self, question_id: str) -> Any:
        """The answer of a question, if it has one."""

        def unit(tx: Tx) -> Any:
            row = tx.one(tx.sql.question, {"id": question_id})
            if row is None or row["status"] == "open":
                return None
            return (row["answer"].strip('"'), row["answered_by"]) if row["status"] == "answered" else ("", row["status"])

        return self.call(f"question/{question_id}", "read", (), lambda: self.store.read_now(unit), lambda found: found)


def ask(desk: Desk, hold: Hold, question_id: str, **more: Any) -> Any:
    """Ask a question under a hold."""
    return desk.touch(hold, lambda tx: questions.ask(tx, hold, asking(question_id, **more), NOW_US))


def begin_attempt(desk: Desk, hold: Hold, name: str = "look") -> Any:
    """Write down that a try begins."""
    row = {
        "branch": "",
        "name": name,
        "key": "k",
        "n": hold.fence,
        "approach": None,
        "inputs": None,
        "source_digest": None,
        "usd": None,
    }
    return desk.touch(hold, lambda tx: steps.begin_attempt(tx, hold, row, NOW_US))
