"""Proposed first: what a person lets through, edits or refuses, before it is done (DESIGN §5.8).

An approval belongs to the exact arguments it was given on: a draft that came out otherwise is proposed anew, whoever said yes
to the old one. What runs, is probed and is compared are the arguments as approved; what the call is recognised by are those
it was made with.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.decide import escalate
from stepseven.errors import NotRecordable, Refused
from stepseven.model import EffectKind, QuestionKind
from stepseven.runtime import asking, choices, trouble
from stepseven.runtime.arguments import argument_schema, decode_argument
from stepseven.runtime.binding import Spread, parameter_types
from stepseven.runtime.calls import whole
from stepseven.store.codec import canonical, digest, free_text, from_canonical, guard
from stepseven.transitions.questions import REFUSED
from stepseven.transitions.state import choice_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.place import Place
    from stepseven.store.base import Row

_BUILT = (dict, list, tuple, set, frozenset, bytes)  # their edits are told by the value, not by a schema
VALUE = "run.approve"  # names the questions of ``run.approve``


@dataclass(frozen=True, slots=True)
class Approved:
    """What a person let through: the arguments as JSON, and as the step's code gets them."""

    arguments: str
    bound: dict[str, Any]
    told: str  # by whom, and what they changed
    edited: bool = False


class _Misfit(Exception):
    """An edit that cannot be used, and why."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


# -- a step's arguments ---------------------------------------------------------------------------------------------------


def needed(call: Call) -> bool:
    """Whether the step is proposed before it is done."""
    return call.step.settings.effect is EffectKind.IRREVERSIBLE


async def word(ex: Execution, call: Call) -> Approved | None:
    """What a person said about exactly this call: ``None``, if nothing (that can be used) yet.

    Raises:
        Refused: they said no. That is obeyed before anything else is found out about the effect.
    """
    row = _of(_rows(ex, call), call.exact)
    if row is not None and _is_no(row):
        raise await _refused(ex, call, row)
    return _usable(ex, call, row)


def _is_no(row: Row) -> bool:
    """Whether it may not be done: refused, or expired, which is the only default there is."""
    refused = row["status"] == "answered" and choice_of(json.loads(row["answer"])) == "refuse"
    return refused or row["status"] == "expired"


def standing(ex: Execution, call: Call) -> Approved | None:
    """The approval that was given on exactly this call; ``None``: there is none (yet), or it cannot be used."""
    return _usable(ex, call, _of(_rows(ex, call), call.exact))


def _usable(ex: Execution, call: Call, row: Row | None) -> Approved | None:
    if row is None or row["status"] != "answered" or choice_of(json.loads(row["answer"])) != "approve":
        return None
    try:
        return _approved(call, row) if _since_refused(ex, call, row) is None else None
    except _Misfit:
        return None


def open_question(ex: Execution, call: Call) -> Row | None:
    """The open question whether exactly this call may be made."""
    row = _of(_rows(ex, call), call.exact)
    return row if row is not None and row["status"] == "open" else None


async def propose(ex: Execution, call: Call) -> None:
    """Show what is about to be done, and wait for the word of a person. Returns when it may be claimed.

    Raises:
        Refused: it may not. Nothing was done; a resume raises the same.
    """
    while True:
        if await word(ex, call) is not None:
            return
        row, why = _of(_rows(ex, call), call.exact), None
        if row is not None and row["status"] == "answered":
            why = _since_refused(ex, call, row) or _misfit(call, row)
        if row is None or row["status"] != "open":
            row = await _ask(ex, call, why)
        if (await _answered(ex, call, row))["status"] == "withdrawn":
            return  # somebody did it meanwhile, or stopped it: the claim knows


async def _answered(ex: Execution, call: Call, row: Row) -> Row:
    """Wait for the word. The effect's lane is kept: another call of this key comes after this one, and is a conflict then."""
    if call.place.item is None:
        return await ex.answered(row)
    async with call.place.item.aside():
        return await ex.answered(row)


def _key(call: Call) -> str:
    return f"{call.key[1]}/{call.key[2]}"


def _rows(ex: Execution, call: Call) -> list[Row]:
    """The questions about this effect, oldest first: a business key names one effect, whichever branch calls it."""
    kind, key = QuestionKind.APPROVE.value, _key(call)
    if call.step.key_paths is None:
        return ex.questions.get((call.branch, kind, key), [])
    found = [row for (_, k, other), rows in ex.questions.items() if k == kind and other == key for row in rows]
    return sorted(found, key=lambda row: (row["created_us"], row["n"]))


def _of(rows: list[Row], about: str) -> Row | None:
    """The newest of them that was asked on exactly these arguments."""
    return next((r for r in reversed(rows) if r["about"] == about and r["status"] != "withdrawn"), None)


