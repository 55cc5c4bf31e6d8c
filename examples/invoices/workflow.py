"""The workflow: read a folder of e-invoices, check each, post each to the accounting API once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from stepseven import AlreadyDone, Conflict, Fixable, Run, attempt, step, workflow

from .._http import ApiError, send
from .documents import Document, Entry, check, read_document

AT_ONCE = 1
"""Documents go out in the order of their files: of two with one number the first by name is posted, the other asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """What stands in the books. *found*: it stood there before we sent it."""

    id: str
    entry: Entry
    found: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a folder ended.

    ``posted``: documents in the books by our posting, this run's or an earlier one's of the client.
    ``already_there``: files whose document another file or someone else had posted. ``skipped``: files a person gave up.
    ``totals``: by currency, over all documents, credit notes subtracted.
    """

    posted: int
    already_there: int
    skipped: int
    totals: dict[str, Decimal]


@step(summary=lambda files: f"{len(files)} files")
def list_files(folder: str) -> list[str]:
    """Every file in *folder* by name, hidden ones aside: one that is no invoice is somebody's mistake, not ours to pass over."""
    if not Path(folder).is_dir():
        raise Fixable(f"{folder} is not a folder")
    return sorted(str(path) for path in Path(folder).iterdir() if path.is_file() and not path.name.startswith("."))


@step(summary=lambda document: f"{document.supplier_name} {document.number}: {document.amount} {document.currency}")
def read_invoice(path: str) -> Document:
    """One document that is right; anything else is for a person to mend, and ``again`` reads the file again."""
    document = read_document(path)
    findings = check(document)
    if findings:
        raise Fixable(f"{document.file}: {'; '.join(findings)}")
    return document


# The key is what the posting is about, over all runs of the client. The address is no key, but it is an input: the same
# document for another accounting system is asked about, not taken as posted.
@step(
    effect="write",
    key="entry.supplier, entry.number",
    scope="client",
    settle=5,  # seconds in which the API posts what it accepted with 202
    resource="accounting-api",
    summary=lambda posting: f"{posting.entry.number} is {posting.id}",
)
def post_invoice(entry: Entry, api: str) -> Posting:
    """Post it. What the API refuses was not done; what it leaves open, :func:`find_posting` settles."""
    body = {"supplier": entry.supplier, "number": entry.number, "kind": entry.kind}
    body |= {"amount": str(entry.amount), "currency": entry.currency}  # text: a JSON number would become a float
    reply = send("POST", f"{api}/postings", body, idempotency_key=attempt().idempotency_key)
    match reply.status_code:
        case HTTPStatus.CREATED:
            return Posting(id=reply.body["id"], entry=entry)
        case HTTPStatus.CONFLICT:
            raise AlreadyDone(Posting(id=reply.body["id"], entry=entry, found=True))
        case HTTPStatus.ACCEPTED:
            raise TimeoutError(f"{entry.number} was accepted and may be posted later")
        case _:
            raise ApiError(f"posting {entry.number}", reply)


@post_invoice.probe
def find_posting(entry: Entry, api: str) -> Posting | None:
    """Look whether it is in the books: by our key, or the same entry by anybody's.

    Another entry under another key is another posting: a person may have asked for a second one with this number.
    """
    reply = send("GET", f"{api}/postings?{urlencode({'supplier': entry.supplier, 'number': entry.number})}")
    if reply.status_code != HTTPStatus.OK:
        raise ApiError(f"looking for {entry.number}", reply)
    key = attempt().idempotency_key
    for row in reply.body:
        if row["key"] == key:
            posting = _posting(row)
            if posting.entry != entry:
                raise Conflict(posting)
            return posting
    others = (_posting(row) for row in reply.body)
    return next((replace(posting, found=True) for posting in others if posting.entry == entry), None)


@workflow
async def post_invoices(run: Run, folder: str, api: str) -> Summary:
    """Post every document in *folder* to the accounting API at *api*."""

    async def book(path: str) -> Posting:
        document = await read_invoice(path)
        return await post_invoice(document.entry, api)

    return _summary(await run.map(book, await list_files(folder), concurrency=AT_ONCE))


def _posting(row: dict[str, Any]) -> Posting:
    entry = Entry(
        supplier=row["supplier"],
        number=row["number"],
        kind=row["kind"],
        amount=Decimal(row["amount"]),
        currency=row["currency"],
    )
    return Posting(id=row["id"], entry=entry)


def _summary(items: list[Posting | None]) -> Summary:
    files = [posting for posting in items if posting is not None]
    documents = {posting.id: posting for posting in files}
    posted = sum(1 for posting in documents.values() if not posting.found)
    totals: dict[str, Decimal] = {}
    for entry in (posting.entry for posting in documents.values()):
        signed = entry.amount if entry.kind == "invoice" else -entry.amount
        totals[entry.currency] = totals.get(entry.currency, Decimal("0.00")) + signed
    return Summary(
        posted=posted, already_there=len(files) - posted, skipped=len(items) - len(files), totals=dict(sorted(totals.items()))
    )
