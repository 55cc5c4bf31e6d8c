"""Whether anybody takes a run that is ready, and what people are told if not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepseven.decide.orphans import Offer, left_by, unknown_to_all

NAMES = st.frozensets(st.sampled_from(["renewal", "invoices", "mails"]), max_size=3)
OFFERS = st.lists(
    st.builds(Offer, who=st.just("process 7 on vm"), silent_us=st.integers(0, 10**12), gone=st.booleans(), workflows=NAMES),
    max_size=5,
)


def offer(*workflows: str, gone: bool = False, silent_s: float = 1) -> Offer:
    """A worker's row."""
    return Offer(who="process 7 on vm", silent_us=round(silent_s * 1e6), gone=gone, workflows=frozenset(workflows))


@given(NAMES.filter(bool), OFFERS)
def test_a_run_is_orphaned_exactly_when_no_live_worker_knows_it(needs: frozenset[str], offers: list[Offer]) -> None:
    """Only one live worker that knows everything a run needs keeps it from being orphaned."""
    taken = any(not o.gone and needs <= o.workflows for o in offers)
    assert (unknown_to_all(needs, offers) is None) is taken


def test_the_reason_says_who_is_missing() -> None:
    """Nobody at work, others at work, and who was the last to know it are told apart."""
    assert unknown_to_all({"renewal"}, []) == "no worker is at work"
    assert unknown_to_all({"renewal"}, [offer()]) == "no worker is at work"  # it executes only what it is given
    assert unknown_to_all({"renewal"}, [offer("mails")]) == "no worker knows workflow renewal (the one at work takes others)"
    assert unknown_to_all({"renewal", "mails"}, [offer("mails"), offer("x")]) == (
        "no worker knows workflows mails and renewal (the 2 at work take others)"
    )
    lost = [offer("renewal", gone=True, silent_s=180), offer("renewal", gone=True, silent_s=9000)]
    assert unknown_to_all({"renewal"}, lost) == (
        "no worker is at work; the last that knew workflow renewal (process 7 on vm) was heard of 3 min ago"
    )


def test_what_became_of_the_owner_is_said() -> None:
    """A worker that is gone, proven dead, or only silent."""
    assert left_by(None, "w_1", proven=False, lease_us=10_000_000) == "its worker w_1 is gone"
    assert left_by(offer(silent_s=180), "w_1", proven=True, lease_us=10_000_000) == (
        "its worker is dead (process 7 on vm, heard of 3 min ago)"
    )
    assert left_by(offer(silent_s=180), "w_1", proven=False, lease_us=10_000_000) == (
        "its worker (process 7 on vm) said nothing for 3 min; 10 s are allowed"
    )
