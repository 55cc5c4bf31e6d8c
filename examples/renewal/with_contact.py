"""The same workflow, mailed to whoever the CRM names: that may change while the run waits for a person's word."""

from __future__ import annotations

from stepseven import Cost, Limits, Run, step, workflow

from .systems import Customer, Letter, Mail, crm
from .with_approval import send_proposal
from .workflow import create_document, pull_billing, pull_tickets, write_draft


async def load_customer(client_id: str) -> Customer:
    return await crm.customer(client_id)


@step(cost=Cost(usd=0.05), resource="crm", summary=lambda letter: f"to {letter.to}")
async def draft_mail(contact: str, mail: str, document: str) -> Letter:
    return await crm.letter(contact, mail, document)


# watch: of the client's record only these fields matter; that it has other seats now is noted, and asks nobody
@workflow(limits=Limits(steps=50, usd=2.00, seconds=1800), client_record=load_customer, watch=("contact", "mail"))
async def renewal_with_contact(run: Run, quarter: str) -> Mail:
    customer: Customer = run.client.record
    tickets = await pull_tickets(run.client_id)
    billing = await pull_billing(run.client_id)
    discount = await run.ask("Is the Q3 discount still approved?", options=["yes", "no"], remember="discount.approved")
    draft = await write_draft(tickets, billing, discount)
    document = await create_document(run.client_id, quarter, draft)
    letter = await draft_mail(customer.contact, customer.mail, document.id)
    return await send_proposal(document.id, letter.to, letter.body)
