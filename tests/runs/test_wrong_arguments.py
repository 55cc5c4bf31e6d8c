"""What a public call cannot take is refused in one sentence, as an error of ours, before anything is written."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepseven import Client, InvalidArgument, InvalidChoice, Layer, Run, StepsevenError, step, testing, workflow
from tests.servers import databases

pytestmark = pytest.mark.anyio

NAN = float("nan")


class Odd:
    """Something whose repr breaks."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@step
async def misread(n: int) -> int:
    """A read."""
    return n


@step(effect="write", key="n")
async def misposted(n: int) -> int:
    """A write that calls a read."""
    return await misread(n + 1)


@workflow
async def misasked(run: Run, n: int = 1) -> str:
    """A read, a write, a question."""
    await misread(n)
    await misposted(n)
    return await run.ask("Is it so?", options=["yes", "no"])


TEXTS: tuple[Any, ...] = (5, b"r", ["r"], {"r": 1}, True, Odd())  # none of them a text
NAMES: tuple[Any, ...] = (None, "", *TEXTS)
CHOICES: tuple[Any, ...] = (5, "ab", ["ab"], [("a", "b")], {5: "x"}, {None: "x"}, {"": "x"}, Odd())

#: call → parameter → values that it cannot take. ``None`` for a parameter: it takes anything.
BAD: dict[str, dict[str, tuple[Any, ...] | None]] = {
    "run": {
        "call": (None, 5, "misasked", misasked.fn, [misasked]),
        "client": NAMES,
        "run_id": ("", "a/b", *TEXTS),
        "goal": TEXTS,
        "wait": ("5", -1, NAN, True, [5], Odd()),
        "inputs": None,
    },
    "start": {
        "call": (None, 5, "misasked", [misasked]),
        "client": NAMES,
        "run_id": ("", "a/b", *TEXTS),
        "goal": TEXTS,
        "inputs": None,
    },
    "resume": {
        "run_id": NAMES,
        "approach": (*CHOICES, {"misread": None}, {"misread": 5}, {"misread": ""}),
        "skip": CHOICES,
        "rerun": (5, b"ab", [5], [None], [""], "", {"misread": 1}, Odd()),
        "drift": (5, "yes", "", ["keep"], {"keep"}, True),
        "wait": ("5", -1, NAN, True, [5]),
        "by": TEXTS,
        "plan": (5, "plan", {}, {"run_id": "r"}, Odd()),
    },
    "plan": {
        "run_id": NAMES,
        "approach": (*CHOICES, {"misread": None}),
        "skip": CHOICES,
        "rerun": (5, b"ab", [5], {"misread": 1}),
        "drift": (5, "yes", ["keep"]),
    },
    "checkpoint": {"run_id": NAMES},
    "why": {"run_id": NAMES},
    "runs": {
        "client": TEXTS,
        "workflow": TEXTS,
        "status": ("open", 5, ["done"], {"done"}, Odd()),
        "limit": (0, -1, "5", None, 1.5, True, 10**9),
        "cursor": (5, "x", "", "-1", "9" * 30, b"1", ["1"]),
    },
    "questions": {
        "status": ("done", 5, ["open"]),
        "client": TEXTS,
        "run_id": TEXTS,
        "limit": (0, "5", None),
        "cursor": (5, "x", b"1", ["1"], "9" * 30 + ":"),
    },
    "incidents": {"status": ("done", 5, ["open"]), "client": TEXTS, "limit": (0, "5", None)},
    "answer_incident": {
        "incident_id": NAMES,
        "value": (5, None, [], {"choice": 5}, Odd(), NAN),
        "by": NAMES,
        "note": TEXTS,
        "questions": (5, "q_1", [5]),
        "clients": (5, "acme", [5]),
    },
    "answer": {
        "question_id": NAMES,
        "value": (5, None, [], {"choice": 5}, {"choice": "yes", 5: 1}, Odd(), {5: {1}}, NAN),
        "by": NAMES,
        "note": TEXTS,
    },
    "cancel": {"run_id": NAMES, "reason": NAMES, "by": TEXTS},
    "fork": {
        "run_id": NAMES,
        "from_step": (*NAMES, 3, "nope"),
        "inputs": (*CHOICES, [1], {"m": 1}, {"n": "many"}, {"n": Odd()}),
    },
    "client": {"id": (*NAMES, "a/b", "a" * 300)},
    "prune": {"older_than": (None, "soon", -1, NAN, [], True, 10**12, Odd())},
    "worker": {"modules": (5, None, ["m"], "no_such_module"), "concurrency": (0, -1, "8", None, 1.5, True)},
}
BAD_OF_CLIENT: dict[str, dict[str, tuple[Any, ...] | None]] = {
    "get": {"key": (None, *TEXTS), "default": None},
    "set": {
        "key": (*NAMES, " ", "a\nb"),
        "value": (Odd(), NAN, [NAN]),
        "source": TEXTS,
        "by": TEXTS,
        "valid": (5, "soon", "", ["9d"], "9" * 99 + "d", Odd()),
    },
    "facts": {},
    "history": {"key": (None, *TEXTS)},
    "open_questions": {},
    "failures": {"days": (0, -1, NAN, "7", None, [7], True)},
    "pause": {"reason": TEXTS, "by": TEXTS},
    "unpause": {"by": TEXTS},
    "forget": {"by": NAMES, "reason": TEXTS},
    "export": {},
}
#: Of the layer: what takes no argument of its own, passes them on, or comes with a later release.
OTHERS = {"run_blocking", "resume_blocking", "outcome", "review", "board", "aclose", "close"}


