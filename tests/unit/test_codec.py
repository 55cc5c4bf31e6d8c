"""What can be stored comes back equal and of equal type; what cannot is refused at once, with the path to it.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
import typing
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, computed_field, model_validator

from stepseven.errors import NotRecordable, SecretFound, TooLarge
from stepseven.model import Secret
from stepseven.store import codec
from stepseven.store._adapt import adapter_for
from stepseven.store.codec import Typed, canonical, digest, fallback, free_text, from_canonical, guard
from stepseven.store.redact import MASK, find_secret

EMPTY = inspect.Parameter.empty
T = TypeVar("T")
KEY = "ghp_" + "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4zAb3d"  # made up


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Place(NamedTuple):
    x: int
    y: str


@dataclass
class Ticket:
    id: str
    when: datetime
    price: Decimal = Decimal("1.10")
    blob: bytes = b""
    tags: frozenset[str] = frozenset()
    rest: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Box(Generic[T]):
    held: T


class Row(TypedDict, total=False):
    name: str
    blob: bytes


class ModernRow(typing_extensions.TypedDict):
    name: str
    again: typing_extensions.NotRequired[int]


class Model(BaseModel):
    model_config = ConfigDict(strict=True)
    full_name: str = Field(alias="fullName")
    when: datetime
    colour: Colour = Colour.RED
    children: list[Model] = []

    @computed_field  # type: ignore[prop-decorator]
    @property
    def shout(self) -> str:
        return self.full_name.upper()


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants", ser_json_bytes="base64", val_json_bytes="base64")
    blob: bytes = b""
    number: float = 0.0
    payload: Any = None
    _hidden: int = PrivateAttr(default=0)


class Plain(BaseModel):
    blob: bytes


class Derived(Model):
    more: int = 0


def of_equal_type(a: Any, b: Any) -> bool:
    """Independent of the code under test: the same exact types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(of_equal_type(a[k], b[k]) for k in a) and all(map(of_equal_type, a, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(of_equal_type, a, b))
    return repr(a) == repr(b) if isinstance(a, float) else bool(a == b)


def typed(annotation: Any = EMPTY) -> Typed:
    """The codec of one annotation, its value called ``r``."""
    return Typed(annotation, where="r")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
plain_values = st.recursive(
    leaves | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts | st.sampled_from(["$bytes", "$set", "$$", "$secret", "$"]), inner, max_size=4)
    ),
    max_leaves=15,
)
anything = st.recursive(
    leaves
    | st.binary(max_size=4)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from([Colour.RED, Level.LOW, Place(1, "a"), 2**80]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.sets(st.integers(), max_size=2)
        | st.dictionaries(texts | st.integers() | st.text(max_size=2) | st.none() | st.just(Colour.RED), inner, max_size=3)
    ),
    max_leaves=8,
)

# -- results without a type ------------------------------------------------------------------------------------------


@given(plain_values)
def test_plain_result_comes_back_equal_and_of_equal_type(value: Any) -> None:
    """JSON types and bytes round-trip exactly, also objects that look like a tag, and the caller gets a copy."""
    for annotation in (EMPTY, Any, object):
        text, again = typed(annotation).roundtrip(value)
        assert of_equal_type(value, again)
        assert of_equal_type(value, typed(annotation).decode(text))
        assert "\0" not in text
        text.encode()
        json.loads(text, parse_constant=pytest.fail)
        if isinstance(value, (dict, list)):
            assert again is not value


@given(anything)
def test_any_result_is_exact_or_refused_with_a_path(value: Any) -> None:
    """There is no third outcome: nothing is stored that would come back as something else."""
    try:
        text, again = typed().roundtrip(value)
    except NotRecordable as exc:
        assert exc.path.startswith("r")  # noqa: PT017 - either outcome is right, each has its own claim
        assert exc.why  # noqa: PT017 - as above
    else:
        assert of_equal_type(value, again)
        assert of_equal_type(value, typed().decode(text))


