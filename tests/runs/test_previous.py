"""The next run starts from the last one plus everything since: pinned at first use, and the same after any resume.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from stepseven import ArtifactGone, Cost, Fixable, Previous, Retryable, Run, step, testing, workflow
from stepseven.decide.brief import tokens
from tests.servers import databases


@dataclass
class Offer:
    """What a workflow returns."""

    price: int
    text: str


@step(name="previous.tickets", summary=lambda t: f"{len(t)} characters of tickets")
async def tickets(quarter: str, size: int) -> str:
    """A result of any size."""
    return quarter[-1] * size


@step(name="previous.billing", attempts=1, on_failure="raise")
async def billing(quarter: str) -> int:
    """A read that fails."""
    raise Retryable(f"billing is down in {quarter}")


@workflow(name="previous.renewal")
async def renewal(run: Run, quarter: str, size: int = 3) -> Offer:
    """Reads, fails, knows and asks."""
    text = await tickets(quarter, size)
    with pytest.raises(Exception, match="is down"):
        await billing(quarter)
    run.client.get("vat")
    run.client.set("tone", f"formal in {quarter}")
    return Offer(price=int(await run.ask(f"Which price in {quarter}?")), text=text)


@workflow(name="previous.other")
async def other(run: Run) -> str:
    """Another workflow of the same client."""
    run.client.set("vat", "DE2", source="crm")
    return await run.ask("Is it a holiday?")


@workflow(name="previous.renewal_next")
async def unrelated(run: Run) -> None:
    """Never ran before."""
    assert run.previous is None


@pytest.fixture
async def layer() -> AsyncIterator[testing.layers.TestLayer]:
    """In memory, with a clock of its own."""
    async with testing.layer() as opened:
        yield opened


def seen_by(seen: list[Previous | None]) -> Any:
    """A second version of the workflow, which looks at the run before it."""

    @workflow(name="previous.renewal")
    async def flow(run: Run, quarter: str) -> str:
        seen.append(run.previous)
        await run.ask("Go on?")
        seen.append(run.previous)
        return "done"

    return flow


async def finish(layer: Any, call: Any, run_id: str, answer: str = "7", **how: Any) -> Any:
    """Run to the end, with one answer."""
    await layer.run(call, client="acme", run_id=run_id, **how)
    await answer_all(layer, run_id, answer)
    return await layer.run(call, client="acme", run_id=run_id)  # by its own code: the name has another one in the next test


async def answer_all(layer: Any, run_id: str, answer: str) -> None:
    """Answer what a run asks."""
    for question in await layer.questions(run_id=run_id):
        await layer.answer(question.id, answer, by="ann", note="by phone")


# -- what it says ------------------------------------------------------------------------------------------------------------


async def test_the_first_run_of_a_client_has_none(layer: Any) -> None:
    """No finished run before it, none of another client, workflow or status: ``None``, and the same after a resume."""
    await finish(layer, renewal(quarter="Q1"), "r1")
    await layer.run(renewal(quarter="Q1"), client="other", run_id="x")
    await layer.run(unrelated(), client="acme", run_id="u")
    seen: list[Previous | None] = []
    await layer.run(seen_by(seen)(quarter="Q2"), client="bcme", run_id="b")
    assert seen == [None]


async def test_it_says_what_the_last_run_found_out(layer: Any) -> None:
    """Its value in the type of the workflow, artifacts, decisions, failures and facts."""
    await layer.run(other(), client="acme", run_id="o")  # sets vat
    await finish(layer, renewal(quarter="Q1"), "r1", goal="draft the renewal")
    seen: list[Any] = []

    @workflow(name="previous.renewal")
    async def flow(run: Run, quarter: str) -> Offer:
        seen.append(run.previous)
        assert run.previous is not None
        value: Offer = run.previous.value
        return value

    outcome = await layer.run(flow(quarter="Q2"), client="acme", run_id="r2")
    (before,) = seen
    assert outcome.result() == before.value == Offer(price=7, text="111")
    assert (before.run_id, before.status, before.goal, before.inputs) == ("r1", "done", "draft the renewal", {"quarter": "Q1"})
    assert before.artifacts == {"previous.tickets": "111"}
    assert before.artifact("previous.tickets") == "111"
    assert before.summaries == {"previous.tickets": "3 characters of tickets"}
    (decision,) = before.decisions
    assert (decision.text, decision.answer, decision.by, decision.note) == ("Which price in Q1?", "7", "ann", "by phone")
    (failure,) = before.failures
    assert (failure.step, failure.reason, failure.run_id) == ("previous.billing", "billing is down in Q1", "r1")
    assert {key: (fact.value, fact.source) for key, fact in before.facts.items()} == {
        "vat": ("DE2", "crm"), "tone": ("formal in Q1", "run r1"),
    }  # fmt: skip
    assert before.ended_us <= layer.clock.now_us
    with pytest.raises(KeyError, match=r"it has: previous\.tickets"):
        before.artifact("previous.ticket")


async def test_a_value_of_another_type_than_today_comes_as_plain_json(layer: Any) -> None:
    """The workflow returns something else now: what the last run returned is not lost."""
    await finish(layer, renewal(quarter="Q1"), "r1")
    seen: list[Any] = []
    await layer.run(seen_by(seen)(quarter="Q2"), client="acme", run_id="r2")
    assert seen[0].value == {"price": 7, "text": "111"}


async def test_it_says_what_changed_since(layer: Any) -> None:
    """Facts with another value (not what this run says itself), what people decided elsewhere, and the other runs."""
    await finish(layer, other(), "o1", "no")
    await finish(layer, renewal(quarter="Q1"), "r1")
    layer.clock.advance(60)

    @workflow(name="previous.facts")
    async def facts(run: Run) -> None:
        run.client.set("vat", "DE3", source="mail")
        run.client.set("contact", "ben")
        run.client.set("tone", "formal in Q1", source="crm")  # the same as before: no change

    await layer.run(facts(), client="acme", run_id="f")
    await finish(layer, other(), "o2", "yes")
    await layer.run(other(), client="acme", run_id="o3")
    await layer.run(other(), client="bcme", run_id="b")
    seen: list[Any] = []

    @workflow(name="previous.renewal")
    async def flow(run: Run, quarter: str) -> None:
        run.client.set("own", "is no news")
        seen.append(run.previous)

    await layer.run(flow(quarter="Q2"), client="acme", run_id="r2")
    changed = seen[0].changed
    assert {c.key: (c.old, c.new, c.source) for c in changed.facts} == {
        "contact": (None, "ben", "run f"), "vat": ("DE2", "DE3", "mail"),
    }  # fmt: skip
    assert [(d.text, d.answer, d.run_id) for d in changed.decisions] == [("Is it a holiday?", "yes", "o2")]
    assert [(r.run_id, r.workflow, r.status) for r in changed.runs] == [
        ("o3", "previous.other", "waiting"), ("o2", "previous.other", "done"), ("f", "previous.facts", "done"),
    ]  # fmt: skip


async def test_a_fact_with_another_value_tells_both(layer: Any) -> None:
    """Old, new, source, time and versions of a fact that changed after the last run ended."""
    await layer.run(other(), client="acme", run_id="o1")
    await finish(layer, renewal(quarter="Q1"), "r1")
    layer.clock.advance(60)

    @workflow(name="previous.facts")
    async def facts(run: Run) -> None:
        run.client.set("vat", "DE9", source="mail")

    await layer.run(facts(), client="acme", run_id="f")
    seen: list[Any] = []
    await layer.run(seen_by(seen)(quarter="Q2"), client="acme", run_id="r2")
    (change,) = seen[0].changed.facts
    assert (change.key, change.old, change.new, change.source) == ("vat", "DE2", "DE9", "mail")
    assert (change.old_version, change.version) == (1, 2)
    assert change.set_us > seen[0].ended_us


async def test_what_came_while_the_last_run_was_under_way_is_a_change(layer: Any) -> None:
    """It had met the older value, or none: told with what it knew. Decisions of others meanwhile, too, but not its own."""
    layer.client("acme").set("price", 100, source="crm")

    @workflow(name="previous.renewal")
    async def first(run: Run, quarter: str) -> Any:
        run.client.get("price")
        await run.ask("Go on?")
        return run.client.get("price")

    await layer.run(first(quarter="Q1"), client="acme", run_id="r1")
    layer.clock.advance(60)
    layer.client("acme").set("price", 250, source="crm")
    layer.client("acme").set("seats", 40, source="crm")
    await finish(layer, other(), "o1", "yes")
    await answer_all(layer, "r1", "yes")
    assert (await layer.run(first(quarter="Q1"), client="acme", run_id="r1")).result() == 100
    layer.clock.advance(60)
    seen: list[Any] = []
    await layer.run(seen_by(seen)(quarter="Q2"), client="acme", run_id="r2")
    before = seen[0]
    assert before.facts["price"].value == 100
    assert {c.key: (c.old, c.new, c.old_version, c.version) for c in before.changed.facts} == {
        "price": (100, 250, 1, 2), "seats": (None, 40, None, 1), "vat": (None, "DE2", None, 1),
    }  # fmt: skip
    assert [d.run_id for d in before.changed.decisions] == ["o1"]
    assert [d.run_id for d in before.decisions] == ["r1"]


async def test_what_its_own_child_runs_did_is_no_change(layer: Any) -> None:
    """What they read, found out and were told, down to children of children, it knows."""
    layer.client("acme").set("vat", "DE1", source="crm")
    layer.client("acme").set("price", 1, source="crm")

    @step(name="previous.stage", remember="stage")
    async def stage() -> str:
        return "closed"

    @workflow(name="previous.grandchild")
    async def grandchild(run: Run) -> str:
        await stage()
        return str(await run.ask("Which depth?", remember="depth"))

    @workflow(name="previous.child", on_drift="keep")
    async def child(run: Run) -> str:
        run.client.set("seats", 40)
        await run.ask("Which colour?", remember="colour")
        run.client.get("vat")
        return await run.start(grandchild())

    @workflow(name="previous.renewal", on_drift="keep")
    async def parent(run: Run, quarter: str) -> str:
        run.client.get("vat")
        return await run.start(child())

    await layer.run(parent(quarter="Q1"), client="acme", run_id="r1")
    layer.clock.advance(60)
    layer.client("acme").set("vat", "DE2", source="crm")
    for _ in range(2):
        for question in await layer.questions(client="acme"):
            await layer.answer(question.id, "deep", by="ann")
        outcome = await layer.resume("r1")
    assert outcome.result() == "deep"
    layer.clock.advance(60)
    layer.client("acme").set("price", 2, source="crm")
    seen: list[Any] = []
    await layer.run(seen_by(seen)(quarter="Q2"), client="acme", run_id="r2")
    before = seen[0]
    assert before.run_id == "r1"
    assert [(c.key, c.old, c.new) for c in before.changed.facts] == [("price", 1, 2)]
    assert before.changed.decisions == ()
    known = {key: fact.value for key, fact in before.facts.items()}
    assert known == {"vat": "DE2", "seats": 40, "colour": "deep", "stage": "closed", "depth": "deep"}


async def test_the_same_value_written_otherwise_is_no_change(layer: Any) -> None:
    """An answer is stored as it came, a source's word in one form: the order of names and the spaces are no news."""

    @workflow(name="previous.renewal")
    async def first(run: Run, quarter: str) -> None:
        await run.ask("Which terms?", type=dict[str, str], remember="terms")

    await layer.run(first(quarter="Q1"), client="acme", run_id="r1")
    for question in await layer.questions(run_id="r1"):
        await layer.answer(question.id, {"b": "1", "a": "é"}, by="ann")
    await layer.run(first(quarter="Q1"), client="acme", run_id="r1")
    layer.clock.advance(60)
    layer.client("acme").set("terms", {"a": "é", "b": "1"}, source="crm")
    seen: list[Any] = []
    await layer.run(seen_by(seen)(quarter="Q2"), client="acme", run_id="r2")
    assert seen[0].run_id == "r1"
    assert seen[0].changed.facts == ()


