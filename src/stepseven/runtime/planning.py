"""``layer.plan``: look at a run without touching it, and say what a resume would do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepseven.decide.changes import shown
from stepseven.decide.drift import in_record
from stepseven.decide.plan import Do, Met, Observed, Plan, Standing
from stepseven.decide.plan import plan as planned
from stepseven.model import INTERNAL, QuestionKind, RunStatus
from stepseven.runtime import ceilings, choosing, codechange, drifting, startable
from stepseven.runtime.procedure import code_of
from stepseven.runtime.rehearsal import Rehearsal
from stepseven.transitions import prices, recoveries, runs
from stepseven.transitions.state import Loaded, Record, load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepseven.decide.plan import Drifted, Price
    from stepseven.runtime.choosing import Wanted
    from stepseven.runtime.procedure import Workflow
    from stepseven.runtime.services import Services
    from stepseven.store.base import Row, Tx
    from stepseven.transitions.recoveries import Chosen

CONTINUE, REFRESH = "continue", "refresh"
_SEEN_AGAIN = (QuestionKind.DRIFT, QuestionKind.CODE)  # what they are about is looked at anew, and told as it is now


async def plan(services: Services, run_id: str, wanted: Wanted | None = None) -> Plan:
    """What a resume of a run would reuse, run and ask. Changes nothing; probes and other looks are asked.

    Args:
        services: where it is.
        run_id: the run.
        wanted: what would be chosen when it is resumed, as given.

    Raises:
        UnknownRun: there is none with this id.
        AmbiguousWorkflow: several modules have a workflow of its name, and none is the code it was executed with.
        UnknownWorkflow, InvalidChoice, SecretFound, TooLarge: what would be chosen would be refused.
    """

    def unit(tx: Tx) -> tuple[Loaded, dict[str, Price], Chosen | None]:
        row = runs.known(tx, run_id)
        chosen = choosing.foreseen(tx, wanted, row) if wanted is not None and wanted.anything else None
        loaded = load(tx, row["no"])
        assert loaded is not None  # it is there in the same snapshot  # noqa: S101
        return loaded, prices.prices(tx, row["workflow"], client_id=row["client_id"], own=row), chosen

    loaded, priced, chosen = await services.store.read(unit)
    now, dead, row = services.edge.now_us(), services.worker.reported_dead, loaded.run
    broke_off = row["status"] == "running" and await services.store.read(
        lambda tx: runs.seems_dead(tx, row["owner"], now, dead(tx))
    )
    _suppose(loaded, chosen)
    if RunStatus(loaded.run["status"]).ended:
        return planned(_standing(services, loaded), {}, priced)
    workflow = code_of(loaded.run)
    if workflow is None:
        return planned(_standing(services, loaded), {CONTINUE: _without_code(loaded)}, priced)
    told = {} if chosen is None else chosen.told()
    seen = await observe(services, workflow, loaded, chosen)
    names, client = startable.named(seen.ways.values()), row["client_id"]
    if names:
        priced = await services.store.read(lambda tx: startable.look(tx, names, client, priced))
    standing = replace(_standing(services, loaded), asks=seen.asks, left=seen.left, used=seen.used, broke_off=broke_off)
    return replace(planned(standing, seen.ways, priced, drift=seen.drift, notes=seen.notes), chosen=told)


class Seen:
    """What was seen of a run: each way to done, what moved, what is worth knowing."""

    def __init__(self) -> None:
        self.ways: dict[str, Observed] = {}
        self.drift: tuple[Drifted, ...] = ()
        self.notes: list[str] = []
        self.asks = False
        self.left: dict[str, float] = {}  # of the run's limits
        self.used: dict[str, float] = {}  # and what is used of them


async def observe(services: Services, workflow: Workflow[Any, Any], loaded: Loaded, chosen: Chosen | None) -> Seen:
    """Let the run's code meet its records: as they are, and where something moved, with what is so now."""
    seen = Seen()
    first = Rehearsal(services, workflow, loaded)
    seen.left, seen.used = await ceilings.left(first), await ceilings.so_far(first)
    looked = await drifting.look(first)
    seen.drift = tuple(d for d in looked if d.read)
    seen.asks = bool(seen.drift) and drifting.undecided(first, seen.drift)
    renamed = codechange.asks(first)
    seen.notes += [*codechange.notes(first), *drifting.notes(first, looked)]
    decided = drifting.decided(first, seen.drift)
    if decided != REFRESH or not seen.drift:
        seen.ways[CONTINUE] = await first.rehearse()
    if seen.drift and decided != "keep":
        again = Rehearsal(services, workflow, await services.store.read(lambda tx: _once_more(tx, loaded, chosen)))
        # the record whole, and not only the fields that are asked about
        seen.ways[REFRESH] = await drifting.rehearse(again, seen.drift, first.reread_record)
    if seen.asks:
        seen.drift = await _depending(services, loaded, chosen, first, seen)
    seen.notes += first.notes
    if renamed is not None:
        seen.ways = {name: _with_code(way, *renamed) for name, way in seen.ways.items()}
    return seen


