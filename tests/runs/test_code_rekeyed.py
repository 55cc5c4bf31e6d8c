"""The code changes while a run waits, and calls a write under another key: it is asked about, and not done twice in silence.

Longer than other files: the cases of one question share the two versions of one workflow.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Outcome
from stepseven.decide.plan import Do
from stepseven.model import RunStatus
from stepseven.testing import TestLayer
from tests.runs.deployed import Deploys, deploys
from tests.runs.outside import DROP
from tests.runs.test_code_changed import parked
from tests.runs.test_code_changed_kept import registered
from tests.runs.worldly import claims, kinds, layers, the_question
from tests.servers import databases

ONE = """
@step(effect="write", key="quarter")
async def send_bill(quarter: str) -> str:
    return await send("bill", quarter)

@workflow("rekeyed")
async def billing(run: Run) -> list:
    return [await send_bill("Q3"), await run.ask("Go on?", key="go on")]
"""
OTHER = ONE.replace('send_bill("Q3")', 'send_bill("2026-Q3")')


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module."""
    with deploys(tmp_path / "code") as made:
        yield made


async def asked(layer: TestLayer, run_id: str = "r") -> Any:
    """Resume, and the one question that is asked."""
    outcome = await layer.resume(run_id)
    assert kinds(outcome) == ["conflict"], outcome
    return the_question(outcome)


async def test_another_key_is_asked_about_and_nothing_is_sent_before_the_answer(deploy: Deploys, tmp_path: Path) -> None:
    """The question says that the code changed, what is on record and what would be done now."""
    async with parked(deploy, tmp_path, ONE) as layer:
        deploy(OTHER)
        question = await asked(layer)
        assert question.text.splitlines()[0] == (
            "The code of Acme's rekeyed changed: is “send bill” (2026-Q3) the one that was done before (R-1)?"
        )
        assert "What differs: quarter Q3 → 2026-Q3." in question.text
        assert "Nothing was sent this time." in question.text
        assert [o.id for o in question.options] == ["same", "second", "stop"]
        assert kinds(await layer.resume("r")) == ["conflict"]
    assert deploy.world.counts() == {"bill": 1}


@pytest.mark.parametrize("choice,sent,gives", [("same", 1, "R-1"), ("second", 2, "R-2")])
async def test_the_answer_is_obeyed_now_and_later(deploy: Deploys, tmp_path: Path, choice: str, sent: int, gives: str) -> None:
    """Once answered it is not asked again, whoever takes the run and whatever is deployed besides."""
    async with parked(deploy, tmp_path, ONE.replace('"go on")]', '"go on"), await run.ask("And?", key="and")]')) as layer:
        source = OTHER.replace('"go on")]', '"go on"), await run.ask("And?", key="and")]')
        deploy(source)
        await layer.answer((await asked(layer)).id, choice, by="ann")
        v3 = deploy(source + "\n# a word more\n")
        outcome = await layer.run(v3.billing(), client="acme", run_id="r")
        assert kinds(outcome) == ["ask"]
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        deploy(source + "\n# two words more\n")
        assert (await layer.resume("r")).result() == [gives, "yes", "yes"]
    assert deploy.world.counts() == {"bill": sent}


async def test_stop_ends_the_run_and_sends_nothing(deploy: Deploys, tmp_path: Path) -> None:
    """The first stays as it is."""
    async with parked(deploy, tmp_path, ONE) as layer:
        deploy(OTHER)
        await layer.answer((await asked(layer)).id, "stop", by="ann")
        assert (await layer.resume("r")).status is RunStatus.CANCELLED
    assert deploy.world.counts() == {"bill": 1}


async def test_a_take_that_is_no_resume_asks_too(deploy: Deploys, tmp_path: Path) -> None:
    """A write under another key is done twice whoever takes the run: so it is asked about at every take with other code."""
    async with parked(deploy, tmp_path, ONE) as layer:
        v2 = deploy(OTHER)
        assert kinds(await layer.run(v2.billing(), client="acme", run_id="r")) == ["conflict"]
    assert deploy.world.counts() == {"bill": 1}


