"""``worker``: a process that takes any run that is due, and executes it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from stepseven.cli import _code
from stepseven.cli._common import Setting, Usage, clean, err, out, print_json
from stepseven.cli._words import count, mark
from stepseven.decide import _phrases as say
from stepseven.engines.embedded import Worker
from stepseven.errors import NotYetBuilt
from stepseven.layer import Layer
from stepseven.people.postman import Postman
from stepseven.store._url import hide_password
from stepseven.transitions.offering import UNDO

Modules = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODULE]...",
        help="Where the workflows are. Default: STEPSEVEN_MODULES, else pyproject.toml.",
        show_default=False,
    ),
]
Concurrency = Annotated[int, typer.Option("--concurrency", metavar="N", min=1, help="So many runs at once.")]
Engine = Annotated[str, typer.Option("--engine", metavar="ENGINE", help="What executes them: embedded, in this process.")]


async def worker(setting: Setting, modules: Modules = None, concurrency: Concurrency = 8, engine: Engine = "embedded") -> None:
    """Take any run that is due and execute it, until SIGTERM or Ctrl-C. What is in hand is finished or recorded then."""
    if engine != "embedded":
        raise NotYetBuilt(f"--engine {engine}")
    named = _code.modules(modules or [])
    if not named:
        raise Usage("no module is named: write `stepseven worker MODULE`, or set STEPSEVEN_MODULES or [tool.stepseven] modules")
    loaded = [_code.load(name) for name in named]
    async with setting.layer(create=True) as layer:
        made = layer.worker(*loaded, concurrency=concurrency)
        told = Telling(layer, quiet=setting.as_json)
        postman = _postman(layer)
        _introduce(made, setting)
        postman.start()
        try:
            await made.run_until_signalled()
        finally:
            await asyncio.to_thread(postman.stop)
    if setting.as_json:
        print_json({"worker": made.id, "store": hide_password(setting.url), "workflows": _own(made), **told.counts})
    else:
        ended = ", ".join(f"{n} {status}" for status, n in sorted(told.ended.items())) or "none of them ended"
        left = "its runs are free once it is seen to be gone" if made.stranded else "every run is given back"
        out().print(clean(f"Stopped. {count(told.counts['taken'], 'time')} a run was taken ({ended}); {left}."))


def _postman(layer: Layer) -> Postman:
    """Whoever is to be asked is told from here, too.

    Raises:
        Usage: STEPSEVEN_PUBLIC_URL is no URL.
    """
    try:
        return Postman(layer.store, layer.services.edge)
    except ValueError as error:
        raise Usage(str(error)) from error


def _own(made: Worker) -> list[str]:
    return [name for name in made.workflows if name != UNDO]


def _introduce(made: Worker, setting: Setting) -> None:
    """Which store, which workflows, who: before anything is taken."""
    names = ", ".join(_own(made))
    err().print(clean(f"Worker {made.id} takes runs of {names}, {made.concurrency} at once, from {hide_password(setting.url)}."))
    err().print("Ctrl-C stops it; what is in hand is finished first.")


class Telling:
    """A line for what becomes of a run; in a terminal also for each that is taken and each failed try."""

    def __init__(self, layer: Layer, *, quiet: bool) -> None:
        self.counts: Counter[str] = Counter(taken=0, put_away=0, lost=0)
        self.ended: Counter[str] = Counter()
        self._console: Console = err()
        self._quiet = quiet
        logging.getLogger("stepseven.worker").addHandler(_Lines(self._console))
        logging.getLogger("stepseven.worker").propagate = False
        layer.services.watchers.append(self._told)

    def _told(self, run_id: str, what: str, details: dict[str, Any]) -> None:
        if what == "taken":
            self.counts["taken"] += 1
            over = f", taken over from worker {details['over_from']}" if details["over_from"] else ""
            self._line("running", f"{run_id}  {details['workflow']} for {details['client']}{over}", always=False)
        elif what == "ended":
            self.ended[details["status"]] += 1
            self.counts[details["status"]] += 1
            self._line(
                details["status"], f"{run_id} is {details['status']}" if details["status"] != "failed" else f"{run_id} failed"
            )
        elif what == "parked":
            self.counts["put_away"] += 1
            self._line("waiting", f"{run_id} waits: {say.clip(details['reason'], words=30, chars=160)}")
        elif what == "lost":
            self.counts["lost"] += 1
            self._line("again", f"{run_id} goes on elsewhere: {details['why']}")
        elif what == "failed":
            self._line("failed", f"{run_id} {details['name']}: {say.clip(details['reason'], words=30, chars=160)}", always=False)

    def _line(self, state: str, text: str, *, always: bool = True) -> None:
        if not self._quiet and (always or self._console.is_terminal):
            self._console.print(Text.assemble(mark(state), " ", clean(text)))


class _Lines(logging.Handler):
    """What the worker has to say of itself, as a line like the others."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print it."""
        self._console.print(Text.assemble("! ", clean(record.getMessage())))
        if record.exc_info is not None:
            self._console.print(clean(logging.Formatter().formatException(record.exc_info)))
