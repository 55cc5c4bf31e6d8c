"""Who may use the HTTP API: tokens, and the sessions of people who signed in. Each function is one transaction's worth of work.

A token is ``s7_``, twelve characters that name it, and a secret of 32 random bytes. Stored is its SHA-256 alone: the secret is as
long as a key, so that nobody finds it by trying, and a slow hash would only slow down those who have it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide.retention import span_us
from stepseven.store.base import Row, Tx
from stepseven.store.codec import free_text

SESSION_US = 12 * 3600 * 1_000_000  #: how long somebody who signed in stays signed in
ONCE = "once"  #: among a token's scopes: it signs in, once, and does nothing else
_NAMED = re.compile(r"s7([stx]?)_([0-9a-f]{12})[A-Za-z0-9_-]{43}")


class Scope(StrEnum):
    """What a token may do. ``admin`` may do what the others may; of the others none includes another."""

    READ = "read"  # look at everything
    REPORT = "report"  # start runs, and report what was done in those that are executed elsewhere
    ANSWER = "answer"  # answer questions
    OPERATE = "operate"  # start, resume and cancel runs, say facts
    ADMIN = "admin"  # make and revoke tokens; and all of the above


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A fresh secret: its public id, the text that only its owner has, and what is stored of it."""

    id: str
    text: str
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token about to be stored. ``clients`` ``None``: all of them."""

    secret: Secret
    scopes: tuple[str, ...]
    clients: tuple[str, ...] | None = None
    name: str | None = None
    person_id: str | None = None
    expires_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """Somebody who was recognised, and what they may do.

    ``id``: of the token or session. ``token_id``: of the token behind a session, or the token itself. ``clients`` ``None``: all.
    ``run_no``: the run it was made for. ``csrf``: hash of what every change made in a session has to bring.
    """

    id: str
    name: str
    scopes: frozenset[str]
    clients: tuple[str, ...] | None
    token_id: str | None = None
    person_id: str | None = None
    run_no: int | None = None
    csrf: str | None = None
    until_us: int | None = None

    def may(self, *scopes: str) -> bool:
        """Whether one of these is enough, and there."""
        return Scope.ADMIN in self.scopes or any(scope in self.scopes for scope in scopes)

    def knows(self, client_id: str) -> bool:
        """Whether this client is one of theirs."""
        return self.clients is None or client_id in self.clients

    @property
    def sight(self) -> str | None:
        """The clients, as statements take them."""
        return None if self.clients is None else json.dumps(self.clients, ensure_ascii=False)


def secret(kind: str, public: bytes, hidden: str) -> Secret:
    """A secret of these random parts.

    Args:
        kind: ``""`` a token, ``"s"`` a session, ``"x"`` what a form brings, ``"t"`` a step that somebody outside has begun.
        public: six random bytes: its id.
        hidden: 43 random characters that may stand in a URL.
    """
    text = f"s7{kind}_{public.hex()}{hidden}"
    return Secret(id=f"{kind or 't'}_{public.hex()}", text=text, hash=hashed(text))


def hashed(text: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def same(text: str, stored: str | None) -> bool:
    """Whether *text* is the secret whose hash is stored; how long that takes tells nothing."""
    return stored is not None and hmac.compare_digest(hashed(text), stored)


def until_us(span: str | None, now_us: int) -> int | None:
    """When a token made now expires; ``None``: never.

    Raises:
        ValueError: that is no length of time.
    """
    if span is None:
        return None
    try:
        lasting = span_us(span)
    except ValueError:
        lasting = 0
    if not lasting:
        raise ValueError(f"expires: {free_text(span, 40)!r} is no length of time: say 90d, 12h or 30m")
    return now_us + lasting


def create(tx: Tx, new: NewToken, now_us: int) -> Row:
    """Store a token; its row."""
    tx.run(
        tx.sql.insert_token,
        {"id": new.secret.id, "hash": new.secret.hash, "name": new.name, "scopes": json.dumps(list(new.scopes)),
         "clients": json.dumps(new.clients, ensure_ascii=False), "person_id": new.person_id, "expires_us": new.expires_us,
         "now": now_us},
    )  # fmt: skip
    row = tx.one(tx.sql.token, {"id": new.secret.id})
    assert row is not None  # just stored  # noqa: S101
    return row


def known(tx: Tx, token_id: str) -> Row | None:
    """A token's row, also of one that no longer holds."""
    return tx.one(tx.sql.token, {"id": token_id})


