"""What is on record is looked at in a recovery: files that results name, and what ``.verify`` says. Judged by what ran.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Outcome, Reference, Run, attempt, step, testing, workflow
from stepseven.runtime import references, verifying
from stepseven.testing import TestLayer
from stepseven.transitions.state import Record
from tests.runs import tools
from tests.runs.deaths import every_death, living
from tests.runs.worldly import kinds, the_question
from tests.servers import databases


class Here:
    """What the steps of these tests find outside: a folder, what is to be written, and what they count."""

    folder = Path()
    text: dict[str, str]
    ran: Counter[str]
    notes: list[str]
    failing: set[str]
    says: Any
    got: list[Any]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh outside, below the current folder."""
    monkeypatch.chdir(tmp_path)
    Here.folder = tmp_path / "made"
    Here.folder.mkdir()
    Here.text, Here.ran, Here.notes, Here.failing, Here.says, Here.got = {}, Counter(), [], set(), True, []


@pytest.fixture
async def layer() -> AsyncIterator[TestLayer]:
    """A layer whose notes are heard."""
    async with testing.layer() as made:
        made.services.watchers.append(_heard)
        yield made


def _heard(_: str, what: str, details: dict[str, Any]) -> None:
    if what == "note":
        Here.notes.append(details["text"])


def make(name: str) -> Path:
    """A step's work: it writes a file."""
    Here.ran[name] += 1
    if name in Here.failing:
        raise PermissionError(f"403 while {name} was made")
    path = Here.folder / f"{name}.txt"
    path.write_text(Here.text.get(name, name))
    return path


@step
async def report(name: str) -> Reference:
    """Makes a file."""
    return Reference.of(make(name))


@step
async def summary(of: Reference) -> str:
    """Takes it."""
    Here.ran["summary"] += 1
    return f"{of.size} bytes"


@step(effect="write", key="name")
async def send(name: str) -> str:
    """Does something outside."""
    Here.ran["send"] += 1
    return f"sent {name}"


@workflow(name="verify_monthly")
async def monthly(run: Run) -> list[str]:
    """All three, then a person."""
    made = await report("may")
    told = await summary(made)
    sent = await send("may")
    return [told, sent, await run.ask("ok?", about="it")]


async def begin(layer: Layer, code: Any = monthly, **inputs: Any) -> None:
    """Run until it asks."""
    outcome = await layer.run(code(**inputs), client="acme", run_id="r")
    assert kinds(outcome) == ["ask"], outcome


async def finish(layer: TestLayer) -> Any:
    """Answer, resume; what it gave."""
    await layer.answer_next("yes")
    return (await layer.resume("r")).result()


def whys(layer: Layer, name: str) -> list[str | None]:
    """Why each generation of a step's record was made."""
    rows = layer.store.read_now(lambda tx: tx.all(tx.sql.steps, {"low": 0, "high": 1 << 62}))
    return [r["why"] for r in rows if r["name"] == name]


# -- files --------------------------------------------------------------------------------------------------------------


async def test_a_file_that_is_still_there_and_the_same_is_reused(layer: TestLayer) -> None:
    """Nothing runs, nothing is written down, nothing is noted."""
    await begin(layer)
    before = len(whys(layer, "report"))
    assert await finish(layer) == ["3 bytes", "sent may", "yes"]
    assert Here.ran == {"may": 1, "summary": 1, "send": 1}
    assert (before, len(whys(layer, "report")), Here.notes, whys(layer, verifying.ASIDE)) == (1, 1, [], [])


async def test_a_file_that_is_gone_is_made_again_and_the_same_moves_nothing_else(layer: TestLayer) -> None:
    """The step that made it runs; what is built on it does not, because it got the same; the record says why."""
    await begin(layer)
    (Here.folder / "may.txt").unlink()
    assert await finish(layer) == ["3 bytes", "sent may", "yes"]
    assert Here.ran == {"may": 2, "summary": 1, "send": 1}
    assert (Here.folder / "may.txt").read_text() == "may"
    assert whys(layer, "report") == [None, "ran again: its file made/may.txt is gone"] or whys(layer, "report") == [None, None]
    assert Here.notes == ["report runs again: its file made/may.txt is gone"]