async def test_a_worker_asks_too(deploy: Deploys, tmp_path: Path) -> None:
    """A worker with the new code takes the run after the answer: it asks before it sends, and does what is said."""
    v1 = deploy(ONE)
    async with Layer(databases.url(tmp_path)) as layer:
        question = the_question(await layer.run(v1.billing(), client="acme", run_id="r"))
        v2 = deploy(OTHER)
        async with layer.worker(v2):
            await layer.answer(question.id, "yes", by="ann")
            async with asyncio.timeout(20):
                while not (open_ := await layer.questions()):
                    await asyncio.sleep(0.01)
                assert [q.kind for q in open_] == ["conflict"]
                await layer.answer(open_[0].id, "same", by="ann")
                while not (await layer.runs())[0].status.ended:
                    await asyncio.sleep(0.01)
        assert (await layer.resume("r")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"bill": 1}


WAITS = OTHER.replace("return [await send_bill", 'return [await run.ask("Really?", key="really"), await send_bill')


async def test_it_is_asked_when_the_write_comes_only_after_a_park(deploy: Deploys, tmp_path: Path) -> None:
    """The new code has taken the run before, and was put away: what its receipts were made with is still known."""
    async with parked(deploy, tmp_path, ONE) as layer:
        deploy(WAITS)
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["ask"]
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        await asked(layer)
    assert deploy.world.counts() == {"bill": 1}


KEYED = ONE.replace('key="quarter"', "key=KEY").replace("send_bill(quarter: str)", 'send_bill(quarter: str, region: str = "eu")')


@pytest.mark.parametrize("before,after", [('"quarter"', '"quarter, region"'), ('"quarter"', "None"), ("None", '"quarter"')])
async def test_another_key_of_the_step_is_asked_about(deploy: Deploys, tmp_path: Path, before: str, after: str) -> None:
    """With ``key=`` changed, added or taken away the same call has another key."""
    async with parked(deploy, tmp_path, KEYED.replace("KEY", before)) as layer:
        deploy(KEYED.replace("KEY", after))
        question = await asked(layer)
        assert "The values are the same." in question.text
        await layer.answer(question.id, "same", by="ann")
        assert (await layer.resume("r")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"bill": 1}


async def test_a_renamed_step_with_another_key_is_asked_about(deploy: Deploys, tmp_path: Path) -> None:
    """``renamed_from=`` says that it is the step; its key has changed besides."""
    renamed = OTHER.replace("send_bill", "post_bill").replace('key="quarter"', 'key="quarter", renamed_from="send_bill"')
    async with parked(deploy, tmp_path, ONE) as layer:
        deploy(renamed)
        await layer.answer((await asked(layer)).id, "same", by="ann")
        assert (await layer.resume("r")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"bill": 1}


IRREVERSIBLE = ONE.replace('effect="write"', 'effect="irreversible"')


async def test_it_is_asked_before_it_is_proposed(deploy: Deploys, tmp_path: Path) -> None:
    """Of what cannot be taken back a person says first whether it is the same; only a second one is proposed."""
    v1 = deploy(IRREVERSIBLE)
    async with layers(databases.url(tmp_path)) as layer:
        await layer.answer(the_question(await layer.run(v1.billing(), client="acme", run_id="r")).id, "approve", by="ann")
        await layer.answer(the_question(await layer.resume("r")).id, "yes", by="ann")
        del v1
        deploy(IRREVERSIBLE.replace('send_bill("Q3")', 'send_bill("2026-Q3")'))
        await layer.answer((await asked(layer)).id, "second", by="ann")
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["approve"]
        await layer.answer(the_question(outcome).id, "approve", by="ann")
        assert (await layer.resume("r")).result() == ["R-2", "yes"]
    assert deploy.world.counts() == {"bill": 2}


# -- nobody is asked without need ---------------------------------------------------------------------------------------------


def loop(items: str, more: str = "") -> str:
    """A workflow that sends one bill after the other, then asks."""
    lines = f"found = [await send_bill(n) for n in {items}]"
    text = ONE.replace('return [await send_bill("Q3"), await run.ask', f"{lines}\n    {more}\n    return [*found, await run.ask")
    return text.replace("quarter: str", "quarter: Any")


async def finished(layer: TestLayer, deploy: Deploys, source: str) -> Outcome[Any]:
    """Deploy, and go on: nobody is asked anything."""
    deploy(source)
    outcome = await layer.resume("r")
    assert (outcome.status, kinds(outcome)) == (RunStatus.DONE, []), outcome
    return outcome


