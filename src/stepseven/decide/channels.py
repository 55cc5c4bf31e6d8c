"""Where a person is reached: Apprise URLs that hold no credential, or ``env:NAME`` for those that do.

Nearly every such URL has its credential in it. What is stored here is only what certainly has none: mail through a server that
asks for no login, and plain web hooks. Everything else is named by the environment variable that has it.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

MOST = 5  # channels of a person: each is tried for up to half a minute
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_PLAIN = frozenset({"mailto", "mailtos", "json", "jsons", "xml", "xmls", "form", "forms"})
_MAIL = frozenset({"mailto", "mailtos"})
_HARMLESS = frozenset({"from", "to", "cc", "bcc", "name", "smtp", "mode", "format", "reply", "method", "verify", "cto", "rto"})
_TOKEN = re.compile(r"(?=[A-Za-z_-]*[0-9])(?=[0-9_-]*[A-Za-z])[A-Za-z0-9_-]{16,}")  # letters and digits, long: no word
_INSTEAD = "it is not stored: put the whole URL into an environment variable of the worker and say env:NAME"


def checked(text: str) -> str:
    """A channel in the form that is stored.

    Args:
        text: ``env:NAME``, or an Apprise URL such as ``mailto://mail.example.com?from=runs@example.com&to=ann@example.com``.

    Raises:
        ValueError: it is neither, or the URL may hold a credential; the message says what to do.
    """
    channel = text.strip()
    if channel.startswith("env:"):
        if _NAME.fullmatch(channel[4:]) is None:
            raise ValueError(f"{channel!r} names no environment variable: say env:NAME, such as env:ANN_SLACK")
        return channel
    scheme, sign, _ = channel.partition("://")
    if not sign or not scheme:
        raise ValueError(f"{shown(channel)!r} is no channel: say an Apprise URL such as mailto://HOST?from=…&to=…, or env:NAME")
    why = _holds(channel, scheme.lower())
    if why is not None:
        raise ValueError(f"a {scheme.lower()}:// URL {why}: {_INSTEAD}")
    return channel


def _holds(channel: str, scheme: str) -> str | None:
    """Why a URL may hold a credential."""
    if scheme not in _PLAIN:
        return "has its credential in it"
    try:
        parts = urlsplit(channel)
        user, password, query = parts.username, parts.password, parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return "that cannot be read may hold a credential"
    if password is not None or (user and scheme not in _MAIL):
        return "with a login in it holds a credential"
    strange = next((name for name, _ in query if name.lower() not in _HARMLESS), None)
    if strange is not None:
        return f"with {strange}= may hold a credential"
    if any(_TOKEN.search(piece) for piece in (parts.path, *(value for name, value in query if name not in ("to", "from")))):
        return "with a long key in it holds a credential"
    return None


def shown(channel: str) -> str:
    """A channel for people: what it is, without what could be a credential."""
    if channel.startswith("env:"):
        return channel
    scheme, sign, rest = channel.partition("://")
    if not sign:
        return channel[:8] + ("…" if len(channel) > 8 else "")  # noqa: PLR2004 - enough to recognise it
    query = dict(parse_qsl(rest.partition("?")[2]))
    host = rest.partition("?")[0].partition("/")[0].rpartition("@")[2]
    return f"{scheme}://{host}" + (f" to {query['to']}" if query.get("to") else "")
