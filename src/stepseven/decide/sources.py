"""Which of several workers has the newer source of a workflow: the older one leaves the runs to it while it lives.

``worker.modules`` is JSON ``{workflow: {"digest": …, "since_us": …, "seen": {digest: since_us}}}``: what a worker can execute,
since when that source is known, and which other sources of the same workflow it has seen. What was seen once keeps its time,
so that a worker with old code that crashed and starts again does not pass for the newest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field

from stepseven._dataclass import dataclass

REMEMBERED = 8  # other sources of one workflow that a worker keeps in mind: as many deploys back


@dataclass(frozen=True, slots=True)
class Source:
    """A workflow's code as a worker has it.

    Attributes:
        digest: of its source.
        since_us: when a worker with it was first seen, database clock, microseconds since 1970.
        seen: other digests, and since when those are known.
    """

    digest: str
    since_us: int
    seen: Mapping[str, int] = field(default_factory=dict)


def parse(modules: str | None) -> dict[str, Source]:
    """What a worker's row says it can execute; what it says in another form than ours counts as nothing."""
    try:
        told = json.loads(modules or "{}")
        return {
            name: Source(str(one["digest"]), int(one["since_us"]), {str(d): int(us) for d, us in one.get("seen", {}).items()})
            for name, one in told.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def text(sources: Mapping[str, Source]) -> str:
    """The same as it is stored."""
    made = {
        name: {"digest": one.digest, "since_us": one.since_us, **({"seen": dict(one.seen)} if one.seen else {})}
        for name, one in sorted(sources.items())
    }
    return json.dumps(made, ensure_ascii=False, separators=(",", ":"))


def placed(digests: Mapping[str, str], registered: Iterable[str | None], now_us: int) -> dict[str, Source]:
    """A worker's sources with their times: as known from any worker that is registered, else from now on.

    Args:
        digests: workflow → digest of its source here.
        registered: ``worker.modules`` of every row there is, living or dead.
        now_us: the database's clock.
    """
    known: dict[str, dict[str, int]] = {name: {} for name in digests}
    for row in registered:
        for name, source in parse(row).items():
            for digest, us in ((source.digest, source.since_us), *source.seen.items()):
                if name in known:
                    known[name][digest] = min(us, known[name].get(digest, us))
    made = {}
    for name, digest in digests.items():
        others = sorted(((us, d) for d, us in known[name].items() if d != digest), reverse=True)[:REMEMBERED]
        made[name] = Source(digest, known[name].get(digest, now_us), {d: us for us, d in sorted(others)})
    return made


def outdated(mine: Mapping[str, Source], living: Iterable[str | None]) -> frozenset[str]:
    """The workflows of which a living worker has a newer source than ours.

    Args:
        mine: our own.
        living: ``worker.modules`` of the other workers that are alive.
    """
    older = set()
    for row in living:
        for name, theirs in parse(row).items():
            ours = mine.get(name)
            if ours is not None and ours.digest != theirs.digest and _age(ours) < _age(theirs):
                older.add(name)
    return frozenset(older)


def _age(source: Source) -> tuple[int, str]:
    """Never equal for two digests: of two workers that started in the same microsecond one still gives way."""
    return source.since_us, source.digest
