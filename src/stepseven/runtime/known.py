"""The steps this process knows, by name: a claim that outlived its call finds its probe here, and only here."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepseven.runtime.declared import Step

_steps: dict[str, list[weakref.ref[Step[Any, Any]]]] = {}


def register(step: Step[Any, Any]) -> None:
    """Remember *step* for as long as somebody else does."""
    living = [ref for ref in _steps.get(step.name, ()) if ref() is not None]
    _steps[step.name] = [*living, weakref.ref(step)]


def living(name: str) -> list[Step[Any, Any]]:
    """All steps of that name, in whatever modules."""
    return [step for ref in _steps.get(name, ()) if (step := ref()) is not None]


def find(name: str, module: str) -> Step[Any, Any] | None:
    """The step called *name* that a workflow of *module* means: its own, else the only one there is.

    A name that several modules use for different steps is nobody's: asking a person is better than the wrong look.
    """
    steps = living(name)
    own = [step for step in steps if step.fn.__module__ == module]
    if own:
        return own[-1]  # the newest: a module that was loaded again replaces its steps
    places = {(step.fn.__module__, step.fn.__qualname__) for step in steps}
    return steps[-1] if len(places) == 1 else None


def heir(name: str, module: str) -> Step[Any, Any] | None:
    """The step that was called *name* before, found as ``find`` finds its own."""
    renamed = {n for n, refs in _steps.items() for ref in refs if (s := ref()) is not None and name in s.settings.renamed_from}
    found = [step for n in renamed if (step := find(n, module)) is not None and name in step.settings.renamed_from]
    return found[0] if len(found) == 1 else None
