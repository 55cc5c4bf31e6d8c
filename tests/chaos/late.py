"""Ways to be too late: a few calls in a fixed order, each shown to need one condition of one statement.

Longer than other files: one scene for each condition, in the order of the statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from stepseven.decide.escalate import Draft
from stepseven.errors import StoreUnavailable
from stepseven.model import EffectState, RunStatus
from stepseven.store.base import Later, Row, Tx
from stepseven.store.statements import SEQ_BITS
from stepseven.transitions import codes, effects, questions, recoveries, runs, steps
from stepseven.transitions.effects import Verdict
from stepseven.transitions.restoring import Gap
from stepseven.transitions.state import Hold, Record, load
from tests.chaos.desk import NOW_US, Desk, ask, begin_attempt, intent
from tests.chaos.history import FAILED, Op
from tests.chaos.scene import (
    FAILED_TRY,
    FENCE,
    LIVE,
    NOBODYS,
    NOT_DONE,
    NOT_ENDED,
    OPEN,
    OWNER,
    PUT_AWAY,
    REFUSED,
    SEEN,
    TRIES,
    WAITING,
    Scene,
    Stale,
    at_work,
    map_of,
)

# -- an owner that does not know that it is none any more ---------------------------------------------------------------------

Act = Callable[[Desk, Hold], object]


def overtaken(s: Scene, act: Act) -> None:
    """Somebody else has it."""
    hold = at_work(s)
    s.taken(s.b)
    act(s.a, hold)


def retaken(s: Scene, act: Act) -> None:
    """The same worker has given it back and taken it again; its first execution goes on all the same."""
    hold = at_work(s)
    s.a.leave(hold)
    s.taken()
    act(s.a, hold)


def released(s: Scene, act: Act) -> None:
    """It was given back (a stray) while its execution goes on."""
    hold = at_work(s)
    s.b.leave(hold)
    act(s.a, hold)


def parked(s: Scene, act: Act) -> None:
    """It was put away while something of its execution goes on."""
    hold = at_work(s)
    s.a.park(hold)
    act(s.a, hold)


LOSSES = {"overtaken": (overtaken, (FENCE, OWNER)), "retaken": (retaken, (FENCE,)), "released": (released, (OWNER,))}


def _ends_attempt(desk: Desk, hold: Hold) -> None:
    desk.touch(hold, lambda tx: steps.end_attempt(tx, hold, FAILED_TRY, NOW_US))


def _counts(desk: Desk, hold: Hold) -> None:
    params = {**hold.keys(), "executing_us": int(desk.clock() * 1e6)}
    away = Op(process=desk.name, thing=f"run/{hold.run_no}", call="touch", asked=0, outcome=FAILED)  # nobody waits for its row
    desk.touch(hold, lambda tx: tx.run(tx.sql.count_executing, params), lambda written: bool(written) or away)


def _claims_anew(desk: Desk, hold: Hold) -> None:
    made = intent(desk.fresh("k")), desk.fresh("c")
    desk.touch(hold, lambda tx: effects.claim_new(tx, hold, *made, NOW_US)[1], lambda w: w.rows_written() == 1)


def _settles_with_its_record(desk: Desk, hold: Hold) -> None:
    made, claim_id = _sent(desk, hold), desk.fresh("c")
    desk.touch(
        hold, lambda tx: claimed_and_settled(tx, hold, made, claim_id), lambda each: [w.rows_written() for w in each] == [1, 1]
    )


def _sent(desk: Desk, hold: Hold) -> Record:
    """The record of a send that nobody else has made."""
    return replace(desk.record(hold, name="pay"), key=desk.fresh("k"), effect="write", inputs="digest")


def _claims_alone(desk: Desk, hold: Hold) -> None:
    made = intent(desk.fresh("k")), desk.fresh("c")

    def unit(tx: Tx) -> Later:
        return effects.claim_new(tx, hold, *made, NOW_US)[1]

    desk.touch(hold, unit, lambda w: w.rows_written() == 1, send=True)


def _settles_alone(desk: Desk, hold: Hold) -> None:
    made = _sent(desk, hold)
    row = {**effects._claim_row(hold, intent(made.key), desk.fresh("c"), NOW_US), "generation": 1}
    with suppress(StoreUnavailable):  # then there is nothing to settle
        desk.write(lambda tx: tx.run(tx.sql.insert_claim, row))

    def unit(tx: Tx) -> tuple[Later, Later]:
        return effects.settle_with(tx, hold, effects._claimed(Verdict.GO, row), made, '"ra"')

    desk.touch(hold, unit, lambda each: [w.rows_written() for w in each] == [1, 1], send=True)


def _begins_recovery(desk: Desk, hold: Hold) -> None:
    recovery_id = desk.fresh("rec")
    desk.touch(hold, lambda tx: begins_recovery(tx, hold, recovery_id), lambda row: row is not None)


def begins_recovery(tx: Tx, hold: Hold, recovery_id: str = "rec_1") -> Row | None:
    """What a wake after long, or a resume, writes before anything begins."""
    loaded = load(tx, hold.run_no)
    assert loaded is not None
    loaded.recoveries.clear()  # one that is under way is gone on with, and nothing is written
    return recoveries.begin(tx, hold, loaded, recovery_id, None, NOW_US)


def claimed_and_settled(tx: Tx, hold: Hold, record: Record | None = None, claim_id: str = "c_1") -> tuple[Later, Later]:
    """A claim that was made while the run was its sender's; and its record and receipt now."""
    made = record or receipted(hold)
    row = {**effects._claim_row(hold, intent(made.key), claim_id, NOW_US), "generation": 1}
    tx.run(tx.sql.insert_claim, row)
    return effects.settle_with(tx, hold, effects._claimed(Verdict.GO, row), made, '"ra"')


