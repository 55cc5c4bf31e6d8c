"""What a workflow's code says about itself: its inputs, its ceilings, and which steps its source still has ahead."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from stepseven.model import Limits
from stepseven.runtime.binding import without_exit
from stepseven.runtime.declared import Step
from stepseven.runtime.procedure import Workflow
from stepseven.store.codec import from_canonical

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepseven.runtime.execution import Execution
    from stepseven.runtime.handle import Run


def tighter(a: Limits | None, b: Limits | None) -> Limits | None:
    """The lower of two ceilings, each."""
    if a is None or b is None:
        return a or b
    both = {}
    for f in fields(Limits):
        values = [v for v in (getattr(a, f.name), getattr(b, f.name)) if v is not None]
        both[f.name] = min(values) if values else None
    return Limits(**both)


def decode_inputs(workflow: Workflow[Any, Any], text: str) -> dict[str, Any]:
    """Stored inputs as the workflow's parameters.

    Raises:
        NotRecordable: an input cannot be rebuilt as its parameter's type says today; names it.
    """
    inputs = {}
    for name, value in from_json(text).items():
        typed = workflow.inputs_typed.get(name)
        raw = to_json(value).decode()
        inputs[name] = typed.decode(raw) if typed is not None else from_canonical(raw)
    return inputs


async def body(workflow: Workflow[Any, Any], handle: Run, text: str) -> Any:
    """The workflow's code with its stored inputs; what cannot be rebuilt of them is a failure of the body."""
    return await without_exit(workflow.fn(handle, **decode_inputs(workflow, text)))


@functools.lru_cache(maxsize=256)
def calls_in_source(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the steps a function's source calls, in order, once each; helpers of the same module included."""
    found: dict[str, None] = {}
    _collect(fn, found, set())
    return tuple(found)


def _collect(fn: Callable[..., Any], found: dict[str, None], seen: set[int]) -> None:
    if id(fn) in seen:
        return
    seen.add(id(fn))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, TypeError, SyntaxError):
        return
    scope = {**getattr(fn, "__globals__", {}), **(inspect.getclosurevars(fn).nonlocals if inspect.isfunction(fn) else {})}
    named = [(n.lineno, n.col_offset, n) for n in ast.walk(tree) if isinstance(n, ast.Name | ast.Attribute)]
    for _, _, node in sorted(named, key=lambda item: item[:2]):
        target = _resolve(node, scope)
        if isinstance(target, Step):
            found.setdefault(target.name)
        elif inspect.isfunction(target) and target.__module__ == getattr(fn, "__module__", None) and target is not fn:
            _collect(target, found, seen)


def _resolve(node: ast.expr, scope: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = scope.get(node.value.id)
        return vars(owner).get(node.attr) if inspect.ismodule(owner) else None
    return None


def ahead(execution: Execution) -> tuple[str | None, list[str]]:
    """The next step and what remains, as far as the source tells: calls in order without those that are complete."""
    names = calls_in_source(execution.workflow.fn)
    states: dict[str, set[str]] = {}
    for record in execution.records.values():
        states.setdefault(record.name, set()).add(record.state)
    trouble = {name for (_, name, _), rows in execution.attempts.items() if name not in states and rows}
    open_steps = {r["step"] for rows in execution.questions.values() for r in rows if r["status"] == "open" and r["step"]}
    remaining = [n for n in names if n not in states or n in open_steps]
    first = next((n for n in names if n in open_steps or n in trouble), None)
    return first or (remaining[0] if remaining else None), remaining
