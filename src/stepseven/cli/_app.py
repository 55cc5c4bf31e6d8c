"""The program: its commands, and what becomes of everything that goes wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stepseven import __version__
from stepseven.cli import client, demo, doctor, inbox, init, keep, later, person, plan, run, serve, show, token, worker
from stepseven.cli import store as store_commands
from stepseven.cli._common import (
    DebugOption,
    Exit,
    JsonOption,
    Setting,
    StoreOption,
    Usage,
    clean,
    err,
    print_json,
    shared,
)
from stepseven.errors import SchemaMismatch, StepsevenError, StoreUnavailable, Superseded

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # click's UsageError, which newer typers carry inside themselves


#: commands of the group `client` that people look for one level too high
_OF_CLIENT = ("pause", "unpause", "forget", "set", "import")

#: how our own sentences begin. Any other first word is the name of something of the user's, and is written as they write it
_FIRST_WORDS = (
    "a already an client each environment everything fact found given in input inputs it its module neither no nobody nothing "
    "one only question run somebody something start statements step that the there these they this what workflow"
)
_BEGINNINGS = frozenset(_FIRST_WORDS.split())


class _Commands(TyperGroup):
    """The commands; where one is looked for that stands elsewhere, it says where."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As of a group."""
        if args and args[0] in _OF_CLIENT and args[0] not in self.commands:
            raise Usage(f"there is no command {args[0]}: it is `stepseven client {args[0]}`")
        return super().resolve_command(ctx, args)


def _panels() -> dict[str, dict[str, Callable[..., Any]]]:
    """The commands as ``--help`` groups them."""
    return {
        "Try it": {"demo": demo.demo, "init": init.init},
        "Run": {
            "run": run.run,
            "resume": run.resume,
            "start": run.start,
            "worker": worker.worker,
            "cancel": run.cancel,
            "fork": run.fork,
        },
        "Look": {"plan": plan.plan, "show": show.show, "why": show.why, "runs": show.runs, "export": show.export},
        "Decide": {"inbox": inbox.inbox, "answer": inbox.answer},
        "Serve": {"serve": serve.serve},
        "The store": {"doctor": doctor.doctor, "prune": keep.prune, "migrate": store_commands.migrate},
    }


def build() -> typer.Typer:
    """All commands of the contract; those of later releases say so."""
    app = typer.Typer(
        name="stepseven",
        cls=_Commands,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for panel, commands in _panels().items():
        for name, fn in commands.items():
            app.command(name, rich_help_panel=panel)(shared(fn))
    app.add_typer(client.build(), name="client", rich_help_panel="Know")
    app.add_typer(person.build(), name="person", rich_help_panel="Decide")
    app.add_typer(token.build(), name="token", rich_help_panel="Serve")
    for name, what in later.COMMANDS.items():
        app.command(name, rich_help_panel="Later", help=f"{what} Comes with a later release.", context_settings=later.ANYTHING)(
            later.command(name)
        )
    return app


def _version(value: bool) -> None:
    if value:
        sys.stdout.write(f"stepseven {__version__}\n")
        raise typer.Exit


def _root(
    ctx: typer.Context,
    store: StoreOption = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The recovery layer under AI agents: die at step seven, wake up at step seven, knowing what you knew.

    Exit codes: 0 done or looked up · 1 refused · 2 usage · 3 waiting, 4 failed (run, resume, demo) · 5 store unreachable.
    """
    del version
    ctx.obj = Setting(told=store, as_json=json_, debug=debug)


def invoke(arguments: Sequence[str] | None) -> int:
    """Run one command and give its exit code; every error becomes one sentence on stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = given[: given.index("--")] if "--" in given else given
    try:
        code = typer.main.get_command(build()).main(given, prog_name="stepseven", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # `stepseven runs | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except (Exception, Superseded, KeyboardInterrupt) as error:  # noqa: BLE001 - the last one who can say anything
        if "--debug" in options:
            import traceback

            traceback.print_exc()
        return _tell(error, as_json="--json" in options)
    return int(code) if isinstance(code, int) else Exit.OK


def _tell(error: BaseException, *, as_json: bool) -> int:
    sentence, code = _sentence(error)
    if as_json:
        print_json({"error": sentence, "type": type(error).__name__})
    if sentence:
        err().print(clean(sentence), style="red" if code is not Exit.INTERRUPTED else None)
    return code


def _sentence(error: BaseException) -> tuple[str, Exit]:
    """What to say, and the exit code."""
    if isinstance(error, _USAGE_ERROR):
        return _usage(error), Exit.USAGE
    if isinstance(error, Usage):
        return _whole(str(error)), Exit.USAGE
    if isinstance(error, StoreUnavailable | SchemaMismatch):
        return _whole(str(error)), Exit.NO_STORE
    if isinstance(error, StepsevenError):
        return _whole(str(error)), Exit.REFUSED
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "Stopped. What is on record is kept.", Exit.INTERRUPTED
    if isinstance(error, Superseded):
        return f"This execution was superseded ({error.why}); nothing is lost: `stepseven why {error.run_id}`.", Exit.REFUSED
    return f"stepseven broke off ({type(error).__name__}: {error}): the same command with --debug shows where.", Exit.REFUSED


def _usage(error: BaseException) -> str:
    """A wrong command line: what is wrong, and where the right one is written."""
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "stepseven"
    return f"{text.rstrip('.')}: `{path} --help` shows how it is used." if text else ""


def _whole(text: str) -> str:
    """A sentence begins with a capital, unless with a name, and ends with a full stop."""
    head = text[:1].upper() + text[1:] if text.split(" ", 1)[0] in _BEGINNINGS else text
    return head if head.endswith((".", "?", "!", "`", "…")) else head + "."
