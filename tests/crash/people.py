"""A run in which a person decides, killed again and again: proposals edited and refused, values approved, answers kept.

    python people.py STATE_DIR OUTSIDE_URL

Like ``subject.py``: its value is the last line, and the same however often it was killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

from stepseven import Layer, Outcome, Question, Refused, Run, UnknownRun, step, workflow
from stepseven.model import QuestionKind, RunStatus
from stepseven.runtime.edge import Edge
from tests.crash.subject import World, is_there, ran, talk

RUN_ID = "acme-mails"
PEOPLE = ["p-1", "p-2", "p-3"]
REFUSED = "p-2"
#: what the outside is to have seen, once each, and with which words
EFFECTS = {
    ("post", "letter"): "edited by ann", ("post", "p-1"): "hello p-1", ("post", "p-3"): "hello p-3", ("book", "offer"): "2",
}  # fmt: skip
WANT = {"offer": {"price": 2}, "letter": "letter", "mails": ["p-1", None, "p-3"], "no": "refused by ann: not now", "known": "de"}


@step
async def write(about: str) -> str:
    """What a model wrote."""
    ran("write")
    return f"about {about}"


@step(effect="irreversible", key="ref")
def post(ref: str, words: str) -> str:
    """Cannot be taken back; the receiver can be asked."""
    talk("POST", "/effect/post", {"ref": ref, "amount": words})
    return ref


@post.probe
async def find_post(ref: str, words: str) -> str | None:
    """Ask the receiver."""
    return ref if is_there("post", ref) else None


@step(effect="irreversible", key="ref")
def burn(ref: str) -> str:
    """What nobody lets happen."""
    talk("POST", "/effect/burn", {"ref": ref, "amount": 0})
    return ref


@step(effect="write", key="ref")
def book(ref: str, amount: str) -> str:
    """A write that uses what was approved."""
    talk("POST", "/effect/book", {"ref": ref, "amount": amount})
    return ref


@book.probe
async def find_book(ref: str, amount: str) -> str | None:
    """Ask the receiver."""
    return ref if is_there("book", ref) else None


async def greet(who: str) -> str:
    """One item of the map."""
    return await post(who, f"hello {who}")


@workflow
async def mails(run: Run) -> dict[str, Any]:
    """All of it."""
    language = await run.ask("Which language?", remember="language", valid="90d")
    run.client.set("seen", RUN_ID)
    offer = await run.approve("Is this the offer?", about={"price": 1})
    await book("offer", str(offer["price"]))
    letter = await post("letter", await write(language))
    sent = await run.map(greet, PEOPLE, concurrency=2)
    try:
        no = await burn("all")
    except Refused as refused:
        no = refused.reason
    return {"offer": offer, "letter": letter, "mails": sent, "no": no, "known": run.client.get("language")}


def decide(question: Question) -> tuple[Any, str | None]:
    """What the person answers, and their note. Anything that should not have been asked ends the process."""
    facts = question.context.get("facts") or {}
    if question.kind is QuestionKind.ASK:
        return "de", None
    if question.kind is not QuestionKind.APPROVE:
        raise SystemExit(f"this should not have been asked: {question}")
    if question.step is None:
        return {"choice": "approve", "inputs": {"price": 2}}, None
    if question.step == "burn" or facts["ref"] == REFUSED:
        return "refuse", "not now"
    if facts["ref"] == "letter":
        return {"choice": "approve", "inputs": {"words": "edited by ann"}}, None
    return "approve", None


async def drive(state: str, edge: Edge | None) -> Any:
    """Start or continue the run, answer what it asks, and return its value."""
    async with Layer(f"sqlite:///{state}/s.db", edge=edge) as layer:
        wait: float | None = None
        while True:
            outcome = await _go_on(layer, wait)
            if outcome.status is not RunStatus.WAITING:
                return outcome.result()
            wait = None if outcome.questions else 60
            for question in outcome.questions:
                value, note = decide(question)
                await layer.answer(question.id, value, by="ann", note=note)


async def _go_on(layer: Layer, wait: float | None) -> Outcome[Any]:
    with suppress(UnknownRun):
        return await layer.resume(RUN_ID, wait=wait)
    return await layer.run(mails(), client="acme", run_id=RUN_ID)


def main(state: str, url: str, how: str = "resume", edge: Edge | None = None) -> int:
    """Run to the end and print the value."""
    del how
    World.url = url
    print(json.dumps(asyncio.run(drive(state, edge)), sort_keys=True), flush=True)  # noqa: T201 - the interface
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:3]))
