"""From what was seen of a run to a plan: lines, prices, bounds, questions, the cheapest way, and what nobody knows.

Longer than other files: each rule by which a plan counts and prices stands beside the others.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepseven.decide.plan import Coming, Do, Drifted, Met, Observed, Path, PlannedStep, Price, Standing, plan, priced
from stepseven.decide.prices import Call, Earlier, prices

DAY = 86_400_000_000
RUN = Standing(run_id="r1", client_id="acme", workflow="renewal", status="queued", updated_us=0, looked_us=2 * DAY)


def seen(usd: float = 0.0, *, calls: float | None = 1, most: float | None = None, seconds: float = 1.0, n: int = 5) -> Price:
    """A step that earlier runs have."""
    return Price(usd=usd, usd_seen=usd if most is None else most, seconds=seconds, n=n, calls=calls)


def reuse(name: str, **more: Any) -> Met:
    """Its record answers."""
    return Met(name=name, do=Do.REUSE, **more)


def again(name: str, why: str = "failed", **more: Any) -> Met:
    """It was called, and runs."""
    return Met(name=name, do=Do.RUN, why=why, **more)


def ask(name: str = "run.ask", **more: Any) -> Met:
    """A person is asked."""
    return Met(name=name, do=Do.ASK, **more)


def next_(name: str, **more: Any) -> Coming:
    """The source has it."""
    return Coming(name=name, where=more.pop("where", "w.py:1"), **more)


def way(*what: Met | Coming, prices: dict[str, Price] | None = None, **more: Any) -> Path:
    """The way that was seen so."""
    met = tuple(x for x in what if isinstance(x, Met))
    coming = tuple(x for x in what if isinstance(x, Coming))
    return priced("continue", Observed(met=met, coming=coming, **more), prices or {})


def only(path: Path) -> PlannedStep:
    """Its one line."""
    assert len(path.steps) == 1, path.steps
    return path.steps[0]


# -- lines ----------------------------------------------------------------------------------------------------------------


def test_calls_that_are_alike_are_one_line() -> None:
    """Fifty results of one step are one line, with what they have cost together and the last summary."""
    step = only(way(*(reuse("post", key=str(n), usd=0.01, seconds=2.0, summary=f"R-{n}") for n in range(50))))
    assert (step.step, step.do, step.count, step.at_most, step.summary) == ("post", Do.REUSE, 50, 50, "R-49")
    assert step.usd == pytest.approx(0.5)
    assert step.seconds == 100


def test_reasons_of_one_kind_are_one_line_and_others_are_not() -> None:
    """The loss of invoices/7.pdf and that of invoices/8.pdf are one reason; that a verification said no is another."""
    gone = [again("fetch", f"its file invoices/{n}.pdf is gone", key=str(n)) for n in range(3)]
    path = way(*gone, again("fetch", "verify said no", key="x"))
    assert [(s.why, s.count) for s in path.steps] == [("its file invoices/0.pdf is gone", 3), ("verify said no", 1)]


def test_what_is_reused_run_and_asked_of_one_step_are_three_lines() -> None:
    """In the order in which they were met."""
    path = way(reuse("post", key="1"), again("post", key="2", branch="m[2]"), ask("post", key="3", branch="m[3]"))
    assert [(s.step, s.do) for s in path.steps] == [("post", Do.REUSE), ("post", Do.RUN), ("post", Do.ASK)]


def test_nothing_that_is_reused_is_paid_again() -> None:
    """What a result has cost is told, and is no part of what the way costs."""
    path = way(reuse("read", usd=3.0, seconds=60.0))
    assert (only(path).usd, only(path).usd_at_most) == (3.0, 0.0)
    assert (path.usd, path.usd_at_most, path.seconds, path.questions, path.questions_at_most) == (0, 0, 0, 0, 0)


def test_the_handles_own_bookkeeping_is_no_line() -> None:
    """A map's count and pinned text cost nothing and ask nobody."""
    assert way(next_("run.map", many=True), next_("client.get"), next_("run.now")).steps == ()


