"""``inbox`` and ``answer``: what waits for a person, and the person's word."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from stepseven.cli import _code, _incidents, _told
from stepseven.cli._common import (
    Refused,
    Setting,
    Usage,
    clean,
    command,
    credential,
    json_or_text,
    now_us,
    out,
    person,
    print_json,
    width,
    wrapped,
)
from stepseven.cli._example import with_example
from stepseven.cli._read import question_document, view
from stepseven.cli._words import ask_block, count, headline, short_json, workflow_of
from stepseven.decide import _phrases as say
from stepseven.errors import InvalidAnswer, SecretFound, UnknownQuestion, readable
from stepseven.layer import Layer
from stepseven.model import Question, QuestionKind, QuestionStatus, RunStatus
from stepseven.store.base import Row
from stepseven.store.codec import storable
from stepseven.transitions.fitting import mismatch, typed
from stepseven.transitions.state import question_of
from stepseven.transitions.undoing import taken_back

MOST = 500  # questions in one listing
PAGE = 100  # runs in one page: more are not counted


async def inbox(
    setting: Setting,
    question: Annotated[str | None, typer.Argument(metavar="[QUESTION]", help="Show this one whole.")] = None,
    client: Annotated[str | None, typer.Option("--client", metavar="CLIENT", help="Only this client's.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Answered and closed ones, too.")] = False,
) -> None:
    """What needs you: the open questions, oldest first. A single one is shown whole."""
    async with setting.layer() as layer:
        if question is not None and question.startswith(_incidents.PREFIX):
            await _incidents.show_one(setting, layer, question)
            return
        if question is not None:
            found = await _question(layer, question)
            await _show_one(setting, layer, question_of(found, found["run_id"]))
            return
        page = await layer.questions(status=None if all_ else "open", client=client, limit=MOST)
        cards = [] if all_ else await _incidents.cards(layer, client)
        if setting.as_json:
            told = {"items": [question_document(q) for q in page], "next": page.next}
            print_json(told | {"incidents": [_incidents.document(card.incident) for card in cards]})
        elif not page:
            out().print(await _nothing(layer, client))
        elif len(page) == 1 and not all_:
            await _show_one(setting, layer, page[0])
        else:
            _incidents.show_cards(cards, setting.also)
            told_of = {id_ for card in cards for id_ in card.questions}
            rest = [q for q in page if q.id not in told_of]
            if rest:
                _list(setting, rest, more=page.next is not None)
            if (undelivered := await _told.nowhere(layer)) is not None:
                out().print(wrapped(f"{undelivered[0].upper()}{undelivered[1:]}"))


async def _show_one(setting: Setting, layer: Layer, question: Question) -> None:
    too_late = await _told.objections(layer, question)
    if setting.as_json:
        print_json({**question_document(question), "objections": too_late})
        return
    ask_block(out(), question, also=setting.also, found=await view(layer, question.run_id))
    _told.show(too_late)


def _list(setting: Setting, questions: list[Question], *, more: bool) -> None:
    console, columns = out(), width()
    for question in questions:
        left = f"{question.id}  {say.who(question.client_id)} · {workflow_of(question)}"
        right = _state(question)
        room = columns - len(right) - 2
        left = left if len(left) <= room else left[: room - 1] + "…"
        console.print(clean(f"{left:<{room}}  {right}"))
        text = headline(question)
        console.print(clean(f"  {text if len(text) <= columns - 2 else text[: columns - 3] + '…'}"))
    n = len([q for q in questions if q.status is QuestionStatus.OPEN])
    console.print()
    told = f"{count(n, 'question')} {'is' if n == 1 else 'are'} open, oldest first." if n else "No question is open."
    console.print(f"{told}{' There are more.' if more else ''} One of them whole:")
    console.print(f"  {command('inbox', 'QUESTION', *setting.also)}")


def _state(question: Question) -> str:
    if question.status is QuestionStatus.OPEN:
        return f"waiting {say.duration((now_us() - question.created_us) / 1e6)}"
    by = f" by {question.answered_by}" if question.answered_by else ""
    return f"{question.status}{by}"


async def _nothing(layer: Layer, client: str | None) -> str:
    """An empty inbox, kindly: what goes on meanwhile."""
    whom = f" for {say.who(client)}" if client else ""
    working = len(await layer.runs(client=client, status="running")) + len(await layer.runs(client=client, status="queued"))
    done = len(await layer.runs(client=client, status="done"))
    parts = [f"{count(working, 'run')} working or ready", f"{done}{'+' if done == PAGE else ''} finished"]
    return clean(f"Nothing needs you{whom}. {', '.join(parts)}.")


# -- answering --------------------------------------------------------------------------------------------------------

Until = Annotated[str | None, typer.Option("--until", metavar="TIME|SECONDS", help="For wait: a time, seconds, or: answers.")]
Fact = Annotated[str | None, typer.Option("--fact", metavar="KEY", help="For wait: until this fact is known.")]
Value = Annotated[str | None, typer.Option("--value", metavar="JSON|TEXT", help="For value: the result to go on with.")]
Receipt = Annotated[str | None, typer.Option("--receipt", metavar="JSON|TEXT", help="For happened, by_hand; null: none.")]
Usd = Annotated[float | None, typer.Option("--usd", help="For raise: the new limit in dollars.")]
Tokens = Annotated[int | None, typer.Option("--tokens", help="For raise: the new limit in tokens.")]
Steps = Annotated[int | None, typer.Option("--steps", help="For raise: the new limit in steps.")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="For raise: the new limit in seconds.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="For approve: a value you change. May be given again.")
]
To = Annotated[
    list[str] | None, typer.Option("--to", metavar="[OLD=]NEW", help="For map: the new name, where it is another; OLD= for none.")
]
Edit = Annotated[bool, typer.Option("--edit", help="For approve: change the values in your editor ($VISUAL, $EDITOR) first.")]
Note = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Kept with the answer.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who answers. Default: you.")]

Only = Annotated[
    list[str] | None, typer.Option("--question", metavar="QUESTION", help="Of an incident: this one only. May be given again.")
]
OnlyClient = Annotated[
    list[str] | None, typer.Option("--client", metavar="CLIENT", help="Of an incident: for this client. May be given again.")
]

#: choice: what may come with it, of which one is needed
_TAKES = {
    "wait": ("until", "fact"), "value": ("value",), "by_hand": ("receipt",), "happened": ("receipt",),
    "raise": ("usd", "tokens", "steps", "seconds"), "approve": ("set", "edit"), "map": ("to",),
}  # fmt: skip


async def answer(  # noqa: PLR0917 - typer names them all
    setting: Setting,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question's id, or an incident's (i_…).")],
    choice: Annotated[str, typer.Argument(metavar="CHOICE", help="A choice or its number; or the answer, if it is free.")],
    until: Until = None,
    fact: Fact = None,
    value: Value = None,
    receipt: Receipt = None,
    usd: Usd = None,
    tokens: Tokens = None,
    steps: Steps = None,
    seconds: Seconds = None,
    set_: Set = None,
    edit: Edit = False,
    to: To = None,
    note: Note = None,
    by: By = None,
    only: Only = None,
    client: OnlyClient = None,
) -> None:
    """Answer a question, once, or an incident. The run goes on with `resume`, or where it is executed."""
    given = {
        "until": _seconds_or_time(until), "fact": fact, "value": value, "receipt": receipt, "usd": usd, "tokens": tokens,
        "steps": steps, "seconds": seconds, "set": set_, "edit": edit or None, "to": to,
    }  # fmt: skip
    extras = {name: v for name, v in given.items() if v is not None}
    async with setting.layer() as layer:
        if question.startswith(_incidents.PREFIX):
            await _incidents.answer(
                setting, layer, question, lambda row: _reply(row, choice, extras), person(by), note, only or (), client or ()
            )
            return
        if only or client:
            raise Usage("--question and --client go with an incident (i_…): a question is answered alone")
        row = await _question(layer, question)
        # Of a question that takes no answer any more this is told before anything that is wrong with the answer.
        reply = _reply(row, choice, extras) if row["status"] == "open" else choice
        try:
            done = await layer.answer(question, reply, by=person(by), note=note)
        except SecretFound as error:
            raise credential(error) from error
        except InvalidAnswer as misfit:
            raise with_example(row, reply, misfit) from misfit
        if setting.as_json:
            print_json(question_document(done))
            return
        await _answered(setting, layer, done)


async def _answered(setting: Setting, layer: Layer, done: Question) -> None:
    label = next((o.label for o in done.options if o.id == (done.answer["choice"] if _chose(done.answer) else done.answer)), None)
    words = f"“{label}”" if label else short_json(done.answer, 120)
    with_it = readable(done.answer).items() if _chose(done.answer) else ()
    more = ", ".join(f"{k} {short_json(v, 60)}" for k, v in with_it if k != "choice")
    console = out()
    words += f" ({more})" if more else ""
    console.print(wrapped(f"Answered for {say.who(done.client_id)} by {done.answered_by}: {words}."))
    found = await view(layer, done.run_id)
    if found.row["owner"] is not None:
        console.print(wrapped(found.why))
        return
    run_id = await _goes_on(layer, found.row, done)
    if run_id is not None:
        console.print("It goes on with:" if run_id == done.run_id else "It is taken back with:")
        console.print(f"  {command('resume', run_id, *_code.hint(), *setting.also)}")
        if (meaning := _code.explained()) is not None:
            console.print(wrapped(meaning))


async def _goes_on(layer: Layer, run: Row, done: Question) -> str | None:
    """The run that an answer moves: its own, or the one that takes back what it did; ``None``: it has ended."""
    if not RunStatus(run["status"]).ended:
        return done.run_id
    if done.kind is not QuestionKind.UNDO or done.answer != "undo":
        return None
    row, _ = await layer.store.read(lambda tx: taken_back(tx, run))
    return None if row is None else str(row["id"])


def _chose(reply: Any) -> bool:
    return isinstance(reply, dict) and "choice" in reply


async def _question(layer: Layer, question_id: str) -> Row:
    def unit(tx: Any) -> tuple[Row | None, list[str]]:
        row = tx.one(tx.sql.question, {"id": question_id}) if storable(question_id) else None
        return row, [r["id"] for r in tx.all(tx.sql.open_question_ids, {})]

    row, open_ids = await layer.store.read(unit)
    if row is None:
        raise UnknownQuestion(question_id, open_ids)
    return row


def _seconds_or_time(text: str | None) -> float | str | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def _by_number(options: list[str], choice: str) -> str:
    """The choice that was meant: by its name, its number, or ``#`` and its number.

    Raises:
        Refused: a number that is also the name of another choice. One answer ever: nobody should have to guess.
    """
    number = choice.removeprefix("#")
    if not number.isdecimal() or not 1 <= int(number) <= len(options):
        return choice
    meant = options[int(number) - 1]
    if choice == number and choice in options and meant != choice:
        other = options.index(choice) + 1
        raise Refused(f"{choice} is the number of “{meant}” and the name of choice {other}: say '#{number}' or '#{other}'")
    return meant


def _reply(row: Row, choice: str, extras: dict[str, Any]) -> Any:
    """What the person said, in the form the question takes.

    Raises:
        Usage: an option that does not go with the choice. Refused: the choice needs one that is missing.
    """
    options = [o["id"] for o in json.loads(row["options"])]
    if not options:
        if extras:
            raise Usage(f"this question takes one free value: --{next(iter(extras))} does not belong here")
        return _free(row, choice)
    choice = _by_number(options, choice)
    takes = () if row["kind"] == QuestionKind.ASK.value else _TAKES.get(choice, ())
    strange = [name for name in extras if name not in takes]
    if strange and choice in options:
        fits = next((c for c, names in _TAKES.items() if strange[0] in names and c in options), None)
        where = f"it goes with the choice {fits}" if fits else f"the choice {choice} takes none"
        raise Usage(f"--{strange[0]} does not go with the choice {choice}: {where}")
    if not takes:
        return choice
    if choice == "approve":
        return _approval(row, choice, set_=extras.get("set") or [], edit=bool(extras.get("edit")))
    if choice == "map":
        return {"choice": choice, "to": _named(extras["to"])} if extras else choice
    if not extras:
        what = " or ".join(f"--{name}" for name in takes)
        raise Refused(f"the choice {choice} needs {what}: stepseven answer {row['id']} {choice} --{takes[0]} …")
    for name in ("value", "receipt"):
        if name in extras:
            extras[name] = typed(row["schema"], extras[name])
    return {"choice": choice, **extras}


def _named(given: list[str]) -> str | dict[str, str | None]:
    """New names as they were typed: one, or ``OLD=NEW`` for each; an empty one is none."""
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    pairs = [text.partition("=") for text in given]
    bare = next((text for text, sign, _ in pairs if not sign), None)
    if bare is not None:
        raise Usage(f"--to {bare}: of several say OLD=NEW for each")
    return {old: new or None for old, _, new in pairs}


def _approval(row: Row, choice: str, *, set_: list[str], edit: bool) -> Any:
    """What is approved, with what the person changed.

    Raises:
        Usage, Refused: a change that cannot be read, or an editor that was left without a usable text.
    """
    told = json.loads(row["context"]).get("approve") or {}
    schema, changes = json.loads(row["schema"] or "{}"), {}
    shown: Any = told.get("inputs")
    for text in set_:
        name, sign, value = text.partition("=")
        if not isinstance(shown, dict):
            raise Usage(f"--set {text}: what is proposed is one value without names: change it with --edit")
        if not sign or name not in shown:
            raise Usage(f"--set {text}: say NAME=VALUE, where NAME is one of {', '.join(shown)}")
        changes[name] = _fitting(schema.get("properties", {}).get(name, {}), value, shown[name])
    if edit:
        changes = _edited({**shown, **changes} if isinstance(shown, dict) else shown)
    elif changes and told.get("of") != "step":
        changes = {**shown, **changes}
    return {"choice": choice, "inputs": changes} if set_ or edit else choice


def _fitting(schema: Any, text: str, old: Any) -> Any:
    """A typed-in value: text stays text where text stood or is asked for."""
    return text if isinstance(old, str) and mismatch(schema, text) is None else json_or_text(text)


def _edited(values: Any) -> Any:
    """Let the person change *values* in their editor."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise Refused("no editor is set: set EDITOR, or use --set NAME=VALUE")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "approve.json"
        path.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", "utf-8")
        try:
            ended = subprocess.run([*shlex.split(editor), str(path)], check=False)  # noqa: S603 - the person's own editor
        except OSError as error:
            raise Refused(f"the editor {editor!r} cannot be started ({error}): use --set NAME=VALUE") from error
        if ended.returncode:
            raise Refused(f"the editor ended with {ended.returncode}: nothing was answered")
        try:
            return json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise Refused(f"what was saved is not JSON ({error}): nothing was answered") from error


def _free(row: Row, text: str) -> Any:
    """The answer to a free question: where text is asked for it is what was typed, quotes and all.

    Raises:
        Refused: nothing was typed. One answer ever: a variable that is not set must not become it.
    """
    if not text:
        raise Refused(f"an empty text answers nothing: if that is the answer, say `stepseven answer {row['id']} '\"\"'`")
    if text == '""':
        return typed(row["schema"], text)
    schema = json.loads(row["schema"]) if row["schema"] is not None else {"type": "string"}
    return text if schema.get("type") == "string" else typed(row["schema"], text)
