"""Steps that somebody outside executes: begun once, done once, resumed without doing anything twice.

Longer than other files: a step that is executed elsewhere, in the order of its life.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stepseven import Limits, testing
from stepseven.errors import RunConflict, SecretFound, Superseded
from stepseven.transitions.begins import Looked
from stepseven.transitions.reports import NotBegun
from tests.runs.executor import Outside, artifact
from tests.servers import databases

MINUTE_US = 60_000_000


@pytest.fixture
async def layer(tmp_path: Path) -> AsyncIterator[testing.Layer]:
    """A layer whose clock is moved by hand."""
    async with testing.layer(databases.url(tmp_path), seed=1) as made:
        yield made


@pytest.fixture
async def out(layer: testing.Layer) -> Outside:
    """A run of two announced steps, and its executor."""
    made = Outside(layer)
    await made.admit("fetch", "send")
    return made


async def ask_of(layer: testing.Layer) -> Any:
    """The one open question."""
    (question,) = await layer.questions()
    return question


# -- the run ----------------------------------------------------------------------------------------------------------------


async def test_a_run_is_done_when_its_steps_are(out: Outside) -> None:
    """Announced steps, each begun and completed, end the run with the last one's result; nothing begins afterwards."""
    assert (await out.begin("fetch")).do == "run"
    kept = await out.complete("fetch", {"n": 3}, summary="3 rows")
    assert (kept.run["status"], kept.run["next_step"]) == ("running", "send")
    told = await out.begin("send", effect="write", inputs={"to": "ann"})
    assert (told.do, told.idempotency_key) == ("run", "out-1/send/once")
    kept = await out.complete("send", "mail-7")
    assert (kept.run["status"], kept.run["value"]) == ("done", '"mail-7"')
    assert artifact(await out.begin("fetch")) == {"n": 3}
    assert (await out.begin("another")).do == "stop"
    doc = await out.layer.checkpoint("out-1")
    assert doc["steps_complete"] == ["fetch", "send"]


async def test_the_same_run_is_made_once(out: Outside) -> None:
    """The same id and inputs is the same run; other inputs, or a run of workers, are refused."""
    row, new = await out.admit("fetch", "send")
    assert (row["status"], new) == ("running", False)
    with pytest.raises(RunConflict):
        await out.admit("fetch", "send", inputs={"other": 1})


async def test_no_worker_takes_it(out: Outside) -> None:
    """A run that is executed outside is nobody's here: not taken, not orphaned."""
    assert not await out.layer.runs(status="queued")
    row = await out.run()
    assert (row["external"], row["owner"]) == (1, "outside")


# -- begin ------------------------------------------------------------------------------------------------------------------


async def test_a_done_step_is_reused(out: Outside) -> None:
    """With the same inputs, or without any: the result is given back; with others a read runs again, as a new generation."""
    await out.begin("fetch", inputs={"q": 1})
    await out.complete("fetch", [1, 2])
    for inputs in ({"q": 1}, None):
        told = await out.begin("fetch", inputs=inputs)
        assert (told.do, artifact(told)) == ("reuse", [1, 2])
    assert (await out.begin("fetch", inputs={"q": 2})).do == "run"
    await out.complete("fetch", [3])
    assert artifact(await out.begin("fetch", inputs={"q": 2})) == [3]


async def test_one_at_a_time(out: Outside) -> None:
    """While a step is under way a second begin waits for the end of its time; a longer time is longer for both."""
    first = await out.begin("fetch", lease_us=MINUTE_US)
    told = await out.begin("fetch")
    assert (told.do, told.retry_at_us) == ("wait", first.lease_until_us)
    until = await out.extend("fetch", 3600)
    assert (await out.begin("fetch")).retry_at_us == until


async def test_time_that_is_up_is_no_attempt(out: Outside) -> None:
    """A read whose executor fell silent runs again as attempt 1, what it declared to cost stays counted, and the run waits."""
    await out.begin("fetch", uusd=50_000, lease_us=MINUTE_US)
    out.layer.clock.advance(61)
    told = await out.begin("fetch", uusd=50_000)
    assert (told.do, told.attempt) == ("run", 1)
    kept = await out.complete("fetch", 1)
    assert kept.run["status"] == "running"
    doc = await out.layer.checkpoint("out-1")
    assert doc["spend"]["usd"] == 0.1