# -- prices ---------------------------------------------------------------------------------------------------------------


def test_expected_is_the_median_of_earlier_runs() -> None:
    """Whatever is declared: what was seen is nearer."""
    path = way(again("draft", cost_usd=1.0), prices={"draft": seen(0.2, seconds=30)})
    assert (path.usd, path.seconds, only(path).n) == (0.2, 30, 5)


def test_without_earlier_runs_it_is_what_is_declared() -> None:
    """One try's cost for every call that is certain."""
    path = way(next_("draft", cost_usd=0.25, cost_seconds=9), next_("draft", cost_usd=0.25, cost_seconds=9))
    assert (path.usd, path.seconds, only(path).count, only(path).n) == (0.5, 18, 2, 0)


def test_at_most_is_what_is_declared_for_every_try() -> None:
    """Two tries of a quarter are half a dollar."""
    assert way(again("draft", cost_usd=0.25, tries=2)).usd_at_most == 0.5


def test_at_most_is_no_less_than_what_was_seen() -> None:
    """A step that was seen to cost more than it declares may do so again."""
    assert way(again("draft", cost_usd=0.25, tries=2), prices={"draft": seen(0.3, most=2.0)}).usd_at_most == 2.0


def test_a_step_that_never_reported_a_cost_is_free_as_far_as_known() -> None:
    """It declares nothing, and earlier runs of it cost nothing."""
    path = way(again("read"), prices={"read": seen(0)})
    assert (path.usd, path.usd_at_most, path.unknown) == (0, 0, ())


def test_a_step_that_reported_a_cost_without_declaring_one_has_no_bound() -> None:
    """The median is expected; how much it can be nobody can tell, and that is said by name."""
    path = way(again("draft"), prices={"draft": seen(0.2)})
    assert (path.usd, path.usd_at_most) == (0.2, None)
    assert path.unknown == ("what draft can cost at most (no cost= declared)",)
    assert (path.usd_at_most_known, path.unbounded) == (0, ("draft",))


def test_what_nobody_ever_saw_is_unknown_by_name() -> None:
    """Undeclared and never seen: no figure at all, rather than nothing."""
    path = way(again("new_one"), again("other", cost_usd=0.5, tries=2))
    assert (path.usd, path.usd_at_most, path.seconds) == (None, None, None)
    assert path.unknown == ("what new_one costs (no cost= declared, and never seen)",)
    assert (path.usd_at_most_known, path.unbounded) == (2 * 0.5, ("new_one",))


def test_what_may_run_counts_in_the_upper_bound_alone() -> None:
    """Only if an earlier result differs: not expected, and not forgotten."""
    path = way(again("read", cost_usd=0.1), again("draft", "only if read gives another result", maybe=True, cost_usd=1, tries=2))
    assert (path.usd, path.usd_at_most) == (0.1, 2.1)
    draft = path.steps[1]
    assert (draft.count, draft.at_most, draft.maybe, draft.usd, draft.usd_at_most) == (0, 1, True, 0, 2)


def test_a_result_that_may_not_stand_counts_in_the_upper_bound() -> None:
    """It is reused, unless what it was built on changes."""
    path = way(reuse("draft", maybe=True, usd=0.3, cost_usd=0.5, tries=2))
    assert (only(path).do, path.usd, path.usd_at_most) == (Do.REUSE, 0, 1)


def test_a_run_that_is_started_costs_what_runs_of_its_workflow_cost() -> None:
    """By workflow where that is known, else what any started run cost."""
    known = {"run.start": seen(1.0), "run.start/pricing": seen(5.0)}
    assert way(next_("run.start", text="pricing"), prices=known).usd == 5
    assert way(again("run.start", key="pricing=d1:abc"), prices=known).usd == 5
    assert way(next_("run.start"), prices=known).usd == 1
    assert way(next_("run.start", text="other"), prices=known).usd == 1


