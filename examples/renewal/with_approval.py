"""The same workflow with an end that cannot be taken back: the proposal is mailed, after a person saw exactly what goes out."""

from __future__ import annotations

from stepseven import Limits, Run, attempt, step, workflow

from .systems import Mail, docs
from .workflow import create_document, pull_billing, pull_tickets, write_draft


@step(effect="irreversible", key="document", settle=60, summary=lambda mail: f"{mail.document} to {mail.to}")
async def send_proposal(document: str, to: str, body: str) -> Mail:
    return await docs.send(document, to, body, idempotency_key=attempt().idempotency_key)


@send_proposal.probe
async def find_mail(document: str, to: str, body: str) -> Mail | None:
    return await docs.sent(document)


@workflow(limits=Limits(steps=50, usd=2.00, seconds=1800), requires=("contact.email",))
async def renewal_with_approval(run: Run, quarter: str) -> Mail:
    tickets = await pull_tickets(run.client_id)
    billing = await pull_billing(run.client_id)
    discount = await run.ask("Is the Q3 discount still approved?", options=["yes", "no"], remember="discount.approved")
    draft = await write_draft(tickets, billing, discount)
    document = await create_document(run.client_id, quarter, draft)
    return await send_proposal(document.id, run.client.get("contact.email"), draft.text)
