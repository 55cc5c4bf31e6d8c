"""The code changed while a run waited: are steps gone that are on record, and could new ones be the same under other names?

Asked before the body begins, and only then: when the new step has run, it is too late to ask. What a person said stands with the
question and is obeyed from there at every load; nothing is rewritten, but for the workflow's name of a started run that goes on.

Longer than other files: what is looked at, asked and foreseen are one comparison, read from the same records.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stepseven.decide import _phrases as say
from stepseven.decide import changes, escalate
from stepseven.decide.changes import MAP, START, Changes, Kept, Known, Source
from stepseven.decide.plan import UNKNOWN
from stepseven.errors import NotRecordable
from stepseven.model import INTERNAL, EffectState, FailureKind, QuestionKind, RunStatus
from stepseven.runtime import ahead, asking, chosen, inside, known, outline
from stepseven.runtime import begun as runs_begun
from stepseven.runtime.procedure import registry
from stepseven.store.codec import free_text
from stepseven.transitions import codes, renaming, steps, taking
from stepseven.transitions.codes import PASSED_BY, Has
from stepseven.transitions.offering import UNDO
from stepseven.transitions.runs import lost
from stepseven.transitions.state import Record, choice_of
from stepseven.transitions.taking import Wanting

if TYPE_CHECKING:
    from stepseven.decide.plan import Coming
    from stepseven.runtime.declared import Step
    from stepseven.runtime.inside import Inside
    from stepseven.runtime.lifecycle import Lifecycle
    from stepseven.runtime.memory import RunMemory
    from stepseven.runtime.procedure import Workflow
    from stepseven.store.base import Row, Tx

CODE = QuestionKind.CODE.value
_AHEAD = "code_ahead"  # in the question's context


# -- before the body begins ---------------------------------------------------------------------------------------------------


async def settle(ex: Lifecycle) -> bool:
    """Ask what only a person can tell about changed code, or obey what was said. Whether the body may begin.

    A recovery looks, and for writes any execution with other code; what was asked before holds the run whoever takes it. A
    question that the code has answered since is closed.
    """
    may, looked = await _settled(ex)
    if may:
        await _keep_ahead(ex, looked=looked)
    return may


async def _settled(ex: Lifecycle) -> tuple[bool, bool]:
    """Whether the body may begin, and whether it was compared."""
    from stepseven.runtime.memory import Stop

    for row in ex.questions.get(("", CODE, CODE), []):
        if row["status"] == "answered" and choice_of(json.loads(row["answer"])) == "stop":
            ex.halt(Stop(RunStatus.CANCELLED, f"stopped by {row['answered_by']}", kind=FailureKind.FIXABLE))
            return False, False
    asked = _open(ex)
    if asked is None and not _looks(ex):
        return True, False
    pairs = look(ex).pairs
    if asked is None and not ex.recovery:  # whatever the reads are, they only cost; a write under another name is done twice
        pairs = tuple(p for p in pairs if p.old.acts)
    wanted = any(p.to is not None for p in pairs)
    if asked is None and not wanted:
        return True, True
    if await ex.store.read(partial(newer_lives, ex)):
        ex.release(f"a worker with newer code of {ex.workflow.name} lives, and takes it")
        return False, True
    if asked is not None and wanted and _lines(asked) == [p.line() for p in pairs]:
        ex.idle(asked)
        return False, True
    if asked is not None and not await ex.withdrawn(asked["id"]):
        return await _settled(ex)
    if not wanted:
        return True, True
    draft = escalate.code(asking.situation(ex), pairs)
    draft.context[_AHEAD] = _ahead(ex, asked)
    ex.idle(await asking.store(ex, QuestionKind.CODE, CODE, draft))
    return False, True


async def _keep_ahead(ex: Lifecycle, *, looked: bool) -> None:
    """Before the body begins: make sure that it is on record what this code has, so that newer code is compared with that.

    Ordinarily it is: the take wrote it, or the park. It is not where the source had not been read by the take, and where other
    code than wrote it is about to be executed. It is the same transaction's worth whatever comes after: a claim is written later.
    """
    kept = _ahead(ex, None)
    if ex.workflow.name == UNDO or (kept is not None and not looked):
        return
    have = names(ex.workflow)
    if kept is not None and have <= {*kept, *ex.counts, *_mapped_before(ex)} and {*kept} <= {*have, UNKNOWN}:
        return
    _, remaining = outline.ahead(ex)
    text, passed = json.dumps(remaining), _passed(ex, remaining)

    def unit(tx: Tx) -> None:
        if not codes.note_ahead(tx, ex.hold, text):
            raise lost(tx, ex.hold)
        if passed is not None:
            steps.append(tx, ex.hold, passed, now_us=ex.now_us())

    def then(_: None) -> None:
        ex.run = {**ex.run, "remaining": text}
        if passed is not None:
            ex.keep(passed)

    await ex.write(unit, durable=False, then=then)


def has(workflow: Workflow[Any, Any]) -> Has:
    """What a workflow's code has, as a take writes it down. Reads the source, once."""
    found = _has.get(workflow)
    if found is None:
        maps = [name for name in _mapped(workflow) if name]
        found = _has[workflow] = Has(
            steps=json.dumps(ahead.names(ahead.whole(workflow))), maps=json.dumps(sorted(maps)) if maps else None
        )
    return found


