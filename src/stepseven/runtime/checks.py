"""What is given to a public call is of the form that it takes, or one sentence says so, before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from stepseven.errors import InvalidArgument
from stepseven.store.codec import free_text

T = TypeVar("T")

RUN = "give the id of a run, as text (`stepseven runs` lists them)"
QUESTION = "give the id of a question, as text (`stepseven inbox` lists them)"
MAX_BY = 200  #: characters of a person's name
_SHOWN = 80  # characters of a value
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # where something is in memory tells nobody anything


def refused(name: str, value: Any, why: str) -> InvalidArgument:
    """What is wrong with an argument, with the value as it was given, masked and short."""
    return InvalidArgument(name, shown(value), why)


def shown(value: Any) -> str:
    """A value as it stands in a sentence: on one line, credentials masked."""
    try:
        told = repr(value)
    except Exception:  # noqa: BLE001 - a repr is the caller's code, and what is told is that the value is wrong
        told = f"<{type(value).__name__}>"
    return free_text(" ".join(_ADDRESS.sub("", told).split()), _SHOWN)


def text(name: str, value: Any, why: str) -> str:
    """A text that says something.

    Raises:
        InvalidArgument: it is none, or is empty.
    """
    if not isinstance(value, str) or not value:
        raise refused(name, value, why)
    return value


def any_text(name: str, value: Any, why: str) -> str:
    """A text, also an empty one.

    Raises:
        InvalidArgument: it is none.
    """
    if not isinstance(value, str):
        raise refused(name, value, why)
    return value


def text_or_none(name: str, value: Any, why: str = "give a text, or leave it out") -> str | None:
    """A text, or nothing.

    Raises:
        InvalidArgument: it is neither.
    """
    if value is not None and not isinstance(value, str):
        raise refused(name, value, why)
    return value


def texts_or_none(**given: Any) -> None:
    """Arguments that are each a text, or nothing.

    Raises:
        InvalidArgument: one is neither.
    """
    for name, value in given.items():
        text_or_none(name, value)


def person(name: str, value: Any, why: str) -> str:
    """Who says or decides something.

    Args:
        name: of the argument.
        value: what was given.
        why: what is to be said there.

    Raises:
        InvalidArgument: it is no text, says nothing, or is too long for a name.
    """
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_BY:
        raise refused(name, value, f"{why}: a name of 1 to {MAX_BY} characters")
    return value


def person_or_none(name: str, value: Any, why: str) -> str | None:
    """The same, or nobody.

    Raises:
        InvalidArgument: it is neither.
    """
    return None if value is None else person(name, value, f"{why}, or leave it out")


def seconds(name: str, value: Any) -> float | None:
    """How long something may take, in seconds; ``None``: as usual.

    Raises:
        InvalidArgument: it is no number, or below 0.
    """
    if value is None:
        return None
    if not (is_number(value) and value >= 0):  # which "not a number" is not
        raise refused(name, value, "give seconds, 0 or more")
    seconds_: float = value
    return seconds_


def is_number(value: Any) -> bool:
    """Whether it is a number, and none of Python's two truth values."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def named(name: str, value: Any, such: str) -> dict[str, Any]:
    """Values by name; ``None``: none.

    Args:
        name: of the argument.
        value: what was given.
        such: what it would look like, such as ``{"quarter": "Q3"}``.

    Raises:
        InvalidArgument: it is no mapping, or a name in it is no text.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refused(name, value, f"give names with their values, such as {such}")
    strange = next((key for key in value if not isinstance(key, str) or not key), None)
    if strange is not None or None in value:
        raise refused(name, value, f"{shown(strange)} is no name: give texts with their values, such as {such}")
    return dict(value)


def said(name: str, value: Any, make: Callable[[Any], T]) -> T:
    """What *make* makes of an argument. What it finds wrong is said as a wrong argument.

    Args:
        name: of the argument.
        value: what was given; its repr is known to work.
        make: makes something of it, or raises a ValueError that says why not.

    Raises:
        InvalidArgument: it cannot be made of that.
    """
    try:
        return make(value)
    except InvalidArgument:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        why = str(error).removeprefix(f"{name}={value!r}: ")
        raise refused(name, value, why) from error
