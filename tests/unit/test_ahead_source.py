"""What is left of a workflow, read from its source alone."""

# ruff: noqa: E501 - a case is a line: its body, and what is read

from __future__ import annotations

import linecache
import textwrap
from itertools import count
from typing import Any

import pytest

from stepseven.decide.plan import Coming
from stepseven.runtime import ahead
from stepseven.runtime.procedure import Workflow, WorkflowOptions

_numbers = count()

HEAD = """
import asyncio, functools, json, logging, contextlib, dataclasses, datetime
from typing import Any
from stepseven import Cost, Run, step, workflow
import stepseven

@step
async def pull(x="", **more) -> str: ...
@step
async def draft(x="") -> str: ...
@step(effect="write", key="x", cost=Cost(usd=0.5, seconds=2), attempts=3)
async def push(x="") -> str: ...
@step(effect="irreversible", key="x")
async def mail(x="") -> str: ...
"""


def module(text: str, name: str | None = None, **given: Any) -> dict[str, Any]:
    """A module made of *text*; its source can be read."""
    n = next(_numbers)
    file, source = f"/nowhere/m{n}.py", textwrap.dedent(HEAD) + textwrap.dedent(text)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": name or f"m{n}", **given}
    exec(compile(source, file, "exec"), names)
    return names


def of(text: str, **given: Any) -> tuple[Coming, ...]:
    """All that the workflow ``wf`` of a module may call."""
    fn = module(text, **given)["wf"]
    return ahead.whole(fn if isinstance(fn, Workflow) else Workflow(fn, WorkflowOptions(name="wf")))


def told(comings: tuple[Coming, ...]) -> list[str]:
    """As ``name``, ``name*`` (many), ``name?`` (maybe)."""
    return [c.name + "*" * c.many + "?" * c.maybe for c in comings]


