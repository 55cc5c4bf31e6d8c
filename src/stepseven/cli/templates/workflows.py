"""Your first workflow: look an invoice up, ask a person, send a reminder once. Change it, or put your own beside it."""

import json
from pathlib import Path

from stepseven import Fixable, Run, attempt, step, workflow

INVOICES = {"R-17": "240.00 EUR, due 12 days ago", "R-18": "1,900.00 EUR, due tomorrow"}  # stands for your accounting
OUTBOX = Path("outbox.jsonl")  # stands for the outside: a mail server, an API


@step(summary=lambda found: found)
def read_invoice(number: str) -> str:
    """A read: once it is on record it never runs again, whatever crashes."""
    if number not in INVOICES:
        raise Fixable(f"there is no invoice {number}: add it to INVOICES in workflows.py, and answer `again`")
    return INVOICES[number]


@step(effect="write", key="number")
def send_reminder(number: str, text: str) -> str:
    """A write: its key says what makes two reminders the same one. It happens once, or you are asked."""
    mail = {"key": attempt().idempotency_key, "number": number, "text": text}
    with OUTBOX.open("a", encoding="utf-8") as outbox:
        outbox.write(json.dumps(mail) + "\n")
    return f"reminder {number}"


@send_reminder.probe
def find_reminder(number: str, text: str) -> str | None:
    """A look whether it is there already: asked after a crash, before anything is sent again."""
    lines = OUTBOX.read_text("utf-8").splitlines() if OUTBOX.exists() else []
    sent = any(json.loads(line)["key"] == attempt().idempotency_key for line in lines)
    return f"reminder {number}" if sent else None


@workflow
async def reminder(run: Run, invoice: str) -> str:
    """Remind a client of an invoice, if a person agrees."""
    found = await read_invoice(invoice)
    if await run.ask(f"Remind {run.client_id} of {invoice} ({found})?", options=["yes", "no"]) == "no":
        return "nothing was sent"
    return await send_reminder(invoice, f"Invoice {invoice}: {found}.")
