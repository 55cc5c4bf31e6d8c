"""What names an effect, and who shares its receipt.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pydantic
import pytest

from stepseven import KeyRequired, Run, attempt, step, workflow
from stepseven.model import RunStatus, WaitingFor
from tests.runs.outside import DROP, Mood, Outside
from tests.runs.worldly import claims, kinds, layers, outside, post, the_question, until
from tests.servers import databases


@dataclass
class Party:
    """Nested in the others."""

    vat: str | None


@dataclass
class Invoice:
    """A dataclass."""

    number: str
    supplier: Party


class Typed(TypedDict):
    """A typed dict."""

    number: str


class Model(pydantic.BaseModel):
    """A pydantic model."""

    number: str


# -- keys -----------------------------------------------------------------------------------------------------------------


async def test_without_a_key_a_write_happens_once_per_branch() -> None:
    """No key=: once per branch (each item of a map is one); a second call raises KeyRequired at the call, nothing is sent."""
    with outside() as world:

        @step(effect="write")
        async def post_it(n: str) -> int:
            return int((await post(world, "post_it", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def thrice(run: Run) -> Any:
            mapped = await run.map(post_it, ["A", "B"])
            first = await post_it("A")
            with pytest.raises(KeyRequired):
                post_it("C")
            return [mapped, first]

        async with layers() as layer:
            mapped, first = (await layer.run(thrice(), client="acme", run_id="r")).result()
            assert sorted([*mapped, first]) == [1, 2, 3]
    assert world.counts() == {"post_it": 3}
    assert len({key for _, key in world.calls}) == 3


@pytest.mark.parametrize(
    "key, value, wire",
    [
        ("d.number, d.supplier.vat", Invoice("7", Party("DE1")), 'r/post_it/"7"/DE1'),
        ("d.number", {"number": "N7"}, "r/post_it/N7"),
        (lambda d: (d, 3), "x", "r/post_it/x/3"),
        ("d", "Zoë Müller " + "x" * 300, None),
    ],
)
async def test_keys_are_paths_or_a_callable_and_fit_every_api(key: Any, value: Any, wire: str | None) -> None:
    """Paths go through dataclasses and dicts, a callable gets the arguments; the wire form is ASCII and at most 255 long."""
    with outside() as world:

        @step(effect="write", key=key)
        async def post_it(d: Any) -> int:
            return int((await post(world, "post_it", 1, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await post_it(value)

        async with layers() as layer:
            assert (await layer.run(one(), client="acme", run_id="r")).result() == 1
    (_, sent), *_ = world.calls
    assert sent is not None
    assert sent.isascii()
    assert len(sent) <= 255
    if wire is not None:
        assert sent == wire


@pytest.mark.parametrize("kind", [Invoice, Typed, Model])
def test_a_path_that_the_annotation_rules_out_is_refused_at_the_decoration(kind: Any) -> None:
    """A misspelt field of a dataclass, TypedDict or pydantic model fails when the step is declared, naming the fields."""

    async def post_it(d: Any) -> int:
        return 1

    post_it.__annotations__["d"] = kind
    step(effect="write", key="d.number")(post_it)
    with pytest.raises(ValueError, match=r"there is no 'numer' \(fields: .*number"):
        step(effect="write", key="d.numer")(post_it)


@pytest.mark.parametrize(
    "key, value",
    [("d", None), ("d.supplier.vat", Invoice("7", Party(None))), (lambda d: None, "x"), ("d.number", {"numer": 1})],
)
async def test_half_a_key_is_no_key(key: Any, value: Any) -> None:
    """A key that is None in part, or leads nowhere, is refused at the call: nothing is claimed or sent."""

    @step(effect="write", key=key)
    async def post_it(d: Any) -> int:
        raise AssertionError("never runs")

    @workflow
    async def one(run: Run) -> str:
        try:
            return str(await post_it(value))
        except ValueError as refused:
            return str(refused)

    async with layers() as layer:
        told = (await layer.run(one(), client="acme")).result()
        assert "post_it" in told
        assert "key" in told
        assert claims(layer) == []


# -- one effect for many ----------------------------------------------------------------------------------------------------


async def test_eight_branches_with_one_key_have_one_effect() -> None:
    """Eight concurrent branches, one key: one send, the same receipt for all, a record for each."""
    with outside() as world:
        world.moods = [Mood(hold=True)]

        @step(effect="write", key="n")
        async def post_it(n: str) -> int:
            return int((await post(world, "post_it", n, key=attempt().idempotency_key))["n"])

        async def item(i: int) -> int:
            return await post_it("A")

        @workflow
        async def eight(run: Run) -> list[int | None]:
            return await run.map(item, list(range(8)))

        loop = asyncio.get_running_loop()
        world.on_arrival = lambda: loop.call_soon_threadsafe(loop.call_later, 0.1, world.let_go)
        async with layers() as layer:
            outcome = await layer.run(eight(), client="acme")
            assert outcome.result() == [1] * 8
    assert world.counts() == {"post_it": 1}
    assert len(world.calls) == 1


async def test_over_all_runs_of_a_client_the_first_receipt_counts() -> None:
    """scope="client": another run, another step under the same effect name, other wording: the first receipt, nothing is sent."""
    with outside() as world:

        @step(effect="write", key="n", scope="client", effect_name="invoice")
        async def post_it(n: str, note: str) -> int:
            return int((await post(world, "invoice", n, key=attempt().idempotency_key))["n"])

        @step(effect="write", key="number", scope="client", effect_name="invoice")
        async def book_it(number: str) -> int:
            return int((await post(world, "invoice", number, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run, note: str) -> int:
            return await post_it("A", note)

        @workflow
        async def other(run: Run) -> int:
            return await book_it("A")

        async with layers() as layer:
            assert (await layer.run(one(note="/tmp/a.pdf"), client="acme")).result() == 1
            assert (await layer.run(one(note="./a.pdf"), client="acme")).result() == 1
            assert (await layer.run(other(), client="acme")).result() == 1
            assert (await layer.run(one(note="x"), client="bolt")).result() == 2, "another client is another scope"
    assert [key for _, key in world.calls] == ["acme/invoice/A", "bolt/invoice/A"]


async def test_a_live_second_run_waits_and_never_looks_beside_the_first() -> None:
    """While the first run is at it, the second waits for its receipt; its probe is not asked."""
    with outside() as world:
        world.moods = [Mood(hold=True)]

        @step(effect="write", key="n", scope="client")
        async def post_it(n: str) -> int:
            return int((await post(world, "post_it", n, key=attempt().idempotency_key))["n"])

        @post_it.probe
        async def find(n: str) -> int | None:
            raise AssertionError("nobody looks beside a live run")

        @workflow
        async def one(run: Run) -> int:
            return await post_it("A")

        async with layers(jumps=False) as layer:
            first = asyncio.create_task(layer.run(one(), client="acme", run_id="first"))
            await asyncio.to_thread(world.arrived.wait, 10)
            second = asyncio.create_task(layer.run(one(), client="acme", run_id="second"))
            await until(lambda: any(d.execution and d.execution.waits for d in layer._driver.driven.values()))
            world.let_go()
            assert (await first).result() == 1
            layer.clock.advance(2)
            assert (await second).result() == 1
    assert world.counts() == {"post_it": 1}


async def test_a_claim_with_an_open_question_is_not_inherited() -> None:
    """The first run waits for a person about it: the second neither asks nor sends; it waits, parks, and gets the receipt."""
    with outside() as world:
        world.moods = [DROP]

        @step(effect="write", key="n", scope="client")
        async def post_it(n: str) -> int:
            return int((await post(world, "post_it", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await post_it("A")

        async with layers() as layer:
            first = await layer.run(one(), client="acme", run_id="first")
            second = await layer.run(one(), client="acme", run_id="second")
            assert (second.status, second.waiting_for) == (RunStatus.WAITING, WaitingFor.EFFECT)
            assert second.questions == ()
            await layer.answer(the_question(first).id, {"choice": "happened", "receipt": 1}, by="ann")
            assert (await layer.resume("first")).result() == 1
            assert (await layer.resume("second")).result() == 1
    assert world.counts() == {"post_it": 1}


async def test_a_claim_of_an_ended_run_is_inherited_and_found_out_about() -> None:
    """The first run was stopped with its claim in doubt: the second inherits the doubt, and asks before anything is sent."""
    with outside() as world:
        world.moods = [DROP]

        @step(effect="write", key="n", scope="client")
        async def post_it(n: str) -> int:
            return int((await post(world, "post_it", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await post_it("A")

        async with layers() as layer:
            first = await layer.run(one(), client="acme", run_id="first")
            await layer.answer(the_question(first).id, "stop", by="ann")
            assert (await layer.resume("first")).status is RunStatus.CANCELLED
            second = await layer.run(one(), client="acme", run_id="second")
            assert kinds(second) == ["unknown_outcome"]
            await layer.answer(the_question(second).id, {"choice": "happened", "receipt": 1}, by="ann")
            assert (await layer.resume("second")).result() == 1
    assert world.counts() == {"post_it": 1}


async def test_a_claim_proven_not_done_is_free_for_anyone() -> None:
    """The first run's try was refused and waits for a person: that holds nobody else up; the first then gets the receipt."""
    with outside() as world:
        world.moods = [Mood(status=403, act=False)]

        @step(effect="write", key="n", scope="client")
        async def post_it(n: str) -> int:
            return int((await post(world, "post_it", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def one(run: Run) -> int:
            return await post_it("A")

        async with layers() as layer:
            first = await layer.run(one(), client="acme", run_id="first")
            assert (await layer.run(one(), client="acme", run_id="second")).result() == 1
            await layer.answer(the_question(first).id, "again", by="ann")
            assert (await layer.resume("first")).result() == 1
    assert world.counts() == {"post_it": 1}


async def test_a_fork_shares_its_roots_receipts() -> None:
    """A fork runs its steps anew, but what the root did outside is not done again, and its key names the root."""
    with outside() as world:

        @step
        async def plan() -> int:
            plans.append(1)
            return 7

        @step(effect="write", key="n")
        async def post_it(n: str) -> int:
            return int((await post(world, "post_it", n, key=attempt().idempotency_key))["n"])

        @workflow
        async def both(run: Run) -> list[int]:
            await plan()
            return [await post_it("A"), await post_it("B")]

        plans: list[int] = []
        async with layers() as layer:
            await layer.run(both(), client="acme", run_id="root")
            fork = await layer.fork("root", from_step="plan")
            assert (await layer.resume(fork.run_id)).result() == [1, 2]
    assert len(plans) == 2
    assert world.calls == [("post_it", "root/post_it/A"), ("post_it", "root/post_it/B")]


async def test_a_renamed_write_in_doubt_is_not_a_second_effect() -> None:
    """A write left in doubt and then renamed (with renamed_from=) is looked for under its first name, and not sent again."""
    with outside() as world:

        @step(effect="write", key="n")
        async def post_it(n: str) -> int:
            return int((await post(world, "post_it", n, key=attempt().idempotency_key))["n"])

        @workflow("renaming")
        async def before(run: Run) -> int:
            return await post_it("A")

        world.moods = [DROP]
        async with layers() as layer:
            first = await layer.run(before(), client="acme", run_id="r")
            assert kinds(first) == ["unknown_outcome"]

            @step(effect="write", key="n", renamed_from=("post_it",))
            async def send_it(n: str) -> int:
                return int((await post(world, "post_it", n, key=attempt().idempotency_key))["n"])

            @workflow("renaming")
            async def after(run: Run) -> int:
                return await send_it("A")

            again = await layer.resume("r")
            assert again.status is RunStatus.WAITING
            assert len(world.effects) == 1


# -- another key after a change ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["argument", "given by hand", "keyed"])
@pytest.mark.parametrize("stops", [False, True], ids=["straight on", "put away in between"])
async def test_another_key_after_another_result_is_asked_about_over_any_park(  # noqa: C901 - one story
    stops: bool, cause: str
) -> None:
    """An earlier step gave another result: a write with a new key beside its old receipt is a question; the answer holds."""
    sent: list[str] = []
    now, asks, broken = ["a"], [False], [True]

    @step(key="kind" if cause == "keyed" else None)
    async def look(kind: str, x: str) -> str:
        if cause == "given by hand" and x == "b":
            raise ValueError("no")
        return f"v{x}"

    @step(effect="write", key="what")
    async def book(what: str) -> str:
        sent.append(what)
        return f"id-{what}"

    @step(attempts=1)
    async def last(x: str) -> str:
        if broken[0]:
            raise ValueError("broken")
        return x

    @workflow("changed")
    async def flow(run: Run) -> str:
        found = await look("k", now[0])
        if asks[0]:
            await run.ask("go on?")
        made = await book(found)
        await run.ask("and then?")
        return await last(made + await book("other"))

    async with layers() as layer:
        await layer.run(flow(), client="acme", run_id="r")
        now[0], asks[0] = "b", stops
        outcome = await layer.resume("r")
        if cause == "given by hand":
            question = next(q for q in outcome.questions if q.kind == "failure")
            await layer.answer(question.id, {"choice": "value", "value": "vb"}, by="ann")
            outcome = await layer.resume("r")
        if stops:
            await layer.answer(next(q for q in outcome.questions if q.text == "go on?").id, "yes", by="ann")
            outcome = await layer.resume("r")
        question = next(q for q in outcome.questions if q.kind == "conflict")
        assert sent == ["va"]
        await layer.answer(question.id, "second", by="ann")
        outcome = await layer.resume("r")
        assert sent == ["va", "vb"]
        broken[0] = False
        for question in outcome.questions:
            if question.kind == "ask":
                await layer.answer(question.id, "yes", by="ann")
        outcome = await layer.resume("r")  # what was answered once is not asked again about the next key
        assert (outcome.status, sent) == (RunStatus.DONE, ["va", "vb", "other"])


@pytest.mark.parametrize("answered", ["before", "after"])
async def test_a_person_s_answer_about_a_renamed_write_is_used(answered: str) -> None:
    """What a person found out about a write in doubt holds when it is renamed: no second question, no second send."""
    sent: list[str] = []

    @step(effect="write", key="n")
    async def post_it(n: str) -> str:
        sent.append(n)
        raise KeyError("parsing")

    @workflow("renaming.answered")
    async def before(run: Run) -> str:
        return await post_it("A")

    async with layers() as layer:
        outcome = await layer.run(before(), client="acme", run_id="r")
        question = the_question(outcome)
        if answered == "before":
            await layer.answer(question.id, {"choice": "happened", "receipt": "id-x"}, by="ann")

        @step(effect="write", key="n", renamed_from=("post_it",))
        async def send_it(n: str) -> str:
            sent.append(n)
            return n

        @workflow("renaming.answered")
        async def after(run: Run) -> str:
            return await send_it("A")

        if answered == "after":
            assert the_question(await layer.resume("r")).id == question.id
            await layer.answer(question.id, {"choice": "happened", "receipt": "id-x"}, by="ann")
        outcome = await layer.resume("r")
        assert (outcome.status, outcome.value, sent) == (RunStatus.DONE, "id-x", ["A"])
        document = await layer.checkpoint("r")
        assert (document["steps_complete"], document["open_questions"]) == (["post_it"], [])


# -- changed code claims it under another scope or name -------------------------------------------------------------------


def seats(world: Outside, *, probe: bool = False, **options: Any) -> Any:
    """A version of a workflow, to be called: its one write is declared with these options."""

    @step("book_seat", effect="write", key="seat", **{"attempts": 1, **options})
    async def book(seat: str) -> int:
        return int((await post(world, "seat", seat, key=attempt().idempotency_key))["n"])

    if probe:

        @book.probe
        async def there(seat: str) -> int | None:
            return int(world.effects[0]["n"]) if world.effects else None

    @workflow("seats_elsewhere")
    async def travel(run: Run) -> int:
        return await book("aisle")

    return travel()


ELSEWHERE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"effect_name": "seat"}),
    ({}, {"scope": "client"}),
    ({"scope": "client"}, {}),
    ({"effect_name": "seat"}, {"scope": "client"}),
]


