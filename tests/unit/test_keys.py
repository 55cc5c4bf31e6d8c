"""Business keys and the idempotency key made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from stepseven.keys import MAX_WIRE, KeyPaths, key_part, wire_key
from stepseven.runtime.calls import text_of, whole
from stepseven.store.codec import canonical, digest


@dataclass
class Supplier:
    name: str

    @property
    def short(self) -> str:
        return self.name[:3]


class Document(BaseModel):
    supplier: Supplier
    number: str | int


class Row(TypedDict):
    size: int


class Point(NamedTuple):
    x: int


HINTS = {"d": Document, "row": Row, "p": Point, "s": Supplier, "any": Any, "plain": dict}
NAMES = tuple(HINTS)


def paths(key: str) -> KeyPaths:
    """A key of the step `post`."""
    return KeyPaths(key, "post", NAMES, HINTS)


BOUND = {
    "d": Document(supplier=Supplier("Brown & Co"), number=7), "row": {"size": 3}, "p": Point(4), "s": Supplier("Smith"),
    "any": {"deep": [1]}, "plain": {"a": {"b": "c"}},
}  # fmt: skip


@pytest.mark.parametrize(
    "key, text",
    [
        ("d.number", "7"), ("d.supplier.name, d.number", '"Brown%20%26%20Co"/7'), ("row.size", "3"), ("p.x", "4"),
        ("s.short", "Smi"), ("plain.a.b", "c"), ("any.deep", "[1]"), ("s", '{"name":"Smith"}'),
    ],
)  # fmt: skip
def test_paths_lead_through_every_kind_of_value(key: str, text: str) -> None:
    """A key path goes through dataclasses, models, typed dicts, named tuples, properties and mappings."""
    assert paths(key).text(BOUND) == text


@pytest.mark.parametrize(
    "key, words",
    [
        ("", "empty"), (" , ", "empty"), ("x", "names 'x'"), ("d.nothing", "no 'nothing'.*number, supplier"),
        ("d.supplier.nme", "no 'nme'"), ("row.length", "no 'length'"), ("p.y", "no 'y'"), ("d..x", "of the form"),
        ("d[0]", "of the form"), ("1d", "of the form"),
    ],
)  # fmt: skip
def test_a_path_that_cannot_be_right_is_refused_at_decoration(key: str, words: str) -> None:
    """A key is checked against the annotations when the step is declared: a typo is no question at three in the morning."""
    with pytest.raises(ValueError, match=words):
        paths(key)


@pytest.mark.parametrize("key, words", [("plain.z", "there is no 'z'"), ("any.deep.x", "list has no 'x'")])
def test_through_dicts_and_any_a_path_is_checked_at_the_call(key: str, words: str) -> None:
    """What annotations do not tell is checked when the step is called."""
    with pytest.raises(ValueError, match=words):
        paths(key).text(BOUND)


def test_a_key_without_a_value_is_refused() -> None:
    """A part that is ``None`` would give two effects one name."""
    with pytest.raises(ValueError, match="None in part"):
        paths("any, s").text({**BOUND, "any": None})


def test_a_key_may_be_a_callable() -> None:
    """``key=`` may be a function of the step's arguments; a tuple is several parts."""
    key = KeyPaths(lambda a, b: (a, b), "post", ("a", "b"), {})
    assert key.text({"a": "x", "b": 1}) == "x/1"
    with pytest.raises(ValueError, match="None in part"):
        KeyPaths(lambda a: None, "post", ("a",), {}).text({"a": 1})


values = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers() | st.text(), max_size=3)


@given(
    st.lists(values.filter(lambda v: v is not None), min_size=1, max_size=3),
    st.lists(values.filter(lambda v: v is not None), min_size=1, max_size=3),
)
def test_different_values_have_different_keys(a: list[Any], b: list[Any]) -> None:
    """The text of a key is one to one: ``1`` and ``"1"``, ``("a", "b")`` and ``("a/b",)`` never meet."""

    def text(parts: list[Any]) -> str:
        return "/".join(key_part(part, "key") for part in parts)

    try:
        same = [canonical(x) for x in a] == [canonical(x) for x in b]
        assert (text(a) == text(b)) == same
    except ValueError as refused:
        pytest.fail(str(refused))
    except Exception as refused:  # noqa: BLE001 - half characters have no text at all
        assert "recorded" in str(refused)  # noqa: PT017


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30), st.text(max_size=400), st.integers(1, 3))
def test_the_wire_key_is_ascii_and_short(scope: str, name: str, key: str, generation: int) -> None:
    """Whatever the parts: printable ASCII without spaces, at most 255 characters; a readable one is used as it is."""
    made = wire_key(scope, name, key, generation)
    assert made.isascii()
    assert made.isprintable()
    assert " " not in made
    assert len(made) <= MAX_WIRE
    plain = f"{scope}/{name}/{key}" + (f"#{generation}" if generation > 1 else "")
    if plain.isascii() and plain.isprintable() and " " not in plain and len(plain) <= MAX_WIRE:
        assert made == plain


@given(st.text(max_size=300), st.text(max_size=300))
def test_different_keys_stay_different_on_the_wire(a: str, b: str) -> None:
    """What is shortened or replaced carries a hash of the whole."""
    assert (wire_key("r", "post", a, 1) == wire_key("r", "post", b, 1)) == (a == b)


def test_a_wire_key_that_is_stored_for_ever() -> None:
    """The form is an interface: the other side remembers it for months."""
    assert wire_key("client-acme-01", "create_document", "acme/Q3", 1) == "client-acme-01/create_document/acme/Q3"
    assert wire_key("r", "post", "7", 2) == "r/post/7#2"
    assert wire_key("r", "post", "ü", 1) == "r/post/_~" + digest("r/post/ü")


@given(values | st.floats(allow_nan=False, allow_infinity=False) | st.dictionaries(st.text(), st.integers(), max_size=3))
def test_an_argument_s_text_is_the_canonical_one(value: Any) -> None:
    """The short way over the commonest arguments gives the very text of the long one."""
    try:
        expected = canonical(value, "x")
    except Exception as refused:  # noqa: BLE001
        with pytest.raises(type(refused)):
            text_of(value, "x")
    else:
        assert text_of(value, "x") == expected


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.integers() | st.text().filter(str.isascii), max_size=5))
def test_arguments_together_are_canonical_too(bound: dict[str, Any]) -> None:
    """The object of all arguments is what the digest of inputs is made of: names sorted, no spaces."""
    assert whole({name: text_of(value, name) for name, value in bound.items()}) == canonical(bound)
