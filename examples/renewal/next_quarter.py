"""The same workflow a quarter later, a few lines longer: the next run starts from what the last one knew."""

from __future__ import annotations

from stepseven import Limits, Run, step, workflow

from .systems import Billing, Document, Draft, Ticket
from .text import Last, last_of, with_changes
from .workflow import create_document, pull_billing, pull_tickets, write_draft


@step(summary=lambda draft: f"compared with {draft.before}")
def compare(draft: Draft, last: Last, tickets: list[Ticket], billing: Billing) -> Draft:
    return with_changes(draft, last, tickets, billing)


@workflow(limits=Limits(steps=50, usd=2.00, seconds=1800))
async def renewal(run: Run, quarter: str) -> Document:
    tickets = await pull_tickets(run.client_id)
    billing = await pull_billing(run.client_id)
    discount = await run.ask("Is the Q3 discount still approved?", options=["yes", "no"], remember="discount.approved")
    draft = await write_draft(tickets, billing, discount)
    if run.previous is not None:  # the last finished renewal of this client; pinned, so the same after any resume
        draft = await compare(draft, last_of(run.previous), tickets, billing)
    return await create_document(run.client_id, quarter, draft)
