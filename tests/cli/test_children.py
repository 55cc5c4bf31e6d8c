"""A run that starts others, on the command line."""

from __future__ import annotations

CHILDREN = """
from stepseven import Run, workflow

@workflow
async def asking(run: Run, quarter: str) -> str:
    return await run.ask(f"Is {quarter} right?", options=["yes", "no"])

@workflow
async def family(run: Run) -> str:
    return await run.start(asking(quarter="Q3"))
"""


def test_show_of_a_parent_lists_its_children_and_what_they_ask(cli):
    """``show``: each child with its status and id, its question; as JSON the same; ``why`` says who may answer."""
    (cli.folder / "families.py").write_text(CHILDREN, "utf-8")
    ran = cli("run", "families:family", "--client", "acme", "--run-id", "p")
    assert ran.code == 3
    assert "Is Q3 right?" in ran.out
    document = cli("show", "p", "--json").json
    (child,) = document["children"]
    assert (child["workflow"], child["status"], child["waiting_for"]) == ("asking", "waiting", "person")
    (question,) = document["questions"]
    assert question["run_id"] == child["run_id"]
    page = cli("show", "p").out
    assert child["run_id"] in page
    assert "asking, a run of its own: waiting for a person" in page
    assert question["id"] in page
    assert question["id"] in cli("why", "p").out
    assert cli("answer", question["id"], "yes").code == 0
    assert cli("resume", "p", "--module", "families").code == 0
    assert "asking, a run of its own: done" in cli("show", "p").out
