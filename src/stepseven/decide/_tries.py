"""How a step was tried, in words, and what a person can choose after it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from stepseven.decide import _phrases as say
from stepseven.decide._situation import LONGEST_REASON, Alternative, Tried
from stepseven.model import Option

AS_WRITTEN = "as written"
_SHOWN = 4
_RESULTS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "Decimal": "a number",
    "bool": "yes or no",
    "list": "a list",
}


def told(tried: Sequence[Tried], resource: str | None) -> str:
    """Every way it was tried, with its error; tries that went the same way are told as one."""
    groups = _groups(tried, resource)
    if not groups:
        return "I have not tried it yet."
    alone = all(label == AS_WRITTEN for label, *_ in groups)
    sentences = []
    for label, reason, outcome, n, _ in groups[:_SHOWN]:
        start = "" if alone else "As written, " if label == AS_WRITTEN else f"With {label}, "
        sentences.append(say.sentence(f"{start}{reason} ({_how(outcome, n)})"))
    if len(groups) > _SHOWN:
        sentences.append(f"{len(groups) - _SHOWN} more ways failed too.")
    return " ".join(sentences)


def rows(tried: Sequence[Tried], resource: str | None) -> list[dict[str, Any]]:
    """The same for ``context``: one entry per way and error, with the time of the last."""
    keys = ("approach", "reason", "outcome", "tries", "at_us")
    return [dict(zip(keys, group, strict=True)) for group in _groups(tried, resource, words=600, chars=LONGEST_REASON)]


def reason(text: str, resource: str | None) -> str:
    """A failure's reason with the system it came from."""
    return say.from_resource(say.reason_of(text, words=600, chars=LONGEST_REASON), resource)


def by_reason(failed: Sequence[tuple[str, str]], resource: str | None) -> list[str]:
    """Failed items as sentences, those with one reason together."""
    groups: dict[str, list[str]] = {}
    for item, reason in failed:
        groups.setdefault(say.from_resource(say.reason_of(reason), resource), []).append(say.clip(item, words=5, chars=40))
    said = [say.sentence(f"{say.listing(items)}: {reason}") for reason, items in list(groups.items())[: _SHOWN - 1]]
    rest = sum(len(items) for items in list(groups.values())[_SHOWN - 1 :])
    return [*said, f"{rest} more failed in other ways."] if rest else said


def approaches(alternatives: Sequence[Alternative], tried: Sequence[Tried]) -> list[Option]:
    """A choice per other approach; one that was tried says what came of it."""
    before = {_label(t.approach): say.reason_of(t.reason, words=8, chars=60) for t in tried}
    options = {}
    for a in alternatives:
        label = _label(a.label)
        detail = f"was tried: {before[label]}" if label in before else "continues at once"
        options[a.label] = Option(
            id=f"approach:{a.label}", label=f"use {label} instead", detail=detail, usd=a.usd, seconds=a.seconds
        )
    return list(options.values())


def recommended(alternatives: Sequence[Alternative], tried: Sequence[Tried]) -> str | None:
    """The first approach nobody tried; else waiting, for what goes away by itself; else nothing, which beats a guess."""
    used = {_label(t.approach) for t in tried}
    untried = next((a for a in alternatives if _label(a.label) not in used), None)
    if untried is not None:
        return f"approach:{untried.label}"
    if tried and (tried[-1].outcome == "deferred" or say.passing(say.reason_of(tried[-1].reason))):
        return "wait"
    return None


def named(step: str, subject: str | None) -> str:
    """The thing that failed: the subject, else the step."""
    return say.clip(subject, words=5, chars=40) if subject else f"“{say.humanise(step)}”"


def value(step: str, result_type: str | None, *, writes: bool) -> str:
    """What giving the value means, and in which form."""
    form = _RESULTS.get((result_type or "").split("[", 1)[0])
    if form is None:
        form = f"as {say.clip(result_type, words=4, chars=40)}" if result_type else "as the step would return it"
    return f"give it ({form}); " + (f"nothing is {say.participle(step)}" if writes else "continues at once")


def skipped(step: str, *, writes: bool) -> str:
    """What skipping means."""
    return f"nothing is {say.participle(step)} for it; the run goes on" if writes else "the run goes on without its result"


def by_hand(step: str) -> Option:
    """A person does the write and says so."""
    done = say.participle(step)
    detail = f"{done} by you: give the receipt (its number or link); I do not repeat it"
    return Option(id="by_hand", label="do it by hand", detail=detail)


def rerun(step: str) -> Option:
    """Go back to an earlier step."""
    detail = "its result is made anew, and what was built on it"
    return Option(id=f"rerun:{step}", label=f"run “{say.humanise(step)}” again", detail=detail)


def _label(approach: str) -> str:
    return say.clip(approach, words=8, chars=60) or AS_WRITTEN


def _how(outcome: str, n: int) -> str:
    if outcome == "deferred":
        return f"put off {say.times(n)}"
    if outcome == "interrupted":
        return f"broke off midway {say.times(n)}"
    doubt = "; I do not know whether it was done" if outcome == "unknown" else ""
    return f"tried {say.times(n)}{doubt}"


def _groups(
    tried: Sequence[Tried],
    resource: str | None,
    *,
    words: int = 16,
    chars: int = 110,
) -> list[tuple[str, str, str, int, int | None]]:
    """Tries that went the same way as one: approach, reason with its system, outcome, how many, when last."""
    count: Counter[tuple[str, str, str]] = Counter()
    last: dict[tuple[str, str, str], int | None] = {}
    for t in tried:
        label, reason = _label(t.approach), say.reason_of(t.reason, words=words, chars=chars)
        # another approach may well use another system: only the first way is known to have met this one
        group = (label, say.from_resource(reason, resource) if label == AS_WRITTEN else reason, t.outcome)
        count[group] += 1
        last[group] = t.at_us
    return [(*group, n, last[group]) for group, n in count.items()]
