"""What the steps talk to: a ticket system, a billing API, a document store and a CRM, over HTTP.

Their addresses are in the environment: RENEWAL_TICKETS, RENEWAL_BILLING, RENEWAL_DOCUMENTS, RENEWAL_CRM; ``outside.py``
is all four.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from decimal import Decimal
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from .._http import ApiError, send

if TYPE_CHECKING:
    from .._http import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One ticket of a quarter. *risk*: it may cost the renewal."""

    number: int
    client_id: str
    quarter: str
    subject: str
    risk: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Billing:
    """What the client pays in a year, and where that is written."""

    client_id: str
    amount: Decimal
    currency: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A proposal that nobody outside has seen yet. *before*: the document it was compared with."""

    client_id: str
    quarter: str
    title: str
    text: str
    before: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A proposal as the document store filed it."""

    id: str
    client_id: str
    quarter: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """A proposal as it went out."""

    id: str
    document: str
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Customer:
    """A client as the CRM knows it: who to talk to there."""

    client_id: str
    contact: str
    mail: str
    seats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A mail that was not sent yet."""

    to: str
    body: str


@dataclass(frozen=True, slots=True)
class _System:
    variable: str
    default: str

    async def _ask(self, what: str, method: str, path: str, body: object = None, *, key: str | None = None) -> Reply:
        """Send one request. A thread that outlives a cancelled step ends within the 5 s of ``send``, far inside ``settle``."""
        url = os.environ.get(self.variable, self.default).rstrip("/") + path
        reply = await asyncio.to_thread(send, method, url, body, idempotency_key=key)
        if reply.status_code not in {HTTPStatus.OK, HTTPStatus.CREATED}:
            raise ApiError(what, reply)
        return reply


class TicketSystem(_System):
    """Knows every ticket of the quarter that is under way."""

    async def tickets(self, client_id: str) -> list[Ticket]:
        """The client's tickets of this quarter."""
        reply = await self._ask(f"reading {client_id}'s tickets", "GET", f"/tickets?{urlencode({'client': client_id})}")
        return [Ticket(**row) for row in reply.body]


class BillingApi(_System):
    """Knows what a client is billed, and shows it to whoever has the right."""

    async def record(self, client_id: str) -> Billing:
        """The client's billing record."""
        reply = await self._ask(f"reading {client_id}'s billing record", "GET", f"/billing/{quote(client_id, safe='')}")
        return _billing(reply.body, "billing-api")


class DocumentStore(_System):
    """Keeps contracts and proposals."""

    async def contract(self, client_id: str) -> Billing:
        """The amount in the client's signed contract."""
        reply = await self._ask(f"reading {client_id}'s contract", "GET", f"/contracts/{quote(client_id, safe='')}")
        return _billing(reply.body, f"contract of {reply.body['signed']}")

    async def create(self, draft: Draft, *, idempotency_key: str) -> Document:
        """File it. The same key again gives the first document."""
        body = {"client_id": draft.client_id, "quarter": draft.quarter, "title": draft.title, "text": draft.text}
        reply = await self._ask(f"filing {draft.title}", "POST", "/documents", body, key=idempotency_key)
        return _document(reply.body)

    async def find(self, client_id: str, quarter: str) -> Document | None:
        """The proposal that is filed for a client and a quarter."""
        query = urlencode({"client": client_id, "quarter": quarter})
        reply = await self._ask(f"looking for {client_id}'s proposal", "GET", f"/documents?{query}")
        return _document(reply.body[0]) if reply.body else None

    async def send(self, document: str, to: str, body: str, *, idempotency_key: str) -> Mail:
        """Mail a document. The same key again gives the first mail."""
        mail = {"document": document, "to": to, "body": body}
        reply = await self._ask(f"sending {document}", "POST", "/sent", mail, key=idempotency_key)
        return _mail(reply.body)

    async def sent(self, document: str) -> Mail | None:
        """The mail a document went out with."""
        reply = await self._ask(f"looking for {document}'s mail", "GET", f"/sent?{urlencode({'document': document})}")
        return _mail(reply.body[0]) if reply.body else None


class CrmApi(_System):
    """Knows who to talk to at a client, and how."""

    async def customer(self, client_id: str) -> Customer:
        """The client's record."""
        reply = await self._ask(f"reading {client_id}'s record", "GET", f"/clients/{quote(client_id, safe='')}")
        return Customer(**reply.body)

    async def letter(self, contact: str, mail: str, document: str) -> Letter:
        """A letter in the words the contact likes."""
        asked = {"contact": contact, "document": document}
        reply = await self._ask(f"drafting a letter to {contact}", "POST", "/letters", asked)
        return Letter(to=mail, body=reply.body["body"])


def _billing(row: dict[str, Any], source: str) -> Billing:
    return Billing(client_id=row["client_id"], amount=Decimal(row["amount"]), currency=row["currency"], source=source)


def _document(row: dict[str, Any]) -> Document:
    return Document(id=row["id"], client_id=row["client_id"], quarter=row["quarter"], title=row["title"])


def _mail(row: dict[str, Any]) -> Mail:
    return Mail(id=row["id"], document=row["document"], to=row["to"])


ticket_system = TicketSystem("RENEWAL_TICKETS", "http://127.0.0.1:8701")
billing_api = BillingApi("RENEWAL_BILLING", "http://127.0.0.1:8702")
docs = DocumentStore("RENEWAL_DOCUMENTS", "http://127.0.0.1:8703")
crm = CrmApi("RENEWAL_CRM", "http://127.0.0.1:8704")
