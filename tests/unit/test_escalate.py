"""The questions people read. Read the snapshots as the person who has to answer them, on a telephone, in a minute.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepseven.decide import _phrases as say
from stepseven.decide import escalate as e
from stepseven.model import EffectKind, Option, Question, QuestionKind, QuestionStatus

ACME = e.Situation(
    client="acme",
    workflow="renewal",
    goal=None,
    inputs={"quarter": "Q3"},
    done=(e.Done(step="pull_tickets", summary="214 tickets"), e.Done(step="summarise", summary="6 open risks")),
    next_steps=("draft_pricing", "create_document"),
    spent_usd=0.41,
    limit_usd=2.0,
)
NORTHWIND = e.Situation(
    client="northwind",
    workflow="invoice_upload",
    goal="upload the March invoices",
    inputs={"month": "2026-03"},
    done=(
        e.Done(step="list_invoices", summary="50 invoices"),
        e.Done(step="post_invoice", summary="R-1036", count=36, of=50),
    ),
    next_steps=("send_report",),
    spent_usd=1.98,
    limit_usd=2.0,
)
GLOBEX = replace(ACME, client="globex", done=(), next_steps=(), spent_usd=0.0, limit_usd=None)
CONTRACT = e.Alternative(label="contract amount", usd=0.3, seconds=4, ask=True)


def tried(reason: str, approach: str = "as written", outcome: str = "failed") -> e.Tried:
    """One try that did not succeed."""
    return e.Tried(approach=approach, reason=reason, outcome=outcome, at_us=1_000_000)


def failure(s: e.Situation = ACME, **other: Any) -> e.Draft:
    """A read step of Acme's renewal that met a 403, but for *other*."""
    usual: dict[str, Any] = {
        "step": "pull_billing",
        "subject": None,
        "resource": "billing-api",
        "tried": (tried("403 Forbidden"),),
        "alternatives": (CONTRACT,),
        "effect": EffectKind.READ,
        "nothing_changed": True,
        "needs": None,
        "ask": None,
        "result_type": "Billing",
        "usd": None,
        "seconds": None,
    }
    return e.failure(s, **usual | other)


def batch(**other: Any) -> e.Draft:
    """Two invoices failed in a row, but for *other*."""
    usual: dict[str, Any] = {
        "step": "post_invoice",
        "resource": "portal.example",
        "done": 36,
        "of": 50,
        "failed": (("invoice-037.xml", "503 Service Unavailable"), ("invoice-038.xml", "503 Service Unavailable")),
        "waiting": 12,
        "nothing_changed": True,
    }
    return e.batch(NORTHWIND, **usual | other)


def unknown(**other: Any) -> e.Draft:
    """An invoice that may have been posted, but for *other*."""
    usual: dict[str, Any] = {
        "step": "post_invoice",
        "subject": "invoice-037.xml",
        "arguments": {"amount": 1250.5, "customer": "Northwind Ltd", "due": "2026-04-01"},
        "reason": "httpx.ReadTimeout: timed out after 30 s",
        "why_unknown": "there is no way to look",
        "key": "northwind-2026-03/post_invoice/invoice-037.xml",
        "tries": 1,
    }
    return e.unknown_outcome(NORTHWIND, **usual | other)


def conflict(**other: Any) -> e.Draft:
    """A document with another amount, but for *other*."""
    usual: dict[str, Any] = {
        "step": "create_document",
        "subject": "Q3",
        "first": {"amount": 48000, "discount": 0.1},
        "now": {"amount": 51000, "discount": 0.1},
        "receipt": {"id": "DOC-17"},
        "reason": "pull billing ran again and returned another amount",
    }
    return e.conflict(ACME, **usual | other)


def limit(**other: Any) -> e.Draft:
    """A run two cents below its limit, but for *other*."""
    usual: dict[str, Any] = {"what": "usd", "ceiling": 2.0, "used": 1.98, "next_step": "send_report", "next_cost": 0.3}
    return e.limit(NORTHWIND, **usual | other)


