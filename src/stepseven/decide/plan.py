"""What a resume would reuse, run and ask, and what that costs: from what was seen of a run to a plan. Pure.

``runtime/rehearsal.py`` sees (it lets the run's code meet its records, and writes nothing); ``runtime/ahead.py`` reads what comes
after from the source; the store tells what steps cost in earlier runs. Here it is put together. ``_plan_text.py`` writes it down.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from enum import StrEnum
from typing import Any

from stepseven._dataclass import dataclass

UNKNOWN = "unknown"


class Do(StrEnum):
    """What a resume does about a step."""

    REUSE = "reuse"
    RUN = "run"
    ASK = "ask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one call of a step costs and takes.

    Attributes:
        usd: US dollars, the median of earlier runs or as declared; ``None``: nobody knows.
        usd_p90: the ninth tenth of earlier runs. usd_seen: the most that one call was seen to cost.
        usd_most: what no call can exceed by what is declared, all its tries together; ``None``: nothing is declared.
        seconds, seconds_p90: the same for its time; tokens, tokens_p90: for its tokens.
        n: in how many earlier runs it was seen; 0: declared, or seen in this run only.
        here: only earlier calls in this run tell what it costs.
        calls: how often an earlier run called it, the median; ``calls_most``: the most.
    """

    usd: float | None = None
    usd_p90: float | None = None
    usd_seen: float | None = None
    usd_most: float | None = None
    seconds: float | None = None
    seconds_p90: float | None = None
    tokens: float | None = None
    tokens_p90: float | None = None
    n: int = 0
    here: bool = False
    calls: float | None = None
    calls_most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """One call as the run's code made it in a rehearsal.

    Attributes:
        name: of the step; ``run.ask``, ``run.approve``, ``run.start``, ``run.sleep``, ``run.wait_for`` for the handle's calls.
        branch, key: which call of it.
        do: what a resume does about it.
        why: in words; of a reuse why that is so, where it is not obvious.
        maybe: only if an earlier step that runs again gives another result.
        effect: ``write`` or ``irreversible``; ``None``: a read.
        usd, tokens, seconds: what its record has cost, where it is reused.
        summary: one line of what is there, or what is asked.
        cost_usd, cost_seconds: declared for one try. tries: how many it may take.
        new: nothing of it was on record.
        question: its question's text, where a person is asked.
        anew: its own code may wait for somebody, and begins from its top after that.
    """

    name: str
    branch: str = ""
    key: str = ""
    do: Do
    why: str = ""
    maybe: bool = False
    effect: str | None = None
    usd: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    summary: str | None = None
    cost_usd: float | None = None
    cost_seconds: float | None = None
    tries: int = 1
    new: bool = False
    question: str | None = None
    anew: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """A call that the source has after where the run stands.

    Attributes:
        name: of the step, or ``run.ask`` and so on; ``unknown``: something is called here that cannot be seen through.
        where: file and line.
        many: in a loop, a comprehension or a map: how often is not known before.
        maybe: under a condition, or after something that may end the run.
        effect, cost_usd, cost_seconds, tries: as declared.
        text: what an ``ask`` says, where that stands in the source.
        anew: as of ``Met``.
        given: a person has chosen what it gives, or that it is skipped, and who, in words: it does not run.
        of: what declares it, weakly, for whoever read it; nothing here looks at it.
    """

    name: str
    where: str
    many: bool = False
    maybe: bool = False
    effect: str | None = None
    cost_usd: float | None = None
    cost_seconds: float | None = None
    tries: int = 1
    text: str | None = None
    anew: bool = False
    given: str | None = None
    of: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drifted:
    """A fact (or a field of the client record) that is not what the run built on.

    Attributes:
        key: of the fact; ``record.contact`` for a field of the client record.
        old, new: JSON values; ``None`` and not *known*: it was not, or is no more.
        source, by, at_us: who said the new value, and when.
        old_version, new_version: of a fact; ``None`` for the client record.
        depends: steps, questions and approvals that were built on it, in words.
        read: the run has read it, or its workflow watches it. Else it is noted and nobody is asked.
    """

    key: str
    old: Any
    new: Any
    source: str | None = None
    by: str | None = None
    at_us: int | None = None
    old_version: int | None = None
    new_version: int | None = None
    depends: tuple[str, ...] = ()
    read: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One line of a plan: all calls of one step that are treated alike.

    Attributes:
        step: its name. do: ``reuse``, ``run`` or ``ask``. why: in words.
        count: calls that are certain. at_most: with those that may be; ``None``: not known before.
        about: how many are expected, where earlier runs tell; ``None``: nobody knows.
        maybe: it depends on what is not known yet. new: nothing of it is on record.
        usd, seconds, tokens: expected in all; of a reuse: what is not spent again. ``None``: not known.
        usd_p90, seconds_p90, tokens_p90: if each call costs and takes what nine in ten do not exceed.
        usd_each: what one call is expected to cost. usd_at_most: more than that all do not cost; ``None``: not known before.
        n: from how many earlier runs the price is; 0: declared, or unknown.
        summary: what is there, or what is asked.
        effect: ``write``, ``irreversible`` or ``None``.
    """

    step: str
    do: Do
    why: str = ""
    count: int = 1
    at_most: int | None = 1
    about: float | None = 1
    maybe: bool = False
    new: bool = False
    usd: float | None = None
    usd_at_most: float | None = None
    seconds: float | None = None
    tokens: float | None = None
    usd_p90: float | None = None
    seconds_p90: float | None = None
    tokens_p90: float | None = None
    usd_each: float | None = None
    n: int = 0
    summary: str | None = None
    effect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One way to done.

    Attributes:
        name: ``continue`` (as it stands; what moved is kept as the run knows it) or ``refresh`` (with what is so now).
        steps: line by line.
        questions, usd, seconds, tokens: expected. ``None``: not known.
        usd_p90, seconds_p90, tokens_p90: if each call costs and takes what nine in ten do not exceed.
        questions_at_most, usd_at_most: the upper bound, every try of every call counted. A new failure, and a step that goes over
            its cost, can add to it. ``None``: there is none.
        usd_at_most_known: the same of all that has a bound: what *unbounded* may cost comes on top.
        unbounded: names of the steps whose cost has no bound, because their price or how often they run is not known;
            ``unknown``: something that cannot be seen.
        unknown: what cannot be seen before, in words.
        cheapest: this one is chosen if nobody says otherwise.
    """

    name: str
    steps: tuple[PlannedStep, ...] = ()
    questions: int = 0
    questions_at_most: int | None = 0
    usd: float | None = 0.0
    usd_at_most: float | None = 0.0
    usd_at_most_known: float = 0.0
    unbounded: tuple[str, ...] = ()
    seconds: float | None = 0.0
    tokens: float | None = 0.0
    usd_p90: float | None = 0.0
    seconds_p90: float | None = 0.0
    tokens_p90: float | None = 0.0
    unknown: tuple[str, ...] = ()
    cheapest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a resume would do. Looking changed nothing.

    Attributes:
        run_id, client_id, workflow, goal, status: of the run.
        headline: where it stands, in words.
        steps: of the cheapest path.
        paths: the ways to done, the cheapest marked.
        drift: what moved while the run waited. notes: what is worth knowing and needs nobody: new and removed steps, other facts.
        questions: open questions that a person has to answer before it goes on, in words.
        looked_us: when.
        chosen: what would be chosen at the resume, as it takes it (``approach``, ``skip``, ``rerun``, ``drift``); empty: nothing.
    """

    run_id: str
    client_id: str
    workflow: str
    goal: str | None = None
    status: str = ""
    headline: str = ""
    steps: tuple[PlannedStep, ...] = ()
    paths: tuple[Path, ...] = ()
    drift: tuple[Drifted, ...] = ()
    notes: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    looked_us: int = 0
    chosen: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """As the command line shows it."""
        from stepseven.decide._plan_text import text

        return text(self)

    def document(self) -> dict[str, Any]:
        """As JSON has it: the same names, lists for tuples, ``do`` as text."""
        told: dict[str, Any] = json.loads(json.dumps(asdict(self), ensure_ascii=False, default=str))
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was seen on one way to done.

    Attributes:
        met: the calls the run's code made, in order.
        coming: what the source has after that; empty when the code came to its end.
        ended: the code came to its end: nothing comes.
        broke: the code raised, in words; what comes after is not known.
        unknown: what else could not be seen, in words (the code is not loaded, it waits for something outside).
        stale: names of steps with records that stand after a step that runs again, and whose calls were not reached.
        receipts: names of writes that are done, where a call that comes may mean the same with other values: it is asked about.
    """

    met: tuple[Met, ...] = ()
    coming: tuple[Coming, ...] = ()
    ended: bool = False
    broke: str | None = None
    unknown: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    receipts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The run a plan is for, as it stands.

    Attributes:
        run_id, client_id, workflow, goal, status, waiting_for, updated_us: of its row.
        looked_us: when it was looked at.
        questions: the texts of its open questions.
        asks: a person is asked about what moved before it goes on.
        left: what is left of its limits, by their names: the fields of ``Limits``, in their units. Without those asked about.
        used: what is used of each of them, in the same units.
        broke_off: nobody executes it any more, although it says that it runs.
    """

    run_id: str
    client_id: str
    workflow: str
    goal: str | None = None
    status: str = ""
    waiting_for: str | None = None
    updated_us: int = 0
    looked_us: int = 0
    questions: tuple[str, ...] = ()
    asks: bool = False
    left: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)
    broke_off: bool = False


def plan(
    run: Standing,
    observed: Mapping[str, Observed],
    prices: Mapping[str, Price],
    *,
    drift: Sequence[Drifted] = (),
    notes: Sequence[str] = (),
) -> Plan:
    """Put together what was seen.

    Args:
        run: the run as it stands.
        observed: the name of each way to done, and what was seen on it; ``continue`` first. None: it has ended.
        prices: what steps cost in earlier runs.
        drift: what moved.
        notes: what else is worth knowing.
    """
    from stepseven.decide._plan_head import headline
    from stepseven.decide._plan_limits import enough, with_limits
    from stepseven.decide._ways import cheapest, with_questions

    ways = [with_questions(with_limits(priced(name, seen, prices), run.left), run, drift) for name, seen in observed.items()]
    best = cheapest(ways)
    paths = tuple(replace(way, cheapest=way is best) for way in ways)
    return Plan(
        run_id=run.run_id, client_id=run.client_id, workflow=run.workflow, goal=run.goal, status=run.status,
        headline=headline(run, best), steps=best.steps if best is not None else (), paths=paths, drift=tuple(drift),
        notes=(*notes, *enough(paths, run)), questions=run.questions, looked_us=run.looked_us,
    )  # fmt: skip


def priced(name: str, observed: Observed, prices: Mapping[str, Price]) -> Path:
    """One way to done, line by line, with what it costs.

    Expected is what certain calls cost, each at the median of earlier runs (of a step that only this run has, at that of its own
    calls), else as declared; of calls that may come, as many as earlier runs made. The upper bound is what is
    declared for every try of every call that is certain or may come, or more, if a call was seen to cost more. A new failure can
    add to it (it asks, and an answer may grant new tries), and a call that reports more than it declares. A step that declares
    nothing is bounded only if it was seen, and never reported a cost: by nothing, as far as that is known.

    Time is that of work, one call after the other: what waits for people, times or other systems is not in it.
    """
    from stepseven.decide._ways import way

    return way(name, observed, prices)
