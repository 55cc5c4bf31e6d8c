"""``prune``, ``client forget``, ``client export``: keeping the store small, and what happens when a client leaves."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from stepseven.cli._common import Refused, Setting, Usage, clean, command, now_us, out, person, print_json, row, wrapped
from stepseven.cli._words import count, size
from stepseven.cli.show import written
from stepseven.decide.retention import DEFAULT_DAYS, span_us
from stepseven.layer import Layer
from stepseven.model import Forgotten, Pruned
from stepseven.runtime.retention import Pruner
from stepseven.transitions import forgetting

Id = Annotated[str, typer.Argument(metavar="CLIENT", help="The client's id.")]


def look(layer: Layer, before_us: int, most: int | None = None) -> Pruned:
    """What a prune would free, of at most *most* runs. Changes nothing."""
    return Pruner(layer.store, layer.services.edge, layer.services.artifacts).look(before_us, most)


# -- prune ------------------------------------------------------------------------------------------------------------


async def prune(
    setting: Setting,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="How long ago a run must have ended: 90d, 12h.")
    ] = f"{DEFAULT_DAYS}d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    vacuum: Annotated[bool, typer.Option("--vacuum", help="Give the free space back: the store is written anew.")] = False,
) -> None:
    """Shrink runs that ended long ago to summaries, decisions and receipts. Nobody has to wait for it."""
    try:
        age_us = span_us(older_than)
    except ValueError as error:
        raise Usage(f"--older-than {older_than!r} is no age: say 90d or 12h") from error
    if dry_run and vacuum:
        raise Usage("--dry-run changes nothing, so there is nothing for --vacuum: leave one of them out")
    async with setting.layer() as layer:
        if dry_run:
            done = await asyncio.to_thread(look, layer, now_us() - age_us)
        else:
            done = await layer.prune(older_than=older_than)
        back = await asyncio.to_thread(layer.store.compact) if vacuum else None
    if setting.as_json:
        print_json({**asdict(done), "older_than": older_than, "dry_run": dry_run, "given_back": back})
        return
    _tell_pruned(done, older_than, dry_run=dry_run)
    if back is not None:
        out().print(wrapped(f"The store was written anew: {size(back)} are given back."))
    elif done.runs and not dry_run:
        out().print(wrapped("The space is used for what comes next. `stepseven prune --vacuum` makes the store smaller."))


def _tell_pruned(done: Pruned, older_than: str, *, dry_run: bool) -> None:
    if not done.runs:
        out().print(wrapped(f"Nothing to prune: no run that ended more than {older_than} ago has anything to lose."))
        if done.artifacts:
            out().print(wrapped(f"{count(done.artifacts, 'large result')} that no run names {_is(done.artifacts)} gone."))
        return
    did = "would shrink" if dry_run else "shrunk"
    told = f"{count(done.runs, 'run')} {did}: {count(done.records, 'record')} and {count(done.artifacts, 'large result')}"
    out().print(wrapped(f"{told}, {size(done.bytes)}. Summaries, decisions and receipts are kept."))
    if dry_run:
        out().print(wrapped("Nothing was changed."))


def _is(n: int) -> str:
    return "is" if n == 1 else "are"


# -- when a client leaves -----------------------------------------------------------------------------------------------


def forget(
    setting: Setting,
    client: Id,
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who says so. Default: you.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; it is kept.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
) -> None:
    """Delete everything known about a client; that it existed, what was done and what it cost stays."""
    who, layer = person(by), setting.layer()
    try:
        layer.store.read_now(lambda tx: forgetting.check(tx, client))
        if not yes:
            _confirm(setting, client, layer.client(client).export())
        done = layer.client(client).forget(by=who, reason=reason)
    finally:
        layer.close()
    if setting.as_json:
        print_json(asdict(done))
        return
    _tell_forgotten(setting, client, done)


def _confirm(setting: Setting, client: str, known: dict[str, Any]) -> None:
    """Say what goes and what stays, and let the name be typed.

    Raises:
        Refused: there is nobody to ask, or they typed something else.
    """
    again = command("client", "forget", client, "--yes", *setting.also)
    if setting.as_json or sys.stdin is None or not sys.stdin.isatty():
        raise Refused(f"nothing was deleted: this cannot be taken back, so say it with --yes: `{again}`")
    runs = known["runs"]
    facts = sum(len(versions) for versions in known["facts"].values())
    records, asked, effects = (sum(len(run[what]) for run in runs) for what in ("steps", "questions", "effects"))
    goes = (count(facts, "version of facts", "versions of facts"), f"{count(records, 'record')} of {count(len(runs), 'run')}",
            f"{count(asked, 'question')} with answers", "arguments, receipts, large results, goals, inputs")  # fmt: skip
    stays = f"that {client} existed, {count(len(runs), 'run')} with times and cost, that {count(effects, 'effect')} happened"
    for line in (
        row("goes", " · ".join(goes)),
        row("stays", stays),
        row("", f"also as a file: {command('client', 'export', client)}"),
    ):
        out().print(line)
    out().print(clean(f"This cannot be taken back. Type the client's id to forget it ({client}), or press Enter to leave it:"))
    if sys.stdin.readline().strip() != client:
        raise Refused("nothing was deleted: that was not the client's id")


def _tell_forgotten(setting: Setting, client: str, done: Forgotten) -> None:
    told = (
        count(done.facts, "version of facts", "versions of facts"), count(done.records, "record"),
        count(done.attempts, "try", "tries"), count(done.questions, "question"), count(done.artifacts, "large result"),
    )  # fmt: skip
    out().print(wrapped(f"{client} is forgotten: {', '.join(told)} are deleted."))
    stays = f"{count(done.runs, 'run')} (id, workflow, times, cost) and {count(done.effects, 'effect')} (name, state, times)"
    out().print(wrapped(f"Kept without their content: {stays}. Run ids are as they were chosen."))
    if not done.compacted:
        again = command("prune", "--vacuum", *setting.also)
        out().print(
            wrapped(f"Another program is reading the store, so older copies are still in its file: `{again}` removes them.")
        )
    if done.files_missing:
        n = count(done.files_missing, "large result")
        where = f"{n} are in another folder than is used here, or are just being written: forget again"
        out().print(wrapped(f"{where} (if it stays so, from the program that sets artifacts=)."))


def export(
    setting: Setting,
    client: Id,
    file: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write it. Default: stdout.")
    ] = None,
) -> None:
    """All that is known about a client as one JSON document, to hand over."""
    layer = setting.layer()
    try:
        document = layer.client(client).export()
        folder = layer.services.artifacts.folder
    finally:
        layer.close()
    if file is None:
        print_json(document)
        return
    size_ = written(file, json.dumps(document, ensure_ascii=False, indent=2) + "\n")
    large = sum(
        1 for run in document["runs"] for step in run["steps"] if "artifact" in step and isinstance(step["artifact"], dict)
    )
    if setting.as_json:
        print_json({"client_id": client, "file": str(file), "bytes": size_, "large_results": large, "folder": str(folder)})
        return
    runs, facts = len(document["runs"]), len(document["facts"])
    out().print(
        wrapped(f"All that is known about {client} is in {file}: {count(facts, 'fact')}, {count(runs, 'run')} ({size_:,} bytes).")
    )
    if large:
        out().print(wrapped(f"{count(large, 'result')} over 64 KiB are in it by reference: the files are in {folder}."))
