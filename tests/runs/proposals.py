"""What the tests of approvals share: a mail that a person has to let out, and what went out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepseven import Run, attempt, step, testing, workflow
from stepseven.model import RunStatus

sent: list[Any] = []

text = {"draft": "first"}


class Busy(Exception):
    """The receiver says no, before it did anything."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} no")
        self.status_code = status


@step
async def draft() -> str:
    """What a model wrote."""
    return text["draft"]


@step(effect="irreversible", key="to")
async def send_mail(to: str, body: str, copies: int = 1) -> str:
    """The effect."""
    sent.append((to, body, copies, attempt().idempotency_key))
    return f"m-{len(sent)}"


@workflow
async def mail(run: Run, to: str = "ben") -> str:
    """One mail."""
    return await send_mail(to, await draft())


async def proposed(layer: testing.TestLayer, call: Any = None, run_id: str = "r") -> Any:
    """The question of a run that has come to its proposal."""
    outcome = await layer.run(call or mail(), client="acme", run_id=run_id)
    assert outcome.status is RunStatus.WAITING
    return outcome.questions[0]


@dataclass
class Letter:
    """A key inside an argument."""

    no: str
    body: str


def fresh() -> None:
    """Forget what the last test sent and wrote."""
    sent.clear()
    text["draft"] = "first"
