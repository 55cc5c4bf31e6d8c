"""How an ``.undo`` takes its values: matched by name when it is registered, filled in when it is used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepseven.runtime.declared import Step

RECEIPT = "receipt"
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Undo:
    """The function, which parameters of the step it takes, and which one of its own gets the receipt, if one does."""

    fn: Callable[..., Any]
    arguments: tuple[str, ...]
    receipt: str | None

    def values(self, arguments: Mapping[str, Any], receipt: Any) -> dict[str, Any]:
        """What it is called with. Arguments that were not kept are left out: it may have a default for them."""
        taken = {name: arguments[name] for name in self.arguments if name in arguments}
        return taken if self.receipt is None else {**taken, self.receipt: receipt}


def undo_of(step: Step[Any, Any], fn: Callable[..., Any]) -> Undo:
    """Match the parameters of *fn* with what is known when the effect is taken back.

    Raises:
        TypeError: the step only reads, or *fn* takes something that is not there then.
    """
    if not step.settings.writes:
        raise TypeError(f"step {step.name!r} only reads, so there is nothing to take back: an undo is for effect='write'")
    what, recorded = f"the undo of step {step.name!r}", [n for n in step.parameters.names if n not in step.parameters.ignore]
    parameters = inspect.signature(fn).parameters.values()
    odd = next((p for p in parameters if p.kind not in _NAMED), None)
    if odd is not None:
        raise TypeError(f"{what} takes {odd}: its values are given by name, so each parameter needs one")
    left = next((p.name for p in parameters if p.name in step.parameters.ignore), None)
    if left is not None:
        raise TypeError(f"{what} takes {left!r}, which the step has in ignore=, so it is not kept: take what is recorded")
    arguments = tuple(p.name for p in parameters if p.name in recorded)
    named = RECEIPT if RECEIPT in {p.name for p in parameters} - set(recorded) else None
    strange = [p.name for p in parameters if p.name not in (*recorded, named) and p.default is Parameter.empty]
    if len(strange) > (named is None):
        takes = ", ".join([*recorded, RECEIPT]) if RECEIPT not in recorded else ", ".join(recorded)
        raise TypeError(
            f"{what} takes {', '.join(map(repr, strange))}, which is not known then: it may take {takes}, "
            "and what the step returned under one name of its own"
        )
    return Undo(fn, arguments, named or (strange[0] if strange else None))
