"""``@step(remember=…)``: a step's result is a fact about the client from the same commit on that records it."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from stepseven.runtime.place import Known
from stepseven.store.codec import free_text, guard
from stepseven.transitions import clients
from stepseven.transitions.clients import Given

if TYPE_CHECKING:
    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Tx

Answer = Callable[["Execution", "Call"], Coroutine[Any, Any, Any]]


def fact_of(ex: Execution, call: Call, text: str, by: str | None = None) -> Given | None:
    """What a result says about the client; ``None``: nothing is remembered of this step, or there is nothing to remember.

    Args:
        ex: the run.
        call: the call it answers.
        text: the result as it is recorded, JSON.
        by: the person who gave it, if nobody's code did.
    """
    key = call.step.settings.remember
    if key is None or text == "null":
        return None
    whole = json.loads(guard(f"{{{json.dumps(key)}:{text}}}", "fact", secrets="mask"))  # with its name it may be a credential
    value = json.dumps(whole[key], ensure_ascii=False) if isinstance(whole, dict) and key in whole else json.dumps(whole)
    return Given(
        client_id=ex.hold.client_id, key=key, value=value, source=_source(ex, call), run_id=ex.hold.run_id,
        by=None if by is None else free_text(by, 300),
    )  # fmt: skip


def _source(ex: Execution, call: Call) -> str:
    return free_text(f"step {call.step.name} of run {ex.hold.run_id}", 300)


def learn(tx: Tx, ex: Execution, fact: Given | None, *, anew: bool, now_us: int) -> None:
    """Keep the fact. Not *anew*: the receipt is another run's, and what was said since counts more than it."""
    if fact is not None and (anew or tx.one(tx.sql.fact, {"client_id": ex.hold.client_id, "key": fact.key}) is None):
        clients.learn(tx, fact, now_us)


def remembered(answer: Answer) -> Answer:
    """*answer*, after which the run itself sees the fact, too: also when the answer is a replay of the record."""

    async def told(ex: Execution, call: Call) -> Any:
        value = await answer(ex, call)
        _noted(ex, call)
        return value

    return told


def _noted(ex: Execution, call: Call) -> None:
    from stepseven.runtime import writing

    key = call.step.settings.remember
    record = writing.record_of(ex, call) if call.step.settings.writes else ex.records.get(call.key)
    text = None if record is None or record.state != "done" or key is None else ex.result_text(record)
    if key is None or text in (None, "null"):
        return
    mine = {"client_id": ex.hold.client_id, "key": key}
    rows = ex.store.read_now(lambda tx: tx.all(tx.sql.fact_history, mine))
    value, source = json.loads(text or "null"), _source(ex, call)
    same = [row for row in rows if json.loads(row["value"]) == value]
    own = [row for row in same if row["source"] == source] or same  # what only repeated another run's word is that one's version
    call.place.found_out(key, Known(value, own[-1]["version"] if own else 0))
    ex.wake_fact(key)
