"""From a take to its execution: what was just taken counts as in memory, or a heartbeat would give it back as a stray."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from stepseven.transitions.codes import CODE
from stepseven.transitions.runs import Taken
from stepseven.transitions.state import Loaded

if TYPE_CHECKING:
    from stepseven.runtime.memory import RunMemory

RECOVERY_AFTER_US = 10 * 60 * 1_000_000  # DESIGN §9: a wake after more than this is a recovery


class Holding(Protocol):
    """Whose runs they are."""

    fences: dict[int, int]
    taking: set[tuple[int, int]]


class Grip:
    """Holds what a unit takes, from before its commit: a loop that is busy for seconds does not lose it.

    Until the commit is known, a beat that does not see the take in the store has found nothing out: it may have looked before.
    A context manager around the write: whatever goes wrong, what was held and not handed on (``keep``) is let go.
    """

    def __init__(self, worker: Holding) -> None:
        self._fences, self._taking = worker.fences, worker.taking
        self._held: dict[int, int] = {}

    def again(self) -> None:
        """The unit begins (anew): nothing is taken."""
        for no, fence in self._held.items():
            if self._fences.get(no) == fence:
                del self._fences[no]
            self._taking.discard((no, fence))
        self._held.clear()

    def take(self, taken: Taken) -> Taken:
        """The unit has taken this, if it has."""
        if taken.hold is not None:
            no, fence = taken.hold.run_no, taken.hold.fence
            self._taking.add((no, fence))
            self._held[no] = self._fences[no] = fence
        return taken

    def keep(self, run_no: int) -> None:
        """It is committed, and driven from here on: whoever does so lets it go."""
        fence = self._held.pop(run_no, None)
        if fence is not None:
            self._taking.discard((run_no, fence))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.again()


def last_us(loaded: Loaded | RunMemory) -> int:
    """When the run last did something: it was put away then (an answer changes ``updated_us``, too)."""
    did = [r.ended_us or r.started_us for r in loaded.records.values() if r.name != CODE]  # a take is nothing that it did
    did += [row["ended_us"] or row["started_us"] for rows in loaded.attempts.values() for row in rows]
    did += [row["created_us"] for rows in loaded.questions.values() for row in rows]
    return max(did, default=loaded.run["created_us"])
