"""Whatever is stored, no command prints what could steer a terminal; and who does something is a name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stepseven import Cost, Fixable, InvalidArgument, Layer, Limits, Run, step, workflow
from stepseven.cli import _recoveries, main
from stepseven.cli._common import out
from tests.servers import databases

EVIL = "a\x1b[2Jb\r\nc\x9b31md\u202ee\x07"


@step(name="printed_read", summary=lambda _: EVIL)
async def read(text: str) -> str:
    """Its result is a stranger's text."""
    return text


@step(name="printed_fail", resource=EVIL)
async def fail(text: str) -> str:
    """So is its reason."""
    raise Fixable(EVIL)


@step(name="printed_post", effect="irreversible", key="number")
async def post(number: str, text: str) -> str:
    """What is proposed, too."""
    return text


@workflow(name="printed_flow")
async def flow(run: Run, text: str) -> str:
    """Asks with a stranger's words, then fails with them."""
    run.client.get("key")
    await read(text)
    await run.ask(EVIL, options=["yes", EVIL])
    return await fail(text)


@workflow(name="printed_other")
async def other(run: Run, text: str) -> str:
    """Proposes something."""
    return await post("R-1", text)


def commands(run_id: str, question: str) -> list[list[str]]:
    """Every command that shows something stored, as text."""
    return [
        ["plan", run_id], ["show", run_id, "--all"], ["inbox", question], ["client", "acme"], ["export", run_id], ["why", run_id],
        ["runs"], ["inbox"], ["client", "history", "acme", "key"], ["show", EVIL], ["answer", question, EVIL], ["show", run_id],
        ["runs", "--orphaned"], ["inbox", "--all"], ["client"], ["doctor"], ["inbox", EVIL], ["runs", "--client", EVIL],
        ["client", EVIL], ["start", f"no:{EVIL}", "--client", "acme"], ["prune", "--older-than", EVIL],
        ["runs", "--cursor", EVIL], [EVIL],
    ]  # fmt: skip


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command prints, to both."""
    main(list(arguments))
    printed = capsys.readouterr()
    return printed.out + printed.err


def test_no_command_prints_what_steers_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Escapes, carriage returns, bells and turned text in goals, results, reasons, questions, facts, names: none gets out raw."""
    url = databases.url(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPSEVEN_MODULES", __name__)

    async def ran() -> tuple[list[str], list[str]]:
        async with Layer(url) as layer:
            layer.client("acme").set("key", EVIL, source=EVIL, by=EVIL)
            layer.client("acme").pause(reason=EVIL, by=EVIL)
            layer.client("acme").unpause(by=EVIL)
            first = await layer.run(flow(text=EVIL), client="acme", goal=EVIL, run_id="r1")
            await layer.answer(first.questions[0].id, "yes", by=EVIL, note=EVIL)
            first = await layer.resume("r1", by=EVIL, rerun=["printed_read"])
            second = await layer.run(other(text=EVIL), client="acme", goal=EVIL, run_id="r2")
            third = await layer.run(flow(text="x"), client="acme", run_id="r3")
            await layer.cancel("r3", reason=EVIL, by=EVIL)
            return ["r1", "r2", "r3"], [o.questions[0].id for o in (first, second, third)]

    runs, questions = asyncio.run(ran())
    given = commands(runs[0], questions[0])
    given += [[*each, "--json"] for each in given[:11]]
    given += [each for pair in zip(runs[1:], questions[1:], strict=True) for each in commands(*pair)[:3]]
    for each in given:
        told = shown(capsys, *each, "--store", url)
        odd = {c for c in told if not c.isprintable() and c != "\n"}
        assert told, each
        assert not odd, (each, odd)
        if "--json" in each and each[0] in ("show", "plan", "inbox", "export"):
            json.loads(told if EVIL not in each else told[: told.rindex("}") + 1])


def test_the_console_cleans_whatever_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    """Also what a command forgot to clean: text and styled text."""
    from rich.text import Text

    out().print(f"one {EVIL}")
    out().print(Text.assemble("two ", (EVIL, "red")))
    printed = capsys.readouterr().out
    assert "one a\ufffd[2Jb" in printed
    assert not {c for c in printed if not c.isprintable() and c != "\n"}


@pytest.mark.parametrize("bad", ["a\x1bb", "a\nb", "a\x85b", "a\x9bb", "a\u2028b", "a\u202eb"])
async def test_an_id_that_steers_a_terminal_is_refused(bad: str, tmp_path: Path) -> None:
    """Of a run or a client: before anything is kept."""
    async with Layer(databases.url(tmp_path)) as layer:
        for given in ({"client": bad}, {"client": "acme", "run_id": bad}):
            with pytest.raises(InvalidArgument, match="printable characters"):
                await layer.run(other(text="x"), **given)
        with pytest.raises(InvalidArgument, match="printable characters"):
            layer.client(bad)
        assert list(await layer.runs()) == []


# -- who does it ----------------------------------------------------------------------------------------------------------

LONG = "x" * 201


@pytest.mark.parametrize("by", ["", "  ", LONG])
def test_who_does_something_is_a_name(
    by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty or as long as a letter it is refused in one sentence, by every command that takes it; nothing is changed."""
    url = databases.url(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPSEVEN_MODULES", __name__)

    async def ran() -> str:
        async with Layer(url) as layer:
            outcome = await layer.run(other(text="x"), client="acme", run_id="r")
            for call in (
                layer.answer(outcome.questions[0].id, "refuse", by=by), layer.cancel("r", reason="no", by=by),
                layer.resume("r", by=by),
            ):  # fmt: skip
                with pytest.raises(InvalidArgument, match="a name of 1 to 200 characters"):
                    await call
            acme = layer.client("acme")
            said: list[Any] = [lambda: acme.set("a", 1, by=by), lambda: acme.pause(by=by), lambda: acme.unpause(by=by)]
            for each in (*said, lambda: acme.forget(by=by)):
                with pytest.raises(InvalidArgument, match="a name of 1 to 200 characters"):
                    each()
            return outcome.questions[0].id

    question = asyncio.run(ran())
    for given in (
        ["answer", question, "refuse"], ["cancel", "r"], ["resume", "r"], ["client", "set", "acme", "a=1"],
        ["client", "pause", "acme"], ["client", "unpause", "acme"], ["client", "forget", "acme", "--yes"],
    ):  # fmt: skip
        assert main([*given, "--by", by, "--store", url]) == 2, given
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("--by is the name of who does it, of 1 to 200 characters, and it "), given
        assert len(printed.err.split()) < 30
    assert databases.rows(tmp_path, "SELECT status FROM question") == [{"status": "open"}]
    assert databases.rows(tmp_path, "SELECT status FROM run") == [{"status": "waiting"}]


# -- figures --------------------------------------------------------------------------------------------------------------


@step(name="printed_part", cost=Cost(usd=0.1))
async def part(n: int) -> int:
    """Paid."""
    return n


@workflow(name="printed_costly", limits=Limits(usd=0.2))
async def costly(run: Run) -> int:
    """Goes over its limit, twice."""
    return sum([await part(n) for n in range(6)])


def test_what_is_spent_stands_against_the_raised_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In ``show``, and with every question that is open or asked after that: never more than there was allowed."""
    url = databases.url(tmp_path)

    async def ran() -> str:
        async with Layer(url) as layer:
            first = await layer.run(costly(), client="acme", run_id="r")
            await layer.answer(first.questions[0].id, {"choice": "raise", "usd": 0.45}, by="ann")
            second = await layer.resume("r")
            assert second.questions[0].context["run"]["limit_usd"] == 0.45
            return second.questions[0].id

    question = asyncio.run(ran())
    assert "spent     $0.40 of $0.45" in shown(capsys, "show", "r", "--store", url)
    assert "spent $0.40 of $0.45" in shown(capsys, "inbox", question, "--store", url)


# -- what a line is about ---------------------------------------------------------------------------------------------------


@step(name="printed_invoice", effect="write", key="number")
async def invoice(batch: str, number: str) -> str:
    """Fails."""
    raise Fixable("no VAT number")


@workflow(name="printed_invoices")
async def invoices(run: Run) -> str:
    """One of a batch."""
    return await invoice("b1", "R-37")


async def test_a_write_is_told_by_its_key(tmp_path: Path) -> None:
    """And not by whatever argument comes first."""
    async with Layer(databases.url(tmp_path)) as layer:
        [asked] = (await layer.run(invoices(), client="acme", run_id="r")).questions

    assert "(R-37)" in asked.text
    assert "b1" not in asked.text


# -- what a resume did ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more, says",
    [
        ({"ran": {"draft": 2}, "reused": 4, "saved": {"clean": 2, "draft": 2}},
         "ran draft 2×; 4 records reused; $0.10; spared clean 2× and 2 other calls of draft, whose input came out the same"),
        ({"ran": {"draft": 1}, "reused": 0, "saved": {"draft": 1}},
         "ran draft; 0 records reused; $0.10; spared 1 other call of draft, whose input came out the same"),
        ({"ran": {}, "reused": 0, "saved": {}}, "nothing ran; $0.10"),
        ({"ran": {}, "reused": 3, "saved": {}}, "nothing ran; 3 records reused; $0.10"),
    ],
)  # fmt: skip
def test_what_ran_and_what_was_spared_are_told_apart(more: dict[str, Any], says: str) -> None:
    """A step may have run in some calls and been spared in others: the line says that these are others."""
    one = {"created_us": 0, "ended_us": 1, "by": "ann", "chosen": {}, "asked": 0, "usd": 0.1, "seconds": 0, **more}
    [(label, line)] = _recoveries.lines([one], 3)
    assert label == "resumed"
    assert line.endswith(f" by ann: {says}")
