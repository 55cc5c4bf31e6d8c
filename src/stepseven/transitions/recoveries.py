"""A recovery: one executed plan. It is open until its run parks or ends, and what was chosen in it is obeyed from its row.

So a crash inside changes nothing: whoever takes the run next finds the open recovery and goes on with it. What was chosen stays
in force after that, as long as what it is about has no newer record; a newer choice about the same step replaces it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from stepseven._dataclass import dataclass
from stepseven.model import INTERNAL
from stepseven.store.base import Row, Tx
from stepseven.transitions.state import Hold, Loaded, Record, outwards

Drift = Literal["keep", "refresh"]
NO_PLAN = "{}"
SUPPOSED = "supposed"  # the id of a recovery that is only looked at
DRIFT_DUE = "drift_due"  # in its result: what was chosen about what moved could not be obeyed yet
_NEVER = sys.maxsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What was chosen when a run was resumed.

    Attributes:
        approach: step → the label of the approach its next tries use; ``as written`` is the step's own code.
        skip: step → the result, as JSON text, of each of its calls that is not on record; ``null``: they are skipped.
        rerun: read steps whose results are to be made anew.
        drift: what becomes of facts that moved: the run goes on with what it knows, or with what is so now.
        as_of_seq: the run's last record at that time. Newer ones are not touched, and are what came of it.
        tried: the last try at that time of each call of a step in *approach* or *skip*: (branch, name, key) → number.
        by: who chose.
    """

    approach: Mapping[str, str] = field(default_factory=dict)
    skip: Mapping[str, str] = field(default_factory=dict)
    rerun: tuple[str, ...] = ()
    drift: Drift | None = None
    as_of_seq: int = 0
    tried: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    by: str | None = None

    @property
    def anything(self) -> bool:
        """Whether anything was chosen."""
        return bool(self.approach or self.skip or self.rerun or self.drift)

    def same(self, other: Chosen) -> bool:
        """Whether the same was chosen, whenever and by whomever."""
        return (dict(self.approach), dict(self.skip), set(self.rerun), self.drift) == (
            dict(other.approach), dict(other.skip), set(other.rerun), other.drift,
        )  # fmt: skip

    def told(self) -> dict[str, Any]:
        """What was chosen, as ``resume`` takes it; nothing of what was not."""
        told: dict[str, Any] = {}
        if self.approach:
            told["approach"] = dict(self.approach)
        if self.skip:
            told["skip"] = {name: json.loads(text) for name, text in self.skip.items()}
        if self.rerun:
            told["rerun"] = list(self.rerun)
        if self.drift:
            told["drift"] = self.drift
        return told

    def stored(self) -> str:
        """As it is kept."""
        told = {**self.told(), "as_of_seq": self.as_of_seq}
        if self.tried:
            told["tried"] = [[*key, n] for key, n in self.tried.items()]
        return json.dumps(told, ensure_ascii=False)


def chosen_of(row: Row) -> Chosen:
    """What was chosen in a recovery, from its row."""
    told = json.loads(row["chosen"] or "{}")
    return Chosen(
        approach=told.get("approach", {}), rerun=tuple(told.get("rerun", ())), drift=told.get("drift"), by=row["by"],
        skip={name: json.dumps(value, ensure_ascii=False) for name, value in told.get("skip", {}).items()},
        as_of_seq=told.get("as_of_seq", 0), tried={(b, name, key): n for b, name, key, n in told.get("tried", ())},
    )  # fmt: skip


def supposed(chosen: Chosen, loaded: Loaded) -> Row:
    """The open recovery that *chosen* would be: for looking what comes of it. Answers questions in *loaded*; stores nothing."""
    at_us = _later(loaded, 0)
    row: Row = {
        "id": SUPPOSED, "plan": NO_PLAN, "chosen": chosen.stored(), "by": chosen.by, "result": _began(loaded),
        "created_us": at_us, "ended_us": None,
    }  # fmt: skip
    for rows in loaded.questions.values():
        rows[:] = [_as_answered(each, chosen, at_us) for each in rows]
    return row


def _as_answered(row: Row, chosen: Chosen, now_us: int) -> Row:
    answer = _answer(row, chosen) if row["status"] == "open" else None
    if answer is None:
        return row
    told = {"answered_by": chosen.by, "answered_us": now_us}
    if answer is _WITHDRAWN:
        return {**row, **told, "status": "withdrawn"}
    return {**row, **told, "status": "answered", "answer": json.dumps(answer, ensure_ascii=False)}


def open_one(rows: Sequence[Row]) -> Row | None:
    """The recovery under way, if there is one."""
    return next((row for row in reversed(rows) if row["ended_us"] is None), None)


