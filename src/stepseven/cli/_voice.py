"""How a demo tells its story: acts, facts with their names, and time to read."""

from __future__ import annotations

import time

from rich.console import Console

from stepseven.cli._common import clean, out, row, width, wrapped

READING_S = 5.0  # a handful of pauses: the whole takes about a minute


class Voice:
    """Tells the story; with *fast* without pauses, with *quiet* not at all."""

    def __init__(self, *, fast: bool, quiet: bool) -> None:
        self.console: Console = Console(quiet=True) if quiet else out()
        self._pause = READING_S if not (fast or quiet) and self.console.is_terminal else 0.0
        self._acts = 0

    def act(self, title: str, notice: str) -> None:
        """A new act: a line of dots, its title, and one sentence of what to notice."""
        if self._acts:
            self.console.print("\n" + "· " * (min(width(), 72) // 2) + "\n", style="dim")
        self._acts += 1
        self.console.print(f"{self._acts}  {clean(title)}", style="bold")
        self.say(f"Notice: {notice}")
        self.console.print()
        self.breathe()

    def say(self, text: str) -> None:
        """One line or more, wrapped."""
        self.console.print(wrapped(text))

    def row(self, label: str, text: str) -> None:
        """A fact with its name."""
        self.console.print(row(label, text, 12))

    def breathe(self, share: float = 1.0) -> None:
        """Time to read."""
        time.sleep(self._pause * share)
