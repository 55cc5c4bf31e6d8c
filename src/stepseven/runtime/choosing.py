"""What a caller of ``resume`` chooses, checked against the run before anything is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.decide.plan import UNKNOWN
from stepseven.errors import InvalidArgument, InvalidChoice, NotRecordable, SecretFound, TooLarge, UnknownWorkflow
from stepseven.model import INTERNAL, QuestionKind, RunStatus
from stepseven.runtime import ahead, checks, known
from stepseven.runtime.calls import inner_branch
from stepseven.runtime.declared import Step
from stepseven.runtime.procedure import code_of
from stepseven.store.codec import canonical, free_text
from stepseven.store.redact import find_secret
from stepseven.transitions import recoveries
from stepseven.transitions.questions import REFUSED
from stepseven.transitions.recoveries import AS_WRITTEN, Chosen, Drift
from stepseven.transitions.state import load, outwards

if TYPE_CHECKING:
    from stepseven.runtime.procedure import Workflow
    from stepseven.store.base import Row, Tx
    from stepseven.transitions.state import Loaded, Record

MOST = 1 << 20  # characters of a given value, as of an answer's
_DRIFTS = ("keep", "refresh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a caller chose, as given. Steps are named; a value is what the step returns, ``None``: it is skipped."""

    approach: Mapping[str, str] = field(default_factory=dict)
    skip: Mapping[str, Any] = field(default_factory=dict)
    rerun: tuple[str, ...] = ()
    drift: Drift | None = None
    by: str | None = None
    plan: str = recoveries.NO_PLAN  # what was looked at before, as JSON

    @property
    def anything(self) -> bool:
        """Whether anything was chosen."""
        return bool(self.approach or self.skip or self.rerun or self.drift)


def wanted(
    run_id: str,
    *,
    approach: Mapping[str, str] | None,
    skip: Mapping[str, Any] | None,
    rerun: Collection[str] | None,
    drift: str | None,
    by: str | None,
) -> Wanted:
    """What was given to ``resume`` or ``plan``, as far as it can be checked without the run.

    Raises:
        InvalidChoice: it cannot be meant so. InvalidArgument: the run's id is no text, or who chooses no name.
    """
    checks.text("run_id", run_id, checks.RUN)
    checks.person_or_none("by", by, "say who chooses, as text")
    try:
        tried = checks.named("approach", approach, "{step: label}")
        skipped = checks.named("skip", skip, "{step: value}")
        for name, label in tried.items():
            checks.text(f"approach[{name!r}]", label, "give the label of one of its approaches, as text")
        again = _steps(rerun)
    except InvalidArgument as misfit:
        raise InvalidChoice(run_id, str(misfit)) from misfit
    if drift not in (None, *_DRIFTS):
        raise InvalidChoice(run_id, f"drift={checks.shown(drift)} is neither 'keep' nor 'refresh'")
    both = sorted({*tried} & {*skipped})
    if both:
        raise InvalidChoice(run_id, f"{both[0]!r} is to be tried and to be skipped: choose one of the two")
    return Wanted(
        approach=tried, skip=skipped, rerun=again,
        drift=drift, by=None if by is None else free_text(by, 300),  # type: ignore[arg-type]  # one of the two
    )  # fmt: skip


def _steps(rerun: Any) -> tuple[str, ...]:
    """The steps to be made anew; a single name is one of them."""
    if rerun is None:
        return ()
    if isinstance(rerun, str):
        rerun = (rerun,)
    if not isinstance(rerun, Collection) or isinstance(rerun, Mapping | bytes | bytearray):
        raise checks.refused("rerun", rerun, "give a list of steps")
    return tuple(dict.fromkeys(checks.text("rerun", name, "give the names of steps, as texts") for name in rerun))


def settle(tx: Tx, wanted: Wanted, loaded: Loaded, workflow: Workflow[Any, Any]) -> Chosen:
    """What was chosen, as it will be kept and obeyed.

    Args:
        tx: the transaction that took the run: nothing about it changes meanwhile.
        wanted: what was given.
        loaded: what is on record of the run.
        workflow: its code.

    Raises:
        InvalidChoice: it cannot be obeyed; nothing is to be written. SecretFound, TooLarge: a given value must not be kept.
    """
    look = _Look(tx, loaded, workflow)
    approach = {look.named(n): look.approach(look.named(n), label, wanted.rerun) for n, label in wanted.approach.items()}
    skip = {look.named(n): look.skip(look.named(n), value, wanted.rerun) for n, value in wanted.skip.items()}
    rerun = tuple(dict.fromkeys(each for name in wanted.rerun for each in look.rerun(look.named(name))))
    tried = {
        key: rows[-1]["n"] for key, rows in loaded.attempts.items() if any(key[1] in look.names(n) for n in (*approach, *skip))
    }
    return Chosen(
        approach=approach, skip=skip, rerun=rerun, drift=wanted.drift, as_of_seq=loaded.last_seq, tried=tried, by=wanted.by
    )  # fmt: skip