def has_read(workflow: Workflow[Any, Any]) -> Has | None:
    """The same, where the source was read before: this is for a transaction, which does not wait for that."""
    return _has.get(workflow)


_has: WeakKeyDictionary[Workflow[Any, Any], Has] = WeakKeyDictionary()


def _looks(ex: RunMemory) -> bool:
    """Whether this execution compares: a recovery does, and whoever has other code than the run was executed with last.

    Whoever goes on after a worker with the same new code has died, too: that one may not have come to it. And other code it is
    whatever the digest says, where steps were exchanged.
    """
    other = ex.code_before is not None and ex.code_before != ex.workflow.digest
    begun = (ex.broke_off and bool(ex.codes)) or _unexecuted(ex)
    return ex.workflow.name != UNDO and (ex.recovery or other or begun or _exchanged(ex, _source(ex.workflow)[0]))


def _unexecuted(ex: RunMemory) -> bool:
    """Whether this code took the run before, and nothing that it did is on record: it may only have asked something first."""
    if not ex.codes or ex.codes[-1].digest != ex.workflow.digest:
        return False
    return all(r.seq <= ex.codes[-1].seq or r.name.startswith(INTERNAL) for r in ex.records.values())


def unmet(ex: RunMemory) -> bool:
    """Whether the run's calls are on record as an older code made them: this one only asked about itself, or took the run."""
    rows = ex.questions.get(("", CODE, CODE), [])
    asked = bool(rows) and all(r.seq <= rows[-1]["asked_seq"] or r.name.startswith(INTERNAL) for r in ex.records.values())
    return asked or _unexecuted(ex)


def _open(ex: RunMemory) -> Row | None:
    rows = ex.questions.get(("", CODE, CODE), [])
    return rows[-1] if rows and rows[-1]["status"] == "open" else None


def _lines(row: Row) -> Any:
    return json.loads(row["context"]).get("code")


def _ahead(ex: RunMemory, asked: Row | None) -> Any:
    """What the older code had: kept with an open question, since the newer code puts the run away with it."""
    if asked is not None:
        return json.loads(asked["context"]).get(_AHEAD)
    return None if ex.run["remaining"] is None else [*json.loads(ex.run["remaining"]), *_passed_by(ex)]


def _passed_by(ex: RunMemory) -> list[str]:
    record = ex.records.get(("", PASSED_BY, "steps"))
    return [] if record is None else list(json.loads(record.result or "[]"))


def passed_by(ex: RunMemory, remaining: Collection[str]) -> Record | None:
    """What the code of a run that is put away has, besides what is on record or ahead: in newer code that is nothing new.

    That is what stands in a branch that the run did not take. Only code that was executed says so: what is asked about newer
    code is asked before that is.

    Args:
        ex: the run.
        remaining: the steps that are kept as being ahead.

    Returns:
        A record to be written; ``None``: nothing, or it is on record.
    """
    met = (*ex.counts, *(name for _, name, _ in ex.attempts))
    if ex.left is None or ex.workflow.name == UNDO or all(name.startswith(INTERNAL) for name in met):
        return None  # where no step is on record, none can be gone
    return _passed(ex, remaining)


