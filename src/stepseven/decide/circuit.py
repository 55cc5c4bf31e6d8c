"""Whether an outside system is believed to be down, who may try it, and when. Pure: a row and the time in, a row out.

Five retryable failures of at least two runs within a minute open a circuit. While it is open, one run at a time is the *trial*:
what it finds closes the circuit, or puts the next look off: 10 s, 20 s, 40 s and so on, at most 5 min.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from stepseven._dataclass import dataclass

FAILURES, RUNS = 5, 2  # DESIGN §6: so many failures, of so many runs, within
WINDOW_US = 60_000_000
FIRST_US, LONGEST_US = 10_000_000, 300_000_000  # between two looks
SPREAD = 0.2  # of such a pause, up or down: circuits that opened together are not tried together
TRIAL_US = 60_000_000  # a trial that has said nothing for so long is given up: its run died or hangs
CALL_US = 15_000_000  # a run that was woken to be the trial and is not it by then: another one is woken
ASK_US = 30 * 60_000_000  # a person is asked after all
KEPT = 20  # failures that are kept of a circuit that is closed


class State(StrEnum):
    """As stored."""

    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


class Pass(StrEnum):
    """What a run may do that comes to a step of a resource."""

    FREE = "free"  # nothing is known against it
    TRY = "try"  # as the trial
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """One resource. Times in microseconds since 1970.

    Attributes:
        name: the resource, as ``attempt.resource`` names it.
        failures: when, and of which run (its number): the newest last.
        opened_us: since when it is believed to be down.
        next_us: when it may be tried; of one that is closed: since when.
        looks: how often it was tried since it opened.
        trial_run_no: the run that tries it, or tried it last.
        trial_us: since when it does; while the circuit is open: when a waiting run was last woken for that.
    """

    name: str
    state: State = State.CLOSED
    failures: tuple[tuple[int, int], ...] = ()
    opened_us: int | None = None
    next_us: int | None = None
    looks: int = 0
    trial_run_no: int | None = None
    trial_us: int | None = None

    @property
    def open(self) -> bool:
        """Whether it is believed to be down."""
        return self.state is not State.CLOSED


def passes(c: Circuit, run_no: int, now_us: int, *, held: bool = False) -> Pass:
    """What run *run_no* may do.

    Args:
        c: the circuit.
        run_no: the run.
        now_us: the time.
        held: a call of this run that is still at work is the trial. Else a trial of its own is one that a crash broke off.
    """
    if c.state is State.CLOSED:
        return Pass.FREE
    if c.state is State.OPEN:
        return Pass.TRY if now_us >= (c.next_us or 0) else Pass.WAIT
    orphaned = c.trial_run_no == run_no and not held
    return Pass.TRY if orphaned or now_us >= (c.trial_us or 0) + TRIAL_US else Pass.WAIT


def look_us(c: Circuit) -> int:
    """When a run that waits may look again: the next look, or the moment at which the trial under way is given up."""
    return (c.trial_us or 0) + TRIAL_US if c.state is State.TRIAL else (c.next_us or 0)


def tried(c: Circuit, run_no: int, now_us: int) -> Circuit:
    """Run *run_no* is the trial from now on."""
    return replace(c, state=State.TRIAL, trial_run_no=run_no, trial_us=now_us, looks=c.looks + 1)


def failed(c: Circuit, run_no: int, now_us: int, *, trial: bool, chance: float) -> Circuit:
    """After one more retryable failure.

    Args:
        c: the circuit before.
        run_no: whose failure it is.
        now_us: the time.
        trial: that run was the trial. What others find out while the circuit is open changes nothing.
        chance: uniform in [0, 1).
    """
    if c.open:
        return put_off(c, now_us, chance=chance) if trial else c
    recent = tuple((at, no) for at, no in c.failures if now_us - at < WINDOW_US)
    recent = (*recent, (now_us, run_no))[-KEPT:]
    if len(recent) < FAILURES or len({no for _, no in recent}) < RUNS:
        return replace(c, failures=recent)
    return replace(
        c, state=State.OPEN, failures=(), opened_us=now_us, next_us=now_us + pause_us(0, chance=chance), looks=0,
        trial_run_no=None, trial_us=None,
    )  # fmt: skip


def put_off(c: Circuit, now_us: int, *, chance: float) -> Circuit:
    """The trial found that it is still down."""
    return replace(c, state=State.OPEN, next_us=now_us + pause_us(c.looks, chance=chance), trial_run_no=None, trial_us=None)


def given_back(c: Circuit, now_us: int) -> Circuit:
    """The trial did not come to try anything: the next one may at once."""
    return replace(c, state=State.OPEN, next_us=now_us, trial_run_no=None, trial_us=None, looks=max(0, c.looks - 1))


def closed(c: Circuit, now_us: int) -> Circuit:
    """It answers."""
    return Circuit(name=c.name, next_us=now_us)


def pause_us(looks: int, *, chance: float) -> int:
    """Between a failed look and the next: 10 s, doubled each time, at most 5 min; a fifth more or less by *chance* in [0, 1)."""
    plain = every_us(looks)
    return round(plain * (1 - SPREAD + 2 * SPREAD * chance))


def every_us(looks: int) -> int:
    """The same without chance, as people are told it."""
    return min(LONGEST_US, FIRST_US << min(looks, 40))


def asks(c: Circuit, since_us: int, now_us: int) -> bool:
    """Whether a person is to be asked about a step that waits.

    Args:
        c: the circuit.
        since_us: when a person last decided about this step; 0: nobody did.
        now_us: the time.
    """
    return c.open and now_us >= ask_us(c, since_us)


def ask_us(c: Circuit, since_us: int) -> int:
    """When that is."""
    return max(c.opened_us or 0, since_us) + ASK_US
