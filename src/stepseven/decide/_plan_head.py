"""Where a run stands, as the first line of its plan says it. Pure."""

from __future__ import annotations

from stepseven.decide import _phrases as say
from stepseven.decide._ways import DRIFT, LIMIT, RUN
from stepseven.decide.plan import UNKNOWN, Do, Path, Standing

_ENDED = ("done", "failed", "cancelled")
_AWAITED = {
    "person": "waiting for a person", "timer": "waiting for a time", "child": "waiting for another run",
    "effect": "waiting for the outcome of a write", "circuit": "waiting for a service", "event": "waiting for an event",
}  # fmt: skip


def headline(run: Standing, path: Path | None) -> str:
    """``stopped 2 days ago at step 7 of about 12``."""
    since = say.duration((run.looked_us - run.updated_us) / 1e6)
    if run.status in _ENDED:
        return f"{run.status} {since} ago"
    if run.status == "running":
        stands = f"broken off {since} ago" if run.broke_off else "running"
    else:
        stands = f"{_AWAITED[run.waiting_for]} for {since}" if run.waiting_for in _AWAITED else f"stopped {since} ago"
    steps = [] if path is None else [s for s in path.steps if s.step not in (DRIFT, RUN, LIMIT, "run.body")]
    names = list(dict.fromkeys(s.step for s in steps if s.step != UNKNOWN))
    kept = {s.step for s in steps if s.do is Do.REUSE} - {s.step for s in steps if s.do is not Do.REUSE}
    if not names:
        return stands
    if len(kept) == len(names):
        known = path is not None and path.questions_at_most is not None
        return f"{stands} with all its steps on record" if known else f"{stands} after {len(kept)} step{'s'[: len(kept) != 1]}"
    seen = path is not None and path.questions_at_most is not None and not any(s.maybe or s.at_most is None for s in steps)
    sure = {s.step for s in steps if s.do is not Do.REUSE and s.count}  # of a loop more may come of what is done
    at = max(len(kept) + 1, next((n for n, name in enumerate(names, 1) if name in sure), 0))
    return f"{stands} at step {min(at, len(names))} of {'' if seen else 'about '}{len(names)}"
