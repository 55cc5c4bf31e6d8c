"""The order of the rooms, held by reading the sources: nothing below knows anything above it."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "stepseven"

#: Bottom first. A room may import the rooms before it and itself; a new room takes its place here, once.
#: Imports for types alone and imports inside functions count too: what is known is known.
ROOMS = (
    "_dataclass",
    "errors",
    "model",
    "decide",
    "store",
    "keys",
    "transitions",
    "runtime",
    "step",
    "workflow",
    "people",
    "fleet",
    "engines",
    "clients",
    "layer",
    "__init__",  # the public names: `from stepseven import …`
    "testing",
    "crashtest",
    "integrations",
    "server",
    "cli",
    "__main__",
)

#: Never in decide/: the clock, chance, other tasks, child processes.
FORBIDDEN = {
    "time",
    "zoneinfo",
    "random",
    "secrets",
    "uuid",
    "anyio",
    "concurrent",
    "threading",
    "multiprocessing",
    "signal",
    "select",
} | {"subprocess", "shutil", "tempfile", "glob", "fcntl", "io", "logging"}
#: In decide/ for their exception classes, their numbers and the names in PURE alone: failures are classified by both.
BY_NAME = {"asyncio", "socket", "ssl", "sqlite3", "http", "urllib", "os", "pathlib"}
PURE = ("http.HTTPStatus", "urllib.parse", "pathlib.PurePath", "pathlib.PurePosixPath", "os.path.basename", "os.path.dirname")
IMPURE_CALLS = frozenset({"open", "print", "input", "eval", "exec", "__import__"})
CLOCK_METHODS = frozenset({"now", "utcnow", "today"})

#: What `import stepseven` may load besides the standard library. Everything else is imported where it is used.
CHEAP = frozenset({"stepseven", "pydantic_core", "typing_extensions"})

SOURCES = sorted(PACKAGE.rglob("*.py"))
DECIDE = [path for path in SOURCES if path.is_relative_to(PACKAGE / "decide")]


def room_of(path: Path) -> str:
    """The room a source file belongs to: the first part of its path below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a file imports, wherever it does so; ``from a import b`` gives ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}") for alias in node.names)


def imported_room(name: str) -> str | None:
    """The room behind a dotted name, ``__init__`` for the package's public names, None for other packages."""
    top, _, rest = name.partition(".")
    if top != "stepseven":
        return None
    room = rest.partition(".")[0]
    is_room = (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").is_file()
    return room if room and is_room else "__init__"


def upward(room: str, source: str) -> list[str]:
    """What a source file of *room* imports although it may not, as ``line N: name``."""
    allowed = ROOMS[: ROOMS.index(room) + 1]
    wrong = []
    for line, name in imports(ast.parse(source)):
        target = imported_room(name)
        if name.startswith(".") or (target is not None and target not in allowed):
            wrong.append(f"line {line}: {name}")
    return wrong


def harmless(name: str) -> bool:
    """Whether a dotted name of a BY_NAME module is an exception class, a number, or a function of its arguments alone."""
    if any(name == pure or name.startswith(f"{pure}.") for pure in PURE):
        return True
    value = pkgutil.resolve_name(name)
    return isinstance(value, int) or (isinstance(value, type) and issubclass(value, BaseException))


class Impurities(ast.NodeVisitor):
    """Collects what in a source file could reach the clock, chance or the outside, as ``line N: what``."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.modules: dict[str, str] = {}  # the name in the file: the module behind it

    def blame(self, node: ast.stmt | ast.expr, what: str) -> None:
        self.found.append(f"line {node.lineno}: {what}")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.partition(".")[0]
            if top in FORBIDDEN:
                self.blame(node, alias.name)
            elif top in BY_NAME:
                self.modules[alias.asname or top] = alias.name if alias.asname else top

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        top = (node.module or "").partition(".")[0]
        for name in (f"{node.module}.{alias.name}" for alias in node.names):
            if top in FORBIDDEN or (top in BY_NAME and not harmless(name)):
                self.blame(node, name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        root, _, rest = ast.unparse(node).partition(".")
        if root not in self.modules:
            self.generic_visit(node)
        elif not harmless(f"{self.modules[root]}.{rest}"):
            self.blame(node, f"{root}.{rest}")

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.modules:  # the module itself, passed on as a value
            self.blame(node, node.id)

    def visit_Call(self, node: ast.Call) -> None:
        by_name = isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
        by_clock = isinstance(node.func, ast.Attribute) and node.func.attr in CLOCK_METHODS
        if by_name or by_clock:
            self.blame(node, f"{ast.unparse(node.func)}()")
        self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.blame(node, f"async def {node.name}")


def impure(source: str) -> list[str]:
    """What in a source file of decide/ could reach the clock, chance or the outside."""
    visitor = Impurities()
    visitor.visit(ast.parse(source))
    return visitor.found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards_only(path: Path) -> None:
    """A file imports only rooms below its own, absolutely; a room nobody placed in the order is an error."""
    room = room_of(path)
    assert room in ROOMS, f"{room} has no place in ROOMS"
    assert upward(room, path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", DECIDE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_decisions_depend_on_their_arguments_alone(path: Path) -> None:
    """No module of decide/ can reach the clock, chance, a task, the disk, the network or the environment."""
    assert impure(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "room,line",
    [
        ("store", "from stepseven import errors, cli"),
        ("store", "import stepseven.cli.app"),
        ("model", "def later():\n    from stepseven.decide import plan"),
        ("decide", "from . import identity"),
        ("errors", "from stepseven import Run"),
    ],
)
def test_an_upward_import_is_found_however_it_is_written(room: str, line: str) -> None:
    """Submodules, names of the package itself, relative imports and imports in functions are all seen."""
    assert len(upward(room, line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "import random as r",
        "from uuid import uuid4",
        "import os\nos.environ['X']",
        "import os as o\no.path.exists('x')",
        "from os import getpid",
        "from pathlib import Path",
        "import urllib.request\nurllib.request.urlopen('x')",
        "import socket\nsend(socket)",
        "import asyncio\nasyncio.sleep(1)",
        "async def f(): ...",
        "datetime.now(UTC)",
        "open('x')",
    ],
)
def test_an_impure_line_is_found_however_it_is_written(line: str) -> None:
    """The check of decide/ sees renamed imports, submodules, clocks behind datetime, and files opened by name."""
    assert len(impure(line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "import asyncio\nisinstance(error, asyncio.CancelledError)",
        "import http.client\nhttp.client.IncompleteRead",
        "import sqlite3\ncode == sqlite3.SQLITE_BUSY",
        "from urllib.parse import urlsplit",
        "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)",
    ],
)
def test_exception_classes_and_numbers_may_be_named_in_decisions(line: str) -> None:
    """Classifying a failure by its class needs the class, and opens nothing."""
    assert impure(line) == []


def test_importing_stepseven_loads_no_library_that_costs_time() -> None:
    """``import stepseven`` loads the standard library, pydantic_core and nothing else; no telemetry, no framework, no CLI."""
    program = "import sys; before = set(sys.modules); import stepseven; print(*(set(sys.modules) - before))"
    command = [sys.executable, "-c", program]
    child = subprocess.run(command, cwd=PACKAGE.parent, check=True, capture_output=True, text=True, timeout=50)
    loaded = {name.partition(".")[0] for name in child.stdout.split()}
    foreign = {name for name in loaded if not name.startswith("_sysconfigdata")} - sys.stdlib_module_names - CHEAP
    assert foreign == set()
