"""``python -m examples.agent_loop``: a model with tools is killed three times, then its prompt is edited; who paid for what."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stepseven import Layer

from .desk import Desk
from .model import CHAT, Model

if TYPE_CHECKING:
    from stepseven import Question

    from ._server import Hold

PATIENCE_S = 60.0
CLIENT = "acme"
EDITED = "You answer the mails of a shop. Pay back what did not arrive. Be brief. Sign as The Acme team."


class Broken(Exception):
    """The story did not go as it should."""


@dataclass(slots=True, kw_only=True)
class Stage:
    """Two servers in this process, workers as processes of their own, a store in a throw-away folder."""

    model: Model
    desk: Desk
    store: str
    prompt: str | None = None
    workers: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, case: str) -> subprocess.Popen[str]:
        """A worker, as a person would start it."""
        env = {**os.environ, "OPENAI_BASE_URL": f"{self.model.url}/v1", "DESK_URL": self.desk.url, "NO_PROXY": "127.0.0.1"}
        env |= {} if self.prompt is None else {"SUPPORT_PROMPT": self.prompt}
        line = [sys.executable, "-m", f"{__package__}.worker", case, "--client", CLIENT, "--store", self.store]
        worker = subprocess.Popen(line, env=env, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own module
        self.workers.append(worker)
        return worker

    def kill(self, case: str, held: Hold) -> None:
        """Let a worker come to the reply that is held back, and kill it there."""
        worker = self.start(case)
        give_up = time.monotonic() + PATIENCE_S
        while not held.came.wait(0.05):
            if worker.poll() is not None or time.monotonic() > give_up:
                worker.kill()
                raise Broken(f"the worker never came there: {worker.communicate()[0]}")
        worker.kill()
        code = worker.wait(PATIENCE_S)
        held.go.set()
        self.model.quiet()
        self.desk.quiet()
        print(f"   process {worker.pid} ended by {signal.Signals(-code).name}; answers paid so far: {len(self.model.journal)}")

    def finish(self, case: str) -> tuple[int, str]:
        """Let a worker go as far as it gets; its exit code and last words."""
        worker = self.start(case)
        said, _ = worker.communicate(timeout=PATIENCE_S)
        return worker.returncode, said.strip()

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
            if worker.stdout is not None:
                worker.stdout.close()


def main() -> int:
    """Tell the story; 0 if the model's journal and the desk's count say what they should."""
    with tempfile.TemporaryDirectory(prefix="stepseven-agent-loop-") as folder, Model() as model, Desk() as desk:
        stage = Stage(model=model, desk=desk, store=f"sqlite:///{Path(folder, 'stepseven.db')}")
        try:
            right = _killed_three_times(stage) and _edited_prompt(stage)
        finally:
            stage.close()
    print("\nEverything as it should be." if right else "\nThis is wrong, and a bug of stepseven's: please report it.")
    return 0 if right else 1


def _killed_three_times(stage: Stage) -> bool:
    model, desk, case = stage.model, stage.desk, "case-17"
    print("1  kill -9 in the middle of the model's second turn: it has answered, and nobody has read it")
    stage.kill(case, model.hold(CHAT, 2))
    print("2  the same command again; kill -9 when the refund is made, before its receipt is read")
    stage.kill(case, desk.hold("/refunds", 1))
    print("3  again; kill -9 after the mail, in the middle of the last turn")
    stage.kill(case, model.hold(CHAT, 2))
    print("4  again, to the end")
    code, said = stage.finish(case)
    print(f"   {said}")
    return _count(stage, case, in_flight=2) and code == 0


def _count(stage: Stage, case: str, *, in_flight: int) -> bool:
    """Judge by what the other sides counted."""
    paid, done = stage.model.conversations(), stage.desk.counts(case)
    turns = {entry.digest: entry.turn for entry in stage.model.journal}
    print("\n   the model's journal        turn   paid")
    for digest, times in paid.items():
        note = "  answered, and the process died before it read the answer" if times > 1 else ""
        print(f"   conversation {digest}     {turns[digest]}      {times}{note}")
    twice = sum(times - 1 for times in paid.values())
    told = f"{twice} twice, because they were in flight at a kill; " if twice else ""
    print(f"   {len(paid)} turns, {sum(paid.values())} answers paid: {told}no finished turn twice")
    print(f"   the desk's count: {done['refunds']} refund, {done['mails']} mail, {stage.desk.twice()} twice\n")
    return twice == in_flight and max(paid.values()) <= 2 and done == {"refunds": 1, "mails": 1} and stage.desk.twice() == 0


def _edited_prompt(stage: Stage) -> bool:
    model, case = stage.model, "case-18"
    model.forget()
    print("5  another case; kill -9 after the mail, in the middle of the last turn; then somebody edits the prompt")
    stage.kill(case, model.hold(CHAT, 4))
    before = {entry.digest for entry in model.journal}
    model.forget()
    stage.prompt = EDITED
    code, _ = stage.finish(case)
    question = asyncio.run(_question(stage))
    print(f"   the edited prompt was asked from the first turn on: {len(model.journal)} answers, none of the old conversation;")
    print("   the refund was not made again (it is the same one), and the mail is a question, because its words are others:\n")
    print("\n".join(f"   | {line}" for line in question.text.splitlines()))
    print("\n   answered: same. The mail that was sent is the mail of this case.")
    fresh = not before & set(model.conversations()) and all(entry.system == EDITED for entry in model.journal)
    asyncio.run(_answer(stage, question))
    ended, said = stage.finish(case)
    print(f"   {said}")
    return fresh and (code, ended) == (3, 0) and question.kind == "conflict" and _count(stage, case, in_flight=0)


async def _question(stage: Stage) -> Question:
    async with Layer(stage.store) as layer:
        (question,) = await layer.questions(client=CLIENT)
        return question


async def _answer(stage: Stage, question: Question) -> None:
    async with Layer(stage.store) as layer:
        await layer.answer(question.id, "same", by="ben")


if __name__ == "__main__":
    sys.exit(main())
