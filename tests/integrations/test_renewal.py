"""The renewal example end to end: two quarters of one client, killed wherever it hurts; judged by the systems' own counts.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples.renewal import next_quarter, with_approval, workflow
from examples.renewal.outside import BillingApi, Documents, Request, Server, System, Tickets, Wrong
from stepseven import Layer, Outcome, Question
from stepseven.runtime.edge import Edge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.renewal.systems import Document

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "renewal"
DESIGN = Path(os.environ.get("STEPSEVEN_SHARED", ROOT.parent / "shared")) / "DESIGN.md"
CONTRACT, YES = "approach:contract amount", "yes"


@pytest.fixture
def anyio_backend() -> str:
    """The runtime is asyncio's."""
    return "asyncio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The three systems, in this process: the judges."""

    tickets: Tickets
    billing: BillingApi
    documents: Documents

    def judged(self) -> tuple[int, int, int]:
        """Documents, quarters they are for, quarters with several."""
        counted = self.documents.count()
        return counted["documents"], counted["quarters"], counted["twice"]

    def next_quarter(self, *, mended: bool = True) -> None:
        """Q4 begins; billing works again, or not."""
        self.tickets.change({"quarter": "Q4"})
        self.billing.change({"lapsed": not mended})


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    """Three servers, and the environment that says where they are."""
    systems = Outside(tickets=Tickets(), billing=BillingApi(), documents=Documents())
    with ExitStack() as stack:
        for name in ("tickets", "billing", "documents"):
            server = stack.enter_context(Server(getattr(systems, name)))
            monkeypatch.setenv(f"RENEWAL_{name.upper()}", server.url)
        yield systems


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A new SQLite file."""
    return f"sqlite:///{tmp_path / 'stepseven.db'}"


class Later(Edge):
    """A clock two minutes ahead: what has to be let pass has passed."""

    def now_us(self) -> int:
        return super().now_us() + 120_000_000


async def run(
    store: str,
    quarter: str = "Q3",
    *,
    client: str = "acme",
    module: Any = workflow,
    name: str = "renewal",
    edge: Edge | None = None,
) -> Outcome[Any]:
    """The same call as the first time, from a layer of its own."""
    async with Layer(store, edge=edge) as layer:
        call = getattr(module, name)(quarter=quarter)
        return await layer.run(call, client=client, run_id=f"{client}-{quarter.lower()}")


async def answer(store: str, outcome: Outcome[Any], value: Any) -> Question:
    """Answer its one question."""
    (question,) = outcome.questions
    async with Layer(store) as layer:
        return await layer.answer(question.id, value, by="ann")


async def answered(store: str, *values: str) -> Outcome[Document]:
    """Q3, its questions answered one after the other."""
    outcome = await run(store)
    for value in values:
        await answer(store, outcome, value)
        outcome = await run(store)
    return outcome


async def asked(store: str, run_id: str) -> list[tuple[str, str]]:
    """Every question a run ever asked, with its answer."""
    async with Layer(store) as layer:
        return [(str(q.kind), q.answer) for q in await layer.questions(status=None, run_id=run_id)]


# -- the page and the code --------------------------------------------------------------------------------------------


@pytest.mark.shared
@pytest.mark.skipif(not DESIGN.is_file(), reason=f"the design is not at {DESIGN}: set STEPSEVEN_SHARED")
def test_the_workflow_is_the_one_of_the_design():
    """Every line of the design's example stands in the example's code, in the same order."""
    block = DESIGN.read_text("utf-8").split("```python\n")[1].split("```")[0]
    shown = block[block.index("@step(cost") : block.index("layer = Layer(")]
    code = iter(_plain(line) for line in (EXAMPLE / "workflow.py").read_text("utf-8").splitlines())
    for line in filter(None, map(_plain, shown.splitlines())):
        assert line in code, line


def _plain(line: str) -> str:
    """A line without its comment; a body that the design leaves out is only its head."""
    return re.sub(r"\s+(#.*|\.\.\.)$", "", line).rstrip()


# -- the story --------------------------------------------------------------------------------------------------------


async def test_billing_refuses_and_the_run_asks_with_its_state(store: str, outside: Outside):
    """403 is one question: what is done and paid for, what failed, what is next, and the contract amount recommended."""
    outcome = await run(store)
    (question,) = outcome.questions
    assert (question.kind, question.recommendation) == ("failure", CONTRACT)
    assert question.context["done"][0]["summary"] == "214 tickets"
    assert "403" in question.context["failed"][0]["reason"]
    assert question.context["next"] == ["write_draft", "create_document"]
    assert outcome.spend.usd == pytest.approx(0.02)
    assert (outside.judged(), outside.billing.asked["refused"]) == ((0, 0, 0), 1)


async def test_two_quarters_are_two_documents_and_two_questions(store: str, outside: Outside):
    """Q3 asks twice and files one document; Q4 asks nobody, knows the discount and says what changed since Q3."""
    first = (await answered(store, CONTRACT, YES)).result()
    outside.next_quarter()
    second = (await run(store, "Q4", module=next_quarter)).result()
    assert (first.quarter, second.quarter) == ("Q3", "Q4")
    assert outside.judged() == (2, 2, 0)
    assert (outside.tickets.asked["tickets"], outside.billing.asked["refused"]) == (2, 1)
    assert await asked(store, "acme-q3") == [("failure", CONTRACT), ("ask", YES)]
    assert await asked(store, "acme-q4") == []
    q3, q4 = (d["text"] for d in outside.documents.filed)
    assert "EUR 48,000.00 a year (contract of 2025-11-02)" in q3
    assert "EUR 43,200.00" in q3
    assert "EUR 51,600.00 a year (billing-api)" in q4
    assert f"Since “{first.title}” ({first.id}): 187 tickets instead of 214, 27 fewer" in q4
    assert "instead of 48,000.00 (contract of 2025-11-02, chosen by ann)" in q4


async def test_the_same_run_again_asks_the_outside_nothing(store: str, outside: Outside):
    """A finished quarter's run gives its document; no system hears of it."""
    first = await answered(store, CONTRACT, YES)
    before = [system.count() for system in (outside.tickets, outside.billing, outside.documents)]
    assert (await run(store)).result() == first.result()
    assert [system.count() for system in (outside.tickets, outside.billing, outside.documents)] == before


