"""What the pages show runs as it stands, and prints what they say it prints."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import Block, blocks, name_of, pages
from tests.servers import programs
from tests.servers.databases import new_database

PLAY = Path(__file__).with_name("play.py")
LANGUAGES = {"python", "console", "text", "sh", "json", "sql", "toml", "ini"}
DATABASE = "postgresql://agents@db.example/agents"  #: what pages call the reader's own
PAGE_S = 240.0  # of patience: a page calls the command line twenty times, on a machine that does other things beside it

#: what differs from run to run: ids, process numbers, dates, times, durations, folders
_VARYING = (
    (re.compile(r"\b[qcrw]_[0-9a-z]{12}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d(:\d\d)?)?"), "DATE"),
    (re.compile(r"\b(?:just now|\d+(?:\.\d+)? (?:ms|s|seconds?|minutes?|min|h)(?: ago)?)\b"), "DURATION"),
    (re.compile(r"/tmp/\S+/"), ""),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r" ?\n"), "\n"),
)  # fmt: skip


def leveled(text: str) -> str:
    """*text* without what differs from run to run, and without layout."""
    for pattern, by in _VARYING:
        text = pattern.sub(by, text)
    return "\n".join(line.strip() for line in text.strip().splitlines() if line.strip())


def matches(shown: str, printed: str) -> bool:
    """Whether a page's ``text`` is what was printed.

    ``…`` on a line of its own stands for any lines, in a line for any text. Where a sentence is broken into lines depends on the
    lengths of ids, numbers and names in it, so a line's end is as good as a space.
    """
    pattern = ""
    lines = leveled(shown).split("\n")
    for line, after in zip(lines, [*lines[1:], "…"], strict=True):
        text = re.escape(line).replace("\\ ", r"\s").replace("…", r".*?(?:\n.*?)??")
        pattern += r"(?:.*\n)*?" if line == "…" else text + (r"\n" if after == "…" else r"\s")
    return re.fullmatch(pattern, leveled(printed) + "\n") is not None


def played(page: Path, folder: Path) -> list[tuple[Block, dict[str, Any]]]:
    """Play a page in *folder*; each block that ran with what came of it."""
    todo = [block for block in blocks(page.read_text("utf-8")) if block.runs]
    mine = new_database("page", schema=False) if any(block.needs_postgres for block in todo) else DATABASE
    told = json.dumps([
        {"language": b.language, "body": b.body.replace(DATABASE, mine), "file": b.file, "line": b.line} for b in todo
    ])  # fmt: skip
    results = folder / "results.json"
    home = folder / "page"
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("STEPSEVEN_")}
    psql = programs.find("psql")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:{psql.parent if psql else ''}"  # `stepseven` of this environment
    env = {**kept, "PATH": path, "USER": "ann", "COLUMNS": "100", "NO_COLOR": "1"}
    with (folder / "told").open("w+") as said, subprocess.Popen(
        [sys.executable, "-W", "error", str(PLAY), str(results)], stdin=subprocess.PIPE, stdout=said, stderr=said,
        cwd=home, env=env, text=True, start_new_session=True,
    ) as child:  # fmt: skip
        try:
            child.communicate(told, timeout=PAGE_S)
        finally:
            with suppress(ProcessLookupError):  # workers that the page started, where it broke off before it stopped them
                os.killpg(child.pid, signal.SIGKILL)
        said.seek(0)
        assert results.exists(), said.read()
    return [(block, _as_in_the_page(result, mine)) for block, result in zip(todo, json.loads(results.read_text()), strict=False)]


def _as_in_the_page(result: dict[str, Any], mine: str) -> dict[str, Any]:
    return {**result, "output": result["output"].replace(mine, DATABASE)}


def playable() -> list[Any]:
    """The pages with something to run; those that need a server are skipped where there is none."""
    made = []
    for page in pages():
        ran = [block for block in blocks(page.read_text("utf-8")) if block.runs]
        marks = [pytest.mark.postgres] if any(block.needs_postgres for block in ran) else []
        made += [pytest.param(page, marks=marks, id=name_of(page))] if ran else []
    return made


@pytest.mark.slow
@pytest.mark.timeout(PAGE_S + 60)
@pytest.mark.parametrize("page", playable())
def test_what_a_page_shows_runs_and_prints_what_it_says(page: Path, tmp_path: Path):
    """Every block of a page runs in order, in an empty folder, and prints what the page shows under it."""
    text = page.read_text("utf-8")
    results = {block.line: result for block, result in played(page, tmp_path)}
    everything = blocks(text)
    for block, after in zip(everything, [*everything[1:], None], strict=True):
        result = results.get(block.line)
        if not block.runs:
            continue
        where = f"{name_of(page)}, line {block.line}"
        assert result is not None, f"{where}: not reached"
        assert result["error"] is None, f"{where}: {result['error']}\nprinted before: {result['output']}"
        if block.language == "console":
            assert matches(block.body, result["output"]), f"{where} shows\n{block.body}\nand it printed\n{result['output']}"
        elif after is not None and after.language == "text" and block.file is None:
            assert matches(after.body, result["output"]), f"{where} printed\n{result['output']}\nand the page says\n{after.body}"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_block_says_what_it_is(page: Path):
    """Every fenced block has a language; Python that is not to be run says so, and still compiles."""
    for block in blocks(page.read_text("utf-8")):
        assert block.language in LANGUAGES, f"line {block.line}: {block.language!r}"
        if block.language == "python":
            compile(block.body, name_of(page), "exec")


@pytest.mark.parametrize(
    "shown, printed, same",
    [
        ("a q_0123456789ab", "a q_zzzzzzzzzzzz", True),
        ("a\n…\nz", "a\nb\nc\nz", True),
        ("a … z", "a b z", True),
        ("a b\nc", "a\nb c", True),
        ("a\n…\nz", "a b\nz", False),
        ("a", "a\nb", False),
        ("done 3 s ago", "done   5 s ago", True),
        ("done twice", "done once", False),
    ],
)
def test_the_comparison_ignores_only_what_differs_from_run_to_run(shown: str, printed: str, same: bool):
    """Ids, times and layout may differ between a page and what was printed, words and numbers may not."""
    assert matches(shown, printed) is same