def _mapped_before(ex: RunMemory) -> set[str]:
    """What was mapped over at least one item."""
    return {MAP + inside.base(r.key) for r in ex.records.values() if r.name == "run.map" and '"of": 0' not in (r.result or "")}


def _passed(ex: RunMemory, remaining: Collection[str]) -> Record | None:
    have = names(ex.workflow)
    wanted, kept = have - {*remaining, *ex.counts, *_mapped_before(ex)}, frozenset(_passed_by(ex))
    if wanted <= kept <= have:
        return None
    now, key = ex.now_us(), ("", PASSED_BY, "steps")
    return Record(
        id=ex.next_id(), branch="", name=PASSED_BY, key="steps", generation=ex.generation(key), state="done",
        result=json.dumps(sorted(wanted)), started_us=now, ended_us=now,
    )  # fmt: skip


def newer_lives(ex: RunMemory, tx: Tx) -> bool:
    """Whether a living worker has newer code of this workflow: what this one does not know is left to that."""
    worker, digest = ex.services.worker, ex.workflow.digest
    w = Wanting(worker=worker.id, digests={ex.workflow.name: digest}, gone=worker.gone)
    return taking.left_to_newer(tx, w, ex.now_us())


# -- looking ------------------------------------------------------------------------------------------------------------------


def notes(ex: RunMemory) -> tuple[str, ...]:
    """What is worth knowing of the code's changes and needs nobody, as sentences."""
    return () if ex.workflow.name == UNDO else changes.sentences(look(ex))


def asks(ex: RunMemory) -> tuple[str, dict[str, str]] | None:
    """What a recovery would ask before anything runs; ``None``: nothing. Nothing is stored.

    Returns:
        The headline of the question, and the new steps it is about: which one on record each could be.
    """
    pairs = () if ex.workflow.name == UNDO else look(ex).pairs
    could_be = {p.to: p.old.name for p in pairs if p.to is not None}
    if not could_be:
        return None
    draft = escalate.code(asking.situation(ex), pairs)  # type: ignore[arg-type]  # it only reads
    return draft.text.split("\n", 1)[0], could_be


def look(ex: RunMemory) -> Changes:
    """What is different between what is on record and what the code calls. Reads only."""
    source, steps = _source(ex.workflow)
    asked = _open(ex)
    other = ex.code_before is not None and ex.code_before != ex.workflow.digest
    changed = asked is not None or ex.broke_off or other or _unexecuted(ex) or _exchanged(ex, source)
    compare = partial(changes.compare, said=renaming.said(ex.questions), changed=changed, ahead=_ahead(ex, asked))
    kept = _kept(ex, claims=changed)
    found = compare(kept, source)
    reads = [p.old.name for p in found.pairs if not p.old.writes]
    if reads:
        found = compare(kept, _with_types(ex, source, steps, reads))
    return found if other else replace(found, changed=False, new=())  # what only may have changed is not told as a change


def _exchanged(ex: RunMemory, source: Source) -> bool:
    """Whether steps were exchanged in a module that is not the workflow's: the digest is that of the workflow's own source.

    What acts is gone, from the source and from what is loaded, and something is in the source that was not. Nothing is read
    from the store where all that the source has was there before: a run that just wakes pays nothing for it.
    """
    if source.unseen or not (ex.resumed or ex.kin or ex.run["root_no"]):
        return False
    before = _ahead(ex, None)
    mapped = {MAP + inside.base(r.key) for r in ex.records.values() if r.name == "run.map"}
    if source.names() <= {*(before or ()), *ex.counts, *mapped}:
        return False
    kept = _kept(ex, claims=True)
    pairs = changes.compare(kept, source, said=renaming.said(ex.questions), changed=True, ahead=before).pairs
    return any(p.old.acts and not _loaded(ex, p.old) for p in pairs)


