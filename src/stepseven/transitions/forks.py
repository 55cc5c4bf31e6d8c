"""Forking: a new run with an old one's records up to a step."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from stepseven.errors import InvalidChoice, Superseded
from stepseven.model import INTERNAL, QuestionKind
from stepseven.store.base import Row, Tx
from stepseven.store.statements import SEQ_BITS, SEQ_MASK
from stepseven.transitions.codes import CODE
from stepseven.transitions.runs import Admission, admit, known
from stepseven.transitions.state import Record, steps_range

_NAMES = 12  # of steps in a sentence
AGAIN = "ran again"  # how ``why`` begins of a record that was made instead of an older one
#: records that say which others hold no more, or what a person said of them
MARKS = ("run.aside", CODE, "client.refresh", "client.reload", "client.keep")


def fork(tx: Tx, run_id: str, new_id: str, from_step: str, changed: Mapping[str, str], now_us: int) -> None:
    """Copy the records before *from_step* into a new queued run. It shares its root's receipts, so nothing is done twice.

    Raises:
        UnknownRun: there is no such run.
        InvalidChoice: it has no record of *from_step*, was pruned or forgotten with its client, or asks about its code.
    """
    run = known(tx, run_id)
    client = tx.one(tx.sql.client, {"id": run["client_id"]})
    forgotten_us = None if client is None else client["forgotten_us"]
    if run["pruned_us"] is not None and forgotten_us is not None and run["created_us"] <= forgotten_us:
        raise InvalidChoice(run_id, "it was forgotten with its client: nothing can go on from it; start a new run")
    if run["pruned_us"] is not None or run["shrunk"]:
        raise InvalidChoice(run_id, "it was pruned: its results are gone, so nothing can go on from them; start a new run")
    rows = tx.all(tx.sql.steps, steps_range(run["no"]))
    cut = next((r["id"] for r in rows if r["name"] == from_step), None)
    if cut is None:
        raise InvalidChoice(run_id, _no_such(run_id, from_step, rows))
    _code_is_clear(tx, run)
    inputs = json.loads(run["inputs"])
    inputs.update({name: json.loads(text) for name, text in changed.items()})
    text = json.dumps(dict(sorted(inputs.items())), ensure_ascii=False, separators=(",", ":"))
    new = admit(
        tx,
        Admission(
            run_id=new_id, client_id=run["client_id"], workflow=run["workflow"], source_digest=run["source_digest"],
            goal=run["goal"], inputs=text, root_no=run["root_no"] or run["no"],
        ),
        now_us,
    )  # fmt: skip
    # The new run is nobody's yet, so its records are written under a hold that exists in this transaction only.
    taken = tx.one(
        tx.sql.take_run,
        {"run_no": new["no"], "owner": "fork", "now": now_us, "progress": 0, "barren": 0, "source_digest": run["source_digest"],
         "fence": 0, "seen_owner": "", "remaining": None},
    )  # fmt: skip
    if taken is None:
        raise Superseded(new_id, "it was taken while it was being made")
    hold = {"run_no": new["no"], "owner": "fork", "fence": taken["fence"]}
    for row in _before(rows, cut):
        record = Record(**{**dict(row), "id": new["no"] << SEQ_BITS | (row["id"] & SEQ_MASK)})
        tx.run(*record.insert(tx.sql, (new["no"], taken["fence"], "fork")))
    tx.run(
        tx.sql.copy_questions, {"from_no": run["no"], "run_no": new["no"], "asked_seq": cut & SEQ_MASK, "suffix": f"_{new['no']}"}
    )
    tx.run(tx.sql.release_run, {**hold, "reason": f"forked from {run_id} at {from_step}", "executing_us": 0, "now": now_us})


def _code_is_clear(tx: Tx, run: Row) -> None:
    """Refuse while a person is asked which steps are renamed: the fork would do again what that answer keeps from being done."""
    rows = tx.all(tx.sql.questions_of_run, {"run_no": run["no"]})
    asked = next((row["id"] for row in rows if row["kind"] == QuestionKind.CODE.value and row["status"] == "open"), None)
    if asked is not None:
        raise InvalidChoice(run["id"], f"it asks whether steps were renamed: answer question {asked} first, a fork goes by it")


def _no_such(run_id: str, from_step: str, rows: Sequence[Row]) -> str:
    """Why a run cannot be forked at a step, and at which it can."""
    names = list(dict.fromkeys(r["name"] for r in rows if not r["name"].startswith(INTERNAL)))
    told = f"it has no record of a step {from_step!r}"
    if not names:
        return f"{told}, nor of any other: start a new run"
    shown = names if len(names) <= _NAMES else [*names[: _NAMES - 1], f"… {len(names) - _NAMES + 1} more"]
    such = f"`stepseven fork {shlex.quote(run_id)} --from {shlex.quote(names[-1])}`"
    return f"{told}, so nothing can begin there: say one of {', '.join(shown)}, such as {such}"


def _before(rows: Sequence[Row], cut: int) -> list[Row]:
    """The records before *cut* as they stand now: with what was made anew of them since, and what says which of them hold.

    Their places stay the same: what was refreshed, set aside or kept is named by them.
    """
    first: dict[tuple[str, str, str], int] = {}
    for row in rows:
        first.setdefault((row["branch"], row["name"], row["key"]), row["id"])
    calls = {(row["branch"], row["name"]) for row in rows if row["id"] < cut}

    def stands(row: Row) -> bool:
        if first[row["branch"], row["name"], row["key"]] < cut or row["name"] in MARKS:
            return True
        return (row["why"] or "").startswith(AGAIN) and (row["branch"], row["name"]) in calls  # the same call, with other values

    return [row for row in rows if stands(row)]