async def test_a_late_result_is_taken_if_nobody_began_again(out: Outside) -> None:
    """An executor that took too long, and whose step nobody began again, is believed."""
    await out.begin("fetch", lease_us=MINUTE_US)
    out.layer.clock.advance(600)
    assert artifact(await out.complete("fetch", 7)) == 7
    assert artifact(await out.begin("fetch")) == 7


async def test_the_same_report_twice(out: Outside) -> None:
    """A report that is repeated is told the same; another one for the same attempt is refused and changes nothing."""
    await out.begin("fetch")
    await out.complete("fetch", 1)
    assert (await out.complete("fetch", 1)).again
    with pytest.raises(Superseded, match="reported before"):
        await out.complete("fetch", 2)
    assert artifact(await out.begin("fetch")) == 1


async def test_a_report_without_a_begin(out: Outside) -> None:
    """Without a token the begin under way is meant; where there is none, the sentence says what to do."""
    with pytest.raises(NotBegun, match="begin it first"):
        await out.complete("fetch", 1, bare=True)
    await out.begin("fetch", key="a")
    with pytest.raises(NotBegun):
        await out.complete("fetch", 1, bare=True)
    assert artifact(await out.complete("fetch", 1, bare=True, key="a")) == 1


async def test_put_says_this_is_done(out: Outside) -> None:
    """What was done without a begin is reused, of a write with its receipt; another receipt needs another key."""
    await out.put("fetch", [1])
    assert artifact(await out.begin("fetch", inputs={"any": 1})) == [1]
    await out.put("send", "mail-1", effect="write")
    assert artifact(await out.begin("send", effect="write", inputs={"to": "ann"})) == "mail-1"
    assert (await out.put("send", "mail-1", effect="write")).again
    with pytest.raises(Superseded, match="done"):
        await out.put("send", "mail-2", effect="write")


async def test_a_credential_is_not_kept(out: Outside) -> None:
    """A read's result with a credential is refused; a write was done: its receipt is kept, masked."""
    key = "sk-" + "a1B2" * 12
    await out.begin("fetch")
    with pytest.raises(SecretFound):
        await out.complete("fetch", {"key": key})
    await out.complete("fetch", 1)
    await out.begin("send", effect="write")
    kept = await out.complete("send", {"key": key, "id": 4})
    assert key not in (kept.artifact or "")
    assert artifact(kept)["id"] == 4


# -- failures ---------------------------------------------------------------------------------------------------------------


async def test_a_retryable_failure_is_tried_once_more_differently(out: Outside) -> None:
    """After the first failure it is told to come back, with the other approach and what failed; after the second, to ask."""
    await out.begin("fetch", ways=("from the cache",))
    told = await out.fail("fetch", "gone", status=500)
    assert (told.do, told.approach) == ("run", "from the cache")
    assert (await out.begin("fetch", ways=("from the cache",))).do == "wait"
    out.layer.clock.advance(400)
    told = await out.begin("fetch", ways=("from the cache",))
    assert (told.do, told.attempt, told.approach, [r["reason"] for r in told.failures]) == (
        "run", 2, "from the cache", ["the other side answered 500 Internal Server Error (gone)"],
    )  # fmt: skip
    told = await out.fail("fetch", "gone", status=500)
    assert told.do == "wait"
    assert told.question is not None
    question = await ask_of(out.layer)
    assert (question.kind, question.step) == ("failure", "fetch")
    assert (await out.run())["waiting_for"] == "person"


