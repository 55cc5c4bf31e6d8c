"""An executor outside, for tests: begins, completes and fails steps as somebody does who only has HTTP."""

from __future__ import annotations

import json
from typing import Any

from stepseven import testing
from stepseven.decide.external import Begin, Reported
from stepseven.decide.policy import Way
from stepseven.model import EffectKind, Limits
from stepseven.store.base import Row
from stepseven.store.codec import canonical, digest
from stepseven.transitions import begins, external, reports, runs
from stepseven.transitions.begins import Looked, Made, Told
from stepseven.transitions.reports import Kept, Result
from stepseven.transitions.runs import Admission

TokenOf = dict[str, Any]


class Outside:
    """One execution of one run."""

    def __init__(self, layer: testing.Layer, run_id: str = "out-1", client: str = "acme") -> None:
        self.layer, self.run_id, self.client = layer, run_id, client
        self.tokens = 0
        self.given: dict[str, str] = {}

    @property
    def now_us(self) -> int:
        """The layer's time."""
        return self.layer.services.edge.now_us()

    async def admit(self, *steps: str, inputs: Any = None, workflow: str = "n8n") -> tuple[Row, bool]:
        """The run, made if it is not there."""
        a = Admission(run_id=self.run_id, client_id=self.client, workflow=workflow, source_digest=None, goal="a goal",
                      inputs=canonical(inputs or {}))  # fmt: skip
        return await self._write(lambda tx: external.admit(tx, a, steps, self.now_us))

    async def run(self) -> Row:
        """The run's row."""
        return await self.layer.store.read(lambda tx: runs.known(tx, self.run_id))

    def made(self) -> tuple[str, Made]:
        """A fresh token, and what else comes from the edge."""
        self.tokens += 1
        token = f"{self.run_id}-{id(self)}-{self.tokens}"
        return token, Made(new_id=self.layer.services.edge.new_id, token_hash=digest(token))

    async def begin(
        self, step: str, *, key: str | None = None, inputs: Any = None, effect: str = "read", looked: Looked | None = None,
        limits: Limits | None = None, ways: tuple[str, ...] = (), **more: Any,
    ) -> Told:  # fmt: skip
        """Begin a step; the token it is given is remembered under its name."""
        b = Begin(step=step, key=key, inputs=None if inputs is None else canonical(inputs), effect=EffectKind(effect),
                  ways=tuple(Way(label=w) for w in ways), **more)  # fmt: skip
        token, made = self.made()
        seen = await self.run()
        told: Told = await self._write(
            lambda tx: begins.begin(tx, seen, b, made=made, now_us=self.now_us, limits=limits, looked=looked)
        )
        if told.do == "run":
            self.given[step] = token
        return told

    async def complete(self, step: str, value: Any = None, *, key: str | None = None, bare: bool = False, **more: Any) -> Kept:
        """Say that it is done; *bare*: without the token."""
        token = None if bare else digest(self.given[step])

        def unit(tx: Any) -> Kept:
            run = runs.known(tx, self.run_id)
            ticket = reports.find(tx, run, step, token_hash=token, key=key)
            return reports.complete(tx, run, step, ticket, Result(value=value, **more), self.now_us)

        return await self._write(unit)

    async def fail(self, step: str, message: str = "", *, key: str | None = None, uusd: int | None = None, **more: Any) -> Told:
        """Say that it failed."""
        _, made = self.made()

        def unit(tx: Any) -> Told:
            run = runs.known(tx, self.run_id)
            ticket = reports.find(tx, run, step, token_hash=digest(self.given[step]), key=key)
            return reports.fail(tx, run, step, ticket, Reported(message=message, **more), made, self.now_us, Result(uusd=uusd))

        return await self._write(unit)

    async def put(
        self, step: str, value: Any = None, *, effect: str = "read", key: str | None = None, inputs: Any = None
    ) -> Kept:
        """Say that it was done without having been begun."""
        b = Begin(step=step, key=key, effect=EffectKind(effect), inputs=None if inputs is None else canonical(inputs))
        _, made = self.made()
        return await self._write(
            lambda tx: reports.put(tx, runs.known(tx, self.run_id), b, Result(value=value), made, self.now_us)
        )

    async def extend(self, step: str, seconds: float) -> int:
        """Ask for more time."""

        def unit(tx: Any) -> int:
            run = runs.known(tx, self.run_id)
            ticket = reports.find(tx, run, step, token_hash=digest(self.given[step]), key=None)
            return reports.extend(tx, run, ticket, round(seconds * 1e6), self.now_us)

        return await self._write(unit)

    async def resume(self) -> Outside:
        """Another execution goes on."""
        await self._write(lambda tx: external.resume(tx, runs.known(tx, self.run_id), "resumed by ann", self.now_us))
        return Outside(self.layer, self.run_id, self.client)

    async def _write(self, unit: Any) -> Any:
        return await self.layer.store.write(unit, durable=True, client=self.client)


def artifact(told: Told | Kept) -> Any:
    """The step's result."""
    return None if told.artifact is None else json.loads(told.artifact)
