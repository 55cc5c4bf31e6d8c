"""The code has what the contract's page names: every name, parameter, default, table, column, value."""

from __future__ import annotations

import inspect
import re
import sqlite3
import typing
from dataclasses import MISSING, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

import stepseven
import stepseven.testing
from stepseven import StepsevenError, Superseded, model
from stepseven.errors import NotYetBuilt
from stepseven.runtime.attempt import Attempt
from stepseven.runtime.declared import Step
from stepseven.store.sqlite import SqliteStore

PAGE = (Path(__file__).resolve().parents[2] / "ARCHITECTURE.md").read_text("utf-8")
API = PAGE.partition("```python\n")[2].partition("```")[0]
TABLES = PAGE.partition("### Tables")[2].partition("### Questions")[0]

#: Of the contract, and not built yet: calling it says so. The list only gets shorter.
LATER = {"Layer.review", "Layer.board"}
LATER_NAMES = {"Review", "Board"}


def calls() -> dict[str, str]:
    """Each call the page spells out, and the text between its parentheses."""
    found: dict[str, str] = {}
    for match in re.finditer(r"(?<![\w.])(@?[a-z]+(?:\.[a-z_]+)?|[A-Z]\w+)\(", API):
        depth, end = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(API[end], 0)
            end += 1
        found.setdefault(match[1], API[match.end() : end - 1])
    return found


def parameters(text: str) -> dict[str, Any]:
    """Parameter → default (``...`` = the page gives none); ``*`` is left out, alternatives are written ``first|other``."""
    found: dict[str, Any] = {}
    for part in re.split(r",\s*(?![^(\[{]*[)\]}])", text):
        name, has_default, default = part.strip().partition("=")
        if re.fullmatch(r"[a-z_]\w*", name):
            first = default.partition("|")[0]
            found[name] = eval(first, {}) if has_default and first != "…" else ...
    return found


CALLS = calls()


def signature_of(name: str) -> dict[str, Any]:
    """The real parameters and defaults of a call of the page."""
    owner, _, method = name.partition(".")
    real: Any
    if name in ("@step", "@workflow"):
        real = typing.get_overloads(getattr(stepseven, name[1:]))[-1]
    elif owner == "layer":
        real = getattr(stepseven.Layer, method)
    elif owner == "run":
        real = getattr(stepseven.Run, method)
    else:
        real = getattr(stepseven, name)
    return {p.name: ... if p.default is p.empty else p.default for p in inspect.signature(real).parameters.values()}


#: Calls of the page whose parentheses hold values, not parameters.
SPOKEN = {
    "Secret", "NotYet", "layer.client", "layer.run", "layer.start", "layer.run_blocking", "layer.resume_blocking", "run.start",
    "renewal", "child",
}  # fmt: skip
SPELLED = sorted(
    name for name in CALLS
    if name not in SPOKEN and (name.startswith(("@", "layer.", "run.")) or hasattr(stepseven, name))
)  # fmt: skip


def test_the_page_is_read() -> None:
    """The page's calls are found: a check that finds nothing proves nothing."""
    assert {"@step", "@workflow", "Layer", "Cost", "Limits", "layer.resume", "layer.answer", "run.ask", "run.map"} <= set(SPELLED)
    assert len(parameters(CALLS["@step"])) == 22
    assert parameters(CALLS["@step"])["effect"] == "read"


@pytest.mark.parametrize("name", SPELLED)
def test_call_has_what_the_page_says(name: str) -> None:
    """The call takes every parameter the page lists, with the default it lists."""
    told, real = parameters(CALLS[name]), signature_of(name)
    assert set(told) <= set(real), sorted(set(told) - set(real))
    for parameter, default in told.items():
        if default is ...:
            continue
        ours = real[parameter]
        if ours is None and default in ({}, ()):
            continue  # "nothing" said without a shared mutable default
        if default is None and type(ours) is object:
            continue  # "not given" told apart from an explicit None
        assert ours == default, parameter


def test_run_and_start_take_the_same() -> None:
    """`run` and `start` take client, run_id, goal (and `run` a wait), and the inputs by name."""
    for method in ("run", "start"):
        real = inspect.signature(getattr(stepseven.Layer, method)).parameters
        assert {"client", "run_id", "goal"} <= set(real)
        assert any(p.kind is p.VAR_KEYWORD for p in real.values())
        assert real["client"].default is inspect.Parameter.empty


