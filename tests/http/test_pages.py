"""The pages: what stands on them, who sees it, and that a form does what it says, once."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from stepseven import Cost, Fixable, Limits, Run, step, workflow
from stepseven.people import links
from stepseven.transitions import persons
from stepseven.transitions.persons import Said
from tests.http.desk import Api, api, token

pytestmark = [pytest.mark.anyio]
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@step(cost=Cost(usd=0.02), summary=lambda v: f"{v} tickets")
async def page_tickets(client: str) -> int:
    """A read that costs."""
    return 214


@step(resource="billing-api")
async def page_billing(client: str) -> int:
    """A read that only a person can mend."""
    raise Fixable("billing-api answered 403 Forbidden")


@step(effect="irreversible", key="to")
async def page_send(to: str, text: str) -> str:
    """What is proposed first."""
    return f"sent {text!r} to {to}"


@workflow
async def page_renewal(run: Run, text: str = SCRIPT) -> str:
    """Reads, fails, proposes."""
    await page_tickets(run.client_id)
    await page_billing(run.client_id)
    return await page_send(f"ann@{run.client_id}.example", text)


@workflow
async def page_question(run: Run) -> str:
    """Asks with text that a model wrote."""
    return str(await run.ask(f"What of {SCRIPT}?", type=str))


@workflow(limits=Limits(usd=0.03))
async def page_dear(run: Run) -> int:
    """Reaches its limit."""
    return sum([await page_tickets("a"), await page_tickets("b")])


class Reader:
    """Somebody who signed in with a browser that has no JavaScript."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def get(self, path: str, status: int = 200) -> str:
        """A page."""
        answer = await self.client.get(path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        return answer.text

    async def press(self, path: str, choice: str | None = None, *, status: int = 303, **fields: str) -> httpx.Response:
        """A button of a form."""
        body = {"form": self.client.cookies["stepseven_form"], **({} if choice is None else {"choice": choice}), **fields}
        answer = await self.client.post(path, data=body)
        assert answer.status_code == status, answer.text
        return answer


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Api]:
    """The application."""
    async with api(tmp_path) as made:
        yield made


async def signed_in(here: Api, *scopes: str, clients: tuple[str, ...] | None = None, name: str = "ann") -> Reader:
    """A reader with a session."""
    caller = here.caller()
    answer = await caller.post("/sign-in", data={"token": await token(here.layer, *scopes, clients=clients, name=name)})
    assert answer.status_code == 303, answer.text
    return Reader(caller)


async def ask(here: Api, made: Any, client: str = "acme", run_id: str = "r-1") -> Any:
    """A run that waits for a person, and its question."""
    outcome = await here.layer.run(made, client=client, run_id=run_id, wait=0)
    (question,) = outcome.questions
    return question


async def test_who_is_not_signed_in_is_asked_to(here: Api) -> None:
    """Every page leads to the sign-in page; nothing of it is shown."""
    await ask(here, page_renewal())
    async with here.caller() as nobody:
        for path in ("/", "/runs", "/runs/r-1", "/clients/acme", "/board", "/questions/q_x"):
            answer = await nobody.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in"), path
            assert "acme" not in answer.text


async def test_empty_pages_teach(here: Api) -> None:
    """With nothing there each page says what makes something, with a command."""
    reader = await signed_in(here, "admin")
    for path, words in (
        ("/", "Nothing needs you."), ("/runs", "There is no run yet."), ("/board", "Nothing has run yet."),
        ("/clients", "There is no client yet."), ("/schedules", "stepseven start"), ("/rules", "remember="),
        ("/review", "--status failed"),
    ):  # fmt: skip
        assert words in unescape(await reader.get(path)), path


async def test_a_failure_is_answered_in_the_browser(here: Api) -> None:
    """The card says what is done, failed and next; a press answers in the reader's name, and leads to the run."""
    question = await ask(here, page_renewal())
    reader = await signed_in(here, "answer", "read", name="ann")
    text = unescape(await reader.get("/"))
    for words in ("page billing", "214 tickets", "billing-api answered 403 Forbidden", "page send"):
        assert words in text, words
    answer = await reader.press(f"/questions/{question.id}/answer", "value", **{"value-value": "48000", "note": "from Bob"})
    assert answer.headers["location"] == f"/runs/r-1?answered={question.id}"
    assert "Your answer is kept." in await reader.get(answer.headers["location"])
    (kept,) = await here.layer.questions(status="answered")
    assert (kept.answer, kept.answered_by, kept.note) == ({"choice": "value", "value": 48000}, "ann", "from Bob")
    again = await reader.press(f"/questions/{question.id}/answer", "skip", status=409)
    assert "already answered by ann" in unescape(again.text)


