"""Which workflows a worker takes runs of: those of the modules it was given, and those they can start."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from stepseven.errors import NothingToRun
from stepseven.runtime.procedure import Workflow, registry, workflows
from stepseven.transitions.offering import UNDO


def workflows_of(modules: Iterable[Any]) -> dict[str, Workflow[Any, Any]]:
    """The workflows of *modules* by name; of none given: every workflow this process knows.

    Args:
        modules: dotted names, which are imported, or module objects. With a module's workflows come those it imports, so that
            what a run starts is taken, too.

    Returns:
        At least one of somebody's own, and the one that takes effects back: whoever has a run's code can undo what it did.

    Raises:
        TypeError: something that is neither a name nor a module.
        NothingToRun: a module cannot be imported, or has no workflow; or this process knows none.
    """
    given = list(modules)
    own = [w for w in registry.values() if w.name != UNDO] if not given else []
    for each in given:
        module = _module(each)
        found = list(_reached(module))
        if not found:
            raise NothingToRun(f"module {module.__name__} has no workflow: name one with an @workflow in it")
        own += found
    if not own:
        raise NothingToRun("this process knows no workflow: import its module, or name that: layer.worker('renewals')")
    named: dict[str, Workflow[Any, Any]] = {}
    for each in own:
        other = named.setdefault(each.name, each)
        if other is not each and other.fn.__module__ != each.fn.__module__:
            places = f"in {other.fn.__module__} and in {each.fn.__module__}"
            raise NothingToRun(f"workflow {each.name!r} is defined {places}: runs know it by its name, so give one another name")
        named[each.name] = each
    return {**named, UNDO: registry[UNDO]} if UNDO in registry else named


def _module(given: Any) -> ModuleType:
    if isinstance(given, ModuleType):
        return given
    if not isinstance(given, str):
        raise TypeError(f"layer.worker takes modules or their names, such as 'renewals', not {given!r}")
    try:
        return importlib.import_module(given)
    except ModuleNotFoundError as error:
        if error.name is not None and given.startswith(error.name):
            raise NothingToRun(f"there is no module {given} on the Python path: name one that is") from error
        raise NothingToRun(f"module {given} needs {error.name}, which is not installed here: install it") from error
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise NothingToRun(f"module {given} breaks off while it is imported ({told}): mend it") from error


def _reached(module: ModuleType) -> Iterable[Workflow[Any, Any]]:
    """The workflows that stand in a module or below it, and those of the modules its workflows can see."""
    homes = {w.fn.__module__ for w in workflows()}
    waiting, seen = [module.__name__], set[str]()
    waiting += [home for home in homes if home.startswith(f"{module.__name__}.")]
    while waiting:
        name = waiting.pop()
        here = sys.modules.get(name)
        if name in seen or here is None:
            continue
        seen.add(name)
        for value in list(vars(here).values()):
            if isinstance(value, Workflow):
                waiting.append(value.fn.__module__)
                yield value
            elif isinstance(value, ModuleType) and value.__name__ in homes:
                waiting.append(value.__name__)
        yield from [w for w in workflows() if w.fn.__module__ == name and w.name != UNDO]
