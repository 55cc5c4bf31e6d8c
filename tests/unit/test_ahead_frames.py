"""What comes after where suspended code stands, read from its frames and its source."""

# ruff: noqa: E501 - a case is a line: its body, and what is read

from __future__ import annotations

import asyncio
import contextlib
import textwrap
from collections.abc import Callable, Generator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepseven import step
from stepseven.decide.plan import UNKNOWN, Coming
from stepseven.errors import NoRun
from stepseven.runtime import ahead
from stepseven.runtime.waits import frames
from tests.unit.test_ahead_source import HELPERS, module, told


class Stop:
    """Suspends whoever awaits it."""

    def __await__(self) -> Generator[None]:
        yield


async def here() -> str:
    """Where the code is looked at; no step, and a function that can be read."""
    await Stop()
    return str(asyncio)


def after(coro: Any) -> tuple[Coming, ...]:
    """What may come after where a suspended coroutine stands, that no task runs."""
    task: Any = SimpleNamespace(get_coro=lambda: coro)
    return ahead._look([ahead._chain(frames(task))], None).coming  # a task would run


def stopped(text: str, **given_: Any) -> tuple[Coming, ...]:
    """What comes after the first ``await here()`` in a body. Steps before it do nothing, and do not wait."""
    names = module(f"{HELPERS}\nasync def wf(run, x=None):\n{textwrap.indent(text, '    ')}\n", here=here, Stop=Stop)
    coro = names["wf"](given_.get("run"), given_.get("x"))
    try:
        coro.send(None)
        return after(coro)
    finally:
        with contextlib.suppress(NoRun):  # a write in its ``finally``
            coro.close()


