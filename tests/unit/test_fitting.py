"""Whether an answer is of the asked type, and the sentence that says why not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import UUID4, AnyUrl, AwareDatetime, BaseModel, ConfigDict, Field, NaiveDatetime

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


class Hexed(BaseModel):
    model_config = ConfigDict(val_json_bytes="hex", ser_json_bytes="hex")
    data: bytes


class Lax(BaseModel):
    """As pydantic has it by itself."""

    at: datetime | None = None
    day: date | None = None
    data: Annotated[bytes, Field(max_length=3)] = b""


class Aliased(BaseModel):
    b: str = Field(default="x", max_length=3, alias="bee")


@dataclass
class AliasedToo:
    b: Annotated[str, Field(max_length=3, alias="bee")] = "x"


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    name: str = Field(min_length=1, max_length=4)


Money = Annotated[Decimal, Field(max_digits=4, decimal_places=2)]


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
    (date, "20260314", "'20260314' is no date, such as 2026-03-14"),
    (date, "2026-W11-6", "'2026-W11-6' is no date, such as 2026-03-14"),
    (date, "2026-03-14T00:00:00", "'2026-03-14T00:00:00' is no date, such as 2026-03-14"),
    (datetime, "2026-03-14", "'2026-03-14' is no date with time, such as 2026-03-14T09:00:00Z"),
    (datetime, "2026-03-14T09", "'2026-03-14T09' is no date with time, such as 2026-03-14T09:00:00Z"),
    (AwareDatetime, "2026-03-14T09:00:00", "'2026-03-14T09:00:00' must say its time zone, such as 2026-03-14T09:00:00Z"),
    (NaiveDatetime, "2026-03-14T09:00Z", "'2026-03-14T09:00Z' must be without a time zone, such as 2026-03-14T09:00:00"),
    (time, "12", "'12' is no time, such as 09:00:00"),
    (time, "0900", "'0900' is no time, such as 09:00:00"),
    (bytes, "YWJ", "'YWJ' is no base64 text, such as YWJj"),
    (Hexed, {"data": "6"}, "data: '6' is no hexadecimal text, such as 616263"),
    (Annotated[bytes, Field(max_length=2)], "YWJj", "'YWJj' must have at most 2 bytes"),
    (
        UUID4,
        "123e4567-e89b-12d3-a456-426614174000",
        "'123e4567-e89b-12d3-a456-426614174000' is no UUID of version 4, such as 123e4567-e89b-42d3-a456-426614174000",
    ),
    (AnyUrl, "example", "'example' is no address, such as https://example.org/"),
    (IPv4Address, "1.2.3", "'1.2.3' is no IPv4 address, such as 192.0.2.1"),
    (Money, "12.505", "'12.505' must have at most 2 digits after the point"),
    (Money, 12.505, "12.505 must have at most 2 digits after the point"),
    (Money, "12345", "'12345' must have at most 4 digits, 2 of them after the point"),
    (Annotated[Decimal, Field(max_digits=3, gt=9999)], "1234", "'1234' must be more than 9999"),
    (list[Lax | None], [{"at": "soon", "data": "YWJjZA"}], "[0].at: 'soon' is no date with time, such as 2026-03-14T09:00:00Z"),
    (Annotated[Decimal, Field(max_digits=3)], "1234", "'1234' must have at most 3 digits"),
    (Annotated[Decimal, Field(multiple_of=Decimal("0.05"))], "0.13", "'0.13' must be a multiple of 0.05"),
    (Annotated[str, Field(pattern=r"^\d$")], "1\n", r"'1\n' does not have the form ^\d$"),
    (Annotated[str, Field(pattern=re.compile("^a", re.IGNORECASE))], "b", "'b' does not have the form (?i)^a"),
    (Aliased, {"bee": "xxxx"}, "bee: 'xxxx' must have at most 3 characters"),
    (AliasedToo, {"bee": "xxxx"}, "bee: 'xxxx' must have at most 3 characters"),
    (Stripped, {"name": "  "}, "name: '  ' must have at least 1 character"),
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
    (Order, {"lines": [], "notes": "x"}, "notes is not expected here; there is lines, kind, plan and note"),
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
    (Money, 0.3), (Money, "99.99"), (Annotated[Decimal, Field(multiple_of=Decimal("0.1"))], 0.3), (bytes, "-_8"), (bytes, "+/8="),
    (Aliased, {"bee": "x"}), (Aliased, {"b": "x"}), (Aliased, {}), (AliasedToo, {"bee": "y"}),
    (Annotated[bytes, Field(max_length=3)], "YWJj"), (Hexed, {"data": "00"}),
    (Lax, {"at": "2026-03-14", "day": "2026-03-14T00:00:00"}),
    (timedelta, "09:00"), (timedelta, "P1.5D"), (time, "09:00"), (Stripped, {"name": "  abcd  "}), (IPv4Address, "127.0.0.1"),
    (Annotated[str, Field(pattern=re.compile("^a", re.IGNORECASE))], "A"), (AwareDatetime, "2026-03-14 09:00+01:00"),
    (NaiveDatetime, "2026-03-14T09:00"), (AnyUrl, "https://example.org"), (UUID4, "123e4567-e89b-42d3-a456-426614174000"),
    (Plan, "free"), (Order, {"lines": [LINE, {**LINE, "amount": 2}], "note": None}), (list[Person], []), (float, 1),
]  # fmt: skip


@pytest.mark.parametrize("annotation,value", FITS)
def test_what_the_type_takes_is_let_through(annotation, value):
    """What the run could use is never refused: null, empty, false and zero, too."""
    assert mismatch(schema(annotation), value) is None
    Typed(annotation, where="answer").validate_python(value)


FORMED: list[Any] = [
    date, datetime, AwareDatetime, NaiveDatetime, time, timedelta, UUID, UUID4, bytes, Decimal, Money, AnyUrl, IPv4Address,
    Annotated[Decimal, Field(ge=1, multiple_of=Decimal("0.05"))], Annotated[bytes, Field(min_length=2, max_length=3)],
]  # fmt: skip


@pytest.mark.parametrize(
    "annotation", [int, str, Person, list[Person], Plan, Literal["x"], date, Decimal, int | None, bool, *FORMED]
)
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


parts = st.sampled_from(
    [
        "2026",
        "-03",
        "-14",
        "03",
        "W11",
        "T",
        "t",
        " ",
        "09",
        ":00",
        ":30",
        "Z",
        "+01:00",
        "-",
        "+",
        "P",
        "1D",
        "2H",
        "5M",
        "1.5",
        "PT",
    ]
)
dates = st.dates().map(str) | st.datetimes().map(str) | st.times().map(str) | st.timedeltas().map(str)
numbers = st.decimals(allow_nan=False, allow_infinity=False).map(str) | st.integers().map(str) | st.floats().map(str)
coded = st.text("Ya0-_+/=fF", max_size=8) | st.binary(max_size=6).map(bytes.hex) | st.uuids().map(str)
texts = st.text(max_size=12) | st.lists(parts, max_size=8).map("".join) | dates | numbers | coded
CODED = [Annotated[str, Field(pattern=r"^\d\w?$", max_length=3)], Hexed, Lax, Stripped]


def is_a_number(text: str) -> bool:
    """Whether Python reads it as one."""
    try:
        float(text)
    except ValueError:
        return False
    return True


FIELDS: dict[Any, list[str]] = {Hexed: ["data"], Lax: ["at", "day", "data"], Stripped: ["name"]}
SECONDS = (date, datetime, AwareDatetime, NaiveDatetime)
TYPES = [(each, Typed(each, where="answer"), schema(each)) for each in [*FORMED, *CODED]]


def taken(typed: Typed, value: Any) -> bool:
    """Whether the run would take it."""
    try:
        typed.validate_python(value)
    except NotRecordable:
        return False
    return True


@settings(max_examples=1000, deadline=None)
@given(texts, st.sampled_from(TYPES))
def test_a_text_is_taken_now_if_and_only_if_the_run_takes_it(text, of):
    """Dates, times, numbers, bytes and the like: what the answer is refused for, and what the run would refuse, are the same.

    But for a bare number as a date: pydantic counts seconds since 1970 with it, which nobody who types one means.
    """
    annotation, typed, form = of
    for name in FIELDS.get(annotation, [None]):
        value = text if name is None else {name: text}
        seconds = is_a_number(text) and (annotation in SECONDS or name in ("at", "day"))
        assert (mismatch(form, value) is None) == (taken(typed, value) and not seconds), value


@settings(deadline=None)
@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([t for t in TYPES if "anyOf" in t[2]]))
def test_a_number_is_taken_now_if_and_only_if_the_run_takes_it(number, of):
    """The same for decimal numbers given as JSON numbers."""
    _, typed, form = of
    assert (mismatch(form, number) is None) == taken(typed, number)


def test_a_sentence_is_one_line():
    """Whatever stands in it."""
    assert mismatch(schema(Order), {"lines": [], "a\nb": 1}) == "a\\nb is not expected here; there is lines, kind, plan and note"


@pytest.mark.parametrize(
    "kind, value, why",
    [
        (Person, {"name": "ann", "age": 3, "agee": 4}, "agee is not expected here; there is name and age"),
        (Line, {"amount": 1, "day": "2026-01-02", "cod": "x"}, "cod is not expected here; there is amount, day and code"),
        (list[Person], [{"name": "ann", "age": 3, "x": 1}], "[0]: x is not expected here; there is name and age"),
    ],
)
def test_a_field_too_many_is_refused(kind: Any, value: Any, why: str) -> None:
    """A mistyped optional field would be dropped without a word: it is named, with those there are."""
    assert mismatch(Typed(kind, where="a").json_schema() or {}, value) == why


@pytest.mark.parametrize("value, fits", [(19.99, True), (4.35, True), (0.07, True), (19.995, False), (3, True)])
def test_a_multiple_of_a_float_is_as_the_run_sees_it(value: float, fits: bool) -> None:
    """Cents: what the type takes is taken, although floats have no hundredths."""
    cents = Typed(Annotated[float, Field(multiple_of=0.01)], where="a")
    assert (mismatch(cents.json_schema() or {}, value) is None) is fits
    try:
        cents.validate_python(value)
        taken = True
    except NotRecordable:
        taken = False
    assert taken is fits


class Cat(BaseModel):
    kind: Literal["cat"]
    n: int


class Dog(BaseModel):
    kind: Literal["dog"]
    n: int


@pytest.mark.parametrize("value, why", [([{"kind": "cat", "n": "x"}], "[0].n"), ([{"kind": "cow", "n": 1}], "[0]")])
def test_a_form_that_names_itself_is_meant(value: Any, why: str) -> None:
    """Of forms that a field tells apart the one it names was meant: the sentence is about what is wrong in that one."""
    told = mismatch(Typed(list[Annotated[Cat | Dog, Field(discriminator="kind")]], where="a").json_schema() or {}, value) or ""
    assert told.startswith(why)
    assert "'cat' is not 'dog'" not in told
