"""What moved while a run waited, decided from values only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepseven.decide import _drift_text, drift
from stepseven.decide._phrases import MAX_WORDS, count_words
from stepseven.decide._situation import Situation
from stepseven.decide.drift import Read, Word
from stepseven.decide.plan import Drifted

NOW, HOUR = 1_767_776_400_000_000, 3_600_000_000
SITUATION = Situation(
    client="acme", workflow="renewal", goal=None, inputs={}, done=(), next_steps=(), spent_usd=0.0, limit_usd=None
)  # fmt: skip


def words(*values: Any, until_us: int | None = None) -> dict[str, list[Word]]:
    """The versions of fact ``k``, an hour apart; the newest holds until *until_us*."""
    n = len(values)
    return {
        "k": [
            Word(
                key="k", version=i + 1, value=v, source="crm", at_us=NOW - (n - i) * HOUR,
                until_us=until_us if i == n - 1 else None,
            )
            for i, v in enumerate(values)
        ]
    }  # fmt: skip


def moved(reads: list[tuple[int, str | None]], said: dict[str, list[Word]], own: int = 0) -> list[Drifted]:
    """What moved of fact ``k``, from (version, who read it)."""
    return drift.moved([Read(key="k", version=v, who=w) for v, w in reads], {"k": own} if own else {}, said, NOW)


# -- facts ----------------------------------------------------------------------------------------------------------------


def test_another_value_is_drift():
    """Old and new value and version, who says so, since when, and who read the old one."""
    (one,) = moved([(1, None), (1, "draft"), (1, "draft")], words("a", "b"))
    assert (one.old, one.new, one.old_version, one.new_version) == ("a", "b", 1, 2)
    assert (one.source, one.at_us, one.depends, one.read) == ("crm", NOW - HOUR, ("draft",), True)


@pytest.mark.parametrize(
    "reads, said",
    [
        ([(1, None)], words("a")),  # the same version
        ([(1, None)], words("a", "b", "a")),  # the same value again
        ([(0, None)], {}),  # not known, and never said
        ([(0, None)], words("a", until_us=NOW)),  # not known, and not known now
        ([], words("a", "b")),  # nobody read it
    ],
)
def test_what_is_no_drift(reads, said):
    """Equal values, whatever the version; and what nobody read."""
    assert moved(reads, said) == []


def test_only_who_read_the_old_value_depends_on_it():
    """Read again since, with what is so now, a step does not depend on the change."""
    (one,) = moved([(1, "early"), (2, "late")], words("a", "b"))
    assert one.depends == ("early",)
    assert one.old == "a"


def test_not_known_is_a_value():
    """What was not known may have become so, and what was known may hold no more."""
    (one,) = moved([(0, None)], words("a"))
    assert (one.old, one.old_version, one.new, one.new_version) == (None, None, "a", 1)
    (one,) = moved([(1, None)], words("a", until_us=NOW))
    assert (one.old, one.old_version, one.new, one.new_version, one.at_us) == ("a", 1, None, None, NOW)


def test_the_runs_own_word_settles_what_it_had_read():
    """Reads from before the run's own word are no drift; what others say after it is, for who read its own."""
    assert moved([(1, None)], words("a", "b"), own=2) == []
    assert moved([(1, None)], words("a", "b", "c"), own=2) == []
    (one,) = moved([(1, None), (2, "step")], words("a", "b", "c"), own=2)
    assert (one.old, one.new, one.depends) == ("b", "c", ("step",))


@pytest.mark.parametrize("a, b", [(1, 1.0), (1, True), ([1], [True]), ({"x": 0}, {"x": False}), (None, 0), ("", None)])
def test_what_json_tells_apart_is_another_value(a, b):
    """``1``, ``1.0`` and ``true`` differ, as they do wherever inputs are compared."""
    assert not drift.same(a, b)
    assert drift.same(a, a)
    assert drift.same(b, b)


def unread(said: dict[str, list[Word]], since_us: int, **more: Any) -> list[Drifted]:
    """What moved of a fact that the run has not read."""
    told: dict[str, Any] = {"met": {}, "own": {}, "watch": (), **more}
    return drift.unread(said, told["met"], told["own"], told["watch"], since_us, NOW)


def test_what_nobody_read_is_noted():
    """Since the run began, from what was so then; watched, it is asked about."""
    (one,) = unread(words("a", "b", "c"), NOW - 3 * HOUR)
    assert (one.old, one.new, one.read) == ("a", "c", False)
    assert unread(words("a", "b"), NOW - HOUR) == []
    assert unread(words("a", "b", "a"), NOW - 3 * HOUR) == []
    (one,) = unread(words("a", "b"), NOW - 2 * HOUR, watch=("k",))
    assert one.read
    assert unread(words("a", "b"), NOW - 2 * HOUR, own={"k": 2}) == []
    (one,) = unread(words("a", "b", "c"), NOW - 3 * HOUR, met={"k": 2})
    assert (one.old, one.new) == ("b", "c")
    (one,) = unread(words("a", until_us=NOW), NOW - HOUR)
    assert (one.old, one.new, one.new_version) == ("a", None, None)