@pytest.mark.parametrize(
    "answer, told",
    [
        ("again", ("run", None, False)),
        ({"choice": "value", "value": 8}, ("reuse", 8, False)),
        ("skip", ("reuse", None, True)),
        ("stop", ("stop", None, False)),
    ],
)
async def test_what_a_person_chose_is_done(out: Outside, answer: Any, told: tuple[str, Any, bool]) -> None:
    """The next begin does what was answered: try again, take the value, go on without, stop."""
    await out.begin("fetch")
    assert (await out.fail("fetch", "no", status=403)).do == "wait"
    assert (await out.begin("fetch")).question is not None
    await out.layer.answer((await ask_of(out.layer)).id, answer, by="ann")
    found = await out.begin("fetch")
    assert (found.do, artifact(found), found.skipped) == told
    assert (await out.run())["status"] == ("cancelled" if told[0] == "stop" else "running")


async def test_not_now_is_no_attempt(out: Outside) -> None:
    """429 with Retry-After: come back then, as the same attempt."""
    await out.begin("fetch")
    told = await out.fail("fetch", "slow down", status=429, retry_after_s=90)
    assert (told.do, told.attempt, told.retry_at_us) == ("run", 1, out.now_us + 90_000_000)


async def test_fatal_ends_the_run(out: Outside) -> None:
    """A failure that is called fatal ends the run, and says why."""
    await out.begin("fetch")
    assert (await out.fail("fetch", "there is no such client", kind="fatal")).do == "stop"
    row = await out.run()
    assert (row["status"], "no such client" in row["failure"]) == ("failed", True)


async def test_money_is_counted_and_limited(out: Outside) -> None:
    """What was declared is reserved, what is told replaces it, failed tries count; at the limit a person is asked, once."""
    limits = Limits(usd=0.10)
    await out.begin("fetch", uusd=60_000, limits=limits)
    told = await out.begin("send", uusd=60_000, limits=limits)
    assert told.question is not None
    assert told.question["kind"] == "limit"
    await out.fail("fetch", "no", status=500, uusd=20_000)
    out.layer.clock.advance(10)
    assert (await out.begin("fetch", uusd=60_000, limits=limits)).do == "run"
    await out.complete("fetch", 1, uusd=30_000)
    assert (await out.begin("send", uusd=60_000, limits=limits)).question is not None
    await out.layer.answer((await ask_of(out.layer)).id, {"choice": "raise", "usd": 1}, by="ann")
    assert (await out.begin("send", uusd=60_000, limits=limits)).do == "run"


# -- writes -----------------------------------------------------------------------------------------------------------------


async def test_a_write_without_an_end_is_asked_about(out: Outside) -> None:
    """Begun, and never heard of again: not begun again; a person says whether it is there."""
    await out.begin("send", effect="write", inputs={"to": "ann"}, lease_us=MINUTE_US)
    out.layer.clock.advance(61)
    told = await out.begin("send", effect="write", inputs={"to": "ann"})
    assert told.question is not None
    assert told.question["kind"] == "unknown_outcome"
    again = await out.begin("send", effect="write", inputs={"to": "ann"})
    assert again.question is not None
    assert again.question["id"] == told.question["id"]
    await out.layer.answer(told.question["id"], {"choice": "happened", "receipt": "mail-9"}, by="ann")
    assert artifact(await out.begin("send", effect="write", inputs={"to": "ann"})) == "mail-9"


async def test_not_there_is_done_again_under_the_same_key(out: Outside) -> None:
    """Somebody said that it is not there: begun again, with the key it had."""
    first = await out.begin("send", effect="write", lease_us=MINUTE_US)
    out.layer.clock.advance(61)
    await out.begin("send", effect="write")
    await out.layer.answer((await ask_of(out.layer)).id, "not_happened", by="ann")
    told = await out.begin("send", effect="write")
    assert (told.do, told.idempotency_key) == ("run", first.idempotency_key)


async def test_a_failure_that_proves_nothing_is_in_doubt(out: Outside) -> None:
    """A time-out of a write is asked about, whatever its executor calls it; a refusal is simply tried again."""
    await out.begin("send", effect="write")
    told = await out.fail("send", "timed out", type="TimeoutError", kind="retryable")
    assert told.question is not None
    assert told.question["kind"] == "unknown_outcome"
    other = Outside(out.layer, "out-2")
    await other.admit()
    await other.begin("send", effect="write")
    assert (await other.fail("send", "no", status=422)).question["kind"] == "failure"  # type: ignore[index]
    third = Outside(out.layer, "out-3")
    await third.admit()
    await third.begin("send", effect="write")
    told = await third.fail("send", "timed out", type="TimeoutError", not_done=True)
    assert (told.do, told.attempt) == ("run", 2)