def nested(depth: int) -> Any:
    """A list in a list in a list …, *depth* deep."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def cycle() -> Any:
    """A value that contains itself."""
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


REFUSED = [
    ({"a": [1, {"b": (1, 2)}]}, "r.a[1].b"),
    ({"a": {1, 2}}, "r.a"),
    ([float("nan")], "r[0]"),
    ({"x y": math.inf}, "r['x y']"),
    ({"t": "a\ud800"}, "r.t"),
    ({"t": {"\udc00": 1}}, "r.t['\\udc00']"),
    ({"m": {3: "x"}}, "r.m[3]"),
    ({"m": {True: "x"}}, "r.m[True]"),
    ({"m": {None: "x"}}, "r.m[None]"),
    ({"c": Colour.RED}, "r.c"),
    ({Colour.RED: 1}, "r.red"),
    ([Level.LOW], "r[0]"),
    ([Place(1, "a")], "r[0]"),
    ({"o": object()}, "r.o"),
    ({"o": OrderedDict(a=1)}, "r.o"),
    ({"o": defaultdict(int)}, "r.o"),
    ({"f": print}, "r.f"),
    ({"d": datetime(2026, 1, 1, tzinfo=UTC)}, "r.d"),
    ({"d": Decimal(1)}, "r.d"),
    ({"b": bytearray(b"x")}, "r.b"),
    ({"b": memoryview(b"x")}, "r.b"),
    ({"s": Secret("X")}, "r.s"),
    ({"big": 10**5000}, "r.big"),
    ({"e": ...}, "r.e"),
    ({"i": 1j}, "r.i"),
    ({"m": Plain(blob=b"x")}, "r.m"),
]


@pytest.mark.parametrize("value, path", REFUSED, ids=[path for _, path in REFUSED])
@pytest.mark.parametrize("annotation", [EMPTY, Any, dict[str, Any] | list[Any]], ids=["none", "Any", "dict|list"])
def test_refusal_names_the_path(value: Any, path: str, annotation: Any) -> None:
    """A foreign part deep inside is refused with the way to it, whatever the annotation leaves open."""
    with pytest.raises(NotRecordable) as caught:
        typed(annotation).encode(value)
    assert caught.value.path == path


def test_depth_and_cycles_are_refused() -> None:
    """What the parser could not read back, and what has no end, is refused; a deep but readable value is not."""
    assert typed().roundtrip(nested(140))[1] == nested(140)
    for value in (nested(250), nested(100_000), cycle()):
        for call in (typed().encode, typed(list[Any] | dict[str, Any]).encode, canonical):
            with pytest.raises(NotRecordable, match="nested deeper"):
                call(value)


def test_too_large_says_how_large() -> None:
    """A result over 16 MiB is refused with its name and size, typed or not."""
    for annotation in (EMPTY, str):
        assert len(typed(annotation).encode("x" * (codec.MAX_RESULT - 2))) == codec.MAX_RESULT
        with pytest.raises(TooLarge) as caught:
            typed(annotation).encode("x" * codec.MAX_RESULT)
        assert (caught.value.path, caught.value.size) == ("r", codec.MAX_RESULT + 2)


# -- results with a type ----------------------------------------------------------------------------------------------

NOON = datetime(2026, 3, 14, 12, 0, 0, 5, tzinfo=UTC)
TYPED: list[tuple[Any, Any]] = [
    (Ticket, Ticket("T-1", NOON, Decimal("3.140"), b"\xff\x00", frozenset({"a", "b"}), {"n": [1, 1.5, None, True]})),
    (list[Ticket], [Ticket("T-1", NOON)]),
    (dict[str, Ticket | None], {"a": None, "b": Ticket("\0", NOON)}),
    (Box[int], Box(3)),
    (Box[list[bytes]], Box([b"\xff"])),
    (Row, {"name": "a", "blob": b"\xfe"}),
    (list[Row] | None, [{"name": "a"}, {}]),
    (dict[str, Row], {"x": {"blob": b"\xfe"}}),
    (ModernRow, {"name": "a", "again": 2}),
    (Model, Model(fullName="ann", when=NOON, children=[Model(fullName="bob", when=NOON)])),
    (tuple[Model, ...], (Model(fullName="ann", when=NOON),)),
    (Loose, Loose(blob=b"\xff", number=1.5, payload={"a": [1, 1.0, True]}, other="x")),  # type: ignore[call-arg]
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (Place, Place(1, "a")),
    (datetime, NOON),
    (datetime, datetime(2026, 3, 14, 12, 0)),  # noqa: DTZ001 - a naive time stays one
    (datetime, datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))),
    (date, date(2026, 3, 14)),
    (time, time(1, 2, 3, 4)),
    (timedelta, timedelta(days=-3, microseconds=1)),
    (Decimal, Decimal("-0.100")),
    (bytes, b"\xff\x00"),
    (bytes, b""),
    (UUID, UUID(int=5)),
    (Path, Path("/a/b")),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (set[Place], {Place(1, "a"), Place(2, "b")}),
    (tuple[int, str], (1, "a")),
    (dict[int, str], {1: "a"}),
    (dict[UUID, Decimal], {UUID(int=5): Decimal(1)}),
    (int | str | None, "1"),
    (int | str | None, 1),
    (str, "\0\x1b\u2028é🎉"),
    (int, 2**200),
    (float, 1.7976931348623157e308),
    (float, 5e-324),
    (None, None),
    (bool, False),
    (dict[str, Any], {"b": b"\xff", "$bytes": 1}),
    (dict[str, Any], {"$bytes": "x"}),
    (list[Any], [b"\xff", {"a": 1}]),
    (dict[str, Any] | None, None),
    (typing.Literal["a", 3], 3),
]


@pytest.mark.parametrize("annotation, value", TYPED, ids=[f"{a}" for a, _ in TYPED])
def test_typed_result_comes_back_equal_and_of_equal_type(annotation: Any, value: Any) -> None:
    """Every kind of annotation: the caller gets the decoded record, and a later load gives the same."""
    text, again = typed(annotation).roundtrip(value)
    assert type(again) is type(value)
    if not isinstance(value, datetime):
        assert again == value
    else:
        assert again.utcoffset() == value.utcoffset()
    assert typed(annotation).decode(text) == again
    assert "\0" not in text
    assert typed(annotation).validate_python(value) == again
    text.encode()
    json.loads(text, parse_constant=pytest.fail)


finite_decimals = st.decimals(allow_nan=False, allow_infinity=False)
utc_times = st.datetimes(timezones=st.just(UTC))


@given(st.builds(Ticket, texts, utc_times, finite_decimals, st.binary(), st.frozensets(texts), st.dictionaries(texts, leaves)))
def test_dataclass_round_trips(ticket: Ticket) -> None:
    """Whatever a dataclass holds within its annotations is kept exactly."""
    text, again = typed(Ticket).roundtrip(ticket)
    assert again == ticket
    assert typed(Ticket).decode(text) == ticket
    assert str(again.price) == str(ticket.price)


@given(st.timedeltas(), st.times(), st.dates(), st.uuids(), st.datetimes(timezones=st.timezones()))
def test_times_round_trip(delta: timedelta, clock: time, day: date, name: UUID, moment: datetime) -> None:
    """Times are kept to the microsecond, or refused: never shifted."""
    for annotation, value in ((timedelta, delta), (time, clock), (date, day), (UUID, name), (datetime, moment)):
        try:
            again = typed(annotation).roundtrip(value)[1]
        except NotRecordable:
            continue
        assert again == value or again.timestamp() == value.timestamp()


@given(anything)
def test_no_annotation_stores_what_it_would_not_give_back(value: Any) -> None:
    """For every annotation, a value of another type is refused; what is accepted is equal."""
    for annotation in (
        list[int],
        dict[str, Any],
        dict[str, str],
        tuple[int, str],
        str,
        Ticket,
        Model,
        set[int],
        list[Any],
        bytes,
    ):
        try:
            again = typed(annotation).roundtrip(value)[1]
        except NotRecordable as exc:
            assert exc.path.startswith("r")  # noqa: PT017 - either outcome is right, each has its own claim
        else:
            assert of_equal_type(value, again)


TYPED_REFUSED: list[tuple[Any, Any, str]] = [
    (Ticket, None, "r"),
    (Ticket, {"id": "x"}, "r.when"),
    (Ticket, Ticket("a", "noon"), "r.when"),  # type: ignore[arg-type]
    (list[Ticket], [Ticket("a", NOON), Ticket("b\ud800", NOON)], "r[1].id"),
    (list[Ticket], [Ticket("a", NOON, rest={"x": [(1, 2)]})], "r[0].rest.x[0]"),
    (list[Ticket], [Ticket("a", NOON, rest={"x": {3: 1}})], "r[0].rest.x[3]"),
    (list[Ticket], [Ticket("a", NOON, rest={"x": math.nan})], "r[0].rest.x"),
    (Ticket, Ticket("a", NOON, rest={"x": b"\xff"}), "r.rest.x"),
    (Ticket, Ticket("a", NOON, rest={"x": 1, "o": object()}), "r.rest.o"),
    (Ticket, Ticket("a", NOON, price=1.5), "r.price"),  # type: ignore[arg-type]
    (Ticket, Ticket(Colour.RED, NOON), "r.id"),
    (Loose, Loose(number=math.inf), "r.number"),
    (Loose, Loose(payload={"x": math.nan}), "r.payload.x"),
    (Plain, Plain(blob=b"\xff"), "r"),
    (Model, Derived(fullName="a", when=NOON), "r"),
    (int, True, "r"),
    (int, 1.0, "r"),
    (int, "1", "r"),
    (bool, 1, "r"),
    (str, Colour.RED, "r"),
    (float, 2**53 + 1, "r"),
    (float, math.nan, "r"),
    (tuple[int, ...], [1], "r"),
    (list[int], (1,), "r"),
    (list[int], [1, "x"], "r[1]"),
    (list[dict[str, Any]], [{"a": 1}, 3], "r[1]"),
    (dict[str, Any], [1], "r"),
    (dict[str, int], {"a": None}, "r.a"),
    (Decimal, Decimal("NaN"), "r"),
    (None, 3, "r"),
]


@pytest.mark.parametrize("annotation, value, path", TYPED_REFUSED, ids=[f"{a}-{p}" for a, _, p in TYPED_REFUSED])
def test_typed_refusal_names_the_path(annotation: Any, value: Any, path: str) -> None:
    """A result that is not what the annotation says, or would change on the way, is refused where it is wrong."""
    with pytest.raises(NotRecordable) as caught:
        typed(annotation).encode(value)
    assert caught.value.path == path


def test_private_attributes_are_not_lost_silently() -> None:
    """A model's private state is not stored: a model whose private state matters is refused."""
    value = Loose()
    value._hidden = 7
    with pytest.raises(NotRecordable, match="private"):
        typed(Loose).encode(value)


