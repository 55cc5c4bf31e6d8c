"""Workers: what several of them gain, what one costs that has nothing to do, and how soon one takes over from another."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

from benchmarks import server
from benchmarks.children import Child
from benchmarks.measure import Goal, Line, Scale, rounds
from benchmarks.rows_postgres import LAZY
from benchmarks.samples import held, lingers, parked, reads
from stepseven import Layer

SQLITE, POSTGRES = "SQLite", "Postgres"
OS = "OS at once, disk in 0.2 s"
LOOK_S = 0.02


class Shelf:
    """A fresh store, and other eyes for it: one connection, so that looking costs next to nothing."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._eyes: Any = None

    def rows(self, sql: str) -> list[Any]:
        """What a statement gives, committed."""
        if self._eyes is None and self.url.startswith("sqlite"):
            self._eyes = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=20, isolation_level=None)
        elif self._eyes is None:
            import psycopg

            self._eyes = psycopg.connect(self.url, autocommit=True)
            self._eyes.execute("SET search_path TO stepseven")
        cursor = self._eyes.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []

    def close(self) -> None:
        if self._eyes is not None:
            self._eyes.close()

    def columns(self, table: str, but: str) -> str:
        """The names of a table's columns."""
        if self.url.startswith("sqlite"):
            names = [row[1] for row in self.rows(f"PRAGMA table_info({table})")]
        else:
            names = [row[0] for row in self.rows(
                f"SELECT column_name FROM information_schema.columns WHERE table_schema = 'stepseven' AND table_name = '{table}'"
            )]  # fmt: skip
        return ", ".join(name for name in names if name not in but.split())


@contextmanager
def shelf(scale: Scale, kind: str, name: str) -> Iterator[Shelf]:
    url = f"sqlite:///{scale.folder}/{name}.db" if kind == SQLITE else server.database()
    with closing(Shelf(url)) as made:
        yield made
    if kind == POSTGRES:
        server.drop(url)


def until(seen: Callable[[], Any], wait_s: float = 120) -> float:
    """Wait for what can be seen; the moment it was."""
    give_up = perf_counter() + wait_s
    while not seen():
        if perf_counter() > give_up:
            raise TimeoutError("it never came")
        sleep(LOOK_S)
    return perf_counter()


@contextmanager
def crew(url: str, count: int, concurrency: int) -> Iterator[list[Child]]:
    """Workers that are ready to go."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child("worker", url, concurrency)) for _ in range(count)]
        for child in children:
            child.hear()
        yield children


async def _finish(scale: Scale, workers: int, runs: int, steps: int, busy: list[float]) -> float:
    """Seconds from the first step to the last end of *runs* queued runs; *busy*: how many cores they and the server used."""
    with shelf(scale, POSTGRES, "crew") as store:
        async with Layer(store.url) as layer:
            for k in range(runs):
                await layer.start(reads(n=steps), client=f"c{k % 30}")
        with crew(store.url, workers, 25) as children:
            pids = [child.pid for child in children]
            before, began = _server_seconds(store) + _seconds(pids), perf_counter()
            for child in children:
                child.go()
            ended = until(lambda: store.rows("SELECT count(*) FROM run WHERE ended_us IS NULL")[0][0] == 0)
            busy.append((_server_seconds(store) + _seconds(pids) - before) / (ended - began))
        ((first, last),) = store.rows("SELECT (SELECT min(started_us) FROM step), (SELECT max(ended_us) FROM run)")
        return float(last - first) / 1e6


async def many(scale: Scale) -> list[Line]:
    """100 queued runs, by one worker and by four."""
    runs, steps = 100, scale.pick(50, 10)
    alone: list[float] = []
    together: list[float] = []
    took = await rounds(
        {
            "one": lambda: _finish(scale, 1, runs, steps, alone),
            "four": lambda: _finish(scale, 4, runs, steps, together),
        },
        count=scale.pick(5, 2), at_most_s=scale.pick(60, 20),
    )  # fmt: skip
    one, four = (runs / took.median(name) for name in ("one", "four"))
    return [
        Line(
            row="workers", what=f"4 workers × 25 runs vs 1 worker, Postgres, {runs} runs of {steps} steps", unit="×",
            value=took.ratio("one", "four"), goal=Goal(first=1.6, final=1.8, more=True), durability=LAZY,
            floor=f"{one:.0f} → {four:.0f} runs/s; with the server {median(alone):.1f} → {median(together):.1f} cores busy",
            more={"took": took.took, "busy": {"one": alone, "four": together}},
        )
    ]  # fmt: skip


async def takes(scale: Scale) -> list[Line]:
    """How fast workers take what is queued: until the code of the last run has begun."""
    runs, rates = scale.pick(400, 100), []
    for number in range(scale.pick(3, 1)):
        with shelf(scale, POSTGRES, f"takes{number}") as store:
            async with Layer(store.url) as layer:
                for k in range(runs):
                    await layer.start(held(), client=f"c{k % 30}")
            with crew(store.url, 4, runs) as children:
                began = perf_counter()
                for child in children:
                    child.go()
                counts = "SELECT count(*), sum(CASE WHEN status = 'running' THEN 1 ELSE 0 END) FROM run"
                ended = until(lambda store=store, counts=counts: len(set(store.rows(counts)[0])) == 1)
                rates.append(runs / (ended - began))
    return [
        Line(
            row="takes", what="runs taken per second, 4 workers, Postgres", value=median(rates), unit="/s",
            goal=Goal(first=300, final=500, more=True), durability="server's disk",
            floor=f"{runs} queued runs, from the workers' start; {min(rates):.0f} to {max(rates):.0f}",
        )
    ]  # fmt: skip


# -- nothing to do ------------------------------------------------------------------------------------------------------


async def _park(store: Shelf, count: int) -> None:
    """One run that asks and is put away; and copies of its rows, as if so many had."""
    async with Layer(store.url) as layer:
        await layer.run(parked(number=1), client="c", run_id="p")
    runs, questions = store.columns("run", "no id"), store.columns("question", "id run_no")
    numbers = f"WITH RECURSIVE many (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM many WHERE n < {count - 1})"
    store.rows(f"INSERT INTO run (id, {runs}) {numbers} SELECT 'p' || n, {runs} FROM run, many WHERE id = 'p'")
    store.rows(
        f"INSERT INTO question (id, run_no, {questions}) "
        f"SELECT q.id || r.id, r.no, {', '.join('q.' + name for name in questions.split(', '))} "
        "FROM question AS q, run AS r WHERE r.id <> 'p'"
    )


def _server_seconds(store: Shelf) -> float:
    """Seconds of processor that the database's server processes for this store have used, where the kernel tells."""
    if store.url.startswith("sqlite"):
        return 0.0
    pids = store.rows("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
    return _seconds([pid for (pid,) in pids])


def _seconds(pids: list[int]) -> float:
    """Seconds of processor that these processes have used, where the kernel tells."""
    ticks = 0
    for pid in pids:
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[11:13]))
        except OSError:
            return 0.0
    return ticks / 100


