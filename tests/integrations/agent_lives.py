"""One life of the agent loop, for children that are killed at a chosen place."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from stepseven import Layer, Outcome
from stepseven.runtime.edge import Edge

RUN_ID = "acme-case-17"
EDITED = "You answer the mails of a shop. Pay back what did not arrive. Sign as The Acme team."
WORKFLOW = Path(__file__).resolve().parents[2] / "examples" / "agent_loop" / "workflow.py"


class Swift(Edge):
    """A second try comes at once."""

    def chance(self) -> float:
        return 0.0


def load(path: str | Path) -> Any:
    """The example's workflow, from a file that may be an edited one."""
    spec = importlib.util.spec_from_file_location("support", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["support"] = module
    spec.loader.exec_module(module)
    return module


def main(state: str, url: str, how: str, edge: Edge | None = None) -> int:
    """Start the run or go on with it; print what became of it.

    *url*: of the model and of the desk, with a bar between. *how*: ``plain``, ``edited`` (another prompt), or the path of
    an edited workflow.
    """
    model, desk = url.split("|")
    os.environ.update(OPENAI_BASE_URL=f"{model}/v1", DESK_URL=desk, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
    if how == "edited":
        os.environ["SUPPORT_PROMPT"] = EDITED
    code = load(WORKFLOW if how in {"plain", "edited"} else how)
    outcome = asyncio.run(_live(code, state))
    told = {"status": outcome.status, "value": outcome.value, "questions": [question.kind for question in outcome.questions]}
    print(json.dumps(told), flush=True)  # noqa: T201 - the interface
    return 0


async def _live(code: Any, state: str) -> Outcome[str]:
    async with Layer(f"sqlite:///{state}/s.db", edge=Swift()) as layer:
        return await layer.run(code.support_case(case="case-17"), client="acme", run_id=RUN_ID)