async def test_only_what_depends_on_a_difference_runs_after_it(layer: TestLayer) -> None:
    """It is made again otherwise: what took it runs, a write with a receipt is not done again."""
    await begin(layer)
    (Here.folder / "may.txt").unlink()
    Here.text["may"] = "other"
    assert await finish(layer) == ["5 bytes", "sent may", "yes"]
    assert Here.ran == {"may": 2, "summary": 2, "send": 1}
    assert whys(layer, "report")[1] == "ran again and gave another result: its file made/may.txt is gone"


@pytest.mark.parametrize(
    "change,became",
    [
        (lambda path: path.write_text("mai"), "was changed"),
        (lambda path: path.write_text("longer"), "was changed"),
        (lambda path: (path.unlink(), path.mkdir()), "is no file any more"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "is no file any more"),
        (lambda path: (path.unlink(), path.symlink_to("nowhere")), "is gone"),
        (lambda path: (path.unlink(), path.parent.rmdir(), path.parent.write_text("")), "is gone"),
    ],
)
async def test_whatever_else_is_there_instead_is_seen(layer: TestLayer, change: Any, became: str) -> None:
    """Other content of the same size, another size, a folder, a pipe (which is not opened), a dangling link."""
    await begin(layer)
    change(Here.folder / "may.txt")
    Here.failing.add("may")
    await layer.answer_next("yes")
    outcome = await layer.resume("r")
    assert kinds(outcome) == ["failure"]
    assert Here.notes == [f"report runs again: its file made/may.txt {became}"]


async def test_a_copy_with_the_old_times_is_seen(layer: TestLayer) -> None:
    """The content decides, whatever the file's times say."""
    await begin(layer)
    path = Here.folder / "may.txt"
    times = path.stat()
    path.write_text("mai")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    await finish(layer)
    assert Here.ran["may"] == 2


async def test_a_touched_file_with_the_same_content_holds(layer: TestLayer) -> None:
    """Copied, restored, touched: the content is the same."""
    await begin(layer)
    os.utime(Here.folder / "may.txt", (0, 0))
    await finish(layer)
    assert Here.ran["may"] == 1


@pytest.mark.parametrize("year,again", [(2020, 2), (2090, 1)])
async def test_a_very_large_file_is_hashed_only_if_it_was_touched(monkeypatch: Any, year: int, again: int) -> None:
    """Over the limit the size decides, and the content only where the file was touched after its step's end."""
    from datetime import UTC, datetime

    monkeypatch.setattr(references, "HASHED", 2)
    async with testing.layer(start=datetime(year, 1, 1, tzinfo=UTC)) as layer:  # before and after any touch
        await begin(layer)
        (Here.folder / "may.txt").write_text("mai")
        await finish(layer)
    assert Here.ran["may"] == again


async def test_what_cannot_be_looked_at_is_kept_and_noted(layer: TestLayer) -> None:
    """No permission, a sick disk, a name the system refuses: not gone. The run goes on with what it has."""

    @step
    async def odd() -> Reference:
        Here.ran["odd"] += 1
        return Reference("/" + "x" * 300, size=3)

    @workflow(name="verify_odd")
    async def flow(run: Run) -> str:
        await odd()
        return str(await run.ask("ok?", about="it"))

    await begin(layer, flow)
    assert await finish(layer) == "yes"
    assert Here.ran == {"odd": 1}
    assert len(Here.notes) == 1
    assert Here.notes[0].startswith("odd: could not look at …xxx")
    assert Here.notes[0].endswith("(File name too long). What is on record is kept.")


@dataclass
class Parcel:
    """A result with a file somewhere inside."""

    files: list[Reference]
    note: str = ""