@pytest.mark.parametrize("items", ["['a', 'b', 'c', 'd']", "['b', 'a']", "['a', 'b']"])
async def test_what_is_asked_for_is_not_asked_about(deploy: Deploys, tmp_path: Path, items: str) -> None:
    """A loop in the same order with more at its end, one in another order, one as it was."""
    async with parked(deploy, tmp_path, loop("['a', 'b']")) as layer:
        await finished(layer, deploy, loop(items) + "\n# newer\n")
    assert deploy.world.counts() == {"bill": max(2, items.count(",") + 1)}


AT_ONCE = """
@step
async def read_slowly(n: str) -> str:
    await asyncio.sleep(SLOW)
    return n

@step(effect="write", key="n")
async def send_bill(n: str) -> str:
    return await send("bill", n)

async def after_a_read(n: str) -> str:
    return await send_bill(await read_slowly(n))

@workflow("rekeyed")
async def billing(run: Run) -> list:
    found = await asyncio.gather(CALLS)
    return [*found, await run.ask("Go on?", key="go on")]
"""


@pytest.mark.parametrize("slow", ["0", "0.05"])
async def test_of_several_at_once_all_have_their_turn_first(deploy: Deploys, tmp_path: Path, slow: str) -> None:
    """The new one stands first; those on record are asked for later, some only after a read that runs anew."""
    before = AT_ONCE.replace("CALLS", "send_bill('a'), send_bill('b')").replace("SLOW", "0")
    after = AT_ONCE.replace("CALLS", "send_bill('c'), send_bill('a'), after_a_read('b')").replace("SLOW", slow)
    async with parked(deploy, tmp_path, before) as layer:
        assert sorted((await finished(layer, deploy, after)).result()) == ["R-1", "R-2", "R-3", "yes"]
    assert deploy.world.counts() == {"bill": 3}


async def test_of_several_at_once_each_is_asked_about(deploy: Deploys, tmp_path: Path) -> None:
    """All keys are made in another way: each of the new ones is compared with the one on record that it is most like."""
    before = AT_ONCE.replace("CALLS", "*(send_bill(n) for n in 'ab')")
    after = before.replace("in 'ab'", "in ('x-a', 'x-b')")
    async with parked(deploy, tmp_path, before) as layer:
        deploy(after)
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["conflict", "conflict"]
        assert sorted(q.context["replaces"] for q in outcome.questions) == ["a", "b"]
        for question in outcome.questions:
            await layer.answer(question.id, "same", by="ann")
        assert sorted((await layer.resume("r")).result()) == ["R-1", "R-2", "yes"]
    assert deploy.world.counts() == {"bill": 2}


async def test_what_the_new_code_did_is_not_counted(deploy: Deploys, tmp_path: Path) -> None:
    """Only what other code has done is asked about: a key that changes by itself is another effect."""
    text = ONE.replace('send_bill("Q3")', "send_bill(ran[0] if ran else 'x')")
    async with parked(deploy, tmp_path, text) as layer:
        sys.modules[deploy.name].__dict__["ran"].append("y")
        assert (await layer.resume("r")).result() == ["R-2", "yes"]
    assert deploy.world.counts() == {"bill": 2}


async def test_a_rollback_asks_nothing_about_its_own(deploy: Deploys, tmp_path: Path) -> None:
    """The older code comes back: what it did itself it asks for, and what the newer one did is asked about."""
    two = loop("['a', 'b']", 'await run.ask("And?", key="and")')
    async with parked(deploy, tmp_path, loop("['a']", 'await run.ask("And?", key="and")')) as layer:
        deploy(two)
        assert kinds(await layer.resume("r")) == ["ask"]
        deploy(loop("['a']", 'await run.ask("And?", key="and")'))
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["ask"]
    assert deploy.world.counts() == {"bill": 2}


WIDE = ONE.replace('key="quarter"', 'key="quarter", scope="client"')


async def test_what_another_run_did_under_the_new_key_answers(deploy: Deploys, tmp_path: Path) -> None:
    """``scope="client"``: nothing would be sent, so nothing is asked; else it is asked about as ever."""
    async with parked(deploy, tmp_path, WIDE) as layer:
        v2 = deploy(WIDE.replace('send_bill("Q3")', 'send_bill("2026-Q3")'))
        await asked(layer)
        assert kinds(await layer.run(v2.billing(), client="acme", run_id="another")) == ["ask"]
        await layer.answer(the_question(await layer.resume("r")).id, "second", by="ann")
        assert (await layer.resume("r")).result() == ["R-2", "yes"]
    assert deploy.world.counts() == {"bill": 2}


