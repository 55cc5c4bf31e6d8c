"""``@workflow(client_record=…)``: the step that reads what the outside knows of a client."""

from __future__ import annotations

import inspect
from typing import Any

from stepseven.runtime import known
from stepseven.runtime.declared import Step, StepOptions


def loader_of(workflow: str, load: Any) -> Step[Any, Any] | None:
    """The step that reads the client's outside record; ``None``: the workflow has none.

    Raises:
        TypeError, ValueError: it is no function of a client's id, has no name, or changes something.
    """
    if load is None:
        return None
    what = f"workflow {workflow!r}: client_record={getattr(load, '__name__', load)!r}"
    if isinstance(load, Step):
        if load.settings.writes:
            raise ValueError(f"{what} changes something: the record is only read, so give a step with effect='read'")
        return _taking_one(what, load.options(subject=True))
    if not callable(load):
        raise TypeError(f"{what} cannot be called: give a function of the client's id")
    name = getattr(load, "__name__", "")
    if not name.isidentifier():  # a lambda, a partial
        raise ValueError(f"{what} has no name to be recorded under: use def")
    made: Step[Any, Any] = Step(load, StepOptions(name=name, subject=True))
    known.register(made)
    return _taking_one(what, made)


def _taking_one(what: str, step: Step[Any, Any]) -> Step[Any, Any]:
    try:
        inspect.signature(step.fn).bind("client")
    except TypeError as misfit:
        raise TypeError(f"{what} must take the client's id and nothing else: {misfit}") from misfit
    return step
