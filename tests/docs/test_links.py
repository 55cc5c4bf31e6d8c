"""Links lead somewhere, and files that a page names exist."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.pages import ROOT, codes, links, name_of, pages

ROOT_PAGES = sorted(ROOT.glob("*.md"))
EVERY = sorted({*pages(), *ROOT_PAGES, *(ROOT / "examples").rglob("*.md")})
ARCHITECTURE = ROOT / "ARCHITECTURE.md"

#: folders that ARCHITECTURE.md says are still empty
LATER = {"fleet/", "people/", "server/", "integrations/", "crashtest/"}


def anchors(path: Path) -> set[str]:
    """The anchors a page's headings make."""
    made = set()
    for heading in re.findall(r"^#{1,6} (.+)$", path.read_text("utf-8"), re.MULTILINE):
        made.add(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
    return made


@pytest.mark.parametrize("page", [p for p in EVERY if p.exists()], ids=name_of)
def test_every_relative_link_resolves(page: Path):
    """A link to a file of the project finds the file, and a heading in it if it names one."""
    for target in links(page.read_text("utf-8")):
        url = urlsplit(target)
        if url.scheme:
            continue
        file = (page.parent / url.path).resolve() if url.path else page
        assert file.exists(), f"{name_of(page)}: {target}"
        if url.fragment:
            assert url.fragment in anchors(file), f"{name_of(page)}: {target}"


def test_the_index_leads_to_every_page():
    """docs/README.md links to each page under docs/."""
    index = ROOT / "docs" / "README.md"
    reached = {(index.parent / urlsplit(target).path).resolve() for target in links(index.read_text("utf-8"))}
    assert {p for p in (ROOT / "docs").rglob("*.md") if p != index} <= reached


def exists(name: str) -> bool:
    """Whether a path, pattern or module that ARCHITECTURE.md names is there."""
    places = [ROOT, ROOT / "src" / "stepseven", *(p for p in (ROOT / "src" / "stepseven").iterdir() if p.is_dir())]
    pattern = name.rstrip("/")
    if any(next(place.glob(pattern), None) is not None for place in places):
        return True
    room = ROOT / "src" / "stepseven" / pattern.removesuffix(".py")
    return name.endswith(".py") and room.is_dir()  # `testing.py`, which grew into a folder


def test_architecture_names_only_files_that_exist():
    """Every path in ARCHITECTURE.md, tests included, is there; rooms said to be empty are the only exceptions."""
    text = ARCHITECTURE.read_text("utf-8").partition("\n## The contract")[0]  # from there on: names of calls and columns
    named = {
        code for code in codes(text)
        if re.fullmatch(r"[\w./*{},-]+", code) and ("/" in code or code.endswith(".py")) and not code.startswith(("/", "http"))
    }  # fmt: skip
    assert sorted(name for name in named if name not in LATER and not exists(name)) == []


def test_what_architecture_says_is_still_empty_is_empty():
    """A room that exists is no longer listed as empty."""
    text = ARCHITECTURE.read_text("utf-8")
    match = re.search(r"Rooms that are still empty.*?\n\n", text, re.DOTALL)
    assert match is not None
    empty = [code for code in codes(match[0]) if code.endswith("/") and code != "transitions/"]
    assert empty
    for room in empty:
        there = list((ROOT / "src" / "stepseven" / room).glob("[a-z]*.py"))
        assert not there, f"{room} has {', '.join(p.name for p in there)}"
