"""The outside world of these tests: it counts, lets a request wait where a test wants to act, and lets processes meet.

``GET /meet/NAME/N`` answers when *N* requests for it are there, all at once: so several processes do something at one instant.
The rest is as in ``tests.crash.outside``: ``POST /effect/KIND`` is an effect, ``GET /ran/NAME`` says that code got somewhere.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
from collections import Counter
from typing import Any

from tests.crash.outside import Outside
from tests.servers.programs import until

URL, WHO = "TEST_WORLD", "TEST_WHO"  # environment of the processes: where the world is, and what the process is called


class World(Outside):
    """The server, and what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self._meetings: dict[str, threading.Barrier] = {}

    def look(self, path: str) -> Any:
        """A GET."""
        if path.startswith("/meet/"):
            _, _, name, count = path.split("/")
            with self._lock:
                meeting = self._meetings.setdefault(name, threading.Barrier(int(count)))
            meeting.wait(60)
            return {}
        return super().look(path)

    # -- for the test ---------------------------------------------------------------------------------------------------

    def times(self, name: str) -> int:
        """How often code got to a place."""
        with self._lock:
            return self.ran[name]

    def seen(self, name: str, wait_s: float = 100) -> None:
        """Wait until code has got to a place."""
        until(lambda: self.times(name), f"nobody got to {name}", wait_s)

    def arrived(self, path: str) -> bool:
        """Whether a request is held at *path*."""
        return self._holds[path][0].is_set()

    def let_go(self) -> None:
        """Answer what is held, and hold nothing any more."""
        for _, go in self._holds.values():
            go.set()

    def done(self) -> Counter[str]:
        """How often each effect happened, by reference."""
        with self._lock:
            return Counter(json.loads(e["body"])["ref"] for e in self.effects)

    def doers(self, ref: str) -> list[str]:
        """The processes that did it, in order."""
        with self._lock:
            return [said["by"] for e in self.effects if (said := json.loads(e["body"]))["ref"] == ref]


# -- in the processes -----------------------------------------------------------------------------------------------------------


def who() -> str:
    """What this process is called."""
    return os.environ.get(WHO, "test")


def talk(method: str, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> Any:
    """One request to the world."""
    connection = http.client.HTTPConnection(os.environ[URL].removeprefix("http://"), timeout=90)
    try:
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key is not None else {})
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"{method} {path} answered {response.status}")
        return json.loads(text)
    finally:
        connection.close()


def at(place: str, ref: str) -> None:
    """This process's code has got to a place. A test may let it wait there."""
    talk("GET", f"/ran/{place}.{ref}.{who()}")


def meet(name: str, count: int) -> None:
    """Wait for the others."""
    talk("GET", f"/meet/{name}/{count}")


def is_there(ref: str) -> int | None:
    """What somebody sees who looks: the number of what was done."""
    return next((n for n, e in enumerate(talk("GET", "/effects"), 1) if json.loads(e["body"])["ref"] == ref), None)
