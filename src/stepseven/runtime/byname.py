"""Functions that hang on a step and take by name what it was called with, and one value more: matched when registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass

if TYPE_CHECKING:
    from stepseven.runtime.declared import Step

RESULT = "result"
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Named:
    """The function, which parameters of the step it takes, and which one of its own gets the value, if one does."""

    fn: Callable[..., Any]
    arguments: tuple[str, ...]
    own: str | None

    def values(self, arguments: Mapping[str, Any], value: Any) -> dict[str, Any]:
        """What it is called with. Arguments that are not known are left out: it may have a default for them."""
        taken = {name: arguments[name] for name in self.arguments if name in arguments}
        return taken if self.own is None else {**taken, self.own: value}


def parameters_of(what: str, fn: Callable[..., Any]) -> list[Parameter]:
    """The parameters of *fn*, each of which can be given by its name.

    Raises:
        TypeError: one cannot. *what* is how the error calls *fn*.
    """
    parameters = list(inspect.signature(fn).parameters.values())
    odd = next((p for p in parameters if p.kind not in _NAMED), None)
    if odd is not None:
        raise TypeError(f"{what} takes {odd}: its values are given by name, so each parameter needs one")
    return parameters


def named(what: str, fn: Callable[..., Any], known: Sequence[str], value: str, when: str) -> Named:
    """Match the parameters of *fn* with what is known when it is called.

    Args:
        what: how an error calls *fn*.
        fn: the function.
        known: the parameters of the step whose arguments are known then.
        value: how the value is called. One parameter with a name of its own gets it, too.
        when: when that is, for an error.

    Raises:
        TypeError: it takes something that is not there then.
    """
    parameters = parameters_of(what, fn)
    arguments = tuple(p.name for p in parameters if p.name in known)
    own = value if value in {p.name for p in parameters} - set(known) else None
    strange = [p.name for p in parameters if p.name not in (*known, own) and p.default is Parameter.empty]
    if len(strange) > (own is None):
        takes = ", ".join([*known, value]) if value not in known else ", ".join(known)
        raise TypeError(
            f"{what} takes {', '.join(map(repr, strange))}, which is not known {when}: it may take {takes}, "
            "and what the step returned under one name of its own"
        )
    return Named(fn, arguments, own or (strange[0] if strange else None))


def verify_of(step: Step[Any, Any], fn: Callable[..., Any]) -> Named:
    """Match the parameters of a ``.verify`` with what is known when a record is looked at.

    Raises:
        TypeError: the step changes something, or *fn* takes something that is not there then.
    """
    if step.settings.writes:
        raise TypeError(
            f"step {step.name!r} changes something outside and is done once: whether that is there is for its .probe to say; "
            "a .verify is for steps that only read"
        )
    return named(f"the verify of step {step.name!r}", fn, step.parameters.names, RESULT, "then")