WRITE = {
    "step": "post_invoice",
    "subject": "invoice-037.xml",
    "resource": "portal.example",
    "tried": (tried("422 Unprocessable: VAT number missing"),) * 2,
    "alternatives": (),
    "effect": EffectKind.WRITE,
    "result_type": "str",
}
NEEDS = {
    "step": "create_document",
    "resource": None,
    "tried": (tried("no VAT number in the record", ""),),
    "effect": EffectKind.WRITE,
    "needs": "vat_number",
    "ask": "What is Acme's VAT number?",
}
TWO_WAYS = (tried("ReadTimeout"), tried("KeyError: 'amount'", "contract amount"))

SNAPSHOTS = {
    "a person can fix it": (
        failure(),
        """\
I could not pull billing for Acme.
billing-api answered 403 Forbidden (tried once). Nothing was changed.
So far I pulled 214 tickets and summarised (6 open risks). Next: draft pricing, then create document.""",
    ),
    "both ways failed": (
        failure(tried=TWO_WAYS),
        """\
I could not pull billing for Acme.
As written, billing-api: no answer in time (tried once). With contract amount, the field 'amount' is missing (tried once). \
Nothing was changed.
So far I pulled 214 tickets and summarised (6 open risks). Next: draft pricing, then create document.""",
    ),
    "a write was refused": (
        failure(NORTHWIND, **WRITE),
        """\
I could not post invoice (invoice-037.xml) for Northwind.
portal.example answered 422 Unprocessable: VAT number missing (tried twice). Nothing was posted.
So far I listed 50 invoices and posted 36 of 50 invoices (latest: R-1036). Next: send report.""",
    ),
    "a fact is missing": (
        failure(**NEEDS),
        """\
What is Acme's VAT number?
I could not create document for Acme. No VAT number in the record (tried once). Nothing was created.
Your answer is kept as Acme's VAT number, so I will not ask again.
So far I pulled 214 tickets and summarised (6 open risks). Next: draft pricing, then create document.""",
    ),
    "the workflow's own code": (
        e.body(ACME, reason="KeyError: 'total'", where="agents/renewal.py:42"),
        """\
Acme's renewal broke off in its own code, at renewal.py:42.
The field 'total' is missing.
So far I pulled 214 tickets and summarised (6 open risks). Next: draft pricing, then create document.""",
    ),
    "two items in a row": (
        batch(),
        """\
For Northwind I posted 36 of 50 invoices; 2 failed, so I stopped to ask.
invoice-037.xml and invoice-038.xml: portal.example answered 503 Service Unavailable. \
Nothing was posted for the 2 failed ones. 12 were not started.
So far I listed 50 invoices. Next: send report.""",
    ),
    "it keeps dying": (
        e.poison(ACME, executions=3, last_step="summarise"),
        """\
Acme's renewal died 3 times in a row without finishing anything new, each time at “summarise”.
Its program went away before it could say why; too little memory or a crash in a library looks like this. \
I no longer start it by myself; other runs go on.
So far I pulled 214 tickets and summarised (6 open risks). Next: draft pricing, then create document.""",
    ),
    "was it done?": (
        unknown(),
        """\
I do not know whether “post invoice” (invoice-037.xml) went through for Northwind.
I began it once; it ended with: timed out after 30 s. I could not check: there is no way to look. \
I will not repeat it unless you say it is not there.
What it was to use: amount 1250.5, customer Northwind Ltd and due 2026-04-01. \
Search there for: northwind-2026-03/post_invoice/invoice-037.xml
So far I listed 50 invoices and posted 36 of 50 invoices (latest: R-1036). Next: send report.""",
    ),
    "the same, or a second one?": (
        conflict(),
        """\
“create document” (Q3) was done for Acme before (id DOC-17), and is now asked for with other values.
What differs: amount 48000 → 51000. Nothing was created this time. Pull billing ran again and returned another amount.
So far I pulled 214 tickets and summarised (6 open risks). Next: draft pricing, then create document.""",
    ),
    "the money is used up": (
        limit(),
        """\
Northwind's invoice upload has used $1.98 of $2.00.
The next step, “send report”, needs about $0.30: $2.28 in all. It was not started, and no other step starts until you decide.
So far I listed 50 invoices and posted 36 of 50 invoices (latest: R-1036). Next: send report.""",
    ),
    "may I?": (
        e.approve(ACME, step="send_contract", arguments={"to": "ann@acme.example", "amount": 48000}),
        """\
May I send contract for Acme?
Exactly this: to ann@acme.example and amount 48000. Nothing was sent yet. It cannot be taken back.
So far I pulled 214 tickets and summarised (6 open risks). Next: draft pricing, then create document.""",
    ),
}
DRAFTS = {name: draft for name, (draft, _) in SNAPSHOTS.items()}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_text(name: str) -> None:
    """Every question reads exactly like this."""
    draft, text = SNAPSHOTS[name]
    assert draft.text == text


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_answerable_in_a_minute(draft: e.Draft) -> None:
    """The text has at most 120 words, text and choices together at most 240 (a minute of reading), and no jargon."""
    choices = " ".join(f"{o.label} {o.detail}" for o in draft.options)
    assert len(draft.text.split()) <= 120
    assert len(f"{draft.text} {choices}".split()) <= 240
    assert not re.search(
        r"error occurred|step failed|exception|traceback|\w+Error\b|Timeout|activity|idempot", draft.text + choices, re.IGNORECASE
    )


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_headline_stands_alone(draft: e.Draft) -> None:
    """The first line names the client, and every choice says what it does."""
    assert re.search("Acme|Northwind", draft.text.split("\n")[0])
    assert all(o.label and o.detail for o in draft.options)
    assert json.loads(json.dumps(draft.context)) == draft.context


