"""From a return annotation to pydantic's reader and writer for it."""

from __future__ import annotations

import typing
from collections.abc import Callable
from inspect import Parameter
from types import NoneType, UnionType
from typing import Annotated, Any, ForwardRef, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

from stepseven.errors import NotRecordable

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
        schema=lambda: _schema(adapter),
    )


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