def _since_refused(ex: Execution, call: Call, row: Row) -> str | None:
    """Why an approval is used up: the other side found fault with what was approved, so a person may want to edit it."""
    for attempt in reversed(ex.attempts.get(call.key, ())):
        if attempt["n"] > row["attempts"] and trouble.details_of(attempt).get("input"):
            return f"it was tried and refused: {attempt['reason']}"
    return None


def _approved(call: Call, row: Row) -> Approved:
    """The arguments as a person let them through.

    Raises:
        _Misfit: an edited value is not of its parameter's type, or changes the effect's name.
    """
    answer = json.loads(row["answer"])
    edits: dict[str, Any] = answer.get("inputs", {}) if isinstance(answer, dict) else {}
    by = row["answered_by"] or "a person"
    if not edits:
        return Approved(call.arguments(), call.bound, f"approved by {by}")
    hints = parameter_types(call.step.fn)
    bound = dict(call.bound)
    for name, value in edits.items():
        try:
            bound[name] = decode_argument(hints.get(name, Any), value, name)
        except NotRecordable as misfit:
            raise _Misfit(f"the edited value does not fit: {misfit}") from misfit
    if isinstance(call.bound, Spread):
        bound = call.step.parameters.rebind(bound)
    if call.step.key_paths is not None and _text(call, bound) != _text(call, call.bound):
        raise _Misfit("the edit changes what the effect is named by (its key)")
    texts = {**call.texts, **{name: canonical(bound[name], name) for name in edits}}
    return Approved(whole(texts), bound, f"approved by {by}, who changed {', '.join(sorted(edits))}", edited=True)


def _misfit(call: Call, row: Row) -> str | None:
    """Why what a person made of the arguments cannot be used, if it cannot."""
    try:
        _approved(call, row)
    except _Misfit as misfit:
        return misfit.why
    return None


def _text(call: Call, bound: Mapping[str, Any]) -> str:
    assert call.step.key_paths is not None  # noqa: S101 - the caller looked
    try:
        return call.step.key_paths.text(bound)
    except Exception as error:
        raise _Misfit(f"the edit leaves the effect without a name: {free_text(str(error), 200)}") from error


async def _ask(ex: Execution, call: Call, why: str | None) -> Row:
    o, key = call.step.settings, _key(call)
    earlier = _rows(ex, call)
    await trouble.withdraw(ex, tuple(r["id"] for r in earlier if r["status"] == "open"))  # it was about other arguments
    arguments = {name: json.loads(call.texts[name]) for name in call.step.parameters.names if name in call.texts}
    draft = escalate.approve(
        asking.situation(ex, call.step.name), step=call.step.name, subject=asking.subject_of(call),
        arguments=arguments, before=_before(earlier), why=_void(earlier, why),
        hidden=tuple(sorted(call.step.parameters.ignore)), usd=o.cost.usd if o.cost else None,
        seconds=o.cost.seconds if o.cost else None,
    )  # fmt: skip
    hints = parameter_types(call.step.fn)
    properties = {name: argument_schema(hints.get(name, Any)) or {} for name in arguments}
    paths = call.step.key_paths.paths if call.step.key_paths is not None else ()
    draft.context["approve"] = {
        "of": "step", "inputs": arguments, "fixed": [".".join(path) for path in paths],
        "effect": {"scope": o.scope, "name": o.effect_name or o.name, "key": call.key[2]},
    }  # fmt: skip
    return await asking.store(
        ex, QuestionKind.APPROVE, key, draft, branch=call.branch, step=call.key[1], about=call.exact,
        schema=json.dumps({"properties": properties}), attempts=trouble.next_n(ex, call) - 1,
    )  # fmt: skip


def _before(earlier: list[Row]) -> Any:
    """What was shown the last time, as the person left it."""
    if not earlier:
        return None
    shown = json.loads(earlier[-1]["context"]).get("approve", {}).get("inputs")
    answer = json.loads(earlier[-1]["answer"]) if earlier[-1]["answer"] is not None else None
    edits = answer.get("inputs") if isinstance(answer, dict) else None
    return {**shown, **edits} if isinstance(shown, dict) and isinstance(edits, dict) else shown if edits is None else edits


def _void(earlier: list[Row], why: str | None) -> str:
    """What became of the earlier answer."""
    last = next((r for r in reversed(earlier) if r["status"] == "answered"), None)
    if last is None:
        return why or ""
    said = f"“{choice_of(json.loads(last['answer']))}” by {last['answered_by']}"
    return f"The earlier answer, {said}, does not count: {why or 'it was given on other values'}."


async def _refused(ex: Execution, call: Call, row: Row) -> Refused:
    """Record the refusal: a resume raises the same, and a call with other arguments is proposed anew."""
    reason = _why_refused(row)
    await choices.give_up(ex, call, reason, REFUSED)
    return Refused(call.step.name, reason)


