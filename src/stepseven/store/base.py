"""What a store offers: units of work in a transaction, grouped and made durable as asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from stepseven.store.statements import Statements

T = TypeVar("T")
Row = Mapping[str, Any]
Params = Mapping[str, Any]
Values = Mapping[str, Any] | Sequence[Any]  #: by name, or in the statement's order (see ``Record.insert``)


class Later(Protocol):
    """A statement that is executed with the commit at the latest."""

    def rows_written(self) -> int:
        """How many rows it wrote, once its transaction is committed."""
        ...


class Tx(Protocol):
    """One open transaction. Statements come from ``sql``."""

    sql: Statements

    def one(self, statement: str, params: Values) -> Row | None:
        """First row, or ``None``."""
        ...

    def all(self, statement: str, params: Values) -> list[Row]:
        """Every row."""
        ...

    def values(self, statement: str, params: Values) -> Sequence[Sequence[Any]]:
        """Every row as its bare values, in the order of the columns: for very many."""
        ...

    def run(self, statement: str, params: Values) -> int:
        """Execute; the number of rows written."""
        ...

    def later(self, statement: str, params: Values) -> Later:
        """Execute in its turn, with whatever is executed next, or with the commit: where a trip to the server costs, one less.

        For statements that decide for themselves whether they write, and by which the commit does no harm whatever they find.
        A unit that asks for nothing else may be executed again although it was committed: its statements recognise that.
        """
        ...


class Reader(Protocol):
    """A way to read that holds nobody up, for one thread at a time."""

    def read_now(self, unit: Callable[[Tx], T]) -> T:
        """Run *unit* on a consistent snapshot."""
        ...

    def interrupt(self) -> None:
        """Break off what another thread is just reading here: that raises ``StoreUnavailable``. Nothing is read: no effect."""
        ...

    def close(self) -> None:
        """Give it back. Idempotent."""
        ...


Whose = str | tuple[str, ...] | None  #: whose affairs a unit reads and changes: one client's, several clients', nobody's


class Store(Protocol):
    """A database that keeps runs. Units may be grouped into one commit, each in a savepoint of its own.

    What a unit reads stays so until it is committed, as far as the *client* it names is concerned: units of one client are
    executed one after the other, in whatever process. A unit that names none counts on single rows only, compared and set. A
    unit may be executed again from its beginning, when it was certainly not committed: it has no effect but its statements.
    """

    url: str
    sql: Statements

    async def write(self, unit: Callable[[Tx], T], *, durable: bool, client: Whose, asks: bool = True) -> T:
        """Run *unit* in a transaction and commit it; *durable*: return only when the disk has it (and all before it).

        ``asks=False``: the unit uses nothing but ``later``. Where the server is far away everything then goes in one trip.
        """
        ...

    async def read(self, unit: Callable[[Tx], T]) -> T:
        """Run *unit* on a consistent snapshot."""
        ...

    def read_now(self, unit: Callable[[Tx], T]) -> T:
        """The same as ``read``, blocking."""
        ...

    def reader(self) -> Reader:
        """A reader of its own, for whoever reads for long: who reads or writes otherwise does not wait for it. Close it."""
        ...

    def write_now(self, unit: Callable[[Tx], T], *, durable: bool, client: Whose) -> T:
        """The same as ``write``, blocking, from any thread."""
        ...

    def erase(self, unit: Callable[[Tx], T], *, client: Whose) -> T:
        """``write_now``, durable; what it deletes is overwritten where it stood, as far as the database can."""
        ...

    def compact(self) -> int:
        """Give unused space back to the disk, with every older copy of what was deleted; the bytes given back. Others wait.

        Raises:
            StoreUnavailable: somebody else uses it, or the disk has no room; nothing is lost, try again later.
        """
        ...

    def append_now(self, statement: str, values: Values, *, durable: bool) -> bool | None:
        """Try to execute one inserting statement at once: whether it wrote a row, or ``None``: it has to queue (``append``)."""
        ...

    async def append(self, statement: str, values: Values, *, durable: bool) -> bool:
        """Execute one inserting statement, grouped with whatever else waits: whether it wrote a row.

        The same as a ``write`` of that statement, without a savepoint of its own: a statement that fails undoes itself.
        """
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