def test_waiting_costs_nothing() -> None:
    """A sleep and a wait for a fact are lines without money or work."""
    path = way(next_("run.sleep"), next_("run.wait_for"))
    assert ([s.step for s in path.steps], path.usd, path.seconds, path.unknown) == (["run.sleep", "run.wait_for"], 0, 0, ())


# -- how often ------------------------------------------------------------------------------------------------------------


def test_a_loop_is_expected_as_often_as_in_earlier_runs() -> None:
    """Forty calls are usual, thirty-six were made: four are expected, and nobody can bound it."""
    made = [reuse("post", key=str(n)) for n in range(36)]
    path = way(*made, next_("post", many=True, cost_usd=0.01), prices={"post": seen(0.01, calls=40)})
    assert (path.steps[1].about, path.steps[1].count, path.steps[1].at_most) == (4, 0, None)
    assert (path.usd, path.usd_at_most) == (0.04, None)


def test_a_loop_that_made_more_than_usual_is_expected_to_be_over() -> None:
    """Never fewer than none."""
    made = [reuse("post", key=str(n)) for n in range(50)]
    assert way(*made, next_("post", many=True), prices={"post": seen(0.01, calls=40)}).usd == 0


def test_a_loop_nobody_saw_is_unknown_by_name() -> None:
    """How often it runs is said not to be known."""
    path = way(next_("post", many=True, cost_usd=0.01))
    assert (only(path).about, path.usd, path.usd_at_most) == (None, None, None)
    assert path.unknown == ("how often post runs",)


def test_a_loop_over_what_is_free_costs_nothing() -> None:
    """However often."""
    path = way(next_("check", many=True), prices={"check": seen(0, calls=None)})
    assert (path.usd, path.usd_at_most) == (0, 0)


def test_a_branch_is_expected_if_it_is_usual() -> None:
    """What a condition decides happens as it did in earlier runs; without any it is not expected."""
    usual, rare = seen(0.2, calls=1), seen(0.2, calls=0)
    assert way(next_("remind", maybe=True, cost_usd=0.2), prices={"remind": usual}).usd == 0.2
    assert way(next_("remind", maybe=True, cost_usd=0.2), prices={"remind": rare}).usd == 0
    assert way(next_("remind", maybe=True, cost_usd=0.2)).usd == 0
    assert way(next_("remind", maybe=True, cost_usd=0.2)).usd_at_most == 0.2


def test_two_branches_of_one_step_are_expected_once() -> None:
    """One call a run is usual: it is expected once, whichever place it comes from, and not twice."""
    path = way(next_("send", maybe=True), next_("send", many=True), prices={"send": seen(1, calls=1)})
    assert path.usd == 1


def test_what_is_on_record_after_a_step_that_runs_again_is_not_expected_to_run() -> None:
    """Its call was not reached: it runs only if what comes before gives another result."""
    path = way(again("read", cost_usd=0.1), next_("draft", cost_usd=1), prices={"draft": seen(1)}, stale=("draft",))
    assert (path.usd, path.usd_at_most, path.steps[1].maybe) == (0.1, 1.1, True)
    assert "another result" in path.steps[1].why


# -- what cannot be seen --------------------------------------------------------------------------------------------------


def test_what_cannot_be_seen_is_said_with_its_place_and_has_no_bound() -> None:
    """Nothing is omitted: it is a line, a sentence, and there is no upper bound of anything."""
    path = way(again("read", cost_usd=0.1), next_("unknown", where="w.py:7"), next_("unknown", where="w.py:7"))
    assert [(s.step, s.why, s.at_most) for s in path.steps[1:]] == [("unknown", "w.py:7", None)]
    assert path.unknown[0] == "what is called at w.py:7"
    assert (path.usd, path.usd_at_most, path.seconds, path.questions_at_most) == (None, None, None, None)