def receipted(hold: Hold) -> Record:
    """The record of a send."""
    mine = {"id": hold.run_no << SEQ_BITS | 9, "name": "pay", "key": "k1", "state": "done", "effect": "write", "inputs": "digest"}
    return replace(map_of(hold), **mine)


#: statement: what is done by it under a hold; as often as one likes
FENCED: dict[str, Act] = {
    "guard_run": lambda desk, hold: ask(desk, hold, desk.fresh("q")),
    "guard_run: a try's end": _ends_attempt,
    "guard_effect": lambda desk, hold: desk.claim(hold, desk.fresh("k"), desk.fresh("c")),
    "claim_new": _claims_anew,
    "claim_new_alone": _claims_alone,
    "append_settled": _settles_with_its_record,
    "append_settled_alone": _settles_alone,
    "append_read": lambda desk, hold: desk.append(hold),
    "append_step": lambda desk, hold: desk.append(hold, paid=True),
    "begin_attempt": lambda desk, hold: begin_attempt(desk, hold, desk.fresh("look")),
    "finish_map": lambda desk, hold: desk.touch(hold, lambda tx: steps.update_map(tx, hold, map_of(hold), NOW_US)),
    "begin_recovery": _begins_recovery,
    "count_executing": _counts,
    "note_ahead": lambda desk, hold: desk.touch(hold, lambda tx: codes.note_ahead(tx, hold, '["late"]'), bool),
    "release_run": lambda desk, hold: desk.leave(hold),
    "end_run": lambda desk, hold: desk.end(hold),
}


# -- other ways to be too late ------------------------------------------------------------------------------------------------


def _old_sight_of_a_retake(s: Scene) -> None:
    """Taken for dead, it came back and took its run anew before it was taken over."""
    hold = s.taken()
    seen = s.b.see("r1")
    s.a.leave(hold)
    s.taken()
    s.b.take(seen)


def _old_sight_of_a_release(s: Scene) -> None:
    """Taken for dead, it gave its run back before it was taken over: that is another state than the one that was judged."""
    hold = s.taken()
    seen = s.b.see("r1")
    s.a.leave(hold)
    s.b.take(seen)


def _take_of_what_was_just_ended(s: Scene) -> None:
    """A run that nobody owned was ended (cancelled) after it was seen."""
    hold = s.taken()
    s.a.leave(hold)
    seen = s.b.see("r1")
    s.ann.end(replace(hold, owner=""), RunStatus.CANCELLED)
    s.b.take(seen)


def _ended_twice(s: Scene) -> None:
    """Two that saw a run unowned end it."""
    hold = replace(s.taken(), owner="")
    s.a.leave(replace(hold, owner="w_a"))
    s.ann.end(hold, RunStatus.CANCELLED)
    s.b.end(hold, RunStatus.DONE)


