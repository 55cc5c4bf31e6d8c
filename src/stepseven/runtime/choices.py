"""The ends of a step that its own code did not bring about: what a person chose, giving up, a fatal failure."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from stepseven.decide.classify import Handling, Proof, Verdict
from stepseven.errors import StepFailed, Superseded
from stepseven.model import INTERNAL, FailureKind, RunStatus
from stepseven.runtime import chosen, known, reading, remembering
from stepseven.runtime.attempt import Attempt
from stepseven.store.codec import free_text
from stepseven.transitions.state import Record, choice_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepseven.decide import policy
    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.memory import RunMemory
    from stepseven.store.base import Row
    from stepseven.transitions.state import RecordKey

BY_HAND = "by hand"
MOST_RERUNS = 3  # DESIGN §6: choices are few, so that a question is answered in a minute
_TURN = re.compile(r"#[0-9]+")  # the key of an order-matched call
_BAD_INPUT = frozenset({400, 422})


async def obey(ex: Execution, call: Call, move: policy.Obey) -> tuple[bool, Any]:
    """Do what a person chose: (is the step finished?, its value)."""
    from stepseven.runtime.memory import Stop

    if move.choice == "stop":
        ex.halt(Stop(RunStatus.CANCELLED, f"stopped by {move.by or 'a person'}", call.step.name, FailureKind.FIXABLE))
        await ex.forever()
    if move.choice == "rerun":
        ex.restart(f"{move.detail} is run again, as {move.by or 'a person'} chose")
        await ex.forever()
    if move.choice in ("value", "by_hand"):
        if not await fits(ex, call, move):
            return False, None
        return True, await given_value(ex, call, given_by(move), move.by or "a person")
    if move.choice == "skip":
        await ex.append(_skipped(ex, call, move.by), durable=True)
        reading.skipped(call)
        return True, None
    raise Superseded(ex.hold.run_id, f"the choice {move.choice!r} is unknown to this version")


def given_by(move: policy.Obey) -> Any:
    """The value or receipt a person gave."""
    return move.answer.get("value" if move.choice == "value" else "receipt")


async def fits(ex: Execution, call: Call, move: policy.Obey) -> bool:
    """Whether what a person gave can be the step's result; if not, that is written down as one more failed try.

    The schema is checked when the answer is given. What only the type itself can tell is found here, and asked about anew.
    """
    from stepseven.runtime import trouble

    try:
        value = call.step.typed.validate_python(given_by(move))
        reading.checked(call, value)
        call.step.typed.roundtrip(value)
    except Exception as refused:  # noqa: BLE001 - `check=` is the author's code: whatever it raises refuses the value
        reason = free_text(f"what {move.by or 'a person'} gave does not fit: {refused}", 300)
        verdict = Verdict(handling=Handling.FIXABLE, proof=Proof.DECLARED, reason=reason, signature=f"misfit {call.step.name}")
        row = trouble.attempt_row(ex, call, verdict, Attempt(), ex.now_us(), "a given value", refused)
        row["usd"] = None
        await trouble.record_attempt(ex, call, row)
        return False
    return True


def _skipped(ex: Execution, call: Call, by: str | None) -> Record:
    return Record(
        id=ex.next_id(), branch=call.branch, name=call.key[1], key=call.key[2], generation=ex.generation(call.key),
        state="skipped", effect=call.step.settings.effect.value if call.step.settings.writes else None, inputs=call.digest,
        args=call.args(), summary="skipped", why=f"skipped by {by or 'a person'}", started_us=ex.now_us(), ended_us=ex.now_us(),
    )  # fmt: skip


async def given_value(ex: Execution, call: Call, given: Any, by: str) -> Any:
    """Record a value a person gave as the step's result."""
    why = f"given by {by}"
    value = call.step.typed.validate_python(given)
    record, text, value = reading.made(ex, call, value, Attempt(), ex.now_us(), approach=BY_HAND)
    again = record.why if record.why is not None and reading.OTHER_RESULT in record.why else None
    record.usd, record.why = None, why if again is None else f"{why}; {again}"
    await ex.append(record, durable=True, text=text, fact=remembering.fact_of(ex, call, text, by))
    return value


async def give_up(ex: Execution, call: Call, reason: str, kind: str) -> StepFailed:
    """Record that the step failed for good: a resume raises the same."""
    record = Record(
        id=ex.next_id(), branch=call.branch, name=call.key[1], key=call.key[2], generation=ex.generation(call.key),
        state="failed", inputs=call.digest, args=call.args(), summary=free_text(reason, 1000), why=kind,
        started_us=ex.now_us(), ended_us=ex.now_us(),
    )  # fmt: skip
    await ex.append(record, durable=True)
    return StepFailed(call.step.name, free_text(reason, 1000), kind=kind)