IDS = {
    "a person can fix it": "again approach:contract amount wait value skip stop",
    "a write was refused": "again wait value skip by_hand stop",
    "a fact is missing": "",
    "the workflow's own code": "again stop",
    "two items in a row": "again wait skip stop",
    "it keeps dying": "again stop",
    "was it done?": "happened not_happened stop",
    "the same, or a second one?": "same second stop",
    "the money is used up": "raise stop",
    "may I?": "approve refuse",
}


@pytest.mark.parametrize("name", IDS)
def test_choices(name: str) -> None:
    """The ids of the choices, in the order people see them."""
    assert " ".join(o.id for o in DRAFTS[name].options) == IDS[name]


def test_all_choices_of_a_failed_write() -> None:
    """Approaches keep their label in the id, a step to run again is named once, and doing it by hand is for writes only."""
    draft = failure(**WRITE | {"alternatives": (CONTRACT, CONTRACT)}, rerun=("pull_tickets", "pull_tickets"))
    expected = ["again", "approach:contract amount", "wait", "value", "skip", "by_hand", "rerun:pull_tickets", "stop"]
    assert [o.id for o in draft.options] == expected


def test_price_is_on_the_choice_that_costs_it() -> None:
    """Another approach and another try carry their own prices."""
    by_id = {o.id: o for o in failure(usd=0.02, seconds=38).options}
    assert (by_id["again"].usd, by_id["again"].seconds) == (0.02, 38)
    assert (by_id["approach:contract amount"].usd, by_id["approach:contract amount"].seconds) == (0.3, 4)
    assert by_id["stop"].usd is None


@pytest.mark.parametrize(
    "draft,recommendation",
    [
        (failure(), "approach:contract amount"),
        (failure(tried=TWO_WAYS), None),
        (failure(alternatives=()), None),
        (failure(alternatives=(), tried=(tried("429 Too Many Requests", outcome="deferred"),)), "wait"),
        (batch(), "wait"),
        (batch(failed=(("a", "403 Forbidden"), ("b", "403 Forbidden"))), None),
        (unknown(), None),
        (conflict(), None),
    ],
)
def test_recommends_only_what_the_data_supports(draft: e.Draft, recommendation: str | None) -> None:
    """An untried way first, waiting for what goes away by itself, and never a guess about an effect."""
    assert draft.recommendation == recommendation


def test_a_way_that_failed_says_so() -> None:
    """Choosing an approach that was tried before is informed."""
    option = next(o for o in failure(tried=TWO_WAYS).options if o.id == "approach:contract amount")
    assert option.detail == "was tried: the field 'amount' is missing"


@pytest.mark.parametrize(
    "effect,known,sentence",
    [
        (EffectKind.READ, True, "Nothing was changed."),
        (EffectKind.WRITE, True, "Nothing was posted."),
        (EffectKind.WRITE, None, "I do not know whether anything was posted."),
        (EffectKind.WRITE, False, "Part of it was done."),
    ],
)
def test_what_did_not_happen(effect: EffectKind, known: bool | None, sentence: str) -> None:
    """What did not happen is said where it is known; of a write it is said when it is not."""
    assert sentence in failure(NORTHWIND, **WRITE | {"effect": effect, "nothing_changed": known}).text
    assert "Nothing" not in failure(nothing_changed=None).text


