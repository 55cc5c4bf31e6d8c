"""Results of about 1 KB. Knows nothing of stepseven, so that a floor does not pay for importing it."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache

SIZE = 1024  # bytes of one result as JSON; 70 of them are names and small values
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,-"
_WORDS = re.findall(
    r"\w+",
    "the quarter closed with eleven open tickets three of which concern invoices that were sent twice and one customer who "
    "asks for a later date because its own billing record is wrong since the move to another plan",
)


# Made when first used: a quarter of a second of processor that is no part of what a process needs to start and go on.
@cache
def _noise() -> str:
    chance = random.Random(7)  # the seed the peers had; by chance no 1 KB piece of this text looks like a credential
    return "".join(chance.choice(_ALPHABET) for _ in range(400_000))


@cache
def _prose() -> str:
    return " ".join(random.Random(7).choices(_WORDS, k=60_000))


@dataclass(frozen=True, slots=True)
class Message:
    """A typed result, the shape of a model's turn."""

    i: int
    role: str
    tokens: int
    ok: bool
    content: str


def _cut(pool: str, i: int, size: int) -> str:
    body = max(size - 70, 8)
    at = (i * 7919) % (len(pool) - body)
    return pool[at : at + body]


def message(i: int, size: int = SIZE) -> Message:
    """Different for each *i*, hardly compressible: the payload all peers were measured with. Hard on the look for
    credentials, which has to look closer at every long word.
    """
    return Message(i=i, role="assistant", tokens=123, ok=True, content=_cut(_noise(), i, size))


def prose(i: int, size: int = SIZE) -> Message:
    """The same size in words, as a model writes them."""
    return Message(i=i, role="assistant", tokens=123, ok=True, content=_cut(_prose(), i, size))


def as_dict(m: Message) -> dict[str, object]:
    """What a floor hands to ``json.dumps``."""
    return {"i": m.i, "role": m.role, "tokens": m.tokens, "ok": m.ok, "content": m.content}
