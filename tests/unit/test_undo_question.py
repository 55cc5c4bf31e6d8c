"""The question after a bad end, read as the person who has to answer it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepseven.decide import _phrases as say
from stepseven.decide import escalate as e
from stepseven.model import Question, QuestionKind

ACME = e.Situation(
    client="acme", workflow="renewal", goal=None, inputs={"quarter": "Q3"}, done=(), next_steps=(), spent_usd=0.41, limit_usd=None
)  # fmt: skip


def did(
    step: str, receipt: Any, *, undo: bool = True, shared: bool = False, run: str | None = None, **arguments: Any
) -> e.Receipt:
    """One thing that stands outside."""
    return e.Receipt(step=step, arguments=arguments, receipt=receipt, undo=undo, shared=shared, claim=f"c_{step}", run=run)


DOCUMENT = did("create_document", {"id": "D-17"}, client="acme", quarter="Q3")
MAIL = did("send_mail", "m-1", undo=False, to="ann@acme.example")
LINE = did("post_line", None, undo=False, shared=True, n=1)
ROOM = did("book_room", 4711, shared=True, seats=12, notes={"beamer": True})

SNAPSHOTS = {
    "one thing": (
        e.undo(ACME, failed=False, receipts=(DOCUMENT,)),
        """\
Acme's renewal was stopped, and one thing it did outside still stands.
Nothing is taken back unless you say so.
I created document (acme, Q3): id D-17.""",
        "take it back",
    ),
    "some cannot": (
        e.undo(ACME, failed=True, receipts=(MAIL, DOCUMENT, LINE, LINE)),
        """\
Acme's renewal failed, and 4 things it did outside still stand.
I cannot take back: “send mail” and “post line” (twice). Nothing is taken back unless you say so.
I sent mail (ann@acme.example): m-1. I created document (acme, Q3): id D-17. I posted line (1). I posted line (1).""",
        "take back the one that can be",
    ),
    "others may build on it": (
        e.undo(ACME, failed=True, receipts=(ROOM, DOCUMENT), taken_back=1, unknown=("send_mail",)),
        """\
Acme's renewal failed, and 2 things it did outside still stand.
One thing was taken back before. I do not know whether “send mail” went through. Nothing is taken back unless you say so.
I booked room (12): 4711. I created document (acme, Q3): id D-17.
“book room” counts for all of Acme's runs: another may build on it.""",
        "take both back",
    ),
    "in runs below it, and a fork goes on from it": (
        e.undo(
            ACME, failed=True, receipts=(did("book_room", 4711, run="acme-1.visit-1", seats=12), DOCUMENT), builders=("acme-2",)
        ),
        """\
Acme's renewal failed, and 2 things it did outside still stand.
Run acme-2 shares what stands and may build on it. Nothing is taken back unless you say so.
I booked room (12): 4711, in run acme-1.visit-1. I created document (acme, Q3): id D-17.""",
        "take both back",
    ),
    "many": (
        e.undo(ACME, failed=True, receipts=tuple(did("post_invoice", f"R-{n}", name=f"invoice-{n}.xml") for n in range(50))),
        """\
Acme's renewal failed, and 50 things it did outside still stand.
Nothing is taken back unless you say so.
I posted invoice (invoice-0.xml): R-0. I posted invoice (invoice-1.xml): R-1. I posted invoice (invoice-2.xml): R-2. \
I posted invoice (invoice-3.xml): R-3. … and 46 more.""",
        "take all 50 back",
    ),
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_text(name: str) -> None:
    """The question reads exactly like this, and its first choice says how many are taken back."""
    draft, text, label = SNAPSHOTS[name]
    assert draft.text == text
    assert [(o.id, bool(o.detail)) for o in draft.options] == [("undo", True), ("leave", True)]
    assert draft.options[0].label == label
    assert draft.recommendation is None, "a person decides from what is there"


