"""Facts about clients: said, contradicted, pinned, read in steps, waited for; and clients that are paused.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepseven import (
    Client,
    Fact,
    Layer,
    NotRecordable,
    Retryable,
    Run,
    SecretFound,
    UnknownClient,
    attempt,
    step,
    testing,
    workflow,
)
from stepseven.model import ClientStatus
from tests.runs.tools import ROOT, Crash, bury, child, hang_up, records, rows, url

# -- said and known -------------------------------------------------------------------------------------------------------


async def test_a_fact_is_known_from_the_first_word_on() -> None:
    """``set`` creates the client; ``get`` gives the bare value; an unknown client, or fact, gives the default."""
    async with testing.layer() as layer:
        acme = layer.client("acme")
        assert isinstance(acme, Client)
        assert (acme.get("vat"), acme.get("vat", "none"), acme.facts(), acme.history("vat"), acme.status) == (
            None,
            "none",
            [],
            [],
            None,
        )
        fact = acme.set("vat", "DE123", source="crm")
        assert isinstance(fact, Fact)
        assert (fact.value, fact.version, fact.source, fact.set_by, fact.conflicts) == ("DE123", 1, "crm", None, ())
        assert (acme.get("vat"), acme.status) == ("DE123", ClientStatus.ACTIVE)
        assert layer.client("globex").get("vat") is None


@pytest.mark.parametrize("value", ["text", 3, 1.5, True, None, "", 0, False, ["a", 1], {"a": {"b": [1]}}, b"\0\xff"])
async def test_a_value_comes_back_as_it_was(value: Any) -> None:
    """What can be recorded comes back equal and of its type, from outside and in a run."""

    @workflow(name="facts.comes_back")
    async def flow(run: Run) -> bool:
        found = run.client.get("k", "nothing")
        return type(found) is type(value) and found == value

    async with testing.layer() as layer:
        layer.client("acme").set("k", value)
        found = layer.client("acme").get("k", "nothing")
        assert type(found) is type(value)
        assert found == value
        assert (await layer.run(flow(), client="acme")).result() is True


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "k" * 201, 3])
async def test_a_name_that_is_none_is_refused(key: Any) -> None:
    """Nothing is kept under a name that nobody can read, and the client is not made by it."""
    async with testing.layer() as layer:
        with pytest.raises(ValueError, match="the name of a fact"):
            layer.client("acme").set(key, 1)
        assert layer.client("acme").status is None


async def test_what_may_not_be_stored_is_refused_whole() -> None:
    """A credential, a value that does not come back, a duration that is none: refused with a sentence, nothing is kept."""
    async with testing.layer() as layer:
        acme = layer.client("acme")
        with pytest.raises(SecretFound):
            acme.set("key", "sk-proj-" + "a1B2" * 12)
        with pytest.raises(NotRecordable):
            acme.set("k", object())
        for valid in ("90", "soon", "0d", ""):
            with pytest.raises(ValueError, match="valid="):
                acme.set("k", 1, valid=valid)
        with pytest.raises(ValueError, match="client="):
            layer.client("a/b")
        assert acme.status is None


async def test_every_version_is_kept_newest_first() -> None:
    """``history`` has every version with who said it; ``facts`` the current ones by key."""
    async with testing.layer() as layer:
        acme = layer.client("acme")
        acme.set("b", 1, source="crm")
        layer.clock.advance(timedelta(hours=1))
        acme.set("b", 2, by="ann")
        acme.set("a", "x")
        assert [(f.version, f.value, f.source, f.set_by) for f in acme.history("b")] == [(2, 2, None, "ann"), (1, 1, "crm", None)]
        assert acme.history("b")[0].set_us - acme.history("b")[1].set_us >= 3600 * 1_000_000
        assert [(f.key, f.value) for f in acme.facts()] == [("a", "x"), ("b", 2)]


async def test_saying_the_same_again_makes_no_version() -> None:
    """The same value from the same source only renews how long it holds."""
    async with testing.layer() as layer:
        acme = layer.client("acme")
        first = acme.set("k", 1, source="crm", valid="1d")
        layer.clock.advance(timedelta(hours=12))
        again = acme.set("k", 1, source="crm", valid="1d")
        assert (again.version, len(acme.history("k"))) == (1, 1)
        assert again.valid_until_us == first.valid_until_us + 12 * 3600 * 1_000_000
        assert acme.set("k", 1, source="crm").valid_until_us == again.valid_until_us
        assert acme.set("k", 1, source="sheet").version == 2


async def test_a_person_who_repeats_it_without_a_limit_means_for_good() -> None:
    """It holds from then on, in the version it was; a source that does not say how long leaves it as it is."""
    async with testing.layer() as layer:
        acme = layer.client("acme")
        acme.set("k", 1, by="ann", valid="1h")
        fact = acme.set("k", 1, by="ann")
        assert (fact.version, fact.valid_until_us) == (1, None)
        layer.clock.advance(timedelta(days=1))
        assert acme.get("k") == 1
        limited = acme.set("j", 1, source="crm", valid="1h")
        assert acme.set("j", 1, source="crm").valid_until_us == limited.valid_until_us


@pytest.mark.parametrize("valid", ["forever", "soon", "0d", "", 90])
async def test_how_long_is_refused_in_the_same_words_everywhere(valid: Any) -> None:
    """By ``client.set`` and by ``run.ask``: what to write, also for a fact that holds for good."""
    told = f"valid={valid!r}: say how long the fact holds, such as '90d' or '12h', or leave it out: for good"
    said: list[str] = []

    @workflow(name="facts.valid")
    async def flow(run: Run) -> None:
        for say in (lambda: run.client.set("k", 1, valid=valid), lambda: run.ask("Which?", remember="k", valid=valid)):
            try:
                say()
            except ValueError as error:
                said.append(str(error))

    async with testing.layer() as layer:
        with pytest.raises(ValueError, match="for good") as refused:
            layer.client("acme").set("k", 1, valid=valid)
        await layer.run(flow(), client="acme")
        assert [str(refused.value), *said] == [told] * 3


async def test_what_no_longer_holds_is_not_known_but_shown() -> None:
    """After ``valid`` a fact counts as not known; it is still among the facts; the same word makes it known again."""
    async with testing.layer() as layer:
        acme = layer.client("acme")
        fact = acme.set("k", 1, valid="90d")
        assert fact.valid_until_us == fact.set_us + 90 * 86_400 * 1_000_000
        layer.clock.advance(timedelta(days=91))
        assert acme.get("k", "gone") == "gone"
        assert [f.value for f in acme.facts()] == [1]
        assert acme.set("k", 1).version == 2
        assert acme.get("k") == 1


async def test_sources_that_disagree_are_shown_side_by_side() -> None:
    """The newest version is the value; the other source's is its conflict, until a person decides."""
    async with testing.layer() as layer:
        acme = layer.client("acme")
        acme.set("k", "A", source="crm")
        fact = acme.set("k", "B", source="sheet")
        assert (fact.value, [(c.value, c.source) for c in fact.conflicts]) == ("B", [("A", "crm")])
        assert acme.set("k", "A", source="crm").value == "B"  # the crm only repeats itself
        assert acme.set("k", "B", by="ann").conflicts == ()
        assert [f.conflicts for f in acme.facts()] == [()]


