"""From a return annotation to pydantic's reader and writer for it."""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Callable
from inspect import Parameter
from types import NoneType, UnionType
from typing import Annotated, Any, ForwardRef, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

from stepseven.errors import NotRecordable

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_DIGITS = {"max_digits": "maxDigits", "decimal_places": "decimalPlaces"}
_BYTES = {"min_length": "minBytes", "max_length": "maxBytes"}
_FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}

# The type checkers take NewType for a statement; here it only keeps pydantic from refusing ``config`` for a class.
_renamed: Callable[[str, Any], Any] = typing.NewType


class Adapter(NamedTuple):
    """``dump(value)`` gives JSON bytes, ``load(json)`` the value, ``check(value)`` refuses a value of another shape."""

    dump: Callable[[Any], bytes]
    load: Callable[[str | bytes], Any]
    load_given: Callable[[str | bytes], Any]
    check: Callable[[Any], Any]
    schema: Callable[[], dict[str, Any]]


def is_open(annotation: Any) -> bool:
    """Whether any plain value fits somewhere in it: ``Any``, ``dict``, ``list[Any]``, ``dict[str, Any] | None``."""
    if annotation in (Any, object, dict, list, Parameter.empty) or isinstance(annotation, (str, ForwardRef)):
        return True
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is list:
        return is_open(args[0])
    if origin is dict:
        return args[0] is str and is_open(args[1])
    if origin in (Union, UnionType):
        return any(map(is_open, args)) and all(arg is NoneType or is_open(arg) for arg in args)
    return False


def adapter_for(annotation: Any, where: str) -> Adapter | None:
    """Reader and writer for *annotation*; ``None`` when it says nothing (``Any``, none at all, an unknown name).

    Raises:
        NotRecordable: pydantic cannot write and read the type.
    """
    if annotation in (Any, object, Parameter.empty) or isinstance(annotation, (str, ForwardRef)):
        return None
    from pydantic import PydanticUndefinedAnnotation, PydanticUserError

    try:
        try:
            return _build(annotation)
        except PydanticUserError as exc:
            if exc.code != "typed-dict-version":
                raise
            return _build(_modern(annotation))
    except (PydanticUndefinedAnnotation, NameError):
        return None
    except (PydanticUserError, TypeError) as exc:
        if getattr(exc, "code", None) == "class-not-fully-defined":
            return None
        why = str(exc).split("\n", 1)[0]
        raise NotRecordable(where, f"its type {annotation!r} is not one that can be stored ({why})") from exc


def _build(annotation: Any) -> Adapter:
    from pydantic import ConfigDict, TypeAdapter

    # Inherited by dataclasses and typed dicts; pydantic models keep their own settings.
    config = ConfigDict(strict=True, ser_json_bytes="base64", val_json_bytes="base64")
    adapter: TypeAdapter[Any] = TypeAdapter(None if annotation is None else _renamed("Result", annotation), config=config)
    if not adapter.pydantic_complete:
        adapter.rebuild(raise_errors=True)
    write, read = adapter.serializer.to_json, adapter.validator.validate_json

    def dump(value: Any) -> bytes:
        # Field names, not aliases: what one alias writes another may not read. Computed fields are not state.
        return write(value, by_alias=False, round_trip=True, warnings="none")

    return Adapter(
        dump=dump,
        load=lambda text: read(text, by_alias=False, by_name=True),
        load_given=lambda text: read(text, by_alias=True, by_name=True),
        check=adapter.validator.validate_python,
        schema=lambda: adapter.json_schema(by_alias=False, schema_generator=_schema_generator()),
    )


@functools.cache
def _schema_generator() -> Any:
    """Pydantic's own, with what a person's answer is checked by and the standard has no word for (``transitions/forms.py``)."""
    from pydantic.json_schema import GenerateJsonSchema

    class Exact(GenerateJsonSchema):
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

        def date_schema(self, schema: Any) -> Any:
            return self._dated(super().date_schema(schema), schema)

        def datetime_schema(self, schema: Any) -> Any:
            made = self._dated(super().datetime_schema(schema), schema)
            return {**made, "timezone": schema["tz_constraint"]} if schema.get("tz_constraint") in ("aware", "naive") else made

        def _dated(self, made: Any, schema: Any) -> Any:
            return made if schema.get("strict", self._config.config_dict.get("strict")) else {**made, "lax": True}

    return Exact


def _pattern(pattern: Any, engine: Any) -> dict[str, str]:
    """A pattern of Python's dialect, with its flags; nothing, if it is of the dialect pydantic takes by itself."""
    if isinstance(pattern, re.Pattern):
        flags = "".join(letter for letter, flag in _FLAGS.items() if pattern.flags & flag)
        pattern, engine = f"(?{flags}){pattern.pattern}" if flags else pattern.pattern, "python-re"
    return {"pattern": pattern, "patternBy": engine} if pattern is not None and engine == "python-re" else {}


def _modern(annotation: Any) -> Any:
    """The same type with each ``typing.TypedDict`` as pydantic wants it before Python 3.12."""
    if is_typeddict(annotation):
        from typing import NotRequired

        from typing_extensions import TypedDict

        hints = get_type_hints(annotation)
        optional = annotation.__optional_keys__
        fields = {k: NotRequired[_modern(v)] if k in optional else _modern(v) for k, v in hints.items()}
        return TypedDict(annotation.__name__, fields)  # type: ignore[operator]
    origin, args = get_origin(annotation), get_args(annotation)
    if not args or origin is Literal:
        return annotation
    modern = tuple(_modern(arg) for arg in args)
    if origin in (Union, UnionType):
        return Union[modern]  # noqa: UP007 - made at run time
    if origin is Annotated:
        return Annotated[modern]
    return origin[modern]
