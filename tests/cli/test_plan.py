"""``plan``: what a resume would do, as text and as JSON; nothing is changed by looking."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, testing
from stepseven.cli import main
from stepseven.decide.plan import Coming, Do, Met, Observed, Plan, Standing, plan
from tests.cli.conftest import Terminal


@pytest.fixture
def made() -> Plan:
    """A plan made by hand."""
    met = (
        Met(name="pull_tickets", do=Do.REUSE, summary="214 tickets", usd=0.02, seconds=38.0),
        Met(name="pull_billing", do=Do.RUN, why="failed: 403 Forbidden, one try", cost_usd=0.3, cost_seconds=2.0),
        Met(name="run.ask", do=Do.ASK, why="not asked yet", question="Send it?", new=True),
    )
    standing = Standing(run_id="r1", client_id="acme", workflow="renewal", status="queued", looked_us=60_000_000)
    coming = (Coming(name="create", where="w.py:3", cost_usd=0.1),)
    return plan(standing, {"continue": Observed(met=met, coming=coming)}, {})


@pytest.fixture
def url(tmp_path: Path, made: Plan, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with run ``r1``, whose plan is the one made by hand."""
    from tests.store.test_prices import looks

    where = f"sqlite:///{tmp_path / 's.db'}"

    async def ran() -> None:
        async with testing.layer(where) as layer:
            await layer.run(looks(n=1), client="acme", run_id="r1")

    asyncio.run(ran())

    async def by_hand(_: Layer, run_id: str, **chosen: Any) -> Plan:
        assert (run_id, any(chosen.values())) == ("r1", False)
        return made

    monkeypatch.setattr(Layer, "plan", by_hand)
    monkeypatch.chdir(tmp_path)
    return where


def shown(capsys: Any, *arguments: str, code: int = 0) -> str:
    """What a command prints."""
    assert main(list(arguments)) == code
    return str(capsys.readouterr().out)


def test_a_plan_is_printed(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines with sign and word, what it costs, the command that does it, with the store and the code it needs."""
    monkeypatch.setenv("COLUMNS", "80")
    assert shown(capsys, "plan", "r1", "--store", url).split("\n")[:-2] == [
        "r1 · renewal for Acme · stopped 60 s ago at step 2 of 4",
        "",
        "  ✓ reuse  pull_tickets  214 tickets                          $0.02  38 s saved",
        "  ↻ run    pull_billing  failed: 403 Forbidden, one try      ~$0.30  ~2 s",
        "  ? ask    question      Send it?",
        "  · run    create                                            ~$0.10",
        "",
        "  continue  1 question       ~$0.40  ~2 s+?   at most $0.40",
        "  at most    counts every try; new failures and steps over their price add to it",
        "Nothing has been changed.",
    ]


def test_the_last_line_is_the_command(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It finds the same store."""
    assert shown(capsys, "plan", "r1", "--store", url).split("\n")[-2] == f"`stepseven resume r1 --store {url}` does this."


def test_a_plan_as_json(url: str, capsys: pytest.CaptureFixture[str], made: Plan) -> None:
    """One document: the plan's fields, what is done about a step as text."""
    import json

    told = json.loads(shown(capsys, "plan", "r1", "--json", "--store", url))
    assert told == made.document()
    assert [s["do"] for s in told["steps"]] == ["reuse", "run", "ask", "run"]
    assert told["paths"][0]["name"] == "continue"


def test_signs_follow_what_the_output_can_show(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that has only ASCII gets signs of it; the words are the same."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict", write_through=True)
    monkeypatch.setattr(sys, "stdout", output)
    assert main(["plan", "r1", "--store", url]) == 0
    told = output.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "  + reuse  pull_tickets" in told
    assert "  > run    pull_billing" in told


def test_an_unknown_run_is_refused(cli: Terminal) -> None:
    """In one sentence, with the way out, before any code is imported; nothing is made where there is no store."""
    missing = cli("plan", "r1")
    assert (missing.code, missing.out) == (5, "")
    assert not list(cli.folder.glob("*.db*"))
    cli("run", "renewals:simple", "--client", "acme", "--input", "quarter=Q3", "--run-id", "r1")
    unknown = cli("plan", "r2", "--module", "nomodule")
    assert unknown.code == 1
    assert "no run r2" in unknown.err
    assert unknown.err.count("\n") == 1


def test_a_module_that_is_named_must_be_there(cli: Terminal) -> None:
    """As of ``resume``: one sentence."""
    cli("run", "renewals:asks", "--client", "acme", "--run-id", "r1")
    refused = cli("plan", "r1", "--module", "nomodule")
    assert refused.code == 1
    assert "nomodule" in refused.err