def test_a_file_has_a_name_also_where_the_current_folder_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment removes the folder that a worker was started in: what it looks at is told by its whole path."""
    (tmp_path / "old").mkdir()
    monkeypatch.chdir(tmp_path / "old")
    (tmp_path / "old").rmdir()
    assert references.shown("/reports/may.txt") == "/reports/may.txt"


async def test_references_are_found_anywhere_in_a_result(layer: TestLayer) -> None:
    """In a dataclass, in a list, and in plain data that has the same fields."""

    @step
    async def parcel() -> Parcel:
        return Parcel([Reference.of(make("a")), Reference.of(make("b"))])

    @step
    async def bare() -> Any:
        made = Reference.of(make("c"))
        return {"deep": [{"url": made.url, "hash": made.hash, "size": made.size, "etag": None, "modified": None}]}

    @workflow(name="verify_anywhere")
    async def flow(run: Run) -> Any:
        return [(await parcel()).files[1].size, (await bare())["deep"][0]["size"], await run.ask("ok?", about="it")]

    await begin(layer, flow)
    (Here.folder / "b.txt").unlink()
    (Here.folder / "c.txt").unlink()
    assert await finish(layer) == [1, 1, "yes"]
    assert Here.ran == {"a": 2, "b": 2, "c": 2}


async def test_of_a_map_only_the_items_whose_files_are_gone_run(layer: TestLayer) -> None:
    """Fifty items, one file gone: one runs."""

    @workflow(name="verify_map")
    async def flow(run: Run) -> Any:
        made = await run.map(report, ["a", "b", "c", "d"])
        return [sum(r.size or 0 for r in made), await run.ask("ok?", about="it")]

    await begin(layer, flow)
    (Here.folder / "c.txt").unlink()
    assert await finish(layer) == [4, "yes"]
    assert Here.ran == {"a": 1, "b": 1, "c": 2, "d": 1}


async def test_of_steps_in_steps_the_one_that_made_it_runs(layer: TestLayer) -> None:
    """The outer record answers first. It names the file, so it runs, and so does the inner step that made it; others answer."""

    @step
    async def fetch() -> str:
        Here.ran["fetch"] += 1
        return "fetched"

    @step
    async def outer() -> dict[str, Reference]:
        Here.ran["outer"] += 1
        await fetch()
        return {"file": await report("in")}

    @workflow(name="verify_nested")
    async def flow(run: Run) -> Any:
        return [(await outer())["file"].size, await run.ask("ok?", about="it")]

    await begin(layer, flow)
    (Here.folder / "in.txt").unlink()
    assert await finish(layer) == [2, "yes"]
    assert Here.ran == {"in": 2, "outer": 2, "fetch": 1}


async def test_a_file_that_no_answer_names_is_not_missed(layer: TestLayer) -> None:
    """Only the inner step's record names it: the outer one answers, nobody is given the file, so nothing runs."""

    @step
    async def counts() -> int:
        Here.ran["outer"] += 1
        return (await report("in")).size or 0

    @workflow(name="verify_nested_number")
    async def flow(run: Run) -> Any:
        return [await counts(), await run.ask("ok?", about="it")]

    await begin(layer, flow)
    (Here.folder / "in.txt").unlink()
    assert await finish(layer) == [2, "yes"]
    assert Here.ran == {"in": 1, "outer": 1}


async def test_a_file_is_looked_at_when_its_record_is_asked_for(layer: TestLayer) -> None:
    """Two records name one file: the step that made it makes it again, so the other's holds when its turn comes."""

    @step
    async def stamped(of: Reference) -> dict[str, Reference]:
        Here.ran["stamped"] += 1
        return {"same": of}

    @workflow(name="verify_twice_named")
    async def flow(run: Run) -> Any:
        return [(await stamped(await report("x")))["same"].size, await run.ask("ok?", about="it")]

    await begin(layer, flow)
    (Here.folder / "x.txt").unlink()
    assert await finish(layer) == [1, "yes"]
    assert Here.ran == {"x": 2, "stamped": 1}


async def test_a_receipt_that_names_a_file_is_not_done_again(layer: TestLayer) -> None:
    """A write is done once. That what its receipt names is gone is noted."""

    @step(effect="write", key="name")
    async def deliver(name: str) -> Reference:
        return Reference.of(make(name))

    @workflow(name="verify_receipt")
    async def flow(run: Run) -> Any:
        return [(await deliver("x")).size, await run.ask("ok?", about="it")]

    await begin(layer, flow)
    (Here.folder / "x.txt").unlink()
    assert await finish(layer) == [1, "yes"]
    assert Here.ran == {"x": 1}
    assert Here.notes == ["deliver was done, and its file made/x.txt is gone. Nothing is done again."]


