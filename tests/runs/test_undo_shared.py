"""What one run did and another stands on: nothing of it is taken back that the question did not tell of.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stepseven import Fatal, Fixable, Layer, Question, Run, StepFailed, step, workflow
from stepseven.model import QuestionKind, RunStatus
from tests.runs.deaths import every_death, living
from tests.runs.tools import rows, url
from tests.runs.worldly import layers, the_question


class Outside:
    """What is there, and what happened to it. Recognises no keys."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.there: dict[str, str] = {}
        self.hidden = False

    def reset(self) -> None:
        """As it was before everything."""
        self.__init__()  # type: ignore[misc]


OUT = Outside()


@pytest.fixture(autouse=True)
def _anew() -> None:
    OUT.reset()


@step(effect="write", key="k")
async def first(k: str) -> str:
    """Goes well."""
    OUT.log.append(f"first {k}")
    return f"F-{k}"


@first.probe
async def find_first(k: str) -> str | None:
    """Look."""
    return f"F-{k}" if f"first {k}" in OUT.log else None


@first.undo
async def not_first(receipt: str) -> None:
    """Take it back."""
    OUT.log.append(f"undo {receipt}")


@step(effect="write", key="k", scope="client", attempts=1)
async def shared(k: str, note: str) -> str:
    """Happens, and nobody hears of it."""
    OUT.log.append(f"shared {k}")
    OUT.there[k] = f"S-{k}"
    raise TimeoutError(note)


@shared.probe
async def find_shared(k: str, note: str) -> str | None:
    """Look, if anything can be seen."""
    if OUT.hidden:
        raise RuntimeError("down")
    return OUT.there.get(k)


@shared.undo
async def not_shared(receipt: str) -> None:
    """Take it back."""
    OUT.log.append(f"undo {receipt}")


@workflow
async def leaves(run: Run) -> str:
    """Ends with a claim that nobody knows the end of."""
    await first("a")
    return await shared("a", "from the first run")


@workflow
async def goes_on(run: Run, fails: bool = False) -> str:
    """Wants the same, in other words."""
    found = await shared("a", "from the second run")
    again = await shared("a", "from the second run")
    if fails:
        raise Fatal("no")
    return found + again


async def left_behind(layer: Layer) -> None:
    """A run that was stopped with a claim in doubt, and the question it leaves."""
    OUT.hidden = True
    unknown = the_question(await layer.run(leaves(), client="acme", run_id="A"))
    await layer.answer(unknown.id, "stop", by="ann")
    asked = the_question(await layer.resume("A"))
    assert told(asked) == ["first"]
    assert "“shared”" in asked.text
    OUT.hidden = False


def told(question: Question) -> list[str]:
    """The steps whose effects a question lists."""
    return [stands["step"] for stands in question.context["stands"]]


async def undo_questions(layer: Layer) -> dict[str, Question]:
    """The open ones, by run."""
    return {q.run_id: q for q in await layer.questions() if q.kind is QuestionKind.UNDO}


# -- a claim that another run finds done ------------------------------------------------------------------------------------


async def test_what_another_run_found_done_is_not_taken_back_with_the_first_ones() -> None:
    """The claim belongs to who goes on from it: the first run's question says no word of it, and its undo leaves it standing."""
    async with layers() as layer:
        await left_behind(layer)
        assert (await layer.run(goes_on(), client="acme", run_id="B")).result() == "S-aS-a"
        asked = (await undo_questions(layer))["A"]
        assert told(asked) == ["first"]
        assert "“shared”" not in asked.text
        await layer.answer(asked.id, "undo", by="ann")
        assert (await layer.resume("A-undo")).result() == {"taken_back": 1, "left": 0}
    assert OUT.log == ["first a", "shared a", "undo F-a"]


async def test_what_was_found_done_is_offered_where_it_was_found() -> None:
    """The run that found it ends badly, too: it offers it, once."""
    async with layers() as layer:
        await left_behind(layer)
        await layer.run(goes_on(fails=True), client="acme", run_id="B")
        assert {run: told(q) for run, q in (await undo_questions(layer)).items()} == {"A": ["first"], "B": ["shared"]}
        for asked in (await undo_questions(layer)).values():
            await layer.answer(asked.id, "undo", by="ann")
        assert [(await layer.resume(f"{r}-undo")).result()["taken_back"] for r in "AB"] == [1, 1]
    assert OUT.log == ["first a", "shared a", "undo F-a", "undo S-a"]


