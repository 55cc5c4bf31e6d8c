"""What can be chosen when a run is resumed, as it is typed; and the plan that is shown before something is made anew."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from stepseven.cli._common import Setting, Usage, clean, inputs_of, json_or_text, login, out, pairs_of, width
from stepseven.decide._plan_text import text
from stepseven.layer import Layer
from stepseven.runtime import choosing
from stepseven.transitions import runs

if TYPE_CHECKING:
    from stepseven.decide.plan import Plan


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
    from stepseven.runtime import planning  # read from disk when it is needed: most processes never plan

    wanted = choosing.wanted(run_id, by=login(), **chosen)
    checked = await layer.store.read(lambda tx: choosing.foreseen(tx, wanted, runs.known(tx, run_id)))
    plan = await planning.plan(layer.services, run_id, checked)
    told = text(plan, width=width()).rsplit("\n", 1)[0]  # without its last line, which names the command that does it
    out().print(clean(told))
    return typer.confirm("Do this?", default=False), plan