def _parked_though_asked_to_stop(s: Scene) -> None:
    """A run that was asked to stop is not put away: it would wait for ever, and nobody would settle its writes."""
    hold = s.taken()
    s.ann.write(lambda tx: tx.run(tx.sql.request_stop, {"run_no": s.no, "status": "cancelling", "reason": "no", "now": NOW_US}))
    s.a.write(lambda tx: runs.park(tx, hold, runs.Parking(
        waiting_for="person", reason="", wake_us=None, next_step=None, remaining="[]", executing_us=0, question_ids=()), NOW_US,
    ))  # fmt: skip
    s.expect(s.row()["status"], "cancelling", "asked to stop, then put away")


def _stopped_one_way_then_another(s: Scene) -> None:
    """What ended is asked to stop; and what was cancelled fails on its way out."""
    hold = s.taken()
    s.a.end(hold)
    s.ann.write(lambda tx: tx.run(tx.sql.request_stop, {"run_no": s.no, "status": "cancelling", "reason": "no", "now": NOW_US}))
    s.expect(s.row()["status"], "done", "ended, then asked to stop")


def _ending_noted_too_late(s: Scene) -> None:
    """How a run is about to end is of no account once it has."""
    hold = s.taken()
    s.a.end(hold)
    s.a.write(lambda tx: tx.run(tx.sql.note_ending, {"run_no": s.no, "failure": '{"reason": "late"}'}))
    s.expect(s.row()["failure"], None, "ended, then its failure noted")


def _woken_after_its_end(s: Scene) -> None:
    """An answer that comes when the run has ended wakes nothing: what ended is not begun again."""
    hold = s.taken()
    ask(s.a, hold, "q1", key="twice/q1")  # one that outlives its run
    s.a.end(hold)
    s.ann.answer("q1", "yes")
    s.expect(s.row()["status"], "done", "ended, then answered")


def _two_sends_from_one_try(s: Scene) -> None:
    """Two that found the same claim in doubt both decide to send again."""
    first, held = _claimed(s)
    second = s.taken(s.b)
    again = [s.b.again(second, "k1", held), s.b.again(second, "k1", held)]
    s.expect(sum(each is not None for each in again), 1, "sends from one try")
    assert first.fence < second.fence


def _sent_again_after_a_late_receipt(s: Scene) -> None:
    """The first send's receipt comes while somebody is about to send again."""
    _, held = _claimed(s)
    second = s.taken(s.b)
    s.a.settle("k1", held, "ra")
    s.b.again(second, "k1", held)


def _two_receipts(s: Scene) -> None:
    """Two sends succeed: the first receipt stands, and the second one knows that it is the second."""
    _, held = _claimed(s)
    s.a.settle("k1", held, "ra")
    s.b.settle("k1", held, "rb")


def _recorded_after_another_receipt(s: Scene) -> None:
    """A record says what its claim's receipt says: where another one is there already, it is looked at first."""
    hold, held = _claimed(s)
    s.b.settle("k1", held, "rb")
    both = s.a.write(lambda tx: effects.settle_with(tx, hold, held, receipted(hold), '"ra"'))
    s.expect([each.rows_written() for each in both], [0, 0], "a receipt, then another with its record")


def _sent_after_another_receipt(s: Scene) -> None:
    """The same of both in one statement."""
    hold, held = _claimed(s)
    s.b.settle("k1", held, "rb")
    both = s.a.send(lambda tx: effects.settle_with(tx, hold, held, receipted(hold), '"ra"'))
    s.expect([each.rows_written() for each in both], [0, 0], "a receipt, then another with its record")


def _told_of_an_older_try(s: Scene) -> None:
    """A try that was given up says that it was refused, while another one is under way: that proves nothing about this."""
    _, held = _claimed(s)
    s.b.again(s.taken(s.b), "k1", held)
    s.a.mark("k1", held, EffectState.REFUSED)


def _in_doubt_after_its_receipt(s: Scene) -> None:
    """A late word of doubt about what is done."""
    _, held = _claimed(s)
    s.a.settle("k1", held, "ra")
    s.b.mark("k1", held, EffectState.UNKNOWN)


def _doubted(s: Scene, between: Callable[[Scene, Any, Hold], object]) -> None:
    """What was proven not done before a backup, found so by two at once."""
    first, held = _claimed(s)
    s.a.mark("k1", held, EffectState.REFUSED)
    between(s, held, first)
    gap = Gap(since_us=NOW_US, restored_us=NOW_US + 1)
    s.a.call(
        "effect/k1", "doubt", (held.tries,),
        lambda: s.a.write(lambda tx: effects._doubt(tx, first, intent("k1"), held, gap)), lambda _: True,
    )  # fmt: skip


