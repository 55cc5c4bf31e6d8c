"""A step that fails in a real run: tried differently, written down, asked about, obeyed.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import itertools
import json
import linecache
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from stepseven import (
    Cost,
    Fatal,
    Fixable,
    InvalidAnswer,
    Outcome,
    Question,
    Retryable,
    Run,
    StepFailed,
    attempt,
    step,
    testing,
    workflow,
)
from stepseven.decide.classify import Handling
from stepseven.testing import Clock, TestLayer
from tests.runs.tools import alone
from tests.servers import databases


class Place:
    """One store in a file, one clock, and any number of workers after each other."""

    def __init__(self, folder: Path) -> None:
        self.url = databases.url(folder)
        self.clock = Clock()
        self.seed = 0

    def layer(self, **more: Any) -> TestLayer:
        """The next worker."""
        self.seed += 1
        return testing.layer(self.url, clock=self.clock, seed=self.seed, **more)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty store."""
    return Place(tmp_path)


class HttpError(Exception):
    """Looks like the exception of an HTTP client."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"{status} from the server")
        self.response = types.SimpleNamespace(status_code=status, headers=headers, url="http://billing.example/x", request=None)


async def asked(layer: TestLayer, outcome: Outcome[Any]) -> Question:
    """The one open question of a run that waits."""
    assert outcome.status == "waiting", outcome
    (question,) = outcome.questions
    assert [q.id for q in await layer.questions(run_id=outcome.run_id)] == [question.id]
    return question


async def attempts(layer: TestLayer, run_id: str = "r1") -> list[Any]:
    """The rows of table ``attempt``."""
    run = await layer.store.read(lambda tx: tx.one(tx.sql.run_by_id, {"id": run_id}))
    assert run is not None
    return await layer.store.read(lambda tx: tx.all(tx.sql.attempts, {"run_no": run["no"]}))


def flow(body: Callable[[Run], Any], name: str = "failing") -> Any:
    """A workflow of one expression."""

    async def run_it(run: Run) -> Any:
        return await body(run)

    return workflow(name=name)(run_it)


# -- tried differently ------------------------------------------------------------------------------------------------


async def test_a_retryable_failure_takes_the_next_approach(place: Place):
    """A broken connection is answered by the next approach, in order; one with ``ask=True`` is left to people."""
    ran: list[tuple[str, int]] = []

    @step
    async def pull(client: str) -> str:
        ran.append(("as written", attempt().number))
        raise ConnectionResetError

    @pull.approach("by contract", ask=True)
    async def contract(client: str) -> str:
        ran.append(("by contract", attempt().number))
        return "from the contract"

    @pull.approach("cache")
    async def cached(client: str) -> str:
        ran.append((attempt().approach, attempt().number))
        raise ConnectionResetError

    async with place.layer() as layer:
        first = await asked(layer, await layer.run(flow(lambda run: pull("acme"))(), client="acme", run_id="r1"))
        assert ran == [("as written", 1), ("cache", 2)]
        assert [o.id for o in first.options] == [
            "again", "approach:by contract", "approach:cache", "wait", "value", "skip", "stop",
        ]  # fmt: skip
        await layer.answer(first.id, "approach:by contract", by="ann")
        outcome = await layer.resume("r1")
    assert outcome.value == "from the contract"
    assert ran[2:] == [("by contract", 3)]


async def test_without_another_approach_the_second_try_is_told(place: Place):
    """The same function runs again as number 2 and can read what failed, and the text for a prompt."""
    told: list[str] = []

    @step
    async def pull(client: str) -> str:
        if attempt().number == 1:
            raise TimeoutError("no answer within 5 s")
        told.append(attempt().note())
        assert [t.approach for t in attempt().failures] == ["as written"]
        return "there"

    async with place.layer() as layer:
        outcome = await layer.run(flow(lambda run: pull("acme"))(), client="acme", run_id="r1")
        rows = await attempts(layer)
    assert outcome.value == "there"
    assert "try 1 (as written)" in told[0]
    assert [(r["outcome"], r["kind"], r["identical"]) for r in rows] == [("failed", "retryable", 0)]


async def test_a_second_try_that_never_looked_is_marked(place: Place):
    """A second try of the same code that did not look at ``attempt()`` is marked identical; one that looked is not."""
    looks = False

    @step
    async def blind(x: int) -> int:
        if looks:
            attempt()
        raise ConnectionResetError

    async with place.layer() as layer:
        outcome = await layer.run(flow(lambda run: blind(1))(), client="acme", run_id="r1")
        assert [r["identical"] for r in await attempts(layer)] == [0, 1]
        looks = True
        await layer.answer((await asked(layer, outcome)).id, "again", by="ann")
        await layer.resume("r1")
        assert [r["identical"] for r in await attempts(layer)] == [0, 1, 0, 0]


async def test_after_a_context_overflow_the_second_try_is_narrow(place: Place):
    """A model whose context overflowed is asked for less: ``attempt().narrow`` is true in the second try only."""
    seen: list[bool] = []

    class Overflow(Exception):
        status_code = 400
        body = types.MappingProxyType({"code": "context_length_exceeded", "message": "maximum context length is 8192 tokens"})

    @step
    async def talk(text: str) -> str:
        seen.append(attempt().narrow)
        if not attempt().narrow:
            raise Overflow("maximum context length is 8192 tokens")
        return "short"

    async with place.layer() as layer:
        outcome = await layer.run(flow(lambda run: talk("long"))(), client="acme", run_id="r1")
    assert (outcome.value, seen) == ("short", [False, True])


async def test_a_rate_limit_is_no_attempt(place: Place):
    """Three times 429 with Retry-After, then success: nothing failed, no attempt was used, the waits were kept."""
    at: list[int] = []

    @step
    async def pull(client: str) -> str:
        at.append(place.clock.now_us)
        assert attempt().number == 1
        if len(at) < 4:
            raise HttpError(429, **{"retry-after": "7"})
        return "there"

    async with place.layer() as layer:
        outcome = await layer.run(flow(lambda run: pull("acme"))(), client="acme", run_id="r1")
        rows = await attempts(layer)
    assert outcome.value == "there"
    assert [r["outcome"] for r in rows] == ["deferred"] * 3
    assert all(b - a >= 7_000_000 for a, b in itertools.pairwise(at))


async def test_not_now_is_believed_five_times(place: Place):
    """The sixth 503 in a row is a failure: no more than seven calls were made, and a person is asked."""
    calls = 0

    @step
    async def pull(client: str) -> str:
        nonlocal calls
        calls += 1
        raise HttpError(503)

    async with place.layer() as layer:
        outcome = await layer.run(flow(lambda run: pull("acme"))(), client="acme", run_id="r1")
        while outcome.waiting_for == "timer":
            place.clock.advance(60)
            outcome = await layer.resume("r1")
        await asked(layer, outcome)
        assert [r["outcome"] for r in await attempts(layer)] == ["deferred"] * 5 + ["failed"]
    assert calls == 6


async def test_not_now_for_an_hour_is_asked_about_at_once(place: Place):
    """A Retry-After beyond 15 minutes is not waited for: a person is asked at once."""

    @step
    async def pull(client: str) -> str:
        raise HttpError(429, **{"retry-after": "3600"})

    async with place.layer() as layer:
        await asked(layer, await layer.run(flow(lambda run: pull("acme"))(), client="acme", run_id="r1"))


async def test_a_long_deferral_parks_the_run(place: Place):
    """A wait over 30 s parks the run on a durable timer, which any later worker honours; it is not an attempt."""
    calls = 0

    @step
    async def pull(client: str) -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise HttpError(429, **{"retry-after": "300"})
        return "there"

    job = flow(lambda run: pull("acme"))
    async with place.layer() as layer:
        outcome = await layer.run(job(), client="acme", run_id="r1")
    assert (outcome.status, outcome.waiting_for, calls) == ("waiting", "timer", 1)
    assert outcome.until_us is not None
    assert outcome.until_us - place.clock.now_us == pytest.approx(300e6, abs=1e6)
    async with place.layer() as layer:
        early = await layer.resume("r1")
        assert (early.status, calls) == ("waiting", 1)
        place.clock.advance(301)
        assert (await layer.resume("r1")).value == "there"


# -- classified -----------------------------------------------------------------------------------------------------------


async def test_classify_can_be_overridden_per_step_and_per_layer(place: Place):
    """``classify=`` of the step counts before the layer's, and both before the table."""
    calls: list[str] = []

    class Odd(Exception): ...

    @step(classify=lambda error: Handling.RETRYABLE if isinstance(error, Odd) else None)
    async def mine() -> str:
        calls.append("mine")
        raise Odd

    @step
    async def plain() -> str:
        calls.append("plain")
        raise Odd

    async def both(run: Run) -> None:
        await mine()

    async def other(run: Run) -> None:
        await plain()

    async with place.layer(classify=lambda error: "fatal" if isinstance(error, Odd) else None) as layer:
        outcome = await layer.run(workflow(name="both")(both)(), client="acme", run_id="r1")
        assert (outcome.status, calls) == ("waiting", ["mine", "mine"])
        outcome = await layer.run(workflow(name="other")(other)(), client="acme", run_id="r2")
        assert (outcome.status, calls[2:]) == ("failed", ["plain"])


