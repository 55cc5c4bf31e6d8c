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
    hold_r: str  #: the same, of the row called ``r`` in a join
    skip_locked: str  #: two workers take two runs, instead of one waiting
    clock: str  #: what leases go by, in microseconds since 1970: the same for all that could take a run
    items: str  #: the items of a list that is given as a JSON text, as a subquery; ``{}`` is the parameter


SQLITE = Dialect(
    param=r":\1", mark="?", schema="", hold="", hold_r="", skip_locked="",  # one writer at a time anyway
    clock=":now", items="SELECT value FROM json_each({})",  # all processes are on one machine, and have one clock
)  # fmt: skip
POSTGRES = Dialect(
    param=r"%(\1)s", mark="%s", schema="stepseven.", hold="FOR SHARE", hold_r="FOR SHARE OF r",
    skip_locked="FOR UPDATE SKIP LOCKED",
    clock="CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    items="SELECT json_array_elements_text(CAST({} AS json))",
)  # fmt: skip
