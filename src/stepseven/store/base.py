"""What a store offers: units of work in a transaction, grouped and made durable as asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from stepseven.store.statements import Statements

T = TypeVar("T")
Row = Mapping[str, Any]
Params = Mapping[str, Any]


class Tx(Protocol):
    """One open transaction. Statements come from ``sql``."""

    sql: Statements

    def one(self, statement: str, params: Params) -> Row | None:
        """First row, or ``None``."""
        ...

    def all(self, statement: str, params: Params) -> list[Row]:
        """Every row."""
        ...

    def run(self, statement: str, params: Params) -> int:
        """Execute; the number of rows written."""
        ...


class Store(Protocol):
    """A database that keeps runs. Units may be grouped into one commit, each in a savepoint of its own."""

    url: str
    sql: Statements

    async def write(self, unit: Callable[[Tx], T], *, durable: bool) -> T:
        """Run *unit* in a transaction and commit it; *durable*: return only when the disk has it (and all before it)."""
        ...

    async def read(self, unit: Callable[[Tx], T]) -> T:
        """Run *unit* on a consistent snapshot."""
        ...

    def read_now(self, unit: Callable[[Tx], T]) -> T:
        """The same as ``read``, blocking."""
        ...

    def write_now(self, unit: Callable[[Tx], T], *, durable: bool) -> T:
        """The same as ``write``, blocking, from any thread."""
        ...

    def append_now(self, params: Params, *, durable: bool) -> bool | None:
        """Try to append one record at once: whether it was written, or ``None`` when it has to queue (use ``write``)."""
        ...

    def enter(self) -> None:
        """One more step call is under way: tells the writer whether waiting for company is worth it."""
        ...

    def leave(self) -> None:
        """The counterpart of ``enter``."""
        ...

    def close(self) -> None:
        """Flush and close. Idempotent."""
        ...
