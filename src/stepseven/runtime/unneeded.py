"""Questions that the code has gone past: it asks something else since, or nothing, and an answer would be for nobody.

A refresh, a result made anew, other code: the run is executed once more and comes to a call with other arguments, or to none.
What was asked about the old call is withdrawn when the run is put away, so that nobody answers it for nothing. Only where it is
certain: this execution did not come to the question, its call is not under way, and what comes after (``ahead``) does not have
the step. Whoever comes to the same call later all the same asks anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepseven.decide.plan import UNKNOWN
from stepseven.model import QuestionKind
from stepseven.runtime import known
from stepseven.runtime.calls import Call
from stepseven.runtime.waits import frames

if TYPE_CHECKING:
    from stepseven.decide.plan import Coming
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Row

#: Of calls. What is not known of a claim, a conflict about it, a limit, drift or code is asked for another reason than a call.
_KINDS = (QuestionKind.FAILURE, QuestionKind.REQUIRED, QuestionKind.ASK, QuestionKind.APPROVE, QuestionKind.BATCH)
_BODY = ("run.body", "run.start/")  # keys of questions that are about no call of the body's


def questions(ex: Execution) -> tuple[str, ...]:
    """The open questions of a run, all of whose code waits, that nothing of it waits for or will come to again.

    Args:
        ex: the run, its tasks suspended; ``left`` tells what comes after where they stand.

    Returns:
        Their ids, with those that were folded into them.
    """
    asked = [row for rows in ex.questions.values() for row in rows if row["status"] == "open"]
    waited = {*ex.wanted, *(wait.question_id for wait in ex.waits.values())}
    waited |= {row["folded_into"] for row in asked if row["id"] in waited}
    idle = [row for row in asked if row["id"] not in waited and row["folded_into"] is None and _about_a_call(row)]
    if not idle or ex.left is None or any(task._fut_waiter in ex.inside for task in ex.tasks):  # type: ignore[attr-defined]  # noqa: SLF001 - as ``waits`` looks at it
        return ()
    coming = {c.name for c in ex.left.coming}
    if UNKNOWN in coming:
        return ()
    coming |= {old for name in coming if (step := known.find(name, _module(ex))) is not None for old in ex.names_before(step)}
    under_way = {(c.branch, f"{c.key[1]}/{c.key[2]}") for c in _calls(ex)}
    past = {row["id"] for row in idle if (row["branch"], row["key"]) not in under_way and _past(row, coming, ex.left.coming)}
    folded = [row for row in asked if row["folded_into"] in past]
    if any(row["id"] in waited for row in folded):
        return ()
    return (*past, *(row["id"] for row in folded))


def _module(ex: Execution) -> str:
    return str(ex.workflow.fn.__module__)


def _about_a_call(row: Row) -> bool:
    return row["kind"] in {kind.value for kind in _KINDS} and not row["key"].startswith(_BODY)


def _past(row: Row, names: set[str], coming: tuple[Coming, ...]) -> bool:
    """Whether nothing of what comes can be what a question is about, nor a step or a map that it lies in."""
    if any(part.partition("[")[0] in names for part in row["branch"].split("/")):
        return False
    if row["kind"] == QuestionKind.ASK.value:
        return not any(c.name == "run.ask" and c.text in (None, row["text"].split("\n", 1)[0], row["text"]) for c in coming)
    return (row["step"] or f"run.{row['kind']}") not in names


def _calls(ex: Execution) -> Iterator[Call]:
    """The calls that the run's tasks are in, inner ones, too."""
    for task in ex.tasks:
        for frame in frames(task):
            call = frame.f_locals.get("call")
            if isinstance(call, Call):
                yield call
