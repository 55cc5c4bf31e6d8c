"""Whether what is on record still holds, looked at in a recovery: what its result names elsewhere, and what ``.verify`` says.

A record that no longer holds is set aside: its step runs again when it is called, and after it only what depends on a difference.
That is written down at once (a record ``run.aside``), so that a run that is put away in between goes on with it. The next
recovery looks afresh: what was put back by then holds again. Whoever only takes a run over looks at nothing.

What cannot be looked at counts as unchanged, and is noted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from stepseven._dataclass import dataclass
from stepseven.decide import elsewhere
from stepseven.decide.elsewhere import FILE, Kept
from stepseven.errors import NotRecordable, Superseded
from stepseven.model import INTERNAL
from stepseven.runtime import reading, references
from stepseven.runtime.attempt import Attempt, loose
from stepseven.runtime.binding import call_bound
from stepseven.runtime.byname import Named
from stepseven.runtime.place import place
from stepseven.runtime.threads import run_in_thread
from stepseven.runtime.waits import STEP_CODE, Flight
from stepseven.store.codec import digest, free_text
from stepseven.transitions.state import Record

if TYPE_CHECKING:
    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.memory import RunMemory
    from stepseven.store.base import Row
    from stepseven.transitions.state import RecordKey

ASIDE = "run.aside"  # the name of a record that says: that other one answers no more
LOOK_S = 30.0  #: for one look: a file, a page, an object; a ``.verify`` of a step without ``timeout=``
MOST_NOTES = 50
LOST = "its result is gone from where large results are kept, or is not what was put there"
_NO = "verify said that its result no longer holds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """A record that was set aside.

    Attributes:
        branch, name, key: whose record.
        generation, seq: which one.
        why: in words.
        within: the branch of the calls made inside the step, whose reads are set aside with it; ``None``: they stand.
        tries: the number of its last try until then, in this run: ``run_no`` (a fork begins with none).
    """

    branch: str
    name: str
    key: str
    generation: int
    seq: int
    why: str
    within: str | None = None
    tries: int = 0
    run_no: int = 0


class _Broken(NamedTuple):
    """Why a record no longer holds. ``within``: the branch of the calls made inside the step, where their reads go with it."""

    why: str
    within: str | None = None


# -- when a record is about to answer -----------------------------------------------------------------------------------


def suspect(ex: RunMemory, call: Call, record: Record) -> bool:
    """Whether there is anything to look at before a record answers, in this execution. Cheap: nearly always there is not."""
    text = record.result
    if (text is None or '"etag"' not in text) and record.artifact is None and call.step.hooks.verify is None:
        return False  # in one line, for ten thousand records
    return record.state == "done" and record.id not in ex.held


async def holds(ex: Execution, call: Call, record: Record) -> bool:
    """Look at a record once. ``False``: look again at what is on record; it may have been set aside."""
    lane = (ASIDE, record.id)
    flight = ex.flights.get(lane)
    if flight is not None:  # another task of the branch makes the same call
        await ex.shared(flight)
        return False
    flight = ex.flights[lane] = Flight()
    try:
        found = await _broken(ex, call, record)
        if found is None:
            ex.held.add(record.id)
            return True
        await _set_aside(ex, call, record, found)
        return False
    finally:
        ex.at_hand = None
        del ex.flights[lane]
        flight.wake()


async def broken(ex: RunMemory, call: Call, record: Record) -> str | None:
    """Why a record no longer holds, in words; ``None`` when it does, as far as can be told. Writes nothing.

    What could not be looked at is noted in ``ex.notes``. So is what a write's receipt names, if that is gone: the receipt holds.
    """
    found = await _broken(ex, call, record)
    return None if found is None else found.why


async def _broken(ex: RunMemory, call: Call, record: Record) -> _Broken | None:
    if record.state != "done":
        return None
    text, verify, name = ex.result_text(record), call.step.hooks.verify, call.step.name
    if text is None:
        return _Broken(LOST) if record.effect is None else None
    try:
        why = await _elsewhere(ex, record, elsewhere.kept_in(text))
        if record.effect is not None:
            if why is not None:
                note(ex, f"{name} was done, and {why}. Nothing is done again.")
            return None
        if why is not None:
            return _Broken(free_text(why, 300))
        said = None if verify is None else await _verified(call, verify, text)
        return None if said is None else _Broken(free_text(said, 300), within=call.inner_branch())
    except references.CannotTell as unknown:
        before = ex.asides.get(call.key)
        if before is not None and before.generation == record.generation:  # the last recovery could, and nobody has mended it
            return _Broken(before.why, before.within)
        what = f"at {unknown.place}" if unknown.place else "whether its result still holds"
        note(ex, f"{name}: could not look {what} ({unknown.reason}). What is on record is kept.")
        return None


def note(ex: RunMemory, text: str) -> None:
    """Something worth knowing that needs nobody; said once."""
    text = free_text(text, 400)
    if text not in ex.notes and len(ex.notes) < MOST_NOTES:
        ex.notes.append(text)
        ex.services.tell(ex.hold.run_id, "note", text=text)


async def _elsewhere(ex: RunMemory, record: Record, named_there: tuple[Kept, ...]) -> str | None:
    """Look at everything a result names.

    Raises:
        CannotTell: something could not be looked at, and nothing else is broken.
    """
    unknown: references.CannotTell | None = None
    for kept in named_there:
        try:
            became = await _looked(ex, kept, record.ended_us or record.started_us)
        except references.CannotTell as told:
            unknown = unknown or told
        else:
            if became is not None:
                return f"its file {references.shown(kept.url)} {became}"
    if unknown is not None:
        raise unknown
    return None


async def _looked(ex: RunMemory, kept: Kept, since_us: int) -> str | None:
    """One look, in a thread, for as long as it may take."""
    local = elsewhere.scheme_of(kept.url) == FILE
    host = references.shown(kept.url) if local else elsewhere.host_of(kept.url)
    if not elsewhere.allowed(kept.url, references.allow_list()):
        raise references.CannotTell(host, "it is not on the allow-list, STEPSEVEN_ALLOW")
    if host in ex.away:  # many records, one dead host: it is asked once
        raise references.CannotTell(host, ex.away[host])
    try:
        async with asyncio.timeout(LOOK_S):
            return await run_in_thread(partial(references.look, kept, since_us))  # type: ignore[no-any-return]
    except TimeoutError as late:
        unknown = references.CannotTell(host, f"no answer within {LOOK_S:g} s", away=not local)
        unknown.__cause__ = late
    except references.CannotTell as told:
        unknown = told
    if unknown.away:
        ex.away[host] = unknown.reason
    raise unknown


async def _verified(call: Call, verify: Named, text: str) -> str | None:
    """Ask the step's ``.verify``. As outside a run: a step that it calls just runs, and leaves no record.

    Raises:
        CannotTell: it failed.
    """
    try:
        result = call.step.typed.decode(text)  # one of its own: whatever it does to it, the caller's stays as it is
    except NotRecordable:
        return None  # told by whoever decodes it for the caller
    limit_s = call.step.settings.timeout or LOOK_S
    outside, inside = place.set(None), loose.set(Attempt())
    try:
        async with asyncio.timeout(limit_s):
            said = await call_bound(verify.fn, verify.values(call.bound, result))
    except Superseded as signal:
        raise references.CannotTell("", f"it was told that it may not go on: {signal.why}") from signal
    except Exception as error:
        late = isinstance(error, TimeoutError) and not str(error)
        reason = f"no answer within {limit_s:g} s" if late else f"{type(error).__name__}: {error}"
        raise references.CannotTell("", free_text(reason, 200)) from error
    finally:
        loose.reset(inside)
        place.reset(outside)
    if isinstance(said, str):
        return f"verify said: {said}" if said else _NO
    return _NO if said is False else None


STEP_CODE.update((_verified.__code__, _looked.__code__))


# -- set aside ------------------------------------------------------------------------------------------------------------


async def _set_aside(ex: Execution, call: Call, record: Record, found: _Broken) -> None:
    """A record answers no more: written down, so that whoever goes on with the run after this execution knows it."""
    rows, key = ex.attempts.get(call.key), ("", ASIDE, digest("\0".join(call.key)))
    aside = Aside(
        branch=record.branch, name=record.name, key=record.key, generation=record.generation, seq=record.seq, why=found.why,
        within=found.within, tries=rows[-1]["n"] if rows else 0, run_no=ex.hold.run_no,
    )  # fmt: skip
    before, now = ex.asides.get(call.key), ex.now_us()
    if before is None or (before.generation, before.within) != (aside.generation, aside.within):  # else it is written down
        mark = Record(
            id=ex.next_id(), branch=key[0], name=key[1], key=key[2], generation=ex.generation(key), state="done",
            started_us=now, ended_us=now,
        )  # fmt: skip
        told = {name: getattr(aside, name) for name in Aside.__slots__}
        await ex.append(mark, durable=False, text=json.dumps(told, ensure_ascii=False))
        ex.asides[call.key] = aside
    ex.services.tell(ex.hold.run_id, "note", text=f"{call.step.name} runs again: {found.why}")
    _drop(ex, record, aside)


def _drop(ex: RunMemory, record: Record, aside: Aside) -> None:
    reading.drop(ex, record, why=aside.why)
    if aside.within is None:
        return
    below = f"{aside.within}/"
    for other in list(ex.records.values()):
        inner = other.branch == aside.within or other.branch.startswith(below)
        if inner and other.seq < aside.seq and other.effect is None and not other.name.startswith(INTERNAL):
            reading.drop(ex, other)


def asides(records: Mapping[RecordKey, Record]) -> dict[RecordKey, Aside]:
    """What was set aside in earlier executions, by whose record it was."""
    found = [_aside(r.result) for (_, name, _), r in records.items() if name == ASIDE and r.result is not None]
    return {(a.branch, a.name, a.key): a for a in found}


def _aside(text: str) -> Aside:
    """As it was written down; what a later version says besides is passed over."""
    return Aside(**{name: value for name, value in json.loads(text).items() if name in Aside.__slots__})


def put_aside(ex: RunMemory) -> None:
    """Outside a recovery nothing is looked at: what the last one set aside and did not make anew answers no more."""
    for key, aside in ex.asides.items():
        record = ex.records.get(key)
        if record is not None and record.generation <= aside.generation:
            _drop(ex, record, aside)


def since(ex: RunMemory, key: RecordKey, rows: list[Row]) -> list[Row]:
    """The tries of a call since its record was set aside: what came of it before is over."""
    aside = ex.asides.get(key)
    return rows if aside is None or aside.run_no != ex.hold.run_no else [r for r in rows if r["n"] > aside.tries]


def asked_since(ex: RunMemory, key: RecordKey, row: Row) -> bool:
    """Whether a question about a call is from after its record was set aside, if it was."""
    aside = ex.asides.get(key)
    return aside is None or row["asked_seq"] >= aside.seq
