"""What a plan looks like: for three, twelve and sixty steps, in 80 columns, narrow, and without the signs.

Longer than other files: every sentence of a plan stands beside the others that are like it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepseven.decide._plan_limits import NEED_UNKNOWN
from stepseven.decide._plan_text import text
from stepseven.decide.plan import Coming, Do, Drifted, Met, Observed, Plan, Price, Standing, plan
from tests.unit.test_plan import EARLIER, OBSERVED

DAY = 86_400_000_000
RUN = Standing(
    run_id="acme-2026-03-14-01", client_id="acme", workflow="renewal", goal="renewal Q3 for Acme", status="queued", updated_us=0,
    looked_us=2 * DAY,
)  # fmt: skip


def reuse(name: str, summary: str, usd: float = 0.0, seconds: float = 0.0, **more: Any) -> Met:
    """Its record answers."""
    return Met(name=name, do=Do.REUSE, summary=summary, usd=usd, seconds=seconds, **more)


def seen(usd: float, seconds: float, n: int = 31, calls: float = 1) -> Price:
    """A step that earlier runs have."""
    return Price(usd=usd, usd_seen=usd, seconds=seconds, n=n, calls=calls)


def test_a_run_whose_contact_changed() -> None:
    """The sketch: what stands, what failed, what moved, what comes, and two ways of which one is cheaper."""
    done = (reuse("pull_tickets", "214 tickets", 0.02, 38), reuse("summarise", "6 open risks", 0.31, 125))
    failed = Met(name="pull_billing", do=Do.RUN, why="failed: 403 Forbidden, one try")
    coming = (
        Coming(name="draft_pricing", where="r.py:40", cost_usd=0.2), Coming(name="draft_mail", where="r.py:41", cost_usd=0.2),
        Coming(name="create_document", where="r.py:42", effect="write"),
    )  # fmt: skip
    known = {
        "pull_billing": seen(0, 2), "draft_pricing": seen(0.2, 120), "draft_mail": seen(0.22, 100), "create_document": seen(0, 4),
    }  # fmt: skip
    again = Met(name="run.approve", do=Do.ASK, why="asked again", question="Send this to ben@example.com?")
    refresh = (*done, failed, Met(name="draft_mail", do=Do.RUN, why="contact changed", cost_usd=0.2), again)
    moved = Drifted(
        key="contact", old="ann@example.com", new="ben@example.com", source="crm", at_us=DAY,
        old_version=1, new_version=2, depends=("draft_mail", "Bob's approval"),
    )  # fmt: skip
    made = plan(
        replace(RUN, asks=True),
        {"continue": Observed(met=(*done, failed), coming=coming), "refresh": Observed(met=refresh, coming=coming)},
        known, drift=(moved,), notes=("phone changed too, and nothing was built on it",),
    )  # fmt: skip
    assert (
        text(made)
        == """\
acme-2026-03-14-01 · renewal Q3 for Acme · stopped 2 days ago at step 3 of 6

  ✓ reuse  pull_tickets     214 tickets                       $0.02  38 s saved
  ✓ reuse  summarise        6 open risks                      $0.31  2 min saved
  ? ask    contact changed  ann@example.com → ben@example.com (crm, 24 h ago);
             draft_mail and Bob's approval depend on it
  ↻ run    pull_billing     failed: 403 Forbidden, one try    $0.00  ~2 s
  · run    draft_pricing, draft_mail, create_document        ~$0.42  ~4 min
           (from 31 earlier runs)

  continue  1 question       ~$0.42  ~4 min   at most $0.42  ← cheapest
  refresh   2 questions      ~$0.64  ~5 min   at most $0.64
  at most    counts every try; new failures and steps over their price add to it
  note       phone changed too, and nothing was built on it
Nothing has been changed. `stepseven resume acme-2026-03-14-01` does this."""
    )
    assert str(made) == text(made)


def three() -> Plan:
    """A run that waits for an answer."""
    met = (
        reuse("pull", "3 rows", seconds=0.4),
        Met(name="run.ask", do=Do.ASK, why="asked, and not answered yet", question="Is the discount approved?"),
    )
    coming = (Coming(name="send_offer", where="o.py:12", effect="irreversible", cost_usd=0.01, tries=2),)
    standing = replace(RUN, goal=None, status="waiting", waiting_for="person")
    return plan(standing, {"continue": Observed(met=met, coming=coming)}, {})


def test_three_steps() -> None:
    """What a person is asked now, and what is proposed afterwards."""
    assert (
        text(three())
        == """\