def _doubt_of_an_older_try(s: Scene) -> None:
    """It was sent once more, and refused again, since it was looked at."""

    def between(s: Scene, held: Any, first: Hold) -> None:
        sent = s.a.again(first, "k1", held)
        assert sent is not None
        s.a.mark("k1", sent, EffectState.REFUSED)

    _doubted(s, between)


def _doubt_of_what_is_done(s: Scene) -> None:
    """Its receipt came after all since it was looked at."""
    _doubted(s, lambda s, held, first: s.a.settle("k1", held, "ra"))


def _gate_lowered_for_an_older_try(s: Scene) -> None:
    """That the first sender is dead says nothing about the second: a probe would be believed while that one can still send."""
    _, held = _claimed(s)
    now = s.b.again(s.taken(s.b), "k1", held)
    assert now is not None
    s.ann.write(lambda tx: effects.lower_gate(tx, held, NOW_US - 1))
    row = s.ann.write(lambda tx: tx.one(tx.sql.claim, {"claim_id": held.claim_id}))
    s.expect(row["gate_until_us"], now.gate_until_us, "the gate of the second try")


def _filled_twice(s: Scene) -> None:
    """What came back could not be kept, and two people say what it was: the first one counts."""
    _, held = _claimed(s)
    lost = '{"$refused": "too large"}'
    s.a.call("effect/k1", "settle", (lost,), lambda: s.a.write(lambda tx: effects.settle(tx, held, lost, NOW_US)), bool)
    for desk, what in ((s.ann, '"r1"'), (s.b, '"r2"')):
        params = {"claim_id": held.claim_id, "receipt": what, "refused": '{"$refused"'}
        desk.call(
            "effect/k1",
            "fill",
            (what,),
            lambda desk=desk, params=params: desk.write(lambda tx: tx.run(tx.sql.fill_receipt, params)),
            bool,
        )


def _claimed(s: Scene) -> tuple[Hold, Any]:
    hold = s.taken()
    held = s.a.claim(hold, "k1", "c_1")
    assert held is not None
    return hold, held


def _two_answers(s: Scene) -> None:
    """Two people who both saw the question open: what they saw is older than what they write.

    Under the client's lock, and in SQLite, the look and the write are one; a store without would look like this.
    """
    ask(s.a, s.taken(), "q1")
    seen = s.ann.store.read_now(lambda tx: tx.one(tx.sql.question, {"id": "q1"}))
    for desk, value in ((s.ann, "yes"), (s.b, "no")):
        desk.answer(
            "q1", value,
            lambda tx, desk=desk, value=value: questions.answer(
                Stale(tx, tx.sql.question, seen), "q1", value, by=desk.name, note=None, now_us=NOW_US
            ),
        )  # fmt: skip


def _withdrawn_after_its_answer(s: Scene) -> None:
    """The run finds that it needs a question no more, just after somebody answered it."""
    hold = s.taken()
    ask(s.a, hold, "q1")
    s.ann.answer("q1", "yes")
    s.a.withdraw(hold, "q1")


def _run_ended_after_an_answer(s: Scene) -> None:
    """The run ends with a question that was answered: the answer stands."""
    hold = s.taken()
    ask(s.a, hold, "q1")
    s.ann.answer("q1", "yes")
    s.a.end(hold)


def _folded(s: Scene, late: Callable[[Scene, Hold], object]) -> None:
    """A question that is one of several which another one stands for."""
    hold = s.taken()
    ask(s.a, hold, "q1")
    ask(s.a, hold, "all")
    late(s, hold)


def _answered_with_those_that_were_closed(s: Scene) -> None:
    """One of a batch was closed for itself: the batch's answer is not its."""

    def late(s: Scene, hold: Hold) -> None:
        s.a.write(lambda tx: questions.fold(tx, hold, ["q1"], "all", NOW_US))
        s.a.withdraw(hold, "q1")
        s.ann.answer("all", "yes")

    _folded(s, late)


def _folded_after_its_answer(s: Scene) -> None:
    """An answered question is folded into a batch: it would be asked again, and its answer would be another."""

    def late(s: Scene, hold: Hold) -> None:
        s.ann.answer("q1", "yes")
        row = s.a.write(lambda tx: questions.fold(tx, hold, ["q1"], "all", NOW_US))[0]
        s.expect(row["folded_into"], None, "answered, then folded")

    _folded(s, late)


