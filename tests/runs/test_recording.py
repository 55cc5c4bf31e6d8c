"""What goes into a record comes out of it equal, first time and every time; what would not is refused where it is made.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel

from stepseven import Layer, NoRun, NotRecordable, Run, SecretFound, StepFailed, attempt, step, workflow
from tests.runs.tools import child, module, records, rows, url

KEY = "sk-ant-" + "a1b2c3d4e5f6g7h8i9j0" * 2


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    amount: Decimal
    day: date
    tags: list[str] = field(default_factory=list)


class Invoice(BaseModel):
    number: str
    lines: list[Line]
    when: datetime


class Row(TypedDict, total=False):
    name: str
    size: int


class Point(NamedTuple):
    x: int
    y: float


def made() -> dict[str, Any]:
    """One value of each kind that a step may return, by the name of its step."""
    line = Line(Decimal("1.50"), date(2026, 3, 14), ["a"])
    return {
        "dataclass": line,
        "model": Invoice(number="1", lines=[line], when=datetime(2026, 3, 14, 12, tzinfo=UTC)),
        "typed_dict": Row(name="n", size=1),
        "named_tuple": Point(1, 2.0),
        "enumeration": Colour.RED,
        "moment": datetime(2026, 3, 14, 1, 59, 26, 535897, tzinfo=UTC),
        "duration": timedelta(days=1, microseconds=1),
        "decimal": Decimal("0.10"),
        "raw": b"\x00\xff",
        "uuid": UUID(int=7),
        "nothing": None,
        "mapping": {"a": [1, 2.5, None, True, {"b": "ü 🎉"}]},
        "union": [Line(Decimal(1), date(2026, 1, 1)), None],
        "frozen": frozenset({1, 2}),
    }


async def give(kind: str) -> Any:
    """The value of that kind."""
    return made()[kind]


ANNOTATIONS: dict[str, Any] = {
    "dataclass": Line, "model": Invoice, "typed_dict": Row, "named_tuple": Point, "enumeration": Colour, "moment": datetime,
    "duration": timedelta, "decimal": Decimal, "raw": bytes, "uuid": UUID, "nothing": None, "mapping": dict[str, Any],
    "union": list[Line | None], "frozen": frozenset[int],
}  # fmt: skip


def typed(kind: str) -> Any:
    """A step that returns that kind, annotated as such."""

    async def fn() -> Any:
        return await give(kind)

    fn.__annotations__["return"] = ANNOTATIONS[kind]
    return step(name=f"recording.{kind}")(fn)


STEPS = {kind: typed(kind) for kind in ANNOTATIONS}


@workflow(name="recording.everything")
async def everything(run: Run) -> list[str]:
    """Every kind, each a step."""
    found = {kind: await STEPS[kind]() for kind in STEPS}
    assert found == made()
    assert {k: type(v) for k, v in found.items()} == {k: type(v) for k, v in made().items()}
    await run.ask("ok?")
    return sorted(found)


# -- round trips ----------------------------------------------------------------------------------------------------------


def test_every_kind_of_result_comes_back_in_another_process(tmp_path: Path) -> None:
    """Dataclasses, pydantic models, typed dicts, enums, dates, ``Decimal``, bytes, ``UUID``, containers, ``None``.

    Equal and of equal type in the first execution and in one that another process resumes, without running a step.
    """
    source = """
        import asyncio, sys
        from stepseven import Layer
        from tests.runs import test_recording as here

        async def main() -> None:
            async with Layer(sys.argv[1]) as layer:
                outcome = await layer.run(here.everything(), client="acme", run_id="r")
                for question in outcome.questions:
                    await layer.answer(question.id, "yes", by="ann")
                print(outcome.status, [q.text for q in outcome.questions], outcome.value)

        asyncio.run(main())
        """
    one, two = child(source, url(tmp_path)), child(source, url(tmp_path))
    assert (one.stdout.strip(), one.stderr) == ("waiting ['ok?'] None", "")
    assert (two.stdout.strip(), two.stderr) == (f"done [] {sorted(STEPS)}", "")
    assert len(records(tmp_path, "r")) == len(STEPS)


async def test_the_caller_gets_the_decoded_record_the_first_time(tmp_path: Path) -> None:
    """What a step returned is not handed on.

    The caller gets what was recorded, so changing it changes nothing on record, and another caller (or the step's own object)
    is not touched.
    """
    kept: list[Any] = []

    @step(name="recording.list")
    async def a_list(x: int) -> list[int]:
        kept.append([1, 2])
        return kept[-1]

    @workflow(name="recording.mutate")
    async def flow(run: Run) -> list[int]:
        async def other() -> list[int]:
            return await a_list(1)

        first = await a_list(1)
        first.append(3)
        again = await run.map(a_list, [2])
        assert again == [[1, 2]]
        await run.ask("ok?")
        return first

    async with Layer(url(tmp_path)) as layer:
        outcome = await layer.run(flow(), client="acme", run_id="r")
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        assert (await layer.resume("r")).result() == [1, 2, 3]
    assert kept == [[1, 2], [1, 2]]
    assert {r["result"] for r in records(tmp_path, "r") if r["name"] == "recording.list"} == {"[1,2]"}


async def test_arguments_are_recorded_as_they_were_at_the_call(tmp_path: Path) -> None:
    """What is changed between the call and its end (or by the step itself) does not change which call it was."""

    @step(name="recording.changes")
    async def changes(items: list[int]) -> int:
        items.append(9)
        return len(items)

    @workflow(name="recording.changing")
    async def flow(run: Run) -> list[int]:
        items = [1]
        call = changes(items)
        items.append(2)
        first = await call
        await run.ask("ok?")
        return [first, await changes([1])]

    async with Layer(url(tmp_path)) as layer:
        outcome = await layer.run(flow(), client="acme", run_id="r")
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        assert (await layer.resume("r")).result() == [3, 2]
    first, second = (r["key"] for r in records(tmp_path, "r"))
    assert second == f"{first}~2"


async def test_a_tuple_where_a_list_is_declared_is_not_let_through(tmp_path: Path) -> None:
    """A result of another type than its annotation says is refused the first time, not only when it is read back."""

    @step(name="recording.untrue", on_failure="raise")
    async def untrue() -> list[int]:
        return (1, 2)  # type: ignore[return-value]

    @workflow(name="recording.untrue_flow")
    async def flow(run: Run) -> str:
        try:
            return str(await untrue())
        except Exception as error:  # noqa: BLE001
            return str(error)

    async with Layer(url(tmp_path)) as layer:
        assert "recording.untrue()" in (await layer.run(flow(), client="acme")).result()


# -- refusals at the call -------------------------------------------------------------------------------------------------

BAD_INPUTS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "an object": (object, NotRecordable, "x.deep[1]"),
    "a lambda": (lambda: lambda: 1, NotRecordable, "x.deep[1]"),
    "NaN": (lambda: float("nan"), NotRecordable, "x.deep[1]"),
    "half a character": (lambda: "\ud800", NotRecordable, "x.deep[1]"),
    "an int key": (lambda: {1: 2}, NotRecordable, "x.deep[1]"),
    "a credential": (lambda: f"use {KEY}", SecretFound, "x.deep[1]"),
}


@pytest.mark.parametrize("what", BAD_INPUTS)
async def test_what_cannot_be_recorded_is_refused_at_the_call(tmp_path: Path, what: str) -> None:
    """An argument that cannot (or must not) be recorded raises in the caller's own code.

    With the path to it, the same the first time and in a resume; the author's ``try`` sees it, the step does not run, nothing
    is retried.
    """
    make, expected, where = BAD_INPUTS[what]
    ran, told = [], []

    @step(name="recording.takes")
    async def takes(x: Any) -> int:
        ran.append(1)
        return 1

    @workflow(name="recording.refused")
    async def flow(run: Run) -> str:
        with pytest.raises(expected) as refused:
            takes({"deep": [1, make()]})
        told.append(str(refused.value))
        assert where in refused.value.path  # type: ignore[attr-defined]
        await run.ask("ok?")
        return "handled"

    async with Layer(url(tmp_path)) as layer:
        outcome = await layer.run(flow(), client="acme", run_id="r")
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        assert (await layer.resume("r")).result() == "handled"
    assert ran == []
    assert told[0] == told[1]
    assert records(tmp_path, "r") == []


async def test_a_parameter_s_name_together_with_its_text_may_be_a_credential(tmp_path: Path) -> None:
    """``authorization="Basic …"`` is one only with its name: refused, or masked with ``secrets="mask"``, on both."""
    seen = []

    async def fn(authorization: str) -> str:
        seen.append(authorization)
        return "ok"

    refuses, masks = step(name="recording.refuses")(fn), step(name="recording.masks", secrets="mask")(fn)

    @workflow(name="recording.header")
    async def flow(run: Run) -> str:
        with pytest.raises(SecretFound):
            refuses("Basic dXNlcjpwYXNzd29yZA==")
        return await masks("Basic dXNlcjpwYXNzd29yZA==")

    async with Layer(url(tmp_path)) as layer:
        assert (await layer.run(flow(), client="acme")).result() == "ok"
    assert seen == ["Basic dXNlcjpwYXNzd29yZA=="]
    assert b"dXNlcjpwYXNzd29yZA" not in b"".join(p.read_bytes() for p in tmp_path.iterdir())


async def test_masking_holds_from_the_first_time_on(tmp_path: Path) -> None:
    """With ``secrets="mask"`` the caller gets the masked result already in the first execution; no file holds the key."""

    @step(name="recording.leaks", secrets="mask")
    async def leaks(prompt: str) -> dict[str, str]:
        return {"said": f"the key is {KEY}"}

    @workflow(name="recording.masked")
    async def flow(run: Run) -> dict[str, str]:
        found = await leaks(f"what is {KEY}?")
        await run.ask("ok?")
        return found

    async with Layer(url(tmp_path)) as layer:
        outcome = await layer.run(flow(), client="acme", run_id="r")
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        assert (await layer.resume("r")).result() == {"said": "the key is •••"}
    assert KEY.encode() not in b"".join(p.read_bytes() for p in tmp_path.iterdir())


async def test_ignored_parameters_are_neither_recorded_nor_compared(tmp_path: Path) -> None:
    """``ignore=`` leaves connections and loggers out: not refused, not stored, and another one is the same call."""
    ran = []

    @step(name="recording.ignores", ignore="session")
    async def ignores(x: int, session: object) -> str:
        ran.append(session)
        return "ok"

    @workflow(name="recording.ignoring")
    async def flow(run: Run) -> str:
        found = await ignores(1, object())
        await run.ask("ok?")
        return found

    async with Layer(url(tmp_path)) as layer:
        for _ in range(2):
            await layer.run(flow(), client="acme", run_id="r")
    assert len(ran) == 1
    assert "session" not in records(tmp_path, "r")[0]["args"]
    with pytest.raises(ValueError, match="ignore= names nothing_like_it"):
        step(name="recording.no", ignore=("nothing_like_it",))(lambda x: x)


@pytest.mark.parametrize("what", ["set", "tuple", "int key", "NaN", "half", "object"])
async def test_a_result_that_would_not_come_back_equal_is_a_failure_with_its_path(tmp_path: Path, what: str) -> None:
    """An unannotated set, tuple, int key, NaN, half a character or foreign object is refused at once, with its path.

    A question about the step, nothing stored.
    """
    value = {"set": {1}, "tuple": (1,), "int key": {1: 1}, "NaN": float("nan"), "half": "\udfff", "object": object()}[what]

    @step(name="recording.bad_result")
    async def bad_result():  # type: ignore[no-untyped-def]
        return {"deep": [value]}

    @workflow(name="recording.bad_flow")
    async def flow(run: Run) -> None:
        await bad_result()

    async with Layer(url(tmp_path)) as layer:
        outcome = await layer.run(flow(), client="acme", run_id="r")
        assert outcome.questions[0].step == "recording.bad_result"
        failed = rows(tmp_path, "SELECT reason FROM attempt")
        assert "recording.bad_result().deep[0]" in failed[0]["reason"]
    assert records(tmp_path, "r") == []


# -- Z01, Z02: the type changed -------------------------------------------------------------------------------------------

V1 = """
from dataclasses import dataclass
from stepseven import Run, step, workflow
ran = []

@dataclass
class Ticket:
    id: int
    title: str

@step
async def pull() -> list[Ticket]:
    ran.append(1)
    return [Ticket(1, "a"), Ticket(2, "b")]

@workflow(name="recording.changed")
async def flow(run: Run) -> str:
    found = await pull()
    await run.ask("ok?")
    return repr(found[1])
"""


@pytest.mark.parametrize(
    "edit, field_",
    [
        (("title: str", "title: str\n    owner: str"), "owner"),
        (("id: int", "id: str"), "id"),
        (("title: str", "name: str = ''"), "title"),
    ],
    ids=["added", "retyped", "renamed"],
)
async def test_a_changed_type_is_a_question_that_names_the_field(tmp_path: Path, edit: tuple[str, str], field_: str) -> None:
    """A stored result that today's class cannot hold never becomes ``None`` or a plain dict.

    The step's question names the field, the stored text stays, and with the class mended the record answers as before.
    """
    async with Layer(url(tmp_path)) as layer:
        await layer.run(module("recording_v1", V1).flow(), client="acme", run_id="r")
        raw = records(tmp_path, "r")[0]["result"]
        changed = module("recording_v2", V1.replace(*edit))
        outcome = await layer.resume("r")
        question = next(q for q in outcome.questions if q.step == "pull")
        assert f"pull()[0].{field_}" in rows(tmp_path, "SELECT reason FROM attempt")[-1]["reason"]
        assert changed.ran == []
        assert records(tmp_path, "r")[0]["result"] == raw
        await layer.resume("r")  # the same again: one question, not two
        assert [q.id for q in await layer.questions() if q.step == "pull"] == [question.id]
        mended = module("recording_v3", V1)
        await layer.answer(next(q.id for q in await layer.questions() if q.text == "ok?"), "yes", by="ann")
        assert (await layer.resume("r")).result() == "Ticket(id=2, title='b')"
        assert mended.ran == []


async def test_again_runs_the_step_whose_result_no_longer_fits(tmp_path: Path) -> None:
    """The answer "again" to such a question runs the step as it is today: a new generation beside the old text."""
    async with Layer(url(tmp_path)) as layer:
        await layer.run(module("recording_v1", V1).flow(), client="acme", run_id="r")
        changed = module(
            "recording_v2",
            V1.replace("title: str", "title: str\n    n: int").replace('"a")', '"a", 7)').replace('"b")', '"b", 8)'),
        )
        outcome = await layer.resume("r")
        question = next(q for q in outcome.questions if q.step == "pull")
        await layer.answer(question.id, "again", by="ann")
        outcome = await layer.resume("r")
        await layer.answer(outcome.questions[0].id, "yes", by="ann")
        assert (await layer.resume("r")).result() == "Ticket(id=2, title='b', n=8)"
    assert changed.ran == [1]
    assert [(r["generation"], json.loads(r["result"])[0]) for r in records(tmp_path, "r")] == [
        (1, {"id": 1, "title": "a"}), (2, {"id": 1, "title": "a", "n": 7}),
    ]  # fmt: skip


# -- kinds of steps -------------------------------------------------------------------------------------------------------


async def test_plain_functions_and_methods_are_steps(tmp_path: Path) -> None:
    """``def`` steps run in a thread, with ``attempt()`` and a context of their own.

    Methods, static methods, functions with ``*args``, keyword-only and positional-only parameters are steps, too; ``.fn`` is
    the bare function, ``.options()`` a copy.
    """
    import threading

    threads = []

    @step(name="recording.sync")
    def sync(x: int) -> int:
        threads.append(threading.current_thread())
        return x + attempt().number

    class Source:
        def __init__(self, base: int) -> None:
            self.base = base

        @step(name="recording.method", ignore="self")
        async def pull(self, x: int) -> int:
            return self.base + x

        @staticmethod
        @step(name="recording.static")
        async def static(x: int) -> int:
            return x

    @step(name="recording.spread")
    async def spread(a: int, /, *rest: int, flag: bool = False, **more: str) -> list[Any]:
        return [a, list(rest), flag, more]

    @step(name="recording.keyword_only")
    async def keyword_only(*, a: int, b: int = 2) -> int:
        return a + b

    @workflow(name="recording.kinds")
    async def flow(run: Run) -> list[Any]:
        source = Source(10)
        return [
            await sync(1), await source.pull(1), await run.map(source.pull, [1, 2]), await Source.static(5),
            await spread(1, 2, 3, flag=True, k="v"), await keyword_only(a=1), await sync.options(name="recording.other")(5),
        ]  # fmt: skip

    async with Layer(url(tmp_path)) as layer:
        for _ in range(2):
            outcome = await layer.run(flow(), client="acme", run_id="r")
            assert outcome.result() == [2, 11, [11, 12], 5, [1, [2, 3], True, {"k": "v"}], 3, 6]
    assert threads
    assert threading.current_thread() not in threads
    assert keyword_only.fn.__name__ == "keyword_only"
    assert spread.name == "recording.spread"
    assert {r["name"] for r in records(tmp_path, "r")} >= {"recording.method", "recording.other"}


async def test_outside_a_run_a_read_step_just_runs() -> None:
    """A read step called outside a run runs its function, with an ``attempt()``.

    One with an effect raises ``NoRun`` at the call; so do the handle's calls inside a step.
    """

    @step(name="recording.alone")
    async def alone(x: int) -> list[int]:
        attempt().spend(usd=1)
        return [x, attempt().number]

    @step(name="recording.sync_alone")
    def sync_alone(x: int) -> int:
        return x + attempt().number

    @step(name="recording.effect", effect="write")
    async def effect() -> None: ...

    assert await alone(5) == [5, 1]
    assert await sync_alone(x=5) == 6
    with pytest.raises(NoRun, match=r"recording\.effect.*needs a run"):
        effect()
    with pytest.raises(NoRun):
        attempt()


async def test_the_handle_is_of_the_workflow_not_of_its_steps(tmp_path: Path) -> None:
    """Inside a step's code the run's own calls raise ``NoRun``: what they record would belong to nobody."""

    @step(name="recording.uses_run", ignore="run", on_failure="raise")
    async def uses_run(run: Run) -> str:
        for call in (run.now, run.uuid, lambda: run.client.set("a", 1), lambda: run.ask("a?"), lambda: run.sleep(1)):
            with pytest.raises(NoRun):
                call()
        return "refused"

    @workflow(name="recording.handle")
    async def flow(run: Run) -> str:
        return await uses_run(run)

    async with Layer(url(tmp_path)) as layer:
        assert (await layer.run(flow(), client="acme")).result() == "refused"


async def test_a_time_out_of_the_step_s_own_is_told_apart(tmp_path: Path) -> None:
    """``timeout=`` says so when it ends a try; a ``TimeoutError`` of the step's own keeps its words."""
    import asyncio

    @step(name="recording.hangs", timeout=0.05, on_failure="raise", attempts=1)
    async def hangs() -> None:
        await asyncio.Event().wait()

    @step(name="recording.own", timeout=30, on_failure="raise", attempts=1)
    async def own() -> None:
        raise TimeoutError("the printer is out of paper")

    @workflow(name="recording.time_outs")
    async def flow(run: Run) -> None:
        for call in (hangs, own):
            with pytest.raises(StepFailed):
                await call()

    async with Layer(url(tmp_path)) as layer:
        assert (await layer.run(flow(), client="acme")).status == "done"
    first, second = (r["trace"] for r in rows(tmp_path, "SELECT trace FROM attempt ORDER BY name"))
    assert "no result within 0.05 s" in first
    assert "out of paper" in second
    assert "no result within" not in second


async def test_a_forgotten_await_is_reported(tmp_path: Path) -> None:
    """A step that is called and never awaited while the run lives is reported, as Python does for coroutines."""

    @step(name="recording.forgotten")
    async def forgotten() -> int:
        return 1

    @workflow(name="recording.forgets")
    async def flow(run: Run) -> str:
        with pytest.warns(RuntimeWarning, match=r"recording\.forgotten was called and never awaited"):
            forgotten()
        call = forgotten()
        await call
        with pytest.raises(RuntimeError, match="awaited already"):
            await call
        return "ok"

    async with Layer(url(tmp_path)) as layer:
        assert (await layer.run(flow(), client="acme")).result() == "ok"


def test_what_cannot_be_a_step_is_refused_when_it_is_declared() -> None:
    """Names, options and hooks that do not fit are refused at the decorator, with the reason."""

    async def fn(x: int) -> int:
        return x

    for options, words in (
        ({"name": "has space"}, "letters"), ({"name": "run.x"}, "beginning with"), ({"name": "client.x"}, "beginning with"),
        ({"name": ""}, "letters"), ({"effect": "writes"}, "writes"), ({"key": "y"}, "its parameters are x"),
        ({"attempts": 0}, "at least 1"), ({"timeout": -1}, "negative"), ({"scope": "client"}, "effect='write'"),
        ({"effect": "write", "scope": "client"}, "needs key="), ({"effect": "write", "match": "order"}, "reads"),
        ({"effect": "write", "idempotent": "soon"}, "24h"), ({"on_failure": "ignore"}, "ask"), ({"secrets": "keep"}, "refuse"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            step(**options)(fn)
    made_ = step(name="recording.hooks", effect="write")(fn)
    with pytest.raises(TypeError, match=r"the probe of step 'recording\.hooks' must take the step's parameters \(x\)"):
        made_.probe(lambda y: y)
    with pytest.raises(TypeError, match="approach 'other'"):
        made_.approach("other")(lambda: 1)