async def test_a_broken_classify_does_not_hide_the_failure(place: Place):
    """A ``classify=`` that raises is as good as none: the failure is asked about, with its own reason."""

    def broken(error: BaseException) -> str:
        raise KeyError("oops")

    @step(classify=broken)
    async def pull() -> str:
        raise HttpError(403)

    async with place.layer() as layer:
        question = await asked(layer, await layer.run(flow(lambda run: pull())(), client="acme", run_id="r1"))
    assert "403" in question.text


async def test_a_fatal_failure_ends_the_run(place: Place):
    """``Fatal`` in a step ends the run as failed, with the reason; nobody is asked, nothing is tried again."""
    calls = 0

    @step
    async def pull() -> str:
        nonlocal calls
        calls += 1
        raise Fatal("the client was deleted")

    async with place.layer() as layer:
        outcome = await layer.run(flow(lambda run: pull())(), client="acme", run_id="r1")
        assert (await layer.resume("r1")).status == "failed"
    assert (outcome.status, outcome.questions, calls) == ("failed", (), 1)
    assert outcome.failure is not None
    assert "the client was deleted" in outcome.failure.reason


async def test_a_rejected_result_is_a_failure(place: Place):
    """``check=`` rejecting a result is the failure "unusable result", and offers to run what produced the input again."""

    @step
    async def pull() -> int:
        return 3

    @step(check=lambda n: "the total is negative" if n < 0 else None)
    async def total(n: int) -> int:
        return -n

    async with place.layer() as layer:
        question = await asked(layer, await layer.run(flow(lambda run: _chain(pull, total))(), client="acme", run_id="r1"))
    assert "Unusable result: the total is negative" in question.text
    assert "rerun:pull" in [o.id for o in question.options]


