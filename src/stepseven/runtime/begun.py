"""A run is to be started, and one that was started before stands: is it that? What has acted is not begun again in silence.

A run that another one starts is known by its workflow, its inputs, and the key and the place of the call. Where one of them is
another, because the code changed or what a step before it gave, it is another run, and does its writes anew. A workflow that got
another name is asked about before the body begins (``codechange``); all else here, when the call is made, and all else of the
run's code has had its turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from difflib import SequenceMatcher
from functools import partial
from typing import TYPE_CHECKING

from stepseven._dataclass import dataclass
from stepseven.decide import escalate
from stepseven.decide.changes import START as MARK
from stepseven.decide.changes import Kept, shown
from stepseven.model import EffectState, FailureKind, QuestionKind, RunStatus
from stepseven.runtime import asking, codechange, moved
from stepseven.runtime.stepclock import stopped
from stepseven.store.codec import digest
from stepseven.transitions import codes, family
from stepseven.transitions.family import START
from stepseven.transitions.state import choice_of

if TYPE_CHECKING:
    from stepseven.runtime.children import Started
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.memory import RunMemory
    from stepseven.runtime.place import Place
    from stepseven.store.base import Row, Tx
    from stepseven.transitions.state import Record

_COMPARED = 200  # characters of inputs that are held against others
_REPLACES = "replaces_run"  # in a question's context: the run it is about


@dataclass(frozen=True, slots=True)
class First:
    """A run that was started before, and what a call means.

    Attributes:
        row: the run's.
        why: who says so, as it is recorded.
    """

    row: Row
    why: str


class Begun:
    """The runs that a run, or the one that it is a fork of, had started before this execution: of each start the newest.

    Attributes:
        records: id → the record of its end.
    """

    __slots__ = ("_rows", "records")

    def __init__(self, ex: RunMemory, rows: Sequence[Row]) -> None:
        newest = {row["root_no"] or row["no"]: row for row in rows}  # in the order of their numbers
        self._rows = list(newest.values())
        ends = (r for r in (*ex.older, *ex.records.values()) if r.name == START)
        self.records: dict[str, Record] = {r.summary: r for r in ends if r.summary}

    def left(self, ex: RunMemory) -> list[Row]:
        """Those that this execution's code has not asked for so far."""
        self._rows[:] = [row for row in self._rows if not self.asked_for(ex, row["id"])]
        return self._rows

    def asked_for(self, ex: RunMemory, run_id: str) -> bool:
        """Whether this execution's code has asked for a run."""
        record = self.records.get(run_id)
        return run_id in ex.started or (record is not None and record.used)


def numbers(ex: RunMemory) -> list[int]:
    """Whose starts count: the run's own, and those of the run that it is a fork of."""
    return sorted({ex.hold.run_no, ex.run["root_no"] or ex.hold.run_no})


def acts(tx: Tx, row: Row) -> bool:
    """Whether a run would do something twice, were it begun again: it has not ended, or it or one below did something outside."""
    if not RunStatus(row["status"]).ended:
        return True
    below = (row["no"], *(each["no"] for each in tx.all(tx.sql.descendants, {"run_no": row["no"]})))
    claims = (claim for no in below for claim in tx.all(tx.sql.effects, {"run_no": no}))
    return any(claim["state"] != EffectState.REFUSED and claim["undone_us"] is None for claim in claims)


def kept(ex: RunMemory) -> list[Kept]:
    """The workflows whose runs it has started, as the steps on record are compared with the code."""

    def unit(tx: Tx) -> list[tuple[Row, bool]]:
        return [(row, acts(tx, row)) for no in numbers(ex) for row in family.children(tx, no)]

    found: dict[str, list[tuple[Row, bool]]] = {}
    for row, acted in ex.store.read_now(unit):
        found.setdefault(row["workflow"], []).append((row, acted))
    records = Begun(ex, ()).records

    def one(name: str, rows: list[tuple[Row, bool]]) -> Kept:
        usd = sum(record.usd or 0 for row, _ in rows if (record := records.get(row["id"])) is not None)
        live = any(not RunStatus(row["status"]).ended for row, _ in rows)
        return Kept(name=MARK + name, count=len(rows), usd=usd / 1e6, inside=any(acted for _, acted in rows), doubt=live)

    return [one(name, rows) for name, rows in found.items()]


