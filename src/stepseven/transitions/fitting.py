"""Whether an answer is of the type that was asked for: checked when it is given, in words for the person who gives it.

The type is a JSON schema, as pydantic writes it from the annotation; the checking is the library ``jsonschema``'s. Here are the
sentences, the formats the standard library can check, and an example of what would fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from stepseven.store.codec import free_text

if TYPE_CHECKING:
    from jsonschema import FormatChecker
    from jsonschema.exceptions import ValidationError

_SHOWN = 60  # characters of a value in a sentence
_MOST = 8  # choices listed in a sentence
_DEPTH = 6  # of an example
_TYPES = {
    "string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false", "null": "null",
    "array": "a list", "object": "an object",
}  # fmt: skip
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_DURATION = re.compile(r"[-+]?P(?=.)(\d+Y)?(\d+M)?(\d+W)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?")


def _is_decimal(text: str) -> bool:
    try:
        return Decimal(text).is_finite()
    except ArithmeticError:
        return False


def _decimal(text: str) -> str:
    if not _is_decimal(text):
        raise ValueError(text)
    return text


#: format: (what reads it, or raises ValueError; an example)
_FORMATS: dict[str, tuple[Callable[[str], object], str]] = {
    "date": (date.fromisoformat, "2026-03-14"),
    "date-time": (datetime.fromisoformat, "2026-03-14T09:00:00Z"),
    "time": (time.fromisoformat, "09:00:00"),
    "uuid": (UUID, "123e4567-e89b-12d3-a456-426614174000"),
    "email": (lambda text: _whole(_EMAIL, text), "ann@example.org"),
    "decimal": (_decimal, "12.50"),
    "duration": (lambda text: _whole(_DURATION, text), "PT30M"),
}

_FORMAT_NAMES = {"date-time": "date with time", "email": "mail address", "decimal": "number", "uuid": "UUID"}


def mismatch(schema: Mapping[str, Any], value: Any) -> str | None:
    """Why *value* is not what a JSON schema asks for, as one clause with the way to the part that is wrong; ``None`` if it fits.

    What no schema says (a validator in the author's code), the run itself checks when it reads the answer; it asks again then.
    """
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        worst = best_match(_validator()(schema, format_checker=_formats()).iter_errors(value))
    except Unresolvable:  # a schema of another program's: nothing is fetched to read it
        return None
    return None if worst is None else free_text(_sentence(worst), 300)


@cache
def _validator() -> Any:
    """The library's validator with two differences: 1.0 is no whole number, and no reference is fetched from anywhere."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend
    from referencing import Registry

    def whole(_: Any, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", whole)
    bounds = {name: _bound(name, Draft202012Validator.VALIDATORS[name]) for name in _BOUNDS}
    made: Any = extend(  # type: ignore[no-untyped-call]  # its stub is incomplete
        Draft202012Validator, validators={"pattern": _pattern, **bounds}, type_checker=types
    )
    registry: Any = Registry()
    return lambda schema, format_checker: made(schema, format_checker=format_checker, registry=registry)


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:
    """``pattern``, but for those Python's ``re`` does not know: pydantic's are of another dialect, and are checked by the run."""
    from jsonschema.exceptions import ValidationError

    try:
        fits = not isinstance(value, str) or re.search(pattern, value) is not None
    except re.error:
        return
    if not fits:
        yield ValidationError("pattern")


_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: value >= bound, "exclusiveMinimum": lambda value, bound: value > bound,
    "maximum": lambda value, bound: value <= bound, "exclusiveMaximum": lambda value, bound: value < bound,
}  # fmt: skip


def _bound(name: str, standard: Any) -> Any:
    """A bound that also holds for a decimal number given as a text, which the standard's does not see."""
    from jsonschema.exceptions import ValidationError

    def check(validator: Any, bound: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
        if not isinstance(value, str) or schema.get("format") != "decimal":
            yield from standard(validator, bound, value, schema) or ()
        elif _is_decimal(value) and not _BOUNDS[name](Decimal(value), Decimal(str(bound))):
            yield ValidationError(name)

    return check


@cache
def _formats() -> FormatChecker:
    from jsonschema import FormatChecker

    checker = FormatChecker(formats=())
    for name, (read, _) in _FORMATS.items():
        checker.checks(name, raises=ValueError)(_reads(read))
    return checker


def _reads(read: Callable[[str], object]) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        if isinstance(value, str):
            read(value)
        return True

    return check


def _whole(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError(text)
    return text


# -- in words -------------------------------------------------------------------------------------------------------------


def _sentence(error: ValidationError) -> str:
    where = path_of(error.absolute_path)
    return f"{where}: {_why(error)}" if where else _why(error)


def path_of(parts: Sequence[str | int] | Any) -> str:
    """The way to a part of a value: ``lines[0].amount``."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _why(error: Any) -> str:  # the library's own types leave open whether an error has a value
    """What is wrong at the place, and what is expected there."""
    value, want, shown = error.instance, error.validator_value, _short(error.instance)
    rule = str(error.validator)
    if rule == "required":
        return _are([n for n in want if n not in value], "missing")
    if rule == "additionalProperties":
        known = error.schema.get("properties", {}) if isinstance(error.schema, Mapping) else {}
        return _are([n for n in value if n not in known], "not expected here")
    if rule in ("anyOf", "oneOf"):
        return _of_several(error, shown)
    if rule == "format":
        return f"{shown} is no {_FORMAT_NAMES.get(want, want)}, such as {_FORMATS[want][1]}"
    said = _RULES.get(rule)
    return said(shown, want) if said is not None else f"{shown} does not fit: {error.message}"


def _are(names: list[str], what: str) -> str:
    return f"{_listed(names, 'and')} {'is' if len(names) == 1 else 'are'} {what}"


def _n(of: str) -> Callable[[str, Any], str]:
    """A sentence about a number of things."""
    return lambda shown, want: f"{shown} must have {of.format(want)}{'' if want == 1 else 's'}"


_RULES: dict[str, Callable[[str, Any], str]] = {
    "type": lambda shown, want: f"{shown} is not {_type(want)}",
    "enum": lambda shown, want: f"{shown} is not one of {_listed([_short(v) for v in want], 'or')}",
    "const": lambda shown, want: f"{shown} is not {_short(want)}",
    "minimum": lambda shown, want: f"{shown} must be {_number_of(want)} or more",
    "maximum": lambda shown, want: f"{shown} must be {_number_of(want)} or less",
    "exclusiveMinimum": lambda shown, want: f"{shown} must be more than {_number_of(want)}",
    "exclusiveMaximum": lambda shown, want: f"{shown} must be less than {_number_of(want)}",
    "multipleOf": lambda shown, want: f"{shown} must be a multiple of {_number_of(want)}",
    "minLength": _n("at least {} character"),
    "maxLength": _n("at most {} character"),
    "minItems": _n("at least {} item"),
    "maxItems": _n("at most {} item"),
    "minProperties": _n("at least {} field"),
    "maxProperties": _n("at most {} field"),
    "uniqueItems": lambda shown, _: f"{shown} has an item twice",
    "pattern": lambda shown, want: f"{shown} does not have the form {want}",
}


def _number_of(bound: Any) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _type(want: Any) -> str:
    return _listed([_TYPES.get(w, str(w)) for w in ([want] if isinstance(want, str) else want)], "or")


def _of_several(error: Any, shown: str) -> str:
    """None of several forms fits: what each expects, where that is one word."""
    here = [e for e in error.context or () if not e.relative_path]
    types = [_type(e.validator_value) for e in here if e.validator == "type"]
    if types and len(here) == len(error.context or ()):
        values = [_short(v) for e in here if e.validator in ("enum", "const") for v in _values(e)]
        return f"{shown} is neither {' nor '.join(dict.fromkeys([*types, *values]))}"
    return f"{shown} has none of the forms that are expected here"


def _values(error: Any) -> list[Any]:
    return list(error.validator_value) if error.validator == "enum" else [error.validator_value]


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"


def _listed(items: Sequence[str], word: str) -> str:
    shown = list(map(str, items[:_MOST])) + (["…"] if len(items) > _MOST else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} {word} {shown[-1]}"


# -- an example -----------------------------------------------------------------------------------------------------------


def example(schema: Mapping[str, Any]) -> Any:
    """A value of the form a JSON schema asks for: short, with what is required only. It fits but for patterns and the like."""
    return _example(schema, schema.get("$defs", {}), 0)


def _example(schema: Any, defs: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return "…"
    if "$ref" in schema:
        return _example(defs.get(str(schema["$ref"]).rpartition("/")[2]), defs, depth + 1)
    for name in ("const", "default"):
        if name in schema and schema[name] is not None:
            return schema[name]
    if schema.get("enum") or schema.get("examples"):
        return (schema.get("examples") or schema["enum"])[0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return _example(next((s for s in schema[name] if s.get("type") != "null"), schema[name][0]), defs, depth + 1)
    return _of_type(schema, defs, depth)


def _of_type(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type")
    if kind == "object":
        fields = schema.get("properties", {})
        return {name: _example(fields.get(name, {}), defs, depth + 1) for name in schema.get("required", ())}
    if kind == "array":
        each = schema.get("prefixItems") or [schema.get("items", {})] * max(1, int(schema.get("minItems", 1)))
        return [_example(item, defs, depth + 1) for item in each]
    if kind in ("integer", "number"):
        return _number(schema)
    if kind == "string":
        return _FORMATS[schema["format"]][1] if schema.get("format") in _FORMATS else "…"
    return {"boolean": True, "null": None}.get(str(kind), "…")


def _number(schema: Mapping[str, Any]) -> float:
    step: float = schema.get("multipleOf", 1)
    if "minimum" in schema or "exclusiveMinimum" in schema:
        start: float = schema["minimum"] if "minimum" in schema else schema["exclusiveMinimum"] + step
        return start
    if "maximum" in schema or "exclusiveMaximum" in schema:
        return float(min(step, schema["maximum"] if "maximum" in schema else schema["exclusiveMaximum"] - step))
    return step
