"""All SQL of the project, each statement once for both databases.

A statement is a field of ``Statements``: a typo fails in mypy, not at three in the morning. Every write of a run's state
names its owner and fence, either in the statement itself or by a ``guard_*`` statement first in the same transaction;
receipts are the exception, they are written by claim id. ``step.id`` is ``run_no << 24 | seq``.

Longer than other files on purpose: one place to read all SQL is worth more than a short file.
"""

from __future__ import annotations

import re
from dataclasses import fields

from stepseven._dataclass import dataclass
from stepseven.store.dialect import Dialect

SEQ_BITS = 24  #: records of one run: up to 16,777,215
SEQ_MASK = (1 << SEQ_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """A typed name for each statement, already in one database's form."""

    # clients and facts
    insert_client: str
    client: str
    clients_page: str
    set_client_status: str
    fact: str
    fact_history: str
    facts_of_client: str
    facts_now: str
    insert_fact: str
    renew_fact: str
    wake_for_fact: str
    insert_wait: str
    # runs
    insert_run: str
    run_by_id: str
    run_by_no: str
    guard_run: str
    take_run: str
    park_run: str
    end_run: str
    release_run: str
    count_executing: str
    due_queued: str
    due_timers: str
    due_stopping: str
    due_left: str
    due: str
    request_stop: str
    note_ending: str
    note_ahead: str
    wake_run: str
    count_questions: str
    run_progress: str
    runs_page: str
    spend: str
    client_spend: str
    children: str
    starts: str
    shares_root: str
    unrecorded_children: str
    rename_child: str
    descendants: str
    family_questions: str
    checkpoint: str
    run_info: str
    # records
    append_step: str
    append_read: str
    append_step_free: str
    append_read_free: str
    append_settled: str
    append_settled_alone: str
    steps: str
    maps: str
    acted: str
    finish_map: str
    # attempts
    begin_attempt: str
    end_attempt: str
    drop_attempt: str
    interrupt_attempts: str
    attempts: str
    # effects
    guard_effect: str
    effect: str
    effect_of_inputs: str
    effect_standing: str
    insert_claim: str
    claim_new: str
    claim_new_alone: str
    retry_claim: str
    doubt_claim: str
    settle_claim: str
    settle_recorded: str
    fill_receipt: str
    mark_claim: str
    lower_gate: str
    claim: str
    effects: str
    unsettled: str
    move_claim: str
    decide_undo: str
    mark_undone: str
    to_undo: str
    undo_run: str
    # questions
    insert_question: str
    question: str
    questions_of_run: str
    questions_page: str
    open_question_ids: str
    open_proposals: str
    asked_whether: str
    open_required: str
    answer_question: str
    answer_folded: str
    close_question: str
    close_run_questions: str
    fold_question: str
    retell_question: str
    copy_questions: str
    # resources that are down, and who waits for them
    resource: str
    resource_held: str
    resources_open: str
    resources_back: str
    add_resource: str
    put_resource: str
    drop_resources: str
    wait_for_resource: str
    resources_of_run: str
    waiters: str
    next_waiter: str
    wake_waiters: str
    drop_waiters: str
    # incidents: open questions of one cause
    incident_of: str
    keep_incident: str
    insert_incident: str
    close_incident: str
    open_incidents: str
    asked_of_resource: str
    join_incident: str
    wake_soon: str
    withdraw_folded: str
    incident: str
    incidents_page: str
    incident_extent: str
    incident_workflows: str
    incident_newest: str
    incident_options: str
    incident_questions: str
    incident_asked: str
    incident_before: str
    incident_answers: str
    # what a run finds of those before it
    previous_run: str
    latest_results: str
    fact_uses: str
    facts_by_run: str
    fact_version: str
    facts_since: str
    decisions_since: str
    runs_since: str
    client_failures: str
    client_open_questions: str
    # recoveries
    recoveries: str
    begin_recovery: str
    end_recovery: str
    close_recoveries: str
    # what earlier runs have cost
    lately_ended: str
    lately_ended_of_client: str
    priced_steps: str
    priced_tries: str
    child_times: str
    # workers, artifacts, the store
    insert_worker: str
    beat: str
    owned_runs: str
    worker: str
    worker_held: str
    workers: str
    vanished: str
    clock: str
    drop_worker: str
    insert_artifact: str
    mend_artifact: str
    artifact: str
    store: str
    sizes: str
    server: str
    ready_runs: str
    # a backup was restored
    raise_epoch: str
    let_go_runs: str
    let_go_claims: str
    inherit_epoch: str
    kin_since: str
    older_runs: str
    # keeping it small, and forgetting
    prunable: str
    guard_prune: str
    keep_document: str
    prune_steps: str
    prune_tries: str
    insert_kin: str
    drop_step: str
    slim_step: str
    add_spend: str
    set_spend: str
    bare_attempt: str
    drop_try: str
    slim_attempts: str
    slim_questions: str
    slim_recoveries: str
    drop_events: str
    drop_waits: str
    finish_prune: str
    hold_artifact: str
    drop_artifact: str
    artifact_page: str
    announce_artifact: str
    keep_artifact: str
    kept_document: str
    prune_due: str
    prune_done: str
    runs_of_client: str
    open_runs: str
    unsettled_of_client: str
    forget_facts: str
    forget_memory: str
    forget_deliveries: str
    forget_incidents: str
    forget_resources: str
    incidents_of_client: str
    forget_occurrences: str
    forget_questions: str
    forget_recoveries: str
    forget_attempts: str
    bare_step: str
    effect_keys: str
    bare_effect: str
    bare_run: str
    bare_client: str
    memory_of_client: str
    events_of_run: str
    deliveries_of_run: str
    recoveries_of_run: str
    # the HTTP API: what a token may see, tokens and sessions, replies
    run_in_sight: str
    runs_in_sight: str
    question_in_sight: str
    questions_in_sight: str
    open_in_sight: str
    client_in_sight: str
    note_start: str
    run_pulse: str
    steps_after: str
    know_workflow: str
    workflow_known: str
    insert_token: str
    token: str
    tokens: str
    revoke_token: str
    use_token: str
    drop_spent_tokens: str
    insert_session: str
    session: str
    drop_session: str
    drop_old_sessions: str
    insert_reply: str
    reply: str
    retake_reply: str
    finish_reply: str
    drop_reply: str
    drop_old_replies: str
    forget_replies: str
    # runs that somebody outside executes
    begin_external: str
    hold_external: str
    turn_external: str
    resume_external: str
    newest_record: str
    newest_id: str
    done_names: str
    tries_of_call: str
    insert_ticket: str
    ticket: str
    open_ticket: str
    open_tickets: str
    extend_ticket: str
    close_ticket: str
    close_tickets: str
    late_tickets: str
    raise_gate: str
    executor_of: str
    note_executor: str
    insert_executor: str
    # answers that are brought to whoever asked
    set_callback: str
    due_callbacks: str
    insert_callback: str
    claim_callback: str
    end_callback: str
    put_off_callback: str
    drop_callback: str
    overdue_outside: str
    # pages
    open_count_in_sight: str
    inbox_in_sight: str
    week_in_sight: str
    board_in_sight: str
    clients_in_sight: str
    decisions_of_client: str
    # persons, who is told, and what came too late
    save_person: str
    person: str
    persons: str
    remove_person: str
    set_away: str
    ladder: str
    due_ladders: str
    climb_ladder: str
    start_ladders: str
    look_at_ladders_of: str
    insert_delivery: str
    delivery: str
    deliveries_of_question: str
    told_of_incident: str
    end_with_it: str
    open_in_incident: str
    due_deliveries: str
    claim_delivery: str
    postpone_delivery: str
    end_delivery: str
    untold: str
    promised: str
    object_to: str
    objections_of_run: str
    link_key: str
    keep_link_key: str


#: What ``append_step`` takes, in its order; then the run's number, fence and owner.
RECORD_COLUMNS = (
    "id", "branch", "name", "key", "generation", "state", "effect", "inputs", "args", "result", "artifact", "summary",
    "approach", "why", "facts", "usd", "tokens", "started_us", "ended_us",
)  # fmt: skip
#: The same of ``append_read``: a read step that simply succeeded.
READ_COLUMNS = (
    "id", "branch", "name", "key", "generation", "state", "args", "result", "summary", "started_us", "ended_us",
)  # fmt: skip
_RUN_COLUMNS = """no, id, client_id, workflow, external, source_digest, status, waiting_for, reason, goal, inputs, value,
    failure, limits, root_no, parent_no, owner, fence, executions, progress, barren, executing_us, wake_us, next_step,
    remaining, open_questions, created_us, updated_us, ended_us, pruned_us, epoch, document IS NOT NULL AS shrunk"""
_CHILD_COLUMNS = """r.no, r.id, r.client_id, r.workflow, r.status, r.waiting_for, r.reason, r.owner, r.fence, r.wake_us,
    r.open_questions, r.next_step, r.root_no, r.parent_no, r.created_us, r.updated_us, r.ended_us"""
_EFFECT_COLUMNS = """scope, scope_id, name, key, generation, claim_id, tries, owner, state, inputs, inputs_approved,
    arguments, receipt, run_no, branch, step, fence, client_id, claimed_us, gate_until_us, settled_us, undo_module, undo_no,
    undone_us"""
_QUESTION_COLUMNS = """id, run_no, client_id, branch, key, n, step, kind, text, options, schema, recommendation, context,
    about, asked_seq, attempts, asked_of, remember, fallback, deadline_us, folded_into, incident_id, signature, status,
    answer, answered_by, answered_us, note, created_us"""


def total(column: str) -> str:
    """A sum that is a whole number on both: PostgreSQL's of bigints is a numeric, which the driver makes a ``Decimal`` of."""
    return f"CAST(coalesce(sum({column}), 0) AS bigint)"


def _run_statements(s: str, d: Dialect) -> dict[str, str]:
    return {
        "insert_client": f"INSERT INTO {s}client (id, status, created_us) VALUES (:id, 'active', :now) ON CONFLICT DO NOTHING",
        "client": f"SELECT id, status, created_us, note, forgotten_us FROM {s}client WHERE id = :id",
        "clients_page": f"""SELECT c.id, c.status, c.note, c.created_us, c.forgotten_us,
                (SELECT count(DISTINCT key) FROM {s}fact WHERE client_id = c.id) AS facts,
                (SELECT count(*) FROM {s}run WHERE client_id = c.id) AS runs,
                (SELECT count(*) FROM {s}run WHERE client_id = c.id
                  AND status IN ('queued', 'running', 'waiting', 'cancelling', 'failing')) AS open_runs,
                (SELECT {total("open_questions")} FROM {s}run WHERE client_id = c.id) AS open_questions
            FROM {s}client AS c WHERE c.id > :after AND (CAST(:id AS text) IS NULL OR c.id = :id)
            ORDER BY c.id LIMIT :limit""",
        "set_client_status": f"UPDATE {s}client SET status = :status, note = :note WHERE id = :id",
        "fact": f"""SELECT key, version, value, source, run_id, set_by, set_us, valid_until_us FROM {s}fact
            WHERE client_id = :client_id AND key = :key ORDER BY version DESC LIMIT 1""",
        "fact_history": f"""SELECT key, version, value, source, run_id, set_by, set_us, valid_until_us FROM {s}fact
            WHERE client_id = :client_id AND key = :key ORDER BY version""",
        "facts_of_client": f"""SELECT key, version, value, source, run_id, set_by, set_us, valid_until_us FROM {s}fact
            WHERE client_id = :client_id ORDER BY key, version""",
        "facts_now": f"""SELECT key, version, set_us, valid_until_us FROM {s}fact AS f
            WHERE client_id = :client_id AND version = (
                SELECT max(n.version) FROM {s}fact AS n WHERE n.client_id = f.client_id AND n.key = f.key)""",
        "insert_fact": f"""INSERT INTO {s}fact (client_id, key, version, value, source, run_id, set_by, set_us, valid_until_us)
            SELECT :client_id, :key, 1 + coalesce(max(version), 0), :value, :source, :run_id, :by, :now, :valid_until_us
              FROM {s}fact WHERE client_id = :client_id AND key = :key RETURNING version""",
        "renew_fact": f"""UPDATE {s}fact SET valid_until_us = :valid_until_us
            WHERE client_id = :client_id AND key = :key AND version = :version""",
        "wake_for_fact": f"""UPDATE {s}run SET status = 'queued', waiting_for = NULL, reason = :reason, wake_us = NULL,
                updated_us = :now
            WHERE client_id = :client_id AND status = 'waiting' AND owner IS NULL
              AND EXISTS (SELECT 1 FROM {s}wait AS w WHERE w.run_no = {s}run.no AND w.kind = 'event' AND w.key = :key)""",
        # What a parked run waits to know, beside what else it waits for; taken away when it is taken.
        "insert_wait": f"""INSERT INTO {s}wait (run_no, branch, kind, key, created_us)
            VALUES (:run_no, '', 'event', :key, :now) ON CONFLICT DO NOTHING""",
        "insert_run": f"""INSERT INTO {s}run (id, client_id, workflow, source_digest, status, goal, inputs, root_no, parent_no,
                created_us, updated_us, epoch)
            VALUES (:id, :client_id, :workflow, :source_digest, 'queued', :goal, :inputs, :root_no, :parent_no, :now, :now,
                (SELECT epoch FROM {s}store))
            ON CONFLICT DO NOTHING RETURNING no""",
        "run_by_id": f"SELECT {_RUN_COLUMNS} FROM {s}run WHERE id = :id",
        "run_by_no": f"SELECT {_RUN_COLUMNS} FROM {s}run WHERE no = :no",
        "guard_run": f"SELECT status, limits FROM {s}run WHERE no = :run_no AND fence = :fence AND owner = :owner {d.hold}",
        # Only who saw the run unowned, or owned by a worker it then proved dead, gets it: compare and set.
        "take_run": f"""UPDATE {s}run SET status = CASE WHEN status IN ('cancelling', 'failing') THEN status ELSE 'running' END,
                owner = :owner, fence = fence + 1, executions = executions + 1, waiting_for = NULL,
                reason = CASE WHEN status IN ('cancelling', 'failing') THEN reason END,
                wake_us = NULL, progress = :progress, barren = :barren, source_digest = :source_digest, updated_us = :now,
                remaining = coalesce(:remaining, remaining)
            WHERE no = :run_no AND fence = :fence AND coalesce(owner, '') = :seen_owner
              AND status NOT IN ('done', 'failed', 'cancelled') RETURNING fence""",
        "park_run": f"""UPDATE {s}run SET status = 'waiting', waiting_for = :waiting_for, reason = :reason, owner = NULL,
                wake_us = :wake_us, next_step = :next_step, remaining = :remaining, updated_us = :now,
                executing_us = CASE WHEN executing_us < :executing_us THEN :executing_us ELSE executing_us END
            WHERE no = :run_no AND fence = :fence AND owner = :owner AND status IN ('running', 'waiting')""",
        "end_run": f"""UPDATE {s}run SET status = :status, waiting_for = NULL, reason = :reason, owner = NULL, wake_us = NULL,
                value = :value, failure = :failure, next_step = NULL, remaining = :remaining, updated_us = :now,
                ended_us = :now, executing_us = CASE WHEN executing_us < :executing_us THEN :executing_us ELSE executing_us END
            WHERE no = :run_no AND fence = :fence AND coalesce(owner, '') = :owner
              AND status NOT IN ('done', 'failed', 'cancelled')""",
        "release_run": f"""UPDATE {s}run SET status = CASE WHEN status = 'running' THEN 'queued' ELSE status END, owner = NULL,
                reason = :reason, updated_us = :now,
                executing_us = CASE WHEN executing_us < :executing_us THEN :executing_us ELSE executing_us END
            WHERE no = :run_no AND fence = :fence AND owner = :owner""",
        # Not worth waiting for, nor being waited for: a beat that held many runs would meet the batches that write their records.
        "count_executing": f"""UPDATE {s}run SET executing_us = :executing_us
            WHERE no = (SELECT no FROM {s}run WHERE no = :run_no AND fence = :fence AND owner = :owner
              AND executing_us < :executing_us {d.skip_locked})""",
        "request_stop": f"""UPDATE {s}run SET status = :status, reason = :reason, updated_us = :now
            WHERE no = :run_no AND status IN ('queued', 'running', 'waiting')""",
        "note_ending": f"UPDATE {s}run SET failure = :failure WHERE no = :run_no AND status IN ('cancelling', 'failing')",
        "note_ahead": f"UPDATE {s}run SET remaining = :remaining WHERE no = :run_no AND fence = :fence AND owner = :owner",
        "wake_run": f"""UPDATE {s}run SET status = 'queued', waiting_for = NULL, reason = :reason, wake_us = NULL,
                updated_us = :now
            WHERE no = :run_no AND status = 'waiting' AND owner IS NULL""",
        "count_questions": f"""UPDATE {s}run SET open_questions = (SELECT count(*) FROM {s}question WHERE run_no = :run_no
                AND status = 'open' AND folded_into IS NULL), updated_us = :now WHERE no = :run_no""",
        # What counts as progress between two executions; a take is none, nor is a begin or claim that was there before.
        "run_progress": f"""SELECT (SELECT count(*) FROM {s}step WHERE id BETWEEN :low AND :high
                    AND name NOT IN ('run.code', 'run.passed_by'))
                + (SELECT count(*) FROM {s}effect WHERE run_no = :run_no)
                + (SELECT count(*) FROM {s}effect WHERE run_no = :run_no AND state IN ('done', 'refused'))
                + (SELECT count(*) FROM {s}question WHERE run_no = :run_no)
                + (SELECT count(*) FROM {s}question WHERE run_no = :run_no AND status <> 'open')
                + (SELECT count(*) FROM (SELECT DISTINCT branch, name, key FROM {s}attempt WHERE run_no = :run_no) AS tried)
                + (SELECT count(*) FROM {s}attempt WHERE run_no = :run_no AND outcome IN ('failed', 'deferred')) AS records""",
        "runs_page": f"""SELECT r.no, r.id AS run_id, r.client_id, r.workflow, r.status, r.waiting_for,
                r.open_questions AS open_questions_count, r.goal, r.updated_us, r.reason, r.owner, r.ended_us
            FROM {s}run AS r WHERE (CAST(:client_id AS text) IS NULL OR r.client_id = :client_id)
              AND (CAST(:workflow AS text) IS NULL OR r.workflow = :workflow)
              AND (CAST(:status AS text) IS NULL OR r.status = :status)
              AND r.no < :before ORDER BY r.no DESC LIMIT :limit""",
        "spend": f"""SELECT (SELECT {total("usd")} FROM {s}step WHERE id BETWEEN :low AND :high)
                + (SELECT {total("usd")} FROM {s}attempt WHERE run_no = :run_no) AS uusd,
            (SELECT {total("tokens")} FROM {s}step WHERE id BETWEEN :low AND :high)
                + (SELECT {total("tokens")} FROM {s}attempt WHERE run_no = :run_no) AS tokens""",
        "client_spend": f"""SELECT (SELECT {total("usd")} FROM {s}step
              WHERE ended_us >= :since_us AND name <> 'run.start' AND (id >> 24) IN
                (SELECT no FROM {s}run WHERE client_id = :client_id AND no <> :run_no
                  AND (ended_us IS NULL OR ended_us >= :since_us)))
            + (SELECT {total("usd")} FROM {s}attempt WHERE started_us >= :since_us AND run_no IN
                (SELECT no FROM {s}run WHERE client_id = :client_id AND no <> :run_no
                  AND (ended_us IS NULL OR ended_us >= :since_us))) AS uusd""",
        # A run that another one has started goes on under the name that its workflow has by now.
        "rename_child": f"UPDATE {s}run SET workflow = :workflow, updated_us = :now WHERE no = :no AND parent_no = :parent_no",
        "children": f"SELECT {_CHILD_COLUMNS} FROM {s}run AS r WHERE r.parent_no = :run_no ORDER BY r.no",
        "starts": f"""SELECT {_CHILD_COLUMNS} FROM {s}run AS r
            WHERE r.parent_no = :parent_no AND (r.no = :root_no OR r.root_no = :root_no) ORDER BY r.no""",
        # Forks of a run, and starts of a child, have its receipts.
        "shares_root": f"""SELECT {_CHILD_COLUMNS} FROM {s}run AS r
            WHERE r.no = :root_no OR r.root_no = :root_no ORDER BY r.no""",
        # The record of a child's end names it, and holds what it has cost: from then on it is counted there. When the parent
        # is shrunk, what that record held is counted among its steps.
        "unrecorded_children": f"""SELECT {_CHILD_COLUMNS} FROM {s}run AS r WHERE r.parent_no = :run_no
              AND NOT EXISTS (SELECT 1 FROM {s}step AS s WHERE s.id BETWEEN :low AND :high AND s.name = 'run.start'
                              AND s.summary = r.id)
              AND NOT EXISTS (SELECT 1 FROM {s}run AS p WHERE p.no = :run_no AND p.pruned_us IS NOT NULL) ORDER BY r.no""",
        "descendants": f"""WITH RECURSIVE family(no) AS (SELECT no FROM {s}run WHERE parent_no = :run_no
                UNION ALL SELECT c.no FROM {s}run AS c JOIN family AS above ON c.parent_no = above.no)
            SELECT {_CHILD_COLUMNS} FROM {s}run AS r JOIN family ON family.no = r.no ORDER BY r.no""",
        "family_questions": f"""WITH RECURSIVE family(no) AS (SELECT no FROM {s}run WHERE parent_no = :run_no
                UNION ALL SELECT c.no FROM {s}run AS c JOIN family AS above ON c.parent_no = above.no)
            SELECT {", ".join(f"q.{c.strip()}" for c in _QUESTION_COLUMNS.split(","))}, r.id AS run_id
              FROM family JOIN {s}run AS r ON r.no = family.no JOIN {s}question AS q ON q.run_no = r.no
             WHERE q.status = 'open' AND q.folded_into IS NULL ORDER BY q.created_us, q.id""",
        "checkpoint": f"SELECT document FROM {s}checkpoint WHERE run_id = :id",
        "run_info": f"""SELECT run_id, client_id, workflow, status, waiting_for, open_questions_count, goal, updated_us
            FROM {s}checkpoint WHERE run_id = :id""",
    }


def _taking_statements(s: str, d: Dialect) -> dict[str, str]:
    """What a worker may take: four ways to be due, each found by an index of its own. Oldest first."""
    # What takes back another run's effects is for whoever has that run's code.
    mine = f"""r.external = 0 AND r.workflow IN ({d.items.format(":workflows")})
              AND CAST(r.no AS TEXT) NOT IN ({d.items.format(":skip")})
              AND (r.workflow <> 'stepseven.undo' OR NOT EXISTS (SELECT 1 FROM {s}effect AS e JOIN {s}run AS o ON o.no = e.run_no
                   WHERE e.undo_no = r.no AND o.workflow NOT IN ({d.items.format(":workflows")})))"""
    active = f"NOT EXISTS (SELECT 1 FROM {s}client AS c WHERE c.id = r.client_id AND c.status = 'paused')"
    # A run that is ending waits for a person who is asked about its writes, and for those it started: their end ends it.
    stopping = f"""r.open_questions = 0
              AND NOT EXISTS (SELECT 1 FROM {s}run AS b WHERE b.parent_no = r.no AND b.ended_us IS NULL)"""
    due = {
        "due_queued": f"r.status = 'queued' AND r.owner IS NULL AND {active} AND {mine}",
        "due_timers": f"r.status = 'waiting' AND r.owner IS NULL AND r.wake_us <= :now AND {active} AND {mine}",
        "due_stopping": f"(r.status = 'cancelling' OR r.status = 'failing') AND r.owner IS NULL AND {stopping} AND {mine}",
        "due_left": f"""r.owner IN ({d.items.format(":dead")}) AND r.ended_us IS NULL
              AND (r.status IN ('cancelling', 'failing') OR {active}) AND {mine}""",
    }
    columns = ", ".join(f"r.{c.strip()}" for c in _RUN_COLUMNS.split(","))
    order = {**dict.fromkeys(due, "r.no"), "due_timers": "r.wake_us"}  # by number it would look through all runs
    made = {
        name: f"SELECT {columns} FROM {s}run AS r WHERE {which} ORDER BY {order[name]} LIMIT :most {d.skip_locked}"
        for name, which in due.items()
    }
    anything = " OR ".join(f"EXISTS (SELECT 1 FROM {s}run AS r WHERE {which})" for which in due.values())
    made["due"] = f"""SELECT CASE WHEN {anything} THEN 1 ELSE 0 END AS due,
            (SELECT min(wake_us) FROM {s}run WHERE wake_us > :now) AS next_us"""
    return made


def _append(s: str, d: Dialect, columns: tuple[str, ...], lazily: str = "", told: str = "") -> str:
    return f"""INSERT INTO {s}step ({", ".join(columns)}) SELECT {", ".join([d.mark] * len(columns))}
          FROM {s}run WHERE no = {d.mark} AND fence = {d.mark} AND owner = {d.mark} {lazily} {d.hold}
        ON CONFLICT DO NOTHING {told}"""


def _append_settled(s: str, d: Dialect) -> str:
    return f"""INSERT INTO {s}step ({", ".join(RECORD_COLUMNS)})
            SELECT {", ".join([d.mark] * len(RECORD_COLUMNS))}
              FROM {s}run AS r CROSS JOIN {s}effect AS e WHERE r.no = {d.mark} AND r.fence = {d.mark} AND r.owner = {d.mark}
                AND e.claim_id = {d.mark} AND e.state <> 'done' {d.hold_r}
            ON CONFLICT DO NOTHING"""


def _append_settled_alone(s: str, d: Dialect) -> str:
    """Values: the lock; receipt, time and claim; the run's number, fence and owner; then the record's."""
    m = d.mark
    return f"""WITH ready AS MATERIALIZED (SELECT {d.alone.format(m)} AS told),
            settled AS (UPDATE {s}effect AS e SET state = 'done', receipt = {m}, settled_us = {m} FROM ready
                WHERE e.claim_id = {m} AND e.state <> 'done' AND EXISTS (SELECT 1 FROM {s}run AS r
                    WHERE r.no = {m} AND r.fence = {m} AND r.owner = {m} AND ready.told <> '' {d.hold_r})
                RETURNING e.claim_id)
        INSERT INTO {s}step ({", ".join(RECORD_COLUMNS)}) SELECT {", ".join([m] * len(RECORD_COLUMNS))} FROM settled
        ON CONFLICT DO NOTHING {d.started}"""


def _claim_new(s: str, d: Dialect, *, alone: bool = False) -> str:
    return f"""INSERT INTO {s}effect (scope, scope_id, name, key, generation, claim_id, owner, state, inputs,
                inputs_approved, arguments, run_no, branch, step, fence, client_id, claimed_us, gate_until_us, undo_module)
            SELECT :scope, :scope_id, :name, :key, 1, :claim_id, :owner, 'claimed', :inputs, :inputs_approved,
                :arguments, :run_no, :branch, :step, :fence, :client_id, :now, :gate_until_us, :undo_module
              FROM {s}run AS r CROSS JOIN {s}store AS kept
            WHERE r.no = :run_no AND r.fence = :fence AND r.owner = :owner AND kept.restored_us IS NULL
              AND NOT EXISTS (SELECT 1 FROM {s}effect AS e
                WHERE e.scope = :scope AND e.scope_id = :scope_id AND e.name = :name AND e.key = :key)
              {f"AND {d.alone.format(':lock')} <> ''" if alone else ""} {d.hold_r}
            ON CONFLICT DO NOTHING {d.started if alone else ""}"""


def _step_statements(s: str, d: Dialect) -> dict[str, str]:
    return {
        # Fence and write in one trip. No row back means another owner, or a row already there: read it back once; the
        # same owner's own row (its first answer was lost) is success. Values by position: see ``Record.insert``.
        "append_step": _append(s, d, RECORD_COLUMNS),
        # An untroubled read step leaves seven columns empty, and not naming them saves a quarter of the insert.
        "append_read": _append(s, d, READ_COLUMNS),
        # The same, committed without waiting for the disk, whatever the transaction says: for databases where that is a setting.
        "append_step_free": _append(s, d, RECORD_COLUMNS, d.lazily, d.started),
        "append_read_free": _append(s, d, READ_COLUMNS, d.lazily, d.started),
        # The record of a send whose claim has no receipt yet; ``settle_recorded``, right after it, writes that.
        "append_settled": _append_settled(s, d),
        # Both in one statement, as a transaction of its own, where a statement can write two tables. The receipt first: of
        # what somebody else has just written it sees the newest.
        "append_settled_alone": _append_settled_alone(s, d) if d.alone else _append_settled(s, d),
        "maps": f"""SELECT result FROM {s}step WHERE id BETWEEN :low AND :high AND name = 'run.map' AND branch = ''
              AND result IS NOT NULL""",
        "steps": f"""SELECT id, branch, name, key, generation, state, effect, inputs, args, result, artifact, summary, approach,
                why, facts, usd, tokens, started_us, ended_us
            FROM {s}step WHERE id BETWEEN :low AND :high ORDER BY id""",
        # The newest record of a run, and the newest run; and whether the first, or the run whose receipts it shares, has done or
        # begun anything outside, or has started another one, which may have.
        "acted": f"""SELECT coalesce((SELECT max(id) FROM {s}step WHERE id BETWEEN :low AND :high), :low) AS last,
                CASE WHEN EXISTS (SELECT 1 FROM {s}effect WHERE run_no = :run_no OR run_no = :root_no)
                  OR EXISTS (SELECT 1 FROM {s}step WHERE id BETWEEN :low AND :high AND effect IS NOT NULL)
                  OR EXISTS (SELECT 1 FROM {s}run WHERE parent_no = :run_no OR parent_no = :root_no)
                THEN 1 ELSE 0 END AS acted,
                (SELECT max(no) FROM {s}run) AS born""",
        # The one record that changes: a map's count, while the map runs.
        "finish_map": f"""UPDATE {s}step SET state = :state, result = :result, ended_us = :now
            WHERE id = :id AND name = 'run.map'
              AND EXISTS (SELECT 1 FROM {s}run WHERE no = :run_no AND fence = :fence AND owner = :owner {d.hold})""",
        "begin_attempt": f"""INSERT INTO {s}attempt (run_no, branch, name, key, n, approach, inputs, source_digest, usd,
                started_us)
            SELECT :run_no, :branch, :name, :key, :n, :approach, :inputs, :source_digest, :usd, :now
              FROM {s}run WHERE no = :run_no AND fence = :fence AND owner = :owner {d.hold}""",
        "end_attempt": f"""INSERT INTO {s}attempt (run_no, branch, name, key, n, approach, outcome, kind, reason, trace,
                signature, resource, inputs, source_digest, identical, usd, tokens, started_us, ended_us)
            VALUES (:run_no, :branch, :name, :key, :n, :approach, :outcome, :kind, :reason, :trace, :signature, :resource,
                :inputs, :source_digest, :identical, :usd, :tokens, :started_us, :now)
            ON CONFLICT (run_no, branch, name, key, n) DO UPDATE SET outcome = :outcome, kind = :kind, reason = :reason,
                trace = :trace, signature = :signature, resource = :resource, identical = :identical, usd = :usd,
                tokens = :tokens, ended_us = :now""",
        "drop_attempt": f"""DELETE FROM {s}attempt WHERE run_no = :run_no AND branch = :branch AND name = :name AND key = :key
            AND n = :n AND outcome IS NULL""",
        "interrupt_attempts": f"""UPDATE {s}attempt SET outcome = 'interrupted', ended_us = :now
            WHERE run_no = :run_no AND outcome IS NULL""",
        "attempts": f"""SELECT branch, name, key, n, approach, outcome, kind, reason, trace, signature, resource, inputs,
                source_digest, identical, usd, tokens, started_us, ended_us
            FROM {s}attempt WHERE run_no = :run_no ORDER BY branch, name, key, n""",
    }


def _effect_statements(s: str, d: Dialect) -> dict[str, str]:
    return {
        "guard_effect": f"""SELECT e.scope, e.scope_id, e.name, e.key, e.generation, e.claim_id, e.tries, e.owner, e.state,
                e.inputs, e.inputs_approved, e.arguments, e.receipt, e.run_no, e.branch, e.step, e.fence, e.client_id,
                e.claimed_us, e.gate_until_us, e.settled_us, e.undo_module, e.undo_no, e.undone_us,
                r.epoch AS run_epoch, now.epoch AS store_epoch, now.restored_us
            FROM {s}run AS r CROSS JOIN {s}store AS now LEFT JOIN {s}effect AS e
              ON e.scope = :scope AND e.scope_id = :scope_id AND e.name = :name AND e.key = :key
            WHERE r.no = :run_no AND r.fence = :fence AND r.owner = :owner ORDER BY e.generation DESC LIMIT 1 {d.hold_r}""",
        "effect": f"""SELECT {_EFFECT_COLUMNS} FROM {s}effect WHERE scope = :scope AND scope_id = :scope_id AND name = :name
            AND key = :key ORDER BY generation DESC LIMIT 1""",
        "effect_of_inputs": f"""SELECT {_EFFECT_COLUMNS} FROM {s}effect WHERE scope = :scope AND scope_id = :scope_id
            AND name = :name AND key = :key AND inputs = :inputs AND state = 'done' AND undone_us IS NULL
            ORDER BY generation DESC LIMIT 1""",
        "effect_standing": f"""SELECT {_EFFECT_COLUMNS} FROM {s}effect WHERE scope = :scope AND scope_id = :scope_id
            AND name = :name AND key = :key AND state = 'done' AND undone_us IS NULL ORDER BY generation DESC LIMIT 1""",
        "insert_claim": f"""INSERT INTO {s}effect (scope, scope_id, name, key, generation, claim_id, owner, state, inputs,
                inputs_approved, arguments, run_no, branch, step, fence, client_id, claimed_us, gate_until_us, undo_module)
            VALUES (:scope, :scope_id, :name, :key, :generation, :claim_id, :owner, 'claimed', :inputs, :inputs_approved,
                :arguments, :run_no, :branch, :step, :fence, :client_id, :now, :gate_until_us, :undo_module)""",
        # The first claim of an effect in a store that knows no backups, looked for and written in one: most are. A claim that
        # was written and whose answer was lost is found by ``guard_effect``.
        "claim_new": _claim_new(s, d),
        # The same as a transaction of its own. Another claim that was made while it waited for the lock is met by the index.
        "claim_new_alone": _claim_new(s, d, alone=bool(d.alone)),
        # Another send under the same claim: only from the try that was decided upon. While an earlier send may have happened
        # the time of the first one stays: the other side honours the key from then on.
        "retry_claim": f"""UPDATE {s}effect SET state = 'claimed', tries = tries + 1, owner = :owner, fence = :fence,
                run_no = :run_no, branch = :branch, inputs = :inputs, arguments = :arguments,
                inputs_approved = :inputs_approved,
                claimed_us = CASE WHEN state = 'refused' THEN :now ELSE claimed_us END,
                gate_until_us = :gate_until_us, settled_us = NULL, undo_module = coalesce(:undo_module, undo_module)
            WHERE claim_id = :claim_id AND tries = :tries AND state <> 'done'""",
        # It may have been sent once more in the time that is lost: by whom, nobody here knows.
        "doubt_claim": f"""UPDATE {s}effect SET state = 'claimed', tries = tries + 1, owner = NULL, fence = :fence,
                run_no = :run_no, branch = :branch, inputs = :inputs, arguments = :arguments, gate_until_us = :gate_until_us,
                settled_us = NULL
            WHERE claim_id = :claim_id AND tries = :tries AND state = 'refused'""",
        "settle_claim": f"""UPDATE {s}effect SET state = 'done', receipt = :receipt, settled_us = :now
            WHERE claim_id = :claim_id AND state <> 'done'""",
        # Where ``append_settled`` wrote its record, in the same transaction: under its fence.
        "settle_recorded": f"""UPDATE {s}effect SET state = 'done', receipt = :receipt, settled_us = :now
            WHERE claim_id = :claim_id AND state <> 'done'
              AND EXISTS (SELECT 1 FROM {s}step AS p WHERE p.id = :id AND p.key = :key AND p.ended_us = :now)""",
        "fill_receipt": f"""UPDATE {s}effect SET receipt = :receipt WHERE claim_id = :claim_id AND state = 'done'
            AND substr(receipt, 1, length(:refused)) = :refused""",
        "mark_claim": f"""UPDATE {s}effect SET state = :state,
                settled_us = CASE WHEN :state = 'refused' THEN CAST(:now AS bigint) END
            WHERE claim_id = :claim_id AND tries = :tries AND state <> 'done'""",
        "lower_gate": f"""UPDATE {s}effect SET gate_until_us = :gate_until_us
            WHERE claim_id = :claim_id AND tries = :tries AND gate_until_us > :gate_until_us""",
        "claim": f"SELECT {_EFFECT_COLUMNS} FROM {s}effect WHERE claim_id = :claim_id",
        "effects": f"SELECT {_EFFECT_COLUMNS} FROM {s}effect WHERE run_no = :run_no ORDER BY claimed_us, {d.arrival}",
        "unsettled": f"SELECT count(*) AS n FROM {s}effect WHERE run_no = :run_no AND state IN ('claimed', 'unknown')",
        # Whoever found out that it had happened goes on from it, with the words it was asked for there.
        "move_claim": f"""UPDATE {s}effect SET run_no = :run_no, branch = :branch, inputs = :inputs
            WHERE claim_id = :claim_id AND run_no <> :run_no""",
        # From the answer on nobody else is given these receipts.
        "decide_undo": f"""UPDATE {s}effect SET undo_no = :undo_no
            WHERE claim_id = :claim_id AND state = 'done' AND undo_module IS NOT NULL AND undone_us IS NULL
              AND NOT EXISTS (SELECT 1 FROM {s}run AS r WHERE r.no = undo_no AND r.ended_us IS NULL)""",
        # The receipt of an undo is the proof that what it is named after is gone.
        "mark_undone": f"""UPDATE {s}effect SET undone_us = :now WHERE undone_us IS NULL AND claim_id = (
                SELECT u.key FROM {s}effect AS u JOIN {s}run AS r ON r.no = u.run_no
                 WHERE u.claim_id = :claim_id AND u.state = 'done' AND r.workflow = :workflow)""",
        "to_undo": f"SELECT {_EFFECT_COLUMNS} FROM {s}effect WHERE undo_no = :undo_no ORDER BY claimed_us, run_no, {d.arrival}",
        "undo_run": f"""SELECT r.no, r.id, r.status FROM {s}effect AS e JOIN {s}run AS r ON r.no = e.undo_no
            WHERE e.run_no = :run_no ORDER BY r.no DESC LIMIT 1""",
    }


def _question_statements(s: str) -> dict[str, str]:
    return {
        "insert_question": f"""INSERT INTO {s}question (id, run_no, client_id, branch, key, n, step, kind, text, options, schema,
                recommendation, context, about, asked_seq, attempts, asked_of, remember, fallback, deadline_us, folded_into,
                signature, status, created_us)
            VALUES (:id, :run_no, :client_id, :branch, :key, :n, :step, :kind, :text, :options, :schema, :recommendation,
                :context, :about, :asked_seq, :attempts, :asked_of, :remember, :fallback, :deadline_us, :folded_into,
                :signature, 'open', :now)
            ON CONFLICT DO NOTHING""",
        "question": f"""SELECT q.id, q.run_no, q.client_id, q.branch, q.key, q.n, q.step, q.kind, q.text, q.options, q.schema,
                q.recommendation, q.context, q.about, q.asked_seq, q.attempts, q.asked_of, q.remember, q.fallback,
                q.deadline_us, q.folded_into, q.incident_id, q.signature, q.status, q.answer, q.answered_by, q.answered_us,
                q.note, q.created_us, r.id AS run_id, r.status AS run_status
            FROM {s}question AS q JOIN {s}run AS r ON r.no = q.run_no WHERE q.id = :id""",
        "questions_of_run": f"SELECT {_QUESTION_COLUMNS} FROM {s}question WHERE run_no = :run_no ORDER BY created_us, id",
        "questions_page": f"""SELECT q.id, q.run_no, q.client_id, q.branch, q.key, q.n, q.step, q.kind, q.text, q.options,
                q.schema, q.recommendation, q.context, q.about, q.asked_seq, q.attempts, q.asked_of, q.remember, q.fallback,
                q.deadline_us, q.folded_into, q.incident_id, q.signature, q.status, q.answer, q.answered_by, q.answered_us,
                q.note, q.created_us, r.id AS run_id, r.status AS run_status
            FROM {s}question AS q JOIN {s}run AS r ON r.no = q.run_no
            WHERE (CAST(:status AS text) IS NULL OR q.status = :status)
              AND (CAST(:client_id AS text) IS NULL OR q.client_id = :client_id)
              AND (CAST(:run_id AS text) IS NULL OR r.id = :run_id) AND q.folded_into IS NULL
              AND (q.created_us > :after_us OR (q.created_us = :after_us AND q.id > :after_id))
            ORDER BY q.created_us, q.id LIMIT :limit""",
        "open_question_ids": f"""SELECT id FROM {s}question WHERE status = 'open' AND folded_into IS NULL
            ORDER BY created_us DESC LIMIT 20""",
        "open_required": f"""SELECT id, run_no, remember FROM {s}question
            WHERE client_id = :client_id AND status = 'open' AND kind = 'required' ORDER BY created_us, id""",
        "open_proposals": f"""SELECT id, run_no, context FROM {s}question
            WHERE client_id = :client_id AND status = 'open' AND kind = 'approve' AND step IS NOT NULL ORDER BY created_us, id""",
        # A claim is one thing for all runs of a client: what one of them asks about it, no other asks too.
        "asked_whether": f"""SELECT q.id, q.run_no, q.key, q.status FROM {s}question AS q JOIN {s}run AS r ON r.no = q.run_no
            WHERE q.client_id = :client_id AND q.kind = 'unknown_outcome' AND q.status IN ('open', 'answered')
              AND r.ended_us IS NULL ORDER BY q.created_us, q.id""",
        # One answer ever: only an open question takes it.
        "answer_question": f"""UPDATE {s}question SET status = 'answered', answer = :answer, answered_by = :by, note = :note,
                answered_us = :now WHERE id = :id AND status = 'open'""",
        "answer_folded": f"""UPDATE {s}question SET status = 'answered', answer = :answer, answered_by = :by, note = :note,
                answered_us = :now WHERE folded_into = :id AND status = 'open'""",
        "close_question": f"UPDATE {s}question SET status = :status, answered_us = :now WHERE id = :id AND status = 'open'",
        "close_run_questions": f"""UPDATE {s}question SET status = 'withdrawn', answered_us = :now
            WHERE run_no = :run_no AND status = 'open' AND substr(key, 1, 6) <> 'twice/'""",
        "copy_questions": f"""INSERT INTO {s}question (id, run_no, client_id, branch, key, n, step, kind, text, options, schema,
                recommendation, context, about, asked_seq, attempts, asked_of, fallback, status, answer, answered_by,
                answered_us, note, created_us)
            SELECT id || :suffix, :run_no, client_id, branch, key, n, step, kind, text, options, schema, recommendation, context,
                about, asked_seq, attempts, asked_of, fallback, status, answer, answered_by, answered_us, note, created_us
              FROM {s}question WHERE run_no = :from_no AND (
                ((kind = 'ask' OR (kind = 'approve' AND step IS NULL)) AND status IN ('answered', 'expired')
                  AND asked_seq < :asked_seq)
                OR (kind IN ('code', 'conflict') AND status = 'answered' AND answer <> '"stop"'
                  AND substr(key, 1, 6) <> 'twice/'))""",
        # A batch's question tells of every item that was folded into it, until it is answered.
        "retell_question": f"""UPDATE {s}question SET text = :text, options = :options, recommendation = :recommendation,
                context = :context WHERE id = :id AND status = 'open'""",
        "fold_question": f"UPDATE {s}question SET folded_into = :into WHERE id = :id AND status = 'open'",
    }


def _circuit_statements(s: str, d: Dialect) -> dict[str, str]:
    columns = "name, state, failures, trial_run_no, opened_us, next_us, looks, trial_us"
    waiting = f"""FROM {s}wait AS w JOIN {s}run AS r ON r.no = w.run_no
            WHERE w.kind = 'circuit' AND w.key = :name AND r.status = 'waiting' AND r.owner IS NULL"""
    return {
        "resource": f"SELECT {columns} FROM {s}resource WHERE name = :name",
        # Who may be the trial, and what a failure means, is decided by one at a time.
        "resource_held": f"SELECT {columns} FROM {s}resource WHERE name = :name {d.lock}",
        "resources_open": f"SELECT {columns} FROM {s}resource WHERE state <> 'closed' ORDER BY name",
        "resources_back": f"""SELECT name FROM {s}resource WHERE state = 'closed'
              AND EXISTS (SELECT 1 FROM {s}wait AS w WHERE w.kind = 'circuit' AND w.key = name)""",
        "add_resource": f"""INSERT INTO {s}resource (name, state, failures) VALUES (:name, 'closed', '[]')
            ON CONFLICT DO NOTHING""",
        "put_resource": f"""UPDATE {s}resource SET state = :state, failures = :failures, trial_run_no = :trial_run_no,
                opened_us = :opened_us, next_us = :next_us, looks = :looks, trial_us = :trial_us WHERE name = :name""",
        "drop_resources": f"""DELETE FROM {s}resource WHERE state = 'closed' AND coalesce(next_us, 0) < :before_us
              AND NOT EXISTS (SELECT 1 FROM {s}wait AS w WHERE w.kind = 'circuit' AND w.key = name)""",
        "wait_for_resource": f"""INSERT INTO {s}wait (run_no, branch, kind, key, created_us)
            VALUES (:run_no, '', 'circuit', :name, :now) ON CONFLICT DO NOTHING""",
        "resources_of_run": f"""SELECT w.key AS name FROM {s}wait AS w WHERE w.run_no = :run_no AND w.branch = ''
              AND w.kind = 'circuit' ORDER BY w.key""",
        "waiters": f"SELECT count(DISTINCT w.run_no) AS n FROM {s}wait AS w WHERE w.kind = 'circuit' AND w.key = :name",
        # Whoever has waited longest since it was last taken, of those that the worker can execute.
        "next_waiter": f"""SELECT r.no {waiting} AND r.workflow IN ({d.items.format(":workflows")})
              AND NOT EXISTS (SELECT 1 FROM {s}client AS c WHERE c.id = r.client_id AND c.status = 'paused')
            ORDER BY w.created_us, w.run_no LIMIT 1 {d.skip_locked}""",
        # It answers again: not all of them at once.
        "wake_waiters": f"""UPDATE {s}run SET wake_us = CAST(:now AS bigint) + no % 100 * CAST(:each_us AS bigint),
                reason = :reason, updated_us = :now
            WHERE no IN (SELECT r.no {waiting} LIMIT :most {d.skip_locked}) RETURNING no""",
        "drop_waiters": f"""DELETE FROM {s}wait WHERE kind = 'circuit' AND key = :name
            AND CAST(run_no AS TEXT) IN ({d.items.format(":runs")})""",
    }


def _incident_statements(s: str, d: Dialect) -> dict[str, str]:
    columns = "i.id, i.kind, i.signature, i.resource, i.text, i.status, i.created_us, i.closed_us"
    # Only what whoever asks may see: their clients as a JSON list, or NULL for all. What is folded is answered with its batch.
    mine = f"""q.incident_id = :id AND q.folded_into IS NULL
              AND (CAST(:clients AS json) IS NULL OR q.client_id IN ({d.items.format(":clients")}))"""
    theirs = mine.replace(":id", "i.id")
    standing = "(CAST(:status AS text) IS NULL OR q.status = :status)"
    return {
        "incident_of": f"""SELECT {columns} FROM {s}incident AS i WHERE i.kind = :kind AND i.signature = :signature
              AND i.status = 'open'""",
        # Whoever joins holds it open until the commit: it is not closed under a question that nobody else sees yet.
        "keep_incident": f"UPDATE {s}incident SET status = 'open' WHERE id = :id AND status = 'open'",
        "insert_incident": f"""INSERT INTO {s}incident (id, kind, signature, resource, text, status, created_us)
            VALUES (:id, :kind, :signature, :resource, '', 'open', :now) ON CONFLICT DO NOTHING""",
        "close_incident": f"""UPDATE {s}incident SET status = 'closed', closed_us = :now WHERE id = :id AND status = 'open'
              AND NOT EXISTS (SELECT 1 FROM {s}question AS q WHERE q.incident_id = :id AND q.status = 'open'
                  AND q.folded_into IS NULL)""",
        "open_incidents": f"""SELECT i.id, i.resource, c.next_us AS back_us FROM {s}incident AS i
                JOIN {s}resource AS c ON c.name = i.resource AND c.state = 'closed' AND c.next_us IS NOT NULL
            WHERE i.status = 'open' AND i.kind = 'resource'""",
        # What was asked about a resource before it answered again.
        "asked_of_resource": f"""SELECT q.id, q.run_no FROM {s}question AS q WHERE q.incident_id = :id AND q.status = 'open'
              AND q.folded_into IS NULL AND q.created_us <= :back_us LIMIT :most""",
        "join_incident": f"UPDATE {s}question SET incident_id = :incident_id WHERE id = :id AND incident_id IS NULL",
        "wake_soon": f"""UPDATE {s}run SET wake_us = CASE WHEN wake_us < :at THEN wake_us ELSE CAST(:at AS bigint) END,
                reason = :reason, updated_us = :now
            WHERE no = :run_no AND status = 'waiting' AND owner IS NULL""",
        "withdraw_folded": f"""UPDATE {s}question SET status = 'withdrawn', answered_us = :now
            WHERE folded_into = :id AND status = 'open'""",
        "incident": f"SELECT {columns} FROM {s}incident AS i WHERE i.id = :id",
        "incidents_page": f"""SELECT {columns} FROM {s}incident AS i
            WHERE EXISTS (SELECT 1 FROM {s}question AS q WHERE {theirs}
                AND (CAST(:client_id AS text) IS NULL OR q.client_id = :client_id))
              AND (CAST(:status AS text) IS NULL OR :status = (CASE WHEN EXISTS (SELECT 1 FROM {s}question AS q
                  WHERE {theirs} AND q.status = 'open') THEN 'open' ELSE 'closed' END))
            ORDER BY i.created_us, i.id LIMIT :limit""",
        "incident_extent": f"""SELECT count(*) AS questions, count(DISTINCT q.run_no) AS runs FROM {s}question AS q
            WHERE {mine} AND {standing}""",
        "incident_workflows": f"""SELECT DISTINCT r.workflow, q.client_id FROM {s}question AS q
                JOIN {s}run AS r ON r.no = q.run_no
            WHERE {mine} AND {standing} ORDER BY r.workflow, q.client_id""",
        "incident_newest": f"""SELECT q.step, q.text, q.context FROM {s}question AS q WHERE {mine} AND {standing}
            ORDER BY q.created_us DESC, q.id LIMIT 1""",
        "incident_options": f"SELECT DISTINCT q.options FROM {s}question AS q WHERE {mine} AND q.status = 'open' LIMIT 50",
        "incident_questions": f"""SELECT q.id, q.client_id, q.created_us FROM {s}question AS q WHERE {mine} AND q.status = 'open'
              AND (q.created_us > :after_us OR (q.created_us = :after_us AND q.id > :after_id))
            ORDER BY q.created_us, q.id LIMIT :most""",
        "incident_asked": f"SELECT DISTINCT q.run_no FROM {s}question AS q WHERE {mine}",
        "incident_before": f"""SELECT {columns} FROM {s}incident AS i WHERE i.kind = :kind AND i.signature = :signature
              AND i.created_us < :created_us ORDER BY i.created_us DESC LIMIT 1""",
        "incident_answers": f"""SELECT q.answer, q.answered_by, q.answered_us, q.run_no FROM {s}question AS q
            WHERE {mine} AND q.status = 'answered' ORDER BY q.answered_us DESC LIMIT 1000""",
    }


def _previous_statements(s: str) -> dict[str, str]:
    fact = "key, version, value, source, run_id, set_by, set_us, valid_until_us"
    decision = """q.text, q.kind, q.step, q.answer, q.answered_by, q.answered_us, q.note, r.id AS run_id"""
    return {
        # A fork repeats another run and a child is a part of one: neither is "the last time". A pruned run has its document;
        # one without was forgotten with its client, who comes back as a new one.
        "previous_run": f"""SELECT no, id, status, goal, inputs, value, created_us, ended_us, pruned_us FROM {s}run
            WHERE client_id = :client_id AND workflow = :workflow AND no < :before AND status = 'done'
              AND root_no IS NULL AND parent_no IS NULL AND (pruned_us IS NULL OR document IS NOT NULL)
            ORDER BY no DESC LIMIT 1""",
        "latest_results": f"""SELECT s.name, s.result, s.artifact, s.summary FROM {s}step AS s
            JOIN (SELECT max(id) AS id FROM {s}step WHERE id BETWEEN :low AND :high AND state = 'done'
                  AND substr(name, 1, 4) <> 'run.' AND substr(name, 1, 7) <> 'client.' GROUP BY name) AS last ON last.id = s.id
            ORDER BY s.id DESC""",
        "fact_uses": f"""SELECT name, key, result, facts FROM {s}step WHERE id BETWEEN :low AND :high
            AND (name = 'client.get' OR name = 'client.found' OR facts IS NOT NULL) ORDER BY id""",
        "facts_by_run": f"""SELECT key, max(version) AS version FROM {s}fact
            WHERE client_id = :client_id AND run_id = :run_id GROUP BY key""",
        "fact_version": f"""SELECT {fact} FROM {s}fact
            WHERE client_id = :client_id AND key = :key AND version = :version""",
        # The newest version that the asking run did not set itself, and the newest one of that time.
        "facts_since": f"""SELECT f.key, f.version, f.value, f.source, f.set_us, o.version AS old_version, o.value AS old_value
            FROM {s}fact AS f LEFT JOIN {s}fact AS o ON o.client_id = f.client_id AND o.key = f.key AND o.version = (
                SELECT max(w.version) FROM {s}fact AS w
                 WHERE w.client_id = f.client_id AND w.key = f.key AND w.set_us <= :since_us)
            WHERE f.client_id = :client_id AND f.set_us >= :since_us AND f.version = (
                SELECT max(n.version) FROM {s}fact AS n
                 WHERE n.client_id = f.client_id AND n.key = f.key AND coalesce(n.run_id, '') <> :run_id)
            ORDER BY f.set_us DESC, f.key""",
        "decisions_since": f"""SELECT {decision} FROM {s}question AS q JOIN {s}run AS r ON r.no = q.run_no
            WHERE q.client_id = :client_id AND q.status = 'answered' AND q.folded_into IS NULL
              AND q.answered_us > :since_us AND q.run_no <> :run_no AND q.run_no <> :previous_no
            ORDER BY q.answered_us DESC, q.id""",
        "runs_since": f"""SELECT id AS run_id, client_id, workflow, status, waiting_for, open_questions AS open_questions_count,
                goal, updated_us
            FROM {s}run WHERE client_id = :client_id AND no <> :run_no AND no <> :previous_no AND parent_no IS NULL
              AND (created_us > :since_us OR ended_us > :since_us) ORDER BY no DESC""",
        "client_failures": f"""SELECT a.name, a.kind, a.reason, a.approach, a.started_us, a.ended_us, r.id AS run_id
            FROM {s}run AS r JOIN {s}attempt AS a ON a.run_no = r.no
            WHERE r.client_id = :client_id AND (r.pruned_us IS NULL OR r.document IS NOT NULL)
              AND (a.outcome = 'failed' OR a.outcome = 'unknown')
              AND coalesce(a.ended_us, a.started_us) >= :since_us
            ORDER BY coalesce(a.ended_us, a.started_us) DESC, a.run_no DESC, a.branch, a.name, a.key, a.n DESC LIMIT :limit""",
        "client_open_questions": f"""SELECT {", ".join(f"q.{c.strip()}" for c in _QUESTION_COLUMNS.split(","))}, r.id AS run_id
            FROM {s}question AS q JOIN {s}run AS r ON r.no = q.run_no
            WHERE q.client_id = :client_id AND q.status = 'open' AND q.folded_into IS NULL
            ORDER BY q.created_us, q.id LIMIT :limit""",
    }


def _recovery_statements(s: str, d: Dialect) -> dict[str, str]:
    return {
        # Those that chose something, and the one under way; a plan is wanted of that one only.
        "recoveries": f"""SELECT id, CASE WHEN ended_us IS NULL THEN plan ELSE '{{}}' END AS plan, chosen, by, result,
                created_us, ended_us
            FROM {s}recovery WHERE run_no = :run_no AND (chosen IS NOT NULL OR ended_us IS NULL) ORDER BY created_us, id""",
        "begin_recovery": f"""INSERT INTO {s}recovery (id, run_no, plan, chosen, by, result, created_us)
            SELECT :id, no, :plan, :chosen, :by, :result, :created_us
              FROM {s}run WHERE no = :run_no AND fence = :fence AND owner = :owner {d.hold}""",
        "end_recovery": f"UPDATE {s}recovery SET result = :result, ended_us = :now WHERE id = :id AND ended_us IS NULL",
        "close_recoveries": f"UPDATE {s}recovery SET ended_us = :now WHERE run_no = :run_no AND ended_us IS NULL",
    }


def _price_statements(s: str) -> dict[str, str]:
    # A fork has copies of another run's records. A pruned run without its document was forgotten with its client.
    columns = "no, status, pruned_us, CASE WHEN pruned_us IS NOT NULL THEN document END AS document"
    counts = "ended_us IS NOT NULL AND root_no IS NULL AND (pruned_us IS NULL OR document IS NOT NULL)"
    return {
        # No index leads from a workflow to its runs: the newest runs are gone through, backwards and not far.
        "lately_ended": f"""SELECT {columns} FROM {s}run WHERE no > (SELECT max(no) FROM {s}run) - :span
              AND workflow = :workflow AND {counts} ORDER BY no DESC LIMIT :limit""",
        "lately_ended_of_client": f"""SELECT {columns} FROM (SELECT * FROM {s}run
                WHERE client_id = :client_id AND workflow = :workflow ORDER BY no DESC LIMIT :span) AS own
            WHERE {counts} ORDER BY no DESC LIMIT :limit""",
        "priced_steps": f"""SELECT branch, name, key, state, usd, tokens, ended_us - started_us AS us,
                CASE WHEN name = 'run.start' THEN summary END AS summary
            FROM {s}step WHERE id BETWEEN :low AND :high ORDER BY id DESC LIMIT :limit""",
        "priced_tries": f"""SELECT branch, name, key, outcome, usd, tokens, ended_us - started_us AS us
            FROM {s}attempt WHERE run_no = :run_no ORDER BY branch, name, key, n LIMIT :limit""",
        "child_times": f"""SELECT id, workflow, executing_us FROM {s}run WHERE parent_no = :run_no
            ORDER BY no DESC LIMIT :limit""",
    }


def _worker_statements(s: str, d: Dialect) -> dict[str, str]:
    return {
        "insert_worker": f"""INSERT INTO {s}worker (id, host, boot, pid, started, beat_us, modules)
            VALUES (:id, :host, :boot, :pid, :started, {d.clock}, :modules)
            ON CONFLICT (id) DO UPDATE SET beat_us = {d.clock}, modules = :modules""",
        "beat": f"UPDATE {s}worker SET beat_us = {d.clock}, zombies = :zombies WHERE id = :id",
        "owned_runs": f"SELECT no, fence FROM {s}run WHERE owner = :owner",
        "worker": f"""SELECT id, host, boot, pid, started, beat_us, modules, zombies, {d.clock} - {d.heard} AS silent_us
            FROM {s}worker WHERE id = :id""",
        # The same, and it cannot say that it lives until we have done what we do because it does not: its beat waits for us, and
        # finds out. Else it would act for some seconds more for a run that was taken in the instant in which it woke.
        "worker_held": f"""SELECT id, host, boot, pid, started, beat_us, modules, zombies, {d.clock} - {d.heard} AS silent_us
            FROM {s}worker WHERE id = :id {d.hold}""",
        "workers": f"""SELECT id, host, boot, pid, started, beat_us, modules, zombies, {d.clock} - {d.heard} AS silent_us
            FROM {s}worker ORDER BY id""",
        # Owners whose row is gone: their runs are nobody's.
        "vanished": f"""SELECT DISTINCT r.owner AS id FROM {s}run AS r WHERE r.owner IS NOT NULL
              AND NOT EXISTS (SELECT 1 FROM {s}worker AS w WHERE w.id = r.owner)""",
        "clock": f"SELECT {d.clock} AS now_us",
        "drop_worker": f"""DELETE FROM {s}worker WHERE id = :id
            AND NOT EXISTS (SELECT 1 FROM {s}run WHERE owner = :id)
            AND NOT EXISTS (SELECT 1 FROM {s}effect WHERE owner = :id AND state IN ('claimed', 'unknown'))""",
        "insert_artifact": f"""INSERT INTO {s}artifact (hash, size, body, location, created_us)
            VALUES (:hash, :size, :body, :location, :now) ON CONFLICT DO NOTHING""",
        "mend_artifact": f"UPDATE {s}artifact SET size = :size, body = :body, location = :location WHERE hash = :hash",
        "artifact": f"SELECT hash, size, body, location, created_us FROM {s}artifact WHERE hash = :hash",
        "store": f"SELECT schema_no, epoch, created_us, restored_us FROM {s}store",
        "sizes": f"""SELECT (SELECT count(*) FROM {s}run) AS runs, (SELECT count(*) FROM {s}step) AS steps,
            (SELECT count(*) FROM {s}question WHERE status = 'open' AND folded_into IS NULL) AS open_questions,
            (SELECT count(*) FROM {s}effect WHERE state IN ('claimed', 'unknown')) AS unsettled,
            (SELECT count(*) FROM {s}client) AS clients, (SELECT min(created_us) FROM {s}run) AS oldest_run_us,
            (SELECT count(*) FROM {s}run WHERE ended_us IS NULL) AS live,
            (SELECT count(*) FROM {s}delivery WHERE state IN ('pending', 'failed')) AS undelivered""",
        "server": f"SELECT {d.version} AS version, {d.size} AS bytes",
        # Due as for a worker's take, whoever could take it; and all that has an owner, dead or alive.
        "ready_runs": f"""SELECT r.no, r.id, r.client_id, r.workflow, r.status, r.reason, r.owner, r.wake_us, r.updated_us
            FROM {s}run AS r WHERE r.ended_us IS NULL AND r.external = 0 AND r.no > :after
              AND (r.owner IS NOT NULL OR r.status = 'queued' OR (r.status = 'waiting' AND r.wake_us <= :now)
                   OR (r.status IN ('cancelling', 'failing') AND r.open_questions = 0
                       AND NOT EXISTS (SELECT 1 FROM {s}run AS b WHERE b.parent_no = r.no AND b.ended_us IS NULL)))
              AND (r.status IN ('cancelling', 'failing')
                   OR NOT EXISTS (SELECT 1 FROM {s}client AS c WHERE c.id = r.client_id AND c.status = 'paused'))
            ORDER BY r.no LIMIT :limit""",
    }


def _people_statements(s: str) -> dict[str, str]:
    person = """id, name, channels, hours, zone, clients, rank, remind_us, hand_over_us, away_until_us, removed_us, created_us"""
    return {
        "save_person": f"""INSERT INTO {s}person (id, name, channels, hours, zone, clients, rank, remind_us, hand_over_us,
                away_until_us, created_us)
            VALUES (:id, :name, :channels, :hours, :zone, :clients, :rank, :remind_us, :hand_over_us, :away_until_us, :now)
            ON CONFLICT (id) DO UPDATE SET name = excluded.name, channels = excluded.channels, hours = excluded.hours,
                zone = excluded.zone, clients = excluded.clients, rank = excluded.rank, remind_us = excluded.remind_us,
                hand_over_us = excluded.hand_over_us, away_until_us = excluded.away_until_us, removed_us = NULL""",
        "person": f"SELECT {person} FROM {s}person WHERE id = :id",
        "persons": f"SELECT {person} FROM {s}person WHERE removed_us IS NULL ORDER BY rank, created_us, id",
        "remove_person": f"UPDATE {s}person SET removed_us = :now, channels = '[]' WHERE id = :id AND removed_us IS NULL",
        "set_away": f"UPDATE {s}person SET away_until_us = :until_us WHERE id = :id",
        # -- ladders
        "ladder": f"""SELECT id, run_no, client_id, asked_of, deadline_us, folded_into, incident_id, status, ladder_us, rung,
                person_id, created_us, objections, answer, answered_by
            FROM {s}question WHERE id = :id""",
        "due_ladders": f"""SELECT id, client_id FROM {s}question WHERE status = 'open' AND ladder_us <= :now
            ORDER BY ladder_us LIMIT :limit""",
        "climb_ladder": f"""UPDATE {s}question SET ladder_us = :next_us, rung = :rung, person_id = :person_id
            WHERE id = :id AND status = 'open' AND rung = :seen_rung""",
        "start_ladders": f"""UPDATE {s}question SET ladder_us = :now
            WHERE status = 'open' AND folded_into IS NULL AND ladder_us IS NULL
              AND person_id IS NULL""",
        "look_at_ladders_of": f"""UPDATE {s}question SET ladder_us = :now
            WHERE status = 'open' AND folded_into IS NULL AND person_id = :person_id""",
        # -- messages
        "insert_delivery": f"""INSERT INTO {s}delivery (id, question_id, run_no, person_id, purpose, state, next_us, rung,
                created_us)
            VALUES (:id, :question_id, :run_no, :person_id, :purpose, 'pending', :due_us, :rung, :now) ON CONFLICT DO NOTHING""",
        "delivery": f"""SELECT id, question_id, run_no, person_id, channel, purpose, state, tries, next_us, reason, rung,
                created_us, delivered_us
            FROM {s}delivery WHERE id = :id""",
        "deliveries_of_question": f"""SELECT id, person_id, purpose, state, rung, created_us, delivered_us, next_us, tries, reason
            FROM {s}delivery WHERE question_id = :question_id AND person_id IS NOT NULL ORDER BY created_us, rung, id""",
        # One message about an incident and person, not one for each of its questions: the first of them tells of all.
        "told_of_incident": f"""SELECT o.id, o.state, o.next_us FROM {s}delivery AS d
                JOIN {s}question AS q ON q.id = d.question_id
                JOIN {s}question AS p ON p.incident_id = q.incident_id JOIN {s}delivery AS o ON o.question_id = p.id
            WHERE d.id = :id AND o.person_id = d.person_id AND o.purpose = d.purpose AND o.id <> d.id
              AND o.created_us > d.created_us - CAST(:lately_us AS bigint)
              AND (o.state = 'delivered' OR (o.state = 'pending'
                  AND (o.created_us < d.created_us OR (o.created_us = d.created_us AND o.id < d.id))))
            ORDER BY o.state, o.created_us, o.id LIMIT 1""",
        "open_in_incident": f"""SELECT id, client_id FROM {s}question WHERE incident_id = :incident_id AND status = 'open'
              AND folded_into IS NULL ORDER BY created_us, id""",
        "due_deliveries": f"""SELECT id, person_id, tries, next_us FROM {s}delivery
            WHERE state = 'pending' AND next_us <= :now AND person_id IS NOT NULL ORDER BY next_us, id LIMIT :limit""",
        # Of two that saw it due one gets it. Until then is when another may try: whoever died meanwhile may have sent it.
        "claim_delivery": f"""UPDATE {s}delivery SET tries = tries + 1, next_us = :until_us
            WHERE id = :id AND state = 'pending' AND tries = :tries AND next_us = :next_us""",
        "postpone_delivery": f"""UPDATE {s}delivery SET next_us = :until_us, reason = :reason, tries = :tries
            WHERE id = :id AND state = 'pending' AND tries = :seen_tries""",
        "end_delivery": f"""UPDATE {s}delivery SET state = :state, channel = :channel, reason = :reason,
                delivered_us = :delivered_us, next_us = NULL
            WHERE id = :id AND state = 'pending'""",
        # What was said of it holds for every question of its incident.
        "end_with_it": f"""UPDATE {s}delivery SET state = :state, reason = :reason, delivered_us = :delivered_us, next_us = NULL
            WHERE state = 'pending' AND person_id = :person_id AND purpose = :purpose
              AND question_id IN (SELECT id FROM {s}question WHERE incident_id = :incident_id)""",
        "untold": f"""SELECT
            (SELECT count(*) FROM {s}question AS q WHERE q.status = 'open' AND q.folded_into IS NULL
              AND NOT EXISTS (SELECT 1 FROM {s}delivery AS d WHERE d.question_id = q.id AND d.person_id IS NOT NULL
                  AND (d.state = 'delivered' OR (d.state = 'pending' AND d.reason IS NULL)))) AS nowhere,
            (SELECT count(*) FROM {s}delivery WHERE state = 'pending' AND person_id IS NOT NULL
                AND reason IS NOT NULL) AS failing,
            (SELECT count(*) FROM {s}delivery WHERE state = 'pending' AND person_id IS NOT NULL AND reason IS NULL) AS due,
            (SELECT count(*) FROM {s}delivery AS d JOIN {s}question AS q ON q.id = d.question_id
              WHERE d.state = 'dead' AND d.person_id IS NOT NULL AND q.status = 'open') AS dead,
            (SELECT reason FROM {s}delivery WHERE state = 'pending' AND person_id IS NOT NULL AND reason IS NOT NULL
              ORDER BY created_us DESC LIMIT 1) AS reason,
            (SELECT count(*) FROM {s}person WHERE removed_us IS NULL) AS persons""",
        "promised": f"""SELECT
            (SELECT count(*) FROM {s}question WHERE objections IS NOT NULL) AS objected,
            (SELECT count(*) FROM {s}question AS q JOIN {s}run AS r ON r.no = q.run_no
              WHERE q.kind = 'approve' AND q.step IS NOT NULL AND q.status = 'answered' AND r.ended_us IS NULL
                AND (q.answer = '"approve"' OR substr(q.answer, 1, 20) = '{{"choice": "approve"')
                AND NOT EXISTS (SELECT 1 FROM {s}effect AS e WHERE e.run_no = q.run_no AND e.name || '/' || e.key = q.key
                    AND e.state = 'done')) AS approved_not_done""",
        # -- what was said too late, and links
        "object_to": f"UPDATE {s}question SET objections = :objections WHERE id = :id AND coalesce(objections, '') = :seen",
        "objections_of_run": f"""SELECT id, objections FROM {s}question WHERE run_no = :run_no AND objections IS NOT NULL
            ORDER BY created_us, id""",
        "link_key": f"SELECT link_key FROM {s}store",
        "keep_link_key": f"UPDATE {s}store SET link_key = :key WHERE link_key IS NULL",
    }


def _restoring_statements(s: str) -> dict[str, str]:
    return {
        "raise_epoch": f"UPDATE {s}store SET epoch = epoch + 1, restored_us = :now RETURNING epoch",
        # Whoever executed one of them before must not write any more, and may have been given fences that are forgotten.
        "let_go_runs": f"""UPDATE {s}run SET status = CASE WHEN status = 'running' THEN 'queued' ELSE status END,
                reason = CASE WHEN status = 'running' THEN :reason ELSE reason END, owner = NULL, fence = fence + 1000000,
                updated_us = :now
            WHERE ended_us IS NULL""",
        # Nobody's death proves anything about a send that is forgotten: all that could be sent has had its time by then.
        "let_go_claims": f"""UPDATE {s}effect SET state = 'unknown', owner = NULL,
                gate_until_us = CASE WHEN gate_until_us - claimed_us >= :longest_us THEN :latest_us
                    WHEN gate_until_us - claimed_us > :timeout_us THEN gate_until_us - claimed_us + :now ELSE :least_us END
            WHERE state IN ('claimed', 'unknown') AND run_no IN (SELECT no FROM {s}run WHERE ended_us IS NULL)""",
        # What another run of its family has done in the time that is lost, this one may have begun.
        "inherit_epoch": f"""UPDATE {s}run SET epoch = (SELECT o.epoch FROM {s}run AS o WHERE o.no = :of_no)
            WHERE no = :run_no AND epoch > (SELECT o.epoch FROM {s}run AS o WHERE o.no = :of_no)""",
        "kin_since": f"""WITH RECURSIVE kin(no) AS (SELECT no FROM {s}run WHERE no = :run_no
                UNION SELECT k.no FROM kin AS below JOIN {s}run AS r ON r.no = below.no
                    JOIN {s}run AS k ON k.no = r.parent_no OR k.no = r.root_no)
            SELECT min(r.created_us) AS since_us FROM kin JOIN {s}run AS r ON r.no = kin.no""",
        "older_runs": f"""SELECT min(created_us) AS since_us FROM {s}run
            WHERE client_id = :client_id AND ended_us IS NULL AND epoch < :epoch""",
    }


def _keeping_statements(s: str, d: Dialect) -> dict[str, str]:
    # Never shrunk: what has not ended, what a person still has to decide, what may still happen outside, what a parent may
    # still ask for, what a child still costs, and the run that another one of the client starts from (``previous_run``): the
    # next one, or one that began earlier and has not ended. A run that was under way at midnight (UTC) waits for the next
    # midnight, and so does one that has copies of older records: money must not move from one day to the other.
    # A fork looks back from where its root stood.
    stood = "(CASE WHEN u.root_no < u.no THEN u.root_no ELSE u.no END)"
    may = f"""r.ended_us IS NOT NULL AND r.pruned_us IS NULL AND r.ended_us <= :before_us AND r.owner IS NULL
        AND r.status IN ('done', 'failed', 'cancelled')
        AND NOT EXISTS (SELECT 1 FROM {s}question AS q WHERE q.run_no = r.no AND q.status = 'open')
        AND NOT EXISTS (SELECT 1 FROM {s}effect AS e WHERE e.run_no = r.no AND e.state IN ('claimed', 'unknown'))
        AND NOT EXISTS (SELECT 1 FROM {s}run AS p WHERE p.no = r.parent_no AND p.ended_us IS NULL)
        AND NOT EXISTS (SELECT 1 FROM {s}run AS c WHERE c.parent_no = r.no AND c.ended_us IS NULL)
        AND (r.ended_us < :today_us OR (r.created_us >= :today_us AND r.root_no IS NULL))
        AND (r.status <> 'done' OR r.root_no IS NOT NULL OR r.parent_no IS NOT NULL OR (
             EXISTS (SELECT 1 FROM {s}run AS n WHERE n.client_id = r.client_id AND n.workflow = r.workflow AND n.no > r.no
                 AND n.status = 'done' AND n.root_no IS NULL AND n.parent_no IS NULL)
             AND NOT EXISTS (SELECT 1 FROM {s}run AS u WHERE u.client_id = r.client_id AND u.workflow = r.workflow
                 AND u.no > r.no AND {stood} > r.no AND u.ended_us IS NULL
                 AND NOT EXISTS (SELECT 1 FROM {s}run AS b WHERE b.client_id = r.client_id AND b.workflow = r.workflow
                     AND b.no > r.no AND b.no < {stood} AND b.status = 'done' AND b.root_no IS NULL AND b.parent_no IS NULL))))"""
    theirs = f"(SELECT no FROM {s}run WHERE client_id = :client_id)"
    return {
        # A page of those that may be looked at, whether they may be shrunk or not: so no page takes long.
        "prunable": f"""SELECT r.no, r.id, r.ended_us, CASE WHEN {may} THEN 1 ELSE 0 END AS may FROM {s}run AS r
            WHERE (r.ended_us > :after_us OR (r.ended_us = :after_us AND r.no > :after_no))
              AND r.ended_us IS NOT NULL AND r.ended_us <= :before_us AND r.pruned_us IS NULL
            ORDER BY r.ended_us, r.no LIMIT :limit""",
        "guard_prune": f"SELECT r.inputs, r.updated_us FROM {s}run AS r WHERE r.no = :run_no AND {may}",
        "keep_document": f"UPDATE {s}run SET document = :document WHERE no = :run_no AND document IS NULL",
        "prune_steps": f"""SELECT t.id, t.name, t.usd, t.tokens, t.artifact,
                coalesce(length(t.result), 0) + coalesce(length(t.args), 0) AS size, a.size AS artifact_size,
                CASE WHEN coalesce(t.result, t.args, t.inputs, t.artifact, t.facts) IS NULL THEN 1 ELSE 0 END AS bare
            FROM {s}step AS t LEFT JOIN {s}artifact AS a ON a.hash = t.artifact
            WHERE t.id BETWEEN :low AND :high ORDER BY t.id LIMIT :limit""",
        "prune_tries": f"""SELECT branch, name, key, n, outcome, started_us,
                coalesce(length(trace), 0) + coalesce(length(inputs), 0) AS size
            FROM {s}attempt WHERE run_no = :run_no AND (branch, name, key, n) > (:branch, :name, :key, :n)
            ORDER BY branch, name, key, n LIMIT :limit""",
        "drop_step": f"DELETE FROM {s}step WHERE id = :id RETURNING usd, tokens",
        "slim_step": f"""UPDATE {s}step SET summary = coalesce(summary, substr(coalesce(result,
                    (SELECT a.body FROM {s}artifact AS a WHERE a.hash = step.artifact)), 1, 120)),
                result = NULL, args = NULL, inputs = NULL, artifact = NULL, facts = NULL WHERE id = :id""",
        # What a parent's record of its child's end would say, where there is none and never will be.
        "insert_kin": f"""INSERT INTO {s}step (id, branch, name, key, generation, state, summary, usd, tokens, started_us,
                ended_us)
            SELECT coalesce((SELECT max(id) FROM {s}step WHERE id BETWEEN :low AND :high), :low) + 1, '', 'run.start', r.id, 1,
                'done', r.id, :usd, :tokens, r.created_us, r.created_us FROM {s}run AS r WHERE r.no = :child_no""",
        "add_spend": f"""UPDATE {s}step SET usd = coalesce(usd, 0) + :usd, tokens = coalesce(tokens, 0) + :tokens
            WHERE id = :id""",
        "set_spend": f"UPDATE {s}step SET usd = :usd, tokens = :tokens WHERE id = :id",
        "bare_attempt": f"""INSERT INTO {s}attempt (run_no, branch, name, key, n, outcome, usd, tokens, started_us, ended_us)
            VALUES (:run_no, '', :name, '', 1, 'failed', :usd, :tokens, :started_us, :started_us)""",
        "drop_try": f"""DELETE FROM {s}attempt WHERE run_no = :run_no AND branch = :branch AND name = :name AND key = :key
            AND n = :n RETURNING usd, tokens""",
        "slim_attempts": f"UPDATE {s}attempt SET trace = NULL, inputs = NULL, source_digest = NULL WHERE run_no = :run_no",
        "slim_questions": f"UPDATE {s}question SET context = '{{}}', schema = NULL, about = NULL WHERE run_no = :run_no",
        "slim_recoveries": f"UPDATE {s}recovery SET plan = '{{}}' WHERE run_no = :run_no",
        "drop_events": f"DELETE FROM {s}event WHERE run_no = :run_no",
        "drop_waits": f"DELETE FROM {s}wait WHERE run_no = :run_no",
        "finish_prune": f"""UPDATE {s}run SET pruned_us = :now, inputs = :inputs, remaining = NULL,
                value = CASE WHEN length(value) <= :most THEN value END WHERE no = :run_no""",
        # Whoever keeps a result writes both rows in one transaction, so no row of `step` means nobody. Held by a statement of
        # its own first: the next one then sees what whoever named it has written meanwhile.
        "hold_artifact": f"SELECT hash FROM {s}artifact WHERE hash = :hash {d.lock}",
        "drop_artifact": f"""DELETE FROM {s}artifact WHERE hash = :hash AND (:files = 1 OR location IS NULL)
            AND NOT EXISTS (SELECT 1 FROM {s}step WHERE artifact = :hash)""",
        "artifact_page": f"""SELECT a.hash, a.size, a.location, a.created_us,
                CASE WHEN EXISTS (SELECT 1 FROM {s}step WHERE artifact = a.hash) THEN 0 ELSE 1 END AS idle
            FROM {s}artifact AS a WHERE a.hash > :after ORDER BY a.hash LIMIT 200""",
        # A file has its row first, of size 0; whoever names it says how large it is. So no file is without a row.
        "announce_artifact": f"""INSERT INTO {s}artifact (hash, size, body, location, created_us)
            VALUES (:hash, 0, NULL, :location, :now) ON CONFLICT (hash) DO UPDATE SET created_us = excluded.created_us""",
        "keep_artifact": f"UPDATE {s}artifact SET size = :size WHERE hash = :hash AND location IS NOT NULL",
        # A stamp from the future is of a clock that was wrong.
        "prune_due": f"SELECT pruned_us FROM {s}store WHERE coalesce(pruned_us, 0) < :since_us OR pruned_us > :ahead_us",
        "prune_done": f"UPDATE {s}store SET pruned_us = :now",
        "runs_of_client": f"SELECT {_RUN_COLUMNS} FROM {s}run WHERE client_id = :client_id ORDER BY no",
        "open_runs": f"SELECT id, status FROM {s}run WHERE client_id = :client_id AND ended_us IS NULL ORDER BY no",
        "unsettled_of_client": f"""SELECT r.id AS run_id, e.step FROM {s}run AS r JOIN {s}effect AS e ON e.run_no = r.no
            WHERE r.client_id = :client_id AND e.state IN ('claimed', 'unknown') ORDER BY r.no""",
        "forget_facts": f"DELETE FROM {s}fact WHERE client_id = :client_id",
        # A namespace is the client's id, or begins with it and a "/", which no id has.
        "forget_memory": f"""DELETE FROM {s}memory
            WHERE namespace = :client_id OR substr(namespace, 1, length(:client_id) + 1) = :client_id || '/'""",
        "forget_deliveries": f"""DELETE FROM {s}delivery WHERE run_no IN {theirs}
            OR question_id IN (SELECT id FROM {s}question WHERE client_id = :client_id)""",
        "forget_incidents": f"""DELETE FROM {s}incident
            WHERE id IN (SELECT incident_id FROM {s}question WHERE client_id = :client_id)
              AND NOT EXISTS (SELECT 1 FROM {s}question AS q WHERE q.incident_id = incident.id AND q.client_id <> :client_id)""",
        "forget_resources": f"""DELETE FROM {s}resource WHERE state = 'closed'
            AND name IN (SELECT resource FROM {s}attempt WHERE run_no IN {theirs})""",
        "incidents_of_client": f"""SELECT i.id, i.kind, i.signature, i.resource, i.status, i.created_us, i.closed_us
            FROM {s}incident AS i WHERE EXISTS (SELECT 1 FROM {s}question AS q
              WHERE q.incident_id = i.id AND q.client_id = :client_id)
            ORDER BY i.created_us, i.id""",
        "forget_occurrences": f"UPDATE {s}occurrence SET skipped = NULL WHERE client_id = :client_id",
        "forget_questions": f"DELETE FROM {s}question WHERE client_id = :client_id",
        "forget_recoveries": f"DELETE FROM {s}recovery WHERE run_no = :run_no",
        "forget_attempts": f"DELETE FROM {s}attempt WHERE run_no = :run_no",
        # Nothing but which step it was, when, and what it cost.
        "bare_step": f"""UPDATE {s}step SET branch = '', key = '', inputs = NULL, args = NULL, result = NULL, artifact = NULL,
                summary = NULL, approach = NULL, why = NULL, facts = NULL WHERE id = :id""",
        "effect_keys": f"SELECT claim_id, key FROM {s}effect WHERE run_no = :run_no AND inputs <> ''",
        "bare_effect": f"""UPDATE {s}effect SET key = :key, inputs = '', inputs_approved = NULL, arguments = NULL, receipt = NULL,
                branch = '' WHERE claim_id = :claim_id""",
        "bare_run": f"""UPDATE {s}run SET inputs = '{{}}', goal = NULL, value = NULL, failure = NULL, reason = NULL,
                limits = NULL, next_step = NULL, remaining = NULL, document = NULL, open_questions = 0, pruned_us = :now
            WHERE no = :run_no""",
        "bare_client": f"UPDATE {s}client SET status = 'active', note = :note, forgotten_us = :now WHERE id = :client_id",
        "memory_of_client": f"""SELECT namespace, key, value, created_us, updated_us, expires_us FROM {s}memory
            WHERE namespace = :client_id OR substr(namespace, 1, length(:client_id) + 1) = :client_id || '/'
            ORDER BY namespace, key""",
        "kept_document": f"SELECT document FROM {s}run WHERE no = :run_no",
        "events_of_run": f"SELECT seq, kind, body, at_us FROM {s}event WHERE run_no = :run_no ORDER BY seq",
        "deliveries_of_run": f"""SELECT id, question_id, person_id, channel, purpose, state, reason, created_us,
                delivered_us
            FROM {s}delivery WHERE run_no = :run_no OR question_id IN (SELECT id FROM {s}question WHERE run_no = :run_no)
            ORDER BY created_us""",
        "recoveries_of_run": f"""SELECT id, plan, chosen, by, result, created_us, ended_us FROM {s}recovery
            WHERE run_no = :run_no ORDER BY created_us""",
    }


_TICKET_COLUMNS = "run_no, branch, name, key, n, hash, fence, settings, lease_until_us, opened_us, closed_us"


def _external_statements(s: str) -> dict[str, str]:
    record = """id, branch, name, key, generation, state, effect, inputs, args, result, artifact, summary, approach, why, facts,
        usd, tokens, started_us, ended_us"""
    return {
        # In the transaction that admitted it: from the first on it is nobody's here.
        "begin_external": f"""UPDATE {s}run SET external = 1, status = 'running', owner = :owner, fence = 1, executions = 1,
                remaining = :remaining, next_step = :next_step, updated_us = :now
            WHERE no = :run_no AND status = 'queued' AND executions = 0""",
        # Its row is held until the transaction ends: of two reports one comes after the other.
        "hold_external": f"""UPDATE {s}run SET owner = :owner, updated_us = :now
            WHERE no = :run_no AND fence = :fence AND external = 1 AND ended_us IS NULL""",
        "turn_external": f"""UPDATE {s}run SET status = :status, waiting_for = :waiting_for, reason = :reason, owner = :keeps,
                wake_us = NULL, next_step = :next_step, remaining = :remaining, updated_us = :now
            WHERE no = :run_no AND fence = :fence AND owner = :owner AND external = 1
              AND status IN ('queued', 'running', 'waiting')""",
        "resume_external": f"""UPDATE {s}run SET fence = fence + 1, executions = executions + 1, owner = :owner,
                status = 'running', waiting_for = NULL, reason = :reason, wake_us = NULL, updated_us = :now
            WHERE no = :run_no AND fence = :fence AND external = 1 AND status IN ('queued', 'running', 'waiting')
            RETURNING fence""",
        "newest_record": f"""SELECT {record} FROM {s}step WHERE id BETWEEN :low AND :high AND branch = '' AND name = :name
              AND key = :key ORDER BY id DESC LIMIT 1""",
        "newest_id": f"SELECT max(id) AS id FROM {s}step WHERE id BETWEEN :low AND :high",
        "done_names": f"""SELECT name, count(*) AS n, max(id) AS last, max(summary) AS summary FROM {s}step
            WHERE id BETWEEN :low AND :high AND branch = '' AND state IN ('done', 'skipped') GROUP BY name ORDER BY min(id)""",
        "tries_of_call": f"""SELECT branch, name, key, n, approach, outcome, kind, reason, trace, signature, resource, inputs,
                source_digest, identical, usd, tokens, started_us, ended_us
            FROM {s}attempt WHERE run_no = :run_no AND branch = '' AND name = :name AND key = :key ORDER BY n""",
        "insert_ticket": f"""INSERT INTO {s}ticket (run_no, branch, name, key, n, hash, fence, settings, lease_until_us,
                opened_us)
            VALUES (:run_no, '', :name, :key, :n, :hash, :fence, :settings, :lease_until_us, :now)""",
        "ticket": f"SELECT {_TICKET_COLUMNS} FROM {s}ticket WHERE hash = :hash",
        "open_ticket": f"""SELECT {_TICKET_COLUMNS} FROM {s}ticket WHERE run_no = :run_no AND branch = '' AND name = :name
              AND key = :key AND closed_us IS NULL ORDER BY n DESC LIMIT 1""",
        "open_tickets": f"""SELECT {_TICKET_COLUMNS} FROM {s}ticket WHERE run_no = :run_no AND closed_us IS NULL
            ORDER BY opened_us""",
        "extend_ticket": f"UPDATE {s}ticket SET lease_until_us = :lease_until_us WHERE hash = :hash AND closed_us IS NULL",
        "close_ticket": f"UPDATE {s}ticket SET closed_us = :now WHERE hash = :hash AND closed_us IS NULL",
        "close_tickets": f"UPDATE {s}ticket SET closed_us = :now WHERE run_no = :run_no AND closed_us IS NULL",
        "late_tickets": f"""SELECT t.hash, t.lease_until_us, t.name, r.id AS run_id FROM {s}ticket AS t JOIN {s}run AS r
              ON r.no = t.run_no
            WHERE t.closed_us IS NULL AND t.lease_until_us <= :now AND r.ended_us IS NULL
              AND (r.status = 'running' OR r.status IN ('cancelling', 'failing'))
            ORDER BY t.lease_until_us LIMIT :limit""",
        # Somebody outside was given more time: until then they can send.
        "raise_gate": f"""UPDATE {s}effect SET gate_until_us = :gate_until_us
            WHERE claim_id = :claim_id AND state = 'claimed' AND gate_until_us < :gate_until_us""",
        # Who goes on with a run since it was resumed: a token of its own, and whoever asked for that.
        "executor_of": f"""SELECT t.id, t.parent_id FROM {s}run AS r JOIN {s}token AS t ON t.id = r.token_id AND t.run_no = r.no
            WHERE r.no = :run_no""",
        "note_executor": f"UPDATE {s}run SET token_id = :token_id WHERE no = :run_no AND fence = :fence",
        "insert_executor": f"""INSERT INTO {s}token (id, hash, name, scopes, clients, run_no, parent_id, expires_us, created_us)
            VALUES (:id, :hash, :name, :scopes, :clients, :run_no, :parent_id, :expires_us, :now)""",
        "set_callback": f"UPDATE {s}question SET callback = :url WHERE id = :id AND callback IS NULL",
        # A question that is no longer open is itself what has to be brought, until it is, or nobody takes it.
        "due_callbacks": f"""SELECT q.id, q.callback, q.run_no, d.tries, d.created_us FROM {s}question AS q
                LEFT JOIN {s}delivery AS d ON d.question_id = q.id AND d.purpose = 'callback'
            WHERE q.callback > '' AND q.status <> 'open' AND (d.id IS NULL OR d.next_us <= :now)
            ORDER BY q.callback LIMIT :limit""",
        "insert_callback": f"""INSERT INTO {s}delivery (id, question_id, run_no, channel, purpose, state, created_us)
            VALUES (:id, :question_id, :run_no, :channel, 'callback', 'pending', :now) ON CONFLICT DO NOTHING""",
        "claim_callback": f"""UPDATE {s}delivery SET tries = tries + 1, next_us = :until_us
            WHERE id = :id AND state = 'pending' AND coalesce(next_us, 0) <= :now""",
        "end_callback": f"""UPDATE {s}delivery SET state = :state, reason = :reason, next_us = NULL,
                delivered_us = :delivered_us
            WHERE id = :id AND state = 'pending'""",
        "put_off_callback": f"UPDATE {s}delivery SET next_us = :until_us, reason = :reason WHERE id = :id AND state = 'pending'",
        "overdue_outside": f"""SELECT q.id, r.id AS run_id FROM {s}question AS q JOIN {s}run AS r ON r.no = q.run_no
            WHERE q.status = 'open' AND q.deadline_us <= :now AND r.external = 1 AND r.ended_us IS NULL LIMIT :limit""",
        "drop_callback": f"UPDATE {s}question SET callback = NULL WHERE id = :id",
    }


def _desk_statements(s: str, d: Dialect) -> dict[str, str]:
    """What the HTTP API asks. ``:clients`` is a JSON list of those that a token may know of, or NULL: all."""

    def seen(column: str) -> str:
        return f"(CAST(:clients AS json) IS NULL OR {column} IN ({d.items.format(':clients')}))"

    question = ", ".join(f"q.{c.strip()}" for c in _QUESTION_COLUMNS.split(","))
    columns = "id, hash, name, scopes, clients, person_id, created_us, expires_us, revoked_us, used_us, run_no"
    return {
        "run_in_sight": f"""SELECT {_RUN_COLUMNS}, token_id FROM {s}run WHERE id = :id AND {seen("client_id")}""",
        "runs_in_sight": f"""SELECT r.no, r.id AS run_id, r.client_id, r.workflow, r.status, r.waiting_for,
                r.open_questions AS open_questions_count, r.goal, r.updated_us
            FROM {s}run AS r WHERE (CAST(:client_id AS text) IS NULL OR r.client_id = :client_id)
              AND (CAST(:workflow AS text) IS NULL OR r.workflow = :workflow)
              AND (CAST(:status AS text) IS NULL OR r.status = :status) AND {seen("r.client_id")}
              AND r.no < :before ORDER BY r.no DESC LIMIT :limit""",
        "question_in_sight": f"""SELECT {question}, r.id AS run_id, r.status AS run_status, r.external, r.token_id,
                (SELECT t.parent_id FROM {s}token AS t WHERE t.id = r.token_id) AS executor_parent
            FROM {s}question AS q JOIN {s}run AS r ON r.no = q.run_no WHERE q.id = :id AND {seen("q.client_id")}""",
        "questions_in_sight": f"""SELECT {question}, r.id AS run_id, r.status AS run_status
            FROM {s}question AS q JOIN {s}run AS r ON r.no = q.run_no
            WHERE (CAST(:status AS text) IS NULL OR q.status = :status)
              AND (CAST(:client_id AS text) IS NULL OR q.client_id = :client_id)
              AND (CAST(:run_id AS text) IS NULL OR r.id = :run_id) AND q.folded_into IS NULL AND {seen("q.client_id")}
              AND (q.created_us > :after_us OR (q.created_us = :after_us AND q.id > :after_id))
            ORDER BY q.created_us, q.id LIMIT :limit""",
        "open_in_sight": f"""SELECT id FROM {s}question WHERE status = 'open' AND folded_into IS NULL AND {seen("client_id")}
            ORDER BY created_us DESC LIMIT 20""",
        "client_in_sight": f"SELECT id, status FROM {s}client WHERE id = :id AND {seen('id')}",
        # Right after its admission, in the same transaction: nobody has it yet.
        "note_start": f"""UPDATE {s}run SET token_id = :token_id
            WHERE no = :run_no AND token_id IS NULL AND executions <= 1 AND created_us = updated_us""",
        "run_pulse": f"""SELECT r.status, r.waiting_for, r.reason, r.next_step, r.wake_us, r.updated_us, r.ended_us,
                r.open_questions AS open_questions_count FROM {s}run AS r WHERE r.no = :run_no""",
        "steps_after": f"""SELECT id, branch, name, key, generation, state, effect, summary, approach, why, usd, tokens,
                started_us, ended_us FROM {s}step WHERE id BETWEEN :low AND :high ORDER BY id LIMIT :limit""",
        "know_workflow": f"INSERT INTO {s}workflow (name, since_us) VALUES (:name, :now) ON CONFLICT DO NOTHING",
        # Who never had a worker may still have run it: the newest runs tell.
        "workflow_known": f"""SELECT CASE WHEN EXISTS (SELECT 1 FROM {s}workflow WHERE name = :name) OR EXISTS (SELECT 1 FROM (
                SELECT workflow, external FROM {s}run ORDER BY no DESC LIMIT 1000) AS newest
              WHERE newest.workflow = :name AND newest.external = 0) THEN 1 ELSE 0 END AS known""",
        "insert_token": f"""INSERT INTO {s}token (id, hash, name, scopes, clients, person_id, created_us, expires_us)
            VALUES (:id, :hash, :name, :scopes, :clients, :person_id, :now, :expires_us)""",
        "token": f"SELECT {columns} FROM {s}token WHERE id = :id",
        "tokens": f"SELECT {columns} FROM {s}token ORDER BY created_us, id",
        "revoke_token": f"UPDATE {s}token SET revoked_us = :now WHERE id = :id AND revoked_us IS NULL",
        # Once: of two that come with it, one signs in.
        "use_token": f"""UPDATE {s}token SET used_us = :now WHERE id = :id AND used_us IS NULL AND revoked_us IS NULL
              AND (expires_us IS NULL OR expires_us > :now)""",
        "drop_spent_tokens": f"""DELETE FROM {s}token WHERE substr(scopes, 1, 7) = '["once"' AND expires_us < :before
              AND NOT EXISTS (SELECT 1 FROM {s}session AS n WHERE n.token_id = {s}token.id)""",
        "insert_session": f"""INSERT INTO {s}session (id, hash, person_id, scopes, clients, created_us, expires_us, name, csrf,
                token_id)
            VALUES (:id, :hash, :person_id, :scopes, :clients, :now, :expires_us, :name, :csrf, :token_id)""",
        "session": f"""SELECT n.id, n.hash, n.name, n.scopes, n.clients, n.person_id, n.csrf, n.expires_us, n.token_id,
                t.revoked_us
            FROM {s}session AS n LEFT JOIN {s}token AS t ON t.id = n.token_id WHERE n.id = :id""",
        "drop_session": f"DELETE FROM {s}session WHERE id = :id",
        "drop_old_sessions": f"DELETE FROM {s}session WHERE expires_us < :before",
        # Status 0: it is just being done. Of two requests with one key, the one whose row this is does it.
        "insert_reply": f"""INSERT INTO {s}reply (token_id, key, request, client_id, status, body, created_us)
            VALUES (:token_id, :key, :request, NULL, 0, '', :now) ON CONFLICT DO NOTHING""",
        "reply": f"SELECT request, status, body, created_us FROM {s}reply WHERE token_id = :token_id AND key = :key",
        "retake_reply": f"""UPDATE {s}reply SET created_us = :now, request = :request, status = 0, body = '', client_id = NULL
            WHERE token_id = :token_id AND key = :key AND created_us = :seen_us AND (status = 0 OR created_us < :old_us)""",
        "finish_reply": f"""UPDATE {s}reply SET status = :status, body = :body, client_id = :client_id
            WHERE token_id = :token_id AND key = :key AND created_us = :seen_us AND status = 0""",
        "drop_reply": f"""DELETE FROM {s}reply WHERE token_id = :token_id AND key = :key AND created_us = :seen_us
            AND status = 0""",
        "drop_old_replies": f"DELETE FROM {s}reply WHERE created_us < :before",
        "forget_replies": f"DELETE FROM {s}reply WHERE client_id = :client_id",
        # -- pages
        "open_count_in_sight": f"""SELECT count(*) AS n FROM {s}question
            WHERE status = 'open' AND folded_into IS NULL AND {seen("client_id")}""",
        # Those that expire first, then the oldest.
        "inbox_in_sight": f"""SELECT q.id, q.client_id, q.kind, q.step, substr(q.text, 1, 240) AS text, q.created_us,
                q.deadline_us, q.incident_id, r.id AS run_id, r.workflow
            FROM {s}question AS q JOIN {s}run AS r ON r.no = q.run_no
            WHERE q.status = 'open' AND q.folded_into IS NULL AND {seen("q.client_id")}
              AND (CAST(:client_id AS text) IS NULL OR q.client_id = :client_id)
            ORDER BY CASE WHEN q.deadline_us IS NULL THEN 1 ELSE 0 END, q.deadline_us, q.created_us, q.id LIMIT :limit""",
        "week_in_sight": f"""SELECT
            (SELECT count(*) FROM {s}run WHERE owner IS NOT NULL AND {seen("client_id")})
                + (SELECT count(*) FROM {s}run WHERE status = 'queued' AND no > 0 AND {seen("client_id")}) AS working,
            (SELECT count(*) FROM {s}run WHERE ended_us >= :since_us AND ended_us IS NOT NULL AND pruned_us IS NULL
                AND status = 'done' AND {seen("client_id")}) AS finished,
            (SELECT count(*) FROM {s}question WHERE created_us >= :since_us AND folded_into IS NULL
                AND {seen("client_id")}) AS asked,
            (SELECT count(*) FROM {s}question WHERE created_us >= :before_us AND created_us < :since_us AND folded_into IS NULL
                AND {seen("client_id")}) AS asked_before""",
        # One row for each client and workflow: the newest run, and when one was done last. From pair to pair by the index,
        # however many runs lie between. Runs that a run started are its own matter.
        "board_in_sight": f"""WITH RECURSIVE pair(client_id, workflow) AS (
                SELECT * FROM (SELECT client_id, workflow FROM {s}run WHERE client_id >= '' ORDER BY client_id, workflow LIMIT 1)
                    AS first
                UNION ALL
                SELECT (SELECT n.client_id FROM {s}run AS n WHERE (n.client_id, n.workflow) > (pair.client_id, pair.workflow)
                        ORDER BY n.client_id, n.workflow LIMIT 1),
                       (SELECT n.workflow FROM {s}run AS n WHERE (n.client_id, n.workflow) > (pair.client_id, pair.workflow)
                        ORDER BY n.client_id, n.workflow LIMIT 1)
                  FROM pair WHERE pair.client_id IS NOT NULL
            ), last AS (
                SELECT pair.client_id, pair.workflow, (SELECT max(no) FROM {s}run AS n WHERE n.client_id = pair.client_id
                    AND n.workflow = pair.workflow) AS no
                  FROM pair WHERE pair.client_id IS NOT NULL AND {seen("pair.client_id")} LIMIT :limit)
            SELECT r.client_id, r.workflow, r.id AS run_id, r.status, r.waiting_for, r.reason, r.updated_us, r.next_step,
                (SELECT g.ended_us FROM {s}run AS g WHERE g.client_id = r.client_id AND g.workflow = r.workflow
                    AND g.status = 'done' ORDER BY g.no DESC LIMIT 1) AS good_us,
                (SELECT {total("u.open_questions")} FROM {s}run AS u WHERE u.client_id = r.client_id AND u.workflow = r.workflow
                    AND u.ended_us IS NULL) AS asking
            FROM last JOIN {s}run AS r ON r.no = last.no
            WHERE r.parent_no IS NULL AND r.workflow <> 'stepseven.undo' ORDER BY r.client_id, r.workflow""",
        "clients_in_sight": f"""SELECT c.id, c.status, c.note, c.created_us, c.forgotten_us,
                (SELECT count(DISTINCT key) FROM {s}fact WHERE client_id = c.id) AS facts,
                (SELECT count(*) FROM {s}run WHERE client_id = c.id) AS runs,
                (SELECT {total("open_questions")} FROM {s}run WHERE client_id = c.id AND open_questions > 0) AS open_questions
            FROM {s}client AS c WHERE c.id > :after AND {seen("c.id")} ORDER BY c.id LIMIT :limit""",
        "decisions_of_client": f"""SELECT q.id, q.text, q.answer, q.answered_by, q.answered_us, q.note, r.id AS run_id
            FROM {s}question AS q JOIN {s}run AS r ON r.no = q.run_no
            WHERE q.client_id = :client_id AND q.status = 'answered' AND q.folded_into IS NULL
            ORDER BY q.answered_us DESC LIMIT :limit""",
    }


def statements(d: Dialect) -> Statements:
    """Write out every statement for one database. Called once, at start-up."""
    s = d.schema
    texts = {
        **_run_statements(s, d),
        **_step_statements(s, d),
        **_effect_statements(s, d),
        **_question_statements(s),
        **_circuit_statements(s, d),
        **_incident_statements(s, d),
        **_previous_statements(s),
        **_recovery_statements(s, d),
        **_price_statements(s),
        **_taking_statements(s, d),
        **_worker_statements(s, d),
        **_people_statements(s),
        **_restoring_statements(s),
        **_keeping_statements(s, d),
        **_desk_statements(s, d),
        **_external_statements(s),
    }
    known = {f.name for f in fields(Statements)}
    if known != set(texts):
        raise AssertionError(f"statements without a text, or texts without a name: {sorted(known ^ set(texts))}")
    return Statements(**{name: re.sub(r"(?<!:):([a-z_]+)", d.param, text) for name, text in texts.items()})
