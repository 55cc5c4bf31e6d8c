"""What a rehearsal does not come to, and a resume asks about: in the code of a step that runs again.

That are writes in doubt, and reads that failed as a person has to mend it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from stepseven.decide import policy
from stepseven.decide.plan import Coming, Do, Met
from stepseven.runtime import ahead, foresight, known, settling, trouble
from stepseven.runtime.calls import Call
from stepseven.runtime.place import Place
from stepseven.transitions import effects

if TYPE_CHECKING:
    from stepseven.runtime.rehearsal import Rehearsal
    from stepseven.store.base import Row, Tx
    from stepseven.transitions.effects import Claim

C = TypeVar("C", Met, Coming)


async def note(ex: Rehearsal) -> None:
    """Note what is asked about claims in doubt whose calls were not made, when the code has come as far as it comes.

    A step whose own code waits for such an answer, or for one that is open, begins from its top once more after that.
    """
    asked = {row["step"] for rows in ex.questions.values() for row in rows if row["status"] == "open" and row["branch"]}
    for row in await ex.store.read(lambda tx: effects.unsettled(tx, ex.hold.run_no)):
        met = await _asked(ex, row)
        if met is not None:
            ex.note(met)
            asked.add(row["step"])
    for met in _failed_inside(ex):
        ex.note(met)
        asked.add(met.name)
    ex.met[:] = [_anew(ex, met, asked) for met in ex.met]
    ex.coming = tuple(_anew(ex, coming, asked) for coming in ex.coming)


async def _asked(ex: Rehearsal, row: Row) -> Met | None:
    """The question about one claim, as a resume will ask it; ``None``: it can tell by itself, or it is asked already."""
    held = await ex.store.read(partial(_look, row["claim_id"]))
    call, intent = settling.call_of(ex, row)
    try:
        if held is None or call.key in ex.called:
            return None
        met = (await foresight.doubtful(ex, call, intent, held)).met
    finally:
        call.close()  # it was only asked about
    return met if met.do is Do.ASK else None


def _failed_inside(ex: Rehearsal) -> Iterator[Met]:
    """What is asked about reads that failed in the code of a step that runs again, where nobody was asked before it broke off."""
    for key, rows in list(ex.attempts.items()):
        branch, name, _ = key
        step = None if not branch or key in ex.records or key in ex.called else settling.step_of(ex, name)
        if step is None or step.settings.writes or step.settings.on_failure == "raise":
            continue
        call = Call(step, Place(ex, branch), key, rows[-1]["inputs"] or "", {}, {}, settling.never)
        try:
            if isinstance(trouble.move_for(ex, call), policy.Ask):
                why = f"failed: {trouble.last_reason(ex, call)}"
                yield foresight.told(ex, call, Do.ASK, why, question=f"{step.name} failed: {trouble.last_reason(ex, call)}")
        finally:
            call.close()  # it was only asked about


def _look(claim_id: str, tx: Tx) -> Claim | None:
    return effects.look(tx, claim_id)


def _anew(ex: Rehearsal, made: C, asked: set[str]) -> C:
    step = None if made.anew or not asked else known.find(made.name, ex.workflow.fn.__module__)
    return made if step is None or asked.isdisjoint(c.name for c in ahead.inside(step)) else replace(made, anew=True)
