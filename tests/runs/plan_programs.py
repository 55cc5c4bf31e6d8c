"""Small workflows made by chance, written down as Python source, and what may change about their code while one of them waits.

Longer than other files: what a program may hold, how it is made and how it is written down follow one list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

MOST_CALLS = 12
FACTS = ("contact", "limit")
FIELDS = ("seats", "plan")
LAST = "end?"

#: kind of step -> how it is declared; reads first
KINDS = {
    "free": "@step(name={name!r}{more})",
    "paid": "@step(name={name!r}, cost=Cost(usd=0.25, seconds=1){more})",
    "sure": "@step(name={name!r}, cost=Cost(usd=0.5){more})",  # its result can be verified
    "large": "@step(name={name!r}{more})",  # its result is an artifact
    "file": "@step(name={name!r}{more})",  # its result names a file
    "probed": '@step(name={name!r}, effect="write", key="x"{more})',
    "blind": '@step(name={name!r}, effect="write", key="x"{more})',
    "again": '@step(name={name!r}, effect="write", key="x", idempotent="forever"{more})',
    "final": '@step(name={name!r}, effect="irreversible", key="x"{more})',
}
WRITES = ("probed", "blind", "again", "final")
MAPPED = ("free", "paid", "sure", "probed", "blind", "again")  # what gives a number and may be an item

BODY = {
    "large": ("str", "W.large({called!r}, x)"),
    "file": ("Reference", "W.file({called!r}, x)"),
    **dict.fromkeys(WRITES, ("int", "W.effect({called!r}, x)")),
}
VALUE = {"large": "number(await {call})", "file": "(await {call}).size"}

HEAD = """\
from __future__ import annotations

import asyncio
from dataclasses import dataclass

from stepseven import Cost, Reference, Run, attempt, step, workflow


@dataclass
class Customer:
    seats: int
    plan: int


async def load_customer(client_id: str) -> Customer:
    return Customer(**W.customer)


def number(text: str) -> int:
    return int(text.partition(":")[0])

"""


@dataclass(frozen=True)
class Declared:
    """A step of a program: its *name*, what *kind* it is, and the names it had before, if its author says so."""

    name: str
    kind: str
    before: tuple[str, ...] = ()

    def text(self, mark: str) -> str:
        """As source. *mark*: begins the name it is recorded under."""
        more = f", renamed_from={tuple(mark + name for name in self.before)!r}" if self.before else ""
        returned, body = BODY.get(self.kind, ("int", "W.read({called!r}, x, usd={usd})"))
        usd = {"paid": 0.25, "sure": 0.5}.get(self.kind, 0.0)
        lines = [
            KINDS[self.kind].format(name=mark + self.name, more=more), f"async def {self.name}(x: int) -> {returned}:",
            f"    return {body.format(called=self.name, usd=usd)}", "", "",
        ]  # fmt: skip
        if self.kind == "again":
            lines[2] = f"    return W.effect({self.name!r}, x, under=attempt().idempotency_key)"
        if self.kind == "probed":
            lines += [f"@{self.name}.probe", f"async def look_{self.name}(x: int) -> int | None:",
                      f"    return W.there.get(({self.name.partition('_')[0]!r}, x))", "", ""]  # fmt: skip
        if self.kind == "sure":
            lines += [f"@{self.name}.verify", f"async def verify_{self.name}(x: int) -> bool:",
                      f"    return ({self.name!r}, x) not in W.refuted", "", ""]  # fmt: skip
        return "\n".join(lines)


@dataclass(frozen=True)
class Line:
    """One statement: what it is called (``v3``), the source that gives it, and the blocks within."""

    out: str
    text: tuple[str, ...]  # with the name of each step as {s0}, so that it can be renamed
    steps: tuple[str, ...] = ()

    def uses(self, name: str) -> bool:
        """Whether it looks at another statement's value."""
        return re.search(rf"\b{name}\b", " ".join(self.text)) is not None


@dataclass(frozen=True)
class Program:
    """A workflow: its steps, its helpers (of one parameter ``y`` each) and the statements of its body."""

    steps: tuple[Declared, ...]
    helpers: tuple[tuple[str, tuple[Line, ...], str], ...]
    body: tuple[Line, ...]
    record: bool
    watch: bool
    waits: bool  # for an answer, at its end

    def source(self, called: str) -> str:
        """As a module, with *called* as the workflow's name, and before the names of its steps."""
        names = {s.name if "_" not in s.name else s.name.partition("_")[0]: s.name for s in self.steps}
        parts = [HEAD, "\n", *(s.text(f"{called}_") for s in self.steps)]
        for name, lines, result in self.helpers:
            parts += [f"async def {name}(run: Run, y: int) -> int:", *_indented(lines, names), f"    return {result}", "", ""]
        options = [f"name={called!r}", *(["client_record=load_customer"] if self.record else [])]
        options += [f"watch={FACTS[1:]!r}"] if self.watch else []
        told = "".join("{" + line.out + "}" for line in self.body) or "nothing"
        end = [f'    last = await run.ask("{LAST}", options=["yes", "no"])'] if self.waits else []
        parts += [f"@workflow({', '.join(options)})", "async def flow(run: Run) -> str:", *_indented(self.body, names),
                  *end, f'    return f"{told}"', ""]  # fmt: skip
        return "\n".join(parts)

    def changed(self, edits: list[tuple[Any, ...]]) -> Program:
        """The next version of its code."""
        made = self
        for n, (what, at, more) in enumerate(edits):
            made = _EDITS[what](made, at, more, n)
        return made