async def test_an_approval_shows_the_exact_values_and_takes_edits(here: Api) -> None:
    """What will be sent stands apart, whole and escaped; what the reader changes in the form is what is approved."""
    question = await ask(here, page_renewal())
    await here.layer.answer(question.id, {"choice": "value", "value": 1}, by="ann")
    (proposed,) = (await here.layer.resume("r-1")).questions
    reader = await signed_in(here, "admin")
    text = await reader.get(f"/questions/{proposed.id}")
    assert "To be used, exactly" in text
    assert SCRIPT not in text
    assert SCRIPT in unescape(text)
    assert re.search(r'name="edit-to" rows="1" readonly', text)
    await reader.press(f"/questions/{proposed.id}/answer", "approve", **{"edit-to": "ann@acme.example", "edit-text": "Dear Ann"})
    assert (await here.layer.resume("r-1")).result() == "sent 'Dear Ann' to ann@acme.example"


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"choice": "value"}, "give the value"),
        ({"choice": "wait", "until": "fact"}, "say which fact"),
        ({"choice": "nonsense"}, "is not one of"),
        ({}, "is not one of"),
        ({"choice": "wait", "until": "time", "time": "yesterday-ish"}, "neither a time"),
    ],
)
async def test_a_form_that_cannot_be_taken_says_why(here: Api, fields: dict[str, str], words: str) -> None:
    """Nothing was changed, the sentence stands above the question, and what was typed is still there."""
    question = await ask(here, page_renewal())
    reader = await signed_in(here, "admin")
    answer = await reader.press(f"/questions/{question.id}/answer", status=422, **fields, note="keep me")
    text = unescape(answer.text)
    assert words in text
    assert "Nothing was changed." in text
    assert "keep me" in text
    assert len(await here.layer.questions()) == 1


async def test_what_a_model_wrote_is_never_markup(here: Api) -> None:
    """A question, an answer and a value with a script in them are shown as text, on every page that shows them."""
    question = await ask(here, page_question())
    reader = await signed_in(here, "admin")
    await reader.press(f"/questions/{question.id}/answer", answer=SCRIPT)
    await here.layer.resume("r-1")
    here.layer.client("acme").set("note", SCRIPT)
    for path in (f"/questions/{question.id}", "/runs/r-1", "/runs", "/clients/acme", "/board", "/"):
        text = await reader.get(path)
        assert SCRIPT not in text, path
        assert "<img" not in text, path
    assert SCRIPT in unescape(await reader.get("/clients/acme"))


async def test_another_clients_pages_are_not_there(here: Api) -> None:
    """A session for one client sees nothing of another: not in lists, not by id, not by what it answers."""
    question = await ask(here, page_renewal(), client="secretco", run_id="r-secret")
    await ask(here, page_question(), client="acme", run_id="r-1")
    reader = await signed_in(here, "admin", clients=("acme",))
    for path in ("/", "/runs", "/board", "/clients", "/runs?client=secretco", "/?client=secretco"):
        assert "r-secret" not in await reader.get(path), path
    for path in (f"/questions/{question.id}", "/runs/r-secret", "/clients/secretco"):
        await reader.get(path, status=404)
    await reader.press(f"/questions/{question.id}/answer", "stop", status=404)
    await reader.press("/runs/r-secret/cancel", status=404)
    await reader.press("/runs/r-secret/resume", status=404)
    assert (await here.layer.checkpoint("r-secret"))["status"] == "waiting"


async def test_a_form_of_another_site_changes_nothing(here: Api) -> None:
    """Without what our own page brings, or from another origin, a press is refused."""
    question = await ask(here, page_renewal())
    reader = await signed_in(here, "admin")
    path = f"/questions/{question.id}/answer"
    assert (await reader.client.post(path, data={"choice": "stop"})).status_code == 403
    assert (await reader.client.post(path, data={"choice": "stop", "form": "wrong"})).status_code == 403
    body = {"choice": "stop", "form": reader.client.cookies["stepseven_form"]}
    assert (await reader.client.post(path, data=body, headers={"origin": "https://evil.example"})).status_code == 403
    assert len(await here.layer.questions()) == 1