@pytest.mark.parametrize(
    "raw,words",
    [
        ("KeyError: 'vat'", "the field 'vat' is missing"),
        ("HTTPStatusError: 403 Forbidden", "403 Forbidden"),
        ("ReadTimeout", "no answer in time"),
        ("mylib.errors.OddError", "it broke off and gave no reason (OddError)"),
        ("", "no reason was given"),
        ("GitHub: repository is archived", "GitHub: repository is archived"),
        ('Traceback (most recent call last):\n  File "x.py", line 1\nValueError: bad date 31.02.', "bad date 31.02"),
        ("\x1b[31mred\x1b[0m\x00 text", "red text"),
    ],
)
def test_reasons_are_words(raw: str, words: str) -> None:
    """A reason is told without class names and tracebacks; where there is nothing else, it says that."""
    assert say.reason_of(raw) == words


def test_limits_in_their_units() -> None:
    """Every limit is told in its unit, and the new one asked for is large enough."""
    assert "used 20,412 of 20,000 tokens." in limit(what="tokens", ceiling=20000, used=20412, next_cost=None).text
    assert "used 29 min of 30 min." in limit(what="seconds", ceiling=1800, used=1740, next_cost=None).text
    assert "above 1,800" in str(limit(what="seconds", ceiling=1800, used=1740, next_cost=None).options[0].detail)
    assert "Northwind's runs have used $9.90 of $10.00 for today." in limit(what="client_usd_per_day", ceiling=10, used=9.9).text
    assert "at least $2.29" in str(limit(used=1.9801, next_cost=0.3).options[0].detail)


# -- any data ---------------------------------------------------------------------------------------------------------

text = st.text(max_size=60)
words = st.text(alphabet="abcdefghij", min_size=3, max_size=10)
amount = st.floats(min_value=0.01, max_value=1e6)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
long_text = text | st.text(min_size=500, max_size=900) | words.map(lambda w: f"{w} " * 200)
situations = st.builds(
    e.Situation,
    client=long_text,
    workflow=text,
    goal=st.none() | long_text,
    inputs=st.dictionaries(text, json_value, max_size=3),
    done=st.lists(
        st.builds(e.Done, step=text, summary=st.none() | long_text, count=st.integers(1, 99), of=st.none() | st.just(99)),
        max_size=6,
    ).map(tuple),
    next_steps=st.lists(text, max_size=6).map(tuple),
    spent_usd=amount,
    limit_usd=st.none() | amount,
)
tries = st.lists(
    st.builds(
        e.Tried, approach=text, reason=long_text, outcome=st.sampled_from(["failed", "unknown", "deferred", "interrupted"])
    ),
    max_size=8,
).map(tuple)
alternatives = st.lists(
    st.builds(e.Alternative, label=text, usd=st.none() | amount, seconds=st.none(), ask=st.booleans()), max_size=3
)


@given(
    s=situations,
    tried=tries,
    others=alternatives,
    ask=st.none() | long_text,
    needs=st.none() | text,
    subject=long_text,
    step=text,
)
def test_never_too_long(*, s, tried, others, ask, needs, subject, step) -> None:
    """Whatever the data, the text stays within 120 words, prints, and the context is JSON."""
    draft = failure(
        s, step=step, subject=subject, tried=tried, alternatives=tuple(others), ask=ask, needs=needs, effect=EffectKind.WRITE
    )
    assert draft.text
    assert len(draft.text.split()) <= 120
    assert all(c.isprintable() or c == "\n" for c in draft.text)
    json.dumps(draft.context, allow_nan=False)


@given(
    s=situations,
    values=st.dictionaries(text, json_value, max_size=8),
    first=st.none() | st.dictionaries(text, json_value, max_size=8),
    reason=long_text,
)
def test_effect_questions_hold_any_values(s, values, first, reason) -> None:
    """Questions about effects take any arguments and receipts, within 120 words."""
    for draft in (
        e.conflict(s, step="post_it", subject=None, first=first, now=values, receipt=first, reason=reason),
        e.unknown_outcome(s, step="x", subject=None, arguments=values, reason=reason, why_unknown=reason, key=reason, tries=1),
        e.approve(s, step="send", arguments=values, text=reason),
        e.body(s, reason=reason, where=reason),
        e.batch(s, step="x", resource=reason, done=0, of=9, failed=((reason, reason),) * 5, waiting=4, nothing_changed=None),
    ):
        assert len(draft.text.split()) <= 120
        json.dumps(draft.context, allow_nan=False)