async def test_a_person_who_says_that_it_happened_says_it_for_the_run_that_asked() -> None:
    """Found by a person and not by the probe: the same."""
    async with layers() as layer:
        await left_behind(layer)
        OUT.hidden = True
        unknown = the_question(await layer.run(goes_on(), client="acme", run_id="B"))
        await layer.answer(unknown.id, {"choice": "happened", "receipt": "S-a"}, by="ann")
        assert (await layer.resume("B")).status is RunStatus.DONE
        await layer.answer((await undo_questions(layer))["A"].id, "undo", by="ann")
        assert (await layer.resume("A-undo")).result() == {"taken_back": 1, "left": 0}
    assert OUT.log == ["first a", "shared a", "undo F-a"]


async def test_a_receipt_that_could_not_be_kept_is_the_finders_all_the_same() -> None:
    """What the person gives does not fit: it happened, and the run that asks for the value goes on from it after a restart."""
    async with layers() as layer:
        await left_behind(layer)
        OUT.hidden = True
        unknown = the_question(await layer.run(goes_on(), client="acme", run_id="B"))
        await layer.store.write(  # as an older version of the step may have allowed
            lambda tx: tx.run(
                tx.sql.answer_question,
                {"id": unknown.id, "answer": '{"choice": "happened", "receipt": {"no": 1}}', "by": "ann", "note": None, "now": 1},
            ),
            durable=True,
            client=None,
        )
        missing = the_question(await layer.resume("B"))
        assert missing.kind is QuestionKind.REQUIRED
        await layer.answer(missing.id, "S-a", by="ann")
        assert (await layer.resume("B")).result() == "S-aS-a"
        assert told((await undo_questions(layer))["A"]) == ["first"]


@pytest.mark.sqlite("it copies the file")
def test_a_death_at_any_write_of_the_finder_changes_nothing(tmp_path: Path) -> None:
    """It dies anywhere while it finds out: the claim is found once, has one owner in the end, and is not sent again."""

    def prepare(state: Path) -> None:
        shutil.copytree(left, state, dirs_exist_ok=True)
        OUT.log, OUT.there = ["first a", "shared a"], {"a": "S-a"}

    async def before(layer: Layer) -> bool:
        async with layer:
            await left_behind(layer)
        return True

    async def use(layer: Layer) -> Any:
        return await layer.run(goes_on(), client="acme", run_id="B", wait=30)

    async def to_the_end(layer: Layer) -> tuple[str, Any]:
        async with layer:
            found = (await layer.run(goes_on(), client="acme", run_id="B", wait=30)).result()
            asked = (await undo_questions(layer))["A"]
            assert told(asked) == ["first"]
            await layer.answer(asked.id, "undo", by="ann")
            return found, (await layer.resume("A-undo")).result()

    left, deaths = tmp_path / "left", 0
    left.mkdir()
    living(left, before)
    for state in every_death(tmp_path, use, prepare):
        deaths += 1
        assert living(state, to_the_end) == ("S-aS-a", {"taken_back": 1, "left": 0})
        assert OUT.log == ["first a", "shared a", "undo F-a"]
        owners = rows(state, "SELECT r.id FROM effect AS e JOIN run AS r ON r.no = e.run_no WHERE e.name = 'shared'")
        assert owners == [{"id": "B"}]
    assert deaths > 3


# -- forks --------------------------------------------------------------------------------------------------------------------


@step
async def price(x: int) -> int:
    """Too low is fatal."""
    if x == 1:
        raise Fatal("too low")
    return x


@workflow(name="shared.offer")  # other tests of this process have an `offer`, too
async def offer(run: Run, x: int = 1) -> str:
    """Does one thing, and then it may fail."""
    made = await first("a")
    await price(x)
    if x == 3:
        await run.ask("go on?")
    return made


async def test_a_fork_that_stands_on_it_is_named() -> None:
    """A run that was forked from the failed one shares its receipts: the question says so by the fork's id, once there is one."""
    async with layers() as layer:
        await layer.run(offer(), client="acme", run_id="A")
        assert "share" not in (await undo_questions(layer))["A"].text
        fork = (await layer.fork("A", from_step="first", inputs={"x": 2})).run_id
        asked = (await undo_questions(layer))["A"]
        assert f"Run {fork} shares what stands and may build on it." in asked.text
        assert asked.context["builders"] == [fork]
        assert (await layer.resume(fork)).status is RunStatus.DONE
        await layer.answer(asked.id, "undo", by="ann")
        assert (await layer.resume("A-undo")).result() == {"taken_back": 1, "left": 0}


