"""``init``: a project that runs at once. Its files lie in ``templates/``."""

from __future__ import annotations

import os
import re
import shlex
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from stepseven import __version__
from stepseven.cli._common import Refused, Setting, clean, command, out, print_json, wrapped

#: the file of the project: the template it is made from
FILES = {"workflows.py": "workflows.py", "pyproject.toml": "project.toml", ".gitignore": "gitignore", "README.md": "README.md"}
_RUN_ID = "first"

Dir = Annotated[str, typer.Argument(metavar="[DIR]", help="The folder; made if it is not there. Default: this one.")]


def init(setting: Setting, folder: Dir = ".") -> None:
    """Set up a project with one workflow that runs at once. Overwrites nothing: if a file is in the way, none is written."""
    if not folder.strip():
        raise Refused("no folder is named (an empty text, perhaps of a variable that is not set): name one, or `.` for this one")
    target = Path(folder)
    _refuse_what_is_there(target, folder)
    _write(target, {name: _filled(template, target) for name, template in FILES.items()})
    lines = _next(setting, folder)
    if setting.as_json:
        print_json({"folder": str(target.resolve()), "files": list(FILES), "next": lines})
        return
    where = "this folder" if target.resolve() == Path.cwd() else folder
    console = out()
    console.print(wrapped(f"Made a project in {where}: {', '.join(FILES)}."))
    console.print("Next:")
    for line in lines:
        console.print(f"  {line}")
    console.print(wrapped(f"The inbox shows the question, and how to answer it; then `{lines[-1]}` goes on."))


def _next(setting: Setting, folder: str) -> list[str]:
    """The commands to give, in their order; the last one after the answer."""
    entered = f"./{folder}" if folder.startswith("-") else folder  # cd would take it for an option
    enter = [] if Path(folder).resolve() == Path.cwd() else [f"cd {shlex.quote(clean(entered))}"]
    told = ("--client", "acme", "--input", "invoice=R-17", "--run-id", _RUN_ID)
    return [
        *enter,
        command("run", "workflows:reminder", *told, *setting.also),
        command("inbox", *setting.also),
        command("resume", _RUN_ID, *setting.also),
    ]


def _refuse_what_is_there(target: Path, folder: str) -> None:
    """Nothing is overwritten.

    Raises:
        Refused: names what is in the way.
    """
    if target.exists() and not target.is_dir():
        raise Refused(f"there is a file at {folder}: name another place")
    there = [name for name in FILES if os.path.lexists(target / name)]
    if there:
        named = " and ".join((", ".join(there[:-1]), there[-1])) if there[1:] else there[0]
        where = "this folder" if target.resolve() == Path.cwd() else folder
        other = command("init", *(["--"] if folder.startswith("-") else []), _free(target, folder))
        raise Refused(f"nothing was written, because {where} has {named} already: name a new folder, such as `{other}`")


def _free(target: Path, folder: str) -> str:
    """The name of a folder that is not there yet."""
    name = "my-agents" if target.resolve() == Path.cwd() else folder.rstrip("/")
    return next(free for n in count(1) if not os.path.lexists(free := name if n == 1 else f"{name}-{n}"))


def _filled(template: str, target: Path) -> str:
    """A template with the project's name and this version."""
    text = resources.files("stepseven.cli.templates").joinpath(template).read_text("utf-8")
    name = re.sub(r"[^a-z0-9]+", "-", target.resolve().name.lower()).strip("-") or "my-agents"
    return text.replace("@name@", name).replace("@version@", __version__)


def _write(target: Path, texts: dict[str, str]) -> None:
    """All files or none.

    Raises:
        Refused: a folder or file cannot be made; what was made before it is taken away again.
    """
    made: list[Path] = []
    try:
        for parent in reversed([target, *target.parents]):
            if not parent.exists():
                parent.mkdir()
                made.append(parent)
        for name, text in texts.items():
            with (target / name).open("x", encoding="utf-8") as file:
                made.append(target / name)
                file.write(text)
    except OSError as error:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()
        why = error.strerror or type(error).__name__
        raise Refused(f"nothing can be set up in {target} ({why}): name a folder that you may write to") from error