def lists(line: str) -> list[str]:
    """The names after ``Word:`` on the page."""
    text = re.search(rf"(?<!\w){line}: ([^\n]*?)(?:   |  \(|\n)", API + "\n")
    assert text is not None, line
    return [re.sub(r"\(.*", "", part.strip()) for part in text[1].split(",")]


@pytest.mark.parametrize("owner", ["Outcome", "Option", "Question", "Run"])
def test_value_has_its_fields(owner: str) -> None:
    """Each field and method the page lists exists under that name."""
    real: Any = getattr(stepseven, owner)
    known = set(dir(real)) | {f.name for f in fields(real)} if hasattr(real, "__dataclass_fields__") else set(dir(real))
    known |= set(_assigned(real.__init__))
    listed = [name for name in lists(owner) if name]
    assert len(listed) > 4
    assert [name for name in listed if name not in known] == []


def _assigned(init: Any) -> list[str]:
    """The attributes a handwritten ``__init__`` sets."""
    made = init.__code__.co_filename == "<string>"  # a dataclass's
    return [] if made else re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", inspect.getsource(init))


def test_attempt_has_its_fields() -> None:
    """What the page lists of `attempt()` exists."""
    text = re.search(r"attempt\(\): (.*?)   ", API)
    assert text is not None
    listed = [re.sub(r"\(.*", "", part.strip()) for part in re.split(r",\s*(?![^(]*\))", text[1])]
    known = set(dir(Attempt)) | set(_assigned(Attempt.__init__))
    assert [name for name in listed if name not in known] == []


def test_step_has_its_parts() -> None:
    """`.approach .probe .undo .verify .fn .options` exist on a step."""
    parts = re.findall(r"(?:^| )\.([a-z]+)", API.partition("@workflow")[0], re.MULTILINE)
    assert parts == ["approach", "probe", "undo", "verify", "fn", "options"]

    @stepseven.step
    async def look() -> int:
        return 1

    assert isinstance(look, Step)
    assert [part for part in parts if not hasattr(look, part)] == []


def errors() -> tuple[list[str], list[str]]:
    """The page's errors and signals."""
    text = API.partition("errors (all StepsevenError): ")[2]
    listed, _, signals = text.partition("· signals (BaseException):")
    return listed.split(), signals.split()


@pytest.mark.parametrize("name", [*errors()[0], "Waiting", "Failed"])
def test_error_is_ours(name: str) -> None:
    """Every error of the page imports from `stepseven` and is a StepsevenError with a docstring that says what to do."""
    error = getattr(stepseven, name)
    assert issubclass(error, StepsevenError)
    assert error.__doc__


def test_superseded_is_no_exception() -> None:
    """`except Exception` in user code does not swallow `Superseded`."""
    assert errors()[1] == ["Superseded"]
    assert issubclass(Superseded, BaseException)
    assert not issubclass(Superseded, Exception)


def test_hand_raised_are_no_errors_of_ours() -> None:
    """What a step raises by hand is an Exception, but no StepsevenError: the two are never mistaken for each other."""
    for name in ("Retryable", "Fixable", "Fatal", "AlreadyDone", "Conflict", "NotYet"):
        assert issubclass(getattr(stepseven, name), Exception)
        assert not issubclass(getattr(stepseven, name), StepsevenError)


def test_every_name_imports_from_the_top() -> None:
    """Every name that begins with a capital on the page, and the decorators, import from `stepseven`."""
    names = set(re.findall(r"(?<![\w\"/])([A-Z][a-z]+\w*)\b", re.sub(r"#.*|\"[^\"]*\"", "", API)))
    names -= {"R", "BaseException", "STEPSEVEN_URL", "StepsevenError", *LATER_NAMES} | {"None", "False", "True"}
    names |= {"StepsevenError", "step", "workflow", "attempt", "Page", "RunInfo"}
    assert sorted(name for name in names if not hasattr(stepseven, name)) == []
    assert sorted(name for name in names if name not in stepseven.__all__) == []