async def test_the_tries_of_a_run_are_pinned_at_each_use(layer: Any) -> None:
    """A prompt made from ``run.failures`` is the same after a resume, so the paid turn answers; a later use tells more."""
    paid, tried = [], []

    @step(name="previous.turn", cost=Cost(usd=1))
    async def turn(prompt: str) -> str:
        paid.append(prompt)
        return prompt

    @step(name="previous.flaky", attempts=1, ignore=("run",))
    async def flaky(run: Run) -> int:
        tried.append([f.reason for f in run.failures])  # in a step: as of now
        if len(tried) == 1:
            raise Fixable("403")
        return len(tried)

    @workflow(name="previous.tries")
    async def flow(run: Run) -> list[str]:
        first = await turn(f"avoid: {[f.reason for f in run.failures]}")
        await flaky(run)
        return [first, await turn(f"avoid: {[(f.step, f.reason, f.run_id) for f in run.failures]}")]

    outcome = await layer.run(flow(), client="acme", run_id="r1")
    await layer.answer(outcome.questions[0].id, "again", by="ann")
    outcome = await layer.resume("r1")
    assert outcome.result() == ["avoid: []", "avoid: [('previous.flaky', '403', 'r1')]"] == paid
    assert tried == [[], ["403"]]


async def test_which_run_it_is(layer: Any) -> None:
    """The newest done one that was admitted before: not one that failed or still runs, not a later one, no fork, no child."""
    await finish(layer, renewal(quarter="Q1"), "r1")
    await layer.run(renewal(quarter="Q2"), client="acme", run_id="r2")
    await layer.cancel("r2", reason="no")
    await layer.run(renewal(quarter="Q3"), client="acme", run_id="r3")
    seen: list[Any] = []
    await finish(layer, renewal(quarter="Q3b"), "r3b")  # done, as a part of another run
    layer.store.write_now(
        lambda tx: tx.run(databases.plain("UPDATE run SET parent_no = 1 WHERE id = 'r3b'"), {}), durable=True, client=None
    )
    flow = seen_by(seen)
    fork = (await layer.fork("r1", from_step="previous.billing")).run_id
    await layer.resume(fork)
    await answer_all(layer, fork, "8")
    assert (await layer.resume(fork)).status == "done"
    seen.clear()
    await layer.start(flow(quarter="Q4"), client="acme", run_id="r4")
    assert (await finish(layer, seen_by([])(quarter="Q5"), "r5")).status == "done"
    await layer.run(flow(quarter="Q4"), client="acme", run_id="r4")
    assert seen[0].run_id == "r1"


