"""Plain values: JSON types and nothing else, checked exactly, with tags for what JSON has no word for.

A tag is an object with one key: ``{"$bytes": base64}``, ``{"$set": [...]}``, ``{"$secret": name}``. An object of the
user's that has one key starting with ``$`` gets a second ``$``, so that it is never taken for a tag.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from marshal import dumps
from operator import attrgetter
from pathlib import PurePath
from typing import Any
from uuid import UUID

from stepseven.errors import NotRecordable
from stepseven.model import Secret

MAX_DEPTH = 150  #: below the 200 at which the JSON parser gives up, with room for what wraps a value
_MARSHAL = 2  #: the last version without back-references: equal values, equal bytes
_LONG_PATH = 20  #: parts; a longer one is shown with its middle left out
_MAX_INT_BITS = 14_000  #: below the 4,300 digits at which Python and the JSON parser refuse an integer
_EXACT = frozenset({str, int, bool, type(None), bytes, UUID, date, timedelta})

#: canonical text: keys sorted by code point, floats as ``repr`` writes them (which no library update changes)
dump_sorted: Callable[[Any], str] = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode


class Refused(Exception):
    """Why a value cannot be stored, and the way to it, innermost part first."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.parts: list[str] = []

    def at(self, root: str) -> NotRecordable:
        """The public error, with the path from *root*."""
        parts = self.parts[::-1]
        shown = parts if len(parts) <= _LONG_PATH else [*parts[:10], "…", *parts[-3:]]
        return NotRecordable(root + "".join(shown), self.why)


def part(key: object) -> str:
    """One part of a path: ``.when``, ``[3]`` or ``['due date']``."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def plain(value: Any, other: Callable[[Any, int], Any], depth: int = 0) -> Any:
    """A copy of *value* made of JSON types only, or ``Refused``.

    Args:
        value: anything.
        other: turns what is not exactly a JSON type into one, or raises ``Refused``; gets the depth too.
        depth: how deep *value* lies.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _utf8(value)
    if kind is int:
        if value.bit_length() > _MAX_INT_BITS:
            raise Refused(f"an integer of {value.bit_length():,} bits is too long, the limit is {_MAX_INT_BITS:,}")
        return value
    if kind is dict:
        return _plain_dict(value, other, depth)
    if kind is list:
        return plain_list(value, other, depth)
    if value is None or kind is bool:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise Refused(f"{value!r} has no form in JSON")
        return value
    return other(value, depth)


def plain_list(values: Any, other: Callable[[Any, int], Any], depth: int) -> list[Any]:
    """The list of the plain forms of *values*."""
    _check_depth(depth)
    out = []
    for item in values:
        try:
            out.append(plain(item, other, depth + 1))
        except Refused as refused:
            refused.parts.append(part(len(out)))
            raise
    return out


def _plain_dict(value: Mapping[Any, Any], other: Callable[[Any, int], Any], depth: int) -> dict[str, Any]:
    _check_depth(depth)
    out: dict[str, Any] = {}
    for key, item in value.items():
        try:
            if type(key) is str and key.isascii():
                out[key] = plain(item, other, depth + 1)
            else:
                out[_plain_key(key, other, depth)] = plain(item, other, depth + 1)
        except Refused as refused:
            refused.parts.append(part(key))
            raise
    if len(out) == 1:
        ((name, only),) = out.items()
        if name[:1] == "$":
            return {"$" + name: only}
    return out


def _plain_key(key: Any, other: Callable[[Any, int], Any], depth: int) -> str:
    name = plain(key, other, depth + 1) if isinstance(key, str) else None
    if type(name) is not str:
        raise Refused(f"it is under the key {key!r} ({type(key).__name__}), keys must be text")
    return name


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise Refused(f"it is nested deeper than {MAX_DEPTH} levels, or contains itself")


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise Refused(f"the text holds half a character (a lone surrogate, at position {exc.start})") from exc
    return text


