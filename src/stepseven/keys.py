"""Business keys: from ``key="document.supplier, document.number"`` to the text that names an effect."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from stepseven.store.codec import canonical, digest

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PLAIN = re.compile(r"[A-Za-z_][\w .:@+-]*")
MAX_KEY = 400  #: bytes: with whose and what it is, a key is one entry of an index, of which PostgreSQL takes 2,700
_SHOWN = 80  # bytes of a longer one that people still see
MAX_WIRE = 255  # DESIGN §4: what every API takes as Idempotency-Key


class KeyPaths:
    """A step's ``key=``, checked when the step is declared as far as annotations allow."""

    def __init__(self, key: str | Callable[..., Any], step: str, names: tuple[str, ...], hints: Mapping[str, Any]) -> None:
        self.step = step
        self.call: Callable[..., Any] | None = None
        self.paths: tuple[tuple[str, ...], ...] = ()
        if not isinstance(key, str):
            self.call = key
            return
        texts = [part.strip() for part in key.split(",") if part.strip()]
        if not texts:
            raise ValueError(f"step {step!r}: key= is empty: name at least one parameter")
        for text in texts:
            if not _PATH.fullmatch(text):
                raise ValueError(f"step {step!r}: key path {text!r} is not of the form parameter.field.field")
        self.paths = tuple(tuple(text.split(".")) for text in texts)
        for path in self.paths:
            if path[0] not in names:
                raise ValueError(f"step {step!r}: key names {path[0]!r}, its parameters are {', '.join(names) or 'none'}")
            _check_fields(step, path, hints.get(path[0]))

    def values(self, bound: Mapping[str, Any]) -> list[Any]:
        """The values the paths lead to in one call.

        Raises:
            ValueError: a path leads nowhere, or to nothing (``None``): that would give two effects one name.
        """
        if self.call is not None:
            made = self.call(**bound)
            found = list(made) if isinstance(made, tuple) else [made]
        else:
            found = [_follow(self.step, path, bound[path[0]]) for path in self.paths]
        if any(value is None for value in found):
            raise ValueError(f"step {self.step!r}: its key is None in part: an effect needs a whole name")
        return found

    def text(self, bound: Mapping[str, Any]) -> str:
        """The key of one call, unique for its values."""
        return "/".join(key_part(value, f"{self.step}: key") for value in self.values(bound))


def key_part(value: Any, where: str) -> str:
    """One value of a key: strings that read well stay, everything else is canonical JSON, so that 1 and "1" differ."""
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return quote(canonical(value, where), safe="\"'[]{}:, @+-._()").replace(" ", "%20")


def fitting(key: str) -> str:
    """A key as it is kept: one over ``MAX_KEY`` bytes is its beginning and its digest, the same on every database."""
    data = key.encode("utf-8", "surrogatepass")  # half a character is refused by whoever keeps it
    return key if len(data) <= MAX_KEY else f"{data[:_SHOWN].decode(errors='ignore')}…{digest(key)}"


def wire_key(scope_id: str, name: str, key: str, generation: int) -> str:
    """The idempotency key as the other side sees it: ``{scope id}/{effect name}/{key}``, ASCII, at most 255 characters."""
    text = f"{scope_id}/{name}/{key}" + (f"#{generation}" if generation > 1 else "")
    if len(text) <= MAX_WIRE and text.isascii() and text.isprintable() and " " not in text:
        return text
    plain = "".join(c if " " < c < "\x7f" else "_" for c in text)
    tail = "~" + digest(text)
    return plain[: MAX_WIRE - len(tail)] + tail


def _follow(step: str, path: tuple[str, ...], value: Any) -> Any:
    for name in path[1:]:
        if isinstance(value, Mapping):
            if name not in value:
                raise ValueError(f"step {step!r}: key path {'.'.join(path)}: there is no {name!r}")
            value = value[name]
        elif hasattr(value, name):
            value = getattr(value, name)
        else:
            raise ValueError(f"step {step!r}: key path {'.'.join(path)}: {type(value).__name__} has no {name!r}")
    return value


def _check_fields(step: str, path: tuple[str, ...], hint: Any) -> None:
    """Refuse a path that the annotation rules out; what it does not tell is checked at the call."""
    for name in path[1:]:
        fields = _fields(hint)
        if fields is None:
            return
        if name not in fields:
            known = ", ".join(sorted(fields)) or "none"
            raise ValueError(f"step {step!r}: key path {'.'.join(path)}: there is no {name!r} (fields: {known})")
        hint = fields[name]


def _fields(hint: Any) -> dict[str, Any] | None:
    if not isinstance(hint, type):
        return None
    known: dict[str, Any]
    if dataclasses.is_dataclass(hint):
        known = {f.name: None for f in dataclasses.fields(hint)}
    elif hasattr(hint, "model_fields"):
        known = dict.fromkeys(hint.model_fields)
    elif typing.is_typeddict(hint) or hasattr(hint, "_fields"):
        known = dict.fromkeys(getattr(hint, "_fields", None) or hint.__annotations__)
    else:
        return None
    known.update({name: None for name in dir(hint) if isinstance(getattr(hint, name, None), property)})
    try:
        hints = typing.get_type_hints(hint)
    except (NameError, TypeError):
        hints = {}
    return {name: hints.get(name) for name in known}
