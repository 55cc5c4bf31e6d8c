"""``demo --story renewal``: two quarters of one client. A refused system, two questions, a kill, and a run that knows.

Every figure shown is read from the three systems or from the store. The scenery is in ``_renewal_stage.py``.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from stepseven.cli._cast import Ended
from stepseven.cli._common import Exit, Refused, clean, command, now_us, print_json, width, wrapped
from stepseven.cli._renewal_stage import Renewal
from stepseven.cli._voice import Voice
from stepseven.decide import _phrases as phrases
from stepseven.decide.escalate import render
from stepseven.model import Question

FIRST, SECOND = "workflow", "next_quarter"  # the modules of the two quarters
WHO = "ann"
PATIENCE_S = 60.0  # for the document to be filed; it takes well under a second on an idle machine


@dataclass(slots=True, kw_only=True)
class Story:
    """What was seen. Counts of documents and tickets are the systems' own, questions are the store's."""

    client: str
    pid: int = 0
    signal: int = 0
    in_doubt_at_kill: int = 0
    documents_at_kill: int = 0
    documents: int = 0
    quarters: int = 0
    twice: int = 0
    tickets_read: int = 0
    billing_refused: int = 0
    questions_q3: int = 0
    questions_q4: int = 0
    run_q3: str = ""
    run_q4: str = ""
    store: str = ""
    folder: str = ""

    @property
    def right(self) -> bool:
        """Whether everything happened once, and the second quarter asked nobody."""
        once = (self.documents, self.quarters, self.twice, self.tickets_read) == (2, 2, 0, 2)
        return once and (self.questions_q3, self.questions_q4) == (2, 0)


def tell(voice: Voice, *, store: str | None, as_json: bool) -> int:
    """Tell the story. *store*: the URL as given; ``None``: a store in the demo's own folder.

    Returns:
        The exit code.
    """
    with Renewal.open(store=store) as stage:
        story = Story(client=stage.client, store=stage.store, folder=str(stage.cast.folder))
        story.run_q3, story.run_q4 = stage.run_id("Q3"), stage.run_id("Q4")
        _refused(voice, stage)
        _answers(voice, stage)
        _kill(voice, stage, story)
        _wake(voice, stage)
        _next_quarter(voice, stage)
        _count(voice, stage, story)
    if as_json:
        print_json({**asdict(story), "right": story.right})
    return Exit.OK if story.right else Exit.FAILED


# -- the acts ---------------------------------------------------------------------------------------------------------


def _refused(voice: Voice, stage: Renewal) -> None:
    name = phrases.who(stage.client)
    voice.act(f"Q3: {name}'s renewal begins", "one system refuses. The run keeps what it has, and asks.")
    for what, service in stage.systems.items():
        voice.row(what, f"process {service.pid} at {service.url}")
    voice.console.print()
    shown, _ = stage.run(FIRST, "Q3")
    voice.row("$", shown)
    _ended(voice, stage.wait(), Exit.WAITING, stage)
    voice.row("they count", f"tickets read {_times(stage.asked('tickets', 'tickets'))}, billing refused "
              f"{_times(stage.asked('billing', 'refused'))}")  # fmt: skip
    voice.console.print()
    _show(voice, stage.question("Q3"))


def _answers(voice: Voice, stage: Renewal) -> None:
    voice.act("A person decides", "it goes on where it was. The tickets are not read, or paid for, again.")
    _decide(voice, stage, "approach:contract amount")
    shown, _ = stage.resume(FIRST, "Q3")
    voice.row("$", shown)
    _ended(voice, stage.wait(), Exit.WAITING, stage)
    voice.row("they count", f"tickets read {_times(stage.asked('tickets', 'tickets'))}, contract read "
              f"{_times(stage.asked('documents', 'contract'))}")  # fmt: skip
    voice.console.print()
    _show(voice, stage.question("Q3"))
    voice.console.print()
    _decide(voice, stage, "yes")
    voice.say("The answer is also kept as a fact about the client:")
    for fact in stage.facts():
        voice.row("known", f"{fact.key}: {fact.value} ({fact.set_by or fact.source}, version {fact.version})")


def _kill(voice: Voice, stage: Renewal, story: Story) -> None:
    # The store files the document and keeps its reply: the worst moment, because nobody here can know that it happened.
    documents = stage.systems["documents"]
    documents.ask("/fault", {"mode": "drop_reply", "method": "POST", "seconds": PATIENCE_S})
    shown, worker = stage.resume(FIRST, "Q3")
    _until_filed(stage)
    ended = stage.cast.kill(worker)
    documents.ask("/fault", {"mode": "ok"})
    story.pid, story.signal = ended.pid, ended.signal
    story.documents_at_kill = stage.count("documents")["documents"]
    found = stage.view("Q3")
    story.in_doubt_at_kill = found.unsettled
    voice.act(f"kill -9 {ended.pid}", "the document is filed, and the answer that says so was never read.")
    voice.row("$", shown)
    voice.row("worker", f"process {ended.pid} ended by signal {ended.signal} ({ended.signal_name}): no goodbye, no clean-up")
    voice.row("documents", f"{_count_of(story.documents_at_kill, 'document')} filed")
    done = ", ".join(found.checkpoint["steps_complete"])
    voice.row("on record", f"done: {done}")
    voice.row("in doubt", f"{story.in_doubt_at_kill}: claimed before it was sent, no answer on record")
    voice.breathe()


def _until_filed(stage: Renewal) -> None:
    """Wait until the document store has the document in its books."""
    give_up = time.monotonic() + PATIENCE_S
    while not stage.count("documents")["documents"]:
        if time.monotonic() > give_up or (stage.worker is not None and stage.worker.poll() is not None):
            raise Refused(f"the worker filed no document: {stage.cast.last_words()}")
        time.sleep(0.005)


def _wake(voice: Voice, stage: Renewal) -> None:
    looked = stage.asked("documents", "look")
    voice.act("The same command again", "it looks before it sends: one document, not two.")
    shown, _ = stage.resume(FIRST, "Q3")
    voice.row("$", shown)
    _ended(voice, stage.wait(), Exit.OK, stage)
    looks, document = stage.asked("documents", "look") - looked, stage.document("Q3")
    voice.row("documents", f"asked {_times(looks)} whether it is there: {document['id']} is. "
              f"{_count_of(stage.count('documents')['documents'], 'document')} filed")  # fmt: skip
    voice.breathe()


def _next_quarter(voice: Voice, stage: Renewal) -> None:
    stage.systems["tickets"].ask("/set", {"quarter": "Q4"})
    stage.systems["billing"].ask("/set", {"lapsed": False})
    voice.act("Q4: it begins where Q3 ended", "nobody is asked. The last line of the document is what Q3 left behind.")
    voice.say("Three months later. The billing credentials were mended meanwhile.")
    voice.console.print()
    shown, _ = stage.run(SECOND, "Q4")
    voice.row("$", shown)
    _ended(voice, stage.wait(), Exit.OK, stage)
    voice.row("questions", f"{len(stage.view('Q4').questions) or 'none'}")
    document = stage.document("Q4")
    voice.row("documents", f"{document['id']} is filed. It says:")
    voice.console.print()
    for line in document["text"].split("\n"):
        voice.console.print(wrapped(line, "    │ ", "    │ "))
    voice.breathe()


def _count(voice: Voice, stage: Renewal, story: Story) -> None:
    counted = stage.count("documents")
    story.documents, story.quarters, story.twice = counted["documents"], counted["quarters"], counted["twice"]
    story.tickets_read = stage.asked("tickets", "tickets")
    story.billing_refused = stage.asked("billing", "refused")
    story.questions_q3, story.questions_q4 = len(stage.view("Q3").questions), len(stage.view("Q4").questions)
    voice.act("The end", "the first line is the outside's count, not ours.")
    voice.say(
        f"The outside's own count: {story.documents} documents for {story.quarters} quarters, {story.twice} twice; "
        f"tickets read {story.tickets_read} times, once a quarter; billing refused {_times(story.billing_refused)}."
    )
    voice.say(f"Questions: {story.questions_q3} in Q3, {story.questions_q4} in Q4.")
    if not story.right:
        voice.say("This is wrong, and a bug of stepseven's: please report it.")
    voice.console.print()
    voice.console.print("Try next:", style="bold")
    voice.console.print(f"  {command('show', story.run_q4, '--store', stage.store)}")
    voice.console.print(f"  {command('client', stage.client, '--store', stage.store)}")
    voice.console.print(wrapped(f"All of it is in {stage.cast.folder}; delete the folder when you are done."), style="dim")


# -- parts ------------------------------------------------------------------------------------------------------------


def _ended(voice: Voice, ended: Ended, expected: Exit, stage: Renewal) -> None:
    """Say how a worker ended.

    Raises:
        Refused: not as the story needs it.
    """
    if ended.code != expected:
        look = command("runs", "--store", stage.store)
        raise Refused(f"the worker ended with code {ended.code} ({ended.said}): `{look}` tells more")
    waits = " (waiting for a person)" if ended.waiting else ""
    voice.row("worker", f"process {ended.pid} ended with code {ended.code}{waits}")


def _show(voice: Voice, question: Question) -> None:
    """A question as ``inbox`` shows it."""
    voice.console.print(clean(render(question, now_us=now_us(), width=width())))
    voice.breathe(2)


def _decide(voice: Voice, stage: Renewal, choice: str) -> None:
    """Answer the open question, and show the command that does it."""
    question = stage.question("Q3")
    number = next(str(n) for n, option in enumerate(question.options, 1) if option.id == choice)
    voice.say(f"{phrases.who(WHO)} answers:")
    voice.row("$", command("answer", question.id, number, "--by", WHO))
    stage.answer(question, choice, by=WHO)


def _times(n: int) -> str:
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


def _count_of(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
