"""Arguments as they are stored and shown, and back to the values a step's code gets.

Bytes, sets and secrets have a form of their own as arguments: ``{"$bytes": …}``, ``{"$set": […]}``, ``{"$secret": name}``. Who
edits one field of what they were shown leaves the others in that form; what they give anew may also have that of a result.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from stepseven.errors import NotRecordable
from stepseven.model import Secret
from stepseven.runtime.binding import parameter_types
from stepseven.store.codec import Typed, canonical, from_canonical

if TYPE_CHECKING:
    from stepseven.runtime.declared import Step

_IN_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_IN_DICTS = ("properties", "patternProperties", "$defs")
_BYTES = ("base64", "base64url", "hex", "binary")


def argument_schema(annotation: Any) -> dict[str, Any] | None:
    """The JSON schema of an argument of this type: of the form it is shown in, and of the form of a result.

    Returns:
        The schema; ``None`` when the annotation says nothing, or has none: ``decode_argument`` decides alone then.
    """
    try:
        schema = Typed(annotation, where="argument").json_schema()
    except NotRecordable:  # a type that no JSON can be made into
        return None
    return None if schema is None else _also_tagged(schema)


def _also_tagged(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for name in _IN_LISTS:
        if isinstance(made.get(name), list):
            made[name] = [_also_tagged(each) for each in made[name]]
    for name in _IN_DICTS:
        if isinstance(made.get(name), dict):
            made[name] = {key: _also_tagged(each) for key, each in made[name].items()}
    for name in ("items", "additionalProperties"):
        if name in made:
            made[name] = _also_tagged(made[name])
    defs = {"$defs": made.pop("$defs")} if "$defs" in made else {}
    tag = _tag(made)
    return {**(made if tag is None else {"anyOf": [made, tag]}), **defs}


def _tag(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of the tagged form, where there is one."""
    if schema.get("type") == "string" and schema.get("format") in _BYTES:
        lengths: dict[str, Any] = {name: schema[name] for name in ("minBytes", "maxBytes") if name in schema}
        return _only("$bytes", {"type": "string", "format": "base64", **lengths})
    if schema.get("type") == "array" and schema.get("uniqueItems"):
        return _only("$set", schema)
    if schema.get("type") == "object" and schema.get("title") == Secret.__name__ and list(schema["properties"]) == ["name"]:
        return _only("$secret", {"type": "string"})
    return None


def _only(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}


def decode_argument(annotation: Any, value: Any, where: str) -> Any:
    """The value of an argument that was stored, or edited by a person.

    Args:
        annotation: the parameter's type, resolved; ``Any`` if it has none.
        value: JSON, of the form of an argument or of a result.
        where: what to call it in an error, such as the parameter's name.

    Returns:
        What the step's code gets.

    Raises:
        NotRecordable: it is not of the type, or a part of it would not come back; ``path`` leads there.
    """
    typed, text = Typed(annotation, where=where), json.dumps(value, ensure_ascii=False)
    if '"$' in text:  # a tag, or a key that was marked because it looks like one
        return _tagged(typed, text, where)
    try:
        return typed.decode(text)
    except NotRecordable:  # it may be given under its aliases
        return typed.validate_python(value)


def _tagged(typed: Typed, text: str, where: str) -> Any:
    """A value with tags in it. How its type wants bytes to be written is found out: they have to come back the same."""
    try:
        plain = from_canonical(text)
    except (ValueError, TypeError) as error:
        raise NotRecordable(where, f"what stands in a tag cannot be read: {error}") from error
    if type(plain) is Secret:
        return plain
    wanted, first = _bytes_in(plain), None
    for written in (_as_it_is, bytes.decode, bytes.hex) if wanted else (_as_it_is,):
        try:
            value = typed.validate_python(_rewritten(plain, written))
            if not wanted or wanted <= _bytes_in(from_canonical(canonical(value, where))):
                return value
        except UnicodeDecodeError:
            continue
        except NotRecordable as misfit:
            first = first or misfit
    raise first or NotRecordable(where, "its bytes would come back changed")


def _as_it_is(data: bytes) -> bytes:
    return data


def _rewritten(value: Any, written: Any) -> Any:
    """A copy with its bytes written in another way."""
    if isinstance(value, bytes):
        return written(value)
    if isinstance(value, dict):
        return {key: _rewritten(item, written) for key, item in value.items()}
    if isinstance(value, list | set):
        return type(value)(_rewritten(item, written) for item in value)
    return value


def _bytes_in(value: Any) -> Counter[bytes]:
    if isinstance(value, bytes):
        return Counter((value,))
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | set) else ()
    return sum(map(_bytes_in, items), Counter())


def arguments_of(step: Step[Any, Any], arguments: str) -> dict[str, Any]:
    """The stored arguments of a claim, as the step's parameters.

    Raises:
        NotRecordable: one does not fit its annotation any more.
    """
    hints = parameter_types(step.fn)
    return {
        name: decode_argument(hints.get(name, Any), value, name)
        for name, value in json.loads(arguments).items()
        if name in step.parameters.names
    }
