"""What a message to a person says: plain text, the question as everywhere, and how to answer it. Never markup.

What a model wrote stays text: it is shown where the question shows it, cannot end a line of the subject, and steers nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide import _phrases as say
from stepseven.decide._sheet import render
from stepseven.decide.ladder import Purpose
from stepseven.model import Question

_COLUMNS = 72  # mail programs break longer lines
_SUBJECT_CHARS = 110
_OPENING = {
    Purpose.ASK: "",
    Purpose.REMIND: "This still waits for you.",
    Purpose.HAND_OVER: "Nobody has answered this so far. It is yours now; whoever had it before cannot answer it by their link "
    "any more.",
    Purpose.EXPIRED: "Nobody answered this in time. That is no “no”: the run goes on with what its code says for this case. "
    "An answer given now changes nothing; it is kept beside the question.",
}
_LEADING = {Purpose.REMIND: "Reminder: ", Purpose.HAND_OVER: "Now yours: ", Purpose.EXPIRED: "Not answered in time: "}


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message. ``subject`` is one line."""

    subject: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How a question is answered.

    Attributes:
        link: of this message and person; ``None``: there is none, or it does not count any more.
        sign_in: whether the page behind it wants a sign-in before it takes the answer.
        command: the command line that does the same.
    """

    command: str
    link: str | None = None
    sign_in: bool = False


def question(asked: Question, purpose: Purpose, ways: Ways, *, others: int, now_us: int) -> Letter:
    """A message about a question.

    Args:
        asked: the question.
        purpose: what the message is for.
        ways: how it is answered.
        others: how many more open questions have the same cause.
        now_us: the present, microseconds since the epoch.
    """
    more = "" if not others else f"{others:,} more {'question has' if others == 1 else 'questions have'} the same cause."
    opening = " ".join(x for x in (_OPENING[purpose], more) if x)
    parts = [opening, render(replace(asked, asked_of=None), now_us=now_us, width=_COLUMNS)]  # it is theirs who reads this
    if purpose is not Purpose.EXPIRED:
        parts.append(_how(ways))
    headline = say.clip(asked.text.split("\n", 1)[0], words=30, chars=_SUBJECT_CHARS)
    return _letter(f"{_LEADING.get(purpose, '')}{say.who(asked.client_id)}: {headline}", parts)


def _how(ways: Ways) -> str:
    if ways.link is None:
        return f"Answer it where the store is:\n  {ways.command}"
    sign_in = "You sign in there first, because what you allow cannot be taken back. " if ways.sign_in else ""
    return (
        f"Answer it here:\n  {ways.link}\n{sign_in}Opening the page answers nothing. The link works until the question is "
        "answered, handed over or over."
    )


def failed(run: Mapping[str, Any], now_us: int) -> Letter:
    """A message about a run that failed for good.

    Args:
        run: its row.
        now_us: the present, microseconds since the epoch.
    """
    told = json.loads(run["failure"]) if run["failure"] else {}
    reason = say.reason_of(str(told.get("reason") or run["reason"] or "no reason was kept"), words=60, chars=400)
    what = say.clip(run["goal"] or say.humanise(run["workflow"]), words=12, chars=60)
    when = f" {say.duration((now_us - run['ended_us']) / 1e6)} ago" if run["ended_us"] else ""
    step = f" at {say.humanise(str(told['step']))}" if told.get("step") else ""
    return _letter(f"{say.who(run['client_id'])}: {what} failed", [
        f"{say.who(run['client_id'])} · {what} failed{when}{step}. Nothing more happens by itself.", f"Why: {reason}",
        f"What was done, and what was not:\n  stepseven show {run['id']}",
    ])  # fmt: skip


def trial(name: str, now_us: int) -> Letter:
    """The message of a test."""
    at = datetime.fromtimestamp(now_us / 1e6, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return _letter("stepseven can reach you", [f"This is a test for {name}, sent {at}. Nobody has to do anything."])


def _letter(subject: str, parts: list[str]) -> Letter:
    line = " ".join(_plain(subject).split())
    line = line if len(line) <= _SUBJECT_CHARS else line[: _SUBJECT_CHARS - 1] + "…"
    return Letter(subject=line, body="\n\n".join(_plain(part) for part in parts if part) + "\n")


def _plain(text: str) -> str:
    """Text without what could steer the program that shows it."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)