# -- the client record --------------------------------------------------------------------------------------------------------


def fields(old: Any, new: Any, *watch: str) -> dict[str, tuple[Any, Any, bool]]:
    """Field → old, new, whether it is asked about."""
    return {d.key: (d.old, d.new, d.read) for d in drift.of_record(old, new, watch, source="crm", at_us=NOW)}


def test_a_record_is_compared_field_by_field():
    """Fields inside fields have a path; a list is one value; what is missing on one side is ``None`` there."""
    old = {"contact": {"mail": "a", "name": "A"}, "tags": [1, 2], "seats": 5}
    new = {"contact": {"mail": "b", "name": "A"}, "tags": [1], "plan": "gold"}
    assert fields(old, new) == {
        "record.contact.mail": ("a", "b", True), "record.tags": ([1, 2], [1], True), "record.seats": (5, None, True),
        "record.plan": (None, "gold", True),
    }  # fmt: skip
    assert fields(old, old) == {}
    assert fields("a", "b") == {"record": ("a", "b", True)}


def test_watched_fields_only():
    """If ``watch=`` names fields, others are noted; if it names none of them, every field counts."""
    old, new = {"contact": {"mail": "a"}, "seats": 5}, {"contact": {"mail": "b"}, "seats": 6}
    for name in ("contact", "record.contact", "contact.mail", "record.contact.mail"):
        assert {k: v[2] for k, v in fields(old, new, name).items()} == {"record.contact.mail": True, "record.seats": False}
    assert {k: v[2] for k, v in fields(old, new, "discount").items()} == {"record.contact.mail": True, "record.seats": True}
    assert {k: v[2] for k, v in fields({"a": 1, "b": 1}, {"a": 1, "b": 2}, "a").items()} == {"record.b": False}


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab.", max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab.", min_size=1, max_size=2), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(_json, _json)
def test_equal_records_and_no_others_are_without_drift(old, new):
    """A record has moved if, and only if, it is another value (an empty object in it is as good as none)."""
    assert (drift.of_record(old, new, (), source="crm", at_us=0) == []) == drift.same(old, new)


_figure = st.integers(0, 3)


@given(st.dictionaries(st.sampled_from("abc"), _figure | st.dictionaries(st.sampled_from("xy"), _figure, min_size=1)), st.data())
def test_a_patched_record_is_the_new_one(old, data):
    """The old record with the changed fields put in is the new one, as long as it has the same fields."""
    new = {k: {x: data.draw(_figure) for x in v} if isinstance(v, dict) else data.draw(_figure) for k, v in old.items()}
    found = drift.of_record(old, new, (), source="crm", at_us=0)
    assert drift.patched(old, found) == new


# -- the question ---------------------------------------------------------------------------------------------------------------


def fact(key: str = "contact", **more: Any) -> Drifted:
    """Something that moved."""
    told: dict[str, Any] = {"old": "a", "new": "b", "old_version": 1, "new_version": 2, "at_us": NOW, "source": "crm", **more}
    return Drifted(key=key, **told)


def test_a_question_is_short_whatever_moved():
    """At most 120 words, the headline first, and everything as data."""
    many = [fact(f"fact.number_{i}", depends=(f"step_{i}",), old="x" * 500, new="y" * 500) for i in range(40)]
    draft = _drift_text.question(SITUATION, many, notes=["Also changed: nothing. " * 30])
    assert count_words(draft.text) <= MAX_WORDS
    assert draft.text.startswith(
        "Acme's fact number 0, fact number 1, fact number 2 and 37 more changed while the renewal waited."
    )
    assert len(draft.context["drift"]) == 40
    assert "And 36 more." in draft.text


def test_what_a_question_was_asked_about_comes_back():
    """From its context, as it was."""
    one = fact(depends=("draft",), by="ann")
    assert _drift_text.asked(_drift_text.question(SITUATION, [one]).context) == (one,)


def test_choices_say_what_they_do():
    """Keep, refresh, stop; what a refresh costs is said where it is known."""
    keep, refresh, stop = _drift_text.question(SITUATION, [fact()], usd=0.2, seconds=3).options
    assert (keep.id, refresh.id, stop.id) == ("keep", "refresh", "stop")
    assert keep.detail == "a; nothing is run again, and I do not ask about this change again"
    assert (refresh.usd, refresh.seconds) == (0.2, 3)


def test_the_same_drift_is_the_same():
    """What a question is about does not depend on order, nor on who depends on it; a further move is another drift."""
    a, b = fact("a"), fact("b")
    assert drift.about([a, b]) == drift.about([b, fact("a", depends=("x",))])
    assert drift.about([a]) != drift.about([fact("a", new="c", new_version=3)])
    assert drift.about([fact("a", new_version=None, new=None)]) != drift.about([fact("a", new=None)])
