"""What clients hear in the chaos could have happened one call after the other: takes, writes under holds, claims, answers."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from stepseven.layer import open_store
from stepseven.transitions.state import Hold
from tests.chaos import clients, villain
from tests.chaos.counter import Outside
from tests.chaos.desk import Desk, ask
from tests.chaos.history import MODELS, OK, UNKNOWN, Log, Op, faults, read
from tests.chaos.late import KEEP_AWAY
from tests.chaos.scene import map_of
from tests.chaos.stage import Kind, Stage
from tests.chaos.test_soak import KINDS, seed_of_this_session
from tests.chaos.villain import Misdeed, Villain, plan
from tests.servers.programs import until

CLIENTS = 4
KIND_OF_MISDEEDS = {**villain.AMONG_WORKERS, **villain.AMONG_SERVERS}


def _misdeeds(seed: int, kind: Kind, seconds: float) -> list[Misdeed]:
    kinds = (
        dict(villain.AMONG_WORKERS) if kind == "sqlite" else {**KIND_OF_MISDEEDS, **(villain.POOLED if kind == "pooled" else {})}
    )
    return plan(seed, seconds=seconds, workers=CLIENTS, every_s=2, kinds=kinds)


def history(
    kind: Kind, folder: Path, seed: int, misdeeds: list[Misdeed], seconds: float, **env: str
) -> tuple[list[Op], Counter[str], Counter[str]]:
    """Let clients and the villain loose: what was heard, what was sent, what was done to them."""
    with Outside(folder) as outside, Stage(kind, folder, outside, **env) as stage:
        first = open_store(stage.url)
        log = Log(folder / "first.log", time.monotonic)
        desk = Desk(first, "first", log)
        holds = [_begun(desk, run) for run in clients.RUNS]
        for question in clients.QUESTIONS:
            ask(desk, holds[0], question)
        stage.hire(CLIENTS, "tests.chaos.clients", stage.url, str(folder), "{n}", str(seed), str(time.monotonic()))
        evil = Villain(stage, misdeeds, longest_freeze_s=3)
        until(lambda: len(list(folder.glob("c*.log"))) == CLIENTS, "all clients are at work")
        evil.start()
        time.sleep(seconds)
        evil.join()
        (folder / "stop").touch()
        stage.wait(40)
        last = Desk(first, "last", log)
        for hold in holds:
            last.load(hold.run_no)
        for question in clients.QUESTIONS:
            last.read(question)
        for effect in clients.EFFECTS:
            last.look(effect)
        first.close()
        log.close()
        return read(folder), outside.counts(), evil.done


def _begun(desk: Desk, run_id: str) -> Hold:
    """A run in which a map has begun."""
    desk.admit(run_id)
    hold = desk.take(desk.see(run_id))
    assert hold is not None
    desk.write(lambda tx: tx.run(*map_of(hold).insert(tx.sql, hold.values())))
    return hold


def judged(kind: Kind, folder: Path, seconds: float) -> None:
    """The whole of it."""
    seed = seed_of_this_session()
    sys.stderr.write(f"\nchaos history: {kind} begins with CHAOS_SEED={seed}\n")
    ops, sent, done = history(kind, folder, seed, _misdeeds(seed, kind, seconds), seconds)
    begun = time.monotonic()
    found = faults(MODELS, ops)
    took = time.monotonic() - begun
    assert not found, "\n\n".join(map(str, found))
    assert {what: many for what, many in sent.items() if many != 1} == {}, "a try is sent once"
    known = Counter(op.call for op in ops if op.outcome == OK and op.result is not False)
    unknown = sum(op.outcome == UNKNOWN for op in ops)
    refused = sum(op.result is False for op in ops)
    assert min(known[call] for call in ("take", "write", "touch", "claim", "again", "settle", "answer", "read")) > 0, known
    assert refused > 5, "nobody was too late: nothing was tried"
    sys.stderr.write(
        f"chaos history: {kind}, seed {seed}: {len(ops)} calls, {refused} refused, {unknown} of unknown outcome, "
        f"told in {took:.1f} s; {known['take']} takes, {known['again']} sends again; {dict(sorted(done.items()))}\n"
    )


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("kind", [KINDS[1]])  # the others in the long version: one minute each
def test_what_clients_hear_in_the_chaos_is_linearizable(kind: Kind, tmp_path: Path) -> None:
    """One owner at a time, fences that only rise, one winner ever of a question, one send of a try; whatever breaks meanwhile."""
    judged(kind, tmp_path, 14)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_what_clients_hear_for_long_is_linearizable(kind: Kind, tmp_path: Path) -> None:
    """The same for three minutes."""
    judged(kind, tmp_path, 180)


# -- what keeps away who is too late ------------------------------------------------------------------------------------------


def _seen_without(told: str, kind: Kind, folder: Path, seconds: float) -> None:
    """The same clients, frozen again and again, without what keeps away those who were overtaken: that is seen."""
    misdeeds = [Misdeed(at_s=0.1 + 0.3 * n, what="freeze", whom=n % CLIENTS, amount=0.1) for n in range(int(seconds / 0.4))]
    ops, _, done = history(kind, folder, seed_of_this_session(), misdeeds, seconds, CHAOS_WITHOUT=told)
    assert done["freeze"] > 2
    assert faults(MODELS, ops), f"nothing that was heard in {len(ops)} calls shows that {told} lets anybody in"


@pytest.mark.slow
def test_what_is_not_fenced_is_seen_in_the_chaos(tmp_path: Path) -> None:
    """Clients that stood still go on under holds that count no more: without one fence, what they hear cannot have happened."""
    _seen_without("guard_run", "sqlite", tmp_path, 2)


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("told", KEEP_AWAY)
def test_no_fence_is_missing_unseen(told: str, kind: Kind, tmp_path: Path) -> None:
    """The same for each statement that has one."""
    if kind == "sqlite" and ("_free" in told or "_alone" in told):
        pytest.skip("SQLite has one statement for both")
    _seen_without(told, kind, tmp_path, 6)
