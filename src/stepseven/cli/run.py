"""``run``, ``resume``, ``start``, ``cancel``, ``fork``: what makes runs move."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from stepseven.cli import _code
from stepseven.cli._choices import Approach, Keep, Refresh, Rerun, Skip, agreed, choices_of
from stepseven.cli._common import (
    Exit,
    Refused,
    Setting,
    Usage,
    clean,
    command,
    credential,
    err,
    inputs_of,
    json_or_text,
    out,
    person,
    print_json,
    wrapped,
)
from stepseven.cli._live import Live
from stepseven.cli._read import RunView, view
from stepseven.cli._words import ask_block, mark, short_json
from stepseven.errors import SecretFound, UnknownWorkflow
from stepseven.layer import MAX_ID, Layer, new_run_id
from stepseven.model import Outcome, RunStatus

T = TypeVar("T")

Target = Annotated[str, typer.Argument(metavar="MODULE:WORKFLOW", help="The workflow, in a module that can be imported here.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Client = Annotated[str, typer.Option("--client", metavar="CLIENT", help="Whom the run is for.")]
Input = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=VALUE", help="An input, JSON or text; NAME=@FILE reads a file. Repeatable."),
]
NewId = Annotated[str | None, typer.Option("--run-id", metavar="ID", help="Its id; the same id again continues it.")]
Goal = Annotated[str | None, typer.Option("--goal", metavar="TEXT", help="What the run is for, in words.")]
Wait = Annotated[
    float | None, typer.Option("--wait", metavar="SECONDS", min=0, help="Wait so long for people and long timers, too.")
]
Module = Annotated[
    list[str] | None,
    typer.Option("--module", metavar="MODULE", help="Where the workflow is. Default: STEPSEVEN_MODULES, else pyproject.toml."),
]


async def run(  # noqa: PLR0917 - typer names them all
    setting: Setting,
    target: Target,
    client: Client,
    input_: Input = None,
    run_id: NewId = None,
    goal: Goal = None,
    wait: Wait = None,
) -> int:
    """Run a workflow for a client, as far as it gets. The same --run-id continues a run."""
    call = _code.call(_code.workflow(target), inputs_of(input_ or []))
    module = target.partition(":")[0]
    async with setting.layer(create=True) as layer:
        made = new_run_id(layer.services.edge, client)
        known = run_id if run_id is not None or len(made) > MAX_ID else made  # so that whoever stops it can name it

        async def drive(layer: Layer) -> Outcome[Any]:
            return await _checked(layer.run(call, client=client, run_id=known, goal=goal, wait=wait))

        return await _driven(setting, layer, drive, [module], known)


async def resume(  # noqa: PLR0917 - typer names them all
    setting: Setting,
    run_id: RunId,
    module: Module = None,
    wait: Wait = None,
    approach: Approach = None,
    skip: Skip = None,
    rerun: Rerun = None,
    keep: Keep = False,
    refresh: Refresh = False,
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who resumes it. Default: you.")] = None,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Do not show the plan first, and do not ask.")] = False,
) -> int:
    """Go on with a run: what is recorded is reused, the rest is run. Of an ended run: its outcome."""
    chosen, who = choices_of(approach, skip, rerun, keep=keep, refresh=refresh), person(by)
    async with setting.layer() as layer:
        before = await view(layer, run_id)
        looked_in = [] if before.status.ended else _code.modules(module or [])
        for name in looked_in:
            _code.load(name)
        try:
            go_on, looked_at = (True, None) if yes or not (rerun or refresh) else await agreed(setting, layer, run_id, chosen)
            if not go_on:
                err().print("Nothing was changed.")
                return Exit.REFUSED

            async def drive(layer: Layer) -> Outcome[Any]:
                return await layer.resume(run_id, wait=wait, by=who, plan=looked_at, **chosen)

            return await _driven(setting, layer, drive, module or [], run_id)
        except UnknownWorkflow as error:
            raise _code.unknown(error, looked_in) from error
        except SecretFound as error:
            raise credential(error) from error


async def start(
    setting: Setting, target: Target, client: Client, input_: Input = None, run_id: NewId = None, goal: Goal = None
) -> None:
    """Accept a run without running it: a worker takes it, or `resume`."""
    call = _code.call(_code.workflow(target), inputs_of(input_ or []))
    async with setting.layer(create=True) as layer:
        info = await _checked(layer.start(call, client=client, run_id=run_id, goal=goal))
        if setting.as_json:
            print_json((await view(layer, info.run_id)).document())
            return
        module = target.partition(":")[0]
        out().print(clean(f"{info.run_id} is {info.status}. A worker takes it, or:"))
        out().print(f"  {command('resume', info.run_id, '--module', module, *setting.also)}")


async def cancel(
    setting: Setting,
    run_id: RunId,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept.")] = "cancelled on the command line",
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who cancels. Default: you.")] = None,
) -> None:
    """Stop a run. Writes in flight are finished and recorded first; nothing is taken back unless you say so."""
    who = person(by)
    async with setting.layer() as layer:
        before = (await view(layer, run_id)).status
        status = await layer.cancel(run_id, reason=reason, by=who)
        if before.ended and before is not RunStatus.CANCELLED:
            raise Refused(f"run {run_id} is {before} already: there is nothing to cancel")
        if setting.as_json:
            print_json((await view(layer, run_id)).document())
        elif status is RunStatus.CANCELLED:
            was = "was cancelled already" if before.ended else "is cancelled"
            out().print(wrapped(f"{run_id} {was}. What it did is kept:"))
            out().print(f"  {command('show', run_id, *setting.also)}")
            for question in (await view(layer, run_id)).open_questions:
                ask_block(out(), question, also=setting.also)
        else:
            out().print(wrapped(f"{run_id} is {status}: it ends as soon as its writes in flight are settled."))


async def fork(  # noqa: PLR0917 - each is an option
    setting: Setting,
    run_id: RunId,
    from_step: Annotated[str | None, typer.Option("--from", metavar="STEP", help="The first step that runs anew.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="An input that differs, JSON or text; NAME=@FILE reads a file. Repeatable."
        ),
    ] = None,
    from_older: Annotated[str | None, typer.Option("--from-step", hidden=True)] = None,
    set_older: Annotated[list[str] | None, typer.Option("--input", hidden=True)] = None,
    module: Module = None,
) -> None:
    """A new run with an old one's records up to a step. It shares its receipts: nothing is done twice."""
    if (from_step is None) == (from_older is None):
        raise Usage(f"fork needs --from once: `{command('fork', run_id, '--from', 'STEP')}`")
    from_step = from_step or from_older or ""
    pairs = [*(set_ or []), *(set_older or [])]
    inputs = {name: json_or_text(text) for name, text in inputs_of(pairs, option="--set").items()}
    async with setting.layer() as layer:
        await view(layer, run_id)  # an unknown id is said before any code is imported
        for name in _code.modules(module or []) if inputs else ():  # whether the workflow has such inputs, its code tells
            _code.load(name)
        try:
            info = await layer.fork(run_id, from_step=from_step, inputs=inputs)
        except ValueError as error:
            raise Refused(str(error)) from error
        if setting.as_json:
            print_json((await view(layer, info.run_id)).document())
            return
        out().print(wrapped(f"{info.run_id} has the records of {run_id} before {from_step}. It goes on with:"))
        out().print(f"  {command('resume', info.run_id, *(() if module else _code.hint()), *_also(setting, module or []))}")
        if (meaning := _code.explained()) is not None:
            out().print(wrapped(meaning))