def test_an_int_may_stand_where_a_float_is_declared() -> None:
    """``-> float`` returning 3 gives 3.0, the first time and after a load."""
    text, again = typed(list[float]).roundtrip([3, 1.5])
    assert repr(again) == "[3.0, 1.5]"
    assert repr(typed(list[float]).decode(text)) == "[3.0, 1.5]"


def test_unknown_names_count_as_any() -> None:
    """An annotation that cannot be resolved holds nobody up."""
    assert typed("Missing").roundtrip({"a": b"x"})[1] == {"a": b"x"}
    assert typed(list["Missing"]).roundtrip([1])[1] == [1]  # type: ignore[name-defined]  # noqa: F821
    assert typed("Missing").json_schema() is None


def test_a_type_that_cannot_be_stored_is_named() -> None:
    """A class pydantic knows nothing about is refused by name at first use."""
    with pytest.raises(NotRecordable, match="Thread"):
        typed(type("Thread", (), {})).encode(None)


# -- Z01, Z02: the class changed --------------------------------------------------------------------------------------


def test_what_cannot_be_rebuilt_names_the_field() -> None:
    """A stored value that the class of today does not take is an error with the field's name, never None."""
    for text, path in (('{"id":"x"}', "r.when"), ('{"id":3,"when":"2026-01-01T00:00:00Z"}', "r.id"), ("null", "r"), ("{", "r")):
        with pytest.raises(NotRecordable) as caught:
            typed(Ticket).decode(text)
        assert caught.value.path == path
    with pytest.raises(NotRecordable):
        typed().decode("{")


