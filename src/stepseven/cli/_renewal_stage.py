"""The scenery of the renewal's story: three systems that count what they are asked, and workers that are command lines."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepseven.cli._cast import Cast, Ended, Service, absolute, example, heeding_term
from stepseven.cli._common import Refused, command
from stepseven.cli._read import RunView, view
from stepseven.layer import Layer
from stepseven.model import Fact, Question

CLIENT = "acme"
SYSTEMS = ("tickets", "billing", "documents")


@dataclass(slots=True, kw_only=True)
class Renewal:
    """What runs. ``systems``: the outside, by name; ``store``: the URL of the store."""

    cast: Cast
    package: str
    store: str
    client: str
    systems: dict[str, Service] = field(default_factory=dict)
    worker: subprocess.Popen[str] | None = None

    @classmethod
    @contextmanager
    def open(cls, *, store: str | None) -> Iterator[Renewal]:
        """Set it up; at the end every process that was started is stopped, by its pid. The folder stays.

        Raises:
            Refused: the example is not part of this installation, or does not start.
        """
        package, env = example("renewal")
        folder = Path(tempfile.mkdtemp(prefix="stepseven-demo-"))
        # In a store that is kept, each demo has a client of its own: what is known about one client is known for good.
        client = CLIENT if store is None else f"{CLIENT}-{secrets.token_hex(3)}"
        stage = cls(
            cast=Cast(folder=folder, env=env), package=package, client=client,
            store=absolute(store or f"sqlite:///{folder}/stepseven.db"),
        )  # fmt: skip
        with heeding_term(), closing(stage.cast):
            for name in SYSTEMS:
                arguments = [name, "--journal", str(folder / f"{name}.jsonl")]
                stage.systems[name] = stage.cast.serve(f"the system “{name}”", f"{package}.outside", arguments, log=f"{name}.log")
                env[f"RENEWAL_{name.upper()}"] = stage.systems[name].url
            yield stage

    # -- the outside ----------------------------------------------------------------------------------------------------

    def count(self, system: str) -> dict[str, Any]:
        """What a system counted."""
        found: dict[str, Any] = self.systems[system].ask("/count")
        return found

    def asked(self, system: str, what: str) -> int:
        """How often a system was asked for something."""
        return int(self.count(system)["asked"].get(what, 0))

    def document(self, quarter: str) -> dict[str, Any]:
        """The proposal of a quarter, as it is filed.

        Raises:
            Refused: there is none, or more than one.
        """
        found = self.systems["documents"].ask(f"/documents?client={self.client}&quarter={quarter}")
        if len(found) != 1:
            raise Refused(f"{len(found)} documents are filed for {quarter} where one was expected")
        return dict(found[0])

    # -- the workers ----------------------------------------------------------------------------------------------------

    def run_id(self, quarter: str) -> str:
        """The id of a quarter's run."""
        return f"{self.client}-{quarter.lower()}"

    def run(self, module: str, quarter: str) -> tuple[str, subprocess.Popen[str]]:
        """Start a quarter's run: the command, short, and its process."""
        arguments = ["run", f"{self.package}.{module}:renewal", "--client", self.client, "--input", f"quarter={quarter}"]
        return self._start(arguments, ["--run-id", self.run_id(quarter)])

    def resume(self, module: str, quarter: str) -> tuple[str, subprocess.Popen[str]]:
        """Go on with a quarter's run: the command, short, and its process."""
        return self._start(["resume", self.run_id(quarter)], ["--module", f"{self.package}.{module}"])

    def _start(self, shown: list[str], hidden: list[str]) -> tuple[str, subprocess.Popen[str]]:
        self.worker = self.cast.work("stepseven", [*shown, *hidden, "--store", self.store])
        return f"{command(*shown)} …", self.worker

    def wait(self) -> Ended:
        """Wait for the worker that was started last."""
        assert self.worker is not None  # noqa: S101 - callers start one first
        return self.cast.wait(self.worker)

    # -- the store ------------------------------------------------------------------------------------------------------

    def view(self, quarter: str) -> RunView:
        """A quarter's run, as it is on record."""

        async def look() -> RunView:
            async with Layer(self.store) as layer:
                return await view(layer, self.run_id(quarter))

        return asyncio.run(look())

    def facts(self) -> list[Fact]:
        """What is known about the client."""

        async def look() -> list[Fact]:
            async with Layer(self.store) as layer:
                return layer.client(self.client).facts()

        return asyncio.run(look())

    def question(self, quarter: str) -> Question:
        """The one open question of a quarter's run.

        Raises:
            Refused: there is none, or more than one.
        """
        found = self.view(quarter).open_questions
        if len(found) != 1:
            raise Refused(f"{len(found)} questions are open where one was expected: {self.cast.last_words()}")
        return found[0]

    def answer(self, question: Question, value: str, *, by: str) -> None:
        """Answer it."""

        async def say() -> None:
            async with Layer(self.store) as layer:
                await layer.answer(question.id, value, by=by)

        asyncio.run(say())
