"""The workflow: read what is known, ask what is not, write the proposal, file it once."""

from __future__ import annotations

from stepseven import Cost, Limits, Run, attempt, step, workflow

from .systems import Billing, Document, Draft, Ticket, billing_api, docs, ticket_system
from .text import proposal


@step(cost=Cost(usd=0.02), summary=lambda t: f"{len(t)} tickets")
async def pull_tickets(client_id: str) -> list[Ticket]:
    return await ticket_system.tickets(client_id)


@step(resource="billing-api")
async def pull_billing(client_id: str) -> Billing:
    return await billing_api.record(client_id)


@pull_billing.approach("contract amount", ask=True)  # another way; ask=True: only when a person chooses it
async def billing_from_contract(client_id: str) -> Billing:
    return await docs.contract(client_id)


@step(summary=lambda draft: draft.title)
def write_draft(tickets: list[Ticket], billing: Billing, discount: str) -> Draft:
    return proposal(tickets, billing, discount)


@step(effect="write", key="client_id, quarter", settle=60)
async def create_document(client_id: str, quarter: str, draft: Draft) -> Document:
    return await docs.create(draft, idempotency_key=attempt().idempotency_key)


@create_document.probe  # is it already there? (after a crash, after a long wait)
async def find_document(client_id: str, quarter: str, draft: Draft) -> Document | None:
    return await docs.find(client_id, quarter)


@workflow(limits=Limits(steps=50, usd=2.00, seconds=1800))
async def renewal(run: Run, quarter: str) -> Document:
    tickets = await pull_tickets(run.client_id)
    billing = await pull_billing(run.client_id)
    discount = await run.ask("Is the Q3 discount still approved?", options=["yes", "no"], remember="discount.approved")
    draft = await write_draft(tickets, billing, discount)
    return await create_document(run.client_id, quarter, draft)
