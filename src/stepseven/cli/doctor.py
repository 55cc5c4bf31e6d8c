"""``doctor``: which store this is, whether all is well with it; and what it has to be told after a backup was restored."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from stepseven.cli import _findings
from stepseven.cli._common import Setting, command, now_us, out, print_json, row, wrapped
from stepseven.cli._findings import MOST, Findings, ResourceDown, WorkerSeen
from stepseven.cli._words import age, count, size
from stepseven.decide import _phrases as say
from stepseven.errors import SchemaMismatch, StoreUnavailable
from stepseven.store._url import hide_password
from stepseven.transitions import restoring
from stepseven.transitions.offering import UNDO
from stepseven.transitions.restoring import Restored

_SHOWN = 20  # a screenful
_SOON_US = 3600 * 1_000_000  # a second restore within an hour is more often the same one, said twice


async def doctor(
    setting: Setting,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored", help="Say that this store is a backup that was just restored: nothing is done twice because of it."
        ),
    ] = False,
) -> None:
    """Which store is in use and why, who works on it, and what needs care. Changes nothing without --restored."""
    if restored:
        await _restored(setting)
        return
    try:
        async with setting.layer() as layer:
            found = await _findings.look(setting, layer)
    except (StoreUnavailable, SchemaMismatch):  # which store that is, and why this one, helps most of all
        if not setting.as_json:
            _rows([("store", hide_password(setting.url)), ("chosen by", setting.why)])
        raise
    if setting.as_json:
        print_json(asdict(found))
        return
    _rows(_store(found))
    _rows(_work(found))
    _orphans(found)


# -- what was found -----------------------------------------------------------------------------------------------------


def _store(found: Findings) -> list[tuple[str, str]]:
    """What is kept, where, and since when."""
    seen = "" if found.pooled is None else ", through a pooler (seen, not configured)" if found.pooled else ", directly"
    restored = "" if found.restored_us is None else f" (a backup was restored {age(found.restored_us)})"
    where = size(found.bytes)
    if found.file_bytes is not None:
        where = f"{size(found.file_bytes)}, log {size(found.wal_bytes or 0)}"
    holds = (count(found.clients, "client"), count(found.runs, "run"), count(found.steps, "record"))
    return [
        ("store", found.url),
        ("chosen by", found.why),
        ("database", found.server + seen),
        ("schema", f"{found.schema}, epoch {found.epoch}{restored}"),
        ("size", where),
        ("artifacts", size(found.artifact_bytes) if found.artifact_bytes or found.pooled is None else "in the database"),
        ("holds", " · ".join(holds)),
        ("oldest", f"a run of {age(found.oldest_run_us)}" if found.oldest_run_us is not None else "no run"),
        ("prune", _prunes(found)),
    ]


def _work(found: Findings) -> list[tuple[str, str]]:
    """Who works, and what waits."""
    alive = [worker for worker in found.workers if worker.alive]
    shown = [("", _worker(worker)) for worker in alive[:_SHOWN]]
    if len(alive) > _SHOWN:
        shown.append(("", f"… {len(alive) - _SHOWN} more"))
    gone = len(found.workers) - len(alive)
    told = f"{len(alive):,} alive" if alive else "none alive"
    lag = "" if found.lag_us is None else f", the oldest for {say.duration(max(0, found.lag_us) / 1e6)}"
    return [
        ("workers", told + (f", {gone:,} gone" if gone else "")),
        *shown,
        ("ready", f"{count(found.ready, 'run')}{lag}" if found.ready else "no run waits for a worker"),
        ("questions", f"{found.open_questions:,} open: `stepseven inbox`" if found.open_questions else "none open"),
        *(("down", _down(each)) for each in found.down[:_SHOWN]),
        ("effects", _effects(found.unsettled_effects)),
        ("delivery", found.delivery),
        *_promised(found),
        ("orphaned", _how_many(found)),
    ]


def _promised(found: Findings) -> list[tuple[str, str]]:
    """What a person said and nothing came of, so far."""
    rows = []
    if found.approved_not_done:
        rows.append(("approved", f"{count(found.approved_not_done, 'approval')} given and not done yet"))
    if found.objected:
        rows.append(("too late", f"of {count(found.objected, 'question')} something was said after the end"))
    return rows


def _worker(worker: WorkerSeen) -> str:
    names = [name for name in worker.workflows if name != UNDO]
    takes = f"takes {say.listing(names, most=6)}" if names else "executes what it is given"
    heard = f"heard of {say.duration(max(0, worker.silent_us) / 1e6)} ago"
    zombies = f"; {count(worker.zombies, 'given-up call')} still at work in it" if worker.zombies else ""
    return f"{worker.id}: process {worker.pid} on {worker.host}, {heard}; {takes}{zombies}"


def _prunes(found: Findings) -> str:
    """What is shrunk by itself, and what a prune would do now."""
    does = "nothing by itself (STEPSEVEN_RETENTION=off)" if found.retention == "off" else f"by itself after {found.retention}"
    free = found.would_free
    if not free.runs:
        return f"{does}; nothing to free now"
    least = "at least " if free.runs >= MOST else ""
    return f"{does}; `stepseven prune` frees {least}{size(free.bytes)} of {count(free.runs, 'run')} now"


def _down(seen: ResourceDown) -> str:
    every = say.duration(seen.every_us / 1e6)
    waits = "1 run waits" if seen.waiting == 1 else f"{seen.waiting:,} runs wait"
    silent = say.duration((now_us() - seen.since_us) / 1e6)
    return f"{seen.name} has not answered for {silent}: {waits} for it, I look every {every}"


def _effects(unsettled: int) -> str:
    if not unsettled:
        return "every one is settled"
    return f"{unsettled:,} without a known outcome: the resume of their runs looks whether they happened"


def _how_many(found: Findings) -> str:
    if not found.orphans:
        return "none"
    return f"{count(len(found.orphans), 'run')} that no live worker takes: `stepseven worker MODULE` takes runs of that module"


def _orphans(found: Findings) -> None:
    for orphan in found.orphans[:_SHOWN]:
        out().print(row("", f"`{command('resume', orphan.run_id)}` goes on: {orphan.reason}"))
    if len(found.orphans) > _SHOWN:
        out().print(row("", f"… {len(found.orphans) - _SHOWN} more: `stepseven runs --orphaned`"))


def _rows(rows: list[tuple[str, str]]) -> None:
    for label, text in rows:
        out().print(row(label, text))


# -- a backup was restored ----------------------------------------------------------------------------------------------


async def _restored(setting: Setting) -> None:
    now = now_us()
    async with setting.layer() as layer:
        made = await layer.store.write(lambda tx: restoring.restored(tx, now), durable=True, client=None)
    before_us = made.last_us if made.last_us is not None and now - made.last_us < _SOON_US else None
    if setting.as_json:
        print_json({"url": hide_password(setting.url), **asdict(made), "warning": _again(before_us)})
        return
    console = out()
    console.print(wrapped(f"Noted: the store {hide_password(setting.url)} is a restored backup (epoch {made.epoch})."))
    console.print(wrapped(_meaning(made)))
    console.print(wrapped(
        "Runs that began after the backup was made are not in it: start those again under the ids they had, so that the other "
        "side sees the keys it knows."
    ))  # fmt: skip
    if (warning := _again(before_us)) is not None:
        console.print(wrapped(warning), style="yellow")


def _meaning(made: Restored) -> str:
    if not made.live_runs:
        return "No run in it is unfinished, so nothing has to be looked at twice."
    whose = "1 run in it is not finished" if made.live_runs == 1 else f"{made.live_runs:,} runs in it are not finished"
    return (
        f"{whose}. What was done in such a run after the backup was made is not on record. So before anything outside is done "
        "that has no record, the run looks whether it is there, or sends it under the same key where the other side honours "
        "that, or asks. Nothing was sent now. Whoever still had such a run lets go of it; any worker takes it."
    )


def _again(before_us: int | None) -> str | None:
    if before_us is None:
        return None
    return (
        f"This was said {age(before_us)} already. Each time counts as another restored backup: what was done in between is "
        "looked at once more. If it was the same one, nothing is lost but time."
    )
