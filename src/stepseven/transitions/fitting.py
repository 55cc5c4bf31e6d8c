"""Whether an answer is of the type that was asked for: checked when it is given, in words for the person who gives it.

The type is a JSON schema, as pydantic writes it from the annotation; the checking is the library ``jsonschema``'s, but for the
forms of texts and decimal numbers, which are read as the run will read them (``forms.py``). Here are the sentences, and an
example of what would fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from stepseven.store.codec import free_text
from stepseven.transitions import forms

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_SHOWN = 60  # characters of a value in a sentence
_MOST = 8  # choices listed in a sentence
_DEPTH = 6  # of an example
_WHAT = ("type", "enum", "const")  # rules that say what a value is, not how
_TYPES = {
    "string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false", "null": "null",
    "array": "a list", "object": "an object",
}  # fmt: skip


def mismatch(schema: Mapping[str, Any], value: Any) -> str | None:
    """Why *value* is not what a JSON schema asks for, as one clause with the way to the part that is wrong; ``None`` if it fits.

    What no schema says (a validator in the author's code), the run itself checks when it reads the answer; it asks again then.
    """
    from jsonschema.exceptions import best_match, relevance
    from referencing.exceptions import Unresolvable

    try:
        worst = max(_validator()(schema).iter_errors(value), key=relevance, default=None)
    except Unresolvable:  # a schema of another program's: nothing is fetched to read it
        return None
    if worst is not None and _closest(worst) is worst:  # no form was meant more than others
        worst = best_match([worst])
    return None if worst is None else free_text(_sentence(worst).replace("\n", "\\n").replace("\r", "\\r"), 300)


@cache
def _validator() -> Any:
    """The library's validator with differences: 1.0 is no whole number, no reference is fetched, and ours are the forms."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend
    from referencing import Registry

    def whole(_: Any, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", whole)
    rules = {name: _rule(name, fits) for name, fits in _TEXT_RULES.items()}
    for name in forms.DECIMAL_RULES:
        rules[name] = _decimal_rule(name, Draft202012Validator.VALIDATORS.get(name))
    rules["multipleOf"] = _decimal_rule("multipleOf", _multiple)
    rules["properties"] = _closed(Draft202012Validator.VALIDATORS["properties"])
    made: Any = extend(Draft202012Validator, validators=rules, type_checker=types)  # type: ignore[no-untyped-call]  # its stub is incomplete
    registry: Any = Registry()
    return lambda schema: made(schema, registry=registry)


_TEXT_RULES: dict[str, Callable[[Any, str, Mapping[str, Any]], bool]] = {
    "format": forms.is_of_form, "timezone": forms.has_zone, "pattern": forms.matches,
    "minLength": lambda n, text, schema: len(forms.counted(text, schema)) >= n,
    "maxLength": lambda n, text, schema: len(forms.counted(text, schema)) <= n,
    "minBytes": lambda n, text, schema: forms.bytes_in(text, schema) >= n,
    "maxBytes": lambda n, text, schema: forms.bytes_in(text, schema) <= n,
}  # fmt: skip


def _rule(name: str, fits: Callable[[Any, str, Mapping[str, Any]], bool]) -> Any:
    """A rule for texts; other values are not its business."""
    from jsonschema.exceptions import ValidationError

    def check(_: Any, want: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
        if isinstance(value, str) and not fits(want, value, schema):
            yield ValidationError(name)

    return check


def _closed(standard: Any) -> Any:
    """Fields that the type does not have are refused: it would drop them, and with them what a person meant."""
    from jsonschema.exceptions import ValidationError

    def rule(validator: Any, fields: Any, value: Any, schema: Any) -> Any:
        yield from standard(validator, fields, value, schema)
        open_ended = "additionalProperties" in schema or "patternProperties" in schema
        if isinstance(value, Mapping) and not open_ended and set(value) - set(fields):
            yield ValidationError("a field too many", validator="additionalProperties", validator_value=False)

    return rule


def _multiple(_: Any, bound: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Whether a number is a multiple, as pydantic sees it: of floats within a billionth."""
    from jsonschema.exceptions import ValidationError

    del schema
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    rest = value % bound
    close = abs(value) / 1e9 if isinstance(value, float) or isinstance(bound, float) else 0
    if rest > close and abs(rest - bound) > close:
        yield ValidationError("multipleOf")


def _decimal_rule(name: str, standard: Any) -> Any:
    """A rule for decimal numbers, also those given as a text; for other numbers it is the standard's."""
    from jsonschema.exceptions import ValidationError

    def check(validator: Any, bound: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
        if schema.get("format") != "decimal":
            yield from (standard(validator, bound, value, schema) if standard is not None else None) or ()
        elif isinstance(value, str | int | float) and not isinstance(value, bool) and not forms.obeys(name, bound, value, schema):
            yield ValidationError(name)

    return check


# -- in words -------------------------------------------------------------------------------------------------------------


def _sentence(error: ValidationError) -> str:
    error = _closest(error)
    where = path_of(error.absolute_path)
    return f"{where}: {_why(error)}" if where else _why(error)


def _closest(error: Any) -> Any:
    """Of several forms the one that was meant: the only one whose type it has."""
    branches: dict[Any, list[Any]] = {}
    for each in error.context or ():
        branches.setdefault(each.relative_schema_path[0], []).append(each)
    meant = [some for some in branches.values() if not any(e.validator in _WHAT and not e.relative_path for e in some)]
    named = [some for some in meant if not any(e.validator in ("const", "enum") and len(e.relative_path) == 1 for e in some)]
    meant = named or meant  # a wrong word in a field that names the form rules the form out
    several = error.validator in ("anyOf", "oneOf")
    return _closest(meant[0][0]) if several and len(meant) == 1 else error


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
        told = _are([n for n in value if n not in known], "not expected here")
        return f"{told}; there is {_listed(list(known), 'and')}" if known else told
    if rule in ("anyOf", "oneOf"):
        return _of_several(error, shown)
    if rule == "format":
        return f"{shown} is no {forms.FORMS[want].called}, such as {forms.example(error.schema)}"
    if rule == "timezone":
        how = "say its time zone" if want == "aware" else "be without a time zone"
        return f"{shown} must {how}, such as {forms.example(error.schema)}"
    if rule == "maxDigits" and "decimalPlaces" in error.schema:
        return f"{shown} must have at most {want} digits, {error.schema['decimalPlaces']} of them after the point"
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
    "minBytes": _n("at least {} byte"),
    "maxBytes": _n("at most {} byte"),
    "maxDigits": _n("at most {} digit"),
    "decimalPlaces": lambda shown, want: f"{shown} must have at most {want} digit{'' if want == 1 else 's'} after the point",
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
        return forms.example(schema)
    return {"boolean": True, "null": None}.get(str(kind), "…")


def _number(schema: Mapping[str, Any]) -> float:
    step: float = schema.get("multipleOf", 1)
    if "minimum" in schema or "exclusiveMinimum" in schema:
        start: float = schema["minimum"] if "minimum" in schema else schema["exclusiveMinimum"] + step
        return start
    if "maximum" in schema or "exclusiveMaximum" in schema:
        return float(min(step, schema["maximum"] if "maximum" in schema else schema["exclusiveMaximum"] - step))
    return step


# -- what somebody typed ------------------------------------------------------------------------------------------------------


def json_or_text(text: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """JSON if it parses, else the text itself. ``NaN`` and ``Infinity`` are text: JSON has none.

    Args:
        text: as it was typed, or came.
        pairs: makes an object of its members; what it raises gets out, unless that is a ``ValueError``.
    """

    def no_number(word: str) -> Any:
        raise ValueError(word)

    try:
        return json.loads(text, parse_constant=no_number, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return text


def typed(schema: str | None, text: str) -> Any:
    """A typed-in value as a question's schema wants it: JSON if it parses, unless only the text itself is of the asked type."""
    wanted = json.loads(schema) if schema is not None else {}
    parsed = json_or_text(text)
    return text if mismatch(wanted, parsed) is not None and mismatch(wanted, text) is None else parsed
