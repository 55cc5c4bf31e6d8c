"""Recoveries on the command line: the plan of one with choices, who resumes, and what ``show`` tells of those there were."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from stepseven import Cost, Fixable, Layer, Run, step, workflow
from stepseven.cli import main
from stepseven.decide._plan_text import text
from tests.servers import databases

HERE = sys.modules[__name__]


@step(cost=Cost(usd=0.02), summary=lambda n: f"{n} tickets")
async def recount() -> int:
    """A read."""
    return 3


@step
async def rebill(n: int) -> dict[str, int]:
    """A read that fails."""
    raise Fixable("403 Forbidden")


@rebill.approach("contract amount", ask=True)
async def recontract(n: int) -> dict[str, int]:
    """Another way."""
    return {"amount": 48000 + n}


@step(cost=Cost(usd=0.2))
async def redraft(amount: int) -> str:
    """A read that is paid."""
    return f"draft {amount}"


@workflow
async def rebills(run: Run) -> str:
    """Three reads and a question."""
    got = await rebill(await recount())
    await redraft(got["amount"])
    return await run.ask("Send it?", options=["yes", "no"])


class Told:
    """What commands print about run ``r`` in a store of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.url = databases.url(folder)
        self._capsys = capsys

        async def ran() -> None:
            async with Layer(self.url) as layer:
                await layer.run(rebills(), client="acme", run_id="r")

        asyncio.run(ran())

    def __call__(self, *arguments: str, code: int = 0) -> str:
        assert main([*arguments, "--store", self.url]) == code, arguments
        return self._capsys.readouterr().out

    def lines(self, label: str) -> list[str]:
        """What stands beside a label at the foot of ``show``, line by line."""
        shown = self("show", "r").split("\n")
        at = next((i for i, line in enumerate(shown) if line.startswith(f"  {label} ")), None)
        if at is None:
            return []
        more = [line for line in shown[at + 1 :] if line.startswith(" " * 12)]
        return [" ".join(line.split()) for line in (shown[at].removeprefix(f"  {label}"), *more)]


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Told:
    """A run that waits for a person about ``rebill``."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("STEPSEVEN_MODULES", HERE.__name__)
    monkeypatch.setenv("USER", "ann")
    monkeypatch.setenv("LOGNAME", "ann")
    return Told(tmp_path, capsys)


def planned(told: Told, *choices: str) -> dict[str, Any]:
    """The plan with these choices, as JSON."""
    found: dict[str, Any] = json.loads(told("plan", "r", "--json", *choices))
    return found


def test_a_plan_takes_the_choices_of_a_resume(told: Told) -> None:
    """What would be chosen is obeyed in the plan, told with it, and part of the command that does it; nothing is chosen by it."""
    bare = planned(told)
    assert [(s["do"], s["step"]) for s in bare["steps"]][:2] == [("reuse", "recount"), ("ask", "rebill")]
    by_contract = planned(told, "--approach", "rebill=contract amount")
    assert ("run", "rebill") in [(s["do"], s["step"]) for s in by_contract["steps"]]
    assert not [s for s in by_contract["steps"] if (s["do"], s["step"]) == ("ask", "rebill")]
    assert by_contract["chosen"] == {"approach": {"rebill": "contract amount"}}
    given = planned(told, "--skip", 'rebill={"amount": 1}', "--rerun", "recount")
    assert [(s["do"], s["step"]) for s in given["steps"]][:2] == [("run", "recount"), ("reuse", "rebill")]
    assert "`stepseven resume r --skip 'rebill={\"amount\": 1}' --rerun recount --store" in " ".join(
        told("plan", "r", "--skip", 'rebill={"amount": 1}', "--rerun", "recount").split()
    )
    again = planned(told)
    assert {**again, "looked_us": 0, "headline": ""} == {**bare, "looked_us": 0, "headline": ""}
    assert databases.rows(told.folder, "SELECT count(*) AS n FROM recovery") == [{"n": 0}]


def test_a_plan_says_no_where_a_resume_would(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    """The same sentences, the same exit codes: 1 for what cannot be obeyed, 2 for a wrong form."""
    for options, code in (
        (["--approach", "rebill=magic"], 1), (["--skip", "rebill=twelve"], 1), (["--rerun", "nothing"], 1),
        (["--rerun", "redraft"], 1),
        (["--keep", "--refresh"], 2), (["--approach", "rebill"], 2),
    ):  # fmt: skip
        said = []
        for command in (["plan"], ["resume", "--yes"]):
            assert main([*command, "r", *options, "--store", told.url]) == code, options
            said.append(capsys.readouterr().err)
        assert said[0] == said[1] != ""


def test_a_plan_made_in_python_names_the_command_with_its_choices(told: Told) -> None:
    """``str(plan)`` ends with what does this, choices and all; a long value is given as a file."""

    async def made(**chosen: Any) -> str:
        async with Layer(told.url) as layer:
            return text(await layer.plan("r", **chosen), width=200).split("\n")[-1]

    assert asyncio.run(made(approach={"rebill": "contract amount"}, rerun="recount")).endswith(
        "`stepseven resume r --approach 'rebill=contract amount' --rerun recount` does this."
    )
    long = {"amount": 1, **{f"n{i}": i for i in range(50)}}
    assert "--skip rebill=@FILE" in asyncio.run(made(skip={"rebill": long}))


def test_who_resumes_is_kept(told: Told) -> None:
    """``--by``, else who is logged in; with choices and without."""
    told("resume", "r", code=3)
    told("resume", "r", "--by", "ben", code=3)
    told("resume", "r", "--approach", "rebill=contract amount", "--by", "cleo", code=3)
    rows = databases.rows(told.folder, "SELECT by FROM recovery ORDER BY created_us")
    assert [row["by"] for row in rows] == ["ann", "ben", "cleo"]
    assert "by cleo" in told("show", "r")
    asked = databases.rows(told.folder, "SELECT answered_by FROM question WHERE kind = 'failure'")
    assert [row["answered_by"] for row in asked] == ["cleo"]


def test_show_tells_what_came_of_recoveries(told: Told) -> None:
    """None: no line. One: when, by whom, what was chosen, what ran, was reused, asked and paid. Five: the newest three."""
    assert told.lines("resumed") == []
    assert json.loads(told("show", "r", "--json"))["recoveries"] == []

    told("resume", "r", "--approach", "rebill=contract amount", "--by", "ben", code=3)
    (one,) = json.loads(told("show", "r", "--json"))["recoveries"]
    assert {k: one[k] for k in ("by", "chosen", "ran", "reused", "asked", "usd", "saved")} == {
        "by": "ben", "chosen": {"approach": {"rebill": "contract amount"}}, "ran": {"rebill": 1, "redraft": 1}, "reused": 1,
        "asked": 1, "usd": 0.2, "saved": {},
    }  # fmt: skip
    shown = " ".join(told.lines("resumed"))
    assert "by ben: rebill by “contract amount” → ran rebill and redraft; 1 record reused; 1 question asked; $0.20" in shown

    told("resume", "r", "--rerun", "recount", "--rerun", "redraft", code=3)
    last = json.loads(told("show", "r", "--json"))["recoveries"][-1]
    assert (last["ran"], last["reused"], last["saved"]) == ({"recount": 1, "redraft": 1}, 1, {"rebill": 1})
    shown = " ".join(told.lines("resumed"))
    assert "recount and redraft made anew → ran recount and redraft; 1 record reused; $0.22" in shown
    assert "spared rebill, whose input came out the same" in shown

    told("resume", "r", "--rerun", "recount", code=3)  # as often as one likes: what comes after it is spared each time
    assert json.loads(told("show", "r", "--json"))["recoveries"][-1]["saved"] == {"rebill": 1, "redraft": 1}

    for _ in range(3):
        told("resume", "r", "--by", "dora", code=3)
    page = told("show", "r")
    assert all(len(line) <= 80 for line in page.split("\n") if "stepseven inbox" not in line)  # that is pasted
    assert page.count("by dora: nothing ran; 3 records reused; $0.00") == 3
    assert "… 3 times before that (--all shows them)" in page
    assert "by ben" in told("show", "r", "--all")
