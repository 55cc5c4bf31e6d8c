"""What every command shares: exit codes, the store it works on, and how output reaches a terminal, a pipe or a program.

Output: what was asked for goes to stdout, progress and errors to stderr. With ``--json`` stdout holds exactly one JSON
document; an error is ``{"error": "one sentence", "type": "ClassName"}`` there, and the same sentence is on stderr.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.text import Text

from stepseven.errors import SecretFound, StepsevenError, StoreUnavailable
from stepseven.layer import Layer
from stepseven.runtime.checks import MAX_BY
from stepseven.runtime.edge import Edge
from stepseven.store._url import hide_password
from stepseven.transitions import fitting

DEFAULT_URL = "sqlite:///stepseven.db"
NARROWEST, WIDEST = 40, 100  #: columns that pages are laid out in
_ODD = re.compile(r"[^\n -~]")  # characters of which some do not print
_LEAST_COLUMNS = 24  # below, COLUMNS is no terminal's width
_USUAL_COLUMNS = 80


class Exit(IntEnum):
    """What a process says when it ends. ``WAITING`` and ``FAILED`` come from ``run``, ``resume`` and ``demo`` only."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    WAITING = 3
    FAILED = 4
    NO_STORE = 5
    INTERRUPTED = 130
    TERMINATED = 143


class Refused(StepsevenError):
    """The command cannot be done as asked; the message says what to do instead."""


class Usage(StepsevenError):
    """The command line itself is wrong."""


class NoStore(StoreUnavailable):
    """There is nothing at the store's place yet, and looking must not create it."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "nothing is there")
        sentence = f"there is no store at {url}: run something first (`stepseven demo` shows how), or name another with --store"
        self.args = (sentence,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the options that every command has were set to. ``told``: the store's URL as given, if it was."""

    told: str | None = None
    as_json: bool = False
    debug: bool = False

    @property
    def url(self) -> str:
        """The store in use: ``--store``, else STEPSEVEN_URL, else ``stepseven.db`` in this folder."""
        return self.told or os.environ.get("STEPSEVEN_URL") or DEFAULT_URL

    @property
    def why(self) -> str:
        """Where the URL comes from, and what it overrides."""
        env = os.environ.get("STEPSEVEN_URL")
        if self.told:
            return f"--store; it overrides STEPSEVEN_URL ({hide_password(env)})" if env else "--store"
        return "environment variable STEPSEVEN_URL" if env else "the default: neither --store nor STEPSEVEN_URL is set"

    @property
    def path(self) -> Path | None:
        """The SQLite file behind the URL; ``None`` when it is something else."""
        scheme, _, rest = self.url.partition("://")
        name = rest.removeprefix("/")
        return Path(name) if scheme == "sqlite" and name not in ("", ":memory:") else None

    @property
    def also(self) -> tuple[str, ...]:
        """What has to be added to a suggested command so that it finds the same store."""
        return ("--store", self.told) if self.told else ()

    def layer(self, *, create: bool = False) -> Layer:
        """Open the store. *create*: it may be new.

        Raises:
            StoreUnavailable, SchemaMismatch: it cannot be opened; ``NoStore`` if it does not exist and must.
        Refused: the environment says something that cannot be understood.
        """
        if not create and self.path is not None and not self.path.exists():
            raise NoStore(self.url)
        try:
            return Layer(self.url)
        except ValueError as error:
            raise Refused(str(error)) from error


def now_us() -> int:
    """The present, in microseconds since the epoch."""
    return Edge().now_us()


# -- output -----------------------------------------------------------------------------------------------------------


class _Clean(Console):
    """A console that nothing stored can steer: names, goals and answers come from models and strangers.

    What a reader who hung up means it leaves to the program.
    """

    def print(self, *objects: Any, **how: Any) -> None:
        """As of a console, with what could steer a terminal shown as ``\ufffd``."""
        super().print(*map(_cleaned, objects), **how)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _cleaned(printed: Any) -> Any:
    if isinstance(printed, str):
        return clean(printed)
    if isinstance(printed, Text):
        printed.plain = clean(printed.plain)  # as long as it was: styles stay where they are
    return printed


def forgiving() -> None:
    """What is odd about a terminal is no reason to break off, or to show nothing.

    A character that it cannot show is shown as another one. Where an output is closed, what goes there is lost and the exit
    code is still right. A COLUMNS that no page fits in (a program that knows no width says 0) is taken as the nearest that works.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) < _LEAST_COLUMNS:
        os.environ["COLUMNS"] = str(NARROWEST if int(told) else _USUAL_COLUMNS)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def out() -> Console:
    """stdout: text as it is, lines as they come, styles where there is a terminal that wants them (NO_COLOR is heard)."""
    return _Clean(highlight=False, markup=False, emoji=False, soft_wrap=True)


def err() -> Console:
    """stderr: wrapped in a terminal; elsewhere a sentence is a line, for whoever searches a log."""
    console = _Clean(stderr=True, highlight=False, markup=False, emoji=False)
    console.soft_wrap = not console.is_terminal
    return console


def clean(text: str) -> str:
    """*text* without what could steer a terminal: stored text comes from models and strangers. Lines stay lines."""
    return "".join(c if c.isprintable() or c == "\n" else " " if c == "\t" else "\ufffd" for c in text)


def width() -> int:
    """Columns to lay text out in: the terminal's, between 40 and 100, and 80 where there is none."""
    return max(NARROWEST, min(WIDEST, out().width))


