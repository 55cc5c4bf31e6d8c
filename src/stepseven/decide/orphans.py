"""Whether anybody takes a run that is ready, and if not, why: in words for people. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stepseven._dataclass import dataclass
from stepseven.decide import _phrases as say


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a worker's row says.

    Attributes:
        who: where it is: ``process 12 on vm``.
        silent_us: for how long it has said nothing, in microseconds.
        gone: nobody works there any more.
        workflows: what it takes runs of; none: it executes only what it is given.
    """

    who: str
    silent_us: int
    gone: bool
    workflows: frozenset[str]


def unknown_to_all(needs: Collection[str], offers: Sequence[Offer]) -> str | None:
    """Why no worker takes a run; ``None``: one does.

    Args:
        needs: the workflows a worker has to know for it: the run's own, or those whose effects it takes back.
        offers: every worker there is a row of.
    """
    living = [o for o in offers if not o.gone and o.workflows]
    if any(o.workflows.issuperset(needs) for o in living):
        return None
    names = say.listing(sorted(needs))
    what = f"workflow {names}" if len(needs) == 1 else f"workflows {names}"
    if not living:
        told = "no worker is at work"
    else:
        others = "the one at work takes" if len(living) == 1 else f"the {len(living)} at work take"
        told = f"no worker knows {what} ({others} others)"
    last = min((o for o in offers if o.gone and o.workflows.issuperset(needs)), key=lambda o: o.silent_us, default=None)
    if last is None:
        return told
    return f"{told}; the last that knew {what} ({last.who}) was heard of {say.duration(last.silent_us / 1e6)} ago"


def started_by(reason: str, parent: str) -> str:
    """Why no worker takes a run that another one has started, and waits for: and what to do if its workflow has another name now.

    Args:
        reason: why nobody takes it.
        parent: the id of the run that started it.
    """
    return f"{reason}; run {parent} started it, and waits: if its workflow was renamed, `stepseven resume {parent}` asks about it"


def left_by(owner: Offer | None, worker_id: str, *, proven: bool, lease_us: int) -> str:
    """What became of the worker that had a run.

    Args:
        owner: its row; ``None``: it is not there any more.
        worker_id: its id.
        proven: its process is certainly dead.
        lease_us: how long a worker may say nothing.
    """
    if owner is None:
        return f"its worker {worker_id} is gone"
    silent = say.duration(owner.silent_us / 1e6)
    if proven:
        return f"its worker is dead ({owner.who}, heard of {silent} ago)"
    return f"its worker ({owner.who}) said nothing for {silent}; {lease_us // 1_000_000} s are allowed"
