"""What a reading of a workflow's source notes down, and under which conditions the code being read runs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from stepseven.decide.plan import UNKNOWN, Coming
from stepseven.runtime._values import Pending, Scope, Value

BUDGET = 20_000  # nodes that one reading looks at


class Mapped(NamedTuple):
    """A call of ``run.map`` in the source.

    Attributes:
        function: what is mapped, by name; empty: it cannot be seen.
        key: what its items' branches are named after; empty: that is put together when it runs.
    """

    function: str
    key: str


class TooMuch(Exception):
    """There is more to read than is worth it."""


class Notes:
    """A reading under way: what was found so far, and under which conditions the code being read runs."""

    def __init__(self, home: str, *, in_step: bool = False) -> None:
        self.home = home  # the workflow's package
        self.in_step = in_step  # a step's own code: what it waits for is its own affair, but for steps
        self.out: list[Coming] = []
        self.maps: dict[Mapped, None] = {}  # in order, each once
        self.many = self.maybe = 0
        self.muted = False
        self.left = BUDGET
        self.file = ""
        self.scope = Scope({}, None, {})
        self.seen: set[str] = set()  # where something unknown was noted
        self.overlay: dict[tuple[int, str], Value] = {}  # attributes of real objects that the code is going to set
        self.handing: set[Any] = set()
        self.loose: dict[int, Pending] = {}  # begun when awaited, and nobody has been seen to do it

    # -- noting ---------------------------------------------------------------------------------------------------------

    def at(self, node: ast.AST) -> str:
        """File and line."""
        return f"{self.file}:{getattr(node, 'lineno', 0)}"

    def add(self, coming: Coming) -> None:
        """Note a call, as often and as surely as the code around it runs."""
        if self.muted:
            return
        if coming.name == UNKNOWN:
            if self.in_step or coming.where in self.seen:
                return
            self.seen.add(coming.where)
        if (self.many and not coming.many) or (self.maybe and not coming.maybe):
            coming = replace(coming, many=coming.many or self.many > 0, maybe=coming.maybe or self.maybe > 0)
        self.out.append(coming)

    def unknown(self, node: ast.AST) -> None:
        """Note that something is called here that cannot be seen through."""
        self.add(Coming(name=UNKNOWN, where=self.at(node)))

    @contextmanager
    def under(self, *, many: bool = False, maybe: bool = False) -> Iterator[None]:
        """What is noted inside happens *many* times, or *maybe*."""
        self.many += many
        self.maybe += maybe
        try:
            yield
        finally:
            self.many -= many
            self.maybe -= maybe

    def spend(self) -> None:
        """One more node was looked at.

        Raises:
            TooMuch: that was the last one.
        """
        self.left -= 1
        if self.left < 0:
            raise TooMuch

    def pending(self, go: Callable[[], Value], what: Any) -> Pending:
        """A call that begins when it is awaited."""
        made = Pending(go, what, self.many > 0, self.maybe > 0)
        self.loose[id(made)] = made
        return made