def test_earlier_runs_tell_what_may_be_behind_it() -> None:
    """Steps they called, and that are nowhere else, are expected; there is still no bound."""
    known = {"read": seen(0.1), "close": seen(0.2, calls=2), "rare": seen(9, calls=0), "run.start/x": seen(7)}
    path = way(again("read"), next_("unknown", where="w.py:7"), prices=known)
    assert [(s.step, s.about) for s in path.steps if s.why == "as in earlier runs"] == [("close", 2)]
    assert (path.usd, path.usd_at_most) == (0.5, None)


def test_without_the_code_what_is_on_record_is_told_and_the_rest_is_unknown() -> None:
    """What else is not seen is a sentence that came with it."""
    path = way(reuse("a"), unknown=("what comes next: the code is not loaded",))
    assert [s.step for s in path.steps] == ["a"]
    assert path.unknown == ("what comes next: the code is not loaded",)
    assert (path.usd, path.usd_at_most) == (None, None)


def test_code_that_breaks_off_asks_and_hides_what_follows() -> None:
    """The exception is a question, and nothing after it is known."""
    path = way(reuse("a"), broke="KeyError: 'amount'")
    assert (path.steps[1].do, path.questions) == (Do.ASK, 1)
    assert "KeyError" in path.steps[1].why
    assert path.usd_at_most is None
    assert "breaks off" in path.unknown[0]


# -- questions ------------------------------------------------------------------------------------------------------------


def test_every_question_counts() -> None:
    """Those that are met, those to come, and one approval for each irreversible step."""
    path = way(ask(question="Is it so?"), next_("run.approve"), next_("send", effect="irreversible"))
    assert (path.questions, path.questions_at_most) == (3, 3)
    assert [s.do for s in path.steps] == [Do.ASK] * 3


def test_an_irreversible_call_that_was_met_is_approved_once() -> None:
    """Its question is a line of its own or it is not: one either way. One that was approved is not asked about again."""
    new = again("send", "not done yet", effect="irreversible", new=True)
    assert way(new).questions == 1
    assert way(new, ask("send", question="Send it?")).questions == 1
    assert way(replace(new, new=False)).questions == 0


def test_a_question_that_may_come_counts_in_the_upper_bound() -> None:
    """Under a condition: not expected."""
    path = way(next_("run.ask", maybe=True), ask(maybe=True, question="?"))
    assert (path.questions, path.questions_at_most) == (0, 2)


def test_questions_in_a_loop_have_no_bound() -> None:
    """One is expected, how many there are nobody knows."""
    path = way(next_("run.approve", many=True))
    assert (path.questions, path.questions_at_most) == (1, None)


def test_a_question_about_a_step_lets_it_run() -> None:
    """What the step costs is expected once it is answered; where the call is a line of its own, not twice."""
    asked = ask("draft", question="draft failed. What now?", cost_usd=0.5)
    assert way(asked).usd == 0.5
    assert way(asked, again("draft", cost_usd=0.5)).usd == 0.5


def planned(observed: dict[str, Observed], **more: Any) -> Any:
    """A plan of a run that stands as *more* says."""
    known: dict[str, Price] = more.pop("prices", {})
    run = replace(RUN, **{k: more.pop(k) for k in ("questions", "asks", "status", "waiting_for") if k in more})
    return plan(run, observed, known, **more)


def test_open_questions_that_the_code_does_not_meet_are_asked_first() -> None:
    """Those it meets are not counted twice."""
    seen_ = Observed(met=(ask(question="Is it so?"),))
    made = planned({"continue": seen_}, questions=("Is it so?\nMore", "The run died three times."))
    assert made.paths[0].questions == 2
    assert [s.summary for s in made.steps] == ["The run died three times.", "Is it so?"]


def test_what_moved_is_one_question_on_every_way() -> None:
    """Whichever way is taken, a resume asks once, before anything runs."""
    moved = Drifted(key="contact", old="a", new="b")
    made = planned({"continue": Observed(), "refresh": Observed(met=(again("draft", cost_usd=1),))}, drift=(moved,), asks=True)
    assert [(p.name, p.questions, p.cheapest) for p in made.paths] == [("continue", 1, True), ("refresh", 1, False)]
    assert made.steps[0].summary == "contact changed"
    assert planned({"continue": Observed()}, drift=(moved,), asks=False).paths[0].questions == 0