@pytest.mark.parametrize("old,new", ELSEWHERE)
@pytest.mark.parametrize("act", [True, False])
async def test_a_claim_in_doubt_under_another_scope_or_name_is_found_out_about_first(
    old: dict[str, Any], new: dict[str, Any], *, act: bool
) -> None:
    """Nothing is sent before a person has said whether it happened; then its receipt answers, or it is done as declared now."""
    with outside() as world:
        world.moods = [Mood(act=act, reset=True)]
        async with layers() as layer:
            assert kinds(await layer.run(seats(world, **old), client="acme", run_id="r")) == ["unknown_outcome"]
            newer = seats(world, **new)
            assert [s.do.value for s in (await layer.plan("r")).steps] == ["ask", "run"]
            outcome = await layer.resume("r")
            assert (kinds(outcome), len(world.calls)) == (["unknown_outcome"], 1)
            choice = {"choice": "happened", "receipt": 1} if act else "not_happened"
            await layer.answer(the_question(outcome).id, choice, by="ann")
            assert (await layer.resume("r")).result() == 1
            assert [c["state"] for c in claims(layer)] == (["done"] if act else ["refused", "done"])
            assert act or claims(layer)[1]["scope"] == new.get("scope", "run")
            assert newer is not None
    assert (len(world.calls), world.counts()) == (1 if act else 2, {"seat": 1})


