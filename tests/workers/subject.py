"""Workflows that do one thing outside, each to a receiver of another kind. Their processes are frozen and killed on the way."""

from __future__ import annotations

import asyncio
import os

from stepseven import Run, attempt, step, workflow
from tests.workers.world import at, is_there, talk, who

TIMEOUT_S = 60.0  # longer than any test: where a gate is closed, it is closed because of the lease
PROBED_S = float(os.environ.get("TEST_PROBED_S", "18"))  # so long a look's "not there" is not believed
SETTLE_S = 1.0


def do(ref: str, *, keyed: bool = False) -> int:
    """The effect, with a place to be frozen at on each side of each of its moments."""
    at("before", ref)
    key = attempt().idempotency_key
    at("between", ref)
    made = talk("POST", "/effect/pay", {"ref": ref, "by": who()}, key=key if keyed else None)
    at("after", ref)
    return int(made["n"])


@step(effect="write", key="ref", idempotent="forever", timeout=TIMEOUT_S)
def keyed(ref: str) -> int:
    """The receiver honours keys."""
    return do(ref, keyed=True)


@step(effect="write", key="ref", timeout=PROBED_S, settle=SETTLE_S)
async def probed(ref: str) -> int:
    """The receiver can be asked."""
    return await asyncio.to_thread(do, ref)


@probed.probe
def find(ref: str) -> int | None:
    """Ask it."""
    at("probe", ref)
    return is_there(ref)


@step(effect="write", key="ref", timeout=TIMEOUT_S)
def blind(ref: str) -> int:
    """The receiver does neither."""
    return do(ref)


@workflow
async def with_key(run: Run, ref: str) -> int:
    """One write."""
    await asyncio.to_thread(at, "body", ref)
    return await keyed(ref)


@workflow
async def with_probe(run: Run, ref: str) -> int:
    """One write."""
    await asyncio.to_thread(at, "body", ref)
    return await probed(ref)


@workflow
async def with_neither(run: Run, ref: str) -> int:
    """One write."""
    await asyncio.to_thread(at, "body", ref)
    return await blind(ref)


HOW = {"keyed": with_key, "probed": with_probe, "blind": with_neither}


# -- over all runs of a client ----------------------------------------------------------------------------------------------


@step(effect="write", key="ref", scope="client", timeout=TIMEOUT_S)
def shared_probed(ref: str) -> int:
    """Once for the client, whichever run does it; the receiver can be asked."""
    return do(ref)


@shared_probed.probe
def find_shared(ref: str) -> int | None:
    """Ask it."""
    at("probe", ref)
    return is_there(ref)


@step(effect="write", key="ref", scope="client", timeout=TIMEOUT_S)
def shared_blind(ref: str) -> int:
    """Once for the client; the receiver can do nothing."""
    return do(ref)


@workflow
async def client_probed(run: Run, ref: str) -> int:
    """One write for the client."""
    await asyncio.to_thread(at, "body", run.id)
    return await shared_probed(ref)


@workflow
async def client_blind(run: Run, ref: str) -> int:
    """One write for the client."""
    await asyncio.to_thread(at, "body", run.id)
    return await shared_blind(ref)


HOW |= {"client_probed": client_probed, "client_blind": client_blind}
