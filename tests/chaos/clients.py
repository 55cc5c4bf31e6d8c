"""A client process in the chaos: takes runs, writes under its holds whether they still count or not, claims, answers, looks.

Everything it asks and hears is in ``NAME.log``, a line before each call. It goes on until there is a file ``stop``.
``CHAOS_WITHOUT`` names what keeps those away who were overtaken (``late.KEEP_AWAY``), and is taken away from this client.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path
from typing import Any

from stepseven.errors import StoreUnavailable
from stepseven.layer import open_store
from stepseven.model import EffectState
from stepseven.store.base import Store
from stepseven.transitions.state import Hold
from tests.chaos.counter import ask
from tests.chaos.desk import Desk, begin_attempt
from tests.chaos.history import Log
from tests.chaos.late import FENCED, KEEP_AWAY
from tests.chaos.scene import weaken

RUNS = [f"h{n}" for n in range(60)]
QUESTIONS = [f"q{n}" for n in range(48)]
EFFECTS = [f"k{n}" for n in range(48)]
OFTEN = {"take": 3, "append": 8, "leave": 1, "park": 1, "try": 2, "claim": 8, "answer": 4, "read": 3, "load": 3, "look": 3}
OFTEN["late"] = 6  # what else is done under a hold, whether it still counts or not
AT_ONCE = 4  # runs, questions and effects that clients are at, so that they meet
PER_S = {"runs": 0.5, "others": 1.5}  # so many of them are over in a second, and others come
LATE = [told for told in FENCED if told not in ("release_run", "end_run")]  # what leaves a run has its own place


class Client:
    """One incarnation of a client: whoever comes after it has another name, and none of its holds.

    *without*: which act is not fenced, and so is tried most. Where that is a free read half of its reads are free ones, of which
    a server that falls over may lose some.
    """

    def __init__(self, desk: Desk, chance: random.Random, port: int, begun: float, *, without: str = "") -> None:
        self.desk = desk
        self.chance = chance
        self.port = port
        self.begun = begun
        self.holds: dict[str, Hold] = {}
        self.claims = 0
        self.free = "_free" in without
        self.late = [without] if without in LATE else LATE

    def step(self) -> None:
        """One call."""
        what = self.chance.choices(list(OFTEN), list(OFTEN.values()))[0]
        run = self._one_of(RUNS, PER_S["runs"])
        hold = self.holds.get(run)
        if what == "take" or (hold is None and what in ("append", "leave", "park", "try", "claim", "late")):
            self._take(run)
        elif what in ("answer", "read"):
            question = self._one_of(QUESTIONS)
            self.desk.answer(question, self.chance.choice(["yes", "no"])) if what == "answer" else self.desk.read(question)
        elif what == "look":
            self.desk.look(self._one_of(EFFECTS))
        elif hold is not None:
            self._under(hold, what)

    def _take(self, run: str) -> None:
        seen = self.desk.see(run)
        time.sleep(self.chance.random() * 0.01)  # others may have been quicker
        hold = self.desk.take(seen)
        if hold is not None:
            self.holds[run] = hold

    def _under(self, hold: Hold, what: str) -> None:
        match what:
            case "append":
                self.desk.append(hold, paid=self.chance.random() < 0.5, durable=not self.free or self.chance.random() < 0.5)
            case "late" if hold.run_id == self._first(RUNS, PER_S["runs"]) and self.chance.random() < 0.2:
                self.desk.end(hold)  # its time is nearly over
            case "late":
                FENCED[self.chance.choice(self.late)](self.desk, hold)
            case "leave":
                self.desk.leave(hold)
            case "park":
                self.desk.park(hold)
            case "try":
                begin_attempt(self.desk, hold, f"{self.desk.name}.{self.chance.random()}")
            case "claim":
                self._effect(hold)
            case "load":
                self.desk.load(hold.run_no)

    def _effect(self, hold: Hold) -> None:
        key = self._one_of(EFFECTS)
        self.claims += 1
        held = self.desk.claim(hold, key, f"c_{self.desk.name}_{self.claims}")
        if held is not None and held.verdict != "go" and held.state in (EffectState.CLAIMED, EffectState.UNKNOWN):
            held = self.desk.again(hold, key, held)
        if held is None or held.verdict != "go":
            return
        ask(self.port, "POST", f"/do/sent/{key}.{held.tries}")
        end = self.chance.random()
        if end < 0.5:
            self.desk.settle(key, held, f"{self.desk.name}.{held.tries}")
        elif end < 0.8:
            self.desk.mark(key, held, self.chance.choice([EffectState.UNKNOWN, EffectState.REFUSED]))

    def _one_of(self, things: list[str], per_s: float = PER_S["others"]) -> str:
        """One of those that are on just now: all clients are at the same few, and go on to the next ones together."""
        first = things.index(self._first(things, per_s))
        return things[(first + self.chance.randrange(AT_ONCE)) % len(things)]

    def _first(self, things: list[str], per_s: float) -> str:
        return things[int((time.monotonic() - self.begun) * per_s) % len(things)]


def main() -> None:
    """Be a client."""
    parser = argparse.ArgumentParser()
    for name in ("url", "folder", "number", "seed", "begun"):
        parser.add_argument(name)
    given = parser.parse_args()
    folder, name = Path(given.folder), f"c{given.number}p{os.getpid()}"
    store = opened(given.url)
    log = Log(folder / f"{name}.log", time.monotonic)
    without = os.environ.get("CHAOS_WITHOUT", "")
    for statement, conditions in KEEP_AWAY.get(without, {}).items():
        weaken(store, statement, *conditions)
    client = Client(
        Desk(store, name, log), random.Random(f"{given.seed} {given.number}"), int(os.environ["CHAOS_PORT"]), float(given.begun),
        without=without,
    )  # fmt: skip
    while not (folder / "stop").exists():
        tolerated(client.step)
        time.sleep(client.chance.random() * 0.01)
    log.close()
    store.close()


def opened(url: str) -> Store:
    """The store, once it is there: a client that is started while the server is not would be started again."""
    give_up = time.monotonic() + 60
    while True:
        try:
            return open_store(url)
        except StoreUnavailable:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.2)


def tolerated(step: Any) -> None:
    """A look before a call may find the store away: then there is no call."""
    try:
        step()
    except StoreUnavailable:
        time.sleep(0.1)


if __name__ == "__main__":
    main()
