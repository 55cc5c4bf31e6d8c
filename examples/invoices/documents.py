"""UBL 2.1 invoices and credit notes: reading one file, and checking that what it says adds up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring

from stepseven import Fixable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element

Kind = Literal["invoice", "credit_note"]

_UBL = "urn:oasis:names:specification:ubl:schema:xsd:"
_NAMESPACES = {"cac": f"{_UBL}CommonAggregateComponents-2", "cbc": f"{_UBL}CommonBasicComponents-2"}
_KINDS: dict[str, tuple[Kind, str]] = {
    f"{{{_UBL}Invoice-2}}Invoice": ("invoice", "cac:InvoiceLine"),
    f"{{{_UBL}CreditNote-2}}CreditNote": ("credit_note", "cac:CreditNoteLine"),
}
_LARGEST_BYTES = 20_000_000  # an e-invoice is some kilobytes; one with embedded attachments a few megabytes
_DECIMAL = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{1,10})?")  # xs:decimal: no exponent, no thousands separator, no NaN
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")  # date.fromisoformat also takes 20260314, which xs:date does not
_CURRENCY = re.compile(r"[A-Z]{3}")
_CENT = Decimal("0.01")
_ZERO = Decimal("0.00")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is posted: exactly what the accounting API takes. *amount* is in *currency*, with VAT."""

    supplier: str
    number: str
    kind: Kind
    amount: Decimal
    currency: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The sums a document states, and two that were added up here (``lines_added``, ``tax_added``)."""

    lines: Decimal
    lines_added: Decimal
    allowances: Decimal
    charges: Decimal
    exclusive: Decimal
    tax: Decimal
    tax_added: Decimal
    inclusive: Decimal
    prepaid: Decimal
    rounding: Decimal
    payable: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One invoice or credit note as its file states it.

    ``supplier`` is a stable identity, not a spelling: see :func:`read_document`. ``amount`` is the total with VAT
    (``TaxInclusiveAmount``): that is what the supplier's account is credited with. ``PayableAmount`` is smaller where
    something was paid in advance, and that payment is an entry of its own. A credit note's amount is positive too.
    ``other_currencies`` are those of amounts that are not in ``currency``.
    """

    file: str
    supplier: str
    supplier_name: str
    number: str
    kind: Kind
    issued: str
    amount: Decimal
    currency: str
    totals: Totals
    other_currencies: tuple[str, ...] = ()

    @property
    def entry(self) -> Entry:
        """What of it is posted: nothing that differs between two copies of one document, such as the file's name."""
        return Entry(supplier=self.supplier, number=self.number, kind=self.kind, amount=self.amount, currency=self.currency)


def read_document(path: str | Path) -> Document:
    """Read one UBL 2.1 file.

    The supplier is known by the first of: VAT number, legal registration number (with its scheme or country), network
    address, other identification, registered name. Numbers are compared by their letters and digits alone, because
    the same supplier writes ``NL 8200.98.395.B.01`` today and ``NL820098395B01`` tomorrow.

    Args:
        path: the file. Up to 20 MB; a DTD or an entity in it is refused.

    Returns:
        The document, amounts with at least two decimals.

    Raises:
        Fixable: it cannot be read, is no UBL 2.1 invoice or credit note, or a field is missing or malformed. The
            reason names the file and the field.
    """
    path = Path(path)
    root = _parse(path)
    if root.tag not in _KINDS:
        raise Fixable(f"{path.name}: {_plain(root.tag)} is neither a UBL 2.1 Invoice nor a CreditNote")
    kind, line = _KINDS[root.tag]
    source = _Source(path.name, root)
    currency = source.text("cbc:DocumentCurrencyCode")
    totals = _totals(source, line, currency)
    party = source.element("cac:AccountingSupplierParty/cac:Party")
    return Document(
        file=path.name,
        supplier=_supplier(path.name, party),
        supplier_name=_first(party, "cac:PartyLegalEntity/cbc:RegistrationName", "cac:PartyName/cbc:Name") or "",
        number=source.text("cbc:ID"),
        kind=kind,
        issued=source.text("cbc:IssueDate"),
        amount=totals.inclusive,
        currency=currency,
        totals=totals,
        other_currencies=tuple(sorted({c for c in source.currencies() if c != currency})),
    )


