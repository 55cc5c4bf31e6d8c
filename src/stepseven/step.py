"""``@step``: a named piece of a run whose result is worth keeping."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields
from typing import Any, Literal, ParamSpec, TypeVar, overload

from stepseven.model import Cost
from stepseven.runtime import known
from stepseven.runtime.declared import Step, StepOptions, normal

P = ParamSpec("P")
R = TypeVar("R")

Effect = Literal["read", "write", "irreversible"]


@overload
def step(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    name: str | None = None,
    *,
    effect: Effect = "read",
    key: str | Callable[..., Any] | None = None,
    effect_name: str | None = None,
    scope: Literal["run", "client"] = "run",
    match: Literal["inputs", "order"] = "inputs",
    ignore: Sequence[str] = (),
    renamed_from: Sequence[str] = (),
    attempts: int = 2,
    timeout: float | None = None,
    settle: float = 0,
    idempotent: bool | str = False,
    probe_first: Literal["resumed", "always", "never"] = "resumed",
    on_failure: Literal["ask", "raise"] = "ask",
    classify: Callable[[BaseException], Any] | None = None,
    check: Callable[[Any], Any] | None = None,
    cost: Cost | None = None,
    resource: str | None = None,
    subject: bool = False,
    secrets: Literal["refuse", "mask"] = "refuse",
    summary: Callable[[Any], str] | None = None,
    remember: str | None = None,
) -> StepDecorator: ...
def step(name: Any = None, **options: Any) -> Any:  # noqa: D417 - the options stand in the overload
    """Make a function a step. Works bare (``@step``) or with options.

    Args:
        name: its name in records; default: the function's. Renaming needs ``renamed_from=``.
        effect: what it does outside: ``read`` (nothing), ``write``, ``irreversible`` (comes with a later release).
        key: the business key of a write: parameter paths (``"client_id, quarter"``, ``"document.number"``) or a callable
            with the same parameters. Without one a write may be called once per branch.
        effect_name: the name the key belongs to; default: the step's name.
        scope: ``client``: the key holds over all runs of the client.
        match: ``order``: records answer by position (model turns with long inputs).
        ignore: parameters that do not identify the call and are not recorded (connections, loggers).
        renamed_from: earlier names whose records still count.
        attempts: tries in all, over all resumes, before a person is asked.
        timeout: seconds one try may take. Writes: 30 if not given.
        settle: seconds the outside may need until a probe can see an effect.
        idempotent: how long the other side honours the idempotency key: ``False``, ``"24h"``, ``"forever"``.
        probe_first: whether a probe looks before acting: after a long wait (``resumed``), ``always``, ``never``.
        on_failure: ``raise``: ``StepFailed`` reaches the workflow instead of a question reaching a person.
        classify: exception → ``"retryable"``, ``"fixable"``, ``"fatal"``, ``"deferral"`` or ``None`` (use the table).
        check: called with the result; ``False`` or a reason (a string) rejects it.
        cost: what one try costs. Makes begin and result wait for the disk.
        resource: what it depends on, for people and circuits; default: the host it talks to.
        subject: a 404 or 410 means that the run's subject does not exist: fatal.
        secrets: ``mask``: credentials in inputs and results are masked instead of refused.
        summary: result → one line with a figure, shown to people.
        remember: keep the result as the client's fact under this key, in the commit that records it. ``None`` is no fact.

    Returns:
        A ``Step``: call it inside a workflow and await the result.
    """
    if callable(name):
        return StepDecorator({})(name)
    if name is not None:
        options["name"] = name
    return StepDecorator(options)


class StepDecorator:
    """``@step(…)`` waiting for its function; keeps the function's types."""

    def __init__(self, options: dict[str, Any]) -> None:
        known_options = [f.name for f in fields(StepOptions)]
        for name in options:
            if name not in known_options:
                raise TypeError(f"@step has no option {name!r}; it has {', '.join(known_options)}")
        self._options = normal(options)

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R]) -> Step[P, R]: ...
    def __call__(self, fn: Callable[..., Any]) -> Any:  # noqa: D102 - the class says it
        options = dict(self._options)
        options.setdefault("name", fn.__name__)
        made: Step[..., Any] = Step(fn, StepOptions(**options))
        known.register(made)
        return made
