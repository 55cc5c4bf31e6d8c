"""The run that takes back what another one did: a workflow like any other, and each undo is a write like any other.

A person decided on it when the other run had ended (``transitions/offering.py``, ``transitions/undoing.py``); this is what
``resume`` or a worker then executes. Its writes are keyed by the claims they take back, over all runs of the client: however
often it dies, and however often a person decides anew, nothing is taken back twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from stepseven.decide.escalate import about
from stepseven.errors import Fixable, NotRecordable
from stepseven.model import EffectKind
from stepseven.runtime import known
from stepseven.runtime.arguments import arguments_of
from stepseven.runtime.binding import hints_of, is_async, passed
from stepseven.runtime.declared import Step, StepOptions, source_digest
from stepseven.runtime.handle import Run
from stepseven.runtime.procedure import Workflow, WorkflowOptions
from stepseven.store.redact import MASK
from stepseven.transitions.effects import REFUSED_RESULT
from stepseven.transitions.offering import UNDO
from stepseven.transitions.undoing import to_undo

if TYPE_CHECKING:
    from stepseven.runtime.takeback import Undo
    from stepseven.store.base import Row, Tx

_MOST = 16_384  # characters of arguments or of a receipt that are shown with a claim; whole they stand in the first one
_LONGEST = 75  # of a step's name after "undo."


async def _take_back(run: Run, run_id: str) -> dict[str, int]:  # noqa: ARG001 - the input says whose effects these are
    """Take back, newest first, what was decided on. A failed one asks; the others wait for it: they may build on it."""
    ex = run._ex  # noqa: SLF001 - part of the runtime
    unit = partial(_decided, ex.hold.run_no)
    for row in await ex.store.read(unit):
        arguments, receipt = _shown(row["inputs_approved"] or row["arguments"] or "{}"), _shown(row["receipt"] or "null")
        what = about(arguments if isinstance(arguments, dict) else {}) or about({"receipt": receipt}) or row["step"]
        await undo_step(row)(what, arguments, receipt, row["claim_id"])
    undone = [row["undone_us"] is not None for row in await ex.store.read(unit)]
    return {"taken_back": sum(undone), "left": len(undone) - sum(undone)}


def _decided(undo_no: int, tx: Tx) -> list[Row]:
    return to_undo(tx, undo_no)


def _shown(text: str) -> Any:
    return from_json(text) if len(text) <= _MOST else f"{text[:200]}…"


def undo_step(row: Row) -> Step[Any, Any]:
    """The step that takes one effect back: the code of its ``.undo``, or a failure that says which module is missing."""
    step = known.find(row["step"], row["undo_module"] or "") or known.heir(row["step"], row["undo_module"] or "")
    undo = None if step is None else step.hooks.undo
    o = step.settings if step is not None else StepOptions(name=row["step"])
    made: Step[Any, Any] = Step(
        _without_code(row) if step is None or undo is None else _with_code(row, step, undo),
        StepOptions(
            name=f"undo.{row['step'][:_LONGEST]}", effect=EffectKind.WRITE, key="claim", scope="client", ignore=("what",),
            attempts=o.attempts, timeout=o.timeout, classify=o.classify, resource=o.resource, secrets=o.secrets,
        ),
    )  # fmt: skip
    # What was missing or wrong may be there or mended after a restart: then its failure is tried again by itself.
    made.__dict__["digest"] = "not loaded" if step is None or undo is None else step.digest + source_digest(undo.fn)
    return made


def _without_code(row: Row) -> Callable[..., Any]:
    module, step = row["undo_module"], row["step"]

    async def take_back(what: str, arguments: Any, receipt: Any, claim: str) -> None:  # noqa: ARG001 - kept with the claim
        raise Fixable(
            f"module {module}, which takes {step!r} back, is not loaded: name it with --module, or import it, and try again"
        )

    return take_back


def _with_code(row: Row, step: Step[Any, Any], undo: Undo) -> Callable[..., Any]:
    async def here(what: str, arguments: Any, receipt: Any, claim: str) -> Any:  # noqa: ARG001 - kept with the claim
        return await undo.fn(**_values(row, step, undo))

    def in_thread(what: str, arguments: Any, receipt: Any, claim: str) -> Any:  # noqa: ARG001 - kept with the claim
        return undo.fn(**_values(row, step, undo))

    take_back: Callable[..., Any] = here if is_async(undo.fn) else in_thread
    hints = hints_of(undo.fn)
    take_back.__annotations__.pop("return")
    if "return" in hints:  # what it returns is its receipt, of the type it declares
        take_back.__annotations__["return"] = hints["return"]
    return take_back


def _values(row: Row, step: Step[Any, Any], undo: Undo) -> dict[str, Any]:
    """What the undo is called with, of the types the step has.

    Raises:
        Fixable: what was kept does not fit the code any more, or the receipt was never kept, or a credential in it was not.
    """
    text = row["receipt"] or "null"
    _refuse_masked(row, step, undo)
    if undo.receipt is not None and text.startswith('{"' + REFUSED_RESULT):
        raise Fixable(f"what {step.name!r} returned could not be kept, and its undo needs it: take it back by hand")
    try:
        arguments = arguments_of(step, row["arguments"] or "{}") | arguments_of(step, row["inputs_approved"] or "{}")
        receipt = step.typed.decode(text) if undo.receipt is not None else None
    except NotRecordable as misfit:
        raise Fixable(f"what {step.name!r} was called with, or returned, does not fit its code any more: {misfit}") from misfit
    missing = [name for name in undo.arguments if name not in arguments]
    if missing:
        raise Fixable(f"the undo of {step.name!r} takes {', '.join(missing)}, which was not recorded when it was done")
    return dict(passed(undo.fn, undo.values(arguments, receipt))[1])


def _refuse_masked(row: Row, step: Step[Any, Any], undo: Undo) -> None:
    """Whatever has a credential in it was kept without that: to call the outside with the rest would be to call it wrongly."""
    kept = from_json(row["arguments"] or "{}") | from_json(row["inputs_approved"] or "{}")
    taken = {name: kept[name] for name in undo.arguments if name in kept}
    if undo.receipt is not None:
        taken[undo.receipt] = from_json(row["receipt"] or "null")
    masked = [name for name, value in taken.items() if MASK in json.dumps(value, ensure_ascii=False)]
    if masked:
        raise Fixable(
            f"take {step.name!r} back by hand: its undo takes {', '.join(masked)}, and a credential in that was not kept"
        )


take_back: Workflow[Any, dict[str, int]] = Workflow(_take_back, WorkflowOptions(name=UNDO))
