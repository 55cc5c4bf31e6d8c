"""References: a result that names what is kept elsewhere, and a look whether that is still there and the same.

A look changes nothing. Over the network it goes only where ``STEPSEVEN_ALLOW`` says, follows no redirect, and a place that does
not answer is not "gone". Everything here blocks: it is called in a thread. What speaks HTTP is loaded with the first look.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide import elsewhere
from stepseven.decide.elsewhere import FILE, S3, Kept
from stepseven.store.codec import free_text
from stepseven.store.redact import MASK

HASHED = 256 << 20  #: bytes of a file that are hashed whatever its times say: a fifth of a second
ANSWER_S = 10.0  #: for a web server or an object store to answer
GONE = "is gone"
CHANGED = "was changed"
NO_FILE = "is no file any more"
_PIECE = 1 << 20
_MISSING = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)


class CannotTell(OSError):
    """It could not be looked. ``place``: the host, bucket or file that is to blame; ``away``: nobody answers there."""

    def __init__(self, place: str, reason: str, *, away: bool = False) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place
        self.reason = reason
        self.away = away


@dataclass(frozen=True, slots=True)
class Reference(Kept):
    """Something a step made or found that is kept elsewhere, and what tells whether it is still the same.

    Return it from a step, alone or anywhere in a result, with the return type annotated. In a recovery it is looked whether it is
    still there and unchanged; if not, the step runs again.

    Attributes:
        url: a path, ``file:``, ``s3://…`` or ``https://…``. Without a name or password in it.
        hash: ``"sha256:…"``; ``None``: not known.
        size: bytes; ``None``: not known.
        etag: what the other side calls this version of it.
        modified: when it was changed last, as the other side says it; where there is no etag.

    Raises:
        ValueError: the URL is none of these, or holds a credential; the hash has another form.
    """

    @classmethod
    def of(cls, where: str | os.PathLike[str]) -> Reference:
        """A reference to what is there now. Blocks: in an ``async def`` step use ``await asyncio.to_thread(Reference.of, …)``.

        Args:
            where: a path or a URL. A file is read (its hash and size are kept, and its absolute path); ``https://`` and ``s3://``
                are only asked, and only if they are on the allow-list (``STEPSEVEN_ALLOW``). ``s3://`` needs ``s3fs``.

        Raises:
            FileNotFoundError: there is nothing.
            ValueError: it is a folder, is not on the allow-list, or no URL of a reference.
            OSError: it cannot be read, or does not answer.
        """
        url = os.fspath(where)
        if elsewhere.scheme_of(url) == FILE:
            return _of_file(url)
        Reference(url)  # refuses what is wrong with it
        if not elsewhere.allowed(url, allow_list()):
            raise ValueError(f"{elsewhere.shown(url)} is not on the allow-list: name {elsewhere.host_of(url)} in STEPSEVEN_ALLOW")
        now = _there(Kept(url))
        if now is None:
            raise FileNotFoundError(f"there is nothing at {elsewhere.shown(url)}")
        return cls(url, size=now.size, etag=now.etag, modified=None if now.etag else now.modified)


def _of_file(url: str) -> Reference:
    path = Path(elsewhere.path_of(url)).absolute()
    if path.is_dir():
        raise ValueError(f"{path} is a folder: a reference is to one file")
    if path.exists() and not path.is_file():  # before it is opened: a pipe would wait
        raise ValueError(f"{path} is no ordinary file")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256")
        size = file.tell()
    by_url = url[:5].lower() == "file:" and Path(elsewhere.path_of(url)).is_absolute()
    return Reference(url if by_url else str(path), f"sha256:{found.hexdigest()}", size)


def allow_list() -> tuple[str, ...]:
    """Where a look may go besides this machine's files."""
    return tuple(filter(None, (entry.strip() for entry in os.environ.get("STEPSEVEN_ALLOW", "").split(","))))


def shown(url: str) -> str:
    """A URL or path for people: a file below the current folder by the shorter way."""
    if elsewhere.scheme_of(url) == FILE:
        path, here = Path(elsewhere.path_of(url)), _here()
        if here is not None and path.is_relative_to(here):
            return elsewhere.shown(str(path.relative_to(here)))
    return free_text(elsewhere.shown(url), 200)