async def test_an_answer_settles_what_sources_said() -> None:
    """An answer that is remembered is a decision."""

    @workflow(name="facts.settles")
    async def flow(run: Run) -> Any:
        return await run.ask("Which?", remember="k", about=1)

    async with testing.layer() as layer:
        acme = layer.client("acme")
        await layer.run(flow(), client="acme", run_id="r")
        acme.set("k", "A", source="crm")
        assert acme.set("k", "B", source="sheet").conflicts
        await layer.answer_next("A", by="ann")
        (fact,) = acme.facts()
        assert (fact.value, fact.set_by, fact.conflicts, fact.run_id) == ("A", "ann", (), "r")
        assert (fact.source or "").startswith("answer to q_")


def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    """Two processes that say things about one fact at once: every word is a version of its own, numbered without a gap."""
    source = """
        import sys
        from stepseven import Layer
        layer = Layer(sys.argv[1])
        for n in range(60):
            layer.client("acme").set("k", f"{sys.argv[2]}{n}", source=sys.argv[2])
        layer.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(source), url(tmp_path)]
    Layer(url(tmp_path)).close()
    both = [subprocess.Popen([*command, name], cwd=ROOT, stderr=subprocess.PIPE, text=True) for name in ("crm", "sheet")]
    told = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    found = rows(tmp_path, "SELECT version, value FROM fact ORDER BY version")
    assert [row["version"] for row in found] == list(range(1, 121))
    assert {row["value"] for row in found} == {f'"{name}{n}"' for name in ("crm", "sheet") for n in range(60)}


# -- in the run -----------------------------------------------------------------------------------------------------------


@workflow(name="facts.own")
async def own(run: Run) -> list[Any]:
    """Looks, says, looks, asks, looks."""
    before = [run.client.get("k"), run.client.get("plan")]
    run.client.set("k", "new")
    told = [run.client.get("k"), await look("k", run)]
    await run.ask("Which plan?", remember="plan")
    return [*before, *told, run.client.get("plan"), await look("plan", run)]


@step(name="facts.look", ignore="run")
async def look(key: str, run: Run) -> Any:
    """What a step sees."""
    return run.client.get(key)


async def through(layer: Layer) -> list[Any]:
    """Drive the run to its end, answering what it asks."""
    outcome = await layer.run(own(), client="acme", run_id="r")
    for question in outcome.questions:
        await layer.answer(question.id, "answered", by="ann")
    return list((await layer.resume("r")).result())


def dying(layer: Layer, write: int, *, after: bool) -> None:
    """Let the process end at its *write*-th write: before it is made, or after."""
    store, left = layer.store, [write]

    def mortal(call: Callable[..., Any], *, queues: bool = False) -> Callable[..., Any]:
        def once(*args: Any, **how: Any) -> Any:
            left[0] -= 1
            if left[0] < 0 or (left[0] == 0 and not after):
                raise Crash
            result = call(*args, **how)
            if queues and result is None:  # it has to queue, and is counted there
                left[0] += 1
                return None
            if left[0] == 0 and not asyncio.iscoroutine(result):
                raise Crash
            return result

        return once

    def mortal_async(call: Callable[..., Any]) -> Callable[..., Any]:
        async def once(*args: Any, **how: Any) -> Any:
            left[0] -= 1
            if left[0] < 0 or (left[0] == 0 and not after):
                raise Crash
            result = await call(*args, **how)
            if left[0] == 0:
                raise Crash
            return result

        return once

    store.append_now = mortal(store.append_now, queues=True)  # type: ignore[method-assign]
    store.write_now = mortal(store.write_now)  # type: ignore[method-assign]
    store.append = mortal_async(store.append)  # type: ignore[method-assign]
    store.write = mortal_async(store.write)  # type: ignore[method-assign]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", range(1, 13))
def test_own_words_move_what_is_seen_from_there_on(tmp_path: Path, write: int, after: bool) -> None:
    """Before its ``set`` a run sees the old value, after it the new one, after its answer that: wherever it died meanwhile."""

    async def first() -> None:
        layer = Layer(url(tmp_path))
        layer.client("acme").set("k", "old", source="crm")
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # a process that is gone reports nothing
        dying(layer, write, after=after)
        try:
            await through(layer)
        finally:
            hang_up(layer)

    async def second() -> list[Any]:
        async with Layer(url(tmp_path)) as layer:
            layer.client("acme").set("other", 1)
            return await through(layer)

    with pytest.raises(Crash):
        asyncio.run(first())
    bury(tmp_path)
    assert asyncio.run(second()) == ["old", None, "new", "new", "answered", "answered"]
    said = rows(tmp_path, "SELECT key, version, value FROM fact WHERE key <> 'other' ORDER BY key, version")
    assert [tuple(row.values()) for row in said] == [("k", 1, '"old"'), ("k", 2, '"new"'), ("plan", 1, '"answered"')]
    assert [r["facts"] for r in records(tmp_path, "r") if r["name"] == "facts.look"] == ['{"k": 2}', '{"plan": 1}']


def test_a_word_survives_a_real_kill(tmp_path: Path) -> None:
    """Killed right after its ``set``: the next process sees the old value before it, the new one after it, said once."""
    source = """
        import asyncio, os, signal, sys
        from stepseven import Layer, Run, workflow

        @workflow
        async def killed(run: Run) -> list[object]:
            seen = [run.client.get("k")]
            run.client.set("k", "new")
            if sys.argv[2] == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            return [*seen, run.client.get("k")]

        async def main() -> None:
            async with Layer(sys.argv[1]) as layer:
                print((await layer.run(killed(), client="acme", run_id="r")).result())

        asyncio.run(main())
    """
    with contextlib.closing(Layer(url(tmp_path))) as layer:
        layer.client("acme").set("k", "old")
        assert child(source, url(tmp_path), "die").returncode == -signal.SIGKILL
        ended = child(source, url(tmp_path), "live")
        assert (ended.stdout.strip(), ended.stderr) == ("['old', 'new']", "")
        assert [fact.value for fact in layer.client("acme").history("k")] == ["new", "old"]


async def test_tasks_see_what_was_so_when_they_began(tmp_path: Path) -> None:
    """However the loop orders them, in the first execution and in a replay: a task sees its creator's words and its own."""
    gates: list[asyncio.Event] = []

    @workflow(name="facts.tasks")
    async def flow(run: Run, late: bool) -> list[Any]:
        run.client.set("k", 0)

        async def one(n: int) -> list[Any]:
            seen = [run.client.get("k")]
            run.client.set("k", n)
            await pause(n)
            return [*seen, run.client.get("k")]

        found = await asyncio.gather(one(1), one(2))
        await run.ask("go on?")
        return [*found, run.client.get("k"), late]

    @step(name="facts.pause")
    async def pause(n: int) -> None:
        if gates:
            await gates[n - 1].wait()

    async with Layer(url(tmp_path)) as layer:
        gates[:] = [asyncio.Event(), asyncio.Event()]
        running = asyncio.create_task(layer.run(flow(late=True), client="acme", run_id="r"))
        gates[1].set()
        while len([r for r in records(tmp_path, "r") if r["name"] == "facts.pause"]) < 1:
            await asyncio.sleep(0.01)
        gates[0].set()
        outcome = await running
        layer.client("acme").set("k", "from outside", by="ben")
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        gates.clear()
        assert (await layer.resume("r")).result() == [[0, 1], [0, 2], 2, True]