async def test_a_fork_that_ended_badly_is_named_no_more() -> None:
    """It needs nothing any more; what it did itself is in its own question, which names the root if that lives."""
    async with layers() as layer:
        await layer.run(offer(), client="acme", run_id="A")
        fork = (await layer.fork("A", from_step="first", inputs={"x": 1})).run_id
        other = (await layer.fork("A", from_step="first", inputs={"x": 3})).run_id
        assert (await undo_questions(layer))["A"].context["builders"] == [fork, other]
        assert (await layer.resume(fork)).status is RunStatus.FAILED
        assert (await undo_questions(layer))["A"].context["builders"] == [other]
        await layer.resume(other)
        await layer.cancel(other, reason="no")
        assert (await undo_questions(layer))["A"].context["builders"] == []


async def test_what_ended_before_it_was_done_does_not_build_on_it() -> None:
    """A root that was done before its fork did something is not named by the fork's question."""

    @workflow("more")
    async def more(run: Run, extra: str | None = None) -> str:
        made = await first("a")
        if extra is not None:
            await first(extra)
            raise Fatal("no")
        return made

    async with layers() as layer:
        (await layer.run(more(), client="acme", run_id="A")).result()
        layer.clock.advance(1)
        fork = (await layer.fork("A", from_step="first", inputs={"extra": "b"})).run_id
        await layer.resume(fork)
        [asked] = (await undo_questions(layer)).values()
        assert (asked.run_id, told(asked), asked.context["builders"]) == (fork, ["first"], [])


# -- children -----------------------------------------------------------------------------------------------------------------


@workflow
async def leaf(run: Run, k: str) -> str:
    """One write."""
    return await first(k)


@workflow
async def branch(run: Run, k: str, good: bool = True) -> str:
    """One write, and a run below it."""
    below = await run.start(leaf(k=f"{k}-leaf"))
    mine = await first(k)
    if not good:
        raise Fatal("branch broke")
    return f"{mine} {below}"


@workflow
async def tree(run: Run, good: bool = True) -> str:
    """Two branches, and a bad end."""
    await run.start(branch(k="one"))
    await first("tree")
    try:
        await run.start(branch(k="two", good=good))
    except StepFailed:
        await first("after")
    raise Fatal("the tree fell")


async def test_a_failed_parent_offers_what_its_children_did(tmp_path: Path) -> None:
    """All that is done below it is in its one question, each with the run that did it, and the newest is taken back first."""
    async with Layer(url(tmp_path)) as layer:
        assert (await layer.run(tree(), client="acme", run_id="T")).status is RunStatus.FAILED
        [asked] = await layer.questions()
        runs = [(s["arguments"]["k"], s["run"]) for s in asked.context["stands"]]
        assert asked.run_id == "T"
        assert [k for k, _ in runs] == ["two", "two-leaf", "tree", "one", "one-leaf"]
        children = dict(runs)
        assert children["tree"] is None
        assert all(str(run).startswith("T.") for k, run in runs if k != "tree")
        assert f"in run {children['two']}" in asked.text
        await layer.answer(asked.id, "undo", by="ann")
        assert "T-undo" in await layer.why("T")
        assert (await layer.resume("T-undo")).result() == {"taken_back": 5, "left": 0}
        assert "5 things it did were taken back" in await layer.why("T")
        assert "2 things" not in await layer.why(children["one"])
        assert not await layer.questions()
    assert OUT.log[5:] == ["undo F-two", "undo F-two-leaf", "undo F-tree", "undo F-one", "undo F-one-leaf"]


async def test_a_child_that_ended_badly_offers_its_own(tmp_path: Path) -> None:
    """It has asked already, about what is below it, too: its parent's question does not list that a second time."""
    async with Layer(url(tmp_path)) as layer:
        await layer.run(tree(good=False), client="acme", run_id="T")
        by_run = {run: [s["arguments"]["k"] for s in q.context["stands"]] for run, q in (await undo_questions(layer)).items()}
        mine = by_run.pop("T")
        assert mine == ["after", "tree", "one", "one-leaf"]
        assert list(by_run.values()) == [["two", "two-leaf"]]


async def test_a_child_whose_parent_is_done_is_not_offered() -> None:
    """What was wanted stays: only a bad end asks."""

    @workflow("well")
    async def well(run: Run) -> str:
        return await run.start(branch(k="one"))

    async with layers() as layer:
        (await layer.run(well(), client="acme", run_id="W")).result()
        assert not await layer.questions()


