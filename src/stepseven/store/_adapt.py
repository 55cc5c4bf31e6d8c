"""From a return annotation to pydantic's reader and writer for it."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from inspect import Parameter
from types import NoneType, UnionType
from typing import Annotated, Any, ForwardRef, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

from stepseven.errors import NotRecordable

# The type checkers take NewType for a statement; here it only keeps pydantic from refusing ``config`` for a class.
_renamed: Callable[[str, Any], Any] = typing.NewType


class Adapter(NamedTuple):
    """``dump(value)`` gives JSON bytes, ``load(json)`` the value, ``check(value)`` refuses a value of another shape.

    ``whole``: whatever is loaded has every field from its text; none can be there that the text does not name.
    """

    dump: Callable[[Any], bytes]
    load: Callable[[str | bytes], Any]
    load_given: Callable[[str | bytes], Any]
    check: Callable[[Any], Any]
    schema: Callable[[], dict[str, Any]]
    whole: bool = False


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
        schema=lambda: _schema(adapter),
        whole=_whole(adapter.core_schema),
    )


#: What of pydantic's inner form of a type leaves no field without its text, and which of its entries are known to say nothing
#: to the contrary. All else (a default, an alias, a validator, whatever a later version has) counts as if it might.
_ANY = ("type", "ref", "metadata", "strict")
_HARMLESS = {
    **dict.fromkeys(("int", "str", "float", "bool", "none", "bytes", "date", "decimal", "uuid"), ()),
    **dict.fromkeys(("time", "datetime", "timedelta"), ("microseconds_precision",)),
    "enum": ("cls", "members", "sub_type", "missing"), "literal": ("expected",), "nullable": ("schema",),
    "list": ("items_schema",), "set": ("items_schema",), "frozenset": ("items_schema",), "dict": ("keys_schema", "values_schema"),
    "tuple": ("items_schema", "variadic_item_index"), "union": ("choices",), "definitions": ("schema", "definitions"),
    "definition-ref": ("schema_ref",), "dataclass": ("cls", "config", "fields", "frozen", "post_init", "schema", "slots"),
    "dataclass-args": ("computed_fields", "collect_init_only", "dataclass_name", "fields"),
    "dataclass-field": ("name", "schema", "init", "kw_only"),
    "model": ("cls", "config", "custom_init", "root_model", "schema"),
    "model-fields": ("computed_fields", "fields", "model_name"), "model-field": ("schema",),
    "typed-dict": ("cls", "cls_name", "computed_fields", "config", "extra_behavior", "fields"),
    "typed-dict-field": ("schema", "required"),
}  # fmt: skip
_EXPECTED = {
    "computed_fields": [], "post_init": False, "custom_init": False, "root_model": False, "init": True, "required": True,
    "collect_init_only": False, "extra_behavior": "ignore",
}  # fmt: skip
_SETTINGS = {"title", "strict", "ser_json_bytes", "val_json_bytes", "frozen"}


def _whole(schema: Any) -> bool:
    """Whether a type, in pydantic's inner form, can only be read from a text that names all its fields, under their names."""
    kind = schema.get("type")
    known = _HARMLESS.get(kind)
    if known is None or not schema.keys() <= {*_ANY, *known}:
        return False
    if any(name in schema and schema[name] != value for name, value in _EXPECTED.items()):
        return False
    if not schema.get("config", {}).keys() <= _SETTINGS:
        return False
    return all(map(_whole, _inside(kind, schema)))


def _inside(kind: str, schema: Any) -> Iterator[Any]:
    """The types that a type is made of."""
    for name in ("schema", "items_schema", "keys_schema", "values_schema", "choices", "definitions"):
        part = schema.get(name)
        if isinstance(part, list):
            yield from (choice[0] if isinstance(choice, tuple) else choice for choice in part)
        elif part is not None:
            yield part
    if kind in {"dataclass-args", "model-fields", "typed-dict"}:
        fields = schema["fields"]
        yield from fields.values() if isinstance(fields, dict) else fields


def _schema(adapter: Any) -> Any:
    from stepseven.store._schema import Exact  # only questions need it, and it takes its time

    return adapter.json_schema(by_alias=False, schema_generator=Exact)


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