acme-2026-03-14-01 · renewal for Acme · waiting for a person for 2 days at step
  2 of 3

  ✓ reuse  pull        3 rows
  ? ask    question    Is the discount approved?
  ? ask    send_offer  a person approves it first            ~$0.01

  continue  2 questions      ~$0.01  time ?   at most $0.02
  at most    counts every try; new failures and steps over their price add to it
Nothing has been changed. `stepseven inbox` has what it waits for; then
`stepseven resume acme-2026-03-14-01` does this."""
    )


def twelve() -> Plan:
    """A map half-way, a file that is gone, and code that cannot be seen through."""
    names = ("pull_tickets", "summarise", "pull_billing", "check_contract", "read_mails")
    met = [reuse(name, f"{10 * i + 4} things found here in the records", 0.02 * i, 4 * i) for i, name in enumerate(names)]
    met += [reuse("post_invoice", f"R-{i}", 0.01, 1.2, branch=f"m[{i}]", effect="write") for i in range(36)]
    met += [
        Met(name="post_invoice", branch=f"m[{i}]", do=Do.RUN, new=True, cost_usd=0.01, tries=2, effect="write")
        for i in range(36, 40)
    ]
    met.append(Met(name="archive", do=Do.RUN, why="its file invoices/7.pdf is gone"))
    coming = (
        Coming(name="reconcile", where="x.py:9"), Coming(name="remind", where="x.py:11", many=True, maybe=True),
        Coming(name="escalate", where="x.py:13", maybe=True, cost_usd=0.05, tries=2), Coming(name="run.approve", where="x.py:14"),
        Coming(name="send_report", where="x.py:15", effect="irreversible"), Coming(name="unknown", where="x.py:17"),
    )  # fmt: skip
    known = {
        "reconcile": seen(0.1, 30, 8), "remind": seen(0.01, 2, 3, 4.0), "post_invoice": seen(0.01, 1.2, 8, 40.0),
        "archive": seen(0, 1, 8), "send_report": seen(0, 2, 8), "close_month": seen(0.2, 12, 8),
    }  # fmt: skip
    standing = replace(RUN, goal="post the invoices of October")
    return plan(standing, {"continue": Observed(met=tuple(met), coming=coming)}, known)


def test_twelve_steps() -> None:
    """A map is two lines; what cannot be seen is said with its place; what usually comes is told from earlier runs."""
    assert (
        text(twelve())
        == """\
acme-2026-03-14-01 · post the invoices of October for Acme · stopped 2 days ago
  at step 6 of about 13

  ✓ reuse  pull_tickets    4 things found here in the records
  ✓ reuse  summarise       14 things found here in the re…    $0.02  4 s saved
  ✓ reuse  pull_billing    24 things found here in the re…    $0.04  8 s saved
  ✓ reuse  check_contract  34 things found here in the re…    $0.06  12 s saved
  ✓ reuse  read_mails      44 things found here in the re…    $0.08  16 s saved
  ✓ reuse  post_invoice    36 results                         $0.36  43 s saved
  · run    post_invoice    4×                                ~$0.04  ~5 s
  ↻ run    archive         its file invoices/7.pdf is gone    $0.00  ~1 s
  · run    reconcile                                         ~$0.10  ~30 s
  · run    perhaps remind about 4×, escalate                 ~$0.04  ~8 s
           (from 3 earlier runs)
  ? ask    approval
  ? ask    send_report     a person approves it first                ~2 s
  · run    unknown         x.py:17 cannot be seen through        $?
  · run    close_month     about 1×: as in earlier runs      ~$0.20  ~12 s

  continue  2+ questions     ~$0.38  ~58 s    no upper bound
  not known  what is called at x.py:17
