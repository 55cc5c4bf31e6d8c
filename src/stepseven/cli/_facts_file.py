"""A file of facts about many clients, read whole before anything is kept: CSV from a spreadsheet, or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stepseven.cli._common import Refused

NAMES = ("client", "client_id", "id")  #: what may be called so says whom a row is about; "Client ID" is one of them, too
_SEPARATORS = (",", ";", "\t")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One fact in a file, and where it stands there, in words: its value, the client's id, and its name."""

    client_id: str
    key: str
    value: Any
    where: str
    whose: str
    named: str


class _Header(NamedTuple):
    """The first line of a CSV: in which line it is, the names, and which of them says whom a row is about."""

    line: int
    names: list[str]
    at: int


def read(path: Path) -> list[Cell]:
    """Every fact in a file, in its order.

    Raises:
        Refused: it cannot be read, or is not what it should be; says in which line, and what to do.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise Refused(f"{path} cannot be read ({error.strerror or error}): name a file you can read") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise Refused(f"{path}, line {line}: this is not UTF-8 text: save it as UTF-8 (spreadsheets: “CSV UTF-8”)") from error
    if path.suffix.lower() == ".json":
        found = list(_json(path, text))
    elif path.suffix.lower() in (".csv", ".tsv"):
        before = csv.field_size_limit(len(text) + 1)  # how large a value may be is said in one place, and not here
        try:
            found = list(_csv(path, text))
        finally:
            csv.field_size_limit(before)
    else:
        raise Refused(f"{path} is neither .csv nor .json: give it the ending of what it is")
    _once(path, found)
    return found


def _named(name: str) -> str | None:
    """Which of ``NAMES`` a column or a key is, however it is written."""
    plain = "_".join(name.strip().casefold().replace("_", " ").replace("-", " ").split())
    return plain if plain in NAMES else None


def _whose(names: list[str]) -> str | None:
    """The name that says whom something is about, as it is written; ``None``: there is none.

    Raises:
        ValueError: several could be; names them.
    """
    found = [name for name in names if _named(name) is not None]
    if len(found) > 1:
        raise ValueError(f"{' and '.join(found)} could each say whom it is about: keep one, and rename or take out the others")
    return found[0] if found else None


def _once(path: Path, cells: list[Cell]) -> None:
    """No fact twice: which of the two is meant, nobody can tell."""
    seen: dict[tuple[str, str], str] = {}
    for cell in cells:
        before = seen.setdefault((cell.client_id, cell.key), cell.where)
        if before != cell.where:
            raise Refused(f"{path}, {cell.where}: {cell.client_id} is there already ({before}): keep one row for each client")


# -- CSV --------------------------------------------------------------------------------------------------------------


def _csv(path: Path, text: str) -> Iterator[Cell]:
    if not text.strip():
        raise Refused(f"{path} is empty: its first line names the columns, one of them `client`")
    separator = _separator(text)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    header: _Header | None = None
    clients: dict[str, int] = {}
    while True:
        line = rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise Refused(f"{path}, line {line}: it cannot be read as CSV ({error}): mend that line") from error
        if row is None:
            break
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        if header is None:
            header = _header(path, line, cells)
            continue
        yield from _row(path, line, header, cells, clients)
    if not clients:
        raise Refused(f"{path} has no row beneath its first line: nothing to import")


def _separator(text: str) -> str:
    """Which separator splits the first line so that one of its columns says whom a row is about."""
    first = next(line for line in text.splitlines() if line.strip())
    for separator in _SEPARATORS:
        if any(_named(cell.strip().strip('"')) for cell in first.split(separator)) and separator in first:
            return separator
    return ","


def _header(path: Path, line: int, cells: list[str]) -> _Header:
    names = list(cells)
    while names and not names[-1]:
        names.pop()
    twice = next((name for i, name in enumerate(names) if name and name in names[:i]), None)
    if twice is not None:
        raise Refused(f"{path}, line {line}: the column {twice} is there twice: rename one")
    try:
        whose = _whose(names)
    except ValueError as error:
        raise Refused(f"{path}, line {line}: the columns {error}") from error
    if whose is None:
        raise Refused(
            f"{path}, line {line}: no column is called client (or client_id, or id): name the one that says whom a row is about"
        )
    if len([name for name in names if name]) == 1:
        raise Refused(f"{path}, line {line}: there is no column with a fact: add one, such as vat_number")
    return _Header(line, names, names.index(whose))


def _row(path: Path, line: int, header: _Header, cells: list[str], clients: dict[str, int]) -> Iterator[Cell]:
    names, at = header.names, header.at
    client = cells[at] if at < len(cells) else ""
    whose = f"line {line}, column {names[at]}"
    if not client:
        raise Refused(f"{path}, {whose}: it is empty: say whom the row is about")
    if client in clients:
        raise Refused(f"{path}, line {line}: {client} is there already (line {clients[client]}): keep one row for each client")
    clients[client] = line
    for i, text in enumerate(cells):
        if not text or i == at:
            continue  # an empty cell says nothing
        if i >= len(names) or not names[i]:
            raise Refused(f"{path}, line {line}: cell {i + 1} has no column name: name it in the first line, or empty the cell")
        named = f"line {header.line}, column {i + 1}"
        yield Cell(client_id=client, key=names[i], value=text, where=f"line {line}, column {names[i]}", whose=whose, named=named)


# -- JSON -------------------------------------------------------------------------------------------------------------


def _json(path: Path, text: str) -> Iterator[Cell]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = next((key for i, (key, _) in enumerate(pairs) if key in [k for k, _ in pairs[:i]]), None)
        if twice is not None:
            raise Refused(f"{path}: {twice} is there twice in one object: keep one")
        return dict(pairs)

    def no_number(word: str) -> Any:
        raise Refused(f"{path}: {word} is no JSON value: write a number, a text or null")

    try:
        document = json.loads(text, object_pairs_hook=once, parse_constant=no_number)
    except json.JSONDecodeError as error:
        raise Refused(f"{path}, line {error.lineno}: it cannot be read as JSON ({error.msg}): mend that line") from error
    except RecursionError as error:
        raise Refused(f"{path} is nested too deeply to be facts") from error
    except ValueError as error:  # Python reads no number of more than 4,300 digits
        raise Refused(f"{path}: a number in it has too many digits to be read: write it as a text, in quotes") from error
    for where, client, told in _objects(path, document):
        for key, value in _stripped(path, "fact", told):
            if value is not None:  # null says nothing
                yield Cell(client_id=client, key=key, value=value, where=f"{where}, {key}", whose=where, named=where)


def _stripped(path: Path, what: str, told: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """An object's items, their names without what stands around them, as in a CSV."""
    written: dict[str, str] = {}
    for raw, value in told.items():
        name = raw.strip()
        if not name:
            raise Refused(f"{path}: a {what} has no name ({raw!r}): give it one")
        if name in written:
            raise Refused(f"{path}: the {what} {name} is there twice, as {written[name]!r} and {raw!r}: keep one")
        written[name] = raw
        yield name, value


def _objects(path: Path, document: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    shape = '{"acme": {"vat_number": "…"}}, or a list of objects with a client'
    if not document:
        raise Refused(f"{path} holds nothing: write {shape}")
    if isinstance(document, dict):
        for client, told in _stripped(path, "client", document):
            if not isinstance(told, dict):
                raise Refused(f"{path}, client {client}: its facts are no object: write {shape}")
            yield f"client {client}", client, told
        return
    if not isinstance(document, list):
        raise Refused(f"{path} is neither an object nor a list: write {shape}")
    seen: dict[str, int] = {}
    for n, told in enumerate(document, 1):
        try:
            name = _whose(list(told)) if isinstance(told, dict) else None
        except ValueError as error:
            raise Refused(f"{path}, entry {n}: {error}") from error
        if name is None or not isinstance(told[name], str) or not told[name].strip():
            raise Refused(f"{path}, entry {n}: it does not say whom it is about: give it a client, a text")
        client = told[name].strip()
        if client in seen:
            raise Refused(f"{path}, entry {n}: {client} is there already (entry {seen[client]}): keep one for each client")
        seen[client] = n
        yield f"entry {n}", client, {key: value for key, value in told.items() if key != name}
