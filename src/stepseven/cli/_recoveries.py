"""The recoveries of a run, as ``show`` tells them: when, by whom, what was chosen, what came of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from stepseven.cli._words import age, count, short_json
from stepseven.decide import _phrases as say
from stepseven.transitions.recoveries import AS_WRITTEN, DRIFT_DUE

_STEPS = 3  # named in a line; more are a number
_VALUE = 40  # characters of a value that was given


def lines(recoveries: Sequence[Mapping[str, Any]], most: int) -> Iterator[tuple[str, str]]:
    """Rows of a page, label and text: the newest first.

    Args:
        recoveries: documents, oldest first.
        most: how many are shown.
    """
    shown = list(reversed(recoveries))[:most]
    for i, one in enumerate(shown):
        yield ("resumed" if i == 0 else "", _line(one))
    if len(recoveries) > len(shown):
        yield ("", f"… {count(len(recoveries) - len(shown), 'time')} before that (--all shows them)")


def _line(one: Mapping[str, Any]) -> str:
    by = f" by {say.clip(one['by'], words=6, chars=40)}" if one["by"] else ""
    chosen = ", ".join(_chosen(one["chosen"], obeyed=one["ended_us"] is not None and DRIFT_DUE not in one))
    return f"{age(one['created_us'])}{by}: {f'{chosen} → ' if chosen else ''}{_came(one)}"


def _chosen(told: Mapping[str, Any], *, obeyed: bool) -> Iterator[str]:
    for name, label in told.get("approach", {}).items():
        yield f"{name} {AS_WRITTEN}" if label == AS_WRITTEN else f"{name} by “{say.clip(label, words=8, chars=_VALUE)}”"
    for name, value in told.get("skip", {}).items():
        yield f"{name} skipped" if value is None else f"{name} given as {short_json(value, _VALUE)}"
    if told.get("rerun"):
        yield f"{say.listing(told['rerun'], most=_STEPS)} made anew"
    if told.get("drift"):
        yield f"what had moved {'' if obeyed else 'to be '}{'kept as it was' if told['drift'] == 'keep' else 'refreshed'}"


def _came(one: Mapping[str, Any]) -> str:
    if one["ended_us"] is None:
        return "under way, or broken off"
    if "ran" not in one:
        return "it ended with its run"
    parts = [f"ran {_steps(one['ran'])}" if one["ran"] else "nothing ran"]
    if one["ran"] or one["reused"]:
        parts.append(f"{count(one['reused'], 'record')} reused")
    if one["asked"]:
        parts.append(f"{count(one['asked'], 'question')} asked")
    took = say.duration(one["seconds"]) if round(one["seconds"]) else ""
    parts.append(", ".join(part for part in (say.money(one["usd"]), took) if part))
    if one["saved"]:
        parts.append(f"spared {_steps(one['saved'], besides=one['ran'])}, whose input came out the same")
    return "; ".join(parts)


def _steps(counts: Mapping[str, int], *, besides: Collection[str] = ()) -> str:
    """Names with how often. *besides*: of these other calls ran, which is said."""
    return say.listing([_often(name, n, other=name in besides) for name, n in counts.items()], most=_STEPS)


def _often(name: str, n: int, *, other: bool) -> str:
    if other:
        return f"{n} other {'call' if n == 1 else 'calls'} of {name}"
    return name if n == 1 else f"{name} {n}×"