CASES: dict[str, tuple[str, str]] = {
    "a call": ("await pull()", "pull"),
    "in order of evaluation": ("await push(await pull() + await draft())", "pull draft push"),
    "a local alias": ("f = pull; await f(1)", "pull"),
    "an alias of either": ("f = pull if x else draft\nawait f(1)", "pull? draft?"),
    "if": ("if x:\n    await pull()\nelse:\n    await draft()\nawait push()", "pull? draft? push"),
    "elif": ("if x:\n    await pull()\nelif await draft():\n    await push()", "pull? draft? push?"),
    "a return under a condition": ("if x:\n    return\nawait pull()", "pull?"),
    "a raise under a condition": ("if x:\n    raise ValueError(1)\nawait pull()", "pull?"),
    "nothing after return": ("await pull()\nreturn\nawait draft()", "pull"),
    "and, or": ("await pull() and await draft() or await push()", "pull draft? push?"),
    "ternary": ("y = (await pull()) if x else (await draft())", "pull? draft?"),
    "for": ("for i in x:\n    await pull(i)\nawait draft()", "pull* draft"),
    "for, else": ("for i in x:\n    if await pull(i): break\nelse:\n    await draft()", "pull* draft?"),
    "while": ("while await pull():\n    await draft()", "pull* draft*"),
    "while True": ("while True:\n    if await pull(): break\nawait draft()", "pull* draft"),
    "while True without an end": ("while True:\n    await pull()\nawait draft()", "pull*"),
    "continue": ("for i in x:\n    if i: continue\n    await pull()\nawait push()", "pull*? push"),
    "the alias of an earlier round": ("f = pull\nfor i in x:\n    await f()\n    f = draft", "pull* draft*?"),
    "try": ("try:\n    await pull()\nexcept ValueError:\n    await draft()\nelse:\n    await push()\nfinally:\n    await mail()", "pull push draft? mail"),
    "match": ("match x:\n    case 1:\n        await pull()\n    case _:\n        await draft()\nawait push()", "pull? draft? push"),
    "match binds": ("match pull:\n    case f:\n        await f()", "pull?"),
    "a comprehension": ("[await pull(i) for i in x]", "pull*"),
    "a comprehension with a condition": ("[await pull(i) for i in x if await draft(i)]", "draft* pull*?"),
    "gather": ("await asyncio.gather(pull(1), draft(2))\nawait push()", "pull draft push"),
    "gather of a generator": ("await asyncio.gather(*(pull(i) for i in x))", "pull*"),
    "gather of a list": ("cs = [pull(i) for i in x]\nawait draft()\nawait asyncio.gather(*cs)", "draft pull*"),
    "a list that is filled": ("cs = []\nfor i in x:\n    cs.append(pull(i))\nawait draft()\nawait asyncio.gather(*cs)", "draft pull*"),
    "create_task": ("t = asyncio.create_task(pull())\nawait draft()\nawait t", "pull draft"),
    "TaskGroup": ("async with asyncio.TaskGroup() as tg:\n    tg.create_task(pull())\n    t = tg.create_task(draft())\nawait push(t.result())", "pull draft push"),
    "wait_for, timeout": ("async with asyncio.timeout(1):\n    await asyncio.wait_for(pull(), 3)", "pull"),
    "as_completed": ("for c in asyncio.as_completed([pull(1), draft(2)]):\n    await c", "pull draft"),
    "a coroutine awaited later": ("c = pull()\nawait draft()\nawait c", "draft pull"),
    "a coroutine nobody awaits in view": ("c = pull()\nawait draft()", "draft pull?"),
    "map of a step": ("await run.map(pull, x)\nawait draft()", "pull* draft"),
    "map of a function": ("async def one(i):\n    await pull(i)\n    if i: await draft(i)\nawait run.map(one, x)", "pull* draft*?"),
    "map of a helper of the module": ("await run.map(each, x)", "pull* draft*"),
    "a lambda": ("f = lambda i: pull(i)\nawait f(1)", "pull"),
    "partial": ("f = functools.partial(pull, 1)\nawait f()", "pull"),
    "partial of a helper": ("f = functools.partial(apply, pull)\nawait f(1)", "pull"),
    "options": ("await pull.options(attempts=9)()", "pull"),
    "options that rename": ("f = pull.options(name='other')\nawait f()", "other"),
    "a helper": ("await each(1)", "pull draft"),
    "a helper twice": ("await each(1)\nawait each(2)", "pull draft pull draft"),
    "a sync helper": ("await make(1)", "pull"),
    "a helper that gets a step": ("await apply(draft, 1)", "draft"),
    "a helper that gets either": ("await apply(draft if x else pull, 1)", "draft? pull?"),
    "a helper that gets a helper": ("await apply(each, 1)", "pull draft"),
    "a helper that calls itself with another": ("await apply(functools.partial(apply, pull), 1)", "pull"),
    "a decorated helper": ("await wrapped(1)", "draft pull"),
    "a helper under a cache": ("await cached(1)", "pull*"),
    "recursion": ("await deep(3)", "pull* draft*"),
    "recursion through another": ("await ping(3)", "pull* draft*"),
    "closures": ("await factory(draft)(1)", "draft"),
    "a nested function": ("async def inner():\n    return await pull()\nawait inner()", "pull"),
    "a nested function in a nested one": ("def outer():\n    async def inner():\n        await pull()\n    return inner\nawait outer()()", "pull"),
    "nonlocal": ("f = pull\ndef turn():\n    nonlocal f\n    f = draft\nturn()\nawait f()", "pull? draft?"),
    "a method": ("await Agent(run).go(1)", "pull draft"),
    "a method through self": ("await Agent(run).twice()", "pull draft pull draft"),
    "a step that is a method": ("await Agent(run).read(1)", "read"),
    "a method of a base class": ("await Sub(run).go(1)", "push pull draft"),
    "an instance attribute": ("a = Agent(run)\na.f = draft\nawait a.f()", "draft"),
    "the handle as an attribute": ("await Agent(run).ask()", "run.ask"),
    "a property": ("await Agent(run).step(1)", "mail"),
    "a classmethod": ("a = Agent.made(run)\nawait a.go(1)", "pull draft"),
    "a class attribute": ("await Agent.tool(1)", "mail"),
    "a dataclass with a step": ("await Box(pull).f(1)", "pull"),
    "a module instance": ("await THE.go(1)", "pull draft"),
    "a dict of the module": ("await STEPS['a'](1)", "pull"),
    "a dict of the module, any": ("await STEPS[x](1)", "pull? draft?"),
    "a list of the module": ("for f in LIST:\n    await f(1)", "pull*? draft*?"),
    "items of a dict": ("for k, f in STEPS.items():\n    await f(k)", "pull*? draft*?"),
    "a dict display": ("d = {'a': pull, 'b': draft}\nawait d['b']()", "draft"),
    "get": ("await STEPS.get('a', push)()", "pull? push?"),
    "enumerate, zip": ("for i, f in enumerate([pull]):\n    await f(i)\nfor a, g in zip(x, [draft]):\n    await g(a)", "pull* draft*"),
    "unpacking": ("f, g = pull, draft\nawait g()\nawait f()", "draft pull"),
    "starred arguments": ("args = (draft, 1)\nawait apply(*args)", "draft"),
    "walrus": ("if (f := pull):\n    await f()", "pull?"),
    "getattr of a constant": ("await getattr(HERE, 'pull')()", "pull"),
    "an import inside": ("import asyncio as a\nawait a.gather(pull())", "pull"),
    "an async generator": ("async for i in pages():\n    await draft(i)", "pull* draft*"),
    "a context manager": ("async with session():\n    await draft()", "pull push draft"),
    "a context manager class": ("async with Session():\n    await draft()", "pull draft push"),
    "await of an object": ("await Waits()", "pull"),
    "map() of the language": ("await asyncio.gather(*map(pull, x))", "pull*"),
    "handed to another package": ("await asyncio.to_thread(max, [pull])", "pull*?"),
    "a callback": ("sorted(x, key=lambda i: i.n)\nawait pull()", "pull"),
    "ask": ("await run.ask('Is it?')", "run.ask"),
    "the handle renamed": ("r = run\nawait r.sleep(3)", "run.sleep"),
    "a method of the handle": ("ask = run.ask\nawait ask('Is it?')", "run.ask"),
    "the handle passed on": ("await helper_with(run)", "run.approve run.wait_for"),
    "the handle in a map": ("await run.map(lambda i: run.ask('a'), x)", "run.ask*"),
    "start": ("await run.start(child(q=1))", "run.start"),
    "pinned values": ("a = run.now()\nb = run.uuid()\nc = run.client.get('x')\nawait pull(a, b=c)", "pull"),
    "harmless waits": ("await asyncio.sleep(1)\ne = asyncio.Event()\nawait e.wait()\nl = asyncio.Lock()\nasync with l: pass\nq = asyncio.Queue()\nawait q.get()", ""),
    "another package's objects": ("c = asyncio.Queue()\nx = await c.get()\nlogging.info('a %s', x)\njson.dumps(x)\nawait pull()", "pull"),
    "print of a step": ("print(pull, run)\nlogging.info('%s', pull)", ""),
    "a plain call of data": ("y = x.lower().split()\nz = len(x)\nfor i in y:\n    print(i.strip())", ""),
    "type checking": ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    await pull()", ""),
    "a constant condition": ("fast = False\nif fast:\n    await pull()\nif not fast:\n    await draft()", "draft"),
    "a counter": ("n = 0\nwhile n < 3:\n    n += 1\n    if n == 2:\n        await pull()", "pull*?"),
    "a step in a step": ("await outer_step()", "outer_step pull? draft?"),
    "a step declared inside": ("@step(name='local', effect='write', key='x')\nasync def f(x): ...\nawait f(1)", "local"),
    # what cannot be seen
    "await of an input": ("await x", "unknown"),
    "a call of an input": ("x()\nawait pull()", "unknown pull"),
    "a call of a parameter": ("await apply(x, 1)", "unknown"),
    "getattr of a variable": ("await getattr(HERE, x)()", "unknown"),
    "globals() of a constant": ("await globals()['pull']()", "pull"),
    "globals() of a variable": ("await globals()[x]()", "unknown"),
    "vars of something": ("await vars(HERE)[x]()", "unknown"),
    "a module by its name": ("import sys\nawait sys.modules[x].go()", "unknown"),
    "exec": ("exec('1')\nawait pull()", "unknown pull"),
    "a function without source": ("await blind(1)\nawait pull()", "unknown pull"),
    "the handle handed away": ("await asyncio.to_thread(sum, run)", "unknown"),
    "async for over an input": ("async for i in x:\n    await pull(i)", "unknown* pull*"),
    "async with an input": ("async with x:\n    await pull()", "unknown pull"),
    "a module that is not loaded": ("import no_such_module_at_all as m\nawait m.f()", "unknown"),
    "what an input's method gives": ("await x.go()", "unknown"),
}  # fmt: skip

