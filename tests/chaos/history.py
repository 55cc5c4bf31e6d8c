"""Whether what clients saw of a shared thing could have happened one after the other.

Every call is an interval: asked, answered. A history is *linearizable* when each call can be given one moment inside its interval
so that the answers are what a simple sequential thing (a ``Model``) would have said at these moments. A call without an answer
may have had its effect at any time since, or never. The search is Wing and Gong's, with Lowe's memory of what was tried:
J. Wing, C. Gong, *Testing and Verifying Concurrent Objects*, JPDC 1993; G. Lowe, *Testing for Linearizability*, CCPE 2017.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One call of one client.

    Attributes:
        process: who called; one call at a time.
        thing: what it was about, as ``kind/id``; each thing is checked alone.
        call: which call.
        args: what it was given, hashable.
        asked: when, on a clock that all share.
        answered: when; infinite if the outcome is not known.
        outcome: ``ok``: *result* was the answer, which may say no. ``failed``: certainly without any effect. ``unknown``: either.
        result: the answer, hashable.
    """

    process: str
    thing: str
    call: str
    args: tuple[Any, ...] = ()
    asked: float
    answered: float = math.inf
    outcome: Literal["ok", "failed", "unknown"] = UNKNOWN
    result: Any = None

    def __str__(self) -> str:
        end = "?" if math.isinf(self.answered) else f"{self.answered:.4f}"
        return f"{self.asked:.4f}–{end} {self.process}: {self.call}{self.args} -> {self.outcome} {self.result!r}"


class Model(Protocol):
    """A thing that does one call after the other."""

    start: Hashable

    def after(self, state: Any, op: Op) -> Iterable[Hashable]:
        """The states in which the call may leave the thing: none, if it would not have answered so.

        For a call of unknown outcome: the states in which an effect would leave it; that it had none is tried anyway.
        """
        ...


@dataclass(frozen=True, slots=True)
class Fault:
    """A history that cannot have happened: how far it could be told, and what then does not fit."""

    thing: str
    state: Any
    stuck: tuple[Op, ...]
    told: tuple[Op, ...]

    def __str__(self) -> str:
        before = "\n".join(f"    {op}" for op in self.told[-12:])
        after = "\n".join(f"    {op}" for op in self.stuck)
        return f"{self.thing}: after\n{before}\n  the state is {self.state!r}, and none of these can come next:\n{after}"


def fault(model: Model, ops: Iterable[Op]) -> Fault | None:
    """Why the history of one thing is not linearizable; ``None``: it is."""
    search = _Search(model, sorted((op for op in ops if op.outcome != FAILED), key=lambda op: (op.asked, op.answered)))
    return search.run()


class _Search:
    """A depth-first search over which call took effect next. What is left to place is a set of bits."""

    def __init__(self, model: Model, ops: list[Op]) -> None:
        self.model = model
        self.ops = ops
        self.must = sum(1 << i for i, op in enumerate(ops) if op.outcome == OK)
        self.tried: set[tuple[int, Hashable]] = set()
        self.furthest: tuple[int, Any, tuple[int, ...]] = (-1, model.start, ())

    def run(self) -> Fault | None:
        path: list[int] = []
        stack = [(0, self.model.start, self._next(0, self.model.start))]
        while stack:
            done, state, choices = stack[-1]
            if done & self.must == self.must:
                return None
            self._note(done, state, path)
            step = next(choices, None)
            if step is None:
                stack.pop()
                if path:
                    path.pop()
                continue
            which, then = step
            placed = done | 1 << which
            if (placed, then) not in self.tried:
                self.tried.add((placed, then))
                path.append(which)
                stack.append((placed, then, self._next(placed, then)))
        return self._fault()

    def _next(self, done: int, state: Hashable) -> Any:
        """Each call that may come next, with each state it may leave: asked before any unplaced one was answered."""
        for i in self._open(done):
            for then in self.model.after(state, self.ops[i]):
                yield i, then

    def _open(self, done: int) -> list[int]:
        found, first_answer = [], math.inf
        for i, op in enumerate(self.ops):
            if done >> i & 1:
                continue
            if op.asked > first_answer:
                break  # they are in the order in which they were asked
            found.append(i)
            if op.outcome == OK:
                first_answer = min(first_answer, op.answered)
        return [i for i in found if self.ops[i].asked <= first_answer]

    def _note(self, done: int, state: Any, path: list[int]) -> None:
        far = (done & self.must).bit_count()
        if far > self.furthest[0]:
            self.furthest = (far, state, tuple(path))

    def _fault(self) -> Fault:
        _, state, path = self.furthest
        done = sum(1 << i for i in path)
        stuck = tuple(self.ops[i] for i in self._open(done) if self.ops[i].outcome == OK)
        return Fault(self.ops[0].thing, state, stuck, tuple(self.ops[i] for i in path))


def faults(models: Mapping[str, Model], ops: Iterable[Op]) -> list[Fault]:
    """What cannot have happened, of every thing. *models*: by the part of its name before the ``/``."""
    things: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        things[op.thing].append(op)
    found = (fault(models[thing.partition("/")[0]], of_it) for thing, of_it in sorted(things.items()))
    return [each for each in found if each is not None]


