"""Changed code against what is on record: what is gone, new, renamed, and what only a person can tell."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepseven.decide import _phrases as say
from stepseven.decide import escalate as e
from stepseven.decide.changes import (
    MAP,
    Kept,
    Known,
    Pair,
    Said,
    Source,
    all_said,
    compare,
    earlier,
    said_by,
    sentences,
    together,
)
from stepseven.model import Question, QuestionKind

A, B = frozenset({"client_id"}), frozenset({"quarter"})
PULL, POST = Kept(name="pull_tickets", arguments=A, usd=0.02), Kept(name="post_invoice", arguments=B, writes=True, told="R-36")
FETCH, SEND = Known(name="fetch_tickets", arguments=A), Known(name="send_invoice", arguments=B, writes=True)


def of(*steps: Known, unseen: bool = False) -> Source:
    """A workflow's code that calls these."""
    return Source(steps=steps, unseen=unseen)


def asked(kept: list[Kept], source: Source, **how: object) -> dict[str, str | None]:
    """Whom a person is asked about: gone → the likeliest."""
    how = {"changed": True, "ahead": [], **how}
    return {p.old.name: p.to for p in compare(kept, source, **how).pairs}  # type: ignore[arg-type]


def test_what_is_called_under_its_name_is_no_change() -> None:
    """Order, number of calls, other arguments: nothing of that is asked about here."""
    same = of(Known(name="post_invoice", writes=True), Known(name="pull_tickets", arguments=B))
    assert compare([PULL, POST], same, changed=True, ahead=[]) == compare([], of(), changed=True, ahead=[])


def test_a_renamed_step_is_asked_about() -> None:
    """A write and a read that are gone, each with a new one that could be it."""
    assert asked([PULL, POST], of(FETCH, SEND)) == {"pull_tickets": "fetch_tickets", "post_invoice": "send_invoice"}


def test_a_declared_rename_is_none() -> None:
    """``renamed_from=`` says it; it is told, and nobody is asked."""
    found = compare([PULL], of(Known(name="fetch_tickets", renamed_from=("older", "pull_tickets"))), changed=True, ahead=[])
    assert (found.renamed, found.gone, found.new, found.pairs) == ((("pull_tickets", "fetch_tickets"),), (), (), ())


def test_what_the_older_code_had_ahead_is_not_new() -> None:
    """It was to come all along."""
    assert asked([POST], of(SEND), ahead=["send_invoice"]) == {}
    assert asked([POST], of(SEND), ahead=None) == {"post_invoice": "send_invoice"}


BILL = Kept(name=f"{MAP}bill_one", count=3, inside=True)


def test_what_is_mapped_is_only_taken_for_what_is_mapped() -> None:
    """A function that is gone, beside a step of the same name and new ones of each kind."""
    mapped = Known(name=f"{MAP}invoice_one")
    assert asked([BILL], of(FETCH, SEND, mapped)) == {BILL.name: mapped.name}
    assert asked([BILL], of(FETCH, SEND)) == {}
    assert asked([PULL, POST], of(mapped)) == {}
    assert asked([BILL], of(mapped), changed=False) == {}  # not alike: only what certainly changed is asked about then
    assert asked([BILL], of(Known(name=f"{MAP}bill_each")), changed=False) == {BILL.name: f"{MAP}bill_each"}


def test_a_step_of_which_only_what_it_called_is_there_is_asked_about() -> None:
    """It was begun, and called a write: a new read could be it, a new write could not, nor one with other arguments."""
    begun = Kept(name="bill_all", count=0, inside=True, arguments=A)
    assert asked([begun], of(FETCH, SEND)) == {"bill_all": "fetch_tickets"}
    assert asked([begun], of(Known(name="fetch_tickets", arguments=B))) == {}
    gone = compare([begun], of(), changed=True, ahead=[])
    assert sentences(gone) == ("“bill_all” was begun; the code no longer has it.",)


