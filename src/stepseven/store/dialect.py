"""The few places in which the two databases differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Everything in which the two databases differ, as text that a statement takes in."""

    param: str  #: what ``:name`` becomes (a replacement for ``re.sub``)
    mark: str  #: a parameter given by position (the hottest statement: a dict costs more than its binding)
    schema: str  #: ``stepseven.`` or nothing
    hold: str  #: keeps the run from being taken until this statement commits
    hold_row: str  #: locks the row that is about to be decided upon


SQLITE = Dialect(param=r":\1", mark="?", schema="", hold="", hold_row="")  # one writer at a time anyway
