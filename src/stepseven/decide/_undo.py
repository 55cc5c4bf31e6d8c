"""The question after a run that ended badly: what it did outside still stands; is it to be taken back? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide import _phrases as say
from stepseven.decide._situation import Draft, Situation, context_of, draft, run_name
from stepseven.model import Option

_TOLD = 4  # receipts in the text; the context holds all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One thing a run did outside.

    ``undo``: its step knows how it is taken back. ``shared``: it counts for all runs of the client (``scope="client"``).
    ``claim``: the id of its claim. ``run``: the run that did it, where that is not the one that asks.
    """

    step: str
    arguments: Mapping[str, Any]
    receipt: Any
    undo: bool
    shared: bool = False
    claim: str | None = None
    run: str | None = None


def undo(
    s: Situation,
    *,
    failed: bool,
    receipts: tuple[Receipt, ...],
    taken_back: int = 0,
    unknown: tuple[str, ...] = (),
    builders: tuple[str, ...] = (),
) -> Draft:
    """A run ended without being done, and something it did outside can be taken back.

    Args:
        s: the run.
        failed: it failed; else it was stopped.
        receipts: what still stands outside, newest first; at least one of them can be taken back.
        taken_back: how many things were taken back before.
        unknown: steps of which nobody knows whether they were done.
        builders: the ids of runs that share what stands, and have not ended badly.
    """
    can = [r for r in receipts if r.undo]
    cannot = [r for r in receipts if not r.undo]
    name = run_name(s)
    ended = f"{name} {'failed' if failed else 'was stopped'}"
    headline = f"{ended}, and {_things(len(receipts))} it did outside still {'stands' if len(receipts) == 1 else 'stand'}."
    listed = [say.sentence(f"I {_did(r)}") for r in receipts[:_TOLD]]
    if len(receipts) > _TOLD:
        listed.append(f"… and {len(receipts) - _TOLD} more.")
    never = f"I cannot take back: {say.listing(_counted(cannot))}." if cannot else ""
    whole = [
        f"{_capital(_things(taken_back))} {'was' if taken_back == 1 else 'were'} taken back before." if taken_back else "",
        f"I do not know whether {say.listing([f'“{say.humanise(n)}”' for n in dict.fromkeys(unknown)])} went through."
        if unknown else "",
        _builders(builders),
    ]  # fmt: skip
    shared = _shared(s, can)
    calm = "Nothing is taken back unless you say so."
    context = context_of(s, nothing_changed=False, facts=_facts(receipts)) | {
        "stands": [
            {
                "step": r.step, "arguments": say.plain(dict(r.arguments)), "receipt": say.plain(r.receipt), "undo": r.undo,
                "claim": r.claim, "run": r.run,
            }
            for r in receipts
        ],
        "builders": list(builders),
    }  # fmt: skip
    more = [never, *whole, shared, calm]
    return draft(headline, [never, *whole, calm], listed, [shared], more=more, options=_options(can, cannot), context=context)


def _options(can: Sequence[Receipt], cannot: Sequence[Receipt]) -> tuple[Option, ...]:
    n = len(can)
    label = "take it back" if n == 1 and not cannot else f"take back the {'one' if n == 1 else n} that can be"
    if n > 1 and not cannot:
        label = "take both back" if n == 2 else f"take all {n} back"  # noqa: PLR2004 - both
    detail = "by a run of its own" if n == 1 else "by a run of its own, the newest first"
    return (
        Option(id="undo", label=label, detail=detail),
        Option(id="leave", label="leave it as it is", detail="nothing is done"),
    )


def _things(n: int) -> str:
    return "one thing" if n == 1 else f"{n} things"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _did(r: Receipt) -> str:
    """``created document (acme, Q3): D-17``; what another run did names it."""
    told = about(r.arguments)
    what = say.shown(r.receipt) if r.receipt not in (None, {}, []) else ""
    where = f", in run {r.run}" if r.run else ""
    return say.did(r.step, None) + (f" ({told})" if told else "") + (f": {what}" if what else "") + where


def about(arguments: Mapping[str, Any]) -> str:
    """The arguments of a step in a few words: those that are one short value."""
    plain = [say.shown(v) for v in arguments.values() if isinstance(v, str | int | float) and not isinstance(v, bool)]
    return say.clip(", ".join(plain[:3]), words=6, chars=48)


def _counted(receipts: Sequence[Receipt]) -> list[str]:
    """``“send mail”``, ``“post line” (3 times)``: each step once."""
    counts = Counter(r.step for r in receipts)
    return [f"“{say.humanise(step)}”" + (f" ({say.times(n)})" if n > 1 else "") for step, n in counts.items()]


def _shared(s: Situation, can: Sequence[Receipt]) -> str:
    names = list(dict.fromkeys(f"“{say.humanise(r.step)}”" for r in can if r.shared))
    if not names:
        return ""
    counts = "counts" if len(names) == 1 else "count"
    return (
        f"{_capital(say.listing(names))} {counts} for all of {say.possessive(say.who(s.client))} runs: another may build on it."
    )


def _builders(ids: Sequence[str]) -> str:
    if not ids:
        return ""
    subject = f"Run {ids[0]} shares" if len(ids) == 1 else f"Runs {say.listing(ids)} share"
    return f"{subject} what stands and may build on it."


def _facts(receipts: Sequence[Receipt]) -> dict[str, Any]:
    """What stands, each under a name of its own, for pages and terminals."""
    facts: dict[str, Any] = {}
    for r in receipts:
        told = about(r.arguments)
        name = base = say.humanise(r.step) + (f" ({told})" if told else "") + (f", run {r.run}" if r.run else "")
        n = 1
        while name in facts:
            n += 1
            name = f"{base} {n}"
        facts[name] = say.plain(r.receipt) if r.receipt is not None else "done"
    return facts