def _here() -> Path | None:
    """The current folder; ``None``: a deployment has removed it."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


# -- looking --------------------------------------------------------------------------------------------------------------


def look(kept: Kept, since_us: int) -> str | None:
    """Whether it is still there and the same.

    Args:
        kept: the reference.
        since_us: when it was made. Files over ``HASHED`` bytes that nobody touched since then are not hashed again.

    Returns:
        ``None``: it is. Else what became of it: ``GONE``, ``CHANGED`` or ``NO_FILE``.

    Raises:
        CannotTell: it could not be looked.
    """
    if elsewhere.scheme_of(kept.url) == FILE:
        return _file(kept, since_us)
    if MASK in kept.url:
        raise CannotTell(elsewhere.host_of(kept.url), "its address holds a credential, which was not kept")
    now = _there(kept)
    if now is None:
        return GONE
    return CHANGED if elsewhere.changed(kept, now) else None


def _file(kept: Kept, since_us: int) -> str | None:
    path = elsewhere.path_of(kept.url)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - before it is opened: a pipe would wait, a device may act
            return NO_FILE
        with closing(os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")) as file:
            found = os.fstat(file.fileno())
            if kept.size is not None and found.st_size != kept.size:
                return CHANGED
            touched_us = max(found.st_mtime_ns, found.st_ctime_ns) // 1000  # the second tells of a copy that kept its time
            if kept.hash is None or (found.st_size > HASHED and touched_us <= since_us):
                return None
            return None if f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" == kept.hash else CHANGED
    except (FileNotFoundError, NotADirectoryError):
        return GONE
    except (OSError, ValueError) as error:  # no permission, a sick disk
        raise CannotTell(shown(kept.url), reason_of(error)) from error


def _there(kept: Kept) -> Kept | None:
    """What is there now; ``None``: nothing."""
    from http.client import HTTPException

    try:
        return _object(kept) if elsewhere.scheme_of(kept.url) == S3 else _page(kept)
    except CannotTell:
        raise
    except (OSError, HTTPException, ValueError) as error:
        raise CannotTell(elsewhere.host_of(kept.url), reason_of(error), away=not isinstance(error, ValueError)) from error


def reason_of(error: BaseException) -> str:
    """An error for people. Never with a URL: that may hold a signature."""
    from urllib.error import URLError

    inner = error.reason if isinstance(error, URLError) else error
    if isinstance(inner, TimeoutError):
        return f"no answer within {ANSWER_S:g} s"
    if isinstance(inner, OSError) and inner.strerror:
        return free_text(inner.strerror, 200)
    return type(inner).__name__ if isinstance(inner, BaseException) else free_text(str(inner), 200)


# -- the web --------------------------------------------------------------------------------------------------------------


def _page(kept: Kept) -> Kept | None:
    """Ask a web server: its head first; the whole only where that says too little, or no."""
    end = time.monotonic() + ANSWER_S
    with _answer(kept.url, "HEAD", end) as head:
        now = _described(kept.url, head) if head.status < HTTPStatus.MULTIPLE_CHOICES else None
    if now is not None and not _doubtful(kept, now):
        return now
    with _answer(kept.url, "GET", end) as whole:  # some answer a HEAD with 403, 404 or 405, and have it all the same
        if whole.status in _MISSING:
            return None
        if whole.status >= HTTPStatus.MULTIPLE_CHOICES:
            moved = " with a redirect, which is not followed" if whole.status < HTTPStatus.BAD_REQUEST else ""
            raise CannotTell(elsewhere.host_of(kept.url), f"it answered {whole.status}{moved}")
        now = _described(kept.url, whole)
        if _doubtful(kept, now) and (now.size or 0) <= HASHED:
            return Kept(now.url, _hashed(whole, kept, end), now.size, now.etag, now.modified)
    return now


def _doubtful(kept: Kept, now: Kept) -> bool:
    """Whether only the content tells: its hash is known, and nothing cheaper says that it is the same."""
    if kept.hash is None or (kept.size is not None and now.size is not None and kept.size != now.size):
        return False
    return kept.etag is None or now.etag is None or elsewhere.changed(Kept(kept.url, etag=kept.etag), now)


def opener(*handlers: Any) -> Any:
    """What asks: it follows no redirect. Whoever is on the allow-list may not send us anywhere else.

    *handlers*: urllib's, besides the usual ones.
    """
    from urllib.request import HTTPRedirectHandler, build_opener

    class NoRedirects(HTTPRedirectHandler):
        """The answer counts as it is."""

        def redirect_request(self, *_: Any, **__: Any) -> None:
            """Follow nothing."""

    return build_opener(NoRedirects, *handlers)


def _answer(url: str, method: str, end: float) -> Any:
    from urllib.error import HTTPError
    from urllib.request import Request

    request = Request(url, method=method)  # noqa: S310 - http and https only, and only what is allowed
    request.add_header("User-Agent", "stepseven")
    request.add_header("Accept-Encoding", "identity")
    left_s = max(0.1, end - time.monotonic())
    try:
        return opener().open(request, timeout=left_s)
    except HTTPError as answer:
        return answer


def _described(url: str, answer: Any) -> Kept:
    headers: Mapping[str, str] = answer.headers
    length = headers.get("Content-Length", "")
    size = int(length) if length.isascii() and length.isdigit() else None
    return Kept(url, size=size, etag=headers.get("ETag"), modified=headers.get("Last-Modified"))


def _hashed(answer: Any, kept: Kept, end: float) -> str:
    found, read = hashlib.sha256(), 0
    while piece := answer.read(_PIECE):
        found.update(piece)
        read += len(piece)
        if read > HASHED or time.monotonic() > end:
            raise CannotTell(elsewhere.host_of(kept.url), "it is too large to be compared in time")
    return f"sha256:{found.hexdigest()}"


# -- object stores ----------------------------------------------------------------------------------------------------------


def _object(kept: Kept) -> Kept | None:
    """Ask an object store, by fsspec: with the credentials that ``s3fs`` finds on this machine."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as missing:
        raise CannotTell(elsewhere.host_of(kept.url), "s3fs is not installed here (pip install s3fs)") from missing
    try:
        system, path = url_to_fs(kept.url)
        system.invalidate_cache()
        found = system.info(path)
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever the library of that store raises
        if isinstance(error, ImportError):
            raise CannotTell(elsewhere.host_of(kept.url), "s3fs is not installed here (pip install s3fs)") from error
        raise CannotTell(elsewhere.host_of(kept.url), reason_of(error), away=not isinstance(error, PermissionError)) from error
    etag = found.get("ETag") or found.get("etag")
    modified: Any = next((found[name] for name in ("LastModified", "modified", "mtime", "created") if found.get(name)), None)
    told = modified.isoformat() if isinstance(modified, datetime) else modified
    return Kept(kept.url, size=found.get("size"), etag=etag, modified=None if told is None else str(told))