async def test_a_cancelled_parent_offers_what_its_children_did() -> None:
    """Ended without any code loaded: the question knows of the children from the store alone."""

    @workflow("asking")
    async def asking(run: Run) -> str:
        await run.start(leaf(k="one"))
        return str(await run.ask("go on?"))

    async with layers() as layer:
        await layer.run(asking(), client="acme", run_id="P")
        await layer.cancel("P", reason="no")
        [asked] = await layer.questions()
        assert (asked.run_id, told(asked)) == ("P", ["first"])


async def test_a_child_started_anew_hands_on_what_is_below_its_first_start() -> None:
    """Its first start failed above a run that was done: the second start uses that receipt, and answers for it."""

    @workflow("twice")
    async def twice(run: Run) -> str:
        await run.start(leaf(k="deep"))
        return str(await run.ask("Right?"))

    @workflow("above")
    async def above(run: Run) -> str:
        raise Fatal(await run.start(twice()))

    async with layers() as layer:
        asked = the_question(await layer.run(above(), client="acme", run_id="P"))
        await layer.cancel(asked.run_id, reason="wrong")
        assert list(await undo_questions(layer)) == [asked.run_id], "of the first start, and the run below it"
        await layer.resume("P")
        body = next(q for q in await layer.questions() if q.run_id == "P")
        await layer.answer(body.id, "again", by="ann")
        anew = the_question(await layer.resume("P"))
        assert not await undo_questions(layer)
        await layer.answer(anew.id, "too late", by="ann")
        assert (await layer.resume("P")).status is RunStatus.FAILED
        by_run = {run: [s["arguments"]["k"] for s in q.context["stands"]] for run, q in (await undo_questions(layer)).items()}
        assert by_run == {"P": ["deep"]}
        assert OUT.log == ["first deep"]
        await layer.answer((await undo_questions(layer))["P"].id, "undo", by="ann")
        assert (await layer.resume("P-undo")).result() == {"taken_back": 1, "left": 0}
    assert OUT.log == ["first deep", "undo F-deep"]


def test_a_death_at_any_write_offers_all_the_same(tmp_path: Path) -> None:
    """The parent's process dies anywhere: its one question is there with its children's effects, or the run goes on to it."""

    @workflow("small")
    async def small(run: Run) -> str:
        await run.start(leaf(k="one"))
        await first("two")
        raise Fatal("no")

    async def use(layer: Layer) -> Any:
        return await layer.run(small(), client="acme", run_id="P", wait=30)

    async def to_the_end(layer: Layer) -> Any:
        async with layer:
            assert (await layer.run(small(), client="acme", run_id="P", wait=30)).status is RunStatus.FAILED
            [asked] = await layer.questions()
            assert [s["arguments"]["k"] for s in asked.context["stands"]] == ["two", "one"]
            await layer.answer(asked.id, "undo", by="ann")
            return (await layer.resume("P-undo")).result()

    deaths = 0
    for state in every_death(tmp_path, use, lambda _: OUT.reset()):
        deaths += 1
        assert living(state, to_the_end) == {"taken_back": 2, "left": 0}
        assert OUT.log == ["first one", "first two", "undo F-two", "undo F-one"]
    assert deaths > 8


# -- what was not kept --------------------------------------------------------------------------------------------------------

KEY = "sk-proj-" + "aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW"


async def test_an_undo_is_never_called_with_a_mask() -> None:
    """A credential in an argument was not kept: the undo that takes it asks a person, and nothing counts as taken back."""

    @step(effect="write", key="k", secrets="mask")
    async def make(k: str, token: str) -> str:
        return "D1"

    @make.undo
    async def unmake(token: str, receipt: str) -> None:
        OUT.log.append(f"undo {receipt} with {token}")

    @workflow("masked")
    async def masked(run: Run) -> str:
        await make("k", KEY)
        raise Fatal("no")

    async with layers() as layer:
        await layer.run(masked(), client="acme", run_id="A")
        await layer.answer_next("undo")
        asked = the_question(await layer.resume("A-undo"))
        assert (asked.kind, OUT.log) == (QuestionKind.FAILURE, [])
        assert "token" in asked.text
        assert "by hand" in asked.text
        await layer.answer(asked.id, {"choice": "by_hand", "receipt": None}, by="ann")
        assert (await layer.resume("A-undo")).result() == {"taken_back": 1, "left": 0}


