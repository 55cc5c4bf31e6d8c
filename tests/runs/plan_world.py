"""How a program made by chance is run, deployed, put away and gone on with, and what a person says to what it asks."""

from __future__ import annotations

import gc
import itertools
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from stepseven import InvalidChoice, Layer, Plan, testing
from stepseven.model import Question
from stepseven.testing import TestLayer
from stepseven.testing.clock import Clock
from tests.runs.deaths import NEVER, process
from tests.runs.plan_outside import Served, World
from tests.runs.plan_programs import Program
from tests.runs.tools import alone
from tests.servers import databases

T = TypeVar("T")
_versions = itertools.count()
_GAVE_UP = 40
_MEMORY = Path("/dev/shm")  # to survive a power cut is what other tests are about
_TABLES = ["store", "run", "step", "attempt", "effect", "question", "fact", "recovery", "artifact", "client", "wait", "event"]


class Case:
    """One program on one store, with one outside. *served*: behind HTTP."""

    def __init__(self, folder: Path, program: Program, *, served: bool = False) -> None:
        self.folder = folder
        self.world = Served(folder) if served else World(folder)
        self.clock = Clock()
        self.called = f"p{next(_versions)}"
        self.module: ModuleType | None = None
        self.seed = 0
        self.versions = 0
        self.told: list[str] = []  # for whoever reads why it failed
        self.deploy(program)

    def deploy(self, program: Program) -> None:
        """Its code from now on."""
        again = self.module is not None
        self.program = program
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

        def make() -> TestLayer:
            return testing.layer(databases.url(self.folder), clock=self.clock, seed=self.seed)

        try:
            return process(self.folder, make, use, at=at, side=side)
        finally:
            self.clock.on_move.clear()  # of a process that is gone

    def everything(self) -> dict[str, list[dict[str, Any]]]:
        """All that is stored, but for who lives."""
        return databases.tables(self.folder, _TABLES)

    def answered(self) -> Counter[tuple[str, str]]:
        """The questions that were answered by a person, whether their process heard of it or not: kind, and first line."""
        asked = "SELECT kind, text FROM question WHERE client_id = 'acme' AND answered_by = 'ann' AND folded_into IS NULL"
        return Counter((row["kind"], row["text"].partition("\n")[0]) for row in databases.rows(self.folder, asked))

    def done_really(self, question: Question) -> bool:
        """Whether the write was done that a question is about, as the outside knows."""
        (row,) = databases.rows(self.folder, "SELECT key FROM question WHERE id = ?", question.id)
        claims = databases.rows(self.folder, "SELECT claim_id, step, arguments FROM effect")
        (claim,) = [c for c in claims if c["claim_id"] in row["key"]]
        return (self.bare(claim["step"]).partition("_")[0], json.loads(claim["arguments"])["x"]) in self.world.there


@contextmanager
def case(program: Program, *, served: bool = False) -> Iterator[Case]:
    """A fresh one, and nothing left of it."""
    folder = Path(tempfile.mkdtemp(prefix="stepseven-plan-", dir=_MEMORY if _MEMORY.is_dir() else None))
    made = Case(folder, program, served=served)
    try:
        yield made
    finally:
        made.world.close()
        sys.modules.pop(f"plan_program_{made.called}", None)
        databases.done(folder)
        shutil.rmtree(folder)


async def answer_all(
    case: Case, layer: Layer, choices: dict[str, str], *, client: str = "acme", but: str = "", most: int = NEVER
) -> Counter[tuple[str, str]]:
    """Answer every open question, of the run and of those it has started, always alike. Which were."""
    found = [q for q in await layer.questions(client=client) if q.text != but][:most]
    given: Counter[tuple[str, str]] = Counter()
    for question in found:
        await layer.answer(question.id, said(case, question, choices), by="ann")
        given[question.kind.value, question.text.partition("\n")[0]] += 1
    return given


def said(case: Case, question: Question, choices: dict[str, str]) -> Any:
    """What a person says."""
    kind = question.kind.value
    if kind == "unknown_outcome":
        return {"choice": "happened", "receipt": 1} if case.done_really(question) else "not_happened"
    if kind == "ask":
        return ["yes", "no"][len(question.text) % 2]
    if kind == "required":
        return 2
    if kind == "limit":
        return {"choice": "raise", **({"usd": 1000} if "usd=" in case.program.limits else {"steps": 1000})}
    fixed = {"failure": "again", "batch": "again", "approve": "approve"}
    return choices.get(kind) or fixed[kind]


def earlier(case: Case) -> None:
    """The same work for another client, done before: what it has cost is known since."""

    async def use(layer: TestLayer) -> None:
        assert case.module is not None
        outcome = await layer.run(case.module.flow(), client="other", run_id="e")
        for _ in range(_GAVE_UP):
            if outcome.status.ended:
                return
            await answer_all(case, layer, {}, client="other")
            outcome = await layer.resume("e")

    case.process(use)
    case.world.forget()


async def to_the_end(case: Case, layer: TestLayer, choices: dict[str, str], **chosen: Any) -> str:
    """Resume and answer until it has ended: how. *chosen*: at the first resume."""
    for n in range(_GAVE_UP):
        outcome = await layer.resume("r", **(chosen if n == 0 else {}))
        if outcome.status.ended:
            return outcome.status.value
        if not await answer_all(case, layer, choices):
            case.clock.advance(3600)
    raise AssertionError(f"it does not end: {await layer.why('r')}")


async def planned(case: Case, layer: TestLayer, chosen: dict[str, Any]) -> Plan | None:
    """The plan, with what would be chosen; ``None``: a resume would not obey that, and changed nothing."""
    try:
        return await layer.plan("r", **chosen)
    except InvalidChoice as refused:
        before, outside = case.everything(), case.world.state()
        with pytest.raises(InvalidChoice, match=re.escape(str(refused))):
            await layer.resume("r", **chosen)
        assert (case.everything(), case.world.state()) == (before, outside), "what was refused changed something"
        return None