def test_maps_are_told_by_their_names_in_the_code() -> None:
    """Neither the question nor the plan shows how they are told from steps."""
    source, said = of(Known(name=f"{MAP}invoice_one")), Said(same=((BILL.name, f"{MAP}invoice_one"),))
    found = compare([BILL], source, said=said, changed=True, ahead=[])
    assert sentences(found) == ("“invoice_one” goes on with the record of “bill_one”, as a person said.",)
    assert compare([BILL], source, changed=True, ahead=[]).new == ()
    assert earlier(said.same, source.names()) == {f"{MAP}invoice_one": (BILL.name,)}


def test_what_is_on_record_itself_is_no_candidate() -> None:
    """It was done under its own name, or under one that it declares."""
    assert asked([POST, Kept(name="send_invoice", writes=True)], of(SEND)) == {}
    assert (
        asked([POST, Kept(name="bill", writes=True)], of(Known(name="send_invoice", writes=True, renamed_from=("bill",)))) == {}
    )


def test_a_read_is_never_taken_for_a_write() -> None:
    """What changes something outside and what does not are two steps."""
    assert asked([PULL], of(Known(name="pull_ticket", arguments=A, writes=True))) == {}
    assert asked([POST], of(Known(name="post_invoices", arguments=B))) == {}


@pytest.mark.parametrize(
    "new, found",
    [
        (Known(name="load", arguments=A), "load"),  # the only pair
        (Known(name="load", arguments=B), None),  # other arguments: no record could answer it
        (Known(name="load", arguments=None), "load"),
        (Known(name="fetch_tickets", arguments=A, cannot_read=frozenset({"pull_tickets"})), None),
    ],
)
def test_a_read_is_asked_about_only_where_its_record_could_be_used(new: Known, found: str | None) -> None:
    """With other arguments, or of another type, it runs whatever a person says."""
    assert asked([PULL], of(new)) == ({} if found is None else {"pull_tickets": found})


def test_among_several_reads_the_name_decides() -> None:
    """One that looks like it is asked about; one that does not, where there are others, is a new step."""
    assert asked([PULL], of(FETCH, Known(name="load", arguments=A))) == {"pull_tickets": "fetch_tickets"}
    assert asked([PULL], of(Known(name="summarise", arguments=A), Known(name="load", arguments=A))) == {}
    assert asked([PULL, Kept(name="count", arguments=A)], of(Known(name="load", arguments=A))) == {}


def test_a_write_is_always_asked_about() -> None:
    """Whatever the new one is called and takes: to do it twice is the worst that can happen."""
    other = Known(name="deliver", arguments=frozenset({"to"}), writes=True)
    assert asked([POST], of(other)) == {"post_invoice": "deliver"}
    (pair,) = compare([POST], of(other, SEND), changed=True, ahead=[]).pairs
    assert (pair.to, pair.others) == ("send_invoice", ("deliver",))


def test_no_new_step_is_proposed_for_two() -> None:
    """The likelier one gets it; the other one is named with what else it could be."""
    found = compare([POST, Kept(name="post_line", writes=True)], of(SEND), changed=True, ahead=[]).pairs
    assert [(p.old.name, p.to, p.others) for p in found] == [
        ("post_invoice", "send_invoice", ()), ("post_line", None, ("send_invoice",)),
    ]  # fmt: skip


def test_what_cannot_be_read_may_still_call_it() -> None:
    """Then nobody is asked, and it is said."""
    found = compare([POST], of(SEND, unseen=True), changed=True, ahead=[])
    assert (found.pairs, found.unseen) == ((), True)
    assert "may still be called" in sentences(found)[0]


def test_the_same_code_is_asked_about_only_for_a_write_that_looks_the_same() -> None:
    """A run that the newer code has put away before anybody looked: its write must not be done twice."""
    assert asked([PULL, POST], of(FETCH, SEND), changed=False, ahead=["send_invoice"]) == {"post_invoice": "send_invoice"}
    assert asked([POST], of(Known(name="deliver", arguments=B, writes=True)), changed=False) == {}


# -- what was said ------------------------------------------------------------------------------------------------------------

LINES = [Pair(old=PULL, to="fetch_tickets").line(), Pair(old=POST, to="send_invoice", others=("mail",)).line()]