@pytest.mark.parametrize("old,new", ELSEWHERE[:2])
async def test_what_died_under_another_scope_or_name_is_looked_for(
    tmp_path: Path, old: dict[str, Any], new: dict[str, Any]
) -> None:
    """The process died after the claim. A probe finds it: that is the result, and nothing is sent."""
    with outside() as world:
        world.moods = [Mood(reset=True)]
        async with layers(databases.url(tmp_path)) as layer:
            assert kinds(await layer.run(seats(world, **old), client="acme", run_id="r")) == ["unknown_outcome"]
            died_after_the_claim(tmp_path)
            newer = seats(world, probe=True, probe_first="never", **new)
            assert (await layer.resume("r")).result() == 1
            assert newer is not None
    assert len(world.calls) == 1


@pytest.mark.parametrize("old,new", ELSEWHERE[:2])
async def test_the_other_side_is_told_the_key_it_knows(tmp_path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """The process died after the claim, and the other side promises to know its key: it is sent again under that very one."""
    with outside(dedup=True) as world:
        world.moods = [Mood(reset=True)]
        async with layers(databases.url(tmp_path)) as layer:
            assert kinds(await layer.run(seats(world, **old), client="acme", run_id="r")) == ["unknown_outcome"]
            died_after_the_claim(tmp_path)
            newer = seats(world, idempotent=True, **new)
            assert (await layer.resume("r")).result() == 1
            assert [c["state"] for c in claims(layer)] == ["done"]
            assert newer is not None
    assert [key for _, key in world.calls] == ["r/book_seat/aisle"] * 2
    assert world.counts() == {"seat": 1}


@pytest.mark.parametrize("old,new", ELSEWHERE[:2])
async def test_a_receipt_that_came_late_answers_under_another_scope_or_name(
    tmp_path: Path, old: dict[str, Any], new: dict[str, Any]
) -> None:
    """It was settled while nobody had the run, and no record tells of it: the receipt is the result all the same."""
    with outside() as world:
        world.moods = [Mood(reset=True)]
        async with layers(databases.url(tmp_path)) as layer:
            assert kinds(await layer.run(seats(world, **old), client="acme", run_id="r")) == ["unknown_outcome"]
            died_after_the_claim(tmp_path)
            databases.execute(tmp_path, "UPDATE effect SET state = 'done', receipt = '1', settled_us = claimed_us")
            newer = seats(world, **new)
            assert (await layer.resume("r")).result() == 1
            assert newer is not None
    assert len(world.calls) == 1


def died_after_the_claim(state: Path) -> None:
    """As if nothing had been written after the claim."""
    databases.execute(state, "DELETE FROM question")
    databases.execute(state, "DELETE FROM attempt")
    databases.execute(state, "UPDATE effect SET state = 'claimed', gate_until_us = claimed_us")
    databases.execute(state, "UPDATE run SET open_questions = 0")
