"""Small workflows made by chance, and edits of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.runs.plan_programs import FACTS, FIELDS, KINDS, MAPPED, NEEDED, Declared, Line, Program, call

MOST_CALLS = 12
PLAIN = tuple(kind for kind in KINDS if kind != "outer")
LIMITS = (*[""] * 8, "usd=0.5", "usd=1.25", "steps=3", "steps=7")


class Chance:
    """Where chance comes from: hypothesis, which makes what fails small; or a seed, and then no two things made are alike.

    Of what hypothesis makes most is a variation of what it has just made.
    """

    def __init__(self, one_of: Callable[[list[Any]], Any]) -> None:
        self._one_of = one_of

    @classmethod
    def drawn(cls, draw: st.DrawFn) -> Chance:
        return cls(lambda values: draw(st.sampled_from(values)))

    @classmethod
    def seeded(cls, seed: int) -> Chance:
        return cls(random.Random(seed).choice)

    def one_of(self, *values: Any) -> Any:
        """One of some values; the first is the simplest."""
        return self._one_of(list(values))

    def number(self, low: int, high: int) -> int:
        return int(self.one_of(*range(low, high + 1)))

    def yes(self) -> bool:
        return bool(self.one_of(False, True))


class _Maker:
    """Draws one program. *straight*: without branches, loops, maps and what stands side by side."""

    def __init__(self, chance: Chance, *, straight: bool) -> None:
        self.chance = chance
        self.one_of = chance.one_of
        self.straight = straight
        self.count = 0
        self.left = MOST_CALLS
        self.steps: list[Declared] = []
        self.helpers: list[tuple[str, tuple[Line, ...], str]] = []
        self.kids: list[tuple[str, tuple[Line, ...], str]] = []
        self.needs = False

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def made(self, *, waits: bool) -> Program:
        kinds = [self.one_of(*PLAIN) for _ in range(self.chance.number(2, 5))]
        self.steps = [Declared(f"s{n}", kind) for n, kind in enumerate(kinds)]
        for n in range(len(kinds), len(kinds) + self.one_of(0, 0, 0, 1, 1, 2)):
            self.steps.append(Declared(f"s{n}", "outer", inner=self.within_step()))
        for n in range(self.one_of(0, 0, 1)):
            lines = tuple(self.call(["y"]) for _ in range(2))
            self.helpers.append((f"h{n}", lines, self.value([line.out for line in lines])))
        kid_steps = [self.kid(n) for n in range(self.one_of(0, 0, 1, 1))]
        self.record, self.needs = self.chance.yes(), self.one_of(False, False, False, True)
        watch = self.one_of(False, False, False, True)
        body, _ = self.block([], 0, self.one_of(3, 4, 5, 6, 7))
        return Program(
            (*self.steps, *kid_steps), tuple(self.helpers), tuple(body), self.record, watch, waits, tuple(self.kids), self.needs,
            "" if self.straight else self.one_of(*LIMITS),
        )  # fmt: skip

    def within_step(self) -> str:
        """What a step calls itself: any that is there before it."""
        calls = [call(self.one_of(*self.steps), self.one_of("x", "1", "(x + 1) % 5")) for _ in range(self.one_of(1, 1, 2))]
        return " + ".join(f"({each})" for each in calls)

    def kid(self, n: int) -> Declared:
        """A workflow that is started: it calls one step of its own, and may look at a fact, and ask."""
        own = Declared(f"k{n}", self.one_of("free", "paid", "file", "probed", "blind", "again", "final"))
        lines = [Line("a", (f"a = {call(own, self.one_of('y', '1', '( y + 1 ) % 5'))}",))]
        other = self.one_of("", f"run.client.get({FACTS[0]!r}, 1)", f'len(await run.ask("kid {n}?", options=["yes", "no"]))')
        lines += [Line("b", (f"b = {other}",))] if other else []
        lines = lines[::-1] if self.chance.yes() else lines
        self.kids.append((f"kid{n}", tuple(lines), "( a + b ) % 5" if other else "a"))
        return own

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
        return Line(out, (f"{out} = {call(s, self.value(scope))}",))

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
        plain = [self.call] * 4 + [self.fact] * 3 + [self.ask, self.approve]
        plain += [] if self.straight else [self.map, self.map, self.gather, self.comprehended]
        plain += [self.field, self.field] if self.record else []
        plain += [self.help] if self.helpers else []
        plain += [self.start] * 4 if self.kids else []
        if depth == 0 and not self.straight:
            plain += [self.branch, self.branch, self.loop]
        return self.one_of(*plain)(scope)

    def fact(self, _: list[str]) -> Line:
        out = self.name()
        return Line(out, (f"{out} = run.client.get({self.one_of(*FACTS, *([NEEDED] if self.needs else []))!r}, 1)",))

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

    def approve(self, scope: list[str]) -> Line:
        out = self.name()
        self.left -= 1
        return Line(out, (f'{out} = await run.approve("{out} so?", about={self.value(scope)})',))

    def start(self, scope: list[str]) -> Line:
        out, (name, *_) = self.name(), self.one_of(*self.kids)
        self.left -= 1
        key = self.one_of("", "", f", key={out!r}")
        return Line(out, (f"{out} = await run.start({name}(y={self.value(scope)}){key})",))

    def help(self, scope: list[str]) -> Line:
        out, (name, lines, _) = self.name(), self.one_of(*self.helpers)
        self.left -= len(lines)
        return Line(out, (f"{out} = await {name}(run, {self.value(scope)})",))

    def gather(self, scope: list[str]) -> Line:
        out = self.name()
        parts = []
        for _ in range(2):
            s = self.step(*MAPPED)
            if self.helpers and (s is None or self.chance.yes()):
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
        if self.helpers and (s is None or self.chance.yes()):
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
        text += self.within(scope, out) if self.chance.yes() else [f"    {out} = 0"]
        return Line(out, tuple(text))

    def loop(self, scope: list[str]) -> Line:
        out = self.name()
        times = self.one_of("2", self.value(scope))
        return Line(out, (f"{out} = 0", f"for i in range({times}):", *self.within([*scope, "i"], out)))


def program(chance: Chance, *, straight: bool = False, waits: bool = True) -> Program:
    """A program. *straight*: each of its calls is made, once. *waits*: for an answer, at its end."""
    return _Maker(chance, straight=straight).made(waits=waits)


EDITS = ("rename", "rename", "add", "remove", "swap", "rekey", "rekey")


def edits(chance: Chance) -> list[tuple[Any, ...]]:
    """What an author changes."""
    made = []
    for _ in range(chance.number(1, 2)):
        kind, at = chance.one_of(*EDITS), chance.number(0, 6)
        more = chance.yes() if kind == "rename" else chance.one_of(*PLAIN) if kind == "add" else None
        made.append((kind, at, more))
    return made
