"""What moved while a run waited is found, asked about, and kept or refreshed, before its body begins again.

``look`` only reads. A refresh is one transaction: what the run goes by from now on stands in new generations of its pins and of
the client record, and what was built on the old values is named in a record of its own (``refreshed``): it answers no more. Then
the body meets its records as ever, and only what was built on what moved runs or is asked again.

Longer than other files: what is read, what is written about it and what is asked follow from the same few rows.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.decide import _drift_text, drift
from stepseven.decide.drift import Read, Word
from stepseven.decide.plan import Do
from stepseven.model import FailureKind, QuestionKind, RunStatus
from stepseven.runtime import ahead, asking, below, dependants, facts, known, outside_record, refreshed, remembering
from stepseven.runtime.calls import nameable
from stepseven.runtime.memory import Stop
from stepseven.runtime.refreshed import AGAIN, KEEP, REFRESH, RELOAD
from stepseven.store.codec import canonical, digest
from stepseven.transitions import steps
from stepseven.transitions.state import Record, choice_of, load

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from stepseven.decide.plan import Drifted, Observed
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.lifecycle import Lifecycle
    from stepseven.runtime.memory import RunMemory
    from stepseven.runtime.rehearsal import Rehearsal
    from stepseven.store.base import Row, Tx

KEY = QuestionKind.DRIFT.value
_PINS = ("client.get", facts.FOUND, "run.wait_for")
_KINDS = ("keep", "refresh")
_ONE_BY_ONE = 4  # things that moved for which it is found out one by one what depends on them


@dataclass(slots=True, kw_only=True)
class _Source:
    """One place on record at which the run built on a fact, or said one itself."""

    key: str
    version: int
    record: Record | None = None
    question: Row | None = None
    said: bool = False  # it is the run's own word
    by: below.Ended | None = None  # the run that it was read in, if another

    @property
    def read(self) -> Read:
        """As the comparison takes it."""
        if self.by is not None:
            return Read(key=self.key, version=self.version, who=self.by.words)
        if self.question is not None:
            return Read(key=self.key, version=self.version, who=_answer(self.question))
        pin = self.record is None or self.record.name in _PINS
        return Read(key=self.key, version=self.version, who=None if pin or self.record is None else self.record.name)


def _answer(row: Row) -> str:
    return _drift_text.said(row["answered_by"], row["text"], approval=False)


# -- looking ----------------------------------------------------------------------------------------------------------------


async def look(ex: Execution) -> tuple[Drifted, ...]:
    """What is not so any more of what the run built on, and what else changed about its client. Reads only.

    Those with ``read`` are what a person is asked about; the others are noted. The record of the client is read outside once
    more; where that fails, ``notes`` says so.
    """
    sources, now = _sources(ex), ex.now_us()
    words, family = await ex.store.read(partial(_words, ex, sources))
    found: list[Drifted] = []
    if words:
        _name_versions(sources, words)
        own = _own(ex, sources, words, family)
        found += drift.moved([s.read for s in sources if not s.said and s.version >= 0], own, words, now)
        met = {s.key for s in sources if not s.said}
        rest = {key: said for key, said in words.items() if key not in met}
        told = {key: fresh.version if fresh.known else None for key, fresh in ex.refreshed.items()}
        watch = ex.workflow.settings.watch
        found += drift.unread(rest, told, own, watch, ex.run["created_us"], now)
    found += await outside_record.moved(ex)
    waits = {c.text for c in ahead.whole(ex.workflow) if c.name == "run.wait_for"} if found else set()
    found = [one for one in found if one.old_version or one.key not in waits]  # it came to be known, as the run waits for
    found = [replace(one, read=False) if one.read and _kept(ex, one) else one for one in found]
    return tuple(replace(one, depends=tuple(dependants.on(ex, one))) if one.read else one for one in found)


def notes(ex: Execution, found: Sequence[Drifted]) -> list[str]:
    """What is worth knowing of what was looked at, and asks nobody, in words."""
    told = [_drift_text.kept(one) if _kept(ex, one) else _drift_text.noted(one) for one in found if not one.read]
    return [*told, *([] if ex.unread_record is None else [ex.unread_record])]


def _sources(ex: RunMemory) -> list[_Source]:
    """Where the run built on facts, as its records tell, in their order. The version of an answer is not known yet (-1)."""
    found: list[_Source] = []
    inner = dependants.inner(ex)
    for record in ex.records.values():
        if record.name in ("client.get", facts.FOUND):
            found.append(_Source(key=record.key, version=facts.of_pin(record.result or "null").version, record=record))
        elif record.facts is not None:
            own = record.name == "client.set"
            writes = record.effect is not None or any(outer.effect is not None for outer in dependants.around(record, inner))
            for name, version in json.loads(record.facts).items():
                said = own or _remembers(ex, record, name)
                if said or not writes:  # what a write has used cannot be used anew: it is done
                    found.append(_Source(key=name, version=version, record=record, said=said))
    for (_, kind, _), rows in ex.questions.items():
        kept = (r for r in rows if kind == QuestionKind.ASK.value and r["status"] == "answered" and r["remember"])
        found += [
            _Source(key=json.loads(row["remember"])["key"], version=-1, question=row)
            for row in kept if not refreshed.overtaken(ex, row)
        ]  # fmt: skip
    found += [replace(s, record=run.record, by=run) for run in below.ended(ex) for s in _sources(run.memory) if not s.said]
    return sorted(found, key=lambda s: s.record.seq if s.record is not None else s.question["asked_seq"] if s.question else 0)


def _remembers(ex: RunMemory, record: Record, name: str) -> bool:
    """Whether the fact is what this step's result is remembered as, and not one that its code read."""
    step = known.find(record.name, ex.workflow.fn.__module__)
    return step is not None and step.settings.remember is not None and nameable(step.settings.remember) == name


