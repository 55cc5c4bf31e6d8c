"""What is known about the client, as a run sees it.

What the workflow's code asks is pinned: the first answer stays, whoever changes the fact meanwhile. What the run itself says
(``client.set``, an answer that is remembered, a fact it waited for) moves that, from there on in the code: a task sees what was
so when it was created and what it did since, so that a resume sees the same however the loop orders the tasks. What a step's code
asks is as it is at that moment, and belongs to the step's record.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeVar

from stepseven.decide import _phrases as say
from stepseven.decide.facts import Said
from stepseven.errors import SecretFound, StepsevenError, TooLarge
from stepseven.model import Failure, Question
from stepseven.runtime import briefing
from stepseven.runtime.calls import nameable
from stepseven.runtime.place import Known, Place, place
from stepseven.store.codec import MAX_RESULT, canonical, digest, free_text, from_canonical, guard
from stepseven.store.redact import find_secret
from stepseven.transitions import clients
from stepseven.transitions.clients import Given
from stepseven.transitions.state import Record

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.handle import Run
    from stepseven.store.base import Row, Tx

T = TypeVar("T")

FOUND = "client.found"  # name of the record that pins a fact a question did not have to be asked for
PAUSED = "its client was paused"  # why an execution was given back; who and why is with the client
MAX_KEY = 200
_DIGITS = 12
_FOR = re.compile(r"(\d+)\s*([smhdw])")
_LONGEST_US = 36_525 * 86_400_000_000  # a hundred years: beyond, "for good" is what is meant
_UNIT_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 604_800_000_000}


def checked_key(key: Any) -> str:
    """The name of a fact, if it can be one.

    Raises:
        ValueError: it is empty, too long, or not printable.
        SecretFound: it is a credential.
    """
    if not isinstance(key, str) or not key.strip() or len(key) > MAX_KEY or not key.isprintable():
        raise ValueError(f"the name of a fact is {key!r}: use 1 to {MAX_KEY} printable characters, such as 'vat_number'")
    secret = find_secret(key)
    if secret is not None:  # a name is shown everywhere
        raise SecretFound("the name of a fact", secret)
    return key


def lasting_us(valid: str | None) -> int | None:
    """How long a fact holds, from ``"90d"`` (units s m h d w), in microseconds; ``None`` = until something else is said.

    Raises:
        ValueError: it is no duration, or over 100 years.
    """
    if valid is None:
        return None
    found = _FOR.fullmatch(str(valid).strip())
    # Nobody means a number with so many digits; Python would not even read one of 5,000.
    many = found is not None and len(found[1]) > _DIGITS
    lasting = 0 if found is None else _LONGEST_US + 1 if many else int(found[1]) * _UNIT_US[found[2]]
    if not lasting:
        raise ValueError(f"valid={valid!r}: say how long the fact holds, such as '90d' or '12h', or leave it out: for good")
    if lasting > _LONGEST_US:
        raise ValueError(f"valid={say.clip(valid, chars=40)!r} is over 100 years: leave it out for what holds for good")
    return lasting


def given(  # noqa: PLR0913 - a fact has that many sides
    client_id: str,
    key: Any,
    value: Any,
    *,
    source: str | None,
    by: str | None,
    valid: str | None,
    now_us: int,
    run_id: str | None = None,
) -> Given:
    """What is said about a client, checked: only what comes back equal and holds no credential is kept.

    Raises:
        ValueError: the key or *valid* is none. NotRecordable, TooLarge, SecretFound: the value cannot be kept.
    """
    name = checked_key(key)
    text = guard(canonical(value, name), f"fact {name}", secrets="refuse")
    guard(f"{{{json.dumps(name)}:{text}}}", "fact", secrets="refuse")  # together with its name a text may be a credential
    if len(text.encode()) > MAX_RESULT:
        raise TooLarge(f"fact {name}", len(text.encode()), MAX_RESULT)
    lasting = lasting_us(valid)
    source, by = (None if not said else free_text(said, 300) for said in (source, by))
    return Given(
        client_id=client_id, key=name, value=text, source=source, by=by, run_id=run_id,
        until_us=None if lasting is None else now_us + lasting,
    )  # fmt: skip


# -- what is known now ----------------------------------------------------------------------------------------------------


def known(ex: Execution, key: str) -> Row | None:
    """The client's fact as the store has it, if it is known and still holds."""
    return ex.store.read_now(lambda tx: holding(tx, ex.hold.client_id, key, ex.now_us()))


