"""A model that needs no network: it speaks the chat completions format, and its answer depends on the conversation alone.

``POST /v1/chat/completions`` answers; ``GET /journal`` lists what was answered, and so has to be paid. The journal is the
judge of this example: what the workflow believes to have paid does not count.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ._server import JsonServer, Request

if TYPE_CHECKING:
    from collections.abc import Callable

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Paid:
    """One answer. *digest*: of the whole conversation. *turn*: the model's nth. *cut*: it broke off half-way."""

    digest: str
    turn: int
    system: str
    text: str
    cut: bool = False


class Model(JsonServer):
    """The model. ``cut_next``: so many of the next answers break off half-way, as when the tokens run out.

    *say*: what it answers to a conversation, given with its digest: a message of the assistant.
    """

    def __init__(self, say: Callable[[list[dict[str, Any]], str], dict[str, Any]] | None = None) -> None:
        super().__init__()
        self._say = say or solve
        self.journal: list[Paid] = []
        self.cut_next = 0

    def conversations(self) -> Counter[str]:
        """How often each conversation was paid for."""
        with self.lock:
            return Counter(paid.digest for paid in self.journal)

    def forget(self) -> None:
        """An empty journal."""
        with self.lock:
            self.journal.clear()

    def handle(self, request: Request) -> tuple[int, Any]:
        if (request.method, request.path) == ("GET", "/journal"):
            return HTTPStatus.OK, [{"digest": p.digest, "turn": p.turn, "cut": p.cut} for p in self.journal]
        if (request.method, request.path) != ("POST", CHAT):
            return HTTPStatus.NOT_FOUND, {"error": {"message": f"there is no {request.method} {request.path}"}}
        messages = request.body["messages"]
        text = json.dumps(messages, sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        turn = 1 + sum(message["role"] == "assistant" for message in messages)
        cut = self.cut_next > 0
        self.cut_next -= cut
        said = _completion(self._say(messages, digest), tokens=len(text) // 4, cut=cut)
        self.journal.append(Paid(digest, turn, messages[0]["content"], text, cut))
        return HTTPStatus.OK, said


def solve(messages: list[dict[str, Any]], digest: str) -> dict[str, Any]:
    """What the model says next: look the order up, pay it back, write to the customer, report."""
    system, mail = messages[0]["content"], messages[1]["content"]
    found = re.search(r"order (\S+?)[.,!]?(?:\s|$)", mail)
    order_id = found[1] if found else "?"
    told = {call["function"]["name"] for m in messages for call in m.get("tool_calls") or ()}
    results = [m["content"] for m in messages if m["role"] == "tool"]
    if "lookup_order" not in told:
        return calls(digest, ("lookup_order", {"order_id": order_id}), ("parcel_status", {"order_id": order_id}))
    order = json.loads(results[0])
    if "refund" not in told:
        kept = re.search(r"keep (\d+) cents", system)
        return calls(digest, ("refund", {"order_id": order_id, "cents": order["paid_cents"] - (int(kept[1]) if kept else 0)}))
    if "send_email" not in told:
        name = re.search(r"Sign as (.+?)\.", system)
        text = f"We paid order {order_id} back. {name[1] if name else 'Your shop'}"
        return calls(digest, ("send_email", {"to": order["customer"], "text": text}))
    return {"role": "assistant", "content": f"Order {order_id} is paid back, and the customer knows.", "tool_calls": None}


def calls(digest: str, *tools: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """A turn that uses tools. The ids are as opaque as a real model's."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"call_{digest}_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for n, (name, arguments) in enumerate(tools)
        ],
    }


def _completion(message: dict[str, Any], *, tokens: int, cut: bool) -> dict[str, Any]:
    reason = "length" if cut else "tool_calls" if message["tool_calls"] else "stop"
    if cut and message["tool_calls"]:  # as real ones do it: the arguments end in the middle
        for call in message["tool_calls"]:
            call["function"]["arguments"] = call["function"]["arguments"][:-4]
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 20},
    }
