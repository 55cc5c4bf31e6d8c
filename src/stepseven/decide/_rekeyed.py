"""The questions about what changed code does under another key, a write or a run it starts: is it what was done before? Pure.

It carries no recommendation: a person decides from the values of the record, which are shown as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepseven.decide import _phrases as say
from stepseven.decide._doubt import _changes, _second
from stepseven.decide._situation import Draft, Situation, context_of, draft, in_brackets, known, pairs, run_name, stop
from stepseven.model import ONCE, Option


def other_key(  # noqa: PLR0913 - each is one thing the person has to know
    s: Situation,
    *,
    step: str,
    subject: str | None,
    keys: tuple[str, str],
    places: tuple[str, str] | None = None,
    first: Mapping[str, Any] | None,
    now: Mapping[str, Any],
    receipt: Any,
) -> Draft:
    """The code changed, and calls a write under a key that is not on record; one that is there it has not asked for.

    Args:
        s: the run.
        step: the write step.
        subject: what it is about.
        keys: the business key on record, and that of the call.
        places: in what it was called then, and is now, by name, empty for the workflow itself; ``None``: in the same place.
        first: what was done then (arguments); ``None`` = not known.
        now: what would be done now.
        receipt: what the other side returned then; ``None`` = not known.
    """
    done, kept = say.participle(step), say.shown(receipt) if receipt is not None else ""
    name = f"“{say.humanise(step)}”{in_brackets(step, subject, s.client)}"
    headline = f"The code of {run_name(s)} changed: is {name} the one that was done before{f' ({kept})' if kept else ''}?"
    changes = _changes(first, now) if first is not None else []
    if first is None:
        facts = say.plain(dict(now))
        differs = f"What was used then is not known; now: {say.listing(pairs(facts), most=4)}." if facts else ""
    else:
        facts = {path: {"then": old, "now": new} for path, old, new in changes}
        arrows = [f"{path} {say.shown(old)} → {say.shown(new)}" for path, old, new in changes]
        differs = f"What differs: {say.listing(arrows, most=5)}." if arrows else "The values are the same."
    found = f"{_where(keys, places)}; the new code has not asked for the first."
    calm = f"Nothing was {done} this time."
    keep = f"nothing is {done}; I go on with {kept or 'the first'}"
    options = (
        Option(id="same", label="the same thing: keep the first", detail=keep),
        Option(id="second", label="do a second one", detail=_second(changes)),
        stop(s, "; the first stays as it is"),
    )
    context = context_of(s, nothing_changed=True, facts=facts) | {"receipt": say.plain(receipt), "keys": list(keys)}
    lines = ([differs, calm, found], known(s))
    return draft(headline, *lines, more=["" if changes else differs, calm, found], options=options, context=context)


def other_run(  # noqa: PLR0913 - each is one thing the person has to know
    s: Situation,
    *,
    workflow: str,
    run_id: str,
    status: str,
    first: Mapping[str, Any],
    now: Mapping[str, Any],
    value: Any,
    code: bool = True,
) -> Draft:
    """The code starts a run, and one of that workflow that it started before it has not asked for.

    Args:
        s: the run that starts it.
        workflow: what is started.
        run_id: the run that was started then.
        status: of that.
        first: its inputs.
        now: those it would be started with now.
        value: what it has returned; ``None``: nothing, or it is not done.
        code: the code changed; else what a step gave before it.
    """
    ended = status in ("done", "failed", "cancelled")
    gave = say.shown(value) if value is not None else ""
    before = f"the one it started before{f' ({gave})' if gave else ''}"
    what = f"The code of {run_name(s)} changed" if code else f"What {run_name(s)} goes by has changed"
    headline = f"{what}: is the run of “{workflow}” that it starts {before}?"
    changes = _changes(dict(first), dict(now))
    arrows = [f"{path} {say.shown(old)} → {say.shown(new)}" for path, old, new in changes]
    differs = f"What differs: {say.listing(arrows, most=5)}." if arrows else "The inputs are the same."
    calm = "Nothing was started this time."
    stands = f"It is {status}, and something was done outside." if ended else "It has not ended."
    found = f"The first is run {run_id}. {stands} The code has not asked for it again."
    goes_on = f"I go on with {gave or 'what came of it'}" if ended else "it goes on as it was begun"
    values = say.listing([f"{path} {say.shown(new)}" for path, _, new in changes], most=4)
    second = f"with {values}" if changes else "with the same inputs"
    options = (
        Option(id="same", label="the same: keep the first", detail=f"nothing is started; {goes_on}"),
        Option(id="second", label="start a second one", detail=f"{second}; what it does outside it does besides"),
        stop(s, "; what the first did stays" if ended else ""),
    )
    facts = {path: {"then": old, "now": new} for path, old, new in changes}
    context = context_of(s, nothing_changed=True, facts=facts) | {"run": run_id}
    lines = ([differs, calm, found], known(s))
    return draft(headline, *lines, more=["" if changes else differs, calm, found], options=options, context=context)


def _where(keys: tuple[str, str], places: tuple[str, str] | None) -> str:
    if places is None or keys[0] != keys[1]:
        return f"Then it went by {_key(keys[0])}, now by {_key(keys[1])}"
    if places[0] == places[1]:
        return f"Then it was called for another item of {_place(places[0])}"
    return f"Then it was called in {_place(places[0])}, now in {_place(places[1])}"


def _place(name: str) -> str:
    return f"“{name}”" if name else "the workflow itself"


def _key(key: str) -> str:
    return "no name of its own" if key == ONCE else f"“{say.clip(key, words=6, chars=60)}”"