def _retold_after_its_answer(s: Scene) -> None:
    """What was answered stays as it was when it was answered."""
    hold = s.taken()
    ask(s.a, hold, "q1")
    s.ann.answer("q1", "yes")
    draft = Draft(text="Shall it not?", recommendation=None, options=(), context={})
    row = s.a.write(lambda tx: questions.retell(tx, hold, "q1", draft))
    s.expect(row["text"], "Shall it?", "answered, then told anew")


@dataclass(frozen=True, slots=True)
class Case:
    """Conditions of statements that are taken away together, and what shows it."""

    conditions: dict[str, tuple[str, ...]]
    play: Callable[[Scene], object]


def _cases() -> Iterator[tuple[str, Case]]:
    for told, act in FENCED.items():
        name = told.partition(":")[0]
        for loss, (lose, conditions) in LOSSES.items():
            mine = tuple(NOBODYS if c is OWNER and name == "end_run" else c for c in conditions)
            yield f"{told} {loss}", Case({name: mine}, lambda s, lose=lose, act=act: lose(s, act))
    for name in (
        "append_read_free",
        "append_step_free",
    ):  # what a free read's record is written by, where commits differ by statement
        for loss, (lose, conditions) in LOSSES.items():
            act = lambda desk, hold, name=name: desk.append(hold, paid="step" in name, durable=False)  # noqa: E731
            yield f"{name} {loss}", Case({name: conditions}, lambda s, lose=lose, act=act: lose(s, act))
    for loss, (lose, conditions) in {
        **LOSSES,
        "released": (parked, (OWNER,)),
    }.items():  # `park` asks `guard_run` first, in the same transaction: either is enough
        both = {"park_run": conditions, "guard_run": conditions}
        yield f"park_run with its guard_run {loss}", Case(both, lambda s, lose=lose: lose(s, lambda desk, hold: desk.park(hold)))
    for name, condition, play in OTHERS:
        yield f"{name} {play.__name__.strip('_')}", Case({name: (condition,)}, play)


OTHERS: list[tuple[str, str, Callable[[Scene], object]]] = [
    ("take_run", FENCE, _old_sight_of_a_retake),
    ("take_run", SEEN, _old_sight_of_a_release),
    ("take_run", NOT_ENDED, _take_of_what_was_just_ended),
    ("end_run", NOT_ENDED, _ended_twice),
    ("park_run", PUT_AWAY, _parked_though_asked_to_stop),
    ("request_stop", LIVE, _stopped_one_way_then_another),
    ("note_ending", r"status IN \('cancelling', 'failing'\)", _ending_noted_too_late),
    ("wake_run", WAITING, _woken_after_its_end),
    ("retry_claim", TRIES, _two_sends_from_one_try),
    ("retry_claim", NOT_DONE, _sent_again_after_a_late_receipt),
    ("settle_claim", NOT_DONE, _two_receipts),
    ("append_settled", NOT_DONE, _recorded_after_another_receipt),
    ("append_settled_alone", NOT_DONE, _sent_after_another_receipt),
    ("mark_claim", TRIES, _told_of_an_older_try),
    ("mark_claim", NOT_DONE, _in_doubt_after_its_receipt),
    ("doubt_claim", TRIES, _doubt_of_an_older_try),
    ("doubt_claim", REFUSED, _doubt_of_what_is_done),
    ("lower_gate", TRIES, _gate_lowered_for_an_older_try),
    ("fill_receipt", r"substr\(receipt, 1, length\(.*?\)\) = \S+", _filled_twice),
    ("answer_question", OPEN, _two_answers),
    ("answer_folded", OPEN, _answered_with_those_that_were_closed),
    ("close_question", OPEN, _withdrawn_after_its_answer),
    ("close_run_questions", OPEN, _run_ended_after_an_answer),
    ("fold_question", OPEN, _folded_after_its_answer),
    ("retell_question", OPEN, _retold_after_its_answer),
]
CASES = dict(_cases())

#: told: the conditions that keep away who was overtaken, statement by statement
KEEP_AWAY = {told.removesuffix(" overtaken"): case.conditions for told, case in CASES.items() if told.endswith(" overtaken")}
