"""What every crash test does: let lives end at chosen places, then judge by what the outside counted."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash import subject
from tests.crash.killer import End, Forks, Kill, Life, cut_power
from tests.crash.outside import Outside

WANT = {
    "approved": "yes", "booked": "b-1", "charged": "c-1", "count": 7, "lines": subject.ITEMS, "mailed": "m-1", "points": 82,
    "reminded": "r-1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """What is on record at some moment, read from the file itself."""

    runs: int = 0
    done: Counter[str] = field(default_factory=Counter)  # finished records by step
    begun: Counter[str] = field(default_factory=Counter)  # paid tries whose end is not on record, by step
    claims: frozenset[tuple[str, str]] = frozenset()
    receipts: frozenset[tuple[str, str]] = frozenset()
    questions: frozenset[str] = frozenset()
    answers: frozenset[str] = frozenset()


def known(state: Path) -> Known:
    """What is on record. Reading also recovers the log, as the next life would."""
    if not (state / "s.db").exists():
        return Known()
    connection = sqlite3.connect(state / "s.db")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'run'").fetchone():
            return Known()
        rows = connection.execute
        return Known(
            runs=rows("SELECT count(*) FROM run").fetchone()[0],
            done=Counter(name for (name,) in rows("SELECT name FROM step WHERE state = 'done'")),
            begun=Counter(name for (name,) in rows("SELECT name FROM attempt WHERE outcome IS NULL")),
            claims=frozenset(rows("SELECT name, key FROM effect")),
            receipts=frozenset(rows("SELECT name, key FROM effect WHERE state = 'done'")),
            questions=frozenset(q for (q,) in rows("SELECT id FROM question")),
            answers=frozenset(q for (q,) in rows("SELECT id FROM question WHERE status = 'answered'")),
        )
    finally:
        connection.close()


class Stage:
    """A place for scenarios: the fork server, the outside, fresh state for each."""

    def __init__(self, forks: Forks, outside: Outside, folder: Path) -> None:
        self.forks = forks
        self.outside = outside
        self.folder = folder
        self.state = folder
        self._n = 0
        self._known = Known()
        self._ran: Counter[str] = Counter()

    def fresh(self) -> Path:
        """Forget the last scenario."""
        self.outside.reset()
        for path in (self.state, Path(f"{self.state}.disk")):
            if path != self.folder:
                shutil.rmtree(path, ignore_errors=True)
        self._known, self._ran = Known(), Counter()
        self._n += 1
        self.state = self.folder / f"state{self._n}"
        self.state.mkdir()
        return self.state

    def live(self, **how: Any) -> End:
        """One life on the state of this scenario."""
        end = self.forks.live(Life(state=str(self.state), url=self.outside.url, **how))
        self.outside.quiet()
        return end

    def live_elsewhere(self, how: str) -> End:
        """One life beside another: it goes on only if nobody drives the run."""
        life = Life(state=str(self.state), url=self.outside.url, how=how, main="tests.crash.subject:glance")
        return self.forks.live(life)

    # -- judging ------------------------------------------------------------------------------------------------------

    def judge(self, end: End, *, power: bool = False) -> None:
        """Judge a life that just ended: it repeated nothing that was finished before it, and left nothing missing."""
        now, ran = known(self.state), self.outside.ran.copy()
        for step, times in subject.STEPS.items():
            again, done = ran[step] - self._ran[step], self._known.done[step]
            assert again <= times - done, f"{step}: {done} of {times} were done, and {again} ran after that"
        self._nothing_missing(now)
        if end.killed:
            unrecorded = {s: ran[s] - self._ran[s] - (now.done[s] - self._known.done[s]) for s in subject.STEPS}
            for step in subject.PAID:  # what was paid is on record, or was begun there
                assert unrecorded[step] <= now.begun[step], f"{step} ran without a begin"
            if not power:  # the steps run one after the other: when the next one runs, the one before is on record
                assert sum(n > 0 for n in unrecorded.values()) <= 1, f"more than what was in flight is gone: {unrecorded}"
        self._known, self._ran = now, ran

    def _nothing_missing(self, now: Known) -> None:
        """What was acknowledged is on record."""
        for kind, ref in self.outside.counts():
            assert any(name == kind and ref in key for name, key in now.claims), f"{kind} {ref} was sent without a claim"
        for what in self.outside.said:
            kind, _, rest = what.partition("/")
            name, _, ref = rest.partition("/")
            held = {
                "admitted": lambda: now.runs == 1,
                "paid": lambda name=name, ref=ref: now.done[name] >= int(ref),
                "receipt": lambda name=name, ref=ref: any(n == name and ref in key for n, key in now.receipts),
                "question": lambda rest=rest: rest in now.questions,
                "answer": lambda rest=rest: rest in now.answers,
                "id": lambda: True,  # free: on record before anything paid or written depends on it
            }[kind]
            assert held(), f"{what} was acknowledged and is gone"

    @staticmethod
    def _nothing_seen_is_gone(seen: Known, now: Known) -> None:
        """What others could see before the power cut is still there."""
        for what in ("claims", "receipts", "questions", "answers"):
            gone = getattr(seen, what) - getattr(now, what)
            assert not gone, f"{what} that others could see are gone: {gone}"

    def same_end(self, end: End, *, kills: int) -> None:
        """The run's end is the one of an untroubled run, and the outside saw each effect once."""
        assert end.code == 0, f"ended with {end.code}: {end.err}"
        assert json.loads(end.out.strip().splitlines()[-1]) == WANT
        assert self.outside.counts() == subject.EFFECTS
        for step, times in subject.STEPS.items():
            extra = self.outside.ran[step] - times
            # Only what was in flight when it died runs again: two drafts at a time, up to eight items of the map.
            limit = {"draft": 2, "look_up": 5}.get(step, 1) * kills
            assert 0 <= extra <= limit, f"{step} ran {extra} times too often"
        for kind in ("charge", "remind"):
            assert self.outside.calls.count(kind) <= 1 + kills
        now = known(self.state)
        self._nothing_missing(now)
        assert now.begun == Counter()

    def scenario(
        self, *kills: Kill, hows: tuple[str, ...] = ("resume",), power: bool = False, clocks: tuple[int, ...] = (0,)
    ) -> bool:
        """Die at each of *kills* in turn, then live to the end. ``False``: the first place lies behind the run's end.

        Args:
            kills: the places.
            hows: how each life goes on with the run: ``resume`` or ``run``; used in turn.
            power: each death is a power cut.
            clocks: by how many microseconds each life's clock is ahead; the last for all that follow.
        """
        self.fresh()
        deaths = 0
        for n, kill in enumerate((*kills, None)):
            ahead_us = clocks[min(n, len(clocks) - 1)]
            if ahead_us >= subject.DAY_US:
                self.outside.forget("remind")
            end = self.live(kill=kill, how=hows[n % len(hows)], power=power, ahead_us=ahead_us)
            if power and end.killed:
                seen = known(self.state)
                cut_power(self.state)
                if kill is not None and kill.where == "commit":  # elsewhere another thread may just have committed
                    self._nothing_seen_is_gone(seen, known(self.state))
            self.judge(end, power=power)
            if not end.killed:
                self.same_end(end, kills=deaths)
                break
            deaths += 1
        if not power:
            said = {what for what in self.outside.said if what.startswith("id/")}
            assert len(said) == 1, f"a pinned id changed: {said}"
        return deaths > 0


def places(where: str, side: str, *, start: int = 1, stride: int = 1) -> Iterator[Kill]:
    """Every place of a kind, one after the other; stop when a run ends before it."""
    at = start
    while True:
        yield Kill(where, at, side)
        at += stride