async def idle(scale: Scale) -> list[Line]:
    """A worker with 10,000 parked runs in its database, and one with none."""
    count, seconds, lines = scale.pick(10_000, 2000), scale.pick(15, 6), []
    for kind in (SQLITE, POSTGRES):
        with shelf(scale, kind, "full") as full, shelf(scale, kind, "empty") as empty:
            await _park(full, count)
            await _park(empty, 1)
            with Child("idle_worker", full.url, seconds) as one, Child("idle_worker", empty.url, seconds) as other:
                await asyncio.sleep(5)
                before, began = _server_seconds(full), perf_counter()
                await asyncio.sleep(seconds - 3)
                share = (_server_seconds(full) - before) / (perf_counter() - began)
                said, none = one.hear(), other.hear()
        where = f"idle worker, {count:,} parked runs, {kind}"
        lines += [
            Line(
                row="idle-worker", what=f"{where}: CPU", value=said["cpu"] * 100, unit="%", goal=Goal(first=1, final=1),
                floor=f"of a core; without any {none['cpu'] * 100:.2f} %; the server for it {share * 100:.2f} %",
                durability=OS if kind == SQLITE else LAZY,
            ),
            Line(
                row="idle-worker", what=f"{where}: memory each", value=max(0, said["resident"] - none["resident"]) / count,
                unit="B", goal=Goal(first=1024, final=1024), floor="more than a worker without any holds",
                durability=OS if kind == SQLITE else LAZY,
            ),
        ]  # fmt: skip
    return lines


# -- taking over --------------------------------------------------------------------------------------------------------


async def _over(store: Shelf, run_id: str, end: Callable[[Child], object]) -> float:
    """Seconds from the end of the worker that has a run to the next step of that run in another worker."""
    async with Layer(store.url) as layer:
        await layer.start(lingers(n=100), client="c", run_id=run_id)
    with Child("worker", store.url, 8, "linger") as first, Child("worker", store.url, 8) as second:
        for child in (first, second):
            child.hear()
        first.go()
        first.hear()
        second.go()
        until(lambda: store.rows("SELECT count(*) FROM worker WHERE modules IS NOT NULL")[0][0] >= 2)
        began = perf_counter()
        end(first)
        taken = second.hear()["at"] - began
        second.stop()
        second.hear()
        first.kill()
        return taken


async def takeover(scale: Scale) -> list[Line]:
    """Default settings: a worker is stopped, is killed, and dies on another host, where nobody can look for its process."""
    lines = []

    def elsewhere(store: Shelf, child: Child) -> None:
        store.rows(f"UPDATE worker SET host = 'elsewhere' WHERE pid = {child.pid}")
        child.kill()

    for kind in (SQLITE, POSTGRES):
        with shelf(scale, kind, "over") as store:
            ways: tuple[tuple[str, Callable[[Child], object], int, Goal], ...] = (
                ("clean stop", Child.stop, 3, Goal(first=1, final=1)),
                ("kill -9, same host", Child.kill, 3, Goal(first=1, final=1)),
                ("death on another host", lambda child: elsewhere(store, child), 1, Goal(first=17, final=12)),
            )
            for what, end, times, goal in ways:
                seconds = [await _over(store, f"{what[:5]}{k}", end) for k in range(scale.pick(times, 1))]
                lines.append(
                    Line(
                        row="takeovers", what=f"takeover by a worker, {kind}, {what}", value=max(seconds), unit="s", goal=goal,
                        floor=f"longest of {len(seconds)}, to the next step of 100; median {median(seconds):.2f} s",
                        durability=OS if kind == SQLITE else LAZY,
                    )
                )  # fmt: skip
    return lines
