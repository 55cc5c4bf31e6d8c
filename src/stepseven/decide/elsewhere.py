"""What a result names that is kept elsewhere: a file, an object, a page. Found in stored JSON, and compared. Pure.

References are found by their shape, whatever the code's types are by now: an object with the five fields of ``Kept``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from stepseven._dataclass import dataclass

FILE = "file"
S3 = "s3"
WEB = ("https", "http")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(file):", re.IGNORECASE)
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_PORTS = {"https": 443, "http": 80}
_LONGEST = 90  # characters of a URL in a sentence


@dataclass(frozen=True, slots=True)
class Kept:
    """Where something is kept, and what tells whether it is still the same. ``Reference`` is what users see of it."""

    url: str
    hash: str | None = None
    size: int | None = None
    etag: str | None = None
    modified: str | None = None

    def __post_init__(self) -> None:
        wrong = _wrong(self)
        if wrong is not None:
            raise ValueError(wrong)


def _wrong(kept: Kept) -> str | None:
    """What is wrong with a reference, as a sentence; ``None``: nothing. Never shows a credential."""
    scheme = scheme_of(kept.url)
    if not kept.url or any(c < " " or c == "\x7f" for c in kept.url):
        return "a reference needs a path or a URL, without line breaks and the like"
    if scheme not in (FILE, S3, *WEB):
        return f"a reference to {scheme}:// is not understood: give a path, file:, s3:// or https://"
    if scheme == FILE:
        if kept.url[:5].lower() == "file:" and urlsplit(kept.url).netloc.lower() not in ("", "localhost"):
            return "a file: URL names a file of this machine: leave the host out"
    else:
        try:
            parts = urlsplit(kept.url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            return "the URL of a reference cannot be read"
        if "@" in parts.netloc:
            return "the URL of a reference holds a name or a password: give it without (credentials are found by whoever looks)"
        if not host:
            return "the URL of a reference names no host"
    if kept.hash is not None and not _HASH.fullmatch(kept.hash):
        return f"hash={kept.hash[:80]!r}: say 'sha256:' and 64 hexadecimal digits"
    return None


# -- in what is stored ------------------------------------------------------------------------------------------------


def mentions(text: str) -> bool:
    """Whether a stored result may hold a reference. Cheap: looks for words only."""
    return '"etag"' in text and '"modified"' in text and '"hash"' in text and '"url"' in text


def kept_in(text: str) -> tuple[Kept, ...]:
    """Every reference anywhere in a stored result, in order, each once."""
    return tuple(dict.fromkeys(_found(json.loads(text)))) if mentions(text) else ()


def _found(value: Any) -> Iterator[Kept]:
    if isinstance(value, list):
        for item in value:
            yield from _found(item)
    elif isinstance(value, dict):
        kept = _as_kept(value)
        if kept is not None:
            yield kept
            return
        for item in value.values():
            yield from _found(item)


def _as_kept(value: dict[str, Any]) -> Kept | None:
    names = ("url", "hash", "size", "etag", "modified")
    if not all(name in value for name in names):
        return None
    told = {name: value[name] for name in names}
    texts = all(told[name] is None or isinstance(told[name], str) for name in ("hash", "etag", "modified"))
    sized = told["size"] is None or type(told["size"]) is int
    if not (isinstance(told["url"], str) and texts and sized):
        return None
    try:
        return Kept(**told)
    except ValueError:  # somebody else's object that happens to have these fields
        return None


# -- URLs -------------------------------------------------------------------------------------------------------------


def scheme_of(url: str) -> str:
    """``file`` for a path, too."""
    match = _SCHEME.match(url)
    return FILE if match is None else (match[1] or match[2]).lower()


def path_of(url: str) -> str:
    """The path of a local file."""
    return unquote(urlsplit(url).path) if url[:5].lower() == "file:" else url


def host_of(url: str) -> str:
    """Where it has to be asked for: a host, with its port where that is not the usual one; a bucket."""
    if scheme_of(url) == S3:
        return f"s3://{url[5:].partition('/')[0]}"
    return urlsplit(url).netloc.lower()


def shown(url: str) -> str:
    """A URL for people: without what stands behind ``?``, where signatures and tokens stand."""
    scheme = scheme_of(url)
    if scheme == FILE:
        text = path_of(url)
    elif scheme == S3:
        text = url
    else:
        parts = urlsplit(url)
        text = f"{scheme}://{parts.netloc}{parts.path}"
    return text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}"


def allowed(url: str, entries: Sequence[str]) -> bool:
    """Whether a URL is on the allow-list.

    Args:
        url: of a reference; files of this machine need no list.
        entries: each a host (``files.example.com``, ``files.example.com:8443``: that host, by https), or the beginning of a URL
            (``https://files.example.com/invoices``, ``s3://bucket/2026``, ``http://localhost:80``). A path counts in whole parts.
    """
    return scheme_of(url) == FILE or any(_covers(entry.strip(), url) for entry in entries)


def _covers(entry: str, url: str) -> bool:
    entry = entry if "://" in entry else f"https://{entry}"
    scheme = scheme_of(entry)
    if scheme != scheme_of(url):
        return False
    if scheme == S3:
        (bucket, _, prefix), (mine, _, key) = entry[5:].partition("/"), url[5:].partition("/")
        return bool(bucket) and bucket == mine and _below(key, prefix)
    try:
        rule, asked = urlsplit(entry), urlsplit(url)
        same = bool(rule.hostname) and rule.hostname == asked.hostname and _port(rule) == _port(asked)
    except ValueError:  # no URL, or a port that is no number
        return False
    return same and "@" not in rule.netloc and _below(asked.path.removeprefix("/"), rule.path.removeprefix("/"))


def _port(parts: SplitResult) -> int:
    return parts.port if parts.port is not None else _PORTS.get(parts.scheme.lower(), 0)


def _below(path: str, prefix: str) -> bool:
    prefix = prefix.rstrip("/")
    if not prefix:
        return True
    if any(piece in (".", "..") for piece in re.split(r"[/\\]", unquote(path))):  # the other side would leave the folder
        return False
    return path == prefix or path.startswith(f"{prefix}/")


# -- the same still? ----------------------------------------------------------------------------------------------------


def changed(kept: Kept, now: Kept) -> bool:
    """Whether what is there now is another thing. The surest of what both tell decides: hash, etag, size and time."""
    if kept.hash is not None and now.hash is not None:
        return kept.hash != now.hash
    if kept.size is not None and now.size is not None and kept.size != now.size:
        return True
    if kept.etag is not None and now.etag is not None:
        return _strong(kept.etag) != _strong(now.etag)
    return kept.modified is not None and now.modified is not None and kept.modified != now.modified


def _strong(etag: str) -> str:
    """An etag without the mark of a weak one, which a server puts on when it compresses, and without its quotes."""
    return etag.strip().removeprefix("W/").strip('"')
