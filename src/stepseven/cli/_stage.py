"""The scenery of the invoices' story: a throw-away folder, the accounting API and the worker, and what they say."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepseven.cli._cast import TIMEOUT_S, Cast, Ended, Service, absolute, example, heeding_term
from stepseven.cli._common import Refused

CLIENT = "demo"


@dataclass(slots=True, kw_only=True)
class Stage:
    """What runs. ``store``: the URL of the store; ``command``: the worker's command line, as a person would type it."""

    cast: Cast
    invoices: Path
    store: str
    client: str
    run_id: str
    package: str
    _api: Service | None = None
    _worker: subprocess.Popen[str] | None = None

    @classmethod
    @contextmanager
    def open(cls, invoices: int, *, store: str | None) -> Iterator[Stage]:
        """Set it up; at the end every process that was started is stopped, by its pid. The folder stays.

        Raises:
            Refused: the example is not part of this installation, or does not start.
        """
        package, env = example("invoices")
        folder = Path(tempfile.mkdtemp(prefix="stepseven-demo-"))
        token = folder.name.removeprefix("stepseven-demo-")
        # In a store that is kept, each demo has a client of its own: to one client an invoice is posted once for ever.
        client = CLIENT if store is None else f"{CLIENT}-{secrets.token_hex(3)}"
        stage = cls(
            cast=Cast(folder=folder, env=env), invoices=folder / "invoices", client=client, package=package,
            store=absolute(store or f"sqlite:///{folder}/stepseven.db"), run_id=f"invoices-{client}-{token}",
        )  # fmt: skip
        with heeding_term(), closing(stage.cast):
            stage._generate(invoices)
            stage._api = stage.cast.serve(
                "the accounting API", f"{package}.api", ["--state", str(folder / "postings.jsonl")], log="api.log"
            )
            yield stage

    @property
    def folder(self) -> Path:
        """Where all of it is."""
        return self.cast.folder

    # -- the accounting API -------------------------------------------------------------------------------------------

    @property
    def api(self) -> Service:
        """The API."""
        assert self._api is not None  # noqa: S101 - started when the stage was opened
        return self._api

    def count(self) -> dict[str, int]:
        """What stands in the API's books, by its own count."""
        found: dict[str, int] = self.api.ask("/count")
        return found

    def fault(self, **fault: Any) -> None:
        """Make the API misbehave, or ``mode="ok"``."""
        self.api.ask("/fault", fault)

    # -- the worker ---------------------------------------------------------------------------------------------------

    @property
    def command(self) -> str:
        """The worker's command, short: the same each time."""
        return f"python -m {self.package} {self.invoices.name}/ --api … --store …"

    @property
    def working(self) -> bool:
        """Whether the worker still runs."""
        return self._worker is not None and self._worker.poll() is None

    def start_worker(self) -> subprocess.Popen[str]:
        """Start the worker and leave it running."""
        arguments = ["--api", self.api.url, "--client", self.client, "--run-id", self.run_id, "--store", self.store]
        self._worker = self.cast.work(self.package, [str(self.invoices), *arguments])
        return self._worker

    def run_worker(self) -> Ended:
        """Run the worker to its end."""
        return self.cast.wait(self.start_worker())

    def _generate(self, count: int) -> None:
        made = self.cast.launch(f"{self.package}.generate", [str(self.invoices), "--count", str(count)], log="generate.log")
        if made.wait(timeout=TIMEOUT_S) != 0:
            raise Refused(f"the invoices of the demo could not be written: {self.folder / 'generate.log'} tells why")
