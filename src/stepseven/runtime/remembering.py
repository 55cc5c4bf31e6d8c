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
    from stepseven.store.base import Row, Tx
    from stepseven.transitions.state import Record

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


def learn(tx: Tx, record: Record, fact: Given | None, *, anew: bool = True, now_us: int) -> None:
    """Keep the fact, and in the *record*, which is written next in this transaction, which version of it says so.

    Not *anew*: the receipt is another run's, and what was said since counts more than it. If that is something else, the record
    says version 0, and the run does not take its own result for the fact: neither now nor in a replay, whatever is said by then.
    """
    if fact is None:
        return
    rows = [] if anew else tx.all(tx.sql.fact_history, {"client_id": fact.client_id, "key": fact.key})
    if rows:
        version = rows[-1]["version"] if json.loads(rows[-1]["value"]) == json.loads(fact.value) else 0
    else:
        version = clients.learn(tx, fact, now_us).version
    record.facts = json.dumps({**json.loads(record.facts or "{}"), fact.key: version})


def _likeliest(rows: list[Row], value: Any, source: str | None) -> int:
    """The version that says it, of a fact that was not learned here: our own, else another's with this value; 0: none."""
    same = [row for row in rows if json.loads(row["value"]) == value]
    own = [row for row in same if row["source"] == source] or same
    return int(own[-1]["version"]) if own else 0


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
    value, version = json.loads(text or "null"), json.loads(record.facts or "{}").get(key) if record is not None else None
    if version == 0:  # another run's receipt, and something else was said since
        return
    if version is None:  # recorded before the step was told to remember
        mine = {"client_id": ex.hold.client_id, "key": key}
        version = _likeliest(ex.store.read_now(lambda tx: tx.all(tx.sql.fact_history, mine)), value, _source(ex, call))
    call.place.found_out(key, Known(value, version))
    ex.wake_fact(key)
