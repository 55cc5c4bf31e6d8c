"""The checkpoint as text for a prompt: the most important first, never over its budget.

Tokens are estimated without a tokenizer, line by line: three ASCII characters (the line break among them) make one, every
other character is one, beyond U+FFFF two; each line is rounded up. English prose has about four characters a token, ids,
numbers and JSON about three, so this is rather too much than too little. It is an estimate: another model counts otherwise.

What is told is a list of parts in a fixed order of importance, and a larger budget takes more of that list, never others:
so more tokens never tell less.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.errors import readable
from stepseven.model import Decision, FactChange, Previous

_SHORT = 160  # characters of an item at first; the rest of it comes after everything else was told
_LONG = 2000
_FIRST = 3  # items of each section that are told before any section tells more
_LEAST = 12  # characters: less of an item says nothing
_MARK = "…"

#: The sections in the order in which they stand in the text, the most important first.
_TITLES = (
    "", "Asked, and not answered yet", "Decided by people", "Failed, not to be repeated as it was", "Done", "Next",
    "Known about the client", "The run before", "Since the run before",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Part:
    """One more thing to tell: item *n* of a section, as far as *text*."""

    section: int
    n: int
    text: str


def tokens(text: str) -> int:
    """How many tokens *text* takes at most, by the rule of this module: an estimate.

    Returns:
        0 for the empty text; each line (with its line break) rounded up to whole tokens.
    """
    return sum(_line_tokens(line) for line in text.splitlines(keepends=True))


def brief(document: Mapping[str, Any], previous: Previous | None, max_tokens: int) -> str:
    """What a run knows, as text for a prompt.

    Args:
        document: its checkpoint.
        previous: the run before it, if there was one.
        max_tokens: how many tokens it may take, as ``tokens`` counts them.

    Returns:
        Plain text. What did not fit is counted at the end of its section, or after the last one; ``…`` marks a cut.

    Raises:
        ValueError: *max_tokens* is less than 1.
    """
    if max_tokens < 1:
        raise ValueError(f"brief: max_tokens={max_tokens}: at least 1")
    sections = [list(map(_one_line, items)) for items in _sections(document, previous)]
    parts = _in_order(sections)
    counts = [len(items) for items in sections]

    def fits(told: Sequence[_Part]) -> bool:
        return tokens(_text(told, counts)) <= max_tokens

    if fits(parts):  # the usual case
        return _text(parts, counts)
    k = max((n for n, cost in enumerate(_costs(parts, counts)) if cost <= max_tokens and n < len(parts)), default=None)
    if k is None:
        return _MARK
    return _text([*parts[:k], *_beginning(parts[:k], parts[k], fits)], counts)


def _costs(parts: Sequence[_Part], counts: Sequence[int]) -> Iterator[int]:
    """What telling the first 0, 1, 2 … parts takes (at most). It may fall: one more told may take a longer mark away."""
    lines: list[dict[int, int]] = [{} for _ in counts]
    blocks = [0] * len(counts)

    def left(missing: int) -> int:
        return tokens(_left_out(missing) + "\n") + 1 if missing else 0

    missing = sum(counts)
    yield left(missing)
    for part in parts:
        mine = lines[part.section]
        if not mine:
            missing -= counts[part.section]
        mine[part.n] = tokens(f"- {part.text}\n")
        title = tokens(f"{_TITLES[part.section]}:\n") + 1
        more = counts[part.section] - len(mine)
        blocks[part.section] = title + sum(mine.values()) + (tokens(_more(more) + "\n") if more else 0)
        yield sum(blocks) + left(missing)


def _beginning(told: list[_Part], part: _Part, fits: Callable[[Sequence[_Part]], bool]) -> list[_Part]:
    """As much of the first part that does not fit as does, or nothing."""
    shown = max((len(p.text) for p in told if (p.section, p.n) == (part.section, part.n)), default=0)

    def cut(n: int) -> _Part:
        return _Part(part.section, part.n, part.text[:n].rstrip() + _MARK)

    low, high = max(shown, _LEAST), len(part.text)
    if high <= low or not fits([*told, cut(low)]):
        return []
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits([*told, cut(middle)]) else (low, middle)
    return [cut(low)]


def _in_order(sections: Sequence[Sequence[str]]) -> list[_Part]:
    """Everything there is to tell, by importance: the first items of each section, the other ones, then long ones whole."""
    items = [(s, n, text) for s, section in enumerate(sections) for n, text in enumerate(section)]
    first = [_Part(s, n, _clipped(text, _SHORT)) for s, n, text in items if n < _FIRST]
    more = [_Part(s, n, _clipped(text, _SHORT)) for s, n, text in items if n >= _FIRST]
    whole = [_Part(s, n, _clipped(text, _LONG)) for s, n, text in items if len(text) > _SHORT]
    return [*first, *more, *whole]


def _text(told: Sequence[_Part], counts: Sequence[int]) -> str:
    """The told parts as they are read, with a mark for what is not told."""
    shown: dict[int, dict[int, str]] = {}
    for part in told:
        shown.setdefault(part.section, {})[part.n] = part.text
    blocks = []
    left = 0
    for s, count in enumerate(counts):
        items = shown.get(s, {})
        missing = count - len(items)
        if not items:
            left += missing
            continue
        lines = [items[n] if s == 0 else f"- {items[n]}" for n in sorted(items)]
        if missing:
            lines.append(_more(missing))
        blocks.append("\n".join([f"{_TITLES[s]}:", *lines] if s else lines))
    if left:
        blocks.append(_left_out(left))
    return "\n\n".join(blocks)


def _more(missing: int) -> str:
    return f"{_MARK} {missing} more"


def _left_out(missing: int) -> str:
    return f"{_MARK} {missing} more in sections left out"


# -- what there is to tell -----------------------------------------------------------------------------------------------


def _sections(document: Mapping[str, Any], previous: Previous | None) -> Iterator[Iterator[str]]:
    yield _purpose(document)
    yield (q["text"] for q in _items(document, "open_questions"))
    yield (_decided(q["text"], q["answer"], q["by"]) for q in _items(document, "decisions"))
    yield map(_failed, reversed(_items(document, "failures")))
    yield _done(document)
    yield _next(document)
    facts = document.get("facts") or {}
    yield (f"{key}: {_plain(known.get('value'))}" for key, known in facts.items() if isinstance(known, Mapping))
    yield _before(previous) if previous is not None else iter(())
    yield _since(previous) if previous is not None else iter(())


def _purpose(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"Run {document['run_id']} of {document['workflow']} for {document['client_id']}"
    if document.get("goal"):
        yield f"Goal: {document['goal']}"
    yield from (f"{name} = {_plain(given)}" for name, given in (document.get("inputs") or {}).items())


def _failed(row: Mapping[str, Any]) -> str:
    tried = ", ".join(dict.fromkeys(row.get("approaches") or ()))
    step = "the workflow's own code" if row["step"] == "run.body" else row["step"]
    return f"{step}{f' ({tried})' if tried else ''}: {row.get('reason') or row.get('kind')}"


def _done(document: Mapping[str, Any]) -> Iterator[str]:
    artifacts = document.get("artifacts") or {}
    complete = [name for name in document.get("steps_complete") or () if name != _MARK]
    begun = [name for name, made in artifacts.items() if name not in complete and isinstance(made, Mapping) and made.get("done")]
    for name in (*reversed(complete), *begun):
        made = artifacts.get(name)
        yield f"{name}: {_made(made)}" if isinstance(made, Mapping) and _made(made) else name


def _made(made: Mapping[str, Any]) -> str:
    if "done" not in made:
        return str(made.get("summary") or "")
    count = f"{made['done']} of {made['of']}" if made.get("of") is not None else f"{made['done']} times"
    return f"{count}, the latest {made['latest']}" if made.get("latest") else count


def _next(document: Mapping[str, Any]) -> Iterator[str]:
    following = [document.get("next_step"), *(document.get("remaining") or ())]
    return (name for name in dict.fromkeys(following) if name)


def _before(previous: Previous) -> Iterator[str]:
    yield f"{previous.run_id} ended {_day(previous.ended_us)}"
    if previous.value is not None:
        yield f"its result: {_plain(previous.value)}"
    yield from (_decision(d) for d in previous.decisions)
    yield from (f"failed there: {f.step or 'its own code'} ({f.approach or 'as written'}): {f.reason}" for f in previous.failures)
    yield from (f"{name}: {text}" for name, text in previous.summaries.items())


def _since(previous: Previous) -> Iterator[str]:
    yield from map(_changed, previous.changed.facts)
    yield from (f"{_decision(d)}, in run {d.run_id}" for d in previous.changed.decisions)
    yield from (f"run {r.run_id} of {r.workflow}: {r.status.value}" for r in previous.changed.runs)


def _changed(change: FactChange) -> str:
    was = f"was {_plain(change.old)}, is now" if change.old_version is not None else "is known now:"
    return f"{change.key} {was} {_plain(change.new)} ({change.source or 'no source'}, {_day(change.set_us)})"


def _decision(decision: Decision) -> str:
    return _decided(decision.text, decision.answer, decision.by, decision.note)


def _decided(text: str, answer: Any, by: str | None, note: str | None = None) -> str:
    who = f" ({by})" if by else ""
    return f"{_clipped(_first_line(text), _SHORT // 2)} -> {_plain(readable(answer))}{who}{f', note: {note}' if note else ''}"


def _items(document: Mapping[str, Any], section: str) -> list[Mapping[str, Any]]:
    """The entries of a section, without the mark that the checkpoint itself was cut there."""
    return [item for item in document.get(section) or () if isinstance(item, Mapping)]


# -- texts ---------------------------------------------------------------------------------------------------------------


def _line_tokens(line: str) -> int:
    if line.isascii():
        return -(-len(line) // 3)
    others = [c for c in line if c >= "\x80"]
    return -(-(len(line) - len(others)) // 3) + sum(2 if c > "\uffff" else 1 for c in others)


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _one_line(text: str) -> str:
    """No item can look like a section: what was said stays on its line."""
    return " ".join(text.split())


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + _MARK


def _day(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).date().isoformat()
