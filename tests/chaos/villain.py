"""What goes wrong, decided beforehand by a seed: the same seed is the same list of misdeeds, at the same moments."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

#: what: how often, compared with the others
AMONG_WORKERS = {"kill": 5, "freeze": 2, "freeze past its lease": 3}
AMONG_SERVERS = {"restart fast": 1, "restart immediate": 1, "cut all": 2, "cut before COMMIT": 3, "cut after COMMIT": 3}
POOLED = {"restart pooler": 2}
#: what comes more than once even in a short plan: who is frozen past its lease is taken over, and goes on as if nothing was
AT_LEAST = {"freeze past its lease": 3}


@dataclass(frozen=True, slots=True)
class Misdeed:
    """One decision. ``whom``: which worker; ``amount``: a number between 0 and 1 that the misdeed makes use of."""

    at_s: float
    what: str
    whom: int
    amount: float

    def __str__(self) -> str:
        return f"{self.at_s:5.1f} s  {self.what} {self.whom} ({self.amount:.2f})"


def plan(seed: int, *, seconds: float, workers: int, every_s: float, kinds: dict[str, int]) -> list[Misdeed]:
    """The misdeeds of a seed, in order; each kind comes at least once (or as ``AT_LEAST`` says) when there is time for it."""
    chance = random.Random(seed)
    first = [name for name in sorted(kinds) for _ in range(AT_LEAST.get(name, 1))]
    chance.shuffle(first)
    names, weights = sorted(kinds), [kinds[name] for name in sorted(kinds)]
    found: list[Misdeed] = []
    at = every_s / 2
    while at < seconds:
        what = first.pop() if first else chance.choices(names, weights)[0]
        found.append(Misdeed(at, what, chance.randrange(workers), chance.random()))
        at += every_s * (0.5 + chance.random())
    return found


class Villain:
    """Carries a plan out, in a thread of its own. Misdeeds that take their time (a freeze) do so beside the others."""

    def __init__(self, stage: Stage, misdeeds: list[Misdeed], *, longest_freeze_s: float) -> None:
        self.done: Counter[str] = Counter()
        self._stage = stage
        self._misdeeds = misdeeds
        self._longest_freeze_s = longest_freeze_s
        self._beside: list[threading.Thread] = []
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._all, name="villain")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Wait until everything is done, and everybody it froze or killed is at work again."""
        self._thread.join()
        for thread in self._beside:
            thread.join()
        if self._failed:
            raise self._failed[0]

    def _all(self) -> None:
        begun = time.monotonic()
        for misdeed in self._misdeeds:
            time.sleep(max(0.0, begun + misdeed.at_s - time.monotonic()))
            if misdeed.what in AMONG_WORKERS:
                thread = threading.Thread(target=self._one, args=(misdeed,))
                self._beside.append(thread)
                thread.start()
            else:
                self._one(misdeed)

    def _one(self, m: Misdeed) -> None:
        stage, done = self._stage, True
        try:
            match m.what:
                case "kill":
                    done = stage.kill(m.whom, away_s=m.amount)
                case "freeze":
                    done = stage.freeze(m.whom, min(3.0, self._longest_freeze_s) * m.amount)
                case "freeze past its lease":
                    done = stage.freeze(m.whom, self._longest_freeze_s)
                case "restart fast" | "restart immediate":
                    stage.restart_server("fast" if m.what == "restart fast" else "immediate")
                case "restart pooler":
                    stage.restart_pooler()
                case "cut all":
                    stage.proxy().cut_all()
                case "cut before COMMIT":
                    stage.proxy().cut("before", n=1 + int(8 * m.amount))
                case "cut after COMMIT":
                    stage.proxy().cut("after", n=1 + int(8 * m.amount))
            self.done[m.what] += done
        except BaseException as error:  # noqa: BLE001 - told when it is joined
            self._failed.append(error)
