"""The question about a write that changed code calls under another key: is it what was done before? Pure.

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
    found = f"Then it went by {_key(keys[0])}, now by {_key(keys[1])}; the new code has not asked for the first."
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


def _key(key: str) -> str:
    return "no name of its own" if key == ONCE else f"“{say.clip(key, words=6, chars=60)}”"