# -- when a run is to be started ------------------------------------------------------------------------------------------


async def instead(ex: Execution, here: Place, key: str, call: Started, ids: Callable[[str], Iterable[str]]) -> First | None:
    """The run that stands already and is what the call means; ``None``: it is to be started.

    Args:
        ex: the run that starts it.
        here: where.
        key: of the call.
        call: what is to be started.
        ids: gives for a name of the workflow the ids that the call has or had under it, the oldest first.
    """
    for name in names(ex, call)[1:]:
        rows = await ex.store.read(partial(_rows, list(ids(name))))
        if rows:
            return First(rows[-1], "the same run, under the name that its workflow had")
    row = _said(ex, here, key) or await _ask(ex, here, key, call, set(ids(call.workflow.name)))
    if row is None:
        return None
    about = _about(row)
    first = next(iter(await ex.store.read(partial(_rows, [about]))), None)
    asked = about in ex.started if ex.begun is None else ex.begun.asked_for(ex, about)
    if row["status"] == "open" and asked:  # since then: so this is another one
        ex.remember_question(await ex.withdraw(row["id"]))
        return None
    row = await _answered(ex, here, call, row)
    if row["status"] != "answered":
        return await instead(ex, here, key, call, ids)
    choice = choice_of(json.loads(row["answer"]))
    if choice == "stop":
        from stepseven.runtime.memory import Stop

        ex.halt(Stop(RunStatus.CANCELLED, f"stopped by {row['answered_by']}", kind=FailureKind.FIXABLE))
        await ex.forever()
    if choice != "same" or first is None:
        return None
    return First(first, f"the same run, says {row['answered_by'] or 'a person'}")


async def asked_for(ex: Execution, run_id: str) -> None:
    """The code asks for a run: whether another call means it, nobody has to say any more."""
    for (_, kind, _), rows in list(ex.questions.items()):
        if kind == QuestionKind.CONFLICT.value and rows[-1]["status"] == "open" and _about(rows[-1]) == run_id:
            ex.remember_question(await ex.withdraw(rows[-1]["id"]))
            ex.wake_question(rows[-1]["id"])


def names(ex: RunMemory, call: Started) -> tuple[str, ...]:
    """The names that the workflow's runs may be known by: its own first."""
    return (call.workflow.name, *(shown(name) for name in ex.renamed.get(MARK + call.workflow.name, ())))


def _rows(ids: Iterable[str], tx: Tx) -> list[Row]:
    rows = (tx.one(tx.sql.run_by_id, {"id": each}) for each in ids)
    return [row for row in rows if row is not None]


def _about(row: Row) -> str:
    found = json.loads(row["context"]).get(_REPLACES)
    return str(found or "")


def _said(ex: RunMemory, here: Place, key: str) -> Row | None:
    """The question whether this call means a run that was started before: open, or answered."""
    begins = f"{START}/{key}/"
    for (branch, kind, about), rows in ex.questions.items():
        mine = kind == QuestionKind.CONFLICT.value and branch == here.branch and about.startswith(begins)
        if mine and rows[-1]["status"] in ("open", "answered") and about == begins + _about(rows[-1]):
            return rows[-1]
    return None


