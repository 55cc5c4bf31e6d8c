"""``client``: what is known about the clients, what is said about them, and whether anything may begin for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stepseven.cli import _client_page, _code, _facts_file, keep
from stepseven.cli._common import (
    DebugOption,
    JsonOption,
    Refused,
    Setting,
    StoreOption,
    Usage,
    command,
    credential,
    json_or_text,
    out,
    person,
    print_json,
    shared,
    wrapped,
)
from stepseven.cli._words import count, short_json
from stepseven.clients import import_facts
from stepseven.decide import _phrases as say
from stepseven.errors import NotRecordable, SecretFound, TooLarge, UnknownClient
from stepseven.layer import Layer
from stepseven.model import Fact, RunStatus
from stepseven.runtime.facts import checked_key, given
from stepseven.store.base import Row, Tx
from stepseven.transitions import clients
from stepseven.transitions.clients import Given

Id = Annotated[str, typer.Argument(metavar="CLIENT", help="The client's id.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who says so. Default: you.")]
SetBy = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who says so. Default: you; with --source: nobody.")]
Valid = Annotated[str | None, typer.Option("--valid", metavar="90d", help="How long it holds: 90d, 12h. Default: for good.")]
Source = Annotated[str | None, typer.Option("--source", metavar="NAME", help="Where it comes from, such as crm.")]
FileSource = Annotated[str | None, typer.Option("--source", metavar="NAME", help="Where it comes from. Default: import:FILE.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="A .csv with a column `client`, or a .json.")]
History = Annotated[str | None, typer.Option("--history", metavar="KEY", help="Every version of this fact instead.")]
SHOWN = 20  # facts of an import that are listed


class ByName(TyperGroup):
    """A group in which any other first word is a client's id: ``client acme`` is ``client show acme``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As of a group; an unknown word is shown."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["show", *args]
        return super().resolve_command(ctx, args)


def build() -> typer.Typer:
    """The group with its commands."""
    group = typer.Typer(cls=ByName, invoke_without_command=True, subcommand_metavar="[CLIENT | COMMAND …]")
    group.callback()(_clients)
    for name, fn in COMMANDS.items():
        group.command(name)(shared(fn))
    return group


def _clients(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many clients at most.")] = 100,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where a page ended: its `next`.")] = None,
    store: StoreOption = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """What is known about a client: `stepseven client acme`. Without a name: all clients.

    A client whose id is one of the commands is shown by `stepseven client show ID`.
    """
    root = ctx.find_root()
    before: Setting = root.obj or Setting()
    setting = root.obj = Setting(told=store or before.told, as_json=json_ or before.as_json, debug=debug or before.debug)
    if ctx.invoked_subcommand is None:
        _list(setting, limit, cursor)


def _list(setting: Setting, limit: int, cursor: str | None) -> None:
    layer = setting.layer()
    try:
        rows = layer.store.read_now(
            lambda tx: tx.all(tx.sql.clients_page, {"after": cursor or "", "id": None, "limit": limit + 1})
        )
    finally:
        layer.close()
    more = rows[limit - 1]["id"] if len(rows) > limit else None
    if setting.as_json:
        print_json({"items": [_client_page.summary(row) for row in rows[:limit]], "next": more})
        return
    for line in _client_page.listing(rows[:limit]):
        out().print(line)
    if more is not None:
        out().print(f"There are more: {command('client', '--cursor', more, *setting.also)}")


# -- looking ----------------------------------------------------------------------------------------------------------


def show(setting: Setting, client: Id, history: History = None) -> None:
    """What is known about a client: facts with their sources, contradictions side by side, what is under way."""
    layer = setting.layer()
    try:
        known = layer.store.read_now(lambda tx: _row(tx, client))
        found = layer.client(client)
        if history is not None:
            _history(setting, client, history, found.history(history))
            return
        facts = found.facts()
    finally:
        layer.close()
    if setting.as_json:
        print_json({**_client_page.summary(known), "facts": [_client_page.document(fact) for fact in facts]})
        return
    for line in _client_page.page(known, facts, also=setting.also):
        out().print(line)


def _row(tx: Tx, client: str) -> Row:
    row = tx.one(tx.sql.clients_page, {"after": "", "id": client, "limit": 1})
    if row is None:
        raise UnknownClient(client)
    return row


def _history(setting: Setting, client: str, key: str, versions: list[Fact]) -> None:
    if setting.as_json:
        print_json({"client_id": client, "key": key, "versions": [_client_page.document(fact) for fact in versions]})
        return
    if not versions:
        raise Refused(f"nothing was ever said about {key} of {client}: `{command('client', client)}` shows what is known")
    for line in _client_page.history(client, key, versions):
        out().print(line)


# -- saying -----------------------------------------------------------------------------------------------------------


def set_(
    setting: Setting,
    client: Id,
    facts: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…", help="What is so; the value is JSON, or text.")],
    source: Source = None,
    by: SetBy = None,
    valid: Valid = None,
) -> None:
    """Say what is so about a client: all of it, or nothing. What a person says settles what sources said before."""
    pairs = [_pair(text) for text in facts]
    twice = next((key for i, (key, _) in enumerate(pairs) if key in [k for k, _ in pairs[:i]]), None)
    if twice is not None:
        raise Usage(f"the fact {twice} is given twice: give each once")
    who = None if by is None and source else person(by)
    layer = setting.layer(create=True)
    try:
        layer.client(client)  # an id that is none is refused before anything
        now = layer.services.edge.now_us()
        words = [given(client, key, value, source=source, by=who, valid=valid, now_us=now) for key, value in pairs]
        done = import_facts(layer.services, words)
        stand = {fact.key: fact for fact in layer.client(client).facts()}
    except SecretFound as error:
        raise credential(error) from error
    except ValueError as error:
        raise Refused(str(error)) from error
    finally:
        layer.close()
    mine = [stand[key] for key, _ in pairs]
    if setting.as_json:
        print_json({"client_id": client, "set": len(done.new), "unchanged": done.unchanged,
                    "facts": [_client_page.document(fact) for fact in mine]})  # fmt: skip
        return
    out().print(wrapped(f"{say.who(client)}: {count(len(done.new), 'fact')} set, {done.unchanged} unchanged."))
    for line in _client_page.facts(mine):
        out().print(line)


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise Usage(f"{text!r} is not of the form KEY=VALUE: write vat_number=DE123")
    return key, json_or_text(value, once=key)


