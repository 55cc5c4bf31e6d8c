"""Small workflows as values: how they are written down as Python source, and what may change about their code while one waits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

FACTS = ("contact", "limit")
FIELDS = ("seats", "plan")
NEEDED = "vat"
LAST = "end?"
OTHER = "other way"  # the approach that only a person chooses

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
    "outer": "@step(name={name!r}, cost=Cost(usd=0.125){more})",  # it calls other steps
}
USD = {"paid": 0.25, "sure": 0.5, "outer": 0.125}
WRITES = ("probed", "blind", "again", "final")
MAPPED = ("free", "paid", "sure", "probed", "blind", "again", "outer")  # what gives a number and may be an item

BODY = {
    "large": ("str", "await W.large({called!r}, x)"),
    "file": ("Reference", "await W.file({called!r}, x)"),
    **dict.fromkeys(WRITES, ("int", "await W.effect({called!r}, x)")),
    "again": ("int", "await W.effect({called!r}, x, under=attempt().idempotency_key)"),
    "outer": ("int", "(await W.read({called!r}, x, usd=0.125) + {inner}) % 5"),
}
VALUE = {"large": "number(await {call})", "file": "(await {call}).size"}

HEAD = """\
from __future__ import annotations

import asyncio
from dataclasses import dataclass

from stepseven import Cost, Limits, Reference, Run, attempt, step, workflow


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
    """A step of a program.

    Attributes:
        name, kind: what it is.
        before: the names it had, if its author says so.
        inner: what its own code calls, as source.
    """

    name: str
    kind: str
    before: tuple[str, ...] = ()
    inner: str = ""

    @property
    def base(self) -> str:
        """Its first name: what the rest of the program calls it by."""
        return self.name.partition("_")[0]

    def text(self, mark: str) -> str:
        """As source. *mark*: begins the name it is recorded under."""
        more = f", renamed_from={tuple(mark + name for name in self.before)!r}" if self.before else ""
        returned, body = BODY.get(self.kind, ("int", "await W.read({called!r}, x, usd={usd})"))
        lines = [
            KINDS[self.kind].format(name=mark + self.name, more=more), f"async def {self.name}(x: int) -> {returned}:",
            f"    return {body.format(called=self.name, usd=USD.get(self.kind, 0.0), inner=self.inner)}", "", "",
        ]  # fmt: skip
        if self.kind == "probed":
            lines += [f"@{self.name}.probe", f"async def look_{self.name}(x: int) -> int | None:",
                      f"    return await W.find({self.base!r}, x)", "", ""]  # fmt: skip
        if self.kind == "sure":
            lines += [f"@{self.name}.verify", f"async def verify_{self.name}(x: int) -> bool:",
                      f"    return ({self.name!r}, x) not in W.refuted", "", ""]  # fmt: skip
        if self.kind in ("free", "paid"):
            lines += [f"@{self.name}.approach({OTHER!r}, ask=True)", f"async def other_{self.name}(x: int) -> int:",
                      f"    return await W.read({self.name!r}, x + 1, usd={USD.get(self.kind, 0.0)})", "", ""]  # fmt: skip
        return "\n".join(lines)


@dataclass(frozen=True)
class Line:
    """One statement: what it is called (``v3``), the source that gives it, and the blocks within."""

    out: str
    text: tuple[str, ...]  # with the name of each step as {s0}, so that it can be renamed

    def uses(self, name: str) -> bool:
        """Whether it looks at another statement's value."""
        return re.search(rf"\b{name}\b", " ".join(self.text)) is not None