async def test_a_fork_starts_from_what_its_root_started_from(layer: Any) -> None:
    """The run that is forked is not the run before the fork: it would find itself."""
    await finish(layer, renewal(quarter="Q1"), "r1")
    await finish(layer, renewal(quarter="Q2"), "r2")
    seen: list[Any] = []
    fork = await layer.fork("r2", from_step="previous.tickets")
    seen_by(seen)
    await layer.resume(fork.run_id)
    assert seen[0].run_id == "r1"


# -- pinned ------------------------------------------------------------------------------------------------------------------


async def test_a_resume_sees_the_same_whatever_happened_meanwhile(layer: Any) -> None:
    """Other runs end, facts change, the previous run's records go: the run that asked first keeps what it saw."""
    await finish(layer, renewal(quarter="Q1"), "r1")
    await layer.start(renewal(quarter="Q2"), client="acme", run_id="r2")
    seen: list[Any] = []
    flow = seen_by(seen)
    await layer.run(flow(quarter="Q3"), client="acme", run_id="r3")
    asked = (await layer.questions(run_id="r3"))[0].id

    await finish(layer, renewal(quarter="Q2"), "r2")  # ended only now
    await layer.run(other(), client="acme", run_id="o")
    layer.store.write_now(lambda tx: tx.run(databases.plain("DELETE FROM step WHERE run_no = 1"), {}), durable=True, client=None)
    await layer.answer(asked, "yes", by="ann")
    assert (await layer.run(flow(quarter="Q3"), client="acme", run_id="r3")).result() == "done"
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2]