def _words(ex: RunMemory, sources: Sequence[_Source], tx: Tx) -> tuple[dict[str, list[Word]], set[str]]:
    """Every version of the facts that may have moved, and which runs' words count as this one's."""
    client, now, since = ex.hold.client_id, ex.now_us(), ex.run["created_us"]
    newest = {row["key"]: row for row in tx.all(tx.sql.facts_now, {"client_id": client})}
    names = {nameable(key): key for key in newest} if newest else {}
    wanted: dict[str, None] = {}
    for source in sources:
        source.key = names.get(source.key, source.key)
        row = newest.get(source.key)
        source.version = _settled(ex, source)
        if row is not None and (source.version != row["version"] or _over(row, now)):
            wanted[source.key] = None
    for key, row in newest.items():
        if row["set_us"] > since or (_over(row, now) and row["valid_until_us"] > since):
            wanted[key] = None
    history = {key: _history(tx, client, key) for key in wanted}
    return history, {str(row["id"]) for row in tx.all(tx.sql.descendants, {"run_no": ex.hold.run_no})} if wanted else set()


def _settled(ex: RunMemory, source: _Source) -> int:
    """The version that was read; after a refresh that could not do it anew, the one that this was about."""
    fresh = ex.refreshed.get(source.key) if source.by is not None and source.by.acts else None
    if fresh is None or fresh.version < source.version:
        return source.version
    return fresh.version if fresh.known else 0


def _over(row: Row, now_us: int) -> bool:
    return row["valid_until_us"] is not None and row["valid_until_us"] <= now_us


def _history(tx: Tx, client_id: str, key: str) -> list[Word]:
    return [
        Word(key=key, version=row["version"], value=json.loads(row["value"]), source=row["source"], by=row["set_by"],
             run_id=row["run_id"], at_us=row["set_us"], until_us=row["valid_until_us"])
        for row in tx.all(tx.sql.fact_history, {"client_id": client_id, "key": key})
    ]  # fmt: skip