async def test_a_way_around_is_chosen_again_next_time(store: str, outside: Outside):
    """Billing still refuses in Q4: the contract amount was chosen for Q3, so a person is asked again; the discount is known."""
    await answered(store, CONTRACT, YES)
    outside.next_quarter(mended=False)
    outcome = await run(store, "Q4", module=next_quarter)
    assert [question.kind for question in outcome.questions] == ["failure"]
    await answer(store, outcome, CONTRACT)
    assert (await run(store, "Q4", module=next_quarter)).status == "done"
    assert outside.judged() == (2, 2, 0)


async def test_another_client_is_asked_for_itself(store: str, outside: Outside):
    """A fact is one client's: what acme's discount is says nothing about globex."""
    await answered(store, CONTRACT, YES)
    outside.billing.change({"lapsed": False})
    other = await run(store, client="globex")
    assert [question.kind for question in other.questions] == ["ask"]
    await answer(store, other, "no")
    assert (await run(store, client="globex")).status == "done"
    assert "No discount." in outside.documents.filed[-1]["text"]


async def test_a_lost_answer_is_looked_for(store: str, outside: Outside):
    """The store files the document, hangs up, and honours no keys: one document, found by looking."""
    outside.documents._ignore_keys = True
    await answered(store, CONTRACT)
    outside.documents.break_({"mode": "drop_reply", "method": "POST", "seconds": 0.05})
    outcome = await run(store)
    await answer(store, outcome, YES)
    assert (await run(store)).result().id == "D001"
    assert (outside.judged(), outside.documents.asked["file"]) == ((1, 1, 0), 1)


