"""``attempt()``: what a step's code may know and say about the try it is in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.errors import NoRun
from stepseven.model import to_micro
from stepseven.runtime.place import Known, place


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """An earlier try of this step: which approach, and why it failed."""

    number: int
    approach: str
    reason: str


class Attempt:
    """One try of a step, seen from inside.

    Attributes:
        number: 1 for the first try, 2 for the second, over all resumes.
        approach: the label of the approach in use; ``"as written"`` for the step's own function.
        narrow: the last try overflowed a model's context: ask for less this time.
        failures: the earlier tries.
        given: what people supplied for this step, by name.
    """

    __slots__ = (
        "_gate", "_key", "_on_progress", "approach", "facts", "failures", "given", "looked", "narrow", "number", "tokens", "uusd",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - one attribute each; made in one place only
        self,
        *,
        number: int = 1,
        approach: str = "as written",
        narrow: bool = False,
        failures: tuple[Tried, ...] = (),
        given: Mapping[str, Any] | None = None,
        key: str | None = None,
        gate: Callable[[], None] | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        self.number = number
        self.approach = approach
        self.narrow = narrow
        self.failures = failures
        self.given: Mapping[str, Any] = given or {}
        self._key = key
        self._gate = gate
        self._on_progress = on_progress
        self.uusd: int | None = None
        self.tokens: int | None = None
        self.facts: dict[str, Known] = {}  # what the code asked about the client: it belongs to the step's record
        self.looked = False  # whether the code asked; a second try that never did is "identical"

    @property
    def idempotency_key(self) -> str:
        """The key under which the other side recognises a repeat: ASCII, at most 255 characters.

        Read it as late as possible, just before sending: it is the last check that this attempt may still act.

        Raises:
            Superseded: another worker owns the run by now, or the attempt's time is up. Nothing may be sent.
            NoRun: the step has no effect, so there is no key.
        """
        if self._key is None:
            raise NoRun("attempt().idempotency_key (only a step with effect= has one)")
        if self._gate is not None:
            self._gate()
        return self._key

    def note(self) -> str:
        """The earlier failures as text for a prompt; empty for a first try."""
        if not self.failures:
            return ""
        lines = [f"- try {t.number} ({t.approach}): {t.reason}" for t in self.failures]
        return "Tried before, do not repeat:\n" + "\n".join(lines)

    def spend(self, usd: float = 0, tokens: int = 0) -> None:
        """Report what this try has cost so far: adds up; replaces the declared cost. *usd* in US dollars."""
        self.uusd = (self.uusd or 0) + to_micro(usd)
        self.tokens = (self.tokens or 0) + tokens

    def progress(self, text: str) -> None:
        """Show *text* to whoever watches the run. It is not kept."""
        if self._on_progress is not None:
            self._on_progress(text)


#: the try of a read step that is called outside any run
loose: ContextVar[Attempt | None] = ContextVar("stepseven_loose_attempt", default=None)


def attempt() -> Attempt:
    """The try this code is part of.

    Raises:
        NoRun: called outside a step of a run.
    """
    here = place.get()
    found = here.attempt if here is not None else loose.get()
    if found is None:
        raise NoRun("attempt()")
    found.looked = True
    return found