Nothing has been changed. `stepseven resume acme-2026-03-14-01` does this."""
    )


def sixty() -> Plan:
    """Forty-eight results, one that does not stand, ten chapters to come."""
    met = [reuse(f"collect_{i:02}", f"{i} rows", 0.003 * i, i) for i in range(48)]
    met.append(Met(name="collect_48", do=Do.RUN, why="verify said no", cost_usd=0.1))
    met.append(Met(name="merge", do=Do.RUN, maybe=True, why="only if collect_48 gives another result"))
    coming = tuple(Coming(name=f"chapter_{i}", where=f"q.py:{i}", cost_usd=1) for i in range(10))
    known = {f"chapter_{i}": seen(0.1 * i, 20, 4) for i in range(10)}
    known |= {"collect_48": seen(0.05, 3, 4), "merge": seen(0, 1, 4)}
    return plan(replace(RUN, goal="quarterly report"), {"continue": Observed(met=tuple(met), coming=coming)}, known)


def test_sixty_steps() -> None:
    """Long lists fold with what they have cost together; what simply comes next is one line."""
    assert (
        text(sixty())
        == """\
acme-2026-03-14-01 · quarterly report for Acme · stopped 2 days ago at step 49
  of about 60

  ✓ reuse  collect_00  0 rows
  ✓ reuse  collect_01  1 rows                               $0.0030  1 s saved
  ✓ reuse  … 44 more   44 results                             $3.10  17 min saved
  ✓ reuse  collect_46  46 rows                                $0.14  46 s saved
  ✓ reuse  collect_47  47 rows                                $0.14  47 s saved
  ↻ run    collect_48  verify said no                        ~$0.05  ~3 s
  ↻ run    merge       perhaps: only if collect_48 gives      $0.00
                       another result
  · run    chapter_0, chapter_1, chapter_2, chapter_3,       ~$4.50  ~3 min
           chapter_4, chapter_5, chapter_6, chapter_7,
           chapter_8, chapter_9
           (from 4 earlier runs)

  continue  no question      ~$4.55  ~3 min   at most $10.10
  at most    counts every try; new failures and steps over their price add to it
Nothing has been changed. `stepseven resume acme-2026-03-14-01` does this."""
    )


def test_what_may_run_tells_what_it_can_cost() -> None:
    """Nothing is expected of it, so the figure is the bound."""
    asked = Met(name="pull", do=Do.ASK, why="asked, and not answered yet", question="I could not pull billing for Acme.")
    again = Met(name="pull", do=Do.RUN, maybe=True, why="as the answer says", cost_usd=0.3, tries=2)
    assert text(plan(RUN, {"continue": Observed(met=(asked, again))}, {})).split("\n")[3:] == [
        "  ? ask    pull       I could not pull billing for Acme.",
        "  ↻ run    pull       perhaps: as the answer says           ≤ $0.60",
        "",
        "  continue  1 question        $0.00  <1 s     at most $0.60",
        "  at most    counts every try; new failures and steps over their price add to it",
        "Nothing has been changed. `stepseven inbox` has what it waits for; then",
        "`stepseven resume acme-2026-03-14-01` does this.",
    ]


def test_a_run_that_has_ended() -> None:
    """Nothing is to do, and it says so."""
    assert (
        text(plan(replace(RUN, status="done"), {}, {}))
        == """\
acme-2026-03-14-01 · renewal Q3 for Acme · done 2 days ago