def check(document: Document) -> list[str]:
    """Look for what does not add up.

    Returns:
        One readable sentence per finding; none for a document that is right. The sums are those EN 16931 demands,
        to the cent: the standard allows no tolerance.

    Source:
        EN 16931-1, rules BR-CO-10, 13, 14, 15 and 16.
    """
    t = document.totals
    sums = (
        (t.lines, t.lines_added, "the lines' total", "the lines add up to"),
        (t.exclusive, t.lines - t.allowances + t.charges, "the total without VAT", "lines less allowances plus charges is"),
        (t.tax, t.tax_added, "the VAT total", "the VAT breakdown adds up to"),
        (t.inclusive, t.exclusive + t.tax, "the total with VAT", "total without VAT plus VAT is"),
        (t.payable, t.inclusive - t.prepaid + t.rounding, "the amount due", "total less what is prepaid plus rounding is"),
    )
    found = [f"{what} is stated as {stated}, but {how} {added}" for stated, added, what, how in sums if stated != added]
    if not _CURRENCY.fullmatch(document.currency):
        found.append(f"the currency {document.currency!r} is no three-letter code")
    if document.other_currencies:
        found.append(f"some amounts are in {', '.join(document.other_currencies)}, the document is in {document.currency}")
    if not _is_date(document.issued):
        found.append(f"the issue date {document.issued!r} is no date (YYYY-MM-DD)")
    return found


# -- one file ---------------------------------------------------------------------------------------------------------


def _parse(path: Path) -> Element:
    try:
        size = path.stat().st_size
        content = b"" if size > _LARGEST_BYTES else path.read_bytes()
    except OSError as error:
        raise Fixable(f"{path.name}: cannot be read: {error.strerror or error}") from error
    if size > _LARGEST_BYTES:
        raise Fixable(f"{path.name}: {size:,} bytes is too large for an e-invoice (the limit is {_LARGEST_BYTES:,})")
    try:
        root: Element = fromstring(content, forbid_dtd=True)
    except ParseError as error:
        raise Fixable(f"{path.name}: is not well-formed XML: {error}") from error
    except DefusedXmlException as error:
        raise Fixable(f"{path.name}: has a DTD or entities, which no e-invoice needs: refused") from error
    except (ValueError, LookupError) as error:  # an encoding the parser does not know
        raise Fixable(f"{path.name}: cannot be decoded: {error}") from error
    return root


@dataclass(frozen=True, slots=True)
class _Source:
    """A document's root with the name of its file, so that an error can say where."""

    file: str
    root: Element

    def element(self, path: str) -> Element:
        found = self.root.find(path, _NAMESPACES)
        if found is None:
            raise Fixable(f"{self.file}: {path} is missing")
        return found

    def text(self, path: str) -> str:
        text = " ".join((self.element(path).text or "").split())
        if not text:
            raise Fixable(f"{self.file}: {path} is empty")
        return text

    def amount(self, path: str) -> Decimal:
        return self._decimal(self.element(path), path)

    def amount_or_zero(self, path: str) -> Decimal:
        found = self.root.find(path, _NAMESPACES)
        return _ZERO if found is None else self._decimal(found, path)

    def added(self, path: str, currency: str | None = None) -> Decimal:
        """The sum of all amounts there; with *currency* of those in it."""
        found = self.root.iterfind(path, _NAMESPACES)
        return sum((self._decimal(e, path) for e in found if currency in {None, e.get("currencyID")}), _ZERO)

    def currencies(self) -> Iterator[str]:
        """Of every amount that takes part in the sums; a second VAT total is in the tax authority's currency by right."""
        for parent in ("cac:LegalMonetaryTotal/*", "cac:InvoiceLine/*", "cac:CreditNoteLine/*"):
            for found in self.root.iterfind(parent, _NAMESPACES):
                if "currencyID" in found.attrib:
                    yield found.attrib["currencyID"]

    def _decimal(self, element: Element, path: str) -> Decimal:
        text = (element.text or "").strip()
        if not _DECIMAL.fullmatch(text):
            raise Fixable(f"{self.file}: {path} is {text!r}, which is no amount")
        return _at_least_cents(Decimal(text))