HELPERS = """
import sys
HERE = sys.modules.setdefault(__name__, type(sys)(__name__))
HERE.pull = pull
async def each(i):
    await pull(i)
    await draft(i)
def make(i):
    return pull(i)
async def apply(f, *args):
    return await f(*args)
def traced(fn):
    @functools.wraps(fn)
    async def wrapper(*args, **kwargs):
        await draft("trace")
        return await fn(*args, **kwargs)
    return wrapper
@traced
async def wrapped(i):
    await pull(i)
@functools.lru_cache
def cached(i):
    return pull(i)
async def deep(n):
    await pull(n)
    if n: await deep(n - 1)
    await draft(n)
async def ping(n):
    await pull(n)
    await pong(n)
async def pong(n):
    await draft(n)
    if n:
        await ping(n - 1)
def factory(f):
    async def made(i):
        return await f(i)
    return made
class Agent:
    tool = mail
    def __init__(self, run):
        self.run = run
        self.f = pull
    @classmethod
    def made(cls, run):
        return cls(run)
    async def go(self, i):
        await self.f(i)
        await draft(i)
    async def twice(self):
        for_both = self.go
        await for_both(1)
        await self.go(2)
    @step
    async def read(self, i): ...
    async def ask(self):
        await self.run.ask("What?")
    @property
    def step(self):
        return mail
class Sub(Agent):
    async def go(self, i):
        await push(i)
        await super().go(i)
@dataclasses.dataclass
class Box:
    f: Any
THE = Agent(None)
STEPS = {"a": pull, "b": draft}
LIST = [pull, draft]
async def pages():
    for i in range(3):
        await pull(i)
        yield i
@contextlib.asynccontextmanager
async def session():
    await pull()
    yield 1
    await push()
class Session:
    async def __aenter__(self):
        await pull()
    async def __aexit__(self, *a):
        await push()
class Waits:
    def __await__(self):
        return pull().__await__()
async def helper_with(r):
    await r.approve("May I?", about=1)
    await r.wait_for("credentials")
@workflow
async def child(run, q=0): ...
@step
async def outer_step():
    if 1 > time:
        await pull()
    await draft()
    await anything.at_all()
exec("async def blind(i): ...")
"""


