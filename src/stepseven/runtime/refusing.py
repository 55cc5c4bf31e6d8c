"""When a person said no: how that gets out of the steps around what was refused, and where nothing may be proposed at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepseven.errors import Refused, StepsevenError, Superseded
from stepseven.model import EffectKind
from stepseven.store.codec import free_text
from stepseven.transitions.questions import REFUSED
from stepseven.transitions.state import Record

if TYPE_CHECKING:
    from stepseven.runtime.attempt import Attempt
    from stepseven.runtime.calls import Call
    from stepseven.runtime.declared import Step
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.place import Place


def only(error: BaseException | None) -> BaseException | None:
    """What a task group wrapped, if it is one thing (or several of one kind): that is what the code raised."""
    while isinstance(error, BaseExceptionGroup):
        inner = error.exceptions
        if len({type(each) for each in inner}) != 1:
            loud = [each for each in map(only, inner) if isinstance(each, Superseded)]
            return loud[0] if loud else error
        error = inner[0]
    return error


class Misplaced(StepsevenError):
    """Something that waits for a person's word was called where that cannot be waited for."""


def check_place(step: Step[Any, Any], here: Place) -> None:
    """Refuse, at the call, what would wait for a person inside a write step's code.

    A write's claim stands while its code runs, and its time is short: by the time somebody has said yes it would have been
    given up, and nobody would know what came of it. Nothing is proposed or done. What leaves the write step's code because
    of this is its own exception: as nobody can know what it sent before, its outcome counts as unknown (DESIGN §5.1).

    Raises:
        Misplaced: *step* is irreversible, and a write step's code calls it (itself, or through a read step).
    """
    if here.writing is not None and step.settings.effect is EffectKind.IRREVERSIBLE:
        raise Misplaced(
            f"{step.name} cannot be called inside the write step {here.writing}, as it is proposed to a person first: call it "
            "from the workflow or from a read step"
        )


async def let_out(
    ex: Execution, call: Call, error: Exception, attempt: Attempt, started_us: int, begun: dict[str, Any] | None
) -> None:  # fmt: skip
    """A read step's code ended because a person refused what it proposed: that is no failure of the step.

    It is refused with what it wanted to do: on record, with what the try has cost. A resume raises the same.

    Raises:
        Refused: that is how it ended. With anything else nothing happens here.
    """
    no = only(error)
    if not isinstance(no, Refused):
        return
    cost = call.step.settings.cost
    declared = None if cost is None else round(cost.usd * 1e6)
    reason = free_text(no.reason, 1000)
    record = Record(
        id=ex.next_id(), branch=call.branch, name=call.key[1], key=call.key[2], generation=ex.generation(call.key),
        state="failed", inputs=call.digest, args=call.args(), summary=reason, why=REFUSED,
        usd=declared if attempt.uusd is None else attempt.uusd, tokens=attempt.tokens, started_us=started_us,
        ended_us=ex.now_us(),
    )  # fmt: skip
    await ex.append(record, durable=True, begun=begun)
    raise Refused(call.step.name, reason) from error
