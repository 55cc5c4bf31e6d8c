"""What can be chosen when a run is resumed, as it is typed; and the plan that is shown before something is made anew."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepseven.cli._common import Setting, Usage, clean, inputs_of, json_or_text, out, pairs_of, width
from stepseven.decide._plan_text import text
from stepseven.layer import Layer

if TYPE_CHECKING:
    from stepseven.decide.plan import Plan


Approach = Annotated[
    list[str] | None, typer.Option("--approach", metavar="STEP=LABEL", help="How a step's next tries go about it. Repeatable.")
]
Skip = Annotated[
    list[str] | None,
    typer.Option(
        "--skip",
        metavar="STEP=JSON",
        help="A step's result: it does not run. STEP=null skips it; STEP=@FILE reads a file. Repeatable.",
    ),
]
Rerun = Annotated[
    list[str] | None, typer.Option("--rerun", metavar="STEP", help="A read step whose result is made anew. Repeatable.")
]
Keep = Annotated[bool, typer.Option("--keep", metavar="", help="What moved meanwhile: go on with what the run knows.")]
Refresh = Annotated[bool, typer.Option("--refresh", metavar="", help="What moved meanwhile: go on with what is so now.")]


def as_typed(
    approach: list[str] | None, skip: list[str] | None, rerun: list[str] | None, *, keep: bool, refresh: bool
) -> tuple[str, ...]:
    """The same options once more, for a command that is suggested."""
    given = (("--approach", approach), ("--skip", skip), ("--rerun", rerun))
    pairs = [part for option, values in given for value in values or () for part in (option, value)]
    return (*pairs, *(("--keep",) if keep else ()), *(("--refresh",) if refresh else ()))


def choices_of(
    approach: list[str] | None, skip: list[str] | None, rerun: list[str] | None, *, keep: bool, refresh: bool
) -> dict[str, Any]:
    """What was typed as ``Layer.resume`` takes it.

    Raises:
        Usage: it is not of the form that it has to be.
    """
    if keep and refresh:
        raise Usage("--keep and --refresh are two answers to one question: give one of them")
    given = inputs_of(skip or [], option="--skip", what="STEP=JSON", such="pull_billing=48000")
    return {
        "approach": pairs_of(approach or [], option="--approach", what="STEP=LABEL", such="'pull_billing=contract amount'"),
        "skip": {name: json_or_text(value, once=f"--skip {name}") for name, value in given.items()},
        "rerun": tuple(rerun or ()), "drift": "keep" if keep else "refresh" if refresh else None,
    }  # fmt: skip


async def agreed(setting: Setting, layer: Layer, run_id: str, chosen: dict[str, Any]) -> tuple[bool, Plan | None]:
    """Show what the choice comes to, and ask once: the answer, and what was shown.

    Without a terminal nobody is asked: it was said on the command line.
    """
    if setting.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True, None
    plan = await layer.plan(run_id, **chosen)
    out().print(clean(text(plan, width=width(), resume="")))
    return typer.confirm("Do this?", default=False), plan