async def test_the_question_is_taken_back_when_the_code_asks_for_it(deploy: Deploys, tmp_path: Path) -> None:
    """A later version calls both: then the new one is another, and it is done without a word."""
    async with parked(deploy, tmp_path, ONE) as layer:
        deploy(OTHER)
        question = await asked(layer)
        both = OTHER.replace('[await send_bill("2026-Q3")', '[await send_bill("Q3"), await send_bill("2026-Q3")')
        assert (await finished(layer, deploy, both)).result() == ["R-1", "R-2", "yes"]
        (row,) = databases.rows(tmp_path, "SELECT status FROM question WHERE id = ?", question.id)
        assert row["status"] == "withdrawn"
    assert deploy.world.counts() == {"bill": 2}


async def test_it_is_taken_back_while_it_is_open(deploy: Deploys, tmp_path: Path) -> None:
    """One branch asks; when a person has answered another branch that calls for what is on record, there is nothing to ask."""
    before = AT_ONCE.replace("CALLS", "send_bill('a')")
    later = 'async def later(run: Run) -> str:\n    return await send_bill(await run.ask("Which?", key="which"))\n\n@workflow'
    after = AT_ONCE.replace("gather(CALLS)", "gather(send_bill('c'), later(run))").replace("@workflow", later)
    async with parked(deploy, tmp_path, before) as layer:
        deploy(after)
        outcome = await layer.resume("r")
        assert sorted(kinds(outcome)) == ["ask", "conflict"]
        await layer.answer(next(q.id for q in outcome.questions if q.kind == "ask"), "a", by="ann")
        assert sorted((await layer.resume("r")).result()) == ["R-1", "R-2", "yes"]
    assert deploy.world.counts() == {"bill": 2}


# -- what only a claim tells of -----------------------------------------------------------------------------------------------


async def test_a_receipt_without_a_record_counts(deploy: Deploys, tmp_path: Path) -> None:
    """The record was lost with a restored backup, or is another run's: the receipt is enough."""
    async with parked(deploy, tmp_path, ONE) as layer:
        databases.execute(tmp_path, "DELETE FROM step WHERE name = 'send_bill'")
        deploy(OTHER)
        await layer.answer((await asked(layer)).id, "same", by="ann")
        assert (await layer.resume("r")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"bill": 1}


async def test_a_fork_asks_for_what_its_root_did(deploy: Deploys, tmp_path: Path) -> None:
    """The fork shares the receipts of the run it is made of; the key it calls is new to both."""
    text = "@step\nasync def look() -> int:\n    return 1\n" + ONE.replace("return [await", "await look()\n    return [await")
    async with parked(deploy, tmp_path, text) as layer:
        assert (await layer.resume("r")).result() == ["R-1", "yes"]
        fork = (await layer.fork("r", from_step="look")).run_id
        deploy(text.replace('send_bill("Q3")', 'send_bill("2026-Q3")'))
        await layer.answer((await asked(layer, fork)).id, "same", by="ann")
        outcome = await layer.resume(fork)
        assert kinds(outcome) == ["ask"]
    assert deploy.world.counts() == {"bill": 1}


@pytest.mark.parametrize("choice,sent,gives", [("same", 1, "R-1"), ("second", 2, "R-2")])
async def test_a_fork_goes_by_what_was_said_of_its_root(
    deploy: Deploys, tmp_path: Path, choice: str, sent: int, gives: str
) -> None:
    """What a person said of the run holds in one that is made of it, also where that begins before the write."""
    text = "@step\nasync def look() -> int:\n    return 1\n" + ONE.replace("return [await", "await look()\n    return [await")
    async with parked(deploy, tmp_path, text) as layer:
        deploy(text.replace('send_bill("Q3")', 'send_bill("2026-Q3")'))
        await layer.answer((await asked(layer)).id, choice, by="ann")
        assert (await layer.resume("r")).result() == [gives, "yes"]
        fork = (await layer.fork("r", from_step="look")).run_id
        outcome = await layer.resume(fork)
        assert kinds(outcome) == ["ask"]
        await layer.answer(the_question(outcome).id, "yes", by="ann")
        assert (await layer.resume(fork)).result() == [gives, "yes"]
    assert deploy.world.counts() == {"bill": sent}


