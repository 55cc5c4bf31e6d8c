-- stepseven, schema 1.
--
-- A run (`run`) is one execution of a workflow for one client. What it has found out is kept as records (`step`), one row
-- each, appended and never changed once done: running a step again is a new generation. What went wrong on the way is in
-- `attempt`; what was done outside is in `effect`, claimed before and settled after; what only a person can decide is in
-- `question`. The view `checkpoint` puts all of it into one small JSON document per run.
--
-- Rules that surprise:
-- * `step.id` is run.no * 2^24 + seq. The rowid is the only index: a run is replayed by one range scan, and an insert
--   touches one b-tree. Uniqueness of (branch, name, key, generation) follows from the fence: one writer per run.
-- * Every state write names run.owner and run.fence in its WHERE. Only receipts don't: a late receipt is always kept,
--   because it tells what happened outside.
-- * An effect is unique by (scope, scope_id, name, key, generation), whoever claims it: that is what makes it happen once.
-- * Payloads are JSON in TEXT, times integer microseconds since 1970 (UTC), money integer micro-USD.
-- * `client`, `fact`, receipts in `effect` and answered questions outlive their runs' records.

CREATE TABLE store (
    one           INTEGER PRIMARY KEY CHECK (one = 1),
    schema_no     INTEGER NOT NULL,
    epoch         INTEGER NOT NULL DEFAULT 1,     -- raised after a backup was restored: older writes probe first
    created_us    INTEGER NOT NULL
);

CREATE TABLE client (
    id            TEXT PRIMARY KEY,
    status        TEXT NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused')),
    created_us    INTEGER NOT NULL
);

CREATE TABLE fact (
    client_id     TEXT NOT NULL REFERENCES client (id),
    key           TEXT NOT NULL,
    version       INTEGER NOT NULL,
    value         TEXT NOT NULL,
    source        TEXT,
    run_id        TEXT,
    set_by        TEXT,
    set_us        INTEGER NOT NULL,
    valid_until_us INTEGER,
    PRIMARY KEY (client_id, key, version)
);

CREATE TABLE run (
    no            INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT NOT NULL UNIQUE,
    client_id     TEXT NOT NULL REFERENCES client (id),
    workflow      TEXT NOT NULL,
    external      INTEGER NOT NULL DEFAULT 0,
    source_digest TEXT,
    status        TEXT NOT NULL CHECK (status IN
                  ('queued', 'running', 'waiting', 'cancelling', 'failing', 'done', 'failed', 'cancelled')),
    waiting_for   TEXT CHECK (waiting_for IN ('person', 'timer', 'child', 'effect', 'circuit', 'event')),
    reason        TEXT,                           -- why it is where it is, in plain words
    goal          TEXT,
    inputs        TEXT NOT NULL,
    value         TEXT,
    failure       TEXT,
    limits        TEXT,                           -- ceilings raised by a person, as JSON
    root_no       INTEGER,
    parent_no     INTEGER,
    owner         TEXT,
    fence         INTEGER NOT NULL DEFAULT 0,
    executions    INTEGER NOT NULL DEFAULT 0,
    progress      INTEGER NOT NULL DEFAULT 0,     -- what was on record when it was last taken
    barren        INTEGER NOT NULL DEFAULT 0,     -- executions in a row that broke off without a new record
    executing_us  INTEGER NOT NULL DEFAULT 0,
    wake_us       INTEGER,
    next_step     TEXT,
    remaining     TEXT,
    open_questions INTEGER NOT NULL DEFAULT 0,
    created_us    INTEGER NOT NULL,
    updated_us    INTEGER NOT NULL,
    ended_us      INTEGER
);
CREATE INDEX run_client ON run (client_id, workflow, no);
CREATE INDEX run_status ON run (status, no) WHERE status NOT IN ('done', 'cancelled');
CREATE INDEX run_wake ON run (wake_us) WHERE wake_us IS NOT NULL;
CREATE INDEX run_owner ON run (owner) WHERE owner IS NOT NULL;
CREATE INDEX run_parent ON run (parent_no) WHERE parent_no IS NOT NULL;