async def test_a_map_s_items_begin_alike(tmp_path: Path) -> None:
    """Every item sees what was so when the map began, not what an earlier item said; after the map the newest word counts."""

    @workflow(name="facts.items")
    async def flow(run: Run) -> list[Any]:
        async def item(n: int) -> Any:
            seen = run.client.get("k")
            run.client.set("k", n)
            return [seen, run.client.get("k")]

        run.client.set("k", 0)
        found: list[Any] = await run.map(item, [1, 2, 3], concurrency=1)
        return [*found, run.client.get("k")]

    async with Layer(url(tmp_path)) as layer:
        assert (await layer.run(flow(), client="acme", run_id="r")).result() == [[0, 1], [0, 2], [0, 3], 3]


async def test_a_question_finds_the_run_s_own_word(tmp_path: Path) -> None:
    """A run that said a fact itself does not ask for it, whatever it saw before."""

    @workflow(name="facts.own_word")
    async def flow(run: Run) -> list[Any]:
        before = run.client.get("k")
        run.client.set("k", "mine")
        return [before, await run.ask("Which?", remember="k")]

    async with Layer(url(tmp_path)) as layer:
        layer.client("acme").set("k", "theirs")
        assert (await layer.run(flow(), client="acme")).result() == ["theirs", "mine"]


