"""Questions of a run in memory: what is known is put together, the question stored, the answer waited for.

Longer than other files: every kind of question is put together from the same few looks at the run.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, get_args

from stepseven.decide import _phrases as say
from stepseven.decide import escalate, incident, policy
from stepseven.decide.escalate import Alternative, Done, Draft, Situation, Tried
from stepseven.decide.incident import Cause, Kind
from stepseven.model import INTERNAL, EffectKind, QuestionKind, WaitingFor
from stepseven.runtime import choices, facts, outline, verifying
from stepseven.runtime.calls import Call
from stepseven.runtime.place import Known
from stepseven.runtime.waits import DurableWait
from stepseven.store.codec import free_text
from stepseven.transitions import questions
from stepseven.transitions.offering import UNDO
from stepseven.transitions.telling import Asking

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Row, Tx

BODY = "run.body"
FACT_LOOK_US = 60_000_000
_SHORT = 60  # characters of what stands in a line beside a step


# -- the state of the run, for people -----------------------------------------------------------------------------------


def situation(ex: Execution, current: str | None = None) -> Situation:
    """The run as it stands. *current*: the step that is being asked about; it is not "next"."""
    from stepseven.runtime import ceilings  # which asks

    counts: dict[str, list[Any]] = {}
    for record in ex.records.values():
        if record.name.startswith(INTERNAL) or record.state != "done":
            continue
        entry = counts.setdefault(record.name, [0, None])
        entry[0] += 1
        entry[1] = record.summary if record.summary is not None else entry[1]
    sizes = map_sizes(ex)
    of = {name: size for name, size in sizes.items() if name in counts and counts[name][0] <= size}  # else called elsewhere, too
    done = tuple(Done(step=name, summary=last, count=n, of=of.get(name)) for name, (n, last) in counts.items())
    _, remaining = outline.ahead(ex)
    limit = ceilings.ceiling(ex, "usd") if ex.limits is not None and ex.limits.usd is not None else None
    return Situation(
        client=ex.hold.client_id, workflow=ex.workflow.name, goal=ex.run["goal"], inputs=json.loads(ex.run["inputs"]),
        done=done, next_steps=tuple(n for n in remaining if n != current), spent_usd=ex.uusd / 1e6, limit_usd=limit,
        tokens=ex.tokens,
    )  # fmt: skip


def map_sizes(ex: Execution) -> dict[str, int]:
    """Step name → how many items its map has."""
    sizes: dict[str, int] = {}
    for record in ex.records.values():
        if record.name == "run.map" and record.result is not None:
            told = json.loads(record.result)
            prefix = f"{record.branch}/{record.key}[" if record.branch else f"{record.key}["
            for name in {r.name for r in ex.records.values() if r.branch.startswith(prefix)}:
                sizes[name] = sizes.get(name, 0) + int(told["of"])
    return sizes


def subject_of(call: Call) -> str | None:
    """What a call works on, if that is one short thing: the item of its map, a write's key, or its main argument."""
    client = call.execution.hold.client_id  # every sentence names it anyway
    item = None if call.place.item is None else str(call.place.item.label)
    if item is not None and not item.startswith(("[", "{")):
        return item
    paths = call.step.key_paths if call.step.settings.writes else None
    if paths is not None and call.execution.workflow.name != UNDO:  # what is taken back has the name of a claim
        # Of a callable's values only the whole is known: it is not called twice.
        key = _key_words(paths.values(call.bound) if paths.call is None else [call.key[2]], client)
        if key is not None:
            return key
    if item is not None:
        return item
    texts = [v for v in call.bound.values() if isinstance(v, str) and 0 < len(v) <= _SHORT and v != client]
    return free_text(texts[0]).rsplit("/", 1)[-1] if texts else None  # masked whole: half a credential is not recognised


def _key_words(values: Sequence[Any], client: str) -> str | None:
    """A business key as people read it: its values, without the client's id; ``None`` where that is long, or nothing."""
    told = ", ".join(free_text(say.shown(v)) for v in values if v != client)
    return told if 0 < len(told) <= _SHORT else None


def _resource(declared: str | None) -> str | None:
    return None if declared is None else free_text(declared, 300)


def _tried(rows: Sequence[Row]) -> tuple[Tried, ...]:
    return tuple(
        Tried(
            approach=r["approach"] or policy.AS_WRITTEN, reason=r["reason"] or "", outcome=r["outcome"],
            at_us=r["ended_us"] or r["started_us"],
        )
        for r in rows
        if r["outcome"] in ("failed", "unknown", "deferred")
    )  # fmt: skip


# -- asking ---------------------------------------------------------------------------------------------------------------


