"""A workflow that a worker of the browser's tests executes."""

from __future__ import annotations

from stepseven import Run, step, workflow


@step(summary=lambda v: f"{v} tickets")
async def pull_browser_tickets(client: str) -> int:
    """A read."""
    return 214


@step(effect="irreversible", key="to")
async def send_browser_offer(to: str, text: str) -> str:
    """What is proposed first."""
    return f"sent {text!r} to {to}"


@workflow(name="browser_renewal")
async def renewal(run: Run) -> str:
    """Reads, asks, proposes."""
    n = await pull_browser_tickets(run.client_id)
    who = await run.ask("Who gets the offer?", options=["ann", "ben"])
    return await send_browser_offer(f"{who}@{run.client_id}.example", f"Dear {who}, {n} tickets.")
