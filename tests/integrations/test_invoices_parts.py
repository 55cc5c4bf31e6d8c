"""The invoices example without the runtime: reading, checking, making samples, and the accounting API."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples._http import ApiError, Reply, send
from examples.invoices.api import AccountingApi
from examples.invoices.documents import check, read_document
from examples.invoices.generate import write_samples
from stepseven import Fixable

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
REAL = Path(os.environ.get("STEPSEVEN_SHARED", ROOT.parent / "shared")) / "data" / "invoices"
BODY = {"supplier": "GB1232434", "number": "7", "kind": "invoice", "amount": "12.50", "currency": "EUR"}

absent = pytest.mark.skipif(not REAL.is_dir(), reason=f"the real samples are not at {REAL}: set STEPSEVEN_SHARED")


@pytest.fixture
def api() -> Iterator[AccountingApi]:
    """A server without a file."""
    with AccountingApi() as running:
        yield running


def post(url: str, key: str, **changed: str) -> Reply:
    """Post a document, with some of its fields changed."""
    return send("POST", f"{url}/postings", BODY | changed, idempotency_key=key)


def fault(url: str, **body: Any) -> None:
    """Make what comes go wrong."""
    assert send("POST", f"{url}/fault", body).status_code == 200


def count(url: str) -> dict[str, int]:
    """What stands in the books."""
    counted: dict[str, int] = send("GET", f"{url}/count").body
    return counted


def until_posted(url: str, postings: int) -> dict[str, int]:
    """Ask again until so many are in the books."""
    end = time.monotonic() + 20
    while (counted := count(url))["postings"] < postings:
        assert time.monotonic() < end, counted
        time.sleep(0.01)
    return counted


def changed(path: Path, pattern: str, by: str) -> Path:
    """The first match in the file replaced."""
    text, times = re.subn(pattern, by, path.read_text(encoding="utf-8"), count=1)
    assert times == 1
    path.write_text(text, encoding="utf-8")
    return path


def reason(path: Path) -> str:
    """Why a file is refused."""
    with pytest.raises(Fixable) as raised:
        read_document(path)
    return raised.value.reason


# -- documents --------------------------------------------------------------------------------------------------------


@pytest.mark.shared
@absent
def test_every_real_sample_is_right() -> None:
    """No genuine document is rejected: EN 16931's and Peppol's own examples all pass the checks."""
    findings = {path.name: check(read_document(path)) for path in sorted(REAL.glob("*.xml"))}
    assert len(findings) == 19
    assert {name: found for name, found in findings.items() if found} == {}


@pytest.mark.shared
@absent
def test_the_same_document_in_two_files_is_one_entry() -> None:
    """Two copies of a document differ in their files, not in what is posted."""
    for one, other in (
        ("en16931-example1", "en16931-example10"),
        ("peppol-base-example", "peppol-sales-order-example"),
        ("peppol-vat-category-E", "peppol-vat-category-Z"),
    ):
        assert read_document(REAL / f"{one}.xml").entry == read_document(REAL / f"{other}.xml").entry


@pytest.mark.shared
@absent
def test_one_number_of_several_suppliers_is_several_documents() -> None:
    """TOSL108 comes from two suppliers and TOSL110 from three: the number alone says nothing."""
    documents = [read_document(path) for path in sorted(REAL.glob("*.xml"))]
    suppliers = {n: {d.supplier for d in documents if d.number == n} for n in ("TOSL108", "TOSL110")}
    assert suppliers == {
        "TOSL108": {"NO123456789MVA", "DK16356706"},
        "TOSL110": {"DK16356706", "NL16356706", "DK123456789MVA"},
    }
    assert len({(d.supplier, d.number) for d in documents}) == 13


@pytest.mark.shared
@absent
def test_one_number_with_other_amounts_differs_in_what_is_posted() -> None:
    """Snippet1 of one supplier stands for four different entries: only a person can tell which is meant."""
    entries = {d.entry for d in map(read_document, REAL.glob("*.xml")) if d.number == "Snippet1"}
    assert {(e.supplier, e.kind, str(e.amount)) for e in entries} == {
        ("GB1232434", "invoice", "1656.25"),
        ("GB1232434", "invoice", "7125.00"),
        ("GB1232434", "invoice", "8550.00"),
        ("GB1232434", "credit_note", "1656.25"),
    }


@pytest.mark.shared
@absent
def test_the_amount_is_the_total_with_vat() -> None:
    """What was paid in advance does not make the invoice smaller."""
    document = read_document(REAL / "en16931-example2.xml")
    assert (document.amount, document.totals.prepaid, document.totals.payable) == (
        Decimal("1801.78"),
        Decimal("1000.00"),
        Decimal("801.78"),
    )


def test_our_own_samples_are_right_and_the_same_each_time(tmp_path: Path) -> None:
    """Fifty valid documents, no business key twice, both kinds, several suppliers and currencies, byte for byte again."""
    paths = write_samples(tmp_path / "a")
    again = write_samples(tmp_path / "b")
    documents = [read_document(path) for path in paths]
    assert [path.name for path in paths][::49] == ["invoice-001.xml", "invoice-050.xml"]
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    assert [found for document in documents for found in check(document)] == []
    assert len({(d.supplier, d.number) for d in documents}) == 50
    assert sum(d.kind == "credit_note" for d in documents) == 10
    assert len({d.supplier for d in documents}) > 3
    assert len({d.currency for d in documents}) > 2


@pytest.mark.parametrize(
    "field,finding",
    [
        ("PayableAmount", "the amount due is stated as"),
        ("TaxInclusiveAmount", "the total with VAT is stated as"),
        ("TaxExclusiveAmount", "the total without VAT is stated as"),
        ("TaxAmount", "the VAT total is stated as"),
        ("LineExtensionAmount", "the lines' total is stated as"),
    ],
)
def test_a_sum_that_is_wrong_is_found(tmp_path: Path, field: str, finding: str) -> None:
    """A total that does not follow from the others is named, with what is stated and what it should be."""
    path = changed(write_samples(tmp_path, 1)[0], rf"(<cbc:{field} [^>]*>)", r"\g<1>1")
    found = check(read_document(path))
    assert any(finding in each for each in found), found


def test_amounts_in_another_currency_and_a_bad_date_are_found(tmp_path: Path) -> None:
    """The document's currency holds for all its sums, and the issue date is a date."""
    path = changed(write_samples(tmp_path, 1)[0], '<cbc:PayableAmount currencyID="...', '<cbc:PayableAmount currencyID="XTS')
    found = check(read_document(changed(path, "<cbc:IssueDate>[^<]*", "<cbc:IssueDate>2026-13-01")))
    assert any("some amounts are in XTS" in each for each in found)
    assert any("the issue date '2026-13-01' is no date" in each for each in found)