async def _ask(ex: Execution, here: Place, key: str, call: Started, own: Collection[str]) -> Row | None:
    """Ask about the run that the call is likeliest to mean; ``None``: there is none."""
    lane = ("started", call.workflow.name)
    await ex.take_lane(lane)
    try:
        if await _find(ex, here, call, own) is None:
            return None
        with stopped():
            await ex.turns.last()
        ex.check()
        first = await _find(ex, here, call, own)
        if first is None:
            return None
        if bool(ex.codes) and await ex.store.read(partial(codechange.newer_lives, ex)):
            ex.release(f"a worker with newer code of {ex.workflow.name} lives, and takes it")
            await ex.forever()
        await ex.may_start(call.workflow.name, branch=here.branch, key=key)
        draft = escalate.other_run(
            asking.situation(ex), workflow=call.workflow.name, run_id=first["id"], status=first["status"],
            first=json.loads(first["inputs"]), now=json.loads(call.inputs), value=json.loads(first["value"] or "null"),
            code=_twin(first, call) or _other_code(ex, first),
        )  # fmt: skip
        draft.context[_REPLACES] = first["id"]
        name = f"{START}/{key}/{first['id']}"
        return await asking.store(
            ex, QuestionKind.CONFLICT, name, draft, branch=here.branch, step=f"{START}/{call.workflow.name}"
        )
    finally:
        ex.free_lane(lane)


async def _find(ex: Execution, here: Place, call: Started, own: Collection[str]) -> Row | None:
    """What the call may mean, as far as the code has not asked for it by now."""
    if ex.begun is None:
        if not ex.resumed and not ex.kin and ex.run["root_no"] is None:
            return None
        rows = await ex.store.read(lambda tx: [row for no in numbers(ex) for row in family.children(tx, no)])
        ex.begun = Begun(ex, rows)
    left, known, begun = [row for row in ex.begun.left(ex) if row["id"] not in own], names(ex, call), ex.begun
    mine = [row["no"] for row in left if row["workflow"] in known and _counts(ex, begun.records.get(row["id"]), row["id"])]
    if not mine:
        return None

    def unit(tx: Tx) -> list[Row]:
        whole = (tx.one(tx.sql.run_by_no, {"no": no}) for no in mine)
        return [row for row in whole if row is not None and _may_be(ex, here, call, row, tx)]

    found, asked = await ex.store.read(unit), _abouts(ex, "open")

    def rank(row: Row) -> tuple[bool, bool, bool, float]:
        record = begun.records.get(row["id"])
        there = record is not None and record.branch == here.branch
        like = SequenceMatcher(None, row["inputs"][:_COMPARED], call.inputs[:_COMPARED], autojunk=False).ratio()
        return _twin(row, call), row["id"] not in asked, there, like

    return max(found, key=rank, default=None)


def _counts(ex: RunMemory, record: Record | None, run_id: str) -> bool:
    """Whether nothing will ask for a run, as far as is known, and nobody has said what it is."""
    if record is not None and not moved.elsewhere(ex).left_behind(ex, record.branch):
        return False
    return run_id not in _abouts(ex, "answered")


def _abouts(ex: RunMemory, status: str) -> set[str]:
    """The runs that questions of this status are about."""
    rows = (rows[-1] for (_, kind, _), rows in ex.questions.items() if kind == QuestionKind.CONFLICT.value)
    return {_about(row) for row in rows if row["status"] == status}


def _may_be(ex: RunMemory, here: Place, call: Started, row: Row, tx: Tx) -> bool:
    """Whether something says so: the same inputs, other code, or a step before that gave another result than last time."""
    return (_twin(row, call) or _other_code(ex, row) or ex.other_before(here.branch)) and acts(tx, row)


def _other_code(ex: RunMemory, row: Row) -> bool:
    """Whether a run was started by other code than this."""
    now = ex.workflow.digest
    return codes.made_start(ex.codes, row["no"], now) != now


def _twin(row: Row, call: Started) -> bool:
    """Whether a run is of the same workflow with the same inputs: only the key of the call, or its place, is another."""
    return digest(f"{call.workflow.name}\0{row['inputs']}") == call.about


async def _answered(ex: Execution, here: Place, call: Started, row: Row) -> Row:
    """The question's row when it is open no more. In a map the item's slot is free meanwhile."""
    if row["status"] == "open":
        await ex.may_start(call.workflow.name, branch=here.branch, key=row["key"])
    async with AsyncExitStack() as stack:
        if here.item is not None and row["status"] == "open":
            await stack.enter_async_context(here.item.aside())
        return await ex.answered(row)