async def test_a_large_result_that_is_gone_says_so(tmp_path: Path) -> None:
    """Its text was lost where large results are kept: the step runs again, and the record says why."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        await begin(layer, damaged, size=100_000)
        databases.execute(tmp_path, "UPDATE artifact SET body = 'nonsense'")
        await layer.answer_next("yes")
        assert kinds(await layer.resume("r")) == ["ask"]
        assert Here.ran == {"large": 2}
        made = [r for r in whys(layer, "large") if r is not None]
    assert made == [f"ran again: {verifying.LOST}"]


async def test_a_large_result_is_looked_at_for_references_too(layer: TestLayer) -> None:
    """A result that is kept apart from its record may name a file, too."""

    @step
    async def large() -> dict[str, Any]:
        made = Reference.of(make("x"))
        told = {"url": made.url, "hash": made.hash, "size": made.size, "etag": None, "modified": None}
        return {"text": "x" * 100_000, "file": told}

    @workflow(name="verify_large_reference")
    async def flow(run: Run) -> Any:
        return [len((await large())["text"]), await run.ask("ok?", about="it")]

    await begin(layer, flow)
    (Here.folder / "x.txt").unlink()
    assert await finish(layer) == [100_000, "yes"]
    assert Here.ran == {"x": 2}


# -- when it is looked --------------------------------------------------------------------------------------------------------


async def test_whoever_only_takes_a_run_over_looks_at_nothing(layer: TestLayer) -> None:
    """A takeover, and a wake within ten minutes, replay: the record answers."""
    await begin(layer)
    (Here.folder / "may.txt").unlink()
    await layer.answer_next("yes")
    assert (await layer.run(monthly(), client="acme", run_id="r")).result() == ["3 bytes", "sent may", "yes"]
    assert Here.ran == {"may": 1, "summary": 1, "send": 1}


async def test_a_wake_after_a_long_wait_looks(layer: TestLayer) -> None:
    """After more than ten minutes the world may have moved."""
    await begin(layer)
    (Here.folder / "may.txt").unlink()
    layer.clock.advance(11 * 60)
    await layer.answer_next("yes")
    assert (await layer.run(monthly(), client="acme", run_id="r")).result() == ["3 bytes", "sent may", "yes"]
    assert Here.ran["may"] == 2


async def test_what_was_set_aside_stays_so_over_a_short_wait(layer: TestLayer) -> None:
    """The step that is to make it again fails and asks; the answer comes at once: the old record does not answer instead."""
    await begin(layer)
    (Here.folder / "may.txt").unlink()
    Here.failing.add("may")
    assert "failure" in kinds(await layer.resume("r"))
    Here.failing.clear()
    question = next(q for q in await layer.questions() if q.kind == "failure")
    await layer.answer(question.id, "again", by="ann")
    outcome = await layer.run(monthly(), client="acme", run_id="r")
    assert kinds(outcome) == ["ask"]
    assert (Here.folder / "may.txt").read_text() == "may"
    assert Here.ran == {"may": 3, "summary": 1, "send": 1}
    assert await finish(layer) == ["3 bytes", "sent may", "yes"]
    assert Here.ran == {"may": 3, "summary": 1, "send": 1}


async def test_what_was_put_back_holds_again(layer: TestLayer) -> None:
    """The file was restored from a backup meanwhile: the next recovery reuses the record, and nobody has to answer."""
    await begin(layer)
    (Here.folder / "may.txt").unlink()
    Here.failing.add("may")
    assert "failure" in kinds(await layer.resume("r"))
    (Here.folder / "may.txt").write_text("may")
    outcome = await layer.resume("r")
    assert "ask" in kinds(outcome)
    question = next(q for q in await layer.questions() if q.kind == "ask")
    await layer.answer(question.id, "yes", by="ann")
    assert (await layer.resume("r")).result() == ["3 bytes", "sent may", "yes"]
    assert Here.ran == {"may": 2, "summary": 1, "send": 1}
    assert await layer.questions() == []


async def test_tries_from_before_do_not_count_against_the_new_ones(layer: TestLayer) -> None:
    """It had failed and been answered by hand; the file that was given is gone: the step is tried, and its old answer is over."""
    Here.failing.add("may")
    outcome = await layer.run(monthly(), client="acme", run_id="r")
    given = Here.folder / "given.txt"
    given.write_text("by hand")
    by_hand = {"url": str(given), "hash": None, "size": 7, "etag": None, "modified": None}
    await layer.answer(the_question(outcome).id, {"choice": "value", "value": by_hand}, by="ann")
    outcome = await layer.resume("r")
    assert kinds(outcome) == ["ask"]
    given.unlink()
    Here.failing.clear()
    assert await finish(layer) == ["3 bytes", "sent may", "yes"]
    assert Here.ran == {"may": 2, "summary": 2, "send": 1}


async def _reported() -> Reference:
    return await report("x")


async def test_one_look_answers_all_tasks_that_ask(layer: TestLayer, monkeypatch: Any) -> None:
    """Two tasks make the same call: it is looked once, and made again once."""
    looks = Counter[str]()
    bare = references.look

    def counting(kept: Any, since_us: int) -> Any:
        looks[kept.url] += 1
        return bare(kept, since_us)

    monkeypatch.setattr(references, "look", counting)

    @workflow(name="verify_shared")
    async def flow(run: Run) -> Any:
        made = await asyncio.gather(*(_reported() for _ in range(5)))
        return [len({m.url for m in made}), await run.ask("ok?", about="it")]

    await begin(layer, flow)
    assert await finish(layer) == [1, "yes"]
    assert (list(looks.values()), Here.ran["x"]) == ([1], 1)


async def test_two_tasks_make_what_is_gone_once(layer: TestLayer) -> None:
    """While one looks and makes it again, the others wait for the same record."""

    @workflow(name="verify_shared_gone")
    async def flow(run: Run) -> Any:
        made = await asyncio.gather(*(_reported() for _ in range(5)))
        return [len({m.url for m in made}), await run.ask("ok?", about="it")]

    await begin(layer, flow)
    (Here.folder / "x.txt").unlink()
    assert await finish(layer) == [1, "yes"]
    assert Here.ran["x"] == 2


# -- .verify ----------------------------------------------------------------------------------------------------------------


@step(timeout=1)
async def rate(pair: str, *, source: str = "ecb") -> float:
    """Another one each time."""
    Here.ran["rate"] += 1
    return 1.1 if Here.ran["rate"] == 1 else 1.2


@rate.verify
async def still(result: float, source: str) -> Any:
    """Says what it is told to."""
    Here.got.append((result, source))
    if isinstance(Here.says, BaseException):
        raise Here.says
    if Here.says == "slow":
        await asyncio.Event().wait()
    return Here.says


@step
async def offer(at: float) -> str:
    """Takes the rate."""
    Here.ran["offer"] += 1
    return f"{at}"


@workflow(name="verify_rate")
async def rated(run: Run) -> list[str]:
    """Both, then a person."""
    return [await offer(await rate("EURUSD")), await run.ask("ok?", about="it")]


@pytest.mark.parametrize("says", [True, None, 0, [], {}])
async def test_whatever_is_no_no_holds(layer: TestLayer, says: Any) -> None:
    """True, nothing at all, any other value: the result holds."""
    Here.says = says
    await begin(layer, rated)
    assert Here.got == []
    assert await finish(layer) == ["1.1", "yes"]
    assert (Here.got, Here.ran["rate"], Here.notes) == ([(1.1, "ecb")], 1, [])


@pytest.mark.parametrize(
    "says,why",
    [
        (False, "verify said that its result no longer holds"),
        ("it is a week old", "verify said: it is a week old"),
        ("", "verify said that its result no longer holds"),
    ],
)
async def test_a_no_makes_the_step_run_and_what_depends_on_it(layer: TestLayer, says: Any, why: str) -> None:
    """False, or why not as a text: the step runs again, what took its result too if that is another one."""
    Here.says = says
    await begin(layer, rated)
    assert await finish(layer) == ["1.2", "yes"]
    assert (Here.ran["rate"], Here.ran["offer"], len(Here.got)) == (2, 2, 1)
    assert whys(layer, "rate")[1] == f"ran again and gave another result: {why}"


@pytest.mark.parametrize("says,reason", [(ValueError("no luck"), "ValueError: no luck"), ("slow", "no answer within 1 s")])
async def test_a_look_that_fails_says_nothing(layer: TestLayer, says: Any, reason: str) -> None:
    """It raises, or takes longer than the step's time: the result is kept, and that is noted."""
    Here.says = says
    await begin(layer, rated)
    assert await finish(layer) == ["1.1", "yes"]
    assert Here.ran["rate"] == 1
    assert Here.notes == [f"rate: could not look whether its result still holds ({reason}). What is on record is kept."]


