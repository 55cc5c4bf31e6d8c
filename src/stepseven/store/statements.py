"""All SQL of the project, each statement once for both databases.

A statement is a field of ``Statements``: a typo fails in mypy, not at three in the morning. Every write of a run's state
names its owner and fence, either in the statement itself or by a ``guard_*`` statement first in the same transaction;
receipts are the exception, they are written by claim id. ``step.id`` is ``run_no << 24 | seq``.

Longer than other files on purpose: one place to read all SQL is worth more than a short file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from stepseven.store.dialect import Dialect

SEQ_BITS = 24  #: records of one run: up to 16,777,215
SEQ_MASK = (1 << SEQ_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """A typed name for each statement, already in one database's form."""

    # clients and facts
    insert_client: str
    client: str
    fact: str
    fact_history: str
    insert_fact: str
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
    request_stop: str
    wake_run: str
    count_questions: str
    run_progress: str
    runs_page: str
    spend: str
    client_spend: str
    checkpoint: str
    run_info: str
    # records
    append_step: str
    append_read: str
    steps: str
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
    insert_claim: str
    retry_claim: str
    settle_claim: str
    fill_receipt: str
    mark_claim: str
    lower_gate: str
    claim: str
    effects: str
    unsettled: str
    # questions
    insert_question: str
    question: str
    questions_of_run: str
    questions_page: str
    open_question_ids: str
    answer_question: str
    answer_folded: str
    close_question: str
    close_run_questions: str
    fold_question: str
    retell_question: str
    copy_questions: str
    # workers, artifacts, the store
    insert_worker: str
    beat: str
    owned_runs: str
    worker: str
    workers: str
    drop_worker: str
    insert_artifact: str
    artifact: str
    store: str
    sizes: str


#: What ``append_step`` takes, in its order; then the run's number, fence and owner.
RECORD_COLUMNS = (
    "id", "branch", "name", "key", "generation", "state", "effect", "inputs", "args", "result", "artifact", "summary",
    "approach", "why", "usd", "tokens", "started_us", "ended_us",
)  # fmt: skip
#: The same of ``append_read``: a read step that simply succeeded.
READ_COLUMNS = (
    "id", "branch", "name", "key", "generation", "state", "args", "result", "summary", "started_us", "ended_us",
)  # fmt: skip
_RUN_COLUMNS = """no, id, client_id, workflow, external, source_digest, status, waiting_for, reason, goal, inputs, value,
    failure, limits, root_no, parent_no, owner, fence, executions, progress, barren, executing_us, wake_us, next_step,
    remaining, open_questions, created_us, updated_us, ended_us"""
_EFFECT_COLUMNS = """scope, scope_id, name, key, generation, claim_id, tries, owner, state, inputs, inputs_approved,
    arguments, receipt, run_no, branch, step, fence, client_id, claimed_us, gate_until_us, settled_us"""
_QUESTION_COLUMNS = """id, run_no, client_id, branch, key, n, step, kind, text, options, schema, recommendation, context,
    about, asked_seq, attempts, asked_of, remember, fallback, deadline_us, folded_into, incident_id, signature, status,
    answer, answered_by, answered_us, note, created_us"""


