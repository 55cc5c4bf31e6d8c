"""Makes invoices and credit notes of our own to try the example with: ``python -m examples.invoices.generate FOLDER``."""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal
from html import escape
from pathlib import Path

_SUPPLIERS = (
    ("SE556703748501", "Norrsken Kontor AB", "SEK"),
    ("DE811907980", "Weberei & Söhne GmbH", "EUR"),
    ("NL001234567B01", "Drukkerij De Vlieger", "EUR"),
    ("DK88146328", "Havnens Elektro ApS", "DKK"),
    ("GB928741974", "Thornton <Fixings> Ltd", "GBP"),  # a name that has to be escaped
    ("FR40303265045", "L'Atelier du Quai", "EUR"),
)
_ITEMS = ("Paper, box", "Repair, hour", "Transport", "Software, month", "Cleaning", "Lamp", "Printing", "Advice, hour")
_RATES = (Decimal(25), Decimal(12), Decimal(0))
_FIRST_DAY = date(2026, 1, 5)
_CENT = Decimal("0.01")
_CREDIT_NOTE_EVERY = 5


@dataclass(frozen=True, slots=True)
class _Line:
    item: str
    quantity: int
    price: Decimal
    rate: Decimal

    @property
    def amount(self) -> Decimal:
        return self.price * self.quantity


def write_samples(folder: str | Path, count: int = 50, seed: int = 7) -> list[Path]:
    """Write *count* valid documents of several suppliers and currencies; every fifth is a credit note.

    Args:
        folder: made if it is not there; files of the same names are overwritten.
        count: how many, at least 0.
        seed: the same seed and count give the same files, byte for byte. No two have one supplier and number.

    Returns:
        The files, ``invoice-001.xml`` and so on, in that order.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed)  # noqa: S311 - samples, not secrets
    paths = []
    for n in range(1, count + 1):
        path = folder / f"invoice-{n:03d}.xml"
        path.write_text(_document(n, chance), encoding="utf-8")
        paths.append(path)
    return paths


def _document(n: int, chance: random.Random) -> str:
    vat, name, currency = _SUPPLIERS[chance.randrange(len(_SUPPLIERS))]
    lines = [
        _Line(chance.choice(_ITEMS), chance.randint(1, 12), Decimal(chance.randint(100, 90_000)) * _CENT, chance.choice(_RATES))
        for _ in range(chance.randint(1, 6))
    ]
    kind, quantity, code = ("Invoice", "Invoiced", 380) if n % _CREDIT_NOTE_EVERY else ("CreditNote", "Credited", 381)
    prepaid = Decimal(chance.choice(("0.00", "0.00", "0.00", "50.00")))
    body = (
        _party("Supplier", name, vat)
        + _party("Customer", "Kontoret i Hamnen AB", "SE556012579001")
        + _money(lines, prepaid, currency)
        + "".join(_line(i, line, kind, quantity, currency) for i, line in enumerate(lines, 1))
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<{kind} xmlns="urn:oasis:names:specification:ubl:schema:xsd:{kind}-2"
  xmlns:cac="urn:oasis:names:specification:ubl:schema:xsd:CommonAggregateComponents-2"
  xmlns:cbc="urn:oasis:names:specification:ubl:schema:xsd:CommonBasicComponents-2">
<cbc:CustomizationID>urn:cen.eu:en16931:2017</cbc:CustomizationID>
<cbc:ID>{_FIRST_DAY.year}-{n:04d}</cbc:ID>
<cbc:IssueDate>{_FIRST_DAY + timedelta(days=n)}</cbc:IssueDate>
<cbc:{kind}TypeCode>{code}</cbc:{kind}TypeCode>
<cbc:DocumentCurrencyCode>{currency}</cbc:DocumentCurrencyCode>
{body}</{kind}>
"""


def _party(role: str, name: str, vat: str) -> str:
    return f"""<cac:Accounting{role}Party><cac:Party>
<cac:PostalAddress><cac:Country><cbc:IdentificationCode>{vat[:2]}</cbc:IdentificationCode></cac:Country></cac:PostalAddress>
<cac:PartyTaxScheme><cbc:CompanyID>{vat}</cbc:CompanyID><cac:TaxScheme><cbc:ID>VAT</cbc:ID></cac:TaxScheme></cac:PartyTaxScheme>
<cac:PartyLegalEntity><cbc:RegistrationName>{escape(name)}</cbc:RegistrationName></cac:PartyLegalEntity>
</cac:Party></cac:Accounting{role}Party>
"""


def _money(lines: list[_Line], prepaid: Decimal, currency: str) -> str:
    """The VAT breakdown and the totals, each VAT amount rounded once per rate as EN 16931 has it (BR-CO-17)."""
    taxable = {rate: sum((x.amount for x in lines if x.rate == rate), Decimal("0.00")) for rate in {x.rate for x in lines}}
    taxes = {rate: (base * rate / 100).quantize(_CENT, ROUND_HALF_UP) for rate, base in taxable.items()}
    net, tax = sum(taxable.values(), Decimal("0.00")), sum(taxes.values(), Decimal("0.00"))
    of = f'currencyID="{currency}"'
    subtotals = "".join(
        f"""<cac:TaxSubtotal><cbc:TaxableAmount {of}>{taxable[rate]}</cbc:TaxableAmount>
<cbc:TaxAmount {of}>{taxes[rate]}</cbc:TaxAmount>{_category("TaxCategory", rate)}</cac:TaxSubtotal>
"""
        for rate in sorted(taxable)
    )
    return f"""<cac:TaxTotal><cbc:TaxAmount {of}>{tax}</cbc:TaxAmount>
{subtotals}</cac:TaxTotal>
<cac:LegalMonetaryTotal><cbc:LineExtensionAmount {of}>{net}</cbc:LineExtensionAmount>
<cbc:TaxExclusiveAmount {of}>{net}</cbc:TaxExclusiveAmount>
<cbc:TaxInclusiveAmount {of}>{net + tax}</cbc:TaxInclusiveAmount>
<cbc:PrepaidAmount {of}>{prepaid}</cbc:PrepaidAmount>
<cbc:PayableAmount {of}>{net + tax - prepaid}</cbc:PayableAmount></cac:LegalMonetaryTotal>
"""


def _line(number: int, line: _Line, kind: str, quantity: str, currency: str) -> str:
    of = f'currencyID="{currency}"'
    return f"""<cac:{kind}Line><cbc:ID>{number}</cbc:ID>
<cbc:{quantity}Quantity unitCode="C62">{line.quantity}</cbc:{quantity}Quantity>
<cbc:LineExtensionAmount {of}>{line.amount}</cbc:LineExtensionAmount>
<cac:Item><cbc:Name>{escape(line.item)}</cbc:Name>{_category("ClassifiedTaxCategory", line.rate)}</cac:Item>
<cac:Price><cbc:PriceAmount {of}>{line.price}</cbc:PriceAmount></cac:Price></cac:{kind}Line>
"""


def _category(element: str, rate: Decimal) -> str:
    scheme = "<cac:TaxScheme><cbc:ID>VAT</cbc:ID></cac:TaxScheme>"
    return f"<cac:{element}><cbc:ID>{'S' if rate else 'Z'}</cbc:ID><cbc:Percent>{rate}</cbc:Percent>{scheme}</cac:{element}>"


def main() -> None:
    """Write samples into the folder given on the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.invoices.generate", description=write_samples.__doc__)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    paths = write_samples(args.folder, args.count, args.seed)
    print(f"{len(paths)} documents in {args.folder}")


if __name__ == "__main__":
    main()
