"""The run as it stands, and the parts every question shares: what is done, what is next, how to stop. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide import _phrases as say
from stepseven.model import Option

LONGEST_REASON = 4_000  # characters: a whole traceback belongs to the attempt, not to the question


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One try that did not succeed. ``outcome`` is ``failed``, ``unknown``, ``deferred`` or ``interrupted``."""

    approach: str
    reason: str
    outcome: str
    at_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a step name has to show: how many records are done, ``of`` how many if known, and the latest one's summary."""

    step: str
    summary: str | None
    count: int = 1
    of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another approach of the step. ``ask``: its author wants it used only when a person chooses it."""

    label: str
    usd: float | None
    seconds: float | None
    ask: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The run as it stands, the same for every kind of question. Money in US dollars."""

    client: str
    workflow: str
    goal: str | None
    inputs: Mapping[str, Any]
    done: tuple[Done, ...]
    next_steps: tuple[str, ...]
    spent_usd: float
    limit_usd: float | None
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What becomes the question row.

    ``context`` is JSON: ``headline`` (first line of ``text``), ``done``, ``failed``, ``next``, ``nothing_changed``, ``facts``
    (values from the record, never from a model), ``run`` (workflow, goal, inputs, spent, limit) and ``more`` (what the text
    says beyond these). ``recommendation`` is an option's id.
    """

    text: str
    options: tuple[Option, ...]
    recommendation: str | None
    context: dict[str, Any]


# -- parts every question shares --------------------------------------------------------------------------------------


def draft(
    headline: str,
    *lines: Sequence[str],
    more: Sequence[str] = (),
    options: tuple[Option, ...],
    context: Mapping[str, Any],
    recommendation: str | None = None,
) -> Draft:
    """The question row. *lines* are sentences in order of importance; *more* are those that ``context`` holds in no field."""
    text = say.compose([headline], *lines)
    whole = {**context, "headline": text.split("\n", 1)[0], "more": " ".join(s for s in more if s)}
    return Draft(text=text, options=options, recommendation=recommendation, context=whole)


def context_of(
    s: Situation,
    *,
    failed: Sequence[Mapping[str, Any]] = (),
    nothing_changed: bool | None = None,
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The structured form of what a text says, as JSON."""
    return {
        "done": [asdict(d) for d in s.done],
        "failed": [dict(f) for f in failed],
        "next": list(s.next_steps),
        "nothing_changed": nothing_changed,
        "facts": dict(facts or {}),
        "run": {
            "workflow": s.workflow,
            "goal": s.goal,
            "inputs": say.plain(dict(s.inputs)),
            "spent_usd": s.spent_usd,
            "limit_usd": s.limit_usd,
            "tokens": s.tokens,
        },
    }


def failed_row(reason: str, *, item: str | None = None, outcome: str = "failed", tries: int = 1) -> dict[str, Any]:
    """One failure for ``context``: the reason whole, but for what nobody reads."""
    row = {"approach": None, "reason": say.one_line(reason)[:LONGEST_REASON], "outcome": outcome, "tries": tries, "at_us": None}
    return row if item is None else row | {"item": say.one_line(item)[:LONGEST_REASON]}


def known(s: Situation, *, without: str | None = None) -> list[str]:
    """What is done and what comes next, as two sentences. *without*: a step the headline tells about."""
    did = [say.did(d.step, d.summary, d.count, d.of) for d in s.done if d.step != without]
    coming = [say.coming(n) for n in s.next_steps]
    so_far = f"So far I {say.listing(did, more='more steps')}." if did else "" if s.done else "No step is finished yet."
    return [so_far, f"Next: {say.in_order(coming)}." if coming else ""]


def stop(s: Situation, also: str = "") -> Option:
    """The choice to end the run, and what is kept."""
    n = finished(s)
    kept = "no step is finished yet" if not n else "the finished step is kept" if n == 1 else f"the {steps(n)} are kept"
    return Option(id="stop", label="stop this run", detail=kept + also)


def finished(s: Situation) -> int:
    """How many records are done."""
    return sum(d.count for d in s.done)


def steps(n: int) -> str:
    """``2 finished steps``."""
    return f"{n} finished step{'' if n == 1 else 's'}"


def run_name(s: Situation) -> str:
    """``Acme's renewal``."""
    return f"{say.possessive(say.who(s.client))} {say.humanise(s.workflow)}"


def in_brackets(step: str, subject: str | None, client: str) -> str:
    """The subject in brackets, unless the sentence names it already."""
    short = say.clip(subject, words=6, chars=60) if subject else ""
    return "" if not short or short.lower() in {client.lower(), say.humanise(step).lower()} else f" ({short})"


def pairs(facts: Mapping[str, Any]) -> list[str]:
    """``amount 1250``: each value inside *facts* with its name."""
    return [f"{say.clip(path, words=4, chars=40)} {say.shown(value)}" for path, value in say.leaves(facts)] if facts else []
