"""``person``: who can be asked, where they are reached, and when they work."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import typer

from stepseven.cli._common import (
    DebugOption,
    Exit,
    JsonOption,
    Refused,
    Setting,
    StoreOption,
    Usage,
    command,
    now_us,
    out,
    print_json,
    row,
    shared,
    wrapped,
)
from stepseven.cli._words import clock
from stepseven.decide import _phrases as say
from stepseven.decide import channels, letter
from stepseven.decide.retention import span_us
from stepseven.people.postman import send
from stepseven.people.sending import AppriseSender
from stepseven.store.base import Row
from stepseven.transitions import persons
from stepseven.transitions.persons import Said, person_of

Id = Annotated[str, typer.Argument(metavar="PERSON", help="A short name, such as ann.")]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="The whole name.")]
Channel = Annotated[
    list[str] | None,
    typer.Option("--channel", metavar="URL|env:NAME", help="Where: an Apprise URL, or the variable with it. Repeatable."),
]
HoursOption = Annotated[str | None, typer.Option("--hours", metavar="HOURS", help="'mon-fri 09:00-17:00'. Default: always.")]
Zone = Annotated[str | None, typer.Option("--zone", metavar="ZONE", help="Of their clock: Europe/Vienna. Default: UTC.")]
ClientsOption = Annotated[
    list[str] | None, typer.Option("--client", metavar="CLIENT", help="Only this client's. May be given again. Default: all.")
]
Rank = Annotated[int | None, typer.Option("--rank", metavar="N", help="Who is asked first: the lowest. Default: 0.")]
Remind = Annotated[str | None, typer.Option("--remind", metavar="2h", help="After so much of their working time. Default: 2h.")]
HandOver = Annotated[str | None, typer.Option("--hand-over", metavar="4h", help="Then the next one is asked. Default: 4h.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME|3d", help="Until when: 2026-12-24, a time, or 3d.")]
Back = Annotated[bool, typer.Option("--back", help="They are here again.")]


def build() -> typer.Typer:
    """The group with its commands."""
    group = typer.Typer(invoke_without_command=True)
    group.callback()(_persons)
    for name, fn in COMMANDS.items():
        group.command(name)(shared(fn))
    return group


def _persons(ctx: typer.Context, store: StoreOption = None, json_: JsonOption = False, debug: DebugOption = False) -> None:
    """Who is asked, where they are reached, and when they work. Without a command: everybody."""
    root = ctx.find_root()
    before: Setting = root.obj or Setting()
    setting = root.obj = Setting(told=store or before.told, as_json=json_ or before.as_json, debug=debug or before.debug)
    if ctx.invoked_subcommand is None:
        list_(setting)


def add(  # noqa: PLR0917 - typer names them all
    setting: Setting,
    person: Id,
    name: Name = None,
    channel: Channel = None,
    hours: HoursOption = None,
    zone: Zone = None,
    client: ClientsOption = None,
    rank: Rank = None,
    remind: Remind = None,
    hand_over: HandOver = None,
) -> None:
    """Add a person, or change what is known of one. No credential is stored: env:NAME names the variable that has it."""
    said = Said(
        id=person, name=name, channels=tuple(channel) if channel else None, hours=hours, zone=zone,
        clients=tuple(client) if client else None, rank=rank, remind_us=_span("--remind", remind),
        hand_over_us=_span("--hand-over", hand_over),
    )  # fmt: skip
    layer = setting.layer(create=True)
    try:
        now = now_us()
        kept = layer.store.write_now(lambda tx: persons.save(tx, said, now), durable=True, client=None)
    finally:
        layer.close()
    if setting.as_json:
        print_json(document(kept))
        return
    _show(kept)
    out().print("A worker tells them what waits. Whether they can be reached:")
    out().print(f"  {command('person', 'test', person, *setting.also)}")


def _span(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return span_us(text)
    except ValueError as error:
        raise Usage(f"{option} {text} is no time: say it like 2h") from error


def list_(setting: Setting) -> None:
    """Everybody, in the order in which they are asked."""
    layer = setting.layer()
    try:
        rows = layer.store.read_now(lambda tx: tx.all(tx.sql.persons, {}))
    finally:
        layer.close()
    if setting.as_json:
        print_json({"items": [document(kept) for kept in rows]})
        return
    if not rows:
        out().print(wrapped("Nobody is told anything: there are no persons. One is added with:"))
        out().print(f"  {command('person', 'add', 'ann', '--channel', 'env:ANN_CHANNEL', *setting.also)}")
    for kept in rows:
        _show(kept)


def document(kept: Row) -> dict[str, Any]:
    """A person as JSON; spans of time in seconds."""
    return {
        "id": kept["id"], "name": kept["name"], "channels": [channels.shown(c) for c in json.loads(kept["channels"])],
        "hours": kept["hours"] or "always", "zone": kept["zone"],
        "clients": json.loads(kept["clients"]) if kept["clients"] else None, "rank": kept["rank"],
        "remind_s": kept["remind_us"] // 1_000_000, "hand_over_s": kept["hand_over_us"] // 1_000_000,
        "away_until_us": kept["away_until_us"],
    }  # fmt: skip


def _show(kept: Row) -> None:
    told = document(kept)
    out().print(wrapped(f"{kept['id']} · {kept['name']}"))
    lines = [
        ("reached", ", then ".join(told["channels"])), ("works", f"{told['hours']} ({told['zone']})"),
        ("clients", ", ".join(told["clients"]) if told["clients"] else "all"),
        ("asked", _pace(told)),
    ]  # fmt: skip
    if kept["away_until_us"] is not None and kept["away_until_us"] > now_us():
        lines.append(("away", f"until {clock(kept['away_until_us'])}"))
    for label, text in lines:
        out().print(row(label, text))


def _pace(told: dict[str, Any]) -> str:
    remind, over = say.duration(told["remind_s"]), say.duration(told["hand_over_s"])
    return f"rank {told['rank']}; reminded after {remind}, and after {over} of working time the next one is asked"


def remove(setting: Setting, person: Id) -> None:
    """Tell them nothing more. What they have goes to the next one; what they said stays."""
    layer = setting.layer()
    try:
        now = now_us()
        layer.store.write_now(lambda tx: persons.remove(tx, person, now), durable=True, client=None)
    finally:
        layer.close()
    if setting.as_json:
        print_json({"id": person, "removed": True})
        return
    out().print(wrapped(f"{person} is told nothing more. What they had to answer goes to the next person."))


def away(setting: Setting, person: Id, until: Until = None, back: Back = False) -> None:
    """They are away: the others are asked until then."""
    if back == (until is not None):
        raise Usage("say either --until TIME or --back")
    layer = setting.layer()
    try:
        now = now_us()
        moment = None if until is None else _moment(until, now)
        kept = layer.store.write_now(lambda tx: persons.away(tx, person, moment, now), durable=True, client=None)
    finally:
        layer.close()
    if setting.as_json:
        print_json(document(kept))
    elif back:
        out().print(wrapped(f"{person} is here."))
    else:
        out().print(wrapped(f"{person} is away until {clock(kept['away_until_us'])}. Until then the others are asked."))


def _moment(text: str, now: int) -> datetime:
    """When somebody is back: a date or time (of their zone), or so long from now."""
    try:
        return datetime.fromtimestamp((now + span_us(text)) / 1e6).astimezone()
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise Usage(f"--until {text} is no time: say 2026-12-24, 2026-12-24T09:00 or 3d") from error


def test(setting: Setting, person: Id) -> int:
    """Send a message now, whatever the hour, and say which channel took it."""
    layer = setting.layer()
    try:
        kept = layer.store.read_now(lambda tx: persons.one(tx, person))
    finally:
        layer.close()
    sender = AppriseSender()
    if (why := sender.missing()) is not None:
        raise Refused(f"nothing was sent: {why}")
    try:
        channel, reason = send(sender, kept, letter.trial(person_of(kept).name, now_us()))
    finally:
        sender.close()
    if setting.as_json:
        print_json({"id": person, "channel": channel, "reason": reason or None})
    elif channel is not None:
        out().print(wrapped(f"Sent to {person} by {channel}."))
    else:
        out().print(wrapped(f"Nothing reached {person}: {reason}."))
    return Exit.OK if channel is not None else Exit.REFUSED


COMMANDS: dict[str, Callable[..., Any]] = {"add": add, "list": list_, "remove": remove, "away": away, "test": test}
