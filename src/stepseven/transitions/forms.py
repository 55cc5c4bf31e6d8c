"""Whether a text or a number has the form a JSON schema names: read by the very readers the run uses (pydantic's).

Besides the standard's keywords there are those our schemas carry (``store/_schema.py``): ``maxDigits`` and ``decimalPlaces`` of a
decimal number, ``minBytes`` and ``maxBytes``, ``timezone`` ("aware" or "naive"), ``strip`` (spaces around a text do not count),
``patternBy`` ("python-re") and ``lax`` (dates are read as pydantic does outside strict mode).
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple

from pydantic_core import SchemaError, SchemaValidator, to_json

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_DATES = ("date", "date-time")
_PLAIN: dict[str, Callable[[str], object]] = {
    "email": lambda text: _whole(_EMAIL, text), "ipv4": IPv4Address, "ipv6": IPv6Address,
    "base64": lambda text: b64decode(text, validate=True),
}  # fmt: skip
_OPTIONS = {
    "minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt", "multipleOf": "multiple_of",
    "maxDigits": "max_digits", "decimalPlaces": "decimal_places",
}  # fmt: skip
DECIMAL_RULES = tuple(_OPTIONS)  #: keywords that hold for a decimal number, written as a number or as a text
_COUNTS = ("maxDigits", "decimalPlaces")


class Form(NamedTuple):
    """A format: what a person calls it, an example, and pydantic's name for what reads it."""

    called: str
    example: str
    read_as: str = ""
    bytes_as: str = ""


_UUID = "123e4567-e89b-12d3-a456-426614174000"
FORMS: dict[str, Form] = {
    "date": Form("date", "2026-03-14", "date"),
    "date-time": Form("date with time", "2026-03-14T09:00:00Z", "datetime"),
    "time": Form("time", "09:00:00", "time"),
    "duration": Form("duration", "PT30M", "timedelta"),
    "uuid": Form("UUID", _UUID, "uuid"),
    **{f"uuid{n}": Form(f"UUID of version {n}", f"{_UUID[:14]}{n}{_UUID[15:]}", "uuid") for n in (1, 3, 4, 5, 6, 7, 8)},
    "decimal": Form("number", "12.50", "decimal"),
    "base64": Form("base64 text", "YWJj"),  # of the tag ``$bytes``
    "base64url": Form("base64 text", "YWJj", "bytes", "base64"),  # pydantic's word for bytes; it reads both alphabets
    "hex": Form("hexadecimal text", "616263", "bytes", "hex"),
    "uri": Form("address", "https://example.org/", "url"),
    "email": Form("mail address", "ann@example.org"),
    "ipv4": Form("IPv4 address", "192.0.2.1"),
    "ipv6": Form("IPv6 address", "2001:db8::1"),
}


def example(schema: Mapping[str, Any]) -> str:
    """A text of the form the schema names; ``…`` if it names none."""
    form = FORMS.get(str(schema.get("format")))
    shown = "…" if form is None else form.example
    return shown.removesuffix("Z") if schema.get("timezone") == "naive" else shown


def is_of_form(name: str, text: str, schema: Mapping[str, Any]) -> bool:
    """Whether *text* is of the format *name*; any text is of a format we do not know.

    A bare number is no date, though pydantic would count seconds since 1970 with it: nobody who types 12 means that.
    """
    form = FORMS.get(name)
    if form is None:
        return True
    if not form.read_as:
        return _reads_plainly(name, text)
    if name in _DATES and _is_number(text):
        return False
    version = {"version": int(name[4:])} if name.startswith("uuid") and name != "uuid" else {}
    return _takes(_reader(form.read_as, form.bytes_as, **version), text, strict=not schema.get("lax"))


def has_zone(want: str, text: str, schema: Mapping[str, Any]) -> bool:
    """Whether a date with time says its zone (``aware``) or leaves it out (``naive``). What is no such date does not matter."""
    if not is_of_form("date-time", text, schema):
        return True
    return _takes(_reader("datetime", tz_constraint=want), text, strict=not schema.get("lax"))


def obeys(rule: str, bound: Any, value: str | float, schema: Mapping[str, Any]) -> bool:
    """Whether a decimal number keeps one of ``DECIMAL_RULES``. What is no number does not matter."""
    if not _takes(_reader("decimal"), value):
        return True
    options = {_OPTIONS[rule]: bound if rule in _COUNTS else Decimal(str(bound))}
    if rule == "maxDigits" and "decimalPlaces" in schema:  # together they say how many stand before the point
        if not obeys("decimalPlaces", schema["decimalPlaces"], value, schema):
            return True  # one sentence is enough
        options["decimal_places"] = schema["decimalPlaces"]
    return _takes(_reader("decimal", **options), value)


def bytes_in(text: str, schema: Mapping[str, Any]) -> int:
    """How many bytes a text stands for; 0 if it is not of its form."""
    form = FORMS.get(str(schema.get("format")))
    try:
        if schema.get("format") == "base64":
            return len(b64decode(text, validate=True))
        return len(_reader("bytes", form.bytes_as if form else "").validate_json(to_json(text)))
    except ValueError:
        return 0


def counted(text: str, schema: Mapping[str, Any]) -> str:
    """The part of a text that counts for its length and its pattern."""
    if not schema.get("strip"):
        return text
    stripped: str = _reader("str", strip_whitespace=True).validate_python(text)
    return stripped


def matches(pattern: str, text: str, schema: Mapping[str, Any]) -> bool:
    """Whether a pattern is found in a text; nothing is against a pattern that nobody here can read."""
    engine = {"regex_engine": "python-re"} if schema.get("patternBy") == "python-re" else {}
    try:
        return _takes(_reader("str", pattern=pattern, **engine), text)
    except SchemaError:
        pass  # of another dialect than pydantic's: perhaps of Python's
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return True


def _reads_plainly(name: str, text: str) -> bool:
    try:
        _PLAIN[name](text)
    except ValueError:
        return False
    return True


def _whole(pattern: re.Pattern[str], text: str) -> None:
    if pattern.fullmatch(text) is None:
        raise ValueError(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=256)
def _reader(kind: str, bytes_as: str = "", **options: Any) -> SchemaValidator:
    made: Any = {"type": kind, **options}
    config: Any = {"val_json_bytes": bytes_as} if bytes_as else None
    return SchemaValidator(made, config)


def _takes(reader: SchemaValidator, value: Any, *, strict: bool = True) -> bool:
    try:
        reader.validate_json(to_json(value), strict=strict)
    except (ValueError, ArithmeticError):  # the second from numbers that are too long to divide
        return False
    return True