async def test_the_other_side_honours_the_key(out: Outside) -> None:
    """``idempotent``: a write in doubt is begun again with the same key, without a question."""
    first = await out.begin("send", effect="write", idempotent_us=None, lease_us=MINUTE_US)
    out.layer.clock.advance(61)
    told = await out.begin("send", effect="write", idempotent_us=None)
    assert (told.do, told.idempotency_key) == ("run", first.idempotency_key)


async def test_a_look_tells(out: Outside) -> None:
    """With a way to look: found is its receipt; not found, after its time, begins it again; an error asks."""
    url = "https://crm.example/mails/1"
    await out.begin("send", effect="write", probe_url=url, lease_us=MINUTE_US)
    out.layer.clock.advance(61)
    look = (await out.begin("send", effect="write", probe_url=url)).look
    assert look is not None
    assert (look.url, look.key) == (url, "out-1/send/once")
    early = Looked(claim_id=look.claim_id, tries=look.tries, found=False, started_us=out.now_us - 10 * MINUTE_US)
    assert (await out.begin("send", effect="write", probe_url=url, looked=early)).do == "wait"
    late = Looked(claim_id=look.claim_id, tries=look.tries, found=False, started_us=out.now_us)
    assert (await out.begin("send", effect="write", probe_url=url, looked=late)).do == "run"
    await out.fail("send", "reset", type="ECONNRESET")
    again = (await out.begin("send", effect="write", probe_url=url)).look
    assert again is not None
    assert again.tries == 2
    broken = Looked(claim_id=again.claim_id, tries=2, found=None, why="503", started_us=out.now_us)
    assert (await out.begin("send", effect="write", probe_url=url, looked=broken)).question is not None
    there = Looked(claim_id=again.claim_id, tries=2, found=True, value="mail-3", started_us=out.now_us)
    assert artifact(await out.begin("send", effect="write", probe_url=url, looked=there)) == "mail-3"
    assert not await out.layer.questions()


async def test_other_inputs_under_the_same_key(out: Outside) -> None:
    """A write that was done with other inputs is asked about: the same thing, or a second one."""
    await out.begin("send", effect="write", key="7", inputs={"amount": 1})
    await out.complete("send", "r-1")
    told = await out.begin("send", effect="write", key="7", inputs={"amount": 2})
    assert told.question is not None
    assert told.question["kind"] == "conflict"
    await out.layer.answer(told.question["id"], "second", by="ann")
    told = await out.begin("send", effect="write", key="7", inputs={"amount": 2})
    assert (told.do, told.idempotency_key) == ("run", "out-1/send/7#2")
    await out.complete("send", "r-2")
    assert artifact(await out.begin("send", effect="write", key="7", inputs={"amount": 1})) == "r-1"
    assert artifact(await out.begin("send", effect="write", key="7", inputs={"amount": 2})) == "r-2"


async def test_irreversible_is_proposed_first(out: Outside) -> None:
    """Nothing runs before a person approved exactly these inputs; what they edited is what is to be used."""
    told = await out.begin("send", effect="irreversible", inputs={"amount": 48000})
    assert told.question is not None
    assert told.question["kind"] == "approve"
    await out.layer.answer(told.question["id"], {"choice": "approve", "inputs": {"amount": 100}}, by="ann")
    told = await out.begin("send", effect="irreversible", inputs={"amount": 48000})
    assert (told.do, told.inputs) == ("run", '{"amount": 100}')
    await out.complete("send", "ok")
    told = await out.begin("send", effect="irreversible", inputs={"amount": 5}, key="other")
    await out.layer.answer((await ask_of(out.layer)).id, "refuse", by="ann")
    assert (await out.begin("send", effect="irreversible", inputs={"amount": 5}, key="other")).do == "stop"
    assert (await out.run())["status"] == "cancelled"