def _name_versions(sources: Sequence[_Source], words: Mapping[str, Sequence[Word]]) -> None:
    """Which version of its fact each answer became."""
    for source in sources:
        if source.question is not None and source.version < 0:
            told, answer = f"answer to {source.question['id']}", json.loads(source.question["answer"])
            said = words.get(source.key, ())
            mine = next((w for w in said if w.source == told), None)  # a fork has its root's answers under ids of its own
            mine = mine or next((w for w in reversed(said) if drift.same(w.value, answer)), None)
            source.version = -1 if mine is None else mine.version


def _own(ex: RunMemory, sources: Sequence[_Source], words: Mapping[str, Sequence[Word]], family: set[str]) -> dict[str, int]:
    """Fact → the newest version that this run (or one that it started) said."""
    mine = {ex.hold.run_id, *family}
    own = {key: max((w.version for w in said if w.run_id in mine), default=0) for key, said in words.items()}
    for source in sources:
        if source.said or source.question is not None:
            own[source.key] = max(own.get(source.key, 0), source.version)
    return own


# -- keeping and refreshing ---------------------------------------------------------------------------------------------------


def _told(one: Drifted) -> str:
    return canonical(drift.identity(one))


def _kept(ex: RunMemory, one: Drifted) -> bool:
    """Whether it was decided already to go on without it."""
    record = ex.records.get(("", KEEP, nameable(one.key)))
    return record is not None and record.result == _told(one)


def refresh_in_memory(ex: Execution, moved: Sequence[Drifted]) -> None:
    """Let the run's records say what is so now, and drop what was built on the old values. Nothing is written.

    Args:
        ex: an execution that writes nothing.
        moved: what ``look`` found.
    """
    text = ex.reread_record if any(drift.in_record(one) for one in moved) else None
    for record in _renewed(ex, moved, text):
        ex.keep(record)
    refreshed.set_aside(ex)


async def refresh(ex: Execution, moved: Sequence[Drifted]) -> None:
    """The same for good: under the fence, in one transaction."""
    text = ex.reread_record if any(drift.in_record(one) for one in moved) else None
    made = _renewed(ex, moved, text)
    now = ex.now_us()
    kept = [(record, None if record.result is None else ex.artifact_of(record.result)) for record in made]
    for record, artifact in kept:
        if artifact is not None:
            record.result, record.artifact = None, artifact.hash
    load = ex.workflow.loader
    fact = None
    if text is not None and load is not None and load.settings.remember is not None:
        fact = remembering.fact_of(ex, outside_record.call(ex, load), text)

    def unit(tx: Tx) -> None:
        for record, artifact in kept:
            if load is not None and record.name == load.name:
                remembering.learn(tx, record, fact, now_us=now)
            steps.append(tx, ex.hold, record, now_us=now, artifact=artifact)

    def noted(_: None) -> None:
        for record, _artifact in kept:
            ex.keep(record)
        refreshed.set_aside(ex)

    await ex.write(unit, durable=True, then=noted)


async def keep(ex: Execution, moved: Iterable[Drifted]) -> None:
    """Write down that the run goes on with what it knows: about just this nobody is asked again."""
    made = [_record(ex, KEEP, nameable(one.key), _told(one)) for one in moved]

    def noted(_: None) -> None:
        for record in made:
            ex.keep(record)

    await ex.write(lambda tx: _append(tx, ex, made), durable=True, then=noted)


def _append(tx: Tx, ex: Execution, made: Sequence[Record]) -> None:
    for record in made:
        steps.append(tx, ex.hold, record, now_us=record.started_us)


def _record(ex: RunMemory, name: str, key: str, result: str | None, **more: Any) -> Record:
    now = ex.now_us()
    return Record(
        id=ex.next_id(), branch="", name=name, key=key, generation=ex.generation(("", name, key)), state="done", result=result,
        started_us=now, ended_us=now, **more,
    )  # fmt: skip


