# ruff: noqa: S101, PLR2004 - a suite of tests: assert is the point, the number is the expectation
"""What every store has to do.

A store passes if a subclass that makes it does::

    class TestMine(StoreConformance):
        def make(self, folder: Path) -> Store:
            return MyStore(folder / "state")

Each test's docstring is the claim it proves. Needs pytest.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepseven.errors import StepsevenError, StoreUnavailable, Superseded
from stepseven.store.base import Later, Row, Store, Tx
from stepseven.store.codec import free_text
from stepseven.store.statements import SEQ_BITS
from stepseven.transitions import runs, steps
from stepseven.transitions.runs import Admission
from stepseven.transitions.state import Hold, Record, load, steps_range

NOW_US = 1_767_603_600_000_000
CLIENT = "acme"


def hold_run(store: Store, run_id: str = "r1", owner: str = "w_1") -> Hold:
    """Admit a run and take it, as a worker does."""

    def unit(tx: Tx) -> Hold:
        admission = Admission(run_id=run_id, client_id=CLIENT, workflow="w", source_digest=None, goal=None, inputs="{}")
        taken = runs.take(
            tx, runs.admit(tx, admission, NOW_US), owner, source_digest=None, now_us=NOW_US, proven_dead=frozenset()
        )
        assert taken.hold is not None
        return taken.hold

    return store.write_now(unit, durable=True, client=CLIENT)


def record(hold: Hold, seq: int, **values: Any) -> Record:
    """A read step's record, the *seq*-th of its run."""
    plain = {"name": "look", "key": f"k{seq}", "result": f'"{seq}"', "started_us": NOW_US, "ended_us": NOW_US, **values}
    return Record(id=hold.run_no << SEQ_BITS | seq, branch="", generation=1, state="done", **plain)


def add_fact(value: str, key: str = "n") -> Callable[[Tx], int]:
    """A unit that writes a fact; it returns the version the store gave it."""

    def unit(tx: Tx) -> int:
        params = {
            "client_id": CLIENT, "key": key, "value": value, "source": None, "run_id": None, "by": None, "now": NOW_US,
            "valid_until_us": None,
        }  # fmt: skip
        row = tx.one(tx.sql.insert_fact, params)
        assert row is not None
        return int(row["version"])

    return unit


def facts(store: Store, key: str = "n") -> list[str]:
    """The values of a fact, oldest first."""
    rows = store.read_now(lambda tx: tx.all(tx.sql.fact_history, {"client_id": CLIENT, "key": key}))
    return [row["value"] for row in rows]


def _steps_of(tx: Tx, *, run_no: int) -> list[Row]:
    return tx.all(tx.sql.steps, steps_range(run_no))


def append(store: Store, hold: Hold, made: Record, *, durable: bool = False) -> bool:
    """Append a record: at once where the store can, else through its queue, as a step does."""
    statement, values = made.insert(store.sql, hold.values())
    written = store.append_now(statement, values, durable=durable)
    if written is not None:
        return written

    async def queued() -> bool:
        return await store.append(statement, values, durable=durable)

    return asyncio.run(queued())