async def _chain(first: Any, second: Any) -> Any:
    return await second(await first())


async def test_a_result_that_is_too_large_is_not_tried_again(place: Place):
    """A result over the size limit is refused without a second try: it would be as large again."""
    calls = 0

    @step(attempts=5)
    async def pull() -> str:
        nonlocal calls
        calls += 1
        return "x" * (17 << 20)

    async with place.layer() as layer:
        question = await asked(layer, await layer.run(flow(lambda run: pull())(), client="acme", run_id="r1"))
    assert calls == 1
    assert "the limit is" in question.text


# -- written down first -----------------------------------------------------------------------------------------------------


async def test_a_failure_is_in_the_checkpoint_before_anything_else(place: Place):
    """When the second try begins, the first failure can be read in the checkpoint already."""
    seen: list[Any] = []

    @step
    async def pull(client: str) -> str:
        if attempt().number == 1:
            raise ConnectionResetError
        seen.append(await layer.checkpoint("r1"))
        return "there"

    async with place.layer() as layer:
        await layer.run(flow(lambda run: pull("acme"))(), client="acme", run_id="r1")
    assert seen[0]["failures"][0]["step"] == "pull"
    assert "lost" in seen[0]["failures"][0]["reason"]


async def test_a_credential_in_an_exception_is_masked(place: Place):
    """A credential in an exception's text or chain is masked wherever the failure is kept or shown."""
    token = "sk-ant-api03-" + "A1b2C3d4E5f6G7h8" * 5

    @step
    async def pull() -> str:
        raise Fixable(f"refused {token}", ask=f"Is {token} the right key?") from ValueError(f"bad header Bearer {token}")

    async with place.layer() as layer:
        question = await asked(layer, await layer.run(flow(lambda run: pull())(), client="acme", run_id="r1"))
        rows = await attempts(layer)
        assert token not in json.dumps([dict(r) for r in rows])
        assert token not in question.text
        assert token not in json.dumps(dict(question.context))
        assert token not in json.dumps(await layer.checkpoint("r1"))