def listed(tx: Tx) -> list[Row]:
    """Every token but those that only sign in, oldest first."""
    return [row for row in tx.all(tx.sql.tokens, {}) if ONCE not in json.loads(row["scopes"])]


def revoke(tx: Tx, token_id: str, now_us: int) -> bool:
    """Let a token hold no longer, with the sessions it signed in; whether it did until now."""
    return tx.run(tx.sql.revoke_token, {"id": token_id, "now": now_us}) == 1


def find(tx: Tx, text: str, now_us: int) -> Who | None:
    """Whose token or session this is; ``None`` if it is none, or holds no longer. Tokens that only sign in are none."""
    named = _NAMED.fullmatch(text)
    if named is None:
        return None
    if named[1] == "s":
        row = tx.one(tx.sql.session, {"id": f"s_{named[2]}"})
        good = row is not None and same(text, row["hash"]) and row["revoked_us"] is None and row["expires_us"] > now_us
        return _of_session(row) if row is not None and good else None
    row = tx.one(tx.sql.token, {"id": f"t_{named[2]}"}) if named[1] == "" else None
    if row is None or not same(text, row["hash"]) or not holds(row, now_us) or ONCE in json.loads(row["scopes"]):
        return None
    return _of_token(row)


def holds(row: Row, now_us: int) -> bool:
    """Whether a token of this row still counts."""
    return row["revoked_us"] is None and (row["expires_us"] is None or row["expires_us"] > now_us)


def sign_in(tx: Tx, text: str, session: Secret, form: Secret, now_us: int) -> Who | None:
    """Open a session for whoever has this token; one that signs in once has done so then.

    Args:
        tx: a transaction.
        text: the token.
        session: what the browser will bring.
        form: what every change will have to bring besides.
        now_us: the time.

    Returns:
        Who signed in; ``None``: it is no token, holds no longer, or has signed in before. Nothing was changed.
    """
    named = _NAMED.fullmatch(text)
    row = tx.one(tx.sql.token, {"id": f"t_{named[2]}"}) if named is not None and named[1] == "" else None
    if row is None or not same(text, row["hash"]) or not holds(row, now_us):
        return None
    scopes = [scope for scope in json.loads(row["scopes"]) if scope != ONCE]
    if ONCE in json.loads(row["scopes"]) and tx.run(tx.sql.use_token, {"id": row["id"], "now": now_us}) != 1:
        return None
    until_us = now_us + SESSION_US
    if row["expires_us"] is not None and ONCE not in json.loads(row["scopes"]):
        until_us = min(until_us, row["expires_us"])
    stored = {
        "id": session.id, "hash": session.hash, "person_id": row["person_id"], "scopes": json.dumps(scopes),
        "clients": row["clients"], "expires_us": until_us, "name": row["name"], "csrf": form.hash, "token_id": row["id"],
    }  # fmt: skip
    tx.run(tx.sql.insert_session, {**stored, "now": now_us})
    return _of_session(stored)


def sign_out(tx: Tx, session_id: str) -> None:
    """End a session."""
    tx.run(tx.sql.drop_session, {"id": session_id})


def tidy(tx: Tx, now_us: int) -> None:
    """Take away sessions that are over, and tokens that could sign in once."""
    tx.run(tx.sql.drop_old_sessions, {"before": now_us})
    tx.run(tx.sql.drop_spent_tokens, {"before": now_us})


def document(row: Row) -> dict[str, Any]:
    """A token as JSON, without its secret. ``clients`` empty: all of them."""
    return {
        "id": row["id"], "name": row["name"], "scopes": json.loads(row["scopes"]), "clients": json.loads(row["clients"]) or [],
        "created_us": row["created_us"], "expires_us": row["expires_us"], "revoked_us": row["revoked_us"],
    }  # fmt: skip


def _clients(text: str) -> tuple[str, ...] | None:
    told: Sequence[str] | None = json.loads(text)
    return None if told is None else tuple(told)


def _of_token(row: Row) -> Who:
    return Who(
        id=row["id"], name=row["name"] or row["id"], scopes=frozenset(json.loads(row["scopes"])),
        clients=_clients(row["clients"]), token_id=row["id"], person_id=row["person_id"], run_no=row["run_no"],
        until_us=row["expires_us"],
    )  # fmt: skip


def _of_session(row: Row) -> Who:
    return Who(
        id=row["id"], name=row["person_id"] or row["name"] or row["token_id"], scopes=frozenset(json.loads(row["scopes"])),
        clients=_clients(row["clients"]), token_id=row["token_id"], person_id=row["person_id"], csrf=row["csrf"],
        until_us=row["expires_us"],
    )  # fmt: skip
