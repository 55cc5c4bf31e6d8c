"""One call of a step: what identifies it, settled at the call and not at the await."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from stepseven.errors import KeyRequired
from stepseven.runtime.declared import Step
from stepseven.runtime.place import Place
from stepseven.store.codec import canonical, digest, guard
from stepseven.transitions.state import Record, RecordKey

ARG_DIGEST = 8  # characters: tells one argument from another within a step, no more


@dataclass(slots=True)
class Call:
    """A call of a step in a run."""

    step: Step[Any, Any]
    place: Place
    key: RecordKey
    digest: str  # of its inputs
    bound: dict[str, Any]
    texts: dict[str, str]  # argument -> canonical JSON
    lane: tuple[str, ...] | None = None  # of a write: what no two calls of this run do at the same time

    @property
    def branch(self) -> str:
        """The branch it was made in."""
        return self.key[0]

    def args(self) -> str:
        """A short digest per argument, as JSON: tells later which one changed."""
        return json.dumps({name: digest(text)[:ARG_DIGEST] for name, text in self.texts.items()}, separators=(",", ":"))

    def arguments(self) -> str:
        """The arguments as JSON, for the person who has to decide."""
        return whole(self.texts)

    def inner_branch(self) -> str:
        """Where the calls go that the step's own code makes."""
        own = self.key[2] if len(self.key[2]) <= 30 and "/" not in self.key[2] else digest(self.key[2])  # noqa: PLR2004
        return join(self.branch, f"{self.step.name}[{own}]")


def join(branch: str, name: str) -> str:
    """A branch within a branch."""
    return f"{branch}/{name}" if branch else name


def whole(texts: dict[str, str]) -> str:
    """Arguments as one JSON object, names sorted."""
    return "{" + ",".join(f'"{name}":{texts[name]}' for name in sorted(texts)) + "}"


def identify(step: Step[Any, Any], here: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Bind, encode and number a call.

    Raises:
        TypeError: the arguments do not fit the function.
        NotRecordable, SecretFound: an argument cannot or must not be recorded; names it.
        KeyRequired: a write without ``key=`` was called a second time in its branch.
        ValueError: the business key cannot be built from the arguments.
    """
    o = step.settings
    bound = step.parameters.bind(args, kwargs)
    recorded = step.parameters.recorded(bound)
    texts = {name: guard(canonical(value, name), f"{step.name}: {name}", secrets=o.secrets) for name, value in recorded.items()}
    inputs = digest(whole(texts))
    branch = here.branch
    if o.writes:
        key = step.key_paths.text(bound) if step.key_paths is not None else _once(step, here, inputs)
    elif o.match == "order":
        key = f"#{here.number(step.name)}"
    else:
        base = step.key_paths.text(bound) if step.key_paths is not None else inputs
        n = here.number(f"{step.name}\0{base}")
        key = base if n == 1 else f"{base}~{n}"
    return Call(step, here, (branch, step.name, key), inputs, bound, texts)


def _once(step: Step[Any, Any], here: Place, inputs: str) -> str:
    """The key of a write without one: it may be called once per branch (by several tasks, if they say the same)."""
    execution = here.execution
    seen = execution.unkeyed.setdefault((here.branch, step.name), inputs)
    if here.number(f"{step.name}\0once") > 1 or seen != inputs:
        raise KeyRequired(step.name, execution.hold.run_id)
    return "once"


def changed_argument(old: Record, call: Call) -> str | None:
    """Which argument of *call* differs from those *old* was recorded with, in words."""
    if old.args is None:
        return None
    before, now = json.loads(old.args), json.loads(call.args())
    names = [name for name in now if before.get(name) != now[name]] + [name for name in before if name not in now]
    if not names:
        return None
    return f"argument {', '.join(names)} changed" if len(names) == 1 else f"arguments {', '.join(names)} changed"
