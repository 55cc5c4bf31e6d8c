"""What a person may change in what is proposed to them, before they approve it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stepseven.errors import InvalidAnswer
from stepseven.store.base import Row
from stepseven.store.redact import MASK
from stepseven.transitions.fitting import mismatch, path_of


def approval(row: Row, given: Mapping[str, Any], now_us: int) -> dict[str, Any]:
    """What the person changed; nothing, if it is approved as it is. What names the effect cannot be edited.

    Raises:
        InvalidAnswer: a change that cannot be, or that would put the mask of a credential where the credential was.
    """
    del now_us
    told = json.loads(row["context"]).get("approve") or {}
    shown: Any = told.get("inputs")
    edits = given.get("inputs")
    schema = json.loads(row["schema"]) if row["schema"] is not None else {}
    if "inputs" not in given or _same_json(edits, shown):
        return {}
    if told.get("of") != "step":  # a value with a credential was refused before it was shown: nothing is masked in it
        _fits(row, schema.get("value", {}), edits, "")
        return {"inputs": edits}
    changed = _changed(row, told, edits)
    for name, value in changed.items():
        hidden = _masked(value, (name,))
        if hidden is not None:
            raise InvalidAnswer(row["id"], f"{path_of(hidden)} holds a masked credential: give the whole value, or refuse")
        _fits(row, schema.get("properties", {}).get(name, {}), value, f"{name}: ")
    return {"inputs": changed} if changed else {}


def _changed(row: Row, told: Mapping[str, Any], edits: Any) -> dict[str, Any]:
    """The arguments that are not as they were shown."""
    shown: dict[str, Any] = told["inputs"]
    if not isinstance(edits, Mapping):
        raise InvalidAnswer(row["id"], 'approve takes the changed values by name: {"choice": "approve", "inputs": {"name": …}}')
    strange = [name for name in edits if name not in shown]
    if strange:
        raise InvalidAnswer(row["id"], f"there is no {strange[0]} to change; there is {', '.join(shown)}")
    changed = {name: value for name, value in edits.items() if not _same_json(value, shown[name])}
    for path in told.get("fixed", ()):
        if not _same_json(_at({**shown, **changed}, path), _at(shown, path)):
            raise InvalidAnswer(row["id"], f"{path} names what is done and cannot be changed here: refuse, and propose another")
    return changed


def _fits(row: Row, schema: Mapping[str, Any], value: Any, where: str) -> None:
    why = mismatch(schema, value)
    if why is not None:
        raise InvalidAnswer(row["id"], f"{where}{why}")


def _masked(value: Any, path: tuple[str | int, ...]) -> tuple[str | int, ...] | None:
    """The place where the mask of a credential stands; ``None``: nowhere."""
    if isinstance(value, str):
        return path if MASK in value else None
    pairs: Any = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        if isinstance(key, str) and MASK in key:
            return path
        below = _masked(item, (*path, key))
        if below is not None:
            return below
    return None


def _same_json(a: Any, b: Any) -> bool:
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def _at(value: Any, path: str) -> Any:
    """The value a key path leads to; ``None`` where it leads nowhere."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
