"""``demo``: fifty invoices, a real kill in the middle of one, a dead API, one question; the outside counts.

Every figure shown is read from the accounting API or from the store. The scenery (processes, folder) is in ``_stage.py``;
the other story is in ``_renewal.py``.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from stepseven.cli import _renewal
from stepseven.cli._cast import Ended
from stepseven.cli._common import Exit, Refused, Setting, Usage, clean, command, now_us, print_json, width, wrapped
from stepseven.cli._page import groups
from stepseven.cli._read import view
from stepseven.cli._stage import Stage
from stepseven.cli._voice import Voice
from stepseven.decide.escalate import render
from stepseven.layer import Layer
from stepseven.model import Question

INVOICES = 50
KILL_AT = 37
LET_THROUGH = 6  # postings after the kill that still go well, before the API refuses
PATIENCE_S = 60.0  # for one thing to be seen from outside; it takes well under a second on an idle machine


class Tale(StrEnum):
    """The stories there are."""

    INVOICES = "invoices"
    RENEWAL = "renewal"


@dataclass(slots=True, kw_only=True)
class Story:
    """What was seen, each figure from the API (``api_*``) or the store (``known_*``)."""

    killed_at: int
    signal: int = 0
    pid: int = 0
    api_at_kill: int = 0
    known_at_kill: int = 0
    in_doubt_at_kill: int = 0
    questions: int = 0
    api_at_question: int = 0
    postings: int = 0
    documents: int = 0
    twice: int = 0
    run_id: str = ""
    store: str = ""
    folder: str = ""

    @property
    def right(self) -> bool:
        """Whether the outside has every invoice exactly once."""
        return self.postings == self.documents == INVOICES and self.twice == 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the store knows: postings with a receipt, claims without one, documents in all, the latest posting."""

    done: int
    in_doubt: int
    of: int
    latest: str | None


