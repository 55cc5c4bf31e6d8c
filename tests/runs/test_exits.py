"""``sys.exit()`` in user code, questions that can never be answered, stores that would forget."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Run, SecretFound, StoreUnavailable, TooLarge, step, testing, workflow
from tests.servers import databases


@step
async def leaves() -> int:
    """A tool that parses its arguments."""
    sys.exit(2)


@step
def leaves_in_a_thread() -> int:
    """The same as a plain function."""
    sys.exit(0)


@step(effect="write", key="n")
async def leaves_while_writing(n: int) -> int:
    """The same with an effect."""
    sys.exit(0)


@step(effect="write", key="n")
def leaves_while_writing_in_a_thread(n: int) -> int:
    """The same with an effect, as a plain function."""
    sys.exit(0)


@workflow
async def exits(run: Run, where: str) -> None:
    """Leaves somewhere."""
    if where == "body":
        sys.exit(0)
    calls: dict[str, Any] = {
        "step": leaves, "thread": leaves_in_a_thread, "write": lambda: leaves_while_writing(1),
        "write thread": lambda: leaves_while_writing_in_a_thread(1),
    }  # fmt: skip
    await calls[where]()


@pytest.mark.parametrize("where", ["body", "step", "thread", "write", "write thread"])
async def test_sys_exit_in_user_code_is_a_failure_like_any_other(where: str) -> None:
    """``sys.exit()`` in a workflow or a step neither ends the program nor the event loop: it is a question."""
    async with testing.layer() as layer:
        outcome = await layer.run(exits(where), client="acme")
        assert outcome.status == "waiting"
        assert outcome.questions[0].kind == ("unknown_outcome" if "write" in where else "failure")
        assert "sys.exit(" in str(outcome.questions[0].context)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///"])
def test_a_store_without_a_file_is_refused(url: str) -> None:
    """An unset variable in a store's URL does not silently mean a store that forgets."""
    with pytest.raises(StoreUnavailable, match="names no file"):
        Layer(url)


@pytest.mark.parametrize(
    "how, says",
    [
        ({"options": [2, 1]}, "no text"),
        ({"options": []}, "at least one choice"),
        ({"options": "yes"}, "one text"),
        ({"options": ["a", "a"]}, "there twice"),
        ({"options": [""]}, "no text"),
        ({"options": ["a"], "default": "b"}, "no answer to it"),
        ({"type": int, "default": "x"}, "no answer to it"),
        ({"options": ["a"], "type": int}, "do not go together"),
    ],
)
async def test_a_question_nobody_could_answer_is_refused_at_the_call(tmp_path: Path, how: dict[str, Any], says: str) -> None:
    """What is wrong with a question is said when it is asked, with the line of the code that asks, not in weeks."""

    @workflow
    async def asks(run: Run) -> Any:
        return await run.ask("How many?", **how)

    async with Layer(databases.url(tmp_path)) as layer:
        outcome = await layer.run(asks(), client="acme")
        assert [q.kind for q in outcome.questions] == ["failure"]
        assert says in outcome.questions[0].text
        assert "test_exits.py" in outcome.questions[0].text


async def test_a_result_that_cannot_be_kept_names_the_workflow(tmp_path: Path) -> None:
    """A workflow whose value cannot be kept is told with its own file and line, never with one of ours."""

    @workflow
    async def returns_a_tuple(run: Run):
        return "a", "b"

    async with Layer(databases.url(tmp_path)) as layer:
        outcome = await layer.run(returns_a_tuple(), client="acme")
        assert outcome.status == "waiting"
        assert "test_exits.py" in outcome.questions[0].text
        assert "returns_a_tuple()" in outcome.questions[0].text


@pytest.mark.parametrize(
    "options, says",
    [
        ({"cost": 0.3}, "Cost"), ({"timeout": "30s"}, "seconds"), ({"bogus": 1}, "no option 'bogus'"),
        ({"effect": "foo"}, "'write'"), ({"summary": "x"}, "give a function"), ({"timeout": 0}, "timeout=0"),
    ],
)  # fmt: skip
def test_options_of_the_wrong_kind_are_refused_at_decoration(options: dict[str, Any], says: str) -> None:
    """What is wrong with a step's options is said when it is declared, with what would be right."""
    with pytest.raises((TypeError, ValueError), match=says):
        step(**options)(lambda: None)


@step
async def takes_much(text: str) -> int:
    """Gets whatever it is given."""
    return len(text)


@workflow
async def much(run: Run, text: str = "") -> int:
    """Hands on 17 MiB."""
    return await takes_much(text or "x" * (17 << 20))


async def test_arguments_and_inputs_over_the_limit_are_refused_with_their_size(tmp_path: Path) -> None:
    """Over 16 MiB of arguments or inputs is refused at the call, with the size and the way out; nothing is stored."""
    async with Layer(databases.url(tmp_path)) as layer:
        with pytest.raises(TooLarge, match=r"inputs\.text is 17,"):
            await layer.run(much(text="x" * (17 << 20)), client="acme")
        assert not await layer.runs()
        outcome = await layer.run(much(), client="acme")
        assert "takes_much: its arguments is 17," in outcome.questions[0].text


@pytest.mark.parametrize(
    "how", [{"client": "sk-proj-a1B2c3D4e5F6g7H8i9J0k1L2"}, {"client": "a", "run_id": "sk-proj-a1B2c3D4e5F6g7H8i9J0k1L2"}]
)
async def test_an_id_that_is_a_credential_is_refused(how: dict[str, str]) -> None:
    """A client's or run's id that looks like a credential is refused: an id is shown and stored everywhere."""
    async with testing.layer() as layer:
        with pytest.raises(SecretFound):
            await layer.run(exits("body"), **how)
        assert not await layer.runs()