async def test_a_mail_goes_out_after_a_persons_word_only(store: str, outside: Outside):
    """The address is asked for first; the mail is proposed, changed, approved, and sent once to where the person said."""
    outside.billing.change({"lapsed": False})
    run_it = partial(run, store, module=with_approval, name="renewal_with_approval")
    outcome = await run_it()
    assert [question.kind for question in outcome.questions] == ["required"]
    assert outside.tickets.count()["asked"] == {}
    await answer(store, outcome, "ben@acme.example")
    await answer(store, await run_it(), YES)
    outcome = await run_it()
    assert [question.kind for question in outcome.questions] == ["approve"]
    assert (outside.judged(), outside.documents.mailed) == ((1, 1, 0), [])
    await answer(store, outcome, {"choice": "approve", "inputs": {"to": "bob@acme.example"}})
    assert (await run_it()).result().to == "bob@acme.example"
    assert (await run_it()).status == "done"
    assert [mail["to"] for mail in outside.documents.mailed] == ["bob@acme.example"]


async def test_a_mail_whose_answer_is_lost_is_looked_for(store: str, outside: Outside):
    """Approved, sent, and nobody heard of it: found by looking, sent once, and no second word is needed."""
    outside.billing.change({"lapsed": False})
    run_it = partial(run, store, module=with_approval, name="renewal_with_approval")
    await answer(store, await run_it(), "ben@acme.example")
    await answer(store, await run_it(), YES)
    await answer(store, await run_it(), "approve")
    outside.documents.break_({"mode": "drop_reply", "method": "POST", "seconds": 0.05})
    assert (await run_it()).result().id == "M001"
    assert outside.documents.asked["send"] == 1


# -- killed -----------------------------------------------------------------------------------------------------------


def stepseven(*arguments: str) -> tuple[list[str], dict[str, str]]:
    """A command line and its environment."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("STEPSEVEN_")}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), kept.get("PYTHONPATH", "")])
    return [sys.executable, "-m", "stepseven", *arguments], {**kept, "PYTHONPATH": paths, "USER": "ann"}


def killed_at(store: str, system: System, quarter: str = "Q3", module: str = "workflow", **fault: Any) -> None:
    """Start the run in a process of its own, and SIGKILL it while *system* keeps the answer to the request it waits for."""
    before = sum(system.asked.values())
    system.break_({"seconds": 50, **fault})
    target = f"examples.renewal.{module}:renewal"
    given = ("--client", "acme", "--input", f"quarter={quarter}", "--run-id", f"acme-{quarter.lower()}", "--store", store)
    line, env = stepseven("run", target, *given)
    with subprocess.Popen(line, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as worker:
        give_up = time.monotonic() + 30
        while sum(system.asked.values()) <= before + fault.get("after", 0):
            assert time.monotonic() < give_up, "the request never came"
            assert worker.poll() is None, worker.communicate()[1].decode()
            time.sleep(0.005)
        os.kill(worker.pid, signal.SIGKILL)
    assert worker.returncode == -signal.SIGKILL
    system.break_({"mode": "ok"})


async def finish(store: str, *values: str) -> Document:
    """Q3 to its end, its questions answered."""
    outcome = await answered(store, *values)
    return outcome.result()


@pytest.mark.parametrize("mode", ["hold", "drop_reply"])
async def test_killed_while_tickets_are_read(store: str, outside: Outside, mode: str):
    """What was not on record is read again, once; one document."""
    killed_at(store, outside.tickets, mode=mode)
    await finish(store, CONTRACT, YES)
    assert outside.tickets.asked["tickets"] == (1 if mode == "hold" else 2)
    assert outside.judged() == (1, 1, 0)


async def test_killed_while_billing_refuses(store: str, outside: Outside):
    """The refusal that was never heard is asked for again; the tickets are not, and there is still one question about it."""
    killed_at(store, outside.billing, mode="drop_reply")
    await finish(store, CONTRACT, YES)
    assert (outside.tickets.asked["tickets"], outside.billing.asked["refused"]) == (1, 2)
    assert await asked(store, "acme-q3") == [("failure", CONTRACT), ("ask", YES)]
    assert outside.judged() == (1, 1, 0)


async def test_killed_while_the_contract_is_read(store: str, outside: Outside):
    """The person's choice is kept: the contract is read again, nobody is asked again."""
    await answer(store, await run(store), CONTRACT)
    killed_at(store, outside.documents, mode="drop_reply")
    outcome = await run(store)
    assert [question.kind for question in outcome.questions] == ["ask"]
    await answer(store, outcome, YES)
    assert (await run(store)).status == "done"
    assert (outside.documents.asked["contract"], outside.billing.asked["refused"]) == (2, 1)
    assert outside.judged() == (1, 1, 0)