CASES: dict[str, tuple[str, str]] = {
    "the rest of the block": ("await pull()\nawait here()\nawait draft()\nawait push('a')", "draft push"),
    "the rest of the expression": ("await push(await draft(await here()) + await pull())", "draft pull push"),
    "not what was evaluated before": ("y = [await pull(), await here(), await draft()]", "draft"),
    "what was made before and not awaited": ("await asyncio.gather(pull(1), draft(await here()))", "pull draft"),
    "the caller's rest": ("async def inner():\n    await here()\n    await draft()\nawait inner()\nawait pull()", "draft pull"),
    "a branch that was decided": ("if True:\n    await here()\n    await draft()\nelse:\n    await pull()\nawait push('a')", "draft push"),
    "in a condition": ("if await here():\n    await draft()\nelse:\n    await pull()", "draft? pull?"),
    "the other side of and": ("await here() and await draft()\nawait push('a')", "draft? push"),
    "in the second of and": ("1 and await here() and await pull()\nawait draft()", "pull? draft"),
    "in a ternary": ("y = (await draft(await here())) if run is None else (await pull())", "draft"),
    "a loop comes round": ("for i in (1, 2):\n    await pull()\n    await here()\n    await draft()\nawait push('a')", "draft* pull*? push"),
    "a while comes round": ("while 1 + 1:\n    await here()\n    await draft(await pull())", "pull* draft*"),
    "a loop that ends here": ("for i in (1, 2):\n    await here()\n    await draft()\n    break\nawait push('a')", "draft push"),
    "two loops": ("for i in (1,):\n    for j in (1,):\n        await here()\n        await draft()\n    await pull()", "draft* pull*"),
    "try": ("try:\n    await here()\n    await draft()\nexcept ValueError:\n    await pull()\nfinally:\n    await mail('a')\nawait push('a')", "draft pull? mail push"),
    "in a handler": ("try:\n    raise ValueError\nexcept ValueError:\n    await here()\n    await draft()\nelse:\n    await pull()\nfinally:\n    await mail('a')", "draft mail"),
    "in finally": ("try:\n    await pull()\nfinally:\n    await here()\n    await draft()\nawait push('a')", "draft push?"),
    "in else": ("try:\n    pass\nexcept ValueError:\n    await pull()\nelse:\n    await here()\n    await draft()\nawait push('a')", "draft push"),
    "match": ("match 1:\n    case 1:\n        await here()\n        await draft()\n    case _:\n        await pull()\nawait push('a')", "draft push"),
    "in a comprehension": ("y = [(await here(), await draft()) for i in (1, 2)]\nawait push('a')", "draft*? push"),
    "in the first iterable of a comprehension": ("y = [await draft(i) for i in [await here()]]\nawait push('a')", "draft* push"),
    "a context manager ends": ("async with session():\n    await here()\n    await draft()\nawait mail('a')", "draft push mail"),
    "a context manager class ends": ("async with Session():\n    await here()\n    await draft()", "draft push"),
    "entering": ("class S:\n    async def __aenter__(self):\n        await here()\n        await pull()\n    async def __aexit__(self, *a):\n        await push('b')\nasync with S():\n    await draft()", "pull draft push"),
    "leaving": ("class S:\n    async def __aenter__(self): pass\n    async def __aexit__(self, *a):\n        await here()\n        await push('b')\nasync with S():\n    await draft()\nawait mail('a')", "push mail"),
    "in an async generator": ("async def gen():\n    await here()\n    yield 1\n    await pull()\nasync for i in gen():\n    await draft()\nawait push('a')", "pull pull*? draft*? push"),
    "beside an async generator": ("async def gen():\n    yield 1\n    await pull()\nasync for i in gen():\n    await here()\n    await draft()\nawait push('a')", "draft* pull*? push"),
    "aliases as they are": ("f = pull if run else draft\nawait here()\nawait f()", "draft"),
    "a partial as it is": ("f = functools.partial(apply, draft)\nawait here()\nawait f(1)", "draft"),
    "self as it is": ("a = Sub(run)\nawait here()\nawait a.go(1)", "push pull draft"),
    "an attribute that is set later": ("a = Agent(run)\nawait here()\na.f = push\nawait a.go(1)", "push draft"),
    "a coroutine made before": ("c = each(1)\nawait here()\nawait c", "pull draft"),
    "coroutines made before": ("cs = [each(i) for i in (1, 2)]\nawait here()\nawait asyncio.gather(*cs)", "pull draft pull draft"),
    "a condition that is known": ("fast = run is None\nawait here()\nif fast:\n    await draft()\nelse:\n    await pull()", "draft"),
    "a counter is not known": ("n = 0\nwhile n < 2:\n    n += 1\n    await here()\n    if n == 2:\n        await draft()", "draft*?"),
    "inside a lambda": ("f = lambda g: g(2)\nasync def k(i):\n    await here()\n    await draft()\nawait f(k)", "draft"),
    "two in one line": ("await here(); await draft(); await pull()", "draft pull"),
    "over several lines": ("await push(\n    await here(),\n    await draft(),\n)", "draft push"),
    "behind a decorator": ("@traced\nasync def k():\n    await here()\n    await push('a')\nawait k()\nawait pull()", "push pull"),
    "recursion": ("async def k(n):\n    await here()\n    await pull()\n    if n: await k(n - 1)\nawait k(2)", "pull pull*"),
    "the end": ("await pull()\nawait here()", ""),
    "what is unknown then": ("ns = {}\nexec('async def u(): ...', ns)\nf = ns['u']\nawait here()\nawait f()", "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_what_comes_after_a_suspended_frame(name: str) -> None:
    """Only what can still happen is listed: the rest of each function, loops again, handlers perhaps."""
    text, expected = CASES[name]
    assert " ".join(told(stopped(text))) == expected


# -- random programs --------------------------------------------------------------------------------------------------------

STEPS = ("alpha", "beta", "gamma", "delta")
calls = st.sampled_from(STEPS)
NESTED = ("if", "for", "while", "try", "def", "match", "with", "group")


def indented(lines: Sequence[str]) -> list[str]:
    """Lines of a block inside another."""
    return ["    " + line for line in lines]


@st.composite
def blocks(draw: Callable[..., Any], depth: int = 2, loop: bool = False, fn: bool = True) -> list[str]:
    """A few statements that call steps by name, by alias, in loops, branches and functions."""
    kinds = ["call", "call", "two", "alias", "byalias", "local", "gather", "tasks", "helper", "later", "list", "wrapped"]
    if depth:
        kinds += NESTED
    if loop:
        kinds += ["break", "continue"]
    if fn:
        kinds += ["return"]
    lines: list[str] = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3)):
        a, b = draw(calls), draw(calls)
        inside = blocks(
            depth - 1, (loop and kind != "def") or kind in ("for", "while", "group"), fn and kind not in ("group", "def")
        )
        sub = draw(inside) if kind in NESTED else []
        more = draw(inside) if kind in ("if", "try", "match") else []
        lines += {
            "call": [f"await {a}()"],
            "two": [f"await {a}(await {b}())"],
            "alias": [f"f = {a} if coin() else {b}"],
            "byalias": ["await f()"],
            "local": [f"y = (coin() and await {a}()) or (await {b}() if coin() else 1)"],
            "gather": [f"await gather({a}(), {b}(await {a}()))", f"z = [await {b}() for _ in range(2) if coin()]"],
            "tasks": [f"c = {a}()", f"await {b}()", "await c"],
            "helper": [f"await apply({a}, f)"],
            "later": [f"d = {{'k': {a}, 'l': {b}}}", "await d['k' if coin() else 'l']()"],
            "list": [f"fs = [{a}]", f"fs.append({b})", "for g in fs:", "    await g()"],
            "wrapped": [f"await traced({a})()", f"await Holder({b}).go()"],
            "if": ["if coin():", *indented(sub), "else:", *indented(more)],
            "for": ["for i in range(2):", *indented(sub)],
            "while": ["n = 0", "while n < 2:", "    n += 1", *indented(sub), "else:", *indented(["pass"])],
            "try": [
                "try:",
                *indented(sub),
                "    if coin(): raise Oops",
                "except Oops:",
                *indented(more),
                "finally:",
                f"    await {a}()",
            ],
            "def": ["async def k():", "    f = apply", f"    f = {a}", *indented(sub), f"    return {b}", "f = await k()"],
            "match": ["match coin():", "    case True:", *indented(indented(sub)), "    case other:", *indented(indented(more))],
            "with": [f"async with session({a}):", *indented(sub)],
            "group": [f"async for g in pages({a}, {b}):", "    await g()", *indented(sub)],
            "break": ["if coin(): break"],
            "continue": ["if coin(): continue"],
            "return": [f"if coin(): return {a}"],
        }[kind]
    return lines


