"""What somebody filled in, as an answer: the same forms as over HTTP and on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from stepseven.decide.policy import ANSWERS
from stepseven.errors import InvalidAnswer
from stepseven.store.base import Row
from stepseven.transitions.fitting import mismatch, typed
from stepseven.transitions.questions import limit_unit

_HOURS = {"1h": 1, "4h": 4, "1d": 24, "7d": 168}


def answer_of(row: Row, fields: Mapping[str, str], now_us: int) -> Any:
    """The answer that a form says.

    Args:
        row: the question.
        fields: the form: ``choice``, or ``answer`` where there are none; and what goes with the choice.
        now_us: times are counted from it.

    Raises:
        InvalidAnswer: what is needed is missing, or cannot be read.
    """
    options = [o["id"] for o in json.loads(row["options"])]
    if not options:
        return _free(row, fields.get("answer", ""), named="answer" in fields)
    choice = fields.get("choice", "")
    if row["kind"] == "ask" or choice not in _WITH:
        return choice
    return _WITH[choice](row, choice, fields, now_us)


def _free(row: Row, text: str, *, named: bool) -> Any:
    schema = json.loads(row["schema"]) if row["schema"] is not None else {"type": "string"}
    if not named or not text.strip():
        raise InvalidAnswer(row["id"], "an empty text answers nothing: write the answer")
    return text if schema.get("type") == "string" else typed(row["schema"], text)


def _wait(row: Row, choice: str, fields: Mapping[str, str], now_us: int) -> Any:
    until, fact = fields.get("until", "").strip(), fields.get("fact", "").strip()
    if fact:  # it was written: whatever the list beside it says
        return {"choice": choice, "fact": fact}
    if until == "fact":
        raise InvalidAnswer(row["id"], "say which fact it waits for")
    if until in _HOURS:
        moment = datetime.fromtimestamp(now_us / 1e6, UTC) + timedelta(hours=_HOURS[until])
        return {"choice": choice, "until": moment.isoformat()}
    if until == "time":
        until = fields.get("time", "").strip()
    if not until:
        raise InvalidAnswer(row["id"], "say until when, or until which fact is known")
    return {"choice": choice, "until": ANSWERS if until == ANSWERS else until}


def _value(row: Row, choice: str, fields: Mapping[str, str], now_us: int) -> Any:
    del now_us
    text = fields.get(f"value-{choice}", fields.get("value", ""))
    if not text.strip():
        raise InvalidAnswer(row["id"], "give the value; for none at all write null")
    return {"choice": choice, "value": typed(row["schema"], text)}


def _receipt(row: Row, choice: str, fields: Mapping[str, str], now_us: int) -> Any:
    del now_us
    text = fields.get(f"receipt-{choice}", fields.get("receipt", ""))
    if not text.strip():
        raise InvalidAnswer(row["id"], "give the receipt, its number or link; if there is none, write null")
    return {"choice": choice, "receipt": typed(row["schema"], text)}


def _raise(row: Row, choice: str, fields: Mapping[str, str], now_us: int) -> Any:
    del now_us
    unit = limit_unit(row["key"])
    text = fields.get("limit", "").strip().lstrip("$")
    try:
        value = float(text.replace(",", ""))
    except ValueError as error:
        raise InvalidAnswer(row["id"], f"give the new limit in {unit}, as a number") from error
    return {"choice": choice, unit: int(value) if unit in ("tokens", "steps") and value.is_integer() else value}


def _approve(row: Row, choice: str, fields: Mapping[str, str], now_us: int) -> Any:
    del now_us
    told = json.loads(row["context"]).get("approve") or {}
    shown: Any = told.get("inputs")
    if told.get("of") != "step" and not isinstance(shown, dict):
        return _whole(row, choice, shown, fields)
    schema = json.loads(row["schema"] or "{}").get("properties", {})
    changed = {}
    for name, old in (shown or {}).items():
        text = fields.get(f"edit-{name}")
        if text is None or _same(text, old):
            continue
        keeps_text = isinstance(old, str) and mismatch(schema.get(name, {}), text) is None
        changed[name] = text.replace("\r\n", "\n") if keeps_text else _parsed(row, name, text)
    if not changed:
        return choice
    return {"choice": choice, "inputs": changed if told.get("of") == "step" else {**shown, **changed}}


def _whole(row: Row, choice: str, shown: Any, fields: Mapping[str, str]) -> Any:
    text = fields.get("edit")
    if text is None or _same(text, shown):
        return choice
    value = text.replace("\r\n", "\n") if isinstance(shown, str) else _parsed(row, "the value", text)
    return {"choice": choice, "inputs": value}


def _same(text: str, old: Any) -> bool:
    """Whether a field was left as it was shown. Browsers send line ends of their own."""
    return text.replace("\r\n", "\n") == shown_as(old).replace("\r\n", "\n")


def shown_as(value: Any) -> str:
    """A value as it stands in a field to be edited."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _parsed(row: Row, name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidAnswer(row["id"], f"{name}: this is not of its form: write a number, true, false, or JSON") from error


def _map(row: Row, choice: str, fields: Mapping[str, str], now_us: int) -> Any:
    del row, now_us
    to = fields.get("to", "").strip()
    return {"choice": choice, "to": to} if to else choice


_WITH = {
    "wait": _wait, "value": _value, "by_hand": _receipt, "happened": _receipt, "raise": _raise, "approve": _approve, "map": _map,
}  # fmt: skip
