"""What this process knows of resources that are down: from its heartbeat, and at once from its own failures.

Nothing of this decides anything: who comes to a step of such a resource asks the store. It is here so that nobody else has to.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepseven.decide.circuit import Circuit

MOST = 10_000  # places that are remembered; beyond that they are found out anew


class Down:
    """One process's knowledge. Its dicts are replaced and never changed, so that any thread may read them.

    Attributes:
        open: the resources that are believed to be down, by name.
        held: run number and resource of each trial that is at work in this process.
        where: workflow, step and approach → the resource that it failed at last in this process.
    """

    def __init__(self) -> None:
        self.open: Mapping[str, Circuit] = {}
        self.held: set[tuple[int, str]] = set()
        self.where: dict[tuple[str, str, str | None], str] = {}

    def heard(self, down: Mapping[str, Circuit]) -> None:
        """This is all that is down."""
        self.open = dict(down)

    def note(self, stands: Circuit) -> None:
        """How one resource stands, as the store has just told."""
        known = self.open.get(stands.name)
        if known is not None and not stands.open and (stands.next_us or 0) < (known.opened_us or 0):
            return  # of a transaction before the one that opened it, whose end was heard of later
        others = {name: c for name, c in self.open.items() if name != stands.name}
        self.open = {**others, stands.name: stands} if stands.open else others

    def met(self, workflow: str, step: str, approach: str | None, resource: str) -> None:
        """A step has failed at a resource."""
        if len(self.where) >= MOST:
            self.where.clear()
        self.where[workflow, step, approach] = resource
