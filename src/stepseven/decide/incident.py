"""Which questions have one cause, and what is said of them together. Pure.

Merged are what failed (``failure``, ``batch``), what reached a limit (``limit``) and what keeps dying (``poison``). One cause is:
one resource that is down; one signature at one resource; else one signature in one step of one workflow. So a 401 of two
hosts, the same words of two steps, and two credentials stay apart; ids, numbers, times and clients do not tell causes apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from stepseven._dataclass import dataclass
from stepseven.decide import _phrases as say
from stepseven.model import Option, QuestionKind


class Kind(StrEnum):
    """As stored: what the questions of an incident have in common."""

    RESOURCE = "resource"
    CAUSE = "cause"
    LIMIT = "limit"
    POISON = "poison"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What makes questions one incident: equal for those that belong together."""

    kind: Kind
    signature: str
    resource: str | None = None


def cause(
    kind: QuestionKind, *, workflow: str, step: str | None, signature: str | None, resource: str | None, passing: bool = False
) -> Cause | None:
    """The cause of a question; ``None``: it is never merged with others.

    Args:
        kind: the question's.
        workflow: of the run that asks.
        step: that is asked about; of a limit: which limit.
        signature: of the failure.
        resource: where it happened.
        passing: it was a failure that goes away by itself (retryable).
    """
    if kind is QuestionKind.LIMIT:
        return Cause(kind=Kind.LIMIT, signature=f"{step} in {workflow}")
    if kind is QuestionKind.POISON:
        return Cause(kind=Kind.POISON, signature=f"{step or workflow} in {workflow}")
    if kind not in (QuestionKind.FAILURE, QuestionKind.BATCH):
        return None
    if passing and resource:
        return Cause(kind=Kind.RESOURCE, signature=resource, resource=resource)
    if not signature:
        return None
    if resource and resource in signature.split(" "):  # it is about the other side, whoever asked it
        return Cause(kind=Kind.CAUSE, signature=signature, resource=resource)
    return Cause(kind=Kind.CAUSE, signature=f"{signature} in {workflow}/{step or ''}", resource=resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How far an incident reaches, as far as whoever looks may see it."""

    runs: int
    clients: int
    workflows: tuple[str, ...]
    step: str | None
    reason: str  # of the newest question: how it failed
    down_since: str | None = None  # of a resource that is down: a time for people


def text(c: Cause, e: Extent) -> str:
    """One sentence or two: what is wrong, and whom it holds up."""
    runs = "1 run waits" if e.runs == 1 else f"{e.runs:,} runs wait"
    held = f"{runs}, of {e.clients:,} clients" if e.clients > 1 else runs
    flows = say.listing(list(e.workflows), most=2)
    if c.kind is Kind.RESOURCE and e.down_since is not None:
        return f"{c.resource} has not answered since {e.down_since}; {held}."
    if c.kind is Kind.LIMIT:
        return say.sentence(f"runs of {flows} have used up their limit ({c.signature.split(' in ', 1)[0]}); {held}")
    if c.kind is Kind.POISON:
        at = f", at “{say.humanise(e.step)}”" if e.step else ""
        return say.sentence(f"runs of {flows} keep dying without finishing anything new{at}; {held}")
    at = f" (“{say.humanise(e.step)}” in {flows})" if e.step else f" ({flows})"
    reason = say.from_resource(say.reason_of(e.reason, words=25, chars=160), c.resource)
    return f"{say.sentence(reason or 'a step failed')} {held[0].upper()}{held[1:]}{at}."


def earlier(answer: str, *, by: str, ago: str, went_on: int, again: int) -> str:
    """What came of the last answer to the same cause."""
    went = f"{went_on:,} went on, " if went_on else ""
    back = "this one failed again" if again == 1 else f"{again:,} failed again"
    return f"Answered “{answer}” by {by} {ago} ago; {went}{back}."


def common(options: Sequence[Iterable[Option]]) -> tuple[Option, ...]:
    """The choices that all questions have, as the first one words them."""
    if not options:
        return ()
    known = [{o.id for o in each} for each in options]
    return tuple(o for o in options[0] if all(o.id in ids for ids in known))