def _renewed(ex: RunMemory, moved: Sequence[Drifted], text: str | None) -> list[Record]:
    """The records that make a refresh. *text*: the client record as it is now; ``None``: as far as *moved* tells."""
    keys = [one.key for one in moved if not drift.in_record(one)]
    client = ex.hold.client_id
    words = ex.store.read_now(lambda tx: {key: _history(tx, client, key) for key in keys}) if keys else {}
    sources = _sources(ex) if keys else []
    names = {nameable(key): key for key in keys}
    for source in sources:
        source.key = names.get(source.key, source.key)
    _name_versions(sources, words)
    inner = dependants.inner(ex)
    made: list[Record] = []
    for key in keys:
        made += _of_fact(ex, key, words[key], [s for s in sources if s.key == key and not s.said], inner)
    fields = [one for one in moved if drift.in_record(one)]
    return [*made, *(_of_record(ex, fields, text) if fields else [])]


def _of_fact(
    ex: RunMemory, key: str, words: Sequence[Word], sources: Sequence[_Source], inner: Mapping[str, Record]
) -> list[Record]:
    newest = words[-1] if words and words[-1].holds(ex.now_us()) else None
    by_version = {w.version: w for w in words}

    def stands(source: _Source) -> bool:
        old = by_version.get(source.version)
        if old is None or newest is None:
            return source.version <= 0 and newest is None
        return drift.same(old.value, newest.value)

    against = [s for s in sources if not stands(s) and not (s.by is not None and s.by.acts)]
    pins = [s.record for s in against if s.record is not None and s.record.name in _PINS]
    anew = [pin for pin in pins if newest is not None or pin.name == "client.get"]
    steps_ = [s.record for s in against if s.record is not None and s.record not in anew]
    gone = {r.seq for record in steps_ for r in (record, *dependants.around(record, inner))}
    asked = (s.question for s in against if s.by is None)
    answers = [[q["branch"], q["kind"], q["key"], q["n"]] for q in asked if q is not None]
    answers += _required(ex, key) if any(pin.name == facts.FOUND for pin in pins) else []
    told = {
        "key": key, "value": None if newest is None else newest.value, "version": words[-1].version if words else 0,
        "known": newest is not None, "steps": sorted(gone), "answers": answers,
    }  # fmt: skip
    marker = _record(ex, REFRESH, nameable(key), json.dumps(told, ensure_ascii=False))
    return [marker, *(_pinned_anew(ex, pin, newest) for pin in anew)]


def _required(ex: RunMemory, key: str) -> list[list[Any]]:
    """The questions for a fact that the workflow requires: their answers are not what it goes by any more."""
    rows = ex.questions.get(("", QuestionKind.REQUIRED.value, f"run.start/{key}"), [])
    return [[q["branch"], q["kind"], q["key"], q["n"]] for q in rows if q["status"] == "answered"]


def _pinned_anew(ex: RunMemory, pin: Record, newest: Word | None) -> Record:
    if newest is None:
        return _record(ex, pin.name, pin.key, "null", why=AGAIN)
    if pin.name != "run.wait_for":
        text = json.dumps({"value": newest.value, "version": newest.version}, ensure_ascii=False)
        return _record(ex, pin.name, pin.key, text, why=AGAIN)
    made = _record(ex, pin.name, pin.key, json.dumps(newest.value, ensure_ascii=False), why=AGAIN)
    made.branch, made.generation = pin.branch, pin.generation + 1
    made.facts = json.dumps({nameable(newest.key): newest.version})
    return made