def holding(tx: Tx, client_id: str, key: str, now_us: int) -> Row | None:
    """The newest version of a fact, if there is one and it still holds."""
    row = tx.one(tx.sql.fact, {"client_id": client_id, "key": key})
    stale = row is not None and not Said(version=0, value="", until_us=row["valid_until_us"]).holds(now_us)
    return None if stale else row


def pin_text(row: Row | None) -> str:
    """A fact's value and version, as a run pins it."""
    if row is None:
        return "null"
    return json.dumps({"value": json.loads(row["value"]), "version": row["version"]}, ensure_ascii=False)


def first_seen(ex: Execution, key: str) -> str:
    """A fact for ``run.client.get``: as a question of this run found it, else as it is now."""
    record = ex.records.get(("", FOUND, nameable(key)))
    return pin_text(known(ex, key)) if record is None else record.result or "null"


def in_step(ex: Execution, here: Place, key: str) -> Known:
    """A fact for the code of a step: what this run said itself, else what it pinned, else what is known now.

    It is read once in a try: what the record says was read is what was read.
    """
    attempt = here.attempt
    assert attempt is not None  # the caller looked  # noqa: S101
    name = nameable(key)
    seen = attempt.facts.get(name)
    if seen is None:
        seen = here.facts.get(key)
        if seen is None:
            record = ex.records.get(("", "client.get", name)) or ex.records.get(("", FOUND, name))
            seen = of_pin(record.result or "null" if record is not None else pin_text(known(ex, key)))
        attempt.facts[name] = seen
    return seen


def of_pin(text: str) -> Known:
    """What a pin holds."""
    told = json.loads(text)
    return Known(None, 0) if told is None else Known(told["value"], told["version"])


# -- what the run itself found out ----------------------------------------------------------------------------------------


def answered(ex: Execution, here: Place, question: Row, key: str) -> None:
    """A question of this run was answered, and the answer is a fact since: its code sees that from here on."""
    here.found_out(key, Known(json.loads(question["answer"]), version_answered(ex, question, key)))


def version_answered(ex: Execution, question: Row, key: str) -> int:
    """The version of a fact that an answer became; 0: it is not there."""
    mine = {"client_id": ex.hold.client_id, "key": key}
    rows = ex.store.read_now(lambda tx: tx.all(tx.sql.fact_history, mine))
    told, answer = f"answer to {question['id']}", json.loads(question["answer"])
    row = next((r for r in rows if r["source"] == told), None)
    # A fork has its root's answers under ids of its own: there the fact is the one with the same value.
    row = row or next((r for r in reversed(rows) if json.loads(r["value"]) == answer), None)
    return 0 if row is None else int(row["version"])


def version_told(ex: Execution, record: Record, key: str) -> int:
    """Which version of a fact a record of this run (``client.set``, ``run.wait_for``) is about."""
    if record.facts is not None:
        return int(json.loads(record.facts)[key])
    mine = {"client_id": ex.hold.client_id, "key": key}  # a record of an older release, which did not keep it
    rows = ex.store.read_now(lambda tx: tx.all(tx.sql.fact_history, mine))
    same = [row for row in rows if row["value"] == record.result]
    own = [row for row in same if row["run_id"] == ex.hold.run_id] or same
    return int(own[-1]["version"]) if own else 0


# -- the handle -----------------------------------------------------------------------------------------------------------