class NotAsked(Exception):
    """It turned out, in the last moment, that there is nothing to ask."""


async def store(  # noqa: PLR0913 - a question's parts
    ex: Execution,
    kind: QuestionKind,
    key: str,
    draft: Draft,
    *,
    branch: str = "",
    asked_of: str | None = None,
    folds: Sequence[str] = (),
    unless: Callable[[Tx], bool] | None = None,
    **more: Any,
) -> Row:
    """Store a question of this run and remember it. *folds*: the questions it stands for from now on.

    Raises:
        NotAsked: *unless* said so, in the transaction that would have stored it.
    """
    await ex.will_ask(kind, draft.text, branch=branch, key=key, step=more.get("step"))
    rows = ex.questions.get((branch, kind.value, key), [])
    a = Asking(
        id=ex.edge.new_id("q"), branch=branch, key=key, n=len(rows) + 1, kind=kind, draft=draft, asked_seq=ex.seq,
        asked_of=asked_of or ex.workflow.settings.to, **more,
    )  # fmt: skip
    now = ex.now_us()

    def unit(tx: Tx) -> tuple[Row, list[Row]]:
        if unless is not None and unless(tx):
            raise NotAsked
        row = questions.ask(tx, ex.hold, a, now)
        return row, questions.fold(tx, ex.hold, folds, row["id"], now) if folds else []

    def noted(stored: tuple[Row, list[Row]]) -> None:
        for each in (stored[0], *stored[1]):
            ex.remember_question(each)

    row, _ = await ex.write(unit, durable=True, then=noted)
    return asked(ex, row)


def asked(ex: Execution, row: Row) -> Row:
    """A question was stored: remember it, tell whoever watches."""
    text = free_text(row["text"].split("\n", 1)[0], 200)
    ex.services.tell(ex.hold.run_id, "asked", id=row["id"], text=text, kind=row["kind"])
    return ex.remember_question(row)


def about_failure(ex: Execution, call: Call) -> list[Row]:
    """The questions about this call's failures, oldest first, whatever their kind. Of a read: those about these inputs."""
    if not ex.questions:
        return []
    key = f"{call.key[1]}/{call.key[2]}"
    found: list[Row] = []
    for kind in (QuestionKind.FAILURE, QuestionKind.REQUIRED):
        found += ex.questions.get((call.branch, kind.value, key), [])
    if not call.step.settings.writes:
        about = [r for r in found if r["about"] in (None, call.digest) and verifying.asked_since(ex, call.key, r)]
        return sorted(about, key=_in_order)
    for (branch, kind_value, other), rows in ex.questions.items():
        if kind_value == QuestionKind.UNKNOWN_OUTCOME.value and branch == call.branch and other.startswith(f"{key}#"):
            found += [r for r in rows if r["status"] == "answered"]
    return sorted(found, key=_in_order)


def _in_order(row: Row) -> tuple[int, int, int]:
    return row["attempts"], row["created_us"], row["n"]


def given(ex: Execution, call: Call) -> dict[str, Known]:
    """What people supplied for this call, by the name it was needed under: asked for here, or known of the client already.

    With the version of the fact that it is, 0 where it is none: what was refreshed since is as it is now.
    """
    from stepseven.runtime import trouble

    supplied: dict[str, Known] = {}
    for row in trouble.tries(ex, call):
        needs = str(trouble.details_of(row).get("needs") or "")
        fact = known(ex, needs) if needs else None
        if fact is not None:
            supplied[needs] = Known(json.loads(fact["value"]), fact["version"])
    for row in about_failure(ex, call):
        needs = json.loads(row["context"]).get("needs")
        if row["kind"] == QuestionKind.REQUIRED.value and row["status"] == "answered" and needs and needs not in ex.refreshed:
            supplied[needs] = Known(json.loads(row["answer"]), facts.version_answered(ex, row, needs))
    return supplied


def known(ex: Execution, fact: str) -> Row | None:
    """The client's fact, if it is known and still holds."""
    return facts.known(ex, fact)


def known_already(ex: Execution, call: Call) -> str | None:
    """The fact the last try needed, if it is known and was not tried yet: then nobody has to be asked."""
    from stepseven.runtime import trouble

    needed = [trouble.details_of(r).get("needs") for r in trouble.tries(ex, call) if r["outcome"] == "failed"]
    name = needed[-1] if needed else None
    if name is None or needed.count(name) > 1 or any(r["kind"] == "required" for r in about_failure(ex, call)):
        return None
    return name if known(ex, name) is not None else None