@pytest.mark.parametrize(
    "answer, means",
    [
        ("map", {"pull_tickets": "fetch_tickets", "post_invoice": "send_invoice"}),
        ("run", {"pull_tickets": None, "post_invoice": None}),
        ("stop", {"pull_tickets": None, "post_invoice": None}),
        ({"choice": "map", "to": {"pull_tickets": None, "post_invoice": "mail"}}, {"pull_tickets": None, "post_invoice": "mail"}),
    ],
)
def test_an_answer_means_each_pair(answer: object, means: dict[str, str | None]) -> None:
    """``map`` as proposed, corrected by ``to``; ``run``: none of them."""
    assert said_by(LINES, answer) == means


def test_what_was_said_is_not_asked_again() -> None:
    """Neither what is the same nor what is not; a name that comes later is."""
    said = all_said([(LINES, {"choice": "map", "to": {"pull_tickets": None, "post_invoice": "send_invoice"}})])
    assert said == Said(
        same=(("post_invoice", "send_invoice"),),
        other=frozenset({("pull_tickets", "fetch_tickets"), ("post_invoice", "mail")}),
    )
    found = compare([PULL, POST], of(FETCH, SEND), said=said, changed=True, ahead=[])
    assert (found.pairs, found.said) == ((), (("post_invoice", "send_invoice"),))
    assert asked([PULL, POST], of(Known(name="pull_ticket", arguments=A)), said=said) == {"pull_tickets": "pull_ticket"}


def test_later_words_count_with_earlier_ones() -> None:
    """First post → send, then send → issue: three names of one step, whichever of them the code has."""
    same = [("post", "send"), ("send", "issue")]
    assert together(same)["send"] == ("post", "send", "issue")
    assert earlier(same, {"issue"}) == {"post": ("send",), "send": ("post",), "issue": ("post", "send")}
    assert earlier(same, {"post"})["post"] == ("send", "issue")
    assert earlier(same, {"issue", "send"})["issue"] == ("post",)  # one of its own again


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")), max_size=8))
def test_names_of_one_step_agree(same: list[tuple[str, str]]) -> None:
    """Each name of a step has the same group, and is in it once."""
    groups = together(same)
    for name, group in groups.items():
        assert name in group
        assert len(set(group)) == len(group)
        assert all(groups[other] == group for other in group)
    assert all(groups[a] == groups[b] for a, b in same)


# -- in words -----------------------------------------------------------------------------------------------------------------

ACME = e.Situation(
    client="acme", workflow="renewal", goal=None, inputs={"quarter": "Q3"}, done=(e.Done(step="post_invoice", summary="R-36"),),
    next_steps=(), spent_usd=0.41, limit_usd=None,
)  # fmt: skip


def test_what_needs_nobody_is_said() -> None:
    """New, gone, renamed: a sentence each; a write that is gone says that nothing is taken back."""
    source = of(Known(name="fetch_tickets", renamed_from=("pull_tickets",)), Known(name="check", arguments=B))
    count = Kept(name="count", arguments=frozenset())
    assert sentences(compare([PULL, POST, count], source, changed=True, ahead=[])) == (
        "“fetch_tickets” is called “pull_tickets” on record, and goes on with that.",
        "“post_invoice” did something outside (R-36); the code no longer has it. Nothing is taken back.",
        "Not in the code any more: “count”. What it gave is kept, and not used.",
        "New in the code: “check”.",
    )
    assert sentences(compare([PULL], of(Known(name="pull_tickets")), changed=True, ahead=[])) == (
        "The code changed since it was last executed; its steps are the same.",
    )
    assert sentences(compare([PULL], of(Known(name="pull_tickets")), changed=False, ahead=[])) == ()


