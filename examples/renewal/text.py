"""The proposal's text: a template stands in for the model, so that two drafts from the same facts are the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from stepseven import Fixable

from .systems import Draft

if TYPE_CHECKING:
    from stepseven import Previous

    from .systems import Billing, Ticket

DISCOUNT = 10  # percent, where it is approved


def proposal(tickets: list[Ticket], billing: Billing, discount: str) -> Draft:
    """The proposal for the quarter the tickets are of."""
    if not tickets:
        raise Fixable(f"the ticket system has no ticket of {billing.client_id}: a proposal needs at least one")
    client, quarter = billing.client_id, max(ticket.quarter for ticket in tickets)
    name = client[:1].upper() + client[1:]
    risks = [ticket for ticket in tickets if ticket.risk]
    price = billing.amount * (100 - DISCOUNT) / 100 if discount == "yes" else billing.amount
    lines = [
        f"{name}: renewal proposal {quarter}",
        f"{len(tickets)} tickets this quarter, {len(risks)} of them risks: {_subjects(risks)}.",
        f"{billing.currency} {billing.amount:,.2f} a year ({billing.source}).",
        f"With the {DISCOUNT} % discount: {billing.currency} {price:,.2f}." if discount == "yes" else "No discount.",
    ]
    return Draft(client_id=client, quarter=quarter, title=lines[0], text="\n".join(lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """What of the last run goes into the next proposal. *chosen_by*: who chose where its amount came from, if somebody did."""

    document: str
    title: str
    tickets: int
    amount: Decimal
    source: str
    chosen_by: str | None


def last_of(previous: Previous) -> Last:
    """What the last run left behind, for the next proposal."""
    billing = previous.artifact("pull_billing")
    return Last(
        document=previous.value.id,
        title=previous.value.title,
        tickets=len(previous.artifact("pull_tickets")),  # too long for the run's own page: fetched whole, and pinned
        amount=Decimal(billing["amount"]),
        source=billing["source"],
        chosen_by=next((d.by for d in previous.decisions if d.step == "pull_billing"), None),
    )


def with_changes(draft: Draft, last: Last, tickets: list[Ticket], billing: Billing) -> Draft:
    """The same proposal with a paragraph on what changed since the last one."""
    more = len(tickets) - last.tickets
    how = f"{more} more" if more > 0 else f"{-more} fewer" if more < 0 else "as many"
    source = f"{last.source}, chosen by {last.chosen_by}" if last.chosen_by else last.source
    told = (
        f"Since “{last.title}” ({last.document}): {len(tickets)} tickets instead of {last.tickets}, {how}; "
        f"{billing.currency} {billing.amount:,.2f} ({billing.source}) instead of {last.amount:,.2f} ({source})."
    )
    return replace(draft, text=f"{draft.text}\n{told}", before=last.document)


def _subjects(risks: list[Ticket]) -> str:
    return ", ".join(sorted({ticket.subject for ticket in risks})) or "none"
