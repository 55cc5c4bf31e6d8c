"""``show``, ``why``, ``runs``, ``export``: looking at runs. Changes nothing."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from stepseven.cli import _page
from stepseven.cli._common import Refused, Setting, Usage, clean, out, print_json, width, wrapped
from stepseven.cli._findings import all_orphans
from stepseven.cli._read import view
from stepseven.cli._words import age, count, mark, standing
from stepseven.cli.run import RunId
from stepseven.decide import _phrases as say
from stepseven.model import RunInfo, RunStatus
from stepseven.server.documents import run_document


async def show(
    setting: Setting,
    run_id: RunId,
    all_: Annotated[bool, typer.Option("--all", help="Fold nothing: every item of every list.")] = False,
) -> None:
    """A run whole: what is done, what failed and how it was tried, what is asked, what it cost."""
    async with setting.layer() as layer:
        found = await view(layer, run_id)
    if setting.as_json:
        print_json(found.document())
        return
    console = out()
    for line in _page.page(found, columns=width(), most=1 << 30 if all_ else _page.MOST, also=setting.also):
        console.print(line)


async def why(setting: Setting, run_id: RunId) -> None:
    """One sentence: what a run waits for, who may move it, what happens next."""
    async with setting.layer() as layer:
        sentence = await layer.why(run_id)
    if setting.as_json:
        print_json({"run_id": run_id, "why": sentence})
        return
    out().print(wrapped(sentence))


async def runs(  # noqa: PLR0917 - typer's: every option is a parameter
    setting: Setting,
    client: Annotated[str | None, typer.Option("--client", metavar="CLIENT", help="Only this client's.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", metavar="NAME", help="Only this workflow's.")] = None,
    status: Annotated[str | None, typer.Option("--status", metavar="STATUS", help=f"One of {', '.join(RunStatus)}.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many at most.")] = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where a page ended: its `next`.")] = None,
    orphaned: Annotated[
        bool, typer.Option("--orphaned", help="Only those that are ready and no live worker takes, with the reason.")
    ] = False,
) -> None:
    """Runs, newest first."""
    if orphaned:
        if status is not None or cursor is not None:
            raise Usage("--orphaned goes with --client, --workflow and --limit: leave out --status and --cursor")
        await _orphaned(setting, client, workflow, limit)
        return
    async with setting.layer() as layer:
        try:
            page = await layer.runs(client=client, workflow=workflow, status=status, limit=limit, cursor=cursor)
        except ValueError as error:
            raise Usage(str(error)) from error
    if setting.as_json:
        print_json({"items": [run_document(info) for info in page], "next": page.next})
        return
    console = out()
    if not page:
        console.print(wrapped(_none(client, workflow, status)))
    for info in page:
        _line(info)
    if page.next is not None:
        console.print(f"There are more: the same command with --cursor {page.next}")


async def _orphaned(setting: Setting, client: str | None, workflow: str | None, limit: int) -> None:
    async with setting.layer() as layer:
        found = [one for one in await all_orphans(layer) if client in (None, one.client_id) and workflow in (None, one.workflow)]
    if setting.as_json:
        print_json({"items": [asdict(one) for one in found[:limit]], "next": None})
        return
    console = out()
    if not found:
        console.print(wrapped("No run is orphaned: each one that is ready is executed, or a live worker takes it."))
        return
    for one in found[:limit]:
        _two_lines(one.status, one.client_id, one.workflow, f"{one.status} · {age(one.since_us)}", one.run_id)
        console.print(wrapped(one.reason, "  "))
    if len(found) > limit:
        console.print(f"There are {len(found) - limit} more: the same command with --limit {min(1000, len(found))}")
    console.print(wrapped("`stepseven worker MODULE` takes all runs of a module's workflows, `stepseven resume RUN` one."))


def _none(client: str | None, workflow: str | None, status: str | None) -> str:
    told = " ".join(x for x in (status or "", workflow or "") if x)
    whom = f" for {say.who(client)}" if client else ""
    return clean(f"There is no {told + ' ' if told else ''}run{whom}. `stepseven demo` makes one to look at.")


def _line(info: RunInfo) -> None:
    """A run on two lines: what and how it stands, its id beneath."""
    asked = info.open_questions_count
    state = standing(info.status, info.waiting_for)
    if asked:
        state = count(asked, "question") if info.waiting_for == "person" else f"{state}, {asked} asked"
    what = say.clip(info.goal, words=12, chars=60) if info.goal else info.workflow
    _two_lines(info.status, info.client_id, what, f"{state} · {age(info.updated_us)}", info.run_id)


def _two_lines(status: str, client: str, what: str, right: str, run_id: str) -> None:
    room = max(10, width() - len(right) - 4)
    left = clean(f"{say.who(client)} · {what}")
    left = left if len(left) <= room else left[: room - 1] + "…"
    out().print(Text.assemble(mark(status), " ", f"{left:<{room}}  ", right))
    out().print(Text(f"  {clean(run_id)}", style="dim"))


async def export(
    setting: Setting,
    run_id: RunId,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Where to write it. Default: stdout.")] = None,
) -> None:
    """The checkpoint, all that is known of a run as one JSON document, as a file."""
    async with setting.layer() as layer:
        document = await layer.checkpoint(run_id)
    if file is None:
        print_json(document)
        return
    size = written(file, json.dumps(document, ensure_ascii=False, indent=2) + "\n")
    if setting.as_json:
        print_json({"run_id": run_id, "file": str(file), "bytes": size})
        return
    out().print(wrapped(f"The checkpoint of {run_id} is in {file} ({size:,} bytes)."))


def written(file: Path, text: str) -> int:
    """Write *text* to *file*; its size in bytes.

    Raises:
        Refused: it cannot be written.
    """
    try:
        _write(file, text)
    except OSError as error:
        raise Refused(f"{file} cannot be written ({error.strerror or error}): name a file you can write") from error
    return len(text.encode())


def _write(file: Path, text: str) -> None:
    """Write whole or not at all: a reader never sees half a document."""
    if file.exists() and not file.is_file():
        file.write_text(text, "utf-8")  # a device or a pipe is written to, not replaced; a folder refuses
        return
    half = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        half.write_text(text, "utf-8")
        half.replace(file)
    finally:
        half.unlink(missing_ok=True)
