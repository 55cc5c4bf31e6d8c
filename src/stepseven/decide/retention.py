"""How long things are kept, as people say it: ``90``, ``"90d"``, ``"12h"``, ``timedelta``; ``off``."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any

DAY_US = 24 * 3600 * 1_000_000
DEFAULT_DAYS = 90  # DESIGN §14
MOST_US = 1_000_000 * DAY_US
ROUND_US = DAY_US  #: finished runs are looked through once in so long
VARIABLE = "STEPSEVEN_RETENTION"
_SPAN = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*([hd])")
_UNIT_US = {"h": 3600 * 1_000_000, "d": DAY_US}
_HOW = "say days as a number, '90d', '12h', or a timedelta"


def span_us(older_than: Any) -> int:
    """An age in microseconds.

    Args:
        older_than: days as a number (0 and more), ``"90d"``, ``"12h"``, or a ``timedelta``.

    Raises:
        ValueError: it is none of these, or negative, or more than a million days.
    """
    us: float | None = None
    if isinstance(older_than, timedelta):
        us = older_than / timedelta(microseconds=1)
    elif isinstance(older_than, int | float) and not isinstance(older_than, bool) and math.isfinite(older_than):
        us = older_than * DAY_US
    elif isinstance(older_than, str):
        found = _SPAN.fullmatch(older_than.strip())
        us = float(found[1]) * _UNIT_US[found[2]] if found else None
    if us is None or not 0 <= us <= MOST_US:
        raise ValueError(f"older_than={older_than!r}: {_HOW}")
    return round(us)


def retention_us(told: str | None) -> int | None:
    """What the environment says about how long finished runs are kept whole; ``None``: for ever.

    Args:
        told: the variable's value: a duration such as ``"90d"``, or ``"off"``; ``None`` or empty: 90 days.

    Raises:
        ValueError: it is neither.
    """
    text = (told or "").strip().lower()
    if not text:
        return DEFAULT_DAYS * DAY_US
    if text == "off":
        return None
    if _SPAN.fullmatch(text) is None:
        raise ValueError(f"{VARIABLE}={told!r}: say a duration such as 90d, or off")
    return span_us(text)