# -- what a person can choose -----------------------------------------------------------------------------------------------


async def test_a_fixable_failure_asks_at_once_with_the_state_attached(place: Place):
    """403 asks at once, without a second try: what is done, what failed, what is next, and the other approaches."""
    calls = 0

    @step(summary=lambda t: f"{t} tickets")
    async def pull_tickets() -> int:
        return 214

    @step(resource="billing-api")
    async def pull_billing() -> int:
        nonlocal calls
        calls += 1
        raise HttpError(403)

    @pull_billing.approach("contract amount", ask=True)
    async def contract() -> int:
        return 7

    @workflow
    async def offer(run: Run) -> int:
        return await pull_tickets() + await pull_billing()

    async with place.layer() as layer:
        question = await asked(layer, await layer.run(offer(), client="acme", run_id="r1"))
        assert calls == 1
        assert question.kind == "failure"
        assert "214 tickets" in question.text
        assert "403" in question.text
        assert len(question.text.split()) <= 120
        assert question.recommendation == "approach:contract amount"
        await layer.answer(question.id, question.recommendation, by="ann")
        assert (await layer.resume("r1")).value == 221


async def test_again_grants_new_attempts(place: Place):
    """``again`` grants as many attempts as before; when they are used up a new question is asked."""
    calls = 0

    @step
    async def pull() -> str:
        nonlocal calls
        calls += 1
        raise ConnectionResetError

    async with place.layer() as layer:
        outcome = await layer.run(flow(lambda run: pull())(), client="acme", run_id="r1")
        for n in (2, 4, 6):
            assert calls == n
            question = await asked(layer, outcome)
            await layer.answer(question.id, "again", by="ann")
            outcome = await layer.resume("r1")
    assert calls == 8


async def test_no_resume_repeats_a_dead_end(place: Place):
    """Resuming a run whose question is open runs nothing: not in this process, not in another."""
    calls = 0

    @step
    async def pull() -> str:
        nonlocal calls
        calls += 1
        raise HttpError(403)

    job = flow(lambda run: pull())
    async with place.layer() as layer:
        first = await asked(layer, await layer.run(job(), client="acme", run_id="r1"))
    for _ in range(3):
        async with place.layer() as layer:
            assert (await asked(layer, await layer.resume("r1"))).id == first.id
    assert calls == 1


async def test_wait_until_a_moment(place: Place):
    """``wait`` with a moment parks the run until then, then tries again."""
    calls = 0

    @step
    async def pull() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise HttpError(403)
        return "there"

    async with place.layer() as layer:
        question = await asked(layer, await layer.run(flow(lambda run: pull())(), client="acme", run_id="r1"))
        with pytest.raises(InvalidAnswer, match="wait needs until"):
            await layer.answer(question.id, "wait", by="ann")
        until = place.clock.now + timedelta(hours=5)
        await layer.answer(question.id, {"choice": "wait", "until": until.isoformat()}, by="ann")
        outcome = await layer.resume("r1")
        assert (outcome.status, outcome.waiting_for, calls) == ("waiting", "timer", 1)
        assert outcome.until_us == round(until.timestamp() * 1e6)
        place.clock.advance(timedelta(hours=5, seconds=1))
        assert (await layer.resume("r1")).value == "there"