@given(n=st.integers(0, 10**6), status=st.integers(400, 599), usd=st.integers(1, 10**6), other=st.integers(1, 10**6))
def test_figures_come_from_the_data(n: int, status: int, usd: int, other: int) -> None:
    """Change the data and the figures of the text change with it."""
    s = replace(ACME, done=(e.Done(step="pull_tickets", summary=f"{n} tickets"),))
    draft = failure(s, tried=(tried(f"{status} Refused"),))
    assert set(re.findall(r"\d+", draft.text)) == {str(n), str(status)}
    over = limit(ceiling=usd / 100, used=other / 100, next_cost=None).text
    assert f"used ${other / 100:,.2f} of ${usd / 100:,.2f}." in over
    if usd != other:
        changes = conflict(first={"amount": usd}, now={"amount": other})
        assert f"amount {usd} → {other}" in changes.text
        assert changes.context["facts"] == {"amount": {"then": usd, "now": other}}
    assert f"amount {usd}" in unknown(arguments={"amount": usd}).text


@given(reasons=st.lists(words, min_size=1, max_size=4, unique=True))
def test_each_approach_with_its_error(reasons: list[str]) -> None:
    """Up to four ways are each told with what came of them."""
    told = failure(tried=tuple(tried(r, f"way {i}") for i, r in enumerate(reasons))).text
    assert all(f"With way {i}, {r} (tried once)." in told for i, r in enumerate(reasons))


# -- the page ---------------------------------------------------------------------------------------------------------


def question(draft: e.Draft, **other: Any) -> Question:
    """The stored row of a draft, but for *other*."""
    usual: dict[str, Any] = {
        "id": "q_17",
        "run_id": "acme-2026-03-14-01",
        "client_id": "acme",
        "step": "pull_billing",
        "kind": QuestionKind.FAILURE,
        "text": draft.text,
        "options": draft.options,
        "recommendation": draft.recommendation,
        "context": draft.context,
        "created_us": 1_000_000,
    }
    return Question(**usual | other)


def test_page() -> None:
    """A question on 80 columns: who, what, what is known, the choices with what they do, the ids last and small."""
    page = e.render(question(failure(), asked_of="ann", deadline_us=7_921_000_000), now_us=721_000_000)
    assert (
        page
        == """\
Acme · renewal Q3               waiting 12 min · spent $0.41 of $2.00 when asked
I could not pull billing for Acme. Nothing was changed.

  Done      pulled 214 tickets · summarised (6 open risks)
  Failed    billing-api answered 403 Forbidden (12 min ago; one try)
  Next      draft pricing, then create document

  1  try again now                          when billing-api is mended;
                                            continues at once
  2  use contract amount instead            continues at once, about $0.30, ~4 s
  3  wait until billing-api answers again   I look every 15 min; or give a time
                                            or a fact
  4  give the result yourself               give it (as Billing); continues at
                                            once
  5  skip “pull billing”                    the run goes on without its result
  6  stop this run                          the 2 finished steps are kept

                                      recommended: 2 · asked of ann · due in 2 h
q_17 · acme-2026-03-14-01"""
    )


def test_page_says_what_came_since_and_what_is_spent_by_now() -> None:
    """Other branches go on while a person thinks: the figures are those of the look, also of a limit that was raised."""
    page = e.render(
        question(failure()), now_us=721_000_000, meanwhile=e.Meanwhile(spent_usd=2.5, limit_usd=4, done=12)
    ).split("\n")  # fmt: skip
    assert page[0] == "Acme · renewal Q3                          waiting 12 min · spent $2.50 of $4.00"
    assert page[3:5] == [
        "  Done      pulled 214 tickets · summarised (6 open risks)",
        "  Since     12 more results since it was asked",
    ]
    same = e.render(question(failure()), now_us=721_000_000, meanwhile=e.Meanwhile(spent_usd=0.41))
    assert "waiting 12 min · spent $0.41 of $2.00\n" in same
    assert "Since" not in same