def result_other(value: Any, _depth: int) -> Any:
    """Results without a declared type: besides JSON types only bytes."""
    if type(value) is bytes:
        return _tagged_bytes(value)
    name = type(value).__name__
    raise Refused(f"a {name} would not come back as a {name}: annotate the step's return type, or return plain data")


def input_other(value: Any, depth: int) -> Any:
    """Inputs: every value that has one text, always the same."""
    if isinstance(value, Enum):
        return plain(value.value, input_other, depth)
    for kinds, form in _FORMS:
        if isinstance(value, kinds):
            return form(value)
    if isinstance(value, (tuple, list)):
        return plain_list(value, input_other, depth)
    if isinstance(value, (set, frozenset)):
        return {"$set": sorted(plain_list(value, input_other, depth), key=dump_sorted)}
    if isinstance(value, dict):
        return _plain_dict(value, input_other, depth)
    fields = _attributes(value)
    if fields is not None:
        return _plain_dict(fields, input_other, depth)
    for base in (str, int, float):
        if isinstance(value, base):
            return plain(base(value), input_other, depth)
    raise Refused(_foreign(value))


def _foreign(value: Any) -> str:
    name = type(value).__name__
    if name.startswith("Secret"):
        return f"a {name} holds a credential: pass Secret('NAME') instead"
    return f"a {name} is not data: pass plain data, or name the parameter in ignore="


def _tagged_bytes(value: bytes) -> dict[str, str]:
    return {"$bytes": base64.b64encode(value).decode()}


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise Refused(f"{value} has no form in JSON")
    return str(value)


def _duration(value: timedelta) -> str:
    """ISO 8601, exact to the microsecond."""
    total = value // timedelta(microseconds=1)
    seconds, micro = divmod(abs(total), 1_000_000)
    return f"{'-' if total < 0 else ''}PT{seconds}{f'.{micro:06d}' if micro else ''}S"


_FORMS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    ((datetime, date, time), lambda v: v.isoformat()),
    (timedelta, _duration),
    (Decimal, _decimal),
    (bytes, _tagged_bytes),
    (UUID, str),
    (PurePath, lambda v: _utf8(str(v))),
    (Secret, lambda v: {"$secret": v.name}),
)


@lru_cache(maxsize=1024)
def _field_names(kind: Any) -> tuple[str, ...] | None:
    """The declared fields of a dataclass or pydantic model; ``None`` for any other type."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    fields = getattr(kind, "__pydantic_fields__", None)
    return tuple(fields) if isinstance(fields, dict) else None


def _attributes(value: Any) -> dict[str, Any] | None:
    """What the declared fields of a dataclass or pydantic model hold, with a model's extra ones; else ``None``."""
    kind: Any = type(value)
    names = _field_names(kind)
    if names is None:
        return None
    held = {name: getattr(value, name, None) for name in names}
    extra = getattr(value, "__pydantic_extra__", None)
    return held | extra if extra else held