class StoreConformance(ABC):
    """The suite. ``make`` opens the store under test in an empty folder."""

    @abstractmethod
    def make(self, folder: Path) -> Store:
        """Open the store."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """The store under test, with one client in it."""
        store = self.make(tmp_path)
        store.write_now(lambda tx: tx.run(tx.sql.insert_client, {"id": CLIENT, "now": NOW_US}), durable=True, client=CLIENT)
        yield store
        store.close()

    @pytest.mark.parametrize("durable", [False, True])
    def test_unit_is_atomic(self, store: Store, *, durable: bool) -> None:
        """A unit that raises after it wrote leaves nothing, and what it raised reaches its caller unchanged."""

        def breaks(tx: Tx) -> None:
            add_fact("half")(tx)
            raise LookupError("in the middle")

        async def through_the_queue() -> None:
            await store.write(breaks, durable=durable, client=CLIENT)

        with pytest.raises(LookupError, match="in the middle"):
            asyncio.run(through_the_queue())
        with pytest.raises(LookupError, match="in the middle"):
            store.write_now(breaks, durable=durable, client=CLIENT)
        assert facts(store) == []

    @pytest.mark.parametrize("durable", [False, True])
    def test_failing_unit_hurts_nobody_else(self, store: Store, *, durable: bool) -> None:
        """Of units that are committed together, those that fail (in Python or in the database) leave nothing, the others all."""

        def unit(i: int) -> Callable[[Tx], int]:
            def work(tx: Tx) -> int:
                version = add_fact(f"{i}")(tx)
                if i % 5 == 1:
                    raise ValueError(i)
                if i % 5 == 2:
                    tx.run(tx.sql.insert_run, {**_RUN, "client_id": "nobody"})  # breaks the foreign key
                if i % 5 == 3:
                    raise Superseded("r", "a signal, not an Exception")
                return version

            return work

        async def together() -> list[Any]:
            store.enter()
            store.enter()
            try:
                return await asyncio.gather(
                    *(store.write(unit(i), durable=durable, client=CLIENT) for i in range(50)), return_exceptions=True
                )
            finally:
                store.leave()
                store.leave()

        results = asyncio.run(together())
        kept = [i for i in range(50) if i % 5 not in (1, 2, 3)]
        assert facts(store) == [str(i) for i in kept]
        assert [type(r) for r in results[1:5]] == [ValueError, StoreUnavailable, Superseded, int]

    def test_commit_order_is_event_order(self, store: Store) -> None:
        """What is handed over first is committed first, also when hundreds wait and durable and free ones are mixed."""

        async def together() -> list[int]:
            writes = [store.write(add_fact(str(i)), durable=i % 7 == 0, client=CLIENT) for i in range(300)]
            return await asyncio.gather(*writes)

        assert asyncio.run(together()) == list(range(1, 301))
        assert facts(store) == [str(i) for i in range(300)]

    def test_no_error_path_keeps_the_lock(self, store: Store) -> None:
        """After each kind of failure the next write goes through at once: no transaction stays open."""

        def fails_in_python(_tx: Tx) -> None:
            raise KeyError("x")

        def fails_in_the_database(tx: Tx) -> None:
            tx.run(tx.sql.insert_run, {**_RUN, "client_id": "nobody"})

        def wrong_parameters(tx: Tx) -> None:
            tx.run(tx.sql.client, {})

        def signal(_tx: Tx) -> None:
            raise Superseded("r", "taken")

        async def through_the_queue(unit: Callable[[Tx], None]) -> None:
            await store.write(unit, durable=True, client=CLIENT)

        for n, unit in enumerate((fails_in_python, fails_in_the_database, wrong_parameters, signal)):
            with pytest.raises((KeyError, StepsevenError, Superseded)):
                store.write_now(unit, durable=False, client=CLIENT)
            with pytest.raises((KeyError, StepsevenError, Superseded)):
                asyncio.run(through_the_queue(unit))
            with pytest.raises((KeyError, StepsevenError, Superseded)):
                store.read_now(unit)
            assert store.write_now(add_fact("after"), durable=True, client=CLIENT) == n + 1

    def test_append_carries_the_fence(self, store: Store) -> None:
        """A record is written under the current hold only, once; a refused one leaves nothing."""
        hold = hold_run(store)
        made = record(hold, 1)
        assert append(store, hold, made) is True
        assert append(store, hold, made) is False
        taken = store.write_now(
            lambda tx: runs.take(
                tx, runs.known(tx, "r1"), "w_2", source_digest=None, now_us=NOW_US, proven_dead=frozenset({"w_1"})
            ),
            durable=True,
            client=CLIENT,
        )
        assert taken.hold is not None
        assert append(store, hold, record(hold, 2)) is False
        assert append(store, taken.hold, record(hold, 3, usd=5, approach="other")) is True
        with pytest.raises(Superseded, match="w_2"):
            store.write_now(lambda tx: steps.append(tx, hold, record(hold, 4), now_us=NOW_US), durable=False, client=CLIENT)
        loaded = store.read_now(lambda tx: load(tx, hold.run_no))
        assert loaded is not None
        assert [(r.seq, r.usd, r.approach) for r in loaded.records.values()] == [(1, None, None), (3, 5, "other")]

    @pytest.mark.parametrize("durable", [False, True])
    def test_queued_appends_are_answered_one_by_one(self, store: Store, *, durable: bool) -> None:
        """A hundred runs appending at once, some of them superseded: each learns whether its own record was written."""
        holds = [hold_run(store, f"r{i}") for i in range(100)]
        gone = {i for i in range(100) if i % 10 == 3}

        async def one(i: int) -> bool:
            hold = holds[i]
            fence = hold.values() if i not in gone else (hold.run_no, hold.fence - 1, hold.owner)
            return await store.append(*record(hold, 1).insert(store.sql, fence), durable=durable)

        async def together() -> list[bool]:
            return await asyncio.gather(*(one(i) for i in range(100)))

        assert asyncio.run(together()) == [i not in gone for i in range(100)]
        for i, hold in enumerate(holds):
            rows = store.read_now(partial(_steps_of, run_no=hold.run_no))
            assert len(rows) == (0 if i in gone else 1)

    def test_what_is_for_later_is_executed_in_its_turn(self, store: Store) -> None:
        """A statement left for later sees what came before it, is seen by what comes after, and is counted after the commit."""
        hold = hold_run(store)
        first, second = (record(hold, seq).insert(store.sql, hold.values()) for seq in (1, 2))

        def unit(tx: Tx) -> tuple[list[Later], int]:
            sent = [tx.later(*first), tx.later(*first), tx.later(*second)]
            return sent, len(_steps_of(tx, run_no=hold.run_no))

        async def last() -> list[Later]:
            def left(seq: int) -> Callable[[Tx], Later]:
                statement, values = record(hold, seq).insert(store.sql, hold.values())

                def unit(tx: Tx) -> Later:
                    return tx.later(statement, values)

                return unit

            told = (store.write(left(seq), durable=True, client=CLIENT, asks=False) for seq in (3, 4))
            return list(await asyncio.gather(*told))

        sent, seen = store.write_now(unit, durable=True, client=CLIENT)
        assert ([each.rows_written() for each in sent], seen) == ([1, 0, 1], 2)
        assert [each.rows_written() for each in asyncio.run(last())] == [1, 1]
        assert len(store.read_now(lambda tx: _steps_of(tx, run_no=hold.run_no))) == 4

    def test_cancelled_caller_is_written_all_the_same(self, store: Store) -> None:
        """Who gives up waiting for a queued unit does not undo it: the queue after it is intact, too."""
        started, go_on = threading.Event(), threading.Event()

        def slow(tx: Tx) -> int:
            started.set()
            assert go_on.wait(30)
            return add_fact("slow")(tx)

        async def cancel_it() -> int:
            busy = threading.Thread(target=store.write_now, args=(slow,), kwargs={"durable": False, "client": CLIENT})
            busy.start()
            await asyncio.to_thread(started.wait, 30)
            task = asyncio.create_task(store.write(add_fact("cancelled"), durable=False, client=CLIENT))
            await asyncio.sleep(0)
            after = asyncio.create_task(store.write(add_fact("after"), durable=False, client=CLIENT))
            await asyncio.sleep(0)
            task.cancel()
            go_on.set()
            version = await after
            await asyncio.wait({task})
            assert task.cancelled()
            busy.join()
            return version

        assert asyncio.run(cancel_it()) == 3
        assert facts(store) == ["slow", "cancelled", "after"]

    def test_threads_write_beside_the_loop(self, store: Store) -> None:
        """Eight threads and a loop write at once: everything is there, and each version was given once."""

        def write_some(n: int) -> None:
            for i in range(25):
                store.write_now(add_fact(f"t{n}.{i}"), durable=i % 5 == 0, client=CLIENT)

        async def beside() -> None:
            threads = [threading.Thread(target=write_some, args=(n,)) for n in range(8)]
            for thread in threads:
                thread.start()
            await asyncio.gather(*(store.write(add_fact(f"loop.{i}"), durable=i % 5 == 0, client=CLIENT) for i in range(100)))
            for thread in threads:
                await asyncio.to_thread(thread.join)

        asyncio.run(beside())
        kept = facts(store)
        assert len(kept) == len(set(kept)) == 300

    def test_closing_leaves_nobody_waiting(self, store: Store) -> None:
        """A store that is closed while a loop writes: each write is written, or says that it was closed; none waits for ever."""

        async def write_on() -> tuple[list[int], int]:
            written: list[int] = []
            refused = 0
            closer = threading.Timer(0.02, store.close)
            closer.start()
            while not refused:
                batch = [store.write(add_fact("on"), durable=False, client=CLIENT) for _ in range(20)]
                for end in await asyncio.wait_for(asyncio.gather(*batch, return_exceptions=True), 60):
                    written += [end] if isinstance(end, int) else []
                    refused += isinstance(end, StoreUnavailable)
            await asyncio.to_thread(closer.join)
            return written, refused

        written, refused = asyncio.run(write_on())
        assert written == list(range(1, len(written) + 1))
        assert refused > 0

    @pytest.mark.parametrize("text", ["a\0b", "\ud83d", "é🙂\u2028", "x" * 100_000, "'; DROP TABLE run; --", ""])
    def test_text_comes_back(self, store: Store, text: str) -> None:
        """Whatever a person or a log says is stored (escaped where it must be) and comes back the same on every store."""
        shown = free_text(text, 200_000)
        store.write_now(add_fact(shown, "text"), durable=False, client=CLIENT)
        assert facts(store, "text") == [shown]

    def test_numbers_keep_their_size(self, store: Store) -> None:
        """64-bit integers (microseconds, micro-USD) come back as they went in."""
        hold = hold_run(store)
        big = (1 << 63) - 1
        assert append(store, hold, record(hold, 1, usd=big, tokens=-1, started_us=big))
        rows = store.read_now(lambda tx: tx.all(tx.sql.steps, steps_range(hold.run_no)))
        assert [(row["usd"], row["tokens"], row["started_us"]) for row in rows] == [(big, -1, big)]

    def test_a_reader_of_its_own_sees_what_is_committed(self, store: Store) -> None:
        """Whoever reads for long has a reader that nobody waits for; interrupted or closed twice it hurts nobody."""
        reader = store.reader()
        hold_run(store)
        reader.interrupt()
        assert reader.read_now(lambda tx: tx.one(tx.sql.run_by_id, {"id": "r1"})) is not None
        reader.close()
        reader.close()
        assert store.read_now(lambda tx: tx.one(tx.sql.run_by_id, {"id": "r1"})) is not None

    def test_closing_is_final_and_may_be_repeated(self, store: Store) -> None:
        """A closed store says that it is closed, in every entry; closing it again does nothing."""
        hold = hold_run(store)
        store.close()
        store.close()

        async def through_the_queue() -> None:
            await store.write(add_fact("late"), durable=False, client=CLIENT)

        for late in (
            lambda: store.write_now(add_fact("late"), durable=False, client=CLIENT),
            lambda: store.read_now(lambda tx: tx.one(tx.sql.store, {})),
            lambda: append(store, hold, record(hold, 1)),
            lambda: asyncio.run(through_the_queue()),
        ):
            with pytest.raises(StoreUnavailable):
                late()


_RUN = {
    "id": "r?", "client_id": CLIENT, "workflow": "w", "source_digest": None, "goal": None, "inputs": "{}", "root_no": None,
    "parent_no": None, "now": NOW_US,
}  # fmt: skip

__all__ = ["StoreConformance", "hold_run", "record"]