def _of_record(ex: RunMemory, fields: Sequence[Drifted], text: str | None) -> list[Record]:
    """The client record anew. Where it could not be read just now, the old one only answers no more: the body reads it."""
    load = ex.workflow.loader
    old = None if load is None else outside_record.loaded(ex, load)
    if old is None:
        return []
    before = ex.result_text(old)
    if text is None and ex.unread_record is None and before is not None:
        text = json.dumps(drift.patched(json.loads(before), fields), ensure_ascii=False)
    gone = [old.seq] if text is None else []
    marker = _record(ex, RELOAD, drift.RECORD, json.dumps({"steps": gone, "answers": []}))
    if text is None:
        return [marker]
    old.used = True
    made = _record(ex, old.name, old.key, text, why=AGAIN, inputs=old.inputs, args=old.args)
    return [marker, made]


# -- deciding ---------------------------------------------------------------------------------------------------------------


def _question(ex: RunMemory) -> Row | None:
    """The newest question about drift."""
    rows = ex.questions.get(("", KEY, KEY), [])
    return rows[-1] if rows and rows[-1]["status"] != "withdrawn" else None


def _obeyed(ex: RunMemory, row: Row) -> bool:
    """Whether what was answered is on record as done."""
    after = (r for r in (*ex.records.values(), *ex.older) if r.name in (KEEP, REFRESH, RELOAD))
    return any(r.seq > row["asked_seq"] for r in after)


def decided(ex: Execution, moved: Sequence[Drifted]) -> str | None:
    """What becomes of what moved, without asking anybody (anew): ``keep`` or ``refresh``; ``None``: a person is asked.

    Args:
        ex: the run.
        moved: what was found and is ``read``.
    """
    if ex.drift_chosen is not None and all(map(ex.drift_chosen.covers, moved)):
        return ex.drift_chosen.choice
    if ex.workflow.settings.on_drift in _KINDS:
        return ex.workflow.settings.on_drift
    row = _question(ex)
    if row is None or row["status"] != "answered" or row["about"] != _about(moved) or _obeyed(ex, row):
        return None
    choice = choice_of(json.loads(row["answer"]))
    return choice if choice in _KINDS else None


def undecided(ex: Execution, moved: Sequence[Drifted]) -> bool:
    """Whether a person is asked, or was and has not answered yet, before the run goes on."""
    return bool(moved) and decided(ex, moved) is None


def _about(moved: Sequence[Drifted]) -> str:
    return digest(canonical(drift.about(moved)))


async def settle(ex: Lifecycle) -> bool:
    """Before the body begins: find what moved, and keep or refresh it, or ask. ``False``: the body must not begin.

    A run that only was taken over, or waited shortly, is not looked at; one that has asked is, until the answer is obeyed.
    """
    row = _question(ex)
    stands = row is not None and (row["status"] == "open" or (row["status"] == "answered" and not _obeyed(ex, row)))
    looks = ex.recovery and ex.workflow.settings.on_drift != "keep"  # else the code itself says that nothing is to be done
    if not ex.resumed or not (stands or ex.drift_chosen is not None or looks):
        ex.drift_compared = True
        return True
    if row is not None and row["status"] == "answered" and choice_of(json.loads(row["answer"])) == "stop":
        ex.halt(Stop(RunStatus.CANCELLED, f"stopped by {row['answered_by']}", kind=FailureKind.FIXABLE))
        return False
    found = await look(ex)
    if ex.unloading is not None:
        return False
    moved = tuple(one for one in found if one.read)
    if row is not None and stands and ex.unread_record is not None:  # it cannot be looked at now: as it was when it was asked
        moved += tuple(one for one in _drift_text.asked(json.loads(row["context"])) if drift.in_record(one))
    if await _chosen_before(ex, moved):
        return await settle(ex)
    choice = decided(ex, moved) if moved else None
    if row is not None and row["status"] == "open":
        if moved and choice is None and row["about"] == _about(moved):
            ex.idle(row)
            return False
        if not await ex.withdrawn(row["id"]):
            return await settle(ex)
    if moved and choice is None:
        ex.idle(await _ask(ex, moved, found))
        return False
    await _obey(ex, choice, moved)
    ex.drift_compared = True
    return True


