"""What the steps of programs made by chance find and change outside, and how such a program is run, put away and gone on with."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from stepseven import Fixable, Layer, Reference, Retryable, testing
from stepseven.model import Question
from stepseven.testing import TestLayer
from stepseven.testing.clock import Clock
from tests.runs.deaths import Death
from tests.runs.plan_programs import Program
from tests.runs.tools import Crash, alone, bury, hang_up
from tests.servers import databases

T = TypeVar("T")
NEVER = 1 << 30
_versions = itertools.count()
_GAVE_UP = 40


class World:
    """The outside. It counts by itself, whatever is on record.

    Attributes:
        ran: step → how often its code ran. effects: what was done, by step and argument → how often. usd: what was spent.
        table: step → what its reads depend on. refuted: calls whose results no longer hold, until they run again.
            customer: the client record.
        failing: step → how it fails: ``fixable``, ``once`` or ``murky`` (it was done, and nobody hears of it).
        there: what was done, as a look finds it.
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
        self.there: dict[tuple[str, int], int] = {}
        self.keys: dict[str, int] = {}
        self.customer = {"seats": 2, "plan": 1}

    def state(self) -> tuple[Any, ...]:
        """All that a step can change."""
        return dict(self.ran), dict(self.effects), self.usd, dict(self.there)

    def _value(self, step: str, x: int) -> int:
        return (x + self.table.get(step.partition("_")[0], 0)) % 4 + 1

    def read(self, step: str, x: int, *, usd: float) -> int:
        """A read."""
        self.ran[step] += 1
        self.called.add((step, x))
        self.refuted.discard((step, x))
        self.usd += usd
        how = self.failing.get(step)
        if how == "once":
            del self.failing[step]
            raise Retryable("503 for once")
        if how is not None:
            raise Fixable("403 Forbidden")
        return self._value(step, x)

    def large(self, step: str, x: int) -> str:
        """A result that is kept as an artifact."""
        return f"{self.read(step, x, usd=0.0)}:" + "x" * 70_000

    def file(self, step: str, x: int) -> Reference:
        """A result that is a file: each time another, or a later call would change what an earlier one names."""
        size = self.read(step, x, usd=0.0)
        path = self.folder / f"{step}-{x}-{self.ran[step]}.txt"
        path.write_text("x" * size)
        return Reference.of(path)

    def effect(self, step: str, x: int, *, under: str | None = None) -> int:
        """A write. *under*: a key that the outside honours."""
        self.ran[step] += 1
        if under is not None and under in self.keys:
            return self.keys[under]
        thing = step.partition("_")[0], x  # whatever its code is called now
        self.effects[thing] += 1
        self.there[thing] = x + 1
        if under is not None:
            self.keys[under] = x + 1
        if self.failing.pop(step, None) is not None:
            raise TimeoutError("nobody hears of it")
        return x + 1


class Case:
    """One program on one store, with one outside."""

    def __init__(self, folder: Path, program: Program) -> None:
        self.folder = folder
        self.world = World(folder)
        self.clock = Clock()
        self.called = f"p{next(_versions)}"
        self.module: ModuleType | None = None
        self.seed = 0
        self.versions = 0
        self.deploy(program)

    def deploy(self, program: Program) -> None:
        """Its code from now on."""
        again = self.module is not None
        self.versions += 1
        file = self.folder / f"{self.called}_{self.versions}.py"
        file.write_text(program.source(self.called))
        name = f"plan_program_{self.called}"
        sys.modules.pop(name, None)
        self.module = None
        if again:
            gc.collect()  # what only the older version knew is gone, as after a restart
        self.module = module = ModuleType(name)
        module.__file__ = str(file)
        module.__dict__["W"] = self.world
        sys.modules[name] = module
        exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
        alone(module)

    def bare(self, name: str) -> str:
        """A step's name as its program has it."""
        return name.removeprefix(f"{self.called}_")

    def process(self, use: Callable[[TestLayer], Coroutine[Any, Any, T]], *, at: int = NEVER, side: str = "before") -> T | None:
        """Run *use* in a process (its own loop and layer) that dies at write number *at*; what it gave, if it did not."""
        self.seed += 1

        async def main() -> T | None:
            layer = testing.layer(databases.url(self.folder), clock=self.clock, seed=self.seed)
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # a process that is gone reports nothing
            if at < NEVER:
                Death(layer, at, side)
            try:
                return await use(layer)
            except Crash:
                return None
            finally:
                hang_up(layer)
                layer.store.close()
                self.clock.on_move.clear()  # of a process that is gone

        try:
            return asyncio.run(main())
        except Crash:
            return None
        finally:
            if databases.exists(self.folder):
                bury(self.folder)

    def everything(self) -> dict[str, list[dict[str, Any]]]:
        """All that is stored, but for who lives."""
        tables = (
            "store",
            "run",
            "step",
            "attempt",
            "effect",
            "question",
            "fact",
            "recovery",
            "artifact",
            "client",
            "wait",
            "event",
        )
        return {name: databases.rows(self.folder, f"SELECT * FROM {name}") for name in tables}

    def done_really(self, question: Question) -> bool:
        """Whether the write was done that a question is about, as the outside knows."""
        (row,) = databases.rows(self.folder, "SELECT key FROM question WHERE id = ?", question.id)
        claims = databases.rows(self.folder, "SELECT claim_id, step, arguments FROM effect")
        (claim,) = [c for c in claims if c["claim_id"] in row["key"]]
        return (self.bare(claim["step"]).partition("_")[0], json.loads(claim["arguments"])["x"]) in self.world.there


@contextmanager
def case(program: Program) -> Iterator[Case]:
    """A fresh one, and nothing left of it."""
    folder = Path(tempfile.mkdtemp(prefix="stepseven-plan-"))
    made = Case(folder, program)
    try:
        yield made
    finally:
        sys.modules.pop(f"plan_program_{made.called}", None)
        databases.done(folder)
        shutil.rmtree(folder)


async def answer_all(case: Case, layer: Layer, choices: dict[str, str], *, but: str = "") -> int:
    """Answer every open question, always alike. How many were."""
    found = [q for q in await layer.questions(run_id="r") if q.text != but]
    for question in found:
        await layer.answer(question.id, said(case, question, choices), by="ann")
    return len(found)


def said(case: Case, question: Question, choices: dict[str, str]) -> Any:
    """What a person says."""
    kind = question.kind.value
    if kind == "unknown_outcome":
        return {"choice": "happened", "receipt": 1} if case.done_really(question) else "not_happened"
    if kind == "ask":
        return ["yes", "no"][len(question.text) % 2]
    fixed = {"failure": "again", "batch": "again", "approve": "approve"}
    return choices.get(kind) or fixed[kind]


async def to_the_end(case: Case, layer: TestLayer, choices: dict[str, str]) -> tuple[str, int]:
    """Resume and answer until it has ended: how, and how many answers a person gave."""
    given = 0
    for _ in range(_GAVE_UP):
        outcome = await layer.resume("r")
        if outcome.status.ended:
            return outcome.status.value, given
        answers = await answer_all(case, layer, choices)
        given += answers
        if not answers:
            case.clock.advance(3600)
    raise AssertionError(f"it does not end: {await layer.why('r')}")
