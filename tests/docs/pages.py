"""The project's pages as data: their fenced blocks, their tables, their links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block. ``line`` is that of its first line of content, so that an error can point into the page."""

    language: str
    marks: tuple[str, ...]
    body: str
    line: int

    @property
    def file(self) -> str | None:
        """The file it is written to (``python file=renewals.py``)."""
        return next((mark.removeprefix("file=") for mark in self.marks if mark.startswith("file=")), None)

    @property
    def needs_postgres(self) -> bool:
        """Whether it takes a PostgreSQL server to run it (``console postgres``)."""
        return "postgres" in self.marks

    @property
    def runs(self) -> bool:
        """Whether a reader can run it as it stands."""
        return self.language in ("python", "console") and "no-run" not in self.marks


def pages() -> list[Path]:
    """README.md and everything in docs/ that people write."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(path: Path) -> str:
    """A page's path as the tests show it."""
    return path.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[Block]:
    """Every fenced block, in order."""
    found = []
    for match in _FENCE.finditer(text):
        language, *marks = match["info"].split() or [""]
        line = text.count("\n", 0, match.start("body")) + 1
        found.append(Block(language=language, marks=tuple(marks), body=match["body"], line=line))
    return found


def prose(text: str) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", text)


def links(text: str) -> list[str]:
    """The targets of its links."""
    return [match["target"] for match in _LINK.finditer(prose(text))]


def codes(text: str) -> list[str]:
    """What stands in backticks outside the fenced blocks."""
    return _CODE.findall(prose(text))


def section(text: str, heading: str) -> str:
    """What stands under *heading* (``## Errors``), up to the next heading of its level or a higher one."""
    level = len(heading) - len(heading.lstrip("#"))
    match = re.search(rf"^{re.escape(heading)}[ \t]*\n(?P<body>.*?)(?=^#{{1,{level}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"there is no heading {heading!r}"
    return match["body"]


def first_cells(text: str) -> list[str]:
    """The first cell of every row of its tables, without the heads."""
    rows = re.findall(r"^\|\s*(.*?)\s*\|", prose(text), re.MULTILINE)
    heads = {rows[i - 1] for i, cell in enumerate(rows) if set(cell) <= set("-: ") and i}
    return [cell for cell in rows if cell not in heads and not set(cell) <= set("-: ")]