class RunClient:
    """Facts about the client, as this run sees them."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def get(self, key: str, default: T | None = None) -> Any:
        """The fact's value; *default* if it is not known.

        In the workflow: as it was when this run first looked, or as the run itself said since. In a step's code: as it is now
        (or as this run pinned it); which version that was is kept with the step's record.
        """
        run, ex = self._run, self._run._ex  # noqa: SLF001 - part of the handle
        here = place.get()
        if here is not None and here.execution is ex and here.attempt is not None:
            found = in_step(ex, here, key)
        else:
            here = run._here()  # noqa: SLF001
            found = here.facts.get(key) or of_pin(
                run._pin("", "client.get", nameable(key), lambda: first_seen(ex, key))  # noqa: SLF001
            )
        return default if found.version == 0 and found.value is None else from_canonical(json.dumps(found.value))

    @property
    def record(self) -> Any:
        """What ``@workflow(client_record=…)`` read when the run started: the same after a resume, whatever changed outside.

        Raises:
            StepsevenError: the workflow reads none.
            NoRun: inside a step; pass what it needs as an argument, so that its record says what it was made from.
        """
        run = self._run
        run._standing_place()  # noqa: SLF001 - part of the handle
        workflow = run._ex.workflow  # noqa: SLF001
        if workflow.loader is None:
            raise StepsevenError(f"workflow {workflow.name!r} reads no client record: say @workflow(client_record=load)")
        return run._ex.client_record  # noqa: SLF001

    def set(self, key: str, value: Any, *, source: str | None = None, by: str | None = None, valid: str | None = None) -> None:
        """Keep a fact about the client. A record of the run: a resume does not set it again.

        Args:
            key: the fact's name.
            value: anything recordable.
            source: where it comes from; default: this run.
            by: the person who said it. A person's word is a decision: it settles what sources said before.
            valid: how long it holds, such as ``"90d"``; after that it counts as not known.

        Raises:
            NotRecordable, SecretFound: the value cannot be kept; nothing was changed.
            NoRun: called inside a step; return the value, and set it in the workflow.
        """
        run, ex = self._run, self._run._ex  # noqa: SLF001 - part of the handle
        here = run._here()  # noqa: SLF001
        said = given(
            run.client_id, key, value, source=source or f"run {run.id}", by=by, valid=valid, now_us=ex.now_us(), run_id=run.id
        )
        name = run._key(here, "client.set", None, f"{key}={digest(said.value)}")  # noqa: SLF001
        record = ex.records.get((here.branch, "client.set", name))
        if record is None:
            record = made = run._record(here.branch, "client.set", name, said.value)  # noqa: SLF001

            def unit(tx: Tx) -> None:
                made.facts = json.dumps({key: clients.learn(tx, said, ex.now_us()).version})

            run._append_now(record, unit)  # noqa: SLF001
            ex.wake_fact(key)
        ex.mark_used(record)
        here.found_out(key, Known(json.loads(said.value), version_told(ex, record, key)))

    def open_questions(self, *, key: str | None = None) -> list[Question]:
        """The questions of this client that nobody has answered, of all its runs; pinned: the same after a resume."""
        run = self._run
        here = run._here()  # noqa: SLF001 - part of the handle
        named = run._key(here, briefing.OPEN_QUESTIONS, key, "open")  # noqa: SLF001
        return briefing.open_questions(run._ex, here.branch, named)  # noqa: SLF001

    def failures(self, *, days: float = 90, key: str | None = None) -> list[Failure]:
        """What failed for this client in the last *days*, in all its runs, newest first; pinned: the same after a resume.

        Raises:
            ValueError: *days* is not above 0.
        """
        run = self._run
        here = run._here()  # noqa: SLF001 - part of the handle
        named = run._key(here, briefing.FAILURES, None, f"{key}/{days:g}d" if key is not None else f"{days:g}d")  # noqa: SLF001
        return briefing.failures(run._ex, here.branch, named, days)  # noqa: SLF001
