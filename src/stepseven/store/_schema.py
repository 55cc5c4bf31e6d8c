"""The JSON schema of an annotation, with what a person's answer is checked by and the standard has no word for.

The keywords that are ours are explained where they are read, in ``transitions/forms.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_DIGITS = {"max_digits": "maxDigits", "decimal_places": "decimalPlaces"}
_BYTES = {"min_length": "minBytes", "max_length": "maxBytes"}
_FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}


class Exact(GenerateJsonSchema):
    """Pydantic's own, and those keywords. Each method is called by the kind of its core schema."""

    def decimal_schema(self, schema: Any) -> Any:
        made = super().decimal_schema(schema)
        forms = made.get("anyOf", [made])
        number: dict[str, Any] = next((f for f in forms if f.get("type") == "number"), {})
        rules = {name: number[name] for name in _BOUNDS if name in number}
        rules |= {name: schema[key] for key, name in _DIGITS.items() if schema.get(key) is not None}
        for form in forms:
            form.pop("pattern", None)  # of the number's sign and digits: the format says the same, readably
            form.update(rules, format="decimal")
        return made

    def bytes_schema(self, schema: Any) -> Any:
        form = {"base64": "base64url", "hex": "hex"}.get(self._config.config_dict.get("val_json_bytes", ""), "binary")
        # The standard's lengths are those of the text.
        lengths = {name: schema[key] for key, name in _BYTES.items() if schema.get(key) is not None}
        return {"type": "string", "format": form, **lengths}

    def str_schema(self, schema: Any) -> Any:
        made, config = super().str_schema(schema), self._config.config_dict
        if schema.get("strip_whitespace", config.get("str_strip_whitespace")):
            made["strip"] = True
        return {**made, **_pattern(schema.get("pattern"), schema.get("regex_engine", config.get("regex_engine")))}

    def model_fields_schema(self, schema: Any) -> Any:
        return _under_aliases(super().model_fields_schema(schema), schema["fields"].items())

    def typed_dict_schema(self, schema: Any) -> Any:
        return _under_aliases(super().typed_dict_schema(schema), schema["fields"].items())

    def dataclass_args_schema(self, schema: Any) -> Any:
        return _under_aliases(super().dataclass_args_schema(schema), [(field["name"], field) for field in schema["fields"]])

    def date_schema(self, schema: Any) -> Any:
        return self._dated(super().date_schema(schema), schema)

    def datetime_schema(self, schema: Any) -> Any:
        made = self._dated(super().datetime_schema(schema), schema)
        return {**made, "timezone": schema["tz_constraint"]} if schema.get("tz_constraint") in ("aware", "naive") else made

    def _dated(self, made: Any, schema: Any) -> Any:
        return made if schema.get("strict", self._config.config_dict.get("strict")) else {**made, "lax": True}


def _under_aliases(made: Any, fields: Iterable[tuple[str, Any]]) -> Any:
    """A field that need not be there may also be given by its alias: then it is checked as well."""
    known = made.get("properties", {})
    for name, field in fields:
        alias = field.get("validation_alias")
        if isinstance(alias, str) and name in known and name not in made.get("required", ()):
            known.setdefault(alias, known[name])
    return made


def _pattern(pattern: Any, engine: Any) -> dict[str, str]:
    """A pattern of Python's dialect, with its flags; nothing, if it is of the dialect pydantic takes by itself."""
    if isinstance(pattern, re.Pattern):
        flags = "".join(letter for letter, flag in _FLAGS.items() if pattern.flags & flag)
        pattern, engine = f"(?{flags}){pattern.pattern}" if flags else pattern.pattern, "python-re"
    return {"pattern": pattern, "patternBy": engine} if pattern is not None and engine == "python-re" else {}
