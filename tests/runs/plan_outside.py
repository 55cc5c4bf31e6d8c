"""What the steps of programs made by chance find and change outside: in this process, or behind a server that counts."""

from __future__ import annotations

import ssl
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from stepseven import Fixable, Reference, Retryable
from tests.runs.outside import DROP, Outside

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # to make one for each client takes longer than all else


class World:
    """The outside. It counts by itself, whatever is on record.

    Attributes:
        ran: step → how often its code ran. effects: what was done, by step and argument → how often. usd: what was spent.
        table: step → what its reads depend on. refuted: calls whose results no longer hold, until they run again.
            customer: the client record.
        failing: step → how it fails: ``fixable``, ``once`` or ``murky`` (it was done, and nobody hears of it).
        stumbled: step → how often it failed once.
        there: what was done, as a look finds it. by_hand: what a person did, step by step.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: Counter[str] = Counter()
        self.effects: Counter[tuple[str, int]] = Counter()
        self.usd = 0.0
        self.called: set[tuple[str, int]] = set()
        self.table: dict[str, int] = {}
        self.refuted: set[tuple[str, int]] = set()
        self.failing: dict[str, str] = {}
        self.stumbled: Counter[str] = Counter()
        self.there: dict[tuple[str, int], int] = {}
        self.by_hand: set[str] = set()
        self.keys: dict[str, int] = {}
        self.customer = {"seats": 2, "plan": 1}

    def state(self) -> tuple[Any, ...]:
        """All that a step can change."""
        return dict(self.ran), dict(self.effects), self.usd, dict(self.there)

    def forget(self) -> None:
        """As if nothing had happened yet."""
        for counted in (self.ran, self.effects, self.called, self.there, self.keys):
            counted.clear()
        self.usd = 0.0

    def close(self) -> None:
        """Nothing to end."""

    # -- what the steps' code calls -------------------------------------------------------------------------------------------

    async def read(self, step: str, x: int, *, usd: float = 0.0) -> int:
        """A read."""
        self.ran[step] += 1
        self.called.add((step, x))
        self.refuted.discard((step, x))
        self.usd += usd
        how = self.failing.get(step)
        if how == "once":
            del self.failing[step]
            self.stumbled[step.partition("_")[0]] += 1
            raise Retryable("503 for once")
        if how is not None:
            raise Fixable("403 Forbidden")
        return (x + self.table.get(step.partition("_")[0], 0)) % 4 + 1

    async def large(self, step: str, x: int) -> str:
        """A result that is kept as an artifact."""
        return f"{await self.read(step, x)}:" + "x" * 70_000

    async def file(self, step: str, x: int) -> Reference:
        """A result that is a file: each time another, or a later call would change what an earlier one names."""
        size = await self.read(step, x)
        path = self.folder / f"{step}-{x}-{self.ran[step]}.txt"
        path.write_text("x" * size)
        return Reference.of(path)

    async def effect(self, step: str, x: int, *, under: str | None = None) -> int:
        """A write. *under*: a key that the outside honours."""
        self.ran[step] += 1
        return await self.send(step.partition("_")[0], x, under, lost=self.failing.pop(step, None) is not None)

    # -- how it gets there ------------------------------------------------------------------------------------------------------

    async def send(self, thing: str, x: int, under: str | None, *, lost: bool) -> int:
        """Have it done. *lost*: the answer does not come back."""
        done = self.done(thing, x, under)
        if lost:
            raise TimeoutError("nobody hears of it")
        return done

    async def find(self, thing: str, x: int) -> int | None:
        """Look whether it was done."""
        return self.there.get((thing, x))

    def done(self, thing: str, x: int, under: str | None) -> int:
        """It is done, and counted, whatever the code is called that asked for it; under a known key not once more."""
        if under is not None and under in self.keys:
            return self.keys[under]
        self.effects[thing, x] += 1
        self.there[thing, x] = x + 1
        if under is not None:
            self.keys[under] = x + 1
        return x + 1


class _Server(Outside):
    """The same behind HTTP: what it does is done in its own thread."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def act(self, name: str, key: str | None, body: Any) -> dict[str, Any]:
        with self.lock:
            return {"n": self.world.done(name, body, key)}

    def find(self, name: str, key: str | None) -> dict[str, Any] | None:
        with self.lock:
            there = self.world.there.get((name, int(key or 0)))
        return None if there is None else {"n": there}


class Served(World):
    """An outside that is reached over HTTP: an answer that is lost is a connection that was cut."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = _Server(self)
        self.server.__enter__()

    def close(self) -> None:
        """End the server."""
        self.server.__exit__()

    async def send(self, thing: str, x: int, under: str | None, *, lost: bool) -> int:
        """Have it done."""
        if lost:
            self.server.moods.append(DROP)
        async with httpx.AsyncClient(timeout=20, verify=_NO_TLS) as client:
            headers = {} if under is None else {"Idempotency-Key": under}
            answer = await client.post(f"{self.server.url}/effect/{thing}", json=x, headers=headers)
        answer.raise_for_status()
        return int(answer.json()["n"])

    async def find(self, thing: str, x: int) -> int | None:
        """Look whether it was done."""
        async with httpx.AsyncClient(timeout=20, verify=_NO_TLS) as client:
            answer = await client.get(f"{self.server.url}/effect/{thing}", params={"key": x})
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        answer.raise_for_status()
        return int(answer.json()["n"])
