"""One run that does a little of everything, and answers its own questions. It is killed again and again.

    python subject.py STATE_DIR OUTSIDE_URL

Starts the run, or resumes it if the database in STATE_DIR knows it; prints its value as the last line and exits 0. Its
value is the same however often it was killed on the way. Effects are POSTed to OUTSIDE_URL/effect/KIND.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stepseven import Cost, Layer, Outcome, Question, Run, StoreUnavailable, UnknownRun, attempt, step, workflow
from stepseven.model import QuestionKind, RunStatus
from stepseven.runtime.edge import Edge

RUN_ID = "acme-q3"
DAY_US = 24 * 3600 * 1_000_000
ITEMS = ["l-1", "l-2", "l-3", "l-4", "l-5"]

#: how often each step is executed when nothing goes wrong
STEPS = {"inbox": 1, "thread": 1, "archive": 1, "draft": 2, "judge": 1, "look_up": 5, "summarise": 1}
PAID = ("draft", "judge")
#: every effect, by kind and reference, and how often it is to happen
EFFECTS = dict.fromkeys(
    [("book", "b-1"), ("charge", "c-1"), ("remind", "r-1"), ("mail", "m-1"), *(("line", i) for i in ITEMS)], 1
)


class World:
    """Where the outside is, and whether it is told what the run relies on."""

    url = ""
    says = False  # only our own counter listens
    late = False  # a day has passed since the last life: what was promised for a day is over


@dataclass
class Draft:
    topic: str
    words: int


@dataclass
class Receipt:
    kind: str
    ref: str


def talk(method: str, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> Any:
    """One request to the outside."""
    connection = http.client.HTTPConnection(World.url.removeprefix("http://"), timeout=20)
    try:
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key is not None else {})
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(f"{method} {path} answered {response.status}")
        return json.loads(text)
    finally:
        connection.close()


def ran(name: str) -> None:
    """A step's code runs."""
    talk("GET", f"/ran/{name}")


