"""Which version of a fact counts, and which others contradict it.

A fact is a row of versions, each said by somebody: a source that feeds us again and again (``crm``, ``import:clients.csv``),
the runs (all of them are one source: they find things out), or a person, whose word is a decision. The newest version is the
value, and what was said before a decision is settled by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepseven._dataclass import dataclass

Origin = tuple[str, str]  # the kind, and which one of it

_PERSON: Origin = ("person", "")
_RUNS: Origin = ("runs", "")
_UNSAID: Origin = ("unsaid", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One version of a fact. ``value`` is canonical text: equal values, equal text. ``until_us``: it holds until then."""

    version: int
    value: str
    source: str | None = None
    by: str | None = None
    until_us: int | None = None

    @property
    def origin(self) -> Origin:
        """Who said it, as far as contradictions go."""
        source = self.source or ""
        if self.by is not None or source.startswith("answer to "):
            return _PERSON
        if source.startswith("run ") or (source.startswith("step ") and " of run " in source):
            return _RUNS
        return ("source", source) if source else _UNSAID

    @property
    def by_person(self) -> bool:
        """Whether it is somebody's decision."""
        return self.origin == _PERSON

    def holds(self, now_us: int) -> bool:
        """Whether it still counts as known."""
        return self.until_us is None or self.until_us > now_us


def conflicts(said: Sequence[Said], now_us: int) -> list[Said]:
    """What contradicts the newest version, newest first.

    Args:
        said: every version, oldest first.
        now_us: the time; what no longer holds contradicts nothing.

    Returns:
        The newest word of each other source since the last decision (which is a word, too), where it is another value.
    """
    if not said:
        return []
    start = max((i for i, one in enumerate(said) if one.origin == _PERSON), default=0)
    newest = {one.origin: one for one in said[start:]}
    others = [one for one in newest.values() if one.value != said[-1].value and one.holds(now_us)]
    return sorted(others, key=lambda one: -one.version)


def repeated(said: Sequence[Said], word: Said, now_us: int) -> Said | None:
    """The version that *word* only repeats; ``None`` when it is news.

    A source that feeds us says the same every night: that is no news, and must not bring its value back over what another
    source, or a person, has said since. Everybody else who says a value means it to be the value from now on.

    Args:
        said: every version, oldest first.
        word: what is said now; its version and how long it holds do not count.
        now_us: the time; repeating what no longer holds is news.
    """
    if not said or not said[-1].holds(now_us):
        return None
    feeds = word.origin[0] == "source"
    before = next((one for one in reversed(said) if not feeds or one.origin == word.origin), None)
    if before is None or not before.holds(now_us) or before.value != word.value:
        return None
    same = before.origin == word.origin and (word.origin != _PERSON or (before.by, before.source) == (word.by, word.source))
    return before if same else None