def import_(
    setting: Setting,
    file: File,
    source: FileSource = None,
    valid: Valid = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would change.")] = False,
) -> None:
    """Say what a file says about many clients: all of it, or nothing.

    A CSV has a column `client` and one for each fact; an empty cell says nothing. A JSON file is {"acme": {"vat_number": "…"}}.
    """
    cells = _facts_file.read(file)
    layer = setting.layer(create=not dry_run)
    try:
        words = [_word(layer, file, cell, source or f"import:{file.name}", valid) for cell in cells]
        done = import_facts(layer.services, words, dry_run=dry_run)
    finally:
        layer.close()
    if setting.as_json:
        print_json({"set": len(done.new), "unchanged": done.unchanged, "conflicts": len(done.conflicts), "dry_run": dry_run,
                    "new": [_client_page.document(fact) for fact in done.new[:1000]]})  # fmt: skip
        return
    would, whom = ("would be " if dry_run else ""), len({word.client_id for word in words})
    told = f"{count(len(done.new), 'fact')} {would}set, {done.unchanged} unchanged, {len(done.conflicts)} in conflict"
    out().print(wrapped(f"{file.name}: {told}, for {count(whom, 'client')}.{' Nothing was written.' if dry_run else ''}"))
    if dry_run:
        _preview("would be set", done.new)
    _preview("says otherwise than another source", done.conflicts)


def _preview(what: str, facts: tuple[Fact, ...]) -> None:
    for fact in facts[:SHOWN]:
        against = "".join(f"; {other.source or 'somebody'} says {short_json(other.value, 60)}" for other in fact.conflicts)
        out().print(wrapped(f"{fact.client_id}: {fact.key} = {short_json(fact.value, 60)}{against}", "  "))
    if len(facts) > SHOWN:
        out().print(f"  … {len(facts) - SHOWN:,} more {what}")


def _word(layer: Layer, file: Path, cell: _facts_file.Cell, source: str, valid: str | None) -> Given:
    where = cell.whose
    try:
        layer.client(cell.client_id)
        where = cell.named
        checked_key(cell.key)
        where = cell.where
        now = layer.services.edge.now_us()
        return given(cell.client_id, cell.key, cell.value, source=source, by=None, valid=valid, now_us=now)
    except SecretFound as error:
        raise Refused(
            f"{file}, {where}: it looks like {error.what}, and nothing was imported: take it out of the file"
        ) from error
    except (ValueError, NotRecordable, TooLarge) as error:
        raise Refused(f"{file}, {where}: {error}; nothing was imported") from error


# -- whether anything may begin -----------------------------------------------------------------------------------------


def pause(
    setting: Setting,
    client: Id,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; it is kept.")] = None,
    by: By = None,
) -> None:
    """Let nothing new begin for a client. What is executed is given back; questions still take their answers."""
    who = person(by)
    _stand(setting, client, lambda layer: layer.client(client).pause(reason=reason, by=who))


def unpause(setting: Setting, client: Id, by: By = None) -> None:
    """Let things begin again for a client. Its runs go on with `resume`."""
    who = person(by)
    _stand(setting, client, lambda layer: layer.client(client).unpause(by=who))


def _stand(setting: Setting, client: str, change: Callable[[Layer], None]) -> None:
    """Change how a client stands, and say how it stands then."""

    def unit(tx: Tx) -> tuple[Row, list[Row]]:
        page = {"client_id": client, "workflow": None, "status": RunStatus.QUEUED.value, "limit": 5, "before": 1 << 62}
        return _row(tx, client), tx.all(tx.sql.runs_page, page)

    layer = setting.layer()
    try:
        change(layer)
        row, ready = layer.store.read_now(unit)
    finally:
        layer.close()
    if setting.as_json:
        print_json(_client_page.summary(row))
        return
    n = row["open_runs"]
    waiting = f"{count(n, 'run')} {'is' if n == 1 else 'are'} open" if n else "No run is open"
    if row["status"] == "paused":
        told = f"{clients.pause_words(row)}: nothing new begins. {waiting}; questions still take their answers. It goes on with:"
        out().print(wrapped(told))
        out().print(f"  {command('client', 'unpause', client, *setting.also)}")
        return
    out().print(wrapped(f"{say.who(client)} is active. {waiting}.{' Those that are ready go on with:' if ready else ''}"))
    for run in ready:
        out().print(f"  {command('resume', run['run_id'], *_code.hint(), *setting.also)}")
    if ready and (meaning := _code.explained()) is not None:
        out().print(wrapped(meaning))


#: the commands of the group; whatever else stands there first is a client's id
COMMANDS: dict[str, Callable[..., Any]] = {
    "show": show,
    "set": set_,
    "import": import_,
    "pause": pause,
    "unpause": unpause,
    "forget": keep.forget,
    "export": keep.export,
}