def _run_statements(s: str, d: Dialect) -> dict[str, str]:
    return {
        "insert_client": f"INSERT INTO {s}client (id, status, created_us) VALUES (:id, 'active', :now) ON CONFLICT DO NOTHING",
        "client": f"SELECT id, status, created_us FROM {s}client WHERE id = :id",
        "fact": f"""SELECT key, version, value, source, run_id, set_by, set_us, valid_until_us FROM {s}fact
            WHERE client_id = :client_id AND key = :key ORDER BY version DESC LIMIT 1""",
        "fact_history": f"""SELECT key, version, value, source, run_id, set_by, set_us, valid_until_us FROM {s}fact
            WHERE client_id = :client_id AND key = :key ORDER BY version""",
        "insert_fact": f"""INSERT INTO {s}fact (client_id, key, version, value, source, run_id, set_by, set_us, valid_until_us)
            SELECT :client_id, :key, 1 + coalesce(max(version), 0), :value, :source, :run_id, :by, :now, :valid_until_us
              FROM {s}fact WHERE client_id = :client_id AND key = :key RETURNING version""",
        "insert_run": f"""INSERT INTO {s}run (id, client_id, workflow, source_digest, status, goal, inputs, root_no, parent_no,
                created_us, updated_us)
            VALUES (:id, :client_id, :workflow, :source_digest, 'queued', :goal, :inputs, :root_no, :parent_no, :now, :now)
            ON CONFLICT DO NOTHING RETURNING no""",
        "run_by_id": f"SELECT {_RUN_COLUMNS} FROM {s}run WHERE id = :id",
        "run_by_no": f"SELECT {_RUN_COLUMNS} FROM {s}run WHERE no = :no",
        "guard_run": f"SELECT status, limits FROM {s}run WHERE no = :run_no AND fence = :fence AND owner = :owner {d.hold}",
        # Only who saw the run unowned, or owned by a worker it then proved dead, gets it: compare and set.
        "take_run": f"""UPDATE {s}run SET status = CASE WHEN status IN ('cancelling', 'failing') THEN status ELSE 'running' END,
                owner = :owner, fence = fence + 1, executions = executions + 1, waiting_for = NULL,
                reason = CASE WHEN status IN ('cancelling', 'failing') THEN reason END,
                wake_us = NULL, progress = :progress, barren = :barren, source_digest = :source_digest, updated_us = :now
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
        "count_executing": f"""UPDATE {s}run SET executing_us = :executing_us
            WHERE no = :run_no AND fence = :fence AND owner = :owner AND executing_us < :executing_us""",
        "request_stop": f"""UPDATE {s}run SET status = :status, reason = :reason, updated_us = :now
            WHERE no = :run_no AND status IN ('queued', 'running', 'waiting')""",
        "wake_run": f"""UPDATE {s}run SET status = 'queued', waiting_for = NULL, reason = :reason, wake_us = NULL,
                updated_us = :now
            WHERE no = :run_no AND status = 'waiting' AND owner IS NULL""",
        "count_questions": f"""UPDATE {s}run SET open_questions = (SELECT count(*) FROM {s}question WHERE run_no = :run_no
                AND status = 'open' AND folded_into IS NULL), updated_us = :now WHERE no = :run_no""",
        # What counts as progress between two executions; a take is none, nor is a begin or claim that was there before.
        "run_progress": f"""SELECT (SELECT count(*) FROM {s}step WHERE id BETWEEN :low AND :high)
                + (SELECT count(*) FROM {s}effect WHERE run_no = :run_no)
                + (SELECT count(*) FROM {s}effect WHERE run_no = :run_no AND state IN ('done', 'refused'))
                + (SELECT count(*) FROM {s}question WHERE run_no = :run_no)
                + (SELECT count(*) FROM {s}question WHERE run_no = :run_no AND status <> 'open')
                + (SELECT count(*) FROM (SELECT DISTINCT branch, name, key FROM {s}attempt WHERE run_no = :run_no) AS tried)
                + (SELECT count(*) FROM {s}attempt WHERE run_no = :run_no AND outcome IN ('failed', 'deferred')) AS records""",
        "runs_page": f"""SELECT r.no, r.id AS run_id, r.client_id, r.workflow, r.status, r.waiting_for,
                r.open_questions AS open_questions_count, r.goal, r.updated_us, r.reason, r.owner, r.ended_us
            FROM {s}run AS r WHERE (:client_id IS NULL OR r.client_id = :client_id)
              AND (:workflow IS NULL OR r.workflow = :workflow) AND (:status IS NULL OR r.status = :status)
              AND r.no < :before ORDER BY r.no DESC LIMIT :limit""",
        "spend": f"""SELECT coalesce((SELECT sum(usd) FROM {s}step WHERE id BETWEEN :low AND :high), 0)
                + coalesce((SELECT sum(usd) FROM {s}attempt WHERE run_no = :run_no), 0) AS uusd,
            coalesce((SELECT sum(tokens) FROM {s}step WHERE id BETWEEN :low AND :high), 0)
                + coalesce((SELECT sum(tokens) FROM {s}attempt WHERE run_no = :run_no), 0) AS tokens""",
        "client_spend": f"""SELECT coalesce((SELECT sum(usd) FROM {s}step WHERE ended_us >= :since_us AND (id >> 24) IN
                (SELECT no FROM {s}run WHERE client_id = :client_id AND no <> :run_no
                  AND (ended_us IS NULL OR ended_us >= :since_us))), 0)
            + coalesce((SELECT sum(usd) FROM {s}attempt WHERE started_us >= :since_us AND run_no IN
                (SELECT no FROM {s}run WHERE client_id = :client_id AND no <> :run_no
                  AND (ended_us IS NULL OR ended_us >= :since_us))), 0) AS uusd""",
        "checkpoint": f"SELECT document FROM {s}checkpoint WHERE run_id = :id",
        "run_info": f"""SELECT run_id, client_id, workflow, status, waiting_for, open_questions_count, goal, updated_us
            FROM {s}checkpoint WHERE run_id = :id""",
    }


def _append(s: str, d: Dialect, columns: tuple[str, ...]) -> str:
    return f"""INSERT INTO {s}step ({", ".join(columns)}) SELECT {", ".join([d.mark] * len(columns))}
          FROM {s}run WHERE no = {d.mark} AND fence = {d.mark} AND owner = {d.mark} {d.hold}
        ON CONFLICT DO NOTHING"""


def _step_statements(s: str, d: Dialect) -> dict[str, str]:
    return {
        # Fence and write in one trip. No row back means another owner, or a row already there: read it back once; the
        # same owner's own row (its first answer was lost) is success. Values by position: see ``Record.insert``.
        "append_step": _append(s, d, RECORD_COLUMNS),
        # An untroubled read step leaves seven columns empty, and not naming them saves a quarter of the insert.
        "append_read": _append(s, d, READ_COLUMNS),
        "steps": f"""SELECT id, branch, name, key, generation, state, effect, inputs, args, result, artifact, summary, approach,
                why, usd, tokens, started_us, ended_us
            FROM {s}step WHERE id BETWEEN :low AND :high ORDER BY id""",
        # The one record that changes: a map's count, while the map runs.
        "finish_map": f"""UPDATE {s}step SET state = :state, result = :result, ended_us = :now
            WHERE id = :id AND name = 'run.map'
              AND EXISTS (SELECT 1 FROM {s}run WHERE no = :run_no AND fence = :fence AND owner = :owner)""",
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
                e.claimed_us, e.gate_until_us, e.settled_us
            FROM {s}run AS r LEFT JOIN {s}effect AS e
              ON e.scope = :scope AND e.scope_id = :scope_id AND e.name = :name AND e.key = :key
            WHERE r.no = :run_no AND r.fence = :fence AND r.owner = :owner ORDER BY e.generation DESC LIMIT 1 {d.hold_row}""",
        "effect": f"""SELECT {_EFFECT_COLUMNS} FROM {s}effect WHERE scope = :scope AND scope_id = :scope_id AND name = :name
            AND key = :key ORDER BY generation DESC LIMIT 1""",
        "effect_of_inputs": f"""SELECT {_EFFECT_COLUMNS} FROM {s}effect WHERE scope = :scope AND scope_id = :scope_id
            AND name = :name AND key = :key AND inputs = :inputs AND state = 'done' ORDER BY generation DESC LIMIT 1""",
        "insert_claim": f"""INSERT INTO {s}effect (scope, scope_id, name, key, generation, claim_id, owner, state, inputs,
                inputs_approved, arguments, run_no, branch, step, fence, client_id, claimed_us, gate_until_us)
            VALUES (:scope, :scope_id, :name, :key, :generation, :claim_id, :owner, 'claimed', :inputs, :inputs_approved,
                :arguments, :run_no, :branch, :step, :fence, :client_id, :now, :gate_until_us)""",
        # Another send under the same claim: only from the try that was decided upon. While an earlier send may have happened
        # the time of the first one stays: the other side honours the key from then on.
        "retry_claim": f"""UPDATE {s}effect SET state = 'claimed', tries = tries + 1, owner = :owner, fence = :fence,
                run_no = :run_no, branch = :branch, inputs = :inputs, arguments = :arguments,
                claimed_us = CASE WHEN state = 'refused' THEN :now ELSE claimed_us END,
                gate_until_us = :gate_until_us, settled_us = NULL
            WHERE claim_id = :claim_id AND tries = :tries AND state <> 'done'""",
        "settle_claim": f"""UPDATE {s}effect SET state = 'done', receipt = :receipt, settled_us = :now
            WHERE claim_id = :claim_id AND state <> 'done'""",
        "fill_receipt": f"""UPDATE {s}effect SET receipt = :receipt WHERE claim_id = :claim_id AND state = 'done'
            AND substr(receipt, 1, length(:refused)) = :refused""",
        "mark_claim": f"""UPDATE {s}effect SET state = :state, settled_us = CASE WHEN :state = 'refused' THEN :now END
            WHERE claim_id = :claim_id AND tries = :tries AND state <> 'done'""",
        "lower_gate": f"""UPDATE {s}effect SET gate_until_us = :gate_until_us
            WHERE claim_id = :claim_id AND tries = :tries AND gate_until_us > :gate_until_us""",
        "claim": f"SELECT {_EFFECT_COLUMNS} FROM {s}effect WHERE claim_id = :claim_id",
        "effects": f"SELECT {_EFFECT_COLUMNS} FROM {s}effect WHERE run_no = :run_no ORDER BY claimed_us",
        "unsettled": f"SELECT count(*) AS n FROM {s}effect WHERE run_no = :run_no AND state IN ('claimed', 'unknown')",
    }