# -- driving ----------------------------------------------------------------------------------------------------------


async def _checked(work: Awaitable[T]) -> T:
    """What the layer finds wrong with an id or a client is said as a refusal."""
    try:
        return await work
    except ValueError as error:
        raise Refused(str(error)) from error


async def _driven(
    setting: Setting, layer: Layer, drive: Callable[[Layer], Awaitable[Outcome[Any]]], module: list[str], run_id: str | None
) -> int:
    """Drive a run with its progress shown, then say what became of it."""
    stopped = _stop_on_sigterm()
    try:
        with Live(layer, quiet=setting.as_json):
            outcome = await drive(layer)
    except asyncio.CancelledError:
        await layer.aclose()  # gives the run back; writes in flight are recorded first
        err().print(clean(await _kept(setting, run_id, module)))
        return Exit.TERMINATED if stopped.is_set() else Exit.INTERRUPTED
    found = await view(layer, outcome.run_id)
    if setting.as_json:
        print_json(found.document())
    else:
        _tell(setting, found, outcome, module)
    if outcome.status is RunStatus.DONE:
        return Exit.OK
    return Exit.FAILED if outcome.status.ended else Exit.WAITING


async def _kept(setting: Setting, run_id: str | None, module: list[str]) -> str:
    """What is left of a run that was stopped from outside."""
    async with setting.layer() as layer:
        there = run_id is not None and await layer.store.read(lambda tx: tx.one(tx.sql.run_info, {"id": run_id})) is not None
    if run_id is None or not there:
        return "Stopped. What is on record is kept: `stepseven runs` lists it."
    return f"Stopped. The run is kept: `{command('resume', run_id, *_also(setting, module))}` goes on."


def _also(setting: Setting, module: list[str]) -> tuple[str, ...]:
    """What has to be added to a suggested ``resume`` so that it finds the same code and the same store."""
    return (*(part for m in module for part in ("--module", m)), *setting.also)


def _stop_on_sigterm() -> asyncio.Event:
    """SIGTERM ends the work as Ctrl-C does; the event tells which it was."""
    stopped, task = asyncio.Event(), asyncio.current_task()

    def stop() -> None:
        stopped.set()
        if task is not None:
            task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    return stopped


def _tell(setting: Setting, found: RunView, outcome: Outcome[Any], module: list[str]) -> None:
    console, run_id = out(), outcome.run_id
    also = _also(setting, module)
    if outcome.status is RunStatus.DONE:
        console.print(mark("done"), clean(f"{run_id} is done."))
        if found.value is not None:
            console.print(wrapped(short_json(found.value), "  "))
        return
    if outcome.status.ended:
        step = f" (step {outcome.failure.step})" if outcome.failure and outcome.failure.step else ""
        console.print(mark(outcome.status), wrapped(f"{found.why.rstrip('.')}{step}. What it did:", rest="  "))
        console.print(f"  {command('show', run_id, *setting.also)}")
        for question in outcome.questions:
            ask_block(console, question, also=setting.also, found=found)
        return
    if outcome.questions:
        for question in outcome.questions:
            ask_block(console, question, also=setting.also, found=found)
        console.print(f"  then       {command('resume', run_id, *also)}")
        return
    console.print(mark("waiting"), wrapped(found.why, rest="  "))