@pytest.mark.parametrize("name", sorted(LATER))
async def test_what_is_not_built_says_so(name: str) -> None:
    """A call of the contract that is still to come raises an error that says so, and is listed here only as long."""
    arguments: dict[str, tuple[Any, ...]] = {"plan": ("r",), "client": ("c",)}
    async with stepseven.testing.layer() as layer:
        method = name.partition(".")[2]
        with pytest.raises(NotYetBuilt):  # noqa: PT012 - some are awaited
            made = getattr(layer, method)(*arguments.get(method, ()), **({"older_than": 90} if method == "prune" else {}))
            if inspect.isawaitable(made):
                await made


# -- tables -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Table or view → its columns."""
    path = tmp_path_factory.mktemp("contract") / "s.db"
    SqliteStore(f"sqlite:///{path}", str(path)).close()
    connection = sqlite3.connect(path)
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
    return {name: [row[1] for row in connection.execute(f"PRAGMA table_xinfo({name})")] for name in names}


def told_tables() -> dict[str, list[str]]:
    """Table → columns, as the page's table tells them."""
    found: dict[str, list[str]] = {}
    for line in re.findall(r"^\| (`.*)\|$", TABLES, re.MULTILINE):
        heads, _, text = line.partition("|")
        for name in re.findall(r"`(\w+)`", heads):
            found.setdefault(name, [])
        first = re.findall(r"`(\w+)`", heads)[0]
        for n, part in enumerate(text.split(" · ")):
            inner = re.match(r"\s*`(\w+)`: (.*)", part)
            name, listed = (inner[1], inner[2]) if inner else (first, part)
            if (n == 0 and "," not in listed) or "§" in listed:
                continue
            plain = re.sub(r"\([^)]*\)|: only .*|; unique.*", "", listed)
            found[name] = [column.strip() for column in plain.split(",") if column.strip()]
    return found


def test_tables_and_columns_exist(columns: dict[str, list[str]]) -> None:
    """Every table and column of the page is there, under that name."""
    told = told_tables()
    assert len(told) > 20
    assert "fence" in told["run"]
    assert "valid_until_us" in told["fact"]
    assert "plan" in told["recovery"]
    missing = {f"{t}.{c}" for t, listed in told.items() for c in listed if c not in columns.get(t, [])}
    assert missing == set()
    assert set(told) <= set(columns)


def test_view_has_its_columns(columns: dict[str, list[str]]) -> None:
    """The view `checkpoint` has the page's columns, in its order."""
    text = re.search(r"View `checkpoint`.*?: `([^`]*)`", TABLES)
    assert text is not None
    assert columns["checkpoint"] == text[1].split(", ")


@pytest.mark.parametrize(
    "enum, row, column",
    [
        (model.RunStatus, "run", "status"), (model.WaitingFor, "run", "waiting_for"), (model.StepState, "step", "state"),
        (model.AttemptOutcome, "attempt", "outcome"), (model.EffectState, "effect", "state"),
    ],
)  # fmt: skip
def test_enum_has_the_pages_values(enum: type[StrEnum], row: str, column: str) -> None:
    """The enum's values are the page's, in its order."""
    text = re.search(rf"^\| `{row}` \|.*?{column} \(`([^`]*)`\)", TABLES, re.MULTILINE)
    assert text is not None
    assert [member.value for member in enum] == text[1].split()


def test_question_kinds_and_status() -> None:
    """The kinds of questions and their status are the page's."""
    part = PAGE.partition("### Questions")[2]
    lines = re.findall(r"^\| (`.*)\|$", part, re.MULTILINE)
    kinds = [k for line in lines for k in re.findall(r"(?:^|· )`(\w+)`(?=\s*[|:(])", line)]
    assert set(kinds) == {kind.value for kind in model.QuestionKind}
    status = re.search(r"^Status: `([^`]*)`", part, re.MULTILINE)
    assert status is not None
    assert [s.value for s in model.QuestionStatus] == status[1].split()


def test_defaults_of_values() -> None:
    """`Cost()` costs nothing and `Limits()` limits nothing."""
    assert all(f.default == 0 for f in fields(model.Cost))
    assert all(f.default is None and f.default is not MISSING for f in fields(model.Limits))
