"""``@workflow``: a named procedure that a Layer runs for a client."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from stepseven.model import Limits
from stepseven.runtime.handle import Run
from stepseven.runtime.procedure import Workflow, WorkflowOptions

P = ParamSpec("P")
R = TypeVar("R")

OURS = "stepseven."  # names of workflows that come with stepseven


@overload
def workflow(fn: Callable[Concatenate[Run, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    name: str | None = None,
    *,
    limits: Limits | None = None,
    client_record: Callable[..., Any] | None = None,
    watch: Sequence[str] = (),
    on_drift: Literal["ask", "keep", "refresh"] = "ask",
    requires: Sequence[str] = (),
    to: str | None = None,
) -> WorkflowDecorator: ...
def workflow(name: Any = None, **options: Any) -> Any:  # noqa: D417 - the options stand in the overload
    """Make an ``async def f(run: Run, …)`` a workflow. Works bare (``@workflow``) or with options.

    Args:
        name: its name in the store; default: the function's.
        limits: ceilings of one run; a run that reaches one asks a person.
        client_record: function of the client's id, or a step, that reads the outside record once at the start:
            ``run.client.record``. ``None``, 404 or 410: there is no such client, and the run fails.
        watch: facts whose change matters even if no step read them, and fields of the client record (``contact``,
            ``record.contact``): where it names some, the other fields of the record are noted and ask nobody.
        on_drift: what becomes of facts and fields that changed while the run waited, and that it had read: ``ask`` a person,
            ``keep`` what the run knows, ``refresh``: use what is so now, and run only what was built on the old values.
        requires: facts that must be known; missing ones are asked for all at once, before the first line runs.
        to: who is asked by default.

    Returns:
        A ``Workflow``: ``layer.run(renewal(quarter="Q3"), client="acme")``.
    """
    if callable(name):
        return WorkflowDecorator({})(name)
    if name is not None:
        options["name"] = name
    return WorkflowDecorator(options)


class WorkflowDecorator:
    """``@workflow(…)`` waiting for its function; keeps the function's types."""

    def __init__(self, options: dict[str, Any]) -> None:
        for name in ("watch", "requires"):
            if name in options:
                value = options[name]
                options[name] = (value,) if isinstance(value, str) else tuple(value)
        self._options = options

    def __call__(self, fn: Callable[Concatenate[Run, P], Coroutine[Any, Any, R]]) -> Workflow[P, R]:  # noqa: D102 - the class says it
        options = dict(self._options)
        options.setdefault("name", fn.__name__)
        if str(options["name"]).startswith(OURS):
            raise ValueError(f"workflow name {options['name']!r}: names that begin with {OURS!r} are stepseven's own")
        return Workflow(fn, WorkflowOptions(**options))