It has ended: there is nothing to do. Nothing has been changed.
`stepseven resume acme-2026-03-14-01` gives its outcome."""
    )


def test_what_nobody_knows_is_said() -> None:
    """A first run: no price, no count; what has no bound is counted, and named below, once."""
    coming = (Coming(name="b", where="f.py:3"), Coming(name="c", where="f.py:4", many=True))
    made = plan(RUN, {"continue": Observed(met=(reuse("a", "x"),), coming=coming)}, {})
    assert text(made).split("\n")[2:] == [
        "",
        "  ✓ reuse  a          x",
        "  · run    b                                                     $?",
        "  · run    c          ?×                                         $?",
        "",
        "  continue  no question          $?  time ?   at most $0.00 + 2 uncapped steps",
        "  at most    counts every try; new failures and steps over their price add to it",
        "  not known  how often c runs; what b costs (no cost= declared, and never seen)",
        "Nothing has been changed. `stepseven resume acme-2026-03-14-01` does this.",
    ]


def test_the_command_can_be_the_one_that_finds_store_and_code() -> None:
    """It is never cut in two: where it does not fit it has a line of its own."""
    command = "stepseven resume acme-2026-03-14-01 --module renewals --store sqlite:///somewhere/else.db"
    assert text(three(), resume=command).split("\n")[-1] == f"`{command}` does this."


def test_a_first_run_says_what_is_bounded_and_what_else_there_is() -> None:
    """Where some prices are not known: what is known of the sum, the bound of all else, and the others by name, once."""
    coming = (
        Coming(name="draft", where="f.py:3", cost_usd=0.2, cost_seconds=30, tries=2), Coming(name="embed", where="f.py:4"),
        Coming(name="post", where="f.py:5", many=True, effect="write"), Coming(name="file", where="f.py:6", many=True),
    )  # fmt: skip
    made = plan(RUN, {"continue": Observed(met=(reuse("a", "x"),), coming=coming)}, {})
    assert text(made).split("\n")[4:] == [
        "  · run    draft, embed                                    ~$0.20+?  ~30 s+?",
        "  · run    perhaps post, file: ?×                                $?  time ?",
        "",
        "  continue  no question    ~$0.20+?  ~30 s+?  at most $0.40 + 3 uncapped steps",
        "  at most    counts every try; new failures and steps over their price add to it",
        "  not known  how often post and file run; what embed costs (no cost= declared,",
        "             and never seen)",
        "Nothing has been changed. `stepseven resume acme-2026-03-14-01` does this.",
    ]
    told = made.document()["paths"][0]
    assert (told["usd_at_most"], told["usd_at_most_known"], told["unbounded"]) == (None, 0.4, ["embed", "post", "file"])


def test_of_a_loop_the_price_of_one_call_is_told() -> None:
    """How often nobody knows; what each costs is known."""
    coming = (Coming(name="page", where="f.py:4", many=True, cost_usd=0.3),)
    made = plan(RUN, {"continue": Observed(coming=coming)}, {})
    assert text(made).split("\n")[3:6] == [
        "  · run    page       ?×, ~$0.30 each                            $?",
        "",
        "  continue  no question          $?  time ?   at most $0.00 + 1 uncapped step",
    ]


def test_what_may_run_again_for_one_reason_is_one_line() -> None:
    """The reason is said once, and so is that results on record may be made anew."""
    why = "only if read gives another result"
    maybe = [Met(name=name, do=Do.RUN, maybe=True, why=why, cost_usd=0.1) for name in ("draft", "mail", "send")]
    kept = (reuse("read", "3 rows"), reuse("sum", "x", maybe=True, cost_usd=0.5))
    assert text(plan(RUN, {"continue": Observed(met=(*kept, *maybe))}, {})).split("\n")[3:-3] == [
        "  ✓ reuse  read       3 rows",
        "  ✓ reuse  sum        x",
        "           perhaps anew: sum, if what runs before gives another result",
        "  ↻ run    perhaps draft, mail, send: only if read gives    ≤ $0.30",
        "           another result",
        "",
    ]


def test_a_write_that_is_done_is_asked_about_and_not_made_anew() -> None:
    """Reads on record may be made anew; of a write that has a receipt a person is asked, and the plan says that."""
    why = "a person wants it anew"
    kept = (reuse("sum", "x", maybe=True), reuse("post", "R-1", maybe=True, effect="write"))
    met = (Met(name="read", do=Do.RUN, why=why, cost_usd=0.1), *kept)
    coming = (Coming(name="post", where="f.py:3", effect="write", cost_usd=0.1),)
    told = text(plan(RUN, {"continue": Observed(met=met, coming=coming, stale=("post",), receipts=("post",))}, {}))
    assert "perhaps anew: sum, if what runs before gives another result" in told
    assert "perhaps asked about, as it is done: post, if what runs" in told
    assert "  ↻ run    post       perhaps: asked about first, as it is" in told
    alone = Observed(met=(Met(name="read", do=Do.RUN, why=why, cost_usd=0.1), kept[1]))
    assert "anew: " not in text(plan(RUN, {"continue": alone}, {}))


def test_a_limit_that_is_asked_about_is_told_in_its_own_words() -> None:
    """The question is a sentence: nothing is put behind its full stop."""
    asked = Met(name="limit", do=Do.ASK, why="asked, and not answered yet", question="Acme's renewal has used $1.10 of $1.15.")
    told = text(plan(RUN, {"continue": Observed(met=(asked,))}, {}))
    assert "  ? ask    limit      Acme's renewal has used $1.10 of $1.15.\n" in told


def test_steps_that_run_as_often_as_each_other_are_told_once() -> None:
    """In one loop: how often stands behind the names, and not behind each."""
    coming = [Coming(name=f"stage_{n}", where="f.py:4", many=True, cost_usd=0.1) for n in range(3)]
    told = " ".join(text(plan(RUN, {"continue": Observed(coming=tuple(coming))}, {})).split())
    assert "perhaps stage_0, stage_1, stage_2: ?×," in told
    assert told.count("?×") == 1


def test_a_run_that_is_started_is_told_by_its_workflow() -> None:
    """Not by what the code calls it; also where nobody knows what it costs."""
    coming = (Coming(name="run.start", where="f.py:4", text="report"), Coming(name="post", where="f.py:5", cost_usd=0.1))
    met = (Met(name="run.start/letter", do=Do.RUN, why="it is waiting", summary="the run of letter that it starts"),)
    told = text(plan(RUN, {"continue": Observed(met=met, coming=coming)}, {}))
    assert "  ↻ run    run of letter  it is waiting" in told
    assert "  · run    run of report, post" in told
    assert "what the run of letter and the run of report cost" in " ".join(told.split())
    assert "run.start" not in told


def test_in_a_loop_the_step_it_stands_at_is_counted_from_what_is_done() -> None:
    """Although each step of the loop may come once more."""
    met = [reuse(f"s{n}", "x") for n in range(3)]
    asked = Met(name="s3", do=Do.ASK, why="asked, and not answered yet", question="I could not s3.")
    coming = [Coming(name=f"s{n}", where="f.py:4", many=True, cost_usd=0.1) for n in range(5)]
    made = plan(RUN, {"continue": Observed(met=(*met, asked), coming=tuple(coming))}, {})
    assert made.headline.endswith("at step 4 of about 5")


def test_limits_of_which_the_same_is_known_are_one_line() -> None:
    """What is left of each, and what is needed, as far as that is known."""
    coming = (Coming(name="page", where="f.py:4", many=True), Coming(name="end", where="f.py:5"))
    left = {"steps": 18, "usd": 0.3, "tokens": 100_000, "seconds": 120}
    made = plan(replace(RUN, left=left), {"continue": Observed(coming=coming)}, {})
    assert "if 18 steps, $0.30, 100,000 tokens and 2 min left of the run's limit will do" in " ".join(text(made).split())
    assert "ask    limit" not in text(made)
    dear = (Met(name="page", do=Do.RUN, why="failed", cost_usd=0.5),)
    made = plan(replace(RUN, left={"usd": 0.3}), {"continue": Observed(met=dear)}, {})
    assert "  ? ask    limit      $0.30 left of the run's limit, about $0.50 needed" in text(made)


def test_an_upper_bound_is_rounded_up() -> None:
    """A text that said less would be no bound."""
    for usd, says in ((0.4249, "$0.43"), (0.42, "$0.42"), (0.00121, "$0.0013"), (12.001, "$12.01"), (0, "$0.00")):
        met = (Met(name="a", do=Do.RUN, why="failed", cost_usd=usd),)
        assert f"at most {says}\n" in text(plan(RUN, {"continue": Observed(met=met)}, {}))


@given(OBSERVED, EARLIER, st.dictionaries(st.sampled_from(["usd", "steps", "tokens", "seconds"]), st.sampled_from([0.0, 2.0])))
def test_text_never_claims_less_than_the_document(observed: Observed, known: dict[str, Price], left: dict[str, float]) -> None:
    """Bounds are as high, what has none says so, what is not known is said, what only may be is marked, none is missing."""
    made = plan(replace(RUN, left=left), {"continue": observed}, known)
    (path,) = made.document()["paths"]
    lines = text(made).split("\n")
    whole = " ".join(" ".join(lines).split())
    at = next(n for n, line in enumerate(lines) if line.startswith("  continue "))
    ways = " ".join(lines[at : at + 1 + ("most" not in lines[at] and "bound" not in lines[at])])
    bound = re.search(r"at most \$([\d,.]+)( \+ (\d+) uncapped)?", ways)
    if path["usd_at_most"] is None and "unknown" in path["unbounded"]:
        assert "no upper bound" in ways
    else:
        assert bound is not None
        assert float(bound[1].replace(",", "")) >= path["usd_at_most_known"] - 1e-9
        assert (bound[3] is None) == (path["usd_at_most"] is not None)
        assert int(bound[3] or 0) == len(path["unbounded"])
    before = ways.split("at most")[0].split("no upper")[0]
    asks = re.search(r"(\d+\+? to )?(\d+|no)(\+?) questions?( \?)?|questions \?", before)
    assert asks is not None
    if path["questions_at_most"] is None:
        assert "+" in asks[0] or "?" in asks[0]
    else:
        assert int(asks[2].replace("no", "0")) == path["questions_at_most"]
    assert path["usd"] is not None or "$?" in before or "+?" in before
    assert path["seconds"] is not None or "time ?" in before or "+?" in before
    folded = "…" in whole
    for step in path["steps"]:
        shown = {"run.ask": "question", "run.approve": "approval", "run.sleep": "sleep", "run.wait_for": "wait"}
        shown |= {"run.start": "run that is started", "run.body": "workflow"}
        name = shown.get(step["step"], step["step"])
        assert folded or name in whole
        if step["maybe"] and step["step"] != "unknown":
            marks = ("will do",) if step["why"] == NEED_UNKNOWN else ("perhaps", "about", "?×")
            assert any(mark in whole for mark in marks)
    assert folded or all(told in whole for told in path["unknown"][:6])


@pytest.mark.parametrize("made", [three(), twelve(), sixty()], ids=["3", "12", "60"])
@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_lines_fit(made: Plan, width: int) -> None:
    """In any usual width; only a command that is longer than the page goes over it."""
    lines = text(made, width=width).split("\n")
    assert [line for line in lines if len(line) > width + 3 and "`" not in line] == []


def test_signs_for_terminals_that_have_only_ascii() -> None:
    """Other signs, the same words."""
    made = text(twelve(), plain=True)
    assert made.replace("…", "...").isascii()
    assert "  + reuse  summarise" in made
    assert "  > run    archive" in made
    assert "  ? ask    approval" in made


def test_text_from_outside_cannot_steer_the_terminal() -> None:
    """Names, summaries, questions and reasons stay on their line."""
    evil = "x\x1b[31m\ny"
    met = (reuse("a", evil), Met(name="b", do=Do.RUN, why=evil), Met(name="run.ask", do=Do.ASK, question=evil))
    moved = Drifted(key=evil, old=evil, new=evil, source=evil, old_version=1, new_version=2, depends=(evil,))
    standing = replace(RUN, run_id=evil, goal=evil, client_id=evil, questions=(evil,), asks=True)
    made = text(plan(standing, {"continue": Observed(met=met)}, {}, drift=(moved,), notes=(evil,)))
    assert "\x1b" not in made
    assert len(made.split("\n")) < 20


@given(OBSERVED, EARLIER)
def test_every_line_has_its_sign_and_its_word(observed: Observed, known: dict[str, Price]) -> None:
    """Whatever was seen: the word beside a sign says the same, every way is told, and nothing was changed."""
    made = plan(replace(RUN, questions=("Is it so?",)), {"continue": observed, "refresh": observed}, known)
    lines = text(made).split("\n")
    words = {"✓": "reuse", "↻": "run", "·": "run", "?": "ask"}
    assert all(line[4:9].strip() == words[line[2]] for line in lines if line[:2] == "  " and line[2:3] in words)
    assert sum(line.startswith(("  continue ", "  refresh ")) for line in lines) == 2
    assert any(line.startswith("Nothing has been changed.") for line in lines)