def said(what: str) -> None:
    """The run's code was told something it may rely on. Not by ``http.client``: it is no place to be killed at."""
    if World.says:
        host, _, port = World.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(f"GET /said/{what} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            while connection.recv(4096):
                pass


def is_there(kind: str, ref: str) -> bool:
    """What a probe, or a person, sees when looking."""
    return any(e["kind"] == kind and json.loads(e["body"])["ref"] == ref for e in talk("GET", "/effects"))


# -- free reads: small, in the artifact table, in the artifact folder; async and in a thread --------------------------------


@step(summary=lambda mails: f"{len(mails)} mails")
async def inbox(client: str) -> list[str]:
    """A small result."""
    ran("inbox")
    return [f"{client}-{n}" for n in range(3)]


@step
async def thread(mails: list[str]) -> dict[str, str]:
    """A result for the artifact table."""
    ran("thread")
    return dict.fromkeys(mails, "t" * 2_500)


@step
def archive(client: str) -> str:
    """A result for the artifact folder."""
    ran("archive")
    return client * 20_000


# -- paid reads -------------------------------------------------------------------------------------------------------------


@step(cost=Cost(usd=0.02), summary=lambda draft: f"{draft.words} words")
def draft(topic: str, size: int) -> Draft:
    """Paid, in a thread, two at a time."""
    ran("draft")
    return Draft(topic=topic, words=size // 1000)


@step(cost=Cost(usd=0.05))
async def judge(first: Draft, second: Draft) -> int:
    """Paid, and reports another cost."""
    ran("judge")
    attempt().spend(usd=0.04, tokens=900)
    return first.words + second.words


# -- writes: the receiver can be asked; honours keys for ever, for a day; neither ------------------------------------------------


@step(effect="write", key="number")
def book(number: str, points: int) -> Receipt:
    """The receiver can be asked."""
    talk("POST", "/effect/book", {"ref": number, "points": points})
    return Receipt("book", number)


@book.probe
def find_book(number: str, points: int) -> Receipt | None:
    """Ask it."""
    return Receipt("book", number) if is_there("book", number) else None


@step(effect="write", key="number", idempotent="forever")
async def charge(number: str, usd: int) -> Receipt:
    """The receiver honours keys for ever."""
    talk("POST", "/effect/charge", {"ref": number, "usd": usd}, key=attempt().idempotency_key)
    return Receipt("charge", number)


@step(effect="write", key="number", idempotent="24h")
def remind(number: str, text: str) -> Receipt:
    """The receiver honours keys for a day."""
    talk("POST", "/effect/remind", {"ref": number, "text": text}, key=attempt().idempotency_key)
    return Receipt("remind", number)


@step(effect="write", key="number")
async def mail(number: str, text: str) -> Receipt:
    """The receiver does neither: a person looks."""
    talk("POST", "/effect/mail", {"ref": number, "text": text})
    return Receipt("mail", number)


# -- a map: each item a free read and a write ---------------------------------------------------------------------------------


@step
def look_up(item: str) -> int:
    """The free half of an item."""
    ran("look_up")
    return int(item[-1]) * 10


@step(effect="write", key="item")
def line(item: str, amount: int) -> Receipt:
    """The write of an item."""
    talk("POST", "/effect/line", {"ref": item, "amount": amount})
    return Receipt("line", item)


@line.probe
async def find_line(item: str, amount: int) -> Receipt | None:
    """Ask the receiver."""
    return Receipt("line", item) if is_there("line", item) else None


async def enter(item: str) -> Receipt:
    """One item."""
    return await line(item, await look_up(item))


@step
async def summarise(parts: dict[str, Any]) -> dict[str, Any]:
    """The run's value."""
    ran("summarise")
    return {**parts, "count": len(parts)}


@workflow
async def quarter(run: Run, name: str) -> dict[str, Any]:
    """All of it."""
    said("admitted")
    mails = await inbox(run.client_id)
    talks = await thread(mails)
    old = await archive(run.client_id)
    said(f"id/{run.uuid()}")
    first, second = await asyncio.gather(draft("now", len(talks[mails[0]])), draft("then", len(old)))
    said("paid/draft/2")
    points = await judge(first, second)
    said("paid/judge/1")
    booked = await book("b-1", points)
    said("receipt/book/b-1")
    approved = await run.ask(f"Is the discount of {name} still approved?", options=["yes", "no"], remember="discount")
    charged = await charge("c-1", points if approved == "yes" else 0)
    said("receipt/charge/c-1")
    reminded = await remind("r-1", approved)
    said("receipt/remind/r-1")
    lines = await run.map(enter, ITEMS)
    mailed = await mail("m-1", f"{len(lines)} lines, {approved}")
    said("receipt/mail/m-1")
    parts = {
        "booked": booked.ref, "charged": charged.ref, "reminded": reminded.ref, "mailed": mailed.ref, "approved": approved,
        "lines": [entry.ref for entry in lines], "points": points,
    }  # fmt: skip
    return await summarise(parts)


# -- the person -----------------------------------------------------------------------------------------------------------------


def decide(question: Question) -> Any:
    """What a careful person answers. Anything that should not have been asked ends the process."""
    if question.kind is QuestionKind.ASK:
        return "yes"
    if question.kind is QuestionKind.POISON:
        return "again"
    kind, ref = ("mail", "m-1") if question.step == "mail" else ("remind", "r-1")
    nobody_else_knows = question.step == "mail" or (question.step == "remind" and World.late)
    if question.kind is QuestionKind.UNKNOWN_OUTCOME and nobody_else_knows:
        return {"choice": "happened", "receipt": {"kind": kind, "ref": ref}} if is_there(kind, ref) else "not_happened"
    raise SystemExit(f"this should not have been asked: {question}")


async def drive(state: str, how: str = "resume", edge: Edge | None = None) -> Any:
    """Start or continue the run, answer what it asks, and return its value.

    *how*: ``resume``, or ``run`` with the known id; ``stubborn``: the same layer goes on after an error of the store.
    """
    async with Layer(f"sqlite:///{state}/s.db", edge=edge) as layer:
        errors = 0
        wait: float | None = None
        while True:
            try:
                outcome = await go_on(layer, how, wait)
                if outcome.status is not RunStatus.WAITING:
                    return outcome.result()
                wait = None if outcome.questions else 60  # people are not waited for: they are answered
                for question in outcome.questions:
                    said(f"question/{question.id}")
                    await layer.answer(question.id, decide(question), by="ann")
                    said(f"answer/{question.id}")
            except StoreUnavailable:
                errors += 1
                if how != "stubborn" or errors > 3:
                    raise


async def go_on(layer: Layer, how: str, wait: float | None) -> Outcome[Any]:
    """Resume the run, or start it."""
    if how != "run":
        with suppress(UnknownRun):
            return await layer.resume(RUN_ID, wait=wait)
    return await layer.run(quarter(name="Q3"), client="acme", run_id=RUN_ID)


def drive_quietly(state: str, url: str) -> None:
    """One run from its start to its end, without a word."""
    World.url = url
    asyncio.run(drive(state))


def glance(state: str, url: str, how: str = "resume", edge: Edge | None = None) -> int:
    """Go on only if nobody else drives the run; else say that it runs."""

    async def status() -> RunStatus:
        async with Layer(f"sqlite:///{state}/s.db", edge=edge) as layer:
            return (await go_on(layer, how, None)).status

    World.url = url
    if asyncio.run(status()) is not RunStatus.RUNNING:
        return main(state, url, how, edge)
    print(json.dumps("running"), flush=True)  # noqa: T201 - the interface
    return 0


def main(state: str, url: str, how: str = "resume", edge: Edge | None = None) -> int:
    """Run to the end and print the value."""
    World.url = url
    print(json.dumps(asyncio.run(drive(state, how, edge)), sort_keys=True), flush=True)  # noqa: T201 - the interface
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:3]))
