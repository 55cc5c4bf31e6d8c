"""Questions about effects: was it done, is it the same, may it be done. Pure.

None of them carries a recommendation: a person decides from the values of the record, which are shown as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepseven.decide import _phrases as say
from stepseven.decide._situation import Draft, Situation, context_of, draft, failed_row, in_brackets, known, pairs, stop
from stepseven.model import EffectKind, Option

_LOST = "A backup was restored. Whether it was done after that backup was made, my records do not show."
UNDO = "undo."  # what the steps of a run that takes something back are called


def unknown_outcome(  # noqa: PLR0913 - each is one thing the person has to know
    s: Situation,
    *,
    step: str,
    subject: str | None,
    arguments: Mapping[str, Any],
    reason: str,
    why_unknown: str,
    key: str,
    tries: int,
    lost: bool = False,
) -> Draft:
    """A write was begun and nobody can tell whether it happened.

    Args:
        s: the run.
        step: the write step.
        subject: what it was working on.
        arguments: what it was called with.
        reason: how the last try ended.
        why_unknown: why looking did not settle it ("there is no way to look", "the look-up failed: …").
        key: the idempotency key that was sent: what to search for on the other side.
        tries: how often it was begun.
        lost: nobody here began it: a backup was restored, and it may have been done after that was made.
    """
    if step.startswith(UNDO):
        about: dict[str, Any] = {"step": step, "subject": subject, "arguments": arguments, "key": key}
        return _undo_in_doubt(s, **about, reason=reason, why_unknown=why_unknown, lost=lost)
    name, done, facts = f"“{say.humanise(step)}”", say.participle(step), say.plain(dict(arguments))
    headline = f"I do not know whether {name}{in_brackets(step, subject, s.client)} went through for {say.who(s.client)}."
    how = _LOST if lost else f"I began it {say.times(max(1, tries))}; it ended with: {say.reason_of(reason)}."
    look = f"I could not check: {say.reason_of(why_unknown)}."
    calm = f"I will not {'do' if lost else 'repeat'} it unless you say it is not there."
    values = f"What it was to use: {say.listing(pairs(facts), most=4)}." if facts else ""
    search = f"Search there for: {say.clip(key, words=3, chars=255)}" if key else ""
    again = f"{done} {'now' if lost else 'once more'}; if it is there after all, it is there twice"
    options = (
        Option(id="happened", label="it is there", detail=f"give the receipt (its number or link); nothing is {done} again"),
        Option(id="not_happened", label="it is not there: do it", detail=again),
        stop(s, "; this one stays unsettled"),
    )
    context = context_of(s, failed=[failed_row(reason, outcome="unknown", tries=tries)], facts=facts)
    lines = ([how, look, calm], [values, search], known(s))
    return draft(headline, *lines, more=[look, calm], options=options, context=context | {"key": key})


def _undo_in_doubt(  # noqa: PLR0913 - as above
    s: Situation,
    *,
    step: str,
    subject: str | None,
    arguments: Mapping[str, Any],
    reason: str,
    why_unknown: str,
    key: str,
    lost: bool,
) -> Draft:
    """The same of what takes an effect back: "it" would be read as the effect itself."""
    first = step.removeprefix(UNDO)
    shown = arguments.get("arguments")
    facts = say.plain({**(shown if isinstance(shown, Mapping) else {}), "receipt": arguments.get("receipt")})
    name = f"“{say.humanise(first)}”{in_brackets(first, subject, s.client)}"
    headline = f"I do not know whether {name} was taken back for {say.who(s.client)}."
    how = _LOST if lost else f"I began to take it back; it ended with: {say.reason_of(reason)}."
    look = f"I could not check: {say.reason_of(why_unknown)}."
    options = (
        Option(id="happened", label="it was taken back", detail="give what says so, or null; I do nothing more about it"),
        Option(id="not_happened", label="it still stands: take it back", detail="if it is gone after all, that is done twice"),
        stop(s, "; it is not known whether this one still stands"),
    )
    context = context_of(s, failed=[failed_row(reason, outcome="unknown")], facts=facts)
    return draft(headline, [how, look], known(s), more=[look], options=options, context=context | {"key": key})


def receipt(s: Situation, *, step: str, subject: str | None, why: str) -> Draft:
    """A write was done, and what came back could not be kept: only its receipt is missing.

    Args:
        s: the run.
        step: the write step.
        subject: what it was about.
        why: why the result could not be kept.
    """
    name = f"“{say.humanise(step)}”{in_brackets(step, subject, s.client)}"
    headline = f"{name} was done for {say.who(s.client)}, but I could not keep what came back. What is its receipt?"
    how = say.sentence(say.reason_of(why, words=30, chars=200))
    calm = "It will not be done again. Your answer becomes its result, and the run goes on."
    context = context_of(s, nothing_changed=False) | {"needs": "receipt"}
    return draft(headline, [how, calm], known(s), more=[how, calm], options=(), context=context)


def conflict(  # noqa: PLR0913 - each is one thing the person has to know
    s: Situation,
    *,
    step: str,
    subject: str | None,
    first: Mapping[str, Any] | None,
    now: Mapping[str, Any],
    receipt: Any,
    reason: str,
) -> Draft:
    """A write was done before, and is now asked for with other values.

    Args:
        s: the run.
        step: the write step.
        subject: what it is about.
        first: what was done then (arguments or receipt); ``None`` = not known.
        now: what is asked for now.
        receipt: what the other side returned then.
        reason: why the two meet, as a sentence.
    """
    done, kept = say.participle(step), say.shown(receipt) if receipt is not None else ""
    name = f"“{say.humanise(step)}”{in_brackets(step, subject, s.client)}"
    changes = _changes(first, now) if first is not None else []
    asked = "asked for again" if first is not None and not changes else "now asked for with other values"
    headline = f"{name} was done for {say.who(s.client)} before{f' ({kept})' if kept else ''}, and is {asked}."
    if first is None:
        facts = say.plain(dict(now))
        differs = f"What was used then is not known; now: {say.listing(pairs(facts), most=4)}."
    else:
        facts = {path: {"then": old, "now": new} for path, old, new in changes}
        arrows = [f"{path} {say.shown(old)} → {say.shown(new)}" for path, old, new in changes]
        differs = f"What differs: {say.listing(arrows, most=5)}." if arrows else "The values are the same."
    calm = f"Nothing was {done} this time."
    why = say.sentence(say.reason_of(reason)) if reason.strip() else ""
    keep = f"nothing is {done}; I go on with {kept or 'the first'}"
    options = (
        Option(id="same", label="the same thing: keep the first", detail=keep),
        Option(id="second", label="do a second one", detail=_second(changes)),
        stop(s, "; the first stays as it is"),
    )
    context = context_of(s, nothing_changed=True, facts=facts) | {"receipt": say.plain(receipt)}
    lines = ([differs, calm, why], known(s))
    return draft(headline, *lines, more=["" if changes else differs, calm, why], options=options, context=context)


def approve(  # noqa: PLR0913 - each is one thing the person has to know
    s: Situation,
    *,
    step: str,
    arguments: Mapping[str, Any],
    subject: str | None = None,
    text: str | None = None,
    effect: EffectKind = EffectKind.IRREVERSIBLE,
    before: Mapping[str, Any] | None = None,
    why: str = "",
    hidden: tuple[str, ...] = (),
    usd: float | None = None,
    seconds: float | None = None,
) -> Draft:
    """Something is proposed before it is done.

    Args:
        s: the run.
        step: the step, or what the workflow wants to have approved.
        arguments: exactly what will be used.
        subject: what it is about, if that is one thing.
        text: the author's wording of the question.
        effect: whether it can be taken back; ``read``: it is a value, and nothing is done with it yet.
        before: what was shown the last time it was proposed, as the person left it.
        why: what became of the earlier answer, as a sentence.
        hidden: parameters that are not recorded, and so neither shown nor part of what is approved.
        usd: what it is expected to cost, in US dollars.
        seconds: how long it is expected to take.
    """
    done, facts = say.participle(step), say.plain(dict(arguments))
    value = effect is EffectKind.READ
    mine = f"May I {say.to_do(step)}{in_brackets(step, subject, s.client)} for {say.who(s.client)}?"
    changes = [] if before is None else _changes(before, facts)
    arrows = [f"{path} {say.shown(old)} → {say.shown(new)}" for path, old, new in changes]
    differs = f"Changed since it was last shown: {say.listing(arrows, most=3)}." if arrows else ""
    values = f"Exactly this: {say.listing(pairs(facts), most=5)}." if facts else ""
    calm = "Nothing was done with it yet." if value else f"Nothing was {done} yet."
    final = "It cannot be taken back." if effect is EffectKind.IRREVERSIBLE else ""
    unseen = f"Not shown, and not part of your word: {say.listing(list(hidden))}." if hidden else ""
    go = "it is used as it is; you may edit it first" if value else f"{done} at once; you may edit the values first"
    options = (
        Option(id="approve", label="yes, exactly so", detail=go, usd=usd, seconds=seconds),
        Option(id="refuse", label="no", detail="it is not used" if value else f"nothing is {done}"),
    )
    context = context_of(s, nothing_changed=True, facts=facts)
    context["changed"] = [{"path": path, "then": old, "now": new} for path, old, new in changes]
    headline = say.clip(text, words=45, chars=400) if text else mine
    told = [why, differs, values, calm, final, unseen]
    return draft(headline, told, known(s), more=[why, differs, calm, final, unseen], options=options, context=context)


def _changes(first: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The fields that differ: path, then, now. A field on one side only differs from ``None``."""
    old, new = dict(say.leaves(say.plain(dict(first)))), dict(say.leaves(say.plain(dict(now))))
    paths = dict.fromkeys([*old, *new])
    return [(p, old.get(p), new.get(p)) for p in paths if p not in old or p not in new or old[p] != new[p]]


def _second(changes: list[tuple[str, Any, Any]]) -> str:
    new = say.listing([f"{path} {say.shown(value)}" for path, _, value in changes], most=2)
    return f"there are then two; the new one has {new}" if new else "there are then two"