# -- in a step ------------------------------------------------------------------------------------------------------------


async def test_what_a_step_reads_belongs_to_its_record(tmp_path: Path) -> None:
    """In a step ``get`` sees what is known now; the record keeps which version that was (0: none), and the run pins nothing."""

    @workflow(name="facts.in_step")
    async def flow(run: Run, n: int) -> list[Any]:
        return [await look("k", run), await look("none", run), await look("k2", run)]

    async with Layer(url(tmp_path)) as layer:
        layer.client("acme").set("k", "A")
        layer.client("acme").set("k", "B")
        assert (await layer.run(flow(1), client="acme", run_id="r")).result() == ["B", None, None]
    mine = records(tmp_path, "r")
    assert [r["facts"] for r in mine] == ['{"k": 2}', '{"none": 0}', '{"k2": 0}']
    assert [r["name"] for r in mine] == ["facts.look"] * 3


async def test_a_step_sees_the_pin_and_the_run_s_own_word(tmp_path: Path) -> None:
    """A step sees what the run said itself, else what the run pinned, else what is known now."""

    @workflow(name="facts.step_sees")
    async def flow(run: Run) -> list[Any]:
        run.client.get("pinned")
        run.client.get("said")
        layer.client("acme").set("pinned", "changed")
        layer.client("acme").set("now", "changed")
        run.client.set("said", "mine")
        return [await look("pinned", run), await look("said", run), await look("now", run)]

    async with Layer(url(tmp_path)) as layer:
        for key in ("pinned", "said", "now"):
            layer.client("acme").set(key, "first")
        assert (await layer.run(flow(), client="acme", run_id="r")).result() == ["first", "mine", "changed"]
    assert [r["facts"] for r in records(tmp_path, "r") if r["name"] == "facts.look"] == [
        '{"pinned": 1}',
        '{"said": 2}',
        '{"now": 2}',
    ]


