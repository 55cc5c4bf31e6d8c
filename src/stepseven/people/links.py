"""Links in messages: each is of one message, person and rung, and dies when the question is answered, handed over or over.

A link is ``{public url}/q/{delivery}.{signature}``. Looking at it (GET, HEAD: programs that preview mail do that) changes
nothing; only what is sent from the page (POST) answers. Whoever has the link may answer as that person, so what cannot be
taken back needs a sign-in besides.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from datetime import UTC, datetime
from urllib.parse import urlsplit

from stepseven._dataclass import dataclass
from stepseven.decide.ladder import Purpose
from stepseven.errors import StepsevenError
from stepseven.model import QuestionKind
from stepseven.runtime.edge import Edge
from stepseven.store.base import Row, Store, Tx
from stepseven.store.codec import storable

PUBLIC_URL = "STEPSEVEN_PUBLIC_URL"
_LEAST_KEY = 32  # characters
_TAG_BYTES = 18  # 144 bits of an HMAC-SHA256: not to be guessed, and short enough for one line of a mail


class UnknownLink(StepsevenError):
    """No message has this link: it is not whole, or was signed with another key."""

    def __init__(self) -> None:
        super().__init__("this link is none of ours: open the newest message, or `stepseven inbox`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a link is of.

    Attributes:
        delivery_id, question_id, client_id: the message, its question, whose that is.
        person_id, name: who was told.
        dead: why it does not answer any more, one sentence; ``None``: it does.
        sign_in: it answers only together with a sign-in.
    """

    delivery_id: str
    question_id: str
    client_id: str
    person_id: str
    name: str
    dead: str | None
    sign_in: bool


def public_url(told: str | None = None) -> str | None:
    """Where the pages are reached from outside: *told*, else STEPSEVEN_PUBLIC_URL, else nowhere.

    Raises:
        ValueError: it is no http or https URL.
    """
    url = (told or os.environ.get("STEPSEVEN_PUBLIC_URL") or "").strip().rstrip("/")
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.username or parts.query or parts.fragment:
        raise ValueError(f"STEPSEVEN_PUBLIC_URL={url!r}: say where the pages are reached, such as https://runs.example.com")
    return url


def signing_key(store: Store, edge: Edge) -> str:
    """What links are signed with: STEPSEVEN_LINK_KEY, else the store's own key, made when it is first needed. From any thread.

    Raises:
        ValueError: the variable holds less than 32 characters.
    """
    if (told := told_key()) is not None:
        return told
    kept = store.read_now(_kept)
    if kept is not None:
        return kept
    made = f"{edge.new_uuid()}{edge.new_uuid()}"
    store.write_now(lambda tx: tx.run(tx.sql.keep_link_key, {"key": made}), durable=True, client=None)
    return store.read_now(_kept) or made


def told_key() -> str | None:
    """What STEPSEVEN_LINK_KEY says, if it does.

    Raises:
        ValueError: it holds less than 32 characters.
    """
    told = os.environ.get("STEPSEVEN_LINK_KEY")
    if told and len(told) < _LEAST_KEY:
        raise ValueError(f"STEPSEVEN_LINK_KEY is too short to be safe: say at least {_LEAST_KEY} random characters")
    return told or None


def _kept(tx: Tx) -> str | None:
    row = tx.one(tx.sql.link_key, {})
    return None if row is None or row["link_key"] is None else str(row["link_key"])


def token(key: str, delivery: Row) -> str:
    """The last part of a message's link."""
    return f"{delivery['id']}.{_signature(key, delivery)}"


def _signature(key: str, delivery: Row) -> str:
    said = json.dumps(["stepseven link", delivery["id"], delivery["question_id"], delivery["person_id"], delivery["rung"]])
    tag = hmac.digest(key.encode(), said.encode(), hashlib.sha256)[:_TAG_BYTES]
    return base64.urlsafe_b64encode(tag).decode("ascii")


def url(public: str, key: str, delivery: Row) -> str:
    """A message's link."""
    return f"{public}/q/{token(key, delivery)}"


def verify(tx: Tx, text: str, key: str, now_us: int) -> Link:
    """What a link is of, and whether it still answers. Changes nothing.

    Args:
        tx: a transaction, of the answer itself where there is one: then nothing comes in between.
        text: ``{delivery}.{signature}``, as it stands in the URL.
        key: ``signing_key``.
        now_us: the present, microseconds since the epoch.

    Raises:
        UnknownLink: it is none of ours.
    """
    delivery_id, _, signature = text.partition(".")
    row = tx.one(tx.sql.delivery, {"id": delivery_id}) if storable(delivery_id) and len(text) < 200 else None  # noqa: PLR2004
    if row is None or row["question_id"] is None or not hmac.compare_digest(_signature(key, row).encode(), signature.encode()):
        raise UnknownLink
    question = tx.one(tx.sql.question, {"id": row["question_id"]})
    person = tx.one(tx.sql.person, {"id": row["person_id"]})
    if question is None or person is None:
        raise UnknownLink
    return Link(
        delivery_id=row["id"], question_id=question["id"], client_id=question["client_id"], person_id=person["id"],
        name=person["name"], dead=_dead(tx, row, question, person, now_us), sign_in=needs_sign_in(question),
    )  # fmt: skip


def _dead(tx: Tx, row: Row, question: Row, person: Row, now_us: int) -> str | None:
    """Why a link answers no more."""
    standing = tx.one(tx.sql.ladder, {"id": question["id"]})
    if question["status"] == "answered":
        return f"{question['answered_by']} answered it at {_time(question['answered_us'])}."
    over = question["deadline_us"] is not None and question["deadline_us"] <= now_us
    if question["status"] == "expired" or (question["status"] == "open" and over):
        return "Its time is over: nobody answered it by then."
    if question["status"] != "open" or standing is None:
        return "It needs no answer any more."
    if question["folded_into"] is not None:
        return f"It is asked together with others now: {question['folded_into']}."
    if person["removed_us"] is not None:
        return f"{person['name']} is not asked any more."
    clients = json.loads(person["clients"]) if person["clients"] else None
    if clients is not None and question["client_id"] not in clients:
        return f"Its client is not one of {person['name']}'s any more."
    if (standing["rung"], standing["person_id"]) != (row["rung"], row["person_id"]):
        now = tx.one(tx.sql.person, {"id": standing["person_id"]})
        return f"{now['name'] if now is not None else standing['person_id']} is asked now."
    return "It is about a time that is over." if row["purpose"] == Purpose.EXPIRED else None


def needs_sign_in(question: Row) -> bool:
    """Whether the link alone does not answer: what is approved cannot be taken back."""
    return question["kind"] == QuestionKind.APPROVE and question["step"] is not None


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