async def test_wait_for_a_fact(place: Place):
    """``wait`` with a fact goes on when the fact is known, whoever set it."""
    calls = 0

    @step
    async def pull() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise HttpError(403)
        return "there"

    async with place.layer() as layer:
        question = await asked(layer, await layer.run(flow(lambda run: pull())(), client="acme", run_id="r1"))
        await layer.answer(question.id, {"choice": "wait", "fact": "billing.access"}, by="ann")
        outcome = await layer.resume("r1")
        assert (outcome.status, outcome.waiting_for, calls) == ("waiting", "event", 1)

        async def tell(run: Run) -> None:
            run.client.set("billing.access", "granted")

        await layer.run(workflow(name="tell")(tell)(), client="acme", run_id="r2")
        place.clock.advance(61)
        assert (await layer.resume("r1")).value == "there"


class Account(BaseModel):
    iban: str

    @field_validator("iban")
    @classmethod
    def known(cls, v: str) -> str:
        if not v.startswith("DE"):
            raise ValueError("not a German account")
        return v


@dataclass(frozen=True)
class Billing:
    amount: int
    currency: str


async def test_a_given_value_is_the_result(place: Place):
    """``value`` becomes the step's result, as its type; a value of another type is refused with a sentence."""
    got: list[Any] = []

    @step
    async def pull() -> Billing:
        raise HttpError(403)

    async def body(run: Run) -> int:
        billing = await pull()
        got.append(billing)
        return billing.amount

    async with place.layer() as layer:
        question = await asked(layer, await layer.run(workflow(name="valued")(body)(), client="acme", run_id="r1"))
        for wrong in ("12", {"amount": "12", "currency": "EUR"}, {"amount": 12}, None):
            with pytest.raises(InvalidAnswer):
                await layer.answer(question.id, {"choice": "value", "value": wrong}, by="ann")
        with pytest.raises(InvalidAnswer, match="value needs the value"):
            await layer.answer(question.id, "value", by="ann")
        await layer.answer(question.id, {"choice": "value", "value": {"amount": 12, "currency": "EUR"}}, by="ann")
        assert (await layer.resume("r1")).value == 12
    assert got == [Billing(12, "EUR")]


async def test_a_value_only_the_type_can_refuse_is_asked_about_anew(place: Place):
    """A value that passes the schema but not the type (or ``check=``) leads to a new question, never to an exception."""
    raised: list[BaseException] = []

    @step(check=lambda a: "closed" if a.iban == "DE0" else None)
    async def pull() -> Account:
        raise HttpError(403)

    async def body(run: Run) -> str:
        try:
            return (await pull()).iban
        except Exception as error:
            raised.append(error)
            raise

    async with place.layer() as layer:
        outcome = await layer.run(workflow(name="account")(body)(), client="acme", run_id="r1")
        for wrong, why in (("FR7", "not a German account"), ("DE0", "closed")):
            first = await asked(layer, outcome)
            await layer.answer(first.id, {"choice": "value", "value": {"iban": wrong}}, by="ann")
            outcome = await layer.resume("r1")
            second = await asked(layer, outcome)
            assert second.id != first.id
            assert why in second.text
        await layer.answer(second.id, {"choice": "value", "value": {"iban": "DE7"}}, by="ann")
        assert (await layer.resume("r1")).value == "DE7"
    assert raised == []


async def test_skip_gives_none(place: Place):
    """``skip`` lets the run go on with ``None``, for good."""

    @step
    async def pull() -> int:
        raise HttpError(403)

    job = flow(lambda run: pull())
    async with place.layer() as layer:
        question = await asked(layer, await layer.run(job(), client="acme", run_id="r1"))
        await layer.answer(question.id, "skip", by="ann")
        outcome = await layer.resume("r1")
    assert (outcome.status, outcome.value) == ("done", None)


async def test_stop_cancels_the_run(place: Place):
    """``stop`` cancels the run and says who did."""

    @step
    async def pull() -> int:
        raise HttpError(403)

    async with place.layer() as layer:
        question = await asked(layer, await layer.run(flow(lambda run: pull())(), client="acme", run_id="r1"))
        await layer.answer(question.id, "stop", by="ann")
        outcome = await layer.resume("r1")
    assert outcome.status == "cancelled"
    assert outcome.failure is not None
    assert "ann" in outcome.failure.reason