def _loaded(ex: RunMemory, old: Kept) -> bool:
    """Whether a step that may be the one on record is declared: it may be called where the source does not tell.

    One of the same name in a module that the workflow calls nothing of is another.
    """
    if old.name.startswith(START):
        return changes.shown(old.name) in registry
    steps = {step.fn.__module__ for step in ahead.steps_of(ex.workflow)}
    mine = (s for s in known.living(old.name) if s.fn.__module__ in {*steps, ex.workflow.fn.__module__})
    return any(step.settings.writes or not old.writes for step in mine)


def names(workflow: Workflow[Any, Any]) -> frozenset[str]:
    """The names of the steps that a workflow's code calls, those its steps call, and what it maps, as far as they can be read."""
    return frozenset((*_called(workflow)[0], *_mapped(workflow)))


def _mapped(workflow: Workflow[Any, Any]) -> tuple[str, ...]:
    """What a workflow maps, and the workflows whose runs it starts, each once, as they are named beside steps."""
    maps = (MAP + inside.base(m.key) for m in ahead.maps(workflow) if m.key)
    return tuple(dict.fromkeys((*maps, *(START + name for name in ahead.starts(workflow) if name))))


def _called(workflow: Workflow[Any, Any]) -> tuple[dict[str, Coming], bool]:
    """The steps, by name; and whether something is called that cannot be read."""
    comings = ahead.whole(workflow)
    steps = {c.name: c for c in comings if c.name != UNKNOWN and not c.name.startswith(INTERNAL)}
    return steps, any(c.name == UNKNOWN for c in comings)


def _source(workflow: Workflow[Any, Any]) -> tuple[Source, dict[str, Step[Any, Any] | None]]:
    """What the code calls; and the steps by name, ``None`` where a name is that of several of them."""
    called, unseen = _called(workflow)
    steps = {name: ahead.step_named(workflow, name) for name in called}
    known_ = (
        *(_known(c, steps[name], workflow) for name, c in called.items()), *(Known(name=name) for name in _mapped(workflow))
    )  # fmt: skip
    return Source(steps=known_, unseen=unseen), steps


def _known(coming: Coming, step: Step[Any, Any] | None, workflow: Workflow[Any, Any]) -> Known:
    if step is None:
        each = [s.settings for s in ahead.steps_named(workflow, coming.name)]
        before = tuple(dict.fromkeys(name for o in each for name in o.renamed_from))
        writes = coming.effect is not None or any(o.writes for o in each)
        return Known(name=coming.name, writes=writes, renamed_from=before, usd=coming.cost_usd)
    o = step.settings
    arguments = frozenset(step.parameters.names) - step.parameters.ignore
    return Known(
        name=coming.name, writes=o.writes, arguments=arguments, renamed_from=o.renamed_from,
        usd=None if o.cost is None else o.cost.usd,
    )  # fmt: skip


def _with_types(ex: RunMemory, source: Source, steps: dict[str, Step[Any, Any] | None], reads: Collection[str]) -> Source:
    """The same, knowing which results on record each read step cannot have given."""
    newest = {r.name: r for r in ex.records.values() if r.name in reads and r.state == "done"}
    texts = {name: text for name, r in newest.items() if (text := ex.result_text(r)) is not None}

    def misfits(step: Step[Any, Any] | None) -> Iterable[str]:
        if step is None or step.settings.writes:  # none: of a map
            return
        for name, text in texts.items():
            try:
                step.typed.decode(text)
            except NotRecordable:
                yield name

    made = (replace(k, cannot_read=frozenset(misfits(steps.get(k.name)))) for k in source.steps)
    return replace(source, steps=tuple(made))


# -- what is on record ----------------------------------------------------------------------------------------------------------