def test_context_holds_every_receipt_whole() -> None:
    """What stands is in the context with all arguments and the whole receipt, each under a name of its own for the page."""
    context = SNAPSHOTS["some cannot"][0].context
    assert context["stands"] == [
        {"step": step, "arguments": arguments, "receipt": receipt, "undo": undo, "claim": f"c_{step}", "run": None}
        for step, arguments, receipt, undo in (
            ("send_mail", {"to": "ann@acme.example"}, "m-1", False),
            ("create_document", {"client": "acme", "quarter": "Q3"}, {"id": "D-17"}, True),
            ("post_line", {"n": 1}, None, False),
            ("post_line", {"n": 1}, None, False),
        )
    ]
    assert list(context["facts"]) == [
        "send mail (ann@acme.example)",
        "create document (acme, Q3)",
        "post line (1)",
        "post line (1) 2",
    ]
    assert len(SNAPSHOTS["many"][0].context["facts"]) == 50
    below = SNAPSHOTS["in runs below it, and a fork goes on from it"][0].context
    assert list(below["facts"]) == ["book room (12), run acme-1.visit-1", "create document (acme, Q3)"]
    assert (below["builders"], [stands["run"] for stands in below["stands"]]) == (["acme-2"], ["acme-1.visit-1", None])


def test_who_builds_on_it_is_said_however_much_there_is() -> None:
    """Many long receipts are cut from the text before the runs that would lose something are."""
    whole = tuple(did(f"step_{n}", "word " * 40, undo=n % 2 == 0, shared=True, note="some more words here") for n in range(20))
    draft = e.undo(
        ACME, failed=True, receipts=whole, taken_back=3, unknown=("a", "b", "c"), builders=("r1", "r2", "r3", "r4", "r5")
    )
    assert "Runs r1, r2, r3 and 2 more share what stands and may build on it." in draft.text
    assert len(draft.text.split()) <= 120
    assert draft.context["builders"] == ["r1", "r2", "r3", "r4", "r5"]


def test_page() -> None:
    """In a terminal: what stands is set apart from the text, the choices say what they do."""
    draft = SNAPSHOTS["some cannot"][0]
    question = Question(
        id="q", run_id="r", client_id="acme", step=None, kind=QuestionKind.UNDO, text=draft.text, options=draft.options,
        context=draft.context, created_us=1_000_000,
    )  # fmt: skip
    assert e.render(question, now_us=61_000_000).splitlines() == [
        "Acme · renewal Q3                          waiting 60 s · spent $0.41 when asked",
        "Acme's renewal failed, and 4 things it did outside still stand. I cannot take",
        "back: “send mail” and “post line” (twice). Nothing is taken back unless you say",
        "so.",
        "",
        "  Record    send mail (ann@acme.example) m-1 · create document (acme, Q3) id",
        "            D-17 · post line (1) done · post line (1) 2 done",
        "",
        "  1  take back the one that can be   by a run of its own",
        "  2  leave it as it is               nothing is done",
        "",
        "q · r",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=30), inner, max_size=4),
    max_leaves=8,
)
RECEIPTS = st.builds(
    e.Receipt, step=st.text(min_size=1, max_size=90), arguments=st.dictionaries(st.text(max_size=30), JSON, max_size=5),
    receipt=JSON, undo=st.booleans(), shared=st.booleans(),
)  # fmt: skip


@given(receipts=st.lists(RECEIPTS, min_size=1, max_size=30), taken_back=st.integers(0, 40), failed=st.booleans())
def test_any_receipts_make_a_short_question(receipts: list[e.Receipt], taken_back: int, *, failed: bool) -> None:
    """Whatever was done: at most 120 words, storable as JSON, and the headline counts what stands."""
    draft = e.undo(ACME, failed=failed, receipts=tuple(receipts), taken_back=taken_back, unknown=tuple(r.step for r in receipts))
    assert len(draft.text.split()) <= 120
    assert json.loads(json.dumps(draft.context)) == draft.context
    counted = "one thing" if len(receipts) == 1 else f"{len(receipts)} things"
    assert counted in draft.text.split("\n", 1)[0]
    assert len(draft.context["facts"]) == len(receipts)


@pytest.mark.parametrize(
    "name, words",
    [
        ("undo.create_document", "undo create document"),
        ("undo.jobs.create", "undo create"),
        ("undo_send", "undo send"),
    ],
)
def test_the_step_that_takes_back_is_called_so(name: str, words: str) -> None:
    """`undo.create_document` is never mistaken for the step that creates."""
    assert say.humanise(name) == words
    assert not re.match("create", say.to_do(name))