def _totals(source: _Source, line: str, currency: str) -> Totals:
    if source.root.find(line, _NAMESPACES) is None:
        raise Fixable(f"{source.file}: {line} is missing")
    if any(each.find("cbc:LineExtensionAmount", _NAMESPACES) is None for each in source.root.iterfind(line, _NAMESPACES)):
        raise Fixable(f"{source.file}: a {line} has no cbc:LineExtensionAmount")
    total = "cac:LegalMonetaryTotal"
    return Totals(
        lines=source.amount(f"{total}/cbc:LineExtensionAmount"),
        lines_added=source.added(f"{line}/cbc:LineExtensionAmount"),
        allowances=source.amount_or_zero(f"{total}/cbc:AllowanceTotalAmount"),
        charges=source.amount_or_zero(f"{total}/cbc:ChargeTotalAmount"),
        exclusive=source.amount(f"{total}/cbc:TaxExclusiveAmount"),
        tax=source.added("cac:TaxTotal/cbc:TaxAmount", currency),
        tax_added=source.added("cac:TaxTotal/cac:TaxSubtotal/cbc:TaxAmount", currency),
        inclusive=source.amount(f"{total}/cbc:TaxInclusiveAmount"),
        prepaid=source.amount_or_zero(f"{total}/cbc:PrepaidAmount"),
        rounding=source.amount_or_zero(f"{total}/cbc:PayableRoundingAmount"),
        payable=source.amount(f"{total}/cbc:PayableAmount"),
    )


def _supplier(file: str, party: Element) -> str:
    for scheme in party.iterfind("cac:PartyTaxScheme", _NAMESPACES):
        if _first(scheme, "cac:TaxScheme/cbc:ID") == "VAT" and (vat := _letters(_first(scheme, "cbc:CompanyID"))):
            return vat
    country = _first(party, "cac:PostalAddress/cac:Country/cbc:IdentificationCode") or ""
    for path, otherwise in (
        ("cac:PartyLegalEntity/cbc:CompanyID", country),  # register numbers are unique in a country only
        ("cbc:EndpointID", ""),
        ("cac:PartyIdentification/cbc:ID", country),
    ):
        found = party.find(path, _NAMESPACES)
        if found is not None and (number := _letters(found.text)):
            return ":".join(part for part in (found.get("schemeID") or otherwise, number) if part)
    name = _first(party, "cac:PartyLegalEntity/cbc:RegistrationName", "cac:PartyName/cbc:Name")
    if not name:
        raise Fixable(f"{file}: cac:AccountingSupplierParty has no VAT number, no registration and no name")
    return f"name:{name.upper()}"


def _first(element: Element, *paths: str) -> str | None:
    """The text of the first of *paths* that has one, with single spaces."""
    for path in paths:
        text = " ".join((element.findtext(path, "", _NAMESPACES) or "").split())
        if text:
            return text
    return None


def _letters(text: str | None) -> str:
    """Letters and digits alone, in capitals."""
    return "".join(c for c in (text or "").upper() if c.isalnum())


def _at_least_cents(amount: Decimal) -> Decimal:
    """``7125`` and ``7125.00`` are one amount, so they are also recorded and sent as one."""
    if amount == amount.quantize(_CENT):
        return amount.quantize(_CENT) + _ZERO  # the addition turns -0.00 into 0.00
    return amount.normalize()


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return _DATE.fullmatch(text) is not None


def _plain(tag: str) -> str:
    """``{namespace}Name`` as ``Name (namespace)``."""
    namespace, _, name = tag.rpartition("}")
    return f"{name} ({namespace[1:]})" if namespace else name