async def test_a_write_can_be_done_by_hand(place: Place):
    """``by_hand`` with a receipt settles a refused write: nothing is sent again, the receipt is the result."""
    sent: list[str] = []

    @step(effect="write", key="number")
    async def post(number: str) -> dict[str, str]:
        sent.append(attempt().idempotency_key)
        raise HttpError(403)

    async with place.layer() as layer:
        question = await asked(layer, await layer.run(flow(lambda run: post("R-1"))(), client="acme", run_id="r1"))
        assert "by_hand" in [o.id for o in question.options]
        with pytest.raises(InvalidAnswer, match="needs the receipt"):
            await layer.answer(question.id, "by_hand", by="ann")
        with pytest.raises(InvalidAnswer):
            await layer.answer(question.id, {"choice": "by_hand", "receipt": 7}, by="ann")
        await layer.answer(question.id, {"choice": "by_hand", "receipt": {"ref": "B-9"}}, by="ann")
        outcome = await layer.resume("r1")
    assert outcome.value == {"ref": "B-9"}
    assert len(sent) == 1


@pytest.mark.parametrize("second", ["other", "same"])
async def test_rerun_goes_back_to_the_step_that_produced_the_bad_input(place: Place, second: str):
    """``rerun:STEP`` makes that earlier result anew, and what was built on it; with the same result it is tried once more."""
    ran: list[str] = []
    world = {"export": "broken"}

    @step
    async def export() -> str:
        ran.append("export")
        return world["export"]

    @step
    async def parse(text: str) -> str:
        ran.append("parse")
        return text.upper()

    @step
    async def check(text: str) -> str:
        ran.append("check")
        if text == "BROKEN" and ran.count("check") < 2:
            raise Fixable("no rows in it")
        return text

    async def body(run: Run) -> str:
        return await check(await parse(await export()))

    job = workflow(name="chain")(body)
    async with place.layer() as layer:
        question = await asked(layer, await layer.run(job(), client="acme", run_id="r1"))
        assert [o.id for o in question.options if o.id.startswith("rerun:")] == ["rerun:parse", "rerun:export"]
        world["export"] = "whole" if second == "other" else "broken"
        await layer.answer(question.id, "rerun:export", by="ann")
    async with place.layer() as layer:
        outcome = await layer.resume("r1")
        assert outcome.value == world["export"].upper()
        rebuilt = ["parse"] if second == "other" else []
        assert ran == ["export", "parse", "check", "export", *rebuilt, "check"]
    async with place.layer() as layer:
        assert (await layer.resume("r1")).value == outcome.value
    assert len(ran) == 5 + len(rebuilt)


async def test_a_rerun_answered_while_the_run_is_loaded_starts_it_over(place: Place):
    """The same when the run is still in memory: it is loaded anew and the earlier step runs again."""
    ran: list[str] = []

    @step
    async def export() -> int:
        ran.append("export")
        return ran.count("export")

    @step(check=lambda n: n > 1)
    async def check(n: int) -> int:
        ran.append("check")
        return n

    async def body(run: Run) -> int:
        return await check(await export())

    async with place.layer() as layer:
        job = workflow(name="loaded")(body)
        outcome = await layer.run(job(), client="acme", run_id="r1")
        await layer.answer((await asked(layer, outcome)).id, "rerun:export", by="ann")
        outcome = await layer.resume("r1")
    assert (outcome.value, ran) == (2, ["export", "check", "export", "check"])