@pytest.mark.parametrize("field", ["ID", "IssueDate", "DocumentCurrencyCode", "PayableAmount", "TaxInclusiveAmount"])
def test_a_missing_field_is_named_with_its_file(tmp_path: Path, field: str) -> None:
    """What is missing, and in which file."""
    path = write_samples(tmp_path, 1)[0]
    path.write_text(path.read_text(encoding="utf-8").replace(f"cbc:{field}", "cbc:Note"), encoding="utf-8")
    assert reason(path).startswith("invoice-001.xml: ")
    assert f"cbc:{field} is missing" in reason(path)


@pytest.mark.parametrize(
    "content,says",
    [
        (b"", "is not well-formed XML"),
        (b"%PDF-1.7", "is not well-formed XML"),
        (b"<Order xmlns='urn:x'/>", "Order (urn:x) is neither a UBL 2.1 Invoice nor a CreditNote"),
        (b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "has a DTD or entities"),
        (b"<?xml version='1.0' encoding='klingon'?><a/>", "invoice.xml: "),
        (b"<Invoice xmlns='urn:oasis:names:specification:ubl:schema:xsd:Invoice-2'/>", "cbc:DocumentCurrencyCode is missing"),
    ],
)
def test_a_malformed_or_foreign_file_is_a_fixable_failure(tmp_path: Path, content: bytes, says: str) -> None:
    """It says which file and what is wrong with it, and nothing in it is expanded or fetched."""
    path = tmp_path / "invoice.xml"
    path.write_bytes(content)
    assert reason(path).startswith("invoice.xml: ")
    assert says in reason(path)


def test_a_file_that_is_gone_is_a_fixable_failure(tmp_path: Path) -> None:
    """Someone may put it back."""
    assert "cannot be read" in reason(tmp_path / "gone.xml")


def test_a_number_that_is_none_is_refused(tmp_path: Path) -> None:
    """``NaN`` and thousands separators are no amounts."""
    for bad in ("NaN", "1,000.00", "1e3"):
        path = changed(write_samples(tmp_path, 1)[0], "(<cbc:PayableAmount [^>]*>)[^<]*", rf"\g<1>{bad}")
        assert f"PayableAmount is {bad!r}, which is no amount" in reason(path)


# -- the accounting API -----------------------------------------------------------------------------------------------


def test_a_key_is_posted_once(api: AccountingApi) -> None:
    """201 with an id; the same key again is 409 with that id; with another body it is 422; without a key 400."""
    first = post(api.url, "k1")
    again = post(api.url, "k1", amount="12.5")
    other = post(api.url, "k1", amount="13")
    assert (first.status_code, again.status_code, other.status_code) == (201, 409, 422)
    assert again.body["id"] == first.body["id"]
    assert send("POST", f"{api.url}/postings", BODY).status_code == 400
    assert count(api.url) == {"postings": 1, "documents": 1, "twice": 0, "requests": 4}