SNAPSHOTS = {
    "a read": (
        [Pair(old=Kept(name="pull_tickets", told="214 tickets", usd=0.02), to="fetch_tickets", usd=0.02)],
        """\
The code of Acme's renewal changed: “pull_tickets” is gone, “fetch_tickets” is new. Is it the same step?
“pull_tickets” gave: 214 tickets. It has cost $0.02. Nothing runs until you say.
So far I posted invoice (R-36).
Code can say it itself: @step(renamed_from="pull_tickets").""",
        ["“fetch_tickets” goes on with what “pull_tickets” has on record; it does not run again",
         "the old result is kept, and not used"],
    ),
    "a write": (
        [Pair(old=POST, to="send_invoice", others=("mail",))],
        """\
The code of Acme's renewal changed: “post_invoice” is gone, “send_invoice” is new. Is it the same step?
“post_invoice” did something outside: R-36. It could also be “mail”: then name it. Nothing runs until you say.
So far I posted invoice (R-36).
Code can say it itself: @step(renamed_from="post_invoice").""",
        ["“send_invoice” goes on with what “post_invoice” has on record; nothing is posted again",
         "“post_invoice” was posted already (R-36); this does it once more, as “send_invoice”"],
    ),
    "a write in doubt": (
        [Pair(old=Kept(name="post_invoice", writes=True, doubt=True, count=0), to="send_invoice")],
        """\
The code of Acme's renewal changed: “post_invoice” is gone, “send_invoice” is new. Is it the same step?
“post_invoice” was begun, and I do not know whether it was done. Nothing runs until you say.
So far I posted invoice (R-36).
Code can say it itself: @step(renamed_from="post_invoice").""",
        ["“send_invoice” goes on with what “post_invoice” has on record; I find out whether it was done",
         "if “post_invoice” was posted after all, and it is the same thing, that is there twice"],
    ),
    "several": (
        [Pair(old=PULL, to="fetch_tickets"), Pair(old=POST, to="send_invoice"),
         Pair(old=Kept(name="post_line", writes=True, count=9, told="L-9"), to=None, others=("send_invoice",))],
        """\
The code of Acme's renewal changed: 3 steps on record are gone, and new ones look like them.
“pull_tickets” → “fetch_tickets” (done, $0.02). “post_invoice” → “send_invoice” (done outside: R-36). \
“post_line” is gone, too (done outside: L-9, 9 times). Nothing runs until you say.
So far I posted invoice (R-36).
Code can say it itself: @step(renamed_from="pull_tickets").""",
        ["each new one goes on with the old one's record; correct single ones by to: old=new, or none",
         "“send_invoice” does it outside once more"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_question_reads_like_this(name: str) -> None:
    """Which name is gone, which is new, what is there, and what each choice does outside."""
    pairs, text, details = SNAPSHOTS[name]
    made = e.code(ACME, pairs)
    assert made.text == text
    assert [o.id for o in made.options] == ["map", "run", "stop"]
    assert [o.detail for o in made.options][:2] == details
    assert made.recommendation == ("map" if name == "a read" else None)
    assert made.context["code"] == [p.line() for p in pairs]


def test_steps_that_are_asked_about_are_not_called_the_same() -> None:
    """What a person is asked about is no note, and "its steps are the same" is none, either."""
    found = compare([PULL], of(FETCH), changed=True, ahead=[])
    assert [p.to for p in found.pairs] == ["fetch_tickets"]
    assert sentences(found) == ()


@given(st.integers(1, 40), st.booleans())
def test_many_are_still_one_short_question(n: int, writes: bool) -> None:
    """However many steps are gone: at most 120 words, and it can be shown in a narrow terminal."""
    pairs = [Pair(old=Kept(name=f"step_{i}", writes=writes, told="x" * 90), to=f"new_step_{i}") for i in range(n)]
    made = e.code(ACME, pairs)
    assert say.count_words(made.text) <= say.MAX_WORDS
    question = Question(
        id="q_1", run_id="r", client_id="acme", step=None, kind=QuestionKind.CODE, text=made.text, options=made.options,
        recommendation=made.recommendation, context=made.context, created_us=1,
    )  # fmt: skip
    for width in (24, 80):
        assert all(len(re.sub(r"\s+$", "", line)) <= width for line in e.render(question, now_us=2, width=width).splitlines())
