"""``doctor`` and ``migrate``: which store this is, and whether all is well with it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepseven.cli import keep
from stepseven.cli._common import NoStore, Setting, command, now_us, out, print_json, row, wrapped
from stepseven.cli._words import age, count, size
from stepseven.decide import _phrases as say
from stepseven.decide.retention import DAY_US, DEFAULT_DAYS
from stepseven.layer import Layer, hide_password, open_store
from stepseven.model import Pruned, RunStatus
from stepseven.runtime.retention import keep_us
from stepseven.store.base import Row, Tx
from stepseven.transitions.runs import LEASE_US, is_dead

_UNDER_WAY = (RunStatus.RUNNING, RunStatus.CANCELLING, RunStatus.FAILING)
MOST = 1000  # runs of a status that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A run that nobody executes although it is under way."""

    run_id: str
    status: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the doctor saw. Sizes in bytes; ``None``: there is no such file."""

    url: str
    why: str
    file_bytes: int | None
    wal_bytes: int | None
    schema: int
    epoch: int
    clients: int
    runs: int
    steps: int
    ready: int
    open_questions: int
    unsettled_effects: int
    orphans: list[Orphan]
    artifact_bytes: int
    oldest_run_us: int | None
    retention: str
    would_free: Pruned


async def doctor(setting: Setting) -> None:
    """Which store is in use and why, how big it is, and what needs care. Changes nothing."""
    if setting.path is not None and not setting.path.exists():
        if not setting.as_json:
            _rows([("store", hide_password(setting.url)), ("chosen by", setting.why)])
        raise NoStore(setting.url)
    async with setting.layer() as layer:
        found = await _look(setting, layer)
    if setting.as_json:
        print_json(asdict(found))
        return
    _rows(
        [
            ("store", found.url),
            ("chosen by", found.why),
            ("schema", f"{found.schema}, epoch {found.epoch}"),
            ("file", f"{size(found.file_bytes or 0)}, log {size(found.wal_bytes or 0)}"),
            ("artifacts", size(found.artifact_bytes)),
            ("holds", " · ".join((count(found.clients, "client"), count(found.runs, "run"), count(found.steps, "record")))),
            ("oldest", f"a run of {age(found.oldest_run_us)}" if found.oldest_run_us is not None else "no run"),
            ("prune", _prunes(found)),
            ("ready", f"{count(found.ready, 'run')}: `stepseven resume RUN` takes one" if found.ready else "no run"),
            ("questions", f"{found.open_questions:,} open: `stepseven inbox`" if found.open_questions else "none open"),
            ("effects", _effects(found.unsettled_effects)),
            ("orphaned", count(len(found.orphans), "run") if found.orphans else "none"),
        ]
    )
    for orphan in found.orphans[:20]:
        out().print(row("", f"{orphan.run_id}: {orphan.reason}; `{command('resume', orphan.run_id)}` goes on"))
    if len(found.orphans) > 20:  # noqa: PLR2004 - a screenful
        out().print(row("", f"… {len(found.orphans) - 20} more"))


def _prunes(found: Findings) -> str:
    """What is shrunk by itself, and what a prune would do now."""
    does = "nothing by itself (STEPSEVEN_RETENTION=off)" if found.retention == "off" else f"by itself after {found.retention}"
    free = found.would_free
    if not free.runs:
        return f"{does}; nothing to free now"
    least = "at least " if free.runs >= MOST else ""
    return f"{does}; `stepseven prune` frees {least}{size(free.bytes)} of {count(free.runs, 'run')} now"


def _effects(unsettled: int) -> str:
    if not unsettled:
        return "every one is settled"
    return f"{unsettled:,} without a known outcome: the resume of their runs looks whether they happened"


async def _look(setting: Setting, layer: Layer) -> Findings:
    now = now_us()

    def unit(tx: Tx) -> tuple[Row, Row, list[Orphan], int]:
        head, sizes = tx.one(tx.sql.store, {}), tx.one(tx.sql.sizes, {})
        if head is None or sizes is None:
            raise NoStore(setting.url)
        return head, sizes, _orphans(layer, tx, now), len(_page(tx, RunStatus.QUEUED))

    head, sizes, orphans, ready = await layer.store.read(unit)
    kept_us = keep_us()
    age_us = DEFAULT_DAYS * DAY_US if kept_us is None else kept_us
    path = setting.path
    return Findings(
        url=hide_password(setting.url), why=setting.why, file_bytes=_bytes(path) if path else None,
        wal_bytes=_bytes(Path(f"{path}-wal")) if path else None, schema=head["schema_no"], epoch=head["epoch"],
        clients=sizes["clients"], runs=sizes["runs"], steps=sizes["steps"], ready=ready,
        open_questions=sizes["open_questions"], unsettled_effects=sizes["unsettled"], orphans=orphans,
        artifact_bytes=_folder_bytes(layer.services.artifacts.folder), oldest_run_us=sizes["oldest_run_us"],
        retention="off" if kept_us is None else f"{kept_us / DAY_US:g} days",
        would_free=keep.look(layer, now - age_us, MOST),
    )  # fmt: skip


def _page(tx: Tx, status: RunStatus) -> list[Row]:
    params = {"client_id": None, "workflow": None, "status": status.value, "limit": MOST, "before": 1 << 62}
    return tx.all(tx.sql.runs_page, params)


def _orphans(layer: Layer, tx: Tx, now: int) -> list[Orphan]:
    proven = layer.services.worker.dead_workers(tx)
    return [
        Orphan(run_id=run["run_id"], status=status.value, reason=_reason(tx, run["owner"], now, proven))
        for status in _UNDER_WAY
        for run in _page(tx, status)
        if is_dead(tx, run["owner"], now, proven)
    ]


def _reason(tx: Tx, owner: str | None, now: int, proven: Container[str]) -> str:
    if owner is None:
        return "nobody has it"
    worker = tx.one(tx.sql.worker, {"id": owner, "now": now})
    if worker is None:
        return f"its worker {owner} is gone"
    if owner in proven:
        return f"its worker is dead (process {worker['pid']} on {worker['host']})"
    silent = say.duration(worker["silent_us"] / 1e6)
    allowed = LEASE_US // 1_000_000
    return f"its worker (process {worker['pid']} on {worker['host']}) said nothing for {silent}; {allowed} s are allowed"


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


def _rows(rows: list[tuple[str, str]]) -> None:
    for label, text in rows:
        out().print(row(label, text))


async def migrate(setting: Setting) -> None:
    """Create the store, or bring it to this version's schema. Safe to run from many places at once."""
    path = setting.path
    was_there = path is None or (path.exists() and path.stat().st_size > 0)
    open_store(setting.url, upgrade=True).close()
    async with setting.layer(create=True) as layer:
        head = await layer.store.read(lambda tx: tx.one(tx.sql.store, {}))
    found: dict[str, Any] = {
        "url": hide_password(setting.url), "schema": head["schema_no"] if head is not None else None, "created": not was_there,
    }  # fmt: skip
    if setting.as_json:
        print_json(found)
        return
    did = "is up to date" if was_there else "was created"
    out().print(wrapped(f"The store {found['url']} {did} (schema {found['schema']})."))