def test_a_renamed_field_does_not_become_its_default() -> None:
    """Old field gone and new field defaulted in one object is a renaming: refused by name. Only one of both is fine."""

    @dataclass
    class Renamed:
        total: float | None = None

    @dataclass
    class Grown:
        amount: float
        note: str | None = None

    @dataclass
    class Shrunk:
        pass

    with pytest.raises(NotRecordable) as caught:
        typed(list[Renamed]).decode('[{"amount":3.5}]')
    assert caught.value.path == "r[0].amount"
    assert typed(Grown).decode('{"amount":3.5}') == Grown(3.5)
    assert typed(Shrunk).decode('{"amount":3.5}') == Shrunk()


class Whole(BaseModel):
    name: str
    when: datetime
    kept: list[Whole] | None
    places: dict[str, tuple[int, Colour]]


class Defaulted(BaseModel):
    name: str | None = None


class Renamed(BaseModel):
    name: str = Field(alias="title")


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Checked(BaseModel):
    name: str

    @model_validator(mode="before")
    @classmethod
    def fill(cls, value: Any) -> Any:
        return {"name": "", **value}


@pytest.mark.parametrize(
    "annotation, whole",
    [
        (int, True), (Whole, True), (list[Whole] | None, True), (Defaulted, False), (dict[str, list[Defaulted]], False),
        (Whole | Defaulted, False), (Renamed, False), (Anything, False), (Checked, False), (Ticket, False), (Place, False),
        (Row, False), (Path, False),
    ],
    ids=str,
)  # fmt: skip
def test_only_what_has_every_field_from_its_text_is_read_without_being_written_again(annotation: Any, whole: bool) -> None:
    """No default, no alias, no validator anywhere in a type: then no field can be emptied by a renaming. All else is checked."""
    adapter = adapter_for(annotation, "r")
    assert adapter is not None
    assert adapter.whole is whole


