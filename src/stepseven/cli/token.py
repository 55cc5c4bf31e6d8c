"""``token``: who may use the HTTP API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text

from stepseven.cli._common import (
    DebugOption,
    JsonOption,
    Refused,
    Setting,
    StoreOption,
    Usage,
    clean,
    now_us,
    out,
    print_json,
    shared,
    wrapped,
)
from stepseven.cli._words import age, mark
from stepseven.layer import MAX_ID, Layer
from stepseven.store.base import Row, Tx
from stepseven.store.codec import storable
from stepseven.store.redact import find_secret
from stepseven.transitions import tokens
from stepseven.transitions.tokens import NewToken, Scope

_WHAT = {
    Scope.READ: "look at everything", Scope.REPORT: "start runs and report what others execute", Scope.ANSWER: "answer questions",
    Scope.OPERATE: "start, resume and cancel runs, say facts", Scope.ADMIN: "all of it, and make tokens",
}  # fmt: skip
_HELP = "What it may do: " + "; ".join(f"{scope}: {words}" for scope, words in _WHAT.items()) + ". Repeatable."
Scopes = Annotated[list[str] | None, typer.Option("--scope", metavar="SCOPE", help=_HELP)]
Clients = Annotated[
    list[str] | None, typer.Option("--client", metavar="CLIENT", help="Only this client's. Repeatable. Default: all clients.")
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Who has it: that is who answers and resumes.")]
Expires = Annotated[str | None, typer.Option("--expires", metavar="SPAN", help="After how long, such as 90d. Default: never.")]
Token = Annotated[str, typer.Argument(metavar="TOKEN", help="Its id: `stepseven token list` shows them.")]


def build() -> typer.Typer:
    """The group with its commands."""
    group = typer.Typer(invoke_without_command=True)
    group.callback()(_group)
    commands: dict[str, Callable[..., Any]] = {"create": create, "list": list_, "revoke": revoke}
    for name, fn in commands.items():
        group.command(name)(shared(fn))
    return group


def _group(ctx: typer.Context, store: StoreOption = None, json_: JsonOption = False, debug: DebugOption = False) -> None:
    """Tokens for the HTTP API: who may ask what. Without a command: the tokens there are."""
    root = ctx.find_root()
    before: Setting = root.obj or Setting()
    setting = root.obj = Setting(told=store or before.told, as_json=json_ or before.as_json, debug=debug or before.debug)
    if ctx.invoked_subcommand is None:
        asyncio.run(list_(setting))


async def create(
    setting: Setting, scope: Scopes = None, client: Clients = None, name: Name = None, expires: Expires = None
) -> None:
    """Make a token. It is shown this once: what is stored is its hash."""
    scopes = _scopes(scope or [])
    clients = tuple(dict.fromkeys(client or []))
    if name is not None and not _good(name):
        raise Usage("--name: use 1 to 200 printable characters, and no credential")
    now = now_us()
    try:
        until = tokens.until_us(expires, now)
    except ValueError as error:
        raise Usage(f"--{error}") from error
    async with setting.layer(create=True) as layer:
        for one in clients:
            layer.client(one)  # refuses what is no id
        secret = tokens.secret("", *layer.services.edge.new_secret())
        new = NewToken(secret=secret, scopes=scopes, clients=clients or None, name=name, expires_us=until)
        await layer.store.write(lambda tx: tokens.create(tx, new, now), durable=True, client=None)
    if setting.as_json:
        print_json({"id": secret.id, "token": secret.text, "scopes": list(scopes), "clients": list(clients), "name": name,
                    "expires_us": until})  # fmt: skip
        return
    out().print(secret.text)
    whose = f"for {', '.join(clients)}" if clients else "for all clients"
    out().print(wrapped(f"{secret.id} may {'; '.join(_WHAT[Scope(one)] for one in scopes)}, {whose}. It is shown this once."))


def _good(name: str) -> bool:
    return 0 < len(name.strip()) <= MAX_ID and name.isprintable() and storable(name) and find_secret(name) is None


def _scopes(given: list[str]) -> tuple[str, ...]:
    known = ", ".join(Scope)
    if not given:
        raise Usage(f"a token needs what it may do: --scope with one of {known}")
    wrong = next((one for one in given if one not in set(Scope)), None)
    if wrong is not None:
        raise Usage(f"--scope {wrong} is none: one of {known}")
    return tuple(dict.fromkeys(given))


async def list_(setting: Setting) -> None:
    """The tokens there are, without their secrets; those revoked, too."""
    async with setting.layer() as layer:
        rows = await layer.store.read(tokens.listed)
    if setting.as_json:
        print_json({"items": [tokens.document(row) for row in rows], "next": None})
        return
    if not rows:
        out().print(wrapped("There is no token yet: `stepseven token create --scope read` makes one."))
    for row in rows:
        _line(tokens.document(row), holds=tokens.holds(row, now_us()))


def _line(document: dict[str, Any], *, holds: bool) -> None:
    state = "revoked" if document["revoked_us"] is not None else "holds" if holds else "expired"
    whose = ", ".join(document["clients"]) or "all clients"
    told = f"{document['id']}  {document['name'] or ''}  {' '.join(document['scopes'])}  {whose}"
    right = f"{state} · made {age(document['created_us'])}"
    out().print(Text.assemble(mark("done" if holds else "cancelled"), " ", clean(told), "  ", right))


async def revoke(setting: Setting, token: Token) -> None:
    """Let a token hold no longer, and the sessions it signed in. A running server believes it for five seconds more."""
    async with setting.layer() as layer:
        row = await _revoked(layer, token)
    if setting.as_json:
        print_json(tokens.document(row))
        return
    out().print(clean(f"{row['id']} holds no longer; a running server may believe it for five seconds more."))


async def _revoked(layer: Layer, token: str) -> Row:
    now = now_us()

    def unit(tx: Tx) -> Row:
        row = tokens.known(tx, token) if storable(token) else None
        if row is None:
            raise Refused(f"there is no token {token if find_secret(token) is None else 'of this name'}: give its id, "
                          "which `stepseven token list` shows")  # fmt: skip
        tokens.revoke(tx, token, now)
        return tokens.known(tx, token) or row

    return await layer.store.write(unit, durable=True, client=None)