async def test_a_previous_run_can_be_given_to_a_step(layer: Any) -> None:
    """It is recordable as it is: passed to a step, also with something cut in it, it is the same input after a resume."""
    await finish(layer, renewal(quarter="Q1", size=9000), "r1")

    @step(name="previous.draft")
    async def draft(before: Previous | None) -> str:
        assert before is not None
        return before.run_id

    @workflow(name="previous.renewal")
    async def flow(run: Run, quarter: str) -> str:
        drafted = await draft(run.previous)
        return drafted + await run.ask("Go on?")

    outcome = await finish(layer, flow(quarter="Q2"), "r2", "!")
    assert outcome.result() == "r1!"
    steps = layer.store.read_now(lambda tx: tx.all(databases.plain("SELECT name FROM step WHERE name = 'previous.draft'"), {}))
    assert len(steps) == 1


@pytest.mark.parametrize("size", [5_000, 30_000, 200_000])
async def test_what_is_too_long_is_cut_and_can_be_loaded(layer: Any, size: int) -> None:
    """A large artifact is there with its beginning and a mark, whole on demand; a large value is there whole."""
    await finish(layer, renewal(quarter="Q1", size=size), "r1")
    seen: list[Any] = []

    @workflow(name="previous.renewal")
    async def flow(run: Run, quarter: str) -> Offer:
        before = run.previous
        assert before is not None
        seen.append((before, before.artifact("previous.tickets"), before.value))
        await run.ask("Go on?")
        return Offer(price=1, text="")

    await layer.run(flow(quarter="Q2"), client="acme", run_id="r2")
    layer.store.write_now(lambda tx: tx.run(databases.plain("DELETE FROM step WHERE run_no = 1"), {}), durable=True, client=None)
    layer.store.write_now(
        lambda tx: tx.run(databases.plain("UPDATE run SET value = NULL, pruned_us = 1 WHERE no = 1"), {}),
        durable=True,
        client=None,
    )
    await answer_all(layer, "r2", "yes")
    await layer.resume("r2")
    assert seen[0] == seen[1]
    before, whole, value = seen[0]
    assert before.cut == ("artifacts.previous.tickets",)
    assert before.artifacts["previous.tickets"].endswith("1…")
    assert whole == "1" * size
    assert value == Offer(price=7, text="1" * size)