async def test_a_no_makes_the_calls_inside_the_step_run_too(layer: TestLayer) -> None:
    """Else it would be put together again from the same records. A write in it is not done again."""

    @step
    async def read_page() -> str:
        Here.ran["page"] += 1
        return f"page {Here.ran['page']}"

    @step
    async def digest() -> str:
        await send("digest")
        return await read_page()

    @digest.verify
    def fresh(text: str) -> bool:
        Here.got.append(text)
        return text != "page 1"

    @workflow(name="verify_inner")
    async def flow(run: Run) -> Any:
        return [await digest(), await run.ask("ok?", about="it")]

    await begin(layer, flow)
    assert await finish(layer) == ["page 2", "yes"]
    assert Here.ran == {"page": 2, "send": 1}
    assert Here.got == ["page 1"]


async def test_what_the_look_does_to_the_result_does_not_reach_the_run(layer: TestLayer) -> None:
    """It gets a result of its own. A step that it calls just runs and is not on record, and there is an attempt() in it."""

    @step
    async def numbers() -> list[int]:
        return [1]

    @numbers.verify
    async def look(result: list[int]) -> bool:
        result.clear()
        Here.got.append((attempt().number, (await report("look")).size))
        return True

    @workflow(name="verify_apart")
    async def flow(run: Run) -> Any:
        return [await numbers(), await run.ask("ok?", about="it")]

    await begin(layer, flow)
    assert await finish(layer) == [[1], "yes"]
    assert Here.got == [(1, 4)]
    assert whys(layer, "report") == []