async def fatal(ex: Execution, call: Call, reason: str) -> None:
    """Nothing helps: the item of a map fails, or the run ends."""
    from stepseven.runtime.memory import Stop

    if call.step.settings.on_failure == "raise" or call.place.item is not None:
        raise await give_up(ex, call, reason, FailureKind.FATAL.value)
    ex.halt(Stop(RunStatus.FAILED, f"{call.step.name}: {reason}", call.step.name))
    await ex.forever()


# -- going back to an earlier step ----------------------------------------------------------------------------------------


def wanted_again(questions: dict[tuple[str, str, str], list[Row]]) -> Iterator[tuple[str, str, int]]:
    """Branch, step and place in the run's order of every answer "run that earlier step again"."""
    for (branch, kind, _), rows in questions.items():
        for row in rows:
            if kind == "failure" and row["status"] == "answered" and '"rerun:' in row["answer"]:
                choice = choice_of(json.loads(row["answer"])) or ""
                yield branch, choice.removeprefix("rerun:"), row["asked_seq"]


def set_aside(ex: RunMemory) -> None:
    """Records older than a person's wish to make them anew answer no more. Decided from what is on record only."""
    for branch, name, asked_seq in wanted_again(ex.questions):
        for key in [k for k, r in ex.records.items() if older(r, branch, name, asked_seq)]:
            reading.drop(ex, ex.records[key])
    for record, why in list(chosen.put_aside(ex)) if ex.recoveries else ():
        reading.drop(ex, record, why=why)


def generations(ex: RunMemory) -> Iterator[tuple[Record, Record]]:
    """Each read that was made anew: the record before, and the one after. In the order made."""
    before: dict[RecordKey, Record] = {}
    if not ex.older:
        return
    for new in sorted((*ex.older, *ex.records.values()), key=lambda r: r.id):
        if new.effect is None and not new.name.startswith(INTERNAL):
            key = (new.branch, new.name, new.key)
            if key in before:
                yield before[key], new
            before[key] = new


def other_result(old: Record, new: Record) -> bool:
    """Whether a read that was made anew gave another result."""
    return old.state == new.state == "done" and (old.result, old.artifact) != (new.result, new.artifact)


def overtaken(ex: RunMemory) -> None:
    """What was read in a branch between a model turn and its being asked something else answers no more (``match="order"``).

    It was so when that turn ran again; what is not asked for before the run is put away would answer afterwards.
    """
    gone: set[int] = set()  # no turn of its own any more when it was made anew
    for old, new in list(generations(ex)):
        if old.id not in gone and old.inputs != new.inputs and _is_turn(ex, new):
            span = range(old.id, new.id)
            gone.update(r.id for r in (*ex.older, *ex.records.values()) if r.branch == new.branch and r.id in span)
    for record in [r for r in ex.records.values() if r.id in gone]:
        if record.effect is None and not record.name.startswith(INTERNAL):
            reading.drop(ex, record)


def _is_turn(ex: RunMemory, record: Record) -> bool:
    """Whether a record's key is its place in the order of calls, and not a business key that looks like one."""
    if _TURN.fullmatch(record.key) is None:
        return False
    step = known.find(record.name, ex.workflow.fn.__module__)
    return step is None or step.settings.match == "order"


def older(record: Record, branch: str, name: str, asked_seq: int) -> bool:
    """Whether *record* is one of step *name*, from before a question asked in *branch*, that *branch* builds on."""
    around = not record.branch or branch == record.branch or branch.startswith(record.branch + "/")
    return record.name == name and record.seq <= asked_seq and around and record.effect is None


def rerunnable(ex: Execution, call: Call, error: dict[str, Any]) -> tuple[str, ...]:
    """The earlier steps whose result may be what is wrong: the nearest ones, those first that the arguments came from."""
    if not error.get("input"):
        return ()
    found = sorted((r for r in ex.records.values() if _made_before(r, call)), key=lambda r: -r.seq)
    texts = set(call.texts.values())
    found.sort(key=lambda r: r.result not in texts)  # stable: the nearest stay first
    return tuple(dict.fromkeys(r.name for r in found))[:MOST_RERUNS]


def _made_before(record: Record, call: Call) -> bool:
    own = record.name == call.key[1] or record.name.startswith(INTERNAL)
    return record.branch == call.branch and record.state == "done" and record.effect is None and not own


def blames_input(error: BaseException, status: int | None) -> bool:
    """Whether a failure says that what the step was given, or what it made of it, is wrong."""
    from stepseven.errors import Fixable

    if status is not None:
        return status in _BAD_INPUT
    by_hand = isinstance(error, Fixable) and error.needs is None
    return by_hand or certainly_input(error, status)


def certainly_input(error: BaseException, status: int | None) -> bool:
    """The same, where it is sure: then waiting for the other side cannot help. Of what its author raised nobody knows."""
    if status is not None:
        return status in _BAD_INPUT
    return isinstance(error, reading.UnusableResult | ValueError)
