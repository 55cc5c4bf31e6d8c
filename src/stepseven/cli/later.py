"""The commands whose names are taken and whose work comes with a later release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from stepseven.cli._common import Refused

COMMANDS = {
    "board": "Clients × workflows at a glance.",
    "review": "Failed and escalated runs of a period as a set.",
    "rule": "Standing answers.",
    "schedule": "Runs at set times.",
    "mcp": "An MCP server.",
    "crashtest": "Kill a workflow at every write and compare.",
}

#: whatever is given to them is taken, so that the answer is "later" and not "no such option"
ANYTHING: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}

_INSTEAD = {
    "review": "`stepseven runs --status failed` lists the failed runs",
    "board": "`stepseven runs` lists what there is",
}


def command(name: str) -> Callable[[typer.Context], None]:
    """The command *name*, as it is until then."""

    def later(ctx: typer.Context) -> None:
        del ctx
        also = f"; until then {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise Refused(f"`stepseven {name}` comes with a later release of stepseven{also}")

    return later