@pytest.mark.parametrize("taken, called", [(True, False), (False, True)])
async def test_a_mask_counts_only_in_what_the_undo_takes(taken: bool, called: bool) -> None:
    """The receipt has a credential in it: an undo that takes it asks, one that does not is called."""

    @step(effect="write", key="k", secrets="mask")
    async def make(k: str) -> dict[str, str]:
        return {"id": "D1", "token": KEY}

    async def with_receipt(receipt: dict[str, str]) -> None:
        OUT.log.append("undo")

    async def without(k: str) -> None:
        OUT.log.append("undo")

    make.undo(with_receipt if taken else without)

    @workflow("masked_receipt")
    async def masked(run: Run) -> str:
        await make("k")
        raise Fatal("no")

    async with layers() as layer:
        await layer.run(masked(), client="acme", run_id="A")
        await layer.answer_next("undo")
        await layer.resume("A-undo")
        assert OUT.log == (["undo"] if called else [])


# -- what the question told of -----------------------------------------------------------------------------------------------


async def test_what_is_being_taken_back_is_not_offered_a_second_time() -> None:
    """While its undo is under way something else turns up: the new question lists only that."""
    async with layers() as layer:
        await left_behind(layer)
        await layer.answer((await undo_questions(layer))["A"].id, "undo", by="ann")
        effect = layer.store.read_now(lambda tx: next(e for e in tx.all(tx.sql.effects, {"run_no": 1}) if e["step"] == "shared"))

        def late(tx: Any) -> None:
            from stepseven.transitions import effects

            held = effects.look(tx, effect["claim_id"])
            assert held is not None
            effects.late_receipt(tx, held, '"S-a"', "q_late", 1)

        await layer.store.write(late, durable=True, client=None)
        assert told((await undo_questions(layer))["A"]) == ["shared"]
        await layer.answer((await undo_questions(layer))["A"].id, "undo", by="ann")
        assert [(await layer.resume(r)).result() for r in ("A-undo", "A-undo-2")] == [{"taken_back": 1, "left": 0}] * 2
    assert OUT.log == ["first a", "shared a", "undo F-a", "undo S-a"]


async def test_what_a_fork_finds_of_its_roots_is_told_to_the_root() -> None:
    """A fork with other values finds the claim of its root done: it stays the root's, whose question lists it from then on."""

    @step(effect="write", key="k", attempts=1)
    async def pay(k: str, usd: int) -> str:
        OUT.there[k] = f"S-{k}"
        raise TimeoutError("no answer")

    @pay.probe
    async def find_pay(k: str, usd: int) -> str | None:
        if OUT.hidden:
            raise RuntimeError("down")
        return OUT.there.get(k)

    @pay.undo
    async def not_pay(receipt: str) -> None:
        OUT.log.append(f"undo {receipt}")

    @workflow("pays")
    async def pays(run: Run, usd: int) -> str:
        await first("a")
        return await pay("p", usd)

    OUT.hidden = True
    async with layers() as layer:
        await layer.answer(the_question(await layer.run(pays(usd=1), client="acme", run_id="A")).id, "stop", by="ann")
        await layer.resume("A")
        OUT.hidden = False
        fork = (await layer.fork("A", from_step="first", inputs={"usd": 2})).run_id
        conflict = the_question(await layer.resume(fork))
        assert conflict.kind is QuestionKind.CONFLICT
        asked = (await undo_questions(layer))["A"]
        assert (told(asked), asked.context["builders"]) == (["pay", "first"], [fork])


async def test_a_deed_by_hand_settles_what_another_run_left() -> None:
    """A person did it by hand for one run, while another one's claim on it was left in doubt: it is the first one's then."""
    how: list[Exception] = [Fixable("not today"), TimeoutError("no answer")]

    @step(effect="write", key="k", scope="client", attempts=1)
    async def pay(k: str) -> str:
        raise how.pop(0)

    @pay.undo
    async def not_pay(receipt: str) -> None:
        OUT.log.append(f"undo {receipt}")

    @workflow("pays_first")
    async def pays(run: Run) -> str:
        await first("a")
        return await pay("p")

    async with layers() as layer:
        failed = the_question(await layer.run(pays(), client="acme", run_id="B"))
        unknown = the_question(await layer.run(pays(), client="acme", run_id="A"))
        assert (failed.kind, unknown.kind) == (QuestionKind.FAILURE, QuestionKind.UNKNOWN_OUTCOME)
        await layer.answer(unknown.id, "stop", by="ann")
        assert "“pay”" in the_question(await layer.resume("A")).text
        await layer.answer(failed.id, {"choice": "by_hand", "receipt": "by hand"}, by="ann")
        assert (await layer.resume("B")).result() == "by hand"
        asked = (await undo_questions(layer))["A"]
        assert (told(asked), "“pay”" in asked.text) == (["first"], False)
        assert not how, "it was sent once for each, and not again"
