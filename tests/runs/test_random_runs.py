"""Whatever a workflow's code does, and however often it is put away in between: it sees each thing as it saw it first.

Programs are made by chance: looks at facts, own words, remembered results and answers, the run before, prompts, side by side and
in maps, with parks between them. Meanwhile others say something, prune, and answer in any order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Previous, Run, step, workflow
from tests.runs.tools import url

Op = tuple[str, Any]
OFTEN = ("get", "get", "park")
PROGRAMS = 12  # in each of the tests below; 600 were run once
FIRST = 30  # 37 is one that differed once

seen: dict[str, Any] = {}
differs: list[tuple[str, Any, Any]] = []
runs: list[Run] = []


def see(at: str, what: Any) -> None:
    """Note what the code saw at one place of the program, and whether it is what it saw there before."""
    if seen.setdefault(at, what) != what:
        differs.append((at, seen[at], what))


@step(name="random.remembered", remember="k")
async def remembered(text: str) -> str:
    """A result that is a fact."""
    return text


@step(name="random.look")
async def look(at: str) -> str:
    """Reads a fact in a step."""
    return f"{at}: {runs[-1].client.get('k')}"


@step(name="random.slow")
async def slow(at: str) -> str:
    """Takes turns of the loop the first time, none in a replay."""
    for _ in range(len(at) % 4):
        await asyncio.sleep(0)
    return at


LOOKS: dict[str, Callable[[Run, Any, str], Any]] = {
    "get": lambda run, *_: run.client.get("k"),
    "get other": lambda run, *_: run.client.get("j"),
    "set": lambda run, what, _: run.client.set("k", f"own{what}"),
    "remember": lambda _, what, __: remembered(f"remembered{what}"),
    "in step": lambda _, __, at: look(at),
    "slow": lambda _, __, at: slow(at),
    "uuid": lambda run, _, at: run.uuid(key=at),  # without: tasks side by side count alike, and share it
    "ask": lambda run, _, at: run.ask(f"{at}?", remember="k"),
    "park": lambda run, _, at: run.ask(f"park {at}"),
    "previous": lambda run, *_: told(run.previous),
    "brief": lambda run, *_: run.brief(300),
    "open": lambda run, *_: run.client.open_questions(),
    "failures": lambda run, *_: run.client.failures(),
    "own failures": lambda run, *_: run.failures,
    "wait": lambda run, *_: run.wait_for("k"),
}


def told(before: Previous | None) -> Any:
    """What the run before says."""
    return None if before is None else (before.run_id, before.value, before.changed)


async def follow(run: Run, program: list[Op], within: str) -> None:
    """Do what the program says."""
    for n, (op, what) in enumerate(program):
        at = f"{within}.{n}:{op}"
        if op == "gather":
            await asyncio.gather(*(follow(run, part, f"{at}.{i}") for i, part in enumerate(what)))
        elif op == "tasks":
            tasks = [asyncio.create_task(follow(run, part, f"{at}.{i}")) for i, part in enumerate(what)]
            for task in reversed(tasks):
                await task
        elif op == "map":

            async def item(i: int, what: Any = what, at: str = at) -> int:
                await follow(run, what[i], f"{at}.{i}")
                return i

            await run.map(item, list(range(len(what))), key=at)
        else:
            found = LOOKS[op](run, what, at)
            see(at, await found if isawaitable(found) else found)


programs: dict[int, list[Op]] = {}


@workflow(name="random.run", on_drift="keep")
async def flow(run: Run, seed: int) -> str:
    """The program of a seed."""
    runs.append(run)
    await follow(run, programs[seed], "")
    return f"value {seed}"


def made(chance: random.Random, depth: int = 0, most: int = 7) -> list[Op]:
    """A program."""
    several = ("gather", "tasks", "map") if depth < 2 else ()
    ops = [chance.choice((*LOOKS, *OFTEN, *several)) for _ in range(chance.randint(2, most))]
    return [(op, [made(chance, depth + 1, 4) for _ in range(2)] if op in several else chance.randint(0, 3)) for op in ops]


async def through(layer: Layer, seed: int) -> None:
    """One run with a program of its own, to the end."""
    chance = random.Random(seed)
    programs[seed] = made(chance)
    seen.clear()
    client = layer.client(f"c{seed % 5}")
    if chance.random() < 0.5:
        client.set("k", "first", source="crm")
    outcome = await layer.run(flow(seed=seed), client=client.id, run_id=f"r{seed}")
    for n in range(80):
        if outcome.status == "done":
            return
        assert outcome.status in {"waiting", "queued"}, outcome.failure
        for question in outcome.questions[: chance.randint(1, 3)]:
            await layer.answer(question.id, f"answer{n}", by="ann")
        if chance.random() < 0.7:
            client.set(chance.choice("kj"), f"theirs{n}", source=chance.choice(["crm", "bill"]))
        if chance.random() < 0.2:
            await layer.prune(older_than=0)
        outcome = await layer.resume(f"r{seed}")
    pytest.fail(f"seed {seed} does not end: {[q.text for q in outcome.questions]}")


@pytest.mark.parametrize("first", [FIRST, FIRST + PROGRAMS])
@pytest.mark.timeout(120)
async def test_a_run_sees_what_it_saw(tmp_path: Path, first: int) -> None:
    """In every execution, at every place of its code, the value of the first time; and it ends."""
    differs.clear()
    async with Layer(url(tmp_path)) as layer:
        for seed in range(first, first + PROGRAMS):
            await through(layer, seed)
            assert differs == [], f"seed {seed}"
