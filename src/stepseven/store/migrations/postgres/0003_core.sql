-- stepseven, schema 3 on PostgreSQL: what the SQLite migrations 0001 to 0003 make, in one file.
--
-- A run (`run`) is one execution of a workflow for one client. What it has found out is kept as records (`step`), one row
-- each, appended and never changed once done: running a step again is a new generation. What went wrong on the way is in
-- `attempt`; what was done outside is in `effect`, claimed before and settled after; what only a person can decide is in
-- `question`. The view `checkpoint` puts all of it into one small JSON document per run. Workers sign in `worker`, and a run
-- is theirs by `run.owner` and `run.fence`.
--
-- Rules that surprise:
-- * `step.id` is run.no * 2^24 + seq: a run is replayed by one range scan, and an insert touches one b-tree. `run_no` and `seq`
--   are computed from it, for people who read the table. Uniqueness of (branch, name, key, generation) follows from the fence.
-- * Every state write names run.owner and run.fence in its WHERE. Only receipts don't: a late receipt is always kept,
--   because it tells what happened outside. A write of a record holds the run's row FOR SHARE until it commits, so that
--   nobody takes the run in between.
-- * An effect is unique by (scope, scope_id, name, key, generation), whoever claims it: that is what makes it happen once.
-- * Payloads are JSON in TEXT (jsonb would change numbers and refuse \u0000), times integer microseconds since 1970 (UTC), money
--   integer micro-USD. `worker.beat_us` alone is of the database's clock.
-- * What names or sorts a row is COLLATE "C": the same order on every server, and the same as in SQLite, whatever the locale.
-- * `client`, `fact`, receipts in `effect` and answered questions outlive their runs' records.
-- * `step.artifact` refers to `artifact`, so a result that somebody has just named cannot be thrown away. Checked at the end of the
--   transaction: the record comes first, because it carries the fence.
-- * A pruned run keeps its summaries and `document`, the checkpoint it had; the view answers with that. A file's row is
--   written before the file, with size 0; the record that names it says its size.
-- * `worker.modules`: what the worker can execute, as JSON {workflow: {"digest": …, "since_us": …}}: the digest of its source, and
--   since when that source is known. Of two live workers the one with the newer source takes the runs.
-- * `run.epoch`: the store's epoch when the run was admitted. After a backup was restored the store's is raised: what an older
--   run has no record of may have been done all the same. `store.restored_us`: when that was last said.
-- * Nobody but the owner has a right to anything here, and nothing is in `public`. Row level security is left off on purpose: under
--   a role that is not the owner it would show empty tables instead of an error, and "no receipt" means "do it". A
--   role for reading needs `GRANT USAGE ON SCHEMA stepseven` and `GRANT SELECT ON ALL TABLES IN SCHEMA stepseven`.
-- * No trigger, function, LISTEN or session state: it works behind a pooler that lends a connection for one transaction.
-- * The schema itself is made before this is run, by whoever may: a role without that right can still own it and fill it.

REVOKE ALL ON SCHEMA stepseven FROM PUBLIC;

CREATE TABLE stepseven.store (
    one           bigint PRIMARY KEY CHECK (one = 1),
    schema_no     bigint NOT NULL,
    epoch         bigint NOT NULL DEFAULT 1,      -- raised after a backup was restored: older writes probe first
    created_us    bigint NOT NULL,
    pruned_us     bigint,                         -- when the daily round of pruning last came to its end
    restored_us   bigint                          -- when it was last said that a backup was restored
);

CREATE TABLE stepseven.client (
    id            text COLLATE "C" PRIMARY KEY,
    status        text COLLATE "C" NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused')),
    created_us    bigint NOT NULL,
    note          text,                           -- who paused the client and why
    forgotten_us  bigint                          -- when all that was known of it was deleted
);

CREATE TABLE stepseven.fact (
    client_id     text COLLATE "C" NOT NULL REFERENCES stepseven.client (id),
    key           text COLLATE "C" NOT NULL,
    version       bigint NOT NULL,
    value         text NOT NULL,
    source        text,
    run_id        text COLLATE "C",
    set_by        text,
    set_us        bigint NOT NULL,
    valid_until_us bigint,
    PRIMARY KEY (client_id, key, version)
);