def _why_refused(row: Row) -> str:
    if row["status"] == "expired":
        return "nobody approved it in time"
    note = f": {row['note']}" if row["note"] else ""
    return free_text(f"refused by {row['answered_by'] or 'a person'}{note}", 1000)


# -- a value of the workflow's own (run.approve) ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What ``run.approve`` was called with."""

    text: str
    about: Any
    to: str | None

    def __post_init__(self) -> None:
        """Refuse now what would be found out when the answer comes."""
        if not self.text.strip():
            raise ValueError("run.approve: the text is empty: say what is to be approved")

    def schema(self) -> dict[str, Any] | None:
        """What an edited value has to look like, where its type says so."""
        told_by_value = self.about is None or type(self.about) in _BUILT
        return None if told_by_value else argument_schema(type(self.about))


async def approve(ex: Execution, here: Place, key: str, p: Proposal) -> Any:
    """The value as a person let it through.

    Raises:
        Refused: it may not be used; a resume raises the same.
    """
    shown = json.loads(guard(canonical(p.about, "about"), "about", secrets="refuse"))
    about, lane = digest(canonical(p.about, "about")), (VALUE, here.branch, key)
    await ex.take_lane(lane)  # two tasks with other values under one key are asked about one after the other
    try:
        return await _approve(ex, here, key, p, shown, about)
    finally:
        ex.free_lane(lane)


async def _approve(ex: Execution, here: Place, key: str, p: Proposal, shown: Any, about: str) -> Any:
    why = None
    while True:
        row = _of(ex.questions.get((here.branch, QuestionKind.APPROVE.value, key), []), about)
        if row is not None and row["status"] != "open":
            if _is_no(row):
                raise Refused(p.text, _why_refused(row))
            answer = json.loads(row["answer"])
            if not (isinstance(answer, dict) and "inputs" in answer):
                return p.about
            try:
                return like(p.about, answer["inputs"], "about")
            except NotRecordable as misfit:
                why = f"the edited value does not fit: {misfit}"
        if row is None or row["status"] != "open":
            row = await _ask_value(ex, here, key, p, shown, about, why)
        if here.item is None:
            await ex.answered(row)
        else:
            async with here.item.aside():
                await ex.answered(row)


async def _ask_value(  # noqa: PLR0913, PLR0917 - one question's parts
    ex: Execution, here: Place, key: str, p: Proposal, shown: Any, about: str, why: str | None
) -> Row:
    earlier = ex.questions.get((here.branch, QuestionKind.APPROVE.value, key), [])
    await trouble.withdraw(ex, tuple(r["id"] for r in earlier if r["status"] == "open"))
    facts = shown if isinstance(shown, dict) else {"value": shown}
    before = _before(earlier)
    draft = escalate.approve(
        asking.situation(ex), step=VALUE, text=p.text, arguments=facts, effect=EffectKind.READ,
        before=before if isinstance(before, dict) or before is None else {"value": before}, why=_void(earlier, why),
    )  # fmt: skip
    draft.context["approve"] = {"of": "value", "inputs": shown, "fixed": []}
    schema = p.schema()
    return await asking.store(
        ex, QuestionKind.APPROVE, key, draft, branch=here.branch, about=about, asked_of=p.to,
        schema=json.dumps({"value": schema or {}}),
    )  # fmt: skip


def like(value: Any, edited: Any, where: str) -> Any:
    """An edited value in the types of the one that was shown; what is new in it is plain JSON.

    Raises:
        NotRecordable: it does not fit; names the place.
    """
    if value is None:
        return from_canonical(json.dumps(edited, ensure_ascii=False))
    if type(value) is dict:
        if not isinstance(edited, dict):
            raise NotRecordable(where, "it has to be an object, as it was")
        return {name: like(value[name], each, f"{where}.{name}") if name in value else each for name, each in edited.items()}
    if type(value) in (list, tuple):
        if not isinstance(edited, list):
            raise NotRecordable(where, "it has to be a list, as it was")
        models = value or (None,)
        made = [like(models[min(i, len(models) - 1)], each, f"{where}[{i}]") for i, each in enumerate(edited)]
        return made if type(value) is list else tuple(made)
    if type(value) in _BUILT:
        back = from_canonical(json.dumps(edited, ensure_ascii=False))
        if not isinstance(back, type(value)):
            raise NotRecordable(where, "it has to be of the type it was")
        return back
    if type(value) in (int, float) and type(edited) in (int, float):
        return edited
    return decode_argument(type(value), edited, where)


__all__ = ["Approved", "Proposal", "approve", "like", "needed", "propose", "standing", "word"]