# -- the cheapest ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "continue_, refresh, best",
    [
        ([again("a", cost_usd=1)], [again("a", cost_usd=2)], "continue"),
        ([again("a", cost_usd=2)], [again("a", cost_usd=1), ask(), ask()], "refresh"),
        ([again("a", cost_usd=1), ask()], [again("a", cost_usd=1)], "refresh"),
        ([again("a", cost_usd=1, cost_seconds=9)], [again("a", cost_usd=1, cost_seconds=2)], "refresh"),
        ([again("a", cost_usd=1)], [again("b")], "continue"),
        ([again("b")], [again("a", cost_usd=100)], "refresh"),
        ([again("a", cost_usd=1)], [again("a", cost_usd=1)], "continue"),
    ],
    ids=["money", "money before questions", "questions", "time", "known", "known before cheap", "tie"],
)
def test_the_cheapest_way_is_marked(continue_: list[Met], refresh: list[Met], best: str) -> None:
    """By money, then questions, then time; what is unknown loses to what is known; a tie goes on as it stands."""
    for names in (("continue", "refresh"), ("refresh", "continue")):
        ways = {"continue": Observed(met=tuple(continue_)), "refresh": Observed(met=tuple(refresh))}
        made = planned({name: ways[name] for name in names})
        assert [p.name for p in made.paths if p.cheapest] == [best]
        assert made.steps == next(p for p in made.paths if p.cheapest).steps


def test_of_a_run_that_has_ended_there_is_nothing_to_do() -> None:
    """No way, no line."""
    made = planned({}, status="done")
    assert (made.paths, made.steps, made.headline) == ((), (), "done 2 days ago")


@pytest.mark.parametrize(
    "what, run, says",
    [
        ([reuse("a"), again("b"), next_("c")], {}, "stopped 2 days ago at step 2 of 3"),
        ([reuse("a"), next_("b", maybe=True)], {}, "stopped 2 days ago at step 2 of about 2"),
        ([reuse("a"), reuse("b")], {}, "stopped 2 days ago with all its steps on record"),
        ([reuse("a"), ask()], {"status": "waiting", "waiting_for": "person"}, "waiting for a person for 2 days at step 2 of 2"),
        ([reuse("a"), next_("unknown")], {}, "stopped 2 days ago after 1 step"),
        ([], {}, "stopped 2 days ago"),
        ([reuse("a"), again("a", key="2"), next_("b")], {"status": "running"}, "running at step 1 of 2"),
    ],
)
def test_the_headline_says_where_it_stands(what: list[Any], run: dict[str, Any], says: str) -> None:
    """How long ago, and at which of how many steps, as far as that is known."""
    met, coming = (tuple(x for x in what if isinstance(x, kind)) for kind in (Met, Coming))
    assert planned({"continue": Observed(met=met, coming=coming)}, **run).headline == says


def test_a_plan_is_one_json_document() -> None:
    """The same names; what a resume does as text."""
    moved = Drifted(key="contact", old={"a": 1}, new=None)
    told = planned({"continue": Observed(met=(reuse("a"), again("b")))}, drift=(moved,), notes=("x",)).document()
    assert json.loads(json.dumps(told)) == told
    assert [s["do"] for s in told["steps"]] == ["reuse", "run"]
    assert told["paths"][0]["cheapest"] is True
    assert told["drift"][0]["old"] == {"a": 1}
    assert told["notes"] == ["x"]