async def test_an_artifact_that_was_pruned_before_it_was_loaded_is_gone_aloud(layer: Any) -> None:
    """Its beginning is there, the whole is not: the error says which one of which run."""
    await finish(layer, renewal(quarter="Q1", size=9000), "r1")
    seen: list[Any] = []
    await layer.run(seen_by(seen)(quarter="Q2"), client="acme", run_id="r2")
    layer.store.write_now(lambda tx: tx.run(databases.plain("DELETE FROM step WHERE run_no = 1"), {}), durable=True, client=None)
    assert seen[0].artifacts["previous.tickets"].startswith('"111') or seen[0].artifacts["previous.tickets"].startswith("111")
    with pytest.raises(ArtifactGone, match=r"previous\.tickets' of run r1 is gone"):
        seen[0].artifact("previous.tickets")


async def test_a_pruned_run_still_says_what_was_kept(layer: Any) -> None:
    """Its value, decisions, failures and summaries; its results are no longer there, and loading one says so."""
    await finish(layer, renewal(quarter="Q1"), "r1")
    await finish(layer, renewal(quarter="Q2"), "r2")
    layer.clock.advance(100 * 86_400)
    assert (await layer.prune(older_than="90d")).runs == 1
    seen: list[Any] = []
    fork = await layer.fork("r2", from_step="previous.tickets")  # it starts from what its root started from
    seen_by(seen)
    await layer.resume(fork.run_id)
    (before,) = seen
    assert (before.run_id, before.value, before.artifacts) == ("r1", {"price": 7, "text": "111"}, {})
    assert before.summaries == {"previous.tickets": "3 characters of tickets"}
    assert before.cut == ("artifacts.previous.tickets",)
    assert [d.answer for d in before.decisions] == ["7"]
    assert [f.reason for f in before.failures] == ["billing is down in Q1"]
    with pytest.raises(ArtifactGone):
        before.artifact("previous.tickets")


async def test_a_client_that_was_forgotten_comes_back_as_a_new_one(layer: Any) -> None:
    """No run from before is its previous one, and no failure from before is told."""
    await finish(layer, renewal(quarter="Q1"), "r1")
    layer.client("acme").forget(by="ann")
    seen: list[Any] = []
    await layer.run(seen_by(seen)(quarter="Q2"), client="acme", run_id="r2")
    assert seen == [None]
    assert layer.client("acme").failures() == []


async def test_the_pinned_document_is_small_however_much_there_is(layer: Any) -> None:
    """Hundreds of facts, decisions and failures, long texts in other scripts: at most 64 KiB, and what is left out is counted."""

    @step(name="previous.many", attempts=1, on_failure="raise", key="n")
    async def failing(n: int) -> None:
        raise Retryable("ä" * 900)

    @workflow(name="previous.big")
    async def big(run: Run, text: str) -> str:
        if run.previous is not None:
            return f"{run.previous.left_out}"
        for n in range(60):
            await tickets(f"{n}日", 1500)
            run.client.set(f"fact_{n}", "日本" * 400)
            with pytest.raises(Exception, match="ä"):
                await failing(n)
        return text

    await layer.run(big(text="日" * 9000), client="acme", run_id="r1", goal="ü" * 5000)
    outcome = await layer.run(big(text="x"), client="acme", run_id="r2")
    assert "'facts': " in outcome.result()
    assert "'failures': " in outcome.result()
    kept = """SELECT s.result, a.size FROM step AS s LEFT JOIN artifact AS a ON a.hash = s.artifact
        WHERE s.run_no = 2 AND s.key = 'previous'"""
    (row,) = layer.store.read_now(lambda tx: tx.all(databases.plain(kept), {}))
    size = row["size"] if row["result"] is None else len(row["result"].encode())
    assert size <= 64 << 10


