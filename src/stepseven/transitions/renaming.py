"""What a person may say about steps that got other names: checked against the pairs the question was about."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from stepseven.decide import changes
from stepseven.errors import InvalidAnswer
from stepseven.model import QuestionKind
from stepseven.store.base import Row


def mapped(row: Row, given: Mapping[str, Any], now_us: int) -> dict[str, Any]:
    """Which new step each one that is gone is: as it was proposed, but for what ``to`` corrects.

    Returns:
        Nothing, if it is as proposed; else all of them by name, ``None`` where there is none.

    Raises:
        InvalidAnswer: a name that is not there, or one new step for two that are gone.
    """
    del now_us
    if "to" not in given:
        return {}
    lines = {line["old"]: line for line in json.loads(row["context"]).get("code") or ()}
    to = given["to"]
    if isinstance(to, str) and len(lines) == 1:
        to = dict.fromkeys(lines, to)
    if not isinstance(to, Mapping):
        example = {changes.shown(name): changes.shown(line["to"] or "") or None for name, line in lines.items()}
        raise InvalidAnswer(row["id"], f"to takes the new name of each: {json.dumps(example)} (null: none of them)")
    strange = next((name for name in to if _marked(name, lines) not in lines), None)
    if strange is not None:
        raise InvalidAnswer(row["id"], f"{strange!r} is not gone; there is {_listed(lines)}")
    said_ = {_marked(name, lines): now for name, now in to.items()}
    whole = {name: said_.get(name, line["to"]) for name, line in lines.items()}
    for name, line in lines.items():
        could = [n for n in (line["to"], *line["others"]) if n is not None]
        whole[name] = now = _marked(whole[name], could)
        if now is not None and now not in could:
            raise InvalidAnswer(row["id"], f"{now!r} cannot be {changes.shown(name)}; there is {_listed(could)}, or null")
    named = [now for now in whole.values() if now is not None]
    twice = next((now for now in named if named.count(now) > 1), None)
    if twice is not None:
        raise InvalidAnswer(row["id"], f"{changes.shown(twice)} can be one of them only: give null for the others")
    return {} if whole == {name: line["to"] for name, line in lines.items()} else {"to": whole}


def _marked(name: Any, names: Collection[str]) -> Any:
    """A name as it is kept: people give what is mapped or started without the mark."""
    marked = (f"{mark}{name}" for mark in (changes.MAP, changes.START))
    return name if name in names else next((each for each in marked if each in names), name)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(changes.shown(name) for name in names)


def said(questions: Mapping[tuple[str, str, str], list[Row]]) -> changes.Said:
    """What people have said in a run about steps that are gone.

    Args:
        questions: the run's, as they are loaded.
    """
    rows = questions.get(("", QuestionKind.CODE.value, QuestionKind.CODE.value))
    if not rows:
        return changes.Said()
    answered = [row for row in rows if row["status"] == "answered"]
    return changes.all_said((json.loads(row["context"]).get("code"), json.loads(row["answer"])) for row in answered)