async def failure(ex: Execution, call: Call) -> None:
    """Nothing is left to try: ask, and wait for the answer."""
    from stepseven.runtime import trouble

    rows = trouble.tries(ex, call)
    last = trouble.details_of(rows[-1]) if rows else {}
    needs = last.get("needs")
    kind = QuestionKind.REQUIRED if needs else QuestionKind.FAILURE
    schema = call.step.typed.json_schema() if kind is QuestionKind.FAILURE else None
    key = f"{call.key[1]}/{call.key[2]}"
    details: dict[str, Any] = {
        "cause": cause_of(ex, call, kind, rows[-1] if rows else None), "branch": call.branch, "step": call.key[1],
        "schema": json.dumps(schema) if schema else None,
        "attempts": len([r for r in rows if r["outcome"] in ("failed", "unknown")]), "about": call.digest,
        "remember": json.dumps({"key": needs}) if needs else None, "signature": rows[-1]["signature"] if rows else None,
    }  # fmt: skip
    earlier = ex.questions.get((call.branch, kind.value, key), [])
    await trouble.withdraw(ex, tuple(r["id"] for r in earlier if r["status"] == "open"))  # it was about other inputs
    draft = _failure_draft(ex, call, rows, last)
    if kind is QuestionKind.FAILURE:
        await in_map(ex, call, lambda into: store(ex, kind, key, draft, folded_into=into, **details))
    else:
        await answered(ex, call, await store(ex, kind, key, draft, **details))


def cause_of(ex: Execution, call: Call, kind: QuestionKind, last: Row | None) -> Cause | None:
    """What a question about a call has in common with those of other runs. *last*: the newest try."""
    if call.down is not None and kind is QuestionKind.FAILURE:
        return Cause(kind=Kind.RESOURCE, signature=call.down, resource=call.down)
    return cause_of_try(ex, call.step.name, kind, last)


def cause_of_try(ex: Execution, step: str | None, kind: QuestionKind, last: Row | None) -> Cause | None:
    """The same, of what a try has shown alone."""
    from stepseven.runtime import trouble

    passing = last is not None and bool(trouble.details_of(last).get("counts"))
    return incident.cause(
        kind, workflow=ex.workflow.name, step=step, signature=None if last is None else last["signature"],
        resource=None if last is None else last["resource"], passing=passing,
    )  # fmt: skip


def _failure_draft(ex: Execution, call: Call, rows: Sequence[Row], last: dict[str, Any]) -> Draft:
    from stepseven.runtime import outages

    o = call.step.settings
    unchanged = True if o.effect is EffectKind.READ else None
    if unchanged is None and rows:
        unchanged = all(r["outcome"] != "unknown" for r in rows) or None
    return escalate.failure(
        situation(ex, call.step.name), step=call.step.name, subject=subject_of(call),
        resource=resource_of(ex, call), tried=_tried(rows),
        alternatives=tuple(
            Alternative(label=a.label, usd=o.cost.usd if o.cost else None, seconds=None, ask=a.ask)
            for a in call.step.hooks.approaches
        ),
        effect=o.effect, nothing_changed=unchanged, needs=last.get("needs"), ask=last.get("ask"),
        result_type=type_name(call.step.typed.annotation), rerun=choices.rerunnable(ex, call, last),
        looks=not last.get("ours"), waited=_waited(ex, call, rows) or outages.silence(ex, call),
        usd=o.cost.usd if o.cost else None, seconds=o.cost.seconds if o.cost else None,
    )  # fmt: skip


def resource_of(ex: Execution, call: Call) -> str | None:
    """The outside system a call needs, if one is known."""
    from stepseven.runtime import trouble

    rows = trouble.tries(ex, call)
    if call.down is not None:
        return call.down
    return _resource(call.step.settings.resource) or (rows[-1]["resource"] if rows else None)


def _waited(ex: Execution, call: Call, rows: Sequence[Row]) -> str:
    """What came of a person's wish to wait until the resource answers, if that was the last one."""
    asked = about_failure(ex, call)
    answer = json.loads(asked[-1]["answer"]) if asked and asked[-1]["status"] == "answered" else None
    if not isinstance(answer, dict) or answer.get("until") != policy.ANSWERS:
        return ""
    failed = [r for r in rows if r["outcome"] in ("failed", "unknown")]
    other = len(failed) > 1 and failed[-1]["signature"] != failed[-2]["signature"]
    seconds = (ex.now_us() - asked[-1]["answered_us"]) / 1e6
    return escalate.waited(resource_of(ex, call), by=asked[-1]["answered_by"] or "a person", seconds=seconds, otherwise=other)


def type_name(annotation: Any) -> str | None:
    """A return annotation for people; ``None`` when it says nothing."""
    if annotation in (None, Any, inspect.Parameter.empty):
        return None
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)