async def test_a_verify_takes_what_is_known_by_name() -> None:
    """The step's parameters, also ignored ones, ``result``, and the result under one name of its own. Else: refused at once."""

    @step(ignore=("session",))
    async def pull(client_id: str, session: Any = None) -> str:
        return client_id

    pull.verify(lambda: True)
    pull.verify(lambda result, session: True)
    pull.verify(lambda found, client_id: True)
    pull.verify(lambda found, patience=3: True)
    with pytest.raises(TypeError, match="the verify of step 'pull' takes 'a', 'b', which is not known then"):
        pull.verify(lambda a, b: True)
    with pytest.raises(TypeError, match="each parameter needs one"):
        pull.verify(lambda *found: True)


async def test_what_writes_has_a_probe_and_no_verify() -> None:
    """A write is done once: its .probe looks."""
    with pytest.raises(TypeError, match=r"is for its \.probe to say"):
        send.verify(lambda result: True)


# -- crashes --------------------------------------------------------------------------------------------------------------------


async def _resumed(layer: Layer) -> Any:
    for question in await layer.questions():
        await layer.answer(question.id, "yes", by="ann")
    return await layer.resume("r")


def _prepared(state: Path) -> None:
    Here.ran.clear()
    Here.text.clear()
    living(state, lambda layer: layer.run(monthly(), client="acme", run_id="r"))
    (Here.folder / "may.txt").unlink()
    Here.text["may"] = "other"


def test_a_crash_anywhere_changes_nothing(tmp_path: Path) -> None:
    """Whatever write the process dies at: the next recovery ends the same way, and the write that was done is done once."""

    async def again(layer: Layer) -> Outcome[Any]:
        open_ones = await layer.questions()
        for question in open_ones:
            await layer.answer(question.id, "yes", by="ann")
        return await layer.resume("r")

    for state in every_death(tmp_path, _resumed, _prepared):
        assert living(state, again).result() == ["5 bytes", "sent may", "yes"]
        assert Here.ran["send"] == 1
        assert 2 <= Here.ran["may"] <= 3
        (again_row,) = (r for r in tools.records(state, "r") if r["name"] == "report" and r["generation"] == 2)
        assert again_row["why"].startswith("ran again and gave another result: its file made/may.txt ")


