"""The next move after a failure, from rows alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepseven.decide import policy
from stepseven.decide.policy import Ask, Asked, Give, Obey, Past, Trouble, Try, Wait, Way, backoff_us, believed, next_move
from stepseven.model import AttemptOutcome, FailureKind, QuestionStatus

S = 1_000_000
OLD, NEW = "source-1", "source-2"
WAYS = (Way(label="second"), Way(label="third"), Way(label="by contract", ask=True))


def past(n: int, outcome: str = "failed", kind: str = "retryable", **more: object) -> Past:
    """One try on record; it began at second 10 n."""
    made = Past(
        n=n, approach=None, outcome=AttemptOutcome(outcome), kind=FailureKind(kind), reason=f"reason {n}", signature="s",
        started_us=n * 10 * S, ended_us=n * 10 * S + S, source_digest=OLD,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def asked(attempts: int, choice: str | None = None, answer: object = None, *, status: str = "answered") -> Asked:
    """A question about the failures so far."""
    return Asked(
        id="q_1", status=QuestionStatus(status), attempts=attempts, choice=choice,
        answer=choice if answer is None else answer, by="ann", answered_us=attempts * 10 * S + 2 * S,
    )  # fmt: skip


def move(*rows: Past, ask: tuple[Asked, ...] = (), ways: tuple[Way, ...] = (), **more: object) -> policy.Move:
    """The next move in the middle of the jitter."""
    return next_move(Trouble(past=rows, asked=ask, ways=ways, source_digest=OLD, **more), chance=0.5)  # type: ignore[arg-type]


# -- histories --------------------------------------------------------------------------------------------------------

OUTCOMES = st.sampled_from(["failed", "deferred", "interrupted", "unknown"])
KINDS = st.sampled_from(list(FailureKind))
CHANCE = st.floats(0, 1, exclude_max=True)


@st.composite
def histories(draw: st.DrawFn) -> Trouble:
    """Rows as a store could hold them: any outcomes, questions asked at any number of failures."""
    rows = tuple(
        past(
            n, draw(OUTCOMES), draw(KINDS).value, narrow=draw(st.booleans()),
            approach=draw(st.sampled_from([None, "second", "by contract"])),
            retry_after_us=draw(st.sampled_from([None, S, 3600 * S])), source_digest=draw(st.sampled_from([OLD, NEW])),
        )
        for n in range(1, draw(st.integers(0, 7)) + 1)
    )  # fmt: skip
    failed = len(policy.failed_tries(rows))
    choices = ["again", "approach:by contract", "skip", "stop", "value", "rerun:pull"]
    questions = tuple(
        asked(a, draw(st.sampled_from(choices)), status=draw(st.sampled_from(["open", "answered", "withdrawn", "expired"])))
        for a in sorted(draw(st.sets(st.integers(0, failed), max_size=2)))
    )
    return Trouble(
        past=rows, asked=questions, ways=draw(st.sampled_from([(), WAYS])), attempts=draw(st.integers(1, 3)),
        source_digest=OLD, resumed=draw(st.booleans()),
    )  # fmt: skip


@given(histories(), CHANCE)
def test_the_same_rows_give_the_same_move(t: Trouble, chance: float):
    """The same rows give the same move: a crash between any two writes changes nothing."""
    assert next_move(t, chance=chance) == next_move(t, chance=chance)


@given(histories(), CHANCE, st.integers(1, 3))
def test_an_interrupted_try_changes_nothing(t: Trouble, chance: float, n: int):
    """A try that a crash interrupted does not count: with or without it the next move is the same."""
    without = replace(t, past=tuple(p for p in t.past if p.outcome is not AttemptOutcome.INTERRUPTED))
    more = tuple(past(90 + i, "interrupted") for i in range(n))
    assert next_move(without, chance=chance) == next_move(replace(without, past=(*without.past, *more)), chance=chance)


@given(histories(), CHANCE)
def test_a_try_is_numbered_by_the_failures_before_it(t: Trouble, chance: float):
    """``attempt().number`` is one more than the failures on record, over all executions."""
    found = next_move(t, chance=chance)
    if isinstance(found, Try):
        assert found.number == len(policy.failed_tries(t.past)) + 1


@given(histories(), CHANCE)
def test_an_ask_only_approach_is_never_chosen_by_itself(t: Trouble, chance: float):
    """An approach with ``ask=True`` is tried only when a person chose it."""
    found = next_move(t, chance=chance)
    put_off = t.past and [p for p in t.past if p.outcome is not AttemptOutcome.INTERRUPTED][-1:]
    chosen = any(q.choice == "approach:by contract" for q in t.asked)
    if isinstance(found, Try) and found.approach == "by contract":
        assert chosen or (put_off and put_off[0].approach == "by contract")


@given(histories(), CHANCE)
def test_an_open_question_is_waited_for_unless_the_source_changed(t: Trouble, chance: float):
    """While a question is open nothing runs, except in a resume with changed source: that withdraws the question."""
    last = t.asked[-1] if t.asked else None
    found = next_move(t, chance=chance)
    if last is not None and last.status is QuestionStatus.OPEN:
        assert isinstance(found, Wait) or (isinstance(found, Try) and t.resumed and found.withdraw == (last.id,))


@given(histories(), CHANCE)
def test_failures_since_the_last_decision_never_exceed_the_attempts(t: Trouble, chance: float):
    """Without a person (or a mended source), a step that failed ``attempts`` times is not tried again."""
    last = t.asked[-1].attempts if t.asked else 0
    fresh = policy.failed_tries(t.past)[last:]
    found = next_move(replace(t, resumed=False), chance=chance)
    deferred = [p for p in t.past if p.outcome is not AttemptOutcome.INTERRUPTED][-1:]
    if len(fresh) >= t.attempts and not (deferred and deferred[0].outcome is AttemptOutcome.DEFERRED):
        assert not isinstance(found, Try)


# -- the rules, one by one ----------------------------------------------------------------------------------------------


def test_nothing_on_record_is_the_first_try():
    """Without any rows the step simply runs."""
    assert next_move(Trouble(past=()), chance=0.5) == Try(number=1)


def test_a_retryable_failure_goes_to_the_next_approach():
    """After a retryable failure the next untried approach follows, in the order of declaration, never an ``ask`` one."""
    first = past(1)
    found = move(first, ways=WAYS, attempts=4)
    assert isinstance(found, Try)
    assert (found.number, found.approach) == (2, "second")
    third = move(first, past(2, approach="second"), ways=WAYS, attempts=4)
    assert third == Try(number=3, approach="third", not_before_us=22 * S)
    exhausted = move(first, past(2, approach="second"), past(3, approach="third"), ways=WAYS, attempts=4)
    assert isinstance(exhausted, Try)
    assert exhausted.approach is None


def test_without_another_approach_the_same_function_runs_as_number_two():
    """Without another approach the same function runs again, told that it is the second try and whether to ask for less."""
    found = move(past(1, narrow=True))
    assert found == Try(number=2, approach=None, narrow=True, not_before_us=11 * S + S // 2)


def test_attempts_are_counted_over_resumes():
    """Two failures of two different executions use two attempts up."""
    assert move(past(1), past(2), resumed=True) == Ask()


def test_a_fixable_failure_is_asked_about_at_once():
    """A fixable failure asks a person at once, whatever approaches and attempts are left."""
    assert move(past(1, kind="fixable"), ways=WAYS, attempts=9) == Ask()


def test_a_fatal_failure_gives_up():
    """A fatal failure is neither tried again nor asked about."""
    assert move(past(1, kind="fatal"), ways=WAYS, attempts=9) == Give(reason="reason 1")


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_again_grants_as_many_new_attempts(attempts: int):
    """``again`` grants as many attempts as the step had at first, then a person is asked anew."""
    rows = [past(n) for n in range(1, attempts + 1)]
    assert move(*rows, attempts=attempts) == Ask()
    answer = (asked(attempts, "again"),)
    for n in range(attempts + 1, 2 * attempts + 1):
        assert isinstance(move(*rows, ask=answer, attempts=attempts), Try)
        rows.append(past(n))
    assert move(*rows, ask=answer, attempts=attempts) == Ask()


def test_a_chosen_approach_is_tried_even_if_it_is_only_for_people():
    """``approach:LABEL`` runs that approach."""
    found = move(past(1, kind="fixable"), ask=(asked(1, "approach:by contract"),), ways=WAYS)
    assert found == Try(number=2, approach="by contract")


@pytest.mark.parametrize(
    "choice, answer, expected",
    [
        ("skip", "skip", Obey(choice="skip", answer="skip", by="ann")),
        ("stop", "stop", Obey(choice="stop", answer="stop", by="ann")),
        ("value", {"choice": "value", "value": 0}, Obey(choice="value", answer={"choice": "value", "value": 0}, by="ann")),
        ("rerun:pull", "rerun:pull", Obey(choice="rerun", answer="rerun:pull", by="ann", detail="pull")),
    ],
)
def test_other_choices_are_obeyed(choice: str, answer: object, expected: Obey):
    """What a person chose instead of a try is handed on as it is."""
    assert move(past(1, kind="fixable"), ask=(asked(1, choice, answer),)) == expected


def test_wait_holds_back_until_the_moment_or_the_fact():
    """``wait`` tries again at the moment, or when the fact is known."""
    later = move(past(1), past(2), ask=(asked(2, "wait", {"choice": "wait", "until": 500 * S}),))
    assert later == Try(number=3, not_before_us=500 * S)
    fact = move(past(1), past(2), ask=(asked(2, "wait", {"choice": "wait", "fact": "vat"}),))
    assert fact == Try(number=3, wants_fact="vat")


def test_a_resume_tries_again_by_itself_only_if_the_source_changed():
    """An open failure is tried again by a resume only with changed source; the question is then withdrawn."""
    question = (asked(1, status="open"),)
    failure = past(1, kind="fixable")
    assert move(failure, ask=question, resumed=True) == Wait(question_id="q_1")
    mended = replace(failure, source_digest=NEW)
    assert move(mended, ask=question, resumed=True) == Try(number=2, withdraw=("q_1",))
    assert move(mended, ask=question, resumed=False) == Wait(question_id="q_1")
    assert move(mended, ask=(asked(1, status="withdrawn"),), resumed=True) == Try(number=2)


# -- not now ------------------------------------------------------------------------------------------------------------


def test_a_deferral_is_the_same_approach_later():
    """A deferral is no attempt: the same approach runs again, as the same number, when the other side said."""
    found = move(past(1), past(2, "deferred", approach="second", retry_after_us=40 * S), ways=WAYS)
    assert found == Try(number=2, approach="second", not_before_us=61 * S)


@given(st.integers(0, 12), st.integers(0, 400), st.integers(0, 2000))
def test_not_now_is_believed_five_times_and_for_fifteen_minutes(before: int, apart_s: int, retry_after_s: int):
    """At most five deferrals, and none that would end later than 15 minutes after the first; then it is a failure."""
    rows = tuple(past(n, "deferred", started_us=n * apart_s * S, ended_us=n * apart_s * S) for n in range(before))
    now = before * apart_s * S
    found = believed(rows, since_us=0, started_us=now, now_us=now, retry_after_us=retry_after_s * S)
    assert found == (before < 5 and before * apart_s + retry_after_s <= 15 * 60)


def test_an_answer_lets_not_now_be_believed_anew():
    """What was deferred before a person decided does not count any more."""
    rows = tuple(past(n, "deferred") for n in range(1, 6))
    assert not believed(rows, since_us=0, started_us=60 * S, now_us=60 * S, retry_after_us=None)
    assert believed(rows, since_us=55 * S, started_us=60 * S, now_us=60 * S, retry_after_us=None)


def test_one_not_now_too_many_is_another_approach_or_a_person():
    """A deferral that was not believed counts as a failure: another approach, else a person; the same one would be pointless."""
    rows = (*(past(n, "deferred") for n in range(1, 6)), past(6, retry_after_us=0))
    assert move(*rows) == Ask()
    assert isinstance(other := move(*rows, ways=WAYS), Try)
    assert other.approach == "second"


def test_a_wait_that_was_put_off_again_is_held_back():
    """After "wait until", a new "not now" holds back as long as it says: no try follows at once."""
    answer = (asked(2, "wait", {"choice": "wait", "until": 23 * S}),)
    found = move(past(1), past(2), past(3, "deferred", retry_after_us=40 * S), ask=answer)
    assert found == Try(number=3, not_before_us=71 * S)


# -- backoff --------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 200), st.integers(0, 10**7), st.integers(0, 10**9), CHANCE)
def test_backoff_has_full_jitter_under_a_cap(attempt: int, base: int, cap: int, chance: float):
    """The delay lies between zero and the doubled base, and never above the cap."""
    assert 0 <= backoff_us(attempt, base_us=base, cap_us=cap, chance=chance) <= min(cap, base * 2**attempt)


@pytest.mark.parametrize("attempt, chance", [(-1, 0.5), (0, 1.0), (0, -0.1)])
def test_backoff_refuses_what_it_cannot_mean(attempt: int, chance: float):
    """A negative attempt or a chance outside [0, 1) is refused."""
    with pytest.raises(ValueError, match="must"):
        backoff_us(attempt, base_us=1, cap_us=1, chance=chance)


# -- waiting until the resource answers -----------------------------------------------------------------------------------

LOOKS = {"choice": "wait", "until": policy.ANSWERS}
WEEK = 7 * 86_400 * S


def silent(n: int, ended_us: int) -> Past:
    """A look that found the same failure."""
    return past(n, "deferred", started_us=ended_us - S, ended_us=ended_us)


def test_looks_come_every_fifteen_minutes():
    """The first 15 minutes after the answer, each further one 15 minutes after the last; none of them is an attempt."""
    q = asked(1, "wait", LOOKS)
    at = (q.answered_us or 0) + policy.LOOK_EVERY_US
    first = move(past(1, kind="fixable"), ask=(q,))
    assert first == Try(number=2, not_before_us=at, looks=True)
    rows = (past(1, kind="fixable"), silent(2, at + 3 * S), past(3, "interrupted", started_us=at + 4 * S))
    assert move(*rows, ask=(q,), now_us=at) == Try(number=2, not_before_us=at + 3 * S + policy.LOOK_EVERY_US, looks=True)


def test_looks_wait_longer_when_told_to():
    """A ``Retry-After`` beyond the next look is kept."""
    q = asked(1, "wait", LOOKS)
    at = (q.answered_us or 0) + policy.LOOK_EVERY_US
    late = replace(silent(2, at), retry_after_us=3600 * S)
    assert move(past(1), late, ask=(q,)) == Try(number=2, not_before_us=at + 3600 * S, looks=True)


@pytest.mark.parametrize("kind", ["retryable", "fixable"])
def test_another_failure_while_waiting_is_asked_about_at_once(kind: str):
    """What fails otherwise than before is no silence: also one that would be tried again in another case."""
    q = asked(1, "wait", LOOKS)
    assert isinstance(move(past(1), past(9, kind=kind, signature="other"), ask=(q,), attempts=5), Ask)
    assert isinstance(move(past(1), past(9, kind="fatal", signature="other"), ask=(q,)), Give)


def test_mended_code_looks_at_once():
    """After a change of the step's source a resume does not wait for the next look."""
    q = asked(1, "wait", LOOKS)
    t = Trouble(past=(past(1),), asked=(q,), source_digest=NEW, resumed=True)
    assert next_move(t, chance=0.5) == Try(number=2, looks=True)


@pytest.mark.parametrize(
    "signature,after_us,question,silence",
    [
        ("s", 60 * S, asked(1, "wait", LOOKS), True),
        ("s", WEEK - 1, asked(1, "wait", LOOKS), True),
        ("s", WEEK, asked(1, "wait", LOOKS), False),
        ("other", 60 * S, asked(1, "wait", LOOKS), False),
        ("s", 60 * S, asked(1, "wait", {"choice": "wait", "until": 5}), False),
        ("s", 60 * S, asked(1, "again"), False),
        ("s", 60 * S, asked(1, "wait", LOOKS, status="open"), False),
        ("s", 60 * S, asked(0, "wait", LOOKS), False),
    ],
)
def test_only_the_same_failure_within_seven_days_is_silence(signature: str, after_us: int, question: Asked, silence: bool):
    """Nobody is asked while it is what the person knows already; then they are."""
    ended_us = (question.answered_us or 0) + after_us
    assert policy.still_silent((question,), (past(1),), signature=signature, ended_us=ended_us) is silence
    assert policy.still_silent((), (past(1),), signature=signature, ended_us=ended_us) is False
