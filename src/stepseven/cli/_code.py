"""Finding a run's code: modules are named by the person, the environment or the project, never by the store."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from stepseven.cli._common import Refused, Usage, json_or_text
from stepseven.errors import UnknownWorkflow
from stepseven.runtime.procedure import Workflow, WorkflowCall, registry, workflows


def load(module: str) -> Any:
    """Import a module by its dotted name; the current folder is on the path.

    Raises:
        Refused: it cannot be imported; the message says why.
    """
    meant = _as_module(module)
    if meant != module:
        raise Refused(f"{module!r} is the path of a file, and a module is asked for: write {meant}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            raise Refused(f"there is no module {module} in {here} or on the Python path: name one that is") from error
        raise Refused(f"module {module} needs {error.name}, which is not installed here: install it") from error
    except Exception as error:  # the user's own code: whatever it raises is said, and --debug shows where
        told = f"{type(error).__name__}: {error}"
        raise Refused(f"module {module} breaks off while it is imported ({told}): mend it; --debug shows where") from error


def workflow(target: str) -> Workflow[Any, Any]:
    """The workflow that ``MODULE:WORKFLOW`` names.

    Raises:
        Usage: not of that form. Refused: no such module, or no such workflow in it.
    """
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise Usage(f"{target!r} does not name a workflow: write MODULE:WORKFLOW, such as renewals:renewal")
    meant = _as_module(module_name)
    if meant != module_name:
        raise Usage(f"{module_name!r} is the path of a file, and a module is asked for: write {meant}:{name}")
    found = getattr(load(module_name), name, None)
    if isinstance(found, Workflow):
        return found
    here = {w.name: w for w in workflows() if w.fn.__module__ == module_name}
    if name in here or name in registry:  # named by @workflow("…")
        return here.get(name) or registry[name]
    there = ", ".join(sorted(here))
    raise Refused(f"module {module_name} has no workflow {name}: it has {there or 'none'}")


def _as_module(name: str) -> str:
    """A file's path as the module it is: ``./jobs/renewals.py`` → ``jobs.renewals``; a module's name stays."""
    if "/" not in name and not name.endswith(".py") and not name.startswith("."):
        return name
    path = Path(name)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    parts = [part for part in (path.parent / path.name.removesuffix(".py").strip(".")).parts if part not in ("/", "..", ".")]
    return ".".join(parts) or "renewals"


def call(found: Workflow[Any, Any], given: dict[str, str]) -> WorkflowCall[Any]:
    """The workflow with its inputs. A value is JSON if it parses, else text; for a ``str`` parameter it stays text.

    Raises:
        Usage: an input is missing, or there is no such input.
    """
    signature = inspect.signature(found.fn)
    inputs: dict[str, Any] = {}
    for name, text in given.items():
        value = json_or_text(text)
        parameter = signature.parameters.get(name)
        wants_text = parameter is not None and parameter.annotation in (str, "str")
        inputs[name] = text if wants_text and not isinstance(value, str) else value
    try:
        return found(**inputs)
    except TypeError as error:
        takes = ", ".join(found.parameter_names) or "no inputs"
        raise Usage(f"workflow {found.name}: {error}; it takes {takes}: give each as --input NAME=VALUE") from error


def modules(named: list[str]) -> list[str]:
    """The modules to look in: ``--module``, else STEPSEVEN_MODULES, else ``[tool.stepseven] modules`` in pyproject.toml here.

    Raises:
        Refused: pyproject.toml cannot be read, or says something else there than a list of names.
    """
    if named:
        return named
    env = os.environ.get("STEPSEVEN_MODULES", "").replace(",", " ").split()
    if env:
        return env
    try:
        project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise Refused(f"pyproject.toml in this folder cannot be read ({error}): mend it, or use --module") from error
    found = project.get("tool", {}).get("stepseven", {}).get("modules", [])
    if not isinstance(found, list) or not all(isinstance(m, str) for m in found):
        raise Refused('[tool.stepseven] modules in pyproject.toml must be a list of names, such as ["renewals"]')
    return found


def hint() -> tuple[str, ...]:
    """What a suggested ``resume`` needs so that it finds the code: nothing where modules are configured."""
    return () if modules([]) else ("--module", "MODULE")


def explained() -> str | None:
    """What the placeholder in such a command stands for; ``None`` where there is none."""
    return "MODULE is the module you ran (`stepseven run MODULE:…`)." if hint() else None


def unknown(error: UnknownWorkflow, looked_in: list[str]) -> Refused:
    """The code of a run is not there: what was looked at, and the way out."""
    where = f"not in {', '.join(looked_in)}" if looked_in else "no module was named"
    return Refused(
        f"the code of workflow {error.name} is not loaded ({where}): name its module with --module, STEPSEVEN_MODULES "
        "or [tool.stepseven] modules in pyproject.toml"
    )