# -- run.brief, and the client's open questions and failures ------------------------------------------------------------------


async def test_a_brief_is_pinned_per_call_and_length(layer: Any) -> None:
    """What it said the first time it says after a resume, though more is known by then; another call says what is new."""
    await finish(layer, renewal(quarter="Q1"), "r1")
    seen: list[Any] = []

    @workflow(name="previous.renewal")
    async def flow(run: Run, quarter: str) -> str:
        briefs = [run.brief(400)]
        await tickets(quarter, 2)
        briefs += [run.brief(400), run.brief(30)]
        seen.append(briefs)
        await run.ask("Go on?")
        return run.brief(400, key="last")

    outcome = await finish(layer, flow(quarter="Q2"), "r2", "yes")
    assert seen[0] == seen[1]
    first, second, short = seen[0]
    assert "2 characters of tickets" in second
    assert "2 characters of tickets" not in first
    assert first.startswith("Run r2 of previous.renewal for acme\nquarter = Q2")
    assert "The run before:\n- r1 ended 2026-01-05" in first
    assert tokens(short) <= 30
    assert "Go on? -> yes (ann)" in outcome.result()


async def test_a_brief_tells_what_is_next_as_of_now(layer: Any) -> None:
    """Not as of the last time the run was put away: what was done since is done."""

    @step(name="previous.later")
    async def later() -> None: ...

    @workflow(name="previous.goes_on")
    async def flow(run: Run) -> list[str]:
        first = run.brief(200)
        await run.ask("Go on?")
        await later()
        return [first, run.brief(200)]

    first, second = (await finish(layer, flow(), "r", "yes")).result()
    assert "Next:\n- previous.later" in first
    assert "Done:\n- previous.later" in second
    assert "Next:" not in second


async def test_a_brief_of_less_than_one_token_is_refused(layer: Any) -> None:
    """The sentence names the argument, and nothing is recorded."""

    @workflow(name="previous.none")
    async def flow(run: Run) -> None:
        with pytest.raises(ValueError, match="max_tokens=0: at least 1"):
            run.brief(0)

    await layer.run(flow(), client="acme", run_id="r")
    assert layer.store.read_now(lambda tx: tx.all(databases.plain("SELECT name FROM step"), {})) == []


async def test_a_brief_holds_no_credential(layer: Any) -> None:
    """What got into the store before a rule for it existed is masked on its way into a prompt."""

    @workflow(name="previous.secret")
    async def flow(run: Run) -> str:
        await run.ask("Go on?")
        return run.brief(500)

    await layer.run(flow(), client="acme", run_id="r", goal="G")
    token = "ghp_" + "a1B2" * 10
    layer.store.write_now(
        lambda tx: tx.run(databases.plain("UPDATE run SET goal = :goal"), {"goal": f"use {token}"}), durable=True, client=None
    )
    await layer.answer_next("yes", by="ann")
    assert "Goal: use •••" in (await layer.resume("r")).result()


async def test_what_is_open_or_failed_for_the_client_is_pinned(layer: Any) -> None:
    """The client's questions and failures over all runs, as they were when the run first asked."""
    await layer.run(renewal(quarter="Q1"), client="acme", run_id="r1")
    await layer.run(renewal(quarter="Q9"), client="bcme", run_id="b1")
    seen: list[Any] = []

    @workflow(name="previous.looks")
    async def looks(run: Run) -> None:
        seen.append((run.client.open_questions(), run.client.failures(), run.client.failures(days=0.0001)))
        await run.ask("Go on?")

    layer.clock.advance(60)
    await layer.run(looks(), client="acme", run_id="r2")
    await answer_all(layer, "r1", "7")
    await answer_all(layer, "r2", "yes")
    await layer.resume("r2")
    assert seen[0] == seen[1]
    questions, failures, recent = seen[0]
    assert [(q.run_id, q.text, q.status) for q in questions] == [("r1", "Which price in Q1?", "open")]
    assert [(f.run_id, f.step, f.reason) for f in failures] == [("r1", "previous.billing", "billing is down in Q1")]
    assert failures[0].at_us is not None
    assert recent == []
    assert layer.client("acme").open_questions() == []
    assert layer.client("acme").failures() == failures
    assert layer.client("nobody").failures() == []
    with pytest.raises(ValueError, match="days=0"):
        layer.client("acme").failures(days=0)
