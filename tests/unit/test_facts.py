"""The rule about facts: which version counts, what contradicts it, and what is no news."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepseven.decide.facts import Said, conflicts, repeated

NOW = 1_000
WORDS = st.builds(
    lambda value, source, by, until: (value, source, by, until),
    st.sampled_from(["1", "2", "3"]),
    st.sampled_from([None, "crm", "sheet", "run r1", "run r2", "step pull of run r3", "answer to q_1"]),
    st.sampled_from([None, None, None, "ann", "ben"]),
    st.sampled_from([None, None, NOW - 1, NOW + 1]),
)


def row(*words: tuple[str, str | None] | tuple[str, str | None, str | None]) -> list[Said]:
    """Versions said one after the other: value, source, and by whom."""
    return [
        Said(version=n, value=word[0], source=word[1], by=word[2] if len(word) > 2 else None) for n, word in enumerate(words, 1)
    ]


def versions(found: list[Said]) -> list[int]:
    """Their numbers."""
    return [one.version for one in found]


@given(st.lists(WORDS, max_size=12))
def test_a_conflict_is_another_value_of_another_origin_since_the_last_decision(words):
    """For every history: conflicts differ from the value, come from other origins, one each, newest first, and still hold."""
    said = [Said(version=n, value=v, source=s, by=b, until_us=u) for n, (v, s, b, u) in enumerate(words, 1)]
    found = conflicts(said, NOW)
    decisions = [one.version for one in said if one.origin == ("person", "")]
    for one in found:
        assert one.value != said[-1].value
        assert one.origin != said[-1].origin
        assert one.holds(NOW)
        assert one.version >= max(decisions, default=0)
        assert not [later for later in said[one.version :] if later.origin == one.origin]
    assert len({one.origin for one in found}) == len(found)
    assert versions(found) == sorted(versions(found), reverse=True)


@given(st.lists(WORDS, max_size=12), WORDS)
def test_a_repetition_has_the_value_and_the_origin(words, word):
    """What is found to be repeated says the same, by the same origin, and holds; a person's word only in the same name."""
    said = [Said(version=n, value=v, source=s, by=b, until_us=u) for n, (v, s, b, u) in enumerate(words, 1)]
    new = Said(version=0, value=word[0], source=word[1], by=word[2])
    found = repeated(said, new, NOW)
    if found is not None:
        assert (found.value, found.origin) == (new.value, new.origin)
        assert found.holds(NOW)
        assert said[-1].holds(NOW)
        assert new.by is None or found.by == new.by


@given(st.lists(WORDS, max_size=12), WORDS)
def test_saying_it_twice_is_saying_it_once(words, word):
    """Whatever was said before: a word that was just kept is no news when it comes again."""
    said = [Said(version=n, value=v, source=s, by=b, until_us=u) for n, (v, s, b, u) in enumerate(words, 1)]
    new = Said(version=len(said) + 1, value=word[0], source=word[1], by=word[2])
    assert repeated([*said, new], new, NOW) == new


def test_two_sources_that_disagree_are_a_conflict():
    """The newest version is the value; the other source's stands beside it."""
    assert versions(conflicts(row(("1", "crm"), ("2", "sheet")), NOW)) == [1]
    assert conflicts(row(("1", "crm"), ("1", "sheet")), NOW) == []


def test_a_person_s_word_settles_it():
    """What sources said before a decision is no conflict any more; what they say after it is one with the decision."""
    settled = row(("1", "crm"), ("2", "sheet"), ("3", None, "ann"))
    assert conflicts(settled, NOW) == []
    assert versions(conflicts([*settled, Said(version=4, value="4", source="crm")], NOW)) == [3]


def test_an_answer_is_a_decision():
    """An answer that is remembered settles a conflict like any other word of a person."""
    assert conflicts(row(("1", "crm"), ("2", "sheet"), ("3", "answer to q_1")), NOW) == []


def test_runs_are_one_source():
    """What one run found and another found since is a change, not a conflict; a step's remembered result counts with them."""
    assert conflicts(row(("1", "run r1"), ("2", "run r2"), ("3", "step pull of run r3")), NOW) == []
    assert versions(conflicts(row(("1", "crm"), ("2", "run r2")), NOW)) == [1]


def test_a_source_that_repeats_itself_does_not_bring_its_value_back():
    """Every night the crm says 1: that is no news after the sheet, or a person, said 2. When it says 3 it is."""
    said = row(("1", "crm"), ("2", "sheet"))
    assert repeated(said, Said(version=0, value="1", source="crm"), NOW) == said[0]
    said = row(("1", "crm"), ("2", None, "ann"))
    assert repeated(said, Said(version=0, value="1", source="crm"), NOW) == said[0]
    assert repeated(said, Said(version=0, value="3", source="crm"), NOW) is None


def test_a_person_who_says_it_again_after_others_means_it():
    """Ann says 1, the crm says 2, Ann says 1 again: that is a new version."""
    said = row(("1", None, "ann"), ("2", "crm"))
    assert repeated(said, Said(version=0, value="1", by="ann"), NOW) is None
    assert repeated(said[:1], Said(version=0, value="1", by="ann"), NOW) == said[0]
    assert repeated(said[:1], Said(version=0, value="1", by="ben"), NOW) is None


def test_saying_again_what_no_longer_holds_is_news():
    """After a version expired the same word makes it known again."""
    old = Said(version=1, value="1", source="crm", until_us=NOW)
    assert repeated([old], Said(version=0, value="1", source="crm"), NOW) is None
    assert repeated([old], Said(version=0, value="1", source="crm"), NOW - 1) == old