async def test_who_may_only_look_has_no_buttons(here: Api) -> None:
    """Scope ``read``: the choices are listed, nothing can be pressed, and a press is refused."""
    question = await ask(here, page_renewal())
    reader = await signed_in(here, "read")
    text = await reader.get("/")
    assert 'action="/questions/' not in text
    await reader.press(f"/questions/{question.id}/answer", "stop", status=403)
    assert "Resume</button>" not in await reader.get("/runs/r-1")
    await reader.press("/runs/r-1/cancel", status=403)


async def test_a_limit_is_raised_and_a_run_is_stopped(here: Api) -> None:
    """The number goes to the unit of the limit; a run that is stopped says by whom and why."""
    question = await ask(here, page_dear())
    reader = await signed_in(here, "admin", name="bob")
    await reader.press(f"/questions/{question.id}/answer", "raise", limit="$1.50")
    assert (await here.layer.resume("r-1")).result() == 428
    await ask(here, page_renewal(), run_id="r-2")
    await reader.press("/runs/r-2/cancel", reason="no longer wanted")
    assert "no longer wanted" in unescape(await reader.get("/runs/r-2"))


async def test_one_answer_for_an_incident(here: Api) -> None:
    """Questions of one cause stand together, and one press answers those that the reader may see."""
    for n, client in enumerate(("acme", "bolt", "cora")):
        await ask(here, page_renewal(), client=client, run_id=f"r-{n}")
    reader = await signed_in(here, "admin", clients=("acme", "bolt"))
    text = unescape(await reader.get("/"))
    assert "2 runs wait" in text
    incident = re.search(r"/incidents/(i_\w+)/answer", text)
    assert incident is not None
    answer = await reader.press(f"/incidents/{incident[1]}/answer", "skip", status=200)
    assert "2 questions took your answer." in answer.text
    assert [q.client_id for q in await here.layer.questions()] == ["cora"]


# -- links in messages --------------------------------------------------------------------------------------------------------


async def linked(here: Api, made: Any) -> tuple[Any, str]:
    """A question that Bea was told of, and her link."""
    layer = here.layer
    await layer.store.write(
        lambda tx: persons.save(tx, Said(id="bea", name="Bea", channels=("json://bea",)), layer.services.edge.now_us()),
        durable=True, client=None,
    )  # fmt: skip
    question = await ask(here, made)
    return question, await link_to(here, question)


async def link_to(here: Api, question: Any) -> str:
    """The link in the newest message about a question."""

    def unit(tx: Any) -> Any:
        newest = tx.all(tx.sql.deliveries_of_question, {"question_id": question.id})[-1]
        return tx.one(tx.sql.delivery, {"id": newest["id"]})

    row = await here.layer.store.read(unit)
    return links.url("", links.signing_key(here.layer.store, here.layer.services.edge), row)


async def test_a_link_shows_and_a_press_answers(here: Api) -> None:
    """GET and HEAD spend nothing, however often; one POST answers in the person's name; a second is told so, and kept."""
    question, path = await linked(here, page_question())
    async with here.caller() as anybody:
        for _ in range(3):
            assert (await anybody.head(path)).status_code == 200
            page = await anybody.get(path)
            assert page.status_code == 200
        assert SCRIPT not in page.text
        assert len(await here.layer.questions()) == 1
        answer = await anybody.post(path, data={"answer": "fine"})
        assert "Thank you, Bea" in answer.text
        (kept,) = await here.layer.questions(status="answered")
        assert (kept.answer, kept.answered_by) == ("fine", "Bea")
        late = await anybody.post(path, data={"answer": "no"})
        assert late.status_code in (409, 410)
        assert "Bea answered it" in unescape((await anybody.get(path)).text)
        assert "no" in unescape(await (await signed_in(here, "admin")).get(f"/questions/{question.id}"))
        assert (await anybody.get(path[:-2] + "xx")).status_code == 404
        assert (await anybody.post(path[:-2] + "xx", data={"answer": "x"})).status_code == 404


async def test_a_link_alone_approves_nothing_that_cannot_be_taken_back(here: Api) -> None:
    """It says that a sign-in is needed; refusing needs none."""
    _, path = await linked(here, page_renewal())
    async with here.caller() as anybody:
        await anybody.post(path, data={"choice": "value", "value-value": "1"})
        (proposed,) = (await here.layer.resume("r-1")).questions
        path = await link_to(here, proposed)
        answer = await anybody.post(path, data={"choice": "approve"})
        assert answer.status_code == 403
        assert "signed in" in answer.text
        assert len(await here.layer.questions()) == 1
        assert "Thank you" in (await anybody.post(path, data={"choice": "refuse"})).text