async def test_what_a_step_needs_is_asked_for_and_becomes_a_fact(place: Place):
    """``Fixable(needs=, ask=)`` asks the author's question; the answer reaches the step, and the next run does not ask."""
    given: list[Any] = []

    @step
    async def register(client: str) -> str:
        vat = attempt().given.get("vat_number")
        given.append(vat)
        if vat is None:
            raise Fixable("no VAT number", needs="vat_number", ask="What is Acme's VAT number?")
        return str(vat)

    job = flow(lambda run: register("acme"))
    async with place.layer() as layer:
        question = await asked(layer, await layer.run(job(), client="acme", run_id="r1"))
        assert question.kind == "required"
        assert question.options == ()
        assert question.text.startswith("What is Acme's VAT number?")
        await layer.answer(question.id, "DE123", by="ann")
        assert (await layer.resume("r1")).value == "DE123"
        fact = await layer.store.read(lambda tx: tx.one(tx.sql.fact, {"client_id": "acme", "key": "vat_number"}))
        assert fact is not None
        assert (json.loads(fact["value"]), fact["set_by"]) == ("DE123", "ann")
        again = await layer.run(job(), client="acme", run_id="r2")
    assert (again.status, again.value) == ("done", "DE123")
    assert given == [None, "DE123", None, "DE123"]


# -- handled by the author --------------------------------------------------------------------------------------------------


async def test_on_failure_raise_is_recorded_and_raised_the_same_again(place: Place):
    """``on_failure="raise"``: ``StepFailed`` after the attempts; a resume raises the same without running the step."""
    calls, caught = 0, []

    @step(on_failure="raise")
    async def pull() -> str:
        nonlocal calls
        calls += 1
        raise ConnectionResetError("broke off")

    async def body(run: Run) -> str:
        try:
            await pull()
        except StepFailed as failed:
            caught.append((failed.step, failed.reason, failed.kind, str(failed)))
        return str(await run.ask("Go on?"))

    async with place.layer() as layer:
        job = workflow(name="handled")(body)
        question = await asked(layer, await layer.run(job(), client="acme", run_id="r1"))
        await layer.answer(question.id, "yes", by="ann")
        assert (await layer.resume("r1")).value == "yes"
    assert calls == 2
    assert len(caught) == 2
    assert caught[0] == caught[1]
    assert caught[0][:3] == ("pull", caught[0][1], "retryable")


# -- the workflow's own code ------------------------------------------------------------------------------------------------

BODY = """
from stepseven import Run, step, workflow
ran = []

@step
async def pull() -> int:
    ran.append("pull")
    return 3

@workflow(name="mendable")
async def mendable(run: Run) -> int:
    n = await pull()
    ran.append("body")
    return {expression}
"""