CREATE TABLE stepseven.run (
    no            bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 549755813887) PRIMARY KEY,  -- 39 bits, beside 24 of `seq`
    id            text COLLATE "C" NOT NULL UNIQUE,
    client_id     text COLLATE "C" NOT NULL REFERENCES stepseven.client (id),
    workflow      text COLLATE "C" NOT NULL,
    external      bigint NOT NULL DEFAULT 0,
    source_digest text,
    status        text COLLATE "C" NOT NULL CHECK (status IN
                  ('queued', 'running', 'waiting', 'cancelling', 'failing', 'done', 'failed', 'cancelled')),
    waiting_for   text CHECK (waiting_for IN ('person', 'timer', 'child', 'effect', 'circuit', 'event')),
    reason        text,                           -- why it is where it is, in plain words
    goal          text,
    inputs        text NOT NULL,
    value         text,
    failure       text,
    limits        text,                           -- ceilings raised by a person, as JSON
    root_no       bigint,
    parent_no     bigint,
    owner         text COLLATE "C",
    fence         bigint NOT NULL DEFAULT 0,
    executions    bigint NOT NULL DEFAULT 0,
    progress      bigint NOT NULL DEFAULT 0,      -- what was on record when it was last taken
    barren        bigint NOT NULL DEFAULT 0,      -- executions in a row that broke off without a new record
    executing_us  bigint NOT NULL DEFAULT 0,
    wake_us       bigint,
    next_step     text,
    remaining     text,
    open_questions bigint NOT NULL DEFAULT 0,
    created_us    bigint NOT NULL,
    updated_us    bigint NOT NULL,
    ended_us      bigint,
    pruned_us     bigint,
    document      text,
    epoch         bigint NOT NULL DEFAULT 1
) WITH (
    -- A run's row is written at every take, park and end, and each time some of its indexes with it: room on its page for the
    -- next version, and a vacuum long before a fifth of a large table is dead.
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05
);
CREATE INDEX run_client ON stepseven.run (client_id, workflow, no);
CREATE INDEX run_status ON stepseven.run (status, no) WHERE status NOT IN ('done', 'cancelled');
CREATE INDEX run_wake ON stepseven.run (wake_us) WHERE wake_us IS NOT NULL;
CREATE INDEX run_owner ON stepseven.run (owner) WHERE owner IS NOT NULL;
CREATE INDEX run_parent ON stepseven.run (parent_no) WHERE parent_no IS NOT NULL;
CREATE INDEX run_root ON stepseven.run (root_no) WHERE root_no IS NOT NULL;
CREATE INDEX run_ended ON stepseven.run (ended_us) WHERE ended_us IS NOT NULL AND pruned_us IS NULL;
CREATE INDEX run_unended ON stepseven.run (client_id, workflow, no) WHERE ended_us IS NULL;
CREATE INDEX run_queued ON stepseven.run (no) WHERE status = 'queued';
CREATE INDEX run_stopping ON stepseven.run (no) WHERE status = 'cancelling' OR status = 'failing';

CREATE TABLE stepseven.artifact (
    hash          text COLLATE "C" PRIMARY KEY,
    size          bigint NOT NULL,
    body          text,                           -- NULL when it is in the artifact store
    location      text,
    created_us    bigint NOT NULL
);

CREATE TABLE stepseven.step (                     -- numbers first: nothing is lost to alignment
    id            bigint PRIMARY KEY,
    run_no        bigint GENERATED ALWAYS AS (id >> 24) STORED,
    seq           integer GENERATED ALWAYS AS (id & 16777215) STORED,
    generation    integer NOT NULL,
    started_us    bigint NOT NULL,
    ended_us      bigint,
    usd           bigint,
    tokens        bigint,
    branch        text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    state         text COLLATE "C" NOT NULL CHECK (state IN ('done', 'begun', 'failed', 'skipped')),
    effect        text,                           -- NULL = read
    inputs        text,                           -- digest; NULL where the key is the digest
    args          text,                           -- digest per argument: tells which one changed
    result        text,
    artifact      text COLLATE "C" REFERENCES stepseven.artifact (hash) DEFERRABLE INITIALLY DEFERRED,
    summary       text,
    approach      text,                           -- NULL = as written
    why           text,                           -- why it ran again, or who gave the value
    facts         text                            -- facts its code read while it ran, as JSON {key: version}
);
CREATE INDEX step_artifact ON stepseven.step (artifact) WHERE artifact IS NOT NULL;

