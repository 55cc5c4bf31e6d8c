"""docs/reference.md has every name, option, error, command, variable and exit code there is, and none that there is not."""

from __future__ import annotations

import asyncio
import inspect
import re
from itertools import takewhile
from typing import Any

import pytest
import typer

import stepseven
from stepseven import Layer, Run, StepsevenError, Superseded, testing
from stepseven.cli import later
from stepseven.cli._app import build
from stepseven.cli._common import Exit
from stepseven.model import QuestionKind, QuestionStatus
from stepseven.runtime.attempt import Attempt
from stepseven.runtime.declared import StepOptions
from stepseven.runtime.procedure import WorkflowOptions
from tests.docs.pages import ROOT, blocks, codes, first_cells, pages, prose, section

PAGE = (ROOT / "docs" / "reference.md").read_text("utf-8")
WORD = re.compile(r"`\.?@?([A-Za-z_][\w.]*)[^`]*`")
SHARED = {"--store", "--json", "--debug", "--help"}


def words(cells: list[str]) -> set[str]:
    """The names in the cells: the first word of each piece of code."""
    return {name for cell in cells for name in WORD.findall(cell)}


def rows(heading: str) -> set[str]:
    """The names in the first column of the tables under a heading."""
    return words(first_cells(section(PAGE, heading)))


def own_tables(heading: str) -> list[set[str]]:
    """The same, table by table."""
    parts = re.split(r"\n(?=\n\|)", section(PAGE, heading).split("\n### ")[0])
    return [found for part in parts if (found := words(first_cells(part)))]


def parameters(fn: Any) -> set[str]:
    """What a function takes, but for itself."""
    return set(inspect.signature(fn).parameters) - {"self", "cls"}


ERRORS = {
    name for name in stepseven.__all__ if isinstance(getattr(stepseven, name), type)
    and issubclass(getattr(stepseven, name), StepsevenError | Superseded)
}  # fmt: skip


def test_every_public_name_has_a_line():
    """Each name of `stepseven.__all__` is in one of the two tables, and the tables name nothing else of it."""
    assert rows("## Names") == set(stepseven.__all__) - ERRORS


def test_every_error_has_a_line_that_says_what_to_do():
    """Each exported error is in the table of errors; the three that are not exported are there, too."""
    assert rows("## Errors") == ERRORS
    for cell in re.findall(r"^\| `\w+` \| (.*) \|$", section(PAGE, "## Errors"), re.MULTILINE):
        assert len(cell) > 10  # more than a word


def test_every_option_of_a_step_is_documented():
    """`@step` takes what the table says."""
    options, members = own_tables("## `@step`")
    assert options == set(StepOptions.__dataclass_fields__)
    assert members == {"approach", "probe", "fn", "options", "undo", "verify"}


def test_every_default_of_a_step_is_as_documented():
    """Defaults in the table are those of the code, wherever the table gives a value."""
    for name, told in re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section(PAGE, "## `@step`"), re.MULTILINE):
        assert eval(told) == StepOptions.__dataclass_fields__[name].default, name  # our own page


def test_every_option_of_a_workflow_is_documented():
    """`@workflow` takes what the table says."""
    assert rows("## `@workflow`") == set(WorkflowOptions.__dataclass_fields__)


def test_every_argument_and_method_of_the_layer_is_documented():
    """`Layer` takes and offers what the tables say."""
    arguments, methods = own_tables("## `Layer`")
    assert arguments == parameters(Layer.__init__) - {"edge"}  # for tests: the clock
    offered = {name for name, _ in inspect.getmembers(Layer, inspect.isfunction) if not name.startswith("_")}
    assert methods == offered - {"close", "aclose", "outcome"}  # the first two as context manager; rows inside


@pytest.mark.parametrize("method", ["run", "start", "resume", "runs", "questions", "answer", "cancel", "fork"])
def test_every_argument_of_a_method_is_documented(method: str):
    """A method's line names each of its arguments."""
    line = next(line for line in section(PAGE, "## `Layer`").splitlines() if line.startswith(f"| `{method}("))
    missing = {p for p in parameters(getattr(Layer, method)) - {"call", "inputs"} if not re.search(rf"\b{p}\b", line)}
    assert not missing


def test_every_member_of_the_run_is_documented():
    """`Run` offers what the table says."""
    told = {name.partition(".")[0] for name in own_tables("## `Run`")[0]}
    there = {name for name in dir(Run) if not name.startswith("_")} | {"id", "client_id", "goal", "inputs"}
    assert told == there


def test_every_argument_of_ask_is_documented():
    """`run.ask` takes what the table says, here and on its own page."""
    takes = parameters(Run.ask) - {"text"}
    assert rows("### `run.ask`") == takes
    page = (ROOT / "docs" / "how-to" / "ask-a-person.md").read_text("utf-8")
    assert words(first_cells(page)) == takes


def test_every_member_of_the_attempt_is_documented():
    """`attempt()` offers what the page says."""
    kept = {"facts", "looked", "tokens", "uusd"}  # not offered
    there = {name for name in dir(Attempt) if not name.startswith("_")} - kept
    assert {code.partition("(")[0] for code in codes(section(PAGE, "## `attempt()`"))} == there


