"""A server as the tests use it: the application in this process, or the command in one of its own; and who asks it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from stepseven import Layer
from stepseven.server.app import make
from stepseven.transitions import tokens
from tests.servers.databases import url
from tests.workers.crew import environment


async def token(layer: Layer, *scopes: str, clients: tuple[str, ...] | None = None, name: str | None = "ann", **more: Any) -> str:
    """A fresh token's text."""
    secret = tokens.secret("", *layer.services.edge.new_secret())
    new = tokens.NewToken(secret=secret, scopes=scopes, clients=clients, name=name, **more)
    now_us = layer.services.edge.now_us()
    await layer.store.write(lambda tx: tokens.create(tx, new, now_us), durable=True, client=None)
    return secret.text


@dataclass
class Api:
    """The application over a layer, in this process."""

    layer: Layer
    app: Any

    def caller(self, text: str | None = None, **headers: str) -> httpx.AsyncClient:
        """Somebody with this token."""
        bearer = {"Authorization": f"Bearer {text}"} if text else {}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7700", headers={**bearer, **headers})

    async def having(self, *scopes: str, clients: tuple[str, ...] | None = None, name: str = "ann") -> httpx.AsyncClient:
        """Somebody with a fresh token."""
        return self.caller(await token(self.layer, *scopes, clients=clients, name=name))


@asynccontextmanager
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """The application over the test's store."""
    async with Layer(url(tmp_path)) as layer:
        yield Api(layer, make(layer))


@dataclass
class Served:
    """``stepseven serve`` in a process of its own."""

    process: subprocess.Popen[str]
    url: str
    sign_in: str


@contextmanager
def served(tmp_path: Path, *arguments: str, modules: tuple[str, ...] = ()) -> Iterator[Served]:
    """The server as users start it, on a free port, until the block ends."""
    command = [sys.executable, "-m", "stepseven", "--store", url(tmp_path), "serve", "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, *modules, *arguments],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1] and lines[-1] != "}\n":
            lines.append(process.stdout.readline())
        text = "".join(lines)
        assert text, process.communicate()[1]
        told = json.loads(text)
        yield Served(process, told["url"], told["sign_in"])
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)
