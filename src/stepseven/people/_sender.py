"""The child process that sends: one JSON line in, one out. It ends itself when a message takes too long.

In: ``{"url", "subject", "body", "seconds"}``. Out: ``{"reason"}``: ``null``, or why it did not go out. Always as plain text: what
a model wrote must not become markup on the way.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import signal
import sys
from typing import Any

_CHARS = 300


class _Kept(logging.Handler):
    """What the library has to say about a failed try."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.lines.append(record.getMessage())


def send(url: str, subject: str, body: str) -> str | None:
    """Send one message; ``None``, or why it did not go out."""
    try:
        import apprise
    except ImportError:
        return "apprise is not installed: pip install 'stepseven[server]'"
    kept = _Kept()
    logger = logging.getLogger("apprise")
    logger.addHandler(kept)
    try:
        target = apprise.Apprise()
        if not target.add(url):
            return "this is no URL that apprise knows"
        for service in target:
            service.notify_format = apprise.NotifyFormat.TEXT
        done = target.notify(title=subject, body=body, body_format=apprise.NotifyFormat.TEXT, interpret_escapes=False)
    except Exception as error:  # noqa: BLE001 - a hundred services, each with its own; whatever it is, the message did not go out
        return f"{type(error).__name__}: {error}"[:_CHARS]
    finally:
        logger.removeHandler(kept)
    return None if done else (" · ".join(kept.lines) or "the service did not take it")[:_CHARS]


def main() -> None:
    """Until the end of the input."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    with contextlib.suppress(ImportError):  # which is said when a message comes
        # It loads a hundred services: outside a message's time.
        importlib.import_module("apprise").Apprise().add("json://localhost")
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        # Nobody catches this signal: it ends the process, whatever it hangs in, also when its parent is gone.
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"])
        reason = send(asked["url"], asked["subject"], asked["body"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        out.write(json.dumps({"reason": reason}) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