def test_every_kind_of_question_is_documented():
    """The tables name the kinds and states there are."""
    text = section(PAGE, "## Questions")
    assert words(first_cells(text)) == {kind.value for kind in QuestionKind}
    assert {status.value for status in QuestionStatus} <= set(codes(text))


# -- the command line -------------------------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    """Every command of the program, as it is built."""
    group: Any = typer.main.get_command(build())
    found = dict(group.commands)
    for name, command in group.commands.items():
        found.update({f"{name} {inner}": each for inner, each in getattr(command, "commands", {}).items()})
    return found


def documented() -> dict[str, str]:
    """Every command that has a heading: its heading and text."""
    text = section(PAGE, "## Command line")
    parts = re.split(r"^### `stepseven ", text, flags=re.MULTILINE)[1:]
    headings = [takewhile(str.islower, part.split("`")[0].split()) for part in parts]  # arguments are in capitals
    return {" ".join(words): part.split("\n### ")[0] for words, part in zip(headings, parts, strict=True)}


def test_every_command_has_a_heading():
    """Each command that works has a heading; those that come later are listed as such."""
    assert set(documented()) == set(commands()) - set(later.COMMANDS)
    names = set(codes(section(PAGE, "### Later")))
    assert names == set(later.COMMANDS)


@pytest.mark.parametrize("name", sorted(set(commands()) - set(later.COMMANDS)))
def test_every_option_of_a_command_is_documented(name: str):
    """A command's table names its options, and only these; its heading shows its arguments."""
    shown = [p for p in commands()[name].params if p.param_type_name == "option" and not p.hidden]
    there = {opt for p in shown for opt in p.opts if opt.startswith("--")}
    told = set(re.findall(r"^\| `(--[\w-]+)", documented()[name], re.MULTILINE))
    assert told == there - SHARED
    arguments = [p for p in commands()[name].params if p.param_type_name == "argument"]
    assert len(documented()[name].split("`")[0].split()) - len(name.split()) == len(arguments)


def test_the_options_of_every_command_are_documented_once():
    """What every command takes is in one table, and every command takes it."""
    told = set(re.findall(r"^\| `(--[\w-]+)", section(PAGE, "## Command line").split("\n### ")[0], re.MULTILINE))
    assert told == SHARED
    for name in set(commands()) - set(later.COMMANDS):
        assert SHARED - {"--help"} <= {opt for p in commands()[name].params for opt in p.opts}, name


def test_every_exit_code_is_documented():
    """The table of exit codes is the program's."""
    told = {int(cell) for cell in first_cells(section(PAGE, "## Exit codes"))}
    assert told == {int(code) for code in Exit}


def test_every_environment_variable_is_documented():
    """Each variable the source reads by name is in the table."""
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py") if "crashtest" not in path.parts)
    read = set(re.findall(r"environ(?:\.get\(|\[)\s*\"([A-Z_]+)\"", source))
    assert read | {"NO_COLOR"} == rows("## Environment")


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_command_that_a_page_names_exists(page: Any):
    """Whatever stands after `stepseven ` in backticks or in a shell block is a command, with options it has."""
    text = page.read_text("utf-8")
    shell = [line.removeprefix("$ ") for b in blocks(text) if b.language in ("sh", "console") for line in b.body.splitlines()]
    lines = [*codes(text), *(line for line in shell if line.startswith("stepseven "))]
    known = commands()
    for line in lines:
        match = re.match(r"stepseven ([a-z]+)\b(.*)", line)
        if match is None:
            continue
        assert match[1] in known, line
        if match[1] not in later.COMMANDS:
            inner = match[2].split()[0] if match[2].split() else ""
            whole = next((n for n in (f"{match[1]} {inner}", f"{match[1]} show") if n in known), match[1])
            options = {opt for n in (match[1], whole) for p in known[n].params for opt in p.opts} | SHARED
            assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", match[2])) <= options, line


def test_the_commands_in_the_readme_exist():
    """README's one line of commands (`show RUN`, …) names commands of the program."""
    text = (ROOT / "README.md").read_text("utf-8")
    line = next(line for line in prose(text).splitlines() if line.startswith("On the command line:"))
    named = {code.removeprefix("stepseven ").split()[0] for code in codes(line)}
    assert named <= set(commands()) - set(later.COMMANDS)


# -- the checkpoint ---------------------------------------------------------------------------------------------------


def test_the_documented_checkpoint_has_the_fields_of_a_real_one():
    """The document shown has exactly the fields that a run's checkpoint has."""
    import json

    shown = json.loads(next(b.body for b in blocks(section(PAGE, "## The checkpoint")) if b.language == "json"))

    @stepseven.workflow("documented checkpoint".replace(" ", "_"))
    async def body(run: Run) -> None: ...

    async def real() -> dict[str, Any]:
        async with testing.layer() as layer:
            await layer.run(body(), client="acme", run_id="r")
            return await layer.checkpoint("r")

    assert set(asyncio.run(real())) == set(shown)
