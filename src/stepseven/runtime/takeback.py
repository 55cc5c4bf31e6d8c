"""How an ``.undo`` takes its values: matched by name when it is registered, filled in when it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stepseven.runtime.byname import Named, named, parameters_of

if TYPE_CHECKING:
    from stepseven.runtime.declared import Step

RECEIPT = "receipt"


class Undo(Named):
    """The function, which parameters of the step it takes, and which one of its own gets the receipt, if one does."""

    __slots__ = ()

    @property
    def receipt(self) -> str | None:
        """The parameter that gets the receipt."""
        return self.own


def undo_of(step: Step[Any, Any], fn: Callable[..., Any]) -> Undo:
    """Match the parameters of *fn* with what is known when the effect is taken back.

    Raises:
        TypeError: the step only reads, or *fn* takes something that is not there then.
    """
    if not step.settings.writes:
        raise TypeError(f"step {step.name!r} only reads, so there is nothing to take back: an undo is for effect='write'")
    what, recorded = f"the undo of step {step.name!r}", [n for n in step.parameters.names if n not in step.parameters.ignore]
    left = next((p.name for p in parameters_of(what, fn) if p.name in step.parameters.ignore), None)
    if left is not None:
        raise TypeError(f"{what} takes {left!r}, which the step has in ignore=, so it is not kept: take what is recorded")
    found = named(what, fn, recorded, RECEIPT, "then")
    return Undo(found.fn, found.arguments, found.own)