def _indented(lines: tuple[Line, ...], names: dict[str, str]) -> Iterator[str]:
    for line in lines:
        for text in line.text:
            yield "    " + text.format_map({**_SAME, **names})


class _Same(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


_SAME = _Same()


def _rename(p: Program, at: int, declared: bool, n: int) -> Program:
    if not p.steps:
        return p
    old = p.steps[at % len(p.steps)]
    new = replace(
        old, name=f"{old.name.partition('_')[0]}_{n}", before=(*old.before, old.name) if declared else ()
    )  # fmt: skip
    return replace(p, steps=tuple(new if s is old else s for s in p.steps))


def _add(p: Program, at: int, kind: str, n: int) -> Program:
    new = Declared(f"n{n}", kind)
    where = at % (len(p.body) + 1)
    line = Line(f"w{n}", (f"w{n} = {_call(new, '2')}",), (new.name,))
    return replace(p, steps=(*p.steps, new), body=(*p.body[:where], line, *p.body[where:]))


def _remove(p: Program, at: int, _: Any, n: int) -> Program:
    if not p.body:
        return p
    where = at % len(p.body)
    gone = p.body[where]
    return replace(p, body=(*p.body[:where], Line(gone.out, (f"{gone.out} = 1",)), *p.body[where + 1 :]))


def _swap(p: Program, at: int, _: Any, n: int) -> Program:
    if len(p.body) < 2:
        return p
    where = at % (len(p.body) - 1)
    one, two = p.body[where : where + 2]
    if two.uses(one.out):
        return p
    return replace(p, body=(*p.body[:where], two, one, *p.body[where + 2 :]))


_EDITS: dict[str, Any] = {"rename": _rename, "add": _add, "remove": _remove, "swap": _swap}


def _call(s: Declared, arg: str) -> str:
    call = "{" + s.name + "}(" + arg + ")"
    return VALUE.get(s.kind, "await {call}").format_map({"call": call})


# -- by chance ----------------------------------------------------------------------------------------------------------------


class _Maker:
    """Draws one program."""

    def __init__(self, draw: DrawFn) -> None:
        self.draw = draw
        self.count = 0
        self.left = MOST_CALLS
        self.steps: list[Declared] = []
        self.helpers: list[tuple[str, tuple[Line, ...], str]] = []
        self.helped: list[Declared] = []

    def one_of(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def made(self) -> Program:
        kinds = self.draw(st.lists(st.sampled_from(tuple(KINDS)), min_size=2, max_size=5))
        self.steps = [Declared(f"s{n}", kind) for n, kind in enumerate(kinds)]
        for n in range(self.one_of(0, 0, 1)):
            lines = tuple(self.call(["y"]) for _ in range(2))
            self.helpers.append((f"h{n}", lines, self.value([line.out for line in lines])))
        record, watch, waits = self.draw(st.booleans()), self.one_of(False, False, False, True), self.one_of(True, True, False)
        self.record = record
        body, _ = self.block([], 0, self.one_of(3, 4, 5, 6, 7))
        return Program(tuple(self.steps), tuple(self.helpers), tuple(body), record, watch, waits)

    def value(self, scope: list[str]) -> str:
        """A number between 0 and 4, of what is known in *scope*."""
        known = self.one_of(*scope[-3:], "") if scope else ""
        return str(self.one_of(1, 2)) if known == "" else self.one_of(f"( {known} + 1 ) % 5", f"{known} % 3", f"{known} * 2 % 5")

    def step(self, *kinds: str) -> Declared | None:
        fit = [s for s in self.steps if not kinds or s.kind in kinds]
        return self.one_of(*fit) if fit else None

    def call(self, scope: list[str]) -> Line:
        out, s = self.name(), self.step()
        assert s is not None
        self.left -= 1
        return Line(out, (f"{out} = {_call(s, self.value(scope))}",))

    def block(self, scope: list[str], depth: int, most: int) -> tuple[list[Line], list[str]]:
        lines: list[Line] = []
        scope = list(scope)
        for _ in range(most):
            if self.left <= 0:
                break
            line = self.statement(scope, depth)
            lines.append(line)
            scope.append(line.out)
        return lines, scope

    def statement(self, scope: list[str], depth: int) -> Line:
        plain = [
            self.call,
            self.call,
            self.call,
            self.fact,
            self.fact,
            self.ask,
            self.gather,
            self.map,
            self.map,
            self.comprehended,
        ]
        plain += [self.field, self.field] if self.record else []
        plain += [self.help] if self.helpers else []
        if depth == 0:
            plain += [self.branch, self.branch, self.loop]
        return self.one_of(*plain)(scope)

    def fact(self, _: list[str]) -> Line:
        out = self.name()
        return Line(out, (f"{out} = run.client.get({self.one_of(*FACTS)!r}, 1)",))

    def field(self, _: list[str]) -> Line:
        out = self.name()
        return Line(out, (f"{out} = run.client.record.{self.one_of(*FIELDS)}",))

    def ask(self, scope: list[str]) -> Line:
        out = self.name()
        self.left -= 1
        known = scope[-1] if scope else "1"
        how = self.one_of(
            f'"{out}?", options=["yes", "no"]', f'"{out}?", options=["yes", "no"], about= {known} ',
            f'f"{out} is {{{known}}}?", options=["yes", "no"]',
        )  # fmt: skip
        return Line(out, (f"{out} = len(await run.ask({how.replace('{', '{{').replace('}', '}}')}))",))

    def help(self, scope: list[str]) -> Line:
        out, (name, lines, _) = self.name(), self.one_of(*self.helpers)
        self.left -= len(lines)
        return Line(out, (f"{out} = await {name}(run, {self.value(scope)})",))

    def gather(self, scope: list[str]) -> Line:
        out = self.name()
        parts = []
        for _ in range(2):
            s = self.step(*MAPPED)
            if self.helpers and (s is None or self.draw(st.booleans())):
                parts.append(f"{self.helpers[0][0]}(run, {self.value(scope)})")
                self.left -= 2
            elif s is not None:
                parts.append("{" + s.name + "}(" + self.value(scope) + ")")
                self.left -= 1
        return Line(out, (f"{out} = sum(await asyncio.gather({', '.join(parts)}))",))

    def map(self, scope: list[str]) -> Line:
        out, s = self.name(), self.step(*MAPPED)
        items = self.one_of(f"[{self.value(scope)}, 3, {self.value(scope)}]", f"list(range({self.value(scope)}))")
        self.left -= 3
        if self.helpers and (s is None or self.draw(st.booleans())):
            inner = self.helpers[0][0]
            return Line(out, (
                f"async def item_{out}(y: int) -> int:", f"    return await {inner}(run, y)",
                f"{out} = sum(n or 0 for n in await run.map(item_{out}, {items}))",
            ))  # fmt: skip
        if s is None:
            return self.call(scope)
        return Line(out, (f"{out} = sum(n or 0 for n in await run.map({{{s.name}}}, {items}))",))

    def comprehended(self, scope: list[str]) -> Line:
        out, s = self.name(), self.step(*MAPPED)
        if s is None:
            return self.call(scope)
        self.left -= 2
        return Line(out, (f"{out} = sum([await {{{s.name}}}(x + {self.value(scope)}) for x in range(2)])",))

    def within(self, scope: list[str], out: str) -> list[str]:
        lines, known = self.block(scope, 1, self.one_of(1, 2))
        inner = ["    " + text for line in lines for text in line.text]
        return [*inner, f"    {out} = {known[-1] if known else 1}"]

    def branch(self, scope: list[str]) -> Line:
        out = self.name()
        text = [f"if {self.value(scope)} > 1:", *self.within(scope, out), "else:"]
        text += self.within(scope, out) if self.draw(st.booleans()) else [f"    {out} = 0"]
        return Line(out, tuple(text))

    def loop(self, scope: list[str]) -> Line:
        out = self.name()
        times = self.one_of("2", self.value(scope))
        return Line(out, (f"{out} = 0", f"for i in range({times}):", *self.within([*scope, "i"], out)))


@st.composite
def programs(draw: DrawFn) -> Program:
    """A program."""
    return _Maker(draw).made()


def edits() -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """What an author changes."""
    at = st.integers(0, 6)
    one = st.one_of(
        st.tuples(st.just("rename"), at, st.booleans()), st.tuples(st.just("add"), at, st.sampled_from(tuple(KINDS))),
        st.tuples(st.just("remove"), at, st.none()), st.tuples(st.just("swap"), at, st.none()),
    )  # fmt: skip
    return st.lists(one, min_size=1, max_size=2)