def test_a_recovery_that_broke_off_is_gone_on_with(tmp_path: Path) -> None:
    """The process died in it: whoever takes the run over goes on looking. Where none had begun, the records answer."""

    async def taken_over(layer: Layer) -> Outcome[Any]:
        return await layer.run(monthly(), client="acme", run_id="r")

    seen = set()
    for state in every_death(tmp_path, _resumed, _prepared):
        begun = len(tools.rows(state, "SELECT id FROM recovery"))
        outcome = living(state, taken_over)
        if outcome.status == "done":  # else it died before the answer was kept
            seen.add((begun, outcome.result()[0]))
        assert Here.ran["send"] == 1
    assert seen == {(0, "3 bytes"), (1, "5 bytes")}


# -- large results that were damaged ----------------------------------------------------------------------------------------


@step
async def large(size: int) -> str:
    """Kept apart from its record."""
    Here.ran["large"] += 1
    return "x" * size


@workflow(name="verify_damaged")
async def damaged(run: Run, size: int) -> Any:
    """Makes it, then a person, twice."""
    return [len(await large(size)), await run.ask("ok?", about="it"), await run.ask("sure?", about="it")]


@pytest.mark.parametrize("size,content", [(6_000, "nonsense"), (100_000, "nonsense"), (100_000, "\udcff\udcfe")])
async def test_a_large_result_that_was_damaged_is_made_again_once(tmp_path: Path, size: int, content: str) -> None:
    """It is not what was put there: the step runs, and its result takes the damaged one's place. The next recovery reuses it."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        await begin(layer, damaged, size=size)
        files = [f for f in tmp_path.rglob("*.artifacts/*/*") if f.is_file()]
        for file in files:
            file.write_bytes(content.encode("utf-8", "surrogateescape"))
        if not files:  # it is in the table
            databases.execute(tmp_path, "UPDATE artifact SET body = ?", "nonsense")
        await layer.answer_next("yes")
        assert kinds(await layer.resume("r")) == ["ask"]
        assert Here.ran["large"] == 2
        await layer.answer_next("yes")
        assert (await layer.resume("r")).result() == [size, "yes", "yes"]
        assert Here.ran["large"] == 2


# -- with everything else ---------------------------------------------------------------------------------------------------


async def test_the_plan_says_it_first_and_changes_nothing(tmp_path: Path) -> None:
    """Looking: the step is planned to run, with the reason; nothing is written, nothing is made."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        await begin(layer)
        (Here.folder / "may.txt").unlink()
        before = tools.records(tmp_path, "r")
        plan = await layer.plan("r")
        planned = [(s.step, s.do.value, s.why) for s in plan.steps if s.step == "report"]
        assert planned == [("report", "run", "its file made/may.txt is gone")]
        assert (tools.records(tmp_path, "r"), Here.ran["may"]) == (before, 1)
        assert not (Here.folder / "may.txt").exists()


async def test_what_could_not_be_looked_at_stands_in_the_recovery(tmp_path: Path) -> None:
    """Its row keeps the notes."""
    Here.says = ValueError("no luck")
    async with testing.layer(databases.url(tmp_path)) as layer:
        await begin(layer, rated)
        await finish(layer)
    (row,) = tools.rows(tmp_path, "SELECT result FROM recovery")
    note = "rate: could not look whether its result still holds (ValueError: no luck). What is on record is kept."
    assert json.loads(row["result"])["notes"] == [note]


async def test_a_turn_that_no_longer_holds_is_asked_again(layer: TestLayer) -> None:
    """With match="order": the same answer moves nothing, another one makes the later turns run."""

    @step(match="order")
    async def turn(said: list[str]) -> str:
        Here.ran[f"turn {len(said)}"] += 1
        return Here.text.get("turn", "a") if not said else f"after {said[-1]}"

    @turn.verify
    async def holds(result: str, said: list[str]) -> bool:
        return bool(said) or Here.says is True

    @workflow(name="verify_turns")
    async def flow(run: Run) -> Any:
        said: list[str] = []
        for _ in range(3):
            said.append(await turn(list(said)))
        return [said, await run.ask("ok?", about="it")]

    await begin(layer, flow)
    Here.says = False
    assert kinds(await layer.resume("r")) == ["ask"]
    assert Here.ran == {"turn 0": 2, "turn 1": 1, "turn 2": 1}
    Here.text["turn"] = "b"
    assert await finish(layer) == [["b", "after b", "after after b"], "yes"]
    assert Here.ran == {"turn 0": 3, "turn 1": 2, "turn 2": 2}