CREATE TABLE step (
    id            INTEGER PRIMARY KEY,
    run_no        INTEGER GENERATED ALWAYS AS (id >> 24) VIRTUAL,
    seq           INTEGER GENERATED ALWAYS AS (id & 16777215) VIRTUAL,
    branch        TEXT NOT NULL,
    name          TEXT NOT NULL,
    key           TEXT NOT NULL,
    generation    INTEGER NOT NULL,
    -- Not IN (…): SQLite builds a throw-away table for a list of three or more, at every insert.
    state         TEXT NOT NULL CHECK (state = 'done' OR state = 'begun' OR state = 'failed' OR state = 'skipped'),
    effect        TEXT,                           -- NULL = read
    inputs        TEXT,                           -- digest; NULL where the key is the digest
    args          TEXT,                           -- digest per argument: tells which one changed
    result        TEXT,
    artifact      TEXT,                           -- hash, when the result is kept in table `artifact`
    summary       TEXT,
    approach      TEXT,                           -- NULL = as written
    why           TEXT,                           -- why it ran again, or who gave the value
    usd           INTEGER,
    tokens        INTEGER,
    started_us    INTEGER NOT NULL,
    ended_us      INTEGER
);

CREATE TABLE attempt (
    run_no        INTEGER NOT NULL,
    branch        TEXT NOT NULL,
    name          TEXT NOT NULL,
    key           TEXT NOT NULL,
    n             INTEGER NOT NULL,
    approach      TEXT,
    outcome       TEXT CHECK (outcome IN ('failed', 'deferred', 'interrupted', 'unknown')),  -- NULL = begun
    kind          TEXT CHECK (kind IN ('retryable', 'fixable', 'fatal')),
    reason        TEXT,
    trace         TEXT,
    signature     TEXT,
    resource      TEXT,
    inputs        TEXT,
    source_digest TEXT,
    identical     INTEGER NOT NULL DEFAULT 0,     -- attempt 2 ran the same code and never looked at attempt()
    usd           INTEGER,
    tokens        INTEGER,
    started_us    INTEGER NOT NULL,
    ended_us      INTEGER,
    PRIMARY KEY (run_no, branch, name, key, n)
);

CREATE TABLE effect (
    scope         TEXT NOT NULL CHECK (scope IN ('run', 'client')),
    scope_id      TEXT NOT NULL,
    name          TEXT NOT NULL,
    key           TEXT NOT NULL,
    generation    INTEGER NOT NULL,
    claim_id      TEXT NOT NULL UNIQUE,
    tries         INTEGER NOT NULL DEFAULT 1,
    owner         TEXT,
    state         TEXT NOT NULL CHECK (state = 'claimed' OR state = 'done' OR state = 'refused' OR state = 'unknown'),
    inputs        TEXT NOT NULL,
    inputs_approved TEXT,
    arguments     TEXT,                           -- as shown to the person who has to decide
    receipt       TEXT,
    run_no        INTEGER NOT NULL,
    branch        TEXT NOT NULL DEFAULT '',
    step          TEXT NOT NULL,
    fence         INTEGER NOT NULL,
    client_id     TEXT NOT NULL,
    claimed_us    INTEGER NOT NULL,
    gate_until_us INTEGER NOT NULL,
    settled_us    INTEGER,
    UNIQUE (scope, scope_id, name, key, generation)
);
CREATE INDEX effect_run ON effect (run_no);

