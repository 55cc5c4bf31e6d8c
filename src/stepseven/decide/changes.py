"""What a changed workflow has to do with a run that its older code began: steps that are gone, new, renamed. Pure.

A step is known by its name: one that got another name, without a word in the code, looks like two: one that is gone, and a new
one that was never done. A person says whether they are the same (question ``code``), and ``together`` makes of all that was said
so which names stand for one step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide import _phrases as say

MAP = "run.map/"  # before the name of what is mapped, so that a function is not taken for a step of the same name
STEP = ""
START = "run.start/"  # and before that of a workflow whose runs it starts
ALIKE = 0.6  # of difflib's ratio: what its documentation calls a close match; pull_tickets and fetch_tickets have 0.72


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A step that the run has something on record of, a map (what is in its items), or a workflow that it has started.

    Attributes:
        name: its name then; of a map ``MAP`` and what its items are named after; of a workflow ``START`` and its name.
        count: how many of its calls are done; of a map, how many items have begun; of a workflow, how many runs.
        writes: it changes something outside.
        inside: what its code called (its own, that of a map's items or of runs) did something that a new name would do again.
        usd: what it has cost, in US dollars; 0: nothing, or nobody knows.
        arguments: the names of what it was called with; ``None``: not kept.
        told: in a few words what is there: a summary, a receipt.
        given: of a step that was not reached: what a person chose about it, and who, in words.
        doubt: it was begun, and nobody knows whether it was done; of a workflow: one of its runs has not ended.
    """

    name: str
    count: int = 1
    writes: bool = False
    usd: float = 0.0
    arguments: frozenset[str] | None = None
    told: str = ""
    doubt: bool = False
    inside: bool = False
    given: str | None = None

    @property
    def acts(self) -> bool:
        """Whether it must not just run under another name: something would be there twice, or a person does not want it."""
        return self.writes or self.inside or self.given is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A step that the source calls, or something that it maps.

    Attributes:
        name: its name now; of a map as in ``Kept``.
        writes: it changes something outside.
        arguments: the names of what identifies its calls; ``None``: not known here.
        renamed_from: the names it had before, as declared.
        cannot_read: names of steps on record whose results are not of its type.
        usd: declared for one try, in US dollars.
    """

    name: str
    writes: bool = False
    arguments: frozenset[str] | None = None
    renamed_from: tuple[str, ...] = ()
    cannot_read: frozenset[str] = frozenset()
    usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a workflow's code calls, as far as it can be read.

    Attributes:
        steps: those the workflow calls, and those that its steps call; and what it maps.
        unseen: it calls something that cannot be read, so that a step that is not among these may still be called.
    """

    steps: tuple[Known, ...] = ()
    unseen: bool = False

    def names(self) -> frozenset[str]:
        """The names of the steps."""
        return frozenset(k.name for k in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A step that is gone, and the new ones it could be.

    Attributes:
        old: the one on record.
        to: the likeliest; ``None``: that one is likelier another step's.
        others: the rest, the likelier first.
        usd: declared for one try of *to*.
    """

    old: Kept
    to: str | None
    others: tuple[str, ...] = ()
    usd: float | None = None

    def line(self) -> dict[str, Any]:
        """As it is kept with the question."""
        return {"old": self.old.name, "to": self.to, "others": list(self.others), "writes": self.old.acts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is different.

    Attributes:
        changed: it is known that the source is another one than when the run was last executed.
        new: steps that the older code did not have ahead, and nothing is on record of.
        gone: steps on record that the source does not call any more, under whatever name.
        renamed: (before, now), of those on record, as declared in the code.
        said: (before, now), of those on record, as a person said.
        pairs: what a person is to be asked about.
        unseen: the source calls what cannot be read: those that are gone may still be called.
    """

    changed: bool = False
    new: tuple[str, ...] = ()
    gone: tuple[Kept, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    said: tuple[tuple[str, str], ...] = ()
    pairs: tuple[Pair, ...] = ()
    unseen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What people have said about steps that are gone.

    Attributes:
        same: (before, now) that are one step.
        other: (before, now) that are not.
    """

    same: tuple[tuple[str, str], ...] = ()
    other: frozenset[tuple[str, str]] = frozenset()


# -- comparing ----------------------------------------------------------------------------------------------------------------


def compare(
    kept: Sequence[Kept],
    source: Source,
    *,
    said: Said | None = None,
    changed: bool,
    ahead: Collection[str] | None = None,
) -> Changes:
    """What is different, and what of it only a person can tell.

    Args:
        kept: the steps on record.
        source: what the code calls.
        said: what people have said before.
        changed: the source may be another one than when the run was last executed. If it certainly is not, only a write is
            looked at: the run may have been put away by the new code before anybody looked, and doing it twice is the worst.
        ahead: the steps that the older code had ahead when the run was put away: they are not new. ``None``: not known.
    """
    said = said or Said()
    names, groups = source.names(), together(said.same)
    heirs = {old: k.name for k in source.steps for old in k.renamed_from}
    gone: list[Kept] = []
    renamed: list[tuple[str, str]] = []
    by_word: list[tuple[str, str]] = []
    for one in kept:
        if one.name in names:
            continue
        group = groups.get(one.name, (one.name,))
        declared = next((heirs[n] for n in group if n in heirs), None)
        mapped = next((n for n in group if n in names), None)
        if declared is not None or mapped is not None:
            if one.given is None:  # else nothing is on record of it
                (renamed if declared is not None else by_word).append((one.name, declared or mapped or ""))
        else:
            gone.append(one)
    before = {k.name for k in kept}
    fresh = [k for k in source.steps if not before & {k.name, *k.renamed_from, *groups.get(k.name, ())}]
    if changed:
        fresh = [k for k in fresh if ahead is None or k.name not in ahead]
    # A run that only read is started anew: what could be asked about it is not worth a person's time.
    asked = [one for one in gone if kind(one.name) != START or one.acts]
    pairs = () if source.unseen else _pairs(asked, fresh, said.other, changed=changed)
    return Changes(
        changed=changed, new=tuple(k.name for k in fresh if kind(k.name) == STEP) if changed and ahead is not None else (),
        gone=tuple(gone),
        renamed=tuple(renamed), said=tuple(by_word), pairs=pairs, unseen=source.unseen and bool(gone),
    )  # fmt: skip


def _pairs(gone: Sequence[Kept], fresh: Sequence[Known], other: frozenset[tuple[str, str]], *, changed: bool) -> tuple[Pair, ...]:
    """Each step that is gone with the new ones it could be; no new one is proposed for two."""
    found = {
        old.name: sorted(
            (k for k in fresh if (old.name, k.name) not in other and _could_be(old, k, changed=changed)),
            key=lambda k: (-_likeness(old, k), k.name),
        )
        for old in gone
    }
    unlike = [old for old in gone if not old.acts and not _alone(old, found, gone)]
    for old in unlike:  # a read under quite another name is taken for the same only where there is no choice
        found[old.name] = [k for k in found[old.name] if _ratio(old.name, k.name) >= ALIKE]
    ranked = sorted((-_likeness(old, k), old.name, k.name) for old in gone for k in found[old.name])
    best: dict[str, str] = {}
    for _, name, to in ranked:
        if name not in best and to not in best.values():
            best[name] = to
    return tuple(_pair(old, best.get(old.name), found[old.name]) for old in gone if found[old.name])


def _pair(old: Kept, to: str | None, could: Sequence[Known]) -> Pair:
    usd = next((k.usd for k in could if k.name == to), None)
    return Pair(old=old, to=to, others=tuple(k.name for k in could if k.name != to), usd=usd)


def _could_be(old: Kept, new: Known, *, changed: bool) -> bool:
    """Whether a new step could be one that is gone. Of a write that is the careful guess; of a read the useful one.

    A read is found by its inputs: with other arguments it runs anyway, and a result that the new one cannot read is no use to it.
    """
    if kind(old.name) == kind(new.name) and old.given is not None:  # nobody knows any more what it was
        return changed or _ratio(old.name, new.name) >= ALIKE
    if old.writes != new.writes or kind(old.name) != kind(new.name):
        return False
    same = old.arguments is None or new.arguments is None or old.arguments == new.arguments
    if not changed:
        return old.acts and same and _ratio(old.name, new.name) >= ALIKE
    return old.writes or (same and (old.inside or old.name not in new.cannot_read))


def _alone(old: Kept, found: Mapping[str, Sequence[Known]], gone: Sequence[Kept]) -> bool:
    """Whether a step that is gone, and the one it could be, are the only pair of reads."""
    here = found[old.name]
    return len(here) == 1 and not any(here[0] in found[g.name] for g in gone if g.name != old.name and not g.acts)


def _likeness(old: Kept, new: Known) -> float:
    arguments = old.arguments is not None and old.arguments == new.arguments
    return _ratio(old.name, new.name) + (0.5 if arguments else 0) - (0.25 if old.name in new.cannot_read else 0)


def _ratio(a: str, b: str) -> float:
    return SequenceMatcher(None, shown(a).lower(), shown(b).lower(), autojunk=False).ratio()


def is_map(name: str) -> bool:
    """Whether it is the name of something that is mapped, and of no step."""
    return name.startswith(MAP)


def kind(name: str) -> str:
    """Of what it is the name: ``MAP``, ``START``, or ``STEP``."""
    return next((each for each in (MAP, START) if name.startswith(each)), STEP)


def shown(name: str) -> str:
    """A name as it stands in the code."""
    return name.removeprefix(MAP).removeprefix(START)


# -- what was said ------------------------------------------------------------------------------------------------------------


def together(same: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Name → all names of that step, the oldest first, from what was said two by two."""
    groups: dict[str, list[str]] = {}
    for before, now in same:
        mine = groups.get(before) or [before]
        other = groups.get(now) or [now]
        if mine is not other:
            mine += [name for name in other if name not in mine]
        for name in mine:
            groups[name] = mine
    return {name: tuple(group) for name, group in groups.items()}


def earlier(same: Iterable[tuple[str, str]], names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Step → the other names its calls may be on record under.

    Args:
        same: what people said is one step.
        names: what the source calls: a name that is a step of its own again is nobody else's.
    """
    made = {}
    for name, group in together(same).items():
        others = tuple(n for n in group if n != name and n not in names)
        if others:
            made[name] = others
    return made


def said_by(lines: Any, answer: Any) -> dict[str, str | None]:
    """What an answer to a question ``code`` says: step that is gone → the one it is now; ``None``: it is none of them.

    Args:
        lines: the pairs as they are kept with the question.
        answer: what is stored: ``map``, ``run``, or ``{"choice": "map", "to": …}`` with a name, or a name for each.
    """
    chosen = answer.get("choice") if isinstance(answer, Mapping) else answer
    to = answer.get("to") if isinstance(answer, Mapping) else None
    rows = [row for row in lines if isinstance(row, Mapping)] if isinstance(lines, list) else []
    if chosen != "map":
        return {row["old"]: None for row in rows}
    if isinstance(to, Mapping):
        return {row["old"]: to.get(row["old"]) for row in rows}
    return {row["old"]: to if isinstance(to, str) else row["to"] for row in rows}


def all_said(answered: Iterable[tuple[Any, Any]]) -> Said:
    """What all answers say together. *answered*: the pairs kept with each question and its answer, in the order answered."""
    same: list[tuple[str, str]] = []
    other: set[tuple[str, str]] = set()
    for lines, answer in answered:
        for old, now in said_by(lines, answer).items():
            offered = [c for row in lines if row["old"] == old for c in (row["to"], *row["others"]) if c is not None]
            other |= {(old, c) for c in offered if c != now}
            if now is not None:
                same.append((old, now))
    return Said(same=tuple(same), other=frozenset(other - set(same)))


# -- in words -----------------------------------------------------------------------------------------------------------------


def sentences(c: Changes) -> tuple[str, ...]:
    """What is worth knowing of the changes, and needs nobody."""
    told = [f"“{now}” is called “{before}” on record, and goes on with that." for before, now in c.renamed]
    told += [f"“{shown(now)}” goes on with the record of “{shown(before)}”, as a person said." for before, now in c.said]
    asked = {p.old.name for p in c.pairs}
    left = [k for k in c.gone if k.name not in asked and kind(k.name) == STEP]  # of a map's items their own steps tell
    told += [_runs_left(k) for k in c.gone if k.name not in asked and kind(k.name) == START]
    if c.unseen and left:
        names = say.listing([f"“{k.name}”" for k in left])
        told.append(f"I do not see {names} in the code any more; it may still be called where I cannot read it.")
    else:
        told += [_left(k) for k in left if k.writes]
        told += [f"“{k.name}” ({k.given}) has not run; the code no longer has it." for k in left if k.given is not None]
        left = [k for k in left if k.given is None]
        told += [f"“{k.name}” was begun; the code no longer has it." for k in left if not k.writes and not k.count]
        reads = [f"“{k.name}”" for k in left if not k.writes and k.count]
        told += [f"Not in the code any more: {say.listing(reads)}. What it gave is kept, and not used."] if reads else []
    new = [f"“{n}”" for n in c.new if n not in {n for p in c.pairs for n in (p.to, *p.others)}]
    told += [f"New in the code: {say.listing(new)}."] if new else []
    if not c.changed or told or c.pairs:
        return tuple(told)
    return ("The code changed since it was last executed; its steps are the same.",)


def _runs_left(k: Kept) -> str:
    name = f"“{shown(k.name)}”"
    if not k.acts:
        return f"{name} only read; the code no longer starts it, and what it gave is not used."
    what = "has not ended; it is stopped when this run ends" if k.doubt else "did something outside. Nothing is taken back"
    return f"{name} {what}; the code no longer starts it." if k.doubt else f"The code no longer starts {name}, which {what}."


def _left(k: Kept) -> str:
    if k.doubt:
        return f"“{k.name}” was begun, and it is not known whether it was done; the code no longer has it."
    what = f" ({k.told})" if k.told else ""
    return f"“{k.name}” did something outside{what}; the code no longer has it. Nothing is taken back."