def untag(value: Any) -> Any:
    """The reverse of the tags, in a value fresh from JSON."""
    if type(value) is list:
        return [untag(item) for item in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        ((key, item),) = value.items()
        if key[:1] == "$":
            return _untagged(key, item)
    return {key: untag(item) for key, item in value.items()}


def _untagged(key: str, item: Any) -> Any:
    if key == "$bytes":
        return base64.b64decode(item, validate=True)
    if key == "$secret":
        return Secret(item)
    if key == "$set":
        items = untag(item)
        try:
            return set(items)
        except TypeError:  # of objects: the parameter's type makes a set of it
            return items
    return {key[1:]: untag(item)}


def difference(a: Any, b: Any) -> Refused | None:
    """Where *b* is not *a* again, equal and of equal type all the way down; ``None`` when it is.

    One exception: an ``int`` where the annotation says ``float`` comes back as the equal float (PEP 484 allows it).
    """
    kind = type(a)
    if kind is type(b):
        return _comparison(kind)(a, b)  # type: ignore[arg-type]  # a class is hashable, whatever mypy says of type[Any]
    if kind is int and type(b) is float and a == b:
        return None
    return Refused(f"it is a {kind.__name__} and would come back as a {type(b).__name__}")


@lru_cache(maxsize=1024)
def _comparison(kind: Any) -> Callable[[Any, Any], Refused | None]:
    """How two values of exactly this type are compared."""
    names = _field_names(kind)
    if names:
        return partial(_object_difference, names, attrgetter(*names))
    if issubclass(kind, dict):
        return _dict_difference
    if issubclass(kind, (list, tuple, deque)):
        return _sequence_difference
    return _set_difference if issubclass(kind, (set, frozenset)) else _leaf_difference


def _first(keys: Iterable[Any], left: Iterable[Any], right: Iterable[Any]) -> Refused | None:
    """The first difference between pairs, with its key put on the path."""
    for key, x, y in zip(keys, left, right, strict=True):
        if type(x) is type(y) and type(x) in _EXACT and x == y:
            continue  # most of most values: spares the calls
        found = difference(x, y)
        if found is not None:
            found.parts.append(part(key))
            return found
    return None


def same_plain(a: Any, b: Any) -> bool:
    """Whether both are built-in values, equal and of equal types all the way down. ``False`` may also be "cannot tell".

    As fast as C: ``marshal`` writes exact built-in types only, each with its own code.
    """
    try:
        return dumps(a, _MARSHAL) == dumps(b, _MARSHAL)
    except ValueError:
        return False


def _dict_difference(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> Refused | None:
    for key, again in zip(a, b, strict=False):
        if key != again or type(key) is not type(again):
            found = Refused("it would not come back" if key not in b else f"its key would come back as {again!r}")
            found.parts.append(part(key))
            return found
    if len(a) != len(b):
        return Refused(f"it has {len(a)} keys and would come back with {len(b)}")
    return _first(a, list(a.values()), list(b.values()))


def _sequence_difference(a: Sequence[Any], b: Sequence[Any]) -> Refused | None:
    if len(a) != len(b):
        return Refused(f"it has {len(a)} items and would come back with {len(b)}")
    return _first(range(len(a)), a, b)


def _set_difference(a: AbstractSet[Any], b: AbstractSet[Any]) -> Refused | None:
    again = {item: item for item in b}
    if len(a) != len(b) or any(item not in again for item in a):
        return _changed(a)
    items = list(a)
    return _first(items, items, [again[item] for item in items])


def _object_difference(names: tuple[str, ...], fields: Callable[[Any], Any], a: Any, b: Any) -> Refused | None:
    try:
        found = None if same_plain(fields(a), fields(b)) else _first(names, *([getattr(o, n) for n in names] for o in (a, b)))
    except AttributeError as exc:
        return Refused(f"the field {exc.name!r} would not come back")
    if found is not None or not hasattr(a, "__pydantic_private__"):
        return found
    if a.__pydantic_private__ != b.__pydantic_private__:
        return Refused("its private attributes would not come back")
    if a.__pydantic_extra__ or b.__pydantic_extra__:
        return _dict_difference(a.__pydantic_extra__ or {}, b.__pydantic_extra__ or {})
    return None


def _leaf_difference(a: Any, b: Any) -> Refused | None:
    try:
        # In the hour that a zone's clock repeats, Python calls times with different zones unequal, whatever they are.
        same = bool(a == b) or (isinstance(a, datetime) and a.tzinfo is not None and a.astimezone(UTC) == b.astimezone(UTC))
    except (ArithmeticError, TypeError, ValueError):  # a signalling NaN, an array: no plain equality
        same = False
    if isinstance(a, float) and not math.isfinite(a):
        same = False
    return None if same else _changed(a)


def _changed(a: Any) -> Refused:
    """Without the value, which may be anything, a credential too."""
    return Refused(f"this {type(a).__name__} would come back changed")