def test_page_that_is_read_at_once_needs_no_time() -> None:
    """Where the run stops and asks, its figures are those of now; of a question that is closed they are old."""
    assert "spent $0.41 of $2.00\n" in e.render(question(failure()), now_us=2_000_000)
    closed = question(failure(), status=QuestionStatus.ANSWERED, answer="again", answered_by="ann", answered_us=2_000_000)
    assert "answered · spent $0.41 of $2.00 when asked" in e.render(closed, now_us=2_000_000)


def test_page_names_what_cannot_be_seen_and_counts_one_as_one() -> None:
    """In words, and in grammar."""
    done = [{"step": f"s{n}", "summary": None, "count": 2, "of": None} for n in range(6)]
    page = e.render(question(failure(), context={"next": ["unknown", "close_month"], "done": done}), now_us=0)
    assert "something the code does not show, then close month" in page
    assert "finished “s0” twice" in page
    assert "… 1 more step\n" in page


def test_page_tells_everything_the_text_tells() -> None:
    """The page lays the text out anew and loses no figure of it."""
    for draft in DRAFTS.values():
        page = e.render(question(draft), now_us=721_000_000)
        assert set(re.findall(r"\d+", draft.text)) <= set(re.findall(r"\d+", page))


def test_page_after_an_answer() -> None:
    """An answered question says who answered what."""
    answered = question(failure(), status=QuestionStatus.ANSWERED, answer="again", answered_by="ann", answered_us=661_000_000)
    assert "answered by ann 60 s ago: again" in e.render(answered, now_us=721_000_000)


def test_page_keeps_an_authors_text_whole() -> None:
    """A question without our context shows its text as the author wrote it, and where to answer."""
    page = e.render(question(failure(), text="Is the discount\nstill approved?", options=(), context={}), now_us=0)
    assert "Is the discount\nstill approved?" in page
    assert "answer:" in page


@given(
    context=st.dictionaries(
        st.sampled_from(["done", "failed", "next", "facts", "run", "headline", "more", "key", "receipt", "nothing_changed"]),
        json_value,
    ),
    body=long_text,
    label=long_text,
    width=st.integers(-5, 120),
    usd=st.none() | st.floats(),
    now=st.integers(-(10**18), 10**18),
)
def test_page_never_fails(context, body, label, width, usd, now) -> None:
    """Any row, from any version, is shown; no line is wider than the page."""
    options = (Option(id="a", label=label, detail=label, usd=usd), Option(id="b", label="b"))
    row = question(failure(), client_id=label, text=body, context=context, options=options, recommendation="zzz", asked_of=label)
    page = e.render(row, now_us=now, width=width)
    assert max(map(len, page.split("\n"))) <= max(width, 24)


@given(amount=st.floats(min_value=0, max_value=1e9))
def test_money_is_never_nothing(amount: float) -> None:
    """An amount above nothing does not read as nothing, and is at most half a cent off."""
    shown = float(say.money(amount).replace("$", "").replace(",", ""))
    assert math.isclose(shown, amount, abs_tol=0.005000001)
    assert shown > 0 or amount < 1e-7


def test_an_undo_in_doubt_asks_about_the_undo() -> None:
    """Whether something was taken back: "it is there" would be read as the thing itself. Values are those of what it did."""
    arguments = {"what": "ann", "arguments": {"guest": "ann"}, "receipt": "B-1", "claim": "c_1"}
    draft = unknown(step="undo.book_room", subject="ann", arguments=arguments)
    assert draft.text.startswith("I do not know whether “book room” (ann) was taken back for")
    assert [o.label for o in draft.options] == ["it was taken back", "it still stands: take it back", "stop this run"]
    assert draft.context["facts"] == {"guest": "ann", "receipt": "B-1"}


def test_verbs_are_written_as_they_are() -> None:
    """Doubled letters, and names that end in a small word."""
    assert [e.say.did(name, None) for name in ("sum_risks", "scan_files", "transfer_funds")] == [
        "summed risks", "scanned files", "transferred funds",
    ]  # fmt: skip
    assert e.say.counted("clean_up", 2, None) == "cleaned up twice"
