"""What a person reads when a run cannot go on: the question's text, its choices, and the state attached. Pure.

One function per kind of question. Each gives a ``Draft``: a text of at most 120 words whose first line is the headline and
can stand alone, choices that say what they do and cost, and the same knowledge as JSON for pages and terminals. A text is
built from the data only: what was done, how each approach failed, what did *not* happen. Where that is not known, the text
says so or is silent; it never guesses.
"""

from __future__ import annotations

import math

from stepseven.decide import _phrases as say
from stepseven.decide import _tries as how
from stepseven.decide._changed import code
from stepseven.decide._doubt import approve, conflict, receipt, unknown_outcome
from stepseven.decide._rekeyed import other_key, other_run
from stepseven.decide._sheet import Meanwhile, render
from stepseven.decide._situation import (
    Alternative,
    Done,
    Draft,
    Situation,
    Tried,
    context_of,
    draft,
    failed_row,
    finished,
    in_brackets,
    known,
    run_name,
    steps,
    stop,
)
from stepseven.decide._undo import Receipt, about, undo
from stepseven.model import EffectKind, Option

__all__ = [
    "Alternative",
    "Done",
    "Draft",
    "Meanwhile",
    "Receipt",
    "Situation",
    "Tried",
    "about",
    "approve",
    "batch",
    "body",
    "code",
    "conflict",
    "failure",
    "limit",
    "looked_at",
    "other_key",
    "other_run",
    "poison",
    "receipt",
    "render",
    "undo",
    "unknown_outcome",
    "waited",
]


def failure(  # noqa: PLR0913 - each is one thing the person has to know
    s: Situation,
    *,
    step: str,
    subject: str | None,
    resource: str | None,
    tried: tuple[Tried, ...],
    alternatives: tuple[Alternative, ...],
    effect: EffectKind,
    nothing_changed: bool | None,
    needs: str | None,
    ask: str | None,
    result_type: str | None,
    rerun: tuple[str, ...] = (),
    looks: bool = True,
    waited: str = "",
    usd: float | None,
    seconds: float | None,
) -> Draft:
    """A step failed and its tries are used up, or only a person can mend it.

    Args:
        s: the run.
        step: the step's name.
        subject: what it was working on (an item, the main argument), if that is one thing.
        resource: the outside system it needs.
        tried: every try, oldest first.
        alternatives: its other approaches; one that was tried is offered with what came of it.
        effect: what the step does outside.
        nothing_changed: whether it is known that nothing outside was changed; ``None`` = not known.
        needs: the fact that is missing: then the question asks for a value and has no choices.
        ask: the author's wording of the question.
        result_type: the step's return annotation as text.
        rerun: earlier steps that a person may want to run again.
        looks: whether waiting until *resource* answers can help: not if what the step was given is wrong.
        waited: what came of waiting for it before, as a sentence.
        usd: what one try is expected to cost, in US dollars.
        seconds: how long one try is expected to take.
    """
    client, writes = say.who(s.client), effect is not EffectKind.READ
    could_not = f"I could not {say.to_do(step)}{in_brackets(step, subject, s.client)} for {client}."
    asked = say.clip(ask, words=45, chars=400) if ask else ""
    why, calm = how.told(tried, resource), _unchanged(step, effect, nothing_changed=nothing_changed)
    context = context_of(s, failed=how.rows(tried, resource), nothing_changed=nothing_changed)
    if needs is not None:
        name = say.humanise(needs)
        keeps = f"Your answer is kept as {say.possessive(client)} {name}, so I will not ask again."
        lines = ([could_not, why, calm], [keeps], known(s))
        headline = asked or f"What is {say.possessive(client)} {name}?"
        return draft(headline, *lines, more=[could_not, calm, keeps], options=(), context=context | {"needs": needs})
    options = (
        Option(id="again", label="try again now", detail=_again(resource), usd=usd, seconds=seconds),
        *how.approaches(alternatives, tried),
        _wait(resource if looks else None),
        Option(id="value", label="give the result yourself", detail=how.value(step, result_type, writes=writes)),
        Option(id="skip", label=f"skip {how.named(step, subject)}", detail=how.skipped(step, writes=writes)),
        *([how.by_hand(step)] if writes else []),
        *(how.rerun(name) for name in dict.fromkeys(rerun)),
        stop(s),
    )
    headline, lead = (asked, could_not) if asked else (could_not, "")
    return draft(
        headline,
        [lead, why, waited, calm],
        known(s),
        more=[lead, waited, calm],
        options=options,
        recommendation=how.recommended(alternatives, tried),
        context=context | looked_at(resource if looks else None),
    )