@pytest.mark.parametrize("happened", [True, False])
async def test_a_claim_in_doubt_is_found_out_about_first(deploy: Deploys, tmp_path: Path, happened: bool) -> None:
    """A send broke off; before the new key is sent it is asked whether that happened, and then whether it is the same."""
    text = ONE.replace('key="quarter"', 'key="quarter", attempts=1')
    deploy.world.moods.append(DROP)
    v1 = deploy(text)
    async with layers(databases.url(tmp_path)) as layer:
        assert kinds(await layer.run(v1.billing(), client="acme", run_id="r")) == ["unknown_outcome"]
        del v1
        deploy(text.replace('send_bill("Q3")', 'send_bill("2026-Q3")'))
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["unknown_outcome"]
        assert deploy.world.counts() == {"bill": 1}
        answer: Any = {"choice": "happened", "receipt": "R-1"} if happened else "not_happened"
        await layer.answer(the_question(outcome).id, answer, by="ann")
        if happened:
            await layer.answer((await asked(layer)).id, "same", by="ann")
        assert kinds(await layer.resume("r")) == ["ask"]
        assert [c["state"] for c in claims(layer)] == (["done"] if happened else ["refused", "done"])
    assert deploy.world.counts() == {"bill": 1 if happened else 2}  # the one that broke off was there; a person said otherwise


# -- seen before --------------------------------------------------------------------------------------------------------------


async def test_the_plan_shows_the_question(deploy: Deploys, tmp_path: Path) -> None:
    """What a resume asks stands in the plan, before it is asked, while it is open, and as what was said."""
    async with parked(deploy, tmp_path, ONE) as layer:
        deploy(OTHER)
        for _ in range(2):
            plan = await layer.plan("r")
            best = next(p for p in plan.paths if p.cheapest or len(plan.paths) == 1)
            assert [s.do for s in plan.steps if s.step == "send_bill"][:1] == [Do.ASK]
            assert best.questions_at_most is None or best.questions_at_most >= 1
            question = await asked(layer)
        await layer.answer(question.id, "same", by="ann")
        plan = await layer.plan("r")
        assert next((s.step, s.do) for s in plan.steps) == ("send_bill", Do.REUSE)
        assert (await layer.resume("r")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"bill": 1}


async def test_the_plan_counts_a_write_that_comes_later(deploy: Deploys, tmp_path: Path) -> None:
    """Behind a question the same step is called again, and nobody knows with which key: it may be one question more."""
    async with parked(deploy, tmp_path, ONE) as layer:
        deploy(WAITS)
        plan = await layer.plan("r")
        (path,) = plan.paths
        assert path.questions_at_most is None or path.questions_at_most >= 2
    assert deploy.world.counts() == {"bill": 1}


async def test_what_marks_other_code_is_no_step(deploy: Deploys, tmp_path: Path) -> None:
    """The place at which other code took the run is on record, once each time; nobody is shown it as a step."""
    async with parked(deploy, tmp_path, ONE) as layer:
        deploy(OTHER)
        question = await asked(layer)
        await asked(layer)
        (mark,) = databases.rows(tmp_path, "SELECT effect FROM step WHERE name = 'run.code'")
        assert mark["effect"] is None
        await layer.answer(question.id, "same", by="ann")
        assert (await layer.resume("r")).status is RunStatus.DONE
        assert set((await layer.checkpoint("r"))["steps_complete"]) == {"send_bill"}


@pytest.mark.sqlite("the clock of its leases is the test's")
async def test_nobody_is_asked_while_newer_code_lives(deploy: Deploys, tmp_path: Path) -> None:
    """What older code would ask is left to a living worker with newer code: nothing is asked, and nothing is sent."""
    async with parked(deploy, tmp_path, OTHER) as layer:
        v1 = deploy(ONE)  # older, though it comes later here: another worker has seen it before its own
        now = layer.clock.now_us
        registered(tmp_path, now, (v1.billing.digest, now - 9_000_000), ("newer", now - 1_000_000), workflow="rekeyed")
        outcome = await layer.resume("r")
        assert (outcome.status, kinds(outcome)) == (RunStatus.QUEUED, [])
        databases.execute(tmp_path, "DELETE FROM worker WHERE id = 'w_new'")
        await asked(layer)
    assert deploy.world.counts() == {"bill": 1}
