"""``python -m examples.agent_loop.worker CASE``: answer a case; the same command again continues it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from stepseven import Layer, StepsevenError

from .workflow import support_case

if TYPE_CHECKING:
    from stepseven import Outcome

DONE, REFUSED, WAITING, FAILED = 0, 1, 3, 4


def main() -> int:
    """Run the command line; the exit codes are those of ``stepseven run``."""
    parser = argparse.ArgumentParser(prog="python -m examples.agent_loop.worker", description="Let a model answer a case.")
    parser.add_argument("case", metavar="CASE")
    parser.add_argument("--client", metavar="ID", default="acme", help="default: acme")
    parser.add_argument("--store", metavar="URL", help="default: STEPSEVEN_URL, else sqlite:///stepseven.db")
    args = parser.parse_args()
    try:
        outcome = asyncio.run(_run(args.store, args.client, args.case))
    except StepsevenError as error:
        print(error, file=sys.stderr)
        return REFUSED
    if outcome.status == "done":
        print(outcome.result())
        return DONE
    if outcome.status.ended:
        print(outcome.failure.reason if outcome.failure else outcome.status)
        return FAILED
    for question in outcome.questions:
        print(f"{question.id}: {question.text}\n  {' | '.join(option.id for option in question.options)}")
    return WAITING


async def _run(store: str | None, client: str, case: str) -> Outcome[str]:
    async with Layer(store) as layer:
        return await layer.run(support_case(case=case), client=client, run_id=f"{client}-{case}")


if __name__ == "__main__":
    sys.exit(main())