def _kept(ex: RunMemory, *, claims: bool) -> list[Kept]:
    """The steps on record that matter: a read with a result, a write that was done or may have been."""
    found: dict[str, list[Record]] = {}
    for record in ex.records.values():
        if record.state in ("done", "skipped") and not record.name.startswith(INTERNAL):
            found.setdefault(record.name, []).append(record)
    rows = _claims(ex) if claims else []
    claimed: dict[str, list[Row]] = {}
    for row in rows:
        claimed.setdefault(row["step"], []).append(row)
    made = inside.inside(ex, rows)
    entered = {name: None for name in made if not changes.is_map(name)}
    kept = [_kept_one(ex, name, found.get(name, []), claimed.get(name, [])) for name in {**found, **claimed, **entered}]
    kept = [replace(k, inside=True) if k.name in made and made[k.name].acts else k for k in kept]
    kept += _kept_maps(ex, made, {k.name for k in kept})
    kept += _kept_choices(ex, {k.name for k in kept}) if ex.wishes else ()
    # Where it cannot be seen what is started, one that is gone may still be.
    return [*kept, *runs_begun.kept(ex)] if claims and "" not in ahead.starts(ex.workflow) else kept


def _kept_choices(ex: RunMemory, on_record: Collection[str]) -> Iterable[Kept]:
    """Steps that the code does not have, and that a person has chosen something about before they were reached."""
    has = _called(ex.workflow)[0]
    for name, wish in chosen.pending(ex).items():
        if name not in on_record and name not in has:
            what = "it is skipped, as {} chose" if wish.choice == "skip" else "its result is given by {}"
            yield Kept(name=name, count=0, given=what.format(wish.chosen.by or "a person"))


def _kept_maps(ex: RunMemory, made: Mapping[str, Inside], steps: Collection[str]) -> Iterable[Kept]:
    """What was mapped. One whose step is gone from the code goes with that: its map is found under the step's names."""
    source = ahead.maps(ex.workflow)
    called, there = _called(ex.workflow)[0], inside.elsewhere(ex, source)
    for name, one in made.items():
        mapped = changes.shown(name)
        if changes.is_map(name) and name not in there and (mapped not in steps or mapped in called):
            yield Kept(name=name, count=len(one.branches), usd=one.usd / 1e6, inside=one.acts, doubt=one.doubt)


def _claims(ex: RunMemory) -> list[Row]:
    """What the run has claimed, and the one it is a fork of: done, or not known."""
    numbers = {ex.hold.run_no, ex.run["root_no"]} - {None}
    rows = ex.store.read_now(lambda tx: [row for no in numbers for row in tx.all(tx.sql.effects, {"run_no": no})])
    return [row for row in rows if row["state"] != EffectState.REFUSED and row["undone_us"] is None]


def _kept_one(ex: RunMemory, name: str, rows: list[Record], claims: list[Row]) -> Kept:
    done = [c for c in claims if c["state"] == EffectState.DONE]
    tried = sum(row["usd"] or 0 for (_, of, _), all_ in ex.attempts.items() if of == name for row in all_)
    newest = rows[-1] if rows else None
    args = next((r.args for r in reversed(rows) if r.args is not None), None)
    arguments = None if args is None else frozenset(json.loads(args))
    if args is None and claims and claims[-1]["arguments"]:
        arguments = frozenset(json.loads(claims[-1]["arguments"]))
    return Kept(
        name=name, count=max(len(rows), len(done)), writes=bool(claims) or any(r.effect is not None for r in rows),
        usd=(sum(r.usd or 0 for r in rows) + tried) / 1e6, arguments=arguments, told=_told(newest, done),
        doubt=len(claims) > len(done),
    )  # fmt: skip


def _told(record: Record | None, done: list[Row]) -> str:
    """In a few words what is there."""
    if record is not None and record.summary:
        return free_text(record.summary, 100)
    text = record.result if record is not None and record.result is not None else done[-1]["receipt"] if done else None
    value = None if text is None else json.loads(text)
    return "" if value in (None, {}, []) else say.shown(value)


def renamed(workflow: Workflow[Any, Any], asked: Mapping[tuple[str, str, str], list[Row]]) -> dict[str, tuple[str, ...]]:
    """Step (or map) → the names its calls may be on record under, as people said."""
    same = renaming.said(asked).same
    return changes.earlier(same, names(workflow)) if same else {}
