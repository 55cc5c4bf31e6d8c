"""The invoices example end to end: what is in the books, by the API's own count, after everything that can go wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples._http import send
from examples.invoices.api import AccountingApi
from examples.invoices.documents import read_document
from examples.invoices.generate import write_samples
from examples.invoices.workflow import Summary, post_invoices
from stepseven import Layer, Outcome, Question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
REAL = Path(os.environ.get("STEPSEVEN_SHARED", ROOT.parent / "shared")) / "data" / "invoices"
absent = pytest.mark.skipif(not REAL.is_dir(), reason=f"the real samples are not at {REAL}: set STEPSEVEN_SHARED")


@pytest.fixture
def anyio_backend() -> str:
    """The runtime is asyncio's."""
    return "asyncio"


@pytest.fixture
def api() -> Iterator[AccountingApi]:
    """A server without a file: the judge."""
    with AccountingApi() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A new SQLite file."""
    return f"sqlite:///{tmp_path / 'stepseven.db'}"


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """Six documents of our own."""
    write_samples(tmp_path / "inbox", 6)
    return tmp_path / "inbox"


async def run(store: str, folder: Path, url: str, *, run_id: str = "inbox") -> Outcome[Summary]:
    """The same call as the first time, as another process would make it: a layer of its own."""
    async with Layer(store) as layer:
        return await layer.run(post_invoices(folder=str(folder), api=url), client="acme", run_id=run_id)


async def answer(store: str, questions: tuple[Question, ...], value: Any) -> None:
    """Answer them all, from a layer of its own."""
    async with Layer(store) as layer:
        for question in questions:
            await layer.answer(question.id, value, by="ann")


async def until_done(store: str, folder: Path, url: str, value: str) -> Summary:
    """Give every question the same answer until none is left."""
    for _ in range(20):
        outcome = await run(store, folder, url)
        if outcome.status.ended:
            return outcome.result()
        assert outcome.questions, outcome
        await answer(store, outcome.questions, value)
    pytest.fail("questions without end")


def fault(url: str, **body: Any) -> None:
    """Make what comes go wrong."""
    assert send("POST", f"{url}/fault", body).status_code == 200


def books(url: str) -> tuple[int, int, int]:
    """Postings, documents, documents posted more than once: the judge."""
    counted = send("GET", f"{url}/count").body
    return counted["postings"], counted["documents"], counted["twice"]


def requests(url: str) -> int:
    """How many postings were asked for."""
    return int(send("GET", f"{url}/count").body["requests"])


def rewritten(source: Path, target: Path, change: Callable[[str], str]) -> None:
    """*target* becomes a changed *source*."""
    target.write_text(change(source.read_text(encoding="utf-8")), encoding="utf-8")


def with_other_amounts(text: str) -> str:
    """Every amount ten times as large: the sums still add up."""
    return re.sub(r'(currencyID="...">)(-?)(\d+)\.(\d)(\d)<', r"\1\2\3\4.\g<5>0<", text)


# -- the right outcome ------------------------------------------------------------------------------------------------


async def test_fifty_documents_are_posted_once_each(store: str, tmp_path: Path, api: AccountingApi) -> None:
    """Fifty postings with the right totals; the same run again, and another run of the client, post nothing more."""
    folder = tmp_path / "fifty"
    documents = [read_document(path) for path in write_samples(folder)]
    summary = (await run(store, folder, api.url)).result()
    assert (summary.posted, summary.already_there, summary.skipped) == (50, 0, 0)
    for currency, total in summary.totals.items():
        signed = (d.amount if d.kind == "invoice" else -d.amount for d in documents if d.currency == currency)
        assert total == sum(signed, Decimal(0))
    assert (await run(store, folder, api.url)).result() == summary
    assert (await run(store, folder, api.url, run_id="again")).result() == summary
    assert books(api.url) == (50, 50, 0)
    assert requests(api.url) == 50


@pytest.mark.shared
@absent
async def test_the_real_samples_come_out_right(store: str, api: AccountingApi) -> None:
    """Copies get the first receipt, one number of several suppliers is several postings, other amounts are a question."""
    outcome = await run(store, REAL, api.url)
    assert outcome.status == "waiting"
    assert {question.kind for question in outcome.questions} == {"conflict"}
    assert books(api.url) == (13, 13, 0)
    posted = send("GET", f"{api.url}/postings?number=Snippet1").body
    assert [(row["supplier"], row["amount"]) for row in posted] == [("GB1232434", "7125.00")]
    assert {row["supplier"] for row in send("GET", f"{api.url}/postings?number=TOSL108").body} == {"NO123456789MVA", "DK16356706"}
    assert len(send("GET", f"{api.url}/postings?number=12115118").body) == 1
    summary = await until_done(store, REAL, api.url, "same")
    assert (summary.posted, summary.already_there, summary.skipped) == (13, 6, 0)
    assert books(api.url) == (13, 13, 0)


async def test_a_copy_gets_the_first_receipt(store: str, inbox: Path, api: AccountingApi) -> None:
    """The same document in a second file is neither posted again nor asked about."""
    shutil.copy(inbox / "invoice-001.xml", inbox / "invoice-001-copy.xml")
    summary = (await run(store, inbox, api.url)).result()
    assert (summary.posted, summary.already_there) == (6, 1)
    assert books(api.url) == (6, 6, 0)


@pytest.mark.parametrize("value,expected", [("same", (6, 6, 0)), ("second", (7, 6, 1))])
async def test_other_amounts_are_a_persons_decision(
    store: str, inbox: Path, api: AccountingApi, value: str, expected: tuple[int, int, int]
) -> None:
    """One number with other amounts is posted only when a person says that it is a second one, and then once."""
    rewritten(inbox / "invoice-006.xml", inbox / "invoice-007.xml", with_other_amounts)
    outcome = await run(store, inbox, api.url)
    assert [question.kind for question in outcome.questions] == ["conflict"]
    assert books(api.url) == (6, 6, 0)
    await answer(store, outcome.questions, value)
    assert (await run(store, inbox, api.url)).status == "done"
    assert (await run(store, inbox, api.url)).status == "done"
    assert books(api.url) == expected


# -- files that are wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["<Invoice", "<Order xmlns='urn:x'/>", "no XML at all"])
async def test_a_bad_file_is_a_question_about_that_file(store: str, inbox: Path, api: AccountingApi, content: str) -> None:
    """The others are posted meanwhile; mended and answered with ``again``, it is posted too."""
    bad = inbox / "invoice-003.xml"
    good = bad.read_bytes()
    bad.write_text(content, encoding="utf-8")
    outcome = await run(store, inbox, api.url)
    assert [question.kind for question in outcome.questions] == ["failure"]
    assert "invoice-003.xml" in outcome.questions[0].text
    assert books(api.url) == (5, 5, 0)
    bad.write_bytes(good)
    await answer(store, outcome.questions, "again")
    assert (await run(store, inbox, api.url)).result().posted == 6
    assert books(api.url) == (6, 6, 0)


async def test_a_bad_file_can_be_skipped(store: str, inbox: Path, api: AccountingApi) -> None:
    """The run ends without it and says so; nothing of it is in the books."""
    rewritten(inbox / "invoice-002.xml", inbox / "invoice-007.xml", lambda text: text.replace("2026-0002", "2026-0007", 1))
    rewritten(
        inbox / "invoice-007.xml", inbox / "invoice-007.xml", lambda text: re.sub("(<cbc:PayableAmount [^>]*>)", r"\g<1>1", text)
    )
    outcome = await run(store, inbox, api.url)
    assert "the amount due" in outcome.questions[0].text
    await answer(store, outcome.questions, "skip")
    summary = (await run(store, inbox, api.url)).result()
    assert (summary.posted, summary.skipped) == (6, 1)
    assert books(api.url) == (6, 6, 0)


# -- an API that misbehaves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "drop_reply", "times": 3, "after": 2, "seconds": 0.05},
        {"mode": "accept_later", "times": 1, "after": 2, "seconds": 1},
        {"mode": "rate_limit", "times": 2, "after": 2, "seconds": 1},
        {"mode": "error", "times": 1, "after": 2},
        {"mode": "down", "times": 2, "after": 2},
    ],
    ids=lambda wrong: str(wrong["mode"]),
)
async def test_what_passes_is_handled_without_a_person(
    store: str, inbox: Path, api: AccountingApi, wrong: dict[str, Any]
) -> None:
    """Lost replies, late postings, rate limits and short outages end in six postings, none twice, nobody asked."""
    fault(api.url, **wrong)
    summary = (await run(store, inbox, api.url)).result()
    assert (summary.posted, summary.already_there, summary.skipped) == (6, 0, 0)
    assert books(api.url) == (6, 6, 0)


async def test_a_lost_reply_is_looked_for_not_sent_again(store: str, inbox: Path, api: AccountingApi) -> None:
    """Six requests for six postings, though three answers never came."""
    fault(api.url, mode="drop_reply", times=3, seconds=0.05)
    assert (await run(store, inbox, api.url)).status == "done"
    assert requests(api.url) == 6


async def test_one_refusal_asks_about_one_document(store: str, inbox: Path, api: AccountingApi) -> None:
    """403 is for a person; the other documents are posted meanwhile."""
    fault(api.url, mode="forbid", times=1, after=2)
    outcome = await run(store, inbox, api.url)
    assert [question.kind for question in outcome.questions] == ["failure"]
    assert "403" in outcome.questions[0].text
    assert books(api.url) == (5, 5, 0)
    await answer(store, outcome.questions, "again")
    assert (await run(store, inbox, api.url)).result().posted == 6
    assert books(api.url) == (6, 6, 0)


async def test_refusals_in_a_row_are_one_question(store: str, inbox: Path, api: AccountingApi) -> None:
    """After two the rest is not even tried; one answer sets all of them going."""
    fault(api.url, mode="forbid")
    outcome = await run(store, inbox, api.url)
    assert [question.kind for question in outcome.questions] == ["batch"]
    assert (books(api.url), requests(api.url)) == ((0, 0, 0), 2)
    fault(api.url, mode="ok")
    await answer(store, outcome.questions, "again")
    assert (await run(store, inbox, api.url)).result().posted == 6
    assert books(api.url) == (6, 6, 0)


async def test_an_api_that_is_gone_comes_back(store: str, inbox: Path, tmp_path: Path) -> None:
    """Nothing is lost and nothing twice when the API is away for longer than tries last."""
    state = tmp_path / "postings.jsonl"
    with AccountingApi(state) as api:
        url = api.url
        fault(url, mode="down", after=3)
        outcome = await run(store, inbox, url)
        assert not outcome.status.ended
        assert books(url) == (3, 3, 0)
    with AccountingApi(state, port=int(url.rpartition(":")[2])):
        assert (await until_done(store, inbox, url, "again")).posted == 6
        assert books(url) == (6, 6, 0)


# -- the command line, in a process that dies -------------------------------------------------------------------------


def command(*arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command line and its environment."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return [sys.executable, "-m", "examples.invoices", *arguments], {**os.environ, "PYTHONPATH": paths}


def finished(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, run to its end."""
    line, environment = command(*arguments)
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_killed_run_is_continued_by_the_same_command(store: str, tmp_path: Path, api: AccountingApi) -> None:
    """SIGKILL between the posting and its receipt: the same command again ends with fifty postings, none twice."""
    folder = tmp_path / "fifty"
    write_samples(folder)
    fault(api.url, mode="drop_reply", times=1, after=20)
    arguments = (str(folder), "--api", api.url, "--client", "acme", "--store", store)
    line, environment = command(*arguments)
    with subprocess.Popen(line, env=environment) as process:
        end = time.monotonic() + 60
        while books(api.url)[0] < 21:
            assert time.monotonic() < end, "the run never came to the twenty-first posting"
            assert process.poll() is None, "the run ended by itself"
            time.sleep(0.01)
        process.kill()
    assert books(api.url) == (21, 21, 0)
    again = finished(*arguments)
    assert again.returncode == 0, again
    assert "50 posted, 0 already there, 0 skipped" in again.stdout
    assert books(api.url) == (50, 50, 0)


def test_a_question_is_exit_code_3_and_says_how_to_answer(store: str, inbox: Path, api: AccountingApi) -> None:
    """One line per choice, ready to paste; the documents that are right are posted."""
    (inbox / "letter.pdf").write_bytes(b"%PDF-1.7")
    ended = finished(str(inbox), "--api", api.url, "--store", store)
    assert ended.returncode == 3, ended
    assert re.search(r"stepseven answer q_\S+ skip", ended.stdout)
    assert books(api.url) == (6, 6, 0)


def test_wrong_usage_is_one_sentence(tmp_path: Path) -> None:
    """A folder that is not there, an address that is none: exit code 2, what is wrong and what to do."""
    missing = finished(str(tmp_path / "missing"), "--api", "http://127.0.0.1:1")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "is not a folder" in missing.stderr
    assert finished(str(tmp_path), "--api", "ftp://127.0.0.1").returncode == 2
