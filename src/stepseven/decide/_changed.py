"""The question about code that changed while a run waited: is a new step one that is on record, under another name? Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stepseven.decide import _phrases as say
from stepseven.decide._situation import Draft, Situation, context_of, draft, known, run_name, stop
from stepseven.decide.changes import MAP, START, STEP, Kept, Pair, is_map, kind, shown
from stepseven.model import Option

_TOLD = 4  # pairs in the text; the context holds all of them
_WHAT = {STEP: "step", MAP: "function", START: "workflow"}


def code(s: Situation, pairs: Sequence[Pair]) -> Draft:
    """Steps on record are gone from the code, and new ones could be the same under other names.

    Args:
        s: the run.
        pairs: each step that is gone, and what it could be; at least one of them has a likeliest.
    """
    sure = [p for p in pairs if p.to is not None]
    one = pairs[0] if len(pairs) == 1 else None
    writes = any(p.old.acts for p in pairs)
    context = context_of(s, facts={shown(p.old.name): _there(p.old) for p in pairs}) | {"code": [p.line() for p in pairs]}
    calm = "Nothing runs until you say."
    hint = _hint(sure[0].old.name)
    if one is not None:
        gone = f"{_named(one.old.name)} is gone, {_named(one.to)} is new"
        headline = f"The code of {run_name(s)} changed: {gone}. Is it the same {_WHAT[kind(one.old.name)]}?"
        told = [_on_record(one.old), _or(one), calm]
    else:
        headline = f"The code of {run_name(s)} changed: {len(pairs)} steps on record are gone, and new ones look like them."
        more = [f"… and {len(pairs) - _TOLD} more."] if len(pairs) > _TOLD else []
        told = [*(_arrow(p) for p in pairs[:_TOLD]), *more, calm]
    return draft(
        headline,
        told,
        known(s),
        [hint],
        more=[*told, hint],
        options=(_map(one, sure, len(pairs)), _run(one, pairs), stop(s)),
        recommendation=None if writes else "map",
        context=context,
    )


def _hint(name: str) -> str:
    """How the code can say that it is the same."""
    if is_map(name):
        return f'Code can say it itself: run.map(…, key="{shown(name)}").'
    if kind(name) == START:
        return f'Code can say it itself: @workflow("{shown(name)}").'
    return f'Code can say it itself: @step(renamed_from="{name}").'


def _named(name: str | None) -> str:
    return f"“{shown(name or '')}”"


def _there(old: Kept) -> str:
    """What there is of a step, in a few words."""
    if is_map(old.name):
        return _items(old) + (f", {say.money(old.usd)}" if old.usd else "")
    if kind(old.name) == START:
        return _runs(old) + (f", {say.money(old.usd)}" if old.usd else "")
    if old.given is not None:
        return f"not run, {old.given}"
    what = old.told or ("not known whether it was done" if old.doubt else "done" if old.count else "tried")
    times = f", {say.times(old.count)}" if old.count > 1 else ""
    return what + times + (f", {say.money(old.usd)}" if old.usd else "")


def _items(old: Kept) -> str:
    return "1 item" if old.count == 1 else f"{old.count} items"


def _runs(old: Kept) -> str:
    what = "not ended" if old.doubt else "done outside" if old.inside else "ended"
    return f"{'a run' if old.count == 1 else f'{old.count} runs'}, {what}"


def _on_record(old: Kept) -> str:
    name, cost = _named(old.name), f" It has cost {say.money(old.usd)}." if old.usd else ""
    if old.given is not None:
        return f"{name} has not run; {old.given}."
    outside = ", and of some of it I do not know whether it was done" if old.doubt else ", and did something outside"
    if is_map(old.name):
        return f"{name} went through {_items(old)}{outside if old.inside else ''}.{cost}"
    if kind(old.name) == START:
        runs = "A run" if old.count == 1 else f"{old.count} runs"
        has, it = ("has", "it") if old.count == 1 else ("have", "one of them")
        ends = f"{it} has not ended" if old.doubt else f"{it} did something outside"
        return f"{runs} of {name} {has} been started, and {ends}.{cost}"
    if old.inside and not old.writes:
        return f"{name} {'is done' if old.count else 'was begun'}, and what it called did something outside.{cost}"
    if old.writes and old.doubt:
        return f"{name} was begun, and I do not know whether it was done."
    if old.writes:
        times = f" {say.times(old.count)}" if old.count > 1 else ""
        return f"{name} did something outside{times}{f': {say.clip(old.told, words=8, chars=60)}' if old.told else ''}."
    gave = f"{name} gave: {say.clip(old.told, words=8, chars=60)}." if old.told else f"{name} is on record."
    return gave + cost


def _or(pair: Pair) -> str:
    if not pair.others:
        return ""
    return f"It could also be {say.listing([_named(n) for n in pair.others])}: then name it."


def _arrow(pair: Pair) -> str:
    """One of several: ``“post_invoice” → “send_invoice” (done outside: R-36)``."""
    outside = pair.old.acts and pair.old.given is None and not pair.old.doubt
    inside = ("done outside: " if outside else "") + _there(pair.old)
    now = f" → {_named(pair.to)}" if pair.to is not None else " is gone, too"
    return f"{_named(pair.old.name)}{now} ({say.clip(inside, words=10, chars=60)})."


def _map(one: Pair | None, sure: Sequence[Pair], of: int) -> Option:
    """The choice that they are the same."""
    if one is None:
        all_ = "all of them" if len(sure) == of else f"the {len(sure)} with an arrow"
        detail = "each new one goes on with the old one's record; correct single ones by to: old=new, or none"
        return Option(id="map", label=f"the same, renamed: {all_}", detail=detail)
    if one.old.given is not None:
        detail = f"what was chosen about {_named(one.old.name)} holds for {_named(one.to)}: it does not run"
        return Option(id="map", label="the same, renamed", detail=detail)
    then = "it does not run again"
    if kind(one.old.name) == START:
        then = "it goes on where it is" if one.old.doubt else "what is done is not done again"
        detail = f"the run of {_named(one.old.name)} counts as one of {_named(one.to)}; {then}"
        return Option(id="map", label="the same, renamed", detail=detail)
    if one.old.doubt:
        then = "I find out whether it was done"
    elif is_map(one.old.name):
        then = "what is done is not done again"
    elif one.old.acts:
        then = f"nothing is {_done(one) if one.old.writes else 'done'} again"
    detail = f"{_named(one.to)} goes on with what {_named(one.old.name)} has on record; {then}"
    return Option(id="map", label="the same, renamed", detail=detail)


def _run(one: Pair | None, pairs: Sequence[Pair]) -> Option:
    """The choice that they are others: what that means outside is said plainly."""
    costs = [p.usd for p in pairs if p.to is not None and p.usd]
    usd = sum(costs) if costs else None
    writes = [_named(p.to) for p in pairs if p.old.acts and p.old.given is None and p.to is not None]
    if one is None:
        verb = "does" if len(writes) == 1 else "do"
        detail = f"{say.listing(writes)} {verb} it outside once more" if writes else "the old results are kept, and not used"
        return Option(id="run", label="others: run the new ones", detail=detail, usd=usd)
    if one.old.given is not None:
        detail = f"what was chosen about {_named(one.old.name)} is not used"
        return Option(id="run", label=_another(one, "run"), detail=detail, usd=usd)
    if not writes:
        results = "the old results are" if is_map(one.old.name) else "the old result is"
        return Option(id="run", label=_another(one, "run"), detail=f"{results} kept, and not used", usd=usd)
    if kind(one.old.name) == START:
        beside = "the first is not ended by that" if one.old.doubt else "what the first did is done outside once more"
        return Option(id="run", label=_another(one, "start"), detail=f"a run of {_named(one.to)} is started; {beside}", usd=usd)
    if not one.old.writes:
        begun = "each item is begun anew" if is_map(one.old.name) else "it is begun anew"
        detail = f"{begun}, and what it calls is done outside once more"
        return Option(id="run", label=_another(one, "run"), detail=detail, usd=usd)
    if one.old.doubt:
        detail = f"if “{one.old.name}” was {_done(one)} after all, and it is the same thing, that is there twice"
    else:
        what = f" ({say.clip(one.old.told, words=8, chars=60)})" if one.old.told else ""
        detail = f"“{one.old.name}” was {_done(one)} already{what}; this does it once more, as “{one.to}”"
    return Option(id="run", label=_another(one, "do"), detail=detail, usd=usd)


def _another(one: Pair, verb: str) -> str:
    return f"another {_WHAT[kind(one.old.name)]}: {verb} {_named(one.to)}"


def _done(pair: Pair) -> str:
    """``posted``; ``done`` where the name tells no verb."""
    done = say.participle(pair.old.name)
    return "done" if done == "changed" else done