def looked_at(resource: str | None) -> dict[str, str]:
    """For ``context``: what the choice "wait" may look at, as its label names it."""
    return {} if not resource else {"looks_at": _short(resource)}


def waited(resource: str | None, *, by: str, seconds: float, otherwise: bool) -> str:
    """What came of waiting until a resource answers.

    Args:
        resource: what was waited for.
        by: who chose to.
        seconds: for how long.
        otherwise: it failed in another way than before; else it never answered.
    """
    what = _short(resource) if resource else "it"
    if otherwise:
        return f"I waited {say.duration(seconds)} until {what} answers, as {by} chose; now it failed in another way."
    return f"I looked every 15 min for {say.duration(seconds)} whether {what} answers, as {by} chose: it does not."


def body(s: Situation, *, reason: str, where: str) -> Draft:
    """The workflow's own code broke off, between the steps. *where* is ``file:line``."""
    place = say.one_line(where)
    short = say.clip(place.replace("\\", "/").rsplit("/", 1)[-1], words=4, chars=80)
    headline = f"{run_name(s)} broke off in its own code{f', at {short}' if short else ''}."
    why = say.sentence(say.reason_of(reason, words=25, chars=160))
    options = (
        Option(id="again", label="try again", detail="when the code is mended; finished steps are reused, not run again"),
        stop(s),
    )
    context = context_of(s, failed=[failed_row(reason)]) | {"where": place}
    return draft(headline, [why], known(s), options=options, context=context)


def batch(  # noqa: PLR0913 - each is one thing the person has to know
    s: Situation,
    *,
    step: str,
    resource: str | None,
    done: int,
    of: int,
    failed: tuple[tuple[str, str], ...],
    waiting: int,
    nothing_changed: bool | None,
    looks: bool = True,
) -> Draft:
    """Items of a map failed in a row the same way, so no further ones were started.

    Args:
        s: the run.
        step: the step that failed.
        resource: the outside system it needs.
        done: how many items are done.
        of: how many items there are.
        failed: item and reason of each failed one, in the order they ended.
        waiting: how many were not started.
        nothing_changed: whether it is known that the failed ones changed nothing outside.
        looks: whether waiting until *resource* answers can help.
    """
    n = len(failed)
    those = f"the {n} failed {_ones(n)}" if n != 1 else "the failed one"
    headline = f"For {say.who(s.client)} I {say.counted(step, done, of)}; {n} failed, so I stopped to ask."
    calm = f"Nothing was {say.participle(step)} for {those}." if nothing_changed else ""
    left = f"{waiting} {'was' if waiting == 1 else 'were'} not started." if waiting else ""
    rest = "the one not started" if waiting == 1 else f"the {waiting} not started"
    go_on = f"then {rest} {'follows' if waiting == 1 else 'follow'}" if waiting else "then the run goes on"
    names = say.listing([say.clip(item, words=5, chars=40) for item, _ in failed])
    kept = f"the {done} done {_ones(done)} {'is' if done == 1 else 'are'} kept"
    options = (
        Option(id="again", label=f"try {those} again, go on", detail=go_on),
        _wait(resource if looks else None),
        Option(id="skip", label=f"skip {those}", detail=f"without {names}; {go_on}" if names else go_on),
        Option(id="stop", label="stop this run", detail=kept) if done else stop(s),
    )
    passing = bool(failed) and all(say.passing(say.reason_of(reason)) for _, reason in failed)
    return draft(
        headline,
        [*how.by_reason(failed, resource), calm, left],
        known(s, without=step),
        more=[calm, left],
        options=options,
        recommendation="wait" if passing else None,
        context=context_of(
            s, failed=[failed_row(how.reason(r, resource), item=i) for i, r in failed], nothing_changed=nothing_changed
        )
        | looked_at(resource if looks else None),
    )


