"""What an answer should look like, shown beside the sentence that refuses another one."""

from __future__ import annotations

import json
import shlex
from typing import Any

from stepseven.cli._common import Refused
from stepseven.errors import InvalidAnswer, StepsevenError
from stepseven.store.base import Row
from stepseven.transitions.fitting import example, mismatch

_LONGEST = 200  # characters: a longer example tells less than the sentence before it
_FIELDS = {"value": "value", "by_hand": "receipt", "happened": "receipt"}


def with_example(row: Row, reply: Any, misfit: InvalidAnswer) -> StepsevenError:
    """*misfit*, with the command that would fit; as it is where the form of the value is not what is wrong."""
    choice = reply.get("choice") if isinstance(reply, dict) else None
    field = _FIELDS.get(str(choice)) if json.loads(row["options"]) else None
    schema = json.loads(row["schema"]) if row["schema"] is not None else None
    given = reply.get(field) if field is not None else reply
    if not isinstance(schema, dict) or (json.loads(row["options"]) and field is None) or mismatch(schema, given) is None:
        return misfit
    text = json.dumps(example(schema), ensure_ascii=False)
    if len(text) > _LONGEST:
        return misfit
    said = shlex.quote(text) if field is None else f"{choice} --{field} {shlex.quote(text)}"
    return Refused(f"{misfit}. Such as: stepseven answer {row['id']} {said}")