def wrapped(text: str, first: str = "", rest: str | None = None) -> str:
    """Cleaned *text* in lines of the page's width, the first indented by *first*, the others by *rest* (default: as wide)."""
    indent = " " * len(first) if rest is None else rest
    return textwrap.fill(
        clean(text), width(), initial_indent=first, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def row(label: str, text: str, columns: int = 10) -> str:
    """A named fact, its text hanging beside the name."""
    return wrapped(text, f"  {label:<{columns}} ")


def command(*parts: str) -> str:
    """A command line that can be pasted into a shell: ``stepseven`` and *parts*, quoted where they must be."""
    return " ".join(["stepseven", *(shlex.quote(clean(part)) for part in parts)])


def print_json(document: object) -> None:
    """One JSON document on stdout, for programs; what does not print is escaped, as JSON can."""
    text = json.dumps(document, ensure_ascii=False, indent=2, default=str)
    sys.stdout.write(_ODD.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text) + "\n")


# -- commands ---------------------------------------------------------------------------------------------------------

_STORE_HELP = "Where state is kept. Default: STEPSEVEN_URL, else sqlite:///stepseven.db."
StoreOption = Annotated[str | None, typer.Option("--store", metavar="URL", help=_STORE_HELP)]
JsonOption = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON document instead of text.")]
DebugOption = Annotated[bool, typer.Option("--debug", metavar="", help="Show the traceback of an error.")]
_SHARED: dict[str, Any] = {"store": StoreOption, "json_": JsonOption, "debug": DebugOption}
_DEFAULTS: dict[str, Any] = {"store": None, "json_": False, "debug": False}


def shared(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command, whose first parameter is the ``Setting``, the options that every command has.

    They may stand before the command or after it. A coroutine function is run to its end.
    """
    hints = get_type_hints(fn, include_extras=True)
    signature = inspect.signature(fn)
    own = [p.replace(annotation=hints[p.name]) for p in list(signature.parameters.values())[1:]]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[name], annotation=hint)
        for name, hint in _SHARED.items()
    ]
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]

    def command(ctx: typer.Context, **given: Any) -> Any:
        before: Setting = ctx.find_root().obj or Setting()
        setting = Setting(
            told=given.pop("store") or before.told,
            as_json=given.pop("json_") or before.as_json,
            debug=given.pop("debug") or before.debug,
        )
        result = fn(setting, **given)
        return asyncio.run(result) if inspect.iscoroutine(result) else result

    command.__name__ = fn.__name__
    command.__doc__ = fn.__doc__
    command.__signature__ = inspect.Signature([context, *own, *added])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [context, *own, *added]}
    return command


def inputs_of(pairs: list[str], *, option: str = "--input", what: str = "NAME=VALUE", such: str = "quarter=Q3") -> dict[str, str]:
    """``k=v`` pairs as a dict, values as given; ``k=@FILE`` reads the file.

    Args:
        pairs: as they were typed.
        option: which they were given to.
        what: their form, in the words of its help.
        such: one of them, as an example.

    Raises:
        Usage: a pair without ``=``, a name twice, or a file that cannot be read.
    """
    given = pairs_of(pairs, option=option, what=what, such=such)
    for name, text in given.items():
        if text.startswith("@"):
            try:
                given[name] = Path(text[1:]).read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                raise Usage(f"{option} {name}: {text[1:]} cannot be read ({why}): name a readable file after the @") from error
    return given


def pairs_of(pairs: list[str], *, option: str, what: str, such: str) -> dict[str, str]:
    """The same, where a value is never a file.

    Raises:
        Usage: a pair without ``=``, or a name twice.
    """
    given: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            file = f", or {option} data=@file.json" if option == "--input" else ""
            raise Usage(f"{option} {pair!r} is not of the form {what}: write {option} {such}{file}")
        if name in given:
            raise Usage(f"{option} {name} is given twice: give each {'input' if option == '--input' else 'one'} once")
        given[name] = text
    return given


def json_or_text(text: str, *, once: str | None = None) -> Any:
    """A value from the command line: JSON if it parses, else the text itself. ``NaN`` and ``Infinity`` are text: JSON has none.

    Args:
        text: as it was typed.
        once: what the value is for, where an object that has a name twice is refused: which of the two is meant, nobody can tell.

    Raises:
        Usage: such an object.
    """

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = next((name for i, (name, _) in enumerate(found) if name in [n for n, _ in found[:i]]), None)
        if once is not None and twice is not None:
            raise Usage(f"the value of {once} has {twice} twice in one object: keep one")
        return dict(found)

    return fitting.json_or_text(text, pairs)


def credential(error: SecretFound) -> Refused:
    """What a person is told who typed in a credential: they have no code in which to name it instead."""
    return Refused(f"{error.path} looks like {error.what}: it is not kept here, and nothing was changed")


def person(by: str | None) -> str:
    """Who does it: as told with ``--by``, else who sits here.

    Raises:
        Usage: what was told is no name.
    """
    if by is None:
        return login()
    if not by.strip() or len(by) > MAX_BY:
        told = f"it has {len(by):,} characters" if by.strip() else "it is empty"
        raise Usage(f"--by is the name of who does it, of 1 to {MAX_BY} characters, and {told}: nothing was changed")
    return by


def login() -> str:
    """Who sits here: USER, else the login name."""
    import getpass

    try:
        return os.environ.get("USER") or getpass.getuser()
    except (OSError, KeyError):  # a container without an account for this user id
        return f"user {os.getuid()}"