def poison(s: Situation, *, executions: int, last_step: str | None) -> Draft:
    """The run ended again and again without release and without a new record. *executions* is how often."""
    at = f", each time at “{say.humanise(last_step)}”" if last_step else ""
    headline = f"{run_name(s)} died {say.times(executions)} in a row without finishing anything new{at}."
    why = "Its program went away before it could say why; too little memory or a crash in a library looks like this."
    calm = "I no longer start it by myself; other runs go on."
    begin = f"continues after the {steps(finished(s))}" if s.done else "starts over"
    options = (Option(id="again", label="try it once more", detail=f"{begin}; I ask again if it keeps dying"), stop(s))
    context = context_of(s) | {"executions": executions, "last_step": last_step}
    return draft(headline, [why, calm], known(s), more=[why, calm], options=options, context=context)


def limit(  # noqa: PLR0913 - a question about a limit says that much
    s: Situation,
    *,
    what: str,
    ceiling: float,
    used: float,
    next_step: str,
    next_cost: float | None,
    enough: float | None = None,
) -> Draft:
    """The next step would pass a limit, or the limit is used up.

    Args:
        s: the run.
        what: a field of ``Limits``: ``usd``, ``steps``, ``tokens``, ``seconds``, ``client_usd_per_day``.
        ceiling: the limit, in the unit of *what*.
        used: what is used of it, in the same unit.
        next_step: the step that was not started.
        next_cost: what it is expected to need, in the same unit; ``None`` = not known.
        enough: the least limit that lets all that is left through; ``None`` = not known.
    """
    per_day, total, name = what == "client_usd_per_day", used + (next_cost or 0), f"“{say.humanise(next_step)}”"
    whose = f"{say.possessive(say.who(s.client))} runs have" if per_day else f"{run_name(s)} has"
    today = " for today" if per_day else ""
    headline = f"{whose} used {say.used_of(what, used, ceiling)}{today}."
    then = f"The next step is {name}."
    if next_cost:
        then = f"The next step, {name}, needs about {say.quantity(what, next_cost)}: {say.quantity(what, total)} in all."
    calm = "It was not started, and no other step starts until you decide."
    unit = "dollars" if "usd" in what else what
    whole = f"; {_upwards(what, enough)} is enough for all that is left" if enough is not None and enough > total else ""
    give = f"give the new limit in {unit}, {_floor(what, ceiling, used, next_cost)}{whole}; continues at once"
    usd, seconds = next_cost if "usd" in what else None, next_cost if what == "seconds" else None
    options = (Option(id="raise", label="raise the limit", detail=give, usd=usd, seconds=seconds), stop(s))
    known_of = {"what": what, "ceiling": ceiling, "used": used, "next_cost": next_cost, "enough": enough}
    context = context_of(s) | {"limit": known_of}
    return draft(headline, [then, calm], known(s), more=[then, calm], options=options, context=context)


def _again(resource: str | None) -> str:
    system = say.clip(resource, words=4, chars=30) if resource else "the cause"
    return f"when {system} is mended; continues at once"


def _wait(resource: str | None) -> Option:
    """The choice to wait: until the resource answers, where there is one to look at; else for a time or a fact only."""
    if not resource:
        return Option(id="wait", label="wait and try later", detail="give a time or a fact; nothing runs until then")
    detail = "I look every 15 min; or give a time or a fact"
    return Option(id="wait", label=f"wait until {_short(resource)} answers again", detail=detail)


def _short(resource: str) -> str:
    return say.clip(resource, words=4, chars=30)


def _ones(n: int) -> str:
    return "one" if n == 1 else "ones"


def _unchanged(step: str, effect: EffectKind, *, nothing_changed: bool | None) -> str:
    """What did not happen outside, if that is known; of a write it is said when it is not."""
    if nothing_changed:
        return f"Nothing was {say.participle(step) if effect is not EffectKind.READ else 'changed'}."
    if effect is EffectKind.READ:
        return ""
    return "Part of it was done." if nothing_changed is False else f"I do not know whether anything was {say.participle(step)}."


def _floor(what: str, ceiling: float, used: float, next_cost: float | None) -> str:
    """The smallest new limit that helps, rounded upwards: rounded down it would not."""
    least = max(ceiling, used + (next_cost or 0))
    start = "at least" if next_cost and least > ceiling else "above"
    return f"{start} {_upwards(what, least)}"


def _upwards(what: str, of: float) -> str:
    if "usd" in what:
        return say.money(math.ceil(round(of * 100, 6)) / 100)
    return f"{math.ceil(round(of, 6)):,}"
