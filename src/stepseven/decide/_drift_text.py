"""What a person reads about what moved while a run waited. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from stepseven.decide import _phrases as say
from stepseven.decide._required import fact_name
from stepseven.decide._situation import Draft, Situation, context_of, draft, known, stop
from stepseven.decide.drift import RECORD, in_record
from stepseven.decide.plan import Drifted
from stepseven.model import Option

_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*")  # a step, and no words
_MOST = 4  # changes that a text lists


def question(
    s: Situation,
    moved: Sequence[Drifted],
    *,
    notes: Sequence[str] = (),
    usd: float | None = None,
    seconds: float | None = None,
) -> Draft:
    """Something that the run built on is not so any more.

    Args:
        s: the run.
        moved: what it is, with what was built on it.
        notes: what else changed, in words.
        usd: what a refresh costs more than going on, in US dollars; ``None`` = not known.
        seconds: how much longer it takes.
    """
    client, its = say.possessive(say.who(s.client)), f"the {say.humanise(s.workflow)}"
    lines = [_line(one) for one in moved[:_MOST]]
    more = [f"And {len(moved) - _MOST} more."] if len(moved) > _MOST else []
    if len(moved) == 1:
        headline = f"{client} {name_of(moved[0])} changed while {its} waited: {arrow(moved[0])}."
        lines = [_origin(moved[0])]
    else:
        names = list(dict.fromkeys(name_of(one) for one in moved))
        headline = f"{client} {say.listing(names)} changed while {its} waited."
    built = dict.fromkeys(who for one in moved for who in one.depends)
    those = [spoken(who) for who in built]
    depend = f"Built on {'it' if len(moved) == 1 else 'this'}: {say.listing(those)}." if those else ""
    calm = "Nothing was run again, and nothing was changed."
    go = f"only what was built on {'it' if len(moved) == 1 else 'them'} is run and asked again"
    options = (
        Option(id="keep", label="go on with what I know", detail=_kept(moved)),
        Option(id="refresh", label="use what is so now", detail=go, usd=usd, seconds=seconds if (seconds or 0) >= 1 else None),
        stop(s),
    )
    told = [depend, calm, *notes]
    facts = {one.key: {"then": shown(one.old, known=_was(one)), "now": shown(one.new, known=_is(one))} for one in moved}
    context = context_of(s, nothing_changed=True, facts=facts) | {"drift": [rows(one) for one in moved]}
    first = lines if len(moved) == 1 else []
    return draft(headline, [*lines, *more], told, known(s), more=[*first, *told], options=options, context=context)


def rows(one: Drifted) -> dict[str, Any]:
    """One change as data."""
    told = asdict(one)
    return {**told, "old": say.plain(one.old), "new": say.plain(one.new), "depends": list(one.depends)}


def asked(context: Mapping[str, Any]) -> tuple[Drifted, ...]:
    """What a question was asked about, from its context."""
    return tuple(Drifted(**{**told, "depends": tuple(told["depends"])}) for told in context.get("drift", ()))


def noted(one: Drifted) -> str:
    """A change that nobody is asked about, as a sentence: the run was not built on it, or does not watch it."""
    besides = "not watched: a refresh takes it along" if in_record(one) else "not read by this run"
    return f"Also changed, and {besides}: {name_of(one)}, {arrow(one)}{_in_brackets(one)}."


def kept(one: Drifted) -> str:
    """A change about which it was decided to go on without it."""
    return f"Changed, and left as the run knows it: {name_of(one)}, {arrow(one)}{_in_brackets(one)}."


def said(by: str | None, asked: str, *, approval: bool) -> str:
    """What a person said to a question, or is still asked, as something that was built on something."""
    what = "approval" if approval else "answer"
    who = f"{say.possessive(say.clip(by, words=4, chars=40))} {what}" if by else f"the {what}"
    return f"{who} {'of' if approval else 'to'} “{say.clip(asked.split(chr(10), 1)[0], words=8, chars=60)}”"


def name_of(one: Drifted) -> str:
    """What changed: ``contact email``; the same of a field of the client record."""
    if not in_record(one):
        return fact_name(one.key)
    return "record" if one.key == RECORD else fact_name(one.key.removeprefix(f"{RECORD}."))


def arrow(one: Drifted) -> str:
    """``ann@acme.example → ben@acme.example``."""
    return f"{shown(one.old, known=_was(one))} → {shown(one.new, known=_is(one))}"


def shown(value: object, *, known: bool) -> str:
    """A value in a few words."""
    return say.shown(value) if known else "not known"


def spoken(who: str) -> str:
    """What depends on something: a step in words, with quotes."""
    return f"“{say.humanise(who)}”" if _NAME.fullmatch(who) else who


def _was(one: Drifted) -> bool:
    return one.old_version is not None or in_record(one)


def _is(one: Drifted) -> bool:
    return one.new_version is not None or in_record(one)


def _line(one: Drifted) -> str:
    return f"{_capital(name_of(one))}: {arrow(one)}{_in_brackets(one)}."


def _origin(one: Drifted) -> str:
    """Who says so, and since when, as a sentence."""
    if not _is(one):
        return f"It held until {_date(one.at_us)}."
    if in_record(one):
        return f"So it is at {_source(one)} now."
    by = f" by {say.clip(one.by, words=4, chars=40)}" if one.by else ""
    return f"It was said{by}{f' ({_source(one)})' if _source(one) else ''} on {_date(one.at_us)}."


def _in_brackets(one: Drifted) -> str:
    if not _is(one):
        return f" (it held until {_date(one.at_us)})"
    said = [x for x in (say.clip(one.by, words=4, chars=40) if one.by else "", _source(one), _date(one.at_us)) if x]
    return f" ({', '.join(said)})" if said else ""


def _source(one: Drifted) -> str:
    if one.source is None or one.source.startswith("answer to "):
        return ""
    return say.clip(one.source, words=6, chars=60)


def _date(at_us: int | None) -> str:
    return "" if at_us is None else datetime.fromtimestamp(at_us / 1e6, UTC).date().isoformat()


def _kept(moved: Sequence[Drifted]) -> str:
    what = shown(moved[0].old, known=_was(moved[0])) if len(moved) == 1 else "as it was"
    return f"{say.clip(what, words=6, chars=40)}; nothing is run again, and I do not ask about this change again"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
