"""Arguments as they are shown to a person, and back: whatever one of them is, an edit of another part leaves it alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from stepseven.errors import NotRecordable
from stepseven.model import Secret
from stepseven.runtime.arguments import argument_schema, decode_argument
from stepseven.store.codec import canonical
from stepseven.transitions.fitting import mismatch


class Size(Enum):
    BIG = "big"


class Place(NamedTuple):
    city: str
    no: int


class Utf8(BaseModel):
    """Bytes as pydantic takes them by itself."""

    data: bytes
    n: int = 1


class Hex(BaseModel):
    model_config = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")
    data: bytes


class Coded(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


@dataclass
class Parcel:
    """One of everything."""

    body: str
    data: bytes
    tags: set[str]
    codes: frozenset[tuple[int, int]]
    pair: tuple[int, bytes]
    price: Decimal
    day: date
    at: datetime
    within: timedelta
    place: Place
    size: Size
    more: list[bytes | None]
    token: Secret | None = None


PARCEL = Parcel(
    "a", b"\x00\xff", {"x", "y"}, frozenset({(1, 2)}), (1, b"b"), Decimal("1.50"), date(2026, 3, 14),
    datetime(2026, 3, 14, tzinfo=UTC), timedelta(minutes=-90), Place("Ulm", 3), Size.BIG, [b"", None], Secret("KEY"),
)  # fmt: skip
VALUES: list[tuple[Any, Any]] = [
    (bytes, b"\xfb\xff"), (set[int], {1, 2}), (frozenset[Place], frozenset({Place("a", 1)})), (bytes | None, b"a"),
    (Secret, Secret("KEY")), (str, Secret("KEY")), (list[Secret], [Secret("KEY")]), (Utf8, Utf8(data=b"abc")),
    (Hex, Hex(data=b"abc")), (Coded, Coded(data=b"\xff")), (list[Utf8], [Utf8(data=b"abcd"), Utf8(data=b"")]), (Parcel, PARCEL),
    (dict[str, bytes], {"a": b"a"}), (dict[str, int], {"$a": 1}), (Any, {"a": b"a"}), (dict, {"$bytes": "a"}),
    (str, 'a "$bytes" b'), (tuple[bytes, ...], (b"a", b"b")),
]  # fmt: skip


@pytest.mark.parametrize("annotation,value", VALUES)
def test_what_was_stored_is_what_the_code_gets(annotation, value):
    """An argument comes back equal and of its type, whatever form its type has elsewhere."""
    back = decode_argument(annotation, json.loads(canonical(value)), "it")
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("annotation,value", [case for case in VALUES if case[0] is not str and "$a" not in canonical(case[1])])
def test_what_is_shown_is_of_the_schema(annotation, value):
    """What a person leaves as it was shown is never refused."""
    schema = argument_schema(annotation)
    assert schema is None or mismatch(schema, json.loads(canonical(value))) is None


def test_an_edit_of_one_field_leaves_the_others():
    """One field is changed, the rest is sent back as shown: the answer is taken, and the rest is what it was."""
    edited = {**json.loads(canonical(PARCEL)), "body": "b"}
    assert mismatch(argument_schema(Parcel) or {}, edited) is None
    assert decode_argument(Parcel, edited, "parcel") == replace(PARCEL, body="b")


def test_an_edit_may_have_the_form_of_a_result():
    """What is given anew may be plain: base64, a list."""
    edited = {**json.loads(canonical(PARCEL)), "data": "YWJj", "tags": ["z"]}
    assert mismatch(argument_schema(Parcel) or {}, edited) is None
    assert decode_argument(Parcel, edited, "parcel") == replace(PARCEL, data=b"abc", tags={"z"})


@pytest.mark.parametrize(
    "annotation,edited,why",
    [
        (bytes, {"$bytes": "a"}, "'a' is no base64 text, such as YWJj"),
        (bytes, {"$bytes": "-_8="}, "'-_8=' is no base64 text"),
        (set[int], {"$set": ["a"]}, "[0]: 'a' is not a whole number"),
        (Parcel, {"body": 1}, "are missing"),
    ],
)
def test_what_is_in_a_tag_is_checked_too(annotation, edited, why):
    """A misfit is refused at once, and by the run."""
    told = mismatch(argument_schema(annotation) or {}, edited)
    assert told is not None
    assert why in told
    with pytest.raises(NotRecordable):
        decode_argument(annotation, edited, "it")


def test_bytes_never_come_back_as_others():
    """Bytes that the type cannot be given as text are refused, never taken for their base64."""
    with pytest.raises(NotRecordable):
        decode_argument(Utf8, {"data": {"$bytes": "/wA="}}, "it")


def test_a_type_without_a_schema_has_none():
    """Nothing is asked of it; the run decides."""
    assert argument_schema(Any) is None
    assert argument_schema(object()) is None


@given(st.binary(max_size=8), st.sets(st.binary(max_size=3), max_size=3), st.text(max_size=5))
def test_any_bytes_come_back(data, parts, name):
    """Whatever the bytes: as shown they are of the schema, and come back."""

    @dataclass
    class Blob:
        data: bytes
        parts: set[bytes]
        name: str

    blob = Blob(data, parts, name)
    shown = json.loads(canonical(blob))
    assert mismatch(argument_schema(Blob) or {}, shown) is None
    assert decode_argument(Blob, shown, "blob") == blob