def test_two_keys_for_one_document_are_counted_as_twice(api: AccountingApi) -> None:
    """The API knows keys only, as real ones do: what was posted twice shows in its count."""
    post(api.url, "k1")
    post(api.url, "k2")
    assert count(api.url) == {"postings": 2, "documents": 1, "twice": 1, "requests": 2}
    found = send("GET", f"{api.url}/postings?supplier=GB1232434&number=7").body
    assert [(row["key"], row["amount"]) for row in found] == [("k1", "12.50"), ("k2", "12.50")]
    assert send("GET", f"{api.url}/postings?supplier=GB1232434&number=8").body == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        BODY | {"kind": "order"},
        BODY | {"amount": "NaN"},
        BODY | {"amount": "much"},
        BODY | {"number": ""},
        BODY | {"number": []},
        [],
    ],
)
def test_what_is_no_posting_is_refused(api: AccountingApi, body: object) -> None:
    """400, and nothing in the books."""
    assert send("POST", f"{api.url}/postings", body, idempotency_key="k").status_code == 400
    assert count(api.url)["postings"] == 0


def test_a_dropped_reply_is_in_the_books(api: AccountingApi) -> None:
    """The client hears nothing, the posting is there; faults end after their times, and begin after theirs."""
    fault(api.url, mode="drop_reply", times=1, after=1, seconds=0.05)
    assert post(api.url, "k1", number="1").status_code == 201
    with pytest.raises(ConnectionError):
        post(api.url, "k2", number="2")
    assert post(api.url, "k2", number="2").status_code == 409
    assert count(api.url) == {"postings": 2, "documents": 2, "twice": 0, "requests": 3}


def test_accepted_is_posted_later_and_once(api: AccountingApi) -> None:
    """202 now, in the books soon after; the same key in between is 202 again."""
    fault(api.url, mode="accept_later", times=2, seconds=0.2)
    assert [post(api.url, "k1").status_code for _ in range(3)] == [202, 202, 202]
    until_posted(api.url, 1)
    assert post(api.url, "k1").status_code == 409
    assert count(api.url)["postings"] == 1


def test_refusals_post_nothing(api: AccountingApi) -> None:
    """429 with Retry-After, 403 and 500 leave the books alone."""
    for mode, status in (("rate_limit", 429), ("forbid", 403), ("error", 500)):
        fault(api.url, mode=mode, times=1, seconds=2)
        reply = post(api.url, "k1")
        assert (reply.status_code, reply.headers.get("Retry-After")) == (status, "2" if status == 429 else None)
        assert str(status) in str(ApiError("posting", reply))
    assert count(api.url)["postings"] == 0


def test_down_ends_every_connection(api: AccountingApi) -> None:
    """Look-ups fail too while it is down, and ``ok`` ends it."""
    fault(api.url, mode="down")
    with pytest.raises(ConnectionError):
        post(api.url, "k1")
    with pytest.raises(ConnectionError):
        send("GET", f"{api.url}/postings")
    fault(api.url, mode="ok")
    assert post(api.url, "k1").status_code == 201


def test_a_bad_fault_is_refused(api: AccountingApi) -> None:
    """A typo in a test would otherwise be a fault that never happens."""
    for body in (
        {"mode": "dwon"},
        {"mode": "down", "times": -1},
        {"mode": "down", "after": True},
        {"mode": "down", "seconds": "1"},
    ):
        assert send("POST", f"{api.url}/fault", body).status_code == 400


def test_the_books_survive_a_restart(tmp_path: Path) -> None:
    """Postings, keys and what was accepted for later; a line that was cut off by a crash was never confirmed."""
    state = tmp_path / "postings.jsonl"
    with AccountingApi(state) as api:
        first = post(api.url, "k1").body["id"]
        fault(api.url, mode="accept_later", seconds=0.3)
        assert post(api.url, "k2", number="8").status_code == 202
    with state.open("ab") as file:
        file.write(b'{"id": "P000')
    with AccountingApi(state) as api:
        assert until_posted(api.url, 2)["twice"] == 0
        assert post(api.url, "k1").body["id"] == first
        assert post(api.url, "k2", number="8").status_code == 409
    with AccountingApi(state) as api:
        assert count(api.url)["postings"] == 2
    assert [json.loads(line).get("id") for line in state.read_text(encoding="utf-8").splitlines()] == ["P00001", None, "P00002"]


@contextmanager
def own_process(state: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command, as its address and its process; ended for good at the end."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "examples.invoices.api", "--port", "0", "--state", str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def test_the_api_is_a_process_of_its_own(tmp_path: Path) -> None:
    """Its first line is its address; what it confirmed before a SIGKILL is there after; SIGTERM ends it with 0."""
    with own_process(tmp_path / "state") as (url, process):
        assert post(url, "k1").status_code == 201
        process.kill()
    with own_process(tmp_path / "state") as (url, process):
        assert post(url, "k1").status_code == 409
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