@asynccontextmanager
async def aside(ex: Execution, call: Call) -> AsyncIterator[None]:
    """Wait without standing in anybody's way: without a slot of the map, and without the lane of the effect."""
    lane, item = call.lane, call.place.item
    if lane is not None:
        call.lane = None
        ex.free_lane(lane)
    if item is None:
        yield
    else:
        async with item.aside():
            yield
    if lane is not None:
        await ex.take_lane(lane)
        call.lane = lane


async def wait_for(ex: Execution, call: Call, question_id: str) -> None:
    """Wait for the answer to a question about this call."""
    await answered(ex, call, next(r for r in about_failure(ex, call) if r["id"] == question_id))


async def answered(ex: Execution, call: Call, row: Row) -> Row:
    """Wait until a question of this call, or the one it was folded into, is no longer open."""
    if row["status"] != "open":
        return row
    if call.down is not None:  # meanwhile it is looked whether that answers again
        ex.on_resource.update({id_: call.down for id_ in (row["id"], row["folded_into"]) if id_ is not None})
    item = call.place.item
    async with aside(ex, call):
        return await (ex.answered(row) if item is None else item.answered(ex, row))


async def in_map(ex: Execution, call: Call, make: Callable[[str | None], Awaitable[Row]]) -> Row:
    """Store a question of this call; in a map it may be folded into the batch's. Wait for the answer."""
    item = call.place.item
    row = await (make(None) if item is None else item.failed(ex, call, make))
    return await answered(ex, call, row)


async def wait_for_fact(ex: Execution, who: str, name: str) -> None:
    """The person said "wait" until a fact is known: it is looked for every minute while the run waits."""
    while known(ex, name) is None:
        what = f"{who} waits until {name} is known"
        await ex.wait(DurableWait(kind=WaitingFor.EVENT, what=what, until_us=ex.now_us() + FACT_LOOK_US, fact=name))


async def body_failed(ex: Execution, error: Exception, where: str) -> Row:
    """The workflow's own code raised: write it down and ask."""
    from stepseven.decide.classify import classify
    from stepseven.runtime.memory import failure_text
    from stepseven.transitions import steps

    verdict = classify(error, now_us=ex.now_us(), overrides=ex.services.classify)
    key = ("", BODY, BODY)
    rows = ex.attempts.setdefault(key, [])
    now = ex.now_us()
    signature = free_text(verdict.signature, 300)
    row = {
        "branch": "", "name": BODY, "key": BODY, "n": rows[-1]["n"] + 1 if rows else 1, "approach": None,
        "outcome": "failed", "kind": "fixable", "reason": free_text(verdict.reason, 1000),
        "trace": json.dumps({"text": failure_text(error), "where": where}), "signature": signature,
        "resource": verdict.resource, "inputs": None, "source_digest": ex.workflow.digest, "identical": 0, "usd": None,
        "tokens": None, "started_us": now,
    }  # fmt: skip
    draft = escalate.body(situation(ex), reason=str(row["reason"]), where=where)
    earlier = ex.questions.get(("", QuestionKind.FAILURE.value, BODY), [])
    a = Asking(
        id=ex.edge.new_id("q"), branch="", key=BODY, n=len(earlier) + 1, kind=QuestionKind.FAILURE, draft=draft,
        asked_seq=ex.seq, asked_of=ex.workflow.settings.to, attempts=len(rows) + 1, signature=signature,
        cause=cause_of_try(ex, None, QuestionKind.FAILURE, row),
    )  # fmt: skip

    def unit(tx: Tx) -> tuple[Row, Row]:
        return steps.end_attempt(tx, ex.hold, row, now), questions.ask(tx, ex.hold, a, now)

    stored, question = await ex.write(unit, durable=True)  # together: a crash in between would run the body again
    rows.append(stored)
    return asked(ex, question)


async def poison(ex: Execution) -> Row:
    """The run ended again and again without a new record: ask before it is started again."""
    last = max(ex.records.values(), key=lambda r: r.id, default=None)
    begun = [key[1] for key, rows in ex.attempts.items() if rows[-1]["outcome"] == "interrupted"]
    name = begun[-1] if begun else (outline.ahead(ex)[0] if last is None else outline.ahead(ex)[0] or last.name)
    draft = escalate.poison(situation(ex, name), executions=ex.run["barren"], last_step=name)
    cause = incident.cause(QuestionKind.POISON, workflow=ex.workflow.name, step=name, signature=None, resource=None)
    return await store(ex, QuestionKind.POISON, QuestionKind.POISON.value, draft, cause=cause)