def begin(  # noqa: PLR0913, PLR0917 - what it is made of
    tx: Tx, hold: Hold, loaded: Loaded, recovery_id: str, chosen: Chosen | None, now_us: int, plan: str = NO_PLAN,
    *, by: str | None = None,
) -> Row | None:  # fmt: skip
    """Open a recovery of a run that was just taken, or go on with the one under way.

    Args:
        tx: the transaction: the take's, or one of its own.
        hold: the run's.
        loaded: what is on record of it; gets the recovery's row, and answered questions as they are then.
        recovery_id: a fresh id.
        chosen: what was chosen, checked; ``None``: nothing.
        now_us: the time.
        plan: what somebody looked at before they chose, as JSON.
        by: who resumed it, where nothing was chosen; that is in *chosen* otherwise.

    Returns:
        Its row; ``None``: the run is no longer ours, and nothing was written.
    """
    under_way = open_one(loaded.recoveries)
    if under_way is not None:
        anew = chosen is not None and chosen.same(Chosen(drift=chosen.drift))  # said again, it is about what moved until now
        if chosen is None or (chosen.same(chosen_of(under_way)) and not anew):
            return under_way
        _close_others(tx, loaded, now_us)
    row = {
        "id": recovery_id, "plan": plan, "chosen": None if chosen is None else chosen.stored(),
        "by": by if chosen is None else chosen.by, "result": _began(loaded), "created_us": _later(loaded, now_us),
        "ended_us": None,
    }  # fmt: skip
    if tx.run(tx.sql.begin_recovery, {**row, **hold.keys()}) != 1:
        return None
    loaded.recoveries.append(row)
    if chosen is not None:
        _close_questions(tx, hold, loaded, chosen, now_us)
    return row


def _later(loaded: Loaded, now_us: int) -> int:
    """Their order is that of their times, also when a clock went back."""
    return max([now_us, *(int(row["created_us"]) + 1 for row in loaded.recoveries)])


def _began(loaded: Loaded) -> str:
    """Where the run stands as a recovery begins: what came of that is counted from here."""
    return json.dumps({
        "as_of_seq": loaded.last_seq, "uusd": spent(loaded), "executed_us": loaded.run["executing_us"],
        "questions": sum(map(len, loaded.questions.values())),
    })  # fmt: skip


def spent(loaded: Loaded) -> int:
    """What a run has cost by its own records and tries, in micro-USD."""
    own = sum(r.usd or 0 for r in (*loaded.records.values(), *loaded.older))
    return own + sum(row["usd"] or 0 for rows in loaded.attempts.values() for row in rows)


def _close_others(tx: Tx, loaded: Loaded, now_us: int) -> None:
    """Something else is chosen while a recovery is open (its worker died): it ends with what came of it."""
    for i, row in enumerate(loaded.recoveries):
        if row["ended_us"] is None:
            found = account(
                row, (*loaded.older, *loaded.records.values()), asked=sum(map(len, loaded.questions.values())),
                uusd=spent(loaded), executed_us=loaded.run["executing_us"],
            )  # fmt: skip
            if chosen_of(row).drift:  # whether it came to that nobody saw; done already, there is nothing left to do
                found[DRIFT_DUE] = True
            end(tx, row["id"], found, now_us)
            loaded.recoveries[i] = {**row, "result": json.dumps(found), "ended_us": now_us}


def end(tx: Tx, recovery_id: str, result: Mapping[str, Any], now_us: int) -> None:
    """Close a recovery, in the transaction that parks or ends its run (and so carries the fence)."""
    tx.run(tx.sql.end_recovery, {"id": recovery_id, "result": json.dumps(result), "now": now_us})


def account(row: Row, records: Iterable[Record], *, asked: int, uusd: int, executed_us: int) -> dict[str, Any]:
    """What came of a recovery.

    Args:
        row: of the recovery, while it is open.
        records: all of the run, older generations too; ``used`` tells which ones its code asked for.
        asked: how many questions it has by now.
        uusd: what it has cost by now, in micro-USD.
        executed_us: how long it has been executed by now.

    Returns:
        ``ran``: step → how often it ran; ``reused``: records that answered; ``asked``: new questions; ``usd``, ``seconds``: what
        was spent on it; ``saved``: step → calls that did not have to run although something before them ran again.
    """
    began, records = json.loads(row["result"]), list(records)
    renewed = _renewed(records)
    ran: Counter[str] = Counter()
    reused = 0
    for record in records:
        if record.name.startswith(INTERNAL):
            continue
        if record.seq > began["as_of_seq"]:
            ran[record.name] += record.state != "skipped" and record.approach != "by hand"
        elif record.used and _place(record) not in renewed:
            reused += 1
    return {
        "ran": {name: n for name, n in ran.items() if n}, "reused": reused, "asked": asked - began["questions"],
        "usd": (uusd - began["uusd"]) / 1e6, "seconds": (executed_us - began["executed_us"]) / 1e6,
        "saved": saved(records, began["as_of_seq"]),
    }  # fmt: skip