async def _chosen_before(ex: Execution, moved: Sequence[Drifted]) -> bool:
    """Whether something has moved since it was chosen what becomes of it. What had moved by then is done as was chosen."""
    said = ex.drift_chosen
    if said is None or all(map(said.covers, moved)):
        return False
    mine = tuple(filter(said.covers, moved))
    await _obey(ex, said.choice if mine else None, mine)
    ex.drift_chosen, ex.drift_compared = None, True  # what moved since is another matter
    return True


async def _obey(ex: Execution, choice: str | None, moved: Sequence[Drifted]) -> None:
    """*choice*: ``None``: nothing moved."""
    if choice == "refresh":
        await refresh(ex, moved)
    elif choice is None:
        return
    elif ex.workflow.settings.on_drift != "keep" or ex.drift_chosen is not None:  # else the code says it every time
        await keep(ex, moved)


async def _ask(ex: Execution, moved: Sequence[Drifted], found: Sequence[Drifted]) -> Row:
    moved = await _rehearsed(ex, moved)
    usd, seconds = dependants.price(ex, moved)
    draft = _drift_text.question(asking.situation(ex), moved, notes=notes(ex, found), usd=usd, seconds=seconds)
    return await asking.store(ex, QuestionKind.DRIFT, KEY, draft, about=_about(moved))


async def _rehearsed(ex: Execution, moved: Sequence[Drifted]) -> Sequence[Drifted]:
    """The same with what depends on each, as the run's own code shows it when it meets what is so now. Nothing is written."""
    from stepseven.runtime.rehearsal import Rehearsal  # which stands above this module

    async def way(now: Sequence[Drifted], whole: str | None) -> Observed:
        loaded = await ex.store.read(lambda tx: load(tx, ex.hold.run_no))  # a rehearsal plays with what it is given
        assert loaded is not None  # the run is ours  # noqa: S101
        return await rehearse(Rehearsal(ex.services, ex.workflow, loaded), now, whole)

    return await with_dependants(ex, moved, way)


async def rehearse(rehearsal: Rehearsal, now: Sequence[Drifted], whole: str | None) -> Observed:
    """What a resume would do that has refreshed some changes.

    Args:
        rehearsal: a fresh one.
        now: the changes; none: everything is kept as the run knows it.
        whole: the client record as it is now; ``None``: as far as the changes tell.
    """
    if now:
        rehearsal.reread_record = whole
        refresh_in_memory(rehearsal, now)
        rehearsal.changed = True  # what a call is given may be another thing than last time
    return await rehearsal.rehearse()


async def with_dependants(
    ex: Execution, moved: Sequence[Drifted], way: Callable[[Sequence[Drifted], str | None], Awaitable[Observed]]
) -> Sequence[Drifted]:
    """What moved, with everything that depends on each: one list for the question and for the plan.

    Args:
        ex: the run.
        moved: what ``look`` found and is ``read``.
        way: what a resume would do, of changes that are refreshed, as ``rehearse`` tells it.
    """

    async def runs(now: Sequence[Drifted], whole: str | None = None) -> Counter[str]:
        return Counter(met.name for met in (await way(now, whole)).met if met.do is Do.RUN)

    before = await runs(())
    groups = [[one] for one in moved] if len(moved) <= _ONE_BY_ONE else [list(moved)]
    told: list[Drifted] = []
    single: Counter[str] = Counter()
    for group in groups:
        ran = await runs(group) - before
        single |= ran
        told += [replace(one, depends=tuple(dependants.on(ex, one, ran))) for one in group]
    if ex.reread_record is None or not any(drift.in_record(one) for one in told):
        return told
    besides = await runs(moved, ex.reread_record) - before - single  # a refresh takes the record whole, unwatched fields too
    return [
        replace(one, depends=tuple(dict.fromkeys((*one.depends, *dependants.on(ex, one, besides)))))
        if besides and drift.in_record(one) else one
        for one in told
    ]  # fmt: skip