# -- resumed ----------------------------------------------------------------------------------------------------------------


async def test_a_resume_supersedes_what_began_before(out: Outside) -> None:
    """The old executor may neither begin, complete, fail nor extend under what it was given; the new one goes on."""
    await out.begin("fetch")
    new = await out.resume()
    with pytest.raises(Superseded, match="another executor"):
        await out.complete("fetch", 1)
    with pytest.raises(Superseded):
        await out.fail("fetch", "x")
    with pytest.raises(Superseded):
        await out.extend("fetch", 60)
    assert (await new.begin("fetch")).do == "run"
    assert artifact(await new.complete("fetch", 2)) == 2


async def test_a_write_under_way_is_not_begun_beside_it(out: Outside) -> None:
    """After a resume the old executor may still be sending: the new one waits, and is given its receipt when it comes."""
    first = await out.begin("send", effect="write", lease_us=MINUTE_US)
    new = await out.resume()
    told = await new.begin("send", effect="write")
    assert (told.do, told.retry_at_us) == ("wait", first.lease_until_us)
    kept = await out.complete("send", "mail-1")
    assert kept.superseded is not None
    assert "receipt was kept" in kept.superseded
    assert artifact(await new.begin("send", effect="write")) == "mail-1"


async def test_two_receipts_are_told_loudly(out: Outside) -> None:
    """The new executor did it, and then the old one's receipt comes: a question says that it was done twice."""
    await out.begin("send", effect="write", idempotent_us=None, lease_us=MINUTE_US)
    new = await out.resume()
    out.layer.clock.advance(61)
    assert (await new.begin("send", effect="write", idempotent_us=None)).do == "run"
    await new.complete("send", "mail-2")
    assert (await out.complete("send", "mail-1")).superseded
    question = await ask_of(out.layer)
    assert question.kind == "conflict"
    assert "done twice" in question.text


async def test_cancelled_while_a_write_is_under_way(out: Outside) -> None:
    """It is cancelling until the write's end is known, and then cancelled; its receipt is kept."""
    await out.begin("send", effect="write")
    await out.layer.cancel("out-1", reason="no longer wanted", by="ann")
    assert (await out.run())["status"] == "cancelling"
    assert (await out.begin("fetch")).do == "stop"
    kept = await out.complete("send", "mail-1")
    assert kept.run["status"] == "cancelled"
    cancelled = Outside(out.layer, "out-2")
    await cancelled.admit("a")
    await out.layer.cancel("out-2", reason="no", by="ann")
    assert (await cancelled.run())["status"] == "cancelled"


async def test_a_silent_executor_is_seen(out: Outside) -> None:
    """A begun step whose time is up: the run says that it waits, and for what; a live one is left alone."""
    from stepseven.transitions import external

    await out.begin("fetch", lease_us=MINUTE_US)
    assert "somebody outside executes fetch" in await out.layer.why("out-1")
    assert await out.layer.store.write(lambda tx: external.sweep(tx, out.now_us), durable=True, client=None) == 0
    out.layer.clock.advance(61)
    assert await out.layer.store.write(lambda tx: external.sweep(tx, out.now_us), durable=True, client=None) == 1
    row = await out.run()
    assert (row["status"], row["waiting_for"], row["owner"]) == ("waiting", "event", None)
    assert "fetch was begun" in row["reason"]
    assert "nobody has said how it ended" in await out.layer.why("out-1")
    assert (await out.begin("fetch")).do == "run"
    assert (await out.run())["status"] == "running"


async def test_failures_of_one_cause_are_one_incident(out: Outside) -> None:
    """Two runs whose executors report the same failure of one system are answered together."""
    for n in (1, 2):
        other = Outside(out.layer, f"in-{n}", client=f"client-{n}")
        await other.admit()
        await other.begin("fetch", resource="crm")
        assert (await other.fail("fetch", f"no access for user {n}", status=403)).question is not None
    (incident,) = await out.layer.incidents()
    assert (incident.questions, incident.clients) == (2, ("client-1", "client-2"))
    done = await out.layer.answer_incident(incident.id, "skip", by="ann")
    assert len(done.answered) == 2
