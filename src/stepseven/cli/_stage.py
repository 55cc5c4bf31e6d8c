"""The scenery of the demo: a throw-away folder, the accounting API and the worker as real processes, and what they say."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import stepseven
from stepseven.cli._common import Exit, Refused

CLIENT = "demo"
TIMEOUT_S = 120.0  # one worker from start to end; it needs two seconds on an idle machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a worker ended, as the operating system tells it."""

    pid: int
    code: int
    said: str

    @property
    def signal(self) -> int:
        """The signal that ended it; 0: none did."""
        return max(0, -self.code)

    @property
    def signal_name(self) -> str:
        """``SIGKILL``."""
        return signal.Signals(self.signal).name if self.signal else "none"

    @property
    def waiting(self) -> bool:
        """Whether its run waits for a person."""
        return self.code == Exit.WAITING


@dataclass(slots=True, kw_only=True)
class Stage:
    """What runs. ``store``: the URL of the store; ``command``: the worker's command line, as a person would type it."""

    folder: Path
    invoices: Path
    store: str
    client: str
    run_id: str
    package: str
    env: dict[str, str]
    api: str = ""
    _api: subprocess.Popen[str] | None = None
    _worker: subprocess.Popen[str] | None = None

    @classmethod
    @contextmanager
    def open(cls, invoices: int, *, store: str | None) -> Iterator[Stage]:
        """Set it up; at the end every process that was started is stopped, by its pid. The folder stays.

        Raises:
            Refused: the example is not part of this installation, or does not start.
        """
        package, env = _example()
        folder = Path(tempfile.mkdtemp(prefix="stepseven-demo-"))
        token = folder.name.removeprefix("stepseven-demo-")
        # In a store that is kept, each demo has a client of its own: to one client an invoice is posted once for ever.
        if store is not None and store.startswith("sqlite:///"):  # the children work in another folder
            store = f"sqlite:///{Path(store.removeprefix('sqlite:///')).absolute()}"
        client = CLIENT if store is None else f"{CLIENT}-{secrets.token_hex(3)}"
        stage = cls(
            folder=folder, invoices=folder / "invoices", store=store or f"sqlite:///{folder}/stepseven.db", client=client,
            run_id=f"invoices-{client}-{token}", package=package, env=env,
        )  # fmt: skip
        try:
            stage._generate(invoices)
            stage._start_api()
            yield stage
        finally:
            stage._close()

    # -- the accounting API -------------------------------------------------------------------------------------------

    @property
    def api_pid(self) -> int:
        """The API's process."""
        return self._api.pid if self._api is not None else 0

    def count(self) -> dict[str, int]:
        """What stands in the API's books, by its own count."""
        found: dict[str, int] = self._ask("/count")
        return found

    def fault(self, **fault: Any) -> None:
        """Make the API misbehave, or ``mode="ok"``."""
        self._ask("/fault", fault)

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.api + path, data, {"Content-Type": "application/json"})  # noqa: S310 - the URL is our child's
        with urlopen(request, timeout=10) as answer:  # noqa: S310 - the same
            return json.load(answer)

    def _start_api(self) -> None:
        state = str(self.folder / "postings.jsonl")
        self._api = self._popen("api", ["--state", state], stdout=subprocess.PIPE, log="api.log")
        assert self._api.stdout is not None  # noqa: S101 - asked for above
        self.api = self._api.stdout.readline().strip()
        if not self.api.startswith("http"):
            raise Refused(f"the accounting API of the demo did not start: {self.folder / 'api.log'} tells why")

    # -- the worker ---------------------------------------------------------------------------------------------------

    @property
    def _arguments(self) -> list[str]:
        return [str(self.invoices), "--api", self.api, "--client", self.client, "--run-id", self.run_id, "--store", self.store]

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
        self._worker = self._popen("", self._arguments, stdout=subprocess.DEVNULL, log="worker.log")
        return self._worker

    def run_worker(self) -> Ended:
        """Run the worker to its end."""
        return self._wait(self.start_worker())

    def kill(self, worker: subprocess.Popen[str]) -> Ended:
        """SIGKILL: it cannot be caught, nothing is cleaned up."""
        os.kill(worker.pid, signal.SIGKILL)
        return self._wait(worker)

    def last_words(self) -> str:
        """The last line the worker wrote to stderr."""
        lines = (self.folder / "worker.log").read_text("utf-8", "replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    def _wait(self, worker: subprocess.Popen[str]) -> Ended:
        try:
            code = worker.wait(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            told = f"the worker (process {worker.pid}) did not end within {TIMEOUT_S:.0f} s: {self.last_words()}"
            raise Refused(told) from error
        return Ended(pid=worker.pid, code=code, said=self.last_words())

    # -- processes ----------------------------------------------------------------------------------------------------

    def _popen(self, module: str, arguments: list[str], *, stdout: int, log: str) -> subprocess.Popen[str]:
        name = f"{self.package}.{module}" if module else self.package
        with (self.folder / log).open("a", encoding="utf-8") as errors:
            return subprocess.Popen(  # noqa: S603 - our own module, by this interpreter
                [sys.executable, "-m", name, *arguments], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
                stdout=stdout, stderr=errors, text=True,
            )  # fmt: skip

    def _generate(self, count: int) -> None:
        made = self._popen("generate", [str(self.invoices), "--count", str(count)], stdout=subprocess.DEVNULL, log="generate.log")
        if made.wait(timeout=TIMEOUT_S) != 0:
            raise Refused(f"the invoices of the demo could not be written: {self.folder / 'generate.log'} tells why")

    def _close(self) -> None:
        for child in (self._worker, self._api):
            if child is None:
                continue
            if child.poll() is None:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()


def _example() -> tuple[str, dict[str, str]]:
    """The example's package, and an environment in which ``python -m`` finds it.

    Raises:
        Refused: it is neither in this installation nor beside this checkout.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("STEPSEVEN_")}
    if importlib.util.find_spec("stepseven.examples") is not None:
        return "stepseven.examples.invoices", env
    root = Path(stepseven.__file__).resolve().parents[2]
    if (root / "examples" / "invoices" / "__main__.py").is_file():
        path = os.pathsep.join(p for p in (str(root), env.get("PYTHONPATH", "")) if p)
        return "examples.invoices", {**env, "PYTHONPATH": path}
    raise Refused("the example `invoices` is not part of this installation: install stepseven from its wheel, or use a checkout")