CREATE TABLE question (
    id            TEXT PRIMARY KEY,
    run_no        INTEGER NOT NULL,
    client_id     TEXT NOT NULL,
    branch        TEXT NOT NULL,
    key           TEXT NOT NULL,
    n             INTEGER NOT NULL,
    step          TEXT,
    kind          TEXT NOT NULL CHECK (kind IN ('ask', 'required', 'failure', 'batch', 'poison', 'unknown_outcome',
                  'conflict', 'approve', 'undo', 'limit', 'drift', 'code')),
    text          TEXT NOT NULL,
    options       TEXT NOT NULL,
    schema        TEXT,
    recommendation TEXT,
    context       TEXT NOT NULL,
    about         TEXT,
    asked_seq     INTEGER NOT NULL,               -- how many records the run had: what came before the question
    attempts      INTEGER NOT NULL DEFAULT 0,     -- tries made when it was asked
    asked_of      TEXT,
    remember      TEXT,
    fallback      TEXT,                           -- the declared default, as JSON
    deadline_us   INTEGER,
    folded_into   TEXT,
    incident_id   TEXT,
    signature     TEXT,
    status        TEXT NOT NULL CHECK (status IN ('open', 'answered', 'expired', 'withdrawn')),
    answer        TEXT,
    answered_by   TEXT,
    answered_us   INTEGER,
    note          TEXT,
    created_us    INTEGER NOT NULL,
    UNIQUE (run_no, branch, kind, key, n)
);
CREATE INDEX question_open ON question (status, created_us) WHERE status = 'open';
CREATE INDEX question_client ON question (client_id, created_us);

CREATE TABLE worker (
    id            TEXT PRIMARY KEY,
    host          TEXT NOT NULL,
    boot          TEXT NOT NULL,
    pid           INTEGER NOT NULL,
    started       TEXT NOT NULL,                  -- the process's start, as the kernel tells it: a pid alone is reused
    beat_us       INTEGER NOT NULL,
    modules       TEXT,
    zombies       INTEGER NOT NULL DEFAULT 0      -- threads of timed-out steps that still run
);

CREATE TABLE artifact (
    hash          TEXT PRIMARY KEY,
    size          INTEGER NOT NULL,
    body          TEXT,                           -- NULL when it is in the artifact store
    location      TEXT,
    created_us    INTEGER NOT NULL
);

CREATE TABLE event (
    run_no        INTEGER NOT NULL,
    seq           INTEGER NOT NULL,
    kind          TEXT NOT NULL,
    body          TEXT,
    at_us         INTEGER NOT NULL,
    PRIMARY KEY (run_no, seq)
);

CREATE TABLE wait (
    run_no        INTEGER NOT NULL,
    branch        TEXT NOT NULL,
    kind          TEXT NOT NULL CHECK (kind IN ('person', 'timer', 'child', 'effect', 'circuit', 'event')),
    key           TEXT NOT NULL,
    until_us      INTEGER,
    body          TEXT,
    created_us    INTEGER NOT NULL,
    PRIMARY KEY (run_no, branch, kind, key)
);
CREATE INDEX wait_key ON wait (kind, key);

CREATE TABLE recovery (
    id            TEXT PRIMARY KEY,
    run_no        INTEGER NOT NULL,
    plan          TEXT NOT NULL,
    chosen        TEXT,
    by            TEXT,
    result        TEXT,
    created_us    INTEGER NOT NULL,
    ended_us      INTEGER
);
CREATE INDEX recovery_run ON recovery (run_no);

CREATE TABLE person (
    id            TEXT PRIMARY KEY,
    name          TEXT NOT NULL,
    channels      TEXT NOT NULL,
    hours         TEXT,
    zone          TEXT NOT NULL DEFAULT 'UTC',
    created_us    INTEGER NOT NULL
);

CREATE TABLE incident (
    id            TEXT PRIMARY KEY,
    kind          TEXT NOT NULL,
    signature     TEXT NOT NULL,
    resource      TEXT,
    text          TEXT NOT NULL,
    status        TEXT NOT NULL CHECK (status IN ('open', 'closed')),
    created_us    INTEGER NOT NULL,
    closed_us     INTEGER
);
CREATE UNIQUE INDEX incident_open ON incident (kind, signature) WHERE status = 'open';

CREATE TABLE delivery (
    id            TEXT PRIMARY KEY,
    question_id   TEXT,
    run_no        INTEGER,
    person_id     TEXT,
    channel       TEXT,
    purpose       TEXT NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('pending', 'delivered', 'failed', 'dead')),
    tries         INTEGER NOT NULL DEFAULT 0,
    next_us       INTEGER,
    reason        TEXT,
    created_us    INTEGER NOT NULL,
    delivered_us  INTEGER
);
CREATE INDEX delivery_next ON delivery (next_us) WHERE state = 'pending';