CREATE TABLE stepseven.attempt (
    run_no        bigint NOT NULL,
    branch        text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    n             bigint NOT NULL,
    approach      text,
    outcome       text CHECK (outcome IN ('failed', 'deferred', 'interrupted', 'unknown')),  -- NULL = begun
    kind          text COLLATE "C" CHECK (kind IN ('retryable', 'fixable', 'fatal')),
    reason        text,
    trace         text,
    signature     text COLLATE "C",
    resource      text COLLATE "C",
    inputs        text,
    source_digest text,
    identical     bigint NOT NULL DEFAULT 0,      -- attempt 2 ran the same code and never looked at attempt()
    usd           bigint,
    tokens        bigint,
    started_us    bigint NOT NULL,
    ended_us      bigint,
    PRIMARY KEY (run_no, branch, name, key, n)
);

CREATE TABLE stepseven.effect (
    scope         text COLLATE "C" NOT NULL CHECK (scope IN ('run', 'client')),
    scope_id      text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    generation    bigint NOT NULL,
    claim_id      text COLLATE "C" NOT NULL UNIQUE,
    tries         bigint NOT NULL DEFAULT 1,
    owner         text COLLATE "C",
    state         text COLLATE "C" NOT NULL CHECK (state IN ('claimed', 'done', 'refused', 'unknown')),
    inputs        text NOT NULL,
    inputs_approved text,
    arguments     text,                           -- as shown to the person who has to decide
    receipt       text,
    run_no        bigint NOT NULL,
    branch        text COLLATE "C" NOT NULL DEFAULT '',
    step          text COLLATE "C" NOT NULL,
    fence         bigint NOT NULL,
    client_id     text COLLATE "C" NOT NULL,
    claimed_us    bigint NOT NULL,
    gate_until_us bigint NOT NULL,
    settled_us    bigint,
    undo_module   text,                           -- where the code is that can take it back; NULL: nothing can
    undo_no       bigint,                         -- the run that takes it back
    undone_us     bigint,                         -- when it had
    arrival       bigint GENERATED ALWAYS AS IDENTITY,  -- which of two claims of one microsecond came first
    UNIQUE (scope, scope_id, name, key, generation)
) WITH (fillfactor = 85);                         -- a claim is settled once, without touching an index
CREATE INDEX effect_run ON stepseven.effect (run_no);
CREATE INDEX effect_undo ON stepseven.effect (undo_no) WHERE undo_no IS NOT NULL;

CREATE TABLE stepseven.question (
    id            text COLLATE "C" PRIMARY KEY,
    run_no        bigint NOT NULL,
    client_id     text COLLATE "C" NOT NULL,
    branch        text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    n             bigint NOT NULL,
    step          text COLLATE "C",
    kind          text COLLATE "C" NOT NULL CHECK (kind IN ('ask', 'required', 'failure', 'batch', 'poison', 'unknown_outcome',
                  'conflict', 'approve', 'undo', 'limit', 'drift', 'code')),
    text          text NOT NULL,
    options       text NOT NULL,
    schema        text,
    recommendation text,
    context       text NOT NULL,
    about         text,
    asked_seq     bigint NOT NULL,                -- how many records the run had: what came before the question
    attempts      bigint NOT NULL DEFAULT 0,      -- tries made when it was asked
    asked_of      text,
    remember      text,
    fallback      text,                           -- the declared default, as JSON
    deadline_us   bigint,
    folded_into   text COLLATE "C",
    incident_id   text COLLATE "C",
    signature     text COLLATE "C",
    status        text COLLATE "C" NOT NULL CHECK (status IN ('open', 'answered', 'expired', 'withdrawn')),
    answer        text,
    answered_by   text,
    answered_us   bigint,
    note          text,
    created_us    bigint NOT NULL,
    UNIQUE (run_no, branch, kind, key, n)
);
CREATE INDEX question_open ON stepseven.question (status, created_us) WHERE status = 'open';
CREATE INDEX question_client ON stepseven.question (client_id, created_us);

CREATE TABLE stepseven.worker (
    id            text COLLATE "C" PRIMARY KEY,
    host          text NOT NULL,
    boot          text NOT NULL,
    pid           bigint NOT NULL,
    started       text NOT NULL,                  -- the process's start, as the kernel tells it: a pid alone is reused
    beat_us       bigint NOT NULL,
    modules       text,
    zombies       bigint NOT NULL DEFAULT 0       -- threads of timed-out steps that still run
) WITH (
    -- A few rows, each written every few seconds for ever, never an indexed column: they stay on their page.
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200
);

