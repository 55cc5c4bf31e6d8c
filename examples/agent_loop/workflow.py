"""The workflow: a model answers a customer's case with tools, turn by turn. No SDK, no framework: HTTP and a ``for``.

Where things are: OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL (any server with chat completions), DESK_URL, SUPPORT_PROMPT.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from stepseven import Cost, Fatal, Limits, Retryable, Run, StepFailed, attempt, step, workflow

MAX_TURNS = 12
USD_PER_TOKEN = 0.000_002
PROMPT = "You answer the mails of a shop. Pay back what did not arrive. Sign as Your shop."


def _tool(name: str, what: str, **parameters: str) -> dict[str, Any]:
    """A tool as the model is told of it; a parameter's value is its JSON type."""
    kinds = {parameter: {"type": kind} for parameter, kind in parameters.items()}
    schema = {"type": "object", "properties": kinds, "required": list(kinds), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": what, "parameters": schema}}


TOOLS = [
    _tool("lookup_order", "An order: who bought, what was paid.", order_id="string"),
    _tool("parcel_status", "Where the parcel of an order is.", order_id="string"),
    _tool("refund", "Pay an order back. Look it up first.", order_id="string", cents="integer"),
    _tool("send_email", "Write to the customer of this case, once.", to="string", text="string"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    id: str
    sender: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    id: str
    customer: str
    paid_cents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """*arguments*: JSON, as the model wrote it; an object, that is made sure before the turn is recorded."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is kept of a model's turn: its own words, never the conversation before it."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)


# -- the model ----------------------------------------------------------------------------------------------------------


# By order: the nth call is the nth turn as long as everything the model is told is the same. If it is not (another prompt, a
# tool described differently), this turn and all that was read after it is asked for anew. Writes that are done stay done.
@step(
    match="order",
    cost=Cost(usd=0.01),
    timeout=90,
    summary=lambda turn: ", ".join(call.name for call in turn.calls) or turn.text,
)
def model_turn(model: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Turn:
    """Ask for the next turn. An answer that broke off is no answer: it is never recorded, and no tool is called with it."""
    note = attempt().note()  # what went wrong with the try before, for the model to read
    asked = [*messages, {"role": "user", "content": note}] if note else messages
    url = f"{os.environ['OPENAI_BASE_URL'].rstrip('/')}/chat/completions"
    headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}"}
    answer = _http("POST", url, {"model": model, "messages": asked, "tools": tools}, headers=headers, timeout=80)
    usage = answer.get("usage") or {}
    tokens = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
    attempt().spend(usd=tokens * USD_PER_TOKEN, tokens=tokens)  # paid for, usable or not
    choice = answer["choices"][0]
    if choice["finish_reason"] not in {"stop", "tool_calls"}:
        raise Retryable(f"unusable result: the answer ended early ({choice['finish_reason']})")
    message = choice["message"]
    calls = [
        ToolCall(id=call["id"], name=call["function"]["name"], arguments=_checked(call["function"]))
        for call in message.get("tool_calls") or ()
    ]
    return Turn(text=message.get("content") or "", calls=calls)


def _checked(function: dict[str, Any]) -> str:
    """The arguments of a call, if they are a JSON object."""
    text = function["arguments"]
    try:
        whole = isinstance(json.loads(text), dict)
    except ValueError:
        whole = False
    if not whole:
        raise Retryable(f"unusable result: the arguments of {function['name']} are no JSON object")
    return str(text)


# -- the tools ----------------------------------------------------------------------------------------------------------


@step(summary=lambda case: f"from {case.sender}")
def read_case(case: str) -> Case:
    """The customer's mail. A failure of this one is for a person: without it there is nothing to do."""
    return Case(**_http("GET", f"{_desk()}/cases/{case}"))


@step(on_failure="raise", summary=lambda order: f"{order.id}: {order.paid_cents / 100:.2f} paid")
def lookup_order(order_id: str) -> Order:
    """An order. One that is not there is news for the model, not for a person."""
    return Order(**_http("GET", f"{_desk()}/orders/{order_id}"))


@step(on_failure="raise", resource="carrier")
def parcel_status(order_id: str) -> str:
    """Where a parcel is. The model hears of a failure only when every way was tried."""
    return str(_http("GET", f"{_desk()}/parcels/{order_id}")["status"])


@parcel_status.approach("tracking page")
def parcel_from_page(order_id: str) -> str:
    return str(_http("GET", f"{_desk()}/tracking/{order_id}")["status"])


# The key is what the refund is about. The amount is none: a model that changes its mind about it is a question for a person.
@step(effect="write", key="case, order_id", summary=lambda receipt: f"refund {receipt}")
def refund(case: str, order_id: str, cents: int) -> str:
    body = {"case": case, "order_id": order_id, "cents": cents}
    return _once("refunds", body)


@refund.probe
def find_refund(case: str, order_id: str, cents: int) -> str | None:
    return _find("refunds")


@step(effect="write", key="case", summary=lambda receipt: f"mail {receipt}")
def send_email(case: str, to: str, text: str) -> str:
    """One mail per case. Its words are the model's, so they are no part of the key."""
    return _once("mails", {"case": case, "to": to, "text": text})


@send_email.probe
def find_email(case: str, to: str, text: str) -> str | None:
    return _find("mails")


class Refused(Exception):
    """The model asked for something it may not do; it is told so."""


# -- the loop -----------------------------------------------------------------------------------------------------------


@workflow(limits=Limits(usd=1.00, steps=200))
async def support_case(run: Run, case: str) -> str:
    """Answer a customer's case; returns what the model says at the end."""
    told = await read_case(case)
    orders: dict[str, Order] = {}  # what was looked up: rebuilt from the records, like everything here
    messages: list[dict[str, Any]] = [{"role": "system", "content": _prompt()}, {"role": "user", "content": told.text}]
    for _ in range(MAX_TURNS):
        turn = await model_turn(os.environ.get("OPENAI_MODEL", "any"), messages, TOOLS)
        messages.append(_said(turn))
        if not turn.calls:
            return turn.text
        results = await asyncio.gather(*(_use(told, orders, call) for call in turn.calls))
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": text} for call, text in zip(turn.calls, results, strict=True)
        ]
    raise Fatal(f"the model came to no end in {MAX_TURNS} turns")


async def _use(case: Case, orders: dict[str, Order], call: ToolCall) -> str:
    """Use a tool; what the model is told of it."""
    try:
        return await _tool_result(case, orders, call.name, json.loads(call.arguments))
    except Refused as refused:
        return f"Not done: {refused}."
    except StepFailed as failed:
        return f"{call.name} failed for good: {failed.reason}"


async def _tool_result(case: Case, orders: dict[str, Order], name: str, given: dict[str, Any]) -> str:
    """What a tool gives. A model may be talked into anything, so what it may do is decided here and not in its prompt."""
    match name, given:
        case "lookup_order", {"order_id": str(order_id)}:
            orders[order_id] = order = await lookup_order(order_id)
            return json.dumps(asdict(order))
        case "parcel_status", {"order_id": str(order_id)}:
            return await parcel_status(order_id)
        case "refund", {"order_id": str(order_id), "cents": int(cents)}:
            found = orders.get(order_id)
            if found is None or found.customer != case.sender:
                raise Refused(f"{order_id} is no order of this customer that was looked up")
            if isinstance(cents, bool) or not 0 < cents <= found.paid_cents:
                raise Refused(f"{cents} is not between 1 and the {found.paid_cents} that were paid")
            return await refund(case.id, order_id, cents)
        case "send_email", {"to": str(to), "text": str(text)}:
            if to != case.sender:
                raise Refused(f"{to} is not who wrote")
            return await send_email(case.id, to, text)
    raise Refused(f"there is no tool {name} with {', '.join(given) or 'no arguments'}")


def _said(turn: Turn) -> dict[str, Any]:
    """A turn as the model is shown it again."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in turn.calls
    ]
    return {"role": "assistant", "content": turn.text or None} | ({"tool_calls": calls} if calls else {})


def _prompt() -> str:
    return os.environ.get("SUPPORT_PROMPT", PROMPT)


def _desk() -> str:
    return os.environ["DESK_URL"].rstrip("/")


def _once(what: str, body: dict[str, Any]) -> str:
    """Let the desk do it, under our key; its id there."""
    answer = _http("POST", f"{_desk()}/{what}", body, headers={"Idempotency-Key": attempt().idempotency_key})
    return str(answer["id"])


def _find(what: str) -> str | None:
    """What was done under our key."""
    key = attempt().idempotency_key
    return next((str(entry["id"]) for entry in _http("GET", f"{_desk()}/{what}") if entry["key"] == key), None)


def _http(method: str, url: str, body: object = None, *, headers: dict[str, str] | None = None, timeout: float = 10) -> Any:
    """One request; the decoded answer. What is no success is raised, and classified by stepseven."""
    told = {"Content-Type": "application/json", **(headers or {})}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(url, data, told, method=method), timeout=timeout) as answer:  # noqa: S310 - the addresses are the operator's
            return json.load(answer)
    except HTTPError as refused:
        refused.close()
        raise