CREATE TABLE rule (
    id            TEXT PRIMARY KEY,
    scope         TEXT NOT NULL,
    kind          TEXT NOT NULL,
    signature     TEXT,
    answer        TEXT NOT NULL,
    ceiling       TEXT,
    by            TEXT NOT NULL,
    uses          INTEGER NOT NULL DEFAULT 0,
    expires_us    INTEGER,
    revoked_us    INTEGER,
    created_us    INTEGER NOT NULL
);

CREATE TABLE memory (
    namespace     TEXT NOT NULL,
    key           TEXT NOT NULL,
    value         TEXT NOT NULL,
    created_us    INTEGER NOT NULL,
    updated_us    INTEGER NOT NULL,
    expires_us    INTEGER,
    PRIMARY KEY (namespace, key)
);

CREATE TABLE schedule (
    id            TEXT PRIMARY KEY,
    workflow      TEXT NOT NULL,
    clients       TEXT NOT NULL,
    cron          TEXT NOT NULL,
    zone          TEXT NOT NULL,
    catch_up      TEXT NOT NULL DEFAULT 'latest' CHECK (catch_up IN ('skip', 'latest', 'all')),
    inputs        TEXT NOT NULL,
    next_us       INTEGER,
    paused        INTEGER NOT NULL DEFAULT 0,
    created_us    INTEGER NOT NULL
);

CREATE TABLE occurrence (
    schedule_id   TEXT NOT NULL,
    client_id     TEXT NOT NULL,
    slot_us       INTEGER NOT NULL,
    run_id        TEXT,
    skipped       TEXT,
    created_us    INTEGER NOT NULL,
    PRIMARY KEY (schedule_id, client_id, slot_us)
);

CREATE TABLE resource (
    name          TEXT PRIMARY KEY,
    state         TEXT NOT NULL CHECK (state IN ('closed', 'open', 'trial')),
    failures      TEXT NOT NULL,
    trial_run_no  INTEGER,
    opened_us     INTEGER,
    next_us       INTEGER
);

CREATE TABLE budget (
    client_id     TEXT NOT NULL,
    day           TEXT NOT NULL,
    usd           INTEGER NOT NULL DEFAULT 0,
    tokens        INTEGER NOT NULL DEFAULT 0,
    runs          INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (client_id, day)
);

CREATE TABLE token (
    id            TEXT PRIMARY KEY,
    hash          TEXT NOT NULL UNIQUE,
    scopes        TEXT NOT NULL,
    clients       TEXT NOT NULL,
    created_us    INTEGER NOT NULL,
    revoked_us    INTEGER
);

CREATE TABLE session (
    id            TEXT PRIMARY KEY,
    hash          TEXT NOT NULL UNIQUE,
    person_id     TEXT,
    scopes        TEXT NOT NULL,
    clients       TEXT NOT NULL,
    created_us    INTEGER NOT NULL,
    expires_us    INTEGER NOT NULL
);

