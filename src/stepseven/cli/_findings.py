"""What ``doctor`` looks at: the store, who works on it, and what needs care. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepseven.cli import keep
from stepseven.cli._common import NoStore, Setting, now_us
from stepseven.decide import circuit, sources
from stepseven.decide.retention import DAY_US, DEFAULT_DAYS
from stepseven.layer import Layer
from stepseven.model import Pruned
from stepseven.people.sending import AppriseSender
from stepseven.runtime.retention import keep_us
from stepseven.store._url import hide_password
from stepseven.store.base import Row, Tx
from stepseven.transitions import circuits, orphans, told
from stepseven.transitions.orphans import Ready, Workers

MOST = 1000  # runs whose pruning is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A run that is ready, and that no live worker takes. ``since_us``: since when nobody executes it."""

    run_id: str
    client_id: str
    workflow: str
    status: str
    since_us: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """A worker's row. ``workflows``: what it takes runs of; none: it executes only what it is given."""

    id: str
    host: str
    pid: int
    silent_us: int
    alive: bool
    workflows: list[str]
    zombies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceDown:
    """Something outside that is believed to be down: since when, how often it is looked at, and how many runs wait for it."""

    name: str
    since_us: int
    every_us: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the doctor saw. Sizes in bytes; ``None``: there is no such thing here.

    Attributes:
        why: where the URL comes from, and what it overrides.
        pooled: whether a pooler was seen in front of the database.
        ready, lag_us: runs that a worker could execute now, and for how long the oldest of them has been waiting.
        orphans: those of them that no live worker takes.
        down: what does not answer, and who waits for it.
        undelivered: messages to people that did not go out. nowhere: open questions that nobody was told of.
        delivery: both in words.
        approved_not_done: what a person let through and no run has done. objected: questions of which something came too late.
    """

    url: str
    why: str
    server: str
    pooled: bool | None
    bytes: int
    file_bytes: int | None
    wal_bytes: int | None
    schema: int
    epoch: int
    restored_us: int | None
    clients: int
    runs: int
    live_runs: int
    steps: int
    workers: list[WorkerSeen]
    ready: int
    lag_us: int | None
    open_questions: int
    unsettled_effects: int
    undelivered: int
    nowhere: int
    delivery: str
    approved_not_done: int
    objected: int
    orphans: list[Orphan]
    down: list[ResourceDown]
    artifact_bytes: int
    oldest_run_us: int | None
    retention: str
    would_free: Pruned


async def look(setting: Setting, layer: Layer) -> Findings:
    """Look at everything, in one snapshot (but for files and sizes)."""
    now = now_us()

    def unit(tx: Tx) -> tuple[list[Row], Workers, list[Ready], list[ResourceDown]]:
        rows = [tx.one(getattr(tx.sql, name), {}) for name in ("store", "sizes", "server", "untold", "promised")]
        if (found := [row for row in rows if row is not None]) != rows:
            raise NoStore(setting.url)
        workers = orphans.workers(tx, now, layer.services.worker.reported_dead(tx))
        return found, workers, orphans.ready(tx, now, workers), _down(tx)

    (head, sizes, server, untold, promised), workers, ready, down = await layer.store.read(unit)
    kept_us, path = keep_us(), setting.path
    age_us = DEFAULT_DAYS * DAY_US if kept_us is None else kept_us
    pooled: bool | None = getattr(layer.store, "pooled", None)
    return Findings(
        url=hide_password(setting.url), why=setting.why,
        server=f"{'SQLite' if pooled is None else 'PostgreSQL'} {server['version']}", pooled=pooled, bytes=server["bytes"],
        file_bytes=_bytes(path) if path else None, wal_bytes=_bytes(Path(f"{path}-wal")) if path else None,
        schema=head["schema_no"], epoch=head["epoch"], restored_us=head["restored_us"], clients=sizes["clients"],
        runs=sizes["runs"], live_runs=sizes["live"], steps=sizes["steps"], workers=_workers(workers), ready=len(ready),
        lag_us=max((now - one.since_us for one in ready), default=None), open_questions=sizes["open_questions"],
        unsettled_effects=sizes["unsettled"], undelivered=sizes["undelivered"], nowhere=untold["nowhere"],
        delivery=_delivery(untold), approved_not_done=promised["approved_not_done"], objected=promised["objected"],
        orphans=orphaned(ready), down=down,
        artifact_bytes=_folder_bytes(layer.services.artifacts.folder), oldest_run_us=sizes["oldest_run_us"],
        retention="off" if kept_us is None else f"{kept_us / DAY_US:g} days",
        would_free=keep.look(layer, now - age_us, MOST),
    )  # fmt: skip


def _down(tx: Tx) -> list[ResourceDown]:
    return [
        ResourceDown(
            name=stands.name, since_us=stands.opened_us or 0, every_us=circuit.every_us(stands.looks),
            waiting=circuits.waiting(tx, stands.name),
        )
        for stands in circuits.down(tx).values()
    ]  # fmt: skip


async def all_orphans(layer: Layer) -> list[Orphan]:
    """The runs that are ready, and that no live worker takes; oldest first."""
    now = now_us()

    def unit(tx: Tx) -> list[Ready]:
        return orphans.ready(tx, now, orphans.workers(tx, now, layer.services.worker.reported_dead(tx)))

    return orphaned(await layer.store.read(unit))


def orphaned(ready: list[Ready]) -> list[Orphan]:
    """Those of them that are."""
    return [
        Orphan(
            run_id=one.run_id, client_id=one.client_id, workflow=one.workflow, status=one.status, since_us=one.since_us,
            reason=one.orphaned,
        )
        for one in ready
        if one.orphaned is not None
    ]  # fmt: skip


def _workers(found: Workers) -> list[WorkerSeen]:
    return [
        WorkerSeen(
            id=id_, host=row["host"], pid=row["pid"], silent_us=row["silent_us"], alive=not found.offers[id_].gone,
            workflows=sorted(sources.parse(row["modules"])), zombies=row["zombies"],
        )
        for id_, row in found.rows.items()
    ]  # fmt: skip


def _delivery(untold: Row) -> str:
    missing = AppriseSender().missing() if untold["persons"] else None
    return told.summary(untold) + (f"; {missing}" if missing else "")


def _folder_bytes(folder: Path | None) -> int:
    """What lies in the artifact folder."""
    if folder is None or not folder.is_dir():
        return 0
    return sum(_bytes(path) or 0 for path in folder.rglob("*") if path.is_file())


def _bytes(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