def public(kind: type[Any]) -> set[str]:
    """The methods of a class that users call."""
    return {name for name, made in vars(kind).items() if inspect.isfunction(made) and not name.startswith("_")}


def parameters(kind: type[Any], name: str) -> set[str]:
    """What a method takes."""
    return set(inspect.signature(getattr(kind, name)).parameters) - {"self"}


def test_every_argument_of_every_public_call_is_in_the_table() -> None:
    """A new call, or a new argument of one, needs its line here."""
    assert public(Layer) - OTHERS == set(BAD)
    assert public(Client) == set(BAD_OF_CLIENT)
    for kind, table in ((Layer, BAD), (Client, BAD_OF_CLIENT)):
        for name, wrong in table.items():
            assert parameters(kind, name) == set(wrong), name


@asynccontextmanager
async def asked(tmp_path: Path) -> AsyncIterator[tuple[Layer, str]]:
    """A layer with a run ``r`` that waits for a person, and the question's id."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        outcome = await layer.run(misasked(n=1), client="acme", run_id="r")
        yield layer, outcome.questions[0].id


def stored(folder: Path) -> list[Any]:
    """How much there is of everything that a call could write, and how the run stands."""
    tables = ("run", "step", "question", "fact", "recovery", "client", "effect", "attempt")
    counts = ", ".join(f"(SELECT count(*) FROM {table}) AS {table}s" for table in tables)
    return [
        *databases.rows(folder, f"SELECT {counts}"), *databases.rows(folder, "SELECT status, fence, reason FROM run"),
        *databases.rows(folder, "SELECT status FROM question"),
    ]  # fmt: skip


def well(name: str, question_id: str) -> dict[str, Any]:
    """Arguments that a call takes: one at a time is made wrong."""
    made: dict[str, dict[str, Any]] = {
        "run": {"call": misasked(n=2), "client": "acme", "run_id": "other"},
        "start": {"call": misasked(n=2), "client": "acme", "run_id": "other"},
        "answer": {"question_id": question_id, "value": "yes", "by": "ann"},
        "cancel": {"run_id": "r", "reason": "no"}, "fork": {"run_id": "r", "from_step": "misread"}, "prune": {}, "client": {},
        "runs": {}, "questions": {}, "worker": {}, "incidents": {},
        "answer_incident": {"incident_id": "i_none", "value": "again", "by": "ann"},
    }  # fmt: skip
    return made.get(name, {"run_id": "r"})


async def refusal(call: Any, /, *args: Any, **given: Any) -> BaseException | None:
    """What a call raises, also after a moment."""
    try:
        made = call(*args, **given)
        if inspect.isawaitable(made):
            await made
    except Exception as error:  # noqa: BLE001 - which it is is what is asked
        return error
    return None


def a_sentence(error: BaseException | None) -> bool:
    """Whether it is ours, on one line, and says more than a name."""
    told = str(error)
    return isinstance(error, StepsevenError) and "\n" not in told and 20 < len(told) < 500 and " at 0x" not in told


async def test_a_layer_says_what_it_cannot_take(tmp_path: Path) -> None:
    """Whatever is given to a call of the layer: it works, or one sentence of ours; then nothing was written."""
    async with asked(tmp_path) as (layer, question_id):
        before = stored(tmp_path)
        for name, table in BAD.items():
            for parameter, values in table.items():
                for value in values or ():
                    given = {**well(name, question_id), parameter: value}
                    positional = [given.pop("modules")] if "modules" in given else []
                    error = await refusal(getattr(layer, name), *positional, **given)
                    assert a_sentence(error), (name, parameter, type(value), error)
            assert stored(tmp_path) == before, name


async def test_a_client_says_what_it_cannot_take(tmp_path: Path) -> None:
    """The same of what is known about a client."""
    well_ = {"set": {"key": "k", "value": 1}, "get": {"key": "k"}, "history": {"key": "k"}, "forget": {"by": "ann"}}
    async with asked(tmp_path) as (layer, _):
        before, client = stored(tmp_path), layer.client("acme")
        for name, table in BAD_OF_CLIENT.items():
            for parameter, values in table.items():
                for value in values or ():
                    error = await refusal(getattr(client, name), **{**well_.get(name, {}), parameter: value})
                    assert a_sentence(error), (name, parameter, type(value), error)
            assert stored(tmp_path) == before, name


@pytest.mark.parametrize(
    "given",
    [{"url": 5}, {"url": b"x"}, {"durability": "some"}, {"durability": ["full"]}, {"engine": 5}, {"artifacts": 5},
     {"limits": {"usd": 2}}, {"limits": 2}, {"classify": 5}, {"classify": "x"}, {"classify": [5]}],
)  # fmt: skip
def test_a_layer_is_not_made_of_what_it_cannot_take(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a layer is made with is looked at before the store is opened: no file is left behind."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StepsevenError) as refused:
        Layer(**given)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


async def test_sentences_say_what_to_give(tmp_path: Path) -> None:
    """They name the argument, show what was given (masked and short), and say what belongs there."""
    async with asked(tmp_path) as (layer, _):
        for given, said in (
            ({"rerun": 5}, "run r: rerun=5: give a list of steps"),
            ({"skip": [1]}, "run r: skip=[1]: give names with their values, such as {step: value}"),
            ({"approach": "x"}, "run r: approach='x': give names with their values, such as {step: label}"),
            ({"drift": "maybe"}, "run r: drift='maybe' is neither 'keep' nor 'refresh'"),
        ):
            for call in (layer.resume, layer.plan):
                with pytest.raises(InvalidChoice) as refused:
                    await call("r", **given)  # type: ignore[operator]  # the wrong types are the point
                assert str(refused.value) == said
        with pytest.raises(InvalidArgument, match=r"^run_id=None: give the id of a run, as text"):
            await layer.plan(None)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument) as secret:
            await layer.why(["sk-ant-a1B2c3D4a1B2c3D4a1B2c3D4a1B2c3D4", "x" * 10_000])  # type: ignore[arg-type]
        assert "a1B2c3" not in str(secret.value)
        assert len(str(secret.value)) < 200
        assert isinstance(secret.value, ValueError)
        assert isinstance(secret.value, TypeError)


async def test_one_step_may_be_named_without_a_list(tmp_path: Path) -> None:
    """``rerun="misread"`` is that step, not its letters; ``None`` is nothing, as of the other choices."""
    async with asked(tmp_path) as (layer, _):
        assert (await layer.plan("r", rerun="misread")).chosen == {"rerun": ["misread"]}
        assert (await layer.plan("r", rerun=None, skip=None, approach=None)).chosen == {}


async def test_fork_at_a_step_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    """The steps on record, and the command with one of them."""
    async with asked(tmp_path) as (layer, _):
        with pytest.raises(InvalidChoice) as refused:
            await layer.fork("r", from_step="nope")
        assert str(refused.value) == (
            "run r: it has no record of a step 'nope', so nothing can begin there: say one of misread, misposted, "
            "such as `stepseven fork r --from misposted`"
        )
        await layer.start(misasked(n=2), client="acme", run_id="fresh")
        with pytest.raises(InvalidChoice, match=r"run fresh: .*'misread', nor of any other: start a new run"):
            await layer.fork("fresh", from_step="misread")


@step(effect="write", key="n")
async def misposted_well(n: int) -> int:
    """A write that calls a read by another read."""
    return await misread_twice(n)


@step
async def misread_twice(n: int) -> int:
    """A read that calls a read."""
    return await misread(n) + await misread(n + 10)


@workflow
async def misread_inside(run: Run) -> str:
    """Reads inside a write, and then one outside."""
    await misposted_well(1)
    await run.ask("Go on?", key="a")
    await misread(5)
    return await run.ask("Is it so?", key="b")


async def test_a_read_inside_a_finished_write_is_not_made_anew(tmp_path: Path) -> None:
    """Nothing would ask for it: refused with the write's name and what to do; not where another call of it stands outside."""
    async with testing.layer(databases.url(tmp_path)) as layer:
        await layer.run(misread_inside(), client="acme", run_id="r")
        before = stored(tmp_path)
        for call in (layer.resume, layer.plan):
            for name in ("misread", "misread_twice"):
                with pytest.raises(InvalidChoice) as refused:
                    await call("r", rerun=[name])  # type: ignore[operator]
                assert str(refused.value) == (
                    f"run r: {name} was called by misposted_well, which is done, and a write is done once: nothing would ask for "
                    f"{name} again. To have both done anew call misposted_well with another key, or start a new run"
                )
        assert stored(tmp_path) == before
        await layer.answer_next("yes")
        await layer.resume("r")
        plan = await layer.plan("r", rerun="misread")
        assert [(s.step, s.count) for s in plan.steps if s.do == "run"] == [("misread", 1)]
        await layer.resume("r", rerun="misread")
        made = databases.rows(tmp_path, "SELECT branch, generation FROM step WHERE name = 'misread' AND generation = 2")
        assert [row["branch"] for row in made] == [""]
