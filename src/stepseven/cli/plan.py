"""``plan``: what a resume would reuse, run and ask, with prices. Changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.text import Text

from stepseven.cli import _code
from stepseven.cli._choices import Approach, Keep, Refresh, Rerun, Skip, as_typed, choices_of
from stepseven.cli._common import Setting, clean, command, credential, out, print_json, width
from stepseven.cli.run import Module, RunId
from stepseven.decide._plan_text import text
from stepseven.decide.plan import Plan
from stepseven.errors import SecretFound, UnknownWorkflow

_COLOURS = {"✓": "green", "↻": "cyan", "?": "yellow"}  # the signs of ``cli/_words.py``; the word beside says the same
_SIGNS = "✓↻·→←…×–“”"


async def plan(  # noqa: PLR0917 - typer names them all
    setting: Setting,
    run_id: RunId,
    module: Module = None,
    approach: Approach = None,
    skip: Skip = None,
    rerun: Rerun = None,
    keep: Keep = False,
    refresh: Refresh = False,
) -> None:
    """What a resume (with the same choices) would reuse, run and ask, and what each way costs. Nothing is changed or run."""
    chosen = choices_of(approach, skip, rerun, keep=keep, refresh=refresh)
    named = module or []
    async with setting.layer() as layer:
        await layer.why(run_id)  # an unknown id is said before any code is imported
        looked_in = _code.modules(named)
        for name in looked_in:
            _code.load(name)
        try:
            found: Plan = await layer.plan(run_id, **chosen)
        except UnknownWorkflow as error:
            raise _code.unknown(error, looked_in) from error
        except SecretFound as error:
            raise credential(error) from error
    if setting.as_json:
        print_json(found.document())
        return
    typed = as_typed(approach, skip, rerun, keep=keep, refresh=refresh)
    also = (*typed, *(part for name in named for part in ("--module", name)), *setting.also)
    for line in _lines(text(found, width=width(), plain=not _shows_signs(), resume=command("resume", run_id, *also))):
        out().print(line)


def _shows_signs() -> bool:
    """Whether the output has the characters for the signs; else they are written with those of ASCII."""
    try:
        _SIGNS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _lines(whole: str) -> Iterator[Text]:
    """The lines, the first of them bold, signs in their colours."""
    for n, line in enumerate(clean(whole).split("\n")):
        made = Text(line, style="bold" if n == 0 else "")
        sign = line[2:3]
        if line[:2] == "  " and line[3:4] == " " and sign in _COLOURS:
            made.stylize(_COLOURS[sign], 2, 3)
        yield made
