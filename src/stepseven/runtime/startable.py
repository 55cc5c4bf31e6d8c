"""What a run that may be started costs: read from its workflow's source, with the prices of earlier runs, as of any run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from stepseven.decide.plan import Observed, Path, Price, priced
from stepseven.decide.prices import CHILD, child
from stepseven.errors import AmbiguousWorkflow
from stepseven.runtime import ahead
from stepseven.runtime.procedure import code_of
from stepseven.transitions import prices

if TYPE_CHECKING:
    from stepseven.decide.plan import Coming
    from stepseven.store.base import Tx

OR = " or "  # between the names of workflows, where one of several is started
_Sources = dict[str, tuple["Coming", ...]]


def named(ways: Iterable[Observed]) -> list[str]:
    """The workflows that may be started on these ways, as a plan prices them: ``report``, ``report or letter``."""
    met = (m.name.removeprefix(f"{CHILD}/") for way in ways for m in way.met if m.name.startswith(f"{CHILD}/"))
    reused = (m.key.partition("=")[0] for way in ways for m in way.met if m.name == CHILD and "=" in m.key)
    return list(dict.fromkeys((*met, *reused, *(text for way in ways for text in _started(way.coming)))))


def _started(comings: Iterable[Coming]) -> list[str]:
    return [c.text for c in comings if c.name == CHILD and c.text]


def look(tx: Tx, names: Iterable[str], client_id: str, told: Mapping[str, Price]) -> dict[str, Price]:
    """The same prices, and those of runs that may be started.

    What one of them costs is expected as earlier runs of the starting workflow tell; where none does, and at most, it is what a
    plan of a new run of its workflow would say. One that (in the end) starts its own kind has no bound.

    Args:
        tx: a snapshot.
        names: the workflows, as ``named`` gives them.
        client_id: for whom.
        told: the prices of steps.
    """
    sources = _sources(names)
    known = {name: prices.prices(tx, name, client_id=client_id) for name in sources}
    found = dict(told)
    for name in names:
        path = _either(name, sources, known, ())
        seen = told.get(child(name)) or told.get(CHILD) or Price()
        if path is not None:
            found[child(name)] = _with(seen, path)
    return found


def _with(seen: Price, path: Path) -> Price:
    return replace(
        seen, usd=path.usd if seen.usd is None else seen.usd, usd_most=path.usd_at_most,
        seconds=path.seconds if seen.seconds is None else seen.seconds,
    )  # fmt: skip


def _sources(names: Iterable[str]) -> _Sources:
    """What these workflows call, and those that they start, and so on; without those whose code is not loaded here."""
    found: _Sources = {}
    left = [one for name in names for one in name.split(OR)]
    while left:
        name, workflow = left.pop(), None
        with suppress(AmbiguousWorkflow):  # which of several it is, the run that is started will tell
            workflow = code_of({"workflow": name, "id": name, "source_digest": None})
        if name not in found and workflow is not None:
            found[name] = ahead.whole(workflow)
            left += [one for text in _started(found[name]) for one in text.split(OR)]
    return found


def _either(name: str, sources: _Sources, known: Mapping[str, Mapping[str, Price]], above: tuple[str, ...]) -> Path | None:
    """A whole run of a workflow; of one of several the dearest of each. ``None``: nobody knows."""
    paths = [_whole(one, sources, known, above) for one in name.split(OR)]
    known_ = [path for path in paths if path is not None]
    if len(known_) < len(paths):
        return None
    return replace(
        known_[0], usd=_largest(path.usd for path in known_), usd_at_most=_largest(path.usd_at_most for path in known_),
        seconds=_largest(path.seconds for path in known_),
    )  # fmt: skip


def _largest(values: Iterable[float | None]) -> float | None:
    found = list(values)
    return None if None in found else max(v for v in found if v is not None)


def _whole(name: str, sources: _Sources, known: Mapping[str, Mapping[str, Price]], above: tuple[str, ...]) -> Path | None:
    if name not in sources or name in above:
        return None
    own = dict(known[name])
    for text in dict.fromkeys(_started(sources[name])):
        path = _either(text, sources, known, (*above, name))
        if path is not None:
            own[child(text)] = _with(own.get(child(text)) or own.get(CHILD) or Price(), path)
    return priced(name, Observed(coming=sources[name]), own)