async def test_killed_between_claim_and_receipt(store: str, outside: Outside):
    """The document is filed, its receipt was never read: the next execution finds it and sends nothing."""
    await answer(store, await answered(store, CONTRACT), YES)
    killed_at(store, outside.documents, mode="drop_reply", method="POST")
    assert outside.judged() == (1, 1, 0)
    assert (await run(store)).result().id == "D001"
    assert (outside.judged(), outside.documents.asked["file"]) == ((1, 1, 0), 1)


async def test_killed_twice_around_the_document(store: str, outside: Outside):
    """Killed with the document filed, and killed again while looking for it: one document."""
    await answer(store, await answered(store, CONTRACT), YES)
    killed_at(store, outside.documents, mode="drop_reply", method="POST")
    killed_at(store, outside.documents, mode="hold", method="GET")
    assert (await run(store)).result().id == "D001"
    assert (outside.judged(), outside.documents.asked["file"]) == ((1, 1, 0), 1)


async def test_killed_before_the_document_was_filed(store: str, outside: Outside):
    """It may still arrive for 60 s, so the run waits; after that it is sent, once."""
    await answer(store, await answered(store, CONTRACT), YES)
    killed_at(store, outside.documents, mode="hold", method="POST")
    waiting = await run(store)
    assert (waiting.status, waiting.questions) == ("waiting", ())
    assert waiting.until_us is not None
    assert outside.documents.asked["file"] == 0
    assert (await run(store, edge=Later())).result().id == "D001"
    assert (outside.judged(), outside.documents.asked["file"]) == ((1, 1, 0), 1)


async def test_killed_in_the_second_quarter(store: str, outside: Outside):
    """What Q4 saw of Q3 is pinned: after a kill at its document it says the same, nobody is asked, two documents."""
    await finish(store, CONTRACT, YES)
    outside.next_quarter()
    killed_at(store, outside.documents, "Q4", "next_quarter", mode="drop_reply", method="POST")
    assert (await run(store, "Q4", module=next_quarter)).result().id == "D002"
    assert outside.judged() == (2, 2, 0)
    assert await asked(store, "acme-q4") == []
    assert outside.tickets.asked["tickets"] == 2


# -- the page, by hand ------------------------------------------------------------------------------------------------


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass(slots=True)
class Shell:
    """Types the page's lines in a folder; what was started in the background is stopped, by its pid."""

    folder: Path
    env: dict[str, str]
    background: list[subprocess.Popen[bytes]]

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        line = line.replace("QUESTION", self.question()) if "QUESTION" in line else line
        line = line.replace("stepseven ", f"{shlex.quote(sys.executable)} -m stepseven ", 1) if line[:4] == "step" else line
        line = line.replace("python ", f"exec {shlex.quote(sys.executable)} ", 1) if line[:6] == "python" else line
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self.env[name] = value
        if line.endswith("&"):
            self.background.append(subprocess.Popen(line.rstrip("& "), shell=True, cwd=self.folder, env=self.env))
            return subprocess.CompletedProcess(line, 0, "", "")
        return subprocess.run(
            line, shell=True, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=50, check=False
        )

    def question(self) -> str:
        shown = self.type("stepseven inbox").stdout
        found = re.search(r"\bq_\w{12}\b", shown)
        assert found, shown
        return found.group()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in an empty folder."""
    typing = Shell(tmp_path, stepseven()[1], [])
    yield typing
    for child in typing.background:
        child.kill()
        child.wait()


def lines_of(page: Path, ports: dict[str, int]) -> list[str]:
    """What the page says to type, without comments, at free ports."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"\s+#.*", "", line) for block in blocks for line in block.splitlines()]
    for shown, port in ports.items():
        lines = [line.replace(shown, str(port)) for line in lines]
    return lines