CREATE TABLE stepseven.event (
    run_no        bigint NOT NULL,
    seq           bigint NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    body          text,
    at_us         bigint NOT NULL,
    PRIMARY KEY (run_no, seq)
);

CREATE TABLE stepseven.wait (
    run_no        bigint NOT NULL,
    branch        text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL CHECK (kind IN ('person', 'timer', 'child', 'effect', 'circuit', 'event')),
    key           text COLLATE "C" NOT NULL,
    until_us      bigint,
    body          text,
    created_us    bigint NOT NULL,
    PRIMARY KEY (run_no, branch, kind, key)
);
CREATE INDEX wait_key ON stepseven.wait (kind, key);

CREATE TABLE stepseven.recovery (
    id            text COLLATE "C" PRIMARY KEY,
    run_no        bigint NOT NULL,
    plan          text NOT NULL,
    chosen        text,
    by            text,
    result        text,
    created_us    bigint NOT NULL,
    ended_us      bigint
);
CREATE INDEX recovery_run ON stepseven.recovery (run_no);

CREATE TABLE stepseven.person (
    id            text COLLATE "C" PRIMARY KEY,
    name          text COLLATE "C" NOT NULL,
    channels      text NOT NULL,
    hours         text,
    zone          text NOT NULL DEFAULT 'UTC',
    created_us    bigint NOT NULL
);

CREATE TABLE stepseven.incident (
    id            text COLLATE "C" PRIMARY KEY,
    kind          text COLLATE "C" NOT NULL,
    signature     text COLLATE "C" NOT NULL,
    resource      text COLLATE "C",
    text          text NOT NULL,
    status        text COLLATE "C" NOT NULL CHECK (status IN ('open', 'closed')),
    created_us    bigint NOT NULL,
    closed_us     bigint
);
CREATE UNIQUE INDEX incident_open ON stepseven.incident (kind, signature) WHERE status = 'open';

CREATE TABLE stepseven.delivery (
    id            text COLLATE "C" PRIMARY KEY,
    question_id   text COLLATE "C",
    run_no        bigint,
    person_id     text COLLATE "C",
    channel       text,
    purpose       text NOT NULL,
    state         text COLLATE "C" NOT NULL CHECK (state IN ('pending', 'delivered', 'failed', 'dead')),
    tries         bigint NOT NULL DEFAULT 0,
    next_us       bigint,
    reason        text,
    created_us    bigint NOT NULL,
    delivered_us  bigint
);
CREATE INDEX delivery_next ON stepseven.delivery (next_us) WHERE state = 'pending';

CREATE TABLE stepseven.rule (
    id            text COLLATE "C" PRIMARY KEY,
    scope         text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    signature     text COLLATE "C",
    answer        text NOT NULL,
    ceiling       text,
    by            text NOT NULL,
    uses          bigint NOT NULL DEFAULT 0,
    expires_us    bigint,
    revoked_us    bigint,
    created_us    bigint NOT NULL
);

CREATE TABLE stepseven.memory (
    namespace     text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    value         text NOT NULL,
    created_us    bigint NOT NULL,
    updated_us    bigint NOT NULL,
    expires_us    bigint,
    PRIMARY KEY (namespace, key)
);

CREATE TABLE stepseven.schedule (
    id            text COLLATE "C" PRIMARY KEY,
    workflow      text COLLATE "C" NOT NULL,
    clients       text NOT NULL,
    cron          text NOT NULL,
    zone          text NOT NULL,
    catch_up      text NOT NULL DEFAULT 'latest' CHECK (catch_up IN ('skip', 'latest', 'all')),
    inputs        text NOT NULL,
    next_us       bigint,
    paused        bigint NOT NULL DEFAULT 0,
    created_us    bigint NOT NULL
);

CREATE TABLE stepseven.occurrence (
    schedule_id   text COLLATE "C" NOT NULL,
    client_id     text COLLATE "C" NOT NULL,
    slot_us       bigint NOT NULL,
    run_id        text COLLATE "C",
    skipped       text,
    created_us    bigint NOT NULL,
    PRIMARY KEY (schedule_id, client_id, slot_us)
);

