"""Whether an answer is of the asked type, and the sentence that says why not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from stepseven.errors import NotRecordable
from stepseven.store.codec import Typed
from stepseven.transitions.fitting import example, mismatch


class Plan(Enum):
    GOLD = "gold"
    FREE = "free"


class Line(BaseModel):
    amount: Decimal = Field(gt=0)
    day: date
    code: Annotated[str, Field(max_length=5, pattern=r"^[a-z]+$")] = "abc"


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    lines: list[Line]
    kind: Literal["new", "old"] = "new"
    plan: Plan = Plan.GOLD
    note: str | None = None


@dataclass
class Person:
    name: str
    age: int


def schema(annotation: Any) -> dict[str, Any]:
    """As it is stored with a question."""
    made = Typed(annotation, where="answer").json_schema()
    assert made is not None
    return made


LINE = {"amount": "1.50", "day": "2026-01-02"}
REFUSED = [
    (int, "five", "'five' is not a whole number"),
    (int, 1.0, "1.0 is not a whole number"),
    (bool, 1, "1 is not true or false"),
    (str, None, "None is not a text"),
    (Person, {"name": "ann"}, "age is missing"),
    (Person, {}, "name and age are missing"),
    (Person, {"name": 3, "age": 4}, "name: 3 is not a text"),
    (Annotated[int, Field(gt=0)] | None, 0, "0 must be more than 0"),
    (Annotated[int, Field(ge=1, le=9)], 10, "10 must be 9 or less"),
    (Annotated[str, Field(min_length=2)], "x", "'x' must have at least 2 characters"),
    (int | None, "x", "'x' is neither a whole number nor null"),
    (date, "2026-02-30", "'2026-02-30' is no date, such as 2026-03-14"),
    (datetime, "tomorrow", "'tomorrow' is no date with time, such as 2026-03-14T09:00:00Z"),
    (UUID, "me", "'me' is no UUID, such as 123e4567-e89b-12d3-a456-426614174000"),
    (timedelta, "an hour", "'an hour' is no duration, such as PT30M"),
    (Decimal, "a lot", "'a lot' is no number, such as 12.50"),
    (Annotated[Decimal, Field(gt=0)], "-3", "'-3' must be more than 0"),
    (Annotated[Decimal, Field(gt=0)], -3, "-3 must be more than 0"),
    (Plan, "silver", "'silver' is not one of 'gold' or 'free'"),
    (Literal["x"], "y", "'y' is not 'x'"),
    (list[Person], [{"name": "ann", "age": 1}, {"name": "bob", "age": "2"}], "[1].age: '2' is not a whole number"),
    (dict[str, int], {"a": "x"}, "a: 'x' is not a whole number"),
    (tuple[int, str], [1, 2], "[1]: 2 is not a text"),
    (Order, {"lines": [{**LINE, "amount": 0}]}, "lines[0].amount: 0 must be more than 0"),
    (Order, {"lines": [{**LINE, "day": "soon"}]}, "lines[0].day: 'soon' is no date, such as 2026-03-14"),
    (Order, {"lines": [{**LINE, "code": "abcdef"}]}, "lines[0].code: 'abcdef' must have at most 5 characters"),
    (Order, {"lines": [{**LINE, "code": "A1"}]}, "lines[0].code: 'A1' does not have the form ^[a-z]+$"),
    (Order, {"lines": [], "kind": "odd"}, "kind: 'odd' is not one of 'new' or 'old'"),
    (Order, {"lines": [], "notes": "x"}, "notes is not expected here"),
]


@pytest.mark.parametrize("annotation,value,why", REFUSED)
def test_what_does_not_fit_is_told_with_its_place(annotation, value, why):
    """The first thing that is wrong, where it is, and what is expected there: in one clause."""
    assert mismatch(schema(annotation), value) == why
    with pytest.raises(NotRecordable):
        Typed(annotation, where="answer").validate_python(value)


def test_true_is_no_number():
    """JSON's ``true`` is not 1, whatever the type would make of it."""
    assert mismatch(schema(int), True) == "True is not a whole number"
    assert mismatch(schema(float), False) == "False is not a number"


FITS = [
    (int, 0), (bool, False), (str, ""), (int | None, None), (Person, {"name": "", "age": 0}), (Decimal, "1.50"), (Decimal, 2),
    (date, "2026-03-14"), (datetime, "2026-03-14T09:00:00Z"), (datetime, "2026-03-14T09:00:00+01:00"), (timedelta, "P1DT2H"),
    (Plan, "free"), (Order, {"lines": [LINE, {**LINE, "amount": 2}], "note": None}), (list[Person], []), (float, 1),
]  # fmt: skip


@pytest.mark.parametrize("annotation,value", FITS)
def test_what_the_type_takes_is_let_through(annotation, value):
    """What the run could use is never refused: null, empty, false and zero, too."""
    assert mismatch(schema(annotation), value) is None
    Typed(annotation, where="answer").validate_python(value)


@pytest.mark.parametrize("annotation", [int, str, Person, list[Person], Plan, Literal["x"], date, Decimal, int | None, bool])
def test_the_example_fits(annotation):
    """What is shown as an example would be taken."""
    shown = example(schema(annotation))
    assert mismatch(schema(annotation), shown) is None
    Typed(annotation, where="answer").validate_python(shown)


def test_a_pattern_python_does_not_know_is_left_to_the_run():
    """A pattern of another dialect refuses nothing here."""
    assert mismatch({"type": "string", "pattern": r"^\p{L}+$"}, "x") is None


def test_a_schema_that_points_elsewhere_is_not_fetched():
    """A reference that cannot be resolved here is no reason to refuse, and nothing is fetched for it."""
    assert mismatch({"$ref": "http://127.0.0.1:9/x.json"}, 3) is None


json_values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(json_values, st.sampled_from([int, str, Person, Order, Decimal, date, Plan, list[Line], dict[str, int], int | str | None]))
def test_what_is_refused_the_type_refuses_too(value, annotation):
    """Whatever is answered: one short clause or nothing; what is refused here could not have been used."""
    why = mismatch(schema(annotation), value)
    if why is not None:
        assert len(why) <= 300
        assert "\n" not in why
        with pytest.raises(NotRecordable):
            Typed(annotation, where="answer").validate_python(value)
