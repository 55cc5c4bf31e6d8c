"""What a run does, while it does it: bars in a terminal, plain lines elsewhere. Everything goes to stderr."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from stepseven.cli._common import clean, err
from stepseven.decide import _phrases as say
from stepseven.layer import Layer
from stepseven.model import INTERNAL
from stepseven.transitions import family

LINES_PER_MAP = 5  # a map of 10,000 items is five lines in a log, not ten thousand


class Live(AbstractContextManager["Live"]):
    """Watches the runs of a ``Layer``. *quiet*: says nothing."""

    def __init__(self, layer: Layer, *, quiet: bool = False) -> None:
        self._layer = layer
        self._console = err()
        self._quiet = quiet
        #: run, step -> items of its map, and how many more are done that it has no more
        self._sizes: dict[tuple[str, str], tuple[int, int]] = {}
        self._bars: dict[tuple[str, str], TaskID] = {}
        self._progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24, complete_style="cyan"),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        if not self._quiet:
            self._layer.services.watchers.append(self._told)
            if self._console.is_terminal:
                self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._quiet:
            with suppress(ValueError):  # it failed, and was let go
                self._layer.services.watchers.remove(self._told)
            if self._console.is_terminal:
                self._progress.live.transient = not self._bars  # an empty table would leave an empty line
                self._progress.stop()

    # -- events -------------------------------------------------------------------------------------------------------

    def _told(self, run_id: str, what: str, details: dict[str, Any]) -> None:
        if what == "step":
            self._step(run_id, details)
        elif what == "skipped":
            self._line("–", f"{details['name']}: skipped")
        elif what == "failed":
            self._line("✗", f"{details['name']}: {say.clip(details['reason'], words=30, chars=160)}", "red")
        elif what == "gave_up":
            self._line("✗", f"{details['name']}: {say.clip(details['summary'], words=30, chars=160)}", "red")
        elif what == "asked" and details["kind"] != "failure":  # the line about the failed try says it already
            self._line("?", say.clip(details["text"], words=30, chars=160), "yellow")
        elif what == "note":
            self._line("·", say.clip(details["text"], words=40, chars=200))
        elif what == "progress":
            self._line("·", f"{details['name']}: {say.clip(details['text'], words=30, chars=160)}")

    def _step(self, run_id: str, details: dict[str, Any]) -> None:
        name, summary = str(details["name"]), details.get("summary")
        if name.startswith(INTERNAL):
            return
        done = int(details["done"])
        of, gone = self._of(run_id, name, done) if "[" in str(details["branch"]) else (0, 0)
        done -= gone
        if not of:
            short = f"  {say.clip(summary, words=14, chars=100)}" if summary else ""
            self._line("✓", f"{name}{short}", "green")
        elif self._console.is_terminal:
            self._bar(run_id, name, min(done, of), of)
        elif done == of or (done < of and done % max(1, math.ceil(of / LINES_PER_MAP)) == 0):
            self._line("✓", f"{name}  {done}/{of}", "green")

    def _of(self, run_id: str, name: str, done: int) -> tuple[int, int]:
        """Of how many items, and how many of *done* are none of these: read once from the checkpoint; 0: no map."""
        key = (run_id, name)
        if key not in self._sizes:
            told = self._layer.store.read_now(lambda tx: family.checkpoint(tx, run_id))["artifacts"].get(name, {})
            self._sizes[key] = int(told.get("of", 0)), max(0, done - int(told.get("done", 0)))
        return self._sizes[key]

    # -- showing ------------------------------------------------------------------------------------------------------

    def _bar(self, run_id: str, name: str, done: int, of: int) -> None:
        key = (run_id, name)
        if key not in self._bars:
            self._bars[key] = self._progress.add_task(clean(name), total=of)
        self._progress.update(self._bars[key], completed=done)

    def _line(self, mark: str, text: str, style: str | None = None) -> None:
        self._progress.console.print(Text.assemble("  ", (mark, style or ""), " ", clean(text)))