async def test_a_renamed_step_is_looked_at_under_its_old_name(layer: TestLayer) -> None:
    """Its records answer, and are set aside, under the name they were made under."""

    @step
    async def old_name() -> Reference:
        return Reference.of(make("x"))

    @workflow(name="verify_renamed")
    async def first(run: Run) -> Any:
        return [(await old_name()).size, await run.ask("ok?", about="it")]

    await begin(layer, first)

    @step(renamed_from="old_name")
    async def new_name() -> Reference:
        return Reference.of(make("x"))

    @workflow(name="verify_renamed")
    async def second(run: Run) -> Any:
        return [(await new_name()).size, await run.ask("ok?", about="it")]

    assert second.name == first.name
    (Here.folder / "x.txt").unlink()
    assert await finish(layer) == [1, "yes"]
    assert Here.ran == {"x": 2}


async def test_a_fork_goes_on_with_what_was_set_aside(layer: TestLayer) -> None:
    """It has the records, and tries of its own: a failure of its own is counted and asked about."""

    @step
    async def late() -> int:
        return 1

    async def other() -> None:
        if Here.failing:
            while Here.ran["may"] < 2:  # so that it comes after the record was set aside
                await asyncio.sleep(0.001)
            await late()

    @workflow(name="verify_forked")
    async def flow(run: Run) -> Any:
        made, _ = await asyncio.gather(report("may"), other())
        return [made.size, await run.ask("ok?", about="it")]

    await begin(layer, flow)
    (Here.folder / "may.txt").unlink()
    Here.failing.add("may")
    assert "failure" in kinds(await layer.resume("r"))
    forked = await layer.fork("r", from_step="late")
    outcome = await layer.run(flow(), client="acme", run_id=forked.run_id)
    assert "failure" in kinds(outcome)
    assert Here.ran["may"] == 3
    Here.failing.clear()
    await layer.answer(next(q for q in outcome.questions if q.kind == "failure").id, "again", by="ann")
    assert kinds(await layer.run(flow(), client="acme", run_id=forked.run_id)) == ["ask"]
    assert Here.ran["may"] == 4


async def test_an_answer_counts_however_often_the_same_was_made_again_before_it(layer: TestLayer) -> None:
    """A step whose ``.verify`` says no at every recovery runs each time; while it gives the same, nobody is asked again."""

    @step(name="verify_never")
    async def never(n: int) -> int:
        Here.ran["never"] += 1
        return n

    @never.verify
    async def no(result: int) -> bool:
        return False

    @workflow(name="verify_thrice")
    async def flow(run: Run) -> list[str]:
        await never(1)
        return [await run.ask(text) for text in ("one?", "two?", "three?")]

    await layer.run(flow(), client="acme", run_id="r")
    for _ in range(3):
        outcome = await finish_one(layer)
    assert (outcome.status, outcome.value) == ("done", ["yes", "yes", "yes"])
    assert Here.ran["never"] == 4


async def finish_one(layer: TestLayer) -> Outcome[Any]:
    """Answer one question, resume."""
    await layer.answer_next("yes")
    return await layer.resume("r")


def test_what_is_written_down_of_a_record_that_was_set_aside_stays_as_it_is() -> None:
    """Its names stand in databases for ever; what a later version adds is passed over."""
    names = {"branch", "name", "key", "generation", "seq", "why", "within", "tries", "run_no"}
    assert (verifying.ASIDE, set(verifying.Aside.__slots__)) == ("run.aside", names)
    told = {"branch": "", "name": "a", "key": "k", "generation": 1, "seq": 3, "why": "gone", "later": 7}
    made = Record(id=9, branch="", name="run.aside", key="x", generation=1, state="done", result=json.dumps(told))
    (aside,) = verifying.asides({("", "run.aside", "x"): made}).values()
    assert (aside.name, aside.seq, aside.within, aside.tries) == ("a", 3, None, 0)
