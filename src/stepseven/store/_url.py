"""What may be shown of the URL of a store."""

from __future__ import annotations

import re

_SECRET = re.compile(r"(?i)([?&\s](?:password|passfile|sslpassword|sslkey)=)[^&\s]*")


def hide_password(url: str) -> str:
    """A URL without what stands between ``:`` and ``@``, and without a password among its parameters."""
    head, sep, tail = url.partition("://")
    account, at, host = tail.rpartition("@")
    shown = f"{head}{sep}{account.partition(':')[0]}:…@{host}" if at and ":" in account else url
    return _SECRET.sub(r"\1…", shown)
