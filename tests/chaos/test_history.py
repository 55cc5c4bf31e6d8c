"""The checker itself: good histories pass, bad ones do not, and what is not known may be either."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.history import FAILED, MODELS, OK, UNKNOWN, Effect, Log, Op, Question, Run, fault, faults, read

Told = tuple[str, float, float, str, tuple[Any, ...], Any]


def ops(thing: str, *told: Told) -> list[Op]:
    """Calls as (who, asked, answered, call, args, result); a result of ``UNKNOWN`` or ``FAILED`` is an outcome."""
    return [
        Op(process=who, thing=thing, call=call, args=args, asked=asked,
           answered=float("inf") if result == UNKNOWN else answered,
           outcome=result if result in (UNKNOWN, FAILED) else OK, result=None if result in (UNKNOWN, FAILED) else result)
        for who, asked, answered, call, args, result in told
    ]  # fmt: skip


A, B = ("yes", "ann"), ("no", "bob")

GOOD: dict[str, list[Op]] = {
    "one of two at once wins": ops(
        "question/1", ("a", 0, 3, "answer", A, True), ("b", 1, 2, "answer", B, A), ("c", 4, 5, "read", (), A)
    ),
    "a reader beside the answer may see either": ops(
        "question/1", ("a", 0, 9, "answer", A, True), ("c", 1, 2, "read", (), None), ("c", 3, 4, "read", (), A)
    ),
    "an unknown answer may have counted": ops(
        "question/1", ("a", 0, 0, "answer", A, UNKNOWN), ("b", 5, 6, "answer", B, A), ("c", 7, 8, "read", (), A)
    ),
    "or not": ops("question/1", ("a", 0, 0, "answer", A, UNKNOWN), ("b", 5, 6, "answer", B, True), ("c", 7, 8, "read", (), B)),
    "or later than all that was seen": ops(
        "question/1", ("a", 0, 0, "answer", A, UNKNOWN), ("c", 5, 6, "read", (), None), ("c", 7, 8, "read", (), A)
    ),
    "what failed for certain is not there": ops("question/1", ("a", 0, 1, "answer", A, FAILED), ("c", 5, 6, "read", (), None)),
    "taken, written, taken over": ops(
        "run/1",
        ("a", 0, 1, "take", (0, "", "a"), 1), ("a", 2, 3, "write", (1, "a", "x"), True),
        ("b", 4, 5, "take", (1, "a", "b"), 2), ("a", 6, 7, "write", (1, "a", "y"), False),
        ("b", 8, 9, "load", (), (2, "b", False, ("x",))),
    ),
    "a write whose end nobody heard is there for the next owner": ops(
        "run/1",
        ("a", 0, 1, "take", (0, "", "a"), 1), ("a", 2, 3, "write", (1, "a", "x"), UNKNOWN),
        ("b", 4, 5, "take", (1, "a", "b"), 2), ("b", 8, 9, "load", (), (2, "b", False, ("x",))),
    ),
    "one send, settled once": ops(
        "effect/1", ("a", 0, 1, "claim", (), ("go", 1)), ("b", 2, 3, "claim", (), (1, "claimed", None)),
        ("b", 4, 5, "again", (1,), True), ("a", 6, 7, "settle", ("ra",), True), ("b", 8, 9, "settle", ("rb",), False),
        ("c", 10, 11, "look", (), (2, "done", "ra")),
    ),
}  # fmt: skip

BAD: dict[str, list[Op]] = {
    "two answers": ops("question/1", ("a", 0, 1, "answer", A, True), ("b", 0, 1, "answer", B, True)),
    "an answer that is gone again": ops(
        "question/1", ("a", 0, 9, "answer", A, True), ("c", 1, 2, "read", (), A), ("c", 3, 4, "read", (), None)
    ),
    "a later reader that does not see it": ops("question/1", ("a", 0, 1, "answer", A, True), ("c", 2, 3, "read", (), None)),
    "two readers who saw two winners": ops(
        "question/1", ("a", 0, 0, "answer", A, UNKNOWN), ("b", 0, 0, "answer", B, UNKNOWN), ("c", 2, 3, "read", (), A),
        ("d", 4, 5, "read", (), B),
    ),
    "told that somebody was first who was not": ops(
        "question/1", ("a", 4, 5, "answer", A, True), ("b", 0, 1, "answer", B, A)
    ),
    "the same fence twice": ops("run/1", ("a", 0, 9, "take", (0, "", "a"), 1), ("b", 0, 9, "take", (0, "", "b"), 1)),
    "two takers of one sight": ops("run/1", ("a", 0, 9, "take", (0, "", "a"), 1), ("b", 0, 9, "take", (0, "", "b"), 2)),
    "a write of an owner that was overtaken": ops(
        "run/1", ("a", 0, 1, "take", (0, "", "a"), 1), ("b", 2, 3, "take", (1, "a", "b"), 2),
        ("a", 4, 5, "write", (1, "a", "x"), True),
    ),
    "an unknown write that came after the takeover": ops(
        "run/1", ("a", 0, 1, "take", (0, "", "a"), 1), ("a", 2, 3, "write", (1, "a", "x"), UNKNOWN),
        ("b", 4, 5, "take", (1, "a", "b"), 2), ("b", 6, 7, "load", (), (2, "b", False, ())),
        ("b", 8, 9, "load", (), (2, "b", False, ("x",))),
    ),
    "a write that was in time, but is not there for the next owner": ops(
        "run/1", ("a", 0, 1, "take", (0, "", "a"), 1), ("a", 2, 9, "write", (1, "a", "x"), True),
        ("b", 4, 5, "take", (1, "a", "b"), 2), ("b", 6, 7, "load", (), (2, "b", False, ())),
    ),
    "ended twice": ops(
        "run/1", ("a", 0, 1, "take", (0, "", "a"), 1), ("a", 2, 3, "end", (1, "a"), True), ("b", 4, 5, "end", (1, ""), True)
    ),
    "two first claims": ops("effect/1", ("a", 0, 1, "claim", (), ("go", 1)), ("b", 0, 1, "claim", (), ("go", 1))),
    "two sends from one try": ops(
        "effect/1", ("a", 0, 1, "claim", (), ("go", 1)), ("b", 2, 9, "again", (1,), True), ("c", 2, 9, "again", (1,), True)
    ),
    "sent again after it was settled": ops(
        "effect/1", ("a", 0, 1, "claim", (), ("go", 1)), ("a", 2, 3, "settle", ("r",), True), ("b", 4, 5, "again", (1,), True)
    ),
    "refused without a reason": ops("effect/1", ("a", 0, 1, "claim", (), ("go", 1)), ("b", 2, 3, "again", (1,), False)),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_could_have_happened_passes(name: str) -> None:
    """A history that some order explains has no fault."""
    assert faults(MODELS, GOOD[name]) == []


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_have_happened_is_found(name: str) -> None:
    """A history that no order explains has one, and it says what does not fit."""
    (found,) = faults(MODELS, BAD[name])
    assert found.stuck
    assert str(found)


def _by_trial(history: list[Op], model: Any) -> bool:
    """The definition, word for word: some order of the calls that keeps to time, with any of the unknown ones left out."""
    certain = [op for op in history if op.outcome == OK]
    doubtful = [op for op in history if op.outcome == UNKNOWN]
    for many in range(len(doubtful) + 1):
        for some in itertools.combinations(doubtful, many):
            for order in itertools.permutations([*certain, *some]):
                if any(b.answered < a.asked for a, b in itertools.combinations(order, 2)):
                    continue
                states = {model.start}
                for op in order:
                    states = {then for state in states for then in model.after(state, op)}
                if states:
                    return True
    return False


_SPAN = st.tuples(st.integers(0, 8), st.integers(1, 5))
_WHO = st.sampled_from(["a", "b"])
_QUESTION = st.one_of(
    st.tuples(st.just("read"), st.just(()), st.sampled_from([None, ("1", "a"), ("2", "b")])),
    st.tuples(st.just("answer"), st.sampled_from([("1", "a"), ("2", "b")]), st.sampled_from([True, ("1", "a"), UNKNOWN])),
)
_RUN = st.one_of(
    st.tuples(
        st.just("take"), st.tuples(st.integers(0, 1), st.sampled_from(["", "a"]), _WHO), st.sampled_from([1, 2, False, UNKNOWN])
    ),
    st.tuples(st.just("write"), st.tuples(st.integers(1, 2), _WHO, st.just("x")), st.sampled_from([True, False, UNKNOWN])),
    st.tuples(st.just("leave"), st.tuples(st.integers(1, 2), _WHO), st.sampled_from([True, False])),
)  # fmt: skip
_EFFECT = st.one_of(
    st.tuples(st.just("claim"), st.just(()), st.sampled_from([("go", 1), (1, "claimed", None), UNKNOWN])),
    st.tuples(st.just("again"), st.tuples(st.integers(1, 2)), st.sampled_from([True, False, UNKNOWN])),
    st.tuples(st.just("settle"), st.tuples(st.sampled_from(["r", "s"])), st.sampled_from([True, False, UNKNOWN])),
)


@pytest.mark.parametrize("model, calls", [(Question(), _QUESTION), (Run(), _RUN), (Effect(), _EFFECT)], ids=["q", "run", "eff"])
def test_search_agrees_with_the_definition(model: Any, calls: Any) -> None:
    """On every small history the search says what trying every order says."""

    @given(st.lists(st.tuples(_SPAN, calls), max_size=5))
    def holds(drawn: list[Any]) -> None:
        told = [(f"p{i}", at, at + long, *call) for i, ((at, long), call) in enumerate(drawn)]
        history = ops("x/1", *told)
        assert (fault(model, history) is None) == _by_trial(history, model)

    holds()


def test_a_long_history_with_many_unknowns_is_quick() -> None:
    """A thousand calls of which each tenth has no answer are told in seconds: what was tried is not tried again."""
    first: Told = ("a", 0, 0.5, "take", (0, "", "a"), 1)
    told = ((f"p{n % 6}", n, n + 4.5, "write", (1, "a", f"{n:04}"), True if n % 10 else UNKNOWN) for n in range(1, 1000))
    assert faults(MODELS, ops("run/1", first, *told)) == []


def test_a_log_says_what_was_asked_when_its_writer_died(tmp_path: Path) -> None:
    """A call that was begun and never ended is of unknown outcome; half a line is none."""
    log = Log(tmp_path / "a.log", lambda: 0.0)
    done, begun, half = ops("run/1", *((("a", n, n + 1, "write", (1, "a", f"{n}"), True)) for n in range(3)))
    for op in (done, begun, half):
        log.asked(op)
        if op is done:
            log.heard(op)
    log.close()
    text = (tmp_path / "a.log").read_text("utf-8")
    (tmp_path / "a.log").write_text(text[:-9])
    assert [(op.outcome, op.result, op.args) for op in read(tmp_path)] == [
        (OK, True, (1, "a", "0")), (UNKNOWN, None, (1, "a", "1")),
    ]  # fmt: skip