CREATE TABLE stepseven.resource (
    name          text COLLATE "C" PRIMARY KEY,
    state         text COLLATE "C" NOT NULL CHECK (state IN ('closed', 'open', 'trial')),
    failures      text NOT NULL,
    trial_run_no  bigint,
    opened_us     bigint,
    next_us       bigint
);

CREATE TABLE stepseven.budget (
    client_id     text COLLATE "C" NOT NULL,
    day           text COLLATE "C" NOT NULL,
    usd           bigint NOT NULL DEFAULT 0,
    tokens        bigint NOT NULL DEFAULT 0,
    runs          bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (client_id, day)
);

CREATE TABLE stepseven.token (
    id            text COLLATE "C" PRIMARY KEY,
    hash          text COLLATE "C" NOT NULL UNIQUE,
    scopes        text NOT NULL,
    clients       text NOT NULL,
    created_us    bigint NOT NULL,
    revoked_us    bigint
);

CREATE TABLE stepseven.session (
    id            text COLLATE "C" PRIMARY KEY,
    hash          text COLLATE "C" NOT NULL UNIQUE,
    person_id     text COLLATE "C",
    scopes        text NOT NULL,
    clients       text NOT NULL,
    created_us    bigint NOT NULL,
    expires_us    bigint NOT NULL
);