def ended(run: Row) -> str:
    """Why nothing can be chosen for a run that has ended."""
    new = f"`stepseven fork {run['id']} --from STEP` makes a new one"
    return f"it has ended ({run['status']}), so there is nothing left to choose: {new}"


def foreseen(tx: Tx, wanted: Wanted, run: Row) -> Chosen:
    """The same of a run that nobody has taken: for a look at what it would come to.

    Raises:
        UnknownWorkflow: its code is not loaded here.
        InvalidChoice, SecretFound, TooLarge: as of ``settle``; or the run has ended.
    """
    if RunStatus(run["status"]).ended:
        raise InvalidChoice(run["id"], ended(run))
    workflow, loaded = code_of(run), load(tx, run["no"])
    if workflow is None or loaded is None:
        raise UnknownWorkflow(run["workflow"], run["id"])
    return settle(tx, wanted, loaded, workflow)


class _Look:
    """One run, as a choice about it is checked."""

    def __init__(self, tx: Tx, loaded: Loaded, workflow: Workflow[Any, Any]) -> None:
        self.tx = tx
        self.loaded = loaded
        self.workflow = workflow
        self.run_id = loaded.run["id"]
        under_way = recoveries.open_one(loaded.recoveries)
        self.under_way = Chosen() if under_way is None else recoveries.chosen_of(under_way)
        self.whole = ahead.whole(workflow)
        self.coming = tuple(ahead.names(self.whole))
        asked = [row["step"] for rows in loaded.questions.values() for row in rows if row["step"]]
        names = (*(r.name for r in loaded.records.values()), *(name for _, name, _ in loaded.attempts), *asked)
        self.on_record = tuple(dict.fromkeys(name for name in names if not name.startswith(INTERNAL)))

    def refuse(self, why: str) -> InvalidChoice:
        """A choice that cannot be obeyed."""
        return InvalidChoice(self.run_id, why)

    # -- names --------------------------------------------------------------------------------------------------------------

    def named(self, name: str) -> str:
        """The name, if the run has such a step."""
        if name in self.on_record or (name in self.coming and name != UNKNOWN) or self._renamed(name) or self._unseen(name):
            return name
        has = ", ".join(self.on_record) or "none"
        more = ", ".join(n for n in self.coming if n not in self.on_record and n != UNKNOWN)
        raise self.refuse(f"it has no step {name!r}: on record are {has}" + (f", and its code calls {more}" if more else ""))

    def _renamed(self, name: str) -> bool:
        heir = known.heir(name, self.workflow.fn.__module__)
        return heir is not None and (heir.name in self.on_record or heir.name in self.coming)

    def _unseen(self, name: str) -> bool:
        """Whether the step may be called where the source does not tell what is."""
        return UNKNOWN in self.coming and known.find(name, self.workflow.fn.__module__) is not None

    def step(self, name: str) -> Step[Any, Any] | None:
        """The step of this name, or that had it; ``None``: it is not in the code that is loaded here."""
        own = self.workflow.fn.__globals__.values()
        here = next((s for s in own if isinstance(s, Step) and s.name == name), None)
        module = self.workflow.fn.__module__
        return here or known.find(name, module) or known.heir(name, module)

    def names(self, name: str) -> tuple[str, ...]:
        """The step's names, those that it had before, too: its records are under any of them."""
        step = self.step(name)
        return (name,) if step is None else tuple(dict.fromkeys((name, step.name, *step.settings.renamed_from)))

    # -- what is on record of one ---------------------------------------------------------------------------------------------

    def records(self, name: str) -> list[Record]:
        """Its records that answer."""
        names = self.names(name)
        return [r for r in self.loaded.records.values() if r.name in names]

    def open_questions(self, name: str) -> list[Row]:
        """What is being asked about it."""
        names = self.names(name)
        return [r for rows in self.loaded.questions.values() for r in rows if r["status"] == "open" and r["step"] in names]

    def _stands(self, name: str) -> bool:
        """Whether all that is known of it has its result, and nothing of it is still to be done."""
        found = self.records(name)
        ended = [r for r in found if r.state != "failed" or r.why == REFUSED]
        if not ended or len(ended) < len(found) or self.open_questions(name):
            return False
        names = self.names(name)
        tried = {key for key in self.loaded.attempts if key[1] in names}
        calls = [c for c in self.whole if c.name in names]
        again = any(c.many for c in calls) or len(calls) > len(found)  # there may be more of it to come
        return tried <= {(r.branch, r.name, r.key) for r in found} and not again

    def _writes(self, name: str) -> bool:
        step = self.step(name)
        return any(r.effect is not None for r in self.records(name)) or (step is not None and step.settings.writes)

    def _not_finished(self, name: str, rerun: Iterable[str]) -> None:
        if name in rerun or not self._stands(name):
            return
        if self._writes(name):
            raise self.refuse(f"{name} is done, and a write is done once: nothing of it is left to choose")
        raise self.refuse(f"{name} has its result: name it in rerun, too, to have it made anew")

    # -- the choices ----------------------------------------------------------------------------------------------------------

    def approach(self, name: str, label: str, rerun: Iterable[str]) -> str:
        """A label, if the step has such an approach and is not finished."""
        step = self.step(name)
        if step is None:
            raise self.refuse(f"the code of {name} is not loaded here, so none of its approaches can be chosen")
        labels = [a.label for a in step.hooks.approaches]
        if label not in (*labels, AS_WRITTEN):
            has = f"it has {', '.join(labels)}, and {AS_WRITTEN!r}" if labels else f"it is done {AS_WRITTEN!r} only"
            raise self.refuse(f"{name} has no approach {label!r}: {has}")
        if self.under_way.approach.get(name) != label:  # else its worker died, and who chose it chooses it once more
            self._not_finished(name, rerun)
        return label

    def skip(self, name: str, value: Any, rerun: Iterable[str]) -> str:
        """A value as JSON text, if it can be the step's result, and it is known that nothing of it has happened."""
        if name not in self.under_way.skip:
            self._not_finished(name, rerun)
        self._not_in_doubt(name)
        if value is None:
            return "null"
        step = self.step(name)
        text = canonical(value, f"skip[{name!r}]") if step is None else self._typed(step, value)
        if len(text) > MOST:
            raise TooLarge(f"skip[{name!r}]", len(text), MOST)
        what = find_secret(text)
        if what is not None:
            raise SecretFound(f"skip[{name!r}]", what)
        return text

    def _typed(self, step: Step[Any, Any], value: Any) -> str:
        try:
            typed = step.typed.validate_python(value)
            rejected: Any = _converted(value, typed)
            if rejected is None and step.settings.check is not None:
                rejected = step.settings.check(typed)
            text = step.typed.encode(typed)
        except TooLarge:
            raise
        except NotRecordable as misfit:
            raise self.refuse(f"what is given for {step.name} does not fit: {misfit.why}") from misfit
        except Exception as error:  # `check=` is the author's code: whatever it raises refuses the value
            raise self.refuse(f"what is given for {step.name} does not fit: {error}") from error
        if rejected is False or isinstance(rejected, str):
            raise self.refuse(f"what is given for {step.name} does not fit: {rejected or 'its check rejects it'}")
        return text

    def _not_in_doubt(self, name: str) -> None:
        """A write of which nobody knows whether it happened is found out about first."""
        kinds = (QuestionKind.UNKNOWN_OUTCOME.value, QuestionKind.CONFLICT.value)
        asked = next((row for row in self.open_questions(name) if row["kind"] in kinds), None)
        if asked is not None:
            raise self.refuse(f"it is not known whether {name} has happened: answer question {asked['id']} first")
        names = self.names(name)
        rows = self.tx.all(self.tx.sql.effects, {"run_no": self.loaded.run["no"]}) if self._writes(name) else []
        if any(row["step"] in names and row["state"] in ("claimed", "unknown") for row in rows):
            raise self.refuse(f"it is not known whether {name} has happened: resume without skip first, which finds out or asks")

    def rerun(self, name: str) -> tuple[str, ...]:
        """The names under which the step's results are on record, if they can be made anew."""
        if self._writes(name):
            raise self.refuse(
                f"{name} changes something outside, and is done once: to do it again call it with another key, or start a new run"
            )
        found = {r.name for r in self.records(name)}
        if not found:
            raise self.refuse(f"{name} has no result yet, so there is nothing to make anew: it runs when it is reached")
        write = self._inside_done(name)
        if write is not None:
            raise self.refuse(
                f"{name} was called by {write}, which is done, and a write is done once: nothing would ask for {name} again. "
                f"To have both done anew call {write} with another key, or start a new run"
            )
        return tuple(n for n in self.names(name) if n in found)

    def _inside_done(self, name: str) -> str | None:
        """The write that called it, if all its results are of writes that are done: these are not entered any more."""
        writes = {
            inner_branch(r.branch, r.name, r.key): r.name
            for r in self.loaded.records.values() if r.effect is not None and r.state == "done"
        }  # fmt: skip
        homes = [next((writes[b] for b in outwards(r.branch) if b in writes), None) for r in self.records(name)]
        return homes[0] if homes and None not in homes else None


def _converted(given: Any, typed: Any) -> str | None:
    """What was silently made of a given value, where that is another thing than was given; ``None``: nothing was.

    On its way to JSON bytes, a date, a path become text. That is right where the step returns one of them, and nothing that a
    step has given which returns text.
    """
    if isinstance(given, Mapping):
        pairs = [(each, typed.get(name) if isinstance(typed, Mapping) else getattr(typed, str(name), None))
                 for name, each in given.items()]  # fmt: skip
    elif isinstance(given, list | tuple) and isinstance(typed, list | tuple):
        pairs = list(zip(given, typed, strict=False))
    else:
        as_text = isinstance(typed, str) and not isinstance(given, str)
        as_number = isinstance(given, bool) and isinstance(typed, int | float) and not isinstance(typed, bool)
        return f"{checks.shown(given)} is no {'text' if as_text else 'number'}" if as_text or as_number else None
    return next((found for found in (_converted(*pair) for pair in pairs) if found is not None), None)


__all__ = ["Wanted", "ended", "foreseen", "settle", "wanted"]