# -- the things ---------------------------------------------------------------------------------------------------------------


class Question:
    """A register that is written once. State: the answer with who gave it, or ``None``."""

    start: Hashable = None

    def after(self, state: Any, op: Op) -> Iterable[Hashable]:
        """``answer(value, by)`` gives ``True``, or who was first; ``read()`` the state; ``close(how)`` shuts it for ever."""
        if op.call == "read":
            return [state] if op.result == state else []
        mine = op.args if op.call == "answer" else ("", *op.args)
        if op.outcome == UNKNOWN:
            return [mine] if state is None else []
        if op.result is True:
            return [mine] if state is None else []
        return [state] if state is not None and op.result in (state, False) else []


class Run:
    """A run as its owners see it. State: (fence, owner or "", ended, what is on record, in order)."""

    start: Hashable = (0, "", False, ())

    def after(self, state: Any, op: Op) -> Iterable[Hashable]:
        """Each call says which hold it has, or what it saw; ``True``: it was let in."""
        if op.call == "load":
            return [state] if op.result == state else []
        then = self._effect(state, op) if op.args[:2] == state[:2] and not state[2] else None
        if op.outcome == UNKNOWN:
            return [then] if then is not None and then != state else []
        if op.result is False:
            return [state] if then is None else []
        if op.call == "take" and then is not None and op.result != then[0]:
            return []  # it was told another fence
        return [then] if then is not None else []

    @staticmethod
    def _effect(state: Any, op: Op) -> Any:
        fence, owner, _, records = state
        match op.call:
            case "take":  # args: seen fence, seen owner, taker
                return (fence + 1, op.args[2], False, records)
            case "write":  # args: fence, owner, what
                return (fence, owner, False, tuple(sorted({*records, op.args[2]})))
            case "touch":  # the same, of what leaves nothing that is looked at
                return state
            case "leave":
                return (fence, "", False, records)
            case "end":
                return (fence, "", True, records)
        raise AssertionError(op)


class Effect:
    """A claim. State: (tries, state, receipt), or ``None`` before the first."""

    start: Hashable = None

    def after(self, state: Any, op: Op) -> Iterable[Hashable]:
        """``claim()`` gives what it found; the others are let in (``True``) from one try only, or while there is no receipt."""
        if op.call == "look":
            return [state] if op.result == state else []
        if op.call == "claim" and op.outcome == OK and op.result != ("go", 1):
            return [state] if op.result == state else []
        then = self._effect(state, op)
        if op.outcome == UNKNOWN:
            return [then] if then is not None else []
        if op.result is False:
            return [state] if then is None else []
        return [then] if then is not None else []

    @staticmethod
    def _effect(state: Any, op: Op) -> Any:
        if op.call == "claim" and (state is None or (op.outcome == UNKNOWN and state[1] == "refused")):
            return (1 if state is None else state[0] + 1, "claimed", None)  # what was proven not done may be sent again
        if op.call == "claim" or state is None:
            return None
        tries, how, receipt = state
        match op.call:
            case "again":  # args: from which try
                return (tries + 1, "claimed", receipt) if op.args == (tries,) and how != "done" else None
            case "doubt":  # the same, of what was proven not done
                return (tries + 1, "claimed", receipt) if op.args == (tries,) and how == "refused" else None
            case "settle":  # args: receipt
                return (tries, "done", op.args[0]) if how != "done" else None
            case "mark":  # args: of which try, how
                return (tries, op.args[1], receipt) if op.args[0] == tries and how != "done" else None
            case "fill":  # args: what it was, in the place of what could not be kept
                return (tries, how, op.args[0]) if how == "done" and str(receipt).startswith('{"$refused"') else None
        raise AssertionError(op)


MODELS: dict[str, Model] = {"question": Question(), "run": Run(), "effect": Effect()}


# -- keeping it ---------------------------------------------------------------------------------------------------------------


class Log:
    """What one client asked and heard, in a file: a line before each call and one after, so that its death loses nothing."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self.clock = clock

    def asked(self, op: Op) -> None:
        """A call begins."""
        self._write({**asdict(op), "answered": None, "outcome": UNKNOWN, "result": None})

    def heard(self, op: Op) -> None:
        """The same call ended."""
        self._write({**asdict(op), "answered": None if math.isinf(op.answered) else op.answered})

    def close(self) -> None:
        """Nothing more is said."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


def read(folder: Path) -> list[Op]:
    """The calls of all clients whose logs are in *folder*. A call that was begun and never ended is of unknown outcome."""
    found: dict[tuple[str, str, float], Op] = {}
    for path in sorted(folder.glob("*.log")):
        for line in path.read_text("utf-8").splitlines():
            if not line.endswith("}"):
                continue  # the client died in the middle of it: the line before says what it asked
            told = json.loads(line)
            answered = math.inf if told["answered"] is None else told["answered"]
            op = Op(**{**told, "args": _hashable(told["args"]), "result": _hashable(told["result"]), "answered": answered})
            found[op.process, op.thing, op.asked] = op
    return list(found.values())


def _hashable(value: Any) -> Any:
    """JSON's lists are tuples again."""
    return tuple(_hashable(item) for item in value) if isinstance(value, list) else value