# -- answers and schemas ----------------------------------------------------------------------------------------------


def test_given_values_become_typed() -> None:
    """A person's plain data becomes the typed value, by alias or by name; what does not fit says where and why."""
    assert typed(Model).validate_python({"fullName": "ann", "when": "2026-03-14T12:00:00.000005Z"}).when == NOON
    assert typed(Model).validate_python({"full_name": "ann", "when": "2026-03-14T12:00:00Z"}).full_name == "ann"
    assert typed(date).validate_python("2026-03-14") == date(2026, 3, 14)
    assert typed().validate_python({"a": 1}) == {"a": 1}
    assert typed(float).validate_python(3) == 3.0
    for annotation, value, path in ((Model, {"fullName": "ann"}, "r.when"), (int, "many", "r"), (list[int], [1, None], "r[1]")):
        with pytest.raises(NotRecordable) as caught:
            typed(annotation).validate_python(value)
        assert caught.value.path == path


def test_json_schema() -> None:
    """Typed values have a schema for forms; open ones say None."""
    schema = typed(list[Place]).json_schema()
    assert schema is not None
    assert schema["type"] == "array"
    assert typed().json_schema() is None
    assert typed(Any).json_schema() is None


# -- inputs -----------------------------------------------------------------------------------------------------------


@given(plain_values, st.randoms(use_true_random=False))
def test_canonical_does_not_know_key_order(value: Any, random: Any) -> None:
    """The same inputs in another key order have the same text, and so the same digest."""

    def shuffled(v: Any) -> Any:
        if isinstance(v, dict):
            items = [(k, shuffled(x)) for k, x in v.items()]
            random.shuffle(items)
            return dict(items)
        return [shuffled(x) for x in v] if isinstance(v, list) else v

    assert canonical(value) == canonical(shuffled(value))
    assert digest(canonical(value)) == digest(canonical(shuffled(value)))
    assert from_canonical(canonical(value)) == value
    assert "\0" not in canonical(value)