def listens(port: int) -> bool:
    """Whether somebody answers there."""
    with socket.socket() as knocks:
        return knocks.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(not Path("/usr/bin/curl").exists(), reason="the page uses curl")
def test_the_page_can_be_typed(shell: Shell):
    """Every line of the example's page works as it stands: two documents for two quarters, none twice."""
    ports = {shown: free_port() for shown in ("8701", "8702", "8703", "8704")}
    for name, port in zip(("TICKETS", "BILLING", "DOCUMENTS", "CRM"), ports.values(), strict=True):
        shell.env[f"RENEWAL_{name}"] = f"http://127.0.0.1:{port}"
    ended: list[tuple[str, int, str]] = []
    for line in lines_of(EXAMPLE / "README.md", ports):
        if not line.endswith("&"):
            give_up = time.monotonic() + 20
            while not all(map(listens, ports.values())):
                assert time.monotonic() < give_up, "the systems never listened"
                time.sleep(0.01)
        done = shell.type(line)
        ended.append((line, done.returncode, done.stdout))
        assert "Traceback" not in done.stderr, done.stderr
    codes = [code for line, code, _ in ended if line.startswith(("stepseven run", "stepseven resume"))]
    assert codes == [3, 3, 0, 0, 3, 3, 0, 3, 3, 0]
    counted = [said for line, _, said in ended if line.endswith("/count")]
    assert '"documents": 1' in counted[0]
    assert shell.type(f"curl -s http://127.0.0.1:{ports['8703']}/count").stdout.count('"twice": 0') == 1
    assert "27 fewer" in next(said for line, _, said in ended if "quarter=Q4" in line and line.startswith("curl"))
    first, last = (said for line, _, said in ended if line.endswith("/sent"))
    assert '"to": "bob@acme.example"' in first
    assert last.count('"to": "ben@acme.example"') == 1
    assert '"letter": 2' in counted[1]
    assert "record.contact" in next(said for line, _, said in ended if line.startswith("stepseven plan"))


# -- the systems themselves -------------------------------------------------------------------------------------------


def filing(key: str | None = "k", **fields: str) -> Request:
    """A request to file a document."""
    body = {"client_id": "acme", "quarter": "Q3", "title": "a", "text": "b", **fields}
    return Request(method="POST", path="/documents", query={}, body=body, key=key)


def test_one_key_is_one_document():
    """The same key gives the first document; with another text 422; a store that ignores keys files a second one."""
    documents, careless = Documents(), Documents(ignore_keys=True)
    assert [documents.answer(filing())[0], documents.answer(filing())[0]] == [201, 200]
    assert documents.answer(filing(text="c"))[0] == 422
    assert [careless.answer(filing())[0], careless.answer(filing())[0]] == [201, 201]
    assert (documents.count()["twice"], careless.count()["twice"]) == (0, 1)


def test_what_was_filed_is_kept_over_a_restart(tmp_path: Path):
    """A store that is started again has its documents, its keys and its counts."""
    first = Documents(tmp_path / "documents.jsonl")
    first.answer(filing())
    again = Documents(tmp_path / "documents.jsonl")
    assert again.count() == first.count()
    assert again.answer(filing())[0] == 200


@pytest.mark.parametrize(
    "request_", [filing(None), filing(title=""), Request(method="GET", path="/x", query={}, body={}, key=None)]
)
def test_what_is_no_request_is_refused(request_: Request):
    """No key, an empty title, an unknown path: a clear refusal, and nothing is filed."""
    documents = Documents()
    with pytest.raises(Wrong):
        documents.answer(request_)
    assert documents.count()["documents"] == 0


@pytest.mark.parametrize("body", [{"quarter": 4}, {"lapsed": True}, {"mode": "x"}])
def test_only_what_there_is_can_be_set(body: dict[str, Any]):
    """A wrong name or type changes nothing and says what there is."""
    tickets = Tickets()
    with pytest.raises(Wrong):
        tickets.break_(body) if "mode" in body else tickets.change(body)
    assert (tickets.set, tickets.trouble("GET")[0]) == ({"quarter": "Q3"}, "ok")