async def _depending(
    services: Services, loaded: Loaded, chosen: Chosen | None, first: Rehearsal, seen: Seen
) -> tuple[Drifted, ...]:
    """What moved, with what depends on each: that takes a look at each alone, where several moved."""

    async def fresh() -> Rehearsal:
        return Rehearsal(services, first.workflow, await services.store.read(lambda tx: _once_more(tx, loaded, chosen)))

    async def way(now: Sequence[Drifted], whole: str | None) -> Observed:
        if not now and CONTINUE in seen.ways:
            return seen.ways[CONTINUE]
        alike = whole is first.reread_record or not any(map(in_record, now))
        if alike and tuple(now) == seen.drift and REFRESH in seen.ways:
            return seen.ways[REFRESH]
        return await drifting.rehearse(await fresh(), now, whole)

    unplayed = await fresh()  # the first one has been played with
    unplayed.reread_record = first.reread_record
    return tuple(await drifting.with_dependants(unplayed, seen.drift, way))


def _with_code(way: Observed, question: str, could_be: Mapping[str, str]) -> Observed:
    """The same with what is asked about the code first: a step that may be one on record runs only if it is not."""
    asked = Met(name="run.code", do=Do.ASK, why="the code changed", question=question, new=True)
    met = [
        replace(m, why=f"unless it is “{shown(could_be[m.name])}”, renamed") if m.do is Do.RUN and m.name in could_be else m
        for m in way.met
    ]
    return replace(way, met=(asked, *met))


def _suppose(loaded: Loaded, chosen: Chosen | None) -> None:
    """See the run as it would be resumed: what would be chosen is chosen, and the questions that this answers are answered."""
    if chosen is not None:
        loaded.recoveries.append(recoveries.supposed(chosen, loaded))


def _once_more(tx: Tx, first: Loaded, chosen: Chosen | None) -> Loaded:
    """The run once more, for another rehearsal."""
    loaded = load(tx, first.run["no"])
    assert loaded is not None  # a run is never deleted  # noqa: S101
    _suppose(loaded, chosen)
    return loaded


def _asked(loaded: Loaded) -> list[Row]:
    return [row for rows in loaded.questions.values() for row in rows if row["status"] == "open" and row["folded_into"] is None]


def _standing(services: Services, loaded: Loaded) -> Standing:
    run = loaded.run
    asked = [row for row in _asked(loaded) if row["kind"] not in _SEEN_AGAIN]
    return Standing(
        run_id=run["id"], client_id=run["client_id"], workflow=run["workflow"], goal=run["goal"], status=run["status"],
        waiting_for=run["waiting_for"], updated_us=run["updated_us"], looked_us=services.edge.now_us(),
        questions=tuple(str(row["text"]).split("\n", 1)[0] for row in asked),
    )  # fmt: skip


def _without_code(loaded: Loaded) -> Observed:
    """What can be said where the run's code is not loaded: what is on record, and that the rest is not known."""
    kept = [r for r in loaded.records.values() if not r.name.startswith(INTERNAL)]
    asked = _asked(loaded)
    return Observed(
        met=(*(_kept(r) for r in kept), *(_open(row) for row in asked)),
        unknown=(f"what comes next: workflow {loaded.run['workflow']!r} is not loaded here; name its module with --module",),
    )


def _kept(record: Record) -> Met:
    seconds = None if record.ended_us is None else (record.ended_us - record.started_us) / 1e6
    return Met(
        name=record.name, branch=record.branch, key=record.key, do=Do.REUSE, maybe=True, effect=record.effect,
        usd=None if record.usd is None else record.usd / 1e6, tokens=record.tokens, seconds=seconds, summary=record.summary,
    )  # fmt: skip


def _open(row: Any) -> Met:
    text = str(row["text"]).split("\n", 1)[0]
    return Met(name=row["step"] or f"run.{row['kind']}", branch=row["branch"], key=row["key"], do=Do.ASK, question=text)