def _question_statements(s: str, d: Dialect) -> dict[str, str]:
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
            FROM {s}question AS q JOIN {s}run AS r ON r.no = q.run_no WHERE q.id = :id {d.hold_row}""",
        "questions_of_run": f"SELECT {_QUESTION_COLUMNS} FROM {s}question WHERE run_no = :run_no ORDER BY created_us, id",
        "questions_page": f"""SELECT q.id, q.run_no, q.client_id, q.branch, q.key, q.n, q.step, q.kind, q.text, q.options,
                q.schema, q.recommendation, q.context, q.about, q.asked_seq, q.attempts, q.asked_of, q.remember, q.fallback,
                q.deadline_us, q.folded_into, q.incident_id, q.signature, q.status, q.answer, q.answered_by, q.answered_us,
                q.note, q.created_us, r.id AS run_id, r.status AS run_status
            FROM {s}question AS q JOIN {s}run AS r ON r.no = q.run_no
            WHERE (:status IS NULL OR q.status = :status) AND (:client_id IS NULL OR q.client_id = :client_id)
              AND (:run_id IS NULL OR r.id = :run_id) AND q.folded_into IS NULL
              AND (q.created_us > :after_us OR (q.created_us = :after_us AND q.id > :after_id))
            ORDER BY q.created_us, q.id LIMIT :limit""",
        "open_question_ids": f"""SELECT id FROM {s}question WHERE status = 'open' AND folded_into IS NULL
            ORDER BY created_us DESC LIMIT 20""",
        # One answer ever: only an open question takes it.
        "answer_question": f"""UPDATE {s}question SET status = 'answered', answer = :answer, answered_by = :by, note = :note,
                answered_us = :now WHERE id = :id AND status = 'open'""",
        "answer_folded": f"""UPDATE {s}question SET status = 'answered', answer = :answer, answered_by = :by, note = :note,
                answered_us = :now WHERE folded_into = :id AND status = 'open'""",
        "close_question": f"UPDATE {s}question SET status = :status, answered_us = :now WHERE id = :id AND status = 'open'",
        "close_run_questions": f"""UPDATE {s}question SET status = 'withdrawn', answered_us = :now
            WHERE run_no = :run_no AND status = 'open' AND substr(key, 1, 6) <> 'twice/'""",
        "copy_questions": f"""INSERT INTO {s}question (id, run_no, client_id, branch, key, n, step, kind, text, options, schema,
                recommendation, context, about, asked_seq, attempts, asked_of, status, answer, answered_by, answered_us, note,
                created_us)
            SELECT id || :suffix, :run_no, client_id, branch, key, n, step, kind, text, options, schema, recommendation, context,
                about, asked_seq, attempts, asked_of, status, answer, answered_by, answered_us, note, created_us
              FROM {s}question WHERE run_no = :from_no AND kind = 'ask' AND status = 'answered' AND asked_seq < :asked_seq""",
        # A batch's question tells of every item that was folded into it, until it is answered.
        "retell_question": f"""UPDATE {s}question SET text = :text, options = :options, recommendation = :recommendation,
                context = :context WHERE id = :id AND status = 'open'""",
        "fold_question": f"UPDATE {s}question SET folded_into = :into WHERE id = :id AND status = 'open'",
    }


def _worker_statements(s: str) -> dict[str, str]:
    return {
        "insert_worker": f"""INSERT INTO {s}worker (id, host, boot, pid, started, beat_us, modules)
            VALUES (:id, :host, :boot, :pid, :started, :now, :modules)
            ON CONFLICT (id) DO UPDATE SET beat_us = :now, modules = :modules""",
        "beat": f"UPDATE {s}worker SET beat_us = :now, zombies = :zombies WHERE id = :id",
        "owned_runs": f"SELECT no, fence FROM {s}run WHERE owner = :owner",
        "worker": f"SELECT id, host, boot, pid, started, beat_us, modules, zombies FROM {s}worker WHERE id = :id",
        "workers": f"SELECT id, host, boot, pid, started, beat_us, modules, zombies FROM {s}worker ORDER BY id",
        "drop_worker": f"""DELETE FROM {s}worker WHERE id = :id
            AND NOT EXISTS (SELECT 1 FROM {s}run WHERE owner = :id)
            AND NOT EXISTS (SELECT 1 FROM {s}effect WHERE owner = :id AND state IN ('claimed', 'unknown'))""",
        "insert_artifact": f"""INSERT INTO {s}artifact (hash, size, body, location, created_us)
            VALUES (:hash, :size, :body, :location, :now) ON CONFLICT DO NOTHING""",
        "artifact": f"SELECT hash, size, body, location, created_us FROM {s}artifact WHERE hash = :hash",
        "store": f"SELECT schema_no, epoch, created_us FROM {s}store",
        "sizes": f"""SELECT (SELECT count(*) FROM {s}run) AS runs, (SELECT count(*) FROM {s}step) AS steps,
            (SELECT count(*) FROM {s}question WHERE status = 'open' AND folded_into IS NULL) AS open_questions,
            (SELECT count(*) FROM {s}effect WHERE state IN ('claimed', 'unknown')) AS unsettled,
            (SELECT count(*) FROM {s}client) AS clients""",
    }


def statements(d: Dialect) -> Statements:
    """Write out every statement for one database. Called once, at start-up."""
    s = d.schema
    texts = {
        **_run_statements(s, d),
        **_step_statements(s, d),
        **_effect_statements(s, d),
        **_question_statements(s, d),
        **_worker_statements(s),
    }
    known = {f.name for f in fields(Statements)}
    if known != set(texts):
        raise AssertionError(f"statements without a text, or texts without a name: {sorted(known ^ set(texts))}")
    return Statements(**{name: re.sub(r"(?<!:):([a-z_]+)", d.param, text) for name, text in texts.items()})