async def test_every_kind_of_step_may_read(tmp_path: Path) -> None:
    """A ``def`` step in its thread, a write, a second try: each keeps what the try that succeeded read."""

    @step(name="facts.plain", ignore="run")
    def plain(run: Run) -> Any:
        return run.client.get("k")

    @step(name="facts.write", ignore="run", effect="write", key="n")
    async def write(n: int, run: Run) -> Any:
        return [attempt().idempotency_key[:1] != "", run.client.get("k")]

    @step(name="facts.again", ignore="run")
    async def again(run: Run) -> Any:
        found = run.client.get(f"try {attempt().number}")
        if attempt().number == 1:
            raise Retryable("busy")
        return found

    @workflow(name="facts.kinds")
    async def flow(run: Run) -> list[Any]:
        return [await plain(run), await write(1, run), await again(run)]

    async with Layer(url(tmp_path)) as layer:
        layer.client("acme").set("k", "A")
        assert (await layer.run(flow(), client="acme", run_id="r", wait=20)).result() == ["A", [True, "A"], None]
    assert [r["facts"] for r in records(tmp_path, "r")] == ['{"k": 1}', '{"k": 1}', '{"try 2": 0}']


# -- waiting for a fact ---------------------------------------------------------------------------------------------------


@workflow(name="facts.waits")
async def waits(run: Run) -> Any:
    """Looks, waits, looks."""
    before = run.client.get("vat")
    value = await run.wait_for("vat")
    return [before, value, run.client.get("vat")]


async def test_a_fact_wakes_the_run_that_waits_for_it(tmp_path: Path) -> None:
    """A parked run is ready in the commit that keeps the fact: it need not wait for its next look. Another client's is not."""
    async with Layer(url(tmp_path)) as layer:
        await layer.run(waits(), client="acme", run_id="r")
        await layer.run(waits(), client="globex", run_id="g")
        assert [r["waiting_for"] for r in rows(tmp_path, "SELECT waiting_for FROM run")] == ["event", "event"]
        layer.client("acme").set("vat", "DE123")
        found = rows(tmp_path, "SELECT id, status, reason FROM run ORDER BY no")
        assert [(r["id"], r["status"]) for r in found] == [("r", "queued"), ("g", "waiting")]
        assert "vat is known now" in await layer.why("r")
        assert (await layer.resume("r")).result() == [None, "DE123", "DE123"]