def saved(records: Sequence[Record], as_of_seq: int) -> dict[str, int]:
    """Step → calls whose records answered although something before them ran again: it gave what it had given before.

    Args:
        records: all of a run, older generations too.
        as_of_seq: where the recovery began.
    """
    begun: dict[str, int] = {}  # branch -> from where on in the run's order a call may have had other arguments
    first: dict[tuple[str, str, str], int] = {}  # where a call came, however often it was made anew since
    for record in sorted(records, key=lambda r: r.seq):
        came = first.setdefault((record.branch, record.name, record.key), record.seq)
        if record.seq > as_of_seq and came <= as_of_seq and not record.name.startswith(INTERNAL):
            begun[record.branch] = min(begun.get(record.branch, came), came)
    within: dict[str, int] = {}  # the same of what is in a branch, or in one within it
    for branch, seq in begun.items():
        for around in outwards(branch):
            within[around] = min(within.get(around, seq), seq)

    def since(branch: str) -> int:
        """What is called in *branch* may build on what was called in it, around it, or within it."""
        return min(within.get(branch, _NEVER), *(begun.get(around, _NEVER) for around in outwards(branch)))

    renewed = _renewed(records)
    found = Counter(r.name for r in records if r.used and r.seq <= as_of_seq and not r.name.startswith(INTERNAL)
                    and since(r.branch) < r.seq and _place(r) not in renewed)  # fmt: skip
    return dict(found)


_Place = tuple[str, str, str, int]  # branch, name, key, generation


def _place(record: Record) -> _Place:
    return record.branch, record.name, record.key, record.generation


def _renewed(records: Iterable[Record]) -> set[_Place]:
    """Where records are that were made anew since: they answered nothing."""
    return {(r.branch, r.name, r.key, r.generation - 1) for r in records}


# -- the questions that a choice answers ------------------------------------------------------------------------------------


def _close_questions(tx: Tx, hold: Hold, loaded: Loaded, chosen: Chosen, now_us: int) -> None:
    """What is chosen about a step answers what was asked about it, in the same transaction: nobody waits for it any more."""
    by = chosen.by or "a resume"
    found = [(row, answer) for row in _in_order(loaded) if (answer := _answer(row, chosen)) is not None]
    for row, answer in found:
        if answer is _WITHDRAWN:
            tx.run(tx.sql.close_question, {"id": row["id"], "status": "withdrawn", "now": now_us})
        else:
            stored = json.dumps(answer, ensure_ascii=False)
            told = {"id": row["id"], "answer": stored, "by": by, "note": None, "now": now_us}
            tx.run(tx.sql.answer_question, told)
            if row["kind"] == "batch":  # what it stands for besides has no other way to be answered
                tx.run(tx.sql.answer_folded, told)
    if not found:
        return
    tx.run(tx.sql.count_questions, {"run_no": hold.run_no, "now": now_us})
    newest = {row["id"]: row for row in tx.all(tx.sql.questions_of_run, {"run_no": hold.run_no})}
    for rows in loaded.questions.values():
        rows[:] = [newest.get(row["id"], row) for row in rows]


_WITHDRAWN = object()


def _in_order(loaded: Loaded) -> list[Row]:
    """Open questions; those that stand for others last, because their answer would be the others', too."""
    rows = [row for rows in loaded.questions.values() for row in rows if row["status"] == "open"]
    return sorted(rows, key=lambda row: row["kind"] == "batch")


def _answer(row: Row, chosen: Chosen) -> Any:
    """What a choice says to an open question: an answer as it is stored, ``_WITHDRAWN``, or ``None``: nothing."""
    step, kind = row["step"], row["kind"]
    if kind == "failure" and row["key"] == "run.body":
        return "again" if chosen.approach or chosen.skip or chosen.rerun or chosen.drift == "refresh" else None
    label, given = chosen.approach.get(step), chosen.skip.get(step)
    if label is not None or given is not None:
        if kind in ("required", "approve") and (kind == "required" or given is not None):
            return _WITHDRAWN
        if kind == "batch":
            return "again"
        if kind == "failure" and label is not None:
            return "again" if label == AS_WRITTEN else f"approach:{label}"
        if kind == "failure" and given is not None:
            return "skip" if given == "null" else {"choice": "value", "value": json.loads(given)}
    offered = {option["id"] for option in json.loads(row["options"])} if kind == "failure" and chosen.rerun else set()
    return next((f"rerun:{name}" for name in chosen.rerun if f"rerun:{name}" in offered), None)


AS_WRITTEN = "as written"