-- The checkpoint: all that is known of a run, at most 64 KiB, cut with marks ("…"). Only selecting `document` costs anything.
-- Its text is put together by hand, so that it is the text SQLite makes: `to_json(text)` quotes as `json_quote` does, and stored
-- JSON is taken in as it stands, without being read, because a \u0000 in it could be read by nothing here.
CREATE VIEW stepseven.checkpoint WITH (security_invoker = true) AS
SELECT run.id AS run_id, run.client_id, run.workflow, run.status, run.waiting_for,
       run.open_questions AS open_questions_count, run.goal, run.updated_us,
       CAST(CASE WHEN run.document IS NOT NULL AND run.open_questions = 0 THEN run.document ELSE
       (WITH
        mine AS MATERIALIZED (
            SELECT id, branch, name, key, generation, state, result, artifact, summary, started_us, usd, tokens
              FROM stepseven.step WHERE step.id BETWEEN run.no << 24 AND (run.no << 24) + 16777215
        ), map AS (  -- maps of the run itself; a map within an item counts with its item
            SELECT key, CAST(CAST(result AS json) ->> 'of' AS bigint) AS items
              FROM mine WHERE name = 'run.map' AND branch = ''
        ), latest AS (  -- the newest generation of each record, and the item it lies in: the first part of its branch
            SELECT DISTINCT ON (branch, name, key) id, name, state,
                   CASE WHEN strpos(branch, ']') > 0 THEN substr(branch, 1, strpos(branch, ']')) ELSE '' END AS item
              FROM mine WHERE substr(name, 1, 4) <> 'run.' AND substr(name, 1, 7) <> 'client.'
             ORDER BY branch, name, key, generation DESC
        ), per_item AS (  -- an item is finished with a step when all its records of that name are
            SELECT name, item, split_part(item, '[', 1) AS base, min(id) AS first_id, max(id) AS last_id,
                   CAST(bool_and(state IN ('done', 'skipped')) AS int) AS finished, CAST(bool_and(state = 'done') AS int) AS done,
                   count(*) AS records
              FROM latest GROUP BY name, item
        ), in_maps AS (
            SELECT b.name, sum(map.items) AS items
              FROM (SELECT DISTINCT name, base FROM per_item WHERE item <> '') AS b JOIN map ON map.key = b.base GROUP BY b.name
        ), asked AS (
            SELECT * FROM stepseven.question WHERE run_no = run.no
        ), named AS (  -- `items`: only when all of its records lie in maps
            SELECT name, min(first_id) AS first_id, max(last_id) AS last_id, sum(finished) AS finished, sum(done) AS done,
                   count(*) AS seen, max(records) AS records,
                   CASE WHEN bool_and(item <> '')
                        THEN (SELECT items FROM in_maps WHERE in_maps.name = per_item.name) END AS items
              FROM per_item GROUP BY name ORDER BY first_id LIMIT 60
        ), cut AS (
            SELECT (SELECT count(DISTINCT name) FROM per_item) > 60 AS names,
                   (SELECT count(*) FROM (SELECT DISTINCT branch, name, key FROM stepseven.attempt
                     WHERE run_no = run.no AND outcome IN ('failed', 'unknown')) AS f) > 20 AS failures,
                   (SELECT count(*) FROM asked WHERE status = 'open' AND folded_into IS NULL) > 20 AS questions,
                   (SELECT count(*) FROM asked WHERE status = 'answered' AND folded_into IS NULL) > 30 AS decisions,
                   (SELECT count(DISTINCT key) FROM stepseven.fact
                     WHERE client_id = run.client_id AND run_id = run.id) > 40 AS facts
        ), tried AS (
            SELECT branch, name, key, max(n) AS n,
                   string_agg(CAST(to_json(coalesce(approach, 'as written')) AS text), ',' ORDER BY n) AS approaches,
                   max(started_us) AS at_us
              FROM stepseven.attempt WHERE run_no = run.no AND outcome IN ('failed', 'unknown')
             GROUP BY branch, name, key ORDER BY at_us DESC, branch, name, key LIMIT 20
        ), known AS (  -- what the run found out about its client: set by it, or remembered from an answer
            SELECT DISTINCT ON (key) key, concat('{"value":',
                       CASE WHEN length(value) <= 300 THEN value ELSE CAST(to_json(substr(value, 1, 200) || '…') AS text) END,
                       ',"version":', version, '}') AS value
              FROM stepseven.fact WHERE client_id = run.client_id AND run_id = run.id ORDER BY key, version DESC LIMIT 40
        ), whole AS (
            SELECT concat(
                '{"run_id":', to_json(run.id), ',"client_id":', to_json(run.client_id), ',"workflow":', to_json(run.workflow),
                ',"goal":', coalesce(to_json(substr(run.goal, 1, 1000)), 'null'), ',"status":', to_json(run.status),
                ',"inputs":', CASE WHEN length(run.inputs) <= 4000 THEN run.inputs
                                   ELSE concat('{"…":', to_json(substr(run.inputs, 1, 2000) || '…'), '}') END,
                ',"facts":{', (SELECT string_agg(concat(to_json(key), ':', value), ',' ORDER BY part, at, key) FROM (
                    SELECT part, at, key, value FROM (
                        SELECT 1 AS part, 0 AS at, key, value FROM known
                        UNION ALL
                        SELECT 2, id, key, CASE WHEN length(result) <= 400 THEN result
                                          ELSE concat('{"value":', to_json(substr(result, 1, 200) || '…'), '}') END
                          FROM mine WHERE name = 'client.get' AND branch = '' AND result <> 'null'
                           AND key NOT IN (SELECT key FROM known)
                         ORDER BY part, at, key LIMIT 40) AS first
                    UNION ALL SELECT 3, 0, '…', '"cut"' FROM cut WHERE facts) AS all_of_them),
                '},"steps_complete":[', (SELECT string_agg(CAST(to_json(name) AS text), ',' ORDER BY first_id) FROM (
                    SELECT name, first_id FROM named WHERE finished >= coalesce(items, seen)
                       AND NOT EXISTS (SELECT 1 FROM asked WHERE asked.step = named.name AND status = 'open')
                       AND (SELECT started_us FROM mine WHERE mine.id = last_id) >= coalesce((
                           SELECT max(started_us) FROM stepseven.attempt
                            WHERE attempt.run_no = run.no AND attempt.name = named.name), 0)
                    UNION ALL SELECT '…', NULL FROM cut WHERE names) AS complete),
                '],"artifacts":{', (SELECT string_agg(concat(to_json(name), ':', value), ',' ORDER BY first_id) FROM (
                    SELECT named.name, named.first_id, CASE WHEN items IS NOT NULL THEN
                        concat('{"done":', done, ',"of":', items, ',"latest":', told, '}')
                      WHEN seen > 1 OR records > 1 THEN concat('{"done":', done, ',"latest":', told, '}')
                      ELSE concat('{"summary":', told, ',"ref":', coalesce(to_json(artifact), 'null'), '}') END AS value
                      FROM named JOIN (SELECT id, artifact, coalesce(to_json(coalesce(
                               substr(summary, 1, 200), substr(result, 1, 120))), 'null') AS told FROM mine) AS last
                        ON last.id = named.last_id
                    UNION ALL SELECT '…', NULL, '"cut"' FROM cut WHERE names) AS kept),
                '},"failures":[', (SELECT string_agg(value, ',' ORDER BY at_us, branch, name, key) FROM (
                    SELECT at_us, a.branch, a.name, a.key, concat('{"step":', to_json(tried.name), ',"kind":',
                           coalesce(to_json(a.kind), 'null'), ',"reason":', coalesce(to_json(substr(a.reason, 1, 300)), 'null'),
                           ',"approaches":[', tried.approaches, ']}') AS value
                      FROM tried JOIN stepseven.attempt AS a ON a.run_no = run.no AND a.branch = tried.branch
                       AND a.name = tried.name AND a.key = tried.key AND a.n = tried.n
                    UNION ALL SELECT NULL, NULL, NULL, NULL, '"…"' FROM cut WHERE failures) AS failed),
                '],"open_questions":[', (SELECT string_agg(value, ',' ORDER BY created_us, branch, kind, key, n) FROM (
                    SELECT created_us, branch, kind, key, n, value FROM (
                        SELECT created_us, branch, kind, key, n,
                               concat('{"id":', to_json(id), ',"text":', to_json(substr(text, 1, 400)), '}') AS value
                          FROM asked WHERE status = 'open' AND folded_into IS NULL
                         ORDER BY created_us, branch, kind, key, n LIMIT 20) AS first
                    UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, '"…"' FROM cut WHERE questions) AS open),
                '],"decisions":[', (SELECT string_agg(value, ',' ORDER BY back, branch, kind, key, n) FROM (
                    SELECT back, branch, kind, key, n, value FROM (
                        SELECT -answered_us AS back, branch, kind, key, n, concat('{"text":', to_json(substr(text, 1, 200)),
                               ',"answer":', CASE WHEN length(answer) <= 300 THEN answer WHEN answer IS NULL THEN 'null'
                                                  ELSE CAST(to_json(substr(answer, 1, 200) || '…') AS text) END,
                               ',"by":', coalesce(to_json(answered_by), 'null'), '}') AS value
                          FROM asked WHERE status = 'answered' AND folded_into IS NULL
                         ORDER BY back, branch, kind, key, n LIMIT 30) AS first
                    UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, '"…"' FROM cut WHERE decisions) AS decided),
                '],"next_step":', coalesce(to_json(run.next_step), 'null'),
                ',"remaining":', coalesce(run.remaining, '[]')) AS begin,
                concat('{"usd":', usd, CASE WHEN scale(usd) = 0 THEN '.0' END, ',"tokens":', tokens, '}') AS spend
              FROM (SELECT trim_scale(((SELECT coalesce(sum(usd), 0) FROM mine)
                        + (SELECT coalesce(sum(usd), 0) FROM stepseven.attempt WHERE run_no = run.no)) / 1e6) AS usd,
                    (SELECT coalesce(sum(tokens), 0) FROM mine)
                        + (SELECT coalesce(sum(tokens), 0) FROM stepseven.attempt WHERE run_no = run.no) AS tokens) AS spent
        )
        SELECT CASE WHEN octet_length(begin) + octet_length(spend) + 10 <= 65536 THEN concat(begin, ',"spend":', spend, '}')
          ELSE concat(
            '{"run_id":', to_json(run.id), ',"client_id":', to_json(run.client_id), ',"workflow":', to_json(run.workflow),
            ',"status":', to_json(run.status), ',"goal":', coalesce(to_json(substr(run.goal, 1, 200)), 'null'),
            ',"inputs":{"…":"cut"},"facts":{"…":"cut"},"steps_complete":[', (
                SELECT string_agg(CAST(to_json(substr(name, 1, 60)) AS text), ',' ORDER BY first_id)
                  FROM named WHERE finished >= coalesce(items, seen)),
            '],"artifacts":{"…":"cut"},"failures":["…"],"open_questions":[', (
                SELECT string_agg(concat('{"id":', to_json(id), ',"text":', to_json(text), '}'), ','
                                  ORDER BY created_us, branch, kind, key, n) FROM (
                    SELECT id, substr(text, 1, 200) AS text, created_us, branch, kind, key, n FROM asked
                     WHERE status = 'open' AND folded_into IS NULL ORDER BY created_us, branch, kind, key, n LIMIT 5) AS first),
            '],"decisions":["…"],"next_step":', coalesce(to_json(run.next_step), 'null'),
            ',"remaining":["…"],"spend":', spend, '}')
          END
          FROM whole) END AS json) AS document
  FROM stepseven.run;