-- The checkpoint: all that is known of a run, at most 64 KiB, cut with marks ("…"). Only selecting `document` costs anything.
CREATE VIEW checkpoint AS
SELECT run.id AS run_id, run.client_id, run.workflow, run.status, run.waiting_for,
       run.open_questions AS open_questions_count, run.goal, run.updated_us,
       (WITH
        mine AS (
            SELECT * FROM step WHERE step.id BETWEEN run.no << 24 AND (run.no << 24) + 16777215
        ), map AS (  -- maps of the run itself; a map within an item counts with its item
            SELECT key, CAST(json_extract(result, '$.of') AS INTEGER) AS items
              FROM mine WHERE name = 'run.map' AND branch = ''
        ), latest AS (  -- the newest generation of each record, and the item it lies in: the first part of its branch
            SELECT id, name, state, max(generation),
                   CASE WHEN branch LIKE '%]%' THEN substr(branch, 1, instr(branch, ']')) ELSE '' END AS item
              FROM mine WHERE name NOT LIKE 'run.%' AND name NOT LIKE 'client.%' GROUP BY branch, name, key
        ), per_item AS (  -- an item is finished with a step when all its records of that name are
            SELECT name, item, substr(item, 1, instr(item, '[') - 1) AS base, min(id) AS first_id, max(id) AS last_id,
                   min(state IN ('done', 'skipped')) AS finished, min(state = 'done') AS done, count(*) AS records
              FROM latest GROUP BY name, item
        ), in_maps AS (
            SELECT b.name, sum(map.items) AS items
              FROM (SELECT DISTINCT name, base FROM per_item WHERE item <> '') AS b JOIN map ON map.key = b.base GROUP BY b.name
        ), asked AS (
            SELECT * FROM question WHERE run_no = run.no
        ), named AS (  -- `items`: only when all of its records lie in maps
            SELECT name, min(first_id) AS first_id, max(last_id) AS last_id, sum(finished) AS finished, sum(done) AS done,
                   count(*) AS seen, max(records) AS records,
                   CASE WHEN min(item <> '') THEN (SELECT items FROM in_maps WHERE in_maps.name = per_item.name) END AS items
              FROM per_item GROUP BY name ORDER BY first_id LIMIT 60
        ), cut AS (
            SELECT (SELECT count(DISTINCT name) FROM per_item) > 60 AS names,
                   (SELECT count(*) FROM (SELECT DISTINCT branch, name, key FROM attempt
                     WHERE run_no = run.no AND outcome IN ('failed', 'unknown'))) > 20 AS failures,
                   (SELECT count(*) FROM asked WHERE status = 'open' AND folded_into IS NULL) > 20 AS questions,
                   (SELECT count(*) FROM asked WHERE status = 'answered' AND folded_into IS NULL) > 30 AS decisions,
                   (SELECT count(DISTINCT key) FROM fact WHERE client_id = run.client_id AND run_id = run.id) > 40 AS facts
        ), tried AS (
            SELECT branch, name, key, max(n) AS n, json_group_array(coalesce(approach, 'as written')) AS approaches,
                   max(started_us) AS at_us
              FROM (SELECT * FROM attempt WHERE run_no = run.no AND outcome IN ('failed', 'unknown') ORDER BY n)
             GROUP BY branch, name, key ORDER BY at_us DESC LIMIT 20
        ), known AS (  -- what the run found out about its client: set by it, or remembered from an answer
            SELECT key, CASE WHEN length(value) <= 300 THEN json_object('value', json(value), 'version', max(version))
                             ELSE json_object('value', substr(value, 1, 200) || '…', 'version', max(version)) END AS value
              FROM fact WHERE client_id = run.client_id AND run_id = run.id GROUP BY key LIMIT 40
        ), whole AS (
            SELECT json_object(
                'run_id', run.id, 'client_id', run.client_id, 'workflow', run.workflow, 'goal', substr(run.goal, 1, 1000),
                'status', run.status,
                'inputs', CASE WHEN length(run.inputs) <= 4000 THEN json(run.inputs)
                               ELSE json_object('…', substr(run.inputs, 1, 2000) || '…') END,
                'facts', (SELECT json_group_object(key, json(value)) FROM (SELECT * FROM (
                    SELECT key, value FROM known
                    UNION ALL
                    SELECT key, CASE WHEN length(result) <= 400 THEN result
                                     ELSE json_object('value', substr(result, 1, 200) || '…') END
                      FROM mine WHERE name = 'client.get' AND branch = '' AND result <> 'null'
                       AND key NOT IN (SELECT key FROM known) LIMIT 40)
                    UNION ALL SELECT '…', '"cut"' FROM cut WHERE facts)),
                'steps_complete', (SELECT json_group_array(name) FROM (
                    SELECT name FROM named WHERE finished >= coalesce(items, seen)
                       AND NOT EXISTS (SELECT 1 FROM asked WHERE asked.step = named.name AND status = 'open')
                       AND (SELECT started_us FROM mine WHERE mine.id = last_id) >= coalesce((
                           SELECT max(started_us) FROM attempt WHERE attempt.run_no = run.no AND attempt.name = named.name), 0)
                    UNION ALL SELECT '…' FROM cut WHERE names)),
                'artifacts', (SELECT json_group_object(name, json(value)) FROM (
                    SELECT named.name, CASE WHEN items IS NOT NULL THEN
                        json_object('done', done, 'of', items, 'latest', coalesce(
                            substr(last.summary, 1, 200), substr(last.result, 1, 120)))
                      WHEN seen > 1 OR records > 1 THEN
                        json_object('done', done, 'latest', coalesce(substr(last.summary, 1, 200), substr(last.result, 1, 120)))
                      ELSE json_object('summary', coalesce(substr(last.summary, 1, 200), substr(last.result, 1, 120)),
                            'ref', last.artifact) END AS value
                      FROM named JOIN mine AS last ON last.id = named.last_id
                    UNION ALL SELECT '…', '"cut"' FROM cut WHERE names)),
                'failures', (SELECT json_group_array(json(value)) FROM (SELECT * FROM (
                    SELECT json_object('step', tried.name, 'kind', a.kind, 'reason', substr(a.reason, 1, 300),
                                       'approaches', json(tried.approaches)) AS value
                      FROM tried JOIN attempt AS a ON a.run_no = run.no AND a.branch = tried.branch
                       AND a.name = tried.name AND a.key = tried.key AND a.n = tried.n ORDER BY tried.at_us)
                    UNION ALL SELECT '"…"' FROM cut WHERE failures)),
                'open_questions', (SELECT json_group_array(json(value)) FROM (SELECT * FROM (
                    SELECT json_object('id', id, 'text', substr(text, 1, 400)) AS value FROM asked
                     WHERE status = 'open' AND folded_into IS NULL ORDER BY created_us LIMIT 20)
                    UNION ALL SELECT '"…"' FROM cut WHERE questions)),
                'decisions', (SELECT json_group_array(json(value)) FROM (SELECT * FROM (
                    SELECT json_object('text', substr(text, 1, 200), 'answer', json(CASE WHEN length(answer) <= 300 THEN answer
                               ELSE json_quote(substr(answer, 1, 200) || '…') END), 'by', answered_by) AS value
                      FROM asked WHERE status = 'answered' AND folded_into IS NULL ORDER BY answered_us DESC LIMIT 30)
                    UNION ALL SELECT '"…"' FROM cut WHERE decisions)),
                'next_step', run.next_step,
                'remaining', json(coalesce(run.remaining, '[]')),
                'spend', json_object(
                    'usd', ((SELECT coalesce(sum(usd), 0) FROM mine)
                        + (SELECT coalesce(sum(usd), 0) FROM attempt WHERE run_no = run.no)) / 1e6,
                    'tokens', (SELECT coalesce(sum(tokens), 0) FROM mine)
                        + (SELECT coalesce(sum(tokens), 0) FROM attempt WHERE run_no = run.no))) AS document
        )
        SELECT CASE WHEN length(CAST(document AS BLOB)) <= 65536 THEN document ELSE json_object(
            'run_id', run.id, 'client_id', run.client_id, 'workflow', run.workflow, 'status', run.status,
            'goal', substr(run.goal, 1, 200), 'inputs', json_object('…', 'cut'), 'facts', json_object('…', 'cut'),
            'steps_complete', (SELECT json_group_array(substr(name, 1, 60)) FROM named WHERE finished >= coalesce(items, seen)),
            'artifacts', json_object('…', 'cut'), 'failures', json_array('…'),
            'open_questions', (SELECT json_group_array(json_object('id', id, 'text', text)) FROM (
                SELECT id, substr(text, 1, 200) AS text FROM asked
                 WHERE status = 'open' AND folded_into IS NULL ORDER BY created_us LIMIT 5)),
            'decisions', json_array('…'), 'next_step', run.next_step, 'remaining', json_array('…'),
            'spend', json_extract(document, '$.spend')) END
          FROM whole) AS document
  FROM run;
