"""A process that drives given runs itself, without a worker.

    python -m tests.workers.solo [resume] RUN:HOW:REF…

Runs of one REF are of one client, which is called like it. Prints how each ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from stepseven import Layer
from tests.workers.subject import HOW
from tests.workers.world import who


async def main(resume: bool, told: list[str]) -> None:
    """Drive them to their end."""
    async with Layer(os.environ["STEPSEVEN_URL"]) as layer:
        sys.stdout.write(f"worker {layer.services.worker.id}\n")
        sys.stdout.flush()

        async def one(run_id: str, how: str, ref: str) -> None:
            if resume:
                outcome: Any = await layer.resume(run_id, wait=60)
            else:
                outcome = await layer.run(HOW[how](ref=ref), client=ref, run_id=run_id, wait=60)
            sys.stdout.write(
                f"{json.dumps({'run': run_id, 'by': who(), 'status': outcome.status.value, 'value': outcome.value})}\n"
            )
            sys.stdout.flush()

        await asyncio.gather(*(one(*run.split(":")) for run in told))


if __name__ == "__main__":
    again = sys.argv[1] == "resume"
    asyncio.run(main(again, sys.argv[1 + again :]))
