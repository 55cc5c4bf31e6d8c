"""Code that changed while a run waited, at the terminal: what is asked, how it is answered, what is refused."""

from __future__ import annotations

import pytest

BEFORE = '''
from stepseven import Cost, Run, step, workflow


@step(cost=Cost(usd=0.02), summary=lambda n: f"{n} tickets")
async def pull_tickets(client_id: str) -> int:
    print("pulling")
    return 214


@step(effect="write", key="quarter")
async def post_invoice(quarter: str) -> str:
    print("posting")
    return "R-36"


@workflow
async def billing(run: Run, quarter: str = "Q3") -> list:
    """Bills a quarter."""
    done = [await pull_tickets(run.client_id), await post_invoice(quarter)]
    return [*done, await run.ask("Go on?", options=["yes", "no"])]
'''


@pytest.fixture
def changed(cli):
    """A run whose steps were renamed by a deploy without a word, and which was resumed since; its question's id."""
    code = cli.folder / "bills.py"
    code.write_text(BEFORE, "utf-8")
    ran = cli("run", "bills:billing", "--client", "acme", "--run-id", "r1")
    assert (ran.code, ran.out.count("pulling"), ran.out.count("posting")) == (3, 1, 1)
    assert cli("answer", cli.question("r1")["id"], "yes").code == 0
    code.write_text(BEFORE.replace("pull_tickets", "fetch_tickets").replace("post_invoice", "send_invoice"), "utf-8")
    ran = cli("resume", "r1", "--module", "bills")
    assert ran.code == 3
    assert "pulling" not in ran.out
    assert "posting" not in ran.out
    cli.asked = cli("inbox", "--json").json["items"][0]["id"]
    return cli


def test_the_question_fits_eighty_columns(changed):
    """What is gone, what is new, what is there, what each choice does; `why` names it."""
    out = changed("inbox").out
    assert max(map(len, out.splitlines())) <= 80
    told = " ".join(out.split())
    assert "“pull_tickets” → “fetch_tickets” (214 tickets, $0.02). “post_invoice” → “send_invoice” (done outside: R-36)." in told
    assert "1 the same, renamed: all of them" in told
    assert "2 others: run the new ones “send_invoice” does it outside once more" in told
    assert "The code of Acme's billing changed" in " ".join(changed("why", "r1").out.split())


def test_map_runs_nothing_again(changed):
    """`answer Q map`, and the run is done with what is on record; `show` tells who said so."""
    assert changed("answer", changed.asked, "map", "--by", "ann").code == 0
    ran = changed("resume", "r1", "--module", "bills")
    assert (ran.code, "pulling" in ran.out, "posting" in ran.out) == (0, False, False)
    assert "“the same, renamed: all of them” by ann" in " ".join(changed("show", "r1").out.split())


def test_single_ones_are_told_apart_by_to(changed):
    """`--to OLD=` says that one is none of the new ones: it runs."""
    ran = changed("answer", changed.asked, "1", "--to", "pull_tickets=")
    assert ran.code == 0, ran.err
    ran = changed("resume", "r1", "--module", "bills")
    assert (ran.code, "pulling" in ran.out, "posting" in ran.out) == (0, True, False)


@pytest.mark.parametrize(
    "given, code, why",
    [
        (["map", "--to", "fetch_tickets"], 1, "to takes the new name of each"),
        (
            ["map", "--to", "post_invoice=fetch_tickets"],
            1,
            "'fetch_tickets' cannot be post_invoice; there is send_invoice, or null",
        ),
        (["map", "--to", "post_invoice=send_invoice", "--to", "x"], 2, "of several say OLD=NEW for each"),
        (["run", "--to", "x=y"], 2, "--to does not go with the choice run: it goes with the choice map"),
    ],
)
def test_what_cannot_be_is_refused(changed, given, code, why):
    """One sentence, and nothing is answered."""
    ran = changed("answer", changed.asked, *given)
    assert (ran.code, why in " ".join(ran.err.split())) == (code, True), ran.err
    assert [q["id"] for q in changed("inbox", "--json").json["items"]] == [changed.asked]