def demo(
    setting: Setting,
    tale: Annotated[
        Tale, typer.Option("--story", help="invoices: a batch dies and finishes. renewal: two quarters, two questions.")
    ] = Tale.INVOICES,
    at: Annotated[
        int | None,
        typer.Option("--at", metavar="N", min=1, max=INVOICES, help="Kill while invoice N is being posted. Default: 37."),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Without the pauses for reading.")] = False,
) -> int:
    """Watch a run die and wake up: 50 invoices, a real kill -9, a dead API, one question, nothing posted twice."""
    voice = Voice(fast=fast, quiet=setting.as_json)
    if tale is Tale.RENEWAL:
        if at is not None:
            raise Usage("--at goes with --story invoices: leave it out")
        return _renewal.tell(voice, store=setting.told, as_json=setting.as_json)
    story = Story(killed_at=at or KILL_AT)
    with Stage.open(INVOICES, store=setting.told) as stage:
        story.folder, story.run_id, story.store = str(stage.folder), stage.run_id, stage.store
        _opening(voice, stage)
        _kill(voice, stage, story)
        _known(voice, stage, story)
        ended = _wake(voice, stage, story)
        while ended.waiting:
            ended = _ask(voice, stage, story)
        if ended.code != Exit.OK:
            look = f"`stepseven show {stage.run_id} --store {stage.store}`"
            raise Refused(f"the worker ended with code {ended.code} ({ended.said}): {look} tells more")
        _count(voice, stage, story)
    if setting.as_json:
        print_json({**asdict(story), "right": story.right})
    return Exit.OK if story.right else Exit.FAILED


# -- the acts ---------------------------------------------------------------------------------------------------------


def _opening(voice: Voice, stage: Stage) -> None:
    voice.act(
        f"{INVOICES} invoices to post, {stage.count()['postings']} posted",
        "two processes of their own: the worker, and an accounting API that keeps its own count.",
    )
    voice.row("invoices", f"{INVOICES} e-invoices in {stage.invoices}")
    voice.row("API", f"process {stage.api.pid} at {stage.api.url}")


def _kill(voice: Voice, stage: Stage, story: Story) -> None:
    at = story.killed_at
    # The API books posting N and keeps its reply: the worst moment, because nobody here can know that it happened.
    stage.fault(mode="drop_reply", times=1, after=at - 1, seconds=PATIENCE_S)
    worker = stage.start_worker()
    voice.row("worker", f"process {worker.pid}")
    voice.console.print()
    _watch(voice, stage, at)
    ended = stage.cast.kill(worker)
    story.pid, story.signal, story.api_at_kill = ended.pid, ended.signal, stage.count()["postings"]
    voice.act(
        f"kill -9 {ended.pid}",
        f"the API has booked invoice {story.api_at_kill}, and its answer was never read.",
    )
    voice.row("worker", f"process {ended.pid} ended by signal {ended.signal} ({ended.signal_name}): no goodbye, no clean-up")
    voice.row("API counts", f"{story.api_at_kill} postings")


def _watch(voice: Voice, stage: Stage, upto: int) -> None:
    """Follow the API's own count until posting *upto* is in its books."""
    bar = Progress(
        TextColumn("  API counts  "),
        BarColumn(bar_width=30, complete_style="cyan"),
        MofNCompleteColumn(),
        console=voice.console,
        disable=not voice.console.is_terminal,
    )
    give_up = time.monotonic() + PATIENCE_S
    with bar:
        task = bar.add_task("", total=INVOICES)
        while True:
            seen = stage.count()["postings"]
            bar.update(task, completed=seen)
            if seen >= upto:
                return
            if time.monotonic() > give_up or not stage.working:
                raise Refused(f"the worker posted {seen} invoices and not {upto}: {stage.cast.last_words()}")
            time.sleep(0.005)


def _known(voice: Voice, stage: Stage, story: Story) -> None:
    seen = asyncio.run(_posted(stage))
    story.known_at_kill, story.in_doubt_at_kill = seen.done, seen.in_doubt
    voice.act("What the checkpoint knows", "it says what is done, and what it cannot know; it does not guess.")
    latest = f"; the latest: {seen.latest}" if seen.latest else ""
    voice.row("done", f"{seen.done} of {seen.of} posted, each with its receipt{latest}")
    voice.row("in doubt", f"{story.in_doubt_at_kill}: claimed before it was sent, no answer on record")
    voice.row("API counts", f"{story.api_at_kill} postings")
    voice.breathe()


async def _posted(stage: Stage) -> Seen:
    async with Layer(stage.store) as layer:
        found = await view(layer, stage.run_id)
    all_groups = {g.name: g for g in groups(found)}
    post, read = all_groups.get("post_invoice"), all_groups.get("read_invoice")
    of = (post and post.of) or (read and read.of) or 0
    latest = list(post.records.values())[-1]["summary"] if post and post.records else None
    return Seen(post.done if post else 0, found.unsettled, of, latest)


def _wake(voice: Voice, stage: Stage, story: Story) -> Ended:
    left = INVOICES - stage.count()["postings"]
    voice.act("The same command again", "it looks before it sends: the invoice in doubt is found in the books, not posted again.")
    if left >= 2:  # noqa: PLR2004 - two failures in a row pause a batch
        after = max(0, min(LET_THROUGH, left - 2))
        stage.fault(mode="forbid", after=after)
        voice.say(f"And the API is made to break: after {after} more postings it refuses every one.")
    else:
        stage.fault(mode="ok")
        left_over = "One invoice is left" if left else "No invoice is left"
        voice.say(f"{left_over}, too few to make a batch of failures: the API is not made to break this time.")
    voice.console.print()
    voice.row("$", stage.command)
    ended = stage.run_worker()
    count, seen = stage.count(), asyncio.run(_posted(stage))
    waits = " (waiting for a person)" if ended.waiting else ""
    voice.row("worker", f"process {ended.pid} ended with code {ended.code}{waits}")
    voice.row("done", f"{seen.done} of {seen.of} posted, {seen.in_doubt} in doubt")
    voice.row("API counts", f"{count['postings']} postings, {count['twice']} twice")
    story.api_at_question = count["postings"]
    return ended


def _ask(voice: Voice, stage: Stage, story: Story) -> Ended:
    questions = asyncio.run(_open(stage))
    story.questions += len(questions)
    if len(questions) != 1:
        raise Refused(f"{len(questions)} questions are open where one was expected: `stepseven inbox --store {stage.store}`")
    question = questions[0]
    left = INVOICES - stage.count()["documents"]
    voice.act(
        f"{left} invoice{'' if left == 1 else 's'} left, and you get one question",
        "one question, not one per invoice; it says what each choice does.",
    )
    voice.console.print(clean(render(question, now_us=now_us(), width=width())))
    voice.breathe(2)
    stage.fault(mode="ok")
    voice.console.print()
    voice.say("Somebody gives the permission back, and answers:")
    voice.row("$", command("answer", question.id, "again"))
    asyncio.run(_answer(stage, question))
    voice.row("$", stage.command)
    ended = stage.run_worker()
    voice.row("worker", f"process {ended.pid} ended with code {ended.code}")
    return ended


async def _open(stage: Stage) -> list[Question]:
    async with Layer(stage.store) as layer:
        return list(await layer.questions(run_id=stage.run_id))


async def _answer(stage: Stage, question: Question) -> None:
    async with Layer(stage.store) as layer:
        await layer.answer(question.id, "again", by="demo")


def _count(voice: Voice, stage: Stage, story: Story) -> None:
    count = stage.count()
    story.postings, story.documents, story.twice = count["postings"], count["documents"], count["twice"]
    voice.act("The end", "this is the outside's count, not ours.")
    verdict = "every one once" if story.right else "this is wrong, and a bug of stepseven's: please report it"
    voice.say(f"The API's own count: {story.postings} postings of {story.documents} invoices, {story.twice} twice; {verdict}.")
    voice.console.print()
    other = 12 if story.killed_at != 12 else 25  # noqa: PLR2004 - another place
    voice.console.print("Try next:", style="bold")
    voice.console.print(f"  {command('show', stage.run_id, '--store', stage.store)}")
    voice.console.print(f"  {command('demo', '--at', str(other))}")
    voice.console.print(wrapped(f"All of it is in {stage.folder}; delete the folder when you are done."), style="dim")


__all__ = ["Story", "demo"]