def module(folder: Path, expression: str) -> Any:
    """A module on disk, as a deployment leaves it."""
    import importlib.util
    import sys

    path = folder / "mendable_module.py"
    path.write_text(BODY.format(expression=expression))
    linecache.clearcache()
    spec = importlib.util.spec_from_file_location("mendable_module", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["mendable_module"] = made
    made.__dict__.pop("__cached__", None)
    exec(compile(path.read_text(), str(path), "exec"), made.__dict__)
    alone(made)
    return made


async def test_an_exception_of_the_body_is_asked_about_with_file_and_line(place: Place, tmp_path: Path):
    """An exception that leaves the body asks once, with file and line; ``again`` runs it again, ``stop`` cancels."""
    made = module(tmp_path, "1 // 0")
    async with place.layer() as layer:
        question = await asked(layer, await layer.run(made.mendable(), client="acme", run_id="r1"))
        assert (question.kind, question.step) == ("failure", None)
        assert [o.id for o in question.options] == ["again", "stop"]
        assert "mendable_module.py:14" in question.text
        assert (await asked(layer, await layer.resume("r1"))).id == question.id
        assert made.ran == ["pull", "body"]
        await layer.answer(question.id, "again", by="ann")
        second = await asked(layer, await layer.resume("r1"))
        assert made.ran == ["pull", "body", "body"]
        await layer.answer(second.id, "stop", by="ann")
        assert (await layer.resume("r1")).status == "cancelled"


async def test_a_mended_module_is_resumed_without_an_answer(place: Place, tmp_path: Path):
    """When the module's source changed, a resume runs the body again by itself and withdraws the question."""
    async with place.layer() as layer:
        question = await asked(layer, await layer.run(module(tmp_path, "1 // 0").mendable(), client="acme", run_id="r1"))
        mended = module(tmp_path, "n + 1")
        outcome = await layer.resume("r1")
        assert (outcome.value, mended.ran) == (4, ["body"])
        assert [q.status for q in await layer.questions(status=None)] == ["withdrawn"]
        assert question.id == (await layer.questions(status=None))[0].id


async def test_a_mended_step_is_tried_again_by_a_resume(place: Place):
    """A failed step whose own source changed is tried again by a resume, and its question withdrawn."""

    async def broken() -> str:
        raise HttpError(403)

    async def mended() -> str:
        return "there"

    current: list[Any] = [step(name="pull")(broken)]
    job = flow(lambda run: current[0]())
    async with place.layer() as layer:
        question = await asked(layer, await layer.run(job(), client="acme", run_id="r1"))
        current[0] = step(name="pull")(mended)
        outcome = await layer.resume("r1")
        assert (outcome.status, outcome.value) == ("done", "there")
        withdrawn = (await layer.questions(status=None))[0]
    assert (withdrawn.id, withdrawn.status) == (question.id, "withdrawn")


# -- read as the operator ---------------------------------------------------------------------------------------------------


async def test_figures_of_a_question_come_from_summaries(place: Place):
    """A question's figures are those the steps' summaries and records gave: nothing else is in it."""

    @step(summary=lambda t: f"{t} tickets", cost=Cost(usd=0.05))
    async def pull_tickets() -> int:
        return 214

    @step(effect="write", key="number", resource="ledger")
    async def post_invoice(number: str) -> str:
        raise HttpError(403)

    async def body(run: Run) -> None:
        await pull_tickets()
        await post_invoice("R-17")

    async with place.layer() as layer:
        job = workflow(name="billing")(body)
        question = await asked(layer, await layer.run(job(), client="acme", run_id="r1"))
    assert "214 tickets" in question.text
    assert "R-17" in question.text
    assert "Nothing was posted." in question.text
    assert question.context["run"]["spent_usd"] == 0.05


async def test_a_retryable_of_the_author_is_tried_again(place: Place):
    """``Retryable`` raised by hand is tried again; with ``retry_after`` it is a deferral."""
    calls = 0

    @step
    async def pull() -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Retryable("busy", retry_after=5)
        if calls == 2:
            raise Retryable("odd")
        return attempt().number

    async with place.layer() as layer:
        outcome = await layer.run(flow(lambda run: pull())(), client="acme", run_id="r1")
        rows = await attempts(layer)
    assert outcome.value == 2
    assert [r["outcome"] for r in rows] == ["deferred", "failed"]


async def test_when_a_step_starts_everything_it_builds_on_is_committed(place: Place, tmp_path: Path):
    """Seen from another connection inside each step: every earlier record is there, and a paid try's own begin too."""
    seen: list[tuple[int, int]] = []

    def look() -> None:
        records = databases.rows(tmp_path, "SELECT count(*) AS n FROM step")[0]["n"]
        begun = databases.rows(tmp_path, "SELECT count(*) AS n FROM attempt WHERE outcome IS NULL AND usd = 10000")[0]["n"]
        seen.append((records, begun))

    @step(cost=Cost(usd=0.01))
    async def paid(i: int) -> int:
        look()
        return i

    @step
    async def free(i: int) -> int:
        look()
        return i

    async def body(run: Run) -> int:
        return sum([await (paid if i % 2 else free)(i) for i in range(20)])

    async with place.layer() as layer:
        await layer.run(workflow(name="committed")(body)(), client="acme", run_id="r1")
    assert seen == [(i, i % 2) for i in range(20)]


async def test_changed_inputs_start_with_new_attempts(place: Place):
    """A step with a key of its own, called with other inputs after a mend, is not held up by failures of the old ones."""
    world = {"text": "bad"}

    @step(key="name")
    async def parse(name: str, text: str) -> str:
        if text == "bad":
            raise Fixable("cannot be parsed")
        return text

    async def body(run: Run) -> str:
        return await parse("a", world["text"])

    async with place.layer() as layer:
        job = workflow(name="changed")(body)
        question = await asked(layer, await layer.run(job(), client="acme", run_id="r1"))
        world["text"] = "good"
        assert (await layer.resume("r1")).value == "good"
        assert await layer.questions() == []
    assert question.kind == "failure"
