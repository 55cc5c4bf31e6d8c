"""``Idempotency-Key``: the same request is done once, and told the same for a day.

A row is written before anything is done, so that of two requests with one key one does it. A process that dies in between leaves
a row without an answer: after a minute the next request with that key does it, under the same ids (``once``), so that a run that
was admitted is found and not made twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from starlette.responses import Response

from stepseven._dataclass import dataclass
from stepseven.layer import Layer
from stepseven.server.problems import MEDIA_TYPE, Problem, invalid
from stepseven.store.base import Row, Tx
from stepseven.store.codec import free_text, storable

KEPT_US = 24 * 3600 * 1_000_000  #: for so long the answer is kept
STALE_US = 60_000_000  #: a request that has no answer by then has died
MOST_KEY = 200  #: characters
_LOOKS, _LOOK_S = 40, 0.1  # how often, and in what distance, a second request looks whether the first is done
_SECRETS = frozenset({"token", "executor_token"})
_NOT_KEPT = frozenset({401, 403, 408, 415, 429})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request with a key: whose, which, and what it asks for, as a digest."""

    token_id: str
    key: str
    digest: str

    @property
    def once(self) -> str:
        """What stands in ids that this request makes, so that doing it again makes the same: twelve characters."""
        return hashlib.sha256(f"{self.token_id}\0{self.key}\0{self.digest}".encode()).hexdigest()[:12]


def request(token_id: str, key: str, method: str, path: str, body: bytes) -> Request:
    """The request that a key came with.

    Raises:
        Problem: the key is none.
    """
    if not key or len(key) > MOST_KEY or not key.isprintable() or not storable(key) or free_text(key) != key:
        raise invalid(f"Idempotency-Key: use 1 to {MOST_KEY} printable characters, and no credential")
    told = hashlib.sha256(b"\0".join([method.encode(), path.encode("utf-8", "surrogatepass"), body])).hexdigest()
    return Request(token_id=token_id, key=key, digest=told)


async def once(
    layer: Layer, asked: Request, do: Callable[[], Awaitable[Response]], whose: Callable[[], str | None], *, secret: bool = False
) -> Response:
    """Do what is asked, or tell what came of it when it was asked before.

    Args:
        layer: where replies are kept.
        asked: the request.
        do: does it; raises nothing.
        whose: the client it was about, once that is known: its replies go when the client is forgotten.
        secret: the answer holds a token, which is told once: it is not kept.

    Raises:
        Problem: the key was used for something else; or it is just being done.
    """
    since_us = await _begin(layer, asked)
    if isinstance(since_us, Response):
        return since_us
    keys = {"token_id": asked.token_id, "key": asked.key, "seen_us": since_us}
    try:
        response = await do()
    except BaseException:  # the caller went away, or the server stops: whoever asks again does it
        await asyncio.shield(_drop(layer, keys))
        raise
    if response.status_code >= 500 or response.status_code in _NOT_KEPT or not hasattr(response, "body"):  # noqa: PLR2004 - HTTP's
        await _drop(layer, keys)
        return response
    body = bytes(response.body).decode()
    if secret and response.status_code < 300:  # noqa: PLR2004 - HTTP's
        body = json.dumps(
            {name: None if name in _SECRETS else value for name, value in json.loads(body).items()}, ensure_ascii=False
        )
    done = {**keys, "status": response.status_code, "body": body, "client_id": whose()}
    await layer.store.write(lambda tx: tx.run(tx.sql.finish_reply, done), durable=True, client=None)
    return response


async def _drop(layer: Layer, keys: Mapping[str, object]) -> None:
    await layer.store.write(lambda tx: tx.run(tx.sql.drop_reply, keys), durable=False, client=None)


async def _begin(layer: Layer, asked: Request) -> Response | int:
    """When this request began, if it is the one that does it; else what was told."""
    for _ in range(_LOOKS):
        now = layer.services.edge.now_us()
        found = await layer.store.write(partial(_reserve, asked=asked, now_us=now), durable=True, client=None)
        if found is None:
            return now
        if found["request"] != asked.digest:
            raise invalid("this Idempotency-Key came with another request before: use a fresh key")
        if found["status"]:
            return _told(found)
        await asyncio.sleep(_LOOK_S)
    raise Problem(409, "under_way", "the same request is just being done: ask again in a moment", headers={"Retry-After": "5"})


def _reserve(tx: Tx, *, asked: Request, now_us: int) -> Row | None:
    """Take it upon us; or the row of whoever has."""
    names = {"token_id": asked.token_id, "key": asked.key}
    mine = {**names, "request": asked.digest, "now": now_us}
    if tx.run(tx.sql.insert_reply, mine) == 1:
        return None
    row = tx.one(tx.sql.reply, names)
    if row is None:  # just taken away
        return {"request": asked.digest, "status": 0}
    old_us = now_us - KEPT_US
    died = row["status"] == 0 and row["request"] == asked.digest and row["created_us"] < now_us - STALE_US
    if died or row["created_us"] < old_us:
        again = {**mine, "seen_us": row["created_us"], "old_us": old_us}
        return None if tx.run(tx.sql.retake_reply, again) == 1 else row
    return row


def _told(row: Row) -> Response:
    kind = MEDIA_TYPE if row["status"] >= 400 else "application/json"  # noqa: PLR2004 - HTTP's
    return Response(row["body"], row["status"], headers={"Idempotency-Replayed": "true"}, media_type=kind)


async def tidy(layer: Layer) -> None:
    """Take away what was told longer than a day ago."""
    before = layer.services.edge.now_us() - KEPT_US
    await layer.store.write(lambda tx: tx.run(tx.sql.drop_old_replies, {"before": before}), durable=False, client=None)