def body(text: str) -> str:
    """A workflow with this body."""
    return f"{HELPERS}\nasync def wf(run, x=None):\n{textwrap.indent(text, '    ')}\n"


@pytest.mark.parametrize("name", CASES)
def test_what_a_body_may_call_is_read_in_order(name: str) -> None:
    """Steps and the handle's calls are listed in order, many and maybe marked; what cannot be seen is unknown."""
    text, expected = CASES[name]
    assert " ".join(told(of(body(text)))) == expected


def test_what_is_declared_of_a_step_is_told() -> None:
    """Effect, cost and tries of each call stand with it; the file and line, too; of an ask what it says."""
    pushed, mailed, asked = of(body("await push('a')\nawait mail('b')\nawait run.ask(f'Is {x} right?')"))
    assert (pushed.effect, pushed.cost_usd, pushed.cost_seconds, pushed.tries) == ("write", 0.5, 2, 3)
    assert (mailed.effect, mailed.cost_usd, mailed.tries) == ("irreversible", None, 2)
    assert (asked.text, asked.effect) == ("Is {x} right?", None)
    assert pushed.where.partition(":")[0] == mailed.where.partition(":")[0] != ""
    assert int(pushed.where.partition(":")[2]) + 1 == int(mailed.where.partition(":")[2])


def test_what_comes_before_the_body_comes_first() -> None:
    """The client's record is read first, and required facts may have to be asked for."""
    text = f"{HELPERS}\n@workflow(client_record=pull, requires='owner')\nasync def wf(run):\n    await draft()\n"
    assert told(of(text)) == ["pull", "run.ask?", "draft"]


def test_a_child_is_named() -> None:
    """Another workflow that is started is told by its name; what that calls is its own run's."""
    (started,) = of(body("await run.start(child(q=1))"))
    assert started.text == "child"


def test_source_that_is_not_what_runs_is_not_read() -> None:
    """A file that changed since it was loaded says nothing: what the code calls is unknown."""
    names = module("async def wf(run, x):\n    await pull()\n")
    file = names["wf"].__code__.co_filename
    lines = linecache.cache[file][2]  # type: ignore[misc]
    other = [line.replace("await pull()", "await draft()") for line in lines]
    linecache.cache[file] = (1, None, other, file)
    assert told(ahead.whole(Workflow(names["wf"], WorkflowOptions(name="wf")))) == ["unknown"]


def test_names_are_told_once() -> None:
    """Steps in order, once each, and what is unknown once; the handle's own calls are none."""
    comings = of(body("await run.ask('a')\nawait pull()\nawait x\nawait draft()\nx()\nawait pull()"))
    assert ahead.names(comings) == ["pull", "unknown", "draft"]


def test_code_without_an_end_is_read_in_time() -> None:
    """What branches without an end is given up as unknown, and never left out."""
    lines = ["async def f0(g): await g()"] + [
        f"async def f{n}(g):\n    await f{n - 1}(g)\n    await f{n - 1}(lambda: f{n - 1}(g))" for n in range(1, 24)
    ]
    assert "unknown" in told(of("\n".join(lines) + "\nasync def wf(run, x=None):\n    await f23(pull)\n"))


ODD = """
class Odd:
    __call__ = print

    def __getattribute__(self, name):
        raise RuntimeError(name)

odd = Odd()

@step
async def outer() -> str:
    await pull()
    odd()

async def first(run): await outer()
async def second(run): await outer()
"""


def test_a_step_with_an_object_that_cannot_be_looked_at_is_read_alike_by_every_workflow() -> None:
    """What is called before it is listed, for the first workflow that calls the step and for those after it."""
    names = module(ODD)
    seen = [told(ahead.whole(Workflow(names[of], WorkflowOptions(name=of)))) for of in ("first", "second")]
    assert seen == [["outer", "pull?"]] * 2
