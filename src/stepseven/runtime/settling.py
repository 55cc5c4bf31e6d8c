"""Before a run ends: find out about every claim in doubt. Without the run's body: it may never be run again.

The step is found by its name among those this process knows; it gives the probe. Without it, or when looking does not tell,
a person is asked, and the run stays ``cancelling`` or ``failing`` until the answer.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stepseven.errors import NotRecordable
from stepseven.model import ONCE, EffectKind
from stepseven.runtime import ahead, doubt, known, reading
from stepseven.runtime.arguments import arguments_of
from stepseven.runtime.calls import Call
from stepseven.runtime.declared import Step, StepOptions
from stepseven.runtime.place import Place
from stepseven.store.codec import canonical
from stepseven.store.redact import MASK
from stepseven.transitions import effects
from stepseven.transitions.effects import Intent

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Row, Tx
    from stepseven.transitions.effects import Claim


async def _gone() -> Any:
    """Stands for the code of a step this process does not know."""


async def open_claims(ex: Execution) -> bool:
    """Whether anything is to be found out."""
    return bool(await ex.store.read(lambda tx: effects.unsettled(tx, ex.hold.run_no)))


async def settle_all(ex: Execution) -> None:
    """Find out about every claim in doubt, one after the other."""
    for row in await ex.store.read(lambda tx: effects.unsettled(tx, ex.hold.run_no)):
        await settle(ex, row)


async def settle(ex: Execution, row: Row) -> None:
    """Find out about one claim that may be in doubt, without the call that made it. Nothing is sent for that."""
    held = await ex.store.read(partial(_look, row["claim_id"]))
    if held is None:
        return
    call, intent = call_of(ex, row)
    call.step = Step(call.step.fn, replace(call.step.settings, idempotent=False), call.step.hooks)
    try:
        await doubt.resolve(ex, call, intent, held, proven=doubt.proven(ex, call, held))
    finally:
        call.close()  # it was only asked about


def _look(claim_id: str, tx: Tx) -> Claim | None:
    return effects.look(tx, claim_id)


def call_of(ex: Execution, row: Row) -> tuple[Call, Intent]:
    """The call a claim was made by, from what the claim keeps, and what it wants. It is to be closed."""
    stored: dict[str, Any] = json.loads(row["arguments"] or "{}")
    step = step_of(ex, row["step"])
    bound: dict[str, Any] = {}
    try:
        bound = {} if step is None else step.parameters.bind((), arguments_of(step, row["arguments"] or "{}"))
    except (NotRecordable, TypeError):  # its parameters changed, or some were not recorded: its probe cannot be asked
        step = None
    if step is None or MASK in (row["arguments"] or ""):  # what was masked cannot be looked for
        step = Step(_gone, StepOptions(name=row["step"], effect=EffectKind.WRITE))
    key = row["key"] if step.settings.key is not None or row["key"].partition("/")[0] != ONCE else ONCE
    texts = {name: canonical(value, name) for name, value in stored.items()}
    call = Call(step, Place(ex, row["branch"]), (row["branch"], row["step"], key), row["inputs"], bound, texts, never)
    reading.as_named_before(ex, call)
    intent = Intent(
        scope=row["scope"], scope_id=row["scope_id"], name=row["name"], key=row["key"], step=row["step"],
        branch=row["branch"], inputs=row["inputs"], arguments=row["arguments"] or "{}", timeout_us=0,
    )  # fmt: skip
    return call, intent


def step_of(ex: Execution, name: str) -> Step[Any, Any] | None:
    """The step that a claim names: as it is called now, where the code or a person says so."""
    module = ex.workflow.fn.__module__
    called = ahead.steps_named(ex.workflow, name)
    if len(called) == 1:  # by what its code calls, whatever else has the name
        return called[0]
    said = (step for now in ex.renamed.get(name, ()) if (step := known.find(now, module)) is not None)
    return known.find(name, module) or known.heir(name, module) or next(said, None)


async def never(ex: Execution, call: Call) -> Any:
    """A call that is only asked about is not run."""
    raise AssertionError(call.step.name, ex.hold.run_id)