# -- whatever was seen ----------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "d"])
EFFECTS = st.sampled_from([None, "write", "irreversible"])
COSTS = st.none() | st.sampled_from([0.0, 0.1, 1.5])
MET = st.builds(
    Met, name=NAMES | st.sampled_from(["run.ask", "run.approve", "run.start"]), key=st.sampled_from("123"),
    do=st.sampled_from(Do), branch=st.sampled_from(["", "m[1]", "m[2]"]), why=st.sampled_from(["", "x 1", "x 2", "y"]),
    maybe=st.booleans(),
    effect=EFFECTS, usd=COSTS, cost_usd=COSTS, tries=st.integers(1, 3), new=st.booleans(),
)  # fmt: skip
COMING = st.builds(
    Coming, name=NAMES | st.sampled_from(["unknown", "run.ask", "run.approve", "run.start", "run.sleep", "run.wait_for"]),
    where=st.sampled_from(["w.py:1", "w.py:2"]), many=st.booleans(), maybe=st.booleans(), effect=EFFECTS, cost_usd=COSTS,
    tries=st.integers(1, 3),
)  # fmt: skip
OBSERVED = st.builds(
    Observed, met=st.lists(MET, max_size=6).map(tuple), coming=st.lists(COMING, max_size=6).map(tuple),
    broke=st.none() | st.just("it broke"), stale=st.lists(NAMES, max_size=2, unique=True).map(tuple),
)  # fmt: skip
EARLIER = st.lists(
    st.builds(
        lambda calls, done: Earlier(calls=calls, counts={n: len(c) for n, c in calls.items()}, done=done),
        st.dictionaries(
            st.sampled_from(["a", "b", "c", "z"]),
            st.lists(st.builds(Call, st.sampled_from([0, 100_000, 2_000_000]), st.just(1_000_000)), min_size=1, max_size=3),
        ),
        st.booleans(),
    ),
    max_size=4,
).map(prices)


@given(OBSERVED, EARLIER)
def test_nothing_that_was_seen_is_missing(observed: Observed, known: dict[str, Price]) -> None:
    """Every call that was met or may come is a line, and the lines have as many calls as there are."""
    path = priced("continue", observed, known)
    lines = {s.step for s in path.steps}
    assert {m.name for m in observed.met} | {c.name for c in observed.coming} <= lines
    certain = sum(not m.maybe or m.do is Do.REUSE for m in observed.met)
    certain += sum(not (c.maybe or c.many or c.name in observed.stale or c.name == "unknown") for c in observed.coming)
    assert sum(s.count for s in path.steps) == certain + (observed.broke is not None)


@given(OBSERVED, EARLIER)
def test_an_upper_bound_is_one(observed: Observed, known: dict[str, Price]) -> None:
    """Expected never exceeds it, in money or questions; a loop or something unseen has none, unless it is free."""
    path = priced("continue", observed, known)
    if path.usd is not None and path.usd_at_most is not None:
        assert path.usd <= path.usd_at_most + 1e-9
    if path.questions_at_most is not None:
        assert path.questions <= path.questions_at_most
    if observed.broke is not None or any(c.name == "unknown" for c in observed.coming):
        assert path.usd_at_most is None
        assert path.questions_at_most is None
        assert path.unknown
    for s in path.steps:
        assert s.at_most is None or s.count <= s.at_most
        assert s.usd_at_most is None or s.do is Do.REUSE or s.usd is None or s.usd <= s.usd_at_most + 1e-9


@given(OBSERVED, EARLIER, MET | COMING)
def test_one_call_more_never_lowers_a_bound(observed: Observed, known: dict[str, Price], more: Met | Coming) -> None:
    """What may be spent or asked can only grow, or be lost."""
    field = "met" if isinstance(more, Met) else "coming"
    fewer = priced("continue", observed, known)
    larger = priced("continue", replace(observed, **{field: (*getattr(observed, field), more)}), known)
    if larger.usd_at_most is not None:
        assert fewer.usd_at_most is not None
        assert fewer.usd_at_most <= larger.usd_at_most + 1e-9


@given(OBSERVED, EARLIER)
def test_a_figure_that_is_missing_is_said_to_be(observed: Observed, known: dict[str, Price]) -> None:
    """Without a figure for money there is a sentence that says what is not known."""
    path = priced("continue", observed, known)
    if path.usd is None or path.usd_at_most is None:
        assert path.unknown