@dataclass(frozen=True)
class Program:
    """A workflow: its steps, its helpers and the workflows it starts (of one parameter ``y`` each), the statements of its body.

    Attributes:
        record: the client's outside record is read first. watch, needs: a fact is watched, one is required.
        waits: for an answer, at its end.
        limits: as source.
    """

    steps: tuple[Declared, ...]
    helpers: tuple[tuple[str, tuple[Line, ...], str], ...]
    body: tuple[Line, ...]
    record: bool
    watch: bool
    waits: bool
    kids: tuple[tuple[str, tuple[Line, ...], str], ...] = ()
    needs: bool = False
    limits: str = ""

    def source(self, called: str) -> str:
        """As a module, with *called* as the workflow's name, and before the names of its steps."""
        names = {s.base: s.name for s in self.steps}
        parts = [HEAD, "\n", *(s.text(f"{called}_").format_map({**_SAME, **names}) for s in self.steps)]
        for name, lines, result in self.helpers:
            parts += [f"async def {name}(run: Run, y: int) -> int:", *_indented(lines, names), f"    return {result}", "", ""]
        for name, lines, result in self.kids:
            parts += [f"@workflow(name={called + '_' + name!r})", f"async def {name}(run: Run, y: int) -> int:",
                      *_indented(lines, names), f"    return {result}", "", ""]  # fmt: skip
        told = "".join("{" + line.out + "}" for line in self.body) or "nothing"
        end = [f'    last = await run.ask("{LAST}", options=["yes", "no"])'] if self.waits else []
        parts += [f"@workflow({', '.join(self._options(called))})", "async def flow(run: Run) -> str:",
                  *_indented(self.body, names), *end, f'    return f"{told}"', ""]  # fmt: skip
        return "\n".join(parts)

    def _options(self, called: str) -> Iterator[str]:
        yield f"name={called!r}"
        if self.record:
            yield "client_record=load_customer"
        if self.watch:
            yield f"watch={FACTS[1:]!r}"
        if self.needs:
            yield f"requires=({NEEDED!r},)"
        if self.limits:
            yield f"limits=Limits({self.limits})"

    def once(self) -> set[str]:
        """Writes that are called at one place, once in a run: if they are done under two keys, a person has said so."""
        blocks = (self.body, *(lines for _, lines, _ in (*self.helpers, *self.kids)))
        texts = [text for lines in blocks for line in lines for text in line.text] + [s.inner for s in self.steps]
        plain = [line.text[0] for line in self.body if re.fullmatch(r"\w+ = await {\w+}\(.*\)", line.text[0])]
        writes = [s.base for s in self.steps if s.kind in WRITES]
        return {name for name in writes if _named(name, texts) == _named(name, plain) == 1}

    def changed(self, edits: list[tuple[Any, ...]]) -> Program:
        """The next version of its code."""
        made = self
        for n, (what, at, more) in enumerate(edits):
            made = _EDITS[what](made, at, more, n)
        return made


def _named(step: str, texts: list[str]) -> int:
    return sum(text.count("{" + step + "}") for text in texts)


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
    new = replace(old, name=f"{old.base}_{n}", before=(*old.before, old.name) if declared else ())
    return replace(p, steps=tuple(new if s is old else s for s in p.steps))


def _add(p: Program, at: int, kind: str, n: int) -> Program:
    new = Declared(f"n{n}", kind)
    where = at % (len(p.body) + 1)
    line = Line(f"w{n}", (f"w{n} = {call(new, '2')}",))
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


def _rekey(p: Program, at: int, _: Any, n: int) -> Program:
    """A step is called with another number: of a write, under another key."""
    calling = [k for k, line in enumerate(p.body) if _ARGUMENT.search(line.text[0])]
    if not calling:
        return p
    where = calling[at % len(calling)]
    line = p.body[where]
    other = _ARGUMENT.sub(r"\1(( \2 + 1 ) % 5)", line.text[0], count=1)
    return replace(p, body=(*p.body[:where], replace(line, text=(other, *line.text[1:])), *p.body[where + 1 :]))


_ARGUMENT = re.compile(r"(await {\w+})\(((?:[^()]|\([^()]*\))*)\)")
_EDITS: dict[str, Any] = {"rename": _rename, "add": _add, "remove": _remove, "swap": _swap, "rekey": _rekey}


def call(s: Declared, arg: str) -> str:
    """A call of a step as source, giving a number."""
    return VALUE.get(s.kind, "await {call}").format_map({"call": "{" + s.base + "}(" + arg + ")"})