async def test_a_run_that_also_waits_for_a_person_is_woken(tmp_path: Path) -> None:
    """A run that waits for a person and for a fact is ready when either comes; another fact does not wake it."""

    @workflow(name="facts.both")
    async def both(run: Run) -> list[Any]:
        return list(await asyncio.gather(run.ask("Go on?"), run.wait_for("vat")))

    async with Layer(url(tmp_path)) as layer:
        outcome = await layer.run(both(), client="acme", run_id="r")
        assert outcome.waiting_for == "person"
        layer.client("acme").set("other", 1)
        assert [r["status"] for r in rows(tmp_path, "SELECT status FROM run")] == ["waiting"]
        layer.client("acme").set("vat", "DE123")
        assert [r["status"] for r in rows(tmp_path, "SELECT status FROM run")] == ["queued"]
        outcome = await layer.resume("r")
        assert (outcome.status, outcome.waiting_for) == ("waiting", "person")
        assert rows(tmp_path, "SELECT * FROM wait") == []
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        assert (await layer.resume("r")).result() == ["yes", "DE123"]


async def test_a_caller_that_waits_goes_on_at_once(tmp_path: Path) -> None:
    """``layer.run(…, wait=…)`` goes on when a fact is set by another process, long before the minute's look."""
    async with Layer(url(tmp_path)) as layer, Layer(url(tmp_path)) as other:
        running = asyncio.create_task(layer.run(waits(), client="acme", run_id="r", wait=50))
        while not rows(tmp_path, "SELECT no FROM run WHERE status = 'waiting'"):
            await asyncio.sleep(0.01)
        other.client("acme").set("vat", "DE123")
        assert (await asyncio.wait_for(running, 20)).result() == [None, "DE123", "DE123"]


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_run_in_memory_hears_of_a_fact(tmp_path: Path, where: str) -> None:
    """While another branch works, the branch that waits goes on as soon as the fact is there."""
    done = asyncio.Event()

    @step(name="facts.works")
    async def works() -> None:
        await done.wait()

    @workflow(name="facts.branches")
    async def flow(run: Run) -> Any:
        async def waiting() -> Any:
            value = await run.wait_for("vat")
            done.set()
            return value

        return (await asyncio.gather(waiting(), works()))[0]

    async with Layer(url(tmp_path)) as layer, Layer(url(tmp_path)) as other:
        running = asyncio.create_task(layer.run(flow(), client="acme", run_id="r"))
        while not rows(tmp_path, "SELECT no FROM run WHERE status = 'running'"):
            await asyncio.sleep(0.01)
        (layer if where == "here" else other).client("acme").set("vat", "DE123")
        assert (await asyncio.wait_for(running, 20)).result() == "DE123"


async def test_a_fact_that_comes_while_a_run_parks_is_not_missed(tmp_path: Path) -> None:
    """Set between the last look and the commit that puts the run away: it is not put away."""
    async with Layer(url(tmp_path)) as layer, Layer(url(tmp_path)) as other:
        write, told = layer.store.write, []

        async def first_the_fact(unit: Any, **how: Any) -> Any:
            if rows(tmp_path, "SELECT no FROM run WHERE status = 'running'") and not told:
                told.append(other.client("acme").set("vat", "DE123"))
            return await write(unit, **how)

        layer.store.write = first_the_fact  # type: ignore[method-assign]
        assert (await asyncio.wait_for(layer.run(waits(), client="acme", run_id="r"), 20)).result() == [None, "DE123", "DE123"]
        assert told


# -- paused ---------------------------------------------------------------------------------------------------------------


@workflow(name="facts.asks")
async def asks(run: Run) -> str:
    """One question."""
    return str(await run.ask("Go on?"))