PROGRAM = """
import contextlib, functools
async def gather(*coros):
    return [await c for c in coros]
async def apply(f, g):
    await f()
    if coin():
        await g()
def traced(fn):
    @functools.wraps(fn)
    async def wrapper(*args):
        await fn(*args)
    return wrapper
class Holder:
    def __init__(self, f):
        self.f = f
    async def go(self):
        await self.f()
        self.f = alpha
        if coin():
            await self.go()
@contextlib.asynccontextmanager
async def session(f):
    await f()
    try:
        yield
    finally:
        await delta()
async def pages(f, g):
    await f()
    yield g
    await g()
    yield f
class Oops(Exception): pass
"""


def program(lines: list[str], coins: list[bool]) -> tuple[Any, list[str]]:
    """The coroutine of a program, and where the steps that run are noted."""
    ran: list[str] = []
    thrown = iter(coins)

    def made(name: str) -> Any:
        async def fn(*_: Any) -> None:
            ran.append(name)
            await Stop()

        return step(name=name)(fn)

    names = module(
        PROGRAM + "async def wf():\n    f = alpha\n" + "\n".join(indented(lines)) + "\n",
        coin=lambda: next(thrown, False), **{name: made(name) for name in STEPS},
    )  # fmt: skip
    return names["wf"](), ran


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(blocks(), st.lists(st.booleans(), max_size=40), st.integers(0, 30))
@pytest.mark.filterwarnings("ignore:coroutine")
def test_every_step_that_runs_later_was_ahead(lines: list[str], coins: list[bool], at: int) -> None:
    """Wherever a program is looked at: each step that runs from then on was listed, or something was unknown."""
    coro, ran = program(lines, coins)
    listed: set[str] | None = None
    before = 0
    try:
        for n in range(400):
            coro.send(None)
            if n == at:
                listed, before = {c.name for c in after(coro)}, len(ran)
    except StopIteration:
        pass
    finally:
        coro.close()
    if listed is not None and UNKNOWN not in listed:
        assert set(ran[before:]) <= listed


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(blocks(), st.lists(st.booleans(), max_size=40))
@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_certain_single_step_runs_as_often_as_listed(lines: list[str], coins: list[bool]) -> None:
    """What is listed as certain and not many runs at least so often, unless something was raised; else nothing more than that."""
    coro, ran = program(lines, coins)
    listed = after(coro)
    with contextlib.suppress(StopIteration):
        for _ in range(400):
            coro.send(None)
    coro.close()
    for name in STEPS:
        mine = [c for c in listed if c.name == name]
        if UNKNOWN not in {c.name for c in listed} and not any(c.many for c in mine):
            assert ran.count(name) <= len(mine)
        if not any("raise" in line for line in lines):
            assert ran.count(name) >= sum(1 for c in mine if not c.many and not c.maybe)