@given(plain_values, plain_values)
def test_canonical_tells_values_apart(a: Any, b: Any) -> None:
    """Two plain values have the same text only if they are equal and of equal types."""
    assert (canonical(a) == canonical(b)) == of_equal_type(*(json.loads(canonical(v)) for v in (a, b)))
    if canonical(a) == canonical(b):
        assert a == b


@given(anything)
def test_any_input_is_canonical_or_refused_with_a_path(value: Any) -> None:
    """Inputs that pass are valid JSON that a database takes and that gives the same text again."""
    try:
        text = canonical(value, "inputs.x")
    except NotRecordable as exc:
        assert exc.path.startswith("inputs.x")  # noqa: PT017 - either outcome is right, each has its own claim
    else:
        text.encode()
        assert canonical(from_canonical(text)) == text


@pytest.mark.parametrize(
    "value, text",
    [
        (1, "1"),
        (1.0, "1.0"),
        (True, "true"),
        ("1", '"1"'),
        ((1, 2), "[1,2]"),
        ({2, 1, 10}, '{"$set":[1,10,2]}'),
        (frozenset({"a"}), '{"$set":["a"]}'),
        (b"\xff", '{"$bytes":"/w=="}'),
        ({"$bytes": "/w=="}, '{"$$bytes":"/w=="}'),
        (Secret("TOKEN"), '{"$secret":"TOKEN"}'),
        ({"b": 1, "a": "é"}, '{"a":"é","b":1}'),
        (Colour.RED, '"red"'),
        (Level.LOW, "1"),
        ({Colour.RED: 1}, '{"red":1}'),
        (NOON, '"2026-03-14T12:00:00.000005+00:00"'),
        (timedelta(days=-3, microseconds=1), '"-PT259199.999999S"'),
        (timedelta(hours=1), '"PT3600S"'),
        (Decimal("1.10"), '"1.10"'),
        (UUID(int=5), '"00000000-0000-0000-0000-000000000005"'),
        (PurePosixPath("/a"), '"/a"'),
        (Place(1, "a"), '[1,"a"]'),
        (Box(held=None), '{"held":null}'),
        (Loose(number=1.5, other=2), '{"blob":{"$bytes":""},"number":1.5,"other":2,"payload":null}'),  # type: ignore[call-arg]
        (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
        ("\0", '"\\u0000"'),
        (2**80, str(2**80)),
    ],
    ids=repr,
)
def test_canonical_form(value: Any, text: str) -> None:
    """The stored form of each kind of input, pinned: a change would make every paid step run again."""
    assert canonical(value) == text


def test_durations_and_dates_of_inputs_can_be_rebuilt() -> None:
    """What canonical text writes, the parameter's type reads."""
    for value in (
        timedelta(days=-3, microseconds=1),
        timedelta(hours=1),
        NOON,
        Decimal("1.10"),
        Path("/a"),
        {1, 2},
        (1, b"\xff"),
    ):
        annotation = {set: set[int], tuple: tuple[int, bytes]}.get(
            type(value), type(value) if not isinstance(value, Path) else Path
        )
        given_value = from_canonical(canonical(value))
        if not isinstance(value, (set, tuple)):
            assert typed(annotation).validate_python(given_value) == value
    assert from_canonical('{"$set":[1,2]}') == {1, 2}
    assert from_canonical('{"$secret":"X"}') == Secret("X")


@pytest.mark.parametrize(
    "value, path",
    [
        ({"tickets": [0, 1, 2, {"when": lambda: 0}]}, "inputs.tickets[3].when"),
        ({"tickets": (1, math.nan)}, "inputs.tickets[1]"),
        ({"t": "\ud800"}, "inputs.t"),
        ({"t": {1: 2}}, "inputs.t[1]"),
        ({"f": sys.stdout}, "inputs.f"),
        ({"f": Ticket}, "inputs.f"),
        ({"f": object()}, "inputs.f"),
        ({"f": Box(held=[Decimal("Infinity")])}, "inputs.f.held[0]"),
        ({"f": SecretStr("x")}, "inputs.f"),
        ({"f": (i for i in ())}, "inputs.f"),
        ({"f": namedtuple("N", "a")(object())}, "inputs.f[0]"),  # noqa: PYI024 - any named tuple
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_input_refusal_names_the_path(value: Any, path: str) -> None:
    """Z08: what cannot be recorded is refused at the call, with the parameter's path."""
    with pytest.raises(NotRecordable) as caught:
        canonical(value, "inputs")
    assert caught.value.path == path


def test_digest_is_pinned() -> None:
    """The digest of a text never changes: records are found by it."""
    assert digest('{"client_id":"acme"}') == digest(b'{"client_id":"acme"}') == "1lw5XICjRWSJ4_4Ov_4ccgA"
    assert len(digest("")) == 23
    assert set(digest("x")[1:]) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


# -- credentials and text that cannot fail ------------------------------------------------------------------------------


def test_guard_names_the_path() -> None:
    """X01: a credential is refused where it stands, before the write."""
    for value, path in (
        ({"config": [{"n": 1}, {"api key": f"a\n{KEY}"}]}, "r.config[1]['api key']"),
        ({"headers": {"Authorization": "Bearer abcd1234"}}, "r.headers.Authorization"),
        (KEY, "r"),
    ):
        with pytest.raises(SecretFound) as caught:
            guard(typed().encode(value), "r", secrets="refuse")
        assert caught.value.path == path
        assert KEY not in str(caught.value)
    with pytest.raises(SecretFound) as caught:
        guard(json.dumps({KEY: 1}), "r", secrets="refuse")
    assert KEY not in str(caught.value)
    assert guard('{"a":1}', "r", secrets="refuse") == '{"a":1}'


@given(plain_values, st.sampled_from([KEY, "Authorization: Bearer abcd1234", "postgres://u:hunter2!@h/d"]))
def test_guard_masks_into_valid_json(value: Any, secret: str) -> None:
    """With ``mask`` the text stays JSON, holds no credential, and the rest is untouched."""
    text = typed().encode({"keep": value, "secret": f'"\\\n{secret}\n"', "headers": {"Authorization": "Bearer abcd1234"}})
    masked = guard(text, "r", secrets="mask")
    assert find_secret(masked) is None
    assert typed().decode(masked)["keep"] == value
    assert MASK in json.loads(masked)["secret"]


@given(st.text(), st.integers(1, 50))
def test_free_text_can_always_be_stored(text: str, limit: int) -> None:
    """Free text never holds a NUL or half a character, and never more than the limit."""
    shown = free_text(text, limit)
    assert len(shown) <= limit
    assert "\0" not in shown
    shown.encode()


def test_free_text_shows_what_it_changed() -> None:
    """NUL, half characters, credentials and cuts are visible."""
    assert free_text("a\0b\ud800") == "a\\0b\ufffd"
    assert free_text(f"403 for {KEY}") == f"403 for {MASK}"
    assert free_text("x" * 5000) == "x" * 3999 + "…"
    assert KEY[:20] not in free_text("x" * 3980 + " " + KEY)
    assert free_text("emoji 🎉 stays") == "emoji 🎉 stays"


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError(KEY)


@pytest.mark.parametrize(
    "value", [object(), Hostile(), cycle(), "\ud800\0", {"k": KEY}, math.nan, [Hostile()]], ids=lambda v: type(v).__name__
)
def test_fallback_cannot_fail(value: Any) -> None:
    """Z07: there is a form for every outcome, without credentials."""
    text = fallback(value)
    shown = json.loads(text)
    assert shown.startswith(type(value).__name__)
    assert len(shown) <= 2000
    assert find_secret(text) is None
    text.encode()


def test_zones_are_kept_as_offsets() -> None:
    """An aware time comes back as the same moment with the same offset."""
    value = datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert typed(datetime).roundtrip(value)[1].isoformat() == value.isoformat()


class NotEnum(Enum):
    """A plain enum, whose values are not JSON."""

    ODD = object()


def test_enum_of_foreign_values_is_refused() -> None:
    """An enum is as recordable as its value."""
    with pytest.raises(NotRecordable):
        canonical(NotEnum.ODD)