async def test_nothing_begins_for_a_paused_client(tmp_path: Path) -> None:
    """``start`` admits, ``run`` and ``resume`` do not execute, answers are taken; ``unpause`` and ``resume`` go on."""
    async with Layer(url(tmp_path)) as layer:
        acme = layer.client("acme")
        outcome = await layer.run(asks(), client="acme", run_id="r")
        acme.pause(reason="invoices are disputed", by="ann")
        assert acme.status is ClientStatus.PAUSED
        assert (await layer.start(asks(), client="acme", run_id="s")).status == "queued"
        assert (await layer.run(asks(), client="acme", run_id="t", wait=5)).status == "queued"
        assert (await layer.run(asks(), client="globex", run_id="g")).status == "waiting"
        assert "acme is paused (by ann: invoices are disputed)" in await layer.why("t")
        assert "takes the answer now" in await layer.why("r")
        await layer.answer(outcome.questions[0].id, "yes", by="ben")
        assert (await layer.resume("r")).status == "queued"
        assert [r["executions"] for r in rows(tmp_path, "SELECT executions FROM run WHERE client_id = 'acme' ORDER BY no")] == [
            1,
            0,
            0,
        ]
        acme.unpause(by="ann")
        assert "paused" not in await layer.why("r")
        assert (await layer.resume("r")).result() == "yes"
        assert (await layer.resume("t")).status == "waiting"


async def test_a_timer_of_a_paused_client_does_not_spin() -> None:
    """A run that sleeps is not taken when its time comes, and whoever waits for it gets it back as it is."""

    @workflow(name="facts.sleeps")
    async def sleeps(run: Run) -> str:
        await run.sleep(3600)
        return "woke"

    async with testing.layer() as layer:
        await layer.run(sleeps(), client="acme", run_id="r")
        layer.client("acme").pause()
        layer.clock.advance(timedelta(hours=2))
        assert (await asyncio.wait_for(layer.resume("r", wait=60), 10)).status == "waiting"
        layer.client("acme").unpause()
        assert (await asyncio.wait_for(layer.resume("r"), 10)).result() == "woke"


async def test_a_live_run_is_given_back_and_its_write_is_kept(tmp_path: Path) -> None:
    """A pause finishes and records the write in flight, then gives the run back; afterwards nothing is done twice."""
    begun, go, sent = asyncio.Event(), asyncio.Event(), []

    @step(name="facts.posts", effect="write", key="n")
    async def posts(n: int) -> int:
        begun.set()
        await go.wait()
        sent.append(n)
        return n

    @workflow(name="facts.posting")
    async def posting(run: Run) -> int:
        return await posts(1) + await posts(2)

    async with Layer(url(tmp_path)) as layer, Layer(url(tmp_path)) as other:
        running = asyncio.create_task(layer.run(posting(), client="acme", run_id="r"))
        await begun.wait()
        other.client("acme").pause(by="ann")
        execution = layer._driver.driven["r"].execution
        while execution is not None and execution.unloading is None:
            await asyncio.sleep(0.01)
        assert not running.done()
        go.set()
        assert (await asyncio.wait_for(running, 20)).status == "queued"
        assert sent == [1]
        assert [r["state"] for r in rows(tmp_path, "SELECT state FROM effect")] == ["done"]
        layer.client("acme").unpause()
        assert (await layer.resume("r")).result() == 3
        assert sent == [1, 2]


async def test_a_paused_client_s_run_can_be_cancelled(tmp_path: Path) -> None:
    """Ending is no beginning: a queued run of a paused client is cancelled at once."""
    async with Layer(url(tmp_path)) as layer:
        await layer.start(asks(), client="acme", run_id="r")
        layer.client("acme").pause()
        assert await layer.cancel("r", reason="no longer wanted") == "cancelled"


async def test_a_mistyped_client_is_not_paused(tmp_path: Path) -> None:
    """Pausing (or unpausing) what is not there is an error that says where to look; nothing is made."""
    async with Layer(url(tmp_path)) as layer:
        for change in (layer.client("acmee").pause, layer.client("acmee").unpause):
            with pytest.raises(UnknownClient, match="there is no client acmee: `stepseven client` lists them"):
                change()
        assert layer.client("acmee").status is None
        layer.client("acme").set("k", 1)
        layer.client("acme").unpause()  # of an active one: no change
        assert layer.client("acme").status is ClientStatus.ACTIVE
