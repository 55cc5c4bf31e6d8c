"""What happens to a run made by chance, before somebody plans its resume and in the middle of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.runs.deaths import NEVER
from tests.runs.plan_maker import Chance, edits, program
from tests.runs.plan_programs import FACTS, FIELDS, Program

CHOICES = ("skip", "approach", "rerun", "drift")
MOVES = ("fact", "fact", "fact", "moved", "moved", "field", "table", "table", "artifacts", "file", "refuted", "by hand")


@dataclass
class Story:
    """What happens to a run.

    Attributes:
        rounds: how often its questions are answered before. at, side: at which write its process dies, and on which side of it.
        failing: number of a step → how it fails until then.
        mutations: what changes while it waits. edits: what changes in its code.
        twice: something had moved before that, and somebody resumed it and said what is to become of that.
        answered: its open questions are answered before the plan. at_once: how many after it, before the resume.
        choices: what a person says of the kinds of question where that may differ.
        chosen: what is chosen at the resume: which kind of choice, and about which step.
        dies: at which write of each resume its process dies, too, and on which side of it; the last one lives.
        stumbles: number of a read → it fails once within the resume.
        served: the outside is behind HTTP. earlier: the same was done for another client before.
    """

    rounds: int
    at: int
    side: str
    failing: dict[int, str]
    mutations: list[tuple[Any, ...]]
    edits: list[tuple[Any, ...]]
    answered: bool
    at_once: int
    choices: dict[str, str]
    chosen: tuple[str, int] | None = None
    dies: list[tuple[int, str]] = field(default_factory=list)
    stumbles: set[int] = field(default_factory=set)
    twice: bool = False
    served: bool = False
    earlier: bool = False

    @property
    def still(self) -> bool:
        """Nothing changed while it waited."""
        return not (self.mutations or self.edits)


def _mutation(chance: Chance) -> tuple[Any, ...]:
    """Something else than it was."""
    kind, n = chance.one_of(*MOVES), chance.number(0, 4)
    more: dict[str, Callable[[], tuple[Any, ...]]] = {
        "file": lambda: (n, chance.one_of("gone", "other")), "table": lambda: (n, chance.number(1, 3)),
        "fact": lambda: (chance.one_of(*FACTS), n), "field": lambda: (chance.one_of(*FIELDS), n),
        "moved": lambda: (chance.number(3, 4),), "by hand": lambda: (n, chance.number(0, 4)), "refuted": lambda: (n,),
        "artifacts": lambda: (),
    }  # fmt: skip
    return (kind, *more[kind]())


def tale(chance: Chance) -> tuple[Program, Story]:
    """A program, and what happens to its run. In half of them nothing changes, and then most programs run straight through."""

    def in_ten(n: int) -> bool:
        return chance.number(0, 9) >= 10 - n

    def some(most: int, make: Callable[[], Any]) -> list[Any]:
        return [make() for _ in range(chance.number(1, most))]

    def death() -> tuple[int, str]:
        return chance.number(0, 9), side()

    def side() -> str:
        return str(chance.one_of("before", "after"))

    still = in_ten(4)
    plain = still and in_ten(8)  # what then runs is known to the last call
    early = in_ten(8 if plain else 5)  # its process dies before anybody looks
    twice = not still and in_ten(3)
    fails = 0 if plain else chance.number(0, 2)
    made = program(chance, straight=plain, waits=not early or in_ten(9))
    return made, Story(
        rounds=chance.number(0, 3), at=chance.number(3, 18) if early else NEVER, side=side(),
        failing={chance.number(0, 4): chance.one_of("fixable", "once", "murky") for _ in range(fails)},
        mutations=[] if still else some(4, lambda: _mutation(chance)) + [("moved", 4)] * twice,
        edits=edits(chance) if not still and in_ten(4) else [],
        answered=chance.yes(), at_once=chance.one_of(0, 0, 1, NEVER),
        choices={
            "drift": chance.one_of("keep", "refresh"), "code": chance.one_of("map", "run"),
            "conflict": chance.one_of("same", "second"),
        },
        chosen=(chance.one_of(*CHOICES), chance.number(0, 6)) if not plain and in_ten(5) else None,
        dies=some(2, death) if in_ten(3 if plain else 5) else [],
        stumbles=set(some(2, lambda: chance.number(0, 4))) if not plain and in_ten(3) else set(),
        twice=twice, served=in_ten(1), earlier=in_ten(1),
    )  # fmt: skip
