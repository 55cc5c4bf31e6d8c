"""A resume by somebody who executes nothing: it is put on record, and whoever takes the run next obeys it.

It is what is left of a resume whose process died at once: the recovery's row, and a run that nobody has.
"""

from __future__ import annotations

from stepseven.errors import InvalidChoice, UnknownWorkflow
from stepseven.model import RunStatus
from stepseven.runtime import choosing
from stepseven.runtime.choosing import Wanted
from stepseven.runtime.procedure import code_of
from stepseven.runtime.services import Services
from stepseven.store.base import Row, Tx
from stepseven.transitions import recoveries, runs
from stepseven.transitions.state import load


async def requeue(services: Services, run: Row, wanted: Wanted) -> bool:
    """Let a run that waits go on, as a recovery in which that was chosen.

    Args:
        services: of the layer.
        run: its row.
        wanted: what was chosen, and by whom.

    Returns:
        Whether that was put on record; ``False``: nothing was chosen, and it has ended, is ready or is being executed anyway.

    Raises:
        UnknownWorkflow: something was chosen, and the run's code, by which that is checked, is not loaded here.
        InvalidChoice, SecretFound, TooLarge: it cannot be obeyed, or the run is executed, or its client paused. Nothing was
            changed.
    """
    workflow = code_of(run) if wanted.anything else None
    if wanted.anything and RunStatus(run["status"]).ended:
        raise InvalidChoice(run["id"], choosing.ended(run))
    if wanted.anything and workflow is None:
        raise UnknownWorkflow(run["workflow"], run["id"])
    edge, worker = services.edge, services.worker
    recovery_id = edge.new_id("rec")

    def unit(tx: Tx) -> bool:
        now_us, row = edge.now_us(), runs.known(tx, run["id"])
        if not wanted.anything and (RunStatus(row["status"]).ended or not row["executions"]):
            return False
        digest = row["source_digest"] if workflow is None else workflow.digest
        taken = runs.take(tx, row, worker.id, source_digest=digest, now_us=now_us, proven_dead=worker.dead_workers(tx))
        loaded = None if taken.hold is None else load(tx, row["no"])
        if taken.hold is None or loaded is None:
            if wanted.anything:
                raise InvalidChoice(run["id"], _why_not(taken.paused, row))
            return False
        chosen = choosing.settle(tx, wanted, loaded, workflow) if workflow is not None else None
        recoveries.begin(tx, taken.hold, loaded, recovery_id, chosen, now_us, wanted.plan, by=wanted.by)
        reason = f"resumed by {wanted.by}: ready to go on" if wanted.by else "resumed: ready to go on"
        runs.release(tx, taken.hold, reason, row["executing_us"], now_us)
        return True

    done = await services.store.write(unit, durable=True, client=run["client_id"])
    services.stir()
    return done


def _why_not(paused: bool, row: Row) -> str:  # noqa: FBT001 - what a take found
    if paused:
        return f"nothing begins for {row['client_id']} while that client is paused: unpause it first"
    return "it is just being executed: choose when it waits, or has been given back"
